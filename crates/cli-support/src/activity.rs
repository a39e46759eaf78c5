//! Counts ADDs in progress, so that background work can wait until pods are attached.
//!
//! When a runtime starts many pods at once, every processor is busy. Publishing Events and statuses for the first pods
//! at that moment would only slow down the last ones.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

/// Counter that the server raises for each call and background work waits for.
#[derive(Debug, Default)]
pub struct Busy(watch::Sender<usize>);

/// Guard for one call in progress; the call ends when the guard is dropped.
#[derive(Debug)]
pub struct Call<'a>(&'a Busy);

impl Busy {
    /// Counts one more call until the returned guard is dropped.
    pub fn begin(&self) -> Call<'_> {
        self.0.send_modify(|count| *count += 1);
        Call(self)
    }

    /// Whether no call is in progress, so that background work may start now.
    pub fn is_quiet(&self) -> bool {
        *self.0.borrow() == 0
    }

    /// Waits until no call is in progress, but never longer than `longest`.
    pub async fn quiet(&self, longest: Duration) {
        let mut changes = self.0.subscribe();
        let _ = timeout(longest, changes.wait_for(|count| *count == 0)).await;
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.0.0.send_modify(|count| *count = count.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn background_work_waits_for_calls_up_to_its_limit() {
        let busy = Busy::default();
        let long = Duration::from_secs(600);
        busy.quiet(long).await;
        let (first, second) = (busy.begin(), busy.begin());
        drop(first);
        assert!(!busy.is_quiet());
        assert!(timeout(Duration::from_millis(20), busy.quiet(long)).await.is_err());
        busy.quiet(Duration::from_millis(20)).await;
        tokio::join!(busy.quiet(long), async { drop(second) });
        assert!(busy.is_quiet());
    }
}
