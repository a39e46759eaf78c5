//! Tests for `bridge`, option by option, with traffic where an option affects traffic.
//!
//! ```text
//!   outside ── up0 ── host ── br0 ┬─ a eth0
//!                                 └─ b eth0
//! ```
//!
//! Source: containernetworking/plugins `plugins/main/bridge` v1.9.1 (G1–G6, G8); V6, V13, V14.

use rig::traffic::{OUTSIDE, UPLINK, outside, source_seen};
use rig::{addresses, addresses_on, assert_nothing_left, assert_refused, routes, with};
use serde_json::{Value, json};
use testkit::{Attachment, Feature, Host, Pod, host};

/// Returns a bridge network on `br0` with `keys`.
pub(crate) fn config(keys: &Value) -> Value {
    let base = json!({
        "cniVersion": "1.1.0", "name": "net", "type": "bridge", "bridge": "br0",
        "ipam": { "type": "host-local", "ranges": [[{ "subnet": "10.1.0.0/24" }]] },
    });
    with(&base, keys)
}

/// Returns IPAM with addresses of both families.
pub(crate) fn dual_stack(routes: &Value) -> Value {
    json!({
        "type": "host-local", "routes": routes,
        "ranges": [[{ "subnet": "10.1.0.0/24" }], [{ "subnet": "fd01::/64" }]],
    })
}

pub(crate) fn add(host: &Host, pod: &Pod, config: &Value) -> Value {
    host.attachment("bridge", pod, "eth0").add(config).success().json()
}

/// Returns the port of a result, as the kernel shows it.
fn port(host: &Host, result: &Value) -> Value {
    rig::link(host, result["interfaces"][1]["name"].as_str().expect("a port")).expect("the port")
}

fn ip_of(pod: &Pod) -> String {
    addresses_on(pod, "eth0")[0].split('/').next().expect("an address").to_owned()
}

#[test]
fn bridge_is_gateway_sets_address_and_forwarding() {
    let host = host!(Feature::Bridge, Feature::Ping);
    rig::install(&host);
    let pod = host.pod("a");
    host.run(["sysctl", "-qw", "net.ipv4.ip_forward=0"]);
    let plain = add(&host, &pod, &config(&json!({})));
    assert!(addresses_on(&host, "br0").is_empty(), "without isGateway the bridge has no address");
    host.attachment("bridge", &pod, "eth0").del(&config(&json!({ "prevResult": plain }))).success();
    assert_eq!(host.run(["sysctl", "-n", "net.ipv4.ip_forward"]), "0\n");

    let result = add(&host, &pod, &config(&json!({ "isGateway": true })));
    assert_eq!(addresses_on(&host, "br0"), ["10.1.0.1/24"]);
    assert_eq!(host.run(["sysctl", "-n", "net.ipv4.ip_forward"]), "1\n");
    assert_eq!(result["ips"][0]["gateway"], "10.1.0.1");
    assert!(result.get("routes").is_none_or(|routes| routes == &json!([])), "{result}");
    assert_eq!(routes(&pod, &["route"]), ["10.1.0.0/24 dev eth0 src 10.1.0.3"]);
    let eth0 = host.attachment("bridge", &pod, "eth0");
    let known = config(&json!({ "isGateway": true, "prevResult": result }));
    eth0.check(&known).success();
    host.run(["ip", "address", "flush", "dev", "br0", "scope", "global"]);
    assert_refused("no gateway", &eth0.check(&known), 999, &["br0", "10.1.0.1/24"]);
    host.run(["ip", "address", "add", "10.1.0.1/24", "dev", "br0"]);
    assert!(pod.pings("10.1.0.1") && host.pings("10.1.0.3"));
    // The bridge keeps its address when ports are added and removed.
    let pinned = rig::link(&host, "br0").unwrap()["address"].clone();
    assert_eq!(result["interfaces"][0]["mac"], pinned);
    let b = host.pod("b");
    add(&host, &b, &config(&json!({ "isGateway": true, "runtimeConfig": { "mac": "00:00:00:00:00:02" } })));
    assert_eq!(rig::link(&host, "br0").unwrap()["address"], pinned);
    let names: Vec<&str> =
        result["interfaces"].as_array().unwrap().iter().filter_map(|i| i["name"].as_str()).collect();
    assert_eq!((names[0], names[2], result["ips"][0]["interface"].clone()), ("br0", "eth0", json!(2)));
}

#[test]
fn bridge_is_default_gateway_adds_one_default_route_per_family() {
    let everywhere = [json!({ "dst": "0.0.0.0/0" }), json!({ "dst": "::/0" })];
    // The Go plugin fails in the second case with "file exists".
    let cases = [
        ("none from ipam", json!([])),
        ("one without gateway", json!(everywhere)),
        ("one with another gateway", json!([{ "dst": "0.0.0.0/0", "gw": "10.1.0.77" }])),
    ];
    for (what, ipam_routes) in cases {
        let host = host!(Feature::Bridge);
        rig::install(&host);
        let pod = host.pod("a");
        let keys = json!({ "isDefaultGateway": true, "ipam": dual_stack(&ipam_routes) });
        let result = add(&host, &pod, &config(&keys));
        let gateway = if what.contains("another") { "10.1.0.77" } else { "10.1.0.1" };
        assert_eq!(
            routes(&pod, &["route", "show", "default"]),
            [format!("default via {gateway} dev eth0")],
            "{what}"
        );
        assert_eq!(
            routes(&pod, &["-6", "route", "show", "default"]),
            ["default via fd01::1 dev eth0 metric 1024"],
            "{what}"
        );
        let all = result["routes"].as_array().unwrap();
        assert_eq!(all.len(), 2, "{what}: {result}");
        let eth0 = host.attachment("bridge", &pod, "eth0");
        eth0.check(&with(&config(&keys), &json!({ "prevResult": result }))).success();
    }
}

#[test]
fn bridge_force_address_replaces_another_address() {
    let host = host!(Feature::Bridge);
    rig::install(&host);
    let pod = host.pod("a");
    host.run(["ip", "link", "add", "br0", "type", "bridge"]);
    host.run(["ip", "address", "add", "10.9.0.1/24", "dev", "br0"]);
    host.run(["ip", "address", "add", "fd01:0:0:0:1::1/80", "dev", "br0", "nodad"]);
    host.run(["ip", "address", "add", "fd09::1/64", "dev", "br0", "nodad"]);
    host.run(["ip", "link", "set", "br0", "up"]);
    let keys = json!({ "isGateway": true, "ipam": dual_stack(&json!([])) });
    let refused = host.attachment("bridge", &pod, "eth0").add(&config(&keys));
    assert_refused("forceAddress", &refused, 999, &["br0", "10.9.0.1/24", "forceAddress"]);
    assert!(addresses_on(&host, "br0").contains(&"10.9.0.1/24".to_owned()));
    assert!(rig::links(&host).len() == 1 && rig::links(&pod).is_empty(), "{:?}", rig::links(&host));

    add(&host, &pod, &config(&with(&keys, &json!({ "forceAddress": true }))));
    let mut now = addresses_on(&host, "br0");
    now.sort();
    // Of IPv6, only overlapping addresses conflict.
    assert_eq!(now, ["10.1.0.1/24", "fd01::1/64", "fd09::1/64"]);
}

#[test]
fn bridge_force_address_within_a_subnet_replaces_or_keeps() {
    let host = host!(Feature::Bridge, Feature::Ipv6, Feature::Ping);
    rig::install(&host);
    let (a, b, c) = (host.pod("a"), host.pod("b"), host.pod("c"));
    add(&host, &a, &config(&json!({ "isGateway": true })));
    let gateway = |last: u8| json!({ "type": "host-local", "ranges": [[{ "subnet": "10.1.0.0/24", "gateway": format!("10.1.0.{last}") }]] });
    let forced =
        |last: u8| config(&json!({ "isGateway": true, "forceAddress": true, "ipam": gateway(last) }));
    add(&host, &b, &forced(254));
    assert_eq!(addresses_on(&host, "br0"), ["10.1.0.254/24"]);
    assert!(b.pings("10.1.0.254"));
    // The kernel refuses the address, and the removed address is restored.
    host.run(["ip", "address", "add", "fd01::1/64", "dev", "br0", "nodad"]);
    let group = json!({ "type": "static", "addresses": [{ "address": "fd01::9/1", "gateway": "ff02::1" }] });
    let keys = json!({ "isGateway": true, "forceAddress": true, "ipam": group });
    let refused = host.attachment("bridge", &c, "eth0").add(&config(&keys));
    assert_refused("a group's address", &refused, 5, &["ff02::1", "br0"]);
    assert_eq!(addresses_on(&host, "br0"), ["10.1.0.254/24", "fd01::1/64"]);
    // Another address of the bridge stays.
    host.run(["ip", "address", "add", "10.1.0.253/24", "dev", "br0"]);
    add(&host, &c, &forced(254));
    assert_eq!(addresses_on(&host, "br0"), ["10.1.0.254/24", "10.1.0.253/24", "fd01::1/64"]);
}

#[test]
fn bridge_name_of_another_kind_of_link_is_refused() {
    let host = host!(Feature::Veth);
    rig::install(&host);
    let pod = host.pod("a");
    host.run(["ip", "link", "add", "br0", "type", "veth", "peer", "name", "br1"]);
    let before = host.snapshot();
    let refused = host.attachment("bridge", &pod, "eth0").add(&config(&json!({})));
    assert_refused("bridge", &refused, 7, &["bridge", "br0", "not a bridge"]);
    assert_nothing_left("not a bridge", &host, &before);
}

/// Returns the numbers of transmit and receive queues.
fn queues(link: &Value) -> [u64; 2] {
    ["num_tx_queues", "num_rx_queues"].map(|key| link[key].as_u64().unwrap())
}

#[test]
fn bridge_queues_are_set_on_both_ends() {
    let host = host!(Feature::Bridge);
    rig::install(&host);
    for (name, keys, number) in [("a", json!({}), 1), ("b", json!({ "queues": 3 }), 3)] {
        let pod = host.pod(name);
        let result = add(&host, &pod, &config(&keys));
        assert_eq!(queues(&rig::link(&pod, "eth0").unwrap()), [number; 2]);
        assert_eq!(queues(&port(&host, &result)), [number; 2]);
        // All of them are in use.
        let own_sys = "mount -t sysfs sysfs /sys && ls /sys/class/net/eth0/queues";
        let used = pod.run(["unshare", "--mount", "sh", "-c", own_sys]);
        assert_eq!(used.split_whitespace().count() as u64, 2 * number, "{used}");
    }
    let refused = host.attachment("bridge", &host.pod("c"), "eth0").add(&config(&json!({ "queues": 4097 })));
    assert_refused("queues", &refused, 7, &["queues", "4097", "1 and 4096"]);
}

#[test]
fn bridge_mtu_is_set_on_both_ends_and_a_new_bridge() {
    let host = host!(Feature::Bridge);
    rig::install(&host);
    let (a, b) = (host.pod("a"), host.pod("b"));
    let result = add(&host, &a, &config(&json!({ "mtu": 1400 })));
    assert_eq!(rig::link(&a, "eth0").unwrap()["mtu"], 1400);
    assert_eq!(port(&host, &result)["mtu"], 1400);
    assert_eq!(rig::link(&host, "br0").unwrap()["mtu"], 1400);
    let larger = add(&host, &b, &config(&json!({ "mtu": 9000 })));
    assert_eq!(port(&host, &larger)["mtu"], 9000);
    for wrong in [json!(-1), json!(67), json!(65536), json!("1400"), json!(1.5)] {
        let refused =
            host.attachment("bridge", &host.pod("c"), "eth0").add(&config(&json!({ "mtu": wrong })));
        let (code, message) = rig::refusal(&refused);
        assert!([6, 7].contains(&code) && message.contains("mtu"), "{code} {message}");
        host.run(["ip", "netns", "delete", "c"]);
    }
}

#[test]
fn bridge_mtu_too_small_for_ipv6_is_accepted() {
    let host = host!(Feature::Bridge, Feature::Ping);
    rig::install(&host);
    // The kernel has no IPv6 on an interface with an MTU below 1280 bytes.
    let keys = config(&json!({ "mtu": 1279, "isGateway": true }));
    let (a, b) = (host.pod("a"), host.pod("b"));
    let (first, _) = (add(&host, &a, &keys), add(&host, &b, &keys));
    assert_eq!(
        (&port(&host, &first)["mtu"], port(&host, &first)["ifalias"].is_string()),
        (&json!(1279), true)
    );
    assert!(a.pings(&ip_of(&b)) && a.pings("10.1.0.1"));
    let eth0 = host.attachment("bridge", &a, "eth0");
    eth0.check(&with(&keys, &json!({ "prevResult": first }))).success();
    eth0.del(&keys).success();
    let c = host.pod("c");
    let result = add(&host, &c, &config(&json!({ "mtu": 1280 })));
    let name = result["interfaces"][1]["name"].as_str().expect("a port");
    let port = &host.json(["ip", "-d", "-j", "link", "show", name])[0];
    assert_eq!(
        port["inet6_addr_gen_mode"], "none",
        "a port with IPv6 generates no link-local address: {port}"
    );
}

#[test]
fn bridge_hairpin_mode_reflects_frames() {
    let host = host!(Feature::Bridge, Feature::NftNetdev);
    rig::install(&host);
    for (hairpin, promiscuous) in [(true, false), (false, true), (false, false)] {
        let pod = host.pod("a");
        let keys = json!({ "hairpinMode": hairpin, "promiscMode": promiscuous });
        let result = add(&host, &pod, &config(&keys));
        assert_eq!(port(&host, &result)["linkinfo"]["info_slave_data"]["hairpin"], hairpin);
        let flags = rig::link(&host, "br0").unwrap()["flags"].to_string();
        assert_eq!(flags.contains("PROMISC"), promiscuous, "{flags}");
        // A broadcast frame of a container returns to it over a hairpin port, and over no other port.
        let seen = reflected(&pod);
        assert_eq!(seen, hairpin, "hairpinMode {hairpin}: is a frame reflected?");
        let eth0 = host.attachment("bridge", &pod, "eth0");
        let known = config(&with(&keys, &json!({ "prevResult": result })));
        eth0.check(&known).success();
        host.run([
            "bridge",
            "link",
            "set",
            "dev",
            result["interfaces"][1]["name"].as_str().unwrap(),
            "hairpin",
            if hairpin { "off" } else { "on" },
        ]);
        assert_refused("CHECK sees it", &eth0.check(&known), 999, &["hairpin"]);
        eth0.del(&known).success();
        host.run(["ip", "link", "delete", "br0"]);
        pod.remove();
    }
}

/// Whether a broadcast frame that is sent on eth0 arrives there again.
fn reflected(pod: &Pod) -> bool {
    let own = rig::link(pod, "eth0").unwrap()["address"].as_str().unwrap().to_owned();
    let ruleset = format!(
        "table netdev t {{ chain c {{ type filter hook ingress device eth0 priority 0; ether saddr {own} counter; }}; }}"
    );
    pod.command("nft").args(["-f", "-"]).stdin(ruleset).finish().success();
    // The address does not exist, so that ping sends ARP broadcasts.
    let _ = pod.attempt(["ping", "-n", "-q", "-c", "2", "-i", "0.1", "-w", "1", "10.1.0.200"]);
    let listed = pod.json(["nft", "-j", "list", "table", "netdev", "t"]);
    let rules = listed["nftables"].as_array().into_iter().flatten();
    let counters = rules.filter_map(|object| object["rule"]["expr"][1]["counter"]["packets"].as_u64());
    counters.sum::<u64>() > 0
}

#[test]
fn bridge_port_isolation_blocks_traffic_between_ports() {
    let host = host!(Feature::Bridge, Feature::Ping);
    rig::install(&host);
    let pods = [host.pod("a"), host.pod("b"), host.pod("c")];
    let keys = |isolated: bool| config(&json!({ "isGateway": true, "portIsolation": isolated }));
    let results: Vec<Value> = pods
        .iter()
        .zip([true, true, false])
        .map(|(pod, isolated)| add(&host, pod, &keys(isolated)))
        .collect();
    let [a, b, c] = &pods;
    assert_eq!(port(&host, &results[0])["linkinfo"]["info_slave_data"]["isolated"], true);
    assert!(a.pings("10.1.0.1") && b.pings("10.1.0.1"), "the bridge is reached");
    assert!(!a.pings(&ip_of(b)), "isolated ports do not reach each other");
    assert!(a.pings(&ip_of(c)) && c.pings(&ip_of(b)), "a port that is not isolated is reached");
    let known = with(&keys(true), &json!({ "prevResult": results[0] }));
    host.attachment("bridge", a, "eth0").check(&known).success();
    let wrong = with(&keys(false), &json!({ "prevResult": results[0] }));
    assert_refused("CHECK", &host.attachment("bridge", a, "eth0").check(&wrong), 999, &["isolated"]);
}

#[test]
fn bridge_port_has_an_owner_tag_and_is_found_by_it() {
    let host = host!(Feature::Bridge);
    rig::install(&host);
    let (a, b) = (host.pod("a"), host.pod("b"));
    let of_a = add(&host, &a, &config(&json!({})));
    let of_b = add(&host, &b, &config(&json!({})));
    let shown = port(&host, &of_a);
    assert_eq!(
        shown["ifalias"],
        format!("weft/bridge/net/{}/eth0", host.attachment("bridge", &a, "eth0").container_id)
    );
    // Without the namespace, DEL finds the port by its name. GC finds a renamed port by its alias.
    let of_b = port(&host, &of_b)["ifname"].as_str().unwrap().to_owned();
    // Kernels before 6.2 cannot rename a link that is up.
    host.run(["ip", "link", "set", &of_b, "down"]);
    host.run(["ip", "link", "set", &of_b, "name", "renamed0"]);
    let mut eth0 = host.attachment("bridge", &a, "eth0");
    eth0.netns.clear();
    eth0.del(&config(&json!({}))).success();
    assert!(rig::link(&host, shown["ifname"].as_str().unwrap()).is_none());
    assert!(rig::link(&host, "renamed0").is_some());
    rig::gc(&eth0, &config(&json!({})), Some(&[])).success();
    assert!(rig::link(&host, "renamed0").is_none());
}

#[test]
fn bridge_macspoofchk_drops_frames_with_a_foreign_source() {
    let host = host!(Feature::Bridge, Feature::NftBridge, Feature::Ping);
    rig::install(&host);
    let (a, b) = (host.pod("a"), host.pod("b"));
    let keys = config(&json!({ "isGateway": true, "macspoofchk": true }));
    let result = add(&host, &a, &keys);
    add(&host, &b, &config(&json!({ "isGateway": true })));
    assert!(a.pings(&ip_of(&b)), "its own address passes");
    let own = result["interfaces"][2]["mac"].as_str().unwrap().to_owned();
    for (pod, passes) in [(&a, false), (&b, true)] {
        pod.run(["ip", "link", "set", "eth0", "address", "02:00:00:00:00:99"]);
        host.run(["ip", "neigh", "flush", "all"]);
        assert_eq!(pod.pings("10.1.0.1"), passes, "{}: a foreign source passes", pod.name());
    }
    a.run(["ip", "link", "set", "eth0", "address", &own]);
    host.run(["ip", "neigh", "flush", "all"]);
    assert!(a.pings("10.1.0.1"), "its own passes again");

    let name = result["interfaces"][1]["name"].as_str().unwrap();
    let shown = host.run(["nft", "list", "table", "bridge", "weft_spoofing"]);
    for set in ["checked", "allowed"] {
        let listed = host.json(["nft", "-j", "list", "set", "bridge", "weft_spoofing", set]);
        assert!(listed.to_string().contains(name), "set {set} shows port {name}: {shown}");
    }
    assert!(shown.contains(&own), "{shown}");
    // nft can read its own listing.
    let saved = host.run(["nft", "list", "ruleset"]);
    host.command("nft").args(["-c", "-f", "-"]).stdin(saved).finish().success();
    let (eth0, known) =
        (host.attachment("bridge", &a, "eth0"), with(&keys, &json!({ "prevResult": result })));
    eth0.check(&known).success();
    host.run(["nft", "flush", "set", "bridge", "weft_spoofing", "checked"]);
    assert_refused("unchecked", &eth0.check(&known), 999, &["macspoofchk", name]);
    eth0.del(&known).success();
    let left = host.run(["nft", "list", "table", "bridge", "weft_spoofing"]);
    assert!(!left.contains(name) && !left.contains(&own), "{left}");
}

#[test]
fn bridge_enabledad_detects_duplicates_default_does_not_wait() {
    let host = host!(Feature::Bridge, Feature::Ipv6, Feature::Ping);
    rig::install(&host);
    let (a, b) = (host.pod("a"), host.pod("b"));
    let keys = json!({ "isGateway": true, "ipam": dual_stack(&json!([])) });
    add(&host, &a, &config(&keys));
    // Without duplicate address detection there is no wait.
    let six = a.json(["ip", "-j", "-6", "address", "show", "eth0", "scope", "global"]).to_string();
    assert!(six.contains("fd01::2") && !six.contains("tentative"), "{six}");
    // The link-local address is there a moment later, without detection, which would take a second.
    let started = std::time::Instant::now();
    while a.run(["ip", "-6", "address", "show", "eth0", "tentative"]).contains("fe80:") {
        let timeout = std::time::Duration::from_millis(800);
        assert!(started.elapsed() < timeout, "duplicate address detection runs");
    }
    assert_eq!(a.run(["sysctl", "-n", "net.ipv6.conf.eth0.accept_dad"]), "0\n");
    assert_eq!(a.run(["sysctl", "-n", "net.ipv4.conf.eth0.arp_notify"]), "1\n");
    assert!(a.attempt(["ping", "-6", "-c", "1", "-W", "1", "fd01::1"]).code == Some(0), "at once");

    add(&host, &b, &config(&with(&keys, &json!({ "enabledad": true }))));
    assert_eq!(b.run(["sysctl", "-n", "net.ipv6.conf.eth0.accept_dad"]), "1\n");
    let flags = b.json(["ip", "-j", "address", "show", "eth0"]).to_string();
    assert!(!flags.contains("tentative"), "settled when ADD returns: {flags}");
    // The same address again is detected, and the ADD undone.
    let c = host.pod("c");
    let twin = json!({ "type": "static", "addresses": [{ "address": "fd01::2/64", "gateway": "fd01::1" }] });
    settle(&host, "br0");
    let before = host.snapshot();
    let refused = host
        .attachment("bridge", &c, "eth0")
        .add(&config(&with(&keys, &json!({ "enabledad": true, "ipam": twin }))));
    assert_refused("a twin", &refused, 999, &["fd01::2", "duplicate"]);
    assert_nothing_left("a twin", &host, &before);
}

/// Waits until the kernel has assigned the link's own addresses.
fn settle(host: &Host, link: &str) {
    let until = std::time::Instant::now() + std::time::Duration::from_secs(5);
    while host.json(["ip", "-j", "address", "show", link]).to_string().contains("tentative") {
        assert!(std::time::Instant::now() < until, "{link} does not settle");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

#[test]
fn bridge_without_ipam_leaves_interface_up_or_down() {
    let host = host!(Feature::Bridge);
    rig::install(&host);
    for (keys, up) in
        [(json!({ "ipam": {} }), true), (json!({ "ipam": {}, "disableContainerInterface": true }), false)]
    {
        let pod = host.pod("a");
        let config = config(&keys);
        let result = add(&host, &pod, &config);
        let eth0 = rig::link(&pod, "eth0").unwrap();
        assert_eq!(eth0["flags"].to_string().contains("\"UP\""), up, "{keys}: {eth0}");
        assert_eq!(result.get("ips"), None, "{result}");
        let attachment = host.attachment("bridge", &pod, "eth0");
        attachment.check(&with(&config, &json!({ "prevResult": result }))).success();
        attachment.del(&config).success();
        assert!(rig::links(&pod).is_empty());
        pod.remove();
    }
}

#[test]
fn bridge_check_accepts_a_mac_taken_from_a_new_port() {
    let host = host!(Feature::Bridge);
    rig::install(&host);
    let pod = host.pod("a");
    let config = config(&json!({}));
    let result = add(&host, &pod, &config);
    let known = with(&config, &json!({ "prevResult": result }));
    host.run(["ip", "link", "add", "low0", "address", "00:00:5e:00:53:01", "type", "veth"]);
    host.run(["ip", "link", "set", "low0", "up", "master", "br0"]);
    assert_eq!(rig::link(&host, "br0").unwrap()["address"], "00:00:5e:00:53:01");
    host.attachment("bridge", &pod, "eth0").check(&known).success();
}

#[test]
fn bridge_without_vlan_filtering_names_the_kernel_option() {
    let host = host!(Feature::Bridge);
    if Feature::BridgeVlan.is_present() {
        return;
    }
    rig::install(&host);
    let a = host.pod("a");
    let refused = host.attachment("bridge", &a, "eth0").add(&config(&json!({ "vlan": 5 })));
    assert!(refused.code == Some(1), "{refused}");
    let text = "the kernel of this node needs the option CONFIG_BRIDGE_VLAN_FILTERING";
    assert!(refused.stdout.contains(text) && !refused.stdout.contains("modprobe"), "{refused}");
}

#[test]
fn bridge_vlan_and_trunk_are_set_on_port_and_gateway() {
    let host = host!(Feature::BridgeVlan, Feature::Ping);
    rig::install(&host);
    let (a, b, c) = (host.pod("a"), host.pod("b"), host.pod("c"));
    let five = config(
        &json!({ "isGateway": true, "vlan": 5, "vlanTrunk": [{ "minID": 10, "maxID": 12 }, { "id": 20 }] }),
    );
    let result = add(&host, &a, &five);
    let vlans = |name: &str| {
        let shown = host.json(["bridge", "-j", "vlan", "show", "dev", name]);
        let list = shown[0]["vlans"].as_array().cloned().unwrap_or_default();
        list.iter()
            .map(|vlan| (vlan["vlan"].as_u64().unwrap(), vlan["vlanEnd"].as_u64(), vlan["flags"].to_string()))
            .collect::<Vec<_>>()
    };
    let on_port = vlans(result["interfaces"][1]["name"].as_str().unwrap());
    let ids: Vec<u64> = on_port.iter().flat_map(|(first, last, _)| *first..=last.unwrap_or(*first)).collect();
    assert_eq!(ids, [5, 10, 11, 12, 20], "{on_port:?}");
    assert!(on_port[0].2.contains("PVID") && on_port[0].2.contains("Egress Untagged"), "{on_port:?}");
    assert_eq!(result["interfaces"][3]["name"], "br0.5");
    assert_eq!(addresses_on(&host, "br0.5"), ["10.1.0.1/24"]);
    assert_eq!(host.run(["cat", "/proc/sys/net/ipv6/conf/br0.5/accept_dad"]), "0\n");
    assert!(a.pings("10.1.0.1"));
    let (eth0, known) =
        (host.attachment("bridge", &a, "eth0"), with(&five, &json!({ "prevResult": result })));
    eth0.check(&known).success();
    let port = result["interfaces"][1]["name"].as_str().unwrap();
    for (broken, repaired) in [("del", "add"), ("add", "del")] {
        let id = if broken == "del" { "11" } else { "99" };
        host.run(["bridge", "vlan", broken, "dev", port, "vid", id]);
        assert_refused("vlans", &eth0.check(&known), 999, &["vlans", "5 pvid untagged, 10, 11, 12, 20"]);
        host.run(["bridge", "vlan", repaired, "dev", port, "vid", id]);
        eth0.check(&known).success();
    }
    add(&host, &b, &config(&json!({ "isGateway": true, "vlan": 5 })));
    add(&host, &c, &config(&json!({ "vlan": 6 })));
    assert!(a.pings(&ip_of(&b)), "one VLAN");
    assert!(!a.pings(&ip_of(&c)), "another VLAN");
    let d = host.pod("d");
    let kept = add(&host, &d, &config(&json!({ "vlan": 7, "preserveDefaultVlan": true })));
    let kept = vlans(kept["interfaces"][1]["name"].as_str().unwrap());
    assert_eq!(kept.iter().map(|vlan| vlan.0).collect::<Vec<_>>(), [1, 7], "{kept:?}");
    let trunk = add(&host, &host.pod("e"), &config(&json!({ "ipam": {}, "vlanTrunk": [{ "id": 30 }] })));
    let trunk = vlans(trunk["interfaces"][1]["name"].as_str().unwrap());
    assert_eq!(trunk.iter().map(|vlan| vlan.0).collect::<Vec<_>>(), [1, 30], "{trunk:?}");
}

#[test]
fn bridge_vlan_out_of_range_is_refused_by_key_and_value() {
    let host = host!(Feature::Bridge);
    rig::install(&host);
    let pod = host.pod("a");
    let before = host.snapshot();
    let cases = [
        (json!({ "vlan": 4095 }), "vlan", "4095"),
        (json!({ "vlan": -1 }), "vlan", "-1"),
        (json!({ "vlanTrunk": [{ "id": 0 }] }), "vlanTrunk[0].id", "0"),
        (json!({ "vlanTrunk": [{ "id": 1 }, { "id": 4095 }] }), "vlanTrunk[1].id", "4095"),
        (json!({ "vlanTrunk": [{ "minID": 10 }] }), "vlanTrunk[0].maxID", "missing"),
        (json!({ "vlanTrunk": [{ "maxID": 10 }] }), "vlanTrunk[0].minID", "missing"),
        (json!({ "vlanTrunk": [{ "minID": 10, "maxID": 9 }] }), "vlanTrunk[0].minID", "10"),
    ];
    for (keys, key, value) in cases {
        let refused = host.attachment("bridge", &pod, "eth0").add(&config(&keys));
        let (code, message) = rig::refusal(&refused);
        assert!([6, 7].contains(&code), "{keys}: {code} {message}");
        assert!(message.contains(key) && message.contains(value), "{keys}: {message}");
    }
    assert_nothing_left("bad VLANs", &host, &before);
}

// Requirements: V6, V13, V14
#[test]
fn bridge_mac_comes_from_runtime_config_args_or_cni_args() {
    let host = host!(Feature::Bridge);
    rig::install(&host);
    let runtime = json!({ "runtimeConfig": { "mac": "02:00:00:00:00:01" } });
    let args = json!({ "args": { "cni": { "mac": "02:00:00:00:00:02" } } });
    let cases = [
        (with(&runtime, &args), "IgnoreUnknown=1;MAC=02:00:00:00:00:03", "02:00:00:00:00:01"),
        (args.clone(), "IgnoreUnknown=true;MAC=02:00:00:00:00:03", "02:00:00:00:00:02"),
        (json!({}), "IgnoreUnknown=1;MAC=02:00:00:00:00:03", "02:00:00:00:00:03"),
    ];
    for (keys, variable, expected) in cases {
        let pod = host.pod("a");
        let mut eth0 = host.attachment("bridge", &pod, "eth0");
        eth0.args = variable.to_owned();
        let result = eth0.add(&config(&keys)).success().json();
        assert_eq!(rig::link(&pod, "eth0").unwrap()["address"], expected);
        assert_eq!(result["interfaces"][2]["mac"], expected);
        eth0.del(&config(&keys)).success();
        pod.remove();
    }
    let pod = host.pod("a");
    let before = host.snapshot();
    let attempt = |keys: &Value, variable: &str| {
        let mut eth0: Attachment<'_> = host.attachment("bridge", &pod, "eth0");
        eth0.args = variable.to_owned();
        eth0.add(&config(keys))
    };
    let wrong = json!({ "runtimeConfig": { "mac": "02:00:00:00:00" } });
    assert_refused("short", &attempt(&wrong, ""), 7, &["runtimeConfig.mac", "02:00:00:00:00"]);
    // A refusal of the kernel leaves nothing either.
    let group = json!({ "runtimeConfig": { "mac": "03:00:00:00:00:01" } });
    assert_ne!(attempt(&group, "").code, Some(0), "a group address");
    assert_ne!(attempt(&json!({}), "WHAT=ever").code, Some(0), "V15: an unknown argument");
    assert_nothing_left("bad hardware addresses", &host, &before);
}

// Requirements: G4
#[test]
fn bridge_dns_of_the_configuration_overrides_that_of_ipam() {
    let host = host!(Feature::Bridge);
    rig::install(&host);
    host.write("/run/cni/resolv.conf", "nameserver 10.1.0.53\nsearch inside\n");
    let resolv = json!({ "type": "host-local", "resolvConf": "/run/cni/resolv.conf", "ranges": [[{ "subnet": "10.1.0.0/24" }]] });
    let cases = [
        (json!({ "ipam": resolv }), json!({ "nameservers": ["10.1.0.53"], "search": ["inside"] })),
        (
            json!({ "ipam": resolv, "dns": { "nameservers": ["10.9.9.9"] } }),
            json!({ "nameservers": ["10.9.9.9"] }),
        ),
    ];
    for (keys, expected) in cases {
        let pod = host.pod("a");
        assert_eq!(add(&host, &pod, &config(&keys))["dns"], expected);
        host.attachment("bridge", &pod, "eth0").del(&config(&keys)).success();
        pod.remove();
    }
}

#[test]
fn bridge_ipv6_parameters_are_set_on_a_new_bridge_only() {
    let host = host!(Feature::Bridge, Feature::Ipv6);
    rig::install(&host);
    let parameter = |link: &str, name: &str| {
        let path = format!("/proc/sys/net/ipv6/conf/{link}/{name}");
        host.run(["cat", path.as_str()]).trim().to_owned()
    };
    // An uplink of the host, up or down, keeps what the administrator set.
    for (name, state) in [("up1", "up"), ("down1", "down")] {
        host.run(["ip", "link", "add", name, "type", "bridge"]);
        host.run(["sysctl", "-qw", &format!("net.ipv6.conf.{name}.accept_ra=2")]);
        host.run(["ip", "link", "set", name, state]);
        let keys = config(&json!({ "bridge": name, "promiscMode": true, "ipam": dual_stack(&json!([])) }));
        add(&host, &host.pod(name), &keys);
        assert_eq!(
            (parameter(name, "accept_ra"), parameter(name, "accept_dad")),
            ("2".into(), "1".into()),
            "{name}"
        );
    }
    add(&host, &host.pod("a"), &config(&json!({ "isGateway": true, "ipam": dual_stack(&json!([])) })));
    assert_eq!((parameter("br0", "accept_ra"), parameter("br0", "accept_dad")), ("0".into(), "0".into()));
}

#[test]
fn bridge_containers_of_both_families_reach_each_other_at_once() {
    let host = host!(Feature::Bridge, Feature::Ipv6, Feature::Ping);
    rig::install(&host);
    let (a, b) = (host.pod("a"), host.pod("b"));
    let keys = config(&json!({ "isGateway": true, "ipam": dual_stack(&json!([])) }));
    add(&host, &a, &keys);
    let result = add(&host, &b, &keys);
    assert_eq!(addresses(&result), ["10.1.0.3/24", "fd01::3/64"]);
    for target in ["fd01::3", "10.1.0.3"] {
        let first = a.attempt(["ping", "-n", "-q", "-c", "1", "-W", "1", target]);
        assert_eq!(first.code, Some(0), "the very first echo request to {target}: {first}");
    }
    assert!(b.pings("fd01::1") && b.pings("10.1.0.1"));
}

#[test]
fn bridge_two_interfaces_of_a_pod_are_two_attachments() {
    let host = host!(Feature::Bridge, Feature::NftMasquerade);
    rig::install(&host);
    let pod = host.pod("a");
    let keys = config(&json!({ "isGateway": true, "ipMasq": true }));
    let attachments = ["eth0", "net1"].map(|ifname| host.attachment("bridge", &pod, ifname));
    let results = attachments.each_ref().map(|attachment| attachment.add(&keys).success().json());
    assert_ne!(addresses(&results[0]), addresses(&results[1]));
    let known = results.each_ref().map(|result| with(&keys, &json!({ "prevResult": result })));
    for (attachment, known) in attachments.iter().zip(&known) {
        attachment.check(known).success();
    }
    attachments[0].del(&known[0]).success();
    assert_eq!(rig::links(&pod), ["net1"]);
    attachments[1].check(&known[1]).success();
    let listed = host.run(["nft", "list", "map", "inet", "weft_masquerade", "sources4"]);
    assert!(listed.contains("net1") && !listed.contains("eth0"), "{listed}");
    attachments[1].del(&known[1]).success();
    assert!(rig::links(&pod).is_empty());
}

#[test]
fn bridge_ip_masq_applies_outside_of_the_subnet_only() {
    for backend in ["nftables", "iptables"] {
        let host = host!(Feature::Bridge, Feature::NftMasquerade, Feature::IptablesNft);
        rig::install(&host);
        let outside = outside(&host);
        let (a, b) = (host.pod("a"), host.pod("b"));
        let routes = json!([{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }]);
        let keys = config(&json!({
            "isGateway": true, "ipMasq": true, "ipMasqBackend": backend, "ipam": dual_stack(&routes),
        }));
        let unmasked = config(&json!({ "isGateway": true, "ipam": dual_stack(&routes) }));
        add(&host, &a, &keys);
        add(&host, &b, &unmasked);
        for (place, own) in [(0, "10.1.0.2"), (1, "fd01::2")] {
            let seen = source_seen(&a, &outside, OUTSIDE[place]);
            assert_eq!(seen.map(|ip| ip.to_string()).as_deref(), Some(UPLINK[place]), "{backend}");
            let target = addresses_on(&b, "eth0")[place].split('/').next().unwrap().to_owned();
            let within = source_seen(&a, &b, &target).map(|ip| ip.to_string());
            assert_eq!(within.as_deref(), Some(own), "{backend}: no masquerading within the subnet");
        }
        assert_eq!(source_seen(&b, &outside, OUTSIDE[0]), None, "{backend}: no answer without ipMasq");
    }
}
