//! Configuration for `firewall`.
//!
//! Source: plugins `plugins/meta/firewall/firewall.go`; docs/plugins/firewall.md.

use cni::Error;
use cni::config::Config;
use serde::Deserialize;

use crate::chain::checked_chain;

/// iptables chain that comes first if none is configured.
pub const ADMIN_CHAIN: &str = "CNI-ADMIN";

/// firewalld zone that is used if none is configured.
const ZONE: &str = "trusted";

/// Maximum length for a zone name, in bytes; firewalld allows 17.
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
pub struct Settings {
    /// Requested backend; none: the one that the host uses.
    pub backend: Option<Backend>,
    /// iptables chain that comes first.
    pub admin_chain: String,
    /// firewalld zone.
    pub zone: String,
    /// Ingress policy for the network.
    pub policy: Policy,
    /// Whether the configuration names the chain.
    pub names_chain: bool,
}

/// Packet filter that accepts the traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// nf_tables, natively.
    Nftables,
    /// `iptables-restore` and `ip6tables-restore`.
    Iptables,
    /// firewalld, by D-Bus.
    Firewalld,
}

/// Ingress policy: who can reach the network's containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Everybody.
    Open,
    /// All except other bridges that have a policy.
    SameBridge,
    /// As `SameBridge`, and no container on the same bridge either.
    Isolated,
}

impl Settings {
    /// Reads and validates the configuration.
    pub fn read(config: &Config) -> Result<Settings, Error> {
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
}

/// Returns the options, by name.
pub(crate) fn options() -> &'static [&'static str] {
    cni::fold::fields::<Conf>()
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
}
