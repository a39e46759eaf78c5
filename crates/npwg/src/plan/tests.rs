//! Tests of plans.

mod access;
mod devices;
mod network;
mod received;
mod request;
mod route;

use serde_json::{Value, json};

use super::*;
use crate::configuration::Flavour;
use crate::fixture::{CAPABLE, PLAIN, World};
use crate::refusal::Reason;

/// Returns networks and interfaces, in order.
fn shape(plan: &Plan) -> Vec<(String, String)> {
    plan.delegates.iter().map(|d| (d.network.clone(), d.ifname.to_string())).collect()
}

fn names(plan: &Plan) -> Vec<&str> {
    plan.delegates.iter().map(|d| d.ifname.as_str()).collect()
}

fn config(delegate: &Delegate) -> Value {
    serde_json::from_str(&delegate.config).unwrap()
}

fn runtime_config(delegate: &Delegate) -> Value {
    serde_json::to_value(&delegate.runtime_config).unwrap()
}

/// Returns a world whose pod has these requests for `home/capable`.
fn asked(keys: &str) -> World {
    World::new().networks(&format!(r#"[{{"name":"capable",{keys}}}]"#))
}

/// Returns a world whose pod has these requests for `home/plain`, which declares no capability.
fn asked_plain(keys: &str) -> World {
    World::new().networks(&format!(r#"[{{"name":"plain",{keys}}}]"#))
}

fn pairs(list: &[(&str, &str)]) -> Vec<(String, String)> {
    list.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect()
}

#[test]
fn plan_survives_json_and_a_newer_version_is_refused() {
    let plan = devices::sriov(
        r#"[{"name":"capable","ips":["10.0.0.1"],"default-route":["10.0.0.254"],"macc":1},{"name":"plain"}]"#,
    )
    .plan();
    let json = serde_json::to_vec(&plan).unwrap();
    assert_eq!(Plan::read(&json).unwrap(), plan);
    let mut newer: Value = serde_json::from_slice(&json).unwrap();
    newer["version"] = json!(PLAN_VERSION + 1);
    let error = Plan::read(newer.to_string().as_bytes()).unwrap_err();
    assert!(error.code == 6 && error.msg.contains("version 2"), "{error}");
    assert!(Plan::read(b"{}").is_err() && Plan::read(b"").is_err());
}

#[test]
fn host_network_pod_is_refused() {
    let mut world = World::new();
    world.pod.host_network = true;
    assert_eq!(world.fails().subject, "pod home/web");
}

#[test]
fn wanted_lists_the_definitions_a_plan_needs() {
    let world = World::new()
        .networks("plain,other/plain")
        .default_network("home/capable")
        .node(r#""defaultNetworks":["extra","/etc/x"],"multusNamespace":"net""#);
    let wanted: Vec<String> =
        wanted(&world.pod, &world.configuration()).iter().map(ToString::to_string).collect();
    assert_eq!(wanted, ["home/capable", "home/plain", "net/base", "net/extra", "other/plain"]);
}

#[test]
fn plan_has_warnings_of_configuration_and_annotation() {
    let mut world = World::new().networks(r#"[{"name":"plain","colour":1}]"#).node(r#""socketDir":"/run""#);
    world.flavour = Flavour::Multus;
    let reasons: Vec<Reason> = world.plan().warnings.iter().map(|warning| warning.event).collect();
    assert_eq!(reasons, [Reason::UnknownKey, Reason::UnknownKey]);
}

#[test]
fn plan_size_is_limited() {
    let large =
        format!(r#"{{"cniVersion":"1.0.0","name":"large","type":"x","pad":"{}"}}"#, "x".repeat(1_000_000));
    let mut world = World::new().networks("large,large,large,large,large");
    world.define("home/large", &large);
    assert_eq!(world.fails().rule, Rule::ConfigurationTooLarge);
    let many = format!(
        r#"{{"cniVersion":"1.0.0","name":"many","plugins":[{}{{"type":"x"}}]}}"#,
        r#"{"type":"x"},"#.repeat(20_000)
    );
    let mut world = World::new()
        .networks(&format!(r#"[{{"name":"many","cni-args":{{"a":"{}"}}}}]"#, "x".repeat(200_000)));
    world.define("home/many", &many);
    assert_eq!(world.fails().rule, Rule::ConfigurationTooLarge);
    let odd: Vec<String> = (0..5000).map(|number| format!(r#""k{number}{}":1"#, "y".repeat(30))).collect();
    let plan = World::new().networks(&format!(r#"[{{"name":"plain",{}}}]"#, odd.join(","))).plan();
    assert_eq!(plan.warnings.len(), crate::selection::WARNINGS_MAX);
}
