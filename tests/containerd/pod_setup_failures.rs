//! Tests for a container runtime whose network fails: the error that a kubelet receives, and that nothing is
//! left.
//!
//! Source: containerd 1.6 `pkg/cri/server/sandbox_run.go`: a pod whose network fails is torn down and forgotten;
//! if that fails, too, the kubelet calls `StopPodSandbox` before it retries.

use rig::cluster::{bridge, configuration};
use rig::{Cluster, Containerd, assert_nothing_left, with};
use serde_json::json;
use testkit::{Feature, host};

/// Returns a runtime with four networks, on which these pods can run.
macro_rules! node {
    ($($name:expr),*) => {{
        let host = host!(Feature::Bridge, Feature::Veth, Feature::NftMasquerade);
        let Some(node) = Containerd::with_networks(host, &[$($name),*]) else { return };
        node
    }};
}

/// Runs a pod, which must fail with each of these words and leave nothing.
#[track_caller]
fn assert_refused(node: &Containerd, name: &str, words: &[&str]) {
    let (before, listed) = (node.snapshot(), node.cri().list_pod_sandbox().expect("a list"));
    let error = node.cri().run_pod_sandbox(&node.pod(name, &[])).expect_err("a network that fails");
    for word in words {
        assert!(error.contains(word), "{word:?} is missing in: {error}");
    }
    assert_eq!(
        node.cri().list_pod_sandbox().expect("a list"),
        listed,
        "the runtime has no sandbox of {name}"
    );
    let _ = Cluster::on(node).calls();
    assert_nothing_left(name, node, &before);
}

// Requirements: NPWG1-7.2-1
#[test]
fn pod_setup_failure_has_the_error_of_weft_and_leaves_nothing() {
    let node = node!("web");
    let cluster = Cluster::on(&node);
    let fail = json!({ "ADD": [{ "do": "fail", "code": 123, "message": "no room", "details": "at all" }] });
    cluster.recording("full", "one", &fail);
    cluster.pod("at-the-end", "red,blue,full");
    assert_refused(
        &node,
        "at-the-end",
        &["plugin type=\"weft\"", "attach blue/at-the-end net3", "no room", "at all"],
    );
    cluster.pod("nowhere", "red,blak");
    assert_refused(&node, "nowhere", &["\"blue/blak\": there is no such NetworkAttachmentDefinition"]);
    // The runtime works afterwards.
    let web = node.cri().run_pod_sandbox(&node.pod("web", &[])).expect("a pod");
    node.remove(&web);
}

// Requirements: S13
#[test]
fn pod_setup_with_killed_add_leaves_nothing() {
    let node = node!("web");
    let before = node.snapshot();
    let killer = testkit::binary("weft-test-killer").display().to_string();
    let kill_at = |step: u32| {
        // The process of ADD is killed, that of DEL is not.
        let script = format!(
            "#!/bin/sh\n[ \"$CNI_COMMAND\" = ADD ] && exec {killer} {step} /opt/cni/real/weft\nexec /opt/cni/real/weft\n"
        );
        node.write("/opt/cni/bin/.weft", script);
        node.run(["chmod", "755", "/opt/cni/bin/.weft"]);
        node.run(["mv", "/opt/cni/bin/.weft", "/opt/cni/bin/weft"]);
    };
    node.run(["mkdir", "/opt/cni/real"]);
    node.run(["mv", "/opt/cni/bin/weft", "/opt/cni/real/weft"]);
    let mut killed = 0;
    for step in (1..).step_by(17) {
        kill_at(step);
        match node.cri().run_pod_sandbox(&node.pod("web", &[])) {
            Err(error) => {
                assert!(error.contains("weft"), "{error}");
                killed += 1;
            }
            Ok(web) => {
                node.remove(&web);
                break;
            }
        }
        assert_eq!(node.cri().list_pod_sandbox().expect("a list"), [], "killed at step {step}");
    }
    assert!(killed > 5, "weft was killed only {killed} times");
    node.run(["mv", "/opt/cni/real/weft", "/opt/cni/bin/weft"]);
    node.run(["rmdir", "/opt/cni/real"]);
    assert_nothing_left("killed repeatedly", &node, &before);
}

#[test]
fn pod_setup_of_a_killed_runtime_is_removed_after_its_restart() {
    let node = node!("web");
    let cluster = Cluster::on(&node);
    cluster.recording("slow", "one", &json!({ "ADD": [{ "do": "hang" }] }));
    cluster.pod("hanging", "red,slow");
    let with_timeout = with(&configuration(&bridge("default", 1)), &json!({ "delegateTimeout": 3 }));
    node.configure(&with_timeout);
    let before = node.snapshot();
    std::thread::scope(|scope| {
        let call = scope.spawn(|| node.cri().run_pod_sandbox(&node.pod("hanging", &[])));
        cluster.await_call("ADD net2");
        // The runtime and its client end; the plugin that it called continues.
        node.restart("KILL");
        call.join().expect("no panic").expect_err("the runtime died");
    });
    // The kubelet retries. DEL waits for the ADD that still runs, which ends at its own timeout.
    for (id, _) in node.cri().list_pod_sandbox().expect("a list") {
        node.remove(&id);
    }
    assert!(cluster.order().contains(&"DEL net2".to_owned()));
    assert_nothing_left("a killed runtime", &node, &before);
}

#[test]
fn pod_setup_without_free_addresses_is_reported_for_each_pod() {
    let host = host!(Feature::Bridge, Feature::Veth);
    let Some(node) = Containerd::new(host) else { return };
    let cluster = Cluster::new(&node);
    for name in ["first", "second"] {
        cluster.pod(name, "");
    }
    let mut small = bridge("default", 1);
    small["plugins"][0]["ipam"]["ranges"] =
        json!([[{ "subnet": "10.1.0.0/24", "rangeStart": "10.1.0.9", "rangeEnd": "10.1.0.9" }]]);
    node.configure(&configuration(&small));
    let first = node.cri().run_pod_sandbox(&node.pod("first", &[])).expect("one address is free");
    // STATUS would return code 50 now. containerd 1.6 does not call it: the node stays ready, and the pod has
    // the error.
    node.network_ready().expect("the runtime does not call STATUS");
    assert_refused(
        &node,
        "second",
        &["blue/second", "no IP addresses available in range set: 10.1.0.9-10.1.0.9"],
    );
    node.remove(&first);
    let second = node.cri().run_pod_sandbox(&node.pod("second", &[])).expect("the address is free again");
    node.remove(&second);
}
