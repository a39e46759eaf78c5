//! Addresses: weft-ipam beside host-local and the Go host-local, on a node that holds many, and many calls at once.
//!
//! A ledger that holds many is written as the plugin would have written it; everything else is called. No interface is made.
//! Where 32 call at once, most of the time is that of 32 processes which start: beside them are as many of `/bin/true`, and of
//! the same program that has nothing to do. So the same calls are made by 32 threads of one process, too, through the whole
//! plugin from the configuration's bytes to the answer's, and beside them a locked file, a write, and the disk for each alone.

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

use crate::call::{Plugin, at_once, call_for, start};
use crate::cases::write;
use crate::table::{Table, Times};
use crate::{Failure, Setting};

/// How many addresses a node holds already.
const HELD: [u64; 3] = [0, 10_000, 50_000];
/// Calls at once.
const AT_ONCE: usize = 32;
/// How often each of them is made.
const ROUNDS: usize = 8;
/// Room for all of them.
const RANGE: &str = "10.64.0.0/12";
/// Addresses of a block: 2 to the power of this.
const BITS: u8 = 8;
/// Says in which boot a ledger was written.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// ADD of an address: alone, where many are held, and many at once.
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
    // By turns, each the first as often as the others: what the machine does meanwhile is everybody's.
    for run in 0..setting.runs {
        for place in 0..files.len() {
            let index = (place + run) % files.len();
            let (directory, name, config) = &files[index];
            times[index].push(call_for("ADD", Plugin { directory, name, config }, &format!("a{run}"))?);
        }
    }
    let times: Vec<Times> = times.into_iter().map(Times::new).collect();
    let [none, some, most, other, peer @ ..] = times.as_slice() else {
        return Err("a bench without figures".into());
    };
    table.compare("weft-ipam ADD", none, "our host-local", other, "");
    if let [peer] = peer {
        table.compare("weft-ipam ADD", none, "Go's host-local", peer, "");
    }
    for (held, many) in HELD[1..].iter().zip([some, most]) {
        table.compare(&format!("… where {held} are held"), many, "none held", none, "flat");
    }
    let config = holding(setting, "crowd", 0)?;
    let plugin = Plugin { directory: &setting.ours, name: "weft-ipam", config: &config };
    let (bare, _) = many(|_| start(Path::new("/bin/true"), &[], ""))?;
    let (idle, _) = many(|_| start(&setting.ours.join("weft-ipam"), &[], "VERSION"))?;
    let (times, whole) = many(|name| call_for("ADD", plugin, name))?;
    let what = format!("weft-ipam ADD, {AT_ONCE} at once");
    table.compare(&what, &times, "as many /bin/true", &bare, "p99 at most 5 ms");
    table.compare("…", &times, "as many that say their version", &idle, "");
    table.state("… a second", &a_second(whole), "at least 1,000");
    without_processes(setting, table)
}

/// The same without the start of a process.
fn without_processes(setting: &Setting, table: &mut Table) -> Result<(), Failure> {
    for (what, held) in [("", 0), (" where 50000 are held", HELD[2])] {
        let bytes = std::fs::read(holding(setting, &format!("threads{held}"), held)?)?;
        let (times, whole) = many(|name| call_here("ADD", name, &bytes))?;
        let (floor, _) = many(|name| hold_and_write(&setting.scratch.join("floor"), name))?;
        table.compare(
            &format!("… by {AT_ONCE} threads of one process{what}"),
            &times,
            "lock, write, sync alone",
            &floor,
            "p99 at most 5 ms",
        );
        table.state("… a second", &a_second(whole), "at least 1,000");
    }
    Ok(())
}

fn a_second(whole: Duration) -> String {
    format!("{:.0}", (AT_ONCE * ROUNDS) as f64 / whole.as_secs_f64())
}

/// One call of the plugin in this process, as the meta-plugin makes it.
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

/// What the promise costs who keeps it for himself: nobody else at it, and on the disk before it is told.
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

/// Many threads do it some times each, for another container each time.
fn many(work: impl Fn(&str) -> Result<Duration, Failure> + Sync) -> Result<(Times, Duration), Failure> {
    let threads: Vec<usize> = (0..AT_ONCE).collect();
    let rounds = |thread: &usize| (0..ROUNDS).map(|round| work(&format!("c{thread}x{round}"))).collect();
    let (times, whole): (Vec<Vec<Duration>>, _) = at_once(&threads, rounds)?;
    Ok((Times::new(times.concat()), whole))
}

/// A configuration whose ledger holds so many; the file it is in.
fn holding(setting: &Setting, pool: &str, held: u64) -> Result<PathBuf, Failure> {
    let directory = setting.scratch.join("pools");
    let own = directory.join(pool);
    DirBuilder::new().recursive(true).mode(0o700).create(&own)?;
    let boot = std::fs::read_to_string(BOOT_ID)?;
    let mut ledger = AddressStore::new(boot.trim());
    let range: IpNet = RANGE.parse()?;
    let grid = PoolLayout::new(range, BITS);
    let clock = Clock { now: 1, quarantine: 0 };
    for index in 0..=held >> BITS {
        let net = grid.block(index.into()).ok_or("the range is too small")?;
        let _ = ledger.add_block(
            &BlockLease { net, id: net.to_string(), single_owner: false, reserved: Vec::new() },
            clock.now,
        );
    }
    for mark in 0..held {
        let Choice::Free(place, _) = ledger.choose(clock, |_| true) else {
            return Err("the ledger is full".into());
        };
        let _ = ledger.hold(place, clock.now, mark);
    }
    std::fs::write(own.join("ledger"), ledger.to_bytes())?;
    let ipam =
        json!({ "type": "weft-ipam", "store": "file", "range": RANGE, "pool": pool, "dataDir": directory });
    let config = json!({ "cniVersion": "1.0.0", "name": "bench", "type": "bridge", "ipam": ipam });
    write(setting, &format!("pool-{pool}.json"), &config)
}
