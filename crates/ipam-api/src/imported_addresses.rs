//! Imported addresses in the cluster: labels, and the pools that have some.
//!
//! - A pod's sandbox is created again on the same node. So an agent finds the pods' claims by watching this node's
//!   IPBlocks: an imported address that no node leases has a label with the pod's node.
//! - A pod that is created again under the same name may be on another node. The claim is found by [`IMPORTED_LABEL`].
//! - A pool with imported addresses has the same label, so that nodes ask for claims only in such pools.

use ipnet::IpNet;
use kube::Api;
use kube::api::{ListParams, PostParams};
use rpc::allocate::PoolReference;

use crate::imported_claim::ImportedClaim;
use crate::ip_objects::{BlockObject, IMPORTED_LABEL, POOL_LABEL, PoolObject, kind_of, label, label_of_pod};
use kube_support::resources::Reduced;

/// Value that the label has on a pool.
const IS_IMPORTED: &str = "true";

/// Returns the request that lists a pod's imported addresses in a pool, on whichever node it was. The
/// response may come from the API server's cache: an import precedes the pods that need it.
pub fn addresses_of(pool: &str, namespace: &str, pod: &str) -> ListParams {
    let (pool, pod) = (label(pool), label_of_pod(namespace, pod));
    ListParams::default().labels(&format!("{POOL_LABEL}={pool},{IMPORTED_LABEL}={pod}")).match_any()
}

/// Returns the label selector for pools with imported addresses, for a watch.
pub fn pools_with_imported() -> String {
    format!("{IMPORTED_LABEL}={IS_IMPORTED}")
}

/// Whether a pool is labelled as one with imported addresses.
pub fn is_labelled(pool: &PoolObject) -> bool {
    pool.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(IMPORTED_LABEL))
}

/// Whether an address was imported.
pub fn is_imported(block: &BlockObject) -> bool {
    ImportedClaim::parse(&block.spec.claim).is_some()
}

/// Sets or removes a pool's label.
///
/// # Errors
/// The pool was changed since it was read, or the API server refuses the request or cannot be reached.
pub async fn set_label(
    pools: &Api<PoolObject>,
    pool: &PoolObject,
    has_imported: bool,
) -> Result<(), kube::Error> {
    let mut written = PoolObject { types: kind_of::<PoolObject>(), ..pool.clone() };
    let labels = written.metadata.labels.get_or_insert_default();
    if has_imported {
        labels.insert(IMPORTED_LABEL.to_owned(), IS_IMPORTED.to_owned());
    } else {
        labels.remove(IMPORTED_LABEL);
    }
    let name = pool.metadata.name.as_deref().unwrap_or_default();
    pools.replace(name, &PostParams::default(), &written).await.map(drop)
}

/// Pool, reduced to what tells whether a network uses it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedPool {
    /// Pool name.
    pub name: String,
    network: String,
    range: Option<IpNet>,
}

impl NamedPool {
    /// Whether a network with this reference uses the pool: by name, or because the pool contains the range.
    pub fn serves(&self, wanted: &PoolReference) -> bool {
        let contains = self.range.is_some_and(|range| range.contains(&wanted.range));
        self.name == wanted.name || !wanted.must_exist && self.network == wanted.network && contains
    }
}

impl Reduced for PoolObject {
    type Form = NamedPool;

    fn reduce(self) -> NamedPool {
        let (name, range) = (self.metadata.name.unwrap_or_default(), self.spec.range.parse().ok());
        NamedPool { name, network: self.spec.network_name, range }
    }
}

#[cfg(test)]
mod tests {
    use ipam::{Holder, IpBlock, PoolLayout};

    use super::*;
    use crate::ip_objects::NODE_LABEL;

    #[test]
    fn imported_address_has_the_node_of_its_pod_until_it_is_leased() {
        let layout = PoolLayout::new("10.0.0.0/16".parse().unwrap(), 8);
        let labels = |node: &str| {
            let claim = "imported/blue/web-0/net1/worker-0".to_owned();
            let holder = Holder { node: node.to_owned(), claim, ..Holder::default() };
            let (uid, version) = (String::new(), String::new());
            let net = "10.0.0.7/32".parse().unwrap();
            let object = IpBlock { net, uid, version, holder, reserved: Vec::new() };
            BlockObject::of("p", &layout, &object).metadata.labels.unwrap()
        };
        for (node, labelled) in [("", "worker-0"), ("worker-1", "worker-1")] {
            assert_eq!(labels(node)[NODE_LABEL], labelled);
            assert_eq!(labels(node)[IMPORTED_LABEL], label("blue/web-0"));
        }
    }
}
