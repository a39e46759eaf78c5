//! Tests for `tuning` as the second plugin in a list: what it changes, and that it restores everything.
//!
//! ```text
//!   Host ── h0 ──(veth)── eth0 ── Pod a
//! ```

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::{Attachment, Feature, Finished, Host, Pod, Snapshot, binary, require};

const BACKUPS: &str = "/run/cni/tuning";
const FORWARDING: &str = "net.ipv4.conf.IFNAME.forwarding";

struct World {
    host: Host,
    pod: Pod,
}

impl World {
    /// Creates a pod with an interface, and the directory of backups, which the plugin keeps.
    fn new() -> World {
        let host = Host::new();
        host.install(&binary("weft-cni"), &["tuning"]);
        let pod = host.pod("a");
        host.run(["ip", "link", "add", "h0", "type", "veth", "peer", "name", "eth0", "netns", "a"]);
        // The kernel adds IPv6 addresses and routes a moment later, which would change the snapshots.
        host.run(["sysctl", "-qw", "net.ipv6.conf.h0.disable_ipv6=1"]);
        host.run(["ip", "link", "set", "h0", "up"]);
        pod.run(["sysctl", "-qw", "net.ipv6.conf.eth0.disable_ipv6=1"]);
        // A new namespace copies this value from the initial namespace.
        pod.run(["sysctl", "-qw", "net.ipv4.conf.eth0.forwarding=0"]);
        pod.run(["ip", "link", "set", "eth0", "up", "mtu", "1450", "address", "02:00:00:00:00:aa"]);
        host.run(["mkdir", "-p", "-m", "700", BACKUPS]);
        World { host, pod }
    }

    fn attachment(&self) -> Attachment<'_> {
        self.host.attachment("tuning", &self.pod, "eth0")
    }

    fn snapshots(&self) -> (Snapshot, Snapshot) {
        (self.host.snapshot(), self.pod.snapshot())
    }

    #[track_caller]
    fn assert_unchanged(&self, before: &(Snapshot, Snapshot)) {
        self.host.assert_unchanged(&before.0);
        assert_eq!(before.1.changes(&self.pod.snapshot()), "");
    }

    /// Returns the result of the previous plugin.
    fn previous(&self, version: &str) -> Value {
        let sandbox = self.pod.path().display().to_string();
        json!({
            "cniVersion": version,
            "interfaces": [
                { "name": "h0", "mac": "02:00:00:00:00:bb" },
                { "name": "eth0", "mac": "02:00:00:00:00:cc" },
                { "name": "eth0", "mac": "02:00:00:00:00:aa", "sandbox": sandbox },
            ],
            "ips": [{ "address": "10.1.2.3/24", "interface": 2 }],
        })
    }

    fn config(&self, more: &Value) -> Value {
        let mut conf = json!({ "cniVersion": "1.1.0", "name": "net", "type": "tuning", "prevResult": self.previous("1.1.0") });
        for (key, value) in more.as_object().unwrap() {
            conf[key] = value.clone();
        }
        conf
    }

    /// Returns the interface as `ip` shows it.
    fn link(&self) -> Value {
        self.pod.json(["ip", "-d", "-j", "link", "show", "eth0"])[0].clone()
    }

    fn has_flag(&self, flag: &str) -> bool {
        self.link()["flags"].as_array().unwrap().iter().any(|found| found == flag)
    }

    fn sysctl(&self, key: &str) -> String {
        self.pod.run(["sysctl", "-n", key]).trim().to_owned()
    }

    fn backup(&self) -> Option<Value> {
        let path = format!("{BACKUPS}/{}_eth0.json", self.pod.container_id());
        self.host.read(path).map(|text| serde_json::from_str(&text).unwrap())
    }
}

/// Returns a configuration that sets every option.
fn all_options() -> Value {
    json!({
        "sysctl": { FORWARDING: "1", "net/ipv4/conf/eth0/arp_filter": "1", "net.core.somaxconn": "1234" },
        "mac": "02-00-00-00-00-01", "mtu": 1400, "promisc": true, "allmulti": true, "txQLen": 77,
    })
}

#[track_caller]
fn refusal(finished: &Finished) -> (u64, String) {
    assert_eq!(finished.code, Some(1), "{finished}");
    let error = finished.json();
    (error["code"].as_u64().expect("a code"), error["msg"].as_str().expect("a message").to_owned())
}

// === tests that every plugin has ===

#[test]
fn tuning_all_options_are_set_checked_and_restored() {
    require!(Feature::Root);
    let world = World::new();
    let before = world.snapshots();
    let conf = world.config(&all_options());
    let result = world.attachment().add(&conf).success().json();
    let mut expected = world.previous("1.1.0");
    expected["interfaces"][2]["mac"] = json!("02:00:00:00:00:01");
    assert_eq!(result, expected, "only the interface in the container changes");

    let link = world.link();
    assert_eq!(
        (&link["address"], &link["mtu"], &link["txqlen"]),
        (&json!("02:00:00:00:00:01"), &json!(1400), &json!(77))
    );
    assert!(world.has_flag("PROMISC") && world.has_flag("ALLMULTI"));
    assert_eq!(world.sysctl("net.ipv4.conf.eth0.forwarding"), "1");
    assert_eq!(world.sysctl("net.ipv4.conf.eth0.arp_filter"), "1");
    assert_eq!(world.sysctl("net.core.somaxconn"), "1234");
    assert_ne!(
        world.host.run(["sysctl", "-n", "net.core.somaxconn"]).trim(),
        "1234",
        "the host's parameter is unchanged"
    );

    let backup = world.backup().expect("a backup");
    assert_eq!(
        (&backup["mac"], &backup["mtu"], &backup["promisc"]),
        (&json!("02:00:00:00:00:aa"), &json!(1450), &json!(false))
    );
    assert_eq!(
        (&backup["network"], &backup["sysctl"]["net/ipv4/conf/eth0/forwarding"]),
        (&json!("net"), &json!("0"))
    );

    let mut checked = conf.clone();
    checked["prevResult"] = result;
    world.attachment().check(&checked).success();
    world.attachment().del(&conf).success();
    world.assert_unchanged(&before);
}

#[test]
fn tuning_del_succeeds_twice_and_without_netns_or_interface() {
    require!(Feature::Root);
    let world = World::new();
    let conf = world.config(&all_options());
    world.attachment().del(&conf).success();
    world.attachment().add(&conf).success();
    world.attachment().del(&conf).success();
    world.attachment().del(&conf).success();
    assert_eq!(world.backup(), None);

    for netns in ["", "/run/netns/no-such"] {
        world.attachment().add(&conf).success();
        let mut without = world.attachment();
        without.netns = netns.to_owned();
        without.del(&conf).success();
        assert_eq!(world.backup(), None, "the backup is deleted for {netns:?}");
        world.pod.run(["sysctl", "-qw", "net.core.somaxconn=4096"]);
    }
    world.attachment().add(&conf).success();
    world.pod.run(["ip", "link", "delete", "eth0"]);
    world.attachment().del(&conf).success();
    assert_eq!(world.backup(), None);
    assert_eq!(
        world.sysctl("net.core.somaxconn"),
        "4096",
        "parameters that are not the interface's are restored"
    );
}

#[test]
fn tuning_failed_add_leaves_nothing() {
    require!(Feature::Root);
    let world = World::new();
    let before = world.snapshots();
    // The kernel refuses each after other options were set.
    let cases = [
        ("mac", json!("01:00:00:00:00:01"), 7, "mac: 01:00:00:00:00:01: "),
        ("mac", json!("02:00:00:00:00:00:00:01"), 7, "mac: 02:00:00:00:00:00:00:01: "),
        (
            "sysctl",
            json!({ "net.core.somaxconn": "1", "net.ipv4.conf.IFNAME.forwarding": "many" }),
            7,
            "sysctl.net.ipv4.conf.IFNAME.forwarding: \"many\": ",
        ),
        (
            "sysctl",
            json!({ "net.core.somaxconn": "1", "net.ipv4.conf.IFNAME.nonsense": "1" }),
            7,
            "sysctl.net.ipv4.conf.IFNAME.nonsense: \"1\": ",
        ),
        (
            "sysctl",
            json!({ "net.core.somaxconn": "1", "net.ipv4.conf": "1" }),
            7,
            "sysctl.net.ipv4.conf: \"1\": ",
        ),
    ];
    for (key, value, expected_code, expected) in cases {
        let mut more = all_options();
        more[key] = value;
        let (code, msg) = refusal(&world.attachment().add(&world.config(&more)));
        assert!(code == expected_code && msg.starts_with(expected), "{more}: {code} {msg}");
        world.assert_unchanged(&before);
    }
    let mut absent = world.attachment();
    absent.ifname = "eth9".to_owned();
    let (code, msg) =
        refusal(&absent.add(&world.config(&json!({ "mtu": 1400, "sysctl": { "net.core.somaxconn": "1" } }))));
    assert!(code == 5 && msg == "find link eth9: no such device", "{msg}");
    world.assert_unchanged(&before);
}

#[test]
fn tuning_passes_the_result_on_in_every_version() {
    require!(Feature::Root);
    let world = World::new();
    for version in ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
        let previous = match version {
            "0.1.0" | "0.2.0" => json!({ "cniVersion": version, "dns": {}, "ip4": { "ip": "10.1.2.3/24" } }),
            "1.0.0" | "1.1.0" => world.previous(version),
            _ => {
                let mut previous = world.previous(version);
                previous["ips"][0]["version"] = json!("4");
                previous["dns"] = json!({});
                previous
            }
        };
        let conf = world.config(&json!({ "cniVersion": version, "prevResult": previous, "mac": "02:00:00:00:00:07", "mtu": 1399 }));
        let result = world.attachment().add(&conf).success().json();
        let mut expected = previous;
        if !expected["interfaces"].is_null() {
            expected["interfaces"][2]["mac"] = json!("02:00:00:00:00:07");
        }
        assert_eq!(result, expected, "{version}");
        assert_eq!(world.link()["mtu"], 1399, "{version}");
        world.attachment().del(&conf).success();
        assert_eq!(world.link()["mtu"], 1450, "{version}");
        let newest = version == "1.1.0";
        for verb in ["GC", "STATUS"] {
            let finished = world.attachment().call(verb, conf.to_string());
            assert_eq!(finished.code, Some(i32::from(!newest)), "{verb} {version}: {finished}");
        }
    }
}

// Requirements: S32
#[test]
fn tuning_gc_deletes_backups_of_attachments_that_are_not_valid() {
    require!(Feature::Root);
    let world = World::new();
    let conf = world.config(&json!({ "mtu": 1400 }));
    let file = |name: &str| format!("{BACKUPS}/{name}");
    let mut gone = world.attachment();
    gone.container_id = "gone".to_owned();
    gone.add(&conf).success();
    world.attachment().add(&conf).success();
    world.host.write(file("other_eth0.json"), r#"{"mtu":1400,"network":"other"}"#);
    world.host.write(file("foreign_eth0.json"), r#"{"mtu":1400}"#);
    world.host.write(file("notes"), "mine");
    let names = || {
        let listed = world.host.run(["ls", BACKUPS]);
        listed.split_whitespace().map(str::to_owned).collect::<BTreeSet<_>>()
    };
    let gc = |valid: Option<Value>| {
        let mut sweep = conf.clone();
        sweep["cni.dev/valid-attachments"] = valid.unwrap_or_default();
        world.attachment().call("GC", sweep.to_string()).success();
    };
    let own = format!("{}_eth0.json", world.pod.container_id());
    gc(None);
    assert_eq!(names().len(), 5, "without a list, no backup is deleted");
    gc(Some(json!([{ "containerID": world.pod.container_id(), "ifname": "eth0" }])));
    let kept = ["notes", "other_eth0.json", own.as_str(), "foreign_eth0.json"].map(str::to_owned);
    assert_eq!(names(), BTreeSet::from(kept));
    world.attachment().del(&conf).success();
    assert_eq!(world.link()["mtu"], 1400, "the backup was made after the other attachment's change");
    world.attachment().add(&conf).success();
    gc(Some(json!([])));
    let kept = ["notes", "other_eth0.json", "foreign_eth0.json"].map(str::to_owned);
    assert_eq!(names(), BTreeSet::from(kept));
}

// Requirements: S33
#[test]
fn tuning_status_reports_whether_an_add_can_succeed() {
    require!(Feature::Root);
    let world = World::new();
    let status = |more: &Value| world.attachment().call("STATUS", world.config(more).to_string());
    let before = world.snapshots();
    status(&all_options()).success();
    status(&json!({ "dataDir": "/run/not/yet/there" })).success();
    world.assert_unchanged(&before);
    world.host.run(["mkdir", "/run/readonly"]);
    world.host.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", "/run/readonly"]);
    let (code, msg) = refusal(&status(&json!({ "dataDir": "/run/readonly/x" })));
    assert!(
        code == 50
            && msg.starts_with("dataDir: \"/run/readonly/x\": ")
            && msg.ends_with("read-only file system"),
        "{msg}"
    );
    world.host.run(["mkdir", "-p", "/etc/cni/tuning/allowlist.conf"]);
    let (code, msg) = refusal(&status(&json!({})));
    assert!(code == 50 && msg == "read /etc/cni/tuning/allowlist.conf: is a directory", "{msg}");
}

// === input ===

#[test]
fn tuning_bad_options_are_refused_and_change_nothing() {
    require!(Feature::Root);
    let world = World::new();
    let before = world.snapshots();
    let cases = [
        (json!({ "mtu": "1400" }), "mtu: \"1400\""),
        (json!({ "mtu": 20 }), "mtu: 20"),
        (json!({ "mtu": 70000 }), "mtu: 70000"),
        (json!({ "mac": "here" }), "mac: \"here\""),
        (json!({ "promisc": "true" }), "promisc: \"true\""),
        (json!({ "allmulti": 1 }), "allmulti: 1"),
        (json!({ "txQLen": -1 }), "txQLen: -1"),
        (json!({ "sysctl": "net.core.somaxconn=1" }), "sysctl: \"net.core.somaxconn=1\""),
        (json!({ "sysctl": { "net.core.somaxconn": 1 } }), "sysctl.net.core.somaxconn: 1"),
        (json!({ "sysctl": { "kernel.hostname": "x" } }), "sysctl.kernel.hostname: \"x\": not below net"),
        (
            json!({ "sysctl": { "net/../kernel/hostname": "x" } }),
            "sysctl.net/../kernel/hostname: \"x\": not a legal key",
        ),
        (json!({ "sysctl": { "net.ipv4.//.//.kernel.hostname": "x" } }), "not a legal key"),
        (
            json!({ "sysctl": { "net.ipv4.conf.IFNAME.forwarding": "1", "net.ipv4.conf.eth0.forwarding": "0" } }),
            "is the same parameter",
        ),
        (
            json!({ "args": { "cni": { "sysctl": { "vm.swappiness": "1" } } } }),
            "sysctl.vm.swappiness: \"1\": not below net",
        ),
        (json!({ "runtimeConfig": { "mac": "x" } }), "runtimeConfig.mac: \"x\""),
        (json!({ "dataDir": "here" }), "dataDir: \"here\""),
        (json!({ "prevResult": null, "mtu": 1400 }), "prevResult is missing"),
    ];
    for (more, expected) in cases {
        let (code, msg) = refusal(&world.attachment().add(&world.config(&more)));
        assert!(code == 7 && msg.contains(expected), "{more}: {code} {msg}");
    }
    let twice = world.config(&json!({ "sysctl": { "net.core.somaxconn": "X" } })).to_string();
    let twice =
        twice.replace(r#""net.core.somaxconn":"X""#, r#""net.core.somaxconn":"1","net.core.somaxconn":"2""#);
    let (code, msg) = refusal(&world.attachment().call("ADD", twice));
    assert!(code == 7 && msg == "sysctl.net.core.somaxconn: \"2\": the key occurs twice", "{msg}");
    world.assert_unchanged(&before);
}

#[test]
fn tuning_that_would_remove_ipv6_addresses_is_refused() {
    require!(Feature::Root);
    let world = World::new();
    let before = world.snapshots();
    let ipv6 = json!({ "address": "fd01::3/64", "interface": 2 });
    for (options, words) in [
        (
            json!({ "mtu": 1279 }),
            "mtu: 1279: below 1280: the kernel would remove the IPv6 address fd01::3/64",
        ),
        (
            json!({ "sysctl": { "net.ipv6.conf.IFNAME.disable_ipv6": "1" } }),
            "sysctl.net.ipv6.conf.IFNAME.disable_ipv6: \"1\": the kernel would remove",
        ),
        (json!({ "sysctl": { "net/ipv6/conf/all/disable_ipv6": "1" } }), "disable_ipv6: \"1\""),
    ] {
        let mut conf = world.config(&options);
        conf["prevResult"]["ips"] = json!([ipv6]);
        let error = world.attachment().add(&conf).json();
        assert_eq!(error["code"], 7, "{error}");
        assert!(error["msg"].as_str().unwrap().contains(words), "{error}");
        world.assert_unchanged(&before);
    }
    let mut conf = world.config(&json!({ "mtu": 1279 }));
    conf["prevResult"]["routes"] = json!([{ "dst": "fd09::/64" }]);
    let error = world.attachment().add(&conf).json();
    assert!(error["msg"].as_str().unwrap().contains("would remove the IPv6 route fd09::/64"), "{error}");
    // The address of another interface does not matter.
    let mut conf = world.config(&json!({ "mtu": 1279 }));
    conf["prevResult"]["ips"] = json!([{ "address": "fd01::3/64", "interface": 0 }]);
    world.attachment().add(&conf).success();
}

#[test]
fn tuning_sysctl_allow_list_of_the_node_is_enforced() {
    require!(Feature::Root);
    let world = World::new();
    world
        .host
        .write("/etc/cni/tuning/allowlist.conf", "^net\\.ipv4\\.conf\\.IFNAME\\.[a-z_]*$\n\n  somaxconn  \n");
    let before = world.snapshots();
    let add_sysctl = |key: &str| world.attachment().add(&world.config(&json!({ "sysctl": { key: "1" } })));
    for allowed in [FORWARDING, "net.core.somaxconn"] {
        add_sysctl(allowed).success();
        world.attachment().del(&world.config(&json!({}))).success();
    }
    for refused in ["net.ipv4.conf.eth0.forwarding", "net.ipv4.ip_forward"] {
        let (code, msg) = refusal(&add_sysctl(refused));
        let expected = format!("sysctl.{refused}: \"1\": not allowed by /etc/cni/tuning/allowlist.conf");
        assert_eq!((code, msg), (7, expected));
    }
    let by_args = json!({ "args": { "cni": { "sysctl": { "net.ipv4.ip_forward": "1" } } } });
    assert_eq!(refusal(&world.attachment().add(&world.config(&by_args))).0, 7);
    world.assert_unchanged(&before);
}

// Requirements: V6, V13, V14
#[test]
fn tuning_args_override_runtime_config_and_cni_args() {
    require!(Feature::Root);
    let world = World::new();
    let mac = |args: &str, more: &Value| {
        let mut attachment = world.attachment();
        attachment.args = args.to_owned();
        let conf = world.config(more);
        attachment.add(&conf).success();
        let mac = world.link()["address"].as_str().unwrap().to_owned();
        attachment.del(&conf).success();
        mac
    };
    let environment = "IgnoreUnknown=1;MAC=02:00:00:00:00:02";
    assert_eq!(mac("", &json!({ "mac": "02:00:00:00:00:01" })), "02:00:00:00:00:01");
    assert_eq!(mac(environment, &json!({ "mac": "02:00:00:00:00:01" })), "02:00:00:00:00:02");
    let runtime = json!({ "runtimeConfig": { "mac": "02:00:00:00:00:03" } });
    assert_eq!(mac(environment, &runtime), "02:00:00:00:00:03");
    let both = json!({ "runtimeConfig": { "mac": "02:00:00:00:00:03" }, "args": { "cni": { "mac": "02:00:00:00:00:04" } } });
    assert_eq!(mac(environment, &both), "02:00:00:00:00:04");

    let mut more = all_options();
    more["args"] = json!({ "cni": { "mtu": 1300, "promisc": false, "allmulti": false, "txQLen": 0, "sysctl": { FORWARDING: "0" } } });
    world.attachment().add(&world.config(&more)).success();
    let link = world.link();
    assert_eq!(
        (&link["mtu"], link.get("txqlen").is_none_or(|length| *length == 0)),
        (&json!(1300), true),
        "{link}"
    );
    assert!(!world.has_flag("PROMISC") && !world.has_flag("ALLMULTI"));
    assert_eq!(world.sysctl("net.ipv4.conf.eth0.forwarding"), "0");
}

// === state ===

#[test]
fn tuning_check_finds_each_change() {
    require!(Feature::Root);
    let world = World::new();
    let mut more = all_options();
    more["sysctl"] = json!({ "net.ipv4.conf.IFNAME.arp_filter": "1", "net.ipv4.ping_group_range": "0 5" });
    let conf = world.config(&more);
    world.attachment().add(&conf).success();
    world.attachment().check(&conf).success();
    let changes = [
        (
            ["ip", "link", "set", "eth0", "mtu", "1399"],
            ["ip", "link", "set", "eth0", "mtu", "1400"],
            "mtu is 1399, not 1400",
        ),
        (
            ["ip", "link", "set", "eth0", "promisc", "off"],
            ["ip", "link", "set", "eth0", "promisc", "on"],
            "promisc is false, not true",
        ),
        (
            ["ip", "link", "set", "eth0", "allmulticast", "off"],
            ["ip", "link", "set", "eth0", "allmulticast", "on"],
            "allmulti is false, not true",
        ),
        (
            ["ip", "link", "set", "eth0", "txqlen", "5"],
            ["ip", "link", "set", "eth0", "txqlen", "77"],
            "txQLen is 5, not 77",
        ),
        (
            ["ip", "link", "set", "eth0", "address", "02:00:00:00:00:09"],
            ["ip", "link", "set", "eth0", "address", "02:00:00:00:00:01"],
            "address is 02:00:00:00:00:09, not 02:00:00:00:00:01",
        ),
        (
            ["sysctl", "-q", "-w", "-n", "-e", "net.ipv4.conf.eth0.arp_filter=0"],
            ["sysctl", "-q", "-w", "-n", "-e", "net.ipv4.conf.eth0.arp_filter=1"],
            "sysctl net/ipv4/conf/eth0/arp_filter: is \"0\", not \"1\"",
        ),
    ];
    for (change, back, expected) in changes {
        world.pod.run(change);
        let (code, msg) = refusal(&world.attachment().check(&conf));
        assert!(code == 999 && msg.contains(expected), "{msg}");
        world.pod.run(back);
    }
    world.attachment().check(&conf).success();
    // The interface is promiscuous by another plugin of the chain.
    world.attachment().check(&world.config(&json!({}))).success();
}

#[test]
fn tuning_repeated_add_keeps_the_first_backup() {
    require!(Feature::Root);
    let world = World::new();
    let before = world.snapshots();
    world.attachment().add(&world.config(&json!({ "mtu": 1400, "sysctl": { FORWARDING: "1" } }))).success();
    world.attachment().add(&world.config(&all_options())).success();
    assert_eq!(world.backup().unwrap()["mtu"], 1450);
    // A third ADD fails: the backup and the changes of the first two remain.
    let two = (world.backup(), world.pod.snapshot());
    let third = world.config(&json!({ "mtu": 1300, "mac": "01:00:00:00:00:01" }));
    assert_eq!(refusal(&world.attachment().add(&third)).0, 7);
    assert_eq!(world.backup(), two.0);
    assert_eq!(two.1.changes(&world.pod.snapshot()), "");
    world.attachment().del(&world.config(&json!({}))).success();
    world.assert_unchanged(&before);
}

#[test]
fn tuning_del_logs_what_it_cannot_restore_and_succeeds() {
    require!(Feature::Root);
    let world = World::new();
    let conf = world.config(&json!({ "mtu": 1400, "allmulti": true }));
    world.attachment().add(&conf).success();
    let path = format!("{BACKUPS}/{}_eth0.json", world.pod.container_id());
    let good = world.host.read(&path).unwrap();
    // An MTU that this kind of interface cannot have, and a parameter outside of the network namespace.
    let mut bad: Value = serde_json::from_str(&good).unwrap();
    bad["mtu"] = json!(70000);
    bad["sysctl"] = json!({ "kernel/hostname": "stolen", "net/../kernel/hostname": "stolen" });
    world.host.write(&path, bad.to_string());
    let ended = world.attachment().del(&conf).success();
    let warning = "tuning: restore mtu: 70000: change link eth0 mtu 70000: ";
    assert!(ended.stderr.starts_with(warning), "{}", ended.stderr);
    assert!(!world.has_flag("ALLMULTI"), "the other options are restored");
    assert_ne!(world.pod.run(["hostname"]).trim(), "stolen");
    assert_eq!(world.backup(), None, "a backup that remains would fail every DEL");
    world.host.write(&path, "{ not json");
    world.attachment().del(&conf).success();
    assert_eq!(world.host.read(&path), None, "an unreadable backup is deleted");
}

#[test]
fn tuning_without_descriptors_fails_add_and_del_undoes_it() {
    require!(Feature::Root);
    let world = World::new();
    let key = "net.ipv4.conf.eth0.arp_filter";
    let conf = world.config(&json!({ "sysctl": { key: "1" } }));
    let mut limited = world.attachment();
    for call in ["ADD", "DEL"] {
        let (mut failed, mut succeeded) = (0, 0);
        for descriptors in 4..12 {
            let limit = format!("--nofile={descriptors}:{descriptors}");
            limited.through = ["prlimit", &limit, "--"].map(str::to_owned).to_vec();
            let plain = world.attachment();
            let done = match call {
                "ADD" => limited.add(&conf),
                _ => {
                    plain.add(&conf).success();
                    limited.del(&conf)
                }
            };
            let succeeds = done.code == Some(0);
            *(if succeeds { &mut succeeded } else { &mut failed }) += 1;
            if call == "ADD" && succeeds || call == "DEL" && !succeeds {
                plain.del(&conf).success();
            }
            let is = (world.sysctl(key), world.link()["mtu"].clone(), world.backup());
            assert_eq!(
                is,
                ("0".to_owned(), json!(1450), None),
                "{call} with {descriptors} descriptors: {done:?}"
            );
        }
        assert!(failed > 0 && succeeded > 0, "{call}: {failed} failed, {succeeded} succeeded");
    }
}

#[test]
fn tuning_empty_sysctl_value_is_written_and_restored() {
    require!(Feature::Root);
    let world = World::new();
    let key = "net.ipv4.ip_local_reserved_ports";
    let conf = |value: &str| world.config(&json!({ "sysctl": { key: value } }));
    world.attachment().add(&conf("8080-8081")).success();
    assert_eq!(world.sysctl(key), "8080-8081");
    world.attachment().del(&conf("8080-8081")).success();
    assert_eq!(world.sysctl(key), "", "as it was");
    world.pod.run(["sysctl", "-qw", &format!("{key}=9090")]);
    world.attachment().add(&conf("")).success();
    assert_eq!(world.sysctl(key), "");
    world.attachment().check(&conf("")).success();
    world.attachment().del(&conf("")).success();
    assert_eq!(world.sysctl(key), "9090");
}

#[test]
fn tuning_del_succeeds_with_an_invalid_data_dir() {
    require!(Feature::Root);
    let world = World::new();
    for directory in [json!(7), json!("here")] {
        let conf = world.config(&json!({ "mtu": 1400, "dataDir": directory }));
        assert_eq!(refusal(&world.attachment().add(&conf)).0, 7);
        world.attachment().del(&conf).success();
    }
}

#[test]
fn tuning_without_options_writes_no_backup() {
    require!(Feature::Root);
    let world = World::new();
    let before = world.snapshots();
    let conf = world.config(&json!({ "mac": "", "mtu": 0, "promisc": false, "sysctl": {} }));
    let result = world.attachment().add(&conf).success().json();
    assert_eq!(result, world.previous("1.1.0"));
    world.assert_unchanged(&before);
    world.attachment().check(&conf).success();
    world.attachment().del(&conf).success();
    world.assert_unchanged(&before);
}

#[test]
fn tuning_killed_at_any_moment_del_restores_everything() {
    require!(Feature::Root);
    let world = World::new();
    let before = world.snapshots();
    let conf = world.config(&all_options());
    world.host.write("/run/test/conf", conf.to_string());
    let whole = world.attachment().add(&conf).success().took.max(Duration::from_millis(4)) * 3 / 2;
    world.attachment().del(&conf).success();
    let (mut untouched, mut changed) = (0, 0);
    const ROUNDS: u32 = 80;
    for round in 0..ROUNDS {
        let running = world
            .host
            .command("sh")
            .args(["-c", "exec /opt/cni/bin/tuning </run/test/conf >/dev/null"])
            .env("CNI_COMMAND", "ADD")
            .env("CNI_CONTAINERID", world.pod.container_id())
            .env("CNI_NETNS", world.pod.path())
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
        let touched = world.sysctl("net.core.somaxconn") == "1234" || world.link()["mtu"] == 1400;
        changed += usize::from(touched);
        untouched += usize::from(!touched);
        world.attachment().del(&conf).success();
        let somaxconn = world.sysctl("net.core.somaxconn");
        assert!(
            somaxconn != "1234" && world.link()["mtu"] == 1450 && world.backup().is_none(),
            "round {round}"
        );
    }
    assert!(untouched > 0 && changed > 0, "killed before ({untouched}) and after ({changed}) it began");
    world.host.run(["rm", "-rf", "/run/test"]);
    world.assert_unchanged(&before);
}
