//! Controller between a real API server and a real Neutron: pods whose ports cannot be created, Neutron
//! failures, nested ports that are changed concurrently.
//!
//! Neutron runs with Neutron's mechanism drivers for tests: a node's name decides how ports there are bound.
//!
//! Source: Kuryr-Kubernetes, and bugs in it (`docs/neutron.md`).

use std::collections::BTreeSet;

use rig::OpenStack;
use rig::machine::CONFIGURATIONS;
use rig::neutron::{Mode, NEUTRON, Subnet};
use rig::openstack::{BOUND, KURYR_CONFIG, NAMESPACE, UNBOUND, VIF, eventually};
use serde_json::{Value, json};
use testkit::host;

/// Configuration of a load balancer in front of Neutron: path and content.
const BALANCER: (&str, &str) = (
    "/run/haproxy.cfg",
    "defaults\n mode http\n retries 0\n timeout connect 5s\n timeout client 60s\n timeout server 60s\n\
     listen neutron\n bind 127.0.0.1:9796\n server one 127.0.0.1:9696\n",
);

#[test]
fn port_failures_are_events_and_affect_no_other_pod() {
    let Some(cluster) = OpenStack::without_switch(host!()) else { return };
    let subnet = cluster.network("net-a", "10.21.0.0/24", &json!({}));
    let config = |value: Value| json!({ KURYR_CONFIG: value.to_string() });
    cluster.definition("sriov", &json!({ "subnetId": subnet.id, "driverType": "sriov" }));
    cluster.definition("bare", &json!({}));
    cluster.definition("gone", &json!({ "subnetId": "00000000-0000-0000-0000-000000000000" }));
    cluster.definition_in(NAMESPACE, "broken", &json!({ KURYR_CONFIG: "{" }));
    cluster.definition_in("red", "net-c", &config(json!({ "subnetId": subnet.id })));
    cluster.start_controller("one", &json!({}), &[]);
    cluster.wait_until_leading("one");
    let refusals: [(&str, &str, &[&str]); 7] = [
        ("json", r#"[{"name":"net-a","mac":5}]"#, &["AnnotationIgnored", "mac"]),
        ("driver", "sriov", &["NetworkRefused", "neutron-vif, nested-vlan, nested-macvlan"]),
        ("unknown", "nowhere", &["NetworkRefused", "blue/nowhere", "no such"]),
        ("bare", "bare", &["NetworkRefused", "subnetId"]),
        ("broken", "broken", &["NetworkRefused", "blue/broken", KURYR_CONFIG]),
        // One port can be created, the other cannot.
        ("partial", "net-a,gone", &["NeutronRefused", "SubnetNotFound"]),
        ("nested", "nested", &["NodeUnknown", "nested-vlan"]),
    ];
    cluster.definition("nested", &json!({ "subnetId": subnet.id, "driverType": "nested-vlan" }));
    for (name, networks, _) in refusals {
        cluster.pod(BOUND, name, networks);
    }
    cluster.pod(UNBOUND, "unbound", "net-a");
    // Meanwhile an element that follows one of another namespace is in the pod's own namespace, and requested values are set.
    cluster.pod(BOUND, "good", "red/net-c,net-a");
    cluster.pod(BOUND, "asks", r#"[{"name":"net-a","ips":["10.21.0.77/24"],"mac":"02:00:00:00:00:77"}]"#);
    let names: Vec<Value> = cluster.wait_for_vifs("good").iter().map(|vif| vif["ifname"].clone()).collect();
    assert_eq!(names, ["eth1", "eth2"]);
    let asks = &cluster.wait_for_vifs("asks")[0];
    assert_eq!((&asks["ips"], &asks["mac"]), (&json!(["10.21.0.77"]), &json!("02:00:00:00:00:77")));
    for (name, _, words) in refusals {
        cluster.wait_for_event(name, words);
        assert_eq!(cluster.annotation(name, VIF), None, "{name}");
    }
    cluster.wait_for_event("unbound", &["PortNotBound", UNBOUND]);
    // After all retries, created ports are reused, and ports that cannot be used are deleted.
    std::thread::sleep(std::time::Duration::from_secs(6));
    let ports = cluster.neutron.pod_ports();
    let owners: BTreeSet<&str> = ports.iter().map(|port| port["device_id"].as_str().unwrap()).collect();
    assert!(ports.len() <= 5 && owners.len() <= 5, "{ports:#?}");
    let on_unknown = ports.iter().filter(|port| port["binding:host_id"] == UNBOUND).count();
    assert!(on_unknown <= 1, "{on_unknown}");
    for name in ["good", "asks", "unbound"].into_iter().chain(refusals.map(|(name, ..)| name)) {
        cluster.delete_pod(name);
    }
    cluster.assert_nothing_left("one");
}

#[test]
fn neutron_outage_and_quota_are_retried_until_ports_exist() {
    let Some(cluster) = OpenStack::without_switch(host!()) else { return };
    let neutron = &cluster.neutron;
    let _net = cluster.network("net-a", "10.21.0.0/24", &json!({}));
    let endpoint = format!("OS_ENDPOINT={NEUTRON}");
    cluster.start_controller_as("one", &["OS_AUTH_TYPE=none", &endpoint, "OS_API_TIMEOUT=10"], &[]);
    cluster.wait_until_leading("one");
    let project = cluster.neutron.ports("").first().map_or_else(
        || neutron.api("GET", "networks", None)["networks"][0]["project_id"].clone(),
        |port| port["project_id"].clone(),
    );
    let project = project.as_str().unwrap().to_owned();
    let quota = |ports: i64| {
        let _ =
            neutron.api("PUT", &format!("quotas/{project}"), Some(&json!({ "quota": { "port": ports } })));
    };
    // Exhausted quota.
    quota(0);
    cluster.pod(BOUND, "quota", "net-a");
    cluster.wait_for_event("quota", &["NeutronQuota", "Quota exceeded"]);
    quota(-1);
    assert_eq!(cluster.wait_for_vifs("quota").len(), 1);
    // Neutron accepts the connection and does not answer.
    neutron.signal("STOP");
    cluster.pod(BOUND, "slow", "net-a");
    cluster.wait_for_event("slow", &["NeutronUnreachable", "no response within 10 s"]);
    neutron.signal("CONT");
    assert_eq!(cluster.wait_for_vifs("slow").len(), 1);
    // A port whose creation was begun before the timeout is reused, not created twice.
    let slow = cluster.kube.json(["pod", "-n", NAMESPACE, "slow"])["metadata"]["uid"].clone();
    assert_eq!(neutron.ports(&format!("device_id={}", slow.as_str().unwrap())).len(), 1);
    // Internal error.
    let rename = |from: &str, to: &str| {
        let script = "import sqlite3,sys;c=sqlite3.connect('/run/neutron/neutron/neutron.db',timeout=20);\
                      c.execute('PRAGMA legacy_alter_table=ON');c.execute(f'ALTER TABLE {sys.argv[1]} RENAME TO {sys.argv[2]}');c.commit()";
        cluster.machine.run(["/usr/bin/python3", "-c", script, from, to]);
    };
    rename("ipallocations", "away");
    cluster.pod(BOUND, "broken", "net-a");
    cluster.wait_for_event("broken", &["NeutronRefused", "500"]);
    rename("away", "ipallocations");
    assert_eq!(cluster.wait_for_vifs("broken").len(), 1);
    // Connection refused.
    let away = "table inet away { chain in { type filter hook input priority 0; tcp dport 9696 reject with tcp reset; }; }";
    cluster.machine.run(["nft", away]);
    cluster.pod(BOUND, "away", "net-a");
    cluster.wait_for_event("away", &["NeutronUnreachable"]);
    cluster.delete_pod("quota");
    cluster.machine.run(["nft", "delete table inet away"]);
    assert_eq!(cluster.wait_for_vifs("away").len(), 1);
    // Connection refused behind a load balancer, which reports it.
    cluster.machine.stop("one", "TERM");
    cluster.machine.write(BALANCER.0, BALANCER.1);
    cluster.machine.start("balancer", ["/usr/sbin/haproxy", "-db", "-f", BALANCER.0]);
    let behind = "OS_ENDPOINT=http://127.0.0.1:9796";
    cluster.start_controller_as("two", &["OS_AUTH_TYPE=none", behind], &[]);
    cluster.wait_until_leading("two");
    cluster.machine.run(["nft", away]);
    cluster.pod(BOUND, "behind", "net-a");
    // A new Event, regardless of earlier ones.
    cluster.wait_for_event("behind", &["NeutronUnreachable", "503"]);
    cluster.machine.run(["nft", "delete table inet away"]);
    assert_eq!(cluster.wait_for_vifs("behind").len(), 1);
    for name in ["slow", "broken", "away", "behind"] {
        cluster.delete_pod(name);
    }
    cluster.assert_nothing_left("two");
}

#[test]
fn kuryrport_is_written_and_deleted_with_its_pod() {
    let Some(cluster) = OpenStack::without_switch(host!()) else { return };
    let _net = cluster.network("net-a", "10.21.0.0/24", &json!({}));
    cluster.start_controller("one", &json!({}), &["--vif-store", "kuryrport"]);
    cluster.wait_until_leading("one");
    let uid = cluster.pod(BOUND, "web", "net-a");
    let port = eventually("a KuryrPort", || {
        let found = cluster.kube.attempt(["get", "kuryrport", "-n", NAMESPACE, "web", "-o", "json"], "");
        (found.code == Some(0))
            .then(|| found.json())
            .filter(|port| port["status"]["vifs"]["eth1"]["vif"].is_object())
    });
    assert_eq!((&port["spec"]["podUid"], &port["spec"]["podNodeName"]), (&json!(uid), &json!(BOUND)));
    assert_eq!(port["metadata"]["ownerReferences"][0]["uid"], uid);
    assert_eq!(port["metadata"]["labels"]["kuryr.openstack.org/nodeName"], BOUND);
    assert_eq!(cluster.read_by_os_vif(&port.to_string())[0]["type"], "VIFOpenVSwitch");
    assert_eq!(cluster.annotation("web", VIF), None);
    // Another controller takes over the state.
    cluster.machine.stop("one", "TERM");
    cluster.start_controller("two", &json!({}), &["--vif-store", "kuryrport"]);
    cluster.wait_until_leading("two");
    assert_eq!(cluster.neutron.pod_ports().len(), 1);
    cluster.delete_pod("web");
    cluster.assert_nothing_left("two");
}

/// Covers the mechanism driver of ML2/OVS, with the report of an agent with the firewall driver `iptables_hybrid`.
#[test]
fn hybrid_plugging_has_a_bridge_for_each_port() {
    let Some(cluster) = OpenStack::new(host!(), Mode::Agents, &[]) else { return };
    let report = "import sqlite3,json;c=sqlite3.connect('/run/neutron/neutron/neutron.db',timeout=20);\
        now,for_ever='2020-01-01 00:00:00.000000','2099-01-01 00:00:00.000000';\
        reported=json.dumps({'ovs_hybrid_plug':True,'datapath_type':'system','bridge_mappings':{},'tunnel_types':['vxlan'],\
        'tunneling_ip':'192.0.2.1','integration_bridge':'br-int'});\
        c.execute('insert into agents (id,agent_type,binary,topic,host,created_at,started_at,heartbeat_timestamp,\
        configurations,admin_state_up) values (?,?,?,?,?,?,?,?,?,1)',('11111111-1111-1111-1111-111111111111',\
        'Open vSwitch agent','neutron-openvswitch-agent','N/A','hybrid',now,now,for_ever,reported));c.commit()";
    cluster.machine.run(["/usr/bin/python3", "-c", report]);
    let _net = cluster.network("net-a", "10.21.0.0/24", &json!({}));
    cluster.start_controller("one", &json!({}), &[]);
    cluster.wait_until_leading("one");
    cluster.pod("hybrid", "web", "net-a");
    let vif = &cluster.wait_for_vifs("web")[0];
    assert_eq!(vif["type"], "VIFBridge", "{vif}");
    let port = cluster.neutron.port(vif["id"].as_str().unwrap());
    assert_eq!(port["binding:vif_details"]["ovs_hybrid_plug"], json!(true), "{port}");
    let text = cluster.annotation("web", VIF).unwrap();
    assert!(text.contains(&format!("\"qbr{}\"", &port["id"].as_str().unwrap()[..11])), "{text}");
    cluster.delete_pod("web");
    cluster.assert_nothing_left("one");
}

/// Creates a network and the port of a node that is a guest on it; pods of the node have macvlans.
fn guest(cluster: &OpenStack) -> (Subnet, Value) {
    let net = cluster.network("net-a", "10.21.0.0/24", &json!({}));
    cluster.definition("nested", &json!({ "subnetId": net.id, "driverType": "nested-macvlan" }));
    let new = json!({ "port": { "network_id": net.network, "fixed_ips": [{ "subnet_id": net.id }],
        "device_owner": "compute:nova", "binding:host_id": BOUND } });
    let port = cluster.neutron.api("POST", "ports", Some(&new))["port"].clone();
    (net, port)
}

/// Covers allowed address pairs of a node's port, which the controller and other clients change concurrently, each on the
/// condition that the port is unchanged since it was read. Neutron permits ten pairs for each port.
#[test]
fn nested_macvlan_concurrent_address_pairs_are_all_kept() {
    let Some(cluster) = OpenStack::without_switch(host!()) else { return };
    let (net, node) = guest(&cluster);
    let path = format!("ports/{}", node["id"].as_str().unwrap());
    let address_pairs = || -> BTreeSet<String> {
        let port = cluster.neutron.port(node["id"].as_str().unwrap());
        let pairs = port["allowed_address_pairs"].as_array().unwrap().iter();
        pairs.map(|pair| pair["ip_address"].as_str().unwrap().to_owned()).collect()
    };
    let pods = |names: &[String]| {
        cluster.pods(BOUND, names, "nested");
        for name in names {
            cluster.set_host_address(name, node["fixed_ips"][0]["ip_address"].as_str().unwrap());
        }
    };
    let address = |name: &String| cluster.wait_for_vifs(name)[0]["ips"][0].as_str().unwrap().to_owned();
    let names: Vec<String> = (0..10).map(|number| format!("pod-{number}")).collect();
    pods(&names);
    // All pods exist when the controller starts, so it handles many at a time.
    cluster.start_controller("one", &json!({ "workerNodesSubnets": [net.id] }), &[]);
    cluster.wait_until_leading("one");
    let mut renamed = 0;
    while address_pairs().len() < 10 {
        assert!(renamed < 300, "{:?}; {}", address_pairs(), cluster.machine.log("one"));
        renamed += 1;
        let name = json!({ "port": { "name": format!("guest-{renamed}") } });
        let _ = cluster.neutron.api("PUT", &path, Some(&name));
        // Without a pause, other clients would never succeed: Neutron restarts a request when two conflict.
        std::thread::sleep(std::time::Duration::from_millis(500));
    }
    assert_eq!(cluster.neutron.port(node["id"].as_str().unwrap())["name"], format!("guest-{renamed}"));
    let addresses: BTreeSet<String> = names.iter().map(address).collect();
    assert_eq!((addresses.len(), address_pairs()), (10, addresses));
    // One more pod is refused, and gets the address pair once another pod is deleted.
    let late = ["late".to_owned()];
    pods(&late);
    cluster.wait_for_event("late", &["NeutronRefused", "max_allowed_address_pair"]);
    cluster.delete_pod(&names[0]);
    let address = address(&late[0]);
    assert!(address_pairs().contains(&address), "{address}");
    for name in names[1..].iter().chain(&late) {
        cluster.delete_pod(name);
    }
    eventually("no address pair remains", || address_pairs().is_empty().then_some(()));
    cluster.assert_nothing_left("one");
}

/// Relay in front of Neutron: it changes a port before the first three conditional changes of that port.
const CONFLICTING_RELAY: &str = r#"
import http.server, json, sys, urllib.error, urllib.request
neutron, left = sys.argv[1], 3
def ask(method, path, headers, body):
    request = urllib.request.Request(neutron + path, body, headers, method=method)
    try:
        answer = urllib.request.urlopen(request, timeout=60)
    except urllib.error.HTTPError as refused:
        answer = refused
    return answer.status, answer.headers.get('Content-Type'), answer.read()
class Relay(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def relay(self):
        global left
        body = self.rfile.read(int(self.headers.get('Content-Length') or 0)) or None
        headers = {key: self.headers[key] for key in ('Content-Type', 'If-Match') if self.headers[key]}
        if self.command == 'PUT' and 'If-Match' in headers and left > 0:
            left -= 1
            name = json.dumps({'port': {'name': f'faster-{left}'}}).encode()
            ask('PUT', self.path, {'Content-Type': 'application/json'}, name)
        status, kind, answer = ask(self.command, self.path, headers, body)
        self.send_response(status)
        if kind:
            self.send_header('Content-Type', kind)
        self.send_header('Content-Length', str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)
    do_GET = do_PUT = do_POST = do_DELETE = relay
    def log_message(self, *_):
        pass
http.server.ThreadingHTTPServer(('127.0.0.1', 9797), Relay).serve_forever()
"#;

/// Covers status 412: the port was changed since it was read.
#[test]
fn nested_macvlan_retries_when_the_node_port_was_changed() {
    let Some(cluster) = OpenStack::without_switch(host!()) else { return };
    let (net, node) = guest(&cluster);
    let path = format!("{CONFIGURATIONS}/behind.yaml");
    cluster.machine.write(&path, json!({ "neutron": { "workerNodesSubnets": [net.id] } }).to_string());
    cluster.machine.start("relay", ["/usr/bin/python3", "-c", CONFLICTING_RELAY, NEUTRON]);
    let before = ["OS_AUTH_TYPE=none", "OS_ENDPOINT=http://127.0.0.1:9797"];
    cluster.machine.wait("relay", "answers", || {
        let asked = cluster.machine.attempt(["curl", "-sf", "http://127.0.0.1:9797/"]);
        (asked.code == Some(0)).then_some(())
    });
    cluster.start_controller_as("one", &before, &["--config", &path]);
    cluster.wait_until_leading("one");
    cluster.pod(BOUND, "web", "nested");
    cluster.set_host_address("web", node["fixed_ips"][0]["ip_address"].as_str().unwrap());
    let address = cluster.wait_for_vifs("web")[0]["ips"][0].clone();
    let port = cluster.neutron.port(node["id"].as_str().unwrap());
    assert_eq!(port["name"], "faster-0", "{port}");
    assert_eq!(port["allowed_address_pairs"][0]["ip_address"], address, "{port}");
    let log = cluster.machine.log("one");
    let refused = log.lines().filter(|line| line.contains("status=412") || line.contains("\"status\":412"));
    assert_eq!(refused.count(), 3, "{log}");
    cluster.delete_pod("web");
    cluster.assert_nothing_left("one");
}
