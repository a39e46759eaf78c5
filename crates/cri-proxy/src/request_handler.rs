//! The plan of a sandbox that the runtime is making: asked for by the meta-plugin, made of the attachments that came with
//! it and the networks as they are now, by the same planner as every other.
//!
//! Rules: a sandbox that asks for nothing gets the default network as the file has it, or, where an agent is named, what
//! the agent plans; with each plan go orders to take down what the runtime has lost, which nobody else would.

use std::collections::BTreeMap;
use std::path::PathBuf;
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
use rpc::message::{Request as AgentRequest, Response};
use rpc::node_input::NodeInput;
use rpc::plan::PlanRequest;
use rpc::task::Task;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::net::UnixStream;

use super::networks::{Networks, Usable};
use super::runtime_network;
use crate::network_condition;
use crate::request_networks::{ATTACHMENTS, Attachment};
use cri::network_api::Name;
use cri::network_api::validation::IP_RANGES;
use node_support::agent_server::RequestHandler;
use node_support::frame_io;
use node_support::metrics::Metrics;
use node_support::plan_metadata;
use node_support::plan_metadata::PlanMetadata;
use node_support::sandbox_gc::SandboxGc;

/// The namespace of the definitions that stand for a sandbox's networks while a plan is made.
const STAND_IN: &str = "networks";

/// Answers the meta-plugin.
#[derive(Debug)]
pub(crate) struct Planner {
    pub(crate) networks: Arc<Networks>,
    /// The runtime's socket.
    pub(crate) runtime: PathBuf,
    /// The agent's socket, for sandboxes that ask for nothing.
    pub(crate) agent: Option<PathBuf>,
    /// Who looks for sandboxes that the runtime has lost.
    pub(crate) sandbox_gc: SandboxGc,
}

/// A network and what a sandbox wants of it.
struct Wanted {
    interface: IfName,
    usable: Usable,
    parameters: BTreeMap<String, Box<RawValue>>,
    /// Keeps the network's own name, as without us.
    unasked: bool,
}

impl RequestHandler for Planner {
    async fn plan_sandbox(&self, request: &PlanRequest) -> Result<Plan, Error> {
        let node = request.node.configuration()?;
        let attachments = attachments(&node, request)?;
        let (mut plan, networks) = match (&self.agent, attachments.as_slice()) {
            (Some(agent), []) if !request.pod.name.is_empty() => {
                let default = self.networks.default_network()?;
                let mut plan = relay(agent, request, &default).await?;
                let networks = give_default(&mut plan, default)?;
                (plan, networks)
            }
            (_, asked) => {
                let wanted = self.wanted(asked, request)?;
                let label = |wanted: &Wanted| (wanted.interface.to_string(), wanted.usable.label.clone());
                let networks = wanted.iter().map(label).collect();
                (plan(request, node, wanted)?, networks)
            }
        };
        PlanMetadata { runtime: plan_metadata::canonical(&self.runtime), networks }.write(&mut plan)?;
        Ok(plan)
    }

    fn due_tasks(&self) -> Vec<Task> {
        let runtime = plan_metadata::canonical(&self.runtime);
        // By another list it is another meta-plugin's, or somebody's own.
        self.sandbox_gc.lost(|entry| {
            entry.network == runtime_network::NAME && !plan_metadata::is_of_another_runtime(entry, &runtime)
        })
    }

    fn metrics(&self) -> Option<&Metrics> {
        None
    }
}

/// What came with the sandbox; nothing: it asks for nothing.
fn attachments(node: &NodeConfiguration, request: &PlanRequest) -> Result<Vec<Attachment>, Error> {
    if request.pod.name.is_empty() {
        return Ok(Vec::new());
    }
    let Some(mut pod) = node.pod_of_runtime(&request.pod)? else {
        // Without a single annotation runtimes pass none.
        if node.capabilities.contains(cni::capability::POD_ANNOTATIONS) {
            return Ok(Vec::new());
        }
        let why = "the runtime passes no annotations, by which a sandbox says which networks it asks for";
        let cure = "declare the capability io.kubernetes.cri.pod-annotations in the list of the meta-plugin";
        return Err(Error::config(why).details(cure));
    };
    let Some(text) = pod.annotations.remove(ATTACHMENTS) else { return Ok(Vec::new()) };
    serde_json::from_str(&text).map_err(|cause| Error::config(format!("annotation {ATTACHMENTS}: {cause}")))
}

impl Planner {
    /// The primary one first.
    fn wanted(&self, asked: &[Attachment], request: &PlanRequest) -> Result<Vec<Wanted>, Error> {
        if asked.is_empty() {
            let usable = self.networks.default_network()?;
            let interface = request.ifname.clone();
            return Ok(vec![Wanted { interface, usable, parameters: BTreeMap::new(), unasked: true }]);
        }
        let mut wanted = Vec::new();
        for Attachment { interface, network, parameters } in asked {
            let found = self.networks.find(&Name::read(network), interface.as_str());
            // It was there when the sandbox was asked for.
            let usable = found.map_err(|status| {
                Error::new(code::TRY_AGAIN_LATER, format!("networks: {}", status.message()))
            })?;
            let parameters = parameters.clone();
            wanted.push(Wanted { interface: interface.clone(), usable, parameters, unasked: false });
        }
        // Stable: the others stay in their order.
        wanted.sort_by_key(|wanted| wanted.interface != request.ifname);
        match wanted.first().is_some_and(|first| first.interface == request.ifname) {
            true => Ok(wanted),
            false => Err(Error::config(format!(
                "annotation {ATTACHMENTS}: nothing is attached as {}, which the runtime asks for",
                request.ifname
            ))),
        }
    }
}

/// Has the planner make it, and gives each delegate what is wanted of it.
fn plan(request: &PlanRequest, mut node: NodeConfiguration, wanted: Vec<Wanted>) -> Result<Plan, Error> {
    let Some((primary, others)) = wanted.split_first() else { return Err(Error::internal("no network")) };
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
    for (delegate, wanted) in delegates.zip(wanted) {
        give(delegate, wanted)?;
    }
    Ok(plan)
}

/// What an agent cannot know of the default network: its ranges. Its label stays the agent's, which tells pods' statuses.
fn give_default(plan: &mut Plan, default: Usable) -> Result<BTreeMap<String, String>, Error> {
    let Some(delegate) = plan.delegates.iter_mut().find(|delegate| delegate.role == Role::Default) else {
        return Err(Error::internal("the agent's plan has no default network"));
    };
    // A pod may have selected another one for its default.
    if delegate.config_name != default.network.name {
        return Ok(BTreeMap::new());
    }
    give_ranges(delegate, &default)?;
    Ok(BTreeMap::from([(delegate.ifname.to_string(), default.label)]))
}

/// The addresses of a network that was set with some.
fn give_ranges(delegate: &mut Delegate, usable: &Usable) -> Result<(), Error> {
    match usable.ranges.as_slice() {
        [] => Ok(()),
        ranges => delegate.runtime_config.set(IP_RANGES, &network_condition::ip_ranges(ranges)),
    }
}

/// The network's own name, its ranges, and the sandbox's parameters.
fn give(delegate: &mut Delegate, wanted: Wanted) -> Result<(), Error> {
    let Wanted { interface: _, usable, parameters, unasked } = wanted;
    give_ranges(delegate, &usable)?;
    if !unasked || usable.label != cri::network_api::FALLBACK {
        delegate.network = usable.label;
    }
    for (capability, value) in parameters {
        verify(delegate, &capability, &value).context(&delegate.network)?;
        delegate.runtime_config.impose(&capability, value);
    }
    Ok(())
}

/// What is asked for must be in the result.
fn verify(delegate: &mut Delegate, capability: &str, value: &RawValue) -> Result<(), Error> {
    let illegal = |why: &str| Error::key(capability, value.get(), why);
    match capability {
        cni::capability::IPS => {
            let ips: Vec<String> =
                serde_json::from_str(value.get()).map_err(|_| illegal("must be a list of addresses"))?;
            let ips = ips.iter().map(|ip| RequestedIp::parse(ip).ok_or_else(|| illegal("holds no address")));
            delegate.verify.ips = ips.collect::<Result<_, _>>()?;
        }
        cni::capability::MAC => {
            let mac: String = serde_json::from_str(value.get()).map_err(|_| illegal("must be a text"))?;
            let mac = HardwareAddress::parse(&mac).ok_or_else(|| illegal("is no hardware address"))?;
            delegate.verify.mac = Some(mac);
        }
        _ => {}
    }
    Ok(())
}

/// Requests the plan of the agent, with the default network written out.
async fn relay(agent: &PathBuf, request: &PlanRequest, default: &Usable) -> Result<Plan, Error> {
    let mut configuration = Object::parse(request.node.configuration.get().as_bytes(), "configuration")?;
    configuration.banish("clusterNetwork");
    let network = RawValue::from_string(String::from_utf8_lossy(default.network.bytes()).into_owned())
        .map_err(|cause| Error::internal(cause.to_string()))?;
    configuration.set("delegates", &[network])?;
    let configuration =
        RawValue::from_string(configuration.to_json()).map_err(|cause| Error::internal(cause.to_string()))?;
    let node = NodeInput { configuration, ..request.node.clone() };
    let request = AgentRequest::Plan(Box::new(PlanRequest { node, ..request.clone() }));
    let exchange = async {
        let connected = UnixStream::connect(agent).await;
        let mut stream = connected.map_err(|cause| FrameError::io("send", cause))?;
        frame_io::write(&mut stream, &request).await?;
        frame_io::read(&mut stream, MESSAGE_MAX).await
    };
    let response = exchange.await.map_err(|error| match Error::from(error) {
        error if error.code == code::IO_FAILURE => Error { code: code::TRY_AGAIN_LATER, ..error },
        error => error,
    });
    match response.context(format_args!("agent {}", agent.display()))? {
        Response::Plan(response) => Ok(response.plan),
        other => Err(other.into_error()),
    }
}
