//! IPBlock reduced to what the node that leases it needs.

use ipam::IpBlock;
use kube_support::resources::Reduced;

use crate::ip_objects::BlockObject;

/// Block that this node leases, with the pool name.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnedBlock {
    /// Pool name.
    pub pool: String,
    /// Block or single address.
    pub object: IpBlock,
    /// Whether the controller probes this node's agent.
    pub is_probed: bool,
    /// Whether the object is being deleted and waits for the finalizer.
    pub is_deleted: bool,
}

impl Reduced for BlockObject {
    type Form = Option<OwnedBlock>;

    fn reduce(self) -> Option<OwnedBlock> {
        let is_probed = self.is_probed();
        let is_deleted = self.is_deleted();
        Some(OwnedBlock { pool: self.spec.pool.clone(), object: self.object()?, is_probed, is_deleted })
    }
}
