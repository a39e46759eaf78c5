//! Tests for `ptp`: routes as the Go plugin creates them, and packets over them.
//!
//! ```text
//!   a eth0 10.1.0.2 ── veth 10.1.0.1 host veth 10.1.0.1 ── eth0 10.1.0.3 b
//! ```
//!
//! Source: containernetworking/plugins `plugins/main/ptp` v1.9.1.

use rig::traffic::{OUTSIDE, UPLINK, outside, source_seen, tcp_delivers};
use rig::{addresses_on, assert_refused, routes, with};
use serde_json::{Value, json};
use testkit::{Feature, host};

fn config(keys: &Value) -> Value {
    let base = json!({
        "cniVersion": "1.0.0", "name": "net", "type": "ptp",
        "ipam": {
            "type": "host-local",
            "ranges": [[{ "subnet": "10.1.0.0/24" }], [{ "subnet": "fd01::/64" }]],
            "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }],
        },
    });
    with(&base, keys)
}

#[test]
fn ptp_container_and_host_have_routes_to_each_address() {
    let host = host!(Feature::Veth, Feature::Ipv6, Feature::Ping);
    rig::install(&host);
    let pod = host.pod("a");
    let result = host.attachment("ptp", &pod, "eth0").add(&config(&json!({}))).success().json();
    assert_eq!(
        routes(&pod, &["route"]),
        [
            "10.1.0.0/24 via 10.1.0.1 dev eth0 src 10.1.0.2",
            "10.1.0.1 dev eth0 src 10.1.0.2",
            "default via 10.1.0.1 dev eth0",
        ]
    );
    let six = routes(&pod, &["-6", "route"]);
    for route in
        ["fd01::1 dev eth0 src fd01::2", "default via fd01::1 dev eth0", "fd01::/64 via fd01::1 dev eth0"]
    {
        assert!(six.iter().any(|there| there.starts_with(route)), "{route} in {six:?}");
    }
    assert!(
        !six.iter().any(|there| there.starts_with("fd01::/64 dev")),
        "the connected route is removed: {six:?}"
    );
    let name = result["interfaces"][0]["name"].as_str().unwrap();
    assert_eq!(result["interfaces"][1]["name"], "eth0");
    assert!(result["ips"].as_array().unwrap().iter().all(|ip| ip["interface"] == 1), "{result}");
    assert_eq!(routes(&host, &["route"]), [format!("10.1.0.2 dev {name}")]);
    assert!(
        routes(&host, &["-6", "route"]).iter().any(|route| route.starts_with(&format!("fd01::2 dev {name}")))
    );
    assert_eq!(addresses_on(&host, name), ["10.1.0.1/32", "fd01::1/128"]);
    for target in ["10.1.0.1", "fd01::1"] {
        assert_eq!(
            pod.attempt(["ping", "-n", "-q", "-c", "1", "-W", "1", target]).code,
            Some(0),
            "at once: {target}"
        );
    }
    assert!(host.pings("10.1.0.2") && host.pings("fd01::2"));
}

#[test]
fn ptp_address_without_subnet_has_routes_by_its_gateway() {
    let host = host!(Feature::Veth, Feature::Ipv6, Feature::Ping);
    rig::install(&host);
    let ipam = json!({ "type": "static",
        "addresses": [{ "address": "10.1.0.5/32", "gateway": "169.254.1.1" }, { "address": "fd01::5/128", "gateway": "fd01::1" }],
        "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "192.0.2.0/24", "gw": "169.254.1.1" }, { "dst": "::/0" }] });
    let pod = host.pod("a");
    let attachment = host.attachment("ptp", &pod, "eth0");
    let config = config(&json!({ "ipam": ipam }));
    attachment.add(&config).success();
    let there = routes(&pod, &["route"]);
    for route in ["default via 169.254.1.1 dev eth0", "192.0.2.0/24 via 169.254.1.1 dev eth0"] {
        assert!(there.iter().any(|known| known == route), "{route} in {there:?}");
    }
    assert!(host.pings("10.1.0.5") && host.pings("fd01::5"));
    for target in ["169.254.1.1", "fd01::1"] {
        assert!(pod.pings(target), "{target}");
    }
    attachment.del(&config).success();
}

#[test]
fn ptp_containers_reach_each_other_through_the_host() {
    let host = host!(Feature::Veth, Feature::Ipv6, Feature::Ping);
    rig::install(&host);
    let (a, b) = (host.pod("a"), host.pod("b"));
    for pod in [&a, &b] {
        host.attachment("ptp", pod, "eth0").add(&config(&json!({}))).success();
    }
    for target in ["10.1.0.3", "fd01::3"] {
        assert!(a.pings(target) && tcp_delivers(&a, &b, target), "{target}");
    }
    host.attachment("ptp", &a, "eth0").del(&config(&json!({}))).success();
    assert!(host.pings("10.1.0.3"), "the gateway's address is on the other link as well");
}

#[test]
fn ptp_ip_masq_shows_the_hosts_address_outside() {
    for backend in ["nftables", "iptables"] {
        let host = host!(Feature::Veth, Feature::NftMasquerade, Feature::IptablesNft);
        rig::install(&host);
        let outside = outside(&host);
        let pod = host.pod("a");
        let keys = config(&json!({ "ipMasq": true, "ipMasqBackend": backend }));
        host.attachment("ptp", &pod, "eth0").add(&keys).success();
        for place in [0, 1] {
            let seen = source_seen(&pod, &outside, OUTSIDE[place]).map(|ip| ip.to_string());
            assert_eq!(seen.as_deref(), Some(UPLINK[place]), "{backend}");
        }
    }
}

#[test]
fn ptp_check_finds_missing_objects_on_the_host() {
    let host = host!(Feature::Veth, Feature::Ipv6);
    rig::install(&host);
    let pod = host.pod("a");
    let eth0 = host.attachment("ptp", &pod, "eth0");
    let result = eth0.add(&config(&json!({}))).success().json();
    let known = with(&config(&json!({})), &json!({ "prevResult": result }));
    eth0.check(&known).success();
    let end = result["interfaces"][0]["name"].as_str().unwrap();
    for (broken, repaired, word) in [
        ("route delete 10.1.0.2 dev END", "route add 10.1.0.2 dev END scope host", "10.1.0.2/32"),
        ("-6 route delete fd01::2 dev END", "-6 route add fd01::2 dev END", "fd01::2/128"),
        ("address delete fd01::1/128 dev END", "address add fd01::1/128 dev END nodad", "fd01::1/128"),
        ("link set END down", "link set END up", "state"),
    ] {
        let ip = |words: &str| host.run(std::iter::once("ip").chain(words.replace("END", end).split(' ')));
        ip(broken);
        assert_refused(broken, &eth0.check(&known), 999, &[end, word]);
        ip(repaired);
        if word != "state" {
            eth0.check(&known).success();
        }
    }
}

#[test]
fn ptp_ip_masq_of_single_addresses_shares_one_chain() {
    let host = host!(Feature::Veth, Feature::NftMasquerade, Feature::Ping);
    rig::install(&host);
    let outside = outside(&host);
    let chains = || {
        let listed = host.json(["nft", "-j", "list", "chains"]).to_string();
        listed.matches("{\"chain\":").count()
    };
    let mut counted = None;
    for last in [7, 8] {
        let pod = host.pod("a");
        let fixed = json!({ "type": "static", "addresses": [{ "address": format!("10.1.0.{last}/32"), "gateway": "10.1.0.1" }] });
        let keys = config(&json!({ "ipMasq": true, "ipam": fixed }));
        let eth0 = host.attachment("ptp", &pod, "eth0");
        let result = eth0.add(&keys).success().json();
        pod.run(["ip", "route", "add", "192.0.2.0/24", "via", "10.1.0.1"]);
        let seen = source_seen(&pod, &outside, OUTSIDE[0]).map(|ip| ip.to_string());
        assert_eq!(seen.as_deref(), Some(UPLINK[0]));
        let known = with(&keys, &json!({ "prevResult": result }));
        eth0.check(&known).success();
        eth0.del(&known).success();
        let now = chains();
        assert_eq!(*counted.get_or_insert(now), now, "chains do not grow with addresses");
        pod.remove();
    }
}

#[test]
fn ptp_check_finds_an_interface_that_is_down() {
    let host = host!(Feature::Veth, Feature::Ipv6);
    rig::install(&host);
    let pod = host.pod("a");
    let eth0 = host.attachment("ptp", &pod, "eth0");
    let ipam = json!({ "type": "static", "addresses": [{ "address": "fd01::5/64", "gateway": "fd01::1" }] });
    let keys = config(&json!({ "ipam": ipam }));
    let known = with(&keys, &json!({ "prevResult": eth0.add(&keys).success().json() }));
    // The kernel keeps the address.
    pod.run(["sysctl", "-qw", "net.ipv6.conf.eth0.keep_addr_on_down=1"]);
    pod.run(["ip", "link", "set", "eth0", "down"]);
    assert_refused("CHECK", &eth0.check(&known), 999, &["interface eth0 is down"]);
}

#[test]
fn ptp_check_finds_changes_and_options_are_checked() {
    let host = host!(Feature::Veth);
    rig::install(&host);
    let pod = host.pod("a");
    let eth0 = host.attachment("ptp", &pod, "eth0");
    let keys = config(&json!({ "mtu": 1400, "queues": 2, "dns": { "nameservers": ["10.1.0.53"] } }));
    let result = eth0.add(&keys).success().json();
    assert_eq!(rig::link(&pod, "eth0").unwrap()["mtu"], 1400);
    let host_end = rig::link(&host, result["interfaces"][0]["name"].as_str().unwrap()).unwrap();
    assert_eq!([&host_end["mtu"], &host_end["num_tx_queues"], &host_end["num_rx_queues"]], [1400, 2, 2]);
    assert_eq!(result["dns"], json!({ "nameservers": ["10.1.0.53"] }));
    let known = with(&keys, &json!({ "prevResult": result }));
    eth0.check(&known).success();
    pod.run(["ip", "route", "delete", "default"]);
    assert_refused("route", &eth0.check(&known), 999, &["0.0.0.0/0"]);
    pod.run(["ip", "route", "add", "default", "via", "10.1.0.1"]);
    eth0.check(&known).success();
    pod.run(["ip", "route", "delete", "10.1.0.1"]);
    assert_refused("route to the gateway", &eth0.check(&known), 999, &["lacks route 10.1.0.1/32 dev eth0"]);
    pod.run(["ip", "route", "add", "10.1.0.1", "dev", "eth0", "scope", "link", "src", "10.1.0.2"]);
    eth0.check(&known).success();
    pod.run(["ip", "address", "delete", "10.1.0.2/24", "dev", "eth0"]);
    assert_refused("address", &eth0.check(&known), 999, &["10.1.0.2/24"]);
    eth0.del(&known).success();
    for keys in [
        json!({ "mtu": 10 }),
        json!({ "queues": 4097 }),
        json!({ "ipMasqBackend": "pf" }),
        json!({ "mtu": "x" }),
    ] {
        let refused = eth0.add(&config(&keys));
        let (code, message) = rig::refusal(&refused);
        assert!(
            [6, 7].contains(&code) && message.contains(keys.as_object().unwrap().keys().next().unwrap()),
            "{message}"
        );
    }
}

#[test]
fn ptp_routes_may_use_another_gateway_of_the_subnet() {
    let host = host!(Feature::Veth);
    rig::install(&host);
    let pod = host.pod("a");
    let ipam = json!({ "type": "host-local", "ranges": [[{ "subnet": "10.1.0.0/24" }], [{ "subnet": "fd01::/64" }]],
        "routes": [{ "dst": "10.9.0.0/16", "gw": "10.1.0.3" }, { "dst": "fd09::/64", "gw": "fd01::9" }] });
    // A CHECK follows.
    host.attachment("ptp", &pod, "eth0").add(&config(&json!({ "ipam": ipam }))).success();
    for (family, dst, gateway) in [("-4", "10.9.0.0/16", "10.1.0.3"), ("-6", "fd09::/64", "fd01::9")] {
        let shown = pod.json(["ip", family, "-j", "route", "show", dst]);
        assert_eq!(shown[0]["gateway"], gateway, "{shown}");
        assert_eq!(shown[0]["flags"], json!(["onlink"]), "{shown}");
    }
}
