//! Services controller: publishes addresses of additional networks in EndpointSlices, so that cluster DNS returns them.
//!
//! ```text
//!   API server ──watch──► Services, pods, own slices ─► desired slices ─► diff ─► slices created, updated, deleted
//! ```
//!
//! - Level-triggered: each change causes a comparison of everything; changes within a second are collected.
//! - Slices that other controllers wrote are not read. weft's slices are deleted with the Service, also by owner
//!   reference.
//! - A failed write is repeated with growing pauses and does not delay other Services ([`backoff`]).
//! - A Service whose request is refused gets an Event, once for each text.
//!
//! Source: Kubernetes EndpointSlices; multus-service for the annotation.

mod backoff;
mod desired_slices;
pub(crate) mod service_objects;
mod slice_diff;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::api::{DeleteParams, PostParams, Preconditions};
use kube::runtime::watcher::Config;
use kube::{Api, Client, Resource};
use prometheus_client::encoding::text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;
use tokio::time::{sleep, sleep_until, timeout};
use tracing::{info, warn};

use crate::services::backoff::{Backoff, PAUSES};
use crate::services::service_objects::{
    Backend, MANAGED_BY, MANAGER, SERVICE_NAME, Service, Slice, SliceObject,
};
use crate::services::slice_diff::{SliceChange, slice_changes};
use crate::work_progress::{ROUND_MAX, WorkProgress};
use kube_support::cache::{Cache, follow};
use kube_support::event_publisher::{EventPublisher, EventType};
use kube_support::health::HealthStatus;
use kube_support::resources::{Key, Reduced};
use kube_support::{api_error, events};

/// Time for which changes are collected.
const GATHER: Duration = Duration::from_secs(1);
/// Deadline for a write.
const WRITE_MAX: Duration = Duration::from_secs(5);

/// EndpointSlice version that the API server has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    V1,
    V1beta1,
}

/// Outcome of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Done,
    /// Another controller or Service has a slice with this name.
    NameTaken,
    Refused,
    /// The API server did not answer in time.
    NoAnswer,
}

/// Services controller.
pub(crate) struct ServiceController {
    client: Client,
    services: Arc<Cache<Service>>,
    pods: Arc<Cache<Backend>>,
    slices: Arc<Cache<Slice>>,
    publisher: EventPublisher,
    /// Reason in the last Event about a Service, by Service uid.
    reported: Mutex<BTreeMap<String, String>>,
    metrics: ServiceMetrics,
    work_progress: WorkProgress,
}

/// Metrics about the controller.
pub(crate) struct ServiceMetrics {
    registry: Registry,
    leader: Gauge,
    selected: Gauge,
    refused: Gauge<u64, AtomicU64>,
    written: Counter,
    failed: Counter,
}

// === impl ServiceMetrics ===

impl ServiceMetrics {
    /// Registers the metrics.
    pub(crate) fn new() -> ServiceMetrics {
        let mut registry = Registry::with_prefix("weft_services");
        let (leader, selected, refused) = (Gauge::default(), Gauge::default(), Gauge::default());
        let (written, failed) = (Counter::default(), Counter::default());
        registry.register(
            "leader",
            "Whether this controller holds the Lease (1) or waits for it (0)",
            leader.clone(),
        );
        registry.register(
            "selected",
            "Number of Services that select an additional network",
            selected.clone(),
        );
        registry.register(
            "refused",
            "Number of Services whose network annotation is refused; their Events have the reason",
            refused.clone(),
        );
        registry.register(
            "endpointslice_writes",
            "Number of EndpointSlices created, updated or deleted",
            written.clone(),
        );
        registry.register(
            "endpointslice_write_failures",
            "Number of failed writes of EndpointSlices",
            failed.clone(),
        );
        ServiceMetrics { registry, leader, selected, refused, written, failed }
    }

    /// Returns the metrics page.
    pub(crate) fn page(&self) -> String {
        let mut page = String::new();
        // Writing to a string cannot fail.
        let _ = text::encode(&mut page, &self.registry);
        page
    }
}

// === impl ServiceController ===

impl ServiceController {
    /// Returns a controller that watches from now on, and writes nothing yet.
    pub(crate) fn new(client: Client, identity: &str) -> ServiceController {
        let (services, pods) = (Arc::new(Cache::new("services")), Arc::new(Cache::new("pods")));
        let all = Config::default();
        let of_services = Api::<service_objects::ServiceObject>::all;
        tokio::spawn(follow(client.clone(), of_services, all.clone(), Arc::clone(&services)));
        let of_pods = Api::<service_objects::BackendObject>::all;
        tokio::spawn(follow(client.clone(), of_pods, all, Arc::clone(&pods)));
        let slices = Arc::new(Cache::new("endpointslices"));
        let publisher = events::publisher(client.clone(), Some(identity.to_owned()));
        let reported = Mutex::default();
        ServiceController {
            client,
            services,
            pods,
            slices,
            publisher,
            reported,
            metrics: ServiceMetrics::new(),
            work_progress: WorkProgress::default(),
        }
    }

    /// Runs until the process ends.
    pub(crate) async fn run(self: Arc<Self>) {
        self.metrics.leader.set(1);
        let version = self.follow_slices().await;
        self.services.synced().await;
        self.pods.synced().await;
        self.slices.synced().await;
        let mut changes = (self.services.changes(), self.pods.changes(), self.slices.changes());
        let mut backoff = Backoff::default();
        loop {
            self.work_progress.round();
            // Later changes are handled in the next round.
            changes.0.mark_unchanged();
            changes.1.mark_unchanged();
            changes.2.mark_unchanged();
            self.round(version, &mut backoff).await;
            let changed = async {
                // It cannot fail: the caches keep the senders.
                let _ = tokio::select! {
                    one = changes.0.changed() => one,
                    one = changes.1.changed() => one,
                    one = changes.2.changed() => one,
                };
            };
            let next = backoff.next();
            tokio::select! {
                () = changed => sleep(GATHER).await,
                () = sleep_until(next.unwrap_or_else(Instant::now).into()), if next.is_some() => {}
                () = sleep(ROUND_MAX) => {}
            }
        }
    }

    /// Detects the EndpointSlice version and starts to follow the own slices.
    async fn follow_slices(&self) -> Version {
        let ours = Config::default().labels(&format!("{MANAGED_BY}={MANAGER}"));
        let (client, slices) = (self.client.clone(), Arc::clone(&self.slices));
        let mut pause = PAUSES.0;
        let version = loop {
            match version(&self.client).await {
                Ok(version) => break version,
                Err(error) => {
                    warn!(error = error.to_string(), "failed to detect the version of EndpointSlices");
                }
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSES.1);
        };
        match version {
            Version::V1 => tokio::spawn(follow(client, Api::<SliceObject<false>>::all, ours, slices)),
            Version::V1beta1 => tokio::spawn(follow(client, Api::<SliceObject<true>>::all, ours, slices)),
        };
        version
    }

    /// Compares all Services with the slices, and writes the changes for those that are not paused.
    async fn round(&self, version: Version, backoff: &mut Backoff) {
        let (services, mut pods, mut slices) =
            (self.services.all(), by_namespace(&self.pods.all()), by_service(self.slices.all()));
        let (mut seen, mut selected, mut refused) = (BTreeSet::new(), 0, BTreeMap::new());
        let mut rooms: BTreeMap<String, usize> = BTreeMap::new();
        let key = |service: &Service| (service.namespace.clone(), service.name.clone());
        // A new Service must not take the room of one that is published.
        let (published, new): (Vec<_>, Vec<_>) =
            services.into_iter().partition(|service| slices.contains_key(&key(service)));
        for service in published.into_iter().chain(new) {
            let key = key(&service);
            let present = slices.remove(&key).unwrap_or_default();
            let groups = match &service.request {
                None if present.is_empty() => continue,
                None => Vec::new(),
                Some(request) => {
                    selected += 1;
                    let of_namespace = pods.entry(service.namespace.clone()).or_default();
                    let room =
                        rooms.entry(service.namespace.clone()).or_insert(desired_slices::ENDPOINTS_MAX);
                    let groups = desired_slices::groups(&service, request, of_namespace, *room);
                    let groups = groups.unwrap_or_else(|error| {
                        refused.insert(service.uid.clone(), (Arc::clone(&service), error.to_string()));
                        Vec::new()
                    });
                    *room -= groups.iter().map(|group| group.endpoints.len()).sum::<usize>();
                    groups
                }
            };
            let slice_changes = slice_changes(&service, &groups, &present, backoff.taken(&key));
            self.act(version, &key, slice_changes, backoff).await;
            seen.insert(key);
        }
        // Slices of deleted Services: the garbage collector may be slow.
        for (key, present) in slices {
            let slice_changes =
                present.iter().map(|slice| SliceChange::Delete(slice.as_ref().clone())).collect();
            self.act(version, &key, slice_changes, backoff).await;
            seen.insert(key);
        }
        backoff.retain(|key| seen.contains(key));
        self.metrics.selected.set(selected);
        self.metrics.refused.set(refused.len() as u64);
        self.report(refused).await;
    }

    /// Writes the changes for one Service. It stops if the API server does not answer.
    async fn act(
        &self,
        version: Version,
        service: &Key,
        slice_changes: Vec<SliceChange>,
        backoff: &mut Backoff,
    ) {
        if backoff.is_paused(service, Instant::now()) {
            return;
        }
        let mut done = true;
        for change in slice_changes {
            let outcome = match version {
                Version::V1 => self.write::<false>(&change).await,
                Version::V1beta1 => self.write::<true>(&change).await,
            };
            done &= outcome == Outcome::Done;
            match outcome {
                Outcome::NameTaken => backoff.add_taken(service, change.name()),
                // Each remaining write would wait as long.
                Outcome::NoAnswer => break,
                Outcome::Done | Outcome::Refused => {}
            }
        }
        if done {
            backoff.done(service);
        } else {
            backoff.failed(service, Instant::now());
        }
    }

    async fn write<const BETA: bool>(&self, change: &SliceChange) -> Outcome
    where
        SliceObject<BETA>: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Reduced<Form = Slice>
            + Clone
            + Debug
            + Serialize
            + DeserializeOwned,
    {
        let namespace = change.slice().metadata.namespace.clone().unwrap_or_default();
        let api = Api::<SliceObject<BETA>>::namespaced(self.client.clone(), &namespace);
        let slice = format!("{namespace}/{}", change.name());
        let lookup = self.slices.ask((namespace, change.name().to_owned()));
        let (outcome, why) = match timeout(WRITE_MAX, send(&api, change)).await {
            Ok(Ok(written)) => {
                self.metrics.written.inc();
                self.work_progress.answered();
                // The cache gets the written slice before the watch reports it.
                if let Some(object) = written {
                    lookup.found(object.reduce());
                }
                return Outcome::Done;
            }
            Ok(Err(error)) => {
                self.work_progress.failed(&error);
                let code = if let kube::Error::Api(status) = &error { status.code } else { 0 };
                if code == 404 {
                    // The watch may report the deletion later.
                    lookup.gone();
                }
                match (change, code) {
                    // The slice is deleted, or another one has its name: the watch reports it.
                    (SliceChange::Delete(_), 404 | 409) => return Outcome::Done,
                    (SliceChange::Create(ours), 409) if is_foreign(&api, ours).await => (
                        Outcome::NameTaken,
                        "another controller has this EndpointSlice; another name is used".to_owned(),
                    ),
                    _ => (Outcome::Refused, api_error::describe(&error)),
                }
            }
            Err(_) => {
                let why = format!("the API server does not answer within {} s", WRITE_MAX.as_secs());
                self.work_progress.unanswered(&why);
                (Outcome::NoAnswer, why)
            }
        };
        self.metrics.failed.inc();
        warn!(slice, error = why, "failed to write EndpointSlice; will try again");
        outcome
    }

    /// Sends an Event about each refused Service, once for each text.
    async fn report(&self, refused: BTreeMap<String, (Arc<Service>, String)>) {
        let mut fresh = Vec::new();
        {
            // A panic leaves no map half changed.
            let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
            reported.retain(|uid, _| refused.contains_key(uid));
            for (uid, (service, why)) in refused {
                if reported.insert(uid, why.clone()).as_ref() != Some(&why) {
                    fresh.push((service, why));
                }
            }
        }
        for (service, why) in fresh {
            let Service { namespace, name, uid, .. } = service.as_ref();
            info!(service = format!("{namespace}/{name}"), reason = why, "Service is refused");
            let about = ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Service".to_owned()),
                namespace: Some(namespace.clone()),
                name: Some(name.clone()),
                uid: Some(uid.clone()),
                ..ObjectReference::default()
            };
            let event = events::EventText::new(
                EventType::Warning,
                events::EventReason::NetworkAddressesRefused,
                "ListAddresses",
                &why,
            );
            let _ = timeout(WRITE_MAX, event.publish(&self.publisher, &about)).await;
        }
    }
}

/// Sends a change. Returns the slice as the API server stored it, unless it was deleted.
async fn send<const BETA: bool>(
    api: &Api<SliceObject<BETA>>,
    change: &SliceChange,
) -> Result<Option<SliceObject<BETA>>, kube::Error>
where
    SliceObject<BETA>: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned,
{
    let (object, parameters) = (SliceObject::of(change.slice()), PostParams::default());
    match change {
        SliceChange::Create(_) => api.create(&parameters, &object).await.map(Some),
        SliceChange::Replace(_) => api.replace(change.name(), &parameters, &object).await.map(Some),
        SliceChange::Delete(slice) => {
            let of = Preconditions { uid: slice.metadata.uid.clone(), resource_version: None };
            let parameters = DeleteParams { preconditions: Some(of), ..DeleteParams::default() };
            api.delete(change.name(), &parameters).await.map(|_| None)
        }
    }
}

/// Whether the slice with this name belongs to another controller or to another Service.
async fn is_foreign<const BETA: bool>(api: &Api<SliceObject<BETA>>, ours: &Slice) -> bool
where
    SliceObject<BETA>: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let name = ours.metadata.name.as_deref().unwrap_or_default();
    let Ok(Ok(Some(there))) = timeout(WRITE_MAX, api.get_opt(name)).await else { return false };
    let there = there.slice();
    [MANAGED_BY, SERVICE_NAME].iter().any(|key| there.label(key) != ours.label(key))
}

/// Groups slices by Service.
fn by_service(slices: Vec<Arc<Slice>>) -> BTreeMap<Key, Vec<Arc<Slice>>> {
    let mut all: BTreeMap<Key, Vec<Arc<Slice>>> = BTreeMap::new();
    for slice in slices {
        let namespace = slice.metadata.namespace.clone().unwrap_or_default();
        let service = slice.label(SERVICE_NAME).unwrap_or_default().to_owned();
        all.entry((namespace, service)).or_default().push(slice);
    }
    all
}

fn by_namespace(pods: &[Arc<Backend>]) -> BTreeMap<String, Vec<Arc<Backend>>> {
    let mut all: BTreeMap<String, Vec<Arc<Backend>>> = BTreeMap::new();
    for pod in pods.iter().filter(|pod| !pod.addresses.is_empty()) {
        all.entry(pod.namespace.clone()).or_default().push(Arc::clone(pod));
    }
    all
}

/// Why the EndpointSlice version could not be detected.
#[derive(Debug, Error)]
enum VersionError {
    /// The API server returned an error or cannot be reached.
    #[error("{}", api_error::describe(.0))]
    Api(kube::Error),
    /// The server has no EndpointSlices.
    #[error("the cluster has no EndpointSlices: discovery.k8s.io requires Kubernetes 1.17 or newer")]
    None,
}

/// Detects the EndpointSlice version: `v1` requires Kubernetes 1.21.
async fn version(client: &Client) -> Result<Version, VersionError> {
    let groups = client.list_api_groups().await.map_err(VersionError::Api)?;
    let versions = groups.groups.into_iter().filter(|group| group.name == "discovery.k8s.io");
    let versions: Vec<String> =
        versions.flat_map(|group| group.versions).map(|version| version.version).collect();
    let has = |wanted: &str| versions.iter().any(|version| version == wanted);
    if has("v1") {
        Ok(Version::V1)
    } else if has("v1beta1") {
        Ok(Version::V1beta1)
    } else {
        Err(VersionError::None)
    }
}

impl HealthStatus for ServiceController {
    fn page(&self) -> String {
        self.metrics.page()
    }

    fn stalled(&self) -> Option<String> {
        self.work_progress.stalled()
    }

    fn waits_for(&self) -> Vec<String> {
        // Slices are followed only by the controller that holds the Lease.
        [self.services.waited(), self.pods.waited()].into_iter().flatten().collect()
    }
}
