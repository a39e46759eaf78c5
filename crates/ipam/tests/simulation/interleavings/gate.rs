//! Registry in which each request waits until the history lets it through, and may lose it or its answer.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use ipam::registry::PoolState;
use ipam::{Holder, IpBlock, Registry, RegistryError};
use ipnet::IpNet;

/// Fate of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Done,
    Lost,
    AnswerLost,
}

pub(super) const FATES: [Fate; 3] = [Fate::Done, Fate::Lost, Fate::AnswerLost];

/// Step of a history: the node that makes progress, and the fate of its request.
pub(super) type Step = (usize, Fate);

#[derive(Debug, Clone, Default)]
pub(super) struct Server {
    pub(super) objects: Vec<IpBlock>,
    pub(super) versions: u64,
    /// `None` while the pool is deleted, or recreated and not split yet.
    pub(super) pool: Option<Pool>,
    /// Single addresses that the pool has recorded.
    pub(super) recorded: BTreeSet<IpNet>,
}

impl Server {
    pub(super) fn text(&self) -> String {
        format!("{:?}, {:?}", self.objects, self.recorded)
    }
}

/// Pool: the number of earlier pools of its name, and the block size as a power of two.
pub(super) type Pool = (u64, u8);

/// Pool at the beginning, and the recreated one.
pub(super) const POOLS: [Pool; 2] = [(0, 2), (1, 1)];

/// Pool without blocks at the beginning, and the same pool with blocks.
pub(super) const ENLARGED: [Pool; 2] = [(2, 0), (3, 2)];

/// Registry of one node.
#[derive(Clone)]
pub(super) struct Gate {
    pub(super) server: Arc<Mutex<Server>>,
    /// Fate of the waiting request; `None` keeps it waiting.
    pub(super) open: Arc<Mutex<Option<Fate>>>,
    /// Pool as it was read.
    pub(super) pool: Pool,
}

struct Turnstile(Arc<Mutex<Option<Fate>>>);

impl Future for Turnstile {
    type Output = Fate;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Fate> {
        self.0.lock().unwrap().take().map_or(Poll::Pending, Poll::Ready)
    }
}

impl Gate {
    pub(super) async fn request<T>(
        &self,
        work: impl FnOnce(&mut Server) -> Result<T, RegistryError>,
    ) -> Result<T, RegistryError> {
        let unknown = || Err(RegistryError::Unknown("lost".into()));
        match Turnstile(Arc::clone(&self.open)).await {
            Fate::Done => work(&mut self.server.lock().unwrap()),
            Fate::Lost => unknown(),
            Fate::AnswerLost => {
                let _ = work(&mut self.server.lock().unwrap());
                unknown()
            }
        }
    }
}

impl Registry for Gate {
    async fn create(&self, net: IpNet, holder: &Holder) -> Result<IpBlock, RegistryError> {
        self.request(|server| {
            if server.objects.iter().any(|object| object.net == net) {
                return Err(RegistryError::Conflict);
            }
            server.versions += 1;
            let (uid, version) = (format!("u{}", server.versions), server.versions.to_string());
            let object = IpBlock { net, uid, version, holder: holder.clone(), reserved: Vec::new() };
            server.objects.push(object.clone());
            Ok(object)
        })
        .await
    }

    async fn read(&self, net: IpNet) -> Result<Option<IpBlock>, RegistryError> {
        self.request(|server| Ok(server.objects.iter().find(|object| object.net == net).cloned())).await
    }

    async fn single_addresses_in(&self, block: IpNet) -> Result<Vec<IpBlock>, RegistryError> {
        let inside = |object: &&IpBlock| object.net != block && block.contains(&object.net);
        self.request(|server| Ok(server.objects.iter().filter(inside).cloned().collect())).await
    }

    async fn list(&self) -> Result<Vec<IpBlock>, RegistryError> {
        self.request(|server| Ok(server.objects.clone())).await
    }

    async fn list_of_store(&self, node: &str, _: &str) -> Result<Vec<IpBlock>, RegistryError> {
        self.request(|server| {
            Ok(server.objects.iter().filter(|object| object.holder.node == node).cloned().collect())
        })
        .await
    }

    async fn list_of_claim(&self, claim: &str) -> Result<Vec<IpBlock>, RegistryError> {
        self.request(|server| {
            Ok(server.objects.iter().filter(|object| object.holder.claim == claim).cloned().collect())
        })
        .await
    }

    async fn replace(&self, object: &IpBlock) -> Result<IpBlock, RegistryError> {
        self.request(|server| {
            server.versions += 1;
            let version = server.versions.to_string();
            let same = |known: &&mut IpBlock| known.uid == object.uid && known.version == object.version;
            let Some(known) = server.objects.iter_mut().find(same) else {
                return Err(RegistryError::Conflict);
            };
            *known = IpBlock { version, ..object.clone() };
            Ok(known.clone())
        })
        .await
    }

    async fn replace_requests(&self, object: &IpBlock) -> Result<IpBlock, RegistryError> {
        self.replace(object).await
    }

    async fn delete(&self, object: &IpBlock) -> Result<(), RegistryError> {
        self.request(|server| {
            let Some(at) = server.objects.iter().position(|known| known.net == object.net) else {
                return Ok(());
            };
            if server.objects[at].uid != object.uid || server.objects[at].version != object.version {
                return Err(RegistryError::Conflict);
            }
            server.objects.remove(at);
            Ok(())
        })
        .await
    }

    async fn pool_state(&self, net: IpNet) -> Result<PoolState, RegistryError> {
        self.request(|server| {
            let is_mixed = server.recorded.iter().any(|single| net.contains(single));
            Ok(match (server.pool == Some(self.pool), is_mixed) {
                (false, _) => PoolState::Changed,
                (true, true) => PoolState::SingleAddressesPossible,
                (true, false) => PoolState::NoSingleAddresses,
            })
        })
        .await
    }

    async fn record_single_address(&self, net: IpNet) -> Result<(), RegistryError> {
        self.request(|server| {
            // A recreated pool makes the record, too; the answer shows that it is another pool. In an enlarged pool it is
            // the record of another section.
            if self.pool.0 < ENLARGED[0].0 || server.pool == Some(self.pool) {
                server.recorded.insert(net);
            }
            if server.pool == Some(self.pool) {
                Ok(())
            } else {
                Err(RegistryError::Unknown("recreated".into()))
            }
        })
        .await
    }

    async fn is_pod_deleted(&self, _: &str) -> Result<bool, RegistryError> {
        self.request(|_| Ok(false)).await
    }

    async fn wait_for_transfer(&self, _: u32) {}
}
