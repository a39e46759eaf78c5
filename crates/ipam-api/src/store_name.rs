//! Names of the address stores of a node, as IPBlock objects have them: the pool, and the directory if it is not the usual one.

/// Where a node keeps its ledgers.
pub const ADDRESS_STORES: &str = "/var/lib/weft/ipam";

/// Between the name of a ledger and its directory, where that is not the agent's: no pool's name has it.
const AT: char = '@';

/// The name of a ledger that is in another directory than the agent's.
pub fn placed(ledger: &str, directory: &str) -> String {
    format!("{ledger}{AT}{directory}")
}

/// The directory of such a one.
pub fn elsewhere(ledger: &str) -> Option<&str> {
    ledger.split_once(AT).map(|(_, directory)| directory)
}

/// The name alone.
pub fn address_store_name(ledger: &str) -> &str {
    ledger.split_once(AT).map_or(ledger, |(name, _)| name)
}
