//! Name of a pod, and the names derived from it.
//!
//! | name | form |
//! |---|---|
//! | container ID | `NAMESPACE_NAME`; if longer than 100 characters, its beginning and a hash of it |
//! | network namespace | `/run/netns/weft-CONTAINER-ID` |
//!
//! A Kubernetes namespace contains no `_`, so two pods never have the same container ID.
//!
//! Source: Kubernetes names (RFC 1123); SPEC 1.1.0 on container ids (S24); ip-netns(8).

use std::fmt;
use std::str::FromStr;

use cli_support::failure::{Exit, Failure};
use cni::Error;
use cni::name::ContainerId;
use npwg::metadata::{definition_name_fault, label_fault};
use npwg::plan::PodIdentity;
use sha2::{Digest, Sha512};

/// Maximum length up to which a container ID is not shortened, in characters.
const ID_MAX: usize = 100;
/// Hash bytes in a shortened container ID.
const HASH_BYTES: usize = 10;
/// Directory in which network namespaces are mounted.
pub(crate) const NAMESPACES: &str = "/run/netns";

/// A pod's namespace and name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodName {
    /// Namespace that the pod is in.
    pub(crate) namespace: String,
    /// Pod name.
    pub(crate) name: String,
}

/// Why a string does not name a pod.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PodNameError {
    /// The string has no `/`.
    #[error("expected NAMESPACE/NAME")]
    Separator,
    /// The namespace is not valid.
    #[error("the namespace {namespace:?} {fault}")]
    Namespace {
        /// The namespace.
        namespace: String,
        /// The rule that it breaks.
        fault: String,
    },
    /// The name is not valid.
    #[error("the name {name:?} {fault}")]
    Name {
        /// The name.
        name: String,
        /// The rule that it breaks.
        fault: String,
    },
}

impl PodName {
    /// Returns the name after both parts are validated.
    pub(crate) fn new(namespace: &str, name: &str) -> Result<PodName, PodNameError> {
        if let Some(fault) = label_fault(namespace) {
            return Err(PodNameError::Namespace { namespace: namespace.to_owned(), fault });
        }
        match definition_name_fault(name) {
            Some(fault) => Err(PodNameError::Name { name: name.to_owned(), fault }),
            None => Ok(PodName { namespace: namespace.to_owned(), name: name.to_owned() }),
        }
    }

    /// Returns the pod's identity without a uid, so the planner uses the manifest's uid.
    pub(crate) fn identity(&self) -> PodIdentity {
        let PodName { namespace, name } = self;
        PodIdentity { namespace: namespace.clone(), name: name.clone(), uid: String::new() }
    }

    /// Returns the container ID that the pod's sandbox gets.
    pub(crate) fn container_id(&self) -> Result<ContainerId, Error> {
        let whole = format!("{}_{}", self.namespace, self.name);
        if whole.len() <= ID_MAX {
            return ContainerId::new(&whole);
        }
        let hash = Sha512::digest(whole.as_bytes());
        let digits: String = hash.iter().take(HASH_BYTES).map(|byte| format!("{byte:02x}")).collect();
        let beginning = whole.get(..ID_MAX - digits.len() - 1).unwrap_or_default();
        ContainerId::new(&format!("{beginning}-{digits}"))
    }
}

/// Options that select a pod as kubectl does, or in one word.
#[derive(Clone, Debug, Default, clap::Args)]
#[group(skip)]
pub(crate) struct PodSelection {
    /// Name of the pod, or NAMESPACE/NAME
    #[arg(value_name = "POD", conflicts_with = "pod")]
    name: Option<String>,
    /// Namespace of the pod
    #[arg(short = 'n', long, value_name = "NAMESPACE", default_value = "default", conflicts_with = "pod")]
    namespace: String,
    /// Namespace and name of the pod, in one word
    #[arg(long, value_name = "NAMESPACE/NAME")]
    pod: Option<PodName>,
}

impl PodSelection {
    /// Returns a selection with this pod.
    pub(crate) fn of(pod: &PodName) -> PodSelection {
        PodSelection { pod: Some(pod.clone()), ..PodSelection::default() }
    }

    /// Returns the selected pod, if there is one.
    ///
    /// # Errors
    /// The name is invalid.
    pub(crate) fn selected(&self) -> Result<Option<PodName>, Failure> {
        match (&self.pod, &self.name) {
            (Some(pod), _) => Ok(Some(pod.clone())),
            (None, Some(name)) => PodName::within(&self.namespace, name).map(Some),
            (None, None) => Ok(None),
        }
    }
}

impl PodName {
    /// Returns the pod with a name in a namespace, or with NAMESPACE/NAME.
    ///
    /// # Errors
    /// The name is invalid: a usage error.
    pub(crate) fn within(namespace: &str, name: &str) -> Result<PodName, Failure> {
        let pod = if name.contains('/') { name.parse() } else { PodName::new(namespace, name) };
        pod.map_err(|error| Failure::new(format!("pod {name:?}: {error}")).exit(Exit::Usage))
    }
}

impl FromStr for PodName {
    type Err = PodNameError;

    fn from_str(text: &str) -> Result<PodName, PodNameError> {
        let (namespace, name) = text.split_once('/').ok_or(PodNameError::Separator)?;
        PodName::new(namespace, name)
    }
}

impl fmt::Display for PodName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Returns the path to the network namespace that `weft attach` creates for a sandbox.
pub(crate) fn namespace_path(container: &ContainerId) -> String {
    format!("{NAMESPACES}/weft-{container}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pod_name_determines_container_id_and_namespace() {
        let pod: PodName = "my-namespace/my-pod.v2".parse().unwrap();
        let id = pod.container_id().unwrap();
        assert_eq!(id.as_str(), "my-namespace_my-pod.v2");
        assert_eq!(namespace_path(&id), "/run/netns/weft-my-namespace_my-pod.v2");
    }

    #[test]
    fn pod_name_too_long_is_shortened_and_stays_unique() {
        let id = |name: &str| PodName::new("ns", name).unwrap().container_id().unwrap().to_string();
        let [a, b] = ["a", "b"].map(|end| id(&format!("{}.{end}", vec!["x".repeat(60); 4].join("."))));
        assert_eq!((a.len(), b.len()), (ID_MAX, ID_MAX));
        assert_ne!(a, b);
    }

    #[test]
    fn pod_name_invalid_is_rejected() {
        for bad in ["", "a", "a/", "/b", "a/b/c", "A/b", "a/../b", "a_b/c", "a/b c", "a.b/c"] {
            assert!(bad.parse::<PodName>().is_err(), "{bad:?}");
        }
    }
}
