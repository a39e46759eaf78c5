//! PolicyAddressSet: addresses of pods that MultiNetworkPolicy rules select.
//!
//! - The name of an object is the digest of a peer selection, so every rule with this selection refers to the object
//!   without a field that names it. Rules in many policies can share one object.
//! - A rule whose object does not exist allows no pod that the selectors would select, and neither does one whose
//!   object cannot be read. The same applies to all rules of a policy with more than [`ADDRESSES_MAX`] addresses.
//! - The object is written by server-side apply, whole.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::core::TypeMeta;
use kube_support::custom_resources::{PeerAddresses, PolicyAddressSet, PolicyAddressSetSpec};
use kube_support::resource;
use kube_support::resources::{Key, Reduced};
use npwg::network_policy::{
    ADDRESSES_MAX, AddressList, ListError, PeerSelection, PeerSet, PolicyAddresses, Protocol,
};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use thiserror::Error;

use crate::policy_object::WatchedPolicy;

/// Maximum size of an object's sets as JSON, in bytes. The API server accepts objects up to 1.5 MiB.
pub const SETS_MAX: usize = 1 << 20;

/// Largest number of sets in an object.
pub const SETS_COUNT_MAX: usize = 8192;

/// Maximum number of characters in an object's selection.
pub const SELECTION_MAX: usize = 1024;

/// Field manager of the controller.
pub const MANAGER: &str = "weft-policy";

/// Port of addresses: the number that pods have for a named port. `None` for the numbered ports of rules.
pub type SetPort = Option<(Protocol, u16)>;

/// PolicyAddressSet as it is written.
#[derive(Clone, Debug, Serialize)]
pub struct WrittenAddressSet {
    /// API version and kind.
    #[serde(flatten)]
    types: TypeMeta,
    /// Namespace and name.
    metadata: ObjectMeta,
    /// Selection and addresses.
    spec: PolicyAddressSetSpec,
}

/// PolicyAddressSet as it comes from the API. The addresses are read at once, one object after the other, because the
/// text takes many times the memory of the list.
#[derive(Clone, Debug, Deserialize)]
pub struct AddressSetObject {
    metadata: ObjectMeta,
    #[serde(default, deserialize_with = "read")]
    spec: Content,
}

/// Addresses of an object, or the reason why it cannot be read.
#[derive(Clone, Debug, Default)]
struct Content(BTreeMap<SetPort, Arc<AddressList>>, Option<String>);

/// Reduced form of a PolicyAddressSet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressSet {
    /// Namespace of object and policies.
    pub namespace: String,
    /// Digest of the selection.
    pub name: String,
    /// Addresses by port; none if the object cannot be read.
    pub sets: BTreeMap<SetPort, Arc<AddressList>>,
    /// Reason why the object cannot be read.
    pub fault: Option<String>,
}

/// A policy's peer addresses, as far as the objects exist.
#[derive(Clone, Debug, Default)]
pub struct CurrentAddresses {
    /// Addresses by rule and port.
    pub addresses: PolicyAddresses,
    /// Whether the object of a rule does not exist yet.
    pub is_waiting: bool,
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
    /// A set is for a port that does not exist.
    #[error("spec.sets[{index}]: {reason}")]
    Set {
        /// Index of the set.
        index: usize,
        /// Reason.
        reason: &'static str,
    },
}

/// Error of addresses that do not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SizeError {
    /// Too many addresses.
    #[error("the peers of the policy have {0} addresses; the maximum is {ADDRESSES_MAX}")]
    Addresses(usize),
    /// Too many sets, because peers have many numbers for named ports.
    #[error("a rule of the policy has {0} sets of addresses; the maximum is {SETS_COUNT_MAX}")]
    Sets(usize),
    /// Too many bytes.
    #[error("the addresses of a rule's peers take {0} bytes; the maximum is {SETS_MAX}")]
    Bytes(usize),
}

// === impl WrittenAddressSet ===

impl WrittenAddressSet {
    /// Returns the object for a selection, to be written by server-side apply.
    pub fn new((namespace, name): &Key, spec: PolicyAddressSetSpec) -> WrittenAddressSet {
        let types = TypeMeta {
            api_version: PolicyAddressSet::api_version(&()).into_owned(),
            kind: PolicyAddressSet::kind(&()).into_owned(),
        };
        let metadata = ObjectMeta {
            namespace: Some(namespace.clone()),
            name: Some(name.clone()),
            ..ObjectMeta::default()
        };
        WrittenAddressSet { types, metadata, spec }
    }
}

/// Returns the spec for the addresses of a selection.
///
/// # Errors
/// The addresses do not fit into an object.
pub fn spec(
    selection: &PeerSelection,
    addresses: &BTreeMap<SetPort, AddressList>,
) -> Result<PolicyAddressSetSpec, SizeError> {
    let count = addresses.values().map(AddressList::len).sum();
    if count > ADDRESSES_MAX {
        return Err(SizeError::Addresses(count));
    }
    if addresses.len() > SETS_COUNT_MAX {
        return Err(SizeError::Sets(addresses.len()));
    }
    let sets = addresses.iter().filter(|(_, list)| !list.is_empty());
    let sets = sets.map(|(port, list)| PeerAddresses {
        protocol: port.map(|(protocol, _)| protocol.into()),
        port: port.map(|(_, number)| i32::from(number)),
        addresses: list.elements().collect(),
    });
    let sets: Vec<PeerAddresses> = sets.collect();
    let spec = PolicyAddressSetSpec { selection: shown(selection), refused: None, sets };
    let bytes = size(&spec);
    if bytes > SETS_MAX { Err(SizeError::Bytes(bytes)) } else { Ok(spec) }
}

/// Returns about the size of a spec as JSON in bytes, without serializing it.
pub fn size(spec: &PolicyAddressSetSpec) -> usize {
    let PolicyAddressSetSpec { selection, refused, sets } = spec;
    // Each element has quotation marks and a comma, and each set its keys.
    let elements = sets.iter().flat_map(|set| &set.addresses).map(|element| element.len() + 3);
    elements.sum::<usize>() + sets.len() * 64 + selection.len() + refused.as_ref().map_or(0, String::len)
}

/// Returns the spec without addresses, with the reason.
pub fn refused_spec(selection: &PeerSelection, reason: &str) -> PolicyAddressSetSpec {
    let reason = reason.chars().take(SELECTION_MAX).collect();
    PolicyAddressSetSpec { selection: shown(selection), refused: Some(reason), sets: Vec::new() }
}

fn shown(selection: &PeerSelection) -> String {
    selection.text().chars().take(SELECTION_MAX).collect()
}

/// Reads the addresses of an object. An invalid spec is no error of the list that contains the object.
fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Content, D::Error> {
    let spec = Value::deserialize(deserializer)?;
    let spec = serde_json::from_value::<PolicyAddressSetSpec>(spec).map_err(ReadError::from);
    Ok(match spec.and_then(|spec| addresses(&spec)) {
        Ok(sets) => Content(sets, None),
        Err(error) => Content(BTreeMap::new(), Some(error.to_string())),
    })
}

/// Returns the addresses of a spec.
fn addresses(spec: &PolicyAddressSetSpec) -> Result<BTreeMap<SetPort, Arc<AddressList>>, ReadError> {
    let mut addresses = BTreeMap::new();
    let mut room = ADDRESSES_MAX;
    for (index, one) in spec.sets.iter().enumerate() {
        let PeerAddresses { protocol, port, addresses: elements } = one;
        let fault = |reason| ReadError::Set { index, reason };
        let port = match (protocol, port) {
            (None, None) => None,
            (Some(protocol), Some(port)) => {
                let number = u16::try_from(*port).ok().filter(|port| *port > 0);
                Some((Protocol::from(*protocol), number.ok_or_else(|| fault("port is not a port"))?))
            }
            _ => return Err(fault("protocol and port must be written together")),
        };
        let list = AddressList::read(elements.iter().map(String::as_str), room)
            .map_err(|cause| ReadError::Addresses { index, cause })?;
        room -= list.len();
        if addresses.insert(port, Arc::new(list)).is_some() {
            return Err(fault("its port is that of another set"));
        }
    }
    Ok(addresses)
}

impl Reduced for AddressSetObject {
    type Form = AddressSet;

    fn reduce(self) -> AddressSet {
        let AddressSetObject { metadata, spec: Content(sets, fault) } = self;
        AddressSet {
            namespace: metadata.namespace.unwrap_or_default(),
            name: metadata.name.unwrap_or_default(),
            sets,
            fault,
        }
    }
}

resource!(AddressSetObject as PolicyAddressSet);

/// Returns the addresses of a policy's peers, as `npwg::network_policy::compile` takes them. `find` returns the object with a
/// name in the policy's namespace.
pub fn current_addresses(
    policy: &WatchedPolicy,
    find: impl Fn(&str) -> Option<Arc<AddressSet>>,
) -> CurrentAddresses {
    let mut current = CurrentAddresses::default();
    for rule in &policy.selections {
        let Some(set) = find(&rule.set) else {
            current.is_waiting = true;
            continue;
        };
        for (port, list) in &set.sets {
            let place = PeerSet { direction: rule.direction, rule: rule.rule, port: *port };
            current.addresses.share(place, Arc::clone(list));
        }
    }
    if current.addresses.count() > ADDRESSES_MAX {
        current.addresses = PolicyAddresses::default();
    }
    current
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use npwg::network_policy::Direction;
    use serde_json::json;

    use super::*;
    use crate::policy_object::PolicyObject;
    use crate::set_name::set_name;

    fn policy(ingress: &Value) -> WatchedPolicy {
        let object = json!({
            "metadata": { "namespace": "x", "name": "p", "uid": "u",
                "annotations": { "k8s.v1.cni.cncf.io/policy-for": "net" } },
            "spec": { "podSelector": {}, "ingress": ingress },
        });
        serde_json::from_value::<PolicyObject<false>>(object).unwrap().reduce()
    }

    fn selection() -> PeerSelection {
        let policy = policy(&json!([{ "from": [{ "podSelector": {} }] }])).policy;
        policy.selections().remove(0).2
    }

    fn range(first: u32, count: u32, step: u32) -> AddressList {
        (0..count).map(|n| IpAddr::V4((first + n * step).into())).collect()
    }

    fn reduced(spec: &Value) -> AddressSet {
        let object = json!({ "metadata": { "namespace": "x", "name": "p" }, "spec": spec });
        serde_json::from_value::<AddressSetObject>(object).unwrap().reduce()
    }

    #[test]
    fn policy_address_set_survives_the_api() {
        let six: AddressList = range(0x0a00_0001, 5, 2).iter().chain(["fd00::1".parse().unwrap()]).collect();
        let addresses = BTreeMap::from([(None, range(0x0a00_0001, 5, 1)), (Some((Protocol::Udp, 53)), six)]);
        let key = ("x".to_owned(), set_name(&selection()));
        let object = WrittenAddressSet::new(&key, spec(&selection(), &addresses).unwrap());
        let text = serde_json::to_value(&object).unwrap();
        assert_eq!(text["spec"]["sets"][0]["addresses"], json!(["10.0.0.1-10.0.0.5"]));
        assert_eq!((text["spec"]["sets"][0].get("port"), &text["kind"]), (None, &json!("PolicyAddressSet")));
        assert!(text["spec"]["selection"].as_str().unwrap().contains("\"networks\":[\"x/net\"]"), "{text}");
        let read = serde_json::from_value::<AddressSetObject>(text).unwrap().reduce();
        let sets: BTreeMap<SetPort, AddressList> =
            read.sets.iter().map(|(port, list)| (*port, list.as_ref().clone())).collect();
        assert_eq!((read.fault.as_deref(), sets), (None, addresses));
        assert_eq!(
            read.name, "peers-85970092358fbed3e0674f8bac5ca23f3b499757833c77dd44593d0402653993",
            "controllers and agents of other releases compute the same name"
        );
    }

    #[test]
    fn policy_address_set_has_a_maximum_size() {
        let all = BTreeMap::from([(None, range(0x0a00_0000, 65_536, 1))]);
        assert!(spec(&selection(), &all).is_ok());
        let port = Some((Protocol::Tcp, 1));
        let more: BTreeMap<SetPort, AddressList> =
            all.into_iter().chain([(port, range(0x0a00_0000, 1, 1))]).collect();
        assert_eq!(spec(&selection(), &more), Err(SizeError::Addresses(65_537)));
        let ports = (1..=8193).map(|number| (Some((Protocol::Tcp, number)), range(0x0a00_0000, 1, 1)));
        assert_eq!(spec(&selection(), &ports.collect()), Err(SizeError::Sets(8193)));
        let long = (0..30_000_u128).map(|n| IpAddr::V6((u128::MAX - n * 0x1_0001_0001).into()));
        let refused = spec(&selection(), &BTreeMap::from([(None, long.collect())]));
        assert!(matches!(refused, Err(SizeError::Bytes(bytes)) if bytes > SETS_MAX), "{refused:?}");
        let refused = refused_spec(&selection(), &"x".repeat(5000));
        assert_eq!((refused.sets.len(), refused.refused.map(|why| why.len())), (0, Some(SELECTION_MAX)));
    }

    #[test]
    fn policy_address_set_unreadable_has_no_addresses() {
        let set = |change: Value| {
            let mut set = json!({ "addresses": ["10.0.0.1"] });
            for (key, value) in change.as_object().unwrap() {
                set[key] = value.clone();
            }
            json!({ "selection": "", "sets": [set] })
        };
        let good = json!({ "addresses": ["10.0.0.1"] });
        for (spec, words) in [
            (set(json!({ "protocol": "ICMP", "port": 1 })), "spec: "),
            (set(json!({ "port": 80 })), "spec.sets[0]: protocol and port"),
            (set(json!({ "port": 0, "protocol": "TCP" })), "spec.sets[0]: port"),
            (set(json!({ "addresses": ["x"] })), "spec.sets[0].addresses: \"x\""),
            (set(json!({ "addresses": ["::-ffff::"] })), "has more than 65536 addresses"),
            (json!({ "sets": [good, good] }), "spec.sets[1]: its port"),
            (json!({ "sets": 7 }), "spec: "),
        ] {
            let read = reduced(&spec);
            assert!(read.fault.as_deref().is_some_and(|fault| fault.contains(words)), "{read:?}");
            assert!(read.sets.is_empty(), "{read:?}");
        }
        let bare = json!({ "metadata": { "namespace": "x", "name": "p" } });
        assert!(serde_json::from_value::<AddressSetObject>(bare).unwrap().reduce().sets.is_empty());
    }

    #[test]
    fn policy_rule_without_its_address_set_waits() {
        let pods = |role: &str| json!({ "from": [{ "podSelector": { "matchLabels": { "role": role } } }] });
        let policy = policy(&json!([pods("a"), {}, pods("b"), pods("a")]));
        let names: Vec<&str> = policy.selections.iter().map(|rule| rule.set.as_str()).collect();
        assert!(names.len() == 3 && names[0] == names[2] && names[0] != names[1], "{names:?}");
        let set = |list: AddressList| {
            Some(Arc::new(AddressSet {
                sets: BTreeMap::from([(None, Arc::new(list))]),
                ..AddressSet::default()
            }))
        };
        let current =
            current_addresses(&policy, |name| if name == names[0] { set(range(1, 2, 1)) } else { None });
        let places: Vec<usize> = current.addresses.sets().map(|(set, _)| set.rule).collect();
        assert_eq!((places, current.is_waiting), (vec![0, 3], true));
        let first = PeerSet { direction: Direction::Ingress, rule: 0, port: None };
        assert_eq!(current.addresses.find(&first), Some(&range(1, 2, 1)));
        // An address counts in each rule, and all rules of a policy have a common maximum.
        let current = current_addresses(&policy, |_| set(range(1, 21_846, 1)));
        assert_eq!((current.addresses.count(), current.is_waiting), (0, false));
        let current = current_addresses(&policy, |_| set(range(1, 21_845, 1)));
        assert_eq!(current.addresses.count(), 65_535);
    }
}
