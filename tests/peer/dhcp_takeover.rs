//! Leases of the Go plugin's daemon, which another one in its place goes on with: ours knows them from libcni's cache.
//!
//! ```text
//!   host ── br0 10.1.0.1, dnsmasq ─┬─ eth0 a      first Go's plugins and daemon, then ours
//!                                  └─ eth0 b
//! ```
//!
//! Source: RFC 2131 §3.2; containernetworking/plugins `plugins/ipam/dhcp`; libcni `libcni/api.go` (cniCacheV1).

use std::time::Duration;

use rig::dhcp::{
    DAEMON_LOG, LEASES, LOG, RENEW_EVERY_SECOND, STATE, count, given, serve, start_daemon_program, wait,
};
use rig::peers::go_plugins;
use rig::{addresses_on, assert_refused, with};
use serde_json::{Value, json};
use testkit::{Attachment, Feature, Host, Pod, Running, host};

const RUNTIME: &str = "/var/lib/cni/results";
const MULTUS: &str = "/var/lib/cni/multus/results";

fn world(host: &Host) {
    rig::install(host);
    host.run(["sysctl", "-qw", "net.ipv6.conf.default.disable_ipv6=1"]);
    host.run(["ip", "link", "add", "br0", "address", "02:00:00:00:01:01", "type", "bridge"]);
    host.run(["ip", "link", "set", "br0", "up"]);
    host.run(["ip", "address", "add", "10.1.0.1/24", "dev", "br0"]);
}

fn theirs(host: &Host) -> Running {
    start_daemon_program(host, &go_plugins().join("dhcp").display().to_string(), "")
}

fn ours(host: &Host) -> Running {
    start_daemon_program(host, "/opt/cni/bin/dhcp", "-timeout 1s -resendmax 2s")
}

fn config() -> Value {
    json!({
        "cniVersion": "1.0.0", "name": "net", "type": "bridge", "bridge": "br0",
        "ipam": { "type": "dhcp", "provide": [{ "option": "host-name", "fromArg": "K8S_POD_NAME" }] },
    })
}

/// The same attachment by their bridge, with their client, or by ours.
fn by<'a>(host: &'a Host, pod: &Pod, directory: &str) -> Attachment<'a> {
    let mut attachment = host.attachment(&format!("{directory}/bridge"), pod, "eth0");
    attachment.path = directory.to_owned();
    attachment.args = format!("IgnoreUnknown=1;K8S_POD_NAME={}", pod.name());
    attachment
}

/// Attaches by their plugins, and remembers it as a runtime would; those with libcni before 1.2 do not keep the namespace.
fn attach(host: &Host, pod: &Pod, directory: &str, has_netns: bool) -> Value {
    let result = by(host, pod, &go_plugins().display().to_string()).add(&config()).success().json();
    let (mut list, mut plugin) = (json!({ "cniVersion": "1.0.0", "name": "net" }), config());
    plugin.as_object_mut().unwrap().remove("name");
    list["plugins"] = json!([plugin]);
    let mut entry = json!({
        "kind": "cniCacheV1", "containerId": pod.container_id(), "ifName": "eth0", "networkName": "net",
        "config": base64(host, &list),
        "cniArgs": [["IgnoreUnknown", "1"], ["K8S_POD_NAME", pod.name()]], "capabilityArgs": {}, "result": result,
    });
    if has_netns {
        entry["netns"] = json!(pod.path());
    }
    host.write(file(directory, pod), entry.to_string());
    result
}

fn base64(host: &Host, document: &Value) -> String {
    host.command("base64").args(["-w0"]).stdin(document.to_string()).finish().success().stdout
}

fn file(directory: &str, pod: &Pod) -> String {
    format!("{directory}/net-{}-eth0", pod.container_id())
}

fn said(host: &Host, word: &str) -> usize {
    count(host, LOG, word)
}

fn logged(host: &Host, words: &[&str]) -> bool {
    let log = host.read(DAEMON_LOG).unwrap_or_default();
    log.lines().any(|line| words.iter().all(|word| line.contains(word)))
}

/// The address of a result, without the length of its prefix.
fn address(result: &Value) -> String {
    rig::addresses(result)[0].split('/').next().unwrap().to_owned()
}

#[test]
fn leases_of_their_daemon_are_extended_by_ours_and_given_back() {
    let host = host!(Feature::Bridge, Feature::GoPlugins, Feature::Dnsmasq);
    world(&host);
    let _server = serve(&host, 50, &RENEW_EVERY_SECOND);
    let first = theirs(&host);
    let pods = [(host.pod("a"), RUNTIME, false), (host.pod("b"), MULTUS, true)];
    let results = [0, 1].map(|at| attach(&host, &pods[at].0, pods[at].1, pods[at].2));
    first.kill();
    let (before, asked) = (given(&host), said(&host, "DHCPDISCOVER("));
    assert_eq!(before.len(), 2);
    let second = ours(&host);
    wait("both are taken over", || host.read(DAEMON_LOG).unwrap().matches(": taken over").count() == 2);
    // At once: what was taken over is written down, and nobody needs to look into the cache again.
    second.kill();
    let third = start_daemon_program(&host, "/opt/cni/bin/dhcp", "-timeout 1s -takeover=false");
    for result in &results {
        let extended = format!("DHCPACK(br0) {}", address(result));
        let so_far = said(&host, &extended);
        wait("it is extended", || said(&host, &extended) > so_far + 2);
    }
    assert_eq!((given(&host), said(&host, "DHCPDISCOVER(")), (before, asked), "the same to the server");
    for ((pod, ..), result) in pods.iter().zip(&results) {
        let known = with(&config(), &json!({ "prevResult": result }));
        let eth0 = by(&host, pod, "/opt/cni/bin");
        eth0.check(&known).success();
        eth0.del(&known).success();
    }
    wait("the server has heard of it", || given(&host).is_empty());
    third.kill();
}

#[test]
fn a_daemon_that_is_killed_while_it_takes_over_begins_anew_or_goes_on() {
    let host = host!(Feature::Bridge, Feature::GoPlugins, Feature::Dnsmasq);
    world(&host);
    let _server = serve(&host, 50, &RENEW_EVERY_SECOND);
    let first = theirs(&host);
    let pod = host.pod("a");
    let result = attach(&host, &pod, RUNTIME, true);
    first.kill();
    let before = given(&host);
    for delay in (0..60).step_by(4) {
        let running = host.command("/opt/cni/bin/dhcp").args(["daemon"]).start();
        std::thread::sleep(Duration::from_millis(delay));
        running.kill();
    }
    let _last = ours(&host);
    let known = with(&config(), &json!({ "prevResult": result }));
    let eth0 = by(&host, &pod, "/opt/cni/bin");
    wait("it has its lease", || eth0.check(&known).code == Some(0));
    assert_eq!(given(&host), before);
    eth0.del(&known).success();
    wait("the server has heard of it", || given(&host).is_empty());
}

#[test]
fn an_address_that_is_refused_is_told_and_its_interface_stays_as_it_is() {
    let host = host!(Feature::Bridge, Feature::GoPlugins, Feature::Dnsmasq);
    world(&host);
    let server = serve(&host, 50, &RENEW_EVERY_SECOND);
    let first = theirs(&host);
    let pod = host.pod("a");
    let result = attach(&host, &pod, RUNTIME, true);
    first.kill();
    server.kill();
    host.run(["rm", LEASES]);
    let _other = serve(&host, 150, &RENEW_EVERY_SECOND);
    let inside = pod.snapshot();
    let _second = ours(&host);
    wait("it is told", || logged(&host, &["net/eth0", &address(&result), "DHCPNAK"]));
    assert!(said(&host, "DHCPNAK") > 0);
    rig::assert_pod_unchanged("refused", &pod, &inside);
    let known = with(&config(), &json!({ "prevResult": result }));
    let eth0 = by(&host, &pod, "/opt/cni/bin");
    assert_refused("refused", &eth0.check(&known), 999, &["eth0", "no lease", "refused"]);
    eth0.del(&known).success();
    eth0.add(&config()).success();
    assert!(addresses_on(&pod, "eth0")[0].starts_with("10.1.0.1"), "a new one, of the new server");
}

#[test]
fn a_server_that_is_silent_is_asked_until_it_answers_or_nobody_wants_to_know() {
    let host = host!(Feature::Bridge, Feature::GoPlugins, Feature::Dnsmasq);
    world(&host);
    let server = serve(&host, 50, &RENEW_EVERY_SECOND);
    let first = theirs(&host);
    let pods = [host.pod("a"), host.pod("b"), host.pod("c")];
    let results = [0, 1, 2].map(|at| attach(&host, &pods[at], RUNTIME, true));
    first.kill();
    server.kill();
    let _second = ours(&host);
    for pod in &pods {
        wait("it is asked for in vain", || {
            logged(&host, &[&format!("{}/net/eth0", pod.container_id()), "no DHCP server answered"])
        });
    }
    let known = |at: usize| with(&config(), &json!({ "prevResult": results[at] }));
    let checked = by(&host, &pods[0], "/opt/cni/bin").check(&known(0));
    assert_refused("silence", &checked, 999, &["eth0", "no server has answered yet"]);
    // One has its DEL meanwhile, another one's namespace ends: nobody asks for them any more.
    by(&host, &pods[1], "/opt/cni/bin").del(&known(1)).success();
    let [first, second, third] = pods;
    let (gone, left) = (third.container_id(), second.container_id());
    third.remove();
    wait("it is forgotten", || logged(&host, &[&format!("{gone}/net/eth0"), "its container is gone"]));
    let _again = serve(&host, 50, &RENEW_EVERY_SECOND);
    let eth0 = by(&host, &first, "/opt/cni/bin");
    wait("it is taken over", || eth0.check(&known(0)).code == Some(0));
    wait("it is written down", || host.read(STATE).is_some_and(|kept| kept.contains(&first.container_id())));
    let kept = host.read(STATE).unwrap();
    assert!(!kept.contains(&left) && !kept.contains(&gone), "{kept}");
}

#[test]
fn what_the_cache_says_and_is_not_so_is_not_taken_over() {
    let host = host!(Feature::Bridge, Feature::GoPlugins, Feature::Dnsmasq);
    world(&host);
    let _server = serve(&host, 50, &RENEW_EVERY_SECOND);
    let first = theirs(&host);
    let pod = host.pod("a");
    let result = attach(&host, &pod, RUNTIME, true);
    first.kill();
    let entry: Value = serde_json::from_str(&host.read(file(RUNTIME, &pod)).unwrap()).unwrap();
    host.run(["rm", &file(RUNTIME, &pod)]);
    let other = host.pod("other");
    // What the daemon's own namespace has, another container, another interface; and who was at another daemon.
    let changed = |keys: &Value| with(&entry, keys);
    let mac = json!({
        "interfaces": [{ "name": "eth0", "mac": "02:00:00:00:00:99", "sandbox": pod.path() }],
        "ips": [{ "address": result["ips"][0]["address"], "interface": 0 }],
    });
    let elsewhere =
        with(&config(), &json!({ "ipam": { "type": "dhcp", "daemonSocketPath": "/run/other.sock" } }));
    let hostile = [
        ("own", changed(&json!({ "netns": "/proc/self/ns/net" })), "own namespace"),
        ("another", changed(&json!({ "netns": other.path() })), "1 of containers that are gone"),
        ("mac", changed(&json!({ "result": with(&result, &mac) })), "02:00:00:00:00:99"),
        (
            "address",
            changed(&json!({ "result": with(&result, &json!({ "ips": [{ "address": "10.1.0.9/24" }] })) })),
            "10.1.0.9",
        ),
        ("none", changed(&json!({ "result": { "cniVersion": "1.0.0" } })), "no address"),
        ("relative", changed(&json!({ "netns": "../../etc" })), "namespace"),
        ("gone", changed(&json!({ "netns": "/run/netns/gone" })), "1 of containers that are gone"),
        ("fifo", changed(&json!({ "netns": "/run/fifo" })), "1 of containers that are gone"),
        (
            "socket",
            changed(&json!({
                "config": base64(&host, &elsewhere),
            })),
            "",
        ),
    ];
    host.run(["mkfifo", "/run/fifo"]);
    host.run("ip link add eth0 type veth peer name far0".split(' '));
    let asked = said(&host, "DHCPREQUEST(");
    for (what, mut entry, words) in hostile {
        host.run(["sh", "-c", &format!("rm -f {RUNTIME}/* {DAEMON_LOG}")]);
        entry["containerId"] = json!(what);
        host.write(format!("{RUNTIME}/net-{what}-eth0"), entry.to_string());
        for (name, text) in [("x", "{"), ("net-../x-eth0", "\0"), ("y", "[]")] {
            host.write(format!("{RUNTIME}/{}", name.replace('/', "_")), text);
        }
        let running = ours(&host);
        wait("it has looked", || logged(&host, &["listening on"]));
        assert!(words.is_empty() || logged(&host, &[words]), "{what}: {:?}", host.read(DAEMON_LOG));
        assert!(
            !logged(&host, &["taken over"]) || words.contains("gone") || logged(&host, &["not taken over"]),
            "{what}"
        );
        running.kill();
    }
    assert_eq!(said(&host, "DHCPREQUEST("), asked, "nobody was asked for anything");
}
