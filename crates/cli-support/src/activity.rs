//! Counter of ADDs in progress, so that background work can wait until pods are attached.
//!
//! A runtime that starts many pods at once keeps every processor busy. Events and statuses of the first pods would slow
//! down the last ones.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

/// Number of calls in progress.
#[derive(Debug, Default)]
pub struct Busy(watch::Sender<usize>);

/// Call in progress, until it is dropped.
#[derive(Debug)]
pub struct Call<'a>(&'a Busy);

impl Busy {
    /// Counts one more call.
    pub fn begin(&self) -> Call<'_> {
        self.0.send_modify(|count| *count += 1);
        Call(self)
    }

    /// Whether no call is in progress.
    pub fn is_quiet(&self) -> bool {
        *self.0.borrow() == 0
    }

    /// Waits until no call is in progress, or until `longest` is over.
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
