//! Owner of a lease, and the two address families.

pub use plugin_config::dhcp::Family;
use serde::{Deserialize, Serialize};

/// Owner of a lease.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Owner {
    /// Id of the container.
    pub container: String,
    /// Name of the network.
    pub network: String,
    /// Name of the interface in the container.
    pub ifname: String,
}
