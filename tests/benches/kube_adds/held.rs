//! Cost of a pod for the agent of a node that holds many sandboxes already.
//!
//! - Processor time of the agent is counted for its threads, in nanoseconds. Its share until everything is published includes the
//!   writes of network-status and Events, which follow the calls. All is published when the agent has nothing more to do.
//! - A status is readable when the API server has accepted it.
//!
//! Source: proc(5), `/proc/PID/task/TID/schedstat`.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use rig::Agent;
use rig::agent::configuration;
use rig::cluster::bridge;
use rig::machine::until;
use serde_json::{Value, json};

use super::{NETWORKS, Subject, milliseconds, together};

/// Numbers of held sandboxes.
pub(crate) const COUNTS: [usize; 4] = [20, 80, 320, 500];
/// Number of pods of a round, and of rounds for each number of held sandboxes.
const MEASURED: usize = 64;
const ROUNDS: usize = 3;
/// Number of concurrent calls.
const AT_ONCE: usize = 4;
/// Interval in which an agent without work uses at most [`QUIET_MAX`]; all is published after two of them.
const QUIET: Duration = Duration::from_millis(700);
const QUIET_MAX: Duration = Duration::from_millis(4);

/// Processor time of the agent for a round, and the rate of its calls.
struct Round {
    during: Duration,
    whole: Duration,
    rate: f64,
    readable: Duration,
}

/// Prints a row for each number of held sandboxes.
pub(crate) fn measure(agent: &Agent, counts: &[usize]) {
    for (name, subnet) in [("wide-a", 21), ("wide-b", 22), ("wide-c", 23)] {
        agent.definition(name, &json!({}), &wide(name, subnet));
    }
    let most = counts.iter().copied().max().unwrap_or_default();
    let names: Vec<String> = (0..most + MEASURED).map(|number| format!("h{number}")).collect();
    let uids = agent.pods(&names, &json!({ NETWORKS: "wide-a,wide-b,wide-c" }));
    let known = "weft_cache_objects{resource=\"pods\"}";
    until("pods", || agent.metric(known).filter(|known| *known >= names.len() as f64));
    let subjects = names.into_iter().zip(uids);
    let subjects: Vec<Subject> =
        subjects.map(|(name, uid)| Subject { pod: agent.machine.pod(&name), name, uid }).collect();
    let (measured, held) = subjects.split_at(MEASURED);
    println!(
        "| sandboxes held | pods/s | agent, during the calls | agent, until all is published | all statuses readable after |\n|---|---|---|---|---|"
    );
    let mut attached = 0;
    for &count in counts {
        together(AT_ONCE, &held[attached..count.max(attached)], |subject| add(agent, subject));
        attached = count.max(attached);
        rest(agent);
        let mut rounds: Vec<Round> = (0..ROUNDS).map(|_| round(agent, measured)).collect();
        rounds.sort_by_key(|round| round.whole);
        let Round { during, whole, rate, readable } = &rounds[ROUNDS / 2];
        let each = |time: Duration| milliseconds(time / u32::try_from(MEASURED).unwrap_or(1));
        println!(
            "| {attached} | {rate:.0} | {} for each | {} for each | {} |",
            each(*during),
            each(*whole),
            milliseconds(*readable)
        );
    }
}

/// Attaches the measured pods, waits until all is published, and detaches them.
fn round(agent: &Agent, measured: &[Subject]) -> Round {
    let written = || agent.metric("weft_status_updates_total{outcome=\"written\"}").unwrap_or_default();
    let wanted = written() + measured.len() as f64;
    rest(agent);
    let before = spent(agent);
    let begun = Instant::now();
    let (_, took) = together(AT_ONCE, measured, |subject| add(agent, subject));
    let during = spent(agent) - before;
    until("all statuses are written", || (written() >= wanted).then_some(()));
    let readable = begun.elapsed();
    rest(agent);
    let whole = spent(agent) - before;
    together(AT_ONCE, measured, |subject| del(agent, subject));
    rest(agent);
    Round { during, whole, rate: measured.len() as f64 / took.as_secs_f64(), readable }
}

/// Waits until the agent has nothing more to do.
fn rest(agent: &Agent) {
    let mut quiet = 0;
    while quiet < 2 {
        let before = spent(agent);
        thread::sleep(QUIET);
        quiet = if spent(agent) - before <= QUIET_MAX { quiet + 1 } else { 0 };
    }
}

/// Processor time of the agent's threads since it started.
fn spent(agent: &Agent) -> Duration {
    let id = agent.machine.read("/run/services/agent.pid").expect("a running agent");
    let threads = fs::read_dir(agent.machine.reach(&format!("/proc/{}/task", id.trim())));
    let nanoseconds = threads.expect("threads of the agent").filter_map(|thread| {
        let text = fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(nanoseconds.sum())
}

/// Bridge network with more addresses than pods.
fn wide(name: &str, subnet: u8) -> Value {
    let mut network = bridge(name, subnet);
    let range = format!("10.{subnet}.0.0/16");
    network["plugins"][0]["ipam"]["ranges"] = json!([[{ "subnet": range }]]);
    network
}

fn add(agent: &Agent, Subject { name, uid, pod }: &Subject) -> Duration {
    agent.attachment(pod, name, uid).add(&configuration(&wide("wide", 20))).success().took
}

fn del(agent: &Agent, Subject { name, uid, pod }: &Subject) -> Duration {
    agent.attachment(pod, name, uid).del(&configuration(&wide("wide", 20))).success().took
}
