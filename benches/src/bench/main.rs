//! Benchmarks that compare weft with the Go plugins and with the kernel alone: one run, interleaved calls, ratios.
//!
//! - A plugin is timed as a process that is started the way a runtime starts it, from call to exit.
//! - Peers are other projects' binaries in one directory.
//! - The kernel baseline is the same change through rtnetlink, without a process.
//! - A result has minimum, median and 99th percentile; ratios compare medians.
//! - An unknown group is an error before anything is measured. If a group fails, the other groups' results are still
//!   printed.
//! - A row that misses the goal is named, and the exit status is 3.
//!
//! Usage: `weft-bench SCRATCH WEFT_PLUGINS PEER_PLUGINS RUNS [GROUP...]`, inside a new network namespace (see `run`);
//! `weft-bench report ROOT` writes the pages in the tree ROOT from the results file there.

mod addresses;
mod baseline;
mod call;
mod cases;
mod concurrency;
mod entries;
mod files;
mod interfaces;
mod leases;
mod load;
mod pods;
mod policies;
mod rules;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use benches::table::{Table, finish};
use benches::{Failure, MISSED, machine, report};

/// Group of measurements.
type Group = fn(&Setting, &mut Table) -> Result<(), Failure>;

/// All groups, in the order in which they run.
static GROUPS: [(&str, Group); 16] = [
    ("start", cases::start),
    ("plugins", cases::plugins),
    ("interfaces", interfaces::interfaces),
    ("chained", cases::chained),
    ("vrf", cases::vrf),
    ("leases", leases::leases),
    ("addresses", addresses::addresses),
    ("pods", pods::pods),
    ("policies", policies::policies),
    ("disk", files::disk),
    ("cold", files::cold),
    ("concurrency", concurrency::concurrency),
    ("sustained", load::sustained),
    ("full", load::full),
    ("entries", entries::entries),
    ("size", pods::size),
];

/// Numbers of pods in a row, and of pods at a time, unless the variables `PODS` and `AT_ONCE` set others.
const PODS: &str = "320 1000";
const AT_ONCE: &str = "8";

/// Benchmark parameters.
#[derive(Clone)]
pub(crate) struct Setting {
    /// Directory for configurations, addresses and journals.
    pub(crate) scratch: PathBuf,
    /// Directory with weft's plugins.
    pub(crate) ours: PathBuf,
    /// Directory with the Go plugins, if they are installed.
    pub(crate) peers: Option<PathBuf>,
    /// Number of calls of each kind.
    pub(crate) runs: usize,
    /// Numbers of pods in a row.
    pub(crate) pods: Vec<usize>,
    /// Number of pods at a time.
    pub(crate) at_once: usize,
}

impl Setting {
    /// Whether the peer's host-port plugin has an nftables backend, in which case the program contains that table's
    /// name.
    pub(crate) fn peer_has_nftables(&self) -> Result<bool, Failure> {
        let Some(peers) = &self.peers else { return Ok(false) };
        let program = std::fs::read(peers.join("portmap"))?;
        let table = b"cni_hostport";
        Ok(program.windows(table.len()).any(|window| window == table))
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(false) => ExitCode::SUCCESS,
        Ok(true) => ExitCode::from(MISSED),
        Err(failure) => {
            eprintln!("weft-bench: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the benchmark; returns whether a row misses the goal.
fn run() -> Result<bool, Failure> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [report, root] = words.as_slice()
        && report == "report"
    {
        return report::write(Path::new(root)).map(|()| false);
    }
    let (words, only) = words.split_at(words.len().min(4));
    let [scratch, ours, peers, runs] = words else {
        return Err("usage: weft-bench SCRATCH WEFT_PLUGINS PEER_PLUGINS RUNS [GROUP...]".into());
    };
    let variable = |name: &str, usual: &str| std::env::var(name).unwrap_or_else(|_| usual.to_owned());
    let peers = PathBuf::from(peers);
    let setting = Setting {
        scratch: scratch.into(),
        ours: ours.into(),
        peers: peers.join("bridge").is_file().then_some(peers),
        runs: runs.parse()?,
        pods: variable("PODS", PODS).split_whitespace().map(str::parse).collect::<Result<_, _>>()?,
        at_once: variable("AT_ONCE", AT_ONCE).parse()?,
    };
    if setting.peers.is_none() {
        eprintln!(
            "weft-bench: no peer plugins: comparing with the kernel only (apt install containernetworking-plugins)"
        );
    }
    let groups: Vec<&(&str, Group)> = selected(only)?;
    call::remove_leftovers()?;
    let peers = setting.peers.as_ref().map_or_else(|| "nothing".to_owned(), |_| machine::go_plugins());
    let run = machine::run("plugins and pods", "benches/run", &peers, &setting.scratch);
    let mut table = Table::default();
    let mut failures = Vec::new();
    for (name, group) in groups {
        machine::rest();
        failures.extend(group(&setting, &mut table).err().map(|failure| format!("{name}: {failure}")));
    }
    let missed = finish(&table, run)?;
    if failures.is_empty() { Ok(missed) } else { Err(failures.join("; ").into()) }
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
