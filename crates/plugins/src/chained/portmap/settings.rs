//! Port mappings from the runtime, and the addresses that they lead to.
//!
//! Source: plugins `plugins/meta/portmap/main.go` (V1).

use std::net::IpAddr;
use std::num::NonZeroU16;

use cni::Error;
use cni::capability::{PORT_MAPPINGS, PortMapping};
use cni::config::Config;
use cni::result::Success;
use ipnet::IpNet;
use linux::nft::Protocol;

use crate::iptables::Family;

/// Mapping from a host port to a container port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mapping {
    /// Transport protocol.
    pub(super) protocol: Protocol,
    /// Port on the host.
    pub(super) host_port: NonZeroU16,
    /// Port in the container.
    pub(super) container_port: NonZeroU16,
    /// Address on the host, if the runtime passes one; the unspecified address means all in that family.
    pub(super) host_ip: Option<IpAddr>,
}

// === impl Mapping ===

impl Mapping {
    /// Returns the mappings that the runtime passes. A host port may be mapped twice; the backends use the first mapping.
    pub(super) fn all(config: &Config) -> Result<Vec<Mapping>, Error> {
        let written: Vec<PortMapping> = config.capability(PORT_MAPPINGS)?.unwrap_or_default();
        written.iter().enumerate().map(|(at, mapping)| Mapping::read(at, mapping)).collect()
    }

    fn read(at: usize, mapping: &PortMapping) -> Result<Mapping, Error> {
        let PortMapping { host_port, container_port, protocol, host_ip } = mapping;
        let key = |name: &str| format!("runtimeConfig: portMappings[{at}].{name}");
        let port = |name: &str, port: u16| {
            NonZeroU16::new(port).ok_or_else(|| Error::key(key(name), port, "not between 1 and 65535"))
        };
        let protocol = match protocol.to_ascii_lowercase().as_str() {
            "" | "tcp" => Protocol::Tcp,
            "udp" => Protocol::Udp,
            "sctp" => Protocol::Sctp,
            _ => {
                return Err(Error::key(
                    key("protocol"),
                    format!("{protocol:?}"),
                    "not one of tcp, udp, sctp",
                ));
            }
        };
        Ok(Mapping {
            protocol,
            host_port: port("hostPort", *host_port)?,
            container_port: port("containerPort", *container_port)?,
            host_ip: host_ip.map(|ip| ip.to_canonical()),
        })
    }

    /// Whether the mapping applies to packets in this address family.
    pub(super) fn is_of(&self, family: Family) -> bool {
        self.host_ip.is_none_or(|ip| family.has(ip))
    }

    /// Returns the host address that the mapping is limited to; none if it applies to all.
    pub(super) fn host_address(&self) -> Option<IpAddr> {
        self.host_ip.filter(|ip| !ip.is_unspecified())
    }
}

/// Returns the container's addresses: in each family the first that no other interface has.
pub(super) fn container_addresses(result: &Success, ifname: &str) -> Vec<IpNet> {
    let elsewhere = |index: Option<i32>| {
        let interface = index
            .and_then(|index| usize::try_from(index).ok())
            .and_then(|index| result.interfaces.get(index));
        interface.is_some_and(|interface| interface.name != ifname || !result.is_inside(interface, ifname))
    };
    let inside: Vec<IpNet> =
        result.ips.iter().filter(|ip| !elsewhere(ip.interface)).map(|ip| ip.address).collect();
    Family::ALL
        .into_iter()
        .filter_map(|family| inside.iter().find(|net| family.has(net.addr())).copied())
        .collect()
}

#[cfg(test)]
mod tests {
    use cni::version::Version;
    use serde_json::{Value, json};

    use super::*;

    fn config(keys: &Value) -> Config {
        let mut value = json!({ "cniVersion": "1.1.0", "name": "net", "type": "portmap" });
        for (key, inner) in keys.as_object().unwrap() {
            value[key] = inner.clone();
        }
        Config::read(value.to_string().into_bytes(), Version::ALL).unwrap()
    }

    #[test]
    fn portmap_invalid_mapping_is_reported_by_field_and_value() {
        for (mapping, expected) in [
            (json!({ "hostPort": 0, "containerPort": 80 }), "portMappings[1].hostPort: 0"),
            (json!({ "hostPort": 80, "containerPort": 0 }), "portMappings[1].containerPort: 0"),
            (json!({ "hostPort": 80, "containerPort": 80, "protocol": "icmp" }), "protocol: \"icmp\""),
        ] {
            let good = json!({ "hostPort": 1, "containerPort": 1 });
            let runtime = json!({ "runtimeConfig": { "portMappings": [good, mapping] } });
            let error = Mapping::all(&config(&runtime)).unwrap_err();
            assert!(error.code == 7 && error.msg.contains(expected), "{}", error.msg);
        }
    }

    #[test]
    fn portmap_mapping_applies_to_its_address_family() {
        let read = |ip: Option<&str>| Mapping {
            protocol: Protocol::Tcp,
            host_port: NonZeroU16::MIN,
            container_port: NonZeroU16::MIN,
            host_ip: ip.map(|ip| ip.parse().unwrap()),
        };
        for (ip, four, six, address) in [
            (None, true, true, None),
            (Some("0.0.0.0"), true, false, None),
            (Some("::"), false, true, None),
            (Some("192.0.2.1"), true, false, Some("192.0.2.1")),
            (Some("fd00::1"), false, true, Some("fd00::1")),
        ] {
            let mapping = read(ip);
            assert_eq!((mapping.is_of(Family::V4), mapping.is_of(Family::V6)), (four, six), "{ip:?}");
            assert_eq!(mapping.host_address().map(|ip| ip.to_string()).as_deref(), address);
        }
    }
}
