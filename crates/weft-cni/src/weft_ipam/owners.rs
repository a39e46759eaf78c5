//! File that names the owner of each address: one record of fixed length for each slot of the address store.

/// Name of the file.
pub(super) const OWNERS: &str = "owners";
/// Length of a record, in bytes.
pub(super) const RECORD: usize = 1024;
