//! Receives and sends unary gRPC messages, for the calls that the proxy itself handles.
//!
//! - A message is bounded in size and in time.
//! - Only a few large messages are received at once, and one per client, so that a client with many incomplete messages
//!   cannot block the others.
//! - Compressed messages are rejected, which gRPC allows.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Body as HttpBody, Bytes};
use hyper::{HeaderMap, Response};
use prost::Message;
use prost::bytes::{Buf, BytesMut};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};
use tonic::Status;
use tonic::codegen::http::{HeaderValue, header};

use super::backend::{Body, Cause};
use crate::body_rewriting::{MESSAGE_MAX, PREFIX, framed};

/// Maximum size of a message that is received without a slot, in bytes.
const SMALL_MAX: usize = 64 << 10;
/// Number of larger messages received at once from all clients; each client may send one.
const LARGE_AT_ONCE: usize = 4;
/// Time within which a message must arrive, not counting the wait for a slot.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum pause within a large message, because others may be waiting for the slot.
const STALL_MAX: Duration = Duration::from_secs(5);

/// Receives one client's messages.
#[derive(Debug)]
pub(crate) struct MessageReceiver {
    all: Arc<Semaphore>,
    own: Semaphore,
    stall_max: Duration,
}

/// Returns the slots for large messages, which all clients share.
pub(crate) fn room() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(LARGE_AT_ONCE))
}

impl MessageReceiver {
    /// Returns the receiver for a new client.
    pub(crate) fn within(room: &Arc<Semaphore>) -> MessageReceiver {
        MessageReceiver { all: Arc::clone(room), own: Semaphore::new(1), stall_max: STALL_MAX }
    }

    /// Receives a call's message.
    ///
    /// # Errors
    /// INVALID_ARGUMENT: malformed. RESOURCE_EXHAUSTED: too large. UNIMPLEMENTED: compressed. DEADLINE_EXCEEDED: it
    /// does not arrive in time.
    pub(crate) async fn receive<B>(&self, mut body: B) -> Result<Bytes, Status>
    where
        B: HttpBody<Data = Bytes> + Unpin,
        B::Error: std::fmt::Display,
    {
        let mut held = BytesMut::new();
        let mut slot = None;
        let mut until = Instant::now() + TIMEOUT;
        loop {
            let stalled = slot.as_ref().map(|_| Instant::now() + self.stall_max);
            let frame = timeout_at(stalled.map_or(until, |stalled| stalled.min(until)), body.frame()).await;
            let frame = frame.map_err(|_| {
                Status::deadline_exceeded(format!("the request stalled after {} bytes", held.len()))
            })?;
            let Some(frame) = frame else { return message(held.freeze()) };
            let frame = frame.map_err(|cause| Status::cancelled(cause.to_string()))?;
            let Ok(data) = frame.into_data() else { continue };
            if held.len() + data.len() > PREFIX + MESSAGE_MAX {
                return Err(Status::resource_exhausted(format!(
                    "the request is larger than {MESSAGE_MAX} bytes"
                )));
            }
            if held.len() + data.len() > SMALL_MAX && slot.is_none() {
                let waited = Instant::now();
                // The semaphores are never closed.
                slot = Some((self.own.acquire().await.ok(), self.all.acquire().await.ok()));
                until += waited.elapsed();
            }
            held.extend_from_slice(&data);
        }
    }
}

fn message(mut held: Bytes) -> Result<Bytes, Status> {
    if held.len() < PREFIX {
        return Err(Status::invalid_argument("the request contains no message"));
    }
    if held.get_u8() != 0 {
        return Err(Status::unimplemented("the request is compressed, which this call does not support"));
    }
    let length = held.get_u32() as usize;
    match held.len() {
        held_length if held_length == length => Ok(held),
        held_length => Err(Status::invalid_argument(format!(
            "the request announces a message of {length} bytes but contains {held_length}"
        ))),
    }
}

/// Decodes a message.
///
/// # Errors
/// INVALID_ARGUMENT: malformed.
pub(crate) fn decode<T: Message + Default>(bytes: &[u8]) -> Result<T, Status> {
    T::decode(bytes).map_err(|cause| Status::invalid_argument(format!("decode request: {cause}")))
}

/// Returns the response for a successful call.
pub(crate) fn reply(message: &impl Message) -> Response<Body> {
    let length = message.encoded_len();
    let framed = (length <= MESSAGE_MAX).then(|| framed(&message.encode_to_vec())).flatten();
    let Some(bytes) = framed else {
        let why = format!("the response has {length} bytes, clients accept {MESSAGE_MAX}: remove networks");
        return Status::resource_exhausted(why).into_http();
    };
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    let body = Full::new(bytes).with_trailers(std::future::ready(Some(Ok(trailers))));
    let mut response = Response::new(body.map_err(Cause::from).boxed_unsync());
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http_body_util::StreamBody;
    use hyper::body::Frame;
    use tokio::sync::mpsc;

    use super::*;

    const LENGTH: usize = 70 << 10;

    /// Returns a message of which `sent` bytes arrive, and nothing more until the sender is dropped.
    fn part(
        sent: usize,
    ) -> (mpsc::UnboundedSender<Bytes>, impl HttpBody<Data = Bytes, Error = Infallible> + Unpin) {
        let (sender, receiver) = mpsc::unbounded_channel();
        let whole = framed(&vec![7; LENGTH]).unwrap();
        sender.send(whole.slice(..sent.min(whole.len()))).unwrap();
        let next = |mut receiver: mpsc::UnboundedReceiver<Bytes>| async {
            let bytes = receiver.recv().await?;
            Some((Ok(Frame::data(bytes)), receiver))
        };
        (sender, StreamBody::new(Box::pin(futures_util::stream::unfold(receiver, next))))
    }

    #[tokio::test]
    async fn incomplete_large_messages_of_one_client_delay_no_other() {
        let room = room();
        let stalling = Arc::new(MessageReceiver {
            stall_max: Duration::from_millis(300),
            ..MessageReceiver::within(&room)
        });
        let halves: Vec<_> = (0..8)
            .map(|_| {
                let (sender, body) = part(LENGTH - 1);
                let receiver = Arc::clone(&stalling);
                (sender, tokio::spawn(async move { receiver.receive(body).await }))
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(50)).await;
        let (sender, whole) = part(usize::MAX);
        drop(sender);
        let started = Instant::now();
        let message = MessageReceiver::within(&room).receive(whole).await.unwrap();
        assert_eq!(message.len(), LENGTH);
        assert!(started.elapsed() < Duration::from_millis(200), "{:?}", started.elapsed());
        // Each is rejected, one after the other, and releases its slot.
        for (sender, half) in halves {
            let refused = half.await.unwrap().unwrap_err();
            assert_eq!(refused.code(), tonic::Code::DeadlineExceeded);
            drop(sender);
        }
        assert_eq!(room.available_permits(), LARGE_AT_ONCE);
    }
}
