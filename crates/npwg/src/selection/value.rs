//! Conversion from JSON values in an element to checked types.
//!
//! Source: multi-network specification v1.3, 4.1.2.1.3–4.1.2.1.10, key by key.

use std::net::IpAddr;

use cni::address::parse_ip;
use cni::capability::{Bandwidth, HardwareAddress, PortMapping, RequestedIp};
use cni::name::{IfName, ifname_fault};
use cni::text::is_control;
use serde_json::{Map, Value};

use crate::refusal::{KeyPath, quote};
use crate::request::{DEFAULT_BURST, ETHERNET_LENGTH, GUID_LENGTH, INFINIBAND_LENGTH};

/// Why a key does not allow a value.
pub(super) struct Wrong {
    /// Path within the document.
    pub(super) path: KeyPath,
    /// The invalid value, as JSON.
    pub(super) value: String,
    /// Reason to show to the user.
    pub(super) reason: String,
}

/// Value that a reader returns, or the reason why there is none.
pub(super) type Read<T> = Result<T, Wrong>;

fn wrong<T>(path: &KeyPath, value: &Value, reason: impl Into<String>) -> Read<T> {
    Err(Wrong { path: path.clone(), value: value.to_string(), reason: reason.into() })
}

/// Reads a string.
pub(super) fn text<'a>(path: &KeyPath, value: &'a Value) -> Read<&'a str> {
    match value.as_str() {
        Some(text) => Ok(text),
        None => wrong(path, value, "must be a string"),
    }
}

fn list<'a>(path: &KeyPath, value: &'a Value) -> Read<&'a [Value]> {
    match value.as_array() {
        Some(list) => Ok(list),
        None if value.is_string() => wrong(path, value, format!("must be a list: write [{value}]")),
        None => wrong(path, value, "must be a list"),
    }
}

/// Reads an object.
pub(super) fn object<'a>(path: &KeyPath, value: &'a Value) -> Read<&'a Map<String, Value>> {
    match value.as_object() {
        Some(map) => Ok(map),
        None => wrong(path, value, "must be an object"),
    }
}

/// Reads a list with at least one address; duplicates are removed.
pub(super) fn ips(path: &KeyPath, value: &Value) -> Read<Vec<RequestedIp>> {
    let mut ips: Vec<RequestedIp> = Vec::new();
    for (index, item) in list(path, value)?.iter().enumerate() {
        let at = path.index(index);
        let Some(ip) = RequestedIp::parse(text(&at, item)?) else {
            return wrong(&at, item, "is not an IPv4 or IPv6 address, with or without a prefix length");
        };
        if !ips.iter().any(|known| known.address == ip.address) {
            ips.push(ip);
        }
    }
    match ips.is_empty() {
        true => wrong(path, value, "must contain at least one address"),
        false => Ok(ips),
    }
}

/// Reads a hardware address with six or twenty bytes.
pub(super) fn mac(path: &KeyPath, value: &Value) -> Read<HardwareAddress> {
    let lengths = [ETHERNET_LENGTH, INFINIBAND_LENGTH];
    match HardwareAddress::parse(text(path, value)?).filter(|mac| lengths.contains(&mac.bytes().len())) {
        Some(mac) if mac.bytes().iter().all(|byte| *byte == 0) => {
            wrong(path, value, "is the address of no interface")
        }
        // The lowest bit of the first byte of an Ethernet address marks a group.
        Some(mac)
            if mac.bytes().len() == ETHERNET_LENGTH
                && mac.bytes().first().is_some_and(|byte| byte & 1 == 1) =>
        {
            wrong(path, value, "is the address of a group: the second digit must be even")
        }
        Some(mac) => Ok(mac),
        None => {
            wrong(path, value, "is neither an Ethernet address of 6 bytes nor an IPoIB address of 20 bytes")
        }
    }
}

/// Reads a GUID, which has eight bytes.
pub(super) fn guid(path: &KeyPath, value: &Value) -> Read<HardwareAddress> {
    match HardwareAddress::parse(text(path, value)?).filter(|guid| guid.bytes().len() == GUID_LENGTH) {
        Some(guid) => Ok(guid),
        None => wrong(path, value, "is not an InfiniBand GUID of 8 bytes"),
    }
}

/// Reads an interface name that the kernel accepts.
pub(super) fn interface(path: &KeyPath, value: &Value) -> Read<IfName> {
    let name = text(path, value)?;
    if name.contains(is_control) {
        // The kernel accepts such a name, which would change how a status or a log is shown.
        return wrong(path, value, "is not an interface name: it contains a control or direction character");
    }
    match (IfName::new(name), ifname_fault(name)) {
        (Ok(name), _) => Ok(name),
        (Err(_), fault) => {
            wrong(path, value, format!("is not an interface name: it {}", fault.unwrap_or("is malformed")))
        }
    }
}

/// Reads a list with at least one port mapping.
pub(super) fn port_mappings(path: &KeyPath, value: &Value) -> Read<Vec<PortMapping>> {
    let items = list(path, value)?;
    if items.is_empty() {
        return wrong(path, value, "must contain at least one mapping");
    }
    items.iter().enumerate().map(|(index, item)| port_mapping(&path.index(index), item)).collect()
}

fn port_mapping(path: &KeyPath, value: &Value) -> Read<PortMapping> {
    let map = object(path, value)?;
    let port = |key: &str| {
        let Some((at, value)) = find(map, path, key) else {
            return wrong(path, value, format!("{key} is missing"));
        };
        match value.as_u64().and_then(|port| u16::try_from(port).ok()).filter(|port| *port > 0) {
            Some(port) => Ok(port),
            None => wrong(&at, value, "must be a whole number from 1 to 65535"),
        }
    };
    let (host_port, container_port) = (port("hostPort")?, port("containerPort")?);
    let protocol = match find(map, path, "protocol") {
        None => "tcp".to_owned(),
        Some((at, value)) => match text(&at, value)?.to_ascii_lowercase() {
            known if ["tcp", "udp", "sctp"].contains(&known.as_str()) => known,
            _ => return wrong(&at, value, "must be TCP, UDP or SCTP"),
        },
    };
    let host_ip = match find(map, path, "hostIP") {
        None => None,
        Some((at, value)) => match text(&at, value)? {
            "" => None,
            address => match parse_ip(address) {
                Some(address) => Some(address),
                None => return wrong(&at, value, "is not an IP address"),
            },
        },
    };
    Ok(PortMapping { host_port, container_port, protocol, host_ip })
}

/// Reads a bandwidth object: at least one rate, and a burst only with a rate.
pub(super) fn bandwidth(path: &KeyPath, value: &Value) -> Read<Bandwidth> {
    let map = object(path, value)?;
    let number = |key: &str| match find(map, path, key) {
        None => Ok(None),
        Some((at, value)) => match value.as_u64().filter(|number| *number > 0) {
            Some(number) => Ok(Some(number)),
            None => wrong(&at, value, "must be a whole number above 0"),
        },
    };
    // Rate and burst in one direction; plugins read a rate of 0 as "no limit".
    let limit = |rate_key: &str, burst_key: &str| match (number(rate_key)?, number(burst_key)?) {
        (Some(rate), burst) => Ok((rate, burst.unwrap_or(DEFAULT_BURST))),
        (None, None) => Ok((0, 0)),
        (None, Some(_)) => wrong(path, value, format!("{burst_key} needs {rate_key} beside it")),
    };
    let (ingress_rate, ingress_burst) = limit("ingressRate", "ingressBurst")?;
    let (egress_rate, egress_burst) = limit("egressRate", "egressBurst")?;
    match ingress_rate == 0 && egress_rate == 0 {
        true => wrong(path, value, "must contain ingressRate or egressRate"),
        false => Ok(Bandwidth { ingress_rate, ingress_burst, egress_rate, egress_burst }),
    }
}

/// Reads a list of gateways, possibly empty; duplicates are removed.
pub(super) fn gateways(path: &KeyPath, value: &Value) -> Read<Vec<IpAddr>> {
    let mut gateways = Vec::new();
    for (index, item) in list(path, value)?.iter().enumerate() {
        let at = path.index(index);
        let Some(gateway) = parse_ip(text(&at, item)?) else {
            return wrong(&at, item, "is not an IP address");
        };
        if gateway.is_unspecified() || gateway.is_multicast() || gateway.is_loopback() {
            return wrong(&at, item, "is not the address of a gateway; [] uses the gateway of the network");
        }
        if !gateways.contains(&gateway) {
            gateways.push(gateway);
        }
    }
    Ok(gateways)
}

/// Returns the entry at `key`, matched exactly or else by case folding; a `null` value counts as absent.
fn find<'a>(map: &'a Map<String, Value>, path: &KeyPath, key: &str) -> Option<(KeyPath, &'a Value)> {
    let folded = || map.iter().rev().find(|(k, _)| cni::fold::same(k, key));
    let (written, value) = map.get_key_value(key).or_else(folded)?;
    (!value.is_null()).then(|| (path.key(written), value))
}

/// Returns an object's unknown keys: those without a dot that are not in `known`.
pub(super) fn unknown<'a>(keys: impl Iterator<Item = &'a str>, known: &[&str]) -> Vec<&'a str> {
    let is_known = |key: &str| known.iter().any(|k| cni::fold::same(k, key));
    keys.filter(|key| !key.contains('.') && !is_known(key)).collect()
}

/// Returns `text` quoted for a message.
pub(super) fn shown(text: &str) -> String {
    quote(text)
}
