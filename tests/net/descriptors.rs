//! Tests for calls with few file descriptors: how many they need depends on neither a pod's networks nor a
//! node's sandboxes.
//!
//! ```text
//!   prlimit --nofile=N weft ── br1 … br30 ── pod web, and entries of sandboxes that are gone
//! ```

use rig::cluster::{bridge, configuration, entry_path};
use rig::{Cluster, assert_nothing_left, links};
use serde_json::{Value, json};
use testkit::{Attachment, Feature, Host, host};

/// Limit of open files: the standard streams, and less than one for each attachment of these tests.
const FEW: &str = "--nofile=24";

/// Bridge network whose plugins use the packet filter and connection tracking.
fn filtered(name: &str, subnet: u8) -> Value {
    let mut list = bridge(name, subnet);
    list["plugins"][0]["ipMasq"] = true.into();
    let plugins = list["plugins"].as_array_mut().expect("plugins");
    plugins.push(json!({ "type": "portmap", "capabilities": { "portMappings": true } }));
    plugins.push(json!({ "type": "firewall" }));
    list
}

/// Lets the calls of an attachment have few descriptors.
fn limit(attachment: &mut Attachment<'_>) {
    attachment.through = vec!["prlimit".into(), FEW.into()];
}

/// Creates networks `n1`, `n2` …, and returns a selection with all of them.
fn define(cluster: &Cluster<'_>, count: u8) -> String {
    let names = (1..=count).map(|number| {
        cluster.definition(&format!("n{number}"), &filtered(&format!("n{number}"), 100 + number));
        format!("n{number}")
    });
    names.collect::<Vec<_>>().join(",")
}

/// Writes sandbox entries like a pod's, but for containers with other ids whose namespaces are gone.
fn copy_entries(host: &Host, own: &str, count: u32) {
    let entry = host.read(own).expect("an entry");
    let id = own.rsplit('/').next().and_then(|name| name.strip_suffix(".json")).expect("an id");
    let parsed: Value = serde_json::Deserializer::from_str(&entry).into_iter().next().unwrap().unwrap();
    let netns = parsed["netns"].as_str().expect("a path").to_owned();
    for number in 0..count {
        let other = format!("gone{number:04}");
        let text = entry.replace(id, &other).replace(&netns, "/run/netns/gone");
        host.write(own.replace(id, &other), text);
    }
}

#[test]
fn descriptors_of_every_verb_do_not_grow_with_the_networks() {
    let host = host!(Feature::Bridge, Feature::NftMasquerade);
    let cluster = Cluster::new(&host);
    cluster.pod("web", define(&cluster, 30));
    let config = configuration(&filtered("home", 1));
    let pod = host.pod("web");
    let mut weft = cluster.attachment(&pod);
    weft.add(&config).success();
    weft.del(&config).success();
    let before = host.snapshot();
    limit(&mut weft);
    let added = weft.add(&config).success().json();
    assert_eq!(links(&pod).len(), 31);
    let mut known = config.clone();
    known["prevResult"] = added;
    weft.check(&known).success();
    weft.del(&config).success();
    assert_nothing_left("31 networks", &host, &before);
}

#[test]
fn descriptors_of_gc_do_not_grow_with_the_sandboxes() {
    let host = host!(Feature::Bridge, Feature::NftMasquerade);
    let cluster = Cluster::new(&host);
    cluster.pod("web", define(&cluster, 3));
    let config = configuration(&filtered("home", 1));
    let pod = host.pod("web");
    let mut weft = cluster.attachment(&pod);
    weft.add(&config).success();
    copy_entries(&host, &entry_path(&pod), 50);
    limit(&mut weft);
    rig::gc(&weft, &config, Some(&[(&pod.container_id(), "eth0")])).success();
    let files = host.run(["ls", "/var/lib/weft/sandboxes"]);
    let entries: Vec<&str> = files.lines().filter_map(|file| file.strip_suffix(".json")).collect();
    assert_eq!(entries, [pod.container_id()]);
    weft.del(&config).success();
}
