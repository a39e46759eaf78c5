//! KuryrPort: a pod's Neutron ports, as Kuryr-Kubernetes has them since Victoria. Served for `weft controller
//! --neutron --vif-store kuryrport`.
//!
//! Source: Kuryr-Kubernetes, `kubernetes_crds/kuryr_crds/kuryrport.yaml`.

use kube::CustomResource;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Pod of the ports.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "openstack.org",
    version = "v1",
    kind = "KuryrPort",
    plural = "kuryrports",
    namespaced,
    shortname = "kp",
    status = "KuryrPortStatus",
    doc = "OpenStack Neutron ports of the pod of the same name.",
    printcolumn(name = "PodUID", type_ = "string", json_path = ".spec.podUid", description = "Pod UID"),
    printcolumn(
        name = "Nodename",
        type_ = "string",
        json_path = ".spec.podNodeName",
        description = "Name of the node corresponding pod lives in"
    )
)]
#[schemars(extend("required" = ["podUid", "podNodeName"]))]
#[serde(default, rename_all = "camelCase")]
pub struct KuryrPortSpec {
    /// Uid of the pod.
    pub pod_uid: String,
    /// Node of the pod.
    pub pod_node_name: String,
    /// Whether the pod is a static pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_static: Option<bool>,
}

/// Ports of the pod.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[schemars(extend("required" = ["vifs"]))]
#[serde(default)]
pub struct KuryrPortStatus {
    /// Ports, by the name of the pod's interface.
    #[schemars(schema_with = "any_object")]
    pub vifs: Map<String, Value>,
}

fn any_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
}
