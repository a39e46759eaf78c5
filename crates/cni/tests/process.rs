//! Tests the example plugin as a process.

#![allow(clippy::unwrap_used, clippy::panic, reason = "test helpers may panic")]

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use cni::Error;
use cni::invocation::{Attach, Detach, Probe, Sweep};
use cni::invoke::Invoke;
use cni::plugin::{Plugin, process};
use cni::result::Success;
use cni::runtime::exec::Exec;

fn start(variables: &[(&str, &str)], stdin: Stdio) -> Child {
    let mut command = Command::new(testkit::example("recorder"));
    command.env_clear().envs(variables.iter().copied());
    command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn call(variables: &[(&str, &str)], stdin: &str) -> Output {
    let mut child = start(variables, Stdio::piped());
    // A plugin may answer without reading; other tests cover that.
    let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

struct File(PathBuf);

impl File {
    fn new(name: &str) -> File {
        let path = std::env::temp_dir().join(format!("weft-recorder-{}-{name}", std::process::id()));
        let _ = fs::remove_file(&path);
        File(path)
    }

    fn config(&self, version: &str) -> String {
        let file = self.0.display();
        format!(r#"{{"cniVersion":"{version}","name":"n","type":"recorder","file":"{file}"}}"#)
    }

    fn lines(&self) -> Vec<String> {
        fs::read_to_string(&self.0).unwrap_or_default().lines().map(str::to_owned).collect()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

const ADD: &[(&str, &str)] = &[
    ("CNI_COMMAND", "ADD"),
    ("CNI_CONTAINERID", "c1"),
    ("CNI_NETNS", "/nowhere"),
    ("CNI_IFNAME", "eth0"),
    ("CNI_PATH", "/nowhere"),
];

fn with<'a>(change: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let keep = ADD.iter().filter(|(name, _)| !change.iter().any(|(other, _)| other == name));
    keep.chain(change).copied().collect()
}

// Requirements: K2
#[test]
fn process_without_command_prints_about_text() {
    let output = call(&[], "");
    assert!(output.status.success() && output.stdout.is_empty());
    assert!(text(&output.stderr).starts_with("CNI recorder plugin v"), "{}", text(&output.stderr));
}

// Requirements: K3, S4
#[test]
fn process_version_answers_while_stdin_is_open() {
    // Building the example must not count in the measurement.
    let _ = testkit::example("recorder");
    let started = Instant::now();
    let mut child = start(&[("CNI_COMMAND", "VERSION")], Stdio::piped());
    let held = child.stdin.take();
    let output = child.wait_with_output().unwrap();
    drop(held);
    assert!(output.status.success() && started.elapsed() < Duration::from_secs(10));
    assert!(text(&output.stdout).starts_with(r#"{"cniVersion":"1.1.0","supportedVersions":["0.1.0","#));
    assert!(text(&output.stdout).ends_with("]}\n"));

    let output = call(&[("CNI_COMMAND", "VERSION")], r#"{"cniVersion":"0.3.1"}"#);
    assert!(text(&output.stdout).starts_with(r#"{"cniVersion":"0.3.1","#));
}

// Requirements: S1, S36, trap 6
#[test]
fn process_prints_results_and_errors_on_stdout() {
    let file = File::new("exit");
    let output = call(ADD, &file.config("1.0.0"));
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(
        text(&output.stdout),
        "{\n    \"cniVersion\": \"1.0.0\",\n    \"interfaces\": [\n        {\n            \"name\": \"eth0\",\n            \"sandbox\": \"/nowhere\"\n        }\n    ]\n}"
    );
    let output = call(ADD, "{");
    assert_eq!(output.status.code(), Some(1));
    let error: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&error["code"], &error["cniVersion"]), (&6.into(), &"1.1.0".into()));
    assert!(output.stderr.is_empty());
}

// Requirements: S13, S16, S31
#[test]
fn process_add_check_del_del() {
    let file = File::new("walk");
    assert!(call(ADD, &file.config("1.1.0")).status.success());
    assert!(call(&with(&[("CNI_COMMAND", "CHECK")]), &file.config("1.1.0")).status.success());
    let other = with(&[("CNI_COMMAND", "CHECK"), ("CNI_IFNAME", "net1")]);
    assert_eq!(call(&other, &file.config("1.1.0")).status.code(), Some(1));
    for _ in 0..2 {
        let del = with(&[("CNI_COMMAND", "DEL"), ("CNI_NETNS", "")]);
        assert!(call(&del, &file.config("1.1.0")).status.success());
    }
    assert_eq!(file.lines(), ["add c1 eth0", "del c1 eth0", "del c1 eth0"]);
}

// Requirements: K6, trap 8
#[test]
fn process_own_netns_is_refused() {
    let file = File::new("netns");
    for command in ["ADD", "DEL"] {
        let own = with(&[("CNI_COMMAND", command), ("CNI_NETNS", "/proc/self/ns/net")]);
        let output = call(&own, &file.config("1.0.0"));
        let error: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((output.status.code(), &error["code"]), (Some(1), &8.into()));
    }
    assert!(file.lines().is_empty());
    let allowed = with(&[("CNI_NETNS", "/proc/self/ns/net"), ("CNI_NETNS_OVERRIDE", "TRUE")]);
    assert!(call(&allowed, &file.config("1.0.0")).status.success());
}

// Requirements: S30
#[test]
fn process_forwards_stderr_of_a_delegate() {
    let file = File::new("stderr");
    let directory = std::env::temp_dir().join(format!("weft-recorder-{}-path", std::process::id()));
    fs::create_dir_all(&directory).unwrap();
    let script = directory.join("loud");
    fs::write(
        &script,
        "#!/bin/sh\necho \"loud $CNI_COMMAND\" >&2\necho '{\"ips\":[{\"address\":\"10.0.0.2/24\"}]}'\n",
    )
    .unwrap();
    fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let config = file.config("1.0.0").replace("\"name\"", "\"ipam\":{\"type\":\"loud\"},\"name\"");
    let path = directory.to_str().unwrap();
    let output = call(&with(&[("CNI_PATH", path), ("PATH", "/usr/bin:/bin")]), &config);
    fs::remove_dir_all(&directory).unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(text(&output.stderr), "loud ADD\n");
    assert!(text(&output.stdout).contains("10.0.0.2/24"));
}

/// Plugin that panics.
struct Faulty;

impl Plugin for Faulty {
    fn name(&self) -> &'static str {
        "faulty"
    }

    fn add(&self, _: &Attach, _: &dyn Invoke) -> Result<Success, Error> {
        panic!("out of cheese")
    }

    fn del(&self, _: &Detach, _: &dyn Invoke) -> Result<(), Error> {
        std::thread::spawn(|| panic!("{} of cheese", "out")).join().map_err(|_| Error::internal("it went on"))
    }

    fn check(&self, _: &Attach, _: &dyn Invoke) -> Result<(), Error> {
        Ok(())
    }

    fn gc(&self, _: &Sweep, _: &dyn Invoke) -> Result<(), Error> {
        Ok(())
    }

    fn status(&self, _: &Probe, _: &dyn Invoke) -> Result<(), Error> {
        Ok(())
    }
}

// Requirements: K5
#[test]
fn process_panic_of_any_thread_is_answered() {
    const NAME: &str = "process_panic_of_any_thread_is_answered";
    // This test runs itself as the plugin; the test harness prints before the plugin's output.
    if std::env::var_os("CNI_COMMAND").is_some() {
        process::run(&Faulty, &Exec::new(Duration::from_secs(1)));
        unreachable!("the process has ended");
    }
    for verb in ["ADD", "DEL"] {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", NAME, "--nocapture"])
            .envs(with(&[("CNI_COMMAND", verb)]))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let config = br#"{"cniVersion":"1.1.0","name":"n","type":"faulty"}"#;
        child.stdin.take().unwrap().write_all(config).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let answer = text(&output.stdout);
        let error: serde_json::Value = serde_json::from_str(&answer[answer.find('{').unwrap()..]).unwrap();
        let said = error["msg"].as_str().unwrap();
        assert_eq!(error["code"], 999, "{error}");
        assert!(said.starts_with("faulty panicked at ") && said.ends_with(": out of cheese"), "{said}");
    }
}
