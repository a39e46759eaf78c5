//! `release/install.sh` with a release of this test, in a directory where another user may have planted links.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use testkit::workspace;

/// Directory that is removed at the end.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs a command that must succeed, and returns the output.
#[track_caller]
fn run(command: &mut Command) -> String {
    let output = command.output().expect("a program");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

/// Creates a release with two small programs, and the script that installs it.
fn release(directory: &Path) {
    let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let name = format!("weft-1.2.3-linux-{architecture}");
    fs::create_dir_all(directory.join(&name)).expect("a directory");
    for program in ["weft", "weft-cni"] {
        fs::write(directory.join(&name).join(program), "#!/bin/sh\necho weft 1.2.3\n").expect("a program");
    }
    let archive = format!("{name}.tar.gz");
    run(Command::new("tar").current_dir(directory).args(["-czf", &archive, &name]));
    let sums = run(Command::new("sha256sum").current_dir(directory).arg(&archive));
    fs::write(directory.join("SHA256SUMS"), sums).expect("the checksums");
    let script = fs::read_to_string(workspace().join("release/install.sh")).expect("the script");
    let script = script.replace("@VERSION@", "1.2.3").replace("@DOWNLOADS@", "/nowhere");
    fs::write(directory.join("install.sh"), script).expect("the script");
}

#[test]
fn install_script_follows_no_link_that_was_planted() {
    let scratch = Scratch(std::env::temp_dir().join(format!("weft-install-{}", std::process::id())));
    let (directory, prefix) = (scratch.0.as_path(), scratch.0.join("prefix"));
    release(directory);
    let (bin, victim) = (prefix.join("bin"), directory.join("victim"));
    fs::create_dir_all(&bin).expect("a directory");
    fs::set_permissions(&bin, fs::Permissions::from_mode(0o777)).expect("permissions");
    fs::write(&victim, "precious").expect("a file");
    for name in [".weft.new", ".weft-cni.new", "weft", "weft-cni"] {
        symlink(&victim, bin.join(name)).expect("a link");
    }
    let install = || {
        let mut command = Command::new("sh");
        command.arg(directory.join("install.sh")).arg("--prefix").arg(&prefix).arg("--from").arg(directory);
        command
    };
    assert_eq!(run(&mut install()), "weft 1.2.3\n");
    assert_eq!(fs::read_to_string(&victim).expect("a file"), "precious");
    for program in ["weft", "weft-cni"] {
        let metadata = fs::symlink_metadata(bin.join(program)).expect("a program");
        assert!(metadata.is_file() && metadata.permissions().mode() & 0o777 == 0o755, "{program}");
    }
    // A directory in the place of a program is an error, and nothing is moved into it.
    fs::remove_file(bin.join("weft-cni")).expect("removed");
    fs::create_dir(bin.join("weft-cni")).expect("a directory");
    assert!(!install().output().expect("a program").status.success());
    assert_eq!(fs::read_dir(bin.join("weft-cni")).expect("a directory").count(), 0);
    let left = fs::read_dir(&bin).expect("a directory").flatten().count();
    assert_eq!(left, 4, "no temporary file is left beside two programs and two planted links");
}
