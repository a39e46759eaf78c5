//! Pieces from a long manifest, each of which is parsed alone, so that the length has no limit.
//!
//! A file is split at lines that begin with `---`. A list as `kubectl get -o yaml` or `-o json` prints it is split into
//! its items, recognized by how far the first line is indented. A piece keeps the columns, and knows how many lines
//! precede it.
//!
//! - The lines around a list's items are in no piece.
//! - An alias cannot refer to an anchor in another piece, so short files are better parsed whole.

use std::io::{self, BufRead, Read};

use crate::MANIFEST_MAX;

/// Piece of a manifest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// Number of lines before the piece.
    pub lines_before: usize,
    /// Text in the piece.
    pub text: String,
}

/// Place in the current document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Not in a list.
    Document,
    /// After the line `items:`.
    BeforeItems,
    /// Among a list's items, whose first lines begin with so many blanks and `-` or `{`.
    Items(usize, Form),
    /// After the last item.
    AfterItems,
}

/// Form in which a list is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Yaml,
    Json,
}

/// Iterator over pieces.
#[derive(Debug)]
pub struct Pieces<R> {
    reader: R,
    place: Place,
    piece: Piece,
    lines: usize,
    ended: bool,
}

impl<R: BufRead> Pieces<R> {
    /// Splits the text that `reader` delivers.
    pub fn new(reader: R) -> Pieces<R> {
        Pieces { reader, place: Place::Document, piece: Piece::default(), lines: 0, ended: false }
    }

    /// Reads up to where the next piece ends; `None` at the end.
    fn read(&mut self) -> io::Result<Option<Piece>> {
        while !self.ended {
            let mut bytes = Vec::new();
            let limit = MANIFEST_MAX.saturating_sub(self.piece.text.len()) as u64 + 1;
            self.reader.by_ref().take(limit).read_until(b'\n', &mut bytes)?;
            if self.piece.text.len() + bytes.len() > MANIFEST_MAX {
                let first = self.piece.lines_before + 1;
                return Err(io::Error::other(format!(
                    "line {first}: object larger than {MANIFEST_MAX} bytes"
                )));
            }
            self.ended = bytes.is_empty();
            let line = String::from_utf8(bytes)
                .map_err(|_| io::Error::other(format!("line {}: not UTF-8", self.lines + 1)))?;
            let complete = if self.ended { Some(self.start(String::new())) } else { self.add(line) };
            self.lines += 1;
            if let Some(piece) = complete.filter(|piece| !piece.text.trim().is_empty()) {
                return Ok(Some(piece));
            }
        }
        Ok(None)
    }

    /// Adds a line; returns the piece that ends before it.
    fn add(&mut self, line: String) -> Option<Piece> {
        let content = line.trim_start_matches(' ');
        let (indent, content) = (line.len() - content.len(), content.trim_end());
        if line.starts_with("---") && (content == "---" || line.starts_with("--- ")) {
            self.place = Place::Document;
            return Some(self.start(line));
        }
        if self.place == Place::BeforeItems {
            let form = match content {
                "{" => Some(Form::Json),
                _ if content.starts_with("- ") => Some(Form::Yaml),
                _ => None,
            };
            if let Some(form) = form {
                self.place = Place::Items(indent, form);
                // The lines of the list itself are in no piece.
                self.piece.text.clear();
            }
        }
        match self.place {
            Place::Items(first, Form::Yaml) if indent == first && content.starts_with("- ") => {
                let item = line.replacen('-', " ", 1);
                return Some(self.start(item));
            }
            Place::Items(first, Form::Json) if indent == first && content == "{" => {
                return Some(self.start(line));
            }
            Place::Items(first, Form::Json) if indent == first && matches!(content, "}" | "},") => {
                self.piece.text.push_str("}\n");
                return None;
            }
            Place::Items(first, _) if indent <= first && !content.is_empty() && !content.starts_with('#') => {
                self.place = Place::AfterItems;
                return Some(self.start(String::new()));
            }
            Place::AfterItems => return None,
            Place::Document if content == "items:" && indent == 0 => self.place = Place::BeforeItems,
            Place::Document if content == "\"items\": [" => self.place = Place::BeforeItems,
            _ => {}
        }
        self.piece.text.push_str(&line);
        None
    }

    /// Starts a piece with the first line; returns the previous one.
    fn start(&mut self, text: String) -> Piece {
        std::mem::replace(&mut self.piece, Piece { lines_before: self.lines, text })
    }
}

impl<R: BufRead> Iterator for Pieces<R> {
    type Item = io::Result<Piece>;

    fn next(&mut self) -> Option<io::Result<Piece>> {
        let next = self.read().transpose();
        if matches!(next, Some(Err(_))) {
            self.ended = true;
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(text: &str) -> Vec<(usize, String)> {
        Pieces::new(text.as_bytes())
            .map(|piece| piece.unwrap())
            .map(|piece| (piece.lines_before, piece.text))
            .collect()
    }

    #[test]
    fn long_manifest_is_split_at_documents_and_items() {
        let text = "a: 1\n---\napiVersion: v1\nitems:\n- b: |\n    # text\n\n  c:\n  - d\n# comment\n- e: 1\nkind: List\nmetadata: {}\n---\nf: 1\n";
        let found = pieces(text);
        let expected = [
            (0, "a: 1\n"),
            (4, "  b: |\n    # text\n\n  c:\n  - d\n# comment\n"),
            (10, "  e: 1\n"),
            (13, "---\nf: 1\n"),
        ];
        assert_eq!(found, expected.map(|(line, text)| (line, text.to_owned())));
    }

    #[test]
    fn long_json_list_is_split_into_its_items() {
        let items = serde_json::json!([{"kind": "A", "x": [{}, {"y": "z"}]}, {"kind": "B"}]);
        let list = serde_json::json!({"apiVersion": "v1", "items": items, "kind": "List"});
        let text = serde_json::to_string_pretty(&list).unwrap();
        let found: Vec<serde_json::Value> =
            pieces(&text).iter().map(|(_, text)| serde_json::from_str(text).unwrap()).collect();
        assert_eq!(serde_json::Value::from(found), items);
    }

    #[test]
    fn long_manifest_with_a_longer_object_is_refused() {
        let text = format!("a: {}\n", "x".repeat(MANIFEST_MAX));
        let mut found = Pieces::new(text.as_bytes());
        assert!(found.next().unwrap().unwrap_err().to_string().contains("line 1: object larger"));
        assert!(found.next().is_none());
        assert!(Pieces::new(&b"a: \xff\n"[..]).next().unwrap().is_err());
    }
}
