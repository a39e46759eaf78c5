//! Finds the programs in this workspace, built from the current sources.
//!
//! With `WEFT_BIN_DIR`, programs are taken from that directory as they are (`make bench`, release builds). Without it,
//! they are next to the running test, and a program that is missing or older than one of the sources is built first.
//! Cargo lists the sources in `PROGRAM.d`.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

/// Returns the path of a workspace program: `weft-cni`, `weft` or `weft-test-plugin`.
///
/// # Panics
/// The program is missing and cannot be built; the message contains cargo's output.
#[must_use]
#[track_caller]
pub fn binary(name: &str) -> PathBuf {
    if let Some(directory) = std::env::var_os("WEFT_BIN_DIR") {
        let path = workspace().join(directory).join(name);
        assert!(
            path.exists(),
            "{} does not exist: WEFT_BIN_DIR names its directory; `make build` fills bin/",
            path.display()
        );
        return path;
    }
    fresh("--bin", name, "")
}

/// Returns the path of an example in this workspace.
///
/// # Panics
/// The example is missing and cannot be built; the message contains cargo's output.
#[must_use]
#[track_caller]
pub fn example(name: &str) -> PathBuf {
    fresh("--example", name, "examples")
}

/// Returns the path of a cargo target that `option` selects, in `directory` below the profile directory; builds it if
/// it is stale.
#[track_caller]
fn fresh(option: &str, name: &str, directory: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the path of this test");
    // target/debug/deps/net_rig-0123456789abcdef: programs are two directories up.
    let profile = test.parent().and_then(Path::parent).expect("a test lies in target/PROFILE/deps");
    let path = profile.join(directory).join(name);
    if !is_fresh(&path) {
        build(option, &path, profile);
    }
    path
}

/// Returns the workspace root.
#[must_use]
pub fn workspace() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("crates/testkit is two directories down").to_path_buf()
}

/// Whether a program exists and no source has changed since it was built or since cargo last ran.
///
/// The second time is needed because cargo does not rebuild a program when only the lock file is newer.
fn is_fresh(path: &Path) -> bool {
    let modified = |path: &Path| std::fs::metadata(path).and_then(|meta| meta.modified()).ok();
    let (Some(built), Ok(sources)) = (modified(path), std::fs::read_to_string(path.with_extension("d")))
    else {
        return false;
    };
    let checked = modified(&path.with_extension("checked")).map_or(built, |checked| checked.max(built));
    let older = |source: &Path| modified(source).is_some_and(|changed| changed <= checked);
    sources_of(&sources).all(|source| older(&source)) && older(&workspace().join("Cargo.lock"))
}

/// Parses the files after the colon in `target: source source`; a space in a name is written `\ `.
fn sources_of(dep_info: &str) -> impl Iterator<Item = PathBuf> {
    let after = dep_info.split_once(": ").map_or("", |(_, sources)| sources.trim_end());
    let escaped = after.replace("\\ ", "\0");
    escaped
        .split_whitespace()
        .map(|name| PathBuf::from(name.replace('\0', " ")))
        .collect::<Vec<_>>()
        .into_iter()
}

#[track_caller]
fn build(option: &str, path: &Path, profile_directory: &Path) {
    let name = path.file_name().and_then(|name| name.to_str()).expect("a program's name");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let profile = match profile_directory.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(profile) => profile,
    };
    let target = profile_directory.parent().expect("target/PROFILE");
    let started = SystemTime::now();
    let mut command = Command::new(cargo);
    // Variables from the test's own package must not reach other crates' build scripts: those would run again, in this
    // build and in the next one.
    let of_package = |name: &OsString| {
        let name = name.to_string_lossy();
        name == "OUT_DIR" || name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
    };
    for (name, _) in std::env::vars_os().filter(|(name, _)| of_package(name)) {
        command.env_remove(name);
    }
    let output = command
        .args(["build", "--quiet", "--locked", option, name, "--profile", profile])
        .env("CARGO_TARGET_DIR", target)
        .current_dir(workspace())
        .output()
        .unwrap_or_else(|error| panic!("run cargo to build {name}: {error}"));
    assert!(
        output.status.success(),
        "cargo build {option} {name}:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let checked = File::create(path.with_extension("checked"));
    // A source that changed while cargo ran counts as changed later.
    checked
        .and_then(|file| file.set_modified(started))
        .unwrap_or_else(|error| panic!("record that {name} is fresh: {error}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dep_info_file_names_may_contain_spaces() {
        let sources: Vec<_> = sources_of("/t/weft: /a/main.rs /with\\ blank/lib.rs\n").collect();
        assert_eq!(sources, [Path::new("/a/main.rs"), Path::new("/with blank/lib.rs")]);
    }

    #[test]
    fn test_binary_that_is_missing_is_built() {
        let plugin = binary("weft-test-plugin");
        assert!(plugin.exists());
        assert!(is_fresh(&plugin), "{} is stale right after it was built", plugin.display());
    }
}
