//! `weft trace` between two nodes: what the API server tells about a pod on the other node, and the cable.
//!
//! ```text
//!   worker-1: agent, web net1 ── br-data ── eth1 ═══ cable ═══ eth1 ── br-data ── net1 db, agent: worker-2
//!                  └────────────── kube-apiserver ──────────────┘
//! ```

use std::time::Duration;

use rig::agent::node_configuration;
use rig::parts::text;
use rig::{Agent, Machine};
use serde_json::{Value, json};
use testkit::{Feature, Finished, Host, Pod, host};

const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";
const CABLE: &str = "eth1";

/// Two nodes, whose interfaces `eth1` are connected, and a network that is a bridge on each.
struct TwoNodes {
    first: Agent,
    second: Agent,
}

impl TwoNodes {
    fn new(first: Host) -> Option<TwoNodes> {
        let second = Host::new();
        let there = second.handle();
        let there = there.to_str().expect("a path");
        let end = ["peer", "name", CABLE, "netns", there];
        first.run(["ip", "link", "add", CABLE, "type", "veth"].into_iter().chain(end));
        for host in [&first, &second] {
            host.run(["ip", "link", "set", CABLE, "up"]);
        }
        let first = Agent::new(Machine::new(first, "worker-1"))?;
        let second = first.join(Machine::new(second, "worker-2"), "worker-2");
        let plugin = json!({ "type": "bridge", "bridge": "br-data", "ipam": { "type": "static" }, "capabilities": { "ips": true } });
        let data = json!({ "cniVersion": "1.0.0", "name": "data", "plugins": [plugin] });
        first.definition("data", &json!({}), &data);
        Some(TwoNodes { first, second })
    }

    /// Attaches a pod with this address on the network.
    fn attach(node: &Agent, name: &str, address: &str) -> Pod {
        let selection = json!([{ "name": "data", "ips": [address] }]);
        let uid = node.pod(name, &json!({ NETWORKS: selection.to_string() }));
        let sandbox = node.machine.pod(name);
        node.attachment(&sandbox, name, &uid).add(&node_configuration()).success();
        let _ = node.status(name);
        sandbox
    }

    fn trace(node: &Agent, words: &str) -> Finished {
        let weft = node.machine.command(text(&testkit::binary("weft"))).env("KUBECONFIG", node.kube.admin());
        let fixed = ["trace", "-n", "blue", "--network", "data"];
        weft.args(fixed).args(words.split_whitespace()).deadline(Duration::from_secs(60)).finish()
    }
}

/// Faulty steps, as `step place: found`.
fn faults(finished: &Finished) -> Vec<String> {
    let document = finished.json();
    let steps = document["steps"].as_array().expect("steps").iter();
    let value = |step: &Value, key: &str| step[key].as_str().unwrap_or_default().to_owned();
    steps
        .filter(|step| step["result"] == "error")
        .map(|step| format!("{} {}: {}", value(step, "step"), value(step, "place"), value(step, "found")))
        .collect()
}

#[test]
fn trace_to_a_pod_on_another_node_names_its_node_and_command() {
    let Some(nodes) = TwoNodes::new(host!(Feature::Bridge, Feature::Veth)) else { return };
    let TwoNodes { first, second } = &nodes;
    let _web = TwoNodes::attach(first, "web", "10.30.0.1/24");
    let db = TwoNodes::attach(second, "db", "10.30.0.2/24");
    // No port of the bridge leads to the other node.
    let apart = TwoNodes::trace(first, "web db -o json");
    let found = faults(&apart);
    assert_eq!(apart.code, Some(1), "{apart}");
    let [neighbour, port, probe] = found.as_slice() else { panic!("{found:#?}") };
    assert_eq!(neighbour, "neighbour blue/web: 10.30.0.2 does not answer address resolution");
    assert_eq!(port, "port host: bridge br-data has no port that leads to another node");
    assert!(probe.starts_with("probe blue/db: ping to 10.30.0.2"), "{probe}");

    // The next step of the output connects the nodes.
    for node in [first, second] {
        node.machine.run(["ip", "link", "set", CABLE, "master", "br-data"]);
    }
    rig::machine::until("the bridges forward", || {
        (TwoNodes::trace(first, "web db").code == Some(0)).then_some(())
    });
    let works = TwoNodes::trace(first, "web db --tcp 80");
    assert_eq!(works.code, Some(1), "no process listens: {works}");
    assert!(works.stdout.contains("refused; the path itself works"), "{works}");
    let works = TwoNodes::trace(first, "web db").success().stdout;
    for words in [
        "net1 on data with 10.30.0.2 by its network-status, on node worker-2: its side is not examined",
        "for its side, run `weft trace blue/db blue/web --network data` on node worker-2",
        "bridge br-data leads to other nodes by eth1",
        "answered in",
    ] {
        assert!(works.contains(words), "{words}: {works}");
    }
    // The command that it names works on the other node, and not here.
    TwoNodes::trace(second, "blue/db blue/web").success();
    let here = TwoNodes::trace(first, "blue/db blue/web --tcp 22");
    assert_eq!(here.code, Some(1), "{here}");
    for words in [
        "pod blue/db is not attached on this node",
        "on node worker-2: run `weft trace blue/db blue/web --network data --tcp 22` there",
    ] {
        assert!(here.stderr.contains(words), "{words}: {here}");
    }

    // A fault of the other side is found from here as a missing answer, and by name from there.
    db.run(["ip", "address", "flush", "dev", "net1"]);
    let lost = TwoNodes::trace(first, "web db -o json");
    assert!(faults(&lost).iter().any(|fault| fault.starts_with("probe blue/db: ")), "{lost}");
    let there = TwoNodes::trace(second, "db web -o json");
    assert!(faults(&there).contains(&"address blue/db: net1 lost 10.30.0.2".to_owned()), "{there}");
}

#[test]
fn trace_to_a_pod_that_is_not_attached_elsewhere_says_why() {
    let Some(agent) = Agent::own(Machine::new(host!(Feature::Bridge), "node")) else { return };
    agent.definition("data", &json!({}), &rig::cluster::bridge("data", 11));
    let uid = agent.pod("web", &json!({ NETWORKS: "data" }));
    let web = agent.machine.pod("web");
    agent.attachment(&web, "web", &uid).add(&node_configuration()).success();
    let create = |name: &str, annotations: Value, spec: Value| {
        let mut spec = spec;
        spec["containers"] = json!([{ "name": "c", "image": "none" }]);
        let metadata = json!({ "name": name, "namespace": "blue", "annotations": annotations });
        let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec });
        agent.kube.attempt(["create", "--validate=false", "-f", "-"], &pod.to_string()).success();
    };
    let status = "k8s.v1.cni.cncf.io/network-status";
    create("pending", json!({}), json!({}));
    create("silent", json!({}), json!({ "nodeName": "worker-9" }));
    create("host", json!({}), json!({ "nodeName": "worker-9", "hostNetwork": true }));
    create("broken", json!({ status: "\u{1b}[2J{" }), json!({ "nodeName": "worker-9" }));
    let other = json!([{ "name": "<b>\u{1b}[2J\u{202e}red", "interface": "net1", "ips": ["10.11.0.3"] }]);
    create("other", json!({ status: other.to_string() }), json!({ "nodeName": "worker-9" }));
    for (pod, found, hint) in [
        ("pending", "the pod is not scheduled to a node", "kubectl describe pod -n blue pending"),
        ("silent", "on node worker-9 and has no network-status", "`weft history blue/silent`"),
        ("host", "the host network on node worker-9", "a pod with its own network"),
        ("broken", "its network-status is invalid JSON", "`weft list` on node worker-9"),
        ("other", "attached to <b>", "recreate the pod"),
        ("none", "the pod does not exist", "correct the name"),
    ] {
        let traced = TwoNodes::trace(&agent, &format!("web {pod}"));
        assert_eq!(traced.code, Some(1), "{traced}");
        assert!(traced.stdout.contains(found) && traced.stdout.contains(hint), "{pod}: {traced}");
        assert!(!traced.stdout.contains(['\u{1b}', '\u{202e}']), "{pod}: {:?}", traced.stdout);
    }
    // The first pod is nowhere.
    let refused = TwoNodes::trace(&agent, "none web");
    assert!(refused.code == Some(1) && refused.stderr.contains("pod blue/none does not exist"), "{refused}");
    // Without the API server, the pods of this node are traced, and the other ones are named as unknown.
    agent.kube.stop("kube-apiserver", "KILL");
    let away = TwoNodes::trace(&agent, "web silent");
    assert!(away.code == Some(1) && away.stdout.contains("its network-status cannot be read"), "{away}");
    let refused = TwoNodes::trace(&agent, "silent web");
    let words = "run weft trace on the node of the first pod";
    assert!(refused.code == Some(1) && refused.stderr.contains(words), "{refused}");
}
