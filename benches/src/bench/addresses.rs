//! Benchmarks address allocation: weft-ipam, host-local and the Go host-local, with many held addresses and many
//! concurrent calls.
//!
//! No interface is created. An address store with many addresses is written as the plugin would write it. With 32 calls
//! at once, most of the time goes into starting 32 processes, so the same number of `/bin/true`, and of weft-ipam
//! without work, is timed as well. In addition, 32 threads in one process make the same calls through the whole plugin,
//! from configuration to result; they are compared with only a file lock, a write and a sync.

use std::fs::{DirBuilder, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cni::environment::Environment;
use cni::plugin::respond;
use ipam::address_store::Choice;
use ipam::{AddressStore, BlockLease, Clock, PoolLayout};
use ipnet::IpNet;
use serde_json::json;
use weft_cni::plugin_invoker::PluginInvoker;
use weft_cni::weft_ipam::WeftIpam;

use crate::Setting;
use crate::call::{Plugin, at_once, call_for, start};
use crate::cases::write;
use benches::Failure;
use benches::table::{Table, Times};

/// Numbers of addresses that the node already holds.
const HELD: [u64; 3] = [0, 10_000, 50_000];
/// Number of concurrent callers.
const AT_ONCE: usize = 32;
/// Number of calls that each of them makes.
const ROUNDS: usize = 8;
/// Range with room for all addresses.
const RANGE: &str = "10.64.0.0/12";
/// Block size: 2 to this power.
const BITS: u8 = 8;
/// Boot id, which an address store contains.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Times ADD for an address: alone, with many held addresses, and concurrently.
pub(crate) fn addresses(setting: &Setting, table: &mut Table) -> Result<(), Failure> {
    let host_local = |tag: &str| {
        let ipam = json!({ "type": "host-local", "subnet": RANGE, "dataDir": setting.scratch.join(tag) });
        let config = json!({ "cniVersion": "1.0.0", "name": "bench", "type": "bridge", "ipam": ipam });
        write(setting, &format!("{tag}.json"), &config)
    };
    let mut files = Vec::new();
    for held in &HELD {
        files.push((&setting.ours, "weft-ipam", holding(setting, &format!("held{held}"), *held)?));
    }
    files.push((&setting.ours, "host-local", host_local("hl-w")?));
    if let Some(peers) = &setting.peers {
        files.push((peers, "host-local", host_local("hl-g")?));
    }
    let mut times = vec![Vec::new(); files.len()];
    // In turns, each round starting with another one, so that disturbances on the machine affect all alike.
    for run in 0..setting.runs {
        for place in 0..files.len() {
            let index = (place + run) % files.len();
            let (directory, name, config) = &files[index];
            times[index].push(call_for("ADD", Plugin { directory, name, config }, &format!("a{run}"))?);
        }
    }
    let times: Vec<Times> = times.into_iter().map(Times::new).collect();
    let [none, some, most, other, peer @ ..] = times.as_slice() else {
        return Err("a benchmark without results".into());
    };
    table.compare("weft-ipam ADD", none, "host-local of weft", other);
    if let [peer] = peer {
        table.compare("weft-ipam ADD", none, "Go's host-local", peer);
    }
    for (held, many) in HELD[1..].iter().zip([some, most]) {
        table.compare(&format!("weft-ipam ADD where {held} addresses are held"), many, "none held", none);
    }
    let config = holding(setting, "concurrent", 0)?;
    let plugin = Plugin { directory: &setting.ours, name: "weft-ipam", config: &config };
    let (bare, _) = many(|_| start(Path::new("/bin/true"), &[], ""))?;
    let (idle, _) = many(|_| start(&setting.ours.join("weft-ipam"), &[], "VERSION"))?;
    let (times, whole) = many(|name| call_for("ADD", plugin, name))?;
    let what = format!("weft-ipam ADD, {AT_ONCE} at once");
    table.compare(&what, &times, "as many /bin/true", &bare);
    table.compare(&what, &times, "as many VERSION calls", &idle);
    table.state(&format!("{what}, calls a second"), "calls/s", a_second(whole));
    without_processes(setting, table)
}

/// Times the same calls without starting processes.
fn without_processes(setting: &Setting, table: &mut Table) -> Result<(), Failure> {
    for (what, held) in [("", 0), (" where 50000 are held", HELD[2])] {
        let bytes = std::fs::read(holding(setting, &format!("threads{held}"), held)?)?;
        let (times, whole) = many(|name| call_here("ADD", name, &bytes))?;
        let (baseline, _) = many(|name| hold_and_write(&setting.scratch.join("baseline"), name))?;
        let what = format!("weft-ipam ADD by {AT_ONCE} threads of one process{what}");
        table.compare(&what, &times, "lock, write, sync alone", &baseline);
        table.state(&format!("{what}, calls a second"), "calls/s", a_second(whole));
    }
    Ok(())
}

fn a_second(whole: Duration) -> f64 {
    ((AT_ONCE * ROUNDS) as f64 / whole.as_secs_f64()).round()
}

/// Calls the plugin within this process, as the meta-plugin does.
fn call_here(verb: &str, container: &str, config: &[u8]) -> Result<Duration, Failure> {
    let environment = Environment {
        command: verb.to_owned(),
        container_id: container.to_owned(),
        netns: "/run/netns/none".to_owned(),
        ifname: "eth0".to_owned(),
        args: "IgnoreUnknown=1;K8S_POD_NAMESPACE=bench;K8S_POD_NAME=pod".to_owned(),
        path: "/nowhere".to_owned(),
        netns_override: String::new(),
    };
    let started = Instant::now();
    let answer = respond(&WeftIpam("weft-ipam"), &environment, &mut &*config, &PluginInvoker::of_process());
    let took = started.elapsed();
    answer.into_result().map(|_| took).map_err(|error| error.to_string().into())
}

/// Performs the least work that a durable allocation needs: locks a file, writes it, and syncs it to disk.
fn hold_and_write(path: &Path, name: &str) -> Result<Duration, Failure> {
    let started = Instant::now();
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
    file.lock()?;
    let place = name.bytes().fold(0_u64, |sum, byte| (sum * 31 + u64::from(byte)) % 256);
    file.write_all_at(&[1; 16], place * 16)?;
    file.unlock()?;
    file.sync_data()?;
    Ok(started.elapsed())
}

/// Runs `work` several times on each of many threads, each time for another container.
fn many(work: impl Fn(&str) -> Result<Duration, Failure> + Sync) -> Result<(Times, Duration), Failure> {
    let threads: Vec<usize> = (0..AT_ONCE).collect();
    let rounds = |thread: &usize| (0..ROUNDS).map(|round| work(&format!("c{thread}x{round}"))).collect();
    let (times, whole): (Vec<Vec<Duration>>, _) = at_once(&threads, rounds)?;
    Ok((Times::new(times.concat()), whole))
}

/// Writes a configuration whose address store holds this many addresses; returns the path.
fn holding(setting: &Setting, pool: &str, held: u64) -> Result<PathBuf, Failure> {
    // Each pool has its own directory, because pools that have the same range in one directory avoid each other's
    // addresses.
    let directory = setting.scratch.join("pools").join(pool);
    let own = directory.join(pool);
    DirBuilder::new().recursive(true).mode(0o700).create(&own)?;
    let boot = std::fs::read_to_string(BOOT_ID)?;
    let mut store = AddressStore::new(boot.trim());
    let range: IpNet = RANGE.parse()?;
    let grid = PoolLayout::new(range, BITS);
    let clock = Clock { now: 1, quarantine: 0 };
    for index in 0..=held >> BITS {
        let net = grid.block(index.into()).ok_or("the range is too small")?;
        let _ = store.add_block(
            &BlockLease { net, id: net.to_string(), single_owner: false, reserved: Vec::new() },
            clock.now,
        );
    }
    for mark in 0..held {
        let Choice::Free(place, _) = store.choose(clock, |_| true) else {
            return Err("the address store is full".into());
        };
        let _ = store.hold(place, clock.now, mark);
    }
    std::fs::write(own.join("ledger"), store.to_bytes())?;
    let ipam =
        json!({ "type": "weft-ipam", "store": "file", "range": RANGE, "pool": pool, "dataDir": directory });
    let config = json!({ "cniVersion": "1.0.0", "name": "bench", "type": "bridge", "ipam": ipam });
    write(setting, &format!("pool-{pool}.json"), &config)
}
