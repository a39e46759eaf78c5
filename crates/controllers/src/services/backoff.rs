//! Services whose slices could not be written: when that is tried again, and which names others have.
//!
//! Rules: the trouble of one Service is its own, and holds up no other one; it is tried again more and more rarely; a name that
//! was found to be somebody else's is not tried again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use kube_support::resources::Key;

/// The first and the longest pause after trouble.
pub(super) const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Those that had trouble, by namespace and name.
#[derive(Debug, Default)]
pub(super) struct Backoff(BTreeMap<Key, Rest>);

#[derive(Debug, Default)]
struct Rest {
    /// Until when, and how long that is; nothing if all went well.
    pause: Option<(Instant, Duration)>,
    /// Names of slices that others have.
    taken: BTreeSet<String>,
}

// === impl Backoff ===

impl Backoff {
    /// Is nothing to be tried now?
    pub(super) fn has(&self, service: &Key, now: Instant) -> bool {
        self.0.get(service).and_then(|rest| rest.pause).is_some_and(|(until, _)| now < until)
    }

    /// Names of slices that others have.
    pub(super) fn taken(&self, service: &Key) -> BTreeSet<String> {
        self.0.get(service).map(|rest| rest.taken.clone()).unwrap_or_default()
    }

    /// A name is somebody else's.
    pub(super) fn take(&mut self, service: &Key, name: &str) {
        self.0.entry(service.clone()).or_default().taken.insert(name.to_owned());
    }

    /// All was written.
    pub(super) fn done(&mut self, service: &Key) {
        if let Some(rest) = self.0.get_mut(service) {
            rest.pause = None;
        }
    }

    /// Something could not be written.
    pub(super) fn failed(&mut self, service: &Key, now: Instant) {
        let pause = &mut self.0.entry(service.clone()).or_default().pause;
        let long = pause.map_or(PAUSES.0, |(_, before)| (before * 2).min(PAUSES.1));
        *pause = Some((now + long, long));
    }

    /// When the next one is to be tried again.
    pub(super) fn next(&self) -> Option<Instant> {
        self.0.values().filter_map(|rest| rest.pause).map(|(until, _)| until).min()
    }

    /// Forgets Services that have nothing of us any more.
    pub(super) fn retain(&mut self, is_there: impl Fn(&Key) -> bool) {
        self.0.retain(|service, _| is_there(service));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trouble_is_a_services_own_and_is_tried_again_more_and_more_rarely() {
        let key = |name: &str| ("n".to_owned(), name.to_owned());
        let (now, mut backoff) = (Instant::now(), Backoff::default());
        assert_eq!(backoff.next(), None);
        for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
            backoff.failed(&key("a"), now);
            let until = now + Duration::from_secs(seconds);
            assert_eq!(backoff.next(), Some(until));
            assert!(
                backoff.has(&key("a"), until - Duration::from_millis(1)) && !backoff.has(&key("a"), until)
            );
            assert!(!backoff.has(&key("b"), now));
        }
        backoff.take(&key("a"), "x");
        backoff.done(&key("a"));
        assert_eq!((backoff.next(), backoff.taken(&key("a")).len()), (None, 1));
        backoff.failed(&key("a"), now);
        assert_eq!(backoff.next(), Some(now + PAUSES.0));
        backoff.retain(|service| *service != key("a"));
        assert_eq!((backoff.next(), backoff.taken(&key("a")).len()), (None, 0));
    }
}
