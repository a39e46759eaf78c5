//! Tests the recording plugin: it behaves by default, misbehaves when instructed, and records every call.

#![cfg(test)]

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::{binary, calls};

/// File that only this test uses, removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        Scratch(std::env::temp_dir().join(format!("weft-plugin-{}-{name}", std::process::id())))
    }

    fn text(&self) -> &str {
        self.0.to_str().expect("a plain path")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn prepared(verb: &str, args: &str) -> Command {
    let mut command = Command::new(binary("weft-test-plugin"));
    command
        .env_clear()
        .env("CNI_COMMAND", verb)
        .env("CNI_CONTAINERID", "c1")
        .env("CNI_NETNS", "/run/netns/c1");
    command.env("CNI_IFNAME", "eth0").env("CNI_PATH", "/opt/cni/bin").env("CNI_ARGS", args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn call(verb: &str, args: &str, config: &Value) -> Output {
    use std::io::Write;
    let mut child = prepared(verb, args).spawn().expect("start the plugin");
    // A deaf plugin does not read.
    let _ = child.stdin.take().expect("a pipe").write_all(config.to_string().as_bytes());
    child.wait_with_output().expect("wait for the plugin")
}

fn stdout(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

#[test]
fn plugin_without_instructions_behaves() {
    let first = call("ADD", "", &json!({ "cniVersion": "1.0.0", "name": "n", "type": "t" }));
    let interface = json!({ "name": "eth0", "sandbox": "/run/netns/c1" });
    assert_eq!(stdout(&first), json!({ "cniVersion": "1.0.0", "interfaces": [interface] }));
    let previous = json!({ "cniVersion": "0.3.1", "ips": [] });
    let chained =
        call("ADD", "", &json!({ "cniVersion": "0.3.1", "name": "n", "type": "t", "prevResult": previous }));
    assert_eq!(stdout(&chained), previous);
    let removed = call("DEL", "", &json!({ "cniVersion": "1.0.0", "name": "n", "type": "t" }));
    assert!(removed.status.success() && removed.stdout.is_empty(), "{removed:?}");
}

#[test]
fn plugin_calls_are_recorded_in_order() {
    let record = Scratch::new("record");
    let config =
        json!({ "cniVersion": "1.0.0", "name": "n", "type": "t", "testPlugin": { "record": record.text() } });
    call("ADD", "IgnoreUnknown=1", &config);
    call("DEL", "", &config);
    let calls = calls(&record.0);
    assert_eq!(calls.iter().map(|call| call.command.as_str()).collect::<Vec<_>>(), ["ADD", "DEL"]);
    assert_eq!(calls[0].environment("CNI_ARGS"), "IgnoreUnknown=1");
    assert_eq!(calls[0].config(), config);
    assert_eq!(calls[0].program, "weft-test-plugin");
}

#[test]
fn plugin_misbehaves_as_instructed() {
    let config = |instructions: Value| json!({ "cniVersion": "1.0.0", "name": "n", "type": "t", "testPlugin": { "ADD": instructions } });
    let garbage = call("ADD", "TEST_ADD=garbage", &config(json!([])));
    assert!(garbage.status.success() && std::str::from_utf8(&garbage.stdout).is_err());
    let half = call("ADD", "TEST_ADD=half", &config(json!([])));
    assert!(serde_json::from_slice::<Value>(&half.stdout).is_err());
    let flood = call("ADD", "", &config(json!([{ "do": "flood", "bytes": 3_000_000 }])));
    assert_eq!(stdout(&flood)["padding"].as_str().map(str::len), Some(3_000_000));
    let signal = call("ADD", "TEST_ADD=signal", &config(json!([])));
    assert_eq!(signal.status.signal(), Some(9));
    let fail =
        call("ADD", "", &config(json!([{ "do": "fail", "code": 11, "message": "later", "details": "d" }])));
    assert_eq!(stdout(&fail), json!({ "cniVersion": "1.0.0", "code": 11, "msg": "later", "details": "d" }));
    assert_eq!(fail.status.code(), Some(1));
    let exit = call("ADD", "", &config(json!([{ "do": "exit", "code": 42 }])));
    assert!(exit.status.code() == Some(42) && exit.stdout.is_empty());
    let stderr = call("ADD", "", &config(json!([{ "do": "stderr", "text": "oh", "times": 2 }])));
    assert!(stderr.stderr == b"oh\noh\n" && stderr.status.success());
    let deaf = call("ADD", "TEST_ADD=deaf", &config(json!([{ "do": "exit", "code": 42 }])));
    assert!(deaf.status.success() && stdout(&deaf)["cniVersion"] == "1.0.0");
    let started = Instant::now();
    call("ADD", "", &config(json!([{ "do": "sleep", "milliseconds": 60 }])));
    assert!(started.elapsed() >= Duration::from_millis(60));
    let unknown = call("ADD", "", &config(json!([{ "do": "dance" }])));
    assert_eq!(stdout(&unknown)["code"], 7);
}

#[test]
fn hanging_plugin_runs_until_it_is_killed() {
    for order in ["hang", "hang-with-child"] {
        let mut child = prepared("DEL", &format!("TEST_DEL={order}")).spawn().expect("start the plugin");
        drop(child.stdin.take());
        std::thread::sleep(Duration::from_millis(100));
        assert!(child.try_wait().expect("look at the plugin").is_none(), "{order}: it ended on its own");
        if order == "hang-with-child" {
            let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", child.id()))
                .expect("its children");
            let grandchild = rustix::process::Pid::from_raw(children.trim().parse().expect("one child"))
                .expect("a process id");
            rustix::process::kill_process(grandchild, rustix::process::Signal::KILL)
                .expect("kill the child's child");
        }
        child.kill().expect("kill it");
        child.wait().expect("wait for it");
    }
}

#[test]
fn noop_debug_file_sets_the_response_and_records_the_call() {
    let (debug, log) = (Scratch::new("debug"), Scratch::new("log"));
    std::fs::write(
        &debug.0,
        r#"{"ReportResult":"{\"some\":\"result\"}","ReportStderr":"complaint","ExitWithCode":3}"#,
    )
    .expect("write");
    std::fs::write(&log.0, "").expect("write");
    let config = json!({ "cniVersion": "1.0.0", "name": "n", "type": "noop", "commandLog": log.text() });
    let output = call("ADD", &format!("DEBUG={}", debug.text()), &config);
    assert_eq!(stdout(&output), json!({ "some": "result" }));
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(3), &b"complaint"[..]));
    let recorded: Value = read(&debug.0);
    assert_eq!(
        (recorded["Command"].as_str(), recorded["CmdArgs"]["IfName"].as_str()),
        (Some("ADD"), Some("eth0"))
    );
    assert!(
        recorded["CmdArgs"]["StdinData"].as_str().is_some_and(|text| text.starts_with("eyJ")),
        "base64 of an object"
    );
    assert_eq!(read(&log.0)[0]["Command"], "ADD");
}

#[test]
fn noop_debug_file_sets_errors_and_versions() {
    let debug = Scratch::new("debug2");
    let args = format!("DEBUG={}", debug.text());
    let config = json!({ "cniVersion": "1.0.0", "name": "n", "type": "noop", "prevResult": { "cniVersion": "1.0.0" } });
    std::fs::write(&debug.0, r#"{"ReportError":"no","ReportErrorCode":150}"#).expect("write");
    assert_eq!(
        stdout(&call("CHECK", &args, &config)),
        json!({ "cniVersion": "1.0.0", "code": 150, "msg": "no" })
    );
    std::fs::write(&debug.0, r#"{"ReportResult":"INJECT-DNS"}"#).expect("write");
    assert_eq!(stdout(&call("ADD", &args, &config))["dns"]["nameservers"], json!(["1.2.3.4"]));
    std::fs::write(&debug.0, r#"{"ReportVersionSupport":["0.4.0"]}"#).expect("write");
    assert_eq!(stdout(&call("VERSION", &args, &config))["supportedVersions"], json!(["0.4.0"]));
    assert_eq!(stdout(&call("ADD", &args, &config))["code"], 1);
}

fn read(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).expect("read")).expect("JSON")
}
