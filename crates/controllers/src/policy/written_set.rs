//! PolicyAddressSets of the API server, reduced to what tells whether one must be written again.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Deserializer};
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
    /// Digest of the spec; none if the spec is not readable.
    pub(super) digest: Option<SpecDigest>,
}

/// PolicyAddressSet as the API returns it. Only a digest of the spec is kept while a page of objects is read.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct WrittenSetObject {
    metadata: ObjectMeta,
    #[serde(default, rename = "spec", deserialize_with = "read")]
    digest: Option<SpecDigest>,
}

/// Returns a spec's digest and size in bytes.
pub(super) fn digest_and_size(spec: &PolicyAddressSetSpec) -> (Option<SpecDigest>, usize) {
    let text = serde_json::to_vec(spec).unwrap_or_default();
    (Sha512::digest(&text).first_chunk::<32>().copied().filter(|_| !text.is_empty()), text.len())
}

fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SpecDigest>, D::Error> {
    let spec = Value::deserialize(deserializer)?;
    Ok(serde_json::from_value(spec).ok().and_then(|spec| digest_and_size(&spec).0))
}

// === impl WrittenSet ===

impl WrittenSet {
    /// Whether the object has this spec.
    pub(super) fn has(&self, spec: Option<SpecDigest>) -> bool {
        self.digest.is_some() && self.digest == spec
    }
}

// === impl WrittenSetObject ===

impl Reduced for WrittenSetObject {
    type Form = WrittenSet;

    fn reduce(self) -> WrittenSet {
        let WrittenSetObject { metadata, digest } = self;
        WrittenSet { uid: metadata.uid.unwrap_or_default(), digest }
    }
}

resource!(WrittenSetObject as PolicyAddressSet);

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn policy_address_set_is_written_again_after_manual_changes() {
        let spec = json!({ "selection": "{}", "sets": [{ "addresses": ["10.0.0.1"] }] });
        let ours = digest_and_size(&serde_json::from_value(spec.clone()).unwrap()).0;
        let written = |spec: &Value| {
            let object = json!({ "metadata": { "name": "p", "uid": "s" }, "spec": spec });
            serde_json::from_value::<WrittenSetObject>(object).unwrap().reduce()
        };
        assert!(written(&spec).has(ours));
        for (path, value) in [
            ("/sets/0/addresses/0", json!("10.0.0.2")),
            ("/selection", json!("")),
            ("/sets/0/addresses", json!([])),
            ("/sets", json!(7)),
        ] {
            let mut changed = spec.clone();
            *changed.pointer_mut(path).unwrap() = value;
            assert!(!written(&changed).has(ours), "{path}");
        }
        let bare = json!({ "metadata": { "name": "p" } });
        assert!(!serde_json::from_value::<WrittenSetObject>(bare).unwrap().reduce().has(ours));
    }
}
