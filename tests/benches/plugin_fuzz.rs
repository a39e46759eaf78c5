//! Differential fuzz of the plugins: random configurations, valid and nearly valid, run through weft and through the Go
//! plugins on equal hosts.
//!
//! ```text
//!   seed ─► interface plugin × IPAM plugin × chained plugin ─┬─ weft-cni ──┬─► success, result, kernel state,
//!                                                            └─ Go plugins ┘   CHECK, leftovers after DEL
//! ```
//!
//! - A difference is *known* if a row of `plugin_fuzz/known.rs` explains it. All others are listed
//!   with seed and configuration, and the exit code is 1.
//! - `--seed S --cases 1` repeats one case.
//!
//! Usage: `benches/plugin-fuzz [--cases N] [--seed S]`.

#![allow(
    clippy::print_stdout,
    clippy::expect_used,
    clippy::panic,
    reason = "a tool prints, and fails by panicking"
)]

#[path = "plugin_fuzz/generate.rs"]
mod generate;
#[expect(dead_code, reason = "the lane `peer` also prints differences")]
#[path = "../peer/reference_plugins/kernel_state.rs"]
mod kernel_state;
#[path = "plugin_fuzz/known.rs"]
mod known;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

use generate::{Chain, generate};
use kernel_state::{Placeholders, kernel_state};
use known::{Difference, reason};
use rig::peers::go_plugins;
use rig::with;
use serde_json::{Value, json};
use testkit::{Feature, Finished, Host, Pod};

/// Step that decides whether there is something to compare.
const ADD: &str = "1 ADD";

/// Steps of a case with their outcomes, and the error of a failed ADD.
struct Outcomes {
    steps: BTreeMap<&'static str, String>,
    error: String,
}

fn main() -> ExitCode {
    if testkit::skip("plugin_fuzz", &[Feature::Root, Feature::GoPlugins, Feature::Macvlan]) {
        return ExitCode::SUCCESS;
    }
    let mut words = std::env::args().skip(1).filter(|word| word != "--bench");
    let (mut cases, mut seed) = (100, 1);
    while let Some(word) = words.next() {
        let value =
            words.next().and_then(|value| value.parse::<u64>().ok()).expect("a number after the option");
        match word.as_str() {
            "--cases" => cases = value,
            "--seed" => seed = value,
            other => panic!("{other}: unknown option; usage: benches/plugin-fuzz [--cases N] [--seed S]"),
        }
    }
    let (mut unexplained, mut succeeded) = (Vec::new(), 0);
    let mut known: BTreeMap<&str, u32> = BTreeMap::new();
    for seed in seed..seed + cases {
        let chain = generate(seed);
        let weft = outcomes(&chain, Path::new("/opt/cni/bin"));
        let go = outcomes(&chain, &go_plugins());
        succeeded += u64::from(weft.steps[ADD] == "succeeds" && go.steps[ADD] == "succeeds");
        for difference in differences(&weft, &go) {
            match reason(&difference) {
                Some(why) => *known.entry(why).or_default() += 1,
                None => unexplained.push(format!("seed {seed}: {difference}\n{}", chain.text())),
            }
        }
    }
    println!("{cases} cases, {succeeded} with an ADD that both plugins accept");
    known.iter().for_each(|(why, count)| println!("{count:5} known: {why}"));
    unexplained.iter().for_each(|difference| println!("\nunexplained: {difference}"));
    println!("{} unexplained differences", unexplained.len());
    ExitCode::from(u8::from(!unexplained.is_empty()))
}

/// Returns the steps in which the two differ.
fn differences(weft: &Outcomes, go: &Outcomes) -> Vec<Difference> {
    let mut found = Vec::new();
    for (step, outcome) in &weft.steps {
        let other = go.steps.get(step).map_or("(not reached)", String::as_str);
        // If only one of them succeeds, there is nothing to compare.
        let comparable = *step == ADD || weft.steps[ADD] == go.steps[ADD];
        // A CHECK of weft fails only for a reason.
        let is_wrong = *step == "5 CHECK" && outcome != "succeeds";
        if (comparable && outcome != other) || is_wrong {
            found.push(Difference {
                step,
                weft: outcome.clone(),
                go: other.to_owned(),
                lines: different_lines(outcome, other),
                errors: [weft.error.clone(), go.error.clone()],
            });
        }
    }
    found
}

/// Returns the lines that only one of two texts has; one line if only their order differs.
fn different_lines(weft: &str, go: &str) -> Vec<String> {
    let (mut of_weft, mut of_go) = (Vec::new(), go.lines().collect::<Vec<_>>());
    for line in weft.lines() {
        match of_go.iter().position(|other| *other == line) {
            Some(place) => drop(of_go.remove(place)),
            None => of_weft.push(line),
        }
    }
    let of_weft = of_weft.into_iter().map(|line| format!("weft {line}"));
    let lines: Vec<String> = of_weft.chain(of_go.into_iter().map(|line| format!("go   {line}"))).collect();
    if lines.is_empty() { vec!["another order".to_owned()] } else { lines }
}

/// Runs a chain as a runtime does: ADD forward, CHECK forward, DEL backward, twice.
fn outcomes(chain: &Chain, directory: &Path) -> Outcomes {
    let (host, pod, _outside) = world();
    let mut steps = BTreeMap::new();
    let (mut placeholders, mut error) = (Placeholders::default(), String::new());
    let before = (kernel_state(&host), kernel_state(&pod));
    let mut result: Option<Value> = None;
    let mut added = "succeeds".to_owned();
    for plugin in &chain.plugins {
        let finished = call(&host, &pod, directory, "ADD", &derived(plugin, result.as_ref()));
        if finished.code != Some(0) {
            "fails".clone_into(&mut added);
            error = finished.stdout.replace('\n', " ");
            break;
        }
        result = Some(finished.json());
    }
    let succeeds = added == "succeeds";
    steps.insert(ADD, added);
    let last = result.filter(|_| succeeds);
    if let Some(result) = &last {
        steps.insert("2 pod after ADD", placeholders.text(&kernel_state(&pod)));
        steps.insert("3 host after ADD", placeholders.text(&kernel_state(&host)));
        steps.insert("4 result", placeholders.text(&kernel_state::normalized_result(result)));
        if chain.version.as_str() >= "0.4.0" {
            let check = |plugin| call(&host, &pod, directory, "CHECK", &derived(plugin, last.as_ref()));
            let failed = chain.plugins.iter().map(check).find(|finished| finished.code != Some(0));
            steps.insert("5 CHECK", failed.map_or("succeeds".to_owned(), |failed| failed.stdout));
        }
    }
    for step in ["6 DEL", "8 DEL again"] {
        let del =
            |plugin| call(&host, &pod, directory, "DEL", &derived(plugin, last.as_ref())).code == Some(0);
        // Every DEL runs, also after a failure.
        let outcomes: Vec<bool> = chain.plugins.iter().rev().map(del).collect();
        let all = outcomes.into_iter().all(|succeeds| succeeds);
        steps.insert(step, if all { "succeeds" } else { "fails" }.to_owned());
    }
    let after = (kernel_state(&host), kernel_state(&pod));
    let mut left = |before: &Value, after: &Value| match before == after {
        true => "nothing".to_owned(),
        false => placeholders.text(after),
    };
    steps.insert("7 left in the pod", left(&before.1, &after.1));
    steps.insert("7 left on the host", left(&before.0, &after.0));
    let reservations =
        host.attempt(["sh", "-c", "cd /var/lib/cni/networks/net 2>/dev/null && ls -d [0-9]* || true"]);
    steps.insert("7 reservations", reservations.stdout);
    Outcomes { steps, error }
}

fn world() -> (Host, Pod, Pod) {
    let host = Host::new();
    rig::install(&host);
    let outside = rig::traffic::outside(&host);
    // DEL leaves the bridge: it exists before.
    host.run(["ip", "link", "add", "br0", "address", "02:00:00:00:0b:01", "type", "bridge"]);
    let pod = host.pod("a");
    (host, pod, outside)
}

fn derived(plugin: &Value, previous: Option<&Value>) -> Value {
    match previous {
        None => plugin.clone(),
        Some(previous) => with(plugin, &json!({ "prevResult": previous })),
    }
}

fn call(host: &Host, pod: &Pod, directory: &Path, verb: &str, config: &Value) -> Finished {
    let program = directory.join(config["type"].as_str().expect("a type")).display().to_string();
    let mut attachment = host.attachment(&program, pod, "eth0");
    "fuzz".clone_into(&mut attachment.container_id);
    attachment.path = directory.display().to_string();
    attachment.call(verb, config.to_string())
}
