//! Addresses: weft-ipam beside host-local and the Go host-local, on a node that holds many, and many calls at once.
//!
//! A ledger that holds many is written as the plugin would have written it; everything else is called. No interface is made.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ipam::Grid;
use ipam::ledger::{Choice, Clock, Lease, Ledger};
use ipnet::IpNet;
use serde_json::json;

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
    let alone = |directory: &Path, name: &str, config: &Path| {
        let plugin = Plugin { directory, name, config };
        (0..setting.runs)
            .map(|run| call_for("ADD", plugin, &format!("a{run}")))
            .collect::<Result<_, _>>()
            .map(Times::new)
    };
    let ours = alone(&setting.ours, "weft-ipam", &holding(setting, "alone", HELD[0])?)?;
    let other = alone(&setting.ours, "host-local", &host_local("hl-w")?)?;
    table.compare("weft-ipam ADD", &ours, "our host-local", &other, "");
    if let Some(peers) = &setting.peers {
        let peer = alone(peers, "host-local", &host_local("hl-g")?)?;
        table.compare("weft-ipam ADD", &ours, "Go's host-local", &peer, "");
    }
    for held in &HELD[1..] {
        let many = alone(&setting.ours, "weft-ipam", &holding(setting, &format!("held{held}"), *held)?)?;
        table.compare(&format!("… where {held} are held"), &many, "none held", &ours, "flat");
    }
    let config = holding(setting, "crowd", 0)?;
    let plugin = Plugin { directory: &setting.ours, name: "weft-ipam", config: &config };
    let (bare, _) = many(|_| start(Path::new("/bin/true"), &[], ""))?;
    let (times, whole) = many(|name| call_for("ADD", plugin, name))?;
    table.compare(
        &format!("weft-ipam ADD, {AT_ONCE} at once"),
        &times,
        "as many /bin/true",
        &bare,
        "p99 at most 5 ms",
    );
    let a_second = (AT_ONCE * ROUNDS) as f64 / whole.as_secs_f64();
    table.state("… a second", &format!("{a_second:.0}"), "at least 1,000");
    Ok(())
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
    let mut ledger = Ledger::new(boot.trim());
    let range: IpNet = RANGE.parse()?;
    let grid = Grid::new(range, BITS);
    let clock = Clock { now: 1, rest: 0 };
    for index in 0..=held >> BITS {
        let net = grid.block(index.into()).ok_or("the range is too small")?;
        let _ = ledger.add(&Lease { net, uid: net.to_string(), bound: false, holes: Vec::new() }, clock.now);
    }
    for mark in 0..held {
        let Choice::Free(place, _) = ledger.choose(clock, |_| true) else {
            return Err("the ledger is full".into());
        };
        let _ = ledger.hold(place, clock.now, mark);
    }
    std::fs::write(own.join("ledger"), ledger.image())?;
    let ipam =
        json!({ "type": "weft-ipam", "store": "file", "range": RANGE, "pool": pool, "dataDir": directory });
    let config = json!({ "cniVersion": "1.0.0", "name": "bench", "type": "bridge", "ipam": ipam });
    write(setting, &format!("pool-{pool}.json"), &config)
}
