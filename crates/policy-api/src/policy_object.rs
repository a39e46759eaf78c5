//! MultiNetworkPolicy as the API server has it: the policy, and the address sets that the rules refer to.
//!
//! Source: k8snetworkplumbingwg/multi-networkpolicy v1beta1 and v1beta2.

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_support::resource;
use kube_support::resources::Reduced;
use npwg::network_policy::{Direction, KIND, NetworkPolicy, VERSIONS, read};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::set_name::set_name;

/// MultiNetworkPolicy as the API returns it, of `v1beta1` if `OLD`, else of `v1beta2`.
#[derive(Clone, Debug, Deserialize)]
pub struct PolicyObject<const OLD: bool> {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: Value,
}

/// Policy of the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchedPolicy {
    /// The policy.
    pub policy: NetworkPolicy,
    /// Uid of the object.
    pub uid: String,
    /// Version in which the object was read.
    pub version: &'static str,
    /// Rules that select pods, and the names of the address sets.
    pub selections: Vec<RuleSelection>,
}

/// Rule that selects pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleSelection {
    /// Direction of the rule.
    pub direction: Direction,
    /// Index of the rule in the direction.
    pub rule: usize,
    /// Name of the PolicyAddressSet with the pod addresses, in the policy's namespace.
    pub set: String,
}

// === impl PolicyObject ===

impl<const OLD: bool> Reduced for PolicyObject<OLD>
where
    PolicyObject<OLD>: kube::Resource<DynamicType = ()>,
{
    type Form = WatchedPolicy;

    fn reduce(self) -> WatchedPolicy {
        let PolicyObject { metadata, spec } = self;
        let version = if OLD { VERSIONS[0] } else { VERSIONS[1] };
        let object = json!({
            "apiVersion": version,
            "kind": KIND,
            "metadata": {
                "namespace": metadata.namespace,
                "name": metadata.name,
                "annotations": metadata.annotations,
            },
            "spec": spec,
        });
        let policy = read(&object);
        let selections = policy.selections().into_iter().map(|(direction, rule, selection)| RuleSelection {
            direction,
            rule,
            set: set_name(&selection),
        });
        WatchedPolicy {
            uid: metadata.uid.unwrap_or_default(),
            version,
            selections: selections.collect(),
            policy,
        }
    }
}

resource!(
    PolicyObject<true>,
    NamespaceResourceScope,
    "MultiNetworkPolicy",
    "multi-networkpolicies",
    "k8s.cni.cncf.io",
    "v1beta1"
);
resource!(
    PolicyObject<false>,
    NamespaceResourceScope,
    "MultiNetworkPolicy",
    "multi-networkpolicies",
    "k8s.cni.cncf.io",
    "v1beta2"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_policy_of_the_api_has_its_version_and_uid() {
        let object = json!({
            "apiVersion": "k8s.cni.cncf.io/v1beta2", "kind": KIND,
            "metadata": { "namespace": "x", "name": "p", "uid": "u", "generation": 7, "managedFields": [{}],
                "annotations": { "k8s.v1.cni.cncf.io/policy-for": "net", "other": "" } },
            "spec": { "podSelector": {}, "ingress": [{ "ports": [{ "port": 1, "endPort": 2 }] }] },
            "status": { "conditions": [] },
        });
        let new = serde_json::from_value::<PolicyObject<false>>(object.clone()).unwrap().reduce();
        assert_eq!((new.policy.faults.as_slice(), new.policy.ingress.rules.len()), (&[][..], 1));
        assert_eq!((new.uid.as_str(), new.version), ("u", VERSIONS[1]));
        let old = serde_json::from_value::<PolicyObject<true>>(object).unwrap().reduce();
        assert_eq!(old.policy, new.policy, "both versions have the same fields");
        for malformed in [json!({ "metadata": {} }), json!({ "metadata": {}, "spec": [] })] {
            let read = serde_json::from_value::<PolicyObject<false>>(malformed).unwrap().reduce();
            assert!(!read.policy.faults.is_empty() && read.policy.ingress.isolates);
        }
    }
}
