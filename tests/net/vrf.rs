//! Tests for `vrf` chained after another plugin: independent routing tables in one container.
//!
//! ```text
//!   pod a:  eth0 10.1.0.2 ── red ──── near pod r 10.1.0.1 ── 10.20.0.1
//!           eth1 10.1.0.2 ── blue ─── near pod b 10.1.0.1
//! ```
//!
//! Source: containernetworking/plugins `plugins/meta/vrf` v1.9.1.

use rig::{assert_refused, with};
use serde_json::{Value, json};
use testkit::{Attachment, Feature, Host, Netns, Pod, host};

/// Creates an interface of `pod` whose peer is in `near`, with the addresses that the previous plugin would
/// have set.
fn connect(host: &Host, pod: &Pod, ifname: &str, near: &Pod) {
    let line =
        format!("link add {ifname} netns {} type veth peer name near0 netns {}\n", pod.name(), near.name());
    host.command("ip").args(["-batch", "-"]).stdin(line).finish().success();
    let script = "link set lo up\nlink set near0 up\naddress add 10.1.0.1/24 dev near0\naddress add fd01::1/64 dev near0 nodad\n";
    near.command("ip").args(["-batch", "-"]).stdin(script).finish().success();
    pod.run(["sysctl", "-qw", &format!("net.ipv6.conf.{ifname}.keep_addr_on_down=1")]);
    let script = format!(
        "link set {ifname} up\naddress add 10.1.0.2/24 dev {ifname}\naddress add fd01::2/64 dev {ifname} nodad\n"
    );
    pod.command("ip").args(["-batch", "-"]).stdin(script).finish().success();
}

fn previous(pod: &Pod, ifname: &str) -> Value {
    json!({
        "cniVersion": "1.1.0",
        "interfaces": [{ "name": ifname, "sandbox": pod.path().to_str().unwrap() }],
        "ips": [{ "address": "10.1.0.2/24", "interface": 0 }, { "address": "fd01::2/64", "interface": 0 }],
    })
}

fn config(pod: &Pod, ifname: &str, keys: &Value) -> Value {
    let base = json!({ "cniVersion": "1.1.0", "name": "net", "type": "vrf", "vrfname": "red", "prevResult": previous(pod, ifname) });
    with(&base, keys)
}

fn attach<'a>(host: &'a Host, pod: &Pod, ifname: &str, keys: &Value) -> Attachment<'a> {
    let attachment = host.attachment("vrf", pod, ifname);
    let result = attachment.add(&config(pod, ifname, keys)).success().json();
    assert_eq!(result, previous(pod, ifname), "the result passes unchanged");
    attachment
}

fn table(netns: &Netns, vrf: &str) -> Value {
    rig::link(netns, vrf).unwrap_or_default()["linkinfo"]["info_data"]["table"].clone()
}

fn master(netns: &Netns, link: &str) -> Value {
    rig::link(netns, link).unwrap()["master"].clone()
}

fn routes(netns: &Netns, family: &str, table: &str) -> Vec<String> {
    let all = rig::routes(netns, &[family, "route", "show", "table", table, "type", "unicast"]);
    all.into_iter().filter(|route| !route.starts_with("fe80:") && !route.starts_with("ff00:")).collect()
}

#[test]
fn vrf_equal_addresses_in_two_vrfs_are_independent() {
    let host = host!(Feature::Vrf, Feature::Ping);
    rig::install(&host);
    let (pod, r, b) = (host.pod("a"), host.pod("r"), host.pod("b"));
    connect(&host, &pod, "eth0", &r);
    r.run(["ip", "address", "add", "10.20.0.1/32", "dev", "lo"]);
    pod.run(["ip", "route", "add", "default", "via", "10.1.0.1", "dev", "eth0"]);
    attach(&host, &pod, "eth0", &json!({ "vrfname": "red" }));
    connect(&host, &pod, "eth1", &b);
    attach(&host, &pod, "eth1", &json!({ "vrfname": "blue" }));
    assert_eq!((master(&pod, "eth0"), master(&pod, "eth1")), (json!("red"), json!("blue")));
    assert_eq!((table(&pod, "red"), table(&pod, "blue")), (json!(1), json!(2)), "the first free tables");
    let reaches =
        |vrf: &str, to: &str| pod.attempt(["ping", "-I", vrf, "-c", "1", "-w", "2", to]).code == Some(0);
    assert!(reaches("red", "10.1.0.1") && reaches("blue", "10.1.0.1"));
    assert!(reaches("red", "10.20.0.1"), "through the default route of red");
    assert!(!reaches("blue", "10.20.0.1"), "blue has no default route");
    assert!(r.pings("10.1.0.2") && b.pings("10.1.0.2") && r.pings("fd01::2") && b.pings("fd01::2"));
}

/// The kernel keeps the hop of an interface that is down, if the route has hops by other interfaces.
#[test]
fn vrf_takes_its_hop_out_of_multipath_routes() {
    let host = host!(Feature::Vrf);
    rig::install(&host);
    let (pod, r, b) = (host.pod("a"), host.pod("r"), host.pod("b"));
    connect(&host, &pod, "eth0", &r);
    connect(&host, &pod, "eth1", &b);
    let script = "route add default via fd01::1 dev eth0\nroute append default via fd01::1 dev eth1\n\
                  route append default via fd01::9 dev eth1\n\
                  route add default nexthop via 10.1.0.1 dev eth0 nexthop via 10.1.0.9 dev eth0 nexthop via 10.1.0.1 dev eth1\n";
    pod.command("ip").args(["-batch", "-"]).stdin(script).finish().success();
    let hops = |family: &str, table: &str, link: &str| {
        let shown = pod.run(["ip", family, "route", "show", "table", table, "default"]);
        shown.lines().filter(|line| line.contains(&format!("dev {link} "))).count()
    };
    assert_eq!([hops("-4", "main", "eth1"), hops("-6", "main", "eth1")], [1, 2]);
    let keys = json!({ "table": 42 });
    let eth1 = attach(&host, &pod, "eth1", &keys);
    assert_eq!([hops("-4", "main", "eth1"), hops("-6", "main", "eth1")], [0, 0]);
    assert_eq!([hops("-4", "main", "eth0"), hops("-6", "main", "eth0")], [2, 1]);
    assert_eq!([hops("-4", "42", "eth1"), hops("-6", "42", "eth1")], [1, 2]);
    eth1.check(&config(&pod, "eth1", &keys)).success();
    // Another program adds it again.
    pod.run(["ip", "-6", "route", "append", "default", "via", "fd01::1", "dev", "eth1"]);
    let words = ["::/0", "eth1", "also in the main table"];
    assert_refused("a hop", &eth1.check(&config(&pod, "eth1", &keys)), 999, &words);
    eth1.del(&config(&pod, "eth1", &keys)).success();
    assert_eq!([hops("-4", "42", "eth1"), hops("-6", "42", "eth1")], [0, 0]);
}

#[test]
fn vrf_routes_and_addresses_move_in_and_out() {
    let host = host!(Feature::Vrf);
    rig::install(&host);
    let (pod, r) = (host.pod("a"), host.pod("r"));
    connect(&host, &pod, "eth0", &r);
    // Without keep_addr_on_down, the kernel removes IPv6 addresses.
    pod.run(["sysctl", "-qw", "net.ipv6.conf.eth0.keep_addr_on_down=0"]);
    let script = "route add default via 10.1.0.1 dev eth0 metric 7\nroute add 10.9.0.0/16 dev eth0\nroute add 10.8.0.0/16 via 10.9.0.1 dev eth0 mtu 1300\n\
                  route add default via fd01::1 dev eth0\nroute add fd09::/64 dev eth0 metric 99\n";
    pod.command("ip").args(["-batch", "-"]).stdin(script).finish().success();
    let main = (routes(&pod, "-4", "main"), routes(&pod, "-6", "main"));
    let addresses = rig::addresses_on(&pod, "eth0");
    assert_eq!((main.0.len(), main.1.len(), addresses.len()), (4, 3, 2), "{main:?} {addresses:?}");
    let eth0 = attach(&host, &pod, "eth0", &json!({ "table": 42 }));
    assert_eq!(table(&pod, "red"), 42);
    assert!(rig::is_up(&rig::link(&pod, "red").unwrap()));
    assert_eq!((routes(&pod, "-4", "42"), routes(&pod, "-6", "42")), main);
    assert_eq!((routes(&pod, "-4", "main"), routes(&pod, "-6", "main")), (vec![], vec![]));
    assert!(pod.run(["ip", "route", "show", "table", "42", "10.8.0.0/16"]).contains("mtu 1300"));
    assert_eq!(rig::addresses_on(&pod, "eth0"), addresses);
    eth0.check(&config(&pod, "eth0", &json!({ "table": 42 }))).success();
    eth0.del(&config(&pod, "eth0", &json!({ "table": 42 }))).success();
    assert_eq!(routes(&pod, "-4", "main"), main.0);
    assert_eq!(rig::links(&pod), ["eth0"], "the VRF is removed with its last interface");
    eth0.del(&config(&pod, "eth0", &json!({ "table": 42 }))).success();
}

#[test]
fn vrf_chosen_table_is_unused() {
    let host = host!(Feature::Vrf);
    rig::install(&host);
    let (pod, r) = (host.pod("a"), host.pod("r"));
    connect(&host, &pod, "eth0", &r);
    pod.run(["ip", "link", "add", "one", "type", "vrf", "table", "1"]);
    pod.run(["ip", "rule", "add", "from", "10.3.0.1", "lookup", "2"]);
    pod.run(["ip", "-6", "rule", "add", "from", "fd03::1", "lookup", "3"]);
    pod.run(["ip", "route", "add", "blackhole", "10.3.0.0/16", "table", "5"]);
    pod.run(["ip", "route", "add", "10.3.0.0/16", "dev", "eth0", "table", "4"]);
    attach(&host, &pod, "eth0", &json!({}));
    let chosen = table(&pod, "red").as_u64().unwrap();
    assert!(chosen >= 5, "{chosen}");
}

#[test]
fn vrf_is_shared_until_its_last_interface_is_removed() {
    let host = host!(Feature::Vrf);
    rig::install(&host);
    let (pod, r, b) = (host.pod("a"), host.pod("r"), host.pod("b"));
    connect(&host, &pod, "eth0", &r);
    let eth0 = attach(&host, &pod, "eth0", &json!({ "table": 10 }));
    connect(&host, &pod, "eth1", &b);
    let eth1 = attach(&host, &pod, "eth1", &json!({ "name": "other" }));
    assert_eq!((master(&pod, "eth1"), table(&pod, "red")), (json!("red"), json!(10)));
    eth0.del(&config(&pod, "eth0", &json!({}))).success();
    assert_eq!((master(&pod, "eth0"), master(&pod, "eth1")), (Value::Null, json!("red")));
    // The previous plugin may have removed its interface already.
    pod.run(["ip", "link", "delete", "eth1"]);
    eth1.del(&config(&pod, "eth1", &json!({ "name": "other" }))).success();
    assert_eq!(rig::links(&pod), ["eth0"]);

    pod.run(["ip", "link", "add", "red", "type", "vrf", "table", "77"]);
    let eth0 = attach(&host, &pod, "eth0", &json!({}));
    assert_eq!((master(&pod, "eth0"), table(&pod, "red")), (json!("red"), json!(77)));
    eth0.del(&config(&pod, "eth0", &json!({}))).success();
    assert_eq!(rig::links(&pod), ["eth0", "red"], "a VRF of another program stays");
}

/// An ADD that was killed right after it created a VRF has not set the owner tag, but the VRF has a MAC
/// address that identifies it.
#[test]
fn vrf_without_owner_tag_after_a_kill_is_removed() {
    let host = host!(Feature::Vrf);
    rig::install(&host);
    let (pod, near) = (host.pod("a"), host.pod("r"));
    connect(&host, &pod, "eth0", &near);
    let eth0 = attach(&host, &pod, "eth0", &json!({}));
    pod.run(["ip", "link", "set", "eth0", "nomaster"]);
    pod.run(["ip", "link", "set", "red", "alias", ""]);
    let eth0_again = attach(&host, &pod, "eth0", &json!({}));
    assert_eq!(master(&pod, "eth0"), json!("red"));
    eth0_again.del(&config(&pod, "eth0", &json!({}))).success();
    assert_eq!(rig::links(&pod), ["eth0"]);
    eth0.del(&config(&pod, "eth0", &json!({}))).success();
}

#[test]
fn vrf_of_two_pods_are_independent() {
    let host = host!(Feature::Vrf);
    rig::install(&host);
    let (pods, near) = ([host.pod("a"), host.pod("c")], [host.pod("r"), host.pod("b")]);
    for (pod, near) in pods.iter().zip(&near) {
        connect(&host, pod, "eth0", near);
        attach(&host, pod, "eth0", &json!({}));
    }
    assert_eq!((table(&pods[0], "red"), table(&pods[1], "red")), (json!(1), json!(1)));
    let first = host.attachment("vrf", &pods[0], "eth0");
    first.del(&config(&pods[0], "eth0", &json!({}))).success();
    assert_eq!(
        (rig::links(&pods[0]), rig::links(&pods[1])),
        (vec!["eth0".into()], vec!["eth0".into(), "red".into()])
    );
    assert!(near[1].pings("10.1.0.2"));
}

#[test]
fn vrf_bad_options_are_refused_and_change_nothing() {
    let host = host!(Feature::Vrf);
    rig::install(&host);
    let (pod, r, b) = (host.pod("a"), host.pod("r"), host.pod("b"));
    connect(&host, &pod, "eth0", &r);
    connect(&host, &pod, "eth1", &b);
    pod.run(["ip", "route", "add", "default", "via", "10.1.0.1", "dev", "eth0"]);
    pod.run(["ip", "link", "add", "red", "type", "vrf", "table", "10"]);
    pod.run(["ip", "link", "add", "blue", "up", "type", "vrf", "table", "11"]);
    pod.run(["ip", "link", "set", "eth1", "master", "blue"]);
    let inside = pod.snapshot();
    for (ifname, keys, code, words) in [
        ("eth0", json!({ "vrfname": "" }), 7, ["vrfname", "missing"]),
        ("eth0", json!({ "vrfname": "../x" }), 7, ["vrfname", "../x"]),
        ("eth0", json!({ "vrfname": "sixteen-letters-" }), 7, ["vrfname", "sixteen-letters-"]),
        ("eth0", json!({ "vrfname": "eth1" }), 7, ["vrfname", "eth1"]),
        ("eth0", json!({ "vrfname": "eth0" }), 7, ["vrfname", "eth0"]),
        ("eth0", json!({ "table": 12 }), 7, ["table", "12"]),
        ("eth0", json!({ "table": -1 }), 7, ["table", "-1"]),
        ("eth0", json!({ "table": 4_294_967_296_u64 }), 7, ["table", "4294967296"]),
        ("eth1", json!({ "vrfname": "red" }), 7, ["eth1", "blue"]),
        ("eth1", json!({ "vrfname": "green" }), 7, ["eth1", "blue"]),
        ("eth7", json!({ "vrfname": "green" }), 5, ["eth7", "no such device"]),
    ] {
        let refused = host.attachment("vrf", &pod, ifname).add(&config(&pod, ifname, &keys));
        assert_refused(&keys.to_string(), &refused, code, &words);
        // DEL has nothing to remove, and returns no error.
        host.attachment("vrf", &pod, ifname).del(&config(&pod, ifname, &keys)).success();
        // The kernel adds link-local addresses and their routes with a delay.
        let changes = rig::changes(&inside, &pod.snapshot());
        let unexpected: Vec<&str> = changes.lines().filter(|line| !line.contains(" fe80:")).collect();
        assert!(unexpected.is_empty(), "{keys}:\n{}", unexpected.join("\n"));
    }
}

#[test]
fn vrf_check_finds_each_change() {
    let host = host!(Feature::Vrf);
    rig::install(&host);
    let (pod, r) = (host.pod("a"), host.pod("r"));
    connect(&host, &pod, "eth0", &r);
    let eth0 = attach(&host, &pod, "eth0", &json!({ "table": 10 }));
    let check = |keys: Value| eth0.check(&config(&pod, "eth0", &keys));
    check(json!({})).success();
    check(json!({ "table": 10 })).success();
    assert_refused("another table", &check(json!({ "table": 11 })), 7, &["table", "10", "11"]);
    assert_refused("another name", &check(json!({ "vrfname": "blue" })), 999, &["blue"]);
    pod.run(["ip", "link", "set", "eth0", "nomaster"]);
    assert_refused("outside of the VRF", &check(json!({})), 999, &["eth0", "master"]);
    pod.run(["ip", "link", "delete", "red"]);
    assert_refused("gone", &check(json!({})), 999, &["red"]);
    assert_refused("alone", &check(json!({ "prevResult": null })), 7, &["prevResult"]);
}
