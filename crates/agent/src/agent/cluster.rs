//! The cluster: a client of its API, and the objects we look at, reduced to that.
//!
//! Rules: objects are read leniently, because one that is malformed must not hide the others of its list; what is
//! not looked at is dropped at once. Tokens are read anew by the client when they rotate.
//!
//! Source: Kubernetes API reference, Pod v1, Namespace v1; the standard 3.1.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::Response;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::{ClusterResourceScope, NamespaceResourceScope};
use kube::client::ClientBuilder;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::core::Status;
use kube::{Api, Client, Config, Resource};
use npwg::metadata::{Definition, Pod, SpecConfig};
use npwg::policy::Labels;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::timeout;
use tower::BoxError;
use tower::timeout::TimeoutLayer;
use tower::util::{MapErrLayer, MapResponseLayer};

use super::{credentials, unanswered};
use crate::failure::Failure;

/// How long a connection may take.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// How long it may be until an answer begins, that of a watch too. A server lets a list wait for a minute where it is not ready
/// for it itself, and one that hangs, or is gone behind its address, says nothing for five: who asks again comes to another one.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// Largest answer to who asks for single objects, in bytes: a server stores none of a tenth of that.
const OBJECT_MAX: usize = 16 << 20;

/// A client: by a kubeconfig, or as a pod of the cluster.
pub(crate) async fn client(kubeconfig: Option<&Path>) -> Result<Client, Failure> {
    credentials::within(kubeconfig, endless(kubeconfig.map(Path::to_owned))).await
}

/// The same for who asks for single objects and ends: what has no end is no object, and must not take the node's memory.
pub(crate) async fn client_of_objects(kubeconfig: Option<&Path>) -> Result<Client, Failure> {
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
        true => unanswered::by(&of_body, format!("its answer has more than {most} bytes").into()),
        false => cause,
    };
    let named = MapErrLayer::new(move |cause| unanswered::by(&server, cause));
    let bounded = MapResponseLayer::new(move |answer: Response<_>| {
        answer.map(|body| Limited::new(body, most).map_err(too_large.clone()))
    });
    let builder = ClientBuilder::try_from(config);
    let builder = builder.map_err(|cause| Failure::new(format!("Kubernetes client: {cause}")))?;
    let builder = builder.with_layer(&TimeoutLayer::new(patience)).with_layer(&named);
    Ok(builder.with_layer(&bounded).build())
}

/// A path of credentials; an empty one, as in a variable that was emptied, is none.
pub(crate) fn path(text: &str) -> Result<PathBuf, Infallible> {
    Ok(text.into())
}

/// A client for a person: as [`client`], and by `kubectl`'s own file where nothing is named and this is no pod. A person may
/// be asked for credentials, and takes the time that it takes.
pub(crate) async fn client_of_person(kubeconfig: Option<&Path>) -> Result<Client, Failure> {
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

/// The taint of a node that a person, or a machine, has made sure to be off.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
/// Annotation of what the API has of a static pod, which its kubelet reads from a file: the pod's own uid, which its
/// runtime and its plugins are told.
pub(crate) const MIRROR: &str = "kubernetes.io/config.mirror";
/// How long the API may take for one object.
pub(crate) const ASK_MAX: Duration = Duration::from_secs(5);

/// Asks the API for one object.
pub(crate) async fn ask<K>(api: Api<K>, name: &str) -> Result<Option<K::Form>, String>
where
    K: Reduced + Clone + Debug + DeserializeOwned,
{
    match timeout(ASK_MAX, api.get_opt(name)).await {
        Ok(Ok(object)) => Ok(object.map(K::reduce)),
        Ok(Err(error)) => Err(unanswered::said(&error)),
        Err(_) => Err(format!("the API server does not answer within {} s", ASK_MAX.as_secs())),
    }
}

/// Is it another object of the name? A server calls that a conflict, or a field that cannot be changed; the patch
/// names no version, so there is nothing else to be in conflict with.
pub(crate) fn is_about_uid(status: &Status) -> bool {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    match status.code {
        409 => status.message.to_lowercase().contains("uid"),
        422 => causes.into_iter().any(|cause| cause.field == "metadata.uid"),
        _ => false,
    }
}

/// A pod as it comes from the API.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct PodObject {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: PodSpec,
    #[serde(default)]
    status: PodStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PodSpec {
    host_network: bool,
    tolerations: Vec<Toleration>,
    service_account_name: String,
    node_name: String,
    resource_claims: Vec<PodClaim>,
}

/// Of a pod: which taints do not keep it from a node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Toleration {
    key: String,
    effect: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PodStatus {
    phase: String,
    #[serde(rename = "podIPs")]
    pod_ips: Vec<PodIp>,
    resource_claim_statuses: Vec<PodClaim>,
    extended_resource_claim_status: PodClaim,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct PodIp {
    ip: String,
}

/// A claim of a pod: in its status the one that was made of a template, or for an extended resource.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PodClaim {
    name: String,
    resource_claim_name: Option<String>,
}

/// The names of a pod's ResourceClaims, in the order of its spec.
fn claims(spec: Vec<PodClaim>, made: &[PodClaim], extended: PodClaim) -> Vec<String> {
    let of_template = |name: &str| made.iter().find(|made| made.name == name)?.resource_claim_name.clone();
    let named = spec.into_iter().filter_map(|claim| {
        let PodClaim { name, resource_claim_name } = claim;
        resource_claim_name.or_else(|| of_template(&name))
    });
    named.chain(extended.resource_claim_name).collect()
}

/// A NetworkAttachmentDefinition as it comes from the API.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct DefinitionObject {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: Value,
}

/// A namespace as it comes from the API.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct NamespaceObject {
    metadata: ObjectMeta,
}

/// A node as it comes from the API.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct NodeObject {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: NodeSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct NodeSpec {
    taints: Vec<Taint>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Taint {
    key: String,
}

impl NodeObject {
    /// Its name.
    pub(crate) fn name(&self) -> String {
        self.metadata.name.clone().unwrap_or_default()
    }

    /// Has a person, or a machine, made sure that it is off?
    pub(crate) fn is_out_of_service(&self) -> bool {
        self.spec.taints.iter().any(|taint| taint.key == OUT_OF_SERVICE)
    }
}

/// The reduced form of an object, and what it is found by.
pub(crate) trait Reduced: Resource<DynamicType = ()> {
    /// What is looked at.
    type Form: Clone + PartialEq + Send + Sync + 'static;

    /// Reduces it.
    fn reduce(self) -> Self::Form;
}

impl PodObject {
    /// Has it run to its end? Then its addresses are others'.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.status.phase.as_str(), "Succeeded" | "Failed")
    }

    /// Does it stay bound to a node that is out of service, and is no sign that anything of it runs? It tolerates the taint, for
    /// ever as far as we look, or uses the node's own network.
    pub(crate) fn stays_out_of_service(&self) -> bool {
        let tolerates = |Toleration { key, effect }: &Toleration| {
            (key.is_empty() || key == OUT_OF_SERVICE) && (effect.is_empty() || effect == "NoExecute")
        };
        self.spec.host_network || self.spec.tolerations.iter().any(tolerates)
    }
}

/// Namespace and name; the namespace is empty where there is none.
pub(crate) type Key = (String, String);

/// What an object is found by.
pub(crate) fn key(object: &impl Resource) -> Key {
    let meta = object.meta();
    (meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default())
}

fn sorted(map: Option<BTreeMap<String, String>>) -> BTreeMap<String, String> {
    map.unwrap_or_default()
}

impl Reduced for PodObject {
    type Form = Pod;

    fn reduce(self) -> Pod {
        let PodObject { metadata, spec, status } = self;
        let PodSpec { host_network, tolerations: _, service_account_name, node_name, resource_claims } = spec;
        let PodStatus { phase, pod_ips, resource_claim_statuses, extended_resource_claim_status } = status;
        let runs = phase == "Running" && metadata.deletion_timestamp.is_none();
        let mirrored = metadata.annotations.as_ref().and_then(|annotations| annotations.get(MIRROR)).cloned();
        let uid = mirrored.or(metadata.uid);
        Pod {
            namespace: metadata.namespace.unwrap_or_default(),
            name: metadata.name.unwrap_or_default(),
            uid: uid.unwrap_or_default(),
            labels: sorted(metadata.labels),
            annotations: sorted(metadata.annotations),
            host_network,
            service_account_name,
            node_name,
            resource_claims: claims(
                resource_claims,
                &resource_claim_statuses,
                extended_resource_claim_status,
            ),
            addresses: pod_ips.into_iter().filter(|_| runs).map(|PodIp { ip }| ip).collect(),
            hearsay: false,
        }
    }
}

impl Reduced for DefinitionObject {
    type Form = Definition;

    fn reduce(self) -> Definition {
        let DefinitionObject { metadata, spec } = self;
        Definition {
            namespace: metadata.namespace.unwrap_or_default(),
            name: metadata.name.unwrap_or_default(),
            annotations: sorted(metadata.annotations),
            config: match spec.get("config") {
                None | Some(Value::Null) => SpecConfig::Absent,
                Some(Value::String(text)) => SpecConfig::Text(text.clone()),
                Some(other) => SpecConfig::Structured(other.to_string()),
            },
        }
    }
}

impl Reduced for NamespaceObject {
    type Form = Labels;

    fn reduce(self) -> Labels {
        sorted(self.metadata.labels)
    }
}

/// Says what a type of ours is to the API.
macro_rules! resource {
    ($object:ty, $scope:ty, $kind:literal, $plural:literal, $group:literal) => {
        resource!($object, $scope, $kind, $plural, $group, "v1");
    };
    ($object:ty, $scope:ty, $kind:literal, $plural:literal, $group:literal, $version:literal) => {
        impl Resource for $object {
            type DynamicType = ();
            type Scope = $scope;

            fn kind((): &()) -> Cow<'_, str> {
                $kind.into()
            }

            fn group((): &()) -> Cow<'_, str> {
                $group.into()
            }

            fn version((): &()) -> Cow<'_, str> {
                $version.into()
            }

            fn plural((): &()) -> Cow<'_, str> {
                $plural.into()
            }

            fn meta(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    };
}

pub(crate) use resource;

resource!(PodObject, NamespaceResourceScope, "Pod", "pods", "");
resource!(NodeObject, ClusterResourceScope, "Node", "nodes", "");
resource!(NamespaceObject, ClusterResourceScope, "Namespace", "namespaces", "");
resource!(
    DefinitionObject,
    NamespaceResourceScope,
    "NetworkAttachmentDefinition",
    "network-attachment-definitions",
    "k8s.cni.cncf.io"
);

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

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
        assert_eq!(unanswered::said(&error), format!("{server}: request timed out"));
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
        assert_eq!(asked, Err(format!("{server}: its answer has more than 16777216 bytes")));
    }

    #[test]
    fn a_malformed_definition_is_read_as_far_as_it_goes() {
        for (spec, expected) in [
            (json!(null), SpecConfig::Absent),
            (json!([]), SpecConfig::Absent),
            (json!({ "config": null }), SpecConfig::Absent),
            (json!({ "config": "{}" }), SpecConfig::Text("{}".into())),
            (json!({ "config": { "a": 1 } }), SpecConfig::Structured(r#"{"a":1}"#.into())),
        ] {
            let object = json!({ "metadata": { "namespace": "n", "name": "a" }, "spec": spec });
            let object: DefinitionObject = serde_json::from_value(object).unwrap();
            assert_eq!(object.reduce().config, expected);
        }
        let bare: DefinitionObject = serde_json::from_value(json!({ "metadata": {} })).unwrap();
        assert_eq!(bare.reduce(), Definition::default());
    }

    #[test]
    fn a_pod_is_reduced_to_what_is_looked_at() {
        let object = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "namespace": "n", "name": "p", "uid": "u", "annotations": { "a": "b" }, "managedFields": [{}] },
            "spec": { "hostNetwork": true, "serviceAccountName": "s", "nodeName": "w", "containers": [] },
        });
        let pod = serde_json::from_value::<PodObject>(object).unwrap();
        assert_eq!(key(&pod), ("n".into(), "p".into()));
        let pod = pod.reduce();
        assert!(pod.host_network && pod.annotations["a"] == "b");
        assert_eq!(
            (pod.uid.as_str(), pod.service_account_name.as_str(), pod.node_name.as_str()),
            ("u", "s", "w")
        );
    }

    #[test]
    fn what_tolerates_the_taint_or_has_the_nodes_network_stays_where_a_node_is_out_of_service() {
        let stays = |spec: Value| {
            let object = json!({ "metadata": { "name": "p" }, "spec": spec });
            serde_json::from_value::<PodObject>(object).unwrap().stays_out_of_service()
        };
        assert!(stays(json!({ "hostNetwork": true })));
        assert!(stays(json!({ "tolerations": [{ "operator": "Exists" }] })));
        assert!(stays(
            json!({ "tolerations": [{ "key": OUT_OF_SERVICE, "operator": "Exists", "effect": "NoExecute" }] })
        ));
        assert!(!stays(
            json!({ "tolerations": [{ "key": "node.kubernetes.io/not-ready", "operator": "Exists" }] })
        ));
        assert!(!stays(json!({ "tolerations": [{ "key": OUT_OF_SERVICE, "effect": "NoSchedule" }] })));
        assert!(!stays(json!({})));
    }

    #[test]
    fn a_pod_has_the_claims_that_it_names_that_were_made_for_it_and_that_of_its_extended_resources() {
        let object = json!({
            "metadata": { "name": "p" },
            "spec": { "resourceClaims": [
                { "name": "b", "resourceClaimTemplateName": "t" },
                { "name": "none", "resourceClaimTemplateName": "t" },
                { "name": "a", "resourceClaimName": "own" },
            ] },
            "status": {
                "resourceClaimStatuses": [{ "name": "none" }, { "name": "b", "resourceClaimName": "p-b-x" }],
                "extendedResourceClaimStatus": { "resourceClaimName": "p-extended-y", "requestMappings": [] },
            },
        });
        let pod = serde_json::from_value::<PodObject>(object).unwrap().reduce();
        assert_eq!(pod.resource_claims, ["p-b-x", "own", "p-extended-y"]);
    }

    #[test]
    fn a_pod_has_addresses_while_it_runs() {
        let read = |phase: &str, deleted: Option<&str>| {
            let object = json!({
                "metadata": { "name": "p", "deletionTimestamp": deleted },
                "status": { "phase": phase, "podIPs": [{ "ip": "10.0.0.2" }, { "ip": "fd00::2" }] },
            });
            serde_json::from_value::<PodObject>(object).unwrap().reduce().addresses
        };
        assert_eq!(read("Running", None), ["10.0.0.2", "fd00::2"]);
        assert_eq!(read("Succeeded", None), [""; 0]);
        assert_eq!(read("Running", Some("2026-11-23T06:00:00Z")), [""; 0]);
    }

    #[test]
    fn a_static_pod_is_known_by_the_uid_that_its_runtime_is_told() {
        let object = json!({ "metadata": { "name": "p", "uid": "of-the-mirror", "annotations": { MIRROR: "of-the-pod" } } });
        assert_eq!(serde_json::from_value::<PodObject>(object).unwrap().reduce().uid, "of-the-pod");
    }
}
