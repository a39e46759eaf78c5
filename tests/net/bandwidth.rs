//! Tests for `bandwidth`, option by option: the kernel objects, and the throughput with real traffic.
//!
//! ```text
//!   host ── br0 10.1.0.1, fd01::1 ── veth ── eth0 a        ifb: traffic from a passes through it
//! ```
//!
//! Source: containernetworking/plugins `plugins/meta/bandwidth` v1.9.1; subnets: v1.5.1.

use std::time::Duration;

use rig::traffic::throughput;
use rig::{assert_nothing_left, assert_refused, with};
use serde_json::{Value, json};
use testkit::{Attachment, Feature, Host, Pod, host};

/// 8 Mbit/s, in bytes a second.
const RATE: f64 = 1_000_000.0;
/// Size of a full-sized frame relative to the payload, as the kernel counts it: 66 of 1514 bytes are headers.
const FRAMED: f64 = 1514.0 / 1448.0;

/// Pod on a bridge, the plugin's attachment, and the result of the bridge.
struct World<'a> {
    pod: Pod,
    bandwidth: Attachment<'a>,
    bridge: Attachment<'a>,
    previous: Value,
}

fn bridge() -> Value {
    json!({
        "cniVersion": "1.1.0", "name": "net", "type": "bridge", "bridge": "br0", "isGateway": true,
        "ipam": { "type": "host-local", "ranges": [[{ "subnet": "10.1.0.0/24" }], [{ "subnet": "fd01::/64" }]] },
    })
}

fn world(host: &Host) -> World<'_> {
    rig::install(host);
    let pod = host.pod("a");
    let front = host.attachment("bridge", &pod, "eth0");
    let previous = front.add(&bridge()).success().json();
    World { bandwidth: host.attachment("bandwidth", &pod, "eth0"), pod, bridge: front, previous }
}

impl World<'_> {
    fn config(&self, keys: &Value) -> Value {
        let base =
            json!({ "cniVersion": "1.1.0", "name": "net", "type": "bandwidth", "prevResult": self.previous });
        with(&base, keys)
    }

    fn host_end(&self) -> String {
        self.previous["interfaces"][1]["name"].as_str().expect("the host's end").to_owned()
    }
}

/// Returns rates of 8 Mbit/s in both directions.
fn both() -> Value {
    json!({ "ingressRate": 8_000_000, "ingressBurst": 400_000, "egressRate": 8_000_000, "egressBurst": 400_000 })
}

fn root_of(host: &Host, link: &str) -> Value {
    let shown = host.json(["tc", "-j", "qdisc", "show", "dev", link]);
    let root = shown.as_array().unwrap().iter().find(|qdisc| qdisc["root"] == true).cloned();
    root.unwrap_or_default()
}

#[test]
fn bandwidth_mtu_too_small_for_ipv6_is_accepted() {
    let host = host!(Feature::Ifb, Feature::Tbf, Feature::Mirred);
    rig::install(&host);
    let pod = host.pod("a");
    let bridge = json!({
        "cniVersion": "1.1.0", "name": "net", "type": "bridge", "bridge": "br0", "mtu": 1200,
        "ipam": { "type": "host-local", "ranges": [[{ "subnet": "10.1.0.0/24" }]] },
    });
    let front = host.attachment("bridge", &pod, "eth0");
    let previous = front.add(&bridge).success().json();
    let world = World { bandwidth: host.attachment("bandwidth", &pod, "eth0"), pod, bridge: front, previous };
    let config = world.config(&both());
    let result = world.bandwidth.add(&config).success().json();
    world.bandwidth.check(&with(&config, &json!({ "prevResult": result }))).success();
    let ifb = result["interfaces"][3]["name"].as_str().expect("the ifb");
    let ifb = rig::link(&host, ifb).expect("the ifb");
    assert_eq!((&ifb["mtu"], &ifb["operstate"]), (&json!(1200), &json!("UNKNOWN")), "{ifb}");
    world.bandwidth.del(&config).success();
}

#[test]
fn bandwidth_rate_is_met_within_a_tenth_in_both_directions() {
    let host = host!(Feature::Ifb, Feature::Tbf, Feature::Mirred);
    let world = world(&host);
    let time = Duration::from_millis(2500);
    // Without limits, traffic is many times as fast; otherwise the test would prove nothing.
    assert!(throughput(&host, &world.pod, "10.1.0.2", Duration::from_millis(200)) > 20.0 * RATE);
    world.bandwidth.add(&world.config(&both())).success();
    for (label, rate) in [
        ("ingress", throughput(&host, &world.pod, "10.1.0.2", time)),
        ("egress", throughput(&world.pod, &host, "10.1.0.1", time)),
        ("egress, IPv6", throughput(&world.pod, &host, "fd01::1", time)),
    ] {
        let rate = rate * FRAMED;
        assert!((0.9 * RATE..=1.1 * RATE).contains(&rate), "{label}: {rate:.0} bytes/s");
    }
}

#[test]
fn bandwidth_of_one_direction_leaves_the_other_unlimited() {
    let host = host!(Feature::Ifb, Feature::Tbf, Feature::Mirred);
    let world = world(&host);
    let time = Duration::from_millis(300);
    let ingress = world.config(&json!({ "ingressRate": 8_000_000, "ingressBurst": 400_000 }));
    let result = world.bandwidth.add(&ingress).success().json();
    assert_eq!(result, world.previous, "without egress limits there is no ifb");
    assert!(!rig::links(&host).iter().any(|name| name.starts_with("bwp")));
    assert!(throughput(&world.pod, &host, "10.1.0.1", time) > 20.0 * RATE);
    assert!(throughput(&host, &world.pod, "10.1.0.2", time) < 2.0 * RATE);
}

#[test]
fn bandwidth_kernel_objects_equal_those_of_the_go_plugin() {
    let host = host!(Feature::Ifb, Feature::Tbf, Feature::Mirred);
    let world = world(&host);
    let keys = json!({ "ingressRate": 8_000_000, "ingressBurst": 800_000, "egressRate": 16_000_000, "egressBurst": 1_600_000 });
    let result = world.bandwidth.add(&world.config(&keys)).success().json();
    // `printf net%s CONTAINER | sha512sum`, of the network's name and the container's id.
    let digest =
        host.run(["sh", "-c", &format!("printf net%s {} | sha512sum", world.bandwidth.container_id)]);
    let ifb = format!("bwp{}", &digest[..12]);
    assert_eq!(result["interfaces"][3]["name"], ifb.as_str());
    let shown = rig::link(&host, &ifb).expect("the ifb");
    assert_eq!(result["interfaces"][3], json!({ "name": ifb, "mac": shown["address"] }));
    assert_eq!((&shown["linkinfo"]["info_kind"], &shown["mtu"]), (&json!("ifb"), &json!(1500)));
    assert!(rig::is_up(&shown) && rig::addresses_on(&host, &ifb).is_empty());
    let owner_tag = format!("weft/bandwidth/net/{}/eth0", world.bandwidth.container_id);
    assert_eq!(shown["ifalias"], owner_tag.as_str(), "the owner tag");

    let end = world.host_end();
    let inward = root_of(&host, &end);
    assert_eq!((&inward["kind"], &inward["handle"]), (&json!("tbf"), &json!("1:")));
    assert_eq!(inward["options"]["rate"], 1_000_000);
    assert_eq!(inward["options"]["burst"], 100_000);
    // 25 ms and one burst.
    assert_eq!(inward["options"]["lat"], 25_000);
    let outward = root_of(&host, &ifb);
    assert_eq!(
        (&outward["options"]["rate"], &outward["options"]["burst"]),
        (&json!(2_000_000), &json!(200_000))
    );
    let filters = host.run(["tc", "filter", "show", "dev", &end, "ingress"]);
    for word in
        ["protocol all pref 1 u32", "match 00000000/00000000", &format!("Egress Redirect to device {ifb}")]
    {
        assert!(filters.contains(word), "{word} is missing in:\n{filters}");
    }
}

// Requirements: V3
#[test]
fn bandwidth_rates_may_come_from_runtime_config() {
    let host = host!(Feature::Ifb, Feature::Tbf, Feature::Mirred);
    let world = world(&host);
    let from_runtime = json!({ "runtimeConfig": { "bandwidth": both() } });
    let config = world.config(&from_runtime);
    let result = world.bandwidth.add(&config).success().json();
    assert_eq!(root_of(&host, &world.host_end())["options"]["rate"], 1_000_000);
    world.bandwidth.check(&with(&config, &json!({ "prevResult": result }))).success();
    // Some runtimes do not pass the rates to DEL.
    world.bandwidth.del(&world.config(&json!({}))).success();
    assert!(!rig::links(&host).iter().any(|name| name.starts_with("bwp")));
    // Without a rate, the plugin passes the result on.
    assert_eq!(world.bandwidth.add(&world.config(&json!({}))).success().json(), world.previous);
}

#[test]
fn bandwidth_subnets_are_shaped_alone_or_exempted() {
    let host = host!(Feature::Ifb, Feature::Tbf, Feature::Htb, Feature::Mirred);
    let world = world(&host);
    host.run(["ip", "address", "add", "10.1.0.200/24", "dev", "br0"]);
    let time = Duration::from_millis(600);
    for (key, list, slow, fast) in [
        ("shapedSubnets", json!(["10.1.0.200/32", "fd01::1/128"]), ["10.1.0.200", "fd01::1"], "10.1.0.1"),
        ("unshapedSubnets", json!(["10.1.0.200/32", "10.7.0.0/16"]), ["10.1.0.1", "fd01::1"], "10.1.0.200"),
    ] {
        let config = world.config(&with(&both(), &json!({ (key): list })));
        let result = world.bandwidth.add(&config).success().json();
        assert_eq!(root_of(&host, &world.host_end())["kind"], "htb");
        world.bandwidth.check(&with(&config, &json!({ "prevResult": result }))).success();
        for address in slow {
            let rate = throughput(&world.pod, &host, address, time);
            assert!(rate < 1.5 * RATE, "{key}: to {address}: {rate:.0} bytes/s");
        }
        let rate = throughput(&world.pod, &host, fast, time);
        assert!(rate > 10.0 * RATE, "{key}: to {fast}: {rate:.0} bytes/s");
        // In the other direction, the sender's address counts.
        let toward = ["10.1.0.1", "10.1.0.200"].map(|from| from_address(&host, &world.pod, from, time));
        assert_eq!(toward[0] < toward[1], fast == "10.1.0.200", "{key}: {toward:?}");
        assert!(
            toward.iter().any(|rate| *rate < 1.5 * RATE) && toward.iter().any(|rate| *rate > 10.0 * RATE)
        );
        world.bandwidth.del(&config).success();
        host.run(["tc", "qdisc", "del", "dev", &world.host_end(), "root"]);
        host.run(["tc", "qdisc", "del", "dev", &world.host_end(), "ingress"]);
    }
}

/// Returns the throughput from one of the host's addresses to the pod.
fn from_address(host: &Host, pod: &Pod, from: &str, time: Duration) -> f64 {
    host.run(["ip", "route", "replace", "10.1.0.2/32", "dev", "br0", "src", from]);
    throughput(host, pod, "10.1.0.2", time)
}

#[test]
fn bandwidth_check_finds_each_change() {
    let host = host!(Feature::Ifb, Feature::Tbf, Feature::Mirred);
    let world = world(&host);
    let config = world.config(&both());
    let result = world.bandwidth.add(&config).success().json();
    let known = with(&config, &json!({ "prevResult": result }));
    let ifb = result["interfaces"][3]["name"].as_str().unwrap().to_owned();
    let end = world.host_end();
    world.bandwidth.check(&known).success();
    let tbf = |link: &str, rate: &str| {
        let line = [
            "tc", "qdisc", "replace", "dev", link, "root", "handle", "1:", "tbf", "rate", rate, "burst",
            "50000b", "limit", "75000b",
        ];
        host.run(line);
    };
    for link in [end.as_str(), &ifb] {
        tbf(link, "9mbit");
        assert_refused("the rate", &world.bandwidth.check(&known), 999, &[link, "limit", "1125000"]);
        tbf(link, "8mbit");
        world.bandwidth.check(&known).success();
        host.run(["tc", "qdisc", "del", "dev", link, "root"]);
        assert_refused("the root", &world.bandwidth.check(&known), 999, &[link, "limit"]);
        tbf(link, "8mbit");
    }
    host.run(["tc", "filter", "del", "dev", &end, "ingress"]);
    assert_refused("the redirection", &world.bandwidth.check(&known), 999, &[&end, &ifb]);
    host.run(["ip", "link", "del", &ifb]);
    assert_refused("the ifb", &world.bandwidth.check(&known), 999, &[&ifb]);
    let other = with(&known, &json!({ "egressRate": 0, "egressBurst": 0, "ingressRate": 8_000_008 }));
    assert_refused("other rates", &world.bandwidth.check(&other), 999, &[&end, "1000001"]);
}

#[test]
fn bandwidth_burst_below_packet_size_is_raised_to_one_packet() {
    let host = host!(Feature::Ifb, Feature::Tbf, Feature::Mirred);
    let world = world(&host);
    let keys =
        json!({ "ingressRate": 8_000_000, "ingressBurst": 8, "egressRate": 8_000_000, "egressBurst": 800 });
    let result = world.bandwidth.add(&world.config(&keys)).success().json();
    assert_eq!(root_of(&host, &world.host_end())["options"]["burst"].as_u64().unwrap() / 10, 151);
    world.bandwidth.check(&world.config(&with(&keys, &json!({ "prevResult": result })))).success();
    assert!(throughput(&host, &world.pod, "10.1.0.2", Duration::from_millis(300)) > 0.2 * RATE);
}

#[test]
fn bandwidth_burst_beyond_the_kernels_limit_is_accepted() {
    let host = host!(Feature::Ifb, Feature::Tbf, Feature::Mirred);
    let world = world(&host);
    // Kubernetes sends the first burst with every rate. As a time, 32 bits hold at most 274 seconds.
    for (burst, lasts) in [(2_147_483_647_u64, false), (34_000_000_000, true)] {
        let keys = json!({ "ingressRate": 1_000_000, "ingressBurst": burst });
        let result = world.bandwidth.add(&world.config(&keys)).success().json();
        world.bandwidth.check(&world.config(&with(&keys, &json!({ "prevResult": result })))).success();
        if lasts {
            let rate = throughput(&host, &world.pod, "10.1.0.2", Duration::from_millis(200));
            assert!(rate > 10.0 * RATE, "{rate:.0} bytes/s");
        }
    }
}

#[test]
fn bandwidth_two_interfaces_of_a_pod_have_two_ifbs() {
    let host = host!(Feature::Ifb, Feature::Tbf, Feature::Mirred);
    let world = world(&host);
    let mut second = host.attachment("bridge", &world.pod, "eth1");
    let previous = second.add(&bridge()).success().json();
    second.plugin = "bandwidth".to_owned();
    let ifbs = || rig::links(&host).into_iter().filter(|name| name.starts_with("bwp")).count();
    let (one, two) =
        (world.config(&both()), with(&world.config(&both()), &json!({ "prevResult": previous })));
    let results = [world.bandwidth.add(&one).success().json(), second.add(&two).success().json()];
    assert_eq!(ifbs(), 2);
    world.bandwidth.check(&with(&one, &json!({ "prevResult": results[0] }))).success();
    second.check(&with(&two, &json!({ "prevResult": results[1] }))).success();
    world.bandwidth.del(&one).success();
    assert_eq!(ifbs(), 1);
    second.check(&with(&two, &json!({ "prevResult": results[1] }))).success();
    second.del(&two).success();
    assert_eq!(ifbs(), 0);
}

#[test]
fn bandwidth_ifb_without_owner_tag_is_found_by_redirection() {
    let host = host!(Feature::Ifb, Feature::Tbf, Feature::Mirred);
    let world = world(&host);
    let mut second = host.attachment("bridge", &world.pod, "eth1");
    let previous = second.add(&bridge()).success().json();
    second.plugin = "bandwidth".to_owned();
    let one = world.config(&both());
    let two = with(&one, &json!({ "prevResult": previous }));
    // The ifb as the Go plugin creates it.
    let made = world.bandwidth.add(&one).success().json();
    let name = made["interfaces"][3]["name"].as_str().unwrap().to_owned();
    host.run(["ip", "link", "set", &name, "alias", ""]);
    let index = rig::link(&host, &name).unwrap()["ifindex"].clone();
    second.del(&two).success();
    second.add(&two).success();
    second.del(&two).success();
    assert_eq!(rig::link(&host, &name).map(|link| link["ifindex"].clone()), Some(index));
    world.bandwidth.check(&with(&one, &json!({ "prevResult": made }))).success();
    world.bandwidth.del(&one).success();
    assert_eq!(rig::link(&host, &name), None);
}

#[test]
fn bandwidth_refuses_other_links_and_keeps_foreign_objects() {
    let host = host!(Feature::Ifb, Feature::Tbf, Feature::Mirred);
    let world = world(&host);
    let end = world.host_end();
    let before = host.snapshot();
    let mut unnamed = world.config(&both());
    unnamed["prevResult"]["interfaces"][1]["name"] = json!("veth0");
    assert_refused("not of this list", &world.bandwidth.add(&unnamed), 7, &[&end]);
    let mut inside = host.attachment("bandwidth", &world.pod, "lo");
    assert_refused("no veth", &inside.add(&world.config(&both())), 7, &["lo", "veth"]);
    world.pod.run(["ip", "link", "add", "p0", "type", "veth", "peer", "name", "p1"]);
    inside.ifname = "p0".to_owned();
    assert_refused(
        "the peer is not on the host",
        &inside.add(&world.config(&both())),
        7,
        &["p0", "no end on the host"],
    );
    assert_nothing_left("refused", &host, &before);

    // Another program watches the container's traffic.
    host.run(["tc", "qdisc", "add", "dev", &end, "clsact"]);
    host.run([
        "tc", "filter", "add", "dev", &end, "ingress", "protocol", "all", "u32", "match", "u32", "0", "0",
        "flowid", "1:1",
    ]);
    let watched = host.snapshot();
    assert_refused(
        "ingress qdisc in use",
        &world.bandwidth.add(&world.config(&both())),
        5,
        &[&end, "exists"],
    );
    assert_nothing_left("ingress qdisc in use", &host, &watched);
    host.run(["tc", "qdisc", "del", "dev", &end, "clsact"]);

    // A link of another program has the name.
    let digest =
        host.run(["sh", "-c", &format!("printf net%s {} | sha512sum", world.bandwidth.container_id)]);
    let name = format!("bwp{}", &digest[..12]);
    host.run(["ip", "link", "add", &name, "type", "bridge"]);
    let result = world.bandwidth.add(&world.config(&both())).success().json();
    assert_ne!(result["interfaces"][3]["name"], name.as_str());
    world.bandwidth.del(&world.config(&both())).success();
    assert_eq!(rig::link(&host, &name).unwrap()["linkinfo"]["info_kind"], "bridge");
}

#[test]
fn bandwidth_unused_ingress_qdisc_is_reused_and_clsact_is_not() {
    let host = host!(Feature::Ifb, Feature::Tbf, Feature::Mirred);
    let world = world(&host);
    let end = world.host_end();
    let config = world.config(&both());
    // clsact with an egress filter only: there is no ingress filter.
    host.run(["tc", "qdisc", "add", "dev", &end, "clsact"]);
    let filter = ["protocol", "all", "u32", "match", "u32", "0", "0", "flowid", "1:1"];
    host.run(["tc", "filter", "add", "dev", &end, "egress"].into_iter().chain(filter));
    let watched = host.snapshot();
    assert_refused("clsact", &world.bandwidth.add(&config), 5, &[&end, "exists"]);
    assert_nothing_left("clsact", &host, &watched);
    host.run(["tc", "qdisc", "del", "dev", &end, "clsact"]);
    // An ingress qdisc as left by an ADD that failed or was killed before it redirected.
    host.run(["tc", "qdisc", "add", "dev", &end, "ingress"]);
    let result = world.bandwidth.add(&config).success().json();
    world.bandwidth.check(&with(&config, &json!({ "prevResult": result }))).success();
    world.bandwidth.del(&config).success();
    world.bridge.del(&bridge()).success();
    assert_eq!(rig::links(&host), ["br0"]);
    // An ingress qdisc with a filter belongs to another program.
    let before = world.bridge.add(&bridge()).success();
    drop(before);
    host.run(["tc", "qdisc", "add", "dev", &end, "ingress"]);
    host.run(["tc", "filter", "add", "dev", &end, "ingress"].into_iter().chain(filter));
    assert_refused("a filter", &world.bandwidth.add(&config), 5, &[&end, "exists"]);
}

#[test]
fn bandwidth_repeated_add_replaces_the_limits() {
    let host = host!(Feature::Ifb, Feature::Tbf, Feature::Mirred);
    let world = world(&host);
    let config = world.config(&both());
    world.bandwidth.add(&config).success();
    let slower = with(&config, &json!({ "egressRate": 4_000_000 }));
    let result = world.bandwidth.add(&slower).success().json();
    world.bandwidth.check(&with(&slower, &json!({ "prevResult": result }))).success();
    assert!(throughput(&world.pod, &host, "10.1.0.1", Duration::from_millis(500)) < 0.8 * RATE);
    world.bandwidth.del(&config).success();
    world.bridge.del(&bridge()).success();
    assert_eq!(rig::links(&host), ["br0"]);
}

/// Without limits the plugin does nothing, so the interface needs no end on the host.
#[test]
fn bandwidth_without_limits_is_checked_behind_any_interface() {
    let host = host!(Feature::Macvlan);
    rig::install(&host);
    let _outside = rig::traffic::outside(&host);
    let pod = host.pod("a");
    let macvlan = json!({ "cniVersion": "1.0.0", "name": "net", "type": "macvlan", "master": "up0" });
    let result = host.attachment("macvlan", &pod, "eth0").add(&macvlan).success().json();
    let config = json!({ "cniVersion": "1.0.0", "name": "net", "type": "bandwidth", "prevResult": result });
    let bandwidth = host.attachment("bandwidth", &pod, "eth0");
    bandwidth.call("ADD", config.to_string()).success();
    bandwidth.check(&config).success();
    bandwidth.del(&config).success();
}
