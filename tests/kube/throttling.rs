//! Real API server that throttles requests (429), and a clock that jumps.
//!
//! Source: Kubernetes, `--max-mutating-requests-inflight` and 429 with Retry-After; libfaketime(1).

use std::thread::sleep;
use std::time::Duration;

use rig::agent::node_configuration;
use rig::machine::until;
use rig::parts::{parts, text};
use rig::{Agent, Machine};
use serde_json::{Value, json};
use testkit::{Feature, Pod, host};

const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";
const STATUS: &str = "k8s.v1.cni.cncf.io/network-status";
/// File with the offset of the clock, as libfaketime reads it.
const CLOCK: &str = "/run/clock";

fn select() -> Value {
    json!({ NETWORKS: "net-a" })
}

/// Waits until the agent's cache is up to date and contains this number of pods.
#[track_caller]
fn until_up_to_date(agent: &Agent, pods: f64) {
    until("the agent is up to date", || {
        let age = agent.metric("weft_cache_age_seconds{resource=\"pods\"}")?;
        let known = agent.metric("weft_cache_objects{resource=\"pods\"}")?;
        (age == 0.0 && known >= pods).then_some(())
    });
}

/// Occupies the server's only slot for mutating requests with a request that never ends.
fn occupy_the_only_slot(agent: &Agent) {
    let (kube, machine) = (&agent.kube, &agent.machine);
    let script = "mkfifo /run/hold && exec 3<>/run/hold && exec curl -s --cacert \"$1\" --cert \"$2\" --key \"$3\" \
                  -H 'Content-Type: application/json' -X POST -T - \"$4\" <&3";
    let url = format!("{}/api/v1/namespaces/default/configmaps", rig::kube::SERVER);
    let words = [&kube.pki("ca.crt"), &kube.pki("admin.crt"), &kube.pki("admin.key"), &url];
    let line = ["bash", "-c", script, "bash"].into_iter().chain(words.into_iter().map(String::as_str));
    machine.start("holder", line);
}

/// Status code of a mutating request with the agent's identity.
fn patch(agent: &Agent) -> String {
    let token = agent.kube.token("kube-system", "weft-agent");
    let url = format!("{}/api/v1/namespaces/blue/pods/missing/status", rig::kube::SERVER);
    let line = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "--cacert", &agent.kube.pki("ca.crt")];
    let line = line.into_iter().chain([
        "-H",
        "Content-Type: application/merge-patch+json",
        "-X",
        "PATCH",
        "-d",
        "{}",
    ]);
    let bearer = format!("Authorization: Bearer {token}");
    agent.machine.attempt(line.chain(["-H", &bearer, &url])).stdout
}

#[test]
fn throttled_api_delays_status_but_no_pod() {
    let Some(agent) = Agent::own(Machine::new(host!(Feature::Bridge), "node")) else { return };
    agent.define(["net-a"]);
    let uid = agent.pod("web", &select());
    agent.kube.stop("kube-apiserver", "KILL");
    let one = ["--enable-priority-and-fairness=false", "--max-mutating-requests-inflight=1"];
    agent.kube.launch_server_with(&one);
    agent.kube.wait();
    until_up_to_date(&agent, 1.0);
    occupy_the_only_slot(&agent);
    until("requests are refused", || (patch(&agent) == "429").then_some(()));
    let web = agent.machine.pod("web");
    agent.attachment(&web, "web", &uid).add(&node_configuration()).success();
    assert!(rig::link(&web, "net1").is_some());
    let failed = "weft_status_updates_total{outcome=\"failed\"}";
    until("the status is refused", || agent.metric(failed).filter(|count| *count >= 1.0));
    assert_eq!(agent.annotation("web", STATUS), None);
    agent.machine.stop("holder", "KILL");
    assert_eq!(agent.status("web").len(), 2);
    agent.attachment(&web, "web", &uid).del(&node_configuration()).success();
}

#[test]
fn clock_jump_delays_neither_pods_nor_status() {
    let Some(agent) = Agent::with_networks(host!(Feature::Bridge), ["net-a"]) else { return };
    let Some(parts) = parts("kube") else { return };
    let library = parts.join("faketime/usr/lib");
    let find = ["find", text(&library), "-name", "libfaketime.so.1"];
    let library = agent.machine.run(find).trim().to_owned();
    assert!(!library.is_empty(), "lanes/kube/prepare provides libfaketime");
    agent.stop("TERM");
    agent.machine.write(CLOCK, "+0");
    let environment = [
        format!("LD_PRELOAD={library}"),
        format!("FAKETIME_TIMESTAMP_FILE={CLOCK}"),
        "FAKETIME_NO_CACHE=1".to_owned(),
        "FAKETIME_DONT_FAKE_MONOTONIC=1".to_owned(),
    ];
    agent.start_with_environment(&environment.each_ref().map(String::as_str), &["--orphan-grace", "60"]);
    agent.wait_until_ready();
    let old = (agent.machine.pod("old"), agent.pod("old", &select()));
    let attach = |pod: &Pod, name: &str, uid: &str| {
        agent.attachment(pod, name, uid).add(&node_configuration()).success()
    };
    attach(&old.0, "old", &old.1);
    assert_eq!(agent.status("old").len(), 2);
    for (number, offset) in ["+400d", "-1h", "+0"].iter().enumerate() {
        agent.machine.write(CLOCK, offset);
        let name = format!("p{number}");
        let (pod, uid) = (agent.machine.pod(&name), agent.pod(&name, &select()));
        attach(&pod, &name, &uid);
        assert_eq!(agent.status(&name).len(), 2, "{offset}");
        // Long enough for another search for orphaned sandboxes.
        sleep(Duration::from_millis(600));
        assert!(agent.machine.read(rig::cluster::entry_path(&old.0)).is_some(), "{offset}");
        agent.attachment(&pod, &name, &uid).del(&node_configuration()).success();
    }
    let moved = agent.log();
    let years: std::collections::BTreeSet<&str> = moved.lines().filter_map(|line| line.get(..4)).collect();
    assert!(years.len() > 1, "the agent's clock jumped: {years:?}");
    agent.attachment(&old.0, "old", &old.1).del(&node_configuration()).success();
}
