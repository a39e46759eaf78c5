//! Queue of pods: each is in it once, and is taken in the order of arrival or at a later time.

use std::collections::{BTreeSet, VecDeque};
use std::time::Instant;

/// Pods by uid.
#[derive(Debug, Default)]
pub(super) struct WorkQueue {
    /// Pods with the time at which they were added.
    order: VecDeque<(String, Instant)>,
    queued: BTreeSet<String>,
    later: BTreeSet<(Instant, String)>,
}

impl WorkQueue {
    /// Adds a pod, unless it is in the queue.
    pub(super) fn add(&mut self, uid: &str) {
        if self.queued.insert(uid.to_owned()) {
            self.order.push_back((uid.to_owned(), Instant::now()));
        }
    }

    /// Adds a pod at a later time.
    pub(super) fn add_at(&mut self, time: Instant, uid: String) {
        self.later.insert((time, uid));
    }

    /// Returns the time at which the next pod is added.
    pub(super) fn next(&self) -> Option<Instant> {
        self.later.first().map(|(time, _)| *time)
    }

    /// Adds the pods whose time has come.
    pub(super) fn wake(&mut self, now: Instant) {
        while self.next().is_some_and(|time| time <= now) {
            if let Some((_, uid)) = self.later.pop_first() {
                self.add(&uid);
            }
        }
    }

    /// Takes the next pod, with the time at which it was added.
    pub(super) fn take(&mut self) -> Option<(String, Instant)> {
        let (uid, since) = self.order.pop_front()?;
        self.queued.remove(&uid);
        Some((uid, since))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn status_queue_has_each_pod_once_in_order_of_arrival() {
        let (mut queue, now) = (WorkQueue::default(), Instant::now());
        for uid in ["b", "a", "b"] {
            queue.add(uid);
        }
        let later = now + Duration::from_secs(1);
        queue.add_at(later, "c".to_owned());
        queue.add_at(later, "c".to_owned());
        queue.wake(now);
        assert_eq!(queue.next(), Some(later));
        fn take(queue: &mut WorkQueue) -> Option<String> {
            queue.take().map(|(uid, _)| uid)
        }
        let mut taken = || [(); 3].map(|()| take(&mut queue).unwrap_or_default());
        assert_eq!(taken(), ["b", "a", ""]);
        queue.add("d");
        queue.wake(later);
        assert_eq!(queue.next(), None);
        assert_eq!([(); 3].map(|()| take(&mut queue)), [Some("d".into()), Some("c".into()), None]);
    }
}
