//! The same pods on the same networks, attached by weft and by the real Multus in both of its forms, one call after
//! another and 32 at once, in turns.
//!
//! Rules: all of them attach by the same definitions; Multus runs the Go plugins, as it would, with its addresses in the
//! same files. A call that fails is made again at once, as a kubelet does later, and counts with all its time. What each of
//! them does behind a call (Events, status) is done before the next one's turn. Multus's daemon keeps the limits that it
//! puts on itself, 50 requests a second: they are in its program and not in its configuration.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rig::agent::{NODE, configuration};
use rig::cluster::bridge;
use rig::multus::{CACHE_DIRECTORY, DAEMON, Form};
use rig::{Agent, Multus, peers};
use serde_json::Value;
use testkit::{Attachment, Finished};

use super::processors::Spent;
use super::{AT_ONCE, Subject, at, milliseconds, settle, together};

/// Where its daemon finds a default network, and writes the configuration that it makes of it.
const NETWORKS: &str = "/run/multus-networks";
/// What is begun behind a call is told after two seconds at the latest.
const REST: Duration = Duration::from_millis(2500);

/// How often a call is made again.
const TRIES: usize = 20;

/// Who attaches pods.
pub(crate) struct Contender {
    name: &'static str,
    plugin: String,
    configuration: Value,
    service: Option<&'static str>,
    failures: AtomicUsize,
}

/// What came of it.
#[derive(Default)]
struct Figures {
    times: Vec<Duration>,
    /// Pods a second, wave by wave.
    rates: Vec<f64>,
    /// During the calls, and until all is told.
    during: Spent,
    whole: Spent,
}

/// Those who are there; who is not is named.
pub(crate) fn contenders(agent: &Agent) -> Vec<Contender> {
    let home = bridge("home", 10);
    let weft = Contender {
        name: "weft",
        plugin: "weft".to_owned(),
        configuration: configuration(&home),
        service: Some("agent"),
        failures: AtomicUsize::new(0),
    };
    let mut all = vec![weft];
    for form in Form::ALL {
        let programs = match peers::find(form.programs()) {
            Ok(programs) => programs,
            Err(why) => {
                println!("left out, {}: {why}\n", form.name());
                continue;
            }
        };
        let multus = Multus::new(&agent.machine, &agent.kube, programs);
        if form == Form::Thick {
            agent.machine.write(format!("{NETWORKS}/10-home.conflist"), home.to_string());
            multus.start_daemon(&agent.machine, NODE, NETWORKS);
        }
        all.push(Contender {
            name: form.name(),
            plugin: multus.program(form.plugin()),
            configuration: multus.configuration(form, &home),
            service: (form == Form::Thick).then_some(DAEMON),
            failures: AtomicUsize::new(0),
        });
    }
    all
}

impl Contender {
    fn call<'a>(&self, agent: &'a Agent, subject: &Subject) -> Attachment<'a> {
        let mut call = agent.attachment(&subject.pod, &subject.name, &subject.uid);
        call.plugin.clone_from(&self.plugin);
        call
    }

    fn add(&self, agent: &Agent, subject: &Subject) -> Duration {
        self.in_the_end(|| self.call(agent, subject).add(&self.configuration))
    }

    fn del(&self, agent: &Agent, subject: &Subject) -> Duration {
        self.in_the_end(|| self.call(agent, subject).del(&self.configuration))
    }

    /// How long it takes until it succeeds.
    fn in_the_end(&self, work: impl Fn() -> Finished) -> Duration {
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

/// One call after the other, each when what the last one began is done.
pub(crate) fn alone(agent: &Agent, contenders: &[Contender], what: &str, subjects: &[Subject]) {
    let mut adds: Vec<Figures> = contenders.iter().map(|_| Figures::default()).collect();
    let mut dels: Vec<Figures> = contenders.iter().map(|_| Figures::default()).collect();
    for (turn, subject) in subjects.iter().enumerate() {
        for (place, contender) in contenders.iter().enumerate() {
            let add = contender.add(agent, subject);
            settle(agent);
            let del = contender.del(agent, subject);
            settle(agent);
            // The first ones find files and pages that are not there yet.
            if turn > 1 {
                adds[place].times.push(add);
                dels[place].times.push(del);
            }
        }
    }
    tell(contenders, &format!("ADD, {what}, alone"), &adds);
    tell(contenders, "DEL of it", &dels);
}

/// 32 at once, so many times.
pub(crate) fn waves(agent: &Agent, contenders: &[Contender], what: &str, subjects: &[Subject], times: usize) {
    let mut adds: Vec<Figures> = contenders.iter().map(|_| Figures::default()).collect();
    let mut dels: Vec<Figures> = contenders.iter().map(|_| Figures::default()).collect();
    for _ in 0..times {
        for (place, contender) in contenders.iter().enumerate() {
            let now = || Spent::now(&agent.machine, contender.service);
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
            wave(&mut adds[place], &|subject| contender.add(agent, subject));
            wave(&mut dels[place], &|subject| contender.del(agent, subject));
        }
    }
    println!("\n{HEAD}");
    tell(contenders, &format!("ADD, {what}, 32 at once, {times} times"), &adds);
    tell(contenders, "DEL of them", &dels);
    println!();
    for (what, all) in [("ADD", &adds), ("DEL", &dels)] {
        for (contender, figures) in contenders.iter().zip(all) {
            let Figures { during, whole, times, .. } = figures;
            let each = |time: f64| time / times.len() as f64;
            println!(
                "{what}, {}: of both processors during the calls {}; ms each: calls {:.1}, service {:.1}, API {:.1}; until all is told: calls {:.1}, service {:.1}, API {:.1}",
                contender.name,
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
    for Contender { name, failures, .. } in contenders {
        println!("{name}: {} calls failed, and were made again", failures.swap(0, Ordering::Relaxed));
    }
}

/// Fails if Multus has lost something of what it attached: the calls would not have been whole ones.
pub(crate) fn assert_forgotten(agent: &Agent) {
    let left =
        agent.machine.run(["sh", "-c", &format!("find {CACHE_DIRECTORY} -type f 2>/dev/null | head -5")]);
    assert_eq!(left, "", "left by Multus");
    let held = "find /var/lib/cni/networks -type f -name '10.*' 2>/dev/null | head -5";
    assert_eq!(agent.machine.run(["sh", "-c", held]), "", "addresses left");
}

pub(crate) const HEAD: &str = "| what | who | fastest | median | p99 | slowest | pods/s: median (all) | weft is so many times faster |\n|---|---|---|---|---|---|---|---|";

fn tell(contenders: &[Contender], what: &str, all: &[Figures]) {
    let median = |figures: &Figures| at(&sorted(&figures.times), 50);
    let rate = |figures: &Figures| {
        let mut rates = figures.rates.clone();
        rates.sort_by(f64::total_cmp);
        (!rates.is_empty()).then(|| (rates[rates.len() / 2], rates[0], rates[rates.len() - 1]))
    };
    for (contender, figures) in contenders.iter().zip(all) {
        let times = sorted(&figures.times);
        let slower = median(figures).as_secs_f64() / median(&all[0]).as_secs_f64();
        let mut ratio = format!("{slower:.1} by the median");
        let mut pods = String::new();
        if let (Some((middle, least, most)), Some((ours, ..))) = (rate(figures), rate(&all[0])) {
            pods = format!("{middle:.0} ({least:.0} to {most:.0})");
            ratio = format!("{:.1} by pods/s, {ratio}", ours / middle);
        }
        if contender.name == contenders[0].name {
            ratio.clear();
        }
        let cells = [0, 50, 99, 100].map(|percent| milliseconds(at(&times, percent))).join(" | ");
        println!("| {what} | {} | {cells} | {pods} | {ratio} |", contender.name);
    }
}

fn sorted(times: &[Duration]) -> Vec<Duration> {
    let mut times = times.to_vec();
    times.sort();
    times
}
