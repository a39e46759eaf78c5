//! Tests for `firewall`: which traffic it accepts on a host that drops forwarded packets, and which traffic
//! an ingress policy drops.
//!
//! ```text
//!   outside 192.0.2.2, fd00:2::2 ── up0 ── host ── br0 10.1.0.1, fd01::1 ── a, b
//!                                              ├── br1 10.2.0.1, fd02::1 ── c
//!                                              └── br2 10.3.0.1, fd03::1 ── d
//! ```
//!
//! The outside has routes to the pods.
//!
//! Source: plugins `plugins/meta/firewall`; nerdctl#1872 for the input of DEL.

use rig::traffic::{OUTSIDE, Transport, outside, reached};
use rig::{assert_nothing_left, assert_refused, with};
use serde_json::{Value, json};
use testkit::{Attachment, Feature, Host, Netns, Pod, host};

const BACKENDS: [&str; 2] = ["nftables", "iptables"];

/// Ways in which a host drops forwarded packets: the tool and the command lines.
const DROPPERS: [(&str, &[&[&str]]); 2] = [
    ("iptables", &[&["iptables", "-P", "FORWARD", "DROP"], &["ip6tables", "-P", "FORWARD", "DROP"]]),
    (
        "nft",
        &[&[
            "nft",
            "table inet filter { chain forward { type filter hook forward priority 0; policy drop; }; }",
        ]],
    ),
];

/// Pod behind bridge number `number`, and the configurations for a chain with `bridge` and `firewall`.
struct Chain<'a> {
    pod: Pod,
    firewall: Value,
    plugin: Attachment<'a>,
    first: Attachment<'a>,
    bridge: Value,
}

fn bridge(number: u8) -> Value {
    let ranges = json!([[{ "subnet": format!("10.{}.0.0/24", number + 1) }], [{ "subnet": format!("fd0{}::/64", number + 1) }]]);
    json!({
        "cniVersion": "1.1.0", "name": format!("net{number}"), "type": "bridge", "bridge": format!("br{number}"), "isGateway": true,
        "ipam": { "type": "host-local", "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }], "ranges": ranges },
    })
}

impl<'a> Chain<'a> {
    /// Creates a pod that is not accepted yet.
    fn new(host: &'a Host, name: &str, number: u8) -> Chain<'a> {
        Chain::with_ifname(host, name, number, "eth0")
    }

    /// Creates a pod with an interface of this name.
    fn with_ifname(host: &'a Host, name: &str, number: u8, ifname: &str) -> Chain<'a> {
        let pod = host.pod(name);
        let bridge = bridge(number);
        let first = host.attachment("bridge", &pod, ifname);
        let result = first.add(&bridge).success().json();
        rig::await_ipv6(host, &format!("br{number}"));
        let firewall = json!({ "cniVersion": "1.1.0", "name": bridge["name"], "type": "firewall", "prevResult": result });
        let plugin = host.attachment("firewall", &pod, ifname);
        Chain { pod, firewall, plugin, first, bridge }
    }

    /// Calls ADD. Returns the configuration for the calls that follow.
    #[track_caller]
    fn add(&self, keys: &Value) -> Value {
        let config = with(&self.firewall, keys);
        assert_eq!(self.plugin.add(&config).success().json(), self.firewall["prevResult"]);
        config
    }

    /// Returns the pod's addresses without prefix length.
    fn addresses(&self) -> Vec<String> {
        let all = rig::addresses(&self.firewall["prevResult"]);
        all.iter().map(|address| address.split('/').next().unwrap().to_owned()).collect()
    }

    fn end(self) {
        self.first.del(&with(&self.bridge, &json!({ "prevResult": self.firewall["prevResult"] }))).success();
        self.pod.remove();
    }
}

/// Creates a host with an outside that has routes to the pods.
fn world(host: &Host) -> Pod {
    rig::install(host);
    let outside = outside(host);
    for number in 1..=3 {
        outside.run(["ip", "route", "add", &format!("10.{number}.0.0/24"), "via", "192.0.2.1"]);
        outside.run(["ip", "-6", "route", "add", &format!("fd0{number}::/64"), "via", "fd00:2::1"]);
    }
    outside
}

fn drop_forwarded(host: &Host, lines: &[&[&str]]) {
    for line in lines {
        host.run(*line);
    }
}

/// Whether `client` reaches a server in `server` at this address and gets the answer. UDP is tried first, because a
/// drop shows sooner.
fn reaches(client: &Netns, server: &Netns, address: &str) -> bool {
    let at = if address.contains(':') { format!("[{address}]:80") } else { format!("{address}:80") };
    let by = |transport: Transport| reached(transport, client, &at, server, &at).is_some();
    // TCP takes long to time out, so it is tried only if UDP passes; no rule distinguishes them.
    let passes = by(Transport::Udp);
    assert!(!passes || by(Transport::Tcp), "{} to {at}: UDP passes and TCP does not", client.name());
    passes
}

/// Returns the lines of both packet filters that name this pod.
fn traces(host: &Host, pod: &Pod) -> Vec<String> {
    let mut text = host.run(["nft", "list", "ruleset"]);
    for save in ["iptables-save", "ip6tables-save"] {
        text.push_str(&host.run([save, "-t", "filter"]));
    }
    let id = pod.container_id();
    text.lines().filter(|line| line.contains(&id)).map(str::to_owned).collect()
}

// === accepting traffic ===

#[test]
fn firewall_accepts_pod_traffic_where_the_host_drops() {
    for (tool, lines) in DROPPERS {
        for backend in [json!({ "backend": "nftables" }), json!({ "backend": "iptables" }), json!({})] {
            if tool == "nft" && backend["backend"] == "iptables" {
                // iptables, like the Go plugin, cannot accept what another table drops.
                continue;
            }
            let host = host!(Feature::Bridge, Feature::NftInet, Feature::IptablesNft);
            let outside = world(&host);
            let label = format!("{tool} drops, {backend}");
            drop_forwarded(&host, lines);
            let a = Chain::new(&host, "a", 0);
            let others = Chain::new(&host, "b", 0);
            assert!(
                OUTSIDE.iter().all(|to| !reaches(&a.pod, &outside, to)),
                "{label}: no traffic passes without the plugin"
            );
            let config = a.add(&backend);
            a.plugin.check(&config).success();
            for to in OUTSIDE {
                assert!(reaches(&a.pod, &outside, to), "{label}: to {to}");
                assert!(!reaches(&others.pod, &outside, to), "{label}: another pod reaches {to}");
            }
            for to in a.addresses() {
                assert!(!reaches(&outside, &a.pod, &to), "{label}: unrequested traffic reaches {to}");
            }
            a.plugin.del(&config).success();
            assert!(
                OUTSIDE.iter().all(|to| !reaches(&a.pod, &outside, to)),
                "{label}: no traffic passes after DEL"
            );
        }
    }
}

#[test]
fn firewall_check_finds_a_later_drop_and_add_repairs_it() {
    let host = host!(Feature::Bridge, Feature::NftInet, Feature::IptablesNft);
    let outside = world(&host);
    let a = Chain::new(&host, "a", 0);
    let config = a.add(&json!({ "backend": "nftables" }));
    a.plugin.check(&config).success();
    for (tool, lines) in DROPPERS {
        drop_forwarded(&host, lines);
        assert_refused(tool, &a.plugin.check(&config), 999, &["does not accept the traffic of containers"]);
        assert!(!reaches(&a.pod, &outside, OUTSIDE[0]), "{tool}");
        a.add(&json!({ "backend": "nftables" }));
        a.plugin.check(&config).success();
        assert!(reaches(&a.pod, &outside, OUTSIDE[0]), "{tool}");
    }
    // There is one rule for each chain, in a form that iptables can read, whatever the number of pods.
    let b = Chain::new(&host, "b", 0);
    b.add(&json!({ "backend": "nftables" }));
    let saved = host.run(["iptables-save", "-t", "filter"]);
    let rules: Vec<&str> = saved.lines().filter(|line| line.starts_with("-A ")).collect();
    assert_eq!(
        rules,
        ["-A FORWARD -m mark --mark 0x1000/0x1000 -m comment --comment \"weft firewall\" -j ACCEPT"]
    );
}

#[test]
fn firewall_rules_of_the_administrator_come_first() {
    for (backend, forbid) in [
        (json!({ "backend": "nftables" }), "nft add rule inet weft_firewall admin ip daddr 192.0.2.2 drop"),
        (json!({ "backend": "iptables" }), "iptables -A CNI-ADMIN -d 192.0.2.2 -j DROP"),
        (json!({ "iptablesAdminChainName": "MINE" }), "iptables -A MINE -d 192.0.2.2 -j DROP"),
    ] {
        let host = host!(Feature::Bridge, Feature::NftInet, Feature::IptablesNft);
        let outside = world(&host);
        drop_forwarded(&host, DROPPERS[0].1);
        let a = Chain::new(&host, "a", 0);
        a.add(&backend);
        assert!(reaches(&a.pod, &outside, OUTSIDE[0]), "{backend}");
        host.run(["sh", "-c", forbid]);
        assert!(!reaches(&a.pod, &outside, OUTSIDE[0]), "{backend}");
        assert!(reaches(&a.pod, &outside, OUTSIDE[1]), "{backend}: the other family");
        // Rules that the administrator added stay.
        let b = Chain::new(&host, "b", 0);
        b.add(&backend);
        assert!(!reaches(&b.pod, &outside, OUTSIDE[0]), "{backend}");
    }
}

#[test]
fn firewall_chain_of_the_administrator_selects_iptables() {
    let host = host!(Feature::Bridge, Feature::IptablesNft);
    let outside = world(&host);
    // Written before the first pod starts, for pods that the Go plugin would accept.
    host.run(["iptables", "-N", "CNI-ADMIN"]);
    host.run(["iptables", "-A", "CNI-ADMIN", "-d", "10.1.0.2", "-j", "DROP"]);
    let (a, b) = (Chain::new(&host, "a", 0), Chain::new(&host, "b", 0));
    for pod in [&a, &b] {
        let config = pod.add(&json!({}));
        pod.plugin.check(&config).success();
    }
    assert!(!reaches(&outside, &a.pod, "10.1.0.2"), "the rule of the administrator applies");
    assert!(reaches(&outside, &b.pod, "10.1.0.3"), "to this address alone");
}

#[test]
fn firewall_ignores_marks_of_other_programs() {
    let host = host!(Feature::Bridge, Feature::NftInet);
    let outside = world(&host);
    drop_forwarded(&host, DROPPERS[1].1);
    let (a, b) = (Chain::new(&host, "a", 0), Chain::new(&host, "b", 0));
    a.add(&json!({ "backend": "nftables" }));
    host.run(["nft", "table inet foreign { chain c { type filter hook prerouting priority 0; meta mark set 0xffffffff; }; }"]);
    assert!(reaches(&a.pod, &outside, OUTSIDE[0]));
    assert!(!reaches(&b.pod, &outside, OUTSIDE[0]));
}

#[test]
fn firewall_backend_is_chosen_by_the_host() {
    let host = host!(Feature::Bridge, Feature::NftInet, Feature::IptablesNft);
    rig::install(&host);
    let (a, b) = (Chain::new(&host, "a", 0), Chain::new(&host, "b", 0));
    let made =
        |pod: &Pod| traces(&host, pod).iter().map(|line| line.contains("-A CNI-FORWARD")).collect::<Vec<_>>();
    let config = a.add(&json!({}));
    assert!(
        !made(&a.pod).is_empty() && !made(&a.pod).contains(&true),
        "not by nftables: {:?}",
        traces(&host, &a.pod)
    );
    // Now iptables has the chains of the Go plugin.
    b.add(&json!({ "backend": "iptables" }));
    assert!(!made(&b.pod).contains(&false), "{:?}", traces(&host, &b.pod));
    a.plugin.check(&config).success();
    let c = Chain::new(&host, "c", 0);
    let config = c.add(&json!({}));
    assert!(!made(&c.pod).contains(&false), "{:?}", traces(&host, &c.pod));
    c.plugin.check(&config).success();
}

// === policies ===

/// Defines a test for each backend, policy, and whether the kernel passes bridged packets to iptables.
macro_rules! ingress_policy {
    ($($name:ident: $backend:literal $policy:literal $bridged:literal;)*) => {
        mod ingress_policy {
            $(
                #[test]
                fn $name() {
                    super::assert_ingress_policy($backend, $policy, $bridged);
                }
            )*
        }
    };
}

ingress_policy! {
    nftables_same_bridge: "nftables" "same-bridge" "0";
    nftables_isolated: "nftables" "isolated" "0";
    nftables_isolated_with_bridge_nf_call: "nftables" "isolated" "1";
    nftables_open: "nftables" "open" "0";
    iptables_same_bridge: "iptables" "same-bridge" "0";
    // Without this setting, packets that cross a bridge never reach iptables.
    iptables_isolated_with_bridge_nf_call: "iptables" "isolated" "1";
}

fn assert_ingress_policy(backend: &str, policy: &str, bridged: &str) {
    let host = host!(Feature::Bridge, Feature::NftInet, Feature::NftBridge, Feature::IptablesNft);
    let outside = world(&host);
    let setting = format!("{backend} {policy}, bridge-nf-call {bridged}");
    if bridged == "1" {
        testkit::require!(Feature::BridgeNetfilter);
    }
    for family in ["iptables", "ip6tables"] {
        // A kernel without bridge netfilter behaves as with 0.
        let _ = host.attempt(["sysctl", "-qw", &format!("net.bridge.bridge-nf-call-{family}={bridged}")]);
    }
    let pods = [("a", 0), ("b", 0), ("c", 1), ("d", 2)].map(|(name, number)| Chain::new(&host, name, number));
    let [a, b, c, d] = &pods;
    let keys = json!({ "backend": backend, "ingressPolicy": policy });
    let configs = [a, b, c].map(|chain| chain.add(&keys));
    d.add(&json!({ "backend": backend }));
    for (chain, config) in pods.iter().zip(&configs) {
        chain.plugin.check(config).success();
    }
    let (open, isolated) = (policy == "open", policy == "isolated");
    for family in [0, 1] {
        let goes = |from: &Netns, to: &Chain<'_>| reaches(from, &to.pod, &to.addresses()[family]);
        assert_eq!(goes(&a.pod, b), !isolated, "{setting}: on one bridge");
        assert_eq!(goes(&a.pod, c), open, "{setting}: from one bridge to another");
        assert_eq!(goes(&c.pod, a), open, "{setting}: and back");
        assert!(goes(&d.pod, a), "{setting}: from a bridge without a policy");
        assert!(goes(&outside, a), "{setting}: from the outside");
        assert!(goes(&host, a), "{setting}: from the host");
        assert!(reaches(&a.pod, &outside, OUTSIDE[family]), "{setting}: to the outside");
    }
    a.plugin.del(&configs[0]).success();
    b.plugin.del(&configs[1]).success();
    if backend == "nftables" {
        for chain in [a, b] {
            assert!(traces(&host, &chain.pod).is_empty(), "{setting}: {:?}", traces(&host, &chain.pod));
        }
        // A pod without a policy that starts on the bridge of two isolated pods.
        let e = Chain::new(&host, "e", 0);
        e.add(&json!({ "backend": backend }));
        assert!(
            reaches(&a.pod, &e.pod, &e.addresses()[0]) || bridged == "1",
            "{setting}: its port is not isolated"
        );
    }
}

#[test]
fn firewall_rules_of_a_bridge_are_removed_with_it() {
    let host = host!(Feature::Bridge, Feature::NftInet, Feature::NftBridge);
    rig::install(&host);
    let (a, c) = (Chain::new(&host, "a", 0), Chain::new(&host, "c", 1));
    let keys = json!({ "backend": "nftables", "ingressPolicy": "isolated" });
    let config = a.add(&keys);
    c.add(&keys);
    let rules_of = |name: &str| {
        host.run(["nft", "list", "table", "inet", "weft_firewall"]).matches(&format!("\"{name}\"")).count()
    };
    assert_eq!((rules_of("br0"), rules_of("br1")), (5, 5), "the bridge itself, and both its pairs");
    let valid = [(c.pod.container_id(), "eth0")];
    let valid: Vec<(&str, &str)> = valid.iter().map(|(id, ifname)| (id.as_str(), *ifname)).collect();
    rig::gc(&a.plugin, &config, Some(&valid)).success();
    assert_eq!((rules_of("br0"), rules_of("br1")), (5, 5), "an existing bridge may have other pods");
    host.run(["ip", "link", "delete", "br0"]);
    rig::gc(&a.plugin, &config, Some(&valid)).success();
    assert_eq!((rules_of("br0"), rules_of("br1")), (0, 5));
}

// === tests that every plugin has ===

// Requirements: S31
#[test]
fn firewall_works_without_access_to_the_legacy_table_list() {
    let host = host!(Feature::Bridge, Feature::IptablesLegacy);
    let _ = world(&host);
    let other = Chain::new(&host, "b", 1);
    other.add(&json!({}));
    let before = host.snapshot();
    let mut a = Chain::new(&host, "a", 1);
    a.plugin.through = rig::as_in_an_unprivileged_container();
    let config = a.add(&json!({}));
    let rules = host.run(["nft", "list", "table", "inet", "weft_firewall"]);
    assert!(a.addresses().iter().all(|address| rules.contains(address)), "the native backend: {rules}");
    a.plugin.check(&config).success();
    a.plugin.del(&config).success();
    a.end();
    assert_nothing_left("DEL", &host, &before);
}

#[test]
fn firewall_del_leaves_nothing_whatever_its_input() {
    for backend in BACKENDS {
        let host = host!(Feature::Bridge, Feature::NftInet, Feature::NftBridge, Feature::IptablesNft);
        rig::install(&host);
        let keys = json!({ "backend": backend, "ingressPolicy": "isolated" });
        let (a, b) = (Chain::new(&host, "a", 0), Chain::new(&host, "b", 0));
        b.add(&keys);
        let prime = a.add(&keys);
        let _ = traces(&host, &a.pod);
        a.plugin.del(&prime).success();
        let before = host.snapshot();
        for label in ["all", "twice", "no prevResult", "nothing", "other backend", "no backend", "rubbish"] {
            let config = a.add(&keys);
            assert!(!traces(&host, &a.pod).is_empty());
            let mut plugin = host.attachment("firewall", &a.pod, "eth0");
            let mut last = config.clone();
            let object = last.as_object_mut().unwrap();
            match label {
                "twice" => drop(plugin.del(&config).success()),
                "no prevResult" => drop(object.remove("prevResult")),
                "nothing" => {
                    object.retain(|key, _| ["cniVersion", "name", "type"].contains(&key.as_str()));
                    plugin.netns.clear();
                }
                "other backend" => {
                    object["backend"] = if backend == "iptables" { "nftables" } else { "iptables" }.into();
                }
                "no backend" => drop(object.remove("backend")),
                "rubbish" => object["ingressPolicy"] = json!([7]),
                _ => {}
            }
            assert_eq!(plugin.del(&last).success().stdout, "");
            assert_nothing_left(&format!("{backend}: DEL with {label}"), &host, &before);
        }
    }
}

/// Attack: pods choose names of interfaces so that rules are not found again and accumulate.
#[test]
fn firewall_del_finds_rules_of_any_interface_name() {
    for backend in BACKENDS {
        let host = host!(Feature::Bridge, Feature::NftInet, Feature::NftBridge, Feature::IptablesNft);
        rig::install(&host);
        let keys = json!({ "backend": backend });
        let other = Chain::new(&host, "other", 1);
        let prime = other.add(&keys);
        other.plugin.del(&prime).success();
        for (number, ifname) in (2..).zip(["a\"b", "a'b", "a\\b", "-j", "ä\"\"\\"]) {
            let chain = Chain::with_ifname(&host, &format!("p{number}"), number, ifname);
            let before = host.snapshot();
            let config = chain.add(&keys);
            // A repeated ADD adds no rule.
            chain.add(&keys);
            chain.plugin.check(&config).success();
            let without = json!({ "cniVersion": "1.1.0", "name": config["name"], "type": "firewall", "backend": backend });
            chain.plugin.del(&without).success();
            assert_nothing_left(&format!("{backend}: {ifname:?}"), &host, &before);
        }
    }
}

// Requirements: S16
#[test]
fn firewall_check_finds_each_missing_rule() {
    let losses: [(&str, &[&[&str]]); 2] = [
        (
            "nftables",
            &[
                &["nft", "flush", "set", "inet", "weft_firewall", "pods4"],
                &["nft", "flush", "set", "inet", "weft_firewall", "pods6"],
                &["nft", "flush", "chain", "inet", "weft_firewall", "forward"],
                &["nft", "flush", "chain", "inet", "weft_firewall", "ingress"],
                &["nft", "flush", "set", "inet", "weft_firewall", "closed"],
                &["nft", "flush", "set", "bridge", "weft_firewall", "ports"],
                &["nft", "flush", "chain", "bridge", "weft_firewall", "forward"],
                &["iptables", "-F", "FORWARD"],
            ],
        ),
        (
            "iptables",
            &[
                &["iptables", "-F", "CNI-FORWARD"],
                &["ip6tables", "-F", "FORWARD"],
                &["iptables", "-F", "CNI-ISOLATION-STAGE-1"],
                &["ip6tables", "-F", "CNI-ISOLATION-STAGE-2"],
                &["iptables", "-F"],
            ],
        ),
    ];
    for (backend, losses) in losses {
        let host = host!(Feature::Bridge, Feature::NftInet, Feature::NftBridge, Feature::IptablesNft);
        rig::install(&host);
        drop_forwarded(&host, DROPPERS[0].1);
        let a = Chain::new(&host, "a", 0);
        let keys = json!({ "backend": backend, "ingressPolicy": "isolated" });
        for loss in losses {
            let config = a.add(&keys);
            a.plugin.check(&config).success();
            host.run(*loss);
            assert_refused(&loss.join(" "), &a.plugin.check(&config), 999, &[]);
            // A repeated ADD repairs it.
            a.add(&keys);
            a.plugin.check(&config).success();
        }
    }
}

// Requirements: S32
#[test]
fn firewall_check_accepts_policies_behind_a_point_to_point_link() {
    for backend in ["nftables", "iptables"] {
        let host = host!(Feature::Bridge, Feature::IptablesNft);
        rig::install(&host);
        for policy in ["same-bridge", "isolated"] {
            let pod = host.pod(policy);
            let ptp = json!({
                "cniVersion": "1.1.0", "name": "net", "type": "ptp",
                "ipam": { "type": "host-local", "ranges": [[{ "subnet": "10.1.0.0/24" }]] },
            });
            let result = host.attachment("ptp", &pod, "eth0").add(&ptp).success().json();
            let config = json!({
                "cniVersion": "1.1.0", "name": "net", "type": "firewall", "backend": backend,
                "ingressPolicy": policy, "prevResult": result,
            });
            let firewall = host.attachment("firewall", &pod, "eth0");
            firewall.add(&config).success();
            firewall.check(&config).success();
            firewall.del(&config).success();
        }
    }
}

#[test]
fn firewall_gc_removes_invalid_attachments_only() {
    for backend in BACKENDS {
        let host = host!(Feature::Bridge, Feature::NftInet, Feature::NftBridge, Feature::IptablesNft);
        rig::install(&host);
        let keys = json!({ "backend": backend, "ingressPolicy": "isolated" });
        let chains = [("a", 0), ("b", 0), ("c", 1)].map(|(name, number)| Chain::new(&host, name, number));
        let [a, b, c] = &chains;
        let config = a.add(&keys);
        b.add(&keys);
        c.add(&keys);
        let count = || [a, b, c].map(|chain| traces(&host, &chain.pod).len());
        let full = count();
        assert!(full.iter().all(|count| *count > 0), "{full:?}");
        rig::gc(&a.plugin, &config, None).success();
        assert_eq!(count(), full, "{backend}: without a list, nothing is removed");
        rig::gc(&a.plugin, &config, Some(&[(&b.pod.container_id(), "eth0")])).success();
        assert_eq!(count(), [0, full[1], full[2]], "{backend}");
        rig::gc(&a.plugin, &config, Some(&[])).success();
        assert_eq!(count(), [0, 0, full[2]], "{backend}: an empty list means that no attachment is valid");
    }
}

// Requirements: S33
#[test]
fn firewall_status_reports_whether_an_add_can_succeed() {
    let host = host!(Feature::NftInet, Feature::IptablesNft);
    rig::install(&host);
    let pod = host.pod("a");
    let plugin = host.attachment("firewall", &pod, "eth0");
    let config = json!({ "cniVersion": "1.1.0", "name": "net", "type": "firewall" });
    let status = |keys: &Value| plugin.call("STATUS", with(&config, keys).to_string());
    for keys in [json!({}), json!({ "backend": "nftables" }), json!({ "backend": "iptables" })] {
        assert_eq!(status(&keys).success().stdout, "", "{keys}");
    }
    assert_refused("unknown backend", &status(&json!({ "backend": "pf" })), 7, &["backend", "pf"]);
    // The system bus of the test's machine is not used.
    let elsewhere = "exec env DBUS_SYSTEM_BUS_ADDRESS=unix:path=/run/nowhere /opt/cni/bin/firewall";
    let mut without = host.attachment("firewall", &pod, "eth0");
    without.through = vec!["sh".to_owned(), "-c".to_owned(), elsewhere.to_owned()];
    let refused = without.call("STATUS", with(&config, &json!({ "backend": "firewalld" })).to_string());
    assert_refused("no bus", &refused, 50, &["firewalld", "/run/nowhere"]);
}

// Requirements: G8
#[test]
fn firewall_bad_options_are_refused_and_change_nothing() {
    let host = host!(Feature::Bridge, Feature::NftInet, Feature::IptablesNft);
    rig::install(&host);
    let a = Chain::new(&host, "a", 0);
    let before = host.snapshot();
    for (keys, code, words) in [
        (json!({ "backend": "pf" }), 7, &["backend", "\"pf\""][..]),
        (json!({ "backend": 1 }), 7, &["backend", "1"]),
        (json!({ "ingressPolicy": "closed" }), 7, &["ingressPolicy", "closed"]),
        (json!({ "ingressPolicy": true }), 7, &["ingressPolicy", "true"]),
        (json!({ "iptablesAdminChainName": "A\nCOMMIT" }), 7, &["iptablesAdminChainName", "COMMIT"]),
        (json!({ "iptablesAdminChainName": "-j" }), 7, &["iptablesAdminChainName", "-j"]),
        (json!({ "iptablesAdminChainName": "A".repeat(29) }), 7, &["iptablesAdminChainName"]),
        (
            json!({ "iptablesAdminChainName": "A", "backend": "nftables" }),
            7,
            &["iptablesAdminChainName", "admin"],
        ),
        (json!({ "firewalldZone": "a b" }), 7, &["firewalldZone", "a b"]),
        (json!({ "prevResult": null }), 7, &["prevResult"]),
        (
            json!({ "ingressPolicy": "isolated", "prevResult": { "cniVersion": "1.1.0", "ips": [{ "address": "10.1.0.9/24" }] } }),
            7,
            &["ingressPolicy", "isolated", "bridge"],
        ),
    ] {
        let refused = a.plugin.add(&with(&a.firewall, &keys));
        assert_refused(&keys.to_string(), &refused, code, words);
        assert_nothing_left(&keys.to_string(), &host, &before);
    }
}

// Requirements: G8
#[test]
fn firewall_late_add_failure_leaves_nothing_of_the_pod() {
    let host = host!(Feature::Bridge, Feature::NftInet, Feature::IptablesNft);
    rig::install(&host);
    let a = Chain::new(&host, "a", 0);
    // The program of the second family is missing: the first family's commit is undone.
    let script = "mkdir -p /run/half; for p in iptables-save iptables-restore; do ln -sf $(command -v $p) /run/half/; done; exec env PATH=/run/half /opt/cni/bin/firewall";
    let mut half = host.attachment("firewall", &a.pod, "eth0");
    half.through = vec!["sh".to_owned(), "-c".to_owned(), script.to_owned()];
    assert_refused(
        "no ip6tables",
        &half.add(&with(&a.firewall, &json!({ "backend": "iptables" }))),
        5,
        &["ip6tables-save"],
    );
    assert!(traces(&host, &a.pod).is_empty(), "{:?}", traces(&host, &a.pod));
    // A table of the same name has a set of another type: the policy cannot be applied.
    host.run(["nft", "add", "table", "bridge", "weft_firewall"]);
    host.run(["nft", "add", "set", "bridge", "weft_firewall", "ports", "{ type inet_service; }"]);
    let keys = json!({ "backend": "nftables", "ingressPolicy": "isolated" });
    assert!(a.plugin.add(&with(&a.firewall, &keys)).code != Some(0));
    assert!(traces(&host, &a.pod).is_empty(), "{:?}", traces(&host, &a.pod));
}

#[test]
fn firewall_works_with_legacy_iptables() {
    let host = host!(Feature::Bridge, Feature::IptablesLegacy);
    let outside = world(&host);
    for program in ["iptables-legacy", "ip6tables-legacy"] {
        host.run([program, "-P", "FORWARD", "DROP"]);
    }
    let mut a = Chain::new(&host, "a", 0);
    a.plugin.through = rig::with_legacy_iptables(&host);
    assert!(!reaches(&a.pod, &outside, OUTSIDE[0]));
    let config = a.add(&json!({ "backend": "iptables" }));
    a.plugin.check(&config).success();
    assert!(reaches(&a.pod, &outside, OUTSIDE[0]) && reaches(&a.pod, &outside, OUTSIDE[1]));
    a.plugin.del(&config).success();
    assert!(!reaches(&a.pod, &outside, OUTSIDE[0]) && !reaches(&a.pod, &outside, OUTSIDE[1]));
    let saved = host.run(["iptables-legacy-save"]) + &host.run(["ip6tables-legacy-save"]);
    assert!(!saved.contains(&a.pod.container_id()), "{saved}");
}

#[test]
fn firewall_address_belongs_to_its_last_owner_after_a_late_del() {
    for backend in BACKENDS {
        let host = host!(Feature::Bridge, Feature::NftInet, Feature::IptablesNft);
        let outside = world(&host);
        drop_forwarded(&host, DROPPERS[0].1);
        let a = Chain::new(&host, "a", 0);
        let keys = json!({ "backend": backend });
        let mut gone = host.attachment("firewall", &a.pod, "eth0");
        gone.container_id = "gone".to_owned();
        let late = with(&a.firewall, &keys);
        gone.add(&late).success();
        let config = a.add(&keys);
        gone.del(&late).success();
        a.plugin.check(&config).success();
        assert!(reaches(&a.pod, &outside, OUTSIDE[0]), "{backend}");
        a.plugin.del(&config).success();
        assert!(!reaches(&a.pod, &outside, OUTSIDE[0]), "{backend}");
    }
}

#[test]
fn firewall_rules_do_not_grow_with_a_thousand_pods() {
    let host = host!(Feature::Bridge, Feature::NftInet, Feature::IptablesNft);
    rig::install(&host);
    drop_forwarded(&host, DROPPERS[0].1);
    let a = Chain::new(&host, "a", 0);
    let rules = || host.json(["nft", "-j", "list", "ruleset"]).to_string().matches("{\"rule\":").count();
    let mut plugin = host.attachment("firewall", &a.pod, "eth0");
    let mut first = None;
    for number in 0..1000_u16 {
        plugin.container_id = format!("c{number}");
        let mut config = with(&a.firewall, &json!({ "backend": "nftables" }));
        config["prevResult"]["ips"] =
            json!([{ "address": format!("10.1.{}.{}/16", number / 250, number % 250 + 2) }]);
        plugin.add(&config).success();
        first.get_or_insert_with(rules);
    }
    assert_eq!(first, Some(rules()), "rules do not grow with pods");
    let tagged = || {
        let listed = host.json(["nft", "-j", "list", "set", "inet", "weft_firewall", "pods4"]);
        listed.to_string().matches("weft/firewall/net0/").count()
    };
    assert_eq!(tagged(), 1000);
    plugin.del(&a.firewall).success();
    assert_eq!(tagged(), 999, "DEL removes its own entry");
}

#[test]
fn firewall_ruleset_can_be_read_back_by_nft() {
    let host = host!(Feature::Bridge, Feature::NftInet, Feature::NftBridge);
    rig::install(&host);
    drop_forwarded(&host, DROPPERS[1].1);
    let a = Chain::new(&host, "a", 0);
    a.add(&json!({ "backend": "nftables", "ingressPolicy": "isolated" }));
    let written = host.run(["nft", "list", "ruleset"]);
    host.command("nft").args(["-f", "-"]).stdin(format!("flush ruleset\n{written}")).finish().success();
    assert_eq!(host.run(["nft", "list", "ruleset"]), written);
    a.end();
}
