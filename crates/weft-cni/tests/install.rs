//! Tests of `weft-cni install`: which files are written, and which plugins of other projects are kept.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Directory of a test, removed with this value.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Directory {
        let path = std::env::temp_dir().join(format!("weft-install-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Directory(path)
    }

    fn install(&self, words: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weft-cni"));
        command.arg("install").arg(&self.0).args(words).output().unwrap()
    }

    /// Returns names with the target of a link, or the first bytes of a file.
    fn entries(&self) -> Vec<(String, String)> {
        let entry = |path: &Path| match fs::read_link(path) {
            Ok(target) => target.display().to_string(),
            Err(_) => String::from_utf8_lossy(&fs::read(path).unwrap()[..4]).into_owned(),
        };
        let mut entries: Vec<_> = fs::read_dir(&self.0)
            .unwrap()
            .map(|found| found.unwrap().path())
            .map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), entry(&path)))
            .collect();
        entries.sort();
        entries
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn pairs(entries: &[(String, String)]) -> Vec<(&str, &str)> {
    entries.iter().map(|(name, leads_to)| (name.as_str(), leads_to.as_str())).collect()
}

const PROGRAM: (&str, &str) = ("weft-cni", "\u{7f}ELF");

#[test]
fn install_creates_the_names_and_a_repetition_changes_nothing() {
    let directory = Directory::new("names");
    assert!(directory.install(&[]).status.success());
    assert_eq!(pairs(&directory.entries()), [("weft", "weft-cni"), PROGRAM]);
    assert!(directory.install(&["--names", "bridge,weft"]).status.success());
    assert_eq!(pairs(&directory.entries()), [("bridge", "weft-cni"), ("weft", "weft-cni"), PROGRAM]);
    let mode = fs::metadata(directory.0.join("weft-cni")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o755);
    let again = String::from_utf8(directory.install(&["--names", "bridge"]).stdout).unwrap();
    assert!(again.lines().all(|line| line.ends_with(": up to date")), "{again}");
    let unknown = directory.install(&["--names", "brigde"]);
    assert_eq!(unknown.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("brigde"), "{unknown:?}");
}

#[test]
fn install_refuses_keeps_or_replaces_another_projects_plugin() {
    let directory = Directory::new("foreign");
    fs::write(directory.0.join("bridge"), "theirs").unwrap();
    let refused = directory.install(&["--names", "weft,bridge"]);
    assert_eq!(refused.status.code(), Some(1));
    let stderr = String::from_utf8_lossy(&refused.stderr);
    assert!(stderr.contains("/bridge: a plugin of another project"), "{refused:?}");
    assert_eq!(pairs(&directory.entries()), [("bridge", "thei")], "nothing was changed");
    let kept = directory.install(&["--names", "weft,bridge", "--keep"]);
    assert!(kept.status.success(), "{kept:?}");
    assert_eq!(pairs(&directory.entries()), [("bridge", "thei"), ("weft", "weft-cni"), PROGRAM]);
    assert!(directory.install(&["--names", "weft,bridge", "--replace"]).status.success());
    assert_eq!(pairs(&directory.entries()), [("bridge", "weft-cni"), ("weft", "weft-cni"), PROGRAM]);
}

#[test]
fn install_replaces_the_binary_of_a_running_process() {
    let directory = Directory::new("busy");
    let old = directory.0.join("weft-cni");
    fs::copy("/bin/sleep", &old).unwrap();
    let mut running = Command::new(&old).arg("60").spawn().unwrap();
    assert!(directory.install(&[]).status.success());
    assert_eq!(running.try_wait().unwrap(), None, "the old process continues");
    running.kill().unwrap();
    running.wait().unwrap();
    assert_eq!(pairs(&directory.entries()), [("weft", "weft-cni"), PROGRAM]);
    let version = Command::new(&old).arg("--version").output().unwrap();
    assert!(String::from_utf8_lossy(&version.stdout).starts_with("weft-cni "), "{version:?}");
}

#[test]
fn install_gives_a_plugin_another_name() {
    let directory = Directory::new("alias");
    assert!(
        directory.install(&["--names", "cnv-bridge=bridge,cnv-tuning,my-bridge=bridge"]).status.success()
    );
    let expected = [
        (".weft-cni.bridge", "weft-cni"),
        ("cnv-bridge", "weft-cni"),
        ("cnv-tuning", "weft-cni"),
        ("my-bridge", ".weft-cni.bridge"),
        PROGRAM,
    ];
    assert_eq!(pairs(&directory.entries()), expected);
    for (name, plugin) in [("cnv-bridge", "bridge"), ("cnv-tuning", "tuning"), ("my-bridge", "bridge")] {
        let about = Command::new(directory.0.join(name)).output().unwrap();
        let text = String::from_utf8_lossy(&about.stderr).into_owned();
        assert!(text.starts_with(&format!("CNI {plugin} plugin")), "{about:?}");
    }
    let again = String::from_utf8(directory.install(&["--names", "my-bridge=bridge"]).stdout).unwrap();
    assert!(again.lines().all(|line| line.ends_with(": up to date")), "{again}");
    for wrong in ["my-bridge=brigde", "ptp=bridge", "a/b=bridge", "=bridge", "weft-cni=bridge"] {
        assert_eq!(directory.install(&["--names", wrong]).status.code(), Some(1), "{wrong}");
    }
    std::os::unix::fs::symlink("weft-cni", directory.0.join("unknown")).unwrap();
    let refused = Command::new(directory.0.join("unknown")).env("CNI_COMMAND", "ADD").output().unwrap();
    assert!(String::from_utf8_lossy(&refused.stdout).contains("--names NAME=PLUGIN"), "{refused:?}");
}
