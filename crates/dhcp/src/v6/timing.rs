//! Intervals at which DHCPv6 messages are repeated.
//!
//! The first and the maximum wait for each message are the RFC's. Each wait is about twice as long as the previous one,
//! give or take a tenth, and never longer than the daemon's flags allow.
//!
//! Source: RFC 8415 §7.6, §15.

use std::time::{Duration, Instant};

use crate::v4::exchange::{Timing, random};

/// Schedule on which a message is repeated.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// First wait (IRT).
    pub first: Duration,
    /// Maximum wait (MRT).
    pub longest: Duration,
    /// Number of transmissions (MRC); 0 means no limit.
    pub times: u32,
}

const fn pace(first: u64, longest: u64, times: u32) -> Pace {
    Pace { first: Duration::from_secs(first), longest: Duration::from_secs(longest), times }
}

/// `SOL_TIMEOUT`, `SOL_MAX_RT`.
pub const SOLICIT: Pace = pace(1, 3600, 0);
/// `REQ_TIMEOUT`, `REQ_MAX_RT`, `REQ_MAX_RC`.
pub const REQUEST: Pace = pace(1, 30, 10);
/// `CNF_TIMEOUT`, `CNF_MAX_RT`; see [`CONFIRM_TIMEOUT`].
pub const CONFIRM: Pace = pace(1, 4, 0);
/// `CNF_MAX_RD`: timeout for a confirmation.
pub const CONFIRM_TIMEOUT: Duration = Duration::from_secs(10);
/// `CNF_MAX_DELAY`: maximum random delay, so that clients that start together do not send together.
pub const CONFIRM_DELAY: Duration = Duration::from_secs(1);
/// `REN_TIMEOUT`, `REN_MAX_RT`; a rebinding uses the same values.
pub const EXTEND: Pace = pace(10, 600, 0);
/// `REL_TIMEOUT`, `REL_MAX_RC`; a decline (`DEC_`) uses the same values.
pub const RELEASE: Pace = pace(1, 3600, 4);
/// Timeout for a release or decline, enough for two transmissions: a server that does not answer must not delay a DEL.
pub const RELEASE_TIMEOUT: Duration = Duration::from_secs(3);

/// Sequence of waits in one exchange.
#[derive(Debug)]
pub struct Waits {
    pace: Pace,
    last: Option<Duration>,
    sent: u32,
    since: Instant,
}

impl Pace {
    /// Lowers the maximum wait.
    #[must_use]
    pub fn at_most(self, longest: Duration) -> Pace {
        Pace { longest: self.longest.min(longest), first: self.first.min(longest), ..self }
    }

    /// Applies the daemon's flags: the maximum wait for an answer, and the maximum time between two messages.
    #[must_use]
    pub fn limited_by(self, timing: &Timing) -> Pace {
        self.at_most(timing.timeout).at_most(timing.resend_max)
    }

    /// Starts an exchange now, and returns the waits.
    pub fn begin(self) -> Waits {
        Waits { pace: self, last: None, sent: 0, since: Instant::now() }
    }
}

impl Waits {
    /// Returns the wait after the next transmission; `None` after the last one.
    pub fn next_wait(&mut self) -> Option<Duration> {
        if self.pace.times > 0 && self.sent >= self.pace.times {
            return None;
        }
        self.sent += 1;
        let wait = match self.last {
            // The first wait is not shortened, because every server has until then to send its offer.
            None => self.pace.first + random_tenth(self.pace.first),
            Some(last) => {
                let doubled = with_jitter(last).saturating_add(last);
                if doubled > self.pace.longest { with_jitter(self.pace.longest) } else { doubled }
            }
        };
        self.last = Some(wait);
        Some(wait)
    }

    /// Lowers the maximum wait from now on.
    pub fn limit(&mut self, longest: Duration) {
        self.pace = self.pace.at_most(longest);
    }

    /// Returns the number of transmissions so far.
    pub fn sent(&self) -> u32 {
        self.sent
    }

    /// Returns how long the exchange has lasted, in hundredths of a second: the value for option 8.
    pub fn elapsed(&self) -> [u8; 2] {
        u16::try_from(self.since.elapsed().as_millis() / 10).unwrap_or(u16::MAX).to_be_bytes()
    }
}

/// Returns a random duration up to a tenth of `time`.
pub fn random_tenth(time: Duration) -> Duration {
    (time / 10).mul_f64(f64::from(random()) / f64::from(u32::MAX))
}

/// Returns `time` with a random deviation of up to a tenth.
fn with_jitter(time: Duration) -> Duration {
    time - time / 10 + random_tenth(time) * 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dhcp_v6_waits_double_up_to_the_limits_of_the_flags() {
        let flags = Timing {
            timeout: Duration::from_secs(100),
            resend_max: Duration::from_secs(30),
            resend_timeout: Duration::from_secs(208),
        };
        for _ in 0..50 {
            let mut waits = SOLICIT.limited_by(&flags).begin();
            let mut base = 1.0;
            for _ in 0..12 {
                let wait = waits.next_wait().unwrap().as_secs_f64();
                assert!(wait >= base * 0.89 && wait <= base * 1.13, "{wait} instead of about {base}");
                assert!(wait <= 33.0, "{wait}");
                base = if wait * 2.0 > 30.0 { 30.0 } else { wait * 2.0 };
            }
        }
        let impatient = Timing { timeout: Duration::from_millis(200), ..flags };
        let mut waits = EXTEND.limited_by(&impatient).begin();
        assert!((0..9).all(|_| waits.next_wait().unwrap() <= Duration::from_millis(220)));
    }

    #[test]
    fn dhcp_v6_transmissions_have_a_maximum() {
        let mut waits = RELEASE.begin();
        assert_eq!((0..9).filter(|_| waits.next_wait().is_some()).count(), 4);
        assert!(REQUEST.begin().next_wait().unwrap() >= Duration::from_secs(1), "the first is no shorter");
    }
}
