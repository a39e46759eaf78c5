//! Addresses and prefixes as the Go plugins read and print them.
//!
//! Rules that differ from what `FromStr` gives: an IPv4-mapped IPv6 address *is* the IPv4 address
//! (`::ffff:10.1.2.3/120` is 10.1.2.3/24), host bits are kept, the empty text means «absent».
//! What is the same: leading zeros in IPv4 are refused.
//!
//! Source: Go `net.ParseCIDR`, `net.IP.To4`; requirement: trap 2, R5.

use std::net::IpAddr;

use ipnet::IpNet;

/// Reads an address; IPv4-mapped becomes IPv4.
pub fn parse_ip(text: &str) -> Option<IpAddr> {
    text.parse::<IpAddr>().ok().map(|ip| ip.to_canonical())
}

/// Reads `address/length`, keeping the host bits; IPv4-mapped becomes IPv4.
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

/// Reads an address with or without a prefix length; without one it is a host prefix.
pub fn parse_ip_or_cidr(text: &str) -> Option<IpNet> {
    match text.contains('/') {
        true => parse_cidr(text),
        false => parse_ip(text).map(IpNet::from),
    }
}

/// Reads a hardware address of any length the kernel uses: 6 (Ethernet), 8 (EUI-64, GUID) or 20 bytes (IPoIB).
///
/// Pairs of hexadecimal digits divided by one of `:` or `-`, the same throughout.
pub fn parse_mac(text: &str) -> Option<Vec<u8>> {
    let divider = if text.contains('-') { '-' } else { ':' };
    let mut bytes = Vec::with_capacity(6);
    for part in text.split(divider) {
        if part.len() != 2 || !part.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        bytes.push(u8::from_str_radix(part, 16).ok()?);
    }
    matches!(bytes.len(), 6 | 8 | 20).then_some(bytes)
}

/// Prints a hardware address the kernel's way: lower case, `:`.
pub fn format_mac(bytes: &[u8]) -> String {
    let parts: Vec<String> = bytes.iter().map(|b| format!("{b:02x}")).collect();
    parts.join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    // Requirements: trap 2
    #[test]
    fn prefixes_read_as_go_reads_them() {
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
    fn a_mapped_address_is_the_ipv4_address() {
        assert_eq!(parse_ip("::ffff:1.2.3.4"), parse_ip("1.2.3.4"));
        assert_eq!(parse_ip("1.2.3"), None);
        assert_eq!(parse_ip("1.2.3.04"), None);
    }

    #[test]
    fn hardware_addresses_of_three_lengths() {
        assert_eq!(
            parse_mac("AA-bb-cc-dd-ee-0f").map(|m| format_mac(&m)).as_deref(),
            Some("aa:bb:cc:dd:ee:0f")
        );
        assert_eq!(parse_mac("24:8a:07:03:00:8d:ae:2f").map(|m| m.len()), Some(8));
        for bad in [
            "",
            "aa:bb",
            "aa:bb:cc:dd:ee",
            "aabb.ccdd.eeff",
            "aa:bb:cc:dd:ee:f",
            "aa:bb-cc:dd:ee:ff",
            "gg:bb:cc:dd:ee:ff",
            "+1:bb:cc:dd:ee:ff",
        ] {
            assert_eq!(parse_mac(bad), None, "{bad:?}");
        }
    }
}
