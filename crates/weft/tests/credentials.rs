//! `weft plan --once` with credentials that do not come: a pipe, and a program that never ends.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "test helpers may panic")]

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// The meta-plugin ends who takes longer than 60 s; a machine that is busy takes its time, too.
const MAX: Duration = Duration::from_secs(30);

/// What it is asked, framed.
fn question() -> Vec<u8> {
    let question = json!({ "version": 1, "request": { "plan": {
        "pod": {"namespace": "n", "name": "p", "uid": "u-1"},
        "container": "c1",
        "ifname": "eth0",
        "node": { "flavour": "weft", "files": [], "unreadable": [],
            "configuration": {"cniVersion": "1.0.0", "name": "w", "type": "weft",
                "delegates": [{"cniVersion": "1.0.0", "name": "home", "type": "bridge"}]} },
        "began": 0,
    } } });
    let text = question.to_string();
    [&u32::try_from(text.len()).unwrap().to_be_bytes(), text.as_bytes()].concat()
}

/// Why there is no plan by this kubeconfig: the refusal, which must come in time.
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
    // It stays open: who is asked answers nonetheless.
    let mut pipe = weft.stdin.take().unwrap();
    pipe.write_all(&question()).unwrap();
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

/// Code 11, because the same call may go well later, and one sentence that names the kubeconfig.
fn assert_told(refused: &Value, kubeconfig: &Path) {
    assert_eq!(refused["code"], 11, "{refused}");
    let sentence =
        format!("weft plan --once: kubeconfig {}: no credentials within 15 s", kubeconfig.display());
    assert_eq!(refused["msg"], sentence, "{refused}");
}

#[test]
fn a_pipe_into_which_nobody_writes_is_no_kubeconfig_for_ever() {
    let directory = directory("pipe");
    let pipe = directory.join("kubeconfig");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    assert_told(&refusal(&pipe), &pipe);
    fs::remove_dir_all(directory).unwrap();
}

#[test]
fn a_program_for_credentials_that_never_ends_is_ended_with_all_that_it_started() {
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
    assert_told(&refusal(&kubeconfig), &kubeconfig);
    let started = fs::read_to_string(started).unwrap();
    for process in started.split_whitespace() {
        let state = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        assert!(state.is_empty() || state.contains(") Z "), "{process} of {started}: {state}");
    }
    fs::remove_dir_all(directory).unwrap();
}
