//! What a pod's owner is told: Events on the pod.
//!
//! Rules: an Event is told once, in the background, and never holds anything up; its text is bounded; what is
//! repeated is counted by the API's own series, which knows an Event by reason and action and not by its text.
//!
//! Source: Events v1; reasons `AddedInterface` and `NoNetworkFound` as Multus has them.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use npwg::journal::Entry;
use npwg::metadata::Pod;
use npwg::plan::PodIdentity;
use npwg::refusal::{Reason, Refusal};
use tokio::sync::mpsc;
use tracing::debug;

/// Name of who tells.
const CONTROLLER: &str = "weft";
/// Longest text the API takes, in bytes.
const NOTE_MAX: usize = 1024;
/// Most Events that wait to be told; more are dropped.
const WAITING_MAX: usize = 1024;
/// The requirement that a network which does not exist breaks.
const NO_SUCH_NETWORK: &str = "NPWG1-3.4.1-rule4";

/// Where Events go.
#[derive(Clone, Debug)]
pub(crate) struct Events(mpsc::Sender<(Told, PodIdentity)>);

/// An Event on its way.
#[derive(Debug)]
struct Told {
    kind: EventType,
    reason: &'static str,
    action: String,
    note: String,
}

impl Events {
    /// Tells what comes, one after the other.
    pub(crate) fn new(client: Client, node: &str) -> Events {
        let (sender, mut receiver) = mpsc::channel::<(Told, PodIdentity)>(WAITING_MAX);
        let reporter = Reporter { controller: CONTROLLER.to_owned(), instance: Some(node.to_owned()) };
        let recorder = Recorder::new(client, reporter);
        tokio::spawn(async move {
            while let Some((Told { kind, reason, action, note }, pod)) = receiver.recv().await {
                let event = Event {
                    type_: kind,
                    reason: reason.to_owned(),
                    note: Some(note),
                    action,
                    secondary: None,
                };
                if let Err(error) = recorder.publish(&event, &reference(&pod)).await {
                    debug!(%error, reason, "an Event could not be told");
                }
            }
        });
        Events(sender)
    }

    fn tell(&self, pod: &PodIdentity, kind: EventType, reason: &'static str, action: String, note: &str) {
        if !pod.name.is_empty() {
            // A full queue drops it: it is for people, not for programs.
            let _ = self.0.try_send((Told { kind, reason, action, note: clip(note) }, pod.clone()));
        }
    }

    /// A plan was refused.
    pub(crate) fn refused(&self, pod: &Pod, refusal: &Refusal) {
        let Pod { namespace, name, uid, .. } = pod.clone();
        let reason = match refusal.fault().requirement.as_str() {
            NO_SUCH_NETWORK => "NoNetworkFound",
            _ => "NetworkRefused",
        };
        let pod = PodIdentity { namespace, name, uid };
        self.tell(&pod, EventType::Warning, reason, "Plan".to_owned(), &refusal.to_string());
    }

    /// A sandbox was attached: an Event for each interface, and one for each warning.
    pub(crate) fn attached(&self, entry: &Entry) {
        for status in &entry.network_status {
            let addresses = status.ips.join(" ");
            let note = format!("Add {} [{addresses}] from {}", status.interface, status.name);
            self.tell(
                &entry.plan.pod,
                EventType::Normal,
                "AddedInterface",
                format!("Attach {}", status.interface),
                &note,
            );
        }
        for warning in &entry.plan.warnings {
            let reason = match warning.event {
                Reason::AnnotationIgnored => "AnnotationIgnored",
                Reason::UnknownKey => "UnknownKey",
                Reason::NameMismatch => "NameMismatch",
                Reason::CapabilityMissing => "CapabilityMissing",
                Reason::FileUnreadable => "FileUnreadable",
                Reason::Questionable => "Questionable",
            };
            self.tell(
                &entry.plan.pod,
                EventType::Warning,
                reason,
                "Plan".to_owned(),
                &warning.fault.to_string(),
            );
        }
    }
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

/// The text, cut to what the API takes.
fn clip(text: &str) -> String {
    let mut end = text.len().min(NOTE_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}
