//! Tests for `portmap`: which clients reach a container by a host port, which do not, and that DEL removes
//! everything.
//!
//! ```text
//!   outside 192.0.2.2, fd00:2::2 ── up0 ── 192.0.2.1, fd00:2::1 host 10.1.0.1, fd01::1 ── br0 ── a, b: pods
//! ```
//!
//! The outside has no route to the pods. Both backends behave alike unless a test says otherwise.
//!
//! Source: plugins `plugins/meta/portmap` (V1); GHSA-jv3w-x3r3-g6rm and CVE-2019-9946 for packets that a port
//! must not redirect; nerdctl#1872 for the input of DEL.

mod chain;
mod legacy_tables;
mod repeated;
mod services;

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use chain::{Chain, both, mapping, traces};
use rig::traffic::{OUTSIDE, Transport, UPLINK, outside, reached, udp_source_seen};
use rig::{assert_nothing_left, assert_refused, with};
use serde_json::{Value, json};
use testkit::{Feature, Netns, host};

const BACKENDS: [&str; 2] = ["nftables", "iptables"];
const TRANSPORTS: [Transport; 2] = [Transport::Tcp, Transport::Udp];

// === traffic ===

// Requirements: V1
#[test]
fn portmap_port_is_reached_from_outside_and_host() {
    let host = host!(Feature::Bridge, Feature::NftFib, Feature::NftMasquerade, Feature::IptablesNft);
    rig::install(&host);
    let outside = outside(&host);
    for backend in BACKENDS {
        let a = Chain::new(&host, "a");
        let config = a.map(&json!({ "backend": backend }), &both(8080, 80));
        a.plugin.check(&config).success();
        let host_end: &Netns = &host;
        // From where, to which address, with which source address: a pod could not answer to 127.0.0.1.
        let ways = [
            (&*outside, UPLINK[0], false, Some(OUTSIDE[0])),
            (&*outside, UPLINK[1], true, Some(OUTSIDE[1])),
            (host_end, "127.0.0.1", false, Some("10.1.0.1")),
            (host_end, "127.0.0.9", false, if backend == "nftables" { Some("10.1.0.1") } else { None }),
            (host_end, UPLINK[0], false, Some(UPLINK[0])),
            (host_end, UPLINK[1], true, Some(UPLINK[1])),
        ];
        for (transport, (from, to, six, seen)) in TRANSPORTS.iter().flat_map(|t| ways.map(|way| (*t, way))) {
            let Some(seen) = seen else { continue };
            let way = if six { format!("[{to}]:8080") } else { format!("{to}:8080") };
            let peer = reached(transport, from, &way, &a.pod, &a.at(six, 80));
            let peer = peer.map(|peer| peer.ip().to_string());
            assert_eq!(peer.as_deref(), Some(seen), "{backend} {transport:?} {} to {way}", from.name());
        }
        // Another port is not redirected.
        let other = reached(Transport::Tcp, &outside, "192.0.2.1:8081", &a.pod, &a.at(false, 80));
        assert_eq!(other, None, "{backend}");
        a.plugin.del(&config).success();
        let gone = reached(Transport::Tcp, &outside, "192.0.2.1:8080", &a.pod, &a.at(false, 80));
        assert_eq!(gone, None, "{backend}");
        a.end();
    }
}

#[test]
fn portmap_sctp_is_mapped() {
    let host =
        host!(Feature::Bridge, Feature::NftFib, Feature::NftMasquerade, Feature::IptablesNft, Feature::Sctp);
    rig::install(&host);
    let outside = outside(&host);
    for backend in BACKENDS {
        let a = Chain::new(&host, "a");
        let config = a.map(&json!({ "backend": backend }), &json!([mapping(8080, 80, "sctp")]));
        a.plugin.check(&config).success();
        for (way, six, seen) in
            [("192.0.2.1:8080", false, OUTSIDE[0]), ("[fd00:2::1]:8080", true, OUTSIDE[1])]
        {
            let peer = reached(Transport::Sctp, &outside, way, &a.pod, &a.at(six, 80));
            let peer = peer.map(|peer| peer.ip().to_string());
            assert_eq!(peer.as_deref(), Some(seen), "{backend} {way}");
        }
        let own = reached(Transport::Sctp, &a.pod, "192.0.2.1:8080", &a.pod, &a.at(false, 80));
        assert!(own.is_some(), "{backend}: through the host to itself");
        // The mapping is for this protocol only.
        let other = reached(Transport::Tcp, &outside, "192.0.2.1:8080", &a.pod, &a.at(false, 80));
        assert_eq!(other, None, "{backend}");
        a.plugin.del(&config).success();
        let gone = reached(Transport::Sctp, &outside, "192.0.2.1:8080", &a.pod, &a.at(false, 80));
        assert_eq!(gone, None, "{backend}");
        a.end();
    }
}

#[test]
fn portmap_pod_and_neighbour_reach_a_port_by_the_hosts_address() {
    let host = host!(Feature::Bridge, Feature::NftFib, Feature::NftMasquerade, Feature::IptablesNft);
    rig::install(&host);
    for backend in BACKENDS {
        let (a, b) = (Chain::new(&host, "a"), Chain::new(&host, "b"));
        let config = a.map(&json!({ "backend": backend }), &both(8080, 80));
        for (transport, from) in TRANSPORTS.iter().flat_map(|t| [(*t, &a.pod), (*t, &b.pod)]) {
            for (six, to) in [(false, "10.1.0.1:8080"), (true, "[fd01::1]:8080")] {
                let seen = reached(transport, from, to, &a.pod, &a.at(six, 80));
                let seen = seen.map(|peer| peer.ip().to_string());
                let expected = if six { "fd01::1" } else { "10.1.0.1" };
                assert_eq!(
                    seen.as_deref(),
                    Some(expected),
                    "{backend} {transport:?} {} to {to}",
                    from.name()
                );
            }
        }
        a.plugin.del(&config).success();
        for chain in [a, b] {
            chain.end();
        }
    }
}

#[test]
fn portmap_snat_and_masq_all_decide_the_source_address() {
    let host = host!(Feature::Bridge, Feature::NftFib, Feature::NftMasquerade, Feature::IptablesNft);
    rig::install(&host);
    let outside = outside(&host);
    let seen = |from: &Netns, to: &str, a: &Chain<'_>| {
        reached(Transport::Tcp, from, to, &a.pod, &a.at(false, 80)).map(|peer| peer.ip().to_string())
    };
    for backend in BACKENDS {
        let a = Chain::new(&host, "a");
        let ports = json!([mapping(8080, 80, "tcp")]);
        for (keys, from_outside, itself) in [
            (json!({}), Some(OUTSIDE[0]), Some("10.1.0.1")),
            (json!({ "masqAll": true }), Some("10.1.0.1"), Some("10.1.0.1")),
            (json!({ "snat": false, "masqAll": true }), Some(OUTSIDE[0]), None),
            (json!({ "markMasqBit": 3 }), Some(OUTSIDE[0]), Some("10.1.0.1")),
            (json!({ "markMasqBit": 0, "masqAll": true }), Some("10.1.0.1"), Some("10.1.0.1")),
        ] {
            let config = a.map(&with(&keys, &json!({ "backend": backend })), &ports);
            a.plugin.check(&config).success();
            assert_eq!(seen(&outside, "192.0.2.1:8080", &a).as_deref(), from_outside, "{backend} {keys}");
            assert_eq!(seen(&a.pod, "10.1.0.1:8080", &a).as_deref(), itself, "{backend} {keys}");
            a.plugin.del(&config).success();
        }
        a.end();
    }
}

// Requirements: V1
#[test]
fn portmap_host_ip_limits_the_mapping_to_that_address() {
    let host = host!(Feature::Bridge, Feature::NftFib, Feature::NftMasquerade, Feature::IptablesNft);
    rig::install(&host);
    let outside = outside(&host);
    host.run(["ip", "address", "add", "192.0.2.7/24", "dev", "up0"]);
    let on = |ip: &str, port: u16| json!({ "hostPort": port, "containerPort": 80, "protocol": "tcp", "hostIP": ip });
    for backend in BACKENDS {
        let a = Chain::new(&host, "a");
        let ports = json!([
            on("192.0.2.7", 8080),
            on("127.0.0.1", 8081),
            on("fd00:2::1", 8082),
            on("0.0.0.0", 8083),
            on("::", 8084),
        ]);
        let config = a.map(&json!({ "backend": backend }), &ports);
        a.plugin.check(&config).success();
        let host_end: &Netns = &host;
        for (from, to, six, is_reached) in [
            (&*outside, "192.0.2.7:8080", false, true),
            (&*outside, "192.0.2.1:8080", false, false),
            (host_end, "127.0.0.1:8081", false, true),
            (&*outside, "192.0.2.1:8081", false, false),
            (&*outside, "[fd00:2::1]:8082", true, true),
            (&*outside, "192.0.2.1:8082", false, false),
            (&*outside, "192.0.2.1:8083", false, true),
            (&*outside, "[fd00:2::1]:8083", true, false),
            (&*outside, "[fd00:2::1]:8084", true, true),
            (&*outside, "192.0.2.1:8084", false, false),
        ] {
            let seen = reached(Transport::Tcp, from, to, &a.pod, &a.at(six, 80));
            assert_eq!(seen.is_some(), is_reached, "{backend} {to}");
        }
        a.plugin.del(&config).success();
        a.end();
    }
}

#[test]
fn portmap_ignores_traffic_to_other_addresses() {
    let host = host!(Feature::Bridge, Feature::NftFib, Feature::NftMasquerade, Feature::IptablesNft);
    rig::install(&host);
    let outside = outside(&host);
    outside.run(["ip", "route", "add", "10.1.0.0/24", "via", "192.0.2.1"]);
    for backend in BACKENDS {
        let (a, b) = (Chain::new(&host, "a"), Chain::new(&host, "b"));
        let config = a.map(&json!({ "backend": backend, "masqAll": true }), &both(8080, 80));
        for transport in TRANSPORTS {
            for from in [&a.pod, &b.pod] {
                // A server of the outside on the same port; its traffic is not changed.
                let seen = reached(transport, from, "192.0.2.2:8080", &outside, "192.0.2.2:8080");
                let own = if from.name() == "a" { a.at(false, 0) } else { b.at(false, 0) };
                let seen = seen.map(|peer| format!("{}:0", peer.ip()));
                assert_eq!(seen, Some(own), "{backend} {transport:?}");
            }
            let seen = reached(transport, &host, "192.0.2.2:8080", &outside, "192.0.2.2:8080");
            assert_eq!(
                seen.map(|peer| peer.ip().to_string()).as_deref(),
                Some(UPLINK[0]),
                "{backend} {transport:?}"
            );
            // Traffic to a pod's address, like that of a Service, keeps its source address.
            let seen = reached(transport, &outside, &a.at(false, 80), &a.pod, &a.at(false, 80));
            assert_eq!(
                seen.map(|peer| peer.ip().to_string()).as_deref(),
                Some(OUTSIDE[0]),
                "{backend} {transport:?}"
            );
        }
        a.plugin.del(&config).success();
        for chain in [a, b] {
            chain.end();
        }
    }
}

#[test]
fn portmap_does_not_expose_the_hosts_loopback() {
    let host = host!(Feature::Bridge, Feature::NftFib, Feature::NftMasquerade);
    rig::install(&host);
    let a = Chain::new(&host, "a");
    // The neighbour sends to 127.0.0.0/8, which the host routes with route_localnet (CVE-2020-8558).
    let script = "sysctl -qw net.ipv4.conf.all.route_localnet=1\nip link set lo up\n\
                  ip rule add pref 1 lookup 99\nip rule delete pref 0\nip rule add pref 2 lookup local\n\
                  ip route add 127.7.0.0/16 via 10.1.0.1 table 99";
    a.pod.run(["sh", "-ec", script]);
    let attempt = || reached(Transport::Tcp, &a.pod, "127.7.0.1:6443", &host, "127.7.0.1:6443");
    host.run(["sysctl", "-qw", "net.ipv4.conf.br0.route_localnet=1"]);
    assert!(attempt().is_some(), "the loopback address is reachable without the plugin");
    a.map(&json!({}), &both(8080, 80));
    assert_eq!(attempt(), None);
    let own = reached(Transport::Tcp, &host, "127.0.0.1:8080", &a.pod, &a.at(false, 80));
    assert!(own.is_some(), "the host itself reaches the port");
}

#[test]
fn portmap_udp_conntrack_entries_follow_the_port() {
    let host = host!(Feature::Bridge, Feature::NftFib, Feature::NftMasquerade, Feature::IptablesNft);
    rig::install(&host);
    let outside = outside(&host);
    for backend in BACKENDS {
        let (a, b) = (Chain::new(&host, "a"), Chain::new(&host, "b"));
        let keys = json!({ "backend": backend });
        let ports = json!([mapping(5353, 53, "udp")]);
        let servers =
            [&a, &b].map(|chain| chain.pod.within(|| UdpSocket::bind(chain.at(false, 53)).unwrap()));
        // A client that sends from one port keeps its conntrack entry alive.
        let client = outside.within(|| UdpSocket::bind("0.0.0.0:0").unwrap());
        let to = "192.0.2.1:5353".parse().unwrap();
        assert_eq!(udp_source_seen(&client, to, &servers[0]), None, "{backend}: no mapping yet");
        let first = a.map(&keys, &ports);
        assert!(udp_source_seen(&client, to, &servers[0]).is_some(), "{backend}: the first pod");
        a.plugin.del(&first).success();
        assert_eq!(udp_source_seen(&client, to, &servers[0]), None, "{backend}: not after its DEL");
        let second = b.map(&keys, &ports);
        assert!(udp_source_seen(&client, to, &servers[1]).is_some(), "{backend}: the second pod");
        b.plugin.del(&second).success();
        for chain in [a, b] {
            chain.end();
        }
    }
}

#[test]
fn portmap_conditions_apply_to_their_family_and_network() {
    let host = host!(Feature::Bridge, Feature::NftFib, Feature::NftMasquerade, Feature::IptablesNft);
    rig::install(&host);
    let outside = outside(&host);
    outside.run(["ip", "address", "add", "192.0.2.3/24", "dev", "up0"]);
    let from = |source: &str, port: u16, chain: &Chain<'_>| {
        outside.run(["ip", "route", "replace", "192.0.2.1/32", "dev", "up0", "src", source]);
        reached(Transport::Tcp, &outside, &format!("192.0.2.1:{port}"), &chain.pod, &chain.at(false, 80))
            .is_some()
    };
    for keys in [
        json!({ "conditionsV4": ["ip", "saddr", "!=", "192.0.2.3"] }),
        json!({ "conditionsV4": ["ip saddr { 192.0.2.2, 10.1.0.0/24 }", "iifname != \"eth7\""] }),
        json!({ "backend": "nftables", "conditionsV4": ["ip daddr 192.0.2.0/24", "ip saddr != { 192.0.2.3, 192.0.2.4 }"] }),
        json!({ "conditionsV4": ["!", "-s", "192.0.2.3"] }),
        json!({ "backend": "iptables", "conditionsV4": ["!", "-s", "192.0.2.3/32", "-i", "up0"] }),
    ] {
        let (a, b) = (Chain::new(&host, "a"), Chain::new(&host, "b"));
        let own = a.map(&keys, &json!([mapping(8080, 80, "tcp")]));
        a.plugin.check(&own).success();
        // A network without conditions.
        let other = b.map(&json!({ "name": "other" }), &json!([mapping(8090, 80, "tcp")]));
        b.plugin.check(&other).success();
        assert!(from("192.0.2.2", 8080, &a) && !from("192.0.2.3", 8080, &a), "{keys}");
        assert!(from("192.0.2.2", 8090, &b) && from("192.0.2.3", 8090, &b), "{keys}: the other network");
        let six = reached(Transport::Tcp, &outside, "[fd00:2::1]:8080", &a.pod, &a.at(true, 80));
        assert!(six.is_some(), "{keys}: the other family");
        // DEL without the conditions removes rules with conditions.
        a.plugin.del(&a.config(&json!({}), &json!([]))).success();
        assert!(traces(&host, &a.pod).is_empty(), "{keys}: {:?}", traces(&host, &a.pod));
        b.plugin.del(&other).success();
        for chain in [a, b] {
            chain.end();
        }
    }
}

#[test]
fn portmap_external_set_mark_chain_is_used() {
    let host = host!(Feature::Bridge, Feature::IptablesNft);
    rig::install(&host);
    let a = Chain::new(&host, "a");
    let keys = json!({ "externalSetMarkChain": "OTHER-MARK" });
    let config = a.config(&keys, &json!([mapping(8080, 80, "tcp")]));
    assert_refused("the chain does not exist", &a.plugin.add(&config), 5, &["iptables-restore"]);
    assert!(traces(&host, &a.pod).is_empty(), "{:?}", traces(&host, &a.pod));
    for program in ["iptables", "ip6tables"] {
        host.run([program, "-t", "nat", "-N", "OTHER-MARK"]);
    }
    a.map(&keys, &json!([mapping(8080, 80, "tcp")]));
    let rules = host.run(["iptables-save", "-t", "nat"]);
    assert!(rules.contains("-j OTHER-MARK") && !rules.contains("CNI-HOSTPORT-SETMARK"), "{rules}");
    a.plugin.check(&config).success();
    a.plugin.del(&config).success();
}

// === ownership of a port ===

#[test]
fn portmap_port_belongs_to_the_last_add_and_other_del_keeps_it() {
    let host = host!(Feature::Bridge, Feature::NftFib, Feature::NftMasquerade);
    rig::install(&host);
    let outside = outside(&host);
    let (a, b) = (Chain::new(&host, "a"), Chain::new(&host, "b"));
    let ports = json!([mapping(8080, 80, "tcp")]);
    let reaches = |chain: &Chain<'_>| {
        reached(Transport::Tcp, &outside, "192.0.2.1:8080", &chain.pod, &chain.at(false, 80)).is_some()
    };
    let first = a.map(&json!({}), &ports);
    assert!(reaches(&a));
    let second = b.map(&json!({}), &ports);
    assert!(reaches(&b) && !reaches(&a));
    assert_refused("CHECK of the first pod", &a.plugin.check(&first), 999, &["tcp port 8080"]);
    a.plugin.del(&first).success();
    assert!(reaches(&b), "a late DEL keeps the mapping of the second pod");
    b.plugin.check(&second).success();
    b.plugin.del(&second).success();
    assert!(!reaches(&b));
}

#[test]
fn portmap_repeated_add_replaces_its_mappings() {
    let host = host!(Feature::Bridge, Feature::NftFib, Feature::NftMasquerade, Feature::IptablesNft);
    rig::install(&host);
    for backend in BACKENDS {
        let a = Chain::new(&host, "a");
        let keys = json!({ "backend": backend });
        let config = a.map(&keys, &both(8080, 80));
        let once = traces(&host, &a.pod);
        a.map(&keys, &both(8080, 80));
        assert_eq!(traces(&host, &a.pod), once, "{backend}: the same again");
        let fewer = a.map(&keys, &json!([mapping(8080, 81, "tcp")]));
        a.plugin.check(&fewer).success();
        assert!(a.plugin.check(&config).code != Some(0), "{backend}");
        assert!(
            traces(&host, &a.pod).len() < once.len(),
            "{backend}: mappings that are no longer requested are removed"
        );
        a.plugin.del(&fewer).success();
        assert!(traces(&host, &a.pod).is_empty(), "{backend}");
        a.end();
    }
}

// === tests that every plugin has ===

// Requirements: S31
#[test]
fn portmap_del_leaves_nothing_whatever_its_input() {
    let host = host!(Feature::Bridge, Feature::NftFib, Feature::NftMasquerade, Feature::IptablesNft);
    rig::install(&host);
    for backend in BACKENDS {
        let a = Chain::new(&host, "a");
        let b = Chain::new(&host, "b");
        b.map(&json!({ "backend": backend }), &both(9090, 90));
        let prime = a.map(&json!({ "backend": backend }), &both(8080, 80));
        let _ = traces(&host, &a.pod);
        a.plugin.del(&prime).success();
        let before = host.snapshot();
        for what in [
            "all",
            "twice",
            "no prevResult",
            "no mappings",
            "nothing",
            "no namespace",
            "other backend",
            "rubbish",
        ] {
            let config = a.map(&json!({ "backend": backend }), &both(8080, 80));
            let mut plugin = host.attachment("portmap", &a.pod, "eth0");
            let mut last = config.clone();
            let keys = last.as_object_mut().unwrap();
            match what {
                "twice" => drop(plugin.del(&config).success()),
                "no prevResult" => drop(keys.remove("prevResult")),
                "no mappings" => drop(keys.remove("runtimeConfig")),
                "nothing" | "no namespace" => {
                    keys.retain(|key, _| ["cniVersion", "name", "type"].contains(&key.as_str()));
                    plugin.netns.clear();
                }
                "other backend" => {
                    keys["backend"] = if backend == "iptables" { "nftables" } else { "iptables" }.into();
                }
                "rubbish" => keys["backend"] = json!({ "runtimeConfig": { "portMappings": 7 } }),
                _ => {}
            }
            assert_eq!(plugin.del(&last).success().stdout, "");
            assert_nothing_left(&format!("{backend}: DEL with {what}"), &host, &before);
        }
        b.plugin.del(&b.portmap).success();
        for chain in [a, b] {
            chain.end();
        }
    }
}

// Requirements: S16
#[test]
fn portmap_check_accepts_mappings_of_another_address_family() {
    for backend in BACKENDS {
        let host = host!(Feature::Bridge, Feature::NftFib, Feature::NftMasquerade, Feature::IptablesNft);
        rig::install(&host);
        let pod = host.pod("a");
        let bridge = json!({
            "cniVersion": "1.1.0", "name": "net", "type": "bridge", "bridge": "br0",
            "ipam": { "type": "host-local", "ranges": [[{ "subnet": "10.1.0.0/24" }]] },
        });
        let result = host.attachment("bridge", &pod, "eth0").add(&bridge).success().json();
        let config = json!({
            "cniVersion": "1.1.0", "name": "net", "type": "portmap", "backend": backend, "prevResult": result,
            "runtimeConfig": { "portMappings": [with(&mapping(8080, 80, "tcp"), &json!({ "hostIP": "::" }))] },
        });
        let portmap = host.attachment("portmap", &pod, "eth0");
        portmap.add(&config).success();
        portmap.check(&config).success();
        portmap.del(&config).success();
    }
}

#[test]
fn portmap_check_finds_each_missing_rule() {
    let host = host!(Feature::Bridge, Feature::NftFib, Feature::NftMasquerade, Feature::IptablesNft);
    rig::install(&host);
    let table = ["inet", "weft_portmap"];
    let losses: [(&str, &[&[&str]]); 2] = [
        (
            "nftables",
            &[
                &["nft", "delete", "element", "inet", "weft_portmap", "ports4", "{ tcp . 8080 }"],
                &["nft", "flush", "map", "inet", "weft_portmap", "ports6"],
                &["nft", "flush", "map", "inet", "weft_portmap", "targets4"],
                &["nft", "flush", "chain", "inet", "weft_portmap", "prerouting"],
                &["nft", "flush", "chain", "inet", "weft_portmap", "forwarded6"],
                &["nft", "delete", "table", table[0], table[1]],
            ],
        ),
        (
            "iptables",
            &[
                &["iptables", "-t", "nat", "-F", "CNI-HOSTPORT-DNAT"],
                &["iptables", "-t", "nat", "-F", "CNI-HOSTPORT-MASQ"],
                &["ip6tables", "-t", "nat", "-F", "PREROUTING"],
                &["ip6tables", "-t", "nat", "-F"],
            ],
        ),
    ];
    for (backend, losses) in losses {
        let a = Chain::new(&host, "a");
        for loss in losses {
            let config = a.map(&json!({ "backend": backend }), &both(8080, 80));
            a.plugin.check(&config).success();
            host.run(*loss);
            assert_refused(
                &loss.join(" "),
                &a.plugin.check(&config),
                if loss[1] == "delete" && loss[2] == "table" { 5 } else { 999 },
                &[],
            );
            // A repeated ADD repairs it.
            a.map(&json!({ "backend": backend }), &both(8080, 80));
            a.plugin.check(&config).success();
            a.plugin.del(&config).success();
        }
        a.end();
    }
}

// Requirements: S32
#[test]
fn portmap_gc_removes_invalid_attachments_only() {
    let host = host!(Feature::Bridge, Feature::NftFib, Feature::NftMasquerade, Feature::IptablesNft);
    rig::install(&host);
    for backend in BACKENDS {
        let chains = ["a", "b", "c"].map(|name| Chain::new(&host, name));
        let keys = json!({ "backend": backend });
        let [a, b, c] = &chains;
        let config = a.map(&keys, &both(8080, 80));
        b.map(&with(&keys, &json!({ "markMasqBit": 5 })), &both(8081, 80));
        c.map(&with(&keys, &json!({ "name": "other" })), &both(8082, 80));
        let count = || {
            [a, b, c].map(|chain| {
                let id = chain.pod.container_id();
                traces(&host, &chain.pod).iter().filter(|line| line.contains(&id)).count()
            })
        };
        let full = count();
        assert!(full.iter().all(|count| *count > 0), "{full:?}");
        rig::gc(&a.plugin, &config, None).success();
        assert_eq!(count(), full, "{backend}: without a list, nothing is removed");
        rig::gc(&a.plugin, &config, Some(&[(&b.pod.container_id(), "eth0")])).success();
        assert_eq!(count(), [0, full[1], full[2]], "{backend}");
        rig::gc(&a.plugin, &config, Some(&[])).success();
        assert_eq!(count(), [0, 0, full[2]], "{backend}: an empty list means that no attachment is valid");
        c.plugin.del(&with(&c.portmap, &json!({ "name": "other" }))).success();
        for chain in chains {
            chain.end();
        }
    }
}

// Requirements: S33
#[test]
fn portmap_status_reports_whether_an_add_can_succeed() {
    let host = host!(Feature::Bridge, Feature::NftFib, Feature::IptablesNft);
    rig::install(&host);
    let pod = host.pod("a");
    let plugin = host.attachment("portmap", &pod, "eth0");
    let config = json!({ "cniVersion": "1.1.0", "name": "net", "type": "portmap" });
    let status = |keys: &Value| plugin.call("STATUS", with(&config, keys).to_string());
    for backend in BACKENDS {
        assert_eq!(status(&json!({ "backend": backend })).success().stdout, "");
    }
    assert_refused("unknown backend", &status(&json!({ "backend": "pf" })), 7, &["backend", "pf"]);
    // A host without iptables.
    let hidden = "mkdir /run/empty; exec env PATH=/run/empty /opt/cni/bin/portmap";
    let mut without = host.attachment("portmap", &pod, "eth0");
    without.through = vec!["sh".to_owned(), "-c".to_owned(), hidden.to_owned()];
    let refused = without.call("STATUS", with(&config, &json!({ "backend": "iptables" })).to_string());
    assert_refused("no iptables", &refused, 50, &["iptables-save", "backend nftables"]);
    without.through[2] = "exec env PATH=/run/empty /opt/cni/bin/portmap".to_owned();
    without.call("STATUS", config.to_string()).success();
}

// Requirements: G8
#[test]
fn portmap_bad_options_are_refused_and_change_nothing() {
    let host = host!(Feature::Bridge, Feature::NftFib, Feature::NftMasquerade, Feature::IptablesNft);
    rig::install(&host);
    let a = Chain::new(&host, "a");
    let before = host.snapshot();
    let good = both(8080, 80);
    let port = |keys: Value| json!([with(&mapping(8080, 80, "tcp"), &keys)]);
    for (keys, mappings, words) in [
        (json!({ "backend": "pf" }), &good, &["backend", "\"pf\""][..]),
        (json!({ "backend": 3 }), &good, &["backend", "3"]),
        (json!({ "snat": "yes" }), &good, &["snat", "yes"]),
        (json!({ "masqAll": 1 }), &good, &["masqAll", "1"]),
        (json!({ "markMasqBit": 32 }), &good, &["markMasqBit", "32"]),
        (json!({ "markMasqBit": "x" }), &good, &["markMasqBit", "x"]),
        (
            json!({ "markMasqBit": 1, "externalSetMarkChain": "X" }),
            &good,
            &["externalSetMarkChain", "markMasqBit"],
        ),
        (json!({ "externalSetMarkChain": "X\nCOMMIT" }), &good, &["externalSetMarkChain", "COMMIT"]),
        (
            json!({ "backend": "nftables", "externalSetMarkChain": "X" }),
            &good,
            &["externalSetMarkChain", "iptables"],
        ),
        (
            json!({ "conditionsV4": ["ip saddr 10.0.0.0/8; flush ruleset"] }),
            &good,
            &["conditionsV4", "10.0.0.0/8;"],
        ),
        (json!({ "conditionsV4": ["-s", "10.0.0.0/8", "-j", "ACCEPT"] }), &good, &["conditionsV4", "\"-j\""]),
        (json!({ "conditionsV6": ["ip", "saddr", "10.0.0.0/8"] }), &good, &["conditionsV6", "\"ip\""]),
        (json!({ "backend": "iptables", "conditionsV4": ["-s", "nowhere/"] }), &good, &["iptables-restore"]),
        (json!({}), &port(json!({ "hostPort": 0 })), &["portMappings[0].hostPort", "0"]),
        (json!({}), &port(json!({ "hostPort": 65536 })), &["portMappings", "65536"]),
        (json!({}), &port(json!({ "hostPort": -1 })), &["portMappings", "-1"]),
        (json!({}), &port(json!({ "containerPort": 0 })), &["portMappings[0].containerPort", "0"]),
        (json!({}), &port(json!({ "protocol": "icmp" })), &["portMappings[0].protocol", "icmp"]),
        (json!({}), &port(json!({ "hostIP": "localhost" })), &["portMappings", "localhost"]),
        (json!({}), &json!("8080:80"), &["portMappings", "8080:80"]),
    ] {
        let config = a.config(&keys, mappings);
        let refused = a.plugin.add(&config);
        let (code, message) = rig::refusal(&refused);
        assert!(code == 7 || words == ["iptables-restore"] && code == 5, "{code} {message}");
        assert!(words.iter().all(|word| message.contains(word)), "{words:?} in: {message}");
        host.run(["sysctl", "-qw", "net.ipv4.conf.br0.route_localnet=0"]);
        if words == ["iptables-restore"] {
            // iptables creates a table when it is read.
            continue;
        }
        assert_nothing_left(&message, &host, &before);
    }
    let alone = json!({ "cniVersion": "1.1.0", "name": "net", "type": "portmap", "runtimeConfig": { "portMappings": good } });
    assert_refused("no prevResult", &a.plugin.add(&alone), 7, &["prevResult"]);
    let mut without = a.config(&json!({}), &good);
    without["prevResult"]["ips"] = json!([]);
    assert_refused("no address", &a.plugin.add(&without), 7, &["portMappings", "no address of eth0"]);
}

#[test]
fn portmap_without_mappings_passes_the_result_on() {
    let host = host!(Feature::Bridge, Feature::NftFib);
    rig::install(&host);
    let a = Chain::new(&host, "a");
    let before = host.snapshot();
    for mappings in [json!([]), Value::Null] {
        let config = a.map(&json!({}), &mappings);
        a.plugin.check(&config).success();
        a.plugin.del(&config).success();
        assert_nothing_left("no mappings", &host, &before);
    }
}

// Requirements: G8
#[test]
fn portmap_late_add_failure_leaves_nothing() {
    let host = host!(Feature::Bridge, Feature::NftFib, Feature::IptablesNft);
    rig::install(&host);
    let a = Chain::new(&host, "a");
    let before = host.snapshot();
    // The program of the second family is missing: the first family's commit is undone.
    let script = "mkdir -p /run/half; for p in iptables-save iptables-restore; do ln -sf $(command -v $p) /run/half/; done; exec env PATH=/run/half /opt/cni/bin/portmap";
    let mut half = host.attachment("portmap", &a.pod, "eth0");
    half.through = vec!["sh".to_owned(), "-c".to_owned(), script.to_owned()];
    let config = a.config(&json!({ "backend": "iptables" }), &both(8080, 80));
    assert_refused("no ip6tables", &half.add(&config), 5, &["ip6tables-save"]);
    assert!(traces(&host, &a.pod).is_empty(), "{:?}", traces(&host, &a.pod));
    assert_eq!(host.run(["sysctl", "-n", "net.ipv4.conf.br0.route_localnet"]).trim(), "0");
    // A table of the same name has a map of another type: the kernel refuses the whole transaction.
    host.run(["nft", "add", "table", "inet", "weft_portmap"]);
    host.run(["nft", "add", "map", "inet", "weft_portmap", "ports4", "{ type inet_service : ipv4_addr; }"]);
    assert!(a.plugin.add(&a.config(&json!({}), &both(8080, 80))).code != Some(0));
    host.run(["nft", "delete", "table", "inet", "weft_portmap"]);
    host.run(["rm", "-r", "/run/half"]);
    let changes = rig::changes(&before, &host.snapshot());
    let left: Vec<&str> =
        changes.lines().filter(|line| !line.contains(" nat") && !line.contains("CNI-HOSTPORT")).collect();
    assert!(left.is_empty(), "{}", left.join("\n"));
}

// === scale ===

#[test]
fn portmap_thousand_mappings_are_one_transaction() {
    let host = host!(Feature::Bridge, Feature::NftFib, Feature::NftMasquerade, Feature::IptablesNft);
    rig::install(&host);
    let outside = outside(&host);
    let a = Chain::new(&host, "a");
    let many: Value = (0..1000).map(|at| mapping(20_000 + at, 80, "tcp")).collect();
    let script = "nft monitor >/run/monitor 2>&1 </dev/null & echo $! >/run/monitor.pid; sleep 0.3";
    host.run(["sh", "-c", script]);
    let config = a.map(&json!({}), &many);
    let until = Instant::now() + Duration::from_secs(20);
    while !host.read("/run/monitor").unwrap().contains("new generation") && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
    }
    // Waits for the notification of a second transaction.
    std::thread::sleep(Duration::from_millis(300));
    host.run(["sh", "-c", "kill $(cat /run/monitor.pid)"]);
    let monitor = host.read("/run/monitor").unwrap();
    // The first attempt, for a table that does not exist, changes nothing and is no generation.
    assert_eq!(
        monitor.matches("new generation").count(),
        1,
        "{}",
        &monitor[monitor.len().saturating_sub(2000)..]
    );
    a.plugin.check(&config).success();
    for port in [20_000, 20_500, 20_999] {
        let seen = reached(Transport::Tcp, &outside, &format!("192.0.2.1:{port}"), &a.pod, &a.at(false, 80));
        assert!(seen.is_some(), "{port}");
    }
    a.plugin.del(&config).success();
    assert!(traces(&host, &a.pod).is_empty());
    let config = a.map(&json!({ "backend": "iptables" }), &many);
    a.plugin.check(&config).success();
    let seen = reached(Transport::Tcp, &outside, "192.0.2.1:20999", &a.pod, &a.at(false, 80));
    assert!(seen.is_some(), "iptables");
    a.plugin.del(&config).success();
    assert!(traces(&host, &a.pod).is_empty());
}

#[test]
fn portmap_rules_do_not_grow_with_a_thousand_pods() {
    let host = host!(Feature::Bridge, Feature::NftFib, Feature::NftMasquerade);
    rig::install(&host);
    let a = Chain::new(&host, "a");
    let rules = || host.json(["nft", "-j", "list", "ruleset"]).to_string().matches("{\"rule\":").count();
    let mut plugin = host.attachment("portmap", &a.pod, "eth0");
    let mut first = None;
    for number in 0..1000_u16 {
        plugin.container_id = format!("c{number}");
        let mut config = a.config(&json!({}), &json!([mapping(20_000 + number, 80, "tcp")]));
        config["prevResult"]["ips"] =
            json!([{ "address": format!("10.1.{}.{}/16", number / 250, number % 250 + 2), "interface": 2 }]);
        plugin.add(&config).success();
        first.get_or_insert_with(rules);
    }
    assert_eq!(first, Some(rules()), "rules do not grow with pods");
    let listed = host.json(["nft", "-j", "list", "map", "inet", "weft_portmap", "ports4"]);
    assert_eq!(listed.to_string().matches("weft/portmap/net/").count(), 1000);
    plugin.del(&a.portmap).success();
    let listed = host.json(["nft", "-j", "list", "map", "inet", "weft_portmap", "ports4"]);
    assert_eq!(listed.to_string().matches("weft/portmap/net/").count(), 999, "DEL removes its own entry");
}

// === rules of the Go plugin ===

#[test]
fn portmap_del_removes_nftables_rules_of_the_go_plugin() {
    let host = host!(Feature::Bridge, Feature::NftFib, Feature::NftMasquerade);
    rig::install(&host);
    let a = Chain::new(&host, "a");
    let id = a.pod.container_id();
    // The format of v1.9.1.
    let table = |family: &str, ip: &str, to: &str, bare: &str| {
        format!(
            "table {family} cni_hostport {{\n chain hostports {{\n  tcp dport 8080 dnat to {to} comment \"{id}\"\n  \
             tcp dport 9090 dnat to {to} comment \"other\"\n }}\n chain hostip_hostports {{\n }}\n \
             chain masquerading {{\n  type nat hook postrouting priority srcnat;\n  {ip} saddr {bare} {ip} daddr {bare} masquerade comment \"{id}\"\n }}\n}}\n"
        )
    };
    let rules =
        table("ip", "ip", "10.1.0.2:80", "10.1.0.2") + &table("ip6", "ip6", "[fd01::2]:80", "fd01::2");
    host.command("nft").args(["-f", "-"]).stdin(rules).finish().success();
    assert_eq!(traces(&host, &a.pod).len(), 4);
    a.plugin.del(&a.portmap).success();
    assert!(traces(&host, &a.pod).is_empty(), "{:?}", traces(&host, &a.pod));
    assert_eq!(
        host.run(["nft", "list", "ruleset"]).matches("comment \"other\"").count(),
        2,
        "rules of other containers stay"
    );
}

#[test]
fn portmap_ruleset_can_be_read_back_by_nft() {
    let host = host!(Feature::Bridge, Feature::NftFib, Feature::NftMasquerade);
    rig::install(&host);
    let a = Chain::new(&host, "a");
    let ports =
        json!([mapping(8080, 80, "tcp"), with(&mapping(53, 53, "udp"), &json!({ "hostIP": UPLINK[0] }))]);
    a.map(&json!({}), &ports);
    a.map(
        &json!({ "conditionsV4": ["ip saddr != 10.0.0.0/8 meta mark { 1, 2 }"], "markMasqBit": 31 }),
        &json!([mapping(8081, 80, "sctp")]),
    );
    let written = host.run(["nft", "list", "ruleset"]);
    let again = format!("flush ruleset\n{written}");
    host.command("nft").args(["-f", "-"]).stdin(again).finish().success();
    assert_eq!(host.run(["nft", "list", "ruleset"]), written);
    assert!(written.contains("sctp . 8081"), "{written}");
}
