//! Pools that could not be filled rest, each by itself: the others are filled meanwhile.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::Key;

/// The first and the longest rest.
const RESTS: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(60));

/// The pools that rest: for how long, and until when.
#[derive(Debug, Default)]
pub(crate) struct Backoff(BTreeMap<Key, (Duration, Instant)>);

impl Backoff {
    /// Forgets all pools but these, which run low.
    pub(crate) fn keep(&mut self, low: &[(Key, usize)]) {
        self.0.retain(|key, _| low.iter().any(|(known, _)| known == key));
    }

    /// Is it to be tried?
    pub(crate) fn is_due(&self, key: &Key, now: Instant) -> bool {
        self.0.get(key).is_none_or(|(_, until)| *until <= now)
    }

    /// It was filled.
    pub(crate) fn filled(&mut self, key: &Key) {
        self.0.remove(key);
    }

    /// It could not be filled.
    pub(crate) fn failed(&mut self, key: &Key, now: Instant) {
        let rest = self.0.get(key).map_or(RESTS.0, |(rest, _)| (*rest * 2).min(RESTS.1));
        self.0.insert(key.clone(), (rest, now + rest));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_that_cannot_be_filled_rests_longer_and_longer_and_no_other_does() {
        let key = |subnet: &str| Key { host: "a".into(), subnet: subnet.into(), groups: Vec::new() };
        let (bad, good) = (key("bad"), key("good"));
        let (mut backoff, mut now) = (Backoff::default(), Instant::now());
        for seconds in [2, 4, 8, 16, 32, 60, 60] {
            backoff.failed(&bad, now);
            let rest = Duration::from_secs(seconds);
            assert!(
                !backoff.is_due(&bad, now + rest - Duration::from_millis(1)) && backoff.is_due(&good, now)
            );
            now += rest;
            assert!(backoff.is_due(&bad, now), "{seconds}");
        }
        backoff.keep(&[(good, 1)]);
        backoff.failed(&bad, now);
        assert!(backoff.is_due(&bad, now + RESTS.0), "what was forgotten begins anew");
    }
}
