//! Index of policies and of the addresses of their peers, updated with each changed object.
//!
//! - A change of a pod costs the policies on its networks, whatever the number of pods.
//! - A change of a policy costs the pods on its networks. A change of a namespace costs its pods.
//! - The result is that of `npwg::network_policy::resolve` with all pods; a test compares the two.
//! - Two pods may have one address: an address is counted, and leaves a set with its last pod.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use npwg::metadata::{Labels, NetworkReference};
use npwg::network_policy::{NetworkPolicy, PeerSet, PolicyAddresses};
use npwg::pod_policies::PodNetworks;
use policy_api::policy_object::WatchedPolicy;

use kube_support::resources::Key;

/// Policies with their peers.
#[derive(Debug, Default)]
pub(super) struct PeerIndex {
    policies: BTreeMap<Key, IndexedPolicy>,
    policies_by_network: BTreeMap<NetworkReference, BTreeSet<Key>>,
    pods: BTreeMap<Key, Arc<PodNetworks>>,
    pods_by_network: BTreeMap<NetworkReference, BTreeSet<Key>>,
    namespaces: BTreeMap<String, Labels>,
    /// Policies whose object may have to be written.
    changed: BTreeSet<Key>,
}

/// Policy with the addresses of its peers.
#[derive(Debug)]
struct IndexedPolicy {
    policy: Arc<WatchedPolicy>,
    members: Members,
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
        if let Some(IndexedPolicy { policy, .. }) = self.policies.remove(key) {
            for network in &policy.policy.networks {
                remove(&mut self.policies_by_network, network, key);
            }
        }
        let Some(policy) = policy else { return };
        let mut members = Members::default();
        let mut pods = BTreeSet::new();
        for network in &policy.policy.networks {
            self.policies_by_network.entry(network.clone()).or_default().insert(key.clone());
            pods.extend(self.pods_by_network.get(network).into_iter().flatten());
        }
        for pod in pods.into_iter().filter_map(|key| self.pods.get(key)) {
            let labels = self.namespaces.get(&pod.namespace);
            members.add(contributions(&policy.policy, pod, labels));
        }
        self.policies.insert(key.clone(), IndexedPolicy { policy, members });
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
        let affected: BTreeSet<Key> = before
            .union(&now)
            .flat_map(|network| self.policies_by_network.get(network).into_iter().flatten())
            .cloned()
            .collect();
        for policy in affected {
            let Some(entry) = self.policies.get_mut(&policy) else { continue };
            let of = |pod: Option<&PodNetworks>| {
                pod.map(|pod| contributions(&entry.policy.policy, pod, labels)).unwrap_or_default()
            };
            if entry.members.change(of(known.as_deref()), of(pod.as_deref())) {
                self.changed.insert(policy);
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
            let affected: BTreeSet<&Key> =
                networks.flat_map(|network| self.policies_by_network.get(network)).flatten().collect();
            for policy in affected {
                let Some(entry) = self.policies.get_mut(policy) else { continue };
                let of = |labels| contributions(&entry.policy.policy, pod, labels);
                if entry.members.change(of(known.as_ref()), of(labels)) {
                    self.changed.insert(policy.clone());
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
        self.policies.get(key).map(|known| known.members.addresses()).unwrap_or_default()
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

fn remove(index: &mut BTreeMap<NetworkReference, BTreeSet<Key>>, network: &NetworkReference, key: &Key) {
    if let Entry::Occupied(mut keys) = index.entry(network.clone()) {
        keys.get_mut().remove(key);
        if keys.get().is_empty() {
            keys.remove();
        }
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

    fn addresses(&self) -> PolicyAddresses {
        let mut addresses = PolicyAddresses::default();
        for (set, counted) in &self.0 {
            addresses.insert(*set, counted.keys().copied());
        }
        addresses
    }
}

#[cfg(test)]
mod tests;
