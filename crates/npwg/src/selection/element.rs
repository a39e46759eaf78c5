//! Parser of one element: checks every key and records each fault with the consequence the specification gives it.
//!
//! | key | invalid value | requirement |
//! |---|---|---|
//! | `name`, `namespace` | attachment fails | NPWG1-4.1.2.1.1, NPWG1-3.3 |
//! | `ips`, `mac`, `interface` | annotation invalid | NPWG1-4.1.2.1.3 to 4.1.2.1.5 |
//! | `cni-args`, `portMappings`, `bandwidth`, `default-route` | annotation invalid | V11-4.1.2.1.6 to 4.1.2.1.9 |
//! | `infiniband-guid` | annotation invalid | V12-4.1.2.1.10 |
//! | `ipam-claim-reference`, `deviceID`, `resourceName` | attachment fails | V13-4.1.2.1.11, Multus |
//!
//! An empty value of some keys ([`EMPTY_IS_ABSENT`]) counts as absent, with a warning: templates write one if a user sets no
//! value, and Multus reads it in this way. `interfaceRequest` is Multus's old name for `interface`.

use cni::fold;
use cni::name::IfName;
use cni::object::Object;
use serde_json::{Value, json};

use super::form::Item;
use super::value::{self, Read, Wrong};
use super::{Annotation, Element, Reader, WARNINGS_MAX};
use crate::metadata::{NetworkReference, definition_name_fault, label_fault, resource_fault};
use crate::nearest::hint;
use crate::refusal::{Fault, KeyPath, Reason};
use crate::request::{DefaultRoute, guid_of};
use crate::rule::Rule;

/// Keys that an element can have.
const KEYS: &[&str] = &[
    "name",
    "namespace",
    "ips",
    "mac",
    "interface",
    "cni-args",
    "portMappings",
    "bandwidth",
    "default-route",
    "infiniband-guid",
    "ipam-claim-reference",
    "deviceID",
    "resourceName",
    "interfaceRequest",
];

/// Keys for which an empty value of the right type counts as absent. An empty `ips` is invalid by the
/// specification, and an empty `default-route` is a request.
const EMPTY_IS_ABSENT: &[&str] = &[
    "mac",
    "interface",
    "interfaceRequest",
    "portMappings",
    "bandwidth",
    "infiniband-guid",
    "ipam-claim-reference",
    "resourceName",
];

/// Names that users give to keys, with the key that is meant.
const OTHER_NAMES: &[(&str, &str)] = &[
    ("gateway", "default-route"),
    ("defaultRoute", "default-route"),
    ("default-gateway", "default-route"),
    ("ip", "ips"),
    ("ipAddress", "ips"),
    ("address", "ips"),
    ("addresses", "ips"),
    ("macAddress", "mac"),
    ("mac-address", "mac"),
    ("ifname", "interface"),
    ("interfaceName", "interface"),
    ("args", "cni-args"),
    ("device", "deviceID"),
];

/// Maximum length up to which a warning repeats an unknown key, in bytes.
const LONGEST_KEY: usize = 64;

/// Keys that a port mapping can have; those in a bandwidth object follow.
const PORT_KEYS: &[&str] = &["hostPort", "containerPort", "protocol", "hostIP"];
const BANDWIDTH_KEYS: &[&str] = &["ingressRate", "ingressBurst", "egressRate", "egressBurst"];

/// Reads one element; returns `None` if the element does not identify a network.
pub(super) fn read(reader: &mut Reader, index: usize, item: &Item, home: &str) -> Option<Element> {
    match item {
        Item::Reference(text) => reference(reader, index, text, home),
        Item::Object(object) => {
            Keys { path: KeyPath::root().index(index), reader, object }.element(index, home)
        }
    }
}

/// Reads `[namespace/]name[@interface]`.
fn reference(reader: &mut Reader, index: usize, text: &str, home: &str) -> Option<Element> {
    let path = KeyPath::root().index(index);
    let (network, interface) = match text.split_once('@') {
        Some((network, interface)) => (network.trim_end(), Some(interface.trim_start())),
        None => (text, None),
    };
    let (namespace, name) = match network.split_once('/') {
        Some((namespace, name)) => (Some(namespace), name),
        None => (None, network),
    };
    for (part, what) in [(namespace, "namespace before /"), (interface, "interface name after @")] {
        if part == Some("") {
            let fault = reader.fault(Rule::EmptyValue, format!("the {what} is empty and counts as absent"));
            reader.warn(Reason::Questionable, fault.at(path.clone()).showing(&value::shown(text)));
        }
    }
    let [namespace, interface] = [namespace, interface].map(|part| part.filter(|part| !part.is_empty()));
    let wrong_namespace = namespace.and_then(label_fault).map(|fault| format!("the namespace {fault}"));
    let second = interface.filter(|interface| interface.contains('@'));
    if second.is_some() {
        let reason = "it has a second @, and one interface name at most";
        let fault =
            reader.fault(Rule::MalformedNetworkReference, reason).at(path).showing(&value::shown(text));
        reader.fails(fault.hint("write name@interface, and separate networks by commas"));
        return None;
    }
    let wrong_name = || definition_name_fault(name).map(|fault| format!("the name {fault}"));
    if let Some(reason) = wrong_namespace.or_else(wrong_name) {
        let fault =
            reader.fault(Rule::MalformedNetworkReference, reason).at(path).showing(&value::shown(text));
        reader.fails(fault.hint(hint_of_reference(text)));
        return None;
    }
    let mut element = Element::plain(index, NetworkReference::new(namespace.unwrap_or(home), name));
    if let Some(interface) = interface {
        match value::interface(&path, &Value::from(interface)) {
            Ok(name) => element.interface = Some(name),
            Err(wrong) => {
                let fault = complete(reader.fault(Rule::InvalidInterfaceName, ""), wrong);
                reader.invalid(fault);
            }
        }
    }
    Some(element)
}

/// Returns a hint for an element that is no reference.
fn hint_of_reference(text: &str) -> &'static str {
    if text.is_empty() {
        "remove the comma in front of it or after it"
    } else if text.contains(|c: char| c == ';' || c.is_whitespace()) {
        "separate the names of networks by commas"
    } else if text.starts_with(['[', '{', '"', '\'']) {
        "write names without quotation marks and brackets, or a JSON list"
    } else {
        "write name or namespace/name"
    }
}

/// Adds to a fault the place, value and reason from `wrong`.
fn complete(mut fault: Fault, wrong: Wrong) -> Fault {
    let Wrong { path, value, reason } = wrong;
    fault.reason = reason;
    fault.at(path).showing(&value)
}

/// Parser for one element's keys.
struct Keys<'a> {
    reader: &'a mut Reader,
    object: &'a Object,
    path: KeyPath,
}

impl Keys<'_> {
    fn element(mut self, index: usize, home: &str) -> Option<Element> {
        self.warn_about_unknown_keys();
        self.warn_about_empty_values();
        let network = self.network(home);
        let mut element = Element::plain(index, network.clone().unwrap_or(NetworkReference::new(home, "")));
        element.ips = self.or_invalid("ips", Rule::InvalidIps, value::ips).unwrap_or_default();
        element.mac = self.or_invalid("mac", Rule::InvalidMac, value::mac);
        element.guid = self.or_invalid("infiniband-guid", Rule::InvalidInfinibandGuid, value::guid);
        element.interface = self.interface();
        element.cni_args = self.cni_args();
        let ports = self.or_invalid("portMappings", Rule::InvalidPortMapping, value::port_mappings);
        element.port_mappings = ports.unwrap_or_default();
        element.bandwidth = self.or_invalid("bandwidth", Rule::InvalidBandwidth, value::bandwidth);
        element.default_route = self.default_route();
        element.ipam_claim = self.claim(!element.ips.is_empty());
        element.device_id = self.device();
        element.resource = self.resource();
        self.compare(&element);
        network.map(|_| element)
    }

    /// Returns the value at `key` and the path as written, unless it counts as absent.
    fn value(&self, key: &str) -> Option<(KeyPath, Value)> {
        self.written(key).filter(|(_, value)| !(EMPTY_IS_ABSENT.contains(&key) && is_empty(key, value)))
    }

    /// Returns the value at `key` and the path as written; a `null` value counts as absent.
    fn written(&self, key: &str) -> Option<(KeyPath, Value)> {
        let raw = self.object.get(key).filter(|raw| raw.get() != "null")?;
        let written = self.object.iter().find(|(k, _)| *k == key);
        let folded = || self.object.iter().filter(|(k, _)| fold::same(k, key)).last();
        let written = written.or_else(folded).map_or(key, |(k, _)| k);
        // A value that cannot be decoded, for example because it nests too deeply, becomes a list of lists: every key refuses
        // that, and the message shows the value.
        let value = serde_json::from_str(raw.get()).unwrap_or_else(|_| json!([[raw.get()]]));
        Some((self.path.key(written), value))
    }

    /// Reads a key whose wrong value makes the annotation invalid.
    fn or_invalid<T>(
        &mut self,
        key: &str,
        rule: Rule,
        read: impl FnOnce(&KeyPath, &Value) -> Read<T>,
    ) -> Option<T> {
        let (path, value) = self.value(key)?;
        match read(&path, &value) {
            Ok(value) => Some(value),
            Err(wrong) => {
                let fault = complete(self.reader.fault(rule, ""), wrong);
                self.reader.invalid(fault);
                None
            }
        }
    }

    /// Reads a key whose wrong value fails the attachment.
    fn or_fails<T>(
        &mut self,
        key: &str,
        rule: Rule,
        read: impl FnOnce(&KeyPath, &Value) -> Read<T>,
    ) -> Option<T> {
        let (path, value) = self.value(key)?;
        match read(&path, &value) {
            Ok(value) => Some(value),
            Err(wrong) => {
                let fault = complete(self.reader.fault(rule, ""), wrong);
                self.reader.fails(fault);
                None
            }
        }
    }

    fn network(&mut self, home: &str) -> Option<NetworkReference> {
        if self.value("name").is_none() {
            let fault = self.reader.fault(Rule::MissingNetworkName, "name is missing").at(self.path.clone());
            self.reader.fails(fault.hint("add \"name\": the name of a NetworkAttachmentDefinition"));
            return None;
        }
        let name = self.or_fails("name", Rule::InvalidNetworkName, |path, value| {
            let text = value::text(path, value)?;
            named(path, value, definition_name_fault(text).map(|fault| fault_of_name(text, fault)))
        })?;
        let namespace = match self.value("namespace") {
            None => home.to_owned(),
            Some((_, Value::String(text))) if text.is_empty() => home.to_owned(),
            Some(_) => self.or_fails("namespace", Rule::InvalidNamespace, |path, value| {
                named(path, value, label_fault(value::text(path, value)?))
            })?,
        };
        Some(NetworkReference { namespace, name })
    }

    fn interface(&mut self) -> Option<IfName> {
        let new = self.or_invalid("interface", Rule::InvalidInterfaceName, value::interface);
        let old = self.or_invalid("interfaceRequest", Rule::InvalidInterfaceName, value::interface);
        if let (Some(new), Some(old)) = (&new, &old)
            && new != old
        {
            let fault =
                self.reader.fault(Rule::ConflictingInterfaceNames, format!("interface requests {new}"));
            let fault = fault.at(self.path.key("interfaceRequest")).showing(&value::shown(old.as_str()));
            self.reader.fails(fault.hint("remove interfaceRequest, the old name of interface"));
        }
        new.or(old)
    }

    /// Reads `cni-args` without changing a byte, because only plugins interpret it.
    fn cni_args(&mut self) -> Object {
        self.or_invalid("cni-args", Rule::InvalidCniArgs, |path, value| {
            value::object(path, value).map(|_| ())
        });
        let raw = self.object.get("cni-args");
        raw.and_then(|raw| Object::parse(raw.get().as_bytes(), "cni-args").ok()).unwrap_or_default()
    }

    fn default_route(&mut self) -> DefaultRoute {
        match self.or_invalid("default-route", Rule::InvalidDefaultRoute, value::gateways) {
            None => DefaultRoute::NotRequested,
            Some(gateways) if gateways.is_empty() => DefaultRoute::FromPlugins,
            Some(gateways) => DefaultRoute::Via(gateways),
        }
    }

    fn claim(&mut self, beside_ips: bool) -> Option<String> {
        let claim = self.or_fails("ipam-claim-reference", Rule::InvalidIpamClaim, |path, value| {
            named(path, value, definition_name_fault(value::text(path, value)?))
        })?;
        if beside_ips {
            let fault =
                self.reader.fault(Rule::IpsWithIpamClaim, "ips requests addresses in the same element");
            let fault = fault.at(self.path.key("ipam-claim-reference")).showing(&value::shown(&claim));
            let fault = fault.hint("keep one of the two");
            // OVN-Kubernetes writes both for the primary network of a virtual machine; they name the same address.
            match self.reader.annotation {
                Annotation::DefaultNetwork => self.reader.warn(Reason::Questionable, fault),
                Annotation::Networks => self.reader.fails(fault),
            }
        }
        Some(claim)
    }

    fn device(&mut self) -> Option<String> {
        let id = self.or_fails("deviceID", Rule::InvalidDeviceId, |path, value| {
            let text = value::text(path, value)?;
            let bad = text.len() > 253 || text.contains(|c: char| c.is_control());
            named(path, value, bad.then(|| "is not a device id".to_owned()))
        })?;
        Some(id).filter(|id| !id.is_empty())
    }

    fn resource(&mut self) -> Option<String> {
        self.or_fails("resourceName", Rule::InvalidResourceName, |path, value| {
            named(path, value, resource_fault(value::text(path, value)?))
        })
    }

    /// Refuses a hardware address and a GUID that differ: the address's lower 8 bytes must be the GUID (C11).
    fn compare(&mut self, element: &Element) {
        if let (Some(mac), Some(guid)) = (&element.mac, &element.guid)
            && guid_of(mac).as_ref() != Some(guid)
        {
            let fault = self
                .reader
                .fault(Rule::MacGuidMismatch, format!("mac requests {mac}, whose lower 8 bytes differ"));
            let fault = fault.at(self.path.key("infiniband-guid")).showing(&value::shown(&guid.to_string()));
            self.reader.invalid(fault.hint("keep one of the two"));
        }
    }

    fn warn_about_empty_values(&mut self) {
        for key in EMPTY_IS_ABSENT {
            if let Some((path, value)) = self.written(key).filter(|(_, value)| is_empty(key, value)) {
                let fault = self.reader.fault(Rule::EmptyValue, "is empty and counts as absent");
                let fault = fault.at(path).showing(&value.to_string());
                self.reader.warn(Reason::Questionable, fault.hint("remove the key"));
            }
        }
    }

    fn warn_about_unknown_keys(&mut self) {
        let mut found: Vec<(KeyPath, &str, &[&str])> = Vec::new();
        let keys: Vec<&str> = self.object.iter().map(|(key, _)| key).collect();
        for key in value::unknown(keys.iter().copied(), KEYS) {
            found.push((self.path.key(key), key, KEYS));
        }
        let ports = self.value("portMappings");
        let bandwidth = self.value("bandwidth");
        let maps = ports.iter().flat_map(|(path, value)| {
            value
                .as_array()
                .into_iter()
                .flatten()
                .enumerate()
                .map(|(i, item)| (path.index(i), item, PORT_KEYS))
        });
        let maps = maps.chain(bandwidth.iter().map(|(path, value)| (path.clone(), value, BANDWIDTH_KEYS)));
        for (path, value, known) in maps {
            let keys = value.as_object().into_iter().flatten().map(|(key, _)| key.as_str());
            found.extend(value::unknown(keys, known).into_iter().map(|key| (path.key(key), key, known)));
        }
        found.truncate(WARNINGS_MAX);
        for (path, key, known) in found {
            let fault = self.reader.fault(Rule::UnknownKey, "unknown key; it has no effect");
            let path = if key.len() > LONGEST_KEY { self.path.clone() } else { path };
            let other = OTHER_NAMES.iter().find(|(name, _)| fold::same(name, key) && known == KEYS);
            let hint = other.map_or_else(|| hint(key, known), |(_, meant)| format!("did you mean {meant}?"));
            self.reader.warn(Reason::UnknownKey, fault.at(path).hint(hint));
        }
        if self.reader.annotation == Annotation::DefaultNetwork && self.value("interface").is_some() {
            let fault = self
                .reader
                .fault(Rule::RenamedDefaultInterface, "renames the interface that the runtime requested");
            let fault = fault.at(self.path.key("interface"));
            self.reader.warn(Reason::Questionable, fault);
        }
    }
}

/// Returns the fault in a name, with a hint if it is a reference.
fn fault_of_name(text: &str, fault: String) -> String {
    match (text.split_once('/'), text.split_once('@')) {
        (Some((namespace, name)), _) => {
            format!("{fault}; write \"namespace\": {namespace:?} and \"name\": {name:?}")
        }
        (None, Some((name, interface))) => {
            format!("{fault}; write \"name\": {name:?} and \"interface\": {interface:?}")
        }
        (None, None) => fault,
    }
}

/// Whether a value is empty and has the type that the key requires.
fn is_empty(key: &str, value: &Value) -> bool {
    match value {
        Value::Array(list) => key == "portMappings" && list.is_empty(),
        Value::Object(map) => key == "bandwidth" && map.is_empty(),
        Value::String(text) => !["portMappings", "bandwidth"].contains(&key) && text.is_empty(),
        _ => false,
    }
}

/// Returns the string `value`, or an error if there is a fault in it.
fn named(path: &KeyPath, value: &Value, fault: Option<String>) -> Read<String> {
    let text = value::text(path, value)?;
    match fault {
        None => Ok(text.to_owned()),
        Some(reason) => Err(Wrong { path: path.clone(), value: value.to_string(), reason }),
    }
}
