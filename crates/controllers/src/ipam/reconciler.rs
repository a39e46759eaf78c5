//! Reconciles the cluster's addresses: writes pool status, reclaims blocks from gone nodes, ends claims, reports
//! findings.
//!
//! ```text
//!   pods, nodes (watched) · pools, blocks (listed)
//!   ClusterSnapshot ──► status of pools · Events about findings
//!                   ──► node gone for a while ──► [`GoneNodes`] ──► its blocks are free
//!                   ──► claim gone ──► its address is free
//! ```
//!
//! - Blocks of a live node are never reclaimed: the controller cannot see which addresses it has allocated.
//! - A node is gone if the Node object is deleted, or has the taint `out-of-service`, no pod is bound to it, and the
//!   agent does not answer the liveness probe.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use ipam::{Holder, IpBlock, Registry, end_claim};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client};
use npwg::metadata::Pod;
use npwg::status::NETWORK_STATUS;
use prometheus_client::metrics::counter::Counter;
use serde_json::json;
use tracing::{info, warn};

use crate::ipam::gone_nodes::GoneNodes;
use crate::ipam::pool_deletion;
use crate::ipam::round_error::RoundError;
use ipam_api::api_registry::ApiRegistry;
use ipam_api::clock::now;
use ipam_api::cluster_snapshot;
use ipam_api::cluster_snapshot::{ClusterSnapshot, Followed};
use ipam_api::findings::Finding;
use ipam_api::imported_addresses;
use ipam_api::imported_claim::ImportedClaim;
use ipam_api::ip_claim::OF_CLAIM;
use ipam_api::ip_objects::{BlockObject, PoolObject};
use ipam_api::pool_usage::PoolUsage;
use ipam_api::virtual_machine;
use ipam_api::virtual_machine::{MachineClaim, OF_MACHINE};
use kube_support::api_error;
use kube_support::event_publisher::{Event, EventPublisher, EventType};
use kube_support::events::distinct_action;
use kube_support::lookup::ask;
use kube_support::resources::PodObject;

/// Name of the controller in Events.
const CONTROLLER: &str = "weft-ipam";
/// Prefix for a sticky pod's claim.
const OF_POD: &str = "pod/";
/// Time after which the address that was imported for a deleted pod is released: a pod of the same name may follow.
const RECREATION_MAX: Duration = Duration::from_secs(30);
/// Maximum length of an Event's note, in bytes.
const NOTE_MAX: usize = 1000;
/// Maximum number of finalizers that one round restores.
const FINALIZERS_MAX: usize = 200;
/// Time after a release until the object of the free address is deleted; longer than a quarantine.
const OBJECT_RETENTION: Duration = Duration::from_secs(3600);

/// Reconciler of the cluster's addresses.
pub(crate) struct IpamReconciler {
    client: Client,
    publisher: EventPublisher,
    gone_nodes: GoneNodes,
    /// Time for which the address of a deleted sticky pod is kept.
    retention: Duration,
    /// Time for which the address that was imported for a deleted pod is kept for another pod of the name.
    recreation: Duration,
    /// Claims of imported addresses whose pod does not exist, and when that was first seen.
    without_pod: BTreeMap<String, Instant>,
    followed: Followed,
    /// Findings that were reported: object and reason.
    reported: BTreeSet<(String, String)>,
    requests: Counter,
}

/// Objects that keep addresses. `None`: the cluster does not have the resource, or denies access.
#[derive(Clone, Copy)]
struct Workloads<'a> {
    /// Namespace and name of the IPAMClaims.
    claims: Option<&'a BTreeSet<(String, String)>>,
    /// Virtual machines, running or not.
    machines: Option<&'a BTreeSet<MachineClaim>>,
}

/// Results of a round.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Round {
    /// Blocks and single addresses reclaimed from gone nodes.
    pub(crate) reclaimed: u64,
    /// Ended claims, and deleted objects of free addresses.
    pub(crate) ended: u64,
    /// Findings.
    pub(crate) findings: Vec<Finding>,
    /// Number of pools.
    pub(crate) pools: u64,
    /// Number of blocks that nodes lease.
    pub(crate) leased: u64,
    /// Use of each pool.
    pub(crate) usage: BTreeMap<String, PoolUsage>,
}

impl IpamReconciler {
    /// Returns a reconciler. `grace` is the time after which a node is considered gone.
    pub(crate) fn new(
        client: Client,
        grace: Duration,
        retention: Duration,
        identity: &str,
    ) -> IpamReconciler {
        let publisher = EventPublisher::new(client.clone(), CONTROLLER, Some(identity.to_owned()));
        let (reported, requests) = (BTreeSet::new(), Counter::default());
        let gone_nodes = GoneNodes::new(client.clone(), grace, requests.clone());
        let followed = Followed::default();
        let (recreation, without_pod) = (RECREATION_MAX.min(grace), BTreeMap::new());
        IpamReconciler {
            client,
            publisher,
            gone_nodes,
            retention,
            recreation,
            without_pod,
            followed,
            reported,
            requests,
        }
    }

    /// Keeps the caches of pods and nodes up to date until the process ends.
    pub(crate) fn follow(&self) -> impl Future<Output = ()> + use<> {
        self.followed.follow(&self.client)
    }

    /// Reconciles everything once.
    pub(crate) async fn round(&mut self) -> Result<Round, RoundError> {
        self.followed.listed().await?;
        let mut snapshot = ClusterSnapshot::beside(&self.client, &self.followed).await?;
        let mut findings = snapshot.findings();
        // The caches may lag behind, so a new finding is reported only if it is also in a listed snapshot.
        if findings
            .iter()
            .any(|Finding { object, why, .. }| !self.reported.contains(&(object.clone(), why.clone())))
        {
            snapshot = ClusterSnapshot::take(&self.client).await?;
            findings = snapshot.findings();
        }
        let mut round = Round { findings, ..Round::default() };
        for pool in &snapshot.pools {
            round.pools += 1;
            round.leased += self.write_status(&snapshot, pool).await?;
            let name = pool.metadata.name.clone().unwrap_or_default();
            round.usage.insert(name, PoolUsage::of(&snapshot, pool));
            self.record_single_addresses(&snapshot, pool).await;
        }
        self.restore_finalizers(&snapshot).await;
        pool_deletion::protect_pools(&self.client, &snapshot).await;
        pool_deletion::complete_deletions(&self.client, &snapshot, &self.requests).await;
        round.reclaimed = self.gone_nodes.reclaim(&snapshot).await?;
        round.ended = self.end_claims(&snapshot).await?;
        self.label_imported(&snapshot).await;
        self.report(&snapshot, &round.findings).await;
        Ok(round)
    }

    /// Writes the status of a pool, if it has changed. Returns the number of leased blocks.
    async fn write_status(&self, snapshot: &ClusterSnapshot, pool: &PoolObject) -> Result<u64, RoundError> {
        let status = snapshot.status_of(pool);
        let leased = status.leased_blocks;
        let Some(name) = pool.metadata.name.as_deref().filter(|_| pool.status.as_ref() != Some(&status))
        else {
            return Ok(leased);
        };
        let patch = Patch::Merge(json!({ "status": status }));
        let pools: Api<PoolObject> = Api::all(self.client.clone());
        match pools.patch_status(name, &PatchParams::default(), &patch).await {
            Ok(_) => Ok(leased),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(leased),
            Err(error) => Err(RoundError::Status { pool: name.to_owned(), error }),
        }
    }

    /// Records manually created single addresses in the pool status, so that a node that leases the surrounding block
    /// finds them.
    async fn record_single_addresses(&self, snapshot: &ClusterSnapshot, pool: &PoolObject) {
        let Some(recorded) = pool.recorded_sections() else { return };
        let name = pool.metadata.name.as_deref().unwrap_or_default();
        let Some(registry) = ApiRegistry::of(&self.client, pool, &self.requests) else { return };
        let singles = snapshot.objects_of(name).filter(IpBlock::is_single_address).map(|object| object.net);
        let sections = singles.filter_map(|net| Some((registry.grid.section_of(net.addr())?, net)));
        let missing = sections.filter(|(section, _)| !recorded.contains(section)).collect::<BTreeMap<_, _>>();
        for net in missing.into_values() {
            match registry.record_single_address(net).await {
                Ok(()) => {
                    info!(pool = name, address = %net, "recorded manually created single address in its pool");
                }
                Err(error) => {
                    warn!(pool = name, address = %net, %error, "failed to record manually created single address in its pool");
                }
            }
        }
    }

    /// Restores the finalizer of objects in use from which it was removed manually, so that deleting them waits until they
    /// are unused.
    async fn restore_finalizers(&self, snapshot: &ClusterSnapshot) {
        let blocks: Api<BlockObject> = Api::all(self.client.clone());
        for used in snapshot.blocks.iter().filter_map(BlockObject::in_use).take(FINALIZERS_MAX) {
            let name = used.metadata.name.as_deref().unwrap_or_default();
            match blocks.replace(name, &PostParams::default(), &used).await {
                // After a conflict the next round reads the object again.
                Ok(_) => {}
                Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
                Err(error) => {
                    let error = api_error::describe(&error);
                    warn!(block = name, error, "failed to restore the finalizer of an object in use");
                }
            }
        }
    }

    /// Ends claims that nothing needs any more, and deletes objects of addresses that have been free for long.
    async fn end_claims(&mut self, snapshot: &ClusterSnapshot) -> Result<u64, RoundError> {
        let before = std::mem::take(&mut self.without_pod);
        let kept = |object: &IpBlock| object.is_single_address() && object.holder.node.is_empty();
        let (mut claims, mut machines) = (None, None);
        let mut ended = 0;
        for pool in &snapshot.pools {
            let name = pool.metadata.name.as_deref().unwrap_or_default();
            let Some(registry) = ApiRegistry::of(&self.client, pool, &self.requests) else { continue };
            // In a pool of single addresses the objects stay: they show which address was free longest.
            let stays = |object: &IpBlock| object.is_free() && registry.grid.has_single_addresses_only();
            for object in snapshot.objects_of(name).filter(|object| kept(object) && !stays(object)) {
                let claim = object.holder.claim.clone();
                if claim.starts_with(OF_CLAIM) && claims.is_none() {
                    claims = Some(self.claims().await?);
                }
                if claim.starts_with(OF_MACHINE) && machines.is_none() {
                    machines = Some(self.machines().await);
                }
                let claims = claims.as_ref().and_then(Option::as_ref);
                let machines = machines.as_ref().and_then(Option::as_ref);
                if !self.has_ended(snapshot, &object, Workloads { claims, machines }) {
                    continue;
                }
                if ImportedClaim::parse(&claim).is_some() {
                    let since = before.get(&claim).copied().unwrap_or_else(Instant::now);
                    self.without_pod.insert(claim.clone(), since);
                    if since.elapsed() < self.recreation {
                        continue;
                    }
                }
                if self.is_in_use(&object).await {
                    continue;
                }
                let net = object.net;
                let done = if claim.is_empty() {
                    registry.delete(&object).await
                } else {
                    end_claim(&registry, object, now()).await
                };
                match done {
                    Ok(()) => {
                        info!(pool = name, address = %net, claim, "released address that no pod or claim needs");
                        ended += 1;
                    }
                    Err(error) => {
                        warn!(pool = name, address = %net, claim, %error, "failed to release address");
                    }
                }
            }
        }
        Ok(ended)
    }

    /// Returns the virtual machines; `None` if they are unknown. Then all addresses of virtual machines are kept.
    async fn machines(&self) -> Option<BTreeSet<MachineClaim>> {
        virtual_machine::machines(&self.client).await.unwrap_or_else(|error| {
            let error = api_error::describe(&error);
            warn!(%error, "failed to list virtual machines; their addresses are kept");
            None
        })
    }

    /// Whether the claim's pod exists now, or a pod still shows the address of an IPAMClaim.
    ///
    /// The API is asked because the caches may lag behind. If it does not answer, the address counts as in use.
    async fn is_in_use(&self, object: &IpBlock) -> bool {
        let Holder { claim, owner, .. } = &object.holder;
        let shared = claim.strip_prefix(OF_CLAIM).or(claim.strip_prefix(OF_MACHINE));
        if let Some((namespace, _)) = shared.and_then(|rest| rest.split_once('/')) {
            let pods = ClusterSnapshot::pods_of(&self.client, namespace).await;
            let shown = pods.map(|pods| pods.iter().any(|pod| pod.shows(object.net.addr())));
            return shown.unwrap_or_else(|error| {
                warn!(claim, %error, "failed to list the pods of the claim; its address is kept");
                true
            });
        }
        let (namespace, name, uid) = match ImportedClaim::parse(claim) {
            Some(imported) => (imported.namespace, imported.pod, owner_uid(owner)),
            None => match claim.strip_prefix(OF_POD).and_then(namespace_and_name) {
                Some((namespace, name)) => (namespace, name, ""),
                None => return false,
            },
        };
        let pods: Api<PodObject> = Api::namespaced(self.client.clone(), &namespace);
        // A pod of the same name that is not attached yet gets the address.
        let is_attached =
            |pod: &Pod| pod.annotations.get(NETWORK_STATUS).is_some_and(|status| !status.is_empty());
        match ask(pods, &name).await {
            Ok(found) => found.is_some_and(|pod| uid.is_empty() || pod.uid == uid || !is_attached(&pod)),
            Err(error) => {
                warn!(claim, %error, "failed to read the pod of the claim; its address is kept");
                true
            }
        }
    }

    /// Whether the address is not needed any more.
    fn has_ended(&self, snapshot: &ClusterSnapshot, object: &IpBlock, workloads: Workloads<'_>) -> bool {
        let claim = object.holder.claim.as_str();
        let kept = Duration::from_millis(now().saturating_sub(object.holder.released_at));
        if claim.is_empty() {
            return kept > OBJECT_RETENTION;
        }
        if let Some(imported) = ImportedClaim::parse(claim) {
            let uid = owner_uid(&object.holder.owner);
            let is_of = |pod: &cluster_snapshot::Holder| {
                let is_attached = !pod.addresses.is_empty() && !pod.shows(object.net.addr());
                uid.is_empty() || pod.uid == uid || !is_attached
            };
            return !snapshot.pods.get(&(imported.namespace, imported.pod)).is_some_and(is_of);
        }
        if let Some(rest) = claim.strip_prefix(OF_POD) {
            let exists = namespace_and_name(rest).is_some_and(|pod| snapshot.pods.contains_key(&pod));
            return !exists && kept > self.retention;
        }
        let Workloads { claims, machines } = workloads;
        let (namespace, exists) = match MachineClaim::parse(claim) {
            Some(machine) => {
                let exists = machines.is_none_or(|machines| machines.contains(&machine));
                (machine.namespace, exists)
            }
            None => match claim.strip_prefix(OF_CLAIM).and_then(namespace_and_name) {
                Some(place) => (place.0.clone(), claims.is_none_or(|claims| claims.contains(&place))),
                None => return false,
            },
        };
        // Of the pods that share the address, the one in the object may be deleted before the others.
        let has_it =
            |pod: &cluster_snapshot::Holder| pod.namespace == namespace && pod.shows(object.net.addr());
        !exists && !snapshot.pods.values().any(has_it)
    }

    /// Labels the pools that have imported addresses, and removes the label from others.
    async fn label_imported(&self, snapshot: &ClusterSnapshot) {
        let pools: Api<PoolObject> = Api::all(self.client.clone());
        for pool in &snapshot.pools {
            let name = pool.metadata.name.as_deref().unwrap_or_default();
            let mut blocks = snapshot.blocks.iter().filter(|block| block.spec.pool == name);
            let has_imported = blocks.any(imported_addresses::is_imported);
            if has_imported == imported_addresses::is_labelled(pool) {
                continue;
            }
            match imported_addresses::set_label(&pools, pool, has_imported).await {
                Ok(()) => {}
                // After a conflict the next round reads the pool again.
                Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
                Err(error) => {
                    let error = api_error::describe(&error);
                    warn!(pool = name, error, "failed to label a pool with imported addresses");
                }
            }
        }
    }

    /// Returns the IPAMClaims; `None` if the cluster does not have the resource or denies access.
    async fn claims(&self) -> Result<Option<BTreeSet<(String, String)>>, RoundError> {
        let kind = GroupVersionKind::gvk("k8s.cni.cncf.io", "v1alpha1", "IPAMClaim");
        let resource = ApiResource::from_gvk_with_plural(&kind, "ipamclaims");
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource);
        match api.list_metadata(&ListParams::default()).await {
            Ok(found) => Ok(Some(
                found
                    .items
                    .into_iter()
                    .filter_map(|claim| Some((claim.metadata.namespace?, claim.metadata.name?)))
                    .collect(),
            )),
            Err(kube::Error::Api(status)) if matches!(status.code, 403 | 404) => Ok(None),
            Err(error) => Err(RoundError::Claims(error)),
        }
    }

    /// Sends an Event about each new finding.
    async fn report(&mut self, snapshot: &ClusterSnapshot, findings: &[Finding]) {
        let current: BTreeSet<(String, String)> =
            findings.iter().map(|finding| (finding.object.clone(), finding.why.clone())).collect();
        for finding in
            findings.iter().filter(|finding| finding.what == "duplicate" || finding.what == "invalid")
        {
            let Finding { what, object, why } = finding;
            if self.reported.contains(&(object.clone(), why.clone())) {
                continue;
            }
            warn!(finding = what, object, reason = why, "found inconsistent addresses");
            let mut note = format!("{object}: {why}");
            note.truncate(note.floor_char_boundary(NOTE_MAX));
            let event = Event {
                r#type: EventType::Warning,
                reason: if *what == "duplicate" { "AddressDuplicate" } else { "ObjectInvalid" },
                action: &distinct_action("Check", &note),
                note: &note,
            };
            if let Err(error) = self.publisher.publish(&event, &reference(snapshot, object)).await {
                warn!(%error, "failed to send Event");
            }
        }
        self.reported = current;
    }
}

/// Returns an owner's pod uid.
fn owner_uid(owner: &str) -> &str {
    owner.split('/').next().unwrap_or_default()
}

/// Returns the namespace and the name at the start of a claim.
fn namespace_and_name(claim: &str) -> Option<(String, String)> {
    let mut parts = claim.split('/');
    Some((parts.next()?.to_owned(), parts.next()?.to_owned()))
}

/// Returns the reference for an Event about `ippool NAME`, `ipblock NAME` or `pod NAMESPACE/NAME`. It contains the uid,
/// because `kubectl describe` selects Events by it.
fn reference(snapshot: &ClusterSnapshot, object: &str) -> ObjectReference {
    let (kind, name) = object.split_once(' ').unwrap_or(("", object));
    let uid = |known: &ObjectMeta| known.uid.clone().filter(|_| known.name.as_deref() == Some(name));
    let of = |version: &str, kind: &str, name: &str, uid: Option<String>| ObjectReference {
        api_version: Some(version.to_owned()),
        kind: Some(kind.to_owned()),
        name: Some(name.to_owned()),
        uid,
        ..ObjectReference::default()
    };
    match (kind, name.split_once('/')) {
        ("pod", Some((namespace, name))) => {
            let pod = snapshot.pods.get(&(namespace.to_owned(), name.to_owned()));
            let reference = of("v1", "Pod", name, pod.map(|pod| pod.uid.clone()));
            ObjectReference { namespace: Some(namespace.to_owned()), ..reference }
        }
        ("ippool", _) => {
            let uid = snapshot.pools.iter().find_map(|pool| uid(&pool.metadata));
            of("weft.dev/v1alpha1", "IPPool", name, uid)
        }
        _ => {
            let uid = snapshot.blocks.iter().find_map(|block| uid(&block.metadata));
            of("weft.dev/v1alpha1", "IPBlock", name, uid)
        }
    }
}
