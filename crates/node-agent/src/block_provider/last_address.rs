//! Address that a claim keeps: the last pod's one; earlier ones become free.

use ipam::{BlockAllocator, LeaseResponse};
use tracing::warn;

use ipam_api::api_registry::ApiRegistry;
use ipam_api::clock::now;
use ipam_api::imported_claim::ImportedClaim;

/// Ends the requesting claim's hold on addresses that earlier pods had, while the client uses the response.
pub(super) fn keep(allocator: &BlockAllocator<'_, ApiRegistry>, response: &LeaseResponse) {
    let claim = allocator.holder.claim.clone();
    let Some(lease) = response.leases.iter().find(|lease| lease.single_owner) else { return };
    // An imported claim is of one address.
    if claim.is_empty() || ImportedClaim::parse(&claim).is_some() {
        return;
    }
    let (registry, filter, net) = (allocator.registry.clone(), allocator.filter.clone(), lease.net);
    tokio::spawn(async move {
        if let Err(error) = ipam::end_earlier_claims(&registry, &filter, &claim, net, now()).await {
            warn!(claim, %error, "failed to release the earlier addresses of a claim; its next pod tries again");
        }
    });
}
