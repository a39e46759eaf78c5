//! Language of the project: comments, documents, string literals, log lines, names of tests.
//!
//! The rules are in `STYLE.md`, section "Language". A program cannot see whether an engineer would say a sentence, so
//! these tests check only the form: how a doc comment begins, whether a sentence has a real subject, how a log line is
//! written, how long test names and document lines are. [`counters`] measures the prose in the whole tree.
//!
//! - Quotations do not count: code spans, quotation marks and fenced blocks are left out.
//!
//! `LANGUAGE_BELOW=crates/ipam` limits the check of the form to the files below a directory.

mod counters;
mod texts;

use texts::Text;
pub(crate) use texts::{Kind, texts};

/// Longest name of a test, in characters.
const LONGEST_TEST_NAME: usize = 60;

/// Longest line of a document, in characters.
const LONGEST_LINE: usize = 120;

/// First words of a doc comment that is a question or has no head noun.
const QUESTIONS: [&str; 9] = ["what", "who", "whose", "whom", "how", "does", "is", "was", "did"];

/// First words of a sentence whose subject is a free relative clause.
const RELATIVES: [&str; 4] = ["what", "whatever", "who", "whoever"];

/// Macros whose first literal is a log line.
const LOG_MACROS: [&str; 5] = ["error!(", "warn!(", "info!(", "debug!(", "trace!("];

/// First words in log lines that keep the capital.
const PROPER_NOUNS: [&str; 5] = ["Neutron", "Kubernetes", "Service", "Event", "Multus"];

#[test]
fn language_of_the_project_has_the_form_of_the_style() {
    let below = std::env::var("LANGUAGE_BELOW").unwrap_or_default();
    let mut findings = Vec::new();
    for text in texts().into_iter().filter(|text| text.file.starts_with(&below)) {
        for finding in findings_of(&text) {
            findings.push(format!("{}:{}: {finding}: {}", text.file, text.line, text.text.trim()));
        }
    }
    assert!(
        findings.is_empty(),
        "{}\n{} findings; the rules are in STYLE.md",
        findings.join("\n"),
        findings.len()
    );
}

/// Returns the findings in one text, each in a few words.
fn findings_of(text: &Text) -> Vec<String> {
    let mut findings = Vec::new();
    let prose = without_quotations(&text.text);
    let words = words_of(&prose);
    let first = words.first().map(String::as_str).unwrap_or_default();
    let length = text.text.chars().count();
    match text.kind {
        Kind::TestName => {
            if length > LONGEST_TEST_NAME {
                findings.push(format!("a test name of {length} characters"));
            }
            if RELATIVES.contains(&first) {
                findings.push("a test name without its feature".to_owned());
            }
        }
        Kind::Doc | Kind::Comment | Kind::Literal | Kind::Document | Kind::Log => {
            findings.extend(sentences(&prose).filter_map(finding_in_sentence));
            if text.kind == Kind::Doc && QUESTIONS.contains(&first) {
                findings.push(format!("a doc comment that begins with \"{first}\""));
            }
            if text.kind == Kind::Log {
                findings.extend(finding_in_log(&text.text));
            }
        }
        Kind::Line => {
            if length > LONGEST_LINE {
                findings.push(format!("a line of {length} characters"));
            }
        }
    }
    findings
}

/// Returns the finding in a log line, which is a clause in lower case without a full stop.
fn finding_in_log(text: &str) -> Option<String> {
    let mut letters = text.chars();
    let capital = letters.next()?.is_uppercase() && letters.next()?.is_lowercase();
    let kind = text.split(' ').next()?.chars().filter(|letter| letter.is_uppercase()).count();
    if capital && kind == 1 && !PROPER_NOUNS.contains(&text.split(' ').next()?) {
        return Some("a log line that begins with a capital".to_owned());
    }
    text.ends_with('.').then(|| "a log line that ends with a full stop".to_owned())
}

/// Returns the finding in a sentence whose subject is a free relative clause.
fn finding_in_sentence(sentence: &str) -> Option<String> {
    let words = words_of(sentence);
    let first = words.first()?;
    let relative = RELATIVES.contains(&first.as_str()) && words.len() > 3 && !sentence.ends_with('?');
    relative.then(|| format!("a sentence whose subject is a clause (\"{first} {} …\")", words[1]))
}

/// Returns the sentences in a text, each with the final mark.
fn sentences(text: &str) -> impl Iterator<Item = &str> {
    let ends = |window: &str| matches!(window.chars().next(), Some('.' | '?' | '!'));
    let mut rest = text;
    std::iter::from_fn(move || {
        rest = rest.trim_start();
        if rest.is_empty() {
            return None;
        }
        let end = rest
            .char_indices()
            .find(|(place, _)| ends(&rest[*place..]) && rest[place + 1..].starts_with([' ', '\n']))
            .map_or(rest.len(), |(place, _)| place + 1);
        let (sentence, after) = rest.split_at(end);
        rest = after;
        Some(sentence)
    })
}

/// Returns a text without code spans, quotations and placeholders in braces; a sign stands for each.
fn without_quotations(text: &str) -> String {
    let mut prose = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find(['`', '"', '“', '{']) {
        let mark = rest[start..].chars().next().unwrap_or('"');
        let close = match mark {
            '“' => '”',
            '{' => '}',
            same => same,
        };
        let inside = start + mark.len_utf8();
        let Some(length) = rest[inside..].find(close) else { break };
        prose.push_str(&rest[..start]);
        prose.push('§');
        rest = &rest[inside + length + close.len_utf8()..];
    }
    prose.push_str(rest);
    prose
}

/// Returns the words in a text in lower case; a word keeps hyphens and apostrophes.
fn words_of(text: &str) -> Vec<String> {
    let is_part = |letter: char| letter.is_alphanumeric() || letter == '-' || letter == '\'' || letter == '§';
    let words = text.split(|letter| !is_part(letter)).map(|word| word.trim_matches(['-', '\'']));
    words.filter(|word| !word.is_empty()).map(str::to_lowercase).collect()
}

#[test]
fn language_check_finds_clauses_log_lines_and_lengths() {
    let findings = |kind, text: &str| {
        findings_of(&Text { file: "a.rs".to_owned(), line: 1, kind, text: text.to_owned() }).len()
    };
    assert_eq!(findings(Kind::Comment, "Returns the plan for a pod."), 0);
    assert_eq!(findings(Kind::Comment, "Good words such as ledger, door and nobody are allowed."), 0);
    assert_eq!(findings(Kind::Comment, "The file stays. What is lost takes a block with it."), 1);
    assert_eq!(findings(Kind::Comment, "What if the process is killed here?"), 0);
    assert_eq!(findings(Kind::Literal, "{what}: {who} is not a name"), 0);
    assert_eq!(findings(Kind::Doc, "Does what the caller wants."), 1);
    assert_eq!(findings(Kind::Doc, "Whether duplicate address detection runs."), 0);
    assert_eq!(findings(Kind::TestName, "quarantine_delays_reuse_of_an_address"), 0);
    assert_eq!(findings(Kind::TestName, &"long_".repeat(13)), 1);
    assert_eq!(findings(Kind::Log, "Failed to renew lease."), 1);
    assert_eq!(findings(Kind::Log, "failed to renew lease"), 0);
    assert_eq!(findings(Kind::Line, &"long ".repeat(25)), 1);
}
