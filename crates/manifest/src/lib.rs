//! Kubernetes objects from YAML or JSON text, with the place of everything in them.
//!
//! For a node without a cluster, for examples, and for the linter. Reading never stops at the first problem, and an
//! object with a problem is still read as far as it goes. Read are Pod, NetworkAttachmentDefinition, Namespace, the
//! lists of them, and the pod template of every workload; other kinds are named and passed over.
//!
//! Rules: the API server's own: an object without a namespace is in `default`; annotations are texts; `spec.config` of a
//! definition is a text. Where a file writes a map there, that is kept as what it is ([`SpecConfig::Structured`]):
//! the server refuses it, and the linter can say how it should read.
//!
//! Source: Kubernetes API reference; the standard, 3.1, 3.2 and 4.1.1.

#![forbid(unsafe_code)]

mod collection;
mod document;
mod indentation;
pub mod lint;
mod node;
mod object;
pub mod position;
mod source;
mod weight;

use npwg::metadata::{Definition, Pod};
use npwg::policy::Labels;
use npwg::refusal::{Fault, KeyPath};
use npwg::rule::Rule;

pub use collection::Collection;
pub use document::{DEPTH_MAX, NODES_MAX};
pub use node::{Key, Node, Value};
pub use source::{Position, Source, Span};

#[allow(unused_imports, reason = "the documentation speaks of it")]
use npwg::metadata::SpecConfig;

/// Largest file read, in bytes.
pub const MANIFEST_MAX: usize = 4 << 20;
/// The namespace of an object that names none.
pub const DEFAULT_NAMESPACE: &str = "default";

/// Everything in a file.
#[derive(Clone, Debug, Default)]
pub struct Manifest {
    /// The text.
    pub source: Source,
    /// Pods, and the pod templates of workloads.
    pub pods: Vec<Located<PodObject>>,
    /// Definitions.
    pub definitions: Vec<Located<Definition>>,
    /// Namespaces.
    pub namespaces: Vec<Located<Namespace>>,
    /// The kinds of objects that were passed over.
    pub others: Vec<Located<String>>,
    /// What is wrong with the file and its objects.
    pub problems: Vec<Problem>,
}

/// A namespace.
#[derive(Clone, Debug)]
pub struct Namespace {
    /// Its name.
    pub name: String,
    /// Its labels: policies may ask for them.
    pub labels: Labels,
}

/// A pod, or what will be one.
#[derive(Clone, Debug)]
pub struct PodObject {
    /// The pod; of a template it has the workload's name.
    pub pod: Pod,
    /// The kind it was written as: `Pod`, `Deployment`, ….
    pub kind: String,
}

/// Something read from a file, and where it stands.
#[derive(Clone, Debug)]
pub struct Located<T> {
    /// What was read.
    pub value: T,
    /// The object it was read from.
    pub node: Node,
    /// Where in that object its `metadata` and `spec` are; the root but for templates.
    pub base: KeyPath,
}

/// A problem and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where, in bytes of the file.
    pub at: usize,
    /// What.
    pub fault: Fault,
}

/// Error of a document that is not valid YAML.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {}, column {}: {reason}", position.line, position.column)]
pub struct DocumentError {
    /// Place in the file.
    pub position: Position,
    /// What is wrong.
    pub reason: String,
}

impl Manifest {
    /// Reads a file.
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

    /// The pod of this namespace and name.
    pub fn pod(&self, namespace: &str, name: &str) -> Option<&Pod> {
        let pods = self.pods.iter().map(|located| &located.value.pod);
        pods.into_iter().find(|pod| pod.namespace == namespace && pod.name == name)
    }
}

impl<T> Located<T> {
    /// The node at `path` below the base, or the nearest above it.
    pub fn node_at(&self, path: &KeyPath) -> &Node {
        self.node.nearest(&self.base).nearest(path)
    }
}

/// Every document of a text as JSON, whatever it is; empty ones are left out.
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
