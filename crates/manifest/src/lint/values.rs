//! What the values of well-known plugins have to be: form, range, one of a few words; and which keys must be there.
//!
//! Rules: refused here is only what the plugin itself refuses of its configuration, whatever the node looks like and
//! whatever a runtime adds; what takes a node to know (is the interface there, is the table free) is not looked at, nor is
//! what plugins check of several values together, but for the rows of [`missing`]. An empty text is «not configured», as for
//! plugins. Only data: a plugin that comes is rows that come.
//!
//! Source: the readers of our plugins, crates `plugins`, `dhcp` and `weft-cni`; containernetworking/plugins 1.9.1.

use cni::address::{parse_cidr, parse_ip, parse_mac};
use cni::name::ifname_fault;
use serde_json::{Map, Value};

use super::chain::find;

/// What a value has to be.
#[derive(Clone, Copy, Debug)]
pub(super) enum Form {
    /// `true` or `false`.
    Truth,
    /// A whole number within these.
    Number(i64, i64),
    /// A number of bytes, or 0: «not configured».
    Mtu,
    /// One of these words.
    Word(&'static [&'static str]),
    /// Any text.
    Text,
    /// An absolute path.
    Path,
    /// The name of an interface.
    Interface,
    /// An IP address.
    Address,
    /// An address with a prefix length.
    Prefix,
    /// The same, or an address alone.
    AddressOrPrefix,
    /// The same, or `FIRST-LAST/LENGTH`.
    Range,
    /// A hardware address.
    Hardware,
    /// An object of texts.
    Texts,
    /// A list of these.
    Each(&'static Form),
    /// An object with these keys.
    Fields(&'static [(&'static str, Form)]),
}

use Form::{
    Address, AddressOrPrefix, Each, Fields, Hardware, Interface, Mtu, Number, Path, Prefix, Range, Text,
    Texts, Truth, Word,
};

/// Keys, and what their values have to be.
type Rows = &'static [(&'static str, Form)];

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

/// Of a plugin's configuration.
const PLUGINS: &[(&str, Rows)] = &[
    (
        "bandwidth",
        &[("ingressRate", RATE), ("ingressBurst", RATE), ("egressRate", RATE), ("egressBurst", RATE)],
    ),
    (
        "bridge",
        &[
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
    ),
    (
        "firewall",
        &[
            ("backend", Word(&["nftables", "iptables", "firewalld"])),
            ("ingressPolicy", Word(&["open", "same-bridge", "isolated"])),
            ("iptablesAdminChainName", Text),
            ("firewalldZone", Text),
        ],
    ),
    ("host-device", &[("device", Interface), ("hwaddr", Hardware), ("kernelpath", Text), ("pciBusID", Text)]),
    (
        "ipvlan",
        &[
            ("master", Interface),
            ("mode", Word(&["l2", "l3", "l3s"])),
            ("mtu", Mtu),
            ("linkInContainer", Truth),
        ],
    ),
    (
        "macvlan",
        &[
            ("master", Interface),
            ("mode", Word(&["bridge", "private", "vepa", "passthru"])),
            ("mtu", Mtu),
            ("mac", Hardware),
            ("linkInContainer", Truth),
            ("bcqueuelen", UNSIGNED),
        ],
    ),
    (
        "portmap",
        &[
            ("backend", BACKENDS),
            ("snat", Truth),
            ("masqAll", Truth),
            ("markMasqBit", Number(0, 31)),
            ("externalSetMarkChain", Text),
            ("conditionsV4", Each(&Text)),
            ("conditionsV6", Each(&Text)),
        ],
    ),
    ("ptp", &[("ipMasq", Truth), ("ipMasqBackend", BACKENDS), ("mtu", Mtu), ("queues", QUEUES)]),
    ("sbr", &[("table", UNSIGNED), ("addSourceHints", Truth)]),
    (
        "tap",
        &[
            ("multiQueue", Truth),
            ("mtu", Mtu),
            ("mac", Hardware),
            ("owner", UNSIGNED),
            ("group", UNSIGNED),
            ("selinuxContext", Text),
            ("bridge", Interface),
        ],
    ),
    (
        "tuning",
        &[
            ("sysctl", Texts),
            ("mac", Hardware),
            ("mtu", UNSIGNED),
            ("promisc", Truth),
            ("allmulti", Truth),
            ("txQLen", UNSIGNED),
            ("dataDir", Path),
        ],
    ),
    ("vlan", &[("master", Interface), ("vlanId", VLAN), ("mtu", Mtu), ("linkInContainer", Truth)]),
    ("vrf", &[("vrfname", Interface), ("table", UNSIGNED)]),
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
]);
const WEFT_IPAM: Rows = &[
    ("range", Range),
    ("subnet", Range),
    ("range_start", Address),
    ("range_end", Address),
    ("rangeStart", Address),
    ("rangeEnd", Address),
    ("gateway", Address),
    ("exclude", Each(&AddressOrPrefix)),
    ("ipRanges", Each(&WEFT_IPAM_RANGE)),
    ("ranges", Each(&Each(&WEFT_IPAM_RANGE))),
    ("routes", ROUTES),
    ("dns", DNS),
    ("addresses", ADDRESSES),
    ("network_name", Text),
    ("pool", Text),
    ("resolvConf", Text),
    ("dataDir", Path),
    ("agentSocket", Path),
    ("store", Word(&["cluster", "file"])),
    ("quarantine", RATE),
    ("sticky", Truth),
];

/// Of `ipam`.
const ADDRESS_MANAGERS: &[(&str, Rows)] = &[
    (
        "dhcp",
        &[
            ("daemonSocketPath", Path),
            ("priority", UNSIGNED),
            ("families", Each(&Word(&["ipv4", "ipv6"]))),
            ("prefixLengthV6", Number(1, 128)),
        ],
    ),
    (
        "host-local",
        &[
            ("subnet", Prefix),
            ("rangeStart", Address),
            ("rangeEnd", Address),
            ("gateway", Address),
            ("ranges", Each(&Each(&HOST_LOCAL_RANGE))),
            ("routes", ROUTES),
            ("dataDir", Path),
            ("resolvConf", Text),
        ],
    ),
    ("static", &[("addresses", ADDRESSES), ("routes", ROUTES), ("dns", DNS)]),
    ("weft-ipam", WEFT_IPAM),
    ("whereabouts", WEFT_IPAM),
];

/// What the values of a plugin have to be.
pub(super) fn of_plugin(name: &str) -> Rows {
    rows(PLUGINS, name)
}

/// The same of `ipam`.
pub(super) fn of_address_manager(name: &str) -> Rows {
    rows(ADDRESS_MANAGERS, name)
}

fn rows(table: &[(&str, Rows)], name: &str) -> Rows {
    table.iter().find(|(plugin, _)| *plugin == name).map_or(&[], |(_, rows)| rows)
}

/// The key without which a plugin refuses, and what to write.
pub(super) fn missing(name: &str, map: &Map<String, Value>) -> Option<(&'static str, &'static str)> {
    let has = |key: &str| find(map, key).is_some_and(|value| value.as_str() != Some(""));
    let given = match name {
        "vlan" => [("master", "name the interface that carries the VLAN")].as_slice(),
        "vrf" => &[("vrfname", "name the VRF that the interface is to be in")],
        "ptp" => &[("ipam", "without an address there is nothing that a point-to-point link could do")],
        _ => &[],
    };
    given.iter().find(|(key, _)| !has(key)).copied()
}

/// The same of `ipam`, where the runtime may give ranges if the plugin says that it takes them.
pub(super) fn missing_range(
    name: &str,
    ipam: &Map<String, Value>,
    plugin: &Map<String, Value>,
) -> Option<(&'static str, &'static str)> {
    let keys: &[&str] = match name {
        "host-local" => &["subnet", "ranges"],
        // whereabouts reads more from a file of the node.
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
    (!by_runtime && !keys.iter().any(is_given)).then_some((first, "there is no range to give addresses from"))
}

/// Why a text is not of this form; an empty one is «not configured».
pub(super) fn fault_of(form: Form, value: &Value) -> Option<String> {
    let Value::String(text) = value else { return fault_of_other(form, value) };
    let must = |holds: bool, what: &str| (!holds).then(|| format!("must be {what}"));
    if text.is_empty() && !matches!(form, Truth | Number(..) | Mtu | Texts | Each(_) | Fields(_)) {
        return None;
    }
    match form {
        Truth => must(false, "true or false, without quotation marks"),
        Number(..) | Mtu => must(false, "a number, without quotation marks"),
        Word(words) => must(words.contains(&text.as_str()), &format!("one of {}", words.join(", "))),
        Text => None,
        Path => must(text.starts_with('/'), "an absolute path"),
        Interface => ifname_fault(text).map(|fault| format!("is no name of an interface: it {fault}")),
        Address => must(parse_ip(text).is_some(), "an IP address"),
        Prefix => must(parse_cidr(text).is_some(), "an address with a prefix length (CIDR notation)"),
        AddressOrPrefix => must(
            parse_ip(text).is_some() || parse_cidr(text).is_some(),
            "an address, or a range in CIDR notation",
        ),
        Range => must(is_range(text), "a range in CIDR notation"),
        Hardware => must(parse_mac(text).is_some(), "a hardware address"),
        Texts | Fields(_) => must(false, "an object"),
        Each(_) => must(false, "a list"),
    }
}

/// The same of what is no text.
fn fault_of_other(form: Form, value: &Value) -> Option<String> {
    let must = |holds: bool, what: &str| (!holds).then(|| format!("must be {what}"));
    match form {
        Truth => must(value.is_boolean(), "true or false"),
        Number(least, most) => {
            let fits = value.as_i64().is_some_and(|number| (least..=most).contains(&number));
            let within = if most == i64::MAX { String::new() } else { format!(" within {least}..={most}") };
            must(fits, &format!("a whole number{within}"))
        }
        Mtu => {
            let fits = value.as_i64().is_some_and(|mtu| mtu == 0 || (68..=65_535).contains(&mtu));
            must(fits, "0, or a whole number within 68..=65535")
        }
        Texts => match value.as_object() {
            Some(texts) => must(texts.values().all(Value::is_string), "an object of texts"),
            None => must(false, "an object of texts"),
        },
        Each(_) => must(value.is_array(), "a list"),
        Fields(_) => must(value.is_object(), "an object"),
        Word(_) | Text | Path | Interface | Address | Prefix | AddressOrPrefix | Range | Hardware => {
            must(false, "a text")
        }
    }
}

/// whereabouts also writes first-last/length.
fn is_range(text: &str) -> bool {
    match text.split_once('-') {
        Some((first, rest)) => parse_ip(first).is_some() && parse_cidr(rest).is_some(),
        None => parse_cidr(text).is_some(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::keys;
    use super::*;

    #[test]
    fn what_is_said_of_values_is_of_keys_that_there_are() {
        for (values, known) in [(PLUGINS, keys::PLUGINS), (ADDRESS_MANAGERS, keys::ADDRESS_MANAGERS)] {
            for (name, rows) in values {
                let known = known.iter().find(|(known, _)| known == name);
                let (_, keys) = known.unwrap_or_else(|| panic!("{name} is no plugin"));
                for (key, _) in *rows {
                    assert!(keys.contains(key), "{name} has no key {key}");
                }
            }
        }
    }
}
