//! Events on pods.
//!
//! - Events are sent once, one after the other, in the background, at a limited rate ([`Pace`]). They are delayed while
//!   pods are attached, because they would compete for the processors.
//! - A successful ADD causes one Event with all interfaces.
//! - The queue is limited, and Events beyond it are dropped. When the process ends, the queue is sent first, for a few
//!   seconds at most.
//! - The note is limited to [`NOTE_MAX`] bytes.
//! - A series of Events ([`crate::event_publisher`]) shows the first note only. So another note is another action.
//!
//! Source: Events v1; reasons `AddedInterface` and `NoNetworkFound` as in Multus.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use npwg::metadata::Pod;
use npwg::plan::PodIdentity;
use npwg::refusal::{Fault, Refusal};
use rpc::journal::Entry;
use rpc::task::NetworkChange;
use tokio::sync::{mpsc, oneshot};
use tracing::{debug, warn};

use crate::event_effect::{EventEffect, event_effect};
use crate::event_publisher::{Event, EventPublisher, EventType};
pub use crate::event_reason::EventReason;
use crate::note_identity;
use cli_support::activity::Busy;
use cli_support::terminal::plain;

/// Name of the reporting controller.
const CONTROLLER: &str = "weft";
/// Maximum length of a note, in bytes.
const NOTE_MAX: usize = 1024;
/// Maximum number of queued Events; more are dropped.
const QUEUE_MAX: usize = 1024;
/// Maximum number of failing pods that are known; a node has fewer pods.
const FAILING_MAX: usize = 1024;
/// Longest delay of an Event while pods are attached.
const DELAY_MAX: Duration = Duration::from_secs(2);
/// Number of Events that are sent at once; enough for every pod on a starting node.
const PACE_BURST: f64 = 256.0;
/// Number of Events a second after that.
const PACE_RATE: f64 = 50.0;
/// Deadline for the queue to be sent when the process ends.
const END_MAX: Duration = Duration::from_secs(3);

/// Queue of Events.
#[derive(Clone, Debug)]
pub struct Events {
    queue: mpsc::Sender<QueueItem>,
    failing: Arc<Mutex<BTreeMap<String, FailingPod>>>,
}

/// Pod whose newest Event says that a network fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailingPod {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Reason of the Event.
    pub reason: &'static str,
}

/// Item of the queue.
#[derive(Debug)]
enum QueueItem {
    Event(EventText, PodIdentity),
    /// Request for confirmation that all Events before it were sent.
    Flush(oneshot::Sender<()>),
}

/// Event in the queue.
#[derive(Debug)]
pub struct EventText {
    kind: EventType,
    reason: EventReason,
    action: String,
    note: String,
    at: Instant,
}

/// Rate of Events: [`PACE_BURST`] at once, then [`PACE_RATE`] a second.
#[derive(Debug)]
struct Pace {
    available: f64,
    at: Instant,
}

impl Pace {
    fn new(now: Instant) -> Pace {
        Pace { available: PACE_BURST, at: now }
    }

    /// Takes one Event from the rate and returns the delay before it may be sent.
    fn delay(&mut self, now: Instant) -> Duration {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.available = (self.available + passed * PACE_RATE).min(PACE_BURST) - 1.0;
        self.at = now;
        Duration::from_secs_f64((-self.available / PACE_RATE).max(0.0))
    }
}

impl Events {
    /// Returns the queue, and starts the task that sends the Events.
    pub fn new(client: Client, node: &str, busy: &Arc<Busy>) -> Events {
        let busy = Arc::clone(busy);
        let (sender, mut receiver) = mpsc::channel::<QueueItem>(QUEUE_MAX);
        let publisher = publisher(client, Some(node.to_owned()));
        tokio::spawn(async move {
            let mut pace = Pace::new(Instant::now());
            while let Some(item) = receiver.recv().await {
                match item {
                    QueueItem::Event(event, pod) => {
                        tokio::time::sleep(pace.delay(Instant::now())).await;
                        busy.quiet(DELAY_MAX.saturating_sub(event.at.elapsed())).await;
                        event.publish(&publisher, &reference(&pod)).await;
                    }
                    // The receiver may have timed out.
                    QueueItem::Flush(done) => drop(done.send(())),
                }
            }
        });
        Events { queue: sender, failing: Arc::default() }
    }

    /// Waits until the queue is sent, for three seconds at most.
    pub async fn end(&self) {
        let (sender, done) = oneshot::channel();
        let flushed = async { self.queue.send(QueueItem::Flush(sender)).await.is_ok() && done.await.is_ok() };
        if tokio::time::timeout(END_MAX, flushed).await != Ok(true) {
            warn!("queued Events are lost: the API server did not accept them in time");
        }
    }

    fn send(&self, pod: &PodIdentity, event: EventText) {
        if pod.name.is_empty() {
            return;
        }
        self.judge(pod, event.reason);
        // If the queue is full, the Event is dropped: no program depends on it.
        let _ = self.queue.try_send(QueueItem::Event(event, pod.clone()));
    }

    /// Remembers whether a pod fails. The uid of a static pod may be unknown: then there is no row.
    fn judge(&self, pod: &PodIdentity, reason: EventReason) {
        let Some(effect) = event_effect(reason.as_str()) else { return };
        // A panic leaves no map half changed.
        let mut failing = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        match effect {
            EventEffect::Works => drop(failing.remove(&pod.uid)),
            EventEffect::Fails if failing.len() < FAILING_MAX || failing.contains_key(&pod.uid) => {
                let PodIdentity { namespace, name, uid } = pod.clone();
                failing.insert(uid, FailingPod { namespace, name, reason: reason.as_str() });
            }
            EventEffect::Fails => {}
        }
    }

    /// Returns the pods that fail, and forgets those that `exists` denies, by uid.
    pub fn failing(&self, exists: impl Fn(&str) -> bool) -> Vec<FailingPod> {
        let mut failing = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        failing.retain(|uid, _| exists(uid));
        failing.values().cloned().collect()
    }

    /// Sends an Event: a plan was refused.
    pub fn refused(&self, pod: &Pod, refusal: &Refusal) {
        self.refused_network(&identity(pod), refusal.fault());
    }

    /// Sends an Event: a network of a running pod cannot be attached, and the others are.
    pub fn refused_network(&self, pod: &PodIdentity, fault: &Fault) {
        let reason = EventReason::of_refusal(fault.rule);
        self.send(pod, EventText::new(EventType::Warning, reason, "Plan", &with_rule(fault)));
    }

    /// Sends an Event: an attachment has drifted (`why`), or no attachment is drifted any more.
    pub fn drifted(&self, pod: &PodIdentity, why: Option<&str>) {
        let (kind, reason, note) = match why {
            Some(why) => (EventType::Warning, EventReason::InterfaceDrifted, why),
            None => (
                EventType::Normal,
                EventReason::InterfaceRestored,
                "every interface matches its configuration again",
            ),
        };
        self.send(pod, EventText::new(kind, reason, "Check", note));
    }

    /// Sends Events: the networks of a running pod were changed.
    pub fn changed(&self, pod: &PodIdentity, done: &[NetworkChange]) {
        for NetworkChange { network, ifname, added } in done {
            self.send(
                pod,
                match added {
                    Some(ips) => {
                        let ips: Vec<String> = ips.iter().map(ToString::to_string).collect();
                        EventText::added(&[added_interface(ifname.as_str(), &ips, network)])
                    }
                    None => {
                        let note = format!("Remove {ifname} from {network}");
                        EventText::new(
                            EventType::Normal,
                            EventReason::RemovedInterface,
                            &format!("Detach {ifname}"),
                            &note,
                        )
                    }
                },
            );
        }
    }

    /// Sends an Event: the networks of a running pod could not be changed. `action` is the step that failed.
    pub fn unchanged(&self, pod: &PodIdentity, action: &str, why: &str) {
        self.send(pod, EventText::new(EventType::Warning, EventReason::NetworkChangeFailed, action, why));
    }

    /// Sends an Event: the network policies of a running pod could not be updated.
    pub fn policy_update_failed(&self, pod: &PodIdentity, why: &str) {
        let event = EventText::new(EventType::Warning, EventReason::PolicyUpdateFailed, "UpdatePolicy", why);
        self.send(pod, event);
    }

    /// Sends an Event: another program changed the rules of a pod's network policies, and they were restored.
    pub fn policy_drifted(&self, pod: &PodIdentity, why: &str) {
        self.send(pod, EventText::new(EventType::Warning, EventReason::PolicyDrift, "RestoreRules", why));
    }

    /// Sends an Event: a pod runs without the networks it selects.
    pub fn unattached(&self, pod: &Pod) {
        let why = format!(
            "runs without the networks it selects: the container runtime created it without weft. Recreate the pod; if \
             that does not help, run `weft doctor` on {}",
            pod.node_name
        );
        let event = EventText::new(EventType::Warning, EventReason::NetworksMissing, "Look", &why);
        self.send(&identity(pod), event);
    }

    /// Sends an Event: the Neutron ports of a pod could not be provided.
    pub fn ports_failed(&self, pod: &Pod, reason: EventReason, why: &str) {
        let event = EventText::new(EventType::Warning, reason, "AllocatePorts", why);
        self.send(&identity(pod), event);
    }

    /// Sends an Event: a pod could not be attached or detached.
    pub fn call_failed(&self, pod: &PodIdentity, reason: EventReason, why: &str) {
        let action = if reason == EventReason::DetachFailed { "Detach" } else { "Attach" };
        self.send(pod, EventText::new(EventType::Warning, reason, action, why));
    }

    /// Sends the Events of an attached sandbox.
    pub fn attached(&self, entry: &Entry) {
        of(entry).into_iter().for_each(|event| self.send(&entry.plan.pod, event));
    }
}

/// Returns the error text and the rule name, for `weft lint --explain`.
fn with_rule(fault: &Fault) -> String {
    format!("{fault} [{}]", fault.rule)
}

fn identity(Pod { namespace, name, uid, .. }: &Pod) -> PodIdentity {
    PodIdentity { namespace: namespace.clone(), name: name.clone(), uid: uid.clone() }
}

impl EventText {
    /// Returns an Event whose note is limited.
    pub fn new(kind: EventType, reason: EventReason, action: &str, note: &str) -> EventText {
        EventText {
            kind,
            reason,
            action: distinct_action(action, note),
            note: clip(note),
            at: Instant::now(),
        }
    }

    /// Returns the Event of interfaces that were added, each described by [`added_interface`].
    fn added(interfaces: &[String]) -> EventText {
        let note = list_within(interfaces, NOTE_MAX);
        EventText::new(EventType::Normal, EventReason::AddedInterface, "Attach", &note)
    }

    /// Sends the Event about an object.
    pub async fn publish(self, publisher: &EventPublisher, about: &ObjectReference) {
        let EventText { kind, reason, action, note, at: _ } = self;
        let event = Event { r#type: kind, reason: reason.as_str(), action: &action, note: &note };
        if let Err(error) = publisher.publish(&event, about).await {
            debug!(%error, reason = reason.as_str(), "failed to send Event");
        }
    }
}

/// Returns the sentence about an added interface, as Multus writes it.
fn added_interface(interface: &str, ips: &[String], network: &str) -> String {
    format!("Add {interface} [{}] from {network}", ips.join(" "))
}

/// Joins sentences to a text with at most `length` bytes; the end says how many were omitted.
fn list_within(sentences: &[String], length: usize) -> String {
    let mut text = String::new();
    for (index, sentence) in sentences.iter().enumerate() {
        let rest = format!("; and {} more", sentences.len() - index);
        let separator = if text.is_empty() { "" } else { "; " };
        let is_last = index + 1 == sentences.len();
        let room = if is_last { 0 } else { rest.len() };
        if !text.is_empty() && text.len() + separator.len() + sentence.len() + room > length {
            return text + &rest;
        }
        text += separator;
        text += sentence;
    }
    text
}

/// Sends the Events of an attached sandbox and waits until they are sent.
pub async fn publish(client: Client, entry: &Entry) {
    let publisher = publisher(client, None);
    for event in of(entry) {
        event.publish(&publisher, &reference(&entry.plan.pod)).await;
    }
}

/// Returns the publisher that sends Events in the name of weft.
pub fn publisher(client: Client, instance: Option<String>) -> EventPublisher {
    EventPublisher::new(client, CONTROLLER, instance)
}

/// Returns one Event for all interfaces, and one for each warning.
fn of(entry: &Entry) -> Vec<EventText> {
    let status = &entry.network_status;
    let interfaces: Vec<String> =
        status.iter().map(|status| added_interface(&status.interface, &status.ips, &status.name)).collect();
    let interfaces = (!interfaces.is_empty()).then(|| EventText::added(&interfaces));
    let warnings = entry.plan.warnings.iter().map(|warning| {
        let reason = EventReason::of_warning(warning.event);
        EventText::new(EventType::Warning, reason, "Plan", &with_rule(&warning.fault))
    });
    interfaces.into_iter().chain(warnings).collect()
}

fn reference(pod: &PodIdentity) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        namespace: Some(pod.namespace.clone()),
        name: Some(pod.name.clone()),
        uid: Some(pod.uid.clone()).filter(|uid| !uid.is_empty()),
        ..ObjectReference::default()
    }
}

/// Returns the action of an Event with this note: the API identifies Events by reason and action, and would show the old
/// note. Words that differ at each attempt are ignored ([`crate::note_identity`]).
pub fn distinct_action(action: &str, note: &str) -> String {
    format!("{action} {:08x}", note_identity::hash(note) >> 32)
}

/// Returns the text without control characters, shortened to the limit of the API.
fn clip(text: &str) -> String {
    let text = plain(text);
    let mut end = text.len().min(NOTE_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

#[cfg(test)]
mod tests {
    use npwg::rule::Rule;

    use super::*;

    #[test]
    fn event_note_has_no_control_characters() {
        assert_eq!(clip("interface \"a\u{1b}[2J\u{9b}\u{202e}b\"\n"), "interface \"a [2J  b\" ");
        assert!(clip(&"\u{202e}".repeat(NOTE_MAX)).len() <= NOTE_MAX);
    }

    #[test]
    fn event_of_an_attached_pod_names_interfaces_up_to_the_limit() {
        let all: Vec<String> = (0..40)
            .map(|n| added_interface(&format!("net{n}"), &["10.1.0.2".to_owned()], "blue/net-a"))
            .collect();
        assert_eq!(
            list_within(&all[..2], NOTE_MAX),
            "Add net0 [10.1.0.2] from blue/net-a; Add net1 [10.1.0.2] from blue/net-a"
        );
        let long = list_within(&all, NOTE_MAX);
        let shown = long.matches("Add ").count();
        assert!(long.len() <= NOTE_MAX && shown > 20, "{long}");
        assert!(long.ends_with(&format!("; and {} more", 40 - shown)), "{long}");
        // The limit is exact: without the last sentence nothing is omitted.
        let exact = list_within(&all[..2], usize::MAX).len();
        assert_eq!(list_within(&all[..2], exact), list_within(&all[..2], usize::MAX));
        assert_eq!(list_within(&all[..2], exact - 1), "Add net0 [10.1.0.2] from blue/net-a; and 1 more");
        assert_eq!(list_within(&all[..1], 3), all[0], "the API's limit is applied to the note");
    }

    #[test]
    fn event_rate_is_limited_after_a_burst() {
        let now = Instant::now();
        let mut pace = Pace::new(now);
        let delays: Vec<Duration> = (0..258).map(|_| pace.delay(now)).collect();
        assert!(delays[..256].iter().all(Duration::is_zero), "{delays:?}");
        assert_eq!(delays[256..], [20, 40].map(Duration::from_millis));
        assert_eq!(pace.delay(now + Duration::from_secs(60)), Duration::ZERO);
    }

    #[test]
    fn event_action_differs_by_note_but_not_by_request_id() {
        let action = |note| distinct_action("AllocatePorts", note);
        let away = "GET /v2.0/ports: 503 (req-2c1a3f60-9a52-4b0c-8e5a-1d6a3b9f7c11)";
        assert_eq!(action(away), action("GET /v2.0/ports: 503 (req-77f0a1de-0000-4b0c-8e5a-1d6a3b9f7c11)"));
        assert_ne!(action(away), action("GET /v2.0/ports: 502 (req-2c1a3f60-9a52-4b0c-8e5a-1d6a3b9f7c11)"));
        assert_ne!(action("Add eth0 [10.1.0.2] from home"), action("Add eth0 [10.1.0.3] from home"));
        assert_ne!(action("Add eth0 [fd00::2] from home"), action("Add eth0 [fd00::3] from home"));
    }

    #[test]
    fn event_reasons_follow_the_rule_of_a_refusal() {
        for (rule, reason) in [
            (Rule::UnknownNetwork, "NoNetworkFound"),
            (Rule::ConfigNotFound, "NoNetworkFound"),
            (Rule::UnknownNodeNetwork, "NetworkRefused"),
            (Rule::InvalidMac, "NetworkRefused"),
        ] {
            assert_eq!(EventReason::of_refusal(rule).as_str(), reason, "{rule}");
        }
        let fault = Fault::new(Rule::InvalidMac, "annotation x", "is no address");
        assert_eq!(with_rule(&fault), "annotation x: is no address [invalid-mac]");
    }
}
