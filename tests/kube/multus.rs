//! The real Multus and weft on one node with a real API server: both attach the same pods, status and results
//! are compared, and weft removes attachments that Multus made.
//!
//! ```text
//!   multus (thin) or multus-shim + multus-daemon (thick), Go plugins ─► network-status, result, Events ─┐ compared
//!   weft import multus ─► configuration ─► weft, agent ────────────────► network-status, result, Events ─┘
//! ```
//!
//! - weft runs with the configuration that `weft import multus` prints, once with the Go plugins and once with the
//!   built-in ones.
//! - An intended difference must have a row in [`INTENDED`] and a line in DEVIATIONS.md. A row without a
//!   difference fails, too.
//! - `PEERS` contains Multus. Without it, the tests are skipped.
//!
//! Source: Multus v4.3; multi-network specification (NPWG) v1.3, section 5.

mod difference;

use std::collections::BTreeSet;

use difference::differences;
use rig::agent::{NAMESPACE, NODE};
use rig::machine::until;
use rig::multus::{CACHE_DIRECTORY, DAEMON, DAEMON_CONFIG, Form};
use rig::peers::peers;
use rig::{Agent, Machine, Multus, links};
use serde_json::{Value, json};
use testkit::{Attachment, Feature, Finished, Pod, host};

const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";
const CONFIGURATIONS: &str = "/etc/cni/net.d";
const STORE: &str = "/var/lib/cni/networks";

/// Pods by name, with the networks that they select.
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

/// Intended differences: the end of a line, and the reason.
const INTENDED: &[(&str, &str)] = &[
    (".default: only weft, false", "the examples of the NPWG specification contain it (C5)"),
    (
        r#".gateway[0]: Multus "<nil>", weft "10.10.0.1""#,
        "a default route through the gateway of the subnet (M16)",
    ),
    (r#".gateway: only Multus, ["<nil>"]"#, "the default route was moved away (M16)"),
    (r#".routes: only Multus, [{"dst":"0.0.0.0/0"}]"#, "the default route was moved away (M16)"),
    (r#".gateway: only weft, ["10.11.0.1"]"#, "the default route was moved here (M16)"),
    (r#".default-route: only weft, ["10.11.0.1"]"#, "NPWG specification, section 5.3.6"),
];

/// Node with one form of Multus and weft, and the networks.
struct Comparison {
    agent: Agent,
    multus: Multus,
    form: Form,
}

/// Further intended differences of thick Multus since 4.3: the result has the version in the daemon's configuration,
/// not that in the request.
const OLDER_RESULT: &[&str] = &[
    r#".cniVersion: Multus "0.3.1", weft "1.0.0""#,
    r#".version: only Multus, "4""#,
    ".dns: only Multus, {}",
];

/// Result, network-status and Events of one attachment.
#[derive(Debug)]
struct Attached {
    result: Value,
    status: Value,
    events: BTreeSet<String>,
}

fn range(subnet: u8) -> Value {
    json!({ "type": "host-local", "ranges": [[{ "subnet": format!("10.{subnet}.0.0/24") }]] })
}

/// Default network.
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
    single["x-other"] = "kept".into();
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

/// Starts a node with Multus and weft; `None`, and the test is skipped, if one is not available.
fn comparison(host: testkit::Host, form: Form) -> Option<Comparison> {
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
    Some(Comparison { agent, multus, form })
}

impl Comparison {
    /// Writes Multus's configuration for the runtime: the one from the daemon, or with these fields.
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

    /// Creates a pod that selects these networks; returns uid and namespace.
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

    /// Configuration of weft that `weft import multus` prints.
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

    /// Attaches a pod, reads status and Events, and deletes the attachment. Addresses of earlier pods are removed before.
    fn watch(&self, call: &Attachment<'_>, config: &Value, name: &str) -> Attached {
        let machine = &self.agent.machine;
        machine.run(["rm", "-rf", STORE]);
        // No CHECK follows: that of the Go plugin `bridge` fails for a network without IPAM.
        let add = || Some(call.call("ADD", config.to_string())).filter(|done| done.code == Some(0));
        let result = until("ADD", add).json();
        let status = Value::from(self.agent.status(name));
        let count = status.as_array().map_or(0, Vec::len);
        let sent = || {
            let events: BTreeSet<String> =
                self.agent.events(name).iter().flat_map(|event| added(event)).collect();
            (events.len() >= count).then_some(events)
        };
        // Thin Multus ends before its Events are sent, so they cannot be awaited.
        let events = match self.form == Form::Thin && call.plugin != "weft" {
            true => BTreeSet::new(),
            false => until("Events", sent),
        };
        call.del(config).success();
        Attached { result, status, events }
    }
}

/// Returns the sentences of an Event about added interfaces, of which Multus has one in each Event. Multus writes addresses
/// with prefix lengths, which are left out.
fn added(event: &str) -> Vec<String> {
    let sentences = event.strip_prefix("AddedInterface ").unwrap_or_default().split("; ");
    let normalized = sentences.filter_map(|sentence| {
        let (before, rest) = sentence.split_once('[')?;
        let (addresses, after) = rest.split_once(']')?;
        let addresses: Vec<&str> =
            addresses.split(' ').map(|address| address.split('/').next().unwrap_or_default()).collect();
        Some(format!("{before}{addresses:?}{after}"))
    });
    normalized.collect()
}

/// Attaches the same pods by both and fails on any difference that is not intended.
fn compare(comparison: &Comparison) {
    let mut seen = BTreeSet::new();
    let mut faults = Vec::new();
    let multus = comparison.configure(&Value::Null);
    let weft = comparison.translated();
    for (name, networks) in PODS {
        let (uid, pod) = comparison.pod(name, networks);
        let by_multus = comparison.watch(&comparison.as_multus(&pod, name, &uid), &multus, name);
        for builtin in ["never", "always"] {
            let config = rig::with(&weft, &json!({ "builtin": builtin }));
            let alike = format!("{name}-{builtin}");
            let (uid, pod) = comparison.pod(&alike, networks);
            let by_weft = comparison.watch(&comparison.agent.attachment(&pod, &alike, &uid), &config, &alike);
            let parts = [
                ("result", &by_multus.result, &by_weft.result),
                ("status", &by_multus.status, &by_weft.status),
            ];
            for (part, multus, weft) in parts {
                for line in differences(multus, weft, networks) {
                    if comparison.form == Form::Thick && OLDER_RESULT.iter().any(|end| line.ends_with(end)) {
                        continue;
                    }
                    match INTENDED.iter().find(|(end, _)| line.ends_with(end)) {
                        Some((end, _)) => drop(seen.insert(*end)),
                        None => faults.push(format!("{name} ({builtin}), {part}{line}")),
                    }
                }
            }
            if comparison.form == Form::Thick && by_multus.events != by_weft.events {
                faults.push(format!(
                    "{name} ({builtin}), Events: Multus {:?}, weft {:?}",
                    by_multus.events, by_weft.events
                ));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    for (end, why) in INTENDED {
        assert!(seen.contains(end), "{end} ({why}): no difference anywhere");
    }
}

#[test]
fn multus_thin_and_weft_write_the_same_status() {
    let Some(comparison) = comparison(host!(Feature::Bridge, Feature::Veth), Form::Thin) else { return };
    compare(&comparison);
}

#[test]
fn multus_thick_and_weft_write_the_same_status() {
    let Some(comparison) = comparison(host!(Feature::Bridge, Feature::Veth), Form::Thick) else { return };
    compare(&comparison);
}

/// Attaches pods by Multus with these configuration fields, and deletes them by weft.
fn delete_by_weft(comparison: &Comparison, keys: &Value) {
    let machine = &comparison.agent.machine;
    let multus = comparison.configure(keys);
    let before = machine.snapshot();
    let mut attached = Vec::new();
    for (name, networks) in PODS {
        let name = format!("{name}-{}", attached.len() + 100 * usize::from(!keys.is_null()));
        let (uid, pod) = comparison.pod(&name, networks);
        let shape = pod.snapshot();
        // As a kubelet does: Multus waits 250 ms for the API server, which is too short on a busy machine.
        let call = comparison.as_multus(&pod, &name, &uid);
        until("Multus's ADD", || call.add(&multus).code.filter(|code| *code == 0));
        let written = Value::from(comparison.agent.status(&name));
        attached.push((name, uid, pod, shape, written));
    }
    let done = comparison.import(&["--apply"]).success();
    for (name, ..) in &attached {
        assert!(done.stderr.contains(&format!("{NAMESPACE}/{name} (")), "{name}: {done}");
    }
    assert_eq!(done.stderr.matches(": imported").count(), attached.len(), "{done}");
    let weft = comparison.translated();
    if comparison.form == Form::Thick {
        machine.stop(DAEMON, "TERM");
    }
    let listed =
        machine.command(rig::parts::text(&testkit::binary("weft"))).args(["list", "-o", "json"]).finish();
    let listed = listed.success().json();
    until("attachments that Go's bridge cannot check are counted", || {
        comparison.agent.metric("weft_unchecked_attachments ").filter(|count| *count > 0.0)
    });
    for (name, uid, pod, shape, written) in &attached {
        let sandbox =
            listed.as_array().into_iter().flatten().find(|sandbox| sandbox["pod"]["name"] == **name);
        let shown =
            differences(written, &sandbox.expect("a listed sandbox")["networkStatus"], "02:00:00:00:00");
        let faults: Vec<&String> =
            shown.iter().filter(|line| !INTENDED.iter().any(|(end, _)| line.ends_with(end))).collect();
        assert!(faults.is_empty(), "{name}: {faults:?}");
        let call = comparison.agent.attachment(pod, name, uid);
        // Multus records that a requested default route was moved, although its release of the netlink library leaves the route
        // in place.
        if !name.starts_with("routed") {
            call.check(&rig::with(&weft, &json!({ "cniVersion": "1.0.0" }))).success();
        }
        call.del(&weft).success();
        call.del(&weft).success();
        assert_eq!(links(pod), Vec::<String>::new(), "{name}");
        rig::assert_pod_unchanged(name, pod, shape);
    }
    // Last step of the documented procedure; bridges remain, as with any plugin.
    machine.run(["rm", "-r", CACHE_DIRECTORY]);
    let changes = rig::changes(&before, &machine.snapshot());
    let remaining: Vec<&str> = changes.lines().filter(|line| !remains_on_a_node(line)).collect();
    assert!(remaining.is_empty(), "{remaining:#?}");
}

/// Whether a change remains after the first pod of a node, whichever plugin attached it.
fn remains_on_a_node(line: &str) -> bool {
    ["link br", "qdisc br", "address ", "route ", "neigh", "sysctl", "/lock", "/run/netns/", "/proc/sys"]
        .iter()
        .any(|word| line.contains(word))
        && !line.contains("veth")
        || line.starts_with("+ directory ")
        // A daemon that ends removes its configuration.
        || line.starts_with("- file /etc/cni/net.d/00-multus.conf")
        // The import saves it, for the way back.
        || line.contains(" file /var/lib/weft/multus/00-multus.conf")
}

#[test]
fn multus_thin_attachments_are_removed_by_weft() {
    let Some(comparison) = comparison(host!(Feature::Bridge, Feature::Veth), Form::Thin) else { return };
    delete_by_weft(&comparison, &json!({ "clusterNetwork": format!("{CONFIGURATIONS}/10-home.conflist") }));
    delete_by_weft(&comparison, &Value::Null);
}

#[test]
fn multus_thick_attachments_are_removed_without_its_daemon() {
    let Some(comparison) = comparison(host!(Feature::Bridge, Feature::Veth), Form::Thick) else { return };
    delete_by_weft(&comparison, &Value::Null);
}
