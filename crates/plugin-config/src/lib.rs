//! Plugin configurations: as written, validated, and every check that needs no node.
//!
//! A plugin reads the configuration here and then acts. The linter reads the same configuration and reports the same
//! error as the plugin, so the two cannot differ. The linter calls [`check()`].
//!
//! Rules:
//! - No function in this crate reads a file or asks the kernel.
//! - An error in one field names the path ([`cni::error::InvalidKey`]), so that a linter finds the place.

#![forbid(unsafe_code)]

pub mod addresses;
pub mod bandwidth;
pub mod bridge;
pub mod chain;
pub mod conditions;
pub mod dhcp;
pub mod firewall;
pub mod host_device;
pub mod host_local;
pub mod interface;
pub mod ipvlan;
pub mod macvlan;
pub mod masquerade;
pub mod neutron;
pub mod parent;
pub mod portmap;
pub mod ptp;
pub mod sbr;
pub mod static_address;
pub mod tap;
pub mod tuning;
pub mod vlan;
pub mod vlans;
pub mod vrf;
pub mod weft_ipam;

use cni::invocation::Call;
use cni::name::PluginType;
use cni::{Context, Error};

/// Values that the runtime passes with ADD, so that the configuration need not contain them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Provided {
    /// Address ranges: the capability `ipRanges`.
    pub ranges: bool,
    /// A device: the capability `deviceID`, or the definition's resource.
    pub device: bool,
}

/// Interface plugins, chained plugins and `neutron`, whose configuration is read here.
pub const PLUGINS: &[&str] = &[
    "bandwidth",
    "bridge",
    "dummy",
    "firewall",
    "host-device",
    "ipvlan",
    "loopback",
    "macvlan",
    "neutron",
    "passthru",
    "portmap",
    "ptp",
    "sbr",
    "tap",
    "tuning",
    "vlan",
    "vrf",
];

/// IPAM plugins, whose configuration is read here.
pub const IPAM_PLUGINS: &[&str] = &["dhcp", "host-local", "static", "weft-ipam", "whereabouts"];

/// Reason why `dummy` needs an IPAM plugin.
pub const WHY_DUMMY_IPAM: &str = "a dummy interface needs addresses";

/// Plugins that change an earlier plugin's interface and fail without one.
pub const CHAINED: &[&str] = &["bandwidth", "firewall", "portmap", "sbr", "tuning", "vrf"];

/// Returns an interface or chained plugin's options, by name; `None` for another plugin.
pub fn options(plugin: &str) -> Option<Vec<&'static str>> {
    let options = match plugin {
        "bandwidth" => bandwidth::options(),
        "bridge" => bridge::options(),
        "dummy" | "loopback" | "passthru" => &[],
        "firewall" => firewall::options(),
        // The planner writes the device of a resource there.
        "host-device" => return Some([host_device::options(), &["deviceID"]].concat()),
        "ipvlan" => ipvlan::options(),
        "macvlan" => macvlan::options(),
        "neutron" => neutron::options(),
        "portmap" => portmap::options(),
        "ptp" => ptp::options(),
        "sbr" => sbr::options(),
        "tap" => tap::options(),
        "tuning" => return Some(tuning::options()),
        "vlan" => vlan::options(),
        "vrf" => vrf::options(),
        _ => return None,
    };
    Some(options.to_vec())
}

/// Returns the options that an IPAM plugin has in `ipam`, by name; `None` for another plugin.
pub fn ipam_options(plugin: &str) -> Option<Vec<&'static str>> {
    Some(match plugin {
        "dhcp" => dhcp::options().to_vec(),
        "host-local" => host_local::options(),
        "static" => static_address::options().to_vec(),
        "weft-ipam" | "whereabouts" => weft_ipam::options(),
        _ => return None,
    })
}

/// Fails as the plugin's ADD fails for the configuration text alone; `None` for another plugin.
///
/// [`check_ipam`] checks the `ipam` section.
pub fn check(plugin: &str, call: &Call, provided: Provided) -> Option<Result<(), Error>> {
    let config = &call.config;
    Some(match plugin {
        "bandwidth" => bandwidth::Limits::read(config).map(drop),
        "bridge" => bridge::Network::read(call).map(drop).and_then(|()| ipam_name(call)),
        "dummy" => interface::expect_ipam(call, WHY_DUMMY_IPAM),
        "firewall" => firewall::Settings::read(config).map(drop),
        "host-device" if provided.device => {
            host_device::Device::written(call).map(drop).and_then(|()| ipam_name(call))
        }
        "host-device" => host_device::Device::read(call).map(drop).and_then(|()| ipam_name(call)),
        "ipvlan" => ipvlan::Network::read(call).map(drop).and_then(|()| ipam_name(call)),
        "loopback" | "passthru" => Ok(()),
        "macvlan" => macvlan::Network::read(call).map(drop).and_then(|()| ipam_name(call)),
        "neutron" => neutron::Network::read(call).map(drop),
        "portmap" => portmap::Settings::read(config).map(drop),
        "ptp" => {
            ptp::Network::read(call).map(drop).and_then(|()| interface::expect_ipam(call, ptp::WHY_IPAM))
        }
        "sbr" => sbr::Settings::read(config).map(drop),
        "tap" => tap::Network::read(call).map(drop).and_then(|()| ipam_name(call)),
        "tuning" => tuning::Settings::read(call, tuning::PLACEHOLDER)
            .and_then(|_| tuning::data_directory(call))
            .map(drop),
        "vlan" => vlan::Network::read(call).map(drop).and_then(|()| ipam_name(call)),
        "vrf" => vrf::Settings::read(call).map(drop),
        _ => return None,
    })
}

/// Fails as the IPAM plugin's ADD fails for the configuration text alone; `None` for another plugin.
pub fn check_ipam(plugin: &str, call: &Call, provided: Provided) -> Option<Result<(), Error>> {
    let Provided { ranges, device: _ } = provided;
    Some(match plugin {
        "dhcp" => dhcp::PluginConfig::read(&call.config, call.args()).map(drop),
        "host-local" if ranges => host_local::Network::written(call).map(drop),
        "host-local" => host_local::Network::read(call).map(drop),
        "static" => static_address::Network::read(call).map(drop),
        "weft-ipam" | "whereabouts" if ranges => weft_ipam::Settings::written(call, None).map(drop),
        "weft-ipam" | "whereabouts" => weft_ipam::Settings::read(call, None).map(drop),
        _ => return None,
    })
}

/// Fails unless `ipam.type` is absent or a valid plugin name.
fn ipam_name(call: &Call) -> Result<(), Error> {
    let plugin = call.config.ipam_type()?;
    match plugin.is_empty() {
        true => Ok(()),
        false => PluginType::new(&plugin).map(drop).context("ipam.type"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_known_plugin_has_options_and_a_check() {
        let config =
            cni::config::Config::read(br#"{"name":"n","ipam":{}}"#.to_vec(), cni::Version::ALL).unwrap();
        let call = Call { config, environment: cni::environment::Environment::default() };
        for plugin in PLUGINS {
            assert!(
                options(plugin).is_some() && check(plugin, &call, Provided::default()).is_some(),
                "{plugin}"
            );
        }
        for plugin in IPAM_PLUGINS {
            let is_checked = check_ipam(plugin, &call, Provided::default()).is_some();
            assert!(ipam_options(plugin).is_some() && is_checked, "{plugin}");
        }
        assert!(CHAINED.iter().all(|plugin| PLUGINS.contains(plugin)));
        assert_eq!(options("vlan"), Some(vec!["master", "vlanId", "mtu", "linkInContainer"]));
        assert!(options("sriov").is_none() && check("sriov", &call, Provided::default()).is_none());
    }
}
