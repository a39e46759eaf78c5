//! Address store: the blocks that a node has leased from one pool, and who owns every address in them.
//!
//! The store is what a file contains. Each change returns small [`Edit`]s, which the caller writes to the
//! file at once, so that a caller killed between two edits leaves a valid store. The file format and the
//! safety argument for each edit order are in `docs/design/ipam.md#address-store`.

mod choose;
mod format;
mod hints;
mod image;
mod query;
mod update;

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use self::format::{BOOT, GROUP_PAGES, GROUPS_MAX, MAGIC, PREFACE, fits, net_in, put_text};
use self::image::Image;
pub use self::image::StoreFile;
use crate::block_lease::BlockState;

/// Slots in a page; a page holds one block.
pub const SLOTS: usize = 256;
/// Maximum number of pages in a store.
pub const PAGES_MAX: usize = GROUPS_MAX * GROUP_PAGES;
/// Maximum length for a store name, in bytes.
const NAME_MAX: usize = 128;

/// Number that identifies an owner: a hash over the attachment and the range set. Equal for every call for
/// one attachment.
pub type OwnerTag = u64;

/// Address store for one pool on one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressStore {
    image: Image,
}

/// Change to the store's file.
#[must_use = "a change takes effect only when it is written"]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    /// Offset in the file.
    pub offset: u64,
    /// Content to write there.
    pub bytes: Vec<u8>,
    /// Order relative to earlier edits.
    pub order: WriteOrder,
}

/// When an edit may reach the disk. Edits are always written in sequence; the order says whether the disk
/// must be synchronized before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteOrder {
    /// The edit is written at once.
    Immediate,
    /// Earlier edits must be on the disk first: if only this one survived a power loss, the store would be
    /// wrong.
    AfterSync,
}

/// Block in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Page that holds the block.
    pub page: usize,
    /// State that the block has on this node.
    pub state: BlockState,
    /// Addresses in the block.
    pub net: IpNet,
    /// Lease identifier.
    pub lease: String,
    /// Whether the lease is a single address for one owner.
    pub single_owner: bool,
    /// Whether the block is drained: no new owner gets an address from it, so that it can be returned.
    pub draining: bool,
    /// When it was leased, in milliseconds since 1970.
    pub leased_at: u64,
}

/// State that one address has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    /// Free, released at this time in milliseconds since 1970; 0 if it was never held.
    Free(u64),
    /// Held by an owner.
    Held {
        /// Start in milliseconds since 1970.
        since: u64,
        /// Holder of the address or object.
        owner: OwnerTag,
    },
    /// Reserved: the address belongs to another node, or to another page in this store.
    Reserved,
    /// State that this version does not know; such an address is never allocated.
    Unknown,
}

/// Where an address is in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotId {
    /// Page that it is in.
    pub page: usize,
    /// Slot in the page.
    pub slot: usize,
}

/// Result of [`AddressStore::choose`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// This address can be allocated.
    Free(SlotId, IpAddr),
    /// All free addresses are in quarantine, at least until this time in milliseconds since 1970.
    Quarantined(u64),
    /// No address is free.
    Full,
}

/// Number of addresses in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Held addresses.
    pub held: u64,
    /// Free addresses in quarantine.
    pub quarantined: u64,
    /// Free addresses that can be allocated now.
    pub free: u64,
}

/// Reason why a file is not a valid address store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreError {
    /// The file does not begin like a store in this version.
    UnknownFormat,
    /// The file is shorter than it was.
    Truncated {
        /// Groups in the file.
        present: usize,
        /// Groups that were written.
        written: usize,
    },
    /// This page's head is invalid.
    InvalidPage(usize),
}

/// Whether a text is a valid name for a store or a pool. The name becomes part of an object name and of a path.
pub fn is_valid_name(text: &str) -> bool {
    let legal = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
    let is_word = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    bytes.len() <= NAME_MAX
        && bytes.iter().all(|byte| legal(*byte))
        && is_word(bytes.first())
        && is_word(bytes.last())
}

// === impl AddressStore ===

impl AddressStore {
    /// Creates an empty store for this boot.
    pub fn new(boot_id: &str) -> AddressStore {
        let mut preface = vec![0; PREFACE];
        preface[..MAGIC.len()].copy_from_slice(MAGIC);
        put_text(&mut preface[BOOT], boot_id);
        AddressStore { image: Image::new(preface) }
    }

    /// Reads a store from the file's bytes.
    ///
    /// # Errors
    /// The bytes are not a valid store; then nothing is known about any address.
    pub fn from_bytes(bytes: &[u8]) -> Result<AddressStore, StoreError> {
        AddressStore::of(Image::of(bytes))
    }

    /// Opens a store and loads the preface and all heads; hints and slots are read when they are needed.
    ///
    /// # Errors
    /// The file cannot be read. The inner error: the content is not a valid store.
    pub fn open(file: Arc<dyn StoreFile>) -> io::Result<Result<AddressStore, StoreError>> {
        Image::open(file).map(AddressStore::of)
    }

    fn of(image: Option<Image>) -> Result<AddressStore, StoreError> {
        let Some(image) = image.filter(|image| image.preface().starts_with(MAGIC)) else {
            return Err(StoreError::UnknownFormat);
        };
        let store = AddressStore { image };
        let (present, written) = (store.image.groups(), store.written_groups());
        if present < written {
            return Err(StoreError::Truncated { present, written });
        }
        let is_valid = |page: &usize| {
            store.head(*page).is_some_and(|head| head[0] == 0 || net_in(head).is_some_and(fits))
        };
        match (0..store.pages()).find(|page| !is_valid(page)) {
            Some(page) => Err(StoreError::InvalidPage(page)),
            None => Ok(store),
        }
    }

    /// Returns the error if something could not be read after [`AddressStore::open`]. Then no answer from the
    /// store is valid and nothing may be written.
    pub fn read_error(&self) -> Option<&str> {
        self.image.read_error()
    }

    /// Returns all bytes in the file.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.image.bytes()
    }
}

impl Block {
    /// Whether addresses in the block may be allocated to any owner.
    pub fn is_open(&self) -> bool {
        self.state == BlockState::Active && !self.single_owner && !self.draining
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreError::UnknownFormat => f.write_str("not an address store of this version"),
            StoreError::Truncated { present, written } => {
                write!(f, "truncated: {present} of {written} groups of {GROUP_PAGES} blocks are present")
            }
            StoreError::InvalidPage(page) => write!(f, "block {page} is invalid"),
        }
    }
}

impl std::error::Error for StoreError {}

#[cfg(test)]
mod tests;
