//! `weft test` with a real API server and no kubelet: what it refuses, which rights it needs, and which pods it creates
//! and removes.
//!
//! ```text
//!   weft test (a user with few rights) ── pods ──► kube-apiserver ◄── the test deletes them as a kubelet does
//! ```

use rig::agent::{Agent, NAMESPACE};
use rig::machine::until;
use rig::parts::text;
use serde_json::{Value, json};
use testkit::{Finished, host};

use rig::Machine;

const LABEL: &str = "weft.dev/test";

fn weft(agent: &Agent, configuration: &str, line: &str) -> Finished {
    let program = testkit::binary("weft");
    let command = agent.machine.command(text(&program)).env("KUBECONFIG", configuration).args(["test"]);
    command.args(line.split_whitespace()).deadline(rig::machine::TIMEOUT).finish()
}

/// Creates a ready node.
fn node(agent: &Agent, name: &str) {
    let ready = json!({ "type": "Ready", "status": "True", "reason": "a", "message": "a",
        "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z" });
    let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name }, "status": { "conditions": [ready] } });
    agent.kube.apply(&node.to_string());
}

/// Creates a user with the rights that the document names, and returns the kubeconfig.
fn user(agent: &Agent) -> String {
    let configuration = agent.kube.service_account("default", "tester");
    let account = "--serviceaccount=default:tester";
    let networks = "network-attachment-definitions.k8s.cni.cncf.io";
    for words in [
        "create clusterrole tester --verb=list --resource=nodes".to_owned(),
        format!("create clusterrolebinding tester --clusterrole=tester {account}"),
        "create role -n kube-system tester-agents --verb=list --resource=daemonsets.apps".to_owned(),
        format!("create rolebinding -n kube-system tester-agents --role=tester-agents {account}"),
        format!("create role -n {NAMESPACE} tester-networks --verb=get,list --resource={networks}"),
        format!("create rolebinding -n {NAMESPACE} tester-networks --role=tester-networks {account}"),
        format!("create role -n {NAMESPACE} tester-pods --verb=list,create,delete --resource=pods"),
        format!("create rolebinding -n {NAMESPACE} tester-pods --role=tester-pods {account}"),
    ] {
        agent.kube.kubectl(words.split(' '));
    }
    configuration
}

fn pods(agent: &Agent) -> Vec<Value> {
    agent.kube.json(["pods", "-A", "-l", LABEL])["items"].as_array().expect("a list").clone()
}

#[test]
fn network_test_refusals_name_the_next_step() {
    let Some(agent) = Agent::new(Machine::new(host!(), "node")) else { return };
    let configuration = user(&agent);
    let refused = |line: &str, words: &[&str]| {
        let finished = weft(&agent, &configuration, line);
        assert_eq!(finished.code, Some(1), "{line}: {finished}");
        for word in words {
            assert!(finished.stderr.contains(word), "{line}: {word}: {finished}");
        }
    };
    let blue = format!("-n {NAMESPACE}");
    refused(&blue, &["has no networks", "--network NAMESPACE/NAME"]);
    agent.define(["a", "b"]);
    refused(&format!("{blue} --network c"), &["network blue/c: "]);
    refused(&blue, &["no ready node"]);
    for name in ["worker-1", "worker-2", "worker-3"] {
        node(&agent, name);
    }
    refused(&format!("{blue} --nodes worker-9"), &["worker-9: the cluster has no such node"]);
    refused(&format!("{blue} --limit 5"), &["2 networks between 3 pairs of nodes are 6 tests", "--limit"]);
    // Networks of all namespaces, for a user with the right to list them.
    refused("-A", &["list networks of the cluster: ", "forbidden"]);
    agent.kube.apply(&rig::kube::namespace("green"));
    let metadata = json!({ "name": "c", "namespace": "green" });
    let definition = json!({ "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": metadata, "spec": { "config": r#"{"type":"bridge"}"# } });
    agent.kube.apply(&definition.to_string());
    let all = weft(&agent, &agent.kube.admin(), "-A --limit 8");
    assert_eq!(all.code, Some(1), "{all}");
    assert!(all.stderr.contains("3 networks between 3 pairs of nodes are 9 tests"), "{all}");
    // A tenant's DaemonSet with the labels of weft.
    let labels = json!({ "app.kubernetes.io/name": "weft", "app.kubernetes.io/component": "agent" });
    let set = json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": { "name": "weft-agent", "namespace": NAMESPACE, "labels": labels },
        "spec": {
            "selector": { "matchLabels": labels },
            "template": {
                "metadata": { "labels": labels },
                "spec": { "containers": [{ "name": "agent", "image": "example.com/other" }] },
            },
        },
    });
    agent.kube.apply(&set.to_string());
    refused(&blue, &["kube-system has no DaemonSet of weft", "--agent-namespace", "--image"]);
    refused("-n other", &["forbidden"]);
    assert!(pods(&agent).is_empty());
}

#[test]
fn network_test_without_kubelet_times_out_and_removes_its_pods() {
    let Some(agent) = Agent::with_networks(host!(), ["a"]) else { return };
    let configuration = user(&agent);
    for name in ["worker-1", "worker-2"] {
        node(&agent, name);
    }
    // A pod of a run that was killed long ago.
    let metadata = json!({ "name": "weft-test-old", "namespace": NAMESPACE, "labels": { LABEL: "old" },
        "annotations": { "weft.dev/test-expires": "1000" } });
    let old = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata,
        "spec": { "containers": [{ "name": "c", "image": "none" }] } });
    agent.kube.apply(&old.to_string());
    agent.kube.apply(&agent.kube.kustomize("base"));
    let line = format!("-n {NAMESPACE} --timeout 30");
    let finished = std::thread::scope(|scope| {
        let running = scope.spawn(|| weft(&agent, &configuration, &line));
        let pod =
            until("a pod", || pods(&agent).into_iter().find(|pod| pod["spec"]["nodeName"] == "worker-1"));
        let container = &pod["spec"]["containers"][0];
        assert_eq!(container["image"], "ghcr.io/weft-net/weft:0.1.0", "{pod}");
        assert_eq!(container["securityContext"]["capabilities"]["drop"], json!(["ALL"]), "{pod}");
        assert_eq!(pod["spec"]["activeDeadlineSeconds"], 60, "{pod}");
        // There is no kubelet that ends the pod.
        until("the pod is deleted", || {
            pods(&agent).iter().any(|pod| !pod["metadata"]["deletionTimestamp"].is_null()).then_some(())
        });
        agent.delete_pod(pod["metadata"]["name"].as_str().expect("a name"));
        running.join().expect("no panic")
    });
    assert_eq!(finished.code, Some(1), "{finished}");
    for words in [
        "deleted pod blue/weft-test-old of a killed run",
        "ERROR",
        "timeout: pod weft-test-",
        "does not start",
    ] {
        assert!(finished.stdout.contains(words), "{words}: {finished}");
    }
    assert!(pods(&agent).is_empty());
}
