//! Which definitions a pod may use.
//!
//! The node's isolation and the cluster's policy count for both annotations alike: what a pod may not
//! select it may not have as its default network either (M14). What the administrator configures is not
//! the pod's choice and is not asked about.
//!
//! Source: the standard, 7.4; Multus `namespaceIsolation`.

use std::collections::BTreeMap;

use crate::configuration::Isolation;
use crate::metadata::NetworkReference;
use crate::refusal::{Fault, Refusal};

use super::Request;

/// What the cluster's policy says about one pod. Whoever knows the policy fills it in.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// The definitions this pod may not use, and why.
    pub denied: BTreeMap<NetworkReference, String>,
}

impl Access {
    /// No policy: everything is allowed.
    pub fn open() -> Access {
        Access::default()
    }
}

/// Refuses what the pod may not use (NPWG1-7.4-2: the pod fails; nothing is silently dropped).
pub(super) fn check(request: &Request<'_>, network: &NetworkReference, fault: Fault) -> Result<(), Refusal> {
    let home = &request.pod.namespace;
    if let Isolation::Isolated { global } = &request.node.isolation
        && network.namespace != *home
        && !global.contains(&network.namespace)
    {
        let mut fault =
            fault.cure("use a definition of the pod's namespace, or add that namespace to globalNamespaces");
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
