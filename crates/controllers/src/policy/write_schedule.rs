//! Times at which address sets are written.
//!
//! - A change after a pause is written at once. Further changes are collected until [`WriteSchedule::finished`] plus an
//!   interval, so a burst of pods causes few writes.
//! - A set has one write at a time. A failed write is repeated after growing pauses and delays no other set.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use kube_support::resources::Key;

/// Shortest time between two writes of one object.
const INTERVAL: Duration = Duration::from_millis(200);
/// Number of bytes that lengthen the interval by a millisecond, so that large objects are written less often.
const BYTES_PER_MILLISECOND: usize = 2048;
/// First and longest pause after a failure.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// Number of writes at a time.
const WRITES_MAX: usize = 16;

/// Writes that are due, or in progress.
#[derive(Debug, Default)]
pub(super) struct WriteSchedule {
    /// Requested writes by the time before which they do not start.
    due: BTreeSet<(Instant, Key)>,
    sets: BTreeMap<Key, SetWrites>,
    running: usize,
}

/// Writes of one address set.
#[derive(Debug, Default)]
struct SetWrites {
    /// Time of the first change that is not written, and time before which it is not written.
    requested: Option<(Instant, Instant)>,
    is_running: bool,
    /// Time before which the next write does not start.
    not_before: Option<Instant>,
    /// Pause after the last failure; none after a success.
    pause: Option<Duration>,
}

/// End of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// The object is as it should be. The number of bytes that were sent; 0 without a request.
    Done(usize),
    /// The API server refused the object or did not answer.
    Failed,
}

// === impl WriteSchedule ===

impl WriteSchedule {
    /// Requests a write.
    pub(super) fn request(&mut self, key: &Key, now: Instant) {
        self.request_at(key, now, now);
    }

    /// Requests a write at a time, or earlier if another request needs it.
    pub(super) fn request_at(&mut self, key: &Key, now: Instant, at: Instant) {
        let writes = self.sets.entry(key.clone()).or_default();
        let start = writes.not_before.map_or(at, |before| before.max(at));
        let changed = match writes.requested {
            Some((_, known)) if known <= start => return,
            Some((changed, known)) => {
                self.due.remove(&(known, key.clone()));
                changed
            }
            None => now,
        };
        writes.requested = Some((changed, start));
        if !writes.is_running {
            self.due.insert((start, key.clone()));
        }
    }

    /// Starts the next write that is due. The result is the set and the time of the first change.
    pub(super) fn start(&mut self, now: Instant) -> Option<(Key, Instant)> {
        if self.running >= WRITES_MAX || self.due.first().is_none_or(|(start, _)| *start > now) {
            return None;
        }
        let (_, key) = self.due.pop_first()?;
        let writes = self.sets.entry(key.clone()).or_default();
        let (changed, _) = writes.requested.take()?;
        writes.is_running = true;
        self.running += 1;
        Some((key, changed))
    }

    /// Records the end of a write. After a failure the write is requested again.
    pub(super) fn finished(&mut self, key: &Key, written: Written, now: Instant) {
        let writes = self.sets.entry(key.clone()).or_default();
        writes.is_running = false;
        self.running = self.running.saturating_sub(1);
        let delay = match written {
            Written::Done(0) => Duration::ZERO,
            Written::Done(bytes) => {
                let more = u64::try_from(bytes / BYTES_PER_MILLISECOND).unwrap_or(u64::MAX);
                INTERVAL + Duration::from_millis(more)
            }
            Written::Failed => writes.pause.map_or(PAUSES.0, |before| (before * 2).min(PAUSES.1)),
        };
        writes.pause = (written == Written::Failed).then_some(delay);
        writes.not_before = Some(now + delay);
        if written == Written::Failed && writes.requested.is_none() {
            writes.requested = Some((now, now));
        }
        if let Some((changed, start)) = writes.requested {
            let start = start.max(now + delay);
            writes.requested = Some((changed, start));
            self.due.insert((start, key.clone()));
        }
    }

    /// Returns the time at which the next write can start; none if a write must end first.
    pub(super) fn next(&self) -> Option<Instant> {
        self.due.first().filter(|_| self.running < WRITES_MAX).map(|(start, _)| *start)
    }

    /// Removes the state of a set, unless it has a write.
    pub(super) fn forget(&mut self, key: &Key) {
        if self.sets.get(key).is_some_and(|writes| !writes.is_running && writes.requested.is_none()) {
            self.sets.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        ("n".to_owned(), name.to_owned())
    }

    const MILLISECOND: Duration = Duration::from_millis(1);

    #[test]
    fn policy_write_is_at_once_and_a_burst_is_collected() {
        let (mut schedule, start) = (WriteSchedule::default(), Instant::now());
        schedule.request(&key("a"), start);
        assert_eq!(schedule.start(start), Some((key("a"), start)));
        // Changes while the write is in progress.
        let changed = start + MILLISECOND;
        schedule.request(&key("a"), changed);
        schedule.request(&key("a"), changed + MILLISECOND);
        assert_eq!((schedule.start(changed), schedule.next()), (None, None));
        let end = start + 5 * MILLISECOND;
        schedule.finished(&key("a"), Written::Done(1000), end);
        assert_eq!((schedule.start(end), schedule.next()), (None, Some(end + INTERVAL)));
        assert_eq!(schedule.start(end + INTERVAL), Some((key("a"), changed)));
        schedule.finished(&key("a"), Written::Done(2048 * 300), end + INTERVAL);
        // A large object has a longer interval.
        schedule.request(&key("a"), end + INTERVAL);
        assert_eq!(schedule.next(), Some(end + 2 * INTERVAL + 300 * MILLISECOND));
        // Another set does not wait.
        schedule.request(&key("b"), end + INTERVAL);
        assert_eq!(schedule.start(end + INTERVAL), Some((key("b"), end + INTERVAL)));
        schedule.finished(&key("b"), Written::Done(0), end + INTERVAL);
        schedule.request(&key("b"), end + INTERVAL);
        assert!(schedule.start(end + INTERVAL).is_some(), "nothing was sent");
    }

    #[test]
    fn policy_write_that_fails_is_repeated_after_growing_pauses() {
        let (mut schedule, mut now) = (WriteSchedule::default(), Instant::now());
        schedule.request(&key("a"), now);
        for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
            assert!(schedule.start(now).is_some());
            schedule.finished(&key("a"), Written::Failed, now);
            let next = now + Duration::from_secs(seconds);
            // A further change does not shorten the pause.
            schedule.request(&key("a"), now);
            assert_eq!((schedule.next(), schedule.start(next - MILLISECOND)), (Some(next), None));
            now = next;
        }
        assert!(schedule.start(now).is_some());
        schedule.finished(&key("a"), Written::Done(1), now);
        schedule.forget(&key("a"));
        assert!(schedule.sets.is_empty() && schedule.next().is_none());
    }

    #[test]
    fn policy_write_that_is_planned_for_later_is_moved_up() {
        let (mut schedule, now) = (WriteSchedule::default(), Instant::now());
        let at = |seconds| now + Duration::from_secs(seconds);
        schedule.request_at(&key("a"), now, at(10));
        schedule.request_at(&key("a"), at(1), at(20));
        assert_eq!((schedule.next(), schedule.start(at(9))), (Some(at(10)), None));
        schedule.request(&key("a"), at(1));
        assert_eq!((schedule.due.len(), schedule.start(at(1))), (1, Some((key("a"), now))));
        // A later time that is requested during a write stays.
        schedule.request_at(&key("a"), at(2), at(10));
        schedule.finished(&key("a"), Written::Done(0), at(3));
        assert_eq!(schedule.next(), Some(at(10)));
    }

    #[test]
    fn policy_writes_at_a_time_are_limited() {
        let (mut schedule, now) = (WriteSchedule::default(), Instant::now());
        for number in 0..=WRITES_MAX {
            schedule.request(&key(&number.to_string()), now);
        }
        let started: Vec<(Key, Instant)> = std::iter::from_fn(|| schedule.start(now)).collect();
        assert_eq!((started.len(), schedule.next()), (WRITES_MAX, None));
        schedule.finished(&started[0].0, Written::Done(1), now);
        assert!(schedule.next().is_some() && schedule.start(now).is_some());
        assert_eq!(schedule.start(now), None);
    }
}
