//! Lints one MultiNetworkPolicy: errors that the reader finds, and rules that mean something else than the author may
//! expect.

use super::Report;
use crate::{Located, Node, Value};
use npwg::network_policy::{NetworkPolicy, PolicyPeer, Ports};
use npwg::refusal::{Fault, KeyPath};
use npwg::rule::Rule;

pub(super) fn look(report: &mut Report<'_>, located: &Located<NetworkPolicy>) {
    for fault in &located.value.faults {
        report.add(located.node_at(&fault.path).span.start, fault.clone());
    }
    default_types(report, located);
    named_ports_of_blocks(report, located);
}

/// Reports egress rules in which a named port meets an address block: only pod containers have named ports.
fn named_ports_of_blocks(report: &mut Report<'_>, located: &Located<NetworkPolicy>) {
    let egress = KeyPath::root().key("spec").key("egress");
    for (index, rule) in located.value.egress.rules.iter().enumerate() {
        let port = rule.ports.iter().position(|port| matches!(port.ports, Ports::Named(_)));
        let has_block = rule.peers.iter().any(|peer| matches!(peer, PolicyPeer::Block(_)));
        let Some(port) = port.filter(|_| has_block) else { continue };
        let path = egress.index(index).key("ports").index(port);
        let reason =
            "an address block has no named ports: at this port the rule allows no address of its blocks";
        let fault = Fault::new(Rule::NetworkPolicyNamedPortOfBlock, located.value.subject(), reason);
        let hint = "write the number of the port, or select the pods instead of the block";
        report.add(located.node_at(&path).span.start, fault.at(path).hint(hint));
    }
}

/// Reports a policy with egress rules alone that does not say which directions it isolates.
fn default_types(report: &mut Report<'_>, located: &Located<NetworkPolicy>) {
    let Some(spec) = located.node.get("spec") else { return };
    let is_set = |key: &str| match spec.get(key).map(|node| &node.value) {
        None | Some(Value::Null) => false,
        Some(Value::List(items)) => !items.is_empty(),
        Some(_) => true,
    };
    let Some(Node { span, .. }) = spec.get("egress").filter(|_| is_set("egress")) else { return };
    if is_set("policyTypes") || spec.get("ingress").is_some() {
        return;
    }
    let reason = "without policyTypes the policy also isolates ingress, and denies all of it";
    let fault = Fault::new(Rule::NetworkPolicyDefaultTypes, located.value.subject(), reason);
    let hint = "write policyTypes: [Egress], or [Ingress, Egress] if that is intended";
    report.add(span.start, fault.at(KeyPath::root().key("spec").key("egress")).hint(hint));
}
