//! `weft cni`, also called as `cnitool`, with a recording plugin.
//!
//! ```text
//!   host   /etc/cni/net.d   /opt/cni/bin/{one,two} = weft-test-plugin   /var/lib/cni
//!     └─ pod blue   /run/netns/blue
//! ```

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test helpers may panic")]

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use testkit::{Call, Finished, Host, Pod};

const RECORD: &str = "/var/lib/weft/calls";
/// `printf %s /run/netns/blue | sha512sum | cut -c1-20`.
const ID: &str = "cnitool-df26705e2e4ffd095eb1";

struct Rig {
    host: Host,
    pod: Pod,
}

impl Rig {
    fn new(host: Host, version: &str) -> Rig {
        host.install(&testkit::binary("weft-test-plugin"), &["one", "two"]);
        host.install(&testkit::binary("weft"), &["weft", "cnitool"]);
        let pod = host.pod("blue");
        let rig = Rig { host, pod };
        rig.network("10-net.conflist", version, &json!({}));
        rig.host.write(RECORD, "");
        rig
    }

    fn network(&self, file: &str, version: &str, instructions: &Value) {
        let mut instructions = instructions.clone();
        instructions["record"] = RECORD.into();
        let list = json!({"cniVersion": version, "name": "net", "plugins": [
            {"type": "one", "testPlugin": instructions, "capabilities": {"mac": true}},
            {"type": "two", "testPlugin": {"record": RECORD}}
        ]});
        self.host.write(Path::new("/etc/cni/net.d").join(file), list.to_string());
    }

    fn run(&self, program: &str, line: &str) -> Finished {
        let command = self.host.command(format!("/opt/cni/bin/{program}")).clean_environment();
        command.env("CNI_PATH", "/opt/cni/bin").args(line.split_whitespace()).finish()
    }

    fn weft(&self, line: &str) -> Finished {
        self.run("weft", &format!("cni {line}"))
    }

    fn cnitool(&self, line: &str) -> Finished {
        self.run("cnitool", line)
    }

    /// Returns the plugin calls since the previous call of this function.
    fn calls(&self) -> Vec<Call> {
        let text = self.host.read(RECORD).unwrap_or_default();
        self.host.write(RECORD, "");
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn call_order(&self) -> Vec<String> {
        self.calls()
            .iter()
            .map(|call| format!("{} {}", call.command, call.config()["type"].as_str().unwrap()))
            .collect()
    }

    fn entry(&self, ifname: &str) -> Option<String> {
        self.host.read(format!("/var/lib/cni/results/net-{ID}-{ifname}"))
    }
}

#[test]
fn cnitool_add_check_del_under_both_names() {
    let rig = Rig::new(testkit::host!(), "1.0.0");
    for (program, prefix) in [("weft", "cni "), ("cnitool", "")] {
        let run = |line: &str| rig.run(program, &format!("{prefix}{line}"));
        let result = run("add net /run/netns/blue").success().json();
        assert_eq!(result["cniVersion"], "1.0.0");
        assert!(rig.entry("eth0").is_some(), "{program} keeps the result where libcni does");
        let calls = rig.calls();
        assert_eq!(calls.len(), 2);
        assert_eq!(calls[0].environment("CNI_CONTAINERID"), ID);
        assert_eq!(calls[0].environment("CNI_NETNS"), rig.pod.path().to_str().unwrap());
        assert_eq!(calls[0].environment("CNI_IFNAME"), "eth0");
        assert_eq!(calls[1].config()["prevResult"]["cniVersion"], "1.0.0");

        assert_eq!(run("check net /run/netns/blue").success().stdout, "");
        assert_eq!(run("del net /run/netns/blue").success().stdout, "");
        assert_eq!(rig.call_order(), ["CHECK one", "CHECK two", "DEL two", "DEL one"]);
        assert_eq!(rig.entry("eth0"), None);
        run("del net /run/netns/blue").success();
        rig.calls();
    }
}

#[test]
fn cni_uses_the_default_plugin_directories() {
    let rig = Rig::new(testkit::host!(), "1.0.0");
    let run = |words: &[&str]| rig.host.command("/opt/cni/bin/weft").clean_environment().args(words).finish();
    run(&["cni", "add", "net", "/run/netns/blue"]).success();
    run(&["cni", "del", "net", "/run/netns/blue"]).success();
    let tool = rig.host.command("/opt/cni/bin/cnitool").clean_environment();
    let refused = tool.args(["add", "net", "/run/netns/blue"]).finish();
    assert!(refused.code != Some(0) && refused.stderr.contains("CNI_PATH"), "{refused}");
}

#[test]
fn cnitool_environment_variables_are_supported() {
    let rig = Rig::new(testkit::host!(), "1.0.0");
    let other = json!({"cniVersion": "1.0.0", "name": "elsewhere", "type": "one", "testPlugin": {"record": RECORD}, "capabilities": {"mac": true}});
    rig.host.write("/var/lib/weft/conf/a.conf", other.to_string());
    let command = |program: &str| {
        rig.host
            .command(program)
            .clean_environment()
            .env("NETCONFPATH", "/var/lib/weft/conf")
            .env("CNI_PATH", "/opt/cni/bin")
            .env("CNI_ARGS", "IgnoreUnknown=1;A=b")
            .env("CAP_ARGS", r#"{"mac":"c2:11:22:33:44:55","ips":["10.0.0.1"]}"#)
            .env("CNI_IFNAME", "net1")
    };
    command("/opt/cni/bin/cnitool").args(["add", "elsewhere", "/run/netns/../netns/blue"]).finish().success();
    command("/opt/cni/bin/weft")
        .args(["cni", "add", "elsewhere", "/run/netns/blue", "-i", "net2"])
        .finish()
        .success();
    let calls = rig.calls();
    let ifnames: Vec<&str> = calls.iter().map(|call| call.environment("CNI_IFNAME")).collect();
    assert_eq!(ifnames, ["net1", "net2"]);
    for call in &calls {
        assert_eq!(call.environment("CNI_ARGS"), "IgnoreUnknown=1;A=b");
        assert_eq!(call.environment("CNI_CONTAINERID"), ID);
        assert_eq!(call.config()["runtimeConfig"], json!({"mac": "c2:11:22:33:44:55"}));
        assert_eq!(call.config().get("capabilities"), None);
    }
    for (name, value) in [("CNI_ARGS", "A"), ("CNI_ARGS", "A="), ("CAP_ARGS", "[]"), ("CNI_IFNAME", "a/b")] {
        let refused = command("/opt/cni/bin/cnitool")
            .env(name, value)
            .args(["add", "elsewhere", "/run/netns/blue"])
            .finish();
        assert_eq!(refused.code, Some(1), "{name}={value}");
        assert!(refused.stderr.contains(value.trim_matches(['[', ']'])), "{}", refused.stderr);
    }
    assert!(rig.calls().is_empty());
}

// Requirements: L7
#[test]
fn cni_gc_requires_valid_or_all() {
    let rig = Rig::new(testkit::host!(), "1.1.0");
    rig.weft("add net /run/netns/blue").success();
    rig.weft("add net /run/netns/blue -i net1").success();
    rig.calls();

    let refused = rig.weft("gc net");
    assert_eq!(refused.code, Some(1));
    assert!(refused.stderr.contains("--valid") && refused.stderr.contains("--all"), "{}", refused.stderr);
    assert!(rig.calls().is_empty());
    assert_eq!(rig.weft(&format!("gc net --all --valid {ID}/eth0")).code, Some(2));

    rig.weft(&format!("gc net --valid {ID}/eth0")).success();
    let calls = rig.calls();
    let commands: Vec<&str> = calls.iter().map(|call| call.command.as_str()).collect();
    assert_eq!(commands, ["DEL", "DEL", "GC", "GC"]);
    assert_eq!(calls[0].environment("CNI_IFNAME"), "net1");
    assert_eq!(
        calls[2].config()["cni.dev/valid-attachments"],
        json!([{"containerID": ID, "ifname": "eth0"}])
    );
    assert!(rig.entry("eth0").is_some() && rig.entry("net1").is_none());

    rig.weft("gc net --all").success();
    assert_eq!(rig.entry("eth0"), None);
    assert_eq!(rig.calls()[2].config()["cni.dev/valid-attachments"], json!([]));
}

// Requirements: L7
#[test]
fn cnitool_gc_deletes_all_attachments() {
    let rig = Rig::new(testkit::host!(), "1.1.0");
    rig.cnitool("add net /run/netns/blue").success();
    rig.calls();
    rig.cnitool("gc net /run/netns/blue").success();
    let calls = rig.calls();
    assert_eq!(calls.len(), 4);
    assert_eq!(calls[2].config().get("cni.dev/valid-attachments"), None);
    assert_eq!(rig.entry("eth0"), None);
}

// Requirements: L8
#[test]
fn cni_status_prints_the_error_of_the_plugin() {
    let rig = Rig::new(testkit::host!(), "1.1.0");
    assert_eq!(rig.weft("status net").success().stdout, "");
    assert_eq!(rig.call_order(), ["STATUS one", "STATUS two"]);
    let instructions =
        json!({"STATUS": [{"do": "fail", "code": 50, "message": "pool is empty", "details": "d"}]});
    rig.network("10-net.conflist", "1.1.0", &instructions);
    for (finished, says) in [
        (rig.weft("status net"), "weft: pool is empty; d\n"),
        (rig.cnitool("status net /run/netns/blue"), "pool is empty; d\n"),
    ] {
        assert_eq!((finished.code, finished.stderr.as_str()), (Some(1), says));
    }
}

// Requirements: L10
#[test]
fn cnitool_fails_on_a_broken_file_and_weft_cni_does_not() {
    let rig = Rig::new(testkit::host!(), "1.0.0");
    rig.host.write("/etc/cni/net.d/00-broken.conflist", "{");
    rig.weft("status net").success();
    let stopped = rig.cnitool("status net /run/netns/blue");
    assert!(stopped.code == Some(1) && stopped.stderr.contains("00-broken.conflist"), "{}", stopped.stderr);
    let missing = rig.weft("add ghost /run/netns/blue");
    assert!(missing.stderr.contains(r#"no net configuration with name "ghost""#), "{}", missing.stderr);
    assert!(missing.stderr.contains("00-broken.conflist"), "{}", missing.stderr);
}

// Requirements: L4
#[test]
fn cni_plugin_error_is_one_line_and_stderr_is_forwarded() {
    let rig = Rig::new(testkit::host!(), "1.0.0");
    let instructions =
        json!({"ADD": [{"do": "stderr", "text": "loud"}, {"do": "fail", "code": 11, "message": "later"}]});
    rig.network("10-net.conflist", "1.0.0", &instructions);
    let failed = rig.weft("add net /run/netns/blue");
    assert_eq!((failed.code, failed.stdout.as_str()), (Some(1), ""));
    let lines: Vec<&str> = failed.stderr.lines().collect();
    assert_eq!(lines, ["loud", r#"weft: plugin type="one" failed (add): later"#]);
    assert_eq!(rig.call_order(), ["ADD one"]);
    assert_eq!(rig.entry("eth0"), None);

    let instructions = json!({"ADD": [{"do": "hang"}]});
    rig.network("10-net.conflist", "1.0.0", &instructions);
    let late = rig.weft("add net /run/netns/blue --timeout 1");
    assert!(late.code == Some(1) && late.stderr.contains("killed after 1s"), "{}", late.stderr);
}

#[test]
fn cni_interrupt_kills_the_running_plugin_and_starts_no_other() {
    let rig = Rig::new(testkit::host!(), "1.0.0");
    rig.network("10-net.conflist", "1.0.0", &json!({ "ADD": [{ "do": "sleep", "milliseconds": 60_000 }] }));
    let command = rig.host.command("/bin/sh").clean_environment().env("CNI_PATH", "/opt/cni/bin");
    let line = "exec /opt/cni/bin/weft cni add net /run/netns/blue 2>/var/lib/weft/said";
    let running = command.args(["-c", line]).start();
    let until = Instant::now() + Duration::from_secs(10);
    while rig.host.read(RECORD).is_none_or(|text| text.is_empty()) {
        assert!(Instant::now() < until, "the plugin is not called");
        std::thread::sleep(Duration::from_millis(5));
    }
    kill_process(Pid::from_raw(running.id().cast_signed()).unwrap(), Signal::INT).unwrap();
    assert_eq!(running.finish(Duration::from_secs(20)).code(), Some(130));
    let stderr = rig.host.read("/var/lib/weft/said").unwrap();
    for words in ["one: killed: interrupted", "weft cni del net /run/netns/blue"] {
        assert!(stderr.contains(words), "{words:?} is missing in: {stderr}");
    }
    assert_eq!(rig.call_order(), ["ADD one"]);
}

#[test]
fn cni_usage_error_is_exit_code_2_and_help_has_an_example() {
    let rig = Rig::new(testkit::host!(), "1.0.0");
    for line in ["", "add", "add net", "frob net /run/netns/blue", "gc net --valid c1"] {
        assert_eq!(rig.weft(line).code, Some(2), "{line:?}");
    }
    assert_eq!(rig.cnitool("add net").code, Some(2));
    for help in [rig.weft("--help"), rig.cnitool("--help"), rig.run("weft", "--help")] {
        let text = help.success().stdout;
        assert!(text.contains("Example:"), "{text}");
    }
    assert!(rig.calls().is_empty());
}
