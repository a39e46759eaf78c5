//! Async runtime of the long-running roles, and the signals that end them.

use tokio::signal::unix::{SignalKind, signal};

use crate::failure::Failure;

/// One thread that waits for many things.
pub fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|cause| Failure::new(format!("start: {cause}")))
}

/// Comes with the first signal to end.
pub fn ended() -> Result<impl Future<Output = ()>, Failure> {
    let failed = |cause: std::io::Error| Failure::new(format!("signals: {cause}"));
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}
