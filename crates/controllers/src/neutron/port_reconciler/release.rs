//! The end of a case: a pod that is gone or has ended gives its ports up. Then nothing of Kuryr's holds it any more.

use std::collections::BTreeSet;
use std::sync::Arc;

use kube_support::kuryr::Unread;
use neutron::pod_state::PodState;
use thiserror::Error;
use tokio::time::sleep;
use tracing::{info, warn};

use super::{Case, PAUSES, PortReconciler, Stage, jittered};
use crate::neutron::vif_writer::{self, WriteError};

/// Failure of the end of a case.
#[derive(Debug, Error)]
enum ReleaseError {
    /// The ports of the pod cannot be read.
    #[error("{0}")]
    Read(#[from] Unread),
    /// A port was not released.
    #[error("{0}")]
    Ports(#[from] neutron::Error),
    /// The finalizers of the pod or of its KuryrPort were not removed.
    #[error("{0}")]
    LetGo(#[from] WriteError),
}

impl PortReconciler {
    pub(super) async fn release(self: Arc<PortReconciler>, uid: String) {
        let mut pause = PAUSES.0;
        let mut released = BTreeSet::new();
        loop {
            let Some(case) = self.cases().get(&uid).cloned() else { return };
            let turn = self.turns.acquire().await.ok();
            let outcome = match self.release_ports(&case, &mut released).await {
                Ok(()) => {
                    vif_writer::let_go(self.place, &self.client, &case.subject).await.map_err(Into::into)
                }
                failed => failed,
            };
            drop(turn);
            let Err(error) = outcome else { break };
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

    /// Releases a pod's ports but for those that have been `released`; the others are added to these.
    async fn release_ports(&self, case: &Case, released: &mut BTreeSet<String>) -> Result<(), ReleaseError> {
        let Case { subject, state, .. } = case;
        let uid = &subject.pod.uid;
        let mut state = state.clone();
        if state.is_empty() && subject.held {
            // Kuryr waited for its release, and so for us, perhaps before we were there.
            state =
                kube_support::kuryr::read(self.place, &self.client, &subject.pod).await?.unwrap_or_default();
        }
        let mut failed = None;
        if state.is_empty() {
            // Was something made of which we were not told?
            for port in self.allocator.of_pod(uid).await? {
                failed = self.allocator.remove(&port).await.err().or(failed);
            }
        }
        let left = state.vifs().map(|(_, vif)| vif);
        let left: Vec<_> =
            left.filter(|vif| !vif.preserve_on_delete && !released.contains(&vif.id)).collect();
        let others = self.named_by_others(uid, &left.iter().map(|vif| vif.id.as_str()).collect());
        for vif in left {
            match self.allocator.release(uid, vif, subject.host, &others).await {
                Ok(()) => drop(released.insert(vif.id.clone())),
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Those of these ports that other pods have, or say that they have.
    fn named_by_others(&self, uid: &str, ports: &BTreeSet<&str>) -> BTreeSet<String> {
        let cases = self.cases();
        let others = cases.iter().filter(|(other, case)| *other != uid && case.stage != Stage::Left);
        let named = others.flat_map(|(_, case)| case.state.vifs()).map(|(_, vif)| &vif.id);
        named.filter(|id| ports.contains(id.as_str())).cloned().collect()
    }
}
