//! Tests that compare `firewall` with the Go plugin: the same result and the same iptables rules, except for
//! weft's owner tag. weft's DEL removes the Go plugin's rules.
//!
//! ```text
//!   Host, with constructed results
//! ```

use rig::with;
use serde_json::{Value, json};
use testkit::{Feature, Host, Pod, host};

const GO: &str = "/usr/lib/cni/firewall";
const WEFT: &str = "/opt/cni/bin/firewall";

fn config(pod: &Pod, keys: &Value) -> Value {
    let sandbox = pod.path().display().to_string();
    let base = json!({
        "cniVersion": "1.0.0", "name": "net", "type": "firewall", "backend": "iptables",
        "prevResult": {
            "cniVersion": "1.0.0",
            "interfaces": [{ "name": "br0" }, { "name": "veth1" }, { "name": "eth0", "sandbox": sandbox }],
            "ips": [{ "address": "10.1.2.3/24", "interface": 2 }, { "address": "10.1.2.4/24" }, { "address": "fd01::3/64", "interface": 2 }],
            "dns": { "nameservers": ["10.1.2.1"] },
        },
    });
    with(&base, keys)
}

/// Returns rules and chains of the filter tables, without counters and owner tags, and with comments in the
/// form before v1.2.
fn rules(host: &Host, pod: &Pod) -> Vec<String> {
    let text = host.run(["iptables-save", "-t", "filter"])
        + "--- IPv6\n"
        + &host.run(["ip6tables-save", "-t", "filter"]);
    let owner_tag = format!("-m comment --comment \"weft/firewall/net/{}/eth0\" ", pod.container_id());
    let own = text.lines().filter(|line| line.starts_with(['-', ':']));
    own.map(|line| {
        line.split(" [")
            .next()
            .unwrap_or_default()
            .replace(&owner_tag, "")
            .replace("same-bridge|isolated", "same-bridge")
    })
    .collect()
}

fn clean(host: &Host) {
    for program in ["iptables", "ip6tables"] {
        host.run([program, "-F"]);
        host.run([program, "-X"]);
    }
}

/// Returns the rules by chain, in order within the chain. Chains are listed in the order in which they were created.
fn by_chain(rules: &[String]) -> Vec<String> {
    let mut family = "";
    let mut keyed: Vec<(String, String)> = Vec::new();
    for rule in rules {
        if rule.starts_with("---") {
            family = "6";
        }
        let chain =
            rule.trim_start_matches("-A ").trim_start_matches(':').split(' ').next().unwrap_or_default();
        let kind = if rule.starts_with(':') { ':' } else { '-' };
        keyed.push((format!("{family}{kind}{chain}"), rule.clone()));
    }
    keyed.sort_by(|(a, _), (b, _)| a.cmp(b));
    keyed.into_iter().map(|(_, rule)| rule).collect()
}

#[test]
fn firewall_rules_equal_those_of_the_go_plugin_and_del_removes() {
    let host = host!(Feature::GoPlugins, Feature::IptablesNft);
    rig::install(&host);
    let pod = host.pod("a");
    for keys in
        [json!({}), json!({ "iptablesAdminChainName": "MINE" }), json!({ "ingressPolicy": "same-bridge" })]
    {
        let config = config(&pod, &keys);
        let call =
            |plugin: &str, verb: &str| host.attachment(plugin, &pod, "eth0").call(verb, config.to_string());
        let mut seen = Vec::new();
        for adds in [GO, WEFT] {
            clean(&host);
            let result = call(adds, "ADD").success().json();
            seen.push((result, rules(&host, &pod)));
            call(adds, "CHECK").success();
            call(WEFT, "DEL").success();
            let left: Vec<String> = rules(&host, &pod)
                .into_iter()
                .filter(|rule| rule.contains("10.1.2.") || rule.contains("fd01::"))
                .collect();
            assert!(left.is_empty(), "{adds} added, weft deleted, {keys}: {left:#?}");
            // Objects that all containers share remain with both plugins.
            let remaining = rules(&host, &pod).len();
            call(GO, "DEL").success();
            assert_eq!(rules(&host, &pod).len(), remaining, "{keys}");
        }
        assert_eq!(seen[0].0, seen[1].0, "{keys}: results");
        assert_eq!(by_chain(&seen[0].1), by_chain(&seen[1].1), "{keys}");
    }
}
