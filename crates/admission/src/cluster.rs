//! Cluster caches that answers are made from: definitions, namespaces, and the networks that pods select.
//!
//! An answer before the first complete list says nothing about other objects: a missing network cannot be told from one that
//! was not listed yet.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::runtime::watcher::Config;
use kube::{Api, Client};
use kube_support::cache::{Cache, follow};
use kube_support::resource;
use kube_support::resources::{DefinitionObject, Key, NamespaceObject, Reduced};
use npwg::metadata::{Definition, NetworkReference};
use npwg::policy::Labels;
use npwg::selection::{Annotation, Reading};
use npwg::status::{Entry, NETWORK_STATUS};
use serde::Deserialize;

/// Maximum number of networks that are remembered for a pod.
const NETWORKS_MAX: usize = 128;

/// Facts about the cluster.
#[derive(Debug)]
pub(crate) struct ClusterFacts {
    pub(crate) definitions: Arc<Cache<Definition>>,
    pub(crate) namespaces: Arc<Cache<NamespaceFacts>>,
    pub(crate) pods: Arc<Cache<PodNetworks>>,
}

/// Namespace, as far as it concerns pods.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct NamespaceFacts {
    pub(crate) labels: Labels,
    /// Annotation that names the default network for pods in this namespace.
    pub(crate) default_network: Option<String>,
}

/// Networks that a living pod selects or has.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct PodNetworks(pub(crate) BTreeSet<NetworkReference>);

/// Namespace as the API returns it.
#[derive(Clone, Debug, Deserialize)]
struct NamespaceOfPods {
    metadata: ObjectMeta,
}

/// Pod as the API returns it.
#[derive(Clone, Debug, Deserialize)]
struct PodOfNetworks {
    metadata: ObjectMeta,
    #[serde(default)]
    status: PodPhase,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct PodPhase {
    phase: String,
}

resource!(NamespaceOfPods as NamespaceObject);
resource!(PodOfNetworks, NamespaceResourceScope, "Pod", "pods", "");

impl Reduced for NamespaceOfPods {
    type Form = NamespaceFacts;

    fn reduce(self) -> NamespaceFacts {
        let ObjectMeta { labels, annotations, .. } = self.metadata;
        let default_network = annotations.unwrap_or_default().remove(Annotation::DefaultNetwork.key());
        NamespaceFacts { labels: labels.unwrap_or_default().into_iter().collect(), default_network }
    }
}

impl Reduced for PodOfNetworks {
    type Form = PodNetworks;

    fn reduce(self) -> PodNetworks {
        if matches!(self.status.phase.as_str(), "Succeeded" | "Failed") {
            return PodNetworks::default();
        }
        let namespace = self.metadata.namespace.unwrap_or_default();
        let annotations = self.metadata.annotations.unwrap_or_default();
        let text = |key: &str| annotations.get(key).map_or("", String::as_str);
        let selected =
            Reading::of(Annotation::Networks, text(Annotation::Networks.key()), &namespace).elements;
        let selected = selected.into_iter().map(|element| element.network);
        let attached: Vec<Entry> = serde_json::from_str(text(NETWORK_STATUS)).unwrap_or_default();
        let attached = attached.iter().filter_map(|entry| {
            let (namespace, name) = entry.name.split_once('/')?;
            Some(NetworkReference::new(namespace, name))
        });
        PodNetworks(selected.chain(attached).take(NETWORKS_MAX).collect())
    }
}

impl ClusterFacts {
    /// Watches the cluster from now on.
    pub(crate) fn follow(client: &Client) -> ClusterFacts {
        let definitions = Arc::new(Cache::new("network-attachment-definitions"));
        let namespaces = Arc::new(Cache::new("namespaces"));
        let pods = Arc::new(Cache::new("pods"));
        let all = Config::default;
        tokio::spawn(follow(client.clone(), Api::<DefinitionObject>::all, all(), Arc::clone(&definitions)));
        tokio::spawn(follow(client.clone(), Api::<NamespaceOfPods>::all, all(), Arc::clone(&namespaces)));
        tokio::spawn(follow(client.clone(), Api::<PodOfNetworks>::all, all(), Arc::clone(&pods)));
        ClusterFacts { definitions, namespaces, pods }
    }

    /// Returns the caches that were never filled.
    pub(crate) fn waits_for(&self) -> Vec<String> {
        [self.definitions.waited(), self.namespaces.waited(), self.pods.waited()]
            .into_iter()
            .flatten()
            .collect()
    }

    /// Returns the definitions of these names that exist.
    pub(crate) fn definitions(
        &self,
        names: &BTreeSet<NetworkReference>,
    ) -> BTreeMap<NetworkReference, Definition> {
        let find =
            |name: &NetworkReference| self.definitions.find(&(name.namespace.clone(), name.name.clone()));
        names.iter().filter_map(|name| Some((name.clone(), Definition::clone(&*find(name)?)))).collect()
    }

    /// Returns a namespace, once it is listed.
    pub(crate) fn namespace(&self, name: &str) -> Option<Arc<NamespaceFacts>> {
        self.namespaces.find(&(String::new(), name.to_owned()))
    }

    /// Returns the living pods that select or have a network.
    pub(crate) fn users(&self, network: &NetworkReference) -> Vec<Key> {
        let all = self.pods.entries();
        all.into_iter().filter(|(_, pod)| pod.0.contains(network)).map(|(key, _)| key).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn pod_uses_selected_and_attached_networks_while_it_lives() {
        let pod = |phase: &str| {
            let object = json!({
                "metadata": { "namespace": "n", "annotations": {
                    Annotation::Networks.key(): "a,other/b",
                    NETWORK_STATUS: r#"[{"name":"n/c","interface":"net1"},{"name":"default"}]"#,
                } },
                "status": { "phase": phase },
            });
            let networks = serde_json::from_value::<PodOfNetworks>(object).unwrap().reduce().0;
            networks.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(pod("Running"), ["n/a", "n/c", "other/b"]);
        assert_eq!(pod("Pending").len(), 3);
        assert_eq!([pod("Succeeded").len(), pod("Failed").len()], [0, 0]);
    }

    #[test]
    fn pod_with_unreadable_annotations_uses_nothing() {
        for text in ["[", "[{}]", "a b c"] {
            let object = json!({ "metadata": { "annotations": { NETWORK_STATUS: text } } });
            assert_eq!(
                serde_json::from_value::<PodOfNetworks>(object).unwrap().reduce(),
                PodNetworks::default()
            );
        }
    }
}
