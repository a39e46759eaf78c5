//! nf_tables over netlink: one [`Batch`] is one transaction, which the kernel executes completely or not at all.
//!
//! - Every operation documents the `nft` command that does the same.
//! - `ensure_…` creates an object unless it exists; `create_…` fails with [`Kind::Exists`] if it exists, and so does
//!   the whole batch.
//! - Comments are written in nft's format, so that `nft list` prints them: they are the owner tags.
//! - An error contains the operation, the object, and the kernel's explanation.
//!
//! ```no_run
//! use linux::nft::{Batch, Element, Family, Nft, Rule, Set, Table, Type};
//! const WEFT: Table<'_> = Table::new(Family::Inet, "weft");
//! let mut batch = Batch::new();
//! batch.ensure_table(WEFT).ensure_set(WEFT, &Set::of("masq4", &[Type::Ipv4]));
//! batch.add_elements(WEFT, "masq4", &[Element::new([10, 1, 0, 5]).comment("default/web eth0")]);
//! Nft::open()?.commit(batch)?;
//! # Ok::<(), linux::Error>(())
//! ```
//!
//! Source: nft(8); kernel `include/uapi/linux/netfilter/nf_tables.h`, `net/netfilter/nfnetlink.c`.
//!
//! [`Kind::Exists`]: crate::Kind::Exists

mod batch;
mod chain;
mod comment;
mod expression;
mod listing;
mod rule;
mod set;

pub use batch::Batch;
pub use chain::{BaseChain, ChainType, Hook, Policy, priority};
pub use comment::stored as stored_comment;
pub use listing::{Counted, ListedChain, ListedRule};
pub use rule::{Is, Mapping, Protocol, Rule, Selector, State};
pub use set::{Data, Element, ListedElement, Set, Type, Verdict};

use std::time::{Duration, Instant};

use crate::error::Error;
use crate::netfilter::Message;
use crate::netfilter::pool::{self, PooledSocket};
use crate::netlink::{DumpLimit, Failure, Request};

/// `NFNL_SUBSYS_NFTABLES`.
const SUBSYSTEM: u8 = 10;

/// `NFNL_MSG_BATCH_BEGIN`, which belongs to no subsystem.
const BATCH_BEGIN: u16 = 16;

/// `NFNL_MSG_BATCH_END`.
const BATCH_END: u16 = 17;

/// Address family that a table belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4 and IPv6.
    Inet,
    /// IPv4.
    Ip,
    /// IPv6.
    Ip6,
    /// Packets that cross a bridge.
    Bridge,
    /// Packets that arrive on one link.
    Netdev,
}

/// Reference to a table; does not create it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Table<'a> {
    family: Family,
    name: &'a str,
}

/// nf_tables in one network namespace.
///
/// The socket stays open and is reused, because closing it can take 20 ms.
#[derive(Debug)]
pub struct Nft {
    socket: PooledSocket,
    /// Limit for all lists together.
    limit: Option<ListLimit>,
}

/// Limit for lists in a namespace that another party can change.
#[derive(Clone, Copy, Debug)]
struct ListLimit {
    left: DumpLimit,
    /// Bytes and time at the beginning, for the error.
    bytes_max: usize,
    time_max: Duration,
}

// === impl Family ===

impl Family {
    /// All address families.
    const ALL: [Family; 5] = [Family::Inet, Family::Ip, Family::Ip6, Family::Bridge, Family::Netdev];

    /// `NFPROTO_…`.
    fn number(self) -> u8 {
        match self {
            Family::Inet => 1,
            Family::Ip => 2,
            Family::Netdev => 5,
            Family::Bridge => 7,
            Family::Ip6 => 10,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Family::Inet => "inet",
            Family::Ip => "ip",
            Family::Netdev => "netdev",
            Family::Bridge => "bridge",
            Family::Ip6 => "ip6",
        }
    }
}

// === impl Table ===

impl<'a> Table<'a> {
    /// Refers to the table with this family and name.
    #[must_use]
    pub const fn new(family: Family, name: &'a str) -> Table<'a> {
        Table { family, name }
    }

    /// Returns the address family.
    #[must_use]
    pub const fn family(self) -> Family {
        self.family
    }

    /// Starts a rule for this table, still without conditions and statements.
    pub fn rule(self) -> Rule {
        Rule::new(self.family)
    }
}

impl std::fmt::Display for Table<'_> {
    /// Formats the table as nft does: `inet weft`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.family.word(), self.name)
    }
}

// === impl Nft ===

impl Nft {
    /// Opens a socket in the calling thread's namespace; for another one see [`crate::Netns::nft`].
    pub fn open() -> Result<Nft, Error> {
        PooledSocket::open().map(|socket| Nft { socket, limit: None })
    }

    /// Limits all lists on this socket together, to a number of bytes and a time from now on. A list that exceeds the
    /// limit fails with [`crate::Kind::Exceeded`]; after that, the kernel refuses further lists on this socket.
    #[must_use]
    pub fn within(self, bytes_max: usize, time_max: Duration) -> Nft {
        let left = DumpLimit { bytes: bytes_max, end: Some(Instant::now() + time_max) };
        Nft { limit: Some(ListLimit { left, bytes_max, time_max }), ..self }
    }

    /// Executes a batch completely or not at all.
    ///
    /// # Errors
    /// The first operation that the kernel refused. [`crate::Kind::Absent`]: a table, chain, set or element does not
    /// exist. [`crate::Kind::Exists`]: an object to create exists, or an element contradicts an existing one.
    pub fn commit(&mut self, batch: Batch) -> Result<(), Error> {
        if batch.has_removal() {
            pool::note_removal();
        }
        let (messages, operations) = batch.into_parts();
        if messages.is_empty() {
            return Ok(());
        }
        let bracket = |kind| Message {
            kind,
            family: 0,
            resource: u16::from(SUBSYSTEM),
            attributes: Default::default(),
        };
        let whole = [Request { flags: 0, message: bracket(BATCH_BEGIN) }]
            .into_iter()
            .chain(messages)
            .chain([Request { flags: 0, message: bracket(BATCH_END) }]);
        self.socket.transact(whole.collect()).map_err(|failure| {
            // If the first message is refused, the whole transaction is.
            let place =
                if let Failure::Refused(refusal) = &failure { refusal.index.checked_sub(1) } else { None };
            let operation = place.and_then(|place| operations.get(place));
            failure.of(operation.map_or("commit nf_tables transaction", String::as_str))
        })
    }
}

/// Returns the type number for an nf_tables message.
fn kind(message: u8) -> u16 {
    u16::from(SUBSYSTEM) << 8 | u16::from(message)
}
