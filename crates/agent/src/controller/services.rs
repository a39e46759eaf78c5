//! Services whose addresses are those of a further network: their EndpointSlices, so that cluster DNS answers with them.
//!
//! ```text
//!   API server ──watch──► Services, pods, our slices ─► wanted ─► comparison ─► slices made, written, taken away
//! ```
//!
//! Rules:
//! - levels, not edges: at each change all of it is looked at again, changes of a second together;
//! - slices that somebody else looks after are not even seen; ours go with their Service, by its ownership too;
//! - what cannot be written is looked at again, more and more rarely; one Service's trouble holds up no other one;
//! - what a Service asks for and cannot have is told to its owner in an Event, once for each text.
//!
//! Source: Kubernetes EndpointSlices; multus-service for the annotation.

mod comparison;
pub(crate) mod objects;
mod wanted;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

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
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use self::comparison::{Deed, deeds};
use self::objects::{Backend, MANAGED_BY, MANAGER, SERVICE_NAME, Service, Slice, SliceObject};
use crate::agent::cache::{Cache, follow};
use crate::agent::cluster::{Reduced, key};
use crate::agent::health::Told;
use crate::agent::{events, unanswered};

/// Changes that come so close together are looked at together.
const GATHER: Duration = Duration::from_secs(1);
/// The first and the longest pause after trouble.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// How long one write may take.
const WRITE_MAX: Duration = Duration::from_secs(5);

/// Which version of EndpointSlices a server has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    V1,
    V1beta1,
}

/// Who lists addresses of Services.
pub(crate) struct Lister {
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

impl Lister {
    /// One that watches from now on, and does nothing yet.
    pub(crate) fn new(client: Client, identity: &str) -> Lister {
        let (services, pods) = (Arc::new(Cache::new("services")), Arc::new(Cache::new("pods")));
        let all = Config::default();
        let of_services = Api::<objects::ServiceObject>::all(client.clone());
        tokio::spawn(follow(of_services, all.clone(), Arc::clone(&services)));
        tokio::spawn(follow(Api::<objects::BackendObject>::all(client.clone()), all, Arc::clone(&pods)));
        let slices = Arc::new(Cache::new("endpointslices"));
        let mut registry = Registry::with_prefix("weft_services");
        let (asking, refused) = (Gauge::default(), Gauge::default());
        let (written, failed) = (Counter::default(), Counter::default());
        registry.register("asking", "Services that name networks", asking.clone());
        registry.register(
            "refused",
            "Those that cannot have what they ask for: see their Events",
            refused.clone(),
        );
        registry.register("writes", "EndpointSlices made, written and taken away", written.clone());
        registry.register("failed_writes", "Those that failed", failed.clone());
        let recorder = events::recorder(client.clone(), Some(identity.to_owned()));
        let told = Mutex::default();
        Lister { client, services, pods, slices, recorder, told, registry, asking, refused, written, failed }
    }

    /// For ever.
    pub(crate) async fn run(self: Arc<Self>) {
        let version = self.follow_slices().await;
        self.services.synced().await;
        self.pods.synced().await;
        self.slices.synced().await;
        let mut changes = (self.services.changes(), self.pods.changes(), self.slices.changes());
        let mut pause = PAUSES.0;
        loop {
            // What changes from here on is looked at in the next round.
            changes.0.mark_unchanged();
            changes.1.mark_unchanged();
            changes.2.mark_unchanged();
            let changed = async {
                // The senders live as long as we do.
                let _ = tokio::select! {
                    one = changes.0.changed() => one,
                    one = changes.1.changed() => one,
                    one = changes.2.changed() => one,
                };
            };
            if self.round(version).await {
                pause = PAUSES.0;
                changed.await;
                sleep(GATHER).await;
            } else {
                sleep(pause).await;
                pause = (pause * 2).min(PAUSES.1);
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
                Err(why) => warn!(why, "the server does not say which EndpointSlices it has"),
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

    /// Looks at everything; was all that was to be done done?
    async fn round(&self, version: Version) -> bool {
        let (services, mut pods, mut slices) =
            (self.services.all(), by_namespace(&self.pods.all()), BTreeMap::new());
        for slice in self.slices.all() {
            let labels = slice.metadata.labels.as_ref();
            let of = labels.and_then(|labels| labels.get(SERVICE_NAME)).cloned().unwrap_or_default();
            let namespace = slice.metadata.namespace.clone().unwrap_or_default();
            slices.entry((namespace, of)).or_insert_with(Vec::new).push(slice);
        }
        let (mut done, mut asking, mut refused) = (true, 0, BTreeMap::new());
        for service in services {
            let present =
                slices.remove(&(service.namespace.clone(), service.name.clone())).unwrap_or_default();
            let groups = match &service.wish {
                None if present.is_empty() => continue,
                None => Vec::new(),
                Some(wish) => {
                    asking += 1;
                    let of_namespace = pods.entry(service.namespace.clone()).or_default();
                    wanted::groups(&service, wish, of_namespace).unwrap_or_else(|why| {
                        refused.insert(service.uid.clone(), (Arc::clone(&service), why));
                        Vec::new()
                    })
                }
            };
            done &= self.act(version, deeds(&service, &groups, &present)).await;
        }
        // Of Services that are gone: whoever collects garbage may be slow.
        for present in slices.into_values() {
            done &= self
                .act(version, present.iter().map(|slice| Deed::Delete(slice.as_ref().clone())).collect())
                .await;
        }
        self.asking.set(asking);
        self.refused.set(refused.len() as u64);
        self.tell(refused).await;
        done
    }

    /// Does it, as far as it can be done.
    async fn act(&self, version: Version, deeds: Vec<Deed>) -> bool {
        let mut done = true;
        for deed in deeds {
            done &= match version {
                Version::V1 => self.write::<false>(&deed).await,
                Version::V1beta1 => self.write::<true>(&deed).await,
            };
        }
        done
    }

    async fn write<const BETA: bool>(&self, deed: &Deed) -> bool
    where
        SliceObject<BETA>: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Reduced<Form = Slice>
            + Clone
            + Debug
            + Serialize
            + DeserializeOwned,
    {
        let (Deed::Create(slice) | Deed::Replace(slice) | Deed::Delete(slice)) = deed;
        let metadata = &slice.metadata;
        let (namespace, name) = (metadata.namespace.as_deref().unwrap_or_default(), metadata.name.as_deref());
        let name = name.unwrap_or_default();
        let api = Api::<SliceObject<BETA>>::namespaced(self.client.clone(), namespace);
        let (object, parameters) = (SliceObject::of(slice), PostParams::default());
        let write = async {
            match deed {
                Deed::Create(_) => api.create(&parameters, &object).await.map(Some),
                Deed::Replace(_) => api.replace(name, &parameters, &object).await.map(Some),
                Deed::Delete(_) => {
                    let of = Preconditions { uid: metadata.uid.clone(), resource_version: None };
                    let parameters = DeleteParams { preconditions: Some(of), ..DeleteParams::default() };
                    api.delete(name, &parameters).await.map(|_| None)
                }
            }
        };
        let why = match timeout(WRITE_MAX, write).await {
            Ok(Ok(written)) => {
                self.written.inc();
                // Before the watch tells of it nothing else is to be thought of it.
                if let Some(object) = written {
                    self.slices.learn(key(&object), object.reduce());
                }
                return true;
            }
            // It is gone already, or another one of its name is there by now: the watch tells.
            Ok(Err(kube::Error::Api(status)))
                if matches!((deed, status.code), (Deed::Delete(_), 404 | 409)) =>
            {
                return true;
            }
            Ok(Err(error)) => unanswered::said(&error),
            Err(_) => format!("the API server does not answer within {} s", WRITE_MAX.as_secs()),
        };
        self.failed.inc();
        warn!(slice = format!("{namespace}/{name}"), why, "cannot be written; it is tried again");
        false
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
            let told =
                events::Told::new(EventType::Warning, "NetworkAddressesRefused", "ListAddresses", &why);
            let _ = timeout(WRITE_MAX, told.publish(&self.recorder, &about)).await;
        }
    }
}

fn by_namespace(pods: &[Arc<Backend>]) -> BTreeMap<String, Vec<Arc<Backend>>> {
    let mut all: BTreeMap<String, Vec<Arc<Backend>>> = BTreeMap::new();
    for pod in pods.iter().filter(|pod| !pod.addresses.is_empty()) {
        all.entry(pod.namespace.clone()).or_default().push(Arc::clone(pod));
    }
    all
}

/// Which EndpointSlices the server has: `v1` from Kubernetes 1.21 on.
async fn version(client: &Client) -> Result<Version, String> {
    let groups = client.list_api_groups().await.map_err(|error| unanswered::said(&error))?;
    let versions = groups.groups.into_iter().filter(|group| group.name == "discovery.k8s.io");
    let versions: Vec<String> =
        versions.flat_map(|group| group.versions).map(|version| version.version).collect();
    match () {
        () if versions.iter().any(|version| version == "v1") => Ok(Version::V1),
        () if versions.iter().any(|version| version == "v1beta1") => Ok(Version::V1beta1),
        () => Err("the cluster has none: discovery.k8s.io is there from Kubernetes 1.17 on".to_owned()),
    }
}

impl Told for Lister {
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
