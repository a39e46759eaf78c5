//! Shared rig for the end-to-end tests: a pretend host with `weft-cni` installed, an outside world, traffic, a manifest
//! directory, and real programs such as containerd, an API server or Neutron.
//!
//! - Tests read expectations with the system's tools, never with weft's code.
//! - [`changes`] is the only place that lists what may remain after an attachment is deleted.

#![allow(
    clippy::panic,
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a test's support fails by panicking"
)]

pub mod addresses;
pub mod agent;
pub mod alerts;
pub mod api_pool;
pub mod cluster;
pub mod console_blocks;
pub mod containerd;
pub mod cri;
pub mod dhcp;
pub mod etcd_snapshot;
pub mod installation;
pub mod kube;
pub mod machine;
pub mod multus;
pub mod neutron;
pub mod node;
pub mod openstack;
pub mod parts;
pub mod peers;
pub mod proxy;
pub mod traffic;

use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::{Attachment, Finished, Host, Netns, Pod, Snapshot};

pub use agent::Agent;
pub use cluster::Cluster;
pub use containerd::Containerd;
pub use kube::Kube;
pub use machine::Machine;
pub use multus::Multus;
pub use neutron::Neutron;
pub use node::Node;
pub use openstack::OpenStack;
pub use proxy::Proxy;

/// Every CNI version.
pub const VERSIONS: [&str; 7] = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

/// Every name under which tests call `weft-cni`.
pub const NAMES: &[&str] = &[
    "weft-cni",
    "weft",
    "multus",
    "bandwidth",
    "bridge",
    "dhcp",
    "dummy",
    "firewall",
    "host-device",
    "host-local",
    "ipvlan",
    "loopback",
    "macvlan",
    "neutron",
    "portmap",
    "ptp",
    "sbr",
    "static",
    "tap",
    "tuning",
    "vlan",
    "vrf",
    "weft-ipam",
    "whereabouts",
];

/// Installs `weft-cni` in the host's plugin directory, under all names.
pub fn install(host: &Host) {
    host.install(&testkit::binary("weft-cni"), NAMES);
    // These directories exist on any node in use. Without them, every ADD would show up as a difference.
    host.run(["sh", "-c", "mkdir -p /run/cni && mkdir -p -m 700 /run/cni/host-device"]);
}

/// Returns the command that runs a plugin with legacy iptables, whose rules the kernel keeps separate from nftables.
#[must_use]
#[track_caller]
pub fn with_legacy_iptables(host: &Host) -> Vec<String> {
    let link = "ln -sf $(command -v ${family}tables-legacy-$what) /run/legacy/${family}tables-$what";
    let all = format!("for family in ip ip6; do for what in save restore; do {link}; done; done");
    host.run(["sh", "-c", &format!("mkdir -p /run/legacy; {all}")]);
    ["env", "PATH=/run/legacy"].map(str::to_owned).to_vec()
}

/// Returns the command that runs a plugin as in an unprivileged container: with every network capability, but without
/// access to `/proc/net/ip_tables_names` and other files that belong to root.
#[must_use]
pub fn as_in_an_unprivileged_container() -> Vec<String> {
    let rights = "+net_admin,+net_raw,+sys_admin";
    let rights = [format!("--inh-caps={rights}"), format!("--ambient-caps={rights}")];
    let user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"].map(str::to_owned);
    user.into_iter().chain(rights).collect()
}

/// Waits until the kernel has completed the IPv6 addresses on a router's link: none is tentative, and each has an
/// anycast route. Without a link-local address, the host cannot solicit neighbours.
pub fn await_ipv6(host: &Netns, link: &str) {
    let count = |arguments: &[&str], word: &str| {
        let shown = host.run([&["ip", "-6"], arguments, &["dev", link]].concat());
        shown.split_whitespace().filter(|found| *found == word).count()
    };
    let is_complete = || {
        let addresses = count(&["address", "show"], "inet6");
        addresses > 1
            && count(&["address", "show", "tentative"], "inet6") == 0
            && count(&["route", "show", "table", "local"], "anycast") == addresses
    };
    let until = Instant::now() + Duration::from_secs(5);
    while !is_complete() {
        assert!(Instant::now() < until, "{link}: {}", host.run(["ip", "-6", "address", "show", "dev", link]));
        sleep(Duration::from_millis(20));
    }
}

/// Returns `config` with another `cniVersion`.
#[must_use]
pub fn in_version(config: &Value, version: &str) -> Value {
    with(config, &json!({ "cniVersion": version }))
}

/// Returns `config` with some fields set.
#[must_use]
pub fn with(config: &Value, keys: &Value) -> Value {
    let mut config = config.clone();
    for (key, value) in keys.as_object().expect("an object of keys") {
        config[key] = value.clone();
    }
    config
}

/// Lists the differences between two snapshots, without those that appear and disappear independently of the test:
/// - host-local's state that only affects speed or fairness: the round robin position, and the content of the
///   directory's copy. Whether that copy exists does count. The directory above it stays until the next boot.
/// - Results of drift checks, which an agent stores for the next one.
/// - Link-local addresses and routes on remaining links, because the kernel adds them later.
/// - An IPv6 address's local route, because the kernel adds it from a work queue, later than the address; the address
///   itself counts.
/// - A link's multicast route, which exists while the link is ready, and that takes a moment.
#[must_use]
#[track_caller]
pub fn changes(before: &Snapshot, after: &Snapshot) -> String {
    let lines = before.changes(after);
    let own_time = |line: &str| {
        line.contains("/last_reserved_ip.")
            || line.starts_with("~ file /run/weft/host-local/")
            || line.starts_with("+ directory /run/weft ")
            || line.get(2..).is_some_and(|rest| rest.starts_with("file /run/weft/checked.json "))
            || line.starts_with("+ address ") && line.contains(" fe80:")
            || line.starts_with("+ route ")
                && line.contains(" fe80:")
                && line.contains(r#""protocol":"kernel""#)
            || line.strip_prefix("+ route local local ").is_some_and(is_ipv6)
            || line.get(2..).is_some_and(|rest| rest.starts_with("route local multicast ff00::/8 "))
    };
    let remaining: Vec<&str> = lines.lines().filter(|line| !own_time(line)).collect();
    remaining.join("\n")
}

/// Waits until the host equals the snapshot. A kubelet tears down pods with a delay, and Open vSwitch restores the
/// bridge's MTU only after a port is gone.
///
/// # Panics
/// At [`machine::TIMEOUT`], with the difference.
#[track_caller]
pub fn until_unchanged(host: &Host, case: &str, before: &Snapshot) {
    let deadline = Instant::now() + machine::TIMEOUT;
    loop {
        let changes = changes(before, &host.snapshot());
        if changes.is_empty() {
            return;
        }
        assert!(Instant::now() < deadline, "{case}: the host is not as it was:\n{changes}");
        sleep(Duration::from_millis(200));
    }
}

/// Whether a line begins with an IPv6 address.
fn is_ipv6(line: &str) -> bool {
    line.split(' ').next().is_some_and(|address| address.contains(':'))
}

/// Fails unless the host equals the snapshot.
#[track_caller]
pub fn assert_nothing_left(case: &str, host: &Host, before: &Snapshot) {
    let changes = changes(before, &host.snapshot());
    assert!(changes.is_empty(), "{case}: the host is not as it was:\n{changes}");
}

/// Fails unless the pod equals the snapshot.
#[track_caller]
pub fn assert_pod_unchanged(case: &str, pod: &Pod, before: &Snapshot) {
    let changes = changes(before, &pod.snapshot());
    assert!(changes.is_empty(), "{case}: pod {} is not as it was:\n{changes}", pod.name());
}

/// Returns code and message from a CNI error.
///
/// # Panics
/// The plugin succeeded, or exited without a CNI error on standard output.
#[must_use]
#[track_caller]
pub fn refusal(finished: &Finished) -> (u64, String) {
    assert_eq!(finished.code, Some(1), "{finished}");
    let error = finished.json();
    let text = |key: &str| error[key].as_str().unwrap_or_default().to_owned();
    (error["code"].as_u64().expect("a code"), format!("{} {}", text("msg"), text("details")))
}

/// Fails unless the plugin failed with this code and a message that contains all these strings.
#[track_caller]
pub fn assert_refused(case: &str, finished: &Finished, code: u64, words: &[&str]) {
    let (given, message) = refusal(finished);
    assert_eq!(given, code, "{case}: {message}");
    for word in words {
        assert!(message.contains(word), "{case}: {word:?} is missing in: {message}");
    }
}

/// Returns the addresses in a result of any version, with prefix lengths.
#[must_use]
pub fn addresses(result: &Value) -> Vec<String> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let old = ["ip4", "ip6"].iter().filter_map(|family| text(&result[family]["ip"]));
    let new = result["ips"].as_array().into_iter().flatten().filter_map(|ip| text(&ip["address"]));
    old.chain(new).collect()
}

/// Returns the addresses on a link as `ip -j` prints them, without those with scope link.
#[must_use]
#[track_caller]
pub fn addresses_on(netns: &Netns, link: &str) -> Vec<String> {
    let shown = netns.json(["ip", "-j", "address", "show", "dev", link]);
    let infos = shown[0]["addr_info"].as_array().cloned().unwrap_or_default();
    let global = infos.iter().filter(|info| info["scope"] != "link");
    global
        .map(|info| format!("{}/{}", info["local"].as_str().unwrap_or_default(), info["prefixlen"]))
        .collect()
}

/// Returns one link as `ip -d -j` prints it; `None` if it does not exist.
#[must_use]
#[track_caller]
pub fn link(netns: &Netns, name: &str) -> Option<Value> {
    let finished = netns.attempt(["ip", "-d", "-j", "link", "show", "dev", name]);
    (finished.code == Some(0)).then(|| finished.json()[0].clone())
}

/// Whether a link, as [`link`] returns it, has the flag UP. The kernel changes the operational state only later.
#[must_use]
pub fn is_up(link: &Value) -> bool {
    link["flags"].as_array().is_some_and(|flags| flags.iter().any(|flag| flag == "UP"))
}

/// Lists link names, sorted, without `lo`.
#[must_use]
#[track_caller]
pub fn links(netns: &Netns) -> Vec<String> {
    let shown = netns.json(["ip", "-j", "link"]);
    let names = shown.as_array().into_iter().flatten().filter_map(|link| link["ifname"].as_str());
    let mut names: Vec<String> = names.filter(|name| *name != "lo").map(str::to_owned).collect();
    names.sort();
    names
}

/// Lists routes as `DST [via GATEWAY] [metric N]`, sorted; `arguments` are the same as for `ip -j route`.
#[must_use]
#[track_caller]
pub fn routes(netns: &Netns, arguments: &[&str]) -> Vec<String> {
    let line = ["ip", "-j"].into_iter().chain(arguments.iter().copied());
    let shown = netns.json(line);
    let mut routes: Vec<String> = shown.as_array().into_iter().flatten().map(route_text).collect();
    routes.sort();
    routes
}

fn route_text(route: &Value) -> String {
    let mut text = route["dst"].as_str().unwrap_or_default().to_owned();
    for (key, word) in [("gateway", "via"), ("dev", "dev"), ("prefsrc", "src")] {
        if let Some(value) = route[key].as_str() {
            text.push_str(&format!(" {word} {value}"));
        }
    }
    if let Some(metric) = route["metric"].as_u64() {
        text.push_str(&format!(" metric {metric}"));
    }
    text
}

/// Calls GC with a list of valid attachments; `None` sends no list.
#[track_caller]
pub fn gc(attachment: &Attachment<'_>, config: &Value, valid: Option<&[(&str, &str)]>) -> Finished {
    let mut config = config.clone();
    if let Some(valid) = valid {
        let list = valid.iter().map(|(id, ifname)| json!({ "containerID": id, "ifname": ifname }));
        config["cni.dev/valid-attachments"] = list.collect();
    }
    attachment.call("GC", config.to_string())
}
