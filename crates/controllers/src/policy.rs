//! Policy controller: resolves the selectors of MultiNetworkPolicies and writes the addresses of their peers.
//!
//! ```text
//!   API server ──watch──► policies, pods, namespaces ─► PeerIndex ─► WriteSchedule ─► PolicyAddressSets, applied
//!                         definitions, blocks ─► AddressVerifier ──┘
//! ```
//!
//! - A pod's event costs the policies on its networks. A policy whose addresses did not change is not written.
//! - A single change is written at once, and a burst of changes with few writes.
//! - A policy that is invalid, or whose addresses do not fit into an object or into the room of its namespace, has an object
//!   without addresses. Its Event has the reason.
//! - An object that was changed or deleted manually is written again. That of a deleted policy is deleted.
//!
//! Source: `docs/design/policy.md`.

mod address_verifier;
mod followed;
mod namespace_sizes;
mod peer_index;
mod peer_pods;
mod policy_metrics;
mod selection;
#[cfg(test)]
mod simulation;
mod write_schedule;
mod written_set;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Api, Client};
use npwg::network_policy::KIND;
use policy_api::address_set::{AddressSetObject, MANAGER, empty_spec, spec};
use policy_api::policy_object::WatchedPolicy;
use tokio::time::{sleep_until, timeout};
use tracing::{info, warn};

use crate::policy::followed::{Caches, State};
use crate::policy::namespace_sizes::{NAMESPACE_MAX, NamespaceSizes};
pub(crate) use crate::policy::policy_metrics::PolicyMetrics;
use crate::policy::write_schedule::{WriteSchedule, Written};
use crate::policy::written_set::{WrittenSetObject, digest};
use kube_support::custom_resources::PolicyAddressSetSpec;
use kube_support::event_publisher::{EventPublisher, EventType};
use kube_support::events::{EventReason, EventText};
use kube_support::health::HealthStatus;
use kube_support::resources::{Key, Reduced};
use kube_support::{api_error, events};

/// Deadline of a request.
const WRITE_MAX: Duration = Duration::from_secs(10);
/// Maximum length of the reason in an Event, in bytes.
const REASON_MAX: usize = 900;

/// Policy controller.
pub(crate) struct PolicyController {
    client: Client,
    caches: Caches,
    publisher: EventPublisher,
    /// Reason of the last Event about a policy, by its uid.
    reported: Mutex<BTreeMap<String, String>>,
    metrics: PolicyMetrics,
}

/// Work on the address set of a policy.
struct Work {
    key: Key,
    /// Time of the change.
    changed: Instant,
    request: Option<Request>,
    /// Policy whose peers do not count, and why.
    refused: Option<(Arc<WatchedPolicy>, String)>,
}

/// Request about an address set.
enum Request {
    Apply(Box<AddressSetObject>),
    /// Delete the object with this uid.
    Delete(String),
}

// === impl PolicyController ===

impl PolicyController {
    /// Returns a controller that watches from now on, and writes nothing yet.
    pub(crate) fn new(client: Client, identity: &str) -> PolicyController {
        let caches = Caches::follow(&client);
        let publisher = events::publisher(client.clone(), Some(identity.to_owned()));
        PolicyController {
            client,
            caches,
            publisher,
            reported: Mutex::default(),
            metrics: PolicyMetrics::new(),
        }
    }

    /// Runs until the process ends.
    pub(crate) async fn run(self: Arc<Self>) {
        self.metrics.leader.set(1);
        self.caches.synced().await;
        let mut changes = self.caches.changes();
        let (mut state, mut schedule) = (State::default(), WriteSchedule::default());
        let mut sizes = NamespaceSizes::default();
        let (mut running, mut refused) = (FuturesUnordered::new(), BTreeSet::new());
        loop {
            let sets = self.caches.apply(&mut changes, &mut state);
            let now = Instant::now();
            sets.iter().for_each(|key| schedule.request(key, now));
            while let Some((key, changed)) = schedule.start(now) {
                let work = self.work(&state, &mut sizes, key, changed);
                match work.refused {
                    Some(_) => refused.insert(work.key.clone()),
                    None => refused.remove(&work.key),
                };
                running.push(self.perform(work));
                sizes.retry().iter().for_each(|key| schedule.request(key, now));
            }
            self.count(&state, refused.len());
            let next = schedule.next();
            tokio::select! {
                () = changes.next() => {}
                Some((key, written)) = running.next(), if !running.is_empty() => {
                    schedule.finished(&key, written, Instant::now());
                    if state.index.policy(&key).is_none() {
                        schedule.forget(&key);
                    }
                }
                () = sleep_until(next.unwrap_or_else(Instant::now).into()), if next.is_some() => {}
            }
        }
    }

    fn count(&self, state: &State, refused: usize) {
        let (policies, pods) = state.index.counts();
        self.metrics.policies.set(policies as u64);
        self.metrics.pods.set(pods as u64);
        self.metrics.unverified.set(state.verifier.refused());
        self.metrics.refused.set(refused as u64);
    }

    /// Compares the address set of a policy with what it should be.
    fn work(&self, state: &State, sizes: &mut NamespaceSizes, key: Key, changed: Instant) -> Work {
        let there = self.caches.sets.find(&key);
        let Some(policy) = state.index.policy(&key) else {
            // The policy of the object is deleted, and so are its owner and its reports.
            sizes.remove(&key);
            let request = there.map(|set| Request::Delete(set.uid.clone()));
            return Work { key, changed, request, refused: None };
        };
        if !policy.policy.faults.is_empty() {
            sizes.remove(&key);
        }
        let (spec, why) = if policy.policy.faults.is_empty() {
            match spec(policy, &state.index.addresses(&key)) {
                Ok(spec) if sizes.admit(&key, bytes(&spec)) => (spec, None),
                Ok(_) => {
                    let why = format!(
                        "no pod counts as a peer: the address sets of namespace {} take more than {} MiB; select fewer \
                         pods, or combine policies with the same peers",
                        key.0,
                        NAMESPACE_MAX >> 20
                    );
                    (empty_spec(policy), Some(why))
                }
                Err(error) => {
                    sizes.remove(&key);
                    (empty_spec(policy), Some(format!("no pod counts as a peer: {error}")))
                }
            }
        } else {
            let why = format!("all traffic of the selected pods is denied: {}", faults(policy));
            (empty_spec(policy), Some(why))
        };
        let is_there = there.is_some_and(|set| set.has(digest(&spec), &policy.uid));
        let request = (!is_there).then(|| Request::Apply(Box::new(AddressSetObject::new(policy, &spec))));
        Work { key, changed, request, refused: why.map(|why| (Arc::clone(policy), why)) }
    }

    /// Sends a request, and the Event about a policy whose peers do not count.
    async fn perform(&self, work: Work) -> (Key, Written) {
        let Work { key, changed, request, refused } = work;
        let written = match request {
            Some(request) => self.send(&key, request).await,
            None => Written::Done(0),
        };
        if matches!(written, Written::Done(bytes) if bytes > 0) {
            self.metrics.delay.observe(changed.elapsed().as_secs_f64());
        }
        if let Some((policy, why)) = refused {
            self.report(&policy, why).await;
        }
        (key, written)
    }

    async fn send(&self, key: &Key, request: Request) -> Written {
        let api = Api::<WrittenSetObject>::namespaced(self.client.clone(), &key.0);
        let lookup = self.caches.sets.ask(key.clone());
        let (outcome, bytes) = match &request {
            Request::Apply(object) => {
                let bytes = serde_json::to_vec(object).map(|text| text.len()).unwrap_or_default();
                let parameters = PatchParams::apply(MANAGER).force();
                let patch = Patch::Apply(object.as_ref());
                (timeout(WRITE_MAX, applied(&api, &key.1, &parameters, &patch)).await, bytes)
            }
            Request::Delete(uid) => {
                let of = Preconditions { uid: Some(uid.clone()), resource_version: None };
                let parameters = DeleteParams { preconditions: Some(of), ..DeleteParams::default() };
                (timeout(WRITE_MAX, deleted(&api, &key.1, &parameters)).await, 1)
            }
        };
        let why = match outcome {
            Ok(Ok(object)) => {
                self.metrics.written.inc();
                // The cache gets the result before the watch reports it.
                match object {
                    Some(object) => {
                        self.metrics.bytes.inc_by(bytes as u64);
                        lookup.found(object.reduce());
                    }
                    None => lookup.gone(),
                }
                return Written::Done(bytes);
            }
            Ok(Err(error)) => api_error::describe(&error),
            Err(_) => format!("the API server does not answer within {} s", WRITE_MAX.as_secs()),
        };
        self.metrics.failed.inc();
        let set = format!("{}/{}", key.0, key.1);
        warn!(set, error = why, "failed to write PolicyAddressSet; will try again");
        Written::Failed
    }

    /// Sends an Event about a policy whose peers do not count, once for each text.
    async fn report(&self, policy: &WatchedPolicy, why: String) {
        {
            // A panic leaves no map half changed.
            let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
            if reported.len() > self.caches.policies.count() {
                let there: BTreeSet<String> =
                    self.caches.policies.all().iter().map(|policy| policy.uid.clone()).collect();
                reported.retain(|uid, _| there.contains(uid));
            }
            if reported.insert(policy.uid.clone(), why.clone()).as_ref() == Some(&why) {
                return;
            }
        }
        info!(policy = policy.policy.to_string(), reason = why, "policy is refused");
        let about = ObjectReference {
            api_version: Some(policy.version.to_owned()),
            kind: Some(KIND.to_owned()),
            namespace: Some(policy.policy.namespace.clone()),
            name: Some(policy.policy.name.clone()),
            uid: Some(policy.uid.clone()),
            ..ObjectReference::default()
        };
        let event =
            EventText::new(EventType::Warning, EventReason::NetworkPolicyRefused, "ResolvePeers", &why);
        let _ = timeout(WRITE_MAX, event.publish(&self.publisher, &about)).await;
    }
}

/// Applies an object. Returns it as the API server stored it.
async fn applied(
    api: &Api<WrittenSetObject>,
    name: &str,
    parameters: &PatchParams,
    patch: &Patch<&AddressSetObject>,
) -> Result<Option<WrittenSetObject>, kube::Error> {
    api.patch(name, parameters, patch).await.map(Some)
}

/// Deletes an object, or finds that it is gone.
async fn deleted(
    api: &Api<WrittenSetObject>,
    name: &str,
    parameters: &DeleteParams,
) -> Result<Option<WrittenSetObject>, kube::Error> {
    match api.delete(name, parameters).await {
        Ok(_) => Ok(None),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the size of a spec.
fn bytes(spec: &PolicyAddressSetSpec) -> usize {
    serde_json::to_vec(spec).map_or(usize::MAX, |text| text.len())
}

/// Returns the faults of a policy as one text.
fn faults(policy: &WatchedPolicy) -> String {
    let mut text = String::new();
    for (index, fault) in policy.policy.faults.iter().enumerate() {
        let fault = fault.to_string();
        if index > 0 && text.len() + fault.len() > REASON_MAX {
            // Writing to a string cannot fail.
            let _ = write!(text, "; and {} more", policy.policy.faults.len() - index);
            break;
        }
        let _ = write!(text, "{}{fault}", if index == 0 { "" } else { "; " });
    }
    text
}

impl HealthStatus for PolicyController {
    fn page(&self) -> String {
        self.metrics.page()
    }

    fn waits_for(&self) -> Vec<String> {
        self.caches.waited()
    }
}
