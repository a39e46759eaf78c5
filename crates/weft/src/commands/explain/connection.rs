//! `weft explain --from … --to …`: the MultiNetworkPolicies' verdict on one connection. They come from
//! manifests, or without any from a cluster.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::net::IpAddr;

use cli_support::failure::{Exit, Failure};
use cli_support::output;
use cli_support::output::{Format, Progress};
use cli_support::terminal::plain;
use manifest::{Collection, DEFAULT_NAMESPACE};
use npwg::metadata::NetworkReference;
use npwg::network_policy::{Decision, NetworkPolicy, Party, PodAttachment, Protocol, Verdict, verdict};
use npwg::pod_policies::PodNetworks;
use serde::Serialize;

use super::cluster_pod::CURE;
use super::cluster_policies::{self, ClusterObjects};
use crate::cluster_access::ClusterAccess;
use crate::input_files::{self, Kind};
use crate::manifest_plan::{self, Inputs};
use crate::pod_name::PodName;

/// Options that describe a connection.
#[derive(Debug, clap::Args)]
pub(super) struct Options {
    /// Source of a connection: a pod, or an address; the network policies of the manifests decide about it, without -f those
    /// of the cluster
    #[arg(long, value_name = "[NAMESPACE/]POD|ADDRESS", requires_all = ["to", "network"])]
    from: Option<String>,
    /// Destination of the connection
    #[arg(long, value_name = "[NAMESPACE/]POD|ADDRESS", requires = "from")]
    to: Option<String>,
    /// Network of the connection (default namespace: that of each pod)
    #[arg(long, value_name = "[NAMESPACE/]NAME", requires = "from")]
    network: Option<String>,
    #[command(flatten)]
    port: Port,
}

/// Destination port of the connection.
#[derive(Debug, clap::Args)]
#[group(multiple = false, requires = "from")]
struct Port {
    /// TCP port of the destination
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    tcp: Option<u16>,
    /// UDP port of the destination
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    udp: Option<u16>,
    /// SCTP port of the destination
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    sctp: Option<u16>,
}

/// Document for `-o json`.
#[derive(Serialize)]
struct Document<'a> {
    from: &'a str,
    to: &'a str,
    protocol: Protocol,
    port: u16,
    #[serde(flatten)]
    verdict: &'a Verdict,
    /// Policies that cannot be read; each denies what it selects.
    invalid: Vec<Invalid>,
    /// Policies at the ends for which the cluster's controller has not written the peer addresses.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    waiting: Vec<String>,
}

/// Policy that cannot be read.
#[derive(Serialize)]
struct Invalid {
    policy: String,
    faults: Vec<String>,
}

/// Name of one end.
enum EndName {
    Address(IpAddr),
    Pod(PodName),
}

/// One end.
enum End {
    Address(IpAddr),
    Pod { pod: PodNetworks, network: usize },
}

/// Runs `weft explain` for a connection.
pub(super) fn run(
    options: &Options,
    namespace: Option<&str>,
    (inputs, access): (&Inputs, &ClusterAccess),
    format: Format,
) -> Result<(), Failure> {
    let usage = |why: &str| Failure::new(why.to_owned()).exit(Exit::Usage);
    let Options { from: Some(from), to: Some(to), network: Some(network), port } = options else {
        return Err(usage("explain a connection: --from, --to and --network are required"));
    };
    let (protocol, port) = match port {
        Port { tcp: Some(port), .. } => (Protocol::Tcp, *port),
        Port { udp: Some(port), .. } => (Protocol::Udp, *port),
        Port { sctp: Some(port), .. } => (Protocol::Sctp, *port),
        _ => return Err(usage("explain a connection: one of --tcp, --udp and --sctp is required")),
    };
    let namespace = match namespace {
        None if inputs.files.is_empty() => access.namespace(None).map_err(|failure| failure.next(CURE))?,
        given => given.unwrap_or(DEFAULT_NAMESPACE).to_owned(),
    };
    let named = [EndName::read(from, &namespace)?, EndName::read(to, &namespace)?];
    let pods: Vec<PodName> = named.iter().filter_map(EndName::pod).cloned().collect();
    if pods.is_empty() {
        return Err(usage("explain a connection: --from or --to must be a pod"));
    }
    let (all, without_set) = objects(inputs, access, &pods)?;
    let source_of_objects = if inputs.files.is_empty() { "cluster" } else { "manifests" };
    let find = |name: &EndName| End::find(&all, name, network, source_of_objects);
    let ends = [find(&named[0])?, find(&named[1])?];
    let policies: Vec<NetworkPolicy> = all.policies.values().cloned().collect();
    let [source, destination] = [ends[0].party(&all)?, ends[1].party(&all)?];
    let verdict = verdict(&policies, &source, &destination, protocol, port);
    let invalid = policies.iter().filter(|policy| !policy.faults.is_empty()).map(|policy| Invalid {
        policy: policy.to_string(),
        faults: policy.faults.iter().map(ToString::to_string).collect(),
    });
    let selects = |policy: &NetworkPolicy| {
        [&source, &destination]
            .into_iter()
            .any(|party| matches!(party, Party::Pod(attachment) if policy.selects(attachment)))
    };
    let waiting = policies.iter().filter(|policy| selects(policy)).map(ToString::to_string);
    let waiting = waiting.filter(|policy| without_set.contains(policy)).collect();
    let invalid = invalid.collect();
    let document = Document { from, to, protocol, port, verdict: &verdict, invalid, waiting };
    match format.print(&document) {
        Some(printed) => printed,
        None => output::print(&describe(&document, [&source, &destination])),
    }
}

fn describe(document: &Document<'_>, [source, destination]: [&Party<'_>; 2]) -> String {
    let Document { from: _, to: _, protocol, port, verdict, invalid, waiting } = document;
    let word = if verdict.allowed { "allowed" } else { "denied" };
    let mut text =
        plain(&format!("{protocol} {port} from {} to {}: {word}", name(source), name(destination)));
    text.push('\n');
    for (direction, party, decision) in
        [("egress", source, &verdict.egress), ("ingress", destination, &verdict.ingress)]
    {
        let _ = writeln!(text, "  {:<9}{}", direction, plain(&reason(party, decision)));
    }
    for rule in &verdict.undecided {
        let note = "has an address block; the addresses of the pod are not known";
        let _ = writeln!(text, "  note     {}: {note}", plain(&rule.to_string()));
    }
    for Invalid { policy, faults } in invalid {
        for fault in faults {
            let _ = writeln!(text, "  invalid  {} denies all it selects: {}", plain(policy), plain(fault));
        }
    }
    for policy in waiting {
        let note = "the controller has not written the addresses of its peers; until then no pod is a peer";
        let _ = writeln!(text, "  waiting  {}: {note}", plain(policy));
    }
    text
}

/// Returns the objects in the manifests, or without files those in a cluster, and the policies without a
/// current address set.
fn objects(
    inputs: &Inputs,
    access: &ClusterAccess,
    pods: &[PodName],
) -> Result<(Collection, BTreeSet<String>), Failure> {
    if inputs.files.is_empty() {
        let ClusterObjects { collection, without_set } = cluster_policies::read(access, pods)?;
        return Ok((collection, without_set));
    }
    let files = input_files::read(&inputs.files)?;
    let all = manifest_plan::collect(files.iter().filter(|file| file.kind == Kind::Manifest));
    for problem in &all.problems {
        Progress::beside(Format::Json).line(format!("weft: skipped: {}", plain(problem)));
    }
    Ok((all, BTreeSet::new()))
}

/// Returns a party's pod, network and addresses.
fn name(party: &Party<'_>) -> String {
    match party {
        Party::Address(address) => address.to_string(),
        Party::Pod(PodAttachment { namespace, name, network, addresses, .. }) => {
            let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
            let addresses =
                if addresses.is_empty() { String::new() } else { format!(" {}", addresses.join(" ")) };
            format!("{namespace}/{name} ({network}{addresses})")
        }
    }
}

fn reason(party: &Party<'_>, decision: &Decision) -> String {
    match (party, decision) {
        (Party::Address(_), _) => "allowed: policies select pods only".to_owned(),
        (_, Decision::SamePod) => "allowed: policies do not restrict a pod's traffic to itself".to_owned(),
        (_, Decision::NotIsolated) => "allowed: no policy selects the pod".to_owned(),
        (_, Decision::Allowed(rule)) => format!("allowed by {rule}"),
        (_, Decision::Denied(policies)) => format!("denied: no rule of {} allows it", policies.join(", ")),
    }
}

// === impl EndName ===

impl EndName {
    fn read(text: &str, namespace: &str) -> Result<EndName, Failure> {
        if let Ok(address) = text.parse() {
            return Ok(EndName::Address(address));
        }
        let (namespace, name) = text.split_once('/').unwrap_or((namespace, text));
        let pod = PodName::new(namespace, name);
        pod.map(EndName::Pod).map_err(|error| Failure::new(format!("{text}: {error}")).exit(Exit::Usage))
    }

    fn pod(&self) -> Option<&PodName> {
        match self {
            EndName::Address(_) => None,
            EndName::Pod(pod) => Some(pod),
        }
    }
}

// === impl End ===

impl End {
    /// Finds the pod and its attachment to the network. `source` is where the pod should be.
    fn find(all: &Collection, name: &EndName, network: &str, source: &str) -> Result<End, Failure> {
        let pod = match name {
            EndName::Address(address) => return Ok(End::Address(*address)),
            EndName::Pod(pod) => pod,
        };
        let found = all.pods.iter().find(|one| one.namespace == pod.namespace && one.name == pod.name);
        let found = found.ok_or_else(|| Failure::new(format!("pod {pod} is not in the {source}")))?;
        let (namespace, name) = network.split_once('/').unwrap_or((&pod.namespace, network));
        let wanted = NetworkReference::new(namespace, name);
        let networks = PodNetworks::of(found);
        match networks.networks.iter().position(|(network, _)| *network == wanted) {
            Some(network) => Ok(End::Pod { pod: networks, network }),
            None => {
                let names: Vec<String> =
                    networks.networks.iter().map(|(network, _)| network.to_string()).collect();
                let next = match names.as_slice() {
                    [] => "it selects no network".to_owned(),
                    _ => format!("it selects {}", names.join(", ")),
                };
                Err(Failure::new(format!("pod {pod} does not select network {wanted}")).next(next))
            }
        }
    }

    fn party<'a>(&'a self, all: &'a Collection) -> Result<Party<'a>, Failure> {
        match self {
            End::Address(address) => Ok(Party::Address(*address)),
            End::Pod { pod, network } => {
                let labels = all.namespaces.get(&pod.namespace);
                let attachment = pod.attachments(labels).nth(*network).map(Party::Pod);
                attachment.ok_or_else(|| Failure::new(format!("pod {} has no such network", pod.name)))
            }
        }
    }
}
