//! Blocks in an address store, counted for people.

use std::net::IpAddr;

use ipam::address_store::{Block, Slot};
use ipam::pool_layout::nth;
use ipam::{AddressStore, BlockState, Clock};
use serde::Serialize;

use ipam_api::clock::now;
use node_support::address_store::Window;

/// Width of a bar, in characters.
const BAR: usize = 20;

/// Quarantine for a network that is not known, in milliseconds.
const QUARANTINE: u64 = 60_000;

/// Block on this node, from the address store.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct StoreBlock {
    range: String,
    state: &'static str,
    pub(super) held: u64,
    #[serde(rename = "resting")]
    pub(super) quarantined: u64,
    pub(super) free: u64,
}

pub(super) const STORE_BLOCK_HEADINGS: [&str; 7] =
    ["on this node", "pool", "state", "held", "quarantine", "free", "utilization"];

/// Returns the rows for a store's blocks.
pub(super) fn store_block_rows(name: &str, blocks: &[StoreBlock]) -> Vec<Vec<String>> {
    let row = |block: &StoreBlock| {
        let StoreBlock { range, state, held, quarantined, free } = block;
        let share = bar(percent(*held, held.saturating_add(*quarantined).saturating_add(*free)));
        let numbers = [held, quarantined, free].map(u64::to_string);
        let mut row = vec![range.clone(), name.to_owned(), (*state).to_owned()];
        row.extend(numbers);
        row.push(share);
        row
    };
    blocks.iter().map(row).collect()
}

/// Returns the blocks in an address store. Only addresses in a window are free, if the store knows one.
pub(super) fn store_blocks(store: &AddressStore, windows: &[Window]) -> Vec<StoreBlock> {
    let clock = Clock { now: now(), quarantine: quarantine_of(windows) };
    let store_block = |block: Block| {
        let state = match block.state {
            BlockState::Active if block.draining => "draining",
            BlockState::Active if block.single_owner => "single",
            BlockState::Active => "active",
            BlockState::Returning => "returning",
            BlockState::Unconfirmed => "unconfirmed",
        };
        let held = store.slots_of(&block).filter(|what| matches!(what, Slot::Held { .. } | Slot::Unknown));
        let held = held.count() as u64;
        let (mut quarantined, mut free) = (0, 0);
        for (at, what) in store.slots_of(&block).enumerate() {
            match what {
                Slot::Free(since) if clock.quarantined_until(since).is_some() => quarantined += 1,
                Slot::Free(_) if is_usable(windows, nth(block.net, at as u128)) => free += 1,
                _ => {}
            }
        }
        StoreBlock { range: block.net.to_string(), state, held, quarantined, free }
    };
    store.blocks().map(store_block).collect()
}

/// Whether a network may allocate an address. If nothing was recorded, any address.
pub(super) fn is_usable(windows: &[Window], ip: IpAddr) -> bool {
    windows.is_empty() || windows.iter().any(|window| window.admits(ip))
}

/// Returns the networks' longest quarantine, in milliseconds.
pub(super) fn quarantine_of(windows: &[Window]) -> u64 {
    windows.iter().map(|window| window.quarantine).max().unwrap_or(QUARANTINE)
}

pub(super) fn percent(part: u64, whole: u64) -> u8 {
    let share = u128::from(part) * 100 / u128::from(whole.max(1));
    u8::try_from(share).unwrap_or(100).min(100)
}

/// Returns a bar such as `[####----]  42 %`.
pub(super) fn bar(percent: u8) -> String {
    let full = (usize::from(percent) * BAR).div_ceil(100).min(BAR);
    format!("[{}{}] {percent:3} %", "#".repeat(full), "-".repeat(BAR - full))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipam_show_bar_is_full_at_100_percent() {
        assert_eq!(bar(0), format!("[{}]   0 %", "-".repeat(20)));
        assert_eq!(bar(1), format!("[#{}]   1 %", "-".repeat(19)));
        assert_eq!(bar(100), format!("[{}] 100 %", "#".repeat(20)));
        assert_eq!((percent(0, 0), percent(1, 3), percent(u64::MAX, 1)), (0, 33, 100));
    }
}
