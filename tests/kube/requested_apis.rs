//! Versions of the APIs that weft requests: none is deprecated, so the next release of Kubernetes still serves them.
//!
//! Source: Kubernetes, "Deprecation Policy"; the API server's metric `apiserver_requested_deprecated_apis`.

use rig::kube::files;
use rig::machine::until;
use rig::parts::text;
use rig::{Agent, Machine};
use serde_json::json;
use testkit::{Feature, host};

/// Controllers of the cluster: name, option, listen address.
const CONTROLLERS: [(&str, &str, &str); 3] = [
    ("services", "--services", "127.0.0.1:9465"),
    ("ipam", "--ipam", "127.0.0.1:9466"),
    ("policy", "--policy", "127.0.0.1:9467"),
];

#[test]
fn requested_apis_of_agent_and_controllers_are_not_deprecated() {
    // Its own server: the metric counts requests of all clients since its start.
    let Some(agent) = Agent::own(Machine::new(host!(Feature::Bridge, Feature::Veth), "node")) else { return };
    let weft = testkit::binary("weft");
    agent.kube.apply(&agent.machine.run([text(&weft), "crds"]));
    agent.kube.apply(&files(&[
        "deploy/policy/policyaddresssets.weft.dev.yaml",
        "deploy/policy/multi-networkpolicies.k8s.cni.cncf.io.yaml",
    ]));
    agent.kube.wait_until_served();
    agent.define(["net-a"]);
    for (name, option, listen) in CONTROLLERS {
        let words = ["controller", option, "--listen", listen, "--kubeconfig", &agent.kube.admin()]
            .map(str::to_owned);
        agent.machine.start(name, [text(&weft)].into_iter().chain(words.iter().map(String::as_str)));
    }
    for (name, _, listen) in CONTROLLERS {
        agent.machine.wait(name, "is ready", || {
            let asked = agent.machine.attempt(["curl", "-sf", &format!("http://{listen}/readyz")]);
            asked.code.filter(|code| *code == 0)
        });
    }
    let uid = agent.pod("web", &json!({ "k8s.v1.cni.cncf.io/networks": "net-a" }));
    let pod = agent.machine.pod("web");
    agent.attachment(&pod, "web", &uid).add(&rig::agent::node_configuration()).success();
    until("the network-status is written", || (agent.status("web").len() == 2).then_some(()));
    let metrics = agent.kube.kubectl(["get", "--raw", "/metrics"]);
    let deprecated: Vec<&str> =
        metrics.lines().filter(|line| line.starts_with("apiserver_requested_deprecated_apis{")).collect();
    assert_eq!(deprecated, [""; 0]);
    let requests = metrics.lines().filter(|line| line.starts_with("apiserver_request_total{")).count();
    assert!(requests > 10, "{requests} kinds of requests: the server counts them under another name");
}
