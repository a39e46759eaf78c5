//! Benchmark of pods on a node with a real API server: default network and three more, one after the other, 32 at once,
//! and 110 at once.
//!
//! Usage: see `benches/kube-adds`. A timed call is what a runtime waits for: a process starts, asks the agent, attaches
//! the networks and ends. Rows that miss the goal in `benches/src/goals.rs` end the bench with status 3.

#![allow(
    clippy::print_stdout,
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a benchmark prints its results, and fails by panicking"
)]

#[path = "kube_adds/addresses.rs"]
mod addresses;
#[path = "kube_adds/comparison.rs"]
mod comparison;
#[path = "kube_adds/definitions.rs"]
mod definitions;
#[path = "kube_adds/held.rs"]
mod held;
#[path = "kube_adds/policies.rs"]
mod policies;
#[path = "kube_adds/processors.rs"]
mod processors;
#[path = "kube_adds/seeing.rs"]
mod seeing;
#[path = "kube_adds/sustained.rs"]
mod sustained;

use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use benches::table::{Table, finish};
use benches::{MISSED, machine as described};
use rig::agent::configuration;
use rig::cluster::bridge;
use rig::machine::until;
use rig::multus::Form;
use rig::{Agent, Machine};
use serde_json::{Value, json};
use testkit::{Attachment, Feature, Host, Pod, host};

/// A kubelet's default pod limit.
const PODS: usize = 110;
/// Number of pods that start at once after an upgrade.
const AT_ONCE: usize = 32;
/// Number of pods that are timed without any other activity.
const QUIET: usize = 40;
/// Number of definitions in a large cluster.
const DEFINITIONS: usize = 1000;
/// Number of waves with many pods at once.
const WAVES: usize = 3;
/// Default number of waves in a comparison, enough for a median.
const COMPARED_WAVES: usize = 10;
/// Pause before each wave: the agent writes delayed status and Events, or drops them with the pod.
const REST: Duration = Duration::from_secs(3);
/// Number of ADD and DEL cycles while memory is measured, and number of concurrent workers.
const CYCLES: usize = 10_000;
const WORKERS: usize = 4;
const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";

/// Pod in the cluster, and the namespace on the node.
struct Subject {
    name: String,
    uid: String,
    pod: Pod,
}

fn main() -> ExitCode {
    // Container ids contain the name of the thread.
    let named = thread::Builder::new().name("kube-adds".to_owned()).spawn(measure);
    match named.expect("a thread").join().expect("no failure") {
        true => ExitCode::from(MISSED),
        false => ExitCode::SUCCESS,
    }
}

/// Measures what the words tell; returns whether a row misses the goal.
fn measure() -> bool {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let run = described::run("pods of an API server", &command(&words), &peers(), Path::new("/var/lib"));
    let mut words = words.into_iter();
    let mut table = Table::default();
    match (words.next().as_deref(), words.next()) {
        (None, _) => measure_calls(),
        (Some("compare"), waves) => measure_comparison(number(waves, COMPARED_WAVES), &mut table),
        (Some("memory"), cycles) => measure_memory(number(cycles, CYCLES), &mut table),
        (Some("addresses"), _) => addresses::measure(&mut table),
        (Some("held"), first) => measure_held(first.into_iter().chain(words), &mut table),
        (Some("sustained"), pods) => measure_sustained(number(pods, sustained::PODS), &mut table),
        (Some("definitions"), count) => measure_definitions(number(count, definitions::COUNT), &mut table),
        (Some("seeing"), turns) => measure_seeing(number(turns, seeing::TURNS), &mut table),
        (Some("policies"), changes) => measure_policies(number(changes, policies::CHANGES), &mut table),
        (Some("report"), cycles) => {
            measure_sustained(sustained::PODS, &mut table);
            measure_comparison(WAVES, &mut table);
            addresses::measure(&mut table);
            measure_held(["20".to_owned(), "500".to_owned()].into_iter(), &mut table);
            measure_definitions(definitions::COUNT, &mut table);
            measure_memory(number(cycles, CYCLES), &mut table);
        }
        (Some(other), _) => panic!(
            "{other}: expected `compare [WAVES]`, `addresses`, `memory [CYCLES]`, `held [COUNT...]`, `sustained [PODS]`, `definitions [COUNT]`, `seeing [TURNS]`, `policies [CHANGES]` or `report [CYCLES]`"
        ),
    }
    finish(&table, run).expect("results")
}

/// Command that starts this bench, with the variables.
fn command(words: &[String]) -> String {
    let peers = std::env::var_os("PEERS").map_or("", |_| "PEERS=DIR ");
    format!("{peers}AT_ONCE={} benches/kube-adds {}", at_once(), words.join(" ")).trim_end().to_owned()
}

/// Programs that the rows are compared with.
fn peers() -> String {
    let there = Form::ALL.into_iter().filter(|form| rig::peers::find(form.programs()).is_ok());
    let whereabouts = rig::peers::find(&["whereabouts"]).is_ok().then_some("whereabouts");
    let names: Vec<&str> = there.map(Form::name).chain(whereabouts).collect();
    match names.is_empty() {
        true => "itself (PEERS has neither Multus nor whereabouts)".to_owned(),
        false => names.join(", "),
    }
}

/// Number of concurrent ADDs for pods in a row.
fn at_once() -> usize {
    std::env::var("AT_ONCE").map_or(8, |text| text.parse().expect("AT_ONCE: a number"))
}

fn measure_held(words: impl Iterator<Item = String>, table: &mut Table) {
    let counts: Vec<usize> = words.map(|word| word.parse().expect("a number")).collect();
    let counts = if counts.is_empty() { held::COUNTS.to_vec() } else { counts };
    let Some(agent) = Agent::new(Machine::new(host!(Feature::Bridge, Feature::Veth), "node")) else { return };
    held::measure(&agent, &counts, table);
}

fn measure_sustained(count: usize, table: &mut Table) {
    let Some(agent) = Agent::new(Machine::new(host!(Feature::Bridge, Feature::Veth), "node")) else { return };
    sustained::measure(&agent, count, at_once(), table);
}

fn measure_definitions(count: usize, table: &mut Table) {
    let Some((agent, subjects)) = node(host!(Feature::Bridge, Feature::Veth), QUIET) else { return };
    definitions::measure(&agent, &subjects, count, table);
}

fn measure_seeing(turns: usize, table: &mut Table) {
    let Some((agent, subjects)) = node(host!(Feature::Bridge, Feature::Veth), PODS) else { return };
    seeing::measure(&agent, &subjects, turns, table);
}

fn measure_policies(changes: usize, table: &mut Table) {
    let needed = host!(Feature::Bridge, Feature::Veth, Feature::NftInet);
    let Some(agent) = Agent::new(Machine::new(needed, "node")) else { return };
    policies::measure(&agent, changes, table);
}

fn number(word: Option<String>, otherwise: usize) -> usize {
    word.map_or(otherwise, |text| text.parse().expect("a number"))
}

/// Starts a node of a cluster with three networks and this number of pods.
fn node(host: Host, count: usize) -> Option<(Agent, Vec<Subject>)> {
    let agent = Agent::new(Machine::new(host, "node"))?;
    for (name, subnet) in [("a", 11), ("b", 12), ("c", 13)] {
        agent.definition(name, &json!({}), &bridge(name, subnet));
    }
    let names: Vec<String> = (0..count).map(|number| format!("p{number}")).collect();
    let uids = agent.pods(&names, &json!({ NETWORKS: "a,b,c" }));
    let subjects = names.into_iter().zip(uids);
    let subjects = subjects.map(|(name, uid)| Subject { pod: agent.machine.pod(&name), name, uid }).collect();
    Some((agent, subjects))
}

fn measure_calls() {
    let Some((agent, subjects)) = node(host!(Feature::Bridge, Feature::Veth), PODS) else { return };
    let alone = agent.pods(&["alone".to_owned()], &json!({}));
    println!("| measurement | fastest | median | p99 | slowest | all |\n|---|---|---|---|---|---|");
    for subject in &subjects[..5] {
        add(&agent, subject);
        del(&agent, subject);
    }
    // ADDs whose API requests are complete before the next one. They are compared with the same pod without a cluster, and
    // with a pod that only has the default network.
    let alone = Subject { name: "alone".to_owned(), uid: alone[0].clone(), pod: agent.machine.pod("alone") };
    let configuration = manifests(&agent);
    let mut quiet: [Vec<Duration>; 6] = Default::default();
    for subject in &subjects[..QUIET] {
        for (place, work) in [(0, &subject), (2, &&alone)] {
            quiet[place].push(add(&agent, work));
            settle(&agent);
            quiet[place + 1].push(del(&agent, work));
            settle(&agent);
        }
        let call = from_files(&agent, subject);
        quiet[4].push(call.call("ADD", configuration.to_string()).success().took);
        quiet[5].push(call.del(&configuration).success().took);
    }
    let what = [
        "ADD of a pod with default network and three more, alone",
        "DEL of it",
        "ADD of a pod with the default network",
        "DEL of it",
        "ADD of the first, from a directory of manifests",
        "DEL of it",
    ];
    for (what, times) in what.into_iter().zip(quiet) {
        print(what, times, None);
    }
    row("ADD, one after the other", 1, &subjects, |subject| add(&agent, subject));
    row("DEL, one after the other", 1, &subjects, |subject| del(&agent, subject));
    let simple = with_one_more(&agent);
    for (what, subjects) in [("three more", &subjects[..AT_ONCE]), ("one more", &simple)] {
        for _ in 0..WAVES {
            thread::sleep(REST);
            row(&format!("ADD, 32 at once, {what}"), AT_ONCE, subjects, |subject| add(&agent, subject));
            row("DEL, 32 at once", AT_ONCE, subjects, |subject| del(&agent, subject));
        }
    }
    thread::sleep(REST);
    row("ADD, a node starts with 110 pods", PODS, &subjects, |subject| add(&agent, subject));
    row("DEL, 110 at once", PODS, &subjects, |subject| del(&agent, subject));
}

/// Creates as many pods as start at once, with one network besides the default one.
fn with_one_more(agent: &Agent) -> Vec<Subject> {
    let names: Vec<String> = (0..AT_ONCE).map(|number| format!("q{number}")).collect();
    let uids = agent.pods(&names, &json!({ NETWORKS: "a" }));
    let subject = |(name, uid): (String, String)| Subject { pod: agent.machine.pod(&name), name, uid };
    names.into_iter().zip(uids).map(subject).collect()
}

/// Attaches the same pods by weft and by Multus, in turns.
fn measure_comparison(waves: usize, table: &mut Table) {
    let Some((agent, subjects)) = node(host!(Feature::Bridge, Feature::Veth), QUIET) else { return };
    let simple = with_one_more(&agent);
    let candidates = comparison::candidates(&agent, &bridge("home", 10));
    println!("{}", comparison::HEAD);
    comparison::alone(&agent, &candidates, "3 networks", &subjects, table);
    for pods in [("1 network", &simple[..]), ("3 networks", &subjects[..AT_ONCE])] {
        comparison::waves(&agent, &candidates, pods, waves, table);
    }
    comparison::assert_nothing_left(&agent);
}

/// Waits until the agent has no pending API writes: a runtime's next call seldom follows immediately.
fn settle(agent: &Agent) {
    let written = "weft_status_updates_total{outcome=\"written\"}";
    let planned = "weft_plan_requests_total{outcome=\"planned\"}";
    until("all status is written", || (agent.metric(written) >= agent.metric(planned)).then_some(()));
    // Events are not counted; they follow later.
    thread::sleep(Duration::from_millis(100));
}

/// Writes the same networks as manifests on the node; returns the configuration that reads them.
fn manifests(agent: &Agent) -> Value {
    let manifests = rig::Cluster::on(&agent.machine);
    for (name, subnet) in [("a", 11), ("b", 12), ("c", 13)] {
        manifests.definition(name, &bridge(name, subnet));
    }
    manifests.pod("p", "a,b,c");
    let mut configuration = configuration(&bridge("home", 10));
    configuration["manifestDir"] = json!(rig::cluster::MANIFESTS);
    configuration
}

/// CNI parameters for a pod from those manifests.
fn from_files<'a>(agent: &'a Agent, subject: &Subject) -> Attachment<'a> {
    let mut call = agent.machine.attachment("weft", &subject.pod, "eth0");
    call.args = format!("K8S_POD_NAMESPACE={};K8S_POD_NAME=p", rig::agent::NAMESPACE);
    call
}

/// Measures the memory of an agent with 1,000 definitions and a node's pods, while pods start and end.
fn measure_memory(cycles: usize, table: &mut Table) {
    let Some((agent, subjects)) = node(host!(Feature::Bridge, Feature::Veth), PODS) else { return };
    definitions::create(&agent, DEFINITIONS);
    println!("| cycles of ADD and DEL | resident | of which anonymous |\n|---|---|---|");
    let show = |done: usize| {
        let (resident, anonymous) = memory(&agent);
        println!("| {done} | {resident:.1} MB | {anonymous:.1} MB |");
        resident
    };
    show(0);
    let (mut done, mut shown) = (0, Vec::new());
    while done < cycles {
        let step = (cycles / 10).max(1).min(cycles - done);
        thread::scope(|scope| {
            for worker in 0..WORKERS {
                let (agent, subjects) = (&agent, &subjects);
                scope.spawn(move || {
                    let mine = subjects.iter().skip(worker).step_by(WORKERS).cycle();
                    for subject in mine.take(step / WORKERS) {
                        add(agent, subject);
                        del(agent, subject);
                    }
                });
            }
        });
        done += step;
        shown.push(show(done));
    }
    if let [first, .., last] = shown.as_slice() {
        let what = "memory of the agent after all cycles of ADD and DEL";
        table.contrast(what, "MB", *last, "after a tenth of them", *first);
    }
}

/// Resident memory of the agent, and the anonymous part of it, in MB.
fn memory(agent: &Agent) -> (f64, f64) {
    let id = agent.machine.run(["cat", "/run/services/agent.pid"]);
    let status = agent.machine.run(["cat", &format!("/proc/{}/status", id.trim())]);
    let field = |name: &str| -> f64 {
        let value = status.lines().find_map(|line| line.strip_prefix(name)).expect("a field");
        value.split_whitespace().next().expect("a number").parse::<f64>().expect("a number") / 1000.0
    };
    (field("VmRSS:"), field("RssAnon:"))
}

fn add(agent: &Agent, Subject { name, uid, pod }: &Subject) -> Duration {
    // Without the CHECK that follows an ADD in tests.
    let configuration = configuration(&bridge("home", 10)).to_string();
    agent.attachment(pod, name, uid).call("ADD", configuration).success().took
}

fn del(agent: &Agent, Subject { name, uid, pod }: &Subject) -> Duration {
    agent.attachment(pod, name, uid).del(&configuration(&bridge("home", 10))).success().took
}

/// Runs `work` for all subjects, `at_once` of them concurrently, and prints the times.
fn row(what: &str, at_once: usize, subjects: &[Subject], work: impl Fn(&Subject) -> Duration + Sync) {
    let (times, whole) = together(at_once, subjects, work);
    print(what, times, Some(whole));
}

/// Runs `work` for all subjects; returns the time of each and the total time.
fn together(
    at_once: usize,
    subjects: &[Subject],
    work: impl Fn(&Subject) -> Duration + Sync,
) -> (Vec<Duration>, Duration) {
    let begun = Instant::now();
    let times: Vec<Duration> = thread::scope(|scope| {
        let size = subjects.len().div_ceil(at_once);
        let parts =
            subjects.chunks(size).map(|part| scope.spawn(|| part.iter().map(&work).collect::<Vec<_>>()));
        let parts: Vec<_> = parts.collect();
        parts.into_iter().flat_map(|part| part.join().expect("no failure")).collect()
    });
    (times, begun.elapsed())
}

fn milliseconds(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1000.0)
}

/// Returns a percentile; `times` is sorted.
fn at(times: &[Duration], percent: usize) -> Duration {
    times[(times.len() * percent / 100).min(times.len() - 1)]
}

fn print(what: &str, mut times: Vec<Duration>, whole: Option<Duration>) {
    times.sort();
    let at = |percent: usize| milliseconds(at(&times, percent));
    let whole = whole.map(|whole| {
        let seconds = whole.as_secs_f64();
        format!("{seconds:.2} s, {:.0} pods/s", times.len() as f64 / seconds)
    });
    let whole = whole.unwrap_or_default();
    println!("| {what} | {} | {} | {} | {} | {whole} |", at(0), at(50), at(99), at(100));
}
