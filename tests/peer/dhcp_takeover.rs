//! Tests that weft's daemon takes over leases from the Go plugin's daemon, which it finds in libcni's cache.
//!
//! ```text
//!   host ── br0 10.1.0.1, dnsmasq ─┬─ eth0 a      first the Go plugins and daemon, then weft's
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

fn start_go_daemon(host: &Host) -> Running {
    start_daemon_program(host, &go_plugins().join("dhcp").display().to_string(), "")
}

fn start_weft_daemon(host: &Host) -> Running {
    start_daemon_program(host, "/opt/cni/bin/dhcp", "-timeout 1s -resendmax 2s")
}

fn config() -> Value {
    json!({
        "cniVersion": "1.0.0", "name": "net", "type": "bridge", "bridge": "br0",
        "ipam": { "type": "dhcp", "provide": [{ "option": "host-name", "fromArg": "K8S_POD_NAME" }] },
    })
}

/// Returns the attachment of bridge and dhcp in a directory: the Go plugins or weft.
fn by<'a>(host: &'a Host, pod: &Pod, directory: &str) -> Attachment<'a> {
    let mut attachment = host.attachment(&format!("{directory}/bridge"), pod, "eth0");
    attachment.path = directory.to_owned();
    attachment.args = format!("IgnoreUnknown=1;K8S_POD_NAME={}", pod.name());
    attachment
}

/// Attaches with the Go plugins and writes the cache entry of a runtime. Runtimes with libcni before 1.2 do
/// not store the namespace.
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

fn log_count(host: &Host, word: &str) -> usize {
    count(host, LOG, word)
}

fn daemon_logged(host: &Host, words: &[&str]) -> bool {
    let log = host.read(DAEMON_LOG).unwrap_or_default();
    log.lines().any(|line| words.iter().all(|word| line.contains(word)))
}

/// Returns the address of a result, without prefix length.
fn address(result: &Value) -> String {
    rig::addresses(result)[0].split('/').next().unwrap().to_owned()
}

#[test]
fn dhcp_takeover_renews_and_releases_leases_of_the_go_daemon() {
    let host = host!(Feature::Bridge, Feature::GoPlugins, Feature::Dnsmasq);
    world(&host);
    let _server = serve(&host, 50, &RENEW_EVERY_SECOND);
    let first = start_go_daemon(&host);
    let pods = [(host.pod("a"), RUNTIME, false), (host.pod("b"), MULTUS, true)];
    let results = [0, 1].map(|at| attach(&host, &pods[at].0, pods[at].1, pods[at].2));
    first.kill();
    let (before, discovers) = (given(&host), log_count(&host, "DHCPDISCOVER("));
    assert_eq!(before.len(), 2);
    let second = start_weft_daemon(&host);
    wait("both are taken over", || host.read(DAEMON_LOG).unwrap().matches(": taken over").count() == 2);
    // The daemon has stored the leases at once, so no other daemon needs the cache.
    second.kill();
    let third = start_daemon_program(&host, "/opt/cni/bin/dhcp", "-timeout 1s -takeover=false");
    for result in &results {
        let renewed = format!("DHCPACK(br0) {}", address(result));
        let so_far = log_count(&host, &renewed);
        wait("the lease is renewed", || log_count(&host, &renewed) > so_far + 2);
    }
    assert_eq!(
        (given(&host), log_count(&host, "DHCPDISCOVER(")),
        (before, discovers),
        "the server sees no difference"
    );
    for ((pod, ..), result) in pods.iter().zip(&results) {
        let known = with(&config(), &json!({ "prevResult": result }));
        let eth0 = by(&host, pod, "/opt/cni/bin");
        eth0.check(&known).success();
        eth0.del(&known).success();
    }
    wait("the server has received the releases", || given(&host).is_empty());
    third.kill();
}

#[test]
fn dhcp_takeover_killed_at_any_time_completes_later() {
    let host = host!(Feature::Bridge, Feature::GoPlugins, Feature::Dnsmasq);
    world(&host);
    let _server = serve(&host, 50, &RENEW_EVERY_SECOND);
    let first = start_go_daemon(&host);
    let pod = host.pod("a");
    let result = attach(&host, &pod, RUNTIME, true);
    first.kill();
    let before = given(&host);
    for delay in (0..60).step_by(4) {
        let running = host.command("/opt/cni/bin/dhcp").args(["daemon"]).start();
        std::thread::sleep(Duration::from_millis(delay));
        running.kill();
    }
    let _last = start_weft_daemon(&host);
    let known = with(&config(), &json!({ "prevResult": result }));
    let eth0 = by(&host, &pod, "/opt/cni/bin");
    wait("the daemon has the lease", || eth0.check(&known).code == Some(0));
    assert_eq!(given(&host), before);
    eth0.del(&known).success();
    wait("the server has received the release", || given(&host).is_empty());
}

#[test]
fn dhcp_takeover_refused_lease_is_logged_and_link_unchanged() {
    let host = host!(Feature::Bridge, Feature::GoPlugins, Feature::Dnsmasq);
    world(&host);
    let server = serve(&host, 50, &RENEW_EVERY_SECOND);
    let first = start_go_daemon(&host);
    let pod = host.pod("a");
    let result = attach(&host, &pod, RUNTIME, true);
    first.kill();
    server.kill();
    host.run(["rm", LEASES]);
    let _other = serve(&host, 150, &RENEW_EVERY_SECOND);
    let inside = pod.snapshot();
    let _second = start_weft_daemon(&host);
    wait("the refusal is logged", || daemon_logged(&host, &["net/eth0", &address(&result), "DHCPNAK"]));
    assert!(log_count(&host, "DHCPNAK") > 0);
    rig::assert_pod_unchanged("refused", &pod, &inside);
    let known = with(&config(), &json!({ "prevResult": result }));
    let eth0 = by(&host, &pod, "/opt/cni/bin");
    assert_refused("refused", &eth0.check(&known), 999, &["eth0", "no lease", "refused"]);
    eth0.del(&known).success();
    eth0.add(&config()).success();
    assert!(addresses_on(&pod, "eth0")[0].starts_with("10.1.0.1"), "an address of the new server");
}

#[test]
fn dhcp_takeover_retries_until_the_server_answers_or_del() {
    let host = host!(Feature::Bridge, Feature::GoPlugins, Feature::Dnsmasq);
    world(&host);
    let server = serve(&host, 50, &RENEW_EVERY_SECOND);
    let first = start_go_daemon(&host);
    let pods = [host.pod("a"), host.pod("b"), host.pod("c")];
    let results = [0, 1, 2].map(|at| attach(&host, &pods[at], RUNTIME, true));
    first.kill();
    server.kill();
    let _second = start_weft_daemon(&host);
    for pod in &pods {
        wait("a request gets no answer", || {
            daemon_logged(&host, &[&format!("{}/net/eth0", pod.container_id()), "no DHCP server answered"])
        });
    }
    let known = |at: usize| with(&config(), &json!({ "prevResult": results[at] }));
    let checked = by(&host, &pods[0], "/opt/cni/bin").check(&known(0));
    assert_refused("no server", &checked, 999, &["eth0", "no server has answered yet"]);
    // One attachment gets its DEL meanwhile, and the namespace of another is deleted: the daemon stops asking
    // for both.
    by(&host, &pods[1], "/opt/cni/bin").del(&known(1)).success();
    let [first, second, third] = pods;
    let (gone, left) = (third.container_id(), second.container_id());
    third.remove();
    wait("the lease is forgotten", || {
        daemon_logged(&host, &[&format!("{gone}/net/eth0"), "its container no longer exists"])
    });
    let _again = serve(&host, 50, &RENEW_EVERY_SECOND);
    let eth0 = by(&host, &first, "/opt/cni/bin");
    wait("the lease is taken over", || eth0.check(&known(0)).code == Some(0));
    wait("the lease is stored", || host.read(STATE).is_some_and(|kept| kept.contains(&first.container_id())));
    let kept = host.read(STATE).unwrap();
    assert!(!kept.contains(&left) && !kept.contains(&gone), "{kept}");
}

#[test]
fn dhcp_takeover_ignores_wrong_cache_entries() {
    let host = host!(Feature::Bridge, Feature::GoPlugins, Feature::Dnsmasq);
    world(&host);
    let _server = serve(&host, 50, &RENEW_EVERY_SECOND);
    let first = start_go_daemon(&host);
    let pod = host.pod("a");
    let result = attach(&host, &pod, RUNTIME, true);
    first.kill();
    let entry: Value = serde_json::from_str(&host.read(file(RUNTIME, &pod)).unwrap()).unwrap();
    host.run(["rm", &file(RUNTIME, &pod)]);
    let other = host.pod("other");
    // The daemon's own namespace, another container, another interface, another address, and a lease of
    // another daemon.
    let changed = |keys: &Value| with(&entry, keys);
    let mac = json!({
        "interfaces": [{ "name": "eth0", "mac": "02:00:00:00:00:99", "sandbox": pod.path() }],
        "ips": [{ "address": result["ips"][0]["address"], "interface": 0 }],
    });
    let elsewhere =
        with(&config(), &json!({ "ipam": { "type": "dhcp", "daemonSocketPath": "/run/other.sock" } }));
    let hostile = [
        ("own", changed(&json!({ "netns": "/proc/self/ns/net" })), "own namespace"),
        ("another", changed(&json!({ "netns": other.path() })), "containers that no longer exist: 1"),
        ("mac", changed(&json!({ "result": with(&result, &mac) })), "02:00:00:00:00:99"),
        (
            "address",
            changed(&json!({ "result": with(&result, &json!({ "ips": [{ "address": "10.1.0.9/24" }] })) })),
            "10.1.0.9",
        ),
        ("none", changed(&json!({ "result": { "cniVersion": "1.0.0" } })), "no address"),
        ("relative", changed(&json!({ "netns": "../../etc" })), "namespace"),
        ("gone", changed(&json!({ "netns": "/run/netns/gone" })), "containers that no longer exist: 1"),
        ("fifo", changed(&json!({ "netns": "/run/fifo" })), "containers that no longer exist: 1"),
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
    let discovers = log_count(&host, "DHCPREQUEST(");
    for (what, mut entry, words) in hostile {
        host.run(["sh", "-c", &format!("rm -f {RUNTIME}/* {DAEMON_LOG}")]);
        entry["containerId"] = json!(what);
        host.write(format!("{RUNTIME}/net-{what}-eth0"), entry.to_string());
        for (name, text) in [("x", "{"), ("net-../x-eth0", "\0"), ("y", "[]")] {
            host.write(format!("{RUNTIME}/{}", name.replace('/', "_")), text);
        }
        let running = start_weft_daemon(&host);
        wait("the daemon has read the cache", || daemon_logged(&host, &["listening on"]));
        assert!(words.is_empty() || daemon_logged(&host, &[words]), "{what}: {:?}", host.read(DAEMON_LOG));
        assert!(
            !daemon_logged(&host, &["taken over"])
                || words.contains("gone")
                || daemon_logged(&host, &["not taken over"]),
            "{what}"
        );
        running.kill();
    }
    assert_eq!(log_count(&host, "DHCPREQUEST("), discovers, "no request was sent");
}
