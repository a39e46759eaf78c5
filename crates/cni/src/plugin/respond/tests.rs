//! Tests for whole plugin calls, without a process.

use std::cell::RefCell;
use std::io;
use std::sync::Mutex;

use serde_json::{Value, json};

use super::*;
use crate::name::PluginType;
use crate::result::{Interface, Success};

/// Plugin that records calls and returns a given answer.
#[derive(Default)]
struct Recorder {
    calls: Mutex<Vec<String>>,
    fails: Option<Error>,
    versions: Option<&'static [Version]>,
    result: Success,
}

impl Recorder {
    fn note(&self, call: &str, who: Option<&Attachment>, netns: &str) -> Result<(), Error> {
        let who = who.map_or(String::new(), |who| format!(" {}/{}", who.container, who.ifname));
        self.calls.lock().unwrap().push(format!("{call}{who} {netns}").trim_end().to_owned());
        self.fails.clone().map_or(Ok(()), Err)
    }

    fn calls(&self) -> Vec<String> {
        self.calls.lock().unwrap().clone()
    }
}

impl Plugin for Recorder {
    fn name(&self) -> &'static str {
        "recorder"
    }

    fn versions(&self) -> &'static [Version] {
        self.versions.unwrap_or(Version::ALL)
    }

    fn add(&self, request: &Attach, _: &dyn Invoke) -> Result<Success, Error> {
        self.note("add", Some(&request.who), &request.netns.to_string_lossy())?;
        Ok(self.result.clone())
    }

    fn del(&self, request: &Detach, _: &dyn Invoke) -> Result<(), Error> {
        let netns = request.netns.as_deref().map_or("-".into(), Path::to_string_lossy);
        self.note("del", Some(&request.who), &netns)
    }

    fn check(&self, request: &Attach, _: &dyn Invoke) -> Result<(), Error> {
        request.call.config.require_prev_result()?;
        self.note("check", Some(&request.who), &request.netns.to_string_lossy())
    }

    fn gc(&self, _: &Sweep, _: &dyn Invoke) -> Result<(), Error> {
        self.note("gc", None, "")
    }

    fn status(&self, _: &Probe, _: &dyn Invoke) -> Result<(), Error> {
        self.note("status", None, "")
    }
}

/// Caller that knows no plugins, because no plugin in these tests delegates.
struct NoDelegates;

impl Invoke for NoDelegates {
    fn invoke(&self, plugin: &PluginType, _: &Environment, _: &[u8]) -> Result<Vec<u8>, Error> {
        Err(Error::internal(format!("{plugin} was not expected to be called")))
    }
}

fn environment(command: &str) -> Environment {
    Environment {
        command: command.into(),
        container_id: "c1".into(),
        netns: "/nowhere".into(),
        ifname: "eth0".into(),
        path: "/opt/cni/bin".into(),
        ..Environment::default()
    }
}

fn config(version: &str) -> String {
    json!({"cniVersion": version, "name": "n", "type": "recorder", "prevResult": {}}).to_string()
}

fn call(plugin: &Recorder, environment: &Environment, stdin: &str) -> Answer {
    respond(plugin, environment, &mut stdin.as_bytes(), &NoDelegates)
}

fn error(answer: &Answer) -> Error {
    assert!(!answer.success, "{answer:?}");
    serde_json::from_slice(&answer.stdout).unwrap()
}

fn refused(command: &str, change: impl Fn(&mut Environment), stdin: &str) -> Error {
    let plugin = Recorder::default();
    let mut environment = environment(command);
    change(&mut environment);
    let error = error(&call(&plugin, &environment, stdin));
    assert!(plugin.calls().is_empty(), "the plugin was called: {:?}", plugin.calls());
    error
}

// Requirements: K1, S18
#[test]
fn missing_variables_of_each_verb_are_named() {
    let all = "CNI_CONTAINERID,CNI_NETNS,CNI_IFNAME,CNI_PATH";
    for (command, lacks) in [
        ("ADD", all),
        ("CHECK", all),
        ("DEL", "CNI_CONTAINERID,CNI_IFNAME,CNI_PATH"),
        ("GC", "CNI_PATH"),
        ("STATUS", "CNI_PATH"),
    ] {
        let bare = |e: &mut Environment| {
            *e = Environment { command: command.into(), ..Environment::default() };
        };
        let error = refused(command, bare, &config("1.1.0"));
        assert_eq!((error.code, error.msg), (4, format!("required env variables [{lacks}] missing")));
    }
}

// Requirements: K1, S24
#[test]
fn invalid_variables_are_reported_before_missing_ones() {
    let wrong_id = |e: &mut Environment| {
        e.container_id = "../x".into();
        e.path.clear();
    };
    let error = refused("ADD", wrong_id, &config("1.0.0"));
    assert!(
        error.code == 4 && error.msg.contains("CNI_CONTAINERID") && error.msg.contains("../x"),
        "{error}"
    );

    let error = refused("DEL", |e| e.ifname = "a/b".into(), &config("1.0.0"));
    assert!(error.code == 4 && error.msg.contains("CNI_IFNAME") && error.msg.contains("a/b"), "{error}");

    // GC and STATUS ignore variables that they do not need.
    let plugin = Recorder::default();
    let odd = Environment { container_id: "../x".into(), ifname: "a/b".into(), ..environment("GC") };
    assert!(call(&plugin, &odd, &config("1.1.0")).success);
}

// Requirements: K2
#[test]
fn missing_command_prints_about_text() {
    let plugin = Recorder::default();
    let answer = call(&plugin, &Environment::default(), "not JSON");
    assert!(answer.success && answer.stdout.is_empty());
    let lines: Vec<&str> = answer.stderr.lines().collect();
    assert!(lines[0].starts_with("CNI recorder plugin v"), "{}", lines[0]);
    assert_eq!(lines[1], "CNI protocol versions supported: 0.1.0, 0.2.0, 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0");
    assert_eq!(
        lines[2],
        "CNI commands: ADD since 0.1.0, DEL since 0.1.0, VERSION since 0.2.0, CHECK since 0.4.0, \
         GC since 1.1.0, STATUS since 1.1.0"
    );
}

// Requirements: K2
#[test]
fn unknown_command_is_code_4() {
    let error = refused("add", |_| (), &config("1.0.0"));
    assert_eq!((error.code, error.msg.as_str()), (4, "unknown CNI_COMMAND: add"));
}

// Requirements: K3, S4
#[test]
fn version_verb_prints_one_line_with_the_given_version() {
    let plugin = Recorder::default();
    let bare = Environment { command: "VERSION".into(), ..Environment::default() };
    let report = |stdin: &str| {
        let answer = call(&plugin, &bare, stdin);
        assert!(answer.success && answer.stdout.ends_with(b"}\n"));
        assert_eq!(answer.stdout.iter().filter(|b| **b == b'\n').count(), 1);
        serde_json::from_slice::<Value>(&answer.stdout).unwrap()
    };
    let all = json!(["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"]);
    assert_eq!(report(r#"{"cniVersion":"0.4.0"}"#), json!({"cniVersion":"0.4.0","supportedVersions":all}));
    for unknown in ["", "{", "[]", r#"{"cniVersion":"7.0.0"}"#, r#"{"cniVersion":7}"#, "{}"] {
        assert_eq!(report(unknown)["cniVersion"], "1.1.0", "{unknown}");
    }
    assert!(plugin.calls().is_empty());
}

// Requirements: K4, S29
#[test]
fn config_faults_have_an_order_and_codes() {
    assert_eq!(refused("ADD", |_| (), "").code, 6);
    assert_eq!(refused("ADD", |_| (), "{").code, 6);
    assert_eq!(refused("ADD", |_| (), r#"{"cniVersion":"9.9.9"}"#).code, 7);
    let error = refused("ADD", |_| (), r#"{"cniVersion":"9.9.9","name":"n"}"#);
    assert_eq!((error.code, error.msg.as_str()), (1, "incompatible CNI versions"));
    assert_eq!(
        error.details,
        r#"config is "9.9.9", plugin supports ["0.1.0" "0.2.0" "0.3.0" "0.3.1" "0.4.0" "1.0.0" "1.1.0"]"#
    );
}

// Requirements: S29
#[test]
fn stdin_unreadable_is_code_5() {
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("stdin is gone"))
        }
    }
    let answer = respond(&Recorder::default(), &environment("ADD"), &mut Broken, &NoDelegates);
    assert_eq!(error(&answer).code, 5);
}

// Requirements: S29
#[test]
fn stdin_endless_is_refused() {
    let mut endless = io::repeat(b' ');
    let answer = respond(&Recorder::default(), &environment("ADD"), &mut endless, &NoDelegates);
    assert_eq!(error(&answer).code, 6);
}

// Requirements: K5, S16, S32, S33
#[test]
fn verb_missing_in_the_version_is_code_1() {
    for (command, old) in [("CHECK", "0.3.1"), ("GC", "1.0.0"), ("STATUS", "1.0.0")] {
        let error = refused(command, |_| (), &config(old));
        assert_eq!((error.code, error.msg), (1, format!("config version does not allow {command}")));
        assert!(error.details.contains(old), "{}", error.details);
    }
    for (command, since) in [("CHECK", "0.4.0"), ("GC", "1.1.0"), ("STATUS", "1.1.0")] {
        let plugin = Recorder::default();
        let answer = call(&plugin, &environment(command), &config(since));
        assert!(answer.success && answer.stdout.is_empty(), "{answer:?}");
        assert_eq!(plugin.calls().len(), 1);
    }
}

// Requirements: K5
#[test]
fn plugin_errors_keep_their_code() {
    for code in [3, 11, 50, 51, 142] {
        let plugin = Recorder { fails: Some(Error::new(code, "why").details("more")), ..Recorder::default() };
        let answer = call(&plugin, &environment("STATUS"), &config("1.1.0"));
        assert_eq!(error(&answer), Error::new(code, "why").details("more").in_version(Version::V1_1_0));
    }
}

// Requirements: S20
#[test]
fn error_codes_3_and_11_are_passed_on() {
    for code in [code::UNKNOWN_CONTAINER, code::TRY_AGAIN_LATER] {
        let plugin = Recorder { fails: Some(Error::new(code, "why")), ..Recorder::default() };
        assert_eq!(error(&call(&plugin, &environment("ADD"), &config("0.4.0"))).code, code);
    }
}

// Requirements: K6, trap 8
#[test]
fn netns_of_the_plugin_itself_is_refused() {
    for command in ["ADD", "DEL"] {
        for own in ["/proc/self/ns/net", "/proc/thread-self/ns/net"] {
            let error = refused(command, |e| e.netns = own.into(), &config("1.0.0"));
            assert_eq!(error.code, 8);
            assert!(error.msg.contains("should not be the same"), "{error}");
        }
    }
    for allow in ["1", "TRUE", "true", "True"] {
        let plugin = Recorder::default();
        let own = Environment {
            netns: "/proc/self/ns/net".into(),
            netns_override: allow.into(),
            ..environment("ADD")
        };
        assert!(call(&plugin, &own, &config("1.0.0")).success, "{allow}");
    }
    let forbidden = |e: &mut Environment| {
        e.netns = "/proc/self/ns/net".into();
        e.netns_override = "0".into();
    };
    assert_eq!(refused("ADD", forbidden, &config("1.0.0")).code, 8);
}

// Requirements: K6, S13
#[test]
fn netns_missing_is_left_to_the_plugin() {
    let plugin = Recorder::default();
    assert!(call(&plugin, &environment("DEL"), &config("1.0.0")).success);
    let none = Environment { netns: String::new(), ..environment("DEL") };
    let without = r#"{"cniVersion":"1.0.0","name":"n","type":"recorder"}"#;
    assert!(call(&plugin, &none, without).success);
    assert_eq!(plugin.calls(), ["del c1/eth0 /nowhere", "del c1/eth0 -"]);
}

// Requirements: S14, S26
#[test]
fn plugin_receives_container_and_interface() {
    let plugin = Recorder::default();
    let other = Environment { ifname: "net1".into(), container_id: "c.2-b".into(), ..environment("ADD") };
    assert!(call(&plugin, &other, &config("1.0.0")).success);
    assert_eq!(plugin.calls(), ["add c.2-b/net1 /nowhere"]);
}

// Requirements: S19, trap 6
#[test]
fn result_is_printed_in_the_version_of_the_configuration() -> Result<(), Error> {
    let result = Success {
        interfaces: vec![Interface { name: "eth0".into(), ..Interface::default() }],
        ..Success::default()
    };
    for version in &Version::ALL[2..] {
        let plugin = Recorder { result: result.clone(), ..Recorder::default() };
        let answer = call(&plugin, &environment("ADD"), &config(version.as_str()));
        assert!(answer.success);
        assert!(answer.stdout.starts_with(format!("{{\n    \"cniVersion\": \"{version}\"").as_bytes()));
        assert!(!answer.stdout.ends_with(b"\n"));
        assert_eq!(answer.stdout, result.print(*version)?);
    }
    Ok(())
}

// Requirements: R7, S19
#[test]
fn result_without_a_form_in_the_version_is_undone() {
    let plugin = Recorder::default();
    let error = error(&call(&plugin, &environment("ADD"), r#"{"cniVersion":"0.2.0","name":"n"}"#));
    assert!(error.msg.contains("no valid IP addresses"), "{error}");
    assert_eq!(plugin.calls(), ["add c1/eth0 /nowhere", "del c1/eth0 /nowhere"]);
}

// Requirements: S36, trap 6
#[test]
fn error_has_the_version_in_use() {
    let plugin = Recorder { fails: Some(Error::new(7, "bad")), ..Recorder::default() };
    let answer = call(&plugin, &environment("ADD"), &config("0.4.0"));
    assert_eq!(
        String::from_utf8(answer.stdout).unwrap(),
        "{\n    \"cniVersion\": \"0.4.0\",\n    \"code\": 7,\n    \"msg\": \"bad\"\n}"
    );
    // Until the configuration is read, the plugin's newest version is used.
    let old = Recorder { versions: Some(&Version::ALL[..5]), ..Recorder::default() };
    let answer = call(&old, &Environment { command: "ADD".into(), ..Environment::default() }, "");
    assert_eq!(error(&answer).cni_version.as_deref(), Some("0.4.0"));
}

// Requirements: S32, trap 7, trap 9
#[test]
fn gc_reads_either_key_and_prints_nothing() -> Result<(), Error> {
    let plugin = Recorder::default();
    let answer = call(&plugin, &environment("GC"), &config("1.1.0"));
    assert_eq!(answer, Answer { stdout: Vec::new(), stderr: String::new(), success: true });

    let seen = RefCell::new(Vec::new());
    for keys in [
        r#""cni.dev/valid-attachments":[{"containerID":"a","ifname":"eth0"}]"#,
        r#""cni.dev/attachments":[{"containerID":"a","ifname":"eth0"}]"#,
        r#""cni.dev/attachments":null,"cni.dev/valid-attachments":[]"#,
        r#""other":1"#,
    ] {
        let stdin = format!(r#"{{"cniVersion":"1.1.0","name":"n",{keys}}}"#);
        let config = Config::read(stdin.into_bytes(), Version::ALL)?;
        let valid = Sweep { call: Call { config, environment: environment("GC") } }.valid()?;
        seen.borrow_mut().push(valid.map(|list| list.len()));
    }
    assert_eq!(seen.into_inner(), [Some(1), Some(1), Some(0), None]);
    Ok(())
}

// Requirements: S32
#[test]
fn gc_refuses_an_incomplete_attachment() -> Result<(), Error> {
    for half in
        [r#"{"containerID":"a"}"#, r#"{"ifname":"eth0"}"#, r#"{"containerID":null,"ifname":"eth0"}"#, "{}"]
    {
        let keys = format!(r#""cni.dev/valid-attachments":[{{"containerID":"b","ifname":"eth0"}},{half}]"#);
        let stdin = format!(r#"{{"cniVersion":"1.1.0","name":"n",{keys}}}"#);
        let config = Config::read(stdin.into_bytes(), Version::ALL)?;
        let refused = Sweep { call: Call { config, environment: environment("GC") } }.valid();
        let error = refused.expect_err("half an attachment");
        assert!(error.code == 7 && error.msg.starts_with("cni.dev/valid-attachments[1]: "), "{error}");
    }
    Ok(())
}

#[test]
fn error_output_is_limited() {
    let fails = Error::new(5, "x".repeat(3_000_000)).details("y".repeat(3_000_000));
    let answer =
        call(&Recorder { fails: Some(fails), ..Recorder::default() }, &environment("ADD"), &config("1.0.0"));
    assert!(answer.stdout.len() < 20_000, "{}", answer.stdout.len());
    assert_eq!(error(&answer).code, 5);
}

#[test]
fn answer_converts_to_the_result_of_invoke() {
    let plugin = Recorder { fails: Some(Error::new(11, "later").details("d")), ..Recorder::default() };
    let answer = call(&plugin, &environment("ADD"), &config("1.0.0"));
    assert_eq!(answer.into_result(), Err(Error::new(11, "later").details("d").in_version(Version::V1_0_0)));
    let answer = call(&Recorder::default(), &environment("DEL"), &config("1.0.0"));
    assert_eq!(answer.into_result(), Ok(Vec::new()));
}
