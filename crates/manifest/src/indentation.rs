//! Copy of a YAML piece with changed blanks at line starts.
//!
//! libyaml, which Kubernetes uses, lets the lines in a quoted string begin in any column, and accepts tabs in
//! quotes and brackets. YAML does not, and even examples in the multi-network specification end at the
//! margin: `config: '{` … `}'`. These blanks belong to no value, so the copy can add or change them. It
//! records additions to map positions back.

use crate::MANIFEST_MAX;

/// Copy whose quoted lines may have been indented.
pub(super) struct Copy {
    pub(super) text: String,
    /// Added spaces: the offset in the copy after them, and how many there are so far.
    added: Vec<(usize, usize)>,
}

impl Copy {
    pub(super) fn of(piece: &str) -> Copy {
        Copy { text: piece.to_owned(), added: Vec::new() }
    }

    /// Returns the offset in the original for an offset in the copy.
    pub(super) fn original(&self, offset: usize) -> usize {
        let next = self.added.partition_point(|(at, _)| *at <= offset);
        let before = next.checked_sub(1).and_then(|last| self.added.get(last)).map_or(0, |(_, count)| *count);
        let original = offset - before;
        // Inside added blanks: the place where they were added.
        self.added.get(next).map_or(original, |(at, count)| original.min(at - count))
    }

    /// Returns the copy with leading tabs replaced, in the line that contains `at` and in the following
    /// lines.
    pub(super) fn without_tabs(&self, at: usize) -> Option<Copy> {
        let start = self.text.get(..at)?.rfind('\n').map_or(0, |end| end + 1);
        let mut text = self.text.get(..start)?.to_owned();
        let mut lines = self.text.get(start..)?.split_inclusive('\n');
        for line in lines.by_ref() {
            let content = line.trim_start_matches([' ', '\t']);
            let blanks = line.len() - content.len();
            if !line.get(..blanks)?.contains('\t') {
                text.push_str(line);
                break;
            }
            text.push_str(&" ".repeat(blanks));
            text.push_str(content);
        }
        lines.for_each(|line| text.push_str(line));
        (text != self.text).then(|| Copy { text, added: self.added.clone() })
    }

    /// Returns the copy with the next quoted string after `from` indented beyond the opening quote, if the error at
    /// `at` is inside that string.
    pub(super) fn indent_quoted(&self, from: usize, at: usize) -> Option<Copy> {
        let open = opening_quote(&self.text, from)?;
        let close = closing_quote(&self.text, open).filter(|close| (open..=*close).contains(&at))?;
        let line = self.text.get(..open)?.rfind('\n').map_or(0, |at| at + 1);
        let width = self.text.get(line..open)?.chars().count() + 1;
        if width > 1024 {
            return None;
        }
        let mut text = self.text.get(..open)?.to_owned();
        let mut added: Vec<(usize, usize)> =
            self.added.iter().filter(|(at, _)| *at <= open).copied().collect();
        let mut total = added.last().map_or(0, |(_, count)| *count);
        let mut rest = self.added.iter().filter(|(at, _)| *at > open);
        let mut shift = 0;
        for part in self.text.get(open..close)?.split_inclusive('\n') {
            text.push_str(part);
            if part.ends_with('\n') {
                text.push_str(&" ".repeat(width));
                total += width;
                shift += width;
                added.push((text.len(), total));
            }
        }
        text.push_str(self.text.get(close..)?);
        // Earlier additions after this place move with the text.
        added.extend(rest.by_ref().map(|(at, count)| (at + shift, count + shift)));
        (text.len() <= 2 * MANIFEST_MAX).then_some(Copy { text, added })
    }
}

/// Returns the quote that opens the next scalar after `from`; skips indicators, blanks, comments, tags and anchors.
fn opening_quote(text: &str, from: usize) -> Option<usize> {
    let mut comment = false;
    let mut before = ' ';
    for (at, c) in text.get(from..)?.char_indices() {
        match c {
            '\n' => comment = false,
            _ if comment => {}
            '#' if before.is_whitespace() => comment = true,
            '\'' | '"' => return Some(from + at),
            _ => {}
        }
        before = c;
    }
    None
}

/// Returns where the quoted string that opens at `open` ends.
fn closing_quote(text: &str, open: usize) -> Option<usize> {
    let bytes = text.as_bytes();
    let quote = *bytes.get(open)?;
    let mut at = open + 1;
    while let Some(byte) = bytes.get(at) {
        if *byte == b'\\' && quote == b'"' {
            at += 1;
        } else if *byte == quote {
            if quote == b'\'' && bytes.get(at + 1) == Some(&quote) {
                at += 1;
            } else {
                return Some(at);
            }
        }
        at += 1;
    }
    None
}
