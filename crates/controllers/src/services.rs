//! Services whose addresses are those of a further network: their EndpointSlices, so that cluster DNS answers with them.
//!
//! ```text
//!   API server ──watch──► Services, pods, our slices ─► wanted ─► comparison ─► slices made, written, taken away
//! ```
//!
//! Rules:
//! - levels, not edges: at each change all of it is looked at again, changes of a second together;
//! - slices that somebody else looks after are not even seen; ours go with their Service, by its ownership too;
//! - what cannot be written is tried again, more and more rarely, and holds up nothing else ([`backoff`]);
//! - what a Service asks for and cannot have is told to its owner in an Event, once for each text.
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
use kube::runtime::events::{EventType, Recorder};
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
use crate::services::slice_diff::{Deed, deeds};
use kube_support::cache::{Cache, follow};
use kube_support::health::HealthStatus;
use kube_support::resources::{Key, Reduced};
use kube_support::{api_error, events};

/// Changes that come so close together are looked at together.
const GATHER: Duration = Duration::from_secs(1);
/// How long one write may take.
const WRITE_MAX: Duration = Duration::from_secs(5);

/// Which version of EndpointSlices a server has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    V1,
    V1beta1,
}

/// What came of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Done,
    /// Another one of its name is there, and none of this Service's.
    Taken,
    Refused,
    /// There was no answer in time.
    Unanswered,
}

/// Who lists addresses of Services.
pub(crate) struct ServiceController {
    client: Client,
    services: Arc<Cache<Service>>,
    pods: Arc<Cache<Backend>>,
    slices: Arc<Cache<Slice>>,
    recorder: Recorder,
    /// What a Service's owner was told last, by its uid.
    told: Mutex<BTreeMap<String, String>>,
    registry: Registry,
    asking: Gauge,
    refused: Gauge<u64, AtomicU64>,
    written: Counter,
    failed: Counter,
}

impl ServiceController {
    /// One that watches from now on, and does nothing yet.
    pub(crate) fn new(client: Client, identity: &str) -> ServiceController {
        let (services, pods) = (Arc::new(Cache::new("services")), Arc::new(Cache::new("pods")));
        let all = Config::default();
        let of_services = Api::<service_objects::ServiceObject>::all(client.clone());
        tokio::spawn(follow(of_services, all.clone(), Arc::clone(&services)));
        tokio::spawn(follow(
            Api::<service_objects::BackendObject>::all(client.clone()),
            all,
            Arc::clone(&pods),
        ));
        let slices = Arc::new(Cache::new("endpointslices"));
        let mut registry = Registry::with_prefix("weft_services");
        let (asking, refused) = (Gauge::default(), Gauge::default());
        let (written, failed) = (Counter::default(), Counter::default());
        registry.register("selected", "Number of Services that select an additional network", asking.clone());
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
        let recorder = events::recorder(client.clone(), Some(identity.to_owned()));
        let told = Mutex::default();
        ServiceController {
            client,
            services,
            pods,
            slices,
            recorder,
            told,
            registry,
            asking,
            refused,
            written,
            failed,
        }
    }

    /// For ever.
    pub(crate) async fn run(self: Arc<Self>) {
        let version = self.follow_slices().await;
        self.services.synced().await;
        self.pods.synced().await;
        self.slices.synced().await;
        let mut changes = (self.services.changes(), self.pods.changes(), self.slices.changes());
        let mut backoff = Backoff::default();
        loop {
            // What changes from here on is looked at in the next round.
            changes.0.mark_unchanged();
            changes.1.mark_unchanged();
            changes.2.mark_unchanged();
            self.round(version, &mut backoff).await;
            let changed = async {
                // The senders live as long as we do.
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
            }
        }
    }

    /// Follows our slices, once the server says which ones it has.
    async fn follow_slices(&self) -> Version {
        let ours = Config::default().labels(&format!("{MANAGED_BY}={MANAGER}"));
        let (client, slices) = (self.client.clone(), Arc::clone(&self.slices));
        let mut pause = PAUSES.0;
        let version = loop {
            match version(&self.client).await {
                Ok(version) => break version,
                Err(error) => {
                    warn!(why = error.to_string(), "the server does not say which EndpointSlices it has");
                }
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSES.1);
        };
        match version {
            Version::V1 => tokio::spawn(follow(Api::<SliceObject<false>>::all(client), ours, slices)),
            Version::V1beta1 => tokio::spawn(follow(Api::<SliceObject<true>>::all(client), ours, slices)),
        };
        version
    }

    /// Looks at everything, and does what is to be done but for what rests.
    async fn round(&self, version: Version, backoff: &mut Backoff) {
        let (services, mut pods, mut slices) =
            (self.services.all(), by_namespace(&self.pods.all()), by_service(self.slices.all()));
        let (mut seen, mut asking, mut refused) = (BTreeSet::new(), 0, BTreeMap::new());
        for service in services {
            let key = (service.namespace.clone(), service.name.clone());
            let present = slices.remove(&key).unwrap_or_default();
            let groups = match &service.wish {
                None if present.is_empty() => continue,
                None => Vec::new(),
                Some(wish) => {
                    asking += 1;
                    let of_namespace = pods.entry(service.namespace.clone()).or_default();
                    desired_slices::groups(&service, wish, of_namespace).unwrap_or_else(|error| {
                        refused.insert(service.uid.clone(), (Arc::clone(&service), error.to_string()));
                        Vec::new()
                    })
                }
            };
            let deeds = deeds(&service, &groups, &present, backoff.taken(&key));
            self.act(version, &key, deeds, backoff).await;
            seen.insert(key);
        }
        // Of Services that are gone: whoever collects garbage may be slow.
        for (key, present) in slices {
            let deeds = present.iter().map(|slice| Deed::Delete(slice.as_ref().clone())).collect();
            self.act(version, &key, deeds, backoff).await;
            seen.insert(key);
        }
        backoff.retain(|key| seen.contains(key));
        self.asking.set(asking);
        self.refused.set(refused.len() as u64);
        self.tell(refused).await;
    }

    /// Does it for one Service, as far as it can be done.
    async fn act(&self, version: Version, service: &Key, deeds: Vec<Deed>, backoff: &mut Backoff) {
        if backoff.has(service, Instant::now()) {
            return;
        }
        let mut done = true;
        for deed in deeds {
            let outcome = match version {
                Version::V1 => self.write::<false>(&deed).await,
                Version::V1beta1 => self.write::<true>(&deed).await,
            };
            done &= outcome == Outcome::Done;
            match outcome {
                Outcome::Taken => backoff.take(service, deed.name()),
                // All others would wait as long for each that is left.
                Outcome::Unanswered => break,
                Outcome::Done | Outcome::Refused => {}
            }
        }
        match done {
            true => backoff.done(service),
            false => backoff.failed(service, Instant::now()),
        }
    }

    async fn write<const BETA: bool>(&self, deed: &Deed) -> Outcome
    where
        SliceObject<BETA>: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Reduced<Form = Slice>
            + Clone
            + Debug
            + Serialize
            + DeserializeOwned,
    {
        let namespace = deed.slice().metadata.namespace.clone().unwrap_or_default();
        let api = Api::<SliceObject<BETA>>::namespaced(self.client.clone(), &namespace);
        let slice = format!("{namespace}/{}", deed.name());
        let asking = self.slices.ask((namespace, deed.name().to_owned()));
        let (outcome, why) = match timeout(WRITE_MAX, send(&api, deed)).await {
            Ok(Ok(written)) => {
                self.written.inc();
                // Before the watch tells of it nothing else is to be thought of it.
                if let Some(object) = written {
                    asking.found(object.reduce());
                }
                return Outcome::Done;
            }
            Ok(Err(error)) => {
                let code = if let kube::Error::Api(status) = &error { status.code } else { 0 };
                if code == 404 {
                    // Its end the watch tells later.
                    asking.gone();
                }
                match (deed, code) {
                    // It is gone already, or another one of its name is there by now: the watch tells.
                    (Deed::Delete(_), 404 | 409) => return Outcome::Done,
                    (Deed::Create(ours), 409) if is_anothers(&api, ours).await => {
                        (Outcome::Taken, "it is somebody else's: another name is taken".to_owned())
                    }
                    _ => (Outcome::Refused, api_error::describe(&error)),
                }
            }
            Err(_) => {
                let why = format!("the API server does not answer within {} s", WRITE_MAX.as_secs());
                (Outcome::Unanswered, why)
            }
        };
        self.failed.inc();
        warn!(slice, why, "cannot be written; it is tried again");
        outcome
    }

    /// Tells owners of what is refused, once for each text.
    async fn tell(&self, refused: BTreeMap<String, (Arc<Service>, String)>) {
        let mut fresh = Vec::new();
        {
            // A map is never left half changed.
            let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
            told.retain(|uid, _| refused.contains_key(uid));
            for (uid, (service, why)) in refused {
                if told.insert(uid, why.clone()).as_ref() != Some(&why) {
                    fresh.push((service, why));
                }
            }
        }
        for (service, why) in fresh {
            let Service { namespace, name, uid, .. } = service.as_ref();
            info!(service = format!("{namespace}/{name}"), why, "is refused");
            let about = ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Service".to_owned()),
                namespace: Some(namespace.clone()),
                name: Some(name.clone()),
                uid: Some(uid.clone()),
                ..ObjectReference::default()
            };
            let told = events::EventText::new(
                EventType::Warning,
                events::EventReason::NetworkAddressesRefused,
                "ListAddresses",
                &why,
            );
            let _ = timeout(WRITE_MAX, told.publish(&self.recorder, &about)).await;
        }
    }
}

/// Asks for it; the slice as it is then, if one is left.
async fn send<const BETA: bool>(
    api: &Api<SliceObject<BETA>>,
    deed: &Deed,
) -> Result<Option<SliceObject<BETA>>, kube::Error>
where
    SliceObject<BETA>: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned,
{
    let (object, parameters) = (SliceObject::of(deed.slice()), PostParams::default());
    match deed {
        Deed::Create(_) => api.create(&parameters, &object).await.map(Some),
        Deed::Replace(_) => api.replace(deed.name(), &parameters, &object).await.map(Some),
        Deed::Delete(slice) => {
            let of = Preconditions { uid: slice.metadata.uid.clone(), resource_version: None };
            let parameters = DeleteParams { preconditions: Some(of), ..DeleteParams::default() };
            api.delete(deed.name(), &parameters).await.map(|_| None)
        }
    }
}

/// Is the slice of this name none of the same Service's of ours?
async fn is_anothers<const BETA: bool>(api: &Api<SliceObject<BETA>>, ours: &Slice) -> bool
where
    SliceObject<BETA>: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let name = ours.metadata.name.as_deref().unwrap_or_default();
    let Ok(Ok(Some(there))) = timeout(WRITE_MAX, api.get_opt(name)).await else { return false };
    let there = there.slice();
    [MANAGED_BY, SERVICE_NAME].iter().any(|key| there.label(key) != ours.label(key))
}

/// Slices by their Service.
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

/// Reason why the version of EndpointSlices is not known.
#[derive(Debug, Error)]
enum VersionError {
    /// The API server refuses, or cannot be reached.
    #[error("{}", api_error::describe(.0))]
    Api(kube::Error),
    /// The server has no EndpointSlices.
    #[error("the cluster has none: discovery.k8s.io is there from Kubernetes 1.17 on")]
    None,
}

/// Which EndpointSlices the server has: `v1` from Kubernetes 1.21 on.
async fn version(client: &Client) -> Result<Version, VersionError> {
    let groups = client.list_api_groups().await.map_err(VersionError::Api)?;
    let versions = groups.groups.into_iter().filter(|group| group.name == "discovery.k8s.io");
    let versions: Vec<String> =
        versions.flat_map(|group| group.versions).map(|version| version.version).collect();
    match () {
        () if versions.iter().any(|version| version == "v1") => Ok(Version::V1),
        () if versions.iter().any(|version| version == "v1beta1") => Ok(Version::V1beta1),
        () => Err(VersionError::None),
    }
}

impl HealthStatus for ServiceController {
    fn page(&self) -> String {
        let mut page = String::new();
        // Writing to a text cannot fail.
        let _ = text::encode(&mut page, &self.registry);
        page
    }

    fn waits_for(&self) -> Vec<String> {
        // Slices are followed by the one alone that works.
        [self.services.waited(), self.pods.waited()].into_iter().flatten().collect()
    }
}
