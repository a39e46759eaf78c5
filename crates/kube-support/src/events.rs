//! What a pod's owner is told: Events on the pod.
//!
//! Rules: an Event is told once, in the background, and never holds anything up: it waits a while for pods that are being
//! attached, whose processors it would take; an agent that ends tells what waits; its text is bounded; what is repeated is
//! counted by the API's own series, which shows the first text for ever: another text is another action.
//!
//! Source: Events v1; reasons `AddedInterface` and `NoNetworkFound` as Multus has them.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use npwg::metadata::Pod;
use npwg::plan::PodIdentity;
use npwg::refusal::{Fault, Reason, Refusal};
use npwg::rule::Rule;
use rpc::journal::Entry;
use rpc::task::NetworkChange;
use tokio::sync::{mpsc, oneshot};
use tracing::{debug, warn};

use cli_support::activity::Busy;
use cli_support::terminal::plain;

/// Name of who tells.
const CONTROLLER: &str = "weft";
/// Longest text the API takes, in bytes.
const NOTE_MAX: usize = 1024;
/// Most Events that wait to be told; more are dropped.
const WAITING_MAX: usize = 1024;
/// How long one waits for pods that are being attached.
const DELAY_MAX: Duration = Duration::from_secs(2);
/// How long an agent that ends takes to tell what waits.
const END_MAX: Duration = Duration::from_secs(3);

/// Where Events go.
#[derive(Clone, Debug)]
pub struct Events(mpsc::Sender<Letter>);

/// What goes there.
#[derive(Debug)]
enum Letter {
    Event(EventText, PodIdentity),
    /// Whoever waits until all before it are told.
    End(oneshot::Sender<()>),
}

/// An Event on its way.
#[derive(Debug)]
pub struct EventText {
    kind: EventType,
    reason: EventReason,
    action: String,
    note: String,
    at: Instant,
}

impl Events {
    /// Tells what comes, one after the other.
    pub fn new(client: Client, node: &str, busy: &Arc<Busy>) -> Events {
        let busy = Arc::clone(busy);
        let (sender, mut receiver) = mpsc::channel::<Letter>(WAITING_MAX);
        let recorder = recorder(client, Some(node.to_owned()));
        tokio::spawn(async move {
            while let Some(letter) = receiver.recv().await {
                match letter {
                    Letter::Event(told, pod) => {
                        busy.quiet(DELAY_MAX.saturating_sub(told.at.elapsed())).await;
                        told.publish(&recorder, &reference(&pod)).await;
                    }
                    // Who does not wait any more is answered, too.
                    Letter::End(told) => drop(told.send(())),
                }
            }
        });
        Events(sender)
    }

    /// Comes when all that waits is told, and after three seconds in any case.
    pub async fn end(&self) {
        let (sender, told) = oneshot::channel();
        let all_told = async { self.0.send(Letter::End(sender)).await.is_ok() && told.await.is_ok() };
        if tokio::time::timeout(END_MAX, all_told).await != Ok(true) {
            warn!("Events are lost: the API server takes none");
        }
    }

    fn tell(&self, pod: &PodIdentity, told: EventText) {
        if !pod.name.is_empty() {
            // A full queue drops it: it is for people, not for programs.
            let _ = self.0.try_send(Letter::Event(told, pod.clone()));
        }
    }

    /// A plan was refused.
    pub fn refused(&self, pod: &Pod, refusal: &Refusal) {
        let fault = refusal.fault();
        let told = EventText::new(
            EventType::Warning,
            EventReason::of_refusal(fault.rule),
            "Plan",
            &with_rule(fault),
        );
        self.tell(&identity(pod), told);
    }

    /// A sandbox is not as it was attached, or is again.
    pub fn drifted(&self, pod: &PodIdentity, why: Option<&str>) {
        let (kind, reason, note) = match why {
            Some(why) => (EventType::Warning, EventReason::InterfaceDrifted, why),
            None => {
                (EventType::Normal, EventReason::InterfaceRestored, "every interface is as it was attached")
            }
        };
        self.tell(pod, EventText::new(kind, reason, "Check", note));
    }

    /// A running pod's networks were changed as it asks.
    pub fn changed(&self, pod: &PodIdentity, done: &[NetworkChange]) {
        for NetworkChange { network, ifname, added } in done {
            self.tell(
                pod,
                match added {
                    Some(ips) => {
                        let ips: Vec<String> = ips.iter().map(ToString::to_string).collect();
                        EventText::added(ifname.as_str(), &ips, network)
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

    /// A running pod's networks could not be changed as it asks; `action` is where it ended.
    pub fn unchanged(&self, pod: &PodIdentity, action: &str, why: &str) {
        self.tell(pod, EventText::new(EventType::Warning, EventReason::NetworkChangeFailed, action, why));
    }

    /// A pod runs without the networks it selects.
    pub fn unattached(&self, pod: &Pod) {
        let why = format!(
            "runs without the networks it selects: its runtime made it without weft. Make the pod anew; if that does not \
             help, `weft doctor` on {} says why",
            pod.node_name
        );
        let told = EventText::new(EventType::Warning, EventReason::NetworksMissing, "Look", &why);
        self.tell(&identity(pod), told);
    }

    /// A pod cannot have what it wants of Neutron.
    pub fn troubled(&self, pod: &Pod, reason: EventReason, why: &str) {
        let told = EventText::new(EventType::Warning, reason, "AllocatePorts", why);
        self.tell(&identity(pod), told);
    }

    /// A sandbox was attached.
    pub fn attached(&self, entry: &Entry) {
        of(entry).into_iter().for_each(|told| self.tell(&entry.plan.pod, told));
    }
}

/// Reason of an Event, as the API shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventReason {
    /// An interface was attached.
    AddedInterface,
    /// A pod's network annotation was invalid and was ignored.
    AnnotationIgnored,
    /// No plugin declares the capability that a request needs.
    CapabilityMissing,
    /// An interface is not as it was attached.
    InterfaceDrifted,
    /// A drifted interface is as it was attached again.
    InterfaceRestored,
    /// The networks of a Service were refused.
    NetworkAddressesRefused,
    /// The networks of a running pod could not be changed.
    NetworkChangeFailed,
    /// A network cannot be attached as requested.
    NetworkRefused,
    /// A pod runs without the networks it selects.
    NetworksMissing,
    /// A quota of Neutron is exhausted.
    NeutronQuota,
    /// Neutron rejects a request.
    NeutronRefused,
    /// Neutron does not answer.
    NeutronUnreachable,
    /// A pod selects a network that does not exist.
    NoNetworkFound,
    /// The port of the node is not a trunk.
    NodeNotTrunk,
    /// Neutron has no port of the node.
    NodeUnknown,
    /// Neutron did not bind a port.
    PortNotBound,
    /// A legal request is probably not the intended one.
    Questionable,
    /// An interface was detached.
    RemovedInterface,
    /// No component reads a key.
    UnknownKey,
    /// The ports of a pod could not be written.
    VifNotWritten,
    /// The ports written for a pod cannot be read.
    VifUnreadable,
}

impl EventReason {
    /// Returns the reason of a refused plan.
    fn of_refusal(rule: Rule) -> EventReason {
        match rule {
            Rule::UnknownNetwork | Rule::ConfigNotFound => EventReason::NoNetworkFound,
            _ => EventReason::NetworkRefused,
        }
    }

    /// Returns the reason of a warning in a plan.
    fn of_warning(kind: Reason) -> EventReason {
        match kind {
            Reason::AnnotationIgnored => EventReason::AnnotationIgnored,
            Reason::UnknownKey => EventReason::UnknownKey,
            Reason::CapabilityMissing => EventReason::CapabilityMissing,
            Reason::Questionable => EventReason::Questionable,
        }
    }

    /// Returns the reason as the API shows it.
    pub fn as_str(self) -> &'static str {
        match self {
            EventReason::AddedInterface => "AddedInterface",
            EventReason::AnnotationIgnored => "AnnotationIgnored",
            EventReason::CapabilityMissing => "CapabilityMissing",
            EventReason::InterfaceDrifted => "InterfaceDrifted",
            EventReason::InterfaceRestored => "InterfaceRestored",
            EventReason::NetworkAddressesRefused => "NetworkAddressesRefused",
            EventReason::NetworkChangeFailed => "NetworkChangeFailed",
            EventReason::NetworkRefused => "NetworkRefused",
            EventReason::NetworksMissing => "NetworksMissing",
            EventReason::NeutronQuota => "NeutronQuota",
            EventReason::NeutronRefused => "NeutronRefused",
            EventReason::NeutronUnreachable => "NeutronUnreachable",
            EventReason::NoNetworkFound => "NoNetworkFound",
            EventReason::NodeNotTrunk => "NodeNotTrunk",
            EventReason::NodeUnknown => "NodeUnknown",
            EventReason::PortNotBound => "PortNotBound",
            EventReason::Questionable => "Questionable",
            EventReason::RemovedInterface => "RemovedInterface",
            EventReason::UnknownKey => "UnknownKey",
            EventReason::VifNotWritten => "VifNotWritten",
            EventReason::VifUnreadable => "VifUnreadable",
        }
    }
}

/// The fault with the name of its rule at the end: `weft lint --explain` takes that name.
fn with_rule(fault: &Fault) -> String {
    format!("{fault} [{}]", fault.rule)
}

fn identity(Pod { namespace, name, uid, .. }: &Pod) -> PodIdentity {
    PodIdentity { namespace: namespace.clone(), name: name.clone(), uid: uid.clone() }
}

impl EventText {
    /// One with a bounded text.
    pub fn new(kind: EventType, reason: EventReason, action: &str, note: &str) -> EventText {
        EventText { kind, reason, action: told_apart(action, note), note: clip(note), at: Instant::now() }
    }

    fn added(interface: &str, ips: &[String], network: &str) -> EventText {
        let note = format!("Add {interface} [{}] from {network}", ips.join(" "));
        EventText::new(EventType::Normal, EventReason::AddedInterface, &format!("Attach {interface}"), &note)
    }

    /// Tells it of this object.
    pub async fn publish(self, recorder: &Recorder, about: &ObjectReference) {
        let EventText { kind, reason, action, note, at: _ } = self;
        let event = Event {
            type_: kind,
            reason: reason.as_str().to_owned(),
            note: Some(note),
            action,
            secondary: None,
        };
        if let Err(error) = recorder.publish(&event, about).await {
            debug!(%error, reason = reason.as_str(), "an Event could not be told");
        }
    }
}

/// Tells what there is to tell of a sandbox that was attached, and waits until it is told.
pub async fn tell(client: Client, entry: &Entry) {
    let recorder = recorder(client, None);
    for told in of(entry) {
        told.publish(&recorder, &reference(&entry.plan.pod)).await;
    }
}

/// Who tells, in our name.
pub fn recorder(client: Client, instance: Option<String>) -> Recorder {
    Recorder::new(client, Reporter { controller: CONTROLLER.to_owned(), instance })
}

/// An Event for each interface, and one for each warning.
fn of(entry: &Entry) -> Vec<EventText> {
    let interfaces = entry
        .network_status
        .iter()
        .map(|status| EventText::added(&status.interface, &status.ips, &status.name));
    let warnings = entry.plan.warnings.iter().map(|warning| {
        let reason = EventReason::of_warning(warning.event);
        EventText::new(EventType::Warning, reason, "Plan", &with_rule(&warning.fault))
    });
    interfaces.chain(warnings).collect()
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

/// An action for this text: the API knows an Event by reason and action, and would show an old text for a new one.
///
/// Identifiers, of a request or of what was made anew, do not make it another text: it would be one each time it is tried.
pub fn told_apart(action: &str, note: &str) -> String {
    let is_identifier =
        |word: &str| word.len() >= 32 && word.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    let mut hasher = DefaultHasher::new();
    note.split(|letter: char| letter != '-' && !letter.is_ascii_alphanumeric())
        .filter(|word| !is_identifier(word.strip_prefix("req-").unwrap_or(word)))
        .for_each(|word| word.hash(&mut hasher));
    format!("{action} {:08x}", hasher.finish() >> 32)
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
    use super::*;

    #[test]
    fn event_note_has_no_control_characters() {
        assert_eq!(clip("interface \"a\u{1b}[2J\u{9b}\u{202e}b\"\n"), "interface \"a [2J  b\" ");
        assert!(clip(&"\u{202e}".repeat(NOTE_MAX)).len() <= NOTE_MAX);
    }

    #[test]
    fn another_text_is_another_action_and_another_try_is_not() {
        let told = |note| told_apart("AllocatePorts", note);
        let away = "GET /v2.0/ports: 503 (req-2c1a3f60-9a52-4b0c-8e5a-1d6a3b9f7c11)";
        assert_eq!(told(away), told("GET /v2.0/ports: 503 (req-77f0a1de-0000-4b0c-8e5a-1d6a3b9f7c11)"));
        assert_ne!(told(away), told("GET /v2.0/ports: 502 (req-2c1a3f60-9a52-4b0c-8e5a-1d6a3b9f7c11)"));
        assert_ne!(told("Add eth0 [10.1.0.2] from home"), told("Add eth0 [10.1.0.3] from home"));
        assert_ne!(told("Add eth0 [fd00::2] from home"), told("Add eth0 [fd00::3] from home"));
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
