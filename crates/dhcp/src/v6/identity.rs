//! Client identity: each container has a DUID, and each interface in a network has an IAID.
//!
//! Both are derived only from the attachment's names, so that a repeated ADD and a restarted daemon request the same
//! lease. The container id is hashed, because it may be longer than a DUID allows.
//!
//! Source: RFC 8415 §11, §12; RFC 6355 (DUID-UUID); RFC 9562 §5.8 (UUID version 8).

use plugin_support::hash;

use super::message::option;
use super::options::Options;
use crate::owner::Owner;

/// DUID type "UUID".
const KIND: [u8; 2] = [0, 4];

/// Client with one association.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Container DUID, or the configured one.
    pub client: Vec<u8>,
    /// Interface IAID.
    pub association: u32,
}

impl Identity {
    /// Derives an attachment's identity; a client identifier in the options replaces the DUID.
    pub fn of(owner: &Owner, options: &Options) -> Identity {
        let Owner { container, network: _, ifname: _ } = owner;
        let provided = options.provided.iter().find(|(number, _)| *number == option::CLIENT);
        let client = provided.map_or_else(|| duid(container), |(_, value)| value.clone());
        Identity { client, association: association(owner) }
    }
}

/// Derives the IAID from the network and interface names.
pub fn association(owner: &Owner) -> u32 {
    let Owner { container: _, network, ifname } = owner;
    let digest = hash::digest(&["dhcpv6", network, ifname]);
    digest.first_chunk::<4>().map_or(0, |first| u32::from_be_bytes(*first))
}

fn duid(container: &str) -> Vec<u8> {
    let digest = hash::digest(&["dhcpv6", container]);
    let mut uuid = digest.first_chunk::<16>().copied().unwrap_or_default();
    // Version 8, variant 10.
    uuid[6] = uuid[6] & 0x0f | 0x80;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    [&KIND[..], &uuid].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(container: &str, network: &str, ifname: &str) -> Owner {
        Owner { container: container.into(), network: network.into(), ifname: ifname.into() }
    }

    #[test]
    fn dhcp_v6_container_is_a_client_with_an_iaid_per_interface() {
        let nothing = Options::default();
        let first = Identity::of(&owner("c", "net", "eth0"), &nothing);
        assert_eq!(first, Identity::of(&owner("c", "net", "eth0"), &nothing));
        // This value must not change, because it is how the server finds the existing lease after an upgrade.
        let digits = hash::hex("", 100, &first.client);
        assert_eq!(
            (digits.as_str(), first.association),
            ("000421a154e0578f8e0186f7d10c7c2713bb", 4_101_581_341)
        );
        let second = Identity::of(&owner("c", "net", "net1"), &nothing);
        assert_eq!(first.client, second.client);
        assert_ne!(first.association, second.association);
        assert_ne!(first.association, association(&owner("c", "other", "eth0")));
        assert_ne!(first.client, Identity::of(&owner("d", "net", "eth0"), &nothing).client);
        let provided = Options { provided: vec![(option::CLIENT, b"web-0".to_vec())], ..nothing };
        let named = Identity::of(&owner("d", "net", "eth0"), &provided);
        assert_eq!((named.client.as_slice(), named.association), (&b"web-0"[..], first.association));
    }
}
