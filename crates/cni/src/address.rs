//! Parses and prints addresses and prefixes the way Go plugins do.
//!
//! Differences from `FromStr`:
//! - An IPv4-mapped IPv6 address becomes the IPv4 address (`::ffff:10.1.2.3/120` is 10.1.2.3/24).
//! - Host bits are kept.
//! - The empty string means "absent".
//!
//! Leading zeros in IPv4 are rejected, as in `FromStr`.
//!
//! Source: Go `net.ParseCIDR`, `net.IP.To4`; requirements trap 2, R5.

use std::net::IpAddr;

use ipnet::IpNet;

/// Parses an address; an IPv4-mapped one becomes IPv4.
pub fn parse_ip(text: &str) -> Option<IpAddr> {
    text.parse::<IpAddr>().ok().map(|ip| ip.to_canonical())
}

/// Parses `address/length` and keeps the host bits; an IPv4-mapped address becomes IPv4.
pub fn parse_cidr(text: &str) -> Option<IpNet> {
    let (address, length) = text.split_once('/')?;
    if length.is_empty() || !length.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    if length.len() > 1 && length.starts_with('0') {
        return None;
    }
    let address: IpAddr = address.parse().ok()?;
    let length: u8 = length.parse().ok()?;
    match (address, address.to_canonical()) {
        (IpAddr::V6(_), v4 @ IpAddr::V4(_)) if (96..=128).contains(&length) => {
            IpNet::new(v4, length - 96).ok()
        }
        (address, _) => IpNet::new(address, length).ok(),
    }
}

/// Parses an address with or without prefix length; without one, it stands for a single host.
pub fn parse_ip_or_cidr(text: &str) -> Option<IpNet> {
    match text.contains('/') {
        true => parse_cidr(text),
        false => parse_ip(text).map(IpNet::from),
    }
}

/// Parses a MAC address with one of the lengths that Linux uses: 6 (Ethernet), 8 (EUI-64, GUID) or 20 bytes (IPoIB).
///
/// As in Go's `net.ParseMAC`, pairs of hexadecimal digits are separated by `:` or `-`, or groups of four by `.`.
pub fn parse_mac(text: &str) -> Option<Vec<u8>> {
    let (divider, digits) = match text.find(['-', '.']).map(|place| text.as_bytes()[place]) {
        Some(b'-') => ('-', 2),
        Some(_) => ('.', 4),
        None => (':', 2),
    };
    let mut bytes = Vec::with_capacity(6);
    for part in text.split(divider) {
        if part.len() != digits || !part.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        let number = u16::from_str_radix(part, 16).ok()?.to_be_bytes();
        bytes.extend(&number[2 - digits / 2..]);
    }
    matches!(bytes.len(), 6 | 8 | 20).then_some(bytes)
}

/// Formats a MAC address as the kernel does: lower case, separated by `:`.
pub fn format_mac(bytes: &[u8]) -> String {
    let parts: Vec<String> = bytes.iter().map(|b| format!("{b:02x}")).collect();
    parts.join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    // Requirements: trap 2
    #[test]
    fn cidr_is_read_as_in_go() {
        let read = |text: &str| parse_cidr(text).map(|net| net.to_string());
        assert_eq!(read("10.1.2.3/24").as_deref(), Some("10.1.2.3/24"));
        assert_eq!(read("::ffff:10.1.2.3/120").as_deref(), Some("10.1.2.3/24"));
        assert_eq!(read("2001:DB8::1/64").as_deref(), Some("2001:db8::1/64"));
        for bad in [
            "10.01.0.0/16",
            "10.1.0.0",
            "10.1.0.0/",
            "10.1.0.0/33",
            "10.1.0.0/+8",
            "10.1.0.0/08",
            "/8",
            "::/129",
            "",
        ] {
            assert_eq!(read(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn ip_mapped_address_becomes_ipv4() {
        assert_eq!(parse_ip("::ffff:1.2.3.4"), parse_ip("1.2.3.4"));
        assert_eq!(parse_ip("1.2.3"), None);
        assert_eq!(parse_ip("1.2.3.04"), None);
    }

    #[test]
    fn mac_of_three_lengths() {
        assert_eq!(
            parse_mac("AA-bb-cc-dd-ee-0f").map(|m| format_mac(&m)).as_deref(),
            Some("aa:bb:cc:dd:ee:0f")
        );
        assert_eq!(parse_mac("0223.4567.8901").map(|m| format_mac(&m)).as_deref(), Some("02:23:45:67:89:01"));
        assert_eq!(parse_mac("24:8a:07:03:00:8d:ae:2f").map(|m| m.len()), Some(8));
        for bad in [
            "",
            "aa:bb",
            "aa:bb:cc:dd:ee",
            "aabb.ccdd:eeff",
            "aa.bb.cc.dd.ee.ff",
            "aa:bb:cc:dd:ee:f",
            "aa:bb-cc:dd:ee:ff",
            "gg:bb:cc:dd:ee:ff",
            "+1:bb:cc:dd:ee:ff",
        ] {
            assert_eq!(parse_mac(bad), None, "{bad:?}");
        }
    }
}
