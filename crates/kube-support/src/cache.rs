//! Cache for one kind of object, filled by listing and watching the API.
//!
//! - A new list replaces the old one when it is complete.
//! - While the API server cannot be reached, the cache serves the last known state, and [`liveness`] knows how old it
//!   is.
//! - A list or watch that stops fails within 30 s (`client::transport`), and is requested again.
//! - A consumer that handles objects separately follows the changed keys ([`ChangedKeys`]).
//! - After a restore of the API server's database every cache is listed again ([`list_again`]): the server sends no
//!   event for versions that come again.
//! - A watch event takes precedence over the response to a concurrent request ([`pending_lookup`]).

pub mod changed_keys;
pub mod followed;
mod liveness;
pub mod pending_lookup;

pub use followed::list_again;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use tokio::sync::watch::{Receiver, Sender};
use tokio::time::timeout;
use tracing::{info, warn};

use crate::api_error;
use crate::cache::changed_keys::{ChangedKeys, Consumers};
use crate::cache::liveness::Liveness;
use crate::cache::pending_lookup::{Lookups, PendingLookup};
use crate::resources::{Key, Reduced, key};

/// Time without an event after which a list that is not complete is requested again. It is longer than the
/// client's deadlines for one list page, which name the reason.
const LIST_MAX: Duration = Duration::from_secs(180);
/// Interval between log lines about a cache that stays without the API server.
const REMINDER_INTERVAL: Duration = Duration::from_secs(60);

/// Cache for one kind of object.
#[derive(Debug)]
pub struct Cache<T> {
    kind: &'static str,
    state: Mutex<State<T>>,
    changes: Sender<u64>,
    liveness: Arc<Liveness>,
}

#[derive(Debug)]
struct State<T> {
    objects: BTreeMap<Key, Arc<T>>,
    /// Objects in a list that is not complete yet.
    incoming: BTreeMap<Key, Arc<T>>,
    /// Lookups in progress.
    lookups: BTreeMap<Key, Lookups>,
    /// Consumers that want to know which keys changed.
    consumers: Consumers,
}

impl<T: PartialEq> Cache<T> {
    /// Returns an empty cache that is not synced. `kind` names the objects in logs and metrics.
    pub fn new(kind: &'static str) -> Cache<T> {
        let state = State {
            objects: BTreeMap::new(),
            incoming: BTreeMap::new(),
            lookups: BTreeMap::new(),
            consumers: Consumers::default(),
        };
        Cache { kind, state: Mutex::new(state), changes: Sender::new(0), liveness: Liveness::new() }
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        // A panic leaves no map half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the kind's name.
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// Returns the object with this key.
    pub fn find(&self, key: &Key) -> Option<Arc<T>> {
        self.state().objects.get(key).cloned()
    }

    /// Returns all objects.
    pub fn all(&self) -> Vec<Arc<T>> {
        self.state().objects.values().cloned().collect()
    }

    /// Returns the objects in a namespace.
    pub fn of_namespace(&self, namespace: &str) -> Vec<Arc<T>> {
        let first: Key = (namespace.to_owned(), String::new());
        let state = self.state();
        let all = state.objects.range(first..).take_while(|((of, _), _)| of == namespace);
        all.map(|(_, object)| Arc::clone(object)).collect()
    }

    /// Returns all keys.
    pub fn keys(&self) -> Vec<Key> {
        self.state().objects.keys().cloned().collect()
    }

    /// Returns all keys and objects.
    pub fn entries(&self) -> Vec<(Key, Arc<T>)> {
        self.state().objects.iter().map(|(key, object)| (key.clone(), Arc::clone(object))).collect()
    }

    /// Returns how many objects there are.
    pub fn count(&self) -> usize {
        self.state().objects.len()
    }

    /// Whether a complete list was read.
    pub fn is_synced(&self) -> bool {
        self.liveness.is_synced()
    }

    /// Returns the time since the list or the watch failed; zero while the watch is connected.
    pub fn age(&self) -> Duration {
        self.liveness.age()
    }

    /// Returns a receiver that is notified of changes.
    pub fn changes(&self) -> Receiver<u64> {
        self.changes.subscribe()
    }

    /// Returns the keys whose object changes from now on. [`Cache::changes`] tells when there are some.
    pub fn changed_keys(&self) -> ChangedKeys {
        self.state().consumers.add()
    }

    /// Returns the kind, and why there is no list, while no complete list was read.
    pub fn waited(&self) -> Option<String> {
        match self.liveness.reason() {
            _ if self.is_synced() => None,
            Some(why) => Some(format!("{} ({why})", self.kind)),
            None => Some(self.kind.to_owned()),
        }
    }

    /// Waits until a complete list was read.
    pub async fn synced(&self) {
        let mut changes = self.changes();
        // It cannot fail: `self` keeps the sender.
        let _ = changes.wait_for(|_| self.is_synced()).await;
    }

    /// Begins a lookup or a write for an object. Call it before the request; the result takes the response.
    pub fn ask(&self, key: Key) -> PendingLookup<'_, T> {
        PendingLookup::begin(self, key)
    }

    /// Applies a watch event. The result is whether the cache has changed.
    fn take<K: Reduced<Form = T>>(&self, event: Event<K>) -> bool {
        let mut state = self.state();
        match event {
            Event::Init => {
                self.liveness.list_began();
                state.incoming.clear();
                false
            }
            Event::InitApply(object) => {
                let key = key(&object);
                state.incoming.insert(key, Arc::new(object.reduce()));
                false
            }
            Event::InitDone => {
                state.objects = std::mem::take(&mut state.incoming);
                state.lookups.values_mut().for_each(Lookups::record_event);
                state.consumers.record_all();
                if let Some(age) = self.liveness.listed() {
                    info!(resource = self.kind, age = age.as_secs(), "the cache is current again");
                }
                true
            }
            Event::Apply(object) => {
                self.liveness.changed();
                let (key, object) = (key(&object), object.reduce());
                state.record_event(&key);
                let known = state.objects.get(&key).is_some_and(|known| **known == object);
                if !known {
                    state.consumers.record(&key);
                    state.objects.insert(key, Arc::new(object));
                }
                !known
            }
            Event::Delete(object) => {
                self.liveness.changed();
                let key = key(&object);
                state.record_event(&key);
                state.consumers.record(&key);
                state.objects.remove(&key).is_some()
            }
        }
    }

    /// Records that the watch failed.
    fn fail(&self, error: &watcher::Error) {
        self.fail_because(&api_error::describe_watch(error));
    }

    fn fail_because(&self, why: &str) {
        if self.liveness.failed(why.to_owned()) {
            warn!(
                resource = self.kind,
                error = why,
                "failed to watch resource; its last known state is used"
            );
        }
    }
}

impl<T> State<T> {
    /// Records a watch event for the lookups on an object.
    fn record_event(&mut self, key: &Key) {
        if let Some(lookups) = self.lookups.get_mut(key) {
            lookups.record_event();
        }
    }
}

/// Keeps a cache up to date until the process ends. The list is read again if the watch missed events (410
/// Gone).
///
/// `api` selects all objects, or those in a namespace: `Api::all`.
pub async fn follow<K>(
    client: Client,
    api: impl FnOnce(Client) -> Api<K>,
    selection: watch::Config,
    cache: Arc<Cache<K::Form>>,
) where
    K: Reduced + Clone + Debug + DeserializeOwned + Send + 'static,
{
    followed::register(&cache);
    let api = api(cache.liveness.observe(&client));
    tokio::select! {
        () = events(api, selection, &cache) => {}
        () = remind(&cache) => {}
    }
}

/// Applies list and watch events.
async fn events<K>(api: Api<K>, selection: watch::Config, cache: &Cache<K::Form>)
where
    K: Reduced + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let mut restarts = followed::restarts();
    loop {
        restarts.mark_unchanged();
        let mut events = pin!(watch::watcher(api.clone(), selection.clone()).default_backoff());
        loop {
            let deadline = if cache.liveness.is_listing() { LIST_MAX } else { Duration::MAX };
            let event = tokio::select! {
                event = timeout(deadline, events.next()) => event,
                Ok(()) = restarts.changed() => break,
            };
            match event {
                Ok(Some(Ok(event))) => {
                    let is_complete = matches!(event, Event::InitDone);
                    if cache.take(event) {
                        cache.changes.send_modify(|count| *count += 1);
                    }
                    if is_complete {
                        info!(resource = cache.kind, count = cache.count(), "resource listed");
                    }
                }
                Ok(Some(Err(error))) => cache.fail(&error),
                Ok(None) => break,
                Err(_) => {
                    cache
                        .fail_because(&format!("the list makes no progress within {} s", LIST_MAX.as_secs()));
                    break;
                }
            }
        }
    }
}

/// Repeats why a cache is not current: the first log line is old when somebody looks.
async fn remind<T: PartialEq>(cache: &Cache<T>) {
    loop {
        tokio::time::sleep(REMINDER_INTERVAL).await;
        let age = cache.liveness.time_without_data();
        if age >= REMINDER_INTERVAL {
            let error = cache.liveness.reason().unwrap_or_default();
            warn!(resource = cache.kind, age = age.as_secs(), error, "the cache is not current");
        }
    }
}

#[cfg(test)]
mod server_tests;

#[cfg(test)]
mod tests {
    use npwg::metadata::Pod;
    use serde_json::json;

    use super::*;
    use crate::resources::PodObject;

    pub(super) fn pod(name: &str, uid: &str) -> PodObject {
        serde_json::from_value(json!({ "metadata": { "namespace": "n", "name": name, "uid": uid } })).unwrap()
    }

    pub(super) fn uids(cache: &Cache<Pod>) -> Vec<String> {
        cache.state().objects.values().map(|pod| pod.uid.clone()).collect()
    }

    #[test]
    fn cache_list_replaces_the_old_one_when_complete() {
        let cache: Cache<Pod> = Cache::new("pods");
        assert!(!cache.is_synced());
        for event in [Event::Init, Event::InitApply(pod("a", "1")), Event::InitDone] {
            cache.take(event);
        }
        assert!(cache.is_synced());
        assert!(cache.take(Event::Apply(pod("b", "2"))));
        assert!(!cache.take(Event::Apply(pod("b", "2"))), "nothing is different");
        // Events were missed: the old list is served until the new one is complete.
        cache.take(Event::<PodObject>::Init);
        cache.take(Event::InitApply(pod("b", "3")));
        assert_eq!(uids(&cache), ["1", "2"]);
        cache.take(Event::<PodObject>::InitDone);
        assert_eq!(uids(&cache), ["3"]);
        let of = |namespace| cache.of_namespace(namespace).len();
        assert_eq!([of("n"), of("m"), of("n0"), of("")], [1, 0, 0, 0]);
        assert!(cache.take(Event::Delete(pod("b", "3"))) && cache.count() == 0);
    }

    #[test]
    fn cache_serves_last_state_and_age_without_the_api() {
        let cache: Cache<Pod> = Cache::new("pods");
        cache.take(Event::Apply(pod("a", "1")));
        assert_eq!(cache.age(), Duration::ZERO);
        cache.fail(&watcher::Error::NoResourceVersion);
        std::thread::sleep(Duration::from_millis(2));
        cache.take(Event::<PodObject>::Init);
        assert!(cache.age() > Duration::ZERO && cache.count() == 1, "the list is not complete");
        cache.take(Event::<PodObject>::InitDone);
        assert_eq!(cache.age(), Duration::ZERO);
    }

    #[test]
    fn cache_not_synced_is_reported_with_the_reason_of_the_api() {
        let cache: Cache<Pod> = Cache::new("pods");
        assert_eq!(cache.waited().as_deref(), Some("pods"));
        let status = kube::core::Status {
            code: 404,
            message: "there is no such thing\n".into(),
            ..Default::default()
        };
        cache.fail(&watcher::Error::InitialListFailed(kube::Error::Api(Box::new(status))));
        cache.take(Event::<PodObject>::Init);
        let waited = "pods (the API server returned 404: there is no such thing)";
        assert_eq!(cache.waited().as_deref(), Some(waited));
        cache.take(Event::<PodObject>::InitDone);
        assert_eq!(cache.waited(), None);
    }
}
