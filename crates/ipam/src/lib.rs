//! Cluster IPAM: address ranges, pools, blocks, leases, and the choice of the next address. Pure: no files, no clock.
//!
//! - [`Range`], [`RangeSet`], [`UsedAddresses`]: choice of an address in a range, for `host-local`.
//! - [`PoolLayout`], [`AddressFilter`]: blocks in a pool, and the pool addresses that a network may allocate.
//! - [`AddressStore`]: the node's leased blocks, and who owns which address. Used by `weft-cni`.
//! - [`BlockAllocator`], [`Registry`]: leases of blocks and single addresses. Used by the node agent.
//!
//! No operation takes time in proportion to a range, so a /64 is as fast as a /24. The design is in
//! `docs/design/ipam.md`.

#![forbid(unsafe_code)]

mod address_filter;
mod address_span;
pub mod address_store;
mod allocate;
mod allocation_error;
mod allocator;
mod apply;
mod block_lease;
mod clock;
mod confirm;
pub mod give_up;
mod ip_block;
mod join;
mod lease_message;
mod number;
pub mod pool_layout;
mod range;
mod range_set;
mod reclaim;
mod regained;
pub mod registry;
mod release;
pub mod restore;
mod serve;
pub mod transfer;
mod unconfirmed;
mod used_addresses;

pub use address_filter::AddressFilter;
pub use address_span::AddressSpan;
pub use address_store::AddressStore;
pub use allocate::Allocation;
pub use allocation_error::AllocationError;
pub use allocator::{BlockAllocator, RequestContext};
pub use block_lease::{BlockInfo, BlockLease, BlockState};
pub use clock::Clock;
pub use confirm::{names_earlier_owner, recreate_lease};
pub use ip_block::{Holder, IpBlock, REQUESTS_MAX, SPANS_MAX, TransferRequest};
pub use lease_message::{AllocationKind, LeaseRequest, LeaseResponse};
pub use pool_layout::PoolLayout;
pub use range::{Range, RangeError, RangePart};
pub use range_set::{Assignment, Candidates, RangeSet, RangeSetError};
pub use reclaim::{end_claim, end_earlier_claims, reclaim, release_lease};
pub use regained::LeaseSource;
pub use registry::{Registry, RegistryError};
pub use release::IDLE;
pub use used_addresses::UsedAddresses;
