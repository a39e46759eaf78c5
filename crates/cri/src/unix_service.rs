//! One question to a service of this node that listens on a unix socket and speaks gRPC: the kubelet, the runtime.
//!
//! Rules: a connection for each question, because they are rare and either side may be restarted; an answer is bounded, and
//! left folded: an empty message has two bytes on the wire and a hundred in memory, so whoever asks unfolds no more of it
//! than it looks at; whoever asks says how long it waits.

use std::path::Path;

use hyper_util::rt::TokioIo;
use prost::Message;
use prost::bytes::{Buf, BufMut, Bytes};
use thiserror::Error;
use tokio::net::UnixStream;
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint, Uri};

/// Largest answer, in bytes.
const ANSWER_MAX: usize = 16 << 20;

/// Messages as the bytes that they are.
#[derive(Clone, Copy, Debug)]
struct Folded;

/// Failure of a question to a service.
#[derive(Debug, Error)]
pub enum CallError {
    /// The service does not answer on its socket.
    #[error("{}", with_sources(.0))]
    Connect(tonic::transport::Error),
    /// The service refused the question, or its answer was not read.
    #[error("{}", .0.message())]
    Refused(Status),
}

/// Asks `question` of the method `path`, `/package.Service/Method`; the message that comes back, as it is.
///
/// # Errors
/// There is no connection to the service, or it refuses the question.
pub async fn call(socket: &Path, path: &'static str, question: &impl Message) -> Result<Bytes, CallError> {
    let socket = socket.to_owned();
    let connect = tower::service_fn(move |_: Uri| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    // The name of the host is of no account: the connector knows the socket.
    let endpoint = Endpoint::from_static("http://localhost");
    let channel: Channel = endpoint.connect_with_connector(connect).await.map_err(CallError::Connect)?;
    let mut client = tonic::client::Grpc::new(channel).max_decoding_message_size(ANSWER_MAX);
    client.ready().await.map_err(CallError::Connect)?;
    let question = tonic::Request::new(question.encode_to_vec());
    let answer = client.unary(question, PathAndQuery::from_static(path), Folded).await;
    answer.map(tonic::Response::into_inner).map_err(CallError::Refused)
}

/// An error and what it came of.
pub fn with_sources(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

// === impl Folded ===

impl Codec for Folded {
    type Encode = Vec<u8>;
    type Decode = Bytes;
    type Encoder = Folded;
    type Decoder = Folded;

    fn encoder(&mut self) -> Folded {
        Folded
    }

    fn decoder(&mut self) -> Folded {
        Folded
    }
}

impl Encoder for Folded {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, message: Vec<u8>, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        out.put_slice(&message);
        Ok(())
    }
}

impl Decoder for Folded {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, message: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(message.copy_to_bytes(message.remaining())))
    }
}
