//! Services, pods and EndpointSlices as the controller of Services looks at them: reduced to that.
//!
//! Rules:
//! - of a Service without our annotation, and of a pod without a network-status, next to nothing is kept;
//! - what stands in a network-status was written by whoever may change the pod: a bounded number of addresses is taken, and none
//!   that the API server would refuse, because it refuses a whole slice for one.
//!
//! Source: Service v1, Pod v1, EndpointSlice `discovery.k8s.io/v1`; the standard, 5 (network-status).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use npwg::status::{Entry, NETWORK_STATUS};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use kube_support::resource;
use kube_support::resources::Reduced;

/// Annotation of a Service: the networks whose addresses it lists, as multus-service had it.
pub(crate) const SERVICE_NETWORK: &str = "k8s.v1.cni.cncf.io/service-network";
/// Annotation of a Service: which pods. A selector in its spec would have Kubernetes list the default network's addresses.
pub(crate) const SERVICE_SELECTOR: &str = "weft.dev/service-selector";
/// Label of a slice: its Service.
pub(crate) const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// Label of a slice: who looks after it.
pub(crate) const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
/// That it is we.
pub(crate) const MANAGER: &str = "weft-controller-services";
/// Most addresses of one pod that are looked at.
const ADDRESSES_MAX: usize = 64;

/// A Service.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Service {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    /// What it asks of us; nothing without the annotation, or once it is being deleted.
    pub(crate) wish: Option<Wish>,
}

/// What a Service asks of us.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Wish {
    /// The networks, as they are written.
    pub(crate) networks: String,
    /// The pods, as it is written.
    pub(crate) selector: Option<String>,
    pub(crate) spec: ServiceSpec,
}

/// What is looked at of a Service's spec.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ServiceSpec {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    #[serde(rename = "clusterIP")]
    pub(crate) cluster_ip: String,
    pub(crate) selector: BTreeMap<String, String>,
    pub(crate) ports: Vec<ServicePort>,
    pub(crate) ip_families: Vec<String>,
    pub(crate) publish_not_ready_addresses: bool,
}

/// A port of a Service.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ServicePort {
    pub(crate) name: String,
    pub(crate) port: u16,
    pub(crate) protocol: String,
    pub(crate) app_protocol: Option<String>,
    /// A number, or the name of a container's port.
    pub(crate) target_port: Value,
}

/// A pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Backend {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) labels: BTreeMap<String, String>,
    /// Network and address, in the order of its network-status; nothing of a pod that is over.
    pub(crate) addresses: Vec<(String, IpAddr)>,
    pub(crate) node: String,
    pub(crate) hostname: String,
    pub(crate) subdomain: String,
    pub(crate) ready: bool,
    pub(crate) terminating: bool,
    /// Its containers' ports that have a name: name, protocol, number.
    pub(crate) ports: Vec<(String, String, u16)>,
}

/// A Service as it comes from the API.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct ServiceObject {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: Value,
}

/// A pod as it comes from the API.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct BackendObject {
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
    hostname: String,
    subdomain: String,
    containers: Vec<Container>,
    init_containers: Vec<Container>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Container {
    ports: Vec<ContainerPort>,
    /// Of an init container: `Always` makes it one that runs beside the others.
    restart_policy: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ContainerPort {
    name: String,
    protocol: String,
    container_port: u16,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct PodStatus {
    phase: String,
    conditions: Vec<Condition>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
}

// === impl ServiceObject ===

impl Reduced for ServiceObject {
    type Form = Service;

    fn reduce(self) -> Service {
        let ServiceObject { metadata, spec } = self;
        let annotation = |key: &str| metadata.annotations.as_ref().and_then(|all| all.get(key)).cloned();
        let networks = annotation(SERVICE_NETWORK).filter(|_| metadata.deletion_timestamp.is_none());
        let wish = networks.map(|networks| Wish {
            networks,
            selector: annotation(SERVICE_SELECTOR),
            // The API server has read it before us.
            spec: serde_json::from_value(spec).unwrap_or_default(),
        });
        Service {
            namespace: metadata.namespace.unwrap_or_default(),
            name: metadata.name.unwrap_or_default(),
            uid: metadata.uid.unwrap_or_default(),
            wish,
        }
    }
}

// === impl BackendObject ===

impl Reduced for BackendObject {
    type Form = Backend;

    fn reduce(self) -> Backend {
        let BackendObject { metadata, spec, status } = self;
        let text = metadata.annotations.as_ref().and_then(|all| all.get(NETWORK_STATUS));
        let over = matches!(status.phase.as_str(), "Succeeded" | "Failed");
        let addresses = text.filter(|_| !over).map(|text| addresses(text)).unwrap_or_default();
        let identity = Backend {
            namespace: metadata.namespace.unwrap_or_default(),
            name: metadata.name.unwrap_or_default(),
            uid: metadata.uid.unwrap_or_default(),
            ..Backend::default()
        };
        if addresses.is_empty() {
            return identity;
        }
        let beside =
            spec.init_containers.into_iter().filter(|container| container.restart_policy == "Always");
        let ports = spec.containers.into_iter().chain(beside).flat_map(|container| container.ports);
        let named = ports.filter(|port| !port.name.is_empty());
        Backend {
            labels: metadata.labels.unwrap_or_default(),
            addresses,
            node: spec.node_name,
            hostname: spec.hostname,
            subdomain: spec.subdomain,
            ready: status.conditions.iter().any(|one| one.kind == "Ready" && one.status == "True"),
            terminating: metadata.deletion_timestamp.is_some(),
            ports: named.map(|port| (port.name, port.protocol, port.container_port)).collect(),
            ..identity
        }
    }
}

/// The addresses of every network in a network-status, those that can be listed, each once.
fn addresses(status: &str) -> Vec<(String, IpAddr)> {
    let entries: Vec<Entry> = serde_json::from_str(status).unwrap_or_default();
    let mut seen = BTreeSet::new();
    let all = entries.into_iter().flat_map(|entry| {
        let Entry { name, ips, .. } = entry;
        ips.into_iter().map(move |ip| (name.clone(), ip))
    });
    all.filter_map(|(network, text)| Some((network, address(&text)?)))
        .filter(|found| seen.insert(found.clone()))
        .take(ADDRESSES_MAX)
        .collect()
}

/// An address, with or without its prefix length, if an EndpointSlice may have it.
fn address(text: &str) -> Option<IpAddr> {
    let bare = text.split_once('/').map_or(text, |(bare, _)| bare);
    bare.parse().ok().filter(|ip: &IpAddr| match ip {
        IpAddr::V4(ip) => !(ip.is_link_local() || ip.is_broadcast()),
        IpAddr::V6(ip) => !ip.is_unicast_link_local() && ip.to_ipv4_mapped().is_none(),
    } && !(ip.is_unspecified() || ip.is_loopback() || ip.is_multicast()))
}

/// An EndpointSlice, as `discovery.k8s.io/v1beta1` has it or as `v1`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SliceObject<const BETA: bool> {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    pub(crate) metadata: ObjectMeta,
    #[serde(default)]
    address_type: String,
    #[serde(default, deserialize_with = "or_none")]
    endpoints: Vec<Endpoint>,
    #[serde(default, deserialize_with = "or_none")]
    ports: Vec<Port>,
}

/// An EndpointSlice.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Slice {
    /// With its name and labels, and, once it is there, its versions.
    pub(crate) metadata: ObjectMeta,
    /// `IPv4` or `IPv6`.
    pub(crate) family: String,
    pub(crate) endpoints: Vec<Endpoint>,
    pub(crate) ports: Vec<Port>,
}

impl Slice {
    /// What a label of it says.
    pub(crate) fn label(&self, key: &str) -> Option<&str> {
        self.metadata.labels.as_ref()?.get(key).map(String::as_str)
    }
}

/// An address, and what is known of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Endpoint {
    pub(crate) addresses: Vec<String>,
    pub(crate) conditions: Conditions,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hostname: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) node_name: Option<String>,
    pub(crate) target_ref: Target,
}

/// May it be used?
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Conditions {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ready: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) serving: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) terminating: Option<bool>,
}

/// Whose it is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Target {
    pub(crate) kind: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
}

/// A port of all addresses of a slice.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Port {
    pub(crate) name: String,
    pub(crate) protocol: String,
    /// What a hand wrote is in no range: the API server takes it.
    pub(crate) port: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) app_protocol: Option<String>,
}

/// A list for which the API server may have written `null`.
fn or_none<'de, D, T>(reader: D) -> Result<Vec<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de>,
{
    Option::deserialize(reader).map(Option::unwrap_or_default)
}

impl<const BETA: bool> SliceObject<BETA> {
    /// As it is sent.
    pub(crate) fn of(slice: &Slice) -> SliceObject<BETA> {
        let Slice { metadata, family, endpoints, ports } = slice.clone();
        let version = if BETA { "v1beta1" } else { "v1" };
        SliceObject {
            api_version: format!("discovery.k8s.io/{version}"),
            kind: "EndpointSlice".to_owned(),
            metadata,
            address_type: family,
            endpoints,
            ports,
        }
    }

    /// As it is looked at.
    pub(crate) fn slice(self) -> Slice {
        let SliceObject { api_version: _, kind: _, mut metadata, address_type, endpoints, ports } = self;
        metadata.managed_fields = None;
        Slice { metadata, family: address_type, endpoints, ports }
    }
}

impl<const BETA: bool> Reduced for SliceObject<BETA>
where
    SliceObject<BETA>: Resource<DynamicType = ()>,
{
    type Form = Slice;

    fn reduce(self) -> Slice {
        self.slice()
    }
}

resource!(ServiceObject, NamespaceResourceScope, "Service", "services", "");
resource!(BackendObject, NamespaceResourceScope, "Pod", "pods", "");
resource!(
    SliceObject<false>,
    NamespaceResourceScope,
    "EndpointSlice",
    "endpointslices",
    "discovery.k8s.io",
    "v1"
);
resource!(
    SliceObject<true>,
    NamespaceResourceScope,
    "EndpointSlice",
    "endpointslices",
    "discovery.k8s.io",
    "v1beta1"
);

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn reduced(annotation: &str, phase: &str) -> Backend {
        let object = json!({
            "metadata": { "namespace": "n", "name": "p", "uid": "u", "labels": { "app": "web" },
                "annotations": { NETWORK_STATUS: annotation } },
            "spec": { "nodeName": "w", "containers": [{ "ports": [{ "name": "http", "protocol": "TCP", "containerPort": 8080 },
                { "containerPort": 9 }] }], "initContainers": [
                { "ports": [{ "name": "admin", "protocol": "TCP", "containerPort": 15000 }], "restartPolicy": "Always" },
                { "ports": [{ "name": "first", "protocol": "TCP", "containerPort": 7 }] }] },
            "status": { "phase": phase, "conditions": [{ "type": "Ready", "status": "True" }] },
        });
        serde_json::from_value::<BackendObject>(object).unwrap().reduce()
    }

    #[test]
    fn of_a_network_status_what_can_be_listed_is_taken_each_once() {
        let status = json!([
            { "name": "n/a", "ips": ["10.0.0.1", "10.0.0.2/24", "10.0.0.1", "fd00::1"] },
            { "name": "n/b", "ips": ["127.0.0.1", "169.254.1.1", "224.0.0.1", "255.255.255.255", "0.0.0.0", "::1", "fe80::1",
                "ff02::1", "::", "::ffff:10.0.0.1", "x", "", "10.0.0.3"] },
        ]);
        let pod = reduced(&status.to_string(), "Running");
        let found: Vec<_> = pod.addresses.iter().map(|(network, ip)| format!("{network} {ip}")).collect();
        assert_eq!(found, ["n/a 10.0.0.1", "n/a 10.0.0.2", "n/a fd00::1", "n/b 10.0.0.3"]);
        let ports: Vec<_> = pod.ports.iter().map(|(name, _, number)| (name.as_str(), *number)).collect();
        assert_eq!(ports, [("http", 8080), ("admin", 15000)]);
        assert!(pod.ready && !pod.terminating);
    }

    #[test]
    fn a_pod_that_is_over_or_has_no_readable_status_lists_nothing() {
        let status = json!([{ "name": "n/a", "ips": ["10.0.0.1"] }]).to_string();
        for (annotation, phase) in
            [(status.as_str(), "Succeeded"), (&status, "Failed"), ("[{", "Running"), ("", "Running")]
        {
            let pod = reduced(annotation, phase);
            assert!(pod.addresses.is_empty() && pod.labels.is_empty(), "{annotation} {phase}");
        }
    }

    #[test]
    fn a_pod_lists_a_bounded_number_of_addresses() {
        let ips: Vec<_> = (0..1000).map(|n| format!("10.0.{}.{}", n / 256, n % 256)).collect();
        let pod = reduced(&json!([{ "name": "n/a", "ips": ips }]).to_string(), "Running");
        assert_eq!(pod.addresses.len(), ADDRESSES_MAX);
    }

    #[test]
    fn a_service_without_the_annotation_or_on_its_way_out_asks_nothing() {
        let reduce = |metadata: Value| {
            let object =
                json!({ "metadata": metadata, "spec": { "clusterIP": "None", "ports": [{ "port": 80 }] } });
            serde_json::from_value::<ServiceObject>(object).unwrap().reduce()
        };
        assert_eq!(reduce(json!({ "name": "s" })).wish, None);
        let asks = json!({ "name": "s", "annotations": { SERVICE_NETWORK: "a" } });
        assert_eq!(reduce(asks.clone()).wish.unwrap().spec.ports[0].port, 80);
        let mut leaves = asks;
        leaves["deletionTimestamp"] = json!("2024-01-01T00:00:00Z");
        assert_eq!(reduce(leaves).wish, None);
    }
}
