//! Which backend `firewall` uses on this host, and what the previous plugin's result contains.
//!
//! Source: plugins `plugins/meta/firewall/firewall.go`.

use cni::Error;
use cni::result::{Interface, Success};
use ipnet::IpNet;
use plugin_config::firewall::{ADMIN_CHAIN, Backend, Policy, Settings};
use plugin_config::interface::check_name;

use super::firewalld;
use crate::iptables::{self, Family};

/// Returns the requested backend, else the one that the host's own rules use.
pub(super) fn chosen(settings: &Settings) -> Result<Backend, Error> {
    match settings.backend {
        Some(backend) => Ok(backend),
        None if firewalld::is_running() => Ok(Backend::Firewalld),
        None if settings.names_chain => Ok(Backend::Iptables),
        None => {
            // An administrator may write rules into the chain before the first container starts.
            let chains = [super::PRIVATE, ADMIN_CHAIN];
            let is_there = |family| iptables::has_any_chain(family, super::TABLE, &chains);
            Ok(if Family::any(is_there)? { Backend::Iptables } else { Backend::Nftables })
        }
    }
}

/// Bridge and ports that an ingress policy applies to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PolicyTarget {
    /// Bridge that the host end is a port on.
    pub(super) bridge: String,
    /// Container's ports on the bridge.
    pub(super) ports: Vec<String>,
}

impl PolicyTarget {
    /// Returns the first interface in a result, which must be on the host, and the other interfaces there.
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

/// Returns the addresses in a result, except those on the host's interfaces. If the result names only these,
/// they are the container's, as for Go's firewall: some plugins give the index of the host end.
pub(super) fn container_addresses(result: &Success, ifname: &str) -> Vec<IpNet> {
    let is_host = |index: Option<i32>| {
        let interface = index
            .and_then(|index| usize::try_from(index).ok())
            .and_then(|index| result.interfaces.get(index));
        interface.is_some_and(|interface| !result.is_inside(interface, ifname))
    };
    let has_inside = result.ips.iter().any(|ip| !is_host(ip.interface));
    let inside = result.ips.iter().filter(|ip| !has_inside || !is_host(ip.interface));
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
