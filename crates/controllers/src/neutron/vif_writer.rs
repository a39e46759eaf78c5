//! Where a pod's VIFs are written: Kuryr's annotation of the pod, or a KuryrPort beside it.
//!
//! Rules: what is written names the pod's uid: a pod that was made anew under the name is another one's. What a reader
//! cannot read is an error and stays as it is.
//!
//! Source: Kuryr-Kubernetes `controller/handlers/vif.py` (train), `kuryrport.py` (2023.1), the CRD `kuryrports`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Client, Resource};
use neutron::pod_state::PodState;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use thiserror::Error;

use crate::neutron::pod_subject::{POD_FINALIZER, PORT_FINALIZER, PodSubject, SubjectObject};
use kube_support::api_error;
use kube_support::api_error::is_about_uid;
use kube_support::kuryr::{ANNOTATION, KuryrPort, RequestError, VifLocation};

/// The label of a KuryrPort that says where its pod is.
const NODE_LABEL: &str = "kuryr.openstack.org/nodeName";

/// Failure of a write to a pod or to its KuryrPort.
#[derive(Debug, Error)]
pub(crate) enum WriteError {
    /// The request for the pod failed.
    #[error("get pod: {}", api_error::describe(.0))]
    GetPod(kube::Error),
    /// The annotation of the pod was not written.
    #[error("{}", api_error::describe(.0))]
    Annotate(kube::Error),
    /// The request for the KuryrPort failed.
    #[error("{0}")]
    Request(#[from] RequestError),
    /// The change is no JSON patch.
    #[error("{0}")]
    Patch(#[from] serde_json::Error),
    /// The finalizer was not removed.
    #[error("{kind}: {finalizer}: {}", api_error::describe(.error))]
    Unhold {
        /// The kind of the object.
        kind: String,
        /// The finalizer.
        finalizer: String,
        /// The error of the API.
        error: kube::Error,
    },
}

/// Why nothing was written.
#[derive(Debug)]
pub(crate) enum Unwritten {
    /// The pod is gone, or is another one of its name; nothing else is this.
    Gone,
    /// The API does not take it now, or has no such resource.
    Failed(WriteError),
}

/// Writes a pod's VIFs.
pub(crate) async fn write(
    place: VifLocation,
    client: &Client,
    subject: &PodSubject,
    state: &PodState,
) -> Result<(), Unwritten> {
    match place {
        VifLocation::Annotation => annotate(client, subject, state).await,
        VifLocation::Kuryrport => put_port(client, subject, state).await.map_err(Unwritten::Failed),
    }
}

async fn annotate(client: &Client, subject: &PodSubject, state: &PodState) -> Result<(), Unwritten> {
    let PodSubject { pod, object, .. } = subject;
    let pods: Api<SubjectObject> = Api::namespaced(client.clone(), &pod.namespace);
    // The uid is a condition: with another one the API server answers 409.
    let patch =
        json!({ "metadata": { "uid": object, "annotations": { ANNOTATION: state.to_annotation() } } });
    match pods.patch_metadata(&pod.name, &PatchParams::default(), &Patch::Merge(&patch)).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 || is_about_uid(&status) => Err(Unwritten::Gone),
        Err(error) => Err(Unwritten::Failed(WriteError::Annotate(error))),
    }
}

/// Makes or changes the KuryrPort of a pod. That there is no such resource says nothing of the pod: whether it is gone is
/// seen by the pod alone.
async fn put_port(client: &Client, subject: &PodSubject, state: &PodState) -> Result<(), WriteError> {
    let pod = &subject.pod;
    let ports: Api<KuryrPort> = Api::namespaced(client.clone(), &pod.namespace);
    let known = ports.get_opt(&pod.name).await.map_err(|error| RequestError::new("get", pod, error))?;
    if known.as_ref().is_some_and(|port| port.spec["podUid"] == pod.uid) {
        let change = Value::Array(vec![
            json!({ "op": "test", "path": "/spec/podUid", "value": pod.uid }),
            json!({ "op": "add", "path": "/status", "value": { "vifs": state.to_vifs() } }),
        ]);
        let change = serde_json::from_value(change)?;
        let patched = ports.patch(&pod.name, &PatchParams::default(), &Patch::Json::<()>(change)).await;
        return patched.map(drop).map_err(|error| RequestError::new("patch", pod, error).into());
    }
    if let Some(port) = known {
        // Of a pod that had the name: its owner's end takes it away, too, but later.
        let exactly = Preconditions { uid: port.metadata.uid.clone(), resource_version: None };
        let condition = DeleteParams { preconditions: Some(exactly), ..DeleteParams::default() };
        let deleted = ports.delete(&pod.name, &condition).await;
        deleted.map_err(|error| RequestError::new("delete another pod's", pod, error))?;
    }
    let made = ports.create(&PostParams::default(), &kuryr_port(subject, state)).await;
    made.map(drop).map_err(|error| RequestError::new("create", pod, error).into())
}

/// Lets a pod go, and its KuryrPort, that Kuryr's finalizers hold: its ports are released.
///
/// # Errors
/// The API does not take it now.
pub(crate) async fn let_go(
    place: VifLocation,
    client: &Client,
    subject: &PodSubject,
) -> Result<(), WriteError> {
    let pod = &subject.pod;
    if place == VifLocation::Kuryrport {
        let ports: Api<KuryrPort> = Api::namespaced(client.clone(), &pod.namespace);
        let known = ports.get_opt(&pod.name).await.map_err(|error| RequestError::new("get", pod, error))?;
        let own = known.filter(|port| port.spec["podUid"] == pod.uid);
        if let Some(port) = own {
            unhold(&ports, &pod.name, &port.metadata, PORT_FINALIZER).await?;
        }
    }
    if !subject.held {
        return Ok(());
    }
    let pods: Api<SubjectObject> = Api::namespaced(client.clone(), &pod.namespace);
    let there = pods.get_metadata_opt(&pod.name).await.map_err(WriteError::GetPod)?;
    match there.filter(|there| there.metadata.uid.as_ref() == Some(&subject.object)) {
        Some(there) => unhold(&pods, &pod.name, &there.metadata, POD_FINALIZER).await,
        None => Ok(()),
    }
}

/// Takes a finalizer off an object, and no other: `kubectl patch --type=json -p '[{"op":"remove","path":"/metadata/finalizers/N"}]'`
async fn unhold<K>(api: &Api<K>, name: &str, of: &ObjectMeta, finalizer: &str) -> Result<(), WriteError>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
{
    let Some(index) = of.finalizers.iter().flatten().position(|one| one == finalizer) else { return Ok(()) };
    let path = format!("/metadata/finalizers/{index}");
    // Somebody else's may go meanwhile, and this one have another place then.
    let change = json!([
        { "op": "test", "path": "/metadata/uid", "value": of.uid },
        { "op": "test", "path": &path, "value": finalizer },
        { "op": "remove", "path": &path },
    ]);
    let change = serde_json::from_value(change)?;
    match api.patch_metadata(name, &PatchParams::default(), &Patch::Json::<()>(change)).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => {
            let (kind, finalizer) = (K::kind(&()).into_owned(), finalizer.to_owned());
            other.map(drop).map_err(|error| WriteError::Unhold { kind, finalizer, error })
        }
    }
}

fn kuryr_port(subject: &PodSubject, state: &PodState) -> KuryrPort {
    let PodSubject { pod, object, .. } = subject;
    let mut port = KuryrPort {
        api_version: "openstack.org/v1".to_owned(),
        kind: "KuryrPort".to_owned(),
        spec: json!({ "podUid": pod.uid, "podNodeName": pod.node_name, "podStatic": subject.is_static() }),
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
        uid: object.clone(),
        ..OwnerReference::default()
    }]);
    port
}

#[cfg(test)]
mod tests {
    use npwg::metadata::Pod;

    use super::*;

    #[test]
    fn a_kuryrport_is_owned_by_what_the_api_has_of_a_static_pod_and_names_the_pods_own_uid() {
        let pod = Pod { name: "a".into(), uid: "its-own".into(), ..Pod::default() };
        let subject = PodSubject { pod, object: "of-the-api".into(), ..PodSubject::default() };
        let port = kuryr_port(&subject, &PodState::default());
        assert_eq!((&port.spec["podUid"], &port.spec["podStatic"]), (&json!("its-own"), &json!(true)));
        assert_eq!(port.metadata.owner_references.unwrap()[0].uid, "of-the-api");
    }
}
