//! Sizes of the address sets of each namespace: what one tenant writes must not fill etcd.
//!
//! A small policy may select thousands of addresses, so the bytes of its set are not those that its author wrote. The sets
//! of a namespace that exceed the maximum have no addresses; they are tried again when others become smaller.

use std::collections::{BTreeMap, BTreeSet};

use kube_support::resources::Key;

/// Maximum size of the address sets of a namespace, in bytes.
pub(super) const NAMESPACE_MAX: usize = 8 << 20;

/// Sizes of all address sets.
#[derive(Debug, Default)]
pub(super) struct NamespaceSizes {
    sizes: BTreeMap<Key, usize>,
    refused: BTreeSet<Key>,
    /// Namespaces in which bytes became free.
    freed: BTreeSet<String>,
}

// === impl NamespaceSizes ===

impl NamespaceSizes {
    /// Records the size of a set. The result is false if the namespace has no room for it.
    pub(super) fn admit(&mut self, key: &Key, bytes: usize) -> bool {
        let before = self.sizes.get(key).copied().unwrap_or_default();
        let first = (key.0.clone(), String::new());
        let all = self.sizes.range(first..).take_while(|((namespace, _), _)| *namespace == key.0);
        let others = all.map(|(_, size)| size).sum::<usize>() - before;
        let has_room = others + bytes <= NAMESPACE_MAX;
        let now = if has_room { bytes } else { 0 };
        if now < before {
            self.freed.insert(key.0.clone());
        }
        self.sizes.insert(key.clone(), now);
        if has_room {
            self.refused.remove(key)
        } else {
            self.refused.insert(key.clone())
        };
        has_room
    }

    /// Removes a set.
    pub(super) fn remove(&mut self, key: &Key) {
        self.refused.remove(key);
        if self.sizes.remove(key).is_some_and(|bytes| bytes > 0) {
            self.freed.insert(key.0.clone());
        }
    }

    /// Returns the refused sets of namespaces in which bytes became free since the last call.
    pub(super) fn retry(&mut self) -> Vec<Key> {
        let freed = std::mem::take(&mut self.freed);
        self.refused.iter().filter(|key| freed.contains(&key.0)).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policy_address_sets_of_a_namespace_are_limited() {
        let key = |namespace: &str, name: &str| (namespace.to_owned(), name.to_owned());
        let (mut sizes, half) = (NamespaceSizes::default(), NAMESPACE_MAX / 2);
        assert!(sizes.admit(&key("x", "a"), half) && sizes.admit(&key("x", "b"), half));
        assert!(!sizes.admit(&key("x", "c"), 1) && !sizes.admit(&key("x", "d"), half));
        assert!(sizes.admit(&key("x1", "c"), half) && sizes.admit(&key("w", "c"), half), "other namespaces");
        assert!(sizes.admit(&key("x", "a"), half), "the same again");
        assert_eq!(sizes.retry(), [] as [Key; 0], "nothing became free");
        assert!(sizes.admit(&key("x", "a"), half - 1));
        assert_eq!(sizes.retry(), [key("x", "c"), key("x", "d")]);
        assert!(sizes.admit(&key("x", "c"), 1) && !sizes.admit(&key("x", "d"), half));
        assert_eq!(sizes.retry(), [] as [Key; 0], "a refusal frees nothing");
        sizes.remove(&key("x", "b"));
        assert_eq!(sizes.retry(), [key("x", "d")]);
        // A set that grows beyond the room gives its own bytes back.
        assert!(sizes.admit(&key("x", "d"), half) && !sizes.admit(&key("x", "d"), NAMESPACE_MAX));
        assert_eq!(sizes.retry(), [key("x", "d")]);
    }
}
