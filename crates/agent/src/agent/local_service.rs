//! One question to a service of this node that listens on a unix socket and speaks gRPC: the kubelet, the runtime.
//!
//! Rules: a connection for each question, because they are rare and either side may be restarted; an answer is bounded;
//! whoever asks says how long it waits.

use std::path::Path;

use hyper_util::rt::TokioIo;
use prost::Message;
use tokio::net::UnixStream;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic_prost::ProstCodec;

/// Largest answer, in bytes.
const ANSWER_MAX: usize = 16 << 20;

/// Asks `question` of the method `path`, `/package.Service/Method`.
///
/// # Errors
/// Why there is no answer, for people.
pub(crate) async fn call<Q, A>(socket: &Path, path: &'static str, question: Q) -> Result<A, String>
where
    Q: Message + 'static,
    A: Message + Default + 'static,
{
    let socket = socket.to_owned();
    let connect = tower::service_fn(move |_: Uri| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    // The name of the host is of no account: the connector knows the socket.
    let endpoint = Endpoint::from_static("http://localhost");
    let channel: Channel = endpoint
        .connect_with_connector(connect)
        .await
        .map_err(|cause| crate::cri_proxy::with_sources(&cause))?;
    let mut client = tonic::client::Grpc::new(channel).max_decoding_message_size(ANSWER_MAX);
    client.ready().await.map_err(|cause| crate::cri_proxy::with_sources(&cause))?;
    let codec: ProstCodec<Q, A> = ProstCodec::default();
    let answer = client.unary(tonic::Request::new(question), PathAndQuery::from_static(path), codec).await;
    answer.map(tonic::Response::into_inner).map_err(|status| status.message().to_owned())
}
