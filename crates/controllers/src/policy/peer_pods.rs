//! Pods as peers in network policies, reduced to labels, named ports, networks and addresses.
//!
//! - Of a pod without additional networks little more than the name is kept.
//! - A pod that has ended is no peer, and neither is one that uses the host network.
//! - Addresses come from the network-status alone: a pod that was never attached requests addresses, too.
//!
//! Source: Pod v1; multi-network specification (NPWG), section 5 (network-status).

use std::sync::Arc;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use npwg::metadata::Pod;
use npwg::pod_policies::PodNetworks;
use npwg::selection::Annotation;
use npwg::status::NETWORK_STATUS;
use serde::Deserialize;

use kube_support::resource;
use kube_support::resources::{Container, Reduced, named_ports};

/// Reduced form of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PeerPod {
    /// Labels, named ports and networks; no networks if the pod is no peer.
    pub(super) networks: Arc<PodNetworks>,
    /// Node of the pod.
    pub(super) node: String,
}

/// Pod as the API returns it.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct PeerPodObject {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: PodSpec,
    #[serde(default)]
    status: PodStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PodSpec {
    node_name: String,
    host_network: bool,
    containers: Vec<Container>,
    init_containers: Vec<Container>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct PodStatus {
    phase: String,
}

// === impl PeerPodObject ===

impl Reduced for PeerPodObject {
    type Form = PeerPod;

    fn reduce(self) -> PeerPod {
        let PeerPodObject { metadata, spec, status } = self;
        let PodSpec { node_name, host_network, containers, init_containers } = spec;
        let identity = Pod {
            namespace: metadata.namespace.unwrap_or_default(),
            name: metadata.name.unwrap_or_default(),
            ..Pod::default()
        };
        let is_over = matches!(status.phase.as_str(), "Succeeded" | "Failed");
        let mut annotations = metadata.annotations.unwrap_or_default();
        annotations.retain(|key, _| key == Annotation::Networks.key() || key == NETWORK_STATUS);
        if is_over || host_network || !annotations.contains_key(Annotation::Networks.key()) {
            return PeerPod { networks: Arc::new(PodNetworks::attached(&identity)), node: String::new() };
        }
        let pod = Pod {
            labels: metadata.labels.unwrap_or_default(),
            annotations,
            named_ports: named_ports(containers, init_containers),
            ..identity
        };
        PeerPod { networks: Arc::new(PodNetworks::attached(&pod)), node: node_name }
    }
}

resource!(PeerPodObject, NamespaceResourceScope, "Pod", "pods", "");

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn reduced(spec: &Value, phase: &str) -> PeerPod {
        let status = json!([{ "name": "n/a", "interface": "net1", "ips": ["10.0.0.1"], "dns": {} }]);
        let object = json!({
            "metadata": { "namespace": "n", "name": "p", "labels": { "app": "web" },
                "annotations": { "k8s.v1.cni.cncf.io/networks": "a, b", NETWORK_STATUS: status.to_string() } },
            "spec": spec, "status": { "phase": phase },
        });
        serde_json::from_value::<PeerPodObject>(object).unwrap().reduce()
    }

    #[test]
    fn network_policy_peer_is_a_pod_that_runs_on_its_networks() {
        let spec = json!({ "nodeName": "w", "containers": [{ "ports": [
            { "name": "http", "containerPort": 80 }, { "name": "http", "containerPort": 81 },
            { "name": "dns", "protocol": "UDP", "containerPort": 53 }, { "containerPort": 9 },
            { "name": "other", "protocol": "ICMP", "containerPort": 9 } ] }],
            "initContainers": [{ "ports": [{ "name": "first", "containerPort": 7 }] }] });
        let PeerPod { networks, node } = reduced(&spec, "Running");
        let all: Vec<String> =
            networks.networks.iter().map(|(network, ips)| format!("{network} {ips:?}")).collect();
        assert_eq!((all, node.as_str()), (vec!["n/a [10.0.0.1]".to_owned(), "n/b []".to_owned()], "w"));
        let attachment = networks.attachments(None).next().unwrap();
        let ports: Vec<String> =
            attachment.ports.iter().map(|(name, port)| format!("{name} {port:?}")).collect();
        assert_eq!(ports, ["dns (Udp, 53)", "http (Tcp, 80)"]);
        assert_eq!(attachment.labels["app"], "web");
    }

    #[test]
    fn network_policy_peer_is_no_pod_that_ended_or_on_the_host() {
        for (spec, phase) in [
            (json!({}), "Succeeded"),
            (json!({}), "Failed"),
            (json!({ "hostNetwork": true, "containers": [] }), "Running"),
        ] {
            let reduced = reduced(&spec, phase);
            assert_eq!(reduced.networks.attachments(None).count(), 0, "{phase}");
            assert_eq!((reduced.networks.name.as_str(), reduced.node.as_str()), ("p", ""));
        }
    }
}
