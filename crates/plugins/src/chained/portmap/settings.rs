//! The validated configuration of `portmap`, and the port mappings of the runtime.
//!
//! If no backend is named, an option that only one backend has selects that backend. If one is named, the other's
//! options are refused.
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
use serde::Deserialize;

use super::conditions::{self, Conditions, Syntax};
use crate::iptables::{Family, checked_chain};

/// Default bit of the packet mark that selects packets for masquerading.
pub(super) const MARK_BIT: u8 = 13;

/// The configuration as written.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Conf {
    backend: Option<String>,
    snat: Option<bool>,
    masq_all: bool,
    mark_masq_bit: Option<i64>,
    external_set_mark_chain: Option<String>,
    conditions_v4: Option<Vec<String>>,
    conditions_v6: Option<Vec<String>>,
}

/// Validated configuration.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    /// Backend and its options.
    pub(super) backend: Backend,
    /// Connections that are masqueraded.
    pub(super) masquerade: Masquerade,
}

/// Packet filter that forwards, with its options.
#[derive(Clone, Debug)]
pub(super) enum Backend {
    /// nf_tables, natively.
    Nftables {
        /// Bit of the packet mark.
        bit: u8,
        /// Conditions for IPv4 and for IPv6 packets.
        conditions: [Conditions; 2],
    },
    /// `iptables-restore` and `ip6tables-restore`.
    Iptables {
        /// Method of marking packets.
        marking: Marking,
        /// Conditions for IPv4 and for IPv6 packets, as arguments of a rule.
        conditions: [Vec<String>; 2],
    },
}

/// Method by which iptables marks packets for masquerading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Marking {
    /// A chain of this plugin sets this bit, and another one masquerades.
    Own(u8),
    /// This chain of another program marks and masquerades.
    Foreign(String),
}

/// Forwarded connections that get the host's address as their source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Masquerade {
    /// None: `snat: false`.
    Nothing,
    /// Those from the host's loopback and from the container's own subnet: without it their replies take another path.
    Needed,
    /// All: `masqAll`.
    Everything,
}

/// Mapping of a host port to a container port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mapping {
    /// Transport protocol.
    pub(super) protocol: Protocol,
    /// Port on the host.
    pub(super) host_port: NonZeroU16,
    /// Port in the container.
    pub(super) container_port: NonZeroU16,
    /// Address on the host, if the runtime passes one; the unspecified address means all of its family.
    pub(super) host_ip: Option<IpAddr>,
}

// === impl Settings ===

impl Settings {
    /// Reads the plugin's options.
    pub(super) fn read(config: &Config) -> Result<Settings, Error> {
        let Conf {
            backend,
            snat,
            masq_all,
            mark_masq_bit,
            external_set_mark_chain,
            conditions_v4,
            conditions_v6,
        } = config.decode()?;
        let bit = match mark_masq_bit {
            None => None,
            Some(bit @ 0..=31) => u8::try_from(bit).ok(),
            Some(bit) => return Err(Error::key("markMasqBit", bit, "not within 0..=31")),
        };
        if let (Some(bit), Some(chain)) = (bit, &external_set_mark_chain) {
            let why = format!("markMasqBit is {bit}: only one of them can mark");
            return Err(Error::key("externalSetMarkChain", format!("{chain:?}"), why));
        }
        let written = [conditions_v4, conditions_v6].map(Option::unwrap_or_default);
        let own = options_of_one_backend(external_set_mark_chain.as_deref(), &written);
        let syntax = chosen(backend.as_deref(), &own)?;
        let backend = match syntax {
            Syntax::Nftables => Backend::Nftables {
                bit: bit.unwrap_or(MARK_BIT),
                conditions: [
                    conditions::read("conditionsV4", Family::V4, &written[0])?,
                    conditions::read("conditionsV6", Family::V6, &written[1])?,
                ],
            },
            Syntax::Iptables => Backend::Iptables {
                marking: match external_set_mark_chain {
                    Some(chain) => Marking::Foreign(checked_chain("externalSetMarkChain", chain)?),
                    None => Marking::Own(bit.unwrap_or(MARK_BIT)),
                },
                conditions: [
                    conditions::words("conditionsV4", &written[0])?,
                    conditions::words("conditionsV6", &written[1])?,
                ],
            },
        };
        let masquerade = match (snat.unwrap_or(true), masq_all) {
            (false, _) => Masquerade::Nothing,
            (true, false) => Masquerade::Needed,
            (true, true) => Masquerade::Everything,
        };
        Ok(Settings { backend, masquerade })
    }
}

/// Returns the options that only one backend has, with that backend and their value.
fn options_of_one_backend(
    chain: Option<&str>,
    conditions: &[Vec<String>; 2],
) -> Vec<(&'static str, Syntax, String)> {
    let mut own = Vec::new();
    if let Some(chain) = chain {
        own.push(("externalSetMarkChain", Syntax::Iptables, format!("{chain:?}")));
    }
    for (key, words) in ["conditionsV4", "conditionsV6"].into_iter().zip(conditions) {
        if let Some(syntax) = Syntax::of(words) {
            own.push((key, syntax, format!("{words:?}")));
        }
    }
    own
}

/// Returns the requested backend, else the one that the other options need, else nftables.
fn chosen(backend: Option<&str>, own: &[(&'static str, Syntax, String)]) -> Result<Syntax, Error> {
    let wanted = match backend {
        Some("nftables") => Syntax::Nftables,
        Some("iptables") => Syntax::Iptables,
        Some(other) => {
            return Err(Error::key("backend", format!("{other:?}"), "not one of nftables, iptables"));
        }
        None => own.first().map_or(Syntax::Nftables, |(_, syntax, _)| *syntax),
    };
    match own.iter().find(|(_, syntax, _)| *syntax != wanted) {
        None => Ok(wanted),
        Some((key, syntax, value)) => {
            let why = format!("only the backend {syntax} has this option, and the backend is {wanted}");
            Err(Error::key(key, value, why))
        }
    }
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
            NonZeroU16::new(port).ok_or_else(|| Error::key(key(name), port, "not within 1..=65535"))
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

    /// Whether the mapping applies to packets of this address family.
    pub(super) fn is_of(&self, family: Family) -> bool {
        self.host_ip.is_none_or(|ip| family.has(ip))
    }

    /// Returns the host address that the mapping is limited to; none if it applies to all.
    pub(super) fn host_address(&self) -> Option<IpAddr> {
        self.host_ip.filter(|ip| !ip.is_unspecified())
    }
}

/// Returns the container's addresses: of each family the first that no other interface has.
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
    fn portmap_option_of_one_backend_selects_it() {
        let chosen = |keys: Value| match Settings::read(&config(&keys)).map(|settings| settings.backend) {
            Ok(Backend::Nftables { .. }) => "nftables".to_owned(),
            Ok(Backend::Iptables { .. }) => "iptables".to_owned(),
            Err(error) => error.msg,
        };
        assert_eq!(chosen(json!({})), "nftables");
        assert_eq!(chosen(json!({ "conditionsV4": [], "conditionsV6": [""] })), "nftables");
        assert_eq!(chosen(json!({ "externalSetMarkChain": "KUBE-MARK-MASQ" })), "iptables");
        assert_eq!(chosen(json!({ "conditionsV4": ["!", "-s", "192.0.2.0/24"] })), "iptables");
        assert_eq!(chosen(json!({ "conditionsV6": ["ip6", "saddr", "fd00::/8"] })), "nftables");
        assert!(
            chosen(json!({ "backend": "nftables", "conditionsV4": ["-s", "1.2.3.4"] }))
                .contains("conditionsV4: [\"-s\", \"1.2.3.4\"]: only the backend iptables")
        );
        assert!(
            chosen(json!({ "backend": "iptables", "conditionsV6": ["ip6 saddr ::1"] }))
                .contains("conditionsV6")
        );
    }

    #[test]
    fn portmap_invalid_value_is_reported_by_field_and_value() {
        for (keys, expected) in [
            (json!({ "backend": "pf" }), "backend: \"pf\""),
            (json!({ "backend": "" }), "backend: \"\""),
            (json!({ "markMasqBit": 32 }), "markMasqBit: 32"),
            (json!({ "markMasqBit": -1 }), "markMasqBit: -1"),
            (
                json!({ "markMasqBit": 5, "externalSetMarkChain": "X" }),
                "externalSetMarkChain: \"X\": markMasqBit is 5",
            ),
            (json!({ "externalSetMarkChain": "a b" }), "externalSetMarkChain: \"a b\""),
            (json!({ "externalSetMarkChain": "-j" }), "externalSetMarkChain"),
            (json!({ "externalSetMarkChain": "X".repeat(29) }), "externalSetMarkChain"),
            (json!({ "conditionsV4": ["-s\n*filter"] }), "conditionsV4"),
        ] {
            let error = Settings::read(&config(&keys)).unwrap_err();
            assert!(error.code == 7 && error.msg.starts_with(expected), "{}", error.msg);
        }
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
