//! Node agent with a real API server, the shipped RBAC and no capabilities.
//!
//! ```text
//!   kube-apiserver ◄── weft agent (ServiceAccount kube-system/weft-agent) ◄── /run/weft/agent.sock ◄── weft-cni
//! ```

use std::sync::Arc;

use serde_json::{Value, json};
use testkit::{Attachment, Host, Pod};

use crate::cluster::bridge;
use crate::kube::{Kube, files, namespace};
use crate::machine::{Machine, until};
use crate::parts::text;

/// Node name.
pub const NODE: &str = "worker-1";
/// Namespace for the pods.
pub const NAMESPACE: &str = "blue";
/// URL for the agent's metrics and health pages.
const PAGES: &str = "http://127.0.0.1:9464";
/// Variable that makes agents run under the admission policies of weft.
const ADMISSION: &str = "WEFT_TEST_ADMISSION";
/// First version of Kubernetes whose tokens name the node.
const NODE_IN_TOKEN_MINOR: u32 = 32;
const SERVICE: &str = "agent";

/// Node with an agent.
pub struct Agent {
    /// Machine that is the node.
    pub machine: Arc<Machine>,
    /// API server.
    pub kube: Kube,
    configuration: String,
    node: String,
}

// === impl Agent ===

impl Agent {
    /// Starts an API server with the definitions CRD, and a node with plugins and an agent that is ready. If the lane
    /// was not prepared, the test is skipped and the result is `None`.
    #[must_use]
    #[track_caller]
    pub fn new(machine: impl Into<Arc<Machine>>) -> Option<Agent> {
        Kube::new(machine.into()).map(Agent::beside)
    }

    /// Starts the same with an own API server, which the test may stop.
    #[must_use]
    #[track_caller]
    pub fn own(machine: impl Into<Arc<Machine>>) -> Option<Agent> {
        Kube::own(machine.into()).map(Agent::beside)
    }

    /// Starts the same beside an API server.
    #[must_use]
    #[track_caller]
    pub fn beside(kube: Kube) -> Agent {
        let machine = kube.machine();
        let definitions = "deploy/crds/network-attachment-definitions.k8s.cni.cncf.io.yaml";
        kube.apply(&(files(&[definitions, "deploy/base/rbac.yaml"]) + &namespace(NAMESPACE)));
        kube.wait_until_served();
        let configuration = kube.service_account("kube-system", "weft-agent");
        if has_admission(&kube) {
            kube.apply(&files(&["deploy/admission/policies.yaml"]));
        }
        Agent::on(machine, kube, (configuration, NODE))
    }

    #[track_caller]
    fn on(machine: Arc<Machine>, kube: Kube, (configuration, node): (String, &str)) -> Agent {
        crate::install(&machine);
        machine.run(["mkdir", "-p", "-m", "700", "/var/lib/weft/sandboxes"]);
        let configuration = if has_admission(&kube) { bound_token(&kube, node) } else { configuration };
        let agent = Agent { machine, kube, configuration, node: node.to_owned() };
        agent.start(&[]);
        agent.wait_until_ready();
        agent
    }

    /// Starts another node in the same cluster, on another machine.
    #[must_use]
    #[track_caller]
    pub fn join(&self, machine: impl Into<Arc<Machine>>, node: &str) -> Agent {
        let machine = machine.into();
        let kube = self.kube.reached_from(&machine);
        let configuration = kube.service_account("kube-system", "weft-agent");
        Agent::on(machine, kube, (configuration, node))
    }

    /// Starts an agent on a new machine, in a cluster where these networks are defined ([`Agent::define`]).
    #[must_use]
    #[track_caller]
    pub fn with_networks<const COUNT: usize>(host: Host, names: [&str; COUNT]) -> Option<Agent> {
        let agent = Agent::new(Machine::new(host, "node"))?;
        agent.define(names);
        Some(agent)
    }

    /// Creates bridge networks with these names, each with a separate subnet.
    #[track_caller]
    pub fn define<const COUNT: usize>(&self, names: [&str; COUNT]) {
        for (name, subnet) in names.into_iter().zip(11..) {
            self.definition(name, &json!({}), &bridge(name, subnet));
        }
    }

    /// Starts the agent with additional arguments.
    #[track_caller]
    pub fn start(&self, words: &[&str]) {
        self.start_with_environment(&[], words);
    }

    /// Starts the agent with these environment variables, `NAME=VALUE`.
    #[track_caller]
    pub fn start_with_environment(&self, environment: &[&str], words: &[&str]) {
        let weft = testkit::binary("weft");
        let bare = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"];
        let fixed = [
            text(&weft),
            "agent",
            "--node-name",
            &self.node,
            "--kubeconfig",
            &self.configuration,
            "--log",
            "debug,hyper=info,kube=info,tower=info",
        ];
        let line = bare.into_iter().chain(["env"]).chain(environment.iter().copied());
        self.machine.start(SERVICE, line.chain(fixed).chain(words.iter().copied()));
    }

    /// Returns the path of the agent's kubeconfig.
    #[must_use]
    pub fn configuration(&self) -> &str {
        &self.configuration
    }

    /// Stops the agent with a signal.
    #[track_caller]
    pub fn stop(&self, signal: &str) {
        self.machine.stop(SERVICE, signal);
    }

    /// Returns the agent's log.
    #[must_use]
    pub fn log(&self) -> String {
        self.machine.log(SERVICE)
    }

    /// Waits until `/readyz` answers `ok`.
    #[track_caller]
    pub fn wait_until_ready(&self) {
        self.machine.wait(SERVICE, "is ready", || (self.page("/readyz") == "ok\n").then_some(()));
    }

    /// Fetches an HTTP page from the agent.
    #[must_use]
    #[track_caller]
    pub fn page(&self, path: &str) -> String {
        self.machine.attempt(["curl", "-s", &format!("{PAGES}{path}")]).stdout
    }

    /// Returns a metric; `line` is the name with labels, including the space that follows.
    #[must_use]
    #[track_caller]
    pub fn metric(&self, line: &str) -> Option<f64> {
        let page = self.page("/metrics");
        let found = page.lines().find_map(|found| found.strip_prefix(line))?;
        found.trim().parse().ok()
    }

    /// Creates a definition in the pods' namespace.
    #[track_caller]
    pub fn definition(&self, name: &str, annotations: &Value, config: &Value) {
        let definition = json!({
            "apiVersion": "k8s.cni.cncf.io/v1",
            "kind": "NetworkAttachmentDefinition",
            "metadata": { "name": name, "namespace": NAMESPACE, "annotations": annotations },
            "spec": { "config": config.to_string() },
        });
        self.kube.apply(&definition.to_string());
    }

    /// Creates a pod on this node with these annotations; returns the uid.
    #[track_caller]
    pub fn pod(&self, name: &str, annotations: &Value) -> String {
        self.kube
            .attempt(["create", "-f", "-"], &manifest(name, &self.node, annotations).to_string())
            .success();
        self.kube.json(["pod", "-n", NAMESPACE, name])["metadata"]["uid"].as_str().expect("a uid").to_owned()
    }

    /// Creates many pods on this node with the same annotations; returns the uids.
    #[track_caller]
    pub fn pods(&self, names: &[String], annotations: &Value) -> Vec<String> {
        let pod = |name: &String| manifest(name, &self.node, annotations);
        let list =
            json!({ "apiVersion": "v1", "kind": "List", "items": names.iter().map(pod).collect::<Vec<_>>() });
        self.kube.apply(&list.to_string());
        let all = self.kube.json(["pods", "-n", NAMESPACE]);
        let all = all["items"].as_array().expect("a list");
        let uid = |name: &String| {
            let found = all.iter().find(|pod| pod["metadata"]["name"] == *name).expect("the pod");
            found["metadata"]["uid"].as_str().expect("a uid").to_owned()
        };
        names.iter().map(uid).collect()
    }

    /// Deletes a pod immediately, as a kubelet does after the pod has ended.
    #[track_caller]
    pub fn delete_pod(&self, name: &str) {
        self.kube.kubectl(["delete", "pod", "-n", NAMESPACE, name, "--force", "--grace-period=0"]);
    }

    /// Returns the CNI parameters that a container runtime would use for the sandbox `pod`, which belongs to the pod
    /// `name` with this uid.
    #[must_use]
    pub fn attachment(&self, pod: &Pod, name: &str, uid: &str) -> Attachment<'_> {
        let mut attachment = self.machine.attachment("weft", pod, "eth0");
        let id = pod.container_id();
        attachment.args = format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE={NAMESPACE};K8S_POD_NAME={name};K8S_POD_INFRA_CONTAINER_ID={id};K8S_POD_UID={uid}"
        );
        attachment
    }

    /// Returns a pod annotation.
    #[must_use]
    #[track_caller]
    pub fn annotation(&self, name: &str, key: &str) -> Option<String> {
        let pod = self.kube.json(["pod", "-n", NAMESPACE, name]);
        pod["metadata"]["annotations"][key].as_str().map(str::to_owned)
    }

    /// Waits for a pod's network-status.
    #[must_use]
    #[track_caller]
    pub fn status(&self, name: &str) -> Vec<Value> {
        let text = until("network-status", || self.annotation(name, "k8s.v1.cni.cncf.io/network-status"));
        serde_json::from_str(&text).expect("network-status is JSON")
    }

    /// Lists a pod's Events as `REASON note`.
    #[must_use]
    #[track_caller]
    pub fn events(&self, name: &str) -> Vec<String> {
        let events = self.kube.json(["events.events.k8s.io", "-n", NAMESPACE]);
        let events = events["items"].as_array().expect("a list");
        let of_pod = events.iter().filter(|event| event["regarding"]["name"] == name);
        let words = of_pod.map(|event| {
            format!(
                "{} {}",
                event["reason"].as_str().unwrap_or_default(),
                event["note"].as_str().unwrap_or_default()
            )
        });
        words.collect()
    }
}

/// Whether agents run under weft's admission policies, with tokens that name the node: only on request, because the
/// pods in the tokens are then pods on the nodes.
fn has_admission(kube: &Kube) -> bool {
    std::env::var_os(ADMISSION).is_some() && kube.minor() >= NODE_IN_TOKEN_MINOR
}

/// Returns a kubeconfig with a token that is bound to a pod of the node.
fn bound_token(kube: &Kube, node: &str) -> String {
    let name = format!("weft-agent-{node}");
    let spec = json!({ "nodeName": node, "serviceAccountName": "weft-agent", "automountServiceAccountToken": false,
        "containers": [{ "name": "c", "image": "none" }] });
    let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": "kube-system" },
        "spec": spec });
    kube.apply(&pod.to_string());
    let uid = &kube.json(["pod", "-n", "kube-system", &name])["metadata"]["uid"];
    let request = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
        "spec": { "boundObjectRef": { "kind": "Pod", "apiVersion": "v1", "name": name, "uid": uid } } });
    let path = "/api/v1/namespaces/kube-system/serviceaccounts/weft-agent/token";
    let answer = kube.attempt(["create", "--raw", path, "-f", "-"], &request.to_string()).success().json();
    kube.configuration(&name, &json!({ "token": answer["status"]["token"] }))
}

/// Returns the meta-plugin configuration for a node with an agent.
#[must_use]
pub fn configuration(default: &Value) -> Value {
    json!({ "cniVersion": "1.0.0", "name": "weft-net", "type": "weft", "delegates": [default] })
}

/// Returns the meta-plugin configuration for a node whose default network is a bridge.
#[must_use]
pub fn node_configuration() -> Value {
    configuration(&bridge("home", 10))
}

fn manifest(name: &str, node: &str, annotations: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": NAMESPACE, "annotations": annotations, "labels": { "app": name } },
        "spec": { "nodeName": node, "containers": [{ "name": "c", "image": "none" }] },
    })
}
