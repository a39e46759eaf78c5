//! Asynchronous reading and writing for messages in [`rpc::frame`].
//!
//! Memory is allocated for bytes that have arrived, never for an announced length.

use std::io::ErrorKind;
use std::time::Duration;

use rpc::frame::{self, FrameError, Message};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

/// Reads one message with at most `limit` bytes.
///
/// # Errors
/// Those that [`frame::receive`] returns.
pub async fn read<M: Message>(from: &mut (impl AsyncRead + Unpin), limit: usize) -> Result<M, FrameError> {
    let failed = |cause| FrameError::io("receive", cause);
    let mut prefix = [0; 4];
    from.read_exact(&mut prefix).await.map_err(failed)?;
    let length = frame::length(prefix, limit)?;
    let mut envelope = Vec::new();
    let read = from.take(length as u64).read_to_end(&mut envelope).await.map_err(failed)?;
    if read < length {
        return Err(FrameError::Truncated { read, length });
    }
    frame::decode(&envelope)
}

/// Writes one message.
///
/// # Errors
/// Those that [`frame::send`] returns.
pub async fn write<M: Message>(to: &mut (impl AsyncWrite + Unpin), message: &M) -> Result<(), FrameError> {
    let bytes = frame::encode(message)?;
    to.write_all(&bytes).await.map_err(|cause| FrameError::io("send", cause))
}

/// Reads one message with at most `limit` bytes within `longest`.
///
/// # Errors
/// Those that [`read`] returns; [`ErrorKind::TimedOut`].
pub async fn read_within<M: Message>(
    from: &mut (impl AsyncRead + Unpin),
    limit: usize,
    longest: Duration,
) -> Result<M, FrameError> {
    timeout(longest, read(from, limit)).await.map_err(|_| FrameError::io("receive", ErrorKind::TimedOut))?
}

/// Writes one message within `longest`.
///
/// # Errors
/// Those that [`write()`] returns; [`ErrorKind::TimedOut`].
pub async fn write_within<M: Message>(
    to: &mut (impl AsyncWrite + Unpin),
    message: &M,
    longest: Duration,
) -> Result<(), FrameError> {
    timeout(longest, write(to, message)).await.map_err(|_| FrameError::io("send", ErrorKind::TimedOut))?
}
