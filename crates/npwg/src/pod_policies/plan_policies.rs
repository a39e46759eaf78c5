//! Policies in a pod's plan: each delegate that a policy selects gets an [`AttachmentPolicy`].

use std::collections::BTreeMap;

use super::PodNetworks;
use crate::metadata::Labels;
use crate::metadata::{NetworkReference, Pod};
use crate::network_policy::{
    AttachmentPolicy, CompileError, CompiledPeers, Direction, NetworkPolicy, PodAttachment, PolicyAddresses,
    compile, resolve_all,
};
use crate::plan::{Decision, Delegate, Plan};
use crate::refusal::{Fault, Refusal};
use crate::rule::Rule;

/// Name for the decision about an attachment that policies select.
pub const ISOLATED: &str = "isolated";
/// Maximum size ([`encoded_size`]) of all policies for a pod: messages and journal entries are limited.
pub const POD_POLICIES_MAX: usize = 8 << 20;

/// Adds to a pod's plan the policies for each attachment. `pods` are all pods that can be peers; [`PodNetworks`] finds
/// the addresses.
///
/// # Errors
/// As [`add_resolved_to_plan`].
pub fn add_to_plan(
    plan: &mut Plan,
    pod: &Pod,
    policies: &[NetworkPolicy],
    pods: &[Pod],
    namespaces: &BTreeMap<String, Labels>,
) -> Result<(), Refusal> {
    let networks: Vec<NetworkReference> = plan.delegates.iter().filter_map(reference).collect();
    let candidates: Vec<NetworkPolicy> = policies
        .iter()
        .filter(|policy| policy.namespace == pod.namespace)
        .filter(|policy| networks.iter().any(|network| policy.networks.contains(network)))
        .cloned()
        .collect();
    if candidates.is_empty() {
        return Ok(());
    }
    let peers: Vec<PodNetworks> = pods.iter().map(PodNetworks::of).collect();
    let attachments: Vec<PodAttachment<'_>> =
        peers.iter().flat_map(|peer| peer.attachments(namespaces.get(&peer.namespace))).collect();
    add_resolved_to_plan(plan, pod, &candidates, &resolve_all(&candidates, &attachments))
}

/// Adds to a pod's plan the policies for each attachment. `addresses` has each policy's peer addresses, by
/// policy name (`namespace/name`). If a policy is not in it, selectors allow no peer.
///
/// # Errors
/// An attachment's policies cannot be enforced: the pod's labels are unknown, or the policies are too large,
/// alone or together with those for the pod's other attachments.
pub fn add_resolved_to_plan(
    plan: &mut Plan,
    pod: &Pod,
    policies: &[NetworkPolicy],
    addresses: &BTreeMap<String, PolicyAddresses>,
) -> Result<(), Refusal> {
    let mut room = POD_POLICIES_MAX;
    for delegate in &mut plan.delegates {
        let Some(network) = reference(delegate) else { continue };
        let mut candidates = policies
            .iter()
            .filter(|policy| policy.namespace == pod.namespace && policy.networks.contains(&network));
        let unknown = candidates.find(|policy| pod.described_by_runtime && !policy.pods.is_empty());
        if let Some(policy) = unknown {
            let reason =
                "may select the pod; its labels are unknown, because only the container runtime describes it";
            return Err(refusal(policy.subject(), reason));
        }
        let compiled = attachment_policy(&network, pod, policies, addresses)
            .map_err(|error: CompileError| refusal(format!("network {network}"), &error.to_string()))?;
        if let Some((policy, because)) = compiled {
            room = room.checked_sub(encoded_size(&policy)).ok_or_else(|| {
                let reason = "the policies of the pod's attachments have too many rules and addresses in all";
                refusal(format!("network {network}"), reason)
            })?;
            delegate.because.push(because);
            delegate.policy = Some(policy);
        }
    }
    Ok(())
}

/// Returns the policies for a pod's attachment to a network, and the decision that the plan gets; `None` if
/// no policy selects it. `addresses` as for [`add_resolved_to_plan`].
///
/// # Errors
/// The policies are too large.
pub fn attachment_policy(
    network: &NetworkReference,
    pod: &Pod,
    policies: &[NetworkPolicy],
    addresses: &BTreeMap<String, PolicyAddresses>,
) -> Result<Option<(AttachmentPolicy, Decision)>, CompileError> {
    let own = own_attachment(network, pod);
    let compiled = compile(policies, &own, addresses)?;
    if compiled.is_open() {
        return Ok(None);
    }
    let selecting = policies.iter().filter(|policy| policy.selects(&own));
    let names: Vec<String> = selecting.map(ToString::to_string).collect();
    let because = decision(&compiled, &names);
    Ok(Some((compiled, because)))
}

/// Returns an upper bound for the size that policies have in a message, in bytes.
pub fn encoded_size(policy: &AttachmentPolicy) -> usize {
    const RULE: usize = 512;
    const RANGE: usize = 128;
    const PORTS: usize = 64;
    const ADDRESS: usize = 48;
    let directions = Direction::ALL.into_iter().filter_map(|direction| policy.isolated(direction));
    let rules = directions.flat_map(|isolated| &isolated.rules).map(|rule| {
        let ranges = match &rule.peers {
            CompiledPeers::Any => 0,
            CompiledPeers::Only { set: _, ranges } => ranges.len(),
        };
        RULE + RANGE * ranges + PORTS * rule.ports.len()
    });
    let sets = policy.sets.values().map(|addresses| RULE + ADDRESS * addresses.len());
    rules.chain(sets).sum()
}

/// Returns the pod's attachment without addresses and namespace labels, which do not matter to the pod's policies.
pub fn own_attachment<'a>(network: &'a NetworkReference, pod: &'a Pod) -> PodAttachment<'a> {
    PodAttachment {
        namespace: &pod.namespace,
        name: &pod.name,
        labels: &pod.labels,
        namespace_labels: None,
        ports: &pod.named_ports,
        network,
        addresses: &[],
    }
}

fn refusal(subject: String, reason: &str) -> Refusal {
    Refusal::failed(Fault::new(Rule::NetworkPolicyNotEnforceable, subject, reason))
}

/// Returns the definition for a delegate, if it has one. Policies can only name definitions.
pub fn reference(delegate: &Delegate) -> Option<NetworkReference> {
    let (namespace, name) = delegate.network.split_once('/')?;
    Some(NetworkReference::new(namespace, name))
}

fn decision(policy: &AttachmentPolicy, names: &[String]) -> Decision {
    let isolated = Direction::ALL.iter().filter(|direction| policy.isolated(**direction).is_some());
    let isolated: Vec<&str> = isolated.map(|direction| direction.word()).collect();
    Decision {
        what: ISOLATED.to_owned(),
        value: isolated.join(", "),
        why: format!("network policies {}", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fixture::World;
    use crate::network_policy::{ADDRESSES_MAX, PeerSet, read};

    fn policy(pods: &serde_json::Value) -> NetworkPolicy {
        read(&json!({ "apiVersion": "k8s.cni.cncf.io/v1beta2", "kind": "MultiNetworkPolicy",
            "metadata": { "namespace": "home", "name": "p",
                "annotations": { "k8s.v1.cni.cncf.io/policy-for": "plain" } },
            "spec": { "podSelector": pods, "policyTypes": ["Ingress"] } }))
    }

    #[test]
    fn network_policy_is_added_to_the_selected_attachment_alone() {
        let plan = World::new().networks("plain,capable").plan();
        let mut pod = Pod { namespace: "home".into(), ..Pod::default() };
        let added = |pod: &Pod, pods: &serde_json::Value| {
            let mut plan = plan.clone();
            add_to_plan(&mut plan, pod, &[policy(pods)], &[], &BTreeMap::new()).map(|()| plan)
        };
        let isolated = added(&pod, &json!({})).unwrap();
        let with: Vec<bool> = isolated.delegates.iter().map(|delegate| delegate.policy.is_some()).collect();
        assert_eq!(with, [false, true, false]);
        assert_eq!(isolated.delegates[1].because.last().unwrap().value, "ingress");
        let other = json!({"matchLabels": {"a": "b"}});
        assert_eq!(added(&pod, &other).unwrap(), plan, "a plan without policies is unchanged");
        pod.described_by_runtime = true;
        let refused = added(&pod, &other).unwrap_err();
        assert_eq!(refused.fault().rule, Rule::NetworkPolicyNotEnforceable, "{refused}");
        added(&pod, &json!({})).unwrap();
    }

    #[test]
    fn network_policies_of_all_attachments_have_a_limit() {
        let policy = read(&json!({ "apiVersion": "k8s.cni.cncf.io/v1beta2", "kind": "MultiNetworkPolicy",
            "metadata": { "namespace": "home", "name": "p",
                "annotations": { "k8s.v1.cni.cncf.io/policy-for": "plain" } },
            "spec": { "podSelector": {}, "ingress": [{ "from": [{ "podSelector": {} }] }] } }));
        let mut addresses = PolicyAddresses::default();
        let most = u32::try_from(ADDRESSES_MAX).unwrap();
        let all = (0..most).map(|number| std::net::Ipv4Addr::from(number).into());
        addresses.insert(PeerSet { direction: Direction::Ingress, rule: 0, port: None }, all);
        let addresses = BTreeMap::from([("home/p".to_owned(), addresses)]);
        let pod = Pod { namespace: "home".into(), ..Pod::default() };
        let added = |networks: &str| {
            let mut plan = World::new().networks(networks).plan();
            add_resolved_to_plan(&mut plan, &pod, std::slice::from_ref(&policy), &addresses)
        };
        added("plain,plain").unwrap();
        let refused = added("plain,plain,plain").unwrap_err();
        assert_eq!(refused.fault().rule, Rule::NetworkPolicyNotEnforceable, "{refused}");
    }
}
