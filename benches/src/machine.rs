//! Describes the machine and the compared programs, without the host name.
//!
//! Source: proc(5), `/proc/cpuinfo`, `/proc/stat`, `/proc/PID/mountinfo`.

use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::results::Run;

/// Returns the head of a run. `command` is how a user starts the bench, unless the variable `COMMAND` says otherwise.
#[must_use]
pub fn run(bench: &str, command: &str, peers: &str, scratch: &Path) -> Run {
    Run {
        bench: bench.to_owned(),
        command: std::env::var("COMMAND").unwrap_or_else(|_| command.to_owned()),
        weft: env!("CARGO_PKG_VERSION").to_owned(),
        peers: peers.to_owned(),
        machine: description(scratch),
        load: load(),
    }
}

/// Returns the load average over the last minute.
#[must_use]
pub fn load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().unwrap_or("unknown").to_owned()
}

/// Waits until the processors are idle, but at most for a minute, because the kernel still removes links and namespaces
/// after the commands have ended.
pub fn rest() {
    const INTERVAL: Duration = Duration::from_millis(300);
    const LONGEST: Duration = Duration::from_secs(60);
    const IDLE: f64 = 0.9;
    let started = Instant::now();
    let mut before = processor_times();
    while started.elapsed() < LONGEST {
        sleep(INTERVAL);
        let now = processor_times();
        let [idle, all] = [0, 1].map(|place| now[place].saturating_sub(before[place]));
        if idle as f64 >= all as f64 * IDLE {
            return;
        }
        before = now;
    }
}

/// Returns idle time and total time over all processors since boot, in ticks.
fn processor_times() -> [u64; 2] {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let first = text.lines().next().unwrap_or_default();
    let ticks: Vec<u64> = first.split_whitespace().skip(1).filter_map(|word| word.parse().ok()).collect();
    [ticks.get(3).copied().unwrap_or_default(), ticks.iter().sum()]
}

fn description(scratch: &Path) -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or("unknown processor", |(_, model)| model.trim());
    let cores = info.lines().filter(|line| line.starts_with("processor")).count();
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let disk = scratch.join("disk");
    let files = match disk.is_dir() {
        true => format!("{}, on the disk {}", filesystem(scratch), filesystem(&disk)),
        false => filesystem(scratch),
    };
    format!("{model}, {cores} cores, Linux {}, files in {files}", kernel.trim())
}

/// Returns the type of the file system that contains a path.
#[must_use]
pub fn filesystem(path: &Path) -> String {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    // A later mount at the same place hides an earlier one.
    let mut found = (0, "unknown");
    for line in mounts.lines() {
        let Some((before, after)) = line.split_once(" - ") else { continue };
        let place = Path::new(before.split_whitespace().nth(4).unwrap_or_default());
        let depth = place.components().count();
        if path.starts_with(place) && depth >= found.0 {
            found = (depth, after.split_whitespace().next().unwrap_or_default());
        }
    }
    found.1.to_owned()
}

/// Returns the name for the Go plugins, with the version from the variable `PEERS_VERSION`, because most builds have
/// none.
#[must_use]
pub fn go_plugins() -> String {
    let version = std::env::var("PEERS_VERSION").unwrap_or_default();
    format!("Go plugins {version}").trim_end().to_owned()
}
