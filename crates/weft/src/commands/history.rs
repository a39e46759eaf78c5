//! `weft history`: prints what `weft-cni` did for the pods on this node, and how the calls ended.
//!
//! - It reads the history on the node's disk; agent and API server are not needed. It changes nothing.
//! - The newest records for each pod are printed. `--timeline` prints the stages in one ADD.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use clap::Args;
use rpc::history::{NetworkRecord, Record, Stage};

use crate::cluster_access::ClusterAccess;
use crate::known_journals::{JournalHandle, KnownJournals};
use crate::manifest_plan::Inputs;
use crate::pod_name::PodName;
use crate::remote_node::{Needs, RemoteNode};
use cli_support::failure::{EXIT_CODES, Failure};
use cli_support::output;
use cli_support::output::Output;
use cli_support::table;
use cli_support::terminal::plain;
use cli_support::timestamp;
use node_support::history::History;

/// Width that the bars in a timeline have, in characters.
const BARS: u64 = 40;

/// Arguments of `weft history`.
#[derive(Debug, Args)]
#[command(after_help = format!("\
Example:
  weft history
  weft history -n my-namespace my-pod --failed
  weft history -n my-namespace my-pod --timeline

The history contains the last calls and tasks of this node, failures and successes, in two files of at most 1 MiB each
and their predecessors. -f and --config are only used to find it if cniDir of the configuration moves it.

{EXIT_CODES}"))]
pub(crate) struct Arguments {
    /// Name of the pod, or NAMESPACE/NAME (default: all pods of this node)
    #[arg(value_name = "POD")]
    pod: Option<String>,
    /// Namespace of the pod
    #[arg(short = 'n', long, default_value = "default")]
    namespace: String,
    /// Number of records of each pod
    #[arg(long, default_value_t = 10, value_name = "COUNT")]
    last: usize,
    /// Print failures only
    #[arg(long)]
    failed: bool,
    /// Print the stages of the pod's last ADD
    #[arg(long, requires = "pod")]
    timeline: bool,
    #[command(flatten)]
    remote: RemoteNode,
    #[command(flatten)]
    cluster: ClusterAccess,
    #[command(flatten)]
    inputs: Inputs,
    #[command(flatten)]
    output: Output,
}

/// Runs `weft history`.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { pod, namespace, last, failed, timeline, inputs, output: Output { format }, .. } =
        arguments;
    let pod = pod.as_deref().map(|pod| PodName::within(namespace, pod)).transpose()?;
    let node_pod = pod.clone();
    if let Some(done) = arguments.remote.run(&arguments.cluster, node_pod.as_ref(), Needs::Files) {
        return done;
    }
    let KnownJournals { known, unknown } = JournalHandle::all(inputs)?;
    let mut records = Vec::new();
    for handle in known {
        if let Some(directory) = handle.journal().directory().parent() {
            records.extend(History::below(directory).records()?);
        }
    }
    records.sort_by_key(|record| record.time);
    if let Some(pod) = &pod {
        records.retain(|record| record.pod.name == pod.name && record.pod.namespace == pod.namespace);
    }
    if *failed {
        records.retain(|record| record.error.is_some());
    }
    if *timeline {
        records = records.into_iter().rfind(|record| record.verb == "ADD").into_iter().collect();
        if records.is_empty() {
            let pod = pod.map(|pod| pod.to_string()).unwrap_or_default();
            let why = format!("no ADD of pod {pod} is recorded");
            return Err(Failure::new(why).next("weft history lists the recorded calls"));
        }
    } else {
        keep_last(&mut records, *last);
    }
    match records.last() {
        _ if format.is_document() => output::print_document(*format, &records)?,
        Some(record) if *timeline => output::print(&waterfall(record))?,
        None => {
            let of_pod = pod.map(|pod| format!(" of pod {pod}")).unwrap_or_default();
            output::print(&format!("no calls{of_pod} are recorded\n"))?;
        }
        Some(_) => output::print(&lay_out(&records))?,
    }
    unknown.filter(|_| records.is_empty()).map_or(Ok(()), Err)
}

/// Keeps the last records for each pod.
fn keep_last(records: &mut Vec<Record>, last: usize) {
    let mut counts: BTreeMap<(String, String), usize> = BTreeMap::new();
    let mut kept: Vec<Record> = Vec::new();
    for record in records.drain(..).rev() {
        let count = counts.entry((record.pod.namespace.clone(), record.pod.name.clone())).or_default();
        if *count < last {
            *count += 1;
            kept.push(record);
        }
    }
    kept.reverse();
    *records = kept;
}

fn lay_out(records: &[Record]) -> String {
    let row = |record: &Record| {
        let outcome = match &record.error {
            None if record.verb == "ADD" => networks(record),
            None => "done".to_owned(),
            Some(error) if record.failed_stage.is_empty() => format!("failed: {error}"),
            Some(error) => format!("failed ({}): {error}", record.failed_stage),
        };
        vec![
            utc(record.time),
            record.verb.clone(),
            format!("{}/{}", record.pod.namespace, record.pod.name),
            milliseconds(record.microseconds),
            outcome,
        ]
    };
    let rows: Vec<Vec<String>> = records.iter().map(row).collect();
    table::lay_out(&["time", "call", "pod", "duration", "outcome"], &rows, 0)
}

/// Returns a call's plan in short: `eth0 home (bridge), net1 blue/net-a (macvlan)`.
fn networks(record: &Record) -> String {
    let each = record.networks.iter().map(|NetworkRecord { network, interface, plugin }| {
        let plugin = if plugin.is_empty() { String::new() } else { format!(" ({plugin})") };
        format!("{interface} {network}{plugin}")
    });
    each.collect::<Vec<_>>().join(", ")
}

/// Returns a call's stages as bars on a common axis.
fn waterfall(record: &Record) -> String {
    let Record { time, microseconds, verb, pod, stages, error, trace, .. } = record;
    let outcome = error.as_ref().map_or_else(|| networks(record), |error| format!("failed: {error}"));
    let head = format!(
        "{} {verb} {}/{} {} {outcome}",
        utc(*time),
        pod.namespace,
        pod.name,
        milliseconds(*microseconds)
    );
    let mut text = plain(&head) + "\n";
    if !trace.is_empty() {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "trace {}", plain(trace));
    }
    let whole = (*microseconds).max(1);
    let rows = stages.iter().map(|Stage { name, began, microseconds, depth }| {
        let start = began.saturating_mul(BARS).checked_div(whole).unwrap_or_default().min(BARS - 1);
        let length = microseconds.saturating_mul(BARS).div_ceil(whole).clamp(1, BARS - start);
        let bar = format!("{}{}", " ".repeat(start as usize), "█".repeat(length as usize));
        vec![format!("{}{name}", "  ".repeat((*depth).min(4))), milliseconds(*microseconds), bar]
    });
    text + &table::lay_out(&["stage", "duration", ""], &rows.collect::<Vec<_>>(), 0)
}

fn milliseconds(microseconds: u64) -> String {
    format!("{:.1} ms", Duration::from_micros(microseconds).as_secs_f64() * 1e3)
}

/// Returns a time as in RFC 3339, in UTC.
fn utc(microseconds: u64) -> String {
    timestamp::utc(microseconds / 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cni::Error;
    use npwg::plan::PodIdentity;

    fn record(name: &str, time: u64) -> Record {
        let pod = PodIdentity { namespace: "blue".into(), name: name.into(), uid: String::new() };
        let network =
            NetworkRecord { network: "blue/net-a".into(), interface: "net1".into(), plugin: "bridge".into() };
        let stage =
            |name: &str, began, microseconds, depth| Stage { name: name.into(), began, microseconds, depth };
        let stages = vec![
            stage("plan", 0, 1_000, 0),
            stage("bridge ADD net1", 1_000, 3_000, 0),
            stage("host-local ADD net1", 2_000, 10, 1),
        ];
        let (verb, networks) = ("ADD".into(), vec![network]);
        Record {
            time,
            microseconds: 4_000,
            verb,
            pod,
            networks,
            stages,
            trace: "4bf9".into(),
            ..Record::default()
        }
    }

    #[test]
    fn history_table_has_the_last_records_of_each_pod() {
        let mut records: Vec<Record> = (0..5).map(|time| record("web", time)).collect();
        records.push(record("db", 9));
        keep_last(&mut records, 2);
        let times: Vec<u64> = records.iter().map(|record| record.time).collect();
        assert_eq!(times, [3, 4, 9]);
        let error = Error::new(7, "no such\u{1b}[2J network");
        records[1].error = Some(error);
        records[1].failed_stage = "plan".into();
        let text = lay_out(&records);
        assert!(text.contains("failed (plan): no such [2J network"), "{text}");
        assert!(text.contains("ADD   blue/db   4.0 ms    net1 blue/net-a (bridge)\n"), "{text}");
    }

    #[test]
    fn history_timeline_shows_each_stage_on_one_axis() {
        let text = waterfall(&record("web", 0));
        let bar = |start: usize, length: usize| format!("{}{}", " ".repeat(start), "█".repeat(length));
        for line in [
            "1970-01-01T00:00:00Z ADD blue/web 4.0 ms net1 blue/net-a (bridge)".to_owned(),
            "trace 4bf9".to_owned(),
            format!("plan                   1.0 ms    {}", bar(0, 10)),
            format!("bridge ADD net1        3.0 ms    {}", bar(10, 30)),
            format!("  host-local ADD net1  0.0 ms    {}", bar(20, 1)),
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line:?} is not in\n{text}");
        }
        // Values of a damaged file.
        let mut odd = record("web", u64::MAX);
        odd.stages.push(Stage {
            began: u64::MAX,
            microseconds: u64::MAX,
            depth: usize::MAX,
            ..Stage::default()
        });
        odd.microseconds = 0;
        assert!(!waterfall(&odd).is_empty());
    }
}
