//! What a plan says, by requirement.

mod access;
mod ledger;
mod network;
mod request;
mod route;

use serde_json::{Value, json};

use super::*;
use crate::configuration::Flavour;
use crate::fixture::{CAPABLE, PLAIN, World};
use crate::refusal::Reason;

/// Networks and interfaces, in order.
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

/// The plan of a pod that asks this of `home/capable`.
fn asked(keys: &str) -> World {
    World::new().networks(&format!(r#"[{{"name":"capable",{keys}}}]"#))
}

/// The plan of a pod that asks this of `home/plain`, which declares nothing.
fn asked_plain(keys: &str) -> World {
    World::new().networks(&format!(r#"[{{"name":"plain",{keys}}}]"#))
}

fn pairs(list: &[(&str, &str)]) -> Vec<(String, String)> {
    list.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect()
}

#[test]
fn a_plan_survives_json_and_a_newer_one_is_left_alone() {
    let plan = ledger::sriov(
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
fn a_pod_in_its_nodes_network_has_nothing_to_attach() {
    let mut world = World::new();
    world.pod.host_network = true;
    assert_eq!(world.fails().subject, "pod home/web");
}

#[test]
fn what_a_plan_will_ask_for_can_be_known_before() {
    let world = World::new()
        .networks("plain,other/plain")
        .default_network("home/capable")
        .node(r#""defaultNetworks":["extra","/etc/x"],"multusNamespace":"net""#);
    let wanted: Vec<String> =
        wanted(&world.pod, &world.configuration()).iter().map(ToString::to_string).collect();
    assert_eq!(wanted, ["home/capable", "home/plain", "net/base", "net/extra", "other/plain"]);
}

#[test]
fn warnings_of_the_configuration_and_of_the_annotation_are_in_the_plan() {
    let mut world = World::new().networks(r#"[{"name":"plain","colour":1}]"#).node(r#""socketDir":"/run""#);
    world.flavour = Flavour::Multus;
    let reasons: Vec<Reason> = world.plan().warnings.iter().map(|warning| warning.event).collect();
    assert_eq!(reasons, [Reason::UnknownKey, Reason::UnknownKey]);
}

#[test]
fn a_plan_is_bounded() {
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
