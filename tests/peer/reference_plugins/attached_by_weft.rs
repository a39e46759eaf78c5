//! Tests that the rows in the table also work as networks on a node: `weft` attaches each, CHECK succeeds,
//! and a doctor without an API server finds nothing wrong.

use rig::with;
use serde_json::{Value, json};
use testkit::{Feature, Host, host};

use super::table::{BASES, ROWS};
use super::{Base, add_device, config};

/// Configuration of the node.
const FILE: &str = "/etc/cni/net.d/00-weft.conflist";
/// Version in which the rows are attached.
const VERSION: &str = "1.0.0";

#[test]
fn reference_plugins_rows_pass_check_and_doctor() {
    let _ = host!(Feature::Bridge, Feature::Macvlan, Feature::IptablesNft, Feature::Tbf, Feature::Ifb);
    let (mut wrong, mut attached) = (Vec::new(), 0);
    // Kinds of links that this kernel may lack are attached in the lane `vm`, and an IPAM plugin alone is no network.
    let is_network = |plugin: &str| {
        !["ipvlan", "vlan", "dummy", "tap", "vrf", "loopback", "static", "host-local"].contains(&plugin)
    };
    for row in ROWS.iter().filter(|row| is_network(row.plugin)) {
        let base = BASES.iter().find(|base| base.plugin == row.plugin).expect("a base");
        let Some(found) = attach(base, row.keys) else { continue };
        attached += 1;
        if !found.is_empty() {
            wrong.push(format!("{} {}: {found}", row.plugin, row.keys));
        }
    }
    assert!(attached > 60, "only {attached} rows can be attached");
    assert!(wrong.is_empty(), "{} of {attached} rows:\n{}", wrong.len(), wrong.join("\n"));
}

/// Attaches a row as the default network of a node. Returns what is wrong; `None` if the ADD is refused.
fn attach(base: &Base, keys: &str) -> Option<String> {
    let host = Host::new();
    rig::install(&host);
    let _outside = rig::traffic::outside(&host);
    add_device(&host);
    let pod = host.pod("a");
    let mut plugins: Vec<Value> = Vec::new();
    if !base.front.is_empty() {
        plugins.push(serde_json::from_str(base.front).expect("the front's configuration"));
    }
    plugins.push(config(base, keys, VERSION));
    plugins.iter_mut().for_each(|plugin| {
        let plugin = plugin.as_object_mut().expect("a plugin");
        // These keys come from the runtime: a network on disk has none.
        for key in ["name", "cniVersion", "CNI_ARGS", "runtimeConfig", "prevResult"] {
            plugin.remove(key);
        }
    });
    let network = json!({ "cniVersion": VERSION, "name": "net", "plugins": plugins });
    let weft = json!({ "type": "weft", "manifestDir": "/etc/cni/manifests", "delegates": [network] });
    host.run(["mkdir", "-p", "/etc/cni/net.d", "/etc/cni/manifests"]);
    host.write(FILE, json!({ "cniVersion": VERSION, "name": "weft", "plugins": [weft] }).to_string());
    let weft = with(&weft, &json!({ "cniVersion": VERSION, "name": "weft" }));
    let attachment = host.attachment("weft", &pod, "eth0");
    let added = attachment.call("ADD", weft.to_string());
    if added.code != Some(0) {
        return None;
    }
    let known = with(&weft, &json!({ "prevResult": added.json() }));
    let mut wrong = Vec::new();
    let checked = attachment.check(&known);
    if checked.code != Some(0) {
        wrong.push(format!("CHECK: {}", checked.stdout));
    }
    let doctor =
        host.command(testkit::binary("weft")).clean_environment().args(["doctor", "-o", "json"]).finish();
    let findings = doctor.json();
    // The configuration of a test needs no agent, and nothing is attached before the runtime reads it.
    if findings.as_array().is_none_or(|findings| !findings.is_empty()) {
        wrong.push(format!("doctor: {findings}"));
    }
    let deleted = attachment.del(&known);
    if deleted.code != Some(0) {
        wrong.push(format!("DEL: {}", deleted.stdout));
    }
    Some(wrong.join("; "))
}
