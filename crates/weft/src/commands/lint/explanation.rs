//! `weft lint --explain RULE`: one rule, with the examples from `docs/lint.md`.

use std::fmt::Write;

use manifest::lint::page;
use npwg::rule::{Rule, Severity, Stage};
use serde::Serialize;

use cli_support::failure::Failure;
use cli_support::output::{self, Format};

/// Document for `-o json`.
#[derive(Serialize)]
struct Explanation {
    rule: Rule,
    explanation: String,
    severity: Severity,
    stage: Stage,
    source: String,
    wrong: String,
    right: String,
    page: String,
}

/// Prints what `rule` means.
pub(super) fn print(rule: Rule, format: Format) -> Result<(), Failure> {
    let page::Section { text, wrong, right, .. } = page::section(rule);
    let explanation = Explanation {
        rule,
        explanation: text.trim().to_owned(),
        severity: rule.severity(),
        stage: rule.stage(),
        source: rule.source().to_string(),
        wrong,
        right,
        page: page::link(rule),
    };
    match format {
        Format::Json | Format::Yaml => output::print_document(format, &explanation),
        Format::Text | Format::Wide => output::print(&render(&explanation)),
    }
}

fn render(explanation: &Explanation) -> String {
    let Explanation { rule, explanation, severity, stage, source, wrong, right, page } = explanation;
    let severity = match severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
        Severity::Note => "note",
    };
    let stage = match stage {
        Stage::File => "weft lint",
        Stage::Plan => "the plan of a pod",
        Stage::Result => "the meta-plugin after an ADD",
    };
    // Writing to a string cannot fail.
    let mut text = format!("{rule}: {severity}, checked by {stage}\n{explanation}\n");
    for (title, example) in [("Wrong", wrong), ("Right", right)] {
        let _ = writeln!(text, "\n{title}:");
        for line in example.lines() {
            let _ = writeln!(text, "{}", format!("    {line}").trim_end());
        }
    }
    let _ = writeln!(text, "\nSource: {source}\nSee {page}");
    text
}
