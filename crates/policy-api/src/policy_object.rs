//! MultiNetworkPolicy as the API server has it: the policy, and the uid and generation that address sets refer to.
//!
//! Source: k8snetworkplumbingwg/multi-networkpolicy v1beta1 and v1beta2.

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_support::resource;
use kube_support::resources::Reduced;
use npwg::network_policy::{KIND, NetworkPolicy, VERSIONS, read};
use serde::Deserialize;
use serde_json::{Value, json};

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
    /// Generation of its spec. The annotation with its networks is not part of it.
    pub generation: i64,
    /// Version in which the object was read.
    pub version: &'static str,
}

// === impl WatchedPolicy ===

impl WatchedPolicy {
    /// Returns the networks of the policy as an address set names them; none if the policy has no rules because of a fault.
    pub fn networks(&self) -> Vec<String> {
        let networks = self.policy.networks.iter().filter(|_| self.policy.faults.is_empty());
        networks.map(ToString::to_string).collect()
    }
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
        WatchedPolicy {
            policy: read(&object),
            uid: metadata.uid.unwrap_or_default(),
            generation: metadata.generation.unwrap_or_default(),
            version,
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
    fn network_policy_of_the_api_has_its_version_and_generation() {
        let object = json!({
            "apiVersion": "k8s.cni.cncf.io/v1beta2", "kind": KIND,
            "metadata": { "namespace": "x", "name": "p", "uid": "u", "generation": 7, "managedFields": [{}],
                "annotations": { "k8s.v1.cni.cncf.io/policy-for": "net", "other": "" } },
            "spec": { "podSelector": {}, "ingress": [{ "ports": [{ "port": 1, "endPort": 2 }] }] },
            "status": { "conditions": [] },
        });
        let new = serde_json::from_value::<PolicyObject<false>>(object.clone()).unwrap().reduce();
        assert_eq!((new.policy.faults.as_slice(), new.policy.ingress.rules.len()), (&[][..], 1));
        assert_eq!((new.uid.as_str(), new.generation, new.version), ("u", 7, VERSIONS[1]));
        let old = serde_json::from_value::<PolicyObject<true>>(object).unwrap().reduce();
        assert!(old.policy.faults[0].to_string().contains("endPort"), "{:?}", old.policy.faults);
        for malformed in [json!({ "metadata": {} }), json!({ "metadata": {}, "spec": [] })] {
            let read = serde_json::from_value::<PolicyObject<false>>(malformed).unwrap().reduce();
            assert!(!read.policy.faults.is_empty() && read.policy.ingress.isolates);
        }
    }
}
