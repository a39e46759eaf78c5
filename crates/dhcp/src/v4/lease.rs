//! DHCPv4 lease: what a server granted in a DHCPACK, and the CNI result for the container.
//!
//! - Nothing in the DHCPACK is trusted.
//! - Times are put in order and have a minimum, so that no server can make the client send all the time.
//! - DNS names are validated.
//! - An invalid route list is ignored, but the other options still count.
//!
//! Source: RFC 2131 §4.4, RFC 2132; RFC 3442 (121), RFC 3397 (119); Go plugin `plugins/ipam/dhcp/lease.go`.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use cni::Error;
use cni::result::{Dns, IpConfig, Route, Success};
use ipnet::{IpNet, Ipv4Net};
use linux::route::SCOPE_LINK;

use super::message::{Message, option};

/// Duration of a lease if the server sends no lease time.
const LEASE_DEFAULT: Duration = Duration::from_secs(60 * 60);
/// Lease time that means "infinite".
const INFINITE: u32 = u32::MAX;
/// Minimum for all times.
pub const SHORTEST: Duration = Duration::from_secs(1);
/// Maximum number of search names, and of DNS servers.
pub const NAMES_MAX: usize = 32;
/// Maximum name length in characters; RFC 1035.
const NAME_MAX: usize = 253;

/// Granted lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Address with the subnet's prefix length.
    pub address: Ipv4Net,
    /// Server address.
    pub server: Ipv4Addr,
    /// When to start asking the lease's own server for an extension, relative to the grant (T1).
    pub renewal: Duration,
    /// When to start asking any server (T2).
    pub rebinding: Duration,
    /// When the lease ends; `None` means never.
    pub expiry: Option<Duration>,
    /// DHCPACK, which the lease file stores.
    pub ack: Message,
}

impl Lease {
    /// Reads a DHCPACK.
    pub fn of(ack: Message) -> Result<Lease, Error> {
        let fault = |what: &str| Error::internal(format!("DHCPACK of {}: {what}", ack.yours));
        let Some(server) = ack.address(option::SERVER) else { return Err(fault("no server identifier")) };
        let Some(mask) = ack.address(option::SUBNET_MASK) else { return Err(fault("no subnet mask")) };
        if !is_usable(ack.yours) {
            return Err(fault("not an address that a container can use"));
        }
        let address = match Ipv4Net::with_netmask(ack.yours, mask) {
            Ok(address) if address.prefix_len() > 0 => address,
            _ => return Err(fault(&format!("{mask} is not a subnet mask"))),
        };
        let whole = ack.seconds(option::LEASE_TIME);
        let expiry = match whole {
            Some(INFINITE) => None,
            Some(seconds) => Some(Duration::from_secs(seconds.into()).max(SHORTEST)),
            None => Some(LEASE_DEFAULT),
        };
        let end = expiry.unwrap_or(Duration::from_secs(INFINITE.into()));
        let time = |number: u8| ack.seconds(number).map(|seconds| Duration::from_secs(seconds.into()));
        let within = |time: &Duration| (SHORTEST..=end).contains(time);
        let rebinding = time(option::REBINDING_TIME).filter(within).unwrap_or(end * 85 / 100);
        let renewal = time(option::RENEWAL_TIME).filter(within).unwrap_or(end / 2).min(rebinding);
        let (renewal, rebinding) = (renewal.max(SHORTEST), rebinding.max(SHORTEST));
        Ok(Lease { address, server, renewal, rebinding, expiry, ack })
    }

    /// Returns the CNI result, whose routes have the metric `priority`.
    pub fn result(&self, priority: Option<u32>) -> Success {
        let gateway = self.gateway().map(IpAddr::V4);
        let mut routes = self.routes();
        for route in &mut routes {
            route.priority = priority;
        }
        let address = IpNet::V4(self.address);
        Success {
            interfaces: Vec::new(),
            ips: vec![IpConfig { interface: None, address, gateway }],
            routes,
            dns: self.dns(),
        }
    }

    /// Returns the first usable router.
    fn gateway(&self) -> Option<Ipv4Addr> {
        self.ack.addresses(option::ROUTERS).into_iter().find(|router| is_usable(*router))
    }

    /// Returns the classless routes if there are any (RFC 3442), otherwise the static routes and the default route.
    fn routes(&self) -> Vec<Route> {
        for number in [option::CLASSLESS_ROUTES, option::MICROSOFT_ROUTES] {
            let routes = self.ack.option(number).and_then(classless).unwrap_or_default();
            if !routes.is_empty() {
                return routes;
            }
        }
        let pairs = self.ack.option(option::STATIC_ROUTES).unwrap_or_default().chunks_exact(8);
        let address = |octets: &[u8]| Ipv4Addr::new(octets[0], octets[1], octets[2], octets[3]);
        let mut routes: Vec<Route> = pairs
            .map(|pair| (address(&pair[..4]), address(&pair[4..])))
            .filter(|(destination, router)| is_usable(*router) && *destination != Ipv4Addr::UNSPECIFIED)
            .map(|(destination, router)| Route::new(IpNet::V4(classful(destination)), Some(router.into())))
            .collect();
        let default =
            self.gateway().map(|gateway| Route::new(IpNet::V4(Ipv4Net::default()), Some(gateway.into())));
        routes.extend(default);
        routes
    }

    fn dns(&self) -> Dns {
        let servers = self.ack.addresses(option::NAME_SERVERS);
        let text =
            self.ack.option(option::DOMAIN_NAME).map(|bytes| String::from_utf8_lossy(bytes).into_owned());
        let domain = text.map(|text| text.trim_end_matches('\0').to_owned()).filter(|text| is_name(text));
        Dns {
            nameservers: servers.iter().take(NAMES_MAX).map(Ipv4Addr::to_string).collect(),
            domain: domain.unwrap_or_default(),
            search: self.ack.option(option::DOMAIN_SEARCH).map(search).unwrap_or_default(),
            options: Vec::new(),
        }
    }
}

/// Whether a host can have this address.
pub fn is_usable(address: Ipv4Addr) -> bool {
    let first = address.octets()[0];
    !address.is_loopback() && first != 0 && first < 224
}

/// Decodes RFC 3442 routes; `None` if the list is invalid.
fn classless(mut rest: &[u8]) -> Option<Vec<Route>> {
    let mut routes = Vec::new();
    while let Some((width, later)) = rest.split_first() {
        let significant = usize::from(width.div_ceil(8));
        let (destination, later) = later.split_at_checked(significant)?;
        let (router, later) = later.split_at_checked(4)?;
        rest = later;
        let mut octets = [0; 4];
        octets.get_mut(..significant)?.copy_from_slice(destination);
        let net = IpNet::V4(Ipv4Net::new(octets.into(), *width).ok()?.trunc());
        let router = Ipv4Addr::new(router[0], router[1], router[2], router[3]);
        let mut route = Route::new(net, (router != Ipv4Addr::UNSPECIFIED).then_some(router.into()));
        if route.gw.is_none() {
            // On-link.
            route.scope = Some(SCOPE_LINK);
        }
        routes.push(route);
    }
    Some(routes)
}

/// Returns the classful network that an address belongs to, for static routes without a mask.
fn classful(address: Ipv4Addr) -> Ipv4Net {
    let length = match address.octets()[0] {
        0..128 => 8,
        128..192 => 16,
        _ => 24,
    };
    Ipv4Net::new(address, length).unwrap_or_default().trunc()
}

/// Decodes RFC 3397 names, which may refer to earlier parts of the option. The first invalid name ends the list.
pub fn search(bytes: &[u8]) -> Vec<String> {
    let mut names = Vec::new();
    let mut at = 0;
    while at < bytes.len() && names.len() < NAMES_MAX {
        let Some((name, after)) = read_name(bytes, at) else { break };
        if is_name(&name) {
            names.push(name);
        }
        at = after;
    }
    names
}

/// Decodes the name at a position; returns it with the next name's position.
fn read_name(bytes: &[u8], start: usize) -> Option<(String, usize)> {
    let mut labels: Vec<String> = Vec::new();
    let (mut at, mut after) = (start, None);
    loop {
        let length = usize::from(*bytes.get(at)?);
        match length {
            0 => return Some((labels.join("."), after.unwrap_or(at + 1))),
            1..64 => {
                let label = bytes.get(at + 1..at + 1 + length)?;
                labels.push(String::from_utf8_lossy(label).into_owned());
                at += 1 + length;
            }
            192.. => {
                let target = (length & 0x3f) << 8 | usize::from(*bytes.get(at + 1)?);
                after = after.or(Some(at + 2));
                // Only backwards, because a name that refers to itself would never end.
                if target >= at {
                    return None;
                }
                at = target;
            }
            _ => return None,
        }
        if labels.len() > NAME_MAX / 2 {
            return None;
        }
    }
}

/// Whether a name has only letters, digits, hyphens, underscores and dots, so that it is safe in `resolv.conf`.
fn is_name(text: &str) -> bool {
    let known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !text.is_empty() && text.len() <= NAME_MAX && text.chars().all(known)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v4::message::Kind;

    fn ack(options: &[(u8, &[u8])]) -> Message {
        let mut ack = Message::new(Kind::Ack, 1, [2, 0, 0, 0, 0, 1]);
        ack.reply = true;
        ack.yours = Ipv4Addr::new(10, 1, 0, 5);
        ack.set(option::SERVER, [10, 1, 0, 1]);
        ack.set(option::SUBNET_MASK, [255, 255, 255, 0]);
        for (number, value) in options {
            ack.set(*number, *value);
        }
        ack
    }

    fn lease(options: &[(u8, &[u8])]) -> Lease {
        Lease::of(ack(options)).unwrap()
    }

    fn text(lease: &Lease) -> Vec<String> {
        let via = |route: &Route| route.gw.map_or("link".to_owned(), |gw| gw.to_string());
        lease.result(None).routes.iter().map(|route| format!("{} {}", route.dst, via(route))).collect()
    }

    #[test]
    fn dhcp_routes_prefer_rfc3442_over_older_options() {
        let old: [(u8, &[u8]); 2] = [
            (option::ROUTERS, &[10, 1, 0, 1, 10, 1, 0, 2]),
            (option::STATIC_ROUTES, &[192, 0, 2, 9, 10, 1, 0, 9]),
        ];
        assert_eq!(text(&lease(&old)), ["192.0.2.0/24 10.1.0.9", "0.0.0.0/0 10.1.0.1"]);
        let classless: &[u8] = &[12, 172, 16, 10, 1, 0, 3, 0, 10, 1, 0, 4, 32, 8, 8, 8, 8, 0, 0, 0, 0];
        let expected = ["172.16.0.0/12 10.1.0.3", "0.0.0.0/0 10.1.0.4", "8.8.8.8/32 link"];
        for number in [option::CLASSLESS_ROUTES, option::MICROSOFT_ROUTES] {
            let lease = lease(&[old[0], old[1], (number, classless)]);
            assert_eq!(text(&lease), expected);
            assert_eq!(lease.result(Some(7)).routes[2].scope, Some(SCOPE_LINK));
            assert_eq!(lease.result(Some(7)).routes[1].priority, Some(7));
            assert_eq!(lease.result(None).ips[0].gateway, Some("10.1.0.1".parse().unwrap()));
        }
        for broken in [&[33, 1, 1, 1, 1, 1, 1, 1, 1, 1][..], &[24, 10, 0], &[255], &[8, 10, 10, 1, 0]] {
            let lease = lease(&[old[0], (option::CLASSLESS_ROUTES, broken)]);
            assert_eq!(text(&lease), ["0.0.0.0/0 10.1.0.1"], "{broken:?}");
        }
    }

    #[test]
    fn dhcp_lease_times_are_ordered_and_have_a_minimum() {
        let times = |lease: u32, renewal: u32, rebinding: u32| {
            let lease = self::lease(&[
                (option::LEASE_TIME, &lease.to_be_bytes()),
                (option::RENEWAL_TIME, &renewal.to_be_bytes()),
                (option::REBINDING_TIME, &rebinding.to_be_bytes()),
            ]);
            (lease.renewal.as_millis(), lease.rebinding.as_millis(), lease.expiry.map(|end| end.as_secs()))
        };
        assert_eq!(times(100, 30, 60), (30_000, 60_000, Some(100)));
        assert_eq!(times(100, 0, 0), (50_000, 85_000, Some(100)), "a server that wants permanent requests");
        assert_eq!(times(100, 90, 60), (60_000, 60_000, Some(100)));
        assert_eq!(times(100, 500, 600), (50_000, 85_000, Some(100)));
        assert_eq!(times(0, 0, 0), (1000, 1000, Some(1)));
        assert_eq!(times(u32::MAX, 10, 20), (10_000, 20_000, None));
        assert_eq!(lease(&[]).expiry, Some(LEASE_DEFAULT));
    }

    #[test]
    fn dhcp_unusable_address_is_no_lease() {
        for yours in ["0.0.0.0", "127.0.0.1", "224.0.0.5", "255.255.255.255"] {
            let mut ack = ack(&[]);
            ack.yours = yours.parse().unwrap();
            assert!(Lease::of(ack).is_err(), "{yours}");
        }
        for mask in [&[255, 0, 255, 0][..], &[0, 0, 0, 0], &[255, 255], &[]] {
            assert!(Lease::of(ack(&[(option::SUBNET_MASK, mask)])).is_err(), "{mask:?}");
        }
        assert!(Lease::of(ack(&[(option::SERVER, &[1])])).is_err());
    }

    #[test]
    fn dhcp_dns_names_are_validated() {
        let search: &[u8] = b"\x03eng\x05apple\x03com\0\x09marketing\xc0\x04\x03a\nb\0";
        let lease = lease(&[
            (option::NAME_SERVERS, &[10, 1, 0, 1, 10, 1, 0, 2, 9]),
            (option::DOMAIN_NAME, b"example.org\0"),
            (option::DOMAIN_SEARCH, search),
        ]);
        let dns = lease.result(None).dns;
        assert_eq!(dns.nameservers, ["10.1.0.1", "10.1.0.2"]);
        assert_eq!(dns.domain, "example.org");
        assert_eq!(dns.search, ["eng.apple.com", "marketing.apple.com"]);
        for hostile in [&b"\xc0\x00"[..], b"\x03abc\xc0\x04", b"\xff", b"\x40", b"\x05ab", &[1; 255]] {
            assert!(self::search(hostile).len() < 2, "{hostile:?}");
        }
        assert_eq!(
            self::lease(&[(option::DOMAIN_NAME, b"a\nnameserver 6.6.6.6")]).result(None).dns.domain,
            ""
        );
    }
}
