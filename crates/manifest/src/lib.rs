//! Kubernetes objects from YAML or JSON files, with a source position for every value.
//!
//! The crate serves nodes without a cluster, the examples, and the linter. Reading continues after a problem,
//! and an object with a problem is read as far as possible. It reads Pod, NetworkAttachmentDefinition,
//! Namespace, MultiNetworkPolicy, lists of them, and the pod template in every workload. Other kinds are only
//! listed.
//!
//! The rules are the API server's: an object without a namespace is in `default`, annotations are strings,
//! and a definition's `spec.config` is a string. A map in its place is kept as [`SpecConfig::Structured`]:
//! the API server rejects it, and the linter can show the correct form.
//!
//! Source: Kubernetes API reference; multi-network specification, 3.1, 3.2 and 4.1.1.

#![forbid(unsafe_code)]

mod collection;
mod document;
mod indentation;
pub mod lint;
mod node;
mod object;
pub mod position;
mod source;
pub mod stream;
mod weight;

use npwg::metadata::{Definition, Pod};
use npwg::network_policy::NetworkPolicy;
use npwg::policy::Labels;
use npwg::refusal::{Fault, KeyPath};
use npwg::rule::Rule;

pub use collection::Collection;
pub use document::{DEPTH_MAX, NODES_MAX};
pub use node::{Key, Node, Value};
pub use npwg::metadata::DEFAULT_NAMESPACE;
pub use plugin_config::weft_ipam::{NetworkRange, network_ranges};
pub use source::{Position, Source, Span};

#[allow(unused_imports, reason = "the documentation refers to it")]
use npwg::metadata::SpecConfig;

/// Maximum file size, in bytes.
pub const MANIFEST_MAX: usize = 4 << 20;

/// Kind of content in a file.
#[derive(Clone, Debug, Default)]
pub struct Manifest {
    /// File text.
    pub source: Source,
    /// Pods, and pod templates in workloads.
    pub pods: Vec<Located<PodObject>>,
    /// NetworkAttachmentDefinitions.
    pub definitions: Vec<Located<Definition>>,
    /// Namespaces with labels.
    pub namespaces: Vec<Located<Namespace>>,
    /// MultiNetworkPolicies, valid or not.
    pub policies: Vec<Located<NetworkPolicy>>,
    /// Kinds that are not read, for example `Service`.
    pub others: Vec<Located<String>>,
    /// Problems in the file and the objects.
    pub problems: Vec<Problem>,
}

/// Namespace with the labels that selectors see.
#[derive(Clone, Debug)]
pub struct Namespace {
    /// Namespace name.
    pub name: String,
    /// Labels, which access policies use.
    pub labels: Labels,
}

/// Pod or pod template.
#[derive(Clone, Debug)]
pub struct PodObject {
    /// The pod; for a template it has the workload's name.
    pub pod: Pod,
    /// Object kind in the file: `Pod`, `Deployment`, ….
    pub kind: String,
}

/// Value read from a file, and where it is.
#[derive(Clone, Debug)]
pub struct Located<T> {
    /// Value that was read.
    pub value: T,
    /// Object that contains the value.
    pub node: Node,
    /// Path to `metadata` and `spec` in that object; the root except for templates.
    pub base: KeyPath,
}

/// Fault and where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Offset in the file, in bytes.
    pub at: usize,
    /// Error with place and reason.
    pub fault: Fault,
}

/// Why a document is not valid YAML.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {}, column {}: {reason}", position.line, position.column)]
pub struct DocumentError {
    /// Place in the file.
    pub position: Position,
    /// Reason to show to the user.
    pub reason: String,
}

impl Manifest {
    /// Parses a file; errors become [`Manifest::problems`].
    pub fn parse(text: &str) -> Manifest {
        let mut manifest = Manifest { source: Source::new(text), ..Manifest::default() };
        for document in document::documents(&manifest.source) {
            match document {
                Ok(node) => object::read(&mut manifest, &node),
                Err(broken) => {
                    let fault = Fault::new(Rule::MalformedYaml, "document", broken.reason);
                    manifest.problems.push(Problem { at: broken.at, fault });
                }
            }
        }
        manifest
    }

    /// Returns the pod with this namespace and name.
    pub fn pod(&self, namespace: &str, name: &str) -> Option<&Pod> {
        let pods = self.pods.iter().map(|located| &located.value.pod);
        pods.into_iter().find(|pod| pod.namespace == namespace && pod.name == name)
    }
}

impl<T> Located<T> {
    /// Returns the node at `path` below the base, or the nearest ancestor that exists.
    pub fn node_at(&self, path: &KeyPath) -> &Node {
        self.node.nearest(&self.base).nearest(path)
    }
}

/// Returns every document in a text as JSON, without empty documents.
///
/// # Errors
/// The first document that is not valid YAML.
pub fn values(text: &str) -> Result<Vec<serde_json::Value>, DocumentError> {
    let source = Source::new(text);
    let mut values = Vec::new();
    for document in document::documents(&source) {
        let node = document.map_err(|broken| DocumentError {
            position: source.position(broken.at),
            reason: broken.reason,
        })?;
        values.push(node.to_json());
    }
    values.retain(|value| !value.is_null());
    Ok(values)
}

#[cfg(test)]
mod tests;
