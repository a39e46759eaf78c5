//! Allocation error: the reason why an address or a block was not allocated.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::registry::RegistryError;

/// Maximum number of nodes that an error names.
const NODES_MAX: usize = 8;

/// Reason why nothing was allocated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum AllocationError {
    /// Every address in the network's range is in use.
    Exhausted,
    /// Every free address is in quarantine, at least until this time in milliseconds since 1970.
    Quarantined(u64),
    /// Every address in the network's range is in use, also on the nodes that were asked.
    NoneElsewhere {
        /// Number of addresses that the network may allocate.
        window: u64,
        /// Nodes that have no free address; at most [`NODES_MAX`].
        full: Vec<String>,
        /// Number of such nodes.
        full_count: usize,
        /// Nodes that have not answered yet; at most [`NODES_MAX`].
        silent: Vec<String>,
    },
    /// The requested address belongs to another node or claim.
    Held {
        /// The address, or the block that contains it.
        net: IpNet,
        /// Node that leases it; empty if a claim keeps it.
        node: String,
    },
    /// The requested address is held by another attachment in the same address store.
    HeldOnThisNode(IpAddr),
    /// The owner requests an address but holds this other one.
    HoldsAnother(IpAddr),
    /// The requested address lies in another node's block, and that node was asked to transfer it.
    NotTransferred {
        /// Block that contains it.
        net: IpNet,
        /// Node that leases it.
        node: String,
        /// Holder of the address on that node; empty if the node has not answered.
        held_by: String,
    },
    /// The requested address lies in a block in the same address store. The caller must unlock the store so
    /// that the agent can transfer the address.
    InOwnBlock {
        /// Address that was requested.
        ip: IpAddr,
        /// Block that contains it.
        net: IpNet,
    },
    /// The address that was offered for a claim was taken by another owner; another address will do.
    OfferTaken(IpAddr),
    /// Other nodes were faster in every attempt.
    Contended,
    /// The pool is not the one from which the lease was made.
    PoolChanged,
    /// The registry did not answer, or the agent cannot serve the request.
    Unavailable(String),
}

impl AllocationError {
    /// Returns the error for a network with `window` addresses, if all these nodes were asked in vain.
    pub(crate) fn none_elsewhere(
        window: u128,
        full: &BTreeSet<String>,
        silent: &BTreeSet<String>,
    ) -> AllocationError {
        let some = |nodes: &BTreeSet<String>| nodes.iter().take(NODES_MAX).cloned().collect();
        AllocationError::NoneElsewhere {
            window: u64::try_from(window).unwrap_or(u64::MAX),
            full: some(full),
            full_count: full.len(),
            silent: some(silent),
        }
    }

    /// Whether another node may have a free address although none is known to be free.
    pub(crate) fn may_be_free_elsewhere(&self) -> bool {
        matches!(
            self,
            AllocationError::Exhausted | AllocationError::Quarantined(_) | AllocationError::Contended
        )
    }
}

impl From<RegistryError> for AllocationError {
    fn from(error: RegistryError) -> AllocationError {
        match error {
            RegistryError::Conflict => AllocationError::Contended,
            RegistryError::Unknown(why) => AllocationError::Unavailable(why),
        }
    }
}

impl fmt::Display for AllocationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AllocationError::Exhausted => f.write_str("no address is free"),
            AllocationError::Quarantined(_) => {
                f.write_str("no address is free; recently released addresses are in quarantine")
            }
            AllocationError::NoneElsewhere { window, full, full_count, silent } => {
                write!(f, "no address is free: the range has {window}; all are held, kept or reserved")?;
                if !full.is_empty() {
                    write!(f, "; {full_count} other nodes have none: {}", full.join(", "))?;
                    f.write_str(if full.len() < *full_count { ", …" } else { "" })?;
                }
                match silent.is_empty() {
                    true => Ok(()),
                    false => write!(f, "; not answered: {}", silent.join(", ")),
                }
            }
            AllocationError::Held { net, node } if node.is_empty() => write!(f, "{net} is kept by a claim"),
            AllocationError::Held { net, node } => write!(f, "{net} is leased by node {node}"),
            AllocationError::HeldOnThisNode(ip) => {
                write!(f, "address {ip} is allocated to another container on this node, or in quarantine")
            }
            AllocationError::HoldsAnother(ip) => write!(f, "the same interface holds {ip}"),
            AllocationError::NotTransferred { net, node, held_by } if held_by.is_empty() => write!(
                f,
                "block {net} around it is leased by node {node}, which has not answered the transfer request yet: \
                 try again"
            ),
            AllocationError::NotTransferred { net, node, held_by } => {
                write!(f, "block {net} around it is leased by node {node}, where {held_by} holds it")
            }
            AllocationError::InOwnBlock { net, .. } => {
                write!(
                    f,
                    "block {net} around it is leased by this node, whose agent has not released it yet: try again"
                )
            }
            AllocationError::OfferTaken(ip) => {
                write!(f, "no address is free, and {ip} was allocated to another owner meanwhile: try again")
            }
            AllocationError::Contended => {
                f.write_str("other nodes lease addresses at the same time: try again")
            }
            AllocationError::PoolChanged => {
                f.write_str("the pool was deleted, recreated or edited meanwhile: try again")
            }
            AllocationError::Unavailable(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for AllocationError {}
