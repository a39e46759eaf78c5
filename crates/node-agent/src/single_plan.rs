//! Plan of one sandbox without an agent (`weft plan --once`): the inputs are read from the API and the kubelet.
//!
//! The plan is the same as that of [`crate::planner`], but there is no cache. Without the API server the pod is as the
//! container runtime passed it, and a plan that needs a definition fails with code 11 (try again later).

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use cni::{Error, code};
use kube::{Api, Client};
use neutron::pod_state::PodState;
use npwg::configuration::{NodeConfiguration, VifStore};
use npwg::metadata::{Definition, NetworkReference, Pod};
use npwg::plan::{self, Plan, PodIdentity, Request};
use npwg::pod_policies::reference;
use npwg::policy;
use rpc::plan::{PlanRequest, PlanResponse, Purpose};
use rpc::task::Task;

use super::resource_slices::Slices;
use crate::pod_resources::POD_RESOURCES;
use crate::{device_facts, neutron_ports};
use cli_support::async_runtime::runtime;
use cli_support::failure::Failure;
use kube_support::client;
use kube_support::kuryr::{Unread, VifLocation};
use kube_support::lookup::ask;
use kube_support::resources::{DefinitionObject, NamespaceObject, PodObject};

/// Interval at which the ports of a pod are read.
const PORTS_POLL: Duration = Duration::from_millis(250);

/// Returns a sandbox's plan, and the tasks to run after it was executed.
///
/// # Errors
/// 3 the pod is unknown · 7 the plan is refused · 11 the API server is not configured or does not answer.
pub fn plan(
    request: &PlanRequest,
    node: &NodeConfiguration,
    kubeconfig: Option<&Path>,
) -> Result<PlanResponse, Error> {
    let hint = "start the agent, or set manifestDir or kubeconfig in the meta-plugin's configuration";
    let later = |failure: Failure| {
        let error = Error::from(failure.context("weft plan --once"));
        Error { code: code::TRY_AGAIN_LATER, ..error }.details(hint)
    };
    let plan = runtime().map_err(later)?.block_on(async {
        let client = client::client_of_objects(kubeconfig).await.map_err(later)?;
        ask_and_plan(request, node, client).await
    })?;
    let publish = Task::Publish {
        container: request.container.clone(),
        kubeconfig: kubeconfig.map(|path| path.display().to_string()),
    };
    let tasks = if plan.pod.uid.is_empty() { Vec::new() } else { vec![publish] };
    Ok(PlanResponse { plan, tasks, trace: String::new() })
}

/// Checks that a kubeconfig's credentials can read what a plan needs.
pub fn reach(kubeconfig: &Path) -> Result<(), Failure> {
    runtime()?.block_on(async {
        let client = client::client_of_objects(Some(kubeconfig)).await?;
        let asked = ask(Api::<NamespaceObject>::all(client), manifest::DEFAULT_NAMESPACE).await;
        asked.map(drop).map_err(|why| Failure::new(format!("{}: {why}", kubeconfig.display())))
    })
}

async fn ask_and_plan(
    request: &PlanRequest,
    node: &NodeConfiguration,
    client: Client,
) -> Result<Plan, Error> {
    let pod = pod(node, &client, &request.pod).await?;
    let mut definitions: BTreeMap<NetworkReference, Definition> = BTreeMap::new();
    for reference in plan::wanted(&pod, node) {
        let api = Api::<DefinitionObject>::namespaced(client.clone(), &reference.namespace);
        let asked = ask(api, &reference.name).await;
        let asked = asked.map_err(|why| Error::new(code::TRY_AGAIN_LATER, format!("{reference}: {why}")))?;
        definitions.extend(asked.map(|asked| (reference, asked)));
    }
    let neutron = kube_support::kuryr::definition::complete(&mut definitions);
    let policies = policy::policies(&definitions);
    let labels = if policy::need_namespace_labels(&policies) {
        // Without labels no policy admits the pod.
        ask(Api::<NamespaceObject>::all(client.clone()), &pod.namespace).await.ok().flatten()
    } else {
        None
    };
    let kubelet = node.pod_resources.as_deref().unwrap_or(POD_RESOURCES);
    let slices = Slices::new(&pod.node_name);
    let resources = plan::resources(&pod, node, definitions.values());
    let devices = device_facts::devices(Path::new(kubelet), (&client, &slices), &pod, &resources).await?;
    let (sandbox, attaches) = (request.sandbox(), request.purpose == Purpose::Attach);
    let request = Request {
        pod: &pod,
        sandbox: &sandbox,
        node,
        definitions: &definitions,
        disk: &request.node.disk(),
        devices: &devices,
        access: &policy::access(&pod, policies, labels.as_ref()),
        held: &[],
    };
    let mut plan = plan::plan(&request)?;
    if node.network_policies
        && attaches
        && let Some(delegate) = plan.delegates.iter().find(|delegate| reference(delegate).is_some())
    {
        let why =
            format!("{}: the node enforces network policies, which only its agent knows", delegate.network);
        return Err(Error::new(code::TRY_AGAIN_LATER, why).details("start the agent with --policy"));
    }
    let wanted = neutron_ports::wanted(&plan, &neutron, &[])?;
    let deadline = Instant::now() + neutron_ports::PORTS_MAX;
    let mut now = pod.clone();
    let locations = vif_locations(node.vif_store);
    while !wanted.is_empty() {
        let state = read_ports(locations, &client, &now).await?;
        if let Some(state) = &state
            && neutron_ports::put(&mut plan, &wanted, state)?
        {
            break;
        }
        if Instant::now() >= deadline {
            return Err(neutron_ports::missing(&wanted, state.as_ref()));
        }
        tokio::time::sleep(PORTS_POLL).await;
        let asked = ask(Api::<PodObject>::namespaced(client.clone(), &pod.namespace), &pod.name).await;
        now = asked.ok().flatten().filter(|now| now.uid == pod.uid).unwrap_or(now);
    }
    Ok(plan)
}

/// Returns the objects in which a pod's ports are looked for, in order.
///
/// Every user that can create pods can write the annotation. It is not read where the configuration names KuryrPorts.
const fn vif_locations(configured: Option<VifStore>) -> &'static [VifLocation] {
    match configured {
        None => &[VifLocation::Kuryrport, VifLocation::Annotation],
        Some(VifStore::KuryrPort) => &[VifLocation::Kuryrport],
        Some(VifStore::Annotation) => &[VifLocation::Annotation],
    }
}

async fn read_ports(
    locations: &[VifLocation],
    client: &Client,
    pod: &Pod,
) -> Result<Option<PodState>, Error> {
    for (index, location) in locations.iter().enumerate() {
        match kube_support::kuryr::read(*location, client, pod).await {
            Ok(None) => {}
            Ok(state) => return Ok(state),
            // The permission may be missing where KuryrPorts are not used. (If the resource does not exist, there is no port.)
            Err(Unread::Forbidden(_)) if index + 1 < locations.len() => {}
            Err(unread) => return Err(Error::new(code::TRY_AGAIN_LATER, unread.to_string())),
        }
    }
    Ok(None)
}

async fn pod(node: &NodeConfiguration, client: &Client, named: &PodIdentity) -> Result<Pod, Error> {
    let PodIdentity { namespace, name, uid } = named;
    if name.is_empty() {
        return Ok(Pod { namespace: manifest::DEFAULT_NAMESPACE.to_owned(), ..Pod::default() });
    }
    let asked = ask(Api::<PodObject>::namespaced(client.clone(), namespace), name).await;
    match (asked, node.pod_of_runtime(named)?) {
        (Ok(Some(pod)), _) if uid.is_empty() || pod.uid == *uid => Ok(pod),
        (Ok(Some(pod)), _) => {
            let why =
                format!("pod {namespace}/{name} has uid {}, but the runtime requests uid {uid}", pod.uid);
            Err(Error::new(code::UNKNOWN_CONTAINER, why))
        }
        (Ok(None), _) => {
            Err(Error::new(code::UNKNOWN_CONTAINER, format!("pod {namespace}/{name} is not in the cluster")))
        }
        (Err(_), Some(pod)) => Ok(pod),
        (Err(why), None) => Err(Error::new(code::TRY_AGAIN_LATER, format!("pod {namespace}/{name}: {why}"))),
    }
}
