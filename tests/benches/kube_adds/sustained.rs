//! Pods in a row on a node with API server: some at a time, until all are attached, and until every status is readable.
//!
//! - Multus writes a status before the call ends. weft's agent writes it later, so both times count.
//! - A status is readable when the API server has accepted it.

use std::thread;
use std::time::{Duration, Instant};

use benches::table::{Table, milliseconds};
use rig::Agent;
use rig::machine::until;
use serde_json::json;

use super::comparison::{self, Candidate};
use super::held::wide;
use super::{NETWORKS, REST, Subject, settle, together};

/// Default number of pods in a row.
pub(crate) const PODS: usize = 320;

/// Measures as many pods as `count`, `at_once` at a time, with one network and with three.
pub(crate) fn measure(agent: &Agent, count: usize, at_once: usize, table: &mut Table) {
    for (name, subnet) in [("row-a", 31), ("row-b", 32), ("row-c", 33)] {
        agent.definition(name, &json!({}), &wide(name, subnet));
    }
    let candidates = comparison::candidates(agent, &wide("row", 30));
    for (networks, annotation) in [(1, "row-a"), (3, "row-a,row-b,row-c")] {
        let names: Vec<String> = (0..count).map(|number| format!("row{networks}-{number}")).collect();
        let uids = agent.pods(&names, &json!({ NETWORKS: annotation }));
        let subjects = names.into_iter().zip(uids);
        let subjects: Vec<Subject> =
            subjects.map(|(name, uid)| Subject { pod: agent.machine.pod(&name), name, uid }).collect();
        let measured: Vec<_> =
            candidates.iter().map(|candidate| row(agent, candidate, &subjects, at_once)).collect();
        let plural = if networks == 1 { "" } else { "s" };
        let what = format!("{count} pods, {networks} network{plural} more");
        rows(&candidates, &measured, &what, table);
    }
}

/// Adds the rows for a number of networks; the first candidate is weft.
fn rows(candidates: &[Candidate], measured: &[(f64, Duration, Duration)], what: &str, table: &mut Table) {
    let (rate, calls, readable) = measured[0];
    let in_a_row = format!("{what}, in a row, API server");
    if candidates.len() == 1 {
        table.state(&in_a_row, "pods/s", rate);
    }
    let until_readable = format!("{what}, until every status is readable");
    table.contrast(&until_readable, "ms", milliseconds(readable), "the calls alone", milliseconds(calls));
    for (candidate, (theirs, calls, _)) in candidates.iter().zip(measured).skip(1) {
        table.contrast(&in_a_row, "pods/s", rate, candidate.name(), *theirs);
        let (ours, theirs) = (milliseconds(readable), milliseconds(*calls));
        table.contrast(&until_readable, "ms", ours, candidate.name(), theirs);
    }
}

/// Attaches and detaches all pods; returns the rate, the time of the calls, and the time until every status is readable.
fn row(
    agent: &Agent,
    candidate: &Candidate,
    subjects: &[Subject],
    at_once: usize,
) -> (f64, Duration, Duration) {
    let written = || agent.metric("weft_status_updates_total{outcome=\"written\"}").unwrap_or_default();
    thread::sleep(REST);
    settle(agent);
    let wanted = written() + subjects.len() as f64;
    let begun = Instant::now();
    let (_, calls) = together(at_once, subjects, |subject| candidate.add(agent, subject));
    if candidate.is_weft() {
        until("all statuses are written", || (written() >= wanted).then_some(()));
    }
    let readable = begun.elapsed();
    together(at_once, subjects, |subject| candidate.del(agent, subject));
    let rate = (subjects.len() as f64 / calls.as_secs_f64() * 10.0).round() / 10.0;
    (rate, calls, readable)
}
