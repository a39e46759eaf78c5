//! Where a pod's VIFs are written: Kuryr's annotation of the pod, or a KuryrPort beside it.
//!
//! Rules: what is written names the pod's uid: a pod that was made anew under the name is another one's. What a reader
//! cannot read is an error and stays as it is.
//!
//! Source: Kuryr-Kubernetes `controller/handlers/vif.py` (train), `kuryrport.py` (2023.1), the CRD `kuryrports`.

use clap::ValueEnum;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use neutron::pod_state::PodState;
use npwg::metadata::Pod;
use serde_json::{Value, json};

use super::subject::{KuryrPort, SubjectObject};

/// The annotation.
pub(crate) const ANNOTATION: &str = "openstack.org/kuryr-vif";
/// The label of a KuryrPort that says where its pod is.
const NODE_LABEL: &str = "kuryr.openstack.org/nodeName";

/// Where VIFs are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Place {
    /// The pod's annotation openstack.org/kuryr-vif
    #[default]
    Annotation,
    /// A KuryrPort of the pod's name
    Kuryrport,
}

/// Why nothing was written.
#[derive(Debug)]
pub(crate) enum Unwritten {
    /// The pod is gone, or is another one of its name.
    Gone,
    /// The API does not take it now.
    Failed(String),
}

/// The VIFs that a pod has, if any were written.
///
/// # Errors
/// What is written cannot be read, or not now.
pub(crate) async fn read(place: Place, client: &Client, pod: &Pod) -> Result<Option<PodState>, String> {
    if place == Place::Annotation {
        return of_annotation(pod);
    }
    let ports: Api<KuryrPort> = Api::namespaced(client.clone(), &pod.namespace);
    match ports.get_opt(&pod.name).await {
        Ok(Some(port)) => of_kuryr_port(&port, &pod.uid),
        Ok(None) => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

/// The VIFs in a pod's annotation.
pub(crate) fn of_annotation(pod: &Pod) -> Result<Option<PodState>, String> {
    let text = pod.annotations.get(ANNOTATION).filter(|text| !text.trim().is_empty());
    let read = text.map(|text| PodState::from_annotation(text)).transpose();
    read.map_err(|why| format!("annotation {ANNOTATION}: {why}"))
}

/// The VIFs in a KuryrPort, if it is this pod's.
pub(crate) fn of_kuryr_port(port: &KuryrPort, uid: &str) -> Result<Option<PodState>, String> {
    let own = uid.is_empty() || port.spec["podUid"] == uid;
    let vifs =
        Some(&port.status["vifs"]).filter(|vifs| own && vifs.as_object().is_some_and(|map| !map.is_empty()));
    let read = vifs.map(PodState::from_vifs).transpose();
    read.map_err(|why| format!("KuryrPort {}: {why}", port.metadata.name.as_deref().unwrap_or_default()))
}

/// Writes a pod's VIFs.
pub(crate) async fn write(
    place: Place,
    client: &Client,
    pod: &Pod,
    state: &PodState,
) -> Result<(), Unwritten> {
    match place {
        Place::Annotation => annotate(client, pod, state).await,
        Place::Kuryrport => put_port(client, pod, state).await,
    }
}

async fn annotate(client: &Client, pod: &Pod, state: &PodState) -> Result<(), Unwritten> {
    let pods: Api<SubjectObject> = Api::namespaced(client.clone(), &pod.namespace);
    // The uid is a condition: with another one the API server answers 409.
    let patch =
        json!({ "metadata": { "uid": pod.uid, "annotations": { ANNOTATION: state.to_annotation() } } });
    let written = pods.patch_metadata(&pod.name, &PatchParams::default(), &Patch::Merge(&patch)).await;
    written.map(drop).map_err(|error| unwritten(&error))
}

fn unwritten(error: &kube::Error) -> Unwritten {
    match error {
        kube::Error::Api(status) if matches!(status.code, 404 | 409) => Unwritten::Gone,
        other => Unwritten::Failed(other.to_string()),
    }
}

async fn put_port(client: &Client, pod: &Pod, state: &PodState) -> Result<(), Unwritten> {
    let ports: Api<KuryrPort> = Api::namespaced(client.clone(), &pod.namespace);
    let known = ports.get_opt(&pod.name).await.map_err(|error| unwritten(&error))?;
    match known {
        Some(port) if port.spec["podUid"] == pod.uid => {
            let change = Value::Array(vec![
                json!({ "op": "add", "path": "/status", "value": { "vifs": state.to_vifs() } }),
            ]);
            let change = serde_json::from_value(change).map_err(|why| Unwritten::Failed(why.to_string()))?;
            let patched = ports.patch(&pod.name, &PatchParams::default(), &Patch::Json::<()>(change)).await;
            patched.map(drop).map_err(|error| unwritten(&error))
        }
        // Of a pod that had the name: its owner's end takes it away, and we come again.
        Some(_) => {
            let _ = ports.delete(&pod.name, &kube::api::DeleteParams::default()).await;
            Err(Unwritten::Failed(format!("KuryrPort {}/{} is another pod's", pod.namespace, pod.name)))
        }
        None => {
            let mut port = KuryrPort {
                api_version: "openstack.org/v1".to_owned(),
                kind: "KuryrPort".to_owned(),
                spec: json!({ "podUid": pod.uid, "podNodeName": pod.node_name, "podStatic": false }),
                status: json!({ "vifs": state.to_vifs() }),
                ..KuryrPort::default()
            };
            port.metadata.name = Some(pod.name.clone());
            port.metadata.labels = Some([(NODE_LABEL.to_owned(), pod.node_name.clone())].into());
            // With its pod it goes by itself.
            port.metadata.owner_references = Some(vec![OwnerReference {
                api_version: "v1".to_owned(),
                kind: "Pod".to_owned(),
                name: pod.name.clone(),
                uid: pod.uid.clone(),
                ..OwnerReference::default()
            }]);
            let made = ports.create(&PostParams::default(), &port).await;
            made.map(drop).map_err(|error| unwritten(&error))
        }
    }
}
