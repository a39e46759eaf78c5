//! Linter: finds every problem in a file that is visible without a cluster, and reports place, rule and suggestion.
//!
//! It checks definitions, the network annotations of pods and pod templates, network policies, and CNI configurations,
//! also those inside definitions. Positions are line and column in the file, not in the embedded JSON.
//!
//! It uses the same parsers as the plan, so the two agree. [`Severity`] explains the severities.
//!
//! Source: multi-network specification, sections 3 and 4.

pub mod across;
mod annotation;
mod chain;
mod definition;
pub mod kuryr;
mod misplaced;
mod network_policy;
mod order;
pub mod page;
pub mod planned;
mod plugin;
pub mod plugins;
pub mod ranges;
mod refused;
mod repair;

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::{Manifest, Node, Position, Source, Span};
use npwg::refusal::{Fault, KeyPath};
use npwg::rule::Severity;

pub use repair::{Edit, apply};

/// Finding of the linter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// Severity of the rule.
    pub severity: Severity,
    /// Position in the file.
    pub position: Position,
    /// Fault, with the rule it breaks.
    #[serde(flatten)]
    pub fault: Fault,
    /// Corrected object; empty if it is unknown.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub corrected: String,
    /// Edit of the file that fixes the finding.
    #[serde(skip)]
    pub fix: Option<Edit>,
}

/// Options of plugins that the linter knows.
#[derive(Clone, Debug, Default)]
pub struct Knowledge {
    /// Options of each plugin, by type; plugins that are missing here are not checked.
    pub plugin_keys: BTreeMap<String, Vec<String>>,
    /// Options in `ipam` of each IPAM plugin.
    pub ipam_keys: BTreeMap<String, Vec<String>>,
    /// Programs on the node, if the plugin directories are known.
    pub programs: Option<Programs>,
    /// Number of cluster nodes, if it is known.
    pub nodes: Option<u64>,
}

/// Programs in plugin directories.
#[derive(Clone, Debug, Default)]
pub struct Programs {
    /// The directories.
    pub directories: Vec<String>,
    /// File names of the programs.
    pub names: BTreeSet<String>,
}

/// Returns the findings of a manifest, in the order of the file.
pub fn manifest(manifest: &Manifest, knowledge: &Knowledge) -> Vec<Finding> {
    let mut report = Report { source: &manifest.source, findings: Vec::new() };
    for problem in &manifest.problems {
        report.add(problem.at, problem.fault.clone());
    }
    for located in &manifest.definitions {
        definition::look(&mut report, located, knowledge);
    }
    for located in &manifest.pods {
        annotation::look(&mut report, located);
    }
    for located in &manifest.policies {
        network_policy::look(&mut report, located);
    }
    misplaced::look(&mut report, manifest);
    let mut findings = report.sorted();
    let edits: Vec<Edit> = findings.iter().filter_map(|finding| finding.fix.clone()).collect();
    let fixable = findings.iter_mut().filter(|finding| finding.fix.is_some());
    for (finding, is_harmless) in fixable.zip(repair::harmless(manifest.source.text(), &edits)) {
        if !is_harmless {
            (finding.fix, finding.corrected) = (None, String::new());
        }
    }
    findings
}

/// Returns the findings for a CNI configuration on disk: a single plugin or a list.
pub fn configuration(text: &str, knowledge: &Knowledge) -> Vec<Finding> {
    let source = Source::new(text);
    let mut report = Report { source: &source, findings: Vec::new() };
    let place = Place::Whole;
    chain::look(
        &mut report,
        &chain::Subject { name: "configuration", owner: None, has_resource: false, place },
        text,
        knowledge,
    );
    report.sorted()
}

/// Findings and the source that they are about.
struct Report<'a> {
    source: &'a Source,
    findings: Vec<Finding>,
}

/// Place of an embedded text in the file.
#[derive(Clone, Copy)]
enum Place<'a> {
    /// The text is the whole file.
    Whole,
    /// The text is the string of the YAML scalar at these offsets.
    Scalar(Span),
    /// The text is the JSON form of this YAML node, for a `spec.config` that is written as a map.
    Nodes(&'a Node),
}

impl Report<'_> {
    fn add(&mut self, at: usize, fault: Fault) -> &mut Finding {
        let severity = fault.rule.severity();
        let position = self.source.position(at);
        self.findings.push(Finding { severity, position, fault, corrected: String::new(), fix: None });
        let last = self.findings.len() - 1;
        &mut self.findings[last]
    }

    /// Adds a finding at an offset of an embedded text.
    fn add_inside(&mut self, place: Place<'_>, text: &str, offset: usize, fault: Fault) {
        self.add(embedded(self.source, place, text, offset), fault);
    }

    /// Adds a finding at the path in an embedded text.
    fn add_at_path(&mut self, place: Place<'_>, text: &str, fault: Fault) {
        match place {
            Place::Nodes(node) => {
                let at = node.nearest(&fault.path).span.start;
                self.add(at, fault);
            }
            place => self.add_inside(place, text, offset(text, &fault.path), fault),
        }
    }

    fn sorted(self) -> Vec<Finding> {
        let mut findings = self.findings;
        findings.sort_by_key(|finding| (finding.position, finding.severity));
        findings.dedup();
        findings
    }
}

/// Returns the file offset for an offset in an embedded text.
fn embedded(source: &Source, place: Place<'_>, text: &str, offset: usize) -> usize {
    match place {
        Place::Whole => offset,
        Place::Scalar(span) => span.start + crate::position::in_scalar(source.slice(span), text, offset),
        Place::Nodes(node) => node.span.start,
    }
}

/// Returns the offset of a path in an annotation or configuration text, in JSON or in the comma form.
fn offset(text: &str, path: &KeyPath) -> usize {
    match text.trim_start().starts_with(['[', '{']) {
        true => crate::position::offset(text, path),
        false => match path.steps().first() {
            Some(npwg::refusal::Step::Index(index)) => {
                let mut starts = std::iter::once(0).chain(text.match_indices(',').map(|(at, _)| at + 1));
                let start = starts.nth(*index).unwrap_or_default();
                let rest = text.get(start..).unwrap_or_default();
                start + (rest.len() - rest.trim_start().len())
            }
            _ => 0,
        },
    }
}

#[cfg(test)]
mod tests;
