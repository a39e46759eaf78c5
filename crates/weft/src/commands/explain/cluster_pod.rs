//! Objects from a cluster for `weft explain`: the pod by name, the network definitions, and the pod's
//! namespace.
//!
//! - Without the right to list the definitions in all namespaces, those in the pod's namespace are read.
//! - The configuration for the node's meta-plugin is a file on that node. Elsewhere, a configuration with the
//!   default network's name stands for it, which the agent on the node has reported.

use std::path::Path;

use cni::network::Network;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::{Api, Client, Resource};
use serde_json::json;

use crate::cluster_access::ClusterAccess;
use crate::input_files::{File, Kind};
use crate::manifest_plan::{Inputs, LoadedInputs};
use crate::meta_plugin_config::MetaPlugin;
use crate::pod_name::PodName;
use cli_support::async_runtime::runtime;
use cli_support::failure::Failure;
use cli_support::output::{Format, Progress};
use kube_support::api_error;
use kube_support::custom_resources::{NetworkAttachmentDefinition, WeftNode};
use kube_support::resources::PodObject;

/// Number of definitions in one response from the API server.
const PAGE: u32 = 500;
/// Name for the default network if no agent has reported it.
const UNKNOWN: &str = "default-network";

/// Returns this machine's configuration if pods are read from the API server, and whether they are.
///
/// They are if no file is given, and an option names a cluster or the configuration names no manifest
/// directory.
pub(super) fn is_wanted(
    inputs: &Inputs,
    access: &ClusterAccess,
) -> Result<(bool, Option<MetaPlugin>), Failure> {
    if !inputs.files.is_empty() {
        return Ok((false, None));
    }
    let found = MetaPlugin::find_any(inputs.config.as_deref(), &[])?;
    let has_directory = found.as_ref().is_some_and(|found| found.node.manifest_dir.is_some());
    Ok((access.is_given() || !has_directory, found))
}

/// Next step if there is no cluster.
pub(super) const CURE: &str = "add -f FILE|DIR with the manifests of the pod and of its network definitions, or name a cluster with --kubeconfig";

/// Returns the pod with this name in the context's namespace.
pub(super) fn within_context(access: &ClusterAccess, name: &str) -> Result<PodName, Failure> {
    PodName::within(&access.namespace(None).map_err(|failure| failure.next(CURE))?, name)
}

/// Returns a cluster's objects with the meta-plugin's configuration.
pub(super) fn load(
    access: &ClusterAccess,
    found: Option<MetaPlugin>,
    pod: &PodName,
) -> Result<LoadedInputs, Failure> {
    runtime()?.block_on(async {
        let client = access.client().await.map_err(|failure| failure.next(CURE))?;
        let object = pod_object(&client, pod).await?;
        let meta_plugin = match found {
            Some(found) => found,
            None => assumed(&client, &object).await?,
        };
        let mut files = vec![file("pod", &object)?];
        for definition in definitions(&client, pod).await? {
            files.push(file("network", &definition)?);
        }
        let kind = ApiResource::erase::<Namespace>(&());
        let namespaces: Api<DynamicObject> = Api::all_with(client, &kind);
        // Its labels matter for access policies only.
        if let Ok(namespace) = namespaces.get(&pod.namespace).await {
            files.push(file("namespace", &namespace)?);
        }
        Ok(LoadedInputs { files, meta_plugin })
    })
}

async fn pod_object(client: &Client, pod: &PodName) -> Result<DynamicObject, Failure> {
    let kind = ApiResource::erase::<PodObject>(&());
    let pods: Api<DynamicObject> = Api::namespaced_with(client.clone(), &pod.namespace, &kind);
    let found = pods.get(&pod.name).await;
    found.map_err(|error| {
        let failure = api_error::failure(format_args!("pod {pod}"), &error);
        match error {
            kube::Error::Api(status) if status.code == 404 => {
                failure.next("name the pod itself; a workload is only found in the files of -f")
            }
            _ => failure,
        }
    })
}

/// Returns the definitions in all namespaces, or in the pod's.
async fn definitions(client: &Client, pod: &PodName) -> Result<Vec<DynamicObject>, Failure> {
    let kind = ApiResource::erase::<NetworkAttachmentDefinition>(&());
    match pages(&Api::all_with(client.clone(), &kind)).await {
        Ok(found) => Ok(found),
        Err(kube::Error::Api(status)) if status.code == 403 => {
            let line = format!(
                "weft: the definitions of other namespaces than {} are unknown: {}",
                pod.namespace, status.message
            );
            Progress::beside(Format::Json).line(line);
            let own = Api::namespaced_with(client.clone(), &pod.namespace, &kind);
            pages(&own).await.map_err(|error| refused(&error))
        }
        Err(error) => Err(refused(&error)),
    }
}

fn refused(error: &kube::Error) -> Failure {
    api_error::failure("list network definitions", error)
}

async fn pages(api: &Api<DynamicObject>) -> Result<Vec<DynamicObject>, kube::Error> {
    let (mut parameters, mut all) = (ListParams::default().limit(PAGE), Vec::new());
    loop {
        let page = api.list(&parameters).await?;
        all.extend(page.items);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => parameters = parameters.continue_token(&token),
            None => return Ok(all),
        }
    }
}

/// Returns a configuration with the default network's name that the agent on the pod's node has reported.
async fn assumed(client: &Client, pod: &DynamicObject) -> Result<MetaPlugin, Failure> {
    let node = pod.data.pointer("/spec/nodeName").and_then(|name| name.as_str()).unwrap_or_default();
    let nodes: Api<WeftNode> = Api::all(client.clone());
    let report = if node.is_empty() { None } else { nodes.get(node).await.ok() };
    let name = report.and_then(|report| report.status).map(|status| status.default_network);
    let name = name.filter(|name| !name.is_empty()).unwrap_or_else(|| UNKNOWN.to_owned());
    let place = match node {
        "" => "an assumed configuration; --config names that of a node".to_owned(),
        node => format!("an assumed configuration of node {node}; --config names another one"),
    };
    // The plugin of the default network is unknown here. Its name says so.
    let delegate = json!({ "cniVersion": "1.0.0", "name": name, "type": UNKNOWN });
    let plugin = json!({ "type": "weft", "delegates": [delegate] });
    let list = json!({ "cniVersion": "1.0.0", "name": "weft", "plugins": [plugin] });
    let network = Network::parse(list.to_string().as_bytes(), &place)?;
    MetaPlugin::read(&network, Path::new(&place))
}

/// Returns an object as a manifest.
fn file(kind: &str, object: &DynamicObject) -> Result<File, Failure> {
    let mut object = object.clone();
    object.metadata.managed_fields = None;
    let name = object.meta().name.clone().unwrap_or_default();
    let namespace = object.meta().namespace.clone().unwrap_or_default();
    let place = format!("{kind} {namespace}/{name} of the cluster");
    let mut text =
        serde_json::to_value(&object).map_err(|cause| Failure::new(format!("encode {place}: {cause}")))?;
    // Items of a list need not have their kind.
    for (key, value) in match kind {
        "pod" => [("apiVersion", "v1"), ("kind", "Pod")],
        "namespace" => [("apiVersion", "v1"), ("kind", "Namespace")],
        _ => [("apiVersion", "k8s.cni.cncf.io/v1"), ("kind", "NetworkAttachmentDefinition")],
    } {
        text[key] = value.into();
    }
    Ok(File { path: place.into(), text: text.to_string(), kind: Kind::Manifest })
}
