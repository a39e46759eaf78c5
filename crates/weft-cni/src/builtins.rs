//! Which plugins this binary is.

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

/// Every name this binary answers to, and the plugin behind it.
pub const TABLE: &Table<'static> = &[
    ("weft", &Weft(Flavour::Weft)),
    ("multus", &Weft(Flavour::Multus)),
    ("bandwidth", &Bandwidth),
    ("bridge", &Bridge),
    ("dhcp", &Dhcp),
    ("dummy", &Dummy),
    ("firewall", &Firewall),
    ("host-device", &HostDevice),
    ("host-local", &HostLocal),
    ("ipvlan", &Ipvlan),
    ("loopback", &Loopback),
    ("macvlan", &Macvlan),
    ("neutron", &Neutron),
    ("portmap", &Portmap),
    ("ptp", &Ptp),
    ("sbr", &Sbr),
    ("static", &Static),
    ("tap", &Tap),
    ("tuning", &Tuning),
    ("vlan", &Vlan),
    ("vrf", &Vrf),
    ("weft-ipam", &WeftIpam("weft-ipam")),
    ("whereabouts", &WeftIpam("whereabouts")),
];

/// The plugins whose attachment is one link in the container that they made and that DEL removes.
const MAKE_A_LINK: &[&str] = &["bridge", "dummy", "ipvlan", "macvlan", "ptp", "tap", "vlan"];

/// Does this plugin make the container's link, and would its DEL remove it?
pub fn makes_link(name: &str) -> bool {
    MAKE_A_LINK.contains(&name)
}

/// The plugins among them whose link has another end on the host, found by the attachment's mark.
const MAKE_A_VETH: &[&str] = &["bridge", "ptp"];

/// Does the link that this plugin makes have an end on the host?
pub fn makes_veth(name: &str) -> bool {
    MAKE_A_VETH.contains(&name)
}

/// The built-in plugin of this name.
pub fn find(name: &str) -> Option<&'static dyn Plugin> {
    TABLE.iter().find(|(known, _)| *known == name).map(|(_, plugin)| *plugin)
}

#[cfg(test)]
mod tests {
    use manifest::lint::keys;

    use super::*;

    #[test]
    fn the_linter_knows_the_keys_of_every_plugin_here() {
        for (name, _) in TABLE.iter().filter(|(name, _)| !matches!(*name, "weft" | "multus")) {
            let known = keys::PLUGINS.iter().chain(keys::ADDRESS_MANAGERS).any(|(known, _)| known == name);
            assert!(known, "{name} has no row in manifest::lint::keys");
        }
    }
}
