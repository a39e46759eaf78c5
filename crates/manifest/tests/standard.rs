//! Test of the public interface with the examples of the multi-network specification, from `testdata/standard`.

#![allow(clippy::unwrap_used, clippy::panic, reason = "test helpers may panic")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use cni::name::{ContainerId, IfName};
use cni::network::{Network, plugin_type};
use cni::result::Success;
use cni::version::Version;
use manifest::Manifest;
use manifest::lint;
use npwg::configuration::{Flavour, NodeConfiguration};
use npwg::definition::{Disk, Form, OnDisk, Origin, resolve};
use npwg::device::{DeviceInfo, Devices};
use npwg::metadata::{Definition, NetworkReference, Pod, SpecConfig};
use npwg::outcome::Outcome;
use npwg::plan::{Access, DefaultRouteAction, Delegate, Families, Plan, Request, Sandbox, plan};
use npwg::rule::Rule;
use npwg::selection::Annotation;
use npwg::status::{Attachment, entries};
use serde_json::{Value, json};

fn example(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/standard").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn json_example(name: &str) -> Value {
    serde_json::from_str(&example(name)).unwrap()
}

fn definition(name: &str) -> Definition {
    let manifest = Manifest::parse(&example(name));
    assert!(manifest.problems.is_empty(), "{:?}", manifest.problems);
    manifest.definitions[0].value.clone()
}

fn types(network: &Network) -> Vec<String> {
    network.plugins.iter().map(|plugin| plugin_type(plugin).unwrap().to_string()).collect()
}

/// A plugin that declares every capability, followed by one that declares none.
const EVERYTHING: &str = r#"{"cniVersion":"1.0.0","name":"NAME","plugins":[{"type":"maker","capabilities":{"ips":true,"mac":true,"portMappings":true,"bandwidth":true,"infinibandGUID":true}},{"type":"tuning"}]}"#;

/// Returns the plan of `my-namespace/my-pod` with these annotations; every network of the examples is defined.
fn planned(annotations: &[(Annotation, &str)], definitions: &[&str]) -> Plan {
    let annotations = annotations.iter().map(|(key, text)| (key.key().to_owned(), (*text).to_owned()));
    let pod = Pod {
        namespace: "my-namespace".into(),
        name: "my-pod".into(),
        annotations: annotations.collect(),
        ..Pod::default()
    };
    let mut known = BTreeMap::new();
    for reference in definitions {
        let (namespace, name) = reference.split_once('/').unwrap();
        let config = SpecConfig::Text(EVERYTHING.replace("NAME", name));
        let definition =
            Definition { namespace: namespace.into(), name: name.into(), config, ..Definition::default() };
        known.insert(NetworkReference::new(namespace, name), definition);
    }
    let base = r#"{"cniVersion":"1.0.0","name":"cluster-wide-default","type":"bridge"}"#;
    let node = format!(
        r#"{{"cniVersion":"1.0.0","name":"w","type":"weft","statusAddresses":"cidr","delegates":[{base}]}}"#
    );
    plan(&Request {
        pod: &pod,
        sandbox: &Sandbox { container: ContainerId::new("c").unwrap(), ifname: IfName::new("eth0").unwrap() },
        node: &NodeConfiguration::read(node.as_bytes(), Flavour::Weft).unwrap(),
        definitions: &known,
        disk: &Disk::default(),
        devices: &Devices::new(),
        access: &Access::open(),
        held: &[],
    })
    .unwrap()
}

/// Returns the delegate of `net-b` in a pod with this selection.
fn net_b(selection: &str) -> Delegate {
    let plan = planned(&[(Annotation::Networks, selection)], &["my-namespace/net-a", "my-namespace/net-b"]);
    plan.delegates.into_iter().find(|delegate| delegate.network == "my-namespace/net-b").unwrap()
}

/// Returns `args` of each plugin.
fn args(delegate: &Delegate) -> Vec<Value> {
    let config: Value = serde_json::from_str(&delegate.config).unwrap();
    config["plugins"].as_array().unwrap().iter().map(|plugin| plugin["args"].clone()).collect()
}

fn runtime_config(delegate: &Delegate) -> Value {
    serde_json::to_value(&delegate.runtime_config).unwrap()
}

// Requirements: NPWG1-3.2-5
#[test]
fn example_3_2_definitions_keep_their_bytes() {
    for (name, expected) in [
        ("3.2.1.yaml", &["bridge"][..]),
        ("3.2.2.yaml", &["bridge", "port-forwarding", "tuning"]),
        ("3.2.3.yaml", &["awesome-plugin"]),
    ] {
        let definition = definition(name);
        let resolved = resolve(&definition, &Disk::default(), "/etc/cni/net.d").unwrap();
        assert_eq!(types(&resolved.network), expected, "{name}");
        assert_eq!(resolved.network.name.as_str(), definition.name, "{name}");
        assert_eq!(resolved.network.version, Version::V0_3_0, "{name}");
    }
}

// Requirements: NPWG1-3.1-2
#[test]
fn example_definitions_without_quotes_are_refused_and_fixed() {
    for name in ["3.2.1", "3.2.2", "3.2.3", "3.4.2.1"] {
        let text = example(&format!("{name}-as-map.yaml"));
        let manifest = Manifest::parse(&text);
        assert!(manifest.problems.is_empty(), "{name}: {:?}", manifest.problems);
        assert!(matches!(manifest.definitions[0].value.config, SpecConfig::Structured(_)), "{name}");
        assert!(
            resolve(&manifest.definitions[0].value, &Disk::default(), "/etc/cni/net.d").is_err(),
            "{name}"
        );

        let findings = lint::manifest(&manifest, &lint::Knowledge::default());
        let finding = &findings[0];
        assert_eq!((finding.fault.rule, finding.position.line), (Rule::ConfigNotAString, 6), "{name}");
        let fixed = lint::apply(&text, &[finding.fix.clone().unwrap()]);
        assert_eq!(fixed.trim_end(), finding.corrected.trim_end(), "{name}");
        let meant = |text: &str| -> Value {
            let SpecConfig::Text(json) = Manifest::parse(text).definitions[0].value.config.clone() else {
                panic!("{name}: {text}")
            };
            serde_json::from_str(&json).unwrap()
        };
        assert_eq!(meant(&fixed), meant(&example(&format!("{name}.yaml"))), "{name}");
    }
}

// Requirements: NPWG1-3.2-2, NPWG1-3.4.1-rule2
#[test]
fn example_3_2_4_definition_resolves_on_disk_by_name() {
    let network = Network::parse(
        br#"{"cniVersion":"1.0.0","name":"a-bridge-network","plugins":[{"type":"bridge"}]}"#,
        "x",
    )
    .unwrap();
    let path = "/etc/cni/net.d/10.conflist".to_owned();
    let disk = Disk {
        networks: vec![OnDisk { path: path.clone(), form: Form::List, network }],
        unreadable: Vec::new(),
    };
    let resolved = resolve(&definition("3.2.4.yaml"), &disk, "/etc/cni/net.d").unwrap();
    assert_eq!(resolved.origin, Origin::List(path));
    assert!(resolve(&definition("3.2.4.yaml"), &Disk::default(), "/etc/cni/net.d").is_err());
}

// Requirements: NPWG1-3.4.2-1
#[test]
fn example_3_4_2_1_plugin_receives_the_name() {
    let resolved = resolve(&definition("3.4.2.1.yaml"), &Disk::default(), "/etc/cni/net.d").unwrap();
    let plugin: Value = serde_json::from_str(&resolved.network.plugins[0].to_json()).unwrap();
    assert_eq!(plugin, json_example("3.4.2.1-sent.json"));
}

// Requirements: NPWG1-4.1-2, NPWG1-4.1.1-1
#[test]
fn example_4_1_pods_get_the_same_networks() {
    for name in ["4.1.1.yaml", "4.1.2.yaml"] {
        let manifest = Manifest::parse(&example(name));
        let pod = manifest.pod("my-namespace", "my-pod").unwrap();
        let text = &pod.annotations[Annotation::Networks.key()];
        let plan = planned(
            &[(Annotation::Networks, text)],
            &["my-namespace/net-a", "my-namespace/net-b", "other-ns/net-c"],
        );
        let networks: Vec<&str> = plan.selected().map(|delegate| delegate.network.as_str()).collect();
        assert_eq!(networks, ["my-namespace/net-a", "my-namespace/net-b", "other-ns/net-c"], "{name}");
        if name == "4.1.2.yaml" {
            assert_eq!(
                args(&plan.delegates[2])[0],
                json!({"cni": {"ips": ["1.2.3.4"], "mac": "aa:bb:cc:dd:ee:ff"}})
            );
        }
    }
}

// Requirements: NPWG1-4.1.2.1.3.2-1
#[test]
fn example_4_1_2_1_3_1_ips_are_in_args_of_each_plugin() {
    let delegate = net_b(&example("4.1.2.1.3.1-v1.0.json"));
    let snippet = json!({"cni": {"ips": ["10.2.2.42", "2001:db8::5"]}});
    assert_eq!(args(&delegate), [snippet.clone(), snippet]);
}

// Requirements: V11-4.1.2.1.3.2-1
#[test]
fn example_v1_1_ips_are_in_runtime_config() {
    let delegate = net_b(&example("4.1.2.1.3.1-v1.1.json"));
    assert_eq!(runtime_config(&delegate), json!({"ips": ["10.2.2.42/24", "2001:db8::5/64"]}));
}

// Requirements: NPWG1-4.1.2.1.4.2-1, V11-4.1.2.1.4.2-1
#[test]
fn example_4_1_2_1_4_1_mac_is_in_args_and_runtime_config() {
    let delegate = net_b(&example("4.1.2.1.4.1.json"));
    let snippet = json!({"cni": {"mac": "02:23:45:67:89:01"}});
    assert_eq!(args(&delegate), [snippet.clone(), snippet]);
    assert_eq!(runtime_config(&delegate), json!({"mac": "02:23:45:67:89:01"}));
}

// Requirements: V11-4.1.2.1.6-1
#[test]
fn example_4_1_2_1_6_1_cni_args_are_passed() {
    let snippet = json!({"cni": {"spoofchk": "on"}});
    assert_eq!(args(&net_b(&example("4.1.2.1.6.1.json"))), [snippet.clone(), snippet]);
}

// Requirements: V11-4.1.2.1.7.2-1
#[test]
fn example_4_1_2_1_7_1_port_mapping() {
    let delegate = net_b(&example("4.1.2.1.7.1.json"));
    let expected = json!({"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]});
    assert_eq!(runtime_config(&delegate), expected);
}

// Requirements: V11-4.1.2.1.8.2-1
#[test]
fn example_4_1_2_1_8_1_bandwidth() {
    let delegate = net_b(&example("4.1.2.1.8.1.json"));
    let expected = json!({"ingressRate": 2048, "ingressBurst": 300, "egressRate": 8000, "egressBurst": 200});
    assert_eq!(runtime_config(&delegate), json!({"bandwidth": expected}));
}

// Requirements: V11-4.1.2.1.9-2
#[test]
fn example_4_1_2_1_9_1_default_route_moves() {
    let selection = example("4.1.2.1.9.1.json");
    let plan = planned(&[(Annotation::Networks, &selection)], &["my-namespace/net-a", "my-namespace/net-b"]);
    let actions: Vec<&DefaultRouteAction> =
        plan.delegates.iter().map(|delegate| &delegate.default_route).collect();
    let gone = DefaultRouteAction::Yield { to: 2, families: Families::V4 };
    assert_eq!(actions[..2], [&gone, &gone]);
    let DefaultRouteAction::Via { gateways } = actions[2] else { panic!("{actions:?}") };
    assert_eq!(gateways[0].address.to_string(), "10.0.0.1");
}

// Requirements: V12-4.1.2.1.10.2-1
#[test]
fn example_4_1_2_1_10_1_guid() {
    let delegate = net_b(&example("4.1.2.1.10.1.json"));
    assert_eq!(runtime_config(&delegate), json!({"infinibandGUID": "24:8a:07:03:00:8d:ae:2f"}));
}

// Requirements: V13-4.1.2.1.11-1
#[test]
fn example_4_1_2_1_11_1_ipam_claim() {
    let delegate = net_b(&example("4.1.2.1.11.1.json"));
    assert_eq!(args(&delegate)[0], json!({"cni": {"ipam-claim-reference": "vm123.tenantblue"}}));
}

// Requirements: NPWG1-4.2-1, NPWG1-4.2.1-2
#[test]
fn example_4_2_2_attachments_differ_by_interface() {
    let plan = planned(&[(Annotation::Networks, example("4.2.2.txt").trim())], &["my-namespace/net-a"]);
    let both: Vec<(&str, &str)> =
        plan.selected().map(|delegate| (delegate.network.as_str(), delegate.ifname.as_str())).collect();
    assert_eq!(both, [("my-namespace/net-a", "net1"), ("my-namespace/net-a", "net2")]);
}

/// Returns a result with the values of a status entry, preceded by a host interface.
fn answer(entry: &Value) -> Success {
    let mut interfaces = vec![json!({"name": "veth", "mac": "02:00:00:00:00:99"})];
    let mac = entry["mac"].as_str().unwrap_or_default();
    interfaces.push(json!({"name": entry["interface"], "mac": mac, "sandbox": "/var/run/netns/x"}));
    let mut ips = vec![json!({"interface": 0, "address": "169.254.0.1/16"})];
    for address in entry["ips"].as_array().into_iter().flatten() {
        ips.push(json!({"interface": 1, "address": address}));
    }
    let result = json!({"cniVersion": "1.0.0", "interfaces": interfaces, "ips": ips, "dns": entry["dns"]});
    Success::from_value(&result, Version::V1_0_0).unwrap().1
}

/// Returns the status of the plan if every network returns the values of the example.
fn status(plan: &Plan, example: &[Value]) -> Value {
    let outcomes: Vec<Outcome> = example
        .iter()
        .map(|entry| Outcome { version: Some(Version::V1_0_0), result: Some(answer(entry)) })
        .collect();
    let attachments = plan.delegates.iter().zip(&outcomes).zip(example);
    let attachments: Vec<Attachment<'_>> = attachments
        .map(|((delegate, outcome), entry)| Attachment {
            delegate,
            outcome,
            device_info: serde_json::from_value::<DeviceInfo>(entry["device-info"].clone()).ok(),
            added_by: String::new(),
        })
        .collect();
    serde_json::to_value(entries(plan, &attachments)).unwrap()
}

/// Returns the example without its mistakes: `default` in every entry, no undefined key.
fn corrected(mut example: Value) -> Value {
    for (index, entry) in example.as_array_mut().unwrap().iter_mut().enumerate() {
        let map = entry.as_object_mut().unwrap();
        map.shift_remove("infiniband-guid");
        if let Some(device) = map.shift_remove("device") {
            map.insert("device-info".into(), device);
        }
        if let Some(vdpa) = map.get_mut("device-info").and_then(|info| info.get_mut("vdpa")) {
            vdpa.as_object_mut().unwrap().shift_remove("device");
        }
        let mac = map.get("mac").and_then(Value::as_str).map(|mac| mac.trim().to_owned());
        mac.into_iter().for_each(|mac| map["mac"] = json!(mac));
        map.shift_remove("default");
        map.insert("default".into(), json!(index == 0));
    }
    example
}

// Requirements: NPWG1-5-2
#[test]
fn example_v1_0_network_status_has_the_same_keys() {
    let mut example = json_example("5.4-v1.0.json");
    // v1.2 says that names should have their namespace; the default network has no definition.
    example[1]["name"] = json!("my-namespace/some-network");
    let plan = planned(
        &[(Annotation::Networks, "some-network@eth1,other-ns/an-ip-over-infiniband-network@ib0")],
        &["my-namespace/some-network", "other-ns/an-ip-over-infiniband-network"],
    );
    let written = status(&plan, example.as_array().unwrap());
    assert_eq!(written.to_string(), example.to_string(), "the same keys in the same order");
}

// Requirements: V12-5.4-1, V11-5.3.6.4-1
#[test]
fn example_v1_3_network_status_with_one_and_several_gateways() {
    for name in ["5.4-v1.3-single-gateway.json", "5.4-v1.3-multiple-gateways.json"] {
        let example = corrected(json_example(name));
        let default = json!([{
            "name": "cluster-wide-default", "namespace": "namespace-a", "interface": "eth5",
            "default-route": example[0]["default-route"]
        }]);
        let plan = planned(
            &[
                (Annotation::DefaultNetwork, &default.to_string()),
                (
                    Annotation::Networks,
                    "namespace-b/some-network@eth1,namespace-a/an-ip-over-infiniband-network@ib0",
                ),
            ],
            &[
                "namespace-a/cluster-wide-default",
                "namespace-b/some-network",
                "namespace-a/an-ip-over-infiniband-network",
            ],
        );
        let written = status(&plan, example.as_array().unwrap());
        assert_eq!(written.to_string(), example.to_string(), "{name}");
    }
}

// Requirements: V12-5.3.7-1
#[test]
fn example_v1_3_device_information() {
    let mut example = corrected(json_example("5.4-v1.3-device-information.json"));
    // The name of a Kubernetes object cannot have an underscore, and one device of the example is incomplete.
    let text = example.to_string().replace("sriov-network_", "sriov-network-").replace("_net1", "-net1");
    example = serde_json::from_str(&text).unwrap();
    let default =
        json!([{"name": "cluster-wide-default", "namespace": "namespace-a", "default-route": ["192.0.2.1"]}]);
    let selection = "namespace-b/sriov-network-a,namespace-b/sriov-network-b,namespace-c/userspace-net1,namespace-d/vdpa-net1@virtio0";
    let plan = planned(
        &[(Annotation::DefaultNetwork, &default.to_string()), (Annotation::Networks, selection)],
        &[
            "namespace-a/cluster-wide-default",
            "namespace-b/sriov-network-a",
            "namespace-b/sriov-network-b",
            "namespace-c/userspace-net1",
            "namespace-d/vdpa-net1",
        ],
    );
    let written = status(&plan, example.as_array().unwrap());
    assert_eq!(written, example);
}
