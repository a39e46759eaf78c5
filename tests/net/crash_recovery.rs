//! Tests for crash recovery: after `kill -9` before any step that changes something, DEL leaves nothing and a
//! repeated ADD works.
//!
//! A walk kills an ADD (or a DEL) before its first such system call, then before its second, and so on, until the call
//! ends. After each kill it calls DEL, compares host and pod with the state before, and calls ADD, CHECK and DEL.
//!
//! ```text
//!   weft ─┬─ eth0  bridge br1, masqueraded          bridge ── eth0 on br1, masqueraded
//!         ├─ net1  bridge br2, source addresses checked; traffic limited
//!         ├─ net2  macvlan on up0
//!         └─ net3  ptp, masqueraded; interface tuned
//! ```
//!
//! Source: SPEC 1.1.0 §2 (S13, S31); the journal's states after a crash in `docs/design/journal.md`.

use rig::cluster::{MANIFESTS, NAMESPACE, bridge, configuration};
use rig::{Cluster, assert_nothing_left, assert_pod_unchanged, with};
use serde_json::{Value, json};
use testkit::{Attachment, Feature, Finished, Host, Pod, Snapshot, host};

/// Exit code of the killer if it killed the program.
const KILLED: i32 = 200;
/// Upper bound for the steps in a call.
const STEPS_MAX: u32 = 2000;

/// An attachment on a host that already has the shared objects.
struct Walk<'a> {
    host: &'a Host,
    pod: &'a Pod,
    attachment: Attachment<'a>,
    config: Value,
    before: Snapshot,
    inside: Snapshot,
}

impl<'a> Walk<'a> {
    fn new(host: &'a Host, pod: &'a Pod, attachment: Attachment<'a>, config: Value) -> Walk<'a> {
        let inside = pod.snapshot();
        attachment.add(&config).success();
        attachment.del(&config).success();
        Walk { host, pod, attachment, config, before: host.snapshot(), inside }
    }

    /// Calls a verb and kills it before step `place`. Returns `None` if the call ended before.
    fn killed(&mut self, verb: &str, place: u32) -> Option<String> {
        let killer = testkit::binary("weft-test-killer").display().to_string();
        self.attachment.through = vec![killer, place.to_string()];
        let Finished { code, stderr, .. } = self.attachment.call(verb, self.config.to_string());
        self.attachment.through.clear();
        match code {
            Some(KILLED) => Some(format!("{verb}, step {place}, {}", stderr.trim_end())),
            Some(0) => None,
            _ => panic!("{verb} up to step {place} ended with {code:?}: {stderr}"),
        }
    }

    fn assert_nothing_left(&self, label: &str) {
        assert_nothing_left(label, self.host, &self.before);
        assert_pod_unchanged(label, self.pod, &self.inside);
    }

    /// Calls ADD, CHECK and DEL, which succeed.
    fn assert_works(&self, label: &str) {
        let result = self.attachment.add(&self.config);
        assert_eq!(result.code, Some(0), "{label}, then DEL, then ADD: {result}");
        let known = with(&self.config, &json!({ "prevResult": result.json() }));
        let checked = self.attachment.check(&known);
        assert_eq!(checked.code, Some(0), "{label}, then DEL, ADD and CHECK: {checked}");
        self.attachment.del(&known).success();
    }

    /// Kills ADD at every step. Returns the number of steps.
    fn add(mut self) -> u32 {
        for place in 1..STEPS_MAX {
            let Some(label) = self.killed("ADD", place) else {
                self.attachment.del(&self.config).success();
                self.assert_nothing_left("ADD at its end");
                return place - 1;
            };
            let again = self.attachment.del(&self.config);
            assert_eq!(again.code, Some(0), "{label}, then DEL: {again}");
            self.assert_nothing_left(&label);
            self.assert_works(&label);
        }
        panic!("ADD takes more than {STEPS_MAX} steps")
    }

    /// Kills DEL at every step. Returns the number of steps.
    fn del(mut self) -> u32 {
        for place in 1..STEPS_MAX {
            self.attachment.add(&self.config).success();
            let Some(label) = self.killed("DEL", place) else {
                self.assert_nothing_left("DEL at its end");
                return place - 1;
            };
            let again = self.attachment.del(&self.config);
            assert_eq!(again.code, Some(0), "{label}, then DEL: {again}");
            self.assert_nothing_left(&label);
            if place % 4 == 0 {
                self.assert_works(&label);
            }
        }
        panic!("DEL takes more than {STEPS_MAX} steps")
    }
}

/// Kills the first ADD on a new host at each `every`th step, and calls `then` with host and pod.
fn first_adds(every: u32, config: &Value, then: impl Fn(&str, &Host, &Pod)) {
    for place in (1..STEPS_MAX).step_by(every as usize) {
        let host = Host::new();
        rig::install(&host);
        let pod = host.pod("a");
        let killer = testkit::binary("weft-test-killer").display().to_string();
        let mut eth0 = host.attachment("bridge", &pod, "eth0");
        eth0.through = vec![killer, place.to_string()];
        match eth0.add(config).code {
            Some(KILLED) => then(&format!("the first ADD, step {place}"), &host, &pod),
            code => {
                assert_eq!(code, Some(0));
                return;
            }
        }
    }
}

/// Returns a configuration of one plugin: addresses of both families, a gateway, masquerading, checked
/// sources.
fn plain() -> Value {
    json!({
        "cniVersion": "1.1.0", "name": "net", "type": "bridge", "bridge": "br1",
        "isDefaultGateway": true, "ipMasq": true, "macspoofchk": true, "hairpinMode": true,
        "ipam": { "type": "host-local", "ranges": [[{ "subnet": "10.1.0.0/24" }], [{ "subnet": "fd01::/64" }]] },
    })
}

/// Creates the default network and three more: every plugin that creates an interface, and one that changes
/// it.
fn four_networks(host: &Host) -> (Cluster<'_>, Value) {
    let cluster = Cluster::new(host);
    // The namespace of the outside is deleted while its end of the link is in use.
    std::mem::forget(rig::traffic::outside(host));
    let mut checked = bridge("checked", 2);
    checked["plugins"][0]["macspoofchk"] = true.into();
    let limits = json!({ "type": "bandwidth", "ingressRate": 8_000_000, "ingressBurst": 800_000, "egressRate": 8_000_000, "egressBurst": 800_000 });
    checked["plugins"].as_array_mut().expect("plugins").push(limits);
    cluster.definition("checked", &checked);
    let range = |subnet: u8| json!({ "type": "host-local", "ranges": [[{ "subnet": format!("10.{subnet}.0.0/24") }]] });
    cluster.definition(
        "flat",
        &json!({ "cniVersion": "1.1.0", "type": "macvlan", "master": "up0", "ipam": range(3) }),
    );
    cluster.definition(
        "tuned",
        &json!({ "cniVersion": "1.1.0", "plugins": [
            { "type": "ptp", "ipMasq": true, "ipam": range(4) },
            { "type": "tuning", "mtu": 1400 },
        ] }),
    );
    let mut default = bridge("default", 1);
    default["plugins"][0]["ipMasq"] = true.into();
    cluster.pod("web", "checked,flat,tuned");
    (cluster, configuration(&default))
}

/// Creates two networks with policies: rules in the namespace of the pod, and in that of the host.
fn policed(host: &Host) -> (Cluster<'_>, Value) {
    let cluster = Cluster::new(host);
    let range = |subnet: u8| json!({ "type": "host-local", "ranges": [[{ "subnet": format!("10.{subnet}.0.0/24") }]] });
    cluster.definition("red", &bridge("red", 2));
    cluster.definition(
        "routed",
        &json!({ "cniVersion": "1.1.0", "plugins": [{ "type": "ptp", "ipam": range(3) }] }),
    );
    let blocks = json!([{ "to": [{ "ipBlock": { "cidr": "10.0.0.0/8", "except": ["10.9.0.0/16"] } }],
        "ports": [{ "port": 80, "endPort": 90 }] }]);
    let policy = json!({ "apiVersion": "k8s.cni.cncf.io/v1beta2", "kind": "MultiNetworkPolicy",
        "metadata": { "name": "p", "namespace": NAMESPACE,
            "annotations": { "k8s.v1.cni.cncf.io/policy-for": "red,routed" } },
        "spec": { "podSelector": {}, "policyTypes": ["Ingress", "Egress"], "egress": blocks } });
    host.write(format!("{MANIFESTS}/policy.json"), policy.to_string());
    cluster.pod("web", "red,routed");
    (cluster, configuration(&bridge("default", 1)))
}

#[test]
fn crash_recovery_network_policy_add_killed_at_every_step() {
    let host = host!(Feature::Bridge, Feature::Veth, Feature::NftInet);
    let (cluster, config) = policed(&host);
    let pod = host.pod("web");
    let steps = Walk::new(&host, &pod, cluster.attachment(&pod), config).add();
    assert!(steps > 40, "only {steps} steps: does the killer see all steps?");
}

#[test]
fn crash_recovery_network_policy_del_killed_at_every_step() {
    let host = host!(Feature::Bridge, Feature::Veth, Feature::NftInet);
    let (cluster, config) = policed(&host);
    let pod = host.pod("web");
    let steps = Walk::new(&host, &pod, cluster.attachment(&pod), config).del();
    assert!(steps > 20, "only {steps} steps: does the killer see all steps?");
}

#[test]
fn crash_recovery_bridge_add_killed_at_every_step() {
    let host = host!(Feature::Bridge, Feature::NftMasquerade, Feature::NftBridge);
    rig::install(&host);
    let pod = host.pod("a");
    let steps = Walk::new(&host, &pod, host.attachment("bridge", &pod, "eth0"), plain()).add();
    assert!(steps > 20, "only {steps} steps: does the killer see all steps?");
}

#[test]
fn crash_recovery_bridge_del_killed_at_every_step() {
    let host = host!(Feature::Bridge, Feature::NftMasquerade, Feature::NftBridge);
    rig::install(&host);
    let pod = host.pod("a");
    let steps = Walk::new(&host, &pod, host.attachment("bridge", &pod, "eth0"), plain()).del();
    assert!(steps > 10, "only {steps} steps: does the killer see all steps?");
}

#[test]
fn crash_recovery_four_networks_add_killed_at_every_step() {
    let host = host!(
        Feature::Bridge,
        Feature::Macvlan,
        Feature::NftMasquerade,
        Feature::NftBridge,
        Feature::Ifb,
        Feature::Tbf,
        Feature::Mirred
    );
    let (cluster, config) = four_networks(&host);
    let pod = host.pod("web");
    let steps = Walk::new(&host, &pod, cluster.attachment(&pod), config).add();
    assert!(steps > 60, "only {steps} steps: does the killer see all steps?");
}

#[test]
fn crash_recovery_four_networks_del_killed_at_every_step() {
    let host = host!(
        Feature::Bridge,
        Feature::Macvlan,
        Feature::NftMasquerade,
        Feature::NftBridge,
        Feature::Ifb,
        Feature::Tbf,
        Feature::Mirred
    );
    let (cluster, config) = four_networks(&host);
    let pod = host.pod("web");
    let steps = Walk::new(&host, &pod, cluster.attachment(&pod), config).del();
    assert!(steps > 30, "only {steps} steps: does the killer see all steps?");
}

#[test]
fn crash_recovery_first_add_is_completed_by_the_next() {
    testkit::require!(
        Feature::Root,
        Feature::Bridge,
        Feature::NftMasquerade,
        Feature::NftBridge,
        Feature::Ping
    );
    first_adds(3, &plain(), |label, host, pod| assert_completed(label, host, pod, &plain()));
}

/// In a VLAN the gateway is a port of the bridge, created in three steps.
#[test]
fn crash_recovery_first_add_in_a_vlan_is_completed_by_the_next() {
    testkit::require!(
        Feature::Root,
        Feature::BridgeVlan,
        Feature::NftMasquerade,
        Feature::NftBridge,
        Feature::Ping
    );
    let config = with(&plain(), &json!({ "vlan": 5 }));
    first_adds(2, &config, |label, host, pod| assert_completed(label, host, pod, &config));
}

/// Calls DEL, and then an ADD that completes the existing objects.
fn assert_completed(label: &str, host: &Host, pod: &Pod, config: &Value) {
    let eth0 = host.attachment("bridge", pod, "eth0");
    let again = eth0.del(config);
    assert_eq!(again.code, Some(0), "{label}: {again}");
    assert!(rig::links(pod).is_empty(), "{label}: {:?}", rig::links(pod));
    let result = eth0.add(config);
    assert_eq!(result.code, Some(0), "{label}: {result}");
    eth0.check(&with(config, &json!({ "prevResult": result.json() }))).success();
    assert!(pod.pings("10.1.0.1"), "{label}: the gateway answers");
    let rules = host.run(["nft", "list", "ruleset"]);
    assert!(rules.contains("masquerade") && rules.contains("@checked"), "{label}: {rules}");
}

#[test]
fn crash_recovery_killed_add_may_be_repeated_without_del() {
    let host = host!(
        Feature::Bridge,
        Feature::Macvlan,
        Feature::NftMasquerade,
        Feature::NftBridge,
        Feature::Ifb,
        Feature::Tbf,
        Feature::Mirred
    );
    let (cluster, config) = four_networks(&host);
    let pod = host.pod("web");
    let mut walk = Walk::new(&host, &pod, cluster.attachment(&pod), config);
    // Fewer steps than the walks with a DEL in between: the states are the same.
    for place in (5..STEPS_MAX).step_by(9) {
        let Some(label) = walk.killed("ADD", place) else { break };
        let complete = cluster.entry(&pod).is_some_and(|entry| entry["complete"] == true);
        let again = walk.attachment.add(&walk.config);
        assert_eq!(again.code, Some(i32::from(complete)), "{label}, then ADD: {again}");
        walk.attachment.del(&walk.config).success();
        walk.assert_nothing_left(&label);
    }
}

#[test]
fn crash_recovery_gc_detaches_after_killed_add() {
    let host = host!(
        Feature::Bridge,
        Feature::Macvlan,
        Feature::NftMasquerade,
        Feature::NftBridge,
        Feature::Ifb,
        Feature::Tbf,
        Feature::Mirred
    );
    let (cluster, config) = four_networks(&host);
    let pod = host.pod("web");
    let mut walk = Walk::new(&host, &pod, cluster.attachment(&pod), config);
    let mut collected = 0;
    for place in (8..STEPS_MAX).step_by(11) {
        let Some(label) = walk.killed("ADD", place) else { break };
        collected += u32::from(cluster.entry(&pod).is_some());
        rig::gc(&walk.attachment, &walk.config, Some(&[])).success();
        assert_eq!(cluster.entry(&pod), None, "{label}, then GC");
        assert_pod_unchanged(&label, &pod, &walk.inside);
        // Without an entry, GC leaves the lock file to DEL.
        walk.attachment.del(&walk.config).success();
        walk.assert_nothing_left(&label);
    }
    walk.attachment.del(&walk.config).success();
    assert!(collected > 4, "only {collected} entries: does the killer see the steps?");
}

#[test]
fn crash_recovery_portmap_killed_at_every_step() {
    let host = host!(Feature::Veth, Feature::NftFib, Feature::NftMasquerade, Feature::IptablesNft);
    rig::install(&host);
    let pod = host.pod("a");
    host.run(["ip", "link", "add", "h0", "type", "veth", "peer", "name", "eth0", "netns", "a"]);
    host.run(["sysctl", "-qw", "net.ipv6.conf.h0.disable_ipv6=1"]);
    host.run(["ip", "link", "set", "h0", "up"]);
    host.run(["ip", "address", "add", "10.1.2.1/24", "dev", "h0"]);
    let sandbox = pod.path().display().to_string();
    let config = json!({
        "cniVersion": "1.1.0", "name": "net", "type": "portmap",
        "prevResult": {
            "cniVersion": "1.1.0", "interfaces": [{ "name": "eth0", "sandbox": sandbox }],
            "ips": [{ "address": "10.1.2.3/24", "interface": 0 }, { "address": "fd01::3/64", "interface": 0 }],
        },
        "runtimeConfig": { "portMappings": [
            { "hostPort": 8080, "containerPort": 80, "protocol": "tcp" },
            { "hostPort": 5353, "containerPort": 53, "protocol": "udp" },
        ] },
    });
    for backend in ["nftables", "iptables"] {
        let config = with(&config, &json!({ "backend": backend }));
        let walk = || Walk::new(&host, &pod, host.attachment("portmap", &pod, "eth0"), config.clone());
        let (add, del) = (walk().add(), walk().del());
        assert!(add > 4 && del > 4, "{backend}: only {add} and {del} steps: does the killer see all steps?");
    }
}

#[test]
fn crash_recovery_firewall_killed_at_every_step() {
    let host = host!(Feature::NftInet, Feature::NftBridge, Feature::IptablesNft);
    rig::install(&host);
    let pod = host.pod("a");
    host.run(["iptables", "-P", "FORWARD", "DROP"]);
    let sandbox = pod.path().display().to_string();
    let config = json!({
        "cniVersion": "1.1.0", "name": "net", "type": "firewall", "backend": "nftables", "ingressPolicy": "isolated",
        "prevResult": {
            "cniVersion": "1.1.0",
            "interfaces": [{ "name": "br0" }, { "name": "veth0" }, { "name": "eth0", "sandbox": sandbox }],
            "ips": [{ "address": "10.1.2.3/24", "interface": 2 }, { "address": "fd01::3/64", "interface": 2 }],
        },
    });
    for backend in ["nftables", "iptables"] {
        let config = with(&config, &json!({ "backend": backend }));
        let walk = || Walk::new(&host, &pod, host.attachment("firewall", &pod, "eth0"), config.clone());
        let (add, del) = (walk().add(), walk().del());
        assert!(add > 4 && del > 4, "{backend}: only {add} and {del} steps: does the killer see all steps?");
    }
}

/// A process of iptables that survives the kill would add rules after DEL has looked for them.
#[test]
fn crash_recovery_iptables_process_ends_with_a_killed_add() {
    let host = host!(Feature::Veth, Feature::IptablesNft);
    rig::install(&host);
    let pod = host.pod("a");
    let script = "mkdir -p /run/slow; for what in iptables-restore ip6tables-restore; do\n\
                  printf '#!/bin/sh\\nsleep 1\\nexec %s \"$@\"\\n' $(command -v $what) >/run/slow/$what\n\
                  chmod 755 /run/slow/$what\ndone";
    host.run(["sh", "-ec", script]);
    let slowly = ["env", "PATH=/run/slow:/usr/sbin:/usr/bin:/sbin:/bin"];
    let sandbox = pod.path().display().to_string();
    let base = json!({
        "cniVersion": "1.1.0", "name": "net", "backend": "iptables",
        "prevResult": {
            "cniVersion": "1.1.0", "interfaces": [{ "name": "eth0", "sandbox": sandbox }],
            "ips": [{ "address": "10.1.2.3/24", "interface": 0 }],
        },
        "runtimeConfig": { "portMappings": [{ "hostPort": 8080, "containerPort": 80, "protocol": "tcp" }] },
    });
    for plugin in ["portmap", "firewall"] {
        let config = with(&base, &json!({ "type": plugin }));
        let mut attachment = host.attachment(plugin, &pod, "eth0");
        // Objects that all containers share exist now, so only the container's own chain can differ.
        attachment.add(&config).success();
        attachment.del(&config).success();
        let before = host.run(["iptables-save"]);
        attachment.through = [&slowly[..], &["timeout", "--foreground", "-s", "KILL", "0.5"]]
            .concat()
            .iter()
            .map(|word| (*word).to_owned())
            .collect();
        assert_ne!(attachment.add(&config).code, Some(0), "{plugin}: killed while the program waits");
        attachment.through.clear();
        attachment.del(&config).success();
        std::thread::sleep(std::time::Duration::from_millis(1500));
        let rules = |text: &str| {
            text.lines().filter(|line| line.starts_with("-A")).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(rules(&host.run(["iptables-save"])), rules(&before), "{plugin}");
    }
}

// === plugins of one interface in the container, or a device of the host ===

/// Kills ADD and DEL of a plugin at every step, without the IPv6 addresses that the kernel adds with a delay.
fn walks(host: &Host, plugin: &str, keys: &Value) {
    rig::install(host);
    host.run(["sysctl", "-qw", "net.ipv6.conf.default.disable_ipv6=1"]);
    let pod = host.pod("a");
    pod.run(["sysctl", "-qw", "net.ipv6.conf.default.disable_ipv6=1"]);
    host.run(["ip", "link", "add", "dev0", "type", "veth", "peer", "name", "far0"]);
    for end in ["dev0", "far0"] {
        host.run(["ip", "link", "set", end, "up"]);
    }
    let base = json!({
        "cniVersion": "1.1.0", "name": "net", "type": plugin,
        "ipam": { "type": "host-local", "ranges": [[{ "subnet": "10.1.0.0/24" }]], "routes": [{ "dst": "0.0.0.0/0" }] },
    });
    let config = with(&base, keys);
    let walk = || Walk::new(host, &pod, host.attachment(plugin, &pod, "eth0"), config.clone());
    let (adding, removing) = (walk().add(), walk().del());
    assert!(
        adding > 10 && removing > 5,
        "{plugin}: only {adding} and {removing} steps: does the killer see all steps?"
    );
}

#[test]
fn crash_recovery_host_device_killed_at_every_step() {
    walks(&host!(Feature::Veth), "host-device", &json!({ "device": "dev0" }));
}

#[test]
fn crash_recovery_tap_killed_at_every_step() {
    walks(&host!(Feature::Tun), "tap", &json!({ "mtu": 1400, "owner": 1000 }));
}

/// Covers macvlan and vlan as well, which share code with ipvlan.
#[test]
fn crash_recovery_ipvlan_killed_at_every_step() {
    walks(&host!(Feature::Ipvlan), "ipvlan", &json!({ "master": "dev0" }));
}

/// A kill while the kernel moves the interface may lose the routes; the pod is deleted next.
#[test]
fn crash_recovery_vrf_killed_at_every_step() {
    let host = host!(Feature::Vrf);
    rig::install(&host);
    let pod = host.pod("a");
    pod.run(["sysctl", "-qw", "net.ipv6.conf.default.disable_ipv6=1"]);
    pod.run(["ip", "link", "add", "eth0", "type", "veth", "peer", "name", "far0"]);
    // The first VRF of a namespace adds a rule that remains.
    pod.run(["ip", "link", "add", "red", "type", "vrf", "table", "9"]);
    pod.run(["ip", "link", "delete", "red"]);
    let config = json!({
        "cniVersion": "1.1.0", "name": "net", "type": "vrf", "vrfname": "red",
        "prevResult": { "cniVersion": "1.1.0", "interfaces": [{ "name": "eth0", "sandbox": pod.path().to_str().unwrap() }] },
    });
    let mut walk = Walk::new(&host, &pod, host.attachment("vrf", &pod, "eth0"), config);
    for verb in ["ADD", "DEL"] {
        for place in 1..STEPS_MAX {
            if verb == "DEL" {
                walk.attachment.add(&walk.config).success();
            }
            let Some(label) = walk.killed(verb, place) else {
                assert!(place > 8, "only {place} steps: does the killer see all steps?");
                break;
            };
            let again = walk.attachment.del(&walk.config);
            assert_eq!(again.code, Some(0), "{label}, then DEL: {again}");
            walk.assert_nothing_left(&label);
            if place % 4 == 0 {
                walk.assert_works(&label);
            }
        }
        walk.attachment.del(&walk.config).success();
    }
}
