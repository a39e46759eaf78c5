//! Client liveness probe: asks a client that waits for an allocation to confirm that it is still connected.
//!
//! If a client that holds the lock on an address store is killed, the lock may be released before the client's socket
//! closes. The agent then may observe objects that the next lock holder created. So the agent probes the client after
//! each observation. A client that confirms has held the lock since the request, so no other holder made what was
//! observed.

use std::time::Duration;

use rpc::message::Response;
use tokio::net::unix::WriteHalf;
use tokio::sync::{Mutex, Semaphore};
use tokio::time::timeout;

use super::frame_io;

/// Timeout for the confirmation.
const CONFIRM_MAX: Duration = Duration::from_secs(5);

/// Probe for one client.
pub struct ClientProbe<'a> {
    writing: Mutex<WriteHalf<'a>>,
    /// One permit for each confirmation that arrived.
    confirmations: Semaphore,
}

/// The client did not confirm in time.
#[derive(Debug, thiserror::Error)]
#[error("agent: the client did not confirm that it is still connected")]
pub struct Unconfirmed;

impl<'a> ClientProbe<'a> {
    /// Returns a probe for the client at the other end of a connection.
    pub fn new(writing: WriteHalf<'a>) -> ClientProbe<'a> {
        ClientProbe { writing: Mutex::new(writing), confirmations: Semaphore::new(0) }
    }

    /// Records a confirmation.
    pub fn confirmed(&self) {
        self.confirmations.add_permits(1);
    }

    /// Waits until the client confirms that it is connected, and so still holds the address store lock.
    ///
    /// # Errors
    /// The client does not confirm within [`CONFIRM_MAX`].
    pub async fn confirm(&self) -> Result<(), Unconfirmed> {
        let confirmed = timeout(CONFIRM_MAX, async {
            frame_io::write(&mut *self.writing.lock().await, &Response::ProbeClient).await.ok()?;
            // The semaphore is never closed.
            self.confirmations.acquire().await.ok().map(|permit| permit.forget())
        });
        confirmed.await.ok().flatten().ok_or(Unconfirmed)
    }
}
