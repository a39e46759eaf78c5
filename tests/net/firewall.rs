//! `firewall`: whose traffic a host lets through that drops what it forwards, and whom policies keep out.
//!
//! ```text
//!   outside 192.0.2.2, fd00:2::2 ── up0 ── host ── br0 10.1.0.1, fd01::1 ── a, b
//!                                              ├── br1 10.2.0.1, fd02::1 ── c
//!                                              └── br2 10.3.0.1, fd03::1 ── d
//! ```
//!
//! The outside knows the way to the pods.
//!
//! Source: plugins `plugins/meta/firewall`; nerdctl#1872 for what DEL must not need.

use std::time::Duration;

use rig::traffic::{OUTSIDE, Transport, outside, reached};
use rig::{assert_nothing_left, assert_refused, with};
use serde_json::{Value, json};
use testkit::{Attachment, Feature, Host, Netns, Pod, host};

const BACKENDS: [&str; 2] = ["nftables", "iptables"];

/// How a host comes to drop what it forwards: by which tool, and the lines that do it.
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

/// A pod behind bridge number `number`, and what a chain of `bridge` and `firewall` is called with.
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
    /// A new pod, not let through yet.
    fn new(host: &'a Host, name: &str, number: u8) -> Chain<'a> {
        Chain::called(host, name, number, "eth0")
    }

    /// The same of an interface of this name.
    fn called(host: &'a Host, name: &str, number: u8, ifname: &str) -> Chain<'a> {
        let pod = host.pod(name);
        let bridge = bridge(number);
        let first = host.attachment("bridge", &pod, ifname);
        let result = first.add(&bridge).success().json();
        // Without its own link-local address, whose duplicate the kernel looks for, the host asks for no neighbour.
        while !host.run(["ip", "-6", "address", "show", "tentative"]).is_empty() {
            std::thread::sleep(Duration::from_millis(20));
        }
        let firewall = json!({ "cniVersion": "1.1.0", "name": bridge["name"], "type": "firewall", "prevResult": result });
        let plugin = host.attachment("firewall", &pod, ifname);
        Chain { pod, firewall, plugin, first, bridge }
    }

    /// ADD; the configuration for what follows.
    #[track_caller]
    fn add(&self, keys: &Value) -> Value {
        let config = with(&self.firewall, keys);
        assert_eq!(self.plugin.add(&config).success().json(), self.firewall["prevResult"]);
        config
    }

    /// Its addresses, without the length of the subnet.
    fn addresses(&self) -> Vec<String> {
        let all = rig::addresses(&self.firewall["prevResult"]);
        all.iter().map(|address| address.split('/').next().unwrap().to_owned()).collect()
    }

    fn end(self) {
        self.first.del(&with(&self.bridge, &json!({ "prevResult": self.firewall["prevResult"] }))).success();
        self.pod.remove();
    }
}

/// A host with an outside that knows the way to the pods.
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

/// Does `client` get to a server in `server` at this address, and its answer back? By UDP: who is kept out knows soon.
fn gets_to(client: &Netns, server: &Netns, address: &str) -> bool {
    let at = if address.contains(':') { format!("[{address}]:80") } else { format!("{address}:80") };
    let by = |transport: Transport| reached(transport, client, &at, server, &at).is_some();
    // What does not pass takes its time to be sure of: no rule knows one from the other.
    let passes = by(Transport::Udp);
    assert!(!passes || by(Transport::Tcp), "{} to {at}: UDP, and not TCP", client.name());
    passes
}

/// Everything of either packet filter that has to do with this pod.
fn traces(host: &Host, pod: &Pod) -> Vec<String> {
    let mut text = host.run(["nft", "list", "ruleset"]);
    for save in ["iptables-save", "ip6tables-save"] {
        text.push_str(&host.run([save, "-t", "filter"]));
    }
    let id = pod.container_id();
    text.lines().filter(|line| line.contains(&id)).map(str::to_owned).collect()
}

// === letting through ===

#[test]
fn what_a_pod_sends_and_is_answered_passes_where_the_host_drops() {
    for (tool, lines) in DROPPERS {
        for backend in [json!({ "backend": "nftables" }), json!({ "backend": "iptables" }), json!({})] {
            if tool == "nft" && backend["backend"] == "iptables" {
                // The reference plugin's way: what another table drops stays dropped.
                continue;
            }
            let host = host!(Feature::Bridge, Feature::NftInet, Feature::IptablesNft);
            let outside = world(&host);
            let what = format!("{tool} drops, {backend}");
            drop_forwarded(&host, lines);
            let a = Chain::new(&host, "a", 0);
            let others = Chain::new(&host, "b", 0);
            assert!(OUTSIDE.iter().all(|to| !gets_to(&a.pod, &outside, to)), "{what}: not without us");
            let config = a.add(&backend);
            a.plugin.check(&config).success();
            for to in OUTSIDE {
                assert!(gets_to(&a.pod, &outside, to), "{what}: to {to}");
                assert!(!gets_to(&others.pod, &outside, to), "{what}: somebody else to {to}");
            }
            for to in a.addresses() {
                assert!(!gets_to(&outside, &a.pod, &to), "{what}: nobody asked for what comes in to {to}");
            }
            a.plugin.del(&config).success();
            assert!(OUTSIDE.iter().all(|to| !gets_to(&a.pod, &outside, to)), "{what}: not after DEL");
        }
    }
}

#[test]
fn a_host_that_drops_later_is_mended_by_the_next_add_and_found_by_check() {
    let host = host!(Feature::Bridge, Feature::NftInet, Feature::IptablesNft);
    let outside = world(&host);
    let a = Chain::new(&host, "a", 0);
    let config = a.add(&json!({ "backend": "nftables" }));
    a.plugin.check(&config).success();
    for (tool, lines) in DROPPERS {
        drop_forwarded(&host, lines);
        assert_refused(tool, &a.plugin.check(&config), 999, &["does not let containers through"]);
        assert!(!gets_to(&a.pod, &outside, OUTSIDE[0]), "{tool}");
        a.add(&json!({ "backend": "nftables" }));
        a.plugin.check(&config).success();
        assert!(gets_to(&a.pod, &outside, OUTSIDE[0]), "{tool}");
    }
    // One rule for each chain, in a form that iptables itself reads, whatever the number of pods.
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
fn whoever_runs_the_host_comes_first() {
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
        assert!(gets_to(&a.pod, &outside, OUTSIDE[0]), "{backend}");
        host.run(["sh", "-c", forbid]);
        assert!(!gets_to(&a.pod, &outside, OUTSIDE[0]), "{backend}");
        assert!(gets_to(&a.pod, &outside, OUTSIDE[1]), "{backend}: the other family");
        // What is written there stays.
        let b = Chain::new(&host, "b", 0);
        b.add(&backend);
        assert!(!gets_to(&b.pod, &outside, OUTSIDE[0]), "{backend}");
    }
}

#[test]
fn a_mark_of_somebody_else_lets_nobody_through() {
    let host = host!(Feature::Bridge, Feature::NftInet);
    let outside = world(&host);
    drop_forwarded(&host, DROPPERS[1].1);
    let (a, b) = (Chain::new(&host, "a", 0), Chain::new(&host, "b", 0));
    a.add(&json!({ "backend": "nftables" }));
    host.run(["nft", "table inet theirs { chain c { type filter hook prerouting priority 0; meta mark set 0xffffffff; }; }"]);
    assert!(gets_to(&a.pod, &outside, OUTSIDE[0]));
    assert!(!gets_to(&b.pod, &outside, OUTSIDE[0]));
}

#[test]
fn the_backend_is_what_the_host_has() {
    let host = host!(Feature::Bridge, Feature::NftInet, Feature::IptablesNft);
    rig::install(&host);
    let (a, b) = (Chain::new(&host, "a", 0), Chain::new(&host, "b", 0));
    let made =
        |pod: &Pod| traces(&host, pod).iter().map(|line| line.contains("-A CNI-FORWARD")).collect::<Vec<_>>();
    let config = a.add(&json!({}));
    assert!(
        !made(&a.pod).is_empty() && !made(&a.pod).contains(&true),
        "natively: {:?}",
        traces(&host, &a.pod)
    );
    // From now on iptables has the reference plugin's chains.
    b.add(&json!({ "backend": "iptables" }));
    assert!(!made(&b.pod).contains(&false), "{:?}", traces(&host, &b.pod));
    a.plugin.check(&config).success();
    let c = Chain::new(&host, "c", 0);
    let config = c.add(&json!({}));
    assert!(!made(&c.pod).contains(&false), "{:?}", traces(&host, &c.pod));
    c.plugin.check(&config).success();
}

// === policies ===

/// One test for each backend, policy, and whether the kernel shows bridged packets to iptables.
macro_rules! policies_keep_out_whom_they_say {
    ($($name:ident: $backend:literal $policy:literal $bridged:literal;)*) => {
        mod policies_keep_out_whom_they_say {
            $(
                #[test]
                fn $name() {
                    super::policy_keeps_out_whom_it_says($backend, $policy, $bridged);
                }
            )*
        }
    };
}

policies_keep_out_whom_they_say! {
    nftables_same_bridge: "nftables" "same-bridge" "0";
    nftables_isolated: "nftables" "isolated" "0";
    nftables_isolated_with_bridge_nf_call: "nftables" "isolated" "1";
    nftables_open: "nftables" "open" "0";
    iptables_same_bridge: "iptables" "same-bridge" "0";
    // Without that, what crosses a bridge never comes to iptables.
    iptables_isolated_with_bridge_nf_call: "iptables" "isolated" "1";
}

fn policy_keeps_out_whom_it_says(backend: &str, policy: &str, bridged: &str) {
    let host = host!(Feature::Bridge, Feature::NftInet, Feature::NftBridge, Feature::IptablesNft);
    let outside = world(&host);
    let setting = format!("{backend} {policy}, bridge-nf-call {bridged}");
    if bridged == "1" {
        testkit::require!(Feature::BridgeNetfilter);
    }
    for family in ["iptables", "ip6tables"] {
        // A kernel that does not have it does as with 0.
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
        let goes = |from: &Netns, to: &Chain<'_>| gets_to(from, &to.pod, &to.addresses()[family]);
        assert_eq!(goes(&a.pod, b), !isolated, "{setting}: on one bridge");
        assert_eq!(goes(&a.pod, c), open, "{setting}: from one bridge to another");
        assert_eq!(goes(&c.pod, a), open, "{setting}: and back");
        assert!(goes(&d.pod, a), "{setting}: from a bridge without a policy");
        assert!(goes(&outside, a), "{setting}: from outside");
        assert!(goes(&host, a), "{setting}: from the host");
        assert!(gets_to(&a.pod, &outside, OUTSIDE[family]), "{setting}: to the outside");
    }
    a.plugin.del(&configs[0]).success();
    b.plugin.del(&configs[1]).success();
    if backend == "nftables" {
        for chain in [a, b] {
            assert!(traces(&host, &chain.pod).is_empty(), "{setting}: {:?}", traces(&host, &chain.pod));
        }
        // A pod that comes without a policy onto the bridge on which two were isolated.
        let e = Chain::new(&host, "e", 0);
        e.add(&json!({ "backend": backend }));
        assert!(gets_to(&a.pod, &e.pod, &e.addresses()[0]) || bridged == "1", "{setting}: its port is open");
    }
}

#[test]
fn what_is_about_a_bridge_goes_with_it() {
    let host = host!(Feature::Bridge, Feature::NftInet, Feature::NftBridge);
    rig::install(&host);
    let (a, c) = (Chain::new(&host, "a", 0), Chain::new(&host, "c", 1));
    let keys = json!({ "backend": "nftables", "ingressPolicy": "isolated" });
    let config = a.add(&keys);
    c.add(&keys);
    let about = |name: &str| {
        host.run(["nft", "list", "table", "inet", "weft_firewall"]).matches(&format!("\"{name}\"")).count()
    };
    assert_eq!((about("br0"), about("br1")), (5, 5), "itself, and both its pairs");
    let valid = [(c.pod.container_id(), "eth0")];
    let valid: Vec<(&str, &str)> = valid.iter().map(|(id, ifname)| (id.as_str(), *ifname)).collect();
    rig::gc(&a.plugin, &config, Some(&valid)).success();
    assert_eq!((about("br0"), about("br1")), (5, 5), "a bridge that is there may have others behind it");
    host.run(["ip", "link", "delete", "br0"]);
    rig::gc(&a.plugin, &config, Some(&valid)).success();
    assert_eq!((about("br0"), about("br1")), (0, 5));
}

// === the fixed set ===

#[test]
fn s31_a_del_leaves_nothing_whatever_it_still_knows() {
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
        for what in ["all", "twice", "no prevResult", "nothing", "other backend", "no backend", "rubbish"] {
            let config = a.add(&keys);
            assert!(!traces(&host, &a.pod).is_empty());
            let mut plugin = host.attachment("firewall", &a.pod, "eth0");
            let mut last = config.clone();
            let object = last.as_object_mut().unwrap();
            match what {
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
            assert_nothing_left(&format!("{backend}: DEL with {what}"), &host, &before);
        }
    }
}

/// The attack: names of interfaces, which pods choose, by which rules are not found again and pile up.
#[test]
fn a_del_finds_the_rules_of_interfaces_whatever_they_are_called() {
    for backend in BACKENDS {
        let host = host!(Feature::Bridge, Feature::NftInet, Feature::NftBridge, Feature::IptablesNft);
        rig::install(&host);
        let keys = json!({ "backend": backend });
        let other = Chain::new(&host, "other", 1);
        let prime = other.add(&keys);
        other.plugin.del(&prime).success();
        for (number, ifname) in (2..).zip(["a\"b", "a'b", "a\\b", "-j", "ä\"\"\\"]) {
            let chain = Chain::called(&host, &format!("p{number}"), number, ifname);
            let before = host.snapshot();
            let config = chain.add(&keys);
            // Once more is the same rules.
            chain.add(&keys);
            chain.plugin.check(&config).success();
            let without = json!({ "cniVersion": "1.1.0", "name": config["name"], "type": "firewall", "backend": backend });
            chain.plugin.del(&without).success();
            assert_nothing_left(&format!("{backend}: {ifname:?}"), &host, &before);
        }
    }
}

#[test]
fn s16_check_finds_each_thing_that_is_missing() {
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
            // A repeated ADD mends it.
            a.add(&keys);
            a.plugin.check(&config).success();
        }
    }
}

#[test]
fn s32_gc_drops_what_is_not_valid_and_nothing_else() {
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
        assert_eq!(count(), full, "{backend}: no list, nothing dropped");
        rig::gc(&a.plugin, &config, Some(&[(&b.pod.container_id(), "eth0")])).success();
        assert_eq!(count(), [0, full[1], full[2]], "{backend}");
        rig::gc(&a.plugin, &config, Some(&[])).success();
        assert_eq!(count(), [0, 0, full[2]], "{backend}: empty means nothing is valid");
    }
}

#[test]
fn s33_status_tells_whether_an_add_could_be_served() {
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
    // The host's own bus is not this one's.
    let elsewhere = "exec env DBUS_SYSTEM_BUS_ADDRESS=unix:path=/run/nowhere /opt/cni/bin/firewall";
    let mut without = host.attachment("firewall", &pod, "eth0");
    without.through = vec!["sh".to_owned(), "-c".to_owned(), elsewhere.to_owned()];
    let refused = without.call("STATUS", with(&config, &json!({ "backend": "firewalld" })).to_string());
    assert_refused("no bus", &refused, 50, &["firewalld", "/run/nowhere"]);
}

#[test]
fn g8_what_is_wrong_is_refused_by_key_and_value_and_changes_nothing() {
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

#[test]
fn g8_an_add_that_fails_late_leaves_nothing_of_the_container() {
    let host = host!(Feature::Bridge, Feature::NftInet, Feature::IptablesNft);
    rig::install(&host);
    let a = Chain::new(&host, "a", 0);
    // The second family's program is not there: the first one's commit is taken back.
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
    // Somebody's table of our name whose set is of another type: the policy cannot be made.
    host.run(["nft", "add", "table", "bridge", "weft_firewall"]);
    host.run(["nft", "add", "set", "bridge", "weft_firewall", "ports", "{ type inet_service; }"]);
    let keys = json!({ "backend": "nftables", "ingressPolicy": "isolated" });
    assert!(a.plugin.add(&with(&a.firewall, &keys)).code != Some(0));
    assert!(traces(&host, &a.pod).is_empty(), "{:?}", traces(&host, &a.pod));
}

#[test]
fn legacy_iptables_serves_as_the_newer_one_does() {
    let host = host!(Feature::Bridge, Feature::IptablesLegacy);
    let outside = world(&host);
    for program in ["iptables-legacy", "ip6tables-legacy"] {
        host.run([program, "-P", "FORWARD", "DROP"]);
    }
    let mut a = Chain::new(&host, "a", 0);
    a.plugin.through = rig::with_legacy_iptables(&host);
    assert!(!gets_to(&a.pod, &outside, OUTSIDE[0]));
    let config = a.add(&json!({ "backend": "iptables" }));
    a.plugin.check(&config).success();
    assert!(gets_to(&a.pod, &outside, OUTSIDE[0]) && gets_to(&a.pod, &outside, OUTSIDE[1]));
    a.plugin.del(&config).success();
    assert!(!gets_to(&a.pod, &outside, OUTSIDE[0]) && !gets_to(&a.pod, &outside, OUTSIDE[1]));
    let saved = host.run(["iptables-legacy-save"]) + &host.run(["ip6tables-legacy-save"]);
    assert!(!saved.contains(&a.pod.container_id()), "{saved}");
}

#[test]
fn an_address_is_its_last_owners_and_a_late_del_leaves_it() {
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
        assert!(gets_to(&a.pod, &outside, OUTSIDE[0]), "{backend}");
        a.plugin.del(&config).success();
        assert!(!gets_to(&a.pod, &outside, OUTSIDE[0]), "{backend}");
    }
}

#[test]
fn a_thousand_pods_are_entries_and_not_rules() {
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
    let marked = || {
        let listed = host.json(["nft", "-j", "list", "set", "inet", "weft_firewall", "pods4"]);
        listed.to_string().matches("weft/firewall/net0/").count()
    };
    assert_eq!(marked(), 1000);
    plugin.del(&a.firewall).success();
    assert_eq!(marked(), 999, "DEL takes its own");
}

#[test]
fn what_we_write_nft_reads_back() {
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
