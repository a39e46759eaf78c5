//! Allocation for a pod's ports, repeated until it succeeds.
//!
//! - Ports that a pod has, and that are not written on it, are written, whatever prevented it before.
//! - A pod counts as deleted only if the API reports that about the pod itself.

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
use crate::neutron::port_allocator::PortFailure;
use crate::neutron::port_request::{self, PortRequest, RequestError};
use crate::neutron::vif_writer;
use crate::neutron::vif_writer::{Unwritten, WriteError};
use kube_support::events::EventReason;
use kube_support::kuryr::VifLocation;
use kube_support::resources::Key;

/// Ports that a pod requests.
pub(super) struct PortRequests {
    pub(super) requests: Vec<PortRequest>,
    /// Faults for which an annotation is ignored.
    pub(super) ignored: Vec<String>,
}

/// Outcome of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tried {
    /// The pod has the ports that it requests.
    Done,
    /// The pod is deleted, or the API object was recreated. The next reconciliation handles that.
    Gone,
}

impl PortReconciler {
    pub(super) async fn work(self: Arc<PortReconciler>, uid: String) {
        let mut pause = PAUSES.0;
        let mut reported: Option<PortFailure> = None;
        let mut may_have_ports = false;
        loop {
            // Subscribed before the attempt, so that no change is missed.
            let definitions = self.definitions.changes();
            let Some(mut case) = self.cases().get(&uid).cloned() else { return };
            if case.stage == Stage::Releasing {
                return self.release(uid).await;
            }
            let outcome = self.attempt(&mut case, may_have_ports).await;
            let Some(stage) = self.settle(&uid, &case, &outcome) else { return };
            if stage == Stage::Releasing {
                return self.release(uid).await;
            }
            let subject = case.subject;
            match outcome {
                Ok(Tried::Done) => {
                    self.count("allocated");
                    self.waiting.notify_one();
                    return;
                }
                Ok(Tried::Gone) => may_have_ports = true,
                Err(failure) => {
                    warn!(
                        pod = subject.pod.name,
                        namespace = subject.pod.namespace,
                        reason = failure.reason.as_str(),
                        error = %failure.why,
                        "failed to provide Neutron ports"
                    );
                    self.count("failed");
                    may_have_ports = true;
                    if reported.as_ref() != Some(&failure) {
                        self.events.ports_failed(&subject.pod, failure.reason, &failure.why);
                    }
                    // A failure that needs a change elsewhere is not retried every second.
                    let first = if failure.is_transient { PAUSES.0 } else { PAUSES.0 * 4 };
                    pause = pause.max(first);
                    reported = Some(failure);
                }
            }
            self.pause(&subject, pause, definitions).await;
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    /// Stores how an attempt ended and returns the stage. Created ports are stored even if the pod was
    /// deleted meanwhile.
    fn settle(&self, uid: &str, tried: &Case, outcome: &Result<Tried, PortFailure>) -> Option<Stage> {
        let mut cases = self.cases();
        let case = cases.get_mut(uid)?;
        case.state = tried.state.clone();
        case.written = tried.written.clone();
        case.requests = tried.requests.clone();
        case.inputs = tried.inputs.clone();
        case.ignored = tried.ignored.clone();
        if case.stage == Stage::Allocating && matches!(outcome, Ok(Tried::Done)) {
            case.stage = if case.state.is_active() { Stage::Active } else { Stage::Waiting };
            case.since = Instant::now();
        }
        Some(case.stage)
    }

    /// Waits until another attempt is useful: for the pause, or until a definition changes, or the pod is deleted or selects
    /// other networks.
    async fn pause(&self, tried: &PodSubject, pause: Duration, mut definitions: Receiver<u64>) {
        let selected = selection(&tried.pod);
        let changed =
            |case: &Case| case.stage == Stage::Releasing || selection(&case.subject.pod) != selected;
        let changed = async {
            loop {
                let mut notified = pin!(self.retry.notified());
                notified.as_mut().enable();
                if self.cases().get(&tried.pod.uid).is_none_or(changed) {
                    return;
                }
                notified.await;
            }
        };
        tokio::select! {
            () = sleep(jittered(pause)) => {}
            _ = definitions.changed() => {}
            () = changed => {}
        }
    }

    async fn attempt(&self, case: &mut Case, may_have_ports: bool) -> Result<Tried, PortFailure> {
        let subject = Arc::clone(&case.subject);
        let pod = &subject.pod;
        let adopts = self.location == VifLocation::Kuryrport && case.state.is_empty();
        if adopts || may_have_ports {
            let read = kube_support::kuryr::read(self.location, &self.client, pod).await;
            let read = read.map_err(|unread| PortFailure {
                reason: EventReason::VifUnreadable,
                why: unread.to_string(),
                is_transient: true,
            })?;
            // A failed write may have succeeded, if only its response was lost.
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
        // A running pod keeps its ports: they are written, whatever its definitions request now.
        let requests = if case.may_get_ports() { self.update_requests(case)? } else { Vec::new() };
        if requests.is_empty() && case.is_written() {
            return Ok(Tried::Done);
        }
        // The semaphore is never closed.
        let _slot = self.slots.acquire().await.ok();
        if case.may_get_ports() {
            self.fulfil(case, &requests, may_have_ports).await?;
        }
        if case.is_written() {
            return Ok(Tried::Done);
        }
        let ports = case.state.vifs().count();
        match vif_writer::write(self.location, &self.client, &subject, &case.state).await {
            Ok(()) => {
                self.work_progress.answered();
                info!(pod = pod.name, namespace = pod.namespace, ports, "allocated ports of pod");
                case.note_written();
                Ok(Tried::Done)
            }
            Err(Unwritten::Gone) => Ok(Tried::Gone),
            Err(Unwritten::Failed(why)) => {
                if let WriteError::GetPod(error) | WriteError::Annotate(error) = &why {
                    self.work_progress.failed(error);
                }
                Err(PortFailure {
                    reason: EventReason::VifNotWritten,
                    why: why.to_string(),
                    is_transient: true,
                })
            }
        }
    }

    /// Evaluates a pod's requests and stores them in the case.
    fn update_requests(&self, case: &mut Case) -> Result<Vec<PortRequest>, PortFailure> {
        let subject = Arc::clone(&case.subject);
        let inputs = self.inputs(&subject);
        let PortRequests { requests, ignored } = self.requests(&subject)?;
        for why in ignored.iter().filter(|why| !case.ignored.contains(why)) {
            self.events.ports_failed(&subject.pod, EventReason::AnnotationIgnored, why);
        }
        (case.requests, case.inputs, case.ignored) = (Some(requests.clone()), Some(inputs), ignored);
        Ok(requests)
    }

    /// Provides the requested ports. Ports that may have been created for the pod before are adopted.
    async fn fulfil(
        &self,
        case: &mut Case,
        requests: &[PortRequest],
        may_have_ports: bool,
    ) -> Result<(), PortFailure> {
        let subject = Arc::clone(&case.subject);
        let uid = &subject.pod.uid;
        let mut found =
            self.found.lock().unwrap_or_else(PoisonError::into_inner).remove(uid).unwrap_or_default();
        if may_have_ports && found.is_empty() {
            found = self.allocator.of_pod(uid).await?;
        }
        found.retain(|port| case.state.vifs().all(|(_, vif)| vif.id != port.id));
        let written = case.written.as_ref().map(|written| &written.state).cloned().unwrap_or_default();
        self.allocator.fulfil(&subject, requests, &found, (&mut case.state, &written)).await
    }

    pub(super) fn requests(&self, subject: &PodSubject) -> Result<PortRequests, PortFailure> {
        let rules = &self.allocator.rules;
        let refused = |error: RequestError| PortFailure::new(EventReason::NetworkRefused, error.to_string());
        let selected = port_request::selected(&subject.pod, rules).map_err(refused)?;
        let mut definitions = BTreeMap::new();
        for network in selected.networks() {
            let key: Key = (network.namespace.clone(), network.name.clone());
            match (self.definitions.find(&key), self.definitions.waited()) {
                (Some(found), _) => drop(definitions.insert(network.clone(), Definition::clone(&found))),
                // The definitions are not read yet.
                (None, Some(waited)) => {
                    let why = format!("{network}: waiting for {waited}");
                    return Err(PortFailure { reason: EventReason::NetworkRefused, why, is_transient: true });
                }
                (None, None) => {}
            }
        }
        let requests = port_request::requests(&selected, &definitions, rules).map_err(refused)?;
        Ok(PortRequests { requests, ignored: selected.ignored })
    }
}

#[cfg(test)]
mod tests {
    use neutron::pod_state::PodState;

    use super::*;

    #[test]
    fn running_static_pod_keeps_its_ports_when_recreated_in_the_api() {
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
        let none = Case::new(&subject("first", false), PodState::default(), Stage::Allocating);
        assert!(none.may_get_ports());
    }
}
