//! Tests of a built-in plugin that crashes: the call after it fails for this attachment alone.
//!
//! ```text
//!   weft ─┬─ eth0  bridge br1          the call dies, and the next one executes each plugin as a program
//!         ├─ net1  bridge br2  ← crashes
//!         └─ net2  bridge br3
//! ```
//!
//! The crash is requested with a variable that only programs with debug assertions read.

use rig::cluster::{bridge, configuration, entry_path};
use rig::{Cluster, assert_nothing_left, links};
use serde_json::{Value, json};
use testkit::{Attachment, Feature, Finished, Host, Pod, Snapshot, host};

const KINDS: [&str; 3] = ["panic", "abort", "overflow"];

/// Attaches and detaches the pod once, so that what remains on the host exists.
fn world(host: &Host) -> (Cluster<'_>, Value, Snapshot) {
    let cluster = Cluster::new(host);
    cluster.definition("red", &bridge("red", 2));
    cluster.definition("blue", &bridge("blue", 3));
    cluster.pod("web", "red,blue");
    let config = configuration(&bridge("default", 1));
    let pod = host.pod("web");
    let weft = cluster.attachment(&pod);
    weft.add(&config).success();
    weft.del(&config).success();
    pod.remove();
    cluster.pod("kept", "");
    let before = host.snapshot();
    (cluster, config, before)
}

/// Makes a plugin crash in the calls of an attachment: `PLUGIN VERB IFNAME KIND`.
fn crashing(weft: &mut Attachment<'_>, crash: &str) {
    weft.through = match crash {
        "" => Vec::new(),
        crash => vec!["env".to_owned(), format!("WEFT_TEST_CRASH={crash}")],
    };
}

/// Returns the message of a call that failed with an error of CNI.
#[track_caller]
fn message(finished: &Finished) -> String {
    let (_, message) = rig::refusal(finished);
    message
}

/// Asserts that the error is about `ifname` alone and says that the plugin crashed.
#[track_caller]
fn assert_about(label: &str, message: &str, ifname: &str) {
    assert!(message.contains(ifname), "{label}: {message}");
    assert!(message.contains("crashed") || message.contains("panicked"), "{label}: {message}");
    for other in ["eth0", "net1", "net2"].into_iter().filter(|other| *other != ifname) {
        assert!(!message.contains(other), "{label}: {other}: {message}");
    }
}

fn states(cluster: &Cluster<'_>, pod: &Pod) -> Vec<Value> {
    let entry = cluster.entry(pod).expect("an entry");
    entry["attachments"].as_array().expect("attachments").iter().map(|one| one["state"].clone()).collect()
}

#[test]
fn crash_in_del_fails_one_attachment_of_the_next_del() {
    let host = host!(Feature::Bridge);
    let (cluster, config, before) = world(&host);
    for kind in KINDS {
        for plugin in ["bridge", "host-local"] {
            let label = format!("{plugin} {kind}");
            let pod = host.pod("web");
            let mut weft = cluster.attachment(&pod);
            weft.add(&config).success();
            crashing(&mut weft, &format!("{plugin} DEL net1 {kind}"));
            assert_ne!(weft.del(&config).code, Some(0), "{label}");
            assert_about(&label, &message(&weft.del(&config)), "net1");
            assert_eq!(states(&cluster, &pod), ["detached", "attached", "detached"], "{label}");
            // A DEL that ended leaves no mark, so the third one dies again, and the fourth one does not.
            assert_ne!(weft.del(&config).code, Some(0), "{label}");
            assert_about(&label, &message(&weft.del(&config)), "net1");
            crashing(&mut weft, "");
            weft.del(&config).success();
            pod.remove();
            assert_nothing_left(&label, &host, &before);
        }
    }
}

#[test]
fn crash_in_del_can_be_given_up() {
    let host = host!(Feature::Bridge);
    let (cluster, config, _) = world(&host);
    let pod = host.pod("web");
    let mut weft = cluster.attachment(&pod);
    weft.add(&config).success();
    crashing(&mut weft, "bridge DEL net1 overflow");
    let _ = (weft.del(&config), weft.del(&config));
    let forget = host.command(testkit::binary("weft-cni"));
    let forget = forget.args(["forget-attachment", "/var/lib/weft", &pod.container_id(), "blue/red"]);
    forget.finish().success();
    assert_eq!(cluster.entry(&pod), None);
    weft.del(&config).success();
}

#[test]
fn crash_in_add_is_reported_by_the_next_add() {
    let host = host!(Feature::Bridge);
    let (cluster, config, before) = world(&host);
    for kind in KINDS {
        for plugin in ["bridge", "host-local"] {
            let label = format!("{plugin} {kind}");
            let pod = host.pod("web");
            let mut weft = cluster.attachment(&pod);
            crashing(&mut weft, &format!("{plugin} ADD net1 {kind}"));
            assert_ne!(weft.add(&config).code, Some(0), "{label}");
            assert_about(&label, &message(&weft.add(&config)), "net1");
            assert_eq!(cluster.entry(&pod), None, "{label}: what the ADD made is undone");
            // A crash in the undo, too.
            crashing(&mut weft, &format!("{plugin} * net1 {kind}"));
            assert_ne!(weft.add(&config).code, Some(0), "{label}");
            assert_about(&label, &message(&weft.add(&config)), "net1");
            crashing(&mut weft, "");
            weft.add(&config).success();
            assert_eq!(links(&pod), ["eth0", "net1", "net2"], "{label}");
            weft.del(&config).success();
            pod.remove();
            assert_nothing_left(&label, &host, &before);
        }
    }
}

#[test]
fn crash_in_gc_does_not_prevent_the_next_gc() {
    let host = host!(Feature::Bridge);
    let (cluster, config, before) = world(&host);
    // In the DEL of a stale sandbox, and in the GC of a network.
    for (crash, ifname) in [("bridge DEL net1 overflow", "net1"), ("bridge GC * overflow", "")] {
        let (pod, kept) = (host.pod("web"), host.pod("kept"));
        let mut weft = cluster.attachment(&pod);
        weft.add(&config).success();
        cluster.attachment(&kept).add(&config).success();
        let valid = [(kept.container_id(), "eth0")];
        let valid: Vec<(&str, &str)> = valid.iter().map(|(id, ifname)| (id.as_str(), *ifname)).collect();
        crashing(&mut weft, crash);
        assert_ne!(rig::gc(&weft, &config, Some(&valid)).code, Some(0), "{crash}");
        let second = message(&rig::gc(&weft, &config, Some(&valid)));
        assert!(second.contains("crashed") && second.contains(ifname), "{crash}: {second}");
        match ifname {
            "" => assert_eq!(cluster.entry(&pod), None),
            _ => assert_eq!(states(&cluster, &pod), ["detached", "attached", "detached"]),
        }
        crashing(&mut weft, "");
        rig::gc(&weft, &config, Some(&valid)).success();
        assert_eq!(cluster.entry(&pod), None, "{crash}");
        assert_eq!(links(&kept), ["eth0"], "{crash}");
        cluster.attachment(&kept).del(&config).success();
        pod.remove();
        kept.remove();
        host.run(["rm", "-f", "/var/lib/weft/sandboxes/changes.lock"]);
        assert_nothing_left(crash, &host, &before);
    }
}

#[test]
fn isolated_plugins_use_the_programs_of_the_add() {
    let host = host!(Feature::Bridge);
    let (cluster, _, _) = world(&host);
    // Another host-local comes first in the path after the ADD.
    let config =
        rig::with(&configuration(&bridge("default", 1)), &json!({ "binDir": "/run/cni/first:/opt/cni/bin" }));
    let pod = host.pod("web");
    let mut weft = cluster.attachment(&pod);
    weft.add(&config).success();
    host.run(["mkdir", "-p", "/run/cni/first"]);
    host.write("/run/cni/first/host-local", "#!/bin/sh\ntouch /run/cni/called\n");
    host.run(["chmod", "755", "/run/cni/first/host-local"]);
    crashing(&mut weft, "bridge DEL net1 abort");
    assert_ne!(weft.del(&config).code, Some(0));
    crashing(&mut weft, "");
    weft.del(&config).success();
    assert_ne!(host.attempt(["test", "-e", "/run/cni/called"]).code, Some(0));
    let left = host.run(["sh", "-c", "ls /var/lib/cni/networks/*/10.* 2>/dev/null | wc -l"]);
    assert_eq!(left.trim(), "0", "the addresses are released");
}

#[test]
fn killed_add_excuses_networks_that_it_has_not_begun() {
    let host = host!(Feature::Bridge);
    let cluster = Cluster::new(&host);
    let stuck = json!({ "DEL": [{ "do": "fail", "code": 111, "message": "stuck" }] });
    for (network, plugin) in [("first", "one"), ("second", "two")] {
        cluster.recording(network, plugin, &stuck);
    }
    cluster.pod("web", "first,second");
    let config = configuration(&bridge("default", 1));
    // Values of the journal: the plan, then each network that was attached.
    for (values, boot, expected) in
        [(1, "", &[][..]), (2, "", &["net1"]), (3, "", &["net1", "net2"]), (1, "0", &["net1", "net2"])]
    {
        let pod = host.pod("web");
        let weft = cluster.attachment(&pod);
        weft.add(&config).success();
        let text = host.read(entry_path(&pod)).expect("an entry");
        let mut all = serde_json::Deserializer::from_str(&text).into_iter::<Value>();
        assert_eq!(all.by_ref().take(values).filter(Result::is_ok).count(), values);
        // The records of another boot may be incomplete.
        let own = "\"namespace\":\"";
        let cut = text[..all.byte_offset()].replacen(own, &format!("{own}{boot}"), 1);
        host.write(entry_path(&pod), cut);
        let ended = weft.del(&config);
        let failed: Vec<&str> = ["net1", "net2"]
            .into_iter()
            .filter(|name| ended.stdout.contains(&format!("detach {name}")))
            .collect();
        assert_eq!(failed, expected, "{values} {boot}: {ended}");
        assert_eq!(ended.code == Some(0), expected.is_empty(), "{values} {boot}: {ended}");
        host.run(["sh", "-c", "rm -f /var/lib/weft/sandboxes/*"]);
        pod.remove();
    }
}
