//! What is decided about addresses once for a cluster: how full pools are, what dead nodes have, what nobody claims any
//! more, what is wrong.
//!
//! ```text
//!   pods, nodes (followed) · pools, blocks (listed)
//!   census ──► status of pools · Events about what is wrong
//!          ──► node gone for a while ──► [`Dead`] ──► its blocks nobody's
//!          ──► claim gone ──► its address nobody's
//! ```
//!
//! Rules: a living node's blocks are its own, idle or not: nobody sees what it has given of them. A node is gone when its
//! object is, or when somebody has marked it out of service, no pod is bound to it any more, and its agent does not answer.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ipam::{Holder, IpBlock, Registry, end_claim};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event as EventObject;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Api, Client};
use prometheus_client::metrics::counter::Counter;
use serde_json::json;
use tracing::{info, warn};

use crate::ipam::gone_nodes::Dead;
use crate::ipam::round_error::RoundError;
use ipam_api::api_registry::ApiRegistry;
use ipam_api::clock::now;
use ipam_api::cluster_snapshot;
use ipam_api::cluster_snapshot::{ClusterSnapshot, Followed};
use ipam_api::findings::Finding;
use ipam_api::ip_claim::OF_CLAIM;
use ipam_api::ip_objects::{BlockObject, PoolObject};
use kube_support::api_error;
use kube_support::events::told_apart;
use kube_support::lookup::ask;
use kube_support::resources::PodObject;

/// The name under which Events are told.
const CONTROLLER: &str = "weft-ipam";
/// What the claim of a pod, and of a pod that was taken over begins with.
const OF_POD: &str = "pod/";
const IMPORTED: &str = "imported/";
/// Longest text of an Event, in bytes.
const NOTE_MAX: usize = 1000;
/// Objects of which one round writes down that they are in use.
const USED_MAX: usize = 200;
/// How long the object of an address that was asked for outlives its pod: longer than addresses rest.
const RESTED: Duration = Duration::from_secs(3600);

/// Who keeps pools in order.
pub(crate) struct IpamReconciler {
    client: Client,
    recorder: Recorder,
    /// Who tells.
    identity: String,
    dead: Dead,
    /// How long the address of a pod that was deleted is kept for its successor.
    retention: Duration,
    followed: Followed,
    told: BTreeSet<(String, String)>,
    requests: Counter,
}

/// What a round came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Round {
    /// Blocks and addresses taken back from dead nodes.
    pub(crate) reclaimed: u64,
    /// Claims that ended.
    pub(crate) ended: u64,
    /// What is wrong.
    pub(crate) findings: Vec<Finding>,
    /// Pools.
    pub(crate) pools: u64,
    /// Blocks that nodes have.
    pub(crate) leased: u64,
}

impl IpamReconciler {
    /// One with these rules.
    pub(crate) fn new(
        client: Client,
        grace: Duration,
        retention: Duration,
        identity: &str,
    ) -> IpamReconciler {
        let identity = identity.to_owned();
        let reporter = Reporter { controller: CONTROLLER.to_owned(), instance: Some(identity.clone()) };
        let recorder = Recorder::new(client.clone(), reporter);
        let (told, requests) = (BTreeSet::new(), Counter::default());
        let dead = Dead::new(client.clone(), grace, requests.clone());
        let followed = Followed::default();
        IpamReconciler { client, recorder, identity, dead, retention, followed, told, requests }
    }

    /// Keeps up with pods and nodes, for ever: what [`IpamReconciler::round`] looks at.
    pub(crate) fn follow(&self) -> impl Future<Output = ()> + use<> {
        self.followed.follow(&self.client)
    }

    /// Looks at everything once and does what is to be done.
    pub(crate) async fn round(&mut self) -> Result<Round, RoundError> {
        self.followed.listed().await?;
        let mut snapshot = ClusterSnapshot::beside(&self.client, &self.followed).await?;
        let mut findings = snapshot.findings();
        // What is followed may be behind: before anything new is told, all of it is asked for.
        if findings
            .iter()
            .any(|Finding { object, why, .. }| !self.told.contains(&(object.clone(), why.clone())))
        {
            snapshot = ClusterSnapshot::take(&self.client).await?;
            findings = snapshot.findings();
        }
        let mut round = Round { findings, ..Round::default() };
        for pool in &snapshot.pools {
            round.pools += 1;
            round.leased += self.tell_status(&snapshot, pool).await?;
            self.tell_singles(&snapshot, pool).await;
        }
        self.tell_used(&snapshot).await;
        round.reclaimed = self.dead.take(&snapshot).await?;
        round.ended = self.end_claims(&snapshot).await?;
        self.tell(&snapshot, &round.findings).await;
        Ok(round)
    }

    /// Writes how full a pool is, if that has changed.
    async fn tell_status(&self, snapshot: &ClusterSnapshot, pool: &PoolObject) -> Result<u64, RoundError> {
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

    /// Has a pool say where single addresses are that were made without a word, by hand: who leases the block around one then looks.
    async fn tell_singles(&self, snapshot: &ClusterSnapshot, pool: &PoolObject) {
        let Some(told) = pool.recorded_sections() else { return };
        let name = pool.metadata.name.as_deref().unwrap_or_default();
        let Some(registry) = ApiRegistry::of(&self.client, pool, &self.requests) else { return };
        let singles = snapshot.objects_of(name).filter(IpBlock::is_single_address).map(|object| object.net);
        let parts = singles.filter_map(|net| Some((registry.grid.section_of(net.addr())?, net)));
        let untold = parts.filter(|(part, _)| !told.contains(part)).collect::<BTreeMap<_, _>>();
        for net in untold.into_values() {
            match registry.record_single_address(net).await {
                Ok(()) => {
                    info!(pool = name, address = %net, "made by hand: its pool says now that it is there");
                }
                Err(fault) => {
                    warn!(pool = name, address = %net, %fault, "made by hand, and its pool does not say it");
                }
            }
        }
    }

    /// Restores the finalizer of objects in use from which it was removed manually, so that deleting them waits until they
    /// are unused.
    async fn tell_used(&self, snapshot: &ClusterSnapshot) {
        let blocks: Api<BlockObject> = Api::all(self.client.clone());
        for used in snapshot.blocks.iter().filter_map(BlockObject::in_use).take(USED_MAX) {
            let name = used.metadata.name.as_deref().unwrap_or_default();
            match blocks.replace(name, &PostParams::default(), &used).await {
                // The next round sees what it is now.
                Ok(_) => {}
                Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
                Err(error) => {
                    warn!(
                        block = name,
                        why = api_error::describe(&error),
                        "that it is in use was not written down"
                    );
                }
            }
        }
    }

    /// Ends what is kept for nobody, and removes what is left of addresses that are nobody's and have rested.
    async fn end_claims(&self, snapshot: &ClusterSnapshot) -> Result<u64, RoundError> {
        let kept = |object: &IpBlock| object.is_single_address() && object.holder.node.is_empty();
        let mut claims = None;
        let mut ended = 0;
        for pool in &snapshot.pools {
            let name = pool.metadata.name.as_deref().unwrap_or_default();
            let Some(registry) = ApiRegistry::of(&self.client, pool, &self.requests) else { continue };
            // Where each address is leased alone, its object says which has rested longest.
            let stays = |object: &IpBlock| object.is_free() && registry.grid.has_single_addresses_only();
            for object in snapshot.objects_of(name).filter(|object| kept(object) && !stays(object)) {
                let claim = object.holder.claim.clone();
                if claim.starts_with(OF_CLAIM) && claims.is_none() {
                    claims = Some(self.claims().await?);
                }
                let known = claims.as_ref().and_then(Option::as_ref);
                if !self.has_ended(snapshot, &object, known) || self.is_there(&object).await {
                    continue;
                }
                let net = object.net;
                let done = match claim.is_empty() {
                    true => registry.delete(&object).await,
                    false => end_claim(&registry, object, now()).await,
                };
                match done {
                    Ok(()) => {
                        info!(pool = name, address = %net, claim, "kept for nobody any more");
                        ended += 1;
                    }
                    Err(fault) => warn!(pool = name, address = %net, claim, %fault, "still kept"),
                }
            }
        }
        Ok(ended)
    }

    /// Is the pod of its claim there at this moment, or one that still has the address of an IPAMClaim? What is followed may be
    /// behind; without an answer it is there.
    async fn is_there(&self, object: &IpBlock) -> bool {
        let Holder { claim, owner, .. } = &object.holder;
        if let Some((namespace, _)) = claim.strip_prefix(OF_CLAIM).and_then(|rest| rest.split_once('/')) {
            let pods = ClusterSnapshot::pods_of(&self.client, namespace).await;
            let shown = pods.map(|pods| pods.iter().any(|pod| pod.shows(object.net.addr())));
            return shown.unwrap_or_else(|error| {
                warn!(claim, %error, "still kept");
                true
            });
        }
        let (pod, uid) = match claim.strip_prefix(IMPORTED) {
            Some(pod) => (pod, owner.split('/').next().unwrap_or_default()),
            None => (claim.strip_prefix(OF_POD).unwrap_or_default(), ""),
        };
        let mut parts = pod.split('/');
        let (Some(namespace), Some(name)) = (parts.next(), parts.next()) else { return false };
        let pods: Api<PodObject> = Api::namespaced(self.client.clone(), namespace);
        match ask(pods, name).await {
            Ok(found) => found.is_some_and(|pod| uid.is_empty() || pod.uid == uid),
            Err(error) => {
                warn!(claim, %error, "still kept");
                true
            }
        }
    }

    /// Is nobody coming back for this address? `claims` is nothing where the cluster has no such objects.
    fn has_ended(
        &self,
        snapshot: &ClusterSnapshot,
        object: &IpBlock,
        claims: Option<&BTreeSet<(String, String)>>,
    ) -> bool {
        let claim = object.holder.claim.as_str();
        let kept = Duration::from_millis(now().saturating_sub(object.holder.released_at));
        if claim.is_empty() {
            return kept > RESTED;
        }
        let parts = |text: &str| -> Option<(String, String)> {
            let mut parts = text.split('/');
            Some((parts.next()?.to_owned(), parts.next()?.to_owned()))
        };
        let pod = |text: &str, uid: &str| {
            let found = parts(text).and_then(|place| snapshot.pods.get(&place));
            found.is_some_and(|pod| uid.is_empty() || pod.uid == uid)
        };
        if let Some(rest) = claim.strip_prefix(IMPORTED) {
            let uid = object.holder.owner.split('/').next().unwrap_or_default();
            return !pod(rest, uid);
        }
        if let Some(rest) = claim.strip_prefix(OF_POD) {
            return !pod(rest, "") && kept > self.retention;
        }
        let Some(place) = claim.strip_prefix(OF_CLAIM).and_then(parts) else { return false };
        // Of the pods that share it the one that its object names may be gone before the others.
        let has_it =
            |pod: &cluster_snapshot::Holder| pod.namespace == place.0 && pod.shows(object.net.addr());
        claims.is_some_and(|claims| !claims.contains(&place)) && !snapshot.pods.values().any(has_it)
    }

    /// The IPAMClaims; nothing where the cluster does not know such objects.
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

    /// Tells each finding once.
    async fn tell(&mut self, snapshot: &ClusterSnapshot, findings: &[Finding]) {
        let current: BTreeSet<(String, String)> =
            findings.iter().map(|finding| (finding.object.clone(), finding.why.clone())).collect();
        for finding in findings.iter().filter(|finding| finding.what == "doubled" || finding.what == "spoilt")
        {
            let Finding { what, object, why } = finding;
            if self.told.contains(&(object.clone(), why.clone())) {
                continue;
            }
            warn!(what, object, why, "addresses");
            let mut note = format!("{object}: {why}");
            note.truncate(note.floor_char_boundary(NOTE_MAX));
            let event = Event {
                type_: EventType::Warning,
                reason: if *what == "doubled" { "AddressDoubled" } else { "ObjectSpoilt" }.to_owned(),
                action: told_apart("Check", &note),
                note: Some(note),
                secondary: None,
            };
            let about = reference(snapshot, object);
            if let Err(error) = self.publish(event, about).await {
                warn!(%error, "an Event could not be told");
            }
        }
        self.told = current;
    }
}

impl IpamReconciler {
    /// What is about an object of no namespace is in `kube-system`: the API takes it nowhere else, and [`Recorder`] puts it
    /// into `default`.
    async fn publish(&self, event: Event, about: ObjectReference) -> Result<(), kube::Error> {
        if about.namespace.is_some() {
            return self.recorder.publish(&event, &about).await;
        }
        let Event { type_: _, reason, note, action, secondary: _ } = event;
        let object = EventObject {
            metadata: ObjectMeta {
                generate_name: about.name.as_ref().map(|name| format!("{name}.weft-")),
                ..ObjectMeta::default()
            },
            action: Some(action),
            event_time: Some(MicroTime(Timestamp::now())),
            note,
            reason: Some(reason),
            regarding: Some(about),
            reporting_controller: Some(CONTROLLER.to_owned()),
            reporting_instance: Some(self.identity.clone()),
            type_: Some("Warning".to_owned()),
            ..EventObject::default()
        };
        let events: Api<EventObject> = Api::namespaced(self.client.clone(), "kube-system");
        events.create(&PostParams::default(), &object).await.map(drop)
    }
}

/// What an Event is about: `ippool NAME`, `ipblock NAME` or `pod NAMESPACE/NAME`. Who shows the Events of an object looks for
/// its uid.
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
