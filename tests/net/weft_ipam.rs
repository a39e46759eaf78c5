//! Tests for `weft-ipam` on one host, as a runtime executes it: results, address stores, and leftovers after
//! failures.
//!
//! ```text
//!   Host  /var/lib/weft/ipam/POOL/{ledger, owners}
//!    └─ Pod a   (only the path of its namespace is used: no interface is created)
//! ```

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;

use rig::addresses::allocated;
use rig::{VERSIONS, assert_refused, in_version};
use serde_json::{Value, json};
use testkit::{Attachment, Feature, Host, Pod, binary, require};

/// Directory of the address store for the pool in [`small`].
const PLACE: &str = "/var/lib/weft/ipam/10.1.2.0-29";

/// Name of an address store's file.
const STORE_FILE: &str = "ledger";

/// Returns a host with the plugin, and a pod.
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

/// Returns a configuration with six addresses and no quarantine.
fn small() -> Value {
    config(&json!({ "range": "10.1.2.0/29", "quarantine": 0 }))
}

/// Returns the attachment of a container with this id.
fn container<'a>(host: &'a Host, pod: &Pod, id: &str) -> Attachment<'a> {
    let mut attachment = host.attachment("weft-ipam", pod, "eth0");
    attachment.container_id = id.to_owned();
    attachment
}

#[track_caller]
fn add(host: &Host, pod: &Pod, id: &str, conf: &Value) -> String {
    allocated(container(host, pod, id).add(conf)).join(" ")
}

// === tests that every plugin has ===

#[test]
fn weft_ipam_address_is_added_checked_and_deleted() {
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
fn weft_ipam_add_and_del_are_idempotent() {
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
fn weft_ipam_result_has_each_cni_version() {
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
fn weft_ipam_whereabouts_configurations_work_unchanged() {
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
        // The gateway is for all ranges of its family, and is not allocated.
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
        assert_eq!(allocated(attachment.add(&conf)).join(" "), expected, "{ipam}");
        attachment.del(&conf).success();
    }
}

#[test]
fn weft_ipam_gateway_outside_of_range_needs_whereabouts_name() {
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
fn weft_ipam_host_local_configurations_work_unchanged() {
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
    // The first range of the set is full, so the next range is used.
    assert_eq!(add(&host, &pod, "c2", &conf), "10.4.1.3 fd00:4::3");
    assert!(
        host.read("/var/lib/cni/elsewhere/10.4.0.0-30/ledger").is_some()
            || host.attempt(["test", "-e", "/var/lib/cni/elsewhere/10.4.0.0-30/ledger"]).code == Some(0)
    );
}

// === requested addresses ===

#[test]
fn weft_ipam_requested_address_is_allocated_or_refused() {
    require!(Feature::Root);
    let (host, pod) = world();
    let add_with_request = |id: &str, ip: &str, channel: usize| {
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
        assert_eq!(allocated(add_with_request(&format!("c{channel}"), ip, channel)), [ip]);
        assert_refused(
            "held",
            &add_with_request("other", ip, channel),
            11,
            &["pool 10.1.2.0-29", ip, &format!("c{channel}, eth0 of net, holds it")],
        );
        assert_eq!(
            allocated(add_with_request(&format!("c{channel}"), ip, channel)),
            [ip],
            "a repeated ADD returns the same"
        );
    }
    assert_refused(
        "elsewhere",
        &add_with_request("c9", "10.1.3.3", 0),
        7,
        &["CNI_ARGS IP", "10.1.3.3", "in none of the ranges"],
    );
    assert_eq!(add(&host, &pod, "c8", &small()), "10.1.2.1");
    container(&host, &pod, "c0").del(&small()).success();
    assert_eq!(
        allocated(add_with_request("c7", "10.1.2.3", 1)),
        ["10.1.2.3"],
        "a requested address may be in quarantine"
    );
}

#[test]
fn weft_ipam_release_address_command_refuses_a_held_address() {
    require!(Feature::Root);
    let (host, pod) = world();
    // Without a cluster, the lease of a block has the block's name.
    assert_eq!(add(&host, &pod, "c1", &small()), "10.1.2.1");
    let weft_cni = binary("weft-cni");
    let release_address = |pool: &str, lease: &str, ip: &str| {
        let words = ["release-address", "/var/lib/weft/ipam", pool, lease, ip];
        host.command(weft_cni.to_str().unwrap()).args(words).finish()
    };
    let held = release_address("10.1.2.0-29", "10.1.2.0/29", "10.1.2.1");
    assert_eq!((held.code, held.stdout.as_str()), (Some(3), "container c1, eth0 of net,\n"));
    for (pool, lease) in [("10.1.2.0-29", "x"), ("10.9.9.0-29", "10.1.2.0/29")] {
        assert_eq!(release_address(pool, lease, "10.1.2.2").code, Some(4), "{pool} {lease}");
    }
    for (pool, ip, code, why) in [
        ("../x", "10.1.2.2", 1, "not a name"),
        ("", "10.1.2.2", 1, "not a name"),
        ("p", "x", 2, "not an address"),
    ] {
        let refused = release_address(pool, "l", ip);
        assert!(refused.code == Some(code) && refused.stderr.contains(why), "{refused:?}");
    }
    for _ in 0..2 {
        release_address("10.1.2.0-29", "10.1.2.0/29", "10.1.2.2").success();
    }
    let mut add_with_request = small();
    add_with_request["args"] = json!({ "cni": { "ips": ["10.1.2.2"] } });
    assert_refused(
        "released to another node",
        &container(&host, &pod, "c2").add(&add_with_request),
        11,
        &["10.1.2.2"],
    );
    let rest: Vec<String> = (2..6).map(|at| add(&host, &pod, &format!("c{at}"), &small())).collect();
    assert_eq!(rest, ["10.1.2.3", "10.1.2.4", "10.1.2.5", "10.1.2.6"]);
    container(&host, &pod, "c1").check(&small()).success();
}

// === full pools ===

#[test]
fn weft_ipam_full_pool_refuses_and_freed_address_is_reused() {
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
fn weft_ipam_quarantine_orders_reuse() {
    require!(Feature::Root);
    let (host, pod) = world();
    let conf = config(&json!({ "range": "10.1.2.0/29" }));
    let all: Vec<String> = (0..6).map(|at| add(&host, &pod, &format!("c{at}"), &conf)).collect();
    for at in [4, 1] {
        container(&host, &pod, &format!("c{at}")).del(&conf).success();
    }
    // No other address is free: the one that has been free longest is allocated, also if its quarantine is not over.
    assert_eq!(add(&host, &pod, "n0", &conf), all[4]);
    let mut without_quarantine = conf;
    without_quarantine["ipam"]["quarantine"] = json!(0);
    assert_eq!(add(&host, &pod, "n1", &without_quarantine), all[1]);
}

#[test]
fn weft_ipam_failed_add_of_two_addresses_keeps_neither() {
    require!(Feature::Root);
    let (host, pod) = world();
    let both = config(
        &json!({ "quarantine": 0, "ipRanges": [{ "range": "10.5.0.0/24" }, { "range": "10.1.2.0/30" }] }),
    );
    add(&host, &pod, "c1", &both);
    add(&host, &pod, "c2", &both);
    assert_refused("the second is full", &container(&host, &pod, "c3").add(&both), 11, &["pool 10.1.2.0-30"]);
    // The address of the first pool that c3 took is free. Allocation is round-robin, so the test reads the
    // address store.
    assert_eq!(held(&host, "/var/lib/weft/ipam/10.5.0.0-24"), 2);
}

/// Returns the number of held addresses in an address store: slots begin at byte 12,288, and the eighth byte is the
/// state.
fn held(host: &Host, place: &str) -> usize {
    let hex = host.run(["sh", "-c", &format!("od -An -v -tx1 -w16 -j12288 {place}/{STORE_FILE}")]);
    hex.lines().filter(|line| line.split_whitespace().nth(7) == Some("01")).count()
}

// === GC, boot ===

#[test]
fn weft_ipam_failed_repeated_add_keeps_held_addresses() {
    require!(Feature::Root);
    let (host, pod) = world();
    let first = add(&host, &pod, "c1", &small());
    let mut both = small();
    both["ipam"]["ipRanges"] = json!([{ "range": "10.5.0.0/30" }]);
    assert_eq!(add(&host, &pod, "other", &both).split(' ').count(), 2);
    // The second range has two addresses, and this ADD takes the other one.
    add(&host, &pod, "another", &both);
    let refused = container(&host, &pod, "c1").add(&both);
    assert_refused("full", &refused, 11, &["pool 10.5.0.0-30"]);
    container(&host, &pod, "c1").check(&small()).success();
    assert_eq!(add(&host, &pod, "c1", &small()), first);
    // Addresses of a range that the ADD did not reach, because a range before it is full, are kept as well.
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
fn weft_ipam_repeated_add_finds_its_address_in_any_range() {
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
fn weft_ipam_gc_frees_invalid_attachments_of_its_network() {
    require!(Feature::Root);
    let (host, pod) = world();
    let mut other = small();
    other["name"] = json!("other");
    for id in ["c1", "c2"] {
        add(&host, &pod, id, &small());
        add(&host, &pod, &format!("o-{id}"), &other);
    }
    container(&host, &pod, "x").call("GC", small().to_string()).success();
    assert_eq!(held(&host, PLACE), 4, "without a list, no address is freed");
    let mut sweep = small();
    sweep["cni.dev/valid-attachments"] = json!([{ "containerID": "c2", "ifname": "eth0" }]);
    container(&host, &pod, "x").call("GC", sweep.to_string()).success();
    assert_eq!(held(&host, PLACE), 3);
    container(&host, &pod, "c2").check(&small()).success();
    container(&host, &pod, "o-c1").check(&other).success();
}

#[test]
fn weft_ipam_addresses_of_an_earlier_boot_are_free() {
    require!(Feature::Root);
    let (host, pod) = world();
    for at in 0..6 {
        add(&host, &pod, &format!("c{at}"), &small());
    }
    // Replaces the boot id in the address store.
    host.run([
        "sh",
        "-c",
        &format!("printf another-boot | dd of={PLACE}/{STORE_FILE} bs=1 seek=16 conv=notrunc status=none"),
    ]);
    add(&host, &pod, "after", &small());
    assert_eq!(held(&host, PLACE), 1);
    container(&host, &pod, "c0").del(&small()).success();
    container(&host, &pod, "after").check(&small()).success();
}

// === concurrency, kills at any moment ===

#[test]
fn weft_ipam_32_concurrent_adds_have_distinct_addresses() {
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
fn weft_ipam_killed_add_or_del_leaves_a_correct_address_store() {
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

// === invalid input ===

#[test]
fn weft_ipam_bad_options_are_refused_and_change_nothing() {
    require!(Feature::Root);
    let (host, pod) = world();
    let cases: &[(Value, &[&str])] = &[
        (json!({}), &["ipam.range: missing"]),
        (json!({ "range": "10.1.2.0" }), &["ipam.range", "\"10.1.2.0\"", "CIDR"]),
        (
            json!({ "range": "10.1.2.0/24", "range_start": "10.1.3.1" }),
            &["ipam.range_start", "10.1.3.1", "not in subnet"],
        ),
        (json!({ "range": "10.1.2.9-10.1.2.3/24" }), &["ipam.range: 10.1.2.3", "before the first"]),
        (
            json!({ "range": "10.1.2.0/24", "range_start": "10.1.2.9", "range_end": "10.1.2.3" }),
            &["ipam.range_end", "10.1.2.3", "before"],
        ),
        (
            json!({ "range": "10.1.2.0/29", "exclude": ["10.1.2.0/29"] }),
            &["ipam.exclude", "excludes every address"],
        ),
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
fn weft_ipam_bad_sticky_or_claim_request_is_refused() {
    let (host, pod) = world();
    let add_with = |sticky: Value, requested: Value| {
        let mut conf = config(&json!({ "range": "10.1.2.0/29", "store": "cluster", "sticky": sticky }));
        conf["ipam"]["store"] = json!("cluster");
        conf["args"] = json!({ "cni": requested });
        container(&host, &pod, "c1").add(&conf)
    };
    let refused = add_with(json!(false), json!({ "sticky": true }));
    assert_refused("a network that keeps nothing", &refused, 7, &["args.cni.sticky", "ipam.sticky is false"]);
    // A value of `cni-args` arrives as the pod wrote it, and the agent uses it in a path of the API.
    for claim in ["..", "a/../../other/ipamclaims/b", "a?b", "A"] {
        let refused = add_with(json!(false), json!({ "ipam-claim-reference": claim }));
        assert_refused(claim, &refused, 7, &["args.cni.ipam-claim-reference", claim]);
    }
    assert_ne!(host.attempt(["ls", "/var/lib/weft/ipam"]).code, Some(0));
}

#[test]
fn weft_ipam_unusable_ranges_and_gateways_are_refused() {
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
fn weft_ipam_foreign_file_in_place_of_address_store_is_kept() {
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
    // No address was allocated from the file, so DEL has nothing to remember.
    container(&host, &pod, "c1").del(&small()).success();
    assert_eq!(host.read(format!("{PLACE}/released")), None);
    assert_eq!(host.read(format!("{PLACE}/ledger")).as_deref(), Some("kept for the printer"));
}

#[test]
fn weft_ipam_invalid_address_store_does_not_block_del() {
    require!(Feature::Root);
    let (host, pod) = world();
    let (store, released) = (format!("{PLACE}/{STORE_FILE}"), format!("{PLACE}/released"));
    let shell = |line: &str| host.run(["sh", "-c", &line.replace("STORE", &store)]);
    // How an operator or a full disk damages the file, and the error.
    let damages = [
        ("echo nonsense > STORE", "not an address store of this version"),
        ("printf '\\143' | dd of=STORE bs=1 seek=2048 conv=notrunc status=none", "block 0 is invalid"),
        ("printf '\\144' | dd of=STORE bs=1 seek=2050 conv=notrunc status=none", "block 0 is invalid"),
        ("truncate -s 128 STORE", "truncated: 0 of 1 groups of 16 blocks are present"),
        ("truncate -s 0 STORE", "empty, though addresses were allocated from it"),
        ("rm STORE; mkdir STORE", "is a directory"),
    ];
    for (at, (damage, why)) in damages.into_iter().enumerate() {
        let id = |name: &str| format!("{name}{at}");
        let given: Vec<String> = ["a", "b", "c"].map(|name| add(&host, &pod, &id(name), &small())).into();
        shell("cp STORE /var/lib/weft/saved");
        shell(damage);
        let before = shell("stat -c %s-%F STORE; cat STORE 2>/dev/null | sha256sum");
        let code = if why == "is a directory" { 5 } else { 7 };
        assert_refused(damage, &container(&host, &pod, &id("n")).add(&small()), code, &[&store, why]);
        // A second DEL adds no line, nor does DEL of a pod without an address.
        for name in ["a", "a", "b", "n"] {
            container(&host, &pod, &id(name)).del(&small()).success();
        }
        let lines = format!("net {} eth0\nnet {} eth0\n", id("a"), id("b"));
        assert_eq!(host.read(&released), Some(lines), "{damage}");
        assert_eq!(shell("stat -c %s-%F STORE; cat STORE 2>/dev/null | sha256sum"), before, "{damage}");
        shell("rm -r STORE; cp /var/lib/weft/saved STORE");
        container(&host, &pod, &id("c")).check(&small()).success();
        assert_eq!((held(&host, PLACE), host.read(&released)), (1, None), "{damage}");
        let mut again = BTreeSet::from([given[2].clone()]);
        again.extend((0..5).map(|more| add(&host, &pod, &format!("m{more}"), &small())));
        assert_eq!(again.len(), 6, "{damage}: all addresses are free again, and none is allocated twice");
        container(&host, &pod, &id("c")).del(&small()).success();
        (0..5).for_each(|more| drop(container(&host, &pod, &format!("m{more}")).del(&small()).success()));
    }
    // Only the address store was moved away, not its directory: no new address store is created.
    add(&host, &pod, "last", &small());
    shell("mv STORE /var/lib/weft/saved");
    container(&host, &pod, "last").del(&small()).success();
    assert_eq!(host.read(&released).as_deref(), Some("net last eth0\n"));
    assert_refused(
        "moved",
        &container(&host, &pod, "n").add(&small()),
        7,
        &["empty, though addresses were allocated"],
    );
    shell("rm STORE");
    host.run(["rm", "-r", PLACE]);
    add(&host, &pod, "again", &small());
}

#[test]
fn weft_ipam_broken_store_of_another_network_does_not_block_del() {
    require!(Feature::Root);
    let (host, pod) = world();
    let broken = Path::new(PLACE).with_file_name("broken");
    host.write(broken.join("ledger"), "kept for the printer");
    add(&host, &pod, "c1", &small());
    // The second DEL finds no address in its pool, and reads the other pools.
    for round in ["held", "released"] {
        container(&host, &pod, "c1").del(&small()).success();
        assert_eq!(held(&host, PLACE), 0, "{round}");
    }
    assert_eq!(host.read(broken.join("ledger")).as_deref(), Some("kept for the printer"));
}

#[test]
fn weft_ipam_without_agent_add_fails_and_del_succeeds() {
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
fn weft_ipam_del_works_with_invalid_or_changed_ranges() {
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
fn weft_ipam_ipv6_ranges_of_any_size_work() {
    require!(Feature::Root);
    let (host, pod) = world();
    for (range, first) in
        [("fd00:6::/48", "fd00:6::1"), ("fd00:7::/126", "fd00:7::1"), ("fd00:8::ff00/120", "fd00:8::ff01")]
    {
        let ip = add(&host, &pod, &range.replace([':', '/'], "-"), &config(&json!({ "range": range })));
        assert_eq!(ip.parse::<IpAddr>().unwrap(), first.parse::<IpAddr>().unwrap(), "{range}");
    }
}

#[test]
fn weft_ipam_gives_every_address_of_a_range_of_one_or_two() {
    require!(Feature::Root);
    let (host, pod) = world();
    for (name, part) in [("weft-ipam", 10), ("whereabouts", 11)] {
        for (range, all) in [
            (format!("10.{part}.0.7/32"), vec![format!("10.{part}.0.7")]),
            (format!("10.{part}.0.8/31"), vec![format!("10.{part}.0.8"), format!("10.{part}.0.9")]),
            (format!("fd00:{part}::7/128"), vec![format!("fd00:{part}::7")]),
            (format!("fd00:{part}::8/127"), vec![format!("fd00:{part}::8"), format!("fd00:{part}::9")]),
        ] {
            let mut conf = config(&json!({ "range": range, "quarantine": 0 }));
            conf["ipam"]["type"] = json!(name);
            let ids: Vec<String> =
                (0..all.len()).map(|at| format!("{name}{}{at}", all[0].replace([':', '.'], ""))).collect();
            let mut got: Vec<String> = ids.iter().map(|id| add(&host, &pod, id, &conf)).collect();
            got.sort();
            assert_eq!(got, all, "{range}");
            assert_refused(&range, &container(&host, &pod, "full").add(&conf), 11, &["no address is free"]);
            container(&host, &pod, &ids[0]).del(&conf).success();
            assert!(all.contains(&add(&host, &pod, "again", &conf)));
            container(&host, &pod, "again").del(&conf).success();
        }
    }
    let with_gateway = config(&json!({ "range": "10.12.0.8/31", "gateway": "10.12.0.8" }));
    assert_eq!(add(&host, &pod, "c1", &with_gateway), "10.12.0.9");
}

/// If a file cannot be opened, for example that of the boot id, no held address is freed.
#[test]
fn weft_ipam_without_descriptors_frees_no_held_address() {
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
