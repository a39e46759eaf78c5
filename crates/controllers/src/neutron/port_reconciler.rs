//! Port reconciler: a case for each pod that needs ports, from the request through ACTIVE ports to the release.
//!
//! ```text
//!   (pod) ─► Allocating ─► Waiting (VIF written, not all ACTIVE) ─► Active (written again) ─► Releasing ─► Done
//!                └─ failure: Event, back-off, again
//! ```
//!
//! - Level-triggered: the next step follows from the pods' current state, at each change and every few seconds.
//! - A pod whose ports cannot be provided gets an Event, is tried again with growing pauses, and delays no other pod.
//! - The ports of a pod and the ports written on it are compared; the case is done when they are equal.
//! - A port is forgotten only when it is deleted or pooled. Unknown ports are found by the next comparison of all ports
//!   with all pods.
//!
//! Source: Kuryr-Kubernetes `handlers/vif.py`, `retry.py`; Kuryr's bugs are listed in `docs/neutron.md`.

mod activation;
mod comparison;
mod release;
mod work;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kube::runtime::watcher::Config;
use kube::{Api, Client};
use neutron::pod_state::PodState;
use neutron::port::Port;
use npwg::metadata::{Definition, Pod};
use npwg::selection::Annotation;
use npwg::status::NETWORK_STATUS;
use tokio::sync::{Notify, Semaphore};
use tokio::time::sleep;
use tracing::warn;

use self::activation::{Overdue, Polled};
use self::comparison::Orphans;
use self::work::PortRequests;
use crate::neutron::neutron_metrics::{NeutronFigures, Operations, no_operations};
use crate::neutron::pod_subject::{PodSubject, SubjectObject};
use crate::neutron::port_allocator::Allocator;
use crate::neutron::port_pool::backoff::Backoff;
use crate::neutron::port_request::PortRequest;
use crate::work_progress::WorkProgress;
use kube_support::cache::{Cache, follow};
use kube_support::events::{EventReason, Events};
use kube_support::health::HealthStatus;
use kube_support::kuryr::VifLocation;
use kube_support::resources::DefinitionObject;

/// Number of pods that are worked on concurrently.
const PARALLEL: usize = 8;
/// Interval between reconciliations if nothing changes.
const IDLE: Duration = Duration::from_secs(5);
/// Time for which changes are collected.
const GATHER: Duration = Duration::from_millis(20);
/// First and longest pause after a failure.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// Interval at which pools are filled.
const POOL_INTERVAL: Duration = Duration::from_secs(1);
/// For how many consecutive intervals half-empty pools are left because pods wait for ports to become ACTIVE.
const DEFERRED_MAX: u32 = 10;

/// Port reconciler, which holds a case for each pod.
pub(crate) struct PortReconciler {
    client: Client,
    allocator: Arc<Allocator>,
    location: VifLocation,
    interval: Duration,
    events: Events,
    pods: Arc<Cache<PodSubject>>,
    definitions: Arc<Cache<Definition>>,
    cases: Mutex<BTreeMap<String, Case>>,
    /// Ports that were created for a pod before this process started, by the pod's uid.
    found: Mutex<BTreeMap<String, Vec<Port>>>,
    /// Slots for [`PARALLEL`] pods.
    slots: Semaphore,
    /// Notified when a port may become ACTIVE.
    waiting: Notify,
    /// Notified when a paused pod is deleted or selects other networks.
    retry: Notify,
    leads: std::sync::atomic::AtomicBool,
    work_progress: WorkProgress,
    counts: Mutex<Operations>,
}

/// State for a pod that needs ports.
#[derive(Clone, Debug)]
struct Case {
    subject: Arc<PodSubject>,
    /// Ports that the pod has.
    state: PodState,
    /// Ports that are written on the pod, as far as known.
    written: Option<Written>,
    /// Last requests, and what they were computed from.
    requests: Option<Vec<PortRequest>>,
    inputs: Option<RequestInputs>,
    /// Faults for which an annotation is ignored, and that were reported.
    ignored: Vec<String>,
    stage: Stage,
    /// Since when the pod waits, or when the node reported the attachment.
    since: Instant,
}

/// Facts that a pod's requests are computed from: annotations, and the definitions' version.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RequestInputs {
    selection: [Option<String>; 2],
    definitions: u64,
}

/// Ports that are written on a pod.
#[derive(Clone, Debug, PartialEq)]
struct Written {
    state: PodState,
    /// Uid of the object that contains them: a static pod's API object may be recreated without them.
    object: String,
}

/// Stage that a case is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Ports are being provided and written.
    Allocating,
    /// The ports are written, and not all are ACTIVE.
    Waiting,
    /// All ports are ACTIVE, and this is written.
    Active,
    /// The ports are being released.
    Releasing,
    /// Nothing is to be done: the ports are released, or the written ports cannot be read.
    Done,
}

// === impl Stage ===

impl Stage {
    /// Whether the pod waits for ports.
    fn is_pending(self) -> bool {
        matches!(self, Stage::Allocating | Stage::Waiting)
    }
}

// === impl Case ===

impl Case {
    /// Returns a case for a pod with these written ports.
    fn new(subject: &Arc<PodSubject>, state: PodState, stage: Stage) -> Case {
        let mut case = Case {
            subject: Arc::clone(subject),
            state,
            written: None,
            requests: None,
            inputs: None,
            ignored: Vec::new(),
            stage,
            since: Instant::now(),
        };
        if !case.state.is_empty() {
            case.note_written();
        }
        case
    }

    /// Records that the current ports are written.
    fn note_written(&mut self) {
        let (state, object) = (self.state.clone(), self.subject.object.clone());
        self.written = Some(Written { state, object });
    }

    /// Whether the current ports are written on the current object.
    fn is_written(&self) -> bool {
        match &self.written {
            Some(Written { state, object }) => *state == self.state && *object == self.subject.object,
            None => self.state.is_empty(),
        }
    }

    /// Whether the ports are written on another object than the current one.
    fn is_written_elsewhere(&self) -> bool {
        self.written.as_ref().is_some_and(|written| written.object != self.subject.object)
    }

    /// Whether requests are evaluated. A running pod keeps the same ports.
    fn may_get_ports(&self) -> bool {
        self.subject.pending || self.state.is_empty()
    }
}

// === impl PortReconciler ===

impl PortReconciler {
    /// Returns a reconciler that watches from now on, and changes nothing yet.
    pub(crate) fn new(
        client: Client,
        allocator: Arc<Allocator>,
        location: VifLocation,
        interval: Duration,
        identity: &str,
    ) -> PortReconciler {
        let pods = Arc::new(Cache::new("pods"));
        let definitions = Arc::new(Cache::new("network-attachment-definitions"));
        let (all, of_pods) = (Api::<DefinitionObject>::all, Api::<SubjectObject>::all);
        tokio::spawn(follow(client.clone(), of_pods, Config::default(), Arc::clone(&pods)));
        tokio::spawn(follow(client.clone(), all, Config::default(), Arc::clone(&definitions)));
        PortReconciler {
            events: Events::new(client.clone(), identity, &Arc::default()),
            client,
            allocator,
            location,
            interval,
            pods,
            definitions,
            cases: Mutex::new(BTreeMap::new()),
            found: Mutex::new(BTreeMap::new()),
            slots: Semaphore::new(PARALLEL),
            waiting: Notify::new(),
            retry: Notify::new(),
            leads: false.into(),
            work_progress: WorkProgress::default(),
            counts: Mutex::new(no_operations()),
        }
    }

    fn cases(&self) -> MutexGuard<'_, BTreeMap<String, Case>> {
        self.cases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether definitions are read. Without additional networks the resource need not exist.
    fn needs_definitions(&self) -> bool {
        self.allocator.rules.reads_annotation()
    }

    fn count(&self, outcome: &'static str) {
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner).entry(outcome).or_default() += 1;
    }

    /// Runs until the process ends.
    pub(crate) async fn run(self: Arc<PortReconciler>) {
        self.pods.synced().await;
        if self.needs_definitions() {
            self.definitions.synced().await;
        }
        let mut pause = PAUSES.0;
        while let Err(error) = self.compare(&mut BTreeSet::new(), Orphans::Remove).await {
            warn!(%error, "failed to compare existing ports with pods; no port is created before");
            sleep(jittered(pause)).await;
            pause = (pause * 2).min(PAUSES.1);
        }
        self.leads.store(true, std::sync::atomic::Ordering::Relaxed);
        let (watch, pools) = (Arc::clone(&self), Arc::clone(&self));
        let (again, activate) = (Arc::clone(&self), Arc::clone(&self));
        tokio::join!(watch.watch(), pools.fill_pools(), again.compare_again(), activate.activate());
    }

    async fn watch(self: Arc<PortReconciler>) {
        let (mut changes, mut definitions) = (self.pods.changes(), self.definitions.changes());
        loop {
            self.work_progress.round();
            changes.mark_unchanged();
            definitions.mark_unchanged();
            let subjects = self.pods.all();
            for subject in &subjects {
                self.consider(subject);
            }
            let there: BTreeSet<&str> = subjects.iter().map(|subject| subject.pod.uid.as_str()).collect();
            let gone: Vec<String> = {
                let cases = self.cases();
                cases.keys().filter(|uid| !there.contains(uid.as_str())).cloned().collect()
            };
            gone.iter().for_each(|uid| self.begin_release(uid));
            tokio::select! {
                () = sleep(IDLE) => {}
                _ = changes.changed() => {}
                _ = definitions.changed() => {}
            }
            sleep(GATHER).await;
        }
    }

    /// Begins or continues a pod's case.
    fn consider(self: &Arc<PortReconciler>, subject: &Arc<PodSubject>) {
        let pod = &subject.pod;
        let rules = &self.allocator.rules;
        let [networks, default] = selection(pod);
        let wants =
            rules.default_network || default.is_some() || rules.reads_annotation() && networks.is_some();
        if pod.host_network || pod.node_name.is_empty() || pod.uid.is_empty() {
            return;
        }
        if subject.ended {
            self.end(subject);
            return;
        }
        let mut cases = self.cases();
        let vif =
            |subject: &PodSubject| subject.pod.annotations.get(kube_support::kuryr::ANNOTATION).cloned();
        if cases
            .get(&pod.uid)
            .is_some_and(|case| case.stage == Stage::Done && vif(&case.subject) != vif(subject))
        {
            // The unreadable annotation was changed.
            cases.remove(&pod.uid);
        }
        if let Some(case) = cases.get_mut(&pod.uid) {
            self.reconsider(case, subject);
            return;
        }
        let written = match self.location {
            VifLocation::Annotation => kube_support::kuryr::of_annotation(pod),
            VifLocation::Kuryrport => Ok(None),
        };
        let state = match written {
            Ok(Some(state)) => state,
            Ok(None) if wants && (subject.pending || self.location == VifLocation::Kuryrport) => {
                PodState::default()
            }
            Ok(None) => return,
            Err(why) => {
                // The annotation is not overwritten, because another program may use it.
                self.events.ports_failed(pod, EventReason::VifUnreadable, &why.to_string());
                cases.insert(pod.uid.clone(), Case::new(subject, PodState::default(), Stage::Done));
                return;
            }
        };
        let stage = match (state.is_empty(), state.is_active()) {
            (true, _) => Stage::Allocating,
            (false, false) => Stage::Waiting,
            (false, true) => Stage::Active,
        };
        cases.insert(pod.uid.clone(), Case::new(subject, state, stage));
        drop(cases);
        match stage {
            Stage::Allocating => drop(tokio::spawn(Arc::clone(self).work(pod.uid.clone()))),
            Stage::Waiting => self.waiting.notify_one(),
            _ => {}
        }
    }

    /// Continues a pod's case.
    fn reconsider(self: &Arc<PortReconciler>, case: &mut Case, subject: &Arc<PodSubject>) {
        let pod = &subject.pod;
        if selection(&case.subject.pod) != selection(pod) {
            // A paused pod is tried at once with its new selection.
            self.retry.notify_waiters();
        }
        let status = |subject: &PodSubject| subject.pod.annotations.get(NETWORK_STATUS).cloned();
        let plugged = status(&case.subject) != status(subject);
        case.subject = Arc::clone(subject);
        // The object may also have been recreated while the case was in work.
        let is_recreated = case.is_written_elsewhere() && !case.state.is_empty();
        let is_settled = matches!(case.stage, Stage::Waiting | Stage::Active);
        if is_settled && (is_recreated || self.requests_changed(case)) {
            case.stage = Stage::Allocating;
            drop(tokio::spawn(Arc::clone(self).work(pod.uid.clone())));
        } else if plugged && case.stage == Stage::Waiting {
            case.since = Instant::now();
            self.waiting.notify_one();
        }
    }

    /// Releases the ports of a pod that has ended and is not deleted yet.
    fn end(self: &Arc<PortReconciler>, subject: &Arc<PodSubject>) {
        let uid = &subject.pod.uid;
        if subject.has_finalizer {
            // Kuryr's finalizer is removed even if the pod ended before this process started, or has no ports.
            let mut cases = self.cases();
            let case = cases
                .entry(uid.clone())
                .or_insert_with(|| Case::new(subject, PodState::default(), Stage::Active));
            let is_new = case.stage == Stage::Done && !case.subject.has_finalizer;
            case.subject = Arc::clone(subject);
            if is_new {
                case.stage = Stage::Active;
            }
        }
        self.begin_release(uid);
    }

    /// Whether a pod that has all ports, and has not started yet, now requests other ones.
    fn requests_changed(&self, case: &mut Case) -> bool {
        let inputs = Some(self.inputs(&case.subject));
        if !case.subject.pending || case.inputs == inputs {
            return false;
        }
        case.inputs = inputs;
        let Ok(PortRequests { requests, ignored: _ }) = self.requests(&case.subject) else { return false };
        match &case.requests {
            Some(known) => *known != requests,
            // The pod had its ports before this process started.
            None => requests.iter().any(|request| case.state.vif(&request.name).is_none()),
        }
    }

    /// Returns what a pod's requests are computed from now.
    fn inputs(&self, subject: &PodSubject) -> RequestInputs {
        let selection = selection(&subject.pod).map(|text| text.cloned());
        RequestInputs { selection, definitions: *self.definitions.changes().borrow() }
    }

    /// Begins to release the ports of a pod that is deleted or has ended.
    fn begin_release(self: &Arc<PortReconciler>, uid: &str) {
        let mut cases = self.cases();
        let Some(case) = cases.get_mut(uid) else { return };
        match case.stage {
            // The task that allocates its ports releases them.
            Stage::Allocating => {
                case.stage = Stage::Releasing;
                self.retry.notify_waiters();
            }
            Stage::Releasing => {}
            Stage::Done => {
                if self.pods.all().iter().all(|subject| subject.pod.uid != uid) {
                    cases.remove(uid);
                }
            }
            Stage::Waiting | Stage::Active => {
                case.stage = Stage::Releasing;
                drop(tokio::spawn(Arc::clone(self).release(uid.to_owned())));
            }
        }
    }

    async fn fill_pools(self: Arc<PortReconciler>) {
        if !self.allocator.rules.pool.enabled {
            return;
        }
        let (mut backoff, mut deferred) = (Backoff::default(), 0);
        loop {
            sleep(POOL_INTERVAL).await;
            // Neutron is busy with the ports that were just plugged in.
            let is_quiet =
                deferred >= DEFERRED_MAX || self.inactive(Polled::All, Overdue::Without).is_empty();
            deferred = if is_quiet { 0 } else { deferred + 1 };
            self.allocator.top_up(is_quiet, &mut backoff).await;
        }
    }
}

impl HealthStatus for PortReconciler {
    fn stalled(&self) -> Option<String> {
        self.work_progress.stalled()
    }

    fn waits_for(&self) -> Vec<String> {
        let definitions = self.definitions.waited().filter(|_| self.needs_definitions());
        [self.pods.waited(), definitions].into_iter().flatten().collect()
    }

    fn page(&self) -> String {
        let pending = self.cases().values().filter(|case| case.stage.is_pending()).count();
        let figures = NeutronFigures {
            leads: self.leads.load(std::sync::atomic::Ordering::Relaxed),
            requests: self.allocator.neutron.requests(),
            pool_ports: self.allocator.pools.count(),
            pods: self.cases().len(),
            pending,
        };
        figures.page(&self.counts.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Returns the pod's annotations for additional networks and for the default network.
fn selection(pod: &Pod) -> [Option<&String>; 2] {
    [Annotation::Networks, Annotation::DefaultNetwork].map(|annotation| pod.annotations.get(annotation.key()))
}

/// Returns the pause, changed randomly by up to 25 %, so that many pods are not tried at the same moment.
fn jittered(pause: Duration) -> Duration {
    let noise = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |now| now.subsec_micros());
    pause * (75 + noise % 50) / 100
}
