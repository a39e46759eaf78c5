//! Sets up the async runtime for long-running roles, and the signals that end them.

use tokio::signal::unix::{SignalKind, signal};

use crate::failure::Failure;

/// Returns a single-threaded async runtime. One thread is enough, because the roles mostly wait for the network.
pub fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|cause| Failure::new(format!("start the async runtime: {cause}")))
}

/// Returns a future that completes on the first SIGTERM or SIGINT.
pub fn ended() -> Result<impl Future<Output = ()>, Failure> {
    let failed = |cause: std::io::Error| Failure::new(format!("watch for signals: {cause}"));
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}
