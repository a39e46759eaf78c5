//! Cluster-wide addresses of `weft-ipam` beside whereabouts: the same pods on one API server, one call after another and 32
//! at once, in turns.
//!
//! - Each call is that of an IPAM plugin: a process starts, allocates or releases one address, and ends.
//! - whereabouts asks the API server in each call, and elects a leader for it. `weft-ipam` allocates from a block that
//!   the node holds; the first call, which requests one, is not counted.
//! - A call that fails is repeated immediately, as a kubelet repeats it later, and counts with the whole time.

use std::time::{Duration, Instant};

use benches::table::{Table, Times, milliseconds};
use rig::addresses::{Nodes, define_whereabouts, name, network};
use rig::parts::text;
use rig::{nodes, peers};
use serde_json::{Value, json};

use super::{AT_ONCE, QUIET, Subject, WAVES, at, together};

/// Maximum number of attempts for a call.
const TRIES: usize = 20;

/// IPAM plugin and configuration.
struct Allocator {
    plugin: String,
    config: Value,
}

/// Measures both, if `PEERS` has whereabouts.
pub(crate) fn measure(table: &mut Table) {
    let programs = match peers::find(&["whereabouts"]) {
        Ok(programs) => programs,
        Err(why) => return println!("whereabouts is not compared: {why}\n"),
    };
    let nodes = nodes!(own 1);
    define_whereabouts(&nodes);
    let flat = json!({ "datastore": "kubernetes", "kubernetes": { "kubeconfig": nodes.kube.admin() } });
    nodes.machine.write("/etc/cni/net.d/whereabouts.d/whereabouts.conf", flat.to_string());
    let subjects = pods(&nodes);
    let weft = network(0, &json!({ "range": "10.60.0.0/16" }));
    // The version is one that both know.
    let weft = rig::with(&weft, &json!({ "cniVersion": "1.0.0" }));
    let theirs = json!({ "cniVersion": "1.0.0", "name": "net", "type": "macvlan",
        "ipam": { "type": "whereabouts", "range": "10.61.0.0/16" } });
    let all = [
        Allocator { plugin: "weft-ipam".to_owned(), config: weft },
        Allocator { plugin: text(&programs.join("whereabouts")).to_owned(), config: theirs },
    ];
    alone(&nodes, &all, &subjects, table);
    at_once(&nodes, &all, &subjects[..AT_ONCE], table);
}

/// Creates pods on the node, which whereabouts names in allocation objects.
fn pods(nodes: &Nodes) -> Vec<Subject> {
    nodes.kube.kubectl(["create", "namespace", "blue"]);
    let names: Vec<String> = (0..QUIET).map(|number| format!("a{number}")).collect();
    let items: Vec<Value> = names
        .iter()
        .map(|pod| {
            json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": pod, "namespace": "blue" },
                "spec": { "nodeName": name(0), "containers": [{ "name": "c", "image": "none" }] } })
        })
        .collect();
    nodes.kube.apply(&json!({ "apiVersion": "v1", "kind": "List", "items": items }).to_string());
    let list = nodes.kube.json(["pods", "-n", "blue"]);
    let uid = |name: &str| {
        let mut all = list["items"].as_array().into_iter().flatten();
        let pod = all.find(|pod| pod["metadata"]["name"] == name).expect("a pod that was created");
        pod["metadata"]["uid"].as_str().expect("a uid").to_owned()
    };
    names.into_iter().map(|name| Subject { uid: uid(&name), pod: nodes.machine.pod(&name), name }).collect()
}

/// Calls a plugin until it succeeds; returns the whole time.
fn call(nodes: &Nodes, verb: &str, allocator: &Allocator, subject: &Subject) -> Duration {
    let Subject { name, uid, pod } = subject;
    let mut call = nodes.attachment(pod, name);
    call.plugin.clone_from(&allocator.plugin);
    call.args = format!(
        "IgnoreUnknown=1;K8S_POD_NAMESPACE=blue;K8S_POD_NAME={name};K8S_POD_INFRA_CONTAINER_ID={name};K8S_POD_UID={uid}"
    );
    let begun = Instant::now();
    let mut done = call.call(verb, allocator.config.to_string());
    for _ in 0..TRIES {
        if done.code == Some(0) {
            break;
        }
        done = call.call(verb, allocator.config.to_string());
    }
    done.success();
    begun.elapsed()
}

/// Times one call after the other.
fn alone(nodes: &Nodes, all: &[Allocator; 2], subjects: &[Subject], table: &mut Table) {
    let mut times: [[Vec<Duration>; 2]; 2] = Default::default();
    for (turn, subject) in subjects.iter().enumerate() {
        for (which, allocator) in all.iter().enumerate() {
            for (verb, times) in ["ADD", "DEL"].into_iter().zip(&mut times) {
                let took = call(nodes, verb, allocator, subject);
                if turn > 0 {
                    times[which].push(took);
                }
            }
        }
    }
    for (verb, [ours, theirs]) in ["ADD", "DEL"].into_iter().zip(times) {
        let what = format!("weft-ipam {verb}, pool of the cluster");
        table.compare(&what, &Times::new(ours), "whereabouts", &Times::new(theirs));
    }
}

/// Times 32 calls at once, until all have ended; the rows have the medians.
fn at_once(nodes: &Nodes, all: &[Allocator; 2], subjects: &[Subject], table: &mut Table) {
    let mut times: [[Vec<Duration>; 2]; 2] = Default::default();
    for _ in 0..WAVES {
        for (which, allocator) in all.iter().enumerate() {
            for (verb, times) in ["ADD", "DEL"].into_iter().zip(&mut times) {
                let (_, whole) = together(AT_ONCE, subjects, |subject| call(nodes, verb, allocator, subject));
                times[which].push(whole);
            }
        }
    }
    for (verb, mut times) in ["ADD", "DEL"].into_iter().zip(times) {
        times.iter_mut().for_each(|times| times.sort());
        let [ours, theirs] = [&times[0], &times[1]].map(|times| milliseconds(at(times, 50)));
        let what = format!("weft-ipam {verb}, pool of the cluster, 32 at once, until all are done");
        table.contrast(&what, "ms", ours, "whereabouts", theirs);
    }
}
