//! Packets that network policies allowed and denied, for each attachment and rule on this node.
//!
//! The journal has the policies and tells where the rules are, and `weft-cni sandbox policy-counters` reads the kernel.

use std::collections::BTreeMap;

use cli_support::failure::Failure;
use node_support::weft_cni::WeftCni;
use npwg::network_policy::{AttachmentPolicy, CompiledRule, Direction};
use rpc::diagnosis::{PolicyCounter, PolicyCountersRequest, SandboxNamespace};
use rpc::journal::{Attachment, Entry, State};
use serde::Serialize;

/// Counter for a policy rule, or for packets that no rule on an attachment allows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PolicyCount {
    /// Namespace that pod and policies are in.
    pub(crate) namespace: String,
    /// Pod name.
    pub(crate) pod: String,
    pub(crate) interface: String,
    pub(crate) network: String,
    /// Direction, as the pod sees it.
    pub(crate) direction: Direction,
    /// Rule that allowed the packets; `None` for denied ones.
    pub(crate) allowed_by: Option<RuleName>,
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
}

/// Rule in a policy.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RuleName {
    /// Policy name, in the pod's namespace.
    pub(crate) policy: String,
    /// Index of the rule in the direction.
    pub(crate) rule: usize,
}

/// Attachment with policies, by names. It has no peer addresses: policies may have many.
struct Isolated {
    namespace: String,
    pod: String,
    interface: String,
    network: String,
    rules: RuleNames,
}

/// Policy rules from which each direction's compiled rules were made.
type RuleNames = BTreeMap<Direction, Vec<RuleName>>;

/// Requests for attachments' counters.
pub(crate) struct PolicyCounters {
    requests: Vec<PolicyCountersRequest>,
    subjects: Vec<Isolated>,
}

/// Counters that were read.
#[derive(Debug, Default)]
pub(crate) struct ReadCounts {
    pub(crate) counts: Vec<PolicyCount>,
    /// Number of attachments whose counters were not read: the rules are gone, a pod added too many to them,
    /// or the node has more than are read at once.
    pub(crate) unread: usize,
}

/// Returns the requests for those attachments in these entries that have policies.
pub(crate) fn requests(entries: &[&Entry]) -> PolicyCounters {
    let (mut requests, mut subjects) = (Vec::new(), Vec::new());
    for entry in entries {
        let mut attachments = Vec::new();
        for (delegate, attachment) in entry.plan.delegates.iter().zip(&entry.attachments) {
            let Attachment { state: State::Attached, rules: Some(rules), .. } = attachment else { continue };
            let Some(policy) = &delegate.policy else { continue };
            subjects.push(Isolated {
                namespace: entry.plan.pod.namespace.clone(),
                pod: entry.plan.pod.name.clone(),
                interface: delegate.ifname.to_string(),
                network: delegate.network.clone(),
                rules: rule_names(policy),
            });
            attachments.push(rules.clone());
        }
        if !attachments.is_empty() {
            let sandbox = SandboxNamespace { netns: entry.netns.clone(), namespace: entry.namespace.clone() };
            requests.push(PolicyCountersRequest { sandbox, attachments });
        }
    }
    PolicyCounters { requests, subjects }
}

// === impl PolicyCounters ===

impl PolicyCounters {
    /// Returns the counters, in the order in which the entries were given. Attachments whose rules cannot be
    /// read have none. Without a policy `weft-cni` is not called.
    ///
    /// # Errors
    /// `weft-cni` fails.
    pub(crate) fn read(&self, weft_cni: &WeftCni) -> Result<ReadCounts, Failure> {
        let PolicyCounters { requests, subjects } = self;
        if requests.is_empty() {
            return Ok(ReadCounts::default());
        }
        let answers = weft_cni.policy_counters(requests)?;
        Ok(ReadCounts::new(subjects, &answers.into_iter().flatten().collect::<Vec<_>>()))
    }
}

// === impl ReadCounts ===

impl ReadCounts {
    /// Returns the counters in the answers for attachments; `None` is one that was not read.
    fn new(subjects: &[Isolated], answers: &[Option<Vec<PolicyCounter>>]) -> ReadCounts {
        let read =
            subjects.iter().zip(answers).filter_map(|(subject, answer)| Some((subject, answer.as_ref()?)));
        let unread = subjects.len() - read.clone().count();
        ReadCounts { counts: read.flat_map(|(subject, answer)| subject.counts(answer)).collect(), unread }
    }
}

// === impl Isolated ===

impl Isolated {
    fn counts(&self, counters: &[PolicyCounter]) -> Vec<PolicyCount> {
        let Isolated { namespace, pod, interface, network, rules } = self;
        let count = |((direction, allowed_by), Traffic { packets, bytes })| PolicyCount {
            namespace: namespace.clone(),
            pod: pod.clone(),
            interface: interface.clone(),
            network: network.clone(),
            direction,
            allowed_by,
            packets,
            bytes,
        };
        sums(rules, counters).into_iter().map(count).collect()
    }
}

/// Counters added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Traffic {
    packets: u64,
    bytes: u64,
}

/// Returns the policies' counters by rule. If a rule was divided by port, the parts are added up. Rules that the
/// policies do not have are the pod's own, or come from policies that were replaced meanwhile.
fn sums(rules: &RuleNames, counters: &[PolicyCounter]) -> BTreeMap<(Direction, Option<RuleName>), Traffic> {
    let mut sums: BTreeMap<(Direction, Option<RuleName>), Traffic> = BTreeMap::new();
    for PolicyCounter { direction, rule, packets, bytes } in counters {
        let name = rule.map(|index| rules.get(direction)?.get(index).cloned());
        let Some(name) = name.map_or(Some(None), |name| name.map(Some)) else { continue };
        let sum = sums.entry((*direction, name)).or_default();
        sum.packets = sum.packets.saturating_add(*packets);
        sum.bytes = sum.bytes.saturating_add(*bytes);
    }
    sums
}

/// Returns the names for the rules in an attachment's policies.
fn rule_names(policy: &AttachmentPolicy) -> RuleNames {
    let name = |CompiledRule { policy, rule, .. }: &CompiledRule| {
        let name = policy.rsplit('/').next().unwrap_or(policy);
        RuleName { policy: name.to_owned(), rule: *rule }
    };
    let of_direction = |direction: Direction| {
        let isolated = policy.isolated(direction)?;
        Some((direction, isolated.rules.iter().map(name).collect()))
    };
    Direction::ALL.into_iter().filter_map(of_direction).collect()
}

#[cfg(test)]
mod tests {
    use npwg::network_policy::{CompiledPeers, IsolatedDirection};

    use super::*;

    #[test]
    fn network_policy_counters_of_a_divided_rule_are_added_up() {
        let rule = |policy: &str, rule| CompiledRule {
            policy: format!("ns/{policy}"),
            rule,
            peers: CompiledPeers::Any,
            ports: Vec::new(),
        };
        let rules = vec![rule("web", 1), rule("web", 1), rule("db", 0)];
        let egress = Some(IsolatedDirection { rules });
        let policy = AttachmentPolicy { egress, ..AttachmentPolicy::default() };
        let direction = Direction::Egress;
        let counter = |rule, packets| PolicyCounter { direction, rule, packets, bytes: packets * 10 };
        let counters = [(Some(0), 1), (Some(1), 2), (Some(2), 4), (Some(3), 8), (None, 16)];
        let found = sums(&rule_names(&policy), &counters.map(|(rule, packets)| counter(rule, packets)));
        let name = |policy: &str, rule| Some(RuleName { policy: policy.into(), rule });
        let expected = [(None, 16), (name("db", 0), 4), (name("web", 1), 3)];
        let expected =
            expected.map(|(name, packets)| ((direction, name), Traffic { packets, bytes: packets * 10 }));
        assert_eq!(found, BTreeMap::from(expected));
    }

    #[test]
    fn network_policy_counters_name_attachments_that_were_not_read() {
        let subject = || Isolated {
            namespace: "ns".into(),
            pod: "web".into(),
            interface: "net1".into(),
            network: "ns/a".into(),
            rules: RuleNames::new(),
        };
        let denied = PolicyCounter { direction: Direction::Ingress, rule: None, packets: 1, bytes: 10 };
        let subjects = [subject(), subject(), subject()];
        // The second one was not read, and no answer has the third one.
        let ReadCounts { counts, unread } = ReadCounts::new(&subjects, &[Some(vec![denied]), None]);
        assert_eq!((counts.len(), unread), (1, 2));
    }
}
