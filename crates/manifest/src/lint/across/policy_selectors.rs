//! Network policies across files: networks that do not exist, and selectors that fit no pod.
//!
//! - A selector is only reported if the files have a pod on one of the policy's networks: without one nothing
//!   is known.
//! - If a namespace is in no file, the labels are unknown, and may fit.

use std::collections::BTreeMap;

use npwg::metadata::NetworkReference;
use npwg::nearest::hint;
use npwg::network_policy::{Direction, NetworkPolicy, POLICY_FOR, PodAttachment, PolicyPeer};
use npwg::pod_policies::PodNetworks;
use npwg::policy::Labels;
use npwg::refusal::{Fault, KeyPath, quote};
use npwg::rule::Rule;

use super::Seen;
use crate::{Located, Manifest};

/// Policies from all files, and what the selectors may fit.
#[derive(Debug, Default)]
pub(super) struct PolicySelectors {
    policies: Vec<Placed>,
    pods: Vec<PodNetworks>,
    namespaces: BTreeMap<String, Labels>,
}

/// Policy and the place of the selectors.
#[derive(Debug)]
struct Placed {
    policy: NetworkPolicy,
    networks: (KeyPath, Seen),
    pods: (KeyPath, Seen),
    peers: Vec<PlacedPeer>,
}

/// Peer in a rule, and where it is.
#[derive(Debug)]
struct PlacedPeer {
    peer: PolicyPeer,
    place: (KeyPath, Seen),
}

// === impl PolicySelectors ===

impl PolicySelectors {
    /// Adds a file's policies, pods and namespaces.
    pub(super) fn add(&mut self, manifest: &Manifest, seen: &dyn Fn(usize) -> Seen) {
        self.policies.extend(manifest.policies.iter().map(|located| Placed::of(located, seen)));
        let pods = manifest.pods.iter().map(|located| PodNetworks::of(&located.value.pod));
        self.pods.extend(pods.filter(|pod| !pod.networks.is_empty()));
        let namespaces = manifest.namespaces.iter().map(|located| &located.value);
        self.namespaces.extend(namespaces.map(|one| (one.name.clone(), one.labels.clone())));
    }

    /// Returns the faults and where they are; `definitions` has those from all files.
    pub(super) fn faults(self, definitions: &BTreeMap<NetworkReference, Seen>) -> Vec<(Seen, Fault)> {
        let PolicySelectors { policies, pods, namespaces } = self;
        let attachments: Vec<PodAttachment<'_>> =
            pods.iter().flat_map(|pod| pod.attachments(namespaces.get(&pod.namespace))).collect();
        let is_known = |namespace: &str| namespaces.contains_key(namespace);
        let mut faults = Vec::new();
        for placed in policies {
            faults.extend(placed.unknown_networks(definitions));
            faults.extend(placed.empty_selectors(&attachments, &is_known));
        }
        faults
    }
}

// === impl Placed ===

impl Placed {
    fn of(located: &Located<NetworkPolicy>, seen: &dyn Fn(usize) -> Seen) -> Placed {
        let place = |path: KeyPath| {
            let at = seen(located.node_at(&path).span.start);
            (path, at)
        };
        let policy = located.value.clone();
        let spec = KeyPath::root().key("spec");
        let mut peers = Vec::new();
        for direction in Direction::ALL {
            for (index, rule) in policy.rules(direction).rules.iter().enumerate() {
                let rule_path = spec.key(direction.word()).index(index).key(direction.peers_word());
                peers.extend(rule.peers.iter().enumerate().map(|(index, peer)| PlacedPeer {
                    peer: peer.clone(),
                    place: place(rule_path.index(index)),
                }));
            }
        }
        let networks = place(KeyPath::root().key("metadata").key("annotations").key(POLICY_FOR));
        Placed { networks, pods: place(spec.key("podSelector")), peers, policy }
    }

    fn unknown_networks(&self, definitions: &BTreeMap<NetworkReference, Seen>) -> Vec<(Seen, Fault)> {
        let (path, seen) = &self.networks;
        let unknown = self.policy.networks.iter().filter(|network| !definitions.contains_key(network));
        let fault = |network: &NetworkReference| {
            let names: Vec<&str> = definitions
                .keys()
                .filter(|other| other.namespace == network.namespace)
                .map(|other| other.name.as_str())
                .collect();
            let elsewhere = definitions.keys().find(|other| other.name == network.name);
            let hint = match elsewhere {
                Some(other) => format!("did you mean {other}?"),
                None => hint(&network.name, &names),
            };
            let reason = "is in none of the files, although other definitions are";
            let fault = Fault::new(Rule::NetworkPolicyNetworkNotInFiles, self.policy.subject(), reason);
            (seen.clone(), fault.at(path.clone()).showing(&quote(&network.to_string())).hint(hint))
        };
        if definitions.is_empty() { Vec::new() } else { unknown.map(fault).collect() }
    }

    fn empty_selectors(
        &self,
        attachments: &[PodAttachment<'_>],
        is_known: &dyn Fn(&str) -> bool,
    ) -> Vec<(Seen, Fault)> {
        let on_network: Vec<&PodAttachment<'_>> =
            attachments.iter().filter(|pod| self.policy.networks.contains(pod.network)).collect();
        if on_network.is_empty() {
            return Vec::new();
        }
        let fault = |(path, seen): &(KeyPath, Seen), what: &str| {
            let reason = format!("no pod of the files on a network of the policy fits {what}");
            let fault = Fault::new(Rule::NetworkPolicySelectsNothing, self.policy.subject(), reason);
            (seen.clone(), fault.at(path.clone()))
        };
        let mut faults = Vec::new();
        if !on_network.iter().any(|pod| self.policy.selects(pod)) {
            faults.push(fault(&self.pods, "podSelector"));
        }
        for PlacedPeer { peer, place } in &self.peers {
            let PolicyPeer::Pods { namespaces, pods } = peer else { continue };
            let may_fit = |pod: &&&PodAttachment<'_>| {
                let is_unknown = namespaces.is_some() && !is_known(pod.namespace);
                let labels = pods.as_ref().is_none_or(|selector| selector.fits(pod.labels));
                self.policy.peer_selects(peer, pod) || is_unknown && labels
            };
            if !on_network.iter().any(|pod| may_fit(&pod)) {
                faults.push(fault(place, "the peer"));
            }
        }
        faults
    }
}
