//! Detects a leader that cannot work: the caches are stale or were never filled, or the work makes no progress.
//!
//! The Lease alone does not tell: it is renewed over another connection, which may work.

use std::time::Duration;

use kube_support::cache::followed;
use kube_support::health::HealthStatus;
use tokio::time::{Instant, sleep};
use tracing::warn;

/// Time without current caches, or without what the controller waits for, after which the Lease is given back.
const STUCK_MAX: Duration = Duration::from_secs(90);
/// Interval of the checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// Interval between log lines of a candidate that waits.
const REMINDER_INTERVAL: Duration = Duration::from_secs(60);

/// Waits until nothing is missing and no cache is stale.
pub(super) async fn ready(status: &impl HealthStatus) {
    let mut reminded = Instant::now();
    loop {
        let missing = missing(status, STUCK_MAX);
        if missing.is_empty() {
            return;
        }
        if reminded.elapsed() >= REMINDER_INTERVAL {
            reminded = Instant::now();
            warn!(
                missing = missing.join(", "),
                "the controller is not ready, and is no candidate for the Lease"
            );
        }
        sleep(CHECK_INTERVAL / 4).await;
    }
}

/// Ends with the reason when the leader is stuck.
pub(super) async fn watch(status: &impl HealthStatus) -> String {
    let mut complete = Instant::now();
    loop {
        if let Some(why) = status.stalled() {
            return why;
        }
        let stale = followed::stale(STUCK_MAX);
        if !stale.is_empty() {
            return stale.join(", ");
        }
        let missing = status.waits_for();
        if missing.is_empty() {
            complete = Instant::now();
        } else if complete.elapsed() >= STUCK_MAX {
            return format!("it has waited {} s for: {}", STUCK_MAX.as_secs(), missing.join(", "));
        }
        sleep(CHECK_INTERVAL).await;
    }
}

fn missing(status: &impl HealthStatus, age: Duration) -> Vec<String> {
    status.waits_for().into_iter().chain(followed::stale(age)).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    struct Role(Mutex<Vec<String>>, Mutex<Option<String>>);

    impl HealthStatus for Role {
        fn page(&self) -> String {
            String::new()
        }

        fn waits_for(&self) -> Vec<String> {
            self.0.lock().unwrap().clone()
        }

        fn stalled(&self) -> Option<String> {
            self.1.lock().unwrap().clone()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn stuck_leader_is_noticed_after_its_deadline() {
        let role = Role(Mutex::new(vec!["pods (hangs)".to_owned()]), Mutex::default());
        let began = Instant::now();
        let why = watch(&role).await;
        assert!(why.contains("pods (hangs)") && began.elapsed() >= STUCK_MAX, "{why}");
        assert!(began.elapsed() < STUCK_MAX + 2 * CHECK_INTERVAL, "{:?}", began.elapsed());
        assert!(tokio::time::timeout(STUCK_MAX, ready(&role)).await.is_err(), "it is no candidate");
        role.0.lock().unwrap().clear();
        ready(&role).await;
        assert!(tokio::time::timeout(10 * STUCK_MAX, watch(&role)).await.is_err(), "it works");
        *role.1.lock().unwrap() = Some("no round ended".to_owned());
        assert_eq!(watch(&role).await, "no round ended");
    }
}
