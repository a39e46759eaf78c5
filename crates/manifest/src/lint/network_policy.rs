//! Linter for one MultiNetworkPolicy: faults that the reader finds, and directions that its author may not
//! expect.

use super::Report;
use crate::{Located, Node, Value};
use npwg::network_policy::NetworkPolicy;
use npwg::refusal::{Fault, KeyPath};
use npwg::rule::Rule;

pub(super) fn look(report: &mut Report<'_>, located: &Located<NetworkPolicy>) {
    for fault in &located.value.faults {
        report.add(located.node_at(&fault.path).span.start, fault.clone());
    }
    default_types(report, located);
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
    let cure = "write policyTypes: [Egress], or [Ingress, Egress] if that is intended";
    report.add(span.start, fault.at(KeyPath::root().key("spec").key("egress")).cure(cure));
}
