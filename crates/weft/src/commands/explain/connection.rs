//! `weft explain --from … --to …`: the MultiNetworkPolicies' verdict on one connection. They come from
//! manifests, or without any from a cluster.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::IpAddr;

use cli_support::failure::{Exit, Failure};
use cli_support::output;
use cli_support::output::{Format, Progress};
use cli_support::terminal::plain;
use manifest::{Collection, DEFAULT_NAMESPACE};
use npwg::metadata::NetworkReference;
use npwg::network_policy::{
    ConnectionVerdict, Decision, NetworkPolicy, Party, PodAttachment, PolicyAddresses, Protocol, Verdict,
    resolve_all, verdict,
};
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
    /// Policies at either end for which the cluster's controller has not written the other end's addresses.
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

/// Objects that decide about a connection.
struct Objects {
    all: Collection,
    /// Peer addresses for each policy: in a cluster, the ones that the policy controller wrote.
    addresses: BTreeMap<String, PolicyAddresses>,
    /// Source of the objects, for messages: `cluster` or `manifests`.
    source: &'static str,
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
    let wanted: Vec<IpAddr> = named.iter().filter_map(EndName::address).collect();
    let Objects { all, addresses, source: source_of_objects } = objects(inputs, access, &pods, &wanted)?;
    let find = |name: &EndName| End::find(&all, name, network, source_of_objects);
    let ends = [find(&named[0])?, find(&named[1])?];
    let policies: Vec<NetworkPolicy> = all.policies.values().cloned().collect();
    let [source, destination] = [ends[0].party(&all)?, ends[1].party(&all)?];
    let verdict = verdict(&policies, &addresses, &source, &destination, protocol, port)
        .map_err(|error| Failure::new(format!("{} to {}: {error}", name(&source), name(&destination))))?;
    let invalid = policies.iter().filter(|policy| !policy.faults.is_empty()).map(|policy| Invalid {
        policy: policy.to_string(),
        faults: policy.faults.iter().map(ToString::to_string).collect(),
    });
    let is_waiting = |policy: &&NetworkPolicy| {
        let of = |own, peer| lacks_peer(policy, &addresses, own, peer);
        of(&source, &destination) || of(&destination, &source)
    };
    let waiting = policies.iter().filter(is_waiting).map(ToString::to_string).collect();
    let invalid = invalid.collect();
    let document = Document { from, to, protocol, port, verdict: &verdict, invalid, waiting };
    match format.print(&document) {
        Some(printed) => printed,
        None => output::print(&describe(&document, [&source, &destination])),
    }
}

/// Whether a policy selects the end `own`, and the sets lack addresses of a pod that is a peer by label.
fn lacks_peer(
    policy: &NetworkPolicy,
    addresses: &BTreeMap<String, PolicyAddresses>,
    own: &Party<'_>,
    peer: &Party<'_>,
) -> bool {
    let (Party::Pod(own), Party::Pod(peer)) = (own, peer) else { return false };
    let written = addresses.get(&policy.to_string());
    let has_all = |set| {
        let found = written.and_then(|written| written.find(set));
        peer.addresses.iter().all(|address| found.is_some_and(|all| all.contains(address)))
    };
    policy.selects(own) && !policy.peer_sets(peer).iter().all(has_all)
}

fn describe(document: &Document<'_>, [source, destination]: [&Party<'_>; 2]) -> String {
    let Document { from: _, to: _, protocol, port, verdict, invalid, waiting } = document;
    let what = format!("{protocol} {port} from {} to {}", name(source), name(destination));
    let mut text = plain(&what);
    let connections = &verdict.connections;
    match connections.as_slice() {
        several @ [first, ..] if several.iter().any(|one| !has_decisions_of(one, first)) => {
            text.push_str(if verdict.allowed { ": allowed\n" } else { ": not allowed for all addresses\n" });
            for one in several {
                let _ = writeln!(text, "  {}: {}", addresses_of(one), word(one.allowed));
                decisions(&mut text, "    ", [(source, &one.egress), (destination, &one.ingress)]);
            }
        }
        _ => {
            let _ = writeln!(text, ": {}", word(verdict.allowed));
            decisions(&mut text, "  ", [(source, &verdict.egress), (destination, &verdict.ingress)]);
        }
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
        let note = "the controller has not written the addresses of the peer; until then its selectors do not allow it";
        let _ = writeln!(text, "  waiting  {}: {note}", plain(policy));
    }
    text
}

fn word(is_allowed: bool) -> &'static str {
    if is_allowed { "allowed" } else { "denied" }
}

fn has_decisions_of(one: &ConnectionVerdict, other: &ConnectionVerdict) -> bool {
    (&one.egress, &one.ingress) == (&other.egress, &other.ingress)
}

/// Returns family and addresses of a connection, such as `IPv4 10.0.0.1 to 10.0.0.2`.
fn addresses_of(connection: &ConnectionVerdict) -> String {
    let ConnectionVerdict { family, from, to, .. } = connection;
    let address = |end: &Option<IpAddr>| end.map_or("an unknown address".to_owned(), |end| end.to_string());
    let family = family.map(|family| format!("{family} ")).unwrap_or_default();
    format!("{family}{} to {}", address(from), address(to))
}

/// Adds one line for the decision of each end.
fn decisions(text: &mut String, indent: &str, [source, destination]: [(&Party<'_>, &Decision); 2]) {
    for (direction, (party, decision)) in [("egress", source), ("ingress", destination)] {
        let _ = writeln!(text, "{indent}{direction:<9}{}", plain(&reason(party, decision)));
    }
}

/// Returns the objects in the manifests, or without files those in a cluster. `wanted` are the ends given as addresses,
/// which pods may have.
fn objects(
    inputs: &Inputs,
    access: &ClusterAccess,
    pods: &[PodName],
    wanted: &[IpAddr],
) -> Result<Objects, Failure> {
    if inputs.files.is_empty() {
        let ClusterObjects { collection, addresses } = cluster_policies::read(access, pods, wanted)?;
        return Ok(Objects { all: collection, addresses, source: "cluster" });
    }
    let files = input_files::read(&inputs.files)?;
    let all = manifest_plan::collect(files.iter().filter(|file| file.kind == Kind::Manifest));
    for problem in &all.problems {
        Progress::beside(Format::Json).line(format!("weft: skipped: {}", plain(problem)));
    }
    let networks: Vec<PodNetworks> = all.pods.iter().map(PodNetworks::of).collect();
    let attachments: Vec<PodAttachment<'_>> =
        networks.iter().flat_map(|pod| pod.attachments(all.namespaces.get(&pod.namespace))).collect();
    let addresses = resolve_all(all.policies.values(), &attachments);
    Ok(Objects { all, addresses, source: "manifests" })
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

    fn address(&self) -> Option<IpAddr> {
        match self {
            EndName::Address(address) => Some(*address),
            EndName::Pod(_) => None,
        }
    }
}

// === impl End ===

impl End {
    /// Finds the pod and the attachment to the network. `source` is the place where the pod should be. An address that
    /// a pod has on the network stands for that pod, whose policies apply.
    fn find(all: &Collection, name: &EndName, network: &str, source: &str) -> Result<End, Failure> {
        let pod = match name {
            EndName::Address(address) => return Ok(End::with_address(all, *address, network)),
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

    /// Returns the attachment to the network with this address; the address itself if no pod has it there.
    fn with_address(all: &Collection, address: IpAddr, network: &str) -> End {
        for pod in all.pods.iter().map(PodNetworks::of) {
            let (namespace, name) = network.split_once('/').unwrap_or((&pod.namespace, network));
            let wanted = NetworkReference::new(namespace, name);
            let own = pod.networks.iter().find(|(network, own)| *network == wanted && own.contains(&address));
            if let Some((network, _)) = own.cloned() {
                return End::Pod { pod: pod.with_networks(vec![(network, vec![address])]), network: 0 };
            }
        }
        End::Address(address)
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
