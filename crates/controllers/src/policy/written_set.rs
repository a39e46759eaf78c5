//! PolicyAddressSets of the API server, reduced to what tells whether one must be written again.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest, Sha512};

use kube_support::custom_resources::{PolicyAddressSet, PolicyAddressSetSpec};
use kube_support::resource;
use kube_support::resources::Reduced;

/// Digest of a spec.
pub(super) type SpecDigest = [u8; 32];

/// Reduced form of a PolicyAddressSet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WrittenSet {
    /// Uid of the object.
    pub(super) uid: String,
    /// Uids of its owners.
    pub(super) owners: Vec<String>,
    /// Digest of its spec; none if the spec is not readable.
    pub(super) digest: Option<SpecDigest>,
}

/// PolicyAddressSet as the API returns it.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct WrittenSetObject {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: Value,
}

/// Returns the digest of a spec.
pub(super) fn digest(spec: &PolicyAddressSetSpec) -> Option<SpecDigest> {
    let text = serde_json::to_vec(spec).ok()?;
    let whole = Sha512::digest(text);
    whole.first_chunk::<32>().copied()
}

// === impl WrittenSet ===

impl WrittenSet {
    /// Whether the object has this spec and this owner.
    pub(super) fn has(&self, spec: Option<SpecDigest>, owner: &str) -> bool {
        self.digest.is_some() && self.digest == spec && self.owners.iter().any(|uid| uid == owner)
    }
}

// === impl WrittenSetObject ===

impl Reduced for WrittenSetObject {
    type Form = WrittenSet;

    fn reduce(self) -> WrittenSet {
        let WrittenSetObject { metadata, spec } = self;
        let owners = metadata.owner_references.unwrap_or_default();
        WrittenSet {
            uid: metadata.uid.unwrap_or_default(),
            owners: owners.into_iter().map(|owner| owner.uid).collect(),
            digest: serde_json::from_value(spec).ok().and_then(|spec| digest(&spec)),
        }
    }
}

resource!(WrittenSetObject as PolicyAddressSet);

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn policy_address_set_is_written_again_after_manual_changes() {
        let spec = json!({ "policyUid": "u", "policyGeneration": 1, "networks": ["x/net"],
            "sets": [{ "direction": "ingress", "rule": 0, "addresses": ["10.0.0.1"] }] });
        let ours = digest(&serde_json::from_value(spec.clone()).unwrap());
        let written = |spec: &Value| {
            let object = json!({ "metadata": { "name": "p", "uid": "s",
                "ownerReferences": [{ "apiVersion": "a", "kind": "k", "name": "p", "uid": "u" }] }, "spec": spec });
            serde_json::from_value::<WrittenSetObject>(object).unwrap().reduce()
        };
        assert!(written(&spec).has(ours, "u") && !written(&spec).has(ours, "other"));
        for (path, value) in [
            ("/sets/0/addresses/0", json!("10.0.0.2")),
            ("/policyGeneration", json!(2)),
            ("/networks/0", json!("x/other")),
            ("/sets", json!(7)),
        ] {
            let mut changed = spec.clone();
            *changed.pointer_mut(path).unwrap() = value;
            assert!(!written(&changed).has(ours, "u"), "{path}");
        }
    }
}
