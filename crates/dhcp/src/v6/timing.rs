//! How long to wait for an answer before it is asked again.
//!
//! Rules: the first wait and the longest are the RFC's for each message, each but the first about twice as long as the one
//! before, give or take a tenth; none is longer than the daemon was told.
//!
//! Source: RFC 8415 §7.6, §15.

use std::time::{Duration, Instant};

use crate::v4::exchange::{Timing, random};

/// How a message is repeated.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// The first wait (IRT).
    pub first: Duration,
    /// The longest (MRT).
    pub most: Duration,
    /// How often it is sent (MRC); 0: as often as there is time.
    pub times: u32,
}

const fn pace(first: u64, most: u64, times: u32) -> Pace {
    Pace { first: Duration::from_secs(first), most: Duration::from_secs(most), times }
}

/// `SOL_TIMEOUT`, `SOL_MAX_RT`.
pub const SOLICIT: Pace = pace(1, 3600, 0);
/// `REQ_TIMEOUT`, `REQ_MAX_RT`, `REQ_MAX_RC`.
pub const REQUEST: Pace = pace(1, 30, 10);
/// `CNF_TIMEOUT`, `CNF_MAX_RT`; see [`CONFIRM_WHOLE`].
pub const CONFIRM: Pace = pace(1, 4, 0);
/// `CNF_MAX_RD`: how long a confirmation is waited for.
pub const CONFIRM_WHOLE: Duration = Duration::from_secs(10);
/// `CNF_MAX_DELAY`: those who begin together do not ask together.
pub const CONFIRM_DELAY: Duration = Duration::from_secs(1);
/// `REN_TIMEOUT`, `REN_MAX_RT`; those of a rebinding are the same.
pub const EXTEND: Pace = pace(10, 600, 0);
/// `REL_TIMEOUT`, `REL_MAX_RC`; those of a decline (`DEC_`) are the same.
pub const RELEASE: Pace = pace(1, 3600, 4);
/// How long a server's word on what is given back is waited for, altogether: a container's end is not held up by one that
/// is gone. It is asked twice within.
pub const RELEASE_WHOLE: Duration = Duration::from_secs(3);

/// The waits of one exchange, one after another.
#[derive(Debug)]
pub struct Waits {
    pace: Pace,
    last: Option<Duration>,
    sent: u32,
    since: Instant,
}

impl Pace {
    /// With this as the longest wait where that is shorter.
    #[must_use]
    pub fn at_most(self, most: Duration) -> Pace {
        Pace { most: self.most.min(most), first: self.first.min(most), ..self }
    }

    /// As the daemon was told: no wait for one answer, and none between two questions, is longer.
    #[must_use]
    pub fn told(self, timing: &Timing) -> Pace {
        self.at_most(timing.timeout).at_most(timing.resend_max)
    }

    /// The waits of an exchange that begins now.
    pub fn begin(self) -> Waits {
        Waits { pace: self, last: None, sent: 0, since: Instant::now() }
    }
}

impl Waits {
    /// How long to wait after what is sent now; `None` if it has been sent often enough.
    pub fn again(&mut self) -> Option<Duration> {
        if self.pace.times > 0 && self.sent >= self.pace.times {
            return None;
        }
        self.sent += 1;
        let wait = match self.last {
            // The first wait of all is not shortened: every server has until then for its offer.
            None => self.pace.first + tenth(self.pace.first),
            Some(last) => {
                let doubled = around(last).saturating_add(last);
                if doubled > self.pace.most { around(self.pace.most) } else { doubled }
            }
        };
        self.last = Some(wait);
        Some(wait)
    }

    /// The longest wait is another one from now on.
    pub fn most(&mut self, most: Duration) {
        self.pace = self.pace.at_most(most);
    }

    /// How often it was sent.
    pub fn sent(&self) -> u32 {
        self.sent
    }

    /// How long the exchange takes already, in hundredths of a second: the value of option 8.
    pub fn elapsed(&self) -> [u8; 2] {
        u16::try_from(self.since.elapsed().as_millis() / 10).unwrap_or(u16::MAX).to_be_bytes()
    }
}

/// Up to a tenth of it.
pub fn tenth(time: Duration) -> Duration {
    (time / 10).mul_f64(f64::from(random()) / f64::from(u32::MAX))
}

/// A tenth more or less.
fn around(time: Duration) -> Duration {
    time - time / 10 + tenth(time) * 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest_and_none_is_longer_than_the_daemon_was_told() {
        let told = Timing {
            timeout: Duration::from_secs(100),
            resend_max: Duration::from_secs(30),
            resend_timeout: Duration::from_secs(208),
        };
        for _ in 0..50 {
            let mut waits = SOLICIT.told(&told).begin();
            let mut base = 1.0;
            for _ in 0..12 {
                let wait = waits.again().unwrap().as_secs_f64();
                assert!(wait >= base * 0.89 && wait <= base * 1.13, "{wait} instead of about {base}");
                assert!(wait <= 33.0, "{wait}");
                base = if wait * 2.0 > 30.0 { 30.0 } else { wait * 2.0 };
            }
        }
        let impatient = Timing { timeout: Duration::from_millis(200), ..told };
        let mut waits = EXTEND.told(&impatient).begin();
        assert!((0..9).all(|_| waits.again().unwrap() <= Duration::from_millis(220)));
    }

    #[test]
    fn what_is_sent_so_many_times_is_sent_no_more() {
        let mut waits = RELEASE.begin();
        assert_eq!((0..9).filter(|_| waits.again().is_some()).count(), 4);
        assert!(REQUEST.begin().again().unwrap() >= Duration::from_secs(1), "the first is no shorter");
    }
}
