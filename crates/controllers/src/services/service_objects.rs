//! Services, pods and EndpointSlices, reduced to the fields that the Services controller uses.
//!
//! - From a Service without the annotation, and from a pod without a network-status, little more than the
//!   name is kept.
//! - A network-status is untrusted: every user that can change the pod can write it. The number of addresses
//!   is limited, and addresses that the API server would reject are dropped, because one such address makes
//!   it reject the whole slice.
//!
//! Source: Service v1, Pod v1, EndpointSlice `discovery.k8s.io/v1`; multi-network specification (NPWG),
//! section 5 (network-status).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use npwg::status::{Entry, NETWORK_NAME_MAX, NETWORK_STATUS};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use kube_support::resource;
use kube_support::resources::{Container, Reduced, all_named_ports};

/// Annotation on a Service: networks whose addresses are published, as in multus-service.
pub(crate) const SERVICE_NETWORK: &str = "k8s.v1.cni.cncf.io/service-network";
/// Annotation on a Service with the pod labels. With `spec.selector` Kubernetes would publish the default network's
/// addresses.
pub(crate) const SERVICE_SELECTOR: &str = "weft.dev/service-selector";
/// Label on a slice: the Service's name.
pub(crate) const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// Label on a slice: controller that manages it.
pub(crate) const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
/// Value that [`MANAGED_BY`] has for this controller.
pub(crate) const MANAGER: &str = "weft-controller-services";
/// Maximum number of addresses for one pod.
const ADDRESSES_MAX: usize = 64;

/// Service, reduced to the fields that are used.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Service {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    /// Request on the Service; none without the annotation, or while it is being deleted.
    pub(crate) request: Option<NetworkRequest>,
}

/// Request on a Service: the networks whose addresses to publish.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct NetworkRequest {
    /// Value in the annotation [`SERVICE_NETWORK`].
    pub(crate) networks: String,
    /// Value in the annotation [`SERVICE_SELECTOR`].
    pub(crate) selector: Option<String>,
    pub(crate) spec: ServiceSpec,
}

/// Service spec, reduced to the fields that are used.
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

/// Port on a Service.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ServicePort {
    pub(crate) name: String,
    pub(crate) port: u16,
    pub(crate) protocol: String,
    pub(crate) app_protocol: Option<String>,
    /// Number, or name that a container's port has.
    pub(crate) target_port: Value,
}

/// Pod, reduced to the fields that are used.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Backend {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) labels: BTreeMap<String, String>,
    /// Network and address, in network-status order; empty if the pod has ended.
    pub(crate) addresses: Vec<(String, IpAddr)>,
    pub(crate) node: String,
    pub(crate) hostname: String,
    pub(crate) subdomain: String,
    pub(crate) ready: bool,
    pub(crate) terminating: bool,
    /// Named container ports: name, protocol, number.
    pub(crate) ports: Vec<(String, String, u16)>,
}

/// Service as the API returns it.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct ServiceObject {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: Value,
}

/// Pod as the API returns it.
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
        let request = networks.map(|networks| NetworkRequest {
            networks,
            selector: annotation(SERVICE_SELECTOR),
            // The API server has validated it.
            spec: serde_json::from_value(spec).unwrap_or_default(),
        });
        Service {
            namespace: metadata.namespace.unwrap_or_default(),
            name: metadata.name.unwrap_or_default(),
            uid: metadata.uid.unwrap_or_default(),
            request,
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
        let ports = all_named_ports(spec.containers, spec.init_containers);
        Backend {
            labels: metadata.labels.unwrap_or_default(),
            addresses,
            node: spec.node_name,
            hostname: spec.hostname,
            subdomain: spec.subdomain,
            ready: status.conditions.iter().any(|one| one.kind == "Ready" && one.status == "True"),
            terminating: metadata.deletion_timestamp.is_some(),
            ports: ports.map(|(name, protocol, number)| (name, protocol.word().to_owned(), number)).collect(),
            ..identity
        }
    }
}

/// Returns the addresses on every network in a network-status that can be published, each once.
fn addresses(status: &str) -> Vec<(String, IpAddr)> {
    let entries: Vec<Entry> = serde_json::from_str(status).unwrap_or_default();
    let mut seen = BTreeSet::new();
    let is_valid = |entry: &Entry| entry.name.len() <= NETWORK_NAME_MAX;
    let all = entries.into_iter().filter(is_valid).flat_map(|entry| {
        let Entry { name, ips, .. } = entry;
        ips.into_iter().map(move |ip| (name.clone(), ip))
    });
    all.filter_map(|(network, text)| Some((network, address(&text)?)))
        .filter(|found| seen.insert(found.clone()))
        .take(ADDRESSES_MAX)
        .collect()
}

/// Parses an address with or without a prefix length, if an EndpointSlice may contain it.
fn address(text: &str) -> Option<IpAddr> {
    let bare = text.split_once('/').map_or(text, |(bare, _)| bare);
    bare.parse().ok().filter(|ip: &IpAddr| match ip {
        IpAddr::V4(ip) => !(ip.is_link_local() || ip.is_broadcast()),
        IpAddr::V6(ip) => !ip.is_unicast_link_local() && ip.to_ipv4_mapped().is_none(),
    } && !(ip.is_unspecified() || ip.is_loopback() || ip.is_multicast()))
}

/// EndpointSlice in `discovery.k8s.io/v1beta1` or `v1`.
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

/// EndpointSlice, reduced to the fields that are used.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Slice {
    /// Name, labels and owner; on an existing slice also uid and resource version.
    pub(crate) metadata: ObjectMeta,
    /// `IPv4` or `IPv6`.
    pub(crate) family: String,
    pub(crate) endpoints: Vec<Endpoint>,
    pub(crate) ports: Vec<Port>,
}

impl Slice {
    /// Returns a label's value.
    pub(crate) fn label(&self, key: &str) -> Option<&str> {
        self.metadata.labels.as_ref()?.get(key).map(String::as_str)
    }
}

/// Endpoint in a slice.
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

/// Conditions on an endpoint.
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

/// Pod behind an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Target {
    pub(crate) kind: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
}

/// Port that all endpoints in a slice have.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Port {
    pub(crate) name: String,
    pub(crate) protocol: String,
    /// Port number. The API server does not limit it, so a manually written slice may have any.
    pub(crate) port: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) app_protocol: Option<String>,
}

/// Reads a list for which the API server may have written `null`.
fn or_none<'de, D, T>(reader: D) -> Result<Vec<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de>,
{
    Option::deserialize(reader).map(Option::unwrap_or_default)
}

impl<const BETA: bool> SliceObject<BETA> {
    /// Returns the object for a slice.
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

    /// Returns the reduced form.
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
                { "containerPort": 9 }, { "name": "none", "containerPort": 0 }, { "name": "dns", "containerPort": 53 }] },
                { "ports": [{ "name": "dns", "protocol": "UDP", "containerPort": 54 }] }], "initContainers": [
                { "ports": [{ "name": "admin", "protocol": "TCP", "containerPort": 15000 }], "restartPolicy": "Always" },
                { "ports": [{ "name": "first", "protocol": "TCP", "containerPort": 7 }] }] },
            "status": { "phase": phase, "conditions": [{ "type": "Ready", "status": "True" }] },
        });
        serde_json::from_value::<BackendObject>(object).unwrap().reduce()
    }

    #[test]
    fn service_addresses_of_network_status_are_valid_and_unique() {
        let status = json!([
            { "name": "n/a", "ips": ["10.0.0.1", "10.0.0.2/24", "10.0.0.1", "fd00::1"] },
            { "name": "n/b", "ips": ["127.0.0.1", "169.254.1.1", "224.0.0.1", "255.255.255.255", "0.0.0.0", "::1", "fe80::1",
                "ff02::1", "::", "::ffff:10.0.0.1", "x", "", "10.0.0.3"] },
        ]);
        let pod = reduced(&status.to_string(), "Running");
        let found: Vec<_> = pod.addresses.iter().map(|(network, ip)| format!("{network} {ip}")).collect();
        assert_eq!(found, ["n/a 10.0.0.1", "n/a 10.0.0.2", "n/a fd00::1", "n/b 10.0.0.3"]);
        let ports = pod.ports.iter().map(|(name, protocol, number)| format!("{name} {protocol} {number}"));
        assert_eq!(
            ports.collect::<Vec<_>>(),
            ["http TCP 8080", "dns TCP 53", "dns UDP 54", "admin TCP 15000"]
        );
        assert!(pod.ready && !pod.terminating);
    }

    #[test]
    fn service_pod_ended_or_with_invalid_status_has_no_addresses() {
        let status = json!([{ "name": "n/a", "ips": ["10.0.0.1"] }]).to_string();
        for (annotation, phase) in
            [(status.as_str(), "Succeeded"), (&status, "Failed"), ("[{", "Running"), ("", "Running")]
        {
            let pod = reduced(annotation, phase);
            assert!(pod.addresses.is_empty() && pod.labels.is_empty(), "{annotation} {phase}");
        }
    }

    #[test]
    fn service_addresses_of_a_pod_are_limited() {
        let ips: Vec<_> = (0..1000).map(|n| format!("10.0.{}.{}", n / 256, n % 256)).collect();
        let pod = reduced(&json!([{ "name": "n/a", "ips": ips }]).to_string(), "Running");
        assert_eq!(pod.addresses.len(), ADDRESSES_MAX);
        // Each address keeps the name of its network.
        let long = "n".repeat(NETWORK_NAME_MAX + 1);
        let pod = reduced(&json!([{ "name": long, "ips": ips }]).to_string(), "Running");
        assert!(pod.addresses.is_empty());
    }

    #[test]
    fn service_deleted_or_without_annotation_requests_nothing() {
        let reduce = |metadata: Value| {
            let object =
                json!({ "metadata": metadata, "spec": { "clusterIP": "None", "ports": [{ "port": 80 }] } });
            serde_json::from_value::<ServiceObject>(object).unwrap().reduce()
        };
        assert_eq!(reduce(json!({ "name": "s" })).request, None);
        let annotated = json!({ "name": "s", "annotations": { SERVICE_NETWORK: "a" } });
        assert_eq!(reduce(annotated.clone()).request.unwrap().spec.ports[0].port, 80);
        let mut deleted = annotated;
        deleted["deletionTimestamp"] = json!("2024-01-01T00:00:00Z");
        assert_eq!(reduce(deleted).request, None);
    }
}
