//! Handles plan requests from the meta-plugin: plans the attachments listed in the sandbox's annotation.
//!
//! - It uses the networks as they are stored now, and the same planner as the node agent, [`npwg::plan`].
//! - A sandbox that requests no networks gets the default network. If a node agent is configured, the proxy relays the
//!   plan request to it, and the agent adds the networks that the pod selects. The agent then also gets the execution
//!   report and task results.
//! - Each response carries the agent's tasks, and tasks for sandboxes that the runtime has lost.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cni::capability::{HardwareAddress, RequestedIp};
use cni::name::IfName;
use cni::object::Object;
use cni::{Context, Error, code};
use npwg::configuration::{DefaultNetwork, InvalidAnnotation, Isolation, NodeConfiguration};
use npwg::definition::Disk;
use npwg::device::Devices;
use npwg::metadata::{Definition, NetworkReference, Pod, SpecConfig};
use npwg::plan::{self, Access, Delegate, Plan, Request, Role, Sandbox};
use npwg::selection::Annotation;
use rpc::frame::{FrameError, MESSAGE_MAX};
use rpc::message::{Refusal, Request as AgentRequest, Response};
use rpc::node_input::NodeInput;
use rpc::plan::{PlanRequest, PlanResponse};
use rpc::task::{Task, TaskResult};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::net::UnixStream;

use super::networks::{Networks, Usable};
use super::runtime_network;
use crate::network_condition;
use crate::request_networks::{ATTACHMENTS, Attachment};
use cri::network_api::Name;
use cri::network_api::validation::IP_RANGES;
use node_support::agent_server::{Planned, RequestHandler};
use node_support::frame_io;
use node_support::metrics::Metrics;
use node_support::plan_metadata;
use node_support::plan_metadata::PlanMetadata;
use node_support::sandbox_gc::SandboxGc;

/// Namespace for the definitions that stand for a sandbox's networks in a plan request.
const STAND_IN: &str = "networks";

/// Request handler, which plans or relays.
#[derive(Debug)]
pub(crate) struct Planner {
    pub(crate) networks: Arc<Networks>,
    /// Container runtime socket.
    pub(crate) runtime: PathBuf,
    /// Node agent socket, for sandboxes that request no networks.
    pub(crate) agent: Option<PathBuf>,
    /// Garbage collector for sandboxes that the runtime has lost.
    pub(crate) sandbox_gc: SandboxGc,
}

/// Requested network and parameters.
struct RequestedNetwork {
    interface: IfName,
    usable: Usable,
    parameters: BTreeMap<String, Box<RawValue>>,
    /// Whether the sandbox requested nothing. The network then keeps the label that it would have without the proxy.
    is_default: bool,
}

impl RequestHandler for Planner {
    async fn plan_sandbox(&self, request: &PlanRequest) -> Result<Planned, Refusal> {
        let node = request.node.configuration()?;
        let attachments = attachments(&node, request)?;
        let (mut planned, networks) = match (&self.agent, attachments.as_slice()) {
            (Some(agent), []) if !request.pod.name.is_empty() => {
                let default = self.networks.default_network()?;
                let mut planned = relay_plan(agent, request, &default).await?;
                let PlanResponse { plan, tasks: _, trace } = &mut planned.response;
                let networks = set_default_ranges(plan, default)
                    .map_err(|error| Refusal { error, trace: trace.clone() })?;
                (planned, networks)
            }
            (_, attachments) if node.network_policies && !attachments.is_empty() => {
                let why = "networks: the node enforces network policies, which the CRI proxy does not know";
                let hint = "let the pod select definitions instead, or remove networkPolicies from the configuration";
                return Err(Error::config(why).details(hint).into());
            }
            (_, attachments) => {
                let requested = self.requested(attachments, request)?;
                let label = |one: &RequestedNetwork| (one.interface.to_string(), one.usable.label.clone());
                let networks = requested.iter().map(label).collect();
                (plan(request, node, requested)?.into(), networks)
            }
        };
        PlanMetadata { runtime: plan_metadata::canonical(&self.runtime), networks }
            .write(&mut planned.response.plan)?;
        Ok(planned)
    }

    fn due_tasks(&self) -> Vec<Task> {
        let runtime = plan_metadata::canonical(&self.runtime);
        // An entry from another list was not made through this proxy.
        self.sandbox_gc.lost(|entry| {
            entry.network == runtime_network::NAME && !plan_metadata::is_of_another_runtime(entry, &runtime)
        })
    }

    /// Relays a task result to the agent that sent the task. Tasks from the proxy itself never have a result.
    async fn task_result(&self, result: &TaskResult) -> Result<(), Error> {
        let Some(agent) = &self.agent else { return Ok(()) };
        match relay(agent, &AgentRequest::TaskResult(result.clone())).await?.0 {
            Response::Accepted => Ok(()),
            other => Err(other.into_error()),
        }
    }

    fn metrics(&self) -> Option<&Metrics> {
        None
    }
}

/// Reads the attachments from the sandbox annotation; empty if the sandbox requests nothing.
fn attachments(node: &NodeConfiguration, request: &PlanRequest) -> Result<Vec<Attachment>, Error> {
    if request.pod.name.is_empty() {
        return Ok(Vec::new());
    }
    let Some(mut pod) = node.pod_of_runtime(&request.pod)? else {
        // Runtimes pass no annotations at all for a sandbox that has none.
        if node.capabilities.contains(cni::capability::POD_ANNOTATIONS) {
            return Ok(Vec::new());
        }
        let why =
            "the runtime does not pass annotations, so the networks that a sandbox requests are unknown";
        let hint = "declare the capability io.kubernetes.cri.pod-annotations in the meta-plugin's list";
        return Err(Error::config(why).details(hint));
    };
    let Some(text) = pod.annotations.remove(ATTACHMENTS) else { return Ok(Vec::new()) };
    serde_json::from_str(&text).map_err(|cause| {
        let why = cni::wording::syntax_error(text.as_bytes(), &cause);
        Error::config(format!("annotation {ATTACHMENTS}: {why}"))
    })
}

impl Planner {
    /// Resolves the requested networks, the primary one first.
    fn requested(
        &self,
        attachments: &[Attachment],
        request: &PlanRequest,
    ) -> Result<Vec<RequestedNetwork>, Error> {
        if attachments.is_empty() {
            let usable = self.networks.default_network()?;
            let (interface, parameters) = (request.ifname.clone(), BTreeMap::new());
            return Ok(vec![RequestedNetwork { interface, usable, parameters, is_default: true }]);
        }
        let mut requested = Vec::new();
        for Attachment { interface, network, parameters } in attachments {
            let found = self.networks.find(&Name::read(network), interface.as_str());
            // The network existed when the sandbox was requested, so a retry may succeed.
            let usable = found.map_err(|status| {
                Error::new(code::TRY_AGAIN_LATER, format!("networks: {}", status.message()))
            })?;
            let (interface, parameters) = (interface.clone(), parameters.clone());
            requested.push(RequestedNetwork { interface, usable, parameters, is_default: false });
        }
        // A stable sort keeps the order among the others.
        requested.sort_by_key(|one| one.interface != request.ifname);
        match requested.first().is_some_and(|first| first.interface == request.ifname) {
            true => Ok(requested),
            false => Err(Error::config(format!(
                "annotation {ATTACHMENTS}: no network for {}, which the runtime requests",
                request.ifname
            ))),
        }
    }
}

/// Makes the plan, then applies each network's parameters to the delegate.
fn plan(
    request: &PlanRequest,
    mut node: NodeConfiguration,
    requested: Vec<RequestedNetwork>,
) -> Result<Plan, Error> {
    let Some((primary, others)) = requested.split_first() else { return Err(Error::internal("no network")) };
    node.default_network =
        DefaultNetwork::Written { first: Box::new(primary.usable.network.clone()), others: Vec::new() };
    node.default_networks = Vec::new();
    node.auxiliary_chain = None;
    node.isolation = Isolation::Open;
    node.invalid_annotation = InvalidAnnotation::Fail;
    let mut definitions = BTreeMap::new();
    let mut elements = Vec::new();
    for (index, other) in others.iter().enumerate() {
        let reference = NetworkReference::new(STAND_IN, &format!("n{index}"));
        elements.push(json!({
            "namespace": reference.namespace, "name": reference.name, "interface": other.interface.as_str(),
        }));
        let config = String::from_utf8_lossy(other.usable.network.bytes()).into_owned();
        let definition = Definition {
            namespace: reference.namespace.clone(),
            name: reference.name.clone(),
            config: SpecConfig::Text(config),
            ..Definition::default()
        };
        definitions.insert(reference, definition);
    }
    let annotation = (Annotation::Networks.key().to_owned(), Value::from(elements).to_string());
    let pod = Pod {
        namespace: request.pod.namespace.clone(),
        name: request.pod.name.clone(),
        uid: request.pod.uid.clone(),
        annotations: if others.is_empty() { BTreeMap::new() } else { BTreeMap::from([annotation]) },
        ..Pod::default()
    };
    let sandbox = Sandbox { container: request.container.clone(), ifname: request.ifname.clone() };
    let (disk, devices, access) = (Disk::default(), Devices::default(), Access::default());
    let request = Request {
        pod: &pod,
        sandbox: &sandbox,
        node: &node,
        definitions: &definitions,
        disk: &disk,
        devices: &devices,
        access: &access,
        held: &[],
    };
    let mut plan = plan::plan(&request).map_err(Error::from)?;
    let delegates =
        plan.delegates.iter_mut().filter(|delegate| matches!(delegate.role, Role::Default | Role::Selected));
    for (delegate, requested) in delegates.zip(requested) {
        apply(delegate, requested)?;
    }
    Ok(plan)
}

/// Sets the default network's ranges, which the agent does not know. The label stays the one that the agent chose.
fn set_default_ranges(plan: &mut Plan, default: Usable) -> Result<BTreeMap<String, String>, Error> {
    let Some(delegate) = plan.delegates.iter_mut().find(|delegate| delegate.role == Role::Default) else {
        return Err(Error::internal("the agent's plan has no default network"));
    };
    // The pod may have selected another default network.
    if delegate.config_name != default.network.name {
        return Ok(BTreeMap::new());
    }
    set_ranges(delegate, &default)?;
    Ok(BTreeMap::from([(delegate.ifname.to_string(), default.label)]))
}

/// Sets a stored network's ranges.
fn set_ranges(delegate: &mut Delegate, usable: &Usable) -> Result<(), Error> {
    match usable.ranges.as_slice() {
        [] => Ok(()),
        ranges => delegate.runtime_config.set(IP_RANGES, &network_condition::ip_ranges(ranges)),
    }
}

/// Sets the network's label and ranges, and the sandbox's parameters.
fn apply(delegate: &mut Delegate, requested: RequestedNetwork) -> Result<(), Error> {
    let RequestedNetwork { interface: _, usable, parameters, is_default } = requested;
    set_ranges(delegate, &usable)?;
    if !is_default || usable.label != cri::network_api::FALLBACK {
        delegate.network = usable.label;
    }
    for (capability, value) in parameters {
        verify(delegate, &capability, &value).context(&delegate.network)?;
        delegate.runtime_config.impose(&capability, value);
    }
    Ok(())
}

/// Requires the result to contain the requested addresses.
fn verify(delegate: &mut Delegate, capability: &str, value: &RawValue) -> Result<(), Error> {
    let illegal = |why: &str| Error::key(capability, value.get(), why);
    match capability {
        cni::capability::IPS => {
            let ips: Vec<String> =
                serde_json::from_str(value.get()).map_err(|_| illegal("must be a list of addresses"))?;
            let ips = ips
                .iter()
                .map(|ip| RequestedIp::parse(ip).ok_or_else(|| illegal("contains an invalid address")));
            delegate.verify.ips = ips.collect::<Result<_, _>>()?;
        }
        cni::capability::MAC => {
            let mac: String = serde_json::from_str(value.get()).map_err(|_| illegal("must be a string"))?;
            let mac = HardwareAddress::parse(&mac).ok_or_else(|| illegal("is not a hardware address"))?;
            delegate.verify.mac = Some(mac);
        }
        _ => {}
    }
    Ok(())
}

/// Requests a plan from the agent, with the default network in the configuration. A refusal carries the agent's trace.
async fn relay_plan(agent: &Path, request: &PlanRequest, default: &Usable) -> Result<Planned, Refusal> {
    let mut configuration = Object::parse(request.node.configuration.get().as_bytes(), "configuration")?;
    configuration.banish("clusterNetwork");
    let network = RawValue::from_string(String::from_utf8_lossy(default.network.bytes()).into_owned())
        .map_err(|cause| Error::internal(cause.to_string()))?;
    configuration.set("delegates", &[network])?;
    let configuration =
        RawValue::from_string(configuration.to_json()).map_err(|cause| Error::internal(cause.to_string()))?;
    let node = NodeInput { configuration, ..request.node.clone() };
    let request = AgentRequest::Plan(Box::new(PlanRequest { node, ..request.clone() }));
    match relay(agent, &request).await? {
        (Response::Plan(response), stream) => Ok(Planned { response: *response, agent: Some(stream) }),
        (Response::Refused(refusal), _) => Err(*refusal),
        (other, _) => Err(other.into_error().into()),
    }
}

/// Sends a request to the agent; returns the response and the open connection.
async fn relay(agent: &Path, request: &AgentRequest) -> Result<(Response, UnixStream), Error> {
    let exchange = async {
        let connected = UnixStream::connect(agent).await;
        let mut stream = connected.map_err(|cause| FrameError::io("send", cause))?;
        frame_io::write(&mut stream, request).await?;
        Ok((frame_io::read(&mut stream, MESSAGE_MAX).await?, stream))
    };
    let exchanged = exchange.await.map_err(|error: FrameError| match Error::from(error) {
        error if error.code == code::IO_FAILURE => Error { code: code::TRY_AGAIN_LATER, ..error },
        error => error,
    });
    exchanged.context(format_args!("agent {}", agent.display()))
}

#[cfg(test)]
mod tests;
