//! The page `docs/lint.md`, which has a section with examples for each rule.
//!
//! The page is part of the program: `weft lint --explain` prints from it. A section begins with `### NAME`. After the
//! text come two fenced examples, the first of which breaks the rule. `tests/lint_page.rs` compares the page with
//! [`Rule`] and checks that each example does what the page says.

use npwg::rule::Rule;

/// The page, as Markdown.
pub const PAGE: &str = include_str!("../../../../docs/lint.md");

/// Section about one rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Section {
    /// Prose before and between the examples.
    pub text: String,
    /// Example that breaks the rule.
    pub wrong: String,
    /// Example that does not.
    pub right: String,
    /// Examples beyond these two.
    pub others: Vec<String>,
}

/// Returns the section about a rule; empty if the page has none.
pub fn section(rule: Rule) -> Section {
    let mut lines = PAGE.lines().skip_while(|line| line.strip_prefix("### ") != Some(rule.name()));
    let body =
        lines.by_ref().skip(1).take_while(|line| !line.starts_with("## ") && !line.starts_with("### "));
    let mut section = Section::default();
    let mut examples = Vec::new();
    let mut open: Option<String> = None;
    for line in body {
        match (&mut open, line.starts_with("```")) {
            (None, true) => open = Some(String::new()),
            (None, false) => push_line(&mut section.text, line),
            (Some(_), true) => examples.extend(open.take()),
            (Some(example), false) => push_line(example, line),
        }
    }
    let mut examples = examples.into_iter();
    section.wrong = examples.next().unwrap_or_default();
    section.right = examples.next().unwrap_or_default();
    section.others = examples.collect();
    section
}

fn push_line(text: &mut String, line: &str) {
    text.push_str(line);
    text.push('\n');
}

/// Returns where the documentation describes a rule: `docs/lint.md#invalid-mac`.
pub fn link(rule: Rule) -> String {
    format!("docs/lint.md#{rule}")
}
