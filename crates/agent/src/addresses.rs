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

use std::time::{SystemTime, UNIX_EPOCH};

/// Where a node keeps its ledgers.
pub(crate) const LEDGERS: &str = "/var/lib/weft/ipam";

/// Between the name of a ledger and its directory, where that is not the agent's: no pool's name has it.
const AT: char = '@';

/// The name of a ledger that is in another directory than the agent's.
pub(crate) fn placed(ledger: &str, directory: &str) -> String {
    format!("{ledger}{AT}{directory}")
}

/// The directory of such a one.
pub(crate) fn elsewhere(ledger: &str) -> Option<&str> {
    ledger.split_once(AT).map(|(_, directory)| directory)
}

/// The name alone.
pub(crate) fn ledger_name(ledger: &str) -> &str {
    ledger.split_once(AT).map_or(ledger, |(name, _)| name)
}

/// Milliseconds since 1970.
pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
