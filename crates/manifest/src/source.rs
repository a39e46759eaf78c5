//! The text of a file, and the places in it that a person can find: line and column.

use serde::{Deserialize, Serialize};

/// A place in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Position {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
}

/// A piece of a file, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    /// The first byte.
    pub start: usize,
    /// The byte after the last.
    pub end: usize,
}

/// A text whose lines are known.
#[derive(Clone, Debug, Default)]
pub struct Source {
    text: String,
    /// The first byte of every line.
    lines: Vec<usize>,
}

impl Source {
    /// Finds the lines of `text`: they end with a line feed, a carriage return, or both.
    pub fn new(text: &str) -> Source {
        let bytes = text.as_bytes();
        let ends = bytes.iter().enumerate().filter(|(at, byte)| match byte {
            b'\n' => true,
            b'\r' => bytes.get(at + 1) != Some(&b'\n'),
            _ => false,
        });
        let lines = std::iter::once(0).chain(ends.map(|(at, _)| at + 1)).collect();
        Source { text: text.to_owned(), lines }
    }

    /// The whole text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The text of a piece; empty where it is none.
    pub fn slice(&self, span: Span) -> &str {
        self.text.get(span.start..span.end).unwrap_or_default()
    }

    /// The place of a byte; one beyond the end is at the end.
    pub fn position(&self, offset: usize) -> Position {
        let offset = offset.min(self.text.len());
        let line = self.lines.partition_point(|start| *start <= offset).max(1);
        let start = self.lines.get(line - 1).copied().unwrap_or_default();
        let before = self.text.get(start..offset).map_or(0, |text| text.chars().count());
        Position { line, column: before + 1 }
    }

    /// The first byte of the line that holds a byte.
    pub fn line_start(&self, offset: usize) -> usize {
        let line = self.lines.partition_point(|start| *start <= offset).max(1);
        self.lines.get(line - 1).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_counted_as_an_editor_counts_them() {
        let source = Source::new("a\näö x\r\n\rend");
        let at = |offset: usize| {
            let Position { line, column } = source.position(offset);
            (line, column)
        };
        assert_eq!((at(0), at(1), at(2)), ((1, 1), (1, 2), (2, 1)));
        assert_eq!(at(7), (2, 4));
        assert_eq!((at(10), at(11)), ((3, 1), (4, 1)));
        assert_eq!(at(999), (4, 4));
        assert_eq!(Source::new("").position(0), Position { line: 1, column: 1 });
        assert_eq!(source.line_start(8), 2);
    }

    #[test]
    fn a_span_that_cuts_a_character_is_empty() {
        assert_eq!(Source::new("ä").slice(Span { start: 1, end: 2 }), "");
        assert_eq!(Source::new("ab").slice(Span { start: 5, end: 9 }), "");
    }
}
