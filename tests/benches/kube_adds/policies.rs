//! Time from a change in the API server to the first packet that the new network policies allow or deny, with thousands of
//! pods in the cluster.
//!
//! ```text
//!   PATCH ─► kube-apiserver ─► weft controller --policy ─► PolicyAddressSet ─► agent ─► executor ─► nf_tables ─► packet
//! ```
//!
//! - The cluster's pods are objects on another node, with addresses on the same network as this node's pods. Policies
//!   select all of them. For each pod on this node, two rules have every cluster pod as a peer.
//! - Each change concerns all pods on this node, and each of them counts. A packet is sent to each of them every
//!   [`INTERVAL`], and a time ends with the first packet that passes, or the first one that is dropped.
//! - Changes follow each other after pauses of different length, so that some fall between two writes of an address
//!   set, and some into a comparison with the kernel's rules.

use std::net::UdpSocket;
use std::thread;
use std::time::{Duration, Instant};

use benches::table::{Table, Times};
use rig::kube::files;
use rig::machine::until;
use rig::parts::text;
use rig::{Agent, addresses_on};
use serde_json::{Value, json};
use testkit::{Netns, Pod};

use super::NETWORKS;
use super::held::wide;

/// Default number of changes for each kind.
pub(crate) const CHANGES: usize = 100;
/// Number of pods in the cluster, and of pods on this node that a change concerns.
const CLUSTER: usize = 5000;
const SERVERS: usize = 10;
/// Number of groups among the cluster's pods, each with a separate policy.
const GROUPS: usize = 50;
/// Number of objects in one kubectl request.
const BATCH: usize = 500;
/// Interval of packets, and time without one after which the last one was the last that passed.
const INTERVAL: Duration = Duration::from_millis(2);
const QUIET: Duration = Duration::from_millis(100);
/// Longest pause between two changes.
const PAUSE_MAX: u64 = 500;
/// Longest time until the packets show a change.
const CHANGE_MAX: Duration = Duration::from_secs(60);
/// Ports that a policy allows in turn.
const PORTS: [u16; 2] = [5000, 5001];
const NAMESPACE: &str = rig::agent::NAMESPACE;
const CONFIGURATION: &str = "/etc/cni/net.d/00-weft.conf";
const STATUS: &str = "k8s.v1.cni.cncf.io/network-status";
const POLICIES: &str = "apis/k8s.cni.cncf.io/v1beta2";

/// State of packets after a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Packets {
    Pass,
    AreDropped,
}

/// Packet sender to all pods, and the sockets at one port.
struct Probe {
    sender: UdpSocket,
    servers: Vec<(UdpSocket, String)>,
    port: u16,
}

/// Times for one kind of change: since the API server's response, and since the request began.
#[derive(Default)]
struct Delays {
    response: Vec<Duration>,
    request: Vec<Duration>,
}

/// Measures changes of a policy's ports, and of a peer's label.
pub(crate) fn measure(agent: &Agent, changes: usize, table: &mut Table) {
    let pods = prepare(agent);
    let (client, servers) = pods.split_last().expect("pods");
    let [first, second] = PORTS.map(|port| Probe::new(client, servers, port));
    policy(agent, PORTS[0]);
    label(agent, "granted");
    first.wait(Packets::Pass, || ());
    let (mut of_policies, mut of_labels) = (Delays::default(), Delays::default());
    for change in 0..changes {
        pause(change);
        // One transaction allows a port and denies the other one, so either of them shows the change.
        let (port, opened, closed) =
            if change % 2 == 0 { (PORTS[1], &second, &first) } else { (PORTS[0], &first, &second) };
        of_policies.add(opened.wait(Packets::Pass, || policy(agent, port)));
        closed.wait(Packets::AreDropped, || ());
    }
    let probe = if changes.is_multiple_of(2) { &first } else { &second };
    for change in 0..changes {
        pause(change);
        let (value, packets) =
            if change % 2 == 0 { ("none", Packets::AreDropped) } else { ("granted", Packets::Pass) };
        of_labels.add(probe.wait(packets, || label(agent, value)));
    }
    of_policies.row("a policy", table);
    of_labels.row("a peer's label", table);
}

/// Pauses for a time that differs from change to change.
fn pause(change: usize) {
    thread::sleep(Duration::from_millis(change as u64 * 137 % PAUSE_MAX));
}

// === impl Delays ===

impl Delays {
    /// Adds the times for one change: when the request began and ended, and when each pod's packets changed.
    fn add(&mut self, (began, ended, seen): (Instant, Instant, Vec<Instant>)) {
        self.response.extend(seen.iter().map(|at| at.saturating_duration_since(ended)));
        self.request.extend(seen.iter().map(|at| at.saturating_duration_since(began)));
    }

    fn row(self, what: &str, table: &mut Table) {
        let Delays { response, request } = self;
        let figures = Times::new(request).figures();
        println!(
            "change of {what}, since the start of the request: min / median / p99 {:.0} / {:.0} / {:.0} ms",
            figures[0], figures[1], figures[2]
        );
        let what = format!("change of {what} until the packet, {CLUSTER} pods in the cluster");
        table.times(&what, &Times::new(response));
    }
}

// === impl Probe ===

impl Probe {
    fn new(client: &Pod, servers: &[Pod], port: u16) -> Probe {
        let socket = |pod: &Netns, port: u16| {
            let socket = pod.within(move || UdpSocket::bind(("0.0.0.0", port))).expect("a socket");
            socket.set_nonblocking(true).expect("not to wait");
            socket
        };
        let server = |pod: &Pod| {
            let addresses = addresses_on(pod, "net1");
            let address = addresses[0].split('/').next().expect("an address").to_owned();
            (socket(pod, port), address)
        };
        Probe { sender: socket(client, 0), servers: servers.iter().map(server).collect(), port }
    }

    /// Makes a change, and sends packets until it shows at every pod. Returns the times before and after the change, and
    /// for each pod the time at which the first packet was sent that shows it.
    fn wait(&self, packets: Packets, change: impl FnOnce()) -> (Instant, Instant, Vec<Instant>) {
        thread::scope(|scope| {
            let seen = scope.spawn(|| self.send_until(packets));
            let began = Instant::now();
            change();
            let ended = Instant::now();
            (began, ended, seen.join().expect("packets that show the change"))
        })
    }

    fn send_until(&self, packets: Packets) -> Vec<Instant> {
        let begun = Instant::now();
        // Times of the rounds, and of each pod the first and the last round whose packet passed.
        let mut rounds: Vec<Instant> = Vec::new();
        let mut passed: Vec<Option<(usize, usize)>> = vec![None; self.servers.len()];
        loop {
            let now = Instant::now();
            assert!(now - begun < CHANGE_MAX, "the packets do not show the change: {packets:?}");
            let number = (rounds.len() as u64).to_be_bytes();
            rounds.push(now);
            for (_, address) in &self.servers {
                // A full queue drops a packet of this round; the next one follows.
                let _ = self.sender.send_to(&number, (address.as_str(), self.port));
            }
            thread::sleep(INTERVAL);
            for ((server, _), passed) in self.servers.iter().zip(&mut passed) {
                let mut word = [0; 8];
                while server.recv(&mut word).is_ok() {
                    let round = u64::from_be_bytes(word) as usize;
                    // A packet of an earlier change is not among these rounds.
                    if round < rounds.len() {
                        *passed = Some((passed.map_or(round, |(first, _)| first), round));
                    }
                }
            }
            let shown = passed.iter().map(|passed| match packets {
                Packets::Pass => passed.map(|(first, _)| rounds[first]),
                Packets::AreDropped => {
                    let next = passed.map_or(0, |(_, last)| last + 1);
                    rounds.get(next).copied().filter(|at| at.elapsed() >= QUIET)
                }
            });
            if let Some(shown) = shown.collect::<Option<Vec<Instant>>>() {
                return shown;
            }
        }
    }
}

/// Creates the cluster, starts executor and controller, and attaches the pods of this node, whose last one is the client.
fn prepare(agent: &Agent) -> Vec<Pod> {
    let Agent { machine, kube, .. } = agent;
    let objects = files(&[
        "deploy/crds/ipblocks.weft.dev.yaml",
        "deploy/policy/multi-networkpolicies.k8s.cni.cncf.io.yaml",
        "deploy/policy/policyaddresssets.weft.dev.yaml",
        "deploy/components/policy/rbac.yaml",
    ]);
    kube.apply(&objects);
    kube.wait_until_served();
    let resources = "--resource=multi-networkpolicies.k8s.cni.cncf.io,policyaddresssets.weft.dev";
    kube.kubectl(["create", "clusterrole", "policies", "--verb=list,watch", resources]);
    let account = "--serviceaccount=kube-system:weft-agent";
    kube.kubectl(["create", "clusterrolebinding", "policies", "--clusterrole=policies", account]);
    agent.definition("data", &json!({}), &wide("data", 21));
    let names: Vec<String> =
        (0..SERVERS).map(|number| format!("server-{number}")).chain(["client".to_owned()]).collect();
    let uids = agent.pods(&names, &json!({ NETWORKS: "data" }));
    kube.kubectl(["label", "pods", "-n", NAMESPACE, "-l", "app!=client", "role=server"]);
    label(agent, "none");
    create(agent, &(0..CLUSTER).map(cluster_pod).collect::<Vec<_>>());
    create(agent, &policies());
    policy(agent, PORTS[0]);
    machine.write(CONFIGURATION, configuration().to_string());
    agent.stop("TERM");
    agent.start(&["--policy"]);
    agent.wait_until_ready();
    let (program, controller) =
        (testkit::binary("weft"), kube.service_account("kube-system", "weft-controller-policy"));
    let weft = text(&program);
    machine.start("executor", [weft, "executor", "--config", CONFIGURATION]);
    let listen = ["--listen", "127.0.0.1:9465", "--identity", "one", "--kubeconfig", &controller];
    machine.start("controller", [weft, "controller", "--policy"].into_iter().chain(listen));
    until("the agent knows the policies", || {
        let known = "weft_cache_objects{resource=\"policyaddresssets\"}";
        agent.metric(known).filter(|known| *known >= (GROUPS + 2) as f64)
    });
    let pods: Vec<Pod> = names.iter().map(|name| machine.pod(name)).collect();
    for ((pod, name), uid) in pods.iter().zip(&names).zip(&uids) {
        agent.attachment(pod, name, uid).call("ADD", configuration().to_string()).success();
    }
    pods
}

/// Creates objects by few requests of kubectl.
fn create(agent: &Agent, all: &[Value]) {
    for batch in all.chunks(BATCH) {
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": batch });
        agent.kube.attempt(["create", "--validate=false", "-f", "-"], &list.to_string()).success();
    }
}

fn configuration() -> Value {
    let mut configuration = rig::agent::node_configuration();
    configuration["networkPolicies"] = true.into();
    configuration
}

/// Pod of another node. No two addresses follow each other, so that a set contains each of them.
fn cluster_pod(number: usize) -> Value {
    let address = format!("10.21.{}.{}", 128 + number / 125, number % 125 * 2 + 1);
    let network = format!("{NAMESPACE}/data");
    let status = json!([{ "name": network, "interface": "net1", "ips": [address], "dns": {} }]);
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": format!("p{number}"), "namespace": NAMESPACE,
            "labels": { "role": "peer", "group": format!("g{}", number % GROUPS) },
            "annotations": { NETWORKS: "data", STATUS: status.to_string() } },
        "spec": { "nodeName": "worker-2", "containers": [{ "name": "c", "image": "none" }] },
    })
}

/// Policies that do not change: one for all pods, and one for each group.
fn policies() -> Vec<Value> {
    let group = |number: usize| json!({ "matchLabels": { "group": format!("g{}", number % GROUPS) } });
    let of_group = |number: usize| {
        object(
            &format!("group-{number}"),
            &json!({ "podSelector": group(number), "policyTypes": ["Ingress"],
                "ingress": [{ "from": [{ "podSelector": group(number + 1) }] }] }),
        )
    };
    let peers = json!({ "podSelector": { "matchLabels": { "role": "peer" } } });
    let all = json!({ "podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{ "from": [peers] }] });
    let server =
        json!({ "podSelector": { "matchLabels": { "role": "server" } }, "policyTypes": ["Ingress"] });
    [object("all", &all), object("server", &server)].into_iter().chain((0..GROUPS).map(of_group)).collect()
}

fn object(name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "k8s.cni.cncf.io/v1beta2", "kind": "MultiNetworkPolicy",
        "metadata": { "name": name, "namespace": NAMESPACE,
            "annotations": { "k8s.v1.cni.cncf.io/policy-for": "data" } },
        "spec": spec,
    })
}

/// Allows the pods with a label to reach the servers at this port, and all pods of the cluster to reach another one.
fn policy(agent: &Agent, port: u16) {
    let rule = |labels: Value, port: u16| {
        json!({ "from": [{ "podSelector": { "matchLabels": labels } }],
            "ports": [{ "protocol": "UDP", "port": port }] })
    };
    let rules = [rule(json!({ "access": "granted" }), port), rule(json!({ "role": "peer" }), 4000)];
    let path = format!("{POLICIES}/namespaces/{NAMESPACE}/multi-networkpolicies/server");
    patch(agent, &path, &json!({ "spec": { "ingress": rules } }));
}

/// Changes the label of the client.
fn label(agent: &Agent, access: &str) {
    let body = json!({ "metadata": { "labels": { "access": access } } });
    patch(agent, &format!("api/v1/namespaces/{NAMESPACE}/pods/client"), &body);
}

/// Changes an object by one request.
fn patch(agent: &Agent, path: &str, body: &Value) {
    let [ca, certificate, key] = ["ca.crt", "admin.crt", "admin.key"].map(|name| agent.kube.pki(name));
    let (url, body) = (format!("{}/{path}", rig::kube::SERVER), body.to_string());
    let access = ["--cacert", &ca, "--cert", &certificate, "--key", &key];
    let request = ["-X", "PATCH", "-H", "Content-Type: application/merge-patch+json", "-d", &body, &url];
    agent.machine.run(["curl", "-sf", "-o", "/dev/null"].into_iter().chain(access).chain(request));
}
