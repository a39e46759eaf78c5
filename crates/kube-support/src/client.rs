//! Clients for the Kubernetes API, from a kubeconfig or with this pod's service account.
//!
//! A request fails if the server does not begin the response in time, or if the response stops ([`mod@transport`]). The
//! client reads rotated tokens again.

pub(crate) mod transport;

use std::convert::Infallible;
use std::path::{Path, PathBuf};

use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::Response;
use kube::client::ClientBuilder;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use tower::BoxError;
use tower::timeout::TimeoutLayer;
use tower::util::{MapErrLayer, MapResponseLayer};

use self::transport::{DEADLINES, Deadlines, transport};
use super::credentials;
use crate::api_error;
use cli_support::failure::Failure;

/// Maximum size for a response with a single object, in bytes. The API server stores objects with less than a
/// tenth.
const OBJECT_MAX: usize = 16 << 20;

/// Next step if there is no kubeconfig.
const NAME_KUBECONFIG: &str = "set --kubeconfig to the path of a kubeconfig";

/// Returns a client from a kubeconfig, or with this pod's service account.
pub async fn client(kubeconfig: Option<&Path>) -> Result<Client, Failure> {
    credentials::within(kubeconfig, unlimited(kubeconfig.map(Path::to_owned))).await
}

/// Returns a client for single objects, whose responses are limited so that a faulty server cannot exhaust the memory.
pub async fn client_of_objects(kubeconfig: Option<&Path>) -> Result<Client, Failure> {
    let path = kubeconfig.map(Path::to_owned);
    let connecting = async move { client_of(config(path.as_deref(), None).await?, DEADLINES, OBJECT_MAX) };
    credentials::within(kubeconfig, connecting).await
}

/// Returns a client without a size limit, for large lists and for watches.
async fn unlimited(kubeconfig: Option<PathBuf>) -> Result<Client, Failure> {
    client_of(config(kubeconfig.as_deref(), None).await?, DEADLINES, usize::MAX)
}

async fn config(kubeconfig: Option<&Path>, context: Option<&str>) -> Result<Config, Failure> {
    let config = match kubeconfig.filter(|path| !path.as_os_str().is_empty()) {
        Some(path) => {
            let failed = |cause: &dyn std::fmt::Display| {
                Failure::new(format!("kubeconfig {}: {cause}", path.display()))
            };
            let read = read_kubeconfig(path).map_err(|cause| {
                let failure = failed(&invalid(path, &cause));
                match cause {
                    KubeconfigError::ReadConfig(..) => failure.next(NAME_KUBECONFIG),
                    _ => failure,
                }
            })?;
            let contexts: Vec<String> = read.contexts.iter().map(|context| context.name.clone()).collect();
            let options =
                KubeConfigOptions { context: context.map(str::to_owned), ..KubeConfigOptions::default() };
            let configured = Config::from_custom_kubeconfig(read, &options).await;
            configured.map_err(|cause| match cause {
                KubeconfigError::CurrentContextNotSet => {
                    failed(&"it has no current context").next(name_context(&contexts))
                }
                KubeconfigError::LoadContext(name) => {
                    failed(&format_args!("it has no context {name:?}")).next(name_context(&contexts))
                }
                cause => failed(&cause),
            })?
        }
        None if context.is_some() => {
            return Err(Failure::new("--context: there is no kubeconfig with contexts").next(NAME_KUBECONFIG));
        }
        None => Config::incluster().map_err(|cause| {
            Failure::new(format!("in-cluster configuration: {cause}"))
                .next("outside of a pod, set --kubeconfig to the path of a kubeconfig")
        })?,
    };
    Ok(config)
}

/// Returns the next step for a kubeconfig in which no context was selected.
fn name_context(contexts: &[String]) -> String {
    match contexts {
        [] => "it has no contexts at all: is it a kubeconfig?".to_owned(),
        contexts => format!("select one of its contexts: {}", contexts.join(", ")),
    }
}

/// Returns a client with response deadlines, and a maximum response size in bytes.
pub(crate) fn client_of(config: Config, deadlines: Deadlines, most: usize) -> Result<Client, Failure> {
    let server = config.cluster_url.to_string();
    let of_body = server.clone();
    let explained = move |cause: BoxError| {
        if cause.is::<LengthLimitError>() {
            api_error::by(&of_body, format!("its response has more than {most} bytes").into())
        } else {
            api_error::by(&of_body, cause)
        }
    };
    let named = MapErrLayer::new(move |cause| api_error::by(&server, cause));
    let bounded = MapResponseLayer::new(move |answer: Response<_>| {
        answer.map(|body| Limited::new(body, most).map_err(explained.clone()))
    });
    let builder = ClientBuilder::new(transport(&config, deadlines)?, config.default_namespace);
    let builder = builder.with_layer(&TimeoutLayer::new(deadlines.response)).with_layer(&named);
    Ok(builder.with_layer(&bounded).build())
}

/// Parses a kubeconfig path. The empty path, as from an empty environment variable, means none.
pub fn path(text: &str) -> Result<PathBuf, Infallible> {
    Ok(text.into())
}

/// Returns a client for an interactive user: like [`client`], with kubectl's default kubeconfig outside of a
/// pod.
///
/// The credentials have no deadline, because the user may be prompted for them.
pub async fn client_of_person(kubeconfig: Option<&Path>, context: Option<&str>) -> Result<Client, Failure> {
    client_of(config_of_person(kubeconfig, context).await?, DEADLINES, usize::MAX)
}

/// Returns the namespace in a context, or this pod's: the one that goes with [`client_of_person`].
pub async fn namespace_of_person(
    kubeconfig: Option<&Path>,
    context: Option<&str>,
) -> Result<String, Failure> {
    Ok(config_of_person(kubeconfig, context).await?.default_namespace)
}

async fn config_of_person(kubeconfig: Option<&Path>, context: Option<&str>) -> Result<Config, Failure> {
    let home = std::env::var_os("HOME").map(|home| Path::new(&home).join(".kube/config"));
    let usual = home.filter(|path| std::env::var_os("KUBERNETES_SERVICE_HOST").is_none() && path.exists());
    let kubeconfig = kubeconfig.filter(|path| !path.as_os_str().is_empty());
    let kubeconfig = kubeconfig.map(Path::to_owned).or(usual);
    if kubeconfig.is_none() && context.is_none() && std::env::var_os("KUBERNETES_SERVICE_HOST").is_none() {
        let why = "no cluster: --kubeconfig and KUBECONFIG are not set, there is no ~/.kube/config, and this is no pod";
        return Err(Failure::new(why).next(NAME_KUBECONFIG));
    }
    config(kubeconfig.as_deref(), context).await
}

/// Reads a kubeconfig, or several separated by `:` as in `KUBECONFIG`. Missing files are skipped; the first file that
/// sets a value takes precedence.
fn read_kubeconfig(path: &Path) -> Result<Kubeconfig, KubeconfigError> {
    let listed = path.to_str().filter(|text| text.contains(':') && !path.exists());
    let Some(listed) = listed else { return Kubeconfig::read_from(path) };
    let there: Vec<&Path> = listed.split(':').map(Path::new).filter(|path| path.is_file()).collect();
    let Some((first, rest)) = there.split_first() else { return Kubeconfig::read_from(path) };
    rest.iter().try_fold(Kubeconfig::read_from(first)?, |all, path| all.merge(Kubeconfig::read_from(path)?))
}

/// Returns why a kubeconfig cannot be read: for invalid YAML the place, for an invalid value the path. The value is
/// left out, because it may be a secret.
fn invalid(path: &Path, cause: &KubeconfigError) -> String {
    let place = match cause {
        KubeconfigError::Parse(place) => place,
        // The library's text has the path again.
        KubeconfigError::ReadConfig(cause, _) => return cause.to_string(),
        _ => return cause.to_string(),
    };
    let document = std::fs::read_to_string(path).ok().and_then(|text| manifest::values(&text).ok()?.pop());
    let error = document.and_then(|document| cni::fold::strict::<Kubeconfig>(&document, "").err());
    match error.and_then(|error| error.invalid_key) {
        Some(key) => format!("{}: {}", key.path, key.why),
        None => {
            let at = place.location().map(|at| format!(" at line {}, column {}", at.line(), at.column()));
            format!("not valid YAML{}", at.unwrap_or_default())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use kube::Api;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::time::timeout;

    use super::super::lookup::{ASK_MAX, ask};
    use super::super::resources::NamespaceObject;
    use super::*;

    #[test]
    fn kubeconfig_errors_name_the_place_and_no_secret() {
        let path = std::env::temp_dir().join(format!("weft-kubeconfig-{}", std::process::id()));
        for (text, expected) in [
            ("clusters: hidden\n", "clusters: expected a list"),
            ("users:\n- name: a\n  user: {token: [hidden]}\n", "users[0].user.token: expected a string"),
            ("clusters: [hidden\n", "not valid YAML at line "),
        ] {
            std::fs::write(&path, text).unwrap();
            let cause = read_kubeconfig(&path).unwrap_err();
            let why = invalid(&path, &cause);
            assert!(why.starts_with(expected) && !why.contains("hidden"), "{text}: {why}; {cause}");
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[tokio::test]
    async fn client_timeout_names_the_server_that_does_not_answer() {
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = format!("http://{}", silent.local_addr().unwrap());
        let client = client_of(
            Config::new(server.parse().unwrap()),
            Deadlines { response: Duration::from_millis(50), ..DEADLINES },
            usize::MAX,
        )
        .unwrap();
        let (api, all) = (Api::<NamespaceObject>::all(client), kube::api::ListParams::default());
        let error = timeout(ASK_MAX, api.list(&all)).await.expect("a timeout").expect_err("no response");
        assert_eq!(api_error::describe(&error), format!("{server}: request timed out"));
    }

    #[tokio::test]
    async fn client_rejects_an_endless_response_to_a_lookup() {
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
        let client = client_of(Config::new(server.parse().unwrap()), DEADLINES, OBJECT_MAX).unwrap();
        let asked = ask(Api::<NamespaceObject>::all(client), "n").await;
        let message = asked.unwrap_err().to_string();
        assert_eq!(message, format!("{server}: its response has more than 16777216 bytes"));
    }
}
