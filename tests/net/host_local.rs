//! Tests for `host-local`, as a runtime executes it: results, files, and leftovers after failures.
//!
//! ```text
//!   Host  /var/lib/cni/networks/net/{10.1.2.2, last_reserved_ip.0, lock}   /run/weft/host-local/…
//!    └─ Pod a   (only the path of its namespace is used: no interface is created)
//! ```

use std::collections::BTreeSet;
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};
use testkit::{Attachment, Feature, Finished, Host, Pod, binary, require};

/// Directory of the network `net` in the configurations below.
const PLACE: &str = "/var/lib/cni/networks/net";

/// Returns a host with the plugin, and a pod.
fn world() -> (Host, Pod) {
    let host = Host::new();
    host.install(&binary("weft-cni"), &["host-local"]);
    let pod = host.pod("a");
    (host, pod)
}

fn config(version: &str, ipam: Value) -> Value {
    let mut ipam = ipam;
    ipam["type"] = json!("host-local");
    json!({ "cniVersion": version, "name": "net", "type": "ipvlan", "ipam": ipam })
}

/// Returns a configuration with one range, 10.1.2.2 to 10.1.2.LAST.
fn small(last: u8) -> Value {
    config(
        "1.1.0",
        json!({ "ranges": [[{ "subnet": "10.1.2.0/24", "rangeEnd": format!("10.1.2.{last}") }]] }),
    )
}

/// Returns the attachment of a container with this id.
fn container<'a>(host: &'a Host, pod: &Pod, id: &str) -> Attachment<'a> {
    let mut attachment = host.attachment("host-local", pod, "eth0");
    attachment.container_id = id.to_owned();
    attachment
}

/// Returns the attachment with `CNI_ARGS`.
fn with_args<'a>(mut attachment: Attachment<'a>, args: &str) -> Attachment<'a> {
    attachment.args = args.to_owned();
    attachment
}

/// Returns the addresses of a result, without prefix length.
#[track_caller]
fn addresses(finished: Finished) -> Vec<String> {
    let result = finished.success().json();
    let ips = result["ips"].as_array().expect("a result with ips");
    ips.iter().map(|ip| ip["address"].as_str().unwrap().split('/').next().unwrap().to_owned()).collect()
}

/// Returns the code and the message of a failure.
#[track_caller]
fn refusal(finished: &Finished) -> (u64, String) {
    assert_eq!(finished.code, Some(1), "{finished}");
    let error = finished.json();
    (error["code"].as_u64().expect("a code"), error["msg"].as_str().expect("a message").to_owned())
}

/// Returns the names in the network's directory.
fn names(host: &Host) -> Vec<String> {
    let listed = host.attempt(["ls", "-A", PLACE]).stdout;
    listed.lines().map(str::to_owned).collect()
}

/// Returns the reservations of the network: address and content.
fn reservations(host: &Host) -> Vec<(String, String)> {
    let reserved = names(host).into_iter().filter(|name| name.parse::<std::net::IpAddr>().is_ok());
    reserved.map(|name| (name.clone(), host.read(format!("{PLACE}/{name}")).unwrap_or_default())).collect()
}

fn sweep(version: &str, valid: Option<Value>) -> Value {
    let mut conf = config(version, json!({ "subnet": "10.1.2.0/24" }));
    if let Some(valid) = valid {
        conf["cni.dev/valid-attachments"] = valid;
    }
    conf
}

// === tests that every plugin has ===

#[test]
fn host_local_address_is_added_checked_and_deleted() {
    require!(Feature::Root);
    let (host, pod) = world();
    let attachment = host.attachment("host-local", &pod, "eth0");
    host.write("/etc/test-resolv.conf", "nameserver 192.0.2.1\nsearch example.com\noptions ndots:5\n");
    let conf = config(
        "1.1.0",
        json!({
            "ranges": [[{ "subnet": "10.1.2.0/24" }], [{ "subnet": "2001:DB8:1::/64", "rangeStart": "2001:db8:1::10", "gateway": "2001:db8:1::ff" }]],
            "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "10.9.0.0/16", "gw": "10.1.2.9", "mtu": 1400 }],
            "resolvConf": "/etc/test-resolv.conf",
        }),
    );
    let result = attachment.add(&conf).success().json();
    let expected = json!({
        "cniVersion": "1.1.0",
        "ips": [
            { "address": "10.1.2.2/24", "gateway": "10.1.2.1" },
            { "address": "2001:db8:1::10/64", "gateway": "2001:db8:1::ff" },
        ],
        "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "10.9.0.0/16", "gw": "10.1.2.9", "mtu": 1400 }],
        "dns": { "nameservers": ["192.0.2.1"], "search": ["example.com"], "options": ["ndots:5"] },
    });
    assert_eq!(result, expected);
    let owner = format!("{}\r\neth0", pod.container_id());
    let held = [("10.1.2.2".to_owned(), owner.clone()), ("2001:db8:1::10".to_owned(), owner)];
    assert_eq!(reservations(&host), held);
    assert_eq!(host.read(format!("{PLACE}/last_reserved_ip.1")).as_deref(), Some("2001:db8:1::10"));

    attachment.check(&conf).success();
    attachment.del(&conf).success();
    assert_eq!(names(&host), ["last_reserved_ip.0", "last_reserved_ip.1", "lock"]);
    let (code, msg) = refusal(&attachment.check(&conf));
    assert!(code == 999 && msg.contains("holds no address for eth0"), "{msg}");
}

#[test]
fn host_local_del_succeeds_twice_and_without_netns_or_ranges() {
    require!(Feature::Root);
    let (host, pod) = world();
    let before = host.snapshot();
    let mut attachment = host.attachment("host-local", &pod, "eth0");
    attachment.del(&small(9)).success();
    host.assert_unchanged(&before);
    attachment.add(&small(9)).success();
    attachment.netns.clear();
    let mut conf = small(9);
    conf["ipam"]["ranges"] = json!("not a list");
    attachment.del(&conf).success();
    assert_eq!(reservations(&host), []);
    attachment.del(&conf).success();
    conf["ipam"]["dataDir"] = json!("/etc/hostname/x");
    attachment.del(&conf).success();
}

#[test]
fn host_local_failed_add_frees_only_its_own_addresses() {
    require!(Feature::Root);
    let (host, pod) = world();
    let two = |second: Value| config("1.0.0", json!({ "ranges": [[{ "subnet": "10.1.2.0/24" }], [second]] }));
    let second = json!({ "subnet": "10.1.3.0/29", "rangeEnd": "10.1.3.2" });
    let other = container(&host, &pod, "other");
    let narrow = config("1.0.0", json!({ "ranges": [[second]] }));
    assert_eq!(addresses(other.add(&narrow)), ["10.1.3.2"]);
    let attachment = host.attachment("host-local", &pod, "eth0");
    let before = reservations(&host);
    let (code, msg) = refusal(&attachment.add(&two(second)));
    assert_eq!((code, msg.as_str()), (11, "no IP addresses available in range set: 10.1.3.1-10.1.3.2"));
    assert_eq!(reservations(&host), before);
    // Addresses that the attachment held before the failing ADD stay: its container may be running.
    assert_eq!(addresses(attachment.add(&small(9))), ["10.1.2.3"]);
    let held = reservations(&host);
    let swapped =
        config("1.0.0", json!({ "ranges": [[{ "subnet": "10.1.9.0/24" }], [{ "subnet": "10.1.2.0/24" }]] }));
    let (code, msg) = refusal(&attachment.add(&swapped));
    assert!(code == 4 && msg.contains("10.1.2.3 has been allocated"), "{msg}");
    assert_eq!(reservations(&host), held);
}

#[test]
fn host_local_unreadable_reservation_fails_del_until_it_is_read() {
    let (host, pod) = world();
    let net = small(9);
    let (one, two) = (container(&host, &pod, "one"), container(&host, &pod, "two"));
    let [first, second] = [&one, &two].map(|it| it.add(&net).success().json());
    // Another user may list the directory and take the lock, and cannot read the files.
    host.run(["sh", "-c", &format!("chmod 644 {PLACE}/lock; chmod 600 {PLACE}/10.*")]);
    let unprivileged = |id: &str| {
        let mut other = container(&host, &pod, id);
        other.through = rig::as_in_an_unprivileged_container();
        other
    };
    let with = |result: &Value| rig::with(&net, &json!({ "prevResult": result }));
    for config in [with(&first), net.clone()] {
        let (code, message) = refusal(&unprivileged("one").del(&config));
        assert!(code == 5 && message.contains("the reservation cannot be read"), "{message}");
    }
    assert_eq!(names(&host).iter().filter(|name| name.starts_with("10.")).count(), 2);
    // A reservation of another attachment does not matter.
    let elsewhere = rig::with(&first, &json!({ "ips": [{ "address": "10.1.2.9/24" }] }));
    unprivileged("three").del(&with(&elsewhere)).success();
    one.del(&with(&first)).success();
    two.del(&with(&second)).success();
    assert!(reservations(&host).is_empty(), "{:?}", reservations(&host));
}

#[test]
fn host_local_result_has_the_form_of_each_cni_version() {
    require!(Feature::Root);
    let (host, pod) = world();
    let attachment = host.attachment("host-local", &pod, "eth0");
    for (index, version) in
        ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"].into_iter().enumerate()
    {
        let conf = config(version, json!({ "subnet": "10.1.2.0/24", "routes": [{ "dst": "0.0.0.0/0" }] }));
        let result = attachment.add(&conf).success().json();
        let address = format!("10.1.2.{}/24", index + 2);
        let expected = match version {
            "0.1.0" | "0.2.0" => json!({
                "cniVersion": version, "dns": {},
                "ip4": { "ip": address, "gateway": "10.1.2.1", "routes": [{ "dst": "0.0.0.0/0" }] },
            }),
            "1.0.0" | "1.1.0" => json!({
                "cniVersion": version, "ips": [{ "address": address, "gateway": "10.1.2.1" }], "routes": [{ "dst": "0.0.0.0/0" }],
            }),
            _ => json!({
                "cniVersion": version, "dns": {}, "routes": [{ "dst": "0.0.0.0/0" }],
                "ips": [{ "version": "4", "address": address, "gateway": "10.1.2.1" }],
            }),
        };
        assert_eq!(result, expected, "{version}");
        let checked = attachment.check(&conf);
        match version {
            "0.1.0" | "0.2.0" | "0.3.0" | "0.3.1" => assert_eq!(refusal(&checked).0, 1, "{version}"),
            _ => assert_eq!(checked.code, Some(0), "{checked}"),
        }
        let swept = attachment.call("GC", sweep(version, None).to_string());
        assert_eq!(swept.code, Some(i32::from(version != "1.1.0")), "{swept}");
        attachment.del(&conf).success();
    }
    assert_eq!(reservations(&host), []);
}

// Requirements: S32
#[test]
fn host_local_gc_removes_exactly_the_invalid_reservations() {
    require!(Feature::Root);
    let (host, pod) = world();
    let file = |name: &str| format!("{PLACE}/{name}");
    for id in ["one", "two", "three"] {
        container(&host, &pod, id).add(&small(99)).success();
    }
    host.write(file("10.1.2.50"), "one\r\nnet1");
    host.write(file("10.1.2.51"), "old-valid");
    host.write(file("10.1.2.52"), "old-gone");
    host.write(file("10.1.2.53"), "");
    host.write(file("10.1.2.54"), "kept for the printer");
    host.write(file("notes"), "two\r\neth0");
    let attachment = host.attachment("host-local", &pod, "eth0");
    let gc = |valid: Option<Value>| attachment.call("GC", sweep("1.1.0", valid).to_string());

    let before = names(&host);
    gc(None).success();
    assert_eq!(names(&host), before, "without a list, nothing is removed");

    let valid = json!([
        { "containerID": "one", "ifname": "eth0" }, { "containerID": "three", "ifname": "eth0" },
        { "containerID": "old-valid", "ifname": "eth7" },
    ]);
    gc(Some(valid)).success();
    let expected = ["10.1.2.2", "10.1.2.4", "10.1.2.51", "10.1.2.54", "last_reserved_ip.0", "lock", "notes"];
    assert_eq!(names(&host), expected);
    container(&host, &pod, "three").check(&small(99)).success();

    gc(Some(json!([]))).success();
    assert_eq!(names(&host), ["10.1.2.54", "last_reserved_ip.0", "lock", "notes"]);
    gc(Some(json!([]))).success();

    let mut old_key = sweep("1.1.0", None);
    container(&host, &pod, "four").add(&small(99)).success();
    old_key["cni.dev/attachments"] = json!([]);
    attachment.call("GC", old_key.to_string()).success();
    assert_eq!(reservations(&host).len(), 1, "trap 7: the other field has the same meaning");
    let malformed = gc(Some(json!("all")));
    assert_eq!(refusal(&malformed).0, 7);
}

// Requirements: S33
#[test]
fn host_local_status_reports_whether_an_add_can_succeed() {
    require!(Feature::Root);
    let (host, pod) = world();
    let attachment = host.attachment("host-local", &pod, "eth0");
    let status = |conf: &Value| attachment.call("STATUS", conf.to_string());
    let before = host.snapshot();
    status(&small(3)).success();
    host.assert_unchanged(&before);

    container(&host, &pod, "one").add(&small(3)).success();
    status(&small(3)).success();
    container(&host, &pod, "two").add(&small(3)).success();
    let (code, msg) = refusal(&status(&small(3)));
    assert_eq!((code, msg.as_str()), (50, "no IP addresses available in range set: 10.1.2.1-10.1.2.3"));
    host.write(format!("{PLACE}/10.1.2.3"), "");
    status(&small(3)).success();
    // The runtime passes ranges to each ADD, and none to STATUS.
    let mut dynamic = small(3);
    dynamic["ipam"] = json!({ "type": "host-local" });
    status(&dynamic).success();
    assert_eq!(refusal(&attachment.add(&dynamic)).0, 7);

    let at = |directory: &str| {
        let mut conf = small(9);
        conf["ipam"]["dataDir"] = json!(directory);
        conf
    };
    let (code, msg) = refusal(&status(&at("/etc/hostname/data")));
    assert!(
        code == 50
            && msg.contains("ipam.dataDir: \"/etc/hostname/data/net\"")
            && msg.ends_with("is not a directory"),
        "{msg}"
    );
    host.run(["mkdir", "/run/readonly"]);
    host.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", "/run/readonly"]);
    let (code, msg) = refusal(&status(&at("/run/readonly/data")));
    assert!(code == 50 && msg.ends_with("read-only file system"), "{msg}");
    let (code, _) = refusal(&attachment.add(&at("/run/readonly/data")));
    assert_eq!(code, 5, "ADD fails, too");
    let mut conf = small(9);
    conf["ipam"]["resolvConf"] = json!("/no/such/file");
    let (code, msg) = refusal(&status(&conf));
    assert!(code == 50 && msg.contains("ipam.resolvConf: \"/no/such/file\""), "{msg}");
}

#[test]
fn host_local_bad_options_are_refused_and_change_nothing() {
    require!(Feature::Root);
    let (host, pod) = world();
    let attachment = host.attachment("host-local", &pod, "eth0");
    let pipe = "/run/pipe";
    host.run(["mkfifo", pipe]);
    let before = host.snapshot();
    let good = || config("1.1.0", json!({ "subnet": "10.1.2.0/24" }));
    let with = |path: &str, value: Value| {
        let mut conf = good();
        *conf.pointer_mut(path).unwrap_or_else(|| panic!("{path}")) = value;
        conf
    };
    let ipam = |ipam: Value| config("1.1.0", ipam);
    let cases = [
        (with("/ipam", json!("host-local")), 7, "ipam: \"host-local\""),
        (with("/ipam/subnet", json!(7)), 7, "ipam.subnet: 7"),
        (with("/ipam/subnet", json!("10.1.2.0/40")), 7, "ipam.subnet: \"10.1.2.0/40\""),
        (with("/ipam/subnet", json!("10.1.2.0/32")), 7, "ipam.subnet: 10.1.2.0/32"),
        (ipam(json!({})), 7, "ipam.ranges: missing"),
        (
            ipam(
                json!({ "ranges": [[{ "subnet": "10.1.2.0/24", "rangeStart": "10.1.2.9", "rangeEnd": "10.1.2.2" }]] }),
            ),
            7,
            "rangeEnd: 10.1.2.2",
        ),
        (ipam(json!({ "subnet": "10.1.2.0/24", "ranges": [[{ "subnet": "10.1.0.0/16" }]] })), 7, "overlaps"),
        (ipam(json!({ "subnet": "10.1.2.0/24", "dataDir": "relative" })), 7, "ipam.dataDir: \"relative\""),
        (
            ipam(json!({ "subnet": "10.1.2.0/24", "resolvConf": "/no/such" })),
            7,
            "ipam.resolvConf: \"/no/such\"",
        ),
        (
            ipam(json!({ "subnet": "10.1.2.0/24", "routes": [{ "dst": "nowhere" }] })),
            7,
            "ipam.routes[0].dst: \"nowhere\"",
        ),
        (with("/name", json!("../../../etc")), 7, "\"../../../etc\""),
        (with("/cniVersion", json!("7.0.0")), 1, "incompatible CNI versions"),
    ];
    for (conf, expected_code, expected) in cases {
        let (code, msg) = refusal(&attachment.add(&conf));
        assert_eq!(code, expected_code, "{conf}: {msg}");
        assert!(msg.contains(expected), "{conf}: {msg}");
    }
    // No file or directory is created for any of them.
    host.assert_unchanged(&before);
    // A FIFO without a writer counts as an empty file, and does not block.
    attachment.add(&with("/ipam", json!({ "subnet": "10.1.2.0/24", "resolvConf": pipe }))).success();
}

#[test]
fn host_local_bad_requests_and_hostile_input_are_refused() {
    require!(Feature::Root);
    let (host, pod) = world();
    let attachment = host.attachment("host-local", &pod, "eth0");
    let conf = config("1.1.0", json!({ "subnet": "10.1.2.0/24" }));
    let before = host.snapshot();
    for (args, expected_code, expected) in [
        ("IP=here", 7, "CNI_ARGS IP: \"here\""),
        ("IP=10.9.9.9", 7, "CNI_ARGS IP: 10.9.9.9"),
        ("IP=10.1.2.1", 7, "CNI_ARGS IP: 10.1.2.1: the gateway's address"),
        ("COLOUR=red", 4, "COLOUR=red"),
        ("IP", 4, "invalid pair \"IP\""),
    ] {
        let odd = with_args(host.attachment("host-local", &pod, "eth0"), args);
        let (code, msg) = refusal(&odd.add(&conf));
        assert!(code == expected_code && msg.contains(expected), "{args}: {code} {msg}");
    }
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    assert_eq!(refusal(&attachment.call("ADD", deep)).0, 6);
    let large = format!(r#"{{"cniVersion":"1.1.0","name":"net","x":"{}"}}"#, "x".repeat(2 << 20));
    assert_eq!(refusal(&attachment.call("ADD", large)).0, 6);
    host.assert_unchanged(&before);
}

// === choice of the address ===

#[test]
fn host_local_round_robin_uses_the_last_address_last() {
    require!(Feature::Root);
    let (host, pod) = world();
    let conf = small(4);
    let next = |id: &str| addresses(container(&host, &pod, id).add(&conf)).remove(0);
    let free = |id: &str| container(&host, &pod, id).del(&conf).success();
    assert_eq!([next("a"), next("b")], ["10.1.2.2", "10.1.2.3"]);
    free("a");
    assert_eq!(next("a"), "10.1.2.4", "not the address that it just had");
    assert_eq!(next("c"), "10.1.2.2", "after the end of the range, without the gateway");
    let (code, msg) = refusal(&container(&host, &pod, "d").add(&conf));
    assert_eq!((code, msg.as_str()), (11, "no IP addresses available in range set: 10.1.2.1-10.1.2.4"));
    free("c");
    assert_eq!(next("d"), "10.1.2.2", "the only free address");
    host.write(format!("{PLACE}/last_reserved_ip.0"), "nonsense");
    free("b");
    assert_eq!(next("e"), "10.1.2.3");
}

#[test]
fn host_local_free_address_is_found_among_many_reservations() {
    require!(Feature::Root);
    let (host, pod) = world();
    host.within(|| {
        std::fs::create_dir_all(PLACE).unwrap();
        for number in 2..2000_u32 {
            let name = format!("{PLACE}/10.1.{}.{}", number >> 8, number & 255);
            std::fs::write(name, format!("c{number}\r\neth0")).unwrap();
        }
        std::fs::remove_file(format!("{PLACE}/10.1.5.77")).unwrap();
    });
    let conf =
        config("1.0.0", json!({ "ranges": [[{ "subnet": "10.1.0.0/16", "rangeEnd": "10.1.7.207" }]] }));
    assert_eq!(addresses(container(&host, &pod, "one").add(&conf)), ["10.1.5.77"]);
    assert_eq!(refusal(&container(&host, &pod, "two").add(&conf)).0, 11);
}

// Requirements: V5, V13, V14
#[test]
fn host_local_requested_address_is_allocated_by_any_channel() {
    require!(Feature::Root);
    let (host, pod) = world();
    let ranges = json!({ "ranges": [[{ "subnet": "10.1.2.0/24" }], [{ "subnet": "fd00:1::/64" }]] });
    let add_with_request = |id: &str, args: &str, more: &[(&str, Value)]| {
        let mut conf = config("1.0.0", ranges.clone());
        for (key, value) in more {
            conf[*key] = value.clone();
        }
        with_args(container(&host, &pod, id), args).add(&conf)
    };
    assert_eq!(addresses(add_with_request("a", "IP=10.1.2.50", &[])), ["10.1.2.50", "fd00:1::2"]);
    assert_eq!(
        addresses(add_with_request("b", "IgnoreUnknown=1;IP=10.1.2.51/24,fd00:1::51;FOO=bar", &[])),
        ["10.1.2.51", "fd00:1::51"]
    );
    let args = ("args", json!({ "cni": { "ips": ["fd00:1::52/64", "10.1.2.52"] } }));
    let runtime = ("runtimeConfig", json!({ "ips": ["10.1.2.52/24", "fd00:1::52"] }));
    assert_eq!(
        addresses(add_with_request("c", "IP=10.1.2.52", &[args, runtime])),
        ["10.1.2.52", "fd00:1::52"]
    );
    assert_eq!(
        addresses(add_with_request("d", "", &[])),
        ["10.1.2.53", "fd00:1::53"],
        "round robin continues after them"
    );

    let (code, msg) = refusal(&add_with_request("e", "IP=10.1.2.50", &[]));
    assert!(code == 11 && msg.starts_with("CNI_ARGS IP: 10.1.2.50: not available in range set"), "{msg}");
    let (code, msg) = refusal(&add_with_request("a", "IP=10.1.2.50", &[]));
    assert!(code == 4 && msg.contains("10.1.2.50 has been allocated to its eth0"), "{msg}");
    let two = ("runtimeConfig", json!({ "ips": ["10.1.2.60", "10.1.2.61"] }));
    let before = reservations(&host);
    let (code, msg) = refusal(&add_with_request("f", "", &[two]));
    assert!(
        code == 7
            && msg.starts_with("runtimeConfig.ips[1]: 10.1.2.61: range set 10.1.2.1-10.1.2.254 has one"),
        "{msg}"
    );
    assert_eq!(reservations(&host), before);
    let ranges = (
        "runtimeConfig",
        json!({ "ipRanges": [[{ "Subnet": "10.7.0.0/24", "RangeStart": "", "Gateway": "" }]] }),
    );
    // As containerd writes it. The other sets move up, and round robin starts again.
    assert_eq!(addresses(add_with_request("g", "", &[ranges])), ["10.7.0.2", "10.1.2.2", "fd00:1::3"]);
}

#[test]
fn host_local_second_add_is_refused_and_keeps_the_address() {
    require!(Feature::Root);
    let (host, pod) = world();
    let attachment = host.attachment("host-local", &pod, "eth0");
    let mut second_interface = host.attachment("host-local", &pod, "eth0");
    second_interface.ifname = "net1".to_owned();
    assert_eq!(addresses(attachment.add(&small(9))), ["10.1.2.2"]);
    let held = reservations(&host);
    let (code, msg) = refusal(&attachment.add(&small(9)));
    let id = pod.container_id();
    let expected = format!(
        "CNI_CONTAINERID: {id}: 10.1.2.2 has been allocated to its eth0, duplicate allocation is not allowed"
    );
    assert!(code == 4 && msg.starts_with(&expected), "{msg}");
    assert_eq!(reservations(&host), held);
    assert_eq!(addresses(second_interface.add(&small(9))), ["10.1.2.3"]);
    attachment.del(&small(9)).success();
    assert_eq!(reservations(&host).len(), 1, "the reservation of the other interface");
    assert_eq!(addresses(attachment.add(&small(9))), ["10.1.2.4"]);
}

// === failures ===

#[test]
fn host_local_empty_reservation_is_free_and_foreign_text_is_not() {
    require!(Feature::Root);
    let (host, pod) = world();
    let file = |name: &str| format!("{PLACE}/{name}");
    for (name, content) in
        [("10.1.2.2", ""), ("10.1.2.3", "\0\0\0\0\0\0"), ("10.1.2.4", "kept"), ("10.1.2.5", "id\r\neth0")]
    {
        host.write(file(name), content);
    }
    assert_eq!(addresses(container(&host, &pod, "one").add(&small(5))), ["10.1.2.2"]);
    assert_eq!(
        addresses(container(&host, &pod, "two").add(&small(5))),
        ["10.1.2.3"],
        "an empty file is used last"
    );
    assert_eq!(refusal(&container(&host, &pod, "three").add(&small(5))).0, 11);
    host.write(file("10.1.2.4"), "");
    let requested = with_args(container(&host, &pod, "three"), "IP=10.1.2.4");
    assert_eq!(addresses(requested.add(&small(5))), ["10.1.2.4"]);
    assert_eq!(host.read(file("10.1.2.4")).as_deref(), Some("three\r\neth0"));
}

#[test]
fn host_local_full_disk_leaves_no_reservation() {
    require!(Feature::Root);
    let (host, pod) = world();
    let conf = small(9);
    // There is room for the lock and another file, but not for the round-robin file; then only for its name.
    for limit in ["nr_inodes=4", "size=4k"] {
        host.run(["mkdir", "-p", PLACE]);
        host.run(["mount", "-t", "tmpfs", "-o", limit, "tmpfs", "/var/lib/cni/networks"]);
        let (code, msg) = refusal(&container(&host, &pod, "one").add(&conf));
        assert!(code == 5 && msg.ends_with("no space left on device"), "{limit}: {msg}");
        assert_eq!(reservations(&host), [], "{limit}");
        host.run(["umount", "/var/lib/cni/networks"]);
    }
    // There is no room for a single byte.
    host.run(["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", "/var/lib/cni/networks"]);
    host.write("/var/lib/cni/networks/ballast", "x");
    let (code, msg) = refusal(&container(&host, &pod, "one").add(&conf));
    assert_eq!(
        (code, msg.as_str()),
        (5, "reserve /var/lib/cni/networks/net/10.1.2.2: no space left on device")
    );
    assert_eq!(reservations(&host), []);
    host.run(["rm", "/var/lib/cni/networks/ballast"]);
    host.run(["mount", "-o", "remount,size=1m", "/var/lib/cni/networks"]);
    assert_eq!(addresses(container(&host, &pod, "one").add(&conf)), ["10.1.2.2"]);
}

/// Marks a reservation's file as made in another boot, and sets the time to 1970.
fn of_another_boot(host: &Host, name: &str, machine: &str) {
    let path = format!("{PLACE}/{name}");
    host.within(|| {
        let mut mark = [0; 128];
        let length = rustix::fs::getxattr(&path, "user.weft.boot", &mut mark).expect("the boot mark");
        let own = std::str::from_utf8(&mark[..length]).unwrap();
        let machine = if machine.is_empty() { own.split_once('/').unwrap().0 } else { machine };
        let mark = format!("{machine}/00000000-0000-0000-0000-000000000000");
        rustix::fs::setxattr(&path, "user.weft.boot", mark.as_bytes(), rustix::fs::XattrFlags::empty())
            .unwrap();
        std::fs::File::open(&path).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
    });
}

#[test]
fn host_local_earlier_boots_addresses_are_reused_only_if_needed() {
    require!(Feature::Root);
    let (host, pod) = world();
    let next = |id: &str| container(&host, &pod, id).add(&small(5));
    for id in ["a", "b", "c"] {
        next(id).success();
    }
    of_another_boot(&host, "10.1.2.2", "");
    of_another_boot(&host, "10.1.2.3", "00000000000000000000000000000000");
    host.within(|| {
        std::fs::File::open(format!("{PLACE}/10.1.2.4"))
            .unwrap()
            .set_modified(SystemTime::UNIX_EPOCH)
            .unwrap();
    });
    assert_eq!(addresses(next("d")), ["10.1.2.5"], "a free address is used first");
    container(&host, &pod, "d").call("STATUS", small(5).to_string()).success();
    assert_eq!(addresses(next("e")), ["10.1.2.2"], "a reservation of an earlier boot of this machine");
    assert_eq!(refusal(&next("f")).0, 11, "reservations of another machine and old ones of this boot stay");
    assert_eq!(refusal(&container(&host, &pod, "f").call("STATUS", small(5).to_string())).0, 50);
    // The same container again: its interface and its address were lost with the boot.
    of_another_boot(&host, "10.1.2.5", "");
    assert_eq!(addresses(next("d")), ["10.1.2.5"]);
    assert_eq!(refusal(&next("d")).0, 4);
    // A file of the Go plugin has no boot mark and is never reused.
    host.write(format!("{PLACE}/10.1.2.5"), "foreign\r\neth0");
    host.within(|| {
        rustix::fs::removexattr(format!("{PLACE}/10.1.2.5"), "user.weft.boot").unwrap();
        std::fs::File::open(format!("{PLACE}/10.1.2.5"))
            .unwrap()
            .set_modified(SystemTime::UNIX_EPOCH)
            .unwrap();
    });
    assert_eq!(refusal(&next("g")).0, 11);
}

#[test]
fn host_local_32_concurrent_adds_have_distinct_addresses() {
    require!(Feature::Root);
    let (host, pod) = world();
    let conf =
        config("1.0.0", json!({ "ranges": [[{ "subnet": "10.1.2.0/24" }], [{ "subnet": "fd00::/120" }]] }));
    let allocated: Vec<Vec<String>> = std::thread::scope(|scope| {
        let add = |number: usize| addresses(container(&host, &pod, &format!("c{number}")).add(&conf));
        let threads: Vec<_> = (0..32).map(|number| scope.spawn(move || add(number))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let distinct: BTreeSet<&String> = allocated.iter().flatten().collect();
    assert_eq!(distinct.len(), 64, "{allocated:?}");
    assert_eq!(reservations(&host).len(), 64);
    std::thread::scope(|scope| {
        for number in 0..32 {
            let (host, pod, conf) = (&host, &pod, &conf);
            scope.spawn(move || container(host, pod, &format!("c{number}")).del(conf).success());
        }
    });
    assert_eq!(reservations(&host), []);
}

#[test]
fn host_local_killed_at_any_moment_leaves_what_del_removes() {
    require!(Feature::Root);
    let (host, pod) = world();
    let conf =
        config("1.0.0", json!({ "ranges": [[{ "subnet": "10.1.0.0/16" }], [{ "subnet": "fd00::/64" }]] }));
    host.write("/run/test/conf", conf.to_string());
    let attachment = host.attachment("host-local", &pod, "eth0");
    let took = Instant::now();
    attachment.add(&conf).success();
    // At most one and a half times a whole call. The first call is slow, because it reads every file.
    let whole = took.elapsed().max(Duration::from_millis(4)) * 3 / 2;
    attachment.del(&conf).success();
    let owner = format!("{}\r\neth0", pod.container_id());
    let (mut nothing, mut everything) = (0, 0);
    const ROUNDS: u32 = 200;
    for round in 0..ROUNDS {
        let running = host
            .command("sh")
            .args(["-c", "exec /opt/cni/bin/host-local </run/test/conf >/dev/null"])
            .env("CNI_COMMAND", "ADD")
            .env("CNI_CONTAINERID", pod.container_id())
            .env("CNI_NETNS", pod.path())
            .env("CNI_IFNAME", "eth0")
            .env("CNI_PATH", "/opt/cni/bin")
            .start();
        match round + 1 {
            // The last one may finish, however slow the machine is.
            ROUNDS => drop(running.finish(Duration::from_secs(30))),
            _ => {
                std::thread::sleep(whole * round / ROUNDS);
                running.kill();
            }
        }
        let left = reservations(&host);
        assert!(
            left.iter().all(|(_, content)| *content == owner),
            "round {round}: a partly written file: {left:?}"
        );
        nothing += usize::from(left.is_empty());
        everything += usize::from(left.len() == 2);
        attachment.del(&conf).success();
        let names = names(&host);
        assert_eq!(names, ["last_reserved_ip.0", "last_reserved_ip.1", "lock"], "round {round}");
    }
    assert!(nothing > 0 && everything > 0, "killed before ({nothing}) and after ({everything}) it was done");
    attachment.add(&conf).success();
}

#[test]
fn host_local_add_reads_no_other_reservation_of_5000() {
    require!(Feature::Root);
    let (host, pod) = world();
    let conf = config("1.0.0", json!({ "ranges": [[{ "subnet": "10.1.0.0/16" }]] }));
    host.within(|| {
        std::fs::create_dir_all(PLACE).unwrap();
        for number in 2..5002_u32 {
            let name = format!("{PLACE}/10.1.{}.{}", number >> 8, number & 255);
            std::fs::write(name, format!("{number:064x}\r\neth0")).unwrap();
        }
        std::fs::write(format!("{PLACE}/last_reserved_ip.0"), "10.1.19.137").unwrap();
    });
    let one = container(&host, &pod, "one");
    // Other programs filled the directory: the first call has to read it, and caches the content.
    one.add(&conf).success();
    // The kernel records the access time of a file that was not read since its last change; see mount(8)
    // relatime.
    let epoch = SystemTime::UNIX_EPOCH;
    let paths: Vec<String> =
        reservations(&host).into_iter().map(|(name, _)| format!("{PLACE}/{name}")).collect();
    host.within(|| {
        for path in &paths {
            let times = std::fs::FileTimes::new().set_accessed(epoch);
            std::fs::File::options().write(true).open(path).unwrap().set_times(times).unwrap();
        }
    });
    let unread = || {
        let is_unread =
            |path: &&String| std::fs::metadata(path).is_ok_and(|meta| meta.accessed().unwrap() == epoch);
        host.within(|| paths.iter().filter(is_unread).count())
    };
    assert_eq!(paths.len(), 5001);
    assert_eq!(addresses(container(&host, &pod, "two").add(&conf)), ["10.1.19.139"]);
    container(&host, &pod, "two").check(&conf).success();
    container(&host, &pod, "two").del(&conf).success();
    assert_eq!(unread(), 5001);
    one.del(&conf).success();
    assert_eq!(unread(), 5000, "all but the deleted reservation");
    // Verifies that the access time shows a read.
    host.run(["cat", &paths[7]]);
    assert_eq!(unread(), 4999);
}

#[test]
fn host_local_addresses_of_concurrent_writers_are_not_reused() {
    require!(Feature::Root);
    let (host, pod) = world();
    for round in 2..20_u8 {
        let taken = 2 * round;
        host.write(format!("{PLACE}/10.1.2.{taken}"), format!("foreign{round}\r\neth0"));
        let allocated = addresses(container(&host, &pod, &format!("weft{round}")).add(&small(99)));
        let unique: BTreeSet<String> = reservations(&host).into_iter().map(|(name, _)| name).collect();
        assert!(unique.contains(&allocated[0]));
        assert_eq!(unique.len(), 2 * (usize::from(round) - 1), "{allocated:?}");
        let second = container(&host, &pod, &format!("foreign{round}"));
        assert_eq!(refusal(&second.add(&small(99))).0, 4, "it holds an address");
    }
}

/// A file that cannot be read for a while, as on a bad sector, keeps the owner.
#[test]
fn host_local_reservation_unreadable_once_is_released_later() {
    require!(Feature::Root);
    let (host, pod) = world();
    let conf = small(9);
    let [one, two] = ["one", "two"].map(|id| container(&host, &pod, id));
    assert_eq!(addresses(one.add(&conf)), ["10.1.2.2"]);
    // The next call has to read all files, and reads of the memory of process 1 fail.
    host.run(["sh", "-c", "rm -rf /run/weft/host-local"]);
    host.run(["mount", "--bind", "/proc/1/mem", &format!("{PLACE}/10.1.2.2")]);
    let unread = host.attempt(["cat", &format!("{PLACE}/10.1.2.2")]);
    assert_eq!(unread.code, Some(1), "{unread}");
    let added = two.add(&conf).success();
    assert!(added.stderr.contains("10.1.2.2 cannot be read"), "{added}");
    assert_eq!(addresses(added), ["10.1.2.3"]);
    host.run(["umount", &format!("{PLACE}/10.1.2.2")]);
    one.del(&conf).success();
    two.del(&conf).success();
    assert!(reservations(&host).is_empty(), "{:?}", reservations(&host));
}

#[test]
fn host_local_del_with_invalid_ipam_uses_the_default_directory() {
    require!(Feature::Root);
    let (host, pod) = world();
    let eth0 = container(&host, &pod, "c1");
    for invalid in
        [json!([]), json!("x"), json!({ "type": "host-local", "dataDir": 7 }), json!({ "dataDir": "x" })]
    {
        eth0.add(&small(9)).success();
        let mut broken = small(9);
        broken["ipam"] = invalid.clone();
        eth0.del(&broken).success();
        let left = host.run(["ls", PLACE]);
        assert!(!left.contains("10.1.2."), "{invalid}: {left}");
    }
}
