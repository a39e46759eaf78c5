//! Tests of network policies: real traffic between pods on `bridge`, `ptp` and `macvlan`, IPv4 and IPv6.
//!
//! ```text
//!   db 10.9.0.11 ──┐
//!   web 10.9.0.12 ─┼── network "data" (fd00:9::11, …)      policies: manifests beside those of the pods
//!   other …13 ─────┘
//! ```
//!
//! Source: docs/network-policy.md; the verdicts in `npwg::network_policy`, which unit tests prove.

use std::net::UdpSocket;
use std::time::Duration;

use rig::cluster::{MANIFESTS, NAMESPACE, bridge, configuration, entry_path};
use rig::traffic::{Transport, outside, reached};
use rig::{Cluster, assert_nothing_left, refusal};
use serde_json::{Value, json};
use testkit::{Attachment, Feature, Host, Netns, Pod, host};

/// Pods in address order; addresses begin with 10.9.0.11.
pub(crate) const PODS: [&str; 3] = ["db", "web", "other"];

/// Definition of the network `data` with one of the plugins.
pub(crate) fn network(plugin: &str) -> Value {
    let mut first = json!({ "type": plugin, "capabilities": { "ips": true }, "ipam": {
        "type": "host-local",
        "ranges": [[{ "subnet": "10.9.0.0/24" }], [{ "subnet": "fd00:9::/64" }]],
    }});
    match plugin {
        "bridge" => first["bridge"] = "br9".into(),
        "macvlan" => first["master"] = "up0".into(),
        _ => {}
    }
    json!({ "cniVersion": "1.1.0", "name": "data", "plugins": [first] })
}

/// Configuration of the meta-plugin, whose default network has no policy.
pub(crate) fn weft() -> Value {
    configuration(&bridge("pods", 8))
}

/// Writes the manifest of a pod with a label, which selects the network with fixed addresses.
pub(crate) fn pod_manifest(host: &Host, index: usize) {
    let ips = json!([format!("10.9.0.{}/24", 11 + index), format!("fd00:9::{}/64", 11 + index)]);
    let networks = json!([{ "name": "data", "ips": ips }]).to_string();
    let manifest = json!({ "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": PODS[index], "namespace": NAMESPACE, "labels": { "app": PODS[index] },
            "annotations": { "k8s.v1.cni.cncf.io/networks": networks } },
        "spec": { "containers": [{ "name": "main", "ports": [{ "name": "sql", "containerPort": 5432 }] }] } });
    host.write(format!("{MANIFESTS}/pod-{}.json", PODS[index]), manifest.to_string());
}

fn policy(host: &Host, name: &str, spec: &Value) {
    let manifest = json!({ "apiVersion": "k8s.cni.cncf.io/v1beta2", "kind": "MultiNetworkPolicy",
        "metadata": { "name": name, "namespace": NAMESPACE,
            "annotations": { "k8s.v1.cni.cncf.io/policy-for": "data" } },
        "spec": spec });
    host.write(format!("{MANIFESTS}/policy-{name}.json"), manifest.to_string());
}

/// `db` may be reached by `web` at the named port, and by all at UDP 53; `other` may reach `web` at TCP 80.
pub(crate) fn policies(host: &Host) {
    let app = |name: &str| json!({ "podSelector": { "matchLabels": { "app": name } } });
    let selected = |name: &str| json!({ "matchLabels": { "app": name } });
    let ingress = json!([
        { "from": [app("web")], "ports": [{ "port": "sql" }] },
        { "ports": [{ "protocol": "UDP", "port": 53, "endPort": 60 }] },
    ]);
    policy(
        host,
        "db",
        &json!({ "podSelector": selected("db"), "policyTypes": ["Ingress"], "ingress": ingress }),
    );
    let egress = json!([{ "to": [app("web")], "ports": [{ "port": 80 }] }]);
    policy(
        host,
        "other",
        &json!({ "podSelector": selected("other"), "policyTypes": ["Egress"], "egress": egress }),
    );
}

/// Attaches the three pods.
pub(crate) fn attach<'a>(host: &'a Host, cluster: &Cluster<'a>) -> Vec<(Pod, Attachment<'a>)> {
    let attach = |index: usize| {
        pod_manifest(host, index);
        let pod = host.pod(PODS[index]);
        let attachment = cluster.attachment(&pod);
        attachment.add(&weft()).success();
        for address in [format!("10.9.0.{}", 11 + index), format!("fd00:9::{}", 11 + index)] {
            await_address(&pod, &address);
        }
        (pod, attachment)
    };
    // Manifests of all pods first: an ADD knows the addresses of the peers from them.
    (0..PODS.len()).for_each(|index| pod_manifest(host, index));
    (0..PODS.len()).map(attach).collect()
}

/// Waits until duplicate address detection is over.
fn await_address(pod: &Netns, address: &str) {
    let shown = || pod.run(["ip", "-o", "address", "show", "to", address]);
    for _ in 0..600 {
        if !shown().contains("tentative") {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{address} stays tentative");
}

/// Expected result of a connection: client and server by index, protocol and port.
type Row = (usize, usize, Transport, u16, bool);

pub(crate) const ROWS: &[Row] = &[
    (1, 0, Transport::Tcp, 5432, true),
    (1, 0, Transport::Tcp, 5433, false),
    (1, 0, Transport::Udp, 60, true),
    (1, 0, Transport::Udp, 61, false),
    (2, 0, Transport::Udp, 53, false),
    (2, 1, Transport::Tcp, 80, true),
    (2, 1, Transport::Tcp, 81, false),
    (2, 1, Transport::Udp, 80, false),
    (0, 1, Transport::Tcp, 81, true),
    (0, 2, Transport::Udp, 81, true),
];

#[track_caller]
pub(crate) fn assert_rows(case: &str, pods: &[(Pod, Attachment<'_>)], rows: &[Row]) {
    for (from, to, transport, port, expected) in rows {
        for address in [format!("10.9.0.{}", 11 + to), format!("[fd00:9::{}]", 11 + to)] {
            let at = format!("{address}:{port}");
            let seen = reached(*transport, &pods[*from].0, &at, &pods[*to].0, &at);
            let row = format!("{case}: {} to {} {transport:?} {at}", PODS[*from], PODS[*to]);
            assert_eq!(seen.is_some(), *expected, "{row}");
        }
    }
}

/// Runs the rows on a network with one of the plugins, then detaches everything.
fn matrix(host: &Host, plugin: &str) {
    let cluster = Cluster::new(host);
    host.run(["sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"]);
    cluster.definition("data", &network(plugin));
    policies(host);
    let pods = attach(host, &cluster);
    assert_rows(plugin, &pods, ROWS);
    for (_, attachment) in &pods {
        attachment.del(&weft()).success();
    }
    for family in ["inet", "bridge"] {
        let listed = host.command("nft").args(["list", "table", family, "weft-policy"]).finish();
        assert!(!listed.stdout.contains("gress-"), "{plugin}: rules are left: {}", listed.stdout);
    }
    // The table itself stays, because another ADD may be about to use it.
    let before = host.snapshot();
    for (_, attachment) in &pods {
        attachment.add(&weft()).success();
    }
    for (_, attachment) in &pods {
        attachment.del(&weft()).success();
        attachment.del(&weft()).success();
    }
    assert_nothing_left(plugin, host, &before);
}

#[test]
fn network_policy_is_enforced_on_bridge() {
    matrix(&host!(Feature::Bridge, Feature::NftInet), "bridge");
}

#[test]
fn network_policy_is_enforced_on_ptp() {
    matrix(&host!(Feature::Veth, Feature::NftInet), "ptp");
}

#[test]
fn network_policy_is_enforced_on_macvlan() {
    let host = host!(Feature::Macvlan, Feature::NftInet);
    let _outside = outside(&host);
    matrix(&host, "macvlan");
}

#[test]
fn network_policy_invalid_denies_what_it_selects() {
    let host = host!(Feature::Bridge, Feature::NftInet);
    let cluster = Cluster::new(&host);
    cluster.definition("data", &network("bridge"));
    let invalid = json!({ "podSelector": { "matchLabels": { "app": "db" } }, "policyTypes": ["Ingress"],
        "ingress": [{ "ports": [{ "protocol": "ICMP" }] }, {}] });
    policy(&host, "db", &invalid);
    let pods = attach(&host, &cluster);
    let rows = [(1, 0, Transport::Tcp, 80, false), (0, 1, Transport::Tcp, 80, true)];
    assert_rows("invalid", &pods, &rows);
}

#[test]
fn network_policy_check_finds_changed_rules() {
    let of_bridge = if Feature::BridgeConntrack.is_present() { "bridge" } else { "inet" };
    for (plugin, family, is_on_host) in
        [("bridge", of_bridge, of_bridge == "bridge"), ("ptp", "inet", true), ("macvlan", "inet", false)]
    {
        let host = host!(Feature::Veth, Feature::Bridge, Feature::Macvlan, Feature::NftInet);
        let _outside = outside(&host);
        let cluster = Cluster::new(&host);
        policies(&host);
        cluster.definition("data", &network(plugin));
        let pods = attach(&host, &cluster);
        let (pod, db) = &pods[0];
        let netns: &Netns = if is_on_host { &host } else { pod };
        let table = netns.run(["nft", "-a", "list", "table", family, "weft-policy"]);
        let chain =
            table.lines().find_map(|line| line.trim().strip_prefix("chain ingress-")?.split(' ').next());
        let chain = format!("ingress-{}", chain.expect("a chain"));
        let refused = |words: &str| {
            let (_, message) = refusal(&db.check(&weft()));
            assert!(message.contains("network policy: ") && message.contains(words), "{plugin}: {message}");
        };
        let set = format!("{}-ingress-0-pods4", chain.trim_start_matches("ingress-"));
        netns.run(["nft", "add", "table", family, "weft-policy", "{ flags dormant; }"]);
        refused("is dormant");
        netns.run(["nft", "add", "table", family, "weft-policy"]);
        db.check(&weft()).success();
        netns.run(["nft", "add", "element", family, "weft-policy", &set, "{ 10.9.0.13 }"]);
        refused("the elements of set");
        netns.run(["nft", "flush", "chain", family, "weft-policy", &chain]);
        refused("the rules of chain");
        netns.run(["nft", "flush", "chain", family, "weft-policy", "prerouting"]);
        netns.run(["nft", "flush", "chain", family, "weft-policy", "postrouting"]);
        refused("were changed");
        netns.run(["nft", "delete", "table", family, "weft-policy"]);
        refused("were changed");
        for (_, attachment) in &pods {
            attachment.del(&weft()).success();
        }
    }
}

/// A pod with `NET_ADMIN` removes every rule in the pod's namespace.
#[test]
fn network_policy_irremovable_rules_in_a_pod_do_not_fail_del() {
    let host = host!(Feature::Macvlan, Feature::NftInet);
    let _outside = outside(&host);
    let cluster = Cluster::new(&host);
    cluster.definition("data", &network("macvlan"));
    policies(&host);
    let pods = attach(&host, &cluster);
    let (db, attachment) = &pods[0];
    let table = db.run(["nft", "list", "table", "inet", "weft-policy"]);
    let own = table.lines().find_map(|line| line.trim().strip_prefix("chain ingress-")?.split(' ').next());
    let own = format!("ingress-{}", own.expect("a chain"));
    db.run(["nft", "add", "chain", "inet", "weft-policy", "ingress-x"]);
    db.run(["nft", "add", "rule", "inet", "weft-policy", "ingress-x", "jump", &own]);
    attachment.del(&weft()).success();
}

#[test]
fn network_policy_passes_no_flow_of_the_previous_address_owner() {
    let host = host!(Feature::Veth, Feature::NftInet);
    let cluster = Cluster::new(&host);
    host.run(["sysctl", "-qw", "net.ipv4.ip_forward=1"]);
    cluster.definition("data", &network("ptp"));
    // A rule that tracks connections on the host, as those of kube-proxy do.
    host.run(["nft", "add", "table", "inet", "tracked"]);
    host.run(["nft", "add chain inet tracked c { type filter hook forward priority 0; }"]);
    host.run(["nft", "add rule inet tracked c ct state established counter"]);
    (0..PODS.len()).for_each(|index| pod_manifest(&host, index));
    let (db, other) = (host.pod("db"), host.pod("other"));
    cluster.attachment(&other).add(&weft()).success();
    let owner = cluster.attachment(&db);
    owner.add(&weft()).success();
    let bind = |pod: &Pod, at: &'static str| pod.within(move || UdpSocket::bind(at)).expect("a socket");
    let (listener, sender) = (bind(&db, "0.0.0.0:9999"), bind(&other, "0.0.0.0:9998"));
    for socket in [&listener, &sender] {
        socket.set_read_timeout(Some(Duration::from_secs(5))).expect("a timeout");
    }
    let mut buffer = [0; 8];
    let send = || sender.send_to(b"a", "10.9.0.11:9999").expect("sent");
    send();
    let (_, from) = listener.recv_from(&mut buffer).expect("received");
    listener.send_to(b"b", from).expect("replied");
    sender.recv(&mut buffer).expect("a reply");
    send();
    listener.recv(&mut buffer).expect("the connection is established");
    owner.del(&weft()).success();
    policies(&host);
    owner.add(&weft()).success();
    (0..3).for_each(|_| {
        let _ = send();
    });
    listener.set_read_timeout(Some(Duration::from_secs(1))).expect("a timeout");
    let received = listener.recv(&mut buffer);
    assert!(received.is_err(), "a packet passed: {received:?}");
}

#[test]
fn network_policy_of_a_pod_with_unknown_labels_is_refused() {
    let host = host!(Feature::Bridge, Feature::NftInet);
    let cluster = Cluster::new(&host);
    cluster.definition("data", &network("bridge"));
    policies(&host);
    let pod = host.pod("late");
    let mut config = weft();
    config["runtimeConfig"] =
        json!({ "io.kubernetes.cri.pod-annotations": { "k8s.v1.cni.cncf.io/networks": "data" } });
    cluster.attachment(&pod).add(&config);
    let before = host.snapshot();
    let (_, message) = refusal(&cluster.attachment(&pod).add(&config));
    assert!(message.contains("its labels are unknown"), "{message}");
    assert_nothing_left("labels unknown", &host, &before);
}

#[test]
fn network_policy_gc_removes_rules_without_an_entry() {
    let host = host!(Feature::Veth, Feature::Bridge, Feature::NftInet);
    let cluster = Cluster::new(&host);
    cluster.definition("data", &network("ptp"));
    policies(&host);
    let pods = attach(&host, &cluster);
    let chains = || {
        let table = host.run(["nft", "list", "table", "inet", "weft-policy"]);
        table.lines().filter(|line| line.contains("chain ingress-") || line.contains("chain egress-")).count()
    };
    assert_eq!(chains(), 2, "db and other are isolated in one direction each");
    let (db, attachment) = &pods[0];
    host.run(["rm", &entry_path(db)]);
    let valid: Vec<(String, &str)> = pods[1..].iter().map(|(pod, _)| (pod.container_id(), "eth0")).collect();
    let valid: Vec<(&str, &str)> = valid.iter().map(|(id, ifname)| (id.as_str(), *ifname)).collect();
    rig::gc(attachment, &weft(), Some(&valid)).success();
    assert_eq!(chains(), 1, "the rules of another attachment stay");
    pods[2].1.check(&weft()).success();
}

/// DEL finds the rules by name, even if no policy selects the pod any more.
#[test]
fn network_policy_rules_of_a_lost_entry_are_removed_by_del() {
    for has_policy in [true, false] {
        let host = host!(Feature::Veth, Feature::Bridge, Feature::NftInet);
        let cluster = Cluster::new(&host);
        cluster.definition("data", &network("ptp"));
        policies(&host);
        let pods = attach(&host, &cluster);
        let (db, attachment) = &pods[0];
        attachment.del(&weft()).success();
        let result = attachment.add(&weft()).success().json();
        let table = || host.run(["nft", "list", "table", "inet", "weft-policy"]);
        assert!(table().contains("chain ingress-") && table().contains("10.9.0.11"), "{}", table());
        host.run(["rm", &entry_path(db)]);
        if !has_policy {
            host.run(["rm", &format!("{MANIFESTS}/policy-db.json")]);
        }
        attachment.del(&rig::with(&weft(), &json!({ "prevResult": result }))).success();
        let left = table();
        assert!(!left.contains("chain ingress-") && !left.contains("10.9.0.11"), "{has_policy}: {left}");
        assert!(left.contains("chain egress-"), "the rules of another attachment stay: {left}");
    }
}

/// Two installations with different directories, for example a first and a second runtime on the node.
#[test]
fn network_policy_gc_keeps_rules_of_another_journal() {
    let host = host!(Feature::Veth, Feature::Bridge, Feature::NftInet);
    let cluster = Cluster::new(&host);
    cluster.definition("data", &network("ptp"));
    policies(&host);
    let pods = attach(&host, &cluster);
    let mut other = configuration(&bridge("others", 7));
    other["cniDir"] = "/var/lib/other".into();
    let listed = || host.run(["nft", "list", "table", "inet", "weft-policy"]);
    assert!(listed().contains("10.9.0.11"), "the address of db is guarded");
    let elements =
        |text: &str| text.lines().filter(|line| line.contains("gress-") || line.contains("10.9.0.")).count();
    let before = elements(&listed());
    rig::gc(&pods[0].1, &other, Some(&[])).success();
    assert_eq!(elements(&listed()), before, "{}", listed());
    pods[0].1.check(&weft()).success();
    // A pod of the other journal.
    let late = host.pod("late");
    let mut twin = cluster.attachment(&late);
    twin.args = pods[0].1.args.clone();
    let manifest = host
        .read(format!("{MANIFESTS}/pod-db.json"))
        .expect("a manifest")
        .replace("0.11/", "0.21/")
        .replace("::11/", "::21/");
    host.write(format!("{MANIFESTS}/pod-db.json"), manifest);
    twin.add(&other).success();
    assert!(elements(&listed()) > before);
    rig::gc(&twin, &other, Some(&[])).success();
    assert_eq!(elements(&listed()), before, "{}", listed());
    pods[0].1.check(&weft()).success();
    // The directory of the first journal, by another path.
    let mut linked = weft();
    linked["cniDir"] = "/var/lib/../lib/weft".into();
    host.run(["rm", &entry_path(&pods[0].0)]);
    rig::gc(&pods[0].1, &linked, Some(&[])).success();
    assert!(!listed().contains("10.9.0.11"), "{}", listed());
}

/// Of a device that a program of the pod drives (VFIO, DPDK), the kernel sees no packet.
#[test]
fn network_policy_refuses_an_attachment_without_interface() {
    let host = host!(Feature::Bridge, Feature::NftInet);
    let cluster = Cluster::new(&host);
    cluster.recording("data", "one", &json!({}));
    for name in ["db", "web"] {
        cluster.pod(name, "data");
    }
    let (db, web) = (host.pod("db"), host.pod("web"));
    cluster.attachment(&web).add(&weft()).success();
    policy(&host, "all", &json!({ "podSelector": {}, "policyTypes": ["Ingress"] }));
    drop(cluster.calls());
    let before = host.snapshot();
    let (_, message) = refusal(&cluster.attachment(&db).add(&weft()));
    assert!(message.contains("network policy: the kernel of the pod has no interface \"net1\""), "{message}");
    assert!(db.run(["nft", "list", "ruleset"]).is_empty(), "rules are left in the pod");
    drop(cluster.calls());
    assert_nothing_left("without interface", &host, &before);
}

/// Packets on a port are packets of the bridge, so rules about the port would see none.
#[test]
fn network_policy_refuses_a_port_of_a_bridge_in_the_pod() {
    let host = host!(Feature::Bridge, Feature::Tun, Feature::NftInet);
    let cluster = Cluster::new(&host);
    let mut definition = network("tap");
    definition["plugins"][0]["bridge"] = "inner".into();
    cluster.definition("data", &definition);
    policies(&host);
    (0..PODS.len()).for_each(|index| pod_manifest(&host, index));
    let (db, web) = (host.pod("db"), host.pod("web"));
    for pod in [&db, &web] {
        pod.run(["ip", "link", "add", "inner", "type", "bridge"]);
    }
    cluster.attachment(&web).add(&weft()).success();
    let (_, message) = refusal(&cluster.attachment(&db).add(&weft()));
    assert!(message.contains("interface \"net1\" is a port of \"inner\""), "{message}");
    assert!(!rig::links(&db).contains(&"net1".to_owned()), "the interface is left");
}

#[test]
fn network_policy_rules_without_an_entry_are_found_by_doctor() {
    let host = host!(Feature::Veth, Feature::Bridge, Feature::NftInet);
    let cluster = Cluster::new(&host);
    cluster.definition("data", &network("ptp"));
    policies(&host);
    let pods = attach(&host, &cluster);
    let found = || {
        let _ = testkit::binary("weft-cni");
        let doctor = host.command(testkit::binary("weft")).clean_environment().args(["doctor", "-o", "json"]);
        let findings = doctor.finish().json().as_array().expect("a list").clone();
        let rules = findings.into_iter().filter(|finding| finding.to_string().contains("weft-policy"));
        rules.collect::<Vec<Value>>()
    };
    host.write(
        "/etc/cni/net.d/10-weft.conflist",
        json!({ "cniVersion": "1.1.0", "name": "weft-net", "plugins": [weft()] }).to_string(),
    );
    assert_eq!(found(), [Value::Null; 0]);
    host.run(["nft", "add", "table", "inet", "weft-policy", "{ flags dormant; }"]);
    let dormant = found();
    // Of `db` and of `other`, which have rules.
    assert!(dormant.len() == 2 && dormant[0]["why"].as_str().unwrap().contains("is dormant"), "{dormant:?}");
    host.run(["nft", "add", "table", "inet", "weft-policy"]);
    host.run(["rm", &entry_path(&pods[0].0)]);
    let stale = found();
    assert_eq!(stale.len(), 1, "{stale:?}");
    assert!(
        stale[0]["what"].as_str().unwrap().starts_with("element of inet weft-policy links-"),
        "{stale:?}"
    );
    assert!(stale[0]["why"].as_str().unwrap().contains(&pods[0].0.container_id()), "{stale:?}");
}

/// Returns the packets of `db` that the counters have for a rule, or for no rule.
fn counted(host: &Host, rule: Option<(&str, u64)>) -> (u64, u64) {
    let list = host.command(testkit::binary("weft")).clean_environment();
    let counts = list.args(["list", "--policies", "-o", "json"]).finish().success().json();
    let of_rule = |count: &&Value| {
        let by = &count["allowedBy"];
        let is_meant = match rule {
            Some((policy, index)) => by["policy"] == policy && by["rule"] == index,
            None => by.is_null(),
        };
        is_meant && count["pod"] == "db" && count["network"] == format!("{NAMESPACE}/data")
    };
    let found = counts
        .as_array()
        .expect("a list")
        .iter()
        .find(of_rule)
        .unwrap_or_else(|| panic!("{rule:?}: {counts}"));
    assert_eq!((&found["interface"], &found["direction"]), (&json!("net1"), &json!("ingress")));
    let number = |key: &str| found[key].as_u64().expect("a number");
    (number("packets"), number("bytes"))
}

/// Adds more rules to those in a pod than are read.
fn overfill(pod: &Netns) {
    let listed = pod.run(["nft", "list", "table", "inet", "weft-policy"]);
    let chain = listed.lines().find_map(|line| line.trim().strip_prefix("chain ingress-"));
    let chain = format!("ingress-{}", chain.and_then(|rest| rest.split(' ').next()).expect("a chain"));
    let rules = format!("add rule inet weft-policy {chain} counter\n").repeat(100_000);
    pod.command("nft").args(["-f", "-"]).stdin(rules).finish().success();
}

#[test]
fn network_policy_counters_show_allowed_and_denied_packets() {
    for plugin in ["bridge", "ptp", "macvlan"] {
        let host = host!(Feature::Veth, Feature::Bridge, Feature::Macvlan, Feature::NftInet);
        let _outside = outside(&host);
        let cluster = Cluster::new(&host);
        host.run(["sysctl", "-qw", "net.ipv4.ip_forward=1"]);
        host.run(["ip", "link", "set", "lo", "up"]);
        let conflist = json!({ "cniVersion": "1.1.0", "name": "weft-net", "plugins": [weft()] });
        host.write("/etc/cni/net.d/10-weft.conflist", conflist.to_string());
        let _ = testkit::binary("weft-cni");
        policies(&host);
        cluster.definition("data", &network(plugin));
        let pods = attach(&host, &cluster);
        let before = [Some(("db", 0)), Some(("db", 1)), None].map(|rule| counted(&host, rule));
        let socket = pods[1].0.within(|| UdpSocket::bind("10.9.0.12:0")).expect("a socket");
        for port in [53, 53, 53, 61, 61] {
            socket.send_to(&[0; 100], ("10.9.0.11", port)).expect("sent");
        }
        // The first packet may wait for neighbour discovery.
        let has_arrived = |rule, (packets, bytes): (u64, u64), more| {
            rig::machine::until("the packets", || {
                let now = counted(&host, rule);
                (now.0 >= packets + more && now.1 >= bytes + more * 128).then_some(())
            });
        };
        has_arrived(Some(("db", 1)), before[1], 3);
        has_arrived(None, before[2], 2);
        assert_eq!(counted(&host, Some(("db", 0))), before[0], "{plugin}: a rule without packets");
        let weft_command = || host.command(testkit::binary("weft")).clean_environment();
        let table = weft_command().args(["list", "--policies"]).finish().success().stdout;
        assert!(table.contains("db[1]") && table.contains("no rule"), "{table}");
        let _executor = weft_command().args(["executor", "--listen", "127.0.0.1:9466"]).start_tied();
        let page = rig::machine::until("a metrics page", || {
            Some(host.attempt(["curl", "-sf", "http://127.0.0.1:9466/metrics"]))
                .filter(|got| got.code == Some(0))
        });
        let labels = format!(
            "{{namespace=\"{NAMESPACE}\",pod=\"db\",interface=\"net1\",network=\"{NAMESPACE}/data\",direction=\"ingress\""
        );
        for (metric, policy, least) in [("allowed", ",policy=\"db\"", 3), ("denied", "", 2)] {
            let start = format!("weft_policy_{metric}_packets_total{labels}{policy}}} ");
            let value = page.stdout.lines().find_map(|line| line.strip_prefix(&start)?.parse::<u64>().ok());
            assert!(value >= Some(least), "{plugin}: {start}: {value:?}");
        }
        for line in ["weft_policy_counters_unread 0\n", "weft_policy_counters_read_failed 0\n"] {
            assert!(page.stdout.contains(line), "{plugin}: {line}: {}", page.stdout);
        }
        if plugin != "macvlan" {
            continue;
        }
        overfill(&pods[0].0);
        let words = ["list", "--policies", "-o", "json"];
        let shown = weft_command().args(words).finish().success();
        assert!(shown.stderr.contains("counters of 1 attachments with network policies"), "{shown}");
        assert!(!shown.stdout.contains("\"db\""), "{shown}");
        rig::machine::until("an attachment that was not read", || {
            let page = host.attempt(["curl", "-sf", "http://127.0.0.1:9466/metrics"]);
            page.stdout.contains("weft_policy_counters_unread 1\n").then_some(())
        });
    }
}

/// Number of nf_tables transactions in a network namespace so far, modulo 2^32. `NFT_MSG_GETGEN`
fn transactions(netns: &Netns) -> u32 {
    const ASK: &str = "
import socket, struct
sender = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12)
sender.send(struct.pack('=IHHII', 20, 10 << 8 | 16, 1, 1, 0) + bytes(4))
print(struct.unpack('!I', sender.recv(4096)[24:28])[0])";
    netns.run(["/usr/bin/python3", "-c", ASK]).trim().parse().expect("a number")
}

#[test]
fn network_policy_rules_ahead_are_removed_in_one_transaction() {
    let host = host!(Feature::Veth, Feature::Macvlan, Feature::Bridge, Feature::NftInet);
    let _outside = outside(&host);
    let cluster = Cluster::new(&host);
    policies(&host);
    // The default network fails. Its plugin is built in, so rules in the pod do not wait for it.
    let default = json!({ "cniVersion": "1.1.0", "name": "pods", "plugins": [
        { "type": "macvlan", "master": "absent0", "ipam": { "type": "host-local", "subnet": "10.8.0.0/24" } },
    ] });
    let config = configuration(&default);
    for plugin in ["ptp", "macvlan"] {
        cluster.definition("data", &network(plugin));
        (0..PODS.len()).for_each(|index| pod_manifest(&host, index));
        let path = format!("{MANIFESTS}/pod-{}.json", PODS[0]);
        let mut manifest: Value = serde_json::from_str(&host.read(&path).expect("a pod")).expect("JSON");
        manifest["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"] = "data,data,data".into();
        host.write(&path, manifest.to_string());
        let pod = host.pod(PODS[0]);
        let netns: &Netns = if plugin == "macvlan" { &pod } else { &host };
        let before = transactions(netns);
        let (_, message) = refusal(&cluster.attachment(&pod).add(&config));
        assert!(message.contains("absent0"), "{message}");
        let done = transactions(netns).wrapping_sub(before);
        assert_eq!(done, 3 + 1, "{plugin}: one for the rules of each network, and one that removes them");
        assert!(!netns.run(["nft", "list", "ruleset"]).contains("gress-"), "{plugin}");
        pod.remove();
    }
}
