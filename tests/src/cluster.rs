//! A cluster without a cluster: pods and network definitions as manifests in a directory of the host, and the
//! meta-plugin called as a kubelet's runtime does.

use serde_json::{Value, json};
use testkit::{Attachment, Call, Host, Pod};

use crate::machine::until;

/// Where the manifests are.
pub const MANIFESTS: &str = "/etc/cni/manifests";
/// Where recording plugins write their calls.
pub const RECORD: &str = "/run/cni/calls";
/// The namespace of the pods.
pub const NAMESPACE: &str = "blue";

/// The manifests of a host.
#[derive(Debug)]
pub struct Cluster<'a> {
    host: &'a Host,
}

impl<'a> Cluster<'a> {
    /// `weft-cni` installed, the recording plugin as `one`, `two` and `three`, no pods yet.
    #[track_caller]
    #[must_use]
    pub fn new(host: &'a Host) -> Cluster<'a> {
        crate::install(host);
        host.install(&testkit::binary("weft-test-plugin"), &["one", "two", "three"]);
        host.write(RECORD, "");
        Cluster { host }
    }

    /// The manifests of a host on which [`Cluster::new`] was called before.
    #[must_use]
    pub fn on(host: &'a Host) -> Cluster<'a> {
        Cluster { host }
    }

    /// A pod that selects `networks`: the value of the annotation, as text or as JSON.
    #[track_caller]
    pub fn pod(&self, name: &str, networks: impl Into<Value>) {
        let text = match networks.into() {
            Value::String(text) => text,
            json => json.to_string(),
        };
        self.annotated(name, &json!({ "k8s.v1.cni.cncf.io/networks": text }));
    }

    /// A pod with these annotations.
    #[track_caller]
    pub fn annotated(&self, name: &str, annotations: &Value) {
        let metadata = json!({ "name": name, "namespace": NAMESPACE, "annotations": annotations });
        let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata });
        self.host.write(format!("{MANIFESTS}/pod-{name}.json"), pod.to_string());
    }

    /// A network definition.
    #[track_caller]
    pub fn definition(&self, name: &str, config: &Value) {
        self.annotated_definition(name, &json!({}), config);
    }

    /// A network definition with annotations.
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

    /// A definition whose one plugin is a recording one, under the name `plugin`, with orders per verb.
    #[track_caller]
    pub fn recording(&self, name: &str, plugin: &str, orders: &Value) {
        self.definition(name, &recording(name, plugin, orders));
    }

    /// The calls that the recording plugins wrote down since the last look. Nothing may be running that calls them: what is
    /// written down during the look is lost.
    #[must_use]
    #[track_caller]
    pub fn calls(&self) -> Vec<Call> {
        let calls = self.recorded();
        self.host.write(RECORD, "");
        calls
    }

    /// The calls since the last look, as `VERB ifname`; nothing may be running, as for [`Cluster::calls`].
    #[must_use]
    #[track_caller]
    pub fn order(&self) -> Vec<String> {
        self.calls().iter().map(named).collect()
    }

    /// Waits for a call, `VERB ifname`, which the next look still finds.
    #[track_caller]
    pub fn await_call(&self, call: &str) {
        let is_made = || self.recorded().iter().any(|recorded| named(recorded) == call);
        until(&format!("the call {call}"), || is_made().then_some(()));
    }

    fn recorded(&self) -> Vec<Call> {
        let text = self.host.read(RECORD).unwrap_or_default();
        // What has no end yet is being written.
        let (whole, _) = text.rsplit_once('\n').unwrap_or_default();
        whole.lines().map(|line| serde_json::from_str(line).expect("a record")).collect()
    }

    /// What a kubelet's runtime says about `pod`, which has a manifest of its name.
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

    /// The journal's entry of a pod's sandbox, as far as it got.
    #[must_use]
    #[track_caller]
    pub fn entry(&self, pod: &Pod) -> Option<Value> {
        let text = self.host.read(entry_path(pod))?;
        let mut values = serde_json::Deserializer::from_str(&text).into_iter::<Value>();
        let mut entry = values.next().expect("an entry").expect("an entry is JSON");
        // What came after it; a last value without its end does not count.
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

/// The file of a pod's entry in the journal.
#[must_use]
pub fn entry_path(pod: &Pod) -> String {
    format!("/var/lib/weft/sandboxes/{}.json", pod.container_id())
}

/// A network whose one plugin records.
#[must_use]
pub fn recording(name: &str, plugin: &str, orders: &Value) -> Value {
    json!({ "cniVersion": "1.1.0", "name": name, "plugins": [step(plugin, orders)] })
}

/// A recording plugin in a chain.
#[must_use]
pub fn step(plugin: &str, orders: &Value) -> Value {
    let mut orders = orders.clone();
    orders["record"] = RECORD.into();
    json!({ "type": plugin, "testPlugin": orders })
}

/// The meta-plugin's configuration with `default` as the network of every pod.
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

/// A bridge network with addresses of `10.SUBNET.0.0/24`.
#[must_use]
pub fn bridge(name: &str, subnet: u8) -> Value {
    json!({ "cniVersion": "1.1.0", "name": name, "plugins": [{
        "type": "bridge", "bridge": format!("br{subnet}"), "isGateway": true,
        "ipam": { "type": "host-local", "ranges": [[{ "subnet": format!("10.{subnet}.0.0/24") }]] },
    }] })
}
