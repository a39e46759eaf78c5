//! Tests for two tenants with the same address on different networks: when one is deleted, the other keeps its
//! masquerading, firewall and port entries.
//!
//! ```text
//!   outside 192.0.2.2 ── up0 ── host ── br1 (or ptp) ── a  10.1.0.5/24
//!                                   └── br2 (or ptp) ── b  10.1.0.5/24, or another prefix length
//! ```
//!
//! The packet filter is read with `nft -j` and `iptables-save`: which of two equal addresses a packet reaches
//! depends on the routes, and these tests do not check it.

use rig::{assert_nothing_left, with};
use serde_json::{Value, json};
use testkit::{Attachment, Feature, Host, Pod, host};

const ADDRESSES: [&str; 2] = ["10.1.0.5", "fd01::5"];
const BACKENDS: [&str; 2] = ["nftables", "iptables"];

/// Orders of DEL after both ADDs, by position in the order of the ADDs.
const ORDERS: [[usize; 2]; 2] = [[0, 1], [1, 0]];

/// Attachment and the configuration for calls.
struct Tenant<'a> {
    attachment: Attachment<'a>,
    config: Value,
}

impl Tenant<'_> {
    fn add(&mut self) {
        let result = self.attachment.add(&self.config).success().json();
        if self.config.get("ipam").is_some() {
            self.config["prevResult"] = result;
        }
    }

    fn del(&self) {
        self.attachment.del(&self.config).success();
    }

    fn check(&self, label: &str) {
        let checked = self.attachment.check(&self.config);
        assert_eq!(checked.code, Some(0), "{label}: {}", checked.stdout);
    }
}

/// Returns the elements of a set or map, by `nft -j`: the key, and a verdict's chain if there is one.
fn elements(host: &Host, table: &str, set: &str) -> Vec<(Value, Value)> {
    let listed = host.attempt(["nft", "-j", "list", "set", "inet", table, set]);
    let listed: Value = match listed.code {
        Some(0) => serde_json::from_str(&listed.stdout).expect("JSON"),
        _ => host.json(["nft", "-j", "list", "map", "inet", table, set]),
    };
    let sets = listed["nftables"].as_array().expect("objects");
    let found = sets.iter().find_map(|object| object.get("set").or_else(|| object.get("map")));
    let elements = found.and_then(|set| set["elem"].as_array().cloned()).unwrap_or_default();
    let read = |element: &Value| match element.as_array() {
        Some(pair) => (pair[0]["elem"]["val"].clone(), pair[1].clone()),
        None => (element["elem"]["val"].clone(), Value::Null),
    };
    elements.iter().map(read).collect()
}

/// Returns the chains that an address's masquerading jumps to, for both families.
fn masquerading(host: &Host) -> Vec<String> {
    let all = ["sources4", "sources6"].map(|map| elements(host, "weft_masquerade", map));
    let of = |(_, verdict): &(Value, Value)| verdict["jump"]["target"].as_str().expect("a jump").to_owned();
    all.iter().flatten().map(of).collect()
}

/// Number of iptables rules, in both families, that contain a text.
fn saved(host: &Host, table: &str, text: &str) -> usize {
    let of = |save: &str| host.run([save, "-t", table]).lines().filter(|line| line.contains(text)).count();
    of("iptables-save") + of("ip6tables-save")
}

fn masquerading_tenant<'a>(
    host: &'a Host,
    (plugin, network): (&str, usize),
    pod: &Pod,
    backend: &str,
    lengths: [u8; 2],
) -> Tenant<'a> {
    let addresses: Vec<Value> = ADDRESSES
        .iter()
        .zip(lengths)
        .map(|(address, length)| {
            // ptp needs a gateway, and bridge does not use it here.
            json!({ "address": format!("{address}/{length}"), "gateway": address.replace('5', "1") })
        })
        .collect();
    let config = json!({
        "cniVersion": "1.1.0", "name": format!("net{network}"), "type": plugin, "bridge": format!("br{network}"),
        "ipMasq": true, "ipMasqBackend": backend, "ipam": { "type": "static", "addresses": addresses },
    });
    Tenant { attachment: host.attachment(plugin, pod, "eth0"), config }
}

#[test]
fn shared_address_masquerading_stays_after_the_others_del() {
    let plugins = [["bridge", "bridge"], ["bridge", "ptp"], ["ptp", "bridge"]];
    for (plugins, order, backend) in
        plugins.iter().flat_map(|p| ORDERS.iter().flat_map(move |o| BACKENDS.map(|b| (*p, *o, b))))
    {
        let label = format!("{plugins:?} {backend}, DEL {order:?}");
        let host = host!(Feature::Bridge, Feature::NftMasquerade, Feature::IptablesNft);
        rig::install(&host);
        let pods = [host.pod("a"), host.pod("b")];
        let mut tenants = [0, 1].map(|number| {
            masquerading_tenant(&host, (plugins[number], number), &pods[number], backend, [24, 64])
        });
        // iptables-save and the first conflict create shared objects, so they exist before the snapshot.
        for round in ["first", "second"] {
            let label = format!("{label}, {round} time");
            let before = host.snapshot();
            tenants.iter_mut().for_each(Tenant::add);
            let count = || match backend {
                "nftables" => masquerading(&host).len(),
                _ => saved(&host, "nat", "-A POSTROUTING -s "),
            };
            let each = if backend == "nftables" { 0 } else { 2 };
            assert_eq!(count(), 2 + each, "{label}: after both ADDs");
            tenants.iter().for_each(|tenant| tenant.check(&label));
            tenants[order[0]].del();
            assert_eq!(count(), 2, "{label}: after the first DEL");
            tenants[order[1]].check(&label);
            // The runtime repeats a DEL.
            tenants[order[0]].del();
            tenants[order[1]].check(&label);
            tenants[order[1]].del();
            assert_eq!(count(), 0, "{label}: after the second DEL");
            if round == "second" {
                assert_nothing_left(&label, &host, &before);
            }
        }
    }
}

#[test]
fn shared_address_of_another_prefix_keeps_the_masquerading() {
    // The narrowest prefix exempts the fewest destinations, as if each tenant had a rule of its own.
    for (lengths, order) in [(8, 0), (8, 1), (32, 0), (32, 1)].map(|(length, first)| ([24, length], first)) {
        let label = format!("prefixes {lengths:?}, {order} first");
        let host = host!(Feature::Bridge, Feature::NftMasquerade);
        rig::install(&host);
        let pods = [host.pod("a"), host.pod("b")];
        let mut tenants = [0, 1].map(|number| {
            masquerading_tenant(&host, ("bridge", number), &pods[number], "nftables", [lengths[number], 64])
        });
        tenants[order].add();
        tenants[1 - order].add();
        let both = if lengths[1] == 32 { "single4" } else { "subnet_10.1.0.0/24" };
        assert!(masquerading(&host).contains(&both.to_owned()), "{label}: {:?}", masquerading(&host));
        tenants[1].del();
        let own = "subnet_10.1.0.0/24".to_owned();
        assert!(masquerading(&host).contains(&own), "{label}: {:?}", masquerading(&host));
        tenants[0].check(&label);
        tenants[0].del();
        assert!(masquerading(&host).is_empty(), "{label}: {:?}", masquerading(&host));
    }
}

#[test]
fn shared_address_of_three_tenants_needs_three_dels() {
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let host = host!(Feature::Bridge, Feature::NftMasquerade);
        rig::install(&host);
        let pods = ["a", "b", "c"].map(|name| host.pod(name));
        let mut tenants = [0, 1, 2].map(|number| {
            masquerading_tenant(&host, ("bridge", number), &pods[number], "nftables", [24, 64])
        });
        tenants.iter_mut().for_each(Tenant::add);
        // A repeated ADD changes nothing.
        let without = with(&tenants[1].config, &json!({ "prevResult": null }));
        let _ = tenants[1].attachment.add(&without);
        for (done, number) in order.iter().enumerate() {
            assert_eq!(masquerading(&host).len(), 2, "{order:?}, {done} DELs");
            order[done..].iter().for_each(|left| tenants[*left].check(&format!("{order:?}, {done} DELs")));
            tenants[*number].del();
        }
        assert!(masquerading(&host).is_empty(), "{order:?}");
    }
}

#[test]
fn shared_address_of_a_concurrent_del_stays_masqueraded() {
    let host = host!(Feature::Bridge, Feature::NftMasquerade);
    rig::install(&host);
    let pods = [host.pod("a"), host.pod("b")];
    let mut tenants = [0, 1]
        .map(|number| masquerading_tenant(&host, ("bridge", number), &pods[number], "nftables", [24, 64]));
    let plain = tenants.each_ref().map(|tenant| tenant.config.clone());
    tenants[0].add();
    for round in 0..40 {
        let (gone, new) = (round % 2, (round + 1) % 2);
        let label = format!("round {round}");
        let Tenant { attachment, config } = &tenants[gone];
        let result = std::thread::scope(|scope| {
            let deletion = scope.spawn(|| attachment.del(config).success());
            let result = tenants[new].attachment.add(&plain[new]).success().json();
            deletion.join().expect("the DEL");
            result
        });
        tenants[new].config = with(&plain[new], &json!({ "prevResult": result }));
        assert_eq!(masquerading(&host).len(), 2, "{label}");
        tenants[new].check(&label);
    }
    tenants[0].del();
    let left = host.run(["nft", "list", "ruleset"]);
    assert!(!left.contains("weft/bridge/"), "an entry or a claim is left: {left}");
}

#[test]
fn shared_address_masquerading_gc_removes_invalid_owners_only() {
    for stale in [0, 1] {
        let host = host!(Feature::Bridge, Feature::NftMasquerade);
        rig::install(&host);
        let pods = [host.pod("a"), host.pod("b")];
        let mut tenants = [0, 1].map(|number| {
            masquerading_tenant(&host, ("bridge", number), &pods[number], "nftables", [24, 64])
        });
        tenants.iter_mut().for_each(Tenant::add);
        rig::gc(&tenants[stale].attachment, &tenants[stale].config, Some(&[])).success();
        tenants[1 - stale].check(&format!("tenant {stale} is stale"));
        rig::gc(&tenants[1 - stale].attachment, &tenants[1 - stale].config, Some(&[])).success();
        assert!(masquerading(&host).is_empty(), "{stale}: {:?}", masquerading(&host));
    }
}

/// Returns a tenant of `firewall` behind an interface that another plugin has created.
fn firewall_tenant<'a>(host: &'a Host, network: usize, pod: &Pod, backend: &str) -> Tenant<'a> {
    let ips = ADDRESSES
        .iter()
        .zip([24, 64])
        .map(|(address, length)| json!({ "address": format!("{address}/{length}"), "interface": 0 }));
    let result = json!({
        "cniVersion": "1.1.0", "ips": ips.collect::<Vec<_>>(),
        "interfaces": [{ "name": "eth0", "sandbox": host.attachment("firewall", pod, "eth0").netns }],
    });
    let config = json!({
        "cniVersion": "1.1.0", "name": format!("net{network}"), "type": "firewall", "backend": backend,
        "prevResult": result,
    });
    Tenant { attachment: host.attachment("firewall", pod, "eth0"), config }
}

#[test]
fn shared_address_firewall_entry_stays_after_the_others_del() {
    for (order, backend) in ORDERS.iter().flat_map(|order| BACKENDS.map(|backend| (*order, backend))) {
        let label = format!("{backend}, DEL {order:?}");
        let host = host!(Feature::NftInet, Feature::IptablesNft);
        rig::install(&host);
        let pods = [host.pod("a"), host.pod("b")];
        let mut tenants = [0, 1].map(|number| firewall_tenant(&host, number, &pods[number], backend));
        let count = || match backend {
            "nftables" => {
                ["pods4", "pods6"].map(|set| elements(&host, "weft_firewall", set).len()).iter().sum()
            }
            _ => saved(&host, "filter", "-A CNI-FORWARD -s "),
        };
        tenants.iter_mut().for_each(Tenant::add);
        let each = if backend == "nftables" { 0 } else { 2 };
        assert_eq!(count(), 2 + each, "{label}: after both ADDs");
        tenants.iter().for_each(|tenant| tenant.check(&label));
        tenants[order[0]].del();
        assert_eq!(count(), 2, "{label}: after the first DEL");
        tenants[order[1]].check(&label);
        tenants[order[0]].del();
        tenants[order[1]].check(&label);
        tenants[order[1]].del();
        assert_eq!(count(), 0, "{label}: after the second DEL");
    }
}

#[test]
fn shared_address_firewall_keeps_rules_of_the_go_plugin() {
    // A pod of before the migration has rules without an owner, which only its address identifies.
    for backend in BACKENDS {
        let host = host!(Feature::NftInet, Feature::IptablesNft, Feature::GoPlugins);
        rig::install(&host);
        let pods = [host.pod("a"), host.pod("b")];
        let [mut old, mut new] = [0, 1].map(|number| firewall_tenant(&host, number, &pods[number], backend));
        old.config["cniVersion"] = "1.0.0".into();
        old.config["prevResult"]["cniVersion"] = "1.0.0".into();
        old.config["backend"] = "iptables".into();
        let by_go = host.attachment("/usr/lib/cni/firewall", &pods[0], "eth0");
        by_go.add(&old.config).success();
        assert_eq!(saved(&host, "filter", "-A CNI-FORWARD -s "), 2);
        new.add();
        new.del();
        assert_eq!(saved(&host, "filter", "-A CNI-FORWARD -s "), 2, "{backend}: the rules of the other pod");
        old.del();
        assert_eq!(saved(&host, "filter", "-A CNI-FORWARD -s "), 0, "{backend}: its own DEL by weft");
    }
}

#[test]
fn shared_address_host_port_returns_to_its_other_owner() {
    for order in ORDERS {
        let host = host!(Feature::NftFib, Feature::NftMasquerade);
        rig::install(&host);
        let pods = [host.pod("a"), host.pod("b")];
        let mappings = json!([{ "hostPort": 8080, "containerPort": 80, "protocol": "tcp" }]);
        let mut tenants = [0, 1].map(|number| {
            let Tenant { config, .. } = firewall_tenant(&host, number, &pods[number], "nftables");
            let keys = json!({ "type": "portmap", "runtimeConfig": { "portMappings": mappings } });
            Tenant {
                attachment: host.attachment("portmap", &pods[number], "eth0"),
                config: with(&config, &keys),
            }
        });
        let count = || {
            ["ports4", "ports6", "targets4", "targets6"].map(|map| elements(&host, "weft_portmap", map).len())
        };
        // Both tenants request the same host port, so the last one has it.
        tenants.iter_mut().for_each(Tenant::add);
        tenants[1].check("the last one");
        assert_eq!(count(), [1; 4], "{order:?}: after both ADDs");
        tenants[order[0]].del();
        assert_eq!(count(), [1; 4], "{order:?}: after the first DEL");
        tenants[order[1]].check(&format!("{order:?}: the remaining one"));
        tenants[order[1]].del();
        assert_eq!(count(), [0; 4], "{order:?}: after the second DEL");
    }
}
