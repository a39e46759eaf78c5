//! Many pods at a time: pools, and controllers that are killed while they work.
//!
//! Source: Kuryr-Kubernetes `handlers/vif.py`; DESIGN, "nothing leaks".

#![cfg(test)]

use std::collections::BTreeSet;

use rig::OpenStack;
use rig::neutron::Mode;
use rig::openstack::{VIF, eventually};
use serde_json::json;
use testkit::host;

/// A node whose ports are bound, and ACTIVE at once.
const NODE: &str = "host-ovs-filter-active";

/// A cluster beside Neutron's API; the test is skipped where the lane is not ready.
macro_rules! cluster {
    () => {{
        let Some(cluster) = OpenStack::new(host!(), Mode::Api, &[]) else { return };
        cluster
    }};
}

/// No port of a pod is left, and the controller lives.
#[track_caller]
fn assert_nothing_left(cluster: &OpenStack, controller: &str) {
    eventually("no port is left", || cluster.neutron.pod_ports().is_empty().then_some(()));
    assert!(cluster.machine.lives(controller), "{}", cluster.machine.log(controller));
}

#[test]
fn of_two_controllers_one_works_and_when_it_is_killed_the_other_goes_on_without_a_port_too_many() {
    let cluster = cluster!();
    let _net = cluster.network("net-a", "10.21.0.0/24", &json!({}));
    let rules = json!({ "portDebug": true });
    cluster.start_controller("one", &rules, &[]);
    cluster.wait_until_leading("one");
    cluster.start_controller("two", &rules, &[]);
    let names: Vec<String> = (0..8).map(|number| format!("pod{number}")).collect();
    cluster.pods(NODE, &names, "net-a,net-a");
    eventually("some have ports", || (cluster.neutron.pod_ports().len() > 4).then_some(()));
    cluster.machine.stop("one", "KILL");
    assert_eq!(cluster.figure("two", "weft_neutron_leads "), Some(0));
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
    assert_nothing_left(&cluster, "four");
}

#[test]
fn ports_of_a_pool_are_made_many_at_a_time_used_again_and_known_after_a_restart() {
    let cluster = cluster!();
    for (name, cidr) in [("net-a", "10.21.0.0/24"), ("net-b", "10.22.0.0/24"), ("net-c", "10.23.0.0/24")] {
        let _ = cluster.network(name, cidr, &json!({}));
    }
    let rules = json!({ "pool": { "enabled": true, "min": 0, "max": 30, "batch": 30 } });
    cluster.start_controller("one", &rules, &[]);
    cluster.wait_until_leading("one");
    let names: Vec<String> = (0..30).map(|number| format!("pod{number}")).collect();
    cluster.pods(NODE, &names, "net-a,net-b,net-c");
    let all: BTreeSet<String> = names
        .iter()
        .flat_map(|name| {
            let text = eventually(name, || cluster.annotation(name, VIF));
            let ids = text.split(r#""interface_id":""#).skip(1).map(|rest| rest[..36].to_owned());
            ids.collect::<Vec<_>>()
        })
        .collect();
    assert_eq!(all.len(), 90, "each port is one pod's");
    eventually("all are confirmed", || {
        (cluster.figure("one", r#"weft_neutron_cases_total{outcome="allocated"}"#) == Some(30)).then_some(())
    });
    let requests = cluster.figure("one", "weft_neutron_requests_total ").unwrap();
    assert!(requests * 2 <= 30, "{requests} requests for 30 pods of 3 networks");
    // Somebody who asks for an address gets a port of his own.
    cluster.pod(NODE, "asks", r#"[{"name":"net-a","ips":["10.21.0.200"]}]"#);
    assert_eq!(cluster.wait_for_vifs("asks")[0]["ips"], json!(["10.21.0.200"]));
    cluster.delete_pod("asks");
    eventually("it is removed", || (cluster.neutron.pod_ports().len() == 90).then_some(()));
    // What comes back waits, also for another controller.
    names.iter().take(10).for_each(|name| cluster.delete_pod(name));
    eventually("they wait", || (cluster.figure("one", "weft_neutron_pool_ports ") == Some(30)).then_some(()));
    cluster.machine.stop("one", "KILL");
    cluster.start_controller("two", &rules, &[]);
    cluster.wait_until_leading("two");
    assert_eq!(cluster.figure("two", "weft_neutron_pool_ports "), Some(30));
    cluster.pod(NODE, "again", "net-a,net-b,net-c");
    let _ = cluster.wait_for_vifs("again");
    assert_eq!(cluster.neutron.pod_ports().len(), 90, "one that waited was used");
}
