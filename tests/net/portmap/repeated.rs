//! Tests of a list that contains `portmap` twice, with other conditions.

use rig::traffic::{OUTSIDE, Transport, outside, reached};
use rig::with;
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
