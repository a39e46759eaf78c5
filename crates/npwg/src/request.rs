//! What an element of the selection can ask for that CNI's conventions have no word for.
//!
//! Addresses, ports and limits are [`cni::capability`]'s types: a request travels to plugins in that form.
//!
//! Source: the standard v1.3, 4.1.2.1.3–4.1.2.1.10; CONVENTIONS.md; RFC 4391 §9.1.1 (IPoIB).

use std::net::IpAddr;

use cni::address::format_mac;
use cni::capability::HardwareAddress;

/// Length of an Ethernet address, in bytes.
pub const ETHERNET_LENGTH: usize = 6;
/// Length of an IP-over-InfiniBand address, in bytes. Valid up to v1.1 of the standard, still taken here (C2).
pub const INFINIBAND_LENGTH: usize = 20;
/// Length of an InfiniBand GUID, in bytes.
pub const GUID_LENGTH: usize = 8;

/// The burst given to plugins where the pod names a rate alone, in bits.
///
/// The reference plugin demands one. This is what the Kubernetes runtimes send with their own limits.
pub const DEFAULT_BURST: u64 = i32::MAX as u64;

/// The GUID in an IPoIB address: its lower eight bytes. Other addresses have none.
pub fn guid_of(mac: &HardwareAddress) -> Option<HardwareAddress> {
    let bytes = mac.bytes();
    let lower = (bytes.len() == INFINIBAND_LENGTH).then(|| bytes.last_chunk::<GUID_LENGTH>()).flatten()?;
    HardwareAddress::parse(&format_mac(lower))
}

/// What an element says about the default route.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DefaultRoute {
    /// Nothing.
    #[default]
    Unasked,
    /// `[]`: it is to be this attachment's, by whatever gateway its plugins choose (C12).
    OfPlugins,
    /// It is to be this attachment's, by these gateways, most preferred first.
    Via(Vec<IpAddr>),
}

impl DefaultRoute {
    /// Does the element ask for it?
    pub fn is_asked(&self) -> bool {
        *self != DefaultRoute::Unasked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Requirements: conflict C2
    #[test]
    fn the_lower_eight_bytes_of_an_ipoib_address_are_its_guid() {
        let guid = |text: &str| {
            HardwareAddress::parse(text).and_then(|mac| guid_of(&mac)).map(|guid| guid.to_string())
        };
        let long = "80:00:11:22:33:44:55:66:77:88:99:aa:bb:cc:dd:ee:ff:00:11:22";
        assert_eq!(guid(long).as_deref(), Some("bb:cc:dd:ee:ff:00:11:22"));
        assert_eq!(guid("02:23:45:67:89:01"), None);
        assert_eq!(guid("24:8a:07:03:00:8d:ae:2f"), None);
    }
}
