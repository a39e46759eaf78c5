//! Cluster without an API server: pods and network definitions are manifests in a directory on the host, and the
//! meta-plugin is called as a container runtime calls it.

use serde_json::{Value, json};
use testkit::{Attachment, Call, Host, Pod};

use crate::machine::until;

/// Manifest directory.
pub const MANIFESTS: &str = "/etc/cni/manifests";
/// File in which recording plugins write calls.
pub const RECORD: &str = "/run/cni/calls";
/// Namespace for the pods.
pub const NAMESPACE: &str = "blue";

/// Manifests on a host.
#[derive(Debug)]
pub struct Cluster<'a> {
    host: &'a Host,
}

impl<'a> Cluster<'a> {
    /// Installs `weft-cni`, and the recording plugin as `one`, `two` and `three`. There are no pods yet.
    #[track_caller]
    #[must_use]
    pub fn new(host: &'a Host) -> Cluster<'a> {
        crate::install(host);
        host.install(&testkit::binary("weft-test-plugin"), &["one", "two", "three"]);
        host.write(RECORD, "");
        Cluster { host }
    }

    /// Returns the manifests on a host where [`Cluster::new`] was called before.
    #[must_use]
    pub fn on(host: &'a Host) -> Cluster<'a> {
        Cluster { host }
    }

    /// Writes a pod that selects `networks`, which becomes the annotation value, either as a string or as JSON.
    #[track_caller]
    pub fn pod(&self, name: &str, networks: impl Into<Value>) {
        let text = match networks.into() {
            Value::String(text) => text,
            json => json.to_string(),
        };
        self.annotated(name, &json!({ "k8s.v1.cni.cncf.io/networks": text }));
    }

    /// Writes a pod with these annotations.
    #[track_caller]
    pub fn annotated(&self, name: &str, annotations: &Value) {
        let metadata = json!({ "name": name, "namespace": NAMESPACE, "annotations": annotations });
        let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata });
        self.host.write(format!("{MANIFESTS}/pod-{name}.json"), pod.to_string());
    }

    /// Writes a network definition.
    #[track_caller]
    pub fn definition(&self, name: &str, config: &Value) {
        self.annotated_definition(name, &json!({}), config);
    }

    /// Writes a network definition with annotations.
    #[track_caller]
    pub fn annotated_definition(&self, name: &str, annotations: &Value, config: &Value) {
        let definition = json!({
            "apiVersion": "k8s.cni.cncf.io/v1",
            "kind": "NetworkAttachmentDefinition",
            "metadata": { "name": name, "namespace": NAMESPACE, "annotations": annotations },
            "spec": { "config": config.to_string() },
        });
        self.host.write(format!("{MANIFESTS}/net-{name}.json"), definition.to_string());
    }

    /// Writes a definition with one recording plugin, installed as `plugin`, with instructions for each verb.
    #[track_caller]
    pub fn recording(&self, name: &str, plugin: &str, instructions: &Value) {
        self.definition(name, &recording(name, plugin, instructions));
    }

    /// Returns the calls that recording plugins have recorded since this function was last called. No plugin may run
    /// meanwhile, because the record would be lost.
    #[must_use]
    #[track_caller]
    pub fn calls(&self) -> Vec<Call> {
        let calls = self.recorded();
        self.host.write(RECORD, "");
        calls
    }

    /// Returns the same calls as [`Cluster::calls`], each as `VERB ifname`.
    #[must_use]
    #[track_caller]
    pub fn order(&self) -> Vec<String> {
        self.calls().iter().map(named).collect()
    }

    /// Waits until a plugin has recorded the call `VERB ifname`. [`Cluster::calls`] still returns that call.
    #[track_caller]
    pub fn await_call(&self, call: &str) {
        let is_made = || self.recorded().iter().any(|recorded| named(recorded) == call);
        until(&format!("the call {call}"), || is_made().then_some(()));
    }

    fn recorded(&self) -> Vec<Call> {
        let text = self.host.read(RECORD).unwrap_or_default();
        // A line without an end is still being written.
        let (whole, _) = text.rsplit_once('\n').unwrap_or_default();
        whole.lines().map(|line| serde_json::from_str(line).expect("a record")).collect()
    }

    /// Returns the CNI parameters with which a container runtime would call the meta-plugin for `pod`, whose manifest
    /// has the same name.
    #[must_use]
    pub fn attachment(&self, pod: &Pod) -> Attachment<'a> {
        let mut attachment = self.host.attachment("weft", pod, "eth0");
        attachment.args = format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE={NAMESPACE};K8S_POD_NAME={};K8S_POD_INFRA_CONTAINER_ID={}",
            pod.name(),
            pod.container_id()
        );
        attachment
    }

    /// Returns the journal entry for a pod's sandbox, with the progress recorded so far.
    #[must_use]
    #[track_caller]
    pub fn entry(&self, pod: &Pod) -> Option<Value> {
        let text = self.host.read(entry_path(pod))?;
        let mut values = serde_json::Deserializer::from_str(&text).into_iter::<Value>();
        let mut entry = values.next().expect("an entry").expect("an entry is JSON");
        // Progress records follow the entry; an incomplete last record does not count.
        for progress in values.map_while(Result::ok) {
            if let Some(index) = progress["attachment"]["index"].as_u64() {
                entry["attachments"][usize::try_from(index).expect("a place")] =
                    progress["attachment"]["attachment"].clone();
            }
            if let Some(complete) = progress.get("complete") {
                entry["complete"] = true.into();
                entry["networkStatus"] = complete["networkStatus"].clone();
            }
        }
        Some(entry)
    }
}

fn named(call: &Call) -> String {
    format!("{} {}", call.command, call.environment("CNI_IFNAME"))
}

/// Returns the path of a pod's journal entry.
#[must_use]
pub fn entry_path(pod: &Pod) -> String {
    format!("/var/lib/weft/sandboxes/{}.json", pod.container_id())
}

/// Returns a network with one recording plugin.
#[must_use]
pub fn recording(name: &str, plugin: &str, instructions: &Value) -> Value {
    json!({ "cniVersion": "1.1.0", "name": name, "plugins": [step(plugin, instructions)] })
}

/// Returns a recording plugin for use in a chain.
#[must_use]
pub fn step(plugin: &str, instructions: &Value) -> Value {
    let mut instructions = instructions.clone();
    instructions["record"] = RECORD.into();
    json!({ "type": plugin, "testPlugin": instructions })
}

/// Returns the meta-plugin configuration with `default` as every pod's default network.
#[must_use]
pub fn configuration(default: &Value) -> Value {
    json!({
        "cniVersion": "1.1.0",
        "name": "weft-net",
        "type": "weft",
        "manifestDir": MANIFESTS,
        "delegates": [default],
    })
}

/// Returns a bridge network with addresses from `10.SUBNET.0.0/24`.
#[must_use]
pub fn bridge(name: &str, subnet: u8) -> Value {
    json!({ "cniVersion": "1.1.0", "name": name, "plugins": [{
        "type": "bridge", "bridge": format!("br{subnet}"), "isGateway": true,
        "ipam": { "type": "host-local", "ranges": [[{ "subnet": format!("10.{subnet}.0.0/24") }]] },
    }] })
}
