//! Which address is next: ranges, sets of ranges, what is held, and the choice.
//!
//! ```text
//!   subnet, first, last, gateway ──► Range ──► RangeSet ──► after(last given) ──► candidates, in order
//!                                                  │
//!                    addresses in use ──► Held ────┴──► choose ──► Assignment
//! ```
//!
//! And, for a pool of many nodes, whose a block of it is:
//!
//! ```text
//!   Grid (blocks of a pool) ──► Counter ──create, once──► Registry      Filter (what a network may have)
//!                                  │                                       │
//!                                Lease ──► Ledger (a file of the node) ──► choose ──► hold, free
//!                                             └── handover: an address that another node asks for
//! ```
//!
//! Rules of this crate:
//! - it is pure: no files, no clock, no configuration; who holds what is the caller's knowledge;
//! - nothing here takes time in proportion to a range, only to what is held in it: a /64 is as quick as a /24;
//! - an address that is given lies in a range and is no gateway of its set; every free one is given at last;
//! - a refusal says which part is wrong, its value and why; the caller knows the key it was written under.

#![forbid(unsafe_code)]

mod address_filter;
pub mod address_store;
pub mod allocate;
pub mod allocator;
pub mod confirm;
mod number;
pub mod pool_layout;
mod range;
mod range_set;
pub mod registry;
pub mod transfer;
mod used_addresses;

pub use {
    address_store as ledger, allocate as turn, allocator as lease, pool_layout as grid, transfer as handover,
};

pub use address_filter::Filter;
pub use address_store::Ledger;
pub use pool_layout::Grid;
pub use range::{Part, Range, Refusal};
pub use range_set::{Assignment, Candidates, RangeSet, SetRefusal};
pub use used_addresses::Held;
