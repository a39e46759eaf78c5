//! Network policies for running pods: compares each attachment's policies with those in the journal, and
//! queues tasks that replace them.
//!
//! - Only sandboxes that a change concerns are compared: those in the namespace where a policy or set
//!   changed, those whose pod changed, and those whose entry changed. Changes within [`GATHER`] cause one
//!   comparison.
//! - A task is sent until the journal has the policies and no pending update. A lost task, a killed executor, or a
//!   locked sandbox delays an update; the old rules stay in force. The pauses grow, except after a sandbox was reported
//!   as locked.
//! - A task names the policies that were compared, so one that is executed late does not replace newer
//!   policies.
//! - While the controller has not written the set for a policy's generation, or the agent has not read the
//!   sets in the namespace, the rules stay as they are, for at most [`HOLD_MAX`]. Then the policy allows no
//!   peer that a selector would select.
//! - Rules are compared with those in the kernel at an interval, and restored if another program changed
//!   them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cni::name::ContainerId;
use npwg::metadata::NetworkReference;
use npwg::pod_policies::{POD_POLICIES_MAX, encoded_size, reference};
use rpc::journal::{Entry, State};
use rpc::task::{PolicyUpdate, Task, TaskResult};
use tokio::sync::watch::{Receiver, Sender};
use tracing::{info, warn};

use crate::network_policies::{CompiledPolicy, NetworkPolicies};
use crate::planner::{Planner, pod_key};
use kube_support::cache::changed_keys::Changed;
use kube_support::resources::Key;
use node_support::metrics::Metrics;
use node_support::sandboxes::{Sandbox, Sandboxes};

/// Time for which changes are collected before sandboxes are compared.
pub(crate) const GATHER: Duration = Duration::from_millis(10);
/// Longest time that an update waits for the set for a policy's generation.
const HOLD_MAX: Duration = Duration::from_secs(3);
/// Interval at which waiting updates are looked at again.
pub(crate) const TICK: Duration = Duration::from_millis(500);
/// First and longest pause before an update is sent again.
const REPEAT_MIN: Duration = Duration::from_secs(1);
const REPEAT_MAX: Duration = Duration::from_secs(60);
/// Maximum number of sandboxes in one response, and the update size in bytes after which no further one is
/// added.
const UPDATES_MAX: usize = 64;
const RESPONSE_MAX: usize = 4 << 20;
/// Maximum number of comparisons with the kernel's rules in one response.
const VERIFY_MAX: usize = 32;

/// Updates for running pods, by container id.
#[derive(Debug)]
pub(crate) struct PolicyUpdates {
    /// Interval between two verifications for a sandbox; zero for none.
    interval: Duration,
    state: Mutex<Updates>,
    /// Number of times that updates were queued.
    queued: Sender<u64>,
}

#[derive(Debug, Default)]
struct Updates {
    /// Each sandbox's entry as it was last compared.
    compared: BTreeMap<ContainerId, Arc<Entry>>,
    pending: BTreeMap<ContainerId, PendingUpdate>,
    /// Sandboxes that wait for a set, since this time.
    held: BTreeMap<ContainerId, Instant>,
    /// Sandboxes whose last comparison lacked a set, after they had waited for it.
    without_set: BTreeSet<ContainerId>,
    /// When sandboxes with policies are next verified.
    verified: BTreeMap<ContainerId, Instant>,
}

/// Update that the journal does not have yet.
#[derive(Clone, Debug)]
struct PendingUpdate {
    uid: String,
    updates: Vec<PolicyUpdate>,
    /// Time at which the difference was found.
    since: Instant,
    /// When it was last sent, and how often.
    sent: Option<(Instant, u32)>,
}

/// Result of a comparison.
enum Comparison {
    /// The policies or the pod are not known.
    Unknown,
    /// A policy waits for a set.
    Waiting,
    /// The policies are known.
    Known(Difference),
}

/// Difference between a sandbox's policies and those in the entry.
#[derive(Default)]
struct Difference {
    /// Attachments to update.
    updates: Vec<PolicyUpdate>,
    /// Why some get no rules, or no peers.
    faults: Vec<String>,
    /// Whether a set is missing, or was not read.
    lacks_set: bool,
}

/// Sandboxes that changes concern.
#[derive(Debug, Default)]
pub(crate) struct Concerned {
    all: bool,
    pub(crate) namespaces: BTreeSet<String>,
    pub(crate) pods: BTreeSet<Key>,
}

// === impl PendingUpdate ===

impl PendingUpdate {
    /// Whether the update is to be sent.
    fn is_due(&self, now: Instant) -> bool {
        self.sent.is_none_or(|(at, times)| {
            let pause = REPEAT_MIN * 2_u32.saturating_pow(times.saturating_sub(1).min(10));
            now.saturating_duration_since(at) >= pause.min(REPEAT_MAX)
        })
    }

    fn mark_sent(&mut self, now: Instant) {
        self.sent = Some((now, self.sent.map_or(1, |(_, times)| times + 1)));
    }

    fn size(&self) -> usize {
        self.updates.iter().filter_map(|update| update.policy.as_ref()).map(encoded_size).sum()
    }
}

// === impl Concerned ===

impl Concerned {
    pub(crate) fn add(&mut self, changed: Changed, of: impl Fn(&mut Concerned, Key)) {
        match changed {
            Changed::All => self.all = true,
            Changed::Keys(keys) => keys.into_iter().for_each(|key| of(self, key)),
        }
    }

    fn has(&self, entry: &Entry) -> bool {
        let pod = &entry.plan.pod;
        self.all || self.namespaces.contains(&pod.namespace) || self.pods.contains(&pod_key(pod))
    }
}

// === impl PolicyUpdates ===

impl PolicyUpdates {
    /// Returns no updates; rules are compared with the kernel's every `interval` (zero: never).
    pub(crate) fn new(interval: Duration) -> PolicyUpdates {
        PolicyUpdates { interval, state: Mutex::default(), queued: Sender::new(0) }
    }

    /// Whether a sandbox waits for a set.
    pub(crate) fn waits(&self) -> bool {
        !self.state().held.is_empty()
    }

    /// Whether an update is not in the journal yet.
    pub(crate) fn has_pending(&self) -> bool {
        !self.state().pending.is_empty()
    }

    fn state(&self) -> MutexGuard<'_, Updates> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a receiver that is notified when updates are queued.
    pub(crate) fn queued(&self) -> Receiver<u64> {
        self.queued.subscribe()
    }

    /// Returns how many sandboxes have rules that do not match the current policies: the updates are not in the journal
    /// yet, or they lack an address set.
    pub(crate) fn count(&self) -> usize {
        let state = self.state();
        let waiting = state.held.keys().chain(&state.without_set);
        waiting.chain(state.pending.keys()).collect::<BTreeSet<_>>().len()
    }

    /// Returns the tasks that are due: updates if `with_updates`, then verifications.
    pub(crate) fn due(&self, sandboxes: &Sandboxes, with_updates: bool) -> Vec<Task> {
        let mut state = self.state();
        let now = Instant::now();
        let (mut tasks, mut size) = (Vec::new(), 0);
        for (container, pending) in &mut state.pending {
            if !with_updates || tasks.len() == UPDATES_MAX || size > RESPONSE_MAX {
                break;
            }
            if pending.is_due(now) {
                size += pending.size();
                pending.mark_sent(now);
                let PendingUpdate { uid, updates, .. } = pending.clone();
                tasks.push(Task::UpdatePolicy { container: container.clone(), uid, attachments: updates });
            }
        }
        if !self.interval.is_zero() {
            sandboxes.with(|all| tasks.extend(state.verifications(all, now, self.interval)));
        }
        tasks
    }

    /// Compares the sandboxes that changes concern, and queues updates.
    pub(crate) fn compare(
        &self,
        policies: &NetworkPolicies,
        planner: &Planner,
        sandboxes: &Sandboxes,
        concerned: &Concerned,
    ) {
        let mut state = self.state();
        let now = Instant::now();
        let mut is_queued = false;
        for (container, entry) in sandboxes.with(|all| state.concerned(all, concerned)) {
            let is_held = state.held.get(&container).is_none_or(|since| since.elapsed() < HOLD_MAX);
            match compare(policies, planner, &entry, is_held) {
                Comparison::Unknown => {
                    state.compared.remove(&container);
                    continue;
                }
                Comparison::Waiting => {
                    state.held.entry(container.clone()).or_insert(now);
                }
                Comparison::Known(Difference { updates, faults, lacks_set }) => {
                    state.held.remove(&container);
                    match lacks_set {
                        true => state.without_set.insert(container.clone()),
                        false => state.without_set.remove(&container),
                    };
                    if let Some(fault) = faults.first().filter(|_| !updates.is_empty()) {
                        warn!(%container, fault, "network policies of running pod deny more than they say");
                        planner.events.policy_update_failed(&entry.plan.pod, fault);
                    }
                    is_queued |= state.queue(&container, &entry, updates, now);
                }
            }
            state.compared.insert(container, entry);
        }
        drop(state);
        if is_queued {
            self.queued.send_modify(|count| *count += 1);
        }
    }

    /// Handles the report that another process has locked the sandbox: this was no attempt, so the next one follows soon.
    pub(crate) fn was_locked(&self, container: &ContainerId) {
        let mut state = self.state();
        if let Some((_, times)) = state.pending.get_mut(container).and_then(|pending| pending.sent.as_mut()) {
            *times = times.saturating_sub(1);
        }
    }

    /// Handles the result of an update; returns the time since the difference was found.
    pub(crate) fn ended(&self, result: &TaskResult) -> Option<Duration> {
        let state = self.state();
        Some(state.pending.get(&result.container)?.since.elapsed())
    }
}

// === impl Updates ===

impl Updates {
    /// Forgets sandboxes that do not exist any more.
    fn retain(&mut self, all: &BTreeMap<ContainerId, Sandbox>) {
        self.compared.retain(|container, _| all.contains_key(container));
        self.pending.retain(|container, _| all.contains_key(container));
        self.held.retain(|container, _| all.contains_key(container));
        self.without_set.retain(|container| all.contains_key(container));
        self.verified.retain(|container, _| all.contains_key(container));
    }

    /// Returns the sandboxes to compare: those that changes concern, and those that wait for a set.
    fn concerned(
        &mut self,
        all: &BTreeMap<ContainerId, Sandbox>,
        concerned: &Concerned,
    ) -> Vec<(ContainerId, Arc<Entry>)> {
        self.retain(all);
        let is_concerned = |container: &ContainerId, entry: &Arc<Entry>| {
            let compared = self.compared.get(container);
            let is_known = compared.is_some_and(|compared| Arc::ptr_eq(compared, entry));
            !is_known || concerned.has(entry) || self.held.contains_key(container)
        };
        let found = all.iter().filter(|(container, sandbox)| is_concerned(container, &sandbox.entry));
        found.map(|(container, sandbox)| (container.clone(), Arc::clone(&sandbox.entry))).collect()
    }

    /// Queues a sandbox's updates; returns whether they are new.
    fn queue(
        &mut self,
        container: &ContainerId,
        entry: &Entry,
        updates: Vec<PolicyUpdate>,
        now: Instant,
    ) -> bool {
        if updates.is_empty() {
            self.pending.remove(container);
            return false;
        }
        match self.pending.get_mut(container) {
            Some(known) if known.updates == updates => return false,
            Some(known) => {
                // Different updates are sent at once.
                known.updates = updates;
                known.sent = None;
            }
            None => {
                let uid = entry.plan.pod.uid.clone();
                let pending = PendingUpdate { uid, updates, since: now, sent: None };
                self.pending.insert(container.clone(), pending);
            }
        }
        true
    }

    /// Returns the verifications that are due.
    fn verifications(
        &mut self,
        all: &BTreeMap<ContainerId, Sandbox>,
        now: Instant,
        interval: Duration,
    ) -> Vec<Task> {
        let mut tasks = Vec::new();
        for (container, Sandbox { entry, .. }) in all {
            let has_policy = entry.plan.delegates.iter().any(|delegate| delegate.policy.is_some());
            if !has_policy || !entry.complete || self.pending.contains_key(container) {
                continue;
            }
            let due = self.verified.entry(container.clone()).or_insert(now + interval);
            if now >= *due && tasks.len() < VERIFY_MAX {
                *due = now + interval;
                let uid = entry.plan.pod.uid.clone();
                tasks.push(Task::VerifyPolicy { container: container.clone(), uid });
            }
        }
        tasks
    }
}

/// Compares a sandbox's policies with those in the entry. Waits for sets if `may_wait`.
fn compare(policies: &NetworkPolicies, planner: &Planner, entry: &Entry, may_wait: bool) -> Comparison {
    let known = || Comparison::Known(Difference::default());
    if !(entry.complete || entry.changing) || entry.plan.pod.uid.is_empty() {
        return known();
    }
    let attached: Vec<(usize, NetworkReference)> = entry
        .plan
        .delegates
        .iter()
        .enumerate()
        .filter(|(index, _)| entry.attachments[*index].state == State::Attached)
        .filter_map(|(index, delegate)| Some((index, reference(delegate)?)))
        .collect();
    if attached.is_empty() {
        return known();
    }
    let found = planner.pods.find(&pod_key(&entry.plan.pod)).filter(|pod| pod.uid == entry.plan.pod.uid);
    let Some(pod) = found else { return Comparison::Unknown };
    let networks: Vec<NetworkReference> = attached.iter().map(|(_, network)| network.clone()).collect();
    let Some(found) = policies.of_pod(&pod, &networks) else { return Comparison::Unknown };
    if found.is_waiting && may_wait {
        return Comparison::Waiting;
    }
    let (mut updates, mut faults, mut room) = (Vec::new(), Vec::new(), POD_POLICIES_MAX);
    for (index, network) in attached {
        let delegate = &entry.plan.delegates[index];
        let CompiledPolicy { policy, because, fault } = found.compile(&pod, &network, room);
        room = room.saturating_sub(policy.as_ref().map_or(0, encoded_size));
        let in_force = delegate.policy.as_ref();
        if entry.attachments[index].policy_pending || in_force != policy.as_ref() {
            let (ifname, network) = (delegate.ifname.clone(), delegate.network.clone());
            let replaces = PolicyUpdate::digest(in_force).ok();
            updates.push(PolicyUpdate { ifname, network, replaces, policy, because });
            faults.extend(fault);
        }
    }
    if let Some(what) = &found.unread_sets {
        faults.push(format!("{what} of the namespace are not read yet; its policies allow no pod as a peer"));
    }
    Comparison::Known(Difference { updates, faults, lacks_set: found.is_waiting })
}

/// Reports how an update ended.
pub(crate) fn updated(
    (planner, metrics): (&Planner, &Metrics),
    updates: &PolicyUpdates,
    entry: &Entry,
    result: &TaskResult,
) {
    let took = updates.ended(result);
    metrics.policy_updated(result.error.is_some(), took);
    let Some(error) = &result.error else { return };
    let (container, error) = (&result.container, error.to_string());
    planner.events.policy_update_failed(&entry.plan.pod, &error);
    warn!(%container, error, "failed to update the network policies of running pod");
}

/// Reports that rules were changed by another program and restored.
pub(crate) fn restored((planner, metrics): (&Planner, &Metrics), entry: &Entry, result: &TaskResult) {
    let Some(error) = &result.error else { return };
    let (container, error) = (&result.container, error.to_string());
    metrics.policy_restored(result.wrong.len());
    planner.events.policy_drifted(&entry.plan.pod, &error);
    info!(%container, error, "rules of network policies were restored");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_policy_update_of_locked_sandbox_is_repeated_soon() {
        let (updates, container) = (PolicyUpdates::new(Duration::ZERO), ContainerId::new("c").unwrap());
        let began = Instant::now();
        let pending = PendingUpdate { uid: "u".into(), updates: Vec::new(), since: began, sent: None };
        updates.state().pending.insert(container.clone(), pending);
        let send = || updates.state().pending.get_mut(&container).unwrap().mark_sent(began);
        let is_due = |after| updates.state().pending[&container].is_due(began + after);
        for _ in 0..6 {
            send();
            updates.was_locked(&container);
        }
        assert!(is_due(REPEAT_MIN), "a locked sandbox is no attempt");
        (0..6).for_each(|_| send());
        assert!(!is_due(REPEAT_MIN * 8) && is_due(REPEAT_MAX), "the pauses of attempts grow");
        updates.was_locked(&ContainerId::new("other").unwrap());
    }
}
