//! Index of policies and of the addresses of their peers, updated with each changed object.
//!
//! - A change of a pod costs the selections on its networks, whatever the number of pods.
//! - A change of a policy costs the pods on its networks. A change of a namespace costs its pods.
//! - The result is that of `npwg::network_policy::resolve` with all pods; a test compares the two.
//! - Two pods may have one address: an address is counted, and leaves a set with its last pod.
//! - Rules with equal peers share one selection, so many small policies do not multiply the addresses of many pods.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use npwg::metadata::{Labels, NetworkReference};
use npwg::network_policy::{Direction, NetworkPolicy, PeerSet, PolicyAddresses};
use npwg::pod_policies::PodNetworks;
use policy_api::policy_object::WatchedPolicy;

use crate::policy::selection::{SelectionId, selections};

use kube_support::resources::Key;

/// Policies with their peers.
#[derive(Debug, Default)]
pub(super) struct PeerIndex {
    policies: BTreeMap<Key, IndexedPolicy>,
    selections: BTreeMap<SelectionId, Selection>,
    selections_by_network: BTreeMap<NetworkReference, BTreeSet<SelectionId>>,
    pods: BTreeMap<Key, Arc<PodNetworks>>,
    pods_by_network: BTreeMap<NetworkReference, BTreeSet<Key>>,
    namespaces: BTreeMap<String, Labels>,
    /// Policies whose object may have to be written.
    changed: BTreeSet<Key>,
}

/// Policy with the selection of each of its rules.
#[derive(Debug)]
struct IndexedPolicy {
    policy: Arc<WatchedPolicy>,
    rules: Vec<(Direction, usize, SelectionId)>,
}

/// Peers of equal rules: a policy with this rule alone, the addresses of its peers, and the policies with such a rule.
#[derive(Debug)]
struct Selection {
    rule: NetworkPolicy,
    members: Members,
    users: BTreeSet<Key>,
}

/// Addresses of a policy's sets, each with the number of its pods.
#[derive(Debug, Default)]
struct Members(BTreeMap<PeerSet, BTreeMap<IpAddr, u32>>);

// === impl PeerIndex ===

impl PeerIndex {
    /// Adds, replaces or removes a policy.
    pub(super) fn set_policy(&mut self, key: &Key, policy: Option<Arc<WatchedPolicy>>) {
        let known = self.policies.get(key).map(|known| &known.policy);
        if known == policy.as_ref() {
            return;
        }
        self.changed.insert(key.clone());
        let before = self.policies.remove(key);
        if let Some(policy) = policy {
            let mut rules = Vec::new();
            for (direction, rule, id, selection) in selections(&policy.policy) {
                self.use_selection(id, selection, key);
                rules.push((direction, rule, id));
            }
            self.policies.insert(key.clone(), IndexedPolicy { policy, rules });
        }
        // Last, so that a selection which continues is not built again.
        let now: BTreeSet<SelectionId> =
            self.policies.get(key).into_iter().flat_map(IndexedPolicy::ids).collect();
        for id in before.iter().flat_map(IndexedPolicy::ids).filter(|id| !now.contains(id)) {
            self.leave_selection(id, key);
        }
    }

    /// Adds a policy to the users of a selection; the first one resolves it.
    fn use_selection(&mut self, id: SelectionId, rule: NetworkPolicy, user: &Key) {
        if let Some(known) = self.selections.get_mut(&id) {
            known.users.insert(user.clone());
            return;
        }
        let mut members = Members::default();
        let mut pods = BTreeSet::new();
        for network in &rule.networks {
            self.selections_by_network.entry(network.clone()).or_default().insert(id);
            pods.extend(self.pods_by_network.get(network).into_iter().flatten());
        }
        for pod in pods.into_iter().filter_map(|key| self.pods.get(key)) {
            let labels = self.namespaces.get(&pod.namespace);
            members.add(contributions(&rule, pod, labels));
        }
        self.selections.insert(id, Selection { rule, members, users: BTreeSet::from([user.clone()]) });
    }

    /// Removes a policy from the users of a selection; the last one removes it.
    fn leave_selection(&mut self, id: SelectionId, user: &Key) {
        let Some(known) = self.selections.get_mut(&id) else { return };
        known.users.remove(user);
        if known.users.is_empty() {
            for network in &known.rule.networks {
                remove(&mut self.selections_by_network, network, &id);
            }
            self.selections.remove(&id);
        }
    }

    /// Adds, replaces or removes a pod.
    pub(super) fn set_pod(&mut self, key: &Key, pod: Option<Arc<PodNetworks>>) {
        let pod = pod.filter(|pod| !pod.networks.is_empty());
        let known = self.pods.get(key).cloned();
        if known == pod {
            return;
        }
        let (before, now) = (networks(known.as_deref()), networks(pod.as_deref()));
        for network in before.difference(&now) {
            remove(&mut self.pods_by_network, network, key);
        }
        for network in now.difference(&before) {
            self.pods_by_network.entry(network.clone()).or_default().insert(key.clone());
        }
        let labels = self.namespaces.get(&key.0);
        let affected: BTreeSet<SelectionId> = before
            .union(&now)
            .flat_map(|network| self.selections_by_network.get(network).into_iter().flatten())
            .copied()
            .collect();
        for id in affected {
            let Some(entry) = self.selections.get_mut(&id) else { continue };
            let of = |pod: Option<&PodNetworks>| {
                pod.map(|pod| contributions(&entry.rule, pod, labels)).unwrap_or_default()
            };
            if entry.members.change(of(known.as_deref()), of(pod.as_deref())) {
                self.changed.extend(entry.users.iter().cloned());
            }
        }
        match pod {
            Some(pod) => self.pods.insert(key.clone(), pod),
            None => self.pods.remove(key),
        };
    }

    /// Sets the labels of a namespace; none if they are unknown.
    pub(super) fn set_namespace(&mut self, namespace: &str, labels: Option<&Labels>) {
        let known = self.namespaces.get(namespace).cloned();
        if known.as_ref() == labels {
            return;
        }
        let first = (namespace.to_owned(), String::new());
        let pods = self.pods.range(first..).take_while(|((name, _), _)| name == namespace);
        for (_, pod) in pods {
            let networks = pod.networks.iter().map(|(network, _)| network);
            let affected: BTreeSet<SelectionId> = networks
                .flat_map(|network| self.selections_by_network.get(network))
                .flatten()
                .copied()
                .collect();
            for id in affected {
                let Some(entry) = self.selections.get_mut(&id) else { continue };
                let of = |labels| contributions(&entry.rule, pod, labels);
                if entry.members.change(of(known.as_ref()), of(labels)) {
                    self.changed.extend(entry.users.iter().cloned());
                }
            }
        }
        match labels {
            Some(labels) => self.namespaces.insert(namespace.to_owned(), labels.clone()),
            None => self.namespaces.remove(namespace),
        };
    }

    /// Returns the policies that changed, or whose addresses changed, since the last call.
    pub(super) fn take_changed(&mut self) -> BTreeSet<Key> {
        std::mem::take(&mut self.changed)
    }

    /// Returns a policy.
    pub(super) fn policy(&self, key: &Key) -> Option<&Arc<WatchedPolicy>> {
        self.policies.get(key).map(|known| &known.policy)
    }

    /// Returns all policies.
    pub(super) fn policies(&self) -> impl Iterator<Item = (&Key, &Arc<WatchedPolicy>)> {
        self.policies.iter().map(|(key, known)| (key, &known.policy))
    }

    /// Returns the number of policies, and of pods with networks.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.policies.len(), self.pods.len())
    }

    /// Returns the addresses of a policy's peers.
    pub(super) fn addresses(&self, key: &Key) -> PolicyAddresses {
        let mut addresses = PolicyAddresses::default();
        let rules = self.policies.get(key).into_iter().flat_map(|known| &known.rules);
        for (direction, rule, id) in rules {
            for (set, counted) in self.selections.get(id).into_iter().flat_map(|known| &known.members.0) {
                let set = PeerSet { direction: *direction, rule: *rule, port: set.port };
                addresses.insert(set, counted.keys().copied());
            }
        }
        addresses
    }

    /// Returns the keys of all pods with networks.
    pub(super) fn pods(&self) -> impl Iterator<Item = &Key> {
        self.pods.keys()
    }

    /// Returns the keys of the pods on a network.
    pub(super) fn pods_on(&self, network: &NetworkReference) -> impl Iterator<Item = &Key> {
        self.pods_by_network.get(network).into_iter().flatten()
    }

    /// Returns the names of the namespaces whose labels are known.
    pub(super) fn namespaces(&self) -> impl Iterator<Item = &String> {
        self.namespaces.keys()
    }
}

/// Returns the sets of a policy in which a pod is, with each of its addresses.
fn contributions(
    policy: &NetworkPolicy,
    pod: &PodNetworks,
    namespace_labels: Option<&Labels>,
) -> Vec<(PeerSet, IpAddr)> {
    let mut all = Vec::new();
    for attachment in pod.attachments(namespace_labels) {
        for set in policy.peer_sets(&attachment) {
            all.extend(attachment.addresses.iter().map(|address| (set, *address)));
        }
    }
    all
}

/// Returns the networks of a pod, each once.
fn networks(pod: Option<&PodNetworks>) -> BTreeSet<NetworkReference> {
    pod.into_iter().flat_map(|pod| &pod.networks).map(|(network, _)| network.clone()).collect()
}

fn remove<K: Ord>(index: &mut BTreeMap<NetworkReference, BTreeSet<K>>, network: &NetworkReference, key: &K) {
    if let Entry::Occupied(mut keys) = index.entry(network.clone()) {
        keys.get_mut().remove(key);
        if keys.get().is_empty() {
            keys.remove();
        }
    }
}

// === impl IndexedPolicy ===

impl IndexedPolicy {
    fn ids(&self) -> impl Iterator<Item = SelectionId> {
        self.rules.iter().map(|(_, _, id)| *id)
    }
}

// === impl Members ===

impl Members {
    fn add(&mut self, added: Vec<(PeerSet, IpAddr)>) {
        for (set, address) in added {
            *self.0.entry(set).or_default().entry(address).or_default() += 1;
        }
    }

    fn subtract(&mut self, removed: &[(PeerSet, IpAddr)]) {
        for (set, address) in removed {
            let Some(addresses) = self.0.get_mut(set) else { continue };
            if let Entry::Occupied(mut count) = addresses.entry(*address) {
                *count.get_mut() -= 1;
                if *count.get() == 0 {
                    count.remove();
                }
            }
            if addresses.is_empty() {
                self.0.remove(set);
            }
        }
    }

    /// Replaces what a pod contributed. The result is whether the sets may have changed.
    fn change(&mut self, mut before: Vec<(PeerSet, IpAddr)>, mut now: Vec<(PeerSet, IpAddr)>) -> bool {
        before.sort_unstable();
        now.sort_unstable();
        if before == now {
            return false;
        }
        // First the new ones, so that no set that continues is built again.
        self.add(now);
        self.subtract(&before);
        true
    }
}

#[cfg(test)]
mod tests;
