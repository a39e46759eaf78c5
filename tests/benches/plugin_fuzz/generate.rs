//! Random chains of plugins from a seed.

use serde_json::{Value, json};

/// Chain of plugins, each with its complete configuration.
pub(crate) struct Chain {
    /// CNI version of all plugins.
    pub(crate) version: String,
    /// Configurations in the order of an ADD.
    pub(crate) plugins: Vec<Value>,
}

impl Chain {
    /// Returns the configurations as text, one a line.
    pub(crate) fn text(&self) -> String {
        self.plugins.iter().map(Value::to_string).collect::<Vec<_>>().join("\n")
    }
}

/// Option of a plugin, and its values as JSON.
type FuzzOption = (&'static str, &'static [&'static str]);

/// Interface plugins: required options, then optional ones.
const INTERFACES: &[(&str, &str, &[FuzzOption])] = &[
    (
        "bridge",
        r#"{"bridge":"br0"}"#,
        &[
            ("isGateway", &["true", "false"]),
            ("isDefaultGateway", &["true", "false"]),
            ("forceAddress", &["true"]),
            ("ipMasq", &["true", "false"]),
            ("mtu", &["0", "1400", "9000", "1200", "70", "-1", "\"x\""]),
            ("hairpinMode", &["true"]),
            ("promiscMode", &["true"]),
            ("enabledad", &["true"]),
            ("vlan", &["0", "100", "4095", "-1"]),
            ("args", &[r#"{"cni":{"mac":"02:00:00:00:00:07"}}"#, r#"{"cni":{"ips":["10.1.0.9/24"]}}"#]),
            ("runtimeConfig", &[r#"{"mac":"02:00:00:00:00:08"}"#, r#"{"mac":"x"}"#]),
        ],
    ),
    (
        "ptp",
        "{}",
        &[
            ("ipMasq", &["true", "false"]),
            ("mtu", &["0", "1400", "1280", "1200", "-1"]),
            ("dns", &[r#"{"nameservers":["10.1.0.1"],"domain":"x"}"#, "{}"]),
        ],
    ),
    (
        "macvlan",
        r#"{"master":"up0"}"#,
        &[
            ("mode", &["\"bridge\"", "\"private\"", "\"vepa\"", "\"passthru\"", "\"bridged\"", "\"\""]),
            ("mtu", &["0", "1400", "1500", "1501", "1200"]),
            ("linkInContainer", &["false"]),
            ("mac", &["\"02:00:00:00:00:09\"", "\"x\""]),
        ],
    ),
];

/// IPAM sections; the empty one means no key.
const IPAMS: &[&str] = &[
    "",
    "{}",
    r#"{"type":"host-local","subnet":"10.1.0.0/24"}"#,
    r#"{"type":"host-local","subnet":"10.1.0.0/24","gateway":"10.1.0.9","routes":[{"dst":"0.0.0.0/0"}]}"#,
    r#"{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"fd01::/64"}]],"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]}"#,
    r#"{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24","rangeStart":"10.1.0.7","rangeEnd":"10.1.0.7"}]],"routes":[{"dst":"10.9.0.0/16","gw":"10.1.0.3"}]}"#,
    r#"{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"},{"subnet":"10.2.0.0/24"}]]}"#,
    r#"{"type":"host-local","ranges":[[{"subnet":"fd01::/64","gateway":"fd01::5"}]],"routes":[{"dst":"fd09::/64","gw":"fd01::9"}]}"#,
    r#"{"type":"host-local","subnet":"10.1.0.0/30"}"#,
    r#"{"type":"host-local","subnet":"10.1.0.5/24"}"#,
    r#"{"type":"host-local","subnet":"10.1.0.0/24","rangeStart":"10.2.0.1"}"#,
    r#"{"type":"static","addresses":[{"address":"10.1.0.5/24"}]}"#,
    r#"{"type":"static","addresses":[{"address":"10.1.0.5/24","gateway":"10.1.0.1"}],"routes":[{"dst":"0.0.0.0/0"}]}"#,
    r#"{"type":"static","addresses":[{"address":"10.1.0.5/24","gateway":"10.1.0.1"},{"address":"fd01::5/64","gateway":"fd01::1"}],"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]}"#,
    r#"{"type":"static","addresses":[{"address":"10.1.0.5/32"}],"routes":[{"dst":"10.9.0.0/16","gw":"10.1.0.1"}]}"#,
    r#"{"type":"static","addresses":[{"address":"10.1.0.5/24"},{"address":"10.1.0.6/24"}],"routes":[{"dst":"10.9.0.0/16"}]}"#,
    r#"{"type":"static","addresses":[{"address":"10.1.0.5"}]}"#,
    r#"{"type":"static","addresses":[]}"#,
    r#"{"type":"static","addresses":[{"address":"10.1.0.5/24"}],"routes":[{"dst":"10.9.0.0/16"},{"dst":"10.9.0.0/16"}],"dns":{"nameservers":["10.1.0.1"]}}"#,
];

/// Chained plugins.
const CHAINED: &[&str] = &[
    r#"{"type":"tuning","mtu":1300}"#,
    r#"{"type":"tuning","mac":"02:00:00:00:00:0a","promisc":true}"#,
    r#"{"type":"tuning","sysctl":{"net.ipv4.conf.eth0.log_martians":"1","net.core.somaxconn":"200"}}"#,
    r#"{"type":"tuning","sysctl":{"net.ipv4.conf.nowhere.log_martians":"1"}}"#,
    r#"{"type":"tuning","allmulti":true,"txQLen":500}"#,
    r#"{"type":"sbr"}"#,
    r#"{"type":"portmap","snat":true,"runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]}}"#,
    r#"{"type":"portmap","runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"udp","hostIP":"10.7.0.1"}]}}"#,
    r#"{"type":"portmap","snat":false,"runtimeConfig":{"portMappings":[]}}"#,
    r#"{"type":"portmap","runtimeConfig":{"portMappings":[{"hostPort":0,"containerPort":80,"protocol":"tcp"}]}}"#,
    r#"{"type":"bandwidth","ingressRate":800000,"ingressBurst":80000}"#,
    r#"{"type":"bandwidth","egressRate":800000,"egressBurst":80000}"#,
    r#"{"type":"bandwidth","ingressRate":800000}"#,
    r#"{"type":"bandwidth"}"#,
    r#"{"type":"firewall","backend":"iptables"}"#,
    r#"{"type":"firewall","backend":"iptables","ingressPolicy":"same-bridge"}"#,
    r#"{"type":"firewall","backend":"iptables","iptablesAdminChainName":"ADMIN"}"#,
];

/// Number generator of a case (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        usize::try_from((mixed ^ (mixed >> 31)) % bound as u64).expect("less than the bound")
    }

    fn of<'a, T: ?Sized>(&mut self, list: &[&'a T]) -> &'a T {
        list[self.below(list.len())]
    }
}

/// Returns the chain of a seed.
pub(crate) fn generate(seed: u64) -> Chain {
    let mut random = Random(seed);
    let version = random.of(&["0.3.1", "0.4.0", "1.0.0", "1.0.0"]).to_owned();
    let (plugin, required, options) = INTERFACES[random.below(INTERFACES.len())];
    let mut first = parse(required);
    first["type"] = plugin.into();
    for (option, values) in options {
        if random.below(4) == 0 {
            first[*option] = parse(random.of(values));
        }
    }
    match random.of(IPAMS) {
        "" => {}
        ipam => first["ipam"] = parse(ipam),
    }
    let mut plugins = vec![first];
    for _ in 0..random.below(3) {
        plugins.push(parse(random.of(CHAINED)));
    }
    for plugin in &mut plugins {
        plugin["cniVersion"] = version.clone().into();
        plugin["name"] = json!("net");
    }
    Chain { version, plugins }
}

fn parse(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}
