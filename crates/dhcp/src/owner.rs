//! Lease owner, and the two address families.

pub use plugin_config::dhcp::Family;
use serde::{Deserialize, Serialize};

/// Attachment that owns a lease.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Owner {
    /// Container id.
    pub container: String,
    /// Network name.
    pub network: String,
    /// Interface name in the container.
    pub ifname: String,
}
