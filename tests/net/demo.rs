//! Tests for `weft demo`: it needs nothing on the host, ends as documented, and leaves nothing, also after
//! failures and signals.
//!
//! ```text
//!   host: nothing on it
//!     └─ objects of the demo: a simulated host with two pods
//! ```

use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use testkit::{Feature, Finished, Host, host, workspace};

/// Longest time that the demo may take.
const LIMIT: Duration = Duration::from_secs(10);
const MANIFESTS: &str = "/etc/cni/demo";

fn demo(host: &Host, words: &str) -> testkit::Command {
    // The demo runs the program beside it.
    let _ = testkit::binary("weft-cni");
    host.command(testkit::binary("weft")).clean_environment().args(["demo"]).args(words.split_whitespace())
}

#[track_caller]
fn assert_says(finished: &Finished, words: &[&str]) {
    let output = format!("{}{}", finished.stdout, finished.stderr);
    for word in words {
        assert!(output.contains(word), "{word:?} is missing: {finished}");
    }
}

#[test]
fn demo_runs_on_empty_host_and_leaves_nothing() {
    let host = host!(Feature::Bridge, Feature::NftMasquerade);
    let before = host.snapshot();
    let shown = demo(&host, "").deadline(LIMIT).finish().success();
    host.assert_unchanged(&before);
    assert_eq!(shown.stderr, "", "{shown}");
    let lines = |beginning: &str| shown.stdout.lines().filter(|line| line.starts_with(beginning)).count();
    assert_eq!((lines("  attached "), lines("  detached "), lines("checked ")), (9, 9, 2), "{shown}");
    assert_says(
        &shown,
        &[
            "NETWORK",
            "PLUGINS",
            "aa:bb:cc:dd:ee:ff  10.101.2.44/24",
            "k8s.v1.cni.cncf.io/network-status: |",
            "REPLY IN",
            "net2 10.101.2.2  blue 10.101.2.44",
            "net4 10.101.1.3  net1 10.101.1.4",
            "remaining on the simulated host",
            "no difference",
            "done in",
        ],
    );
    assert!(!shown.stdout.contains("no reply"), "{shown}");
}

#[test]
fn demo_runs_do_not_interfere() {
    let host = host!(Feature::Bridge, Feature::NftMasquerade);
    let before = host.snapshot();
    let running: Vec<testkit::Running> = (0..3).map(|_| demo(&host, "").start()).collect();
    for one in running {
        assert!(one.finish(LIMIT * 2).success());
    }
    host.assert_unchanged(&before);
}

#[test]
fn demo_built_in_manifests_equal_the_examples() {
    let host = host!(Feature::Bridge, Feature::NftMasquerade);
    let before = host.snapshot();
    let words = format!(
        "-f {} --pod my-namespace/my-partner --partner my-namespace/my-pod",
        workspace().join("examples").display()
    );
    let shown = demo(&host, &words).finish().success();
    assert_says(
        &shown,
        &["pings from my-namespace/my-partner to my-namespace/my-pod", "blue 10.101.2.44  net2 10.101.2"],
    );
    host.assert_unchanged(&before);
}

/// Writes manifests of two pods on one network with this plugin, and the configuration of the meta-plugin.
fn script(host: &Host, plugin: &Value) {
    let pod = |name: &str| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "ns",
            "annotations": {"k8s.v1.cni.cncf.io/networks": "net-a"}}})
    };
    let mut config = plugin.clone();
    config["cniVersion"] = "1.1.0".into();
    config["name"] = "net-a".into();
    let definition = json!({"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": {"name": "net-a", "namespace": "ns"}, "spec": {"config": config.to_string()}});
    let home = json!({"cniVersion": "1.1.0", "name": "home", "type": "bridge", "bridge": "home0",
        "ipam": {"type": "host-local", "subnet": "10.7.0.0/24", "dataDir": "/run/weft-example/addresses"}});
    let weft = json!({"cniVersion": "1.1.0", "name": "w", "type": "weft", "delegates": [home]});
    for (name, object) in
        [("a.json", pod("a")), ("b.json", pod("b")), ("n.json", definition), ("weft.conf", weft)]
    {
        host.write(format!("{MANIFESTS}/{name}"), object.to_string());
    }
    host.install(&testkit::binary("weft-test-plugin"), &["one"]);
}

#[test]
fn demo_ends_and_cleans_up_after_plugin_failure() {
    let host = host!(Feature::Bridge);
    script(&host, &json!({"type": "one", "testPlugin": {"ADD": [{"do": "fail", "message": "not today"}]}}));
    let before = host.snapshot();
    let failed = demo(&host, &format!("-f {MANIFESTS}")).finish();
    assert_eq!(failed.code, Some(1), "{failed}");
    assert_says(
        &failed,
        &["weft: demo: attach ns/a net1: ", "not today", "removed /run/netns/weft-demo-", "no difference"],
    );
    host.assert_unchanged(&before);
}

#[test]
fn demo_cleans_up_on_sigint_and_sigterm() {
    let host = host!(Feature::Bridge);
    script(&host, &json!({"type": "one", "testPlugin": {"ADD": [{"do": "sleep", "milliseconds": 1500}]}}));
    let before = host.snapshot();
    for signal in [Signal::INT, Signal::TERM] {
        let running = demo(&host, &format!("-f {MANIFESTS}")).start();
        let until = Instant::now() + LIMIT;
        while host.snapshot().titles("file /run/netns/").count() < 2 {
            assert!(Instant::now() < until, "the demo makes no namespaces");
            std::thread::sleep(Duration::from_millis(20));
        }
        kill_process(Pid::from_raw(running.id().cast_signed()).unwrap(), signal).unwrap();
        assert_eq!(running.finish(LIMIT).code(), Some(130));
        host.assert_unchanged(&before);
    }
}

#[test]
fn demo_interrupted_at_any_time_cleans_up() {
    let host = host!(Feature::Bridge, Feature::NftMasquerade);
    let before = host.snapshot();
    for delay in (0..400).step_by(40) {
        let running = demo(&host, "").start();
        std::thread::sleep(Duration::from_millis(delay));
        kill_process(Pid::from_raw(running.id().cast_signed()).unwrap(), Signal::INT).unwrap();
        let ended = running.finish(LIMIT);
        // Before the demo handles the signal, the signal ends it, and there is nothing to remove.
        assert!(matches!(ended.code(), Some(0 | 130)) || ended.signal() == Some(2), "{delay} ms: {ended:?}");
        host.assert_unchanged(&before);
    }
}

#[test]
fn demo_removes_leftovers_of_a_killed_demo() {
    let host = host!(Feature::Bridge, Feature::NftMasquerade);
    let before = host.snapshot();
    for delay in [60, 150] {
        let running = demo(&host, "").start();
        std::thread::sleep(Duration::from_millis(delay));
        running.kill();
        // `weft-cni` may still be at work.
        std::thread::sleep(Duration::from_millis(300));
        demo(&host, "").finish().success();
        // The demo does not know which process created the empty directory of the copies, so it remains.
        let changes = before.changes(&host.snapshot());
        let files = changes.lines().filter(|line| !line.starts_with("+ directory /run/weft"));
        assert_eq!(files.collect::<Vec<_>>(), [""; 0], "killed after {delay} ms");
    }
}

#[test]
fn demo_fails_if_a_ping_has_no_answer() {
    let host = host!(Feature::Bridge);
    let isolated = json!({"type": "bridge", "bridge": "iso0", "portIsolation": true,
        "ipam": {"type": "host-local", "subnet": "10.8.0.0/24", "dataDir": "/run/weft-example/addresses"}});
    script(&host, &isolated);
    let before = host.snapshot();
    let failed = demo(&host, &format!("-f {MANIFESTS}")).finish();
    assert_eq!(failed.code, Some(1), "{failed}");
    assert_says(&failed, &["weft: demo: no reply from 10.8.0.3 across ns/net-a", "no difference"]);
    host.assert_unchanged(&before);
}

#[test]
fn demo_reports_files_that_a_plugin_leaves_on_the_machine() {
    let host = host!(Feature::Bridge);
    script(&host, &json!({"type": "one", "testPlugin": {"record": "/run/cni/left-behind"}}));
    host.write("/run/cni/other", "");
    let left = demo(&host, &format!("-f {MANIFESTS}")).finish();
    assert_eq!(left.code, Some(1), "{left}");
    assert_says(&left, &["+ file /run/cni/left-behind", "weft: demo: this machine changed in 1 places"]);
}

#[test]
fn demo_requires_two_pods() {
    let host = host!();
    script(&host, &json!({"type": "one"}));
    host.run(["rm", &format!("{MANIFESTS}/b.json")]);
    let before = host.snapshot();
    let failed = demo(&host, &format!("-f {MANIFESTS}")).finish();
    assert_eq!(failed.code, Some(1), "{failed}");
    assert_says(&failed, &["the demo needs two pods, but the manifests contain 1", "--partner"]);
    host.assert_unchanged(&before);
}
