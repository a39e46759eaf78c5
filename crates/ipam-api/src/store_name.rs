//! Names of the address stores of a node in IPBlock objects: the pool, and the directory if it is not the agent's.

/// Default directory of the address stores on a node.
pub const ADDRESS_STORES: &str = "/var/lib/weft/ipam";

/// Separator of pool and directory; no pool's name contains it.
const AT: char = '@';

/// Returns the name of an address store that is not in the agent's directory.
pub fn name_in_directory(store: &str, directory: &str) -> String {
    format!("{store}{AT}{directory}")
}

/// Returns the directory of an address store that is not in the agent's directory.
pub fn other_directory(store: &str) -> Option<&str> {
    store.split_once(AT).map(|(_, directory)| directory)
}

/// Returns the name of an address store without its directory.
pub fn address_store_name(store: &str) -> &str {
    store.split_once(AT).map_or(store, |(name, _)| name)
}
