//! Keys whose objects changed in a cache, for consumers that handle objects separately.
//!
//! Keys are collected until the consumer takes them. If there are too many, the consumer handles all objects
//! instead.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::resources::Key;

/// Maximum number of collected keys.
const KEYS_MAX: usize = 4096;

/// Which objects changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Changed {
    /// Each object may have changed.
    All,
    /// The objects with these keys were created, changed or deleted.
    Keys(BTreeSet<Key>),
}

/// Keys whose objects changed since they were last taken.
#[derive(Debug)]
pub struct ChangedKeys(Arc<Mutex<Changed>>);

/// Consumers that follow a cache.
#[derive(Debug, Default)]
pub(super) struct Consumers(Vec<Weak<Mutex<Changed>>>);

// === impl ChangedKeys ===

impl ChangedKeys {
    /// Returns the objects that changed since the last call. The first call returns all.
    pub fn take(&self) -> Changed {
        std::mem::replace(&mut lock(&self.0), Changed::Keys(BTreeSet::new()))
    }
}

// === impl Consumers ===

impl Consumers {
    /// Adds a consumer, until it is dropped.
    pub(super) fn add(&mut self) -> ChangedKeys {
        let changed = Arc::new(Mutex::new(Changed::All));
        self.0.push(Arc::downgrade(&changed));
        ChangedKeys(changed)
    }

    /// Records that the object with this key changed.
    pub(super) fn record(&mut self, key: &Key) {
        self.each(|changed| {
            if let Changed::Keys(keys) = changed {
                if keys.len() < KEYS_MAX {
                    keys.insert(key.clone());
                } else {
                    *changed = Changed::All;
                }
            }
        });
    }

    /// Records that each object may have changed.
    pub(super) fn record_all(&mut self) {
        self.each(|changed| *changed = Changed::All);
    }

    fn each(&mut self, work: impl Fn(&mut Changed)) {
        self.0.retain(|consumer| {
            let consumer = consumer.upgrade();
            consumer.inspect(|changed| work(&mut lock(changed))).is_some()
        });
    }
}

fn lock(changed: &Mutex<Changed>) -> MutexGuard<'_, Changed> {
    // A panic leaves no set half changed.
    changed.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use kube::runtime::watcher::Event;
    use npwg::metadata::Pod;

    use super::super::Cache;
    use super::super::tests::pod;
    use super::*;
    use crate::resources::{PodObject, Reduced};

    fn keys(names: &[&str]) -> Changed {
        Changed::Keys(names.iter().map(|name| ("n".to_owned(), (*name).to_owned())).collect())
    }

    #[test]
    fn cache_changed_keys_are_those_of_changed_objects() {
        let cache: Cache<Pod> = Cache::new("pods");
        let changed = cache.changed_keys();
        assert_eq!(changed.take(), Changed::All, "objects that are known already");
        for event in [Event::Apply(pod("a", "1")), Event::Apply(pod("b", "2"))] {
            cache.take(event);
        }
        assert_eq!(changed.take(), keys(&["a", "b"]));
        // The object is the same.
        cache.take(Event::Apply(pod("a", "1")));
        assert_eq!(changed.take(), keys(&[]));
        cache.take(Event::Delete(pod("a", "1")));
        cache.ask(("n".to_owned(), "c".to_owned())).found(pod("c", "3").reduce());
        assert_eq!(changed.take(), keys(&["a", "c"]));
        cache.take(Event::<PodObject>::Init);
        cache.take(Event::<PodObject>::InitDone);
        assert_eq!(changed.take(), Changed::All);
    }

    #[test]
    fn cache_changed_keys_are_bounded() {
        let mut consumers = Consumers::default();
        let (changed, dropped) = (consumers.add(), consumers.add());
        drop(dropped);
        changed.take();
        for number in 0..=KEYS_MAX {
            consumers.record(&("n".to_owned(), number.to_string()));
        }
        assert_eq!((changed.take(), consumers.0.len()), (Changed::All, 1));
        consumers.record(&("n".to_owned(), "a".to_owned()));
        assert_eq!(changed.take(), keys(&["a"]));
    }
}
