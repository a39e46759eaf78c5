//! Tests that every chained plugin must pass: each body runs for each plugin in a table.
//!
//! ```text
//!   host ── br0 ── veth ── eth0 pod        bridge, then the plugin; DEL in reverse order
//! ```
//!
//! Source: SPEC 1.1.0 §2 and §3 (S13, S16–S19, S31–S33), K4, K5, K6, V17.

use rig::{VERSIONS, assert_nothing_left, assert_pod_unchanged, assert_refused, in_version, with};
use serde_json::{Value, json};
use testkit::{Attachment, Feature, Finished, Host, Pod, Snapshot};

/// One plugin, with a configuration that uses most of it.
struct Case {
    plugin: &'static str,
    config: Value,
    /// Number of interfaces that it adds to the result.
    adds: usize,
    /// Options that make ADD fail, and the error code.
    failures: Vec<(Value, u64)>,
}

/// Returns the kernel features that a plugin and the bridge before it need.
fn features(plugin: &str) -> &'static [Feature] {
    match plugin {
        "vrf" => &[Feature::Root, Feature::Bridge, Feature::Vrf],
        _ => &[
            Feature::Root,
            Feature::Bridge,
            Feature::Ifb,
            Feature::Tbf,
            Feature::Mirred,
            Feature::NftFib,
            Feature::NftMasquerade,
        ],
    }
}

fn case(plugin: &'static str) -> Case {
    let (own, adds, failures) = match plugin {
        "bandwidth" => (
            json!({ "ingressRate": 8_000_000, "ingressBurst": 800_000, "egressRate": 8_000_000, "egressBurst": 800_000 }),
            1,
            vec![
                (json!({ "egressBurst": 0 }), 7),
                (json!({ "ingressRate": "fast" }), 7),
                (json!({ "shapedSubnets": ["x"] }), 7),
            ],
        ),
        "firewall" => (
            json!({ "backend": "nftables", "ingressPolicy": "isolated" }),
            0,
            vec![(json!({ "backend": "pf" }), 7), (json!({ "ingressPolicy": "closed" }), 7)],
        ),
        "portmap" => (
            json!({ "runtimeConfig": { "portMappings": [
                { "hostPort": 8000, "containerPort": 80, "protocol": "tcp" },
                { "hostPort": 8000, "containerPort": 53, "protocol": "udp", "hostIP": "10.1.0.1" },
            ] } }),
            0,
            vec![
                (json!({ "backend": "pf" }), 7),
                (json!({ "markMasqBit": 32 }), 7),
                (json!({ "conditionsV4": ["tcp dport 80"] }), 7),
            ],
        ),
        "sbr" => (
            json!({ "gateways": ["10.1.0.1", "fd01::1"] }),
            0,
            vec![
                (json!({ "table": 0 }), 7),
                (json!({ "gateways": ["x"] }), 7),
                // The kernel refuses it, after other routes were added.
                (json!({ "gateways": ["10.1.0.1", "fd09::1"] }), 5),
            ],
        ),
        "vrf" => (
            json!({ "vrfname": "red", "table": 42 }),
            0,
            vec![
                (json!({ "vrfname": "" }), 7),
                (json!({ "vrfname": "../red" }), 7),
                (json!({ "table": -1 }), 7),
            ],
        ),
        _ => panic!("no row for {plugin}"),
    };
    Case { plugin, config: with(&json!({ "name": "net", "type": plugin }), &own), adds, failures }
}

/// Returns the configuration of the bridge, which is the first plugin.
fn bridge(version: &str) -> Value {
    json!({
        "cniVersion": version, "name": "net", "type": "bridge", "bridge": "br0", "isGateway": true,
        "ipam": { "type": "host-local", "ranges": [[{ "subnet": "10.1.0.0/24" }], [{ "subnet": "fd01::/64" }]] },
    })
}

/// A list of two plugins, called as a runtime calls it.
struct Chain<'a> {
    first: Attachment<'a>,
    second: Attachment<'a>,
    config: Value,
    version: String,
}

impl<'a> Chain<'a> {
    fn new(host: &'a Host, case: &Case, pod: &Pod, ifname: &str, version: &str) -> Chain<'a> {
        let mut config = in_version(&case.config, version);
        // A host port belongs to one attachment.
        let mappings = config.pointer_mut("/runtimeConfig/portMappings").and_then(Value::as_array_mut);
        for mapping in mappings.into_iter().flatten() {
            let name = format!("{}{ifname}", pod.name());
            let own = name.bytes().fold(0_u64, |sum, byte| (sum * 31 + u64::from(byte)) % 10_000);
            mapping["hostPort"] = (8000 + own).into();
        }
        Chain {
            first: host.attachment("bridge", pod, ifname),
            second: host.attachment(case.plugin, pod, ifname),
            config,
            version: version.to_owned(),
        }
    }

    /// Calls ADD of the bridge. Returns the configuration of the second plugin with the result.
    #[track_caller]
    fn begin(&self) -> Value {
        let result = self.first.add(&bridge(&self.version)).success().json();
        with(&self.config, &json!({ "prevResult": result }))
    }

    /// Calls ADD of both. Returns the second plugin's configuration for the calls that follow.
    #[track_caller]
    fn add(&self) -> Value {
        let config = self.begin();
        let result = self.second.add(&config).success().json();
        with(&config, &json!({ "prevResult": result }))
    }

    #[track_caller]
    fn del(&self, config: &Value) {
        assert_eq!(self.second.del(config).success().stdout, "");
        self.end(config);
    }

    #[track_caller]
    fn end(&self, config: &Value) {
        let mut last = bridge(&self.version);
        if let Some(result) = config.get("prevResult") {
            last["prevResult"] = result.clone();
        }
        self.first.del(&last).success();
    }
}

/// Attaches and detaches once, so that the objects that containers share exist. Returns the pod and a snapshot after it.
fn primed(host: &Host, case: &Case) -> (Pod, Snapshot) {
    rig::install(host);
    let pod = host.pod("a");
    let chain = Chain::new(host, case, &pod, "eth0", "1.1.0");
    let config = chain.add();
    chain.del(&config);
    let before = host.snapshot();
    (pod, before)
}

/// Defines one test for each plugin from each body.
macro_rules! for_every_plugin {
    ($($body:ident),* $(,)?) => {
        for_every_plugin!(@ bandwidth $($body)*);
        for_every_plugin!(@ firewall $($body)*);
        for_every_plugin!(@ portmap $($body)*);
        for_every_plugin!(@ sbr $($body)*);
        for_every_plugin!(@ vrf $($body)*);
    };
    (@ $plugin:ident $($body:ident)*) => {
        mod $plugin {
            $(
                #[test]
                fn $body() {
                    let plugin = stringify!($plugin);
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
    add_failure_leaves_nothing,
    gc_removes_invalid_attachments_only,
    status_reports_whether_an_add_can_succeed,
    hostile_input_is_refused_and_changes_nothing,
);

fn cni_versions_add_check_del_leave_nothing(host: &Host, case: &Case) {
    let (pod, before) = primed(host, case);
    let inside = pod.snapshot();
    for version in VERSIONS.into_iter().filter(|version| *version >= "0.3.0") {
        let label = format!("{} {version}", case.plugin);
        let chain = Chain::new(host, case, &pod, "eth0", version);
        let input = chain.begin();
        let result = chain.second.add(&input).success().json();
        assert_eq!(result["cniVersion"], version, "{label}");
        let list = |result: &Value| result["interfaces"].as_array().cloned().unwrap_or_default();
        let (earlier, later) = (list(&input["prevResult"]), list(&result));
        assert_eq!(later[..earlier.len()], earlier[..], "{label}: the previous interfaces are passed on");
        assert_eq!(later.len(), earlier.len() + case.adds, "{label}: {result}");
        for key in ["ips", "routes", "dns"] {
            assert_eq!(result[key], input["prevResult"][key], "{label}: {key}");
        }
        let known = with(&input, &json!({ "prevResult": result }));
        let checked = chain.second.check(&known);
        match version < "0.4.0" {
            true => assert_refused(&label, &checked, 1, &["CHECK"]),
            false => assert_eq!(checked.success().stdout, "", "{label}"),
        }
        chain.del(&known);
        assert_nothing_left(&label, host, &before);
        assert_pod_unchanged(&label, &pod, &inside);
    }
}

/// Removes something from an attachment before the DEL. Returns the pod if it still exists.
type Loss = fn(&mut Chain<'_>, Pod, &mut Value) -> Option<Pod>;

/// Inputs and objects that a DEL may miss.
const LOSSES: [(&str, Loss); 6] = [
    ("twice", |chain, pod, config| {
        chain.second.del(config).success();
        Some(pod)
    }),
    ("without prevResult", |_, pod, config| {
        config.as_object_mut().unwrap().remove("prevResult");
        Some(pod)
    }),
    ("without CNI_NETNS and prevResult", |chain, pod, config| {
        config.as_object_mut().unwrap().remove("prevResult");
        chain.second.netns.clear();
        Some(pod)
    }),
    ("with a deleted namespace", |_, pod, _| {
        pod.remove();
        None
    }),
    ("with a plain file where the namespace was", |chain, pod, _| {
        let path = pod.path().to_owned();
        pod.remove();
        chain.second.netns = "/etc/hostname".to_owned();
        assert!(!path.starts_with("/etc"));
        None
    }),
    ("with a deleted link", |_, pod, _| {
        pod.run(["ip", "link", "delete", "eth0"]);
        Some(pod)
    }),
];

fn del_is_idempotent_and_works_with_missing_input(host: &Host, case: &Case) {
    let (pod, before) = primed(host, case);
    let mut pod = Some(pod);
    for (label, lose) in LOSSES {
        let label = format!("{}: DEL {label}", case.plugin);
        let own = pod.take().unwrap_or_else(|| host.pod("a"));
        let mut chain = Chain::new(host, case, &own, "eth0", "1.1.0");
        let mut config = chain.add();
        pod = lose(&mut chain, own, &mut config);
        chain.del(&config);
        if pod.is_none() {
            pod = Some(host.pod("a"));
        }
        assert_nothing_left(&label, host, &before);
    }
}

fn del_without_add_succeeds(host: &Host, case: &Case) {
    rig::install(host);
    let pod = host.pod("a");
    let before = host.snapshot();
    let mut eth0 = host.attachment(case.plugin, &pod, "eth0");
    for version in VERSIONS.into_iter().filter(|version| *version >= "0.3.0") {
        assert_eq!(eth0.del(&in_version(&case.config, version)).success().stdout, "");
    }
    eth0.netns.clear();
    eth0.del(&in_version(&case.config, "1.1.0")).success();
    assert_nothing_left(case.plugin, host, &before);
}

fn add_failure_leaves_nothing(host: &Host, case: &Case) {
    let (pod, _) = primed(host, case);
    let mut chain = Chain::new(host, case, &pod, "eth0", "1.1.0");
    let input = chain.begin();
    let (before, inside) = (host.snapshot(), pod.snapshot());
    let refuse = |label: &str, finished: &Finished, code: u64, words: &[&str]| {
        assert_refused(label, finished, code, words);
        assert_nothing_left(label, host, &before);
        assert_pod_unchanged(label, &pod, &inside);
    };
    for (keys, code) in &case.failures {
        refuse(&format!("{}: {keys}", case.plugin), &chain.second.add(&with(&input, keys)), *code, &[]);
    }
    let alone = with(&input, &json!({ "prevResult": null }));
    refuse("no previous plugin", &chain.second.add(&alone), 7, &["prevResult"]);
    chain.second.netns = "/run/netns/nowhere".to_owned();
    refuse("no such namespace", &chain.second.add(&input), 8, &["/run/netns/nowhere"]);
    chain.second.netns = "/etc/hostname".to_owned();
    refuse("not a namespace", &chain.second.add(&input), 8, &["/etc/hostname"]);
    chain.second.netns = "/proc/self/ns/net".to_owned();
    refuse("K6: own namespace", &chain.second.add(&input), 8, &["CNI_NETNS"]);
}

fn gc_removes_invalid_attachments_only(host: &Host, case: &Case) {
    let (a, before) = primed(host, case);
    let (b, c) = (host.pod("b"), host.pod("c"));
    let with_pods = host.snapshot();
    let [first, second, other] = [(&a, "eth0"), (&a, "eth1"), (&b, "eth0")]
        .map(|(pod, ifname)| Chain::new(host, case, pod, ifname, "1.1.0"));
    let configs = [first.add(), second.add(), other.add()];
    // An attachment of another network.
    let mut foreign = Chain::new(host, case, &c, "eth0", "1.1.0");
    foreign.config["name"] = json!("other");
    let kept = foreign.add();
    let full = host.snapshot();
    let (ia, ib) = (a.container_id(), b.container_id());
    rig::gc(&first.second, &first.config, None).success();
    assert_nothing_left("S32: without a list, nothing is removed", host, &full);
    let all = [(ia.as_str(), "eth0"), (ia.as_str(), "eth1"), (ib.as_str(), "eth0")];
    rig::gc(&first.second, &first.config, Some(&all)).success();
    assert_nothing_left("S32: all valid, nothing is removed", host, &full);
    rig::gc(&first.second, &first.config, Some(&[(&ia, "eth1")])).success();
    second.second.check(&configs[1]).success();
    foreign.second.check(&kept).success();
    rig::gc(&first.second, &first.config, Some(&[])).success();
    foreign.second.check(&kept).success();
    foreign.del(&kept);
    // GC of the bridge.
    rig::gc(&first.first, &bridge("1.1.0"), Some(&[])).success();
    assert_nothing_left("S32: no attachment is valid", host, &with_pods);
    b.remove();
    c.remove();
    assert_nothing_left("S32: no attachment is valid", host, &before);
}

fn status_reports_whether_an_add_can_succeed(host: &Host, case: &Case) {
    let (pod, before) = primed(host, case);
    let eth0 = host.attachment(case.plugin, &pod, "eth0");
    let status = |config: &Value| eth0.call("STATUS", config.to_string());
    let config = in_version(&case.config, "1.1.0");
    assert_eq!(status(&config).success().stdout, "");
    assert_refused("K5", &status(&in_version(&case.config, "1.0.0")), 1, &["STATUS"]);
    for (keys, _) in case.failures.iter().filter(|(_, code)| *code == 7) {
        assert_refused(&keys.to_string(), &status(&with(&config, keys)), 7, &[]);
    }
    assert_nothing_left(case.plugin, host, &before);
}

fn hostile_input_is_refused_and_changes_nothing(host: &Host, case: &Case) {
    let (pod, _) = primed(host, case);
    let mut chain = Chain::new(host, case, &pod, "eth0", "1.1.0");
    let input = chain.begin();
    let before = host.snapshot();
    for ifname in ["..", "a/b", "sixteen-letters-"] {
        ifname.clone_into(&mut chain.second.ifname);
        assert_refused(ifname, &chain.second.add(&input), 4, &["CNI_IFNAME"]);
    }
    "eth9".clone_into(&mut chain.second.ifname);
    // A plugin that reads the result first finds no address of the interface.
    let (code, message) = rig::refusal(&chain.second.add(&input));
    assert!(matches!(code, 5 | 7) && message.contains("eth9"), "no such interface: {code} {message}");
    "eth0".clone_into(&mut chain.second.ifname);
    for netns in ["/dev/zero", "/run", "relative"] {
        netns.clone_into(&mut chain.second.netns);
        assert_refused(netns, &chain.second.add(&input), 8, &[]);
        chain.second.del(&input).success();
    }
    pod.path().to_str().unwrap().clone_into(&mut chain.second.netns);
    for (previous, code) in [
        (json!({ "interfaces": "many" }), 7),
        (json!({ "cniVersion": "1.1.0", "ips": [{ "address": "10.0.0.300/24" }] }), 7),
        (json!([]), 7),
        (json!({ "cniVersion": "7.0.0" }), 1),
    ] {
        let label = previous.to_string();
        assert_refused(
            &label,
            &chain.second.add(&with(&input, &json!({ "prevResult": previous }))),
            code,
            &[],
        );
    }
    for (document, code) in [("", 6), ("[]", 6), ("{", 6), ("{\"name\":\"../x\"}", 7)] {
        for verb in ["ADD", "DEL", "CHECK", "GC", "STATUS"] {
            assert_refused(verb, &chain.second.call(verb, document), code, &[]);
        }
    }
    assert_nothing_left(case.plugin, host, &before);
}

/// Some plugins, such as that of Alibaba Terway, never set a sandbox.
#[test]
fn prev_result_without_a_sandbox_has_the_containers_interface() {
    let host = testkit::host!(Feature::Bridge, Feature::NftFib, Feature::NftMasquerade);
    rig::install(&host);
    let pod = host.pod("a");
    let result = host.attachment("bridge", &pod, "eth0").add(&bridge("1.1.0")).success().json();
    let mut ips = result["ips"].clone();
    ips.as_array_mut().expect("addresses").iter_mut().for_each(|ip| ip["interface"] = 0.into());
    let previous = json!({ "cniVersion": "1.1.0", "interfaces": [{ "name": "eth0" }], "ips": ips });
    let mapping = json!([{ "hostPort": 8000, "containerPort": 80, "protocol": "tcp" }]);
    let cases = [
        ("firewall", json!({ "backend": "nftables" }), "nft list table inet weft_firewall"),
        (
            "portmap",
            json!({ "runtimeConfig": { "portMappings": mapping } }),
            "nft list table inet weft_portmap",
        ),
        ("sbr", json!({}), "ip netns exec a ip rule"),
    ];
    for (plugin, keys, shown) in cases {
        let base = json!({ "cniVersion": "1.1.0", "name": "net", "type": plugin, "prevResult": previous });
        let config = with(&base, &keys);
        let eth0 = host.attachment(plugin, &pod, "eth0");
        let shows = || host.run(["sh", "-c", shown]).contains("10.1.0.2");
        eth0.add(&config).success();
        assert!(shows(), "{plugin}: the address of the container");
        eth0.check(&config).success();
        eth0.del(&config).success();
        assert!(!shows(), "{plugin}: after DEL");
    }
    // Without an address there is nothing to accept, and the plugin says so.
    let config = json!({
        "cniVersion": "1.1.0", "name": "net", "type": "firewall", "backend": "nftables",
        "prevResult": { "cniVersion": "1.1.0", "interfaces": [{ "name": "eth0" }] },
    });
    let added = host.attachment("firewall", &pod, "eth0").add(&config).success();
    assert!(added.stderr.contains("prevResult has no address of eth0"), "{}", added.stderr);
}

/// Installs wrappers of the iptables programs that record each execution. Returns the words that run a plugin
/// with them.
fn counted_iptables(host: &Host) -> Vec<String> {
    let wrapper = "for what in iptables iptables-save iptables-restore ip6tables ip6tables-save ip6tables-restore; do\n\
                   printf '#!/bin/sh\\necho %s >>/run/executed\\nexec %s \"$@\"\\n' $what $(command -v $what) >/run/counted/$what\n\
                   chmod 755 /run/counted/$what\ndone";
    host.run(["sh", "-ec", &format!("mkdir -p /run/counted; {wrapper}")]);
    ["env", "PATH=/run/counted:/usr/sbin:/usr/bin:/sbin:/bin"].map(str::to_owned).to_vec()
}

#[test]
fn iptables_is_read_and_changed_once_per_family() {
    let host = testkit::host!(Feature::Bridge, Feature::IptablesNft);
    rig::install(&host);
    let pod = host.pod("a");
    let through = counted_iptables(&host);
    let result = host.attachment("bridge", &pod, "eth0").add(&bridge("1.1.0")).success().json();
    let programs_run = || {
        let programs_run = host.read("/run/executed").unwrap_or_default();
        host.run(["rm", "-f", "/run/executed"]);
        programs_run.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let once = ["iptables-save", "iptables-restore", "ip6tables-save", "ip6tables-restore"];
    let many: Value = (0..50)
        .flat_map(|at| {
            ["tcp", "udp"]
                .map(|protocol| json!({ "hostPort": 9000 + at, "containerPort": 80, "protocol": protocol }))
        })
        .collect();
    for (plugin, keys) in [
        ("portmap", json!({ "backend": "iptables", "runtimeConfig": { "portMappings": many } })),
        ("firewall", json!({ "backend": "iptables", "ingressPolicy": "isolated" })),
    ] {
        let mut attachment = host.attachment(plugin, &pod, "eth0");
        attachment.through.clone_from(&through);
        let base = json!({ "cniVersion": "1.1.0", "name": "net", "type": plugin, "prevResult": result });
        let config = with(&base, &keys);
        attachment.add(&config).success();
        assert_eq!(programs_run(), once, "{plugin}: ADD");
        attachment.check(&config).success();
        assert_eq!(programs_run(), ["iptables-save", "ip6tables-save"], "{plugin}: CHECK");
        attachment.del(&config).success();
        assert_eq!(programs_run(), once, "{plugin}: DEL");
    }
    let other = host.pod("b");
    let mut masquerade = host.attachment("bridge", &other, "eth0");
    masquerade.through = through;
    let config = with(&bridge("1.1.0"), &json!({ "ipMasq": true, "ipMasqBackend": "iptables" }));
    let result = masquerade.add(&config).success().json();
    assert_eq!(programs_run(), once, "ipMasq: ADD");
    masquerade.del(&with(&config, &json!({ "prevResult": result }))).success();
    assert_eq!(programs_run(), once, "ipMasq: DEL");
}

/// Returns the words that run a plugin with an `iptables-save` whose output `print` filters.
fn filtered_iptables_save(host: &Host, print: &str) -> Vec<String> {
    let wrapper = "for what in iptables-save ip6tables-save; do\n\
                   printf '#!/bin/sh\\nreal() { %s \"$@\"; }\\n. /run/filtered/print\\n' $(command -v $what) >/run/filtered/$what\n\
                   chmod 755 /run/filtered/$what\ndone";
    host.run([
        "sh",
        "-ec",
        &format!("mkdir -p /run/filtered; rm -f /run/filtered/iptables-save /run/filtered/ip6tables-save; {wrapper}"),
    ]);
    host.write("/run/filtered/print", print);
    ["env", "PATH=/run/filtered:/usr/sbin:/usr/bin:/sbin:/bin"].map(str::to_owned).to_vec()
}

#[test]
fn iptables_chains_missing_in_iptables_save_are_not_flushed() {
    let host = testkit::host!(Feature::Bridge, Feature::IptablesNft);
    rig::install(&host);
    let mapping = json!([{ "hostPort": 9000, "containerPort": 80, "protocol": "tcp" }]);
    for (plugin, keys) in [
        ("portmap", json!({ "backend": "iptables", "runtimeConfig": { "portMappings": mapping } })),
        ("firewall", json!({ "backend": "iptables", "ingressPolicy": "isolated" })),
    ] {
        let [a, b] = ["a", "b"].map(|name| {
            let pod = host.pod(&format!("{plugin}-{name}"));
            let result = host.attachment("bridge", &pod, "eth0").add(&bridge("1.1.0")).success().json();
            let base = json!({ "cniVersion": "1.1.0", "name": "net", "type": plugin, "prevResult": result });
            let attachment = host.attachment(plugin, &pod, "eth0");
            (pod, attachment, with(&base, &keys))
        });
        a.1.add(&a.2).success();
        let ((pod, mut attachment, config), neighbour) = (b, (a.1, a.2));
        // The kernel may not list the chains: the output is complete, but without them.
        let lacks = "real \"$@\" | grep -v CNI-";
        let cases = [
            ("not the chains", format!("{lacks}\n"), "already exists"),
            ("a part", "real \"$@\" | head -n 4\n".to_owned(), "incomplete output"),
            ("nothing", "true\n".to_owned(), "no output"),
        ];
        for (label, print, word) in &cases {
            attachment.through = filtered_iptables_save(&host, print);
            assert_refused(&format!("{plugin}: {label}"), &attachment.add(&config), 5, &[word]);
            neighbour.0.check(&neighbour.1).success();
        }
        let late = filtered_iptables_save(
            &host,
            &format!("[ -e $0.once ] && {{ real \"$@\"; exit; }}\n: >$0.once\n{lacks}\n"),
        );
        attachment.through = late;
        attachment.add(&config).success();
        host.run(["sh", "-c", "rm /run/filtered/*.once"]);
        attachment.through.clear();
        attachment.check(&config).success();
        neighbour.0.check(&neighbour.1).success();
        for (attachment, config) in [(&attachment, &config), (&neighbour.0, &neighbour.1)] {
            attachment.del(config).success();
        }
        drop(pod);
    }
}

#[test]
fn iptables_del_fails_if_it_cannot_read_the_rules() {
    let host = testkit::host!(Feature::Bridge, Feature::IptablesNft);
    rig::install(&host);
    let pod = host.pod("a");
    let result = host.attachment("bridge", &pod, "eth0").add(&bridge("1.1.0")).success().json();
    let behind = |plugin: &str, keys: &Value| {
        let base = json!({ "cniVersion": "1.1.0", "name": "net", "type": plugin, "prevResult": result });
        with(&base, keys)
    };
    let mapping = json!([{ "hostPort": 9000, "containerPort": 80, "protocol": "tcp" }]);
    let ports = json!({ "backend": "iptables", "runtimeConfig": { "portMappings": mapping } });
    let masquerade = with(&bridge("1.1.0"), &json!({ "ipMasq": true, "ipMasqBackend": "iptables" }));
    for (plugin, ifname, config) in [
        ("portmap", "eth0", behind("portmap", &ports)),
        ("firewall", "eth0", behind("firewall", &json!({ "backend": "iptables" }))),
        ("bridge", "net1", masquerade),
    ] {
        let mut attachment = host.attachment(plugin, &pod, ifname);
        let (mut failed, mut succeeded) = (0, 0);
        for descriptors in 5..30 {
            attachment.through.clear();
            let result = attachment.add(&config).success().json();
            let made = with(&config, &json!({ "prevResult": result }));
            let limit = format!("--nofile={descriptors}:{descriptors}");
            attachment.through = ["prlimit", &limit, "--"].map(str::to_owned).to_vec();
            match attachment.del(&made).code {
                Some(0) => succeeded += 1,
                _ => {
                    failed += 1;
                    attachment.through.clear();
                    attachment.del(&made).success();
                }
            }
            let left = rules_of(&host, &pod);
            assert!(left.is_empty(), "{plugin} with {descriptors} descriptors: {left:?}");
        }
        assert!(failed > 0 && succeeded > 0, "{plugin}: {failed} failed, {succeeded} succeeded");
    }
}

/// Returns the iptables rules of a pod.
fn rules_of(host: &Host, pod: &Pod) -> Vec<String> {
    let saved = host.run(["iptables-save"]) + &host.run(["ip6tables-save"]);
    let id = pod.container_id();
    saved.lines().filter(|line| line.contains(&id)).map(str::to_owned).collect()
}
