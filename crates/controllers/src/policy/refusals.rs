//! Reasons why policies allow no selected pod: an invalid policy, or addresses that do not fit.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use npwg::network_policy::ADDRESSES_MAX;
use policy_api::address_set::SizeError;
use policy_api::policy_object::WatchedPolicy;

use kube_support::resources::Key;

/// Maximum length of the reason in an Event, in bytes.
const REASON_MAX: usize = 900;

/// Results of address sets, and the policies that they affect.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    sets: BTreeMap<Key, SetResult>,
    policies: BTreeMap<Key, String>,
}

/// Result for an address set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SetResult {
    /// Number of addresses.
    pub(super) count: usize,
    /// Reason why they do not fit.
    pub(super) refused: Option<String>,
}

// === impl Refusals ===

impl Refusals {
    /// Records the result for a set; none if it is gone. Returns whether it has changed.
    pub(super) fn record(&mut self, set: &Key, result: Option<SetResult>) -> bool {
        if self.sets.get(set) == result.as_ref() {
            return false;
        }
        match result {
            Some(result) => self.sets.insert(set.clone(), result),
            None => self.sets.remove(set),
        };
        true
    }

    /// Compares a policy (`None` if it is gone) with the results for the address sets. Returns whether the reason
    /// changed.
    pub(super) fn compare(
        &mut self,
        key: &Key,
        policy: Option<&WatchedPolicy>,
        sets: &BTreeSet<Key>,
    ) -> bool {
        let reason = policy.and_then(|policy| self.judge(policy, sets));
        if self.policies.get(key) == reason.as_ref() {
            return false;
        }
        match reason {
            Some(reason) => self.policies.insert(key.clone(), reason),
            None => self.policies.remove(key),
        };
        true
    }

    /// Returns the reason why a policy allows no selected pod.
    pub(super) fn reason(&self, policy: &Key) -> Option<&String> {
        self.policies.get(policy)
    }

    /// Returns the number of such policies.
    pub(super) fn count(&self) -> usize {
        self.policies.len()
    }

    fn judge(&self, policy: &WatchedPolicy, sets: &BTreeSet<Key>) -> Option<String> {
        if !policy.policy.faults.is_empty() {
            let effect = match policy.policy.networks.is_empty() {
                true => "the policy applies to no network",
                false => "all traffic of the selected pods is denied",
            };
            return Some(format!("{effect}: {}", faults(policy)));
        }
        if let Some(why) = sets.iter().filter_map(|set| self.sets.get(set)?.refused.as_ref()).next() {
            return Some(format!("no pod counts as a peer of the rule: {why}"));
        }
        let namespace = &policy.policy.namespace;
        let count = policy.selections.iter().filter_map(|rule| {
            let key = (namespace.clone(), rule.set.clone());
            self.sets.get(&key).map(|result| result.count)
        });
        let count = count.sum();
        (count > ADDRESSES_MAX).then(|| format!("no pod counts as a peer: {}", SizeError::Addresses(count)))
    }
}

/// Returns the faults of a policy as one text.
fn faults(policy: &WatchedPolicy) -> String {
    let mut text = String::new();
    for (index, fault) in policy.policy.faults.iter().enumerate() {
        let fault = fault.to_string();
        if index > 0 && text.len() + fault.len() > REASON_MAX {
            // Writing to a string cannot fail.
            let _ = write!(text, "; and {} more", policy.policy.faults.len() - index);
            break;
        }
        let _ = write!(text, "{}{fault}", if index == 0 { "" } else { "; " });
    }
    text
}
