//! What an element of the selection can ask for: addresses, ports, bandwidth, the default route.
//!
//! A value of these types has passed the check of its key. Each prints itself in one canonical form,
//! which is the form it is sent to plugins in.
//!
//! Source: the standard v1.3, 4.1.2.1.3–4.1.2.1.10; CONVENTIONS.md; RFC 4391 §9.1.1 (IPoIB).

use std::fmt;
use std::net::IpAddr;

use cni::address::{format_mac, parse_cidr, parse_ip, parse_mac};
use serde::{Deserialize, Serialize};

/// Serialises a type as the text it prints, and reads it with `$read`.
macro_rules! as_text {
    ($type:ident, $read:expr, $what:literal) => {
        impl Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let text = String::deserialize(from)?;
                $read(&text).ok_or_else(|| serde::de::Error::custom(concat!("not ", $what)))
            }
        }
    };
}

/// A requested address, with a prefix length or without.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestedIp {
    /// The address.
    pub address: IpAddr,
    /// The prefix length, if one was written.
    pub prefix: Option<u8>,
}

impl RequestedIp {
    /// Reads `address` or `address/length`.
    pub fn parse(text: &str) -> Option<RequestedIp> {
        if text.contains('/') {
            let net = parse_cidr(text)?;
            return Some(RequestedIp { address: net.addr(), prefix: Some(net.prefix_len()) });
        }
        parse_ip(text).map(|address| RequestedIp { address, prefix: None })
    }
}

impl fmt::Display for RequestedIp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.prefix {
            None => self.address.fmt(f),
            Some(prefix) => write!(f, "{}/{prefix}", self.address),
        }
    }
}

as_text!(RequestedIp, RequestedIp::parse, "an IP address");

/// A requested hardware address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HardwareAddress {
    /// Six bytes.
    Ethernet([u8; 6]),
    /// Twenty bytes: IP over InfiniBand. Valid up to v1.1 of the standard, still taken here (C2).
    Infiniband([u8; 20]),
}

impl HardwareAddress {
    /// Reads pairs of hexadecimal digits divided by `:` or `-`; any other length is none.
    pub fn parse(text: &str) -> Option<HardwareAddress> {
        let bytes = parse_mac(text)?;
        let ethernet = <[u8; 6]>::try_from(bytes.as_slice()).map(HardwareAddress::Ethernet);
        ethernet.or_else(|_| <[u8; 20]>::try_from(bytes.as_slice()).map(HardwareAddress::Infiniband)).ok()
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        match self {
            HardwareAddress::Ethernet(bytes) => bytes,
            HardwareAddress::Infiniband(bytes) => bytes,
        }
    }

    /// The GUID in an IPoIB address: its lower eight bytes.
    pub fn guid(&self) -> Option<Guid> {
        match self {
            HardwareAddress::Ethernet(_) => None,
            HardwareAddress::Infiniband(bytes) => bytes.last_chunk::<8>().map(|lower| Guid(*lower)),
        }
    }
}

impl fmt::Display for HardwareAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format_mac(self.bytes()))
    }
}

as_text!(HardwareAddress, HardwareAddress::parse, "a hardware address of 6 or 20 bytes");

/// An InfiniBand GUID: eight bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Guid(pub [u8; 8]);

impl Guid {
    /// Reads eight pairs of hexadecimal digits divided by `:` or `-`.
    pub fn parse(text: &str) -> Option<Guid> {
        parse_mac(text).and_then(|bytes| <[u8; 8]>::try_from(bytes.as_slice()).ok()).map(Guid)
    }
}

impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format_mac(&self.0))
    }
}

as_text!(Guid, Guid::parse, "a GUID of 8 bytes");

/// A transport protocol, printed in lower case as CONVENTIONS.md has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// TCP: the default.
    #[default]
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

impl Protocol {
    /// Reads a name in any letter case.
    pub fn parse(text: &str) -> Option<Protocol> {
        match text.to_ascii_lowercase().as_str() {
            "tcp" => Some(Protocol::Tcp),
            "udp" => Some(Protocol::Udp),
            "sctp" => Some(Protocol::Sctp),
            _ => None,
        }
    }
}

/// One port of the host that leads to one of the pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PortMapping {
    /// Port on the host, 1–65535.
    pub host_port: u16,
    /// Port in the pod, 1–65535.
    pub container_port: u16,
    /// Protocol.
    pub protocol: Protocol,
    /// Only this address of the host (Multus's extension).
    #[serde(rename = "hostIP", default, skip_serializing_if = "Option::is_none")]
    pub host_ip: Option<IpAddr>,
}

/// A bandwidth limit in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Bits per second, not 0.
    pub rate: u64,
    /// Bits, not 0; `None` where the pod left it to us.
    pub burst: Option<u64>,
}

/// The burst given to plugins where the pod names none, in bits.
///
/// The reference plugin demands one. This is what the Kubernetes runtimes send with their own limits.
pub const DEFAULT_BURST: u64 = i32::MAX as u64;

/// Bandwidth limits; at least one direction is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bandwidth {
    /// Into the pod.
    pub ingress: Option<Limit>,
    /// Out of the pod.
    pub egress: Option<Limit>,
}

impl Serialize for Bandwidth {
    /// As CONVENTIONS.md has it, with the default burst filled in.
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeMap;
        let mut map = to.serialize_map(None)?;
        for (limit, rate, burst) in
            [(self.ingress, "ingressRate", "ingressBurst"), (self.egress, "egressRate", "egressBurst")]
        {
            if let Some(limit) = limit {
                map.serialize_entry(rate, &limit.rate)?;
                map.serialize_entry(burst, &limit.burst.unwrap_or(DEFAULT_BURST))?;
            }
        }
        map.end()
    }
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

    #[test]
    fn a_requested_address_prints_as_it_was_meant() {
        let read = |text: &str| RequestedIp::parse(text).map(|ip| ip.to_string());
        assert_eq!(read("10.2.2.42").as_deref(), Some("10.2.2.42"));
        assert_eq!(read("10.2.2.42/24").as_deref(), Some("10.2.2.42/24"));
        assert_eq!(read("2001:DB8::5/64").as_deref(), Some("2001:db8::5/64"));
        for bad in ["", "x", "10.0.0.256", "10.0.0.1/33", "10.0.0.1/", "::1%eth0", " 10.0.0.1"] {
            assert_eq!(read(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn conflict_c2_the_lower_eight_bytes_of_an_ipoib_address_are_its_guid() {
        let mac = HardwareAddress::parse("80:00:11:22:33:44:55:66:77:88:99:aa:bb:cc:dd:ee:ff:00:11:22");
        let guid = mac.and_then(|mac| mac.guid()).map(|guid| guid.to_string());
        assert_eq!(guid.as_deref(), Some("bb:cc:dd:ee:ff:00:11:22"));
        assert_eq!(HardwareAddress::parse("02:23:45:67:89:01").and_then(|mac| mac.guid()), None);
    }

    #[test]
    fn v11_4_1_2_1_8_2_bursts_have_a_default() -> Result<(), serde_json::Error> {
        let limit = Limit { rate: 2048, burst: None };
        let json = serde_json::to_string(&Bandwidth { ingress: Some(limit), egress: None })?;
        assert_eq!(json, r#"{"ingressRate":2048,"ingressBurst":2147483647}"#);
        Ok(())
    }

    #[test]
    fn texts_survive_json() -> Result<(), serde_json::Error> {
        let guid: Guid = serde_json::from_str(r#""24-8A-07-03-00-8d-ae-2f""#)?;
        assert_eq!(serde_json::to_string(&guid)?, r#""24:8a:07:03:00:8d:ae:2f""#);
        assert!(serde_json::from_str::<Guid>(r#""24:8a""#).is_err());
        assert!(serde_json::from_str::<HardwareAddress>(r#""24:8a:07:03:00:8d:ae:2f""#).is_err());
        Ok(())
    }
}
