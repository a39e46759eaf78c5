//! Forwards a response body unchanged from the runtime to a client.
//!
//! Data and trailers pass as they arrive. If the connection to the runtime is lost, the client gets UNAVAILABLE in the
//! trailers, as gRPC requires.
//!
//! Source: gRPC over HTTP/2, «Length-Prefixed-Message».

use std::pin::Pin;
use std::task::{Context, Poll};

use http_body_util::BodyExt;
use hyper::body::{Body as HttpBody, Bytes, Frame, Incoming, SizeHint};
use tonic::Status;
use tonic::codegen::http::HeaderMap;

use super::backend::{Body, Cause};
use cri::unix_service::with_sources;

/// Wraps a response body for the client, without changing it.
pub(crate) fn unchanged(body: Incoming) -> Body {
    Relayed::of(body).boxed_unsync()
}

/// Response body from the runtime.
pub(crate) struct Relayed {
    inner: Incoming,
    ended: bool,
}

impl Relayed {
    /// Wraps a body.
    pub(crate) fn of(inner: Incoming) -> Relayed {
        Relayed { inner, ended: false }
    }
}

impl HttpBody for Relayed {
    type Data = Bytes;
    type Error = Cause;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Cause>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        loop {
            let polled = std::task::ready!(Pin::new(&mut self.inner).poll_frame(context));
            return Poll::Ready(match polled {
                // Empty frames mean nothing, and HTTP/2 limits how many a connection may have.
                Some(Ok(frame)) if frame.data_ref().is_some_and(Bytes::is_empty) => continue,
                Some(Ok(frame)) => Some(Ok(frame)),
                Some(Err(cause)) => {
                    self.ended = true;
                    let why = format!("connection to the runtime lost: {}", with_sources(&cause));
                    Some(Ok(Frame::trailers(trailers(&Status::unavailable(why)))))
                }
                None => None,
            });
        }
    }

    fn is_end_stream(&self) -> bool {
        self.ended || self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

pub(crate) fn trailers(status: &Status) -> HeaderMap {
    let mut headers = HeaderMap::new();
    // A message that is not a valid header value is left out; the code is always valid.
    let _ = status.add_header(&mut headers);
    headers
}
