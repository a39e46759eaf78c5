//! Makes single gRPC calls to a service on this node's Unix sockets: the kubelet, the container runtime.
//!
//! - Each call opens a new connection, because calls are rare and either side may restart in between.
//! - A response is bounded but not decoded. An empty message takes two bytes on the wire and a hundred in memory, so
//!   the caller decodes only the records that it needs.
//! - The caller must set a timeout.

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

/// Maximum response size in bytes.
const ANSWER_MAX: usize = 16 << 20;

/// Codec for messages that are already encoded.
#[derive(Clone, Copy, Debug)]
struct Encoded;

/// Error from a call.
#[derive(Debug, Error)]
pub enum CallError {
    /// Nothing answers on the socket.
    #[error("{}", with_sources(.0))]
    Connect(tonic::transport::Error),
    /// The service rejected the request, or the response could not be received.
    #[error("{}", .0.message())]
    Refused(Status),
}

/// Calls the method `path`, which has the form `/package.Service/Method`, and returns the encoded response.
///
/// # Errors
/// The service cannot be reached, or it rejects the request.
pub async fn call(socket: &Path, path: &'static str, request: &impl Message) -> Result<Bytes, CallError> {
    let socket = socket.to_owned();
    let connect = tower::service_fn(move |_: Uri| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    // The host name is unused, because the connector already knows the socket.
    let endpoint = Endpoint::from_static("http://localhost");
    let channel: Channel = endpoint.connect_with_connector(connect).await.map_err(CallError::Connect)?;
    let mut client = tonic::client::Grpc::new(channel).max_decoding_message_size(ANSWER_MAX);
    client.ready().await.map_err(CallError::Connect)?;
    let request = tonic::Request::new(request.encode_to_vec());
    let response = client.unary(request, PathAndQuery::from_static(path), Encoded).await;
    response.map(tonic::Response::into_inner).map_err(CallError::Refused)
}

/// Joins an error's message and those of all causes.
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

// === impl Encoded ===

impl Codec for Encoded {
    type Encode = Vec<u8>;
    type Decode = Bytes;
    type Encoder = Encoded;
    type Decoder = Encoded;

    fn encoder(&mut self) -> Encoded {
        Encoded
    }

    fn decoder(&mut self) -> Encoded {
        Encoded
    }
}

impl Encoder for Encoded {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, message: Vec<u8>, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        out.put_slice(&message);
        Ok(())
    }
}

impl Decoder for Encoded {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, message: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(message.copy_to_bytes(message.remaining())))
    }
}
