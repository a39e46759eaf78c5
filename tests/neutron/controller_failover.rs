//! Many pods at a time, and controllers that are killed while they work.
//!
//! Source: Kuryr-Kubernetes `handlers/vif.py`; DESIGN, "nothing leaks".

use std::collections::BTreeSet;

use rig::OpenStack;
use rig::neutron::Mode;
use rig::openstack::{BOUND, FIRST, UNBOUND, VIF, eventually};
use serde_json::{Value, json};
use testkit::host;

#[test]
fn of_two_controllers_one_works_and_when_it_is_killed_the_other_goes_on_without_a_port_too_many() {
    let Some(cluster) = OpenStack::without_switch(host!()) else { return };
    let _net = cluster.network("net-a", "10.21.0.0/24", &json!({}));
    let rules = json!({ "portDebug": true });
    cluster.start_controller("one", &rules, &[]);
    cluster.wait_until_leading("one");
    cluster.start_controller("two", &rules, &[]);
    let names: Vec<String> = (0..8).map(|number| format!("pod{number}")).collect();
    cluster.pods(BOUND, &names, "net-a,net-a");
    eventually("some have ports", || (cluster.neutron.pod_ports().len() > 4).then_some(()));
    cluster.machine.stop("one", "KILL");
    assert_eq!(cluster.metric("two", "weft_neutron_leader "), Some(0));
    cluster.wait_until_leading("two");
    for name in &names {
        let text = eventually(name, || {
            cluster.annotation(name, VIF).filter(|text| text.matches("VIFOpenVSwitch\"").count() == 2)
        });
        assert!(text.contains("eth2"), "{name}: {text}");
    }
    let ports = cluster.neutron.pod_ports();
    assert_eq!(ports.len(), 16, "a port too many or too few");
    assert!(ports.iter().all(|port| port["name"].as_str().unwrap().starts_with("blue/pod")));
    // Pods that go while nobody looks are seen by the next one.
    cluster.machine.stop("two", "KILL");
    names.iter().take(4).for_each(|name| cluster.delete_pod(name));
    cluster.start_controller("three", &rules, &[]);
    cluster.wait_until_leading("three");
    eventually("the ports of those that are gone are gone", || {
        (cluster.neutron.pod_ports().len() == 8).then_some(())
    });
    cluster.machine.stop("three", "TERM");
    cluster.start_controller("four", &rules, &[]);
    // Given back, the Lease is had at once.
    cluster.wait_until_leading("four");
    names.iter().skip(4).for_each(|name| cluster.delete_pod(name));
    cluster.assert_nothing_left("four");
}

#[test]
fn ports_of_a_pool_wait_for_pods_and_come_back_and_what_cannot_be_bound_waits_for_nobody() {
    let Some(cluster) = OpenStack::without_switch(host!()) else { return };
    let _net = cluster.network("net-a", "10.21.0.0/24", &json!({}));
    let rules = json!({ "pool": { "enabled": true, "min": 2, "max": 4, "batch": 4 } });
    cluster.start_controller("one", &rules, &[]);
    cluster.wait_until_leading("one");
    let port_of = |name: &str| {
        cluster.pod(BOUND, name, "net-a");
        cluster.wait_for_vifs(name)[0]["id"].as_str().unwrap().to_owned()
    };
    // Four are made at a time, and two pods take of them.
    let (first, second) = (port_of("first"), port_of("second"));
    let ids = || -> BTreeSet<String> {
        let ports = cluster.neutron.pod_ports();
        ports.iter().map(|port| port["id"].as_str().unwrap().to_owned()).collect()
    };
    let all = ids();
    assert!(all.len() == 4 && first != second && all.contains(&first) && all.contains(&second), "{all:?}");
    // Another controller knows which of them wait, and which a pod has.
    cluster.machine.stop("one", "TERM");
    cluster.start_controller("two", &rules, &[]);
    cluster.wait_until_leading("two");
    let waiting = |count| (cluster.metric("two", "weft_neutron_pool_ports ") == Some(count)).then_some(());
    eventually("two wait", || waiting(2));
    cluster.delete_pod("first");
    eventually("it came back", || waiting(3));
    let third = port_of("third");
    assert!(third != second && all.contains(&third) && ids() == all, "{third}");
    // Where no port is bound the pod is told, and none of those that were made is kept for another.
    cluster.pod(UNBOUND, "unbound", "net-a");
    cluster.wait_for_event("unbound", &["PortNotBound", UNBOUND]);
    cluster.delete_pod("unbound");
    eventually("none is left where none is bound", || (ids() == all).then_some(()));
    eventually("two wait", || waiting(2));
    // With other security groups none of those that wait fits: they go, and the pods' own when these end.
    cluster.machine.stop("two", "TERM");
    let group =
        cluster.neutron.api("POST", "security-groups", Some(&json!({ "security_group": { "name": "g" } })));
    let group = &group["security_group"]["id"];
    let rules = json!({ "podSecurityGroups": [group], "pool": rules["pool"] });
    cluster.start_controller("three", &rules, &[]);
    cluster.wait_until_leading("three");
    eventually("those of pods are left", || {
        (ids() == BTreeSet::from([second.clone(), third.clone()])).then_some(())
    });
    cluster.delete_pod("second");
    cluster.delete_pod("third");
    eventually("none is left", || ids().is_empty().then_some(()));
    cluster.pod(BOUND, "fourth", "net-a");
    let port = cluster.neutron.port(cluster.wait_for_vifs("fourth")[0]["id"].as_str().unwrap());
    assert_eq!(port["security_groups"], json!([group]));
    // A node on which there is no pod any more needs none.
    cluster.machine.stop("three", "TERM");
    cluster.start_controller("four", &rules, &["--neutron-interval", "1"]);
    cluster.wait_until_leading("four");
    assert!(!ids().is_empty());
    cluster.delete_pod("fourth");
    cluster.assert_nothing_left("four");
}

/// With OVN ports are tagged by a request of their own: whose they are must be known before.
#[test]
fn a_port_whose_controller_was_killed_before_it_heard_of_it_is_taken_up_or_removed() {
    let Some(cluster) = OpenStack::new(host!(), Mode::Open, &[FIRST]) else { return };
    let neutron = &cluster.neutron;
    let extensions = neutron.api("GET", "extensions?fields=alias", None);
    assert!(!extensions.to_string().contains("tag-ports-during-bulk-creation"), "OVN takes tags at once");
    let _net = cluster.network("net-a", "10.21.0.0/24", &json!({}));
    let rules = json!({ "resourceTags": ["somebody"] });
    cluster.start_controller("one", &rules, &[]);
    cluster.wait_until_leading("one");
    // What must be known of subnet and cloud is known, and the next request is the one that makes a port.
    let _ = cluster.pod(FIRST, "before", "net-a");
    let _ = cluster.wait_for_vifs("before");
    neutron.signal("STOP");
    let uids = ["stays", "goes"].map(|name| cluster.pod(FIRST, name, "net-a"));
    let unread = || {
        let lines = cluster.machine.run(["ss", "-Htn", "state", "established", "sport = :9696"]);
        lines.lines().filter(|line| line.split_whitespace().next().is_some_and(|bytes| bytes != "0")).count()
    };
    eventually("both requests are on their way", || (unread() == 2).then_some(()));
    cluster.machine.stop("one", "KILL");
    neutron.signal("CONT");
    let of = |uid: &String| neutron.ports(&format!("device_id={uid}"));
    let ports: Vec<Value> = uids
        .iter()
        .map(|uid| eventually("Neutron has made it all the same", || of(uid).into_iter().next()))
        .collect();
    for port in &ports {
        assert_eq!(port["tags"], json!([]), "it was tagged: {port}");
    }
    cluster.delete_pod("goes");
    cluster.start_controller("two", &rules, &[]);
    cluster.wait_until_leading("two");
    assert_eq!(cluster.wait_for_vifs("stays")[0]["id"], ports[0]["id"]);
    eventually("the one of the pod that is gone is gone", || of(&uids[1]).is_empty().then_some(()));
    let stays = of(&uids[0]);
    assert_eq!(stays.len(), 1, "{stays:#?}");
    let tags = stays[0]["tags"].as_array().unwrap();
    let wanted = ["somebody", "weft-cluster=kubernetes", "weft-attachment=eth1"];
    assert!(wanted.iter().all(|tag| tags.contains(&json!(tag))), "{tags:?}");
    ["before", "stays"].into_iter().for_each(|name| cluster.delete_pod(name));
    cluster.assert_nothing_left("two");
}
