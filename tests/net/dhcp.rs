//! Tests for the `dhcp` plugin with a real server: allocation, renewal, refusal, loss, a restarted daemon,
//! and release.
//!
//! ```text
//!   host ── br0 10.1.0.1, dnsmasq ─┬─ eth0 a
//!                                  └─ eth0 b                the daemon is on the host
//! ```
//!
//! Source: RFC 2131; containernetworking/plugins `plugins/ipam/dhcp` v1.9.1.

use std::net::{Ipv4Addr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rig::dhcp::{self, LEASES, LOG, STATE, attachment, count, daemon, given, serve, wait, wait_for_daemon};
use rig::{addresses_on, assert_nothing_left, assert_pod_unchanged, assert_refused, in_version, with};
use serde_json::{Value, json};
use testkit::{Feature, Host, Pod, host};

/// Installs the plugins on a host that already has a bridge, without IPv6 so that no kernel timer changes
/// anything.
fn world(host: &Host) {
    rig::install(host);
    dhcp::create_bridge(host, &["br0.disable_ipv6=1", "p0.disable_ipv6=1", "p1.disable_ipv6=1"]);
}

/// Returns a machine next to the pods, with the address 10.1.0.66.
fn beside(host: &Host) -> Pod {
    let pod = dhcp::add_neighbour(host, "10.1.0.66/24");
    // A datagram to the broadcast address needs a route.
    pod.run(["ip", "route", "add", "default", "dev", "eth0"]);
    pod
}

fn config() -> Value {
    json!({
        "cniVersion": "1.1.0", "name": "net", "type": "bridge", "bridge": "br0",
        "ipam": { "type": "dhcp", "provide": [{ "option": "host-name", "fromArg": "K8S_POD_NAME" }] },
    })
}

fn log_count(host: &Host, word: &str) -> usize {
    count(host, LOG, word)
}

#[test]
fn dhcp_add_fails_if_lease_file_or_log_cannot_be_written() {
    let host = host!(Feature::Bridge, Feature::Dnsmasq);
    world(&host);
    // The daemon cannot write a log line: its log is on a full disk.
    let script = "exec /opt/cni/bin/dhcp daemon -timeout 1s -resendtimeout 8s 2>/dev/full";
    let (_server, _daemon) = (serve(&host, 50, &[]), host.command("sh").args(["-c", script]).start());
    wait_for_daemon(&host);
    let (web, db) = (host.pod("web"), host.pod("db"));
    let [eth0, other] = [&web, &db].map(|pod| attachment(&host, pod, "eth0"));
    let result = eth0.add(&config()).success().json();
    assert_eq!(given(&host).len(), 1);
    let kept = host.read(STATE).expect("the lease file");
    // The daemon cannot write its file: a directory is in its place.
    host.run(["sh", "-c", &format!("mv {STATE} /run/kept; mkdir {STATE}")]);
    let refused = other.add(&config());
    assert_ne!(refused.code, Some(0));
    assert!(refused.stdout.contains(STATE), "{refused}");
    wait("the server has received the release of the second lease", || given(&host).len() == 1);
    let known = with(&config(), &json!({ "prevResult": result }));
    for _ in 0..2 {
        assert_ne!(
            eth0.del(&known).code,
            Some(0),
            "the lease is still in the file, and the next daemon would renew it"
        );
    }
    host.run(["sh", "-c", &format!("rmdir {STATE}; mv /run/kept {STATE}")]);
    assert_eq!(host.read(STATE), Some(kept));
    eth0.del(&known).success();
    let left: Value = serde_json::from_str(&host.read(STATE).unwrap()).unwrap();
    assert_eq!(left["leases"], json!([]));
    wait("the server has received the release of the first lease", || given(&host).is_empty());
}

#[test]
fn dhcp_lease_becomes_address_and_routes_and_is_released() {
    let host = host!(Feature::Bridge, Feature::Dnsmasq, Feature::Ping);
    world(&host);
    let (_server, _daemon) = (serve(&host, 50, &[]), daemon(&host));
    let pod = host.pod("web");
    let eth0 = attachment(&host, &pod, "eth0");
    // Creates the files of the server and of the daemon, which remain between attachments.
    let first = eth0.add(&config()).success().json();
    eth0.del(&with(&config(), &json!({ "prevResult": first }))).success();
    let (before, inside) = (host.snapshot(), pod.snapshot());
    let result = eth0.add(&config()).success().json();
    let address = result["ips"][0]["address"].as_str().unwrap().to_owned();
    assert!(address.starts_with("10.1.0.") && address.ends_with("/24"), "{result}");
    assert_eq!(result["ips"][0]["gateway"], "10.1.0.1");
    assert_eq!(result["routes"], json!([{ "dst": "0.0.0.0/0", "gw": "10.1.0.1" }]));
    assert_eq!(addresses_on(&pod, "eth0"), std::slice::from_ref(&address));
    assert!(pod.pings("10.1.0.1"));
    // The client identifier is a zero byte and the text, in hexadecimal digits.
    let identity = format!("{}/net/eth0", pod.container_id());
    let digits: Vec<String> =
        std::iter::once(0).chain(identity.bytes()).map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(given(&host), [(address.replace("/24", ""), "web".to_owned(), digits.join(":"))]);
    let mode = host.run(["stat", "-c", "%a", "/run/cni", STATE, "/run/cni/dhcp.sock"]);
    assert_eq!(mode.split_whitespace().nth(1), Some("600"), "{mode}");
    let known = with(&config(), &json!({ "prevResult": result }));
    eth0.check(&known).success();
    let mut other = known.clone();
    other["prevResult"]["ips"][0]["address"] = json!("10.1.0.9/24");
    assert_ne!(eth0.check(&other).code, Some(0), "another address");
    // A repeated request returns the same address.
    let mut again = host.attachment("dhcp", &pod, "eth0");
    again.container_id.clone_from(&eth0.container_id);
    assert_eq!(
        again.add(&config()).success().json()["ips"],
        json!([{ "address": address, "gateway": "10.1.0.1" }])
    );
    eth0.del(&known).success();
    wait("the server has received the release", || given(&host).is_empty());
    eth0.del(&known).success();
    let changes = rig::changes(&before, &host.snapshot());
    let left: Vec<&str> = changes.lines().filter(|line| !line.contains(LOG)).collect();
    assert!(left.is_empty(), "{left:?}");
    assert_pod_unchanged("DEL", &pod, &inside);
}

#[test]
fn dhcp_lease_of_host_device_is_released_before_its_device() {
    let host = host!(Feature::Bridge, Feature::Dnsmasq);
    world(&host);
    let (_server, _daemon) = (serve(&host, 50, &[]), daemon(&host));
    host.run(["ip", "link", "add", "dev0", "type", "veth", "peer", "name", "far0"]);
    host.run(["ip", "link", "set", "far0", "master", "br0", "up"]);
    let pod = host.pod("web");
    let net1 = host.attachment("host-device", &pod, "net1");
    let keys = json!({ "type": "host-device", "device": "dev0", "ipam": { "type": "dhcp" } });
    let keys = with(&config(), &keys);
    net1.add(&keys).success();
    assert_eq!(given(&host).len(), 1);
    net1.del(&keys).success();
    wait("the server has received the release", || given(&host).is_empty());
    assert!(rig::link(&host, "dev0").is_some());
}

#[test]
fn dhcp_server_options_become_routes_and_dns() {
    let host = host!(Feature::Bridge, Feature::Dnsmasq);
    world(&host);
    let options = [
        "--dhcp-option=option:dns-server,10.1.0.7,10.1.0.8",
        "--dhcp-option=option:domain-name,example.org",
        "--dhcp-option=option:domain-search,eng.example.org,example.org",
        "--dhcp-option=option:classless-static-route,192.0.2.0/24,10.1.0.3,0.0.0.0/0,10.1.0.4",
        "--dhcp-option=33,198.51.100.0,10.1.0.5",
    ];
    let (_server, _daemon) = (serve(&host, 50, &options), daemon(&host));
    let pod = host.pod("a");
    let eth0 = attachment(&host, &pod, "eth0");
    let mut config = config();
    config["ipam"] = json!({ "type": "dhcp", "priority": 7, "request": [
        { "option": "121" }, { "option": "domain-name-servers" }, { "option": "15" }, { "option": "domain-search" },
    ] });
    let result = eth0.add(&config).success().json();
    assert_eq!(
        result["routes"],
        json!([
            { "dst": "192.0.2.0/24", "gw": "10.1.0.3", "priority": 7 },
            { "dst": "0.0.0.0/0", "gw": "10.1.0.4", "priority": 7 },
        ])
    );
    assert_eq!(
        result["dns"],
        json!({ "nameservers": ["10.1.0.7", "10.1.0.8"], "domain": "example.org", "search": ["eng.example.org", "example.org"] })
    );
    let shown = rig::routes(&pod, &["route"]);
    assert!(shown.contains(&"default via 10.1.0.4 dev eth0 metric 7".to_owned()), "{shown:?}");
    eth0.del(&config).success();
    config["ipam"]["request"] = json!([{ "option": "static-routes" }]);
    let result = eth0.add(&config).success().json();
    assert_eq!(
        result["routes"],
        json!([
            { "dst": "198.51.100.0/24", "gw": "10.1.0.5", "priority": 7 },
            { "dst": "0.0.0.0/0", "gw": "10.1.0.1", "priority": 7 },
        ])
    );
}

/// Server options that renew a lease after one second (T1) and rebind it after three (T2).
const SHORT_TIMERS: [&str; 2] = ["--dhcp-option=58,1", "--dhcp-option=59,3"];

#[test]
fn dhcp_lease_is_renewed_also_after_daemon_is_killed() {
    let host = host!(Feature::Bridge, Feature::Dnsmasq);
    world(&host);
    let _server = serve(&host, 50, &SHORT_TIMERS);
    let first = daemon(&host);
    let pod = host.pod("a");
    let eth0 = attachment(&host, &pod, "eth0");
    let result = eth0.add(&config()).success().json();
    let known = with(&config(), &json!({ "prevResult": result }));
    let discovers = log_count(&host, "DHCPDISCOVER(");
    wait("the lease is renewed", || log_count(&host, "DHCPACK(br0)") >= 4);
    assert_eq!(log_count(&host, "DHCPDISCOVER("), discovers, "no new lease is requested");
    first.kill();
    assert_refused("no daemon", &eth0.check(&known), 11, &["dhcp daemon", "/run/cni/dhcp.sock"]);
    let second = daemon(&host);
    eth0.check(&known).success();
    let so_far = log_count(&host, "DHCPACK(br0)");
    wait("the new daemon renews the lease", || log_count(&host, "DHCPACK(br0)") > so_far + 2);
    assert_eq!(log_count(&host, "DHCPDISCOVER("), discovers);
    eth0.del(&known).success();
    wait("the server has received the release", || given(&host).is_empty());
    second.kill();
    // A lease of a container that was deleted while no daemon ran is forgotten.
    let third = daemon(&host);
    let result = eth0.add(&config()).success().json();
    third.kill();
    eth0.del(&with(&config(), &json!({ "prevResult": result }))).success();
    let _fourth = daemon(&host);
    wait("the lease is forgotten", || !host.read(STATE).unwrap_or_default().contains("eth0"));
}

#[test]
fn dhcp_lease_is_rebound_by_another_server() {
    let host = host!(Feature::Bridge, Feature::Dnsmasq);
    world(&host);
    let server = serve(&host, 50, &SHORT_TIMERS);
    let daemon = daemon(&host);
    let (pod, impostor) = (host.pod("a"), beside(&host));
    let eth0 = attachment(&host, &pod, "eth0");
    let result = eth0.add(&config()).success().json();
    let known = with(&config(), &json!({ "prevResult": result }));
    // The daemon does not see the time without a server, after which it would wait for half of the lease.
    daemon.suspend();
    server.kill();
    // The first server's address is removed, so unicast requests to it get no answer. The second server has
    // its lease file.
    host.run(["ip", "address", "delete", "10.1.0.1/24", "dev", "br0"]);
    host.run(["ip", "address", "add", "10.1.0.2/24", "dev", "br0"]);
    let discovers = log_count(&host, "DHCPDISCOVER(");
    // The impostor does not know the lease and refuses it at once. The route keeps the client from asking the
    // second server by unicast, so that each request is a broadcast.
    pod.run(["ip", "route", "add", "blackhole", "10.1.0.2/32"]);
    let _other = serve(&host, 50, &SHORT_TIMERS);
    let (ended, refused) = (AtomicBool::new(false), AtomicBool::new(false));
    let socket = bind_server(&impostor);
    std::thread::scope(|scope| {
        scope.spawn(|| send_invalid_responses(&socket, (&ended, &refused), refuse));
        daemon.resume();
        wait("the impostor refuses the lease", || refused.load(Ordering::Relaxed));
        let so_far = log_count(&host, "DHCPACK(br0)");
        wait("the second server renews the lease", || log_count(&host, "DHCPACK(br0)") > so_far + 1);
        ended.store(true, Ordering::Relaxed);
    });
    assert_eq!(log_count(&host, "DHCPDISCOVER("), discovers, "no new lease is requested");
    eth0.check(&known).success();
    assert!(rig::is_up(&rig::link(&pod, "eth0").unwrap()));
    // The lease is released to the server that renewed it.
    eth0.del(&known).success();
    wait("the second server has received the release", || given(&host).is_empty());
}

/// Binds the port of DHCP servers in a namespace.
fn bind_server(pod: &Pod) -> UdpSocket {
    let socket = pod.within(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 67))).expect("port 67");
    socket.set_broadcast(true).expect("broadcast");
    socket.set_read_timeout(Some(Duration::from_millis(50))).expect("a timeout");
    socket
}

/// Answers each request with what `answers` makes of the request header, until `ended` is set. It sets `received` after
/// the first request.
fn send_invalid_responses(
    socket: &UdpSocket,
    (ended, received): (&AtomicBool, &AtomicBool),
    answers: impl Fn(&[u8]) -> Vec<Vec<u8>>,
) {
    let mut request = [0; 2048];
    // Ends the thread also after a failure of the test.
    let until = Instant::now() + Duration::from_secs(60);
    while !ended.load(Ordering::Relaxed) && Instant::now() < until {
        let Ok(length) = socket.recv(&mut request) else { continue };
        request[0] = 2;
        for answer in answers(&request[..length.min(240)]) {
            socket.send_to(&answer, (Ipv4Addr::BROADCAST, 68)).expect("send");
        }
        received.store(true, Ordering::Relaxed);
    }
}

/// Returns a refusal (DHCPNAK) of the request.
fn refuse(head: &[u8]) -> Vec<Vec<u8>> {
    let mut answer = head.to_vec();
    answer[12..24].fill(0);
    answer.extend([53, 1, 6, 54, 4, 10, 1, 0, 66, 255]);
    vec![answer]
}

#[test]
fn dhcp_refused_lease_takes_link_down() {
    let host = host!(Feature::Bridge, Feature::Dnsmasq);
    world(&host);
    let server = serve(&host, 50, &SHORT_TIMERS);
    let daemon = daemon(&host);
    let pod = host.pod("a");
    let eth0 = attachment(&host, &pod, "eth0");
    let result = eth0.add(&config()).success().json();
    let known = with(&config(), &json!({ "prevResult": result }));
    daemon.suspend();
    server.kill();
    host.run(["rm", LEASES]);
    let _other = serve(&host, 150, &SHORT_TIMERS);
    daemon.resume();
    wait("the link is down", || !rig::is_up(&rig::link(&pod, "eth0").unwrap()));
    assert!(log_count(&host, "DHCPNAK") > 0);
    let checked = eth0.check(&known);
    assert_refused("lost", &checked, 999, &["eth0", "lost its lease", "refused"]);
    eth0.del(&known).success();
    // The new server allocates another lease.
    let result = eth0.add(&config()).success().json();
    assert!(result["ips"][0]["address"].as_str().unwrap().starts_with("10.1.0.1"), "{result}");
}

#[test]
fn dhcp_silent_server_fails_add_in_time_and_leaves_nothing() {
    let host = host!(Feature::Bridge, Feature::Dnsmasq);
    world(&host);
    let _daemon = host
        .command("/opt/cni/bin/weft-cni")
        .args(["dhcp", "daemon", "-timeout=300ms", "--resendtimeout", "1500ms", "-broadcast"])
        .start();
    wait_for_daemon(&host);
    let pod = host.pod("a");
    let eth0 = attachment(&host, &pod, "eth0");
    let (before, inside) = (host.snapshot(), pod.snapshot());
    let started = Instant::now();
    let refused = eth0.add(&config());
    assert_refused("no server", &refused, 11, &["ipam dhcp", "eth0", "no DHCP server answered"]);
    let took = started.elapsed();
    // The configured time, not the daemon's default.
    assert!((Duration::from_millis(1400)..Duration::from_secs(30)).contains(&took), "{took:?}");
    assert_nothing_left("no server", &host, &before);
    assert_pod_unchanged("no server", &pod, &inside);
}

#[test]
fn dhcp_del_succeeds_without_server_or_link() {
    let host = host!(Feature::Bridge, Feature::Dnsmasq);
    world(&host);
    let server = serve(&host, 50, &[]);
    let _daemon = daemon(&host);
    let (a, b) = (host.pod("a"), host.pod("b"));
    let [first, second] = [&a, &b].map(|pod| attachment(&host, pod, "eth0"));
    first.add(&config()).success();
    second.add(&config()).success();
    b.run(["ip", "link", "delete", "eth0"]);
    second.del(&config()).success();
    server.kill();
    let started = Instant::now();
    first.del(&config()).success();
    assert!(started.elapsed() < Duration::from_secs(8), "{:?}", started.elapsed());
    assert!(!host.read(STATE).unwrap().contains("eth0"));
}

#[test]
fn dhcp_two_interfaces_have_two_leases_and_netns_loss_frees_all() {
    let host = host!(Feature::Bridge, Feature::Dnsmasq);
    world(&host);
    let (_server, _daemon) = (serve(&host, 50, &SHORT_TIMERS), daemon(&host));
    let pod = host.pod("a");
    let [first, second] = ["eth0", "eth1"].map(|ifname| attachment(&host, &pod, ifname));
    let mut without_routes = config();
    without_routes["ipam"]["request"] = json!([{ "skipDefault": true }, { "option": "subnet-mask" }]);
    let one = first.add(&config()).success().json();
    let two = second.add(&without_routes).success().json();
    assert_ne!(one["ips"][0]["address"], two["ips"][0]["address"]);
    assert_eq!(two.get("routes"), None, "no router was requested: {two}");
    assert_eq!(given(&host).len(), 2);
    second.del(&without_routes).success();
    first.check(&with(&config(), &json!({ "prevResult": one }))).success();
    wait("the server has received the release", || given(&host).len() == 1);
    // Without a DEL, the daemon finds out when it is to renew the lease.
    pod.remove();
    wait("the lease is forgotten", || !host.read(STATE).unwrap().contains("eth0"));
}

// Requirements: S32
#[test]
fn dhcp_gc_releases_leases_of_attachments_that_are_not_valid() {
    let host = host!(Feature::Bridge, Feature::Dnsmasq);
    world(&host);
    let (_server, _daemon) = (serve(&host, 50, &[]), daemon(&host));
    let pods = [host.pod("a"), host.pod("b"), host.pod("c")];
    let other = with(&config(), &json!({ "name": "other" }));
    let all = pods.each_ref().map(|pod| attachment(&host, pod, "eth0"));
    for (attachment, config) in all.iter().zip([&config(), &config(), &other]) {
        attachment.add(config).success();
    }
    let mut dhcp = host.attachment("dhcp", &pods[0], "eth0");
    rig::gc(&dhcp, &config(), None).success();
    assert_eq!(given(&host).len(), 3, "without a list, no lease is released");
    rig::gc(&dhcp, &config(), Some(&[(&pods[1].container_id(), "eth0")])).success();
    let names = || given(&host).into_iter().map(|(_, name, _)| name).collect::<Vec<_>>();
    wait("one lease is released", || given(&host).len() == 2);
    let mut left = names();
    left.sort();
    assert_eq!(left, ["b", "c"]);
    rig::gc(&dhcp, &config(), Some(&[])).success();
    wait("a second lease is released", || given(&host).len() == 1);
    assert_eq!(names(), ["c"], "another network keeps its lease");
    dhcp.container_id.clear();
    dhcp.call("STATUS", config().to_string()).success();
}

// Requirements: S33
#[test]
fn dhcp_without_daemon_status_and_add_fail_and_del_succeeds() {
    let host = host!(Feature::Bridge, Feature::Dnsmasq);
    world(&host);
    let pod = host.pod("a");
    let eth0 = attachment(&host, &pod, "eth0");
    let (before, inside) = (host.snapshot(), pod.snapshot());
    let words = ["/run/cni/dhcp.sock", "weft-cni dhcp daemon"];
    assert_refused("STATUS", &eth0.call("STATUS", config().to_string()), 50, &words);
    assert_refused("ADD", &eth0.add(&config()), 11, &words);
    eth0.del(&config()).success();
    rig::gc(&eth0, &config(), Some(&[])).success();
    assert_nothing_left("no daemon", &host, &before);
    assert_pod_unchanged("no daemon", &pod, &inside);
    let dhcp = host.attachment("dhcp", &pod, "eth0");
    for (ipam, words) in [
        (json!({ "daemonSocketPath": "here" }), ["ipam.daemonSocketPath", "\"here\""]),
        (
            json!({ "provide": [{ "option": "nonsense", "value": "x" }] }),
            ["ipam.provide[0].option", "nonsense"],
        ),
        (json!({ "request": [{ "option": 300 }] }), ["ipam.request[0].option", "300"]),
        (json!({ "priority": -1 }), ["ipam.priority", "-1"]),
    ] {
        let config = with(&config(), &json!({ "ipam": with(&ipam, &json!({ "type": "dhcp" })) }));
        assert_refused("bad input", &dhcp.add(&config), 7, &words);
    }
}

// Requirements: S16
#[test]
fn dhcp_lease_is_allocated_in_every_cni_version() {
    let host = host!(Feature::Bridge, Feature::Dnsmasq);
    world(&host);
    let (_server, _daemon) = (serve(&host, 50, &[]), daemon(&host));
    let pod = host.pod("a");
    let eth0 = attachment(&host, &pod, "eth0");
    for version in rig::VERSIONS {
        let config = in_version(&config(), version);
        let result = eth0.add(&config).success().json();
        assert_eq!(rig::addresses(&result), addresses_on(&pod, "eth0"), "{version}");
        if version >= "0.4.0" {
            eth0.check(&with(&config, &json!({ "prevResult": result }))).success();
        }
        eth0.del(&config).success();
        wait("the server has received the release", || given(&host).is_empty());
    }
}

#[test]
fn dhcp_killed_add_leaves_no_lease() {
    let host = host!(Feature::Bridge, Feature::Dnsmasq);
    world(&host);
    let _daemon = daemon(&host);
    let pod = host.pod("a");
    host.run(["ip", "link", "add", "h0", "type", "veth", "peer", "name", "eth0", "netns", "a"]);
    host.run(["ip", "link", "set", "h0", "master", "br0", "up"]);
    host.write("/run/config.json", config().to_string());
    let line = format!(
        "CNI_COMMAND=ADD CNI_CONTAINERID=x CNI_NETNS={} CNI_IFNAME=eth0 CNI_PATH=/opt/cni/bin exec timeout -s KILL 1 /opt/cni/bin/dhcp < /run/config.json",
        pod.path().display()
    );
    assert_ne!(host.attempt(["sh", "-c", &line]).code, Some(0));
    let _server = serve(&host, 50, &[]);
    std::thread::sleep(Duration::from_secs(4));
    assert_eq!(given(&host), []);
    assert_eq!(host.read(STATE), None);
    assert!(!rig::is_up(&rig::link(&pod, "eth0").unwrap()), "the link is down as before");
}

#[test]
fn dhcp_hostile_server_is_ignored() {
    let host = host!(Feature::Bridge, Feature::Dnsmasq);
    world(&host);
    let evil = beside(&host);
    let (_server, _daemon) = (serve(&host, 50, &SHORT_TIMERS), daemon(&host));
    let pod = host.pod("a");
    let eth0 = attachment(&host, &pod, "eth0");
    let (ended, received) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| send_invalid_responses(&bind_server(&evil), (&ended, &received), deceive));
        let result = eth0.add(&config()).success().json();
        let known = with(&config(), &json!({ "prevResult": result }));
        wait("the lease is renewed", || log_count(&host, "DHCPACK(br0)") >= 4);
        eth0.check(&known).success();
        assert_eq!(result["ips"][0]["gateway"], "10.1.0.1");
        eth0.del(&known).success();
        ended.store(true, Ordering::Relaxed);
    });
    assert!(received.load(Ordering::Relaxed), "the impostor received a request");
}

#[test]
fn dhcp_del_ends_pending_add_despite_a_second_add() {
    let host = host!(Feature::Bridge, Feature::Dnsmasq);
    world(&host);
    let _daemon = daemon(&host);
    let pod = host.pod("a");
    host.run(["ip", "link", "add", "h0", "type", "veth", "peer", "name", "eth0", "netns", "a"]);
    host.run(["ip", "link", "set", "h0", "master", "br0", "up"]);
    let mut eth0 = attachment(&host, &pod, "eth0");
    eth0.plugin = "dhcp".to_owned();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| eth0.add(&config()));
        wait("the first ADD sends requests", || rig::is_up(&rig::link(&pod, "eth0").unwrap()));
        assert_refused("twice", &eth0.add(&config()), 11, &["is already being acquired"]);
        eth0.del(&config()).success();
        let _server = serve(&host, 50, &[]);
        assert_refused("ended by DEL", &first.join().expect("an ADD"), 11, &[]);
    });
    assert_eq!(given(&host), []);
    assert_eq!(host.read(STATE), None);
}

#[test]
fn dhcp_daemon_without_descriptors_keeps_leases_and_idles() {
    let host = host!(Feature::Bridge, Feature::Dnsmasq);
    world(&host);
    let (_server, daemon) = (serve(&host, 50, &SHORT_TIMERS), daemon(&host));
    let pod = host.pod("a");
    let eth0 = attachment(&host, &pod, "eth0");
    let result = eth0.add(&config()).success().json();
    let known = with(&config(), &json!({ "prevResult": result }));
    let of_daemon = format!("--pid={}", daemon.id());
    host.run(["prlimit", &of_daemon, "--nofile=4:"]);
    let stat = format!("/proc/{}/stat", daemon.id());
    // utime and stime are fields 14 and 15 of proc_pid_stat(5); two fields stand before the `)`.
    let ticks = || {
        let text = std::fs::read_to_string(&stat).expect("the daemon's times");
        let fields: Vec<&str> = text.rsplit(')').next().unwrap().split_whitespace().collect();
        [11, 12].iter().map(|at| fields[*at].parse::<u64>().unwrap()).sum::<u64>()
    };
    let before = ticks();
    let connections: Vec<_> = (0..3)
        .map(|_| host.within(|| std::os::unix::net::UnixStream::connect("/run/cni/dhcp.sock")))
        .collect();
    std::thread::sleep(Duration::from_secs(3));
    assert!(ticks() - before < 100, "{} hundredths of a second of processor time in 3 s", ticks() - before);
    drop(connections);
    host.run(["prlimit", &of_daemon, "--nofile=1024:"]);
    let so_far = log_count(&host, "DHCPACK(br0)");
    wait("the lease is renewed", || log_count(&host, "DHCPACK(br0)") > so_far);
    eth0.check(&known).success();
    eth0.del(&known).success();
}

/// Returns many wrong answers, each with the right transaction and hardware address.
fn deceive(head: &[u8]) -> Vec<Vec<u8>> {
    let options: [&[u8]; 8] = [
        // Options without an end, without a value, with a length beyond the end, and an overload of no field.
        &[53, 1, 2],
        &[53, 1],
        &[53, 1, 2, 54, 200, 1],
        &[52, 1, 3, 53, 1, 2, 255],
        // An offer without a server and an address; an unrequested ACK without a mask.
        &[53, 1, 2, 255],
        &[53, 1, 5, 54, 4, 10, 1, 0, 66, 255],
        // A refusal by a server that was not asked, and a message of an unknown type.
        &[53, 1, 6, 54, 4, 10, 1, 0, 66, 255],
        &[53, 1, 99, 255],
    ];
    let mut answers = vec![b"\0".to_vec(), vec![0xff; 1400]];
    for options in options {
        for yours in [[0, 0, 0, 0], [127, 0, 0, 1], [255, 255, 255, 255], [10, 1, 0, 99]] {
            let mut answer = head.to_vec();
            answer[16..20].copy_from_slice(&yours);
            answer.extend(options);
            answers.push(answer);
        }
    }
    answers
}

#[test]
fn dhcp_daemon_rejects_malformed_and_unauthorized_requests() {
    use std::io::{Read, Write};
    let host = host!(Feature::Bridge, Feature::Dnsmasq);
    world(&host);
    let _daemon = daemon(&host);
    let connect =
        || host.within(|| std::os::unix::net::UnixStream::connect("/run/cni/dhcp.sock")).expect("connect");
    for nonsense in
        [&b"CONNECT /_goRPC_ HTTP/1.0\n\n"[..], b"\0\0\0\x02{}", b"\xff\xff\xff\xff", b"\0\0\0\x04null"]
    {
        let mut stream = connect();
        stream.write_all(nonsense).expect("write");
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.is_empty(), "{nonsense:?}: {answer:?}");
    }
    // The daemon checks names and paths, too.
    for (owner, netns) in [
        (json!({ "container": "../x", "network": "net", "ifname": "eth0" }), "/run/netns/a"),
        (json!({ "container": "x", "network": "net", "ifname": "a/b" }), "/run/netns/a"),
        (json!({ "container": "x", "network": "net", "ifname": "eth0" }), "/etc/hostname"),
    ] {
        let options = json!({ "provided": [], "requested": [] });
        let address_request = json!({ "options": options, "prefixLength": 128, "detectDuplicates": false });
        let request = json!({ "allocate": {
            "owner": owner, "netns": netns, "options": options, "priority": null, "families": ["ipv4"], "wish": address_request,
        } });
        let text = request.to_string();
        let mut stream = connect();
        let length = u32::try_from(text.len()).unwrap().to_be_bytes();
        stream.write_all(&[&length[..], text.as_bytes()].concat()).expect("write");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        assert!(answer.contains("refused"), "{answer}");
    }
    let mode = host.run(["stat", "-c", "%a", "/run/cni/dhcp.sock"]);
    assert!(mode.trim().ends_with("00"), "{mode}");
    let second = host.command("/opt/cni/bin/dhcp").args(["daemon"]).finish();
    assert!(second.code == Some(1) && second.stderr.contains("another daemon"), "{second}");
    host.write("/run/cni/file", "content");
    let file = host.command("/opt/cni/bin/dhcp").args(["daemon", "-socketpath", "/run/cni/file"]).finish();
    assert!(file.code == Some(1) && file.stderr.contains("is not a socket"), "{file}");
    assert_eq!(host.read("/run/cni/file").as_deref(), Some("content"));
    let wrong = host.command("/opt/cni/bin/dhcp").args(["daemon", "-timeout", "soon"]).finish();
    assert!(wrong.code == Some(1) && wrong.stderr.contains("\"soon\""), "{wrong}");
}

#[test]
fn dhcp_twenty_concurrent_adds_have_distinct_addresses() {
    let host = host!(Feature::Bridge, Feature::Dnsmasq);
    world(&host);
    let (_server, _daemon) = (serve(&host, 50, &[]), daemon(&host));
    let pods: Vec<Pod> = (0..20).map(|number| host.pod(&format!("p{number}"))).collect();
    let add = |pod: &Pod| attachment(&host, pod, "eth0").add(&config()).success().json();
    let results: Vec<Value> = std::thread::scope(|scope| {
        let all: Vec<_> = pods.iter().map(|pod| scope.spawn(|| add(pod))).collect();
        all.into_iter().map(|one| one.join().expect("an ADD")).collect()
    });
    let mut addresses: Vec<String> = results.iter().flat_map(rig::addresses).collect();
    addresses.sort();
    addresses.dedup();
    assert_eq!(addresses.len(), 20);
    assert_eq!(given(&host).len(), 20);
    let saved: Value = serde_json::from_str(&host.read(STATE).unwrap()).unwrap();
    assert_eq!(saved["leases"].as_array().unwrap().len(), 20);
}

#[test]
fn dhcp_daemon_accepts_a_socket_of_the_service_manager() {
    let host = host!(Feature::Bridge, Feature::Dnsmasq);
    if host.attempt(["sh", "-c", "command -v systemd-socket-activate"]).code != Some(0) {
        testkit::record_skip(host.test(), "no systemd-socket-activate (package systemd)");
        return;
    }
    world(&host);
    host.run(["mkdir", "-p", "/run/cni"]);
    let line = ["-l", "/run/cni/dhcp.sock", "/opt/cni/bin/dhcp", "daemon"];
    let _manager = host.command("systemd-socket-activate").args(line).start();
    // A connection would start the daemon.
    wait("the service manager listens", || host.run(["ss", "-Hlx"]).contains("/run/cni/dhcp.sock "));
    let pod = host.pod("a");
    host.attachment("dhcp", &pod, "eth0").call("STATUS", config().to_string()).success();
}
