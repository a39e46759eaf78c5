//! What becomes of a block that somebody deleted by hand: it is its node's as long as something in it is held, and given back after that.
//!
//! ```text
//!   IPBlock of this node, deleted ──► held? ── yes ─► looked at again
//!                                       └─ no ──► in doubt: nobody new ──► held? ── no ─► given back, and so gone
//! ```
//!
//! Rules: only a lease that the ledger has is given back, and in doubt: one that is about to be told is in nobody's. Who asks for an
//! address in between has it confirmed, under another lease, and nothing is given back.

use ipam::address_store::is_valid_name;
use ipam::release_lease;
use kube::Api;
use tokio::time::timeout;
use tracing::info;

use super::{Done, LeaseError, Leases};
use ipam_api::api_registry::ApiRegistry;
use ipam_api::clock::now;
use ipam_api::ip_objects::PoolObject;
use ipam_api::owned_block::OwnedBlock;
use kube_support::lookup::ASK_MAX;
use node_support::address_store;

impl Leases {
    /// Gives a block back that was deleted, if nothing in it is held.
    pub(super) async fn give_back(&self, owned: &OwnedBlock) -> Result<Done, LeaseError> {
        let OwnedBlock { pool, object, .. } = owned;
        let (name, lease) = (&object.holder.store, object.lease_id());
        // One in another directory nobody sees; it comes from the cluster and becomes part of a path.
        if !is_valid_name(name) {
            return Ok(Done::All);
        }
        let Some(registry) = self.registry(pool).await? else { return Ok(Done::Others) };
        if self.agent.block_provider.give_back_ahead(&registry, object).await? {
            return Ok(Done::All);
        }
        let place = self.ledgers.join(name);
        let is_held = |ledger: &ipam::AddressStore| ledger.is_held_inside(object.net);
        if address_store::read(&place)?.is_none_or(|ledger| is_held(&ledger)) {
            return Ok(Done::Others);
        }
        self.doubt(name, (object.net, lease.clone())).await?;
        if !address_store::read(&place)?.is_some_and(|ledger| ledger.is_unconfirmed_and_unused(&lease)) {
            return Ok(Done::Others);
        }
        release_lease(&registry, object.net, &lease, now()).await?;
        info!(pool, block = %object.net, "deleted by hand, and nothing in it is held: given back");
        Ok(Done::All)
    }

    async fn registry(&self, pool: &str) -> Result<Option<ApiRegistry>, LeaseError> {
        let pools = Api::<PoolObject>::all(self.client.clone());
        let found = timeout(ASK_MAX, pools.get_opt(pool)).await;
        let found = found.map_err(|_| LeaseError::NoAnswer)?;
        let found = found.map_err(|error| LeaseError::request(format!("pool {pool}"), &error))?;
        let requests = &self.agent.metrics.address_requests;
        Ok(found.and_then(|pool| ApiRegistry::of(&self.client, &pool, requests)))
    }
}
