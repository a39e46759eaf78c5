//! Benchmarks of weft compared with the Go plugins and with the kernel alone: one run, interleaved calls, ratios.
//!
//! - A plugin is timed as a process, started as a runtime starts it, from the call to its end.
//! - Peers are binaries of other projects in a directory.
//! - The kernel baseline is the same change through rtnetlink, without a process.
//! - A result has minimum, median and 99th percentile; ratios are those of medians.
//!
//! Usage: `weft-bench SCRATCH WEFT_PLUGINS PEER_PLUGINS RUNS [GROUP...]`, inside a new network namespace (see `run`).

mod addresses;
mod baseline;
mod call;
mod cases;
mod concurrency;
mod entries;
mod interfaces;
mod leases;
mod table;

use std::path::PathBuf;
use std::process::ExitCode;

use table::Table;

/// Error that ends a benchmark; it is printed.
pub(crate) type Failure = Box<dyn std::error::Error>;

/// Group of measurements.
type Group = fn(&Setting, &mut Table) -> Result<(), Failure>;

/// Parameters of a benchmark.
pub(crate) struct Setting {
    /// Directory for configurations, addresses and journals.
    pub(crate) scratch: PathBuf,
    /// Directory of weft's plugins.
    pub(crate) ours: PathBuf,
    /// Directory of the Go plugins, if they are installed.
    pub(crate) peers: Option<PathBuf>,
    /// Number of calls of each kind.
    pub(crate) runs: usize,
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("weft-bench: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Failure> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (words, only) = words.split_at(words.len().min(4));
    let [scratch, ours, peers, runs] = words else {
        return Err("usage: weft-bench SCRATCH WEFT_PLUGINS PEER_PLUGINS RUNS [GROUP...]".into());
    };
    let peers = PathBuf::from(peers);
    let setting = Setting {
        scratch: scratch.into(),
        ours: ours.into(),
        peers: peers.join("bridge").is_file().then_some(peers),
        runs: runs.parse()?,
    };
    if setting.peers.is_none() {
        eprintln!(
            "weft-bench: no peer plugins: comparing with the kernel only (apt install containernetworking-plugins)"
        );
    }
    let mut table = Table::default();
    let groups: [(&str, Group); 11] = [
        ("start", cases::start),
        ("plugins", cases::plugins),
        ("interfaces", interfaces::interfaces),
        ("chained", cases::chained),
        ("vrf", cases::vrf),
        ("leases", leases::leases),
        ("addresses", addresses::addresses),
        ("pods", cases::pods),
        ("concurrency", concurrency::concurrency),
        ("entries", entries::entries),
        ("size", cases::size),
    ];
    for (name, group) in groups {
        if only.is_empty() || only.iter().any(|wanted| wanted == name) {
            group(&setting, &mut table)?;
        }
    }
    table.print();
    Ok(())
}
