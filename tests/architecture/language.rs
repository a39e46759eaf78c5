//! Language of the project: comments, documents, string literals, names of tests and types.
//!
//! The rules are in `STYLE.md`, section "Language". [`words`] holds the phrases that no text may contain,
//! [`exceptions`] the few places that may, each with its reason.
//!
//! - A phrase counts only outside of quotations: code spans, quotation marks and fenced blocks are left out.
//! - An exception that no text needs any more is an error, so that the list stays short.
//!
//! `LANGUAGE_BELOW=crates/ipam` limits the check to the files below a directory and lists every fault.

mod exceptions;
mod texts;
mod words;

use std::collections::BTreeSet;

use exceptions::EXCEPTIONS;
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

#[test]
fn language_of_the_project_is_plain_technical_english() {
    let below = std::env::var("LANGUAGE_BELOW").unwrap_or_default();
    let mut used = BTreeSet::new();
    let mut faults = Vec::new();
    for text in texts().into_iter().filter(|text| text.file.starts_with(&below)) {
        for fault in faults_of(&text) {
            let exception = EXCEPTIONS.iter().position(|exception| {
                text.file.starts_with(exception.file) && text.text.contains(exception.text)
            });
            match exception {
                Some(index) => _ = used.insert(index),
                None => faults.push(format!("{}:{}: {fault}: {}", text.file, text.line, text.text.trim())),
            }
        }
    }
    if below.is_empty() {
        let unused = EXCEPTIONS.iter().enumerate().filter(|(index, _)| !used.contains(index));
        faults.extend(unused.map(|(_, exception)| {
            format!("{}: no fault needs the exception for {:?}", exception.file, exception.text)
        }));
    }
    assert!(faults.is_empty(), "{}\n{} faults; the rules are in STYLE.md", faults.join("\n"), faults.len());
}

/// Returns the faults of one text, each in a few words.
fn faults_of(text: &Text) -> Vec<String> {
    let mut faults = Vec::new();
    let prose = without_quotations(&text.text);
    let words = words_of(&prose);
    match text.kind {
        Kind::Name => faults.extend(words::fault_of_name(&text.text)),
        Kind::TestName => {
            faults.extend(words::faults_of_prose(&words));
            let length = text.text.chars().count();
            if length > LONGEST_TEST_NAME {
                faults.push(format!("a test name of {length} characters"));
            }
            if words.first().is_some_and(|word| RELATIVES.contains(&word.as_str())) {
                faults.push("a test name without its feature".to_owned());
            }
        }
        Kind::Doc | Kind::Comment | Kind::Literal | Kind::Document | Kind::Log => {
            faults.extend(words::faults_of_prose(&words));
            faults.extend(sentences(&prose).filter_map(fault_of_sentence));
            let first = words.first().map(String::as_str).unwrap_or_default();
            if text.kind == Kind::Doc && QUESTIONS.contains(&first) {
                faults.push(format!("a doc comment that begins with \"{first}\""));
            }
            if text.kind == Kind::Log {
                faults.extend(fault_of_log(&text.text));
            }
        }
        Kind::Line => {
            let length = text.text.chars().count();
            if length > LONGEST_LINE {
                faults.push(format!("a line of {length} characters"));
            }
        }
    }
    faults
}

/// Returns the fault of a log line: it is a clause in lower case without a full stop.
fn fault_of_log(text: &str) -> Option<String> {
    let mut letters = text.chars();
    let capital = letters.next()?.is_uppercase() && letters.next()?.is_lowercase();
    let kind = text.split(' ').next()?.chars().filter(|letter| letter.is_uppercase()).count();
    if capital && kind == 1 && !words::PROPER_NOUNS.contains(&text.split(' ').next()?) {
        return Some("a log line that begins with a capital".to_owned());
    }
    text.ends_with('.').then(|| "a log line that ends with a full stop".to_owned())
}

/// Returns the fault of a sentence whose subject is a free relative clause.
fn fault_of_sentence(sentence: &str) -> Option<String> {
    let words = words_of(sentence);
    let first = words.first()?;
    let relative = RELATIVES.contains(&first.as_str()) && words.len() > 3 && !sentence.ends_with('?');
    relative.then(|| format!("a sentence whose subject is a clause (\"{first} {} …\")", words[1]))
}

/// Returns the sentences of a text, each with its final mark.
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

/// Returns a text without its code spans, quotations and placeholders in braces; a sign stands for each.
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

/// Returns the words of a text in lower case; a word keeps its hyphens and apostrophes.
fn words_of(text: &str) -> Vec<String> {
    let is_part = |letter: char| letter.is_alphanumeric() || letter == '-' || letter == '\'' || letter == '§';
    let words = text.split(|letter| !is_part(letter)).map(|word| word.trim_matches(['-', '\'']));
    words.filter(|word| !word.is_empty()).map(str::to_lowercase).collect()
}

#[test]
fn language_check_finds_old_terms_and_clauses_as_subjects() {
    let faults = |kind, text: &str| {
        faults_of(&Text { file: "a.rs".to_owned(), line: 1, kind, text: text.to_owned() }).len()
    };
    assert_eq!(faults(Kind::Comment, "Returns the plan for a pod."), 0);
    assert_eq!(faults(Kind::Comment, "It is made anew."), 1);
    assert_eq!(faults(Kind::Comment, "The user `nobody` and \"who asks\" are quotations."), 0);
    assert_eq!(faults(Kind::Comment, "The file stays. What is lost takes a block with it."), 1);
    assert_eq!(faults(Kind::Comment, "What if the process is killed here?"), 0);
    assert_eq!(faults(Kind::Literal, "{what}: {who} is not a name"), 0);
    assert_eq!(faults(Kind::Doc, "Does what the caller wants."), 1);
    assert_eq!(faults(Kind::Doc, "Whether duplicate address detection runs."), 0);
    assert_eq!(faults(Kind::TestName, "quarantine_delays_reuse_of_an_address"), 0);
    assert_eq!(faults(Kind::TestName, "what_a_stranger_asked_is_refused"), 2);
    assert_eq!(faults(Kind::TestName, &"long_".repeat(13)), 1);
    assert_eq!(faults(Kind::Name, "HostHands"), 1);
    assert_eq!(faults(Kind::Name, "on_the_other_hand"), 0);
    assert_eq!(faults(Kind::Log, "Failed to renew lease."), 1);
    assert_eq!(faults(Kind::Log, "failed to renew lease"), 0);
    assert_eq!(faults(Kind::Line, &"long ".repeat(25)), 1);
}
