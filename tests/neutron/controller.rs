//! The controller between a real API server and a real Neutron, when pods ask for what they cannot have, when Neutron
//! cannot now, and when controllers come and go.
//!
//! Neutron runs with its own mechanism drivers for tests: the name of a node says how its ports are bound.
//!
//! Source: the specification; Kuryr-Kubernetes and its bugs (`docs/neutron.md`); DESIGN, "nothing leaks".

use std::collections::BTreeSet;

use rig::OpenStack;
use rig::machine::CONFIGURATIONS;
use rig::neutron::{Mode, NEUTRON, Subnet};
use rig::openstack::{BOUND, KURYR_CONFIG, NAMESPACE, UNBOUND, VIF, eventually};
use serde_json::{Value, json};
use testkit::host;

/// A balancer before Neutron: the file, and what is in it.
const BALANCER: (&str, &str) = (
    "/run/haproxy.cfg",
    "defaults\n mode http\n retries 0\n timeout connect 5s\n timeout client 60s\n timeout server 60s\n\
     listen neutron\n bind 127.0.0.1:9796\n server one 127.0.0.1:9696\n",
);

#[test]
fn a_pod_that_cannot_have_its_ports_is_told_why_and_harms_nobody() {
    let Some(cluster) = OpenStack::beside_api(host!()) else { return };
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
        // A part that works and one that does not.
        ("partial", "net-a,gone", &["NeutronRefused", "SubnetNotFound"]),
        ("nested", "nested", &["NodeUnknown", "nested-vlan"]),
    ];
    cluster.definition("nested", &json!({ "subnetId": subnet.id, "driverType": "nested-vlan" }));
    for (name, networks, _) in refusals {
        cluster.pod(BOUND, name, networks);
    }
    cluster.pod(UNBOUND, "unbound", "net-a");
    // Beside them all: an element after one of another namespace is in the pod's own, and what is asked for is had.
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
    // However often it is tried: what was made for it is taken up again, and what cannot be used is removed.
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
fn what_neutron_cannot_do_now_is_done_when_it_can() {
    let Some(cluster) = OpenStack::beside_api(host!()) else { return };
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
    // Exhausted.
    quota(0);
    cluster.pod(BOUND, "quota", "net-a");
    cluster.wait_for_event("quota", &["NeutronQuota", "Quota exceeded"]);
    quota(-1);
    assert_eq!(cluster.wait_for_vifs("quota").len(), 1);
    // Slow: it takes the connection, and says nothing.
    neutron.signal("STOP");
    cluster.pod(BOUND, "slow", "net-a");
    cluster.wait_for_event("slow", &["NeutronUnreachable", "no response within 10 s"]);
    neutron.signal("CONT");
    assert_eq!(cluster.wait_for_vifs("slow").len(), 1);
    // What it had begun when nobody waited any more is taken up, not made twice.
    let slow = cluster.kube.json(["pod", "-n", NAMESPACE, "slow"])["metadata"]["uid"].clone();
    assert_eq!(neutron.ports(&format!("device_id={}", slow.as_str().unwrap())).len(), 1);
    // Broken inside.
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
    // Away.
    let away = "table inet away { chain in { type filter hook input priority 0; tcp dport 9696 reject with tcp reset; }; }";
    cluster.machine.run(["nft", away]);
    cluster.pod(BOUND, "away", "net-a");
    cluster.wait_for_event("away", &["NeutronUnreachable"]);
    cluster.delete_pod("quota");
    cluster.machine.run(["nft", "delete table inet away"]);
    assert_eq!(cluster.wait_for_vifs("away").len(), 1);
    // Away behind a balancer, which says so.
    cluster.machine.stop("one", "TERM");
    cluster.machine.write(BALANCER.0, BALANCER.1);
    cluster.machine.start("balancer", ["/usr/sbin/haproxy", "-db", "-f", BALANCER.0]);
    let behind = "OS_ENDPOINT=http://127.0.0.1:9796";
    cluster.start_controller_as("two", &["OS_AUTH_TYPE=none", behind], &[]);
    cluster.wait_until_leading("two");
    cluster.machine.run(["nft", away]);
    cluster.pod(BOUND, "behind", "net-a");
    // An Event of its own, whatever was told before.
    cluster.wait_for_event("behind", &["NeutronUnreachable", "503"]);
    cluster.machine.run(["nft", "delete table inet away"]);
    assert_eq!(cluster.wait_for_vifs("behind").len(), 1);
    for name in ["slow", "broken", "away", "behind"] {
        cluster.delete_pod(name);
    }
    cluster.assert_nothing_left("two");
}

#[test]
fn a_kuryrport_is_written_and_read_and_goes_with_its_pod() {
    let Some(cluster) = OpenStack::beside_api(host!()) else { return };
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
    // Another controller begins where this one ended.
    cluster.machine.stop("one", "TERM");
    cluster.start_controller("two", &json!({}), &["--vif-store", "kuryrport"]);
    cluster.wait_until_leading("two");
    assert_eq!(cluster.neutron.pod_ports().len(), 1);
    cluster.delete_pod("web");
    cluster.assert_nothing_left("two");
}

/// ML2/OVS's own mechanism driver, and what an agent with the firewall driver `iptables_hybrid` reports of its host.
#[test]
fn a_host_of_hybrid_plugging_has_a_bridge_for_each_port() {
    let Some(cluster) = OpenStack::new(host!(), Mode::Agents, &[]) else { return };
    let report = "import sqlite3,json;c=sqlite3.connect('/run/neutron/neutron/neutron.db',timeout=20);\
        now,for_ever='2020-01-01 00:00:00.000000','2099-01-01 00:00:00.000000';\
        told=json.dumps({'ovs_hybrid_plug':True,'datapath_type':'system','bridge_mappings':{},'tunnel_types':['vxlan'],\
        'tunneling_ip':'192.0.2.1','integration_bridge':'br-int'});\
        c.execute('insert into agents (id,agent_type,binary,topic,host,created_at,started_at,heartbeat_timestamp,\
        configurations,admin_state_up) values (?,?,?,?,?,?,?,?,?,1)',('11111111-1111-1111-1111-111111111111',\
        'Open vSwitch agent','neutron-openvswitch-agent','N/A','hybrid',now,now,for_ever,told));c.commit()";
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

/// A node that is a guest on a network, whose pods have macvlans: the network, and its port.
fn guest(cluster: &OpenStack) -> (Subnet, Value) {
    let net = cluster.network("net-a", "10.21.0.0/24", &json!({}));
    cluster.definition("nested", &json!({ "subnetId": net.id, "driverType": "nested-macvlan" }));
    let new = json!({ "port": { "network_id": net.network, "fixed_ips": [{ "subnet_id": net.id }],
        "device_owner": "compute:nova", "binding:host_id": BOUND } });
    let port = cluster.neutron.api("POST", "ports", Some(&new))["port"].clone();
    (net, port)
}

/// What a macvlan sends is let through by the port of its node, which all of them change, and others too: each by what it has
/// read, on condition that nobody was faster. Neutron gives a port ten such addresses.
#[test]
fn macvlans_of_a_node_change_its_port_all_at_once_and_none_is_lost_and_no_more_than_it_may_have() {
    let Some(cluster) = OpenStack::beside_api(host!()) else { return };
    let (net, node) = guest(&cluster);
    let path = format!("ports/{}", node["id"].as_str().unwrap());
    let spoken_for = || -> BTreeSet<String> {
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
    // All are there when it begins: it works for many at a time.
    cluster.start_controller("one", &json!({ "workerNodesSubnets": [net.id] }), &[]);
    cluster.wait_until_leading("one");
    let mut renamed = 0;
    while spoken_for().len() < 10 {
        assert!(renamed < 300, "{:?}; {}", spoken_for(), cluster.machine.log("one"));
        renamed += 1;
        let name = json!({ "port": { "name": format!("guest-{renamed}") } });
        let _ = cluster.neutron.api("PUT", &path, Some(&name));
        // Whoever begins at once again lets nobody in: Neutron begins anew where two meet.
        std::thread::sleep(std::time::Duration::from_millis(500));
    }
    assert_eq!(cluster.neutron.port(node["id"].as_str().unwrap())["name"], format!("guest-{renamed}"));
    let addresses: BTreeSet<String> = names.iter().map(address).collect();
    assert_eq!((addresses.len(), spoken_for()), (10, addresses));
    // One more is told, and comes in for one that goes.
    let late = ["late".to_owned()];
    pods(&late);
    cluster.wait_for_event("late", &["NeutronRefused", "max_allowed_address_pair"]);
    cluster.delete_pod(&names[0]);
    let address = address(&late[0]);
    assert!(spoken_for().contains(&address), "{address}");
    for name in names[1..].iter().chain(&late) {
        cluster.delete_pod(name);
    }
    eventually("nobody is spoken for", || spoken_for().is_empty().then_some(()));
    cluster.assert_nothing_left("one");
}

/// Stands before Neutron, and changes a port whenever somebody is about to change it by what was read before: three times.
const MEANWHILE: &str = r#"
import http.server, json, sys, urllib.error, urllib.request
neutron, left = sys.argv[1], 3
def ask(method, path, headers, body):
    question = urllib.request.Request(neutron + path, body, headers, method=method)
    try:
        answer = urllib.request.urlopen(question, timeout=60)
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

/// Neutron says 412 to whoever changes a port by what it was before somebody else changed it.
#[test]
fn a_node_port_that_somebody_else_has_just_changed_is_read_again_and_nothing_of_theirs_is_lost() {
    let Some(cluster) = OpenStack::beside_api(host!()) else { return };
    let (net, node) = guest(&cluster);
    let path = format!("{CONFIGURATIONS}/behind.yaml");
    cluster.machine.write(&path, json!({ "neutron": { "workerNodesSubnets": [net.id] } }).to_string());
    cluster.machine.start("relay", ["/usr/bin/python3", "-c", MEANWHILE, NEUTRON]);
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
