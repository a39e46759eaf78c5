//! The page in a real browser: headless Chromium by WebDriver, with axe-core for accessibility.

use std::path::PathBuf;

use rig::Machine;
use rig::kube::{Kube, files};
use rig::parts::{parts, text};
use serde_json::{Value, json};
use testkit::{Finished, host, workspace};

use super::cluster::{HOSTILE, OPEN, PAGE, PROTECTED, PageCluster, STATUS, event, node, pod, pool};

/// Browser, and the directory for screenshots.
struct Browser {
    parts: PathBuf,
}

impl Browser {
    /// Returns the browser of the lane; `None`, and the test is skipped, if there is none.
    fn new() -> Option<Browser> {
        parts("browser").map(|parts| Browser { parts })
    }

    /// Runs the steps in one part of `browser.py`; returns the findings by name.
    fn run(&self, cluster: &PageCluster, part: &str, url: &str, token: &str) -> Finished {
        let script = workspace().join("lanes/kube/browser.py");
        let axe = self.parts.join("axe.min.js");
        let screenshots = std::env::var("WEFT_SCREENSHOTS").unwrap_or_default();
        let words = [text(&script), part, url, text(&axe), token, &screenshots];
        let command = cluster.machine.command("python3").args(words);
        command.deadline(std::time::Duration::from_secs(240)).finish()
    }
}

/// Asserts that each finding of the browser is as expected, and that there are some.
#[track_caller]
fn assert_all(finished: &Finished) {
    let findings: Vec<Value> =
        finished.stdout.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    assert!(finished.code == Some(0) && findings.len() > 3, "{finished}");
    let wrong: Vec<&Value> = findings.iter().filter(|finding| finding["ok"] != true).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Policy for networks, with this selector and as many rules.
fn policy(
    namespace: &str,
    name: &str,
    networks: &str,
    (selector, ingress, egress): (&str, usize, usize),
) -> Value {
    let rules = |count: usize| vec![json!({}); count];
    json!({
        "apiVersion": "k8s.cni.cncf.io/v1beta1", "kind": "MultiNetworkPolicy",
        "metadata": { "name": name, "namespace": namespace, "annotations": { "k8s.v1.cni.cncf.io/policy-for": networks } },
        "spec": {
            "podSelector": { "matchLabels": { "app": selector } },
            "policyTypes": ["Ingress", "Egress"], "ingress": rules(ingress), "egress": rules(egress),
        },
    })
}

/// Cluster with 2,000 pods and 50 networks, with policies, and with each kind of failure.
fn full_cluster(kube: Kube) -> PageCluster {
    let cluster = PageCluster::on(kube);
    cluster.kube.apply(&files(&["deploy/policy/multi-networkpolicies.k8s.cni.cncf.io.yaml"]));
    cluster.kube.wait_until_served();
    cluster.fill(50, 2000);
    let mut hostile = pod("blue", "hostile", "worker-01", &[], 1);
    let entry = json!([{ "name": HOSTILE, "interface": HOSTILE, "ips": [HOSTILE], "mac": HOSTILE }]);
    hostile["metadata"]["annotations"][STATUS] = json!(entry.to_string());
    let mut broken = pod("blue", "broken", "worker-02", &["blue/net-00".to_owned()], 2);
    broken["metadata"]["annotations"] = json!({ "k8s.v1.cni.cncf.io/networks": "net-00,net-99" });
    let mut objects = vec![
        policy("blue", "deny-all", "net-00", ("web", 0, 0)),
        policy("blue", "of-another-network", "net-01", ("web", 0, 0)),
        policy("red", "hostile", &format!("{HOSTILE}, blue/net-00"), (HOSTILE, 2, 1)),
        policy("red", "of-its-own-network", "net-00", ("web", 0, 0)),
        hostile,
        broken,
        event("blue", "hostile", "Warning", "AttachFailed", HOSTILE),
        event(
            "blue",
            "broken",
            "Warning",
            "AttachFailed",
            "blue/net-99: the NetworkAttachmentDefinition does not exist",
        ),
        event("blue", "pod-0000", "Normal", "AddedInterface", "eth0 home, net1 blue/net-00"),
        event("blue", "pod-0000", "Warning", "InterfaceDrifted", "net1: the address 10.10.0.2/16 is gone"),
    ];
    objects.extend(
        (0..20).map(|number| node(&format!("worker-{number:02}"), u64::from(number == 2), "blue/broken")),
    );
    cluster.apply_all(&objects);
    cluster.run_pod("blue", "broken");
    cluster.run_pod("blue", "pod-0000");
    for (range, used, leased) in
        [("10.10.0.0/16", 48_000, 800), ("10.13.0.0/16", 1_200, 40), ("10.16.0.0/16", 63_000, 1010)]
    {
        pool(&cluster.kube, range, used, leased);
    }
    cluster
}

#[test]
fn page_in_a_browser_is_live_accessible_and_fits_a_phone() {
    let Some(browser) = Browser::new() else { return };
    let Some(kube) = Kube::new(Machine::new(host!(), "control").into()) else { return };
    let cluster = full_cluster(kube);
    cluster.start(OPEN);
    assert_all(&browser.run(&cluster, "views", &format!("http://{OPEN}"), ""));
}

#[test]
fn page_in_a_browser_lists_each_failing_pod_once() {
    let Some(browser) = Browser::new() else { return };
    let Some(kube) = Kube::new(Machine::new(host!(), "control").into()) else { return };
    let cluster = PageCluster::on(kube);
    cluster.fill(1, 1);
    let why = "attach red/web net1: macvlan: master \"eth9\": no such interface; set \"master\" to an interface of \
               this node, or change the network for nodes without it";
    let mut objects = Vec::new();
    for number in 0..23 {
        let name = format!("stuck-{number:02}");
        let mut stuck = pod("red", &name, "worker-01", &[], 1);
        stuck["metadata"]["annotations"] = json!({ "k8s.v1.cni.cncf.io/networks": "gone" });
        objects.push(stuck);
        for (reason, at, count) in [
            ("NoNetworkFound", "00", 1),
            ("NetworkRefused", "01", 3),
            ("AttachFailed", "02", 40),
            ("NodeUnknown", "01", 1),
        ] {
            let mut event = event("red", &name, "Warning", reason, why);
            let time = format!("2026-11-26T03:00:{at}.000000Z");
            event["eventTime"] = json!(time);
            // A series has at least two Events.
            if count > 1 {
                event["series"] = json!({ "count": count, "lastObservedTime": time });
            }
            objects.push(event);
        }
    }
    let recovered = [
        event("blue", "pod-0000", "Warning", "AttachFailed", why),
        event("blue", "pod-0000", "Normal", "AddedInterface", "Add eth0"),
    ];
    cluster.apply_all(&objects);
    cluster.apply_all(&recovered);
    cluster.start(OPEN);
    assert_all(&browser.run(&cluster, "failing", &format!("http://{OPEN}"), ""));
}

#[test]
fn page_in_a_browser_signs_in_and_shows_lost_connections() {
    let Some(browser) = Browser::new() else { return };
    let Some(kube) = Kube::own(Machine::new(host!(), "control").into()) else { return };
    let cluster = PageCluster::on(kube);
    cluster.fill(4, 20);
    let (all, none) = (cluster.viewer("all", "", "pods"), cluster.viewer("none", "", ""));
    cluster.start(PROTECTED);
    let url = format!("http://{PROTECTED}");
    assert_all(&browser.run(&cluster, "sign-in", &url, &format!("{all} {none}")));
    cluster.machine.stop(PAGE, "TERM");
    cluster.start(OPEN);
    cluster.kube.stop("kube-apiserver", "KILL");
    assert_all(&browser.run(&cluster, "away", &format!("http://{OPEN}"), ""));
}
