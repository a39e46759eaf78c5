//! Measures what network policies cost: ADD for a pod that ten policies select, and a flow between two pods with 1,000
//! peers each. Both are measured in turn with the same pods without policies.
//!
//! For ADD, the pod is compared with one that no policy selects, with the same manifests. (In a cluster, the agent
//! reads the policies, and not an ADD.) It is also compared with the sum of that pod and committing only the rules.
//!
//! The flow is one TCP connection for the rate, and datagrams back and forth for the latency. If the rules are in the
//! pods, it is also compared with connection tracking alone, which is the lower bound for rules that let replies pass.

use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use linux::Netns;
use serde_json::json;

use benches::Failure;
use benches::table::{Table, Times};

use crate::Setting;
use crate::call::{Container, SETTLING};
use crate::pods::PodCaller;
use crate::rules::{self, PodRules};

/// Number of policies that select a pod.
const POLICIES: usize = 10;
/// Number of peers that a pod has.
const PEERS: usize = 1000;
/// Number of measurements per flow.
const TURNS: usize = 9;
/// Duration of one stream measurement.
const STREAM: Duration = Duration::from_millis(700);
/// Number of round trips in one measurement.
const ROUND_TRIPS: u32 = 5000;
/// Time after which a datagram counts as lost.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Times pods with policies and pods without.
pub(crate) fn policies(setting: &Setting, table: &mut Table) -> Result<(), Failure> {
    for (plugin, second) in [("bridge", 241), ("ptp", 242)] {
        let ten = caller(setting, (plugin, second), "ten", (POLICIES, 10), "pod")?;
        let unselected = caller(setting, (plugin, second), "unselected", (POLICIES, 10), "other")?;
        selected(setting, (plugin, second), [&ten, &unselected], table)?;
        let none = caller(setting, (plugin, second), "open", (0, 0), "pod")?;
        let many = caller(setting, (plugin, second), "many", (1, PEERS), "pod")?;
        flows(plugin, [&many, &none], table)?;
    }
    Ok(())
}

/// Measures flows between pods with many peers, between pods without policies, and, if the rules are in the pods,
/// between pods with connection tracking alone. On the host, the first pair's rules make the kernel track everybody's
/// flows.
fn flows(plugin: &str, [many, none]: [&PodCaller; 2], table: &mut Table) -> Result<(), Failure> {
    let mut pairs = vec![Pair::attach(many, plugin, "many")?, Pair::attach(none, plugin, "none")?];
    let mut others = vec!["no policies"];
    if rules::in_namespace(&pairs[0].server)? {
        let tracked = Pair::attach(none, plugin, "tracked")?;
        rules::track_connections(&tracked.client)?;
        rules::track_connections(&tracked.server)?;
        pairs.push(tracked);
        others.push("connection tracking alone");
    }
    let (mut rates, mut trips) = (vec![Vec::new(); pairs.len()], vec![Vec::new(); pairs.len()]);
    for turn in 0..=TURNS {
        for (place, pair) in pairs.iter().enumerate() {
            let (rate, trip) = (pair.stream()?, pair.round_trips()?);
            // The first turn does not count.
            if turn > 0 {
                rates[place].push(rate);
                trips[place].push(trip);
            }
        }
    }
    let rates: Vec<f64> = rates.into_iter().map(median).collect();
    let trips: Vec<Times> = trips.into_iter().map(Times::new).collect();
    for (place, other) in others.iter().enumerate().map(|(place, other)| (place + 1, other)) {
        let what = format!("TCP stream on {plugin}, {PEERS} peers");
        table.contrast(&what, "GB/s", rates[0], other, rates[place]);
        let what = format!("{ROUND_TRIPS} UDP round trips on {plugin}, {PEERS} peers");
        table.compare(&what, &trips[0], other, &trips[place]);
    }
    for (pair, caller) in pairs.into_iter().zip([many, none, none]) {
        pair.detach(caller)?;
    }
    Ok(())
}

/// Times a pod that policies select, one that they do not select, and the rules alone, in turns. The first round does
/// not count.
fn selected(
    setting: &Setting,
    (plugin, second): (&str, usize),
    callers: [&PodCaller; 2],
    table: &mut Table,
) -> Result<(), Failure> {
    let peers: Vec<IpAddr> =
        (0..10).map(|peer| peer_address(second, peer).parse()).collect::<Result<_, _>>()?;
    let rules = PodRules { policies: POLICIES, peers: &peers, network: network(second).parse()? };
    let (mut adds, mut dels, mut with_rules) =
        ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()], Vec::new());
    for run in 0..=setting.runs {
        let alone = Container::new(format!("rules-{plugin}-{run}"))?;
        let commit = rules.time(&alone)?;
        for (place, caller) in callers.into_iter().enumerate() {
            let container = Container::new(format!("policies-{plugin}-{place}-{run}"))?;
            let add = caller.add(&container)?;
            if run == 0 && place == 0 {
                rules.require_same(&container, &alone)?;
            }
            sleep(SETTLING);
            let del = caller.del(&container)?;
            if run > 0 {
                adds[place].push(add);
                dels[place].push(del);
            }
        }
        if run > 0 {
            with_rules.extend(adds[1].last().map(|add| *add + commit));
        }
    }
    let ([ten_add, add], [ten_del, del]) = (adds.map(Times::new), dels.map(Times::new));
    let what = |verb: &str| format!("pod with a {plugin} network more {verb}, {POLICIES} policies");
    table.compare(&what("ADD"), &ten_add, "policies of other pods", &add);
    let with_rules = Times::new(with_rules);
    table.compare(&what("ADD"), &ten_add, "policies of other pods, and the rules alone", &with_rules);
    table.compare(&what("DEL"), &ten_del, "policies of other pods", &del);
    Ok(())
}

fn network(second: usize) -> String {
    format!("10.{second}.0.0/16")
}

fn peer_address(second: usize, peer: usize) -> String {
    format!("10.{second}.{}.{}", 100 + peer / 250, peer % 250 + 1)
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or_default()
}

/// Returns the calls for a pod with a label on a network. The policies select the label `pod` and have this many peers
/// in total. Each policy allows a block that contains the pods, so that flows between them pass.
fn caller(
    setting: &Setting,
    (plugin, second): (&str, usize),
    tag: &str,
    (policies, peers): (usize, usize),
    label: &str,
) -> Result<PodCaller, Failure> {
    let selected = json!({ "k8s.v1.cni.cncf.io/networks": "net" });
    let mut items = vec![json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "namespace": "bench", "name": "pod", "labels": { "app": label }, "annotations": selected },
    })];
    let mut config = json!({
        "cniVersion": "1.0.0", "name": format!("policies-{plugin}"), "type": plugin,
        "ipam": { "type": "host-local", "subnet": network(second), "dataDir": setting.scratch.join("addresses") },
    });
    if plugin == "bridge" {
        config["bridge"] = json!("policybr");
    }
    items.push(json!({
        "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": { "namespace": "bench", "name": "net" }, "spec": { "config": config.to_string() },
    }));
    for peer in 0..peers {
        let address = format!("{}/16", peer_address(second, peer));
        let networks = json!([{ "name": "net", "ips": [address] }]).to_string();
        items.push(json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "namespace": "bench", "name": format!("peer-{peer}"), "labels": { "app": "peer" },
                "annotations": { "k8s.v1.cni.cncf.io/networks": networks } },
        }));
    }
    for policy in 0..policies {
        let peers = json!([
            { "podSelector": { "matchLabels": { "app": "peer" } } },
            { "ipBlock": { "cidr": network(second) } },
        ]);
        items.push(json!({
            "apiVersion": "k8s.cni.cncf.io/v1beta2", "kind": "MultiNetworkPolicy",
            "metadata": { "namespace": "bench", "name": format!("policy-{policy}"),
                "annotations": { "k8s.v1.cni.cncf.io/policy-for": "net" } },
            "spec": { "podSelector": { "matchLabels": { "app": "pod" } }, "policyTypes": ["Ingress", "Egress"],
                "ingress": [{ "from": peers }], "egress": [{ "to": peers }] },
        }));
    }
    PodCaller::of_objects(setting, &format!("policies-{plugin}-{tag}"), &items, &[], &setting.scratch)
}

/// Two pods attached to one network.
struct Pair {
    client: Container,
    server: Container,
    address: IpAddr,
}

impl Pair {
    fn attach(caller: &PodCaller, plugin: &str, tag: &str) -> Result<Pair, Failure> {
        let name = |end: &str| format!("flow-{plugin}-{tag}-{end}");
        let (client, server) = (Container::new(name("client"))?, Container::new(name("server"))?);
        caller.add(&client)?;
        caller.add(&server)?;
        let netns = Netns::open(Path::new(&server.netns))?;
        let mut net = netns.rtnl()?;
        let link = net.link("net1")?;
        let addresses = net.addresses(link.index, "net1")?;
        let address = addresses.iter().map(|one| one.address.addr()).find(IpAddr::is_ipv4);
        Ok(Pair { client, server, address: address.ok_or("the server has no address")? })
    }

    fn detach(self, caller: &PodCaller) -> Result<(), Failure> {
        caller.del(&self.client)?;
        caller.del(&self.server)?;
        Ok(())
    }

    /// Measures a TCP connection's rate in GB per second.
    fn stream(&self) -> Result<f64, Failure> {
        let listener = within(&self.server, || TcpListener::bind((self.address, 0)))??;
        let to = listener.local_addr()?;
        let mut stream = within(&self.client, || TcpStream::connect(to))??;
        let (mut accepted, _) = listener.accept()?;
        let writer = thread::spawn(move || {
            let piece = vec![0; 128 << 10];
            // The reader ends the stream by closing it.
            while stream.write_all(&piece).is_ok() {}
        });
        let (mut piece, mut total) = (vec![0; 128 << 10], 0);
        let started = Instant::now();
        while started.elapsed() < STREAM {
            total += accepted.read(&mut piece)?;
        }
        let rate = total as f64 / started.elapsed().as_secs_f64() / 1e9;
        accepted.shutdown(std::net::Shutdown::Both)?;
        drop(accepted);
        writer.join().map_err(|_| "the writer failed")?;
        Ok((rate * 1e3).round() / 1e3)
    }

    /// Measures how long all round trips take.
    fn round_trips(&self) -> Result<Duration, Failure> {
        let server = within(&self.server, || UdpSocket::bind((self.address, 0)))??;
        let client = within(&self.client, || UdpSocket::bind("0.0.0.0:0"))??;
        client.connect(server.local_addr()?)?;
        for socket in [&client, &server] {
            socket.set_read_timeout(Some(TIMEOUT))?;
        }
        // Both ends are in one thread, so that scheduling does not count.
        let mut word = [0; 8];
        let started = Instant::now();
        for _ in 0..ROUND_TRIPS {
            client.send(&word)?;
            let (_, from) = server.recv_from(&mut word)?;
            server.send_to(&word, from)?;
            client.recv(&mut word)?;
        }
        Ok(started.elapsed())
    }
}

/// Runs work in a container's namespace.
fn within<T>(container: &Container, work: impl FnOnce() -> T) -> Result<T, Failure> {
    Ok(Netns::open(Path::new(&container.netns))?.run(work)?)
}
