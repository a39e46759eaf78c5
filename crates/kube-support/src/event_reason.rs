//! Reasons of Events.
//!
//! Source: Events v1; reasons `AddedInterface` and `NoNetworkFound` as in Multus.

use npwg::refusal::Reason;
use npwg::rule::Rule;

/// Reason of an Event, as the API shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventReason {
    /// An interface was attached.
    AddedInterface,
    /// A pod could not be attached.
    AttachFailed,
    /// A pod could not be detached.
    DetachFailed,
    /// A pod's network annotation was invalid and was ignored.
    AnnotationIgnored,
    /// No plugin declares the capability that a request needs.
    CapabilityMissing,
    /// An attachment no longer matches the configuration.
    InterfaceDrifted,
    /// A drifted attachment matches the configuration again.
    InterfaceRestored,
    /// The networks of a Service were refused.
    NetworkAddressesRefused,
    /// The networks of a running pod could not be changed.
    NetworkChangeFailed,
    /// A network policy is invalid, or has too many peers.
    NetworkPolicyRefused,
    /// A network cannot be attached as requested.
    NetworkRefused,
    /// A pod runs without the networks it selects.
    NetworksMissing,
    /// A quota of Neutron is exhausted.
    NeutronQuota,
    /// Neutron rejects a request.
    NeutronRefused,
    /// Neutron does not answer.
    NeutronUnreachable,
    /// A pod selects a network that does not exist.
    NoNetworkFound,
    /// The port of the node is not a trunk.
    NodeNotTrunk,
    /// Neutron has no port of the node.
    NodeUnknown,
    /// Another program changed the rules of network policies; they were restored.
    PolicyDrift,
    /// The network policies of a running pod could not be updated.
    PolicyUpdateFailed,
    /// Neutron did not bind a port.
    PortNotBound,
    /// A legal request is probably not the intended one.
    Questionable,
    /// An interface was detached.
    RemovedInterface,
    /// No component reads a key.
    UnknownKey,
    /// The ports of a pod could not be written.
    VifNotWritten,
    /// The ports written for a pod cannot be read.
    VifUnreadable,
}

impl EventReason {
    /// Returns the reason of a refused plan.
    pub(crate) fn of_refusal(rule: Rule) -> EventReason {
        match rule {
            Rule::UnknownNetwork | Rule::ConfigNotFound => EventReason::NoNetworkFound,
            _ => EventReason::NetworkRefused,
        }
    }

    /// Returns the reason of a warning in a plan.
    pub(crate) fn of_warning(kind: Reason) -> EventReason {
        match kind {
            Reason::AnnotationIgnored => EventReason::AnnotationIgnored,
            Reason::UnknownKey => EventReason::UnknownKey,
            Reason::CapabilityMissing => EventReason::CapabilityMissing,
            Reason::Questionable => EventReason::Questionable,
        }
    }

    /// Returns the reason as the API shows it.
    pub fn as_str(self) -> &'static str {
        match self {
            EventReason::AddedInterface => "AddedInterface",
            EventReason::AttachFailed => "AttachFailed",
            EventReason::DetachFailed => "DetachFailed",
            EventReason::AnnotationIgnored => "AnnotationIgnored",
            EventReason::CapabilityMissing => "CapabilityMissing",
            EventReason::InterfaceDrifted => "InterfaceDrifted",
            EventReason::InterfaceRestored => "InterfaceRestored",
            EventReason::NetworkAddressesRefused => "NetworkAddressesRefused",
            EventReason::NetworkChangeFailed => "NetworkChangeFailed",
            EventReason::NetworkPolicyRefused => "NetworkPolicyRefused",
            EventReason::NetworkRefused => "NetworkRefused",
            EventReason::NetworksMissing => "NetworksMissing",
            EventReason::NeutronQuota => "NeutronQuota",
            EventReason::NeutronRefused => "NeutronRefused",
            EventReason::NeutronUnreachable => "NeutronUnreachable",
            EventReason::NoNetworkFound => "NoNetworkFound",
            EventReason::NodeNotTrunk => "NodeNotTrunk",
            EventReason::NodeUnknown => "NodeUnknown",
            EventReason::PolicyDrift => "PolicyDrift",
            EventReason::PolicyUpdateFailed => "PolicyUpdateFailed",
            EventReason::PortNotBound => "PortNotBound",
            EventReason::Questionable => "Questionable",
            EventReason::RemovedInterface => "RemovedInterface",
            EventReason::UnknownKey => "UnknownKey",
            EventReason::VifNotWritten => "VifNotWritten",
            EventReason::VifUnreadable => "VifUnreadable",
        }
    }
}
