//! Finding our programs: what a test runs is what the tree says now.
//!
//! With `WEFT_BIN_DIR` set, programs are taken from there as they are (`make bench`, release builds).
//! Otherwise they lie beside the running test; one that is missing, or older than a source file it was
//! made of, is built first. Which files those are cargo has written down in `PROGRAM.d`.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

/// The path of one of our programs: `weft-cni`, `weft`, `weft-test-plugin`.
///
/// # Panics
/// If it is not there and cannot be built, with cargo's words.
#[must_use]
#[track_caller]
pub fn binary(name: &str) -> PathBuf {
    if let Some(directory) = std::env::var_os("WEFT_BIN_DIR") {
        let path = workspace().join(directory).join(name);
        assert!(
            path.exists(),
            "there is no {}: WEFT_BIN_DIR says to look there; `make build` fills bin/",
            path.display()
        );
        return path;
    }
    fresh("--bin", name, "")
}

/// The path of an example of one of our crates.
///
/// # Panics
/// If it is not there and cannot be built, with cargo's words.
#[must_use]
#[track_caller]
pub fn example(name: &str) -> PathBuf {
    fresh("--example", name, "examples")
}

/// What cargo calls by `option`, and puts into `directory` of a profile's: as the tree says now.
#[track_caller]
fn fresh(option: &str, name: &str, directory: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the path of this test");
    // target/debug/deps/net_rig-0123456789abcdef: programs are two floors up.
    let profile = test.parent().and_then(Path::parent).expect("a test lies in target/PROFILE/deps");
    let path = profile.join(directory).join(name);
    if !is_fresh(&path) {
        build(option, &path, profile);
    }
    path
}

/// The directory of the workspace's manifest.
#[must_use]
pub fn workspace() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("crates/testkit is two floors down").to_path_buf()
}

/// Whether it is there, and nothing it was made of changed since it was made, or since cargo last looked.
///
/// Cargo leaves a program alone whose sources, but not whose lock file, are older: hence the second.
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

/// The files after the colon of `target: source source`; a blank in a name is written `\ `.
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
    // What a test is told of its own package is not for others' build scripts: they would be run again, now and for whoever
    // builds next.
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
    // What changed while cargo was at work counts as changed later.
    checked
        .and_then(|file| file.set_modified(started))
        .unwrap_or_else(|error| panic!("note that {name} is fresh: {error}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dep_info_is_read_with_blanks_in_names() {
        let sources: Vec<_> = sources_of("/t/weft: /a/main.rs /with\\ blank/lib.rs\n").collect();
        assert_eq!(sources, [Path::new("/a/main.rs"), Path::new("/with blank/lib.rs")]);
    }

    #[test]
    fn a_program_is_built_when_it_is_missing_and_then_found() {
        let plugin = binary("weft-test-plugin");
        assert!(plugin.exists());
        assert!(is_fresh(&plugin), "{} is stale right after it was built", plugin.display());
    }
}
