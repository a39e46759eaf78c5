//! Programs of other projects, in a directory that somebody filled and `PEERS` names.
//!
//! What is looked for there: `multus`, `multus-daemon` and `multus-shim` (Multus) and `whereabouts`, which no package
//! offers, and the Go plugins by their names, which Debian does: an older one, and with `PEERS=debian` a newer one.
//! Nothing is fetched; what is not there is a test that is skipped and counted, or a row that is left out.

use std::path::PathBuf;

/// The directory, if all of these programs are in it; nothing, and the test is skipped, if one is not.
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

/// The directory, if all of these programs are in it.
///
/// # Errors
/// What is missing.
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

/// Where the Go plugins are: those that this machine has, unless `PEERS` names others.
///
/// # Panics
/// Under CI, if those that `lanes/peer/prepare` gets are asked for and not there.
#[must_use]
pub fn go_plugins() -> PathBuf {
    match std::env::var_os("PEERS") {
        None => PathBuf::from("/usr/lib/cni"),
        Some(name) if name == "debian" => {
            crate::parts::parts("peer").expect("got by lanes/peer/prepare").join("root/usr/lib/cni")
        }
        Some(directory) => PathBuf::from(directory),
    }
}

/// Are they newer ones than Debian's stable release has?
#[must_use]
pub fn are_newest() -> bool {
    std::env::var_os("PEERS").is_some()
}
