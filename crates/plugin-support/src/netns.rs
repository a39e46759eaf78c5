//! Opens a container's network namespace by the path that the runtime passes.
//!
//! Source: CNI SPEC 1.1.0 §5 (error codes).

use std::path::Path;

use cni::{Error, code};
use linux::Netns;

/// Opens the container's namespace.
///
/// # Errors
/// Code 8 ([`code::INVALID_NETNS`]) if the path is not a network namespace.
pub fn open_netns(path: &Path) -> Result<Netns, Error> {
    Netns::open(path).map_err(|error| Error::new(code::INVALID_NETNS, error.to_string()))
}
