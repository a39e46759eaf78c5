//! Texts of the tree that people read: comments, string literals, names of tests, documents.

use std::fs;
use std::path::PathBuf;

use testkit::workspace;

use super::LOG_MACROS;
use crate::tokens::{Piece, Token, pieces};
use crate::tree::sources;

/// Kind of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Doc comment, without slashes.
    Doc,
    /// Other comment in any language, without comment marks.
    Comment,
    /// String literal of at least three words.
    Literal,
    /// First literal in a log macro call.
    Log,
    /// Name of a test.
    TestName,
    /// Paragraph of a document.
    Document,
    /// One line of a document.
    Line,
}

/// Text and where it is.
#[derive(Debug, Clone)]
pub(crate) struct Text {
    /// Path from the root.
    pub(crate) file: String,
    pub(crate) line: usize,
    pub(crate) kind: Kind,
    pub(crate) text: String,
}

/// Returns all texts of the tree, but for the lists of these tests.
pub(crate) fn texts() -> Vec<Text> {
    let own = |name: &str| name.starts_with("tests/architecture/language");
    let mut texts = Vec::new();
    for (name, source) in sources().into_iter().filter(|(name, _)| !own(name)) {
        texts.extend(rust_texts(&name, &source));
    }
    for (name, text) in other_files() {
        if name.ends_with(".md") {
            texts.extend(document_texts(&name, &text));
        } else {
            texts.extend(hash_comments(&name, &text));
        }
    }
    texts
}

/// Returns the texts of a Rust file. Comment lines that follow each other are one text.
fn rust_texts(file: &str, source: &str) -> Vec<Text> {
    let mut texts: Vec<Text> = Vec::new();
    let line_of = lines(source);
    let mut is_test = false;
    let mut after_fn = false;
    let mut comment_end = 0;
    let new = |line, kind, text: String| Text { file: file.to_owned(), line, kind, text };
    for (offset, piece) in pieces(source) {
        let line = line_of(offset);
        match piece {
            Piece::Comment(comment) => {
                let (kind, text) = comment_text(comment);
                let joins = line == comment_end + 1 && texts.last().is_some_and(|last| last.kind == kind);
                match texts.last_mut().filter(|_| joins) {
                    Some(last) => last.text.extend(["\n", text]),
                    None => texts.push(new(line, kind, text.to_owned())),
                }
                comment_end = line + comment.matches('\n').count();
            }
            Piece::Literal(literal) => {
                let before = source[..offset].trim_end();
                let log = LOG_MACROS.iter().any(|name| before.ends_with(name));
                let text = literal.trim_start_matches(['b', 'r', 'c', '#']).trim_matches(['#', '"']);
                let text = text.replace("\\n", "\n").replace("\\\"", "\"");
                if log || text.split_whitespace().count() >= 3 {
                    texts.push(new(line, if log { Kind::Log } else { Kind::Literal }, text));
                }
            }
            Piece::Token(Token::Attribute(attribute)) => {
                is_test |= attribute == "test" || attribute.starts_with("tokio::test");
            }
            Piece::Token(Token::Name(name)) => {
                if after_fn && is_test {
                    texts.push(new(line, Kind::TestName, name.clone()));
                }
                is_test &= !after_fn;
                after_fn = !after_fn && name == "fn";
            }
            Piece::Token(_) => {}
        }
    }
    texts
}

/// Returns a function from an offset to a line number, the first being 1.
fn lines(source: &str) -> impl Fn(usize) -> usize {
    let ends: Vec<usize> = source.match_indices('\n').map(|(offset, _)| offset).collect();
    move |offset| ends.partition_point(|end| *end < offset) + 1
}

/// Returns a comment's kind and the text without marks.
fn comment_text(comment: &str) -> (Kind, &str) {
    match comment.strip_prefix("//") {
        Some(doc) if doc.starts_with(['/', '!']) && !doc.starts_with("//") => (Kind::Doc, doc[1..].trim()),
        Some(plain) => (Kind::Comment, plain.trim()),
        None => (Kind::Comment, comment.trim_matches(['/', '*'])),
    }
}

/// Returns the texts of a Markdown file: paragraphs outside of fences, and lines.
fn document_texts(file: &str, text: &str) -> Vec<Text> {
    let mut texts: Vec<Text> = Vec::new();
    let mut fenced = false;
    let mut paragraph_end = 0;
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        let new =
            |kind, text: &str| Text { file: file.to_owned(), line: number, kind, text: text.to_owned() };
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
            continue;
        }
        if fenced || line.trim().is_empty() {
            continue;
        }
        let is_table = line.trim_start().starts_with('|');
        if !is_table && !line.contains("](") && !line.contains("://") {
            texts.push(new(Kind::Line, line));
        }
        let begins = is_table || line.starts_with('#') || line.trim_start().starts_with(['-', '*', '>']);
        let last = texts.iter_mut().rev().find(|text| text.kind == Kind::Document);
        match last.filter(|_| !begins && number == paragraph_end + 1) {
            Some(last) => last.text.extend(["\n", line]),
            None => texts.push(new(Kind::Document, line.trim_start_matches(['#', '-', '*', '>', ' ']))),
        }
        if !line.starts_with('#') {
            paragraph_end = number;
        }
    }
    texts
}

/// Returns the comments of a file whose comments begin with `#`.
fn hash_comments(file: &str, text: &str) -> Vec<Text> {
    let mut texts: Vec<Text> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let comment = match line.trim_start().strip_prefix('#') {
            Some(comment) => comment,
            None => match line.split_once(" # ") {
                Some((_, comment)) => comment,
                None => continue,
            },
        };
        let joins =
            texts.last().is_some_and(|last| last.line + last.text.matches('\n').count() + 1 == index + 1);
        match texts.last_mut().filter(|_| joins) {
            Some(last) => last.text.extend(["\n", comment.trim()]),
            None => texts.push(Text {
                file: file.to_owned(),
                line: index + 1,
                kind: Kind::Comment,
                text: comment.trim().to_owned(),
            }),
        }
    }
    texts
}

/// Returns the files that are neither Rust nor generated, by path from the root.
pub(super) fn other_files() -> Vec<(String, String)> {
    let root = workspace();
    let skipped = ["target", ".git", "bin", "corpus", "node_modules"];
    let mut found = Vec::new();
    let mut waiting: Vec<PathBuf> = vec![root.clone()];
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            let path = entry.path();
            let name = entry.file_name().into_string().unwrap_or_default();
            if path.is_dir() {
                if !skipped.contains(&name.as_str()) {
                    waiting.push(path);
                }
                continue;
            }
            let known =
                [".md", ".toml", ".yaml", ".yml", ".sh", ".nft"].iter().any(|end| name.ends_with(end));
            let Ok(text) = fs::read_to_string(&path) else { continue };
            if known || name == "Makefile" || name.starts_with("Dockerfile") || text.starts_with("#!") {
                let name = path.strip_prefix(&root).expect("below the root").display().to_string();
                found.push((name, text));
            }
        }
    }
    found.sort();
    found
}
