//! One call's turn at a ledger, and the agent's answer to what the ledger lacks.
//!
//! ```text
//!   give ──► Given │ Ask(wish) ──► [`ask`] ──► agent: [`serve`] ──► Supply ──► [`receive`] ──► give
//!   take_back · tidy: blocks that nobody needs are marked, and go with the next question
//!
//!   sparse ──tidy──► draining ──last one freed──► returning ──asked──► the pool's
//!      ▲                 │
//!      └── no other address is free
//! ```
//!
//! Rules: whoever has the turn has the ledger to itself; every edit is written before anything else is done; after each
//! of them the call may be killed.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::address_filter::Filter;
use crate::address_store::{Block, Choice, Clock, Edit, Lease, Ledger, Place, Slot, State};
use crate::allocator::{Asked, Counter, Refusal, give_back};
use crate::confirm::{confirm, doubt, held_in, held_in_doubt, held_otherwise};
use crate::number::number;
use crate::pool_layout::addresses_of;
use crate::registry::{Object, Registry};

/// A block that holds at most this part of its addresses may be emptied.
const SPARSE: u64 = 4;
/// This part of a block's addresses must be free in the others before it is.
const SPARE: u64 = 4;
/// Of those who want an address of their own at once, one in so many begins with the same.
const APART: u128 = 16;

/// What a call wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Nothing but to give back and to confirm.
    Nothing,
    /// Any address.
    Any,
    /// An address of its own, which may be kept when its owner goes: the one that is kept, one outside of all blocks, or
    /// this one, which is free in the ledger.
    Kept(Option<IpAddr>),
    /// This very address.
    Address(IpAddr),
    /// This very address, of its own.
    KeptAddress(IpAddr),
}

/// How a turn went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Turn {
    /// This address, once the edits are written; none if it was held before.
    Given(Place, IpAddr, Vec<Edit>),
    /// The ledger lacks this.
    Ask(Wish, Option<Refusal>),
    /// It cannot be had.
    Refused(Refusal),
}

/// What a ledger tells about its blocks, and what is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// The blocks.
    pub known: Vec<Known>,
    /// What is wanted.
    pub wish: Wish,
}

/// A block of a ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// Its addresses.
    pub net: IpNet,
    /// Which lease of it.
    pub lease: String,
    /// What it is to the node.
    pub state: State,
    /// What in it is held, though it must be asked whose it is.
    pub held: Vec<IpAddr>,
}

/// The answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Supply {
    /// Leased now.
    pub leases: Vec<Lease>,
    /// Given back: these leases are to be forgotten.
    pub gone: Vec<String>,
    /// Still this node's, under a new lease: the old one and the new one.
    pub confirmed: Vec<(String, String)>,
    /// Not this node's any more.
    pub lost: Vec<String>,
    /// Why what was wanted is not there.
    pub refusal: Option<Refusal>,
}

/// Gives the owner with this mark an address: the one it has, else one that is free.
pub fn give(ledger: &mut Ledger, clock: Clock, filter: &Filter, mark: u64, wish: Wish) -> Turn {
    if let Some(place) = ledger.held_by(mark).next()
        && let Some(ip) = ledger.address(place)
    {
        return match wish {
            Wish::Address(wanted) | Wish::KeptAddress(wanted) if wanted != ip => {
                Turn::Refused(Refusal::Already(ip))
            }
            _ => Turn::Given(place, ip, Vec::new()),
        };
    }
    match wish {
        Wish::Address(ip) => give_this(ledger, clock, mark, ip),
        Wish::Kept(_) => Turn::Ask(wish, None),
        Wish::KeptAddress(ip) if held(ledger, ip).is_some() => Turn::Refused(Refusal::Here(ip)),
        Wish::KeptAddress(_) => Turn::Ask(wish, None),
        Wish::Any | Wish::Nothing => give_any(ledger, clock, filter, mark),
    }
}

/// Where the ledger has this address for somebody, or cannot say.
fn held(ledger: &Ledger, ip: IpAddr) -> Option<Place> {
    let mut places = ledger.all_of(ip).map(|(_, place)| place);
    places.find(|place| matches!(ledger.slot(*place), Slot::Held(..) | Slot::Unknown))
}

/// An address of the ledger's blocks that could be given up for somebody to keep: `named`, which is perhaps a hole by now, or one
/// that is free and was not `tried`. Those who ask at once begin with different ones, if they can.
pub fn spare(
    ledger: &mut Ledger,
    clock: Clock,
    filter: &Filter,
    mark: u64,
    named: Option<IpAddr>,
    tried: &[IpAddr],
) -> Option<IpAddr> {
    let named = named.filter(|ip| !tried.contains(ip) && held(ledger, *ip).is_none());
    if named.is_some() {
        return named;
    }
    let any = |ip| filter.admits(ip) && !tried.contains(&ip);
    let own = |ip| any(ip) && number(ip) % APART == u128::from(mark) % APART;
    for accepts in [&own as &dyn Fn(IpAddr) -> bool, &any] {
        let (choice, undrained) = choose(ledger, clock, accepts);
        if let Some((page, _)) = undrained {
            // What is given up does not fill the block.
            drop(ledger.drain(page, true));
        }
        if let Choice::Free(_, ip) = choice {
            return Some(ip);
        }
    }
    None
}

fn give_any(ledger: &mut Ledger, clock: Clock, filter: &Filter, mark: u64) -> Turn {
    let (choice, undrained) = choose(ledger, clock, &|ip| filter.admits(ip));
    match choice {
        Choice::Free(place, ip) => {
            let mut edits: Vec<Edit> = undrained.map(|(_, edit)| edit).into_iter().collect();
            edits.extend(ledger.hold(place, clock.now, mark));
            Turn::Given(place, ip, edits)
        }
        Choice::Resting(until) => Turn::Ask(Wish::Any, Some(Refusal::Resting(until))),
        Choice::Full => Turn::Ask(Wish::Any, None),
    }
}

/// One of a block that is being emptied only if there is no other; that block, which is not emptied any more.
fn choose(
    ledger: &mut Ledger,
    clock: Clock,
    accepts: &dyn Fn(IpAddr) -> bool,
) -> (Choice, Option<(usize, Edit)>) {
    let choice = ledger.choose(clock, accepts);
    if matches!(choice, Choice::Free(..)) {
        return (choice, None);
    }
    let draining: Vec<usize> = ledger.draining().collect();
    for page in draining {
        let edit = ledger.drain(page, false);
        match ledger.choose(clock, accepts) {
            free @ Choice::Free(..) => return (free, Some((page, edit))),
            _ => drop(ledger.drain(page, true)),
        }
    }
    (choice, None)
}

/// Whoever names an address does not wait until it has rested.
fn give_this(ledger: &mut Ledger, clock: Clock, mark: u64, ip: IpAddr) -> Turn {
    let refused = Refusal::Here(ip);
    let Some(place) = ledger.find(ip) else { return Turn::Ask(Wish::Address(ip), None) };
    let Some(block) = ledger.block(place.page) else { return Turn::Refused(refused) };
    match (block.state, ledger.slot(place)) {
        (State::Active, Slot::Free(_)) if !block.bound => {
            Turn::Given(place, ip, ledger.hold(place, clock.now, mark).into())
        }
        (_, Slot::Held(..) | Slot::Unknown) => Turn::Refused(refused),
        _ => Turn::Ask(Wish::Address(ip), Some(refused)),
    }
}

/// Takes back what the owners with these marks hold; its edits.
pub fn take_back(ledger: &mut Ledger, now: u64, marks: &[u64]) -> Vec<Edit> {
    let own: Vec<Place> = marks.iter().flat_map(|mark| ledger.held_by(*mark)).collect();
    free(ledger, now, &own)
}

/// Takes back what is held at these places; its edits.
pub fn free(ledger: &mut Ledger, now: u64, places: &[Place]) -> Vec<Edit> {
    let mut edits = Vec::new();
    for place in places {
        edits.extend(ledger.free(*place, now));
        if ledger.block(place.page).is_some_and(|block| block.bound) {
            edits.push(ledger.set(place.page, State::Returning));
        }
    }
    edits
}

/// What a ledger says to giving an address up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GiveUp {
    /// It is a hole once these edits are on the disk; none if it was one before.
    Hole(Vec<Edit>),
    /// It is held.
    Held(Place),
    /// The ledger has no such lease: it is not written down yet, or not any more.
    Unknown,
}

/// Gives an address of a block up, for another node to have: whether it has rested or not, for it was named.
///
/// Only when the edits are on the disk may the registry be told.
pub fn give_up(ledger: &mut Ledger, lease: &str, ip: IpAddr) -> GiveUp {
    if let Some(place) = held(ledger, ip) {
        return GiveUp::Held(place);
    }
    let found = ledger.all_of(ip).find(|(block, _)| !block.bound && block.uid == lease);
    match found {
        Some((_, place)) if ledger.slot(place) == Slot::Hole => GiveUp::Hole(Vec::new()),
        Some((_, place)) => GiveUp::Hole(vec![ledger.give_up(place)]),
        None => GiveUp::Unknown,
    }
}

/// Marks the blocks that nobody needs: those for one owner that is gone, those that were to be emptied and are, and those
/// idle for `idle` milliseconds while `keep` addresses are free elsewhere. What holds little is to be emptied.
pub fn tidy(ledger: &mut Ledger, clock: Clock, idle: u64, keep: u64) -> Vec<Edit> {
    let blocks: Vec<Block> = ledger.blocks().collect();
    let mut free = None;
    let mut edits = Vec::new();
    // A block that was leased again keeps what is held in the page before from everybody else.
    let is_around = |block: &Block| {
        let before = |other: &&Block| other.net == block.net && other.uid != block.uid && !block.bound;
        blocks.iter().filter(before).any(|other| ledger.is_held(other))
    };
    let unneeded = |block: &&Block| block.state == State::Active && !is_around(block);
    let unneeded: Vec<&Block> = blocks.iter().filter(unneeded).collect();
    for block in unneeded {
        let is_over = match (block.bound, block.draining) {
            (true, _) => !ledger.is_held(block),
            (_, true) => ledger.is_idle(block, clock),
            _ => false,
        };
        if is_over {
            edits.push(ledger.set(block.page, State::Returning));
        } else if block.is_open()
            && ledger.is_idle(block, clock)
            && ledger.last_used(block).saturating_add(idle) <= clock.now
        {
            let free = free.get_or_insert_with(|| ledger.count(clock, |_| true).free);
            let rest = free.saturating_sub(ledger.free_in(block, clock));
            if rest >= keep {
                *free = rest;
                edits.push(ledger.set(block.page, State::Returning));
            }
        }
    }
    edits.extend(drain_the_emptiest(ledger, clock, keep));
    edits
}

/// Begins to empty a block, if what it holds is little and the others have room for that and for [`SPARE`] of a block
/// besides: so much must come and go before the node needs what it has given back.
fn drain_the_emptiest(ledger: &mut Ledger, clock: Clock, keep: u64) -> Option<Edit> {
    let open: Vec<Block> = ledger.blocks().filter(Block::is_open).collect();
    let size = |block: &Block| u64::try_from(addresses_of(block.net)).unwrap_or(u64::MAX);
    // An empty one goes when it was idle for long enough.
    let held = open.iter().map(|block| (ledger.held_in(block), block));
    let sparse = held.filter(|(held, block)| *held > 0 && *held <= size(block) / SPARSE);
    let (held, block) = sparse.min_by_key(|(held, block)| (*held, block.page))?;
    let enough = held + keep.max(size(block) / SPARE);
    let mut elsewhere = 0;
    for other in open.iter().filter(|other| other.page != block.page) {
        elsewhere += ledger.free_in(other, clock);
        if elsewhere >= enough {
            return Some(ledger.drain(block.page, true));
        }
    }
    None
}

/// Is something in a block held, though it must be asked whose it is? After a boot nothing is.
pub fn is_held_in_doubt(ledger: &Ledger, block: &Block) -> bool {
    block.state == State::Unconfirmed && ledger.is_held(block)
}

/// The question for the agent.
pub fn ask(ledger: &Ledger, wish: Wish) -> Ask {
    let known = |block: Block| {
        let held = if is_held_in_doubt(ledger, &block) { held_in(ledger, &block) } else { Vec::new() };
        Known { net: block.net, lease: block.uid, state: block.state, held }
    };
    Ask { known: ledger.blocks().map(known).collect(), wish }
}

/// Writes the answer down; what was leased for one owner is held by it at once.
pub fn receive(ledger: &mut Ledger, clock: Clock, mark: u64, supply: &Supply) -> Vec<Edit> {
    let mut edits = Vec::new();
    let blocks: Vec<Block> = ledger.blocks().collect();
    for block in blocks {
        let among = |leases: &[String]| leases.contains(&block.uid);
        match block.state {
            State::Returning if among(&supply.gone) => edits.push(ledger.drop_block(block.page)),
            // What is held stays to be known; nobody new comes into it.
            State::Unconfirmed if among(&supply.lost) && !ledger.is_held(&block) => {
                edits.push(ledger.drop_block(block.page));
            }
            State::Unconfirmed => {
                let confirmed = supply.confirmed.iter().find(|(old, _)| *old == block.uid);
                edits.extend(confirmed.map(|(_, new)| ledger.confirm(block.page, new)));
            }
            _ => {}
        }
    }
    for lease in &supply.leases {
        let mut lease = lease.clone();
        // Its block was deleted under who holds it, and whoever leased it could not know.
        match lease.bound.then(|| set_apart(ledger, lease.net.addr())) {
            Some(None) => continue,
            Some(Some(holes)) => edits.extend(holes),
            None => {}
        }
        // What was leased of it before is not the node's any more.
        let before: Vec<Block> =
            ledger.blocks().filter(|block| block.net == lease.net && block.uid != lease.uid).collect();
        edits.extend(before.iter().filter_map(|block| doubt(ledger, &block.uid)));
        lease.holes.extend(held_otherwise(ledger, &lease));
        edits.extend(ledger.add(&lease, clock.now));
        let of_lease = |block: &Block| block.uid == lease.uid && block.net == lease.net;
        let page = ledger.blocks().find(of_lease).map(|block| block.page);
        if let (true, Some(page)) = (lease.bound, page) {
            edits.extend(ledger.hold(Place { page, slot: 0 }, clock.now, mark));
        }
    }
    edits
}

/// Makes a single address a hole of the blocks around it; nothing if somebody holds it there.
fn set_apart(ledger: &mut Ledger, ip: IpAddr) -> Option<Vec<Edit>> {
    let blocks = ledger.all_of(ip).filter(|(block, _)| !block.bound);
    let slots: Vec<(Place, Slot)> = blocks.map(|(_, place)| (place, ledger.slot(place))).collect();
    if slots.iter().any(|(_, slot)| matches!(slot, Slot::Held(..) | Slot::Unknown)) {
        return None;
    }
    let free = slots.into_iter().filter(|(_, slot)| matches!(slot, Slot::Free(_)));
    Some(free.map(|(place, _)| ledger.give_up(place)).collect())
}

/// The agent's side: gives back, confirms, leases.
///
/// `seen` is what is believed to be this ledger's; it may be old. What was leased since the question was asked must not be in it.
pub async fn serve<R: Registry>(counter: &Counter<'_, R>, ask: &Ask, seen: &[Object]) -> Supply {
    let mut supply = Supply::default();
    give_back_returning(counter, ask, &mut supply).await;
    if ask.known.iter().any(|known| known.state == State::Unconfirmed)
        && let Err(refusal) = confirm(counter, ask, seen, &mut supply).await
    {
        supply.refusal = Some(refusal);
    }
    let (before, mut seen) = (seen, seen.to_vec());
    // It was leased again, and nobody heard of it; a block is adopted, around what is held.
    let is_again = |object: &Object| held_in_doubt(ask).any(|net| net == object.net);
    seen.retain(|object| !is_again(object) || !object.is_single() && ask.wish != Wish::Nothing);
    if ask.wish == Wish::Nothing {
        if let Err(refusal) = counter.give_back_unknown(&seen, &ask.known).await {
            supply.refusal = Some(refusal);
        }
        return supply;
    }
    // It may be free in what is confirmed.
    match ask.wish {
        Wish::Any if !supply.confirmed.is_empty() || !supply.leases.is_empty() => return supply,
        Wish::Address(ip) if is_confirmed(ask, &supply, ip) => return supply,
        _ => {}
    }
    let leased = match counter.adopt(&seen, &ask.known).await {
        Ok(adopted) if !adopted.is_empty() => {
            supply.leases.extend(adopted);
            match ask.wish {
                Wish::Any => return supply,
                // It may lie in what was adopted.
                Wish::Address(ip) if supply.leases.iter().any(|lease| lease.net.contains(&ip)) => {
                    return supply;
                }
                _ => lease(counter, ask, before).await,
            }
        }
        Ok(_) => lease(counter, ask, before).await,
        Err(refusal) => Err(refusal),
    };
    match leased {
        Ok(lease) => supply.leases.push(lease),
        Err(refusal) => supply.refusal = Some(refusal),
    }
    supply
}

/// Gives back what is to be. That is all that may be asked for without the ledger's lock: a lease that is returning is nothing
/// else ever after.
pub async fn give_back_returning<R: Registry>(counter: &Counter<'_, R>, ask: &Ask, supply: &mut Supply) {
    for Known { net, lease, .. } in ask.known.iter().filter(|known| known.state == State::Returning) {
        match give_back(counter.registry, *net, lease, counter.clock.now).await {
            Ok(()) => supply.gone.push(lease.clone()),
            Err(fault) => supply.refusal = Some(fault.into()),
        }
    }
}

/// Does an address lie in a block that was just confirmed?
fn is_confirmed(ask: &Ask, supply: &Supply, ip: IpAddr) -> bool {
    let mut around = ask.known.iter().filter(|known| known.net.contains(&ip));
    around.any(|known| supply.confirmed.iter().any(|(old, _)| *old == known.lease))
}

async fn lease<R: Registry>(counter: &Counter<'_, R>, ask: &Ask, seen: &[Object]) -> Result<Lease, Refusal> {
    let asked = Asked { known: &ask.known, seen };
    let leased = match ask.wish {
        Wish::Address(ip) | Wish::KeptAddress(ip) => counter.address(ip, asked).await,
        Wish::Any if !counter.grid.is_single() => counter.block_or_address(asked).await,
        Wish::Kept(spare) => counter.any_address(spare, asked).await,
        Wish::Any | Wish::Nothing => counter.any_address(None, asked).await,
    }?;
    if leased.bound { counter.standing(leased).await } else { Ok(leased) }
}
