//! `weft doctor`: diagnoses this node.
//!
//! - On a node it checks everything; in a pod without capabilities, what the pod can read ([`pod`]).
//! - It changes nothing. Each finding says what to do. The exit code is 1 if there is a finding.
//! - An object with an owner tag is orphaned if neither the journal nor the runtime's result cache knows the container.

mod agent_health;
mod kernel;
mod meta_plugin;
mod node;
mod pod;
mod proxy;
mod reservations;

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use npwg::plan::Delegate;
use rpc::history::Record;
use rpc::journal::{Entry, State};
use serde::Serialize;

use crate::cluster_access::ClusterAccess;
use crate::commands::detach::operations_on;
use crate::commands::install::command::{FailedFile, REPAIR, record_below};
use crate::known_journals::{JournalHandle, KnownJournals};
use crate::manifest_plan::Inputs;
use crate::meta_plugin_config::MetaPlugin;
use crate::place::Place;
use crate::remote_node::{Needs, RemoteNode};
use cli_support::failure::{EXIT_CODES, Failure};
use cli_support::output;
use cli_support::output::{Format, Output, Progress, counted};
use cli_support::privilege;
use cli_support::terminal::plain;
use ipam_api::clock::now;
use ipam_api::store_name::ADDRESS_STORES;
use kernel::Kubeconfig;
use node_support::history::History;
use node_support::journal_reader::Row;
use node_support::weft_cni::{PLUGINS, Plugins, Tagged, WeftCni};
use reservations::RETRY;

/// Directories in which runtimes and Multus cache attachment results.
pub(crate) const RESULT_CACHES: [&str; 3] =
    ["/var/lib/cni/results", "/var/lib/cni/cache/results", "/var/lib/cni/multus/results"];

/// Age up to which failed calls are mentioned.
const HISTORY_MAX: Duration = Duration::from_secs(3600);

/// Directories; a node has at least one.
const NODE_DIRECTORIES: [&str; 3] = ["/etc/cni/net.d", "/opt/cni/bin", "/var/lib/weft"];

/// Stands for the plugin in owner tags on network policies.
const POLICY: &str = "policy";

/// Subject for findings about the configuration.
const CONFIGURATION: &str = "configuration";

/// Arguments of `weft doctor`.
#[derive(Debug, Args)]
#[command(after_help = format!("\
Example:
  weft doctor
  weft doctor -o json | jq -r '.[].what'

{EXIT_CODES} A finding is a failure."))]
pub(crate) struct Arguments {
    #[command(flatten)]
    remote: RemoteNode,
    #[command(flatten)]
    cluster: ClusterAccess,
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

/// Problem on this node, as printed and as in the document for `-o json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Finding {
    /// Subject: `configuration`, `journal`, a sandbox, a link.
    what: String,
    /// Error text with place and reason.
    why: String,
    /// Hint how to solve it.
    hint: String,
}

impl Finding {
    fn new(what: impl Into<String>, why: impl Into<String>, hint: impl Into<String>) -> Finding {
        Finding { what: what.into(), why: why.into(), hint: hint.into() }
    }
}

/// Findings, and facts for the last lines in the text.
#[derive(Debug, Default)]
struct Diagnosis {
    findings: Vec<Finding>,
    /// Number of sandboxes in the journal.
    sandboxes: usize,
    /// Number of calls that failed within the last hour.
    failures: usize,
    /// Checks that this place does not allow, with the line that runs them; empty: none.
    unchecked: String,
}

/// Runs `weft doctor`.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { inputs, plugins, cri_socket, output, .. } = arguments;
    if let Some(done) = arguments.remote.run(&arguments.cluster, None, Needs::Files) {
        return done;
    }
    print_findings(&diagnose(inputs, plugins, cri_socket)?, *output)
}

/// Returns the findings with default options, for a support archive.
pub(super) fn document() -> Result<serde_json::Value, Failure> {
    let inputs = Inputs { files: Vec::new(), config: None };
    let socket = Path::new(cri::network_api::PROXY_SOCKET);
    let diagnosis = diagnose(&inputs, &Plugins::default(), socket)?;
    serde_json::to_value(diagnosis.findings)
        .map_err(|cause| Failure::new(format!("encode the findings: {cause}")))
}

/// Diagnoses this node as far as is possible from where the process runs.
fn diagnose(inputs: &Inputs, plugins: &Plugins, cri_socket: &Path) -> Result<Diagnosis, Failure> {
    let place = Place::of_process();
    if let Place::Pod { .. } = place {
        return pod::diagnose(&place);
    }
    refuse_other_machine(inputs)?;
    privilege::require("weft doctor", "it enters network namespaces")?;
    let weft_cni = WeftCni::find()?;
    let mut findings = meta_plugin::findings(&weft_cni, inputs.config.as_deref(), plugins, cri_socket);
    let mut entries = Vec::new();
    let KnownJournals { known: handles, unknown } = JournalHandle::all(inputs)?;
    let unknown = unknown.filter(|_| findings.iter().all(|finding| finding.what != CONFIGURATION));
    findings.extend(unknown.map(|why| {
        Finding::new(CONFIGURATION, why.to_string(), "correct the configuration, then run weft doctor again")
    }));
    findings.extend(agent_health::finding());
    findings.extend(node_findings(&weft_cni, inputs));
    findings.extend(kernel_findings(inputs));
    let mut failures = 0;
    for handle in handles {
        if let Some(directory) = handle.journal().directory().parent() {
            let records = History::below(directory).records().unwrap_or_default();
            failures += recent_failures(&records);
            findings.extend(node::disk_findings(directory));
            findings.extend(node::clock_finding(&records));
        }
        findings.extend(handle.journal().renamed()?.iter().map(|file| renamed_entry(file)));
        for row in handle.journal().rows()? {
            match row {
                Row::Entry(entry) => entries.push((handle.clone(), *entry)),
                Row::Broken { container, error } => findings.push(broken_entry(&container, &error)),
            }
        }
    }
    for (handle, entry) in &entries {
        findings.extend(sandbox_findings(&weft_cni, handle, entry, plugins));
    }
    findings.extend(RESULT_CACHES.iter().filter_map(|directory| unreadable_cache(Path::new(directory))));
    let known: Vec<&Entry> = entries.iter().map(|(_, entry)| entry).collect();
    findings.extend(weft_cni.owner_tags()?.iter().filter_map(|marked| orphan_finding(marked, &known)));
    let is_known =
        |network: &str, container: &str, ifname: &str| is_known(&known, network, container, ifname);
    findings.extend(reservations::findings(Path::new(reservations::DIRECTORY), is_known));
    findings.extend(reservations::store_findings(Path::new(ADDRESS_STORES), is_known));
    if proxy::is_used(cri_socket, known.iter().copied()) {
        findings.extend(proxy::findings(cri_socket)?);
    }
    let partly: usize = known.iter().map(|entry| entry.unchecked().len()).sum();
    let unchecked = match partly {
        0 => String::new(),
        1 => "1 attachment was not fully checked; weft check names the plugins".to_owned(),
        count => format!("{count} attachments were not fully checked; weft check names the plugins"),
    };
    Ok(Diagnosis { findings, sandboxes: known.len(), failures, unchecked })
}

/// Fails on a machine that has neither weft nor a container runtime. Root may install weft there.
fn refuse_other_machine(inputs: &Inputs) -> Result<(), Failure> {
    let is_of_node = |path: &&str| Path::new(path).exists();
    let is_node = inputs.config.is_some() || NODE_DIRECTORIES.iter().any(is_of_node);
    if is_node || rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let why = format!("this machine is no node: it has none of {}", NODE_DIRECTORIES.join(", "));
    Err(Failure::new(why).next("weft status shows the nodes of a cluster; run weft doctor on one of them"))
}

/// Returns the findings about plugin files and about Cilium, in the configured directories.
fn node_findings(weft_cni: &WeftCni, inputs: &Inputs) -> Vec<Finding> {
    let meta_plugin = MetaPlugin::find_any(inputs.config.as_deref(), &[]).ok().flatten();
    let directory = meta_plugin.as_ref().map_or(PLUGINS, |found| found.node.bin_dir.as_str());
    let mut findings = node::plugin_findings(weft_cni, Path::new(directory), true);
    let file = meta_plugin.as_ref().map(|found| Path::new(&found.file));
    let configurations = file.and_then(Path::parent);
    let renamed = configurations.and_then(node::cilium_finding);
    let option = || configurations.and_then(|_| node::cilium_option_finding(Path::new(node::KUBELET_PODS)));
    findings.extend(renamed.or_else(option));
    findings.extend(configurations.and_then(command_finding));
    findings
}

/// Returns a finding if the last `weft install --command` could not write the program, or the record is damaged.
fn command_finding(configurations: &Path) -> Option<Finding> {
    let record = match record_below(configurations) {
        Ok(record) => record,
        // A user other than root may not read it.
        Err(_) if !rustix::process::geteuid().is_root() => return None,
        Err(failure) => {
            return Some(Finding::new("weft install --command", failure.to_string(), REPAIR));
        }
    };
    let FailedFile { path, why } = record.failed?;
    let why = format!("it was not installed: {why}");
    let hint = "set install.command (weft install --command) to a directory of this node that can be written, such as /opt/bin";
    Some(Finding::new(format!("command {}", path.display()), why, hint))
}

/// Returns the findings about the kernel for the definitions that this node can read.
fn kernel_findings(inputs: &Inputs) -> Vec<Finding> {
    let found = MetaPlugin::find_any(inputs.config.as_deref(), &[]).ok().flatten();
    let kubeconfig = found.as_ref().and_then(|found| found.node.kubeconfig.as_deref());
    let kubeconfig = kubeconfig.map_or(Kubeconfig::Absent, |path| Kubeconfig::File(Path::new(path)));
    kernel::findings(inputs, kubeconfig)
}

fn broken_entry(container: &str, error: &cni::Error) -> Finding {
    Finding::new(
        format!("journal entry {container}"),
        format!("unreadable: {error}"),
        "see docs/operations.md, «A pod is not deleted»",
    )
}

/// Returns the finding about an unreadable entry that a DEL renamed.
fn renamed_entry(file: &Path) -> Finding {
    Finding::new(
        format!("journal {}", file.display()),
        "a DEL found this entry unreadable, and detached the networks that the pod selected then",
        format!("remove it once no object without a sandbox is left: sudo rm -r {}", file.display()),
    )
}

/// Returns how many recorded calls failed within the last hour.
fn recent_failures(records: &[Record]) -> usize {
    let since = u128::from(now()).saturating_sub(HISTORY_MAX.as_millis()) * 1000;
    records.iter().filter(|record| record.error.is_some() && u128::from(record.time) >= since).count()
}

/// Returns what is wrong with a sandbox: a missing namespace, a failed DEL, a changed attachment.
fn sandbox_findings(
    weft_cni: &WeftCni,
    handle: &JournalHandle,
    entry: &Entry,
    plugins: &Plugins,
) -> Vec<Finding> {
    let what =
        format!("sandbox {} of {}/{}", entry.container_id, entry.plan.pod.namespace, entry.plan.pod.name);
    let detach = format!("weft detach --container-id {}", entry.container_id);
    let mut findings = Vec::new();
    let pending = entry.attachments.iter().zip(&entry.plan.delegates);
    for (attachment, delegate) in pending.filter(|(attachment, _)| attachment.state != State::Detached) {
        if let Some(failure) = &attachment.failure {
            let why = failed_to_detach(delegate, failure);
            findings.push(Finding::new(&what, why, &detach));
        }
    }
    match Path::new(&entry.netns).try_exists() {
        Ok(false) => {
            let why =
                format!("its network namespace {} no longer exists, but DEL was not called", entry.netns);
            findings.push(Finding::new(&what, why, detach));
        }
        Ok(true) if entry.complete => {
            let checked = operations_on(weft_cni, handle, entry, plugins, Progress::beside(Format::Json))
                .and_then(|operations| operations.check());
            findings.extend(checked.err().map(|failure| {
                Finding::new(&what, format!("its attachments changed: {failure}"), "recreate the pod")
            }));
        }
        Ok(true) => {}
        Err(cause) => {
            let why = format!("failed to check its network namespace {}: {cause}", entry.netns);
            findings.push(Finding::new(&what, why, RETRY));
        }
    }
    findings
}

/// Returns the finding for a network whose DEL failed.
fn failed_to_detach(delegate: &Delegate, failure: &cni::Error) -> String {
    let Delegate { ifname, network, .. } = delegate;
    format!(
        "failed to detach {ifname}: {failure} (if that never succeeds, add --forget {network} to give it up)"
    )
}

/// Returns a finding for a result cache that exists and is unreadable. No object is then reported as orphaned.
fn unreadable_cache(directory: &Path) -> Option<Finding> {
    let cause = std::fs::read_dir(directory).err().filter(|cause| cause.kind() != ErrorKind::NotFound)?;
    let why = format!("failed to read the result cache, so orphaned objects are not reported: {cause}");
    Some(Finding::new(directory.display().to_string(), why, RETRY))
}

/// Returns a finding for an object whose container is unknown.
fn orphan_finding(marked: &Tagged, known: &[&Entry]) -> Option<Finding> {
    let Tagged { on, tag: mark } = marked;
    let mut parts = mark.split('/').skip(1);
    let (plugin, network, container, ifname) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    if is_known(known, network, container, ifname) {
        return None;
    }
    let interface = if ifname.is_empty() { String::new() } else { format!("{ifname} of ") };
    let why = format!(
        "created for {interface}container {container} on network {network}, which neither the journal nor the runtime knows"
    );
    let remover = if plugin == POLICY { "the meta-plugin".to_owned() } else { format!("network {network}") };
    let hint = format!("GC of {remover} removes it; if the runtime does not call GC, remove it manually");
    Some(Finding::new(on, why, hint))
}

/// Whether the journal knows the container, or a runtime has cached a result for the attachment.
fn is_known(known: &[&Entry], network: &str, container: &str, ifname: &str) -> bool {
    known.iter().any(|entry| entry.container_id.as_str() == container)
        || RESULT_CACHES.iter().any(|directory| is_cached(Path::new(directory), network, container, ifname))
}

/// Whether a result for the attachment is cached, or the cache is unreadable. An owner tag has only the
/// beginning of a long network name, followed by `~`. The comments on iptables rules have no interface.
fn is_cached(directory: &Path, network: &str, container: &str, ifname: &str) -> bool {
    let end = format!("-{container}-{ifname}");
    if !ifname.is_empty() && !network.contains('~') {
        return directory.join(format!("{network}{end}")).try_exists().unwrap_or(true);
    }
    let (network, is_shortened) =
        network.split_once('~').map_or((network, false), |(start, _)| (start, true));
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
        head.is_some_and(|head| head == network || (is_shortened && head.starts_with(network)))
    })
}

fn print_findings(diagnosis: &Diagnosis, output: Output) -> Result<(), Failure> {
    let Diagnosis { findings, sandboxes, failures, unchecked } = diagnosis;
    if output.format.is_document() {
        output::print_document(output.format, findings)?;
    } else {
        let lines = findings.iter().map(|Finding { what, why, hint }| {
            format!("{}: {}\n  {}\n", plain(what), plain(why), plain(hint))
        });
        let mut text: String = lines.collect();
        if findings.is_empty() {
            let state = if unchecked.is_empty() { "unchanged" } else { "in the journal" };
            let sandboxes = counted(*sandboxes, "sandbox", "sandboxes");
            text.push_str(&format!("no findings; {sandboxes} {state}\n"));
        }
        if *failures > 0 {
            let hint = "weft history --failed lists them";
            text.push_str(&format!("{failures} calls failed within the last hour; {hint}\n"));
        }
        if !unchecked.is_empty() {
            text.push_str(&format!("{unchecked}\n"));
        }
        output::print(&text)?;
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
    fn doctor_reports_orphaned_link_of_an_unknown_container() {
        let marked = |mark: &str| Tagged { on: "link veth0".into(), tag: mark.into() };
        let found = orphan_finding(&marked("weft/bridge/net/c1/eth0"), &[]).unwrap();
        assert_eq!(
            (found.what.as_str(), found.why.contains("container c1 on network net")),
            ("link veth0", true)
        );
        assert_eq!(orphan_finding(&marked("weft/bridge"), &[]), None);
    }
}
