//! Comparison of weft with the real Multus, thin and thick: the same pods on the same networks, one call after another and
//! 32 at once, in turns.
//!
//! - All attach by the same definitions. Multus runs the Go plugins, with addresses in the same files.
//! - A call that fails is repeated immediately, as a kubelet repeats it later, and counts with the whole time.
//! - Work after a call (Events, status) is complete before the next candidate's turn.
//! - Multus's daemon keeps the limit of 50 requests per second, which is compiled in and not configurable.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use benches::table::{Table, Times};
use rig::agent::{NODE, configuration};
use rig::multus::{CACHE_DIRECTORY, DAEMON, Form};
use rig::{Agent, Multus, peers};
use serde_json::Value;
use testkit::{Attachment, Finished};

use super::processors::Spent;
use super::{AT_ONCE, Subject, at, milliseconds, settle, together};

/// Directory in which the daemon finds a default network, and writes the configuration derived from it.
const NETWORKS: &str = "/run/multus-networks";
/// Pause after a wave: work after a call is complete two seconds later at the latest.
const REST: Duration = Duration::from_millis(2500);

/// Maximum number of attempts for a call.
const TRIES: usize = 20;

/// Program that attaches pods.
pub(crate) struct Candidate {
    name: &'static str,
    plugin: String,
    configuration: Value,
    service: Option<&'static str>,
    failures: AtomicUsize,
}

/// Measurements of a candidate.
#[derive(Default)]
struct Figures {
    times: Vec<Duration>,
    /// Pods a second of each wave.
    rates: Vec<f64>,
    /// Processor time during the calls, and until later work is complete.
    during: Spent,
    whole: Spent,
}

/// Returns the candidates that are installed, and prints the missing ones.
pub(crate) fn candidates(agent: &Agent, home: &Value) -> Vec<Candidate> {
    let weft = Candidate {
        name: "weft",
        plugin: "weft".to_owned(),
        configuration: configuration(home),
        service: Some("agent"),
        failures: AtomicUsize::new(0),
    };
    let mut all = vec![weft];
    for form in Form::ALL {
        let programs = match peers::find(form.programs()) {
            Ok(programs) => programs,
            Err(why) => {
                println!("{} is not compared: {why}\n", form.name());
                continue;
            }
        };
        let multus = Multus::new(&agent.machine, &agent.kube, programs);
        if form == Form::Thick {
            agent.machine.write(format!("{NETWORKS}/10-home.conflist"), home.to_string());
            multus.start_daemon(&agent.machine, NODE, NETWORKS);
        }
        all.push(Candidate {
            name: form.name(),
            plugin: multus.program(form.plugin()),
            configuration: multus.configuration(form, home),
            service: (form == Form::Thick).then_some(DAEMON),
            failures: AtomicUsize::new(0),
        });
    }
    all
}

impl Candidate {
    fn call<'a>(&self, agent: &'a Agent, subject: &Subject) -> Attachment<'a> {
        let mut call = agent.attachment(&subject.pod, &subject.name, &subject.uid);
        call.plugin.clone_from(&self.plugin);
        call
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// Whether it is weft, which writes a status after the call.
    pub(crate) fn is_weft(&self) -> bool {
        self.service == Some("agent")
    }

    pub(crate) fn add(&self, agent: &Agent, subject: &Subject) -> Duration {
        self.until_success(|| self.call(agent, subject).call("ADD", self.configuration.to_string()))
    }

    pub(crate) fn del(&self, agent: &Agent, subject: &Subject) -> Duration {
        self.until_success(|| self.call(agent, subject).del(&self.configuration))
    }

    /// Repeats a call until it succeeds; returns the whole time.
    fn until_success(&self, work: impl Fn() -> Finished) -> Duration {
        let begun = Instant::now();
        let mut done = work();
        for _ in 0..TRIES {
            if done.code == Some(0) {
                break;
            }
            self.failures.fetch_add(1, Ordering::Relaxed);
            done = work();
        }
        done.success();
        begun.elapsed()
    }
}

/// Times one call after the other, each after the work of the previous one is complete. Each pod has as many networks as
/// `more` says besides the default one.
pub(crate) fn alone(
    agent: &Agent,
    candidates: &[Candidate],
    more: &str,
    subjects: &[Subject],
    table: &mut Table,
) {
    let mut adds: Vec<Figures> = candidates.iter().map(|_| Figures::default()).collect();
    let mut dels: Vec<Figures> = candidates.iter().map(|_| Figures::default()).collect();
    for (turn, subject) in subjects.iter().enumerate() {
        for (place, candidate) in candidates.iter().enumerate() {
            let add = candidate.add(agent, subject);
            settle(agent);
            let del = candidate.del(agent, subject);
            settle(agent);
            // The first calls find caches empty.
            if turn > 1 {
                adds[place].times.push(add);
                dels[place].times.push(del);
            }
        }
    }
    print_rows(candidates, &format!("ADD, {more} more, alone"), &adds);
    print_rows(candidates, "DEL of it", &dels);
    for (verb, all) in [("ADD", &adds), ("DEL", &dels)] {
        let times = |figures: &Figures| Times::new(figures.times.clone());
        for (candidate, figures) in candidates.iter().zip(all).skip(1) {
            let what = format!("pod with {more} more {verb}, API server");
            table.compare(&what, &times(&all[0]), candidate.name, &times(figures));
        }
    }
}

/// Times 32 calls at once, repeatedly.
pub(crate) fn waves(
    agent: &Agent,
    candidates: &[Candidate],
    (more, subjects): (&str, &[Subject]),
    times: usize,
    table: &mut Table,
) {
    let mut adds: Vec<Figures> = candidates.iter().map(|_| Figures::default()).collect();
    let mut dels: Vec<Figures> = candidates.iter().map(|_| Figures::default()).collect();
    for _ in 0..times {
        for (place, candidate) in candidates.iter().enumerate() {
            let now = || Spent::now(&agent.machine, candidate.service);
            let wave = |figures: &mut Figures, work: &(dyn Fn(&Subject) -> Duration + Sync)| {
                let before = now();
                let (times, whole) = together(AT_ONCE, subjects, work);
                let after = now();
                thread::sleep(REST);
                settle(agent);
                figures.rates.push(times.len() as f64 / whole.as_secs_f64());
                figures.times.extend(times);
                figures.during += after - before;
                figures.whole += now() - before;
            };
            wave(&mut adds[place], &|subject| candidate.add(agent, subject));
            wave(&mut dels[place], &|subject| candidate.del(agent, subject));
        }
    }
    println!("\n{HEAD}");
    print_rows(candidates, &format!("ADD, {more} more, 32 at once, {times} times"), &adds);
    print_rows(candidates, "DEL of them", &dels);
    println!();
    for (end, all) in [("", &adds), (", removed", &dels)] {
        for (candidate, figures) in candidates.iter().zip(all).skip(1) {
            let what = format!("{AT_ONCE} pods at once, {more} more{end}, API server");
            let [ours, theirs] =
                [&all[0], figures].map(|figures| rate(figures).map_or(0.0, |(middle, ..)| middle));
            table.contrast(&what, "pods/s", ours, candidate.name, theirs);
        }
    }
    for (case, all) in [("ADD", &adds), ("DEL", &dels)] {
        for (candidate, figures) in candidates.iter().zip(all) {
            let Figures { during, whole, times, .. } = figures;
            let each = |time: f64| time / times.len() as f64;
            println!(
                "{case}, {}: processor time during the calls: {}; ms for each call: calls {:.1}, service {:.1}, API {:.1}; including later work: calls {:.1}, service {:.1}, API {:.1}",
                candidate.name,
                during.shares(),
                each(during.calls),
                each(during.service),
                each(during.api),
                each(whole.calls),
                each(whole.service),
                each(whole.api),
            );
        }
    }
    for Candidate { name, failures, .. } in candidates {
        println!("{name}: {} calls failed, and were repeated", failures.swap(0, Ordering::Relaxed));
    }
}

/// Fails if Multus left files or addresses, because the calls would then have been incomplete.
pub(crate) fn assert_nothing_left(agent: &Agent) {
    let remaining =
        agent.machine.run(["sh", "-c", &format!("find {CACHE_DIRECTORY} -type f 2>/dev/null | head -5")]);
    assert_eq!(remaining, "", "files of Multus remain");
    let held = "find /var/lib/cni/networks -type f -name '10.*' 2>/dev/null | head -5";
    assert_eq!(agent.machine.run(["sh", "-c", held]), "", "addresses remain");
}

pub(crate) const HEAD: &str = "| measurement | program | fastest | median | p99 | slowest | pods/s: median (range) | factor by which weft is faster |\n|---|---|---|---|---|---|---|---|";

fn print_rows(candidates: &[Candidate], case: &str, all: &[Figures]) {
    let median = |figures: &Figures| at(&sorted(&figures.times), 50);
    for (candidate, figures) in candidates.iter().zip(all) {
        let times = sorted(&figures.times);
        let slower = median(figures).as_secs_f64() / median(&all[0]).as_secs_f64();
        let mut ratio = format!("{slower:.1} by the median");
        let mut pods = String::new();
        if let (Some((middle, least, most)), Some((ours, ..))) = (rate(figures), rate(&all[0])) {
            pods = format!("{middle:.0} ({least:.0} to {most:.0})");
            ratio = format!("{:.1} by pods/s, {ratio}", ours / middle);
        }
        if candidate.name == candidates[0].name {
            ratio.clear();
        }
        let cells = [0, 50, 99, 100].map(|percent| milliseconds(at(&times, percent))).join(" | ");
        println!("| {case} | {} | {cells} | {pods} | {ratio} |", candidate.name);
    }
}

/// Median, least and greatest rate of the waves, in pods a second.
fn rate(figures: &Figures) -> Option<(f64, f64, f64)> {
    let mut rates: Vec<f64> = figures.rates.iter().map(|rate| (rate * 10.0).round() / 10.0).collect();
    rates.sort_by(f64::total_cmp);
    (!rates.is_empty()).then(|| (rates[rates.len() / 2], rates[0], rates[rates.len() - 1]))
}

fn sorted(times: &[Duration]) -> Vec<Duration> {
    let mut times = times.to_vec();
    times.sort();
    times
}
