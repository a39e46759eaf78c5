//! The two annotations in which a pod selects networks, parsed into typed elements.
//!
//! Parsing continues after a fault, because the linter reports all of them. [`Reading::settle`] then decides as the
//! multi-network specification (NPWG) does: an invalid annotation is ignored as a whole. Therefore it reports a fault
//! that makes the annotation invalid before a fault that fails a single attachment.
//!
//! Rules where the specification is silent (1E):
//! - Leading and trailing blanks are removed. The value is JSON if it begins with `[`.
//! - `{` and `"` at the beginning are refused with a hint; `null` elements are refused.
//! - An absent, empty or blank annotation and `[]` select nothing. The default-network annotation must select exactly
//!   one network (C16).
//! - A value that is `null` counts as absent. Keys are matched as Go's JSON decoder matches them.
//!
//! Source: multi-network specification v1.3, 4.1 and 4.1.2.1.*; Multus `v1.multus-cni.io/default-network`,
//! `ns/name@ifname`.

mod element;
mod form;
mod value;

use std::collections::BTreeMap;
use std::net::IpAddr;

use cni::capability::{Bandwidth, HardwareAddress, PortMapping, RequestedIp};
use cni::name::IfName;
use cni::object::Object;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::metadata::NetworkReference;
use crate::refusal::{Fault, KeyPath, Reason, Refusal, Warning, quote};
use crate::request::DefaultRoute;
use crate::rule::Rule;

/// Maximum length for an annotation, in bytes: Kubernetes' limit for all annotations on an object together.
pub const ANNOTATION_MAX: usize = 256 * 1024;

/// Maximum number of elements in one annotation.
pub const ELEMENTS_MAX: usize = 128;

/// Maximum number of warnings for one annotation; further ones are dropped.
pub const WARNINGS_MAX: usize = 16;

/// Annotation in which a pod selects networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Annotation {
    /// `k8s.v1.cni.cncf.io/networks`: any number of further networks.
    Networks,
    /// `v1.multus-cni.io/default-network`: one network in place of the node's default.
    DefaultNetwork,
}

impl Annotation {
    /// Returns the annotation's key on the pod.
    pub fn key(self) -> &'static str {
        match self {
            Annotation::Networks => "k8s.v1.cni.cncf.io/networks",
            Annotation::DefaultNetwork => "v1.multus-cni.io/default-network",
        }
    }

    /// Returns the annotation's name in messages.
    pub fn subject(self) -> String {
        format!("annotation {}", self.key())
    }
}

/// A selected network and the pod's requests for it.
#[derive(Clone, Debug)]
pub struct Element {
    /// Index in the annotation, from 0.
    pub index: usize,
    /// The definition; an omitted namespace is already replaced by the default.
    pub network: NetworkReference,
    /// Addresses that the pod requests.
    pub ips: Vec<RequestedIp>,
    /// MAC address that the pod requests.
    pub mac: Option<HardwareAddress>,
    /// InfiniBand GUID that the pod requests.
    pub guid: Option<HardwareAddress>,
    /// Interface name that the pod requests.
    pub interface: Option<IfName>,
    /// Arguments that the plugins get under `args.cni`, unchanged.
    pub cni_args: Object,
    /// Requested port mappings; the protocol is in lower case.
    pub port_mappings: Vec<PortMapping>,
    /// Requested bandwidth limits; each rate has a burst.
    pub bandwidth: Option<Bandwidth>,
    /// Request for the default route.
    pub default_route: DefaultRoute,
    /// IPAMClaim that the addresses are taken from.
    pub ipam_claim: Option<String>,
    /// Device id that the pod requests (Multus).
    pub device_id: Option<String>,
    /// Device-plugin resource that the pod requests (Multus).
    pub resource: Option<String>,
}

impl Element {
    fn plain(index: usize, network: NetworkReference) -> Element {
        Element {
            index,
            network,
            ips: Vec::new(),
            mac: None,
            guid: None,
            interface: None,
            cni_args: Object::default(),
            port_mappings: Vec::new(),
            bandwidth: None,
            default_route: DefaultRoute::NotRequested,
            ipam_claim: None,
            device_id: None,
            resource: None,
        }
    }

    /// Returns the requests by key, each in a normalized form, so that equal requests compare equal. The name, the
    /// interface and the default route are left out.
    pub fn requests(&self) -> BTreeMap<String, String> {
        let Element { index: _, network: _, interface: _, default_route: _, ips, mac, guid, .. } = self;
        let Element { cni_args, port_mappings, bandwidth, ipam_claim, device_id, resource, .. } = self;
        // A value that is nested too deeply for `Value` is compared as written.
        let value = |raw: &RawValue| {
            serde_json::from_str::<Value>(raw.get())
                .map_or_else(|_| raw.get().to_owned(), |value| value.to_string())
        };
        let args = cni_args.iter().map(|(key, raw)| (format!("cni-args.{key}"), value(raw)));
        let others = [
            ("ips", (!ips.is_empty()).then(|| serde_json::to_string(ips))),
            ("mac", mac.as_ref().map(|mac| Ok(mac.to_string()))),
            ("infiniband-guid", guid.as_ref().map(|guid| Ok(guid.to_string()))),
            ("portMappings", (!port_mappings.is_empty()).then(|| serde_json::to_string(port_mappings))),
            ("bandwidth", bandwidth.as_ref().map(serde_json::to_string)),
            ("ipam-claim-reference", ipam_claim.clone().map(Ok)),
            ("deviceID", device_id.clone().map(Ok)),
            ("resourceName", resource.clone().map(Ok)),
        ];
        let others =
            others.into_iter().filter_map(|(key, text)| Some((key.to_owned(), text?.unwrap_or_default())));
        others.chain(args).collect()
    }
}

/// Content of one annotation, and all faults in it.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// Elements that could be read.
    pub elements: Vec<Element>,
    /// Faults that invalidate the annotation or fail an attachment, in the order they were found.
    pub refusals: Vec<Refusal>,
    /// Faults that change nothing.
    pub warnings: Vec<Warning>,
}

/// Valid annotation.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Elements, in annotation order.
    pub elements: Vec<Element>,
    /// Faults that change nothing.
    pub warnings: Vec<Warning>,
}

impl Reading {
    /// Reads the annotation; elements without a namespace are in `home`.
    pub fn of(annotation: Annotation, text: &str, home: &str) -> Reading {
        let mut reader = Reader { annotation, reading: Reading::default() };
        if text.trim().is_empty() {
            return reader.reading;
        }
        for (index, item) in form::items(&mut reader, text).into_iter().enumerate() {
            if let Some(element) = element::read(&mut reader, index, &item, home) {
                reader.reading.elements.push(element);
            }
        }
        reader.check_across_elements();
        reader.reading
    }

    /// Returns the selection if there is no refusal.
    ///
    /// # Errors
    /// The first refusal that makes the annotation invalid, else the first that fails an attachment.
    pub fn settle(self) -> Result<Selection, Refusal> {
        let Reading { elements, refusals, warnings } = self;
        let invalid = refusals.iter().find(|refusal| matches!(refusal, Refusal::AnnotationInvalid(_)));
        match invalid.or(refusals.first()) {
            Some(refusal) => Err(refusal.clone()),
            None => Ok(Selection { elements, warnings }),
        }
    }
}

/// Parser state for one annotation.
struct Reader {
    annotation: Annotation,
    reading: Reading,
}

impl Reader {
    /// Returns a fault in this annotation, to be completed by the caller.
    fn fault(&self, rule: Rule, reason: impl Into<String>) -> Fault {
        Fault::new(rule, self.annotation.subject(), reason)
    }

    /// Records a fault that makes the annotation invalid.
    fn invalid(&mut self, fault: Fault) {
        self.reading.refusals.push(Refusal::invalid(fault));
    }

    /// Records a fault that fails an attachment.
    fn fails(&mut self, fault: Fault) {
        self.reading.refusals.push(Refusal::failed(fault));
    }

    fn warn(&mut self, reason: Reason, fault: Fault) {
        if self.reading.warnings.len() < WARNINGS_MAX {
            self.reading.warnings.push(Warning::new(reason, fault));
        }
    }

    /// Checks that no element requests the same address for the pod and as gateway.
    fn check_own_gateways(&mut self) {
        let mut own = Vec::new();
        for element in &self.reading.elements {
            let DefaultRoute::Via(gateways) = &element.default_route else { continue };
            let is_own = |gateway: &&IpAddr| element.ips.iter().any(|ip| ip.address == **gateway);
            own.extend(gateways.iter().find(is_own).map(|gateway| (element.index, *gateway)));
        }
        for (index, gateway) in own {
            let why = format!("{gateway} is also in ips: a pod cannot be its own gateway");
            let fault = self.fault(Rule::InvalidDefaultRoute, why);
            let path = KeyPath::root().index(index).key("default-route");
            self.invalid(fault.at(path).hint("set it to the address of a router"));
        }
    }

    /// Checks the rules that concern more than one element.
    fn check_across_elements(&mut self) {
        self.check_own_gateways();
        let routes: Vec<usize> = self
            .reading
            .elements
            .iter()
            .filter(|element| element.default_route.is_requested())
            .map(|element| element.index)
            .collect();
        if let [first, second, ..] = routes.as_slice() {
            let path = KeyPath::root().index(*second).key("default-route");
            let fault = self
                .fault(
                    Rule::DuplicateDefaultRoute,
                    format!("element [{first}] already requests the default route"),
                )
                .at(path)
                .hint("leave default-route on one element only");
            self.invalid(fault);
        }
        let mut names: Vec<&IfName> = Vec::new();
        let mut twice = Vec::new();
        for element in &self.reading.elements {
            let Some(name) = &element.interface else { continue };
            match names.contains(&name) {
                true => twice.push((name.clone(), element.index)),
                false => names.push(name),
            }
        }
        for (name, index) in twice {
            let fault = self.fault(Rule::DuplicateInterfaceName, "is the name of an earlier attachment");
            let fault =
                fault.at(KeyPath::root().index(index).key("interface")).showing(&quote(name.as_str()));
            self.fails(fault.hint("choose another name, or leave it out"));
        }
        let count = self.reading.elements.len();
        if self.annotation == Annotation::DefaultNetwork && count != 1 && self.reading.refusals.is_empty() {
            let fault = self.fault(Rule::DefaultNetworkCount, format!("selects {count} networks"));
            self.fails(fault.hint("name exactly one, or remove the annotation"));
        }
    }
}

#[cfg(test)]
mod tests;
