//! Objects of the cluster, reduced to the rows that the page shows.
//!
//! - Objects are read leniently: a malformed object must not hide the rest of the list.
//! - The number of networks, addresses and plugins in a row is bounded.
//!
//! Source: Pod v1, Event v1; multi-network specification (NPWG), sections 3.1, 4 and 5.

mod definition;
mod pod;

pub(super) use definition::DefinitionObject;
pub(super) use pod::PodObject;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_support::custom_resources::{
    FailedCall, IPBlock, IPBlockSpec, IPPool, IPPoolSpec, IPPoolStatus, MultiNetworkPolicy, WeftNode,
    WeftNodeStatus,
};
use kube_support::event_effect::{EventEffect, event_effect};
use kube_support::resource;
use kube_support::resources::Reduced;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use super::rows::{Row, message, name};

/// Annotation of a policy with the networks it applies to.
const POLICY_FOR: &str = "k8s.v1.cni.cncf.io/policy-for";
/// Maximum number of pools for a node.
const POOLS_MAX: usize = 64;

/// Event as the core API returns it.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct EventObject {
    metadata: ObjectMeta,
    #[serde(default, deserialize_with = "lenient")]
    involved_object: Regarded,
    #[serde(default, deserialize_with = "lenient")]
    reason: String,
    #[serde(default, deserialize_with = "lenient")]
    action: String,
    #[serde(default, deserialize_with = "lenient")]
    message: String,
    #[serde(default, rename = "type", deserialize_with = "lenient")]
    kind: String,
    #[serde(default, deserialize_with = "lenient")]
    event_time: String,
    #[serde(default, deserialize_with = "lenient")]
    last_timestamp: String,
    #[serde(default, deserialize_with = "lenient")]
    series: EventSeries,
    #[serde(default, deserialize_with = "lenient")]
    reporting_instance: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Regarded {
    kind: String,
    name: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct EventSeries {
    count: u64,
    last_observed_time: String,
}

/// IPPool as the API returns it.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct PoolObject {
    metadata: ObjectMeta,
    #[serde(default, deserialize_with = "lenient")]
    spec: IPPoolSpec,
    #[serde(default, deserialize_with = "lenient")]
    status: IPPoolStatus,
}

/// IPBlock as the API returns it.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct BlockObject {
    metadata: ObjectMeta,
    #[serde(default, deserialize_with = "lenient")]
    spec: IPBlockSpec,
}

/// WeftNode as the API returns it.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct NodeObject {
    metadata: ObjectMeta,
    #[serde(default, deserialize_with = "lenient")]
    status: WeftNodeStatus,
}

/// MultiNetworkPolicy as the API returns it.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct PolicyObject {
    metadata: ObjectMeta,
    #[serde(default, deserialize_with = "lenient")]
    spec: Value,
}

/// Reads a field; a malformed one counts as absent.
fn lenient<'de, T, D>(from: D) -> Result<T, D::Error>
where
    T: Default + for<'any> Deserialize<'any>,
    D: Deserializer<'de>,
{
    Ok(serde_json::from_value(Value::deserialize(from)?).unwrap_or_default())
}

/// Returns namespace and name of an object; the namespace is empty for cluster-scoped objects.
fn identity(metadata: &ObjectMeta) -> (&str, &str) {
    (metadata.namespace.as_deref().unwrap_or_default(), metadata.name.as_deref().unwrap_or_default())
}

impl Reduced for EventObject {
    type Form = Row;

    fn reduce(self) -> Row {
        let EventObject { metadata, involved_object, reason, action, message: note, kind, .. } = &self;
        let (namespace, event) = identity(metadata);
        let times = [&self.series.last_observed_time, &self.event_time, &self.last_timestamp];
        let time = times.into_iter().find(|time| !time.is_empty());
        Row::of(&json!({
            "k": [namespace, event],
            "kind": name(&involved_object.kind),
            "of": name(&involved_object.name),
            "bad": kind == "Warning",
            "effect": event_effect(reason).map(EventEffect::as_str),
            "reason": name(reason),
            "action": name(action),
            "note": message(note),
            "at": time.map(|time| name(time)),
            "count": self.series.count.max(1),
            "node": name(&self.reporting_instance),
        }))
    }
}

impl Reduced for PoolObject {
    type Form = Row;

    fn reduce(self) -> Row {
        let (PoolObject { spec, status, .. }, (_, pool)) = (&self, identity(&self.metadata));
        let counted = !status.addresses.is_empty();
        Row::of(&json!({
            "k": ["", pool],
            "range": name(&spec.range),
            "space": name(&spec.network_name),
            "excluded": spec.exclude.len(),
            // Nobody counts without the IPAM controller: not known is not 0.
            "addresses": counted.then(|| name(&status.addresses)),
            "blocks": name(&status.blocks),
            "leased": counted.then_some(status.leased_blocks),
            "single": counted.then_some(status.single_addresses),
            "nodes": counted.then_some(status.nodes),
            "used": counted.then_some(status.used_addresses),
            "percent": counted.then_some(status.leased_percent),
        }))
    }
}

impl Reduced for BlockObject {
    type Form = Row;

    fn reduce(self) -> Row {
        let (BlockObject { spec, .. }, (_, block)) = (&self, identity(&self.metadata));
        Row::of(&json!({
            "k": ["", block],
            "pool": name(&spec.pool),
            "range": name(&spec.range),
            "node": name(&spec.node),
            "claim": name(&spec.claim),
        }))
    }
}

impl Reduced for NodeObject {
    type Form = Row;

    fn reduce(self) -> Row {
        let (_, node) = identity(&self.metadata);
        let WeftNodeStatus { reported_at, version, commit, plugin, default_network, sandboxes, .. } =
            &self.status;
        let pools = self.status.pools.iter().take(POOLS_MAX);
        let pools: Vec<Value> = pools.map(|pool| json!([name(&pool.name), pool.held, pool.free])).collect();
        let mut row = json!({
            "k": ["", node],
            "at": name(reported_at),
            "version": name(version),
            "commit": name(commit),
            "plugin": format!("{plugin:?}"),
            "default": name(default_network),
            "sandboxes": sandboxes,
            "incomplete": self.status.incomplete_sandboxes,
            "failed": self.status.failed_calls,
            "pools": pools,
        });
        let mut shown = Row::of(&row);
        // The failure describes a pod, perhaps of a namespace that the viewer may not see.
        if let Some(FailedCall { time, verb, pod, message: why }) = &self.status.last_failure
            && let Some((namespace, _)) = pod.split_once('/')
        {
            row["last"] = json!([name(time), name(verb), name(pod), message(why)]);
            shown.with_pod = Some((namespace.to_owned(), row.to_string().into()));
        }
        shown
    }
}

impl Reduced for PolicyObject {
    type Form = Row;

    fn reduce(self) -> Row {
        let (namespace, policy) = identity(&self.metadata);
        let networks = self.metadata.annotations.as_ref().and_then(|all| all.get(POLICY_FOR));
        let rules = |key: &str| self.spec.get(key).and_then(Value::as_array).map(Vec::len);
        Row::of(&json!({
            "k": [namespace, policy],
            "for": networks.map(|text| message(text)).unwrap_or_default(),
            "pods": message(&self.spec["podSelector"].to_string()),
            "ingress": rules("ingress"),
            "egress": rules("egress"),
        }))
    }
}

resource!(EventObject, NamespaceResourceScope, "Event", "events", "");
resource!(PoolObject as IPPool);
resource!(BlockObject as IPBlock);
resource!(NodeObject as WeftNode);
resource!(PolicyObject as MultiNetworkPolicy);

#[cfg(test)]
mod tests;
