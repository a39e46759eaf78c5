//! One question answered without an agent: what it takes is asked of the API and of the kubelet, and forgotten.
//!
//! Rules: as [`crate::agent_state`]; there is no cache, so with the API away the pod is what the runtime tells of it, and no
//! definition is known.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use cni::{Error, code};
use kube::{Api, Client};
use neutron::pod_state::PodState;
use npwg::configuration::{NodeConfiguration, VifStore};
use npwg::metadata::{Definition, NetworkReference, Pod};
use npwg::plan::{self, Plan, PodIdentity, Request};
use npwg::policy;
use rpc::plan::{PlanRequest, PlanResponse};
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

/// How often it is looked for them.
const PORTS_POLL: Duration = Duration::from_millis(250);

/// The plan for a sandbox, and what is to be done once it is attached.
///
/// # Errors
/// 3 the pod is unknown · 7 the plan is refused · 11 there is no cluster to ask, or it does not answer.
pub fn plan(
    request: &PlanRequest,
    node: &NodeConfiguration,
    kubeconfig: Option<&Path>,
) -> Result<PlanResponse, Error> {
    let cure = "start the agent, or set manifestDir or kubeconfig in the meta-plugin's configuration";
    let later = |failure: Failure| {
        let error = Error::from(failure.context("weft plan --once"));
        Error { code: code::TRY_AGAIN_LATER, ..error }.details(cure)
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
    Ok(PlanResponse { plan, tasks })
}

/// Do these credentials read what a plan takes?
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
    let labels = match policy::need_namespace_labels(&policies) {
        // Not to know them admits nobody.
        true => ask(Api::<NamespaceObject>::all(client.clone()), &pod.namespace).await.ok().flatten(),
        false => None,
    };
    let kubelet = node.pod_resources.as_deref().unwrap_or(POD_RESOURCES);
    let slices = Slices::new(&pod.node_name);
    let devices = device_facts::devices(Path::new(kubelet), (&client, &slices), &pod, &definitions).await?;
    let sandbox = request.sandbox();
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
    let wanted = neutron_ports::wanted(&plan, &neutron, &[])?;
    let deadline = Instant::now() + neutron_ports::PATIENCE;
    let mut now = pod.clone();
    let places = places(node.vif_store);
    while !wanted.is_empty() {
        let state = written(places, &client, &now).await?;
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

/// Where it is looked for a pod's ports, in this order. The annotation is anybody's who may make pods: where it is said that
/// there are KuryrPorts it is not read.
const fn places(said: Option<VifStore>) -> &'static [VifLocation] {
    match said {
        None => &[VifLocation::Kuryrport, VifLocation::Annotation],
        Some(VifStore::KuryrPort) => &[VifLocation::Kuryrport],
        Some(VifStore::Annotation) => &[VifLocation::Annotation],
    }
}

async fn written(places: &[VifLocation], client: &Client, pod: &Pod) -> Result<Option<PodState>, Error> {
    for (index, place) in places.iter().enumerate() {
        match kube_support::kuryr::read(*place, client, pod).await {
            Ok(None) => {}
            Ok(state) => return Ok(state),
            // There may be no right to them where nobody needs it. (No such resource is none of them.)
            Err(Unread::Forbidden(_)) if index + 1 < places.len() => {}
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
            let why = format!("pod {namespace}/{name} has uid {}, the runtime asks for {uid}", pod.uid);
            Err(Error::new(code::UNKNOWN_CONTAINER, why))
        }
        (Ok(None), _) => {
            Err(Error::new(code::UNKNOWN_CONTAINER, format!("pod {namespace}/{name} is not in the cluster")))
        }
        (Err(_), Some(pod)) => Ok(pod),
        (Err(why), None) => Err(Error::new(code::TRY_AGAIN_LATER, format!("pod {namespace}/{name}: {why}"))),
    }
}
