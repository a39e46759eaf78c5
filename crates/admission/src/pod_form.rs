//! Pod or pod template inside an object of the API.

use manifest::Manifest;
use npwg::metadata::Pod;
use serde_json::Value;

/// Returns the pods of an object: the pod itself, or the pod template of a workload. The namespace comes from the
/// request, because a new object may name none.
pub(crate) fn pods(object: &Value, namespace: &str) -> Vec<Pod> {
    let manifest = Manifest::parse(&object.to_string());
    let found = manifest.pods.into_iter().map(|located| located.value.pod);
    found.map(|pod| Pod { namespace: namespace.to_owned(), ..pod }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn pod_of_a_workload_has_the_namespace_of_the_request() {
        let annotations = json!({ "k8s.v1.cni.cncf.io/networks": "a" });
        let job = json!({ "apiVersion": "batch/v1", "kind": "CronJob", "metadata": { "name": "j" }, "spec": {
            "jobTemplate": { "spec": { "template": { "metadata": { "annotations": annotations } } } } } });
        let found = pods(&job, "n");
        assert_eq!((found[0].namespace.as_str(), found[0].annotations.len()), ("n", 1));
        let other = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "c" } });
        assert!(pods(&other, "n").is_empty());
    }
}
