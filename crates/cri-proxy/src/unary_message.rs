//! One message in, one message out: what the proxy's own calls are made of.
//!
//! Rules: a message has a bound and a time to arrive; beyond a modest size only a few may be on their way at once, one of a
//! client, so that none keeps others out by sending half of many; a message that is compressed is refused, which gRPC allows.

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

/// What is gathered of a message without asking.
const MODEST: usize = 64 << 10;
/// Larger ones at a time, of all clients; of one client it is one.
const LARGE: usize = 4;
/// How long a message may take to arrive; the time that it waits for its turn does not count.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long nothing may come of a larger one, which others may be waiting for.
const STALL_MAX: Duration = Duration::from_secs(5);

/// Gathers the messages of one client.
#[derive(Debug)]
pub(crate) struct Gatherer {
    all: Arc<Semaphore>,
    own: Semaphore,
    stall_max: Duration,
}

/// The room for larger messages, which all clients share.
pub(crate) fn room() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(LARGE))
}

impl Gatherer {
    /// Of one client more.
    pub(crate) fn within(room: &Arc<Semaphore>) -> Gatherer {
        Gatherer { all: Arc::clone(room), own: Semaphore::new(1), stall_max: STALL_MAX }
    }

    /// The one message of a call.
    ///
    /// # Errors
    /// INVALID_ARGUMENT: it is none · RESOURCE_EXHAUSTED: it is too large · UNIMPLEMENTED: it is compressed ·
    /// DEADLINE_EXCEEDED: it does not arrive.
    pub(crate) async fn gather<B>(&self, mut body: B) -> Result<Bytes, Status>
    where
        B: HttpBody<Data = Bytes> + Unpin,
        B::Error: std::fmt::Display,
    {
        let mut held = BytesMut::new();
        let mut turn = None;
        let mut until = Instant::now() + PATIENCE;
        loop {
            let stalled = turn.as_ref().map(|_| Instant::now() + self.stall_max);
            let frame = timeout_at(stalled.map_or(until, |stalled| stalled.min(until)), body.frame()).await;
            let frame = frame.map_err(|_| {
                Status::deadline_exceeded(format!("the request stops after {} bytes", held.len()))
            })?;
            let Some(frame) = frame else { return message(held.freeze()) };
            let frame = frame.map_err(|cause| Status::cancelled(cause.to_string()))?;
            let Ok(data) = frame.into_data() else { continue };
            if held.len() + data.len() > PREFIX + MESSAGE_MAX {
                return Err(Status::resource_exhausted(format!(
                    "the request is larger than {MESSAGE_MAX} bytes"
                )));
            }
            if held.len() + data.len() > MODEST && turn.is_none() {
                let waited = Instant::now();
                // Neither is ever closed.
                turn = Some((self.own.acquire().await.ok(), self.all.acquire().await.ok()));
                until += waited.elapsed();
            }
            held.extend_from_slice(&data);
        }
    }
}

fn message(mut held: Bytes) -> Result<Bytes, Status> {
    if held.len() < PREFIX {
        return Err(Status::invalid_argument("the request holds no message"));
    }
    if held.get_u8() != 0 {
        return Err(Status::unimplemented("the request is compressed, which this call does not take"));
    }
    let length = held.get_u32() as usize;
    match held.len() {
        held_length if held_length == length => Ok(held),
        held_length => Err(Status::invalid_argument(format!(
            "the request has a message of {length} bytes and holds {held_length}"
        ))),
    }
}

/// Reads a message.
pub(crate) fn decode<T: Message + Default>(bytes: &[u8]) -> Result<T, Status> {
    T::decode(bytes)
        .map_err(|cause| Status::invalid_argument(format!("the request is not understood: {cause}")))
}

/// The answer of a call that went well.
pub(crate) fn reply(message: &impl Message) -> Response<Body> {
    let length = message.encoded_len();
    let framed = (length <= MESSAGE_MAX).then(|| framed(&message.encode_to_vec())).flatten();
    let Some(bytes) = framed else {
        let why = format!("the answer has {length} bytes, and clients take {MESSAGE_MAX}: remove networks");
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

    /// A message of which `sent` bytes come, and then nothing until the sender goes.
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
    async fn who_sends_half_of_many_large_messages_keeps_nobody_else_waiting() {
        let room = room();
        let stalling =
            Arc::new(Gatherer { stall_max: Duration::from_millis(300), ..Gatherer::within(&room) });
        let halves: Vec<_> = (0..8)
            .map(|_| {
                let (sender, body) = part(LENGTH - 1);
                let gatherer = Arc::clone(&stalling);
                (sender, tokio::spawn(async move { gatherer.gather(body).await }))
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(50)).await;
        let (sender, whole) = part(usize::MAX);
        drop(sender);
        let started = Instant::now();
        let message = Gatherer::within(&room).gather(whole).await.unwrap();
        assert_eq!(message.len(), LENGTH);
        assert!(started.elapsed() < Duration::from_millis(200), "{:?}", started.elapsed());
        // Each is told, one after the other, and gives its turn back.
        for (sender, half) in halves {
            let refused = half.await.unwrap().unwrap_err();
            assert_eq!(refused.code(), tonic::Code::DeadlineExceeded);
            drop(sender);
        }
        assert_eq!(room.available_permits(), LARGE);
    }
}
