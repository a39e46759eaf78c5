//! Benchmarks of weft compared with the Go plugins and with the kernel alone: one run, interleaved calls, ratios.
//!
//! - A plugin is timed as a process, started as a runtime starts it, from the call to its end.
//! - Peers are binaries of other projects in a directory.
//! - The kernel baseline is the same change through rtnetlink, without a process.
//! - A result has minimum, median and 99th percentile; ratios are those of medians.
//! - An unknown group is an error before anything is measured. If a group fails, the results of the others are printed.
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

/// Groups of measurements, in the order in which they run.
static GROUPS: [(&str, Group); 11] = [
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
    let groups: Vec<&(&str, Group)> = selected(only)?;
    let mut table = Table::default();
    let mut failures = Vec::new();
    for (name, group) in groups {
        failures.extend(group(&setting, &mut table).err().map(|failure| format!("{name}: {failure}")));
    }
    table.print();
    if failures.is_empty() { Ok(()) } else { Err(failures.join("; ").into()) }
}

/// Returns the groups with these names, or all.
fn selected(only: &[String]) -> Result<Vec<&'static (&'static str, Group)>, Failure> {
    let known = |wanted: &&String| GROUPS.iter().any(|(name, _)| name == wanted);
    if let Some(unknown) = only.iter().find(|wanted| !known(wanted)) {
        let names: Vec<&str> = GROUPS.iter().map(|(name, _)| *name).collect();
        return Err(format!("{unknown}: no such group; the groups are {}", names.join(" ")).into());
    }
    Ok(GROUPS
        .iter()
        .filter(|(name, _)| only.is_empty() || only.iter().any(|wanted| wanted == name))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bench_groups_are_selected_by_name_and_unknown_ones_refused() {
        let names = |only: &[&str]| {
            let only: Vec<String> = only.iter().map(|name| (*name).to_owned()).collect();
            let groups = selected(&only).map_err(|failure| failure.to_string())?;
            Ok::<_, String>(groups.iter().map(|(name, _)| *name).collect::<Vec<_>>())
        };
        assert_eq!(names(&[]).unwrap().len(), GROUPS.len());
        assert_eq!(names(&["size", "start"]).unwrap(), ["start", "size"]);
        let refused = names(&["start", "nonsense"]).unwrap_err();
        assert!(
            refused.starts_with("nonsense: no such group") && refused.contains("concurrency"),
            "{refused}"
        );
    }
}
