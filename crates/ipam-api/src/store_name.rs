//! Address store names in IPBlock objects: the pool, and the directory if it is not the agent's.

/// Default directory for a node's address stores.
pub const ADDRESS_STORES: &str = "/var/lib/weft/ipam";

/// Separator between pool and directory; no pool's name contains it.
const AT: char = '@';

/// Returns the name for an address store that is not in the agent's directory.
pub fn name_in_directory(store: &str, directory: &str) -> String {
    format!("{store}{AT}{directory}")
}

/// Returns the directory for an address store that is not in the agent's directory.
pub fn other_directory(store: &str) -> Option<&str> {
    store.split_once(AT).map(|(_, directory)| directory)
}

/// Returns an address store's name without the directory.
pub fn address_store_name(store: &str) -> &str {
    store.split_once(AT).map_or(store, |(name, _)| name)
}
