//! Whether what a ledger has is still its node's: after a boot, and when the registry says otherwise although there was none.
//!
//! ```text
//!   active ──boot; [`doubt`]──► unconfirmed ──asked──► its object is the node's ──► active, under a new lease
//!                                              ├──► nobody's, and something in it is held ──► taken again
//!                                              └──► else: lost; its page stays as long as something in it is held
//! ```
//!
//! A node may be taken for dead and live: its blocks are given to others, or to nobody, while its ledger goes on. So its agent
//! compares, and has the ledger doubt what is not its node's any more.
//!
//! Rules: nobody new comes into a block in doubt; what is held in one that is nobody's must not become another's, so it is leased
//! anew, and what is held in the page before is a hole in the new one: nothing is held twice.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::Grid;
use crate::address_store::{Block, Edit, Lease, Ledger, Slot, State};
use crate::allocate::{Ask, Known, Supply};
use crate::allocator::{Counter, Refusal, block_around, give_back, of_block, was_seen};
use crate::registry::{Fault, Holder, Object, Registry, Standing, make};

/// Lets nobody new into a lease until it was asked whose it is; no edit where there is nothing to doubt.
pub fn doubt(ledger: &mut Ledger, lease: &str) -> Option<Edit> {
    let block = ledger.blocks().find(|block| block.uid == lease && block.state == State::Active)?;
    Some(ledger.set(block.page, State::Unconfirmed))
}

/// Is this lease in doubt, and nothing in its block held? It may be given back then, unless it is confirmed before.
pub fn is_over(ledger: &Ledger, lease: &str) -> bool {
    let in_doubt = |block: &Block| block.uid == lease && block.state == State::Unconfirmed;
    let Some(own) = ledger.blocks().find(in_doubt) else { return false };
    !is_held_inside(ledger, own.net)
}

/// Is something of a block held, in whichever page?
pub fn is_held_inside(ledger: &Ledger, net: IpNet) -> bool {
    let mut inside = ledger.blocks().filter(|block| net.contains(&block.net));
    inside.any(|block| ledger.is_held(&block))
}

/// What of a block is held in pages of other leases: of it, or of single addresses in it.
pub(crate) fn held_otherwise(ledger: &Ledger, lease: &Lease) -> Vec<IpAddr> {
    let meets = |block: &Block| lease.net.contains(&block.net) && block.uid != lease.uid && !lease.bound;
    ledger.blocks().filter(meets).flat_map(|block| held_in(ledger, &block)).collect()
}

/// What of a block is held, or cannot be told not to be.
pub(crate) fn held_in(ledger: &Ledger, block: &Block) -> Vec<IpAddr> {
    let slots = ledger.slots_of(block).enumerate();
    let held = slots.filter(|(_, what)| matches!(what, Slot::Held(..) | Slot::Unknown));
    held.map(|(slot, _)| crate::pool_layout::nth(block.net, slot as u128)).collect()
}

/// Asks which of the blocks are still this node's.
pub(crate) async fn confirm<R: Registry>(
    counter: &Counter<'_, R>,
    ask: &Ask,
    seen: &[Object],
    supply: &mut Supply,
) -> Result<(), Refusal> {
    let own = counter.registry.of(&counter.holder.node, &counter.holder.ledger).await?;
    for known in ask.known.iter().filter(|known| known.state == State::Unconfirmed) {
        let Known { net, lease, .. } = known;
        let is_it = |object: &Object| object.net == *net && object.lease_id() == *lease;
        let found = match own.iter().find(|object| is_it(object)) {
            Some(object) => Some(object.clone()),
            // The ledger may have had another name when it was leased.
            None => {
                let object = counter.registry.read(*net).await?;
                object.filter(|object| is_it(object) && object.holder.node == counter.holder.node)
            }
        };
        let Some(object) = found else {
            supply.lost.push(lease.clone());
            let is_elsewhere = |other: &Known| other.net == *net && other.lease != *lease;
            if !known.held.is_empty() && !ask.known.iter().any(is_elsewhere) {
                take_again(counter, (ask, seen), known, supply).await?;
            }
            continue;
        };
        // If somebody has changed it since, the next question shows who.
        if let Some(new) = counter.confirm(&object).await? {
            supply.confirmed.push((lease.clone(), new));
        }
    }
    Ok(())
}

/// Leases what is nobody's although something in it is held here.
async fn take_again<R: Registry>(
    counter: &Counter<'_, R>,
    (ask, seen): (&Ask, &[Object]),
    known: &Known,
    supply: &mut Supply,
) -> Result<(), Refusal> {
    let is_single = known.net.prefix_len() == known.net.max_prefix_len();
    // The pool may have been cut otherwise since.
    if !is_single && counter.grid.block_of(known.net.addr()) != Some(known.net) {
        return Ok(());
    }
    let Holder { node, ledger, .. } = counter.holder.clone();
    let holder = Holder { node, ledger, ..Holder::default() };
    let Some(made) = take(counter.registry, known.net, &holder, seen).await? else {
        return Ok(());
    };
    if !made.is_single() {
        supply.leases.push(of_block(&counter.with_holes(made, &ask.known).await?));
    } else if counter.block_around(made.net.addr()).await?.is_some() {
        // It stays ours, and in doubt: whoever is leasing the block finds it, and it is a hole there by the next question.
    } else if counter.registry.standing(made.net).await? != Standing::Mixed {
        give_back(counter.registry, made.net, &made.lease_id(), counter.clock.now).await?;
    } else {
        supply.lost.retain(|lease| *lease != known.lease);
        supply.confirmed.push((known.lease.clone(), made.lease_id()));
    }
    Ok(())
}

/// What is nobody's, or was leased again already by this holder before it asked (`seen`), and was told to nobody; what keeps a
/// single address goes on keeping it.
async fn take<R: Registry>(
    registry: &R,
    net: IpNet,
    holder: &Holder,
    seen: &[Object],
) -> Result<Option<Object>, Fault> {
    match make(registry, net, holder).await {
        Err(Fault::Conflict) => {}
        other => return other.map(Some),
    }
    // The object of a single address outlives its lease.
    let is_again = |object: &Object| {
        (&object.holder.node, &object.holder.ledger) == (&holder.node, &holder.ledger)
            && was_seen(object, seen)
    };
    let may_be_had =
        |object: &Object| object.is_single() && (object.holder.node.is_empty() || is_again(object));
    let Some(object) = registry.read(net).await?.filter(may_be_had) else { return Ok(None) };
    let Holder { owner, claim, turn, .. } = object.holder.clone();
    let owner = if owner.is_empty() { holder.owner.clone() } else { owner };
    let holder = Holder { owner, claim, turn: turn + 1, ..holder.clone() };
    match registry.replace(&Object { holder, ..object }).await {
        Err(Fault::Conflict) => Ok(None),
        other => other.map(Some),
    }
}

/// Leases what is in doubt and held before anybody asks, if it is nobody's; whether it was. The next question of its ledger finds
/// it.
///
/// # Errors
/// The registry's.
pub async fn lease_again<R: Registry>(
    registry: &R,
    grid: Grid,
    net: IpNet,
    holder: &Holder,
    now: u64,
) -> Result<bool, Fault> {
    let Some(made) = take(registry, net, holder, &[]).await? else { return Ok(false) };
    let is_had = match registry.standing(net).await? {
        Standing::Anew => false,
        Standing::Mixed => true,
        // Of a single address it would say so.
        Standing::Whole => !made.is_single(),
    };
    if !is_had {
        give_back(registry, net, &made.lease_id(), now).await?;
        return Ok(false);
    }
    // Inside of somebody's block it stays in doubt, and is not given back: it may be seen by who is leasing that.
    Ok(!made.is_single() || block_around(registry, grid, net.addr()).await?.is_none())
}

/// The networks in which something is held though the lease is in doubt.
pub(crate) fn held_in_doubt(ask: &Ask) -> impl Iterator<Item = IpNet> {
    let in_doubt = |known: &&Known| !known.held.is_empty() && known.state == State::Unconfirmed;
    ask.known.iter().filter(in_doubt).map(|known| known.net)
}
