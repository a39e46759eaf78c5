//! Custom resources that weft reads and writes: types, and the definitions generated from them.
//!
//! `weft crds` prints [`definitions`]; `deploy/crds` has the same text, and a test compares the two. The structs named
//! like the kinds ([`IPPool`], [`IPBlock`], …) serve only the definitions and the names. Other, lenient types read the
//! objects, so that one malformed object does not hide the rest of the list.
//!
//! - A definition is never more permissive than the type: `default` and `nullable`, which the derive adds, are removed.
//! - Only `ippools` and `ipamclaims` have the status subresource. The IPBlock status is written together with the
//!   object, so that a decision about a block is one compare-and-swap on the resource version.
//!
//! Source: `apiextensions.k8s.io/v1`; multi-network specification 1.3, sections 3.1 and 8; Kuryr-Kubernetes `kuryrports`.

#![allow(clippy::duplicated_attributes, reason = "printer columns of one type are attributes of one name")]

mod ip_block;
mod ip_pool;
mod ipam_claim;
mod kuryr_port;
mod multi_network_policy;
mod network_attachment_definition;
mod policy_address_set;
mod weft_node;

pub use ip_block::{IPBlock, IPBlockSpec, IPBlockStatus, IPBlockTransferRequest};
pub use ip_pool::{IPPool, IPPoolSpec, IPPoolStatus, LayoutPhase, RecordedLayout};
pub use ipam_claim::{IPAMClaim, IPAMClaimSpec, IPAMClaimStatus, OwnerPod};
pub use kuryr_port::{KuryrPort, KuryrPortSpec, KuryrPortStatus};
pub use multi_network_policy::{MultiNetworkPolicy, MultiNetworkPolicySpec, PolicyProtocol};
pub use network_attachment_definition::{NetworkAttachmentDefinition, NetworkAttachmentDefinitionSpec};
pub use policy_address_set::{PeerAddresses, PolicyAddressSet, PolicyAddressSetSpec};
pub use weft_node::{FailedCall, NodePool, PluginState, WeftNode, WeftNodeSpec, WeftNodeStatus};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceDefinitionVersion, JSONSchemaProps,
};
use kube::CustomResourceExt;
use serde_json::Value;

/// Formats of numbers and strings that the API server knows; the derive also writes names of Rust's types.
const FORMATS: [&str; 3] = ["int32", "int64", "date-time"];

/// Returns the definitions of all custom resources, sorted by name.
///
/// # Errors
/// A generated schema is not one of the API's. A unit test generates all of them.
pub fn definitions() -> Result<Vec<CustomResourceDefinition>, serde_json::Error> {
    Ok(vec![
        adapt(IPAMClaim::crd(), &[], Status::Subresource)?,
        adapt(IPBlock::crd(), &["spec"], Status::WithObject)?,
        adapt(IPPool::crd(), &["spec"], Status::Subresource)?,
        adapt(KuryrPort::crd(), &["spec", "status"], Status::WithObject)?,
        adapt(NetworkAttachmentDefinition::crd(), &[], Status::WithObject)?,
        adapt(WeftNode::crd(), &[], Status::WithObject)?,
    ])
}

/// Returns the definitions of MultiNetworkPolicy and PolicyAddressSet. They are installed separately, with the components
/// that enforce policies: a policy that is accepted and not enforced would be worse than none.
///
/// # Errors
/// A generated schema is not one of the API's. A unit test generates all of them.
pub fn policy_definitions() -> Result<Vec<CustomResourceDefinition>, serde_json::Error> {
    Ok(vec![
        multi_network_policy_definition()?,
        adapt(PolicyAddressSet::crd(), &["spec"], Status::WithObject)?,
    ])
}

/// Returns the definition of MultiNetworkPolicy. Both versions have the same fields, as in multi-networkpolicy's definition.
fn multi_network_policy_definition() -> Result<CustomResourceDefinition, serde_json::Error> {
    let mut definition = adapt(MultiNetworkPolicy::crd(), &["spec"], Status::WithObject)?;
    let Some(newest) = definition.spec.versions.first() else { return Ok(definition) };
    let mut older = newest.clone();
    "v1beta1".clone_into(&mut older.name);
    older.storage = false;
    definition.spec.versions.insert(0, older);
    Ok(definition)
}

/// Way in which the status of an object is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    /// By separate requests, which change nothing else.
    Subresource,
    /// With the rest of the object, in one request.
    WithObject,
}

/// Adapts a generated definition: sets what the derive cannot express, and removes what it adds to a schema.
///
/// - The fields required at the top: the derive always requires `spec`, and never `status`.
/// - The status subresource: the derive declares it for every type that has a status.
/// - `default`: the API server would write the defaults into objects. `nullable`: `null` would be accepted.
/// - `format`: `uint8` and the like are unknown to the API server, which warns of them.
/// - `title`: the name of the Rust type. Line breaks in a description are those in the source text.
fn adapt(
    mut definition: CustomResourceDefinition,
    required: &[&str],
    status: Status,
) -> Result<CustomResourceDefinition, serde_json::Error> {
    for version in &mut definition.spec.versions {
        let CustomResourceDefinitionVersion { schema, subresources, .. } = version;
        if status == Status::WithObject {
            *subresources = None;
        }
        let Some(root) = schema.as_mut().and_then(|schema| schema.open_api_v3_schema.as_mut()) else {
            continue;
        };
        let mut tree = serde_json::to_value(&*root)?;
        tighten(&mut tree);
        *root = serde_json::from_value::<JSONSchemaProps>(tree)?;
        let required: Vec<String> = required.iter().map(|&field| field.to_owned()).collect();
        root.required = Some(required).filter(|all| !all.is_empty());
    }
    Ok(definition)
}

/// Removes from a schema, and the schemas inside it, what [`adapt`] names.
fn tighten(schema: &mut Value) {
    let Some(fields) = schema.as_object_mut() else { return };
    fields.retain(|name, value| match name.as_str() {
        "default" | "nullable" | "title" => false,
        "format" => value.as_str().is_some_and(|format| FORMATS.contains(&format)),
        _ => true,
    });
    if let Some(Value::String(description)) = fields.get_mut("description") {
        *description = description.replace('\n', " ");
    }
    // The names below `properties` are names of fields, for example of a field `default`.
    let properties = fields.get_mut("properties").and_then(Value::as_object_mut);
    properties.into_iter().flat_map(serde_json::Map::values_mut).for_each(tighten);
    for inside in ["items", "additionalProperties"] {
        fields.get_mut(inside).into_iter().for_each(tighten);
    }
}

#[cfg(test)]
mod tests;
