//! YAML parser: converts each document in a file to a tree or an error.
//!
//! The input is untrusted, so file size, nesting, nodes and string bytes are limited. Aliases are counted at
//! each use, so neither nesting nor aliases to aliases can exhaust the memory.
//!
//! In two respects Kubernetes reads more than the parser does:
//! - A file is split at lines that begin with `---` before it is parsed, so an invalid document does not hide
//!   the others.
//! - Blanks at the beginning of a line do not matter inside quotes and brackets. `config: '{` … `}'` that
//!   ends at the margin is common, and so are tabs. Such lines are indented in a copy, and positions are
//!   mapped back.
//!
//! Source: YAML 1.2.2; `k8s.io/apimachinery/pkg/util/yaml`; `sigs.k8s.io/yaml`.

use std::collections::BTreeMap;

use granit_parser::{ErrorKind, Event, Parser, ScalarStyle, ScanError, StructureStyle, Tag, options};

use super::indentation::Copy;
use super::node::{Key, Node, Value, plain};
use super::source::{Source, Span};
use super::weight::Weight;
use crate::MANIFEST_MAX;

/// Maximum nesting in a document.
pub const DEPTH_MAX: usize = 64;
/// Maximum number of nodes in a file; aliases are counted at each use.
pub const NODES_MAX: usize = 200_000;
/// Maximum size for all strings in a file, in bytes; aliases are counted at each use.
const TEXT_MAX: usize = 2 * MANIFEST_MAX;
/// Maximum number of values in one document whose lines are indented in a copy.
const REPAIRS_MAX: usize = 64;

/// Why a document is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Broken {
    /// Offset in the file, in bytes.
    pub(super) at: usize,
    /// Reason to show to the user.
    pub(super) reason: String,
}

/// Amounts that a file may still use before it reaches a limit.
struct Budget {
    nodes: usize,
    text: usize,
}

/// Returns every document in a file, or why it is invalid.
pub(super) fn documents(source: &Source) -> Vec<Result<Node, Broken>> {
    let text = source.text();
    if text.len() > MANIFEST_MAX {
        return vec![Err(Broken { at: 0, reason: format!("larger than {MANIFEST_MAX} bytes") })];
    }
    let mut budget = Budget { nodes: NODES_MAX, text: TEXT_MAX };
    let mut found = Vec::new();
    for (start, piece) in pieces(text) {
        match read(piece, start, &mut budget) {
            Ok(nodes) => found.extend(nodes.into_iter().filter(|node| node.value != Value::Null).map(Ok)),
            Err(broken) => found.push(Err(broken)),
        }
        if budget.nodes == 0 || budget.text == 0 {
            break;
        }
    }
    found
}

/// Splits a file before each line that begins with `---`; returns each piece with the offset.
fn pieces(text: &str) -> Vec<(usize, &str)> {
    let separates = |line: &str| {
        line.strip_prefix("---")
            .is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n']))
    };
    let mut starts = vec![0];
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        if at > 0 && separates(line) {
            starts.push(at);
        }
        at += line.len();
    }
    let ends = starts.iter().skip(1).copied().chain([text.len()]);
    starts.iter().zip(ends).map(|(start, end)| (*start, text.get(*start..end).unwrap_or_default())).collect()
}

/// Parses a piece. If blanks at the beginning of lines cause an error, changes them and parses it again.
fn read(piece: &str, start: usize, budget: &mut Budget) -> Result<Vec<Node>, Broken> {
    let mut copy = Copy::of(piece);
    for _ in 0..REPAIRS_MAX {
        let mut trial = Budget { nodes: budget.nodes, text: budget.text };
        let mut builder = Builder { copy: &copy, start, budget: &mut trial, last: 0, in_brackets: false };
        match builder.build() {
            Ok(nodes) => {
                *budget = trial;
                return Ok(nodes);
            }
            Err(Stop::Parser(error)) => {
                let at = error.marker().byte_offset().unwrap_or_default();
                let repaired = match error.kind() {
                    ErrorKind::InvalidQuotedScalarIndent | ErrorKind::TabInIndentation => {
                        copy.indent_quoted(builder.last, at)
                    }
                    _ => None,
                };
                let tabs = matches!(
                    error.kind(),
                    ErrorKind::TabInIndentation | ErrorKind::TabInBlockIndentation | ErrorKind::TabNotAllowed
                );
                let in_brackets = builder.in_brackets;
                match repaired.or_else(|| if tabs && in_brackets { copy.without_tabs(at) } else { None }) {
                    Some(repaired) => copy = repaired,
                    None => return Err(broken(&error, &copy, start)),
                }
            }
            Err(Stop::Bound(at, reason)) => {
                budget.nodes = trial.nodes;
                budget.text = trial.text;
                return Err(Broken { at, reason });
            }
        }
    }
    Err(Broken {
        at: start,
        reason: format!("more than {REPAIRS_MAX} values have lines that are not indented"),
    })
}

fn broken(error: &ScanError, copy: &Copy, start: usize) -> Broken {
    let at = error.marker().byte_offset().map_or(0, |offset| copy.original(offset));
    Broken { at: start + at, reason: format!("not YAML: {}", error.info()) }
}

/// Reason why building stopped.
enum Stop {
    Parser(ScanError),
    Bound(usize, String),
}

/// Tree builder that is fed with the parser's events.
struct Builder<'a> {
    copy: &'a Copy,
    start: usize,
    budget: &'a mut Budget,
    /// Offset in the copy where the last event ended.
    last: usize,
    /// Whether the next event is inside `[` or `{`.
    in_brackets: bool,
}

/// List or map that is being read.
struct Open {
    start: usize,
    anchor: usize,
    /// Whether it is written with brackets.
    in_brackets: bool,
    /// Map key that still waits for a value.
    key: Option<Key>,
    value: Value,
}

impl Builder<'_> {
    fn build(&mut self) -> Result<Vec<Node>, Stop> {
        let options = options! {
            emit_comments: false,
            flow_nesting_limit: DEPTH_MAX,
            block_nesting_limit: DEPTH_MAX,
        };
        let copy = self.copy;
        let mut done = Vec::new();
        let mut open: Vec<Open> = Vec::new();
        let mut anchors: BTreeMap<usize, Node> = BTreeMap::new();
        for next in Parser::new_from_str_with_options(&copy.text, options) {
            let (event, span) = next.map_err(Stop::Parser)?;
            let range = span.byte_range().unwrap_or(self.last..self.last);
            let span = self.span(range.start, range.end);
            self.last = range.end.max(self.last);
            let complete = match event {
                Event::Scalar(text, style, anchor, tag) => {
                    let node = self.scalar(&text, style, tag.as_deref(), span)?;
                    Some((node, anchor))
                }
                Event::Alias(anchor) => Some((self.alias(anchors.get(&anchor), span, open.len())?, 0)),
                Event::SequenceStart(style, anchor, _) => {
                    self.in_brackets = style == StructureStyle::Flow;
                    self.descend(&mut open, span, anchor, Value::List(Vec::new()))?;
                    None
                }
                Event::MappingStart(style, anchor, _) => {
                    self.in_brackets = style == StructureStyle::Flow;
                    self.descend(&mut open, span, anchor, Value::Map(Vec::new()))?;
                    None
                }
                Event::SequenceEnd | Event::MappingEnd => open.pop().map(|closed| {
                    self.in_brackets = open.last().is_some_and(|open| open.in_brackets);
                    let span = Span { start: closed.start, end: span.end };
                    (Node { value: closed.value, span }, closed.anchor)
                }),
                _ => None,
            };
            let Some((node, anchor)) = complete else { continue };
            if anchor > 0 {
                anchors.insert(anchor, node.clone());
            }
            match open.last_mut() {
                None => done.push(node),
                Some(parent) => self.put(parent, node)?,
            }
        }
        Ok(done)
    }

    fn span(&self, start: usize, end: usize) -> Span {
        Span { start: self.start + self.copy.original(start), end: self.start + self.copy.original(end) }
    }

    fn spend(&mut self, nodes: usize, text: usize, at: usize) -> Result<(), Stop> {
        match (self.budget.nodes.checked_sub(nodes), self.budget.text.checked_sub(text)) {
            (Some(nodes), Some(text)) => {
                (self.budget.nodes, self.budget.text) = (nodes, text);
                Ok(())
            }
            _ => {
                (self.budget.nodes, self.budget.text) = (0, 0);
                Err(Stop::Bound(at, "too large, aliases counted at each use".to_owned()))
            }
        }
    }

    fn scalar(
        &mut self,
        text: &str,
        style: ScalarStyle,
        tag: Option<&Tag>,
        span: Span,
    ) -> Result<Node, Stop> {
        self.spend(1, text.len(), span.start)?;
        let value = match (tag.and_then(Tag::core_suffix), style) {
            (Some("str"), _) => Value::Text(text.to_owned()),
            (Some(_), _) | (None, ScalarStyle::Plain) => plain(text),
            (None, _) => Value::Text(text.to_owned()),
        };
        Ok(Node { value, span })
    }

    /// Returns a copy of the anchored node with the alias's span, at nesting `depth`.
    fn alias(&mut self, named: Option<&Node>, span: Span, depth: usize) -> Result<Node, Stop> {
        let Some(named) = named else {
            return Err(Stop::Bound(span.start, "an alias inside the node that it names".to_owned()));
        };
        let weight = Weight::of(named);
        self.spend(weight.nodes, weight.text, span.start)?;
        if depth + weight.depth > DEPTH_MAX {
            return Err(Stop::Bound(span.start, format!("nested deeper than {DEPTH_MAX}")));
        }
        Ok(Node { value: named.value.clone(), span })
    }

    fn descend(&mut self, open: &mut Vec<Open>, span: Span, anchor: usize, value: Value) -> Result<(), Stop> {
        self.spend(1, 0, span.start)?;
        if open.len() >= DEPTH_MAX {
            return Err(Stop::Bound(span.start, format!("nested deeper than {DEPTH_MAX}")));
        }
        open.push(Open { start: span.start, anchor, in_brackets: self.in_brackets, key: None, value });
        Ok(())
    }

    fn put(&mut self, parent: &mut Open, node: Node) -> Result<(), Stop> {
        let entries = match &mut parent.value {
            Value::List(items) => {
                items.push(node);
                return Ok(());
            }
            Value::Map(entries) => entries,
            _ => return Ok(()),
        };
        match parent.key.take() {
            None => parent.key = Some(key(&node)?),
            Some(key) if key.text == "<<" => merge(entries, node)?,
            Some(key) => entries.push((key, node)),
        }
        Ok(())
    }
}

fn key(node: &Node) -> Result<Key, Stop> {
    let text = match &node.value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Number(text) | Value::Text(text) => text.clone(),
        Value::List(_) | Value::Map(_) => {
            let reason = format!("a key must be a string, this is {}", node.kind());
            return Err(Stop::Bound(node.span.start, reason));
        }
    };
    Ok(Key { text, span: node.span })
}

/// Merges `<<`: the entries in a map or a list of maps are inserted first, so that explicit entries override
/// them.
fn merge(entries: &mut Vec<(Key, Node)>, node: Node) -> Result<(), Stop> {
    let at = node.span.start;
    let maps = match node.value {
        Value::List(items) => items,
        value => vec![Node { value, span: node.span }],
    };
    for map in maps {
        let Value::Map(merged) = map.value else {
            return Err(Stop::Bound(at, "<< needs a map".to_owned()));
        };
        // An earlier map of the list overrides a later one: each is inserted before the previous ones.
        entries.splice(0..0, merged);
    }
    Ok(())
}
