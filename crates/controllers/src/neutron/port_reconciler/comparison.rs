//! All ports with all pods: what was made and is nobody's goes, what was made for a pod is kept for it.
//!
//! Rules:
//! - a port that is nobody's is removed when it was so before, too: whoever makes one may not have said so yet;
//! - what cannot be seen now is not taken for nobody's.
//!
//! Source: Kuryr-Kubernetes `drivers/vif_pool.py`, recovery of pools.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError};

use kube::Api;
use neutron::pod_state::PodState;
use neutron::port::Port;
use thiserror::Error;
use tokio::time::sleep;
use tracing::{info, warn};

use super::{PARALLEL, PortReconciler};
use crate::neutron::pod_subject::PodSubject;
use crate::neutron::port_allocator::owner;
use crate::neutron::port_pool::User;
use kube_support::api_error;
use kube_support::kuryr::{KuryrPort, Unread, VifLocation};

/// What becomes of a port that nobody has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Orphans {
    /// It goes.
    Remove,
    /// It goes if it was seen so before.
    Suspect,
}

/// What living pods have, as it is written or known.
#[derive(Debug, Default)]
struct Written {
    /// Their uids.
    living: BTreeSet<String>,
    /// The ports they have, and whose each is.
    used: BTreeMap<String, User>,
    /// What cannot be read, as it is.
    unreadable: Vec<String>,
}

/// Failure of a comparison.
#[derive(Debug, Error)]
pub(super) enum ComparisonError {
    /// The ports cannot be listed.
    #[error("{0}")]
    Ports(neutron::Error),
    /// The KuryrPorts cannot be listed.
    #[error("list kuryrports: {}", api_error::describe(.0))]
    KuryrPorts(kube::Error),
}

impl Written {
    fn add(&mut self, user: &User, read: Result<Option<PodState>, Unread>, text: impl FnOnce() -> String) {
        match read {
            Ok(state) => state.iter().for_each(|state| self.note(user, state)),
            Err(_) => self.unreadable.push(text()),
        }
    }

    /// A pod has these ports; where another one says the same of one, nobody knows whose it is.
    fn note(&mut self, user: &User, state: &PodState) {
        for (_, vif) in state.vifs() {
            let known = self.used.entry(vif.id.clone()).or_insert_with(|| user.clone());
            if known != user {
                *known = User::Somebody;
            }
        }
    }
}

impl PortReconciler {
    pub(super) async fn compare_again(self: Arc<PortReconciler>) {
        let mut suspects = BTreeSet::new();
        loop {
            sleep(self.every).await;
            if let Err(error) = self.compare(&mut suspects, Orphans::Suspect).await {
                warn!(%error, "ports cannot be compared with pods");
            }
        }
    }

    /// Compares all ports with all pods: what nobody has goes, what was made for a pod is kept for it, the rest waits.
    pub(super) async fn compare(
        &self,
        suspects: &mut BTreeSet<String>,
        orphans: Orphans,
    ) -> Result<(), ComparisonError> {
        let ports = self.allocator.all().await.map_err(ComparisonError::Ports)?;
        let mut written = self.written().await?;
        for (uid, case) in &*self.cases() {
            written.note(&User::Pod(uid.clone()), &case.state);
        }
        let Written { used, living, unreadable } = written;
        let subjects = self.pods.all();
        let hosts: BTreeSet<&str> = subjects
            .iter()
            .filter(|subject| !subject.ended)
            .map(|subject| subject.pod.node_name.as_str())
            .collect();
        let (mut lost, mut idle) = (Vec::new(), Vec::new());
        let mut found: BTreeMap<String, Vec<Port>> = BTreeMap::new();
        for port in ports {
            let owner = owner(&port).to_owned();
            let pooled = owner.is_empty();
            if let Some(user) = used.get(&port.id) {
                if pooled {
                    self.allocator.learn(&port, Some(user));
                }
            } else if living.contains(&owner) {
                found.entry(owner).or_default().push(port);
            } else if unreadable.iter().any(|text| text.contains(&port.id)) {
                // Whoever wrote it may need the port: it is neither given to another pod nor removed.
            } else if !(pooled && self.allocator.learn(&port, None)) {
                lost.push(port);
            } else if !hosts.contains(port.host_id.as_str()) {
                // Not one pod is there: the node may have gone.
                idle.push(port);
            }
        }
        info!(
            used = used.len(),
            found = found.len(),
            pooled = self.allocator.pools.count(),
            lost = lost.len(),
            idle = idle.len(),
            "compared"
        );
        if orphans == Orphans::Remove {
            *self.found.lock().unwrap_or_else(PoisonError::into_inner) = found;
        }
        let (mut due, rest): (Vec<Port>, Vec<Port>) =
            lost.into_iter().partition(|port| orphans == Orphans::Remove || suspects.contains(&port.id));
        let (unused, young): (Vec<Port>, Vec<Port>) =
            idle.into_iter().partition(|port| suspects.contains(&port.id));
        due.extend(unused.into_iter().filter(|port| self.allocator.pools.withdraw(&port.id)));
        *suspects = rest.into_iter().chain(young).map(|port| port.id).collect();
        self.remove(due);
        Ok(())
    }

    /// Removes ports that nobody has, a few at a time; one that cannot be removed is found again at the next comparison.
    fn remove(&self, ports: Vec<Port>) {
        let allocator = Arc::clone(&self.allocator);
        tokio::spawn(async move {
            for few in ports.chunks(PARALLEL / 2) {
                let allocator = &allocator;
                let removals = few.iter().map(|port| async move {
                    warn!(port = port.id, "belongs to no pod: it is removed");
                    if let Err(error) = allocator.remove(port).await {
                        warn!(%error, "not removed");
                    }
                });
                futures_util::future::join_all(removals).await;
            }
        });
    }

    /// What living pods have, as it is written.
    ///
    /// # Errors
    /// Not all of it can be seen now: what is not seen would be taken for nobody's.
    async fn written(&self) -> Result<Written, ComparisonError> {
        let subjects = self.pods.all();
        let living = subjects.iter().filter(|subject| !subject.ended);
        let mut written = Written {
            living: living.clone().map(|subject| subject.pod.uid.clone()).collect(),
            ..Written::default()
        };
        for PodSubject { pod, .. } in living.map(Arc::as_ref) {
            let text = || pod.annotations.get(kube_support::kuryr::ANNOTATION).cloned().unwrap_or_default();
            let user = match self.place {
                VifLocation::Annotation => User::Pod(pod.uid.clone()),
                // Of the time before KuryrPorts, or its author's: it may keep a port from others, and no more.
                VifLocation::Kuryrport => User::Somebody,
            };
            written.add(&user, kube_support::kuryr::of_annotation(pod), text);
        }
        if self.place == VifLocation::Kuryrport {
            let ports: Api<KuryrPort> = Api::all(self.client.clone());
            let listed = match ports.list(&kube::api::ListParams::default()).await {
                Ok(all) => all.items,
                // Where there is no such resource nothing is written in one.
                Err(kube::Error::Api(status)) if status.code == 404 => Vec::new(),
                Err(error) => return Err(ComparisonError::KuryrPorts(error)),
            };
            for port in &listed {
                let uid = port.spec["podUid"].as_str().unwrap_or_default();
                if written.living.contains(uid) {
                    let user = User::Pod(uid.to_owned());
                    written.add(&user, kube_support::kuryr::of_kuryr_port(port, uid), || {
                        port.status.to_string()
                    });
                }
            }
        }
        Ok(written)
    }
}
