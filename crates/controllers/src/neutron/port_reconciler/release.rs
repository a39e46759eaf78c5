//! End of a case: releases the ports when a pod is deleted or has ended, and removes Kuryr's finalizers.

use std::collections::BTreeSet;
use std::sync::Arc;

use kube_support::kuryr::Unread;
use neutron::pod_state::PodState;
use thiserror::Error;
use tokio::time::sleep;
use tracing::{info, warn};

use super::{Case, PAUSES, PortReconciler, Stage, jittered};
use crate::neutron::vif_writer::{self, WriteError};

/// Failure to end a case.
#[derive(Debug, Error)]
enum ReleaseError {
    /// The pod's ports cannot be read.
    #[error("{0}")]
    Read(#[from] Unread),
    /// A port was not released.
    #[error("{0}")]
    Ports(#[from] neutron::Error),
    /// The finalizers on the pod or the KuryrPort could not be removed.
    #[error("{0}")]
    Finalizers(#[from] WriteError),
}

impl PortReconciler {
    pub(super) async fn release(self: Arc<PortReconciler>, uid: String) {
        let mut pause = PAUSES.0;
        let mut released = BTreeSet::new();
        loop {
            let Some(case) = self.cases().get(&uid).cloned() else { return };
            let slot = self.slots.acquire().await.ok();
            let outcome = match self.release_ports(&case, &mut released).await {
                Ok(()) => vif_writer::remove_finalizers(self.location, &self.client, &case.subject)
                    .await
                    .map_err(Into::into),
                failed => failed,
            };
            drop(slot);
            let Err(error) = outcome else { break };
            warn!(%error, pod = case.subject.pod.name, "failed to release ports; will try again");
            sleep(jittered(pause)).await;
            pause = (pause * 2).min(PAUSES.1 / 4);
        }
        self.count("released");
        let mut cases = self.cases();
        if let Some(case) = cases.get_mut(&uid) {
            info!(
                pod = case.subject.pod.name,
                namespace = case.subject.pod.namespace,
                "released ports of pod"
            );
            // The case stays while the ended pod exists, so that it does not begin again.
            case.stage = Stage::Done;
            case.state = PodState::default();
        }
    }

    /// Releases a pod's ports except for those in `released`, and adds the released ones to it.
    async fn release_ports(&self, case: &Case, released: &mut BTreeSet<String>) -> Result<(), ReleaseError> {
        let Case { subject, state, .. } = case;
        let uid = &subject.pod.uid;
        let mut state = state.clone();
        if state.is_empty() && subject.has_finalizer {
            // The pod may have waited for its release before this process started.
            state = kube_support::kuryr::read(self.location, &self.client, &subject.pod)
                .await?
                .unwrap_or_default();
        }
        let mut failed = None;
        if state.is_empty() {
            // A port may have been created by a request whose response was lost.
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

    /// Returns which of these ports other pods have or name.
    fn named_by_others(&self, uid: &str, ports: &BTreeSet<&str>) -> BTreeSet<String> {
        let cases = self.cases();
        let others = cases.iter().filter(|(other, case)| *other != uid && case.stage != Stage::Done);
        let named = others.flat_map(|(_, case)| case.state.vifs()).map(|(_, vif)| &vif.id);
        named.filter(|id| ports.contains(id.as_str())).cloned().collect()
    }
}
