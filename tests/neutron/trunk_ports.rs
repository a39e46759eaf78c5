//! Trunk ports: pods on a cloud guest whose port is a trunk, each with a VLAN that the switch knows.
//!
//! ```text
//!   pod ── VLAN 101 ── eth2 of the guest (qemu, Debian's kernel) ── tap ─ br-int (node-1) ─ tap ── near
//! ```
//!
//! The guest has a kernel with VLANs, which a small host kernel may lack. It cannot reach the API, so the plugin there
//! gets a configuration that contains the annotation's content, as the agent would write it.
//!
//! Source: Kuryr-Kubernetes `nested_vlan_vif.py`; Networking API v2.0, "Trunk networking"; ovn-nb(5) `parent_name`, `tag`.

use std::time::Duration;

use rig::cluster::bridge;
use rig::neutron::{Mode, Subnet};
use rig::openstack::{configuration, eventually};
use rig::parts::{parts, text};
use rig::{OpenStack, addresses_on};
use serde_json::{Value, json};
use testkit::{Feature, host, workspace};

/// Name of the guest as a Kubernetes node.
const GUEST: &str = "vm-1";

/// Script in the guest: `$1` is the port's hardware address, `$2` the IP address, `$3` an address to ping.
const SCRIPT: &str = r#"set -e
for link in /sys/class/net/*; do [ "$(cat $link/address)" != "$1" ] || link_name=${link##*/}; done
ip link set $link_name up
ip address add $2/24 dev $link_name
ip netns add pod
export CNI_CONTAINERID=pod CNI_NETNS=/run/netns/pod CNI_IFNAME=net1 CNI_PATH=/weft/bin
sed "s/MASTER/$link_name/" /weft/config >/tmp/config
CNI_COMMAND=ADD /weft/bin/neutron </tmp/config >/tmp/result || { cat /tmp/result; exit 3; }
echo "link $(ip -n pod -j -d link show net1)"
ip netns exec pod ping -n -c 3 -i 0.3 -w 60 $3
# Without the VLAN tag there is no answer.
! ip route add $3 dev $link_name || ! ping -n -c 2 -w 3 $3
CNI_COMMAND=DEL /weft/bin/neutron </tmp/config
CNI_COMMAND=DEL /weft/bin/neutron </tmp/config
! ip -n pod link show net1 2>/dev/null
echo all is well
"#;

fn word(value: &Value) -> &str {
    value.as_str().expect("a string")
}

/// Creates the guest's port on this subnet, connected to the switch, and a trunk on it; returns port, trunk id and device.
fn trunk(cluster: &OpenStack, subnet: &Subnet) -> (Value, String, String) {
    let neutron = &cluster.neutron;
    let new = json!({ "port": {
        "network_id": subnet.network, "fixed_ips": [{ "subnet_id": subnet.id }], "device_owner": "compute:nova",
        "binding:host_id": "node-1" } });
    let port = neutron.api("POST", "ports", Some(&new))["port"].clone();
    let id = word(&port["id"]);
    let trunk = neutron.api("POST", "trunks", Some(&json!({ "trunk": { "port_id": id } })));
    let device = format!("tap{}", &id[..11]);
    cluster.machine.run(["ip", "tuntap", "add", "dev", &device, "mode", "tap"]);
    cluster.machine.run(["ip", "link", "set", &device, "up"]);
    let set = format!("external_ids:iface-id={id}");
    neutron.ovs("node-1", &["add-port", "br-int", &device, "--", "set", "Interface", &device, &set]);
    eventually("the trunk is ACTIVE", || (neutron.port(id)["status"] == "ACTIVE").then_some(()));
    (port.clone(), word(&trunk["trunk"]["id"]).to_owned(), device)
}

/// Runs the script in the guest; returns the output.
fn boot(cluster: &OpenStack, card: &str, config: &Value, words: [&str; 3]) -> String {
    let machine = &cluster.machine;
    let files = "/run/guest/weft";
    machine.run(["mkdir", "-p", &format!("{files}/bin")]);
    let copy = r#"cp "$0" "$1/weft/bin/weft-cni" && ln -s weft-cni "$1/weft/bin/neutron"
        ldd "$0" 2>/dev/null | grep -o '/[^ ]*' | while read -r library; do
            mkdir -p "$1/usr$(dirname "${library#/usr}")" && cp -L "$library" "$1/usr${library#/usr}"
        done"#;
    machine.run(["sh", "-e", "-c", copy, text(&testkit::binary("weft-cni")), "/run/guest"]);
    machine.write(format!("{files}/config"), config.to_string());
    machine.write(format!("{files}/script"), SCRIPT);
    let target = parts("vm").expect("the lane is prepared").parent().expect("target").to_owned();
    let line = format!("sh /weft/script {}", words.join(" "));
    let boot = machine.command(text(&workspace().join("lanes/vm/boot"))).args(["/run/guest", &line]);
    let boot = boot.env("CARGO_TARGET_DIR", &target).env("WEFT_VM_TAP", card).env("WEFT_VM_MEMORY", "1024");
    boot.deadline(Duration::from_secs(400)).finish().success().stdout
}

/// Checks that the port is a VLAN in the guest and carries packets to `near` and back.
fn assert_vlan_carries_packets(cluster: &OpenStack, parent: &Value, device: &str, vif: &Value, near: &str) {
    let config = json!({
        "cniVersion": "1.0.0", "name": "net-a", "type": "neutron", "master": "MASTER",
        "vif": { "id": vif["id"], "mac": vif["mac"], "kind": "vlan", "vlanId": vif["vlan_id"], "mtu": 1400,
            "result": { "ips": [{ "address": format!("{}/24", word(&vif["ips"][0])) }] } },
    });
    let card = format!("{device},{}", word(&parent["mac_address"]));
    let output = boot(
        cluster,
        &card,
        &config,
        [word(&parent["mac_address"]), word(&parent["fixed_ips"][0]["ip_address"]), near],
    );
    assert!(output.contains("all is well") && output.contains("bytes from"), "{output}");
    let link = output.lines().find_map(|line| line.strip_prefix("link ")).expect("a link");
    let link: Value = serde_json::from_str(link).unwrap();
    let info = &link[0]["linkinfo"];
    assert_eq!((&info["info_kind"], &info["info_data"]["id"]), (&json!("vlan"), &vif["vlan_id"]), "{link}");
    assert_eq!(link[0]["address"], vif["mac"]);
}

#[test]
fn vlan_trunk_gives_each_pod_on_a_guest_a_vlan() {
    let host = host!(Feature::Tun);
    if parts("vm").is_none() {
        return;
    }
    let Some(cluster) = OpenStack::new(host, Mode::Open, &["node-1"]) else { return };
    let neutron = &cluster.neutron;
    let nodes = neutron.subnet("nodes", "10.27.0.0/24", &json!({}));
    let net = cluster.network("net-a", "10.28.0.0/24", &json!({}));
    cluster.definition("nested", &json!({ "subnetId": net.id, "driverType": "nested-vlan" }));
    let (parent, trunk, device) = trunk(&cluster, &nodes);
    let address = word(&parent["fixed_ips"][0]["ip_address"]);
    cluster.start_controller("controller", &json!({ "workerNodesSubnets": [nodes.id] }), &[]);
    cluster.start_agent("node-1", &[]);
    cluster.wait_until_leading("controller");
    // Peer with a regular port.
    let uid = cluster.pod("node-1", "near", "net-a");
    let near = cluster.machine.pod("near");
    let _ = cluster.wait_for_vifs("near");
    let default = configuration("node-1", &bridge("home", 10));
    cluster.attachment("node-1", &near, "near", &uid).add(&default).success();
    let near = addresses_on(&near, "net1")[0].split('/').next().unwrap().to_owned();
    // Each of two pods has a VLAN that Neutron knows.
    for name in ["first", "second"] {
        cluster.pod(GUEST, name, "nested");
        cluster.set_host_address(name, address);
    }
    let vifs = ["first", "second"].map(|name| cluster.wait_for_vifs(name)[0].clone());
    let subports = neutron.api("GET", &format!("trunks/{trunk}"), None)["trunk"]["sub_ports"].clone();
    for vif in &vifs {
        let id = vif["id"].clone();
        let subport = subports.as_array().unwrap().iter().find(|one| one["port_id"] == id).unwrap();
        assert_eq!((&vif["type"], &vif["vlan_id"]), (&json!("VIFVlanNested"), &subport["segmentation_id"]));
        eventually("ACTIVE", || (neutron.port(word(&id))["status"] == "ACTIVE").then_some(()));
    }
    assert_ne!(vifs[0]["vlan_id"], vifs[1]["vlan_id"]);
    assert_vlan_carries_packets(&cluster, &parent, &device, &vifs[0], &near);
    // After a pod is deleted, its VLAN is removed from the trunk.
    ["first", "second", "near"].into_iter().for_each(|name| cluster.delete_pod(name));
    cluster.assert_nothing_left("controller");
    assert_eq!(neutron.api("GET", &format!("trunks/{trunk}"), None)["trunk"]["sub_ports"], json!([]));
}
