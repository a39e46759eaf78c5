//! Findings of the linter about one object of the API.
//!
//! An update is denied only for an error that the old object did not have: a controller that sets a label or removes a
//! finalizer must not fail because of what was stored before the webhook was installed.

use manifest::Manifest;
use manifest::lint::{self, Knowledge};
use npwg::refusal::Fault;
use npwg::rule::Severity;
use serde_json::Value;

/// Maximum length of a warning, in bytes: kubectl and the API server cut longer ones.
const WARNING_MAX: usize = 256;
/// Maximum number of warnings in one answer.
const WARNINGS_MAX: usize = 16;
/// Maximum number of errors that a denial names.
const ERRORS_MAX: usize = 16;

/// Findings about an object.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Findings {
    errors: Vec<Fault>,
    warnings: Vec<Fault>,
}

impl Findings {
    /// Returns the findings of lint about an object.
    pub(crate) fn of(object: &Value, knowledge: &Knowledge) -> Findings {
        let mut findings = Findings::default();
        for finding in lint::manifest(&Manifest::parse(&object.to_string()), knowledge) {
            findings.add(finding.severity, finding.fault);
        }
        findings
    }

    /// Adds a finding. Notes are left out: they say what happens, and nothing is wrong.
    pub(crate) fn add(&mut self, severity: Severity, fault: Fault) {
        let list = match severity {
            Severity::Error => &mut self.errors,
            Severity::Warning => &mut self.warnings,
            Severity::Note => return,
        };
        if !list.contains(&fault) {
            list.push(fault);
        }
    }

    /// Turns the errors that `old` has as well into warnings.
    pub(crate) fn tolerate(&mut self, old: &Findings) {
        let (known, new) =
            std::mem::take(&mut self.errors).into_iter().partition(|fault| old.errors.contains(fault));
        self.errors = new;
        self.warnings.splice(0..0, known);
    }

    /// Turns every error into a warning.
    pub(crate) fn warn_only(&mut self) {
        let errors = std::mem::take(&mut self.errors);
        self.warnings.splice(0..0, errors);
    }

    /// Returns the reason of a denial; `None` without an error.
    pub(crate) fn denial(&self) -> Option<String> {
        let mut lines: Vec<String> = self.errors.iter().take(ERRORS_MAX).map(sentence).collect();
        let more = self.errors.len().saturating_sub(lines.len());
        if more > 0 {
            lines.push(format!("and {more} more errors; weft lint shows all of them"));
        }
        (!lines.is_empty()).then(|| lines.join("; "))
    }

    /// Returns the warnings for the user.
    pub(crate) fn warnings(&self) -> Vec<String> {
        self.warnings.iter().take(WARNINGS_MAX).map(|fault| clipped(&sentence(fault))).collect()
    }
}

/// Returns a finding and the rule, as lint prints it.
fn sentence(fault: &Fault) -> String {
    format!("{fault} [{}]", fault.rule)
}

/// Returns a text of at most [`WARNING_MAX`] bytes without control characters.
pub(crate) fn clipped(text: &str) -> String {
    let clean: String = text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect();
    if clean.len() <= WARNING_MAX {
        return clean;
    }
    let mut end = WARNING_MAX - '…'.len_utf8();
    while !clean.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}…", &clean[..end])
}

#[cfg(test)]
mod properties;

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn definition(config: &str) -> Value {
        json!({ "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
            "metadata": { "name": "a", "namespace": "n" }, "spec": { "config": config } })
    }

    #[test]
    fn findings_of_a_broken_definition_are_a_denial_with_the_rule() {
        let findings = Findings::of(&definition("{"), &Knowledge::of_known_plugins());
        let denial = findings.denial().unwrap();
        assert!(
            denial.contains("network-attachment-definition n/a") && denial.ends_with("[malformed-config]"),
            "{denial}"
        );
        let good = r#"{"cniVersion":"1.0.0","name":"a","type":"bridge"}"#;
        assert_eq!(Findings::of(&definition(good), &Knowledge::of_known_plugins()), Findings::default());
        // An unknown key is a warning.
        let unknown = r#"{"cniVersion":"1.0.0","name":"a","type":"bridge","mtuu":1}"#;
        let findings = Findings::of(&definition(unknown), &Knowledge::of_known_plugins());
        assert_eq!(findings.denial(), None);
        assert!(findings.warnings()[0].ends_with("[unknown-key]"), "{findings:?}");
    }

    #[test]
    fn findings_of_the_old_object_are_tolerated() {
        let knowledge = Knowledge::of_known_plugins();
        let old = Findings::of(&definition("{"), &knowledge);
        let mut same = Findings::of(&definition("{"), &knowledge);
        same.tolerate(&old);
        assert_eq!((same.denial(), same.warnings().len()), (None, 1));
        let mut other = Findings::of(&definition("[]"), &knowledge);
        other.tolerate(&old);
        assert!(other.denial().is_some());
    }

    #[test]
    fn warning_is_clipped_at_a_letter() {
        assert_eq!(clipped("a\nb"), "a b");
        let long = clipped(&"ä".repeat(300));
        assert!(long.len() <= WARNING_MAX && long.ends_with('…'), "{long}");
    }
}
