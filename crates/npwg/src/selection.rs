//! The two annotations in which a pod selects networks, read into typed elements.
//!
//! Reading never stops at the first fault: the linter wants all of them. [`Reading::settle`] then decides
//! as the standard does. An invalid annotation is ignored as a whole, so that verdict comes before the
//! failure of any single attachment in it.
//!
//! Rules where the standard is silent (1E): text is trimmed; it is JSON if it begins with `[`; `{` and
//! `"` are refused with a hint; `null` elements are refused; an absent, empty or blank annotation and
//! `[]` select nothing, except that the default-network annotation must select exactly one (C16).
//! A value that is `null` counts as absent. Keys are matched as Go's decoder matches them.
//!
//! Source: the standard v1.3, 4.1 and 4.1.2.1.*; Multus `v1.multus-cni.io/default-network`, `ns/name@ifname`.

mod element;
mod form;
mod value;

use std::collections::BTreeMap;

use cni::capability::{Bandwidth, HardwareAddress, PortMapping, RequestedIp};
use cni::name::IfName;
use cni::object::Object;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::metadata::NetworkReference;
use crate::refusal::{Fault, KeyPath, Reason, Refusal, Warning, quote};
use crate::request::DefaultRoute;
use crate::rule::Rule;

/// Longest annotation read, in bytes: Kubernetes' limit for all annotations of an object together.
pub const ANNOTATION_MAX: usize = 256 * 1024;

/// Most elements of one annotation.
pub const ELEMENTS_MAX: usize = 128;

/// Most warnings of one annotation; what is odd beyond that is not told apart any more.
pub const WARNINGS_MAX: usize = 16;

/// One of the two annotations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Annotation {
    /// `k8s.v1.cni.cncf.io/networks`: any number of further networks.
    Networks,
    /// `v1.multus-cni.io/default-network`: one network in place of the node's default.
    DefaultNetwork,
}

impl Annotation {
    /// The annotation's key on the pod.
    pub fn key(self) -> &'static str {
        match self {
            Annotation::Networks => "k8s.v1.cni.cncf.io/networks",
            Annotation::DefaultNetwork => "v1.multus-cni.io/default-network",
        }
    }

    /// How messages name it.
    pub fn subject(self) -> String {
        format!("annotation {}", self.key())
    }
}

/// One selected network and everything asked of it.
#[derive(Clone, Debug)]
pub struct Element {
    /// Its place in the annotation, from 0.
    pub index: usize,
    /// The definition; the namespace is filled in.
    pub network: NetworkReference,
    /// Requested addresses.
    pub ips: Vec<RequestedIp>,
    /// Requested hardware address.
    pub mac: Option<HardwareAddress>,
    /// Requested InfiniBand GUID.
    pub guid: Option<HardwareAddress>,
    /// Requested interface name.
    pub interface: Option<IfName>,
    /// What goes to the plugins under `args.cni`, untouched.
    pub cni_args: Object,
    /// Requested port mappings; the protocol is in lower case.
    pub port_mappings: Vec<PortMapping>,
    /// Requested bandwidth limits; each rate has a burst.
    pub bandwidth: Option<Bandwidth>,
    /// What it says about the default route.
    pub default_route: DefaultRoute,
    /// The IPAMClaim to take addresses from.
    pub ipam_claim: Option<String>,
    /// A device chosen by the pod's author (Multus).
    pub device_id: Option<String>,
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
            default_route: DefaultRoute::Unasked,
            ipam_claim: None,
            device_id: None,
        }
    }

    /// What it asks of its network, by key, as text that is the same however it was written. Its name, its interface and
    /// the default route are known by other means.
    pub fn requests(&self) -> BTreeMap<String, String> {
        let Element { index: _, network: _, interface: _, default_route: _, ips, mac, guid, .. } = self;
        let Element { cni_args, port_mappings, bandwidth, ipam_claim, device_id, .. } = self;
        // What is too deep for a value is compared by its text.
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
        ];
        let others =
            others.into_iter().filter_map(|(key, text)| Some((key.to_owned(), text?.unwrap_or_default())));
        others.chain(args).collect()
    }
}

/// All that one annotation says, and all that is wrong with it.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// The elements that could be read.
    pub elements: Vec<Element>,
    /// What must not be let pass, in the order it was found.
    pub refusals: Vec<Refusal>,
    /// What may pass.
    pub warnings: Vec<Warning>,
}

/// A valid annotation.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// The elements, in the order of the annotation.
    pub elements: Vec<Element>,
    /// What may pass.
    pub warnings: Vec<Warning>,
}

impl Reading {
    /// Reads `text`; elements without a namespace are in `home`.
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
        reader.look_at_the_whole();
        reader.reading
    }

    /// The selection, or the verdict: first what makes the annotation invalid, then what fails an attachment.
    ///
    /// # Errors
    /// The first refusal of the graver kind.
    pub fn settle(self) -> Result<Selection, Refusal> {
        let Reading { elements, refusals, warnings } = self;
        let invalid = refusals.iter().find(|refusal| matches!(refusal, Refusal::AnnotationInvalid(_)));
        match invalid.or(refusals.first()) {
            Some(refusal) => Err(refusal.clone()),
            None => Ok(Selection { elements, warnings }),
        }
    }
}

/// Where the reading of one annotation is collected.
struct Reader {
    annotation: Annotation,
    reading: Reading,
}

impl Reader {
    /// A fault of this annotation, to be completed.
    fn fault(&self, rule: Rule, reason: impl Into<String>) -> Fault {
        Fault::new(rule, self.annotation.subject(), reason)
    }

    /// The annotation is invalid: the standard says so.
    fn invalid(&mut self, fault: Fault) {
        self.reading.refusals.push(Refusal::invalid(fault));
    }

    /// An attachment cannot be made.
    fn fails(&mut self, fault: Fault) {
        self.reading.refusals.push(Refusal::failed(fault));
    }

    fn warn(&mut self, reason: Reason, fault: Fault) {
        if self.reading.warnings.len() < WARNINGS_MAX {
            self.reading.warnings.push(Warning::new(reason, fault));
        }
    }

    /// The rules that concern more than one element.
    fn look_at_the_whole(&mut self) {
        let routes: Vec<usize> = self
            .reading
            .elements
            .iter()
            .filter(|element| element.default_route.is_asked())
            .map(|element| element.index)
            .collect();
        if let [first, second, ..] = routes.as_slice() {
            let path = KeyPath::root().index(*second).key("default-route");
            let fault = self
                .fault(
                    Rule::DuplicateDefaultRoute,
                    format!("element [{first}] asks for the default route already"),
                )
                .at(path)
                .cure("leave default-route on one element only");
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
            self.fails(fault.cure("choose another name, or leave it out"));
        }
        let count = self.reading.elements.len();
        if self.annotation == Annotation::DefaultNetwork && count != 1 && self.reading.refusals.is_empty() {
            let fault = self.fault(Rule::DefaultNetworkCount, format!("selects {count} networks"));
            self.fails(fault.cure("name exactly one, or remove the annotation"));
        }
    }
}

#[cfg(test)]
mod tests;
