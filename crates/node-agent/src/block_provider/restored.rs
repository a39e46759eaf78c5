//! Leases after a restore of the cluster: the lost ones are leased again, and no other until every node has done so.
//!
//! - A request of a store confirms and returns leases as at any time, and is refused if it needs another one.
//! - Every cache is listed again (`ClusterHistory`): the API server sends no event for versions that come again.
//!
//! Source: `docs/design/ipam.md#restored-database`.

use ipam::{AllocationError, AllocationKind, BlockAllocator, LeaseResponse};
use kube::api::ListParams;
use kube::{Api, Client};
use rpc::allocate::AllocateRequest;
use tokio::sync::watch::Receiver;
use tokio::time::{sleep, timeout};
use tracing::warn;

use super::{BlockProvider, PrefetchedBlocks, ServeError};
use ipam_api::api_registry::ApiRegistry;
use ipam_api::cluster_history::{LOOK, RESTORED};
use ipam_api::ip_objects::PoolObject;
use kube_support::lookup::ASK_MAX;
use node_support::client_probe::ClientProbe;

impl BlockProvider {
    /// Returns a receiver that gets the number of cluster restores.
    pub(crate) fn restorations(&self) -> Receiver<u64> {
        self.history.restorations()
    }

    /// Whether the cluster was restored a moment ago.
    pub(crate) fn is_settling(&self) -> bool {
        self.history.settles_for().is_some()
    }

    /// Looks at the version of the database periodically, also while no address is requested.
    pub(crate) async fn follow_history(&self, client: Client) {
        self.wait_until_used().await;
        let pools = Api::<PoolObject>::all(client);
        loop {
            let before = self.history.newest();
            let listed = timeout(ASK_MAX, pools.list_metadata(&ListParams::default().limit(1))).await;
            if let Ok(Ok(listed)) = listed
                && self.history.note(before, listed.metadata.resource_version.as_deref())
            {
                warn!(
                    "the cluster was restored to another state; leases are compared, and no new ones are made for a while"
                );
            }
            sleep(LOOK).await;
        }
    }

    /// Returns and confirms blocks of a store, and refuses any other lease: the cluster was restored.
    pub(super) async fn return_and_confirm(
        &self,
        allocator: &BlockAllocator<'_, ApiRegistry>,
        pool: &str,
        call: (&AllocateRequest, &ClientProbe<'_>),
        prefetched: &mut PrefetchedBlocks,
    ) -> Result<LeaseResponse, ServeError> {
        let nothing = (AllocationKind::Nothing, AllocationKind::Nothing);
        let response = self.serve(allocator, pool, call, nothing, prefetched).await?;
        let error = AllocationError::Unavailable(RESTORED.to_owned());
        Ok(LeaseResponse { error: response.error.or(Some(error)), ..response })
    }
}
