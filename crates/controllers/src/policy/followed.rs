//! Objects that the policy controller watches, and how they change the index.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::runtime::watcher::Config;
use kube::{Api, Client};
use npwg::metadata::{Labels, NetworkReference};
use policy_api::policy_object::WatchedPolicy;
use policy_api::policy_watch::follow_policies;
use serde::de::DeserializeOwned;
use tokio::sync::watch::Receiver;
use tokio::task::yield_now;

use crate::policy::address_verifier::{
    AddressVerifier, IsVerified, LeasedBlock, LeasedBlockObject, VerifiedNetworkObject,
};
use crate::policy::peer_index::{Changed, PeerIndex};
use crate::policy::peer_pods::{PeerPod, PeerPodObject};
use crate::policy::written_set::{WrittenSet, WrittenSetObject};
use kube_support::cache::changed_keys::{Changed as ChangedObjects, ChangedKeys};
use kube_support::cache::{Cache, follow};
use kube_support::resources::{Key, NamespaceObject, Reduced};

/// Number of objects in one response: address sets have up to 1 MiB, and a page is in memory as a whole.
const PAGE: u32 = 200;
const SETS_PAGE: u32 = 10;

/// Time after which other tasks of the process run.
const STEP_MAX: Duration = Duration::from_millis(20);

/// Caches of the watched objects.
pub(super) struct Caches {
    pub(super) policies: Arc<Cache<WatchedPolicy>>,
    pub(super) pods: Arc<Cache<PeerPod>>,
    pub(super) namespaces: Arc<Cache<Labels>>,
    pub(super) sets: Arc<Cache<WrittenSet>>,
    networks: Arc<Cache<IsVerified>>,
    blocks: Arc<Cache<LeasedBlock>>,
}

/// Changes of the caches since they were last applied.
pub(super) struct Changes {
    policies: ChangedKeys,
    pods: ChangedKeys,
    namespaces: ChangedKeys,
    sets: ChangedKeys,
    networks: ChangedKeys,
    blocks: ChangedKeys,
    receivers: [Receiver<u64>; 6],
}

/// Index of what the caches contain.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) index: PeerIndex,
    pub(super) verifier: AddressVerifier,
}

// === impl Caches ===

impl Caches {
    /// Starts to watch.
    pub(super) fn follow(client: &Client) -> Caches {
        let policies = Arc::new(Cache::new("multi-networkpolicies"));
        tokio::spawn(follow_policies(client.clone(), Arc::clone(&policies)));
        Caches {
            policies,
            pods: followed::<PeerPodObject>(client, "pods"),
            namespaces: followed::<NamespaceObject>(client, "namespaces"),
            sets: followed_by::<WrittenSetObject>(client, "policyaddresssets", SETS_PAGE),
            networks: followed::<VerifiedNetworkObject>(client, "network-attachment-definitions"),
            blocks: followed::<LeasedBlockObject>(client, "ipblocks"),
        }
    }

    /// Waits until a complete list of each kind was read: if only some pods were known, the addresses of all others
    /// would be removed.
    pub(super) async fn synced(&self) {
        self.policies.synced().await;
        self.pods.synced().await;
        self.namespaces.synced().await;
        self.sets.synced().await;
        self.networks.synced().await;
        self.blocks.synced().await;
    }

    /// Returns the kinds of which no complete list was read.
    pub(super) fn waited(&self) -> Vec<String> {
        let all = [
            self.policies.waited(),
            self.pods.waited(),
            self.namespaces.waited(),
            self.sets.waited(),
            self.networks.waited(),
            self.blocks.waited(),
        ];
        all.into_iter().flatten().collect()
    }

    /// Returns the changes from now on; the first time, all objects.
    pub(super) fn changes(&self) -> Changes {
        Changes {
            policies: self.policies.changed_keys(),
            pods: self.pods.changed_keys(),
            namespaces: self.namespaces.changed_keys(),
            sets: self.sets.changed_keys(),
            networks: self.networks.changed_keys(),
            blocks: self.blocks.changed_keys(),
            receivers: [
                self.policies.changes(),
                self.pods.changes(),
                self.namespaces.changes(),
                self.sets.changes(),
                self.networks.changes(),
                self.blocks.changes(),
            ],
        }
    }

    /// Applies changes to the state. Returns the policies that changed, and the address sets that may have to be written.
    pub(super) async fn apply(&self, changes: &mut Changes, state: &mut State) -> Changed {
        changes.receivers.iter_mut().for_each(Receiver::mark_unchanged);
        let State { index, verifier } = state;
        let mut pods = keys(&changes.pods, &self.pods, || index.pods().cloned().collect());
        let known = || verifier.networks().map(|network| (network.namespace.clone(), network.name.clone()));
        for key in keys(&changes.networks, &self.networks, || known().collect()) {
            let network = NetworkReference::new(&key.0, &key.1);
            let is_verified = self.networks.find(&key).is_some_and(|network| network.0);
            if verifier.set_network(&network, is_verified) {
                pods.extend(index.pods_on(&network).cloned());
            }
        }
        let known = || verifier.blocks().map(|name| (String::new(), name.clone()));
        for key in keys(&changes.blocks, &self.blocks, || known().collect()) {
            pods.extend(verifier.set_block(&key.1, self.blocks.find(&key).as_deref()));
        }
        let known = || index.namespaces().map(|name| (String::new(), name.clone()));
        for key in keys(&changes.namespaces, &self.namespaces, || known().collect()) {
            index.set_namespace(&key.1, self.namespaces.find(&key).as_deref());
        }
        let mut pace = Pace::default();
        for key in pods {
            pace.step().await;
            index.set_pod(&key, verifier.verify(&key, self.pods.find(&key).as_deref()));
        }
        let known = || index.policies().map(|(key, _)| key.clone());
        for key in keys(&changes.policies, &self.policies, || known().collect()) {
            pace.step().await;
            index.set_policy(&key, self.policies.find(&key));
        }
        let mut changed = index.take_changed();
        changed.sets.extend(keys(&changes.sets, &self.sets, BTreeSet::new));
        changed
    }
}

impl Changes {
    /// Waits for the next change.
    pub(super) async fn next(&mut self) {
        let [one, two, three, four, five, six] = &mut self.receivers;
        // It cannot fail: the caches keep the senders.
        let _ = tokio::select! {
            changed = one.changed() => changed,
            changed = two.changed() => changed,
            changed = three.changed() => changed,
            changed = four.changed() => changed,
            changed = five.changed() => changed,
            changed = six.changed() => changed,
        };
    }
}

/// Long work in steps, between which other tasks run: the renewal of the Lease must not wait for thousands of policies.
#[derive(Debug)]
struct Pace(Instant);

impl Default for Pace {
    fn default() -> Pace {
        Pace(Instant::now())
    }
}

impl Pace {
    async fn step(&mut self) {
        if self.0.elapsed() >= STEP_MAX {
            yield_now().await;
            self.0 = Instant::now();
        }
    }
}

/// Returns a cache that follows all objects of a kind.
fn followed<K>(client: &Client, kind: &'static str) -> Arc<Cache<K::Form>>
where
    K: Reduced + Clone + Debug + DeserializeOwned + Send + 'static,
{
    followed_by::<K>(client, kind, PAGE)
}

fn followed_by<K>(client: &Client, kind: &'static str, page: u32) -> Arc<Cache<K::Form>>
where
    K: Reduced + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let (cache, selection) = (Arc::new(Cache::new(kind)), Config::default().page_size(page));
    tokio::spawn(follow(client.clone(), Api::<K>::all, selection, Arc::clone(&cache)));
    cache
}

/// Returns the keys of the objects that may have changed. `known` are those of which the index knows.
fn keys<T: PartialEq>(
    changes: &ChangedKeys,
    cache: &Cache<T>,
    known: impl FnOnce() -> BTreeSet<Key>,
) -> BTreeSet<Key> {
    match changes.take() {
        ChangedObjects::Keys(keys) => keys,
        ChangedObjects::All => {
            let mut keys = known();
            keys.extend(cache.keys());
            keys
        }
    }
}
