//! Tests that compare every plugin with the Go plugin that has the same name: each configuration in a table
//! runs through both on equal hosts. Results, links, addresses, routes, rules, queues and filters must be
//! equal.
//!
//! ```text
//!   host ── br0, up0 ── outside, dev0        a: pod          once with weft-cni, once with /usr/lib/cni (Debian's 1.1.1)
//! ```
//!
//! Rules: an intended difference is in the row with a reason, and in DEVIATIONS.md. A row with an intended difference
//! that does not occur fails, too. Generated names and hardware addresses are equal if they occur in the same places.
//! `PEERS` names newer binaries than Debian's; rows that need newer ones are skipped without it.

mod attached_by_weft;
mod kernel_state;
mod table;

use std::collections::BTreeMap;
use std::path::Path;

use kernel_state::{Placeholders, kernel_state};
use rig::peers::{are_newest, go_plugins};
use rig::{in_version, with};
use serde_json::{Value, json};
use table::{BASES, Base, Difference, OPTIONS, ROWS};
use testkit::{Attachment, Feature, Finished, Host, Pod, host};

/// CNI versions that Debian's plugins support.
const VERSIONS: [&str; 6] = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0"];

const ADD: &str = "1 ADD";
const CHECK: &str = "5 CHECK";
const LEFT: &str = "8 left of a failed ADD";

/// State and results of one plugin, by step.
type Outcomes = BTreeMap<&'static str, String>;

/// Returns a plugin's base configuration with a row's options.
fn config(base: &Base, keys: &str, version: &str) -> Value {
    let parse =
        |text: &str| serde_json::from_str::<Value>(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    let common = json!({ "name": "net", "type": base.plugin });
    in_version(&with(&with(&common, &parse(base.keys)), &parse(keys)), version)
}

/// Adds the device that `host-device` moves, with the peer on the host.
fn add_device(host: &Host) {
    let words = "ip link add dev0 address 02:00:00:00:0d:01 type veth peer name peer0";
    host.run(words.split(' '));
}

/// Creates the host of a row: the previous plugin, if there is one, has created `eth0`.
fn world(base: &Base, version: &str) -> (Host, Pod, Pod, Option<Value>) {
    let host = Host::new();
    rig::install(&host);
    let outside = rig::traffic::outside(&host);
    add_device(&host);
    let pod = host.pod("a");
    let front = (!base.front.is_empty()).then(|| {
        let front: Value = serde_json::from_str(base.front).expect("the front's configuration");
        let front = in_version(&with(&json!({ "name": "net" }), &front), "1.0.0");
        let plugin = front["type"].as_str().expect("a type").to_owned();
        let result = host.attachment(&plugin, &pod, "eth0").add(&front).success().json();
        in_version(&result, version)
    });
    (host, outside, pod, front)
}

fn outcomes(base: &Base, keys: &str, version: &str, directory: &Path) -> Outcomes {
    let (host, _outside, pod, front) = world(base, version);
    let program = directory.join(base.plugin).display().to_string();
    let mut attachment: Attachment<'_> = host.attachment(&program, &pod, "eth0");
    attachment.path = directory.display().to_string();
    let mut config = config(base, keys, version);
    if let Some(Value::String(args)) = config.as_object_mut().and_then(|config| config.remove("CNI_ARGS")) {
        attachment.args = args;
    }
    // CNI versions before 0.3.0 have no chains.
    if let Some(front) = front.filter(|_| version >= "0.3.0") {
        config["prevResult"] = front;
    }
    let mut placeholders = Placeholders::default();
    let mut outcomes = Outcomes::new();
    let outcome =
        |finished: &Finished| if finished.code == Some(0) { "succeeds" } else { "fails" }.to_owned();
    let before = kernel_state(&host);
    let added = attachment.add(&config);
    outcomes.insert(ADD, outcome(&added));
    if added.code == Some(0) {
        let result = added.json();
        // The pod's state first: placeholders are numbered by first occurrence.
        outcomes.insert("2 pod after ADD", placeholders.text(&kernel_state(&pod)));
        outcomes.insert("3 host after ADD", placeholders.text(&kernel_state(&host)));
        outcomes.insert("4 result", placeholders.text(&kernel_state::normalized_result(&result)));
        if version >= "0.4.0" {
            let known = with(&config, &json!({ "prevResult": result }));
            outcomes.insert(CHECK, outcome(&attachment.check(&known)));
        }
        config["prevResult"] = result;
    }
    outcomes.insert("6 DEL", outcome(&attachment.del(&config)));
    outcomes.insert("7 pod after DEL", placeholders.text(&kernel_state(&pod)));
    let after = kernel_state(&host);
    let left = added.code != Some(0) && after != before;
    outcomes.insert(LEFT, if left { placeholders.text(&after) } else { "nothing".to_owned() });
    if added.code == Some(0) {
        outcomes.insert("8 host after DEL", placeholders.text(&after));
    }
    outcomes.insert("9 DEL again", outcome(&attachment.del(&config)));
    outcomes
}

/// Whether weft is better in one of the ways that hold for all plugins: a DEL succeeds (S15), or a failed ADD
/// leaves nothing.
fn is_better(step: &str, weft_outcome: &str, go_outcome: Option<&str>) -> bool {
    match step {
        "6 DEL" | "9 DEL again" => weft_outcome == "succeeds" && go_outcome == Some("fails"),
        LEFT => weft_outcome == "nothing",
        _ => false,
    }
}

/// Runs a row through both plugins. Returns unintended differences, and intended ones that do not occur.
fn differences(base: &Base, keys: &str, differs: &[Difference], version: &str) -> Vec<String> {
    let weft = outcomes(base, keys, version, Path::new("/opt/cni/bin"));
    let go = outcomes(base, keys, version, &go_plugins());
    let mut found = Vec::new();
    if weft.get(CHECK).is_some_and(|outcome| outcome != "succeeds") {
        found.push(format!("{} {keys} ({version}): CHECK fails after an ADD that succeeded", base.plugin));
    }
    for (step, weft_outcome) in &weft {
        let go_outcome = go.get(step);
        let applies = |versions: &[&str]| versions.is_empty() || versions.contains(&version);
        let meant = differs.iter().find(|(differing, _, versions)| differing == step && applies(versions));
        // If only one of them succeeds, there is nothing to compare.
        if (*step != ADD && weft[ADD] != go[ADD])
            || is_better(step, weft_outcome, go_outcome.map(String::as_str))
        {
            continue;
        }
        let title = format!("{} {} ({version}), {step}", base.plugin, keys);
        let is_plain = keys == "{}";
        // A difference of the base may or may not occur in a row.
        let may = !is_plain && base.differs.iter().any(|(differing, ..)| differing == step);
        match (go_outcome == Some(weft_outcome), meant) {
            (true, None) | (false, Some(_)) => {}
            // Newer Go plugins may be fixed.
            (true, Some(_)) if are_newest() => {}
            (false, None) if may => {}
            (true, Some((_, why, _))) => found.push(format!("{title}: no difference, though «{why}»")),
            (false, None) => found.push(format!(
                "{title}:\n{}",
                kernel_state::difference(weft_outcome, go_outcome.map_or("(not reached)", String::as_str))
            )),
        }
    }
    found
}

fn compare(plugin: &str) {
    let base = BASES.iter().find(|base| base.plugin == plugin).expect("a base");
    let mut found = Vec::new();
    let mut count = 0;
    for row in ROWS.iter().filter(|row| row.plugin == plugin && (are_newest() || !row.is_newer)) {
        found.extend(differences(base, row.keys, row.differs, "1.0.0"));
        count += 1;
    }
    for version in VERSIONS.into_iter().chain(are_newest().then_some("1.1.0")) {
        if base.front.is_empty() || version >= "0.3.0" {
            found.extend(differences(base, "{}", base.differs, version));
            count += 1;
        }
    }
    assert!(found.is_empty(), "{} differences in {count} rows:\n{}", found.len(), found.join("\n\n"));
}

/// Defines one test for each plugin.
macro_rules! plugins {
    ($(fn $name:ident() { $plugin:literal $(needs $feature:ident)* })*) => {$(
        #[test]
        fn $name() {
            let _ = host!(Feature::GoPlugins $(, Feature::$feature)*);
            compare($plugin);
        }
    )*};
}

plugins! {
    fn bridge_equals_the_go_plugin() { "bridge" needs Bridge needs Veth }
    fn macvlan_equals_the_go_plugin() { "macvlan" needs Macvlan }
    fn ipvlan_equals_the_go_plugin() { "ipvlan" needs Ipvlan }
    fn vlan_equals_the_go_plugin() { "vlan" needs Vlan }
    fn dummy_equals_the_go_plugin() { "dummy" needs NewGoPlugins needs Dummy }
    fn tap_equals_the_go_plugin() { "tap" needs NewGoPlugins needs Tun }
    fn ptp_equals_the_go_plugin() { "ptp" needs Veth }
    fn loopback_equals_the_go_plugin() { "loopback" needs Veth }
    fn host_device_equals_the_go_plugin() { "host-device" needs Veth }
    fn tuning_equals_the_go_plugin() { "tuning" needs Veth }
    fn sbr_equals_the_go_plugin() { "sbr" needs Veth }
    fn bandwidth_equals_the_go_plugin() { "bandwidth" needs Tbf needs Ifb }
    fn portmap_equals_the_go_plugin() { "portmap" needs IptablesNft }
    fn firewall_equals_the_go_plugin() { "firewall" needs IptablesNft }
    fn vrf_equals_the_go_plugin() { "vrf" needs Vrf }
    fn static_equals_the_go_plugin() { "static" needs Veth }
    fn host_local_equals_the_go_plugin() { "host-local" needs Veth }
}

#[test]
fn reference_plugins_table_covers_every_option() {
    let chained = |base: &Base| if base.front.is_empty() { 6 } else { 4 };
    let rows: usize = ROWS.len() + BASES.iter().map(chained).sum::<usize>();
    assert!(rows >= 150, "{rows} rows");
    for (plugin, options) in OPTIONS {
        let own = ROWS.iter().filter(|row| row.plugin == *plugin).map(|row| row.keys);
        let own: Vec<&str> =
            own.chain(BASES.iter().filter(|base| base.plugin == *plugin).map(|base| base.keys)).collect();
        for option in options.split_whitespace() {
            assert!(own.iter().any(|keys| keys.contains(&format!("\"{option}\""))), "{plugin}: {option}");
        }
    }
    for row in ROWS {
        assert!(BASES.iter().any(|base| base.plugin == row.plugin), "{}", row.plugin);
    }
}
