//! Check whether a pod may use a definition.
//!
//! Isolation on the node and access policies in the cluster apply to both annotations. A definition that a pod may not
//! select may not be the pod's default network either (M14). Networks that the administrator configures are not
//! checked.
//!
//! Source: multi-network specification, 7.4; Multus `namespaceIsolation`.

use std::collections::BTreeMap;

use crate::configuration::Isolation;
use crate::metadata::NetworkReference;
use crate::refusal::{Fault, Refusal};

use super::Request;

/// Access policies in the cluster, which the caller evaluated for one pod.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// Definitions that this pod may not use, each with the reason.
    pub denied: BTreeMap<NetworkReference, String>,
}

impl Access {
    /// Returns an access that allows every definition.
    pub fn open() -> Access {
        Access::default()
    }
}

/// Refuses a definition that the pod may not use (NPWG1-7.4-2: the pod fails; no network is silently dropped).
pub(super) fn check(request: &Request<'_>, network: &NetworkReference, fault: Fault) -> Result<(), Refusal> {
    let home = &request.pod.namespace;
    if let Isolation::Isolated { global } = &request.node.isolation
        && network.namespace != *home
        && !global.contains(&network.namespace)
    {
        let mut fault =
            fault.hint("use a definition of the pod's namespace, or add that namespace to globalNamespaces");
        fault.reason =
            format!("a pod of namespace {home} may not use definitions of namespace {}", network.namespace);
        return Err(Refusal::failed(fault));
    }
    match request.access.denied.get(network) {
        None => Ok(()),
        Some(why) => {
            let mut fault = fault;
            fault.reason = format!("this pod may not use it: {why}");
            Err(Refusal::failed(fault))
        }
    }
}
