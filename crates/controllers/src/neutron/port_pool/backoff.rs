//! Back-off for pools that could not be filled. Each pool has a separate pause.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::PoolKey;

/// First and longest pause.
const PAUSES: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(60));

/// Pools with a pause: how long it is and when it ends.
#[derive(Debug, Default)]
pub(crate) struct Backoff(BTreeMap<PoolKey, (Duration, Instant)>);

impl Backoff {
    /// Keeps the pauses for these pools, which run low, and removes the others.
    pub(crate) fn keep(&mut self, low: &[(PoolKey, usize)]) {
        self.0.retain(|key, _| low.iter().any(|(known, _)| known == key));
    }

    /// Whether the pool has no pause, or the pause is over.
    pub(crate) fn is_due(&self, key: &PoolKey, now: Instant) -> bool {
        self.0.get(key).is_none_or(|(_, until)| *until <= now)
    }

    /// Records that a pool was filled.
    pub(crate) fn filled(&mut self, key: &PoolKey) {
        self.0.remove(key);
    }

    /// Records that a pool could not be filled: the next pause is twice as long.
    pub(crate) fn failed(&mut self, key: &PoolKey, now: Instant) {
        let pause = self.0.get(key).map_or(PAUSES.0, |(pause, _)| (*pause * 2).min(PAUSES.1));
        self.0.insert(key.clone(), (pause, now + pause));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_of_a_port_pool_grows_and_delays_no_other() {
        let key = |subnet: &str| PoolKey { host: "a".into(), subnet: subnet.into(), groups: Vec::new() };
        let (bad, good) = (key("bad"), key("good"));
        let (mut backoff, mut now) = (Backoff::default(), Instant::now());
        for seconds in [2, 4, 8, 16, 32, 60, 60] {
            backoff.failed(&bad, now);
            let pause = Duration::from_secs(seconds);
            assert!(
                !backoff.is_due(&bad, now + pause - Duration::from_millis(1)) && backoff.is_due(&good, now)
            );
            now += pause;
            assert!(backoff.is_due(&bad, now), "{seconds}");
        }
        backoff.keep(&[(good, 1)]);
        backoff.failed(&bad, now);
        assert!(backoff.is_due(&bad, now + PAUSES.0), "a removed pool begins with the first pause");
    }
}
