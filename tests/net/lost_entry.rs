//! Tests for DEL after the journal lost a sandbox's entry.
//!
//! ```text
//!   ADD ─ rm /var/lib/weft ─ DEL with prevResult ─► new plan ─► journal entry ─► plugins, last first
//! ```
//!
//! Source: the invariants in `crates/weft-cni/src/meta_plugin/lost_entry.rs`; Multus `CmdDel`.

use rig::cluster::{bridge, configuration, entry_path, recording};
use rig::{Cluster, assert_nothing_left, assert_refused, links, with};
use serde_json::{Value, json};
use testkit::{Attachment, Feature, Host, host};

/// Directory of the journal.
const JOURNAL: &str = "/var/lib/weft";
/// Exit code of the killer if it killed the program.
const KILLED: i32 = 200;

/// Creates the default network and two networks of the pods `web` and `other`.
fn networks(host: &Host) -> (Cluster<'_>, Value) {
    let cluster = Cluster::new(host);
    let mut red = bridge("red", 2);
    red["plugins"][0]["ipMasq"] = true.into();
    cluster.definition("red", &red);
    cluster.definition("blue", &bridge("blue", 3));
    for name in ["web", "other"] {
        cluster.pod(name, "red,blue");
    }
    (cluster, configuration(&bridge("default", 1)))
}

/// Attaches a pod; returns the configuration for DEL, which has the ADD result.
#[track_caller]
fn attached(attachment: &Attachment<'_>, config: &Value) -> Value {
    with(config, &json!({ "prevResult": attachment.add(config).success().json() }))
}

fn lose_journal(host: &Host) {
    host.run(["rm", "-r", JOURNAL]);
}

/// Attaches and detaches `web`, so that bridges and directories exist before a snapshot.
fn use_once(cluster: &Cluster<'_>, host: &Host, config: &Value) {
    let pod = host.pod("web");
    let weft = cluster.attachment(&pod);
    weft.add(config).success();
    weft.del(config).success();
    pod.remove();
}

#[test]
fn journal_lost_entry_is_replaced_by_a_new_plan_at_del() {
    for without_netns in [false, true] {
        let host = host!(Feature::Bridge, Feature::NftMasquerade);
        let (cluster, config) = networks(&host);
        use_once(&cluster, &host, &config);
        let other = host.pod("other");
        cluster.attachment(&other).add(&config).success();
        lose_journal(&host);
        let before = host.snapshot();
        let pod = host.pod("web");
        let mut weft = cluster.attachment(&pod);
        let known = attached(&weft, &config);
        lose_journal(&host);
        if without_netns {
            weft.netns.clear();
        }
        weft.del(&known).success();
        assert_eq!(links(&pod), [""; 0], "without netns: {without_netns}");
        assert!(cluster.entry(&pod).is_none(), "the entry is removed");
        weft.del(&config).success();
        pod.remove();
        host.run(["rm", "-rf", JOURNAL]);
        assert_nothing_left("a lost entry", &host, &before);
        assert_eq!(links(&other), ["eth0", "net1", "net2"]);
        assert!(other.pings("10.1.0.1") && other.pings("10.2.0.1"), "the other pod is not affected");
    }
}

#[test]
fn journal_lost_entry_del_killed_at_every_step_leaves_nothing() {
    let host = host!(Feature::Bridge, Feature::NftMasquerade);
    let (cluster, config) = networks(&host);
    use_once(&cluster, &host, &config);
    let pod = host.pod("web");
    lose_journal(&host);
    let before = host.snapshot();
    let mut weft = cluster.attachment(&pod);
    let killer = testkit::binary("weft-test-killer").display().to_string();
    for place in 1.. {
        let known = attached(&weft, &config);
        lose_journal(&host);
        weft.through = vec![killer.clone(), place.to_string()];
        let code = weft.del(&known).code;
        weft.through.clear();
        if code == Some(KILLED) {
            // The runtime repeats a DEL that failed, with the same result.
            weft.del(&known).success();
        }
        assert_eq!(links(&pod), [""; 0], "step {place}");
        host.run(["rm", "-rf", JOURNAL]);
        assert_nothing_left(&format!("step {place}"), &host, &before);
        if code != Some(KILLED) {
            assert_eq!(code, Some(0), "the last step");
            assert!(place > 15, "only {place} steps: does the killer see all steps?");
            return;
        }
    }
}

#[test]
fn journal_lost_entry_without_result_or_plan_changes_nothing() {
    let host = host!(Feature::Bridge, Feature::NftMasquerade);
    let (cluster, config) = networks(&host);
    let pod = host.pod("web");
    let weft = cluster.attachment(&pod);
    let known = attached(&weft, &config);
    lose_journal(&host);
    // A DEL after a failed ADD: the links may belong to another program.
    weft.del(&config).success();
    assert_eq!(links(&pod), ["eth0", "net1", "net2"]);
    host.run(["rm", &format!("{}/pod-web.json", rig::cluster::MANIFESTS)]);
    let ended = weft.del(&known);
    assert!(ended.stderr.contains("pod blue/web is in no manifest"), "{ended}");
    ended.success();
    assert_eq!(links(&pod), ["eth0", "net1", "net2"]);
}

#[test]
fn journal_lost_entry_spares_the_namespace_of_another_sandbox() {
    let host = host!(Feature::Bridge, Feature::NftMasquerade);
    let (cluster, config) = networks(&host);
    let pod = host.pod("web");
    let weft = cluster.attachment(&pod);
    let known = attached(&weft, &config);
    lose_journal(&host);
    let other = host.pod("other");
    cluster.attachment(&other).add(&config).success();
    let mut wrong = cluster.attachment(&pod);
    wrong.netns = other.path().display().to_string();
    let ended = wrong.del(&known);
    assert!(ended.stderr.contains("is the namespace of another sandbox"), "{ended}");
    ended.success();
    assert_eq!(links(&other), ["eth0", "net1", "net2"]);
    assert!(other.pings("10.1.0.1"), "the other pod is not affected");
}

/// The runtime passes no result in version 0.3.1; the cache has one.
#[test]
fn journal_lost_entry_is_detached_from_the_cache_of_the_runtime() {
    let host = host!(Feature::Bridge, Feature::NftMasquerade);
    let (cluster, config) = networks(&host);
    let config = with(&config, &json!({ "cniVersion": "0.3.1" }));
    let pod = host.pod("web");
    let weft = cluster.attachment(&pod);
    let result = weft.add(&config).success().json();
    lose_journal(&host);
    let entry = json!({ "kind": "cniCacheV1", "containerId": weft.container_id, "config": "", "ifName": "eth0",
        "networkName": config["name"], "netns": weft.netns, "result": result });
    host.write(format!("/var/lib/cni/results/weft-net-{}-eth0", weft.container_id), entry.to_string());
    weft.del(&config).success();
    assert_eq!(links(&pod), [""; 0]);
}

#[test]
fn journal_lost_entry_failure_is_kept_and_retried() {
    let host = host!();
    let cluster = Cluster::new(&host);
    let config = configuration(&recording("default", "one", &json!({})));
    cluster.recording("red", "two", &json!({ "DEL": [{ "do": "fail", "code": 11, "message": "not now" }] }));
    cluster.recording("gone", "three", &json!({}));
    cluster.pod("web", "red,gone");
    let pod = host.pod("web");
    let weft = cluster.attachment(&pod);
    let known = attached(&weft, &config);
    lose_journal(&host);
    host.run(["rm", "/opt/cni/bin/three"]);
    let _ = cluster.calls();
    assert_refused("DEL", &weft.del(&known), 11, &["net1", "not now"]);
    let calls = cluster.calls();
    let named: Vec<_> = calls.iter().map(|call| call.program.as_str()).collect();
    assert_eq!(named, ["two", "one"], "a plugin that is not installed is left out");
    assert_eq!(calls[1].config()["prevResult"], known["prevResult"], "the result of its ADD");
    assert!(host.read(entry_path(&pod)).is_some(), "the failed network is kept");
    cluster.recording("red", "two", &json!({}));
    assert_refused("DEL", &weft.del(&known), 11, &["not now"]);
    assert_eq!(cluster.order(), ["DEL net1"], "only the failed network is tried again");
}

#[test]
fn journal_lost_entry_spares_devices_of_a_pods_newer_sandbox() {
    let host = host!(Feature::Bridge, Feature::Veth);
    let cluster = Cluster::new(&host);
    cluster.recording("red", "two", &json!({}));
    cluster.definition("blue", &bridge("blue", 3));
    cluster.pod("web", "red,blue");
    let config = configuration(&bridge("default", 1));
    let (old, new) = (host.pod("web"), host.pod("again"));
    let weft = cluster.attachment(&old);
    let known = attached(&weft, &config);
    lose_journal(&host);
    let mut newer = cluster.attachment(&new);
    newer.args.clone_from(&weft.args);
    newer.add(&config).success();
    let _ = cluster.calls();
    weft.del(&known).success();
    assert_eq!(cluster.order(), [""; 0], "a foreign plugin may use a device of the newer sandbox");
    assert_eq!((links(&old), links(&new)), (vec![], ["eth0", "net2"].map(str::to_owned).to_vec()));
}
