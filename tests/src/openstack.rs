//! Cluster on OpenStack: a real API server, a real Neutron, controllers with the shipped RBAC, and an agent for each
//! node.
//!
//! ```text
//!   kube-apiserver ◄── weft controller --neutron ──► Neutron ──► OVN ──► node-1 (the machine), node-2
//!         ▲
//!         └── weft agent of each node ◄── weft-cni, called as a runtime does
//! ```
//!
//! Each node is an OVN chassis, that is, a network namespace with the node's name, where `/run/openvswitch` belongs to
//! a separate switch.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::{Attachment, Host, Pod, workspace};

use crate::kube::{Kube, files, namespace};
use crate::machine::{CONFIGURATIONS, Machine};
use crate::neutron::{Mode, NEUTRON, Neutron, Subnet};
use crate::parts::text;

/// Maximum time for any wait.
const TIMEOUT: Duration = Duration::from_secs(150);
/// Interval between two polls.
const PAUSE: Duration = Duration::from_millis(300);
/// Namespace for the pods.
pub const NAMESPACE: &str = "blue";
/// Annotation that selects networks.
pub const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";
/// Annotation that makes a definition a Neutron network.
pub const KURYR_CONFIG: &str = "openstack.org/kuryr-config";
/// Annotation that the controller writes.
pub const VIF: &str = "openstack.org/kuryr-vif";
/// Node in [`OpenStack::without_switch`] whose ports are bound and become ACTIVE at once.
pub const BOUND: &str = "host-ovs-filter-active";
/// Node in [`OpenStack::without_switch`] on which no mechanism driver binds a port.
pub const UNBOUND: &str = "host-fail";
/// First node: the machine itself.
pub const FIRST: &str = "node-1";

/// Cluster on OpenStack.
#[derive(Debug)]
pub struct OpenStack {
    /// Machine on which everything runs.
    pub machine: Arc<Machine>,
    /// API server.
    pub kube: Kube,
    /// Neutron.
    pub neutron: Neutron,
    rights: String,
    /// os_vif results by document. os_vif takes half a second to start, and a waiting test reads the same document
    /// repeatedly.
    read: Mutex<BTreeMap<String, Vec<Value>>>,
}

// === impl OpenStack ===

impl OpenStack {
    /// Starts a cluster with these nodes. If the lane was not prepared, the test is skipped and the result is `None`.
    ///
    /// # Panics
    /// The cluster does not start.
    #[must_use]
    #[track_caller]
    pub fn new(host: Host, mode: Mode, nodes: &[&str]) -> Option<OpenStack> {
        OpenStack::with_token_lifetime(host, mode, nodes, 3600)
    }

    /// Starts a cluster with Neutron's mechanism drivers for tests, where a node's name decides how ports there are
    /// bound.
    #[must_use]
    #[track_caller]
    pub fn without_switch(host: Host) -> Option<OpenStack> {
        OpenStack::new(host, Mode::Api, &[])
    }

    /// Starts a cluster whose tokens are valid for this many seconds.
    #[must_use]
    #[track_caller]
    pub fn with_token_lifetime(host: Host, mode: Mode, nodes: &[&str], seconds: u32) -> Option<OpenStack> {
        let machine = Arc::new(Machine::new(host, "node"));
        let name = std::thread::current().name().unwrap_or("test").to_owned();
        let (cloud, cluster) = std::thread::scope(|scope| {
            let cloud = std::thread::Builder::new().name(name);
            let cloud = cloud.spawn_scoped(scope, || {
                Neutron::with_token_lifetime(Arc::clone(&machine), mode, nodes, seconds)
            });
            let cluster = Kube::new(Arc::clone(&machine));
            (cloud.expect("a thread").join().expect("a cloud"), cluster)
        });
        let (kube, neutron) = (cluster?, cloud?);
        let definitions = files(&[
            "deploy/crds/network-attachment-definitions.k8s.cni.cncf.io.yaml",
            "deploy/crds/kuryrports.openstack.org.yaml",
            "deploy/base/rbac.yaml",
            "deploy/neutron/rbac.yaml",
        ]);
        kube.apply(&(definitions + &namespace(NAMESPACE) + &namespace("red")));
        kube.wait_until_served();
        crate::install(&machine);
        machine.run(["mkdir", "-p", "-m", "700", "/var/lib/weft/sandboxes"]);
        machine.run(["ln", "-s", "/run/neutron/ovn/node-1", "/run/openvswitch"]);
        let rights = kube.service_account("kube-system", "weft-neutron");
        Some(OpenStack { machine, kube, neutron, rights, read: Mutex::default() })
    }

    /// Starts a controller with this name; `rules` is the section `neutron` in the configuration file.
    #[track_caller]
    pub fn start_controller(&self, name: &str, rules: &Value, words: &[&str]) {
        let path = format!("{CONFIGURATIONS}/{name}.yaml");
        self.machine.write(&path, json!({ "neutron": rules }).to_string());
        let endpoint = format!("OS_ENDPOINT={NEUTRON}");
        self.start_controller_as(
            name,
            &["OS_AUTH_TYPE=none", &endpoint],
            &[&["--config", path.as_str()], words].concat(),
        );
    }

    /// Starts a controller with this environment and only these arguments.
    #[track_caller]
    pub fn start_controller_as(&self, name: &str, environment: &[&str], words: &[&str]) {
        let weft = testkit::binary("weft");
        let port = format!("127.0.0.1:{}", page_of(name));
        let bare = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs", "env"];
        let fixed = [
            text(&weft),
            "controller",
            "--neutron",
            "--kubeconfig",
            &self.rights,
            "--identity",
            name,
            "--listen",
            &port,
            "--log",
            "debug,hyper=info,hyper_util=info,kube=info,tower=info",
        ];
        let line = bare.iter().chain(environment).chain(&fixed).chain(words).copied();
        self.machine.start(name, line);
    }

    /// Returns a controller metric; `line` is the name with labels, including the space that follows.
    #[must_use]
    pub fn metric(&self, name: &str, line: &str) -> Option<u64> {
        let address = format!("http://127.0.0.1:{}/metrics", page_of(name));
        let page = self.machine.attempt(["curl", "-s", &address]).stdout;
        page.lines().find_map(|found| found.strip_prefix(line))?.trim().parse().ok()
    }

    /// Waits until a controller leads and has listed all objects.
    #[track_caller]
    pub fn wait_until_leading(&self, name: &str) {
        self.machine
            .wait(name, "leads", || (self.metric(name, "weft_neutron_leader ") == Some(1)).then_some(()));
    }

    /// Starts a node's agent.
    #[track_caller]
    pub fn start_agent(&self, node: &str, words: &[&str]) {
        let weft = testkit::binary("weft");
        let rights = self.kube.service_account("kube-system", "weft-agent");
        let (socket, port) = (socket_of(node), format!("127.0.0.1:{}", page_of(node)));
        let fixed = [
            text(&weft),
            "agent",
            "--node-name",
            node,
            "--kubeconfig",
            &rights,
            "--socket",
            &socket,
            "--listen",
            &port,
            "--log",
            "debug,hyper=info,hyper_util=info,kube=info,tower=info",
        ];
        let service = format!("agent-{node}");
        self.machine.start(&service, fixed.iter().chain(words).copied());
        let address = format!("http://{port}/readyz");
        self.machine.wait(&service, "is ready", || {
            (self.machine.attempt(["curl", "-s", &address]).stdout == "ok\n").then_some(())
        });
    }

    /// Creates a definition as Kuryr users write it: with annotations only, without `spec.config`.
    #[track_caller]
    pub fn definition(&self, name: &str, kuryr_config: &Value) {
        self.definition_in(NAMESPACE, name, &json!({ KURYR_CONFIG: kuryr_config.to_string() }));
    }

    /// Creates a definition with any annotations, in any namespace.
    #[track_caller]
    pub fn definition_in(&self, namespace: &str, name: &str, annotations: &Value) {
        let definition = json!({
            "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
            "metadata": { "name": name, "namespace": namespace, "annotations": annotations },
        });
        self.kube.apply(&definition.to_string());
    }

    /// Creates a subnet, and a definition with the same name for it.
    #[must_use]
    #[track_caller]
    pub fn network(&self, name: &str, cidr: &str, words: &Value) -> Subnet {
        let subnet = self.neutron.subnet(name, cidr, words);
        self.definition(name, &json!({ "subnetId": subnet.id }));
        subnet
    }

    /// Creates a pod that is bound to a node and selects these networks; returns the uid.
    #[track_caller]
    pub fn pod(&self, node: &str, name: &str, networks: &str) -> String {
        self.kube.attempt(["create", "-f", "-"], &manifest(node, name, networks).to_string()).success();
        self.kube.json(["pod", "-n", NAMESPACE, name])["metadata"]["uid"].as_str().expect("a uid").to_owned()
    }

    /// Creates many pods that are bound to a node.
    #[track_caller]
    pub fn pods(&self, node: &str, names: &[String], networks: &str) {
        let items: Vec<Value> = names.iter().map(|name| manifest(node, name, networks)).collect();
        self.kube.apply(&json!({ "apiVersion": "v1", "kind": "List", "items": items }).to_string());
    }

    /// Sets a pod's `status.hostIP`, as a kubelet does.
    #[track_caller]
    pub fn set_host_address(&self, name: &str, address: &str) {
        let mut pod = self.kube.json(["pod", "-n", NAMESPACE, name]);
        pod["metadata"]["resourceVersion"] = Value::Null;
        pod["status"]["hostIP"] = json!(address);
        let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{name}/status");
        self.kube.attempt(["replace", "--raw", &path, "-f", "-"], &pod.to_string()).success();
    }

    /// Deletes a pod immediately, as a kubelet does after the pod has ended.
    #[track_caller]
    pub fn delete_pod(&self, name: &str) {
        self.kube.kubectl(["delete", "pod", "-n", NAMESPACE, name, "--force", "--grace-period=0"]);
    }

    /// Returns a pod annotation.
    #[must_use]
    #[track_caller]
    pub fn annotation(&self, name: &str, key: &str) -> Option<String> {
        let pod = self.kube.json(["pod", "-n", NAMESPACE, name]);
        pod["metadata"]["annotations"][key].as_str().map(str::to_owned)
    }

    /// Returns the VIFs in a pod's annotation as the real os_vif parses them, one per interface; `None` without the
    /// annotation.
    #[must_use]
    #[track_caller]
    pub fn vifs(&self, name: &str) -> Option<Vec<Value>> {
        self.annotation(name, VIF).map(|text| self.read_by_os_vif(&text))
    }

    /// Returns the VIFs in a document as the real os_vif parses them.
    #[must_use]
    #[track_caller]
    pub fn read_by_os_vif(&self, document: &str) -> Vec<Value> {
        if let Some(read) = self.read.lock().expect("no panic before").get(document) {
            return read.clone();
        }
        let reader = workspace().join("lanes/neutron/check-annotation");
        let printed = self.machine.command(text(&reader)).stdin(document).finish().success().stdout;
        let read: Vec<Value> =
            printed.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect();
        self.read.lock().expect("no panic before").insert(document.to_owned(), read.clone());
        read
    }

    /// Waits for a pod's VIFs.
    #[must_use]
    #[track_caller]
    pub fn wait_for_vifs(&self, name: &str) -> Vec<Value> {
        let text = eventually(&format!("ports of {name}"), || self.annotation(name, VIF));
        self.read_by_os_vif(&text)
    }

    /// Lists a pod's Events as `REASON note`.
    #[must_use]
    #[track_caller]
    pub fn events(&self, name: &str) -> Vec<String> {
        let events = self.kube.json(["events.events.k8s.io", "-n", NAMESPACE]);
        let of_pod = events["items"].as_array().expect("a list").iter();
        let of_pod = of_pod.filter(|event| event["regarding"]["name"] == name);
        let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        of_pod.map(|event| format!("{} {}", word(&event["reason"]), word(&event["note"]))).collect()
    }

    /// Waits for a pod Event that contains all these strings.
    #[track_caller]
    pub fn wait_for_event(&self, name: &str, words: &[&str]) -> String {
        eventually(&format!("an Event of {name} with {words:?}"), || {
            self.events(name).into_iter().find(|event| words.iter().all(|word| event.contains(word)))
        })
    }

    /// Waits until no pod has a port any more, and fails if the controller has ended.
    #[track_caller]
    pub fn assert_nothing_left(&self, controller: &str) {
        eventually("no port remains", || self.neutron.pod_ports().is_empty().then_some(()));
        assert!(self.machine.is_running(controller), "{}", self.machine.log(controller));
    }

    /// Returns the CNI parameters that a container runtime on `node` would use for the sandbox `pod`, which belongs to
    /// the pod `name` with this uid.
    #[must_use]
    pub fn attachment(&self, node: &str, pod: &Pod, name: &str, uid: &str) -> Attachment<'_> {
        let mut attachment = self.machine.attachment("weft", pod, "eth0");
        let id = pod.container_id();
        attachment.args = format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE={NAMESPACE};K8S_POD_NAME={name};K8S_POD_INFRA_CONTAINER_ID={id};K8S_POD_UID={uid}"
        );
        if node != FIRST {
            let script = format!("mount --bind /run/neutron/ovn/{node} /run/openvswitch && exec \"$@\"");
            let words = [
                "nsenter",
                &format!("--net=/run/netns/{node}"),
                "unshare",
                "--mount",
                "sh",
                "-c",
                &script,
                "sh",
            ];
            attachment.through = words.iter().map(|word| (*word).to_owned()).collect();
        }
        attachment
    }
}

/// Waits until `look` returns a value. It polls rarely, because `look` runs expensive programs.
///
/// # Panics
/// It takes longer than even a loaded machine needs.
#[track_caller]
pub fn eventually<T>(condition: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "{condition}: not after {TIMEOUT:?}");
        sleep(PAUSE);
    }
}

/// Returns the meta-plugin configuration for a node.
#[must_use]
pub fn configuration(node: &str, default: &Value) -> Value {
    json!({ "cniVersion": "1.0.0", "name": "weft-net", "type": "weft", "delegates": [default], "agentSocket": socket_of(node) })
}

fn socket_of(node: &str) -> String {
    format!("/run/weft/{node}.sock")
}

/// Returns the port for an agent's or controller's metrics and health pages, derived from the name.
fn page_of(name: &str) -> u16 {
    10_000 + name.bytes().fold(0, |sum: u16, byte| (sum * 7 + u16::from(byte)) % 5000)
}

fn manifest(node: &str, name: &str, networks: &str) -> Value {
    let annotations = if networks.is_empty() { json!({}) } else { json!({ NETWORKS: networks }) };
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": NAMESPACE, "annotations": annotations },
        "spec": { "nodeName": node, "containers": [{ "name": "c", "image": "none" }] },
    })
}
