//! Addresses that a pod's earlier sandboxes hold because no DEL came: the next sandbox takes the oldest one before it
//! is refused.
//!
//! A pod has one sandbox at a time. A runtime that fails to delete one creates the next, and deletes the earlier ones
//! later; each of them holds an address until then. A late DEL then finds that the sandbox holds nothing.

use std::net::IpAddr;

use ipam::BlockState;
use ipam::address_store::SlotId;

use super::store::{Owner, Store};
use plugin_config::weft_ipam::Pool;

/// Returns the address that an earlier sandbox of the same pod has held longest for the same network interface: this
/// address, or any that the network may allocate.
pub(super) fn slot(store: &Store, pool: &Pool, who: &Owner, named: Option<IpAddr>) -> Option<SlotId> {
    if who.pod[0].is_empty() {
        return None;
    }
    let is_wanted = |ip: IpAddr| named.map_or_else(|| pool.filter.admits(ip), |named| named == ip);
    // No new owner gets an address of a block that must be confirmed.
    let is_active = |slot: SlotId| {
        store.addresses.block(slot.page).is_some_and(|block| block.state == BlockState::Active)
    };
    let held = store.addresses.held().filter(|(slot, ..)| is_active(*slot));
    let held = held.filter(|(slot, ..)| store.addresses.address(*slot).is_some_and(is_wanted));
    let earlier = held.filter(|(slot, ..)| is_earlier(&store.owner(*slot), who));
    earlier.min_by_key(|(_, since, _)| *since).map(|(slot, ..)| slot)
}

/// Whether an owner is another sandbox of the same pod, with the same interface, network and claim.
fn is_earlier(one: &Owner, other: &Owner) -> bool {
    let interface =
        |owner: &Owner| (owner.pod.clone(), owner.network.clone(), owner.ifname.clone(), owner.claim.clone());
    one.container != other.container && interface(one) == interface(other)
}
