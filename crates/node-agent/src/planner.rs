//! Planner of the node agent: collects the inputs of a plan and has `npwg` compute it.
//!
//! ```text
//!   PlanRequest ─► pod (cache, else API, else as the container runtime passed it) ─┐
//!                  definitions (cache, else API) ──────────────────────────────────┼─► npwg::plan ─► plan or refusal
//!                  devices (device_facts), access (policies) ──────────────────────┘
//! ```
//!
//! - In the normal case nothing is read from the API. An object that is not in the cache is requested once.
//! - Without the API server, the caches and the runtime's description of the pod suffice.
//! - A pod with another uid than the one that the runtime names is refused.
//! - If no cache was ever filled, a pod is planned if the runtime passes the annotations and the plan needs no
//!   definition.
//! - A refusal counts as "try again later" (code 11) while a definition that the plan needs cannot be read.
//! - Neutron ports are put into the plan last ([`crate::neutron_ports`]).

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use cni::{Error, code};
use kube::runtime::watcher::Config;
use kube::{Api, Client};
use npwg::configuration::NodeConfiguration;
use npwg::metadata::{Definition, NetworkReference, Pod};
use npwg::network_policy::AttachmentPolicy;
use npwg::plan::{self, Access, Held, Plan, PodIdentity, Request};
use npwg::pod_policies;
use npwg::policy::{self, Labels};
use npwg::refusal::Refusal;
use rpc::plan::{PlanRequest, Purpose};
use tokio::sync::watch;
use tokio::time::{timeout, timeout_at};
use tracing::{debug, warn};

use super::resource_slices::Slices;
use crate::device_facts;
use crate::network_policies::NetworkPolicies;
use crate::neutron_ports;
use cli_support::activity::Busy;
use kube_support::api_error;
use kube_support::cache::{Cache, follow};
use kube_support::events::Events;
use kube_support::kuryr::VifLocation;
use kube_support::lookup::{ASK_MAX, ask};
use kube_support::resources::{DefinitionObject, Key, NamespaceObject, PodObject, Reduced};

/// Deadline for a cache to be filled for the first time.
const SYNC_MAX: Duration = Duration::from_secs(20);
/// Interval at which a KuryrPort is read.
const KURYR_PORT_POLL: Duration = Duration::from_millis(300);
/// Time by which the cache may lag behind the kubelet for a new pod.
const LAG_MAX: Duration = Duration::from_millis(500);

/// Planner for a node: caches for the node's pods and for all definitions, and the plans made from them.
pub(crate) struct Planner {
    client: Client,
    /// Pods on this node.
    pub(crate) pods: Arc<Cache<Pod>>,
    /// Every definition in the cluster.
    pub(crate) definitions: Arc<Cache<Definition>>,
    namespaces: Arc<Cache<Labels>>,
    namespaces_followed: Once,
    pod_resources: PathBuf,
    slices: Slices,
    /// Events about pods.
    pub(crate) events: Events,
    vif_store: VifLocation,
    policies: Option<Arc<NetworkPolicies>>,
}

impl Planner {
    /// Starts to follow the cluster for a node. Events are delayed while pods are attached.
    pub(crate) fn new(
        client: &Client,
        node: &str,
        pod_resources: PathBuf,
        vif_store: VifLocation,
        busy: &Arc<Busy>,
        policies: Option<Arc<NetworkPolicies>>,
    ) -> Planner {
        let pods = Arc::new(Cache::new("pods"));
        let definitions = Arc::new(Cache::new("network-attachment-definitions"));
        let of_node = Config::default().fields(&format!("spec.nodeName={node}"));
        tokio::spawn(follow(client.clone(), Api::<PodObject>::all, of_node, Arc::clone(&pods)));
        let all = Api::<DefinitionObject>::all;
        tokio::spawn(follow(client.clone(), all, Config::default(), Arc::clone(&definitions)));
        Planner {
            client: client.clone(),
            pods,
            definitions,
            namespaces: Arc::new(Cache::new("namespaces")),
            namespaces_followed: Once::new(),
            pod_resources,
            slices: Slices::new(node),
            events: Events::new(client.clone(), node, busy),
            vif_store,
            policies,
        }
    }

    /// Whether the pod cache is current: the list was read, and the watch is connected.
    pub(crate) fn sees_cluster(&self) -> bool {
        self.pods.is_synced() && self.pods.age().is_zero()
    }

    /// Returns the caches that were never filled.
    pub(crate) fn waits_for(&self) -> Vec<String> {
        let policies = self.policies.as_ref().and_then(|policies| policies.policies.waited());
        [self.pods.waited(), self.definitions.waited(), policies].into_iter().flatten().collect()
    }

    /// Returns a plan for a sandbox.
    ///
    /// # Errors
    /// 3 the pod is unknown · 7 the plan is refused · 11 something that the plan needs is not available yet.
    pub(crate) async fn plan(&self, request: &PlanRequest, held: &[Held]) -> Result<Plan, Error> {
        Ok(self.plan_by(plan::plan, request, held).await?.0)
    }

    /// Returns a plan for a running pod with every network that can be attached ([`plan::possible`]), and
    /// whether all definitions could be read: otherwise a refused network may exist.
    ///
    /// # Errors
    /// As [`Planner::plan`].
    pub(crate) async fn possible_plan(
        &self,
        request: &PlanRequest,
        held: &[Held],
    ) -> Result<(Plan, bool), Error> {
        self.plan_by(plan::possible, request, held).await
    }

    /// Returns a number that grows whenever a network may become possible: a definition or a namespace has changed.
    pub(crate) fn inputs(&self) -> u64 {
        let count = |changes: watch::Receiver<u64>| *changes.borrow();
        count(self.definitions.changes()) + count(self.namespaces.changes())
    }

    async fn plan_by(
        &self,
        plan: impl Fn(&Request<'_>) -> Result<Plan, Refusal>,
        request: &PlanRequest,
        held: &[Held],
    ) -> Result<(Plan, bool), Error> {
        let node = request.node.configuration()?;
        let latest = tokio::time::Instant::now() + SYNC_MAX;
        let pod = self.pod(&node, &request.pod, latest).await?;
        let wanted = plan::wanted(&pod, &node);
        if !wanted.is_empty() {
            self.await_synced(&self.definitions, latest).await?;
        }
        let (mut definitions, unavailable) = self.definitions(&wanted).await;
        let neutron = kube_support::kuryr::definition::complete(&mut definitions);
        let resources = plan::resources(&pod, &node, definitions.values());
        let devices =
            device_facts::devices(&self.pod_resources, (&self.client, &self.slices), &pod, &resources)
                .await?;
        let access = self.access(&pod, &definitions).await;
        let sandbox = request.sandbox();
        let disk = request.node.disk();
        // A block, so that nothing borrowed from the request is held while ports are awaited.
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
            plan(&request)
        };
        let mut plan = planned.map_err(|refusal| {
            if unavailable.is_empty() && request.purpose == Purpose::Attach {
                self.events.refused(&pod, &refusal);
            }
            self.explained(refusal, &unavailable)
        })?;
        self.add_policies(&mut plan, &pod, &node, request.purpose, latest).await?;
        let wanted = neutron_ports::wanted(&plan, &neutron, held)?;
        self.ports(&pod, &mut plan, &wanted).await?;
        Ok((plan, unavailable.is_empty()))
    }

    /// Adds the network policies to a plan. The agent and the node's configuration must agree that they are
    /// enforced: otherwise pods would start without them whenever one is missing.
    async fn add_policies(
        &self,
        plan: &mut Plan,
        pod: &Pod,
        node: &NodeConfiguration,
        purpose: Purpose,
        latest: tokio::time::Instant,
    ) -> Result<(), Error> {
        let mut of_definitions =
            plan.delegates.iter_mut().filter(|delegate| pod_policies::reference(delegate).is_some());
        match &self.policies {
            None if !node.network_policies => Ok(()),
            Some(_) if purpose == Purpose::Detach => {
                // Rules may exist, which the DEL then removes.
                of_definitions.for_each(|delegate| delegate.policy = Some(AttachmentPolicy::default()));
                Ok(())
            }
            None if purpose == Purpose::Detach => Ok(()),
            _ if of_definitions.next().is_none() => Ok(()),
            Some(policies) if node.network_policies => {
                let added = policies.add_to_plan(plan, pod, latest).await?;
                added.map_err(|refusal| {
                    self.events.refused(pod, &refusal);
                    self.explained(refusal, &[])
                })
            }
            Some(_) => Err(disagree(
                "the agent enforces network policies, and the configuration of the meta-plugin does not require it",
                "set networkPolicies in the configuration of the meta-plugin, or start the agent without --policy",
            )),
            None => Err(disagree(
                "the configuration of the meta-plugin requires network policies, and the agent does not enforce them",
                "start the agent with --policy, or remove networkPolicies from the configuration of the meta-plugin",
            )),
        }
    }

    /// Puts the Neutron ports into a plan that needs some, once they are written.
    async fn ports(
        &self,
        pod: &Pod,
        plan: &mut Plan,
        wanted: &[neutron_ports::WantedPort],
    ) -> Result<(), Error> {
        if wanted.is_empty() {
            return Ok(());
        }
        let key: Key = (pod.namespace.clone(), pod.name.clone());
        let deadline = Instant::now() + neutron_ports::PORTS_MAX;
        let mut changes = self.pods.changes();
        loop {
            changes.mark_unchanged();
            // The current pod: the annotation is written meanwhile.
            let now = self.pods.find(&key).filter(|now| now.uid == pod.uid);
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

    /// Returns the error for a refusal. If something could not be read, the refusal may be due to that: it is
    /// "try again later".
    fn explained(&self, refusal: Refusal, unavailable: &[String]) -> Error {
        let mut error = Error::from(refusal);
        if !unavailable.is_empty() {
            let details = format!("{}; not known: {}", error.details, unavailable.join("; "));
            error = Error { code: code::TRY_AGAIN_LATER, ..error }.details(details);
        }
        let age = self.definitions.age().max(self.pods.age());
        if age.is_zero() {
            return error;
        }
        let details =
            format!("{}; the agent lost its watch of the API server {} s ago", error.details, age.as_secs());
        error.details(details)
    }

    /// Waits until a cache is filled.
    async fn await_synced<T: PartialEq>(
        &self,
        cache: &Cache<T>,
        latest: tokio::time::Instant,
    ) -> Result<(), Error> {
        if timeout_at(latest, cache.synced()).await.is_ok() {
            return Ok(());
        }
        let why = format!("agent: the caches are not filled yet: {}", self.waits_for().join(", "));
        let hint = "check that the API server is reachable and the custom resources are installed (weft crds prints them)";
        Err(Error::new(code::TRY_AGAIN_LATER, why).details(hint))
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
        let passed = node.pod_of_runtime(named)?;
        if !self.pods.is_synced() {
            match passed {
                // The pod selects no definition, so the cluster cannot add to its plan.
                Some(pod) if plan::wanted(&pod, node).is_empty() => return Ok(pod),
                Some(_) | None => self.await_synced(&self.pods, latest).await?,
            }
        }
        let key: Key = (named.namespace.clone(), named.name.clone());
        let fits = |pod: &Pod| named.uid.is_empty() || pod.uid == named.uid;
        let known = || self.pods.find(&key).filter(|pod| fits(pod));
        let mut changes = self.pods.changes();
        if known().is_none() && self.pods.age().is_zero() {
            let _ = timeout(LAG_MAX, changes.wait_for(|_| known().is_some())).await;
        }
        if let Some(pod) = known() {
            return Ok(Pod::clone(&pod));
        }
        let subject = format!("pod {}/{}", named.namespace, named.name);
        let asking = self.pods.ask(key.clone());
        match (
            ask(Api::<PodObject>::namespaced(self.client.clone(), &named.namespace), &named.name).await,
            passed,
        ) {
            (Ok(Some(pod)), _) if fits(&pod) => {
                asking.found(pod.clone());
                Ok(pod)
            }
            (Ok(Some(pod)), _) => {
                let why =
                    format!("{subject} has uid {}, but the runtime requests uid {}", pod.uid, named.uid);
                Err(Error::new(code::UNKNOWN_CONTAINER, why))
            }
            (Ok(None), _) => {
                Err(Error::new(code::UNKNOWN_CONTAINER, format!("{subject} is not in the cluster")))
            }
            (Err(why), Some(pod)) => {
                warn!(error = %why, "pod is planned from the annotations that the container runtime passed");
                Ok(pod)
            }
            (Err(why), None) => {
                let hint =
                    "the pod is not in the agent's cache, and the container runtime passes no annotations";
                Err(Error::new(code::TRY_AGAIN_LATER, format!("{subject}: {why}")).details(hint))
            }
        }
    }

    /// Returns the wanted definitions that exist, and a sentence for each that could not be read.
    async fn definitions(
        &self,
        wanted: &BTreeSet<NetworkReference>,
    ) -> (BTreeMap<NetworkReference, Definition>, Vec<String>) {
        let (mut found, mut unavailable) = (BTreeMap::new(), Vec::new());
        for reference in wanted {
            let key: Key = (reference.namespace.clone(), reference.name.clone());
            if let Some(known) = self.definitions.find(&key) {
                found.insert(reference.clone(), Definition::clone(&known));
            } else if self.definitions.age().is_zero() {
                // It may be newer than the cache.
                let api = Api::<DefinitionObject>::namespaced(self.client.clone(), &reference.namespace);
                match timeout(ASK_MAX, api.get_opt(&reference.name)).await {
                    Ok(Ok(asked)) => found.extend(asked.map(|asked| (reference.clone(), asked.reduce()))),
                    // Without the permission the definition counts as absent; a later attempt would not succeed either.
                    Ok(Err(kube::Error::Api(status))) if matches!(status.code, 401 | 403) => {
                        debug!(%reference, why = status.message, "no permission to read the NetworkAttachmentDefinition");
                    }
                    Ok(Err(error)) => {
                        unavailable.push(format!("{reference}: {}", api_error::describe(&error)));
                    }
                    Err(_) => unavailable.push(format!("{reference}: the API server does not answer")),
                }
            }
        }
        (found, unavailable)
    }

    /// Returns the access that the definitions' policies grant to the pod.
    async fn access(&self, pod: &Pod, definitions: &BTreeMap<NetworkReference, Definition>) -> Access {
        let policies = policy::policies(definitions);
        let labels = if policy::need_namespace_labels(&policies) {
            self.labels_of(&pod.namespace).await
        } else {
            None
        };
        policy::access(pod, policies, labels.as_deref())
    }

    /// Returns a namespace's labels. The first call starts to follow the namespaces.
    async fn labels_of(&self, namespace: &str) -> Option<Arc<Labels>> {
        self.namespaces_followed.call_once(|| {
            let (all, namespaces) = (Api::<NamespaceObject>::all, Arc::clone(&self.namespaces));
            tokio::spawn(follow(self.client.clone(), all, Config::default(), namespaces));
        });
        let _ = timeout(ASK_MAX, self.namespaces.synced()).await;
        self.namespaces.find(&(String::new(), namespace.to_owned()))
    }
}

fn disagree(why: &str, hint: &str) -> Error {
    Error::new(code::TRY_AGAIN_LATER, format!("agent: {why}")).details(hint)
}

/// Returns a pod's key in the cache.
pub(crate) fn pod_key(pod: &PodIdentity) -> Key {
    (pod.namespace.clone(), pod.name.clone())
}
