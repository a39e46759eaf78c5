//! A lease in memory, and the signal that wakes the lease thread.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::state::Record;

/// Lease that a thread manages. Stopping it wakes the thread, which then ends.
#[derive(Debug)]
pub(super) struct HeldLease {
    pub(super) record: Mutex<Record>,
    pub(super) stopped: Mutex<bool>,
    pub(super) wakeup: Condvar,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

// === impl HeldLease ===

impl HeldLease {
    pub(super) fn new(record: Record) -> Arc<HeldLease> {
        Arc::new(HeldLease { record: Mutex::new(record), stopped: Mutex::new(false), wakeup: Condvar::new() })
    }

    pub(super) fn record(&self) -> Record {
        lock(&self.record).clone()
    }

    pub(super) fn stop(&self) {
        *lock(&self.stopped) = true;
        self.wakeup.notify_all();
    }

    pub(super) fn is_stopped(&self) -> bool {
        *lock(&self.stopped)
    }

    /// Sleeps; returns true if the lease was stopped.
    pub(super) fn sleep(&self, time: Duration) -> bool {
        let until = Instant::now() + time;
        let mut stopped = lock(&self.stopped);
        while !*stopped {
            let remaining = until.saturating_duration_since(Instant::now());
            if remaining.is_zero() {
                return false;
            }
            stopped = self.wakeup.wait_timeout(stopped, remaining).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}
