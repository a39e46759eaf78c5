//! Many pods at a time, and controllers that are killed while they work.
//!
//! Source: Kuryr-Kubernetes `handlers/vif.py`; DESIGN, "nothing leaks".

#![cfg(test)]

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
