//! Finds the real programs for a lane, which `lanes/LANE/prepare` provides.

use std::path::{Path, PathBuf};

/// Returns the directory with a lane's programs. If the lane was not prepared, the test is skipped and the result is
/// `None`.
///
/// # Panics
/// Under CI, where no part may be missing that a package provides.
#[must_use]
#[track_caller]
pub fn parts(lane: &str) -> Option<PathBuf> {
    // target/debug/deps/containerd-0123456789abcdef, target/debug/weft-test-api-pool
    let program = std::env::current_exe().expect("the path of this program");
    let profile = program.ancestors().skip(1).find(|above| !above.ends_with("deps"));
    let target =
        profile.and_then(Path::parent).expect("a program lies in target/PROFILE, a test in its deps");
    let directory = target.join(lane);
    if directory.join("ready").exists() {
        return Some(directory);
    }
    let why = format!("{} is not there: run `lanes/{lane}/prepare`", directory.display());
    assert!(std::env::var_os("CI").is_none(), "{why}");
    testkit::record_skip(&testkit::test_name(), &why);
    None
}

/// Returns a path as a string.
///
/// # Panics
/// The path is not UTF-8.
#[must_use]
pub fn text(path: &Path) -> &str {
    path.to_str().expect("a path of this tree is text")
}
