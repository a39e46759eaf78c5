//! Property tests of the linter beside the plugins and the planner: both refuse the same inputs.
//!
//! - A configuration that ADD of a built-in plugin refuses for its text alone has an error of the linter.
//! - An error of the linter is refused by ADD of the plugin, or by the plan of a pod that selects the network.

#![allow(clippy::unwrap_used, reason = "test helpers may panic")]

use std::collections::BTreeSet;

use cni::config::Config;
use cni::environment::Environment;
use cni::invocation::Call;
use cni::name::{ContainerId, IfName};
use cni::version::Version;
use manifest::lint::{self, Knowledge};
use manifest::{Collection, Manifest};
use npwg::configuration::{Flavour, NodeConfiguration};
use npwg::definition::Disk;
use npwg::device::Devices;
use npwg::plan::{Request, Sandbox, plan};
use npwg::policy;
use npwg::rule::{Rule, Severity, Stage};
use plugin_config::{IPAM_PLUGINS, PLUGINS, Provided};
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Map, Value, json};

/// Configuration of the meta-plugin, which refuses invalid annotations.
const NODE: &str = r#"{"cniVersion":"1.1.0","name":"weft","type":"weft","invalidAnnotation":"fail",
    "delegates":[{"cniVersion":"1.0.0","name":"pods","type":"bridge"}]}"#;

/// Words of the options, and others.
const WORDS: &[&str] = &[
    "",
    "eth0",
    "a-name-of-20-letters",
    "all",
    "bridge",
    "private",
    "l2",
    "l3s",
    "nftables",
    "iptables",
    "firewalld",
    "open",
    "isolated",
    "auto",
    "on",
    "file",
    "cluster",
    "ipv4",
    "ipv6",
    "/run/x",
    "relative",
    "Blue_Net",
    "blue",
    "CNI-ADMIN",
    "a b",
    "0000:04:00.5",
    "/sys/devices/pci0000:00/x",
    "routers",
    "121",
];

/// Values that are at, beside and beyond the limits of some option.
fn scalar() -> impl Strategy<Value = Value> {
    let numbers = prop_oneof![
        select(vec![-1_i64, 0, 1, 5, 8, 31, 32, 67, 68, 128, 129, 255, 256, 1500, 4094, 4095, 4096, 4097]),
        select(vec![65_521_i64, 65_522, 65_535, 65_536, 4_294_967_295, 4_294_967_296, i64::MAX]),
    ];
    let words = select(WORDS.to_vec());
    let addresses = select(vec![
        "10.0.0.5",
        "10.0.0.0/24",
        "10.0.0.5/24",
        "10.0.0.0/31",
        "10.0.0.0/33",
        "10.0.0.20-10.0.0.10/24",
        "10.0.0.10-10.0.0.20/24",
        "224.0.0.0/4",
        "127.0.0.0/8",
        "0.0.0.0/0",
        "0.0.0.0",
        "fd00::/64",
        "fd00::5/64",
        "fd00::1",
        "02:00:00:00:00:01",
        "01:00:5e:00:00:01",
        "00:00:00:00:00:00",
        "02:00:00:00:00",
    ]);
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        numbers.prop_map(Value::from),
        words.prop_map(Value::from),
        addresses.prop_map(Value::from),
        Just(json!(1.5)),
    ]
}

/// Scalars, and lists and objects of them with keys that some option has.
fn value() -> impl Strategy<Value = Value> {
    let keys = select(vec![
        "id",
        "minID",
        "maxID",
        "subnet",
        "rangeStart",
        "rangeEnd",
        "range",
        "gateway",
        "exclude",
        "dst",
        "gw",
        "mtu",
        "scope",
        "address",
        "option",
        "value",
        "net.ipv4.ip_forward",
        "net/core/x",
        "kernel.x",
        "nameservers",
    ]);
    scalar().prop_recursive(3, 12, 3, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            object(keys.clone().prop_map(str::to_owned).boxed(), inner.boxed(), 3),
        ]
    })
}

fn object(
    key: BoxedStrategy<String>,
    value: BoxedStrategy<Value>,
    most: usize,
) -> impl Strategy<Value = Value> {
    proptest::collection::btree_map(key, value, 0..most)
        .prop_map(|map| Value::Object(map.into_iter().collect::<Map<String, Value>>()))
}

/// Options of a plugin with values.
fn options(known: Vec<&'static str>, plugin: &'static str) -> BoxedStrategy<Value> {
    let known: Vec<String> =
        known.into_iter().filter(|key| !["type", "runtimeConfig"].contains(key)).map(str::to_owned).collect();
    let filled = match known.is_empty() {
        true => Just(json!({})).boxed(),
        false => object(select(known).boxed(), value().boxed(), 4).boxed(),
    };
    filled
        .prop_map(move |mut options| {
            options["type"] = plugin.into();
            options
        })
        .boxed()
}

/// Configuration of one built-in plugin that may have an IPAM section.
fn configuration() -> impl Strategy<Value = Value> {
    let plugin = select(PLUGINS.to_vec())
        .prop_flat_map(|plugin| options(plugin_config::options(plugin).unwrap_or_default(), plugin));
    let ipam = select(IPAM_PLUGINS.to_vec())
        .prop_flat_map(|plugin| options(plugin_config::ipam_options(plugin).unwrap_or_default(), plugin));
    let section = prop_oneof![2 => Just(None), 4 => ipam.prop_map(Some), 1 => value().prop_map(Some)];
    (plugin, section).prop_map(|(mut config, section)| {
        if let Some(section) = section {
            config["ipam"] = section;
        }
        config["cniVersion"] = "1.0.0".into();
        config["name"] = "net-a".into();
        config
    })
}

/// Returns the rules of the linter's errors.
fn errors(findings: &[lint::Finding]) -> BTreeSet<Rule> {
    let errors = findings.iter().filter(|finding| finding.severity == Severity::Error);
    errors.map(|finding| finding.fault.rule).collect()
}

/// Whether ADD of the plugin, or of its IPAM plugin, refuses the configuration.
fn add_refuses(config: &Value) -> bool {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let config_of_call = Config::read(config.to_string().into_bytes(), Version::ALL).unwrap();
    let call = Call { config: config_of_call, environment: Environment::default() };
    let (plugin, ipam) = (text(&config["type"]), text(&config["ipam"]["type"]));
    let is_chained = plugin_config::CHAINED.contains(&plugin.as_str());
    let own = plugin_config::check(&plugin, &call, Provided::default());
    let of_ipam = plugin_config::check_ipam(&ipam, &call, Provided::default()).filter(|_| !is_chained);
    own.is_some_and(|result| result.is_err()) || of_ipam.is_some_and(|result| result.is_err())
}

/// Returns the rule with which the plan of a pod refuses these manifests.
fn planned(text: &str) -> Option<Rule> {
    let node = NodeConfiguration::read(NODE.as_bytes(), Flavour::Weft).unwrap();
    let mut all = Collection::default();
    all.add("test", Manifest::parse(text));
    let pod = &all.pods[0];
    let access = policy::access(pod, policy::policies(&all.definitions), None);
    let sandbox = Sandbox { container: ContainerId::new("c").unwrap(), ifname: IfName::new("eth0").unwrap() };
    let request = Request {
        pod,
        sandbox: &sandbox,
        node: &node,
        definitions: &all.definitions,
        disk: &Disk::default(),
        devices: &Devices::new(),
        access: &access,
        held: &[],
    };
    plan(&request).err().map(|refusal| refusal.fault().rule)
}

/// Returns a definition with this configuration, and a pod with this annotation.
fn manifests(config: &str, annotation: &str) -> String {
    let definition = json!({
        "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": { "name": "net-a" }, "spec": { "config": config },
    });
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "web", "annotations": { "k8s.v1.cni.cncf.io/networks": annotation } },
    });
    format!("{definition}\n---\n{pod}\n")
}

/// Element of an annotation, of known keys with fitting and other values.
fn element() -> impl Strategy<Value = Value> {
    let keys = select(vec![
        "namespace",
        "ips",
        "mac",
        "interface",
        "portMappings",
        "bandwidth",
        "default-route",
        "infiniband-guid",
        "ipam-claim-reference",
        "interfaceRequest",
        "gateway",
    ]);
    object(keys.prop_map(str::to_owned).boxed(), value().boxed(), 3).prop_map(|mut element| {
        element["name"] = "net-a".into();
        element
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn lint_and_add_refuse_the_same_configurations(config in configuration()) {
        let found = lint::configuration(&config.to_string(), &Knowledge::of_known_plugins());
        let errors = errors(&found);
        prop_assert_eq!(add_refuses(&config), !errors.is_empty(), "{} {:?}", config, found);
    }

    #[test]
    fn lint_and_plan_refuse_the_same_annotations(elements in proptest::collection::vec(element(), 1..3)) {
        let config = r#"{"cniVersion":"1.0.0","name":"net-a","type":"bridge","capabilities":{"ips":true,"mac":true,
            "portMappings":true,"bandwidth":true,"infinibandGUID":true}}"#;
        let text = manifests(config, &Value::from(elements).to_string());
        let found = errors(&lint::manifest(&Manifest::parse(&text), &Knowledge::of_known_plugins()));
        match planned(&text) {
            Some(rule) if rule.stage() == Stage::File => prop_assert!(found.contains(&rule), "{rule}: {found:?} {text}"),
            Some(_) => {}
            None => prop_assert_eq!(found, BTreeSet::new(), "{}", text),
        }
    }

    #[test]
    fn lint_errors_of_a_definition_refuse_its_pods(
        config in configuration(),
        key in select(vec!["plugins", "args", "capabilities", "cniVersion", "name", "type", "mtu"]),
        value in value(),
    ) {
        let mut config = config;
        config[key] = value;
        let text = manifests(&config.to_string(), r#"[{"name":"net-a","cni-args":{"k":"v"}}]"#);
        let found = errors(&lint::manifest(&Manifest::parse(&text), &Knowledge::of_known_plugins()));
        let of_plugin = [Rule::InvalidValue, Rule::MissingKey, Rule::MissingInterfacePlugin];
        let of_plan: Vec<Rule> = found.iter().copied().filter(|rule| !of_plugin.contains(rule)).collect();
        match planned(&text) {
            Some(rule) if rule.stage() == Stage::File => prop_assert!(!found.is_empty(), "{rule}: {text}"),
            Some(_) => {}
            None => prop_assert_eq!(of_plan, vec![], "{}", text),
        }
    }
}
