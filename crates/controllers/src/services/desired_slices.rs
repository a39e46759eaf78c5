//! What a Service should list: addresses of its pods on the networks that it names, by family and by ports.
//!
//! Rules, those of Kubernetes' own controller where it has one:
//! - an address is `serving` while its pod is ready, `terminating` while it is deleted, and `ready` if it serves and does not end,
//!   or if the Service publishes what is not ready;
//! - a port's target that has a name is looked for in each pod: pods that mean different numbers are in different groups, and
//!   one that has no such port is there without it;
//! - a pod whose `subdomain` is the Service has its `hostname`: a name of its own in DNS;
//! - what cannot be read, or would be listed by Kubernetes beside us, is refused with the key, its value and the cure: nothing is
//!   listed then.
//!
//! A pod of the Service's own namespace alone is looked at, and only networks that it has: who may attach to a network of another
//! namespace was decided when the pod was attached.
//!
//! Source: Kubernetes `pkg/controller/endpointslice`, `pkg/controller/util/endpoint`; the DNS specification, records for headless
//! Services.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use npwg::metadata::{NetworkReference, definition_name_fault, label_fault};
use serde_json::Value;
use thiserror::Error;

use crate::services::service_objects::{
    Backend, Conditions, Endpoint, Port, SERVICE_NETWORK, SERVICE_SELECTOR, Service, ServicePort, Target,
    Wish,
};

/// Most networks of a Service.
const NETWORKS_MAX: usize = 32;
/// Most labels that a selector names.
const LABELS_MAX: usize = 64;
/// Longest value that a refusal repeats, in bytes.
const SHOWN_MAX: usize = 100;

/// Addresses of one family that have the same ports: they may share slices.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Group {
    /// `IPv4` or `IPv6`.
    pub(crate) family: &'static str,
    /// In order.
    pub(crate) ports: Vec<Port>,
    /// By name of their pod.
    pub(crate) endpoints: Vec<Endpoint>,
}

/// Reason why a Service lists nothing: a sentence for its owner.
#[derive(Debug, Error)]
pub(crate) enum ServiceError {
    /// The Service is a name, without addresses.
    #[error(
        "{SERVICE_NETWORK}: spec.type ExternalName is a name and has no addresses: leave out the type, and set \
         spec.clusterIP: None"
    )]
    ExternalName,
    /// The Service has an address of its own.
    #[error(
        "{SERVICE_NETWORK}: spec.clusterIP is {}: addresses of further networks are listed for headless Services alone: \
         make it anew with spec.clusterIP: None",
        shown(.0)
    )]
    NotHeadless(String),
    /// Kubernetes lists the addresses of the default network for it.
    #[error(
        "{SERVICE_NETWORK}: spec.selector has {key}={value}: Kubernetes lists the default network's addresses for it, \
         and leaves them there when it is taken out: make the Service anew, with the annotation {SERVICE_SELECTOR} instead"
    )]
    Selector {
        /// The first label of the selector.
        key: String,
        /// Its value.
        value: String,
    },
    /// An item of the networks names no network.
    #[error("{SERVICE_NETWORK}: {}: {fault}: it is NAME or NAMESPACE/NAME, or several with commas", shown(.item))]
    Network {
        /// The item.
        item: String,
        /// The fault of the name.
        fault: String,
    },
    /// There are too many networks.
    #[error("{SERVICE_NETWORK}: more than {NETWORKS_MAX} networks")]
    TooManyNetworks,
    /// The pods are not selected.
    #[error("{SERVICE_SELECTOR} is missing: it says which pods, as KEY=VALUE, or several with commas")]
    NoLabels,
    /// An item of the labels is no label.
    #[error("{SERVICE_SELECTOR}: {}: {fault}: it is KEY=VALUE, or several with commas", shown(.item))]
    Label {
        /// The item.
        item: String,
        /// The fault of the label.
        fault: &'static str,
    },
    /// There are too many labels.
    #[error("{SERVICE_SELECTOR}: more than {LABELS_MAX} labels")]
    TooManyLabels,
}

/// What a Service should list, of the pods of its namespace.
///
/// # Errors
/// A sentence for its owner.
pub(crate) fn groups(
    service: &Service,
    wish: &Wish,
    pods: &[Arc<Backend>],
) -> Result<Vec<Group>, ServiceError> {
    is_headless(wish)?;
    let networks = networks(service, &wish.networks)?;
    let selector = selector(wish)?;
    let families = families(&wish.spec.ip_families);
    let mut groups: BTreeMap<(&str, Vec<Port>), Vec<Endpoint>> = BTreeMap::new();
    for pod in pods.iter().filter(|pod| fits(&selector, pod)) {
        let ports = ports(&wish.spec.ports, pod);
        for (network, address) in &pod.addresses {
            let family = if address.is_ipv4() { "IPv4" } else { "IPv6" };
            if networks.contains(network) && families.contains(&family) {
                let endpoint = endpoint(service, wish, pod, *address);
                groups.entry((family, ports.clone())).or_default().push(endpoint);
            }
        }
    }
    let groups = groups.into_iter().map(|((family, ports), mut endpoints)| {
        // Of two networks that have the same address it is one.
        let mut seen = BTreeSet::new();
        endpoints.retain(|endpoint| seen.insert(identity(endpoint)));
        endpoints.sort_by(|one, other| name(one).cmp(&name(other)));
        Group { family, ports, endpoints }
    });
    Ok(groups.collect())
}

/// What an endpoint is known by.
pub(crate) fn identity(endpoint: &Endpoint) -> (String, String) {
    (endpoint.target_ref.uid.clone(), endpoint.addresses.first().cloned().unwrap_or_default())
}

fn name(endpoint: &Endpoint) -> (&str, Option<&String>) {
    (&endpoint.target_ref.name, endpoint.addresses.first())
}

fn fits(selector: &BTreeMap<&str, &str>, pod: &Backend) -> bool {
    selector.iter().all(|(key, value)| pod.labels.get(*key).is_some_and(|has| has == value))
}

fn families(asked: &[String]) -> Vec<&'static str> {
    let known = ["IPv4", "IPv6"].into_iter();
    known.filter(|family| asked.is_empty() || asked.iter().any(|one| one == family)).collect()
}

fn endpoint(service: &Service, wish: &Wish, pod: &Backend, address: IpAddr) -> Endpoint {
    let serving = pod.ready;
    let ready = wish.spec.publish_not_ready_addresses || (serving && !pod.terminating);
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

/// The ports of a pod behind those of the Service, in order.
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

/// Refuses what Kubernetes lists by itself, or gives an address of its own that nothing would forward.
fn is_headless(wish: &Wish) -> Result<(), ServiceError> {
    let spec = &wish.spec;
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

/// The networks, as a network-status names them.
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

/// The labels that a pod has to have, as in `spec.selector` of a Service.
fn selector(wish: &Wish) -> Result<BTreeMap<&str, &str>, ServiceError> {
    let refused = |item: &str, fault| ServiceError::Label { item: item.to_owned(), fault };
    let Some(text) = &wish.selector else {
        return Err(ServiceError::NoLabels);
    };
    let mut labels = BTreeMap::new();
    for item in text.split(',').map(str::trim) {
        let (key, value) = item.split_once('=').ok_or_else(|| refused(item, "has no ="))?;
        let (key, value) = (key.trim(), value.trim());
        let legal = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
        if key.is_empty() || !key.chars().chain(value.chars()).all(legal) {
            return Err(refused(item, "is no label"));
        }
        if labels.insert(key, value).is_some_and(|before| before != value) {
            return Err(refused(item, "no pod has a label twice"));
        }
        if labels.len() > LABELS_MAX {
            return Err(ServiceError::TooManyLabels);
        }
    }
    Ok(labels)
}

/// A value as a refusal repeats it.
fn shown(text: &str) -> String {
    let mut end = text.len().min(SHOWN_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{:?}", &text[..end])
}

#[cfg(test)]
mod tests;
