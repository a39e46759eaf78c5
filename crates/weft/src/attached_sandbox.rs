//! Sandbox of `weft attach`: the mark in its journal entry, and its private directory, which is also its lock.

use cni::name::ContainerId;
use rpc::journal::Entry;

use crate::scratch::Scratch;
use cli_support::failure::Failure;

/// Argument in `CNI_ARGS` that marks the namespace as created for this sandbox.
pub(crate) const CREATED_NAMESPACE: &str = "WEFT_NETNS=own";

/// Returns the name of the private directory of an attach.
pub(crate) fn scratch_name(container: &ContainerId) -> String {
    format!("weft-attach-{container}")
}

/// Creates the private directory of an attach. It is also the lock: one attach runs at a time for each sandbox.
pub(crate) fn lock_sandbox(container: &ContainerId) -> Result<Scratch, Failure> {
    Scratch::new(
        &scratch_name(container),
        &format!("another weft attach is running for container {container}"),
    )
}

/// Whether `weft attach` created the namespace of an entry.
pub(crate) fn is_created(entry: &Entry) -> bool {
    entry.args.split(';').any(|pair| pair == CREATED_NAMESPACE)
}
