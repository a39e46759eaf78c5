//! Differential fuzz of the plugins: random configurations, valid and nearly valid, run through weft and through the Go
//! plugins on equal hosts.
//!
//! ```text
//!   seed ─► interface plugin × IPAM plugin × chained plugins ─┬─ weft-cni ──┬─► success, result, kernel state, STATUS,
//!             × request × change × form of the DEL            └─ Go plugins ┘   CHECK, GC, leftovers after DEL
//! ```
//!
//! - A difference is *known* if a row of `plugin_fuzz/known.rs` explains it. All others are listed
//!   with seed and configuration, and the exit code is 1.
//! - An ADD that only weft refuses is known, because weft refuses invalid values. The last lines list each such error
//!   with a seed.
//! - weft alone must leave nothing of an attachment, not even a file or a rule of nftables.
//! - `--seed S --cases 1` repeats one case, with the same `PEERS`.
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
#[path = "plugin_fuzz/options.rs"]
mod options;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

use generate::{Case, Del, generate};
use kernel_state::{Placeholders, kernel_state};
use known::{Difference, reason};
use rig::peers::go_plugins;
use rig::with;
use serde_json::{Value, json};
use testkit::{Feature, Finished, Host, Pod};

/// Step that decides whether there is something to compare.
const ADD: &str = "1 ADD";
/// Outcome of a step without an error.
const SUCCEEDS: &str = "succeeds";
/// Plugins that the fuzz calls, if the Go plugins have them.
const PLUGINS: [&str; 6] = ["bridge", "ptp", "macvlan", "host-device", "loopback", "tap"];

/// Steps and outcomes of a case, and the error if ADD failed.
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
    let go = go_plugins();
    let available: Vec<&str> = PLUGINS.into_iter().filter(|plugin| go.join(plugin).exists()).collect();
    let mut summary = Summary::default();
    (seed..seed + cases).for_each(|seed| summary.run(seed, &generate(seed, &available), &go));
    summary.print();
    ExitCode::from(u8::from(summary.unexplained > 0))
}

/// Counts and errors of all cases.
#[derive(Default)]
struct Summary {
    cases: u64,
    accepted: u64,
    unexplained: u64,
    known: BTreeMap<&'static str, u64>,
    /// Errors of an ADD that only weft refuses: number, first seed.
    refused: BTreeMap<String, (u64, u64)>,
}

impl Summary {
    /// Runs a case and prints unexplained differences at once.
    fn run(&mut self, seed: u64, case: &Case, go: &Path) {
        let weft = outcomes(case, Path::new("/opt/cni/bin"), true);
        let go = outcomes(case, go, false);
        self.cases += 1;
        self.accepted += u64::from(weft.steps[ADD] == SUCCEEDS && go.steps[ADD] == SUCCEEDS);
        if weft.steps[ADD] != SUCCEEDS && go.steps[ADD] == SUCCEEDS {
            self.refused.entry(weft.error.clone()).or_insert((0, seed)).0 += 1;
        }
        for difference in differences(&weft, &go) {
            match reason(&difference) {
                Some(why) => *self.known.entry(why).or_default() += 1,
                None => {
                    self.unexplained += 1;
                    println!("\nunexplained: seed {seed}: {difference}\n{}", case.text());
                }
            }
        }
    }

    fn print(&self) {
        println!("\n{} cases, {} with an ADD that both plugins accept", self.cases, self.accepted);
        self.known.iter().for_each(|(why, count)| println!("{count:5} known: {why}"));
        for (error, (count, seed)) in &self.refused {
            println!("{count:5} refused by weft alone, first by seed {seed}: {error}");
        }
        println!("{} unexplained differences", self.unexplained);
    }
}

/// Returns the steps in which the two differ.
fn differences(weft: &Outcomes, go: &Outcomes) -> Vec<Difference> {
    let mut found = Vec::new();
    for (step, outcome) in &weft.steps {
        let of_go = go.steps.get(step).map(String::as_str);
        let other = of_go.unwrap_or("(not reached)");
        // If only one of them succeeds, there is nothing to compare.
        let comparable = *step == ADD || weft.steps[ADD] == go.steps[ADD];
        // The CHECK of some Go plugins always fails.
        let comparable = comparable
            && (*step != "5 CHECK after a change"
                || go.steps.get("5 CHECK").is_some_and(|outcome| outcome == SUCCEEDS));
        // A STATUS that fails says that the ADD fails.
        let is_honest = *step == "0 STATUS" && outcome != SUCCEEDS && weft.steps[ADD] != SUCCEEDS;
        let comparable = comparable && !is_honest;
        // weft alone: a CHECK fails only for a reason, and nothing is left.
        let is_wrong =
            *step == "5 CHECK" && outcome != SUCCEEDS || step.starts_with('9') && outcome != "nothing";
        if (comparable && outcome != other && !step.starts_with('9')) || is_wrong {
            found.push(Difference {
                step,
                weft: outcome.clone(),
                go: other.to_owned(),
                lines: different_lines(outcome, of_go.unwrap_or_default()),
                errors: [weft.error.clone(), go.error.clone()],
            });
        }
    }
    found
}

/// Returns the lines that only one of two texts has; one line if only the order differs.
fn different_lines(weft: &str, go: &str) -> Vec<String> {
    // A comma depends on the next line.
    let lines =
        |text: &str| text.lines().map(|line| line.trim_end_matches(',').to_owned()).collect::<Vec<_>>();
    let (mut of_weft, mut of_go) = (Vec::new(), lines(go));
    for line in lines(weft) {
        match of_go.iter().position(|other| *other == line) {
            Some(place) => drop(of_go.remove(place)),
            None => of_weft.push(line),
        }
    }
    let of_weft = of_weft.into_iter().map(|line| format!("weft {line}"));
    let lines: Vec<String> = of_weft.chain(of_go.into_iter().map(|line| format!("go   {line}"))).collect();
    if lines.is_empty() { vec!["another order".to_owned()] } else { lines }
}

/// Runs a case as a runtime does: ADD forward, CHECK forward, DEL backward, twice.
fn outcomes(case: &Case, directory: &Path, is_weft: bool) -> Outcomes {
    let (host, pod, _outside) = world();
    let mut run = Run { case, directory, host: &host, pod: &pod, placeholders: Placeholders::default() };
    let mut steps = BTreeMap::new();
    let before = (kernel_state(&host), kernel_state(&pod));
    let snapshot = is_weft.then(|| host.snapshot());
    if case.version == "1.1.0" && case.del != Del::WithoutAdd {
        steps.insert("0 STATUS", outcome(run.forward("STATUS", None).err().as_ref()));
    }
    let added = match case.del {
        Del::WithoutAdd => Ok(None),
        _ => run.add(),
    };
    let (result, error) = match added {
        Ok(result) => (result, String::new()),
        Err((plugin, error)) => {
            steps.insert(ADD, format!("plugin {plugin} fails"));
            (None, error)
        }
    };
    steps.entry(ADD).or_insert_with(|| SUCCEEDS.to_owned());
    if let Some(result) = &result {
        run.look(result, &mut steps);
    }
    run.delete(result.as_ref(), &mut steps);
    run.leftovers(&before, &mut steps);
    if let Some(snapshot) = snapshot.filter(|_| case.change.is_empty()) {
        let left = rig::changes(&snapshot, &host.snapshot());
        // DEL leaves a bridge with its gateway, the chains and tables of the plugins, and directories with their locks.
        let stays =
            ["br0", "br1", "cni0", "iptables", "+ directory /var/lib/cni", "+ directory /run/cni", "/lock "];
        let is_empty_table = |line: &str| line.starts_with("+ nft ") && !line.contains("\"elem\"");
        let is_left = |line: &&str| !stays.iter().any(|part| line.contains(part)) && !is_empty_table(line);
        let left: Vec<&str> = left.lines().filter(is_left).collect();
        let left = if left.is_empty() { "nothing".to_owned() } else { left.join("\n") };
        steps.insert("9 left by weft", left);
    }
    Outcomes { steps, error }
}

/// Case on one host.
struct Run<'a> {
    case: &'a Case,
    directory: &'a Path,
    host: &'a Host,
    pod: &'a Pod,
    placeholders: Placeholders,
}

impl Run<'_> {
    /// Calls ADD; returns the last result, or the number of the plugin that fails and the error.
    fn add(&self) -> Result<Option<Value>, (usize, String)> {
        let mut result: Option<Value> = None;
        for (index, plugin) in self.case.plugins.iter().enumerate() {
            let finished = self.call("ADD", &derived(plugin, result.as_ref()));
            if finished.code != Some(0) {
                let error: Value = serde_json::from_str(&finished.stdout).unwrap_or_default();
                return Err((
                    index,
                    format!("code {}: {} {}", error["code"], error["msg"], error["details"]),
                ));
            }
            result = Some(finished.json());
        }
        Ok(result)
    }

    /// Reads the state after an ADD, and calls CHECK before and after a change.
    fn look(&mut self, result: &Value, steps: &mut BTreeMap<&'static str, String>) {
        let (host, pod) = (self.host, self.pod);
        let mut text = |value: &Value| self.placeholders.text(value);
        steps.insert("2 pod after ADD", text(&kernel_state(pod)));
        steps.insert("3 host after ADD", text(&kernel_state(host)));
        steps.insert("4 result", text(&kernel_state::normalized_result(result)));
        let has_check = self.case.version.as_str() >= "0.4.0";
        if has_check {
            steps.insert("5 CHECK", self.forward("CHECK", Some(result)).err().unwrap_or(SUCCEEDS.to_owned()));
        }
        if self.case.del == Del::AfterGc && self.case.version == "1.1.0" {
            steps.insert("5 GC", outcome(self.forward("GC", Some(result)).err().as_ref()));
            let states = [kernel_state(pod), kernel_state(host)];
            steps.insert(
                "5 state after GC",
                states.each_ref().map(|state| self.placeholders.text(state)).join("\n"),
            );
        }
        if !self.case.change.is_empty() {
            match self.case.change.strip_prefix("host: ") {
                Some(command) => host.attempt(["sh", "-c", command]),
                None => pod.attempt(["sh", "-c", self.case.change]),
            };
            if has_check {
                steps.insert(
                    "5 CHECK after a change",
                    outcome(self.forward("CHECK", Some(result)).err().as_ref()),
                );
            }
        }
    }

    fn delete(&mut self, result: Option<&Value>, steps: &mut BTreeMap<&'static str, String>) {
        let result = result.filter(|_| self.case.del != Del::WithoutResult);
        if matches!(self.case.del, Del::WithoutNetns | Del::WithoutPath) {
            // The kernel removes the links of a namespace that is gone.
            self.pod.attempt(["ip", "link", "del", self.case.ifname]);
        }
        for step in ["6 DEL", "8 DEL again"] {
            let del = |plugin| self.call("DEL", &derived(plugin, result)).code == Some(0);
            // Every DEL runs, also after a failure.
            let outcomes: Vec<bool> = self.case.plugins.iter().rev().map(del).collect();
            let all = outcomes.into_iter().all(|succeeds| succeeds);
            steps.insert(step, if all { SUCCEEDS } else { "fails" }.to_owned());
        }
    }

    fn leftovers(&mut self, before: &(Value, Value), steps: &mut BTreeMap<&'static str, String>) {
        let pod = self.pod;
        let after = (kernel_state(self.host), kernel_state(pod));
        let mut left = |before: &Value, after: &Value| match before == after {
            true => "nothing".to_owned(),
            false => self.placeholders.text(after),
        };
        steps.insert("7 left in the pod", left(&before.1, &after.1));
        steps.insert("7 left on the host", left(&before.0, &after.0));
        let list = "cd /var/lib/cni/networks/net 2>/dev/null && ls -d [0-9f]* || true";
        steps.insert("7 reservations", self.host.attempt(["sh", "-c", list]).stdout);
    }

    /// Calls every plugin until one fails; returns the error.
    fn forward(&self, verb: &str, result: Option<&Value>) -> Result<(), String> {
        let mut calls = self.case.plugins.iter().map(|plugin| {
            let mut config = derived(plugin, result.filter(|_| verb != "GC"));
            if verb == "GC" {
                config["cni.dev/valid-attachments"] =
                    json!([{ "containerID": "fuzz", "ifname": self.case.ifname }]);
            }
            self.call(verb, &config)
        });
        calls.find(|finished| finished.code != Some(0)).map_or(Ok(()), |failed| Err(failed.stdout))
    }

    fn call(&self, verb: &str, config: &Value) -> Finished {
        let program = self.directory.join(config["type"].as_str().expect("a type")).display().to_string();
        let mut attachment = self.host.attachment(&program, self.pod, self.case.ifname);
        "fuzz".clone_into(&mut attachment.container_id);
        attachment.path = self.directory.display().to_string();
        self.case.args.clone_into(&mut attachment.args);
        match (verb, self.case.del) {
            ("DEL", Del::WithoutNetns) => "/run/netns/nowhere".clone_into(&mut attachment.netns),
            ("DEL", Del::WithoutPath) => attachment.netns.clear(),
            _ => {}
        }
        attachment.call(verb, config.to_string())
    }
}

fn outcome(error: Option<&String>) -> String {
    if error.is_some() { "fails" } else { SUCCEEDS }.to_owned()
}

fn world() -> (Host, Pod, Pod) {
    let host = Host::new();
    rig::install(&host);
    let outside = rig::traffic::outside(&host);
    // DEL leaves the bridge: it exists before. Forwarding stays on.
    let script = "ip link add br0 address 02:00:00:00:0b:01 type bridge
        ip link add dev0 address 02:00:00:00:0d:01 type veth peer name peer0
        iptables -t nat -N CNI-MARK && ip6tables -t nat -N CNI-MARK
        sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1";
    host.run(["sh", "-c", script]);
    let pod = host.pod("a");
    (host, pod, outside)
}

fn derived(plugin: &Value, previous: Option<&Value>) -> Value {
    match previous {
        None => plugin.clone(),
        Some(previous) => with(plugin, &json!({ "prevResult": previous })),
    }
}
