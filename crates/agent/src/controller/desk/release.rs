//! The end of a case: a pod that is gone or has ended gives its ports up. Then nothing of Kuryr's holds it any more.

use std::collections::BTreeSet;
use std::sync::Arc;

use neutron::pod_state::PodState;
use tokio::time::sleep;
use tracing::{info, warn};

use super::{Case, Desk, PAUSES, Stage, jittered};
use crate::controller::store;

impl Desk {
    pub(super) async fn release(self: Arc<Desk>, uid: String) {
        let mut pause = PAUSES.0;
        loop {
            let Some(case) = self.cases().get(&uid).cloned() else { return };
            let turn = self.turns.acquire().await.ok();
            let outcome = match self.release_ports(&case).await {
                Ok(()) => store::let_go(self.place, &self.client, &case.subject).await,
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

    async fn release_ports(&self, case: &Case) -> Result<(), String> {
        let Case { subject, state, .. } = case;
        let uid = &subject.pod.uid;
        let mut state = state.clone();
        if state.is_empty() && subject.held {
            // Kuryr waited for its release, and so for us, perhaps before we were there.
            state = store::read(self.place, &self.client, &subject.pod).await?.unwrap_or_default();
        }
        let mut failed = None;
        if state.is_empty() {
            // Was something made of which we were not told?
            for port in self.allocator.of_pod(uid).await.map_err(|error| error.to_string())? {
                failed = self.allocator.remove(&port).await.err().or(failed);
            }
        }
        let others = self.named_by_others(uid);
        for (_, vif) in state.vifs().filter(|(_, vif)| !vif.preserve_on_delete) {
            failed = self.allocator.release(uid, vif, subject.host, &others).await.err().or(failed);
        }
        failed.map_or(Ok(()), |error| Err(error.to_string()))
    }

    /// The ports that other pods have, or say that they have.
    fn named_by_others(&self, uid: &str) -> BTreeSet<String> {
        let cases = self.cases();
        let others = cases.iter().filter(|(other, case)| *other != uid && case.stage != Stage::Left);
        others.flat_map(|(_, case)| case.state.vifs().map(|(_, vif)| vif.id.clone())).collect()
    }
}
