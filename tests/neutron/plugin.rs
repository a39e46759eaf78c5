//! Plugin `neutron` with a real Neutron: attached ports carry traffic, and deleted ones leave nothing.
//!
//! ```text
//!   a ── tap ─ br-int ─ machine (node-1) ── Geneve ── node-2 ─ br-int ─ tap ── c
//!   b ── tap ─┘
//! ```
//!
//! Source: ovn-architecture(7), "Life Cycle of a VIF"; os_vif `vif_plug_ovs`.

use std::sync::Arc;

use rig::machine::until;
use rig::neutron::{Mode, Subnet};
use rig::{Machine, Neutron, with};
use serde_json::{Value, json};
use testkit::{Attachment, Pod, host};

/// Creates a port for a node.
pub(crate) fn port(neutron: &Neutron, subnet: &Subnet, chassis: &str) -> Value {
    let port = json!({ "port": {
        "network_id": subnet.network, "fixed_ips": [{ "subnet_id": subnet.id }], "device_owner": "compute:kuryr",
        "binding:host_id": chassis } });
    neutron.api("POST", "ports", Some(&port))["port"].clone()
}

pub(crate) fn address(port: &Value) -> &str {
    port["fixed_ips"][0]["ip_address"].as_str().expect("an address")
}

/// Configuration of the plugin for a port, as the agent writes it.
pub(crate) fn config(neutron: &Neutron, chassis: &str, port: &Value, kind: &str) -> Value {
    json!({
        "cniVersion": "1.0.0", "name": "os", "type": "neutron", "ovsdb": neutron.ovsdb(chassis), "timeout": 20,
        "vif": {
            "id": port["id"], "mac": port["mac_address"], "kind": kind, "bridge": "br-int", "mtu": 1442,
            "result": { "ips": [{ "address": format!("{}/24", address(port)) }] },
        },
    })
}

pub(crate) fn attachment<'a>(machine: &'a Arc<Machine>, chassis: &str, pod: &Pod) -> Attachment<'a> {
    let mut attachment = machine.attachment("neutron", pod, "eth0");
    if chassis != "node-1" {
        attachment.through = vec!["nsenter".into(), format!("--net=/run/netns/{chassis}"), "--".into()];
    }
    attachment
}

fn status(neutron: &Neutron, port: &Value) -> String {
    neutron.port(port["id"].as_str().unwrap())["status"].as_str().unwrap().to_owned()
}

/// Whether a TCP stream arrives completely; a wrong checksum would stop it.
fn carries_tcp(from: &Pod, to: &Pod, address: &str) -> bool {
    let serve = "import socket,sys;s=socket.create_server(('0.0.0.0',5001));print('up',flush=True);s.settimeout(30);\
                 c,_=s.accept();n=0\nwhile d:=c.recv(65536): n+=len(d)\nprint(n)";
    let send = "import socket,sys;s=socket.create_connection((sys.argv[1],5001),timeout=25)\n\
                for _ in range(200): s.sendall(b'x'*10000)\ns.close()";
    std::thread::scope(|scope| {
        let server = scope.spawn(|| to.attempt(["/usr/bin/python3", "-c", serve]));
        until("the server listens", || to.run(["ss", "-ltn"]).contains(":5001").then_some(()));
        from.attempt(["/usr/bin/python3", "-c", send, address]);
        server.join().unwrap().stdout.contains("2000000")
    })
}

#[test]
fn neutron_plugin_ports_work_across_chassis_and_leave_nothing() {
    let machine = Arc::new(Machine::new(host!(), "node"));
    let Some(neutron) = Neutron::new(Arc::clone(&machine), Mode::Open, &["node-1", "node-2"]) else { return };
    rig::install(&machine);
    let subnet = neutron.subnet("pods", "10.20.0.0/24", &json!({}));
    let pods = [("a", "node-1", "ovs"), ("b", "node-1", "bridge"), ("c", "node-2", "ovs")];
    let before = machine.snapshot();
    let attached: Vec<_> = pods
        .iter()
        .map(|(name, chassis, kind)| {
            let pod = machine.pod(name);
            let port = port(&neutron, &subnet, chassis);
            let config = config(&neutron, chassis, &port, kind);
            let result = attachment(&machine, chassis, &pod).add(&config).success().json();
            assert_eq!(result["interfaces"][0]["mac"], port["mac_address"]);
            until("ACTIVE", || (status(&neutron, &port) == "ACTIVE").then_some(()));
            let link = &pod.json(["ip", "-j", "link", "show", "eth0"])[0];
            assert_eq!((&link["mtu"], &link["address"]), (&json!(1442), &port["mac_address"]));
            (pod, *chassis, port, with(&config, &json!({ "prevResult": result })))
        })
        .collect();
    let (a, _, port_a, config_a) = &attached[0];
    for (pod, chassis, port, config) in &attached {
        attachment(&machine, chassis, pod).check(config).success();
        if port != port_a {
            // OVN tells each switch of a port of another one when it comes to it.
            until(&format!("{} answers", pod.name()), || a.pings(address(port)).then_some(()));
            assert!(carries_tcp(a, pod, address(port)), "no TCP to {}", pod.name());
        }
    }
    // CHECK fails after the port of the switch is deleted.
    neutron.ovs("node-1", &["del-port", &neutron.plugged("node-1")[0]]);
    let broken = [0, 1].map(|n| attachment(&machine, "node-1", &attached[n].0).check(&attached[n].3).code);
    assert!(broken.iter().any(|code| *code != Some(0)), "{broken:?}");
    let _ = config_a;
    for (pod, chassis, port, config) in &attached {
        let attachment = attachment(&machine, chassis, pod);
        attachment.del(config).success();
        attachment.del(config).success();
        until("DOWN", || (status(&neutron, port) == "DOWN").then_some(()));
    }
    assert!(neutron.plugged("node-1").is_empty() && neutron.plugged("node-2").is_empty());
    let remaining = rig::changes(&before, &machine.snapshot());
    assert!(
        !remaining.contains("tap") && !remaining.contains("qbr") && !remaining.contains("qv"),
        "{remaining}"
    );
}

#[test]
fn neutron_plugin_failed_add_leaves_nothing() {
    let machine = Arc::new(Machine::new(host!(), "node"));
    let Some(neutron) = Neutron::new(Arc::clone(&machine), Mode::Open, &["node-1"]) else { return };
    rig::install(&machine);
    let subnet = neutron.subnet("pods", "10.20.0.0/24", &json!({}));
    let pod = machine.pod("a");
    let port = port(&neutron, &subnet, "node-1");
    let good = config(&neutron, "node-1", &port, "ovs");
    let attachment = attachment(&machine, "node-1", &pod);
    let before = machine.snapshot();
    let vif = |keys: &Value| with(&good, &json!({ "vif": with(&good["vif"], keys) }));
    let refusals = [
        (vif(&json!({ "bridge": "nowhere" })), "no such bridge"),
        (with(&good, &json!({ "ovsdb": "/run/missing.sock" })), "/run/missing.sock"),
        (with(&good, &json!({ "vif": null })), "weft controller --neutron"),
        (vif(&json!({ "id": "../../x" })), "not the id of a port"),
        (vif(&json!({ "kind": "sriov" })), "ovs, bridge, vlan, macvlan"),
        (vif(&json!({ "result": { "ips": [{ "address": "10.20.0.9" }] } })), "prefix length"),
        // Port that is bound nowhere: OVN never installs it.
        (
            with(&vif(&json!({ "id": "00000000-0000-0000-0000-000000000000" })), &json!({ "timeout": 1 })),
            "does not install",
        ),
    ];
    for (config, words) in refusals {
        let refused = attachment.add(&config);
        assert_ne!(refused.code, Some(0), "{words}");
        assert!(refused.stdout.contains(words), "{words}: {}", refused.stdout);
        assert!(neutron.plugged("node-1").is_empty(), "{words}");
        rig::until_unchanged(&machine, words, &before);
    }
    // Without the switch, DEL removes the link, and the port of the switch remains.
    attachment.add(&good).success();
    let process = machine.read("/run/neutron/ovn/node-1/ovsdb.pid").unwrap();
    machine.run(["kill", "-s", "STOP", process.trim()]);
    let socket = neutron.ovsdb("node-1");
    machine.run(["mv", &socket, &format!("{socket}.away")]);
    attachment.del(&good).success();
    assert_eq!(pod.json(["ip", "-j", "link"]).as_array().unwrap().len(), 1, "the link is deleted");
    machine.run(["mv", &format!("{socket}.away"), &socket]);
    machine.run(["kill", "-s", "CONT", process.trim()]);
    let remaining = neutron.plugged("node-1");
    assert_eq!(remaining.len(), 1, "{remaining:?}");
    // The next call with a running switch removes the port, for any pod.
    let other = machine.pod("other");
    let mut next = machine.attachment("neutron", &other, "eth0");
    next.container_id = "other".to_owned();
    next.del(&good).success();
    assert!(neutron.plugged("node-1").is_empty());
    // The Neutron port can be attached again.
    attachment.add(&good).success();
    until("ACTIVE", || (status(&neutron, &port) == "ACTIVE").then_some(()));
}

#[test]
fn neutron_plugin_concurrent_calls_keep_each_others_ports() {
    const PODS: usize = 5;
    const ROUNDS: usize = 2;
    let machine = Arc::new(Machine::new(host!(), "node"));
    let Some(neutron) = Neutron::new(Arc::clone(&machine), Mode::Open, &["node-1"]) else { return };
    rig::install(&machine);
    let subnet = neutron.subnet("pods", "10.20.0.0/24", &json!({}));
    let pods: Vec<(Pod, Value)> = (0..PODS)
        .map(|number| {
            let port = port(&neutron, &subnet, "node-1");
            (machine.pod(&format!("pod{number}")), config(&neutron, "node-1", &port, "ovs"))
        })
        .collect();
    // Concurrent calls must not delete a port whose link does not exist yet or any more.
    std::thread::scope(|scope| {
        for (pod, config) in &pods {
            let (machine, neutron) = (&machine, &neutron);
            scope.spawn(move || {
                let attachment = attachment(machine, "node-1", pod);
                for _ in 0..ROUNDS {
                    attachment.add(config).success();
                    let device = format!("tap{}", &config["vif"]["id"].as_str().unwrap()[..11]);
                    assert!(neutron.plugged("node-1").contains(&device), "{device} was deleted");
                    attachment.del(config).success();
                }
                attachment.add(config).success();
            });
        }
    });
    assert_eq!(neutron.plugged("node-1").len(), PODS);
    for (_, config) in &pods {
        until("ACTIVE", || (status(&neutron, &config["vif"]) == "ACTIVE").then_some(()));
    }
}
