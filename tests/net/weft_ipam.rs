//! `weft-ipam` on one host, as a runtime runs it: answers, ledgers, and what is left when things go wrong.
//!
//! ```text
//!   Host  /var/lib/weft/ipam/POOL/{ledger, owners}
//!    └─ Pod a   (its namespace is only a path here: no interface is made)
//! ```

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;

use rig::addresses::given;
use rig::{VERSIONS, assert_refused, in_version};
use serde_json::{Value, json};
use testkit::{Attachment, Feature, Host, Pod, binary, require};

/// Where the pool of [`small`] is kept.
const PLACE: &str = "/var/lib/weft/ipam/10.1.2.0-29";

/// A host with the plugin, and a pod.
fn world() -> (Host, Pod) {
    let host = Host::new();
    host.install(&binary("weft-cni"), &["weft-ipam", "whereabouts"]);
    let pod = host.pod("a");
    (host, pod)
}

fn config(ipam: &Value) -> Value {
    let mut ipam = ipam.clone();
    ipam["type"] = json!("weft-ipam");
    ipam["store"] = json!("file");
    json!({ "cniVersion": "1.1.0", "name": "net", "type": "ipvlan", "ipam": ipam })
}

/// Six addresses, no rest.
fn small() -> Value {
    config(&json!({ "range": "10.1.2.0/29", "quarantine": 0 }))
}

/// The attachment of another container.
fn container<'a>(host: &'a Host, pod: &Pod, id: &str) -> Attachment<'a> {
    let mut attachment = host.attachment("weft-ipam", pod, "eth0");
    attachment.container_id = id.to_owned();
    attachment
}

#[track_caller]
fn add(host: &Host, pod: &Pod, id: &str, conf: &Value) -> String {
    given(container(host, pod, id).add(conf)).join(" ")
}

// === the fixed set ===

#[test]
fn an_address_is_added_checked_and_deleted() {
    require!(Feature::Root);
    let (host, pod) = world();
    let conf = config(&json!({
        "range": "10.1.2.0/24", "gateway": "10.1.2.1", "exclude": ["10.1.2.2/31", "10.1.2.4"],
        "ipRanges": [{ "range": "fd00:1::/64", "range_start": "fd00:1::10" }],
        "addresses": [{ "address": "192.0.2.7/24", "gateway": "192.0.2.1" }],
        "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "10.9.0.0/16", "gw": "10.1.2.9" }],
        "dns": { "nameservers": ["192.0.2.53"] },
    }));
    let attachment = container(&host, &pod, "c1");
    let result = attachment.add(&conf).success().json();
    let expected = json!({
        "cniVersion": "1.1.0",
        "ips": [
            { "address": "10.1.2.5/24", "gateway": "10.1.2.1" },
            { "address": "fd00:1::10/64" },
            { "address": "192.0.2.7/24", "gateway": "192.0.2.1" },
        ],
        "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "10.9.0.0/16", "gw": "10.1.2.9" }],
        "dns": { "nameservers": ["192.0.2.53"] },
    });
    assert_eq!(result, expected);
    attachment.check(&conf).success();
    let mut wrong = conf.clone();
    wrong["prevResult"] = json!({ "cniVersion": "1.1.0", "ips": [{ "address": "10.1.2.99/24" }] });
    assert_refused("another address", &attachment.check(&wrong), 999, &["holds 10.1.2.5", "prevResult"]);
    attachment.del(&conf).success();
    assert_refused(
        "deleted",
        &attachment.check(&conf),
        999,
        &["holds no address for eth0 in pool 10.1.2.0-24"],
    );
    let mode = host.run([
        "stat",
        "-c",
        "%a",
        "/var/lib/weft/ipam/10.1.2.0-24/ledger",
        "/var/lib/weft/ipam/10.1.2.0-24",
    ]);
    assert_eq!(mode, "600\n700\n");
}

#[test]
fn a_second_add_gives_the_same_and_a_second_del_is_none() {
    require!(Feature::Root);
    let (host, pod) = world();
    let attachment = container(&host, &pod, "c1");
    assert_refused("nothing yet", &attachment.check(&small()), 999, &["holds no address"]);
    attachment.del(&small()).success();
    let first = add(&host, &pod, "c1", &small());
    assert_eq!(add(&host, &pod, "c1", &small()), first);
    let other = add(&host, &pod, "c2", &small());
    assert_ne!(first, other);
    for _ in 0..2 {
        attachment.del(&small()).success();
    }
    container(&host, &pod, "c2").check(&small()).success();
    let mut gone = container(&host, &pod, "c2");
    gone.netns = String::new();
    gone.del(&small()).success();
}

#[test]
fn every_version_gets_its_answer() {
    require!(Feature::Root);
    let (host, pod) = world();
    for (at, version) in VERSIONS.iter().enumerate() {
        let conf = in_version(&config(&json!({ "range": "10.3.0.0/24" })), version);
        let ips = add(&host, &pod, &format!("c{at}"), &conf);
        assert_eq!(ips, format!("10.3.0.{}", at + 1), "{version}");
        container(&host, &pod, &format!("c{at}")).del(&conf).success();
    }
}

#[test]
fn under_the_name_of_whereabouts_its_configurations_run_unchanged() {
    require!(Feature::Root);
    let (host, pod) = world();
    let cases = [
        (json!({ "range": "192.168.2.225-192.168.2.230/28" }), "192.168.2.225"),
        (
            json!({ "range": "192.168.2.225/28", "range_start": "192.168.2.229", "range_end": "192.168.2.230" }),
            "192.168.2.229",
        ),
        (
            json!({ "range": "192.168.3.0/24", "exclude": ["192.168.3.0/30"], "gateway": "192.168.3.254", "log_file": "/tmp/x", "log_level": "debug",
            "kubernetes": { "kubeconfig": "/etc/x" }, "enable_overlapping_ranges": true, "leader_lease_duration": 1500 }),
            "192.168.3.4",
        ),
        (json!({ "network_name": "blue", "range": "192.168.3.0/24" }), "192.168.3.1"),
        (
            json!({ "ipRanges": [{ "range": "192.168.10.0/24" }, { "range": "abcd::/64" }] }),
            "192.168.10.1 abcd::1",
        ),
        // One gateway for all of its family: none of them is given.
        (
            json!({ "gateway": "192.168.11.1", "ipRanges": [{ "range": "192.168.11.0/24" }, { "range": "abce::/64" }] }),
            "192.168.11.2 abce::1",
        ),
        (
            json!({ "range": "192.168.12.0/24", "gateway": "abcd::1", "exclude": ["abcd::/64"] }),
            "192.168.12.1",
        ),
    ];
    for (at, (ipam, expected)) in cases.into_iter().enumerate() {
        let mut conf = config(&ipam);
        conf["ipam"]["type"] = json!("whereabouts");
        let mut attachment = container(&host, &pod, &format!("c{at}"));
        attachment.plugin = "whereabouts".to_owned();
        attachment.args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=blue;K8S_POD_NAME=p{at}");
        assert_eq!(given(attachment.add(&conf)).join(" "), expected, "{ipam}");
        attachment.del(&conf).success();
    }
}

#[test]
fn a_gateway_may_be_link_local_and_under_the_name_of_whereabouts_anywhere() {
    require!(Feature::Root);
    let (host, pod) = world();
    let cases: [(Value, &[&str]); 3] = [
        (
            json!({ "range": "10.1.2.0/29", "gateway": "10.1.3.1" }),
            &["ipam.gateway", "10.1.3.1", "not in 10.1.2.0/29 and not link-local"],
        ),
        (
            json!({ "ipRanges": [{ "range": "fd00::/64", "gateway": "fd01::1" }] }),
            &["ipam.ipRanges[0].gateway", "fd01::1", "not in fd00::/64"],
        ),
        (
            json!({ "ranges": [[{ "subnet": "10.1.2.0/29", "gateway": "10.1.2.8" }]] }),
            &["ipam.ranges[0].gateway", "10.1.2.8", "not in 10.1.2.0/29"],
        ),
    ];
    for (ipam, words) in cases {
        assert_refused("outside", &container(&host, &pod, "c0").add(&config(&ipam)), 7, words);
    }
    let local = json!({ "range": "10.1.2.0/29", "gateway": "169.254.1.1",
        "ipRanges": [{ "range": "fd00:1::/64", "gateway": "fe80::1" }] });
    let result = container(&host, &pod, "c1").add(&config(&local)).success().json();
    assert_eq!(
        result["ips"],
        json!([{ "address": "10.1.2.1/29", "gateway": "169.254.1.1" },
            { "address": "fd00:1::1/64", "gateway": "fe80::1" }])
    );
    let mut outside = config(&json!({ "range": "10.1.2.0/29", "gateway": "10.1.3.1" }));
    outside["ipam"]["type"] = json!("whereabouts");
    let mut attachment = container(&host, &pod, "c2");
    attachment.plugin = "whereabouts".to_owned();
    let result = attachment.add(&outside).success().json();
    assert_eq!(result["ips"], json!([{ "address": "10.1.2.2/29", "gateway": "10.1.3.1" }]));
}

#[test]
fn configurations_of_host_local_run_unchanged() {
    require!(Feature::Root);
    let (host, pod) = world();
    host.write("/etc/test-resolv.conf", "nameserver 192.0.2.1\n");
    let conf = config(&json!({
        "ranges": [[{ "subnet": "10.4.0.0/30" }, { "subnet": "10.4.1.0/29", "rangeStart": "10.4.1.3" }], [{ "subnet": "fd00:4::/64" }]],
        "resolvConf": "/etc/test-resolv.conf", "dataDir": "/var/lib/cni/elsewhere",
    }));
    let result = container(&host, &pod, "c1").add(&conf).success().json();
    assert_eq!(
        result["ips"],
        json!([{ "address": "10.4.0.2/30", "gateway": "10.4.0.1" }, { "address": "fd00:4::2/64", "gateway": "fd00:4::1" }])
    );
    assert_eq!(result["dns"], json!({ "nameservers": ["192.0.2.1"] }));
    // The first range of the set is full: the next.
    assert_eq!(add(&host, &pod, "c2", &conf), "10.4.1.3 fd00:4::3");
    assert!(
        host.read("/var/lib/cni/elsewhere/10.4.0.0-30/ledger").is_some()
            || host.attempt(["test", "-e", "/var/lib/cni/elsewhere/10.4.0.0-30/ledger"]).code == Some(0)
    );
}

// === what is asked for ===

#[test]
fn an_address_that_is_asked_for_is_given_or_refused_by_whatever_channel() {
    require!(Feature::Root);
    let (host, pod) = world();
    let asking = |id: &str, ip: &str, channel: usize| {
        let mut conf = small();
        let mut attachment = container(&host, &pod, id);
        match channel {
            0 => attachment.args = format!("IP={ip}"),
            1 => conf["args"] = json!({ "cni": { "ips": [ip] } }),
            _ => conf["runtimeConfig"] = json!({ "ips": [format!("{ip}/29")] }),
        }
        attachment.add(&conf)
    };
    for (channel, ip) in ["10.1.2.3", "10.1.2.4", "10.1.2.5"].into_iter().enumerate() {
        assert_eq!(given(asking(&format!("c{channel}"), ip, channel)), [ip]);
        assert_refused(
            "held",
            &asking("other", ip, channel),
            11,
            &["pool 10.1.2.0-29", ip, &format!("c{channel}, eth0 of net, holds it")],
        );
        assert_eq!(given(asking(&format!("c{channel}"), ip, channel)), [ip], "the same once more");
    }
    assert_refused(
        "elsewhere",
        &asking("c9", "10.1.3.3", 0),
        7,
        &["CNI_ARGS IP", "10.1.3.3", "in none of the ranges"],
    );
    assert_eq!(add(&host, &pod, "c8", &small()), "10.1.2.1");
    container(&host, &pod, "c0").del(&small()).success();
    assert_eq!(given(asking("c7", "10.1.2.3", 1)), ["10.1.2.3"], "whoever names it need not wait");
}

#[test]
fn an_address_of_a_lease_is_given_up_for_another_node_unless_it_is_held() {
    require!(Feature::Root);
    let (host, pod) = world();
    // Without a cluster the lease of a block has the block's name.
    assert_eq!(add(&host, &pod, "c1", &small()), "10.1.2.1");
    let weft_cni = binary("weft-cni");
    let give_up = |pool: &str, lease: &str, ip: &str| {
        let words = ["release-address", "/var/lib/weft/ipam", pool, lease, ip];
        host.command(weft_cni.to_str().unwrap()).args(words).finish()
    };
    let held = give_up("10.1.2.0-29", "10.1.2.0/29", "10.1.2.1");
    assert_eq!((held.code, held.stdout.as_str()), (Some(3), "container c1, eth0 of net,\n"));
    for (pool, lease) in [("10.1.2.0-29", "x"), ("10.9.9.0-29", "10.1.2.0/29")] {
        assert_eq!(give_up(pool, lease, "10.1.2.2").code, Some(4), "{pool} {lease}");
    }
    for (pool, ip, code, why) in [
        ("../x", "10.1.2.2", 1, "not a name"),
        ("", "10.1.2.2", 1, "not a name"),
        ("p", "x", 2, "not an address"),
    ] {
        let refused = give_up(pool, "l", ip);
        assert!(refused.code == Some(code) && refused.stderr.contains(why), "{refused:?}");
    }
    for _ in 0..2 {
        give_up("10.1.2.0-29", "10.1.2.0/29", "10.1.2.2").success();
    }
    let mut asking = small();
    asking["args"] = json!({ "cni": { "ips": ["10.1.2.2"] } });
    assert_refused("another's", &container(&host, &pod, "c2").add(&asking), 11, &["10.1.2.2"]);
    let rest: Vec<String> = (2..6).map(|at| add(&host, &pod, &format!("c{at}"), &small())).collect();
    assert_eq!(rest, ["10.1.2.3", "10.1.2.4", "10.1.2.5", "10.1.2.6"]);
    container(&host, &pod, "c1").check(&small()).success();
}

// === fullness ===

#[test]
fn a_full_pool_refuses_with_its_name_and_every_address_comes_back() {
    require!(Feature::Root);
    let (host, pod) = world();
    let all: BTreeSet<String> = (0..6).map(|at| add(&host, &pod, &format!("c{at}"), &small())).collect();
    assert_eq!(all.len(), 6);
    let words = ["pool 10.1.2.0-29", "10.1.2.1-10.1.2.6", "no address is free"];
    assert_refused("full", &container(&host, &pod, "c9").add(&small()), 11, &words);
    let probed = container(&host, &pod, "x").call("STATUS", small().to_string());
    let details = probed.json()["details"].clone();
    assert_refused("full", &probed, 50, &words);
    assert_eq!(details, json!("in the blocks of this node 6 are held, 0 in quarantine, 0 free"));
    container(&host, &pod, "c3").del(&small()).success();
    container(&host, &pod, "x").call("STATUS", small().to_string()).success();
    let mut dynamic = small();
    dynamic["ipam"] = json!({ "type": "weft-ipam" });
    container(&host, &pod, "x").call("STATUS", dynamic.to_string()).success();
    assert!(all.contains(&add(&host, &pod, "c9", &small())));
}

#[test]
fn a_freed_address_rests_and_the_one_free_longest_goes_first() {
    require!(Feature::Root);
    let (host, pod) = world();
    let conf = config(&json!({ "range": "10.1.2.0/29" }));
    let all: Vec<String> = (0..6).map(|at| add(&host, &pod, &format!("c{at}"), &conf)).collect();
    for at in [4, 1] {
        container(&host, &pod, &format!("c{at}")).del(&conf).success();
    }
    assert_refused("resting", &container(&host, &pod, "n").add(&conf), 11, &["in quarantine"]);
    let mut impatient = conf;
    impatient["ipam"]["quarantine"] = json!(0);
    assert_eq!(add(&host, &pod, "n0", &impatient), all[4]);
    assert_eq!(add(&host, &pod, "n1", &impatient), all[1]);
}

#[test]
fn a_failed_add_of_two_addresses_keeps_neither() {
    require!(Feature::Root);
    let (host, pod) = world();
    let both = config(
        &json!({ "quarantine": 0, "ipRanges": [{ "range": "10.5.0.0/24" }, { "range": "10.1.2.0/30" }] }),
    );
    add(&host, &pod, "c1", &both);
    add(&host, &pod, "c2", &both);
    assert_refused("the second is full", &container(&host, &pod, "c3").add(&both), 11, &["pool 10.1.2.0-30"]);
    // What c3 took of the first is free: addresses go round before it is its turn again, so look at the ledger.
    assert_eq!(held(&host, "/var/lib/weft/ipam/10.5.0.0-24"), 2);
}

/// How many addresses are held, by the bytes of the ledger: behind 12,288 are slots, whose eighth byte is their state.
fn held(host: &Host, place: &str) -> usize {
    let hex = host.run(["sh", "-c", &format!("od -An -v -tx1 -w16 -j12288 {place}/ledger")]);
    hex.lines().filter(|line| line.split_whitespace().nth(7) == Some("01")).count()
}

// === GC, boot ===

#[test]
fn a_repeated_add_that_fails_leaves_what_the_container_holds() {
    require!(Feature::Root);
    let (host, pod) = world();
    let first = add(&host, &pod, "c1", &small());
    let mut both = small();
    both["ipam"]["ipRanges"] = json!([{ "range": "10.5.0.0/30" }]);
    assert_eq!(add(&host, &pod, "other", &both).split(' ').count(), 2);
    // The second range has two addresses, and this takes the other.
    add(&host, &pod, "another", &both);
    let refused = container(&host, &pod, "c1").add(&both);
    assert_refused("full", &refused, 11, &["pool 10.5.0.0-30"]);
    container(&host, &pod, "c1").check(&small()).success();
    assert_eq!(add(&host, &pod, "c1", &small()), first);
    // Nor what it holds of a range that was not come to, because one before it is full.
    let held = add(&host, &pod, "other", &both);
    let mut full = both.clone();
    full["ipam"]["range"] = json!("10.7.0.0/30");
    for id in ["x", "y"] {
        add(&host, &pod, id, &config(&json!({ "range": "10.7.0.0/30" })));
    }
    let refused = container(&host, &pod, "other").add(&full);
    assert_refused("full", &refused, 11, &["pool 10.7.0.0-30"]);
    container(&host, &pod, "other").check(&both).success();
    assert_eq!(add(&host, &pod, "other", &both), held);
}

#[test]
fn a_repeated_add_finds_its_address_in_whichever_range_it_is() {
    require!(Feature::Root);
    let (host, pod) = world();
    let conf = config(&json!({
        "quarantine": 0, "ranges": [[{ "subnet": "10.5.0.0/30" }, { "subnet": "10.6.0.0/30" }]],
    }));
    assert_eq!(add(&host, &pod, "c1", &conf), "10.5.0.2");
    assert_eq!(add(&host, &pod, "c2", &conf), "10.6.0.2");
    container(&host, &pod, "c1").del(&conf).success();
    assert_eq!(add(&host, &pod, "c2", &conf), "10.6.0.2");
    assert_eq!(add(&host, &pod, "c3", &conf), "10.5.0.2");
}

#[test]
fn gc_frees_what_is_not_valid_any_more_of_this_network() {
    require!(Feature::Root);
    let (host, pod) = world();
    let mut other = small();
    other["name"] = json!("other");
    for id in ["c1", "c2"] {
        add(&host, &pod, id, &small());
        add(&host, &pod, &format!("o-{id}"), &other);
    }
    container(&host, &pod, "x").call("GC", small().to_string()).success();
    assert_eq!(held(&host, PLACE), 4, "without a list nothing goes");
    let mut sweep = small();
    sweep["cni.dev/valid-attachments"] = json!([{ "containerID": "c2", "ifname": "eth0" }]);
    container(&host, &pod, "x").call("GC", sweep.to_string()).success();
    assert_eq!(held(&host, PLACE), 3);
    container(&host, &pod, "c2").check(&small()).success();
    container(&host, &pod, "o-c1").check(&other).success();
}

#[test]
fn what_was_held_before_a_boot_is_free_after_it() {
    require!(Feature::Root);
    let (host, pod) = world();
    for at in 0..6 {
        add(&host, &pod, &format!("c{at}"), &small());
    }
    // The boot that the ledger knows.
    host.run([
        "sh",
        "-c",
        &format!("printf another-boot | dd of={PLACE}/ledger bs=1 seek=16 conv=notrunc status=none"),
    ]);
    add(&host, &pod, "after", &small());
    assert_eq!(held(&host, PLACE), 1);
    container(&host, &pod, "c0").del(&small()).success();
    container(&host, &pod, "after").check(&small()).success();
}

// === many at once, killed at any moment ===

#[test]
fn thirty_two_at_once_get_thirty_two_addresses() {
    require!(Feature::Root);
    let (host, pod) = world();
    let conf = config(&json!({ "range": "10.6.0.0/24" }));
    let (host, pod, conf) = (&host, &pod, &conf);
    let all: Vec<String> = std::thread::scope(|scope| {
        let calls: Vec<_> =
            (0..32).map(|at| scope.spawn(move || add(host, pod, &format!("c{at}"), conf))).collect();
        calls.into_iter().map(|call| call.join().unwrap()).collect()
    });
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), 32, "{all:?}");
    assert_eq!(held(host, "/var/lib/weft/ipam/10.6.0.0-24"), 32);
}

#[test]
fn an_add_or_del_that_is_killed_anywhere_leaves_a_ledger_that_is_right() {
    require!(Feature::Root);
    let (host, pod) = world();
    let conf = small();
    let mut delay = 0;
    for round in 0..60 {
        delay = (delay + 37) % 2_500;
        let verb = if round % 2 == 0 { "ADD" } else { "DEL" };
        let mut attachment = container(&host, &pod, &format!("k{}", round / 2));
        attachment.through = vec!["timeout".into(), "-s".into(), "KILL".into(), format!("0.{delay:06}")];
        let _ = attachment.call(verb, conf.to_string());
        if verb == "DEL" {
            container(&host, &pod, &format!("k{}", round / 2)).del(&conf).success();
        }
    }
    assert_eq!(held(&host, PLACE), 0);
    let all: BTreeSet<String> = (0..6).map(|at| add(&host, &pod, &format!("c{at}"), &conf)).collect();
    assert_eq!(all.len(), 6);
}

// === what is wrong ===

#[test]
fn bad_configurations_are_refused_by_key_and_value_and_change_nothing() {
    require!(Feature::Root);
    let (host, pod) = world();
    let cases: &[(Value, &[&str])] = &[
        (json!({}), &["ipam.range: missing"]),
        (json!({ "range": "10.1.2.0" }), &["ipam.range", "\"10.1.2.0\"", "CIDR"]),
        (json!({ "range": "10.1.2.0/31" }), &["ipam.range", "10.1.2.0/31", "too small"]),
        (
            json!({ "range": "10.1.2.0/24", "range_start": "10.1.3.1" }),
            &["ipam.range_start", "10.1.3.1", "not in subnet"],
        ),
        (json!({ "range": "10.1.2.9-10.1.2.3/24" }), &["ipam.range: 10.1.2.3", "before the first"]),
        (
            json!({ "range": "10.1.2.0/24", "range_start": "10.1.2.9", "range_end": "10.1.2.3" }),
            &["ipam.range_end", "10.1.2.3", "before"],
        ),
        (json!({ "range": "10.1.2.0/29", "exclude": ["10.1.2.0/29"] }), &["ipam.exclude", "nothing is left"]),
        (json!({ "range": "10.1.2.0/29", "exclude": ["x"] }), &["ipam.exclude[0]", "\"x\""]),
        (json!({ "range": "10.1.2.0/29", "gateway": "x" }), &["ipam.gateway", "\"x\""]),
        (json!({ "ipRanges": [{ "range": "10.1.0.0/16" }, { "range": "10.1.2.0/24" }] }), &["overlaps"]),
        (
            json!({ "ranges": [[{ "subnet": "10.1.0.0/16" }, { "subnet": "fd00::/64" }]] }),
            &["ipam.ranges[0]", "not of the family"],
        ),
        (json!({ "ranges": [[]] }), &["ipam.ranges[0]", "empty range set"]),
        (
            json!({ "range": "10.1.2.0/29", "store": "etcd" }),
            &["ipam.store", "\"etcd\"", "neither cluster nor file"],
        ),
        (
            json!({ "range": "10.1.2.0/29", "dataDir": "here" }),
            &["ipam.dataDir", "\"here\"", "not an absolute path"],
        ),
        (
            json!({ "range": "10.1.2.0/29", "network_name": "../x" }),
            &["ipam.network_name", "\"../x\"", "not a name"],
        ),
        (json!({ "range": "10.1.2.0/29", "pool": "A" }), &["ipam.pool", "\"A\"", "not a name"]),
        (json!({ "range": "10.1.2.0/29", "routes": [{ "dst": "x" }] }), &["ipam.routes[0].dst"]),
        (
            json!({ "range": "10.1.2.0/29", "addresses": [{ "address": "1.2.3.4" }] }),
            &["ipam.addresses[0].address", "1.2.3.4"],
        ),
        (json!({ "range": "10.1.2.0/29", "sticky": true }), &["ipam.sticky", "names no pod"]),
        (json!({ "range": 5 }), &["ipam.range: 5"]),
    ];
    for (ipam, words) in cases {
        let mut conf = config(ipam);
        if ipam.get("store").is_some() {
            conf["ipam"]["store"] = ipam["store"].clone();
        }
        assert_refused(&ipam.to_string(), &container(&host, &pod, "c1").add(&conf), 7, words);
    }
    assert_ne!(host.attempt(["ls", "/var/lib/weft/ipam"]).code, Some(0));
}

#[test]
fn what_a_pod_asks_to_keep_is_refused_where_it_is_no_name_or_the_network_keeps_nothing() {
    let (host, pod) = world();
    let asked = |kept: Value, asks: Value| {
        let mut conf = config(&json!({ "range": "10.1.2.0/29", "store": "cluster", "sticky": kept }));
        conf["ipam"]["store"] = json!("cluster");
        conf["args"] = json!({ "cni": asks });
        container(&host, &pod, "c1").add(&conf)
    };
    let refused = asked(json!(false), json!({ "sticky": true }));
    assert_refused("a network that keeps nothing", &refused, 7, &["args.cni.sticky", "ipam.sticky is false"]);
    // By `cni-args` it comes as a pod wrote it; the agent looks it up by a path of the API.
    for claim in ["..", "a/../../other/ipamclaims/b", "a?b", "A"] {
        let refused = asked(json!(false), json!({ "ipam-claim-reference": claim }));
        assert_refused(claim, &refused, 7, &["args.cni.ipam-claim-reference", claim]);
    }
    assert_ne!(host.attempt(["ls", "/var/lib/weft/ipam"]).code, Some(0));
}

#[test]
fn ranges_gateways_and_exclusions_that_serve_nobody_are_refused() {
    require!(Feature::Root);
    let (host, pod) = world();
    let cases: &[(Value, &[&str])] = &[
        (json!({ "range": "0.0.0.0/0" }), &["ipam.range", "0.0.0.0/0", "of no host"]),
        (json!({ "range": "224.1.0.0/16" }), &["ipam.range", "224.1.0.0/16", "multicast"]),
        (
            json!({ "ipRanges": [{ "range": "ff02::/64" }] }),
            &["ipam.ipRanges[0].range", "ff02::/64", "multicast"],
        ),
        (
            json!({ "range": "10.1.2.0/24", "gateway": "fd00::1" }),
            &["ipam.gateway", "fd00::1", "not in 10.1.2.0/24"],
        ),
        (
            json!({ "ipRanges": [{ "range": "10.1.2.0/24" }, { "range": "fd00::/64" }], "gateway": "10.1.3.1" }),
            &["ipam.gateway", "10.1.3.1", "in none of the ranges"],
        ),
        (
            json!({ "range": "10.1.2.0/24", "exclude": ["fd00::/64"] }),
            &["ipam.exclude", "fd00::/64", "not of the family"],
        ),
    ];
    for (ipam, words) in cases {
        assert_refused(&ipam.to_string(), &container(&host, &pod, "c1").add(&config(ipam)), 7, words);
    }
}

#[test]
fn a_file_that_is_no_ledger_gives_nothing_and_stays_as_it_is() {
    require!(Feature::Root);
    let (host, pod) = world();
    host.run(["mkdir", "-p", PLACE]);
    host.write(format!("{PLACE}/ledger"), "kept for the printer");
    for verb in ["ADD", "CHECK"] {
        let refused = container(&host, &pod, "c1").call(verb, small().to_string());
        let words =
            [PLACE, "not an address store of this version", "restore the file, or remove its directory"];
        assert_refused(verb, &refused, 7, &words);
    }
    assert_refused("STATUS", &container(&host, &pod, "c1").call("STATUS", small().to_string()), 50, &[PLACE]);
    // Nothing was ever given from it: nothing is to be remembered.
    container(&host, &pod, "c1").del(&small()).success();
    assert_eq!(host.read(format!("{PLACE}/released")), None);
    assert_eq!(host.read(format!("{PLACE}/ledger")).as_deref(), Some("kept for the printer"));
}

#[test]
fn a_pod_ends_while_its_ledger_is_spoilt_and_nothing_is_given_twice_or_lost() {
    require!(Feature::Root);
    let (host, pod) = world();
    let (ledger, released) = (format!("{PLACE}/ledger"), format!("{PLACE}/released"));
    let shell = |line: &str| host.run(["sh", "-c", &line.replace("LEDGER", &ledger)]);
    // What a hand, a full disk or a bad one makes of it, and what is said of it.
    let spoilt = [
        ("echo nonsense > LEDGER", "not an address store of this version"),
        ("printf '\\143' | dd of=LEDGER bs=1 seek=2048 conv=notrunc status=none", "block 0 is invalid"),
        ("printf '\\144' | dd of=LEDGER bs=1 seek=2050 conv=notrunc status=none", "block 0 is invalid"),
        ("truncate -s 128 LEDGER", "truncated: 0 of 1 groups of 16 blocks are present"),
        ("truncate -s 0 LEDGER", "empty, though addresses were allocated from it"),
        ("rm LEDGER; mkdir LEDGER", "is a directory"),
    ];
    for (at, (spoil, why)) in spoilt.into_iter().enumerate() {
        let id = |name: &str| format!("{name}{at}");
        let given: Vec<String> = ["a", "b", "c"].map(|name| add(&host, &pod, &id(name), &small())).into();
        shell("cp LEDGER /var/lib/weft/saved");
        shell(spoil);
        let before = shell("stat -c %s-%F LEDGER; cat LEDGER 2>/dev/null | sha256sum");
        let code = if why == "is a directory" { 5 } else { 7 };
        assert_refused(spoil, &container(&host, &pod, &id("n")).add(&small()), code, &[&ledger, why]);
        // The second DEL of one says nothing new, nor does that of a pod which has no address.
        for name in ["a", "a", "b", "n"] {
            container(&host, &pod, &id(name)).del(&small()).success();
        }
        let lines = format!("net {} eth0\nnet {} eth0\n", id("a"), id("b"));
        assert_eq!(host.read(&released), Some(lines), "{spoil}");
        assert_eq!(shell("stat -c %s-%F LEDGER; cat LEDGER 2>/dev/null | sha256sum"), before, "{spoil}");
        shell("rm -r LEDGER; cp /var/lib/weft/saved LEDGER");
        container(&host, &pod, &id("c")).check(&small()).success();
        assert_eq!((held(&host, PLACE), host.read(&released)), (1, None), "{spoil}");
        let mut again = BTreeSet::from([given[2].clone()]);
        again.extend((0..5).map(|more| add(&host, &pod, &format!("m{more}"), &small())));
        assert_eq!(again.len(), 6, "{spoil}: all of it may be given, and nothing twice");
        container(&host, &pod, &id("c")).del(&small()).success();
        (0..5).for_each(|more| drop(container(&host, &pod, &format!("m{more}")).del(&small()).success()));
    }
    // It was moved away, the rest is still there: no new one is begun beside it.
    add(&host, &pod, "last", &small());
    shell("mv LEDGER /var/lib/weft/saved");
    container(&host, &pod, "last").del(&small()).success();
    assert_eq!(host.read(&released).as_deref(), Some("net last eth0\n"));
    assert_refused(
        "moved",
        &container(&host, &pod, "n").add(&small()),
        7,
        &["empty, though addresses were allocated"],
    );
    shell("rm LEDGER");
    host.run(["rm", "-r", PLACE]);
    add(&host, &pod, "anew", &small());
}

#[test]
fn another_networks_broken_ledger_keeps_no_pod_from_ending() {
    require!(Feature::Root);
    let (host, pod) = world();
    let broken = Path::new(PLACE).with_file_name("broken");
    host.write(broken.join("ledger"), "kept for the printer");
    add(&host, &pod, "c1", &small());
    // The second has nothing to give back here, and looks at the others.
    for round in ["held", "given back"] {
        container(&host, &pod, "c1").del(&small()).success();
        assert_eq!(held(&host, PLACE), 0, "{round}");
    }
    assert_eq!(host.read(broken.join("ledger")).as_deref(), Some("kept for the printer"));
}

#[test]
fn without_an_agent_an_add_says_whom_it_needs_and_a_del_needs_nobody() {
    require!(Feature::Root);
    let (host, pod) = world();
    let mut conf = small();
    conf["ipam"]["store"] = json!("cluster");
    let attachment = container(&host, &pod, "c1");
    let words = ["pool 10.1.2.0-29", "no free address on this node", "/run/weft/agent.sock"];
    assert_refused("no agent", &attachment.add(&conf), 11, &words);
    attachment.del(&conf).success();
    assert_refused("no agent", &attachment.call("STATUS", conf.to_string()), 50, &["no agent"]);
}

#[test]
fn a_del_works_when_the_ranges_have_become_wrong() {
    require!(Feature::Root);
    let (host, pod) = world();
    add(&host, &pod, "c1", &small());
    for ipam in [json!({ "range": "nonsense" }), json!({ "range": "10.99.0.0/24" })] {
        container(&host, &pod, "c1").del(&config(&ipam)).success();
        assert_eq!(held(&host, PLACE), 0, "{ipam}");
        add(&host, &pod, "c1", &small());
    }
}

#[test]
fn ipv6_of_any_size_is_given() {
    require!(Feature::Root);
    let (host, pod) = world();
    for (range, first) in
        [("fd00:6::/48", "fd00:6::1"), ("fd00:7::/126", "fd00:7::1"), ("fd00:8::ff00/120", "fd00:8::ff01")]
    {
        let ip = add(&host, &pod, &range.replace([':', '/'], "-"), &config(&json!({ "range": range })));
        assert_eq!(ip.parse::<IpAddr>().unwrap(), first.parse::<IpAddr>().unwrap(), "{range}");
    }
}

/// Whatever cannot be opened, the boot's id for one: nothing that is held is taken for free.
#[test]
fn a_call_that_may_open_few_files_frees_nothing() {
    require!(Feature::Root);
    let (host, pod) = world();
    let first = add(&host, &pod, "a", &small());
    let mut checked = small();
    checked["prevResult"] = json!({ "cniVersion": "1.1.0", "ips": [{ "address": format!("{first}/29") }] });
    container(&host, &pod, "a").check(&checked).success();
    for most in 3..12 {
        let few = |id: &str| {
            let mut attachment = container(&host, &pod, id);
            attachment.through = vec!["prlimit".into(), format!("--nofile={most}:{most}"), "--".into()];
            attachment
        };
        few("a").check(&checked);
        few("other").del(&small());
        few("b").add(&small());
        for other in ["b", "c"] {
            assert_ne!(add(&host, &pod, other, &small()), first, "with {most} descriptors");
        }
        for other in ["b", "c"] {
            container(&host, &pod, other).del(&small()).success();
        }
        container(&host, &pod, "a").check(&checked).success();
    }
}
