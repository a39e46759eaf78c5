//! Numbers of pods, and sets of them that take one bit for each pod.
//!
//! Many selections may select the same many pods. A selection therefore keeps pod numbers instead of addresses.

use std::collections::BTreeMap;
use std::sync::Arc;

use npwg::pod_policies::PodNetworks;

use kube_support::resources::Key;

/// Bits of a word.
const BITS: usize = u64::BITS as usize;

/// Pods with networks, by name and by number.
#[derive(Debug, Default)]
pub(super) struct PodSlots {
    numbers: BTreeMap<Key, usize>,
    pods: Vec<Option<Arc<PodNetworks>>>,
    /// Numbers without a pod, for the next pods.
    free: Vec<usize>,
}

/// Set of numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NumberSet(Vec<u64>);

// === impl PodSlots ===

impl PodSlots {
    /// Returns a pod.
    pub(super) fn find(&self, key: &Key) -> Option<&Arc<PodNetworks>> {
        self.numbers.get(key).and_then(|number| self.at(*number))
    }

    /// Returns the pod with a number.
    pub(super) fn at(&self, number: usize) -> Option<&Arc<PodNetworks>> {
        self.pods.get(number)?.as_ref()
    }

    /// Returns the number of a pod.
    pub(super) fn number(&self, key: &Key) -> Option<usize> {
        self.numbers.get(key).copied()
    }

    /// Adds or replaces a pod. Returns the pod's number, which does not change as long as the pod exists.
    pub(super) fn insert(&mut self, key: &Key, pod: Arc<PodNetworks>) -> usize {
        let number = self.numbers.get(key).copied().unwrap_or_else(|| {
            self.free.pop().unwrap_or_else(|| {
                self.pods.push(None);
                self.pods.len() - 1
            })
        });
        self.numbers.insert(key.clone(), number);
        self.pods[number] = Some(pod);
        number
    }

    /// Removes a pod. The number must not be in any set.
    pub(super) fn remove(&mut self, key: &Key) {
        if let Some(number) = self.numbers.remove(key) {
            self.pods[number] = None;
            self.free.push(number);
        }
    }

    /// Returns the names of all pods.
    pub(super) fn keys(&self) -> impl Iterator<Item = &Key> {
        self.numbers.keys()
    }

    /// Returns a namespace's pods and the numbers of the pods.
    pub(super) fn of_namespace<'a>(
        &'a self,
        namespace: &'a str,
    ) -> impl Iterator<Item = (usize, &'a Arc<PodNetworks>)> {
        let first = (namespace.to_owned(), String::new());
        let own = self.numbers.range(first..).take_while(move |((name, _), _)| name == namespace);
        own.filter_map(|(_, number)| Some((*number, self.at(*number)?)))
    }

    /// Returns the number of pods.
    pub(super) fn count(&self) -> usize {
        self.numbers.len()
    }
}

// === impl NumberSet ===

impl NumberSet {
    /// Adds or removes a number.
    pub(super) fn set(&mut self, number: usize, is_member: bool) {
        let (word, bit) = (number / BITS, 1_u64 << (number % BITS));
        if is_member {
            if self.0.len() <= word {
                self.0.resize(word + 1, 0);
            }
            self.0[word] |= bit;
        } else if let Some(known) = self.0.get_mut(word) {
            *known &= !bit;
        }
    }

    /// Returns the numbers in ascending order.
    pub(super) fn iter(&self) -> impl Iterator<Item = usize> {
        self.0.iter().enumerate().flat_map(|(index, word)| {
            (0..BITS).filter(move |bit| word >> bit & 1 == 1).map(move |bit| index * BITS + bit)
        })
    }
}

#[cfg(test)]
mod tests {
    use npwg::metadata::Pod;

    use super::*;

    #[test]
    fn pod_number_is_kept_and_given_again() {
        let pod = |name: &str| {
            let pod = Pod { namespace: "x".into(), name: name.into(), ..Pod::default() };
            (("x".to_owned(), name.to_owned()), Arc::new(PodNetworks::attached(&pod)))
        };
        let mut slots = PodSlots::default();
        let [(a, one), (b, two), (c, three)] = ["a", "b", "c"].map(pod);
        assert_eq!((slots.insert(&a, Arc::clone(&one)), slots.insert(&b, two)), (0, 1));
        assert_eq!((slots.insert(&a, one), slots.count()), (0, 2));
        slots.remove(&a);
        assert_eq!((slots.find(&a), slots.at(0)), (None, None));
        assert_eq!(slots.insert(&c, three), 0, "the number is free again");
        assert_eq!(slots.of_namespace("x").map(|(number, _)| number).collect::<Vec<_>>(), [1, 0]);
        assert_eq!(slots.of_namespace("w").count(), 0);
        let mut numbers = NumberSet::default();
        [0, 63, 64, 1000].into_iter().for_each(|number| numbers.set(number, true));
        [63, 5000].into_iter().for_each(|number| numbers.set(number, false));
        assert_eq!(numbers.iter().collect::<Vec<_>>(), [0, 64, 1000]);
    }
}
