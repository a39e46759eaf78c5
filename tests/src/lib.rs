//! What the end-to-end tests of the plugins have in common: a pretend host with `weft-cni` installed, an
//! outside world, traffic, and a directory of manifests.
//!
//! Rules: no reader of ours is the oracle; what is expected to stay after an attachment has gone is named here,
//! and nowhere else.

#![allow(
    clippy::panic,
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a test's support fails by panicking"
)]

pub mod addresses;
pub mod agent;
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

/// Every version of the protocol there has been.
pub const VERSIONS: [&str; 7] = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

/// Every name under which the tests call `weft-cni`.
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

/// Puts `weft-cni` where the host's runtime looks, under all its names.
pub fn install(host: &Host) {
    host.install(&testkit::binary("weft-cni"), NAMES);
    // As on a node that has been used: what stays is a difference to tell.
    host.run(["sh", "-c", "mkdir -p /run/cni && mkdir -p -m 700 /run/cni/host-device"]);
}

/// The words that run a plugin where `iptables` is the older one, whose rules the kernel keeps apart from nftables.
#[must_use]
#[track_caller]
pub fn with_legacy_iptables(host: &Host) -> Vec<String> {
    let link = "ln -sf $(command -v ${family}tables-legacy-$what) /run/legacy/${family}tables-$what";
    let all = format!("for family in ip ip6; do for what in save restore; do {link}; done; done");
    host.run(["sh", "-c", &format!("mkdir -p /run/legacy; {all}")]);
    ["env", "PATH=/run/legacy"].map(str::to_owned).to_vec()
}

/// `config` in a version of the protocol.
#[must_use]
pub fn in_version(config: &Value, version: &str) -> Value {
    with(config, &json!({ "cniVersion": version }))
}

/// `config` with some keys set.
#[must_use]
pub fn with(config: &Value, keys: &Value) -> Value {
    let mut config = config.clone();
    for (key, value) in keys.as_object().expect("an object of keys") {
        config[key] = value.clone();
    }
    config
}

/// What is new, gone or different, but for what comes and goes by itself:
/// - what host-local remembers to be fast or fair: where round robin goes on, and what a copy of its directory
///   says (whether there is one counts, but not the directory above, which stays until the next boot);
/// - what an agent has checked, for the next agent;
/// - link-local addresses of links that stay, and their routes: the kernel gives them in its own time;
/// - the local route of an IPv6 address: the kernel adds it from a work queue, later than the address, which is a
///   difference of its own;
/// - the multicast route of a link: the kernel has it as long as the link is ready, which takes it a moment.
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
    let told: Vec<&str> = lines.lines().filter(|line| !own_time(line)).collect();
    told.join("\n")
}

/// Whether the address at the beginning of a line is one of IPv6.
fn is_ipv6(line: &str) -> bool {
    line.split(' ').next().is_some_and(|address| address.contains(':'))
}

/// Fails unless the host is as it was, and the pods are.
#[track_caller]
pub fn assert_nothing_left(what: &str, host: &Host, before: &Snapshot) {
    let changes = changes(before, &host.snapshot());
    assert!(changes.is_empty(), "{what}: the host is not as it was:\n{changes}");
}

/// The same for a pod.
#[track_caller]
pub fn assert_pod_unchanged(what: &str, pod: &Pod, before: &Snapshot) {
    let changes = changes(before, &pod.snapshot());
    assert!(changes.is_empty(), "{what}: pod {} is not as it was:\n{changes}", pod.name());
}

/// The code and message of a refusal.
///
/// # Panics
/// If it is none: success, or an exit without an error in the protocol's form.
#[must_use]
#[track_caller]
pub fn refusal(finished: &Finished) -> (u64, String) {
    assert_eq!(finished.code, Some(1), "{finished}");
    let error = finished.json();
    let text = |key: &str| error[key].as_str().unwrap_or_default().to_owned();
    (error["code"].as_u64().expect("a code"), format!("{} {}", text("msg"), text("details")))
}

/// Fails unless it was refused with this code and every one of these words.
#[track_caller]
pub fn assert_refused(what: &str, finished: &Finished, code: u64, words: &[&str]) {
    let (given, message) = refusal(finished);
    assert_eq!(given, code, "{what}: {message}");
    for word in words {
        assert!(message.contains(word), "{what}: {word:?} is missing in: {message}");
    }
}

/// The addresses of a result in any version, with their prefix lengths.
#[must_use]
pub fn addresses(result: &Value) -> Vec<String> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let old = ["ip4", "ip6"].iter().filter_map(|family| text(&result[family]["ip"]));
    let new = result["ips"].as_array().into_iter().flatten().filter_map(|ip| text(&ip["address"]));
    old.chain(new).collect()
}

/// The addresses of a link that are not the kernel's own, as `ip -j` has them.
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

/// One link as `ip -d -j` has it; `None` if there is none.
#[must_use]
#[track_caller]
pub fn link(netns: &Netns, name: &str) -> Option<Value> {
    let finished = netns.attempt(["ip", "-d", "-j", "link", "show", "dev", name]);
    (finished.code == Some(0)).then(|| finished.json()[0].clone())
}

/// Is a link, as [`link`] has it, up? The operational state follows in the kernel's own time.
#[must_use]
pub fn is_up(link: &Value) -> bool {
    link["flags"].as_array().is_some_and(|flags| flags.iter().any(|flag| flag == "UP"))
}

/// Names of links, sorted, without `lo`.
#[must_use]
#[track_caller]
pub fn links(netns: &Netns) -> Vec<String> {
    let shown = netns.json(["ip", "-j", "link"]);
    let names = shown.as_array().into_iter().flatten().filter_map(|link| link["ifname"].as_str());
    let mut names: Vec<String> = names.filter(|name| *name != "lo").map(str::to_owned).collect();
    names.sort();
    names
}

/// Routes as `DST [via GATEWAY] [metric N]`, sorted; `arguments` as for `ip -j route`.
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

/// GC with a list of what is valid; `None`: without a list.
#[track_caller]
pub fn collect(attachment: &Attachment<'_>, config: &Value, valid: Option<&[(&str, &str)]>) -> Finished {
    let mut config = config.clone();
    if let Some(valid) = valid {
        let list = valid.iter().map(|(id, ifname)| json!({ "containerID": id, "ifname": ifname }));
        config["cni.dev/valid-attachments"] = list.collect();
    }
    attachment.call("GC", config.to_string())
}
