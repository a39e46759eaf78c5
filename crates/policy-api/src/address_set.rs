//! PolicyAddressSet: addresses of the peers of one MultiNetworkPolicy, of the same namespace and name.
//!
//! - The addresses are those for one generation of the policy and its networks. They count for no other ones, because the
//!   index of a rule means another rule there.
//! - An object that cannot be read has no addresses: its policy allows no peer that a selector would select.
//! - The object is written by server-side apply, whole.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Resource;
use kube::core::TypeMeta;
use kube_support::custom_resources::{PeerAddresses, PolicyAddressSet, PolicyAddressSetSpec};
use kube_support::resource;
use kube_support::resources::Reduced;
use npwg::network_policy::{ADDRESSES_MAX, KIND, PeerSet, PolicyAddresses, Protocol, RULES_MAX};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

use crate::address_list::{self, ListError};
use crate::policy_object::WatchedPolicy;

/// Largest size of the sets of an object as JSON, in bytes. The API server accepts objects of 1.5 MiB.
pub const SETS_MAX: usize = 1 << 20;

/// Largest number of sets in an object.
pub const SETS_COUNT_MAX: usize = 8192;

/// Field manager of the controller.
pub const MANAGER: &str = "weft-policy";

/// PolicyAddressSet as it comes from the API, or as it is written.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct AddressSetObject {
    /// API version and kind.
    #[serde(flatten, default)]
    pub types: Option<TypeMeta>,
    /// Namespace, name and owner.
    pub metadata: ObjectMeta,
    /// Policy and addresses.
    #[serde(default)]
    pub spec: Value,
}

/// Reduced form of a PolicyAddressSet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressSet {
    /// Namespace of the object and of its policy.
    pub namespace: String,
    /// Name of the object and of its policy.
    pub name: String,
    /// Uid of the policy.
    pub policy_uid: String,
    /// Generation of the policy.
    pub policy_generation: i64,
    /// Networks of the policy.
    pub networks: Vec<String>,
    /// Addresses; none if the object cannot be read.
    pub addresses: PolicyAddresses,
    /// Reason why the object cannot be read.
    pub fault: Option<String>,
}

/// Error of an object that cannot be read.
#[derive(Debug, Error)]
enum ReadError {
    /// The spec has another form.
    #[error("spec: {0}")]
    Form(#[from] serde_json::Error),
    /// A list of addresses is invalid.
    #[error("spec.sets[{index}].addresses: {cause}")]
    Addresses {
        /// Index of the set.
        index: usize,
        /// Reason.
        cause: ListError,
    },
    /// A set is for a place that no policy has.
    #[error("spec.sets[{index}]: {reason}")]
    Set {
        /// Index of the set.
        index: usize,
        /// Reason.
        reason: &'static str,
    },
}

/// Error of addresses that do not fit into one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SizeError {
    /// Too many addresses.
    #[error("the peers of the policy have {0} addresses; the maximum is {ADDRESSES_MAX}")]
    Addresses(usize),
    /// Too many sets, because peers have many numbers for named ports.
    #[error("the policy has {0} sets of addresses; the maximum is {SETS_COUNT_MAX}")]
    Sets(usize),
    /// Too many bytes.
    #[error("the addresses of the policy's peers take {0} bytes; the maximum is {SETS_MAX}")]
    Bytes(usize),
}

// === impl AddressSetObject ===

impl AddressSetObject {
    /// Returns the object for a policy, to be written by server-side apply.
    pub fn new(policy: &WatchedPolicy, spec: &PolicyAddressSetSpec) -> AddressSetObject {
        let types = TypeMeta {
            api_version: PolicyAddressSet::api_version(&()).into_owned(),
            kind: PolicyAddressSet::kind(&()).into_owned(),
        };
        let owner = OwnerReference {
            api_version: policy.version.to_owned(),
            kind: KIND.to_owned(),
            name: policy.policy.name.clone(),
            uid: policy.uid.clone(),
            controller: Some(true),
            block_owner_deletion: None,
        };
        let metadata = ObjectMeta {
            namespace: Some(policy.policy.namespace.clone()),
            name: Some(policy.policy.name.clone()),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        };
        // The type consists of strings, numbers and lists.
        let spec = serde_json::to_value(spec).unwrap_or_default();
        AddressSetObject { types: Some(types), metadata, spec }
    }
}

/// Returns the spec for the addresses of a policy.
///
/// # Errors
/// The addresses do not fit into an object.
pub fn spec(policy: &WatchedPolicy, addresses: &PolicyAddresses) -> Result<PolicyAddressSetSpec, SizeError> {
    let count = addresses.count();
    if count > ADDRESSES_MAX {
        return Err(SizeError::Addresses(count));
    }
    let sets: Vec<PeerAddresses> = addresses
        .sets()
        .map(|(set, addresses)| {
            let PeerSet { direction, rule, port } = *set;
            PeerAddresses {
                direction: direction.into(),
                rule: i32::try_from(rule).unwrap_or(i32::MAX),
                protocol: port.map(|(protocol, _)| protocol.into()),
                port: port.map(|(_, number)| i32::from(number)),
                addresses: address_list::write(addresses),
            }
        })
        .collect();
    if sets.len() > SETS_COUNT_MAX {
        return Err(SizeError::Sets(sets.len()));
    }
    let bytes = serde_json::to_vec(&sets).map_or(usize::MAX, |text| text.len());
    if bytes > SETS_MAX {
        return Err(SizeError::Bytes(bytes));
    }
    Ok(PolicyAddressSetSpec { sets, ..empty_spec(policy) })
}

/// Returns the spec without addresses: the policy allows no peer that a selector would select.
pub fn empty_spec(policy: &WatchedPolicy) -> PolicyAddressSetSpec {
    PolicyAddressSetSpec {
        policy_uid: policy.uid.clone(),
        policy_generation: policy.generation,
        networks: policy.networks(),
        sets: Vec::new(),
    }
}

/// Returns the addresses of a spec.
fn addresses(spec: &PolicyAddressSetSpec) -> Result<PolicyAddresses, ReadError> {
    let mut addresses = PolicyAddresses::default();
    let mut room = ADDRESSES_MAX;
    for (index, one) in spec.sets.iter().enumerate() {
        let PeerAddresses { direction, rule, protocol, port, addresses: elements } = one;
        let fault = |reason| ReadError::Set { index, reason };
        let rule = usize::try_from(*rule).ok().filter(|rule| *rule < RULES_MAX);
        let rule = rule.ok_or_else(|| fault("rule is not the index of a rule"))?;
        let port = match (protocol, port) {
            (None, None) => None,
            (Some(protocol), Some(port)) => {
                let number = u16::try_from(*port).ok().filter(|port| *port > 0);
                Some((Protocol::from(*protocol), number.ok_or_else(|| fault("port is not a port"))?))
            }
            _ => return Err(fault("protocol and port must be written together")),
        };
        let list = address_list::read(elements.iter().map(String::as_str), room)
            .map_err(|cause| ReadError::Addresses { index, cause })?;
        room -= list.len();
        addresses.insert(PeerSet { direction: (*direction).into(), rule, port }, list);
    }
    Ok(addresses)
}

impl Reduced for AddressSetObject {
    type Form = AddressSet;

    fn reduce(self) -> AddressSet {
        let AddressSetObject { types: _, metadata, spec } = self;
        let identity = |field: &str| spec.get(field).cloned().unwrap_or_default();
        let policy_uid = identity("policyUid").as_str().unwrap_or_default().to_owned();
        let policy_generation = identity("policyGeneration").as_i64().unwrap_or_default();
        let read = serde_json::from_value::<PolicyAddressSetSpec>(spec).map_err(ReadError::from);
        let read = read.and_then(|spec| Ok((addresses(&spec)?, spec.networks)));
        let (addresses, networks, fault) = match read {
            Ok((addresses, networks)) => (addresses, networks, None),
            Err(error) => (PolicyAddresses::default(), Vec::new(), Some(error.to_string())),
        };
        AddressSet {
            namespace: metadata.namespace.unwrap_or_default(),
            name: metadata.name.unwrap_or_default(),
            policy_uid,
            policy_generation,
            networks,
            addresses,
            fault,
        }
    }
}

resource!(AddressSetObject as PolicyAddressSet);

// === impl AddressSet ===

impl AddressSet {
    /// Whether the addresses are those for this generation of the policy and for its networks.
    pub fn is_of(&self, policy: &WatchedPolicy) -> bool {
        self.policy_uid == policy.uid
            && self.policy_generation == policy.generation
            && self.networks == policy.networks()
    }
}

/// Returns the addresses of policies by their names, as `npwg::network_policy::compile` takes them: those of sets that
/// belong to the generation of their policy.
pub fn current_addresses<'a>(
    policies: impl IntoIterator<Item = &'a WatchedPolicy>,
    find: impl Fn(&WatchedPolicy) -> Option<&'a AddressSet>,
) -> BTreeMap<String, PolicyAddresses> {
    let current = policies.into_iter().filter_map(|policy| {
        let set = find(policy).filter(|set| set.is_of(policy))?;
        Some((policy.policy.to_string(), set.addresses.clone()))
    });
    current.collect()
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use npwg::network_policy::Direction;
    use serde_json::json;

    use super::*;
    use crate::policy_object::PolicyObject;

    fn policy() -> WatchedPolicy {
        let object = json!({
            "metadata": { "namespace": "x", "name": "p", "uid": "u", "generation": 3,
                "annotations": { "k8s.v1.cni.cncf.io/policy-for": "net" } },
            "spec": { "podSelector": {} },
        });
        serde_json::from_value::<PolicyObject<false>>(object).unwrap().reduce()
    }

    fn range(first: u32, count: u32, step: u32) -> impl Iterator<Item = IpAddr> {
        (0..count).map(move |n| IpAddr::V4((first + n * step).into()))
    }

    #[test]
    fn policy_address_set_survives_the_api() {
        let mut addresses = PolicyAddresses::default();
        let plain = PeerSet { direction: Direction::Ingress, rule: 0, port: None };
        let named = PeerSet { direction: Direction::Egress, rule: 255, port: Some((Protocol::Udp, 53)) };
        addresses.insert(plain, range(0x0a00_0001, 5, 1));
        addresses.insert(named, range(0x0a00_0001, 5, 2).chain(["fd00::1".parse().unwrap()]));
        let object = AddressSetObject::new(&policy(), &spec(&policy(), &addresses).unwrap());
        let text = serde_json::to_value(&object).unwrap();
        assert_eq!(text["spec"]["sets"][0]["addresses"], json!(["10.0.0.1-10.0.0.5"]));
        assert_eq!(text["spec"]["sets"][0].get("port"), None);
        assert_eq!((&text["kind"], &text["spec"]["policyUid"]), (&json!("PolicyAddressSet"), &json!("u")));
        let read = serde_json::from_value::<AddressSetObject>(text).unwrap().reduce();
        assert_eq!((read.fault.as_deref(), &read.addresses), (None, &addresses));
        assert!(read.is_of(&policy()) && !read.is_of(&WatchedPolicy { generation: 4, ..policy() }));
    }

    #[test]
    fn policy_address_set_has_a_maximum_size() {
        let mut addresses = PolicyAddresses::default();
        let set = |rule| PeerSet { direction: Direction::Ingress, rule, port: None };
        addresses.insert(set(0), range(0x0a00_0000, 65_536, 1));
        assert!(spec(&policy(), &addresses).is_ok());
        addresses.insert(set(1), range(0x0a00_0000, 1, 1));
        assert_eq!(spec(&policy(), &addresses), Err(SizeError::Addresses(65_537)));
        let mut addresses = PolicyAddresses::default();
        for number in 1..=8193 {
            let set = PeerSet { direction: Direction::Egress, rule: 0, port: Some((Protocol::Tcp, number)) };
            addresses.insert(set, range(0x0a00_0000, 1, 1));
        }
        assert_eq!(spec(&policy(), &addresses), Err(SizeError::Sets(8193)));
        let mut addresses = PolicyAddresses::default();
        let long = (0..30_000_u128).map(|n| IpAddr::V6((u128::MAX - n * 0x1_0001_0001).into()));
        addresses.insert(set(0), long);
        let refused = spec(&policy(), &addresses);
        assert!(matches!(refused, Err(SizeError::Bytes(bytes)) if bytes > SETS_MAX), "{refused:?}");
        assert!(empty_spec(&policy()).sets.is_empty());
    }

    #[test]
    fn policy_address_set_unreadable_has_no_addresses() {
        let set = |change: Value| {
            let mut set = json!({ "direction": "ingress", "rule": 0, "addresses": ["10.0.0.1"] });
            for (key, value) in change.as_object().unwrap() {
                set[key] = value.clone();
            }
            json!({ "policyUid": "u", "policyGeneration": 3, "sets": [set] })
        };
        for (spec, words) in [
            (set(json!({ "direction": "both" })), "spec: "),
            (set(json!({ "rule": 256 })), "spec.sets[0]: rule"),
            (set(json!({ "rule": -1 })), "spec.sets[0]: rule"),
            (set(json!({ "port": 80 })), "spec.sets[0]: protocol and port"),
            (set(json!({ "port": 0, "protocol": "TCP" })), "spec.sets[0]: port"),
            (set(json!({ "addresses": ["x"] })), "spec.sets[0].addresses: \"x\""),
            (set(json!({ "addresses": ["::-ffff::"] })), "has more than 65536 addresses"),
            (json!({ "policyUid": "u", "policyGeneration": 3, "sets": 7 }), "spec: "),
        ] {
            let object = json!({ "metadata": { "namespace": "x", "name": "p" }, "spec": spec });
            let read = serde_json::from_value::<AddressSetObject>(object).unwrap().reduce();
            assert!(read.fault.as_deref().is_some_and(|fault| fault.contains(words)), "{read:?}");
            assert!(read.addresses == PolicyAddresses::default() && !read.is_of(&policy()), "{read:?}");
        }
        let bare = json!({ "metadata": { "namespace": "x", "name": "p" } });
        let read = serde_json::from_value::<AddressSetObject>(bare).unwrap().reduce();
        assert!(!read.is_of(&policy()) && read.addresses.count() == 0, "{read:?}");
    }

    #[test]
    fn policy_addresses_of_another_generation_do_not_count() {
        let mut addresses = PolicyAddresses::default();
        addresses.insert(PeerSet { direction: Direction::Ingress, rule: 0, port: None }, range(1, 1, 1));
        let set = |generation| AddressSet {
            policy_uid: "u".to_owned(),
            policy_generation: generation,
            networks: policy().networks(),
            addresses: addresses.clone(),
            ..AddressSet::default()
        };
        let (old, new) = (set(2), set(3));
        let other = AddressSet { networks: vec!["x/other".to_owned()], ..new.clone() };
        assert!(current_addresses(&[policy()], |_| Some(&other)).is_empty());
        assert!(current_addresses(&[policy()], |_| Some(&old)).is_empty());
        assert_eq!(current_addresses(&[policy()], |_| Some(&new))["x/p"], addresses);
        assert!(current_addresses(&[policy()], |_| None).is_empty());
    }
}
