//! Linter for definitions: the name, how `spec.config` is written, and what it contains.

use super::{Finding, Knowledge, Place, Report, chain, kuryr, repair};
use crate::{Located, Span, Value};
use npwg::definition::config_path;
use npwg::metadata::{Definition, SpecConfig, definition_name_fault, label_fault};
use npwg::refusal::{Fault, KeyPath};
use npwg::rule::Rule;

pub(super) fn look(report: &mut Report<'_>, located: &Located<Definition>, knowledge: &Knowledge) {
    let definition = &located.value;
    let subject = npwg::definition::subject(&definition.reference());
    names(report, located, &subject);
    kuryr::look(report, located);
    let path = config_path();
    let node = located.node_at(&path);
    let has_resource = definition.resource().is_some();
    let fault = |rule: Rule, reason: &str| Fault::new(rule, &subject, reason).at(path.clone());
    match &definition.config {
        // A Neutron port needs no configuration.
        SpecConfig::Absent if definition.annotations.contains_key(kuryr::KURYR_CONFIG) => {}
        SpecConfig::Absent => {
            let reason = format!(
                "has no spec.config: a network named {:?} on each node's disk is used",
                definition.name
            );
            let fault = Fault::new(Rule::ConfigOnDisk, &subject, reason);
            report.add(located.node.span.start, fault);
        }
        SpecConfig::Text(text) if text.trim().is_empty() => {
            let reason = "is empty and counts as absent: a network of this name on each node's disk is used";
            report.add(
                node.span.start,
                fault(Rule::EmptyConfig, reason).hint("remove the key, or write a configuration"),
            );
        }
        SpecConfig::Text(text) => {
            let place = Place::Scalar(node.span);
            let chain = chain::Subject { name: &subject, owner: Some(&definition.name), has_resource, place };
            chain::look(report, &chain, text, knowledge);
        }
        SpecConfig::Structured(json) => {
            let fault = fault(Rule::ConfigNotAString, "must be a string; the API server refuses the object")
                .hint("write \"config: |\" and the JSON on indented lines below it");
            structured(report, located, json, fault);
            if let Value::Map(_) = node.value {
                // The content of the map can be checked nevertheless.
                let place = Place::Nodes(node);
                let chain =
                    chain::Subject { name: &subject, owner: Some(&definition.name), has_resource, place };
                chain::look(report, &chain, json, knowledge);
            }
        }
    }
}

/// Reports a map instead of a string, with the corrected form and an edit to the file.
fn structured(report: &mut Report<'_>, located: &Located<Definition>, json: &str, fault: Fault) {
    let node = located.node_at(&config_path());
    let edit = repair::config_as_text(report.source, &located.node, node, json);
    let object = located.node.span;
    let shift = |at: usize| at.saturating_sub(object.start);
    let inside = repair::Edit {
        span: Span { start: shift(edit.span.start), end: shift(edit.span.end) },
        replacement: edit.replacement.clone(),
    };
    let corrected = repair::apply(report.source.slice(object), &[inside]);
    let has_tag = repair::has_tag(report.source, &located.node, node);
    let finding: &mut Finding = report.add(node.span.start, fault);
    if !has_tag {
        (finding.corrected, finding.fix) = (corrected, Some(edit));
    }
}

fn names(report: &mut Report<'_>, located: &Located<Definition>, subject: &str) {
    let definition = &located.value;
    let Definition { name, namespace, .. } = definition;
    for (key, text, rule, fault) in [
        ("name", name, Rule::InvalidNetworkName, definition_name_fault(name)),
        ("namespace", namespace, Rule::InvalidNamespace, label_fault(namespace)),
    ] {
        let path = KeyPath::root().key("metadata").key(key);
        let at = located.node_at(&path).span.start;
        if let Some(fault) = fault.filter(|_| !text.is_empty()) {
            let fault = Fault::new(rule, subject, fault).at(path).showing(&format!("{text:?}"));
            report.add(at, fault);
        } else if text.contains('.') {
            let reason = "has dots in it: other implementations cannot select it by the comma form";
            let fault =
                Fault::new(Rule::DottedNetworkName, subject, reason).at(path).showing(&format!("{text:?}"));
            report.add(at, fault);
        }
    }
}
