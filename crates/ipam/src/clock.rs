//! Time and quarantine: how long a released address waits before it is allocated to another owner.

/// Longest time until a request takes effect, in milliseconds.
const REQUEST_MAX: u64 = 60_000;

/// Current time, and how long addresses are in quarantine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    /// Current time in milliseconds since 1970.
    pub now: u64,
    /// Quarantine in milliseconds.
    pub quarantine: u64,
}

impl Clock {
    /// Returns the release time for an address that was held since `held_since`, so that the quarantine is at most as
    /// long as the address was held. Never 0, which means that the address was never held.
    pub(crate) fn released_at(self, held_since: u64) -> u64 {
        let held = self.now.saturating_sub(held_since);
        self.now.saturating_sub(self.quarantine.saturating_sub(held)).max(1)
    }

    /// Returns when the quarantine ends for an address released at `released_at`; `None` if it is over.
    ///
    /// A release time far in the future means that the clock was set back; then there is no quarantine. The
    /// release time may be ahead of `now` by the quarantine and [`REQUEST_MAX`], because the two come from
    /// two nodes' clocks. With a quarantine of zero no address waits.
    pub fn quarantined_until(self, released_at: u64) -> Option<u64> {
        let end = released_at.saturating_add(self.quarantine);
        let latest = self.now.saturating_add(self.quarantine).saturating_add(REQUEST_MAX);
        let is_quarantined =
            self.quarantine > 0 && released_at > 0 && self.now < end && released_at <= latest;
        is_quarantined.then_some(end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quarantine_is_at_most_as_long_as_the_address_was_held() {
        let clock = Clock { now: 1_000, quarantine: 60 };
        for (held_since, end) in
            [(0, Some(1_060)), (940, Some(1_060)), (990, Some(1_010)), (1_000, None), (1_001, None)]
        {
            let released_at = clock.released_at(held_since);
            assert_eq!(clock.quarantined_until(released_at), end, "{held_since}");
        }
        assert_eq!(Clock { now: 1, quarantine: 60 }.released_at(1), 1);
    }

    #[test]
    fn quarantine_of_zero_never_delays_an_address() {
        assert_eq!(Clock { now: 100, quarantine: 0 }.quarantined_until(101), None);
        assert_eq!(Clock { now: 100, quarantine: 10 }.quarantined_until(101), Some(111));
    }
}
