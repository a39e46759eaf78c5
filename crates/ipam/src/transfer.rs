//! How an address that somebody names is had although it lies in another node's block: that node gives it up, if it is free.
//!
//! ```text
//!   asks      object of the address, ours ──► the block's node, in `asks` ──► looks … ──► a hole in the block? leased
//!                                                      │                        └─► said who holds it? refused
//!   is asked  ◄────────────────────────────────────────┘
//!             its ledger, locked: free? ──► a hole there, on the disk ──► a hole in the block's object
//!                                 └──► held: who, in `refused`
//! ```
//!
//! Where the block is in the very ledger that asks, that is locked as long as the agent is asked: the call lets go of it, and
//! begins anew a moment later.
//!
//! Why nobody has it twice: the object of the address is one node's, by its name; the block is another's, and gives the
//! address until its ledger has the hole, which is on the disk before the block's object has it; only with a hole there
//! may whoever has the address's object use it. The mark `asks` is a notice and proves nothing.
//!
//! Rules: whoever is killed at any moment leaves at most a hole that nobody uses, until the block is given back; an answer
//! that comes late is not lost: the object stays, nobody's, and the next one who names the address finds the hole.

use crate::Grid;
use crate::address_store::Lease;
use crate::allocator::{Counter, Refusal, single};
use crate::registry::{Fault, Holder, Object, Registry};

/// How long after the last one who asked has gone a node still gives an address up for whoever comes, in milliseconds.
const WANTED: u64 = 600_000;

/// What the ledger of the node that is asked said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GivenUp {
    /// It is a hole there, on the disk.
    Hole,
    /// It is held, by whom.
    Held(String),
    /// It does not know the block, yet.
    Unknown,
}

/// What came of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing is asked for any more.
    Over,
    /// Who asked has the address.
    Given,
    /// Who asked was told who holds it.
    Refused,
    /// It cannot be said now.
    Later,
}

impl<R: Registry> Counter<'_, R> {
    /// Asks the node that has the block around an address of ours to give it up, and looks whether it did.
    pub(crate) async fn ask_for(&self, object: Object, mut block: Object) -> Result<Lease, Refusal> {
        let holder =
            Holder { asks: block.holder.node.clone(), refused: String::new(), ..object.holder.clone() };
        let mut object = self.registry.replace(&Object { holder, ..object }).await?;
        // Our own ledger is locked by whoever asks us: he lets go of it, and asks once more.
        let is_own = (&block.holder.node, &block.holder.ledger) == (&self.holder.node, &self.holder.ledger);
        let looks = if is_own { 0 } else { self.looks };
        for look in 0..looks {
            self.registry.pause(look).await;
            match self.look(&object).await? {
                (object, None) => return Ok(single(&object)),
                (now, Some(around)) => (object, block) = (now, around),
            }
            if !object.holder.refused.is_empty() {
                break;
            }
        }
        let by = object.holder.refused.clone();
        let left = match by.is_empty() {
            true => self.leave_asked(object.clone()).await,
            false => self.give_way(object.clone()).await,
        };
        // It was changed in the last moment: given up, perhaps.
        if left == Err(Fault::Conflict)
            && let (object, None) = self.look(&object).await?
        {
            return Ok(single(&object));
        }
        left?;
        if is_own && by.is_empty() {
            return Err(Refusal::Own { ip: object.net.addr(), net: block.net });
        }
        Err(Refusal::Asked { net: block.net, node: block.holder.node, by })
    }

    /// An address of ours as it is now, and the block around it. What is ours is read first: if it is outside of all
    /// blocks after that, nobody else has it.
    async fn look(&self, object: &Object) -> Result<(Object, Option<Object>), Refusal> {
        let known = self.registry.read(object.net).await?;
        let is_ours =
            |known: &Object| known.lease_id() == object.lease_id() && known.holder.node == self.holder.node;
        let object = known.filter(is_ours).ok_or(Refusal::Contended)?;
        let around = self.block_around(object.net.addr()).await?;
        Ok((object, around))
    }

    /// Nobody's, and still asked for: whoever names it next may find it given up.
    async fn leave_asked(&self, mut object: Object) -> Result<(), Fault> {
        let Holder { claim, turn, asks, .. } = object.holder;
        // What a claim never had is not kept for it.
        let claim = if turn == 0 { String::new() } else { claim };
        object.holder = Holder { claim, turn, asks, freed: self.clock.now, ..Holder::default() };
        self.registry.replace(&object).await.map(drop)
    }
}

/// The block of `node` from which an address that is asked for is to be given up; none if there is nothing to do.
pub async fn wanted<R: Registry>(
    registry: &R,
    grid: Grid,
    node: &str,
    object: &Object,
    now: u64,
) -> Result<Option<Object>, Fault> {
    let Holder { node: waits, freed, .. } = &object.holder;
    let forgotten = waits.is_empty() && freed.saturating_add(WANTED) < now;
    let ip = object.net.addr();
    let around = grid.block_of(ip).filter(|_| !grid.is_single() && !forgotten && object.is_single());
    let block = match around {
        Some(net) => registry.read(net).await?,
        None => None,
    };
    let block = block.filter(|block| block.holder.node == node && !block.holes.contains(&ip));
    if block.is_none() {
        answer(registry, object, String::new(), now).await?;
    }
    Ok(block)
}

/// Tells the registry what the ledger said.
pub async fn tell<R: Registry>(
    registry: &R,
    object: &Object,
    mut block: Object,
    given: GivenUp,
    now: u64,
) -> Result<Outcome, Fault> {
    match given {
        GivenUp::Hole => {
            block.holes.push(object.net.addr());
            registry.replace(&block).await?;
            answer(registry, object, String::new(), now).await?;
            Ok(Outcome::Given)
        }
        GivenUp::Held(by) => {
            answer(registry, object, by, now).await?;
            Ok(Outcome::Refused)
        }
        GivenUp::Unknown => Ok(Outcome::Later),
    }
}

/// Takes the notice away. Whoever has changed the object since asks anew, if at all. Where nobody waits any more the address
/// rests from now on: it may have been freed in the ledger a moment ago, which nobody knows after this.
async fn answer<R: Registry>(registry: &R, object: &Object, refused: String, now: u64) -> Result<(), Fault> {
    let freed = if object.holder.node.is_empty() { now } else { object.holder.freed };
    let holder = Holder { asks: String::new(), refused, freed, ..object.holder.clone() };
    match registry.replace(&Object { holder, ..object.clone() }).await {
        Ok(_) | Err(Fault::Conflict) => Ok(()),
        Err(fault) => Err(fault),
    }
}
