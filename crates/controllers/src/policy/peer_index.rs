//! Index of policies and the pods that rules select, updated with each changed object.
//!
//! - When a pod changes, only the selections on the pod's networks are visited, whatever the number of pods.
//! - When a policy changes, only the pods on those networks are visited; when a namespace changes, only the pods in it.
//! - The result is that of `npwg::network_policy::resolve` with all pods; a test compares the two.
//! - Rules of a namespace with equal peers share one selection, so many small policies do not multiply what is kept.
//! - A selection takes one bit for each pod. The addresses are collected when the object is written.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use npwg::metadata::{Labels, NetworkReference};
use npwg::network_policy::{AddressList, PeerSelection};
use npwg::pod_policies::PodNetworks;
use policy_api::address_set::SetPort;
use policy_api::policy_object::WatchedPolicy;
use policy_api::set_name::set_name;

use crate::policy::pod_slots::{NumberSet, PodSlots};

use kube_support::resources::Key;

/// Policies and peers.
#[derive(Debug, Default)]
pub(super) struct PeerIndex {
    policies: BTreeMap<Key, Arc<WatchedPolicy>>,
    /// Selections by the namespace and name of the address set.
    selections: BTreeMap<Key, IndexedSelection>,
    selections_by_network: BTreeMap<NetworkReference, BTreeSet<Key>>,
    pods: PodSlots,
    pods_by_network: BTreeMap<NetworkReference, BTreeSet<Key>>,
    namespaces: BTreeMap<String, Labels>,
    changed: Changed,
}

/// Changes since the last call of [`PeerIndex::take_changed`].
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Changed {
    /// Policies that changed or are gone.
    pub(super) policies: BTreeSet<Key>,
    /// Address sets that may have to be written or deleted.
    pub(super) sets: BTreeSet<Key>,
}

/// Selection, the pods, and the policies with such a rule.
#[derive(Debug)]
struct IndexedSelection {
    selection: PeerSelection,
    pods: NumberSet,
    users: BTreeSet<Key>,
}

/// Addresses of a pod in the sets of a selection, by port.
type Contribution = Vec<(SetPort, IpAddr)>;

// === impl PeerIndex ===

impl PeerIndex {
    /// Adds, replaces or removes a policy.
    pub(super) fn set_policy(&mut self, key: &Key, policy: Option<Arc<WatchedPolicy>>) {
        if self.policies.get(key) == policy.as_ref() {
            return;
        }
        self.changed.policies.insert(key.clone());
        let before = self.sets_of(key);
        self.policies.remove(key);
        if let Some(policy) = policy {
            for (_, _, selection) in policy.policy.selections() {
                self.use_selection(selection, key);
            }
            self.policies.insert(key.clone(), policy);
        }
        // Last, so that a selection which continues is not built again.
        for set in before.difference(&self.sets_of(key)) {
            self.leave_selection(set, key);
        }
    }

    /// Returns the address sets of a policy.
    pub(super) fn sets_of(&self, policy: &Key) -> BTreeSet<Key> {
        let rules = self.policies.get(policy).into_iter().flat_map(|policy| &policy.selections);
        rules.map(|rule| (policy.0.clone(), rule.set.clone())).collect()
    }

    /// Adds a policy to the users of a selection; the first one resolves it.
    fn use_selection(&mut self, selection: PeerSelection, user: &Key) {
        let key = (user.0.clone(), set_name(&selection));
        if let Some(known) = self.selections.get_mut(&key) {
            known.users.insert(user.clone());
            return;
        }
        let (mut members, mut pods) = (NumberSet::default(), BTreeSet::new());
        for network in selection.networks() {
            self.selections_by_network.entry(network.clone()).or_default().insert(key.clone());
            pods.extend(self.pods_by_network.get(network).into_iter().flatten());
        }
        for number in pods.into_iter().filter_map(|pod| self.pods.number(pod)) {
            let Some(pod) = self.pods.at(number) else { continue };
            let labels = self.namespaces.get(&pod.namespace);
            if is_member(&selection, pod, labels) {
                members.set(number, true);
            }
        }
        self.changed.sets.insert(key.clone());
        let users = BTreeSet::from([user.clone()]);
        self.selections.insert(key, IndexedSelection { selection, pods: members, users });
    }

    /// Removes a policy from the users of a selection; the last one removes it.
    fn leave_selection(&mut self, key: &Key, user: &Key) {
        let Some(known) = self.selections.get_mut(key) else { return };
        known.users.remove(user);
        if known.users.is_empty() {
            for network in known.selection.networks() {
                remove(&mut self.selections_by_network, network, key);
            }
            self.selections.remove(key);
            self.changed.sets.insert(key.clone());
        }
    }

    /// Adds, replaces or removes a pod.
    pub(super) fn set_pod(&mut self, key: &Key, pod: Option<Arc<PodNetworks>>) {
        let pod = pod.filter(|pod| !pod.networks.is_empty());
        let known = self.pods.find(key).cloned();
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
        let affected: BTreeSet<Key> = before
            .union(&now)
            .flat_map(|network| self.selections_by_network.get(network).into_iter().flatten())
            .cloned()
            .collect();
        let number = match &pod {
            Some(pod) => Some(self.pods.insert(key, Arc::clone(pod))),
            None => self.pods.number(key),
        };
        let labels = self.namespaces.get(&key.0);
        for set in affected {
            let Some((entry, number)) = self.selections.get_mut(&set).zip(number) else { continue };
            let of = |pod: Option<&PodNetworks>| {
                pod.map(|pod| contribution(&entry.selection, pod, labels)).unwrap_or_default()
            };
            let (before, now) = (of(known.as_deref()), of(pod.as_deref()));
            entry.pods.set(number, !now.is_empty());
            if before != now {
                self.changed.sets.insert(set);
            }
        }
        if pod.is_none() {
            self.pods.remove(key);
        }
    }

    /// Sets the labels of a namespace; none if they are unknown.
    pub(super) fn set_namespace(&mut self, namespace: &str, labels: Option<&Labels>) {
        let known = self.namespaces.get(namespace).cloned();
        if known.as_ref() == labels {
            return;
        }
        for (number, pod) in self.pods.of_namespace(namespace) {
            let networks = pod.networks.iter().map(|(network, _)| network);
            let affected: BTreeSet<Key> = networks
                .flat_map(|network| self.selections_by_network.get(network))
                .flatten()
                .cloned()
                .collect();
            for set in affected {
                let Some(entry) = self.selections.get_mut(&set) else { continue };
                let of = |labels| contribution(&entry.selection, pod, labels);
                let (before, now) = (of(known.as_ref()), of(labels));
                entry.pods.set(number, !now.is_empty());
                if before != now {
                    self.changed.sets.insert(set);
                }
            }
        }
        match labels {
            Some(labels) => self.namespaces.insert(namespace.to_owned(), labels.clone()),
            None => self.namespaces.remove(namespace),
        };
    }

    /// Returns the policies and address sets that may have changed since the last call.
    pub(super) fn take_changed(&mut self) -> Changed {
        std::mem::take(&mut self.changed)
    }

    /// Returns a policy.
    pub(super) fn policy(&self, key: &Key) -> Option<&Arc<WatchedPolicy>> {
        self.policies.get(key)
    }

    /// Returns all policies.
    pub(super) fn policies(&self) -> impl Iterator<Item = (&Key, &Arc<WatchedPolicy>)> {
        self.policies.iter()
    }

    /// Returns the number of policies, and of pods with networks.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.policies.len(), self.pods.count())
    }

    /// Returns an address set's selection, with the addresses; `None` if no policy has it.
    pub(super) fn addresses(&self, set: &Key) -> Option<(&PeerSelection, BTreeMap<SetPort, AddressList>)> {
        let IndexedSelection { selection, pods, users: _ } = self.selections.get(set)?;
        let mut addresses: BTreeMap<SetPort, Vec<IpAddr>> = BTreeMap::new();
        for pod in pods.iter().filter_map(|number| self.pods.at(number)) {
            for attachment in pod.attachments(self.namespaces.get(&pod.namespace)) {
                for port in selection.sets(&attachment) {
                    addresses.entry(port).or_default().extend(attachment.addresses);
                }
            }
        }
        let lists = addresses.into_iter().map(|(port, all)| (port, all.into_iter().collect()));
        Some((selection, lists.collect()))
    }

    /// Whether a rule needs this address set.
    pub(super) fn has_set(&self, set: &Key) -> bool {
        self.selections.contains_key(set)
    }

    /// Returns the policies that have a rule with this address set.
    pub(super) fn users(&self, set: &Key) -> impl Iterator<Item = &Key> {
        self.selections.get(set).into_iter().flat_map(|known| &known.users)
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

/// Returns the addresses of a pod in the sets of a selection, each once.
fn contribution(
    selection: &PeerSelection,
    pod: &PodNetworks,
    namespace_labels: Option<&Labels>,
) -> Contribution {
    let mut all = Contribution::new();
    for attachment in pod.attachments(namespace_labels) {
        for port in selection.sets(&attachment) {
            all.extend(attachment.addresses.iter().map(|address| (port, *address)));
        }
    }
    all.sort_unstable();
    all.dedup();
    all
}

/// Whether a pod has an address in a set of a selection.
fn is_member(selection: &PeerSelection, pod: &PodNetworks, namespace_labels: Option<&Labels>) -> bool {
    let mut attachments = pod.attachments(namespace_labels);
    attachments.any(|attachment| !attachment.addresses.is_empty() && !selection.sets(&attachment).is_empty())
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

#[cfg(test)]
mod tests;
