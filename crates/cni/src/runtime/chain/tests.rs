//! Tests for chains of real plugin processes.

use serde_json::{Value, json};

use super::*;
use crate::runtime::rig::{Rig, exec, network, object};

const RESULT: &str = r#"{ "cniVersion": "1.0.0", "ips": [{"address":"10.1.0.5/16"}], "vendor.example/x": 12345678901234567890 }"#;

// Requirements: S1, S10, L3
#[test]
fn chain_plugins_get_the_same_environment() -> Result<(), Error> {
    let rig = Rig::with(&["one", "two"]);
    add(&exec(), &network("1.0.0", &["one", "two"]), &rig.parameters())?;
    let calls = rig.calls();
    assert_eq!(calls.len(), 2);
    let path = rig.path();
    for call in &calls {
        for (name, value) in [
            ("CNI_COMMAND", "ADD"),
            ("CNI_CONTAINERID", "c1"),
            ("CNI_NETNS", "/run/netns/blue"),
            ("CNI_IFNAME", "eth0"),
            ("CNI_ARGS", "IgnoreUnknown=1;A=b"),
            ("CNI_PATH", path.as_str()),
            ("PATH", &std::env::var("PATH").unwrap()),
        ] {
            assert_eq!(call.variable(name), Some(value), "{name}");
        }
    }
    // Variables that do not apply are set to an empty value.
    status(&exec(), &network("1.1.0", &["one"]), &path)?;
    let call = &rig.calls()[0];
    for name in ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS"] {
        assert_eq!(call.variable(name), Some(""), "{name}");
    }
    Ok(())
}

// Requirements: S8
#[test]
fn chain_sets_name_and_version_of_the_list() -> Result<(), Error> {
    let rig = Rig::with(&["one"]);
    let text = r#"{"cniVersion":"0.3.1","name":"net","plugins":[
        {"type":"one","name":"mine","cniVersion":"0.1.0","NAME":"shadow","CniVersion":"9"}]}"#;
    add(&exec(), &Network::parse(text.as_bytes(), "t")?, &rig.parameters())?;
    assert_eq!(rig.calls()[0].stdin, r#"{"type":"one","name":"net","cniVersion":"0.3.1"}"#);
    Ok(())
}

// Requirements: S9, S15, NPWG1-7.1-1
#[test]
fn chain_passes_the_previous_result() -> Result<(), Error> {
    let rig = Rig::with(&["one", "two", "three"]);
    rig.prints("one", "ADD", RESULT);
    rig.prints("two", "ADD", r#"{"cniVersion":"1.0.0","ips":[{"address":"10.1.0.6/16"}]}"#);
    let last = add(&exec(), &network("1.0.0", &["one", "two", "three"]), &rig.parameters())?;
    let calls = rig.calls();
    assert_eq!(calls[0].config().get("prevResult"), None);
    // Byte for byte: a 20-digit number and an unknown key must survive.
    assert!(calls[1].stdin.contains(r#""vendor.example/x":12345678901234567890"#), "{}", calls[1].stdin);
    assert_eq!(calls[2].config()["prevResult"]["ips"], json!([{"address":"10.1.0.6/16"}]));
    assert!(last.success.ips.is_empty());
    assert_eq!(last.raw.get(), r#"{"cniVersion":"1.0.0"}"#);
    Ok(())
}

// Requirements: S9
#[test]
fn chain_ignores_prev_result_in_the_configuration() -> Result<(), Error> {
    let rig = Rig::with(&["one"]);
    let text = r#"{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"one","prevResult":{"ips":[]},"PrevResult":1}]}"#;
    let network = Network::parse(text.as_bytes(), "t")?;
    add(&exec(), &network, &rig.parameters())?;
    del(&exec(), &network, &rig.parameters(), None)?;
    for call in rig.calls() {
        assert!(!call.stdin.to_lowercase().contains("prevresult"), "{}", call.stdin);
    }
    Ok(())
}

// Requirements: S11, S17, NPWG1-7.1-1
#[test]
fn chain_del_goes_backward_with_the_result_since_0_4_0() -> Result<(), Error> {
    let rig = Rig::with(&["one", "two"]);
    for (version, given) in [("0.3.1", false), ("0.4.0", true), ("1.1.0", true)] {
        let network = network(version, &["one", "two"]);
        let last = Attached::read(br#"{"ips":[{"version":"4","address":"10.1.0.5/16"}]}"#, network.version)?;
        del(&exec(), &network, &rig.parameters(), Some(&last))?;
        let calls = rig.calls();
        let order: Vec<&str> = calls.iter().map(|call| call.plugin.as_str()).collect();
        assert_eq!(order, ["two", "one"]);
        for call in calls {
            let result = call.config().get("prevResult").cloned();
            assert_eq!(result.is_some(), given, "{version}");
            assert!(result.is_none_or(|r| r["cniVersion"] == version), "{version}");
        }
    }
    Ok(())
}

// Requirements: S12, L4
#[test]
fn chain_add_stops_at_an_error_and_del_calls_all() -> Result<(), Error> {
    let rig = Rig::with(&["one", "two", "three"]);
    rig.fails("two", "ADD", r#"{"code":11,"msg":"pool is busy","details":"try in 5 s"}"#);
    let text = r#"{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"one"},{"type":"two","name":"mine"},{"type":"three"}]}"#;
    let network = Network::parse(text.as_bytes(), "t")?;
    let error = add(&exec(), &network, &rig.parameters()).unwrap_err();
    assert_eq!((error.code, error.details.as_str()), (11, "try in 5 s"));
    assert_eq!(error.msg, r#"plugin type="two" name="mine" failed (add): pool is busy"#);
    assert_eq!(rig.order(), ["one ADD", "two ADD"]);

    del(&exec(), &network, &rig.parameters(), None)?;
    assert_eq!(rig.order(), ["three DEL", "two DEL", "one DEL"]);

    rig.fails("two", "DEL", r#"{"code":5,"msg":"no"}"#);
    let error = del(&exec(), &network, &rig.parameters(), None).unwrap_err();
    assert_eq!(error.msg, r#"plugin type="two" name="mine" failed (delete): no"#);
    assert_eq!(rig.order(), ["three DEL", "two DEL"]);
    Ok(())
}

// Requirements: S12
#[test]
fn chain_missing_plugin_is_named() {
    let rig = Rig::with(&["one"]);
    let error = add(&exec(), &network("1.0.0", &["one", "ghost"]), &rig.parameters()).unwrap_err();
    assert!(
        error.msg.starts_with(r#"plugin type="ghost" failed (add): failed to find plugin "ghost" in path ["#)
    );
    assert_eq!(error.code, 5);
}

// Requirements: S16
#[test]
fn chain_check_depends_on_version_and_disable_check() -> Result<(), Error> {
    let rig = Rig::with(&["one", "two"]);
    let last = Attached::read(RESULT.as_bytes(), Version::V1_0_0)?;
    let old = network("0.3.1", &["one"]);
    let error = check(&exec(), &old, &rig.parameters(), Some(&last)).unwrap_err();
    assert_eq!(error.code, 1);
    assert_eq!(error.msg, r#"configuration version "0.3.1" does not support the CHECK command"#);

    let mut network = network("1.0.0", &["one", "two"]);
    network.disable_check = true;
    check(&exec(), &network, &rig.parameters(), Some(&last))?;
    assert!(rig.order().is_empty());

    network.disable_check = false;
    check(&exec(), &network, &rig.parameters(), Some(&last))?;
    let calls = rig.calls();
    assert_eq!(calls.len(), 2);
    for call in &calls {
        assert_eq!(call.config()["prevResult"]["ips"], json!([{"address":"10.1.0.5/16"}]));
    }
    rig.fails("one", "CHECK", r#"{"code":100,"msg":"address is gone"}"#);
    let error = check(&exec(), &network, &rig.parameters(), Some(&last)).unwrap_err();
    assert_eq!((error.code, rig.order().len()), (100, 1));
    Ok(())
}

// Requirements: S19, trap 4
#[test]
fn chain_converts_a_result_of_another_version() -> Result<(), Error> {
    let rig = Rig::with(&["one", "two"]);
    rig.prints("one", "ADD", r#"{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.5/16"}]}"#);
    rig.prints("two", "ADD", "null\n");
    let last = add(&exec(), &network("0.4.0", &["one", "two"]), &rig.parameters())?;
    let previous = rig.calls()[1].config()["prevResult"].clone();
    assert_eq!(previous["cniVersion"], "0.4.0");
    assert_eq!(previous["ips"], json!([{"version":"4","address":"10.1.0.5/16"}]));
    assert_eq!(last.raw.get(), r#"{"cniVersion":"0.4.0"}"#);

    rig.prints("two", "ADD", r#"{"cniVersion":"","ips":[{"version":"6","address":"fd00::1/64"}]}"#);
    let last = add(&exec(), &network("0.3.1", &["two"]), &rig.parameters())?;
    let value: Value = serde_json::from_str(last.raw.get()).unwrap();
    assert_eq!(value["cniVersion"], "0.3.1");
    Ok(())
}

// Requirements: S19
#[test]
fn chain_invalid_result_is_an_error() {
    let rig = Rig::with(&["one"]);
    for (answer, code) in [("", 6), ("\n", 6), ("oops", 6), ("[]", 7), (r#"{"cniVersion":"7.0.0"}"#, 1)] {
        rig.prints("one", "ADD", answer);
        let error = add(&exec(), &network("1.0.0", &["one"]), &rig.parameters()).unwrap_err();
        assert_eq!(error.code, code, "{answer:?}: {error}");
        assert!(error.msg.starts_with(r#"plugin type="one" failed (add): "#), "{error}");
    }
}

// Requirements: S27, S28, L12
#[test]
fn chain_derived_configuration_keeps_other_bytes() -> Result<(), Error> {
    let rig = Rig::with(&["one", "two"]);
    let text = r#"{"cniVersion":"1.1.0","name":"net","plugins":[
        {"type":"one","capabilities":{"mac":true,"ips":false,"portMappings":true},"big": 12345678901234567890 , "f":1.0e3,"keyA":["some  more", {"z":1,"a":2}]},
        {"type":"two","runtimeConfig":{"static":1},"cni.dev/vendor":true}]}"#;
    let mut parameters = rig.parameters();
    parameters.capability_args = object(
        r#"{"ips":["10.0.0.9/24"],"mac":"c2:11:22:33:44:55","dns":{},"portMappings":[ {"hostPort":12345678901234567890} ]}"#,
    );
    add(&exec(), &Network::parse(text.as_bytes(), "t")?, &parameters)?;
    let calls = rig.calls();
    assert_eq!(
        calls[0].stdin,
        concat!(
            r#"{"type":"one","big":12345678901234567890,"f":1.0e3,"keyA":["some  more", {"z":1,"a":2}],"#,
            r#""cniVersion":"1.1.0","name":"net","#,
            r#""runtimeConfig":{"mac":"c2:11:22:33:44:55","portMappings":[ {"hostPort":12345678901234567890} ]}}"#
        )
    );
    // Without additions, the administrator's own args stay.
    assert_eq!(calls[1].config()["runtimeConfig"], json!({"static":1}));
    assert_eq!(calls[1].config()["cni.dev/vendor"], true);
    Ok(())
}

// Requirements: S5, V13
#[test]
fn chain_args_cni_is_merged_key_by_key() -> Result<(), Error> {
    let rig = Rig::with(&["one"]);
    let net = |args: &str| {
        let text = format!(r#"{{"cniVersion":"1.0.0","name":"net","type":"one","args":{args}}}"#);
        Network::parse(text.as_bytes(), "t")
    };
    let mut parameters = rig.parameters();
    parameters.args_cni = object(r#"{"ips":["10.0.0.9"],"x":2}"#);
    let own = r#"{"labels":{"appVersion":"1.0"},"cni":{"x":1,"X":0,"labels":[]}}"#;
    add(&exec(), &net(own)?, &parameters)?;
    assert_eq!(
        rig.calls()[0].config()["args"],
        json!({"labels":{"appVersion":"1.0"},"cni":{"x":2,"labels":[],"ips":["10.0.0.9"]}})
    );
    add(&exec(), &net("null")?, &parameters)?;
    assert_eq!(rig.calls()[0].config()["args"], json!({"cni":{"ips":["10.0.0.9"],"x":2}}));
    for bad in [r#""text""#, r#"{"cni":[1]}"#] {
        let error = add(&exec(), &net(bad)?, &parameters).unwrap_err();
        assert!(error.code == 7 && error.msg.contains("expected an object"), "{error}");
    }
    assert!(rig.order().is_empty());
    Ok(())
}

// Requirements: S32, trap 7
#[test]
fn chain_gc_sends_both_keys_and_continues_after_errors() -> Result<(), Error> {
    let rig = Rig::with(&["one", "two", "three"]);
    let network = network("1.1.0", &["one", "two", "three"]);
    let valid = [ValidAttachment { container_id: "c1".into(), ifname: "eth0".into() }];
    rig.fails("one", "GC", r#"{"code":5,"msg":"disk"}"#);
    rig.fails("two", "GC", r#"{"code":11,"msg":"later"}"#);
    let error = gc(&exec(), &network, Keep::Only(&valid), &rig.path()).unwrap_err();
    assert_eq!(error.code, 5);
    assert!(
        error.msg.contains("disk") && error.msg.contains(r#"plugin type="two" failed (gc): later"#),
        "{error}"
    );
    let calls = rig.calls();
    let order: Vec<&str> = calls.iter().map(|call| call.plugin.as_str()).collect();
    assert_eq!(order, ["one", "two", "three"]);
    for call in &calls {
        for key in [VALID_ATTACHMENTS, VALID_ATTACHMENTS_OLD] {
            assert_eq!(call.config()[key], json!([{"containerID":"c1","ifname":"eth0"}]));
        }
        assert_eq!(call.variable("CNI_PATH"), Some(rig.path().as_str()));
    }
    Ok(())
}

// Requirements: S32
#[test]
fn chain_gc_without_a_list_sends_none() -> Result<(), Error> {
    let rig = Rig::with(&["one"]);
    let text = r#"{"cniVersion":"1.1.0","name":"net","plugins":[{"type":"one","cni.dev/valid-attachments":[],"cni.dev/attachments":[]}]}"#;
    gc(&exec(), &Network::parse(text.as_bytes(), "t")?, Keep::Unspecified, &rig.path())?;
    assert_eq!(rig.calls()[0].stdin, r#"{"type":"one","cniVersion":"1.1.0","name":"net"}"#);
    Ok(())
}

// Requirements: S32, S33, S38
#[test]
fn chain_gc_and_status_exist_since_1_1_0() -> Result<(), Error> {
    let rig = Rig::with(&["one"]);
    let old = network("1.0.0", &["one"]);
    gc(&exec(), &old, Keep::Only(&[]), &rig.path())?;
    status(&exec(), &old, &rig.path())?;
    let mut disabled = network("1.1.0", &["one"]);
    disabled.disable_gc = true;
    gc(&exec(), &disabled, Keep::Only(&[]), &rig.path())?;
    assert!(rig.order().is_empty());
    Ok(())
}

// Requirements: S33, L8
#[test]
fn chain_status_returns_the_first_error_unchanged() -> Result<(), Error> {
    let rig = Rig::with(&["one", "two", "three"]);
    let network = network("1.1.0", &["one", "two", "three"]);
    status(&exec(), &network, &rig.path())?;
    assert_eq!(rig.order(), ["one STATUS", "two STATUS", "three STATUS"]);
    rig.fails("two", "STATUS", r#"{"cniVersion":"1.1.0","code":51,"msg":"daemon is down","details":"d"}"#);
    let error = status(&exec(), &network, &rig.path()).unwrap_err();
    assert_eq!(error, Error::new(51, "daemon is down").details("d").in_version(Version::V1_1_0));
    assert_eq!(rig.order(), ["one STATUS", "two STATUS"]);
    Ok(())
}
