//! Step `network policy` of a trace: what the rules of weft decide about the connection, with policy and rule.
//!
//! The rules are those of the journal, which the plugins have put into the kernel. An end without policies has no step.

use std::net::IpAddr;

use npwg::network_policy::{AttachmentPolicy, CompiledRule, Direction, Protocol};
use rpc::diagnosis::{TraceEnd, TraceStep, Verdict};
use rpc::journal::Entry;

/// Name of the step.
pub(super) const NAME: &str = "network policy";
/// Maximum number of rules that a finding names.
const RULES_MAX: usize = 8;

/// Returns the steps for both ends: egress at the first one, ingress at the second one.
pub(super) fn steps(ends: [(&TraceEnd, Option<&Entry>); 2], tcp: Option<u16>) -> Vec<TraceStep> {
    let [(from, sending), (to, receiving)] = ends;
    let sides = [(from, sending, to, Direction::Egress), (to, receiving, from, Direction::Ingress)];
    let steps = sides.into_iter().filter_map(|(end, entry, peer, direction)| {
        let policy = policy_of(entry?, &end.interface)?;
        // The probe uses an address of a family that both ends have.
        let is_common =
            |address: &&IpAddr| end.addresses.iter().any(|own| own.is_ipv4() == address.is_ipv4());
        let address = *peer.addresses.iter().find(is_common)?;
        step((end, peer), policy, direction, (address, tcp))
    });
    steps.collect()
}

/// Returns the policy of an attachment.
fn policy_of<'a>(entry: &'a Entry, interface: &str) -> Option<&'a AttachmentPolicy> {
    let mut delegates = entry.plan.delegates.iter();
    delegates.find(|delegate| delegate.ifname.as_str() == interface)?.policy.as_ref()
}

/// Returns the step of one direction; `None` if no policy isolates it.
fn step(
    (end, peer): (&TraceEnd, &TraceEnd),
    policy: &AttachmentPolicy,
    direction: Direction,
    (address, tcp): (IpAddr, Option<u16>),
) -> Option<TraceStep> {
    let isolated = policy.isolated(direction)?;
    let to = tcp.map(|port| (Protocol::Tcp, port));
    let what = tcp.map_or_else(|| "a ping".to_owned(), |port| format!("TCP port {port}"));
    let word = if direction == Direction::Egress { "to" } else { "from" };
    let subject = format!("{direction} of {}: {what} {word} {address} ({})", end.interface, peer.pod);
    let name = |rule: &CompiledRule| format!("{}[{}]", rule.policy, rule.rule);
    let (verdict, found, hint) = match policy.decide(direction, address, to) {
        Some(rule) => (Verdict::Ok, format!("{subject} is allowed by {}", name(rule)), String::new()),
        None => {
            let mut names: Vec<String> = isolated.rules.iter().map(name).collect();
            names.dedup();
            let rest = names.len().saturating_sub(RULES_MAX);
            names.truncate(RULES_MAX);
            let more = if rest > 0 { format!(" and {rest} more") } else { String::new() };
            let why = match names.is_empty() {
                true => format!("the policies that select the pod have no {direction} rule"),
                false => format!("none of its rules allows it: {}{more}", names.join(", ")),
            };
            (Verdict::Fault, format!("{subject} is denied: {why}"), hint((end, peer), direction, tcp))
        }
    };
    Some(TraceStep { step: NAME.to_owned(), place: end.pod.clone(), verdict, found, hint })
}

/// Returns the command that names the policies which decide.
fn hint((end, peer): (&TraceEnd, &TraceEnd), direction: Direction, tcp: Option<u16>) -> String {
    let namespace = end.pod.split('/').next().unwrap_or_default();
    match tcp {
        None => format!("allow it in a policy: kubectl get multi-networkpolicies -n {namespace}"),
        Some(port) => {
            let (from, to) = if direction == Direction::Egress { (end, peer) } else { (peer, end) };
            format!(
                "allow it in a policy: `weft explain --from {} --to {} --network NETWORK --tcp {port}` names those that decide",
                from.pod, to.pod
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn end(pod: &str, address: &str) -> TraceEnd {
        TraceEnd {
            pod: pod.to_owned(),
            sandbox: None,
            node: String::new(),
            container: String::new(),
            interface: "net1".to_owned(),
            addresses: vec![address.parse().unwrap()],
        }
    }

    #[test]
    fn trace_names_the_policy_and_rule_that_decide() {
        let rule = |number: u16, address: &str| {
            json!({ "policy": "blue/allow-web", "rule": number, "peers": { "only": { "set": address } },
                "ports": [{ "protocol": "TCP", "first": 5432, "last": 5432 }] })
        };
        let policy: AttachmentPolicy = serde_json::from_value(json!({
            "ingress": { "rules": [rule(0, "a"), rule(2, "b")] }, "egress": { "rules": [] },
            "sets": { "a": ["10.2.0.9"], "b": ["10.2.0.2"] },
        }))
        .unwrap();
        let (web, db) = (end("blue/web", "10.2.0.2"), end("blue/db", "10.2.0.3"));
        let decide = |direction, tcp| step((&db, &web), &policy, direction, (web.addresses[0], tcp)).unwrap();
        let allowed = decide(Direction::Ingress, Some(5432));
        assert_eq!(allowed.verdict, Verdict::Ok);
        assert!(allowed.found.ends_with("is allowed by blue/allow-web[2]"), "{}", allowed.found);
        let denied = decide(Direction::Ingress, Some(80));
        assert_eq!(denied.verdict, Verdict::Fault);
        assert!(
            denied.found.contains("none of its rules allows it: blue/allow-web[0], blue/allow-web[2]"),
            "{}",
            denied.found
        );
        assert!(denied.hint.contains("--from blue/web --to blue/db"), "{}", denied.hint);
        assert_eq!(
            decide(Direction::Ingress, None).verdict,
            Verdict::Fault,
            "a rule with ports allows no ping"
        );
        let closed = decide(Direction::Egress, None);
        assert!(
            closed.found.contains("have no egress rule") && closed.hint.contains("-n blue"),
            "{closed:?}"
        );
        let open = AttachmentPolicy::default();
        assert_eq!(
            step((&db, &web), &open, Direction::Ingress, (web.addresses[0], None)).map(|step| step.found),
            None
        );
    }
}
