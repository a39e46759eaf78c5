//! Plugin table of this program.

use cni::plugin::Plugin;
use cni::plugin::process::Table;
use dhcp::Dhcp;
use npwg::configuration::Flavour;
use plugins::chained::bandwidth::Bandwidth;
use plugins::chained::firewall::Firewall;
use plugins::chained::portmap::Portmap;
use plugins::chained::sbr::Sbr;
use plugins::chained::tuning::Tuning;
use plugins::chained::vrf::Vrf;
use plugins::interface::bridge::Bridge;
use plugins::interface::dummy::Dummy;
use plugins::interface::host_device::HostDevice;
use plugins::interface::ipvlan::Ipvlan;
use plugins::interface::loopback::Loopback;
use plugins::interface::macvlan::Macvlan;
use plugins::interface::neutron::Neutron;
use plugins::interface::ptp::Ptp;
use plugins::interface::tap::Tap;
use plugins::interface::vlan::Vlan;
use plugins::ipam::host_local::HostLocal;
use plugins::ipam::static_address::Static;

use crate::meta_plugin::Weft;
use crate::weft_ipam::WeftIpam;

/// The plugin table: every name this program answers to is the name of one of these.
///
/// A plugin says by the methods of [`Plugin`] what the meta-plugin must know of it; there is no other table.
pub const TABLE: &Table<'static> = &[
    &Weft(Flavour::Weft),
    &Weft(Flavour::Multus),
    &Bandwidth,
    &Bridge,
    &Dhcp,
    &Dummy,
    &Firewall,
    &HostDevice,
    &HostLocal,
    &Ipvlan,
    &Loopback,
    &Macvlan,
    &Neutron,
    &Portmap,
    &Ptp,
    &Sbr,
    &Static,
    &Tap,
    &Tuning,
    &Vlan,
    &Vrf,
    &WeftIpam("weft-ipam"),
    &WeftIpam("whereabouts"),
];

/// Returns the names of all plugins.
pub fn names() -> impl Iterator<Item = &'static str> {
    TABLE.iter().map(|plugin| plugin.name())
}

/// Returns the built-in plugin of this name.
pub fn find(name: &str) -> Option<&'static dyn Plugin> {
    TABLE.iter().find(|plugin| plugin.name() == name).copied()
}

#[cfg(test)]
mod tests {
    use manifest::lint::plugins;

    use super::*;

    #[test]
    fn linter_knows_the_options_of_every_builtin_plugin() {
        for name in names().filter(|name| !matches!(*name, "weft" | "multus")) {
            let mut known = plugins::PLUGINS.iter().chain(plugins::ADDRESS_MANAGERS);
            assert!(known.any(|plugin| plugin.name == name), "{name} has no row in manifest::lint::plugins");
        }
    }

    #[test]
    fn plugin_names_are_unique() {
        let all: std::collections::BTreeSet<&str> = names().collect();
        assert_eq!(all.len(), TABLE.len());
    }
}
