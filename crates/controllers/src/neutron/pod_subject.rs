//! A pod as the controller looks at it, and the resources it writes.

use std::net::IpAddr;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use npwg::metadata::Pod;
use serde::Deserialize;
use serde_json::Value;

use kube_support::resource;
use kube_support::resources::{PodObject, Reduced};

/// Kuryr's finalizer of a pod, from Victoria on: it goes once the pod's ports are released.
pub(crate) const POD_FINALIZER: &str = "kuryr.openstack.org/pod-finalizer";
/// The same of a KuryrPort.
pub(crate) const PORT_FINALIZER: &str = "kuryr.openstack.org/kuryrport-finalizer";

/// A pod with what its node says of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct PodSubject {
    /// The pod.
    pub(crate) pod: Pod,
    /// The uid by which the API knows it: of a static pod that is not its own.
    pub(crate) object: String,
    /// Has it ended, and needs no network any more?
    pub(crate) ended: bool,
    /// Has it not begun yet?
    pub(crate) pending: bool,
    /// Its node's address.
    pub(crate) host: Option<IpAddr>,
    /// Does it wait for whoever made its ports before it may go?
    pub(crate) held: bool,
}

/// A pod as it comes from the API.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct SubjectObject {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: Value,
    #[serde(default)]
    status: Status,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Status {
    phase: String,
    #[serde(rename = "hostIP")]
    host_ip: String,
}

impl Reduced for SubjectObject {
    type Form = PodSubject;

    fn reduce(self) -> PodSubject {
        let SubjectObject { metadata, spec, status: Status { phase, host_ip } } = self;
        let own = metadata.uid.clone().unwrap_or_default();
        let held = metadata.finalizers.iter().flatten().any(|one| one == POD_FINALIZER);
        // Its kubelet is done with it, or nobody waits for that one.
        let over = metadata.deletion_timestamp.is_some() && metadata.deletion_grace_period_seconds == Some(0);
        // The same reader as the agent's: one that fails leaves a pod that wants nothing.
        let object = serde_json::json!({ "metadata": metadata, "spec": spec });
        let pod = serde_json::from_value::<PodObject>(object).map(Reduced::reduce).unwrap_or_default();
        PodSubject {
            pod,
            object: own,
            ended: over || matches!(phase.as_str(), "Succeeded" | "Failed"),
            pending: matches!(phase.as_str(), "" | "Pending"),
            host: host_ip.parse().ok(),
            held,
        }
    }
}

impl PodSubject {
    /// Is it a static pod, which its kubelet has from a file?
    pub(crate) fn is_static(&self) -> bool {
        self.object != self.pod.uid
    }
}

resource!(SubjectObject, NamespaceResourceScope, "Pod", "pods", "");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_static_pod_has_its_own_uid_and_the_one_of_what_the_api_has_of_it() {
        let reduce = |annotations: Value| {
            let object = serde_json::json!({ "metadata": { "name": "a", "uid": "of-the-api", "annotations": annotations }, "spec": {} });
            serde_json::from_value::<SubjectObject>(object).unwrap().reduce()
        };
        let mirrored = reduce(serde_json::json!({ "kubernetes.io/config.mirror": "its-own" }));
        assert_eq!((mirrored.pod.uid.as_str(), mirrored.object.as_str()), ("its-own", "of-the-api"));
        assert!(mirrored.is_static() && !reduce(Value::Null).is_static());
    }

    #[test]
    fn a_pod_that_is_deleted_has_ended_once_nobody_waits_for_its_containers() {
        let reduce = |grace: u32| {
            let object = serde_json::json!({ "spec": {}, "status": { "phase": "Running" }, "metadata": { "name": "a", "uid": "u",
                "finalizers": ["other", POD_FINALIZER], "deletionTimestamp": "2024-01-01T00:00:00Z",
                "deletionGracePeriodSeconds": grace } });
            serde_json::from_value::<SubjectObject>(object).unwrap().reduce()
        };
        assert!(reduce(30).held && !reduce(30).ended && reduce(0).ended);
    }
}
