//! Tests for an agent's metrics with a real API server: the format, and the alerts that recorded scrapes cause.

use rig::Agent;
use rig::agent::node_configuration;
use rig::alerts::{evaluate, names, recorded};
use serde_json::json;
use testkit::{Feature, host};

const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";
/// Number of failed ADDs: more than the alert tolerates.
const FAILURES: f64 = 8.0;

#[test]
fn metrics_of_an_agent_pass_promtool_and_alert_on_failed_adds() {
    let host = host!(Feature::Bridge, Feature::Promtool);
    let Some(agent) = Agent::with_networks(host, ["net-a"]) else { return };
    let uid = agent.pod("web", &json!({ NETWORKS: "net-a" }));
    let web = agent.machine.pod("web");
    agent.attachment(&web, "web", &uid).add(&node_configuration()).success();
    let attached = || {
        agent.metric("weft_attachments_total{plugin=\"bridge\",outcome=\"attached\"} ").filter(|n| *n > 1.0)
    };
    agent.machine.wait("agent", "counts the attachments", attached);
    let healthy = agent.page("/metrics");
    let checked =
        agent.machine.command("promtool").args(["check", "metrics"]).stdin(healthy.clone()).finish();
    assert_eq!((checked.code, checked.stderr.as_str()), (Some(0), ""), "{checked}");
    assert!(healthy.contains("weft_call_failures_total{verb=\"ADD\"} 0\n"), "{healthy}");
    assert!(healthy.contains("weft_tasks_total{task=\"publish\"} 0\n"), "{healthy}");

    // A pod selects a network that does not exist; the kubelet tries again.
    let uid = agent.pod("bad", &json!({ NETWORKS: "net-x" }));
    let bad = agent.machine.pod("bad");
    for _ in 0..FAILURES as usize {
        assert_ne!(agent.attachment(&bad, "bad", &uid).add(&node_configuration()).code, Some(0));
    }
    let counted = || agent.metric("weft_call_failures_total{verb=\"ADD\"} ").filter(|n| *n >= FAILURES);
    agent.machine.wait("agent", "counts the failures", counted);
    let failing = agent.page("/metrics");

    let alerts = names();
    let none: Vec<(&str, bool)> = alerts.iter().map(|name| (name.as_str(), false)).collect();
    let quiet = evaluate(&agent.machine, &recorded(&healthy, &healthy, 30), 55, &none);
    assert_eq!(quiet.code, Some(0), "{quiet}");
    let one: Vec<(&str, bool)> =
        alerts.iter().map(|name| (name.as_str(), name == "WeftPodsNotAttached")).collect();
    let fired = evaluate(&agent.machine, &recorded(&healthy, &failing, 30), 40, &one);
    assert_eq!(fired.code, Some(0), "{fired}");
}
