//! Addresses that two pods request on one network.
//!
//! - An address is requested by `ips` or `mac` in an element, or fixed by the definition's IPAM plugin
//!   `static`.
//! - One object that runs several pods requests the same address several times.
//! - Pods that name the same IPAMClaim share the address by intention.
//! - An object that is in two files (a base and an overlay) is one object.

use std::collections::BTreeMap;

use cni::network::Network;
use npwg::metadata::{Definition, NetworkReference, SpecConfig};
use npwg::refusal::{Fault, KeyPath, quote};
use npwg::rule::Rule;
use npwg::selection::{Annotation, Element};
use serde_json::Value as Json;

use super::Seen;
use super::selecting_pod::{Instances, SelectingPod};

/// Maximum number of fixed addresses in a definition that are compared.
const STATIC_MAX: usize = 64;

/// Address on a network.
type Address = (NetworkReference, String);

/// Request for an address.
struct Requested<'a> {
    pod: &'a SelectingPod,
    element: &'a Element,
    /// Key in the element that has the address; `None` if the definition fixes it.
    key: Option<&'static str>,
}

/// Returns a finding for each request whose address another pod requests as well.
pub(super) fn requested_twice(
    pods: &[SelectingPod],
    definitions: &BTreeMap<NetworkReference, Definition>,
) -> Vec<(Seen, Fault)> {
    let mut fixed: BTreeMap<&NetworkReference, Vec<String>> = BTreeMap::new();
    let mut first: BTreeMap<Address, Requested<'_>> = BTreeMap::new();
    let mut findings = Vec::new();
    for pod in pods.iter().filter(|pod| !pod.pod.host_network && pod.instances != Instances::Count(0)) {
        for element in &pod.reading.elements {
            let of_network = |network| definitions.get(network).map(static_addresses).unwrap_or_default();
            let fixed = fixed.entry(&element.network).or_insert_with_key(|network| of_network(network));
            for (address, key) in addresses(element, fixed) {
                let requested = Requested { pod, element, key };
                if pod.instances.are_several() && element.ipam_claim.is_none() {
                    findings.push(requested.finding(&address, &requested.several()));
                    continue;
                }
                match first.get(&(element.network.clone(), address.clone())) {
                    Some(other)
                        if other.is_same_object(&requested) && other.element.index == element.index => {}
                    Some(other) if other.shares_claim(&requested) => {}
                    Some(other) => findings.push(requested.finding(&address, &requested.also(other))),
                    None => {
                        first.insert((element.network.clone(), address), requested);
                    }
                }
            }
        }
    }
    findings
}

/// Returns the addresses that an element requests, or else those that its network fixes, each with the key.
fn addresses(element: &Element, fixed: &[String]) -> Vec<(String, Option<&'static str>)> {
    let ips = element.ips.iter().map(|ip| (ip.address.to_string(), Some("ips")));
    let mac = element.mac.iter().map(|mac| (mac.to_string(), Some("mac")));
    let fixed = fixed.iter().filter(|_| element.ips.is_empty()).map(|address| (address.clone(), None));
    ips.chain(mac).chain(fixed).collect()
}

/// Returns the addresses that a definition's IPAM plugin `static` gives to every pod.
fn static_addresses(definition: &Definition) -> Vec<String> {
    let SpecConfig::Text(text) = &definition.config else { return Vec::new() };
    let Ok(network) = Network::parse(text.as_bytes(), &definition.name) else { return Vec::new() };
    let ipam = network.plugins.iter().filter_map(|plugin| plugin.read::<Json>("ipam").ok().flatten());
    let fixed = ipam.filter(|ipam| ipam["type"] == "static");
    let addresses = fixed.flat_map(|ipam| ipam["addresses"].as_array().cloned().unwrap_or_default());
    let bare = |entry: Json| {
        let text = entry["address"].as_str()?;
        let address = text.split('/').next().and_then(cni::address::parse_ip);
        Some(address?.to_string())
    };
    addresses.filter_map(bare).take(STATIC_MAX).collect()
}

impl Requested<'_> {
    fn is_same_object(&self, other: &Requested<'_>) -> bool {
        (&self.pod.kind, &self.pod.pod.namespace, &self.pod.pod.name)
            == (&other.pod.kind, &other.pod.pod.namespace, &other.pod.pod.name)
    }

    fn shares_claim(&self, other: &Requested<'_>) -> bool {
        self.element.ipam_claim.is_some() && self.element.ipam_claim == other.element.ipam_claim
    }

    /// Returns the reason if another object requests the address, too.
    fn also(&self, other: &Requested<'_>) -> String {
        if self.is_same_object(other) {
            return format!("is also requested by element [{}] of the same pod", other.element.index);
        }
        let Seen { file, position } = other.pod.place(&KeyPath::root().index(other.element.index));
        format!("is also requested by {} in {file}:{}", other.pod.subject(), position.line)
    }

    /// Returns the reason if each pod that one object runs requests the address.
    fn several(&self) -> String {
        match self.pod.instances {
            Instances::Count(count) => {
                format!("is requested by each of the {count} pods of {}", self.pod.subject())
            }
            Instances::EachNode => format!("is requested by the pod of {} on each node", self.pod.subject()),
        }
    }

    fn finding(&self, address: &str, reason: &str) -> (Seen, Fault) {
        let Element { index, network, .. } = self.element;
        let path = KeyPath::root().index(*index);
        let place = self.pod.place(&path).clone();
        let path = match self.key {
            Some(key) => path.key(key),
            None => path,
        };
        let reason = match self.key {
            Some(_) => format!("{reason}; a network can give it to one pod only"),
            None => format!("is the fixed address of {network}, and {reason}"),
        };
        let hint = match self.key {
            Some(_) => "request different addresses, or let the IPAM plugin choose them",
            None => "use an IPAM plugin that allocates addresses, or one definition for each pod",
        };
        let subject = format!("{} of {}", Annotation::Networks.subject(), self.pod.subject());
        let fault = Fault::new(Rule::DuplicateAddress, subject, reason).at(path).showing(&quote(address));
        (place, fault.hint(hint))
    }
}
