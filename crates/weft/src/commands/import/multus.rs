//! `weft import multus`: what Multus attached weft takes down, and what Multus was told weft does.
//!
//! Rules:
//! - nothing is written unless that was said (`--apply`), and nothing of Multus's is ever changed;
//! - an entry of the journal is never replaced, so it can be run again: for the pods that came in between;
//! - what is not understood is named and left out, and is a failure in the end.
//!
//! The configuration goes to stdout, everything else to stderr.
//!
//! Source: Multus `pkg/multus/multus.go`, `pkg/types/types.go`, `pkg/server/config/generator.go`; libcni's cache.

mod configuration;
mod sandboxes;

use std::path::{Path, PathBuf};

use clap::Args;
use rpc::journal::{self, Entry};

use cli_support::failure::{EXIT_CODES, Failure};
use cli_support::output;
use cli_support::output::{Format, Progress};
use cli_support::privilege;
use cli_support::terminal::plain;
use configuration::Configuration;
use node_support::journal_reader::Journal;
use node_support::weft_cni::WeftCni;

/// What `weft import multus` is told.
#[derive(Debug, Args)]
#[command(after_help = format!("\
Example:
  weft import multus
  weft import multus --apply >/etc/cni/net.d/.weft && mv /etc/cni/net.d/.weft /etc/cni/net.d/00-weft.conflist

Without --apply nothing is written. docs/migrate-from-multus.md describes the migration.

{EXIT_CODES} A sandbox or a field that cannot be imported is a failure."))]
pub(crate) struct Arguments {
    /// Path to the configuration of Multus (default: the first one in --conf-dir)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// CNI configuration directory of the container runtime
    #[arg(long, default_value = "/etc/cni/net.d", value_name = "DIR")]
    conf_dir: PathBuf,
    /// Path to the configuration of the Multus daemon, which takes precedence over --config (default: none)
    #[arg(long, value_name = "FILE")]
    daemon_config: Option<PathBuf>,
    /// Directory of the state of Multus (default: cniDir of its configuration)
    #[arg(long, value_name = "DIR")]
    cni_dir: Option<PathBuf>,
    /// Directory of the journal
    #[arg(long, default_value = journal::DIRECTORY, value_name = "DIR")]
    journal: PathBuf,
    /// Write the journal entries (default: only show them)
    #[arg(long)]
    apply: bool,
}

/// Does it.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { config, conf_dir, daemon_config, cni_dir, journal, apply } = arguments;
    privilege::require("weft import multus", "only root reads what Multus remembers")?;
    // Stdout is for the configuration.
    let progress = Progress::beside(Format::Json);
    let read = Configuration::read(config.as_deref(), conf_dir, daemon_config.as_deref())?;
    for note in &read.notes {
        progress.line(plain(&format!("configuration: {note}")));
    }
    let directory = cni_dir.as_deref().unwrap_or(&read.cni_dir);
    let found = sandboxes::read(directory, &read)?;
    let mut left_out = 0;
    let keys = read.left_out.iter().map(|key| format!("configuration: {key}"));
    for fault in keys.chain(found.faults.iter().cloned()) {
        left_out += 1;
        progress.line(plain(&format!("left out: {}", fault.trim())));
    }
    let taker = Taker { weft_cni: apply.then(WeftCni::find).transpose()?, journal };
    for entry in &found.entries {
        match taker.take_over(entry) {
            Ok(how) => progress.line(plain(&format!("{}: {how}", described(entry)))),
            Err(failure) => {
                left_out += 1;
                progress.line(plain(&format!("left out: {}: {failure}", described(entry))));
            }
        }
    }
    progress.line(format!("{} sandboxes in {}", found.entries.len(), directory.display()));
    output::print(&read.text)?;
    match left_out {
        0 => Ok(()),
        count => Err(Failure::new(format!("{count} things of Multus were left out, see above"))
            .next("the pods they belong to are better deleted while Multus can do it")),
    }
}

/// Who writes entries, if they are to be written.
struct Taker<'a> {
    weft_cni: Option<WeftCni>,
    journal: &'a Path,
}

impl Taker<'_> {
    fn take_over(&self, entry: &Entry) -> Result<&'static str, Failure> {
        let known = Journal::at(&self.journal.join(journal::ENTRIES)).entry(&entry.container_id)?;
        match (known, &self.weft_cni) {
            (Some(_), _) => Ok("in the journal already"),
            (None, None) => Ok("would be taken over"),
            (None, Some(weft_cni)) => {
                weft_cni.import_entry(self.journal, &entry.value()?)?;
                Ok("taken over")
            }
        }
    }
}

fn described(entry: &Entry) -> String {
    let pod = &entry.plan.pod;
    let networks: Vec<String> = entry
        .plan
        .delegates
        .iter()
        .map(|delegate| format!("{} {}", delegate.ifname, delegate.network))
        .collect();
    format!("{}/{} ({}): {}", pod.namespace, pod.name, entry.container_id, networks.join(", "))
}
