//! Imported addresses of pods on this node: the pools that have some, and the addresses of one pod.
//!
//! ```text
//!   pools with imported addresses (watched) ─► mark beside the address store ─► weft-ipam asks before it allocates
//!   IPBlocks of this node (watched) ─► address of the pod? ── no, and its name may recur ─► listed by the pod's label
//! ```
//!
//! A pod of a ReplicaSet, DaemonSet or Job has a name that never recurs, so the address was imported on this node. A
//! StatefulSet's pod gets the same name again, and so the address on any node.

use std::sync::{Arc, Once};

use ipam::IpBlock;
use kube::Api;
use kube::runtime::watcher::Config;
use npwg::metadata::Pod;
use rpc::allocate::{AllocateRequest, AllocateResponse, ClaimedAddress, ImportedAddresses};
use tokio::sync::watch::Receiver;
use tokio::time::timeout;

use super::{BlockProvider, SYNC_MAX};
use ipam_api::imported_addresses::{NamedPool, addresses_of, pools_with_imported};
use ipam_api::imported_claim::ImportedClaim;
use ipam_api::ip_objects::{BlockObject, PoolObject};
use kube_support::api_error;
use kube_support::cache::{Cache, follow};
use kube_support::lookup::ASK_MAX;
use node_support::metrics::Metrics;

/// Controller kinds whose pods never have an earlier pod's name.
const UNIQUE_NAMES: [&str; 4] = ["ReplicaSet", "DaemonSet", "Job", "ReplicationController"];

/// Pools with imported addresses.
pub(super) struct ImportedPools {
    pools: Arc<Cache<NamedPool>>,
    followed: Once,
}

impl Default for ImportedPools {
    fn default() -> ImportedPools {
        ImportedPools {
            pools: Arc::new(Cache::new("ippools with imported addresses")),
            followed: Once::new(),
        }
    }
}

impl BlockProvider {
    /// Returns a receiver that is notified when pools get or lose imported addresses.
    pub(crate) fn imported_changes(&self) -> Receiver<u64> {
        self.imported_pools().changes()
    }

    /// Whether a pool has imported addresses; `None` while that is unknown.
    pub(crate) fn has_imported(&self, pool: &str) -> Option<bool> {
        let pools = self.imported_pools();
        pools.is_synced().then(|| pools.all().iter().any(|known| known.name == pool))
    }

    /// Answers a request for a pod's imported addresses.
    pub(super) async fn find_imported(
        &self,
        request: &AllocateRequest,
        pod: Option<&Pod>,
        metrics: &Metrics,
    ) -> AllocateResponse {
        let pools = self.imported_pools();
        if timeout(SYNC_MAX, pools.synced()).await.is_err() {
            return AllocateResponse::unavailable(
                "the API server does not answer: imported addresses are unknown",
            );
        }
        let found = pools.all().into_iter().find(|pool| pool.serves(&request.pool));
        let Some(pool) = found else {
            return with_imported(ImportedAddresses { of_pod: Vec::new(), in_pool: false });
        };
        match self.imported_addresses(&pool.name, request, pod, metrics).await {
            Ok(of_pod) => with_imported(ImportedAddresses { of_pod, in_pool: true }),
            Err(why) => AllocateResponse::unavailable(why),
        }
    }

    async fn imported_addresses(
        &self,
        pool: &str,
        request: &AllocateRequest,
        pod: Option<&Pod>,
        metrics: &Metrics,
    ) -> Result<Vec<ClaimedAddress>, String> {
        let own = self.own_blocks();
        let no_answer = |_| "the API server does not answer: imported addresses are unknown".to_owned();
        timeout(SYNC_MAX, own.synced()).await.map_err(no_answer)?;
        let own = own.all().into_iter().filter_map(|owned| Option::clone(&owned));
        let own = own.filter(|owned| owned.pool == pool).map(|owned| owned.object);
        let found = of_interface(own, request);
        // Of several addresses another interface of the pod may have leased one a moment ago.
        if found.len() == 1 || found.is_empty() && pod.is_some_and(has_unique_name) {
            return Ok(found);
        }
        metrics.address_requests.inc();
        let blocks = Api::<BlockObject>::all(self.client.clone());
        let wanted = addresses_of(pool, &request.pod.namespace, &request.pod.name);
        let listed = timeout(ASK_MAX, blocks.list(&wanted)).await.map_err(no_answer)?;
        let listed = listed.map_err(|error| format!("list ipblocks: {}", api_error::describe(&error)))?;
        Ok(of_interface(listed.items.iter().filter_map(BlockObject::object), request))
    }

    /// Returns the cache for pools with imported addresses. The first call starts the watch.
    fn imported_pools(&self) -> &Cache<NamedPool> {
        self.imported.followed.call_once(|| {
            let (all, pools) = (Api::<PoolObject>::all, Arc::clone(&self.imported.pools));
            let imported = Config::default().labels(&pools_with_imported());
            tokio::spawn(follow(self.client.clone(), all, imported, pools));
        });
        &self.imported.pools
    }
}

fn with_imported(imported: ImportedAddresses) -> AllocateResponse {
    AllocateResponse { imported: Some(imported), ..AllocateResponse::default() }
}

/// Returns the addresses that were imported for the requested interface: first those whose claim names it,
/// then those that it leases, then the pod's others whose interface is unknown. Another interface on the pod
/// may lease one.
fn of_interface(objects: impl Iterator<Item = IpBlock>, request: &AllocateRequest) -> Vec<ClaimedAddress> {
    let (pod, interface) = (&request.pod, interface_of(&request.owner));
    let claimed = objects.filter(IpBlock::is_single_address).filter_map(|object| {
        let claim = ImportedClaim::parse(&object.holder.claim)?;
        let leased_by = Some(interface_of(&object.holder.owner)).filter(|_| !object.holder.node.is_empty());
        let rank = match leased_by {
            _ if claim.interface == interface => 0,
            Some(other) if other == interface => 1,
            Some(_) => return None,
            None => 2,
        };
        let is_own = claim.is_of(&pod.namespace, &pod.name, interface);
        let address = object.net.addr();
        is_own.then(|| (rank, ClaimedAddress { address, claim: object.holder.claim.clone() }))
    });
    let mut claimed: Vec<(u8, ClaimedAddress)> = claimed.collect();
    claimed.sort_by_key(|(rank, claimed)| (*rank, claimed.address));
    claimed.into_iter().map(|(_, claimed)| claimed).collect()
}

/// Interface in an owner, which is pod uid, container and interface.
fn interface_of(owner: &str) -> &str {
    owner.rsplit('/').next().unwrap_or_default()
}

/// Whether no other pod had or gets this one's name.
fn has_unique_name(pod: &Pod) -> bool {
    pod.controller.as_ref().is_some_and(|owner| UNIQUE_NAMES.contains(&owner.kind.as_str()))
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use ipam::{AddressFilter, Holder, Range};
    use ipnet::IpNet;
    use npwg::metadata::PodController;
    use npwg::plan::PodIdentity;
    use rpc::allocate::{Operation, PoolReference};

    use super::*;

    #[test]
    fn imported_address_of_a_recurring_name_is_searched_elsewhere() {
        let pod = |kind: &str| Pod {
            controller: (!kind.is_empty())
                .then(|| PodController { kind: kind.into(), ..PodController::default() }),
            ..Pod::default()
        };
        for (kind, is_unique) in [
            ("ReplicaSet", true),
            ("Job", true),
            ("StatefulSet", false),
            ("VirtualMachineInstance", false),
            ("", false),
        ] {
            assert_eq!(has_unique_name(&pod(kind)), is_unique, "{kind}");
        }
    }

    fn request(interface: &str) -> AllocateRequest {
        let range = "10.0.0.0/24".parse().unwrap();
        AllocateRequest {
            pool: PoolReference { name: "p".into(), must_exist: false, network: String::new(), range },
            filter: AddressFilter::new(Range::between(range, None, None).unwrap(), &[]),
            store: "p".into(),
            directory: "/d".into(),
            blocks: Vec::new(),
            operation: Operation::FindImported,
            pod: PodIdentity { namespace: "blue".into(), name: "web-0".into(), ..PodIdentity::default() },
            owner: format!("uid/c2/{interface}"),
            claim: String::new(),
            shares_claim: false,
            quarantine: 0,
        }
    }

    /// Address whose claim names an interface or none, and the interface that leases it.
    fn imported(ip: &str, interface: &str, leased_by: Option<&str>) -> IpBlock {
        let claim = ImportedClaim {
            namespace: "blue".into(),
            pod: "web-0".into(),
            interface: interface.into(),
            node: "n1".into(),
        };
        let owner = leased_by.map_or_else(String::new, |by| format!("uid/c1/{by}"));
        let node = leased_by.map_or_else(String::new, |_| "n1".into());
        let holder = Holder { node, owner, claim: claim.name(), ..Holder::default() };
        let net = IpNet::from(ip.parse::<IpAddr>().unwrap());
        IpBlock { net, uid: "u".into(), version: "1".into(), holder, reserved: Vec::new() }
    }

    #[test]
    fn imported_addresses_of_unknown_interface_have_one_each() {
        let of = |objects: &[IpBlock], interface: &str| -> Vec<String> {
            let found = of_interface(objects.iter().cloned(), &request(interface));
            found.iter().map(|found| found.address.to_string()).collect()
        };
        let free = [imported("10.0.0.3", "", None), imported("10.0.0.2", "", None)];
        assert_eq!(of(&free, "net1"), ["10.0.0.2", "10.0.0.3"]);
        // The first interface has its address: it gets the same again, and the second one gets the other.
        let one = [imported("10.0.0.3", "", None), imported("10.0.0.2", "", Some("net1"))];
        assert_eq!(of(&one, "net1"), ["10.0.0.2", "10.0.0.3"]);
        assert_eq!(of(&one, "net2"), ["10.0.0.3"]);
        let both = [imported("10.0.0.3", "", Some("net2")), imported("10.0.0.2", "", Some("net1"))];
        assert_eq!([of(&both, "net1"), of(&both, "net2")], [["10.0.0.2"], ["10.0.0.3"]]);
        assert_eq!(of(&both, "net3"), [""; 0]);
        // A known interface comes first.
        let known = [imported("10.0.0.2", "", None), imported("10.0.0.9", "net1", Some("net1"))];
        assert_eq!(
            [of(&known, "net1"), of(&known, "net2")],
            [vec!["10.0.0.9", "10.0.0.2"], vec!["10.0.0.2"]]
        );
    }
}
