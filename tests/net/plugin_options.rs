//! Tests that every plugin option is refused if it has a wrong type or is out of range: code 7, with key and
//! value, and nothing changes.
//!
//! ```text
//!   host ── up0, dev0          a: pod with eth0 for chained plugins
//! ```
//!
//! Rule: the last test fails for an option that a page below docs/plugins names and this file does not.
//!
//! Source: SPEC 1.1.0 §5 "Error" (code 7); plugins v1.9.1, the `NetConf` of each.

use rig::{assert_nothing_left, assert_pod_unchanged, in_version};
use serde_json::{Value, json};
use testkit::{Feature, Host, host, workspace};

/// Type of an option.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Number,
    Flag,
    List,
    Object,
}

use Kind::{Flag, List, Number, Object, Text};

impl Kind {
    /// Returns values of other types.
    fn values_of_other_types(self) -> Vec<Value> {
        let all = [json!("yes"), json!(7), json!(1.5), json!(true), json!([7]), json!({ "a": 7 })];
        let is_own = |value: &Value| match self {
            Text => value.is_string(),
            Number => value.is_u64(),
            Flag => value.is_boolean(),
            List => value.is_array(),
            Object => value.is_object(),
        };
        all.into_iter().filter(|value| !is_own(value)).collect()
    }
}

/// An option: path, type, and invalid values of that type, each as JSON with the part of the message that names it.
type PluginOption = (&'static str, Kind, &'static [(&'static str, &'static str)]);

/// The option `mtu` with invalid values.
const MTU: PluginOption = ("mtu", Number, &[("67", "67"), ("65536", "65536"), ("-1", "-1")]);
const QUEUES: PluginOption = ("queues", Number, &[("4097", "4097"), ("-1", "-1")]);
const MAC: &[(&str, &str)] =
    &[(r#""x""#, r#""x""#), (r#""ff:ff:ff:ff:ff:ff""#, "ff:ff"), (r#""00:00:00:00:00:00""#, "00:00")];
const RUNTIME_MAC: PluginOption = ("runtimeConfig.mac", Text, MAC);
const ARGS_MAC: PluginOption = ("args.cni.mac", Text, MAC);
const LINK: &[(&str, &str)] = &[
    (r#""a/b""#, "a/b"),
    (r#""a b""#, "a b"),
    (r#""sixteen-letters-""#, "sixteen-letters-"),
    (r#""..""#, ".."),
];
const MASQUERADE: [PluginOption; 2] =
    [("ipMasq", Flag, &[]), ("ipMasqBackend", Text, &[(r#""pf""#, "pf"), (r#""Nftables""#, "Nftables")])];
const RATES: &[(&str, &str)] = &[("-1", "-1"), ("18446744073709551616", "1.8446744073709552e+19")];
const ADDRESSES: &[(&str, &str)] =
    &[(r#"["x"]"#, r#""x""#), (r#"[""]"#, r#""""#), (r#"["10.1.0.300"]"#, "10.1.0.300"), ("[7]", "7")];
const ROUTES: PluginOption = (
    "ipam.routes",
    List,
    &[
        (r#"[{"dst":"x"}]"#, r#"routes[0].dst: "x""#),
        (r#"[{"dst":"10.0.0.0/33"}]"#, "10.0.0.0/33"),
        (r#"[{"dst":"0.0.0.0/0","gw":"x"}]"#, r#"routes[0].gw: "x""#),
        (r#"[{"dst":"0.0.0.0/0","mtu":"x"}]"#, r#"routes[0].mtu: "x""#),
        (r#"[{"dst":"0.0.0.0/0","advmss":-1}]"#, "routes[0].advmss: -1"),
        (r#"[{"dst":"0.0.0.0/0","priority":-1}]"#, "routes[0].priority: -1"),
        (r#"[{"dst":"0.0.0.0/0","table":-1}]"#, "routes[0].table: -1"),
        (r#"[{"dst":"0.0.0.0/0","scope":256}]"#, "routes[0].scope: 256"),
    ],
);

/// A plugin, a valid configuration, and the plugin's options.
struct Case {
    plugin: &'static str,
    base: &'static str,
    options: &'static [&'static [PluginOption]],
}

const CASES: &[Case] = &[
    Case {
        plugin: "bridge",
        base: r#"{"bridge":"br0"}"#,
        options: &[
            &[
                ("bridge", Text, LINK),
                ("isGateway", Flag, &[]),
                ("isDefaultGateway", Flag, &[]),
                ("forceAddress", Flag, &[]),
                MTU,
                QUEUES,
                ("hairpinMode", Flag, &[]),
                ("promiscMode", Flag, &[]),
                ("vlan", Number, &[("4095", "4095"), ("-1", "-1"), ("65536", "65536")]),
                (
                    "vlanTrunk",
                    List,
                    &[
                        (r#"[{"id":0}]"#, "[0].id: 0"),
                        (r#"[{"id":4095}]"#, "[0].id: 4095"),
                        (r#"[{"id":"x"}]"#, r#"[0].id: "x""#),
                        (r#"[{"id":5},{"minID":5}]"#, "[1].maxID"),
                        (r#"[{"maxID":5}]"#, "[0].minID"),
                        (r#"[{"minID":0,"maxID":5}]"#, "[0].minID: 0"),
                        (r#"[{"minID":1,"maxID":4095}]"#, "[0].maxID: 4095"),
                        (r#"[{"minID":9,"maxID":5}]"#, "[0].minID: 9"),
                    ],
                ),
                ("preserveDefaultVlan", Flag, &[]),
                ("macspoofchk", Flag, &[]),
                ("enabledad", Flag, &[]),
                ("disableContainerInterface", Flag, &[]),
                ("portIsolation", Flag, &[]),
                RUNTIME_MAC,
                ARGS_MAC,
                ("ipam", Object, &[]),
                ("ipam.type", Text, &[]),
                ("dns", Object, &[]),
                ("dns.nameservers", List, &[]),
                ("dns.domain", Text, &[]),
                ("dns.search", List, &[]),
                ("dns.options", List, &[]),
            ],
            &MASQUERADE,
        ],
    },
    Case {
        plugin: "macvlan",
        base: r#"{"master":"up0"}"#,
        options: &[&[
            ("master", Text, LINK),
            ("mode", Text, &[(r#""bridged""#, "bridged"), (r#""source""#, "source")]),
            MTU,
            ("mac", Text, MAC),
            ("linkInContainer", Flag, &[]),
            ("bcqueuelen", Number, &[("-1", "-1"), ("4294967296", "4294967296")]),
            RUNTIME_MAC,
            ARGS_MAC,
            ("ipam", Object, &[]),
            ("dns", Object, &[]),
        ]],
    },
    Case {
        plugin: "ipvlan",
        base: r#"{"master":"up0"}"#,
        options: &[&[
            ("master", Text, LINK),
            ("mode", Text, &[(r#""l4""#, "l4")]),
            MTU,
            ("linkInContainer", Flag, &[]),
            ("ipam", Object, &[]),
            ("dns", Object, &[]),
        ]],
    },
    Case {
        plugin: "vlan",
        base: r#"{"master":"up0","vlanId":5}"#,
        options: &[&[
            ("master", Text, LINK),
            ("vlanId", Number, &[("4095", "4095"), ("-1", "-1"), ("65541", "65541")]),
            MTU,
            ("linkInContainer", Flag, &[]),
            ("ipam", Object, &[]),
            ("dns", Object, &[]),
        ]],
    },
    Case {
        plugin: "ptp",
        base: r#"{"ipam":{"type":"static","addresses":[{"address":"10.1.0.5/24","gateway":"10.1.0.1"}]}}"#,
        options: &[&[MTU, QUEUES, ("ipam", Object, &[]), ("dns", Object, &[])], &MASQUERADE],
    },
    Case {
        plugin: "host-device",
        base: r#"{"device":"dev0"}"#,
        options: &[&[
            ("device", Text, LINK),
            ("ipam", Object, &[]),
            ("dns", Object, &[]),
            (
                "runtimeConfig.deviceID",
                Text,
                &[(r#""../x""#, "../x"), (r#""a/b""#, "a/b"), (r#""0000:00:99.0""#, "0000:00:99.0")],
            ),
        ]],
    },
    Case {
        plugin: "host-device",
        base: "{}",
        options: &[&[
            ("hwaddr", Text, &[(r#""x""#, r#""x""#), (r#""02:00:00:00:0d:99""#, "02:00:00:00:0d:99")]),
            ("kernelpath", Text, &[(r#""/etc""#, "/etc"), (r#""/sys/devices/../../etc""#, "..")]),
            ("pciBusID", Text, &[(r#""../x""#, "../x"), (r#""0000:00:99.0""#, "0000:00:99.0")]),
        ]],
    },
    Case {
        plugin: "dummy",
        base: r#"{"ipam":{"type":"static","addresses":[{"address":"10.1.0.5/24"}]}}"#,
        options: &[&[("ipam", Object, &[]), ("dns", Object, &[])]],
    },
    Case {
        plugin: "tap",
        base: "{}",
        options: &[&[
            ("multiQueue", Flag, &[]),
            ("mtu", Number, &[("67", "67"), ("65522", "65522"), ("-1", "-1")]),
            ("mac", Text, MAC),
            ("owner", Number, &[("-1", "-1"), ("4294967295", "4294967295"), ("4294967296", "4294967296")]),
            ("group", Number, &[("-1", "-1"), ("4294967295", "4294967295"), ("4294967296", "4294967296")]),
            ("selinuxContext", Text, &[(r#""a\nb""#, "a\\nb")]),
            ("bridge", Text, LINK),
            RUNTIME_MAC,
            ARGS_MAC,
            ("ipam", Object, &[]),
            ("dns", Object, &[]),
        ]],
    },
    Case {
        plugin: "tuning",
        base: "{}",
        options: &[&[
            (
                "sysctl",
                Object,
                &[
                    (r#"{"net.core.somaxconn":7}"#, "net.core.somaxconn: 7"),
                    (r#"{"kernel.hostname":"x"}"#, "kernel.hostname"),
                    (r#"{"net.ipv4/../../kernel.hostname":"x"}"#, ".."),
                    (r#"{"/etc/passwd":"x"}"#, "/etc/passwd"),
                    (r#"{"net..core":"x"}"#, "net..core"),
                ],
            ),
            ("mac", Text, &[(r#""x""#, r#""x""#)]),
            ("promisc", Flag, &[]),
            MTU,
            ("txQLen", Number, &[("-1", "-1"), ("4294967296", "4294967296")]),
            ("allmulti", Flag, &[]),
            ("dataDir", Text, &[(r#""run""#, r#""run""#)]),
            ("runtimeConfig.mac", Text, &[(r#""x""#, r#""x""#)]),
            ("args.cni.sysctl", Object, &[]),
            ("args.cni.mac", Text, &[(r#""x""#, r#""x""#)]),
            ("args.cni.promisc", Flag, &[]),
            ("args.cni.mtu", Number, &[("-1", "-1")]),
            ("args.cni.txQLen", Number, &[("-1", "-1")]),
            ("args.cni.allmulti", Flag, &[]),
        ]],
    },
    Case {
        plugin: "sbr",
        base: "{}",
        options: &[&[
            ("table", Number, &[("0", "0"), ("255", "255"), ("-1", "-1"), ("4294967296", "4294967296")]),
            (
                "gateways",
                List,
                &[
                    (r#"["x"]"#, r#"gateways[0]: "x""#),
                    ("[7]", "gateways[0]: 7"),
                    (r#"["10.1.0.1","10.1.0.2"]"#, "10.1.0.2"),
                ],
            ),
            ("addSourceHints", Flag, &[]),
        ]],
    },
    Case {
        plugin: "bandwidth",
        base: r#"{"ingressRate":8000000,"ingressBurst":800000,"egressRate":8000000,"egressBurst":800000}"#,
        options: &[&[
            ("ingressRate", Number, RATES),
            ("ingressBurst", Number, &[("-1", "-1"), ("0", "0"), ("34359738368", "34359738368")]),
            ("egressRate", Number, RATES),
            ("egressBurst", Number, &[("-1", "-1"), ("0", "0"), ("34359738368", "34359738368")]),
            ("shapedSubnets", List, &[(r#"["x"]"#, r#""x""#), (r#"["10.1.0.0/33"]"#, "10.1.0.0/33")]),
            ("unshapedSubnets", List, &[(r#"["x"]"#, r#""x""#)]),
        ]],
    },
    Case {
        plugin: "bandwidth",
        base: "{}",
        options: &[&[(
            "runtimeConfig.bandwidth",
            Object,
            &[
                (r#"{"ingressRate":"x","ingressBurst":8}"#, r#"ingressRate: "x""#),
                (r#"{"ingressRate":8,"ingressBurst":-1}"#, "ingressBurst: -1"),
                (r#"{"egressRate":true}"#, "egressRate: true"),
                (r#"{"egressRate":8}"#, "egressBurst"),
            ],
        )]],
    },
    Case {
        plugin: "portmap",
        base: r#"{"runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]}}"#,
        options: &[&[
            ("backend", Text, &[(r#""pf""#, "pf")]),
            ("snat", Flag, &[]),
            ("masqAll", Flag, &[]),
            ("markMasqBit", Number, &[("-1", "-1"), ("32", "32")]),
            ("externalSetMarkChain", Text, &[(r#""a b""#, "a b"), (r#""-j""#, "-j")]),
            ("conditionsV4", List, &[("[7]", "7"), (r#"["-s","1.2.3.4","-j","ACCEPT"]"#, "-j")]),
            ("conditionsV6", List, &[("[7]", "7"), (r#"["ip saddr 1.2.3.4"]"#, r#""ip""#)]),
            (
                "runtimeConfig.portMappings",
                List,
                &[
                    (r#"[{"hostPort":0,"containerPort":80}]"#, "[0].hostPort: 0"),
                    (r#"[{"hostPort":65536,"containerPort":80}]"#, "[0].hostPort: 65536"),
                    (r#"[{"hostPort":"80","containerPort":80}]"#, r#"[0].hostPort: "80""#),
                    (r#"[{"hostPort":80,"containerPort":0}]"#, "[0].containerPort: 0"),
                    (r#"[{"hostPort":80,"containerPort":-1}]"#, "[0].containerPort: -1"),
                    (r#"[{"hostPort":80,"containerPort":80,"protocol":"icmp"}]"#, r#"[0].protocol: "icmp""#),
                    (r#"[{"hostPort":80,"containerPort":80,"protocol":7}]"#, "[0].protocol: 7"),
                    (r#"[{"hostPort":80,"containerPort":80,"hostIP":"x"}]"#, r#"[0].hostIP: "x""#),
                ],
            ),
        ]],
    },
    Case {
        plugin: "firewall",
        base: r#"{"backend":"iptables"}"#,
        options: &[&[
            ("backend", Text, &[(r#""pf""#, "pf")]),
            ("iptablesAdminChainName", Text, &[(r#""a b""#, "a b"), (r#""-j""#, "-j")]),
            ("firewalldZone", Text, &[(r#""a b""#, "a b")]),
            ("ingressPolicy", Text, &[(r#""closed""#, "closed")]),
        ]],
    },
    Case {
        plugin: "vrf",
        base: r#"{"vrfname":"blue"}"#,
        options: &[&[
            ("vrfname", Text, &[(r#""""#, ""), (r#""a/b""#, "a/b"), (r#""sixteen-letters-""#, "sixteen")]),
            ("table", Number, &[("-1", "-1"), ("4294967296", "4294967296")]),
        ]],
    },
    Case {
        plugin: "static",
        base: r#"{"ipam":{"type":"static","addresses":[{"address":"10.1.0.5/24"}]}}"#,
        options: &[&[
            (
                "ipam.addresses",
                List,
                &[
                    (r#"[{"address":"x"}]"#, r#"[0].address: "x""#),
                    (r#"[{"address":"10.1.0.5"}]"#, "[0].address"),
                    (r#"[{"address":"10.1.0.5/33"}]"#, "10.1.0.5/33"),
                    (r#"[{"address":7}]"#, "[0].address: 7"),
                    (r#"[{"address":"10.1.0.5/24","gateway":"x"}]"#, r#"[0].gateway: "x""#),
                    (r#"[{"address":"10.1.0.5/24","gateway":7}]"#, "[0].gateway: 7"),
                    (r#"[{"address":"10.1.0.5/24","gateway":"fd01::1"}]"#, "[0].gateway: fd01::1"),
                ],
            ),
            ROUTES,
            ("ipam.dns", Object, &[(r#"{"nameservers":"x"}"#, r#"nameservers: "x""#)]),
            ("runtimeConfig.ips", List, ADDRESSES),
            ("args.cni.ips", List, ADDRESSES),
        ]],
    },
    Case {
        plugin: "host-local",
        base: r#"{"ipam":{"type":"host-local","subnet":"10.1.0.0/24"}}"#,
        options: &[&[
            (
                "ipam.subnet",
                Text,
                &[
                    (r#""x""#, r#""x""#),
                    (r#""10.1.0.0/31""#, "10.1.0.0/31"),
                    (r#""10.1.0.1/24""#, "10.1.0.1/24"),
                ],
            ),
            ("ipam.rangeStart", Text, &[(r#""x""#, r#""x""#), (r#""10.2.0.1""#, "10.2.0.1")]),
            ("ipam.rangeEnd", Text, &[(r#""x""#, r#""x""#), (r#""10.2.0.1""#, "10.2.0.1")]),
            ("ipam.gateway", Text, &[(r#""x""#, r#""x""#), (r#""fd01::1""#, "fd01::1")]),
            ("ipam.dataDir", Text, &[(r#""relative""#, "relative")]),
            ("ipam.resolvConf", Text, &[]),
            (
                "ipam.ranges",
                List,
                &[
                    ("[7]", "[0]: 7"),
                    ("[[7]]", "[0][0]: 7"),
                    (r#"[[{"subnet":7}]]"#, "[0][0].subnet: 7"),
                    (
                        r#"[[{"subnet":"10.3.0.0/24","rangeStart":"10.3.0.9","rangeEnd":"10.3.0.8"}]]"#,
                        "10.3.0.9",
                    ),
                    (r#"[[{"subnet":"10.1.0.0/25"}]]"#, "10.1.0"),
                    (r#"[[{"subnet":"10.3.0.0/24"},{"subnet":"fd01::/64"}]]"#, "fd01::"),
                ],
            ),
            ROUTES,
            ("runtimeConfig.ipRanges", List, &[("[[7]]", "[0][0]: 7"), (r#"[[{"subnet":"x"}]]"#, r#""x""#)]),
            ("runtimeConfig.ips", List, ADDRESSES),
            ("args.cni.ips", List, ADDRESSES),
        ]],
    },
    Case {
        plugin: "dhcp",
        base: r#"{"ipam":{"type":"dhcp"}}"#,
        options: &[&[
            ("ipam.daemonSocketPath", Text, &[(r#""run/x""#, "run/x")]),
            (
                "ipam.provide",
                List,
                &[
                    (r#"[{"option":"nothing","value":"x"}]"#, "nothing"),
                    (r#"[{"option":256,"value":"x"}]"#, "256"),
                    (r#"[{"option":"53","value":"x"}]"#, "53"),
                    (r#"[{"option":"12","value":7}]"#, "value: 7"),
                    (r#"[{"option":"12","fromArg":7}]"#, "fromArg: 7"),
                ],
            ),
            (
                "ipam.request",
                List,
                &[
                    (r#"[{"option":"nothing"}]"#, "nothing"),
                    (r#"[{"skipDefault":"yes"}]"#, r#"skipDefault: "yes""#),
                ],
            ),
            ("ipam.priority", Number, &[("-1", "-1"), ("4294967296", "4294967296")]),
        ]],
    },
    Case {
        plugin: "dhcp",
        base: r#"{"ipam":{"type":"dhcp","families":["ipv4","ipv6"]}}"#,
        options: &[&[
            (
                "ipam.families",
                List,
                &[
                    ("[]", "[]"),
                    (r#"["ipv6","IPv4"]"#, r#"families[1]: "IPv4""#),
                    (r#"["ipv6","ipv6"]"#, r#"families[1]: "ipv6""#),
                    ("[6]", "families[0]: 6"),
                ],
            ),
            (
                "ipam.provideV6",
                List,
                &[
                    (r#"[{"option":"host-name","value":"x"}]"#, "host-name"),
                    (r#"[{"option":65536,"value":"x"}]"#, "65536"),
                    (r#"[{"option":3,"value":"x"}]"#, "option: 3"),
                    (r#"[{"option":"client-id","value":"x"}]"#, r#"value: "x""#),
                    (r#"[{"option":"vendor-class","value":"x"}]"#, r#"value: "x""#),
                    (r#"[{"option":"fqdn","value":"a..b"}]"#, r#"value: "a..b""#),
                    (r#"[{"option":59,"value":7}]"#, "value: 7"),
                    (r#"[{"option":59,"fromArg":7}]"#, "fromArg: 7"),
                ],
            ),
            (
                "ipam.requestV6",
                List,
                &[
                    (r#"[{"option":"nothing"}]"#, "nothing"),
                    (r#"[{"skipDefault":"yes"}]"#, r#"skipDefault: "yes""#),
                ],
            ),
            ("ipam.prefixLengthV6", Number, &[("0", "0"), ("129", "129"), ("256", "256"), ("-1", "-1")]),
        ]],
    },
];

const CHAINED: [&str; 6] = ["bandwidth", "firewall", "portmap", "sbr", "tuning", "vrf"];

/// Returns `config` with the option at a dotted path.
fn set(config: &Value, path: &str, value: &Value) -> Value {
    let mut config = config.clone();
    let mut place = &mut config;
    for key in path.split('.') {
        if !place.is_object() {
            *place = json!({});
        }
        place = &mut place[key];
    }
    *place = value.clone();
    config
}

fn base(case: &Case, host: &Host, sandbox: &str) -> Value {
    let own: Value = serde_json::from_str(case.base).expect("JSON");
    let mut config = rig::with(&json!({ "name": "net", "type": case.plugin }), &own);
    if CHAINED.contains(&case.plugin) {
        config["prevResult"] = json!({
            "cniVersion": "1.1.0",
            "interfaces": [{ "name": "h0" }, { "name": "eth0", "sandbox": sandbox }],
            "ips": [{ "address": "10.1.0.5/24", "gateway": "10.1.0.1", "interface": 1 }],
        });
        assert!(rig::link(host, "h0").is_some());
    }
    in_version(&config, "1.1.0")
}

#[test]
fn plugin_options_of_wrong_type_or_range_are_refused() {
    let host = host!(Feature::Veth);
    rig::install(&host);
    let links = "link add up0 type veth peer name up1\nlink add dev0 type veth peer name dev1\n\
                 link set up0 addrgenmode none\nlink set up1 addrgenmode none\n";
    host.command("ip").args(["-batch", "-"]).stdin(links).finish().success();
    let (plain, behind) = (host.pod("a"), host.pod("b"));
    host.run("ip link add h0 type veth peer name eth0 netns b".split(' '));
    let before = (host.snapshot(), plain.snapshot(), behind.snapshot());
    let mut faults = Vec::new();
    let mut count = 0;
    for case in CASES {
        let chained = CHAINED.contains(&case.plugin);
        let pod = if chained { &behind } else { &plain };
        let good = base(case, &host, pod.path().to_str().expect("a path"));
        let attachment = host.attachment(case.plugin, pod, if chained { "eth0" } else { "net1" });
        for (path, kind, others) in case.options.iter().copied().flatten() {
            let key = path.rsplit('.').next().unwrap_or(path);
            let values_of_other_types =
                kind.values_of_other_types().into_iter().map(|value| (value.clone(), value.to_string()));
            let parse = |text: &str| serde_json::from_str::<Value>(text).expect("JSON");
            let others = others.iter().map(|(value, word)| (parse(value), (*word).to_owned()));
            for (value, word) in values_of_other_types.chain(others) {
                count += 1;
                let finished = attachment.add(&set(&good, path, &value));
                let what = format!("{} {path}: {value}", case.plugin);
                if finished.code == Some(0) {
                    faults.push(format!("{what}: accepted"));
                    attachment.del(&good);
                    continue;
                }
                let (code, message) = rig::refusal(&finished);
                if code != 7 || !message.contains(key) || !message.contains(&word) {
                    faults.push(format!("{what}: {code} {message}"));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{} of {count}:\n{}", faults.len(), faults.join("\n"));
    assert_nothing_left("all of them", &host, &before.0);
    assert_pod_unchanged("all of them", &plain, &before.1);
    assert_pod_unchanged("all of them", &behind, &before.2);
}

#[test]
fn plugin_options_named_in_documentation_are_all_tested() {
    let mut missing = Vec::new();
    for case in CASES {
        let page = workspace().join(format!("docs/plugins/{}.md", case.plugin));
        let page = std::fs::read_to_string(page).expect("a page for each plugin");
        // Tables whose first column has the heading `option`.
        let tables: Vec<&str> = page.split("\n\n").filter(|part| part.starts_with("| option")).collect();
        assert!(!tables.is_empty(), "the page of {} has no table of options", case.plugin);
        for line in tables.iter().flat_map(|table| table.lines().skip(2)) {
            let first = line.trim_start_matches('|').split(" | ").next().unwrap_or_default();
            for key in first.split('`').skip(1).step_by(2) {
                let last = key.rsplit(['.', '…']).next().unwrap_or(key);
                let own = CASES.iter().filter(|other| other.plugin == case.plugin);
                let known =
                    own.flat_map(|case| case.options.iter().copied().flatten()).any(|(path, _, others)| {
                        path.split('.').any(|part| part == last)
                            || others.iter().any(|(value, _)| value.contains(&format!("\"{last}\"")))
                    });
                if !known && last != "CNI_ARGS" && key.chars().any(char::is_lowercase) {
                    missing.push(format!("{}: {key}", case.plugin));
                }
            }
        }
    }
    assert!(missing.is_empty(), "{missing:?}");
}
