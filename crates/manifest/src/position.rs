//! File position for a value inside embedded JSON.
//!
//! The JSON in an annotation or a definition is the string in a YAML scalar. [`offset`] finds a value in the JSON by
//! path. [`in_scalar`] finds that string offset in the scalar as written, quoted or not, folded or not. YAML only
//! changes blanks in a string, so the characters that are not blanks are counted.

use std::collections::BTreeSet;

use npwg::refusal::{KeyPath, Step};

/// Returns the offset in the JSON at which the value at `path` begins, or else the nearest existing ancestor.
pub fn offset(json: &str, path: &KeyPath) -> usize {
    let mut reader = Reader { bytes: json.as_bytes(), at: 0 };
    reader.blanks();
    for step in path.steps() {
        let outer = reader.at;
        if reader.enter(step).is_none() {
            return outer;
        }
    }
    reader.at
}

/// Maximum number of repeated keys that are found.
const DUPLICATES_MAX: usize = 16;

/// Returns the keys that occur twice in one object in valid JSON, each with the path and the offset of the second.
pub fn duplicate_keys(json: &str) -> Vec<(KeyPath, usize)> {
    let mut found = Vec::new();
    let mut reader = Reader { bytes: json.as_bytes(), at: 0 };
    let _ = reader.duplicates(&KeyPath::root(), &mut found);
    found
}

/// Cursor in valid JSON. The search ends at the first invalid byte.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn blanks(&mut self) {
        while self.peek().is_some_and(|byte| byte.is_ascii_whitespace()) {
            self.at += 1;
        }
    }

    fn take(&mut self, byte: u8) -> Option<()> {
        self.blanks();
        (self.peek() == Some(byte)).then(|| self.at += 1)
    }

    /// Moves from where a value begins to where the value inside it that `step` selects begins.
    fn enter(&mut self, step: &Step) -> Option<()> {
        match step {
            Step::Index(index) => {
                self.take(b'[')?;
                for _ in 0..*index {
                    self.value()?;
                    self.take(b',')?;
                }
                self.blanks();
                (self.peek()? != b']').then_some(())
            }
            Step::Key(key) => self.enter_key(key),
        }
    }

    /// Enters the value at a key. If several keys have this name, the last counts; an exact match precedes
    /// other letter cases.
    fn enter_key(&mut self, key: &str) -> Option<()> {
        self.take(b'{')?;
        let (mut exact, mut folded) = (None, None);
        loop {
            self.blanks();
            let start = self.at;
            if self.string().is_none() {
                break;
            }
            let name: Option<String> =
                self.bytes.get(start..self.at).and_then(|raw| serde_json::from_slice(raw).ok());
            if self.take(b':').is_none() {
                break;
            }
            self.blanks();
            match name.as_deref() {
                Some(name) if name == key => exact = Some(self.at),
                Some(name) if cni::fold::same(name, key) => folded = Some(self.at),
                _ => {}
            }
            if self.value().is_none() || self.take(b',').is_none() {
                break;
            }
        }
        self.at = exact.or(folded)?;
        Some(())
    }

    /// Skips one value and collects the keys in it that occur twice.
    fn duplicates(&mut self, path: &KeyPath, found: &mut Vec<(KeyPath, usize)>) -> Option<()> {
        self.blanks();
        let (close, is_object) = match self.peek()? {
            b'{' => (b'}', true),
            b'[' => (b']', false),
            _ => return self.value(),
        };
        self.at += 1;
        let mut names = BTreeSet::new();
        for index in 0.. {
            self.blanks();
            if self.peek()? == close {
                self.at += 1;
                return Some(());
            }
            let mut inner = path.index(index);
            if is_object {
                let start = self.at;
                self.string()?;
                let name: String = serde_json::from_slice(self.bytes.get(start..self.at)?).ok()?;
                self.take(b':')?;
                inner = path.key(&name);
                if !names.insert(name) && found.len() < DUPLICATES_MAX {
                    found.push((inner.clone(), start));
                }
            }
            self.duplicates(&inner, found)?;
            self.blanks();
            if self.peek()? == b',' {
                self.at += 1;
            }
        }
        None
    }

    fn string(&mut self) -> Option<()> {
        self.take(b'"')?;
        loop {
            match self.peek()? {
                b'"' => {
                    self.at += 1;
                    return Some(());
                }
                b'\\' => self.at += 2,
                _ => self.at += 1,
            }
        }
    }

    /// Skips one value, however deep.
    fn value(&mut self) -> Option<()> {
        self.blanks();
        let mut depth = 0usize;
        loop {
            match self.peek()? {
                b'"' => {
                    self.string()?;
                }
                b'[' | b'{' => {
                    depth += 1;
                    self.at += 1;
                }
                b']' | b'}' => {
                    depth = depth.checked_sub(1)?;
                    self.at += 1;
                }
                b',' | b':' => self.at += 1,
                byte if byte.is_ascii_whitespace() => {
                    self.at += 1;
                    continue;
                }
                _ => {
                    while self.peek().is_some_and(|b| !b" \t\r\n,:]}[{\"".contains(&b)) {
                        self.at += 1;
                    }
                }
            }
            if depth == 0 {
                return Some(());
            }
        }
    }
}

/// Returns where byte `offset` in `text` is in `scalar`, as written in YAML.
pub fn in_scalar(scalar: &str, text: &str, offset: usize) -> usize {
    let solid = |c: char| !matches!(c, ' ' | '\t' | '\r' | '\n');
    let before = text.get(..offset).unwrap_or(text).chars().filter(|c| solid(*c)).count();
    let mut counted = 0;
    for (at, c) in decoded(scalar) {
        if solid(c) {
            if counted == before {
                return at;
            }
            counted += 1;
        }
    }
    0
}

/// Returns the characters in a scalar, each with the offset; blanks are kept as written.
fn decoded(scalar: &str) -> Vec<(usize, char)> {
    let mut chars = scalar.char_indices().peekable();
    let quote = chars.peek().map(|(_, c)| *c).filter(|c| matches!(c, '\'' | '"'));
    if quote.is_some() {
        chars.next();
    }
    let mut decoded = Vec::new();
    while let Some((at, c)) = chars.next() {
        match (quote, c) {
            (Some('\''), '\'') => match chars.next() {
                Some((_, '\'')) => decoded.push((at, '\'')),
                _ => break,
            },
            (Some('"'), '"') => break,
            (Some('"'), '\\') => {
                let Some((_, escape)) = chars.next() else { break };
                let digits = match escape {
                    'x' => 2,
                    'u' => 4,
                    'U' => 8,
                    _ => 0,
                };
                let code: String = chars.by_ref().take(digits).map(|(_, c)| c).collect();
                let meant = match escape {
                    'n' | 't' | 'r' | ' ' | '\n' | '\r' | '\t' => ' ',
                    'x' | 'u' | 'U' => {
                        u32::from_str_radix(&code, 16).ok().and_then(char::from_u32).unwrap_or('?')
                    }
                    other => other,
                };
                decoded.push((at, meant));
            }
            _ => decoded.push((at, c)),
        }
    }
    decoded
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> KeyPath {
        text.split('.').filter(|part| !part.is_empty()).fold(KeyPath::root(), |path, part| {
            match part.parse::<usize>() {
                Ok(index) => path.index(index),
                Err(_) => path.key(part),
            }
        })
    }

    #[test]
    fn position_of_a_value_is_found_by_its_path() {
        let json = r#" [ {"a\"b": [1, {"x": "]}" }], "ips": ["10.0.0.1", "bad"]}, null ] "#;
        let at = |text: &str| json.get(offset(json, &path(text))..).unwrap_or_default();
        assert!(at("0.ips.1").starts_with("\"bad\""));
        assert!(at("0.IPS.0").starts_with("\"10.0.0.1\""));
        assert!(at("0.a\"b.1.x").starts_with("\"]}\""));
        assert!(at("1").starts_with("null"));
        assert!(at("").starts_with("[ {"));
        // A missing value has the position of the surrounding one.
        assert!(at("0.mac").starts_with("{\"a"));
        assert!(at("0.ips.7").starts_with("[\"10"));
        assert!(at("5").starts_with("[ {"));
    }

    #[test]
    fn position_of_duplicate_keys_is_the_last_or_exact_one() {
        let json = r#"{"a":1,"A":2,"a":3,"B":4}"#;
        let at = |text: &str| json.get(offset(json, &path(text))..).unwrap_or_default();
        assert!(at("a").starts_with('3') && at("b").starts_with('4'));
    }

    #[test]
    fn position_in_invalid_json_does_not_panic() {
        for json in ["", "[", "{", "{\"a", "{\"a\":", "[1,", "]", "\"\\", "{\"a\" 1}", "[[[[", "\u{0}"] {
            for steps in ["0", "a", "0.0", "a.b", ""] {
                assert!(offset(json, &path(steps)) <= json.len(), "{json} {steps}");
            }
        }
    }

    #[test]
    fn position_of_a_byte_in_a_yaml_scalar() {
        let text = r#"{ "a": "it's", "b": 1 }"#;
        let wanted = text.find("\"b\"").unwrap();
        for scalar in [
            r#"'{ "a": "it''s", "b": 1 }'"#,
            "'{\n    \"a\": \"it''s\",\n\n    \"b\": 1\n}'",
            "{\n    \"a\": \"it's\",\n    \"b\": 1\n}\n",
            r#""{ \"a\": \"it's\", \"b\": 1 }""#,
            "\"{\\n \\\"a\\\": \\\"it\\u0027s\\\",\\\n   \\\"b\\\": 1 }\"",
        ] {
            let at = in_scalar(scalar, text, wanted);
            let rest = scalar.get(at..).unwrap();
            assert!(rest.starts_with("\"b\"") || rest.starts_with("\\\"b\\\""), "{scalar}: {rest}");
        }
        assert_eq!(in_scalar("", "x", 0), 0);
        assert_eq!(in_scalar("ä", "äö", 3), 0);
    }
}
