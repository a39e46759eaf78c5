//! Tests for sandboxes that the runtime attached before weft was installed, and that weft detaches.
//!
//! ```text
//!   /var/lib/cni/results/home-<container id>-eth0 ── DEL ── weft ── the plugins of home
//! ```
//!
//! Source: the invariants in `crates/weft-cni/src/meta_plugin/preexisting.rs`; libcni `libcni/api.go` (`cachedInfo`).

use rig::cluster::{RECORD, bridge, configuration, recording, step};
use rig::{Cluster, assert_nothing_left, assert_refused, links};
use serde_json::{Value, json};
use testkit::{Attachment, Feature, Host, Pod, host};

const NETWORKS: &str = "/etc/cni/net.d";
const RESULTS: &str = "/var/lib/cni/results";

/// Attaches a pod as a runtime without weft does, with an entry in libcni's cache. Returns the attachment
/// with which the runtime calls weft later.
#[track_caller]
fn attached_before<'a>(host: &'a Host, pod: &Pod, network: &Value) -> Attachment<'a> {
    host.write(format!("{NETWORKS}/10-home.conflist"), network.to_string());
    let weft = host.command(testkit::binary("weft").display().to_string()).clean_environment();
    let add = weft.env("NETCONFPATH", NETWORKS).env("CNI_PATH", "/opt/cni/bin").args(["cni", "add", "home"]);
    add.args([pod.path().display().to_string()]).finish().success();
    let mut attachment = host.attachment("weft", pod, "eth0");
    let known = host.run(["ls", RESULTS]);
    let name = known.lines().find_map(|name| name.strip_prefix("home-")?.strip_suffix("-eth0"));
    name.expect("a cache entry").clone_into(&mut attachment.container_id);
    attachment
}

/// Returns the verbs and plugins of the calls since the last call of this function.
fn order(cluster: &Cluster<'_>) -> Vec<String> {
    let calls = cluster.calls();
    calls.iter().map(|call| format!("{} {}", call.command, call.program)).collect()
}

#[test]
fn preexisting_attachment_is_detached_once_and_leaves_nothing() {
    let host = host!(Feature::Bridge, Feature::Veth);
    let cluster = Cluster::new(&host);
    let mut home = bridge("home", 1);
    home["plugins"].as_array_mut().expect("a list").push(step("one", &json!({})));
    let early = host.pod("early");
    let weft = attached_before(&host, &early, &home);
    weft.del(&configuration(&home)).success();
    early.remove();
    let _ = cluster.calls();
    let before = host.snapshot();
    let pod = host.pod("web");
    let weft = attached_before(&host, &pod, &home);
    assert_eq!(links(&pod), ["eth0"]);
    let _ = cluster.calls();
    // The current configuration differs from the cached one.
    let today = configuration(&recording("today", "two", &json!({})));
    weft.del(&today).success();
    let calls = cluster.calls();
    assert_eq!(calls.iter().map(|call| call.program.as_str()).collect::<Vec<_>>(), ["one"]);
    assert_eq!(calls[0].command, "DEL");
    assert_eq!(calls[0].config()["prevResult"]["interfaces"][2]["name"], "eth0", "the result of its ADD");
    assert_eq!(links(&pod), [""; 0]);
    weft.del(&today).success();
    assert_eq!(order(&cluster), [""; 0], "the cache has no entry");
    pod.remove();
    assert_nothing_left("a preexisting sandbox", &host, &before);
}

#[test]
fn preexisting_attachment_failure_is_retried_or_logged() {
    let host = host!();
    let cluster = Cluster::new(&host);
    let fail = json!({ "DEL": [{ "do": "fail", "code": 11, "message": "not now" }] });
    let pod = host.pod("web");
    let weft = attached_before(&host, &pod, &recording("home", "one", &fail));
    let today = configuration(&recording("home", "two", &json!({})));
    for _ in 0..2 {
        assert_refused("DEL", &weft.del(&today), 11, &["eth0 (home), attached before weft", "not now"]);
    }
    let file = format!("{RESULTS}/home-{}-eth0", weft.container_id);
    let _ = cluster.calls();
    // The plugin is missing; another interface; another container; an invalid file.
    let entry = host.read(&file).expect("the entry is kept");
    host.run(["mv", "/opt/cni/bin/one", "/opt/cni/bin/gone"]);
    assert!(weft.del(&today).success().stderr.contains("\"one\""), "a warning names the plugin");
    host.run(["mv", "/opt/cni/bin/gone", "/opt/cni/bin/one"]);
    let mut other = cluster.attachment(&pod);
    (other.container_id, other.ifname) = (weft.container_id.clone(), "eth1".to_owned());
    other.del(&today).success();
    (other.container_id, other.ifname) = ("another".to_owned(), "eth0".to_owned());
    other.del(&today).success();
    host.write(&file, "{");
    weft.del(&today).success();
    assert_eq!(order(&cluster), [""; 0]);
    // An attachment of a meta-plugin belongs to that meta-plugin or the journal, so DEL does not call it.
    for name in ["weft", "multus", "multus-shim"] {
        let meta = json!({ "cniVersion": "1.0.0", "name": "home", "type": name, "delegates": [recording("x", "one", &json!({}))] });
        let mut entry_path: Value = serde_json::from_str(&entry).expect("JSON");
        let base64 = host.command("base64").args(["-w0"]).stdin(meta.to_string()).finish().success().stdout;
        entry_path["config"] = base64.into();
        host.write(&file, entry_path.to_string());
        weft.del(&today).success();
    }
    assert_eq!(order(&cluster), [""; 0]);
    assert_eq!(host.read(RECORD).as_deref(), Some(""));
}

#[test]
fn preexisting_attachment_fails_del_if_cache_is_unreadable() {
    let host = host!(Feature::Bridge, Feature::Veth);
    let _cluster = Cluster::new(&host);
    let home = bridge("home", 1);
    let pod = host.pod("web");
    let weft = attached_before(&host, &pod, &home);
    let entry_path = format!("{RESULTS}/home-{}-eth0", weft.container_id);
    // Reads of the memory of process 1 fail.
    host.run(["mount", "--bind", "/proc/1/mem", &entry_path]);
    assert_refused("DEL", &weft.del(&configuration(&home)), 5, &[&entry_path]);
    assert_eq!(links(&pod), ["eth0"]);
    host.run(["umount", &entry_path]);
    weft.del(&configuration(&home)).success();
    assert!(links(&pod).is_empty() && host.read(&entry_path).is_none(), "{:?}", links(&pod));
}
