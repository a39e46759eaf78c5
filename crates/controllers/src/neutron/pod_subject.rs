//! Pods, reduced to the fields that the Neutron controller uses.

use std::net::IpAddr;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use npwg::metadata::Pod;
use serde::Deserialize;
use serde_json::Value;

use kube_support::resource;
use kube_support::resources::{PodObject, Reduced};

/// Kuryr's finalizer on a pod, since the release Victoria. It is removed when the pod's ports are released.
pub(crate) const POD_FINALIZER: &str = "kuryr.openstack.org/pod-finalizer";
/// Kuryr's finalizer on a KuryrPort.
pub(crate) const PORT_FINALIZER: &str = "kuryr.openstack.org/kuryrport-finalizer";

/// Pod, reduced to what the Neutron controller needs.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct PodSubject {
    /// The pod, as planning sees it.
    pub(crate) pod: Pod,
    /// Uid that the API object has; for a static pod it differs from the pod's own uid.
    pub(crate) object: String,
    /// Whether the pod has ended and needs no network any more.
    pub(crate) ended: bool,
    /// Whether the pod has not started yet.
    pub(crate) pending: bool,
    /// Address that the pod's node has.
    pub(crate) host: Option<IpAddr>,
    /// Whether Kuryr's finalizer keeps the pod until the ports are released.
    pub(crate) has_finalizer: bool,
}

/// Pod as the API returns it.
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
        let has_finalizer = metadata.finalizers.iter().flatten().any(|one| one == POD_FINALIZER);
        // The kubelet has stopped the containers, or the pod was deleted without a grace period.
        let over = metadata.deletion_timestamp.is_some() && metadata.deletion_grace_period_seconds == Some(0);
        // The agent reads pods with the same type. An unreadable pod requests nothing.
        let object = serde_json::json!({ "metadata": metadata, "spec": spec });
        let pod = serde_json::from_value::<PodObject>(object).map(Reduced::reduce).unwrap_or_default();
        PodSubject {
            pod,
            object: own,
            ended: over || matches!(phase.as_str(), "Succeeded" | "Failed"),
            pending: matches!(phase.as_str(), "" | "Pending"),
            host: host_ip.parse().ok(),
            has_finalizer,
        }
    }
}

impl PodSubject {
    /// Whether the pod is a static pod.
    pub(crate) fn is_static(&self) -> bool {
        self.object != self.pod.uid
    }
}

resource!(SubjectObject, NamespaceResourceScope, "Pod", "pods", "");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn static_pod_has_its_own_uid_and_that_of_its_api_object() {
        let reduce = |annotations: Value| {
            let object = serde_json::json!({ "metadata": { "name": "a", "uid": "of-the-api", "annotations": annotations }, "spec": {} });
            serde_json::from_value::<SubjectObject>(object).unwrap().reduce()
        };
        let mirrored = reduce(serde_json::json!({ "kubernetes.io/config.mirror": "its-own" }));
        assert_eq!((mirrored.pod.uid.as_str(), mirrored.object.as_str()), ("its-own", "of-the-api"));
        assert!(mirrored.is_static() && !reduce(Value::Null).is_static());
    }

    #[test]
    fn deleted_pod_has_ended_when_its_grace_period_is_zero() {
        let reduce = |grace: u32| {
            let object = serde_json::json!({ "spec": {}, "status": { "phase": "Running" }, "metadata": { "name": "a", "uid": "u",
                "finalizers": ["other", POD_FINALIZER], "deletionTimestamp": "2024-01-01T00:00:00Z",
                "deletionGracePeriodSeconds": grace } });
            serde_json::from_value::<SubjectObject>(object).unwrap().reduce()
        };
        assert!(reduce(30).has_finalizer && !reduce(30).ended && reduce(0).ended);
    }
}
