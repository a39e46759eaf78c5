//! The real Multus and weft on one node of a real API server: the same pod, what each writes of it, and what Multus
//! attached taken down by weft.
//!
//! ```text
//!   multus (thin) or multus-shim + multus-daemon (thick), Go plugins ─► network-status, result, Events ─┐ compared
//!   weft import multus ─► configuration ─► weft, agent ────────────────► network-status, result, Events ─┘
//! ```
//!
//! Rules: weft runs with the configuration that `weft import multus` prints, once with the Go plugins and once with its
//! own; a difference that is meant has its row in [`MEANT`] and its line in DEVIATIONS.md; a row that shows no difference
//! anywhere fails, too. `PEERS` has Multus; without, all of it is skipped.
//!
//! Source: Multus v4.3; the standard v1.3, 5.

mod difference;

use std::collections::BTreeSet;

use difference::differences;
use rig::agent::{NAMESPACE, NODE};
use rig::machine::until;
use rig::multus::{DAEMON, DAEMON_CONFIG, Form, MEMORY};
use rig::peers::peers;
use rig::{Agent, Machine, Multus, links};
use serde_json::{Value, json};
use testkit::{Attachment, Feature, Finished, Pod, host};

const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";
const CONFIGURATIONS: &str = "/etc/cni/net.d";
const STORE: &str = "/var/lib/cni/networks";

/// What a pod asks for, by its name.
const PODS: [(&str, &str); 10] = [
    ("plain", ""),
    ("comma", "red,blue"),
    ("twice", "red,red@front"),
    ("asks", r#"[{"name":"asked","mac":"02:00:00:00:00:77","ips":["10.14.0.77/24"],"interface":"front"}]"#),
    ("routed", r#"[{"name":"red","default-route":["10.11.0.1"]}]"#),
    ("gateways", "gateways"),
    ("dual", "dual"),
    ("wire", "wire"),
    ("chained", "chained,blue"),
    ("disk", "disk"),
];

/// Differences that are meant: the end of a line, and why.
const MEANT: &[(&str, &str)] = &[
    (".default: ours alone, false", "the standard's examples write it out (C5)"),
    (
        r#".gateway[0]: theirs "<nil>", ours "10.10.0.1""#,
        "a default route by the subnet's gateway has one (M16)",
    ),
    (r#".gateway: theirs alone, ["<nil>"]"#, "the default route was moved away (M16)"),
    (r#".routes: theirs alone, [{"dst":"0.0.0.0/0"}]"#, "the default route was moved away (M16)"),
    (r#".gateway: ours alone, ["10.11.0.1"]"#, "the default route was moved here (M16)"),
    (r#".default-route: ours alone, ["10.11.0.1"]"#, "the standard has it, 5.3.6"),
];

/// A node with Multus of one form beside weft, and its networks.
struct Bench {
    agent: Agent,
    multus: Multus,
    form: Form,
}

/// What one of them did with a pod.
#[derive(Debug)]
struct Told {
    result: Value,
    status: Value,
    events: BTreeSet<String>,
}

fn range(subnet: u8) -> Value {
    json!({ "type": "host-local", "ranges": [[{ "subnet": format!("10.{subnet}.0.0/24") }]] })
}

/// The network of every pod: the usual one.
fn home() -> Value {
    let mut ipam = range(10);
    ipam["routes"] = json!([{ "dst": "0.0.0.0/0" }]);
    let bridge = json!({ "type": "bridge", "bridge": "br10", "isGateway": true, "ipam": ipam });
    json!({ "cniVersion": "1.0.0", "name": "home", "plugins": [bridge] })
}

fn definitions() -> [(&'static str, Value); 8] {
    let list = |name: &str, version: &str, plugins: Value| json!({ "cniVersion": version, "name": name, "plugins": plugins });
    let bridge = |number: u8, keys: Value| {
        let mut plugin = json!({ "type": "bridge", "bridge": format!("br{number}"), "ipam": range(number) });
        keys.as_object().expect("keys").iter().for_each(|(key, value)| plugin[key] = value.clone());
        plugin
    };
    let mut single = bridge(12, json!({ "cniVersion": "0.3.1", "name": "blue" }));
    single["x-somebody"] = "kept".into();
    let both = json!({
        "type": "host-local", "ranges": [[{ "subnet": "10.16.0.0/24" }], [{ "subnet": "fd00:16::/64" }]],
        "routes": [{ "dst": "10.99.0.0/16", "gw": "10.16.0.1" }],
    });
    let dns = json!({ "nameservers": ["10.16.0.1"], "domain": "x", "search": ["y"], "options": ["ndots:2"] });
    [
        ("red", list("red", "1.1.0", json!([bridge(11, json!({ "isGateway": true }))]))),
        ("blue", single),
        (
            "asked",
            list(
                "asked",
                "1.0.0",
                json!([bridge(14, json!({ "capabilities": { "mac": true, "ips": true } }))]),
            ),
        ),
        ("gateways", list("gateways", "0.4.0", json!([bridge(15, json!({ "isDefaultGateway": true }))]))),
        (
            "dual",
            list(
                "dual",
                "1.1.0",
                json!([bridge(16, json!({ "ipam": both, "dns": dns, "isGateway": true }))]),
            ),
        ),
        ("wire", list("wire", "1.0.0", json!([bridge(17, json!({ "ipam": {} }))]))),
        (
            "chained",
            list(
                "chained",
                "1.0.0",
                json!([bridge(18, json!({})), { "type": "tuning", "mtu": 1400, "mac": "02:00:00:00:00:18" }]),
            ),
        ),
        ("disk", Value::Null),
    ]
}

/// A node with both of them, or the end of the test as skipped.
fn bench(host: testkit::Host, form: Form) -> Option<Bench> {
    let programs: Vec<&str> = form.programs().iter().copied().chain(["tuning"]).collect();
    let programs = peers(&programs)?;
    let agent = Agent::new(Machine::new(host, "node"))?;
    for (name, config) in definitions() {
        match config {
            Value::Null => {
                let empty = json!({ "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition", "metadata": { "name": name, "namespace": NAMESPACE } });
                agent.kube.apply(&empty.to_string());
                let on_disk = json!({ "cniVersion": "1.0.0", "name": name, "plugins": [{ "type": "bridge", "bridge": "br19", "ipam": range(19) }] });
                agent.machine.write(format!("/etc/cni/multus/net.d/{name}.conflist"), on_disk.to_string());
            }
            config => agent.definition(name, &json!({}), &config),
        }
    }
    agent.machine.write(format!("{CONFIGURATIONS}/10-home.conflist"), home().to_string());
    let multus = Multus::new(&agent.machine, &agent.kube, programs);
    if form == Form::Thick {
        multus.start_daemon(&agent.machine, NODE, CONFIGURATIONS);
    }
    Some(Bench { agent, multus, form })
}

impl Bench {
    /// Multus's configuration where a runtime finds it: its own of its daemon, or with these keys.
    fn configure(&self, keys: &Value) -> Value {
        let path = format!("{CONFIGURATIONS}/00-multus.conf");
        if self.form == Form::Thick && keys.is_null() {
            let written = until("the daemon's configuration", || {
                self.agent.machine.read(&path).filter(|text| text.ends_with('}'))
            });
            return serde_json::from_str(&written).expect("JSON");
        }
        let mut config = self.multus.configuration(self.form, &home());
        for (key, value) in keys.as_object().into_iter().flatten() {
            config[key] = value.clone();
        }
        if config.get("clusterNetwork").is_some() {
            config.as_object_mut().expect("keys").remove("delegates");
        }
        self.agent.machine.write(path, config.to_string());
        config
    }

    /// A pod that selects these networks: its uid, and its namespace.
    fn pod(&self, name: &str, networks: &str) -> (String, Pod) {
        let annotations = if networks.is_empty() { json!({}) } else { json!({ NETWORKS: networks }) };
        (self.agent.pod(name, &annotations), self.agent.machine.pod(name))
    }

    fn import(&self, words: &[&str]) -> Finished {
        let weft =
            self.agent.machine.command(rig::parts::text(&testkit::binary("weft"))).args(["import", "multus"]);
        let daemon = ["--daemon-config", DAEMON_CONFIG];
        let daemon = if self.form == Form::Thick { &daemon[..] } else { &[] };
        weft.args(daemon).args(words).finish()
    }

    /// weft's configuration of Multus's, as a person gets it.
    fn translated(&self) -> Value {
        let list: Value = serde_json::from_str(&self.import(&[]).stdout).expect("the configuration");
        let mut config = list["plugins"][0].clone();
        for key in ["cniVersion", "name"] {
            config[key] = list[key].clone();
        }
        config
    }

    fn as_multus<'a>(&'a self, pod: &Pod, name: &str, uid: &str) -> Attachment<'a> {
        let mut call = self.agent.attachment(pod, name, uid);
        call.plugin = self.multus.program(self.form.plugin());
        call
    }

    /// Attaches, looks, takes down; every address is free again, and none is remembered.
    fn watch(&self, call: &Attachment<'_>, config: &Value, name: &str) -> Told {
        let machine = &self.agent.machine;
        machine.run(["rm", "-rf", STORE]);
        let result = until("ADD", || Some(call.add(config)).filter(|done| done.code == Some(0))).json();
        let status = Value::from(self.agent.status(name));
        let count = status.as_array().map_or(0, Vec::len);
        let told = || {
            let events: BTreeSet<String> =
                self.agent.events(name).iter().filter_map(|event| added(event)).collect();
            (events.len() >= count).then_some(events)
        };
        // Multus's thin form ends before its Events have gone; nobody can wait for those.
        let events = match self.form == Form::Thin && call.plugin != "weft" {
            true => BTreeSet::new(),
            false => until("Events", told),
        };
        call.del(config).success();
        Told { result, status, events }
    }
}

/// The Event of an interface; Multus's has prefix lengths.
fn added(event: &str) -> Option<String> {
    let (before, rest) = event.strip_prefix("AddedInterface ")?.split_once('[')?;
    let (addresses, after) = rest.split_once(']')?;
    let addresses: Vec<&str> =
        addresses.split(' ').map(|address| address.split('/').next().unwrap_or_default()).collect();
    Some(format!("{before}{addresses:?}{after}"))
}

/// The same pods by both: every difference is one that is meant.
fn compare(bench: &Bench) {
    let mut seen = BTreeSet::new();
    let mut faults = Vec::new();
    let multus = bench.configure(&Value::Null);
    let weft = bench.translated();
    for (name, networks) in PODS {
        let (uid, pod) = bench.pod(name, networks);
        let theirs = bench.watch(&bench.as_multus(&pod, name, &uid), &multus, name);
        for builtin in ["never", "always"] {
            let config = rig::with(&weft, &json!({ "builtin": builtin }));
            let alike = format!("{name}-{builtin}");
            let (uid, pod) = bench.pod(&alike, networks);
            let ours = bench.watch(&bench.agent.attachment(&pod, &alike, &uid), &config, &alike);
            let parts = [("result", &theirs.result, &ours.result), ("status", &theirs.status, &ours.status)];
            for (what, theirs, ours) in parts {
                for line in differences(theirs, ours, networks) {
                    match MEANT.iter().find(|(end, _)| line.ends_with(end)) {
                        Some((end, _)) => drop(seen.insert(*end)),
                        None => faults.push(format!("{name} ({builtin}), {what}{line}")),
                    }
                }
            }
            if bench.form == Form::Thick && theirs.events != ours.events {
                faults
                    .push(format!("{name} ({builtin}), Events: {:?}, ours {:?}", theirs.events, ours.events));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    for (end, why) in MEANT {
        assert!(seen.contains(end), "{end} ({why}): no difference anywhere");
    }
}

#[test]
fn weft_writes_of_a_pod_what_multus_thin_writes() {
    let Some(bench) = bench(host!(Feature::Bridge, Feature::Veth), Form::Thin) else { return };
    compare(&bench);
}

#[test]
fn weft_writes_of_a_pod_what_multus_thick_writes() {
    let Some(bench) = bench(host!(Feature::Bridge, Feature::Veth), Form::Thick) else { return };
    compare(&bench);
}

/// What Multus attached, with these keys in its configuration, goes by weft's DEL.
fn hand_over(bench: &Bench, keys: &Value) {
    let machine = &bench.agent.machine;
    let multus = bench.configure(keys);
    let before = machine.snapshot();
    let mut attached = Vec::new();
    for (name, networks) in PODS {
        let name = format!("{name}-{}", attached.len() + 100 * usize::from(!keys.is_null()));
        let (uid, pod) = bench.pod(&name, networks);
        let shape = pod.snapshot();
        // As a kubelet does: it waits a quarter of a second for the API server, which is little on a busy machine.
        let call = bench.as_multus(&pod, &name, &uid);
        until("Multus's ADD", || call.add(&multus).code.filter(|code| *code == 0));
        let written = Value::from(bench.agent.status(&name));
        attached.push((name, uid, pod, shape, written));
    }
    let done = bench.import(&["--apply"]).success();
    for (name, ..) in &attached {
        assert!(done.stderr.contains(&format!("{NAMESPACE}/{name} (")), "{name}: {done}");
    }
    assert_eq!(done.stderr.matches(": imported").count(), attached.len(), "{done}");
    let weft = bench.translated();
    if bench.form == Form::Thick {
        machine.stop(DAEMON, "TERM");
    }
    let listed =
        machine.command(rig::parts::text(&testkit::binary("weft"))).args(["list", "-o", "json"]).finish();
    let listed = listed.success().json();
    for (name, uid, pod, shape, written) in &attached {
        let sandbox =
            listed.as_array().into_iter().flatten().find(|sandbox| sandbox["pod"]["name"] == **name);
        let shown = differences(written, &sandbox.expect("it is listed")["networkStatus"], "02:00:00:00:00");
        let faults: Vec<&String> =
            shown.iter().filter(|line| !MEANT.iter().any(|(end, _)| line.ends_with(end))).collect();
        assert!(faults.is_empty(), "{name}: {faults:?}");
        let call = bench.agent.attachment(pod, name, uid);
        // By our own plugins: Go's bridge checks no network without addresses. Of a default route that a pod asked for,
        // Multus remembers that it was moved: it stays where it was, with its release of the netlink library.
        if !name.starts_with("routed") {
            call.check(&rig::with(&weft, &json!({ "cniVersion": "1.0.0", "builtin": "always" }))).success();
        }
        call.del(&weft).success();
        call.del(&weft).success();
        assert_eq!(links(pod), Vec::<String>::new(), "{name}");
        rig::assert_pod_unchanged(name, pod, shape);
    }
    // The page's last step; bridges stay, as with any plugin.
    machine.run(["rm", "-r", MEMORY]);
    let changes = rig::changes(&before, &machine.snapshot());
    let left: Vec<&str> = changes.lines().filter(|line| !is_the_nodes(line)).collect();
    assert!(left.is_empty(), "{left:#?}");
}

/// What stays of the first pod on a node, whoever attached it.
fn is_the_nodes(line: &str) -> bool {
    ["link br", "qdisc br", "address ", "route ", "neigh", "sysctl", "/lock", "/run/netns/", "/proc/sys"]
        .iter()
        .any(|word| line.contains(word))
        && !line.contains("veth")
        || line.starts_with("+ directory ")
        // A daemon that ends takes its configuration along.
        || line.starts_with("- file /etc/cni/net.d/00-multus.conf")
}

#[test]
fn what_multus_thin_attached_weft_takes_down() {
    let Some(bench) = bench(host!(Feature::Bridge, Feature::Veth), Form::Thin) else { return };
    hand_over(&bench, &json!({ "clusterNetwork": format!("{CONFIGURATIONS}/10-home.conflist") }));
    hand_over(&bench, &Value::Null);
}

#[test]
fn what_multus_thick_attached_weft_takes_down_with_its_daemon_gone() {
    let Some(bench) = bench(host!(Feature::Bridge, Feature::Veth), Form::Thick) else { return };
    hand_over(&bench, &Value::Null);
}
