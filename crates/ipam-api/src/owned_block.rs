//! Reduced form of an IPBlock for the node that has it.

use ipam::IpBlock;
use kube_support::resources::Reduced;

use crate::ip_objects::BlockObject;

/// A block of this node, and its pool.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnedBlock {
    /// The pool's name.
    pub pool: String,
    /// The block, or the single address.
    pub object: IpBlock,
    /// Whether the controller has asked if this node is still there.
    pub is_doubted: bool,
    /// Whether the object is being deleted, and waits for its finalizer.
    pub is_deleted: bool,
}

impl Reduced for BlockObject {
    type Form = Option<OwnedBlock>;

    fn reduce(self) -> Option<OwnedBlock> {
        let is_doubted = self.is_probed();
        let is_deleted = self.is_deleted();
        Some(OwnedBlock { pool: self.spec.pool.clone(), object: self.object()?, is_doubted, is_deleted })
    }
}
