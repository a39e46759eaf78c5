//! Every plugin beside the Go one of the same name: one table of configurations, run through both on hosts that are
//! alike; the same answers, the same links, addresses, routes, rules, queues and filters.
//!
//! ```text
//!   host ── br0, up0 ── outside, dev0        a: pod          once with weft-cni, once with /usr/lib/cni (Debian's 1.1.1)
//! ```
//!
//! Rules: a difference that is meant stands in its row with its reason, and is a line of DEVIATIONS.md; a row that
//! says so and shows no difference fails, too. Names and hardware addresses that are made up are alike if they
//! stand in the same places. `PEERS` names other binaries than Debian's, newer ones; rows that need newer ones are skipped
//! without.

mod picture;
mod table;

use std::collections::BTreeMap;
use std::path::Path;

use picture::{Alike, picture};
use rig::peers::{are_newest, go_plugins};
use rig::{in_version, with};
use serde_json::{Value, json};
use table::{BASES, Base, Difference, OPTIONS, ROWS};
use testkit::{Attachment, Feature, Finished, Host, Pod, host};

/// The versions that Debian's plugins know.
const VERSIONS: [&str; 6] = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0"];

const ADD: &str = "1 ADD";
const CHECK: &str = "5 CHECK";
const LEFT: &str = "8 left of a failed ADD";

/// What one of the two did, by step.
type Story = BTreeMap<&'static str, String>;

/// A plugin's base configuration with a row's keys.
fn config(base: &Base, keys: &str, version: &str) -> Value {
    let parse =
        |text: &str| serde_json::from_str::<Value>(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    let common = json!({ "name": "net", "type": base.plugin });
    in_version(&with(&with(&common, &parse(base.keys)), &parse(keys)), version)
}

/// The world of a row: the plugin that stands in front, if one does, has made `eth0`.
fn world(base: &Base, version: &str) -> (Host, Pod, Pod, Option<Value>) {
    let host = Host::new();
    rig::install(&host);
    let outside = rig::traffic::outside(&host);
    host.run([
        "ip",
        "link",
        "add",
        "dev0",
        "address",
        "02:00:00:00:0d:01",
        "type",
        "veth",
        "peer",
        "name",
        "peer0",
    ]);
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

fn story(base: &Base, keys: &str, version: &str, directory: &Path) -> Story {
    let (host, _outside, pod, front) = world(base, version);
    let program = directory.join(base.plugin).display().to_string();
    let mut attachment: Attachment<'_> = host.attachment(&program, &pod, "eth0");
    attachment.path = directory.display().to_string();
    let mut config = config(base, keys, version);
    if let Some(Value::String(args)) = config.as_object_mut().and_then(|config| config.remove("CNI_ARGS")) {
        attachment.args = args;
    }
    // Versions before 0.3.0 know no chains.
    if let Some(front) = front.filter(|_| version >= "0.3.0") {
        config["prevResult"] = front;
    }
    let mut alike = Alike::default();
    let mut story = Story::new();
    let outcome =
        |finished: &Finished| if finished.code == Some(0) { "succeeds" } else { "fails" }.to_owned();
    let before = picture(&host);
    let added = attachment.add(&config);
    story.insert(ADD, outcome(&added));
    if added.code == Some(0) {
        let result = added.json();
        // What is there first: names are made up in the order in which they stand there.
        story.insert("2 pod after ADD", alike.text(&picture(&pod)));
        story.insert("3 host after ADD", alike.text(&picture(&host)));
        story.insert("4 result", alike.text(&picture::said(&result)));
        if version >= "0.4.0" {
            let known = with(&config, &json!({ "prevResult": result }));
            story.insert(CHECK, outcome(&attachment.check(&known)));
        }
        config["prevResult"] = result;
    }
    story.insert("6 DEL", outcome(&attachment.del(&config)));
    story.insert("7 pod after DEL", alike.text(&picture(&pod)));
    let after = picture(&host);
    let left = added.code != Some(0) && after != before;
    story.insert(LEFT, if left { alike.text(&after) } else { "nothing".to_owned() });
    if added.code == Some(0) {
        story.insert("8 host after DEL", alike.text(&after));
    }
    story.insert("9 DEL again", outcome(&attachment.del(&config)));
    story
}

/// Is it better than theirs in one of the ways that hold for all plugins? A DEL succeeds (S15), and a failed ADD leaves
/// nothing.
fn is_better(step: &str, our: &str, their: Option<&str>) -> bool {
    match step {
        "6 DEL" | "9 DEL again" => our == "succeeds" && their == Some("fails"),
        LEFT => our == "nothing",
        _ => false,
    }
}

/// Runs a row through both; what is different and should not be, and the other way round.
fn differences(base: &Base, keys: &str, differs: &[Difference], version: &str) -> Vec<String> {
    let ours = story(base, keys, version, Path::new("/opt/cni/bin"));
    let theirs = story(base, keys, version, &go_plugins());
    let mut found = Vec::new();
    for (step, our) in &ours {
        let their = theirs.get(step);
        let applies = |versions: &[&str]| versions.is_empty() || versions.contains(&version);
        let meant = differs.iter().find(|(differing, _, versions)| differing == step && applies(versions));
        // Where only one of them succeeds, there is nothing to compare.
        if (*step != ADD && ours[ADD] != theirs[ADD]) || is_better(step, our, their.map(String::as_str)) {
            continue;
        }
        let title = format!("{} {} ({version}), {step}", base.plugin, keys);
        let is_plain = keys == "{}";
        // What holds for the base may show in a row, and need not.
        let may = !is_plain && base.differs.iter().any(|(differing, ..)| differing == step);
        match (their == Some(our), meant) {
            (true, None) | (false, Some(_)) => {}
            // Newer ones may have been mended.
            (true, Some(_)) if are_newest() => {}
            (false, None) if may => {}
            (true, Some((_, why, _))) => found.push(format!("{title}: no difference, though «{why}»")),
            (false, None) => found.push(format!(
                "{title}:\n{}",
                picture::difference(our, their.map_or("(not reached)", String::as_str))
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

/// One test a plugin.
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
    fn bridge_is_as_upstreams() { "bridge" needs Bridge needs Veth }
    fn macvlan_is_as_upstreams() { "macvlan" needs Macvlan }
    fn ipvlan_is_as_upstreams() { "ipvlan" needs Ipvlan }
    fn vlan_is_as_upstreams() { "vlan" needs Vlan }
    fn dummy_is_as_upstreams() { "dummy" needs NewGoPlugins needs Dummy }
    fn tap_is_as_upstreams() { "tap" needs NewGoPlugins needs Tun }
    fn ptp_is_as_upstreams() { "ptp" needs Veth }
    fn loopback_is_as_upstreams() { "loopback" needs Veth }
    fn host_device_is_as_upstreams() { "host-device" needs Veth }
    fn tuning_is_as_upstreams() { "tuning" needs Veth }
    fn sbr_is_as_upstreams() { "sbr" needs Veth }
    fn bandwidth_is_as_upstreams() { "bandwidth" needs Tbf needs Ifb }
    fn portmap_is_as_upstreams() { "portmap" needs IptablesNft }
    fn firewall_is_as_upstreams() { "firewall" needs IptablesNft }
    fn vrf_is_as_upstreams() { "vrf" needs Vrf }
    fn static_is_as_upstreams() { "static" needs Veth }
    fn host_local_is_as_upstreams() { "host-local" needs Veth }
}

#[test]
fn the_table_is_large_and_every_row_has_a_base() {
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
