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

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::{StreamExt, stream};
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

use super::allocator::{Allocator, Trouble, owner};
use super::store::{self, Place, Unwritten};
use super::subject::{KuryrPort, Subject, SubjectObject};
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
/// The first and the longest pause before ports that are not ACTIVE yet are looked at.
const LOOKS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(3));
/// What is between two looks on an average, and how many may come without it first.
const SPACING: Duration = Duration::from_secs(1);
const AHEAD: u32 = 3;
/// So many pods are many: a look is to find one in `PART` of them ready, for it is the server they wait for that answers it.
const MANY: usize = 8;
const PART: f64 = 4.0;
/// But it comes after so long in any case.
const GAP_MAX: Duration = Duration::from_secs(16);
/// So many pods are looked at with little effort, whatever is known of them.
const FEW: usize = 30;
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
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Working,
    Waiting,
    Active,
    Leaving,
    Left,
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
                let case =
                    Case { subject: Arc::clone(subject), state: PodState::default(), stage: Stage::Left };
                cases.insert(pod.uid.clone(), case);
                return;
            }
        };
        let stage = match (state == PodState::default(), state.is_active()) {
            (true, _) => Stage::Working,
            (false, false) => Stage::Waiting,
            (false, true) => Stage::Active,
        };
        cases.insert(pod.uid.clone(), Case { subject: Arc::clone(subject), state, stage });
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
            let Some(Case { subject, mut state, stage }) = self.cases().get(&uid).cloned() else { return };
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

    /// Looks which ports have become ACTIVE: soon after a node has said that they are plugged in, and now and then, for
    /// who says nothing; never so often that many pods, one after the other, have a look each.
    async fn activate(self: Arc<Desk>) {
        let (mut pause, mut due) = (LOOKS.0, Instant::now());
        let (mut looked, mut gap) = (Instant::now(), Duration::ZERO);
        loop {
            if self.inactive(Asked::All).is_empty() {
                self.waiting.notified().await;
                (pause, looked, gap) = (LOOKS.0, Instant::now(), Duration::ZERO);
            } else if timeout(pause, self.waiting.notified()).await.is_ok() {
                pause = LOOKS.0;
            }
            // Others may follow this one closely.
            let spaced = due.saturating_duration_since(Instant::now() + SPACING * AHEAD);
            sleep(LOOKS.0.max(spaced).max(gap.saturating_sub(looked.elapsed()))).await;
            due = due.max(Instant::now()) + SPACING;
            let asked = if pause < LOOKS.1 { Asked::Likely } else { Asked::All };
            let waiting = self.inactive(asked);
            let ids: Vec<String> = waiting.keys().cloned().collect();
            match self.allocator.active(&ids).await {
                Ok(seen) => {
                    let progress = self.mark(&waiting, &seen);
                    let pods: BTreeSet<&String> = waiting.values().collect();
                    gap = next_gap(looked.elapsed(), progress.len(), pods.len());
                    looked = Instant::now();
                    pause = if progress.is_empty() { (pause * 2).min(LOOKS.1) } else { LOOKS.0 * 4 };
                    stream::iter(progress)
                        .for_each_concurrent(PARALLEL, |uid| {
                            let desk = Arc::clone(&self);
                            async move { desk.confirm(&uid).await }
                        })
                        .await;
                }
                Err(error) => {
                    warn!(%error, "ports that wait cannot be looked at");
                    pause = LOOKS.1;
                }
            }
        }
    }

    /// Ports that wait for becoming ACTIVE, and whose they are.
    fn inactive(&self, asked: Asked) -> BTreeMap<String, String> {
        let cases = self.cases();
        let waiting: Vec<(&String, &Case)> =
            cases.iter().filter(|(_, case)| case.stage == Stage::Waiting).collect();
        let few = waiting.len() <= FEW;
        let asked_for = |case: &Case| {
            asked == Asked::All || few || case.subject.pod.annotations.contains_key(NETWORK_STATUS)
        };
        let mut inactive = BTreeMap::new();
        for (uid, case) in waiting.into_iter().filter(|(_, case)| asked_for(case)) {
            let vifs = case.state.vifs().filter(|(_, vif)| !vif.active);
            inactive.extend(vifs.map(|(_, vif)| (vif.id.clone(), uid.clone())));
        }
        inactive
    }

    /// Notes what has become ACTIVE; the pods all of whose ports are.
    fn mark(&self, waiting: &BTreeMap<String, String>, seen: &BTreeMap<String, bool>) -> BTreeSet<String> {
        let mut complete = BTreeSet::new();
        let mut cases = self.cases();
        for (id, uid) in waiting {
            let Some(case) = cases.get_mut(uid).filter(|_| seen.get(id) == Some(&true)) else { continue };
            case.state.vifs_mut().filter(|vif| vif.id == *id).for_each(|vif| vif.active = true);
            if case.state.is_active() {
                complete.insert(uid.clone());
            }
        }
        complete
    }

    /// The second phase: all of a pod's ports are ACTIVE.
    async fn confirm(&self, uid: &str) {
        let Some(Case { subject, state, .. }) = self.cases().get(uid).cloned() else { return };
        match store::write(self.place, &self.client, &subject.pod, &state).await {
            Ok(()) | Err(Unwritten::Gone) => {
                if let Some(case) = self.cases().get_mut(uid).filter(|case| case.stage == Stage::Waiting) {
                    case.stage = Stage::Active;
                    self.count("activated");
                }
            }
            Err(Unwritten::Failed(why)) => {
                warn!(why, "not written; again soon");
                // As if it had not been seen: the next look finds it ACTIVE again.
                if let Some(case) = self.cases().get_mut(uid)
                    && let Some(vif) = case.state.vifs_mut().next()
                {
                    vif.active = false;
                }
            }
        }
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
            let is_quiet = held >= HELD_MAX || self.inactive(Asked::All).is_empty();
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

    async fn compare_again(self: Arc<Desk>) {
        let mut suspects = BTreeSet::new();
        loop {
            sleep(self.every).await;
            if let Err(error) = self.compare(&mut suspects, Orphans::Suspect).await {
                warn!(%error, "ports cannot be compared with pods");
            }
        }
    }

    /// Compares all ports with all pods: what nobody has goes, what was made for a pod is kept for it, the rest waits.
    async fn compare(&self, suspects: &mut BTreeSet<String>, orphans: Orphans) -> Result<(), String> {
        let ports = self.allocator.all().await.map_err(|error| error.to_string())?;
        let Written { mut used, living, unreadable } = self.written().await?;
        used.extend(
            self.cases()
                .values()
                .flat_map(|case| case.state.vifs().map(|(_, vif)| vif.id.clone()).collect::<Vec<_>>()),
        );
        let subjects = self.pods.all();
        let hosts: BTreeSet<&str> = subjects
            .iter()
            .filter(|subject| !subject.ended)
            .map(|subject| subject.pod.node_name.as_str())
            .collect();
        let (mut lost, mut idle) = (Vec::new(), Vec::new());
        let mut found: BTreeMap<String, Vec<Port>> = BTreeMap::new();
        for port in ports {
            let owner = owner(&port).to_owned();
            let pooled = owner.is_empty();
            if used.contains(&port.id) {
                if pooled {
                    self.allocator.learn(&port, true);
                }
            } else if living.contains(&owner) {
                found.entry(owner).or_default().push(port);
            } else if unreadable.iter().any(|text| text.contains(&port.id)) {
                // Whoever wrote it may need the port: it is neither given to another pod nor removed.
            } else if !(pooled && self.allocator.learn(&port, false)) {
                lost.push(port);
            } else if !hosts.contains(port.host_id.as_str()) {
                // Not one pod is there: the node may have gone.
                idle.push(port);
            }
        }
        info!(
            used = used.len(),
            found = found.len(),
            pooled = self.allocator.pools.count(),
            lost = lost.len(),
            idle = idle.len(),
            "compared"
        );
        if orphans == Orphans::Remove {
            *self.found.lock().unwrap_or_else(PoisonError::into_inner) = found;
        }
        let (mut due, rest): (Vec<Port>, Vec<Port>) =
            lost.into_iter().partition(|port| orphans == Orphans::Remove || suspects.contains(&port.id));
        let (unused, young): (Vec<Port>, Vec<Port>) =
            idle.into_iter().partition(|port| suspects.contains(&port.id));
        due.extend(unused.into_iter().filter(|port| self.allocator.pools.withdraw(&port.id)));
        *suspects = rest.into_iter().chain(young).map(|port| port.id).collect();
        self.remove(due);
        Ok(())
    }

    /// Removes ports that nobody has, a few at a time; one that cannot be removed is found again at the next comparison.
    fn remove(&self, ports: Vec<Port>) {
        let allocator = Arc::clone(&self.allocator);
        tokio::spawn(async move {
            for few in ports.chunks(PARALLEL / 2) {
                let allocator = &allocator;
                let removals = few.iter().map(|port| async move {
                    warn!(port = port.id, "belongs to no pod: it is removed");
                    if let Err(error) = allocator.remove(port).await {
                        warn!(%error, "not removed");
                    }
                });
                futures_util::future::join_all(removals).await;
            }
        });
    }

    /// What living pods have, as it is written.
    ///
    /// # Errors
    /// Not all of it can be seen now: what is not seen would be taken for nobody's.
    async fn written(&self) -> Result<Written, String> {
        let subjects = self.pods.all();
        let living = subjects.iter().filter(|subject| !subject.ended);
        let mut written = Written {
            living: living.clone().map(|subject| subject.pod.uid.clone()).collect(),
            ..Written::default()
        };
        for Subject { pod, .. } in living.map(Arc::as_ref) {
            let text = || pod.annotations.get(store::ANNOTATION).cloned().unwrap_or_default();
            written.add(store::of_annotation(pod), text);
        }
        if self.place == Place::Kuryrport {
            let ports: Api<KuryrPort> = Api::all(self.client.clone());
            let listed = match ports.list(&kube::api::ListParams::default()).await {
                Ok(all) => all.items,
                // Where there is no such resource nothing is written in one.
                Err(kube::Error::Api(status)) if status.code == 404 => Vec::new(),
                Err(error) => return Err(format!("list kuryrports: {error}")),
            };
            for port in &listed {
                let uid = port.spec["podUid"].as_str().unwrap_or_default();
                if written.living.contains(uid) {
                    written.add(store::of_kuryr_port(port, uid), || port.status.to_string());
                }
            }
        }
        Ok(written)
    }
}

/// What is written for living pods.
#[derive(Debug, Default)]
struct Written {
    /// Their uids.
    living: BTreeSet<String>,
    /// The ports they have.
    used: BTreeSet<String>,
    /// What cannot be read, as it is.
    unreadable: Vec<String>,
}

impl Written {
    fn add(&mut self, read: Result<Option<PodState>, String>, text: impl FnOnce() -> String) {
        match read {
            Ok(state) => {
                self.used.extend(state.iter().flat_map(PodState::vifs).map(|(_, vif)| vif.id.clone()));
            }
            Err(_) => self.unreadable.push(text()),
        }
    }
}

/// Whose ports are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    /// Those of all pods that wait.
    All,
    /// Of many, those whose node has said that the pod has its interfaces.
    Likely,
}

/// What becomes of a port that nobody has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Orphans {
    /// It goes.
    Remove,
    /// It goes if it was seen so before.
    Suspect,
}

impl Told for Desk {
    fn waits_for(&self) -> Vec<&'static str> {
        let pods = (!self.pods.is_synced()).then(|| self.pods.what());
        let definitions = (!self.definitions.is_synced()).then(|| self.definitions.what());
        pods.into_iter().chain(definitions).collect()
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

/// The time to the next look: until then a part of those who wait is ready, if it goes on as it did in the time that passed.
fn next_gap(passed: Duration, found: usize, waiting: usize) -> Duration {
    if waiting <= MANY {
        return Duration::ZERO;
    }
    let expected = match found {
        0 => passed * 2,
        _ => passed.mul_f64(waiting as f64 / PART / found as f64),
    };
    expected.min(GAP_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_finds_few_of_many_looks_after_the_time_that_a_quarter_takes() {
        let second = Duration::from_secs(1);
        assert_eq!(next_gap(second, 25, 100), second);
        assert_eq!(next_gap(second, 5, 100), 5 * second);
        assert_eq!(next_gap(second, 1, 100), GAP_MAX);
        assert_eq!(next_gap(second, 100, 100), second / 4);
        // Nobody yet: soon at the beginning, and not much later than it could have been.
        assert_eq!(next_gap(LOOKS.0, 0, 100), LOOKS.0 * 2);
        // Of a few nobody is in the way.
        assert_eq!(next_gap(second, 0, MANY), Duration::ZERO);
    }

    /// A hundred pods that a server makes ready one by one, five in a second or one in two: what asks for their ports, a hundred
    /// in a request, is less than one for two of them.
    #[test]
    fn a_hundred_pods_are_asked_for_less_than_fifty_times_however_slow_the_server_is() {
        for each in [0.2, 0.6, 1.7] {
            let (mut now, mut seen, mut requests, mut passed) = (LOOKS.0, 0usize, 0, LOOKS.0);
            while seen < 100 {
                requests += ((100 - seen) * 3).div_ceil(100);
                let ready = (1..=100).take_while(|pod| f64::from(*pod) * each <= now.as_secs_f64()).count();
                passed = next_gap(passed, ready - seen, 100 - seen).max(LOOKS.0);
                // Few are looked at as often as there may be looks at all.
                if 100 - seen <= MANY {
                    passed = SPACING;
                }
                (seen, now) = (ready, now + passed);
            }
            assert!(requests < 50, "{requests} requests, {each} s each");
        }
    }
}
