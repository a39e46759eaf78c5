//! Tests for the journal: DEL, CHECK and GC need only the journal, and an unreadable entry is never
//! overwritten.
//!
//! ```text
//!   /var/lib/weft/sandboxes/<container id>.json      or below cniDir
//! ```
//!
//! Source: the invariants in `crates/weft-cni/src/meta_plugin/journal.rs`; SPEC 1.1.0 §2 DEL; Multus defects M11, M27.

use rig::cluster::{MANIFESTS, bridge, configuration, entry_path, recording};
use rig::{Cluster, assert_nothing_left, assert_refused, links, refusal, with};
use serde_json::{Value, json};
use testkit::{Feature, Host, Pod, host};

/// Creates the default network and two networks of the pod, all real, and attaches and detaches the pod once.
fn world(host: &Host) -> (Cluster<'_>, Value) {
    let cluster = Cluster::new(host);
    let mut red = bridge("red", 2);
    red["plugins"][0]["ipMasq"] = true.into();
    cluster.definition("red", &red);
    cluster.definition("blue", &bridge("blue", 3));
    cluster.pod("web", "red,blue");
    let config = configuration(&bridge("default", 1));
    let pod = host.pod("web");
    let weft = cluster.attachment(&pod);
    weft.add(&config).success();
    weft.del(&config).success();
    pod.remove();
    (cluster, config)
}

// Requirements: M11, M27
#[test]
fn journal_del_needs_no_manifests_configuration_or_netns() {
    type Loss = fn(&Host, &Cluster<'_>, &mut Value, &mut testkit::Attachment<'_>, Pod) -> Option<Pod>;
    let losses: [(&str, Loss); 7] = [
        ("the manifests are deleted", |host, _, _, _, pod| {
            host.run(["rm", "-r", MANIFESTS]);
            Some(pod)
        }),
        ("the definitions are replaced", |_, cluster, _, _, pod| {
            cluster.recording("red", "one", &json!({ "DEL": [{ "do": "fail" }] }));
            cluster.recording("blue", "none", &json!({}));
            cluster.pod("web", "nothing/of-this");
            Some(pod)
        }),
        ("the configuration is replaced", |_, _, config, _, pod| {
            *config = with(
                config,
                &json!({ "delegates": [recording("x", "one", &json!({ "DEL": [{ "do": "fail" }] }))] }),
            );
            Some(pod)
        }),
        ("the configuration is invalid", |_, _, config, _, pod| {
            let wrong = json!({ "zzz": 1, "delegateTimeout": "x", "binDir": 5, "delegates": 7 });
            *config = with(config, &wrong);
            Some(pod)
        }),
        ("the namespace is deleted", |_, _, _, _, pod| {
            pod.remove();
            None
        }),
        ("CNI_NETNS is empty", |_, _, _, weft, pod| {
            weft.netns.clear();
            Some(pod)
        }),
        ("CNI_NETNS is empty and the namespace is deleted", |_, _, _, weft, pod| {
            weft.netns.clear();
            pod.remove();
            None
        }),
    ];
    for (label, lose) in losses {
        let host = host!(Feature::Bridge, Feature::NftMasquerade);
        let (cluster, config) = world(&host);
        let before = host.snapshot();
        let pod = host.pod("web");
        let mut weft = cluster.attachment(&pod);
        weft.add(&config).success();
        let mut config = config;
        let pod = lose(&host, &cluster, &mut config, &mut weft, pod);
        weft.del(&config).success();
        if let Some(pod) = pod {
            assert!(links(&pod).is_empty(), "{label}: {:?}", links(&pod));
            pod.remove();
        }
        let changes = rig::changes(&before, &host.snapshot());
        let left: Vec<&str> = changes.lines().filter(|line| !line.contains(MANIFESTS)).collect();
        assert!(left.is_empty(), "{label}:\n{}", left.join("\n"));
        assert!(cluster.calls().is_empty(), "{label}: no plugin of the replaced objects was executed");
    }
}

#[test]
fn journal_entry_of_the_first_release_is_checked_and_detached() {
    let host = host!(Feature::Bridge, Feature::NftMasquerade);
    let (cluster, config) = world(&host);
    let before = host.snapshot();
    let pod = host.pod("web");
    let weft = cluster.attachment(&pod);
    let result = weft.add(&config).success().json();
    let mut entry = cluster.entry(&pod).expect("an entry");
    assert_eq!(entry["complete"], true);
    entry["fieldOfAnUnknownRelease"] = json!({});
    host.write(entry_path(&pod), format!("{entry:#}"));
    weft.check(&with(&config, &json!({ "prevResult": result }))).success();
    weft.del(&config).success();
    assert!(links(&pod).is_empty());
    pod.remove();
    assert_nothing_left("an entry of the first form", &host, &before);
}

#[test]
fn journal_unreadable_entry_is_never_overwritten() {
    let host = host!(Feature::Bridge);
    let (cluster, config) = world(&host);
    let pod = host.pod("web");
    let weft = cluster.attachment(&pod);
    weft.add(&config).success();
    let file = entry_path(&pod);
    let whole = host.read(&file).expect("an entry");
    let newer = whole.replacen("\"version\":1", "\"version\":2", 1);
    assert_ne!(newer, whole);
    let broken = [
        ("empty", String::new()),
        ("truncated", whole[..whole.len() / 2].to_owned()),
        ("of zeroes", "\0".repeat(whole.len())),
        ("another document", "[]".to_owned()),
        ("of a newer release", newer),
    ];
    for (label, content) in &broken {
        host.write(&file, content);
        let (before, inside) = (host.snapshot(), pod.snapshot());
        let known = with(&config, &json!({ "prevResult": {} }));
        let mut calls = vec![("ADD", weft.add(&config)), ("CHECK", weft.check(&known))];
        // The newer release can read it.
        if label.contains("newer") {
            calls.push(("DEL", weft.del(&config)));
        }
        for (verb, finished) in calls {
            let (code, message) = refusal(&finished);
            assert_eq!(code, 6, "{verb} with an entry {label}: {message}");
            assert!(message.contains(&file), "{verb} with an entry {label}: {message}");
            let word = if label.contains("newer") { "version 2" } else { "unreadable" };
            assert!(message.contains(word), "{verb} with an entry {label}: {message}");
        }
        let collected = rig::gc(&weft, &config, Some(&[]));
        assert_refused(label, &collected, 6, &[&file]);
        let lock = |line: &&str| !line.contains(".lock");
        let changes = rig::changes(&before, &host.snapshot());
        let left: Vec<&str> = changes.lines().filter(lock).collect();
        assert!(left.is_empty(), "{label}: a file has changed:\n{}", left.join("\n"));
        rig::assert_pod_unchanged(label, &pod, &inside);
        assert_eq!(host.read(&file).as_ref(), Some(content), "{label}: the entry is overwritten");
    }
    // A broken entry of one sandbox does not affect other sandboxes, and no GC removes its networks.
    cluster.pod("other", "red");
    let other = host.pod("other");
    cluster.attachment(&other).add(&config).success();
    let (web, others) = (pod.container_id(), other.container_id());
    let collected = rig::gc(&weft, &config, Some(&[(&web, "eth0"), (&others, "eth0")]));
    assert_refused("GC", &collected, 6, &[&file]);
    assert_eq!(
        (links(&pod), links(&other)),
        (vec!["eth0".into(), "net1".into(), "net2".into()], vec!["eth0".into(), "net1".into()])
    );
    assert_refused("GC", &rig::gc(&weft, &config, Some(&[(&web, "eth0")])), 6, &[&file]);
    assert!(links(&other).is_empty(), "GC removes the sandbox that is not valid");
    assert_eq!(links(&pod), ["eth0", "net1", "net2"]);
    // The repaired entry works again.
    host.write(&file, whole);
    weft.del(&config).success();
    assert!(links(&pod).is_empty() && cluster.entry(&pod).is_none());
}

#[test]
fn journal_unreadable_entry_is_renamed_by_del() {
    let host = host!(Feature::Bridge, Feature::NftMasquerade);
    let (cluster, config) = world(&host);
    let before = host.snapshot();
    for (label, script) in [
        ("truncated at 300 bytes", "truncate -s 300 $0"),
        ("empty", "truncate -s 0 $0"),
        ("of zeroes", "head -c 500 /dev/zero >$0"),
        ("another document", "echo '[]' >$0"),
        ("a pipe", "rm $0; mkfifo $0"),
        ("a directory", "rm $0; mkdir $0"),
    ] {
        let pod = host.pod("web");
        let weft = cluster.attachment(&pod);
        let result = weft.add(&config).success().json();
        let file = entry_path(&pod);
        host.run(["sh", "-c", script, &file]);
        let aside = format!("{file}.unreadable");
        weft.del(&with(&config, &json!({ "prevResult": result }))).success();
        assert!(links(&pod).is_empty(), "{label}: {:?}", links(&pod));
        host.run(["test", "-e", &aside]);
        rig::gc(&weft, &config, Some(&[])).success();
        // A second one is kept beside the first.
        weft.add(&config).success();
        host.write(&file, "{");
        weft.del(&config).success();
        assert_eq!(host.read(format!("{aside}.1")).as_deref(), Some("{"), "{label}");
        assert!(links(&pod).is_empty(), "{label}, without a result: {:?}", links(&pod));
        host.run(["rm", "-r", &aside, &format!("{aside}.1")]);
        pod.remove();
        assert_nothing_left(label, &host, &before);
    }
}

#[test]
fn journal_truncated_last_value_means_partly_attached() {
    let host = host!(Feature::Bridge, Feature::NftMasquerade);
    let (cluster, config) = world(&host);
    let before = host.snapshot();
    let pod = host.pod("web");
    let weft = cluster.attachment(&pod);
    weft.add(&config).success();
    let file = entry_path(&pod);
    let whole = host.read(&file).expect("an entry").trim_end().to_owned();
    let first = serde_json::Deserializer::from_str(&whole).into_iter::<Value>();
    let mut first = first;
    first.next().expect("a value").expect("JSON");
    for length in
        [whole.len() - 1, whole.len() - 40, (whole.len() + first.byte_offset()) / 2, first.byte_offset()]
    {
        host.write(&file, &whole[..length]);
        let known = with(&config, &json!({ "prevResult": {} }));
        assert_refused("CHECK", &weft.check(&known), 999, &["partly attached"]);
        assert_eq!(links(&pod), ["eth0", "net1", "net2"]);
    }
    weft.del(&config).success();
    pod.remove();
    assert_nothing_left("DEL of a truncated entry", &host, &before);
}

#[test]
fn journal_full_disk_fails_add_at_any_write_and_leaves_nothing() {
    let host = host!(Feature::Bridge, Feature::NftMasquerade);
    let (cluster, config) = world(&host);
    let directory = "/run/cni/small";
    // The result is as large as the plan: the disk is full before the first effect, or after it.
    let search: Vec<String> = (0..400).map(|number| format!("domain-{number:04}.example.com")).collect();
    let result = json!({ "cniVersion": "1.1.0", "dns": { "search": search } });
    cluster.recording("fat", "two", &json!({ "ADD": [{ "do": "result", "value": result }] }));
    cluster.pod("web", "red,fat,blue");
    let pod = host.pod("web");
    let before = host.snapshot();
    let inside = pod.snapshot();
    let (mut failed, mut late, mut succeeded) = (0, 0, 0);
    for pages in 1..12 {
        let size = format!("size={}k,mode=700", pages * 4);
        host.run(["mkdir", "-p", directory]);
        host.run(["mount", "-t", "tmpfs", "-o", &size, "tmpfs", directory]);
        let weft = cluster.attachment(&pod);
        let config = with(&config, &json!({ "cniDir": directory }));
        let finished = weft.add(&config);
        match finished.code {
            Some(0) => succeeded += 1,
            _ => {
                assert_refused(&size, &finished, 5, &["journal", directory, "No space left"]);
                assert_eq!(host.run(["ls", "-A", &format!("{directory}/sandboxes")]), "", "{size}");
                rig::assert_pod_unchanged(&size, &pod, &inside);
                failed += 1;
                late += usize::from(cluster.order().contains(&"ADD net2".to_owned()));
            }
        }
        weft.del(&config).success();
        let _ = cluster.calls();
        host.run(["umount", directory]);
        host.run(["rmdir", directory]);
        assert_nothing_left(&size, &host, &before);
        rig::assert_pod_unchanged(&size, &pod, &inside);
    }
    let all = [failed, late, succeeded];
    assert!(
        all.iter().all(|count| *count > 0) && failed > late,
        "failed, late, succeeded: {all:?}: the sizes do not cover all cases"
    );
}

#[test]
fn journal_full_disk_does_not_prevent_del() {
    let host = host!(Feature::Bridge, Feature::NftMasquerade);
    let (cluster, config) = world(&host);
    let directory = "/run/cni/small";
    let before = host.snapshot();
    host.run(["mkdir", "-p", directory]);
    host.run(["mount", "-t", "tmpfs", "-o", "size=256k,mode=700", "tmpfs", directory]);
    let pod = host.pod("web");
    let weft = cluster.attachment(&pod);
    let config = with(&config, &json!({ "cniDir": directory }));
    weft.add(&config).success();
    let _ = host.attempt(["dd", "if=/dev/zero", &format!("of={directory}/filler"), "bs=4k"]);
    weft.del(&config).success();
    assert!(links(&pod).is_empty());
    pod.remove();
    host.run(["umount", directory]);
    host.run(["rmdir", directory]);
    assert_nothing_left("DEL on a full disk", &host, &before);
}

#[test]
fn journal_files_are_readable_by_root_only_and_follow_cni_dir() {
    let host = host!(Feature::Bridge);
    let (cluster, config) = world(&host);
    let pod = host.pod("web");
    let weft = cluster.attachment(&pod);
    weft.add(&config).success();
    let mode = |path: &str| host.run(["stat", "-c", "%a %U", path]);
    assert_eq!(mode("/var/lib/weft/sandboxes"), "700 root\n");
    assert_eq!(mode(&entry_path(&pod)), "600 root\n");
    weft.del(&config).success();
    assert_eq!(host.run(["ls", "-A", "/var/lib/weft/sandboxes"]), "", "neither entry nor lock");
    let elsewhere = with(&config, &json!({ "cniDir": "/run/cni/journal" }));
    weft.add(&elsewhere).success();
    assert_eq!(cluster.entry(&pod), None);
    assert_eq!(mode(&format!("/run/cni/journal/sandboxes/{}.json", pod.container_id())), "600 root\n");
    weft.del(&elsewhere).success();
    assert_eq!(host.run(["ls", "-A", "/run/cni/journal/sandboxes"]), "");
}

// Requirements: S26
#[test]
fn journal_call_for_another_interface_changes_nothing() {
    let host = host!(Feature::Bridge, Feature::NftMasquerade);
    let (cluster, config) = world(&host);
    let pod = host.pod("web");
    let weft = cluster.attachment(&pod);
    let result = weft.add(&config).success().json();
    let checked = with(&config, &json!({ "prevResult": result }));
    let mut other = cluster.attachment(&pod);
    other.ifname = "eth7".to_owned();
    assert_refused("attached", &other.add(&config), 4, &["is already attached"]);
    // A runtime calls DEL after an ADD that failed.
    other.del(&config).success();
    assert_refused("another", &other.check(&checked), 3, &["is attached as eth0, not as eth7"]);
    weft.check(&checked).success();
    weft.del(&config).success();
    assert!(links(&pod).is_empty());
}

/// Asserts that DEL without a namespace does not enter `path`, where another namespace has links of the same
/// names.
fn assert_not_entered(label: &str, path: &str, lose: impl Fn(&Host, Pod)) {
    let host = host!(Feature::Bridge, Feature::NftMasquerade);
    let (cluster, config) = world(&host);
    let before = host.snapshot();
    let pod = host.pod("web");
    let entry = entry_path(&pod);
    let mut weft = cluster.attachment(&pod);
    weft.add(&config).success();
    lose(&host, pod);
    let inside = |words: &str| host.run(["nsenter", &format!("--net={path}"), "sh", "-c", words]);
    for name in ["eth0", "net1", "net2"] {
        inside(&format!("ip link add {name} type veth peer name of-{name}"));
    }
    if !host.read(&entry).unwrap().contains(&format!("\"netns\":\"{path}\"")) {
        host.run(["sed", "-i", &format!("s|\"netns\":\"[^\"]*\"|\"netns\":\"{path}\"|"), &entry]);
    }
    weft.netns.clear();
    weft.del(&config).success();
    for name in ["eth0", "net1", "net2"] {
        inside(&format!("ip link del {name}"));
    }
    assert_eq!(host.read(&entry), None, "{label}");
    if path.starts_with("/run") {
        host.run(["ip", "netns", "del", "filler"]);
        host.run(["ip", "netns", "del", "web"]);
    }
    assert_nothing_left(label, &host, &before);
}

#[test]
fn journal_path_of_another_netns_is_not_entered() {
    assert_not_entered("recreated", "/run/netns/web", |host, pod| {
        pod.remove();
        // The next namespace gets the inode number of the deleted one.
        host.run(["ip", "netns", "add", "filler"]);
        host.run(["ip", "netns", "add", "web"]);
    });
    assert_not_entered("the host's namespace", "/proc/self/ns/net", |_, pod| pod.remove());
}

#[test]
fn journal_keeps_the_netns_identity_after_a_del_without_it() {
    let host = host!(Feature::Bridge, Feature::NftMasquerade);
    let (cluster, config) = world(&host);
    cluster.recording("stuck", "one", &json!({ "DEL": [{ "do": "fail" }, { "do": "fail" }] }));
    cluster.pod("web", "red,stuck");
    let pod = host.pod("web");
    let entry = entry_path(&pod);
    let mut weft = cluster.attachment(&pod);
    weft.add(&config).success();
    pod.remove();
    assert_ne!(weft.del(&config).code, Some(0));
    let text = host.read(&entry).unwrap();
    assert!(text.contains("\"namespace\":\"") && !text.contains("\"namespace\":\"\""), "{text}");
    // A namespace that is created later at this path keeps its links.
    host.run(["ip", "netns", "add", "filler"]);
    host.run(["ip", "netns", "add", "web"]);
    let inside = |words: &str| host.run(["nsenter", "--net=/run/netns/web", "sh", "-c", words]);
    for name in ["eth0", "net1"] {
        inside(&format!("ip link add {name} type veth peer name of-{name}"));
    }
    weft.netns.clear();
    assert_ne!(weft.del(&config).code, Some(0));
    for name in ["eth0", "net1"] {
        inside(&format!("ip link show {name}"));
    }
}

#[test]
fn journal_entry_of_another_sandbox_is_refused_and_kept() {
    let host = host!(Feature::Bridge, Feature::NftMasquerade);
    let (cluster, config) = world(&host);
    let pod = host.pod("web");
    let weft = cluster.attachment(&pod);
    weft.add(&config).success();
    let copy = entry_path(&pod).replace(&pod.container_id(), "copy");
    host.run(["cp", &entry_path(&pod), &copy]);
    let mut other = cluster.attachment(&pod);
    other.container_id = "copy".to_owned();
    let words = ["copy.json", "it is of sandbox", &pod.container_id()];
    assert_refused("a copy", &other.add(&config), 6, &words);
    other.del(&config).success();
    assert_eq!(links(&pod).len(), 3);
    host.run(["rm", &format!("{copy}.unreadable")]);
    weft.del(&config).success();
}

#[test]
fn journal_del_searches_plugins_in_the_directories_of_its_add() {
    let host = host!(Feature::Bridge, Feature::NftMasquerade);
    let (cluster, config) = world(&host);
    cluster.recording("far", "elsewhere", &json!({}));
    cluster.pod("web", "far");
    host.run(["mkdir", "/opt/far"]);
    host.run(["sh", "-c", "ln -s $(readlink -f /opt/cni/bin/one) /opt/far/elsewhere"]);
    let pod = host.pod("web");
    let weft = cluster.attachment(&pod);
    weft.add(&with(&config, &json!({ "binDir": "/opt/far" }))).success();
    weft.del(&config).success();
    assert_eq!(cluster.order(), ["ADD net1", "CHECK net1", "DEL net1"]);
}

// Requirements: K6
#[test]
fn journal_own_netns_is_allowed_by_cni_netns_override() {
    let host = host!(Feature::Bridge, Feature::NftMasquerade);
    let (cluster, config) = world(&host);
    let before = host.snapshot();
    let pod = host.pod("web");
    let mut weft = cluster.attachment(&pod);
    weft.netns = "/proc/self/ns/net".to_owned();
    assert_refused("own namespace", &weft.add(&config), 8, &["set CNI_NETNS_OVERRIDE=1 to allow it"]);
    weft.through = ["env", "CNI_NETNS_OVERRIDE=1"].map(str::to_owned).into();
    weft.add(&config).success();
    for name in ["eth0", "net1", "net2"] {
        host.run(["ip", "link", "show", name]);
    }
    weft.del(&config).success();
    pod.remove();
    assert_nothing_left("own namespace", &host, &before);
}

/// Attack: plugins of a definition return so much that the entry cannot be read, which would fail GC of the
/// node.
#[test]
fn journal_entry_size_is_limited_for_large_plugin_results() {
    let host = host!(Feature::Bridge);
    let cluster = Cluster::new(&host);
    let script = "#!/bin/sh\n[ \"$CNI_COMMAND\" = ADD ] || exit 0\n\
                  printf '{\"cniVersion\":\"1.0.0\",\"dns\":{\"domain\":\"'\n\
                  head -c 900000 /dev/zero | tr '\\0' x\nprintf '\"}}'\n";
    host.write("/opt/cni/bin/talker", script);
    host.run(["chmod", "755", "/opt/cni/bin/talker"]);
    cluster.definition("loud", &json!({ "cniVersion": "1.0.0", "type": "talker" }));
    let config = configuration(&bridge("default", 1));
    let pod = host.pod("web");
    let weft = cluster.attachment(&pod);
    cluster.pod("web", "");
    weft.add(&config).success();
    weft.del(&config).success();
    let before = host.snapshot();
    cluster.pod("web", ["loud"; 20].join(","));
    assert_refused("20 networks", &weft.add(&config), 5, &["journal", "longer than"]);
    assert_eq!(cluster.entry(&pod), None);
    assert!(links(&pod).is_empty());
    cluster.pod("web", ["loud"; 5].join(","));
    weft.add(&config).success();
    rig::gc(&weft, &config, Some(&[(&pod.container_id(), "eth0")])).success();
    weft.del(&config).success();
    assert_eq!(cluster.entry(&pod), None);
    cluster.pod("web", "");
    assert_nothing_left("DEL", &host, &before);
}
