//! Tests for network policies with every pair among nine pods: namespaces x, y, z, pods a, b, c in each, ports 80 and
//! 81, TCP and UDP, IPv4 and IPv6. Each case has a truth table as a separate function, not weft's verdict.
//!
//! ```text
//!   x/a 10.9.0.11, x/b 10.9.0.12, x/c …13, y/a …14, …, z/c …19      fd00:9::11, …
//! ```
//!
//! Source: the matrix of Kubernetes' end-to-end tests of NetworkPolicy.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rig::Cluster;
use rig::cluster::{MANIFESTS, NAMESPACE, bridge, configuration};
use rig::traffic::outside;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, getpeername, socket_with};
use serde_json::{Value, json};
use testkit::{Attachment, Feature, Host, Netns, Pod, host};

const NAMESPACES: [&str; 3] = ["x", "y", "z"];
const PODS: [&str; 3] = ["a", "b", "c"];
const PORTS: [u16; 2] = [80, 81];

/// Limit for packets that are allowed.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Time for packets that are forbidden, after all allowed ones have arrived.
const GRACE: Duration = Duration::from_millis(300);

/// Pod of the matrix, by namespace and name.
type Place = (&'static str, &'static str);

/// Connection of the matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Probe {
    from: Place,
    to: Place,
    is_tcp: bool,
    port: u16,
    is_v4: bool,
}

/// Policies with the truth table that they mean.
struct Case {
    name: &'static str,
    /// Namespace and `spec` of each policy.
    policies: Vec<(&'static str, Value)>,
    is_allowed: fn(&Probe) -> bool,
}

fn selected(name: &str) -> Value {
    json!({ "matchLabels": { "pod": name } })
}

fn cases() -> Vec<Case> {
    let in_y_or_z = json!({ "matchExpressions": [{ "key": "ns", "operator": "In", "values": ["y", "z"] }] });
    let b_or_c = json!({ "matchExpressions": [{ "key": "pod", "operator": "NotIn", "values": ["a"] }] });
    vec![
        Case {
            name: "peers and ports",
            policies: vec![(
                "x",
                json!({ "podSelector": selected("a"), "policyTypes": ["Ingress"], "ingress": [
                    { "from": [{ "podSelector": selected("b") }], "ports": [{ "port": 80 }] },
                    { "from": [{ "namespaceSelector": in_y_or_z, "podSelector": b_or_c }],
                        "ports": [{ "protocol": "UDP", "port": 81 }] },
                ] }),
            )],
            is_allowed: |Probe { from, to, is_tcp, port, .. }| {
                *to != ("x", "a")
                    || (*from == ("x", "b") && *is_tcp && *port == 80)
                    || (from.0 != "x" && from.1 != "a" && !is_tcp && *port == 81)
            },
        },
        Case {
            name: "egress and ingress",
            policies: vec![
                (
                    "y",
                    json!({ "podSelector": selected("b"), "policyTypes": ["Egress"], "egress": [
                    { "to": [{ "namespaceSelector": { "matchLabels": { "ns": "z" } } }], "ports": [{ "port": 81 }] },
                ] }),
                ),
                (
                    "z",
                    json!({ "podSelector": selected("c"), "policyTypes": ["Ingress", "Egress"], "ingress": [
                    { "from": [{ "namespaceSelector": {} }], "ports": [{ "port": 80, "endPort": 81 }] },
                ] }),
                ),
            ],
            is_allowed: |Probe { from, to, is_tcp, port, .. }| {
                (*from != ("y", "b") || (to.0 == "z" && *is_tcp && *port == 81))
                    && *from != ("z", "c")
                    && (*to != ("z", "c") || *is_tcp)
            },
        },
    ]
}

/// More cases, for a processor that is not emulated.
fn more_cases() -> Vec<Case> {
    let blocks = json!([
        { "ipBlock": { "cidr": "10.9.0.0/24", "except": ["10.9.0.12/32", "10.9.0.16/30"] } },
        { "ipBlock": { "cidr": "fd00:9::/64", "except": ["fd00:9::12/128", "fd00:9::16/127", "fd00:9::18/127"] } },
    ]);
    vec![
        Case {
            name: "a namespace for itself",
            policies: vec![
                (
                    "x",
                    json!({ "podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{ "from": [{ "podSelector": {} }] }] }),
                ),
                ("y", json!({ "podSelector": {}, "policyTypes": ["Egress"] })),
            ],
            is_allowed: |Probe { from, to, .. }| (to.0 != "x" || from.0 == "x") && from.0 != "y",
        },
        Case {
            name: "blocks with exceptions",
            policies: vec![(
                "z",
                json!({ "podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{ "from": blocks }] }),
            )],
            // The exceptions are x/b, and y/c to z/c.
            is_allowed: |Probe { from, to, .. }| {
                to.0 != "z" || !(*from == ("x", "b") || from.0 == "z" || *from == ("y", "c"))
            },
        },
        Case {
            name: "several policies of one pod",
            policies: vec![
                ("x", json!({ "podSelector": selected("c"), "policyTypes": ["Ingress"] })),
                (
                    "x",
                    json!({ "podSelector": selected("c"), "policyTypes": ["Ingress"],
                    "ingress": [{ "from": [{ "namespaceSelector": { "matchLabels": { "ns": "y" } } }] }] }),
                ),
                (
                    "x",
                    json!({ "podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{ "ports": [{ "port": 80 }] }] }),
                ),
            ],
            is_allowed: |Probe { from, to, is_tcp, port, .. }| {
                to.0 != "x" || (*is_tcp && *port == 80) || (to.1 == "c" && from.0 == "y")
            },
        },
    ]
}

fn places() -> impl Iterator<Item = Place> {
    NAMESPACES.into_iter().flat_map(|namespace| PODS.map(|pod| (namespace, pod)))
}

fn address(index: usize, is_v4: bool) -> IpAddr {
    let text = if is_v4 { format!("10.9.0.{}", 11 + index) } else { format!("fd00:9::{}", 11 + index) };
    text.parse().expect("an address")
}

fn probes() -> impl Iterator<Item = Probe> {
    let pairs = places().flat_map(|from| places().filter(move |to| *to != from).map(move |to| (from, to)));
    pairs.flat_map(|(from, to)| {
        PORTS.into_iter().flat_map(move |port| {
            [(true, true), (true, false), (false, true), (false, false)].map(move |(is_tcp, is_v4)| Probe {
                from,
                to,
                is_tcp,
                port,
                is_v4,
            })
        })
    })
}

/// Writes namespaces and pods; pod number `n` selects the network that `network` names.
fn manifests(host: &Host, network: &dyn Fn(usize) -> String) {
    for namespace in NAMESPACES {
        let object = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace, "labels": { "ns": namespace } } });
        host.write(format!("{MANIFESTS}/namespace-{namespace}.json"), object.to_string());
    }
    for (index, (namespace, name)) in places().enumerate() {
        let ips = [format!("{}/24", address(index, true)), format!("{}/64", address(index, false))];
        let networks = json!([{ "name": network(index), "namespace": NAMESPACE, "ips": ips }]).to_string();
        let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": namespace,
            "labels": { "pod": name }, "annotations": { "k8s.v1.cni.cncf.io/networks": networks } } });
        host.write(format!("{MANIFESTS}/pod-{namespace}-{name}.json"), pod.to_string());
    }
}

fn write_policies(host: &Host, policies: &[(&str, Value)], networks: &str) {
    host.run(["sh", "-c", &format!("rm -f {MANIFESTS}/policy-*")]);
    for (index, (namespace, spec)) in policies.iter().enumerate() {
        let policy = json!({ "apiVersion": "k8s.cni.cncf.io/v1beta2", "kind": "MultiNetworkPolicy",
            "metadata": { "name": format!("p{index}"), "namespace": namespace,
                "annotations": { "k8s.v1.cni.cncf.io/policy-for": networks } },
            "spec": spec });
        host.write(format!("{MANIFESTS}/policy-{index}.json"), policy.to_string());
    }
}

/// Attached pod and the servers in it.
struct Member<'a> {
    place: Place,
    pod: &'a Pod,
    attachment: Attachment<'a>,
    listeners: Vec<TcpListener>,
    sockets: Vec<(u16, UdpSocket)>,
}

impl<'a> Member<'a> {
    fn attach(cluster: &Cluster<'a>, pod: &'a Pod, place: Place, config: &Value) -> Member<'a> {
        let mut attachment = cluster.attachment(pod);
        let (namespace, name) = place;
        attachment.args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name}");
        attachment.add(config).success();
        let (listeners, sockets) = pod.within(|| {
            let listen = |port| TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).expect("listen");
            let bind = |port| (port, UdpSocket::bind((Ipv6Addr::UNSPECIFIED, port)).expect("a socket"));
            (PORTS.map(listen), PORTS.map(bind))
        });
        sockets.iter().for_each(|(_, socket)| socket.set_nonblocking(true).expect("not to wait"));
        Member { place, pod, attachment, listeners: listeners.into(), sockets: sockets.into() }
    }

    /// Begins all connections from this pod, and sends datagrams that contain the pod's index.
    fn begin(&self, index: usize) -> Vec<(Probe, OwnedFd)> {
        let own: Vec<Probe> = probes().filter(|probe| probe.from == self.place).collect();
        self.pod.within(|| {
            let socket = UdpSocket::bind("[::]:0").expect("a socket");
            let mut begun = Vec::new();
            for probe in own {
                let to = places().position(|place| place == probe.to).expect("a pod");
                let to = SocketAddr::new(address(to, probe.is_v4), probe.port);
                if probe.is_tcp {
                    begun.push((probe, connecting(to)));
                    continue;
                }
                let mapped = match to.ip() {
                    IpAddr::V4(address) => address.to_ipv6_mapped(),
                    IpAddr::V6(address) => address,
                };
                // A local refusal is the error of an earlier datagram.
                let word = [index as u8];
                let _ = socket
                    .send_to(&word, (mapped, to.port()))
                    .or_else(|_| socket.send_to(&word, (mapped, to.port())));
            }
            begun
        })
    }

    /// Returns the datagrams that have arrived.
    fn received(&self) -> Vec<Probe> {
        let mut found = Vec::new();
        for (port, socket) in &self.sockets {
            let mut word = [0; 4];
            while let Ok((_, from)) = socket.recv_from(&mut word) {
                let sender = places().nth(usize::from(word[0])).expect("a pod");
                let is_v4 = from.ip().to_canonical().is_ipv4();
                found.push(Probe { from: sender, to: self.place, is_tcp: false, port: *port, is_v4 });
            }
        }
        found
    }
}

/// Returns a socket that connects, without waiting for it.
fn connecting(to: SocketAddr) -> OwnedFd {
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None).expect("a socket");
    let _ = connect(&socket, &to);
    socket
}

/// Runs all probes at once; returns those that passed.
fn passed(members: &[Member<'_>], expected: &BTreeSet<Probe>) -> BTreeSet<Probe> {
    let begun: Vec<(Probe, OwnedFd)> =
        members.iter().enumerate().flat_map(|(index, member)| member.begin(index)).collect();
    let (mut seen, until) = (BTreeSet::new(), Instant::now() + TIMEOUT);
    let look = |seen: &mut BTreeSet<Probe>| {
        seen.extend(members.iter().flat_map(Member::received));
        seen.extend(begun.iter().filter(|(_, socket)| getpeername(socket).is_ok()).map(|(probe, _)| *probe));
    };
    while !expected.is_subset(&seen) && Instant::now() < until {
        look(&mut seen);
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(GRACE);
    look(&mut seen);
    seen
}

/// Runs cases on a network, with the first plugin's configuration for pod number `n`.
fn run(host: &Host, cases: Vec<Case>, plugin: &dyn Fn(usize) -> Value) {
    let cluster = Cluster::new(host);
    host.run(["sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"]);
    let config = configuration(&bridge("pods", 8));
    let network =
        |index: usize| if plugin(0) == plugin(1) { "data".to_owned() } else { format!("data{index}") };
    let names: BTreeSet<String> = (0..9).map(network).collect();
    for index in 0..9 {
        let mut first = plugin(index);
        first["capabilities"] = json!({ "ips": true });
        let ranges = json!([[{ "subnet": "10.9.0.0/24" }], [{ "subnet": "fd00:9::/64" }]]);
        first["ipam"] = json!({ "type": "host-local", "ranges": ranges });
        let name = network(index);
        cluster.definition(&name, &json!({ "cniVersion": "1.1.0", "name": name, "plugins": [first] }));
    }
    let qualified: Vec<String> = names.iter().map(|name| format!("{NAMESPACE}/{name}")).collect();
    manifests(host, &network);
    let pods: Vec<Pod> = places().map(|(namespace, name)| host.pod(&format!("{namespace}-{name}"))).collect();
    for Case { name, policies, is_allowed } in cases {
        write_policies(host, &policies, &qualified.join(","));
        let attach = |(pod, place)| Member::attach(&cluster, pod, place, &config);
        let members: Vec<Member<'_>> = pods.iter().zip(places()).map(attach).collect();
        let expected: BTreeSet<Probe> = probes().filter(is_allowed).collect();
        let seen = passed(&members, &expected);
        let missing: Vec<&Probe> = expected.difference(&seen).collect();
        let forbidden: Vec<&Probe> = seen.difference(&expected).collect();
        assert!(
            missing.is_empty(),
            "{name}: {} allowed probes failed: {:?}",
            missing.len(),
            &missing[..missing.len().min(5)]
        );
        assert!(
            forbidden.is_empty(),
            "{name}: {} forbidden probes passed: {:?}",
            forbidden.len(),
            &forbidden[..forbidden.len().min(5)]
        );
        for Member { place: _, pod: _, attachment, listeners, sockets } in members {
            drop((listeners, sockets));
            attachment.del(&config).success();
        }
    }
}

fn all_cases() -> Vec<Case> {
    let mut all = cases();
    if !Feature::Guest.is_present() {
        all.extend(more_cases());
    }
    all
}

/// Creates an outside world behind a bond of two links.
pub(crate) fn bonded(host: &Host) -> Pod {
    let outside = host.pod("outside");
    outside.run(["ip", "link", "add", "br0", "up", "type", "bridge"]);
    host.run(["ip", "link", "add", "bond0", "type", "bond", "mode", "active-backup", "miimon", "10"]);
    for link in ["w0", "w1"] {
        host.run(["ip", "link", "add", link, "type", "veth", "peer", "name", link, "netns", "outside"]);
        host.run(["ip", "link", "set", link, "master", "bond0"]);
        outside.run(["ip", "link", "set", link, "master", "br0", "up"]);
    }
    host.run(["ip", "link", "set", "bond0", "up"]);
    outside
}

#[test]
fn network_policy_matrix_on_bridge() {
    let host = host!(Feature::Bridge, Feature::NftInet);
    run(&host, all_cases(), &|_| json!({ "type": "bridge", "bridge": "br9" }));
}

/// With the rules at the ports of the bridge.
#[test]
fn network_policy_matrix_on_bridge_port() {
    let host = host!(Feature::Bridge, Feature::BridgeConntrack, Feature::NftInet);
    run(&host, all_cases(), &|_| json!({ "type": "bridge", "bridge": "br9" }));
}

#[test]
fn network_policy_matrix_on_ptp() {
    run(&host!(Feature::Veth, Feature::NftInet), all_cases(), &|_| json!({ "type": "ptp" }));
}

#[test]
fn network_policy_matrix_on_macvlan() {
    let host = host!(Feature::Macvlan, Feature::NftInet);
    let _outside = outside(&host);
    run(&host, all_cases(), &|_| json!({ "type": "macvlan", "master": "up0" }));
}

#[test]
fn network_policy_matrix_on_ipvlan() {
    let host = host!(Feature::Ipvlan, Feature::NftInet);
    let _outside = outside(&host);
    run(&host, all_cases(), &|_| json!({ "type": "ipvlan", "master": "up0" }));
}

#[test]
fn network_policy_matrix_on_bond() {
    let host = host!(Feature::Bond, Feature::Macvlan, Feature::NftInet);
    let _outside = bonded(&host);
    run(&host, all_cases(), &|_| json!({ "type": "macvlan", "master": "bond0" }));
}

/// A VLAN exists only once on a parent, so each pod has a separate parent, all connected to one switch outside.
#[test]
fn network_policy_matrix_on_vlan() {
    let host = host!(Feature::Vlan, Feature::NftInet);
    let switch: &Netns = &host.pod("switch");
    switch.run(["ip", "link", "add", "br0", "up", "type", "bridge"]);
    for index in 0..9 {
        let link = format!("w{index}");
        host.run([
            "ip", "link", "add", &link, "up", "type", "veth", "peer", "name", &link, "netns", "switch",
        ]);
        switch.run(["ip", "link", "set", &link, "master", "br0", "up"]);
    }
    run(&host, all_cases(), &|index| json!({ "type": "vlan", "master": format!("w{index}"), "vlanId": 5 }));
}
