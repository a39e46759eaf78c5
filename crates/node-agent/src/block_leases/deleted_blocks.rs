//! Return of deleted blocks: a deleted IPBlock stays leased while addresses in it are held, and is returned after that.
//!
//! ```text
//!   IPBlock of this node, deleted ──► held? ── yes ─► checked again later
//!                                       └─ no ──► marked unconfirmed: no new address ──► held? ── no ─► returned
//! ```
//!
//! - Only a lease that the store contains and has marked as unconfirmed is returned. A lease that is about to be sent
//!   to the store is not in it yet.
//! - A request for an address in between confirms the block under another lease, and nothing is returned.

use ipam::address_store::is_valid_name;
use ipam::release_lease;
use ipnet::IpNet;
use kube::Api;
use tokio::time::timeout;
use tracing::info;

use super::{LeaseError, Leases, Outcome};
use ipam_api::api_registry::ApiRegistry;
use ipam_api::clock::now;
use ipam_api::ip_objects::PoolObject;
use ipam_api::owned_block::OwnedBlock;
use kube_support::lookup::ASK_MAX;
use node_support::address_store;

impl Leases {
    /// Returns a deleted block if no address in it is held.
    pub(super) async fn return_block(&self, owned: &OwnedBlock) -> Result<Outcome, LeaseError> {
        let OwnedBlock { pool, object, .. } = owned;
        let (name, lease) = (&object.holder.store, object.lease_id());
        // A store in another directory cannot be read. The name comes from the cluster and becomes part of a path.
        if !is_valid_name(name) {
            return Ok(Outcome::Done);
        }
        let Some(registry) = self.registry(pool, object.net).await? else { return Ok(Outcome::Pending) };
        if self.agent.block_provider.return_prefetched(&registry, object).await? {
            return Ok(Outcome::Done);
        }
        let path = self.store_dir.join(name);
        let is_held = |store: &ipam::AddressStore| store.is_held_inside(object.net);
        if address_store::read(&path)?.is_none_or(|store| is_held(&store)) {
            return Ok(Outcome::Pending);
        }
        self.mark_unconfirmed(name, (object.net, lease.clone())).await?;
        if !address_store::read(&path)?.is_some_and(|store| store.is_unconfirmed_and_unused(&lease)) {
            return Ok(Outcome::Pending);
        }
        release_lease(&registry, object.net, (&self.node, &lease), now()).await?;
        info!(pool, block = %object.net, "returned deleted block because no address in it is held");
        Ok(Outcome::Done)
    }

    async fn registry(&self, pool: &str, net: IpNet) -> Result<Option<ApiRegistry>, LeaseError> {
        let pools = Api::<PoolObject>::all(self.client.clone());
        let found = timeout(ASK_MAX, pools.get_opt(pool)).await;
        let found = found.map_err(|_| LeaseError::NoAnswer)?;
        let found = found.map_err(|error| LeaseError::request(format!("pool {pool}"), &error))?;
        let requests = &self.agent.metrics.address_requests;
        Ok(match found {
            Some(pool) => ApiRegistry::of(&self.client, &pool, requests),
            None => Some(ApiRegistry::of_missing_pool(&self.client, pool, net, requests)),
        })
    }
}
