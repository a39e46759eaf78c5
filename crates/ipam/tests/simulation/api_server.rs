//! Simulated API server: objects by name, with lost requests, lost answers, delays and conflicts.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use ipam::registry::PoolState;
use ipam::{Holder, IpBlock, PoolLayout, Registry, RegistryError};
use ipnet::IpNet;

/// Random numbers by seed: xorshift64*.
#[derive(Debug, Clone)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// Returns the next number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % bound.max(1)
    }

    /// Returns true once in `n` times on average.
    pub(crate) fn once_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// State of the server.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) objects: BTreeMap<IpNet, IpBlock>,
    /// Uids of the objects that were deleted manually and remain because they are in use.
    deleted: BTreeSet<String>,
    /// Whether a deletion protects objects in use. Without manual deletions it is off, so that a deletion is one
    /// request and the seeds in `FAILED_BEFORE` keep their meaning.
    pub(crate) protects: bool,
    /// Names of the deleted pods.
    pub(crate) deleted_pods: BTreeSet<String>,
    /// Addresses in the status of pods.
    pub(crate) shown: BTreeSet<IpAddr>,
    /// Nodes that are dead and fenced off.
    pub(crate) dead: BTreeSet<String>,
    pub(crate) random: Random,
    /// Fault rate: one in this many requests fails; 0 for none.
    pub(crate) trouble: u64,
    pub(crate) down: bool,
    pub(crate) requests: u64,
    /// Single addresses that the pool has recorded.
    pub(crate) recorded: BTreeSet<IpNet>,
    /// Single addresses that were leased by requests without a quarantine, with the attachments that hold them.
    pub(crate) leased_in_quarantine: BTreeMap<IpNet, String>,
    /// Layout of the pool; `None` while it is pending.
    pub(crate) layout: Option<PoolLayout>,
    /// Number of new blocks whose single addresses were read, and of those that were not.
    pub(crate) pool_states: [u64; 2],
    versions: u64,
}

/// Connection to the server.
#[derive(Debug, Clone)]
pub(crate) struct Api {
    pub(crate) server: Arc<Mutex<Server>>,
    pub(crate) partitioned: Arc<Mutex<bool>>,
    /// Layout of the pool as it was read; `None` if it never changes.
    layout: Option<PoolLayout>,
    /// Whether the quarantine is ignored.
    ignores_quarantine: bool,
}

impl Api {
    pub(crate) fn new(seed: u64) -> Api {
        let server = Server {
            objects: BTreeMap::new(),
            deleted: BTreeSet::new(),
            protects: false,
            deleted_pods: BTreeSet::new(),
            shown: BTreeSet::new(),
            dead: BTreeSet::new(),
            random: Random(seed.wrapping_mul(0x9e37_79b9).wrapping_add(88_172_645_463_325_252)),
            trouble: 12,
            down: false,
            requests: 0,
            recorded: BTreeSet::new(),
            leased_in_quarantine: BTreeMap::new(),
            layout: None,
            pool_states: [0; 2],
            versions: 0,
        };
        let (server, partitioned) = (Arc::new(Mutex::new(server)), Arc::default());
        Api { server, partitioned, layout: None, ignores_quarantine: false }
    }

    /// Opens a connection for another node.
    pub(crate) fn connect(&self) -> Api {
        Api { partitioned: Arc::default(), layout: None, ..self.clone() }
    }

    /// Returns the same connection for a task that has read this layout of the pool.
    pub(crate) fn with_layout(&self, layout: PoolLayout) -> Api {
        Api { layout: Some(layout), ..self.clone() }
    }

    /// Returns the same connection for a request that may ignore the quarantine.
    pub(crate) fn with_quarantine(self, quarantine: u64) -> Api {
        Api { ignores_quarantine: quarantine == 0, ..self }
    }

    /// Makes the layout of the pool pending.
    pub(crate) async fn begin_change(&self) -> Result<(), RegistryError> {
        self.request(|server| {
            server.layout = None;
            Ok(())
        })
        .await
    }

    /// Fixes the layout of the pool, with a record of exactly these single addresses.
    pub(crate) async fn fix_layout(
        &self,
        layout: PoolLayout,
        singles: BTreeSet<IpNet>,
    ) -> Result<(), RegistryError> {
        self.request(|server| {
            (server.layout, server.recorded) = (Some(layout), singles);
            Ok(())
        })
        .await
    }

    /// Returns the nodes that are dead and fenced off.
    pub(crate) async fn dead(&self) -> Result<BTreeSet<String>, RegistryError> {
        self.request(|server| Ok(server.dead.clone())).await
    }

    /// Whether the status of a pod contains an address.
    pub(crate) async fn shows(&self, ip: IpAddr) -> Result<bool, RegistryError> {
        self.request(|server| Ok(server.shown.contains(&ip))).await
    }

    /// Makes a request: it is delayed, may be lost, and its answer may be lost.
    async fn request<T>(
        &self,
        work: impl FnOnce(&mut Server) -> Result<T, RegistryError>,
    ) -> Result<T, RegistryError> {
        let lost = || Err(RegistryError::Unknown("lost".into()));
        let (delay_before, delay_after, loses_request, loses_answer) = {
            let server = &mut *self.server.lock().unwrap();
            server.requests += 1;
            let trouble = server.trouble;
            let random = &mut server.random;
            let once = |random: &mut Random| trouble > 0 && random.once_in(trouble * 2);
            (random.below(4), random.below(4), once(random), once(random))
        };
        Pause(delay_before).await;
        if loses_request || *self.partitioned.lock().unwrap() || self.server.lock().unwrap().down {
            return lost();
        }
        let done = work(&mut self.server.lock().unwrap());
        Pause(delay_after).await;
        if loses_answer || *self.partitioned.lock().unwrap() { lost() } else { done }
    }
}

/// Task of a simulated process.
pub(crate) type Task<T> = Pin<Box<dyn Future<Output = T>>>;

/// Polls a task until it ends.
pub(crate) fn block_on<T>(task: impl Future<Output = T>) -> T {
    let mut task = pin!(task);
    loop {
        if let Poll::Ready(done) = task.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return done;
        }
    }
}

/// Delay of this many polls.
pub(crate) struct Pause(pub(crate) u64);

impl Future for Pause {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        if self.0 == 0 {
            return Poll::Ready(());
        }
        self.0 -= 1;
        Poll::Pending
    }
}

impl Server {
    fn version(&mut self) -> String {
        self.versions += 1;
        self.versions.to_string()
    }

    /// Changes the objects of a node, as the agent's answer to a liveness probe does, and returns their leases.
    pub(crate) fn answer_probe(&mut self, node: &str) -> BTreeSet<String> {
        let mut leases = BTreeSet::new();
        for net in self.objects.keys().copied().collect::<Vec<_>>() {
            let version = self.version();
            let object = self.objects.get_mut(&net).expect("its name is there");
            if object.holder.node == node {
                object.version = version;
                leases.insert(object.lease_id());
            }
        }
        leases
    }

    /// Deletes an object manually; returns whether it remains because it is in use.
    pub(crate) fn delete_manually(&mut self, net: IpNet) -> bool {
        let Some(object) = self.objects.get(&net) else { return false };
        let is_in_use = object.is_in_use();
        if is_in_use {
            self.deleted.insert(object.uid.clone());
        } else {
            self.objects.remove(&net);
        }
        is_in_use
    }

    /// Blocks of a node that were deleted manually.
    pub(crate) fn deleted_blocks_of(&self, node: &str) -> Vec<IpBlock> {
        let is_deleted = |object: &IpBlock| object.holder.node == node && self.deleted.contains(&object.uid);
        self.list(|object| is_deleted(object) && !object.is_single_address())
    }

    /// Changes an object, if it was not changed since. `over` removes it if it was deleted manually.
    fn change(&mut self, object: &IpBlock, over: bool) -> Result<IpBlock, RegistryError> {
        let version = self.version();
        match self.objects.get_mut(&object.net) {
            Some(known) if known.uid == object.uid && known.version == object.version => {
                *known = IpBlock { version, ..object.clone() };
                let changed = known.clone();
                if changed.holder.node.is_empty() {
                    self.leased_in_quarantine.remove(&changed.net);
                }
                if over && self.deleted.remove(&changed.uid) {
                    self.objects.remove(&changed.net);
                }
                Ok(changed)
            }
            _ => Err(RegistryError::Conflict),
        }
    }

    fn list(&self, wanted: impl Fn(&IpBlock) -> bool) -> Vec<IpBlock> {
        self.objects.values().filter(|object| wanted(object)).cloned().collect()
    }
}

impl Registry for Api {
    async fn create(&self, net: IpNet, holder: &Holder) -> Result<IpBlock, RegistryError> {
        self.request(|server| {
            if server.objects.contains_key(&net) {
                return Err(RegistryError::Conflict);
            }
            let (uid, version) = (format!("u{}", server.version()), server.version());
            let object = IpBlock { net, uid, version, holder: holder.clone(), reserved: Vec::new() };
            server.objects.insert(net, object.clone());
            Ok(object)
        })
        .await
    }

    async fn read(&self, net: IpNet) -> Result<Option<IpBlock>, RegistryError> {
        self.request(|server| Ok(server.objects.get(&net).cloned())).await
    }

    async fn single_addresses_in(&self, block: IpNet) -> Result<Vec<IpBlock>, RegistryError> {
        self.request(|server| Ok(server.list(|object| object.net != block && block.contains(&object.net))))
            .await
    }

    async fn list(&self) -> Result<Vec<IpBlock>, RegistryError> {
        self.request(|server| Ok(server.list(|_| true))).await
    }

    async fn list_of_store(&self, node: &str, store: &str) -> Result<Vec<IpBlock>, RegistryError> {
        self.request(|server| {
            Ok(server.list(|object| object.holder.node == node && object.holder.store == store))
        })
        .await
    }

    async fn list_of_claim(&self, claim: &str) -> Result<Vec<IpBlock>, RegistryError> {
        self.request(|server| Ok(server.list(|object| object.holder.claim == claim))).await
    }

    async fn replace(&self, object: &IpBlock) -> Result<IpBlock, RegistryError> {
        self.request(|server| {
            let changed = server.change(object, !object.is_in_use())?;
            if self.ignores_quarantine && !changed.holder.node.is_empty() {
                server.leased_in_quarantine.insert(changed.net, changed.holder.owner.clone());
            }
            Ok(changed)
        })
        .await
    }

    async fn replace_requests(&self, object: &IpBlock) -> Result<IpBlock, RegistryError> {
        self.request(|server| server.change(object, false)).await
    }

    async fn delete(&self, object: &IpBlock) -> Result<(), RegistryError> {
        let mut object = object.clone();
        if object.is_in_use() && self.server.lock().unwrap().protects {
            // The object is free from here on, and may be deleted manually.
            object = self.request(|server| server.change(&object, true)).await?;
        }
        self.request(|server| match server.objects.get(&object.net) {
            None => Ok(()),
            Some(known) if known.uid == object.uid && known.version == object.version => {
                server.objects.remove(&object.net);
                Ok(())
            }
            Some(_) => Err(RegistryError::Conflict),
        })
        .await
    }

    async fn pool_state(&self, net: IpNet) -> Result<PoolState, RegistryError> {
        self.request(|server| {
            if self.layout.is_some() && server.layout != self.layout {
                return Ok(PoolState::Changed);
            }
            let is_mixed = server.recorded.iter().any(|single| net.contains(single));
            if net.prefix_len() < net.max_prefix_len() {
                server.pool_states[usize::from(!is_mixed)] += 1;
            }
            Ok(if is_mixed { PoolState::SingleAddressesPossible } else { PoolState::NoSingleAddresses })
        })
        .await
    }

    async fn record_single_address(&self, net: IpNet) -> Result<(), RegistryError> {
        // A record that was read before needs no request.
        if self.server.lock().unwrap().recorded.contains(&net) {
            return Ok(());
        }
        self.request(|server| {
            // Under another layout the record is that of another section.
            if self.layout.is_none() || server.layout == self.layout {
                server.recorded.insert(net);
            }
            Ok(())
        })
        .await
    }

    async fn is_pod_deleted(&self, owner: &str) -> Result<bool, RegistryError> {
        self.request(|server| Ok(server.deleted_pods.contains(owner))).await
    }

    async fn wait_for_transfer(&self, check: u32) {
        Pause(u64::from(check) * 20).await;
    }
}
