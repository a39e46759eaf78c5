//! An object that the API is asked about, or that is written, while a watch may tell of it, too.
//!
//! Rules: what the watch tells meanwhile counts, and the answer is not kept: an answer that is the older one would bring back
//! what is gone, one that is the newer one the watch is about to tell. What is asked about is remembered until
//! its answer is there, and no longer.

use std::sync::Arc;

use super::{Cache, State};
use crate::resources::Key;

/// A question that is under way.
#[derive(Debug)]
pub struct PendingLookup<'a, T: PartialEq> {
    cache: &'a Cache<T>,
    key: Key,
    /// How often the watch had told of it when this began.
    told: u64,
}

/// What those who ask about one object share.
#[derive(Debug, Default)]
pub(super) struct Asked {
    askers: usize,
    told: u64,
}

// === impl PendingLookup ===

impl<'a, T: PartialEq> PendingLookup<'a, T> {
    /// From now on it is remembered whether the watch tells of `key`.
    pub(super) fn begin(cache: &'a Cache<T>, key: Key) -> PendingLookup<'a, T> {
        let told = {
            let mut state = cache.state();
            let asked = state.asked.entry(key.clone()).or_default();
            asked.askers += 1;
            asked.told
        };
        PendingLookup { cache, key, told }
    }

    /// The API has it, as `object`.
    pub fn found(self, object: T) {
        let mut state = self.cache.state();
        if self.counts(&state) {
            state.objects.insert(self.key.clone(), Arc::new(object));
        }
    }

    /// The API does not have it.
    pub fn gone(self) {
        let mut state = self.cache.state();
        if self.counts(&state) {
            state.objects.remove(&self.key);
        }
    }

    /// Did the watch say nothing of it since?
    fn counts(&self, state: &State<T>) -> bool {
        state.asked.get(&self.key).is_some_and(|asked| asked.told == self.told)
    }
}

impl<T: PartialEq> Drop for PendingLookup<'_, T> {
    fn drop(&mut self) {
        let mut state = self.cache.state();
        if let Some(asked) = state.asked.get_mut(&self.key) {
            asked.askers -= 1;
            if asked.askers == 0 {
                state.asked.remove(&self.key);
            }
        }
    }
}

// === impl Asked ===

impl Asked {
    /// The watch told of it.
    pub(super) fn tell(&mut self) {
        self.told += 1;
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
    fn what_ended_while_it_was_asked_about_does_not_come_back() {
        let cache: Cache<Pod> = Cache::new("pods");
        let asking = cache.ask(key());
        // As the watch tells of a pod whose asker waits for the answer, or of a slice whose writer does.
        cache.take(Event::Apply(pod("a", "1")));
        cache.take(Event::Delete(pod("a", "1")));
        asking.found(pod("a", "1").reduce());
        assert_eq!(cache.count(), 0);
        // A list that has it no more.
        let asking = cache.ask(key());
        for event in [Event::Init, Event::InitApply(pod("b", "2")), Event::InitDone] {
            cache.take(event);
        }
        asking.found(pod("a", "1").reduce());
        assert_eq!(uids(&cache), ["2"]);
    }

    #[test]
    fn what_the_watch_told_meanwhile_is_neither_replaced_nor_taken_out() {
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
    fn an_answer_of_which_the_watch_said_nothing_is_kept_and_no_question_is_remembered() {
        let cache: Cache<Pod> = Cache::new("pods");
        cache.take(Event::Apply(pod("b", "9")));
        let (one, other) = (cache.ask(key()), cache.ask(key()));
        // Of another one.
        cache.take(Event::Apply(pod("b", "8")));
        one.found(pod("a", "1").reduce());
        assert_eq!(uids(&cache), ["1", "8"]);
        other.gone();
        assert_eq!(uids(&cache), ["8"]);
        drop(cache.ask(key()));
        assert!(cache.state().asked.is_empty());
        // The end of the one before is of no account to who asks after it.
        cache.take(Event::<PodObject>::Delete(pod("a", "1")));
        cache.ask(key()).found(pod("a", "2").reduce());
        assert_eq!(uids(&cache), ["2", "8"]);
    }
}
