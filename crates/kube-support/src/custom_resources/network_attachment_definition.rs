//! NetworkAttachmentDefinition: a network that pods select, from the multi-network specification.
//!
//! The short names are the specification's `net-attach-def` and `nad`, which Multus adds, so nothing is
//! removed when this definition is applied over Multus's.
//!
//! Source: multi-network specification 1.3, section 3.1; `deployments/multus-daemonset.yml` in Multus 4.3.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// CNI configuration of the network. If absent, the configuration with the object's name in the node's CNI directory is used.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "k8s.cni.cncf.io",
    version = "v1",
    kind = "NetworkAttachmentDefinition",
    plural = "network-attachment-definitions",
    singular = "network-attachment-definition",
    namespaced,
    shortname = "net-attach-def",
    shortname = "nad",
    doc = "Network that pods can be attached to in addition to the cluster's default network. A pod selects it in the \
           annotation k8s.v1.cni.cncf.io/networks."
)]
#[serde(default)]
pub struct NetworkAttachmentDefinitionSpec {
    /// CNI configuration, or list of configurations, as a JSON string.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<String>,
}
