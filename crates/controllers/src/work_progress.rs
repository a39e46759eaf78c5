//! Watches whether a controller makes progress: if the loop stands still, or nobody answers requests, the Lease is
//! released.
//!
//! - The main loop reports each round, at least every [`ROUND_MAX`], also without changes.
//! - A request is answered if the API server sent any response, also an error. Errors of the server are no reason to lead no
//!   longer: another controller would get the same.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Longest time between two rounds of a loop without work.
pub(crate) const ROUND_MAX: Duration = Duration::from_secs(15);
/// Time without a round, or without a response, after which the work is stalled.
const STALLED_MAX: Duration = Duration::from_secs(120);

/// Progress since the controller leads.
#[derive(Debug, Default)]
pub(crate) struct WorkProgress(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Time of the last round; none before the first.
    round: Option<Instant>,
    /// When the first request since the last response was sent, if it has none, and the reason.
    unanswered: Option<(Instant, String)>,
}

// === impl WorkProgress ===

impl WorkProgress {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that the loop goes on.
    pub(crate) fn round(&self) {
        self.state().round = Some(Instant::now());
    }

    /// Records a response to a request.
    pub(crate) fn answered(&self) {
        let mut state = self.state();
        state.unanswered = None;
        state.round = state.round.map(|_| Instant::now());
    }

    /// Records a failed request. An error of the API server is a response.
    pub(crate) fn failed(&self, error: &kube::Error) {
        match error {
            kube::Error::Api(_) => self.answered(),
            error => self.unanswered(&kube_support::api_error::describe(error)),
        }
    }

    /// Records a request without a response.
    pub(crate) fn unanswered(&self, why: &str) {
        let mut state = self.state();
        // Each request has a deadline, so the loop goes on.
        state.round = state.round.map(|_| Instant::now());
        state.unanswered.get_or_insert_with(|| (Instant::now(), why.to_owned()));
    }

    /// Returns why the work makes no progress.
    pub(crate) fn stalled(&self) -> Option<String> {
        let state = self.state();
        let since = state.round?.elapsed();
        if since >= STALLED_MAX {
            return Some(format!("its work stands still for {} s", since.as_secs()));
        }
        let (first, why) = state.unanswered.as_ref()?;
        let since = first.elapsed();
        (since >= STALLED_MAX).then(|| format!("no write was answered for {} s: {why}", since.as_secs()))
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn stalled_work_has_no_rounds_or_no_responses() {
        let progress = WorkProgress::default();
        advance(2 * STALLED_MAX).await;
        assert_eq!(progress.stalled(), None, "it does not lead yet");
        progress.round();
        advance(STALLED_MAX - ROUND_MAX).await;
        assert_eq!(progress.stalled(), None);
        advance(ROUND_MAX).await;
        assert_eq!(progress.stalled().as_deref(), Some("its work stands still for 120 s"));
        progress.round();
        for _ in 0..10 {
            progress.unanswered("timeout");
            advance(ROUND_MAX).await;
            progress.round();
        }
        assert_eq!(progress.stalled().as_deref(), Some("no write was answered for 150 s: timeout"));
        // An error of the server is a response, and no reason for another leader.
        let refused = kube::core::Status::failure("forbidden", "Forbidden").with_code(403);
        progress.failed(&kube::Error::Api(Box::new(refused)));
        assert_eq!(progress.stalled(), None);
        progress.failed(&kube::Error::LinesCodecMaxLineLengthExceeded);
        advance(STALLED_MAX).await;
        progress.round();
        assert!(progress.stalled().is_some_and(|why| why.starts_with("no write was answered for 120 s")));
        progress.answered();
        assert_eq!(progress.stalled(), None);
    }
}
