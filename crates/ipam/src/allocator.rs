//! How a node comes by blocks and single addresses, and gives them back.
//!
//! ```text
//!   block     create ──► made: does its pool stand, and was a single address ever made inside? ── no ──► leased
//!                   │                                      └── yes: those that are there are holes ──► leased
//!                   └──► there is one: another block
//!   address   told ──► create ──► made: is its block leased? ── no: does its pool stand? ──► leased
//!                            └──► there is one: ours? nobody's? our claim's? else refused
//! ```
//!
//! A block and an address in it may be leased at the same moment: each is written first, then looks for the other,
//! so at least one sees it. The address gives way; one that somebody named asks for a hole before: [`crate::transfer`].
//! What an address writes first of all is the pool's word that there is one in its block, which is never taken back: who has
//! made a block and does not find it there is seen by every address that is made later, and none was made before. So the one
//! look at the pool stands for both questions.
//!
//! A pool may be deleted, made anew and cut otherwise while something is leased of it: what was made is used only if the pool still
//! stands after that. If it does not, whoever cut the new one has not seen the object; if it does, whoever cuts another one
//! will.
//!
//! Rules: an answer that was lost leaves an object that is ours; it is found again (`adopt`) before another is made. A question
//! whose asker is dead may go on beside the next one of its ledger. So of what is ours a question takes or gives back only
//! what was ours, under the same lease, before it was asked (`seen`): what came later may be in use. What the ledger has (`known`) is
//! not leased for anybody else, whatever has become of its object: somebody may hold something in it.

use std::collections::HashSet;
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::address_filter::Filter;
use crate::address_store::{Clock, Lease, State};
use crate::allocate::Known;
use crate::pool_layout::Grid;
use crate::registry::{Fault, Holder, Object, Registry, Standing, make};

/// Blocks tried before the pool is listed.
const BLIND: usize = 2;
/// Objects tried at all.
const TRIES: usize = 64;

/// Why nothing was leased.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The range is in use, all of it.
    Exhausted,
    /// What is free must rest until then; milliseconds since 1970.
    Resting(u64),
    /// This address is somebody else's.
    Held {
        /// The address, or the block it lies in.
        net: IpNet,
        /// The node that has it; empty where a claim keeps it.
        node: String,
    },
    /// This address is in the very ledger that asks, and another container's.
    Here(IpAddr),
    /// Whoever asks for another address has this one.
    Already(IpAddr),
    /// This address lies in somebody else's block, who was asked to give it up.
    Asked {
        /// The block.
        net: IpNet,
        /// The node that has it.
        node: String,
        /// Who holds it there; empty: it has not answered.
        by: String,
    },
    /// This address lies in a block of the very ledger that asks: whoever asks must let go of that, so that it is given up.
    Own {
        /// The address.
        ip: IpAddr,
        /// The block.
        net: IpNet,
    },
    /// This address, which was to be given up to be kept, is somebody else's by now: another one does as well.
    Taken(IpAddr),
    /// Others were always quicker.
    Contended,
    /// The pool is not the one any more of which it was leased.
    Anew,
    /// The registry did not answer.
    Fault(String),
}

/// What is leased, and for whom.
#[derive(Debug)]
pub struct Counter<'a, R> {
    /// The pool's objects.
    pub registry: &'a R,
    /// How the pool is cut.
    pub grid: Grid,
    /// What the network may have.
    pub filter: &'a Filter,
    /// For whom.
    pub holder: Holder,
    /// May a claim's address be taken from a pod that is still there? A virtual machine that moves has two pods.
    pub shares_claim: bool,
    /// What time it is.
    pub clock: Clock,
    /// Where to begin to look: different for each node.
    pub seed: u64,
    /// How often it is looked whether a node that is asked for an address has given it up.
    pub looks: u32,
}

/// What was so when a question was asked.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked<'a> {
    /// What its ledger has.
    pub known: &'a [Known],
    /// What was its ledger's by then, as far as that was seen.
    pub seen: &'a [Object],
}

/// What becomes of a single address that lies in somebody's block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Inside {
    /// Another one does as well.
    GivesWay,
    /// It is this one that is wanted: the block's node is asked for it.
    IsAskedFor,
}

impl Asked<'_> {
    /// What the ledger has, but for what it gives back: a single address among that is somebody's of this node, whatever has become
    /// of its object, or of its pod's.
    fn had(&self) -> impl Iterator<Item = IpNet> {
        self.known.iter().filter(|known| known.state != State::Returning).map(|known| known.net)
    }

    fn has(&self, net: IpNet) -> bool {
        self.had().any(|had| had == net)
    }
}

impl<R: Registry> Counter<'_, R> {
    /// Leases a block; if every one is leased, an address that one of them has given up and nobody has any more.
    pub async fn block_or_address(&self, asked: Asked<'_>) -> Result<Lease, Refusal> {
        match self.block(asked).await {
            Err(Refusal::Exhausted) => self.any_address(None, asked).await,
            outcome => outcome,
        }
    }

    /// Leases a block.
    pub async fn block(&self, asked: Asked<'_>) -> Result<Lease, Refusal> {
        self.ahead(asked).await.map(|object| of_block(&object))
    }

    /// Leases a block that nobody needs yet; its object, with which it is confirmed when it is needed.
    pub async fn ahead(&self, asked: Asked<'_>) -> Result<Object, Refusal> {
        // Of what the ledger has it is to say first what is held.
        let mut taken: HashSet<IpNet> = asked.had().collect();
        // A block is the node's, whoever it was leased for.
        let Holder { node, ledger, .. } = self.holder.clone();
        let holder = Holder { node, ledger, ..Holder::default() };
        for attempt in 0..TRIES {
            if attempt == BLIND {
                taken.extend(self.registry.all().await?.iter().map(|object| object.net));
            }
            let seed = self.seed.wrapping_add((attempt as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let free = |net: &IpNet| !taken.contains(net);
            let Some(net) = self.filter.blocks(&self.grid, seed).find(free) else {
                // What was tried without looking may have been given back.
                if attempt < BLIND {
                    continue;
                }
                return Err(Refusal::Exhausted);
            };
            taken.insert(net);
            match self.registry.create(net, &holder).await {
                Ok(object) => {
                    let object = self.with_holes(object, &[]).await?;
                    if self.filter.addresses(net).any(|ip| !object.holes.contains(&ip)) {
                        return Ok(object);
                    }
                    // Every address in it is somebody's already.
                    self.return_unknown(&object).await?;
                }
                Err(Fault::Conflict) => {}
                Err(fault) => return Err(fault.into()),
            }
        }
        Err(Refusal::Contended)
    }

    /// A single address may be used if the pool is still what it was when it was begun, and says that there is one; else it is given
    /// back.
    pub(crate) async fn standing(&self, lease: Lease) -> Result<Lease, Refusal> {
        if self.registry.standing(lease.net).await? == Standing::Mixed {
            return Ok(lease);
        }
        give_back(self.registry, lease.net, &lease.uid, self.clock.now).await?;
        Err(Refusal::Anew)
    }

    /// Could an address be had: of a block of ours that is not confirmed yet, or of what could be leased?
    pub async fn has_room(&self, known: &[Known]) -> Result<(), Refusal> {
        let all = self.registry.all().await?;
        let is_ours = |known: &&Known| {
            let found = all.iter().find(|object| object.net == known.net);
            found.is_some_and(|object| {
                object.lease_id() == known.lease && object.holder.node == self.holder.node
            })
        };
        let mut unconfirmed =
            known.iter().filter(|known| known.state == State::Unconfirmed && known.held.is_empty());
        if unconfirmed.any(|known| self.filter.meets(known.net) && is_ours(&known)) {
            return Ok(());
        }
        // Who leases the block around it, or itself, may have it.
        let rested = |object: &&Object| {
            object.is_single() && object.is_nobodys() && object.rests_until(self.clock).is_none()
        };
        let taken = all.iter().filter(|object| !rested(object)).map(|object| object.net).collect();
        self.unwritten(&taken).or_else(|| self.hole(&all, &taken)).map(drop).ok_or(Refusal::Exhausted)
    }

    /// Finds the single addresses inside a block of ours and writes them down before it is used, if its pool stands; else it is
    /// given back. What the ledger has for somebody from before is no hole: who has the object of such an address may be about
    /// to ask for it.
    pub(crate) async fn with_holes(&self, mut object: Object, known: &[Known]) -> Result<Object, Refusal> {
        let inside = match self.registry.standing(object.net).await? {
            Standing::Anew => {
                self.return_unknown(&object).await?;
                return Err(Refusal::Anew);
            }
            Standing::Mixed => self.registry.inside(object.net).await?,
            Standing::Whole => Vec::new(),
        };
        let before = object.holes.len();
        for single in inside {
            let ip = single.net.addr();
            if known.iter().any(|known| known.held.contains(&ip)) {
                continue;
            }
            // Nobody's, and rested: nothing needs to be known of it any more. If somebody is taking it, it is a hole.
            if single.is_nobodys() && single.rests_until(self.clock).is_none() {
                match self.registry.delete(&single).await {
                    Ok(()) => continue,
                    Err(Fault::Conflict) => {}
                    Err(fault) => return Err(fault.into()),
                }
            }
            if !object.holes.contains(&ip) {
                object.holes.push(ip);
            }
        }
        if object.holes.len() > before {
            object = self.registry.replace(&object).await?;
        }
        Ok(object)
    }

    /// Leases this very address. Whoever names it does not wait until it has rested.
    pub async fn address(&self, ip: IpAddr, asked: Asked<'_>) -> Result<Lease, Refusal> {
        self.address_at(ip, Clock { rest: 0, ..self.clock }, Inside::IsAskedFor, asked).await
    }

    async fn address_at(
        &self,
        ip: IpAddr,
        clock: Clock,
        inside: Inside,
        asked: Asked<'_>,
    ) -> Result<Lease, Refusal> {
        let net = IpNet::from(ip);
        for _ in 0..BLIND {
            // What the ledger has had an object.
            let made = match asked.has(net) {
                true => Err(Fault::Conflict),
                false => make(self.registry, net, &self.holder).await,
            };
            let object = match made {
                Ok(object) => object,
                Err(Fault::Conflict) => match self.registry.read(net).await? {
                    Some(known) => self.take_over(known, clock, asked).await?,
                    None if asked.has(net) => return Err(Refusal::Here(ip)),
                    None => continue,
                },
                Err(fault) => return Err(fault.into()),
            };
            return self.outside_blocks(object, inside).await;
        }
        Err(Refusal::Contended)
    }

    /// A single address is ours unless somebody has the block it lies in. What a claim keeps is kept.
    async fn outside_blocks(&self, object: Object, inside: Inside) -> Result<Lease, Refusal> {
        let Some(block) = self.block_around(object.net.addr()).await? else { return Ok(single(&object)) };
        match inside {
            Inside::IsAskedFor => self.ask_for(object, block).await,
            Inside::GivesWay => {
                self.give_way(object).await?;
                Err(Refusal::Held { net: block.net, node: block.holder.node })
            }
        }
    }

    /// The block that an address lies in, if somebody has it and the address is no hole.
    pub(crate) async fn block_around(&self, ip: IpAddr) -> Result<Option<Object>, Fault> {
        block_around(self.registry, self.grid, ip).await
    }

    /// Gives a single address back that lies in somebody's block.
    pub(crate) async fn give_way(&self, object: Object) -> Result<(), Fault> {
        if object.holder.claim.is_empty() || object.holder.turn == 0 {
            return self.registry.delete(&object).await;
        }
        // Kept since before: whoever is leasing the block will see it, and find a hole next time.
        reclaim(self.registry, object, self.clock.now).await
    }

    /// Takes an address that is written down already, if it is ours to take. One that is changed meanwhile, by who
    /// answers a notice perhaps, is looked at once more.
    async fn take_over(&self, object: Object, clock: Clock, asked: Asked<'_>) -> Result<Object, Refusal> {
        let net = object.net;
        if let Some(taken) = self.take(object, clock, asked).await? {
            return Ok(taken);
        }
        let object = self.registry.read(net).await?.ok_or(Refusal::Contended)?;
        self.take(object, clock, asked).await?.ok_or(Refusal::Contended)
    }

    /// The same; nothing if it was changed meanwhile.
    async fn take(&self, object: Object, clock: Clock, asked: Asked<'_>) -> Result<Option<Object>, Refusal> {
        let Holder { node, ledger, owner, claim, turn, .. } = &object.holder;
        let (own, refused) = (&self.holder, Refusal::Held { net: object.net, node: node.clone() });
        let claimed = !claim.is_empty() && *claim == own.claim;
        let ours = node == &own.node && ledger == &own.ledger && owner == &own.owner;
        if !claim.is_empty() && !claimed {
            return Err(refused);
        }
        if !node.is_empty() {
            // An earlier answer was lost. It is taken anew, so that nobody who still works on that question gives it back.
            if ours && !was_seen(&object, asked.seen) {
                return Err(Refusal::Contended);
            }
            let movable = ours || claimed && (self.shares_claim || self.registry.is_gone(owner).await?);
            if !movable {
                return Err(refused);
            }
        } else if let (false, Some(ends)) = (claimed, object.rests_until(clock)) {
            return Err(Refusal::Resting(ends));
        }
        // A pod may be gone from the cluster, and not from its node.
        if asked.has(object.net) && !ours && !(claimed && self.shares_claim) {
            return Err(Refusal::Here(object.net.addr()));
        }
        let holder = Holder { turn: turn + 1, freed: 0, ..own.clone() };
        match self.registry.replace(&Object { holder, ..object }).await {
            Ok(object) => Ok(Some(object)),
            Err(Fault::Conflict) => Ok(None),
            Err(fault) => Err(fault.into()),
        }
    }

    /// Leases an address of the registry's choice: the one that is kept for us, else one that nobody has. If every block is
    /// leased it is `spare`, which is free in a block of our own.
    pub async fn any_address(&self, spare: Option<IpAddr>, asked: Asked<'_>) -> Result<Lease, Refusal> {
        if !self.holder.claim.is_empty() {
            let kept = self.registry.claimed(&self.holder.claim).await?;
            if let Some(object) = kept.into_iter().find(|object| self.filter.admits(object.net.addr())) {
                let object = self.take_over(object, self.clock, asked).await?;
                return self.outside_blocks(object, Inside::IsAskedFor).await;
            }
        }
        let all = self.registry.all().await?;
        let ours = |object: &&Object| {
            let Holder { node, ledger, owner, claim, .. } = &object.holder;
            let own = &self.holder;
            object.is_single()
                && (node, ledger, owner, claim) == (&own.node, &own.ledger, &own.owner, &own.claim)
        };
        if let Some(object) = all.iter().find(ours).filter(|_| !self.holder.owner.is_empty()) {
            let object = self.take_over(object.clone(), self.clock, asked).await?;
            return self.outside_blocks(object, Inside::GivesWay).await;
        }
        let mut taken: HashSet<IpNet> = all.iter().map(|object| object.net).chain(asked.had()).collect();
        for _ in 0..TRIES {
            let Some(ip) = self.unwritten(&taken).or_else(|| self.hole(&all, &taken)) else { break };
            match self.address_at(ip, self.clock, Inside::GivesWay, asked).await {
                Err(Refusal::Held { net, .. }) => taken.extend([net, IpNet::from(ip)]),
                Err(Refusal::Contended) => taken.extend([IpNet::from(ip)]),
                other => return other,
            }
        }
        match (self.released(all, asked).await, spare) {
            (Err(Refusal::Exhausted | Refusal::Resting(_) | Refusal::Contended), Some(ip)) => {
                match self.address(ip, asked).await {
                    Err(Refusal::Held { .. } | Refusal::Here(_) | Refusal::Contended) => {
                        Err(Refusal::Taken(ip))
                    }
                    outcome => outcome,
                }
            }
            (outcome, _) => outcome,
        }
    }

    /// An address that no object is about.
    fn unwritten(&self, taken: &HashSet<IpNet>) -> Option<IpAddr> {
        let free = |ip: &IpAddr| !taken.contains(&IpNet::from(*ip));
        // Blocks are leased from the node's own place on; single addresses begin elsewhere.
        let blocks = self.filter.blocks(&self.grid, !self.seed);
        let mut blocks = blocks.filter(|block| self.grid.is_single() || !taken.contains(block));
        blocks.find_map(|block| self.filter.addresses(block).find(free))
    }

    /// An address that a block has given up and no object is about: who had it, or only asked for it, has gone long since.
    fn hole(&self, all: &[Object], taken: &HashSet<IpNet>) -> Option<IpAddr> {
        let free = |ip: &IpAddr| self.filter.admits(*ip) && !taken.contains(&IpNet::from(*ip));
        all.iter().flat_map(|object| &object.holes).copied().find(free)
    }

    /// An address that was given back: the one that has rested longest.
    async fn released(&self, all: Vec<Object>, asked: Asked<'_>) -> Result<Lease, Refusal> {
        // Where one is asked for, somebody is about to have it.
        let nobodys = |object: &Object| {
            let is_free = object.is_nobodys() && object.holder.asks.is_empty();
            object.is_single() && is_free && self.filter.admits(object.net.addr())
        };
        let mut free: Vec<Object> = all.into_iter().filter(nobodys).collect();
        free.sort_by_key(|object| object.holder.freed);
        let mut refusal = Refusal::Exhausted;
        for object in free.into_iter().take(TRIES) {
            match self.take_over(object, self.clock, asked).await {
                Ok(object) => match self.outside_blocks(object, Inside::GivesWay).await {
                    // What is left of one that was asked for, in somebody's block.
                    Err(Refusal::Held { .. }) => {}
                    outcome => return outcome,
                },
                Err(resting @ Refusal::Resting(_)) => return Err(resting),
                Err(Refusal::Held { .. } | Refusal::Here(_) | Refusal::Contended) => {
                    refusal = Refusal::Contended;
                }
                Err(other) => return Err(other),
            }
        }
        Err(refusal)
    }

    /// Makes sure that a block is still ours, after the node was away: it is changed, so that nobody who looked before
    /// takes it from us. Its new lease, if it is.
    pub async fn confirm(&self, object: &Object) -> Result<Option<String>, Fault> {
        Ok(self.confirmed(object).await?.map(|object| object.lease_id()))
    }

    async fn confirmed(&self, object: &Object) -> Result<Option<Object>, Fault> {
        let ledger = self.holder.ledger.clone();
        let holder = Holder { turn: object.holder.turn + 1, ledger, ..object.holder.clone() };
        match self.registry.replace(&Object { holder, ..object.clone() }).await {
            Ok(object) => Ok(Some(object)),
            Err(Fault::Conflict) => Ok(None),
            Err(fault) => Err(fault),
        }
    }

    /// Takes a block into use that was leased ahead, if it is still ours: a notice may have come or gone since.
    pub async fn take_ahead(&self, ahead: &Object) -> Result<Option<Lease>, Fault> {
        if let Some(object) = self.confirmed(ahead).await? {
            return Ok(Some(of_block(&object)));
        }
        let is_ours =
            |object: &Object| object.lease_id() == ahead.lease_id() && object.holder.node == self.holder.node;
        match self.registry.read(ahead.net).await?.filter(is_ours) {
            Some(object) => Ok(self.confirmed(&object).await?.map(|object| of_block(&object))),
            None => Ok(None),
        }
    }

    /// Takes into use what is ours and the node does not know: its answer was lost, or its disk.
    ///
    /// `seen` may be old; nothing is taken that is not still so. An address of another owner is given back.
    pub async fn adopt(&self, seen: &[Object], known: &[Known]) -> Result<Vec<Lease>, Refusal> {
        let mut leases = Vec::new();
        for object in self.unknown(seen, known).await? {
            let is_block = !object.is_single() && !self.grid.is_single();
            if is_block && self.grid.block_of(object.net.addr()) == Some(object.net) {
                // Under a new lease: an older question, whose call is dead, may be about to give it back.
                let holder = Holder { turn: object.holder.turn + 1, ..object.holder.clone() };
                let object = self.registry.replace(&Object { holder, ..object }).await?;
                leases.push(of_block(&self.with_holes(object, known).await?));
            } else if is_block || object.holder.owner != self.holder.owner {
                // A block of another cut was made too late for who cut the pool to see it.
                self.return_unknown(&object).await?;
            }
        }
        Ok(leases)
    }

    /// Gives back what is ours and the node does not know.
    pub async fn give_back_unknown(&self, seen: &[Object], known: &[Known]) -> Result<(), Refusal> {
        for object in self.unknown(seen, known).await? {
            self.return_unknown(&object).await?;
        }
        Ok(())
    }

    async fn return_unknown(&self, object: &Object) -> Result<(), Fault> {
        give_back(self.registry, object.net, &object.lease_id(), self.clock.now).await
    }

    async fn unknown(&self, seen: &[Object], known: &[Known]) -> Result<Vec<Object>, Fault> {
        let known: HashSet<&str> = known.iter().map(|known| known.lease.as_str()).collect();
        let mut unknown = Vec::new();
        for old in seen.iter().filter(|object| !known.contains(object.lease_id().as_str())) {
            let Some(object) = self.registry.read(old.net).await? else { continue };
            let Holder { node, ledger, .. } = &object.holder;
            let ours = node == &self.holder.node && ledger == &self.holder.ledger;
            if ours && object.lease_id() == old.lease_id() {
                unknown.push(object);
            }
        }
        Ok(unknown)
    }
}

/// Was it this lease before?
pub(crate) fn was_seen(object: &Object, seen: &[Object]) -> bool {
    seen.iter().any(|old| old.net == object.net && old.lease_id() == object.lease_id())
}

/// The block that an address lies in, if somebody has it and the address is no hole.
pub(crate) async fn block_around<R: Registry>(
    registry: &R,
    grid: Grid,
    ip: IpAddr,
) -> Result<Option<Object>, Fault> {
    match grid.block_of(ip).filter(|_| !grid.is_single()) {
        Some(net) => Ok(registry.read(net).await?.filter(|block| !block.holes.contains(&ip))),
        None => Ok(None),
    }
}

/// The lease of a block.
pub fn of_block(object: &Object) -> Lease {
    Lease { net: object.net, uid: object.lease_id(), bound: false, holes: object.holes.clone() }
}

/// The lease of a single address.
pub(crate) fn single(object: &Object) -> Lease {
    Lease { net: object.net, uid: object.lease_id(), bound: true, holes: Vec::new() }
}

/// Gives a block or an address back. What is not that lease any more was given back before.
///
/// The object of a single address stays: it says since when the address rests.
pub async fn give_back<R: Registry>(registry: &R, net: IpNet, lease: &str, now: u64) -> Result<(), Fault> {
    for _ in 0..BLIND {
        let Some(object) = registry.read(net).await? else { return Ok(()) };
        if object.lease_id() != lease || object.holder.node.is_empty() {
            return Ok(());
        }
        match reclaim(registry, object, now).await {
            // It was changed under our hands: a notice may have come or gone.
            Err(Fault::Conflict) => {}
            other => return other,
        }
    }
    Err(Fault::Unknown("somebody else is changing it".to_owned()))
}

/// Takes from a node what it had; only if that is as it was when `object` was read.
///
/// Read first, then make sure that the node is gone, then take: a node that came back has changed what it has.
pub async fn reclaim<R: Registry>(registry: &R, mut object: Object, now: u64) -> Result<(), Fault> {
    if object.is_single() {
        let Holder { claim, turn, .. } = object.holder;
        object.holder = Holder { claim, turn, freed: now, ..Holder::default() };
        return registry.replace(&object).await.map(drop);
    }
    registry.delete(&object).await
}

/// Keeps an address for nobody any more, if it is as it was when `object` was read: it rests like others that were given back.
///
/// # Errors
/// The registry's.
pub async fn end_claim<R: Registry>(registry: &R, object: Object, now: u64) -> Result<(), Fault> {
    // Of pods that had it together the last one may be gone only now.
    let holder = Holder { claim: String::new(), freed: now, ..object.holder };
    registry.replace(&Object { holder, ..object }).await.map(drop)
}

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Refusal {
        match fault {
            Fault::Conflict => Refusal::Contended,
            Fault::Unknown(why) => Refusal::Fault(why),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Exhausted => f.write_str("no address is free"),
            Refusal::Resting(_) => f.write_str("no address is free; some were freed just now and still rest"),
            Refusal::Held { net, node } if node.is_empty() => write!(f, "{net} is kept by a claim"),
            Refusal::Held { net, node } => write!(f, "{net} is leased by node {node}"),
            Refusal::Here(ip) => write!(f, "another container of this node has {ip}, or had it just now"),
            Refusal::Already(ip) => write!(f, "the same interface has {ip}"),
            Refusal::Asked { net, node, by } if by.is_empty() => write!(
                f,
                "{net}, in which it lies, is leased by node {node}, which is asked for it and has not given it up yet: \
                 try again"
            ),
            Refusal::Asked { net, node, by } => {
                write!(f, "{net}, in which it lies, is leased by node {node}, where {by} holds it")
            }
            Refusal::Own { net, .. } => {
                write!(
                    f,
                    "{net}, in which it lies, is this node's, whose agent has not given it up yet: try again"
                )
            }
            Refusal::Anew => f.write_str("the pool was deleted, made anew or edited meanwhile: try again"),
            Refusal::Taken(ip) => {
                write!(f, "no address is free, and {ip} is somebody else's by now: try again")
            }
            Refusal::Contended => f.write_str("other nodes are leasing, too: try again"),
            Refusal::Fault(why) => f.write_str(why),
        }
    }
}
