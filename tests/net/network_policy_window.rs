//! Tests that no forbidden packet reaches a pod while it starts: a sender never stops, and the pod starts again and again.
//!
//! ```text
//!   web ── UDP 9999 (forbidden) and 53 (allowed), IPv4 and IPv6, without a pause ──► db: ADD, DEL, ADD, DEL, …
//! ```
//!
//! - Both sockets on `db` listen before the first ADD. A start is over when an allowed packet in each family
//!   has arrived.
//! - Where a plugin sets hardware addresses, `web` knows the one on `db`: so packets arrive before any announcement.
//! - `WEFT_POLICY_STARTS` sets how often the pod starts (default: 50; 5 in the guest, whose processor is
//!   emulated).

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rig::Cluster;
use rig::cluster::{MANIFESTS, NAMESPACE, bridge, configuration};
use rig::traffic::outside;
use serde_json::{Value, json};
use testkit::{Attachment, Feature, Host, Pod, host};

/// Hardware address of `db`.
const MAC: &str = "02:00:00:00:09:0b";
/// Addresses of `db` and `web`.
const DB: [&str; 2] = ["10.9.0.11", "fd00:9::11"];
const WEB: [&str; 2] = ["10.9.0.12", "fd00:9::12"];
const FORBIDDEN: u16 = 9999;
const ALLOWED: u16 = 53;

/// Limit for a start: allowed packets arrive.
const TIMEOUT: Duration = Duration::from_secs(20);

fn starts() -> usize {
    let default = if Feature::Guest.is_present() { 5 } else { 50 };
    std::env::var("WEFT_POLICY_STARTS").map_or(default, |text| text.parse().expect("a number of starts"))
}

/// Plugin of the network of `db` and of that of `web`, and whether `db` gets a fixed hardware address.
struct Networks {
    db: Value,
    web: Value,
    has_mac: bool,
}

impl Networks {
    fn of(plugin: Value, has_mac: bool) -> Networks {
        Networks { db: plugin.clone(), web: plugin, has_mac }
    }
}

/// Writes the definitions, the pods and the policy.
fn manifests(host: &Host, cluster: &Cluster<'_>, networks: &Networks) {
    let Networks { db, web, has_mac } = networks;
    for (name, plugin) in [("data", db), ("peer", web)] {
        let mut first = plugin.clone();
        first["capabilities"] = json!({ "ips": true, "mac": has_mac });
        let ranges = json!([[{ "subnet": "10.9.0.0/24" }], [{ "subnet": "fd00:9::/64" }]]);
        first["ipam"] = json!({ "type": "host-local", "ranges": ranges });
        cluster.definition(name, &json!({ "cniVersion": "1.1.0", "name": name, "plugins": [first] }));
    }
    for (name, network, [four, six]) in [("db", "data", DB), ("web", "peer", WEB)] {
        let mut network = json!({ "name": network, "ips": [format!("{four}/24"), format!("{six}/64")] });
        if *has_mac && name == "db" {
            network["mac"] = MAC.into();
        }
        let annotations = json!({ "k8s.v1.cni.cncf.io/networks": json!([network]).to_string() });
        let metadata = json!({ "name": name, "namespace": NAMESPACE, "labels": { "app": name }, "annotations": annotations });
        let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata });
        host.write(format!("{MANIFESTS}/pod-{name}.json"), pod.to_string());
    }
    let policy = json!({ "apiVersion": "k8s.cni.cncf.io/v1beta2", "kind": "MultiNetworkPolicy",
        "metadata": { "name": "db", "namespace": NAMESPACE, "annotations": { "k8s.v1.cni.cncf.io/policy-for": "data" } },
        "spec": { "podSelector": { "matchLabels": { "app": "db" } }, "policyTypes": ["Ingress"],
            "ingress": [{ "ports": [{ "protocol": "UDP", "port": ALLOWED }] }] } });
    host.write(format!("{MANIFESTS}/policy.json"), policy.to_string());
}

fn listen(pod: &Pod, port: u16) -> UdpSocket {
    let socket = pod.within(|| UdpSocket::bind(("::", port))).expect("listen");
    socket.set_nonblocking(true).expect("not to wait");
    socket
}

/// Returns the sources of the packets that have arrived.
fn arrived(socket: &UdpSocket) -> Vec<IpAddr> {
    let mut buffer = [0; 16];
    std::iter::from_fn(|| socket.recv_from(&mut buffer).ok())
        .map(|(_, from)| from.ip().to_canonical())
        .collect()
}

/// Sends to both ports of both addresses of `db` until the end.
fn send(sockets: &[UdpSocket; 2], is_over: &AtomicBool) {
    while !is_over.load(Ordering::Relaxed) {
        for (socket, address) in sockets.iter().zip(DB) {
            for port in [FORBIDDEN, ALLOWED] {
                let to = SocketAddr::new(address.parse().expect("an address"), port);
                // Fails while the neighbour is unknown.
                let _ = socket.send_to(b"packet", to);
            }
        }
    }
}

/// Repeats ADD until it succeeds: the kernel frees the VLAN of a deleted pod with a delay.
fn add_in_time(attachment: &Attachment<'_>, config: &Value) {
    let until = Instant::now() + TIMEOUT;
    loop {
        let added = attachment.add(config);
        if added.code == Some(0) || rig::refusal(&added).0 != 11 || Instant::now() > until {
            drop(added.success());
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Starts and stops `db` beside a sender, and fails on the first forbidden packet.
fn assert_no_window(case: &str, host: &Host, networks: &Networks) {
    let cluster = Cluster::new(host);
    host.run(["sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"]);
    manifests(host, &cluster, networks);
    let config = configuration(&bridge("pods", 8));
    let (db, web) = (host.pod("db"), host.pod("web"));
    cluster.attachment(&web).add(&config).success();
    if networks.has_mac {
        for address in DB {
            web.run([
                "ip",
                "neighbour",
                "replace",
                address,
                "lladdr",
                MAC,
                "dev",
                "net1",
                "nud",
                "permanent",
            ]);
        }
    }
    let (forbidden, allowed) = (listen(&db, FORBIDDEN), listen(&db, ALLOWED));
    let sockets = ["0.0.0.0:0", "[::]:0"].map(|any| web.within(|| UdpSocket::bind(any)).expect("a socket"));
    let is_over = AtomicBool::new(false);
    let attachment = cluster.attachment(&db);
    let start = |number: usize| {
        arrived(&allowed);
        add_in_time(&attachment, &config);
        let (mut seen, until) = (Vec::new(), Instant::now() + TIMEOUT);
        while !(seen.iter().any(IpAddr::is_ipv4) && seen.iter().any(IpAddr::is_ipv6)) {
            assert!(
                Instant::now() < until,
                "{case}: start {number}: allowed packets arrived from {seen:?} only"
            );
            seen.extend(arrived(&allowed));
            std::thread::yield_now();
        }
        attachment.del(&config).success();
        let passed = arrived(&forbidden);
        assert!(
            passed.is_empty(),
            "{case}: start {number}: {} forbidden packets arrived, from {:?}",
            passed.len(),
            passed[0]
        );
    };
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| send(&sockets, &is_over));
        // The sender must end, also if a start fails.
        let outcome =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| (0..starts()).for_each(start)));
        is_over.store(true, Ordering::Relaxed);
        sender.join().expect("the sender ends");
        if let Err(failure) = outcome {
            std::panic::resume_unwind(failure);
        }
    });
}

#[test]
fn network_policy_leaves_no_window_on_bridge() {
    let host = host!(Feature::Bridge, Feature::NftInet);
    assert_no_window("bridge", &host, &Networks::of(json!({ "type": "bridge", "bridge": "br9" }), true));
}

/// With the rules at the ports of the bridge.
#[test]
fn network_policy_leaves_no_window_on_bridge_port() {
    let host = host!(Feature::Bridge, Feature::BridgeConntrack, Feature::NftInet);
    assert_no_window("bridge", &host, &Networks::of(json!({ "type": "bridge", "bridge": "br9" }), true));
}

#[test]
fn network_policy_leaves_no_window_on_ptp() {
    let host = host!(Feature::Veth, Feature::NftInet);
    assert_no_window("ptp", &host, &Networks::of(json!({ "type": "ptp" }), false));
}

#[test]
fn network_policy_leaves_no_window_on_macvlan() {
    let host = host!(Feature::Macvlan, Feature::NftInet);
    let _outside = outside(&host);
    assert_no_window("macvlan", &host, &Networks::of(json!({ "type": "macvlan", "master": "up0" }), true));
}

#[test]
fn network_policy_leaves_no_window_on_ipvlan() {
    let host = host!(Feature::Ipvlan, Feature::NftInet);
    let _outside = outside(&host);
    assert_no_window("ipvlan", &host, &Networks::of(json!({ "type": "ipvlan", "master": "up0" }), false));
}

#[test]
fn network_policy_leaves_no_window_on_vlan() {
    let host = host!(Feature::Vlan, Feature::NftInet);
    let switch = host.pod("switch");
    switch.run(["ip", "link", "add", "br0", "up", "type", "bridge"]);
    for link in ["w0", "w1"] {
        host.run(["ip", "link", "add", link, "up", "type", "veth", "peer", "name", link, "netns", "switch"]);
        switch.run(["ip", "link", "set", link, "master", "br0", "up"]);
    }
    let on = |master: &str| json!({ "type": "vlan", "master": master, "vlanId": 5 });
    assert_no_window("vlan", &host, &Networks { db: on("w0"), web: on("w1"), has_mac: false });
}

#[test]
fn network_policy_leaves_no_window_on_bond() {
    let host = host!(Feature::Bond, Feature::Macvlan, Feature::NftInet);
    let _outside = crate::network_policy_matrix::bonded(&host);
    assert_no_window("bond", &host, &Networks::of(json!({ "type": "macvlan", "master": "bond0" }), true));
}
