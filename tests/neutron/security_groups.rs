//! Security groups: a pod's port admits the traffic that the groups permit, within a node and across nodes, also after
//! the groups change.
//!
//! ```text
//!   web (node-1) ─ tap ─ br-int ══ Geneve ══ br-int ─ tap ─ db (node-2)     both in the group `closed`
//! ```
//!
//! A missing answer only counts together with a proof that the same packets arrive once they are permitted.
//!
//! Source: Networking API v2.0, "Security groups"; ovn-nb(5), `ACL`.

use rig::cluster::bridge;
use rig::neutron::{Mode, Neutron};
use rig::openstack::{configuration, eventually};
use rig::traffic::source_seen;
use rig::{OpenStack, addresses_on};
use serde_json::{Value, json};
use testkit::{Pod, host};

/// Creates a group that permits all egress and no ingress.
fn group(neutron: &Neutron, name: &str) -> String {
    let answer = neutron.api("POST", "security-groups", Some(&json!({ "security_group": { "name": name } })));
    answer["security_group"]["id"].as_str().unwrap().to_owned()
}

/// Permits ingress of a protocol; returns the id of the rule.
fn permit(neutron: &Neutron, group: &str, protocol: &str) -> String {
    let rule = json!({ "security_group_rule": { "security_group_id": group, "direction": "ingress", "protocol": protocol } });
    let answer = neutron.api("POST", "security-group-rules", Some(&rule));
    answer["security_group_rule"]["id"].as_str().unwrap().to_owned()
}

fn address(pod: &Pod) -> String {
    addresses_on(pod, "net1")[0].split('/').next().unwrap().to_owned()
}

/// Waits until all pods in `others` answer pings (`wanted`), or until none of them does.
fn answer_pings(from: &Pod, others: [&Pod; 2], wanted: bool) {
    for to in others {
        let address = address(to);
        let condition = format!("{}: pings are answered: {wanted}", to.name());
        eventually(&condition, || (from.pings(&address) == wanted).then_some(()));
    }
}

/// Waits until all of them accept connections, or none does.
fn answer_tcp(from: &Pod, others: [&Pod; 2], wanted: bool) {
    for to in others {
        let condition = format!("{}: connections are accepted: {wanted}", to.name());
        eventually(&condition, || {
            let seen = source_seen(from, to, &address(to));
            assert!(seen.is_none_or(|source| source.to_string() == address(from)), "{seen:?}");
            (seen.is_some() == wanted).then_some(())
        });
    }
}

#[test]
fn security_groups_admit_only_permitted_traffic() {
    let nodes = ["node-1", "node-2"];
    let Some(cluster) = OpenStack::new(host!(), Mode::Open, &nodes) else { return };
    let neutron = &cluster.neutron;
    let (closed, other) = (group(neutron, "closed"), group(neutron, "other"));
    cluster.start_controller("controller", &json!({ "podSecurityGroups": [closed] }), &[]);
    nodes.iter().for_each(|node| cluster.start_agent(node, &[]));
    cluster.wait_until_leading("controller");
    let _net = cluster.network("net-a", "10.23.0.0/24", &json!({}));
    let pods = [("node-1", "web"), ("node-1", "near"), ("node-2", "db")].map(|(node, name)| {
        let uid = cluster.pod(node, name, "net-a");
        let sandbox = cluster.machine.pod(name);
        let _ = cluster.wait_for_vifs(name);
        let default = configuration(node, &bridge("home", 10));
        cluster.attachment(node, &sandbox, name, &uid).add(&default).success();
        (node, name, uid, sandbox)
    });
    let port_of = |name: &str| cluster.wait_for_vifs(name)[0]["id"].as_str().unwrap().to_owned();
    for (_, name, ..) in &pods {
        assert_eq!(neutron.port(&port_of(name))["security_groups"], json!([closed]), "{name}");
    }
    let web = &pods[0].3;
    let others = [&pods[1].3, &pods[2].3];
    answer_pings(web, others, false);
    answer_tcp(web, others, false);
    // A refused pod gets no answer from a known neighbour.
    for to in others {
        let neighbour = web.json(["ip", "-j", "neigh", "show", &address(to)]);
        assert_ne!(neighbour[0]["lladdr"], Value::Null, "{}: {neighbour}", to.name());
    }
    // Only permitted traffic arrives.
    let rule = permit(neutron, &closed, "icmp");
    answer_pings(web, others, true);
    answer_tcp(web, others, false);
    permit(neutron, &closed, "tcp");
    answer_tcp(web, others, true);
    let _ = neutron.ask("DELETE", &format!("security-group-rules/{rule}"), None);
    answer_pings(web, others, false);
    answer_tcp(web, others, true);
    // With another group, traffic that only the old group permits does not arrive.
    permit(neutron, &other, "icmp");
    for name in ["near", "db"] {
        let change = json!({ "port": { "security_groups": [other] } });
        let _ = neutron.api("PUT", &format!("ports/{}", port_of(name)), Some(&change));
    }
    answer_pings(web, others, true);
    answer_tcp(web, others, false);
    // A pod cannot use an address that its port does not have.
    let near = &pods[1].3;
    web.run(["ip", "address", "add", "10.23.0.250/24", "dev", "net1"]);
    let spoofed =
        ["ping", "-n", "-q", "-c", "3", "-i", "0.2", "-w", "3", "-I", "10.23.0.250", &address(near)];
    assert_ne!(web.attempt(spoofed).code, Some(0), "a spoofed address is accepted");
    assert!(web.pings(&address(near)));
    for (node, name, uid, sandbox) in &pods {
        let default = configuration(node, &bridge("home", 10));
        cluster.attachment(node, sandbox, name, uid).del(&default).success();
        cluster.delete_pod(name);
    }
    cluster.assert_nothing_left("controller");
}
