//! Tests for a list that contains `portmap` twice, with other conditions.

use rig::traffic::{OUTSIDE, Transport, outside, reached};
use rig::{assert_refused, with};
use serde_json::json;
use testkit::{Feature, host};

use super::BACKENDS;
use super::chain::{Chain, mapping, traces};

#[test]
fn portmap_twice_in_a_list_forwards_by_the_conditions_of_either() {
    let host = host!(Feature::Bridge, Feature::NftFib, Feature::NftMasquerade, Feature::IptablesNft);
    rig::install(&host);
    let outside = outside(&host);
    for address in ["192.0.2.3/24", "192.0.2.4/24"] {
        outside.run(["ip", "address", "add", address, "dev", "up0"]);
    }
    let ports = json!([mapping(8080, 80, "tcp"), mapping(8081, 80, "tcp")]);
    for backend in BACKENDS {
        let a = Chain::new(&host, "a");
        let from = |address: &str| match backend {
            "nftables" => json!({ "backend": backend, "conditionsV4": ["ip", "saddr", address] }),
            _ => json!({ "backend": backend, "conditionsV4": ["-s", address] }),
        };
        let earlier = a.map(&from(OUTSIDE[0]), &ports);
        let one = traces(&host, &a.pod);
        let later = a.map(&with(&from("192.0.2.3"), &json!({ "masqAll": true })), &ports);
        let both = traces(&host, &a.pod);
        assert!(both.len() > one.len(), "{backend}: {both:#?}");
        let reaches = |source: &str| {
            outside.run(["ip", "route", "replace", "192.0.2.1/32", "dev", "up0", "src", source]);
            reached(Transport::Tcp, &outside, "192.0.2.1:8081", &a.pod, &a.at(false, 80)).is_some()
        };
        let reached = [OUTSIDE[0], "192.0.2.3", "192.0.2.4"].map(reaches);
        assert_eq!(reached, [true, true, false], "{backend}");
        for config in [&earlier, &later] {
            a.plugin.check(config).success();
        }
        // A repeated ADD of the list adds nothing.
        for config in [&earlier, &later] {
            a.plugin.add(config).success();
        }
        let repeated = traces(&host, &a.pod);
        assert_eq!(repeated.len(), both.len(), "{backend}: {repeated:#?}");
        // DEL of one removes the rules of both: they belong to the container.
        a.plugin.del(&later).success();
        a.plugin.del(&earlier).success();
        assert_eq!(traces(&host, &a.pod), [""; 0], "{backend}");
        a.end();
    }
}

/// Both jumps lead to the chain of the container and have the same comment, as with the reference plugin.
#[test]
fn portmap_check_finds_the_missing_jump_of_one_of_two() {
    let host = host!(Feature::Bridge, Feature::IptablesNft);
    rig::install(&host);
    let ports = json!([mapping(8080, 80, "tcp")]);
    for [one, other] in [
        [json!(["-s", "192.0.2.2"]), json!(["-s", "192.0.2.3"])],
        [json!([]), json!(["!", "-i", "up0"])],
        // The same words in another order.
        [json!(["-s", "192.0.2.2", "-d", "192.0.2.1"]), json!(["-d", "192.0.2.2", "-s", "192.0.2.1"])],
        [json!(["!", "-s", "192.0.2.2", "-i", "up0"]), json!(["-s", "192.0.2.2", "!", "-i", "up0"])],
        // iptables-save prints other words.
        [json!(["--source", "192.0.2.0/255.255.255.0"]), json!(["--source", "192.0.2.0/255.255.255.128"])],
    ] {
        let a = Chain::new(&host, "a");
        let configs = [&one, &other]
            .map(|conditions| a.map(&json!({ "backend": "iptables", "conditionsV4": conditions }), &ports));
        let jumps = || {
            let saved = host.run(["iptables-save", "-t", "nat"]);
            let is_jump =
                |line: &&str| line.starts_with("-A CNI-HOSTPORT-DNAT ") && line.contains(" -j CNI-DN-");
            saved.lines().filter(is_jump).map(str::to_owned).collect::<Vec<_>>()
        };
        let both = jumps();
        assert_eq!(both.len(), 2, "{both:#?}");
        for (missing, jump) in both.iter().enumerate() {
            let script = format!("*nat\n{}\nCOMMIT\n", jump.replacen("-A ", "-D ", 1));
            host.command("iptables-restore").args(["--noflush"]).stdin(script).finish().success();
            assert_refused(jump, &a.plugin.check(&configs[missing]), 999, &["table nat lacks rule"]);
            a.plugin.check(&configs[1 - missing]).success();
            // A repeated ADD adds only the missing one.
            for config in &configs {
                a.plugin.add(config).success();
                a.plugin.check(config).success();
            }
            let repaired = jumps();
            let sorted = |jumps: &[String]| {
                let mut jumps = jumps.to_vec();
                jumps.sort();
                jumps
            };
            assert_eq!(sorted(&repaired), sorted(&both));
        }
        a.plugin.del(&configs[0]).success();
        assert_eq!(traces(&host, &a.pod), [""; 0]);
        a.end();
    }
}
