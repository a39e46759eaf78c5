//! Owner of a lease, and the two address families.

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

/// Address family, which selects the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// DHCPv4.
    Ipv4,
    /// DHCPv6.
    Ipv6,
}

impl Family {
    /// Returns the families of a configuration without `families`.
    pub fn default_ones() -> Vec<Family> {
        vec![Family::Ipv4]
    }
}
