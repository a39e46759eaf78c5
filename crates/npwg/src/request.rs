//! Types for requests in a selection element that have no equivalent in the CNI conventions.
//!
//! Addresses, ports and limits use the types in [`cni::capability`], the form in which plugins receive them.
//!
//! Source: multi-network specification v1.3, 4.1.2.1.3–4.1.2.1.10; CONVENTIONS.md; RFC 4391 §9.1.1 (IPoIB).

use std::net::IpAddr;

use cni::address::format_mac;
use cni::capability::HardwareAddress;

/// Ethernet address length, in bytes.
pub const ETHERNET_LENGTH: usize = 6;
/// IP-over-InfiniBand address length, in bytes. The specification allows such addresses up to v1.1; weft
/// still does (C2).
pub const INFINIBAND_LENGTH: usize = 20;
/// InfiniBand GUID length, in bytes.
pub const GUID_LENGTH: usize = 8;

/// Burst that plugins get if the pod specifies only a rate, in bits.
///
/// The reference plugin requires a burst. Kubernetes runtimes send this value together with a rate.
pub const DEFAULT_BURST: u64 = i32::MAX as u64;

/// Returns the GUID in an IPoIB address: the lower eight bytes. Other addresses have none.
pub fn guid_of(mac: &HardwareAddress) -> Option<HardwareAddress> {
    let bytes = mac.bytes();
    let lower = (bytes.len() == INFINIBAND_LENGTH).then(|| bytes.last_chunk::<GUID_LENGTH>()).flatten()?;
    HardwareAddress::parse(&format_mac(lower))
}

/// Request in an element for the default route.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DefaultRoute {
    /// The element does not mention the default route.
    #[default]
    NotRequested,
    /// `[]`: the default route uses this attachment, with the gateway that the plugins choose (C12).
    FromPlugins,
    /// The default route uses this attachment and these gateways, most preferred first.
    Via(Vec<IpAddr>),
}

impl DefaultRoute {
    /// Whether the element requests the default route.
    pub fn is_requested(&self) -> bool {
        *self != DefaultRoute::NotRequested
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Requirements: conflict C2
    #[test]
    fn guid_is_the_lower_eight_bytes_of_an_ipoib_address() {
        let guid = |text: &str| {
            HardwareAddress::parse(text).and_then(|mac| guid_of(&mac)).map(|guid| guid.to_string())
        };
        let long = "80:00:11:22:33:44:55:66:77:88:99:aa:bb:cc:dd:ee:ff:00:11:22";
        assert_eq!(guid(long).as_deref(), Some("bb:cc:dd:ee:ff:00:11:22"));
        assert_eq!(guid("02:23:45:67:89:01"), None);
        assert_eq!(guid("24:8a:07:03:00:8d:ae:2f"), None);
    }
}
