//! File that names each address's owner: one record with fixed length for each slot in the address store.

/// File name.
pub(super) const OWNERS: &str = "owners";
/// Record length, in bytes.
pub(super) const RECORD: usize = 1024;
