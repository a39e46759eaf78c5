//! Marks on a sandbox made by `weft attach`: the argument in the journal entry, and the private directory that locks
//! it.
//!
//! The directory is below `/run`, so that it does not survive a boot.

use cni::name::ContainerId;
use rpc::journal::Entry;

use crate::scratch::Scratch;
use cli_support::failure::Failure;

/// Argument in `CNI_ARGS` that marks the namespace as created for this sandbox.
pub(crate) const CREATED_NAMESPACE: &str = "WEFT_NETNS=own";

/// Whether `weft attach` created the namespace in an entry.
pub(crate) fn is_created(entry: &Entry) -> bool {
    entry.args.split(';').any(|pair| pair == CREATED_NAMESPACE)
}

/// Returns the name that an attach's private directory has.
pub(crate) fn scratch_name(container: &ContainerId) -> String {
    format!("weft-attach-{container}")
}

/// Creates an attach's private directory. It is also the lock: one attach runs at a time for each sandbox.
///
/// # Errors
/// Another attach for the sandbox runs, or the directory cannot be created.
pub(crate) fn lock_sandbox(container: &ContainerId) -> Result<Scratch, Failure> {
    Scratch::new(
        &scratch_name(container),
        &format!("another weft attach is running for container {container}"),
    )
}
