//! Ports that wait for pods, by where they can be used: node, subnet, security groups.
//!
//! Rules: a pool that runs low is filled in one request for as many as it lacks, by one at a time; who finds it empty waits
//! for that one and takes of what comes. A port that comes back waits again, unless there are enough; it comes back from
//! the pod that took it and from no other, whatever is written on that one. What waits is known by its tags after a
//! restart.
//!
//! Source: Kuryr-Kubernetes `vif_pool.py`, `[vif_pool]`.

pub(crate) mod backoff;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use neutron::port::Port;
use tracing::debug;

use crate::neutron::port_rules::Pool;

/// Where a port can be used.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    /// The node.
    pub(crate) host: String,
    /// The subnet's id.
    pub(crate) subnet: String,
    /// Security groups.
    pub(crate) groups: Vec<String>,
}

/// All pools.
#[derive(Debug)]
pub(crate) struct Pools {
    settings: Pool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    waiting: BTreeMap<Key, VecDeque<Port>>,
    /// Those that a pod has.
    taken: BTreeMap<String, Taken>,
    filling: BTreeMap<Key, Arc<tokio::sync::Mutex<()>>>,
}

#[derive(Debug)]
struct Taken {
    key: Key,
    port: Port,
    /// The pod's uid; nothing if after a restart more than one says so.
    pod: Option<String>,
}

/// Who has a port, as far as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum User {
    /// The pod of this uid.
    Pod(String),
    /// Who, is not certain.
    Somebody,
}

/// What becomes of a port that a pod does not need any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Return {
    /// It waits again.
    Waits,
    /// There are enough: it is to be removed.
    Superfluous,
    /// It waits in a pool, or another pod may have it.
    Kept,
    /// It is of no pool.
    Unknown,
}

// === impl Pools ===

impl Pools {
    pub(crate) fn new(settings: Pool) -> Pools {
        Pools { settings, state: Mutex::new(State::default()) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A map is never left half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pop(&self, key: &Key, pod: &str) -> Option<Port> {
        let mut state = self.state();
        let port = state.waiting.get_mut(key)?.pop_front()?;
        let taken = Taken { key: key.clone(), port: port.clone(), pod: Some(pod.to_owned()) };
        state.taken.insert(port.id.clone(), taken);
        Some(port)
    }

    /// A port of a pool for the pod of this uid; `fill` makes as many as it is told.
    pub(crate) async fn take<F, E>(&self, key: &Key, pod: &str, fill: impl Fn(usize) -> F) -> Result<Port, E>
    where
        F: Future<Output = Result<Vec<Port>, E>>,
    {
        loop {
            if let Some(port) = self.pop(key, pod) {
                return Ok(port);
            }
            let turn = Arc::clone(self.state().filling.entry(key.clone()).or_default());
            let _turn = turn.lock().await;
            if self.state().waiting.get(key).is_none_or(VecDeque::is_empty) {
                let made = fill(self.settings.batch.max(self.settings.min).max(1)).await?;
                self.put(key, made);
            }
        }
    }

    /// Puts ports in that were made for a pool.
    fn put(&self, key: &Key, made: Vec<Port>) {
        let mut state = self.state();
        // A look at all ports may have been faster, and a pod may have one of them already.
        let State { waiting, taken, .. } = &mut *state;
        let waiting = waiting.entry(key.clone()).or_default();
        for port in made {
            if !taken.contains_key(&port.id) && waiting.iter().all(|known| known.id != port.id) {
                waiting.push_back(port);
            }
        }
    }

    /// The pools that run low, and how many they lack; where it is not quiet, those that have less than half of what
    /// they should have.
    pub(crate) fn low(&self, is_quiet: bool) -> Vec<(Key, usize)> {
        let Pool { enabled, min, batch, .. } = self.settings;
        let least = if is_quiet { min } else { min.div_ceil(2) };
        let state = self.state();
        let lacks = |(key, ports): (&Key, &VecDeque<Port>)| {
            (enabled && ports.len() < least).then(|| (key.clone(), batch.max(min - ports.len())))
        };
        state.waiting.iter().filter_map(lacks).collect()
    }

    /// Fills a pool that runs low, unless somebody does.
    pub(crate) async fn top_up<F, E>(
        &self,
        key: &Key,
        count: usize,
        fill: impl FnOnce(usize) -> F,
    ) -> Result<(), E>
    where
        F: Future<Output = Result<Vec<Port>, E>>,
    {
        let turn = Arc::clone(self.state().filling.entry(key.clone()).or_default());
        let Ok(_turn) = turn.try_lock() else { return Ok(()) };
        debug!(?key, count, "a pool runs low");
        let made = fill(count).await?;
        self.put(key, made);
        Ok(())
    }

    /// Forgets a port that a pod has, and that is not used any more by anybody.
    pub(crate) fn forget(&self, id: &str) {
        self.state().taken.remove(id);
    }

    /// Takes a port out of the pool in which it waits, and ends a pool that is empty then; false if it does not wait any more.
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

    /// Takes a port back from a pod; `shared` says that another one, too, claims it.
    pub(crate) fn give_back(&self, id: &str, pod: &str, shared: bool) -> Return {
        let mut state = self.state();
        let is_kept = match state.taken.get(id) {
            Some(Taken { pod: Some(owner), .. }) => owner != pod,
            Some(Taken { pod: None, .. }) => shared,
            None => state.waiting.values().flatten().any(|known| known.id == id),
        };
        if is_kept {
            return Return::Kept;
        }
        let Some(Taken { key, mut port, pod: _ }) = state.taken.remove(id) else { return Return::Unknown };
        // It was taken out of its switch: who gets it next is not told that it works before it does.
        port.status = String::new();
        let waiting = state.waiting.entry(key).or_default();
        let room = self.settings.enabled && (self.settings.max == 0 || waiting.len() < self.settings.max);
        if !room {
            return Return::Superfluous;
        }
        waiting.push_back(port);
        Return::Waits
    }

    /// Learns of a port that is there after a restart: it waits, or a pod has it. False if it is to be removed: nobody has
    /// it, and there is no room for it, or it was never bound.
    pub(crate) fn learn(&self, port: &Port, groups: Vec<String>, user: Option<&User>) -> bool {
        let Some(ip) = port.fixed_ips.first().filter(|_| self.settings.enabled) else { return false };
        let mut state = self.state();
        let known = state.taken.contains_key(&port.id)
            || state.waiting.values().flatten().any(|known| known.id == port.id);
        if known {
            return true;
        }
        let key = Key { host: port.host_id.clone(), subnet: ip.subnet_id.clone(), groups };
        if let Some(user) = user {
            let pod = match user {
                User::Pod(uid) => Some(uid.clone()),
                User::Somebody => None,
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

    /// How many wait.
    pub(crate) fn count(&self) -> usize {
        self.state().waiting.values().map(VecDeque::len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pools() -> (Pools, Key) {
        let pools = Pools::new(Pool { enabled: true, min: 1, max: 0, batch: 1 });
        (pools, Key { host: "node".into(), subnet: "subnet".into(), groups: Vec::new() })
    }

    fn port(id: &str, status: &str) -> Port {
        Port { id: id.to_owned(), status: status.to_owned(), ..Port::default() }
    }

    #[test]
    fn a_port_that_a_pod_has_is_not_put_in_again() {
        let (pools, key) = pools();
        pools.put(&key, vec![port("a", "DOWN")]);
        assert_eq!(pools.pop(&key, "x").map(|port| port.id).as_deref(), Some("a"));
        pools.put(&key, vec![port("a", "DOWN"), port("b", "DOWN"), port("b", "DOWN")]);
        assert_eq!(pools.pop(&key, "x").map(|port| port.id).as_deref(), Some("b"));
        assert_eq!(pools.pop(&key, "x"), None);
    }

    #[test]
    fn a_pool_that_is_half_full_waits_for_a_quiet_moment() {
        let (mut pools, key) = pools();
        pools.settings = Pool { enabled: true, min: 4, max: 0, batch: 3 };
        pools.put(&key, vec![port("a", "DOWN"), port("b", "DOWN")]);
        assert_eq!(pools.low(false), []);
        assert_eq!(pools.low(true), [(key.clone(), 3)]);
        pools.pop(&key, "x");
        assert_eq!(pools.low(false), [(key, 3)], "soon there is none");
    }

    #[test]
    fn a_port_that_comes_back_does_not_say_that_it_works() {
        let (pools, key) = pools();
        pools.put(&key, vec![port("a", neutron::port::ACTIVE)]);
        assert_eq!(pools.pop(&key, "x").map(|port| port.status).as_deref(), Some(neutron::port::ACTIVE));
        assert_eq!(pools.give_back("a", "x", false), Return::Waits);
        assert_eq!(pools.pop(&key, "x").map(|port| port.status).as_deref(), Some(""));
    }

    #[test]
    fn a_port_comes_back_from_the_pod_that_took_it_and_from_no_other() {
        let (pools, key) = pools();
        pools.put(&key, vec![port("a", ""), port("b", "")]);
        assert_eq!(pools.pop(&key, "x").map(|port| port.id).as_deref(), Some("a"));
        // Another one names it, and one that waits.
        assert_eq!(pools.give_back("a", "y", true), Return::Kept);
        assert_eq!(pools.give_back("b", "y", false), Return::Kept);
        assert_eq!(pools.give_back("c", "y", false), Return::Unknown);
        assert_eq!(pools.give_back("a", "x", true), Return::Waits, "it is the one's, whoever else names it");
        assert_eq!(pools.count(), 2);
    }

    #[test]
    fn of_two_who_name_a_port_after_a_restart_the_last_gives_it_back() {
        let (pools, _) = pools();
        let fixed_ips = vec![neutron::port::FixedIp { subnet_id: "s".into(), ip_address: None }];
        let known = Port { id: "a".into(), vif_type: "ovs".into(), fixed_ips, ..Port::default() };
        assert!(pools.learn(&known, Vec::new(), Some(&User::Somebody)));
        assert_eq!(pools.give_back("a", "x", true), Return::Kept);
        assert_eq!(pools.give_back("a", "y", false), Return::Waits);
    }
}
