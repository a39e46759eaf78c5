//! What every interface plugin owes its callers: one body for all of them, by a table.
//!
//! ```text
//!   host ── br0, up0 ── outside          a, b: pods
//! ```
//!
//! Source: SPEC 1.1.0 §2 and §4 (S13, S16–S19, S25, S30–S33), K5, K6, G3, G8.

use rig::{VERSIONS, addresses, assert_nothing_left, assert_pod_unchanged, assert_refused, in_version, with};
use serde_json::{Value, json};
use testkit::{Feature, Host, Pod, Snapshot};

/// One plugin: a configuration that uses much of it.
struct Case {
    plugin: String,
    config: Value,
    /// Makes an interface in the container.
    makes: bool,
}

/// The VLAN of the first attachment; a parent has each only once.
const FIRST_VLAN: usize = 5;

/// How many devices a host has to give away.
const DEVICES: usize = 4;

/// Plugins whose link has no end on the host: nothing there leads to it, it goes with its namespace.
const INSIDE_ONLY: [&str; 5] = ["dummy", "ipvlan", "macvlan", "tap", "vlan"];

/// What a plugin's links and neighbours need of the kernel.
fn features(plugin: &str) -> &'static [Feature] {
    match plugin {
        "dummy" => &[Feature::Root, Feature::Dummy],
        "ipvlan" => &[Feature::Root, Feature::Ipvlan],
        "tap" => &[Feature::Root, Feature::Tun],
        "vlan" => &[Feature::Root, Feature::Vlan],
        _ => &[Feature::Root, Feature::Macvlan, Feature::NftMasquerade, Feature::NftBridge],
    }
}

fn ipam() -> Value {
    json!({
        "type": "host-local",
        "ranges": [[{ "subnet": "10.1.0.0/24" }], [{ "subnet": "fd01::/64" }]],
        "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }],
    })
}

fn case(plugin: &str) -> Case {
    let own = match plugin {
        "ipvlan" => json!({ "master": "up0" }),
        "host-device" => json!({ "device": "dev0" }),
        "tap" => json!({ "mtu": 1400, "mac": "02:00:00:00:00:05", "owner": 1000, "multiQueue": true }),
        "vlan" => json!({ "master": "up0", "vlanId": FIRST_VLAN }),
        "bridge" => json!({ "bridge": "br0", "isGateway": true, "ipMasq": true, "macspoofchk": true }),
        "macvlan" => json!({ "master": "up0" }),
        "ptp" => json!({ "ipMasq": true }),
        _ => json!({}),
    };
    let mut config = with(&json!({ "name": "net", "type": plugin }), &own);
    if plugin != "loopback" {
        config["ipam"] = ipam();
    }
    Case { plugin: plugin.to_owned(), config, makes: plugin != "loopback" }
}

impl Case {
    fn config(&self, version: &str) -> Value {
        in_version(&self.config, version)
    }

    /// What is different for an attachment beside others: what only one of them can have.
    fn own(&self, place: usize) -> Value {
        match self.plugin.as_str() {
            "vlan" => json!({ "vlanId": FIRST_VLAN + place }),
            "host-device" => json!({ "device": format!("dev{}", place % DEVICES) }),
            _ => json!({}),
        }
    }

    /// Other addresses, and for them a bridge of their own.
    fn beside(&self, bridge: &str, ipam: &Value) -> Value {
        match self.plugin.as_str() {
            "bridge" => json!({ "ipam": ipam, "bridge": bridge }),
            _ => json!({ "ipam": ipam }),
        }
    }

    fn is_inside_only(&self) -> bool {
        INSIDE_ONLY.contains(&self.plugin.as_str())
    }

    /// A world in which the plugin's shared furniture is there already: bridge, tables, directories, sysctls.
    fn primed(&self, host: &Host) -> (Pod, Snapshot) {
        self.world(host);
        let pod = host.pod("a");
        let config = self.config("1.1.0");
        let first = host.attachment(&self.plugin, &pod, "eth0");
        let result = first.add(&config).success().json();
        first.del(&with(&config, &json!({ "prevResult": result }))).success();
        let before = host.snapshot();
        (pod, before)
    }

    fn world(&self, host: &Host) {
        rig::install(host);
        // The pod that is the outside goes; its end of the wire stays with it.
        std::mem::forget(rig::traffic::outside(host));
        self.create_bridge(host);
    }

    /// The devices that are given away, those that went with a namespace made anew.
    fn create_bridge(&self, host: &Host) {
        if self.plugin != "host-device" {
            return;
        }
        // What the kernel keeps of an interface in a namespace, it begins anew in each: no link-local addresses anywhere.
        host.run(["sysctl", "-qw", "net.ipv6.conf.default.addr_gen_mode=1"]);
        for place in 0..DEVICES {
            if rig::link(host, &format!("dev{place}")).is_none() {
                // One in a namespace that is going away is still there for a moment.
                let _ = host.attempt(["ip", "link", "delete", &format!("peer{place}")]);
                let script = format!(
                    "link add dev{place} address 02:00:00:00:0d:0{place} type veth peer name peer{place} address 02:00:00:00:0e:0{place}\n\
                     link set dev{place} alias {place}\n\
                     link set dev{place} up\nlink set peer{place} up\n"
                );
                host.command("ip").args(["-batch", "-"]).stdin(script).finish().success();
            }
        }
    }
}

/// One test for each plugin from one body.
macro_rules! for_every_plugin {
    ($($body:ident),* $(,)?) => {
        for_every_plugin!(@ bridge $($body)*);
        for_every_plugin!(@ macvlan $($body)*);
        for_every_plugin!(@ ptp $($body)*);
        for_every_plugin!(@ loopback $($body)*);
        for_every_plugin!(@ dummy $($body)*);
        for_every_plugin!(@ host_device $($body)*);
        for_every_plugin!(@ ipvlan $($body)*);
        for_every_plugin!(@ tap $($body)*);
        for_every_plugin!(@ vlan $($body)*);
    };
    (@ $plugin:ident $($body:ident)*) => {
        mod $plugin {
            $(
                #[test]
                fn $body() {
                    let plugin = &*stringify!($plugin).replace('_', "-");
                    if !testkit::skip(&testkit::test_name(), super::features(plugin)) {
                        super::$body(&testkit::Host::new(), &super::case(plugin));
                    }
                }
            )*
        }
    };
}

for_every_plugin!(
    s16_s17_add_check_del_in_every_version_leave_nothing,
    s13_s31_del_twice_and_without_what_it_was_for,
    s18_del_before_any_add_is_success,
    a_del_leaves_the_interface_that_another_attachment_has,
    a_del_with_address_management_that_is_none_removes_the_interface,
    g8_a_failed_add_leaves_nothing,
    g8_the_very_first_add_failing_takes_its_furniture_along,
    s32_gc_drops_what_is_not_valid_and_nothing_else,
    s33_status_tells_what_an_add_would,
    s30_address_management_in_process_and_as_a_program_says_the_same,
    s19_a_version_we_do_not_know_is_refused_and_changes_nothing,
    k1_k4_hostile_variables_and_documents_are_refused_and_change_nothing,
);

fn s16_s17_add_check_del_in_every_version_leave_nothing(host: &Host, case: &Case) {
    let (pod, before) = case.primed(host);
    let inside = pod.snapshot();
    let eth0 = host.attachment(&case.plugin, &pod, "eth0");
    for version in VERSIONS {
        let what = format!("{} {version}", case.plugin);
        let config = case.config(version);
        let result = eth0.add(&config).success().json();
        assert_eq!(result["cniVersion"], version, "{what}");
        // S7, S23, trap 5.
        let old = version < "0.3.0";
        assert_eq!(result.get("interfaces").is_some(), !old, "{what}: {result}");
        assert_eq!(result.get("dns").is_some(), version < "1.0.0", "{what}: {result}");
        for ip in result["ips"].as_array().into_iter().flatten() {
            assert_eq!(ip.get("version").is_some(), version < "1.0.0", "{what}: {ip}");
        }
        if case.makes {
            let mut given = addresses(&result);
            let mut there = rig::addresses_on(&pod, "eth0");
            given.sort();
            there.sort();
            assert_eq!(given, there, "{what}: the result says what is there");
            assert_eq!(given.len(), 2, "{what}: {given:?}");
            let shown = rig::link(&pod, "eth0").expect("eth0");
            assert!(rig::is_up(&shown), "{what}: {shown}");
            if !old {
                let list = result["interfaces"].as_array().expect("interfaces");
                let own = list.iter().find(|i| i["name"] == "eth0").expect("eth0 in the result");
                assert_eq!(own["mac"], shown["address"], "{what}");
                assert_eq!(own["sandbox"], pod.path().to_str().unwrap(), "{what}");
            }
        }
        let known = with(&config, &json!({ "prevResult": result }));
        let checked = eth0.check(&known);
        match version < "0.4.0" {
            true => assert_refused(&what, &checked, 1, &["CHECK"]),
            false => assert_eq!(checked.success().stdout, "", "{what}"),
        }
        let last = if version < "0.4.0" { &config } else { &known };
        assert_eq!(eth0.del(last).success().stdout, "", "{what}");
        assert_nothing_left(&what, host, &before);
        assert_pod_unchanged(&what, &pod, &inside);
    }
}

/// Takes something away from an attachment before its DEL; the pod, if it is still there.
type Loss = fn(&Host, &mut testkit::Attachment<'_>, Pod, &mut Value) -> Option<Pod>;

/// What a DEL may find missing.
const LOSSES: [(&str, Loss); 7] = [
    ("twice", |_, attachment, pod, config| {
        attachment.del(config).success();
        Some(pod)
    }),
    ("without prevResult", |_, _, pod, config| {
        config.as_object_mut().unwrap().remove("prevResult");
        Some(pod)
    }),
    ("without CNI_NETNS", |_, attachment, pod, _| {
        attachment.netns.clear();
        Some(pod)
    }),
    ("without CNI_NETNS and prevResult", |_, attachment, pod, config| {
        config.as_object_mut().unwrap().remove("prevResult");
        attachment.netns.clear();
        Some(pod)
    }),
    ("with the namespace gone", |_, _, pod, _| {
        pod.remove();
        None
    }),
    ("with a plain file where the namespace was", |host, attachment, pod, _| {
        let path = pod.path().to_owned();
        pod.remove();
        host.write(&path, "");
        attachment.netns = path.display().to_string();
        None
    }),
    ("with the link gone", |_, _, pod, _| {
        if rig::link(&pod, "eth0").is_some() {
            pod.run(["ip", "link", "delete", "eth0"]);
        }
        Some(pod)
    }),
];

fn s13_s31_del_twice_and_without_what_it_was_for(host: &Host, case: &Case) {
    let (pod, before) = case.primed(host);
    let mut pod = Some(pod);
    for (place, (what, lose)) in LOSSES.into_iter().enumerate() {
        // A namespace takes its time to go, and what is in it with it.
        let config = with(&case.config("1.1.0"), &case.own(place));
        let what = format!("{}: DEL {what}", case.plugin);
        let own = pod.take().unwrap_or_else(|| host.pod("a"));
        let mut attachment = host.attachment(&case.plugin, &own, "eth0");
        let result = attachment.add(&config).success().json();
        let mut known = with(&config, &json!({ "prevResult": result }));
        pod = lose(host, &mut attachment, own, &mut known);
        assert_eq!(attachment.del(&known).success().stdout, "", "{what}");
        if attachment.netns.is_empty() {
            // What is inside alone, nothing on the host leads to: it goes with the namespace.
            let own = pod.as_ref().unwrap();
            if case.plugin == "loopback" {
                own.run(["ip", "link", "set", "lo", "down"]);
            } else if case.is_inside_only() {
                own.run(["ip", "link", "delete", "eth0"]);
            } else if case.plugin == "host-device" {
                attachment.netns = own.path().display().to_string();
                attachment.del(&known).success();
            }
        }
        match &pod {
            Some(own) => assert!(rig::links(own).is_empty(), "{what}: {:?}", rig::links(own)),
            None => {
                let _ = host.attempt(["rm", "-f", "/run/netns/a"]);
                let again = host.pod("a");
                pod = Some(again);
            }
        }
        case.create_bridge(host);
        assert_nothing_left(&what, host, &before);
    }
}

fn s18_del_before_any_add_is_success(host: &Host, case: &Case) {
    case.world(host);
    let pod = host.pod("a");
    let before = host.snapshot();
    let mut eth0 = host.attachment(&case.plugin, &pod, "eth0");
    for version in VERSIONS {
        assert_eq!(eth0.del(&case.config(version)).success().stdout, "");
    }
    eth0.netns.clear();
    eth0.del(&case.config("1.1.0")).success();
    assert_nothing_left(&case.plugin, host, &before);
}

fn a_del_leaves_the_interface_that_another_attachment_has(host: &Host, case: &Case) {
    let (pod, _) = case.primed(host);
    let others = json!({ "cniVersion": "1.1.0", "name": "others", "type": "bridge", "bridge": "br7" });
    host.attachment("bridge", &pod, "eth0").add(&others).success();
    // With that the kernel has given it what it gives every link.
    rig::machine::until("eth0 to be up", || {
        rig::link(&pod, "eth0").filter(|link| link["operstate"] == "UP").map(drop)
    });
    let (before, inside) = (host.snapshot(), pod.snapshot());
    let config = case.config("1.1.0");
    let mut own = host.attachment(&case.plugin, &pod, "eth0");
    if case.makes {
        assert_refused(&case.plugin, &own.add(&config), 4, &["eth0"]);
    }
    own.del(&config).success();
    own.ifname = "lo".to_owned();
    own.del(&config).success();
    assert!(rig::link(&pod, "eth0").is_some(), "{}: the other's is there", case.plugin);
    if case.makes {
        assert_nothing_left(&case.plugin, host, &before);
        assert_pod_unchanged(&case.plugin, &pod, &inside);
    }
}

fn a_del_with_address_management_that_is_none_removes_the_interface(host: &Host, case: &Case) {
    case.world(host);
    let pod = host.pod("a");
    let config = case.config("1.1.0");
    let eth0 = host.attachment(&case.plugin, &pod, "eth0");
    eth0.add(&config).success();
    let broken = eth0.del(&with(&config, &json!({ "ipam": "host-local" })));
    if case.makes {
        assert_refused(&case.plugin, &broken, 7, &["ipam", "host-local"]);
    }
    assert!(rig::links(&pod).is_empty(), "{}: {:?}", case.plugin, rig::links(&pod));
    eth0.del(&config).success();
}

/// Ways to make an ADD fail at ever later steps; what they need is made by the case and taken away again.
fn failures(case: &Case) -> Vec<(&'static str, Value, u64)> {
    if !case.makes {
        return Vec::new();
    }
    let with_ipam = |ipam: Value| json!({ "ipam": ipam });
    let fixed = |address: &str, routes: Value| {
        with_ipam(
            json!({ "type": "static", "addresses": [{ "address": address, "gateway": "10.1.0.1" }], "routes": routes }),
        )
    };
    let mut failures = vec![
        ("the ipam plugin is missing", with_ipam(json!({ "type": "nowhere" })), 5),
        (
            "the range is exhausted",
            with_ipam(
                json!({ "type": "host-local", "subnet": "10.1.0.0/30", "rangeStart": "10.1.0.1", "rangeEnd": "10.1.0.1" }),
            ),
            11,
        ),
        (
            "a route cannot be reached",
            fixed("10.1.0.9/24", json!([{ "dst": "10.7.0.0/16", "gw": "10.8.0.1" }])),
            5,
        ),
    ];
    if !matches!(case.plugin.as_str(), "dummy" | "host-device") {
        failures.push(("the mtu is out of range", json!({ "mtu": 1_000_000 }), 7));
    }
    if matches!(case.plugin.as_str(), "ipvlan" | "macvlan" | "vlan") {
        failures.extend([
            ("the master is not there", json!({ "master": "nowhere" }), 7),
            ("the mtu is the master's no more", json!({ "mtu": 1501 }), 7),
        ]);
    }
    failures.extend(own_failures(&case.plugin));
    failures
}

/// Those that only one plugin has.
fn own_failures(plugin: &str) -> Vec<(&'static str, Value, u64)> {
    let fixed = |addresses: Value| json!({ "ipam": { "type": "static", "addresses": addresses } });
    match plugin {
        "bridge" => vec![
            (
                "the gateway conflicts",
                fixed(json!([{ "address": "10.2.0.9/16", "gateway": "10.1.0.1" }])),
                999,
            ),
            ("the bridge is none", json!({ "bridge": "up0" }), 7),
            ("hairpin and promiscuous", json!({ "hairpinMode": true, "promiscMode": true }), 7),
            ("no addresses wanted but given", json!({ "disableContainerInterface": true }), 7),
        ],
        "ipvlan" | "macvlan" => vec![("the mode is none", json!({ "mode": "bridged" }), 7)],
        "tap" => vec![
            ("the bridge is not there", json!({ "bridge": "nowhere" }), 7),
            ("the bridge is none", json!({ "bridge": "lo" }), 7),
            ("the owner is none", json!({ "owner": 4_294_967_295_u64 }), 7),
        ],
        "vlan" => vec![("the id is none", json!({ "vlanId": 4095 }), 7)],
        "host-device" => vec![
            ("the device is not there", json!({ "device": "nowhere" }), 7),
            ("the device is a path", json!({ "device": "../dev0" }), 7),
            ("the device cannot be moved", json!({ "device": "lo" }), 5),
        ],
        "dummy" => vec![("no address", json!({ "ipam": {} }), 7)],
        _ => vec![
            ("no gateway", fixed(json!([{ "address": "10.1.0.9/24" }])), 999),
            ("no address", json!({ "ipam": {} }), 7),
        ],
    }
}

fn g8_a_failed_add_leaves_nothing(host: &Host, case: &Case) {
    let (pod, before) = case.primed(host);
    let inside = pod.snapshot();
    let eth0 = host.attachment(&case.plugin, &pod, "eth0");
    for (what, keys, code) in failures(case) {
        let what = format!("{}: {what}", case.plugin);
        let config = with(&case.config("1.1.0"), &keys);
        assert_refused(&what, &eth0.add(&config), code, &[]);
        assert_nothing_left(&what, host, &before);
        assert_pod_unchanged(&what, &pod, &inside);
    }
    let mut gone = host.attachment(&case.plugin, &pod, "eth0");
    gone.netns = "/run/netns/nowhere".to_owned();
    assert_refused(&case.plugin, &gone.add(&case.config("1.1.0")), 8, &["/run/netns/nowhere"]);
    gone.netns = "/etc/hostname".to_owned();
    assert_refused(&case.plugin, &gone.add(&case.config("1.1.0")), 8, &["/etc/hostname"]);
    gone.netns = "/proc/self/ns/net".to_owned();
    assert_refused("K6: its own namespace", &gone.add(&case.config("1.1.0")), 8, &["CNI_NETNS"]);
    assert_nothing_left("namespace gone", host, &before);
    if case.makes {
        // S25.
        pod.run(["ip", "link", "add", "eth0", "type", "veth", "peer", "name", "eth1"]);
        let occupied = pod.snapshot();
        assert_refused("name taken", &eth0.add(&case.config("1.1.0")), 4, &["eth0", "exists"]);
        assert_nothing_left("name taken", host, &before);
        assert_pod_unchanged("name taken", &pod, &occupied);
    }
}

fn g8_the_very_first_add_failing_takes_its_furniture_along(host: &Host, case: &Case) {
    case.world(host);
    let pod = host.pod("a");
    let inside = pod.snapshot();
    host.write("/var/lib/cni/x", "");
    host.run(["mkdir", "-p", "/var/lib/cni/networks"]);
    let eth0 = host.attachment(&case.plugin, &pod, "eth0");
    let before = host.snapshot();
    for (what, keys, code) in failures(case) {
        if what == "the gateway conflicts" {
            continue;
        }
        let what = format!("{}, nothing there yet: {what}", case.plugin);
        assert_refused(&what, &eth0.add(&with(&case.config("1.1.0"), &keys)), code, &[]);
        // host-local's directory stays: it is the network's memory.
        let own = |line: &&str| !line.contains("/var/lib/cni/networks/net");
        let changes = before.changes(&host.snapshot());
        let left: Vec<&str> = changes.lines().filter(own).collect();
        assert!(left.is_empty(), "{what}: the host is not as it was:\n{}", left.join("\n"));
        assert_pod_unchanged(&what, &pod, &inside);
    }
}

fn s32_gc_drops_what_is_not_valid_and_nothing_else(host: &Host, case: &Case) {
    let (a, _) = case.primed(host);
    let b = host.pod("b");
    let config = case.config("1.1.0");
    let other = with(&config, &json!({ "name": "other" }));
    let attach = |pod: &Pod, ifname: &str, place: usize, config: &Value| {
        let attachment = host.attachment(&case.plugin, pod, ifname);
        attachment.add(&with(config, &case.own(place))).success();
        attachment
    };
    let eth0 = attach(&a, "eth0", 0, &config);
    let _kept = case.makes.then(|| attach(&a, "eth1", 1, &config));
    let _b = attach(&b, "eth0", 2, &config);
    if case.makes {
        let ipam = json!({ "type": "host-local", "ranges": [[{ "subnet": "10.9.0.0/24" }]] });
        attach(&b, "eth9", 3, &with(&other, &case.beside("br9", &ipam)));
    }
    let full = host.snapshot();
    rig::gc(&eth0, &config, None).success();
    assert_nothing_left("S32: no list, nothing dropped", host, &full);
    let (ia, ib) = (a.container_id(), b.container_id());
    rig::gc(&eth0, &config, Some(&[(&ia, "eth0"), (&ia, "eth1"), (&ib, "eth0")])).success();
    assert_nothing_left("S32: all valid, nothing dropped", host, &full);

    rig::gc(&eth0, &config, Some(&[(&ia, "eth1")])).success();
    if case.makes {
        let files = |network: &str| reservations(host, network);
        assert_eq!(
            files("net"),
            vec![format!("{ia} eth1"); 2],
            "{}: what is valid keeps its two",
            case.plugin
        );
        assert_eq!(files("other"), [format!("{ib} eth9")], "{}: another network loses nothing", case.plugin);
        assert!(rig::links(&a).contains(&"eth1".to_owned()) && rig::links(&b).contains(&"eth9".to_owned()));
        if !case.is_inside_only() && case.plugin != "host-device" {
            assert_eq!((rig::links(&a), rig::links(&b)), (vec!["eth1".into()], vec!["eth9".into()]));
        }
        let expected = if matches!(case.plugin.as_str(), "bridge" | "ptp") { 2 } else { 0 };
        assert_eq!(marks(host, "weft_masquerade", "net"), expected);
        assert_eq!(marks(host, "weft_spoofing", "net"), if case.plugin == "bridge" { 2 } else { 0 });
    }
    rig::gc(&eth0, &config, Some(&[])).success();
    assert!(reservations(host, "net").is_empty(), "S32: empty means nothing is valid");
    assert_eq!((marks(host, "weft_masquerade", "net"), marks(host, "weft_spoofing", "net")), (0, 0));
}

/// `CONTAINER IFNAME` for each address file of a network, in order.
fn reservations(host: &Host, network: &str) -> Vec<String> {
    let script = format!(
        "cd /var/lib/cni/networks/{network} 2>/dev/null && for f in *[.:]*; do case $f in last*) ;; *) cat \"$f\"; echo;; esac; done; true"
    );
    let text = host.run(["sh", "-c", &script]);
    let mut owners: Vec<String> = text.split('\n').filter(|l| !l.is_empty()).map(str::to_owned).collect();
    // «ID CR LF IFNAME» is two lines for a shell.
    owners =
        owners.chunks(2).map(|pair| format!("{} {}", pair[0].trim_end(), pair[pair.len() - 1])).collect();
    owners.sort();
    owners
}

/// The entries of the packet filter's sets and maps that bear this network's name.
fn marks(host: &Host, table: &str, network: &str) -> usize {
    let listed = host.json(["nft", "-j", "list", "ruleset"]);
    let objects = listed["nftables"].as_array().into_iter().flatten();
    let own = objects.flat_map(|object| [&object["set"], &object["map"]]).filter(|set| set["table"] == table);
    own.map(|set| set["elem"].to_string().matches(&format!("/{network}/")).count()).sum()
}

fn s33_status_tells_what_an_add_would(host: &Host, case: &Case) {
    let (pod, _) = case.primed(host);
    let eth0 = host.attachment(&case.plugin, &pod, "eth0");
    let status = |config: &Value| eth0.call("STATUS", config.to_string());
    assert_eq!(status(&case.config("1.1.0")).success().stdout, "");
    assert_refused("K5", &status(&case.config("1.0.0")), 1, &["STATUS"]);
    if case.makes {
        let full = json!({ "type": "host-local", "subnet": "10.5.0.0/30", "rangeStart": "10.5.0.2", "rangeEnd": "10.5.0.2", "gateway": "10.5.0.1", "dataDir": "/var/lib/cni/small" });
        let config = with(&case.config("1.1.0"), &case.beside("br5", &full));
        status(&config).success();
        eth0.add(&config).success();
        assert_refused("S33", &status(&config), 50, &["10.5.0.2"]);
        eth0.del(&config).success();
        status(&config).success();
        let missing = with(&config, &json!({ "ipam": { "type": "nowhere" } }));
        assert_ne!(status(&missing).code, Some(0), "a plugin that is not there cannot serve");
    }
}

/// A node whose ports are nested has no switch, and its definitions need not say so.
#[test]
fn status_of_neutron_passes_where_there_is_no_switch_unless_one_is_named() {
    let host = testkit::host!();
    let pod = host.pod("a");
    host.install(&testkit::binary("weft-cni"), &["neutron"]);
    let eth0 = host.attachment("neutron", &pod, "eth0");
    let plain = json!({ "cniVersion": "1.1.0", "name": "net", "type": "neutron" });
    let status = |keys: &Value| eth0.call("STATUS", with(&plain, keys).to_string());
    assert_eq!(status(&json!({})).success().stdout, "");
    assert_refused("S33", &status(&json!({ "ovsdb": "/run/nowhere.sock" })), 11, &["/run/nowhere.sock"]);
}

fn s30_address_management_in_process_and_as_a_program_says_the_same(host: &Host, case: &Case) {
    let (pod, _) = case.primed(host);
    // The same bytes under another inode: a foreign program, as far as the caller can tell.
    host.run(["mkdir", "-p", "/run/cni/foreign"]);
    for name in ["host-local", "static"] {
        host.run(["cp", "-L", "/opt/cni/bin/weft-cni", &format!("/run/cni/foreign/{name}")]);
    }
    let fixed = json!({ "ipam": { "type": "static", "addresses": [{ "address": "10.1.0.77/24", "gateway": "10.1.0.1" }] } });
    let bad = json!({ "ipam": { "type": "host-local", "ranges": [[{ "subnet": "10.1.0.0/33" }]] } });
    let full = json!({ "ipam": { "type": "host-local", "subnet": "10.1.0.0/30", "rangeStart": "10.1.0.1", "rangeEnd": "10.1.0.1" } });
    for version in VERSIONS {
        for keys in [json!({}), fixed.clone(), bad.clone(), full.clone()] {
            let config = with(&case.config(version), &keys);
            let mut said = Vec::new();
            for path in ["/opt/cni/bin", "/run/cni/foreign:/opt/cni/bin"] {
                host.run(["rm", "-rf", "/var/lib/cni/networks/net"]);
                let mut eth0 = host.attachment(&case.plugin, &pod, "eth0");
                eth0.path = path.to_owned();
                let added = eth0.add(&config);
                eth0.del(&config);
                // Hardware addresses and the names of host ends are the kernel's choice, or made from it.
                said.push((added.code, without_addresses(&added.stdout)));
            }
            assert_eq!(said[0], said[1], "{} {version} {keys}", case.plugin);
        }
    }
}

/// A result without what differs from one link to the next.
fn without_addresses(text: &str) -> String {
    text.lines().filter(|line| !line.contains("\"mac\"")).collect::<Vec<_>>().join("\n")
}

fn s19_a_version_we_do_not_know_is_refused_and_changes_nothing(host: &Host, case: &Case) {
    let (pod, before) = case.primed(host);
    let eth0 = host.attachment(&case.plugin, &pod, "eth0");
    for version in ["9.9.9", "1.2.0", "0.5.0", "1.1", "x"] {
        for verb in ["ADD", "DEL", "CHECK", "GC", "STATUS"] {
            let finished = eth0.call(verb, case.config(version).to_string());
            assert_refused(verb, &finished, 1, &[version]);
        }
    }
    assert_nothing_left(&case.plugin, host, &before);
}

fn k1_k4_hostile_variables_and_documents_are_refused_and_change_nothing(host: &Host, case: &Case) {
    let (pod, _) = case.primed(host);
    host.run(["mkdir", "-p", "/run/cni"]);
    host.run(["mkfifo", "/run/cni/fifo"]);
    let before = host.snapshot();
    let config = case.config("1.1.0");
    let attempt = |change: &dyn Fn(&mut testkit::Attachment<'_>)| {
        let mut eth0 = host.attachment(&case.plugin, &pod, "eth0");
        change(&mut eth0);
        eth0
    };
    for id in ["../../etc/passwd", "a b", "a\nb", "-x", "a/b"] {
        let eth0 = attempt(&|eth0| eth0.container_id = id.to_owned());
        for finished in [eth0.add(&config), eth0.del(&config)] {
            assert_refused(id, &finished, 4, &["CNI_CONTAINERID"]);
        }
    }
    for ifname in ["..", "a/b", "a b", "sixteen-letters-", "a:b", "\u{a0}"] {
        let eth0 = attempt(&|eth0| eth0.ifname = ifname.to_owned());
        for finished in [eth0.add(&config), eth0.del(&config)] {
            assert_refused(ifname, &finished, 4, &["CNI_IFNAME"]);
        }
    }
    for netns in
        ["/run/cni/fifo", "/dev/null", "/dev/zero", "/run", "/proc/self/ns/mnt", "relative", "/run/netns/a/"]
    {
        let eth0 = attempt(&|eth0| eth0.netns = netns.to_owned());
        // That it is a namespace of another kind, only the kernel finds out.
        let code = if netns.ends_with("mnt") { 5 } else { 8 };
        assert_refused(netns, &eth0.add(&config), code, &[]);
        // Whatever stands there now, it is no namespace of a container: there is nothing to do inside.
        let removed = eth0.del(&config);
        assert!(removed.code == Some(0) || code == 5, "DEL with {netns}: {removed}");
    }
    let eth0 = attempt(&|_| {});
    let deep = format!("{{\"a\":{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let large = with(&config, &json!({ "padding": "x".repeat(2 << 20) })).to_string();
    let unnamed = with(&config, &json!({ "name": "../x" })).to_string();
    for (document, code) in
        [("", 6), ("null", 6), ("[]", 6), ("{", 6), (&deep, 6), (&large, 6), (&unnamed, 7)]
    {
        for verb in ["ADD", "DEL", "CHECK", "GC", "STATUS"] {
            let (given, message) = rig::refusal(&eth0.call(verb, document));
            assert!(given == code, "{verb}: {given} {message}");
            assert!(message.len() < 1000, "{verb}: a message for people: {} bytes", message.len());
        }
    }
    assert_nothing_left(&case.plugin, host, &before);
}

#[test]
fn the_table_has_the_features_it_needs() {
    testkit::require!(Feature::Root, Feature::Bridge, Feature::Veth);
    for plugin in ["bridge", "macvlan", "ptp", "loopback", "dummy", "host-device", "ipvlan", "tap", "vlan"] {
        assert_eq!(case(plugin).makes, case(plugin).config.get("ipam").is_some());
    }
}

#[test]
fn s33_status_says_no_where_every_add_must_fail() {
    let host = testkit::host!();
    rig::install(&host);
    let pod = host.pod("a");
    let status = |plugin: &str, keys: &Value| {
        let config = with(&json!({ "cniVersion": "1.1.0", "name": "net", "type": plugin }), keys);
        host.attachment(plugin, &pod, "eth0").call("STATUS", config.to_string())
    };
    for (plugin, keys, word) in [
        ("macvlan", json!({ "master": "nowhere" }), "nowhere"),
        ("macvlan", json!({}), "default route"),
        ("ipvlan", json!({ "master": "nowhere" }), "nowhere"),
        ("vlan", json!({ "master": "nowhere", "vlanId": 5 }), "nowhere"),
        ("bridge", json!({ "bridge": "lo" }), "not a bridge"),
    ] {
        assert_refused(&format!("{plugin} {keys}"), &status(plugin, &keys), 50, &[word]);
    }
    // What only an ADD knows, or makes.
    for (plugin, keys) in [
        ("macvlan", json!({ "master": "lo" })),
        ("macvlan", json!({ "master": "nowhere", "linkInContainer": true })),
        ("ipvlan", json!({})),
        ("bridge", json!({ "bridge": "not-yet" })),
    ] {
        status(plugin, &keys).success();
    }
}
