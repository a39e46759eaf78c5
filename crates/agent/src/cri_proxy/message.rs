//! One message in, one message out: what the proxy's own calls are made of.
//!
//! Rules: a message has a bound and a time to arrive; beyond a modest size only a few may be on their way at once; a
//! message that is compressed is refused, which gRPC allows.

use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{HeaderMap, Response};
use prost::Message;
use prost::bytes::{Buf, BytesMut};
use tokio::sync::Semaphore;
use tonic::Status;
use tonic::codegen::http::{HeaderValue, header};

use super::backend::{Body, Cause};
use super::edited::{MESSAGE_MAX, PREFIX, framed};

/// What is gathered of a message without asking.
const MODEST: usize = 64 << 10;
/// Larger ones at a time.
const LARGE: usize = 4;
/// How long a message may take to arrive.
const PATIENCE: Duration = Duration::from_secs(20);

/// Gathers messages.
#[derive(Debug)]
pub(crate) struct Gatherer(Semaphore);

impl Gatherer {
    pub(crate) fn new() -> Gatherer {
        Gatherer(Semaphore::new(LARGE))
    }

    /// The one message of a call.
    ///
    /// # Errors
    /// INVALID_ARGUMENT: it is none · RESOURCE_EXHAUSTED: it is too large · UNIMPLEMENTED: it is compressed ·
    /// DEADLINE_EXCEEDED: it does not arrive.
    pub(crate) async fn gather(&self, body: Incoming) -> Result<Bytes, Status> {
        let gathered = tokio::time::timeout(PATIENCE, self.read(body)).await;
        gathered.map_err(|_| {
            Status::deadline_exceeded(format!("the request has not arrived within {} s", PATIENCE.as_secs()))
        })?
    }

    async fn read(&self, mut body: Incoming) -> Result<Bytes, Status> {
        let mut held = BytesMut::new();
        let mut permit = None;
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|cause| Status::cancelled(cause.to_string()))?;
            let Ok(data) = frame.into_data() else { continue };
            if held.len() + data.len() > PREFIX + MESSAGE_MAX {
                return Err(Status::resource_exhausted(format!(
                    "the request is larger than {MESSAGE_MAX} bytes"
                )));
            }
            if held.len() + data.len() > MODEST && permit.is_none() {
                // The semaphore is never closed.
                permit = self.0.acquire().await.ok();
            }
            held.extend_from_slice(&data);
        }
        drop(permit);
        message(held.freeze())
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
