//! Measures how much files cost: on a disk or in memory, and when they are not in the page cache.
//!
//! - A pod's journal is synced to disk before the first interface is created. In memory that is free, so all other rows
//!   keep files there, because a shared machine's disk would disturb them. The Go plugins do not sync.
//! - A cold call is the first one after a boot: the kernel reads program, configuration and addresses from disk. Only
//!   these files' pages are dropped from the cache, not those of the whole machine.
//!
//! Source: posix_fadvise(2).

use std::fs::{self, File};
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use benches::Failure;
use benches::machine::filesystem;
use benches::table::{Table, Times};
use rustix::fs::{Advice, fadvise};

use crate::Setting;
use crate::call::{Container, Plugin, SETTLING, call};
use crate::cases::{bridge, write};
use crate::pods::{PodCaller, in_turns, named};

/// Maximum number of cold calls.
const RUNS_MAX: usize = 20;

/// Times a pod and an address with files on disk and in memory.
pub(crate) fn disk(setting: &Setting, table: &mut Table) -> Result<(), Failure> {
    let disk = setting.scratch.join("disk");
    let (on_disk, in_memory) = (filesystem(&disk), filesystem(&setting.scratch));
    if !disk.is_dir() || in_memory != "tmpfs" || on_disk == "tmpfs" {
        eprintln!("weft-bench: no files on the disk: {} is {on_disk}", disk.display());
        return Ok(());
    }
    let ours = PodCaller::weft(setting, 3, &[], &disk)?;
    let memory = PodCaller::weft(setting, 3, &[], &setting.scratch)?;
    let peer = setting.peers.as_deref().map(|peers| PodCaller::go(setting, peers, 3, &disk)).transpose()?;
    let all: Vec<&PodCaller> = [&ours, &memory].into_iter().chain(&peer).collect();
    let times = in_turns(&all, "files", setting.runs)?;
    for (place, verb) in ["ADD", "DEL"].into_iter().enumerate() {
        let what = format!("{} {verb}, files on the disk", named(3));
        table.compare(&what, &times[0][place], "files in memory", &times[1][place]);
        if let Some(peer) = times.get(2) {
            table.compare(&what, &times[0][place], "Go", &peer[place]);
        }
    }
    Ok(())
}

/// Times the first call after all files have left the page cache.
pub(crate) fn cold(setting: &Setting, table: &mut Table) -> Result<(), Failure> {
    let what = "bridge + host-local ADD, nothing in the page cache";
    let runs = setting.runs.min(RUNS_MAX);
    // Files in memory never leave the cache.
    let on_disk = setting.scratch.join("disk");
    for directory in [&on_disk, &setting.ours] {
        if !directory.is_dir() || filesystem(directory) == "tmpfs" {
            eprintln!("weft-bench: no cold page cache: {} is not on a disk", directory.display());
            return Ok(());
        }
    }
    let programs = &setting.ours;
    let setting = &Setting { scratch: on_disk, ..setting.clone() };
    let ours = one_by_one(setting, programs, "w", runs, true)?;
    let warm = one_by_one(setting, programs, "w", runs, false)?;
    table.compare(what, &ours, "everything in it", &warm);
    if let Some(peers) = &setting.peers {
        table.compare(what, &ours, "Go", &one_by_one(setting, peers, "g", runs, true)?);
    }
    Ok(())
}

fn one_by_one(
    setting: &Setting,
    directory: &Path,
    tag: &str,
    runs: usize,
    cold: bool,
) -> Result<Times, Failure> {
    let config = write(setting, &format!("cold-{tag}.json"), &bridge(setting, tag, false))?;
    let plugin = Plugin { directory, name: "bridge", config: &config };
    let mut times: Vec<Duration> = Vec::new();
    for run in 0..=runs {
        let container = Container::new(format!("cold{tag}{cold}{run}"))?;
        if cold {
            let addresses = setting.scratch.join("addresses");
            for path in [directory, &addresses, &config] {
                forget(path)?;
            }
        }
        let took = call("ADD", plugin, &container)?;
        sleep(SETTLING);
        call("DEL", plugin, &container)?;
        if run > 0 {
            times.push(took);
        }
    }
    Ok(Times::new(times))
}

/// Drops a file, or all files in a directory, from the page cache.
fn forget(path: &Path) -> Result<(), Failure> {
    if path.is_dir() {
        return fs::read_dir(path)?.try_for_each(|entry| forget(&entry?.path()));
    }
    let Ok(file) = File::open(path) else { return Ok(()) };
    // Pages that are not written yet would stay.
    file.sync_all()?;
    Ok(fadvise(&file, 0, None, Advice::DontNeed)?)
}
