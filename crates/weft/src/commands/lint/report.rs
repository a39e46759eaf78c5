//! Findings as text: position, severity, message, rule and next step. Colours are used only on a terminal.
//!
//! Source: <https://no-color.org> for `NO_COLOR`; terminfo(5) for `TERM=dumb`.

use std::fmt::Write;
use std::io::{self, IsTerminal};

use manifest::Position;
use manifest::lint::Finding;
use npwg::refusal::Fault;
use npwg::rule::Severity;

use super::{Fixed, LintReport, Located};
use cli_support::terminal::plain;

/// Whether to use colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Colours {
    /// Colours, for a terminal.
    On,
    /// No colours.
    Off,
}

impl Colours {
    /// Returns `On` if stdout is a terminal and the environment does not disable colours.
    pub(super) fn of_terminal() -> Colours {
        let is_disabled = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
            || std::env::var_os("TERM").is_some_and(|value| value == "dumb");
        if io::stdout().is_terminal() && !is_disabled { Colours::On } else { Colours::Off }
    }

    fn paint(self, code: &str, text: &str) -> String {
        match self {
            Colours::On => format!("\u{1b}[{code}m{text}\u{1b}[0m"),
            Colours::Off => text.to_owned(),
        }
    }

    fn severity(self, severity: Severity) -> String {
        match severity {
            Severity::Error => self.paint("1;31", "error"),
            Severity::Warning => self.paint("1;33", "warning"),
            Severity::Note => self.paint("1;36", "note"),
        }
    }
}

/// Returns the report as text.
pub(super) fn render(report: &LintReport, colours: Colours) -> String {
    let LintReport { files, findings, fixed } = report;
    // Writing to a string cannot fail.
    let mut text = String::new();
    for Fixed { file, fault } in fixed {
        let _ = writeln!(text, "{}: {} {}", plain(file), colours.paint("1;32", "fixed"), sentence(fault));
    }
    for Located { file, finding } in findings {
        describe(&mut text, file, finding, colours);
    }
    let [errors, warnings, notes] =
        [Severity::Error, Severity::Warning, Severity::Note].map(|severity| report.count(severity));
    let counted: Vec<String> = [(errors, "error"), (warnings, "warning"), (notes, "note")]
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, word)| count_of(count, word))
        .collect();
    let found = if counted.is_empty() { "no findings".to_owned() } else { counted.join(", ") };
    let _ = writeln!(text, "{}: {found}", count_of(*files, "file"));
    let fixable = findings.iter().filter(|located| located.finding.fix.is_some()).count();
    if fixable > 0 {
        let _ = writeln!(text, "weft lint --fix writes the corrected form of {fixable} of them");
    }
    if !findings.is_empty() {
        text.push_str("weft lint --explain RULE explains the rule in brackets; docs/lint.md has all rules\n");
    }
    text
}

fn describe(text: &mut String, path: &str, finding: &Finding, colours: Colours) {
    let Finding { severity, position: Position { line, column }, fault, corrected, fix: _ } = finding;
    let position_text = colours.paint("1", &format!("{}:{line}:{column}:", plain(path)));
    let severity = colours.severity(*severity);
    let _ = writeln!(text, "{position_text} {severity}: {} [{}]", sentence(fault), fault.rule);
    if !fault.hint.is_empty() {
        let _ = writeln!(text, "    {}", plain(&fault.hint));
    }
    if !corrected.is_empty() {
        let _ = writeln!(text, "    the object as it should read:");
        for line in corrected.trim_end().lines() {
            let line: String = line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
            let _ = writeln!(text, "    {} {}", colours.paint("32", "|"), line.trim_end());
        }
    }
}

/// Returns an error text without the hint.
fn sentence(fault: &Fault) -> String {
    plain(&Fault { hint: String::new(), ..fault.clone() }.to_string())
}

fn count_of(count: usize, word: &str) -> String {
    format!("{count} {word}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input_files::{File, Kind};

    fn report(text: &str) -> LintReport {
        let file = File { path: "a.yaml".into(), text: text.to_owned(), kind: Kind::Manifest };
        let findings =
            super::super::lint_file(&file, &manifest::lint::Knowledge::of_known_plugins()).into_iter();
        let findings = findings.map(|finding| Located { file: "a.yaml".into(), finding }).collect();
        LintReport { files: 1, findings, fixed: Vec::new() }
    }

    const AS_MAP: &str = "apiVersion: k8s.cni.cncf.io/v1
kind: NetworkAttachmentDefinition
metadata: {name: a}
spec:
  config: {\"cniVersion\": \"1.0.0\", \"name\": \"a\", \"type\": \"bridge\"}
";

    // Requirements: NPWG1-3.1-2
    // Requirements: NPWG1-3.1-2
    #[test]
    fn lint_shows_config_map_as_the_corrected_string() {
        let text = render(&report(AS_MAP), Colours::Off);
        let expected =
            "a.yaml:5:11: error: network-attachment-definition default/a: spec.config: must be a string; \
                        the API server refuses the object [config-not-a-string]
    write \"config: |\" and the JSON on indented lines below it
    the object as it should read:
    | apiVersion: k8s.cni.cncf.io/v1
    | kind: NetworkAttachmentDefinition
    | metadata: {name: a}
    | spec:
    |   config: |
    |     {\"cniVersion\": \"1.0.0\", \"name\": \"a\", \"type\": \"bridge\"}
1 file: 1 error
weft lint --fix writes the corrected form of 1 of them
weft lint --explain RULE explains the rule in brackets; docs/lint.md has all rules
";
        assert_eq!(text, expected);
    }

    #[test]
    fn lint_report_without_findings_is_one_line() {
        assert_eq!(render(&report("kind: ConfigMap\n"), Colours::Off), "1 file: no findings\n");
    }

    #[test]
    fn lint_report_has_colours_only_on_request() {
        let report = report(AS_MAP);
        assert!(render(&report, Colours::On).contains("\u{1b}[1;31merror\u{1b}[0m"));
        assert!(!render(&report, Colours::Off).contains('\u{1b}'));
    }
}
