//! Clients of the Kubernetes API: from a kubeconfig, or with the service account of this pod.
//!
//! A client gives up a server that does not begin to answer in time. Tokens are read again by the client when they rotate.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::Response;
use kube::client::ClientBuilder;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use tower::BoxError;
use tower::timeout::TimeoutLayer;
use tower::util::{MapErrLayer, MapResponseLayer};

use super::credentials;
use crate::api_error;
use cli_support::failure::Failure;

/// How long a connection may take.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// How long it may be until an answer begins, that of a watch too. A server lets a list wait for a minute where it is not ready
/// for it itself, and one that hangs, or is gone behind its address, says nothing for five: who asks again comes to another one.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// Largest answer to who asks for single objects, in bytes: a server stores none of a tenth of that.
const OBJECT_MAX: usize = 16 << 20;

/// A client: by a kubeconfig, or as a pod of the cluster.
pub async fn client(kubeconfig: Option<&Path>) -> Result<Client, Failure> {
    credentials::within(kubeconfig, endless(kubeconfig.map(Path::to_owned))).await
}

/// The same for who asks for single objects and ends: what has no end is no object, and must not take the node's memory.
pub async fn client_of_objects(kubeconfig: Option<&Path>) -> Result<Client, Failure> {
    let path = kubeconfig.map(Path::to_owned);
    let having = async move { client_of(config(path.as_deref()).await?, ANSWER_MAX, OBJECT_MAX) };
    credentials::within(kubeconfig, having).await
}

/// A client that takes answers of any length: a list of a large cluster is large, and a watch has no end.
async fn endless(kubeconfig: Option<PathBuf>) -> Result<Client, Failure> {
    client_of(config(kubeconfig.as_deref()).await?, ANSWER_MAX, usize::MAX)
}

async fn config(kubeconfig: Option<&Path>) -> Result<Config, Failure> {
    let mut config = match kubeconfig.filter(|path| !path.as_os_str().is_empty()) {
        Some(path) => {
            let failed = |cause: &dyn std::fmt::Display| {
                Failure::new(format!("kubeconfig {}: {cause}", path.display()))
            };
            let read = read_kubeconfig(path).map_err(|cause| failed(&cause))?;
            let options = KubeConfigOptions::default();
            Config::from_custom_kubeconfig(read, &options).await.map_err(|cause| failed(&cause))?
        }
        None => Config::incluster().map_err(|cause| {
            Failure::new(format!("this is no pod of a cluster: {cause}")).next("name a --kubeconfig")
        })?,
    };
    config.connect_timeout = Some(CONNECT_MAX);
    Ok(config)
}

/// A client that gives a server up which does not begin to answer for `patience`, and an answer of more than `most` bytes.
fn client_of(config: Config, patience: Duration, most: usize) -> Result<Client, Failure> {
    let server = config.cluster_url.to_string();
    let of_body = server.clone();
    let too_large = move |cause: BoxError| match cause.is::<LengthLimitError>() {
        true => api_error::by(&of_body, format!("its answer has more than {most} bytes").into()),
        false => cause,
    };
    let named = MapErrLayer::new(move |cause| api_error::by(&server, cause));
    let bounded = MapResponseLayer::new(move |answer: Response<_>| {
        answer.map(|body| Limited::new(body, most).map_err(too_large.clone()))
    });
    let builder = ClientBuilder::try_from(config);
    let builder = builder.map_err(|cause| Failure::new(format!("Kubernetes client: {cause}")))?;
    let builder = builder.with_layer(&TimeoutLayer::new(patience)).with_layer(&named);
    Ok(builder.with_layer(&bounded).build())
}

/// A path of credentials; an empty one, as in a variable that was emptied, is none.
pub fn path(text: &str) -> Result<PathBuf, Infallible> {
    Ok(text.into())
}

/// A client for a person: as [`client`], and by `kubectl`'s own file where nothing is named and this is no pod. A person may
/// be asked for credentials, and takes the time that it takes.
pub async fn client_of_person(kubeconfig: Option<&Path>) -> Result<Client, Failure> {
    let home = std::env::var_os("HOME").map(|home| Path::new(&home).join(".kube/config"));
    let usual = home.filter(|path| std::env::var_os("KUBERNETES_SERVICE_HOST").is_none() && path.exists());
    let kubeconfig = kubeconfig.filter(|path| !path.as_os_str().is_empty());
    endless(kubeconfig.map(Path::to_owned).or(usual)).await
}

/// Reads a kubeconfig, or several with `:` between them as in `KUBECONFIG`: those that are there, the first that says a
/// thing counts.
fn read_kubeconfig(path: &Path) -> Result<Kubeconfig, KubeconfigError> {
    let listed = path.to_str().filter(|text| text.contains(':') && !path.exists());
    let Some(listed) = listed else { return Kubeconfig::read_from(path) };
    let there: Vec<&Path> = listed.split(':').map(Path::new).filter(|path| path.is_file()).collect();
    let Some((first, rest)) = there.split_first() else { return Kubeconfig::read_from(path) };
    rest.iter().try_fold(Kubeconfig::read_from(first)?, |all, path| all.merge(Kubeconfig::read_from(path)?))
}

#[cfg(test)]
mod tests {
    use kube::Api;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::time::timeout;

    use super::super::lookup::{ASK_MAX, ask};
    use super::super::resources::NamespaceObject;
    use super::*;

    #[tokio::test]
    async fn a_server_that_takes_calls_and_says_nothing_is_given_up_and_named() {
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = format!("http://{}", silent.local_addr().unwrap());
        let client =
            client_of(Config::new(server.parse().unwrap()), Duration::from_millis(50), usize::MAX).unwrap();
        let (api, all) = (Api::<NamespaceObject>::all(client), kube::api::ListParams::default());
        let error =
            timeout(ASK_MAX, api.list(&all)).await.expect("it is given up").expect_err("nothing is answered");
        assert_eq!(api_error::describe(&error), format!("{server}: request timed out"));
    }

    #[tokio::test]
    async fn an_answer_without_end_to_who_asks_for_one_object_is_given_up() {
        let endless = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = format!("http://{}", endless.local_addr().unwrap());
        tokio::spawn(async move {
            let (mut client, _) = endless.accept().await.unwrap();
            assert!(client.read(&mut [0; 4096]).await.unwrap() > 0);
            let head =
                "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
            client.write_all(head.as_bytes()).await.unwrap();
            let chunk = format!("10000\r\n{}\r\n", " ".repeat(0x10000));
            while client.write_all(chunk.as_bytes()).await.is_ok() {}
        });
        let client = client_of(Config::new(server.parse().unwrap()), ANSWER_MAX, OBJECT_MAX).unwrap();
        let asked = ask(Api::<NamespaceObject>::all(client), "n").await;
        let said = asked.unwrap_err().to_string();
        assert_eq!(said, format!("{server}: its answer has more than 16777216 bytes"));
    }
}
