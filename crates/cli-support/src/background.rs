//! Work beside that of whoever answers: what lasts as long as the process does, and what would keep the others waiting.
//!
//! Rules: a part that lasts and panics ends the process, in order: nobody would miss it otherwise, and what starts the
//! process starts it again; a thread that the kernel does not give is an error of the one who wanted it.
//!
//! Source: tokio's `spawn_blocking` panics where no thread can be started, pthread_create(3) EAGAIN.

use std::io;

use thiserror::Error;
use tokio::sync::oneshot;
use tokio::sync::watch::Sender;
use tokio::task::AbortHandle;
use tracing::error;

use crate::failure::Failure;

/// Who is told of a part that has ended by a panic.
#[derive(Clone, Debug, Default)]
pub struct BackgroundTasks(Sender<Option<&'static str>>);

impl BackgroundTasks {
    /// Begins a part.
    pub fn begin(&self, what: &'static str, work: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        let (work, broken) = (tokio::spawn(work), self.0.clone());
        let handle = work.abort_handle();
        tokio::spawn(async move {
            if work.await.is_err_and(|ended| ended.is_panic()) {
                error!(what, "it panicked, and nobody would do it any more: this process ends");
                broken.send_replace(Some(what));
            }
        });
        handle
    }

    /// Comes when one has panicked, or with `ended`.
    pub async fn until(self, ended: impl Future<Output = ()>) {
        let mut broken = self.0.subscribe();
        tokio::select! {
            () = ended => {}
            // The sender lives as long as we do.
            _ = broken.wait_for(Option::is_some) => {}
        }
    }

    /// What it came to in the end.
    ///
    /// # Errors
    /// The part that panicked.
    pub fn outcome(&self) -> Result<(), Failure> {
        match *self.0.borrow() {
            None => Ok(()),
            Some(what) => Err(Failure::new(format!("{what}: it panicked, see above"))),
        }
    }
}

/// Failure of work on a thread of its own.
#[derive(Debug, Error)]
pub enum WorkError {
    /// The kernel gave no thread for it.
    #[error("start a thread: {0}")]
    NotStarted(io::Error),
    /// The work panicked.
    #[error("a thread panicked")]
    Panicked,
}

/// Does on a thread of its own what would keep the thread that answers.
///
/// # Errors
/// There is no thread for it; or it panicked.
pub async fn run_on_thread<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, WorkError> {
    let (done, told) = oneshot::channel();
    let thread = std::thread::Builder::new().name("aside".to_owned()).spawn(move || drop(done.send(work())));
    thread.map_err(WorkError::NotStarted)?;
    told.await.map_err(|_| WorkError::Panicked)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_part_that_panics_ends_all_and_one_that_is_done_does_not() {
        let never = || std::future::pending::<()>();
        let background = BackgroundTasks::default();
        background.begin("done", async {});
        background.begin("aborted", never()).abort();
        let early = tokio::time::timeout(Duration::from_millis(50), background.clone().until(never())).await;
        assert!(early.is_err() && background.outcome().is_ok());
        background.begin("giving addresses", async { panic!("for a test") });
        background.clone().until(never()).await;
        assert!(background.outcome().unwrap_err().to_string().starts_with("giving addresses: it panicked"));
    }

    #[tokio::test]
    async fn what_is_done_aside_is_told_and_so_is_that_it_was_not() {
        assert_eq!(run_on_thread(|| 7).await.unwrap(), 7);
        let panics: fn() -> u8 = || panic!("for a test");
        assert!(matches!(run_on_thread(panics).await, Err(WorkError::Panicked)));
    }
}
