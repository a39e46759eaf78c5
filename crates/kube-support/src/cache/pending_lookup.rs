//! Lookup or write for one object, concurrent with the cache's watch.
//!
//! If the watch reports the object meanwhile, the response is dropped: an older response would restore a deleted
//! object, and the watch is about to report a newer one. A lookup is recorded only until the response arrives.

use std::sync::Arc;

use super::{Cache, State};
use crate::resources::Key;

/// Lookup or write in progress.
#[derive(Debug)]
pub struct PendingLookup<'a, T: PartialEq> {
    cache: &'a Cache<T>,
    key: Key,
    /// Number of events about the object when the lookup began.
    events: u64,
}

/// Lookups on one object.
#[derive(Debug, Default)]
pub(super) struct Lookups {
    pending: usize,
    events: u64,
}

// === impl PendingLookup ===

impl<'a, T: PartialEq> PendingLookup<'a, T> {
    /// Begins a lookup: events about `key` are counted from now on.
    pub(super) fn begin(cache: &'a Cache<T>, key: Key) -> PendingLookup<'a, T> {
        let events = {
            let mut state = cache.state();
            let lookups = state.lookups.entry(key.clone()).or_default();
            lookups.pending += 1;
            lookups.events
        };
        PendingLookup { cache, key, events }
    }

    /// Stores the object that the API returned.
    pub fn found(self, object: T) {
        let mut state = self.cache.state();
        if self.is_current(&state) {
            state.consumers.record(&self.key);
            state.objects.insert(self.key.clone(), Arc::new(object));
        }
    }

    /// Removes the object, which the API does not have.
    pub fn gone(self) {
        let mut state = self.cache.state();
        if self.is_current(&state) {
            state.consumers.record(&self.key);
            state.objects.remove(&self.key);
        }
    }

    /// Whether the watch has not reported the object since the lookup began.
    fn is_current(&self, state: &State<T>) -> bool {
        state.lookups.get(&self.key).is_some_and(|lookups| lookups.events == self.events)
    }
}

impl<T: PartialEq> Drop for PendingLookup<'_, T> {
    fn drop(&mut self) {
        let mut state = self.cache.state();
        if let Some(lookups) = state.lookups.get_mut(&self.key) {
            lookups.pending -= 1;
            if lookups.pending == 0 {
                state.lookups.remove(&self.key);
            }
        }
    }
}

// === impl Lookups ===

impl Lookups {
    /// Counts a watch event.
    pub(super) fn record_event(&mut self) {
        self.events += 1;
    }
}

#[cfg(test)]
mod tests {
    use kube::runtime::watcher::Event;
    use npwg::metadata::Pod;

    use super::super::tests::{pod, uids};
    use super::*;
    use crate::resources::{PodObject, Reduced};

    fn key() -> Key {
        ("n".to_owned(), "a".to_owned())
    }

    #[test]
    fn pending_lookup_does_not_restore_a_deleted_object() {
        let cache: Cache<Pod> = Cache::new("pods");
        let asking = cache.ask(key());
        // The watch reports an object while a lookup or a write waits for its response.
        cache.take(Event::Apply(pod("a", "1")));
        cache.take(Event::Delete(pod("a", "1")));
        asking.found(pod("a", "1").reduce());
        assert_eq!(cache.count(), 0);
        // The new list does not contain the object.
        let asking = cache.ask(key());
        for event in [Event::Init, Event::InitApply(pod("b", "2")), Event::InitDone] {
            cache.take(event);
        }
        asking.found(pod("a", "1").reduce());
        assert_eq!(uids(&cache), ["2"]);
    }

    #[test]
    fn pending_lookup_does_not_replace_a_watched_object() {
        let cache: Cache<Pod> = Cache::new("pods");
        for (end, expected) in [(None, "2"), (Some("1"), "2")] {
            let asking = cache.ask(key());
            cache.take(Event::Apply(pod("a", "2")));
            match end {
                None => asking.gone(),
                Some(uid) => asking.found(pod("a", uid).reduce()),
            }
            assert_eq!(uids(&cache), [expected]);
        }
    }

    #[test]
    fn pending_lookup_response_is_kept_without_watch_events() {
        let cache: Cache<Pod> = Cache::new("pods");
        cache.take(Event::Apply(pod("b", "9")));
        let (one, other) = (cache.ask(key()), cache.ask(key()));
        // An event about another object.
        cache.take(Event::Apply(pod("b", "8")));
        one.found(pod("a", "1").reduce());
        assert_eq!(uids(&cache), ["1", "8"]);
        other.gone();
        assert_eq!(uids(&cache), ["8"]);
        drop(cache.ask(key()));
        assert!(cache.state().lookups.is_empty());
        // An event before the lookup has no effect on it.
        cache.take(Event::<PodObject>::Delete(pod("a", "1")));
        cache.ask(key()).found(pod("a", "2").reduce());
        assert_eq!(uids(&cache), ["2", "8"]);
    }
}
