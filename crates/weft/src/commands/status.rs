//! `weft status`: shows every cluster node: the agent, the plugin file, the default network, pools and failures.
//!
//! ```text
//!   Nodes, pods of the DaemonSet, WeftNodes ── API server ──► one row for each node
//! ```
//!
//! - It reads the API server only, with the rights of a cluster administrator or reader. Nothing is executed on a node.
//! - A row shows facts from the node's last report ([`WeftNode`]); whether the agent runs is the pod's readiness. An
//!   agent outside a pod is ready as long as the report is recent.
//! - With `--wait` it looks again until every node is ready. An error of the API server is shown once, and tried again.

use std::collections::BTreeMap;
use std::sync::Once;
use std::time::{Duration, Instant};

use clap::Args;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::ListParams;
use kube::core::PartialObjectMeta;
use kube::{Api, Client, ResourceExt};
use serde::{Deserialize, Serialize};

use crate::cluster_access::ClusterAccess;
use crate::place::Place;
use crate::watched_table::{Watch, WatchedTable, show_once};
use cli_support::async_runtime::runtime;
use cli_support::duration::seconds;
use cli_support::failure::{EXIT_CODES, Failure};
use cli_support::output::{self, Format, Output, Progress};
use cli_support::table;
use cli_support::timestamp::{age_of, now, parse_utc};
use kube_support::api_error;
use kube_support::custom_resources::{FailedCall, NodePool, PluginState, WeftNode, WeftNodeStatus};
use kube_support::resource;
use kube_support::resources::{NodeObject, PodObject};

/// Selector for the agents' pods, in deploy/ and in the chart.
const AGENTS: &str = "app.kubernetes.io/name=weft,app.kubernetes.io/component=agent";
/// Agent container in the weft pod. A pod without it only installs weft (`weft install --thin`).
const CONTAINER: &str = "agent";
/// Node label with the operating system.
const SYSTEM: &str = "kubernetes.io/os";
/// Age up to which a report is recent if the agent is no pod, in seconds: three times the interval between
/// unchanged reports.
const RECENT: u64 = 900;
/// Message about missing reports, which is printed once.
static NO_REPORTS: Once = Once::new();
/// Column with the report's age.
const REPORTED: usize = 8;
/// Interval between two looks with `--wait` and `-w`.
const INTERVAL: Duration = Duration::from_secs(2);

/// Arguments of `weft status`.
#[derive(Debug, Args)]
#[command(after_help = format!("\
Example:
  weft status
  weft status --wait --timeout 2m
  weft status -w
  weft status -o json | jq -r '.[] | select(.plugin != \"Current\").node'

-o wide adds the pod, the commit and the last failure.

{EXIT_CODES} A node that is not ready is a failure."))]
pub(crate) struct Arguments {
    /// Name of a node (default: all nodes)
    #[arg(value_name = "NODE")]
    nodes: Vec<String>,
    /// Wait until every node is ready
    #[arg(long, conflicts_with = "watch")]
    wait: bool,
    /// Timeout of --wait, in seconds or as 2m
    #[arg(long, default_value = "300", value_name = "DURATION", value_parser = seconds, requires = "wait")]
    timeout: u64,
    #[command(flatten)]
    watch: Watch,
    #[command(flatten)]
    cluster: ClusterAccess,
    #[command(flatten)]
    output: Output,
}

/// State of a node's agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
enum AgentPresence {
    /// It runs and is ready.
    Ready,
    /// The pod runs and is not ready.
    NotReady,
    /// The node has no agent.
    Missing,
    /// The node plans without an agent, and the weft pod is ready.
    Thin,
}

/// Row and document for a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct NodeRow {
    node: String,
    agent: AgentPresence,
    /// Namespace and name of the agent's pod; empty if it is no pod.
    pod: String,
    #[serde(flatten)]
    report: WeftNodeStatus,
}

/// Agent pod, reduced to the fields in use.
#[derive(Clone, Debug, Deserialize)]
struct AgentPod {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: AgentPodSpec,
    #[serde(default)]
    status: AgentPodStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct AgentPodSpec {
    node_name: String,
    containers: Vec<Container>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Container {
    name: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct AgentPodStatus {
    conditions: Vec<Condition>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Condition {
    r#type: String,
    status: String,
}

resource!(AgentPod as PodObject);

/// Runs `weft status`.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { nodes, wait, timeout, watch, cluster, output: Output { format } } = arguments;
    watch.require_table(*format)?;
    runtime()?.block_on(async {
        let client = cluster.client().await?;
        if watch.watch {
            return watch_nodes(&client, nodes, *format).await;
        }
        let end = Instant::now() + Duration::from_secs(*timeout);
        let mut shown = String::new();
        let rows = loop {
            let looked = look(&client, nodes).await;
            let is_over = !*wait || Instant::now() >= end;
            match looked {
                Ok(rows) if is_over || (!rows.is_empty() && rows.iter().all(NodeRow::is_ready)) => {
                    break rows;
                }
                Ok(_) => {}
                Err(failure) if is_over => return Err(outside_of_pod(failure)),
                Err(failure) => show_once(&failure, &mut shown),
            }
            tokio::time::sleep(INTERVAL).await;
        };
        match format {
            Format::Json | Format::Yaml => output::print_document(*format, &rows)?,
            Format::Text | Format::Wide if rows.is_empty() => output::print("no nodes\n")?,
            Format::Text | Format::Wide => output::print(&lay_out(&rows, *format))?,
        }
        match rows.iter().filter(|row| !row.is_ready()).count() {
            0 => Ok(()),
            count => Err(Failure::quiet(format!("{count} nodes are not ready"))),
        }
    })
}

/// Says where to run the command if this pod's ServiceAccount lacks the right: that of the agent may not list nodes.
fn outside_of_pod(failure: Failure) -> Failure {
    match Place::of_process() {
        Place::Pod { .. } if failure.to_string().contains("forbidden") => failure
            .context("weft status needs the rights of a person, not those of this pod")
            .next("run kubectl weft status, or weft status on a machine with a kubeconfig"),
        _ => failure,
    }
}

/// Prints the rows, and those that change, until the process is interrupted or the reader is gone. If the first look
/// fails, it ends. Later, a node that is gone is a removed row.
async fn watch_nodes(client: &Client, nodes: &[String], format: Format) -> Result<(), Failure> {
    let mut table = WatchedTable::new(1, REPORTED);
    let mut shown = String::new();
    let mut looked = Ok(look(client, nodes).await?);
    while output::has_reader() {
        match looked {
            Ok(rows) => {
                shown.clear();
                let cells: Vec<Vec<String>> = rows.iter().map(|row| row.cells(format)).collect();
                output::print(&table.changes(&headings(format), &cells))?;
            }
            Err(failure) => show_once(&failure, &mut shown),
        }
        tokio::time::sleep(INTERVAL).await;
        looked = rows(client, nodes).await.map(|(rows, _)| rows);
    }
    Ok(())
}

/// Returns the rows for all nodes, or for those with these names, which must exist.
async fn look(client: &Client, names: &[String]) -> Result<Vec<NodeRow>, Failure> {
    let (rows, unknown) = rows(client, names).await?;
    match unknown {
        None => Ok(rows),
        Some(name) => Err(Failure::new(format!("node {name}: the cluster has no such node that runs Linux"))
            .next("kubectl get nodes lists the nodes")),
    }
}

/// Returns the rows for all nodes, or for those with these names, and the first name that no node has.
async fn rows(client: &Client, names: &[String]) -> Result<(Vec<NodeRow>, Option<String>), Failure> {
    let all = Api::<NodeObject>::all(client.clone());
    // The API server answers from its cache, without the images and conditions of the nodes.
    let nodes = all.list_metadata(&ListParams::default().match_any()).await;
    let nodes = nodes.map_err(|error| api_error::failure("list nodes", &error))?;
    let agents = ListParams::default().labels(AGENTS);
    let pods = list(Api::<AgentPod>::all(client.clone()), &agents, "pods").await?;
    let reports = reports(client).await?;
    let is_linux = |node: &&PartialObjectMeta<NodeObject>| {
        node.metadata.labels.as_ref().and_then(|all| all.get(SYSTEM)).is_none_or(|system| system == "linux")
    };
    let mut all: Vec<String> = nodes.items.iter().filter(is_linux).map(ResourceExt::name_any).collect();
    all.sort();
    let unknown = names.iter().find(|name| !all.contains(name)).cloned();
    all.retain(|name| names.is_empty() || names.contains(name));
    Ok((all.into_iter().map(|node| row(node, &pods, &reports)).collect(), unknown))
}

async fn list<K>(api: Api<K>, parameters: &ListParams, kind: &str) -> Result<Vec<K>, Failure>
where
    K: Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let listed = api.list(parameters).await;
    listed.map(|list| list.items).map_err(|error| api_error::failure(format_args!("list {kind}"), &error))
}

/// Returns the reports by node name; none, with a message, if the cluster lacks the definition.
async fn reports(client: &Client) -> Result<BTreeMap<String, WeftNodeStatus>, Failure> {
    let reports: Api<WeftNode> = Api::all(client.clone());
    match reports.list(&ListParams::default()).await {
        Ok(list) => {
            Ok(list.items.into_iter().map(|one| (one.name_any(), one.status.unwrap_or_default())).collect())
        }
        Err(kube::Error::Api(status)) if status.code == 404 => {
            let line = "weft: the cluster has no reports of agents: apply weftnodes.weft.dev of deploy/crds";
            NO_REPORTS.call_once(|| Progress::beside(Format::Json).line(line));
            Ok(BTreeMap::new())
        }
        Err(error) => Err(api_error::failure("list weftnodes", &error)),
    }
}

fn row(node: String, pods: &[AgentPod], reports: &BTreeMap<String, WeftNodeStatus>) -> NodeRow {
    // During an update, a node may have the pod that ends and the one that starts.
    let mut of_node = pods.iter().filter(|pod| pod.spec.node_name == node);
    let first = of_node.clone().next();
    let pod = of_node.find(|pod| pod.is_ready()).or(first);
    let report = reports.get(&node).cloned().unwrap_or_default();
    let agent = match pod {
        Some(pod) if !pod.is_ready() => AgentPresence::NotReady,
        Some(pod) if pod.spec.containers.iter().all(|container| container.name != CONTAINER) => {
            AgentPresence::Thin
        }
        Some(_) => AgentPresence::Ready,
        // The report of an agent whose pod was deleted is only that: its last one.
        None if !report.in_pod && is_recent(&report) => AgentPresence::Ready,
        None => AgentPresence::Missing,
    };
    let name = |pod: &AgentPod| format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any());
    NodeRow { node, agent, pod: pod.map(name).unwrap_or_default(), report }
}

fn is_recent(report: &WeftNodeStatus) -> bool {
    parse_utc(&report.reported_at).is_some_and(|time| now().saturating_sub(time) <= RECENT)
}

/// Returns the table's headings. The agent's column names caches that are stale.
fn headings(format: Format) -> Vec<&'static str> {
    let mut headings = vec![
        "node",
        "agent",
        "version",
        "plugin",
        "default network",
        "sandboxes",
        "pools",
        "failures",
        "reported",
    ];
    if format == Format::Wide {
        headings.extend(["pod", "commit", "last failure"]);
    }
    headings
}

fn lay_out(rows: &[NodeRow], format: Format) -> String {
    let lines: Vec<Vec<String>> = rows.iter().map(|row| row.cells(format)).collect();
    table::lay_out(&headings(format), &lines, 0)
}

fn or_dash(text: &str) -> String {
    if text.is_empty() { "-".to_owned() } else { text.to_owned() }
}

// === impl AgentPresence ===

impl AgentPresence {
    fn as_str(self) -> &'static str {
        match self {
            AgentPresence::Ready => "ready",
            AgentPresence::NotReady => "not ready",
            AgentPresence::Missing => "missing",
            AgentPresence::Thin => "none (thin)",
        }
    }
}

// === impl NodeRow ===

impl NodeRow {
    /// Whether pods on the node get networks from this release: the agent is ready and has the same build as the
    /// plugin.
    fn is_ready(&self) -> bool {
        match self.agent {
            AgentPresence::Ready => matches!(self.report.plugin, PluginState::Current | PluginState::Unknown),
            AgentPresence::Thin => true,
            AgentPresence::NotReady | AgentPresence::Missing => false,
        }
    }

    fn cells(&self, format: Format) -> Vec<String> {
        let NodeRow { node, agent, pod, report } = self;
        let WeftNodeStatus {
            reported_at,
            in_pod: _,
            version,
            commit,
            plugin,
            default_network,
            sandboxes,
            incomplete_sandboxes,
            failed_calls,
            last_failure,
            pools,
            stale_caches,
        } = report;
        let is_known = !reported_at.is_empty();
        let number = |number: String| if is_known { number } else { "-".to_owned() };
        let sandboxes = match incomplete_sandboxes {
            0 => sandboxes.to_string(),
            incomplete => format!("{sandboxes} ({incomplete} incomplete)"),
        };
        let mut cells = vec![
            node.clone(),
            match stale_caches.is_empty() || matches!(agent, AgentPresence::Missing) {
                true => agent.as_str().to_owned(),
                false => format!("{} (stale: {})", agent.as_str(), stale_caches.join(", ")),
            },
            or_dash(version),
            number(plugin_word(*plugin).to_owned()),
            or_dash(default_network),
            number(sandboxes),
            number(pools.iter().map(pool_text).collect::<Vec<_>>().join(", ")),
            number(failed_calls.to_string()),
            parse_utc(reported_at).map_or("-".to_owned(), age_of),
        ];
        if cells[6].is_empty() {
            "-".clone_into(&mut cells[6]);
        }
        if format == Format::Wide {
            let failure = last_failure.as_ref().map(failure_text).unwrap_or_default();
            cells.extend([or_dash(pod), or_dash(commit), or_dash(&failure)]);
        }
        cells
    }
}

fn plugin_word(plugin: PluginState) -> &'static str {
    match plugin {
        PluginState::Current => "current",
        PluginState::Different => "different",
        PluginState::Missing => "missing",
        PluginState::Unknown => "unknown",
    }
}

fn pool_text(pool: &NodePool) -> String {
    let NodePool { name, held, free } = pool;
    format!("{name} {held}/{}", held + free)
}

fn failure_text(failure: &FailedCall) -> String {
    let FailedCall { time, verb, pod, message } = failure;
    format!("{time} {verb} {pod}: {message}")
}

// === impl AgentPod ===

impl AgentPod {
    fn is_ready(&self) -> bool {
        self.status.conditions.iter().any(|one| one.r#type == "Ready" && one.status == "True")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use cli_support::timestamp::utc;

    use super::*;

    fn pod(node: &str, container: &str, ready: &str) -> AgentPod {
        let pod = json!({
            "metadata": { "name": format!("weft-agent-{node}"), "namespace": "kube-system" },
            "spec": { "nodeName": node, "containers": [{ "name": container }] },
            "status": { "conditions": [{ "type": "Ready", "status": ready }] },
        });
        serde_json::from_value(pod).unwrap()
    }

    fn report(seconds: u64, plugin: PluginState) -> WeftNodeStatus {
        WeftNodeStatus { reported_at: utc(now() - seconds), plugin, ..WeftNodeStatus::default() }
    }

    #[test]
    fn status_of_a_node_depends_on_its_pod_and_its_report() {
        let pods = [pod("a", "agent", "True"), pod("b", "agent", "False"), pod("c", "follow", "True")];
        let reports = BTreeMap::from([
            ("a".to_owned(), report(RECENT + 60, PluginState::Current)),
            ("d".to_owned(), report(10, PluginState::Current)),
            ("e".to_owned(), report(RECENT + 60, PluginState::Current)),
            // Its DaemonSet was deleted a moment ago.
            ("g".to_owned(), WeftNodeStatus { in_pod: true, ..report(10, PluginState::Current) }),
        ]);
        for (node, agent, is_ready) in [
            ("a", AgentPresence::Ready, true),
            ("b", AgentPresence::NotReady, false),
            ("c", AgentPresence::Thin, true),
            ("d", AgentPresence::Ready, true),
            ("e", AgentPresence::Missing, false),
            ("f", AgentPresence::Missing, false),
            ("g", AgentPresence::Missing, false),
        ] {
            let row = row(node.to_owned(), &pods, &reports);
            assert_eq!((row.agent, row.is_ready()), (agent, is_ready), "{node}");
        }
        let old = BTreeMap::from([("a".to_owned(), report(10, PluginState::Different))]);
        assert!(!row("a".to_owned(), &pods, &old).is_ready(), "another plugin");
    }

    #[test]
    fn status_table_has_pools_and_failures() {
        let mut report = report(30, PluginState::Current);
        report.version = "0.1.0".into();
        report.sandboxes = 3;
        report.incomplete_sandboxes = 1;
        report.failed_calls = 2;
        report.stale_caches = vec!["pods".into(), "ipblocks".into()];
        report.pools = vec![NodePool { name: "blue".into(), held: 2, free: 14 }];
        let pod = String::new();
        let rows = [
            NodeRow { node: "a".into(), agent: AgentPresence::Ready, pod: pod.clone(), report },
            NodeRow {
                node: "b".into(),
                agent: AgentPresence::Missing,
                pod,
                report: WeftNodeStatus::default(),
            },
        ];
        let text = lay_out(&rows, Format::Text);
        assert!(text.contains("a     ready (stale: pods, ipblocks)  0.1.0    current  -"), "{text}");
        assert!(
            text.contains("3 (1 incomplete)  blue 2/16  2 ")
                && text.contains("b     missing                        -"),
            "{text}"
        );
    }
}
