//! Deletion of pools: the finalizer stays while anything in the pool is in use.
//!
//! ```text
//!   pool, deleted ──► objects in use? ── yes ──► networks use the pool as before
//!                        └─ no ──► pending: nothing is leased ──► listed again: none in use ──► finalizer removed
//! ```
//!
//! - A node that creates an object of a pending pool reads the pool after it, and releases the object.
//! - If an agent needs the pool meanwhile, it fixes the layout again, which changes the pool, so the finalizer is kept.

use ipam::Registry;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use prometheus_client::metrics::counter::Counter;
use serde_json::json;
use tracing::{info, warn};

use ipam_api::api_registry::ApiRegistry;
use ipam_api::cluster_snapshot::ClusterSnapshot;
use ipam_api::ip_objects::{BlockObject, LayoutState, PoolObject, kind_of};
use kube_support::api_error;

/// Writes the finalizer of pools in use that lack it.
pub(super) async fn protect_pools(client: &Client, snapshot: &ClusterSnapshot) {
    let pools = Api::<PoolObject>::all(client.clone());
    for pool in &snapshot.pools {
        let Some(protected) = pool.in_use().filter(|_| is_in_use(snapshot, pool)) else { continue };
        if let Err(error) = write(&pools, &protected).await {
            let error = api_error::describe(&error);
            warn!(pool = name(pool), error, "failed to write the finalizer of a pool in use");
        }
    }
}

/// Completes the deletion of unused pools.
pub(super) async fn complete_deletions(client: &Client, snapshot: &ClusterSnapshot, requests: &Counter) {
    let deleted = snapshot.pools.iter().filter(|pool| pool.is_deleted() && pool.has_finalizer());
    for pool in deleted.filter(|pool| !is_in_use(snapshot, pool)) {
        match complete_deletion(client, pool, requests).await {
            Ok(true) => info!(pool = name(pool), "deleted pool of which nothing is in use"),
            Ok(false) => {}
            Err(error) => warn!(pool = name(pool), error, "failed to complete the deletion of a pool"),
        }
    }
}

/// Completes the deletion of a pool, unless something in it is in use by now.
async fn complete_deletion(client: &Client, pool: &PoolObject, requests: &Counter) -> Result<bool, String> {
    let failed = |error: &kube::Error| api_error::describe(error);
    let pools = Api::<PoolObject>::all(client.clone());
    let version = &pool.metadata.resource_version;
    let status = pool.layout_status(LayoutState::Pending);
    let patch = Patch::Merge(json!({ "metadata": { "resourceVersion": version }, "status": status }));
    let pending = pools.patch_status(name(pool), &PatchParams::default(), &patch).await;
    let Some(pending) = unless_changed(pending).map_err(|error| failed(&error))? else { return Ok(false) };
    if let Some(registry) = ApiRegistry::of(client, pool, requests) {
        for object in registry.list().await.map_err(|error| error.to_string())? {
            if object.is_in_use() {
                return Ok(false);
            }
            registry.delete(&object).await.map_err(|error| error.to_string())?;
        }
    }
    Ok(write(&pools, &pending.unused()).await.map_err(|error| failed(&error))?.is_some())
}

/// Whether an object of a pool is in use, or cannot be read.
fn is_in_use(snapshot: &ClusterSnapshot, pool: &PoolObject) -> bool {
    let is_in_use = |block: &BlockObject| block.object().is_none_or(|object| object.is_in_use());
    snapshot.blocks.iter().any(|block| block.spec.pool == name(pool) && is_in_use(block))
}

fn name(pool: &PoolObject) -> &str {
    pool.metadata.name.as_deref().unwrap_or_default()
}

async fn write(pools: &Api<PoolObject>, pool: &PoolObject) -> Result<Option<PoolObject>, kube::Error> {
    let written = PoolObject { types: kind_of::<PoolObject>(), ..pool.clone() };
    unless_changed(pools.replace(name(pool), &PostParams::default(), &written).await)
}

/// Returns the response, or `None` if the pool was changed or deleted meanwhile: the next round reads it again.
fn unless_changed(written: Result<PoolObject, kube::Error>) -> Result<Option<PoolObject>, kube::Error> {
    match written {
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(None),
        other => other.map(Some),
    }
}
