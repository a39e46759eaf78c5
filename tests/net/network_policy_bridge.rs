//! Tests of network policies at bridge ports on the host, where the kernel tracks connections on bridges, and of the
//! host's connection tracking with `bridge` and `ptp`.
//!
//! ```text
//!   db 10.9.0.11 ── port ──┐
//!   web …12      ── port ──┼── br9 10.9.0.1      policy: db may be reached at UDP 53 only
//!   other …13    ── port ──┘
//! ```

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use rig::Cluster;
use rig::cluster::{MANIFESTS, NAMESPACE, bridge, configuration};
use rig::traffic::{Transport, reached};
use serde_json::{Value, json};
use testkit::{Attachment, Feature, Host, Netns, Pod, host};

const PODS: [&str; 3] = ["db", "web", "other"];
const ALLOWED: u16 = 53;
const FORBIDDEN: u16 = 9999;
/// Destination of frames that a bridge passes to the IP layer (IEEE 802.1D). LLDP frames pass no bridge hook.
const RESERVED: [&str; 2] = ["01:80:c2:00:00:0e", "01:80:c2:00:00:03"];

/// Limit for an allowed packet.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Time for a forbidden packet.
const GRACE: Duration = Duration::from_millis(500);

fn weft() -> Value {
    configuration(&bridge("pods", 8))
}

/// Attaches the pods to a network whose first plugin has these fields, under the policy.
fn attach<'a>(host: &'a Host, cluster: &Cluster<'a>, plugin: &Value) -> Vec<(Pod, Attachment<'a>)> {
    let mut first = plugin.clone();
    first["capabilities"] = json!({ "ips": true });
    first["ipam"] = json!({ "type": "host-local", "ranges": [[{ "subnet": "10.9.0.0/24" }], [{ "subnet": "fd00:9::/64" }]] });
    cluster.definition("data", &json!({ "cniVersion": "1.1.0", "name": "data", "plugins": [first] }));
    // Without the kernel's own test of source addresses, which many nodes do not have.
    let off = ["net.ipv4.conf.all.rp_filter=0", "net.ipv4.conf.default.rp_filter=0"];
    host.run(
        [["sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"].as_slice(), &off]
            .concat(),
    );
    for (index, name) in PODS.into_iter().enumerate() {
        let ips = json!([format!("10.9.0.{}/24", 11 + index), format!("fd00:9::{}/64", 11 + index)]);
        let networks = json!([{ "name": "data", "ips": ips }]).to_string();
        let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": NAMESPACE,
            "labels": { "app": name }, "annotations": { "k8s.v1.cni.cncf.io/networks": networks } } });
        host.write(format!("{MANIFESTS}/pod-{name}.json"), pod.to_string());
    }
    let pods = PODS.map(|name| {
        let pod = host.pod(name);
        let attachment = cluster.attachment(&pod);
        attachment.add(&weft()).success();
        (pod, attachment)
    });
    pods.into()
}

fn policy(host: &Host, app: &str, spec: &Value) {
    let mut spec = spec.clone();
    spec["podSelector"] = json!({ "matchLabels": { "app": app } });
    let policy = json!({ "apiVersion": "k8s.cni.cncf.io/v1beta2", "kind": "MultiNetworkPolicy",
        "metadata": { "name": app, "namespace": NAMESPACE, "annotations": { "k8s.v1.cni.cncf.io/policy-for": "data" } },
        "spec": spec });
    host.write(format!("{MANIFESTS}/policy-{app}.json"), policy.to_string());
}

/// `db` may be reached at UDP 53 only.
fn policies(host: &Host) {
    let ingress = json!([{ "ports": [{ "protocol": "UDP", "port": ALLOWED }] }]);
    policy(host, "db", &json!({ "policyTypes": ["Ingress"], "ingress": ingress }));
}

fn bridged() -> Value {
    json!({ "type": "bridge", "bridge": "br9", "isGateway": true })
}

fn listen(netns: &Netns, port: u16) -> UdpSocket {
    let socket = netns.within(|| UdpSocket::bind(("::", port))).expect("listen");
    socket.set_nonblocking(true).expect("not to wait");
    socket
}

/// Whether a datagram of `length` bytes arrives: waits for it if it is `expected`, else for a moment.
fn arrives(from: &UdpSocket, to: &str, listener: &UdpSocket, length: usize, expected: bool) -> bool {
    let mut buffer = vec![0; 65_536];
    while listener.recv(&mut buffer).is_ok() {}
    let until = Instant::now() + if expected { TIMEOUT } else { GRACE };
    loop {
        // Fails while the neighbour is unknown.
        let _ = from.send_to(&vec![b'x'; length], to);
        std::thread::sleep(Duration::from_millis(20));
        if listener.recv(&mut buffer).is_ok_and(|received| received == length) {
            return true;
        }
        if Instant::now() > until {
            return false;
        }
    }
}

fn sender(pod: &Netns, at: &str) -> UdpSocket {
    pod.within(|| UdpSocket::bind(at)).expect("a socket")
}

/// Fails unless UDP 53 of `db` is reached from `web` by both families and UDP 9999 is not.
#[track_caller]
fn assert_isolated(case: &str, pods: &[(Pod, Attachment<'_>)]) {
    let (db, web) = (&pods[0].0, &pods[1].0);
    for (any, address) in [("0.0.0.0:0", "10.9.0.11"), ("[::]:0", "[fd00:9::11]")] {
        let from = sender(web, any);
        for (port, expected) in [(ALLOWED, true), (FORBIDDEN, false)] {
            let listener = listen(db, port);
            // The longer datagram is sent in fragments.
            for length in [8, 4000] {
                let seen = arrives(&from, &format!("{address}:{port}"), &listener, length, expected);
                assert_eq!(seen, expected, "{case}: {length} bytes to {address}:{port}");
            }
        }
    }
}

/// The host end is recorded, and a pod with `NET_ADMIN` cannot change the rules.
#[test]
fn network_policy_on_bridge_port_survives_a_hostile_pod() {
    let host = host!(Feature::Bridge, Feature::BridgeConntrack, Feature::NftInet);
    let cluster = Cluster::new(&host);
    policies(&host);
    let pods =
        attach(&host, &cluster, &rig::with(&bridged(), &json!({ "macspoofchk": true, "hairpinMode": true })));
    let entry = cluster.entry(&pods[0].0).expect("an entry");
    let rules = &entry["attachments"][1]["rules"];
    assert_eq!(rules["place"], "bridge", "{entry}");
    for (index, (pod, _)) in pods.iter().enumerate() {
        let rules = pod.run(["nft", "list", "ruleset"]);
        let is_bound = rules.contains("chain addresses") && !rules.contains("gress-");
        assert!(if index == 0 { is_bound } else { rules.is_empty() }, "rules in the pod: {rules}");
    }
    assert_isolated("bridge", &pods);
    // Replies pass: to a pod of the bridge, and to the node.
    let [db, web, _] = [0, 1, 2].map(|index| &pods[index].0);
    for (address, server) in [("10.9.0.12", &**web), ("10.9.0.1", &*host), ("[fd00:9::12]", &**web)] {
        let at = format!("{address}:81");
        assert!(reached(Transport::Tcp, db, &at, server, &at).is_some(), "db to {at}");
    }
    assert!(reached(Transport::Tcp, &host, "10.9.0.11:81", db, "10.9.0.11:81").is_none(), "the node to db");
    if Feature::BridgeNetfilter.is_present() {
        host.run([
            "sysctl",
            "-qw",
            "net.bridge.bridge-nf-call-iptables=1",
            "net.bridge.bridge-nf-call-ip6tables=1",
        ]);
        assert_isolated("packets of the bridge that iptables sees", &pods);
    }
    // Another link, address and table of the pod change nothing.
    db.run(["nft", "flush", "ruleset"]);
    web.run(["ip", "address", "add", "10.9.0.77/24", "dev", "net1"]);
    web.run(["ip", "link", "set", "net1", "promisc", "on"]);
    assert_isolated("changes of the pods", &pods);
    let (_, why) = rig::refusal(&pods[0].1.check(&weft()));
    assert!(why.contains("chain inet weft-policy addresses"), "{why}");
    crate::network_policy_update::verify(&host, db);
    pods[0].1.check(&weft()).success();
    for (_, attachment) in &pods {
        attachment.del(&weft()).success();
    }
    for family in ["inet", "bridge"] {
        let table = host.run(["nft", "list", "table", family, "weft-policy"]);
        let left = ["gress-", "10.9.0.", "fd00:9::"].iter().any(|word| table.contains(word));
        assert!(!left, "rules are left: {table}");
    }
}

/// A frame with one VLAN tag is judged by the packet in it. With two tags, no rule but one for all traffic lets it
/// pass.
#[test]
fn network_policy_on_bridge_port_holds_for_tagged_frames() {
    let host = host!(Feature::Bridge, Feature::BridgeConntrack, Feature::Vlan, Feature::NftInet);
    let cluster = Cluster::new(&host);
    policies(&host);
    let pods = attach(&host, &cluster, &bridged());
    let kinds: [(&str, &[&str]); 3] = [
        ("a VLAN", &["ip link add link net1 name t1 up type vlan id 5"]),
        ("a service VLAN", &["ip link add link net1 name t1 up type vlan proto 802.1ad id 5"]),
        (
            "a VLAN in a service VLAN",
            &[
                "ip link add link net1 name t0 up type vlan proto 802.1ad id 6",
                "ip link add link t0 name t1 up type vlan id 5",
            ],
        ),
    ];
    for (kind, script) in kinds {
        for (index, (pod, _)) in pods.iter().enumerate() {
            script.iter().for_each(|line| drop(pod.run(line.split(' '))));
            pod.run(["ip", "address", "add", &format!("10.5.0.{}/24", 11 + index), "dev", "t1"]);
        }
        let web = sender(&pods[1].0, "0.0.0.0:0");
        // The path exists: `other` is not isolated.
        let listener = listen(&pods[2].0, FORBIDDEN);
        assert!(arrives(&web, "10.5.0.13:9999", &listener, 8, true), "{kind}: to a pod without policies");
        let listener = listen(&pods[0].0, FORBIDDEN);
        assert!(!arrives(&web, "10.5.0.11:9999", &listener, 8, false), "{kind}: a forbidden packet arrives");
        let listener = listen(&pods[0].0, ALLOWED);
        let is_allowed = !kind.contains(" in ");
        // Announced to `db`, whose own question in two tags would not pass.
        let seen = arrives(&web, "10.5.0.11:53", &listener, 8, is_allowed);
        assert_eq!(seen, is_allowed, "{kind}: an allowed packet");
        for (pod, _) in &pods {
            pod.run(["ip", "link", "delete", "t1"]);
            pod.attempt(["ip", "link", "delete", "t0"]);
        }
    }
}

/// A bridge passes frames to reserved addresses to the IP layer of the host, past the first bridge hook.
#[test]
fn network_policy_on_bridge_port_holds_for_reserved_addresses() {
    let host = host!(Feature::Bridge, Feature::BridgeConntrack, Feature::NftInet);
    let cluster = Cluster::new(&host);
    policy(&host, "web", &json!({ "policyTypes": ["Egress"] }));
    let pods = attach(&host, &cluster, &bridged());
    let web = &pods[1].0;
    let listener = listen(&host, FORBIDDEN);
    let from = sender(web, "10.9.0.12:0");
    let attempt = |reserved: &str, expected: bool| {
        let line = format!("neighbour replace 10.9.0.1 lladdr {reserved} dev net1 nud permanent");
        web.run(["ip"].into_iter().chain(line.split(' ')));
        arrives(&from, "10.9.0.1:9999", &listener, 8, expected)
    };
    for reserved in RESERVED {
        assert!(!attempt(reserved, false), "a packet to {reserved} passed");
    }
    host.run(["nft", "flush", "map", "inet", "weft-policy", "links-in"]);
    for reserved in RESERVED {
        assert!(attempt(reserved, true), "without the rule a packet to {reserved} passes");
    }
}

/// `other` sends with the address of `db` to `web`. If the kernel tracked that as a connection, packets from `web`
/// would reach `db` as replies.
fn assert_no_forged_connection(host: &Host, pods: &[(Pod, Attachment<'_>)], family: &str) {
    let [db, web, other] = [0, 1, 2].map(|index| &pods[index].0);
    let mac = rig::link(db, "net1").expect("net1")["address"].as_str().expect("an address").to_owned();
    if family == "bridge" {
        web.run([
            "ip",
            "neighbour",
            "replace",
            "10.9.0.11",
            "lladdr",
            &mac,
            "dev",
            "net1",
            "nud",
            "permanent",
        ]);
    }
    other.run(["ip", "address", "add", "10.9.0.11/32", "dev", "lo"]);
    let forger = sender(other, "10.9.0.11:9999");
    let (at_web, at_db) = (listen(web, 9998), listen(db, FORBIDDEN));
    let attempt = |expected: bool| {
        assert!(arrives(&forger, "10.9.0.12:9998", &at_web, 8, true), "the forged packet arrives at web");
        let to = "[::ffff:10.9.0.11]:9999";
        arrives(&at_web, to, &at_db, 8, expected)
    };
    assert!(!attempt(false), "a forged connection lets packets pass");
    // The test can fail: without the chain, the kernel tracks the connection.
    host.run(["nft", "flush", "chain", family, "weft-policy", "tracking"]);
    assert!(attempt(true), "without the chain they pass");
}

#[test]
fn network_policy_forged_connection_lets_nothing_pass_on_bridge() {
    let host = host!(Feature::Bridge, Feature::BridgeConntrack, Feature::NftInet);
    let cluster = Cluster::new(&host);
    policies(&host);
    let pods = attach(&host, &cluster, &bridged());
    assert_no_forged_connection(&host, &pods, "bridge");
}

#[test]
fn network_policy_forged_connection_lets_nothing_pass_on_ptp() {
    let host = host!(Feature::Veth, Feature::NftInet);
    let cluster = Cluster::new(&host);
    policies(&host);
    let pods = attach(&host, &cluster, &json!({ "type": "ptp" }));
    assert_no_forged_connection(&host, &pods, "inet");
}

/// Another program, such as a firewall that is loaded again, removes everything from the host, or one part. Each loss is
/// found, and the verification restores all of it.
fn assert_loss_is_restored(host: &Host, pods: &[(Pod, Attachment<'_>)], family: &str, of_bridge: &[&str]) {
    let (db, attachment) = &pods[0];
    let table = |words: &str| words.replace("TABLE", &format!("{family} weft-policy"));
    let losses = [
        "flush chain TABLE tracking",
        "flush set TABLE owners4",
        "flush set TABLE guarded6",
        "add table TABLE { flags dormant; }",
        "delete table TABLE",
        "flush ruleset",
    ];
    for loss in losses.into_iter().chain(of_bridge.iter().copied()) {
        host.run(["nft", &table(loss)]);
        let (_, why) = rig::refusal(&attachment.check(&weft()));
        assert!(why.contains("network policy"), "{loss}: {why}");
        let finished = crate::network_policy_update::verify(host, db);
        assert!(finished.stderr.contains("agent"), "{loss}: no report: {finished}");
        attachment.check(&weft()).success();
        assert_eq!(crate::network_policy_update::verify(host, db).code, Some(0), "{loss}: no difference");
    }
    assert_no_forged_connection(host, pods, family);
}

#[test]
fn network_policy_flushed_on_the_host_is_restored_on_bridge() {
    let host = host!(Feature::Bridge, Feature::BridgeConntrack, Feature::NftInet);
    let cluster = Cluster::new(&host);
    policy(
        &host,
        "db",
        &json!({ "policyTypes": ["Ingress", "Egress"], "egress": [{}],
        "ingress": [{ "ports": [{ "protocol": "UDP", "port": ALLOWED }] }] }),
    );
    let pods = attach(&host, &cluster, &bridged());
    // The rule for packets past the bridge, and the protection from routed packets.
    let others = [
        "flush map inet weft-policy links-in",
        "flush chain inet weft-policy tracking",
        "delete table inet weft-policy",
    ];
    assert_loss_is_restored(&host, &pods, "bridge", &others);
}

#[test]
fn network_policy_flushed_on_the_host_is_restored_on_ptp() {
    let host = host!(Feature::Veth, Feature::NftInet);
    let cluster = Cluster::new(&host);
    policies(&host);
    let pods = attach(&host, &cluster, &json!({ "type": "ptp" }));
    assert_loss_is_restored(&host, &pods, "inet", &[]);
}

/// `web` may reach `other` only. It sends to it with the address of `db`, and then to `db` with the address of `other`: the
/// answer of the connection, if the kernel tracked it.
fn assert_no_forged_reply(host: &Host, pods: &[(Pod, Attachment<'_>)], family: &str) {
    let [db, web, other] = [0, 1, 2].map(|index| &pods[index].0);
    for address in ["10.9.0.11", "10.9.0.13"] {
        web.run(["ip", "address", "add", &format!("{address}/32"), "dev", "lo"]);
    }
    // Packets to them leave the pod nevertheless.
    for rule in ["add pref 1 iif lo lookup main", "add pref 2 lookup local", "del pref 0"] {
        web.run(["ip", "rule"].into_iter().chain(rule.split(' ')));
    }
    if family == "bridge" {
        for (pod, address) in [(db, "10.9.0.11"), (other, "10.9.0.13")] {
            let mac =
                rig::link(pod, "net1").expect("net1")["address"].as_str().expect("an address").to_owned();
            web.run([
                "ip",
                "neighbour",
                "replace",
                address,
                "lladdr",
                &mac,
                "dev",
                "net1",
                "nud",
                "permanent",
            ]);
        }
    }
    let (at_other, at_db) = (listen(other, 9998), listen(db, FORBIDDEN));
    let (as_db, as_other) = (sender(web, "10.9.0.11:9999"), sender(web, "10.9.0.13:9998"));
    let attempt = |expected: bool| {
        assert!(arrives(&as_db, "10.9.0.13:9998", &at_other, 8, true), "the forged packet arrives at other");
        arrives(&as_other, "10.9.0.11:9999", &at_db, 8, expected)
    };
    assert!(!attempt(false), "a forged connection lets packets leave");
    host.run(["nft", "flush", "chain", family, "weft-policy", "tracking"]);
    assert!(attempt(true), "without the chain they leave");
}

/// `web` may send to `other` only.
fn egress_policy(host: &Host) {
    let egress = json!([{ "to": [{ "ipBlock": { "cidr": "10.9.0.13/32" } }] }]);
    policy(host, "web", &json!({ "policyTypes": ["Egress"], "egress": egress }));
}

#[test]
fn network_policy_forged_reply_does_not_leave_on_bridge() {
    let host = host!(Feature::Bridge, Feature::BridgeConntrack, Feature::NftInet);
    let cluster = Cluster::new(&host);
    egress_policy(&host);
    let pods = attach(&host, &cluster, &bridged());
    assert_no_forged_reply(&host, &pods, "bridge");
}

#[test]
fn network_policy_forged_reply_does_not_leave_on_ptp() {
    let host = host!(Feature::Veth, Feature::NftInet);
    let cluster = Cluster::new(&host);
    egress_policy(&host);
    let pods = attach(&host, &cluster, &json!({ "type": "ptp" }));
    assert_no_forged_reply(&host, &pods, "inet");
}
