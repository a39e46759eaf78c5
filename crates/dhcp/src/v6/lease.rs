//! DHCPv6 lease: what a server granted in a REPLY, and the CNI result for the container.
//!
//! - Nothing in the REPLY is trusted.
//! - An address is rejected if its valid lifetime is 0, or shorter than the preferred lifetime.
//! - Times have a minimum, so that no server can make the client send all the time. If the server leaves T1 and T2 to
//!   the client, they are 0.5 and 0.8 times the preferred lifetime.
//! - DNS names are validated.
//!
//! Source: RFC 8415 §14.2, §18.2.10.1, §21.4, §21.6; RFC 3646; RFC 5942 §5 for the length of the prefix.

use std::net::Ipv6Addr;
use std::time::Duration;

use cni::Error;
use cni::result::{Dns, IpConfig, Success};
use ipnet::{IpNet, Ipv6Net};

use super::message::{Address, Association, Code, Message, Status, option};
use crate::v4::lease::{NAMES_MAX, SHORTEST, search};

/// Lifetime that means "infinite".
pub const INFINITE: u32 = u32::MAX;

/// REPLY options that are stored with the association, once each.
const KEPT: &[u16] = &[option::SERVER, option::NAME_SERVERS, option::DOMAIN_SEARCH];
/// Maximum size of a stored option in bytes.
const KEPT_MAX: usize = 1024;

/// Granted lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Address.
    pub address: Ipv6Addr,
    /// Server DUID.
    pub server: Vec<u8>,
    /// When to start asking the lease's own server for an extension, relative to the grant (T1).
    pub renewal: Duration,
    /// When to start asking any server (T2).
    pub rebinding: Duration,
    /// When the lease ends; `None` means never.
    pub expiry: Option<Duration>,
    /// REPLY, reduced to what is used: server, address, DNS names.
    pub reply: Message,
}

impl Lease {
    /// Reads a REPLY; takes the first usable address in this association.
    pub fn of(reply: Message, association: u32) -> Result<Lease, Error> {
        Lease::for_address(reply, association, None)
    }

    /// Reads a REPLY, which must contain the address `wanted` if one is given.
    pub fn for_address(
        mut reply: Message,
        association: u32,
        wanted: Option<Ipv6Addr>,
    ) -> Result<Lease, Error> {
        let fault = |what: &str| Err(Error::internal(format!("DHCPv6 REPLY: {what}")));
        let Some(server) = reply.option(option::SERVER).map(<[u8]>::to_vec) else {
            return fault("no server identifier");
        };
        let Some(found) = reply.association(association) else {
            return fault("no association of this client");
        };
        let is_it =
            |address: &&Address| is_granted(address) && wanted.is_none_or(|wanted| wanted == address.address);
        let Some(granted) = found.addresses.iter().find(is_it) else {
            return fault("not an address that a container can use");
        };
        let (renewal, rebinding, expiry) = times(&found, granted);
        let address = granted.address;
        // Stored for as long as the container runs, in a file with a maximum size.
        let kept = Association { addresses: vec![granted.clone()], status: Status::SUCCESS, ..found };
        let mut options = vec![(option::ASSOCIATION, kept.encode())];
        for number in KEPT {
            let value = reply.option(*number).filter(|value| value.len() <= KEPT_MAX);
            options.extend(value.map(|value| (*number, value.to_vec())));
        }
        reply.options = options;
        Ok(Lease { address, server, renewal, rebinding, expiry, reply })
    }

    /// Returns the CNI result; the address gets this prefix length.
    pub fn result(&self, prefix_length: u8) -> Success {
        let address = Ipv6Net::new(self.address, prefix_length).unwrap_or(Ipv6Net::from(self.address));
        let servers = self.reply.addresses(option::NAME_SERVERS);
        let dns = Dns {
            nameservers: servers
                .iter()
                .filter(|server| is_usable(**server))
                .take(NAMES_MAX)
                .map(Ipv6Addr::to_string)
                .collect(),
            search: self.reply.option(option::DOMAIN_SEARCH).map(search).unwrap_or_default(),
            ..Dns::default()
        };
        let ips = vec![IpConfig { interface: None, address: IpNet::V6(address), gateway: None }];
        Success { interfaces: Vec::new(), ips, routes: Vec::new(), dns }
    }
}

/// Whether the server granted the address, and a container can use it.
pub fn is_granted(address: &Address) -> bool {
    let Address { address, preferred, valid, status } = address;
    *valid > 0 && preferred <= valid && status.code == Code::Success && is_usable(*address)
}

/// Whether a host can use the address beyond the link.
fn is_usable(address: Ipv6Addr) -> bool {
    let is_special = address.is_unspecified() || address.is_loopback() || address.is_multicast();
    !address.is_unicast_link_local() && !is_special && address.to_ipv4_mapped().is_none()
}

fn seconds(number: u32) -> Duration {
    Duration::from_secs(number.into())
}

/// Returns T1, T2 and the end.
fn times(association: &Association, granted: &Address) -> (Duration, Duration, Option<Duration>) {
    let expiry = (granted.valid != INFINITE).then(|| seconds(granted.valid).max(SHORTEST));
    let end = expiry.unwrap_or(seconds(INFINITE));
    // An address may be deprecated (preferred lifetime 0) and still be valid.
    let basis = if granted.preferred == 0 { end } else { seconds(granted.preferred).min(end) };
    // A time at the end of the lease would be too late.
    let within =
        |number: u32| Some(seconds(number)).filter(|time| number > 0 && (*time < end || expiry.is_none()));
    let rebinding = within(association.rebinding).unwrap_or(basis * 4 / 5);
    let renewal = within(association.renewal).unwrap_or(basis / 2).min(rebinding);
    (renewal.max(SHORTEST), rebinding.max(SHORTEST), expiry)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v6::message::Kind;

    const US: u32 = 7;

    fn reply(renewal: u32, rebinding: u32, preferred: u32, valid: u32, address: &str) -> Message {
        let mut reply = Message::new(Kind::Reply, 1);
        reply.set(option::SERVER, b"server".to_vec());
        let address =
            Address { address: address.parse().unwrap(), preferred, valid, status: Status::SUCCESS };
        let association =
            Association { id: US, renewal, rebinding, addresses: vec![address], status: Status::SUCCESS };
        reply.set(option::ASSOCIATION, association.encode());
        reply
    }

    #[test]
    fn dhcp_v6_lease_times_are_ordered_and_have_a_minimum() {
        let times = |renewal: u32, rebinding: u32, preferred: u32, valid: u32| {
            let lease = Lease::of(reply(renewal, rebinding, preferred, valid, "2001:db8::5"), US).unwrap();
            (lease.renewal.as_secs(), lease.rebinding.as_secs(), lease.expiry.map(|end| end.as_secs()))
        };
        assert_eq!(times(30, 60, 80, 100), (30, 60, Some(100)));
        assert_eq!(times(0, 0, 80, 100), (40, 64, Some(100)), "the client chooses");
        assert_eq!(times(0, 0, 0, 100), (50, 80, Some(100)), "deprecated from the beginning");
        assert_eq!(times(INFINITE, INFINITE, 80, 100), (40, 64, Some(100)), "later than its end");
        assert_eq!(times(500, 0, 80, 100), (40, 64, Some(100)));
        assert_eq!(times(100, 100, 100, 100), (50, 80, Some(100)), "at its end");
        assert_eq!(times(90, 0, 80, 100), (64, 64, Some(100)));
        assert_eq!(times(0, 0, 1, 1), (1, 1, Some(1)));
        let infinite = u64::from(INFINITE);
        assert_eq!(times(0, 0, INFINITE, INFINITE), (infinite / 2, infinite * 4 / 5, None));
        assert_eq!(times(INFINITE, INFINITE, INFINITE, INFINITE), (infinite, infinite, None));
    }

    #[test]
    fn dhcp_v6_unusable_address_is_no_lease() {
        for address in ["::", "::1", "ff02::1", "fe80::1", "::ffff:10.0.0.1"] {
            assert!(Lease::of(reply(0, 0, 80, 100, address), US).is_err(), "{address}");
        }
        let good = reply(0, 0, 80, 100, "2001:db8::5");
        for bad in [
            reply(0, 0, 0, 0, "2001:db8::5"),
            reply(0, 0, 101, 100, "2001:db8::5"),
            reply(60, 30, 80, 100, "2001:db8::5"),
        ] {
            assert!(Lease::of(bad, US).is_err());
        }
        assert!(Lease::of(good.clone(), US + 1).is_err(), "another association");
        assert!(Lease::for_address(good.clone(), US, Some("2001:db8::6".parse().unwrap())).is_err());
        let mut without_server = good.clone();
        without_server.options.retain(|(number, _)| *number != option::SERVER);
        assert!(Lease::of(without_server, US).is_err());
        assert!(Lease::of(good, US).is_ok());
    }

    #[test]
    fn dhcp_v6_names_are_validated_and_the_prefix_length_is_used() {
        let mut reply = reply(0, 0, 80, 100, "2001:db8::5");
        let servers = ["::", "2001:db8::1", "ff02::1", "fe80::1", "2001:db8::2"]
            .map(|one| one.parse::<Ipv6Addr>().unwrap().octets());
        reply.set(option::NAME_SERVERS, [servers.concat(), vec![9]].concat());
        reply.set(option::DOMAIN_SEARCH, b"\x03eng\x07example\0\x03a\nb\0".to_vec());
        let lease = Lease::of(reply, US).unwrap();
        let result = lease.result(128);
        assert_eq!(result.ips[0].address.to_string(), "2001:db8::5/128");
        assert_eq!(result.dns.nameservers, ["2001:db8::1", "2001:db8::2"]);
        assert_eq!(result.dns.search, ["eng.example"]);
        assert_eq!(lease.result(64).ips[0].address.to_string(), "2001:db8::5/64");
    }

    #[test]
    fn dhcp_v6_stored_reply_is_short_and_round_trips() {
        let mut long = reply(30, 60, 80, 100, "2001:db8::5");
        let found = long.association(US).unwrap();
        let many = Association { addresses: vec![found.addresses[0].clone(); 300], ..found };
        long.set(option::ASSOCIATION, many.encode());
        long.set(option::NAME_SERVERS, vec![0; 60_000]);
        long.options.extend((100..200).map(|number| (number, vec![0; 600])));
        long.options.extend([(option::DOMAIN_SEARCH, b"\x03eng\0".to_vec())]);
        long.options.extend(vec![(option::DOMAIN_SEARCH, vec![0; 1000]); 9]);
        let lease = Lease::of(long, US).unwrap();
        let bytes = lease.reply.encode();
        assert!(bytes.len() < 200, "{}", bytes.len());
        let read = Lease::of(Message::decode(&bytes).unwrap(), US).unwrap();
        assert_eq!(read, lease);
    }
}
