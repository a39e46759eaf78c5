//! Tests for what a process in a pod can leave on a host device, which returns at DEL or when the pod's
//! namespace ends.
//!
//! ```text
//!   far ── far0 ── dev0 host ──ADD──► net1 in pod web ── XDP, tc, neighbours, offloads ──► dev0, as before
//! ```
//!
//! Source: docs/security.md, "Marks on kernel objects"; bpf(2); kernel `include/uapi/linux/if_link.h`.

use rig::{link, links};
use serde_json::{Value, json};
use testkit::{Feature, Host, Netns, host};

use crate::hostile_pods::{abandon, assert_returned, device, world};

/// Attaches an XDP program that passes every packet to the interface that the argument names: `BPF_PROG_LOAD` of two
/// instructions, then `RTM_SETLINK` in generic mode.
const XDP: &str = r#"
import ctypes, socket, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
code = struct.pack("<BBhi", 0xb7, 0, 0, 2) + struct.pack("<BBhi", 0x95, 0, 0, 0)
instructions, licence = ctypes.create_string_buffer(code), ctypes.create_string_buffer(b"GPL")
load = struct.pack("<IIQQ", 6, 2, ctypes.addressof(instructions), ctypes.addressof(licence)) + bytes(104)
number = {"x86_64": 321, "aarch64": 280}[__import__("os").uname().machine]
program = libc.syscall(number, 5, ctypes.create_string_buffer(load), len(load))
if program < 0: sys.exit(f"bpf: errno {ctypes.get_errno()}")
if len(sys.argv) == 1: sys.exit()
attribute = lambda kind, data: struct.pack("<HH", len(data) + 4, kind) + data
xdp = attribute(43 | 0x8000, attribute(1, struct.pack("<i", program)) + attribute(3, struct.pack("<I", 2)))
body = struct.pack("<BxHiII", 0, 0, socket.if_nametoindex(sys.argv[1]), 0, 0) + xdp
routing = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
routing.send(struct.pack("<IHHII", len(body) + 16, 19, 5, 1, 0) + body)
errno = -struct.unpack_from("<i", routing.recv(4096), 16)[0]
sys.exit(errno and f"netlink: errno {errno}")
"#;

/// Settings of the device that a pod can change and the kernel does not reset.
#[track_caller]
fn settings(host: &Host) -> Value {
    let shown = &host.json(["ip", "-d", "-j", "link", "show", "dev0"])[0];
    let keys = ["xdp", "linkmode", "broadcast", "gso_max_size", "gso_max_segs", "gro_max_size", "flags"];
    keys.into_iter().map(|key| (key.to_owned(), shown[key].clone())).collect()
}

/// State that the kernel resets: disciplines, filters, neighbours, addresses that the device accepts.
#[track_caller]
fn attached(host: &Host) -> String {
    let script = "tc qdisc show dev dev0; tc filter show dev dev0 ingress; ip neigh show dev dev0 nud permanent; \
                  bridge fdb show dev dev0";
    // The kernel numbers disciplines.
    let shown = host.run(["sh", "-c", script]);
    let is_handle = |word: &&str| word.ends_with(':') && word.len() > 1;
    shown.split_whitespace().filter(|word| !is_handle(word)).collect::<Vec<_>>().join(" ")
}

/// Gives the device to a pod, runs `spoil` there, and returns it by DEL, then by the end of the namespace.
#[track_caller]
fn assert_reset(host: &Host, spoil: &dyn Fn(&Netns), state: &dyn Fn(&Host) -> String) {
    let (_cluster, _far) = world(host);
    let (before, was) = (host.snapshot(), state(host));
    for returns in ["DEL", "end of the namespace"] {
        let pod = host.pod("web");
        let net1 = host.attachment("host-device", &pod, "net1");
        net1.add(&device()).success();
        spoil(&pod);
        match returns {
            "DEL" => {
                net1.del(&device()).success();
                pod.remove();
            }
            _ => {
                abandon(host, pod, "net1");
                net1.del(&device()).success();
            }
        }
        assert_eq!(state(host), was, "{returns}");
        assert_returned(returns, host, &before);
    }
}

#[test]
fn hostile_pod_xdp_program_of_the_device_does_not_return() {
    let host = host!(Feature::Veth);
    let tried = host.command("python3").args(["-c", XDP]).finish();
    if tried.code != Some(0) {
        testkit::record_skip(&testkit::test_name(), &format!("needs bpf(2): {}", tried.stderr.trim()));
        return;
    }
    let attach = |pod: &Netns| {
        pod.run(["python3", "-c", XDP, "net1"]);
        assert!(link(pod, "net1").unwrap()["xdp"].is_object(), "the program is attached");
    };
    assert_reset(&host, &attach, &|host| settings(host).to_string());
}

/// The host's program, for example the host network's, stays.
#[test]
fn host_device_keeps_the_xdp_program_of_the_host() {
    let host = host!(Feature::Veth);
    let tried = host.command("python3").args(["-c", XDP]).finish();
    if tried.code != Some(0) {
        testkit::record_skip(&testkit::test_name(), &format!("needs bpf(2): {}", tried.stderr.trim()));
        return;
    }
    let (_cluster, _far) = world(&host);
    host.run(["python3", "-c", XDP, "dev0"]);
    let pod = host.pod("web");
    let net1 = host.attachment("host-device", &pod, "net1");
    let was = settings(&host);
    net1.add(&device()).success();
    net1.del(&device()).success();
    assert_eq!(settings(&host), was);
    assert!(was["xdp"].is_object());
}

#[test]
fn hostile_pod_tc_and_neighbours_of_the_device_do_not_return() {
    let host = host!(Feature::Veth, Feature::Ingress, Feature::Tbf);
    let spoil = |pod: &Netns| {
        let script =
            "ip link set net1 up; tc qdisc replace dev net1 root tbf rate 1mbit burst 10k latency 20ms
            tc qdisc add dev net1 ingress
            tc filter add dev net1 ingress protocol all u32 match u32 0 0 flowid 1:1
            ip neigh add 192.0.2.1 lladdr 02:00:00:00:00:01 nud permanent dev net1
            bridge fdb add 02:00:00:00:00:09 dev net1 self";
        pod.run(["sh", "-ec", script]);
    };
    assert_reset(&host, &spoil, &attached);
}

#[test]
fn hostile_pod_sizes_and_modes_of_the_device_do_not_return() {
    let host = host!(Feature::Veth);
    let spoil = |pod: &Netns| {
        let script = "ip link set net1 down; ip link set net1 broadcast 02:00:00:00:00:66
            ip link set net1 mode dormant; ip link set net1 gso_max_size 1000 gso_max_segs 3";
        pod.run(["sh", "-ec", script]);
    };
    assert_reset(&host, &spoil, &|host| settings(host).to_string());
}

/// Creates a link on the device in a pod that lives on, as after hot-unplug. A killed or failed DEL is repeated.
#[track_caller]
fn assert_link_is_removed(host: &Host, kind: &str) {
    let (_cluster, _far) = world(host);
    let pod = host.pod("web");
    let net1 = host.attachment("host-device", &pod, "net1");
    let before = host.snapshot();
    for returned in [false, true] {
        net1.add(&device()).success();
        let script =
            format!("ip link add link net1 name up0 type {kind}; ip link add own0 type veth peer name own1");
        pod.run(["sh", "-ec", &script]);
        if returned {
            host.run(["sh", "-c", "ip -n web link set net1 netns $$"]);
        }
        net1.del(&device()).success();
        assert_eq!(links(&pod), ["own0", "own1"], "{kind}, returned: {returned}");
        pod.run(["ip", "link", "delete", "own0"]);
        assert_returned(kind, host, &before);
    }
}

#[test]
fn hostile_pod_link_on_the_device_loses_it() {
    assert_link_is_removed(&host!(Feature::Veth, Feature::Macvlan), "macvlan");
}

#[test]
fn hostile_pod_vlan_on_the_device_loses_it() {
    assert_link_is_removed(&host!(Feature::Veth, Feature::Vlan), "vlan id 7");
}

#[test]
fn hostile_pod_ipvlan_on_the_device_loses_it() {
    assert_link_is_removed(&host!(Feature::Veth, Feature::Ipvlan), "ipvlan");
}

#[test]
fn hostile_pod_offloads_of_the_device_do_not_return() {
    let host = host!(Feature::Veth, Feature::Ethtool);
    let spoil = |pod: &Netns| drop(pod.run(["ethtool", "-K", "net1", "tx", "off", "gro", "on", "sg", "off"]));
    let features = |host: &Host| host.run(["ethtool", "-k", "dev0"]);
    assert_reset(&host, &spoil, &features);
}

/// A record of an earlier release has no such settings; programs are removed nevertheless.
#[test]
fn host_device_record_without_further_settings_is_read() {
    let host = host!(Feature::Veth);
    let (_cluster, _far) = world(&host);
    let pod = host.pod("web");
    let net1 = host.attachment("host-device", &pod, "net1");
    let was = settings(&host);
    net1.add(&device()).success();
    let path = host.run(["sh", "-c", "echo /run/cni/host-device/*.json"]).trim().to_owned();
    let mut record: Value = serde_json::from_str(&host.read(&path).expect("a record")).expect("JSON");
    assert!(record["settings"]["further"].take().is_object());
    record["settings"].as_object_mut().expect("settings").remove("further");
    host.write(&path, json!(record).to_string());
    net1.del(&device()).success();
    assert_eq!(settings(&host), was);
}
