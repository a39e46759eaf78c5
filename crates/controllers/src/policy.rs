//! Policy controller: resolves the selectors of MultiNetworkPolicies and writes the addresses of the selected pods.
//!
//! ```text
//!   API server ──watch──► policies, pods, namespaces ─► PeerIndex ─► WriteSchedule ─► PolicyAddressSets, applied
//!                         definitions, blocks ─► AddressVerifier ──┘
//! ```
//!
//! - Rules of a namespace with equal peers share one object. An object that no rule needs is deleted after a while.
//! - The cost of a pod event depends on the number of selections on the pod's networks. An object whose addresses did
//!   not change is not written.
//! - A single change is written at once, and a burst of changes with few writes.
//! - Addresses that do not fit into an object, or exceed the namespace's limit, are not written. An Event on each
//!   policy has the reason, as for an invalid policy.
//! - An object that was changed or deleted manually is written again.
//!
//! Source: `docs/design/policy.md`.

mod address_verifier;
mod followed;
mod namespace_sizes;
mod peer_index;
mod peer_pods;
mod pod_slots;
mod policy_metrics;
mod refusals;
#[cfg(test)]
mod simulation;
mod write_schedule;
mod written_set;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Api, Client};
use npwg::network_policy::{AddressList, KIND, PeerSelection};
use policy_api::address_set::{MANAGER, SetPort, WrittenAddressSet, refused_spec, size, spec};
use policy_api::policy_object::WatchedPolicy;
use tokio::task::yield_now;
use tokio::time::{sleep, sleep_until, timeout};
use tracing::{info, warn};

use crate::policy::followed::{Caches, State};
use crate::policy::namespace_sizes::{NAMESPACE_MAX, NamespaceSizes};
pub(crate) use crate::policy::policy_metrics::PolicyMetrics;
use crate::policy::refusals::{Refusals, SetResult};
use crate::policy::write_schedule::{WriteSchedule, Written};
use crate::policy::written_set::{WrittenSetObject, digest_and_size};
use crate::work_progress::{ROUND_MAX, WorkProgress};
use kube_support::custom_resources::PolicyAddressSetSpec;
use kube_support::event_publisher::{EventPublisher, EventType};
use kube_support::events::{EventReason, EventText};
use kube_support::health::HealthStatus;
use kube_support::resources::{Key, Reduced};
use kube_support::{api_error, events};

/// Deadline of a request.
const WRITE_MAX: Duration = Duration::from_secs(10);
/// Age of an object that no rule needs, at which it is deleted. An agent may see the deletion before the changed policy.
const UNUSED_MAX: Duration = Duration::from_secs(10);
/// Number of Events at a time.
const REPORTS_MAX: usize = 4;

/// Policy controller.
pub(crate) struct PolicyController {
    client: Client,
    caches: Caches,
    publisher: EventPublisher,
    /// Reason in the last Event about a policy, by policy uid.
    reported: Mutex<BTreeMap<String, String>>,
    metrics: PolicyMetrics,
    work_progress: WorkProgress,
}

/// State of the work: the index, and writes and Events that are due.
#[derive(Default)]
struct Progress {
    state: State,
    schedule: WriteSchedule,
    sizes: NamespaceSizes,
    refusals: Refusals,
    /// Time since when no rule needs an existing object.
    unused: BTreeMap<Key, Instant>,
    /// Policies that may have become refused, or be refused no longer.
    doubtful: BTreeSet<Key>,
    /// Refused policies whose Event is due.
    unreported: BTreeSet<Key>,
}

/// Work on an address set.
struct Work {
    key: Key,
    /// Time of the change.
    changed: Instant,
    request: Option<Request>,
}

/// Request about an address set.
enum Request {
    /// Write an object, whose spec has this number of bytes.
    Apply(Box<WrittenAddressSet>, usize),
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
            work_progress: WorkProgress::default(),
        }
    }

    /// Runs until the process ends.
    pub(crate) async fn run(self: Arc<Self>) {
        self.metrics.leader.set(1);
        self.caches.synced().await;
        let mut changes = self.caches.changes();
        let mut progress = Progress::default();
        let (mut writes, mut reports) = (FuturesUnordered::new(), FuturesUnordered::new());
        loop {
            self.work_progress.round();
            let changed = self.caches.apply(&mut changes, &mut progress.state).await;
            let now = Instant::now();
            changed.sets.iter().for_each(|key| progress.schedule.request(key, now));
            progress.doubtful.extend(changed.policies);
            while let Some((key, changed)) = progress.schedule.start(now) {
                let request = self.work(&mut progress, &key);
                writes.push(self.perform(Work { key, changed, request }));
                let Progress { schedule, sizes, .. } = &mut progress;
                sizes.retry().iter().for_each(|key| schedule.request(key, now));
                // The renewal of the Lease must not wait for many large sets.
                yield_now().await;
            }
            progress.judge();
            while reports.len() < REPORTS_MAX
                && let Some((policy, why)) = progress.next_report()
            {
                reports.push(self.report(policy, why));
            }
            self.count(&progress);
            let next = progress.schedule.next();
            tokio::select! {
                () = changes.next() => {}
                Some((key, written)) = writes.next(), if !writes.is_empty() => {
                    progress.schedule.finished(&key, written, Instant::now());
                    if !progress.state.index.has_set(&key) {
                        progress.schedule.forget(&key);
                    }
                }
                Some(()) = reports.next(), if !reports.is_empty() => {}
                () = sleep_until(next.unwrap_or_else(Instant::now).into()), if next.is_some() => {}
                () = sleep(ROUND_MAX) => {}
            }
        }
    }

    fn count(&self, progress: &Progress) {
        let (policies, pods) = progress.state.index.counts();
        self.metrics.policies.set(policies as u64);
        self.metrics.pods.set(pods as u64);
        self.metrics.unverified.set(progress.state.verifier.refused());
        self.metrics.refused.set(progress.refusals.count() as u64);
    }

    /// Compares an address set with what it should be.
    fn work(&self, progress: &mut Progress, key: &Key) -> Option<Request> {
        let written = self.caches.sets.find(key);
        let Some((selection, addresses)) = progress.state.index.addresses(key) else {
            // No rule needs it any more, and no policy can be refused because of it.
            progress.sizes.remove(key);
            progress.refusals.record(key, None);
            let Some(written) = written else {
                progress.unused.remove(key);
                return None;
            };
            let now = Instant::now();
            let deleted = *progress.unused.entry(key.clone()).or_insert(now) + UNUSED_MAX;
            if now < deleted {
                progress.schedule.request_at(key, now, deleted);
                return None;
            }
            return Some(Request::Delete(written.uid.clone()));
        };
        let count = addresses.values().map(AddressList::len).sum();
        let (spec, refused) = fitting(&mut progress.sizes, key, selection, &addresses);
        progress.unused.remove(key);
        if progress.refusals.record(key, Some(SetResult { count, refused })) {
            progress.doubtful.extend(progress.state.index.users(key).cloned());
        }
        let (digest, bytes) = digest_and_size(&spec);
        let is_written = written.is_some_and(|set| set.has(digest));
        (!is_written).then(|| Request::Apply(Box::new(WrittenAddressSet::new(key, spec)), bytes))
    }

    /// Sends a request.
    async fn perform(&self, work: Work) -> (Key, Written) {
        let Work { key, changed, request } = work;
        let written = match request {
            Some(request) => self.send(&key, request).await,
            None => Written::Done(0),
        };
        if matches!(written, Written::Done(bytes) if bytes > 0) {
            self.metrics.delay.observe(changed.elapsed().as_secs_f64());
        }
        (key, written)
    }

    async fn send(&self, key: &Key, request: Request) -> Written {
        let api = Api::<WrittenSetObject>::namespaced(self.client.clone(), &key.0);
        let lookup = self.caches.sets.ask(key.clone());
        let (outcome, bytes) = match &request {
            Request::Apply(object, bytes) => {
                let parameters = PatchParams::apply(MANAGER).force();
                let patch = Patch::Apply(object.as_ref());
                (timeout(WRITE_MAX, applied(&api, &key.1, &parameters, &patch)).await, *bytes)
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
                self.work_progress.answered();
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
            Ok(Err(error)) => {
                self.work_progress.failed(&error);
                api_error::describe(&error)
            }
            Err(_) => {
                let why = format!("the API server does not answer within {} s", WRITE_MAX.as_secs());
                self.work_progress.unanswered(&why);
                why
            }
        };
        self.metrics.failed.inc();
        let set = format!("{}/{}", key.0, key.1);
        warn!(set, error = why, "failed to write PolicyAddressSet; will try again");
        Written::Failed
    }

    /// Sends an Event about a refused policy, once for each text.
    async fn report(&self, policy: Arc<WatchedPolicy>, why: String) {
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
    patch: &Patch<&WrittenAddressSet>,
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

// === impl Progress ===

impl Progress {
    /// Finds which of the doubtful policies are refused.
    fn judge(&mut self) {
        let index = &self.state.index;
        for key in std::mem::take(&mut self.doubtful) {
            let policy = index.policy(&key).map(Arc::as_ref);
            if self.refusals.compare(&key, policy, &index.sets_of(&key)) {
                self.unreported.insert(key);
            }
        }
    }

    /// Returns the next policy to report, and why it is refused.
    fn next_report(&mut self) -> Option<(Arc<WatchedPolicy>, String)> {
        while let Some(key) = self.unreported.pop_first() {
            if let Some(reported) = self.state.index.policy(&key).zip(self.refusals.reason(&key)) {
                return Some((Arc::clone(reported.0), reported.1.clone()));
            }
        }
        None
    }
}

/// Returns the spec for addresses, or a spec without them and the reason why they do not fit.
fn fitting(
    sizes: &mut NamespaceSizes,
    key: &Key,
    selection: &PeerSelection,
    addresses: &BTreeMap<SetPort, AddressList>,
) -> (PolicyAddressSetSpec, Option<String>) {
    let why = match spec(selection, addresses) {
        Ok(spec) if sizes.admit(key, size(&spec)) => return (spec, None),
        Ok(_) => format!(
            "the address sets of namespace {} take more than {} MiB; select fewer pods, or combine policies with the same \
             peers",
            key.0,
            NAMESPACE_MAX >> 20
        ),
        Err(error) => {
            sizes.remove(key);
            error.to_string()
        }
    };
    (refused_spec(selection, &why), Some(why))
}

impl HealthStatus for PolicyController {
    fn page(&self) -> String {
        self.metrics.page()
    }

    fn waits_for(&self) -> Vec<String> {
        self.caches.waited()
    }

    fn stalled(&self) -> Option<String> {
        self.work_progress.stalled()
    }
}
