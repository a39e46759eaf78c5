//! Edits to a file that fix a finding.

use serde_json::Value as Json;

use crate::{Node, Source, Span, Value, document};

/// Maximum number of edits that are tried one by one.
const TRIALS_MAX: usize = 64;

/// Edit to a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    /// Span to replace.
    pub span: Span,
    /// Content to write there.
    pub replacement: String,
}

/// Returns the text with the edits applied; if edits overlap, the first counts.
pub fn apply(text: &str, edits: &[Edit]) -> String {
    let mut edits: Vec<&Edit> = edits.iter().collect();
    edits.sort_by_key(|edit| edit.span);
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    for Edit { span, replacement } in edits {
        let Some(before) =
            text.get(at..span.start).filter(|_| span.start <= span.end && span.end <= text.len())
        else {
            continue;
        };
        out.push_str(before);
        out.push_str(replacement);
        at = span.end;
    }
    out.push_str(text.get(at..).unwrap_or_default());
    out
}

/// Selects the edits after which the file has the same meaning, with `spec.config` as a string in more definitions.
///
/// Returns for each edit whether it may be applied, together with all others that may.
pub(super) fn harmless(text: &str, edits: &[Edit]) -> Vec<bool> {
    let converted = |edits: &[Edit]| converted_configs(&documents(text), &documents(&apply(text, edits)));
    if edits.is_empty() || converted(edits).is_some_and(|count| count >= edits.len()) {
        return vec![true; edits.len()];
    }
    let mut kept: Vec<Edit> = Vec::new();
    let mut count = 0;
    let mut selected = Vec::new();
    for (index, edit) in edits.iter().enumerate() {
        let tried: Vec<Edit> = kept.iter().chain([edit]).cloned().collect();
        let after = if index < TRIALS_MAX { converted(&tried) } else { None };
        let is_harmless = after.is_some_and(|after| after > count);
        if is_harmless {
            (kept, count) = (tried, after.unwrap_or_default());
        }
        selected.push(is_harmless);
    }
    selected
}

/// Returns the documents in a text; invalid ones are `null`.
fn documents(text: &str) -> Vec<Json> {
    let documents = document::documents(&Source::new(text));
    documents.into_iter().map(|document| document.map_or(Json::Null, |node| node.to_json())).collect()
}

/// Returns how many definitions got a string with the same content as `spec.config`; `None` if anything else
/// differs.
fn converted_configs(before: &[Json], after: &[Json]) -> Option<usize> {
    if before.len() != after.len() {
        return None;
    }
    before.iter().zip(after).map(|(before, after)| converted_inside(before, after)).sum()
}

fn converted_inside(before: &Json, after: &Json) -> Option<usize> {
    match (before, after) {
        (Json::Array(before), Json::Array(after)) => converted_configs(before, after),
        (Json::Object(before), Json::Object(after)) if before.len() == after.len() => {
            let is_definition = before.get("kind").is_some_and(|kind| kind == "NetworkAttachmentDefinition");
            let converted = |(key, old): (&String, &Json)| match after.get(key)? {
                new if key == "spec" && is_definition => converted_spec(old, new),
                new => converted_inside(old, new),
            };
            before.iter().map(converted).sum()
        }
        _ => (before == after).then_some(0),
    }
}

fn converted_spec(before: &Json, after: &Json) -> Option<usize> {
    let (Some(old), Some(Json::String(new))) = (before.get("config"), after.get("config")) else {
        return (before == after).then_some(0);
    };
    let rest = |spec: &Json| {
        let mut spec = spec.clone();
        spec.as_object_mut().map(|spec| spec.remove("config"));
        spec
    };
    if rest(before) != rest(after) {
        return None;
    }
    match old {
        Json::String(old) => (old == new).then_some(0),
        old => serde_json::from_str::<Json>(new).is_ok_and(|new| new == *old).then_some(1),
    }
}

/// Returns an edit that converts a map under `config:` to a string.
///
/// Most such maps are already written as JSON; those lines are kept. Otherwise the replacement is the formatted `json`.
/// Inside brackets YAML has no block scalars, so the string becomes one quoted line.
pub(super) fn config_as_text(source: &Source, object: &Node, map: &Node, json: &str) -> Edit {
    let end = end_of_line(source, end(source, map));
    let span = Span { start: map.span.start, end };
    if in_brackets(source, object) || object.get("spec").is_some_and(|spec| in_brackets(source, spec)) {
        return Edit {
            span: Span { end: map.span.end, ..span },
            replacement: serde_json::Value::from(json).to_string(),
        };
    }
    let line = source.line_start(span.start);
    let before = source.slice(Span { start: line, end: span.start });
    let blanks = before.len() - before.trim_start().len();
    let own_line = before.trim().is_empty();
    let indent = " ".repeat(if own_line { blanks } else { blanks + 2 });
    let mut block = String::from("|");
    for line in laid_out(source.slice(map.span), json).lines() {
        block.push('\n');
        if !line.trim().is_empty() {
            block.push_str(&indent);
            block.push_str(line.trim_end());
        }
    }
    match own_line {
        false => Edit { span, replacement: block },
        true => {
            // The block begins on the line of its key; the rest of that line can only be a comment.
            let after_key = key_end(source, object).unwrap_or(span.start);
            Edit { span: Span { start: after_key, end }, replacement: format!(" {block}") }
        }
    }
}

/// Whether `config:` has an explicit tag, which would not fit a string.
pub(super) fn has_tag(source: &Source, object: &Node, map: &Node) -> bool {
    let before = key_end(source, object).map(|start| source.slice(Span { start, end: map.span.start }));
    before.is_some_and(|before| before.split_whitespace().any(|word| word.starts_with('!')))
}

/// Returns the offset after `config:`.
fn key_end(source: &Source, object: &Node) -> Option<usize> {
    let Value::Map(entries) = &object.get("spec")?.value else { return None };
    let (key, _) = entries.iter().rev().find(|(key, _)| key.text == "config")?;
    let colon = source.text().get(key.span.end..)?.find(':')?;
    Some(key.span.end + colon + 1)
}

fn laid_out(written: &str, json: &str) -> String {
    let read = |text: &str| serde_json::from_str::<Json>(text).ok();
    let value = read(json);
    // JSON as written may have a number that the API server writes in another way.
    if value.is_some() && read(written) == value {
        return outdent(written);
    }
    value.and_then(|value| serde_json::to_string_pretty(&value).ok()).unwrap_or_else(|| json.to_owned())
}

fn in_brackets(source: &Source, node: &Node) -> bool {
    source.slice(node.span).starts_with(['{', '['])
}

/// Returns where a node's own text ends. A map or list without brackets ends with the last value or, if that is empty,
/// an alias or merged by `<<`, with the last line that is no comment.
fn end(source: &Source, node: &Node) -> usize {
    let last = match &node.value {
        Value::Map(entries) => entries.last().map(|(_, node)| node),
        Value::List(items) => items.last(),
        _ => return node.span.end,
    };
    if in_brackets(source, node) {
        return node.span.end;
    }
    let mut text = source.slice(node.span).trim_end();
    while let Some((before, line)) = text.rsplit_once('\n')
        && line.trim_start().starts_with('#')
    {
        text = before.trim_end();
    }
    // The values of an alias are elsewhere.
    let is_inside = |last: &&Node| node.span.start <= last.span.start && last.span.end <= node.span.end;
    let last = last.filter(is_inside).map(|last| end(source, last));
    last.unwrap_or_default().max(node.span.start + text.len())
}

/// Returns where the line ends if only a comment follows: the comment would become part of the string.
fn end_of_line(source: &Source, at: usize) -> usize {
    let rest = source.text().get(at..).unwrap_or_default();
    let rest = rest.lines().next().unwrap_or_default();
    let blank = rest.trim_start();
    if blank.is_empty() || blank.starts_with('#') { at + rest.len() } else { at }
}

/// Removes the blanks that all lines but the first begin with; the last line (a closing bracket) is treated separately.
fn outdent(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let depth = |line: &&str| line.len() - line.trim_start().len();
    let inner = lines.iter().skip(1).filter(|line| !line.trim().is_empty());
    let closing = lines.last().map_or(0, depth);
    let common = inner.map(depth).min().unwrap_or_default().min(closing);
    let mut out: Vec<&str> = Vec::with_capacity(lines.len());
    for (index, line) in lines.iter().enumerate() {
        out.push(if index == 0 { line } else { line.get(common..).unwrap_or(line.trim_start()) });
    }
    out.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_are_applied_in_order_without_overlapping_ones() {
        let edit = |start, end, text: &str| Edit { span: Span { start, end }, replacement: text.to_owned() };
        assert_eq!(apply("abcdef", &[edit(4, 5, "E"), edit(0, 1, "A"), edit(0, 3, "x")]), "AbcdEf");
        assert_eq!(apply("abc", &[edit(2, 9, "x"), edit(1, 1, "-")]), "a-bc");
        assert_eq!(apply("ä", &[edit(1, 2, "x")]), "ä");
    }
}
