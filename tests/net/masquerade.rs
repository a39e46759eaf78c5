//! Tests for `ipMasq` in `bridge` and `ptp`: DEL removes all rules, whatever the input is.
//!
//! ```text
//!   outside 192.0.2.2 ── up0 ── 192.0.2.1 host ── a, b: pods
//! ```
//!
//! Source: plugins `pkg/ip/ipmasq_{iptables,nftables}_linux.go` (G5); nerdctl#1872 for the input of DEL.

use rig::traffic::{OUTSIDE, UPLINK, outside, source_seen};
use rig::{assert_nothing_left, assert_refused, with};
use serde_json::{Value, json};
use testkit::{Feature, Host, Pod, host};

const BACKENDS: [&str; 2] = ["nftables", "iptables"];

fn config(plugin: &str, backend: &str) -> Value {
    json!({
        "cniVersion": "1.1.0", "name": "net", "type": plugin, "bridge": "br0", "isGateway": true,
        "ipMasq": true, "ipMasqBackend": backend,
        "ipam": {
            "type": "host-local", "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }],
            "ranges": [[{ "subnet": "10.1.0.0/24" }], [{ "subnet": "fd01::/64" }]],
        },
    })
}

/// Returns the rules of both tools and families that name the pod.
fn rules(host: &Host, pod: &Pod) -> Vec<String> {
    let mut text = host.run(["nft", "list", "ruleset"]);
    text.push_str(&host.run(["iptables-save", "-t", "nat"]));
    text.push_str(&host.run(["ip6tables-save", "-t", "nat"]));
    let id = pod.container_id();
    text.lines().filter(|line| line.contains(&id) || line.contains("CNI-")).map(str::to_owned).collect()
}

// Requirements: G5
#[test]
fn ip_masq_del_works_without_access_to_the_legacy_table_list() {
    for (plugin, backend) in ["bridge", "ptp"].iter().flat_map(|p| BACKENDS.map(|b| (*p, b))) {
        let host =
            host!(Feature::Bridge, Feature::NftMasquerade, Feature::IptablesNft, Feature::IptablesLegacy);
        rig::install(&host);
        // The IPAM plugin keeps no file.
        let addresses = json!([{ "address": "10.1.0.2/24", "gateway": "10.1.0.1" }]);
        let keys = json!({ "ipam": { "type": "static", "addresses": addresses } });
        let config = with(&config(plugin, backend), &keys);
        let pod = host.pod("a");
        let mut eth0 = host.attachment(plugin, &pod, "eth0");
        eth0.add(&config).success();
        assert!(!rules(&host, &pod).is_empty(), "{plugin} {backend}");
        eth0.through = rig::as_in_an_unprivileged_container();
        eth0.del(&config).success();
        assert_eq!(rules(&host, &pod), [""; 0], "{plugin} {backend}");
        assert!(rig::links(&pod).is_empty(), "{plugin} {backend}");
    }
}

#[test]
fn ip_masq_del_leaves_no_rule_whatever_its_input() {
    for (plugin, backend) in ["bridge", "ptp"].iter().flat_map(|p| BACKENDS.map(|b| (*p, b))) {
        let host = host!(Feature::Bridge, Feature::NftMasquerade, Feature::IptablesNft);
        rig::install(&host);
        let config = config(plugin, backend);
        let other = host.pod("other");
        host.attachment(plugin, &other, "eth0").add(&config).success();
        // iptables-save creates the tables, so they must exist before the snapshot.
        let other_rules = rules(&host, &other).len();
        assert!(other_rules > 0, "{plugin} {backend}: {:?}", rules(&host, &other));
        let before = host.snapshot();
        for label in ["all", "no prevResult", "no namespace", "nothing", "namespace gone", "link gone"] {
            let label = format!("{plugin} {backend}: DEL with {label}");
            let pod = host.pod("a");
            let mut eth0 = host.attachment(plugin, &pod, "eth0");
            let result = eth0.add(&config).success().json();
            let own = rules(&host, &pod).len();
            assert!(own > 0, "{label}: rules while it is attached");
            let known = with(&config, &json!({ "prevResult": result }));
            let mut pod = Some(pod);
            let stdin = match label.rsplit("with ").next().unwrap() {
                "all" => &known,
                "no prevResult" => &config,
                "no namespace" => {
                    eth0.netns.clear();
                    &known
                }
                "nothing" => {
                    eth0.netns.clear();
                    &config
                }
                "namespace gone" => {
                    pod.take().unwrap().remove();
                    &known
                }
                _ => {
                    pod.as_ref().unwrap().run(["ip", "link", "delete", "eth0"]);
                    &config
                }
            };
            eth0.del(stdin).success();
            if let Some(pod) = pod {
                pod.remove();
            }
            assert_nothing_left(&label, &host, &before);
            assert_eq!(rules(&host, &other).len(), other_rules, "{label}: the rules of the other pod stay");
        }
    }
}

// Requirements: G5
#[test]
fn ip_masq_del_finds_rules_after_the_backend_changed() {
    let host = host!(Feature::Bridge, Feature::NftMasquerade, Feature::IptablesNft);
    rig::install(&host);
    for (made, unmade) in [("nftables", "iptables"), ("iptables", "nftables")] {
        let pod = host.pod("a");
        let eth0 = host.attachment("bridge", &pod, "eth0");
        let result = eth0.add(&config("bridge", made)).success().json();
        eth0.del(&with(&config("bridge", unmade), &json!({ "prevResult": result }))).success();
        assert!(rules(&host, &pod).is_empty(), "{made}, then {unmade}: {:?}", rules(&host, &pod));
        pod.remove();
    }
}

#[test]
fn ip_masq_del_removes_rules_after_options_are_switched_off() {
    for (plugin, backend) in ["bridge", "ptp"].iter().flat_map(|p| BACKENDS.map(|b| (*p, b))) {
        let host = host!(Feature::Bridge, Feature::NftMasquerade, Feature::NftBridge, Feature::IptablesNft);
        rig::install(&host);
        let pod = host.pod("a");
        let eth0 = host.attachment(plugin, &pod, "eth0");
        let made = with(&config(plugin, backend), &json!({ "macspoofchk": plugin == "bridge" }));
        let result = eth0.add(&made).success().json();
        assert!(!rules(&host, &pod).is_empty());
        let off = json!({ "ipMasq": false, "macspoofchk": false, "prevResult": result });
        eth0.del(&with(&made, &off)).success();
        assert!(rules(&host, &pod).is_empty(), "{plugin} {backend}: {:?}", rules(&host, &pod));
    }
}

// Requirements: G5
#[test]
fn ip_masq_iptables_needs_only_the_program_of_its_family() {
    let host = host!(Feature::Bridge, Feature::IptablesNft);
    rig::install(&host);
    let pod = host.pod("a");
    host.run(["mkdir", "/run/programs"]);
    for program in ["iptables-save", "iptables-restore"] {
        host.run(["sh", "-c", &format!("ln -s $(command -v {program}) /run/programs/{program}")]);
    }
    let mut config = config("bridge", "iptables");
    config["ipam"]["ranges"] = json!([[{ "subnet": "10.1.0.0/24" }]]);
    let mut eth0 = host.attachment("bridge", &pod, "eth0");
    eth0.through = ["/usr/bin/env", "PATH=/run/programs"].map(str::to_owned).to_vec();
    eth0.add(&config).success();
    assert!(!rules(&host, &pod).is_empty());
    rig::gc(&eth0, &config, Some(&[(&pod.container_id(), "eth0")])).success();
    eth0.del(&config).success();
    assert!(rules(&host, &pod).is_empty(), "{:?}", rules(&host, &pod));
    rig::gc(&eth0, &config, Some(&[])).success();
}

#[test]
fn ip_masq_check_finds_an_address_without_masquerading() {
    for (plugin, backend) in ["bridge", "ptp"].iter().flat_map(|p| BACKENDS.map(|b| (*p, b))) {
        let host = host!(Feature::Bridge, Feature::NftMasquerade, Feature::IptablesNft);
        rig::install(&host);
        let pod = host.pod("a");
        let eth0 = host.attachment(plugin, &pod, "eth0");
        let config = config(plugin, backend);
        let result = eth0.add(&config).success().json();
        let known = with(&config, &json!({ "prevResult": result }));
        eth0.check(&known).success();
        // The rule that leads to a container's chain decides, not the chain itself.
        match backend {
            "iptables" => host.run(["iptables", "-t", "nat", "-F", "POSTROUTING"]),
            _ => host.run(["nft", "flush", "ruleset"]),
        };
        let checked = eth0.check(&known);
        assert_refused(&format!("{plugin} {backend}"), &checked, 999, &["10.1.0.2", "masqueraded"]);
    }
}

// Requirements: G5
#[test]
fn ip_masq_two_interfaces_of_a_pod_have_separate_rules() {
    for (plugin, backend) in ["bridge", "ptp"].iter().flat_map(|p| BACKENDS.map(|b| (*p, b))) {
        let host = host!(Feature::Bridge, Feature::NftMasquerade, Feature::IptablesNft);
        rig::install(&host);
        let outside = outside(&host);
        let pod = host.pod("a");
        let mut keys = config(plugin, backend);
        keys["ipam"]["routes"] = json!([]);
        let attachments = ["eth0", "net1"].map(|ifname| host.attachment(plugin, &pod, ifname));
        let known = attachments.each_ref().map(|attachment| {
            let result = attachment.add(&keys).success().json();
            with(&keys, &json!({ "prevResult": result }))
        });
        let hidden = |ifname: &str| {
            let _ = pod.attempt(["ip", "route", "delete", "192.0.2.0/24"]);
            pod.run(["ip", "route", "add", "192.0.2.0/24", "via", "10.1.0.1", "dev", ifname]);
            source_seen(&pod, &outside, OUTSIDE[0]).is_some_and(|seen| seen.to_string() == UPLINK[0])
        };
        assert!(hidden("eth0") && hidden("net1"), "{plugin} {backend}: both");
        attachments[0].del(&known[0]).success();
        assert!(hidden("net1"), "{plugin} {backend}: the second interface after DEL of the first");
        attachments[1].del(&known[1]).success();
        assert!(rules(&host, &pod).is_empty(), "{plugin} {backend}: {:?}", rules(&host, &pod));
    }
}

// Requirements: S32
#[test]
fn ip_masq_gc_removes_invalid_attachments_of_both_backends() {
    for (backend, now) in BACKENDS.iter().flat_map(|made| BACKENDS.map(|now| (*made, now))) {
        let host = host!(Feature::Bridge, Feature::NftMasquerade, Feature::IptablesNft);
        rig::install(&host);
        let config = config("bridge", backend);
        let elsewhere = json!({ "type": "host-local", "subnet": "10.9.0.0/24" });
        let other = with(&config, &json!({ "name": "other", "bridge": "br9", "ipam": elsewhere }));
        let pods = [host.pod("a"), host.pod("b"), host.pod("c")];
        for (pod, config) in pods.iter().zip([&config, &config, &other]) {
            host.attachment("bridge", pod, "eth0").add(config).success();
        }
        let [a, b, c] = &pods;
        let eth0 = host.attachment("bridge", a, "eth0");
        let count =
            |pod: &Pod| rules(&host, pod).iter().filter(|line| line.contains(&pod.container_id())).count();
        let before = [count(a), count(b), count(c)];
        assert!(before.iter().all(|count| *count > 0), "{before:?}");
        let config = with(&config, &json!({ "ipMasq": now == backend, "ipMasqBackend": now }));
        rig::gc(&eth0, &config, Some(&[(&b.container_id(), "eth0")])).success();
        assert_eq!([count(a), count(b), count(c)], [0, before[1], before[2]], "{backend}, now {now}");
    }
}

#[test]
fn ip_masq_reused_address_keeps_its_entry_after_a_late_del() {
    for backend in BACKENDS {
        let host = host!(Feature::Bridge, Feature::NftMasquerade, Feature::IptablesNft);
        rig::install(&host);
        let outside = outside(&host);
        let config = config("bridge", backend);
        let gone = host.pod("gone");
        let eth0 = host.attachment("bridge", &gone, "eth0");
        let last = eth0.add(&config).success().json();
        // The node lost its state: the namespace and the files of host-local.
        gone.remove();
        host.run(["rm", "-r", "/var/lib/cni/networks/net"]);
        let pod = host.pod("a");
        let result = host.attachment("bridge", &pod, "eth0").add(&config).success().json();
        assert_eq!(rig::addresses(&result), rig::addresses(&last), "{backend}: the same address");
        // The late DEL of the first pod must not remove rules of the second.
        eth0.del(&with(&config, &json!({ "prevResult": last }))).success();
        let seen = source_seen(&pod, &outside, OUTSIDE[0]).map(|ip| ip.to_string());
        assert_eq!(seen.as_deref(), Some(UPLINK[0]), "{backend}");
    }
}

// Requirements: G5
#[test]
fn ip_masq_iptables_rules_equal_those_of_the_go_plugin() {
    let host = host!(Feature::Bridge, Feature::GoPlugins, Feature::IptablesNft);
    rig::install(&host);
    let pod = host.pod("a");
    let mut keys = config("bridge", "iptables");
    keys["cniVersion"] = "1.0.0".into();
    keys["ipam"]["routes"] = json!([]);
    let save = || host.run(["iptables-save", "-t", "nat"]) + &host.run(["ip6tables-save", "-t", "nat"]);
    let rules = || -> Vec<String> {
        let text = save();
        let lines = text.lines().filter(|line| line.contains("CNI-") && !line.starts_with('#'));
        lines.map(|line| line.split(" [").next().unwrap_or_default().to_owned()).collect()
    };
    let mut seen = Vec::new();
    for (adds, deletes) in [("/usr/lib/cni", "/opt/cni/bin"), ("/opt/cni/bin", "/usr/lib/cni")] {
        let call = |verb: &str, directory: &str, config: &Value| {
            let mut eth0 = host.attachment(&format!("{directory}/bridge"), &pod, "eth0");
            eth0.path = "/opt/cni/bin".to_owned();
            eth0.call(verb, config.to_string()).success()
        };
        host.run(["rm", "-rf", "/var/lib/cni/networks/net"]);
        let result = call("ADD", adds, &keys).json();
        seen.push(rules());
        call("DEL", deletes, &with(&keys, &json!({ "prevResult": result })));
        assert!(rules().is_empty(), "{adds} made, {deletes} removed: {:?}", rules());
    }
    assert!(!seen[0].is_empty() && seen[0] == seen[1], "Go plugin {:#?}\nweft {:#?}", seen[0], seen[1]);
}

// Requirements: G5, S32
#[test]
fn ip_masq_del_and_gc_remove_nftables_rules_of_the_go_plugin() {
    let host = host!(Feature::Bridge, Feature::NftMasquerade);
    rig::install(&host);
    let pod = host.pod("a");
    // The format of v1.9.1: hashes of the network, and of interface and container.
    let (net, other) = ("a4861f4ae9f7d238", "e25ac3845f8cbe12");
    let (c1, c2) = ("f4d01f2ef4b92245", "8c6ebb285a95686c");
    let rule = |comment: &str, address: &str| {
        format!("  ip saddr {address} ip daddr != 10.1.0.0/24 masquerade comment \"{comment}\"\n")
    };
    let rules = [
        rule(&format!("{net}-{c1}, net: net, if: eth0, id: c1"), "10.1.0.5"),
        rule(&format!("{net}-{c2}, net: net, if: eth0, id: c2"), "10.1.0.6"),
        rule(&format!("{other}-{c1}, net: other, if: eth0, id: c1"), "10.1.0.7"),
    ];
    let table =
        format!("table inet cni_plugins_masquerade {{\n chain masq_checks {{\n{} }}\n}}\n", rules.concat());
    let load = || {
        let script =
            format!("table inet cni_plugins_masquerade\ndelete table inet cni_plugins_masquerade\n{table}");
        host.command("nft").args(["-f", "-"]).stdin(script).finish().success();
    };
    let left = || {
        let listed = host.run(["nft", "list", "table", "inet", "cni_plugins_masquerade"]);
        ["10.1.0.5", "10.1.0.6", "10.1.0.7"].map(|address| listed.contains(address))
    };
    for plugin in ["bridge", "ptp"] {
        let mut eth0 = host.attachment(plugin, &pod, "eth0");
        eth0.container_id = "c1".to_owned();
        for backend in BACKENDS {
            load();
            assert_eq!(left(), [true; 3]);
            eth0.del(&config(plugin, backend)).success();
            assert_eq!(left(), [false, true, true], "{plugin} {backend}: DEL");
        }
        load();
        rig::gc(&eth0, &config(plugin, "nftables"), Some(&[("c1", "eth0")])).success();
        assert_eq!(left(), [true, false, true], "{plugin}: GC");
        rig::gc(&eth0, &config(plugin, "nftables"), Some(&[])).success();
        assert_eq!(left(), [false, false, true], "{plugin}: GC of all");
    }
}

#[test]
fn ip_masq_excludes_multicast() {
    let host = host!(Feature::Bridge, Feature::NftMasquerade);
    rig::install(&host);
    let pod = host.pod("a");
    host.attachment("bridge", &pod, "eth0").add(&config("bridge", "nftables")).success();
    let chain = host.run(["nft", "list", "table", "inet", "weft_masquerade"]);
    for group in ["ip daddr 224.0.0.0/4 return", "ip6 daddr ff00::/8 return"] {
        assert!(chain.contains(group), "{chain}");
    }
}

#[test]
fn ip_masq_rules_do_not_grow_with_pods() {
    let host = host!(Feature::Bridge, Feature::NftMasquerade);
    rig::install(&host);
    let count = || host.json(["nft", "-j", "list", "ruleset"]).to_string().matches("{\"rule\":").count();
    let config = config("bridge", "nftables");
    let pods: Vec<Pod> = (0..12).map(|number| host.pod(&format!("p{number}"))).collect();
    let mut rules = None;
    for pod in &pods {
        host.attachment("bridge", pod, "eth0").add(&config).success();
        let now = count();
        assert_eq!(*rules.get_or_insert(now), now, "rules do not grow with pods");
    }
    let listed = host.json(["nft", "-j", "list", "map", "inet", "weft_masquerade", "sources4"]);
    assert_eq!(listed.to_string().matches("weft/bridge/net/").count(), 12);
}
