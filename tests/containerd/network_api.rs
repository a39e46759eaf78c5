//! The CRI Network API on an unmodified containerd.
//!
//! ```text
//!   the test, weft network ── CRI ── weft cri-proxy ── CRI ── containerd ── CNI ── weft
//!                                         └─────────────── plan ───────────────────┘
//! ```
//!
//! Source: «CRI Network API», the proposal; docs/cri-networks.md.

use std::sync::mpsc::Receiver;

use rig::cluster;
use rig::containerd::NETWORKS;
use rig::cri::Event;
use rig::machine::PATIENCE;
use rig::proxy::bridge;
use rig::{Proxy, assert_nothing_left, links};
use serde_json::{Value, json};
use testkit::{Feature, host};

/// What happened, as CRI numbers it.
const STARTED: i32 = 1;
const STOPPED: i32 = 2;

/// A runtime, a proxy before it, no network.
macro_rules! proxy {
    () => {{
        let host = host!(Feature::Bridge, Feature::Veth);
        let Some(proxy) = Proxy::with_networks(host) else { return };
        proxy
    }};
}

/// The first sandbox on a network makes what stays: bridges, directories.
#[track_caller]
fn settle(proxy: &Proxy, networks: &[(&str, &str)]) {
    let early = proxy.cri().run_pod_sandbox(&proxy.pod_on("early", networks)).expect("a pod");
    proxy.remove(&early);
}

/// The address of an interface of a sandbox.
#[track_caller]
fn address(proxy: &Proxy, id: &str, link: &str) -> String {
    let all = rig::addresses_on(&proxy.node().inside(id), link);
    all.concat().split('/').next().unwrap_or_default().to_owned()
}

#[test]
fn a_sandbox_on_two_networks_that_were_set_reaches_others_on_each_and_leaves_nothing() {
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
    assert_eq!(seen.networks, ["", "blue"], "the first is eth0's and has no place for a name");
    assert!(seen.annotations.is_empty(), "ours is taken out: {:?}", seen.annotations);
    assert!(!seen.info.to_string().contains("weft.dev/attachments"), "{}", seen.info);
    let listed = proxy.cri().annotations().expect("a list");
    assert!(listed.iter().all(|annotations| annotations.is_empty()), "{listed:?}");
    let behind = proxy.node().cri().annotations().expect("a list");
    assert!(behind.iter().all(|annotations| annotations.len() == 1), "it travels through the runtime");
    for id in [&web, &db] {
        proxy.remove(id);
    }
    assert_eq!(proxy.cri().list_pod_sandbox().expect("a list"), []);
    assert_nothing_left("two pods on two networks", proxy.node(), &before);
}

#[test]
fn the_network_on_disk_appears_changes_and_vanishes_and_is_everybodys_default() {
    let proxy = proxy!();
    assert!(proxy.networks().is_empty());
    let why = proxy.ready().expect_err("there is no network");
    assert!(why.contains("/etc/cni/net.d contains none"), "{why}");
    let error = proxy.cri().run_pod_sandbox(&proxy.node().pod("web", &[])).expect_err("no network");
    assert!(error.contains("no default network"), "{error}");
    let list = |subnet| cluster::bridge("admins", subnet).to_string();
    // From another directory, which runtimes overlook.
    proxy.write("/tmp/10-admins.conflist", list(1));
    proxy.run(["mv", "/tmp/10-admins.conflist", &format!("{NETWORKS}/10-admins.conflist")]);
    proxy.ready().expect("a network is there");
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
    assert!(address(&proxy, &db, "eth0").starts_with("10.2.0."), "it has what is there now");
    assert_eq!(
        proxy.networks()["_fallback"]["status"],
        json!({"sandbox_management": true, "connectivity": true})
    );
    proxy.write(format!("{NETWORKS}/10-admins.conflist"), "{");
    let why = proxy.ready().expect_err("it is broken");
    assert!(why.contains("10-admins.conflist"), "{why}");
    proxy.run(["rm", &format!("{NETWORKS}/10-admins.conflist")]);
    assert!(proxy.networks().is_empty());
    proxy.ready().expect_err("it is gone");
    // Without any network sandboxes are taken down as they were made.
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
fn another_configuration_between_run_and_stop_leaves_nothing_and_changes_no_sandbox() {
    let proxy = proxy!();
    proxy.set(&bridge("red", 1));
    settle(&proxy, &[("", "red")]);
    let before = proxy.node().snapshot();
    let web = proxy.cri().run_pod_sandbox(&proxy.pod_on("web", &[("", "red")])).expect("a pod");
    let had = address(&proxy, &web, "eth0");
    // Another bridge, another range, and a plugin more: none of them had anything to do with web.
    let mut other = bridge("red", 7);
    other["cniv1_config"]["plugins"].as_array_mut().expect("plugins").push(json!({ "type": "tuning" }));
    proxy.set(&other);
    assert_eq!(proxy.networks()["red"]["config"]["metadata"]["generation"], 2);
    assert_eq!(address(&proxy, &web, "eth0"), had);
    assert_eq!(proxy.cri().pod_sandbox_status(&web).expect("a status").addresses, [had]);
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
fn a_network_in_use_stays_or_drains() {
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
    let error = proxy.cri().run_pod_sandbox(&proxy.pod_on("db", &[("", "red")])).expect_err("it drains");
    assert!(error.contains("is being removed"), "{error}");
    let drains = || proxy.networks()["red"]["status"]["draining"].as_bool();
    assert_eq!(drains(), Some(true));
    // Whoever sets it again wants it to stay.
    proxy.set(&bridge("red", 1));
    assert_eq!((drains(), &proxy.networks()["red"]["config"]["metadata"]["generation"]), (None, &json!(1)));
    proxy.remove(&proxy.cri().run_pod_sandbox(&proxy.pod_on("db", &[("", "red")])).expect("it stays"));
    proxy.network(&["rm", "red", "--drain"], "").success();
    // A proxy that is replaced knows.
    proxy.stop("KILL");
    proxy.launch();
    assert_eq!(drains(), Some(true));
    assert_eq!(proxy.networks()["red"]["status"]["sandbox_management"], false);
    proxy.remove(&web);
    rig::machine::until("the network is gone", || proxy.networks().is_empty().then_some(()));
    proxy.network(&["rm", "red"], "").success();
}

#[test]
fn parameters_ranges_and_the_annotation_reach_the_plugins() {
    let proxy = proxy!();
    let mut red = bridge("red", 1);
    let plugin = &mut red["cniv1_config"]["plugins"][0];
    plugin["capabilities"] = json!(["ipRanges", "ips", "mac"]);
    plugin["parameters"]["ipam"] = json!({ "type": "host-local" });
    red["ip_ranges"] = json!([{ "cidr": "10.9.0.0/24" }, { "cidr": "fd09::/64" }]);
    proxy.set(&red);
    proxy.set(&bridge("blue", 2));
    let asked = json!([
        { "network_name": "blue", "interface_name": "storage", "parameters": { "ips": ["10.2.0.77/24"], "mac": "02:00:00:00:00:07" } },
        { "network_name": "red", "interface_name": "eth0" },
    ]);
    let asked = asked.to_string();
    let pod = proxy.node().pod("web", &[("weft.dev/networks", &asked), ("mine", "stays")]);
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
    assert_eq!(seen.networks, ["", "red", "blue"], "eth0's second family has its network's name");
    assert_eq!(seen.addresses[2], "10.2.0.77");
    let keys: Vec<&String> = seen.annotations.keys().collect();
    assert_eq!(keys, ["mine", "weft.dev/networks"], "a client's own come back as they were");
    // Another one wants the same address, and is told.
    let asked = asked.replace("00:07", "00:08");
    let error = proxy.cri().run_pod_sandbox(&proxy.node().pod("db", &[("weft.dev/networks", &asked)]));
    let error = error.expect_err("it has an owner");
    assert!(error.contains("10.2.0.77"), "{error}");
    proxy.remove(&web);
}

#[test]
fn a_network_may_be_everybodys_default_and_without_the_list_the_proxy_only_forwards() {
    let mut proxy = proxy!();
    proxy.set(&bridge("red", 1));
    proxy.relaunch(&["--default-network", "red"]);
    proxy.ready().expect("red is there");
    let web = proxy.cri().run_pod_sandbox(&proxy.node().pod("web", &[])).expect("a pod");
    assert!(address(&proxy, &web, "eth0").starts_with("10.1.0."));
    let refused = proxy.network(&["rm", "red"], "");
    assert!(refused.stderr.contains("is in use by sandbox"), "{refused}");
    proxy.remove(&web);
    proxy.network(&["rm", "red"], "").success();
    let why = proxy.ready().expect_err("the default network is gone");
    assert!(why.contains("red"), "{why}");
    // The runtime's network is the runtime's: nothing is promised that nobody would do.
    proxy.relaunch_as(&[]);
    proxy.set(&bridge("red", 1));
    let error = proxy.cri().run_pod_sandbox(&proxy.pod_on("web", &[("", "red")])).expect_err("not ours");
    assert!(error.contains("--runtime-networks"), "{error}");
    proxy.ready().expect("what the runtime says passes");
}

#[test]
fn the_network_on_disk_and_one_that_was_set_by_its_name_are_two() {
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
    rig::machine::until("the sandbox is not as it was", || (connected() == [false, true]).then_some(()));
    let shown = proxy.network(&["list"], "").success().stdout;
    let row = |name: &str| shown.lines().find(|line| line.starts_with(name)).expect("a row").to_owned();
    let ends = |name: &str| row(name).split_whitespace().rev().take(2).collect::<Vec<_>>().join(" ");
    assert_eq!((ends("_fallback"), ends("admins")), ("no yes".to_owned(), "yes yes".to_owned()), "{shown}");
    let shown = proxy.network(&["show", "admins"], "").success().stdout;
    assert!(shown.contains("\"bridge\": \"br1\"") && !shown.contains("_fallback"), "{shown}");
    let refused = proxy.network(&["show", "nobody"], "");
    assert!(refused.stderr.contains("there is no network nobody"), "{refused}");
    // Nobody asked for it.
    proxy.network(&["rm", "admins"], "").success();
    proxy.remove(&web);
}

#[test]
fn the_runtime_is_the_one_that_was_named() {
    let proxy = proxy!();
    let version = proxy.cri().version().expect("a version");
    assert!(version.starts_with(proxy.node().release().version()), "{version}");
}

#[test]
fn events_of_a_sandbox_tell_the_address_of_each_network_and_not_our_annotation() {
    let host = host!(Feature::Bridge, Feature::Veth);
    let Some(proxy) = Proxy::with_networks_on_newest(host) else { return };
    proxy.set(&bridge("red", 1));
    proxy.set(&bridge("blue", 2));
    let (events, behind) = (proxy.cri().events(), proxy.node().cri().events());
    rig::machine::until("both are told of what happens", || {
        settle(&proxy, &[("", "red"), ("", "blue")]);
        (events.try_recv().is_ok() && behind.try_recv().is_ok()).then_some(())
    });
    let pod = proxy.pod_on("web", &[("", "red"), ("", "blue"), ("wire", "blue")]);
    let web = proxy.cri().run_pod_sandbox(&pod).expect("a pod");
    let plain = proxy.cri().run_pod_sandbox(&proxy.pod_on("plain", &[("", "red")])).expect("a pod");
    let expected = ["eth0", "net1", "wire"].map(|link| address(&proxy, &web, link));
    let next = |events: &Receiver<Event>, id: &str, kind| loop {
        let event = events.recv_timeout(PATIENCE).expect("an event");
        if event.container == id && event.kind == kind {
            return event.sandbox.expect("a sandbox's status");
        }
    };
    let started = next(&events, &web, STARTED);
    assert_eq!(started.addresses, expected);
    assert_eq!(started.networks, ["", "blue", "blue"]);
    assert!(started.annotations.is_empty(), "{:?}", started.annotations);
    let raw = next(&behind, &web, STARTED);
    assert_eq!(raw.addresses, expected[..1], "the runtime by itself knows of one");
    assert_eq!(raw.annotations.len(), 1, "and has ours");
    assert_eq!(next(&events, &plain, STARTED).networks, [""]);
    proxy.cri().stop_pod_sandbox(&web).expect("stop");
    let stopped = next(&events, &web, STOPPED);
    assert!(stopped.annotations.is_empty(), "{:?}", stopped.annotations);
    proxy.cri().remove_pod_sandbox(&web).expect("remove");
    proxy.remove(&plain);
}
