//! Findings for people: place, how bad, what, rule, cure; in colours only on a terminal that wants them.
//!
//! Source: <https://no-color.org> for `NO_COLOR`; terminfo(5) for `TERM=dumb`.

use std::fmt::Write;
use std::io::{self, IsTerminal};

use manifest::Position;
use manifest::lint::Finding;
use npwg::refusal::Fault;
use npwg::rule::Severity;

use super::{Fixed, Located, Report};
use cli_support::terminal::plain;

/// Whether to use colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Colours {
    /// For a person at a terminal.
    On,
    /// For everything else.
    Off,
}

impl Colours {
    /// On if stdout is a terminal and nobody said otherwise.
    pub(super) fn of_terminal() -> Colours {
        let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
            || std::env::var_os("TERM").is_some_and(|value| value == "dumb");
        if io::stdout().is_terminal() && !refused { Colours::On } else { Colours::Off }
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

/// The whole report.
pub(super) fn render(report: &Report, colours: Colours) -> String {
    let Report { files, findings, fixed } = report;
    // Writing to a text cannot fail.
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
        .map(|(count, word)| many(count, word))
        .collect();
    let found = if counted.is_empty() { "nothing to report".to_owned() } else { counted.join(", ") };
    let _ = writeln!(text, "{}: {found}", many(*files, "file"));
    let curable = findings.iter().filter(|located| located.finding.fix.is_some()).count();
    if curable > 0 {
        let _ = writeln!(text, "weft lint --fix writes the corrected form of {curable} of them");
    }
    if !findings.is_empty() {
        text.push_str("weft lint --explain RULE explains the rule in brackets; docs/lint.md has all rules\n");
    }
    text
}

fn describe(text: &mut String, path: &str, finding: &Finding, colours: Colours) {
    let Finding { severity, position: Position { line, column }, fault, corrected, fix: _ } = finding;
    let place = colours.paint("1", &format!("{}:{line}:{column}:", plain(path)));
    let severity = colours.severity(*severity);
    let _ = writeln!(text, "{place} {severity}: {} [{}]", sentence(fault), fault.rule);
    if !fault.cure.is_empty() {
        let _ = writeln!(text, "    {}", plain(&fault.cure));
    }
    if !corrected.is_empty() {
        let _ = writeln!(text, "    the object as it should read:");
        for line in corrected.trim_end().lines() {
            let line: String = line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
            let _ = writeln!(text, "    {} {}", colours.paint("32", "|"), line.trim_end());
        }
    }
}

/// A fault without its cure.
fn sentence(fault: &Fault) -> String {
    plain(&Fault { cure: String::new(), ..fault.clone() }.to_string())
}

fn many(count: usize, word: &str) -> String {
    format!("{count} {word}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input_files::{File, Kind};

    fn report(text: &str) -> Report {
        let file = File { path: "a.yaml".into(), text: text.to_owned(), kind: Kind::Manifest };
        let findings = super::super::look(&file).into_iter();
        let findings = findings.map(|finding| Located { file: "a.yaml".into(), finding }).collect();
        Report { files: 1, findings, fixed: Vec::new() }
    }

    const AS_MAP: &str = "apiVersion: k8s.cni.cncf.io/v1
kind: NetworkAttachmentDefinition
metadata: {name: a}
spec:
  config: {\"cniVersion\": \"1.0.0\", \"name\": \"a\", \"type\": \"bridge\"}
";

    #[test]
    fn a_map_is_shown_as_the_text_it_should_be() {
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
    fn nothing_found_is_one_line() {
        assert_eq!(render(&report("kind: ConfigMap\n"), Colours::Off), "1 file: nothing to report\n");
    }

    #[test]
    fn colours_are_only_where_they_were_asked_for() {
        let report = report(AS_MAP);
        assert!(render(&report, Colours::On).contains("\u{1b}[1;31merror\u{1b}[0m"));
        assert!(!render(&report, Colours::Off).contains('\u{1b}'));
    }
}
