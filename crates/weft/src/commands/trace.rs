//! `weft trace`: follows the path of packets between two pods on a network, and says where they are lost.
//!
//! - The first pod is on this node. The journal has the interface and the addresses; `weft-cni sandbox trace` enters
//!   the namespaces. Nothing is changed, except for the packets of one probe.
//! - The network policies that weft enforces are read from the journal, before the packets are followed ([`policy_step`]).
//! - For a pod on another node, node, interface and addresses come from the API. That side of the path is not examined;
//!   the step `attachment` has the command that does it.

mod policy_step;

use std::net::IpAddr;

use clap::Args;
use cni::name::IfName;
use kube::Api;
use npwg::metadata::Pod;
use npwg::status::{self, NETWORK_STATUS};
use rpc::diagnosis::{SandboxNamespace, TraceEnd, TraceRequest, TraceStep, Verdict};
use rpc::journal::Entry;
use serde::Serialize;

use crate::cluster_access::ClusterAccess;
use crate::known_journals::{JournalHandle, KnownJournals, Target};
use crate::manifest_plan::Inputs;
use crate::place::require_host;
use crate::pod_name::PodName;
use crate::remote_node::{Needs, RemoteNode};
use cli_support::async_runtime::runtime;
use cli_support::failure::{EXIT_CODES, Failure};
use cli_support::output::{self, Output};
use cli_support::table;
use cli_support::terminal::plain;
use kube_support::lookup::ask;
use kube_support::resources::PodObject;
use node_support::weft_cni::WeftCni;

/// Maximum number of addresses that are considered for an interface.
const ADDRESSES_MAX: usize = 16;

/// Arguments of `weft trace`.
#[derive(Debug, Args)]
#[command(after_help = format!("\
Example:
  weft trace -n my-namespace web db --network data
  weft trace -n my-namespace web other-namespace/db --network data --tcp 5432

The steps are attachment, interface, address, route, neighbour, MTU, port and VLAN of a bridge, packet filter, and one
probe from the first pod. The first pod must be on this node. If the second one is on another node, the API server has
its node and address, and only the first side is examined. The output names the command that examines the other side.

{EXIT_CODES} A step with a fault is a failure."))]
pub(crate) struct Arguments {
    /// Pod that sends: NAME or NAMESPACE/NAME
    #[arg(value_name = "POD")]
    from: String,
    /// Pod that receives: NAME or NAMESPACE/NAME
    #[arg(value_name = "OTHER-POD")]
    to: String,
    /// Namespace of pods without one
    #[arg(short = 'n', long, default_value = "default")]
    namespace: String,
    /// Network of both pods: NAME in the namespace of the pod, NAMESPACE/NAME, or the name of the default network
    #[arg(long, value_name = "NETWORK")]
    network: String,
    /// TCP port to which the probe connects (default: the probe is a ping)
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    tcp: Option<u16>,
    #[command(flatten)]
    cluster: ClusterAccess,
    #[command(flatten)]
    remote: RemoteNode,
    #[command(flatten)]
    inputs: Inputs,
    #[command(flatten)]
    output: Output,
}

/// Document of `-o json`.
#[derive(Debug, Serialize)]
struct Document<'a> {
    from: &'a str,
    to: &'a str,
    network: &'a str,
    /// Whether the path works.
    #[serde(rename = "result")]
    verdict: Verdict,
    steps: &'a [TraceStep],
}

/// End of the path, or the reason why there is none.
type Found = Result<TraceEnd, TraceStep>;

/// Runs `weft trace`.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { from, to, namespace, network, tcp, remote, cluster, inputs, output } = arguments;
    let (from, to) = (PodName::within(namespace, from)?, PodName::within(namespace, to)?);
    // The options of the cluster also serve to find the second pod, so a first pod on this node is traced here.
    let is_here =
        || JournalHandle::all(inputs).and_then(|journals| entry(&journals, &from)).ok().flatten().is_some();
    if (remote.node.is_some() || (cluster.is_given() && !is_here()))
        && let Some(done) = remote.run(cluster, Some(&from), Needs::Namespaces)
    {
        return done;
    }
    require_host("trace", "it enters network namespaces")?;
    let journals = JournalHandle::all(inputs)?;
    let entry = entry(&journals, &from)?.ok_or_else(|| sender_absent(&from, &to, arguments))?;
    let sender = local_end(&entry, &from, network);
    let receiving_entry = self::entry(&journals, &to)?;
    let receiver = match &receiving_entry {
        Some(entry) => local_end(entry, &to, network),
        None => remote_end(&to, network, read_pod(&to, cluster)),
    };
    let mut steps = Vec::new();
    let [sender, receiver] = [(&from, sender), (&to, receiver)].map(|(pod, found)| match found {
        Ok(end) => {
            steps.push(attached((pod, &end), &from, network));
            Some(end)
        }
        Err(step) => {
            steps.push(step);
            None
        }
    });
    if let (Some(from), Some(to)) = (sender, receiver) {
        let decided = policy_step::steps([(&from, Some(&entry)), (&to, receiving_entry.as_ref())], *tcp);
        let is_denied = decided.iter().any(|step| step.verdict == Verdict::Fault);
        steps.extend(decided);
        let mut path = WeftCni::find()?.trace(&TraceRequest { from, to, tcp: *tcp })?;
        for step in
            path.iter_mut().filter(|step| is_denied && step.step == "probe" && step.verdict == Verdict::Fault)
        {
            step.hint = format!("see the step `{}`", policy_step::NAME);
        }
        steps.extend(path);
    }
    print(&(&from, &to, network), &steps, *output)
}

fn entry(journals: &KnownJournals, pod: &PodName) -> Result<Option<Entry>, Failure> {
    Ok(Target::of(pod).find(journals)?.map(|(_, entry)| entry))
}

/// Returns a pod's interface on a network, by network-status.
fn interface(pod: &PodName, network: &str, status: &[status::Entry]) -> Option<(String, Vec<IpAddr>)> {
    let qualified = format!("{}/{network}", pod.namespace);
    let is_meant = |entry: &&status::Entry| entry.name == network || entry.name == qualified;
    let first = status.iter().filter(is_meant).find(|entry| IfName::new(&entry.interface).is_ok())?;
    let same = status.iter().filter(is_meant).filter(|entry| entry.interface == first.interface);
    let addresses = same.flat_map(|entry| &entry.ips).filter_map(|ip| ip.split('/').next()?.parse().ok());
    Some((first.interface.clone(), addresses.take(ADDRESSES_MAX).collect()))
}

fn not_attached(pod: &PodName, network: &str, status: &[status::Entry]) -> TraceStep {
    let names: Vec<&str> = status.iter().map(|entry| entry.name.as_str()).collect();
    let known = if names.is_empty() { "no network".to_owned() } else { names.join(", ") };
    TraceStep {
        step: "attachment".to_owned(),
        place: pod.to_string(),
        verdict: Verdict::Fault,
        found: format!("not attached to network {network}; attached to {known}"),
        hint: "select the network in the annotation k8s.v1.cni.cncf.io/networks, then recreate the pod"
            .to_owned(),
    }
}

/// Returns the end of a pod on this node.
fn local_end(entry: &Entry, pod: &PodName, network: &str) -> Found {
    let Some((interface, addresses)) = interface(pod, network, &entry.network_status) else {
        return Err(not_attached(pod, network, &entry.network_status));
    };
    let sandbox = SandboxNamespace { netns: entry.netns.clone(), namespace: entry.namespace.clone() };
    let container = entry.container_id.to_string();
    Ok(TraceEnd {
        pod: pod.to_string(),
        sandbox: Some(sandbox),
        node: String::new(),
        container,
        interface,
        addresses,
    })
}

/// Returns the error about a first pod that is not on this node, and names the node if the API server has it.
fn sender_absent(from: &PodName, to: &PodName, arguments: &Arguments) -> Failure {
    let Arguments { network, tcp, cluster, .. } = arguments;
    let why = Failure::new(format!("pod {from} is not attached on this node"));
    match read_pod(from, cluster) {
        Ok(Some(Pod { node_name, .. })) if !node_name.is_empty() => {
            let command = command((from, to), network, *tcp);
            why.next(format!("the API server has it on node {node_name}: run `{command}` there"))
        }
        Ok(None) => why.next(format!("pod {from} does not exist; correct the name or the namespace")),
        _ => why.next("run weft trace on the node of the first pod; weft list shows the pods of this node"),
    }
}

/// Returns the command that traces a path.
fn command((from, to): (&PodName, &PodName), network: &str, tcp: Option<u16>) -> String {
    let tcp = tcp.map(|port| format!(" --tcp {port}")).unwrap_or_default();
    format!("weft trace {from} {to} --network {network}{tcp}")
}

/// Returns the end for a pod on another node, from the API object.
fn remote_end(pod: &PodName, network: &str, read: Result<Option<Pod>, Failure>) -> Found {
    let fault = |found: String, hint: &str| TraceStep {
        step: "attachment".to_owned(),
        place: pod.to_string(),
        verdict: Verdict::Fault,
        found,
        hint: hint.to_owned(),
    };
    let read = read.map_err(|why| {
        let found = format!("not on this node, and its network-status cannot be read: {why}");
        fault(found, "name a kubeconfig with --kubeconfig, or run weft trace on a node that has both pods")
    })?;
    let Some(Pod { annotations, host_network, node_name: node, .. }) = read else {
        return Err(fault("the pod does not exist".to_owned(), "correct the name or the namespace"));
    };
    if node.is_empty() {
        let hint = format!("`kubectl describe pod -n {} {}` shows the reason", pod.namespace, pod.name);
        return Err(fault("the pod is not scheduled to a node".to_owned(), &hint));
    }
    if host_network {
        let found = format!("the pod uses the host network on node {node} (hostNetwork)");
        return Err(fault(found, "trace the path to a pod with its own network"));
    }
    let Some(status) = annotations.get(NETWORK_STATUS) else {
        let found = format!("the pod is on node {node} and has no network-status: it is not attached");
        return Err(fault(found, &format!("run `weft history {pod}` and `weft doctor` on node {node}")));
    };
    let Ok(status) = serde_json::from_str::<Vec<status::Entry>>(status) else {
        let found = format!("the pod is on node {node}, and its network-status is invalid JSON");
        return Err(fault(found, &format!("run `weft list` on node {node}, or recreate the pod")));
    };
    let Some((interface, addresses)) = interface(pod, network, &status) else {
        return Err(not_attached(pod, network, &status));
    };
    Ok(TraceEnd { pod: pod.to_string(), sandbox: None, node, container: String::new(), interface, addresses })
}

/// Reads a pod from the API server.
fn read_pod(pod: &PodName, cluster: &ClusterAccess) -> Result<Option<Pod>, Failure> {
    runtime()?.block_on(async {
        let client = cluster.client().await?;
        let pods: Api<PodObject> = Api::namespaced(client, &pod.namespace);
        ask(pods, &pod.name).await.map_err(|why| Failure::new(why.to_string()))
    })
}

/// Returns the step about an attached pod. For a pod on another node it has the command that examines that side.
fn attached((pod, end): (&PodName, &TraceEnd), from: &PodName, network: &str) -> TraceStep {
    let TraceEnd { sandbox, node, interface, addresses, .. } = end;
    let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    let (place, hint) = if sandbox.is_some() {
        (String::new(), String::new())
    } else {
        let place = format!(" by its network-status, on node {node}: its side is not examined");
        (place, format!("for its side, run `{}` on node {node}", command((pod, from), network, None)))
    };
    TraceStep {
        step: "attachment".to_owned(),
        place: pod.to_string(),
        verdict: Verdict::Ok,
        found: format!("{interface} on {network} with {}{place}", addresses.join(", ")),
        hint,
    }
}

fn print(path: &(&PodName, &PodName, &str), steps: &[TraceStep], output: Output) -> Result<(), Failure> {
    let (from, to, network) = path;
    let faults = steps.iter().filter(|step| step.verdict == Verdict::Fault).count();
    let verdict = if faults > 0 { Verdict::Fault } else { Verdict::Ok };
    let (from, to) = (from.to_string(), to.to_string());
    match output.format.print(&Document { from: &from, to: &to, network, verdict, steps }) {
        Some(printed) => printed?,
        None => output::print(&lay_out(steps))?,
    }
    match faults {
        0 => Ok(()),
        count => Err(Failure::quiet(format!("{count} errors"))),
    }
}

/// Returns the table of the steps, then the next step for each fault.
fn lay_out(steps: &[TraceStep]) -> String {
    let verdict = |step: &TraceStep| match step.verdict {
        Verdict::Ok => "ok",
        Verdict::Fault => "ERROR",
        Verdict::Unknown => "unknown",
    };
    let rows: Vec<Vec<String>> = steps
        .iter()
        .map(|step| vec![step.step.clone(), step.place.clone(), verdict(step).to_owned(), step.found.clone()])
        .collect();
    let mut text = table::lay_out(&["step", "at", "result", "found"], &rows, 0);
    for step in steps.iter().filter(|step| !step.hint.is_empty()) {
        text.push_str(&format!("{} of {}: {}\n", plain(&step.step), plain(&step.place), plain(&step.hint)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trace_network_is_found_by_short_and_qualified_name() {
        let pod = PodName::new("blue", "web").unwrap();
        let status: Vec<status::Entry> = serde_json::from_str(
            r#"[{"name":"home","interface":"eth0","ips":["10.1.0.2"],"default":true},
                {"name":"blue/data","interface":"net1","ips":["10.2.0.2/24"],"default":false},
                {"name":"blue/data","interface":"net1","ips":["fd00::2","x"],"default":false},
                {"name":"blue/bad","interface":"../x","default":false}]"#,
        )
        .unwrap();
        let found = |network: &str| interface(&pod, network, &status);
        let data: Vec<IpAddr> = vec!["10.2.0.2".parse().unwrap(), "fd00::2".parse().unwrap()];
        assert_eq!(found("data"), Some(("net1".to_owned(), data.clone())));
        assert_eq!(found("blue/data"), Some(("net1".to_owned(), data)));
        assert_eq!(found("home").unwrap().0, "eth0");
        assert_eq!(found("bad"), None, "not the name of an interface");
        assert_eq!(found("red/data"), None);
        let step = not_attached(&pod, "red/data", &status);
        assert!(step.found.contains("attached to home, blue/data"), "{}", step.found);
    }

    #[test]
    fn trace_table_has_no_control_characters() {
        let step = TraceStep {
            step: "route".into(),
            place: "blue/web".into(),
            verdict: Verdict::Fault,
            found: "a\u{1b}[2Jb".into(),
            hint: "recreate\u{202e} the pod".into(),
        };
        let text = lay_out(&[step]);
        assert!(!text.contains(['\u{1b}', '\u{202e}']) && text.contains("ERROR"), "{text:?}");
    }
}
