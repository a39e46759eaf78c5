//! Runs background tasks for as long as the process lives, and blocking work on a separate thread.
//!
//! - If a background task panics, the process shuts down in an orderly way and the supervisor restarts it. Otherwise
//!   the work would stop silently while the process still looked healthy.
//! - If the kernel cannot start a thread for blocking work, the caller gets an error and can try again later.
//!
//! Source: tokio's `spawn_blocking` panics if no thread can be started, pthread_create(3) EAGAIN.

use std::io;

use thiserror::Error;
use tokio::sync::oneshot;
use tokio::sync::watch::Sender;
use tokio::task::AbortHandle;
use tracing::error;

use crate::failure::Failure;

/// Supervisor for background tasks. Holds the name of the first task that panicked.
#[derive(Clone, Debug, Default)]
pub struct BackgroundTasks(Sender<Option<&'static str>>);

impl BackgroundTasks {
    /// Starts a background task. `task` is the name that the log and the failure show if it panics.
    pub fn begin(&self, task: &'static str, work: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        let (work, panicked) = (tokio::spawn(work), self.0.clone());
        let handle = work.abort_handle();
        tokio::spawn(async move {
            if work.await.is_err_and(|ended| ended.is_panic()) {
                error!(task, "background task panicked; shutting down");
                panicked.send_replace(Some(task));
            }
        });
        handle
    }

    /// Waits until a task panics or `ended` completes, whichever comes first.
    pub async fn until(self, ended: impl Future<Output = ()>) {
        let mut panicked = self.0.subscribe();
        tokio::select! {
            () = ended => {}
            // `wait_for` cannot fail here, because `self` keeps the sender.
            _ = panicked.wait_for(Option::is_some) => {}
        }
    }

    /// Returns an error if a task panicked. The caller uses it as exit status once [`until`](Self::until) returns.
    ///
    /// # Errors
    /// A task panicked; the error names it.
    pub fn outcome(&self) -> Result<(), Failure> {
        match *self.0.borrow() {
            None => Ok(()),
            Some(task) => {
                Err(Failure::new(format!("background task \"{task}\" panicked; the log has its message")))
            }
        }
    }
}

/// Error from blocking work.
#[derive(Debug, Error)]
pub enum WorkError {
    /// The kernel provided no thread, for example because the pids limit is reached.
    #[error("start a thread: {0}")]
    NotStarted(io::Error),
    /// The work panicked.
    #[error("a thread panicked")]
    Panicked,
}

/// Runs blocking work on a new thread and returns the result, without blocking the async runtime.
///
/// # Errors
/// No thread could be started, or the work panicked.
pub async fn run_on_thread<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, WorkError> {
    let (done, result) = oneshot::channel();
    let thread =
        std::thread::Builder::new().name("blocking".to_owned()).spawn(move || drop(done.send(work())));
    thread.map_err(WorkError::NotStarted)?;
    result.await.map_err(|_| WorkError::Panicked)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn background_task_that_panics_ends_the_process() {
        let never = || std::future::pending::<()>();
        let background = BackgroundTasks::default();
        background.begin("done", async {});
        background.begin("aborted", never()).abort();
        let early = tokio::time::timeout(Duration::from_millis(50), background.clone().until(never())).await;
        assert!(early.is_err() && background.outcome().is_ok());
        background.begin("address transfers", async { panic!("for a test") });
        background.clone().until(never()).await;
        let error = background.outcome().unwrap_err().to_string();
        assert_eq!(error, "background task \"address transfers\" panicked; the log has its message");
    }

    #[tokio::test]
    async fn background_thread_returns_its_result_or_its_panic() {
        assert_eq!(run_on_thread(|| 7).await.unwrap(), 7);
        let panics: fn() -> u8 = || panic!("for a test");
        assert!(matches!(run_on_thread(panics).await, Err(WorkError::Panicked)));
    }
}
