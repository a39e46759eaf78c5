//! `weft doctor`: what is wrong with this node.
//!
//! Rules: it only looks; each finding says what to do; exit code 1 if there is one. A thing that bears a mark is an
//! orphan if neither the journal nor the runtime's own cache of results knows its container.

mod meta_plugin;
mod proxy;
mod reservations;

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use clap::Args;
use rpc::journal::{Entry, State};
use serde::Serialize;

use crate::commands::detach::of_entry;
use crate::known_journals::{JournalHandle, KnownJournals};
use crate::manifest_plan::Inputs;
use cli_support::failure::{EXIT_CODES, Failure};
use cli_support::output;
use cli_support::output::{Format, Output, Progress};
use cli_support::privilege;
use cli_support::terminal::plain;
use ipam_api::store_name::ADDRESS_STORES;
use node_support::journal_reader::Row;
use node_support::weft_cni::{Plugins, Tagged, WeftCni};
use reservations::LOOK_AGAIN;

/// Where runtimes, and Multus, keep the results of what they attached.
const RESULTS: [&str; 3] =
    ["/var/lib/cni/results", "/var/lib/cni/cache/results", "/var/lib/cni/multus/results"];

/// What a finding about the configuration is about.
const CONFIGURATION: &str = "configuration";

/// What `weft doctor` is told.
#[derive(Debug, Args)]
#[command(after_help = format!("\
Example:
  weft doctor
  weft doctor -o json | jq -r '.[].what'

{EXIT_CODES} A finding is a failure."))]
pub(crate) struct Arguments {
    #[command(flatten)]
    inputs: Inputs,
    #[command(flatten)]
    plugins: Plugins,
    /// Path to the socket of weft cri-proxy, if one runs
    #[arg(long, default_value = cri::network_api::PROXY_SOCKET, value_name = "PATH")]
    cri_socket: PathBuf,
    #[command(flatten)]
    output: Output,
}

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Finding {
    /// What it is about: `configuration`, `journal`, a sandbox, a link.
    what: String,
    /// What is wrong with it.
    why: String,
    /// What to do.
    cure: String,
}

impl Finding {
    fn new(what: impl Into<String>, why: impl Into<String>, cure: impl Into<String>) -> Finding {
        Finding { what: what.into(), why: why.into(), cure: cure.into() }
    }
}

/// Does it.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { inputs, plugins, cri_socket, output } = arguments;
    privilege::require("weft doctor", "it looks into network namespaces")?;
    let weft_cni = WeftCni::find()?;
    let mut findings = meta_plugin::findings(&weft_cni, inputs.config.as_deref(), plugins, cri_socket);
    let mut entries = Vec::new();
    let KnownJournals { known: keepers, unknown } = JournalHandle::all(inputs)?;
    let unknown = unknown.filter(|_| findings.iter().all(|finding| finding.what != CONFIGURATION));
    findings.extend(unknown.map(|why| Finding::new(CONFIGURATION, why.to_string(), "weft doctor again")));
    for keeper in keepers {
        for row in keeper.journal().rows()? {
            match row {
                Row::Entry(entry) => entries.push((keeper.clone(), *entry)),
                Row::Broken { container, error } => findings.push(Finding::new(
                    format!("journal entry {container}"),
                    format!("cannot be read: {error}"),
                    "docs/operations.md, «a pod does not go»",
                )),
            }
        }
    }
    for (keeper, entry) in &entries {
        findings.extend(of_sandbox(&weft_cni, keeper, entry, plugins));
    }
    findings.extend(RESULTS.iter().filter_map(|directory| unread(Path::new(directory))));
    let known: Vec<&Entry> = entries.iter().map(|(_, entry)| entry).collect();
    findings.extend(weft_cni.owner_tags()?.iter().filter_map(|marked| orphan(marked, &known)));
    let is_known =
        |network: &str, container: &str, ifname: &str| is_known(&known, network, container, ifname);
    findings.extend(reservations::findings(Path::new(reservations::DIRECTORY), is_known));
    findings.extend(reservations::of_ledgers(Path::new(ADDRESS_STORES), is_known));
    if proxy::is_used(cri_socket, known.iter().copied()) {
        findings.extend(proxy::findings(cri_socket)?);
    }
    tell(&findings, known.len(), *output)
}

/// What is wrong with a sandbox: its namespace, a teardown that failed, an attachment that changed.
fn of_sandbox(weft_cni: &WeftCni, keeper: &JournalHandle, entry: &Entry, plugins: &Plugins) -> Vec<Finding> {
    let what =
        format!("sandbox {} of {}/{}", entry.container_id, entry.plan.pod.namespace, entry.plan.pod.name);
    let detach = format!("weft detach --container-id {}", entry.container_id);
    let mut findings = Vec::new();
    let pending = entry.attachments.iter().zip(&entry.plan.delegates);
    for (attachment, delegate) in pending.filter(|(attachment, _)| attachment.state != State::Detached) {
        if let Some(failure) = &attachment.failure {
            let why = format!("{} could not be detached: {failure}", delegate.ifname);
            findings.push(Finding::new(&what, why, &detach));
        }
    }
    match Path::new(&entry.netns).try_exists() {
        Ok(false) => {
            let why = format!("its namespace {} is gone and nobody called DEL", entry.netns);
            findings.push(Finding::new(&what, why, detach));
        }
        Ok(true) if entry.complete => {
            let checked = of_entry(weft_cni, keeper, entry, plugins, Progress::beside(Format::Json))
                .and_then(|work| work.check());
            findings.extend(checked.err().map(|failure| {
                Finding::new(&what, format!("it is not as it was attached: {failure}"), "make the pod anew")
            }));
        }
        Ok(true) => {}
        Err(cause) => {
            let why = format!("its namespace {} cannot be looked at: {cause}", entry.netns);
            findings.push(Finding::new(&what, why, LOOK_AGAIN));
        }
    }
    findings
}

/// A directory of results that is there and cannot be read: nothing is an orphan that may be known there.
fn unread(directory: &Path) -> Option<Finding> {
    let cause = std::fs::read_dir(directory).err().filter(|cause| cause.kind() != ErrorKind::NotFound)?;
    let why = format!("cannot be looked at, and who has something of a container is not known: {cause}");
    Some(Finding::new(directory.display().to_string(), why, LOOK_AGAIN))
}

/// A thing whose container nobody knows.
fn orphan(marked: &Tagged, known: &[&Entry]) -> Option<Finding> {
    let Tagged { on, tag: mark } = marked;
    let mut parts = mark.split('/').skip(2);
    let (network, container, ifname) = (parts.next()?, parts.next()?, parts.next()?);
    if is_known(known, network, container, ifname) {
        return None;
    }
    let whose = if ifname.is_empty() { String::new() } else { format!("{ifname} of ") };
    let why = format!("was made for {whose}container {container} on network {network}, which nobody knows");
    let cure = format!("a GC of {network} removes it; where the runtime has none, remove it by hand");
    Some(Finding::new(on, why, cure))
}

/// Does the journal know the container, or a runtime its attachment?
fn is_known(known: &[&Entry], network: &str, container: &str, ifname: &str) -> bool {
    known.iter().any(|entry| entry.container_id.as_str() == container)
        || RESULTS.iter().any(|directory| is_cached(Path::new(directory), network, container, ifname))
}

/// Does the runtime know the attachment, or can that not be looked at? Of a long network's name a mark has the beginning, before a `~`; rules of iptables
/// have no interface.
fn is_cached(directory: &Path, network: &str, container: &str, ifname: &str) -> bool {
    let end = format!("-{container}-{ifname}");
    if !ifname.is_empty() && !network.contains('~') {
        return directory.join(format!("{network}{end}")).try_exists().unwrap_or(true);
    }
    let (network, is_cut) = network.split_once('~').map_or((network, false), |(start, _)| (start, true));
    let entries = match std::fs::read_dir(directory) {
        Err(cause) => return cause.kind() != ErrorKind::NotFound,
        Ok(entries) => entries,
    };
    entries.into_iter().any(|entry| {
        let Ok(entry) = entry else { return true };
        let name = entry.file_name();
        let head = name.to_str().and_then(|name| match ifname {
            "" => name.split_once(&end).map(|(head, _)| head),
            _ => name.strip_suffix(&end),
        });
        head.is_some_and(|head| head == network || (is_cut && head.starts_with(network)))
    })
}

fn tell(findings: &[Finding], sandboxes: usize, output: Output) -> Result<(), Failure> {
    match output.format {
        Format::Json => output::print_json(&findings)?,
        Format::Text if findings.is_empty() => {
            output::print(&format!("nothing is wrong; {sandboxes} sandboxes are as they were attached\n"))?;
        }
        Format::Text => {
            let lines = findings.iter().map(|Finding { what, why, cure }| {
                format!("{}: {}\n  {}\n", plain(what), plain(why), plain(cure))
            });
            output::print(&lines.collect::<String>())?;
        }
    }
    match findings.len() {
        0 => Ok(()),
        count => Err(Failure::quiet(format!("{count} findings"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_knows_is_an_orphan() {
        let marked = |mark: &str| Tagged { on: "link veth0".into(), tag: mark.into() };
        let found = orphan(&marked("weft/bridge/net/c1/eth0"), &[]).unwrap();
        assert_eq!(
            (found.what.as_str(), found.why.contains("container c1 on network net")),
            ("link veth0", true)
        );
        assert_eq!(orphan(&marked("weft/bridge"), &[]), None);
    }
}
