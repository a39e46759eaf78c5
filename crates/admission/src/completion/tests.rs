//! Tests for completing pods.

use super::*;
use npwg::metadata::{RESOURCE_NAME, SpecConfig};
use serde_json::json;

/// Returns the definitions `n/vf` and `n/vf2` of one resource, `n/gpu` of another, and `n/plain`.
fn definitions() -> BTreeMap<NetworkReference, Definition> {
    let define = |name: &str, annotations: &[(&str, &str)]| {
        let annotations =
            annotations.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let definition =
            Definition { namespace: "n".into(), name: name.into(), annotations, config: SpecConfig::Absent };
        (definition.reference(), definition)
    };
    BTreeMap::from([
        define("vf", &[(RESOURCE_NAME, "e.x/vf"), (NODE_SELECTOR, "fabric=a, zone=1")]),
        define("vf2", &[(RESOURCE_NAME, "e.x/vf"), (NODE_SELECTOR, "zone=1")]),
        define("far", &[(NODE_SELECTOR, "zone=2")]),
        define("plain", &[]),
    ])
}

/// Returns the completed pod and the warnings.
fn completed(object: &Value, namespace: Option<&NamespaceFacts>) -> (Value, Vec<String>) {
    let pod = crate::pod_form::pods(object, "n").remove(0);
    let completion = Completion::of(object, &pod, namespace, &definitions());
    let (warnings, mut changed) = (completion.warnings.clone(), object.clone());
    if let Some(patch) = completion.patch() {
        json_patch::patch(&mut changed, &patch).unwrap();
    }
    (changed, warnings)
}

fn pod(networks: &str, spec: &Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "p", "annotations": { "k8s.v1.cni.cncf.io/networks": networks } }, "spec": spec })
}

#[test]
fn resources_of_several_networks_are_added_up_once() {
    let object = pod("vf,vf2,plain,absent", &json!({ "containers": [{ "name": "a" }, { "name": "b" }] }));
    let (once, warnings) = completed(&object, None);
    let expected = json!({ "requests": { "e.x/vf": "2" }, "limits": { "e.x/vf": "2" } });
    assert_eq!((&once["spec"]["containers"][0]["resources"], warnings.len()), (&expected, 0));
    assert_eq!(once["spec"]["containers"][1].get("resources"), None);
    for container in [0, 1] {
        assert_eq!(once["spec"]["containers"][container]["volumeMounts"][0]["mountPath"], INFO_PATH);
    }
    assert_eq!(once["spec"]["volumes"].as_array().unwrap().len(), 1);
    assert_eq!(once["spec"]["nodeSelector"], json!({ "fabric": "a", "zone": "1" }));
    assert_eq!(completed(&once, None).0, once, "twice is once");
}

#[test]
fn resources_that_the_pod_requests_are_honoured() {
    let resources =
        |count: &str| json!({ "limits": { "e.x/vf": count, "cpu": "1" }, "requests": { "e.x/vf": count } });
    let object = |count: &str, networks: &str| {
        pod(
            networks,
            &json!({ "containers": [{ "name": "a" }, { "name": "b", "resources": resources(count) }] }),
        )
    };
    // Another container requests the device.
    let written = object("1", "vf");
    assert_eq!(completed(&written, None).0["spec"]["containers"], written["spec"]["containers"]);
    // One of two is missing, and goes to the first container.
    let (changed, _) = completed(&object("1", "vf,vf2"), None);
    assert_eq!(changed["spec"]["containers"][0]["resources"]["limits"]["e.x/vf"], "1");
    // The first container has one of its own, and other resources.
    let first = pod("vf,vf2", &json!({ "containers": [{ "name": "a", "resources": resources("1") }] }));
    let (changed, _) = completed(&first, None);
    let expected = json!({ "limits": { "e.x/vf": "2", "cpu": "1" }, "requests": { "e.x/vf": "2" } });
    assert_eq!(changed["spec"]["containers"][0]["resources"], expected);
}

#[test]
fn resources_are_not_added_beside_claims_or_if_refused() {
    let claims = json!({ "containers": [{ "name": "a" }], "resourceClaims": [{ "name": "c" }] });
    let mut object = pod("vf", &claims);
    assert_eq!(completed(&object, None).0["spec"]["containers"], object["spec"]["containers"]);
    object["metadata"]["annotations"][INJECT] = json!("true");
    assert_eq!(completed(&object, None).0["spec"]["containers"][0]["resources"]["limits"]["e.x/vf"], "1");
    let mut object = pod("vf", &json!({ "containers": [{ "name": "a" }] }));
    object["metadata"]["annotations"][INJECT] = json!("false");
    assert_eq!(completed(&object, None).0["spec"]["containers"], object["spec"]["containers"]);
}

#[test]
fn node_selector_of_the_pod_is_never_replaced() {
    let object = pod("plain,far,vf2", &json!({ "containers": [], "nodeSelector": { "disk": "ssd" } }));
    let (changed, warnings) = completed(&object, None);
    assert_eq!(changed["spec"]["nodeSelector"], json!({ "disk": "ssd", "zone": "2" }));
    assert_eq!(warnings, ["network n/vf2 needs nodes with zone=1, and the pod selects zone=2"]);
    let object = pod("far", &json!({ "containers": [], "nodeSelector": { "zone": "9" } }));
    let (changed, warnings) = completed(&object, None);
    assert_eq!((changed, warnings.len()), (object, 1));
}

#[test]
fn default_network_of_the_namespace_applies_without_own() {
    let facts = NamespaceFacts { labels: BTreeMap::new(), default_network: Some("kube-system/blue".into()) };
    let key = Annotation::DefaultNetwork.key();
    let bare = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "p" }, "spec": { "containers": [] } });
    assert_eq!(completed(&bare, Some(&facts)).0["metadata"]["annotations"][key], "kube-system/blue");
    let mut own = pod("", &json!({ "containers": [] }));
    own["metadata"]["annotations"][key] = json!("red");
    assert_eq!(completed(&own, Some(&facts)).0["metadata"]["annotations"][key], "red");
    let host = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "p" }, "spec": { "hostNetwork": true } });
    assert_eq!(completed(&host, Some(&facts)).0, host);
}
