//! Pool that an address on a pod comes from; pools in several address spaces may contain the address.
//!
//! The first match counts: the pool in which the address is leased for the pod, in which the pod's node
//! leases the block, or the smallest pool.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

use crate::cluster_snapshot::{ClusterSnapshot, Holder};
use crate::ip_claim::OF_CLAIM;
use crate::virtual_machine::OF_MACHINE;

/// Address in a pod's network-status.
#[derive(Debug)]
pub(crate) struct AddressUse<'a> {
    pub(crate) pod: &'a Holder,
    pub(crate) ip: IpAddr,
    /// Network name in the status.
    pub(crate) network: &'a str,
    /// Pools that may contain the address: several if nothing tells them apart, none if no pool contains it.
    pub(crate) pools: Vec<&'a str>,
    /// Object that contains the address in the first pool.
    pub(crate) lessor: Option<Lessor<'a>>,
}

/// Holder of the object that contains an address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lessor<'a> {
    /// Node; empty: none.
    pub(crate) node: &'a str,
    /// Uid of the pod that has a single address.
    uid: &'a str,
    /// Whether the object is a single address.
    pub(crate) is_single: bool,
    /// Whether several pods may have the address, as during a live migration.
    pub(crate) is_shared: bool,
}

/// Certainty that an address comes from a pool, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Match {
    Pod,
    Node,
    Other,
    None,
}

/// Objects by pool and range.
struct Lessors<'a> {
    all: BTreeMap<(&'a str, IpNet), Lessor<'a>>,
    lengths: BTreeMap<&'a str, BTreeSet<u8>>,
}

impl<'a> AddressUse<'a> {
    /// Returns all addresses that pods show.
    pub(crate) fn all(snapshot: &'a ClusterSnapshot) -> Vec<AddressUse<'a>> {
        let lessors = Lessors::of(snapshot);
        let pools: Vec<(IpNet, &str)> = snapshot
            .ranges()
            .into_iter()
            .map(|(range, pool)| (range, pool.metadata.name.as_deref().unwrap_or_default()))
            .collect();
        let mut all = Vec::new();
        for pod in snapshot.pods.values() {
            for (ip, _, network) in &pod.addresses {
                let (pools, lessor) = lessors.pools_of(&pools, pod, *ip);
                all.push(AddressUse { pod, ip: *ip, network, pools, lessor });
            }
        }
        all
    }
}

impl<'a> Lessors<'a> {
    fn of(snapshot: &'a ClusterSnapshot) -> Lessors<'a> {
        let (mut all, mut lengths) = (BTreeMap::new(), BTreeMap::<&str, BTreeSet<u8>>::new());
        for block in &snapshot.blocks {
            let Some(object) = block.object() else { continue };
            let spec = &block.spec;
            let uid = spec.owner.split('/').next().unwrap_or_default();
            let is_shared = [OF_CLAIM, OF_MACHINE].iter().any(|prefix| spec.claim.starts_with(prefix));
            let lessor = Lessor { node: &spec.node, uid, is_single: object.is_single_address(), is_shared };
            lengths.entry(&spec.pool).or_default().insert(object.net.prefix_len());
            all.insert((spec.pool.as_str(), object.net), lessor);
        }
        Lessors { all, lengths }
    }

    /// Returns the smallest object that contains an address.
    fn around(&self, pool: &'a str, ip: IpAddr) -> Option<Lessor<'a>> {
        let lengths = self.lengths.get(pool)?.iter().rev();
        let nets = lengths.filter_map(|length| IpNet::new(ip, *length).ok());
        nets.filter_map(|net| self.all.get(&(pool, net.trunc())).copied()).next()
    }

    fn pools_of(
        &self,
        pools: &[(IpNet, &'a str)],
        pod: &Holder,
        ip: IpAddr,
    ) -> (Vec<&'a str>, Option<Lessor<'a>>) {
        let mut found: Vec<(Match, &str, Option<Lessor<'_>>)> = pools
            .iter()
            .filter(|(range, _)| range.contains(&ip))
            .map(|(_, pool)| {
                let lessor = self.around(pool, ip);
                let how = match lessor {
                    Some(Lessor { uid, is_single: true, .. }) if !uid.is_empty() && uid == pod.uid => {
                        Match::Pod
                    }
                    Some(Lessor { node, .. }) if !node.is_empty() && node == pod.node => Match::Node,
                    Some(_) => Match::Other,
                    None => Match::None,
                };
                (how, *pool, lessor)
            })
            .collect();
        found.sort_by_key(|(how, ..)| *how);
        let Some((best, _, lessor)) = found.first().copied() else { return (Vec::new(), None) };
        let most = if best <= Match::Node { usize::MAX } else { 1 };
        let same = found.iter().filter(|(how, ..)| *how == best).take(most);
        (same.map(|(_, pool, _)| *pool).collect(), lessor)
    }
}
