//! Tests that every interface plugin must pass: each body runs for each plugin in a table.
//!
//! ```text
//!   host ── br0, up0 ── outside          a, b: pods
//! ```
//!
//! Source: SPEC 1.1.0 §2 and §4 (S13, S16–S19, S25, S30–S33), K5, K6, G3, G8.

use rig::{VERSIONS, addresses, assert_nothing_left, assert_pod_unchanged, assert_refused, in_version, with};
use serde_json::{Value, json};
use testkit::{Feature, Host, Pod, Snapshot};

/// One plugin, with a configuration that uses most of it.
struct Case {
    plugin: String,
    config: Value,
    /// Whether the plugin creates an interface in the container.
    makes: bool,
}

/// VLAN of the first attachment; a VLAN id is unique per master.
const FIRST_VLAN: usize = 5;

/// Number of devices that a host has for containers.
const DEVICES: usize = 4;

/// Plugins whose link has no end on the host: it is deleted with the namespace.
const INSIDE_ONLY: [&str; 5] = ["dummy", "ipvlan", "macvlan", "tap", "vlan"];

/// Returns the kernel features that a plugin's links and neighbours need.
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

    /// Returns the options that must differ between concurrent attachments.
    fn own(&self, place: usize) -> Value {
        match self.plugin.as_str() {
            "vlan" => json!({ "vlanId": FIRST_VLAN + place }),
            "host-device" => json!({ "device": format!("dev{}", place % DEVICES) }),
            _ => json!({}),
        }
    }

    /// Returns options for other addresses, and a separate bridge for them.
    fn beside(&self, bridge: &str, ipam: &Value) -> Value {
        match self.plugin.as_str() {
            "bridge" => json!({ "ipam": ipam, "bridge": bridge }),
            _ => json!({ "ipam": ipam }),
        }
    }

    fn is_inside_only(&self) -> bool {
        INSIDE_ONLY.contains(&self.plugin.as_str())
    }

    /// Creates a host that already has the plugin's shared objects: bridge, tables, directories, sysctls.
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
        // The namespace of the outside is deleted while its end of the link is in use.
        std::mem::forget(rig::traffic::outside(host));
        self.create_bridge(host);
    }

    /// Creates the devices that do not exist, for example because the namespace was deleted.
    fn create_bridge(&self, host: &Host) {
        if self.plugin != "host-device" {
            return;
        }
        // The kernel resets the settings of an interface in each namespace: no link-local addresses anywhere.
        host.run(["sysctl", "-qw", "net.ipv6.conf.default.addr_gen_mode=1"]);
        for place in 0..DEVICES {
            if rig::link(host, &format!("dev{place}")).is_none() {
                // A device in a namespace that is being deleted exists for a moment longer.
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

/// Defines one test for each plugin from each body.
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
    cni_versions_add_check_del_leave_nothing,
    del_is_idempotent_and_works_with_missing_input,
    del_without_add_succeeds,
    del_keeps_an_interface_of_another_attachment,
    del_with_invalid_ipam_removes_the_interface,
    add_failure_leaves_nothing,
    add_failure_on_a_new_host_removes_shared_objects,
    gc_removes_invalid_attachments_only,
    status_reports_whether_an_add_can_succeed,
    ipam_in_process_and_as_program_have_equal_results,
    unknown_cni_version_is_refused_and_changes_nothing,
    hostile_input_is_refused_and_changes_nothing,
);

fn cni_versions_add_check_del_leave_nothing(host: &Host, case: &Case) {
    let (pod, before) = case.primed(host);
    let inside = pod.snapshot();
    let eth0 = host.attachment(&case.plugin, &pod, "eth0");
    for version in VERSIONS {
        let label = format!("{} {version}", case.plugin);
        let config = case.config(version);
        let result = eth0.add(&config).success().json();
        assert_eq!(result["cniVersion"], version, "{label}");
        // S7, S23, trap 5.
        let old = version < "0.3.0";
        assert_eq!(result.get("interfaces").is_some(), !old, "{label}: {result}");
        assert_eq!(result.get("dns").is_some(), version < "1.0.0", "{label}: {result}");
        for ip in result["ips"].as_array().into_iter().flatten() {
            assert_eq!(ip.get("version").is_some(), version < "1.0.0", "{label}: {ip}");
        }
        if case.makes {
            let mut returned = addresses(&result);
            let mut there = rig::addresses_on(&pod, "eth0");
            returned.sort();
            there.sort();
            assert_eq!(returned, there, "{label}: the result has the addresses of the interface");
            assert_eq!(returned.len(), 2, "{label}: {returned:?}");
            let shown = rig::link(&pod, "eth0").expect("eth0");
            assert!(rig::is_up(&shown), "{label}: {shown}");
            if !old {
                let list = result["interfaces"].as_array().expect("interfaces");
                let own = list.iter().find(|i| i["name"] == "eth0").expect("eth0 in the result");
                assert_eq!(own["mac"], shown["address"], "{label}");
                assert_eq!(own["sandbox"], pod.path().to_str().unwrap(), "{label}");
            }
        }
        let known = with(&config, &json!({ "prevResult": result }));
        let checked = eth0.check(&known);
        match version < "0.4.0" {
            true => assert_refused(&label, &checked, 1, &["CHECK"]),
            false => assert_eq!(checked.success().stdout, "", "{label}"),
        }
        let last = if version < "0.4.0" { &config } else { &known };
        assert_eq!(eth0.del(last).success().stdout, "", "{label}");
        assert_nothing_left(&label, host, &before);
        assert_pod_unchanged(&label, &pod, &inside);
    }
}

/// Removes something from an attachment before the DEL. Returns the pod if it still exists.
type Loss = fn(&Host, &mut testkit::Attachment<'_>, Pod, &mut Value) -> Option<Pod>;

/// Inputs and objects that a DEL may miss.
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
    ("with a deleted namespace", |_, _, pod, _| {
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
    ("with a deleted link", |_, _, pod, _| {
        if rig::link(&pod, "eth0").is_some() {
            pod.run(["ip", "link", "delete", "eth0"]);
        }
        Some(pod)
    }),
];

fn del_is_idempotent_and_works_with_missing_input(host: &Host, case: &Case) {
    let (pod, before) = case.primed(host);
    let mut pod = Some(pod);
    for (place, (label, lose)) in LOSSES.into_iter().enumerate() {
        // A namespace and its links are deleted with a delay.
        let config = with(&case.config("1.1.0"), &case.own(place));
        let label = format!("{}: DEL {label}", case.plugin);
        let own = pod.take().unwrap_or_else(|| host.pod("a"));
        let mut attachment = host.attachment(&case.plugin, &own, "eth0");
        let result = attachment.add(&config).success().json();
        let mut known = with(&config, &json!({ "prevResult": result }));
        pod = lose(host, &mut attachment, own, &mut known);
        assert_eq!(attachment.del(&known).success().stdout, "", "{label}");
        if attachment.netns.is_empty() {
            // A link without an end on the host is not found; it is deleted with its namespace.
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
            Some(own) => assert!(rig::links(own).is_empty(), "{label}: {:?}", rig::links(own)),
            None => {
                let _ = host.attempt(["rm", "-f", "/run/netns/a"]);
                let again = host.pod("a");
                pod = Some(again);
            }
        }
        case.create_bridge(host);
        assert_nothing_left(&label, host, &before);
    }
}

fn del_without_add_succeeds(host: &Host, case: &Case) {
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

fn del_keeps_an_interface_of_another_attachment(host: &Host, case: &Case) {
    let (pod, _) = case.primed(host);
    let others = json!({ "cniVersion": "1.1.0", "name": "others", "type": "bridge", "bridge": "br7" });
    host.attachment("bridge", &pod, "eth0").add(&others).success();
    // Waits until the kernel has assigned the addresses of the link.
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
    assert!(
        rig::link(&pod, "eth0").is_some(),
        "{}: the interface of the other attachment remains",
        case.plugin
    );
    if case.makes {
        assert_nothing_left(&case.plugin, host, &before);
        assert_pod_unchanged(&case.plugin, &pod, &inside);
    }
}

fn del_with_invalid_ipam_removes_the_interface(host: &Host, case: &Case) {
    case.world(host);
    let pod = host.pod("a");
    let config = case.config("1.1.0");
    let eth0 = host.attachment(&case.plugin, &pod, "eth0");
    for invalid in
        [json!("host-local"), json!([]), json!(7), json!({ "type": [] }), json!({ "type": "../x" })]
    {
        eth0.add(&config).success();
        let mut broken = config.clone();
        broken["ipam"] = invalid.clone();
        let deleted = eth0.del(&broken).success();
        if case.makes {
            assert!(deleted.stderr.contains("no address is released: ipam"), "{}: {deleted}", case.plugin);
        }
        assert!(rig::links(&pod).is_empty(), "{} {invalid}: {:?}", case.plugin, rig::links(&pod));
        eth0.del(&config).success();
    }
}

/// Returns options that make ADD fail at later and later steps.
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
            ("the mtu is larger than the master's", json!({ "mtu": 1501 }), 7),
        ]);
    }
    failures.extend(own_failures(&case.plugin));
    failures
}

/// Returns failures that only one plugin has.
fn own_failures(plugin: &str) -> Vec<(&'static str, Value, u64)> {
    let fixed = |addresses: Value| json!({ "ipam": { "type": "static", "addresses": addresses } });
    match plugin {
        "bridge" => vec![
            (
                "the gateway conflicts",
                fixed(json!([{ "address": "10.2.0.9/16", "gateway": "10.1.0.1" }])),
                999,
            ),
            ("not a bridge", json!({ "bridge": "up0" }), 7),
            ("hairpin and promiscuous", json!({ "hairpinMode": true, "promiscMode": true }), 7),
            ("no addresses wanted but given", json!({ "disableContainerInterface": true }), 7),
        ],
        "ipvlan" | "macvlan" => vec![("invalid mode", json!({ "mode": "bridged" }), 7)],
        "tap" => vec![
            ("the bridge is not there", json!({ "bridge": "nowhere" }), 7),
            ("not a bridge", json!({ "bridge": "lo" }), 7),
            ("invalid owner", json!({ "owner": 4_294_967_295_u64 }), 7),
        ],
        "vlan" => vec![("invalid id", json!({ "vlanId": 4095 }), 7)],
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

fn add_failure_leaves_nothing(host: &Host, case: &Case) {
    let (pod, before) = case.primed(host);
    let inside = pod.snapshot();
    let eth0 = host.attachment(&case.plugin, &pod, "eth0");
    for (label, keys, code) in failures(case) {
        let label = format!("{}: {label}", case.plugin);
        let config = with(&case.config("1.1.0"), &keys);
        assert_refused(&label, &eth0.add(&config), code, &[]);
        assert_nothing_left(&label, host, &before);
        assert_pod_unchanged(&label, &pod, &inside);
    }
    let mut gone = host.attachment(&case.plugin, &pod, "eth0");
    gone.netns = "/run/netns/nowhere".to_owned();
    assert_refused(&case.plugin, &gone.add(&case.config("1.1.0")), 8, &["/run/netns/nowhere"]);
    gone.netns = "/etc/hostname".to_owned();
    assert_refused(&case.plugin, &gone.add(&case.config("1.1.0")), 8, &["/etc/hostname"]);
    gone.netns = "/proc/self/ns/net".to_owned();
    assert_refused("K6: own namespace", &gone.add(&case.config("1.1.0")), 8, &["CNI_NETNS"]);
    assert_nothing_left("no namespace", host, &before);
    if case.makes {
        // S25.
        pod.run(["ip", "link", "add", "eth0", "type", "veth", "peer", "name", "eth1"]);
        let occupied = pod.snapshot();
        assert_refused("name in use", &eth0.add(&case.config("1.1.0")), 4, &["eth0", "exists"]);
        assert_nothing_left("name in use", host, &before);
        assert_pod_unchanged("name in use", &pod, &occupied);
    }
}

fn add_failure_on_a_new_host_removes_shared_objects(host: &Host, case: &Case) {
    case.world(host);
    let pod = host.pod("a");
    let inside = pod.snapshot();
    host.write("/var/lib/cni/x", "");
    host.run(["mkdir", "-p", "/var/lib/cni/networks"]);
    let eth0 = host.attachment(&case.plugin, &pod, "eth0");
    let before = host.snapshot();
    for (label, keys, code) in failures(case) {
        if label == "the gateway conflicts" {
            continue;
        }
        let label = format!("{}, no shared objects yet: {label}", case.plugin);
        assert_refused(&label, &eth0.add(&with(&case.config("1.1.0"), &keys)), code, &[]);
        // host-local's directory remains: it is the state of the network.
        let own = |line: &&str| !line.contains("/var/lib/cni/networks/net");
        let changes = before.changes(&host.snapshot());
        let left: Vec<&str> = changes.lines().filter(own).collect();
        assert!(left.is_empty(), "{label}: the host has changed:\n{}", left.join("\n"));
        assert_pod_unchanged(&label, &pod, &inside);
    }
}

fn gc_removes_invalid_attachments_only(host: &Host, case: &Case) {
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
    assert_nothing_left("S32: without a list, nothing is removed", host, &full);
    let (ia, ib) = (a.container_id(), b.container_id());
    rig::gc(&eth0, &config, Some(&[(&ia, "eth0"), (&ia, "eth1"), (&ib, "eth0")])).success();
    assert_nothing_left("S32: all valid, nothing is removed", host, &full);

    rig::gc(&eth0, &config, Some(&[(&ia, "eth1")])).success();
    if case.makes {
        let files = |network: &str| reservations(host, network);
        assert_eq!(
            files("net"),
            vec![format!("{ia} eth1"); 2],
            "{}: the valid attachment keeps its two addresses",
            case.plugin
        );
        assert_eq!(
            files("other"),
            [format!("{ib} eth9")],
            "{}: another network keeps its addresses",
            case.plugin
        );
        assert!(rig::links(&a).contains(&"eth1".to_owned()) && rig::links(&b).contains(&"eth9".to_owned()));
        if !case.is_inside_only() && case.plugin != "host-device" {
            assert_eq!((rig::links(&a), rig::links(&b)), (vec!["eth1".into()], vec!["eth9".into()]));
        }
        let expected = if matches!(case.plugin.as_str(), "bridge" | "ptp") { 2 } else { 0 };
        assert_eq!(tagged_entries(host, "weft_masquerade", "net"), expected);
        assert_eq!(tagged_entries(host, "weft_spoofing", "net"), if case.plugin == "bridge" { 2 } else { 0 });
    }
    rig::gc(&eth0, &config, Some(&[])).success();
    assert!(reservations(host, "net").is_empty(), "S32: an empty list means that no attachment is valid");
    assert_eq!(
        (tagged_entries(host, "weft_masquerade", "net"), tagged_entries(host, "weft_spoofing", "net")),
        (0, 0)
    );
}

/// Returns `CONTAINER IFNAME` for each address file of a network, in order.
fn reservations(host: &Host, network: &str) -> Vec<String> {
    let script = format!(
        "cd /var/lib/cni/networks/{network} 2>/dev/null && for f in *[.:]*; do case $f in last*) ;; *) cat \"$f\"; echo;; esac; done; true"
    );
    let text = host.run(["sh", "-c", &script]);
    let mut owners: Vec<String> = text.split('\n').filter(|l| !l.is_empty()).map(str::to_owned).collect();
    // The content "ID CR LF IFNAME" is two lines for a shell.
    owners =
        owners.chunks(2).map(|pair| format!("{} {}", pair[0].trim_end(), pair[pair.len() - 1])).collect();
    owners.sort();
    owners
}

/// Returns the number of entries in sets and maps of the packet filter that have this network's name.
fn tagged_entries(host: &Host, table: &str, network: &str) -> usize {
    let listed = host.json(["nft", "-j", "list", "ruleset"]);
    let objects = listed["nftables"].as_array().into_iter().flatten();
    let own = objects.flat_map(|object| [&object["set"], &object["map"]]).filter(|set| set["table"] == table);
    own.map(|set| set["elem"].to_string().matches(&format!("/{network}/")).count()).sum()
}

fn status_reports_whether_an_add_can_succeed(host: &Host, case: &Case) {
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
        assert_ne!(status(&missing).code, Some(0), "STATUS fails for a missing plugin");
    }
}

/// A pod may set the alias of each interface that it has, and a device of the host returns with it.
#[test]
fn gc_leaves_devices_with_a_foreign_owner_tag_alone() {
    let host = testkit::host!(Feature::Bridge);
    rig::install(&host);
    let pod = host.pod("a");
    let kinds = [("dummy", "d0"), ("bridge", "b0"), ("bond", "o0")];
    let kinds: Vec<_> = kinds
        .into_iter()
        .filter(|(kind, name)| host.attempt(["ip", "link", "add", name, "type", kind]).code == Some(0))
        .collect();
    for plugin in ["bridge", "ptp", "bandwidth"] {
        let tag = format!("weft/{plugin}/net/x/eth0");
        // A device without a kind, which the kernel does not remove.
        host.run(["ip", "link", "set", "lo", "alias", &tag]);
        for (kind, name) in kinds.iter().filter(|(kind, _)| *kind != "bridge") {
            host.run(["ip", "link", "set", name, "alias", &tag]);
            assert!(rig::link(&host, name).is_some(), "{kind}");
        }
        let _ = host.attempt(["ip", "link", "del", "stale"]);
        host.run(["ip", "link", "add", "stale", "type", "veth", "peer", "name", "stalepeer"]);
        host.run(["ip", "link", "set", "stale", "alias", &tag]);
        let config = json!({ "cniVersion": "1.1.0", "name": "net", "type": plugin });
        let swept = rig::gc(&host.attachment(plugin, &pod, "eth0"), &config, Some(&[])).success();
        assert!(swept.stderr.contains("lo: left alone"), "{plugin}: {swept}");
        let is_own = plugin != "bandwidth";
        assert_eq!(rig::link(&host, "stale").is_none(), is_own, "{plugin}: only a stale link is removed");
        for (kind, name) in &kinds {
            assert!(rig::link(&host, name).is_some(), "{plugin} {kind}");
        }
    }
}

/// A node with nested ports has no Open vSwitch, and definitions need not say so.
#[test]
fn neutron_status_needs_a_switch_only_if_one_is_named() {
    let host = testkit::host!();
    let pod = host.pod("a");
    host.install(&testkit::binary("weft-cni"), &["neutron"]);
    let eth0 = host.attachment("neutron", &pod, "eth0");
    let plain = json!({ "cniVersion": "1.1.0", "name": "net", "type": "neutron" });
    let status = |keys: &Value| eth0.call("STATUS", with(&plain, keys).to_string());
    assert_eq!(status(&json!({})).success().stdout, "");
    assert_refused("S33", &status(&json!({ "ovsdb": "/run/nowhere.sock" })), 11, &["/run/nowhere.sock"]);
}

fn ipam_in_process_and_as_program_have_equal_results(host: &Host, case: &Case) {
    let (pod, _) = case.primed(host);
    // A copy of the program, which the caller cannot recognise as built in.
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
            let mut outputs = Vec::new();
            for path in ["/opt/cni/bin", "/run/cni/foreign:/opt/cni/bin"] {
                host.run(["rm", "-rf", "/var/lib/cni/networks/net"]);
                let mut eth0 = host.attachment(&case.plugin, &pod, "eth0");
                eth0.path = path.to_owned();
                let added = eth0.add(&config);
                eth0.del(&config);
                // The kernel chooses hardware addresses and, from them, names of host ends.
                outputs.push((added.code, without_addresses(&added.stdout)));
            }
            assert_eq!(outputs[0], outputs[1], "{} {version} {keys}", case.plugin);
        }
    }
}

/// Returns a result without the lines that differ between links.
fn without_addresses(text: &str) -> String {
    text.lines().filter(|line| !line.contains("\"mac\"")).collect::<Vec<_>>().join("\n")
}

fn unknown_cni_version_is_refused_and_changes_nothing(host: &Host, case: &Case) {
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

fn hostile_input_is_refused_and_changes_nothing(host: &Host, case: &Case) {
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
        // Only the kernel detects a namespace of another kind.
        let code = if netns.ends_with("mnt") { 5 } else { 8 };
        assert_refused(netns, &eth0.add(&config), code, &[]);
        // There is no namespace of a container, so there is nothing to remove inside.
        let removed = eth0.del(&config);
        assert!(removed.code == Some(0) || code == 5, "DEL with {netns}: {removed}");
    }
    let eth0 = attempt(&|_| {});
    let deep = format!("{{\"a\":{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let padded =
        |megabytes: usize| with(&config, &json!({ "padding": "x".repeat(megabytes << 20) })).to_string();
    let (large, huge) = (padded(2), padded(5));
    let unnamed = with(&config, &json!({ "name": "../x" })).to_string();
    for (document, code) in
        [("", 6), ("null", 6), ("[]", 6), ("{", 6), (&deep, 6), (&large, 6), (&huge, 6), (&unnamed, 7)]
    {
        for verb in ["ADD", "DEL", "CHECK", "GC", "STATUS"] {
            let called = eth0.call(verb, document);
            if document.len() == large.len() && ["DEL", "GC"].contains(&verb) {
                // A removal ignores what the plugin does not read.
                called.success();
                continue;
            }
            let (returned, message) = rig::refusal(&called);
            assert!(returned == code, "{verb}: {returned} {message}");
            assert!(message.len() < 1000, "{verb}: a short message: {} bytes", message.len());
        }
    }
    assert_nothing_left(&case.plugin, host, &before);
}

#[test]
fn interface_plugins_table_matches_ipam_use() {
    testkit::require!(Feature::Root, Feature::Bridge, Feature::Veth);
    for plugin in ["bridge", "macvlan", "ptp", "loopback", "dummy", "host-device", "ipvlan", "tap", "vlan"] {
        assert_eq!(case(plugin).makes, case(plugin).config.get("ipam").is_some());
    }
}

// Requirements: S33
#[test]
fn status_fails_where_every_add_must_fail() {
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
    // Faults that only an ADD detects, and objects that an ADD creates.
    for (plugin, keys) in [
        ("macvlan", json!({ "master": "lo" })),
        ("macvlan", json!({ "master": "nowhere", "linkInContainer": true })),
        ("ipvlan", json!({})),
        ("bridge", json!({ "bridge": "not-yet" })),
    ] {
        status(plugin, &keys).success();
    }
}
