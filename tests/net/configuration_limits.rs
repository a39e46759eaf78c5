//! Limits for configurations: what a plan accepts, a DEL ends, whatever a pod or a definition asks for.
//!
//! Real plugins and a real kernel; the definitions are valid ones with values replaced at random, by seed.
//! `WEFT_TEST_PLANS` sets how many plans are generated.

use rig::cluster::{Cluster, bridge, configuration, entry_path};
use rig::{assert_nothing_left, links, refusal};
use serde_json::{Value, json};
use testkit::{Feature, Host, host};

/// Number of generated plans without `WEFT_TEST_PLANS`.
const PLANS: u64 = 120;

/// An array of `levels` arrays.
fn nested(levels: usize) -> Value {
    (0..levels).fold(json!(1), |value, _| json!([value]))
}

#[test]
fn configuration_limits_refuse_an_add_before_its_first_effect() {
    let host = host!(Feature::Bridge);
    let cluster = Cluster::new(&host);
    cluster.definition("plain", &bridge("plain", 5));
    let mut large = bridge("large", 6);
    large["plugins"][0]["x"] = "x".repeat(700 << 10).into();
    cluster.definition("large", &large);
    let mut text = bridge("text", 7);
    text["plugins"][0]["type"] = "LICENSE".into();
    cluster.definition("text", &text);
    host.write("/opt/cni/bin/LICENSE", "Permission is granted\n");
    host.run(["chmod", "0755", "/opt/cni/bin/LICENSE"]);
    let config = configuration(&bridge("home", 1));
    prime(&host, &cluster, &config);
    let cases = [
        (json!([{ "name": "plain", "cni-args": { "x": nested(100) } }]), "levels"),
        (json!([{ "name": "large", "cni-args": { "x": "y".repeat(200 << 10) } }]), "bytes"),
        (json!("text"), "LICENSE"),
    ];
    for (number, (networks, words)) in cases.into_iter().enumerate() {
        let name = format!("web{number}");
        cluster.pod(&name, networks);
        let pod = host.pod(&name);
        let weft = cluster.attachment(&pod);
        let before = host.snapshot();
        let (code, message) = refusal(&weft.add(&config));
        assert_eq!(code, 7, "{message}");
        assert!(message.contains(words), "{message}");
        assert!(links(&pod).is_empty() && host.read(entry_path(&pod)).is_none(), "{message}");
        assert_nothing_left(words, &host, &before);
        weft.del(&config).success();
    }
}

/// Creates the objects that remain on a host after a DEL: the bridges and the directory of the journal.
fn prime(host: &Host, cluster: &Cluster<'_>, config: &Value) {
    cluster.definition("net", &bridge("net", 5));
    cluster.pod("prime", "net");
    let prime = host.pod("prime");
    let weft = cluster.attachment(&prime);
    weft.add(config).success();
    weft.del(config).success();
    prime.remove();
}

#[test]
fn configuration_limits_do_not_prevent_a_recorded_del() {
    let host = host!(Feature::Bridge);
    let cluster = Cluster::new(&host);
    let config = configuration(&bridge("home", 1));
    let deep = json!({ "cni": { "x": nested(120) } });
    let long = json!({ "cni": { "x": "y".repeat(1_048_000) } });
    for (name, args) in [("deep", deep), ("long", long)] {
        cluster.pod(name, "net");
        prime(&host, &cluster, &config);
        let before = host.snapshot();
        let pod = host.pod(name);
        let weft = cluster.attachment(&pod);
        weft.add(&config).success();
        // The entry of a release that accepted more.
        let mut entry = cluster.entry(&pod).expect("an entry");
        let mut list: Value =
            serde_json::from_str(entry["plan"]["delegates"][1]["config"].as_str().unwrap()).unwrap();
        list["plugins"][0]["args"] = args;
        entry["plan"]["delegates"][1]["config"] = list.to_string().into();
        host.write(entry_path(&pod), entry.to_string());
        weft.del(&config).success();
        assert!(host.read(entry_path(&pod)).is_none() && links(&pod).is_empty(), "{name}");
        pod.remove();
        assert_nothing_left(name, &host, &before);
    }
}

/// Generator of numbers, by seed.
struct Numbers(u64);

impl Numbers {
    /// Returns a number below `limit`.
    fn below(&mut self, limit: usize) -> usize {
        // Knuth's MMIX constants.
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from((self.0 >> 33) % limit as u64).expect("a small number")
    }

    /// Returns one of a few values of every JSON type.
    fn value(&mut self) -> Value {
        match self.below(12) {
            0 => Value::Null,
            1 => json!(true),
            2 => json!(-1),
            3 => json!(70_000),
            4 => json!("x"),
            5 => json!(""),
            6 => json!([]),
            7 => json!({ "a": 1 }),
            8 => json!(["10.9.0.7/24"]),
            9 => nested(20),
            10 => json!("\u{1b}[2J\u{202e}"),
            _ => json!("10.9.0.9"),
        }
    }

    /// Replaces one value below `value`, which is an object or an array.
    fn change(&mut self, value: &mut Value) {
        let entries: Vec<&mut Value> = match value {
            Value::Object(map) => {
                // Their names decide which shared objects stay on the host.
                map.iter_mut()
                    .filter(|(key, _)| !["name", "bridge"].contains(&key.as_str()))
                    .map(|(_, v)| v)
                    .collect()
            }
            Value::Array(list) => list.iter_mut().collect(),
            _ => return,
        };
        let count = entries.len();
        let Some(entry) = entries.into_iter().nth(self.below(count.max(1))) else { return };
        let descend = entry.is_object() || entry.is_array();
        if descend && self.below(4) > 0 { self.change(entry) } else { *entry = self.value() }
    }
}

/// A chain with most of the built-in plugins that the kernel has.
fn chain(numbers: &mut Numbers) -> Value {
    let ipam = json!({ "type": "host-local", "ranges": [[{ "subnet": "10.9.0.0/24" }]], "routes": [{ "dst": "10.99.0.0/16" }] });
    let first = match numbers.below(4) {
        0 => json!({ "type": "ptp", "ipMasq": true, "mtu": 1400, "ipam": ipam }),
        1 => {
            json!({ "type": "bridge", "bridge": "br9", "isGateway": true, "ipMasq": true, "hairpinMode": true, "ipam": ipam })
        }
        2 => json!({ "type": "tap", "mtu": 1400, "ipam": ipam }),
        _ => {
            json!({ "type": "bridge", "bridge": "br9", "ipam": { "type": "static", "addresses": [{ "address": "10.9.0.4/24" }] } })
        }
    };
    let further = [
        json!({ "type": "tuning", "mtu": 1300, "promisc": true, "sysctl": { "net.ipv4.conf.IFNAME.arp_filter": "1" } }),
        json!({ "type": "portmap", "capabilities": { "portMappings": true } }),
        json!({ "type": "firewall", "backend": "iptables" }),
        json!({ "type": "bandwidth", "ingressRate": 1_000_000, "ingressBurst": 1_000_000 }),
        json!({ "type": "sbr" }),
    ];
    let mut plugins = vec![first];
    for plugin in further {
        if numbers.below(3) == 0 {
            plugins.push(plugin);
        }
    }
    json!({ "cniVersion": "1.0.0", "name": "net", "plugins": plugins })
}

/// Returns the objects of an attachment that are still on the host.
fn remains(host: &Host) -> String {
    let script = "ls /var/lib/weft/sandboxes | grep json; find /var/lib/cni/networks -name '10.*'; \
                  ip -o link | grep -E 'veth|ifb|tap'; nft list ruleset | grep -E 'generated|comment'; \
                  ls /run/cni/host-device; true";
    host.command("sh").args(["-c", script]).finish().stdout
}

#[test]
fn configuration_limits_a_del_ends_whatever_a_plan_accepted() {
    let host = host!(Feature::Bridge);
    let cluster = Cluster::new(&host);
    let count = std::env::var("WEFT_TEST_PLANS").ok().and_then(|text| text.parse().ok()).unwrap_or(PLANS);
    let config = configuration(&bridge("home", 1));
    let mut added = 0;
    for seed in 0..count {
        let mut numbers = Numbers(seed);
        let mut list = chain(&mut numbers);
        for _ in 0..numbers.below(3) {
            numbers.change(&mut list);
        }
        cluster.definition("generated", &list);
        let mut element = json!({ "name": "generated" });
        for key in ["ips", "mac", "cni-args", "default-route", "bandwidth", "portMappings"] {
            if numbers.below(8) == 0 {
                element[key] = numbers.value();
            }
        }
        cluster.pod("web", json!([element]));
        let pod = host.pod("web");
        let weft = cluster.attachment(&pod);
        let add = weft.add(&config);
        added += u64::from(add.code == Some(0));
        let del = weft.del(&config);
        let what = format!("seed {seed}: {list}, {element}: ADD {add}, DEL {del}");
        assert_eq!(del.code, Some(0), "{what}");
        assert_eq!(remains(&host), "", "{what}");
        pod.remove();
    }
    assert!(added > count / 5, "only {added} of {count} generated plans were attached");
}
