//! Writer for a pod's VIFs: to Kuryr's annotation on the pod, or to a KuryrPort.
//!
//! - Each write contains the pod's uid, so that it never changes another pod with the same name.
//! - If an earlier pod with the same name has left a KuryrPort, it is deleted, and one for this pod is
//!   created.
//! - Kuryr's finalizers are removed only after the ports are released, and no other finalizer is removed.
//! - A pod is changed through the subresource `status`, which accepts annotations and finalizers, but no change to
//!   `spec`. So the controller's token cannot change images.
//!
//! Source: Kuryr-Kubernetes `controller/handlers/vif.py` (train), `kuryrport.py` (2023.1), the CRD
//! `kuryrports`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Client, Resource};
use neutron::pod_state::PodState;
use serde_json::{Value, json};
use thiserror::Error;

use crate::neutron::pod_subject::{POD_FINALIZER, PORT_FINALIZER, PodSubject, SubjectObject};
use kube_support::api_error;
use kube_support::api_error::is_about_uid;
use kube_support::kuryr::{ANNOTATION, KuryrPort, RequestError, VifLocation};

/// Label on a KuryrPort with the pod's node.
const NODE_LABEL: &str = "kuryr.openstack.org/nodeName";

/// Why a pod or the KuryrPort was not written.
#[derive(Debug, Error)]
pub(crate) enum WriteError {
    /// The request for the pod failed.
    #[error("get pod: {}", api_error::describe(.0))]
    GetPod(kube::Error),
    /// The pod's annotation was not written.
    #[error("{}", api_error::describe(.0))]
    Annotate(kube::Error),
    /// The request for the KuryrPort failed.
    #[error("{0}")]
    Request(#[from] RequestError),
    /// The change is not a valid JSON patch.
    #[error("{0}")]
    Patch(#[from] serde_json::Error),
    /// A finalizer was not removed.
    #[error("{kind}: {finalizer}: {}", api_error::describe(.error))]
    RemoveFinalizer {
        /// Object kind.
        kind: String,
        /// Finalizer name.
        finalizer: String,
        /// Error that the API server or the client reported.
        error: kube::Error,
    },
}

/// Reason why nothing was written.
#[derive(Debug)]
pub(crate) enum Unwritten {
    /// The pod was deleted or recreated. No other cause has this variant.
    Gone,
    /// The API server rejects the write, or does not have the resource.
    Failed(WriteError),
}

/// Writes a pod's VIFs.
pub(crate) async fn write(
    location: VifLocation,
    client: &Client,
    subject: &PodSubject,
    state: &PodState,
) -> Result<(), Unwritten> {
    match location {
        VifLocation::Annotation => annotate(client, subject, state).await,
        VifLocation::Kuryrport => put_port(client, subject, state).await.map_err(Unwritten::Failed),
    }
}

async fn annotate(client: &Client, subject: &PodSubject, state: &PodState) -> Result<(), Unwritten> {
    let PodSubject { pod, object, .. } = subject;
    let pods: Api<SubjectObject> = Api::namespaced(client.clone(), &pod.namespace);
    // The uid is a precondition: for another uid the API server answers 409.
    let patch =
        json!({ "metadata": { "uid": object, "annotations": { ANNOTATION: state.to_annotation() } } });
    match pods.patch_status(&pod.name, &PatchParams::default(), &Patch::Merge(&patch)).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 || is_about_uid(&status) => Err(Unwritten::Gone),
        Err(error) => Err(Unwritten::Failed(WriteError::Annotate(error))),
    }
}

/// Creates or changes a pod's KuryrPort. A missing resource does not mean that the pod is deleted.
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
        // The KuryrPort of an earlier pod of that name, which the garbage collector would delete later.
        let exactly = Preconditions { uid: port.metadata.uid.clone(), resource_version: None };
        let condition = DeleteParams { preconditions: Some(exactly), ..DeleteParams::default() };
        let deleted = ports.delete(&pod.name, &condition).await;
        deleted.map_err(|error| RequestError::new("delete another pod's", pod, error))?;
    }
    let created = ports.create(&PostParams::default(), &kuryr_port(subject, state)).await;
    created.map(drop).map_err(|error| RequestError::new("create", pod, error).into())
}

/// Removes Kuryr's finalizers from a pod and the KuryrPort when all ports are released.
///
/// # Errors
/// The API server rejects a write, or does not answer.
pub(crate) async fn remove_finalizers(
    location: VifLocation,
    client: &Client,
    subject: &PodSubject,
) -> Result<(), WriteError> {
    let pod = &subject.pod;
    if location == VifLocation::Kuryrport {
        let ports: Api<KuryrPort> = Api::namespaced(client.clone(), &pod.namespace);
        let known = ports.get_opt(&pod.name).await.map_err(|error| RequestError::new("get", pod, error))?;
        let own = known.filter(|port| port.spec["podUid"] == pod.uid);
        let removal = own.map(|port| removal(&port.metadata, PORT_FINALIZER)).transpose()?.flatten();
        if let Some(patch) = removal {
            let patched = ports.patch_metadata(&pod.name, &PatchParams::default(), &patch).await;
            removed::<KuryrPort>(PORT_FINALIZER, patched.map(drop))?;
        }
    }
    if !subject.has_finalizer {
        return Ok(());
    }
    let pods: Api<SubjectObject> = Api::namespaced(client.clone(), &pod.namespace);
    let there = pods.get_metadata_opt(&pod.name).await.map_err(WriteError::GetPod)?;
    let own = there.filter(|there| there.metadata.uid.as_ref() == Some(&subject.object));
    match own.map(|there| removal(&there.metadata, POD_FINALIZER)).transpose()?.flatten() {
        Some(patch) => {
            let patched = pods.patch_status(&pod.name, &PatchParams::default(), &patch).await;
            removed::<SubjectObject>(POD_FINALIZER, patched.map(drop))
        }
        None => Ok(()),
    }
}

/// Returns the patch that removes one finalizer from an object; `None` if the object has no such finalizer.
/// `kubectl patch --type=json -p '[{"op":"remove","path":"/metadata/finalizers/N"}]'`
fn removal(of: &ObjectMeta, finalizer: &str) -> Result<Option<Patch<()>>, serde_json::Error> {
    let Some(index) = of.finalizers.iter().flatten().position(|one| one == finalizer) else {
        return Ok(None);
    };
    let path = format!("/metadata/finalizers/{index}");
    // The index changes if another finalizer is removed meanwhile.
    let change = json!([
        { "op": "test", "path": "/metadata/uid", "value": of.uid },
        { "op": "test", "path": &path, "value": finalizer },
        { "op": "remove", "path": &path },
    ]);
    Ok(Some(Patch::Json(serde_json::from_value(change)?)))
}

/// Names the object in an error about a removal. An object that no longer exists has no finalizer.
fn removed<K>(finalizer: &str, patched: Result<(), kube::Error>) -> Result<(), WriteError>
where
    K: Resource<DynamicType = ()>,
{
    match patched {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => {
            let (kind, finalizer) = (K::kind(&()).into_owned(), finalizer.to_owned());
            other.map_err(|error| WriteError::RemoveFinalizer { kind, finalizer, error })
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
    // The garbage collector deletes it with its pod.
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
    fn kuryr_port_of_a_static_pod_has_both_uids() {
        let pod = Pod { name: "a".into(), uid: "its-own".into(), ..Pod::default() };
        let subject = PodSubject { pod, object: "of-the-api".into(), ..PodSubject::default() };
        let port = kuryr_port(&subject, &PodState::default());
        assert_eq!((&port.spec["podUid"], &port.spec["podStatic"]), (&json!("its-own"), &json!(true)));
        assert_eq!(port.metadata.owner_references.unwrap()[0].uid, "of-the-api");
    }
}
