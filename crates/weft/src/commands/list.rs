//! `weft list`: lists this node's sandboxes and attachments, from the journal; with a cluster option (`-A`, `-n`,
//! `--context`, `--kubeconfig`) the cluster's pods, from the API server.
//!
//! - An unreadable entry is a row with the error, and the exit code is 1.
//! - "no attachments" is printed only if every journal of the node is known.
//! - `-o json` prints one document for each sandbox. A test fixes the fields.
//! - It changes nothing, and queries the kernel only for `--policies`.

mod cluster;
mod failed;

use std::time::{Duration, SystemTime};

use clap::Args;
use manifest::DEFAULT_NAMESPACE;
use rpc::journal::Entry;
use serde::Serialize;

use crate::attachments::{self, AttachmentRow, SandboxDocument};
use crate::cluster_access::ClusterAccess;
use crate::known_journals::{JournalHandle, KnownJournals};
use crate::manifest_plan::Inputs;
use crate::pod_name::PodName;
use crate::policy_counters::{self, PolicyCount, ReadCounts, RuleName};
use crate::watched_table::{Watch, WatchedTable};
use cli_support::failure::{EXIT_CODES, Exit, Failure};
use cli_support::output;
use cli_support::output::{Format, Output, Progress};
use cli_support::table;
use cli_support::terminal::plain;
use cli_support::timestamp;
use cluster::ListedPods;
use node_support::journal_reader::Journal;
use node_support::journal_reader::Row;
use node_support::weft_cni::WeftCni;

/// Arguments of `weft list`.
#[derive(Debug, Args)]
#[command(after_help = format!("\
Example:
  weft list
  weft list my-namespace/my-pod -o wide
  weft list -A
  weft list -A --failed
  weft list -n my-namespace my-pod
  weft list --policies
  weft list -w
  weft list -o json | jq -r '.[].networkStatus[].ips[]'

-A, -n, --context and --kubeconfig list the networks of the pods of the cluster, from the API server; without them, the
attachments of this node are listed. -o json prints a list of sandboxes with pod (namespace, name, uid), containerId,
netns, attachments (network, interface, configName, state, result) and networkStatus. An unreadable entry has containerId
and error. -f and --config are only used to find the journal if cniDir of the configuration moves it.

{EXIT_CODES} An unreadable entry, a named pod without networks and a pod that fails are failures."))]
pub(crate) struct Arguments {
    /// Name of a pod in the namespace, or NAMESPACE/NAME (default: all pods)
    #[arg(value_name = "POD", conflicts_with = "all_namespaces")]
    pod: Option<String>,
    /// List the pods of all namespaces of the cluster
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    all_namespaces: bool,
    /// List the packets that network policies allowed and denied, for each attachment of this node and rule
    #[arg(long, conflicts_with_all = ["all_namespaces", "namespace", "watch"])]
    policies: bool,
    /// List the pods of the cluster whose networks fail now, with network, reason and hint; one row for each pod
    #[arg(long, conflicts_with_all = ["policies", "watch"])]
    failed: bool,
    /// List the pods of this namespace of the cluster (default: the namespace of the context; `default` for a pod of this
    /// node)
    #[arg(short = 'n', long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    #[command(flatten)]
    watch: Watch,
    #[command(flatten)]
    cluster: ClusterAccess,
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
    let Arguments { pod, all_namespaces, namespace, policies, failed, watch, cluster, inputs, output } =
        arguments;
    watch.require_table(output.format)?;
    if *policies && cluster.is_given() {
        let why = "--policies lists the counters of this node, --kubeconfig and --context name a cluster";
        return Err(Failure::new(why).next("run weft list --policies on the node").exit(Exit::Usage));
    }
    let list_pods = |listed: ListedPods<'_>| match failed {
        true => failed::list(cluster, listed, output.format),
        false => cluster::list(cluster, listed, output.format, *watch),
    };
    if *all_namespaces {
        return list_pods(ListedPods::All);
    }
    if *failed || namespace.is_some() || cluster.is_given() {
        let namespace = cluster.namespace(namespace.as_deref())?;
        let pod = pod.as_ref().map(|pod| PodName::within(&namespace, pod)).transpose()?;
        let listed = pod.as_ref().map_or(ListedPods::OfNamespace(&namespace), ListedPods::Named);
        return list_pods(listed);
    }
    let pod = pod.as_ref().map(|pod| PodName::within(DEFAULT_NAMESPACE, pod)).transpose()?;
    let KnownJournals { known: handles, unknown: unknown_journal } = JournalHandle::all(inputs)?;
    if watch.watch {
        return watch_sandboxes(&handles, pod.as_ref(), unknown_journal, output.format);
    }
    let (rows, times) = read(&handles, pod.as_ref())?;
    if let (Some(pod), true) = (&pod, rows.is_empty()) {
        return Err(unknown_journal.unwrap_or_else(|| {
            Failure::new(format!("pod {pod}: no attachments on this node"))
                .next(format!("weft list -n {} {} asks the API server", pod.namespace, pod.name))
        }));
    }
    match output.format {
        format if *policies => list_policies(&rows, format)?,
        Format::Json | Format::Yaml => {
            output::print_document(output.format, &rows.iter().map(document).collect::<Vec<_>>())?;
        }
        Format::Text | Format::Wide if rows.is_empty() && unknown_journal.is_some() => {}
        Format::Text | Format::Wide if rows.is_empty() => output::print("no attachments\n")?,
        Format::Text | Format::Wide => output::print(&lay_out(&rows, &times, output.format))?,
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

/// Prints the counters of network policies.
fn list_policies(rows: &[Row], format: Format) -> Result<(), Failure> {
    let entries: Vec<&Entry> = rows
        .iter()
        .filter_map(|row| match row {
            Row::Entry(entry) => Some(&**entry),
            Row::Broken { .. } => None,
        })
        .collect();
    let ReadCounts { counts, unread } = policy_counters::requests(&entries).read(&WeftCni::find()?)?;
    if unread > 0 {
        Progress::beside(Format::Json).line(format!(
            "weft: counters of {unread} attachments with network policies were not read: their rules are gone, or are too many"
        ));
    }
    let line = |count: &PolicyCount| {
        let PolicyCount { namespace, pod, interface, network, direction, allowed_by, packets, bytes } = count;
        let (verdict, rule) = match allowed_by {
            Some(RuleName { policy, rule }) => ("allowed", format!("{policy}[{rule}]")),
            None => ("denied", "no rule".to_owned()),
        };
        let words = [&format!("{namespace}/{pod}"), interface, network, direction.word(), verdict, &rule];
        let numbers = [packets.to_string(), bytes.to_string()];
        words.into_iter().map(plain).chain(numbers).collect::<Vec<String>>()
    };
    match format {
        Format::Json | Format::Yaml => output::print_document(format, &counts),
        Format::Text | Format::Wide if counts.is_empty() => output::print("no attachments with policies\n"),
        Format::Text | Format::Wide => {
            let headings =
                ["pod", "interface", "network", "direction", "verdict", "rule", "packets", "bytes"];
            let lines: Vec<Vec<String>> = counts.iter().map(line).collect();
            output::print(&table::lay_out(&headings, &lines, 0))
        }
    }
}

/// Returns the journals' rows, or those for a pod, with the time of each. An unreadable entry may belong to the pod.
fn read(
    handles: &[JournalHandle],
    pod: Option<&PodName>,
) -> Result<(Vec<Row>, Vec<Option<SystemTime>>), Failure> {
    let is_of_pod = |row: &Row| match (row, pod) {
        (Row::Entry(entry), Some(pod)) => {
            entry.plan.pod.namespace == pod.namespace && entry.plan.pod.name == pod.name
        }
        (Row::Broken { .. }, _) | (_, None) => true,
    };
    let (mut rows, mut times) = (Vec::new(), Vec::new());
    for handle in handles {
        for row in handle.journal().rows()?.into_iter().filter(is_of_pod) {
            times.push(written(handle.journal(), &row));
            rows.push(row);
        }
    }
    Ok((rows, times))
}

/// Prints the attachments, and those that change, until the process is interrupted.
fn watch_sandboxes(
    handles: &[JournalHandle],
    pod: Option<&PodName>,
    unknown: Option<Failure>,
    format: Format,
) -> Result<(), Failure> {
    if let Some(why) = unknown {
        Progress::beside(Format::Json).line(why.to_string());
    }
    let mut table = WatchedTable::new(SUBJECT, AGE);
    while output::has_reader() {
        let (rows, times) = read(handles, pod)?;
        let mut lines = Vec::new();
        for (row, time) in rows.iter().zip(&times) {
            match row {
                Row::Entry(entry) => lines.extend(cells(entry, *time, format)),
                Row::Broken { container, error } => {
                    let cells = ["-", container, "-", "-", "-", &format!("unreadable: {error}"), "-"];
                    lines.push(cells.map(str::to_owned).to_vec());
                }
            }
        }
        output::print(&table.changes(&headings(format), &lines))?;
        std::thread::sleep(INTERVAL);
    }
    Ok(())
}

fn document(row: &Row) -> Document<'_> {
    match row {
        Row::Entry(entry) => Document::Sandbox(attachments::document(entry)),
        Row::Broken { container, error } => {
            Document::Broken { container_id: container, error: error.to_string() }
        }
    }
}

/// Returns when an entry was last written: at the ADD, unless the networks were changed since.
fn written(journal: &Journal, row: &Row) -> Option<SystemTime> {
    let Row::Entry(entry) = row else { return None };
    std::fs::metadata(journal.file(&entry.container_id)).ok()?.modified().ok()
}

/// Number of the columns that name an attachment: pod, container, interface.
const SUBJECT: usize = 3;
/// Column with the age.
const AGE: usize = 6;
/// Interval between two looks with `-w`.
const INTERVAL: Duration = Duration::from_secs(1);
/// Number of characters in a short container ID, as crictl prints it.
const SHORT: usize = 13;

/// Returns the short form of a runtime's container ID. Other IDs contain a pod name and stay whole.
fn short(container: &str) -> &str {
    let is_of_runtime = container.len() > 2 * SHORT && container.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_of_runtime { &container[..SHORT] } else { container }
}

/// Returns the headings of the table.
fn headings(format: Format) -> Vec<&'static str> {
    let mut headings = vec!["pod", "container", "interface", "network", "addresses", "state", "age"];
    if format == Format::Wide {
        headings.extend(["mac", "plugins", "netns"]);
    }
    headings
}

/// Returns the cells for each attachment in a sandbox.
fn cells(entry: &Entry, time: Option<SystemTime>, format: Format) -> Vec<Vec<String>> {
    let or_dash = |text: String| if text.is_empty() { "-".to_owned() } else { text };
    let pod = format!("{}/{}", entry.plan.pod.namespace, entry.plan.pod.name);
    let container = entry.container_id.as_str();
    let container = if format == Format::Wide { container } else { short(container) };
    let age = time.and_then(|time| time.elapsed().ok()).map_or("-".to_owned(), timestamp::age);
    let line = |attached: AttachmentRow| {
        let AttachmentRow { network, interface, mac, addresses, chain, state, .. } = attached;
        let mut line = vec![
            pod.clone(),
            container.to_owned(),
            interface,
            network,
            or_dash(addresses.join(",")),
            state.as_str().to_owned(),
            age.clone(),
        ];
        if format == Format::Wide {
            line.extend([or_dash(mac), chain, entry.netns.clone()]);
        }
        line
    };
    attachments::rows(entry).into_iter().map(line).collect()
}

fn lay_out(rows: &[Row], times: &[Option<SystemTime>], format: Format) -> String {
    let (mut lines, mut broken) = (Vec::new(), String::new());
    for (row, time) in rows.iter().zip(times) {
        match row {
            Row::Broken { container, error } => {
                broken.push_str(&format!(
                    "{}: unreadable: {}\n",
                    plain(container),
                    plain(&error.to_string())
                ));
            }
            Row::Entry(entry) => lines.extend(cells(entry, *time, format)),
        }
    }
    let table = if lines.is_empty() { String::new() } else { table::lay_out(&headings(format), &lines, 0) };
    table + &broken
}
