//! Property tests of the webhook's findings: random valid definitions are never denied, and a random broken definition is denied
//! exactly if the linter has an error about it as a file.

use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::Config;
use serde_json::{Map, json};

use super::*;

/// Options with the JSON values that they can have.
type Options = &'static [(&'static str, &'static [&'static str])];

/// Options of interface plugins, each with values that are valid with every other option of the plugin.
const INTERFACES: &[(&str, Options)] = &[
    (
        "bridge",
        &[
            ("bridge", &["\"cni0\"", "\"br-web\""]),
            ("isGateway", &["true", "false"]),
            ("hairpinMode", &["true", "false"]),
            ("mtu", &["1280", "9000"]),
            ("vlan", &["1", "100", "4094"]),
            ("macspoofchk", &["true", "false"]),
        ],
    ),
    ("macvlan", &[("mode", &["\"bridge\"", "\"private\"", "\"vepa\"", "\"passthru\""]), ("mtu", &["1400"])]),
    ("ipvlan", &[("mode", &["\"l2\"", "\"l3\"", "\"l3s\""]), ("mtu", &["1400"])]),
    ("ptp", &[("mtu", &["1400"]), ("ipMasq", &["true", "false"])]),
    ("dummy", &[]),
    ("tap", &[("mtu", &["1400"]), ("multiQueue", &["true", "false"]), ("owner", &["0", "107"])]),
];
/// Chained plugins with options.
const CHAINED: &[&str] = &[
    r#"{"type":"tuning","sysctl":{"net.core.somaxconn":"500"}}"#,
    r#"{"type":"tuning","mtu":1400}"#,
    r#"{"type":"bandwidth","ingressRate":1000000,"ingressBurst":1000000}"#,
    r#"{"type":"portmap","capabilities":{"portMappings":true}}"#,
    r#"{"type":"firewall"}"#,
    r#"{"type":"vrf","vrfname":"blue"}"#,
    r#"{"type":"sbr"}"#,
];
/// IPAM sections.
const IPAM: &[&str] = &[
    r#"{"type":"host-local","subnet":"10.1.0.0/16"}"#,
    r#"{"type":"host-local","ranges":[[{"subnet":"10.1.2.0/24","rangeStart":"10.1.2.10","rangeEnd":"10.1.2.99"}],[{"subnet":"fd00::/64"}]]}"#,
    r#"{"type":"static","addresses":[{"address":"10.1.2.3/24","gateway":"10.1.2.1"}]}"#,
    r#"{"type":"dhcp"}"#,
    r#"{"type":"whereabouts","range":"10.2.0.0/24"}"#,
    r#"{"type":"weft-ipam","range":"10.2.0.0/24"}"#,
];
/// Values that no option expects, or only few do.
const WRONG: &[&str] = &[
    "null",
    "-1",
    "0",
    "4095",
    "4294967296",
    "1.5",
    "true",
    "\"\"",
    "\"a b\"",
    "\"10.0.0.0/33\"",
    "[]",
    "{}",
    "[null]",
    "\"a-name-of-20-letters\"",
    "\"eth0\"",
    "\"l2\"",
];

fn json_of(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// Valid configuration of one interface plugin with options, IPAM, and chained plugins.
fn configuration() -> impl Strategy<Value = Value> {
    let interface = select(INTERFACES).prop_flat_map(|(plugin, options)| {
        let chosen: Vec<_> = options
            .iter()
            .map(|(key, values)| {
                option::of(select(*values)).prop_map(move |value| value.map(|value| (*key, json_of(value))))
            })
            .collect();
        chosen.prop_map(move |chosen| {
            let mut config: Map<String, Value> =
                chosen.into_iter().flatten().map(|(key, value)| (key.to_owned(), value)).collect();
            config.insert("type".to_owned(), json!(plugin));
            if matches!(plugin, "macvlan" | "ipvlan") {
                config.insert("master".to_owned(), json!("eth1"));
            }
            Value::Object(config)
        })
    });
    let chained = vec(select(CHAINED), 0..3);
    let version = select(vec!["0.4.0", "1.0.0", "1.1.0"]);
    (interface, select(IPAM), chained, version).prop_map(|(mut interface, ipam, mut chained, version)| {
        interface["ipam"] = json_of(ipam);
        chained.dedup();
        let plugins: Vec<Value> =
            std::iter::once(interface).chain(chained.into_iter().map(json_of)).collect();
        json!({ "cniVersion": version, "name": "net-a", "plugins": plugins })
    })
}

/// Configuration in which some options of the plugins have wrong values, and the text may be cut.
fn broken() -> impl Strategy<Value = String> {
    let keys = vec![
        "type",
        "ipam",
        "mtu",
        "vlan",
        "master",
        "mode",
        "bridge",
        "sysctl",
        "subnet",
        "ranges",
        "range",
        "name",
        "cniVersion",
        "plugins",
        "capabilities",
        "vrfname",
        "ingressRate",
    ];
    let wrong = btree_map(select(keys), select(WRONG), 1..4);
    (configuration(), wrong, any::<prop::sample::Index>(), prop::bool::weighted(0.1)).prop_map(
        |(mut config, wrong, place, is_cut)| {
            for (key, value) in wrong {
                let value = json_of(value);
                match key {
                    "name" | "cniVersion" | "plugins" => config[key] = value,
                    "subnet" | "ranges" | "range" => {
                        if let Some(ipam) =
                            config.pointer_mut("/plugins/0/ipam").filter(|ipam| ipam.is_object())
                        {
                            ipam[key] = value;
                        }
                    }
                    _ => {
                        let Some(plugins) = config["plugins"].as_array_mut().filter(|all| !all.is_empty())
                        else {
                            continue;
                        };
                        let place = place.index(plugins.len());
                        if plugins[place].is_object() {
                            plugins[place][key] = value;
                        }
                    }
                }
            }
            let mut text = config.to_string();
            if is_cut {
                text.truncate(place.index(text.len()));
            }
            text
        },
    )
}

fn definition(config: &str) -> Value {
    json!({ "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": { "name": "net-a", "namespace": "n" }, "spec": { "config": config } })
}

/// Whether lint has an error about a definition in a file, with the configuration as a literal block.
fn lint_refuses(config: &str) -> bool {
    let text = format!(
        "apiVersion: k8s.cni.cncf.io/v1\nkind: NetworkAttachmentDefinition\nmetadata:\n  name: net-a\n  namespace: n\nspec:\n  config: |-\n    {config}\n"
    );
    let findings = lint::manifest(&Manifest::parse(&text), &Knowledge::of_known_plugins());
    findings.iter().any(|finding| finding.severity == Severity::Error)
}

proptest! {
    #![proptest_config(Config { cases: 2000, failure_persistence: None, ..Config::default() })]

    #[test]
    fn admission_denies_no_valid_definition(config in configuration()) {
        let findings = Findings::of(&definition(&config.to_string()), &Knowledge::of_known_plugins());
        prop_assert_eq!(findings.denial(), None, "{}", config);
    }

    #[test]
    fn admission_accepts_exactly_what_lint_accepts(config in broken()) {
        let findings = Findings::of(&definition(&config), &Knowledge::of_known_plugins());
        prop_assert_eq!(findings.denial().is_some(), lint_refuses(&config), "{}: {:?}", config, findings);
    }
}

#[test]
fn admission_denies_no_definition_of_the_documentation() {
    let mut count = 0;
    for entry in std::fs::read_dir(testkit::workspace().join("docs/plugins")).unwrap() {
        let path = entry.unwrap().path();
        // The configuration of the meta-plugin itself, which is no definition.
        if path.ends_with("weft.md") {
            continue;
        }
        let page = std::fs::read_to_string(&path).unwrap();
        for block in page.split("```json\n").skip(1).filter_map(|rest| rest.split("```").next()) {
            let Ok(config) = serde_json::from_str::<Value>(block) else { continue };
            let is_delegate = config.get("plugins").is_some() || config["type"].is_string();
            if !is_delegate || config.get("name").is_none() {
                continue;
            }
            let findings = Findings::of(&definition(block), &Knowledge::of_known_plugins());
            assert_eq!(findings.denial(), None, "{}: {block}", path.display());
            count += 1;
        }
    }
    assert!(count >= 15, "only {count} configurations were found");
}
