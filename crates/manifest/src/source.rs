//! File text, and positions in it as line and column.

use serde::{Deserialize, Serialize};

/// Position in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Position {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
}

/// Part of a file, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    /// First byte's offset.
    pub start: usize,
    /// Offset after the last byte.
    pub end: usize,
}

/// Text with the offset at which each line begins.
#[derive(Clone, Debug, Default)]
pub struct Source {
    text: String,
    /// Offset at which each line begins.
    lines: Vec<usize>,
}

impl Source {
    /// Splits `text` into lines; they end with a line feed, a carriage return, or both.
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

    /// Returns the whole text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the text in a span; empty if the span is invalid.
    pub fn slice(&self, span: Span) -> &str {
        self.text.get(span.start..span.end).unwrap_or_default()
    }

    /// Returns the position at an offset; an offset beyond the end counts as the end.
    pub fn position(&self, offset: usize) -> Position {
        let offset = offset.min(self.text.len());
        let line = self.lines.partition_point(|start| *start <= offset).max(1);
        let start = self.lines.get(line - 1).copied().unwrap_or_default();
        let before = self.text.get(start..offset).map_or(0, |text| text.chars().count());
        Position { line, column: before + 1 }
    }

    /// Returns where the line that contains this offset begins.
    pub fn line_start(&self, offset: usize) -> usize {
        let line = self.lines.partition_point(|start| *start <= offset).max(1);
        self.lines.get(line - 1).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_position_counts_lines_and_columns() {
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
    fn source_span_inside_a_character_is_empty() {
        assert_eq!(Source::new("ä").slice(Span { start: 1, end: 2 }), "");
        assert_eq!(Source::new("ab").slice(Span { start: 5, end: 9 }), "");
    }
}
