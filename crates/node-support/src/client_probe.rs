//! Whoever asks for addresses, at the other end of the socket.
//!
//! Whoever has a ledger locked may be killed, and the lock be free a moment before his socket is closed. What is seen from then
//! on may be the next one's. So he is asked whether he is still there after it was seen: who says so has the ledger locked, and
//! nobody else had it before.

use std::time::Duration;

use rpc::exchange;
use rpc::exchange::addresses::{AllocateResponse, STILL};
use tokio::io::AsyncWriteExt;
use tokio::net::unix::WriteHalf;
use tokio::sync::{Mutex, Semaphore};
use tokio::time::timeout;

/// How long he may take to say so.
const SAY_MAX: Duration = Duration::from_secs(5);

/// Who asks.
pub struct Asker<'a> {
    writing: Mutex<WriteHalf<'a>>,
    /// How often he has said so, less what was heard of it.
    said: Semaphore,
}

impl<'a> Asker<'a> {
    /// At the other end of this.
    pub fn new(writing: WriteHalf<'a>) -> Asker<'a> {
        Asker { writing: Mutex::new(writing), said: Semaphore::new(0) }
    }

    /// He has said something.
    pub fn heard(&self, said: u8) {
        if said == STILL {
            self.said.add_permits(1);
        }
    }

    /// Makes sure that he is there, and has the ledger locked.
    ///
    /// # Errors
    /// He has not said so in time.
    pub async fn is_still_there(&self) -> Result<(), String> {
        let mut bytes = Vec::new();
        exchange::send(&mut bytes, &AllocateResponse { probe: true, ..AllocateResponse::default() })
            .map_err(|error| error.to_string())?;
        let said = timeout(SAY_MAX, async {
            self.writing.lock().await.write_all(&bytes).await.ok()?;
            // It is never closed.
            self.said.acquire().await.ok().map(|said| said.forget())
        });
        said.await
            .ok()
            .flatten()
            .ok_or_else(|| "agent: the client did not confirm that it is still connected".to_owned())
    }
}
