//! Table with the built-in plugins. The meta-plugin is not in it: no network may name it.

use std::path::Path;

use cni::plugin::Plugin;
use dhcp::Dhcp;
use manifest::lint::plugins::canonical;
use plugins::chained::bandwidth::Bandwidth;
use plugins::chained::firewall::Firewall;
use plugins::chained::passthru::Passthru;
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

use crate::weft_ipam::WeftIpam;

/// Prefix for a hidden link that names a plugin.
pub const LINK_PREFIX: &str = ".weft-cni.";

/// Program file name; the plugins' names are links to it.
pub const PROGRAM: &str = "weft-cni";

/// Built-in plugins, which a network may name.
///
/// All that the meta-plugin must know about a plugin comes from the [`Plugin`] methods; there is no other table.
pub const TABLE: &[&dyn Plugin] = &[
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
    &Passthru,
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

/// Returns the built-in plugin with this name or alias.
pub fn find(name: &str) -> Option<&'static dyn Plugin> {
    let name = canonical(name);
    TABLE.iter().find(|plugin| plugin.name() == name).copied()
}

/// Returns the built-in plugin that a link `NAME -> .weft-cni.PLUGIN` names.
pub fn find_by_link(program: &Path) -> Option<&'static dyn Plugin> {
    let target = std::fs::read_link(program).ok()?;
    find(target.file_name()?.to_str()?.strip_prefix(LINK_PREFIX)?)
}

#[cfg(test)]
mod tests {
    use manifest::lint::plugins;

    use super::*;

    #[test]
    fn alias_of_a_plugin_finds_a_built_in_plugin() {
        for (alias, plugin) in plugins::ALIASES {
            assert_eq!(find(alias).map(|found| found.name()), Some(*plugin));
        }
    }

    #[test]
    fn linter_knows_the_options_of_every_builtin_plugin() {
        for name in TABLE.iter().map(|plugin| plugin.name()) {
            let mut known = plugin_config::PLUGINS.iter().chain(plugin_config::IPAM_PLUGINS);
            assert!(known.any(|plugin| *plugin == name), "{name} is not in plugin_config");
        }
    }
}
