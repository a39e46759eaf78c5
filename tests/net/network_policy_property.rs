//! Property: `weft explain` and the traffic agree, for random policies, pods and plugins.
//!
//! ```text
//!   x/a, x/b, y/c, y/d: each on the networks `data` 10.9.1.0/24 and `back` 10.9.2.0/24, both families; often on one link
//! ```
//!
//! The test runs for [`TIME`], or for `WEFT_PROPERTY_SECONDS`. A failure shows the seed; `WEFT_PROPERTY_SEED` repeats a
//! run.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rig::Cluster;
use rig::cluster::{MANIFESTS, NAMESPACE, bridge, configuration};
use rig::traffic::outside;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, getpeername, socket_with};
use serde_json::{Value, json};
use testkit::{Attachment, Feature, Host, Pod, host};

/// Time for a run: a part of the lane's time.
const TIME: Duration = Duration::from_secs(20);
/// Limit for packets that are allowed.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Time for packets that are forbidden, after all allowed ones have arrived.
const GRACE: Duration = Duration::from_millis(300);

/// Namespace and name of the pods; each pod has one label, and so has each namespace.
const PODS: [(&str, &str); 4] = [("x", "a"), ("x", "b"), ("y", "c"), ("y", "d")];
/// Networks, with the third number in the addresses.
const NETWORKS: [(&str, u8); 2] = [("data", 1), ("back", 2)];
/// Ports of the servers.
const PORTS: [u16; 3] = [80, 81, 5000];

/// Random numbers: xorshift.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % limit as u64).expect("a small number")
    }

    fn pick<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }

    fn list(&mut self, max: usize, mut element: impl FnMut(&mut Random) -> Value) -> Value {
        let count = self.below(max + 1);
        (0..count).map(|_| element(self)).collect::<Vec<_>>().into()
    }
}

fn address(pod: usize, network: usize, is_v4: bool) -> IpAddr {
    let number = NETWORKS[network].1;
    let text = match is_v4 {
        true => format!("10.9.{number}.{}", 11 + pod),
        false => format!("fd00:9:{number}::{}", 11 + pod),
    };
    text.parse().expect("an address")
}

/// One connection of the matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Probe {
    from: usize,
    to: usize,
    network: usize,
    is_tcp: bool,
    port: u16,
    is_v4: bool,
}

fn probes() -> impl Iterator<Item = Probe> {
    let pairs = (0..PODS.len())
        .flat_map(|from| (0..PODS.len()).filter(move |to| *to != from).map(move |to| (from, to)));
    pairs.flat_map(|(from, to)| {
        (0..NETWORKS.len()).flat_map(move |network| {
            PORTS.into_iter().flat_map(move |port| {
                [(true, true), (true, false), (false, true), (false, false)]
                    .map(move |(is_tcp, is_v4)| Probe { from, to, network, is_tcp, port, is_v4 })
            })
        })
    })
}

// === random objects ===

fn selector(random: &mut Random) -> Value {
    match random.below(4) {
        0 => json!({}),
        1 => json!({ "matchLabels": { "pod": random.pick(&PODS).1 } }),
        2 => {
            json!({ "matchExpressions": [{ "key": "pod", "operator": "NotIn", "values": [random.pick(&PODS).1] }] })
        }
        _ => json!({ "matchLabels": { "odd": (random.below(2)).to_string() } }),
    }
}

fn block(random: &mut Random) -> Value {
    let network = random.below(2);
    let number = NETWORKS[network].1;
    let pod = address(random.below(PODS.len()), network, random.below(2) == 0);
    let length = if pod.is_ipv4() { 32 } else { 128 };
    match random.below(4) {
        0 => json!({ "cidr": format!("10.9.{number}.0/24") }),
        1 => json!({ "cidr": format!("fd00:9:{number}::/64") }),
        2 => json!({ "cidr": format!("{pod}/{length}") }),
        _ => match pod {
            IpAddr::V4(_) => json!({ "cidr": "10.9.0.0/16", "except": [format!("{pod}/32")] }),
            IpAddr::V6(_) => json!({ "cidr": "fd00:9::/32", "except": [format!("{pod}/128")] }),
        },
    }
}

fn peer(random: &mut Random) -> Value {
    match random.below(4) {
        0 => json!({ "podSelector": selector(random) }),
        1 => json!({ "namespaceSelector": { "matchLabels": { "ns": random.pick(&["x", "y"]) } } }),
        2 => json!({ "namespaceSelector": {}, "podSelector": selector(random) }),
        _ => json!({ "ipBlock": block(random) }),
    }
}

fn port(random: &mut Random) -> Value {
    let protocol = *random.pick(&["TCP", "UDP"]);
    match random.below(4) {
        0 => json!({ "protocol": protocol, "port": *random.pick(&PORTS) }),
        1 => json!({ "protocol": protocol, "port": 80, "endPort": *random.pick(&[80, 81, 6000]) }),
        2 => json!({ "protocol": protocol, "port": "web" }),
        _ => json!({ "protocol": protocol }),
    }
}

fn policy(random: &mut Random, number: usize) -> Value {
    let names = ["blue/data", "blue/back", "blue/data, blue/back"];
    let version = *random.pick(&["v1beta1", "v1beta2"]);
    let types = *random.pick(&[&["Ingress"][..], &["Egress"], &["Ingress", "Egress"]]);
    let rules = |random: &mut Random, peers: &str| {
        random.list(2, |random| json!({ peers: random.list(2, peer), "ports": random.list(2, port) }))
    };
    let (ingress, egress) = (rules(random, "from"), rules(random, "to"));
    json!({ "apiVersion": format!("k8s.cni.cncf.io/{version}"), "kind": "MultiNetworkPolicy",
        "metadata": { "name": format!("p{number}"), "namespace": *random.pick(&["x", "y"]),
            "annotations": { "k8s.v1.cni.cncf.io/policy-for": *random.pick(&names) } },
        "spec": { "podSelector": selector(random), "policyTypes": types, "ingress": ingress, "egress": egress } })
}

/// Plugins of the two networks.
fn plugins(random: &mut Random) -> [Value; 2] {
    let kinds = [
        json!({ "type": "bridge", "bridge": "br9" }),
        json!({ "type": "ptp" }),
        json!({ "type": "macvlan", "master": "up0" }),
    ];
    let first = random.pick(&kinds).clone();
    let second = if random.below(2) == 0 { first.clone() } else { random.pick(&kinds).clone() };
    [first, second]
}

fn write(host: &Host, name: &str, object: &Value) {
    host.write(format!("{MANIFESTS}/{name}.json"), object.to_string());
}

/// Writes the manifests of a round.
fn manifests(host: &Host, cluster: &Cluster<'_>, random: &mut Random) {
    host.run(["sh", "-c", &format!("rm -f {MANIFESTS}/policy-*")]);
    for namespace in ["x", "y"] {
        let object = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace, "labels": { "ns": namespace } } });
        write(host, &format!("namespace-{namespace}"), &object);
    }
    for ((name, number), mut first) in NETWORKS.into_iter().zip(plugins(random)) {
        first["capabilities"] = json!({ "ips": true });
        let ranges = json!([[{ "subnet": format!("10.9.{number}.0/24") }], [{ "subnet": format!("fd00:9:{number}::/64") }]]);
        first["ipam"] = json!({ "type": "host-local", "ranges": ranges });
        cluster.definition(name, &json!({ "cniVersion": "1.1.0", "name": name, "plugins": [first] }));
    }
    for (index, (namespace, name)) in PODS.into_iter().enumerate() {
        let networks: Vec<Value> = (0..NETWORKS.len())
            .map(|network| {
                let ips = [
                    format!("{}/24", address(index, network, true)),
                    format!("{}/64", address(index, network, false)),
                ];
                json!({ "name": NETWORKS[network].0, "namespace": NAMESPACE, "ips": ips })
            })
            .collect();
        let ports: Vec<Value> = [("TCP", *random.pick(&PORTS)), ("UDP", *random.pick(&PORTS))]
            [..random.below(2)]
            .iter()
            .map(|(protocol, port)| json!({ "name": "web", "protocol": protocol, "containerPort": port }))
            .collect();
        let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": namespace,
                "labels": { "pod": name, "odd": (index % 2).to_string() },
                "annotations": { "k8s.v1.cni.cncf.io/networks": json!(networks).to_string() } },
            "spec": { "containers": [{ "name": "main", "ports": ports }] } });
        write(host, &format!("pod-{namespace}-{name}"), &pod);
    }
    for number in 0..=random.below(3) {
        write(host, &format!("policy-{number}"), &policy(random, number));
    }
}

// === verdict and traffic ===

/// Returns the probes that `weft explain` says are allowed.
fn explained(host: &Host) -> BTreeSet<Probe> {
    let mut allowed = BTreeSet::new();
    for probe in probes().filter(|probe| probe.is_v4) {
        let name = |pod: usize| format!("{}/{}", PODS[pod].0, PODS[pod].1);
        let network = format!("{NAMESPACE}/{}", NETWORKS[probe.network].0);
        let (from, to, port) = (name(probe.from), name(probe.to), probe.port.to_string());
        let transport = if probe.is_tcp { "--tcp" } else { "--udp" };
        let weft = testkit::binary("weft").display().to_string();
        let answer = host.run([
            &weft,
            "explain",
            "-f",
            MANIFESTS,
            "--network",
            &network,
            "--from",
            &from,
            "--to",
            &to,
            transport,
            &port,
            "-o",
            "json",
        ]);
        let answer: Value = serde_json::from_str(&answer).expect("JSON");
        for connection in answer["connections"].as_array().expect("connections") {
            if connection["allowed"] == json!(true) {
                allowed.insert(Probe { is_v4: connection["family"] == "IPv4", ..probe });
            }
        }
    }
    allowed
}

/// Attached pod and the servers in it.
struct Member<'a> {
    index: usize,
    pod: &'a Pod,
    attachment: Attachment<'a>,
    _listeners: Vec<TcpListener>,
    sockets: Vec<(Probe, UdpSocket)>,
}

impl<'a> Member<'a> {
    fn attach(cluster: &Cluster<'a>, pod: &'a Pod, index: usize, config: &Value) -> Member<'a> {
        let mut attachment = cluster.attachment(pod);
        let (namespace, name) = PODS[index];
        attachment.args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name}");
        attachment.add(config).success();
        let (listeners, sockets) = pod.within(|| {
            let listen = |port| TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).expect("listen");
            let mut sockets = Vec::new();
            for (network, port, is_v4) in (0..NETWORKS.len()).flat_map(|network| {
                PORTS.into_iter().flat_map(move |port| [true, false].map(|is_v4| (network, port, is_v4)))
            }) {
                let at = SocketAddr::new(address(index, network, is_v4), port);
                // The address is tentative for a moment.
                let socket = (0..200).find_map(|_| {
                    UdpSocket::bind(at).inspect_err(|_| std::thread::sleep(Duration::from_millis(20))).ok()
                });
                let probe = Probe { from: index, to: index, network, is_tcp: false, port, is_v4 };
                sockets.push((probe, socket.expect("a socket")));
            }
            (PORTS.map(listen), sockets)
        });
        sockets.iter().for_each(|(_, socket)| socket.set_nonblocking(true).expect("not to wait"));
        Member { index, pod, attachment, _listeners: listeners.into(), sockets }
    }

    /// Begins all connections from this pod, and sends datagrams that contain the pod's index.
    fn begin(&self) -> Vec<(Probe, OwnedFd)> {
        let own: Vec<Probe> = probes().filter(|probe| probe.from == self.index).collect();
        self.pod.within(|| {
            let mut begun = Vec::new();
            for probe in own {
                let to = SocketAddr::new(address(probe.to, probe.network, probe.is_v4), probe.port);
                if probe.is_tcp {
                    begun.push((probe, connecting(to)));
                    continue;
                }
                let from = SocketAddr::new(address(self.index, probe.network, probe.is_v4), 0);
                let socket = UdpSocket::bind(from).expect("a socket");
                // A rule in the pod refuses a forbidden one.
                let _ = socket.send_to(&[u8::try_from(self.index).expect("a small number")], to);
            }
            begun
        })
    }

    /// Returns the datagrams that have arrived.
    fn received(&self) -> Vec<Probe> {
        let mut found = Vec::new();
        for (probe, socket) in &self.sockets {
            let mut word = [0; 4];
            while socket.recv(&mut word).is_ok() {
                found.push(Probe { from: usize::from(word[0]), ..*probe });
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
    let mut begun: Vec<(Probe, OwnedFd)> = members.iter().flat_map(Member::begin).collect();
    let (mut seen, until) = (BTreeSet::new(), Instant::now() + TIMEOUT);
    let mut last = Instant::now();
    loop {
        seen.extend(members.iter().flat_map(Member::received));
        seen.extend(begun.iter().filter(|(_, socket)| getpeername(socket).is_ok()).map(|(probe, _)| *probe));
        if expected.is_subset(&seen) || Instant::now() > until {
            break;
        }
        // Datagrams to a neighbour that is not known yet may be lost.
        if last.elapsed() > Duration::from_secs(1) {
            begun.extend(members.iter().flat_map(Member::begin));
            last = Instant::now();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(GRACE);
    seen.extend(members.iter().flat_map(Member::received));
    seen.extend(begun.iter().filter(|(_, socket)| getpeername(socket).is_ok()).map(|(probe, _)| *probe));
    seen
}

fn shown(host: &Host) -> String {
    let mut text = String::new();
    for line in
        host.run(["sh", "-c", &format!("cat {MANIFESTS}/policy-*; grep -h type {MANIFESTS}/net-*")]).lines()
    {
        let _ = writeln!(text, "{line}");
    }
    text
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

#[test]
fn network_policy_verdict_is_the_traffic_for_random_policies() {
    let host = host!(Feature::Bridge, Feature::Veth, Feature::Macvlan, Feature::NftInet);
    let _outside = outside(&host);
    let cluster = Cluster::new(&host);
    host.run(["sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"]);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("the time").subsec_nanos();
    let seed = setting("WEFT_PROPERTY_SEED").unwrap_or(u64::from(now) | 1);
    let time = setting("WEFT_PROPERTY_SECONDS").map_or(TIME, Duration::from_secs);
    let (mut random, until) = (Random(seed), Instant::now() + time);
    let config = configuration(&bridge("pods", 8));
    let pods: Vec<Pod> =
        PODS.iter().map(|(namespace, name)| host.pod(&format!("{namespace}-{name}"))).collect();
    let (mut rounds, mut allowed) = (0, 0);
    while rounds == 0 || Instant::now() < until {
        manifests(&host, &cluster, &mut random);
        let expected = explained(&host);
        let attach = |(index, pod)| Member::attach(&cluster, pod, index, &config);
        let members: Vec<Member<'_>> = pods.iter().enumerate().map(attach).collect();
        let seen = passed(&members, &expected);
        let missing: Vec<&Probe> = expected.difference(&seen).collect();
        let forbidden: Vec<&Probe> = seen.difference(&expected).collect();
        let case = format!("seed {seed}, round {rounds}:\n{}", shown(&host));
        assert!(
            missing.is_empty(),
            "{case}{} allowed probes failed: {:?}",
            missing.len(),
            &missing[..missing.len().min(5)]
        );
        assert!(
            forbidden.is_empty(),
            "{case}{} denied probes passed: {:?}",
            forbidden.len(),
            &forbidden[..forbidden.len().min(5)]
        );
        for member in members {
            let Member { attachment, .. } = member;
            attachment.del(&config).success();
        }
        host.attempt(["ip", "link", "delete", "br9"]);
        (rounds, allowed) = (rounds + 1, allowed + expected.len());
    }
    assert!(allowed > 0, "seed {seed}: {rounds} rounds allowed nothing");
}
