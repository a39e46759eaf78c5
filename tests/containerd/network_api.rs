//! Tests for the CRI Network API on an unmodified containerd.
//!
//! ```text
//!   the test, weft network ── CRI ── weft cri-proxy ── CRI ── containerd ── CNI ── weft
//!                                         └─────────────── plan ───────────────────┘
//! ```
//!
//! Source: the proposal "CRI Network API"; docs/cri-networks.md.

use std::sync::mpsc::Receiver;

use rig::cluster;
use rig::containerd::NETWORKS;
use rig::cri::Event;
use rig::machine::TIMEOUT;
use rig::proxy::bridge;
use rig::{Proxy, assert_nothing_left, links};
use serde_json::{Value, json};
use testkit::{Feature, host};

/// Kinds of container events, as CRI numbers them.
const STARTED: i32 = 1;
const STOPPED: i32 = 2;

/// Returns a runtime with a proxy before it, without networks.
macro_rules! proxy {
    () => {{
        let host = host!(Feature::Bridge, Feature::Veth);
        let Some(proxy) = Proxy::with_networks(host) else { return };
        proxy
    }};
}

/// Creates and removes a sandbox, so that the objects that remain (bridges, directories) exist.
#[track_caller]
fn settle(proxy: &Proxy, networks: &[(&str, &str)]) {
    let early = proxy.cri().run_pod_sandbox(&proxy.pod_on("early", networks)).expect("a pod");
    proxy.remove(&early);
}

/// Returns the address of an interface of a sandbox.
#[track_caller]
fn address(proxy: &Proxy, id: &str, link: &str) -> String {
    let all = rig::addresses_on(&proxy.node().inside(id), link);
    all.concat().split('/').next().unwrap_or_default().to_owned()
}

#[test]
fn network_api_sandbox_on_two_networks_reaches_others_on_each() {
    const BOTH: [(&str, &str); 2] = [("", "red"), ("", "blue")];
    let proxy = proxy!();
    proxy.set(&bridge("red", 1));
    proxy.set(&bridge("blue", 2));
    settle(&proxy, &BOTH);
    let before = proxy.node().snapshot();
    let [web, db] =
        ["web", "db"].map(|name| proxy.cri().run_pod_sandbox(&proxy.pod_on(name, &BOTH)).expect("a pod"));
    let inside = proxy.node().inside(&web);
    assert_eq!(links(&inside), ["eth0", "net1"]);
    for link in ["eth0", "net1"] {
        assert!(inside.pings(&address(&proxy, &db, link)), "web does not reach db over {link}");
    }
    let seen = proxy.cri().pod_sandbox_status(&web).expect("a status");
    assert_eq!(seen.addresses, ["eth0", "net1"].map(|link| address(&proxy, &web, link)));
    assert_eq!(
        seen.networks,
        ["", "blue"],
        "the first address is that of eth0, for which CRI has no network name"
    );
    assert!(seen.annotations.is_empty(), "the annotation of weft is removed: {:?}", seen.annotations);
    assert!(!seen.info.to_string().contains("weft.dev/attachments"), "{}", seen.info);
    let listed = proxy.cri().annotations().expect("a list");
    assert!(listed.iter().all(|annotations| annotations.is_empty()), "{listed:?}");
    let behind = proxy.node().cri().annotations().expect("a list");
    assert!(behind.iter().all(|annotations| annotations.len() == 1), "the runtime has the annotation");
    for id in [&web, &db] {
        proxy.remove(id);
    }
    assert_eq!(proxy.cri().list_pod_sandbox().expect("a list"), []);
    assert_nothing_left("two pods on two networks", proxy.node(), &before);
}

#[test]
fn network_api_fallback_network_follows_the_file_on_disk() {
    let proxy = proxy!();
    assert!(proxy.networks().is_empty());
    let why = proxy.ready().expect_err("there is no network");
    assert!(why.contains("/etc/cni/net.d contains none"), "{why}");
    let error = proxy.cri().run_pod_sandbox(&proxy.node().pod("web", &[])).expect_err("no network");
    assert!(error.contains("no default network"), "{error}");
    let list = |subnet| cluster::bridge("admins", subnet).to_string();
    // The file is moved from another directory, because runtimes ignore a file that is written in place.
    proxy.write("/tmp/10-admins.conflist", list(1));
    proxy.run(["mv", "/tmp/10-admins.conflist", &format!("{NETWORKS}/10-admins.conflist")]);
    proxy.ready().expect("a network exists");
    let shown = |networks: &std::collections::BTreeMap<String, Value>| {
        networks["_fallback"]["config"]["cniv1_config"]["plugins"][0]["parameters"]["bridge"].clone()
    };
    assert_eq!(shown(&proxy.networks()), json!("\"br1\""));
    let web = proxy.cri().run_pod_sandbox(&proxy.node().pod("web", &[])).expect("a pod");
    assert_eq!(links(&proxy.node().inside(&web)), ["eth0"]);
    assert!(address(&proxy, &web, "eth0").starts_with("10.1.0."));
    proxy.write(format!("{NETWORKS}/10-admins.conflist"), list(2));
    assert_eq!(shown(&proxy.networks()), json!("\"br2\""));
    let db = proxy.cri().run_pod_sandbox(&proxy.node().pod("db", &[])).expect("a pod");
    assert!(address(&proxy, &db, "eth0").starts_with("10.2.0."), "the sandbox is on the current network");
    assert_eq!(
        proxy.networks()["_fallback"]["status"],
        json!({"sandbox_management": true, "connectivity": true})
    );
    proxy.write(format!("{NETWORKS}/10-admins.conflist"), "{");
    let why = proxy.ready().expect_err("the file is invalid");
    assert!(why.contains("10-admins.conflist"), "{why}");
    proxy.run(["rm", &format!("{NETWORKS}/10-admins.conflist")]);
    assert!(proxy.networks().is_empty());
    proxy.ready().expect_err("the file is removed");
    // Without a network, sandboxes are detached from the journal.
    for id in [&web, &db] {
        proxy.remove(id);
    }
    for (id, _) in proxy.cri().list_pod_sandbox().expect("a list") {
        proxy.remove(&id);
    }
    assert_eq!(
        proxy.run(["sh", "-c", "ls /var/lib/cni/networks/admins | grep -c '^10' || true"]).trim(),
        "0"
    );
}

#[test]
fn network_api_replaced_network_does_not_change_its_sandboxes() {
    let proxy = proxy!();
    proxy.set(&bridge("red", 1));
    settle(&proxy, &[("", "red")]);
    let before = proxy.node().snapshot();
    let web = proxy.cri().run_pod_sandbox(&proxy.pod_on("web", &[("", "red")])).expect("a pod");
    let address_before = address(&proxy, &web, "eth0");
    // The new network has another bridge, another range and another plugin, which must not affect web.
    let mut other = bridge("red", 7);
    other["cniv1_config"]["plugins"].as_array_mut().expect("plugins").push(json!({ "type": "tuning" }));
    proxy.set(&other);
    assert_eq!(proxy.networks()["red"]["config"]["metadata"]["generation"], 2);
    assert_eq!(address(&proxy, &web, "eth0"), address_before);
    assert_eq!(proxy.cri().pod_sandbox_status(&web).expect("a status").addresses, [address_before]);
    proxy.remove(&web);
    let changes = rig::changes(&before, &proxy.node().snapshot());
    let changes: Vec<&str> =
        changes.lines().filter(|line| !line.contains("/var/lib/weft/networks/")).collect();
    assert_eq!(changes, [""; 0], "a network replaced in the middle");
    let next = proxy.cri().run_pod_sandbox(&proxy.pod_on("next", &[("", "red")])).expect("a pod");
    assert!(address(&proxy, &next, "eth0").starts_with("10.7.0."));
    proxy.remove(&next);
}

#[test]
fn network_api_network_in_use_is_kept_or_drained() {
    let proxy = proxy!();
    proxy.set(&bridge("red", 1));
    let web = proxy.cri().run_pod_sandbox(&proxy.pod_on("web", &[("", "red")])).expect("a pod");
    let refused = proxy.network(&["rm", "red"], "");
    assert_eq!(refused.code, Some(1), "{refused}");
    assert!(
        refused.stderr.contains(&format!("network red is in use by sandbox {web} (blue/web)")),
        "{refused}"
    );
    proxy.network(&["rm", "red", "--drain"], "").success();
    assert_eq!(proxy.networks()["red"]["status"]["sandbox_management"], false);
    let error = proxy
        .cri()
        .run_pod_sandbox(&proxy.pod_on("db", &[("", "red")]))
        .expect_err("the network is draining");
    assert!(error.contains("is being removed"), "{error}");
    let drains = || proxy.networks()["red"]["status"]["draining"].as_bool();
    assert_eq!(drains(), Some(true));
    // Setting the network again ends draining.
    proxy.set(&bridge("red", 1));
    assert_eq!((drains(), &proxy.networks()["red"]["config"]["metadata"]["generation"]), (None, &json!(1)));
    proxy.remove(&proxy.cri().run_pod_sandbox(&proxy.pod_on("db", &[("", "red")])).expect("a pod"));
    proxy.network(&["rm", "red", "--drain"], "").success();
    // A new proxy knows that the network is draining.
    proxy.stop("KILL");
    proxy.launch();
    assert_eq!(drains(), Some(true));
    assert_eq!(proxy.networks()["red"]["status"]["sandbox_management"], false);
    proxy.remove(&web);
    rig::machine::until("the network is removed", || proxy.networks().is_empty().then_some(()));
    let unknown = proxy.network(&["rm", "red"], "");
    assert!(unknown.code == Some(1) && unknown.stderr.contains("network red: not found"), "{unknown}");
}

#[test]
fn network_api_parameters_and_ranges_reach_the_plugins() {
    let proxy = proxy!();
    let mut red = bridge("red", 1);
    let plugin = &mut red["cniv1_config"]["plugins"][0];
    plugin["capabilities"] = json!(["ipRanges", "ips", "mac"]);
    plugin["parameters"]["ipam"] = json!({ "type": "host-local" });
    red["ip_ranges"] = json!([{ "cidr": "10.9.0.0/24" }, { "cidr": "fd09::/64" }]);
    proxy.set(&red);
    proxy.set(&bridge("blue", 2));
    let request = json!([
        { "network_name": "blue", "interface_name": "storage", "parameters": { "ips": ["10.2.0.77/24"], "mac": "02:00:00:00:00:07" } },
        { "network_name": "red", "interface_name": "eth0" },
    ]);
    let request = request.to_string();
    let pod = proxy.node().pod("web", &[("weft.dev/networks", &request), ("mine", "stays")]);
    let web = proxy.cri().run_pod_sandbox(&pod).expect("a pod");
    let inside = proxy.node().inside(&web);
    assert_eq!(links(&inside), ["eth0", "storage"]);
    assert_eq!(rig::addresses_on(&inside, "storage"), ["10.2.0.77/24"]);
    let shown = rig::link(&inside, "storage").expect("a link");
    assert_eq!(shown["address"], "02:00:00:00:00:07");
    let eth0 = rig::addresses_on(&inside, "eth0");
    assert!(eth0.iter().any(|ip| ip.starts_with("10.9.0.")), "{eth0:?}");
    assert!(eth0.iter().any(|ip| ip.starts_with("fd09::")), "{eth0:?}");
    let seen = proxy.cri().pod_sandbox_status(&web).expect("a status");
    assert_eq!(seen.networks, ["", "red", "blue"], "the second address of eth0 has the name of its network");
    assert_eq!(seen.addresses[2], "10.2.0.77");
    let keys: Vec<&String> = seen.annotations.keys().collect();
    assert_eq!(keys, ["mine", "weft.dev/networks"], "annotations of a client are unchanged");
    // Another sandbox requests the same address and is refused.
    let request = request.replace("00:07", "00:08");
    let error = proxy.cri().run_pod_sandbox(&proxy.node().pod("db", &[("weft.dev/networks", &request)]));
    let error = error.expect_err("the address is allocated");
    assert!(error.contains("10.2.0.77"), "{error}");
    proxy.remove(&web);
}

#[test]
fn network_api_default_network_and_proxy_without_its_list() {
    let mut proxy = proxy!();
    proxy.set(&bridge("red", 1));
    proxy.relaunch(&["--default-network", "red"]);
    proxy.ready().expect("red exists");
    let web = proxy.cri().run_pod_sandbox(&proxy.node().pod("web", &[])).expect("a pod");
    assert!(address(&proxy, &web, "eth0").starts_with("10.1.0."));
    let refused = proxy.network(&["rm", "red"], "");
    assert!(refused.stderr.contains("is in use by sandbox"), "{refused}");
    proxy.remove(&web);
    proxy.network(&["rm", "red"], "").success();
    let why = proxy.ready().expect_err("the default network is removed");
    assert!(why.contains("red"), "{why}");
    // Without `--runtime-networks` the proxy forwards only, and refuses requests for networks.
    proxy.relaunch_as(&[]);
    proxy.set(&bridge("red", 1));
    let error = proxy
        .cri()
        .run_pod_sandbox(&proxy.pod_on("web", &[("", "red")]))
        .expect_err("the proxy manages no networks");
    assert!(error.contains("--runtime-networks"), "{error}");
    proxy.ready().expect("the status of the runtime is forwarded");
}

#[test]
fn network_api_fallback_and_set_network_of_one_name_differ() {
    let proxy = proxy!();
    let file = format!("{NETWORKS}/10-admins.conflist");
    proxy.write(&file, cluster::bridge("admins", 1).to_string());
    proxy.network(&["set", "-f", "-"], &cluster::bridge("admins", 1).to_string()).success();
    let web = proxy.cri().run_pod_sandbox(&proxy.node().pod("web", &[])).expect("a pod");
    let connected = || {
        let networks = proxy.networks();
        ["_fallback", "admins"].map(|name| networks[name]["status"]["connectivity"].clone())
    };
    assert_eq!(connected(), [true, true]);
    proxy.node().inside(&web).run(["ip", "link", "delete", "eth0"]);
    rig::machine::until("the proxy reports the change", || (connected() == [false, true]).then_some(()));
    let shown = proxy.network(&["list"], "").success().stdout;
    let row = |name: &str| shown.lines().find(|line| line.starts_with(name)).expect("a row").to_owned();
    let ends = |name: &str| row(name).split_whitespace().rev().take(2).collect::<Vec<_>>().join(" ");
    assert_eq!((ends("_fallback"), ends("admins")), ("no yes".to_owned(), "yes yes".to_owned()), "{shown}");
    let shown = proxy.network(&["show", "admins"], "").success().stdout;
    assert!(shown.contains("\"bridge\": \"br1\"") && !shown.contains("_fallback"), "{shown}");
    let refused = proxy.network(&["show", "absent"], "");
    assert!(refused.stderr.contains("network absent: not found"), "{refused}");
    // No sandbox is on this network.
    proxy.network(&["rm", "admins"], "").success();
    proxy.remove(&web);
}

#[test]
fn network_api_reports_the_version_of_the_runtime() {
    let proxy = proxy!();
    let version = proxy.cri().version().expect("a version");
    assert!(version.starts_with(proxy.node().release().version()), "{version}");
}

#[test]
fn network_api_events_have_addresses_and_no_weft_annotation() {
    let host = host!(Feature::Bridge, Feature::Veth);
    let Some(proxy) = Proxy::with_networks_on_newest(host) else { return };
    proxy.set(&bridge("red", 1));
    proxy.set(&bridge("blue", 2));
    let (events, behind) = (proxy.cri().events(), proxy.node().cri().events());
    rig::machine::until("both streams deliver events", || {
        settle(&proxy, &[("", "red"), ("", "blue")]);
        (events.try_recv().is_ok() && behind.try_recv().is_ok()).then_some(())
    });
    let pod = proxy.pod_on("web", &[("", "red"), ("", "blue"), ("wire", "blue")]);
    let web = proxy.cri().run_pod_sandbox(&pod).expect("a pod");
    let plain = proxy.cri().run_pod_sandbox(&proxy.pod_on("plain", &[("", "red")])).expect("a pod");
    let expected = ["eth0", "net1", "wire"].map(|link| address(&proxy, &web, link));
    let next = |events: &Receiver<Event>, id: &str, kind| loop {
        let event = events.recv_timeout(TIMEOUT).expect("an event");
        if event.container == id && event.kind == kind {
            return event.sandbox.expect("a sandbox's status");
        }
    };
    let started = next(&events, &web, STARTED);
    assert_eq!(started.addresses, expected);
    assert_eq!(started.networks, ["", "blue", "blue"]);
    assert!(started.annotations.is_empty(), "{:?}", started.annotations);
    let raw = next(&behind, &web, STARTED);
    assert_eq!(raw.addresses, expected[..1], "the runtime knows only one address");
    assert_eq!(raw.annotations.len(), 1, "the runtime has the annotation");
    assert_eq!(next(&events, &plain, STARTED).networks, [""]);
    proxy.cri().stop_pod_sandbox(&web).expect("stop");
    let stopped = next(&events, &web, STOPPED);
    assert!(stopped.annotations.is_empty(), "{:?}", stopped.annotations);
    proxy.cri().remove_pod_sandbox(&web).expect("remove");
    proxy.remove(&plain);
}

#[test]
fn network_command_with_a_namespace_selects_its_networks() {
    let proxy = proxy!();
    proxy.set(&bridge("red", 1));
    let set = proxy.network(&["set", "-n", "team", "-f", "-"], &bridge("red", 2).to_string()).success();
    assert!(set.stdout.starts_with("team/red is set"), "{set}");
    let names = |words: &[&str]| -> Vec<String> {
        let listed = proxy.network(words, "").success().json();
        let metadata = listed.as_array().expect("a list").iter().map(|one| &one["config"]["metadata"]);
        let name = |one: &Value| one.as_str().unwrap_or_default().to_owned();
        metadata.map(|one| format!("{}/{}", name(&one["namespace"]), name(&one["name"]))).collect()
    };
    assert_eq!(names(&["list", "-o", "json"]), ["/red", "team/red"]);
    assert_eq!(names(&["list", "-n", "team", "-o", "json"]), ["team/red"]);
    let shown = proxy.network(&["show", "-n", "team", "red", "-o", "json"], "").success().json();
    assert_eq!(shown["config"]["metadata"]["namespace"], "team");
    // As for kubectl, the namespace of a document is not replaced.
    let mut other = bridge("blue", 3);
    other["metadata"]["namespace"] = "lab".into();
    let refused = proxy.network(&["set", "-n", "team", "-f", "-"], &other.to_string());
    assert!(refused.code == Some(2) && refused.stderr.contains("\"lab\""), "{refused}");
    proxy.network(&["delete", "-n", "team", "red"], "").success();
    assert_eq!(names(&["list", "-o", "json"]), ["/red"]);
}
