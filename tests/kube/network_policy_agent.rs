//! Network policies in a cluster, on the side of the node: agent and executor with a real API server, and traffic between
//! pods. The tests write the address sets themselves, as `weft controller --policy` does.
//!
//! ```text
//!   db  ──┐ network "blue/data", 10.11.0.0/24
//!   web ──┘
//! ```

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rig::agent::{NAMESPACE, node_configuration};
use rig::kube::files;
use rig::machine::until;
use rig::traffic::{Transport, reached};
use rig::{Agent, addresses_on, refusal, with};
use serde_json::{Value, json};
use testkit::{Feature, Netns, Pod, host};

const EXECUTOR: &str = "executor";
const CONFIGURATION: &str = "/etc/cni/net.d/00-weft.conf";
const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";
/// Selection in the policy's rule, and the address set's name: the first 256 bits of the SHA-512.
const SELECTION: &str = r#"{"format":1,"networks":["blue/data"],"peers":[{"pods":[{"key":"app","in":["web"]}]}],"ports":[],"plain":true}"#;
const SET: &str = "peers-c95fb45055ed862daa886b28acda3511e650795f7203eac6c987abae92d3588c";
/// Rights that the agent needs besides those of `deploy/base`.
const RIGHTS: &str = r#"{"apiVersion":"v1","kind":"List","items":[
  {"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRole","metadata":{"name":"policy-of-agent"},"rules":[
    {"apiGroups":["k8s.cni.cncf.io"],"resources":["multi-networkpolicies"],"verbs":["list","watch"]},
    {"apiGroups":["weft.dev"],"resources":["policyaddresssets"],"verbs":["list","watch"]}]},
  {"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRoleBinding","metadata":{"name":"policy-of-agent"},
    "roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"policy-of-agent"},
    "subjects":[{"kind":"ServiceAccount","name":"weft-agent","namespace":"kube-system"}]}]}"#;

/// Node that enforces policies, with two pods.
struct Node {
    agent: Agent,
    pods: [(Pod, String); 2],
}

/// Starts a node whose agent has further arguments; the test is skipped if the lane was not prepared.
macro_rules! node {
    ($($word:literal),*) => {{
        match Node::new(host!(Feature::Bridge, Feature::NftInet), &[$($word),*]) {
            Some(node) => node,
            None => return,
        }
    }};
}

/// Ends the senders of a test, also if it fails.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn configuration() -> Value {
    with(&node_configuration(), &json!({ "networkPolicies": true }))
}

impl Node {
    fn new(host: testkit::Host, words: &[&str]) -> Option<Node> {
        let agent = Agent::with_networks(host, ["data"])?;
        let definitions = ["multi-networkpolicies.k8s.cni.cncf.io", "policyaddresssets.weft.dev"];
        let paths = definitions.map(|name| format!("deploy/policy/{name}.yaml"));
        agent.kube.apply(&files(&paths.each_ref().map(String::as_str)));
        agent.kube.apply(RIGHTS);
        agent.kube.wait_until_served();
        agent.machine.write(CONFIGURATION, configuration().to_string());
        let pods = ["db", "web"].map(|name| {
            let uid = agent.pod(name, &json!({ NETWORKS: "data" }));
            (agent.machine.pod(name), uid)
        });
        let node = Node { agent, pods };
        node.restart_agent("TERM", words);
        Some(node)
    }

    fn restart_agent(&self, signal: &str, words: &[&str]) {
        self.agent.stop(signal);
        self.agent.start(&[&["--policy"], words].concat());
        self.agent.wait_until_ready();
    }

    fn start_executor(&self) {
        let weft = testkit::binary("weft");
        let words = [weft.to_str().expect("a path"), "executor", "--config", CONFIGURATION];
        self.agent.machine.start(EXECUTOR, words);
    }

    fn attach(&self, index: usize) {
        let (pod, uid) = &self.pods[index];
        self.agent.attachment(pod, pod.name(), uid).add(&configuration()).success();
    }

    /// Starts the executor and attaches both pods.
    fn begin(&self) {
        self.start_executor();
        (0..2).for_each(|index| self.attach(index));
    }

    fn address(&self, index: usize) -> String {
        let all = addresses_on(&self.pods[index].0, "net1");
        all[0].split('/').next().expect("an address").to_owned()
    }

    /// Whether `web` reaches `db` at a UDP port.
    fn reaches(&self, port: u16) -> bool {
        let [(db, _), (web, _)] = &self.pods;
        let at = format!("{}:{port}", self.address(0));
        reached(Transport::Udp, web, &at, db, &at).is_some()
    }

    /// Waits until `web` reaches exactly the first of two ports.
    fn wait_for_ports(&self, what: &str, open: u16, closed: u16) {
        self.agent
            .machine
            .wait(EXECUTOR, what, || (self.reaches(open) && !self.reaches(closed)).then_some(()));
    }

    /// Creates or changes the policy: `web` may reach `db` at these ports.
    fn policy(&self, ports: &[u16]) {
        let port = |port: &u16| json!({ "protocol": "UDP", "port": port });
        let policy = json!({
            "apiVersion": "k8s.cni.cncf.io/v1beta2", "kind": "MultiNetworkPolicy",
            "metadata": { "name": "db", "namespace": NAMESPACE,
                "annotations": { "k8s.v1.cni.cncf.io/policy-for": "data" } },
            "spec": { "podSelector": { "matchLabels": { "app": "db" } }, "policyTypes": ["Ingress"],
                "ingress": [{ "from": [{ "podSelector": { "matchLabels": { "app": "web" } } }],
                    "ports": ports.iter().map(port).collect::<Vec<_>>() }] },
        });
        self.agent.kube.apply(&policy.to_string());
    }

    /// Writes the set of the policy's rule.
    fn set(&self, addresses: &[&str]) {
        self.agent.kube.apply(&Node::set_object(addresses).to_string());
    }

    fn set_object(addresses: &[&str]) -> Value {
        json!({
            "apiVersion": "weft.dev/v1alpha1", "kind": "PolicyAddressSet",
            "metadata": { "name": SET, "namespace": NAMESPACE },
            "spec": { "selection": SELECTION, "sets": [{ "addresses": addresses }] },
        })
    }

    /// Writes a set by one request; returns the times before and after it.
    fn write_set(&self, body: &str) -> (Instant, Instant) {
        let Agent { machine, kube, .. } = &self.agent;
        machine.write("/run/set.json", body);
        let [ca, certificate, key] = ["ca.crt", "admin.crt", "admin.key"].map(|name| kube.pki(name));
        let path = format!("apis/weft.dev/v1alpha1/namespaces/{NAMESPACE}/policyaddresssets/{SET}");
        let url = format!("{}/{path}?fieldManager=test&force=true", rig::kube::SERVER);
        let began = Instant::now();
        machine.run(
            [
                &["curl", "-sf", "--cacert", &ca, "--cert", &certificate, "--key", &key, "-X", "PATCH"][..],
                &[
                    "-H",
                    "Content-Type: application/apply-patch+yaml",
                    "--data-binary",
                    "@/run/set.json",
                    &url,
                ],
            ]
            .concat(),
        );
        (began, Instant::now())
    }

    fn wait_for_event(&self, start: &str) -> String {
        self.agent.machine.wait(EXECUTOR, "causes an Event", || {
            self.agent.events("db").into_iter().find(|event| event.starts_with(start))
        })
    }
}

#[test]
fn network_policy_of_a_running_pod_follows_the_api_server() {
    let node = node!();
    node.begin();
    assert!(node.reaches(53), "no policy");
    let web = node.address(1);
    node.policy(&[53]);
    node.set(&[&web]);
    node.wait_for_ports("applies a policy", 53, 54);
    node.policy(&[54]);
    node.set(&[&web]);
    node.wait_for_ports("applies a changed policy", 54, 53);
    node.set(&["192.0.2.1"]);
    node.agent.machine.wait(EXECUTOR, "applies a set", || (!node.reaches(54)).then_some(()));
    let label = |value: &str| {
        node.agent.kube.kubectl(["label", "pod", "-n", NAMESPACE, "db", "--overwrite", value]);
    };
    label("app=other");
    node.agent.machine.wait(EXECUTOR, "releases a pod with another label", || node.reaches(53).then_some(()));
    label("app=db");
    node.agent.machine.wait(EXECUTOR, "isolates it again", || (!node.reaches(53)).then_some(()));
    node.agent.kube.kubectl(["delete", "multi-networkpolicy", "-n", NAMESPACE, "db"]);
    node.agent
        .machine
        .wait(EXECUTOR, "releases the pod", || (node.reaches(53) && node.reaches(54)).then_some(()));
    until("no update is pending", || {
        (node.agent.metric("weft_policy_updates_pending ") == Some(0.0)).then_some(())
    });
    let applied = node.agent.metric("weft_policy_updates_total{outcome=\"applied\"} ");
    assert!(applied.is_some_and(|count| count >= 6.0), "{applied:?}");
}

#[test]
fn network_policy_holds_from_the_start_with_and_without_its_set() {
    let node = node!();
    node.start_executor();
    node.policy(&[53]);
    node.attach(1);
    // Without a set, the rule allows no pod.
    node.attach(0);
    assert!(!node.reaches(53) && !node.reaches(54));
    let web = node.address(1);
    node.set(&[&web]);
    node.wait_for_ports("applies the set", 53, 54);
    // With its set, and without the executor.
    node.agent.machine.stop(EXECUTOR, "TERM");
    let (db, uid) = &node.pods[0];
    node.agent.attachment(db, "db", uid).del(&configuration()).success();
    node.attach(0);
    assert!(node.reaches(53) && !node.reaches(54));
    // Without an executor, the next call of the runtime applies a change.
    node.set(&["192.0.2.1"]);
    until("the change is pending", || {
        (node.agent.metric("weft_policy_updates_pending ") == Some(1.0)).then_some(())
    });
    let uid = node.agent.pod("late", &json!({ NETWORKS: "data" }));
    let late = node.agent.machine.pod("late");
    node.agent.attachment(&late, "late", &uid).add(&configuration()).success();
    until("the next call applies the change", || (!node.reaches(53)).then_some(()));
}

#[test]
fn network_policy_is_never_lifted_by_restarts() {
    let node = node!();
    node.begin();
    let web = node.address(1);
    node.policy(&[53]);
    node.set(&[&web]);
    node.wait_for_ports("applies a policy", 53, 54);
    let [(db, _), (client, _)] = &node.pods;
    let bind =
        |pod: &Netns, port: u16| pod.within(move || UdpSocket::bind(("0.0.0.0", port))).expect("a socket");
    let (listener, sender, to) = (bind(db, 9999), bind(client, 0), (node.address(0), 9999));
    listener.set_nonblocking(true).expect("not to wait");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let _ = sender.send_to(b"forbidden", (to.0.as_str(), to.1));
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        let _end = End(&is_over);
        for round in 0..4_u16 {
            node.policy(&[53, 60 + round]);
            node.set(&[&web, "192.0.2.7"]);
            match round {
                0 => node.restart_agent("KILL", &[]),
                1 => node.restart_agent("TERM", &[]),
                _ => {
                    node.agent.machine.stop(EXECUTOR, "KILL");
                    node.start_executor();
                }
            }
            node.wait_for_ports("applies the change after a restart", 60 + round, 54);
        }
    });
    let passed = std::iter::from_fn(|| listener.recv(&mut [0; 16]).ok()).count();
    assert_eq!(passed, 0, "forbidden packets passed");
}

#[test]
fn network_policy_unread_or_not_agreed_refuses_the_pod() {
    let node = node!();
    let (db, uid) = &node.pods[0];
    let add = |configuration: &Value| node.agent.attachment(db, "db", uid).add(configuration);
    let refused = |configuration: &Value, words: &str| {
        let (code, message) = refusal(&add(configuration));
        assert!(code == 11 && message.contains(words), "{code} {message}");
    };
    refused(&node_configuration(), "set networkPolicies in the configuration");
    node.agent.stop("TERM");
    // Without an agent, nothing knows the policies.
    let kubeconfig = json!({ "kubeconfig": node.agent.kube.admin() });
    refused(&with(&configuration(), &kubeconfig), "which only its agent knows");
    node.agent.start(&[]);
    node.agent.wait_until_ready();
    refused(&configuration(), "start the agent with --policy");
    node.agent.stop("TERM");
    node.agent.kube.kubectl(["delete", "clusterrolebinding", "policy-of-agent"]);
    node.agent.start(&["--policy"]);
    until("the agent waits for policies", || {
        node.agent.page("/readyz").contains("multi-networkpolicies").then_some(())
    });
    refused(&configuration(), "network policies are not read yet: multi-networkpolicies");
    // A pod without definitions needs no policy.
    let plain = node.agent.pod("plain", &json!({}));
    let pod = node.agent.machine.pod("plain");
    node.agent.attachment(&pod, "plain", &plain).add(&configuration()).success();
    node.agent.kube.apply(RIGHTS);
    node.agent.wait_until_ready();
    add(&configuration()).success();
}

#[test]
fn network_policy_drift_and_failed_update_are_events() {
    let node = node!("--policy-check-interval", "1");
    node.begin();
    let web = node.address(1);
    node.policy(&[53]);
    node.set(&[&web]);
    node.wait_for_ports("applies a policy", 53, 54);
    let db = &node.pods[0].0;
    db.run(["nft", "flush", "ruleset"]);
    let event = node.wait_for_event("PolicyDrift ");
    assert!(event.contains("net1 (blue/data)"), "{event}");
    node.wait_for_ports("restores the rules", 53, 54);
    until("the metric", || {
        node.agent.metric("weft_policy_restorations_total ").filter(|count| *count == 1.0)
    });
    db.run(["ip", "link", "set", "net1", "down"]);
    db.run(["ip", "link", "set", "net1", "name", "away"]);
    node.policy(&[55]);
    node.set(&[&web]);
    let event = node.wait_for_event("PolicyUpdateFailed ");
    assert!(event.contains("has no interface \"net1\""), "{event}");
    assert_eq!(node.agent.metric("weft_policy_updates_pending "), Some(1.0));
    db.run(["ip", "link", "set", "away", "name", "net1"]);
    db.run(["ip", "link", "set", "net1", "up"]);
    node.wait_for_ports("repeats the update", 55, 53);
}

/// Prints the time from the write of a set to the first packet that it allows. `WEFT_POLICY_CHANGES` is the number of changes.
#[test]
fn network_policy_change_reaches_packets() {
    let node = node!();
    node.begin();
    let web = node.address(1);
    node.policy(&[53]);
    node.set(&[&web]);
    node.wait_for_ports("applies a policy", 53, 54);
    let count = std::env::var("WEFT_POLICY_CHANGES").ok().and_then(|text| text.parse().ok()).unwrap_or(10);
    let [(db, _), (client, _)] = &node.pods;
    let socket =
        |pod: &Netns, port: u16| pod.within(move || UdpSocket::bind(("0.0.0.0", port))).expect("a socket");
    let (listener, sender, to) = (socket(db, 53), socket(client, 0), node.address(0));
    listener.set_read_timeout(Some(Duration::from_millis(1))).expect("a timeout");
    let passes = || {
        sender.send_to(b"a", (to.as_str(), 53)).expect("sent");
        listener.recv(&mut [0; 8]).is_ok()
    };
    let [allowed, denied] = [[web.as_str(), "192.0.2.9"], ["192.0.2.8", "192.0.2.9"]]
        .map(|addresses| Node::set_object(&addresses).to_string());
    let mut times: Vec<(Duration, Duration)> = Vec::new();
    for _ in 0..count {
        node.write_set(&denied);
        until("the set is denied", || (!passes()).then_some(()));
        let (began, written) = node.write_set(&allowed);
        until("the set is allowed", || passes().then_some(()));
        times.push((written.elapsed(), began.elapsed()));
    }
    for (what, mut all) in [
        ("response of the API server", times.iter().map(|(after, _)| *after).collect::<Vec<_>>()),
        ("start of the request", times.iter().map(|(_, before)| *before).collect()),
    ] {
        all.sort();
        let at = |share: usize| all[(all.len() * share / 100).min(all.len() - 1)];
        eprintln!(
            "from the {what} to the packet, {count} changes: min {:?}, median {:?}, p99 {:?}",
            at(0),
            at(50),
            at(99)
        );
    }
}
