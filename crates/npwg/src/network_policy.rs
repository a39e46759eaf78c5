//! MultiNetworkPolicy (`k8s.cni.cncf.io/v1beta1`, `v1beta2`): which traffic may reach or leave an attachment.
//!
//! ```text
//!  object ─► read ─► NetworkPolicy ──┬─► resolve ─► PolicyAddresses
//!                                    └─► compile ◄────────┘ ─► AttachmentPolicy ─┬─► plan ─► rules in the kernel
//!                                                                                └─► verdict on one connection
//! ```
//!
//! The semantics are those of Kubernetes' NetworkPolicy, for the networks that the annotation [`POLICY_FOR`] names:
//! - An attachment that no policy selects has no restriction. One that a policy selects is *isolated* in the policy's
//!   directions: traffic passes only if a rule in any selecting policy allows it.
//! - A connection must be allowed on both sides: by the source's egress and by the destination's ingress.
//! - Replies to an allowed connection pass.
//!
//! An invalid policy denies everything for the attachments that it selects, in both directions: it must never allow
//! more than the author wrote. [`read()`] returns the errors beside it.
//!
//! Source: `networking.k8s.io/v1` NetworkPolicy; multi-networkpolicy API of the Network Plumbing Working Group.

mod address_list;
mod address_range;
mod attachment_policy;
mod compile;
mod label_selector;
mod peer_selection;
mod policy_addresses;
mod read;

mod value_reader;
mod verdict;

pub use address_list::{AddressList, ListError};
pub use address_range::{AddressRange, subtract};
pub use attachment_policy::{
    ADDRESSES_MAX, AttachmentPolicy, COMPILED_RULES_MAX, CompiledPeers, CompiledRule, IsolatedDirection,
    PortRange,
};
pub use compile::{CompileError, compile};
pub use label_selector::LabelSelector;
pub use peer_selection::PeerSelection;
pub use policy_addresses::{PeerSet, PolicyAddresses, resolve, resolve_all};
pub use read::read;
pub use verdict::{
    ConnectionVerdict, Decision, IpFamily, Party, PolicyRuleReference, Verdict, VerdictError, verdict,
};

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::metadata::Labels;
use crate::metadata::NetworkReference;
pub use crate::protocol::Protocol;
use crate::refusal::Fault;

/// Annotation of a policy with the networks that it applies to: `NETWORK` or `NAMESPACE/NETWORK`, separated by commas.
pub const POLICY_FOR: &str = "k8s.v1.cni.cncf.io/policy-for";
/// Kind of the object.
pub const KIND: &str = "MultiNetworkPolicy";
/// Versions of the object. Both have the same fields, as in multi-networkpolicy's definition.
pub const VERSIONS: [&str; 2] = ["k8s.cni.cncf.io/v1beta1", "k8s.cni.cncf.io/v1beta2"];
/// Label with the namespace's name, which the API server sets on each namespace.
pub const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";

/// Largest number of networks in [`POLICY_FOR`].
pub const NETWORKS_MAX: usize = 128;
/// Maximum number of rules in one direction.
pub const RULES_MAX: usize = 256;
/// Maximum number of peers in a rule.
pub const PEERS_MAX: usize = 256;
/// Maximum number of peers in a policy.
pub const POLICY_PEERS_MAX: usize = 4096;
/// Maximum number of address ranges in a policy: blocks minus exceptions.
pub const POLICY_RANGES_MAX: usize = 4096;
/// Maximum number of ports in a rule.
pub const PORTS_MAX: usize = 256;
/// Maximum number of requirements in a label selector, and of values in a requirement.
pub const REQUIREMENTS_MAX: usize = 256;
/// Largest number of exceptions in an address block.
pub const EXCEPTIONS_MAX: usize = 256;

/// A MultiNetworkPolicy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkPolicy {
    /// Namespace; the policy selects pods of this namespace only.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Networks that the policy applies to.
    pub networks: BTreeSet<NetworkReference>,
    /// Selected pods.
    pub pods: LabelSelector,
    /// Traffic that reaches the selected pods.
    pub ingress: RuleList,
    /// Traffic that the selected pods send.
    pub egress: RuleList,
    /// Faults. With a fault the policy has no rules and isolates both directions.
    pub faults: Vec<Fault>,
}

/// Direction of traffic, as seen by the selected pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// To the pod.
    Ingress,
    /// From the pod.
    Egress,
}

/// Policy rules for one direction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleList {
    /// Whether the policy isolates the selected pods in this direction.
    pub isolates: bool,
    /// Rules, each of which allows traffic.
    pub rules: Vec<PolicyRule>,
}

/// Policy rule: allows traffic with these peers at these ports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyRule {
    /// Peers; none written means any.
    pub peers: Vec<PolicyPeer>,
    /// Ports; none written means all traffic, also of protocols without ports.
    pub ports: Vec<PolicyPort>,
}

/// Peers of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PolicyPeer {
    /// Pods that are attached to a network of the policy.
    Pods {
        /// Namespaces of the pods; absent for the policy's own.
        namespaces: Option<LabelSelector>,
        /// Labels of the pods; absent for all.
        pods: Option<LabelSelector>,
    },
    /// Addresses.
    Block(Vec<AddressRange>),
}

/// Port of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyPort {
    /// Protocol.
    pub protocol: Protocol,
    /// Ports of the destination.
    pub ports: Ports,
}

/// Ports of one protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ports {
    /// Every port.
    All,
    /// From the first to the last one.
    Range(u16, u16),
    /// Named port of a destination container.
    Named(String),
}

/// Pod and one of the pod's attachments.
#[derive(Clone, Copy, Debug)]
pub struct PodAttachment<'a> {
    /// Namespace of the pod.
    pub namespace: &'a str,
    /// Name of the pod.
    pub name: &'a str,
    /// Labels of the pod.
    pub labels: &'a Labels,
    /// Namespace labels, if they are known. The label [`NAMESPACE_NAME`] is known without them.
    pub namespace_labels: Option<&'a Labels>,
    /// Named container ports.
    pub ports: &'a BTreeMap<String, (Protocol, u16)>,
    /// Network of the attachment.
    pub network: &'a NetworkReference,
    /// Addresses of the attachment; empty if they are unknown.
    pub addresses: &'a [IpAddr],
}

// === impl NetworkPolicy ===

impl NetworkPolicy {
    /// Returns the rules of a direction.
    pub fn rules(&self, direction: Direction) -> &RuleList {
        match direction {
            Direction::Ingress => &self.ingress,
            Direction::Egress => &self.egress,
        }
    }

    /// Whether the policy applies to this attachment.
    pub fn selects(&self, pod: &PodAttachment<'_>) -> bool {
        self.namespace == pod.namespace && self.networks.contains(pod.network) && self.pods.fits(pod.labels)
    }

    /// Whether a peer's selectors fit an attachment. Attachments to networks that the policy does not name fit none.
    pub fn peer_selects(&self, peer: &PolicyPeer, pod: &PodAttachment<'_>) -> bool {
        let PolicyPeer::Pods { namespaces, pods } = peer else { return false };
        let is_in_namespace = match namespaces {
            None => pod.namespace == self.namespace,
            Some(selector) => selector.fits_namespace(pod.namespace, pod.namespace_labels),
        };
        self.networks.contains(pod.network)
            && is_in_namespace
            && pods.as_ref().is_none_or(|selector| selector.fits(pod.labels))
    }

    /// Returns the name of the policy in messages.
    pub fn subject(&self) -> String {
        subject(&self.namespace, &self.name)
    }
}

impl fmt::Display for NetworkPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Returns the name of a policy in messages.
fn subject(namespace: &str, name: &str) -> String {
    format!("multi-network-policy {namespace}/{name}")
}

// === impl Direction ===

impl Direction {
    /// Both directions.
    pub const ALL: [Direction; 2] = [Direction::Ingress, Direction::Egress];

    /// Returns the policy field's name.
    pub fn word(self) -> &'static str {
        match self {
            Direction::Ingress => "ingress",
            Direction::Egress => "egress",
        }
    }

    /// Returns the name of the field with a rule's peers.
    pub fn peers_word(self) -> &'static str {
        match self {
            Direction::Ingress => "from",
            Direction::Egress => "to",
        }
    }
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

#[cfg(test)]
mod tests;
