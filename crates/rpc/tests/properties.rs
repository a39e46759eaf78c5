//! Property tests of parsers and plans: parsing never panics and never stops early without an error, a plan is the same
//! each time, and its interfaces have different names.

#![allow(clippy::unwrap_used, reason = "test helpers may panic")]

use std::collections::{BTreeMap, BTreeSet};

use cni::args::Args;
use cni::name::{ContainerId, IfName};
use cni::network::Network;
use cni::result::Success;
use cni::version::Version;
use manifest::Manifest;
use manifest::lint::{self, Knowledge};
use manifest::position;
use npwg::configuration::{Flavour, NodeConfiguration};
use npwg::definition::{Disk, resolve};
use npwg::device::{Device, DeviceInfo, Devices};
use npwg::metadata::{Definition, NetworkReference, Pod, RESOURCE_NAME, SpecConfig};
use npwg::outcome::Outcome;
use npwg::plan::{Access, DefaultRouteAction, Plan, Request, Sandbox, plan, wanted};
use npwg::refusal::{KeyPath, Refusal};
use npwg::selection::{Annotation, Reading};
use npwg::status::{Attachment, entries, render};
use npwg::verify::verify;
use proptest::prelude::*;
use serde_json::Value;

/// Returns JSON of the shapes that the parsers expect, and others.
fn json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-9999i32..9999).prop_map(|eighths| Value::from(f64::from(eighths) / 8.0)),
        text().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 30, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map(key(), inner, 0..5)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z0-9/@.-]{0,20}",
        "(10\\.0\\.0\\.[0-9]{1,3}|fd00::[0-9a-f]{1,4})(/[0-9]{1,3})?",
        "([0-9a-f]{2}:){5,7}[0-9a-f]{2}",
        Just("{\"cniVersion\":\"1.0.0\",\"type\":\"x\"}".to_owned()),
        Just("{\"name\":\"n\",\"plugins\":[{\"type\":\"x\",\"args\":{}}]}".to_owned()),
        any::<String>(),
    ]
}

fn key() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => "(name|namespace|ips|mac|interface|cni-args|portMappings|bandwidth|default-route|infiniband-guid|ipam-claim-reference|deviceID)",
        4 => "(cniVersion|type|plugins|capabilities|args|cni|hostPort|containerPort|protocol|ingressRate|ingressBurst|delegates|clusterNetwork|runtimeConfig)",
        2 => "(kind|apiVersion|metadata|spec|config|annotations|items|template)",
        2 => "(interfaces|routes|dns|address|gateway|sandbox|dst|gw|pci|version)",
        1 => any::<String>(),
    ]
}

/// Returns an element of a selection that is often valid.
fn element() -> impl Strategy<Value = Value> {
    let names = prop_oneof![Just("a"), Just("b"), Just("c")];
    let interface = proptest::option::weighted(0.4, "(net|x)[0-9]{1,2}|eth0");
    let ips = proptest::option::weighted(0.3, proptest::collection::vec("10\\.0\\.0\\.[1-9]", 1..3));
    let route = prop_oneof![Just(vec![]), Just(vec!["10.0.0.1"]), Just(vec!["fd00::1", "fd00::2"])];
    let route = proptest::option::weighted(0.15, route);
    let other = proptest::option::weighted(0.3, json());
    (names, interface, ips, route, other).prop_map(|(name, interface, ips, route, other)| {
        let mut map = serde_json::Map::new();
        map.insert("name".into(), name.into());
        interface.into_iter().for_each(|name| drop(map.insert("interface".into(), name.into())));
        ips.into_iter().for_each(|ips| drop(map.insert("ips".into(), ips.into())));
        route.into_iter().for_each(|route| drop(map.insert("default-route".into(), route.into())));
        if let Some(other) = other.filter(Value::is_object) {
            map.insert("cni-args".into(), other);
        }
        Value::Object(map)
    })
}

/// Input of a plan.
#[derive(Clone, Debug)]
struct World {
    pod: Pod,
    definitions: BTreeMap<NetworkReference, Definition>,
    devices: Devices,
    keys: String,
}

fn world() -> impl Strategy<Value = World> {
    let selection = prop_oneof![
        12 => proptest::collection::vec(element(), 0..8).prop_map(|list| Value::from(list).to_string()),
        6 => "[abc](@net[0-9]{2})?(,[bc](@[a-z][0-9]{2})?){0,8}",
        1 => json().prop_map(|value| value.to_string()),
        1 => any::<String>(),
    ];
    let default = prop_oneof![
        6 => Just("home/a".to_owned()),
        3 => element().prop_map(|element| format!("[{element}]")),
        1 => any::<String>(),
    ];
    let default = proptest::option::weighted(0.3, default);
    let capable =
        r#"{"cniVersion":"1.0.0","name":"n","type":"x","capabilities":{"ips":true,"deviceID":true}}"#;
    let plain = r#"{"cniVersion":"0.4.0","plugins":[{"type":"x"},{"type":"y","args":{"cni":{"ips":[]}}}]}"#;
    let config = prop_oneof![
        20 => Just(capable.to_owned()),
        12 => Just(plain.to_owned()),
        1 => json().prop_map(|value| value.to_string()),
        1 => any::<String>(),
    ];
    let policy = prop_oneof![Just("capability"), Just("result"), Just("both"), Just("permissive")];
    let resource = any::<bool>();
    (selection, default, proptest::collection::vec(config, 3), policy, resource).prop_map(
        |(selection, default, configs, policy, resource)| {
            let mut pod = Pod { namespace: "home".into(), name: "p".into(), ..Pod::default() };
            pod.annotations.insert(Annotation::Networks.key().into(), selection);
            default
                .into_iter()
                .for_each(|text| drop(pod.annotations.insert(Annotation::DefaultNetwork.key().into(), text)));
            let mut definitions = BTreeMap::new();
            for (name, config) in ["a", "b", "c"].iter().zip(configs) {
                let mut definition = Definition {
                    namespace: "home".into(),
                    name: (*name).into(),
                    config: SpecConfig::Text(config),
                    ..Definition::default()
                };
                if resource && *name == "a" {
                    definition.annotations.insert(RESOURCE_NAME.into(), "r/d".into());
                }
                definitions.insert(definition.reference(), definition);
            }
            let device = |id: &str| Device { id: id.into(), container: String::new() };
            let devices = Devices::from([("r/d".to_owned(), vec![device("1"), device("2"), device("3")])]);
            World { pod, definitions, devices, keys: format!(r#""ipRequestPolicy":"{policy}""#) }
        },
    )
}

impl World {
    fn node(&self) -> NodeConfiguration {
        let base = r#"{"cniVersion":"1.0.0","name":"base","type":"bridge"}"#;
        let text = format!(r#"{{"name":"w","type":"weft","delegates":[{base}],{}}}"#, self.keys);
        NodeConfiguration::read(text.as_bytes(), Flavour::Weft).unwrap()
    }

    fn plan(&self) -> Result<Plan, Refusal> {
        plan(&Request {
            pod: &self.pod,
            sandbox: &Sandbox {
                container: ContainerId::new("c").unwrap(),
                ifname: IfName::new("eth0").unwrap(),
            },
            node: &self.node(),
            definitions: &self.definitions,
            disk: &Disk::default(),
            devices: &self.devices,
            access: &Access::open(),
            held: &[],
        })
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn plan_is_deterministic_and_survives_json(world in world()) {
        let first = world.plan();
        prop_assert_eq!(&first, &world.plan());
        if let Ok(plan) = first {
            let json = serde_json::to_vec(&plan).unwrap();
            prop_assert_eq!(Plan::read(&json).unwrap(), plan);
        }
    }

    #[test]
    fn plan_interface_names_differ(world in world()) {
        let Ok(plan) = world.plan() else { return Ok(()) };
        let names: BTreeSet<&str> = plan.delegates.iter().map(|delegate| delegate.ifname.as_str()).collect();
        prop_assert_eq!(names.len(), plan.delegates.len());
        prop_assert!(!names.contains("lo"));
    }

    #[test]
    fn plan_configurations_can_be_executed(world in world()) {
        let Ok(plan) = world.plan() else { return Ok(()) };
        for (index, delegate) in plan.delegates.iter().enumerate() {
            let network = Network::parse(delegate.config.as_bytes(), "config").unwrap();
            prop_assert_eq!(&network.name, &delegate.config_name);
            let args: Vec<String> = delegate.args.iter().map(|(key, value)| format!("{key}={value}")).collect();
            prop_assert_eq!(Args::parse(&args.join(";")).unwrap().pairs().count(), delegate.args.len());
            if let DefaultRouteAction::Yield { to, .. } = delegate.default_route {
                prop_assert!(to < plan.delegates.len() && to != index);
            }
        }
        let devices: Vec<String> =
            plan.delegates.iter().filter_map(|delegate| delegate.runtime_config.text("deviceID").unwrap()).collect();
        let different: BTreeSet<&String> = devices.iter().collect();
        prop_assert_eq!(different.len(), devices.len());
    }

    #[test]
    fn plan_uses_only_wanted_definitions(world in world()) {
        struct Asked<'a>(&'a World, std::cell::RefCell<BTreeSet<NetworkReference>>);
        impl npwg::metadata::Definitions for Asked<'_> {
            fn find(&self, network: &NetworkReference) -> Option<&Definition> {
                self.1.borrow_mut().insert(network.clone());
                self.0.definitions.get(network)
            }
        }
        let asked = Asked(&world, Default::default());
        let node = world.node();
        let sandbox = Sandbox { container: ContainerId::new("c").unwrap(), ifname: IfName::new("eth0").unwrap() };
        let _ = plan(&Request {
            pod: &world.pod, sandbox: &sandbox, node: &node, definitions: &asked, disk: &Disk::default(),
            devices: &world.devices, access: &Access::open(), held: &[],
        });
        let announced = wanted(&world.pod, &node);
        let asked = asked.1.into_inner();
        prop_assert!(asked.is_subset(&announced), "{:?} {:?}", asked, announced);
    }

    #[test]
    fn network_status_has_one_default_for_any_result(world in world(), results in proptest::collection::vec(json(), 9)) {
        let Ok(plan) = world.plan() else { return Ok(()) };
        let outcomes: Vec<Outcome> = results
            .iter()
            .map(|value| match Success::from_value(value, Version::V1_0_0) {
                Ok((version, success)) => Outcome { version: Some(version), result: Some(success) },
                Err(_) => Outcome::default(),
            })
            .collect();
        let attachments: Vec<Attachment<'_>> = plan
            .delegates
            .iter()
            .zip(&outcomes)
            .map(|(delegate, outcome)| Attachment { delegate, outcome, device_info: None, added_by: String::new() })
            .collect();
        for attachment in &attachments {
            if let Some(result) = &attachment.outcome.result {
                let _ = verify(attachment.delegate, result);
            }
        }
        let entries = entries(&plan, &attachments);
        prop_assert_eq!(entries.iter().filter(|entry| entry.default).count(), 1);
        prop_assert!(entries.iter().all(|entry| entry.mac.is_empty() || !entry.interface.is_empty()));
        prop_assert!(serde_json::from_str::<Value>(&render(&entries).unwrap()).is_ok());
    }
}

proptest! {
    #[test]
    fn selection_parser_never_panics(text in prop_oneof![any::<String>(), json().prop_map(|v| v.to_string()), text()]) {
        for annotation in [Annotation::Networks, Annotation::DefaultNetwork] {
            let reading = Reading::of(annotation, &text, "home");
            let valid = reading.refusals.is_empty();
            prop_assert_eq!(valid, reading.settle().is_ok());
        }
    }

    #[test]
    fn selection_faults_have_a_path_in_the_value(value in json()) {
        let text = value.to_string();
        for refusal in Reading::of(Annotation::Networks, &text, "home").refusals {
            prop_assert!(position::offset(&text, &refusal.fault().path) <= text.len());
        }
    }

    #[test]
    fn definition_is_resolved_or_refused(text in prop_oneof![any::<String>(), json().prop_map(|v| v.to_string())]) {
        let definition = Definition { namespace: "ns".into(), name: "n".into(), config: SpecConfig::Text(text), ..Definition::default() };
        if let Ok(resolved) = resolve(&definition, &Disk::default(), "/etc/cni/net.d") {
            prop_assert!(!resolved.network.plugins.is_empty());
        }
    }

    #[test]
    fn configuration_is_read_or_refused(value in json()) {
        let text = value.to_string();
        let weft = NodeConfiguration::read(text.as_bytes(), Flavour::Weft);
        let multus = NodeConfiguration::read(text.as_bytes(), Flavour::Multus);
        prop_assert!(weft.is_err() || multus.is_ok(), "every configuration that weft accepts, multus accepts");
    }

    #[test]
    fn device_info_is_read_or_refused(value in json()) {
        if let Ok(info) = DeviceInfo::read(value.to_string().as_bytes()) {
            let again = serde_json::to_vec(&info).unwrap();
            prop_assert_eq!(DeviceInfo::read(&again).unwrap(), info);
        }
    }

    #[test]
    fn manifest_parser_never_panics(text in prop_oneof![
        any::<String>(),
        json().prop_map(|v| v.to_string()),
        "[-a-z:#&*!|>'\"{}\\[\\], \n?%@]{0,80}",
    ]) {
        let manifest = Manifest::parse(&text);
        for problem in &manifest.problems {
            prop_assert!(problem.at <= text.len());
        }
        let findings = lint::manifest(&manifest, &Knowledge::default());
        prop_assert!(findings.len() >= manifest.problems.len().min(1));
        for finding in &findings {
            if let Some(edit) = &finding.fix {
                prop_assert!(!lint::apply(&text, std::slice::from_ref(edit)).is_empty());
            }
        }
    }

    #[test]
    fn lint_fix_of_a_config_map_keeps_its_meaning(value in json(), quoted in any::<bool>()) {
        let value = serde_json::json!({ "type": "x", "more": value });
        let json = if quoted { serde_json::to_string_pretty(&value).unwrap() } else { value.to_string() };
        let text = format!("apiVersion: k8s.cni.cncf.io/v1\nkind: NetworkAttachmentDefinition\nmetadata: {{name: a}}\nspec:\n  config: {json}\n");
        let manifest = Manifest::parse(&text);
        prop_assume!(manifest.problems.is_empty() && matches!(manifest.definitions[0].value.config, SpecConfig::Structured(_)));
        let fix = lint::manifest(&manifest, &Knowledge::default()).into_iter().find_map(|finding| finding.fix).unwrap();
        let fixed = Manifest::parse(&lint::apply(&text, &[fix]));
        let SpecConfig::Text(config) = &fixed.definitions[0].value.config else {
            return Err(TestCaseError::fail("still a map"));
        };
        let SpecConfig::Structured(before) = &manifest.definitions[0].value.config else {
            return Err(TestCaseError::fail("not a map"));
        };
        let meant: Value = serde_json::from_str(config).unwrap();
        prop_assert_eq!(meant, serde_json::from_str::<Value>(before).unwrap());
    }

    #[test]
    fn lint_of_a_configuration_never_panics(text in prop_oneof![any::<String>(), json().prop_map(|v| v.to_string())]) {
        for finding in lint::configuration(&text, &Knowledge::default()) {
            prop_assert!(finding.position.line >= 1 && finding.position.column >= 1);
        }
    }

    #[test]
    fn lint_positions_are_inside_the_text(json in any::<String>(), scalar in any::<String>(), at in 0usize..100) {
        let path = KeyPath::root().index(0).key("a").index(1);
        prop_assert!(position::offset(&json, &path) <= json.len());
        let found = position::in_scalar(&scalar, &json, at);
        prop_assert!(found <= scalar.len() && scalar.is_char_boundary(found));
    }
}
