//! Chooses the next address in the store, and counts what decides whether a block is needed.
//!
//! An address can be allocated if the slot is free, the quarantine is over and the block is open. Among those, the one
//! that has been free longest is chosen. Hints skip full pages; a hint left behind by a killed call hides a free
//! address only while another one is free.

use std::net::IpAddr;

use super::format::SLOT;
use super::hints::{self, HINT};
use super::{AddressStore, Block, Choice, Slot, SlotId, Usage};
use crate::clock::Clock;
use crate::pool_layout::nth;

impl AddressStore {
    /// Chooses the accepted address that has been free longest.
    pub fn choose(&self, clock: Clock, accepts: impl Fn(IpAddr) -> bool) -> Choice {
        match self
            .choose_in(clock, &accepts, self.pages_with_free_hint(), |page| self.slots_without_hint(page))
        {
            Choice::Free(id, ip) => Choice::Free(id, ip),
            // A free address may have a hint that was left behind.
            _ => self.choose_in(clock, &accepts, 0..self.pages(), |page| self.slots(page)),
        }
    }

    fn choose_in<I: Iterator<Item = (usize, Slot)>>(
        &self,
        clock: Clock,
        accepts: impl Fn(IpAddr) -> bool,
        pages: impl Iterator<Item = usize>,
        slots: impl Fn(usize) -> I,
    ) -> Choice {
        let mut best: Option<(u64, SlotId, IpAddr)> = None;
        let mut quarantined_until = u64::MAX;
        for page in pages.filter(|page| self.is_open(*page)) {
            for (slot, what) in slots(page) {
                let Slot::Free(since) = what else { continue };
                if best.is_some_and(|(known, ..)| known <= since) {
                    continue;
                }
                let id = SlotId { page, slot };
                let Some(ip) = self.address(id).filter(|ip| accepts(*ip)) else { continue };
                match clock.quarantined_until(since) {
                    Some(end) => quarantined_until = quarantined_until.min(end),
                    None => best = Some((since, id, ip)),
                }
                if since == 0 {
                    break;
                }
            }
            // An address that was never held has been free longest.
            if best.is_some_and(|(since, ..)| since == 0) {
                break;
            }
        }
        match best {
            Some((_, id, ip)) => Choice::Free(id, ip),
            None if quarantined_until < u64::MAX => Choice::Quarantined(quarantined_until),
            None => Choice::Full,
        }
    }

    /// Returns the slots in open blocks whose accepted address is in quarantine.
    pub fn in_quarantine(&self, clock: Clock, accepts: impl Fn(IpAddr) -> bool) -> Vec<SlotId> {
        let open = (0..self.pages()).filter(|page| self.is_open(*page));
        let slots =
            open.flat_map(|page| self.slots(page).map(move |(slot, what)| (SlotId { page, slot }, what)));
        let is_waiting = |what| matches!(what, Slot::Free(since) if clock.quarantined_until(since).is_some());
        let waiting = slots.filter(|(_, what)| is_waiting(*what)).map(|(id, _)| id);
        waiting.filter(|id| self.address(*id).is_some_and(&accepts)).collect()
    }

    /// Counts addresses by state. Only open blocks have free addresses, and only accepted ones count as free.
    pub fn usage(&self, clock: Clock, accepts: impl Fn(IpAddr) -> bool) -> Usage {
        let mut usage = Usage::default();
        for block in self.blocks() {
            for (slot, what) in self.slots(block.page) {
                match what {
                    Slot::Held { .. } => usage.held += 1,
                    Slot::Free(since) if block.is_open() => {
                        if clock.quarantined_until(since).is_some() {
                            usage.quarantined += 1;
                        } else if accepts(nth(block.net, slot as u128)) {
                            usage.free += 1;
                        }
                    }
                    _ => {}
                }
            }
        }
        usage
    }

    /// Whether at least `enough` accepted addresses can be allocated now, including those in drained blocks.
    pub fn has_free(&self, clock: Clock, accepts: impl Fn(IpAddr) -> bool, enough: usize) -> bool {
        let is_free = |page: usize, slot: usize, what: Slot| {
            let is_free = matches!(what, Slot::Free(since) if clock.quarantined_until(since).is_none());
            is_free && self.address(SlotId { page, slot }).is_some_and(&accepts)
        };
        let unhinted =
            |page| self.slots_without_hint(page).filter(move |(slot, what)| is_free(page, *slot, *what));
        let all = |page| self.slots(page).filter(move |(slot, what)| is_free(page, *slot, *what));
        let is_usable = |page: &usize| self.is_usable(*page);
        self.pages_with_free_hint().filter(is_usable).flat_map(unhinted).take(enough).count() == enough
            // A free address may have a hint that was left behind.
            || (0..self.pages()).filter(is_usable).flat_map(all).take(enough).count() == enough
    }

    /// Whether nothing in a block is held or in quarantine.
    pub fn is_idle(&self, block: &Block, clock: Clock) -> bool {
        let is_idle = |what| match what {
            Slot::Free(since) => clock.quarantined_until(since).is_none(),
            Slot::Reserved => true,
            Slot::Held { .. } | Slot::Unknown => false,
        };
        !self.seems_held(block.page) && self.slots(block.page).all(|(_, what)| is_idle(what))
    }

    /// Whether an address in a block is held, or in an unknown state.
    pub fn is_held(&self, block: &Block) -> bool {
        let is_held = |what| matches!(what, Slot::Held { .. } | Slot::Unknown);
        self.seems_held(block.page) || self.slots(block.page).any(|(_, what)| is_held(what))
    }

    /// Returns how many addresses in a block are held according to the hints: an upper bound.
    pub fn held_count(&self, block: &Block) -> u64 {
        let hints = self.hints(block.page);
        (hints.len() / HINT - hints::positions(hints, hints::FREE).count()) as u64
    }

    /// Returns how many addresses in a block are free and not in quarantine; 0 if every hint says held.
    pub fn free_count(&self, block: &Block, clock: Clock) -> u64 {
        if !hints::contains(self.hints(block.page), hints::FREE) {
            return 0;
        }
        let is_free =
            |what: &Slot| matches!(what, Slot::Free(since) if clock.quarantined_until(*since).is_none());
        self.slots(block.page).filter(|(_, what)| is_free(what)).count() as u64
    }

    /// Returns when an address in a block was last released, or the block leased; milliseconds since 1970.
    pub fn last_used(&self, block: &Block) -> u64 {
        let released = self.slots(block.page).map(|(_, what)| match what {
            Slot::Free(since) => since,
            _ => 0,
        });
        released.max().unwrap_or(0).max(block.leased_at)
    }

    /// Returns the pages whose block has a free address according to the hints.
    fn pages_with_free_hint(&self) -> impl Iterator<Item = usize> {
        (0..self.pages()).filter(|page| self.net(*page).is_some() && self.image.has_free_hint(*page))
    }

    /// Returns the slots in a page that are free according to the hints.
    fn slots_without_hint(&self, page: usize) -> impl Iterator<Item = (usize, Slot)> {
        hints::positions(self.hints(page), hints::FREE).filter_map(move |slot| {
            Some((slot, super::format::slot_in(self.image.slots(page)?.get(slot * SLOT..)?)))
        })
    }

    /// Whether the first address with a hint is held, or cannot be read. One read decides this for most blocks in use.
    fn seems_held(&self, page: usize) -> bool {
        if self.image.hints(page).is_none() {
            return true;
        }
        let hinted = self.hints(page).as_chunks().0.iter().position(|hint| *hint != hints::FREE);
        hinted
            .is_some_and(|slot| matches!(self.slot(SlotId { page, slot }), Slot::Held { .. } | Slot::Unknown))
    }
}
