//! Tests of an interrupted `make test`: the API server pool and the virtual machine end with it.
//!
//! They run the `Makefile` and `lanes/run` of this tree in a directory whose lanes and `cargo` are scripts that only
//! wait. As nextest does, that `cargo` handles a signal and exits with a different status.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use testkit::workspace;

/// Limit for any wait; `lanes/run` waits ten seconds before it kills a group.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Scripts in the directory. Each process that must end writes the process id to the file `pids`.
const SCRIPTS: [(&str, &str); 6] = [
    ("lanes/setup", "exit 0"),
    ("release/site", "exit 0"),
    ("lanes/kube/prepare", "exit 0"),
    ("lanes/kube/serve", "echo $$ >>pids; exec sleep 600"),
    ("lanes/vm/run", "echo $$ >>pids; sleep 600 & echo $! >>pids; wait $!; wait"),
    (
        "bin/cargo",
        "case \"$*\" in *'nextest run'*'(kube)'*) ;; *) exit 0 ;; esac
        until [ \"$(wc -l <pids)\" = 3 ]; do sleep 0.05; done
        trap 'kill $!; exit 100' INT TERM HUP
        sleep 600 & echo $! >>pids; wait",
    ),
];

/// Directory with a running `make test`.
struct Run {
    directory: PathBuf,
    make: Child,
}

// === impl Run ===

impl Run {
    /// Starts `make test` as leader of a process group, and waits until the tests of the lane `kube` run.
    fn start(name: &str, scripts: &[(&str, &str)]) -> Run {
        let directory = std::env::temp_dir().join(format!("weft-interrupted-{name}-{}", std::process::id()));
        for (path, script) in SCRIPTS.iter().chain(scripts) {
            write_script(&directory.join(path), script);
        }
        for path in ["Makefile", "lanes/run"] {
            fs::copy(workspace().join(path), directory.join(path)).expect("a file of this tree");
        }
        let path =
            format!("{}:{}", directory.join("bin").display(), std::env::var("PATH").unwrap_or_default());
        let mut command = Command::new("make");
        command.arg("test").current_dir(&directory).env("PATH", path).process_group(0);
        command.env_remove("MAKEFLAGS").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let run = Run { make: command.spawn().expect("make"), directory };
        until("four processes run", || run.processes().len() == 4);
        run
    }

    /// Ids of the processes that must end.
    fn processes(&self) -> Vec<String> {
        let pids = fs::read_to_string(self.directory.join("pids")).unwrap_or_default();
        pids.lines().map(str::to_owned).collect()
    }

    /// Sends a signal to the process group, as a terminal or a supervisor does; returns the status of `make`.
    fn interrupt(&mut self, signal: &str) -> ExitStatus {
        let group = format!("-{}", self.make.id());
        let status = Command::new("kill").args(["-s", signal, "--", &group]).status().expect("kill");
        assert!(status.success(), "kill -s {signal} {group}: {status}");
        let mut ended = None;
        until("make has ended", || {
            ended = self.make.try_wait().expect("the state of make");
            ended.is_some()
        });
        ended.expect("a status")
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let processes = self.processes();
        let _ = Command::new("kill").arg("-KILL").args(&processes).stderr(Stdio::null()).status();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Writes an executable script for bash.
fn write_script(path: &Path, script: &str) {
    fs::create_dir_all(path.parent().expect("a directory")).expect("make a directory");
    fs::write(path, format!("#!/bin/bash\n{script}\n")).expect("write a script");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("make a script executable");
}

/// Waits until a condition holds.
fn until(condition: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !holds() {
        assert!(Instant::now() < deadline, "{condition}: not after {TIMEOUT:?}");
        sleep(Duration::from_millis(20));
    }
}

fn is_running(process: &str) -> bool {
    fs::read_to_string(format!("/proc/{process}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

/// Fails unless the signal ends `make test` and every process that it started.
#[track_caller]
fn assert_ends(mut run: Run, signal: &str) {
    let status = run.interrupt(signal);
    assert!(status.code() == Some(2) || status.signal().is_some(), "{signal}: make test: {status}");
    // `make` may end before `lanes/run`.
    until(&format!("{signal}: the pool, the virtual machine and the tests have ended"), || {
        !run.processes().iter().any(|process| is_running(process))
    });
}

#[test]
fn interrupted_run_ends_its_servers_and_its_machine() {
    for signal in ["INT", "TERM", "HUP"] {
        assert_ends(Run::start(signal, &[]), signal);
    }
}

#[test]
fn interrupted_run_kills_what_ignores_the_signal() {
    let stubborn = ("lanes/kube/serve", "trap '' INT TERM HUP; echo $$ >>pids; exec sleep 600");
    assert_ends(Run::start("stubborn", &[stubborn]), "INT");
}
