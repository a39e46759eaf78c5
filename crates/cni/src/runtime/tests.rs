//! Tests for chain and cache together, with real processes and files.

use std::fs;

use serde_json::json;

use super::rig::{self, Rig, exec, network};
use super::*;
use crate::invocation::Attachment;
use crate::name::{ContainerId, IfName};

fn with<T>(rig: &Rig, act: impl Fn(&Runtime<'_>) -> T) -> T {
    let exec = exec();
    act(&Runtime { invoke: &exec, cache: Cache::new(&rig.directory().join("cache")), path: rig.path() })
}

fn entries(rig: &Rig) -> Vec<String> {
    let entries = fs::read_dir(rig.directory().join("cache/results")).into_iter().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn parameters(rig: &Rig, container: &str, ifname: &str) -> Parameters {
    let who =
        Attachment { container: ContainerId::new(container).unwrap(), ifname: IfName::new(ifname).unwrap() };
    Parameters { who, ..rig.parameters() }
}

// Requirements: L5, S31
#[test]
fn runtime_caches_the_result_after_the_last_plugin() -> Result<(), Error> {
    let rig = Rig::with(&["one", "two"]);
    let network = network("1.0.0", &["one", "two"]);
    rig.fails("two", "ADD", r#"{"code":5,"msg":"no"}"#);
    assert!(with(&rig, |runtime| runtime.add(&network, &rig.parameters())).is_err());
    assert!(entries(&rig).is_empty());
    rig.recovers("two", "ADD");
    rig.prints("two", "ADD", r#"{"ips":[{"address":"10.0.0.2/24"}]}"#);
    with(&rig, |runtime| runtime.add(&network, &rig.parameters()))?;
    assert_eq!(entries(&rig), ["net-c1-eth0"]);
    rig.calls();

    with(&rig, |runtime| runtime.check(&network, &rig.parameters()))?;
    for call in rig.calls() {
        assert_eq!(call.config()["prevResult"]["ips"], json!([{"address":"10.0.0.2/24"}]));
    }
    Ok(())
}

// Requirements: L6, S17, S31
#[test]
fn runtime_del_removes_the_cached_result_on_success() -> Result<(), Error> {
    let rig = Rig::with(&["one", "two"]);
    let network = network("0.4.0", &["one", "two"]);
    with(&rig, |runtime| runtime.add(&network, &rig.parameters()))?;
    rig.fails("one", "DEL", r#"{"code":11,"msg":"later"}"#);
    assert_eq!(with(&rig, |runtime| runtime.del(&network, &rig.parameters())).unwrap_err().code, 11);
    assert_eq!(entries(&rig), ["net-c1-eth0"]);
    rig.recovers("one", "DEL");
    rig.calls();
    // A repeated DEL succeeds; without the cached result it passes none.
    for known in [true, false, false] {
        with(&rig, |runtime| runtime.del(&network, &rig.parameters()))?;
        let calls = rig.calls();
        assert_eq!(calls.len(), 2);
        assert!(calls.iter().all(|call| call.config().get("prevResult").is_some() == known));
        assert!(entries(&rig).is_empty());
    }
    Ok(())
}

// Requirements: L6
#[test]
fn runtime_invalid_cached_result_in_del_and_check() -> Result<(), Error> {
    let rig = Rig::with(&["one"]);
    let network = network("1.0.0", &["one"]);
    with(&rig, |runtime| runtime.add(&network, &rig.parameters()))?;
    fs::write(rig.directory().join("cache/results/net-c1-eth0"), "").unwrap();
    rig.calls();
    let error = with(&rig, |runtime| runtime.check(&network, &rig.parameters())).unwrap_err();
    assert!(error.msg.starts_with(r#"failed to get network "net" cached result: "#), "{error}");
    assert!(rig.order().is_empty());

    // The file is removed even if the plugin then fails, so that the next DEL does not find it again.
    rig.fails("one", "DEL", r#"{"code":5,"msg":"no"}"#);
    assert!(with(&rig, |runtime| runtime.del(&network, &rig.parameters())).is_err());
    assert_eq!(rig.calls()[0].config().get("prevResult"), None);
    assert!(entries(&rig).is_empty());
    Ok(())
}

// Requirements: L6
#[test]
fn runtime_check_without_a_cached_result() -> Result<(), Error> {
    let rig = Rig::with(&["one"]);
    with(&rig, |runtime| runtime.check(&network("1.0.0", &["one"]), &rig.parameters()))?;
    assert_eq!(rig.calls()[0].config().get("prevResult"), None);
    let mut disabled = network("1.0.0", &["one"]);
    disabled.disable_check = true;
    fs::create_dir_all(rig.directory().join("cache/results")).unwrap();
    fs::write(rig.directory().join("cache/results/net-c1-eth0"), "{").unwrap();
    with(&rig, |runtime| runtime.check(&disabled, &rig.parameters()))?;
    let old = with(&rig, |runtime| runtime.check(&network("0.3.1", &["one"]), &rig.parameters()));
    assert_eq!(old.unwrap_err().code, 1);
    assert!(rig.order().is_empty());
    Ok(())
}

// Requirements: L6
#[test]
fn runtime_del_before_0_4_0_passes_no_result() -> Result<(), Error> {
    let rig = Rig::with(&["one"]);
    let network = network("0.3.1", &["one"]);
    with(&rig, |runtime| runtime.add(&network, &rig.parameters()))?;
    assert_eq!(entries(&rig), ["net-c1-eth0"]);
    with(&rig, |runtime| runtime.del(&network, &rig.parameters()))?;
    assert_eq!(rig.calls()[1].config().get("prevResult"), None);
    assert!(entries(&rig).is_empty());
    Ok(())
}

// Requirements: L7, S32
#[test]
fn runtime_gc_deletes_stale_attachments() -> Result<(), Error> {
    let rig = Rig::with(&["one"]);
    let network = network("1.1.0", &["one"]);
    let mut stale = parameters(&rig, "c2", "eth0");
    stale.netns = "/run/netns/old".into();
    stale.args = "OLD=1".into();
    let mut other = network.clone();
    other.name = crate::name::NetworkName::new("other")?;
    with(&rig, |runtime| {
        runtime.add(&network, &parameters(&rig, "c1", "eth0"))?;
        runtime.add(&network, &stale)?;
        runtime.add(&network, &parameters(&rig, "c1", "net1"))?;
        runtime.add(&other, &parameters(&rig, "c9", "eth0"))
    })?;
    rig.calls();
    let valid = [ValidAttachment { container_id: "c1".into(), ifname: "eth0".into() }];
    with(&rig, |runtime| runtime.gc(&network, Keep::Only(&valid)))?;
    assert_eq!(entries(&rig), ["net-c1-eth0", "other-c9-eth0"]);
    let calls = rig.calls();
    let order: Vec<&str> = calls.iter().map(rig::Call::verb).collect();
    assert_eq!(order, ["DEL", "DEL", "GC"]);
    assert_eq!(calls[0].variable("CNI_IFNAME"), Some("net1"));
    for (name, value) in [
        ("CNI_CONTAINERID", "c2"),
        ("CNI_NETNS", "/run/netns/old"),
        ("CNI_ARGS", "OLD=1"),
        ("CNI_PATH", &rig.path()),
    ] {
        assert_eq!(calls[1].variable(name), Some(value), "{name}");
    }
    assert_eq!(calls[2].config()["cni.dev/valid-attachments"], json!([{"containerID":"c1","ifname":"eth0"}]));
    Ok(())
}

// Requirements: L7
#[test]
fn runtime_gc_without_a_list_deletes_all() -> Result<(), Error> {
    let rig = Rig::with(&["one"]);
    let network = network("1.1.0", &["one"]);
    with(&rig, |runtime| {
        runtime.add(&network, &parameters(&rig, "c1", "eth0"))?;
        runtime.add(&network, &parameters(&rig, "c2", "eth0"))
    })?;
    rig.calls();
    rig.fails("one", "DEL", r#"{"code":5,"msg":"stuck"}"#);
    rig.fails("one", "GC", r#"{"code":5,"msg":"too"}"#);
    let error = with(&rig, |runtime| runtime.gc(&network, Keep::Unspecified)).unwrap_err();
    for part in [
        "failed to delete stale attachment c1 eth0: ",
        "failed to delete stale attachment c2 eth0: ",
        r#"plugin type="one" failed (gc): too"#,
    ] {
        assert!(error.msg.contains(part), "{error}");
    }
    assert_eq!(rig.order(), ["one DEL", "one DEL", "one GC"]);
    assert_eq!(entries(&rig).len(), 2);
    Ok(())
}

// Requirements: L7, S38
#[test]
fn runtime_gc_can_be_disabled_by_the_network() -> Result<(), Error> {
    let rig = Rig::with(&["one"]);
    let mut network = network("1.1.0", &["one"]);
    with(&rig, |runtime| runtime.add(&network, &rig.parameters()))?;
    network.disable_gc = true;
    rig.calls();
    with(&rig, |runtime| runtime.gc(&network, Keep::Unspecified))?;
    assert!(rig.order().is_empty());
    assert_eq!(entries(&rig).len(), 1);
    Ok(())
}

// Requirements: L7
#[test]
fn runtime_gc_before_1_1_0_does_not_call_plugins_gc() -> Result<(), Error> {
    let rig = Rig::with(&["one"]);
    let network = network("1.0.0", &["one"]);
    with(&rig, |runtime| runtime.add(&network, &rig.parameters()))?;
    rig.calls();
    with(&rig, |runtime| runtime.gc(&network, Keep::Only(&[])))?;
    assert_eq!(rig.order(), ["one DEL"]);
    Ok(())
}

// Requirements: L9, S26
#[test]
fn runtime_attachments_by_container_and_interface() -> Result<(), Error> {
    let rig = Rig::with(&["one"]);
    let network = network("1.0.0", &["one"]);
    with(&rig, |runtime| {
        runtime.add(&network, &parameters(&rig, "c1", "eth0"))?;
        runtime.add(&network, &parameters(&rig, "c1", "net1"))?;
        runtime.add(&network, &parameters(&rig, "c2", "eth0"))
    })?;
    let known = with(&rig, |runtime| runtime.attachments(Some(&ContainerId::new("c1")?)))?;
    let who: Vec<String> = known.iter().map(|entry| entry.parameters.who.ifname.to_string()).collect();
    assert_eq!(who, ["eth0", "net1"]);
    assert_eq!(known[0].config, network.bytes());
    Ok(())
}

// Requirements: L5
#[test]
fn runtime_names_too_long_for_the_cache_are_refused() {
    let rig = Rig::with(&["one"]);
    let text = format!(r#"{{"cniVersion":"1.0.0","name":"{}","type":"one"}}"#, "n".repeat(190));
    let network = Network::parse(text.as_bytes(), "t").unwrap();
    let error =
        with(&rig, |runtime| runtime.add(&network, &parameters(&rig, &"c".repeat(64), "eth0"))).unwrap_err();
    assert!(error.msg.contains("too long together"), "{error}");
    assert!(rig.order().is_empty());
}

// Requirements: L8, L11
#[test]
fn runtime_status_and_validate_call_the_plugins() -> Result<(), Error> {
    let rig = Rig::with(&["one"]);
    let network = network("1.1.0", &["one"]);
    rig.prints("one", "VERSION", r#"{"cniVersion":"1.1.0","supportedVersions":["1.1.0"]}"#);
    with(&rig, |runtime| runtime.status(&network))?;
    assert!(with(&rig, |runtime| runtime.validate(&network))?.is_empty());
    assert_eq!(rig.order(), ["one STATUS", "one VERSION"]);
    Ok(())
}

// Requirements: L7
#[test]
fn runtime_gc_with_an_unreadable_cache_calls_plugins() {
    let rig = Rig::with(&["one"]);
    fs::create_dir(rig.directory().join("cache")).unwrap();
    fs::write(rig.directory().join("cache/results"), "").unwrap();
    let error = with(&rig, |runtime| runtime.gc(&network("1.1.0", &["one"]), Keep::Only(&[]))).unwrap_err();
    assert!(error.code == 5 && error.msg.contains("cache/results"), "{error}");
    assert_eq!(rig.order(), ["one GC"]);
}
