//! Capabilities: values that a runtime can pass for each attachment, and the forms they take.
//!
//! A network declares a capability (`"capabilities": {"mac": true}`), the runtime passes a value in `runtimeConfig`,
//! and the plugin must act on it or fail. Keys match in any letter case, because containerd and CRI-O send Go field
//! names (`HostPort`, `Subnet`, `IngressRate`); weft itself prints the documented names.
//!
//! A plugin reads a value with, for example, `config.capability::<Vec<PortMapping>>(capability::PORT_MAPPINGS)`.
//!
//! Source: CONVENTIONS.md "Dynamic Plugin specific fields"; containerd/go-cni `types.go` (V1–V12, trap 1).

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::address::{format_mac, parse_cidr, parse_ip, parse_mac};

/// Host ports to forward: a list of [`PortMapping`].
pub const PORT_MAPPINGS: &str = "portMappings";
/// Address ranges to allocate from: a list of lists of [`IpRange`]; the plugin allocates one address from each inner
/// list.
pub const IP_RANGES: &str = "ipRanges";
/// Traffic limits: [`Bandwidth`].
pub const BANDWIDTH: &str = "bandwidth";
/// Pod DNS settings: [`Resolution`]. Only Windows plugins use them.
pub const DNS: &str = "dns";
/// Addresses to allocate: a list of [`RequestedIp`].
pub const IPS: &str = "ips";
/// MAC address to set: [`HardwareAddress`].
pub const MAC: &str = "mac";
/// InfiniBand GUID to set: [`HardwareAddress`] with 8 bytes.
pub const INFINIBAND_GUID: &str = "infinibandGUID";
/// Device to attach, as a string: a PCI address (`0000:04:00.5`) or the name of an auxiliary device.
pub const DEVICE_ID: &str = "deviceID";
/// Additional names for the container in this network: a list of strings.
pub const ALIASES: &str = "aliases";
/// Pod control group: a path relative to the hierarchy's mount point.
pub const CGROUP_PATH: &str = "cgroupPath";
/// Pod annotations: a map of strings. Not in the CNI document, but containerd and CRI-O send it.
pub const POD_ANNOTATIONS: &str = "io.kubernetes.cri.pod-annotations";
/// Path of the device information file (NPWG device information specification).
pub const DEVICE_INFO_FILE: &str = "CNIDeviceInfoFile";

/// Every capability that a convention defines.
pub const ALL: &[&str] = &[
    PORT_MAPPINGS,
    IP_RANGES,
    BANDWIDTH,
    DNS,
    IPS,
    MAC,
    INFINIBAND_GUID,
    DEVICE_ID,
    ALIASES,
    CGROUP_PATH,
    POD_ANNOTATIONS,
    DEVICE_INFO_FILE,
];

/// Host port that is forwarded to the container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PortMapping {
    /// Port on the host; 0 if none is requested.
    pub host_port: u16,
    /// Port in the container.
    pub container_port: u16,
    /// `tcp`, `udp` or `sctp` in any letter case; empty means tcp.
    pub protocol: String,
    /// Address on the host; `None` means all of them. Not in the CNI document, but every runtime sends it.
    #[serde(rename = "hostIP", deserialize_with = "optional_ip", skip_serializing_if = "Option::is_none")]
    pub host_ip: Option<IpAddr>,
}

/// Address range in the form that `host-local` uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IpRange {
    /// Subnet; host bits are kept as written.
    #[serde(deserialize_with = "subnet")]
    pub subnet: IpNet,
    /// First address; `None` means the first in the subnet.
    #[serde(default, deserialize_with = "optional_ip", skip_serializing_if = "Option::is_none")]
    pub range_start: Option<IpAddr>,
    /// Last address, inclusive; `None` means the last in the subnet.
    #[serde(default, deserialize_with = "optional_ip", skip_serializing_if = "Option::is_none")]
    pub range_end: Option<IpAddr>,
    /// Gateway; `None` means the first address in the subnet.
    #[serde(default, deserialize_with = "optional_ip", skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
}

/// Bandwidth limits as seen from the container; 0 means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Bandwidth {
    /// Rate towards the container, in bits per second.
    pub ingress_rate: u64,
    /// Burst towards the container, in bits.
    pub ingress_burst: u64,
    /// Rate from the container, in bits per second.
    pub egress_rate: u64,
    /// Burst from the container, in bits.
    pub egress_burst: u64,
}

/// Pod DNS settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Resolution {
    /// DNS servers.
    pub servers: Vec<String>,
    /// Search list.
    pub searches: Vec<String>,
    /// Resolver options.
    pub options: Vec<String>,
}

/// Requested address: `ip` or `ip/prefix`. Each plugin decides whether it needs the prefix length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestedIp {
    /// IP address.
    pub address: IpAddr,
    /// Prefix length, if there is one.
    pub prefix: Option<u8>,
}

impl RequestedIp {
    /// Parses `ip` or `ip/prefix`; an IPv4-mapped address becomes IPv4.
    pub fn parse(text: &str) -> Option<RequestedIp> {
        match text.contains('/') {
            true => parse_cidr(text)
                .map(|net| RequestedIp { address: net.addr(), prefix: Some(net.prefix_len()) }),
            false => parse_ip(text).map(|address| RequestedIp { address, prefix: None }),
        }
    }
}

impl fmt::Display for RequestedIp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.prefix {
            Some(prefix) => write!(f, "{}/{prefix}", self.address),
            None => self.address.fmt(f),
        }
    }
}

/// MAC address or GUID with 6, 8 or 20 bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HardwareAddress(Vec<u8>);

impl HardwareAddress {
    /// Parses pairs of hexadecimal digits separated by `:` or `-`.
    pub fn parse(text: &str) -> Option<HardwareAddress> {
        parse_mac(text).map(HardwareAddress)
    }

    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for HardwareAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format_mac(&self.0))
    }
}

macro_rules! as_text {
    ($type:ty, $expected:literal) => {
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let text = String::deserialize(from)?;
                <$type>::parse(&text).ok_or_else(|| D::Error::custom(concat!("expected ", $expected)))
            }
        }
    };
}

as_text!(RequestedIp, "an IP address, with or without a prefix length");
as_text!(HardwareAddress, "a hardware address");

/// Decodes an address; `""` means absent, as in Go.
fn optional_ip<'de, D: Deserializer<'de>>(from: D) -> Result<Option<IpAddr>, D::Error> {
    let text = Option::<String>::deserialize(from)?.unwrap_or_default();
    match text.as_str() {
        "" => Ok(None),
        text => parse_ip(text).map(Some).ok_or_else(|| D::Error::custom("expected an IP address")),
    }
}

fn subnet<'de, D: Deserializer<'de>>(from: D) -> Result<IpNet, D::Error> {
    let text = String::deserialize(from)?;
    parse_cidr(&text).ok_or_else(|| D::Error::custom("expected an address with a prefix length"))
}

#[cfg(test)]
mod tests;
