//! What a pod costs on a node of a real API server: default network and three more, one after the other, many at once,
//! and a whole node's worth of them.
//!
//! Usage: `benches/kube-adds`, which builds the programs it times. A call is what a runtime pays: a process that is
//! started, asks the agent, attaches four networks and ends.

#![allow(
    clippy::print_stdout,
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a bench prints its figures, and fails by panicking"
)]

use std::thread;
use std::time::{Duration, Instant};

use rig::agent::configuration;
use rig::cluster::bridge;
use rig::{Agent, Machine};
use serde_json::json;
use testkit::{Feature, Pod, host};

/// As many as a kubelet takes.
const PODS: usize = 110;
/// As many as come at once after an upgrade.
const AT_ONCE: usize = 32;
const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";

/// A pod of the cluster, and its namespace on the node.
struct Subject {
    name: String,
    uid: String,
    pod: Pod,
}

fn main() {
    // What is made bears the name of its thread.
    let named = thread::Builder::new().name("kube-adds".to_owned()).spawn(measure);
    named.expect("a thread").join().expect("no failure");
}

fn measure() {
    let Some(agent) = Agent::new(Machine::new(host!(Feature::Bridge, Feature::Veth), "node")) else { return };
    for (name, subnet) in [("a", 11), ("b", 12), ("c", 13)] {
        agent.definition(name, &json!({}), &bridge(name, subnet));
    }
    let names: Vec<String> = (0..PODS).map(|number| format!("p{number}")).collect();
    let uids = agent.pods(&names, &json!({ NETWORKS: "a,b,c" }));
    let subjects: Vec<Subject> = names
        .into_iter()
        .zip(uids)
        .map(|(name, uid)| Subject { pod: agent.machine.pod(&name), name, uid })
        .collect();
    println!(
        "| default network and three more | each: median | p99 | slowest | all |\n|---|---|---|---|---|"
    );
    for subject in &subjects[..5] {
        add(&agent, subject);
        del(&agent, subject);
    }
    row("ADD, one after the other", 1, &subjects, |subject| add(&agent, subject));
    row("DEL, one after the other", 1, &subjects, |subject| del(&agent, subject));
    row("ADD, 32 at once", AT_ONCE, &subjects[..AT_ONCE], |subject| add(&agent, subject));
    row("DEL, 32 at once", AT_ONCE, &subjects[..AT_ONCE], |subject| del(&agent, subject));
    row("ADD, a node starts with 110 pods", PODS, &subjects, |subject| add(&agent, subject));
    row("DEL, 110 at once", PODS, &subjects, |subject| del(&agent, subject));
}

fn add(agent: &Agent, Subject { name, uid, pod }: &Subject) -> Duration {
    agent.attachment(pod, name, uid).add(&configuration(&bridge("home", 10))).success().took
}

fn del(agent: &Agent, Subject { name, uid, pod }: &Subject) -> Duration {
    agent.attachment(pod, name, uid).del(&configuration(&bridge("home", 10))).success().took
}

/// Does it with all of them, so many at a time.
fn row(what: &str, at_once: usize, subjects: &[Subject], work: impl Fn(&Subject) -> Duration + Sync) {
    let begun = Instant::now();
    let mut times: Vec<Duration> = thread::scope(|scope| {
        let size = subjects.len().div_ceil(at_once);
        let parts =
            subjects.chunks(size).map(|part| scope.spawn(|| part.iter().map(&work).collect::<Vec<_>>()));
        let parts: Vec<_> = parts.collect();
        parts.into_iter().flat_map(|part| part.join().expect("no failure")).collect()
    });
    let whole = begun.elapsed();
    times.sort();
    let milliseconds = |time: Duration| format!("{:.1} ms", time.as_secs_f64() * 1000.0);
    let at = |percent: usize| milliseconds(times[(times.len() * percent / 100).min(times.len() - 1)]);
    println!(
        "| {what} | {} | {} | {} | {:.2} s, {:.0} pods/s |",
        at(50),
        at(99),
        at(100),
        whole.as_secs_f64(),
        times.len() as f64 / whole.as_secs_f64()
    );
}
