//! How a ledger of addresses asks the brain for blocks: `weft-ipam` sends a [`Demand`] over the agent's socket and
//! gets a [`Delivery`].
//!
//! The brain sees no file of the node: what the ledger has is in the demand, what the registry leased is in the
//! delivery, and the hands write it down. Blocks and leases are explained in the crate `ipam`.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use npwg::plan::PodIdentity;

/// The form of demand this release sends.
pub const VERSION: u32 = 1;

/// What whoever asks says, as one byte, when it is asked whether it is still there ([`Delivery::still`]): it has the ledger locked.
pub const STILL: u8 = b'y';

/// What a ledger asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Demand {
    /// The form: [`VERSION`]. No other message has this key.
    pub addresses: u32,
    /// The pool.
    pub pool: PoolName,
    /// What the network may have of it.
    pub filter: Addresses,
    /// The ledger, among those of the node.
    pub ledger: String,
    /// Where that node keeps it, as the network says; empty: an older release, which does not tell.
    #[serde(default)]
    pub directory: String,
    /// What it has.
    pub known: Vec<Known>,
    /// What is wanted.
    pub wish: Want,
    /// The pod, as the runtime names it.
    pub pod: PodIdentity,
    /// Who would hold it: unlike any other attachment's.
    pub owner: String,
    /// What keeps the address when the pod is gone; empty: nothing.
    pub claim: String,
    /// Do several pods hold the claim at a time?
    pub shared: bool,
    /// How long a freed address rests, in milliseconds.
    pub rest: u64,
    /// Does it say [`STILL`] when it is asked? An older release does not.
    #[serde(default)]
    pub answers: bool,
}

/// Which pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolName {
    /// The object's name.
    pub name: String,
    /// Must it be there already? If not it is made for `range`.
    pub given: bool,
    /// The name of its address space; empty for the one that is everybody's.
    pub network: String,
    /// Its addresses.
    pub range: IpNet,
}

/// Addresses of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Addresses {
    /// The subnet.
    pub subnet: IpNet,
    /// The first.
    pub first: IpAddr,
    /// The last.
    pub last: IpAddr,
    /// Never this one.
    pub gateway: Option<IpAddr>,
    /// Never these.
    pub exclude: Vec<IpNet>,
}

/// A block that a ledger has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Known {
    /// Its addresses.
    pub net: IpNet,
    /// Which lease of it.
    pub lease: String,
    /// What it is to the node.
    pub state: KnownState,
    /// What in it is held, though it is unconfirmed; nothing after a boot.
    #[serde(default)]
    pub held: Vec<IpAddr>,
}

/// What a block is to its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum KnownState {
    /// In use.
    Active,
    /// To be given back.
    Returning,
    /// Perhaps not the node's any more.
    Unconfirmed,
}

/// What is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Want {
    /// To give back and to confirm.
    Nothing,
    /// To give back; nobody has the ledger locked.
    Return,
    /// Addresses.
    Any,
    /// An address that a claim may keep; this one, free in the ledger, if every block is leased.
    Kept(Option<IpAddr>),
    /// This very address.
    Address(IpAddr),
    /// This very address, for a claim to keep.
    KeptAddress(IpAddr),
    /// Addresses, soon: nobody waits for the answer.
    Ahead,
    /// To know whether addresses could be had.
    Room,
}

/// What the registry said.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Delivery {
    /// Leased now.
    pub leases: Vec<Leased>,
    /// Leases to forget.
    pub gone: Vec<String>,
    /// Still the node's: the old lease and the new one.
    pub confirmed: Vec<(String, String)>,
    /// Not the node's any more.
    pub lost: Vec<String>,
    /// Why what was wanted is not there: one sentence.
    pub refusal: Option<String>,
    /// It is because this address lies in a block of the ledger itself: had soon, if nobody has the ledger locked meanwhile.
    pub own: Option<IpAddr>,
    /// It is because this address, which the demand named as free in the ledger, is somebody else's by now.
    pub taken: Option<IpAddr>,
    /// No answer yet: is whoever asked still there?
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub still: bool,
}

/// A block that is leased.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Leased {
    /// Its addresses.
    pub net: IpNet,
    /// Which lease of it.
    pub lease: String,
    /// Is it for one owner?
    #[serde(default)]
    pub bound: bool,
    /// Addresses in it that are somebody else's.
    #[serde(default)]
    pub holes: Vec<IpAddr>,
}
