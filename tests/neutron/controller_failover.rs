//! Controller failover: many pods at a time, and controllers that are killed while they create ports.
//!
//! Source: Kuryr-Kubernetes `handlers/vif.py`.

use std::collections::BTreeSet;

use rig::OpenStack;
use rig::neutron::Mode;
use rig::openstack::{BOUND, FIRST, UNBOUND, VIF, eventually};
use serde_json::{Value, json};
use testkit::host;

#[test]
fn leader_election_failover_creates_no_duplicate_port() {
    let Some(cluster) = OpenStack::without_switch(host!()) else { return };
    let _net = cluster.network("net-a", "10.21.0.0/24", &json!({}));
    let rules = json!({ "portDebug": true });
    cluster.start_controller("one", &rules, &[]);
    cluster.wait_until_leading("one");
    cluster.start_controller("two", &rules, &[]);
    let names: Vec<String> = (0..8).map(|number| format!("pod{number}")).collect();
    cluster.pods(BOUND, &names, "net-a,net-a");
    eventually("some pods have ports", || (cluster.neutron.pod_ports().len() > 4).then_some(()));
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
    // The next controller observes pods that were deleted while none ran.
    cluster.machine.stop("two", "KILL");
    names.iter().take(4).for_each(|name| cluster.delete_pod(name));
    cluster.start_controller("three", &rules, &[]);
    cluster.wait_until_leading("three");
    eventually("ports of deleted pods are deleted", || {
        (cluster.neutron.pod_ports().len() == 8).then_some(())
    });
    cluster.machine.stop("three", "TERM");
    cluster.start_controller("four", &rules, &[]);
    // A controller that shuts down releases the Lease, so the next one leads immediately.
    cluster.wait_until_leading("four");
    names.iter().skip(4).for_each(|name| cluster.delete_pod(name));
    cluster.assert_nothing_left("four");
}

#[test]
fn port_pool_is_filled_reused_and_drained() {
    let Some(cluster) = OpenStack::without_switch(host!()) else { return };
    let _net = cluster.network("net-a", "10.21.0.0/24", &json!({}));
    let rules = json!({ "pool": { "enabled": true, "min": 2, "max": 4, "batch": 4 } });
    cluster.start_controller("one", &rules, &[]);
    cluster.wait_until_leading("one");
    let port_of = |name: &str| {
        cluster.pod(BOUND, name, "net-a");
        cluster.wait_for_vifs(name)[0]["id"].as_str().unwrap().to_owned()
    };
    // Four ports are created at a time, and two pods use two of them.
    let (first, second) = (port_of("first"), port_of("second"));
    let ids = || -> BTreeSet<String> {
        let ports = cluster.neutron.pod_ports();
        ports.iter().map(|port| port["id"].as_str().unwrap().to_owned()).collect()
    };
    let all = ids();
    assert!(all.len() == 4 && first != second && all.contains(&first) && all.contains(&second), "{all:?}");
    // Another controller knows which ports are free and which belong to pods.
    cluster.machine.stop("one", "TERM");
    cluster.start_controller("two", &rules, &[]);
    cluster.wait_until_leading("two");
    let free = |count| (cluster.metric("two", "weft_neutron_pool_ports ") == Some(count)).then_some(());
    eventually("two ports are free", || free(2));
    cluster.delete_pod("first");
    eventually("the port is returned to the pool", || free(3));
    let third = port_of("third");
    assert!(third != second && all.contains(&third) && ids() == all, "{third}");
    // If no port is bound on a node, the pod gets an Event, and the created ports are not kept in the pool.
    cluster.pod(UNBOUND, "unbound", "net-a");
    cluster.wait_for_event("unbound", &["PortNotBound", UNBOUND]);
    cluster.delete_pod("unbound");
    eventually("no unbound port remains", || (ids() == all).then_some(()));
    eventually("two ports are free", || free(2));
    // With other security groups, free ports of the pool are deleted, and ports of pods when the pods end.
    cluster.machine.stop("two", "TERM");
    let group =
        cluster.neutron.api("POST", "security-groups", Some(&json!({ "security_group": { "name": "g" } })));
    let group = &group["security_group"]["id"];
    let rules = json!({ "podSecurityGroups": [group], "pool": rules["pool"] });
    cluster.start_controller("three", &rules, &[]);
    cluster.wait_until_leading("three");
    eventually("only ports of pods remain", || {
        (ids() == BTreeSet::from([second.clone(), third.clone()])).then_some(())
    });
    cluster.delete_pod("second");
    cluster.delete_pod("third");
    eventually("no port remains", || ids().is_empty().then_some(()));
    cluster.pod(BOUND, "fourth", "net-a");
    let port = cluster.neutron.port(cluster.wait_for_vifs("fourth")[0]["id"].as_str().unwrap());
    assert_eq!(port["security_groups"], json!([group]));
    // A node without pods needs no pool.
    cluster.machine.stop("three", "TERM");
    cluster.start_controller("four", &rules, &["--neutron-interval", "1"]);
    cluster.wait_until_leading("four");
    assert!(!ids().is_empty());
    cluster.delete_pod("fourth");
    cluster.assert_nothing_left("four");
}

/// Covers OVN, where ports are tagged by a separate request: the owner must be known before.
#[test]
fn untagged_port_of_a_killed_controller_is_reused_or_removed() {
    let Some(cluster) = OpenStack::new(host!(), Mode::Open, &[FIRST]) else { return };
    let neutron = &cluster.neutron;
    let extensions = neutron.api("GET", "extensions?fields=alias", None);
    assert!(
        !extensions.to_string().contains("tag-ports-during-bulk-creation"),
        "OVN accepts tags at creation"
    );
    let _net = cluster.network("net-a", "10.21.0.0/24", &json!({}));
    let rules = json!({ "resourceTags": ["other"] });
    cluster.start_controller("one", &rules, &[]);
    cluster.wait_until_leading("one");
    // Subnet and cloud are cached, so the next request is the one that creates a port.
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
        .map(|uid| eventually("Neutron has created the port", || of(uid).into_iter().next()))
        .collect();
    for port in &ports {
        assert_eq!(port["tags"], json!([]), "the port was tagged: {port}");
    }
    cluster.delete_pod("goes");
    cluster.start_controller("two", &rules, &[]);
    cluster.wait_until_leading("two");
    assert_eq!(cluster.wait_for_vifs("stays")[0]["id"], ports[0]["id"]);
    eventually("the port of the deleted pod is deleted", || of(&uids[1]).is_empty().then_some(()));
    let stays = of(&uids[0]);
    assert_eq!(stays.len(), 1, "{stays:#?}");
    let tags = stays[0]["tags"].as_array().unwrap();
    let wanted = ["other", "weft-cluster=kubernetes", "weft-attachment=eth1"];
    assert!(wanted.iter().all(|tag| tags.contains(&json!(tag))), "{tags:?}");
    ["before", "stays"].into_iter().for_each(|name| cluster.delete_pod(name));
    cluster.assert_nothing_left("two");
}
