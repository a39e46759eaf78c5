//! weft beside its peers, and beside the kernel's own floor: one run, calls interleaved, ratios printed.
//!
//! Rules: whoever is timed is a process started as a runtime starts it, from the call to its end; peers are
//! other people's binaries in a directory; the floor is the same work through raw rtnetlink without a process;
//! figures are minimum, median and 99th percentile, and it is the median's ratio that counts.
//!
//! Usage: `weft-bench SCRATCH OUR_PLUGINS PEER_PLUGINS RUNS`, inside a network namespace of its own (see `run`).

mod addresses;
mod call;
mod cases;
mod crowd;
mod entries;
mod floor;
mod interfaces;
mod leases;
mod table;

use std::path::PathBuf;
use std::process::ExitCode;

use table::Table;

/// Anything that stops a bench; it is printed and that is all.
pub(crate) type Failure = Box<dyn std::error::Error>;

/// Measures what belongs together.
type Group = fn(&Setting, &mut Table) -> Result<(), Failure>;

/// What a bench is run with.
pub(crate) struct Setting {
    /// For configurations, addresses and journals.
    pub(crate) scratch: PathBuf,
    /// Our plugins.
    pub(crate) ours: PathBuf,
    /// The Go plugins, if they are there.
    pub(crate) peers: Option<PathBuf>,
    /// How many calls of each kind.
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
        return Err("usage: weft-bench SCRATCH OUR_PLUGINS PEER_PLUGINS RUNS [GROUP...]".into());
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
            "weft-bench: no peer plugins: only floors to compare with (apt install containernetworking-plugins)"
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
        ("crowd", crowd::crowd),
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
