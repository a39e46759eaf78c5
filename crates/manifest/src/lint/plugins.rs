//! Tables of the well-known plugins' options, one row a plugin.
//!
//! There are two tables, for a plugin's configuration and for its `ipam`. Options that any plugin takes (`type`, `dns`,
//! `capabilities`, …) are in neither. [`Any`] is the form of an option whose value is not checked.
//!
//! Source: the readers of the built-in plugins, crates `plugins`, `dhcp` and `weft-cni`; containernetworking/plugins
//! 1.9.1, the `NetConf` and `IPAMConfig` of each.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::Knowledge;
use super::chain::find;
use super::values::Form::{
    self, Address, AddressOrPrefix, Any, Each, Fields, Hardware, Interface, Mtu, Number, Path, Prefix, Range,
    Text, Texts, Truth, Word,
};

/// Options, each with the form of its value.
pub(super) type Options = &'static [(&'static str, Form)];

/// Row of a plugin.
#[derive(Clone, Copy, Debug)]
pub struct Plugin {
    /// `type` of the plugin.
    pub name: &'static str,
    /// Options.
    pub(super) options: Options,
    /// Required options, each with the reason.
    required: &'static [(&'static str, &'static str)],
}

const NUMBER_MAX: i64 = u32::MAX as i64;
const VLAN: Form = Number(0, 4094);
const QUEUES: Form = Number(0, 4096);
const RATE: Form = Number(0, i64::MAX);
const UNSIGNED: Form = Number(0, NUMBER_MAX);
const BACKENDS: Form = Word(&["nftables", "iptables"]);

const DNS: Form = Fields(&[
    ("nameservers", Each(&Text)),
    ("domain", Text),
    ("search", Each(&Text)),
    ("options", Each(&Text)),
]);
const ROUTES: Form = Each(&Fields(&[
    ("dst", Prefix),
    ("gw", Address),
    ("mtu", UNSIGNED),
    ("advmss", UNSIGNED),
    ("priority", UNSIGNED),
    ("table", UNSIGNED),
    ("scope", Number(0, 255)),
]));
const ADDRESSES: Form = Each(&Fields(&[("address", Prefix), ("gateway", Address)]));

/// Other names of plugins, as OpenShift Virtualization installs them: name and plugin.
pub const ALIASES: &[(&str, &str)] = &[("cnv-bridge", "bridge"), ("cnv-tuning", "tuning")];

/// Returns the plugin of an alias, or else the name itself.
pub fn canonical(name: &str) -> &str {
    ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, plugin)| plugin)
}

/// Plugins that create, change or check an interface.
pub const PLUGINS: &[Plugin] = &[
    Plugin {
        name: "bandwidth",
        options: &[
            ("ingressRate", RATE),
            ("ingressBurst", RATE),
            ("egressRate", RATE),
            ("egressBurst", RATE),
            ("shapedSubnets", Any),
            ("unshapedSubnets", Any),
        ],
        required: &[],
    },
    Plugin {
        name: "bridge",
        options: &[
            ("bridge", Interface),
            ("isGateway", Truth),
            ("isDefaultGateway", Truth),
            ("forceAddress", Truth),
            ("ipMasq", Truth),
            ("ipMasqBackend", BACKENDS),
            ("mtu", Mtu),
            ("queues", QUEUES),
            ("hairpinMode", Truth),
            ("promiscMode", Truth),
            ("vlan", VLAN),
            ("vlanTrunk", Each(&Fields(&[("id", VLAN), ("minID", VLAN), ("maxID", VLAN)]))),
            ("preserveDefaultVlan", Truth),
            ("macspoofchk", Truth),
            ("enabledad", Truth),
            ("disableContainerInterface", Truth),
            ("portIsolation", Truth),
        ],
        required: &[],
    },
    Plugin { name: "dummy", options: &[], required: &[] },
    Plugin {
        name: "firewall",
        options: &[
            ("backend", Word(&["nftables", "iptables", "firewalld"])),
            ("iptablesAdminChainName", Text),
            ("firewalldZone", Text),
            ("ingressPolicy", Word(&["open", "same-bridge", "isolated"])),
        ],
        required: &[],
    },
    Plugin {
        name: "host-device",
        options: &[
            ("device", Interface),
            ("hwaddr", Hardware),
            ("kernelpath", Text),
            ("pciBusID", Text),
            ("deviceID", Any),
        ],
        required: &[],
    },
    Plugin {
        name: "ipvlan",
        options: &[
            ("master", Interface),
            ("mode", Word(&["l2", "l3", "l3s"])),
            ("mtu", Mtu),
            ("linkInContainer", Truth),
        ],
        required: &[],
    },
    Plugin { name: "loopback", options: &[], required: &[] },
    Plugin {
        name: "macvlan",
        options: &[
            ("master", Interface),
            ("mode", Word(&["bridge", "private", "vepa", "passthru"])),
            ("mtu", Mtu),
            ("mac", Hardware),
            ("linkInContainer", Truth),
            ("bcqueuelen", UNSIGNED),
        ],
        required: &[],
    },
    Plugin {
        name: "neutron",
        options: &[("ovsdb", Any), ("master", Any), ("txChecksum", Any), ("timeout", Any), ("vif", Any)],
        required: &[],
    },
    Plugin {
        name: "portmap",
        options: &[
            ("backend", BACKENDS),
            ("snat", Truth),
            ("masqAll", Truth),
            ("markMasqBit", Number(0, 31)),
            ("externalSetMarkChain", Text),
            ("conditionsV4", Each(&Text)),
            ("conditionsV6", Each(&Text)),
        ],
        required: &[],
    },
    Plugin {
        name: "ptp",
        options: &[("ipMasq", Truth), ("ipMasqBackend", BACKENDS), ("mtu", Mtu), ("queues", QUEUES)],
        required: &[("ipam", "a point-to-point link without an address has no use")],
    },
    Plugin {
        name: "sbr",
        options: &[("table", UNSIGNED), ("gateways", Any), ("addSourceHints", Truth)],
        required: &[],
    },
    Plugin {
        name: "tap",
        options: &[
            ("multiQueue", Truth),
            ("mtu", Mtu),
            ("mac", Hardware),
            ("owner", UNSIGNED),
            ("group", UNSIGNED),
            ("selinuxContext", Text),
            ("bridge", Interface),
        ],
        required: &[],
    },
    Plugin {
        name: "tuning",
        options: &[
            ("sysctl", Texts),
            ("mac", Hardware),
            ("mtu", UNSIGNED),
            ("promisc", Truth),
            ("allmulti", Truth),
            ("txQLen", UNSIGNED),
            ("dataDir", Path),
        ],
        required: &[],
    },
    Plugin {
        name: "vlan",
        options: &[("master", Interface), ("vlanId", VLAN), ("mtu", Mtu), ("linkInContainer", Truth)],
        required: &[("master", "name the interface that carries the VLAN")],
    },
    Plugin {
        name: "vrf",
        options: &[("vrfname", Interface), ("table", UNSIGNED)],
        required: &[("vrfname", "name the VRF that the interface joins")],
    },
];

const HOST_LOCAL_RANGE: Form =
    Fields(&[("subnet", Prefix), ("rangeStart", Address), ("rangeEnd", Address), ("gateway", Address)]);
const WEFT_IPAM_RANGE: Form = Fields(&[
    ("range", Range),
    ("subnet", Range),
    ("range_start", Address),
    ("range_end", Address),
    ("rangeStart", Address),
    ("rangeEnd", Address),
    ("gateway", Address),
    ("exclude", Each(&AddressOrPrefix)),
    ("pick_addresses", Each(&Address)),
]);
/// Options of whereabouts, of host-local, and of weft-ipam.
const WEFT_IPAM: Options = &[
    ("range", Range),
    ("range_start", Address),
    ("range_end", Address),
    ("exclude", Each(&AddressOrPrefix)),
    ("pick_addresses", Each(&Address)),
    ("ipRanges", Each(&WEFT_IPAM_RANGE)),
    ("gateway", Address),
    ("routes", ROUTES),
    ("dns", DNS),
    ("addresses", ADDRESSES),
    ("network_name", Text),
    ("enable_overlapping_ranges", Any),
    ("node_slice_size", Any),
    ("leader_lease_duration", Any),
    ("leader_renew_deadline", Any),
    ("leader_retry_period", Any),
    ("kubernetes", Any),
    ("log_file", Any),
    ("log_level", Any),
    ("configuration_path", Any),
    ("reconciler_cron_expression", Any),
    ("sleep_for_race", Any),
    ("datastore", Any),
    ("etcd_host", Any),
    ("etcd_username", Any),
    ("etcd_password", Any),
    ("etcd_key_file", Any),
    ("etcd_cert_file", Any),
    ("etcd_ca_cert_file", Any),
    ("subnet", Range),
    ("rangeStart", Address),
    ("rangeEnd", Address),
    ("ranges", Each(&Each(&WEFT_IPAM_RANGE))),
    ("dataDir", Path),
    ("resolvConf", Text),
    ("pool", Text),
    ("store", Word(&["cluster", "file"])),
    ("agentSocket", Path),
    ("quarantine", RATE),
    ("sticky", Truth),
];

/// IPAM plugins: the options of `ipam`.
pub const ADDRESS_MANAGERS: &[Plugin] = &[
    Plugin {
        name: "dhcp",
        options: &[
            ("daemonSocketPath", Path),
            ("provide", Any),
            ("request", Any),
            ("priority", UNSIGNED),
            ("families", Each(&Word(&["ipv4", "ipv6"]))),
            ("provideV6", Any),
            ("requestV6", Any),
            ("prefixLengthV6", Number(1, 128)),
        ],
        required: &[],
    },
    Plugin {
        name: "host-local",
        options: &[
            ("subnet", Prefix),
            ("rangeStart", Address),
            ("rangeEnd", Address),
            ("gateway", Address),
            ("ranges", Each(&Each(&HOST_LOCAL_RANGE))),
            ("routes", ROUTES),
            ("dataDir", Path),
            ("resolvConf", Text),
        ],
        required: &[],
    },
    Plugin {
        name: "static",
        options: &[("addresses", ADDRESSES), ("routes", ROUTES), ("dns", DNS)],
        required: &[],
    },
    Plugin { name: "weft-ipam", options: WEFT_IPAM, required: &[] },
    Plugin { name: "whereabouts", options: WEFT_IPAM, required: &[] },
];

impl Plugin {
    /// Returns the first required option that `map` lacks, and the reason.
    pub(super) fn missing(&self, map: &Map<String, Value>) -> Option<(&'static str, &'static str)> {
        let has = |key: &str| find(map, key).is_some_and(|value| value.as_str() != Some(""));
        self.required.iter().find(|(key, _)| !has(key)).copied()
    }
}

/// Returns the row of a plugin.
pub(super) fn plugin(name: &str) -> Option<&'static Plugin> {
    let name = canonical(name);
    PLUGINS.iter().find(|plugin| plugin.name == name)
}

/// Returns the row of an IPAM plugin.
pub(super) fn address_manager(name: &str) -> Option<&'static Plugin> {
    ADDRESS_MANAGERS.iter().find(|plugin| plugin.name == name)
}

/// Returns the range option that an `ipam` lacks, and why it is needed. The runtime may provide ranges if the plugin
/// declares that capability.
pub(super) fn missing_range(
    name: &str,
    ipam: &Map<String, Value>,
    plugin: &Map<String, Value>,
) -> Option<(&'static str, &'static str)> {
    let keys: &[&str] = match name {
        "host-local" => &["subnet", "ranges"],
        // whereabouts reads further options from a file of the node.
        "weft-ipam" | "whereabouts" => &["range", "subnet", "ipRanges", "ranges", "configuration_path"],
        _ => return None,
    };
    let is_given = |key: &&str| match find(ipam, key) {
        Some(Value::Array(list)) => !list.is_empty(),
        Some(value) => value.as_str() != Some(""),
        None => false,
    };
    let by_runtime = find(plugin, "capabilities")
        .and_then(Value::as_object)
        .is_some_and(|declared| declared.get("ipRanges") == Some(&Value::Bool(true)));
    let first = if name == "host-local" { "ranges" } else { "range" };
    (!by_runtime && !keys.iter().any(is_given))
        .then_some((first, "there is no range to allocate addresses from"))
}

impl Knowledge {
    /// Returns the options of the plugins in the two tables above.
    pub fn of_known_plugins() -> Knowledge {
        Knowledge { plugin_keys: owned(PLUGINS), ipam_keys: owned(ADDRESS_MANAGERS) }
    }
}

fn owned(rows: &[Plugin]) -> BTreeMap<String, Vec<String>> {
    let own = |Plugin { name, options, .. }: &Plugin| {
        ((*name).to_owned(), options.iter().map(|(key, _)| (*key).to_owned()).collect())
    };
    rows.iter().map(own).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plugin_table_is_sorted_and_names_each_option_once() {
        for rows in [PLUGINS, ADDRESS_MANAGERS] {
            assert!(rows.is_sorted_by(|a, b| a.name < b.name), "rows are sorted by name");
            for Plugin { name, options, required } in rows {
                for (at, (key, _)) in options.iter().enumerate() {
                    let again = options.iter().skip(at + 1).any(|(other, _)| cni::fold::same(other, key));
                    assert!(!again, "{name}: {key} is there twice");
                }
                let known = |key: &str| key == "ipam" || options.iter().any(|(option, _)| *option == key);
                assert!(required.iter().all(|(key, _)| known(key)), "{name}: {required:?}");
            }
        }
    }
}
