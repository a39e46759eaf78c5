//! What the cluster holds, as far as we heard of it: an informer's cache that is never half filled.
//!
//! Rules: a new list replaces the old one at once, when it is complete; while the API cannot be reached the last
//! known state is served, and how long that has been is known; what the watch tells counts before any other answer ([`pending_lookup`]).

pub mod pending_lookup;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use tokio::sync::watch::{Receiver, Sender};
use tracing::{info, warn};

use crate::api_error;
use crate::cache::pending_lookup::{Asked, PendingLookup};
use crate::lookup::ASK_MAX;
use crate::resources::{Key, Reduced, key};

/// How often it is tried whether an API that was away is there again.
const KNOCK: Duration = Duration::from_secs(2);

/// The objects of one kind.
#[derive(Debug)]
pub struct Cache<T> {
    what: &'static str,
    state: Mutex<State<T>>,
    changes: Sender<u64>,
}

#[derive(Debug)]
struct State<T> {
    objects: BTreeMap<Key, Arc<T>>,
    coming: BTreeMap<Key, Arc<T>>,
    asked: BTreeMap<Key, Asked>,
    synced: bool,
    failing: Option<Instant>,
    /// Why the API said nothing the last time; nothing once it did.
    refusal: Option<String>,
}

impl<T: PartialEq> Cache<T> {
    /// An empty one, which knows nothing yet; `what` names the kind for people.
    pub fn new(what: &'static str) -> Cache<T> {
        let state = State {
            objects: BTreeMap::new(),
            coming: BTreeMap::new(),
            asked: BTreeMap::new(),
            synced: false,
            failing: None,
            refusal: None,
        };
        Cache { what, state: Mutex::new(state), changes: Sender::new(0) }
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        // A map is never left half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The kind, for people.
    pub fn what(&self) -> &'static str {
        self.what
    }

    /// The object of this key.
    pub fn find(&self, key: &Key) -> Option<Arc<T>> {
        self.state().objects.get(key).cloned()
    }

    /// All of them.
    pub fn all(&self) -> Vec<Arc<T>> {
        self.state().objects.values().cloned().collect()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.state().objects.len()
    }

    /// Was a whole list seen?
    pub fn is_synced(&self) -> bool {
        self.state().synced
    }

    /// How long the API has not been heard of.
    pub fn age(&self) -> Duration {
        self.state().failing.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Tells of changes.
    pub fn changes(&self) -> Receiver<u64> {
        self.changes.subscribe()
    }

    /// What is waited for until a whole list was seen, and why it has not been.
    pub fn waited(&self) -> Option<String> {
        let state = self.state();
        match &state.refusal {
            _ if state.synced => None,
            Some(why) => Some(format!("{} ({why})", self.what)),
            None => Some(self.what.to_owned()),
        }
    }

    /// Waits until a whole list was seen.
    pub async fn synced(&self) {
        let mut changes = self.changes();
        // The sender lives as long as we do.
        let _ = changes.wait_for(|_| self.is_synced()).await;
    }

    /// To be called before the API is asked about an object, or it is written: takes the answer.
    pub fn ask(&self, key: Key) -> PendingLookup<'_, T> {
        PendingLookup::begin(self, key)
    }

    /// Takes one thing in that the API says; returns whether anything is different now.
    fn take<K: Reduced<Form = T>>(&self, event: Event<K>) -> bool {
        let mut state = self.state();
        state.failing = None;
        // That a list is asked for says nothing yet.
        if !matches!(event, Event::Init) {
            state.refusal = None;
        }
        match event {
            Event::Init => {
                state.coming.clear();
                false
            }
            Event::InitApply(object) => {
                let key = key(&object);
                state.coming.insert(key, Arc::new(object.reduce()));
                false
            }
            Event::InitDone => {
                state.objects = std::mem::take(&mut state.coming);
                state.asked.values_mut().for_each(Asked::tell);
                state.synced = true;
                true
            }
            Event::Apply(object) => {
                let (key, object) = (key(&object), object.reduce());
                state.tell(&key);
                let known = state.objects.get(&key).is_some_and(|known| **known == object);
                if !known {
                    state.objects.insert(key, Arc::new(object));
                }
                !known
            }
            Event::Delete(object) => {
                let key = key(&object);
                state.tell(&key);
                state.objects.remove(&key).is_some()
            }
        }
    }

    /// Takes a failure in; is it news?
    fn fail(&self, error: &watcher::Error) -> bool {
        let mut state = self.state();
        let why = api_error::describe_watch(error);
        let is_news = state.failing.is_none();
        if is_news {
            warn!(what = self.what, why, "cannot be watched; the last known state is served");
            state.failing = Some(Instant::now());
        }
        state.refusal = Some(why);
        is_news
    }

    /// The API was heard of.
    fn heard(&self) {
        self.state().failing = None;
    }
}

impl<T> State<T> {
    /// Those who ask about this one are to know that the watch told of it.
    fn tell(&mut self, key: &Key) {
        if let Some(asked) = self.asked.get_mut(key) {
            asked.tell();
        }
    }
}

/// Keeps a cache up to date, for ever. Lists are taken anew when the API says that too much was missed (410 Gone).
pub async fn follow<K>(api: Api<K>, selection: watch::Config, cache: Arc<Cache<K::Form>>)
where
    K: Reduced + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let client = api.clone().into_client();
    let mut events = pin!(watch::watcher(api, selection).default_backoff());
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => {
                let whole = matches!(event, Event::InitDone);
                if cache.take(event) {
                    cache.changes.send_modify(|count| *count += 1);
                }
                if whole {
                    info!(what = cache.what, count = cache.count(), "listed");
                }
            }
            Err(error) if cache.fail(&error) => drop(tokio::spawn(knock(client.clone(), Arc::clone(&cache)))),
            Err(_) => {}
        }
    }
}

/// Notices that the API is there again: a watch that goes on where it was says nothing before something changes.
async fn knock<T: PartialEq>(client: Client, cache: Arc<Cache<T>>) {
    while !cache.age().is_zero() {
        tokio::time::sleep(KNOCK).await;
        if let Ok(Ok(_)) = tokio::time::timeout(ASK_MAX, client.apiserver_version()).await {
            return cache.heard();
        }
    }
}

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
    fn a_list_replaces_the_old_one_when_it_is_complete() {
        let cache: Cache<Pod> = Cache::new("pods");
        assert!(!cache.is_synced());
        for event in [Event::Init, Event::InitApply(pod("a", "1")), Event::InitDone] {
            cache.take(event);
        }
        assert!(cache.is_synced());
        assert!(cache.take(Event::Apply(pod("b", "2"))));
        assert!(!cache.take(Event::Apply(pod("b", "2"))), "nothing is different");
        // Too much was missed: until the new list is there the old one is served.
        cache.take(Event::<PodObject>::Init);
        cache.take(Event::InitApply(pod("b", "3")));
        assert_eq!(uids(&cache), ["1", "2"]);
        cache.take(Event::<PodObject>::InitDone);
        assert_eq!(uids(&cache), ["3"]);
        assert!(cache.take(Event::Delete(pod("b", "3"))) && cache.count() == 0);
    }

    #[test]
    fn while_the_api_is_away_the_last_state_is_served_and_its_age_known() {
        let cache: Cache<Pod> = Cache::new("pods");
        cache.take(Event::Apply(pod("a", "1")));
        assert_eq!(cache.age(), Duration::ZERO);
        cache.fail(&watcher::Error::NoResourceVersion);
        std::thread::sleep(Duration::from_millis(2));
        assert!(cache.age() > Duration::ZERO && cache.count() == 1);
        cache.take(Event::<PodObject>::Init);
        assert_eq!(cache.age(), Duration::ZERO);
    }

    #[test]
    fn what_is_waited_for_is_said_with_what_the_api_says() {
        let cache: Cache<Pod> = Cache::new("pods");
        assert_eq!(cache.waited().as_deref(), Some("pods"));
        let status = kube::core::Status {
            code: 404,
            message: "there is no such thing\n".into(),
            ..Default::default()
        };
        cache.fail(&watcher::Error::InitialListFailed(kube::Error::Api(Box::new(status))));
        cache.take(Event::<PodObject>::Init);
        let waited = "pods (the API server says 404: there is no such thing)";
        assert_eq!(cache.waited().as_deref(), Some(waited));
        cache.take(Event::<PodObject>::InitDone);
        assert_eq!(cache.waited(), None);
    }
}
