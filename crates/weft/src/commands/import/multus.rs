//! `weft import multus`: imports the sandboxes of Multus into the journal, so that weft takes them down, and converts the
//! configuration of Multus.
//!
//! - Nothing is written without `--apply`. Multus files are never changed; with `--apply` the Multus configuration is
//!   saved below the journal, and with `--remove` then removed from the runtime's directory, whatever the file name is.
//! - The configuration is not removed while a sandbox could not be imported.
//! - An existing journal entry is never replaced, so the command can be repeated for later pods.
//! - Sandboxes and fields that cannot be imported are named, and make the exit code 1.
//!
//! The configuration is printed to stdout, everything else to stderr.
//! Source: Multus `pkg/multus/multus.go`, `pkg/types/types.go`, `pkg/server/config/generator.go`; libcni's cache.

mod configuration;
mod sandboxes;
mod saved_files;

use std::path::{Path, PathBuf};

use clap::Args;
use rpc::journal::{self, Entry};

use crate::whereabouts_program;
use crate::whereabouts_program::WhereaboutsProgram;
use cli_support::failure::{EXIT_CODES, Failure};
use cli_support::output;
use cli_support::output::{Format, Progress, counted};
use cli_support::privilege;
use cli_support::terminal::plain;
use configuration::Configuration;
use node_support::journal_reader::Journal;
use node_support::weft_cni::WeftCni;
use saved_files::SavedFiles;

/// Arguments of `weft import multus`.
#[derive(Debug, Args)]
#[command(after_help = format!("\
Example:
  weft import multus
  weft import multus --apply --remove
  weft import multus --restore
  weft import multus --apply >/etc/cni/net.d/.weft && mv /etc/cni/net.d/.weft /etc/cni/net.d/00-weft.conflist

Without --apply nothing is written. docs/migrate-from-multus.md describes the migration.

{EXIT_CODES} A sandbox or a field that cannot be imported is a failure."))]
pub(crate) struct Arguments {
    /// Path to the configuration of Multus (default: the first one in --conf-dir, else the saved one)
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
    /// Write the journal entries, and save the configuration of Multus (default: only show them)
    #[arg(long)]
    apply: bool,
    /// Remove the configuration of Multus from --conf-dir once everything is imported and saved
    #[arg(long, requires = "apply")]
    remove: bool,
    /// Write the saved configuration of Multus back to --conf-dir, and do nothing else
    #[arg(long, conflicts_with = "apply")]
    restore: bool,
}

/// Runs `weft import multus`.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { config, conf_dir, daemon_config, cni_dir, journal, apply, remove, restore } = arguments;
    privilege::require("weft import multus", "only root may read the state of Multus")?;
    // Stdout is for the configuration.
    let progress = Progress::beside(Format::Json);
    let saved = SavedFiles::below(journal, conf_dir);
    if *restore {
        return saved.restore()?.iter().try_for_each(|line| output::print(&format!("{}\n", plain(line))));
    }
    let configuration = Configuration::read(config.as_deref(), conf_dir, &saved, daemon_config.as_deref())?;
    for note in &configuration.notes {
        progress.line(plain(&format!("configuration: {note}")));
    }
    let directory = cni_dir.as_deref().unwrap_or(&configuration.cni_dir);
    let found = sandboxes::read(directory, &configuration)?;
    let mut left_out = 0;
    let keys = configuration.left_out.iter().map(|key| format!("configuration: {key}"));
    for fault in keys.chain(found.faults.iter().cloned()) {
        left_out += 1;
        progress.line(plain(&format!("not imported: {}", fault.trim())));
    }
    let importer = EntryImporter { weft_cni: apply.then(WeftCni::find).transpose()?, journal };
    for entry in &found.entries {
        match importer.import(entry) {
            Ok(how) => progress.line(plain(&format!("{}: {how}", describe(entry)))),
            Err(failure) => {
                left_out += 1;
                progress.line(plain(&format!("not imported: {}: {failure}", describe(entry))));
            }
        }
    }
    let sandboxes = counted(found.entries.len(), "sandbox", "sandboxes");
    progress.line(format!("{sandboxes} in {}", directory.display()));
    match whereabouts_note(&found.entries, &configuration.bin_dir) {
        Some(Ok(note)) => progress.line(plain(&note)),
        Some(Err(fault)) => {
            left_out += 1;
            progress.line(plain(&format!("not imported: {fault}")));
        }
        None => {}
    }
    if *apply {
        saved.save()?.iter().for_each(|line| progress.line(plain(line)));
    }
    if *remove && left_out == 0 {
        saved.remove()?.iter().for_each(|line| progress.line(plain(line)));
    }
    output::print(&configuration.text)?;
    match left_out {
        0 => Ok(()),
        count if *remove => Err(Failure::new(format!(
            "{count} sandboxes or fields of Multus were not imported, see above; its configuration stays"
        ))
        .next("delete the affected pods while Multus is still installed, and repeat the command")),
        count => {
            Err(Failure::new(format!("{count} sandboxes or fields of Multus were not imported, see above"))
                .next("delete the affected pods while Multus is still installed"))
        }
    }
}

/// Returns a note about sandboxes with whereabouts addresses, or the error that DEL could not release them.
fn whereabouts_note(entries: &[Entry], directories: &str) -> Option<Result<String, String>> {
    let is_used = |entry: &&Entry| {
        entry.plan.delegates.iter().any(|delegate| whereabouts_program::is_used_by(&delegate.config))
    };
    let count = entries.iter().filter(is_used).count();
    if count == 0 {
        return None;
    }
    let subject = format!("whereabouts: {} with its addresses", counted(count, "sandbox", "sandboxes"));
    Some(match whereabouts_program::find(directories) {
        WhereaboutsProgram::Foreign(path) => Ok(format!(
            "{subject}: weft continues to execute {}; keep it until weft import whereabouts has imported them",
            path.display()
        )),
        WhereaboutsProgram::Own(path) => Ok(format!(
            "{subject}: {} is weft, whose pools must contain them; weft import whereabouts --verify compares them",
            path.display()
        )),
        WhereaboutsProgram::Missing => Err(format!(
            "{subject}: no program of this name is in {directories}; restore it, or see docs/migrate-from-whereabouts.md"
        )),
    })
}

/// Importer of journal entries. Without `weft_cni` it writes nothing.
struct EntryImporter<'a> {
    weft_cni: Option<WeftCni>,
    journal: &'a Path,
}

impl EntryImporter<'_> {
    fn import(&self, entry: &Entry) -> Result<&'static str, Failure> {
        let existing = Journal::at(&self.journal.join(journal::ENTRIES)).entry(&entry.container_id)?;
        match (existing, &self.weft_cni) {
            (Some(_), _) => Ok("already in the journal"),
            (None, None) => Ok("would be imported"),
            (None, Some(weft_cni)) => {
                weft_cni.import_entry(self.journal, &entry.value()?)?;
                Ok("imported")
            }
        }
    }
}

fn describe(entry: &Entry) -> String {
    let pod = &entry.plan.pod;
    let networks: Vec<String> = entry
        .plan
        .delegates
        .iter()
        .map(|delegate| format!("{} {}", delegate.ifname, delegate.network))
        .collect();
    format!("{}/{} ({}): {}", pod.namespace, pod.name, entry.container_id, networks.join(", "))
}
