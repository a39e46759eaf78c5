//! A pod gets its ports, however long it takes.
//!
//! Rules: ports that are had and not written are written, whatever kept them from it before; a pod is gone when the API says
//! so of the pod, and of nothing else.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use npwg::metadata::Definition;
use tokio::sync::watch::Receiver;
use tokio::time::sleep;
use tracing::{info, warn};

use super::{Case, PAUSES, PortReconciler, Stage, Written, jittered, selection};
use crate::neutron::pod_subject::PodSubject;
use crate::neutron::port_allocator::Trouble;
use crate::neutron::port_request::{self, PortRequest, RequestError};
use crate::neutron::vif_writer;
use crate::neutron::vif_writer::Unwritten;
use kube_support::events::EventReason;
use kube_support::kuryr::VifLocation;
use kube_support::resources::Key;

/// What a pod wishes for.
pub(super) struct Wishes {
    pub(super) wishes: Vec<PortRequest>,
    /// Why an annotation of it is as good as none.
    pub(super) ignored: Vec<String>,
}

/// What came of a try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tried {
    /// The pod has what it wants.
    Done,
    /// There is no pod any more, or what the API has of it is another: the next look at the pods shows it.
    Gone,
}

impl PortReconciler {
    pub(super) async fn work(self: Arc<PortReconciler>, uid: String) {
        let mut pause = PAUSES.0;
        let mut told: Option<Trouble> = None;
        let mut unsure = false;
        loop {
            // What changes while it is tried is not missed.
            let definitions = self.definitions.changes();
            let Some(mut case) = self.cases().get(&uid).cloned() else { return };
            if case.stage == Stage::Leaving {
                return self.release(uid).await;
            }
            let outcome = self.attempt(&mut case, unsure).await;
            let Some(stage) = self.settle(&uid, &case, &outcome) else { return };
            if stage == Stage::Leaving {
                return self.release(uid).await;
            }
            let subject = case.subject;
            match outcome {
                Ok(Tried::Done) => {
                    self.count("allocated");
                    self.waiting.notify_one();
                    return;
                }
                Ok(Tried::Gone) => unsure = true,
                Err(trouble) => {
                    warn!(
                        pod = subject.pod.name,
                        namespace = subject.pod.namespace,
                        reason = trouble.reason.as_str(),
                        "{}",
                        trouble.why
                    );
                    self.count("failed");
                    unsure = true;
                    if told.as_ref() != Some(&trouble) {
                        self.events.troubled(&subject.pod, trouble.reason, &trouble.why);
                    }
                    // What only somebody's change can heal is not asked for every second.
                    let first = if trouble.passes { PAUSES.0 } else { PAUSES.0 * 4 };
                    pause = pause.max(first);
                    told = Some(trouble);
                }
            }
            self.rest(&subject, pause, definitions).await;
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    /// Notes what came of a try: what was made is known even if the pod went away meanwhile. The case's stage then.
    fn settle(&self, uid: &str, tried: &Case, outcome: &Result<Tried, Trouble>) -> Option<Stage> {
        let mut cases = self.cases();
        let case = cases.get_mut(uid)?;
        case.state = tried.state.clone();
        case.written = tried.written.clone();
        case.wishes = tried.wishes.clone();
        case.looked = tried.looked.clone();
        case.ignored = tried.ignored.clone();
        if case.stage == Stage::Working && matches!(outcome, Ok(Tried::Done)) {
            case.stage = if case.state.is_active() { Stage::Active } else { Stage::Waiting };
            case.since = Instant::now();
        }
        Some(case.stage)
    }

    /// Waits until it is worth another try: for a while, or until a definition changes, or this pod leaves or selects
    /// something else.
    async fn rest(&self, tried: &PodSubject, pause: Duration, mut definitions: Receiver<u64>) {
        let selected = selection(&tried.pod);
        let turned = |case: &Case| case.stage == Stage::Leaving || selection(&case.subject.pod) != selected;
        let turned = async {
            loop {
                let mut told = pin!(self.turned.notified());
                told.as_mut().enable();
                if self.cases().get(&tried.pod.uid).is_none_or(turned) {
                    return;
                }
                told.await;
            }
        };
        tokio::select! {
            () = sleep(jittered(pause)) => {}
            _ = definitions.changed() => {}
            () = turned => {}
        }
    }

    async fn attempt(&self, case: &mut Case, unsure: bool) -> Result<Tried, Trouble> {
        let subject = Arc::clone(&case.subject);
        let pod = &subject.pod;
        let adopts = self.place == VifLocation::Kuryrport && case.state.is_empty();
        if adopts || unsure {
            let read = kube_support::kuryr::read(self.place, &self.client, pod).await;
            let read = read.map_err(|unread| Trouble {
                reason: EventReason::VifUnreadable,
                why: unread.to_string(),
                passes: true,
            })?;
            // What could not be written may have been, and only the answer was lost.
            if let Some(state) = read {
                if adopts {
                    case.state = state.clone();
                }
                case.written = Some(Written { state, object: subject.object.clone() });
            }
            if adopts && !subject.pending {
                return Ok(Tried::Done);
            }
        }
        // One that runs does so with what it has: this is written, whatever its definitions say by now.
        let wishes = if case.may_get_ports() { self.note_wishes(case)? } else { Vec::new() };
        if wishes.is_empty() && case.is_written() {
            return Ok(Tried::Done);
        }
        // The semaphore is never closed.
        let _turn = self.turns.acquire().await.ok();
        if case.may_get_ports() {
            self.fulfil(case, &wishes, unsure).await?;
        }
        if case.is_written() {
            return Ok(Tried::Done);
        }
        let ports = case.state.vifs().count();
        match vif_writer::write(self.place, &self.client, &subject, &case.state).await {
            Ok(()) => {
                info!(pod = pod.name, namespace = pod.namespace, ports, "allocated");
                case.note_written();
                Ok(Tried::Done)
            }
            Err(Unwritten::Gone) => Ok(Tried::Gone),
            Err(Unwritten::Failed(why)) => {
                Err(Trouble { reason: EventReason::VifNotWritten, why: why.to_string(), passes: true })
            }
        }
    }

    /// What a pod wishes for now, noted in its case.
    fn note_wishes(&self, case: &mut Case) -> Result<Vec<PortRequest>, Trouble> {
        let subject = Arc::clone(&case.subject);
        let looked = self.looked(&subject);
        let Wishes { wishes, ignored } = self.wishes(&subject)?;
        for why in ignored.iter().filter(|why| !case.ignored.contains(why)) {
            self.events.troubled(&subject.pod, EventReason::AnnotationIgnored, why);
        }
        (case.wishes, case.looked, case.ignored) = (Some(wishes.clone()), Some(looked), ignored);
        Ok(wishes)
    }

    /// Gets the ports for a pod's wishes, with what may have been made for it before.
    async fn fulfil(&self, case: &mut Case, wishes: &[PortRequest], unsure: bool) -> Result<(), Trouble> {
        let subject = Arc::clone(&case.subject);
        let uid = &subject.pod.uid;
        let mut found =
            self.found.lock().unwrap_or_else(PoisonError::into_inner).remove(uid).unwrap_or_default();
        if unsure && found.is_empty() {
            found = self.allocator.of_pod(uid).await?;
        }
        found.retain(|port| case.state.vifs().all(|(_, vif)| vif.id != port.id));
        let written = case.written.as_ref().map(|written| &written.state).cloned().unwrap_or_default();
        self.allocator.fulfil(&subject, wishes, &found, (&mut case.state, &written)).await
    }

    pub(super) fn wishes(&self, subject: &PodSubject) -> Result<Wishes, Trouble> {
        let rules = &self.allocator.rules;
        let refused = |error: RequestError| Trouble::new(EventReason::NetworkRefused, error.to_string());
        let selected = port_request::selected(&subject.pod, rules).map_err(refused)?;
        let mut definitions = BTreeMap::new();
        for network in selected.networks() {
            let key: Key = (network.namespace.clone(), network.name.clone());
            match (self.definitions.find(&key), self.definitions.waited()) {
                (Some(found), _) => drop(definitions.insert(network.clone(), Definition::clone(&found))),
                // Whether it is there is not known yet.
                (None, Some(waited)) => {
                    let why = format!("{network}: waiting for {waited}");
                    return Err(Trouble { reason: EventReason::NetworkRefused, why, passes: true });
                }
                (None, None) => {}
            }
        }
        let wishes = port_request::wishes(&selected, &definitions, rules).map_err(refused)?;
        Ok(Wishes { wishes, ignored: selected.ignored })
    }
}

#[cfg(test)]
mod tests {
    use neutron::pod_state::PodState;

    use super::*;

    #[test]
    fn what_a_running_pod_has_is_written_on_what_was_made_anew_without_a_look_at_its_wishes() {
        let golden = include_str!("../../../../neutron/testdata/podstate-nochanges.json");
        let state = PodState::from_annotation(golden).unwrap();
        let subject = |object: &str, pending: bool| {
            Arc::new(PodSubject { object: object.to_owned(), pending, ..PodSubject::default() })
        };
        let mut case = Case::new(&subject("first", false), state, Stage::Active);
        assert!(case.is_written() && !case.is_written_elsewhere() && !case.may_get_ports());
        case.subject = subject("second", false);
        assert!(!case.is_written() && case.is_written_elsewhere() && !case.may_get_ports());
        case.subject = subject("second", true);
        assert!(case.may_get_ports());
        let none = Case::new(&subject("first", false), PodState::default(), Stage::Working);
        assert!(none.may_get_ports());
    }
}
