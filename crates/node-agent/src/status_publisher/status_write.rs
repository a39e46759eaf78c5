//! Write of the network-status annotation to one pod.
//!
//! Source: Kubernetes API, merge patch (RFC 7386).

use std::time::Duration;

use kube::api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource, ResourceExt};
use npwg::plan::PodIdentity;
use npwg::status::NETWORK_STATUS;
use tracing::debug;

use kube_support::api_error;
use kube_support::api_error::is_about_uid;
use kube_support::resources::{MIRROR, PodObject, Reduced};

/// Number of attempts to replace a pod that other clients change concurrently.
const REPLACES: usize = 5;
/// Deadline of a write.
const WRITE_MAX: Duration = Duration::from_secs(10);

/// Outcome of a write.
#[derive(Debug)]
pub(super) enum Written {
    Yes(String),
    /// The pod was deleted, or the pod of that name is another one.
    Obsolete,
    Failed(String),
}

/// Outcome of one API request.
#[derive(Debug)]
enum Patched {
    Yes,
    Gone,
    /// The pod of that name has another uid.
    Another,
    Forbidden,
    Failed(String),
}

/// Writes the status to the pod with this uid.
///
/// The API's object of a static pod has another uid than the pod itself; that uid is read once the API rejects ours.
pub(super) async fn write(client: Client, pod: &PodIdentity, text: String) -> Written {
    let PodIdentity { namespace, name, uid } = pod;
    let pods: Api<PodObject> = Api::namespaced(client.clone(), namespace);
    let written = async {
        let outcome = match patch(&pods, name, uid, &text).await {
            Patched::Forbidden => replace(client, pod, &text).await,
            Patched::Another => match pods.get(name).await {
                Ok(there) => {
                    let own = there.meta().uid.clone().unwrap_or_default();
                    match there.reduce().uid == *uid && own != *uid {
                        true => patch(&pods, name, &own, &text).await,
                        false => Patched::Another,
                    }
                }
                Err(error) => Patched::Failed(api_error::describe(&error)),
            },
            patched => patched,
        };
        match outcome {
            Patched::Yes => Written::Yes(text),
            Patched::Gone | Patched::Another => Written::Obsolete,
            Patched::Forbidden => {
                Written::Failed("no permission to patch or to replace the pod's status".to_owned())
            }
            Patched::Failed(why) => Written::Failed(why),
        }
    };
    let late = || Written::Failed(format!("the API server did not answer within {} s", WRITE_MAX.as_secs()));
    tokio::time::timeout(WRITE_MAX, written).await.unwrap_or_else(|_| late())
}

/// Patches the status annotation.
///
/// `kubectl -n NAMESPACE patch pod NAME --subresource status --type merge -p '{"metadata":{"uid":…,"annotations":{…}}}'`
async fn patch(pods: &Api<PodObject>, name: &str, uid: &str, text: &str) -> Patched {
    let patch = serde_json::json!({ "metadata": { "uid": uid, "annotations": { NETWORK_STATUS: text } } });
    match pods.patch_status(name, &PatchParams::default(), &Patch::Merge(patch)).await {
        Ok(_) => Patched::Yes,
        Err(kube::Error::Api(status)) if status.code == 404 => Patched::Gone,
        Err(kube::Error::Api(status)) if status.code == 403 => Patched::Forbidden,
        Err(kube::Error::Api(status)) if is_about_uid(&status) => {
            debug!(name, message = status.message, "the pod of this name has another uid");
            Patched::Another
        }
        Err(error) => Patched::Failed(api_error::describe(&error)),
    }
}

/// Replaces the pod's status, with all other fields unchanged: `kubectl -n NAMESPACE replace --subresource status`.
///
/// It is for installations that keep the permissions of Multus, which are to read and to replace pods.
async fn replace(client: Client, pod: &PodIdentity, text: &str) -> Patched {
    let PodIdentity { namespace, name, uid } = pod;
    let kind = ApiResource::erase::<PodObject>(&());
    let pods: Api<DynamicObject> = Api::namespaced_with(client, namespace, &kind);
    let mut last = String::new();
    for _ in 0..REPLACES {
        let mut there = match pods.get(name).await {
            Ok(there) => there,
            Err(kube::Error::Api(status)) if status.code == 404 => return Patched::Gone,
            Err(error) => return Patched::Failed(api_error::describe(&error)),
        };
        let mirrored = there.annotations().get(MIRROR);
        if there.metadata.uid.as_ref() != Some(uid) && mirrored != Some(uid) {
            return Patched::Another;
        }
        there.annotations_mut().insert(NETWORK_STATUS.to_owned(), text.to_owned());
        match pods.replace_status(name, &PostParams::default(), &there).await {
            Ok(_) => return Patched::Yes,
            Err(kube::Error::Api(status)) if status.code == 403 => return Patched::Forbidden,
            // Another client has changed the pod meanwhile.
            Err(kube::Error::Api(status)) if status.code == 409 => last = status.message,
            Err(error) => return Patched::Failed(api_error::describe(&error)),
        }
    }
    Patched::Failed(last)
}
