//! Counters of the prose in documents and doc comments: how often a few words occur in 1,000 words.
//!
//! They are a thermometer, not a rule. Text with many "of" and "its" is telegraphic; good technical English addresses
//! the reader, says what must and can be done, and gives examples. The test prints each counter, and fails only if one
//! for the whole tree is worse than the value in [`RECORDED`].
//!
//! - A counter may be worse than recorded by [`TOLERANCE`]. With 50,000 words in the documents and 185,000 in doc
//!   comments, it takes a few thousand bad words to reach that, so an ordinary change does not fail while several
//!   people work.
//! - If you have improved a text, record the new value, but no better one than [`GOOD`]: a text that is as good as
//!   those of other projects need not become better for the counter.
//!
//! `cargo test -p tests --test architecture language::counters -- --nocapture` prints them.

use super::texts::other_files;
use crate::tree::sources;

/// Part of a recorded value by which a counter may be worse.
const TOLERANCE: f64 = 0.05;

/// Occurrences by which a counter may be worse in any case, per 1,000 words: small counters move with one sentence.
const LEAST_TOLERANCE: f64 = 0.3;

/// Marks of an example.
const EXAMPLES: [&str; 3] = ["for example", "e.g.", "such as"];

/// Counters for a kind of text, per 1,000 words.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Counters {
    /// "of".
    of: f64,
    /// "its" and "their".
    its: f64,
    /// "you" and "your".
    you: f64,
    /// "must", "can", "should", "may" and "might".
    must: f64,
    /// [`EXAMPLES`].
    example: f64,
}

/// Best values of six well-written projects: ripgrep, ztunnel, kube-rs, netavark, linkerd2 and omicron.
const GOOD: Counters = Counters { of: 10.0, its: 1.0, you: 19.0, must: 14.0, example: 3.0 };

/// Values that the whole tree has reached, by kind of text.
const RECORDED: [(&str, Counters); 3] = [
    ("guides and README", Counters { of: 10.0, its: 5.7, you: 19.0, must: 14.0, example: 1.4 }),
    ("documents", Counters { of: 13.5, its: 5.7, you: 11.0, must: 13.5, example: 1.1 }),
    ("doc comments", Counters { of: 21.4, its: 1.0, you: 0.0, must: 6.5, example: 0.5 }),
];

// === impl Counters ===

impl Counters {
    /// Counts in a text without code spans and marks.
    fn of(text: &str) -> Counters {
        let is_part = |letter: char| letter.is_ascii_alphabetic() || letter == '\'';
        let words: Vec<String> = text
            .split(|letter| !is_part(letter))
            .filter(|word| !word.is_empty())
            .map(str::to_ascii_lowercase)
            .collect();
        let rate = |count: usize| 1000.0 * count as f64 / words.len().max(1) as f64;
        let rate_of =
            |group: &[&str]| rate(words.iter().filter(|word| group.contains(&word.as_str())).count());
        Counters {
            of: rate_of(&["of"]),
            its: rate_of(&["its", "their"]),
            you: rate_of(&["you", "your"]),
            must: rate_of(&["must", "can", "should", "may", "might"]),
            example: rate(EXAMPLES.iter().map(|mark| text.matches(mark).count()).sum()),
        }
    }

    /// Returns the counters that are worse than recorded, each in a few words.
    fn worse_than(self, recorded: Counters) -> Vec<String> {
        let fewer = [("of", self.of, recorded.of), ("its", self.its, recorded.its)];
        let more = [
            ("you", self.you, recorded.you),
            ("must", self.must, recorded.must),
            ("example", self.example, recorded.example),
        ];
        let tolerance = |value: f64| (value * TOLERANCE).max(LEAST_TOLERANCE);
        let too_many = fewer.into_iter().filter(|(_, now, then)| *now > then + tolerance(*then));
        let too_few = more.into_iter().filter(|(_, now, then)| *now < then - tolerance(*then));
        too_many
            .chain(too_few)
            .map(|(name, now, then)| format!("{name} {now:.1} in 1,000 words, recorded {then:.1}"))
            .collect()
    }
}

#[test]
#[expect(clippy::print_stdout, reason = "people read the figures")]
fn language_counters_are_not_worse_than_recorded() {
    let documents: Vec<(String, String)> =
        other_files().into_iter().filter(|(name, _)| name.ends_with(".md") && is_counted(name)).collect();
    let guides =
        documents.iter().filter(|(name, _)| name.contains("/guides/") || name.ends_with("README.md"));
    let sources = sources().into_iter().filter(|(name, _)| is_counted(name));
    let texts = [
        guides.map(|(_, text)| document_prose(text)).collect::<Vec<_>>().join("\n\n"),
        documents.iter().map(|(_, text)| document_prose(text)).collect::<Vec<_>>().join("\n\n"),
        sources.map(|(_, source)| comment_prose(&source)).collect::<Vec<_>>().join("\n\n"),
    ];
    let mut worse = Vec::new();
    for ((kind, recorded), text) in RECORDED.into_iter().zip(texts) {
        let Counters { of, its, you, must, example } = Counters::of(&text);
        println!(
            "{kind:18} of {of:4.1}  its {its:4.1}  you {you:4.1}  must {must:4.1}  example {example:3.1}"
        );
        let found = Counters::of(&text).worse_than(recorded);
        worse.extend(found.into_iter().map(|counter| format!("{kind}: {counter}")));
    }
    assert!(
        worse.is_empty(),
        "{}\nread STYLE.md, \"Language\", and rewrite what you added",
        worse.join("\n")
    );
}

/// Whether the counters include a file: not the changelog, requirements, and tests and test data in crates.
fn is_counted(file: &str) -> bool {
    !["CHANGELOG", "/test/", "/tests/", "/testdata/", "requirements.md"]
        .iter()
        .any(|part| file.contains(part))
}

/// Returns the prose of a document: without blocks of code, comments, tables, headings and link definitions.
fn document_prose(text: &str) -> String {
    let text = without_between(&without_between(text, "```", "```", ""), "<!--", "-->", "");
    let prose = text.lines().filter(|line| !line.starts_with(['|', '#', '>', '[', '<']));
    without_code_and_links(&prose.collect::<Vec<_>>().join("\n"))
}

/// Returns the doc comments and headers in a source file, up to the unit tests.
fn comment_prose(source: &str) -> String {
    let source = source.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let mut prose = String::new();
    for line in source.lines() {
        let comment = line.trim_start().strip_prefix("///").or_else(|| line.trim_start().strip_prefix("//!"));
        prose.push_str(comment.unwrap_or_default());
        prose.push('\n');
    }
    without_code_and_links(&prose)
}

/// Returns a text with a sign for each code span, and link texts without the targets.
fn without_code_and_links(text: &str) -> String {
    let text = without_between(&without_between(text, "```", "```", ""), "`", "`", "X");
    // The text of a link stays; only its target has words of its own.
    without_between(&text, "](", ")", "]")
}

/// Replaces everything from one mark to the next other one, including both. A mark without an end stays.
fn without_between(text: &str, from: &str, to: &str, instead: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(from) {
        let Some((_, behind)) = after.split_once(to) else { break };
        kept.push_str(before);
        kept.push_str(instead);
        rest = behind;
    }
    kept + rest
}

#[test]
fn language_counters_read_prose_without_code_and_tables() {
    let page = "# of\n\nYou can use `of`,\nfor example on [its page](of/its.md).\n\n| of |\n|---|\n\n```sh\nof\n```\n";
    let Counters { of, its, you, must, example } = Counters::of(&document_prose(page));
    // You can use X, for example on its page.
    let one = 1000.0 / 9.0;
    assert_eq!((of, its, you, must, example), (0.0, one, one, one, one));
    let source = "/// Lease of a block.\nfn lease() {} // of\n#[cfg(test)]\nmod tests {\n    /// of of\n}\n";
    assert_eq!(Counters::of(&comment_prose(source)).of, 250.0);
}

#[test]
fn language_counters_record_no_better_values_than_good_ones() {
    let better = |(kind, recorded): &(&str, Counters)| {
        let limited = Counters {
            of: recorded.of.max(GOOD.of),
            its: recorded.its.max(GOOD.its),
            you: recorded.you.min(GOOD.you),
            must: recorded.must.min(GOOD.must),
            example: recorded.example.min(GOOD.example),
        };
        assert_eq!(*recorded, limited, "{kind}");
    };
    RECORDED.iter().for_each(better);
}

#[test]
fn language_counters_tolerate_small_changes_only() {
    let recorded = Counters { of: 20.0, its: 4.0, you: 10.0, must: 10.0, example: 1.0 };
    let ordinary = Counters { of: 20.9, its: 4.2, you: 9.6, must: 9.6, example: 0.8 };
    assert!(ordinary.worse_than(recorded).is_empty());
    let better = Counters { of: 10.0, its: 1.0, you: 20.0, must: 20.0, example: 3.0 };
    assert!(better.worse_than(recorded).is_empty());
    let bad = Counters { of: 21.1, its: 4.4, you: 9.4, must: 9.4, example: 0.6 };
    assert_eq!(bad.worse_than(recorded).len(), 5);
    let expected = "of 21.1 in 1,000 words, recorded 20.0";
    assert_eq!(bad.worse_than(recorded)[0], expected);
}
