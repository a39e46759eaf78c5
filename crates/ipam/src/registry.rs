//! Where a cluster writes down whose blocks are: objects that are made by name, once, and changed one at a time.
//!
//! The Kubernetes API is one; a simulation is another. What is asked of it: a name is given once; a change is made
//! only if nobody else made one since; a read sees every change that was answered before it began; what a hand deletes
//! stays, by its name, as long as it is somebody's ([`Object::is_in_use`]): whoever has it goes on giving it, and may be away, or one of
//! those who share it that the object does not name. A pool is cut anew only where none of its objects is of another cut,
//! after its predecessor has gone. A single address is made by [`make`], which tells the pool before.

use std::fmt;
use std::net::IpAddr;

use crate::address_store::Clock;
use ipnet::IpNet;

/// A block, or a single address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// Its addresses: its name within the pool.
    pub net: IpNet,
    /// Anew whenever it is made.
    pub uid: String,
    /// Anew whenever it is changed.
    pub version: String,
    /// Whose it is.
    pub holder: Holder,
    /// Addresses in it that are not its holder's.
    pub holes: Vec<IpAddr>,
}

/// Whose an object is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holder {
    /// The node; empty: nobody's.
    pub node: String,
    /// The node's ledger that has it.
    pub ledger: String,
    /// The uid of the pod, of a single address.
    pub owner: String,
    /// What keeps the address when the pod is gone; empty: nothing.
    pub claim: String,
    /// When it became nobody's, in milliseconds since 1970.
    pub freed: u64,
    /// How often it was taken over.
    pub turn: u64,
    /// Of a single address: the node that has the block around it and is asked to give it up; empty: none is.
    pub asks: String,
    /// Who holds it there, as that node says; empty: nobody, or it has not said.
    pub refused: String,
}

/// Why a request was not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// There is one of that name, or it was changed since it was read.
    Conflict,
    /// No answer that can be trusted: it may have been done or not.
    Unknown(String),
}

/// What a pool says of something that was made of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It is not the one any more of which this was begun, or not cut as it was: one that is deleted may be made anew.
    Anew,
    /// It is, and single addresses may have been made in the block, or in the one around the address.
    Mixed,
    /// It is, and no single address was ever made there.
    Whole,
}

/// Whose blocks are, of one pool.
pub trait Registry: Sync {
    /// Makes an object, if there is none of that name.
    fn create(&self, net: IpNet, holder: &Holder) -> impl Future<Output = Result<Object, Fault>> + Send;

    /// The object of this name.
    fn read(&self, net: IpNet) -> impl Future<Output = Result<Option<Object>, Fault>> + Send;

    /// The single addresses inside a block.
    fn inside(&self, block: IpNet) -> impl Future<Output = Result<Vec<Object>, Fault>> + Send;

    /// Every object of the pool.
    fn all(&self) -> impl Future<Output = Result<Vec<Object>, Fault>> + Send;

    /// The objects of a node's ledger.
    fn of(&self, node: &str, ledger: &str) -> impl Future<Output = Result<Vec<Object>, Fault>> + Send;

    /// The single addresses that a claim keeps.
    fn claimed(&self, claim: &str) -> impl Future<Output = Result<Vec<Object>, Fault>> + Send;

    /// Changes an object, if nobody has since `object` was read. One that a hand has deleted and that is nobody's after that is gone.
    fn replace(&self, object: &Object) -> impl Future<Output = Result<Object, Fault>> + Send;

    /// Removes an object, whosever it is, if it is still that one unchanged; what is gone is gone.
    fn delete(&self, object: &Object) -> impl Future<Output = Result<(), Fault>> + Send;

    /// What the pool says of a block, or of a single address, that was made of it.
    fn standing(&self, net: IpNet) -> impl Future<Output = Result<Standing, Fault>> + Send;

    /// Has the pool say of a single address, from now on and for ever, that the block around it is [`Standing::Mixed`].
    fn tell(&self, net: IpNet) -> impl Future<Output = Result<(), Fault>> + Send;

    /// Is the pod with this uid known to be gone?
    fn is_gone(&self, owner: &str) -> impl Future<Output = Result<bool, Fault>> + Send;

    /// Waits a while before it is looked again, for the `look`-th time; longer each time.
    fn pause(&self, look: u32) -> impl Future<Output = ()> + Send;
}

/// Makes an object, if there is none of that name. Of a single address the pool is told before: who leases the block around it
/// looks into that only where the pool says so.
///
/// # Errors
/// The registry's.
pub async fn make<R: Registry>(registry: &R, net: IpNet, holder: &Holder) -> Result<Object, Fault> {
    if is_single(net) {
        registry.tell(net).await?;
    }
    registry.create(net, holder).await
}

fn is_single(net: IpNet) -> bool {
    net.prefix_len() == net.max_prefix_len()
}

// === impl Object ===

impl Object {
    /// Which lease of it this is.
    pub fn lease_id(&self) -> String {
        format!("{}.{}", self.uid, self.holder.turn)
    }

    /// Is it no node's, and kept for nobody?
    pub fn is_nobodys(&self) -> bool {
        self.holder.node.is_empty() && self.holder.claim.is_empty()
    }

    /// Is it a node's, or kept for somebody?
    pub fn is_in_use(&self) -> bool {
        !self.is_nobodys()
    }

    /// When it has rested since it was given back, by the clocks of two nodes; nothing if it has. A clock that was ahead once
    /// makes nobody wait for its time to come.
    pub fn rests_until(&self, clock: Clock) -> Option<u64> {
        clock.rests_until(self.holder.freed)
    }

    /// Is it one address?
    pub fn is_single(&self) -> bool {
        is_single(self.net)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Conflict => f.write_str("somebody else changed it"),
            Fault::Unknown(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for Fault {}
