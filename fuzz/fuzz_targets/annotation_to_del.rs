//! Fuzz target from a pod annotation and a definition to DEL: for every verb, each built-in plugin must be able to read
//! what the planner accepts. Otherwise the pod could never be deleted.
//!
//! The input is the annotation, a NUL, and the definition's configuration. Each plugin's configuration is rendered as
//! the meta-plugin does it, once without and once with an ADD result. `tests/net/configuration_limits.rs` executes
//! generated plans with the real plugins.

#![no_main]

use std::collections::BTreeMap;

use cni::config::Config;
use cni::invocation::Attachment;
use cni::name::{ContainerId, IfName};
use cni::network::{Network, plugin_type};
use cni::object::Object;
use cni::result::Success;
use cni::runtime::chain::{Parameters, derive};
use cni::version::{Verb, Version};
use libfuzzer_sys::fuzz_target;
use npwg::configuration::{Flavour, NodeConfiguration};
use npwg::definition::Disk;
use npwg::device::Devices;
use npwg::metadata::{Definition, Pod, SpecConfig};
use npwg::plan::{Access, Delegate, Plan, Request, Sandbox, plan};
use npwg::selection::Annotation;

const NODE: &[u8] = br#"{"name":"w","type":"weft","delegates":[{"name":"base","type":"bridge"}]}"#;
/// ADD result.
const RESULT: &[u8] = br#"{"cniVersion":"1.0.0","ips":[{"address":"10.0.0.2/24"}]}"#;

fuzz_target!(|input: &str| {
    let (annotation, config) = input.split_once('\0').unwrap_or((input, r#"{"type":"bridge"}"#));
    let Some(plan) = planned(annotation, config) else { return };
    let sandbox = Sandbox { container: plan.container.clone(), ifname: IfName::new("eth0").expect("a name") };
    plan.expect_for(&sandbox, &plan.pod).expect("weft-cni accepts what the planner plans");
    for delegate in &plan.delegates {
        assert_attachable(delegate);
        // DEL reads the plan from the journal.
        let json = serde_json::to_vec(delegate).expect("JSON");
        let recorded: Delegate = serde_json::from_slice(&json).expect("a delegate");
        assert_readable(&recorded);
    }
});

/// Plans a pod with this annotation, which selects the definition `a` with this configuration.
fn planned(annotation: &str, config: &str) -> Option<Plan> {
    let config = SpecConfig::Text(config.to_owned());
    let definition = Definition { namespace: "ns".into(), name: "a".into(), config, ..Definition::default() };
    let mut pod = Pod { namespace: "ns".into(), name: "p".into(), ..Pod::default() };
    pod.annotations.insert(Annotation::Networks.key().into(), annotation.into());
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
    plan(&request).ok()
}

/// Asserts that the linter, which reads the definition as the plugins do, never panics, and that no plan contains the
/// meta-plugin, whose DEL could not end.
fn assert_attachable(delegate: &Delegate) {
    let definition = serde_json::json!({
        "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": { "name": "a", "namespace": "ns" }, "spec": { "config": delegate.config },
    });
    let _ = manifest::Manifest::parse(&definition.to_string());
    let network = Network::parse(delegate.config.as_bytes(), "plan").expect("a network");
    for name in network.needs().unwrap_or_default() {
        assert!(!npwg::definition::META_PLUGINS.contains(&name.as_str()), "{name}");
    }
}

/// Renders each plugin's configuration and reads it as a built-in plugin does.
fn assert_readable(delegate: &Delegate) {
    let network = Network::parse(delegate.config.as_bytes(), "journal").expect("a network");
    let parameters = Parameters {
        who: Attachment { container: ContainerId::new("c").expect("an id"), ifname: delegate.ifname.clone() },
        netns: String::new(),
        args: String::new(),
        capability_args: delegate.runtime_config.clone(),
        args_cni: Object::default(),
        path: String::new(),
    };
    let (_, result) = Success::read(RESULT, Version::V1_0_0).expect("a result");
    let result = result.to_value(network.version).expect("a result with an address exists in every version");
    let result = serde_json::value::to_raw_value(&result).expect("JSON");
    for plugin in network.plugins.iter().rev() {
        plugin_type(plugin).expect("a type");
        for previous in [None, Some(&*result)] {
            let derived = derive(&network, plugin, previous, Some(&parameters)).expect("a configuration");
            let bytes = derived.to_json().as_bytes().to_vec();
            for verb in [Verb::Add, Verb::Check, Verb::Del, Verb::Gc] {
                let read = match verb {
                    Verb::Del | Verb::Gc => Config::read_for_removal,
                    _ => Config::read,
                };
                let config = read(bytes.clone(), Version::ALL).expect("every plugin can read it");
                assert_eq!(config.name, network.name);
            }
        }
    }
}
