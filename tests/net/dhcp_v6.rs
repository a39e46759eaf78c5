//! Tests for the `dhcp` plugin with real DHCPv6 servers: allocation, renewal, refusal, loss, a restarted
//! daemon, and release.
//!
//! ```text
//!   host ── br0 10.1.0.1, 2001:db8::1 ─┬─ eth0 a
//!           dnsmasq or Kea             └─ eth0 b        the daemon is on the host
//! ```
//!
//! Source: RFC 8415; RFC 4861 for router advertisements.

use std::net::Ipv6Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rig::dhcp::{
    DAEMON_LOG, IPV6, KEA_LEASES, KEA_LOG, LEASES, LOG, STATE, add_neighbour, attachment,
    client_and_association, count, create_bridge, daemon, given, kea, option, send_invalid_responses, serve,
    serve_both, start_daemon_program, wait, words,
};
use rig::{addresses_on, assert_nothing_left, assert_pod_unchanged, assert_refused, with};
use serde_json::{Value, json};
use testkit::{Feature, Host, Pod, host};

/// Installs the plugins on a host that already has a bridge, with an address of each family.
fn world(host: &Host) {
    rig::install(host);
    // The router ignores its own router advertisements.
    create_bridge(host, &["br0.accept_dad=0", "br0.accept_ra=0", "p0.disable_ipv6=1", "p1.disable_ipv6=1"]);
    host.run(["ip", "address", "add", "2001:db8::1/64", "dev", "br0"]);
}

fn config(ipam: &Value) -> Value {
    let base = json!({ "type": "dhcp", "families": ["ipv6"] });
    json!({ "cniVersion": "1.1.0", "name": "net", "type": "bridge", "bridge": "br0", "ipam": with(&base, ipam) })
}

/// Returns a configuration for IPv6 alone that does not wait for a router.
fn ipv6_only() -> Value {
    config(&json!({ "prefixLengthV6": 64 }))
}

fn first(result: &Value) -> String {
    result["ips"][0]["address"].as_str().expect("an address").to_owned()
}

/// Returns the global IPv6 addresses of an interface.
fn global(pod: &Pod, ifname: &str) -> Vec<String> {
    let shown = pod.json(["ip", "-6", "-j", "address", "show", "dev", ifname, "scope", "global"]);
    let all = shown.as_array().into_iter().flatten().filter_map(|link| link["addr_info"].as_array());
    all.flatten().filter_map(|address| address["local"].as_str()).map(str::to_owned).collect()
}

/// Makes the lease in the daemon's file older.
fn grow_older(host: &Host, seconds: u64) {
    let mut state: Value = serde_json::from_str(&host.read(STATE).expect("a file")).expect("JSON");
    let granted = &mut state["leasesV6"][0]["granted"];
    *granted = json!(granted.as_u64().expect("a time").saturating_sub(seconds * 1000));
    host.write(STATE, state.to_string());
}

#[test]
fn dhcp_v6_address_reaches_router_at_once_and_is_released() {
    let host = host!(Feature::Bridge, Feature::Dnsmasq, Feature::Ping);
    world(&host);
    let options = [
        "--dhcp-option=option6:dns-server,[2001:db8::7],[2001:db8::8]",
        "--dhcp-option=option6:domain-search,eng.example.org,example.org",
    ];
    let (_server, _daemon) = (serve_both(&host, &options), daemon(&host));
    let pod = host.pod("web");
    let eth0 = attachment(&host, &pod, "eth0");
    let config = config(&json!({ "provideV6": [{ "option": "fqdn", "fromArg": "K8S_POD_NAME" }] }));
    // Creates the files of the server and of the daemon, which remain between attachments.
    eth0.add(&config).success();
    eth0.del(&config).success();
    let (before, inside) = (host.snapshot(), pod.snapshot());
    let result = eth0.add(&config).success().json();
    assert!(pod.pings("2001:db8::1"), "ADD waits for the router advertisement");
    let address = first(&result);
    assert!(address.starts_with("2001:db8::1") && address.ends_with("/128"), "{result}");
    assert_eq!((result["ips"].as_array().unwrap().len(), result.get("routes")), (1, None), "{result}");
    assert_eq!(
        result["dns"],
        json!({ "nameservers": ["2001:db8::7", "2001:db8::8"], "search": ["eng.example.org", "example.org"] })
    );
    let bare = address.replace("/128", "");
    assert_eq!(global(&pod, "eth0"), std::slice::from_ref(&bare), "no address without a lease");
    assert!(host.pings(&bare));
    let default = pod.json(["ip", "-6", "-j", "route", "show", "default"]);
    assert_eq!(default[0]["protocol"], "ra", "{default}");
    let [(leased, name, client)] = &given(&host)[..] else { panic!("{:?}", given(&host)) };
    assert_eq!((leased, name.as_str()), (&bare, "web"));
    assert!(client.starts_with("00:04:") && client.len() == 18 * 3 - 1, "DUID-UUID: {client}");
    let known = with(&config, &json!({ "prevResult": result }));
    eth0.check(&known).success();
    let mut other = known.clone();
    other["prevResult"]["ips"][0]["address"] = json!("2001:db8::9/128");
    assert_ne!(eth0.check(&other).code, Some(0), "another address");
    // A repeated request returns the same address.
    let mut again = host.attachment("dhcp", &pod, "eth0");
    again.container_id.clone_from(&eth0.container_id);
    assert_eq!(again.add(&config).success().json()["ips"], json!([{ "address": address }]));
    eth0.del(&known).success();
    assert!(given(&host).is_empty(), "the server has confirmed the release");
    eth0.del(&known).success();
    let changes = rig::changes(&before, &host.snapshot());
    let left: Vec<&str> = changes.lines().filter(|line| !line.contains(LOG)).collect();
    assert!(left.is_empty(), "{left:?}");
    assert_pod_unchanged("DEL", &pod, &inside);
}

#[test]
fn dhcp_v6_both_families_are_allocated_and_released_together() {
    let host = host!(Feature::Bridge, Feature::Dnsmasq, Feature::Ping);
    world(&host);
    let (_server, _daemon) =
        (serve_both(&host, &["--dhcp-option=option:dns-server,10.1.0.7"]), daemon(&host));
    let pods = [host.pod("a"), host.pod("b")];
    let [eth0, other] = pods.each_ref().map(|pod| attachment(&host, pod, "eth0"));
    let config = config(&json!({ "families": ["ipv6", "ipv4"], "request": [{ "option": 6 }] }));
    let result = eth0.add(&config).success().json();
    let text: Vec<String> = rig::addresses(&result);
    assert!(text.len() == 2 && text[0].ends_with("/24") && text[1].ends_with("/128"), "{result}");
    assert_eq!(result["routes"], json!([{ "dst": "0.0.0.0/0", "gw": "10.1.0.1" }]));
    assert_eq!(result["dns"]["nameservers"][0], "10.1.0.7", "{result}");
    assert!(pods[0].pings("10.1.0.1") && pods[0].pings("2001:db8::1"));
    assert_eq!(given(&host).len(), 2);
    let known = with(&config, &json!({ "prevResult": result }));
    eth0.check(&known).success();
    other.add(&config).success();
    assert_eq!(given(&host).len(), 4);
    let dhcp = host.attachment("dhcp", &pods[0], "eth0");
    rig::gc(&dhcp, &config, Some(&[(&pods[1].container_id(), "eth0")])).success();
    wait("both leases of one pod are released", || given(&host).len() == 2);
    let checked = eth0.check(&known);
    assert_refused("collected", &checked, 999, &["eth0", "no lease"]);
    eth0.del(&known).success();
    other.del(&config).success();
    wait("all leases are released", || given(&host).is_empty());
    let left: Value = serde_json::from_str(&host.read(STATE).unwrap()).unwrap();
    assert_eq!((&left["leases"], left.get("leasesV6")), (&json!([]), None));
}

#[test]
fn dhcp_v6_add_fails_if_one_family_fails_and_releases_the_other() {
    let host = host!(Feature::Bridge, Feature::Dnsmasq);
    world(&host);
    let (_server, _daemon) = (serve(&host, 50, &[]), daemon(&host));
    let pod = host.pod("a");
    let eth0 = attachment(&host, &pod, "eth0");
    let both = config(&json!({ "families": ["ipv4", "ipv6"] }));
    // Creates the files of the server and of the daemon, which remain between attachments.
    eth0.add(&config(&json!({ "families": ["ipv4"] }))).success();
    eth0.del(&both).success();
    let (before, inside) = (host.snapshot(), pod.snapshot());
    let started = Instant::now();
    let refused = eth0.add(&both);
    assert_refused(
        "no DHCPv6 server",
        &refused,
        11,
        &["ipam dhcp", "eth0", "no DHCPv6 server answered", "within 8 s"],
    );
    assert!((8..30).contains(&started.elapsed().as_secs()), "{:?}", started.elapsed());
    assert!(count(&host, LOG, "DHCPACK(br0)") > 0, "IPv4 was allocated");
    wait("the lease is released", || given(&host).is_empty());
    let changes = rig::changes(&before, &host.snapshot());
    let left: Vec<&str> = changes.lines().filter(|line| !line.contains(LOG)).collect();
    assert!(left.is_empty(), "{left:?}");
    assert_pod_unchanged("no DHCPv6 server", &pod, &inside);
}

#[test]
fn dhcp_v6_lease_of_daemon_killed_between_families_is_released() {
    let host = host!(Feature::Bridge, Feature::Dnsmasq);
    world(&host);
    let (_server, killed) = (serve(&host, 50, &[]), daemon(&host));
    let pod = host.pod("a");
    let eth0 = host.attachment("dhcp", &pod, "eth0");
    host.run(["ip", "link", "add", "h0", "type", "veth", "peer", "name", "eth0", "netns", "a"]);
    host.run(["ip", "link", "set", "h0", "master", "br0", "up"]);
    let both = config(&json!({ "families": ["ipv4", "ipv6"] }));
    std::thread::scope(|scope| {
        let add = scope.spawn(|| eth0.add(&both));
        wait("IPv4 is allocated", || given(&host).len() == 1);
        wait("the lease is in the daemon's file", || {
            host.read(STATE).is_some_and(|state| state.contains("eth0"))
        });
        killed.kill();
        assert_refused("killed", &add.join().expect("an ADD"), 5, &["dhcp daemon"]);
    });
    let _daemon = daemon(&host);
    eth0.del(&both).success();
    wait("the lease is released", || given(&host).is_empty());
}

#[test]
fn dhcp_v6_gc_returns_in_time_without_server_and_continues() {
    let host = host!(Feature::Bridge, Feature::Dnsmasq);
    world(&host);
    let (server, _daemon) = (serve_both(&host, &[]), daemon(&host));
    let pod = host.pod("a");
    let all = ["net1", "net2", "net3", "net4", "net5", "net6", "net7"];
    for ifname in all {
        attachment(&host, &pod, ifname).add(&ipv6_only()).success();
    }
    server.kill();
    let (started, last) = (Instant::now(), host.attachment("dhcp", &pod, "net7"));
    rig::gc(&last, &ipv6_only(), Some(&[])).success();
    assert!(started.elapsed() < Duration::from_secs(18), "{:?}", started.elapsed());
    // An attachment that is added again meanwhile keeps its lease. Leases are released in the order of their
    // names.
    last.add(&ipv6_only()).success();
    wait("the other leases are released", || count(&host, STATE, "ifname") == 1);
    std::thread::sleep(Duration::from_secs(4));
    assert_eq!(count(&host, STATE, "net7"), 1, "the attachment keeps its lease");
    assert_eq!(count(&host, DAEMON_LOG, "release 2001:db8::"), all.len() - 1);
}

#[test]
fn dhcp_v6_lease_can_be_released_during_its_renewal() {
    let host = host!(Feature::Bridge, Feature::Kea);
    world(&host);
    let longer: Value = serde_json::from_str(LONG_TIMERS).unwrap();
    let server = kea(&host, "01", "2001:db8::100-2001:db8::1ff", &longer);
    let _daemon = start_daemon_program(&host, "/opt/cni/bin/dhcp", "-timeout 9s");
    let pod = host.pod("a");
    let eth0 = attachment(&host, &pod, "eth0");
    eth0.add(&ipv6_only()).success();
    server.kill();
    std::thread::sleep(Duration::from_secs(2));
    wait("the daemon sends a renewal", || pod.run(["ss", "-lun"]).contains(":546 "));
    eth0.del(&ipv6_only()).success();
    assert_eq!(count(&host, DAEMON_LOG, "release 2001:db8::"), 1, "{:?}", host.read(DAEMON_LOG));
}

#[test]
fn dhcp_v6_works_with_bridge_macvlan_and_host_device() {
    let host = host!(Feature::Bridge, Feature::Macvlan, Feature::Dnsmasq, Feature::Ping);
    world(&host);
    host.run(["ip", "link", "add", "dev0", "type", "veth", "peer", "name", "far0"]);
    host.run(["ip", "link", "set", "far0", "master", "br0", "up"]);
    let (_server, _daemon) = (serve_both(&host, &[]), daemon(&host));
    for keys in [
        json!({ "type": "bridge" }),
        json!({ "type": "macvlan", "master": "p1" }),
        json!({ "type": "host-device", "device": "dev0" }),
    ] {
        let plugin = keys["type"].as_str().unwrap().to_owned();
        let pod = host.pod(&plugin);
        let net1 = host.attachment(&plugin, &pod, "net1");
        let config = with(&config(&json!({})), &keys);
        let result = net1.add(&config).success().json();
        assert!(pod.pings("2001:db8::1"), "{plugin}: {}", pod.run(["ip", "-6", "route"]));
        net1.check(&with(&config, &json!({ "prevResult": result }))).success();
        net1.del(&config).success();
        assert_eq!(given(&host), [], "{plugin}");
    }
}

#[test]
fn dhcp_v6_containers_on_ipvlan_have_distinct_leases() {
    let host = host!(Feature::Bridge, Feature::Ipvlan, Feature::Dnsmasq, Feature::Ping);
    world(&host);
    let (_server, _daemon) = (serve_both(&host, &[]), daemon(&host));
    let pods = [host.pod("a"), host.pod("b")];
    let all = pods.each_ref().map(|pod| host.attachment("ipvlan", pod, "net1"));
    let config = with(&config(&json!({})), &json!({ "type": "ipvlan", "master": "p1" }));
    let results = all.each_ref().map(|net1| net1.add(&config).success().json());
    assert_ne!(first(&results[0]), first(&results[1]));
    assert!(pods.iter().all(|pod| pod.pings("2001:db8::1")));
    assert_eq!(given(&host).len(), 2);
    all.iter().for_each(|net1| drop(net1.del(&config).success()));
    assert_eq!(given(&host), []);
}

#[test]
fn dhcp_v6_preferred_server_is_not_waited_for() {
    let host = host!(Feature::Bridge, Feature::Kea);
    world(&host);
    let _daemon = daemon(&host);
    let pod = host.pod("a");
    let eth0 = attachment(&host, &pod, "eth0");
    for (preference, waits) in [("255", false), ("7", true)] {
        let more =
            json!({ "option-data": [{ "name": "preference", "data": preference, "always-send": true }] });
        let _server = kea(&host, "01", "2001:db8::100-2001:db8::1ff", &more);
        let started = Instant::now();
        let result = eth0.add(&ipv6_only()).success().json();
        let took = started.elapsed();
        assert_eq!(took >= Duration::from_secs(1), waits, "{preference}: {took:?}");
        assert!(first(&result).ends_with("/64"), "{result}");
        assert!(count(&host, KEA_LOG, "REQUEST") > 0);
        eth0.del(&ipv6_only()).success();
    }
}

#[test]
fn dhcp_v6_lease_is_renewed_also_after_daemon_is_killed() {
    let host = host!(Feature::Bridge, Feature::Kea, Feature::Ping);
    world(&host);
    let _server = kea(&host, "01", "2001:db8::100-2001:db8::1ff", &json!({}));
    let killed = daemon(&host);
    let pod = host.pod("a");
    let eth0 = attachment(&host, &pod, "eth0");
    let result = eth0.add(&ipv6_only()).success().json();
    let known = with(&ipv6_only(), &json!({ "prevResult": result }));
    let renewals = || count(&host, KEA_LOG, "DHCP6_LEASE_RENEW") + count(&host, KEA_LOG, "(type 5)");
    let until = Instant::now() + Duration::from_secs(9);
    while Instant::now() < until {
        std::thread::sleep(Duration::from_millis(500));
        assert!(global(&pod, "eth0").len() == 1, "longer than a lease lasts, the address remains");
    }
    let so_far = renewals();
    assert!(so_far >= 4, "{so_far}");
    killed.kill();
    assert_refused("no daemon", &eth0.check(&known), 11, &["dhcp daemon", "/run/cni/dhcp.sock"]);
    let _daemon = daemon(&host);
    eth0.check(&known).success();
    wait("the new daemon renews the lease", || renewals() > so_far + 3);
    assert!(host.pings(&first(&result).replace("/64", "")));
    eth0.check(&known).success();
    eth0.del(&known).success();
    // The last line of the lease has a lifetime of 0.
    let file = host.read(KEA_LEASES).unwrap();
    assert_eq!(file.lines().last().unwrap().split(',').nth(2), Some("0"), "{file}");
}

/// Timers of a lease that outlives the replacement of a server.
const LONG_TIMERS: &str = r#"{"renew-timer":1,"rebind-timer":3,"preferred-lifetime":20,"valid-lifetime":30}"#;

#[test]
fn dhcp_v6_lease_is_rebound_by_another_server() {
    let host = host!(Feature::Bridge, Feature::Kea);
    world(&host);
    let longer: Value = serde_json::from_str(LONG_TIMERS).unwrap();
    let pool = "2001:db8::100-2001:db8::1ff";
    let server = kea(&host, "01", pool, &longer);
    let _daemon = daemon(&host);
    let pod = host.pod("a");
    let eth0 = attachment(&host, &pod, "eth0");
    let result = eth0.add(&ipv6_only()).success().json();
    server.kill();
    let other = kea(&host, "02", pool, &longer);
    let state = || host.read(STATE).unwrap();
    // The server's DUID in the stored REPLY: enterprise 32473, identifier 02.
    wait("the second server renews the lease", || state().contains("00020007000200007ed902"));
    assert_eq!(global(&pod, "eth0"), [first(&result).replace("/64", "")]);
    eth0.check(&with(&ipv6_only(), &json!({ "prevResult": result }))).success();
    // DEL works without a server.
    other.kill();
    let started = Instant::now();
    eth0.del(&ipv6_only()).success();
    assert!(started.elapsed() < Duration::from_secs(6), "{:?}", started.elapsed());
    assert!(!state().contains("eth0"));
}

#[test]
fn dhcp_v6_no_binding_of_an_unknown_server_keeps_the_address() {
    let host = host!(Feature::Bridge, Feature::Kea);
    world(&host);
    let other = add_neighbour(&host, "2001:db8::66/64");
    let longer: Value = serde_json::from_str(LONG_TIMERS).unwrap();
    let server = kea(&host, "01", "2001:db8::100-2001:db8::1ff", &longer);
    let _daemon = daemon(&host);
    let pod = host.pod("a");
    let eth0 = attachment(&host, &pod, "eth0");
    let result = eth0.add(&ipv6_only()).success().json();
    server.kill();
    let (ended, received) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| send_invalid_responses(&other, &know_nothing, &ended, &received));
        wait("the other server receives a REQUEST", || received.load(Ordering::Relaxed));
        std::thread::sleep(Duration::from_secs(3));
        ended.store(true, Ordering::Relaxed);
    });
    assert_eq!(global(&pod, "eth0"), [first(&result).replace("/64", "")]);
    eth0.check(&with(&ipv6_only(), &json!({ "prevResult": result }))).success();
}

/// Answers REBIND with NoBinding, and no other message.
fn know_nothing(message: &[u8]) -> (bool, Vec<Vec<u8>>) {
    let (client, id) = client_and_association(message);
    let association = option(3, &[&id[..], &[0; 8], &option(13, &[0, 3])].concat());
    let body = [option(1, &client), option(2, b"\0\x03\0\x01impost"), association].concat();
    let answer = [&[7], &message[1..4], &body[..]].concat();
    (message[0] == 3, if message[0] == 6 { vec![answer] } else { Vec::new() })
}

#[test]
fn dhcp_v6_lease_forgotten_by_the_server_is_requested_again() {
    let host = host!(Feature::Bridge, Feature::Dnsmasq);
    world(&host);
    let arguments = |more: &[&str]| -> Vec<String> {
        words(50, &[&IPV6[..], more].concat())
            .into_iter()
            .filter(|word| !word.contains("authoritative"))
            .collect()
    };
    let server = host.command("dnsmasq").args(arguments(&[])).start();
    wait("the server listens", || host.run(["ss", "-lun"]).contains(":547 "));
    let first_daemon = daemon(&host);
    let pod = host.pod("a");
    let eth0 = attachment(&host, &pod, "eth0");
    let result = eth0.add(&ipv6_only()).success().json();
    let known = with(&ipv6_only(), &json!({ "prevResult": result }));
    first_daemon.kill();
    server.kill();
    host.run(["sh", "-c", &format!("grep ^duid {LEASES} > /run/duid; cp /run/duid {LEASES}")]);
    grow_older(&host, 61);
    let _server = host.command("dnsmasq").args(arguments(&[])).start();
    wait("the server listens", || host.run(["ss", "-lun"]).contains(":547 "));
    let _daemon = daemon(&host);
    wait("the lease is created again", || given(&host).len() == 1);
    assert!(count(&host, LOG, "DHCPRENEW(br0)") > 0 && count(&host, LOG, "no binding found") > 0);
    assert_eq!(global(&pod, "eth0"), [first(&result).replace("/64", "")]);
    eth0.check(&known).success();
    eth0.del(&known).success();
    assert_eq!(given(&host), []);
}

#[test]
fn dhcp_v6_address_not_on_link_is_removed_and_link_stays_up() {
    let host = host!(Feature::Bridge, Feature::Dnsmasq, Feature::Ping);
    world(&host);
    let server = serve_both(&host, &[]);
    let before = daemon(&host);
    let pod = host.pod("a");
    let eth0 = attachment(&host, &pod, "eth0");
    let config = config(&json!({ "families": ["ipv4", "ipv6"], "prefixLengthV6": 64 }));
    let result = eth0.add(&config).success().json();
    let known = with(&config, &json!({ "prevResult": result }));
    let address = result["ips"][1]["address"].as_str().unwrap().replace("/64", "");
    // While no daemon runs, the network gets another prefix.
    before.kill();
    server.kill();
    host.run(["ip", "address", "add", "2001:db8:1::1/64", "dev", "br0"]);
    let renamed = IPV6.map(|word| word.replace("2001:db8::", "2001:db8:1::"));
    let renamed: Vec<&str> = renamed.iter().map(String::as_str).collect();
    let _server = serve(&host, 50, &renamed);
    wait("the server listens", || host.run(["ss", "-lun"]).contains(":547 "));
    let _daemon = daemon(&host);
    wait("the address is removed", || !global(&pod, "eth0").contains(&address));
    assert!(count(&host, LOG, "DHCPCONFIRM(br0)") > 0);
    assert!(rig::is_up(&rig::link(&pod, "eth0").unwrap()) && pod.pings("10.1.0.1"), "IPv4 is unchanged");
    assert_refused("lost", &eth0.check(&known), 999, &["eth0", "lost its lease", "NotOnLink"]);
    eth0.del(&known).success();
    // A new ADD gets a new address.
    let result = eth0.add(&config).success().json();
    assert!(result["ips"][1]["address"].as_str().unwrap().starts_with("2001:db8:1::"), "{result}");
}

#[test]
fn dhcp_v6_expired_lease_removes_the_address() {
    let host = host!(Feature::Bridge, Feature::Kea);
    world(&host);
    let server = kea(&host, "01", "2001:db8::100-2001:db8::1ff", &json!({}));
    let _daemon = daemon(&host);
    let pod = host.pod("a");
    let eth0 = attachment(&host, &pod, "eth0");
    let result = eth0.add(&ipv6_only()).success().json();
    server.kill();
    wait("the address is removed", || global(&pod, "eth0").is_empty());
    let known = with(&ipv6_only(), &json!({ "prevResult": result }));
    assert_refused("lost", &eth0.check(&known), 999, &["eth0", "lost its lease", "not extended in time"]);
    assert!(rig::is_up(&rig::link(&pod, "eth0").unwrap()));
    eth0.del(&known).success();
}

#[test]
fn dhcp_v6_withdrawn_address_is_removed_at_the_next_renewal() {
    let host = host!(Feature::Bridge, Feature::Kea);
    world(&host);
    let longer: Value = serde_json::from_str(LONG_TIMERS).unwrap();
    let server = kea(&host, "01", "2001:db8::100-2001:db8::1ff", &longer);
    let _daemon = daemon(&host);
    let pod = host.pod("a");
    let eth0 = attachment(&host, &pod, "eth0");
    let result = eth0.add(&ipv6_only()).success().json();
    server.kill();
    let _server = kea(&host, "01", "2001:db8::800-2001:db8::8ff", &longer);
    wait("the address is removed", || global(&pod, "eth0").is_empty());
    let known = with(&ipv6_only(), &json!({ "prevResult": result }));
    assert_refused("lost", &eth0.check(&known), 999, &["eth0", "lost its lease", "refused"]);
    eth0.del(&known).success();
    assert!(first(&eth0.add(&ipv6_only()).success().json()).starts_with("2001:db8::8"));
}

#[test]
fn dhcp_v6_server_without_free_address_is_reported() {
    let host = host!(Feature::Bridge, Feature::Kea);
    world(&host);
    // Long timers keep the lease unchanged during the test.
    let long =
        json!({ "renew-timer": 600, "rebind-timer": 800, "preferred-lifetime": 900, "valid-lifetime": 1000 });
    let _server = kea(&host, "01", "2001:db8::100-2001:db8::100", &long);
    let _daemon = daemon(&host);
    let (a, b) = (host.pod("a"), host.pod("b"));
    let [one, other] = [&a, &b].map(|pod| attachment(&host, pod, "eth0"));
    one.add(&ipv6_only()).success();
    let (before, inside) = (host.snapshot(), b.snapshot());
    let refused = other.add(&ipv6_only());
    assert_refused(
        "none left",
        &refused,
        11,
        &["eth0", "no address to assign", "NoAddrsAvail", "within 8 s"],
    );
    assert_nothing_left("none left", &host, &before);
    assert_pod_unchanged("none left", &b, &inside);
    one.del(&ipv6_only()).success();
    other.add(&ipv6_only()).success();
}

#[test]
fn dhcp_v6_duplicate_address_is_declined() {
    let host = host!(Feature::Bridge, Feature::Kea);
    world(&host);
    let _other = add_neighbour(&host, "2001:db8::100/64");
    let _server = kea(&host, "01", "2001:db8::100-2001:db8::101", &json!({}));
    let _daemon = daemon(&host);
    let pod = host.pod("a");
    let eth0 = attachment(&host, &pod, "eth0");
    let config = with(&ipv6_only(), &json!({ "enabledad": true }));
    let result = eth0.add(&config).success().json();
    assert_eq!(first(&result), "2001:db8::101/64");
    assert!(count(&host, KEA_LOG, "DECLINE") > 0);
    wait("duplicate address detection has ended", || {
        addresses_on(&pod, "eth0").contains(&"2001:db8::101/64".to_owned())
    });
    eth0.del(&config).success();
}

#[test]
fn dhcp_v6_client_is_identified_by_provided_options() {
    let host = host!(Feature::Bridge, Feature::Dnsmasq);
    world(&host);
    let known = [
        "--dhcp-host=id:77:65:62:2d:30,[2001:db8::4242],reserved",
        "--dhcp-vendorclass=set:of-pods,enterprise:32473,pods",
        "--dhcp-userclass=set:of-lab,lab",
    ];
    let (_server, _daemon) = (serve_both(&host, &known), daemon(&host));
    let pod = host.pod("web-0");
    let eth0 = attachment(&host, &pod, "eth0");
    let config = config(&json!({
        "prefixLengthV6": 64,
        "provideV6": [
            { "option": "client-id", "fromArg": "K8S_POD_NAME" },
            { "option": "vendor-class", "value": "32473:pods" },
            { "option": "user-class", "value": "lab" },
        ],
        "requestV6": [{ "option": "31" }],
    }));
    let result = eth0.add(&config).success().json();
    assert_eq!(first(&result), "2001:db8::4242/64", "{:?}", given(&host));
    let log = host.read(LOG).unwrap();
    for word in ["vendor class: 32473", "of-pods", "of-lab", "requested options: 31:", "23:dns-server"] {
        assert!(log.contains(word), "{word}: {log}");
    }
    eth0.del(&config).success();
}

#[test]
fn dhcp_v6_link_without_ipv6_or_carrier_is_reported() {
    let host = host!(Feature::Bridge, Feature::Dnsmasq);
    world(&host);
    let (_server, _daemon) = (serve_both(&host, &[]), daemon(&host));
    let pod = host.pod("a");
    pod.run(["ip", "link", "add", "eth0", "type", "veth", "peer", "name", "peer0"]);
    let dhcp = host.attachment("dhcp", &pod, "eth0");
    let words = ["eth0 has no link-local IPv6 address within 5 s", "carrier"];
    assert_refused("no carrier", &dhcp.add(&ipv6_only()), 11, &words);
    assert!(!rig::is_up(&rig::link(&pod, "eth0").unwrap()), "the link is down as before");
    pod.run(["sysctl", "-qw", "net.ipv6.conf.eth0.disable_ipv6=1"]);
    assert_refused("no IPv6", &dhcp.add(&ipv6_only()), 999, &["net.ipv6.conf.eth0.disable_ipv6 = 1"]);
    dhcp.del(&ipv6_only()).success();
}

#[test]
fn dhcp_v6_waits_for_link_local_address_and_reports_duplicates() {
    let host = host!(Feature::Bridge, Feature::Dnsmasq);
    world(&host);
    let _other = add_neighbour(&host, "fe80::42/64");
    let (_server, _daemon) = (serve_both(&host, &[]), daemon(&host));
    let join = |name: &str, outside: &str, generate: &str| {
        let pod = host.pod(name);
        host.run(["ip", "link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", name]);
        host.run(["ip", "link", "set", outside, "master", "br0", "up"]);
        pod.run(["ip", "link", "set", "eth0", "addrgenmode", generate]);
        pod.run(["ip", "link", "set", "eth0", "up"]);
        pod
    };
    let pod = join("a", "h1", "eui64");
    let dhcp = host.attachment("dhcp", &pod, "eth0");
    let shown = || pod.run(["ip", "-6", "address", "show", "dev", "eth0", "scope", "link"]);
    assert!(shown().contains("tentative"), "{}", shown());
    dhcp.add(&ipv6_only()).success();
    assert!(!shown().contains("tentative"), "{}", shown());
    dhcp.del(&ipv6_only()).success();
    let pod = join("b", "h2", "none");
    pod.run(["ip", "address", "add", "fe80::42/64", "dev", "eth0"]);
    let dhcp = host.attachment("dhcp", &pod, "eth0");
    assert_refused("a duplicate", &dhcp.add(&ipv6_only()), 999, &["fe80::42", "eth0", "duplicate address"]);
}

#[test]
fn dhcp_v6_add_without_router_ends_in_time() {
    let host = host!(Feature::Bridge, Feature::Kea);
    world(&host);
    let _server = kea(&host, "01", "2001:db8::100-2001:db8::1ff", &json!({ "valid-lifetime": 60 }));
    let _daemon = daemon(&host);
    let pod = host.pod("a");
    let eth0 = attachment(&host, &pod, "eth0");
    let started = Instant::now();
    let result = eth0.add(&config(&json!({}))).success().json();
    assert!((5..12).contains(&started.elapsed().as_secs()), "{:?}", started.elapsed());
    assert!(first(&result).ends_with("/128"));
    assert_eq!(count(&host, DAEMON_LOG, "no router advertises"), 1);
    pod.remove();
    eth0.del(&config(&json!({}))).success();
    assert!(!host.read(STATE).unwrap().contains("eth0"));
}

#[test]
fn dhcp_v6_hostile_server_is_ignored() {
    let host = host!(Feature::Bridge, Feature::Kea);
    world(&host);
    let evil = add_neighbour(&host, "2001:db8::66/64");
    let (_server, _daemon) = (kea(&host, "01", "2001:db8::100-2001:db8::1ff", &json!({})), daemon(&host));
    let pod = host.pod("a");
    let eth0 = attachment(&host, &pod, "eth0");
    let (ended, received) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| send_invalid_responses(&evil, &deceive, &ended, &received));
        let result = eth0.add(&ipv6_only()).success().json();
        assert!(first(&result).starts_with("2001:db8::1"), "{result}");
        std::thread::sleep(Duration::from_secs(6));
        eth0.check(&with(&ipv6_only(), &json!({ "prevResult": result }))).success();
        assert_eq!(global(&pod, "eth0"), [first(&result).replace("/64", "")]);
        eth0.del(&ipv6_only()).success();
        ended.store(true, Ordering::Relaxed);
    });
    assert!(received.load(Ordering::Relaxed), "the impostor received a message");
}

/// Returns many wrong answers, most of them with the right transaction and client.
fn deceive(message: &[u8]) -> (bool, Vec<Vec<u8>>) {
    let (client, id) = client_and_association(message);
    let address = |text: &str, preferred: u32, valid: u32| {
        let octets = text.parse::<Ipv6Addr>().unwrap().octets();
        option(5, &[&octets[..], &preferred.to_be_bytes(), &valid.to_be_bytes()].concat())
    };
    let association = |t1: u32, t2: u32, inner: &[u8]| {
        option(3, &[&id[..], &t1.to_be_bytes(), &t2.to_be_bytes(), inner].concat())
    };
    let (own, server) = (option(1, &client), option(2, b"\0\x03\0\x01impost"));
    let good = association(0, 0, &address("2001:db8::bad", 3, 4));
    let all = [own.clone(), server.clone(), good.clone(), option(7, &[255]), option(14, &[])].concat();
    let mut bodies = vec![
        // For another client, without a server, with options of another message, and truncated.
        [option(1, b"\0\x04another"), server.clone(), good.clone(), option(7, &[255])].concat(),
        [own.clone(), good, option(7, &[255])].concat(),
        all[..all.len() - 5].to_vec(),
        [own.clone(), server.clone(), vec![0, 3, 0xff, 0xff, 1]].concat(),
        [own.clone(), server.clone(), option(3, &id)].concat(),
    ];
    for bad in [
        association(9, 8, &address("2001:db8::bad", 3, 4)),
        association(0, 0, &address("2001:db8::bad", 0, 0)),
        association(0, 0, &address("2001:db8::bad", 5, 4)),
        association(0, 0, &address("fe80::bad", 3, 4)),
        association(0, 0, &address("ff02::bad", 3, 4)),
        association(0, 0, &address("::1", 3, 4)),
        association(0, 0, &[]),
        association(0, 0, &option(13, b"\0\x03no binding of an unknown server")),
        option(13, b"\0\x01"),
        option(13, b"\0\x05"),
    ] {
        bodies.push([own.clone(), server.clone(), bad, option(7, &[255]), option(14, &[])].concat());
    }
    let mut answers = vec![b"\x07".to_vec(), vec![0xff; 1400]];
    for kind in [2, 7, 10, 13] {
        let mut other = [&[kind], &message[1..4], &all[..]].concat();
        other[3] ^= 1;
        answers.push(other);
        answers.extend(bodies.iter().map(|body| [&[kind], &message[1..4], &body[..]].concat()));
    }
    (true, answers)
}

#[test]
fn dhcp_v6_bad_families_are_refused_by_key_and_value() {
    let host = host!(Feature::Bridge);
    world(&host);
    let pod = host.pod("a");
    let dhcp = host.attachment("dhcp", &pod, "eth0");
    for (ipam, words) in [
        (json!({ "families": ["ipv6", "ipx"] }), ["ipam.families[1]", "\"ipx\""]),
        (json!({ "families": ["ipv6", "ipv6"] }), ["ipam.families[1]", "listed twice"]),
        (json!({ "families": [] }), ["ipam.families", "[]"]),
        (json!({ "families": "ipv6" }), ["ipam.families", "\"ipv6\""]),
        (json!({ "families": ["ipv4"], "requestV6": [{ "option": 31 }] }), ["ipam.requestV6", "ipv6"]),
        (json!({ "prefixLengthV6": 0 }), ["ipam.prefixLengthV6", "0"]),
    ] {
        assert_refused("bad input", &dhcp.add(&config(&ipam)), 7, &words);
    }
}
