//! Owner of a lease, and the two address families.

use serde::{Deserialize, Serialize};

/// Whose lease it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Owner {
    /// The container.
    pub container: String,
    /// The network.
    pub network: String,
    /// The interface in the container.
    pub ifname: String,
}

/// One of the two protocols, by the addresses it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// DHCPv4.
    Ipv4,
    /// DHCPv6.
    Ipv6,
}

impl Family {
    /// Families of a configuration without `families`.
    pub fn default_ones() -> Vec<Family> {
        vec![Family::Ipv4]
    }
}
