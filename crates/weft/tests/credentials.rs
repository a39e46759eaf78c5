//! `weft plan --once` with credentials that never arrive: a pipe, and a program that does not exit.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "test helpers may panic")]

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Timeout of the test. The meta-plugin kills the command after 60 s; a busy machine needs part of that.
const MAX: Duration = Duration::from_secs(30);

/// Returns a plan request in its frame.
fn plan_request() -> Vec<u8> {
    let plan_request = json!({ "version": 1, "request": { "plan": {
        "pod": {"namespace": "n", "name": "p", "uid": "u-1"},
        "container": "c1",
        "ifname": "eth0",
        "node": { "flavour": "weft", "files": [], "unreadable": [],
            "configuration": {"cniVersion": "1.0.0", "name": "w", "type": "weft",
                "delegates": [{"cniVersion": "1.0.0", "name": "home", "type": "bridge"}]} },
        "began": 0,
    } } });
    let text = plan_request.to_string();
    [&u32::try_from(text.len()).unwrap().to_be_bytes(), text.as_bytes()].concat()
}

/// Returns the refusal for a plan request with this kubeconfig, which must come in time.
fn refusal(kubeconfig: &Path) -> Value {
    let program = testkit::binary("weft");
    let began = Instant::now();
    let mut weft = Command::new(program)
        .args(["plan", "--once", "--kubeconfig"])
        .arg(kubeconfig)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // The pipe stays open; the command responds nonetheless.
    let mut pipe = weft.stdin.take().unwrap();
    pipe.write_all(&plan_request()).unwrap();
    while weft.try_wait().unwrap().is_none() {
        if began.elapsed() > MAX {
            weft.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let output = weft.wait_with_output().unwrap();
    assert!(output.status.success(), "{} after {:?}", output.status, began.elapsed());
    serde_json::from_slice::<Value>(&output.stdout[4..]).unwrap()["response"]["refused"].clone()
}

fn directory(name: &str) -> PathBuf {
    let directory = std::env::temp_dir().join(format!("weft-{name}-{}", std::process::id()));
    fs::create_dir_all(&directory).unwrap();
    directory
}

/// Asserts code 11 (try again later) and a message that names the kubeconfig.
fn assert_refusal(refused: &Value, kubeconfig: &Path) {
    assert_eq!(refused["code"], 11, "{refused}");
    let sentence =
        format!("weft plan --once: kubeconfig {}: no credentials within 15 s", kubeconfig.display());
    assert_eq!(refused["msg"], sentence, "{refused}");
}

#[test]
fn credentials_timeout_for_a_pipe_as_kubeconfig() {
    let directory = directory("pipe");
    let pipe = directory.join("kubeconfig");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    assert_refusal(&refusal(&pipe), &pipe);
    fs::remove_dir_all(directory).unwrap();
}

#[test]
fn credentials_timeout_kills_the_exec_program_and_its_children() {
    let directory = directory("program");
    let (kubeconfig, started) = (directory.join("kubeconfig"), directory.join("started"));
    let script = format!("sleep 600 & echo $$ $! >{}; wait", started.display());
    let kubeconfig_text = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {"exec": {"apiVersion": "client.authentication.k8s.io/v1",
            "command": "sh", "args": ["-c", script], "interactiveMode": "IfAvailable"}}}],
    });
    fs::write(&kubeconfig, kubeconfig_text.to_string()).unwrap();
    assert_refusal(&refusal(&kubeconfig), &kubeconfig);
    let started = fs::read_to_string(started).unwrap();
    for process in started.split_whitespace() {
        let state = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        assert!(state.is_empty() || state.contains(") Z "), "{process} of {started}: {state}");
    }
    fs::remove_dir_all(directory).unwrap();
}
