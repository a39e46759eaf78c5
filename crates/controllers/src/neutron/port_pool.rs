//! Pools with unused ports, by node, subnet and security groups.
//!
//! - A pool that runs low is filled by one bulk request at a time. A pod that finds the pool empty waits for that
//!   request.
//! - A returned port is pooled again unless the pool is full. Only the pod that took a port can return it,
//!   whatever other pods name.
//! - After a restart, pooled ports are recognized by tags.
//!
//! Source: Kuryr-Kubernetes `vif_pool.py`, `[vif_pool]`.

pub(crate) mod backoff;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use neutron::port::Port;
use tracing::debug;

use crate::neutron::port_rules::Pool;

/// Pool key: the ports in one pool are interchangeable.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PoolKey {
    /// Node name.
    pub(crate) host: String,
    /// Subnet id.
    pub(crate) subnet: String,
    /// Security groups, sorted.
    pub(crate) groups: Vec<String>,
}

/// All pools, and the ports taken from them.
#[derive(Debug)]
pub(crate) struct Pools {
    settings: Pool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    waiting: BTreeMap<PoolKey, VecDeque<Port>>,
    /// Ports that pods took from pools, by port id.
    taken: BTreeMap<String, Taken>,
    filling: BTreeMap<PoolKey, Arc<tokio::sync::Mutex<()>>>,
}

#[derive(Debug)]
struct Taken {
    key: PoolKey,
    port: Port,
    /// Pod uid; none if several pods name the port after a restart.
    pod: Option<String>,
}

/// User of a port, as written on pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum User {
    /// The pod with this uid.
    Pod(String),
    /// A pod, but it is uncertain which one.
    Uncertain,
}

/// Outcome for a returned port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReturnOutcome {
    /// The port is in the pool again.
    Pooled,
    /// The pool is full: the port is to be deleted.
    Surplus,
    /// The port is in a pool already, or another pod may have it.
    Kept,
    /// The port belongs to no pool.
    Unknown,
}

// === impl Pools ===

impl Pools {
    pub(crate) fn new(settings: Pool) -> Pools {
        Pools { settings, state: Mutex::new(State::default()) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic leaves no map half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pop(&self, key: &PoolKey, pod: &str) -> Option<Port> {
        let mut state = self.state();
        let port = state.waiting.get_mut(key)?.pop_front()?;
        let taken = Taken { key: key.clone(), port: port.clone(), pod: Some(pod.to_owned()) };
        state.taken.insert(port.id.clone(), taken);
        Some(port)
    }

    /// Returns a pooled port for the pod with this uid. `fill` creates the given number of ports.
    pub(crate) async fn take<F, E>(
        &self,
        key: &PoolKey,
        pod: &str,
        fill: impl Fn(usize) -> F,
    ) -> Result<Port, E>
    where
        F: Future<Output = Result<Vec<Port>, E>>,
    {
        loop {
            if let Some(port) = self.pop(key, pod) {
                return Ok(port);
            }
            let lock = Arc::clone(self.state().filling.entry(key.clone()).or_default());
            let _lock = lock.lock().await;
            if self.state().waiting.get(key).is_none_or(VecDeque::is_empty) {
                let created = fill(self.settings.batch.max(self.settings.min).max(1)).await?;
                self.put(key, created);
            }
        }
    }

    /// Adds ports that were created for a pool.
    fn put(&self, key: &PoolKey, created: Vec<Port>) {
        let mut state = self.state();
        // A concurrent comparison may have registered them, and a pod may have one of them already.
        let State { waiting, taken, .. } = &mut *state;
        let waiting = waiting.entry(key.clone()).or_default();
        for port in created {
            if !taken.contains_key(&port.id) && waiting.iter().all(|known| known.id != port.id) {
                waiting.push_back(port);
            }
        }
    }

    /// Returns the pools that run low, and how many ports they lack. If not `is_quiet`, only those with less
    /// than half of the minimum are returned.
    pub(crate) fn low(&self, is_quiet: bool) -> Vec<(PoolKey, usize)> {
        let Pool { enabled, min, batch, .. } = self.settings;
        let least = if is_quiet { min } else { min.div_ceil(2) };
        let state = self.state();
        let lacks = |(key, ports): (&PoolKey, &VecDeque<Port>)| {
            (enabled && ports.len() < least).then(|| (key.clone(), batch.max(min - ports.len())))
        };
        state.waiting.iter().filter_map(lacks).collect()
    }

    /// Fills a pool that runs low, unless another task does.
    pub(crate) async fn top_up<F, E>(
        &self,
        key: &PoolKey,
        count: usize,
        fill: impl FnOnce(usize) -> F,
    ) -> Result<(), E>
    where
        F: Future<Output = Result<Vec<Port>, E>>,
    {
        let lock = Arc::clone(self.state().filling.entry(key.clone()).or_default());
        let Ok(_lock) = lock.try_lock() else { return Ok(()) };
        debug!(?key, count, "filling port pool");
        let created = fill(count).await?;
        self.put(key, created);
        Ok(())
    }

    /// Forgets a pooled port that a pod had, and that was deleted.
    pub(crate) fn forget(&self, id: &str) {
        self.state().taken.remove(id);
    }

    /// Removes a port from the pool, and the pool if it is empty then. The result is false if the port is not in a
    /// pool.
    pub(crate) fn withdraw(&self, id: &str) -> bool {
        let mut state = self.state();
        let has_it = |ports: &VecDeque<Port>| ports.iter().any(|port| port.id == id);
        let Some((key, ports)) = state.waiting.iter_mut().find(|(_, ports)| has_it(ports)) else {
            return false;
        };
        ports.retain(|port| port.id != id);
        let ended = ports.is_empty().then(|| key.clone());
        if let Some(key) = ended {
            state.waiting.remove(&key);
        }
        true
    }

    /// Takes a port back from a pod. `shared` tells whether another pod names the port, too.
    pub(crate) fn return_port(&self, id: &str, pod: &str, shared: bool) -> ReturnOutcome {
        let mut state = self.state();
        let is_kept = match state.taken.get(id) {
            Some(Taken { pod: Some(owner), .. }) => owner != pod,
            Some(Taken { pod: None, .. }) => shared,
            None => state.waiting.values().flatten().any(|known| known.id == id),
        };
        if is_kept {
            return ReturnOutcome::Kept;
        }
        let Some(Taken { key, mut port, pod: _ }) = state.taken.remove(id) else {
            return ReturnOutcome::Unknown;
        };
        // The port was unplugged, so it is not ACTIVE until its next pod has plugged it in.
        port.status = String::new();
        let waiting = state.waiting.entry(key).or_default();
        let room = self.settings.enabled && (self.settings.max == 0 || waiting.len() < self.settings.max);
        if !room {
            return ReturnOutcome::Surplus;
        }
        waiting.push_back(port);
        ReturnOutcome::Pooled
    }

    /// Registers a port that exists after a restart, as pooled or as a pod's. The result is false if it is to be deleted: no pod
    /// has it, and the pool is full or the port is not bound.
    pub(crate) fn register(&self, port: &Port, groups: Vec<String>, user: Option<&User>) -> bool {
        let Some(ip) = port.fixed_ips.first().filter(|_| self.settings.enabled) else { return false };
        let mut state = self.state();
        let known = state.taken.contains_key(&port.id)
            || state.waiting.values().flatten().any(|known| known.id == port.id);
        if known {
            return true;
        }
        let key = PoolKey { host: port.host_id.clone(), subnet: ip.subnet_id.clone(), groups };
        if let Some(user) = user {
            let pod = match user {
                User::Pod(uid) => Some(uid.clone()),
                User::Uncertain => None,
            };
            state.taken.insert(port.id.clone(), Taken { key, port: port.clone(), pod });
            return true;
        }
        let waiting = state.waiting.entry(key).or_default();
        let room = self.settings.max == 0 || waiting.len() < self.settings.max;
        let room = room && port.is_bound();
        if room {
            waiting.push_back(port.clone());
        }
        room
    }

    /// Returns how many ports are pooled.
    pub(crate) fn count(&self) -> usize {
        self.state().waiting.values().map(VecDeque::len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pools() -> (Pools, PoolKey) {
        let pools = Pools::new(Pool { enabled: true, min: 1, max: 0, batch: 1 });
        (pools, PoolKey { host: "node".into(), subnet: "subnet".into(), groups: Vec::new() })
    }

    fn port(id: &str, status: &str) -> Port {
        Port { id: id.to_owned(), status: status.to_owned(), ..Port::default() }
    }

    #[test]
    fn port_pool_does_not_add_a_taken_port_again() {
        let (pools, key) = pools();
        pools.put(&key, vec![port("a", "DOWN")]);
        assert_eq!(pools.pop(&key, "x").map(|port| port.id).as_deref(), Some("a"));
        pools.put(&key, vec![port("a", "DOWN"), port("b", "DOWN"), port("b", "DOWN")]);
        assert_eq!(pools.pop(&key, "x").map(|port| port.id).as_deref(), Some("b"));
        assert_eq!(pools.pop(&key, "x"), None);
    }

    #[test]
    fn port_pool_half_full_is_filled_in_quiet_moments() {
        let (mut pools, key) = pools();
        pools.settings = Pool { enabled: true, min: 4, max: 0, batch: 3 };
        pools.put(&key, vec![port("a", "DOWN"), port("b", "DOWN")]);
        assert_eq!(pools.low(false), []);
        assert_eq!(pools.low(true), [(key.clone(), 3)]);
        pools.pop(&key, "x");
        assert_eq!(pools.low(false), [(key, 3)], "less than half of the minimum");
    }

    #[test]
    fn port_pool_returned_port_is_not_active() {
        let (pools, key) = pools();
        pools.put(&key, vec![port("a", neutron::port::ACTIVE)]);
        assert_eq!(pools.pop(&key, "x").map(|port| port.status).as_deref(), Some(neutron::port::ACTIVE));
        assert_eq!(pools.return_port("a", "x", false), ReturnOutcome::Pooled);
        assert_eq!(pools.pop(&key, "x").map(|port| port.status).as_deref(), Some(""));
    }

    #[test]
    fn port_pool_takes_a_port_back_from_its_pod_only() {
        let (pools, key) = pools();
        pools.put(&key, vec![port("a", ""), port("b", "")]);
        assert_eq!(pools.pop(&key, "x").map(|port| port.id).as_deref(), Some("a"));
        // Another pod names a taken port and a pooled one.
        assert_eq!(pools.return_port("a", "y", true), ReturnOutcome::Kept);
        assert_eq!(pools.return_port("b", "y", false), ReturnOutcome::Kept);
        assert_eq!(pools.return_port("c", "y", false), ReturnOutcome::Unknown);
        assert_eq!(
            pools.return_port("a", "x", true),
            ReturnOutcome::Pooled,
            "x took it, although y names it"
        );
        assert_eq!(pools.count(), 2);
    }

    #[test]
    fn port_pool_port_named_by_two_pods_is_returned_by_the_last() {
        let (pools, _) = pools();
        let fixed_ips = vec![neutron::port::FixedIp { subnet_id: "s".into(), ip_address: None }];
        let known = Port { id: "a".into(), vif_type: "ovs".into(), fixed_ips, ..Port::default() };
        assert!(pools.register(&known, Vec::new(), Some(&User::Uncertain)));
        assert_eq!(pools.return_port("a", "x", true), ReturnOutcome::Kept);
        assert_eq!(pools.return_port("a", "y", false), ReturnOutcome::Pooled);
    }
}
