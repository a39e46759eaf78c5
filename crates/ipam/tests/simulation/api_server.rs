//! The API server of the simulation: objects by name, and everything that may go wrong on the way to it.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use ipam::registry::{Fault, Holder, Object, Registry, Standing};
use ipnet::IpNet;

/// A generator of numbers by seed: xorshift64*.
#[derive(Debug, Clone)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// The next number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % bound.max(1)
    }

    /// True once in `n` times.
    pub(crate) fn once_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// What the server holds.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) objects: BTreeMap<IpNet, Object>,
    /// Those that a hand has deleted, and that stay because they are somebody's: their uids.
    doomed: BTreeSet<String>,
    /// Do they stay? Where no hand does that, a removal is one request, as the seeds that once failed had it.
    pub(crate) protects: bool,
    pub(crate) gone: BTreeSet<String>,
    /// The addresses that pods show.
    pub(crate) shown: BTreeSet<IpAddr>,
    /// Nodes that are dead and fenced.
    pub(crate) dead: BTreeSet<String>,
    pub(crate) random: Random,
    /// Once in so many requests something goes wrong; 0: never.
    pub(crate) trouble: u64,
    pub(crate) down: bool,
    pub(crate) requests: u64,
    /// The single addresses that the pool was told of.
    pub(crate) told: BTreeSet<IpNet>,
    /// Blocks that were looked into after they were made, and those that were not.
    pub(crate) looked: [u64; 2],
    counter: u64,
}

/// A connection to it.
#[derive(Debug, Clone)]
pub(crate) struct Api {
    pub(crate) server: Arc<Mutex<Server>>,
    pub(crate) partitioned: Arc<Mutex<bool>>,
}

impl Api {
    pub(crate) fn new(seed: u64) -> Api {
        let server = Server {
            objects: BTreeMap::new(),
            doomed: BTreeSet::new(),
            protects: false,
            gone: BTreeSet::new(),
            shown: BTreeSet::new(),
            dead: BTreeSet::new(),
            random: Random(seed.wrapping_mul(0x9e37_79b9).wrapping_add(88_172_645_463_325_252)),
            trouble: 12,
            down: false,
            requests: 0,
            told: BTreeSet::new(),
            looked: [0; 2],
            counter: 0,
        };
        Api { server: Arc::new(Mutex::new(server)), partitioned: Arc::default() }
    }

    /// A connection of another node.
    pub(crate) fn connect(&self) -> Api {
        Api { server: Arc::clone(&self.server), partitioned: Arc::default() }
    }

    /// Which nodes are dead and fenced.
    pub(crate) async fn dead(&self) -> Result<BTreeSet<String>, Fault> {
        self.request(|server| Ok(server.dead.clone())).await
    }

    /// Does a pod show this address?
    pub(crate) async fn shows(&self, ip: IpAddr) -> Result<bool, Fault> {
        self.request(|server| Ok(server.shown.contains(&ip))).await
    }

    /// One request: it is under way for a while, arrives or not, and its answer comes back or not.
    async fn request<T>(&self, work: impl FnOnce(&mut Server) -> Result<T, Fault>) -> Result<T, Fault> {
        let lost = || Err(Fault::Unknown("lost".into()));
        let (wait_before, wait_after, forget, silent) = {
            let server = &mut *self.server.lock().unwrap();
            server.requests += 1;
            let trouble = server.trouble;
            let random = &mut server.random;
            let once = |random: &mut Random| trouble > 0 && random.once_in(trouble * 2);
            (random.below(4), random.below(4), once(random), once(random))
        };
        Pause(wait_before).await;
        if forget || *self.partitioned.lock().unwrap() || self.server.lock().unwrap().down {
            return lost();
        }
        let done = work(&mut self.server.lock().unwrap());
        Pause(wait_after).await;
        if silent || *self.partitioned.lock().unwrap() { lost() } else { done }
    }
}

/// Waits so many turns.
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
        self.counter += 1;
        self.counter.to_string()
    }

    /// A node says that it is there: what it has is changed, and stays. Its leases.
    pub(crate) fn answered_by(&mut self, node: &str) -> BTreeSet<String> {
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

    /// A hand deletes an object; did it stay?
    pub(crate) fn delete_by_hand(&mut self, net: IpNet) -> bool {
        let Some(object) = self.objects.get(&net) else { return false };
        let is_in_use = object.is_in_use();
        match is_in_use {
            true => drop(self.doomed.insert(object.uid.clone())),
            false => drop(self.objects.remove(&net)),
        }
        is_in_use
    }

    /// The blocks of a node that a hand has deleted.
    pub(crate) fn doomed_of(&self, node: &str) -> Vec<Object> {
        let is_doomed = |object: &Object| object.holder.node == node && self.doomed.contains(&object.uid);
        self.list(|object| is_doomed(object) && !object.is_single())
    }

    /// Changes an object, if it is still that one; what a hand has deleted is gone with that, if it is `over`.
    fn change(&mut self, object: &Object, over: bool) -> Result<Object, Fault> {
        let version = self.version();
        match self.objects.get_mut(&object.net) {
            Some(known) if known.uid == object.uid && known.version == object.version => {
                *known = Object { version, ..object.clone() };
                let changed = known.clone();
                if over && self.doomed.remove(&changed.uid) {
                    self.objects.remove(&changed.net);
                }
                Ok(changed)
            }
            _ => Err(Fault::Conflict),
        }
    }

    fn list(&self, wanted: impl Fn(&Object) -> bool) -> Vec<Object> {
        self.objects.values().filter(|object| wanted(object)).cloned().collect()
    }
}

impl Registry for Api {
    async fn create(&self, net: IpNet, holder: &Holder) -> Result<Object, Fault> {
        self.request(|server| {
            if server.objects.contains_key(&net) {
                return Err(Fault::Conflict);
            }
            let (uid, version) = (format!("u{}", server.version()), server.version());
            let object = Object { net, uid, version, holder: holder.clone(), holes: Vec::new() };
            server.objects.insert(net, object.clone());
            Ok(object)
        })
        .await
    }

    async fn read(&self, net: IpNet) -> Result<Option<Object>, Fault> {
        self.request(|server| Ok(server.objects.get(&net).cloned())).await
    }

    async fn inside(&self, block: IpNet) -> Result<Vec<Object>, Fault> {
        self.request(|server| Ok(server.list(|object| object.net != block && block.contains(&object.net))))
            .await
    }

    async fn all(&self) -> Result<Vec<Object>, Fault> {
        self.request(|server| Ok(server.list(|_| true))).await
    }

    async fn of(&self, node: &str, ledger: &str) -> Result<Vec<Object>, Fault> {
        self.request(|server| {
            Ok(server.list(|object| object.holder.node == node && object.holder.ledger == ledger))
        })
        .await
    }

    async fn claimed(&self, claim: &str) -> Result<Vec<Object>, Fault> {
        self.request(|server| Ok(server.list(|object| object.holder.claim == claim))).await
    }

    async fn replace(&self, object: &Object) -> Result<Object, Fault> {
        self.request(|server| server.change(object, !object.is_in_use())).await
    }

    async fn delete(&self, object: &Object) -> Result<(), Fault> {
        let mut object = object.clone();
        if object.is_in_use() && self.server.lock().unwrap().protects {
            // From here on a hand may delete it, or has.
            object = self.request(|server| server.change(&object, true)).await?;
        }
        self.request(|server| match server.objects.get(&object.net) {
            None => Ok(()),
            Some(known) if known.uid == object.uid && known.version == object.version => {
                server.objects.remove(&object.net);
                Ok(())
            }
            Some(_) => Err(Fault::Conflict),
        })
        .await
    }

    async fn standing(&self, net: IpNet) -> Result<Standing, Fault> {
        self.request(|server| {
            let is_mixed = server.told.iter().any(|single| net.contains(single));
            if net.prefix_len() < net.max_prefix_len() {
                server.looked[usize::from(!is_mixed)] += 1;
            }
            Ok(if is_mixed { Standing::Mixed } else { Standing::Whole })
        })
        .await
    }

    async fn tell(&self, net: IpNet) -> Result<(), Fault> {
        // Who has read that it was told already need not.
        if self.server.lock().unwrap().told.contains(&net) {
            return Ok(());
        }
        self.request(|server| {
            server.told.insert(net);
            Ok(())
        })
        .await
    }

    async fn is_gone(&self, owner: &str) -> Result<bool, Fault> {
        self.request(|server| Ok(server.gone.contains(owner))).await
    }

    async fn pause(&self, look: u32) {
        Pause(u64::from(look) * 20).await;
    }
}
