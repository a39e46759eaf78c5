//! The keys that the well-known plugins take: what the linter knows about configurations that are not ours.
//!
//! Two tables, for a plugin's configuration and for its `ipam`. Keys that any plugin takes (`type`, `dns`,
//! `capabilities`, …) are in neither. Only data: adding a plugin is adding a row.
//!
//! Source: containernetworking/plugins 1.9.1, the `NetConf` and `IPAMConfig` of each.

use std::collections::BTreeMap;

use super::Knowledge;

/// A plugin's `type`, and the keys of its own.
pub type Row = (&'static str, &'static [&'static str]);

/// Plugins that make, change or check an interface.
pub const PLUGINS: &[Row] = &[
    (
        "bandwidth",
        &["ingressRate", "ingressBurst", "egressRate", "egressBurst", "shapedSubnets", "unshapedSubnets"],
    ),
    (
        "bridge",
        &[
            "bridge",
            "isGateway",
            "isDefaultGateway",
            "forceAddress",
            "ipMasq",
            "ipMasqBackend",
            "mtu",
            "queues",
            "hairpinMode",
            "promiscMode",
            "vlan",
            "vlanTrunk",
            "preserveDefaultVlan",
            "macspoofchk",
            "enabledad",
            "disableContainerInterface",
            "portIsolation",
        ],
    ),
    ("dummy", &[]),
    ("firewall", &["backend", "iptablesAdminChainName", "firewalldZone", "ingressPolicy"]),
    ("host-device", &["device", "hwaddr", "kernelpath", "pciBusID", "deviceID"]),
    ("ipvlan", &["master", "mode", "mtu", "linkInContainer"]),
    ("loopback", &[]),
    ("macvlan", &["master", "mode", "mtu", "mac", "linkInContainer", "bcqueuelen"]),
    ("neutron", &["ovsdb", "master", "txChecksum", "timeout", "vif"]),
    (
        "portmap",
        &[
            "backend",
            "snat",
            "masqAll",
            "markMasqBit",
            "externalSetMarkChain",
            "conditionsV4",
            "conditionsV6",
        ],
    ),
    ("ptp", &["ipMasq", "ipMasqBackend", "mtu", "queues"]),
    ("sbr", &["table", "gateways", "addSourceHints"]),
    ("tap", &["multiQueue", "mtu", "mac", "owner", "group", "selinuxContext", "bridge"]),
    ("tuning", &["sysctl", "mac", "mtu", "promisc", "allmulti", "txQLen", "dataDir"]),
    ("vlan", &["master", "vlanId", "mtu", "linkInContainer"]),
    ("vrf", &["vrfname", "table"]),
];

/// Those of whereabouts, of host-local, and our own.
const WEFT_IPAM: &[&str] = &[
    "range",
    "range_start",
    "range_end",
    "exclude",
    "ipRanges",
    "gateway",
    "routes",
    "dns",
    "addresses",
    "network_name",
    "enable_overlapping_ranges",
    "node_slice_size",
    "leader_lease_duration",
    "leader_renew_deadline",
    "leader_retry_period",
    "kubernetes",
    "log_file",
    "log_level",
    "configuration_path",
    "reconciler_cron_expression",
    "sleep_for_race",
    "datastore",
    "etcd_host",
    "etcd_username",
    "etcd_password",
    "etcd_key_file",
    "etcd_cert_file",
    "etcd_ca_cert_file",
    "subnet",
    "rangeStart",
    "rangeEnd",
    "ranges",
    "dataDir",
    "resolvConf",
    "pool",
    "store",
    "agentSocket",
    "quarantine",
    "sticky",
];

/// Plugins that give addresses: the keys of `ipam`.
pub const ADDRESS_MANAGERS: &[Row] = &[
    (
        "dhcp",
        &[
            "daemonSocketPath",
            "provide",
            "request",
            "priority",
            "families",
            "provideV6",
            "requestV6",
            "prefixLengthV6",
        ],
    ),
    (
        "host-local",
        &["subnet", "rangeStart", "rangeEnd", "gateway", "ranges", "routes", "dataDir", "resolvConf"],
    ),
    ("static", &["addresses", "routes", "dns"]),
    ("weft-ipam", WEFT_IPAM),
    ("whereabouts", WEFT_IPAM),
];

impl Knowledge {
    /// What is known about the plugins of these tables.
    pub fn of_known_plugins() -> Knowledge {
        Knowledge { plugin_keys: owned(PLUGINS), ipam_keys: owned(ADDRESS_MANAGERS) }
    }
}

fn owned(rows: &[Row]) -> BTreeMap<String, Vec<String>> {
    let own = |(name, keys): &Row| ((*name).to_owned(), keys.iter().map(|key| (*key).to_owned()).collect());
    rows.iter().map(own).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_plugin_has_one_row_and_each_key_is_named_once() {
        for rows in [PLUGINS, ADDRESS_MANAGERS] {
            assert!(rows.is_sorted_by(|(a, _), (b, _)| a < b), "rows are sorted by name");
            for (name, keys) in rows {
                for (at, key) in keys.iter().enumerate() {
                    let again = keys.iter().skip(at + 1).any(|other| cni::fold::same(other, key));
                    assert!(!again, "{name}: {key} stands there twice");
                }
            }
        }
    }
}
