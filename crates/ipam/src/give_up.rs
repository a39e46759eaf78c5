//! Giving up addresses: any free address in a node's blocks for another node; runs on the node that has the blocks.
//!
//! The requester writes a [`TransferRequest`] into the object of one of the blocks. The node gives up a block that it does
//! not need, or some free addresses, which become single addresses that any node may lease. Protocol and safety argument:
//! `docs/design/ipam.md#any-address-of-another-node`.
//!
//! - The object of the block is read before the store reserves the addresses, and changed only if nothing changed it since.
//! - The store reserves addresses, or returns the block, on the disk before the registry is changed.
//! - A request proves nothing. Only a reservation in the block's object, or the absence of that object, lets another node
//!   use the address.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::address_store::{AddressStore, Block, Edit, Slot, SlotId};
use crate::block_lease::BlockState;
use crate::clock::Clock;
use crate::ip_block::{IpBlock, TransferRequest};
use crate::reclaim::release_lease;
pub use crate::registry::end_request;
use crate::registry::{Registry, RegistryError};

/// One in this many of a block's free addresses is given up at a time, so that the next requests find one at once.
const SHARE: usize = 8;
/// Largest number of addresses that are given up at a time.
const ADDRESSES_MAX: usize = 8;
/// Number of free addresses that a node in use keeps when it gives up a block.
const KEPT: u64 = 4;

/// Result of [`AddressStore::give_up`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum GivenUp {
    /// This block is returned.
    Block {
        /// Addresses of the block.
        net: IpNet,
        /// Lease identifier.
        lease: String,
    },
    /// These addresses of a block are reserved.
    Addresses {
        /// Addresses of the block.
        net: IpNet,
        /// Lease identifier.
        lease: String,
        /// The reserved addresses.
        addresses: Vec<IpAddr>,
    },
    /// No address that the requester may allocate is free.
    Nothing,
}

/// Lease as the registry has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownBlock {
    /// Identifier of the lease.
    pub lease: String,
    /// Addresses that are reserved in the block object.
    pub reserved: Vec<IpAddr>,
}

/// Message of the agent to `weft-cni`: what the address store is to give up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GiveUpMessage {
    /// Request of the other node.
    pub request: TransferRequest,
    /// Blocks of the store as the registry has them.
    pub known: Vec<KnownBlock>,
}

/// Message of the agent to `weft-cni`: return idle blocks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReturnMessage {
    /// Longest quarantine among the networks that use the pool, in milliseconds.
    pub quarantine: u64,
    /// Leases that were returned to the cluster, which the store removes.
    pub returned: Vec<String>,
    /// Whether the pool has addresses that were imported for a pod.
    #[serde(default)]
    pub has_imported: bool,
}

/// Outcome of a request for any address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GiveUpOutcome {
    /// The requester can lease an address.
    GivenUp,
    /// No address is free.
    Refused,
    /// An object was changed concurrently: the request must be served again.
    Pending,
}

impl AddressStore {
    /// Gives up a block or some addresses for a request of another node. `known` are the blocks as the registry has them:
    /// what an earlier, killed attempt reserved or returned is given up first.
    ///
    /// The registry may be informed only when the edits are on the disk.
    pub fn give_up(
        &mut self,
        now: u64,
        request: &TransferRequest,
        known: &[KnownBlock],
    ) -> (GivenUp, Vec<Edit>) {
        if let Some(given) = self.given_before(request, known) {
            return (given, Vec::new());
        }
        let clock = Clock { now, quarantine: request.quarantine };
        let blocks: Vec<Block> = self.blocks().filter(|block| !block.single_owner).collect();
        // The quarantine of every address of a block ends when the block is returned.
        let block = (clock.quarantine > 0).then(|| self.give_up_block(clock, request, &blocks)).flatten();
        let given = block.or_else(|| self.give_up_addresses(clock, request, &blocks));
        given
            .or_else(|| self.give_up_block(clock, request, &blocks))
            .unwrap_or((GivenUp::Nothing, Vec::new()))
    }

    /// Block that is being returned, or addresses that are reserved in the store and not in the registry.
    fn given_before(&self, request: &TransferRequest, known: &[KnownBlock]) -> Option<GivenUp> {
        for block in self.blocks() {
            let Some(object) = known.iter().find(|object| object.lease == block.lease) else { continue };
            let mut addresses = self.unknown_reservations(&block, object);
            addresses.retain(|ip| request.admits(*ip));
            addresses.truncate(ADDRESSES_MAX);
            let Block { net, lease, .. } = block;
            match block.state {
                _ if addresses.is_empty() => {}
                BlockState::Returning => return Some(GivenUp::Block { net, lease }),
                BlockState::Active if !block.single_owner => {
                    return Some(GivenUp::Addresses { net, lease, addresses });
                }
                _ => {}
            }
        }
        None
    }

    /// Addresses of a block that are reserved in the store, or returned with it, and not reserved in the registry: a
    /// process was killed in between. An address that is held under another lease of this store is none.
    fn unknown_reservations(&self, block: &Block, known: &KnownBlock) -> Vec<IpAddr> {
        let slots = self.slots_of(block).enumerate().filter_map(|(slot, what)| {
            let id = SlotId { page: block.page, slot };
            // A marked address is about to be free here.
            let is_reserved = what == Slot::Reserved && self.restore_mark(id).is_none();
            self.address(id).filter(|_| is_reserved || block.state == BlockState::Returning)
        });
        slots.filter(|ip| !known.reserved.contains(ip) && self.find_held(*ip).is_none()).collect()
    }

    fn give_up_block(
        &mut self,
        clock: Clock,
        request: &TransferRequest,
        blocks: &[Block],
    ) -> Option<(GivenUp, Vec<Edit>)> {
        let is_needed = blocks.iter().any(|block| self.is_held(block));
        let is_unneeded = |block: &&Block| {
            let has_address = || !self.free_in(block, clock, request).is_empty();
            self.is_unused(block, clock) && has_address() && (!is_needed || self.has_others(block, clock))
        };
        let Block { net, lease, page, .. } = blocks.iter().find(is_unneeded)?.clone();
        Some((GivenUp::Block { net, lease }, vec![self.set_state(page, BlockState::Returning)]))
    }

    fn give_up_addresses(
        &mut self,
        clock: Clock,
        request: &TransferRequest,
        blocks: &[Block],
    ) -> Option<(GivenUp, Vec<Edit>)> {
        let mut offers: Vec<(&Block, Vec<(u64, SlotId)>)> = Vec::new();
        for block in blocks.iter().filter(|block| block.state == BlockState::Active) {
            offers.push((block, self.free_in(block, clock, request)));
        }
        // A drained block is to become empty.
        let best =
            offers.into_iter().max_by_key(|(block, free)| (block.draining && !free.is_empty(), free.len()));
        let (block, mut free) = best.filter(|(_, free)| !free.is_empty())?;
        free.sort_unstable();
        free.truncate((free.len() / SHARE).clamp(1, ADDRESSES_MAX));
        let addresses = free.iter().filter_map(|(_, id)| self.address(*id)).collect();
        let edits = free.iter().map(|(_, id)| self.reserve(*id)).collect();
        let Block { net, lease, .. } = block.clone();
        Some((GivenUp::Addresses { net, lease, addresses }, edits))
    }

    /// Whether nothing in a block is held or in quarantine, under any lease, so that the block can be returned. After a
    /// boot, nothing in an unconfirmed block is held.
    fn is_unused(&self, block: &Block, clock: Clock) -> bool {
        let is_returnable = match block.state {
            BlockState::Active => !self.protects_earlier_lease(block),
            BlockState::Unconfirmed => !self.is_held_inside(block.net),
            BlockState::Returning => false,
        };
        is_returnable && self.is_idle(block, clock)
    }

    /// Whether enough addresses are free in other blocks.
    fn has_others(&self, block: &Block, clock: Clock) -> bool {
        let others = self.blocks().filter(|other| other.is_open() && other.page != block.page);
        others.map(|other| self.free_count(&other, clock)).sum::<u64>() >= KEPT
    }

    /// Returns the free addresses in a block that the requester may allocate now, with release times.
    fn free_in(&self, block: &Block, clock: Clock, request: &TransferRequest) -> Vec<(u64, SlotId)> {
        let slots = self.slots_of(block).enumerate();
        let free = slots.filter_map(|(slot, what)| match what {
            Slot::Free(since) if clock.quarantined_until(since).is_none() => {
                Some((since, SlotId { page: block.page, slot }))
            }
            _ => None,
        });
        let is_given = |ip: IpAddr| request.admits(ip) && self.find_held(ip).is_none();
        free.filter(|(_, id)| self.address(*id).is_some_and(is_given)).collect()
    }
}

/// Leases of objects, for [`AddressStore::give_up`].
pub fn known_blocks(objects: &[IpBlock]) -> Vec<KnownBlock> {
    let known = |object: &IpBlock| KnownBlock { lease: object.lease_id(), reserved: object.reserved.clone() };
    objects.iter().map(known).collect()
}

/// Addresses that the store has reserved and the registry has not, except `excluded` ones. `object` was read before the
/// store.
pub fn unpublished_reservations(store: &AddressStore, object: &IpBlock, excluded: &[IpNet]) -> Vec<IpAddr> {
    let known = KnownBlock { lease: object.lease_id(), reserved: object.reserved.clone() };
    let is_block = |block: &Block| {
        block.lease == known.lease && block.state == BlockState::Active && !block.single_owner
    };
    let Some(block) = store.blocks().find(is_block) else { return Vec::new() };
    let mut addresses = store.unknown_reservations(&block, &known);
    addresses.retain(|ip| !excluded.iter().any(|net| net.contains(ip)));
    addresses
}

/// Reserves addresses in the registry that the store has reserved, so that any node may lease them; returns whether the
/// object was unchanged.
///
/// # Errors
/// Error of the registry.
pub async fn publish_reservations<R: Registry>(
    registry: &R,
    object: &IpBlock,
    addresses: Vec<IpAddr>,
) -> Result<bool, RegistryError> {
    let mut object = object.clone();
    object.reserved.extend(addresses);
    match registry.replace(&object).await {
        Ok(_) => Ok(true),
        // A later attempt reads the object again.
        Err(RegistryError::Conflict) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns the oldest request in an object of `node` that has not expired.
pub fn next_request(object: &IpBlock, now: u64) -> Option<&TransferRequest> {
    let open = object.holder.transfer_requests.iter().filter(|request| !request.has_expired(now));
    open.min_by_key(|request| request.requested_at)
}

/// Writes into the registry what the store gave up, and removes the request.
///
/// `objects` are the blocks of the store as they were read before the store gave up anything; `asked` is the one with the
/// request.
///
/// # Errors
/// Error of the registry.
pub async fn complete_give_up<R: Registry>(
    registry: &R,
    objects: &[IpBlock],
    asked: &IpBlock,
    request: &TransferRequest,
    given: GivenUp,
    now: u64,
) -> Result<GiveUpOutcome, RegistryError> {
    let outcome = match given {
        GivenUp::Nothing => GiveUpOutcome::Refused,
        GivenUp::Block { net, lease } => {
            release_lease(registry, net, (&asked.holder.node, &lease), now).await?;
            if net == asked.net {
                return Ok(GiveUpOutcome::GivenUp);
            }
            GiveUpOutcome::GivenUp
        }
        GivenUp::Addresses { net, lease, addresses } => {
            let is_block = |object: &&IpBlock| object.net == net && object.lease_id() == lease;
            let Some(object) = objects.iter().find(is_block) else { return Ok(GiveUpOutcome::Pending) };
            let mut object = object.clone();
            object.reserved.extend(addresses);
            if net == asked.net {
                object.holder.transfer_requests.retain(|other| other != request);
            }
            match registry.replace(&object).await {
                Ok(_) if net == asked.net => return Ok(GiveUpOutcome::GivenUp),
                Ok(_) => GiveUpOutcome::GivenUp,
                // The reservation may have been taken back since.
                Err(RegistryError::Conflict) => return Ok(GiveUpOutcome::Pending),
                Err(error) => return Err(error),
            }
        }
    };
    end_request(registry, asked, request).await?;
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address_span::AddressSpan;
    use crate::block_lease::BlockLease;

    fn store(nets: &[&str]) -> AddressStore {
        let mut store = AddressStore::new("boot-1");
        for net in nets {
            let lease = BlockLease {
                net: net.parse().unwrap(),
                id: (*net).into(),
                single_owner: false,
                reserved: Vec::new(),
            };
            let _ = store.add_block(&lease, 1);
        }
        store
    }

    fn request(span: &str, quarantine: u64) -> TransferRequest {
        let addresses = vec![AddressSpan::parse(span).unwrap()];
        TransferRequest { node: "n1".into(), store: "l".into(), addresses, quarantine, requested_at: 1 }
    }

    fn hold(store: &mut AddressStore, ip: &str, owner: u64) -> SlotId {
        let id = store.find(ip.parse().unwrap()).unwrap();
        let _ = store.hold(id, 5, owner);
        id
    }

    fn given(store: &mut AddressStore, request: &TransferRequest) -> Vec<String> {
        match store.give_up(1_000_000, request, &[]).0 {
            GivenUp::Addresses { addresses, .. } => addresses.iter().map(ToString::to_string).collect(),
            GivenUp::Block { net, .. } => vec![net.to_string()],
            GivenUp::Nothing => Vec::new(),
        }
    }

    #[test]
    fn transfer_of_any_address_gives_up_an_unneeded_block() {
        let any = request("10.0.0.0-10.0.0.255", 60_000);
        let mut empty = store(&["10.0.0.0/30", "10.0.0.4/30"]);
        assert_eq!(given(&mut empty, &any), ["10.0.0.0/30"]);
        assert_eq!(given(&mut empty, &any), ["10.0.0.4/30"]);
        assert!(given(&mut empty, &any).is_empty(), "both are being returned");
        // A node with pods keeps a block if nothing else is free.
        let mut used = store(&["10.0.0.0/30", "10.0.0.4/30"]);
        for ip in ["10.0.0.0", "10.0.0.1", "10.0.0.2", "10.0.0.3"] {
            let _ = hold(&mut used, ip, 7);
        }
        assert_eq!(given(&mut used, &any), ["10.0.0.4"]);
        // After a boot the block is unconfirmed and nothing in it is held.
        let mut rebooted = store(&["10.0.0.0/30"]);
        let _ = hold(&mut rebooted, "10.0.0.1", 7);
        let _ = rebooted.begin_boot("boot-2", 990_000);
        assert!(given(&mut rebooted, &any).is_empty(), "in quarantine");
        assert_eq!(given(&mut rebooted, &request("10.0.0.0-10.0.0.255", 0)), ["10.0.0.0/30"]);
    }

    #[test]
    fn transfer_of_any_address_respects_quarantine_and_requester() {
        let mut store = store(&["10.0.0.0/29"]);
        for (ip, owner) in [("10.0.0.0", 1), ("10.0.0.1", 2), ("10.0.0.2", 3), ("10.0.0.3", 4)] {
            let _ = hold(&mut store, ip, owner);
        }
        let [one, two] = ["10.0.0.1", "10.0.0.2"].map(|ip| store.find(ip.parse().unwrap()).unwrap());
        let _ = store.free(two, 950_000);
        let _ = store.free(one, 960_000);
        let held = request("10.0.0.0-10.0.0.3", 60_000);
        assert!(given(&mut store, &held).is_empty());
        // A requester that gets nothing else takes the address that waits longest.
        assert_eq!(given(&mut store, &request("10.0.0.0-10.0.0.3", 0)), ["10.0.0.2"]);
        assert_eq!(given(&mut store, &request("10.0.0.5-10.0.0.5", 60_000)), ["10.0.0.5"]);
        assert!(given(&mut store, &request("10.0.0.5-10.0.0.5", 60_000)).is_empty(), "reserved by now");
        assert!(given(&mut store, &request("10.0.1.0-10.0.1.255", 60_000)).is_empty());
    }

    #[test]
    fn transfer_of_any_address_repeats_what_was_given_up() {
        let mut store = store(&["10.0.0.0/30", "10.0.0.4/30"]);
        let _ = hold(&mut store, "10.0.0.0", 1);
        let any = request("10.0.0.0-10.0.0.255", 60_000);
        let mut known: Vec<KnownBlock> = ["10.0.0.0/30", "10.0.0.4/30"]
            .map(|lease| KnownBlock { lease: lease.into(), reserved: Vec::new() })
            .into();
        let mut give_up = || store.give_up(1_000_000, &any, &known);
        let first = give_up();
        assert!(!first.1.is_empty());
        assert_eq!(give_up(), (first.0.clone(), Vec::new()));
        // The registry has it: something else is given up.
        let GivenUp::Addresses { lease, addresses, .. } = first.0.clone() else { panic!("{first:?}") };
        known
            .iter_mut()
            .filter(|block| block.lease == lease)
            .for_each(|block| block.reserved.clone_from(&addresses));
        assert_ne!(store.give_up(1_000_000, &any, &known).0, first.0);
    }

    #[test]
    fn transfer_of_any_address_gives_up_a_share_of_a_large_block() {
        let mut store = store(&["10.0.0.0/24"]);
        let _ = hold(&mut store, "10.0.0.0", 1);
        let any = request("10.0.0.0-10.0.0.255", 60_000);
        assert_eq!(given(&mut store, &any).len(), ADDRESSES_MAX);
        let few = request("10.0.0.100-10.0.0.103", 60_000);
        assert_eq!(given(&mut store, &few), ["10.0.0.100"]);
    }
}
