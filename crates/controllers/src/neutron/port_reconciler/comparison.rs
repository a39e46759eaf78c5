//! Comparison between all ports and all pods: deletes orphaned ports, and keeps ports for the pods they were
//! created for.
//!
//! - An orphaned port is deleted at the second comparison that finds it, because a new port may not be
//!   written yet. The comparison at the start, before the controller creates ports, deletes it at once.
//! - A pooled port on a node without pods is deleted in the same way: the node may be gone.
//! - If the KuryrPorts cannot be listed, no port is deleted. Content on a pod that cannot be read protects
//!   every port whose id it contains.
//!
//! Source: Kuryr-Kubernetes `drivers/vif_pool.py`, which recovers pools.

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

/// Treatment that orphaned ports get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Orphans {
    /// They are deleted.
    Remove,
    /// They are deleted if the last comparison found them, too.
    Suspect,
}

/// Ports that live pods have, as written on them or known to this process.
#[derive(Debug, Default)]
struct PortUsage {
    /// Pod uids.
    living: BTreeSet<String>,
    /// Used ports, and who uses them.
    used: BTreeMap<String, User>,
    /// Content in annotations and KuryrPorts that cannot be read.
    unreadable: Vec<String>,
}

/// Why a comparison failed.
#[derive(Debug, Error)]
pub(super) enum ComparisonError {
    /// The ports cannot be listed.
    #[error("{0}")]
    Ports(neutron::Error),
    /// The KuryrPorts cannot be listed.
    #[error("list kuryrports: {}", api_error::describe(.0))]
    KuryrPorts(kube::Error),
}

impl PortUsage {
    fn add(&mut self, user: &User, read: Result<Option<PodState>, Unread>, text: impl FnOnce() -> String) {
        match read {
            Ok(state) => state.iter().for_each(|state| self.note(user, state)),
            Err(_) => self.unreadable.push(text()),
        }
    }

    /// Records a pod's ports. If several pods name a port, it is uncertain which one uses it.
    fn note(&mut self, user: &User, state: &PodState) {
        for (_, vif) in state.vifs() {
            let known = self.used.entry(vif.id.clone()).or_insert_with(|| user.clone());
            if known != user {
                *known = User::Uncertain;
            }
        }
    }
}

impl PortReconciler {
    pub(super) async fn compare_again(self: Arc<PortReconciler>) {
        let mut candidates = BTreeSet::new();
        loop {
            sleep(self.interval).await;
            if let Err(error) = self.compare(&mut candidates, Orphans::Suspect).await {
                warn!(%error, "failed to compare ports with pods");
            }
        }
    }

    /// Compares all ports with all pods. Orphaned ports are deleted, pods keep theirs, others are pooled.
    pub(super) async fn compare(
        &self,
        candidates: &mut BTreeSet<String>,
        orphans: Orphans,
    ) -> Result<(), ComparisonError> {
        let ports = self.allocator.all().await.map_err(ComparisonError::Ports)?;
        let mut usage = self.usage().await?;
        for (uid, case) in &*self.cases() {
            usage.note(&User::Pod(uid.clone()), &case.state);
        }
        let PortUsage { used, living, unreadable } = usage;
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
                    self.allocator.register(&port, Some(user));
                }
            } else if living.contains(&owner) {
                found.entry(owner).or_default().push(port);
            } else if unreadable.iter().any(|text| text.contains(&port.id)) {
                // The author of the unreadable content may need the port: it is neither pooled nor deleted.
            } else if !(pooled && self.allocator.register(&port, None)) {
                lost.push(port);
            } else if !hosts.contains(port.host_id.as_str()) {
                // The node has no pods: it may be gone.
                idle.push(port);
            }
        }
        info!(
            used = used.len(),
            found = found.len(),
            pooled = self.allocator.pools.count(),
            lost = lost.len(),
            idle = idle.len(),
            "compared ports with pods"
        );
        if orphans == Orphans::Remove {
            *self.found.lock().unwrap_or_else(PoisonError::into_inner) = found;
        }
        let (mut due, rest): (Vec<Port>, Vec<Port>) =
            lost.into_iter().partition(|port| orphans == Orphans::Remove || candidates.contains(&port.id));
        let (unused, young): (Vec<Port>, Vec<Port>) =
            idle.into_iter().partition(|port| candidates.contains(&port.id));
        due.extend(unused.into_iter().filter(|port| self.allocator.pools.withdraw(&port.id)));
        *candidates = rest.into_iter().chain(young).map(|port| port.id).collect();
        self.remove(due);
        Ok(())
    }

    /// Deletes orphaned ports, a few at a time. A port that could not be deleted is found by the next comparison.
    fn remove(&self, ports: Vec<Port>) {
        let allocator = Arc::clone(&self.allocator);
        tokio::spawn(async move {
            for few in ports.chunks(PARALLEL / 2) {
                let allocator = &allocator;
                let removals = few.iter().map(|port| async move {
                    warn!(port = port.id, "deleting port that belongs to no pod");
                    if let Err(error) = allocator.remove(port).await {
                        warn!(%error, "failed to delete port");
                    }
                });
                futures_util::future::join_all(removals).await;
            }
        });
    }

    /// Returns the ports that are written on live pods.
    ///
    /// # Errors
    /// They cannot be read completely. Otherwise unread ports would seem to be orphaned.
    async fn usage(&self) -> Result<PortUsage, ComparisonError> {
        let subjects = self.pods.all();
        let living = subjects.iter().filter(|subject| !subject.ended);
        let mut usage = PortUsage {
            living: living.clone().map(|subject| subject.pod.uid.clone()).collect(),
            ..PortUsage::default()
        };
        for PodSubject { pod, .. } in living.map(Arc::as_ref) {
            let text = || pod.annotations.get(kube_support::kuryr::ANNOTATION).cloned().unwrap_or_default();
            let user = match self.location {
                VifLocation::Annotation => User::Pod(pod.uid.clone()),
                // The annotation is older than the KuryrPorts or written by the pod's author. It only protects a port.
                VifLocation::Kuryrport => User::Uncertain,
            };
            usage.add(&user, kube_support::kuryr::of_annotation(pod), text);
        }
        if self.location == VifLocation::Kuryrport {
            let ports: Api<KuryrPort> = Api::all(self.client.clone());
            let listed = match ports.list(&kube::api::ListParams::default()).await {
                Ok(all) => all.items,
                // Without the resource, no port is written in one.
                Err(kube::Error::Api(status)) if status.code == 404 => Vec::new(),
                Err(error) => return Err(ComparisonError::KuryrPorts(error)),
            };
            for port in &listed {
                let uid = port.spec["podUid"].as_str().unwrap_or_default();
                if usage.living.contains(uid) {
                    let user = User::Pod(uid.to_owned());
                    usage.add(&user, kube_support::kuryr::of_kuryr_port(port, uid), || {
                        port.status.to_string()
                    });
                }
            }
        }
        Ok(usage)
    }
}
