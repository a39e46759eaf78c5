//! A body on its way from the runtime to a client, as it is.
//!
//! Rules: bytes and trailers pass as they come; a runtime that goes away in the middle is UNAVAILABLE in the trailers,
//! as gRPC has it; where messages are edited, one that cannot be understood passes as it is.
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

/// A body as it is.
pub(crate) fn untouched(body: Incoming) -> Body {
    Relayed::of(body).boxed_unsync()
}

/// The runtime's body.
pub(crate) struct Relayed {
    inner: Incoming,
    ended: bool,
}

impl Relayed {
    /// As it comes.
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
                // They say nothing, and HTTP/2 takes only so many of them on a connection.
                Some(Ok(frame)) if frame.data_ref().is_some_and(Bytes::is_empty) => continue,
                Some(Ok(frame)) => Some(Ok(frame)),
                Some(Err(cause)) => {
                    self.ended = true;
                    let why = format!("the runtime went away: {}", with_sources(&cause));
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
    // What cannot be said as a header is not said; the code can.
    let _ = status.add_header(&mut headers);
    headers
}
