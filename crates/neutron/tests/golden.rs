//! Golden tests: VIF objects that Kuryr wrote for real Neutron responses are parsed and must be written back
//! identically.
//!
//! Source: `testdata/`: raw Neutron 21 responses, and the objects that Kuryr (Train and 2023.1) wrote for them, with
//! os-vif 1.17.0 and 3.1.1.

#![cfg(test)]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;

use neutron::pod_state::PodState;
use neutron::port::{Network, Port, Subnet};
use neutron::vif::{Kind, Plugging, Vif};
use serde_json::Value;

fn read(name: &str) -> Value {
    let path = format!("{}/testdata/{name}", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&text(&path)).unwrap()
}

fn text(path: &str) -> String {
    std::fs::read_to_string(path).unwrap()
}

fn annotation(name: &str) -> String {
    text(&format!("{}/testdata/{name}", env!("CARGO_MANIFEST_DIR")))
}

/// Removes `versioned_object.changes`, which Train never resets and orders at random.
fn without_changes(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map.iter().filter(|(key, _)| *key != "versioned_object.changes");
            Value::Object(kept.map(|(key, value)| (key.clone(), without_changes(value))).collect())
        }
        Value::Array(list) => Value::Array(list.iter().map(without_changes).collect()),
        other => other.clone(),
    }
}

/// Builds the VIF for one interface in `neutron.json`.
fn vif(interface: &str, how: &Plugging, change: impl FnOnce(&mut Port)) -> Vif {
    let part = read("neutron.json")[interface].clone();
    let mut port: Port = serde_json::from_value(part["port"].clone()).unwrap();
    change(&mut port);
    let network: Network = serde_json::from_value(part["network"].clone()).unwrap();
    let subnet: Subnet = serde_json::from_value(part["subnet"].clone()).unwrap();
    Vif::of(&port, &network, &[subnet], how).unwrap()
}

fn bound() -> Plugging {
    Plugging::Bound { bridge: "br-int".into() }
}

fn state(status: &str) -> PodState {
    let mut state = PodState::default();
    for name in ["eth0", "eth1", "eth2"] {
        state.insert(name, vif(name, &bound(), |port| port.status = status.into()));
    }
    state
}

#[test]
fn vif_annotation_of_ports_equals_that_of_kuryr() {
    assert_eq!(state("ACTIVE").to_primitive(), read("podstate-nochanges.json"));
    let train = [("train-annotation-active.json", "ACTIVE"), ("train-annotation-inactive.json", "DOWN")];
    for (file, status) in train {
        assert_eq!(state(status).to_primitive(), without_changes(&read(file)), "{file}");
    }
}

#[test]
fn kuryrport_contains_the_same_vifs() {
    for (file, status) in [("kuryrport-active.json", "ACTIVE"), ("kuryrport-inactive.json", "DOWN")] {
        let port = read(file);
        let vifs = &port["status"]["vifs"];
        assert_eq!(state(status).to_vifs(), *vifs, "{file}");
        assert_eq!(PodState::from_vifs(vifs).unwrap(), state(status), "{file}");
    }
}

#[test]
fn vif_annotation_of_kuryr_round_trips() {
    for (file, active) in [
        ("podstate-nochanges.json", true),
        ("train-annotation-active.json", true),
        ("train-annotation-active-nochanges.json", true),
        ("train-annotation-inactive.json", false),
    ] {
        let read_state = PodState::from_annotation(&annotation(file)).unwrap();
        assert_eq!(read_state.is_active(), active, "{file}");
        assert_eq!(read_state.to_primitive(), without_changes(&read(file)), "{file}");
    }
}

#[test]
fn vif_of_every_kind_round_trips() {
    for file in ["vif-types.json", "train-vif-types.json"] {
        for (name, value) in read(file).as_object().unwrap() {
            let vif = Vif::from_primitive(value).unwrap_or_else(|why| panic!("{file}: {name}: {why}"));
            let foreign = matches!(vif.kind, Kind::Foreign { .. });
            assert_eq!(
                foreign,
                ["VIFVHostUser", "VIFDPDKNested", "VIFSriov"].contains(&name.as_str()),
                "{name}"
            );
            assert_eq!(vif.to_primitive(), without_changes(value), "{file}: {name}");
        }
    }
}

#[test]
fn vif_of_each_supported_kind_equals_that_of_kuryr() {
    let expected = read("vif-types.json");
    let hybrid = |port: &mut Port| drop(port.vif_details.insert("ovs_hybrid_plug".into(), true.into()));
    let made = BTreeMap::from([
        ("VIFOpenVSwitch", vif("eth1", &bound(), |_| ())),
        ("VIFBridge", vif("eth1", &bound(), hybrid)),
        ("VIFVlanNested", vif("eth1", &Plugging::Vlan(101), |_| ())),
        ("VIFMacvlanNested", vif("eth1", &Plugging::Macvlan, |_| ())),
    ]);
    for (name, vif) in made {
        assert_eq!(vif.to_primitive(), expected[name], "{name}");
    }
}

#[test]
fn vif_annotation_of_queens_is_the_default_vif() {
    let bare = read("vif-types.json")["VIFOpenVSwitch"].to_string();
    let state = PodState::from_annotation(&bare).unwrap();
    assert!(state.default.is_some() && state.additional.is_empty());
}

#[test]
fn vif_annotation_without_default_network_has_no_default_vif() {
    let mut some = state("ACTIVE");
    some.default = None;
    let again = PodState::from_annotation(&some.to_annotation()).unwrap();
    assert_eq!(again, some);
    assert!(!some.to_annotation().contains("default_vif"));
}

#[test]
fn vif_of_an_unsupported_binding_or_invalid_json_is_refused() {
    let part = read("neutron.json")["eth1"].clone();
    let mut port: Port = serde_json::from_value(part["port"].clone()).unwrap();
    let network: Network = serde_json::from_value(part["network"].clone()).unwrap();
    for binding in ["binding_failed", "unbound", "hw_veb"] {
        port.vif_type = binding.into();
        assert_eq!(Vif::of(&port, &network, &[], &bound()).unwrap_err().vif_type, binding);
    }
    for broken in
        ["", "{}", "[]", "null", r#"{"versioned_object.namespace":"os_vif","versioned_object.name":"VIFX"}"#]
    {
        assert!(PodState::from_annotation(broken).is_err(), "{broken:?}");
    }
}
