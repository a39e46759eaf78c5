//! Kubernetes objects, reduced to the fields that planning uses.
//!
//! The caller fills them in from an informer's cache or a manifest file. All values are untrusted and not
//! validated.
//!
//! Source: Kubernetes API reference, Pod v1; multi-network specification, 3.1–3.3.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::protocol::Protocol;
use crate::refusal::quote;

/// Namespace for an object that names none.
pub const DEFAULT_NAMESPACE: &str = "default";

/// Labels on an object.
pub type Labels = BTreeMap<String, String>;

/// Namespace and name that identify a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodIdentity {
    /// Namespace that the pod is in.
    pub namespace: String,
    /// Pod name.
    pub name: String,
    /// Uid; empty if unknown.
    pub uid: String,
}

/// Pod, as planning sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Pod {
    /// Namespace that the pod is in.
    pub namespace: String,
    /// Pod name.
    pub name: String,
    /// Uid; empty in manifest files.
    pub uid: String,
    /// Labels, which policies select by.
    pub labels: BTreeMap<String, String>,
    /// Annotations, among them the network selection.
    pub annotations: BTreeMap<String, String>,
    /// `spec.hostNetwork`: such a pod uses the host network and has no network namespace.
    pub host_network: bool,
    /// `spec.serviceAccountName`, which access policies can require.
    pub service_account_name: String,
    /// `spec.nodeName`; empty before the pod is scheduled.
    pub node_name: String,
    /// Controller that created the pod, according to the owner reference; none in manifest files.
    pub controller: Option<PodController>,
    /// ResourceClaim names in `spec` order; empty in manifest files, where they are unknown.
    pub resource_claims: Vec<String>,
    /// `status.podIPs` while the pod runs; empty before, afterwards and in manifest files.
    pub addresses: Vec<String>,
    /// Ports that containers declare with a name, by that name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub named_ports: BTreeMap<String, (Protocol, u16)>,
    /// Whether only the container runtime describes the pod, with a name and annotations; all else is
    /// unknown.
    #[serde(rename = "hearsay")]
    pub described_by_runtime: bool,
}

/// A pod's owner reference with `controller: true`. It can be forged: everybody who may create pods in the
/// namespace can write any reference.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodController {
    /// The owner's API version.
    pub api_version: String,
    /// The owner's kind.
    pub kind: String,
    /// The owner's name, in the pod's namespace.
    pub name: String,
    /// The owner's uid.
    pub uid: String,
}

/// Field in `args.cni` that names the virtual machine which the pod runs, for weft's IPAM plugins.
pub const VIRTUAL_MACHINE: &str = "weft.dev/virtual-machine";

impl PodController {
    /// Whether the owner is a running KubeVirt virtual machine.
    pub fn is_virtual_machine(&self) -> bool {
        self.kind == "VirtualMachineInstance" && self.api_version.starts_with("kubevirt.io/")
    }
}

/// NetworkAttachmentDefinition, as planning sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Definition {
    /// Namespace that the definition is in.
    pub namespace: String,
    /// Definition name.
    pub name: String,
    /// Annotations, for example the resource name.
    pub annotations: BTreeMap<String, String>,
    /// CNI configuration as written.
    pub config: SpecConfig,
}

/// `spec.config` as written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SpecConfig {
    /// The field is absent or `null`.
    #[default]
    Absent,
    /// A string, as the schema requires.
    Text(String),
    /// Another type, as JSON. The API server rejects such an object; a file can contain one.
    Structured(String),
}

/// Annotation on a definition that names the device-plugin resource for each attachment.
pub const RESOURCE_NAME: &str = "k8s.v1.cni.cncf.io/resourceName";

/// Annotation on a definition without a fixed resource: the resources that a pod may request for an
/// attachment, separated by commas. Without it a pod may request any resource that is allocated to it.
pub const ALLOWED_RESOURCE_NAMES: &str = "k8s.v1.cni.cncf.io/allowedResourceNames";

impl Definition {
    /// Returns namespace and name.
    pub fn reference(&self) -> NetworkReference {
        NetworkReference::new(&self.namespace, &self.name)
    }

    /// Returns the device-plugin resource that each attachment uses, if any.
    pub fn resource(&self) -> Option<&str> {
        self.annotations.get(RESOURCE_NAME).map(String::as_str).filter(|name| !name.is_empty())
    }

    /// Returns the resources that a pod may request for an attachment; `None` if they are not limited.
    pub fn allowed_resources(&self) -> Option<Vec<&str>> {
        let list = self.annotations.get(ALLOWED_RESOURCE_NAMES)?;
        Some(list.split(',').map(str::trim).filter(|name| !name.is_empty()).collect())
    }
}

/// A definition's namespace and name: `namespace/name`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NetworkReference {
    /// Namespace that the definition is in.
    pub namespace: String,
    /// Definition name.
    pub name: String,
}

impl NetworkReference {
    /// Returns a reference; neither part is validated.
    pub fn new(namespace: &str, name: &str) -> NetworkReference {
        NetworkReference { namespace: namespace.to_owned(), name: name.to_owned() }
    }
}

impl fmt::Display for NetworkReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Where definitions come from: an informer's cache, a manifest directory or a map.
///
/// Planning only looks up definitions that [`crate::plan::wanted`] lists, so a caller can fetch them first.
pub trait Definitions {
    /// Returns the definition with this name, if it exists.
    fn find(&self, network: &NetworkReference) -> Option<&Definition>;
}

impl Definitions for BTreeMap<NetworkReference, Definition> {
    fn find(&self, network: &NetworkReference) -> Option<&Definition> {
        self.get(network)
    }
}

/// Returns why `text` is not a DNS-1123 label (63 characters from `a-z0-9-`, no `-` at either end), or
/// `None`.
pub fn label_fault(text: &str) -> Option<String> {
    if text.is_empty() {
        return Some("is empty".to_owned());
    }
    if text.len() > 63 {
        return Some("is longer than 63 characters".to_owned());
    }
    let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if let Some(wrong) = text.chars().find(|c| !legal(*c)) {
        return Some(format!("contains {}: only a-z, 0-9 and - are allowed", quote(&wrong.to_string())));
    }
    if text.starts_with('-') || text.ends_with('-') {
        return Some("starts or ends with -".to_owned());
    }
    None
}

/// Returns why `text` cannot name a definition (DNS-1123 labels separated by dots, 253 characters), or
/// `None`.
///
/// The specification requires a single label; the API server and weft also accept dots (C18).
pub fn definition_name_fault(text: &str) -> Option<String> {
    if text.len() > 253 {
        return Some("is longer than 253 characters".to_owned());
    }
    text.split('.').find_map(label_fault)
}

/// Returns why `text` cannot name an extended resource (`domain/name`), or `None`.
pub(crate) fn resource_fault(text: &str) -> Option<String> {
    let (domain, name) = match text.split_once('/') {
        Some(parts) => parts,
        None => return Some("has no domain: write domain/name".to_owned()),
    };
    if let Some(fault) = definition_name_fault(domain) {
        return Some(format!("the domain {fault}"));
    }
    let inner = |c: char| c.is_ascii_alphanumeric() || ['-', '_', '.'].contains(&c);
    let ends = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    let good = name.len() <= 63 && name.chars().all(inner);
    let good = good && ends(name.chars().next()) && ends(name.chars().next_back());
    (!good).then(|| {
        "the name after / is not up to 63 letters, digits and -_. between two of the first".to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resource_name_has_a_domain_and_a_qualified_name() {
        for good in ["example.com/vf", "bridge.network.kubevirt.io/br1", "a/B_c.d-1", "nvidia.com/asap2_vf"] {
            assert_eq!(resource_fault(good), None, "{good}");
        }
        for bad in
            ["", "vf", "/vf", "a/", "A/b", "a/b/c", "a/-b", "a/b-", "a/b c", &format!("a/{}", "x".repeat(64))]
        {
            assert!(resource_fault(bad).is_some(), "{bad:?}");
        }
    }

    // Requirements: NPWG1-3.3-1
    #[test]
    fn definition_name_is_a_dns_1123_label() {
        for good in ["a", "1a", "attachment-name", "example-namespace", "0", &"x".repeat(63)] {
            assert_eq!(label_fault(good), None, "{good}");
            assert_eq!(definition_name_fault(good), None, "{good}");
        }
        for bad in ["", "A", "-a", "a-", "a_b", "a b", "ä", "a/b", "a\0", &"x".repeat(64)] {
            assert!(label_fault(bad).is_some(), "{bad:?}");
            assert!(definition_name_fault(bad).is_some(), "{bad:?}");
        }
    }

    // Requirements: conflict C18
    #[test]
    fn definition_name_can_have_dots_and_a_namespace_cannot() {
        assert_eq!(definition_name_fault("net.v2.example"), None);
        assert!(label_fault("net.v2").is_some());
        for bad in ["a..b", ".a", "a.", "..", "a.-b"] {
            assert!(definition_name_fault(bad).is_some(), "{bad:?}");
        }
    }

    #[test]
    fn resource_name_empty_counts_as_absent() {
        let mut definition = Definition::default();
        definition.annotations.insert(RESOURCE_NAME.to_owned(), String::new());
        assert_eq!(definition.resource(), None);
        definition.annotations.insert(RESOURCE_NAME.to_owned(), "intel.com/sriov".to_owned());
        assert_eq!(definition.resource(), Some("intel.com/sriov"));
    }
}
