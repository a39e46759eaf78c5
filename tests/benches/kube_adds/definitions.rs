//! Influence of many definitions in the cluster on a pod's ADD and on the agent's memory.

use std::time::Duration;

use benches::table::{Table, Times};
use rig::Agent;
use rig::cluster::bridge;
use rig::machine::until;
use serde_json::{Value, json};

use super::{Subject, add, del, memory, settle};

/// Default number of definitions.
pub(crate) const COUNT: usize = 5000;
/// Number of definitions in one kubectl request.
const BATCH: usize = 500;
/// Bytes of a definition's description: with it, a definition has the size of a real one.
const DESCRIPTION: usize = 400;

/// Times ADDs before and after this number of definitions is created.
pub(crate) fn measure(agent: &Agent, subjects: &[Subject], count: usize, table: &mut Table) {
    let few = timed(agent, subjects);
    let memory_before = memory(agent).0;
    create(agent, count);
    let many = timed(agent, subjects);
    table.compare(&format!("pod with 3 networks more ADD, {count} definitions"), &many, "without them", &few);
    let what = format!("memory of the agent with {count} definitions");
    table.contrast(&what, "MB", memory(agent).0, "without them", memory_before);
}

/// Creates definitions, and waits until the agent knows them.
pub(crate) fn create(agent: &Agent, count: usize) {
    let definition = |number: usize| {
        let config = bridge(&format!("net-{number}"), 11).to_string();
        json!({
            "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
            "metadata": { "name": format!("net-{number}"), "namespace": rig::agent::NAMESPACE,
                "annotations": { "description": "x".repeat(DESCRIPTION) } },
            "spec": { "config": config },
        })
    };
    let all: Vec<Value> = (0..count).map(definition).collect();
    for batch in all.chunks(BATCH) {
        agent.kube.apply(&json!({ "apiVersion": "v1", "kind": "List", "items": batch }).to_string());
    }
    let known = "weft_cache_objects{resource=\"network-attachment-definitions\"}";
    until("definitions", || agent.metric(known).filter(|known| *known >= count as f64));
}

fn timed(agent: &Agent, subjects: &[Subject]) -> Times {
    let mut times: Vec<Duration> = Vec::new();
    for (turn, subject) in subjects.iter().enumerate() {
        let took = add(agent, subject);
        settle(agent);
        del(agent, subject);
        settle(agent);
        // The first calls find caches empty.
        if turn > 1 {
            times.push(took);
        }
    }
    Times::new(times)
}
