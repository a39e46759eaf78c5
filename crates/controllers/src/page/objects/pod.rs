//! Pod: interfaces from the network-status, and selected networks that are missing there.

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_support::resource;
use kube_support::resources::Reduced;
use npwg::selection::Annotation;
use npwg::status::{Entry, MissingNetwork, NETWORK_STATUS, missing_networks};
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::rows::{Row, message, name};
use super::{identity, lenient};

/// Maximum number of interfaces in a pod, and of addresses on an interface.
const INTERFACES_MAX: usize = 32;
const ADDRESSES_MAX: usize = 16;

/// Pod as the API returns it.
#[derive(Clone, Debug, Deserialize)]
pub(in super::super) struct PodObject {
    metadata: ObjectMeta,
    #[serde(default, deserialize_with = "lenient")]
    spec: PodSpec,
    #[serde(default, deserialize_with = "lenient")]
    status: PodStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PodSpec {
    node_name: String,
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
    r#type: String,
    status: String,
}

/// State of a pod's networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NetworkState {
    /// The pod has every network that it selects.
    Attached,
    /// The pod has not started yet.
    Waiting,
    /// The pod runs without a network that it selects.
    Missing,
    /// The annotation is invalid.
    Invalid,
    /// The pod has ended.
    Ended,
}

/// Networks that a pod selects and does not have, or why the annotation is invalid.
struct Selected {
    missing: Vec<MissingNetwork>,
    fault: Option<String>,
}

// === impl NetworkState ===

impl NetworkState {
    fn of(phase: &str, selected: &Selected, has_status: bool) -> NetworkState {
        match phase {
            "Succeeded" | "Failed" => NetworkState::Ended,
            _ if selected.fault.is_some() => NetworkState::Invalid,
            "Pending" if !has_status => NetworkState::Waiting,
            _ if selected.missing.is_empty() => NetworkState::Attached,
            "Running" => NetworkState::Missing,
            _ => NetworkState::Waiting,
        }
    }

    fn text(self) -> &'static str {
        match self {
            NetworkState::Attached => "attached",
            NetworkState::Waiting => "waiting",
            NetworkState::Missing => "missing",
            NetworkState::Invalid => "invalid",
            NetworkState::Ended => "ended",
        }
    }
}

// === impl Selected ===

impl Selected {
    fn of(annotation: &str, namespace: &str, entries: &[Entry]) -> Selected {
        match missing_networks(annotation, namespace, entries) {
            Ok(mut missing) => {
                missing.truncate(INTERFACES_MAX);
                Selected { missing, fault: None }
            }
            Err(refusal) => {
                Selected { missing: Vec::new(), fault: Some(message(&refusal.fault().to_string())) }
            }
        }
    }
}

fn interface(entry: &Entry, namespace: &str) -> Value {
    let addresses: Vec<String> = entry.ips.iter().take(ADDRESSES_MAX).map(|ip| name(ip)).collect();
    let network = if entry.default || entry.name.contains('/') {
        name(&entry.name)
    } else {
        name(&format!("{namespace}/{}", entry.name))
    };
    json!([network, name(&entry.interface), addresses, name(&entry.mac), entry.mtu, entry.default])
}

impl Reduced for PodObject {
    type Form = Row;

    fn reduce(self) -> Row {
        let (namespace, pod) = identity(&self.metadata);
        let annotation = |key: &str| self.metadata.annotations.as_ref().and_then(|all| all.get(key));
        let (networks, status) = (annotation(Annotation::Networks.key()), annotation(NETWORK_STATUS));
        let phase = &self.status.phase;
        // A pod that waits on a node may wait for weft, also if it selects no network.
        let is_starting = phase == "Pending" && !self.spec.node_name.is_empty();
        if networks.is_none() && status.is_none() && !is_starting {
            return Row::default();
        }
        let read = |text: &String| serde_json::from_str::<Vec<Entry>>(text).ok();
        let entries = status.map(read);
        let is_unreadable = matches!(entries, Some(None));
        let mut entries = entries.flatten().unwrap_or_default();
        entries.truncate(INTERFACES_MAX);
        let mut selected = Selected::of(networks.map_or("", String::as_str), namespace, &entries);
        if is_unreadable && selected.fault.is_none() {
            selected.fault = Some(format!("annotation {NETWORK_STATUS}: it is not a list of interfaces"));
        }
        let is_ready = self.status.conditions.iter().any(|one| one.r#type == "Ready" && one.status == "True");
        Row::of(&json!({
            "k": [namespace, pod],
            "node": name(&self.spec.node_name),
            "phase": name(phase),
            "state": NetworkState::of(phase, &selected, status.is_some()).text(),
            "ready": is_ready,
            "if": entries.iter().map(|entry| interface(entry, namespace)).collect::<Vec<_>>(),
            "missing": selected.missing.iter().map(|one| name(&one.network)).collect::<Vec<_>>(),
            "wanted": selected.missing.iter().map(|one| name(&one.interface)).collect::<Vec<_>>(),
            "fault": selected.fault,
            "leaving": self.metadata.deletion_timestamp.is_some(),
        }))
    }
}

resource!(PodObject, NamespaceResourceScope, "Pod", "pods", "");
