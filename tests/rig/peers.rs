//! Programs of other projects that no package offers, in a directory that somebody filled and `PEERS` names.
//!
//! What is looked for there: `multus`, `multus-daemon` and `multus-shim` (Multus), `whereabouts`, and the Go plugins by
//! their names. Nothing is fetched; what is not there is a test that is skipped and counted, or a row that is left out.

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
