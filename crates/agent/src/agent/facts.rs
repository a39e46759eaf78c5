//! What a plan takes beside the pod and its definitions: devices, and what policies say. The same for an agent and
//! for a single question.

use std::collections::BTreeMap;
use std::path::Path;

use cni::Error;
use npwg::device::Devices;
use npwg::metadata::{Definition, NetworkReference, Pod};
use npwg::plan::Access;
use npwg::policy::{ACCESS, Labels, Policy};

use super::pod_resources;

/// The policies of definitions that have one, or why one cannot be read.
pub(crate) type Policies = BTreeMap<NetworkReference, Result<Policy, String>>;

/// The pod's devices, if a definition needs one.
pub(crate) async fn devices(
    socket: &Path,
    pod: &Pod,
    definitions: &BTreeMap<NetworkReference, Definition>,
) -> Result<Devices, Error> {
    match definitions.values().any(|definition| definition.resource().is_some()) {
        true => pod_resources::devices(socket, &pod.namespace, &pod.name).await,
        false => Ok(Devices::new()),
    }
}

/// The policies of these definitions.
pub(crate) fn policies(definitions: &BTreeMap<NetworkReference, Definition>) -> Policies {
    let policy = |(reference, definition): (&NetworkReference, &Definition)| {
        Policy::of(definition).transpose().map(|policy| (reference.clone(), policy))
    };
    definitions.iter().filter_map(policy).collect()
}

/// Must the labels of the pod's namespace be known?
pub(crate) fn ask_for_namespace_labels(policies: &Policies) -> bool {
    policies.values().flatten().any(Policy::asks_for_namespace_labels)
}

/// What they say about the pod.
pub(crate) fn access(pod: &Pod, policies: Policies, namespace: Option<&Labels>) -> Access {
    let mut denied = BTreeMap::new();
    for (reference, policy) in policies {
        let why = match policy {
            Ok(policy) if policy.admits(pod, namespace) => continue,
            Ok(_) => format!("annotation {ACCESS} of {reference} does not admit it"),
            Err(why) => why,
        };
        denied.insert(reference, why);
    }
    Access { denied }
}
