//! Linter across files: definitions that are there twice, selected networks that are in no file, pods that
//! the plan refuses because of a definition in another file, and addresses that two pods request.
//!
//! A file may be read in pieces, so only places, definitions, and the pods' network annotations are kept.

mod addresses;
mod plans;
mod policy_selectors;
mod selecting_pod;

use std::collections::BTreeMap;

use super::Finding;
use crate::node::Value;
use crate::{Located, Manifest, Position};
use npwg::metadata::{Definition, NetworkReference};
use npwg::nearest::hint;
use npwg::policy::Labels;
use npwg::refusal::{Fault, KeyPath, quote};
use npwg::rule::Rule;
use npwg::selection::{Annotation, Reading};
use policy_selectors::PolicySelectors;
use selecting_pod::SelectingPod;

/// Facts that are kept from each file for the comparison.
#[derive(Debug, Default)]
pub struct Across {
    /// Where each name is first defined.
    places: BTreeMap<NetworkReference, Seen>,
    /// The last definition for each name, which counts if the files are applied in order.
    definitions: BTreeMap<NetworkReference, Definition>,
    namespaces: BTreeMap<String, Labels>,
    pods: Vec<SelectingPod>,
    selected: Vec<Selected>,
    policies: PolicySelectors,
    findings: Vec<(String, Finding)>,
}

/// Place in a file.
#[derive(Clone, Debug)]
struct Seen {
    file: String,
    position: Position,
}

/// One place that selects a network.
#[derive(Debug)]
struct Selected {
    network: NetworkReference,
    subject: String,
    path: KeyPath,
    seen: Seen,
}

impl Across {
    /// Adds a file, or a piece that begins after `lines_before` lines.
    pub fn add(&mut self, file: &str, manifest: &Manifest, lines_before: usize) {
        let seen = |at: usize| {
            let Position { line, column } = manifest.source.position(at);
            Seen { file: file.to_owned(), position: Position { line: line + lines_before, column } }
        };
        for located in &manifest.definitions {
            let reference = located.value.reference();
            let path = KeyPath::root().key("metadata").key("name");
            let here = seen(located.node_at(&path).span.start);
            if reference.name.is_empty() {
                continue;
            }
            self.definitions.insert(reference.clone(), located.value.clone());
            if let Some(first) = self.places.get(&reference) {
                let Seen { file, position } = first;
                let reason =
                    format!("is also in {file}:{}; the one that is applied last counts", position.line);
                let subject = npwg::definition::subject(&reference);
                let fault = Fault::new(Rule::DuplicateDefinition, subject, reason).at(path);
                self.say(
                    &here,
                    fault.showing(&quote(&reference.name)).hint("rename or remove one of the two"),
                );
            } else {
                self.places.insert(reference, here);
            }
        }
        let namespaces = manifest.namespaces.iter().map(|Located { value, .. }| value);
        self.namespaces.extend(namespaces.map(|found| (found.name.clone(), found.labels.clone())));
        self.policies.add(manifest, &seen);
        for located in &manifest.pods {
            let pod = &located.value.pod;
            let annotation = Annotation::Networks;
            let path = KeyPath::root().key("metadata").key("annotations").key(annotation.key());
            if let Some(text) = pod.annotations.get(annotation.key()) {
                let (node, source) = (located.node_at(&path), &manifest.source);
                let reading = Reading::of(annotation, text, &pod.namespace);
                let mut elements = BTreeMap::new();
                for element in &reading.elements {
                    let path = KeyPath::root().index(element.index);
                    let place = super::Place::Scalar(node.span);
                    let at = super::embedded(source, place, text, super::offset(text, &path));
                    elements.insert(element.index, seen(at));
                    let (network, subject) = (element.network.clone(), annotation.subject());
                    self.selected.push(Selected { network, subject, path, seen: seen(at) });
                }
                self.pods.push(SelectingPod::new(located, reading, seen(node.span.start), elements));
            }
            self.networks_of_machine(located, &seen);
        }
    }

    /// Adds the networks on a KubeVirt machine, which KubeVirt writes into the pod's annotation.
    fn networks_of_machine(&mut self, located: &Located<crate::PodObject>, seen: &dyn Fn(usize) -> Seen) {
        let crate::PodObject { pod, kind } = &located.value;
        if !kind.starts_with("VirtualMachine") {
            return;
        }
        let list = located.node_at(&KeyPath::root().key("spec").key("networks"));
        let Value::List(networks) = &list.value else { return };
        for (index, node) in networks.iter().enumerate() {
            let name = node.get("multus").and_then(|multus| multus.get("networkName"));
            let Some((Value::Text(text), span)) = name.map(|name| (&name.value, name.span)) else { continue };
            let network = match text.split_once('/') {
                Some((namespace, name)) => NetworkReference::new(namespace, name),
                None => NetworkReference::new(&pod.namespace, text),
            };
            let path =
                KeyPath::root().key("spec").key("networks").index(index).key("multus").key("networkName");
            let subject = format!("{} {}/{}", kind.to_lowercase(), pod.namespace, pod.name);
            self.selected.push(Selected { network, subject, path, seen: seen(span.start) });
        }
    }

    fn say(&mut self, seen: &Seen, fault: Fault) {
        let severity = fault.rule.severity();
        let finding =
            Finding { severity, position: seen.position, fault, corrected: String::new(), fix: None };
        self.findings.push((seen.file.clone(), finding));
    }

    /// Returns the findings, each with the file. Without any definition nothing is known about the pods' networks.
    pub fn findings(mut self) -> Vec<(String, Finding)> {
        let policies = std::mem::take(&mut self.policies);
        for (seen, fault) in policies.faults(&self.places) {
            self.say(&seen, fault);
        }
        let refused = plans::refused(&self.pods, &self.definitions, &self.namespaces);
        for (seen, fault) in
            addresses::requested_twice(&self.pods, &self.definitions).into_iter().chain(refused)
        {
            self.say(&seen, fault);
        }
        if self.definitions.is_empty() {
            return self.findings;
        }
        let selected = std::mem::take(&mut self.selected);
        for Selected { network, subject, path, seen } in selected {
            if self.definitions.contains_key(&network) {
                continue;
            }
            let elsewhere = self.definitions.keys().find(|other| other.name == network.name);
            let names: Vec<&str> = self
                .definitions
                .keys()
                .filter(|other| other.namespace == network.namespace)
                .map(|other| other.name.as_str())
                .collect();
            let hint = match elsewhere {
                Some(other) => format!("did you mean {other}?"),
                None => hint(&network.name, &names),
            };
            let reason = "is in none of the files, although other definitions are";
            let fault = Fault::new(Rule::NetworkNotInFiles, subject, reason).at(path);
            self.say(&seen, fault.showing(&quote(&network.to_string())).hint(hint));
        }
        self.findings
    }
}
