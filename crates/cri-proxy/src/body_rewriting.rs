//! Edits the messages in a response body on the way to the client, for streams and for single responses.
//!
//! Messages that cannot be decoded pass unchanged. Trailers come last, unchanged. A message that exceeds the runtime's
//! own limit is not buffered.
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

/// Maximum size of a message that is edited, in bytes; container runtimes have the same limit.
pub(crate) const MESSAGE_MAX: usize = 16 << 20;
/// Length of a message prefix: a compression flag and the length.
pub(crate) const PREFIX: usize = 5;

/// Edits a message; `None` leaves it unchanged.
pub(crate) type Edit = Box<dyn Fn(&[u8]) -> Option<Vec<u8>> + Send>;

/// Returns a body in which each message is edited.
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

/// First item in the buffer.
enum Head {
    /// A complete message with this many bytes, including the prefix.
    Message(usize),
    /// An incomplete message.
    Part,
    /// A message above the limit.
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

    /// Takes the next message from the buffer and edits it.
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
                        "the runtime sent a message larger than {MESSAGE_MAX} bytes"
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

    /// Must be true at once for an error without a message, because Go clients require the flag on the headers.
    fn is_end_stream(&self) -> bool {
        self.held.is_empty() && self.trailers.is_none() && (self.ended || self.inner.is_end_stream())
    }
}

/// Adds the gRPC prefix to a message; `None` if the message is too long.
pub(crate) fn framed(message: &[u8]) -> Option<Bytes> {
    let length = u32::try_from(message.len()).ok()?;
    let mut bytes = Vec::with_capacity(PREFIX + message.len());
    bytes.push(0);
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.extend_from_slice(message);
    Some(bytes.into())
}
