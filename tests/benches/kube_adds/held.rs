//! Cost of a pod for the agent of a node that holds many sandboxes already.
//!
//! - The agent's processor time is counted by thread, in nanoseconds. The share until all work is done includes the
//!   writes of network-status and Events, which follow the calls. All work is done when the agent is idle.
//! - Calls begin at a fixed rate. The kernel takes longer for a link beside many others, so the rate without a limit would
//!   differ, and with it the number of pods that the agent handles at once.
//! - Held and measured pods are on different bridges. The kernel delivers the multicast of a new link to all ports of
//!   the bridge, and counts that time for whichever process it interrupts.
//! - The first CHECK of a held sandbox, a task ten seconds after the ADD, is done before, so it does not count for a
//!   later pod.
//!
//! Source: proc(5), `/proc/PID/task/TID/schedstat`.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use benches::table::{Table, milliseconds as figure};
use rig::Agent;
use rig::agent::configuration;
use rig::cluster::bridge;
use rig::machine::until;
use serde_json::{Value, json};

use super::{NETWORKS, Subject, milliseconds, together};

/// Numbers of held sandboxes.
pub(crate) const COUNTS: [usize; 4] = [20, 80, 320, 500];
/// Network groups for held and measured pods; the default network has the group's name.
const HELD: (&str, u8) = ("wide", 20);
const MEASURED_ON: (&str, u8) = ("own", 25);
/// Number of pods in a round, and of rounds for each number of held sandboxes.
const MEASURED: usize = 64;
const ROUNDS: usize = 3;
/// Number of concurrent calls, and interval in which they begin.
const AT_ONCE: usize = 4;
const PACE: Duration = Duration::from_millis(100);
/// Interval in which an agent without work uses at most [`QUIET_MAX`]; the agent's work is done after two of them.
const QUIET: Duration = Duration::from_millis(700);
const QUIET_MAX: Duration = Duration::from_millis(4);

/// Time after an ADD at which the sandbox's first check is due.
const FIRST_CHECK: Duration = Duration::from_secs(11);
/// Interval in which calls receive tasks, and number of intervals without any after which none are due.
const TASKS: Duration = Duration::from_millis(600);
const WITHOUT_TASKS: usize = 3;

/// Agent's processor time in a round: during the calls, and until all work is done.
struct Round {
    during: Duration,
    whole: Duration,
}

/// Prints a row for each number of held sandboxes.
pub(crate) fn measure(agent: &Agent, counts: &[usize], table: &mut Table) {
    let most = counts.iter().copied().max().unwrap_or_default();
    let measured = &subjects(agent, MEASURED_ON, MEASURED);
    let held = &subjects(agent, HELD, most);
    let known = "weft_cache_objects{resource=\"pods\"}";
    until("pods", || agent.metric(known).filter(|known| *known >= (most + MEASURED) as f64));
    println!("| sandboxes held | agent, during the calls | agent, until its work is done |\n|---|---|---|");
    let mut attached = 0;
    let mut few: Option<(usize, f64)> = None;
    for &count in counts {
        together(AT_ONCE, &held[attached..count.max(attached)], |subject| add(agent, HELD, subject));
        attached = count.max(attached);
        carry_out_checks(agent, &measured[0]);
        rest(agent);
        let mut rounds: Vec<Round> = (0..ROUNDS).map(|_| round(agent, measured)).collect();
        rounds.sort_by_key(|round| round.whole);
        let Round { during, whole } = &rounds[ROUNDS / 2];
        let each = |time: Duration| milliseconds(time / u32::try_from(MEASURED).unwrap_or(1));
        println!("| {attached} | {} for each | {} for each |", each(*during), each(*whole));
        let of_each = |time: Duration| figure(time) / MEASURED as f64;
        let (during, whole, on) = (of_each(*during), of_each(*whole), format!("{attached} pods on the node"));
        match few {
            None => few = Some((attached, during)),
            Some((count, before)) => {
                let what = format!("agent's processor time for an ADD, {on}");
                table.contrast(&what, "ms", during, &format!("{count} pods"), before);
            }
        }
        let what = format!("agent's processor time until all is published, {on}");
        table.contrast(&what, "ms", whole, "during the calls", during);
    }
}

/// Creates pods with three networks of a group: a name, and the second byte of the first one's addresses.
fn subjects(agent: &Agent, (group, second): (&str, u8), count: usize) -> Vec<Subject> {
    let networks = ["a", "b", "c"].map(|network| format!("{group}-{network}"));
    for (network, second) in networks.iter().zip(second + 1..) {
        agent.definition(network, &json!({}), &wide(network, second));
    }
    let names: Vec<String> = (0..count).map(|number| format!("{group}{number}")).collect();
    let uids = agent.pods(&names, &json!({ NETWORKS: networks.join(",") }));
    let pods = names.into_iter().zip(uids);
    pods.map(|(name, uid)| Subject { pod: agent.machine.pod(&name), name, uid }).collect()
}

/// Attaches the measured pods, waits until the work of the agent is done, and detaches them.
fn round(agent: &Agent, measured: &[Subject]) -> Round {
    let written = || agent.metric("weft_status_updates_total{outcome=\"written\"}").unwrap_or_default();
    let wanted = written() + measured.len() as f64;
    rest(agent);
    let before = spent(agent);
    paced(agent, measured);
    let during = spent(agent) - before;
    until("all statuses are written", || (written() >= wanted).then_some(()));
    rest(agent);
    let whole = spent(agent) - before;
    together(AT_ONCE, measured, |subject| del(agent, subject));
    rest(agent);
    Round { during, whole }
}

/// Attaches the pods, one in each interval.
fn paced(agent: &Agent, subjects: &[Subject]) {
    let begun = Instant::now();
    thread::scope(|scope| {
        for worker in 0..AT_ONCE {
            scope.spawn(move || {
                for (place, subject) in subjects.iter().enumerate().skip(worker).step_by(AT_ONCE) {
                    let due = begun + PACE * u32::try_from(place).unwrap_or_default();
                    thread::sleep(due.saturating_duration_since(Instant::now()));
                    add(agent, MEASURED_ON, subject);
                }
            });
        }
    });
}

/// Attaches and detaches one pod until calls receive no more tasks.
fn carry_out_checks(agent: &Agent, subject: &Subject) {
    thread::sleep(FIRST_CHECK);
    let sent = || agent.metric("weft_tasks_total{task=\"check\"} ").unwrap_or_default();
    let mut without = 0;
    while without < WITHOUT_TASKS {
        let before = sent();
        add(agent, MEASURED_ON, subject);
        del(agent, subject);
        thread::sleep(TASKS);
        without = if sent() > before { 0 } else { without + 1 };
    }
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
pub(crate) fn wide(name: &str, subnet: u8) -> Value {
    let mut network = bridge(name, subnet);
    let range = format!("10.{subnet}.0.0/16");
    network["plugins"][0]["ipam"]["ranges"] = json!([[{ "subnet": range }]]);
    network
}

fn add(agent: &Agent, (group, second): (&str, u8), Subject { name, uid, pod }: &Subject) -> Duration {
    let configuration = configuration(&wide(group, second)).to_string();
    agent.attachment(pod, name, uid).call("ADD", configuration).success().took
}

fn del(agent: &Agent, Subject { name, uid, pod }: &Subject) -> Duration {
    agent.attachment(pod, name, uid).del(&configuration(&wide(MEASURED_ON.0, MEASURED_ON.1))).success().took
}
