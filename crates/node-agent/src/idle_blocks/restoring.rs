//! Restores reserved addresses: an address in a leased block that no single address uses any more becomes free in the
//! block again, although the block is not returned.
//!
//! ```text
//!   reserved in the object of a block, and not excluded ──► single address in use, or in quarantine? ── yes ──► later
//!       └─ no ─► weft-cni: marked in the store ─► object without the reservation ─► still unused? ─► weft-cni: free
//! ```
//!
//! - An attempt that was not ended, because a process was killed, is undone in the next round: `weft-cni` removes the
//!   marks, and the reservations are published again.
//! - A block is looked at a minute after it was changed, and less often if there was nothing to restore.
//!
//! Source: `docs/design/ipam.md#restored-addresses`.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use ipam::address_store::Block;
use ipam::restore::{self, RestoreMark, RestoreMessage, RestoreStep};
use ipam::{BlockState, Clock, IpBlock};
use tracing::info;

use super::{IdleBlocks, ReturnError};
use cli_support::background::run_on_thread;
use ipam_api::clock::now;
use ipam_api::owned_block::OwnedBlock;
use kube_support::cache::Cache;
use node_support::address_store;
use node_support::weft_cni::WeftCni;

/// Pause before a changed block is looked at again.
const PAUSE_MIN: Duration = Duration::from_secs(60);
/// Longest pause between two looks at a block.
const PAUSE_MAX: Duration = Duration::from_secs(960);

/// Next look at each block with reserved addresses, by lease.
#[derive(Default)]
pub(super) struct Looks(BTreeMap<String, Look>);

struct Look {
    /// Object version at the last look.
    version: String,
    pause: Duration,
    due: Instant,
}

// === impl Looks ===

impl Looks {
    /// Whether a block is to be looked at now. The agent's first look at a block is at once.
    fn is_due(&mut self, block: &IpBlock, now: Instant) -> bool {
        match self.0.get_mut(&block.lease_id()) {
            None => true,
            Some(look) => {
                if look.version != block.version {
                    look.version.clone_from(&block.version);
                    (look.pause, look.due) = (PAUSE_MIN, look.due.min(now + PAUSE_MIN));
                }
                look.due <= now
            }
        }
    }

    /// Notes a look at a block; the next one is later each time while the block does not change.
    fn note(&mut self, block: &IpBlock, now: Instant) {
        let pause = self.0.get(&block.lease_id()).map_or(PAUSE_MIN, |look| look.pause);
        let look =
            Look { version: block.version.clone(), pause: (pause * 2).min(PAUSE_MAX), due: now + pause };
        self.0.insert(block.lease_id(), look);
    }

    /// Forgets blocks that are no longer leased.
    fn retain(&mut self, is_leased: impl Fn(&str) -> bool) {
        self.0.retain(|lease, _| is_leased(lease));
    }
}

// === impl IdleBlocks ===

impl IdleBlocks {
    /// Restores the reserved addresses in a store's blocks that no single address uses.
    pub(super) async fn restore_addresses_of(
        &mut self,
        store: &str,
        own: &Cache<Option<OwnedBlock>>,
    ) -> Result<(), ReturnError> {
        let leases: BTreeSet<String> =
            own.all().iter().filter_map(|owned| Some(owned.as_ref().as_ref()?.object.lease_id())).collect();
        self.looks.retain(|lease| leases.contains(lease));
        let mut blocks = self.objects_of(store, own);
        blocks.retain(|owned| !owned.object.is_single_address() && !owned.is_deleted);
        if blocks.is_empty() {
            return Ok(());
        }
        let Some(addresses) = address_store::read(&self.store_dir.join(store))? else { return Ok(()) };
        let is_active =
            |block: &Block, lease: &str| block.lease == lease && block.state == BlockState::Active;
        // A prefetched block is not in the store.
        blocks.retain(|owned| addresses.blocks().any(|block| is_active(&block, &owned.object.lease_id())));
        let with_marks = |owned: OwnedBlock| (addresses.has_restore_marks(&owned.object.lease_id()), owned);
        let blocks: Vec<(bool, OwnedBlock)> = blocks.into_iter().map(with_marks).collect();
        drop(addresses);
        for (has_marks, OwnedBlock { pool, object, .. }) in blocks {
            if has_marks {
                self.change_reserved(store, &object, (RestoreStep::Mark, 0), Vec::new()).await?;
            } else if !object.reserved.is_empty() && self.looks.is_due(&object, Instant::now()) {
                self.looks.note(&object, Instant::now());
                self.restore_addresses(store, &pool, &object).await?;
            }
        }
        Ok(())
    }

    async fn restore_addresses(&self, store: &str, pool: &str, object: &IpBlock) -> Result<(), ReturnError> {
        let Some((registry, excluded)) = self.registry_and_excluded(pool).await? else { return Ok(()) };
        let clock = Clock { now: now(), quarantine: self.quarantine_of(store) };
        let unused = restore::restorable(&registry, object, &excluded, clock).await?;
        if unused.is_empty() {
            return Ok(());
        }
        let mark = new_mark();
        let marked = self.change_reserved(store, object, (RestoreStep::Mark, mark), unused).await?;
        let withdrawn = restore::withdraw_reservations(&registry, object, &marked, clock).await;
        let (free, failed) = match withdrawn {
            Ok(free) => (free, None),
            Err(error) => (Vec::new(), Some(error)),
        };
        let freed = self.change_reserved(store, object, (RestoreStep::Free, mark), free).await?;
        if !freed.is_empty() {
            info!(pool, block = %object.net, count = freed.len(), "restored reserved addresses of a block");
            self.agent.block_provider.refused.note_free(store);
        }
        failed.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Has `weft-cni` mark or free reserved addresses; returns them.
    async fn change_reserved(
        &self,
        store: &str,
        object: &IpBlock,
        (step, mark): (RestoreStep, RestoreMark),
        addresses: Vec<IpAddr>,
    ) -> Result<Vec<IpAddr>, ReturnError> {
        let message = RestoreMessage { lease: object.lease_id(), mark, step, addresses };
        let (store_dir, store) = (self.store_dir.clone(), store.to_owned());
        let changed = run_on_thread(move || {
            WeftCni::find().and_then(|weft_cni| weft_cni.restore(&store_dir, &store, &message))
        });
        let changed = changed.await.map_err(|error| ReturnError::RunWeftCni { reason: error.to_string() })?;
        changed.map_err(|failure| ReturnError::RunWeftCni { reason: failure.to_string() })
    }
}

/// Returns a mark for a new attempt: another agent on this node may make one, too.
fn new_mark() -> RestoreMark {
    RandomState::new().build_hasher().finish() | 1
}

#[cfg(test)]
mod tests {
    use ipam::Holder;

    use super::*;

    fn block(version: &str) -> IpBlock {
        IpBlock {
            net: "10.0.0.0/30".parse().unwrap(),
            uid: "u".into(),
            version: version.into(),
            holder: Holder::default(),
            reserved: Vec::new(),
        }
    }

    #[test]
    fn restore_looks_are_rarer_until_the_block_changes() {
        let (mut looks, begin) = (Looks::default(), Instant::now());
        let mut at = Duration::ZERO;
        for minutes in [1, 2, 4, 8, 16, 16] {
            assert!(looks.is_due(&block("1"), begin + at));
            looks.note(&block("1"), begin + at);
            at += Duration::from_secs(minutes * 60);
            assert!(!looks.is_due(&block("1"), begin + at - Duration::from_secs(1)), "{minutes}");
        }
        looks.note(&block("1"), begin + at);
        assert!(!looks.is_due(&block("2"), begin + at));
        assert!(looks.is_due(&block("2"), begin + at + PAUSE_MIN));
        looks.retain(|_| false);
        assert!(looks.is_due(&block("2"), begin + at));
    }
}
