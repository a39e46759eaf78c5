//! Whether pods are being attached now: what nobody waits for waits until they are.
//!
//! A runtime that starts many pods at once keeps every processor busy; Events and statuses of the first ones would take
//! them from the last.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

/// How many calls are under way.
#[derive(Debug, Default)]
pub struct Busy(watch::Sender<usize>);

/// A call that is under way, until this is dropped.
#[derive(Debug)]
pub struct Call<'a>(&'a Busy);

impl Busy {
    /// One more.
    pub fn begin(&self) -> Call<'_> {
        self.0.send_modify(|count| *count += 1);
        Call(self)
    }

    /// Comes when none is under way, and after so long in any case.
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
    async fn it_is_quiet_when_the_last_call_has_ended_and_nobody_waits_for_ever() {
        let busy = Busy::default();
        let long = Duration::from_secs(600);
        busy.quiet(long).await;
        let (first, second) = (busy.begin(), busy.begin());
        drop(first);
        assert!(timeout(Duration::from_millis(20), busy.quiet(long)).await.is_err());
        busy.quiet(Duration::from_millis(20)).await;
        tokio::join!(busy.quiet(long), async { drop(second) });
    }
}
