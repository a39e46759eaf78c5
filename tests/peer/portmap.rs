//! Tests that compare `portmap` with the Go plugin: the same result, the same iptables rules, and each checks
//! and removes the other's.
//!
//! ```text
//!   Host ── h0 ──(veth)── eth0 ── Pod a
//! ```

use rig::with;
use serde_json::{Value, json};
use testkit::{Feature, Host, Pod, host};

const GO: &str = "/usr/lib/cni/portmap";
const WEFT: &str = "/opt/cni/bin/portmap";

fn config(pod: &Pod, keys: &Value) -> Value {
    let sandbox = pod.path().display().to_string();
    let base = json!({
        "cniVersion": "1.0.0", "name": "net", "type": "portmap", "backend": "iptables",
        "prevResult": {
            "cniVersion": "1.0.0",
            "interfaces": [{ "name": "h0" }, { "name": "eth0", "sandbox": sandbox }],
            "ips": [
                { "address": "10.9.9.1/24", "interface": 0 },
                { "address": "10.1.2.3/24", "interface": 1 },
                { "address": "10.1.2.4/24", "interface": 1 },
                { "address": "fd01::3/64" },
            ],
            "dns": { "nameservers": ["10.1.2.1"] },
        },
        "runtimeConfig": { "portMappings": [
            { "hostPort": 8080, "containerPort": 80, "protocol": "tcp" },
            { "hostPort": 8081, "containerPort": 81, "protocol": "udp" },
            { "hostPort": 8082, "containerPort": 82, "protocol": "sctp", "hostIP": "192.0.2.1" },
            { "hostPort": 8083, "containerPort": 83, "protocol": "tcp", "hostIP": "fd00:2::1" },
            { "hostPort": 8084, "containerPort": 84, "protocol": "tcp", "hostIP": "0.0.0.0" },
        ] },
    });
    with(&base, keys)
}

fn many(count: u16) -> Value {
    let all = (0..count).map(|at| json!({ "hostPort": 9000 + at, "containerPort": 80, "protocol": "tcp" }));
    json!({ "runtimeConfig": { "portMappings": all.collect::<Vec<_>>() } })
}

/// Returns rules and chains of the nat tables, without counters. Names of shared chains that remain are in
/// both.
fn rules(host: &Host) -> Vec<String> {
    let text =
        host.run(["iptables-save", "-t", "nat"]) + "--- IPv6\n" + &host.run(["ip6tables-save", "-t", "nat"]);
    let own = text.lines().filter(|line| line.contains("CNI-") || line.starts_with("---"));
    own.map(|line| line.split(" [").next().unwrap_or_default().to_owned()).collect()
}

// Requirements: V1
#[test]
fn portmap_rules_equal_those_of_the_go_plugin_and_are_removed() {
    let host = host!(Feature::GoPlugins, Feature::IptablesNft, Feature::Veth);
    rig::install(&host);
    let pod = host.pod("a");
    host.run(["ip", "link", "add", "h0", "type", "veth", "peer", "name", "eth0", "netns", "a"]);
    host.run(["ip", "link", "set", "h0", "up"]);
    host.run(["ip", "address", "add", "10.1.2.1/24", "dev", "h0"]);
    for keys in [
        json!({}),
        json!({ "snat": false }),
        json!({ "markMasqBit": 5 }),
        json!({ "conditionsV4": ["!", "-d", "192.0.2.0/24"], "conditionsV6": ["!", "-d", "fc00::/7"] }),
        many(40),
    ] {
        let config = config(&pod, &keys);
        let mut seen = Vec::new();
        for (adds, others) in [(GO, WEFT), (WEFT, GO)] {
            for program in ["iptables", "ip6tables"] {
                host.run([program, "-t", "nat", "-F"]);
                host.run([program, "-t", "nat", "-X"]);
            }
            let call = |plugin: &str, verb: &str| {
                host.attachment(plugin, &pod, "eth0").call(verb, config.to_string())
            };
            let result = call(adds, "ADD").success().json();
            seen.push((rules(&host), result));
            // CHECK of the Go plugin looks for the rules of each family in both families until v1.2.
            call(WEFT, "CHECK").success();
            call(others, "DEL").success();
            let left: Vec<String> =
                rules(&host).into_iter().filter(|line| line.contains("CNI-DN-")).collect();
            assert!(left.is_empty(), "{adds} added, {others} deleted, {keys}: {left:#?}");
            call(adds, "DEL").success();
        }
        let sorted = |rules: &[String]| {
            let mut rules = rules.to_vec();
            rules.sort();
            rules
        };
        assert_eq!(seen[0].1, seen[1].1, "{keys}: results");
        // Chains are listed in the order of their creation, which has no effect.
        assert_eq!(sorted(&seen[0].0), sorted(&seen[1].0), "{keys}");
        let in_chain = |rules: &[String]| -> Vec<String> {
            rules
                .iter()
                .filter(|line| line.starts_with("-A CNI-") || line.starts_with("-A POSTROUTING"))
                .cloned()
                .collect()
        };
        let by_chain = |rules: &[String]| {
            let mut rules = in_chain(rules);
            rules.sort_by_key(|line| line.split(' ').nth(1).map(str::to_owned));
            rules
        };
        assert_eq!(by_chain(&seen[0].0), by_chain(&seen[1].0), "{keys}: order within a chain");
    }
}
