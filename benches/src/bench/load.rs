//! Benchmarks nodes under load: many pods in a row, and pods next to hundreds of others.
//!
//! - Pods in a row are attached by a fixed number of threads, and all of them stay until the last one is attached.
//! - For pods in a row, the kernel baseline creates the same links with as many threads, and starts one process per
//!   pod.
//! - A full node holds sandboxes made by the program that is measured, so each program has a separate node.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use benches::Failure;
use benches::table::{Table, Times, milliseconds};

use crate::Setting;
use crate::baseline::{attach_ports, bridge_ports, remove_ports};
use crate::call::{Container, at_once, start};
use crate::pods::{PodCaller, callers, in_turns, named};

/// Numbers of pods at a time in the plot, and number of pods in each measurement.
const PARALLEL: [usize; 6] = [1, 2, 4, 8, 16, 32];
const PODS_OF_PLOT: usize = 96;
/// Numbers of pods on a full node; the first and the last one are compared.
const HELD: [usize; 4] = [20, 100, 250, 500];
/// Bridges that weft's pods use, the default network's first.
const BRIDGES: [&str; 4] = ["podbr", "pod0", "pod1", "pod2"];
/// Number of threads that fill a node.
const FILLING: usize = 4;
/// Maximum number of calls for each pod count.
const RUNS_MAX: usize = 25;

/// Times pods in a row, as many at a time as the settings say.
pub(crate) fn sustained(setting: &Setting, table: &mut Table) -> Result<(), Failure> {
    for &count in &setting.pods {
        let containers = Container::many("row", count)?;
        for networks in [1, 3] {
            let (ours, theirs) = callers(setting, networks)?;
            let ours = in_a_row(&ours, &containers, setting.at_once)?;
            let theirs = theirs.map(|caller| in_a_row(&caller, &containers, setting.at_once)).transpose()?;
            let floor = floor_in_a_row(&containers, &BRIDGES[..=networks], setting.at_once)?;
            let plural = if networks == 1 { "" } else { "s" };
            let what = format!("{count} pods, {networks} network{plural} more");
            for (place, part) in ["in a row", "removed in a row"].into_iter().enumerate() {
                let what = format!("{what}, {part}");
                match &theirs {
                    Some(theirs) => table.contrast(&what, "pods/s", ours[place], "Go", theirs[place]),
                    None => table.state(&what, "pods/s", ours[place]),
                }
                if place == 0 {
                    table.contrast(&what, "pods/s", ours[place], "kernel baseline and a bare exec", floor);
                }
            }
        }
    }
    let containers = Container::many("plot", PODS_OF_PLOT)?;
    let (ours, theirs) = callers(setting, 1)?;
    for parallel in PARALLEL {
        for (line, caller) in [("weft", Some(&ours)), ("Go plugins", theirs.as_ref())] {
            let Some(caller) = caller else { continue };
            let [rate, _] = in_a_row(caller, &containers, parallel)?;
            table.point("parallel", line, parallel, rate);
        }
    }
    Ok(())
}

/// Attaches and detaches all pods, some at a time; returns both rates in pods per second.
fn in_a_row(caller: &PodCaller, containers: &[Container], parallel: usize) -> Result<[f64; 2], Failure> {
    let rate = |verb: fn(&PodCaller, &Container) -> Result<Duration, Failure>| {
        rate_of(containers, parallel, |_, container| verb(caller, container).map(drop))
    };
    Ok([rate(PodCaller::add)?, rate(PodCaller::del)?])
}

/// Attaches all containers to these bridges, some at a time, without a plugin: for each container a process without
/// work starts, and this process creates the links. Returns the rate in pods per second.
fn floor_in_a_row(containers: &[Container], bridges: &[&str], parallel: usize) -> Result<f64, Failure> {
    let ports = Mutex::new(Vec::new());
    let lock = || ports.lock().unwrap_or_else(PoisonError::into_inner);
    let rate = rate_of(containers, parallel, |number, container| {
        start(Path::new("/bin/true"), &[], "")?;
        let made = attach_ports(container, number, bridges)?;
        lock().extend(made);
        Ok(())
    })?;
    remove_ports(&lock())?;
    Ok(rate)
}

/// Runs `work` for all containers, some at a time. Returns the number of containers per second.
fn rate_of(
    containers: &[Container],
    parallel: usize,
    work: impl Fn(usize, &Container) -> Result<(), Failure> + Sync,
) -> Result<f64, Failure> {
    let next = AtomicUsize::new(0);
    let threads: Vec<usize> = (0..parallel).collect();
    let (_, whole) = at_once(&threads, |_| {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(container) = containers.get(number) else { return Ok(()) };
            work(number, container)?;
        }
    })?;
    Ok((containers.len() as f64 / whole.as_secs_f64() * 10.0).round() / 10.0)
}

/// Times ADD and DEL for a pod on nodes that hold others.
pub(crate) fn full(setting: &Setting, table: &mut Table) -> Result<(), Failure> {
    let (ours, theirs) = callers(setting, 3)?;
    let containers = Container::many("held", HELD[HELD.len() - 1])?;
    let mut floor = None;
    let ours = filling(setting, "weft", &ours, &containers, table, || {
        floor = Some(floor_of_pod(setting)?);
        Ok(())
    })?;
    let go = |caller: PodCaller| filling(setting, "Go plugins", &caller, &containers, table, || Ok(()));
    let theirs = theirs.map(go).transpose()?;
    let ([few, .., many], what) = (ours.as_slice(), named(3)) else {
        return Err("no pod was timed".into());
    };
    for (place, verb) in ["ADD", "DEL"].into_iter().enumerate() {
        let what = format!("{what} {verb}, 500 pods on the node");
        table.compare(&what, &many[place], "20 pods", &few[place]);
        if let Some(floor) = floor.as_ref().filter(|_| verb == "ADD") {
            table.compare(&what, &many[place], "kernel baseline there", floor);
        }
        if let Some(theirs) = theirs.as_ref().and_then(|all| all.last()) {
            table.compare(&what, &many[place], "Go", &theirs[place]);
        }
    }
    Ok(())
}

/// Times the kernel baseline on the bridges that weft's pods use. When a link is set up, it reports multicast groups,
/// and the kernel delivers them to each bridge port.
fn floor_of_pod(setting: &Setting) -> Result<Times, Failure> {
    let mut times = Vec::new();
    for run in 0..=setting.runs.min(RUNS_MAX) {
        let container = Container::new(format!("floor-{run}"))?;
        let took = bridge_ports(&container, &BRIDGES)?;
        if run > 0 {
            times.push(took);
        }
    }
    Ok(Times::new(times))
}

/// Fills a node step by step, times a pod at each step, calls `when_full`, and empties the node.
fn filling(
    setting: &Setting,
    line: &str,
    caller: &PodCaller,
    containers: &[Container],
    table: &mut Table,
    when_full: impl FnOnce() -> Result<(), Failure>,
) -> Result<Vec<[Times; 2]>, Failure> {
    let mut steps = Vec::new();
    let mut filled = 0;
    for held in HELD {
        each(&containers[filled..held], |container| caller.add(container))?;
        filled = held;
        let mut times = in_turns(&[caller], &format!("beside{held}"), setting.runs.min(RUNS_MAX))?;
        let times = times.pop().ok_or("no pod was timed")?;
        table.point("held", line, held, milliseconds(times[0].median()));
        steps.push(times);
    }
    when_full()?;
    each(containers, |container| caller.del(container))?;
    Ok(steps)
}

/// Runs `work` for all containers, some at a time.
fn each<T: Send>(
    containers: &[Container],
    work: impl Fn(&Container) -> Result<T, Failure> + Sync,
) -> Result<(), Failure> {
    let parts: Vec<&[Container]> = containers.chunks(containers.len().div_ceil(FILLING).max(1)).collect();
    let all = |part: &&[Container]| part.iter().try_for_each(|container| work(container).map(drop));
    at_once(&parts, all).map(drop)
}
