//! A body of which each message is edited on its way to a client; of a stream as of a single answer.
//!
//! Rules: a message that cannot be understood passes as it is; trailers come last, as they came; no message larger than
//! the runtime's own is gathered.
//!
//! Source: gRPC over HTTP/2, «Length-Prefixed-Message».

use std::pin::Pin;
use std::task::{Context, Poll};

use http_body_util::BodyExt;
use hyper::body::{Body as HttpBody, Bytes, Frame, Incoming};
use prost::bytes::{Buf, BytesMut};
use tonic::Status;
use tonic::codegen::http::HeaderMap;

use super::backend::{Body, Cause};
use super::relay::{self, Relayed};

/// Largest message that is edited, in bytes: as large as the runtime's own.
pub(crate) const MESSAGE_MAX: usize = 16 << 20;
/// What stands before a message: whether it is compressed, and its length.
pub(crate) const PREFIX: usize = 5;

/// What becomes of a message; nothing: it stays as it is.
pub(crate) type Edit = Box<dyn Fn(&[u8]) -> Option<Vec<u8>> + Send>;

/// A body of which each message is edited.
pub(crate) fn edited(body: Incoming, edit: Edit) -> Body {
    let inner = Relayed::of(body);
    Edited { inner, held: BytesMut::new(), edit, trailers: None, ended: false }.boxed_unsync()
}

struct Edited {
    inner: Relayed,
    held: BytesMut,
    edit: Edit,
    trailers: Option<HeaderMap>,
    ended: bool,
}

/// What is at the beginning of what was received.
enum Head {
    /// A whole message with its prefix, of so many bytes.
    Message(usize),
    /// Less than one.
    Part,
    /// One that is too large.
    TooLarge,
}

impl Edited {
    fn head(&self) -> Head {
        let Some(prefix) = self.held.get(..PREFIX) else { return Head::Part };
        let length = prefix.get(1..).map_or(0, |mut length| length.get_u32() as usize);
        match length {
            length if length > MESSAGE_MAX => Head::TooLarge,
            length if self.held.len() >= PREFIX + length => Head::Message(PREFIX + length),
            _ => Head::Part,
        }
    }

    /// The next message, edited.
    fn message(&mut self, length: usize) -> Bytes {
        let message = self.held.split_to(length).freeze();
        let compressed = message.first() != Some(&0);
        let edited = (!compressed).then(|| (self.edit)(message.get(PREFIX..).unwrap_or_default())).flatten();
        edited.and_then(|edited| framed(&edited)).unwrap_or(message)
    }
}

impl HttpBody for Edited {
    type Data = Bytes;
    type Error = Cause;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Cause>>> {
        loop {
            match self.head() {
                Head::Message(length) => return Poll::Ready(Some(Ok(Frame::data(self.message(length))))),
                Head::TooLarge => {
                    self.ended = true;
                    self.held.clear();
                    let status = Status::resource_exhausted(format!(
                        "the runtime's message is larger than {MESSAGE_MAX} bytes"
                    ));
                    return Poll::Ready(Some(Ok(Frame::trailers(relay::trailers(&status)))));
                }
                Head::Part => {}
            }
            if let Some(trailers) = self.trailers.take() {
                self.ended = true;
                return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
            }
            if self.ended {
                return Poll::Ready(None);
            }
            match std::task::ready!(Pin::new(&mut self.inner).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.held.extend_from_slice(&data),
                    Err(frame) => self.trailers = frame.into_trailers().ok(),
                },
                Some(Err(cause)) => return Poll::Ready(Some(Err(cause))),
                None => self.ended = true,
            }
        }
    }

    /// True at once for an answer that is an error without a message, which a client of Go insists on.
    fn is_end_stream(&self) -> bool {
        self.held.is_empty() && self.trailers.is_none() && (self.ended || self.inner.is_end_stream())
    }
}

/// A message with its prefix; nothing if it is too long for one.
pub(crate) fn framed(message: &[u8]) -> Option<Bytes> {
    let length = u32::try_from(message.len()).ok()?;
    let mut bytes = Vec::with_capacity(PREFIX + message.len());
    bytes.push(0);
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.extend_from_slice(message);
    Some(bytes.into())
}
