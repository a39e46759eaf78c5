//! Tests for `portmap` beside the legacy iptables interface in the kernel.

use rig::assert_nothing_left;
use rig::traffic::{Transport, outside, reached};
use serde_json::json;
use testkit::{Feature, host};

use super::TRANSPORTS;
use super::chain::{Chain, both};

#[test]
fn portmap_works_with_legacy_iptables() {
    let host = host!(Feature::Bridge, Feature::IptablesLegacy);
    rig::install(&host);
    let outside = outside(&host);
    let mut a = Chain::new(&host, "a");
    a.plugin.through = rig::with_legacy_iptables(&host);
    let saved = || {
        let both =
            ["iptables-legacy-save", "ip6tables-legacy-save"].map(|save| host.run([save, "-t", "nat"]));
        both.concat().matches(&a.pod.container_id()).count()
    };
    let config = a.map(&json!({ "backend": "iptables" }), &both(8080, 80));
    assert!(saved() > 0, "the rules are in legacy iptables");
    a.plugin.check(&config).success();
    for transport in TRANSPORTS {
        for (way, six) in [("192.0.2.1:8080", false), ("[fd00:2::1]:8080", true)] {
            let seen = reached(transport, &outside, way, &a.pod, &a.at(six, 80));
            assert!(seen.is_some(), "{transport:?} {way}");
        }
    }
    a.plugin.del(&config).success();
    assert_eq!(saved(), 0);
    assert_eq!(reached(Transport::Tcp, &outside, "192.0.2.1:8080", &a.pod, &a.at(false, 80)), None);
}

#[test]
fn portmap_works_without_access_to_the_legacy_table_list() {
    let host = host!(Feature::Bridge, Feature::NftFib, Feature::NftMasquerade, Feature::IptablesLegacy);
    rig::install(&host);
    let other = Chain::new(&host, "b");
    other.map(&json!({}), &both(9090, 90));
    let before = host.snapshot();
    let mut a = Chain::new(&host, "a");
    a.plugin.through = rig::as_in_an_unprivileged_container();
    let unreadable =
        host.attempt(["sh", "-c", &format!("{} cat /proc/net/ip_tables_names", a.plugin.through.join(" "))]);
    assert_ne!(unreadable.code, Some(0), "the test needs an unreadable file: {unreadable}");
    a.plugin.del(&a.config(&json!({}), &json!([]))).success();
    let config = a.map(&json!({ "snat": false }), &both(8080, 80));
    a.plugin.check(&config).success();
    a.plugin.del(&config).success();
    a.end();
    assert_nothing_left("DEL", &host, &before);
    // The rules of iptables are found by the program instead.
    let mut c = Chain::new(&host, "c");
    let config = c.map(&json!({ "backend": "iptables", "snat": false }), &both(8080, 80));
    c.plugin.through = rig::as_in_an_unprivileged_container();
    c.plugin.del(&config).success();
    let saved = host.run(["iptables-save", "-t", "nat"]);
    assert!(!saved.contains(&c.pod.container_id()), "{saved}");
}
