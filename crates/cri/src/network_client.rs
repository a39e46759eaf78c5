//! CRI Network API client, for `weft network` and `weft agent --sync-networks`.

use std::path::Path;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use prost::Message;
use tokio::net::UnixStream;
use tonic::Status;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic_prost::ProstCodec;

use crate::messages::{StatusInfo, StatusRequest};
use crate::runtime_status::{self, ListReport, STATUS};

use crate::network_api::{
    Empty, LIST, ListReply, Network, NetworkConfig, NetworkMetadata, REMOVE, RemoveRequest, SET, SetReply,
    SetRequest,
};

/// Maximum response size in bytes; container runtimes use the same limit.
const ANSWER_MAX: usize = 16 << 20;
/// Timeout for a response. It is long, because the proxy may have to wait for plugins.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Connection to a runtime socket, or to the proxy in front of it.
#[derive(Clone, Debug)]
pub struct Client(Channel);

/// Whether to remove a network that is still in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InUse {
    /// The request fails.
    Refused,
    /// The network drains: it is removed with the last sandbox.
    Drained,
}

impl Client {
    /// Connects to a socket.
    pub async fn connect(socket: &Path) -> Result<Client, Status> {
        let socket = socket.to_owned();
        let shown = socket.display().to_string();
        let connect = tower::service_fn(move |_: Uri| {
            let socket = socket.clone();
            async move { UnixStream::connect(socket).await.map(TokioIo::new) }
        });
        let channel = Endpoint::from_static("http://localhost").connect_with_connector(connect).await;
        channel.map(Client).map_err(|cause| {
            Status::unavailable(format!("connect to {shown}: {}", crate::unix_service::with_sources(&cause)))
        })
    }

    /// Creates or replaces a network, and returns it as stored.
    pub async fn set(&self, config: NetworkConfig) -> Result<Network, Status> {
        let reply: SetReply = self.call(SET, SetRequest { config: Some(config) }).await?;
        Ok(reply.network.unwrap_or_default())
    }

    /// Removes a network; a missing network is not an error.
    pub async fn remove(&self, metadata: NetworkMetadata, in_use: InUse) -> Result<(), Status> {
        let request = RemoveRequest { metadata: Some(metadata), drain: in_use == InUse::Drained };
        self.call::<_, Empty>(REMOVE, request).await.map(|Empty {}| ())
    }

    /// Lists all networks.
    pub async fn list(&self) -> Result<Vec<Network>, Status> {
        Ok(self.call::<_, ListReply>(LIST, Empty {}).await?.networks)
    }

    /// Checks that the runtime behind a proxy answers, by asking for the version.
    pub async fn reach_runtime(&self) -> Result<(), Status> {
        self.call::<_, Empty>("/runtime.v1.RuntimeService/Version", Empty {}).await.map(|Empty {}| ())
    }

    /// Returns whether the runtime has read the CNI network `name`; `None` if the runtime does not report this.
    pub async fn runtime_lists(&self, name: &str) -> Option<ListReport> {
        let request = StatusRequest { verbose: true };
        let status = self.call::<_, StatusInfo>(STATUS, request).await;
        runtime_status::list_report(&status.ok()?.info, name)
    }

    async fn call<Q: Message + 'static, A: Message + Default + 'static>(
        &self,
        path: &'static str,
        request: Q,
    ) -> Result<A, Status> {
        let mut client = tonic::client::Grpc::new(self.0.clone()).max_decoding_message_size(ANSWER_MAX);
        client.ready().await.map_err(|cause| Status::unavailable(cause.to_string()))?;
        let mut request = tonic::Request::new(request);
        request.set_timeout(TIMEOUT);
        let codec: ProstCodec<Q, A> = ProstCodec::default();
        let answer = client.unary(request, PathAndQuery::from_static(path), codec).await;
        answer.map(tonic::Response::into_inner)
    }
}
