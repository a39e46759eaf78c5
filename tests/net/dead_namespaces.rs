//! Tests for a namespace that is gone: plugins get an empty `CNI_NETNS`, whatever path the journal or the
//! runtime has.
//!
//! ```text
//!   weft ─┬─ eth0  bridge br1
//!         └─ net1  a plugin whose DEL opens CNI_NETNS if it is set, as macvtap-cni, bond-cni and ovs-cni do
//! ```
//!
//! Source: CNI 1.1.0 §2 "DEL": `CNI_NETNS` may be unset.

use rig::Cluster;
use rig::cluster::{bridge, configuration, entry_path};
use serde_json::{Value, json};
use testkit::{Attachment, Feature, Host, host};

/// Path of the pod's namespace.
const NETNS: &str = "/run/netns/web";

/// Plugin that records each `CNI_NETNS`, and enters the namespace at DEL if it is set.
const ENTERING: &str = r#"#!/bin/sh
cat >/dev/null
echo "$CNI_COMMAND $CNI_NETNS" >>/run/cni/entered
case $CNI_COMMAND in
    ADD) echo '{"cniVersion":"1.1.0","interfaces":[]}' ;;
    DEL) test -z "$CNI_NETNS" || nsenter --net="$CNI_NETNS" true ;;
esac
"#;

fn world(host: &Host) -> (Cluster<'_>, Value) {
    let cluster = Cluster::new(host);
    host.write("/opt/cni/bin/entering", ENTERING);
    host.run(["chmod", "755", "/opt/cni/bin/entering"]);
    cluster.definition(
        "mv",
        &json!({ "cniVersion": "1.1.0", "name": "mv", "plugins": [{ "type": "entering" }] }),
    );
    cluster.pod("web", "mv");
    (cluster, configuration(&bridge("default", 1)))
}

/// Returns the calls of the plugin since the last call of this function.
fn entered(host: &Host) -> Vec<String> {
    let calls = host.read("/run/cni/entered").unwrap_or_default();
    host.write("/run/cni/entered", "");
    calls.lines().map(str::to_owned).collect()
}

/// Replaces the namespace by something else.
type Lose = fn(&Host);

const LOSSES: [(&str, Lose); 6] = [
    ("removed", |host| drop(host.run(["ip", "netns", "del", "web"]))),
    ("an ordinary file", |host| {
        host.run(["ip", "netns", "del", "web"]);
        host.write(NETNS, "");
    }),
    ("a directory", |host| {
        host.run(["ip", "netns", "del", "web"]);
        host.run(["mkdir", NETNS]);
    }),
    ("a link to itself", |host| {
        host.run(["ip", "netns", "del", "web"]);
        host.run(["ln", "-s", NETNS, NETNS]);
    }),
    ("another namespace", |host| {
        host.run(["ip", "netns", "del", "web"]);
        host.run(["ip", "netns", "add", "web"]);
    }),
    ("of another boot", |host| {
        let script = r#"sed -i 's|"namespace":"[0-9a-f]*|"namespace":"0|' /var/lib/weft/sandboxes/*.json"#;
        host.run(["sh", "-c", script]);
    }),
];

/// Removes whatever is at the path.
fn clear(host: &Host) {
    host.run(["sh", "-c", "ip netns del web 2>/dev/null; rm -rf /run/netns/web; true"]);
}

/// Ends a sandbox whose namespace is gone, in one way.
#[track_caller]
fn end(way: &str, weft: &mut Attachment<'_>, config: &Value) {
    match way {
        "DEL" => {
            weft.netns.clear();
            weft.del(config).success();
        }
        "DEL with the path" => drop(weft.del(config).success()),
        _ => drop(rig::gc(weft, config, Some(&[])).success()),
    }
}

#[test]
fn dead_netns_reaches_delegates_as_empty() {
    let host = host!(Feature::Bridge);
    let (cluster, config) = world(&host);
    for (label, lose) in LOSSES {
        for way in ["DEL", "DEL with the path", "GC"] {
            // The runtime's own path takes precedence over the identity in the journal.
            if way == "DEL with the path" && matches!(label, "another namespace" | "of another boot") {
                continue;
            }
            let pod = host.pod("web");
            let mut weft = cluster.attachment(&pod);
            weft.add(&config).success();
            let _ = entered(&host);
            lose(&host);
            end(way, &mut weft, &config);
            let calls = entered(&host);
            assert_eq!(calls.first().map(String::as_str), Some("DEL "), "{label}, {way}: {calls:?}");
            assert_eq!(cluster.entry(&pod), None, "{label}, {way}");
            clear(&host);
        }
    }
}

#[test]
fn dead_netns_of_a_killed_add_reaches_delegates_as_empty() {
    let host = host!(Feature::Bridge);
    let (cluster, config) = world(&host);
    let pod = host.pod("web");
    let weft = cluster.attachment(&pod);
    weft.add(&config).success();
    let text = host.read(entry_path(&pod)).expect("an entry");
    host.write(entry_path(&pod), text.lines().next().expect("a plan"));
    let _ = entered(&host);
    host.run(["ip", "netns", "del", "web"]);
    host.run(["ip", "netns", "add", "web"]);
    weft.add(&config).success();
    let calls = entered(&host);
    assert_eq!(calls[..2], ["DEL ".to_owned(), format!("ADD {NETNS}")], "the leftovers are of the old one");
    weft.del(&config).success();
    assert_eq!(entered(&host), [format!("DEL {NETNS}")]);
}

#[test]
fn living_netns_is_passed_on_without_cni_netns() {
    let host = host!(Feature::Bridge);
    let (cluster, config) = world(&host);
    let pod = host.pod("web");
    let mut weft = cluster.attachment(&pod);
    weft.add(&config).success();
    let _ = entered(&host);
    weft.netns.clear();
    weft.del(&config).success();
    assert_eq!(entered(&host), [format!("DEL {NETNS}")]);
}
