//! The Kubernetes objects we look at, reduced to what we look at.
//!
//! These are shapes, not API types: whoever holds the real objects (an informer, a manifest file)
//! fills them in. Nothing in them has been checked; they are as hostile as their authors.
//!
//! Source: Kubernetes API reference, Pod v1; the standard, 3.1–3.3.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::refusal::quote;

/// Identity of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodIdentity {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid; empty if unknown.
    pub uid: String,
}

/// A pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Pod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid; empty where nobody gave one (manifest files).
    pub uid: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its annotations.
    pub annotations: BTreeMap<String, String>,
    /// `spec.hostNetwork`: such a pod has no sandbox of its own.
    pub host_network: bool,
    /// `spec.serviceAccountName`.
    pub service_account_name: String,
    /// `spec.nodeName`.
    pub node_name: String,
    /// The ResourceClaims it has, by name, in the order of its `spec`; unknown (empty) in manifest files.
    pub resource_claims: Vec<String>,
    /// `status.podIPs` while it runs; empty before and after, and in manifest files.
    pub addresses: Vec<String>,
    /// Is it known by the runtime's word alone, which has its annotations and nothing else?
    pub hearsay: bool,
}

/// A NetworkAttachmentDefinition.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Definition {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its annotations.
    pub annotations: BTreeMap<String, String>,
    /// `spec.config` as written.
    pub config: SpecConfig,
}

/// `spec.config` as written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SpecConfig {
    /// No such key, or `null`.
    #[default]
    Absent,
    /// A text, as the schema demands.
    Text(String),
    /// Something else, as JSON. The API server takes no such object; a file can hold one.
    Structured(String),
}

/// The annotation of a definition that names the device-plugin resource its attachments consume.
pub const RESOURCE_NAME: &str = "k8s.v1.cni.cncf.io/resourceName";

impl Definition {
    /// Its namespace and name.
    pub fn reference(&self) -> NetworkReference {
        NetworkReference::new(&self.namespace, &self.name)
    }

    /// The device-plugin resource each attachment consumes, if any.
    pub fn resource(&self) -> Option<&str> {
        self.annotations.get(RESOURCE_NAME).map(String::as_str).filter(|name| !name.is_empty())
    }
}

/// A definition's namespace and name: `namespace/name`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NetworkReference {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
}

impl NetworkReference {
    /// Both parts, unchecked.
    pub fn new(namespace: &str, name: &str) -> NetworkReference {
        NetworkReference { namespace: namespace.to_owned(), name: name.to_owned() }
    }
}

impl fmt::Display for NetworkReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// How something finds definitions: an informer's cache, a directory of manifests, a map.
///
/// It is asked only for what [`crate::plan::wanted`] lists, so a caller may fetch first and plan then.
pub trait Definitions {
    /// The definition of this name, if there is one.
    fn find(&self, network: &NetworkReference) -> Option<&Definition>;
}

impl Definitions for BTreeMap<NetworkReference, Definition> {
    fn find(&self, network: &NetworkReference) -> Option<&Definition> {
        self.get(network)
    }
}

/// Why `text` is no DNS-1123 label (63 characters of `a-z0-9-`, no `-` at either end), or `None`.
pub fn label_fault(text: &str) -> Option<String> {
    if text.is_empty() {
        return Some("is empty".to_owned());
    }
    if text.len() > 63 {
        return Some("is longer than 63 characters".to_owned());
    }
    let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if let Some(wrong) = text.chars().find(|c| !legal(*c)) {
        return Some(format!("holds {}: only a-z, 0-9 and - may be used", quote(&wrong.to_string())));
    }
    if text.starts_with('-') || text.ends_with('-') {
        return Some("starts or ends with -".to_owned());
    }
    None
}

/// Why `text` cannot name a definition (labels with dots between them, 253 characters), or `None`.
///
/// The standard asks for labels, the API server also admits dots between them: so do we (C18).
pub fn definition_name_fault(text: &str) -> Option<String> {
    if text.len() > 253 {
        return Some("is longer than 253 characters".to_owned());
    }
    text.split('.').find_map(label_fault)
}

#[cfg(test)]
mod tests {
    use super::*;

    // Requirements: NPWG1-3.3-1
    #[test]
    fn names_are_dns_1123_labels() {
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
    fn a_definition_may_have_dots_in_its_name_and_a_namespace_may_not() {
        assert_eq!(definition_name_fault("net.v2.example"), None);
        assert!(label_fault("net.v2").is_some());
        for bad in ["a..b", ".a", "a.", "..", "a.-b"] {
            assert!(definition_name_fault(bad).is_some(), "{bad:?}");
        }
    }

    #[test]
    fn an_empty_resource_name_is_none() {
        let mut definition = Definition::default();
        definition.annotations.insert(RESOURCE_NAME.to_owned(), String::new());
        assert_eq!(definition.resource(), None);
        definition.annotations.insert(RESOURCE_NAME.to_owned(), "intel.com/sriov".to_owned());
        assert_eq!(definition.resource(), Some("intel.com/sriov"));
    }
}
