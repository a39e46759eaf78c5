//! `weft list`: lists the sandboxes of this node and their attachments, from the journal.
//!
//! - An unreadable entry is a row with its error, and the exit code is 1.
//! - "no attachments" is printed only if every journal of the node is known.
//! - `-o json` prints one document for each sandbox. A test fixes its fields.
//! - It does not query the kernel and changes nothing.

use clap::Args;
use serde::Serialize;

use crate::attachments::{self, AttachmentRow, SandboxDocument};
use crate::known_journals::{JournalHandle, KnownJournals};
use crate::manifest_plan::Inputs;
use cli_support::failure::{EXIT_CODES, Failure};
use cli_support::output;
use cli_support::output::{Format, Output, Progress};
use cli_support::table;
use cli_support::terminal::plain;
use node_support::journal_reader::Row;

/// Arguments of `weft list`.
#[derive(Debug, Args)]
#[command(after_help = format!("\
Example:
  weft list
  weft list -o json | jq -r '.[].networkStatus[].ips[]'

-o json prints a list of sandboxes with pod (namespace, name, uid), containerId, netns, attachments (network,
interface, configName, state, result) and networkStatus. An unreadable entry has containerId and error. -f and
--config are only used to find the journal if cniDir of the configuration moves it.

{EXIT_CODES} An unreadable entry is a failure."))]
pub(crate) struct Arguments {
    #[command(flatten)]
    inputs: Inputs,
    #[command(flatten)]
    output: Output,
}

/// Document of one sandbox for `-o json`.
#[derive(Serialize)]
#[serde(untagged)]
enum Document<'a> {
    Sandbox(SandboxDocument<'a>),
    #[serde(rename_all = "camelCase")]
    Broken {
        container_id: &'a str,
        error: String,
    },
}

/// Runs `weft list`.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { inputs, output } = arguments;
    let KnownJournals { known: handles, unknown: unknown_journal } = JournalHandle::all(inputs)?;
    let mut rows = Vec::new();
    for handle in handles {
        rows.extend(handle.journal().rows()?);
    }
    match output.format {
        Format::Json => output::print_json(&rows.iter().map(document).collect::<Vec<_>>())?,
        Format::Text if rows.is_empty() && unknown_journal.is_some() => {}
        Format::Text if rows.is_empty() => output::print("no attachments\n")?,
        Format::Text => output::print(&lay_out(&rows))?,
    }
    match (rows.iter().filter(|row| matches!(row, Row::Broken { .. })).count(), unknown_journal) {
        (0, Some(why)) if rows.is_empty() => Err(why),
        (0, Some(why)) => {
            // A warning on stderr, in every output format.
            Progress::beside(Format::Json).line(why.to_string());
            Ok(())
        }
        (0, None) => Ok(()),
        (count, _) => Err(Failure::quiet(format!("{count} unreadable journal entries"))),
    }
}

fn document(row: &Row) -> Document<'_> {
    match row {
        Row::Entry(entry) => Document::Sandbox(attachments::document(entry)),
        Row::Broken { container, error } => {
            Document::Broken { container_id: container, error: error.to_string() }
        }
    }
}

fn lay_out(rows: &[Row]) -> String {
    let (mut lines, mut broken) = (Vec::new(), String::new());
    for row in rows {
        match row {
            Row::Broken { container, error } => {
                broken.push_str(&format!(
                    "{}: unreadable: {}\n",
                    plain(container),
                    plain(&error.to_string())
                ));
            }
            Row::Entry(entry) => {
                let pod = format!("{}/{}", entry.plan.pod.namespace, entry.plan.pod.name);
                for attached in attachments::rows(entry) {
                    let AttachmentRow { network, interface, addresses, state, .. } = attached;
                    let addresses = if addresses.is_empty() { "-".to_owned() } else { addresses.join(",") };
                    let container = entry.container_id.to_string();
                    lines.push(vec![
                        pod.clone(),
                        container,
                        interface,
                        network,
                        addresses,
                        state.as_str().to_owned(),
                    ]);
                }
            }
        }
    }
    let headings = ["pod", "container", "interface", "network", "addresses", "state"];
    let table = if lines.is_empty() { String::new() } else { table::lay_out(&headings, &lines, 0) };
    table + &broken
}
