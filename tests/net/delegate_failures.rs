//! Tests for the meta-plugin with delegates that fail or misbehave: it undoes what was attempted, and changes
//! nothing else.
//!
//! ```text
//!   weft ─┬─ eth0  bridge br1
//!         ├─ net1  recording plugin, or bridge br2
//!         └─ net2  … fails
//! ```
//!
//! Source: NPWG specification, 7.2 (NPWG1-7.2-1…5); SPEC 1.1.0 §3, §4; Multus defects M10, M19, M21.

use std::time::{Duration, Instant};

use rig::cluster::{bridge, configuration, recording, step};
use rig::machine::until;
use rig::{Cluster, assert_nothing_left, assert_pod_unchanged, assert_refused, links, refusal, with};
use serde_json::{Value, json};
use testkit::{Feature, Host, host};

fn failing(code: u64) -> Value {
    json!({ "ADD": [{ "do": "fail", "code": code, "message": "no room", "details": "at all" }] })
}

/// Creates the objects that remain on the host: bridges, the journal's directory and the directories of
/// host-local.
#[track_caller]
fn prime(host: &Host, cluster: &Cluster<'_>, config: &Value, networks: &str) {
    cluster.pod("prime", networks);
    let pod = host.pod("prime");
    let weft = cluster.attachment(&pod);
    weft.add(config).success();
    weft.del(config).success();
    pod.remove();
    let _ = cluster.calls();
}

// Requirements: NPWG1-7.2-1, NPWG1-7.2-2, NPWG1-7.2-3
#[test]
fn delegate_failure_undoes_attempted_networks_in_reverse() {
    let host = host!();
    let cluster = Cluster::new(&host);
    cluster.recording("good", "two", &json!({}));
    cluster.definition(
        "bad",
        &json!({ "cniVersion": "1.0.0", "plugins": [step("two", &json!({})), step("three", &failing(123))] }),
    );
    cluster.pod("web", "good,bad,good");
    let pod = host.pod("web");
    let config = configuration(&recording("default", "one", &json!({})));
    prime(&host, &cluster, &config, "good");
    let before = host.snapshot();
    let (code, message) = refusal(&cluster.attachment(&pod).add(&config));
    assert_eq!(code, 123, "M19: the delegate's own code");
    for word in ["no room", "at all", "blue/web", "net2", "three"] {
        assert!(message.contains(word), "{word:?} is missing in: {message}");
    }
    let calls = cluster.calls();
    let order: Vec<String> = calls
        .iter()
        .map(|c| format!("{} {} {}", c.command, c.environment("CNI_IFNAME"), c.program))
        .collect();
    assert_eq!(
        order,
        [
            "ADD eth0 one",
            "ADD net1 two",
            "ADD net2 two",
            "ADD net2 three",
            "DEL net2 three",
            "DEL net2 two",
            "DEL net1 two",
            "DEL eth0 one",
        ],
        "net3 was not attempted, so it is not torn down"
    );
    assert_eq!(calls[6].config()["prevResult"]["interfaces"][0]["name"], "net1");
    assert_nothing_left("7.2", &host, &before);
}

// Requirements: NPWG1-7.2-1
#[test]
fn delegate_failure_of_first_or_last_network_leaves_nothing() {
    for (default, networks) in [
        (bridge("default", 1), "red,red,bad"),
        (bridge("default", 1), "bad,red"),
        (recording("default", "one", &failing(11)), "red"),
    ] {
        let host = host!(Feature::Bridge);
        let cluster = Cluster::new(&host);
        cluster.definition("red", &bridge("red", 2));
        cluster.recording("bad", "two", &failing(11));
        prime(&host, &cluster, &configuration(&bridge("default", 1)), "red");
        cluster.pod("web", networks);
        let pod = host.pod("web");
        let (before, inside) = (host.snapshot(), pod.snapshot());
        let config = configuration(&default);
        assert_refused(networks, &cluster.attachment(&pod).add(&config), 11, &["no room"]);
        let _ = cluster.calls();
        assert_nothing_left(networks, &host, &before);
        assert_pod_unchanged(networks, &pod, &inside);
        // The pod can be attached once the cause is removed.
        cluster.recording("bad", "two", &json!({}));
        let config = configuration(&bridge("default", 1));
        cluster.attachment(&pod).add(&config).success();
        cluster.attachment(&pod).del(&config).success();
        let _ = cluster.calls();
    }
}

// Requirements: S25
#[test]
fn delegate_failure_keeps_a_preexisting_interface() {
    let host = host!(Feature::Bridge);
    let cluster = Cluster::new(&host);
    cluster.definition("red", &bridge("red", 2));
    let config = configuration(&bridge("default", 1));
    prime(&host, &cluster, &config, "red");
    cluster.pod("web", "red,red");
    let pod = host.pod("web");
    pod.run(["ip", "link", "add", "net2", "type", "veth", "peer", "name", "other"]);
    let (before, inside) = (host.snapshot(), pod.snapshot());
    assert_refused("S25", &cluster.attachment(&pod).add(&config), 4, &["net2", "exists"]);
    assert_nothing_left("S25", &host, &before);
    assert_pod_unchanged("S25", &pod, &inside);
}

#[test]
fn delegate_del_keeps_interfaces_of_another_attachment() {
    let host = host!(Feature::Bridge);
    let cluster = Cluster::new(&host);
    cluster.definition("red", &bridge("red", 2));
    let config = configuration(&bridge("default", 1));
    cluster.pod("web", "red,red");
    let pod = host.pod("web");
    cluster.attachment(&pod).add(&config).success();
    let mut blue = bridge("blue", 3)["plugins"][0].clone();
    (blue["name"], blue["cniVersion"]) = (json!("blue"), json!("1.0.0"));
    let others = ["net1", "net2"].map(|ifname| {
        pod.run(["ip", "link", "delete", ifname]);
        let mut other = host.attachment("bridge", &pod, ifname);
        other.container_id = "other".to_owned();
        other.add(&blue).success();
        other
    });
    cluster.attachment(&pod).del(&config).success();
    assert_eq!(links(&pod), ["net1", "net2"]);
    for other in others {
        other.del(&blue).success();
    }
    assert!(links(&pod).is_empty(), "{:?}", links(&pod));
}

/// Returns a network whose plugin does what a file says, which it reads at each call.
fn controlled_by_file(name: &str) -> Value {
    let mut plugin = step("two", &json!({}));
    plugin["debugFile"] = format!("/run/cni/{name}").into();
    json!({ "cniVersion": "1.1.0", "name": name, "plugins": [plugin] })
}

const CONTENT: &str = r#"{"ReportResult":"{\"cniVersion\":\"1.1.0\"}"}"#;

// Requirements: NPWG1-7.2-4, NPWG1-7.2-5, M10, conflict C20
#[test]
fn delegate_del_failure_is_reported_and_the_next_del_retries() {
    let host = host!(Feature::Bridge);
    let cluster = Cluster::new(&host);
    cluster.definition("red", &bridge("red", 2));
    for name in ["left", "right"] {
        cluster.definition(name, &controlled_by_file(name));
        host.write(format!("/run/cni/{name}"), CONTENT);
    }
    let config = configuration(&bridge("default", 1));
    cluster.pod("web", "left,red,right");
    let pod = host.pod("web");
    let weft = cluster.attachment(&pod);
    weft.add(&config).success();
    let _ = cluster.calls();
    for name in ["left", "right"] {
        host.write(format!("/run/cni/{name}"), r#"{"ReportError":"stuck","ReportErrorCode":111}"#);
    }
    let (_, message) = refusal(&weft.del(&config));
    assert!(message.contains("net1") && message.contains("net3") && message.contains("stuck"), "{message}");
    assert_eq!(
        cluster.order(),
        ["DEL net3", "DEL net1"],
        "both were tried, with the real networks between them"
    );
    assert!(links(&pod).is_empty(), "{:?}", links(&pod));
    let states: Vec<Value> = cluster.entry(&pod).unwrap()["attachments"]
        .as_array()
        .unwrap()
        .iter()
        .map(|a| a["state"].clone())
        .collect();
    assert_eq!(states, ["detached", "attached", "detached", "attached"]);
    // A sandbox with leftovers is not attached again before they are removed.
    assert_ne!(weft.add(&config).code, Some(0));
    assert!(links(&pod).is_empty());
    let _ = cluster.calls();

    host.write("/run/cni/left", CONTENT);
    assert_ne!(weft.del(&config).code, Some(0), "the network right still fails");
    assert_eq!(cluster.order(), ["DEL net3", "DEL net1"]);
    host.write("/run/cni/right", CONTENT);
    weft.del(&config).success();
    assert_eq!(cluster.order(), ["DEL net3"], "a detached network gets no second DEL");
    assert!(cluster.entry(&pod).is_none());
    weft.add(&config).success();
}

// Requirements: M21
#[test]
fn delegate_undo_failure_is_reported_and_left_to_the_next_del() {
    let host = host!(Feature::Bridge);
    let cluster = Cluster::new(&host);
    cluster.definition("left", &controlled_by_file("left"));
    cluster.recording("bad", "three", &failing(11));
    let config = configuration(&bridge("default", 1));
    host.write("/run/cni/left", CONTENT);
    cluster.pod("web", "left,bad");
    let pod = host.pod("web");
    let weft = cluster.attachment(&pod);
    // ADD succeeds and DEL fails.
    host.install(&testkit::binary("weft-test-plugin"), &["fickle"]);
    cluster.recording(
        "fickle",
        "fickle",
        &json!({ "DEL": [{ "do": "fail", "code": 111, "message": "stuck" }] }),
    );
    cluster.pod("web", "fickle,bad");
    let (code, message) = refusal(&weft.add(&config));
    assert_eq!(code, 11, "the code of the cause");
    for word in ["no room", "not undone", "net1", "stuck"] {
        assert!(message.contains(word), "{word:?} is missing in: {message}");
    }
    assert!(links(&pod).is_empty());
    let states: Vec<Value> = cluster.entry(&pod).unwrap()["attachments"]
        .as_array()
        .unwrap()
        .iter()
        .map(|a| a["state"].clone())
        .collect();
    assert_eq!(states[..2], ["detached", "attached"]);
    let _ = cluster.calls();
    assert_ne!(weft.del(&config).code, Some(0));
    assert_eq!(cluster.order(), ["DEL net1"]);
}

#[test]
fn delegate_that_misbehaves_is_ended_in_time_and_undone() {
    let verdicts: [(&str, Value, &str); 9] = [
        ("hangs", json!({ "do": "hang" }), "killed after 1s"),
        ("hangs with a child", json!({ "do": "hang-with-child" }), "killed after 1s"),
        ("prints garbage", json!({ "do": "garbage" }), "net2"),
        ("prints half a result", json!({ "do": "half" }), "net2"),
        ("prints 100 MB", json!({ "do": "flood" }), "more than"),
        ("ends by a signal", json!({ "do": "signal", "number": 6 }), "SIGABRT"),
        ("exits without output", json!({ "do": "exit", "code": 42 }), "42"),
        ("succeeds without output", json!({ "do": "exit", "code": 0 }), "no result"),
        ("returns another version", json!({ "do": "result", "value": { "cniVersion": "7.0.0" } }), "7.0.0"),
    ];
    for (label, action, word) in verdicts {
        let host = host!(Feature::Bridge);
        let cluster = Cluster::new(&host);
        cluster.definition("red", &bridge("red", 2));
        cluster.recording("bad", "two", &json!({ "ADD": [action] }));
        let config = with(&configuration(&bridge("default", 1)), &json!({ "delegateTimeout": 1 }));
        prime(&host, &cluster, &config, "red");
        cluster.pod("web", "red,bad,red");
        let pod = host.pod("web");
        let (before, inside) = (host.snapshot(), pod.snapshot());
        let started = Instant::now();
        let (_, message) = refusal(&cluster.attachment(&pod).add(&config));
        assert!(started.elapsed() < Duration::from_secs(30), "{label}: {:?}", started.elapsed());
        assert!(message.contains(word), "{label}: {word:?} is missing in: {message}");
        assert!(message.len() < 8192, "{label}: a short message: {} bytes", message.len());
        assert_eq!(cluster.order(), ["ADD net2", "DEL net2"], "{label}");
        assert_eq!(left_running(&host), "", "{label}");
        assert_nothing_left(label, &host, &before);
        assert_pod_unchanged(label, &pod, &inside);
    }
}

/// Returns the command lines of the processes that still run on the host.
fn left_running(host: &Host) -> String {
    let inside = || {
        let own = std::fs::read_link("/proc/thread-self/ns/mnt").expect("own mount namespace");
        let processes = std::fs::read_dir("/proc").expect("processes").flatten().map(|entry| entry.path());
        // Excludes /proc/self and similar links.
        let numbered = |path: &std::path::Path| {
            path.file_name().is_some_and(|name| name.to_string_lossy().parse::<u32>().is_ok())
        };
        let others = processes.filter(|path| numbered(path));
        let on_this_host =
            others.filter(|path| std::fs::read_link(path.join("ns/mnt")).is_ok_and(|ns| ns == own));
        on_this_host
            .map(|path| std::fs::read_to_string(path.join("cmdline")).unwrap_or_default() + "\n")
            // They end with the kernel's grace period.
            .filter(|line| {
                !["remove-links", "close-sockets"]
                    .iter()
                    .any(|word| line.starts_with(&format!("weft-cni\0{word}\0")))
            })
            .collect()
    };
    host.within(inside)
}

#[test]
fn delegate_is_killed_with_the_meta_plugin() {
    let host = host!(Feature::Bridge);
    let cluster = Cluster::new(&host);
    cluster.definition("red", &bridge("red", 2));
    cluster.recording("slow", "two", &json!({ "ADD": [{ "do": "hang" }] }));
    let config = configuration(&bridge("default", 1));
    prime(&host, &cluster, &config, "red");
    cluster.pod("web", "red,slow");
    let pod = host.pod("web");
    let before = host.snapshot();
    let weft = cluster.attachment(&pod);
    host.write("/run/config", config.to_string());
    let running = host
        .command("sh")
        .args(["-c", "exec /opt/cni/bin/weft </run/config >/dev/null"])
        .env("CNI_COMMAND", "ADD")
        .env("CNI_CONTAINERID", &weft.container_id)
        .env("CNI_NETNS", &weft.netns)
        .env("CNI_IFNAME", &weft.ifname)
        .env("CNI_ARGS", &weft.args)
        .env("CNI_PATH", "/opt/cni/bin")
        .start();
    cluster.await_call("ADD net2");
    running.kill();
    until("all processes have ended", || left_running(&host).is_empty().then_some(()));
    weft.del(&config).success();
    host.run(["rm", "/run/config"]);
    let _ = cluster.calls();
    assert_nothing_left("killed", &host, &before);
}

#[test]
fn delegate_that_deletes_the_netns_fails_the_next_delegate() {
    let host = host!(Feature::Bridge);
    let cluster = Cluster::new(&host);
    cluster.definition("red", &bridge("red", 2));
    let config = configuration(&bridge("default", 1));
    prime(&host, &cluster, &config, "red");
    cluster.recording("thief", "two", &json!({ "ADD": [{ "do": "delete-netns" }] }));
    cluster.pod("web", "red,thief,red");
    let before = host.snapshot();
    let pod = host.pod("web");
    let weft = cluster.attachment(&pod);
    assert_refused("the namespace is deleted", &weft.add(&config), 8, &["/run/netns/web"]);
    let _ = cluster.calls();
    assert_nothing_left("thief", &host, &before);
    weft.del(&config).success();
    assert_nothing_left("thief, DEL", &host, &before);
}

// Requirements: L4
#[test]
fn delegate_may_ignore_stdin_and_write_to_stderr() {
    let host = host!();
    let cluster = Cluster::new(&host);
    cluster.recording(
        "loud",
        "two",
        &json!({ "ADD": [{ "do": "stderr", "text": "chatter", "times": 100_000 }] }),
    );
    cluster.pod("web", "loud");
    let pod = host.pod("web");
    let mut weft = cluster.attachment(&pod);
    weft.args.push_str(";TEST_DEL=deaf");
    let config = configuration(&recording("default", "one", &json!({})));
    let finished = weft.add(&config).success();
    assert_eq!(finished.json()["cniVersion"], "1.1.0", "stderr of plugins is not on stdout");
    assert!(finished.stderr.contains("chatter"));
    weft.del(&config).success();
    assert!(cluster.entry(&pod).is_none());
}

#[test]
fn delegate_del_timeout_is_reported_and_finished_later() {
    let host = host!(Feature::Bridge);
    let cluster = Cluster::new(&host);
    cluster.recording("slow", "two", &json!({ "DEL": [{ "do": "hang-with-child" }] }));
    cluster.pod("web", "slow");
    let pod = host.pod("web");
    let weft = cluster.attachment(&pod);
    let config = with(&configuration(&bridge("default", 1)), &json!({ "delegateTimeout": 1 }));
    weft.add(&config).success();
    let started = Instant::now();
    let (_, message) = refusal(&weft.del(&config));
    assert!(started.elapsed() < Duration::from_secs(30) && message.contains("killed after 1s"), "{message}");
    assert!(links(&pod).is_empty(), "the other networks are detached");
    assert_eq!(left_running(&host), "");
    // An operator replaces the plugin by one that works.
    host.run(["rm", "/opt/cni/bin/two"]);
    assert_refused("its program is missing", &weft.del(&config), 5, &["two"]);
    host.write("/opt/cni/bin/two", "#!/bin/sh\ncat >/dev/null\n");
    host.run(["chmod", "755", "/opt/cni/bin/two"]);
    weft.del(&config).success();
    assert!(cluster.entry(&pod).is_none());
}

#[test]
fn plan_without_agent_is_retried_unless_the_pod_selects_nothing() {
    let host = host!(Feature::Bridge);
    // Installs the program as on a node: `weft` is a link to it.
    host.command(testkit::binary("weft-cni")).args(["install", "/opt/cni/bin"]).finish().success();
    let pod = host.pod("web");
    let mut attachment = host.attachment("weft", &pod, "eth0");
    attachment.args = "K8S_POD_NAMESPACE=blue;K8S_POD_NAME=web".to_owned();
    let config = json!({
        "cniVersion": "1.0.0", "name": "weft-net", "type": "weft", "delegates": [bridge("default", 1)],
    });
    assert_refused(
        "no agent",
        &attachment.add(&config),
        11,
        &["weft plan --once", "no node agent listens on"],
    );
    // The runtime's annotations suffice if the pod selects nothing, because then there is nothing to look up.
    let annotated = |annotations: Value| {
        let annotated = json!({ "io.kubernetes.cri.pod-annotations": annotations });
        with(&config, &json!({ "runtimeConfig": annotated }))
    };
    let mut by_name = with(&annotated(json!({})), &json!({ "clusterNetwork": "home" }));
    by_name.as_object_mut().expect("a map").remove("delegates");
    for (label, config) in [
        ("selects a network", annotated(json!({ "k8s.v1.cni.cncf.io/networks": "a" }))),
        ("an invalid selection", annotated(json!({ "k8s.v1.cni.cncf.io/networks": "," }))),
        ("selects a default network", annotated(json!({ "v1.multus-cni.io/default-network": "a" }))),
        ("has an annotation of weft", annotated(json!({ "weft.dev/networks": "a" }))),
        ("a network name that may be a definition", by_name),
    ] {
        assert_refused(label, &attachment.add(&config), 11, &["no node agent listens on"]);
    }
    let plain = annotated(json!({ "example.org/other": "x" }));
    attachment.add(&plain).success();
    assert_eq!(links(&pod), ["eth0"]);
    let entry = host.run(["sh", "-c", "cat /var/lib/weft/sandboxes/*.json"]);
    assert!(entry.contains("\"name\":\"web\""), "the journal has the pod's name: {entry}");
    attachment.call("STATUS", with(&config, &json!({ "cniVersion": "1.1.0" })).to_string()).success();
    attachment.del(&plain).success();
}
