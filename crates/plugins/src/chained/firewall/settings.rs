//! The validated configuration of `firewall`.
//!
//! Source: plugins `plugins/meta/firewall/firewall.go`.

use cni::Error;
use cni::config::Config;
use cni::result::{Interface, Success};
use ipnet::IpNet;
use serde::Deserialize;

use super::firewalld;
use crate::interface::check_name;
use crate::iptables::{self, Family, checked_chain};

/// Default for the chain of iptables that comes first.
const ADMIN_CHAIN: &str = "CNI-ADMIN";

/// Default for the zone of firewalld.
const ZONE: &str = "trusted";

/// Maximum length of a zone's name, in bytes; firewalld allows 17.
const ZONE_MAX: usize = 64;

/// The configuration as written.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Conf {
    backend: String,
    iptables_admin_chain_name: String,
    firewalld_zone: String,
    ingress_policy: String,
}

/// Validated configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Settings {
    /// Requested backend; none: the one that the host uses.
    pub(super) backend: Option<Backend>,
    /// Chain of iptables that comes first.
    pub(super) admin_chain: String,
    /// Zone of firewalld.
    pub(super) zone: String,
    /// Ingress policy of the network.
    pub(super) policy: Policy,
    /// Whether the configuration names the chain.
    names_chain: bool,
}

/// Packet filter that accepts the traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Backend {
    /// nf_tables, natively.
    Nftables,
    /// `iptables-restore` and `ip6tables-restore`.
    Iptables,
    /// firewalld, by D-Bus.
    Firewalld,
}

/// Ingress policy: sources that can reach the containers of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Policy {
    /// All sources.
    Open,
    /// All except other bridges that have a policy.
    SameBridge,
    /// As `SameBridge`, and no container on the same bridge either.
    Isolated,
}

// === impl Settings ===

impl Settings {
    pub(super) fn read(config: &Config) -> Result<Settings, Error> {
        let Conf { backend, iptables_admin_chain_name, firewalld_zone, ingress_policy } = config.decode()?;
        let backend = match backend.as_str() {
            "" => None,
            "nftables" => Some(Backend::Nftables),
            "iptables" => Some(Backend::Iptables),
            "firewalld" => Some(Backend::Firewalld),
            other => {
                let why = "not one of nftables, iptables, firewalld";
                return Err(Error::key("backend", format!("{other:?}"), why));
            }
        };
        let policy = match ingress_policy.as_str() {
            "" | "open" => Policy::Open,
            "same-bridge" => Policy::SameBridge,
            "isolated" => Policy::Isolated,
            other => {
                let why = "not one of open, same-bridge, isolated";
                return Err(Error::key("ingressPolicy", format!("{other:?}"), why));
            }
        };
        let names_chain = !iptables_admin_chain_name.is_empty();
        if names_chain && backend == Some(Backend::Nftables) {
            let why = "only the backend iptables has this option; with nftables the chain is admin";
            return Err(Error::key("iptablesAdminChainName", format!("{iptables_admin_chain_name:?}"), why));
        }
        let admin_chain = match names_chain {
            true => checked_chain("iptablesAdminChainName", iptables_admin_chain_name)?,
            false => ADMIN_CHAIN.to_owned(),
        };
        let zone = if firewalld_zone.is_empty() { ZONE.to_owned() } else { firewalld_zone };
        if zone.len() > ZONE_MAX || zone.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return Err(Error::key("firewalldZone", format!("{zone:?}"), "not the name of a zone"));
        }
        Ok(Settings { backend, admin_chain, zone, policy, names_chain })
    }

    /// Returns the requested backend, else the one that the host's own rules use.
    pub(super) fn chosen(&self) -> Result<Backend, Error> {
        match self.backend {
            Some(backend) => Ok(backend),
            None if firewalld::is_running() => Ok(Backend::Firewalld),
            None if self.names_chain => Ok(Backend::Iptables),
            None => {
                // An administrator may write rules into the chain before the first container starts.
                let chains = [super::PRIVATE, ADMIN_CHAIN];
                let is_there = |family| iptables::has_any_chain(family, super::TABLE, &chains);
                Ok(if Family::any(is_there)? { Backend::Iptables } else { Backend::Nftables })
            }
        }
    }
}

/// Bridge and ports that an ingress policy applies to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PolicyTarget {
    /// The bridge.
    pub(super) bridge: String,
    /// Container's ports on the bridge.
    pub(super) ports: Vec<String>,
}

impl PolicyTarget {
    /// Returns the first interface of a result, which must be on the host, and the other interfaces there.
    pub(super) fn read(
        policy: Policy,
        result: &Success,
        ifname: &str,
    ) -> Result<Option<PolicyTarget>, Error> {
        let is_on_host = |interface: &&Interface| !result.is_inside(interface, ifname);
        let mut on_host = result.interfaces.iter().filter(is_on_host);
        let first = result.interfaces.first().filter(is_on_host).filter(|first| !first.name.is_empty());
        match (policy, first) {
            (Policy::Open, _) => Ok(None),
            (_, None) => {
                let policy = if policy == Policy::Isolated { "isolated" } else { "same-bridge" };
                let why = "the first interface of prevResult is no bridge on the host; list this plugin after bridge";
                Err(Error::key("ingressPolicy", format!("{policy:?}"), why))
            }
            (_, Some(_)) => {
                let bridge = on_host.next().map(|interface| interface.name.clone()).unwrap_or_default();
                let ports: Vec<String> = on_host.map(|interface| interface.name.clone()).collect();
                for name in ports.iter().chain([&bridge]) {
                    check_name("prevResult.interfaces", name)?;
                }
                Ok(Some(PolicyTarget { bridge, ports }))
            }
        }
    }
}

/// Returns the addresses of a result, except those of the host's interfaces.
pub(super) fn container_addresses(result: &Success, ifname: &str) -> Vec<IpNet> {
    let is_host = |index: Option<i32>| {
        let interface = index
            .and_then(|index| usize::try_from(index).ok())
            .and_then(|index| result.interfaces.get(index));
        interface.is_some_and(|interface| !result.is_inside(interface, ifname))
    };
    let inside = result.ips.iter().filter(|ip| !is_host(ip.interface));
    inside.map(|ip| IpNet::from(ip.address.addr())).collect()
}

/// Fails if the result is another interface's.
pub(super) fn expect_interface(result: &Success, ifname: &str) -> Result<(), Error> {
    let mut inside =
        result.interfaces.iter().filter(|interface| result.is_inside(interface, ifname)).peekable();
    match inside.peek().is_none() || inside.any(|interface| interface.name == ifname) {
        true => Ok(()),
        false => Err(Error::config(format!("prevResult has no interface {ifname:?} with a sandbox"))),
    }
}

#[cfg(test)]
mod tests {
    use cni::version::Version;
    use serde_json::{Value, json};

    use super::*;

    fn read(keys: &Value) -> Result<Settings, Error> {
        let mut value = json!({ "cniVersion": "1.1.0", "name": "net", "type": "firewall" });
        for (key, inner) in keys.as_object().unwrap() {
            value[key] = inner.clone();
        }
        Settings::read(&Config::read(value.to_string().into_bytes(), Version::ALL).unwrap())
    }

    #[test]
    fn firewall_defaults_are_the_reference_plugins() {
        let Settings { backend, admin_chain, zone, policy, names_chain } = read(&json!({})).unwrap();
        assert_eq!((backend, policy, names_chain), (None, Policy::Open, false));
        assert_eq!((admin_chain.as_str(), zone.as_str()), ("CNI-ADMIN", "trusted"));
        let named = read(&json!({ "iptablesAdminChainName": "MINE" })).unwrap();
        assert_eq!((named.admin_chain.as_str(), named.names_chain), ("MINE", true));
    }

    #[test]
    fn firewall_invalid_value_is_reported_by_field_and_value() {
        for (keys, expected) in [
            (json!({ "backend": "pf" }), "backend: \"pf\""),
            (json!({ "ingressPolicy": "closed" }), "ingressPolicy: \"closed\""),
            (json!({ "iptablesAdminChainName": "a b" }), "iptablesAdminChainName: \"a b\""),
            (
                json!({ "iptablesAdminChainName": "A", "backend": "nftables" }),
                "iptablesAdminChainName: \"A\": only",
            ),
            (json!({ "firewalldZone": "a\nb" }), "firewalldZone"),
        ] {
            let error = read(&keys).unwrap_err();
            assert!(error.code == 7 && error.msg.starts_with(expected), "{}", error.msg);
        }
    }

    #[test]
    fn firewall_ingress_policy_needs_a_bridge_on_the_host() {
        let result = |interfaces: Value| -> Success {
            let value = json!({ "cniVersion": "1.1.0", "interfaces": interfaces });
            Success::from_value(&value, Version::V1_1_0).unwrap().1
        };
        let good =
            result(json!([{ "name": "br0" }, { "name": "veth1" }, { "name": "eth0", "sandbox": "/x" }]));
        assert_eq!(PolicyTarget::read(Policy::Open, &good, "eth0").unwrap(), None);
        let target = PolicyTarget { bridge: "br0".into(), ports: vec!["veth1".into()] };
        assert_eq!(PolicyTarget::read(Policy::Isolated, &good, "eth0").unwrap(), Some(target));
        let bad = [
            json!([]),
            json!([{ "name": "eth0", "sandbox": "/x" }]),
            json!([{ "name": "eth0" }]),
            json!([{ "name": "../x" }]),
        ];
        for bad in bad {
            assert_eq!(PolicyTarget::read(Policy::SameBridge, &result(bad), "eth0").unwrap_err().code, 7);
        }
    }
}
