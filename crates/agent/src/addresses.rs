//! Addresses that are unique in the cluster: pools, and who has which block of them, as objects of the API.
//!
//! ```text
//!   IPPool   range, size of its blocks
//!   IPBlock  name POOL.10.1.2.0-24   which node has it · POOL.10.1.2.9-32 a single address, which pod has it
//! ```
//!
//! That a name is given once is the whole lock: what may be done when is decided in the crate `ipam`.

pub(crate) mod census;
pub(crate) mod claims;
pub(crate) mod clock;
pub(crate) mod command;
mod dead;
pub(crate) mod findings;
pub(crate) mod keeper;
pub(crate) mod ledgers;
pub(crate) mod objects;
pub(crate) mod pools;
pub(crate) mod registry;
mod show;
mod sighting;
pub(crate) mod store_name;
