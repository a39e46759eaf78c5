//! Desired endpoints for a Service: the pod addresses on the selected networks, grouped by family and ports.
//!
//! Kubernetes' own controller has the same rules where it has any:
//! - An address is `serving` while its pod is ready, and `terminating` while the pod is being deleted. It is
//!   `ready` if it serves and does not terminate, or if the Service publishes addresses that are not ready.
//! - A named target port is resolved for each pod. Pods with different numbers are in different groups. A pod
//!   without the port is listed without it.
//! - If a pod's `subdomain` is the Service, the endpoint gets the pod's `hostname`, which is a separate DNS name.
//! - An invalid request, or one for a Service whose endpoints Kubernetes publishes itself, is refused with
//!   the key, the value and the next step. Nothing is published then.
//!
//! Only pods in the Service's namespace count, and only networks that they are attached to. Access to a
//! network in another namespace was decided when the pod was attached.
//!
//! Source: Kubernetes `pkg/controller/endpointslice`, `pkg/controller/util/endpoint`; the DNS specification,
//! records for headless Services.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use npwg::metadata::{NetworkReference, definition_name_fault, label_fault};
use serde_json::Value;
use thiserror::Error;

use crate::services::service_objects::{
    Backend, Conditions, Endpoint, NetworkRequest, Port, SERVICE_NETWORK, SERVICE_SELECTOR, Service,
    ServicePort, Target,
};

/// Maximum number of networks for a Service.
const NETWORKS_MAX: usize = 32;
/// Maximum number of labels in a selector.
const LABELS_MAX: usize = 64;
/// Maximum number of endpoints for all Services in a namespace: about 8 MiB of EndpointSlices. A Service of 300 bytes would
/// otherwise become megabytes in etcd, once for each Service.
pub(crate) const ENDPOINTS_MAX: usize = 32_768;
/// Maximum length for a value in an error, in bytes.
const SHOWN_MAX: usize = 100;

/// Addresses in one family with the same ports, which may share slices.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Group {
    /// `IPv4` or `IPv6`.
    pub(crate) family: &'static str,
    /// Ports, sorted.
    pub(crate) ports: Vec<Port>,
    /// Endpoints, sorted by pod name.
    pub(crate) endpoints: Vec<Endpoint>,
}

/// Why a Service has no endpoints, for the Service's owner.
#[derive(Debug, Error)]
pub(crate) enum ServiceError {
    /// The Service has the type ExternalName.
    #[error(
        "{SERVICE_NETWORK}: spec.type: ExternalName: such a Service has no addresses: remove spec.type and set \
         spec.clusterIP: None"
    )]
    ExternalName,
    /// The Service is not headless.
    #[error(
        "{SERVICE_NETWORK}: spec.clusterIP: {}: addresses of additional networks are published for headless Services only: \
         recreate the Service with spec.clusterIP: None",
        shown(.0)
    )]
    NotHeadless(String),
    /// Kubernetes publishes the default network's addresses for the Service.
    #[error(
        "{SERVICE_NETWORK}: spec.selector: {key}={value}: Kubernetes publishes the default network's addresses for a selector, \
         and keeps them when it is removed: recreate the Service with the annotation {SERVICE_SELECTOR} instead"
    )]
    Selector {
        /// First label in the selector.
        key: String,
        /// Label value.
        value: String,
    },
    /// An item does not name a network.
    #[error("{SERVICE_NETWORK}: {}: {fault}: use NAME or NAMESPACE/NAME, separated by commas", shown(.item))]
    Network {
        /// Item in the annotation.
        item: String,
        /// Reason why the name is invalid.
        fault: String,
    },
    /// There are too many networks.
    #[error("{SERVICE_NETWORK}: more than {NETWORKS_MAX} networks")]
    TooManyNetworks,
    /// The annotation that selects pods is missing.
    #[error(
        "{SERVICE_SELECTOR} is missing: set it to the labels of the pods: KEY=VALUE, separated by commas"
    )]
    NoLabels,
    /// An item is not a label.
    #[error("{SERVICE_SELECTOR}: {}: {fault}: use KEY=VALUE, separated by commas", shown(.item))]
    Label {
        /// Item in the annotation.
        item: String,
        /// Reason why the label is invalid.
        fault: &'static str,
    },
    /// The Services of the namespace have too many addresses together.
    #[error(
        "{SERVICE_NETWORK}: the Services of namespace {0} have more than {ENDPOINTS_MAX} addresses: select fewer pods or \
         networks, or delete a Service"
    )]
    TooManyAddresses(String),
    /// There are too many labels.
    #[error("{SERVICE_SELECTOR}: more than {LABELS_MAX} labels")]
    TooManyLabels,
}

/// Returns the desired endpoints for a Service, among the pods in the same namespace. `room` is the number of endpoints
/// that the namespace has left.
///
/// # Errors
/// Why the request is refused.
pub(crate) fn groups(
    service: &Service,
    request: &NetworkRequest,
    pods: &[Arc<Backend>],
    room: usize,
) -> Result<Vec<Group>, ServiceError> {
    is_headless(request)?;
    let networks = networks(service, &request.networks)?;
    let selector = selector(request)?;
    let families = families(&request.spec.ip_families);
    let mut groups: BTreeMap<(&str, Vec<Port>), Vec<Endpoint>> = BTreeMap::new();
    let mut count = 0;
    for pod in pods.iter().filter(|pod| fits(&selector, pod)) {
        let ports = ports(&request.spec.ports, pod);
        for (network, address) in &pod.addresses {
            let family = if address.is_ipv4() { "IPv4" } else { "IPv6" };
            if networks.contains(network) && families.contains(&family) {
                count += 1;
                if count > room {
                    return Err(ServiceError::TooManyAddresses(service.namespace.clone()));
                }
                let endpoint = endpoint(service, request, pod, *address);
                groups.entry((family, ports.clone())).or_default().push(endpoint);
            }
        }
    }
    let groups = groups.into_iter().map(|((family, ports), mut endpoints)| {
        // Two networks may have the same address in common.
        let mut seen = BTreeSet::new();
        endpoints.retain(|endpoint| seen.insert(identity(endpoint)));
        endpoints.sort_by(|one, other| name(one).cmp(&name(other)));
        Group { family, ports, endpoints }
    });
    Ok(groups.collect())
}

/// Returns what identifies an endpoint: pod uid and address.
pub(crate) fn identity(endpoint: &Endpoint) -> (String, String) {
    (endpoint.target_ref.uid.clone(), endpoint.addresses.first().cloned().unwrap_or_default())
}

fn name(endpoint: &Endpoint) -> (&str, Option<&String>) {
    (&endpoint.target_ref.name, endpoint.addresses.first())
}

fn fits(selector: &BTreeMap<&str, &str>, pod: &Backend) -> bool {
    selector.iter().all(|(key, value)| pod.labels.get(*key).is_some_and(|has| has == value))
}

fn families(requested: &[String]) -> Vec<&'static str> {
    let known = ["IPv4", "IPv6"].into_iter();
    known.filter(|family| requested.is_empty() || requested.iter().any(|one| one == family)).collect()
}

fn endpoint(service: &Service, request: &NetworkRequest, pod: &Backend, address: IpAddr) -> Endpoint {
    let serving = pod.ready;
    let ready = request.spec.publish_not_ready_addresses || (serving && !pod.terminating);
    let named = !pod.hostname.is_empty() && pod.subdomain == service.name;
    Endpoint {
        addresses: vec![address.to_string()],
        conditions: Conditions {
            ready: Some(ready),
            serving: Some(serving),
            terminating: Some(pod.terminating),
        },
        hostname: named.then(|| pod.hostname.clone()),
        node_name: Some(pod.node.clone()).filter(|node| !node.is_empty()),
        target_ref: Target {
            kind: "Pod".to_owned(),
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            uid: pod.uid.clone(),
        },
    }
}

/// Returns a pod's ports for the Service's ports, sorted.
fn ports(ports: &[ServicePort], pod: &Backend) -> Vec<Port> {
    let of_pod = |wanted: &ServicePort| {
        let protocol = if wanted.protocol.is_empty() { "TCP" } else { &wanted.protocol };
        let port = match &wanted.target_port {
            Value::String(name) => {
                let mut named = pod.ports.iter().filter(|(known, of, _)| known == name && of == protocol);
                named.next()?.2
            }
            number => match number.as_u64() {
                None | Some(0) => wanted.port,
                Some(number) => u16::try_from(number).ok()?,
            },
        };
        let (name, protocol) = (wanted.name.clone(), protocol.to_owned());
        Some(Port { name, protocol, port: port.into(), app_protocol: wanted.app_protocol.clone() })
    };
    let mut found: Vec<Port> = ports.iter().filter_map(of_pod).collect();
    found.sort();
    found
}

/// Refuses a Service whose endpoints Kubernetes publishes itself, or that has a cluster address to which nothing forwards.
fn is_headless(request: &NetworkRequest) -> Result<(), ServiceError> {
    let spec = &request.spec;
    if spec.kind == "ExternalName" {
        return Err(ServiceError::ExternalName);
    }
    if spec.cluster_ip != "None" {
        return Err(ServiceError::NotHeadless(spec.cluster_ip.clone()));
    }
    if let Some((key, value)) = spec.selector.first_key_value() {
        return Err(ServiceError::Selector { key: key.clone(), value: value.clone() });
    }
    Ok(())
}

/// Returns the selected networks, named as in a network-status.
fn networks(service: &Service, text: &str) -> Result<BTreeSet<String>, ServiceError> {
    let mut networks = BTreeSet::new();
    for item in text.split(',').map(str::trim) {
        let (namespace, name) = item.split_once('/').unwrap_or((&service.namespace, item));
        if let Some(fault) = label_fault(namespace).or_else(|| definition_name_fault(name)) {
            return Err(ServiceError::Network { item: item.to_owned(), fault });
        }
        networks.insert(NetworkReference::new(namespace, name).to_string());
        if networks.len() > NETWORKS_MAX {
            return Err(ServiceError::TooManyNetworks);
        }
    }
    Ok(networks)
}

/// Returns the labels that a pod must have, as in a Service's `spec.selector`.
fn selector(request: &NetworkRequest) -> Result<BTreeMap<&str, &str>, ServiceError> {
    let refused = |item: &str, fault| ServiceError::Label { item: item.to_owned(), fault };
    let Some(text) = &request.selector else {
        return Err(ServiceError::NoLabels);
    };
    let mut labels = BTreeMap::new();
    for item in text.split(',').map(str::trim) {
        let (key, value) = item.split_once('=').ok_or_else(|| refused(item, "has no ="))?;
        let (key, value) = (key.trim(), value.trim());
        let legal = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
        if key.is_empty() || !key.chars().chain(value.chars()).all(legal) {
            return Err(refused(item, "is not a label"));
        }
        if labels.insert(key, value).is_some_and(|before| before != value) {
            return Err(refused(item, "the label is given twice"));
        }
        if labels.len() > LABELS_MAX {
            return Err(ServiceError::TooManyLabels);
        }
    }
    Ok(labels)
}

/// Returns a value as an error quotes it, limited in length.
fn shown(text: &str) -> String {
    let mut end = text.len().min(SHOWN_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{:?}", &text[..end])
}

#[cfg(test)]
mod tests;
