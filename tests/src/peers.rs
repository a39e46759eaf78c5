//! Finds other projects' programs, in the directory that `PEERS` names.
//!
//! Lanes look there for `multus`, `multus-daemon` and `multus-shim` (Multus) and `whereabouts`, which no Debian package
//! contains, and for the Go plugins. Debian does package those, in an older version and, with `PEERS=debian`, in a
//! newer one. Nothing is downloaded. If a program is missing, the test is skipped and counted, or the row is left out.

use std::path::PathBuf;

/// Returns the directory if it contains all these programs. Otherwise the test is skipped and the result is `None`.
#[must_use]
#[track_caller]
pub fn peers(programs: &[&str]) -> Option<PathBuf> {
    match find(programs) {
        Ok(directory) => Some(directory),
        Err(why) => {
            testkit::record_skip(&testkit::test_name(), &why);
            None
        }
    }
}

/// Returns the directory if it contains all these programs.
///
/// # Errors
/// The missing programs.
pub fn find(programs: &[&str]) -> Result<PathBuf, String> {
    let named = std::env::var_os("PEERS").filter(|name| *name != "debian").map(PathBuf::from);
    let directory = named.and_then(|directory| directory.canonicalize().ok());
    let Some(directory) = directory else {
        return Err(format!("PEERS names no directory with {}", programs.join(", ")));
    };
    let missing: Vec<&str> =
        programs.iter().copied().filter(|program| !directory.join(program).is_file()).collect();
    match missing.is_empty() {
        true => Ok(directory),
        false => Err(format!("PEERS has no {}", missing.join(", "))),
    }
}

/// Returns the directory with the Go plugins: this machine's, unless `PEERS` names another.
///
/// # Panics
/// Under CI, if `PEERS=debian` and `lanes/peer/prepare` was not run.
#[must_use]
pub fn go_plugins() -> PathBuf {
    match std::env::var_os("PEERS") {
        None => PathBuf::from("/usr/lib/cni"),
        Some(name) if name == "debian" => crate::parts::parts("peer")
            .expect("plugins downloaded by lanes/peer/prepare")
            .join("root/usr/lib/cni"),
        Some(directory) => PathBuf::from(directory),
    }
}

/// Whether the Go plugins are newer than those in Debian's stable release.
#[must_use]
pub fn are_newest() -> bool {
    std::env::var_os("PEERS").is_some()
}
