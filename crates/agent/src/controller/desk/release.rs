//! The end of a case: a pod that is gone or has ended gives its ports up.

use std::collections::BTreeSet;
use std::sync::Arc;

use neutron::pod_state::PodState;
use tokio::time::sleep;
use tracing::{info, warn};

use super::{Desk, PAUSES, Stage, jittered};

impl Desk {
    pub(super) async fn release(self: Arc<Desk>, uid: String) {
        let mut pause = PAUSES.0;
        loop {
            let Some(case) = self.cases().get(&uid).cloned() else { return };
            let turn = self.turns.acquire().await.ok();
            let mut failed = None;
            let made = match case.state.is_empty() {
                false => Ok(Vec::new()),
                // Was something made of which we were not told?
                true => self.allocator.of_pod(&uid).await,
            };
            match made {
                Ok(ports) => {
                    for port in ports {
                        failed = self.allocator.remove(&port).await.err().or(failed);
                    }
                }
                Err(error) => failed = Some(error),
            }
            let others = self.named_by_others(&uid);
            for (_, vif) in case.state.vifs().filter(|(_, vif)| !vif.preserve_on_delete) {
                let released = self.allocator.release(&uid, vif, case.subject.host, &others).await;
                failed = released.err().or(failed);
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

    /// The ports that other pods have, or say that they have.
    fn named_by_others(&self, uid: &str) -> BTreeSet<String> {
        let cases = self.cases();
        let others = cases.iter().filter(|(other, case)| *other != uid && case.stage != Stage::Left);
        others.flat_map(|(_, case)| case.state.vifs().map(|(_, vif)| vif.id.clone())).collect()
    }
}
