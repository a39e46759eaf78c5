//! Fuzz target for a definition's configuration: it must be either resolved or refused, and the planned configuration
//! must be valid.

#![no_main]

use std::collections::BTreeMap;

use cni::name::{ContainerId, IfName};
use cni::network::Network;
use libfuzzer_sys::fuzz_target;
use manifest::lint;
use npwg::configuration::{Flavour, NodeConfiguration};
use npwg::definition::Disk;
use npwg::device::Devices;
use npwg::metadata::{Definition, Pod, SpecConfig};
use npwg::plan::{Access, Plan, Request, Sandbox, plan};
use npwg::selection::Annotation;

const NODE: &[u8] = br#"{"name":"w","type":"weft","delegates":[{"name":"base","type":"bridge"}]}"#;
const SELECTION: &str =
    r#"[{"name":"a","ips":["10.0.0.1"],"mac":"02:00:00:00:00:01","cni-args":{"x":1}},{"name":"a"}]"#;

fuzz_target!(|text: &str| {
    lint::configuration(text, &lint::Knowledge::default());
    let config = SpecConfig::Text(text.to_owned());
    let definition = Definition { namespace: "ns".into(), name: "a".into(), config, ..Definition::default() };
    let mut pod = Pod { namespace: "ns".into(), name: "p".into(), ..Pod::default() };
    pod.annotations.insert(Annotation::Networks.key().into(), SELECTION.into());
    let sandbox = Sandbox {
        container: ContainerId::new("c").expect("an id"),
        ifname: IfName::new("eth0").expect("a name"),
    };
    let request = Request {
        pod: &pod,
        sandbox: &sandbox,
        node: &NodeConfiguration::read(NODE, Flavour::Weft).expect("a configuration"),
        definitions: &BTreeMap::from([(definition.reference(), definition)]),
        disk: &Disk::default(),
        devices: &Devices::new(),
        access: &Access::open(),
        held: &[],
    };
    let Ok(plan) = plan(&request) else { return };
    for delegate in &plan.delegates {
        let network = Network::parse(delegate.config.as_bytes(), "plan").expect("a network");
        assert_eq!(network.name, delegate.config_name);
    }
    let json = serde_json::to_vec(&plan).expect("JSON");
    assert_eq!(Plan::read(&json).expect("a plan"), plan);
});
