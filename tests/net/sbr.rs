//! Tests for `sbr`, option by option: a packet with a source address leaves by the interface that has the
//! address.
//!
//! ```text
//!   host ─┬─ br1 10.1.0.1, fd01::1 ── eth0 ─┐
//!         └─ br2 10.2.0.1, fd02::1 ── net1 ─┴─ pod a        sbr is chained after the bridge of net1
//! ```
//!
//! Source: containernetworking/plugins `plugins/meta/sbr` v1.9.1 and later.

use rig::{assert_pod_unchanged, assert_refused, routes, with};
use serde_json::{Value, json};
use testkit::{Attachment, Feature, Host, Netns, Pod, host};

fn bridge(number: u8) -> Value {
    json!({
        "cniVersion": "1.1.0", "name": format!("net{number}"), "type": "bridge",
        "bridge": format!("br{number}"), "isGateway": true,
        "ipam": {
            "type": "host-local",
            "ranges": [[{ "subnet": format!("10.{number}.0.0/24") }], [{ "subnet": format!("fd0{number}::/64") }]],
            "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "192.0.2.0/24" }, { "dst": "::/0" }],
        },
    })
}

struct World<'a> {
    pod: Pod,
    sbr: Attachment<'a>,
    previous: Value,
}

/// Creates a pod that has eth0 with routes, then net1.
fn world(host: &Host) -> World<'_> {
    rig::install(host);
    let pod = host.pod("a");
    let mut first = bridge(1);
    first["ipam"]["routes"] = json!([{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }]);
    host.attachment("bridge", &pod, "eth0").add(&first).success();
    let previous = net1(host, &pod);
    World { sbr: host.attachment("sbr", &pod, "net1"), pod, previous }
}

fn net1(host: &Host, pod: &Pod) -> Value {
    let second = host.attachment("bridge", pod, "net1");
    let mut config = bridge(2);
    // The default routes of eth0 exist already.
    config["ipam"]["routes"] = json!([{ "dst": "192.0.2.0/24" }, { "dst": "fd09::/64" }]);
    second.add(&config).success().json()
}

impl World<'_> {
    fn config(&self, keys: &Value) -> Value {
        let base =
            json!({ "cniVersion": "1.1.0", "name": "net2", "type": "sbr", "prevResult": self.previous });
        with(&base, keys)
    }
}

/// Returns the rules as `FROM TABLE`.
fn rules(netns: &Netns) -> Vec<String> {
    let mut list = Vec::new();
    for family in ["-4", "-6"] {
        let shown = netns.json(["ip", family, "-j", "rule"]);
        let text = |rule: &Value, key: &str| rule[key].as_str().unwrap_or_default().to_owned();
        let own = shown.as_array().unwrap().iter().filter(|rule| rule["src"] != "all");
        list.extend(own.map(|rule| format!("{} {}", text(rule, "src"), text(rule, "table"))));
    }
    list
}

/// Returns the interface by which a packet leaves.
fn outgoing_interface(netns: &Netns, to: &str, from: &str) -> String {
    let shown = netns.json(["ip", "-j", "route", "get", to, "from", from]);
    shown[0]["dev"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn sbr_packets_leave_by_the_interface_of_their_source() {
    let host = host!(Feature::Bridge, Feature::Ping);
    let world = world(&host);
    for (to, from) in [("203.0.113.9", "10.2.0.2"), ("2001:db8::9", "fd02::2")] {
        assert_eq!(outgoing_interface(&world.pod, to, from), "eth0", "before");
    }
    let config = world.config(&json!({}));
    let result = world.sbr.add(&config).success().json();
    assert_eq!(result, world.previous);
    assert_eq!(rules(&world.pod), ["10.2.0.2 100", "fd02::2 101"]);
    for (to, from, by) in [
        ("203.0.113.9", "10.2.0.2", "net1"),
        ("203.0.113.9", "10.1.0.2", "eth0"),
        ("2001:db8::9", "fd02::2", "net1"),
        ("2001:db8::9", "fd01::2", "eth0"),
    ] {
        assert_eq!(outgoing_interface(&world.pod, to, from), by, "from {from}");
    }
    assert_eq!(
        routes(&world.pod, &["route", "show", "table", "100"]),
        [
            "10.2.0.0/24 dev net1 src 10.2.0.2",
            "192.0.2.0/24 via 10.2.0.1 dev net1",
            "default via 10.2.0.1 dev net1"
        ]
    );
    let main = routes(&world.pod, &["route"]);
    assert!(
        !main.iter().any(|route| route.contains("net1")),
        "the main table has no route of net1: {main:?}"
    );
    let main = routes(&world.pod, &["-6", "route"]);
    let left: Vec<&String> = main.iter().filter(|route| route.contains("net1")).collect();
    assert!(left.iter().all(|route| route.starts_with("fe80::/64")), "link-local routes remain: {left:?}");
    // A packet that arrived by net1 is answered by net1.
    assert!(host.pings("10.2.0.2") && host.pings("fd02::2"));
    world.sbr.check(&config).success();
    host.attachment("bridge", &world.pod, "net1")
        .check(&with(&bridge(2), &json!({ "prevResult": world.previous })))
        .success();
    world.sbr.del(&config).success();
    assert!(rules(&world.pod).is_empty());
}

#[test]
fn sbr_uses_the_first_free_tables() {
    let host = host!(Feature::Bridge);
    let world = world(&host);
    world.pod.run(["ip", "rule", "add", "from", "192.0.2.1", "lookup", "100"]);
    world.pod.run(["ip", "rule", "add", "fwmark", "7", "lookup", "101"]);
    world.pod.run(["ip", "-6", "route", "add", "fd77::/64", "dev", "eth0", "table", "102"]);
    world.sbr.add(&world.config(&json!({}))).success();
    assert_eq!(rules(&world.pod), ["10.2.0.2 103", "192.0.2.1 100", "fd02::2 104"]);
    world.sbr.del(&world.config(&json!({}))).success();
    assert_eq!(rules(&world.pod), ["192.0.2.1 100"], "a rule of another program stays");
}

#[test]
fn sbr_concurrent_adds_use_different_tables() {
    let host = host!(Feature::Bridge);
    let world = world(&host);
    let first = world.config(&json!({}));
    let mut second = world.config(&json!({}));
    second["prevResult"] =
        json!({ "cniVersion": "1.1.0", "ips": [{ "address": "10.1.0.2/24", "gateway": "10.1.0.1" }] });
    let eth0 = host.attachment("sbr", &world.pod, "eth0");
    std::thread::scope(|scope| {
        scope.spawn(|| eth0.add(&second).success());
        world.sbr.add(&first).success();
    });
    let mut tables: Vec<String> =
        rules(&world.pod).iter().filter_map(|rule| rule.split(' ').nth(1).map(str::to_owned)).collect();
    tables.sort();
    assert_eq!(tables, ["100", "101", "102"]);
}

#[test]
fn sbr_given_table_gets_rules_only() {
    let host = host!(Feature::Bridge);
    let world = world(&host);
    let before = (routes(&world.pod, &["route", "show", "table", "all"]), rules(&world.pod));
    let config = world.config(&json!({ "table": 4_000_000_000_u32 }));
    for what in ["once", "again"] {
        world.sbr.add(&config).success();
        assert_eq!(rules(&world.pod), ["10.2.0.2 4000000000", "fd02::2 4000000000"], "{what}");
    }
    assert_eq!(routes(&world.pod, &["route", "show", "table", "all"]), before.0);
    world.sbr.check(&config).success();
    world.pod.run(["ip", "rule", "add", "from", "10.2.0.2", "lookup", "7"]);
    assert_refused(
        "another table",
        &world.sbr.check(&world.config(&json!({ "table": 8 }))),
        999,
        &["10.2.0.2", "8"],
    );
    world.sbr.del(&config).success();
    assert_eq!(rules(&world.pod), ["10.2.0.2 7"]);
}

#[test]
fn sbr_gateways_option_replaces_gateways_of_addresses() {
    let host = host!(Feature::Bridge);
    let world = world(&host);
    world.sbr.add(&world.config(&json!({ "gateways": ["10.2.0.77"] }))).success();
    let table = routes(&world.pod, &["route", "show", "table", "100"]);
    assert!(table.contains(&"default via 10.2.0.77 dev net1".to_owned()), "{table:?}");
    let table = routes(&world.pod, &["-6", "route", "show", "table", "101"]);
    assert!(table.iter().any(|route| route.starts_with("default via fd02::1 dev net1")), "{table:?}");
}

#[test]
fn sbr_source_hints_keep_subnets_in_the_main_table() {
    let host = host!(Feature::Bridge, Feature::Ping);
    let world = world(&host);
    world.sbr.add(&world.config(&json!({ "addSourceHints": true }))).success();
    let main = routes(&world.pod, &["route"]);
    assert!(main.contains(&"10.2.0.0/24 dev net1 src 10.2.0.2".to_owned()), "{main:?}");
    assert!(!main.iter().any(|route| route.starts_with("192.0.2.0/24")), "{main:?}");
    let main = routes(&world.pod, &["-6", "route"]);
    assert!(main.iter().any(|route| route.starts_with("fd02::/64 dev net1 src fd02::2")), "{main:?}");
    assert!(world.pod.pings("10.2.0.1") && world.pod.pings("fd02::1"));
    assert_eq!(outgoing_interface(&world.pod, "203.0.113.9", "10.2.0.2"), "net1");
}

#[test]
fn sbr_routes_move_with_all_attributes() {
    let host = host!(Feature::Bridge);
    let world = world(&host);
    let ip = |line: &str| drop(world.pod.run(["ip"].into_iter().chain(line.split(' '))));
    ip("route add 198.51.100.0/24 via 172.16.0.1 dev net1 onlink metric 7 mtu 1300");
    ip("route add 203.0.113.0/25 dev net1 scope link metric 9");
    world.sbr.add(&world.config(&json!({}))).success();
    let table = routes(&world.pod, &["route", "show", "table", "100"]);
    for route in ["198.51.100.0/24 via 172.16.0.1 dev net1 metric 7", "203.0.113.0/25 dev net1 metric 9"] {
        assert!(table.contains(&route.to_owned()), "{route} is missing in {table:?}");
    }
    let text = world.pod.run(["ip", "route", "show", "table", "100"]);
    assert!(text.contains("onlink mtu 1300") || text.contains("mtu 1300 onlink"), "{text}");
}

#[test]
fn sbr_check_finds_each_change() {
    let host = host!(Feature::Bridge);
    let world = world(&host);
    let config = world.config(&json!({}));
    world.sbr.add(&config).success();
    world.pod.run(["ip", "route", "del", "default", "table", "100"]);
    assert_refused("the route", &world.sbr.check(&config), 999, &["table 100", "10.2.0.1"]);
    world.pod.run(["ip", "route", "add", "default", "via", "10.2.0.1", "dev", "net1", "table", "100"]);
    world.sbr.check(&config).success();
    world.pod.run(["ip", "-6", "rule", "del", "from", "fd02::2"]);
    assert_refused("the rule", &world.sbr.check(&config), 999, &["fd02::2"]);
}

#[test]
fn sbr_address_of_a_single_host_without_gateway_needs_no_route() {
    let host = host!(Feature::Bridge);
    rig::install(&host);
    let pod = host.pod("a");
    let ipam = json!({ "type": "static", "addresses": [{ "address": "10.2.0.5/32" }] });
    let first = with(&bridge(2), &json!({ "ipam": ipam, "isGateway": false }));
    let previous = host.attachment("bridge", &pod, "net1").add(&first).success().json();
    let config = json!({ "cniVersion": "1.1.0", "name": "net2", "type": "sbr", "prevResult": previous });
    // `add` also calls CHECK.
    host.attachment("sbr", &pod, "net1").add(&config).success();
    assert_eq!(rules(&pod), ["10.2.0.5 100"]);
}

#[test]
fn sbr_failed_add_restores_rules_and_routes() {
    let host = host!(Feature::Bridge);
    let world = world(&host);
    // The kernel adds link-local routes with a delay, the multicast route first.
    while !world.pod.run(["ip", "-6", "route"]).contains("fe80::/64 dev net1") {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let before = world.pod.snapshot();
    // This fails after everything else was done: the interface does not have this address.
    let mut config = world.config(&json!({ "addSourceHints": true }));
    config["prevResult"]["ips"][0]["address"] = json!("10.2.0.99/24");
    assert_refused("a foreign source", &world.sbr.add(&config), 5, &["table main", "10.2.0.0/24"]);
    assert_pod_unchanged("a foreign source", &world.pod, &before);
    config = world.config(&json!({ "gateways": ["10.2.0.1", "fd09:1::1"] }));
    assert_refused("an unreachable gateway", &world.sbr.add(&config), 5, &["table 101", "fd09:1::1"]);
    assert_pod_unchanged("an unreachable gateway", &world.pod, &before);
    for (what, previous) in [
        ("no address", json!({ "cniVersion": "1.1.0" })),
        (
            "an address of another interface",
            json!({ "cniVersion": "1.1.0", "interfaces": [{ "name": "eth0", "sandbox": "/x" }],
                    "ips": [{ "address": "10.1.0.2/24", "interface": 0 }] }),
        ),
    ] {
        let config = world.config(&json!({ "prevResult": previous }));
        assert_refused(what, &world.sbr.add(&config), 7, &["net1", "address"]);
        assert_pod_unchanged(what, &world.pod, &before);
    }
}

#[test]
fn sbr_del_finds_rules_without_interface_or_prev_result() {
    let host = host!(Feature::Bridge);
    let world = world(&host);
    let mut config = world.config(&json!({}));
    config.as_object_mut().unwrap().remove("prevResult");
    for (what, link, known) in [
        ("link and address", true, true),
        ("address", false, true),
        ("nothing", false, false),
        ("a table that is invalid", true, true),
    ] {
        world.sbr.add(&world.config(&json!({}))).success();
        world.pod.run(["ip", "rule", "add", "from", "192.0.2.1", "lookup", "100"]);
        if !link {
            world.pod.run(["ip", "link", "del", "net1"]);
        }
        let wrong = if what.starts_with("a table") { json!({ "table": "main" }) } else { json!({}) };
        world.sbr.del(&if known { world.config(&wrong) } else { config.clone() }).success();
        assert_eq!(rules(&world.pod), ["192.0.2.1 100"], "{what}");
        world.pod.run(["ip", "rule", "del", "from", "192.0.2.1"]);
        if link {
            world.pod.run(["ip", "link", "del", "net1"]);
        }
        host.run(["rm", "-rf", "/var/lib/cni/networks/net2"]);
        net1(&host, &world.pod);
    }
}

#[test]
fn sbr_lock_is_out_of_reach_of_a_node_user() {
    let host = host!(Feature::Bridge);
    let world = world(&host);
    let (before, path) = (rules(&world.pod), world.sbr.netns.clone());
    let hold = |netns: &Netns, line: &str| {
        let script = format!(
            "f=$(mktemp); ({line} sh -c 'echo held; exec sleep 60') >$f 2>&1 & while ! grep -q held $f; do sleep 0.01; done; rm $f"
        );
        netns.run(["sh", "-c", &script]);
    };
    // Both in the host and in the pod, on each file that leads to the namespace.
    let user = "setpriv --reuid 65534 --clear-groups flock -s";
    hold(&host, &format!("{user} {path}"));
    hold(&world.pod, &format!("{user} /proc/self/ns/net"));
    let config = world.config(&json!({}));
    world.sbr.add(&config).success();
    assert_ne!(rules(&world.pod), before);
    // An administrator of the pod's namespace holds the lock: ADD is refused, and DEL goes on without it.
    hold(&world.pod, "exec 9>/proc/sys/net/ipv4/route/flush; flock 9;");
    assert_refused("the lock is held", &world.sbr.add(&config), 11, &["lock"]);
    world.sbr.del(&config).success();
    assert_eq!(rules(&world.pod), before);
}
