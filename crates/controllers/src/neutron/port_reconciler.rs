//! One case for each pod that wants ports: from its wishes to ports that are ACTIVE, and to their release.
//!
//! ```text
//!   (seen) ─► Working ─► Waiting (written, not all ACTIVE) ─► Active (written again) ─► Leaving ─► (forgotten)
//!                └─ trouble: Event, back-off, again
//! ```
//!
//! Rules:
//! - levels, not edges: what is to be done is seen from the pods as they are, at each change and now and then;
//! - a pod that cannot have what it wants gets an Event, is tried again more and more rarely, and holds up nobody;
//! - what a pod has and what is written on it are two things: it is done when they are the same;
//! - a port is forgotten here only when it is gone or waits in a pool; what nobody knows of is found at the next
//!   comparison of all ports with all pods.
//!
//! Source: Kuryr-Kubernetes `handlers/vif.py`, `retry.py`; its bugs are named in `docs/neutron.md`.

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

use self::activation::{Asked, Late};
use self::comparison::Orphans;
use self::work::Wishes;
use crate::neutron::pod_subject::{PodSubject, SubjectObject};
use crate::neutron::port_allocator::Allocator;
use crate::neutron::port_pool::backoff::Backoff;
use crate::neutron::port_request::PortRequest;
use kube_support::cache::{Cache, follow};
use kube_support::events::{EventReason, Events};
use kube_support::health::HealthStatus;
use kube_support::kuryr::VifLocation;
use kube_support::resources::DefinitionObject;

/// Pods that are worked for at a time.
const PARALLEL: usize = 8;
/// How long nothing happens before it is looked again.
const IDLE: Duration = Duration::from_secs(5);
/// Changes that come so close together are looked at together.
const GATHER: Duration = Duration::from_millis(20);
/// The first and the longest pause after trouble.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// How often pools are looked after.
const POOLS: Duration = Duration::from_secs(1);
/// How often in a row pools that are but half empty are left as they are because pods wait for their ports to work.
const HELD_MAX: u32 = 10;

/// All of it.
pub(crate) struct PortReconciler {
    client: Client,
    allocator: Arc<Allocator>,
    place: VifLocation,
    every: Duration,
    events: Events,
    pods: Arc<Cache<PodSubject>>,
    definitions: Arc<Cache<Definition>>,
    cases: Mutex<BTreeMap<String, Case>>,
    /// Ports made for a pod before we were there, by its uid.
    found: Mutex<BTreeMap<String, Vec<Port>>>,
    turns: Semaphore,
    waiting: Notify,
    /// Of those who rest, one leaves or selects something else.
    turned: Notify,
    leads: std::sync::atomic::AtomicBool,
    counts: Mutex<BTreeMap<&'static str, u64>>,
}

/// A pod that wants ports.
#[derive(Clone, Debug)]
struct Case {
    subject: Arc<PodSubject>,
    /// What it has.
    state: PodState,
    /// What is written of it, as far as is known.
    written: Option<Written>,
    /// What it wished for when it was looked at, and what that was made of.
    wishes: Option<Vec<PortRequest>>,
    looked: Option<Looked>,
    /// Why an annotation of it is as good as none, if it was told so.
    ignored: Vec<String>,
    stage: Stage,
    /// Of one that waits: since when, or since its node said that it is done.
    since: Instant,
}

/// What wishes are made of: what a pod selects, and the definitions at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Looked {
    selection: [Option<String>; 2],
    definitions: u64,
}

/// What is written of a pod.
#[derive(Clone, Debug, PartialEq)]
struct Written {
    state: PodState,
    /// On what: what the API has of a static pod may be made anew, and has nothing on it then.
    object: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Working,
    Waiting,
    Active,
    Leaving,
    Left,
}

// === impl Case ===

impl Case {
    /// Of a pod on which this is written.
    fn new(subject: &Arc<PodSubject>, state: PodState, stage: Stage) -> Case {
        let mut case = Case {
            subject: Arc::clone(subject),
            state,
            written: None,
            wishes: None,
            looked: None,
            ignored: Vec::new(),
            stage,
            since: Instant::now(),
        };
        if !case.state.is_empty() {
            case.note_written();
        }
        case
    }

    /// What it has is written.
    fn note_written(&mut self) {
        let (state, object) = (self.state.clone(), self.subject.object.clone());
        self.written = Some(Written { state, object });
    }

    /// Is what it has written, and on what there is now?
    fn is_written(&self) -> bool {
        match &self.written {
            Some(Written { state, object }) => *state == self.state && *object == self.subject.object,
            None => self.state.is_empty(),
        }
    }

    /// Was it written on something else than what the API has of its pod now?
    fn is_written_elsewhere(&self) -> bool {
        self.written.as_ref().is_some_and(|written| written.object != self.subject.object)
    }

    /// Is what it wishes for looked at? Whose pod runs has what it has.
    fn may_get_ports(&self) -> bool {
        self.subject.pending || self.state.is_empty()
    }
}

// === impl PortReconciler ===

impl PortReconciler {
    /// One that watches from now on, and does nothing yet.
    pub(crate) fn new(
        client: Client,
        allocator: Arc<Allocator>,
        place: VifLocation,
        every: Duration,
        identity: &str,
    ) -> PortReconciler {
        let pods = Arc::new(Cache::new("pods"));
        let definitions = Arc::new(Cache::new("network-attachment-definitions"));
        tokio::spawn(follow(Api::<SubjectObject>::all(client.clone()), Config::default(), Arc::clone(&pods)));
        let all = Api::<DefinitionObject>::all(client.clone());
        tokio::spawn(follow(all, Config::default(), Arc::clone(&definitions)));
        PortReconciler {
            events: Events::new(client.clone(), identity, &Arc::default()),
            client,
            allocator,
            place,
            every,
            pods,
            definitions,
            cases: Mutex::new(BTreeMap::new()),
            found: Mutex::new(BTreeMap::new()),
            turns: Semaphore::new(PARALLEL),
            waiting: Notify::new(),
            turned: Notify::new(),
            leads: false.into(),
            counts: Mutex::new(BTreeMap::new()),
        }
    }

    fn cases(&self) -> MutexGuard<'_, BTreeMap<String, Case>> {
        self.cases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where pods have no further networks there need be no such resource.
    fn needs_definitions(&self) -> bool {
        self.allocator.rules.reads_annotation()
    }

    fn count(&self, what: &'static str) {
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner).entry(what).or_default() += 1;
    }

    /// Works, for ever.
    pub(crate) async fn run(self: Arc<PortReconciler>) {
        self.pods.synced().await;
        if self.needs_definitions() {
            self.definitions.synced().await;
        }
        let mut pause = PAUSES.0;
        while let Err(error) = self.compare(&mut BTreeSet::new(), Orphans::Remove).await {
            warn!(%error, "the ports that are there cannot be listed; nothing is made before");
            sleep(jittered(pause)).await;
            pause = (pause * 2).min(PAUSES.1);
        }
        self.leads.store(true, std::sync::atomic::Ordering::Relaxed);
        let (watch, pools) = (Arc::clone(&self), Arc::clone(&self));
        let (again, activate) = (Arc::clone(&self), Arc::clone(&self));
        tokio::join!(watch.watch(), pools.look_after_pools(), again.compare_again(), activate.activate());
    }

    async fn watch(self: Arc<PortReconciler>) {
        let (mut changes, mut definitions) = (self.pods.changes(), self.definitions.changes());
        loop {
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
            gone.iter().for_each(|uid| self.leave(uid));
            tokio::select! {
                () = sleep(IDLE) => {}
                _ = changes.changed() => {}
                _ = definitions.changed() => {}
            }
            sleep(GATHER).await;
        }
    }

    /// What is to be done for a pod?
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
            .is_some_and(|case| case.stage == Stage::Left && vif(&case.subject) != vif(subject))
        {
            // What could not be read is another thing now.
            cases.remove(&pod.uid);
        }
        if let Some(case) = cases.get_mut(&pod.uid) {
            self.reconsider(case, subject);
            return;
        }
        let written = match self.place {
            VifLocation::Annotation => kube_support::kuryr::of_annotation(pod),
            VifLocation::Kuryrport => Ok(None),
        };
        let state = match written {
            Ok(Some(state)) => state,
            Ok(None) if wants && (subject.pending || self.place == VifLocation::Kuryrport) => {
                PodState::default()
            }
            Ok(None) => return,
            Err(why) => {
                // It stays as it is: somebody may need it.
                self.events.troubled(pod, EventReason::VifUnreadable, &why.to_string());
                cases.insert(pod.uid.clone(), Case::new(subject, PodState::default(), Stage::Left));
                return;
            }
        };
        let stage = match (state.is_empty(), state.is_active()) {
            (true, _) => Stage::Working,
            (false, false) => Stage::Waiting,
            (false, true) => Stage::Active,
        };
        cases.insert(pod.uid.clone(), Case::new(subject, state, stage));
        drop(cases);
        match stage {
            Stage::Working => drop(tokio::spawn(Arc::clone(self).work(pod.uid.clone()))),
            Stage::Waiting => self.waiting.notify_one(),
            _ => {}
        }
    }

    /// The same for one that has a case.
    fn reconsider(self: &Arc<PortReconciler>, case: &mut Case, subject: &Arc<PodSubject>) {
        let pod = &subject.pod;
        if selection(&case.subject.pod) != selection(pod) {
            // Who rests is to try what it selects now.
            self.turned.notify_waiters();
        }
        let said = |subject: &PodSubject| subject.pod.annotations.get(NETWORK_STATUS).cloned();
        let plugged = said(&case.subject) != said(subject);
        case.subject = Arc::clone(subject);
        // Also if that happened while somebody worked for it.
        let anew = case.is_written_elsewhere() && !case.state.is_empty();
        let is_settled = matches!(case.stage, Stage::Waiting | Stage::Active);
        if is_settled && (anew || self.wishes_otherwise(case)) {
            case.stage = Stage::Working;
            drop(tokio::spawn(Arc::clone(self).work(pod.uid.clone())));
        } else if plugged && case.stage == Stage::Waiting {
            case.since = Instant::now();
            self.waiting.notify_one();
        }
    }

    /// A pod has ended and is still there.
    fn end(self: &Arc<PortReconciler>, subject: &Arc<PodSubject>) {
        let uid = &subject.pod.uid;
        if subject.held {
            // Kuryr's finalizer waits for us, even if the pod had ended before we were there, or nothing was to be released.
            let mut cases = self.cases();
            let case = cases
                .entry(uid.clone())
                .or_insert_with(|| Case::new(subject, PodState::default(), Stage::Active));
            let is_new = case.stage == Stage::Left && !case.subject.held;
            case.subject = Arc::clone(subject);
            if is_new {
                case.stage = Stage::Active;
            }
        }
        self.leave(uid);
    }

    /// Does a pod that had what it wished for, and has not begun, wish for something else by now?
    fn wishes_otherwise(&self, case: &mut Case) -> bool {
        let looked = Some(self.looked(&case.subject));
        if !case.subject.pending || case.looked == looked {
            return false;
        }
        case.looked = looked;
        let Ok(Wishes { wishes, ignored: _ }) = self.wishes(&case.subject) else { return false };
        match &case.wishes {
            Some(known) => *known != wishes,
            // Of one that had its ports before we were there.
            None => wishes.iter().any(|wish| case.state.vif(&wish.name).is_none()),
        }
    }

    /// What a pod's wishes are made of now.
    fn looked(&self, subject: &PodSubject) -> Looked {
        let selection = selection(&subject.pod).map(|text| text.cloned());
        Looked { selection, definitions: *self.definitions.changes().borrow() }
    }

    /// A pod that is gone, or has ended, gives its ports up.
    fn leave(self: &Arc<PortReconciler>, uid: &str) {
        let mut cases = self.cases();
        let Some(case) = cases.get_mut(uid) else { return };
        match case.stage {
            // Who works for it sees it.
            Stage::Working => {
                case.stage = Stage::Leaving;
                self.turned.notify_waiters();
            }
            Stage::Leaving => {}
            Stage::Left => {
                if self.pods.all().iter().all(|subject| subject.pod.uid != uid) {
                    cases.remove(uid);
                }
            }
            Stage::Waiting | Stage::Active => {
                case.stage = Stage::Leaving;
                drop(tokio::spawn(Arc::clone(self).release(uid.to_owned())));
            }
        }
    }

    async fn look_after_pools(self: Arc<PortReconciler>) {
        if !self.allocator.rules.pool.enabled {
            return;
        }
        let (mut backoff, mut held) = (Backoff::default(), 0);
        loop {
            sleep(POOLS).await;
            // The server that would make the ports is at work on those that have just been plugged in.
            let is_quiet = held >= HELD_MAX || self.inactive(Asked::All, Late::Without).is_empty();
            held = if is_quiet { 0 } else { held + 1 };
            self.allocator.top_up(is_quiet, &mut backoff).await;
        }
    }
}

impl HealthStatus for PortReconciler {
    fn waits_for(&self) -> Vec<String> {
        let definitions = self.definitions.waited().filter(|_| self.needs_definitions());
        [self.pods.waited(), definitions].into_iter().flatten().collect()
    }

    fn page(&self) -> String {
        let leads = u8::from(self.leads.load(std::sync::atomic::Ordering::Relaxed));
        let mut page = format!(
            "# HELP weft_neutron_leader Whether this controller holds the Lease (1) or waits for it (0).\n\
             # TYPE weft_neutron_leader gauge\nweft_neutron_leader {leads}\n\
             # HELP weft_neutron_api_requests_total Number of requests to OpenStack.\n\
             # TYPE weft_neutron_api_requests_total counter\nweft_neutron_api_requests_total {}\n\
             # HELP weft_neutron_pool_ports Number of unused ports in the pools.\n\
             # TYPE weft_neutron_pool_ports gauge\nweft_neutron_pool_ports {}\n\
             # HELP weft_neutron_pods Number of pods with Neutron ports.\n\
             # TYPE weft_neutron_pods gauge\nweft_neutron_pods {}\n\
             # HELP weft_neutron_port_operations_total Number of operations on the ports of a pod, by outcome.\n\
             # TYPE weft_neutron_port_operations_total counter\n",
            self.allocator.neutron.requests(),
            self.allocator.pools.count(),
            self.cases().len(),
        );
        for (what, count) in self.counts.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            page.push_str(&format!("weft_neutron_port_operations_total{{outcome=\"{what}\"}} {count}\n"));
        }
        page
    }
}

/// What a pod selects, beside its node's default network and in place of it.
fn selection(pod: &Pod) -> [Option<&String>; 2] {
    [Annotation::Networks, Annotation::DefaultNetwork].map(|annotation| pod.annotations.get(annotation.key()))
}

/// A pause that is not everybody's.
fn jittered(pause: Duration) -> Duration {
    let noise = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |now| now.subsec_micros());
    pause * (75 + noise % 50) / 100
}
