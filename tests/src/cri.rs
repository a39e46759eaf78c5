//! Container Runtime Interface client like the one in a kubelet: gRPC over a Unix socket.
//!
//! It has only those `runtime.v1` messages and fields that tests use. All other fields are neither sent nor read.
//!
//! Source: `k8s.io/cri-api/pkg/apis/runtime/v1/api.proto`.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use prost::Message;
use serde_json::Value;
use tokio::net::UnixStream;
use tokio::runtime::{Builder, Runtime};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic_prost::ProstCodec;

/// Timeout that a kubelet uses for runtime calls.
const DEADLINE: Duration = Duration::from_secs(120);

/// Pod sandbox configuration.
#[derive(Clone, PartialEq, Message)]
pub struct PodSandboxConfig {
    /// Pod name, namespace and uid.
    #[prost(message, optional, tag = "1")]
    pub metadata: Option<PodSandboxMetadata>,
    /// Host name inside the pod.
    #[prost(string, tag = "2")]
    pub hostname: String,
    /// Node ports that are forwarded to the pod.
    #[prost(message, repeated, tag = "5")]
    pub port_mappings: Vec<PortMapping>,
    /// Pod annotations.
    #[prost(btree_map = "string, string", tag = "7")]
    pub annotations: BTreeMap<String, String>,
    /// Settings that exist only on Linux.
    #[prost(message, optional, tag = "8")]
    pub linux: Option<LinuxPodSandboxConfig>,
    /// Networks that the pod requests: the CRI Network API.
    #[prost(message, repeated, tag = "1001")]
    pub networks: Vec<PodSandboxNetworkConfig>,
}

/// Network that a pod requests.
#[derive(Clone, PartialEq, Message)]
pub struct PodSandboxNetworkConfig {
    /// Interface name; empty for the default.
    #[prost(string, tag = "1")]
    pub interface_name: String,
    /// Network name.
    #[prost(string, tag = "2")]
    pub network_name: String,
    /// Parameters for the network's plugins.
    #[prost(btree_map = "string, string", tag = "3")]
    pub parameters: BTreeMap<String, String>,
}

/// Pod name, namespace and uid.
#[derive(Clone, PartialEq, Message)]
pub struct PodSandboxMetadata {
    /// Pod name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Pod uid.
    #[prost(string, tag = "2")]
    pub uid: String,
    /// Pod namespace.
    #[prost(string, tag = "3")]
    pub namespace: String,
    /// Number of earlier sandboxes for this pod.
    #[prost(uint32, tag = "4")]
    pub attempt: u32,
}

/// Node port that is forwarded to the pod.
#[derive(Clone, PartialEq, Message)]
pub struct PortMapping {
    /// TCP 0, UDP 1, SCTP 2.
    #[prost(int32, tag = "1")]
    pub protocol: i32,
    /// Port in the pod.
    #[prost(int32, tag = "2")]
    pub container_port: i32,
    /// Port on the node.
    #[prost(int32, tag = "3")]
    pub host_port: i32,
    /// Address on the node; empty means every address.
    #[prost(string, tag = "4")]
    pub host_ip: String,
}

/// Sandbox settings that exist only on Linux.
#[derive(Clone, PartialEq, Message)]
pub struct LinuxPodSandboxConfig {
    /// Pod's parent control group.
    #[prost(string, tag = "1")]
    pub cgroup_parent: String,
    /// Namespaces that the pod shares with the node.
    #[prost(message, optional, tag = "2")]
    pub security_context: Option<LinuxSandboxSecurityContext>,
}

/// Namespaces that a pod shares with the node.
#[derive(Clone, PartialEq, Message)]
pub struct LinuxSandboxSecurityContext {
    /// Mode for each namespace.
    #[prost(message, optional, tag = "1")]
    pub namespace_options: Option<NamespaceOption>,
}

/// Mode for each namespace.
#[derive(Clone, PartialEq, Message)]
pub struct NamespaceOption {
    /// 0: the pod's own, 2: the node's.
    #[prost(int32, tag = "1")]
    pub network: i32,
}

#[derive(Clone, PartialEq, Message)]
struct RunPodSandboxRequest {
    #[prost(message, optional, tag = "1")]
    config: Option<PodSandboxConfig>,
}

/// `RunPodSandbox` response, and request for most other calls.
#[derive(Clone, PartialEq, Message)]
struct SandboxId {
    #[prost(string, tag = "1")]
    id: String,
    #[prost(bool, tag = "2")]
    verbose: bool,
}

#[derive(Clone, PartialEq, Message)]
struct Empty {}

#[derive(Clone, PartialEq, Message)]
struct PodSandboxStatusResponse {
    #[prost(message, optional, tag = "1")]
    status: Option<PodSandboxStatus>,
    #[prost(map = "string, string", tag = "2")]
    info: HashMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
struct PodSandboxStatus {
    #[prost(int32, tag = "3")]
    state: i32,
    #[prost(message, optional, tag = "5")]
    network: Option<PodSandboxNetworkStatus>,
    #[prost(btree_map = "string, string", tag = "8")]
    annotations: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
struct PodSandboxNetworkStatus {
    #[prost(string, tag = "1")]
    ip: String,
    #[prost(message, repeated, tag = "2")]
    additional_ips: Vec<PodIp>,
}

#[derive(Clone, PartialEq, Message)]
struct PodIp {
    #[prost(string, tag = "1")]
    ip: String,
    #[prost(string, tag = "2")]
    network_name: String,
}

#[derive(Clone, PartialEq, Message)]
struct ContainerEventResponse {
    #[prost(string, tag = "1")]
    container_id: String,
    #[prost(int32, tag = "2")]
    kind: i32,
    #[prost(message, optional, tag = "4")]
    status: Option<PodSandboxStatus>,
}

#[derive(Clone, PartialEq, Message)]
struct VersionResponse {
    #[prost(string, tag = "3")]
    runtime_version: String,
}

#[derive(Clone, PartialEq, Message)]
struct ListPodSandboxResponse {
    #[prost(message, repeated, tag = "1")]
    items: Vec<ListedSandbox>,
}

#[derive(Clone, PartialEq, Message)]
struct ListedSandbox {
    #[prost(string, tag = "1")]
    id: String,
    #[prost(int32, tag = "3")]
    state: i32,
    #[prost(btree_map = "string, string", tag = "6")]
    annotations: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
struct StatusRequest {
    #[prost(bool, tag = "1")]
    verbose: bool,
}

#[derive(Clone, PartialEq, Message)]
struct StatusResponse {
    #[prost(message, optional, tag = "1")]
    status: Option<RuntimeStatus>,
    #[prost(map = "string, string", tag = "2")]
    info: HashMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
struct RuntimeStatus {
    #[prost(message, repeated, tag = "1")]
    conditions: Vec<Condition>,
}

/// Runtime condition.
#[derive(Clone, PartialEq, Message)]
pub struct Condition {
    /// `RuntimeReady`, `NetworkReady`.
    #[prost(string, tag = "1")]
    pub kind: String,
    /// Whether the condition is true.
    #[prost(bool, tag = "2")]
    pub holds: bool,
    /// Why it is false, in one word.
    #[prost(string, tag = "3")]
    pub reason: String,
    /// Why it is false, as a sentence.
    #[prost(string, tag = "4")]
    pub message: String,
}

/// Sandbox status.
#[derive(Debug, Clone)]
pub struct Sandbox {
    /// Whether the sandbox runs.
    pub ready: bool,
    /// Pod addresses, the primary one first.
    pub addresses: Vec<String>,
    /// Network for each address, if the runtime reports it.
    pub networks: Vec<String>,
    /// The pod's annotations.
    pub annotations: BTreeMap<String, String>,
    /// Verbose information from the runtime: `pid`, `runtimeSpec`, `cniResult`.
    pub info: Value,
}

/// Event about a container, or about a sandbox's pause container.
#[derive(Debug)]
pub struct Event {
    /// Container id.
    pub container: String,
    /// 0 created, 1 started, 2 stopped, 3 deleted.
    pub kind: i32,
    /// Sandbox status, without verbose information; `None` if the sandbox no longer exists.
    pub sandbox: Option<Sandbox>,
}

/// Client for one runtime.
#[derive(Debug)]
pub struct Cri {
    socket: PathBuf,
}

// === impl Sandbox ===

impl Sandbox {
    fn of(status: PodSandboxStatus) -> Sandbox {
        let PodSandboxStatus { state, network, annotations } = status;
        let network = network.unwrap_or_default();
        let first = Some(network.ip).filter(|ip| !ip.is_empty());
        let first = first.map(|ip| PodIp { ip, network_name: String::new() });
        let ips: Vec<PodIp> = first.into_iter().chain(network.additional_ips).collect();
        let addresses = ips.iter().map(|ip| ip.ip.clone()).collect();
        let networks = ips.into_iter().map(|ip| ip.network_name).collect();
        Sandbox { ready: state == 0, addresses, networks, annotations, info: Value::Null }
    }

    /// Returns the name of the sandbox's network namespace below `/run/netns`.
    ///
    /// # Panics
    /// The namespace is not mounted there.
    #[must_use]
    #[track_caller]
    pub fn netns(&self) -> String {
        let namespaces = self.info["runtimeSpec"]["linux"]["namespaces"].as_array();
        let network = namespaces.into_iter().flatten().find(|namespace| namespace["type"] == "network");
        let path = network.and_then(|network| network["path"].as_str()).unwrap_or_default();
        let name = path.rsplit_once("/run/netns/").map(|(_, name)| name.to_owned());
        name.unwrap_or_else(|| panic!("no network namespace of its own: {}", self.info))
    }
}

// === impl Cri ===

impl Cri {
    /// Creates a client for the runtime that listens at `socket`, a path that this process can open.
    #[must_use]
    pub fn new(socket: &Path) -> Cri {
        Cri { socket: socket.to_owned() }
    }

    /// Runs a sandbox; returns the id.
    ///
    /// # Errors
    /// The runtime's message.
    pub fn run_pod_sandbox(&self, config: &PodSandboxConfig) -> Result<String, String> {
        let request = RunPodSandboxRequest { config: Some(config.clone()) };
        self.call::<_, SandboxId>("RunPodSandbox", request).map(|answer| answer.id)
    }

    /// Stops a sandbox and removes the network.
    ///
    /// # Errors
    /// The runtime's message.
    pub fn stop_pod_sandbox(&self, id: &str) -> Result<(), String> {
        self.call::<_, Empty>("StopPodSandbox", sandbox(id)).map(|Empty {}| ())
    }

    /// Removes a sandbox.
    ///
    /// # Errors
    /// The runtime's message.
    pub fn remove_pod_sandbox(&self, id: &str) -> Result<(), String> {
        self.call::<_, Empty>("RemovePodSandbox", sandbox(id)).map(|Empty {}| ())
    }

    /// Returns a sandbox's status.
    ///
    /// # Errors
    /// The runtime's message.
    pub fn pod_sandbox_status(&self, id: &str) -> Result<Sandbox, String> {
        let answer: PodSandboxStatusResponse = self.call("PodSandboxStatus", sandbox(id))?;
        let info =
            answer.info.get("info").and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        Ok(Sandbox { info, ..Sandbox::of(answer.status.unwrap_or_default()) })
    }

    /// Subscribes to container events. A runtime confirms the subscription only with the first event. The channel ends
    /// when the runtime refuses or ends the stream.
    #[must_use]
    pub fn events(&self) -> Receiver<Event> {
        let (events, received) = mpsc::channel();
        let cri = Cri { socket: self.socket.clone() };
        // The thread ends with the runtime's stream, or with the test.
        std::thread::spawn(move || {
            runtime().block_on(async {
                let stream = cri.stream("GetContainerEvents").await;
                let Ok(mut stream): Result<tonic::Streaming<ContainerEventResponse>, _> = stream else {
                    return;
                };
                while let Ok(Some(event)) = stream.message().await {
                    let ContainerEventResponse { container_id, kind, status } = event;
                    let event = Event { container: container_id, kind, sandbox: status.map(Sandbox::of) };
                    if events.send(event).is_err() {
                        break;
                    }
                }
            });
        });
        received
    }

    /// Returns the runtime's version.
    ///
    /// # Errors
    /// The runtime's message.
    pub fn version(&self) -> Result<String, String> {
        self.call::<_, VersionResponse>("Version", Empty {}).map(|answer| answer.runtime_version)
    }

    async fn stream<A: Message + Default + 'static>(
        &self,
        method: &str,
    ) -> Result<tonic::Streaming<A>, String> {
        let mut client = tonic::client::Grpc::new(self.connect().await?);
        client.ready().await.map_err(|error| error.to_string())?;
        let path = path(method)?;
        let request = tonic::Request::new(Empty {});
        let answer = client.server_streaming(request, path, ProstCodec::<Empty, A>::default()).await;
        answer.map(tonic::Response::into_inner).map_err(|status| status.message().to_owned())
    }

    /// Lists the ids of all sandboxes, and whether they are ready.
    ///
    /// # Errors
    /// The runtime's message.
    pub fn list_pod_sandbox(&self) -> Result<Vec<(String, bool)>, String> {
        let answer: ListPodSandboxResponse = self.call("ListPodSandbox", Empty {})?;
        Ok(answer.items.into_iter().map(|item| (item.id, item.state == 0)).collect())
    }

    /// Lists the annotations on all sandboxes.
    ///
    /// # Errors
    /// The runtime's message.
    pub fn annotations(&self) -> Result<Vec<BTreeMap<String, String>>, String> {
        let answer: ListPodSandboxResponse = self.call("ListPodSandbox", Empty {})?;
        Ok(answer.items.into_iter().map(|item| item.annotations).collect())
    }

    /// Returns the runtime's conditions, and the verbose information by name.
    ///
    /// # Errors
    /// The runtime's message.
    pub fn status(&self) -> Result<(Vec<Condition>, HashMap<String, String>), String> {
        let answer: StatusResponse = self.call("Status", StatusRequest { verbose: true })?;
        Ok((answer.status.unwrap_or_default().conditions, answer.info))
    }

    /// Makes one call on a new connection, because the runtime may have been restarted since the previous call.
    fn call<Q: Message + 'static, A: Message + Default + 'static>(
        &self,
        method: &str,
        request: Q,
    ) -> Result<A, String> {
        let runtime = runtime();
        let answer = runtime.block_on(async {
            let channel = self.connect().await?;
            let mut client = tonic::client::Grpc::new(channel).max_decoding_message_size(16 << 20);
            client.ready().await.map_err(|error| error.to_string())?;
            let path = path(method)?;
            let mut request = tonic::Request::new(request);
            request.set_timeout(DEADLINE);
            let codec = ProstCodec::<Q, A>::default();
            let answer = client.unary(request, path, codec).await;
            answer.map(tonic::Response::into_inner).map_err(|status| status.message().to_owned())
        });
        answer.map_err(|message| format!("{method}: {message}"))
    }

    async fn connect(&self) -> Result<Channel, String> {
        let socket = self.socket.clone();
        let connector = tower::service_fn(move |_: Uri| {
            let socket = socket.clone();
            async move { UnixStream::connect(socket).await.map(TokioIo::new) }
        });
        // An address is required but ignored.
        let endpoint = Endpoint::from_static("http://runtime");
        let connected = endpoint.connect_with_connector(connector).await;
        connected.map_err(|error| format!("connect to {}: {error}", self.socket.display()))
    }
}

fn path(method: &str) -> Result<PathAndQuery, String> {
    PathAndQuery::try_from(format!("/runtime.v1.RuntimeService/{method}")).map_err(|error| error.to_string())
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime of this thread")
}

fn sandbox(id: &str) -> SandboxId {
    SandboxId { id: id.to_owned(), verbose: true }
}
