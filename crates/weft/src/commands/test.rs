//! `weft test`: tests cluster networks with test pods, and removes them.
//!
//! ```text
//!   node 1: pod a ── weft probe ◄── the network ──► weft probe --to ── pod b: node 2
//! ```
//!
//! - Each case is a network between two nodes. The pods run the weft image, without privilege.
//! - It verifies the network-status, the addresses, that each address replies, and that packets of the MTU do.
//! - At the end, also after an interrupt, it deletes the pods and waits until they are gone. Pods from a killed run end
//!   by themselves, and the next run deletes them.
//! - An error of the API server is tried again until the timeout.

mod cases;
mod pods;
mod targets;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Args;
use kube::Client;

use crate::attachments::network_count;
use crate::cluster_access::ClusterAccess;
use crate::pod_name::PodName;
use cases::{Action, Case, Outcome, Verdict};
use cli_support::async_runtime::runtime;
use cli_support::duration::seconds;
use cli_support::failure::{EXIT_CODES, Failure};
use cli_support::interrupt::Interrupt;
use cli_support::output::{self, Format, Output, Progress, counted};
use cli_support::table;
use cli_support::terminal::plain;
use cli_support::timestamp::now;
use kube_support::api_error;
use pods::{PodState, Run, TestPod};
use targets::TestedNetwork;

/// Interval between two looks at the pods.
const INTERVAL: Duration = Duration::from_millis(500);
/// Interval between two looks at the Events about pods that do not start.
const EVENTS_INTERVAL: Duration = Duration::from_secs(2);
/// Number of cases that run at the same time.
const CONCURRENT: usize = 8;
/// Time by which pods may outlive the case timeout, in seconds.
const SPARE: u64 = 30;
/// Timeout for the removal.
const REMOVAL_MAX: Duration = Duration::from_secs(90);
/// Namespace that the agents are in according to deploy/.
const AGENT_NAMESPACE: &str = "kube-system";
/// Timeouts that a case can have, in seconds.
const TIMEOUTS: RangeInclusive<u64> = 30..=3600;
/// Response codes after which a request is not repeated.
const FINAL: [u16; 4] = [400, 403, 404, 422];

/// Arguments of `weft test`.
#[derive(Debug, Args)]
#[command(after_help = format!("\
Example:
  weft test -n my-namespace
  weft test -A
  weft test --network my-namespace/data --nodes worker-1,worker-2
  weft test --clean -n my-namespace

Each network is tested between each ready node and the next one by name; on a single node, between two of its pods. The
pods are created in the namespace of the network and deleted at the end.

{EXIT_CODES} A fault of a network is a failure."))]
pub(crate) struct Arguments {
    /// Name of a network, or NAMESPACE/NAME; may be repeated (default: all networks of the namespace)
    #[arg(long = "network", value_name = "NETWORK")]
    networks: Vec<String>,
    /// Test the networks of all namespaces
    #[arg(short = 'A', long, conflicts_with_all = ["networks", "namespace", "clean"])]
    all_namespaces: bool,
    /// Namespace of the networks (default: that of the kubeconfig's context, else `default`)
    #[arg(short = 'n', long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// Names of nodes, separated by commas (default: all ready nodes)
    #[arg(long, value_name = "NODE,…", value_delimiter = ',')]
    nodes: Vec<String>,
    /// Image of weft for the pods (default: that of the agents)
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,
    /// Namespace of the agents' DaemonSet, whose image the pods run; only administrators may create DaemonSets there
    #[arg(long, value_name = "NAMESPACE", default_value = AGENT_NAMESPACE, conflicts_with = "image")]
    agent_namespace: String,
    /// Timeout of a case, from 30 seconds to an hour, in seconds or as 2m
    #[arg(long, value_name = "DURATION", default_value = "120", value_parser = timeout)]
    timeout: u64,
    /// Maximum number of cases: networks times pairs of nodes
    #[arg(long, value_name = "NUMBER", default_value_t = 32)]
    limit: usize,
    /// Only delete the pods of all runs in the namespaces, also of runs that have not ended
    #[arg(long)]
    clean: bool,
    #[command(flatten)]
    cluster: ClusterAccess,
    #[command(flatten)]
    output: Output,
}

/// Parses a case's timeout and returns its seconds.
fn timeout(text: &str) -> Result<u64, String> {
    let seconds = seconds(text).map_err(|error| error.to_string())?;
    match TIMEOUTS.contains(&seconds) {
        true => Ok(seconds),
        false => Err(format!("expected from {} to {} seconds", TIMEOUTS.start(), TIMEOUTS.end())),
    }
}

/// Runs `weft test`.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { cluster, output: Output { format }, clean, .. } = arguments;
    let namespace = cluster.namespace(arguments.namespace.as_deref())?;
    let (interrupt, progress) = (Interrupt::watch()?, Progress::beside(*format));
    let outcomes = runtime()?.block_on(async {
        let client = cluster.client().await?;
        if *clean {
            return remove_all(&client, arguments, &namespace, progress).await.map(|()| Vec::new());
        }
        let networks = targets::networks(&client, arguments, &namespace).await?;
        test(&client, arguments, &networks, &interrupt, progress).await
    })?;
    if *clean {
        return Ok(());
    }
    match format {
        Format::Json | Format::Yaml => output::print_document(*format, &outcomes)?,
        Format::Text | Format::Wide => output::print(&lay_out(&outcomes))?,
    }
    match outcomes.iter().filter(|outcome| outcome.verdict == Verdict::Failed).count() {
        0 => Ok(()),
        count => Err(Failure::quiet(format!("{count} of {} tests failed", outcomes.len()))),
    }
}

/// Tests every case, and removes the pods.
async fn test(
    client: &Client,
    arguments: &Arguments,
    networks: &[TestedNetwork],
    interrupt: &Interrupt,
    progress: Progress,
) -> Result<Vec<Outcome>, Failure> {
    let pairs = targets::pairs(client, &arguments.nodes).await?;
    let count = networks.len() * pairs.len();
    if count > arguments.limit {
        let why = format!(
            "{} between {} are {count} tests, more than --limit {}",
            network_count(networks.len()),
            counted(pairs.len(), "pair of nodes", "pairs of nodes"),
            arguments.limit
        );
        return Err(
            Failure::new(why).next("name networks with --network or nodes with --nodes, or raise --limit")
        );
    }
    let image = targets::image(client, arguments.image.as_deref(), &arguments.agent_namespace).await?;
    let namespaces: BTreeSet<String> =
        networks.iter().map(|network| network.name.namespace.clone()).collect();
    remove_expired(client, &namespaces, progress).await?;
    let run = Run { token: token(), expires: now(), deadline: arguments.timeout + SPARE, image };
    progress.line(plain(&format!(
        "{}: {}, {}, image {}",
        counted(count, "test", "tests"),
        network_count(networks.len()),
        counted(pairs.len(), "pair of nodes", "pairs of nodes"),
        run.image.name
    )));
    let mut cases = Vec::new();
    for network in networks {
        for pair in &pairs {
            let prefix = format!("{}{}-{}", pods::PREFIX, run.token, cases.len());
            cases.push(Case::new(network.clone(), pair.clone(), &prefix));
        }
    }
    let result = test_all(client, &run, &mut cases, (arguments, &namespaces), interrupt, progress).await;
    let removed = remove_run(client, &run.token, &namespaces).await;
    match (result, removed) {
        (Ok(()), Ok(())) => Ok(cases.iter().filter_map(|case| case.outcome().cloned()).collect()),
        (Err(failure), removed) => Err(failure.also(removed.err())),
        (Ok(()), Err(failure)) => Err(failure),
    }
}

/// Tests the cases, a few at a time.
async fn test_all(
    client: &Client,
    run: &Run,
    cases: &mut [Case],
    (arguments, namespaces): (&Arguments, &BTreeSet<String>),
    interrupt: &Interrupt,
    progress: Progress,
) -> Result<(), Failure> {
    let limit = Duration::from_secs(arguments.timeout);
    for batch in cases.chunks_mut(CONCURRENT) {
        // Earlier than the kubelet ends the pods: the next run then deletes them.
        let run = Run { expires: now() + arguments.timeout + SPARE / 2, ..run.clone() };
        let end = Instant::now() + limit;
        let mut last_error = String::new();
        let mut pods = BTreeMap::new();
        let mut next_events = Instant::now() + EVENTS_INTERVAL;
        while batch.iter().any(|case| case.outcome().is_none()) {
            interrupt.stop_here().map_err(|stopped| stopped.context("test"))?;
            match run.pods(client, namespaces).await {
                Ok(found) => {
                    pods = found;
                    last_error.clear();
                    advance(client, &run, batch, &pods, &mut last_error, progress).await;
                }
                Err(error) => last_error = api_error::describe(&error),
            }
            if Instant::now() >= next_events {
                end_hopeless(client, batch, &pods, namespaces, progress).await;
                next_events = Instant::now() + EVENTS_INTERVAL;
            }
            if Instant::now() >= end {
                time_out(client, batch, &pods, &last_error, progress).await;
                break;
            }
            tokio::time::sleep(INTERVAL).await;
        }
    }
    Ok(())
}

/// Makes a step in each case.
async fn advance(
    client: &Client,
    run: &Run,
    batch: &mut [Case],
    pods: &BTreeMap<String, TestPod>,
    last_error: &mut String,
    progress: Progress,
) {
    for case in batch.iter_mut().filter(|case| case.outcome().is_none()) {
        let before = case.clone();
        let created = match case.advance(pods) {
            Action::Wait => Ok(()),
            Action::Create(pod) => run.create(client, &pod).await,
        };
        match created {
            Ok(()) => {}
            Err(kube::Error::Api(status)) if FINAL.contains(&status.code) => {
                case.fail(format!("the API server refuses the pod: {}", status.message));
            }
            Err(error) => {
                *last_error = api_error::describe(&error);
                // The step is made again.
                *case = before;
            }
        }
        show(case, progress);
    }
}

/// Ends the cases whose pod will not get the network. If the API server does not list the Events, they end by the
/// timeout.
async fn end_hopeless(
    client: &Client,
    batch: &mut [Case],
    pods: &BTreeMap<String, TestPod>,
    namespaces: &BTreeSet<String>,
    progress: Progress,
) {
    let Ok(hopeless) = pods::hopeless(client, namespaces).await else { return };
    for case in batch.iter_mut().filter(|case| case.outcome().is_none()) {
        let (name, _) = case.waits_for(pods);
        let is_waiting = pods.get(&name).is_none_or(|pod| matches!(pod.state(), PodState::Waiting(_)));
        if let Some(why) = hopeless.get(&name).filter(|_| is_waiting) {
            case.fail(why.clone());
            show(case, progress);
        }
    }
}

/// Prints how a case has ended.
fn show(case: &Case, progress: Progress) {
    if let Some(outcome) = case.outcome() {
        // The table tells what was found.
        let Outcome { network, nodes, verdict, .. } = outcome;
        let verdict = if *verdict == Verdict::Ok { "ok" } else { "ERROR" };
        let line = format!("{verdict:5}  {network}  {}", nodes.join(" - "));
        progress.line(format!("  {}", plain(line.trim_end())));
    }
}

/// Ends the cases that are not complete.
async fn time_out(
    client: &Client,
    batch: &mut [Case],
    pods: &BTreeMap<String, TestPod>,
    last_error: &str,
    progress: Progress,
) {
    for case in batch.iter_mut().filter(|case| case.outcome().is_none()) {
        let (name, mut why) = case.waits_for(pods);
        if !last_error.is_empty() {
            why = format!("{why}; the API server: {last_error}");
        }
        let pod = PodName { namespace: case.network.name.namespace.clone(), name: name.clone() };
        if let Some(warning) = pods::warning(client, &pod).await {
            why = format!("{why}; last Event: {warning}");
        }
        case.fail(format!("timeout: pod {name} {why}"));
        show(case, progress);
    }
}

/// Deletes the pods that killed runs left.
async fn remove_expired(
    client: &Client,
    namespaces: &BTreeSet<String>,
    progress: Progress,
) -> Result<(), Failure> {
    let time = now();
    let deleted = pods::delete(client, namespaces, None, |pod| pod.is_expired(time)).await;
    let deleted = deleted.map_err(|error| {
        Failure::new(format!("delete the pods of earlier runs: {}", api_error::describe(&error)))
    })?;
    for name in deleted {
        progress.line(plain(&format!("  deleted pod {name} of a killed run")));
    }
    Ok(())
}

/// Deletes all runs' pods in the namespaces that the options name.
async fn remove_all(
    client: &Client,
    arguments: &Arguments,
    namespace: &str,
    progress: Progress,
) -> Result<(), Failure> {
    let namespaces = named_namespaces(&arguments.networks, namespace);
    let found = remove_until_gone(client, &namespaces, None).await?;
    progress.line(format!("deleted {}", counted(found.len(), "pod", "pods")));
    Ok(())
}

/// Returns the namespaces for these networks; `namespace` is for a network without one, and for no network.
fn named_namespaces(networks: &[String], namespace: &str) -> BTreeSet<String> {
    let of = |name: &String| name.split_once('/').map_or(namespace, |(own, _)| own).to_owned();
    match networks {
        [] => BTreeSet::from([namespace.to_owned()]),
        networks => networks.iter().map(of).collect(),
    }
}

/// Deletes a run's pods.
async fn remove_run(client: &Client, token: &str, namespaces: &BTreeSet<String>) -> Result<(), Failure> {
    remove_until_gone(client, namespaces, Some(token)).await.map(|_| ())
}

/// Deletes pods, waits until they are gone, and returns the pod names. Signals do not end the removal.
async fn remove_until_gone(
    client: &Client,
    namespaces: &BTreeSet<String>,
    token: Option<&str>,
) -> Result<BTreeSet<String>, Failure> {
    let end = Instant::now() + REMOVAL_MAX;
    let mut all = BTreeSet::new();
    loop {
        let why = match pods::delete(client, namespaces, token, |_| true).await {
            Ok(remaining) if remaining.is_empty() => return Ok(all),
            Ok(remaining) => {
                all.extend(remaining.iter().cloned());
                format!("pods remain: {}", remaining.join(", "))
            }
            Err(error) => api_error::describe(&error),
        };
        if Instant::now() >= end {
            let label = token.map_or_else(|| pods::RUN.to_owned(), |token| format!("{}={token}", pods::RUN));
            return Err(Failure::new(format!("remove the pods of the test: {why}"))
                .next(format!("kubectl delete pods -A -l {label}")));
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// Returns a token that distinguishes this run from others.
fn token() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{:x}-{:05x}", std::process::id(), now.subsec_nanos() & 0xf_ffff)
}

fn lay_out(outcomes: &[Outcome]) -> String {
    let headings = ["network", "nodes", "addresses", "of the other", "reply", "mtu", "result", "found"];
    let mut printed = BTreeSet::new();
    let rows = outcomes.iter().map(|outcome| {
        // Every pair of nodes finds the same about a wrong definition: it is said once.
        let Outcome { network, verdict, found, .. } = outcome;
        let is_first = *verdict == Verdict::Ok || printed.insert((network, found));
        let found = if is_first { found.clone() } else { "the same".to_owned() };
        Outcome { found, ..outcome.clone() }.cells()
    });
    let rows: Vec<Vec<String>> = rows.collect();
    format!("\n{}", table::lay_out(&headings, &rows, 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_reason_of_several_pairs_is_printed_once() {
        let outcome = |network: &str, nodes: [&str; 2], verdict, found: &str| Outcome {
            network: network.to_owned(),
            nodes: nodes.map(str::to_owned),
            verdict,
            found: found.to_owned(),
            addresses: [Vec::new(), Vec::new()],
            mtu: None,
            replies: Vec::new(),
        };
        let table = lay_out(&[
            outcome("n/a", ["1", "2"], Verdict::Failed, "weft refuses the pod: x"),
            outcome("n/a", ["2", "1"], Verdict::Failed, "weft refuses the pod: x"),
            outcome("n/b", ["1", "2"], Verdict::Failed, "weft refuses the pod: x"),
            outcome("n/b", ["2", "1"], Verdict::Failed, "no reply"),
            outcome("n/c", ["1", "2"], Verdict::Ok, "no addresses"),
            outcome("n/c", ["2", "1"], Verdict::Ok, "no addresses"),
        ]);
        let last: Vec<&str> = table.lines().skip(2).map(|line| line.rsplit("  ").next().unwrap()).collect();
        let reason = "weft refuses the pod: x";
        assert_eq!(last, [reason, "the same", reason, "no reply", "no addresses", "no addresses"], "{table}");
    }

    #[test]
    fn test_clean_includes_the_namespace_of_the_options() {
        let namespaces = |networks: &[&str]| -> Vec<String> {
            let networks: Vec<String> = networks.iter().map(|name| (*name).to_owned()).collect();
            named_namespaces(&networks, "blue").into_iter().collect()
        };
        assert_eq!(namespaces(&[]), ["blue"]);
        assert_eq!(namespaces(&["red/data"]), ["red"]);
        assert_eq!(namespaces(&["red/data", "lab"]), ["blue", "red"]);
    }
}
