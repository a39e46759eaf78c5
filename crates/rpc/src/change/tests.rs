//! Tests that change a sandbox whose pod selects other networks.

use serde_json::value::RawValue;

use super::*;
use crate::journal;
use npwg::fixture::World;
use npwg::metadata::NetworkReference;

/// Returns the entry of a sandbox that is attached according to the plan.
fn attached(plan: &Plan) -> Entry {
    let done = Attachment {
        state: State::Attached,
        result: Some(RawValue::from_string("{}".to_owned()).unwrap()),
        ..Attachment::default()
    };
    Entry {
        version: journal::VERSION,
        network: "weft".into(),
        container_id: plan.container.clone(),
        netns: "/run/netns/x".into(),
        namespace: String::new(),
        ifname: plan.delegates[0].ifname.clone(),
        args: String::new(),
        path: "/opt/cni/bin".into(),
        attachments: vec![done; plan.delegates.len()],
        plan: plan.clone(),
        network_status: Vec::new(),
        complete: true,
        changing: false,
        replaced: false,
    }
}

/// Returns the plan for the annotation in a sandbox that is attached according to `entry`.
fn replanned(entry: &Entry, annotation: &str) -> Plan {
    let mut world = World::new().networks(annotation);
    world.held = entry.held();
    world.plan()
}

fn names(entry: &Entry) -> Vec<(String, String)> {
    entry.plan.delegates.iter().map(|d| (d.network.clone(), d.ifname.to_string())).collect()
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(network, ifname)| ((*network).to_owned(), (*ifname).to_owned())).collect()
}

#[test]
fn hot_plug_same_selection_is_no_change() {
    let entry = attached(&World::new().networks("plain,other/plain").plan());
    assert!(between(&entry, &replanned(&entry, "plain,other/plain")).unwrap().is_none());
    // Another order is no change: names stay with their networks.
    let change = between(&entry, &replanned(&entry, "other/plain,plain")).unwrap();
    assert!(change.is_none(), "{change:?}");
}

#[test]
fn hot_plug_kept_attachment_keeps_interface_and_result() {
    let entry = attached(&World::new().networks("plain,other/plain").plan());
    let change = between(&entry, &replanned(&entry, "capable,other/plain")).unwrap().unwrap();
    let expected =
        [("base", "eth0"), ("home/capable", "net1"), ("other/plain", "net2"), ("home/plain", "net1")];
    assert_eq!(names(&change.entry), pairs(&expected));
    assert_eq!(change.added(), [1]);
    assert_eq!(change.removed(), [3]);
    assert!(change.entry.changing && !change.entry.complete);
    assert!(change.entry.attachments[2].result.is_some() && change.entry.attachments[3].result.is_some());
}

#[test]
fn hot_plug_network_selected_twice_has_two_attachments() {
    let entry = attached(&World::new().networks("plain,plain").plan());
    let change = between(&entry, &replanned(&entry, "plain")).unwrap().unwrap();
    assert_eq!((change.added(), change.removed()), (vec![], vec![2]));
    assert_eq!(names(&change.entry)[2], ("home/plain".to_owned(), "net2".to_owned()));
}

#[test]
fn hot_plug_other_requests_replace_the_attachment() {
    let asks = |address: &str| format!(r#"[{{"name":"capable","ips":["{address}"]}}]"#);
    let entry = attached(&World::new().networks(&asks("10.0.0.5/24")).plan());
    assert!(between(&entry, &replanned(&entry, &asks("10.0.0.5/24"))).unwrap().is_none());
    let change = between(&entry, &replanned(&entry, &asks("10.0.0.6/24"))).unwrap().unwrap();
    let expected = [("base", "eth0"), ("home/capable", "net1"), ("home/capable", "net1")];
    assert_eq!(names(&change.entry), pairs(&expected));
}

#[test]
fn hot_plug_edited_definition_changes_no_running_pod() {
    let entry = attached(&World::new().networks("plain").plan());
    let mut world = World::new().networks("plain");
    world.define("home/plain", r#"{"cniVersion":"1.0.0","name":"plain","type":"other"}"#);
    world.held = entry.held();
    assert!(between(&entry, &world.plan()).unwrap().is_none());
}

/// The definition's capabilities decide how requests reach the plugins, not what the pod requests.
#[test]
fn hot_plug_new_capability_changes_no_running_pod() {
    let asks = r#"[{"name":"plain","mac":"02:00:00:00:00:07","ips":["10.0.0.5","10.0.0.6"]}]"#;
    let mut world = World::new().node(r#""ipRequestPolicy":"permissive""#).networks(asks);
    let mut entry = attached(&world.plan());
    let declares =
        r#"{"cniVersion":"1.0.0","name":"plain","type":"plain","capabilities":{"mac":true,"ips":true}}"#;
    world.define("home/plain", declares);
    world.held = entry.held();
    assert!(between(&entry, &world.plan()).unwrap().is_none());
    // An entry imported from Multus has neither the requests nor the values to verify.
    entry.plan.delegates[1].asked = None;
    entry.plan.delegates[1].verify = npwg::plan::Verify::default();
    assert!(between(&entry, &world.plan()).unwrap().is_none());
    // The values that every plugin gets show that the request differs.
    let other = asks.replace("00:07", "00:08");
    let world = World { held: entry.held(), ..World::new() }.networks(&other);
    let change = between(&entry, &world.node(r#""ipRequestPolicy":"permissive""#).plan()).unwrap().unwrap();
    assert_eq!((change.added(), change.removed()), (vec![1], vec![2]));
}

#[test]
fn hot_plug_compares_requests_in_normalized_form() {
    let asks = |keys: &str| format!(r#"[{{"name":"capable","cni-args":{{"a":1,"b":2}}{keys}}}]"#);
    let entry = attached(&World::new().networks(&asks("")).plan());
    let written = r#"[{"cni-args": {"b": 2, "a": 1}, "name": "capable", "namespace": "home"}]"#;
    assert!(between(&entry, &replanned(&entry, written)).unwrap().is_none());
    for keys in [
        r#","ips":["10.0.0.5/24"]"#,
        r#","mac":"02:00:00:00:00:07""#,
        r#","infiniband-guid":"02:00:00:00:00:00:00:07""#,
        r#","portMappings":[{"hostPort":80,"containerPort":80}]"#,
        r#","bandwidth":{"ingressRate":1000}"#,
        r#","ipam-claim-reference":"mine""#,
    ] {
        let change = between(&entry, &replanned(&entry, &asks(keys))).unwrap();
        assert!(change.is_some_and(|change| change.removed() == [2]), "{keys}");
    }
    let other = r#"[{"name":"capable","cni-args":{"a":1}}]"#;
    assert!(between(&entry, &replanned(&entry, other)).unwrap().is_some());
}

/// Returns a node whose networks use devices: `device` gets them by a capability, `plain` by the configuration.
fn with_devices(networks: &str, devices: &[&str]) -> World {
    let mut world = World::new().networks(networks);
    for network in ["home/device", "home/plain"] {
        world.resource(network, "example.com/nic");
    }
    for id in devices {
        world.device("example.com/nic", id);
    }
    world
}

fn devices(plan: &Plan) -> Vec<Option<String>> {
    plan.delegates.iter().skip(1).map(Delegate::device).collect()
}

#[test]
fn hot_plug_attachment_keeps_its_device_in_any_order() {
    let device = |id: &str| Some(id.to_owned());
    for network in ["device", "plain"] {
        let both = format!("{network},{network}");
        let entry = attached(&with_devices(&both, &["d1", "d2"]).plan());
        assert_eq!(devices(&entry.plan), [device("d1"), device("d2")]);
        let world = World { held: entry.held(), ..with_devices(&both, &["d2", "d1"]) };
        assert_eq!(devices(&world.plan()), [device("d1"), device("d2")]);
        assert!(between(&entry, &world.plan()).unwrap().is_none());
    }
}

#[test]
fn hot_plug_added_network_gets_no_device_in_use() {
    let device = |id: &str| Some(id.to_owned());
    for (network, other) in [("device", "plain"), ("plain", "device")] {
        let entry = attached(&with_devices(network, &["d2", "d1"]).plan());
        assert_eq!(devices(&entry.plan), [device("d2")]);
        let both = format!("{other},{network}");
        let mut world = World { held: entry.held(), ..with_devices(&both, &["d2", "d1"]) };
        assert_eq!(devices(&world.plan()), [device("d1"), device("d2")]);
        // The definition of the attached network names another resource by now.
        world.resource(&format!("home/{network}"), "example.com/other");
        world.device("example.com/other", "x1");
        assert_eq!(devices(&world.plan())[0], device("d1"));
        // Nor can a request obtain that device.
        let world = with_devices(
            &format!(r#"[{{"name":"{other}","deviceID":"d2"}},{{"name":"{network}"}}]"#),
            &["d2"],
        );
        let fault = World { held: entry.held(), ..world }.fails();
        assert!(fault.to_string().contains("allocated to the pod and free"), "{fault}");
        // A removed attachment frees its device.
        let world = World { held: entry.held(), ..with_devices(other, &["d2"]) };
        assert_eq!(devices(&world.plan()), [device("d2")]);
    }
}

#[test]
fn hot_plug_change_that_was_killed_is_continued() {
    let entry = attached(&World::new().networks("plain").plan());
    let plan = replanned(&entry, "capable");
    let first = between(&entry, &plan).unwrap().unwrap();
    let again = between(&first.entry, &plan).unwrap().unwrap();
    // The attachment that was begun and the one to remove are both detached before the network is attached again.
    assert_eq!(again.removed().len(), 2);
    assert_eq!(again.added(), [1]);
    // Only the completion is missing.
    let mut done = first.entry;
    done.attachments[1].state = State::Attached;
    done.attachments[2].state = State::Detached;
    let last = between(&done, &plan).unwrap().unwrap();
    assert_eq!((last.added(), last.removed()), (vec![], vec![]));
}

#[test]
fn hot_plug_cannot_move_the_default_route() {
    let entry = attached(&World::new().networks("plain").plan());
    let asks = r#"[{"name":"plain"},{"name":"capable","default-route":["10.0.0.1"]}]"#;
    let error = between(&entry, &replanned(&entry, asks)).unwrap_err();
    assert!(error.msg.contains("home/capable on net2") && !error.details.is_empty(), "{error:?}");
    let holder = attached(&World::new().networks(asks).plan());
    assert!(between(&holder, &replanned(&holder, "plain")).is_err());
}

#[test]
fn hot_plug_default_route_stops_no_other_network() {
    let entry = attached(&World::new().networks("plain").plan());
    let asks = r#"[{"name":"capable","default-route":["10.0.0.1"]},{"name":"plain"},{"name":"device"}]"#;
    let change = between(&entry, &replanned(&entry, asks)).unwrap().unwrap();
    let planned: Vec<&str> = change.entry.plan.delegates.iter().map(|held| held.network.as_str()).collect();
    assert_eq!((planned, change.added()), (vec!["base", "home/plain", "home/device"], vec![2]));
    assert!(
        change.refused.len() == 1 && change.refused[0].msg.contains("home/capable"),
        "{:?}",
        change.refused
    );
    // No network yields its default route to one that is not there.
    let yields = |held: &Delegate| matches!(held.default_route, DefaultRouteAction::Yield { .. });
    assert!(!change.entry.plan.delegates.iter().any(yields));
}

#[test]
fn hot_plug_refused_network_is_kept_and_stops_no_other() {
    let entry = attached(&World::new().networks("plain,capable").plan());
    let mut world = World::new().networks("gone,capable,device");
    world.held = entry.held();
    // A missing network of the selection: the others have the names that an ADD would give them.
    let plan = world.possible();
    let names: Vec<(&str, &str)> =
        plan.delegates.iter().map(|held| (held.network.as_str(), held.ifname.as_str())).collect();
    assert_eq!(names, [("base", "eth0"), ("home/capable", "net2"), ("home/device", "net3")]);
    assert_eq!(
        plan.refused.iter().map(|refused| refused.network.as_str()).collect::<Vec<_>>(),
        ["home/gone"]
    );
    let change = between(&entry, &plan).unwrap().unwrap();
    assert_eq!((change.added().len(), change.removed().len()), (1, 1), "plain is not selected any more");
    // Its definition is deleted while the pod runs: it stays, whatever else changes.
    let mut world = World::new().networks("plain,device");
    world.held = entry.held();
    world.definitions.remove(&NetworkReference::new("home", "plain"));
    let change = between(&entry, &world.possible()).unwrap().unwrap();
    let there: Vec<&str> = change.entry.plan.delegates.iter().map(|held| held.network.as_str()).collect();
    assert_eq!(there, ["base", "home/device", "home/plain", "home/capable"]);
    assert_eq!((change.added(), change.removed()), (vec![1], vec![3]));
}

#[test]
fn hot_plug_plan_of_another_pod_is_refused() {
    let entry = attached(&World::new().networks("plain").plan());
    let mut world = World::new();
    world.pod.uid = "u-2".into();
    assert_eq!(between(&entry, &world.plan()).unwrap_err().code, 4);
}
