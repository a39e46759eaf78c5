//! Size limits for the address sets in each namespace, so that policies cannot fill etcd with many times what the
//! author wrote.
//!
//! The sets of a namespace that exceed the maximum have no addresses; they are tried again when others become smaller.

use std::collections::{BTreeMap, BTreeSet};

use kube_support::resources::Key;

/// Maximum total size of a namespace's address sets, in bytes.
pub(super) const NAMESPACE_MAX: usize = 8 << 20;

/// Sizes of all address sets.
#[derive(Debug, Default)]
pub(super) struct NamespaceSizes(BTreeMap<String, OneNamespace>);

/// Sizes of one namespace's address sets.
#[derive(Debug, Default)]
struct OneNamespace {
    sizes: BTreeMap<String, usize>,
    total: usize,
    /// Sets without room, with the size that they had.
    refused: BTreeMap<String, usize>,
    /// Whether bytes became free since the last call of [`NamespaceSizes::retry`].
    is_freed: bool,
}

// === impl NamespaceSizes ===

impl NamespaceSizes {
    /// Records the size of a set. The result is false if the namespace has no room for it.
    pub(super) fn admit(&mut self, (namespace, name): &Key, bytes: usize) -> bool {
        let one = self.0.entry(namespace.clone()).or_default();
        let before = one.sizes.get(name).copied().unwrap_or_default();
        let has_room = one.total - before + bytes <= NAMESPACE_MAX;
        if has_room {
            one.refused.remove(name);
            one.set(name, bytes);
        } else {
            one.refused.insert(name.clone(), bytes);
            one.set(name, 0);
        }
        has_room
    }

    /// Removes a set.
    pub(super) fn remove(&mut self, (namespace, name): &Key) {
        let Some(one) = self.0.get_mut(namespace) else { return };
        one.refused.remove(name);
        one.set(name, 0);
        one.sizes.remove(name);
        if one.sizes.is_empty() {
            self.0.remove(namespace);
        }
    }

    /// Returns the refused sets that may have room now, because bytes became free in those namespaces since the last
    /// call.
    pub(super) fn retry(&mut self) -> BTreeSet<Key> {
        let mut keys = BTreeSet::new();
        for (namespace, one) in self.0.iter_mut().filter(|(_, one)| one.is_freed) {
            one.is_freed = false;
            let room = NAMESPACE_MAX - one.total;
            let fitting = one.refused.iter().filter(|(_, bytes)| **bytes <= room);
            keys.extend(fitting.map(|(name, _)| (namespace.clone(), name.clone())));
        }
        keys
    }
}

// === impl OneNamespace ===

impl OneNamespace {
    fn set(&mut self, name: &str, bytes: usize) {
        let before = self.sizes.insert(name.to_owned(), bytes).unwrap_or_default();
        self.is_freed |= bytes < before;
        self.total = self.total - before + bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policy_address_sets_of_a_namespace_are_limited() {
        let key = |namespace: &str, name: &str| (namespace.to_owned(), name.to_owned());
        let keys = |names: &[&str]| names.iter().map(|name| key("x", name)).collect::<BTreeSet<_>>();
        let (mut sizes, half) = (NamespaceSizes::default(), NAMESPACE_MAX / 2);
        assert!(sizes.admit(&key("x", "a"), half) && sizes.admit(&key("x", "b"), half));
        assert!(!sizes.admit(&key("x", "c"), 1) && !sizes.admit(&key("x", "d"), half));
        assert!(sizes.admit(&key("x1", "c"), half) && sizes.admit(&key("w", "c"), half), "other namespaces");
        assert!(sizes.admit(&key("x", "a"), half), "the same again");
        assert_eq!(sizes.retry(), keys(&[]), "nothing became free");
        assert!(sizes.admit(&key("x", "a"), half - 1));
        assert_eq!(sizes.retry(), keys(&["c"]), "the other one does not fit");
        assert!(sizes.admit(&key("x", "c"), 1) && !sizes.admit(&key("x", "d"), half));
        assert_eq!(sizes.retry(), keys(&[]), "a refusal frees nothing");
        sizes.remove(&key("x", "b"));
        assert_eq!(sizes.retry(), keys(&["d"]));
        // A set that grows beyond the room gives its own bytes back.
        assert!(sizes.admit(&key("x", "d"), half) && !sizes.admit(&key("x", "d"), NAMESPACE_MAX));
        assert_eq!(sizes.retry(), keys(&[]), "it does not fit alone");
        assert!(sizes.admit(&key("x", "b"), half));
        for name in ["a", "b", "c", "d"] {
            sizes.remove(&key("x", name));
        }
        assert_eq!(sizes.0.keys().collect::<Vec<_>>(), ["w", "x1"], "nothing is kept");
    }
}
