//! What an agent knows, and the plan it makes of it.
//!
//! ```text
//!   question ─► pod (cache, else asked for, else as the runtime tells) ─┐
//!               definitions (cache, else asked for) ────────────────────┼─► npwg::plan ─► plan or refusal
//!               devices (facts)     access (policies) ──────────────────┘
//! ```
//!
//! Rules: in the normal case nothing is read from the API; what the cache does not have yet is asked for once; with
//! the API away, caches and what the runtime tells of the pod are enough. A pod is known by its uid. A pod that wants no
//! definition waits for no cluster: an agent that has seen none is no worse than no agent.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use cni::{Error, code};
use kube::runtime::watcher::Config;
use kube::{Api, Client};
use npwg::configuration::NodeConfiguration;
use npwg::metadata::{Definition, NetworkReference, Pod};
use npwg::plan::{self, Access, Held, Plan, PodIdentity, Request};
use npwg::policy::{self, Labels};
use npwg::refusal::Refusal;
use rpc::plan::PlanRequest;
use tokio::time::{timeout, timeout_at};
use tracing::{debug, warn};

use super::resource_slices::Slices;
use crate::device_facts;
use crate::neutron_ports;
use cli_support::activity::Busy;
use kube_support::api_error;
use kube_support::cache::{Cache, follow};
use kube_support::events::Events;
use kube_support::kuryr::VifLocation;
use kube_support::lookup::{ASK_MAX, ask};
use kube_support::resources::{DefinitionObject, Key, NamespaceObject, PodObject, Reduced};

/// How long a cache that was never filled is waited for.
const SYNC_MAX: Duration = Duration::from_secs(20);
/// How often a KuryrPort is looked at.
const KURYR_PORT_POLL: Duration = Duration::from_millis(300);
/// How long a pod is waited for that the kubelet has heard of and we have not.
const LAG_MAX: Duration = Duration::from_millis(500);

/// Planner of a node: caches of its pods and of all definitions, and the plans made from them.
pub(crate) struct Planner {
    client: Client,
    /// The pods of this node.
    pub(crate) pods: Arc<Cache<Pod>>,
    /// Every definition of the cluster.
    pub(crate) definitions: Arc<Cache<Definition>>,
    namespaces: Arc<Cache<Labels>>,
    namespaces_wanted: Once,
    pod_resources: PathBuf,
    slices: Slices,
    /// What is told about pods.
    pub(crate) events: Events,
    vif_store: VifLocation,
}

impl Planner {
    /// Starts to follow the cluster for a node; Events wait while pods are attached.
    pub(crate) fn new(
        client: &Client,
        node: &str,
        pod_resources: PathBuf,
        vif_store: VifLocation,
        busy: &Arc<Busy>,
    ) -> Planner {
        let pods = Arc::new(Cache::new("pods"));
        let definitions = Arc::new(Cache::new("network-attachment-definitions"));
        let of_node = Config::default().fields(&format!("spec.nodeName={node}"));
        tokio::spawn(follow(Api::<PodObject>::all(client.clone()), of_node, Arc::clone(&pods)));
        let all = Api::<DefinitionObject>::all(client.clone());
        tokio::spawn(follow(all, Config::default(), Arc::clone(&definitions)));
        Planner {
            client: client.clone(),
            pods,
            definitions,
            namespaces: Arc::new(Cache::new("namespaces")),
            namespaces_wanted: Once::new(),
            pod_resources,
            slices: Slices::new(node),
            events: Events::new(client.clone(), node, busy),
            vif_store,
        }
    }

    /// Whether the cluster is seen now: every list was read, and the watches are alive.
    pub(crate) fn sees_cluster(&self) -> bool {
        self.pods.is_synced() && self.pods.age().is_zero()
    }

    /// The caches that were never filled.
    pub(crate) fn waits_for(&self) -> Vec<String> {
        [self.pods.waited(), self.definitions.waited()].into_iter().flatten().collect()
    }

    /// The plan for a sandbox.
    ///
    /// # Errors
    /// 3 the pod is unknown · 7 the plan is refused · 11 what it takes is not known yet.
    pub(crate) async fn plan(&self, request: &PlanRequest, held: &[Held]) -> Result<Plan, Error> {
        let node = request.node.configuration()?;
        let latest = tokio::time::Instant::now() + SYNC_MAX;
        let pod = self.pod(&node, &request.pod, latest).await?;
        let wanted = plan::wanted(&pod, &node);
        if !wanted.is_empty() {
            self.seen(&self.definitions, latest).await?;
        }
        let (mut definitions, unheard) = self.definitions(&wanted).await;
        let neutron = kube_support::kuryr::definition::complete(&mut definitions);
        let devices =
            device_facts::devices(&self.pod_resources, (&self.client, &self.slices), &pod, &definitions)
                .await?;
        let access = self.access(&pod, &definitions).await;
        let sandbox = request.sandbox();
        let disk = request.node.disk();
        // What is lent to the planner is not kept while ports are waited for.
        let planned = {
            let request = Request {
                pod: &pod,
                sandbox: &sandbox,
                node: &node,
                definitions: &definitions,
                disk: &disk,
                devices: &devices,
                access: &access,
                held,
            };
            plan::plan(&request)
        };
        let mut plan = planned.map_err(|refusal| {
            if unheard.is_empty() {
                self.events.refused(&pod, &refusal);
            }
            self.explained(refusal, &unheard)
        })?;
        let wanted = neutron_ports::wanted(&plan, &neutron, held)?;
        self.ports(&pod, &mut plan, &wanted).await?;
        Ok(plan)
    }

    /// Puts the Neutron ports into a plan that wants some, once they are written.
    async fn ports(&self, pod: &Pod, plan: &mut Plan, wanted: &[neutron_ports::Wanted]) -> Result<(), Error> {
        if wanted.is_empty() {
            return Ok(());
        }
        let place: Key = (pod.namespace.clone(), pod.name.clone());
        let deadline = Instant::now() + neutron_ports::PATIENCE;
        let mut changes = self.pods.changes();
        loop {
            changes.mark_unchanged();
            // As it is now: the annotation comes while we wait.
            let now = self.pods.find(&place).filter(|now| now.uid == pod.uid);
            let now = now.as_deref().unwrap_or(pod);
            let state = kube_support::kuryr::read(self.vif_store, &self.client, now).await;
            let state = state.map_err(|unread| Error::new(code::TRY_AGAIN_LATER, unread.to_string()))?;
            if let Some(state) = &state
                && neutron_ports::put(plan, wanted, state)?
            {
                return Ok(());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(neutron_ports::missing(wanted, state.as_ref()));
            }
            let pause = match self.vif_store {
                VifLocation::Annotation => left,
                VifLocation::Kuryrport => left.min(KURYR_PORT_POLL),
            };
            let _ = timeout(pause, changes.changed()).await;
        }
    }

    /// A refusal may be due to what we have not heard of, or could not ask for: then it is to be tried again.
    fn explained(&self, refusal: Refusal, unheard: &[String]) -> Error {
        let mut error = Error::from(refusal);
        if !unheard.is_empty() {
            let details = format!("{}; not known: {}", error.details, unheard.join("; "));
            error = Error { code: code::TRY_AGAIN_LATER, ..error }.details(details);
        }
        let age = self.definitions.age().max(self.pods.age());
        match age.is_zero() {
            true => error,
            false => {
                let details = format!(
                    "{}; the API server has not been heard of for {} s",
                    error.details,
                    age.as_secs()
                );
                error.details(details)
            }
        }
    }

    /// Waits until a whole list of them was seen.
    async fn seen<T: PartialEq>(&self, cache: &Cache<T>, latest: tokio::time::Instant) -> Result<(), Error> {
        if timeout_at(latest, cache.synced()).await.is_ok() {
            return Ok(());
        }
        let why = format!("agent: the cluster has not been seen yet: {}", self.waits_for().join(", "));
        let cure = "is the API server reachable, and are the custom resources there? weft crds prints them";
        Err(Error::new(code::TRY_AGAIN_LATER, why).details(cure))
    }

    async fn pod(
        &self,
        node: &NodeConfiguration,
        named: &PodIdentity,
        latest: tokio::time::Instant,
    ) -> Result<Pod, Error> {
        if named.name.is_empty() {
            return Ok(Pod { namespace: manifest::DEFAULT_NAMESPACE.to_owned(), ..Pod::default() });
        }
        let told = node.pod_of_runtime(named)?;
        if !self.pods.is_synced() {
            match told {
                // No cluster knows more of what this pod gets.
                Some(pod) if plan::wanted(&pod, node).is_empty() => return Ok(pod),
                Some(_) | None => self.seen(&self.pods, latest).await?,
            }
        }
        let place: Key = (named.namespace.clone(), named.name.clone());
        let fits = |pod: &Pod| named.uid.is_empty() || pod.uid == named.uid;
        let known = || self.pods.find(&place).filter(|pod| fits(pod));
        let mut changes = self.pods.changes();
        if known().is_none() && self.pods.age().is_zero() {
            let _ = timeout(LAG_MAX, changes.wait_for(|_| known().is_some())).await;
        }
        if let Some(pod) = known() {
            return Ok(Pod::clone(&pod));
        }
        let is_called = format!("pod {}/{}", named.namespace, named.name);
        let asking = self.pods.ask(place.clone());
        match (
            ask(Api::<PodObject>::namespaced(self.client.clone(), &named.namespace), &named.name).await,
            told,
        ) {
            (Ok(Some(pod)), _) if fits(&pod) => {
                asking.found(pod.clone());
                Ok(pod)
            }
            (Ok(Some(pod)), _) => {
                let why = format!("{is_called} has uid {}, the runtime asks for {}", pod.uid, named.uid);
                Err(Error::new(code::UNKNOWN_CONTAINER, why))
            }
            (Ok(None), _) => {
                Err(Error::new(code::UNKNOWN_CONTAINER, format!("{is_called} is not in the cluster")))
            }
            (Err(why), Some(pod)) => {
                warn!(%why, "planned from what the runtime tells of the pod");
                Ok(pod)
            }
            (Err(why), None) => {
                let cure = "it is not known yet, and the runtime passes no annotations";
                Err(Error::new(code::TRY_AGAIN_LATER, format!("{is_called}: {why}")).details(cure))
            }
        }
    }

    /// The definitions that are there, of those wanted; of which it could not be asked whether they are, and why.
    async fn definitions(
        &self,
        wanted: &BTreeSet<NetworkReference>,
    ) -> (BTreeMap<NetworkReference, Definition>, Vec<String>) {
        let (mut found, mut unheard) = (BTreeMap::new(), Vec::new());
        for reference in wanted {
            let place: Key = (reference.namespace.clone(), reference.name.clone());
            if let Some(known) = self.definitions.find(&place) {
                found.insert(reference.clone(), Definition::clone(&known));
            } else if self.definitions.age().is_zero() {
                // It may be newer than what we have heard of.
                let api = Api::<DefinitionObject>::namespaced(self.client.clone(), &reference.namespace);
                match timeout(ASK_MAX, api.get_opt(&reference.name)).await {
                    Ok(Ok(asked)) => found.extend(asked.map(|asked| (reference.clone(), asked.reduce()))),
                    // Where nobody may ask nothing is found, however often it is tried.
                    Ok(Err(kube::Error::Api(status))) if matches!(status.code, 401 | 403) => {
                        debug!(%reference, why = status.message, "may not be asked for");
                    }
                    Ok(Err(error)) => unheard.push(format!("{reference}: {}", api_error::describe(&error))),
                    Err(_) => unheard.push(format!("{reference}: the API server does not answer")),
                }
            }
        }
        (found, unheard)
    }

    /// What the policies of the definitions say about the pod.
    async fn access(&self, pod: &Pod, definitions: &BTreeMap<NetworkReference, Definition>) -> Access {
        let policies = policy::policies(definitions);
        let labels = match policy::need_namespace_labels(&policies) {
            true => self.labels_of(&pod.namespace).await,
            false => None,
        };
        policy::access(pod, policies, labels.as_deref())
    }

    /// The labels of a namespace. Namespaces are followed from the first time on that one is asked for.
    async fn labels_of(&self, namespace: &str) -> Option<Arc<Labels>> {
        self.namespaces_wanted.call_once(|| {
            let all = Api::<NamespaceObject>::all(self.client.clone());
            tokio::spawn(follow(all, Config::default(), Arc::clone(&self.namespaces)));
        });
        let _ = timeout(ASK_MAX, self.namespaces.synced()).await;
        self.namespaces.find(&(String::new(), namespace.to_owned()))
    }
}

/// What a pod is found by.
pub(crate) fn place(pod: &PodIdentity) -> Key {
    (pod.namespace.clone(), pod.name.clone())
}
