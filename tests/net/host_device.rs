//! Tests for `host-device`: an interface moves from the host into a container and back, unchanged.
//!
//! ```text
//!   far ── 10.3.0.2 far0 ── dev0 host ──ADD──► dev0 as net1 in pod a
//! ```
//!
//! The devices are veth, which are deleted with the namespace. Tests with hardware, which the kernel returns to the
//! host, are in lane `vm` (`tests/vm/host_device.rs`).
//!
//! Source: containernetworking/plugins `plugins/main/host-device` v1.9.1.

use std::thread::sleep;
use std::time::{Duration, Instant};

use rig::{addresses_on, assert_nothing_left, assert_pod_unchanged, assert_refused, with};
use serde_json::{Value, json};
use testkit::{Feature, Host, Netns, Pod, Snapshot, host};

/// Longest time that the kernel may take.
const KERNEL_TIMEOUT: Duration = Duration::from_secs(5);

const MAC: &str = "02:00:00:00:0d:00";

fn config(keys: &Value) -> Value {
    let base = json!({ "cniVersion": "1.1.0", "name": "net", "type": "host-device", "device": "dev0", "ipam": fixed() });
    with(&base, keys)
}

fn fixed() -> Value {
    json!({ "type": "static", "addresses": [{ "address": "10.3.0.1/24" }, { "address": "fd03::1/64" }] })
}

/// Creates the device, up, and a namespace for the peer.
fn world(host: &Host) -> Pod {
    let far = world_with_device_down(host);
    host.run(["ip", "link", "set", "dev0", "up"]);
    await_route(host, "ff00::/8 dev dev0");
    await_route(&far, "local fd03::2 dev far0");
    far
}

/// Waits for a route: IPv6 of an interface that was set up is ready when the interface has it.
#[track_caller]
fn await_route(netns: &Netns, route: &str) {
    let until = Instant::now() + KERNEL_TIMEOUT;
    while !netns.run(["ip", "-6", "route", "show", "table", "local"]).contains(route) {
        assert!(Instant::now() < until, "{} has no route {route}", netns.name());
        sleep(Duration::from_millis(5));
    }
}

/// Asserts that the host is unchanged, once IPv6 is ready.
#[track_caller]
fn assert_returned(what: &str, host: &Host, before: &Snapshot) {
    let until = Instant::now() + KERNEL_TIMEOUT;
    while !rig::changes(before, &host.snapshot()).is_empty() && Instant::now() < until {
        sleep(Duration::from_millis(20));
    }
    assert_nothing_left(what, host, before);
}

fn world_with_device_down(host: &Host) -> Pod {
    rig::install(host);
    let far = host.pod("far");
    // The kernel resets the settings of an interface in each namespace: no link-local addresses anywhere.
    host.run(["sysctl", "-qw", "net.ipv6.conf.default.addr_gen_mode=1"]);
    let pair = format!("link add dev0 address {MAC} type veth peer name far0 netns far\n");
    host.command("ip").args(["-batch", "-"]).stdin(pair).finish().success();
    let script = "link set far0 addrgenmode none\nlink set far0 up\naddress add 10.3.0.2/24 dev far0\n\
                  address add fd03::2/64 dev far0 nodad\n";
    far.command("ip").args(["-batch", "-"]).stdin(script).finish().success();
    far
}

/// Returns the device to the host with the name that it had in the container, as the kernel does with hardware when a
/// container ends.
#[track_caller]
fn abandon(host: &Host, pod: Pod) {
    host.run(["sh", "-c", &format!("ip -n {} link set net1 netns $$", pod.name())]);
    pod.remove();
}

/// Returns mode and name of each record about a moved device.
fn records(host: &Host) -> Vec<String> {
    let listed = host.attempt(["find", "/run/cni/host-device", "-type", "f", "-printf", "%m %f\\n"]).stdout;
    listed.lines().map(str::to_owned).collect()
}

#[test]
fn host_device_concurrent_adds_of_one_device_succeed_once() {
    let host = host!(Feature::Veth);
    let _far = world(&host);
    host.run(["ip", "link", "set", "dev0", "alias", "uplink"]);
    let pods = [host.pod("a"), host.pod("b")];
    let before = host.snapshot();
    let both = pods.each_ref().map(|pod| host.attachment("host-device", pod, "net1"));
    let config = config(&json!({}));
    for round in 0..10 {
        let added = std::thread::scope(|scope| {
            let adds = both.each_ref().map(|one| scope.spawn(|| one.add(&config).code == Some(0)));
            adds.map(|add| add.join().expect("an ADD ends"))
        });
        assert_ne!(added[0], added[1], "round {round}: one ADD succeeds");
        let has = usize::from(added[1]);
        let names = records(&host);
        let own = |at: usize| names.contains(&format!("600 dev0:{}:net1.json", pods[at].container_id()));
        assert!(own(has), "round {round}: pod {has} has the device, and the records are: {names:?}");
        for one in &both {
            one.del(&config).success();
        }
        assert_returned(&format!("round {round}"), &host, &before);
        assert_eq!(records(&host), [""; 0], "round {round}");
    }
}

/// Distributions give cards further names, and `net1` may be one of them.
#[test]
fn host_device_whose_other_name_is_that_in_the_pod_is_moved() {
    let host = host!(Feature::Veth);
    let _far = world(&host);
    for name in ["net1", "enp7s0np1"] {
        host.run(["ip", "link", "property", "add", "dev", "dev0", "altname", name]);
    }
    let altnames = || rig::link(&host, "dev0").unwrap()["altnames"].clone();
    let sorted = |names: Value| {
        let mut names: Vec<String> = serde_json::from_value(names).unwrap_or_default();
        names.sort();
        names
    };
    let had = sorted(altnames());
    assert_eq!(had, ["enp7s0np1", "net1"]);
    let pod = host.pod("a");
    let net1 = host.attachment("host-device", &pod, "net1");
    let result = net1.add(&config(&json!({}))).success().json();
    assert_eq!(rig::links(&pod), ["net1"]);
    net1.del(&config(&json!({ "prevResult": result }))).success();
    assert_eq!(sorted(altnames()), had, "after the DEL");
    // An ADD that fails after the move.
    let broken = json!({ "ipam": { "type": "static", "addresses": [{ "address": "10.3.0.1/24", "gateway": "10.3.0.2" }],
                                   "routes": [{ "dst": "10.9.0.0/16", "gw": "192.0.2.1" }] } });
    assert_refused("a failing ADD", &net1.add(&config(&broken)), 5, &[]);
    assert_eq!(sorted(altnames()), had, "after the failed ADD");
}

#[test]
fn host_device_returns_with_name_state_and_alias() {
    for (state, alias) in [("up", ""), ("down", ""), ("up", "uplink to  rack 7"), ("down", "weft")] {
        let host = host!(Feature::Veth, Feature::Ping);
        let far = if state == "up" { world(&host) } else { world_with_device_down(&host) };
        host.run(["ip", "link", "set", "dev0", "alias", alias]);
        let pod = host.pod("a");
        let (before, inside) = (host.snapshot(), pod.snapshot());
        let net1 = host.attachment("host-device", &pod, "net1");
        let result = net1.add(&config(&json!({}))).success().json();
        assert!(rig::links(&host).is_empty(), "the device is not on the host");
        let shown = rig::link(&pod, "net1").unwrap();
        assert!(rig::is_up(&shown) && shown["address"] == MAC, "{shown}");
        assert_eq!(shown["ifalias"], "dev0", "the alias that the Go plugin's DEL reads");
        assert_eq!(records(&host), [format!("600 dev0:{}:net1.json", pod.container_id())]);
        assert_eq!(
            result["interfaces"],
            json!([{ "name": "net1", "mac": MAC, "sandbox": pod.path().to_str().unwrap() }])
        );
        assert_eq!(rig::addresses(&result), ["10.3.0.1/24", "fd03::1/64"]);
        assert_eq!(addresses_on(&pod, "net1"), ["10.3.0.1/24", "fd03::1/64"]);
        await_route(&far, "local fd03::2 dev far0");
        await_route(&pod, "local fd03::1 dev net1");
        for (from, to) in [(&pod, "10.3.0.2"), (&pod, "fd03::2"), (&far, "10.3.0.1"), (&far, "fd03::1")] {
            assert!(from.pings(to), "{state} {alias:?}: from {} to {to}", from.name());
        }
        let known = config(&json!({ "prevResult": result }));
        net1.check(&known).success();
        net1.del(&known).success();
        assert_returned(state, &host, &before);
        assert_pod_unchanged(state, &pod, &inside);
        net1.del(&known).success();
        assert_returned("a second DEL", &host, &before);
    }
}

#[test]
fn host_device_is_found_by_each_option() {
    let host = host!(Feature::Veth);
    let _far = world(&host);
    let pod = host.pod("a");
    let before = host.snapshot();
    let net1 = host.attachment("host-device", &pod, "net1");
    for keys in [
        json!({ "device": "dev0" }),
        json!({ "device": "", "hwaddr": MAC }),
        json!({ "device": "", "hwaddr": MAC.to_uppercase().replace(':', "-") }),
        // The first of all virtual interfaces by name.
        json!({ "device": "", "kernelpath": "/sys/devices/virtual" }),
        json!({ "device": "dev0", "hwaddr": "02:00:00:00:00:99", "kernelpath": "/sys/devices/nowhere", "pciBusID": "x" }),
    ] {
        net1.add(&config(&keys)).success();
        assert_eq!(rig::link(&pod, "net1").unwrap()["address"], MAC, "{keys}");
        net1.del(&config(&keys)).success();
        assert_returned(&keys.to_string(), &host, &before);
    }
    for (keys, words) in [
        (json!({ "device": "" }), ["device", "missing"]),
        (json!({ "device": "gone0" }), ["device", "gone0"]),
        (json!({ "device": "../dev0" }), ["device", "../dev0"]),
        (json!({ "device": "", "hwaddr": "02:00" }), ["hwaddr", "02:00"]),
        (json!({ "device": "", "hwaddr": "02:00:00:00:00:99" }), ["hwaddr", "02:00:00:00:00:99"]),
        (
            json!({ "device": "", "kernelpath": "/sys/devices/../class" }),
            ["kernelpath", "/sys/devices/../class"],
        ),
        (json!({ "device": "", "kernelpath": "/etc" }), ["kernelpath", "/etc"]),
        (
            json!({ "device": "", "kernelpath": "/sys/devices/nowhere" }),
            ["kernelpath", "/sys/devices/nowhere"],
        ),
        (json!({ "device": "", "pciBusID": "../../../etc" }), ["pciBusID", "../../../etc"]),
        (json!({ "device": "", "pciBusID": "ffff:ff:1f.7" }), ["pciBusID", "ffff:ff:1f.7"]),
        (json!({ "runtimeConfig": { "deviceID": "../x" } }), ["runtimeConfig.deviceID", "../x"]),
        (
            json!({ "runtimeConfig": { "deviceID": "mlx5_core.sf.4" } }),
            ["runtimeConfig.deviceID", "mlx5_core.sf.4"],
        ),
    ] {
        assert_refused(&keys.to_string(), &net1.add(&config(&keys)), 7, &words);
        // A valid configuration whose device never existed does not block DEL.
        assert_eq!(net1.del(&config(&keys)).code, Some(0), "{keys}");
    }
    assert_returned("nothing was moved", &host, &before);
}

// Requirements: S33
#[test]
fn host_device_status_needs_no_device_that_runtime_config_names() {
    let host = host!(Feature::Veth);
    let _far = world(&host);
    let net1 = host.attachment("host-device", &host.pod("a"), "net1");
    let status = |keys: Value| net1.call("STATUS", config(&keys).to_string());
    status(json!({ "device": "", "capabilities": { "deviceID": true } })).success();
    assert_refused(
        "a configured device is checked",
        &status(json!({ "device": "../dev0" })),
        7,
        &["../dev0"],
    );
}

#[test]
fn host_device_failed_add_restores_addresses_and_routes() {
    let host = host!(Feature::Veth);
    let _far = world(&host);
    let script = "address add 10.8.0.1/24 broadcast + dev dev0\naddress add fd08::1/64 dev dev0 nodad\naddress add fe80::8/64 dev dev0 nodad\n\
                  route add 10.9.0.0/16 via 10.8.0.9 metric 7\nroute add 10.10.0.0/16 dev dev0\nroute add fd09::/64 via fd08::9\n";
    host.command("ip").args(["-batch", "-"]).stdin(script).finish().success();
    await_route(&host, "local fd08::1 dev dev0");
    await_route(&host, "local fe80::8 dev dev0");
    let pod = host.pod("a");
    let (before, inside) = (host.snapshot(), pod.snapshot());
    let net1 = host.attachment("host-device", &pod, "net1");
    let unreachable = json!({
        "type": "static", "addresses": [{ "address": "10.3.0.1/24" }],
        "routes": [{ "dst": "10.7.0.0/16", "gw": "10.66.0.1" }],
    });
    for ipam in [unreachable, json!({ "type": "nowhere" })] {
        assert_ne!(net1.add(&config(&json!({ "ipam": ipam }))).code, Some(0));
        assert_returned(&ipam.to_string(), &host, &before);
        assert_pod_unchanged(&ipam.to_string(), &pod, &inside);
    }
}

#[test]
fn host_device_interface_of_another_owner_stays() {
    let host = host!(Feature::Veth);
    let _far = world(&host);
    let pod = host.pod("a");
    pod.run(["ip", "link", "add", "net1", "type", "veth", "peer", "name", "net2"]);
    pod.run(["ip", "link", "set", "net1", "alias", "of another program"]);
    let (before, inside) = (host.snapshot(), pod.snapshot());
    let net1 = host.attachment("host-device", &pod, "net1");
    assert_refused("S25", &net1.add(&config(&json!({}))), 4, &["net1", "exists"]);
    net1.del(&config(&json!({}))).success();
    assert_returned("DEL after a failed ADD", &host, &before);
    assert_pod_unchanged("DEL after a failed ADD", &pod, &inside);
}

/// Attack: a link from the container to the host, with a name that the host trusts.
#[test]
fn host_device_interface_made_in_the_container_stays_there() {
    let host = host!(Feature::Veth);
    let _far = world(&host);
    let pod = host.pod("a");
    let net1 = host.attachment("host-device", &pod, "net1");
    let tag = format!("weft/host-device/net/{}/net1", pod.container_id());
    for (name, alias) in [("net1", "uplink"), ("other", tag.as_str()), ("net1", tag.as_str())] {
        pod.run(["ip", "link", "add", name, "type", "veth", "peer", "name", "net2"]);
        pod.run(["ip", "link", "set", name, "alias", alias]);
        let (before, inside) = (host.snapshot(), pod.snapshot());
        net1.del(&config(&json!({}))).success();
        assert_returned(alias, &host, &before);
        assert_pod_unchanged(alias, &pod, &inside);
        pod.run(["ip", "link", "delete", name]);
    }
    // An interface in place of the device, with its name, address and alias.
    let peer = rig::link(&host, "dev0").unwrap()["link_index"].clone();
    net1.add(&config(&json!({}))).success();
    pod.run(["sh", "-c", "ip link set net1 down && ip link set net1 name away alias gone"]);
    let pair = format!(
        "ip link add net1 address {MAC} type veth peer name net2 && ip link set net1 alias dev0 && ip link set net2 up"
    );
    pod.run(["sh", "-c", &pair]);
    net1.del(&config(&json!({}))).success();
    assert_eq!(rig::link(&host, "dev0").unwrap()["link_index"], peer, "the device returns under its name");
    assert_eq!(rig::link(&pod, "net1").unwrap()["ifalias"], "dev0", "the other one stays in the container");
}

#[test]
fn host_device_del_waits_until_its_name_is_free_on_the_host() {
    let host = host!(Feature::Veth);
    let _far = world(&host);
    let pod = host.pod("a");
    let before = host.snapshot();
    let net1 = host.attachment("host-device", &pod, "net1");
    net1.add(&config(&json!({}))).success();
    host.run(["ip", "link", "add", "dev0", "type", "veth", "peer", "name", "dev1"]);
    assert_refused("name in use", &net1.del(&config(&json!({}))), 11, &["net1", "dev0"]);
    assert!(rig::link(&pod, "net1").is_some(), "the device stays in the pod");
    host.run(["ip", "link", "delete", "dev0"]);
    // A link of the host with the container's interface name does not matter.
    host.run(["ip", "link", "add", "net1", "type", "veth", "peer", "name", "net2"]);
    net1.del(&config(&json!({}))).success();
    host.run(["ip", "link", "delete", "net1"]);
    assert_returned("returned", &host, &before);
}

#[test]
fn host_device_returned_by_the_kernel_is_renamed_by_del() {
    let host = host!(Feature::Veth);
    let _far = world(&host);
    let before = host.snapshot();
    for netns in ["/run/netns/a", ""] {
        let pod = host.pod("a");
        let mut net1 = host.attachment("host-device", &pod, "net1");
        net1.add(&config(&json!({}))).success();
        abandon(&host, pod);
        assert_eq!(rig::links(&host), ["net1"]);
        netns.clone_into(&mut net1.netns);
        net1.del(&config(&json!({}))).success();
        assert_returned(&format!("CNI_NETNS={netns:?}"), &host, &before);
    }
}

#[test]
fn host_device_returned_by_the_kernel_is_renamed_by_gc() {
    let host = host!(Feature::Veth);
    let _far = world(&host);
    let before = host.snapshot();
    let pod = host.pod("a");
    let net1 = host.attachment("host-device", &pod, "net1");
    net1.add(&config(&json!({}))).success();
    let id = pod.container_id();
    abandon(&host, pod);
    let away = host.snapshot();
    rig::gc(&net1, &config(&json!({})), None).success();
    rig::gc(&net1, &config(&json!({})), Some(&[(&id, "net1")])).success();
    rig::gc(&net1, &config(&json!({ "name": "other" })), Some(&[])).success();
    assert_returned("valid, or of another network", &host, &away);
    rig::gc(&net1, &config(&json!({})), Some(&[(&id, "net2")])).success();
    assert_returned("collected", &host, &before);
}

#[test]
fn host_device_returned_by_the_kernel_can_be_attached_again() {
    let host = host!(Feature::Veth);
    let _far = world(&host);
    let before = host.snapshot();
    let pod = host.pod("a");
    host.attachment("host-device", &pod, "net1").add(&config(&json!({}))).success();
    abandon(&host, pod);
    let pod = host.pod("b");
    let eth5 = host.attachment("host-device", &pod, "eth5");
    eth5.add(&config(&json!({}))).success();
    assert_eq!(rig::link(&pod, "eth5").unwrap()["address"], MAC);
    eth5.del(&config(&json!({}))).success();
    pod.remove();
    assert_returned("returned again", &host, &before);
}

#[test]
fn host_device_without_ipam_is_up_and_has_configured_dns() {
    let host = host!(Feature::Veth);
    let _far = world(&host);
    let pod = host.pod("a");
    let net1 = host.attachment("host-device", &pod, "net1");
    let keys = config(&json!({ "ipam": {}, "dns": { "domain": "own" } }));
    let result = net1.add(&keys).success().json();
    assert!(rig::is_up(&rig::link(&pod, "net1").unwrap()));
    assert!(result.get("ips").is_none() && result["dns"]["domain"] == "own", "{result}");
    net1.check(&with(&keys, &json!({ "prevResult": result }))).success();
    pod.run(["ip", "link", "set", "net1", "address", "02:00:00:00:00:07"]);
    let changed = net1.check(&with(&keys, &json!({ "prevResult": result })));
    assert_refused("another address", &changed, 999, &["02:00:00:00:00:07"]);
}

#[test]
fn host_device_without_its_record_gets_its_name_back() {
    let host = host!(Feature::Veth);
    rig::install(&host);
    // The peer is on the host: no process in a container can create such a link.
    host.run(["ip", "link", "add", "dev0", "address", MAC, "type", "veth", "peer", "name", "far0"]);
    let pod = host.pod("a");
    let before = host.snapshot();
    let net1 = host.attachment("host-device", &pod, "net1");
    for lost in ["rm /run/cni/host-device/*", "for f in /run/cni/host-device/*; do echo '{' > $f; done"] {
        net1.add(&config(&json!({}))).success();
        host.run(["sh", "-c", lost]);
        net1.del(&config(&json!({}))).success();
        assert_returned(lost, &host, &before);
    }
}

#[test]
fn host_device_gc_and_del_ignore_links_with_the_same_alias() {
    let host = host!(Feature::Veth);
    let _far = world(&host);
    let pod = host.pod("a");
    let net1 = host.attachment("host-device", &pod, "net1");
    net1.add(&config(&json!({}))).success();
    let other = "link add other0 address 02:00:00:00:0d:09 type veth peer name other1\n\
                 link set other0 alias dev0\nlink set other1 alias dev0\n";
    host.command("ip").args(["-batch", "-"]).stdin(other).finish().success();
    // A veth is deleted with its namespace, so it does not return.
    pod.remove();
    let until = Instant::now() + KERNEL_TIMEOUT;
    while host.attempt(["ip", "link", "show", "far0"]).code == Some(0) && Instant::now() < until {
        sleep(Duration::from_millis(20));
    }
    rig::gc(&net1, &config(&json!({})), Some(&[])).success();
    net1.del(&config(&json!({}))).success();
    let mut links = rig::links(&host);
    links.sort();
    assert_eq!(links, ["other0", "other1"]);
    assert!(records(&host).is_empty(), "{:?}", records(&host));
}
