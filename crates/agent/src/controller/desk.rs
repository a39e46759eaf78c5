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
//! - a port is forgotten here only when it is gone or waits in a pool; what nobody knows of is found at the next
//!   comparison of all ports with all pods.
//!
//! Source: Kuryr-Kubernetes `handlers/vif.py`, `retry.py`; its bugs are named in `docs/neutron.md`.

mod activation;
mod comparison;

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kube::runtime::watcher::Config;
use kube::{Api, Client};
use neutron::pod_state::PodState;
use neutron::port::Port;
use npwg::metadata::Definition;
use npwg::status::NETWORK_STATUS;
use tokio::sync::watch::Receiver;
use tokio::sync::{Notify, Semaphore};
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use self::activation::{Asked, Late};
use self::comparison::Orphans;
use super::allocator::{Allocator, Trouble};
use super::store::{self, Place, Unwritten};
use super::subject::{Subject, SubjectObject};
use super::wish::{self, Wish};
use crate::agent::cache::{Cache, follow};
use crate::agent::cluster::{DefinitionObject, Key};
use crate::agent::events::Events;
use crate::agent::health::Told;

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
pub(crate) struct Desk {
    client: Client,
    allocator: Arc<Allocator>,
    place: Place,
    every: Duration,
    events: Events,
    pods: Arc<Cache<Subject>>,
    definitions: Arc<Cache<Definition>>,
    cases: Mutex<BTreeMap<String, Case>>,
    /// Ports made for a pod before we were there, by its uid.
    found: Mutex<BTreeMap<String, Vec<Port>>>,
    turns: Semaphore,
    waiting: Notify,
    leaving: Notify,
    leads: std::sync::atomic::AtomicBool,
    counts: Mutex<BTreeMap<&'static str, u64>>,
}

/// A pod that wants ports.
#[derive(Clone, Debug)]
struct Case {
    subject: Arc<Subject>,
    state: PodState,
    stage: Stage,
    /// Of one that waits: since when, or since its node said that it is done.
    since: Instant,
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
    fn new(subject: &Arc<Subject>, state: PodState, stage: Stage) -> Case {
        Case { subject: Arc::clone(subject), state, stage, since: Instant::now() }
    }
}

// === impl Desk ===

impl Desk {
    /// One that watches from now on, and does nothing yet.
    pub(crate) fn new(
        client: Client,
        allocator: Arc<Allocator>,
        place: Place,
        every: Duration,
        identity: &str,
    ) -> Desk {
        let pods = Arc::new(Cache::new("pods"));
        let definitions = Arc::new(Cache::new("network-attachment-definitions"));
        tokio::spawn(follow(Api::<SubjectObject>::all(client.clone()), Config::default(), Arc::clone(&pods)));
        let all = Api::<DefinitionObject>::all(client.clone());
        tokio::spawn(follow(all, Config::default(), Arc::clone(&definitions)));
        Desk {
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
            leaving: Notify::new(),
            leads: false.into(),
            counts: Mutex::new(BTreeMap::new()),
        }
    }

    fn cases(&self) -> MutexGuard<'_, BTreeMap<String, Case>> {
        self.cases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, what: &'static str) {
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner).entry(what).or_default() += 1;
    }

    /// Works, for ever.
    pub(crate) async fn run(self: Arc<Desk>) {
        tokio::join!(self.pods.synced(), self.definitions.synced());
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

    async fn watch(self: Arc<Desk>) {
        let mut changes = self.pods.changes();
        loop {
            changes.mark_unchanged();
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
            let _ = timeout(IDLE, changes.changed()).await;
            sleep(GATHER).await;
        }
    }

    /// What is to be done for a pod?
    fn consider(self: &Arc<Desk>, subject: &Arc<Subject>) {
        let pod = &subject.pod;
        let rules = &self.allocator.rules;
        let wants = rules.default_network
            || rules.reads_annotation()
                && pod.annotations.contains_key(npwg::selection::Annotation::Networks.key());
        if pod.host_network || pod.node_name.is_empty() || pod.uid.is_empty() {
            return;
        }
        if subject.ended {
            self.leave(&pod.uid);
            return;
        }
        let mut cases = self.cases();
        if let Some(case) = cases.get_mut(&pod.uid) {
            let said = |subject: &Subject| subject.pod.annotations.get(NETWORK_STATUS).cloned();
            let plugged = said(&case.subject) != said(subject);
            case.subject = Arc::clone(subject);
            if plugged && case.stage == Stage::Waiting {
                case.since = Instant::now();
                self.waiting.notify_one();
            }
            return;
        }
        let written = match self.place {
            Place::Annotation => store::of_annotation(pod),
            Place::Kuryrport => Ok(None),
        };
        let state = match written {
            Ok(Some(state)) => state,
            Ok(None) if wants && (subject.pending || self.place == Place::Kuryrport) => PodState::default(),
            Ok(None) => return,
            Err(why) => {
                // It stays as it is: somebody may need it.
                self.events.troubled(pod, "VifUnreadable", &why);
                cases.insert(pod.uid.clone(), Case::new(subject, PodState::default(), Stage::Left));
                return;
            }
        };
        let stage = match (state == PodState::default(), state.is_active()) {
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

    /// Gets a pod its ports, however long it takes.
    async fn work(self: Arc<Desk>, uid: String) {
        let mut pause = PAUSES.0;
        let mut told: Option<Trouble> = None;
        let mut unsure = false;
        loop {
            // What changes while it is tried is not missed.
            let definitions = self.definitions.changes();
            let Some(Case { subject, mut state, stage, .. }) = self.cases().get(&uid).cloned() else {
                return;
            };
            if stage == Stage::Leaving {
                return self.release(uid).await;
            }
            let outcome = self.attempt(&subject, &mut state, unsure).await;
            // What was made is known even if the pod went away meanwhile.
            let leaves = {
                let mut cases = self.cases();
                let Some(case) = cases.get_mut(&uid) else { return };
                let is_active = state.is_active();
                case.state = state;
                if case.stage == Stage::Working && outcome.is_ok() {
                    case.stage = if is_active { Stage::Active } else { Stage::Waiting };
                    case.since = Instant::now();
                }
                case.stage == Stage::Leaving
            };
            if leaves {
                return self.release(uid).await;
            }
            if outcome.is_ok() {
                self.count("allocated");
                self.waiting.notify_one();
                return;
            }
            if let Err(trouble) = outcome {
                warn!(
                    pod = subject.pod.name,
                    namespace = subject.pod.namespace,
                    reason = trouble.reason,
                    "{}",
                    trouble.why
                );
                self.count("troubled");
                unsure = true;
                if told.as_ref() != Some(&trouble) {
                    self.events.troubled(&subject.pod, trouble.reason, &trouble.why);
                }
                // What only somebody's change can heal is not asked for every second.
                let first = if trouble.passes { PAUSES.0 } else { PAUSES.0 * 4 };
                pause = pause.max(first);
                told = Some(trouble);
            }
            self.rest(&uid, pause, definitions).await;
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    /// Waits until it is worth another try: for a while, or until a definition changes, or this pod leaves.
    async fn rest(&self, uid: &str, pause: Duration, mut definitions: Receiver<u64>) {
        let left = async {
            loop {
                let mut told = pin!(self.leaving.notified());
                told.as_mut().enable();
                if self.cases().get(uid).is_none_or(|case| case.stage == Stage::Leaving) {
                    return;
                }
                told.await;
            }
        };
        tokio::select! {
            () = sleep(jittered(pause)) => {}
            _ = definitions.changed() => {}
            () = left => {}
        }
    }

    async fn attempt(&self, subject: &Subject, state: &mut PodState, unsure: bool) -> Result<(), Trouble> {
        let pod = &subject.pod;
        if self.place == Place::Kuryrport && *state == PodState::default() {
            let written = store::read(self.place, &self.client, pod).await;
            if let Some(written) =
                written.map_err(|why| Trouble { reason: "VifUnreadable", why, passes: true })?
            {
                *state = written;
            } else if !subject.pending {
                return Ok(());
            }
        }
        let before = state.clone();
        let wishes = self.wishes(subject)?;
        if wishes.is_empty() {
            return Ok(());
        }
        // The semaphore is never closed.
        let _turn = self.turns.acquire().await.ok();
        let mut found =
            self.found.lock().unwrap_or_else(PoisonError::into_inner).remove(&pod.uid).unwrap_or_default();
        if unsure && found.is_empty() {
            found = self.allocator.of_pod(&pod.uid).await?;
        }
        self.allocator.fulfil(subject, &wishes, &found, state).await?;
        if *state == before {
            return Ok(());
        }
        match store::write(self.place, &self.client, pod, state).await {
            Ok(()) => {
                info!(pod = pod.name, namespace = pod.namespace, ports = wishes.len(), "allocated");
                Ok(())
            }
            // The next look at the pods sees that it is gone, and releases what it has.
            Err(Unwritten::Gone) => Ok(()),
            Err(Unwritten::Failed(why)) => Err(Trouble { reason: "VifNotWritten", why, passes: true }),
        }
    }

    fn wishes(&self, subject: &Subject) -> Result<Vec<Wish>, Trouble> {
        let rules = &self.allocator.rules;
        let refused = |why: String| Trouble::new("NetworkRefused", why);
        let elements = wish::selected(subject, rules).map_err(refused)?;
        let mut definitions = BTreeMap::new();
        for network in elements.iter().map(|element| &element.network) {
            let key: Key = (network.namespace.clone(), network.name.clone());
            definitions.extend(
                self.definitions.find(&key).map(|found| (network.clone(), Definition::clone(&found))),
            );
        }
        wish::wishes(&elements, &definitions, rules).map_err(refused)
    }

    /// A pod that is gone, or has ended, gives its ports up.
    fn leave(self: &Arc<Desk>, uid: &str) {
        let mut cases = self.cases();
        let Some(case) = cases.get_mut(uid) else { return };
        match case.stage {
            // Who works for it sees it.
            Stage::Working => {
                case.stage = Stage::Leaving;
                self.leaving.notify_waiters();
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

    async fn release(self: Arc<Desk>, uid: String) {
        let mut pause = PAUSES.0;
        loop {
            let Some(case) = self.cases().get(&uid).cloned() else { return };
            let turn = self.turns.acquire().await.ok();
            let mut failed = None;
            let made = match case.state.vifs().next() {
                Some(_) => Ok(Vec::new()),
                // Was something made of which we were not told?
                None => self.allocator.of_pod(&uid).await,
            };
            match made {
                Ok(ports) => {
                    for port in ports {
                        failed = self.allocator.remove(&port).await.err().or(failed);
                    }
                }
                Err(error) => failed = Some(error),
            }
            for (_, vif) in case.state.vifs().filter(|(_, vif)| !vif.preserve_on_delete) {
                failed = self.allocator.release(vif, case.subject.host).await.err().or(failed);
            }
            drop(turn);
            let Some(error) = failed else { break };
            warn!(%error, pod = case.subject.pod.name, "ports cannot be released yet");
            sleep(jittered(pause)).await;
            pause = (pause * 2).min(PAUSES.1 / 4);
        }
        self.count("released");
        let mut cases = self.cases();
        if let Some(case) = cases.get_mut(&uid) {
            info!(pod = case.subject.pod.name, namespace = case.subject.pod.namespace, "released");
            // A pod that has ended and is still there must not be begun anew.
            case.stage = Stage::Left;
            case.state = PodState::default();
        }
    }

    async fn look_after_pools(self: Arc<Desk>) {
        if !self.allocator.rules.pool.enabled {
            return;
        }
        let (mut pause, mut held) = (POOLS, 0);
        loop {
            sleep(pause).await;
            // The server that would make the ports is at work on those that have just been plugged in.
            let is_quiet = held >= HELD_MAX || self.inactive(Asked::All, Late::Without).is_empty();
            held = if is_quiet { 0 } else { held + 1 };
            pause = match self.allocator.top_up(is_quiet).await {
                Ok(()) => POOLS,
                Err(Trouble { reason, why, .. }) => {
                    warn!(reason, why, "a pool cannot be filled");
                    (pause * 2).min(PAUSES.1)
                }
            };
        }
    }
}

impl Told for Desk {
    fn waits_for(&self) -> Vec<String> {
        [self.pods.waited(), self.definitions.waited()].into_iter().flatten().collect()
    }

    fn page(&self) -> String {
        let leads = u8::from(self.leads.load(std::sync::atomic::Ordering::Relaxed));
        let mut page = format!(
            "# TYPE weft_neutron_leads gauge\nweft_neutron_leads {leads}\n\
             # TYPE weft_neutron_requests_total counter\nweft_neutron_requests_total {}\n\
             # TYPE weft_neutron_pool_ports gauge\nweft_neutron_pool_ports {}\n\
             # TYPE weft_neutron_pods gauge\nweft_neutron_pods {}\n\
             # TYPE weft_neutron_cases_total counter\n",
            self.allocator.neutron.requests(),
            self.allocator.pools.count(),
            self.cases().len(),
        );
        for (what, count) in self.counts.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            page.push_str(&format!("weft_neutron_cases_total{{outcome=\"{what}\"}} {count}\n"));
        }
        page
    }
}

/// A pause that is not everybody's.
fn jittered(pause: Duration) -> Duration {
    let noise = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |now| now.subsec_micros());
    pause * (75 + noise % 50) / 100
}
