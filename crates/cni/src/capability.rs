//! Capabilities: values that a runtime may pass for each attachment, and their forms.
//!
//! A network declares a capability (`"capabilities": {"mac": true}`), the runtime passes its value in `runtimeConfig`, and
//! the plugin must act on it or fail. Keys are matched without case, because containerd and CRI-O send Go's field names
//! (`HostPort`, `Subnet`, `IngressRate`); the documented names are printed.
//!
//! A plugin reads one with `config.capability::<Vec<PortMapping>>(capability::PORT_MAPPINGS)`.
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
/// Address ranges to allocate from: a list, with one address for each element, of lists of [`IpRange`].
pub const IP_RANGES: &str = "ipRanges";
/// Traffic limits: [`Bandwidth`].
pub const BANDWIDTH: &str = "bandwidth";
/// DNS configuration of the pod: [`Resolution`]. Only Windows plugins use it.
pub const DNS: &str = "dns";
/// Addresses to allocate: a list of [`RequestedIp`].
pub const IPS: &str = "ips";
/// Hardware address to set: [`HardwareAddress`].
pub const MAC: &str = "mac";
/// InfiniBand GUID to set: [`HardwareAddress`] of 8 bytes.
pub const INFINIBAND_GUID: &str = "infinibandGUID";
/// Device to attach: a PCI address (`0000:04:00.5`) or the name of an auxiliary device, a string.
pub const DEVICE_ID: &str = "deviceID";
/// Further names of the container in this network: a list of strings.
pub const ALIASES: &str = "aliases";
/// Control group of the pod: a path, relative to the mount point of the hierarchy.
pub const CGROUP_PATH: &str = "cgroupPath";
/// Annotations of the pod: a map of strings. Not in the document; containerd and CRI-O send it.
pub const POD_ANNOTATIONS: &str = "io.kubernetes.cri.pod-annotations";
/// Path of the device information file (NPWG device information specification).
pub const DEVICE_INFO_FILE: &str = "CNIDeviceInfoFile";

/// Every capability with a convention.
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

/// Host port forwarded to the container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PortMapping {
    /// Port on the host; 0 if none is requested.
    pub host_port: u16,
    /// Port in the container.
    pub container_port: u16,
    /// `tcp`, `udp` or `sctp` in any letter case; empty means tcp.
    pub protocol: String,
    /// Address on the host; `None` for all of them. Not in the document, sent by every runtime.
    #[serde(rename = "hostIP", deserialize_with = "optional_ip", skip_serializing_if = "Option::is_none")]
    pub host_ip: Option<IpAddr>,
}

/// Range of addresses, as in `host-local`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IpRange {
    /// Subnet, with its host bits as written.
    #[serde(deserialize_with = "subnet")]
    pub subnet: IpNet,
    /// First address; `None` for the first of the subnet.
    #[serde(default, deserialize_with = "optional_ip", skip_serializing_if = "Option::is_none")]
    pub range_start: Option<IpAddr>,
    /// Last address, inclusive; `None` for the last of the subnet.
    #[serde(default, deserialize_with = "optional_ip", skip_serializing_if = "Option::is_none")]
    pub range_end: Option<IpAddr>,
    /// Gateway; `None` for the first address of the subnet.
    #[serde(default, deserialize_with = "optional_ip", skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
}

/// Bandwidth limits from the container's point of view; 0 means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Bandwidth {
    /// Towards the container, in bits per second.
    pub ingress_rate: u64,
    /// Towards the container, in bits.
    pub ingress_burst: u64,
    /// From the container, in bits per second.
    pub egress_rate: u64,
    /// From the container, in bits.
    pub egress_burst: u64,
}

/// DNS configuration of the pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Resolution {
    /// Name servers.
    pub servers: Vec<String>,
    /// Search list.
    pub searches: Vec<String>,
    /// Resolver options.
    pub options: Vec<String>,
}

/// Requested address: `ip` or `ip/prefix`. The plugin decides whether it needs the prefix length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestedIp {
    /// The address.
    pub address: IpAddr,
    /// Prefix length, if there is one.
    pub prefix: Option<u8>,
}

impl RequestedIp {
    /// Reads `ip` or `ip/prefix`; an IPv4-mapped address is the IPv4 address.
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

/// Hardware address of 6, 8 or 20 bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HardwareAddress(Vec<u8>);

impl HardwareAddress {
    /// Reads pairs of hexadecimal digits separated by `:` or `-`.
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

/// Reads an address; `""` means absent, as in Go.
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
