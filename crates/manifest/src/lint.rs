//! Every problem of a file that can be seen without a cluster, with its place, the rule and the cure.
//!
//! Looked at are definitions, the annotations of pods and pod templates, and CNI configurations, those inside
//! definitions included: their problems have the line and column of the file, not of the text inside.
//!
//! An error will be refused by the API server, by us or by a plugin; a warning will do something else than was
//! probably meant; a note says what will happen.
//!
//! Source: the standard, sections 3 and 4; the reading is the same as the plan's, so the two cannot differ.

mod annotation;
mod chain;
mod definition;
pub mod kuryr;
pub mod page;
mod plugin;
pub mod plugins;
mod repair;
mod values;

use std::collections::BTreeMap;

use serde::Serialize;

use crate::{Manifest, Node, Position, Source, Span};
use npwg::refusal::{Fault, KeyPath};
use npwg::rule::Severity;

pub use repair::{Edit, apply};

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// Severity of the rule.
    pub severity: Severity,
    /// Where in the file.
    pub position: Position,
    /// Fault, with the rule it breaks.
    #[serde(flatten)]
    pub fault: Fault,
    /// The object as it should read; empty where that is not known.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub corrected: String,
    /// What would cure it in the file.
    #[serde(skip)]
    pub fix: Option<Edit>,
}

/// What the linter knows beyond the file.
#[derive(Clone, Debug, Default)]
pub struct Knowledge {
    /// The keys each plugin takes, by its type; plugins that are not here are not looked into.
    pub plugin_keys: BTreeMap<String, Vec<String>>,
    /// The same of plugins that give addresses: the keys of `ipam`.
    pub ipam_keys: BTreeMap<String, Vec<String>>,
}

/// Findings of a manifest, in the order of the file.
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
    report.sorted()
}

/// Findings of a CNI configuration on disk: one plugin's, or a list.
pub fn configuration(text: &str, knowledge: &Knowledge) -> Vec<Finding> {
    let source = Source::new(text);
    let mut report = Report { source: &source, findings: Vec::new() };
    let place = Place::Whole;
    chain::look(&mut report, &chain::Subject { name: "configuration", owner: None, place }, text, knowledge);
    report.sorted()
}

/// Findings, and the text they are about.
struct Report<'a> {
    source: &'a Source,
    findings: Vec<Finding>,
}

/// Where an embedded text stands in the file.
#[derive(Clone, Copy)]
enum Place<'a> {
    /// It is the file.
    Whole,
    /// In this scalar.
    Scalar(Span),
    /// It is no text there, but these nodes.
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

    /// A finding at a byte of an embedded text.
    fn add_inside(&mut self, place: Place<'_>, text: &str, offset: usize, fault: Fault) {
        let at = match place {
            Place::Whole => offset,
            Place::Scalar(span) => {
                span.start + crate::position::in_scalar(self.source.slice(span), text, offset)
            }
            Place::Nodes(node) => node.span.start,
        };
        self.add(at, fault);
    }

    /// A finding at its path in an embedded text.
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

/// The byte of a path in an annotation's or configuration's text: of JSON, or of the comma form.
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
