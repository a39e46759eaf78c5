//! Back-off for Services whose slices could not be written, and names that other controllers have.
//!
//! - If one Service fails, the others are not delayed.
//! - The pauses between attempts grow.
//! - A name that belongs to another controller is not tried again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use kube_support::resources::Key;

/// First and longest pause after a failure.
pub(super) const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// State for each Service with a failure or with a taken name.
#[derive(Debug, Default)]
pub(super) struct Backoff(BTreeMap<Key, Retry>);

#[derive(Debug, Default)]
struct Retry {
    /// When the pause ends and how long it is; none after a success.
    pause: Option<(Instant, Duration)>,
    /// Slice names that other controllers have.
    taken: BTreeSet<String>,
}

// === impl Backoff ===

impl Backoff {
    /// Whether the Service's pause is not over.
    pub(super) fn is_paused(&self, service: &Key, now: Instant) -> bool {
        self.0.get(service).and_then(|retry| retry.pause).is_some_and(|(until, _)| now < until)
    }

    /// Returns the names that other controllers have.
    pub(super) fn taken(&self, service: &Key) -> BTreeSet<String> {
        self.0.get(service).map(|retry| retry.taken.clone()).unwrap_or_default()
    }

    /// Records a name that another controller has.
    pub(super) fn add_taken(&mut self, service: &Key, name: &str) {
        self.0.entry(service.clone()).or_default().taken.insert(name.to_owned());
    }

    /// Records a success.
    pub(super) fn done(&mut self, service: &Key) {
        if let Some(retry) = self.0.get_mut(service) {
            retry.pause = None;
        }
    }

    /// Records a failure: the next pause is twice as long.
    pub(super) fn failed(&mut self, service: &Key, now: Instant) {
        let pause = &mut self.0.entry(service.clone()).or_default().pause;
        let length = pause.map_or(PAUSES.0, |(_, before)| (before * 2).min(PAUSES.1));
        *pause = Some((now + length, length));
    }

    /// Returns when the earliest pause ends.
    pub(super) fn next(&self) -> Option<Instant> {
        self.0.values().filter_map(|retry| retry.pause).map(|(until, _)| until).min()
    }

    /// Removes the state for Services that `is_there` does not select.
    pub(super) fn retain(&mut self, is_there: impl Fn(&Key) -> bool) {
        self.0.retain(|service, _| is_there(service));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_of_a_service_grows_and_delays_no_other() {
        let key = |name: &str| ("n".to_owned(), name.to_owned());
        let (now, mut backoff) = (Instant::now(), Backoff::default());
        assert_eq!(backoff.next(), None);
        for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
            backoff.failed(&key("a"), now);
            let until = now + Duration::from_secs(seconds);
            assert_eq!(backoff.next(), Some(until));
            assert!(
                backoff.is_paused(&key("a"), until - Duration::from_millis(1))
                    && !backoff.is_paused(&key("a"), until)
            );
            assert!(!backoff.is_paused(&key("b"), now));
        }
        backoff.add_taken(&key("a"), "x");
        backoff.done(&key("a"));
        assert_eq!((backoff.next(), backoff.taken(&key("a")).len()), (None, 1));
        backoff.failed(&key("a"), now);
        assert_eq!(backoff.next(), Some(now + PAUSES.0));
        backoff.retain(|service| *service != key("a"));
        assert_eq!((backoff.next(), backoff.taken(&key("a")).len()), (None, 0));
    }
}
