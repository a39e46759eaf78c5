//! Where in a file a value of embedded JSON stands.
//!
//! The JSON of an annotation or a definition is a text inside a YAML scalar. [`offset`] finds a value in the JSON
//! by its path; [`in_scalar`] finds that byte of the text in the scalar as it is written, quoted or not, folded
//! or not. Blanks are what YAML changes about a text; everything else stands in the file in the same order,
//! so characters that are no blanks are counted.

use npwg::refusal::{KeyPath, Step};

/// The byte of the JSON text at which the value at `path` begins, or that of the nearest value around it.
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

/// A pointer into valid JSON. Whatever is not valid ends the search, wherever that is.
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

    /// From the beginning of a value to that of the value inside it that `step` leads to.
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

    /// Of several keys of this name the last counts, and an exact one before one of other letter case.
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

    /// Over one value, however deep.
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

/// The byte of `scalar`, a scalar as written in YAML, at which byte `offset` of its `text` stands.
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

/// The characters a scalar means, each with the byte it stands at; blanks as they are written.
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
    fn a_value_is_found_by_its_path() {
        let json = r#" [ {"a\"b": [1, {"x": "]}" }], "ips": ["10.0.0.1", "bad"]}, null ] "#;
        let at = |text: &str| json.get(offset(json, &path(text))..).unwrap_or_default();
        assert!(at("0.ips.1").starts_with("\"bad\""));
        assert!(at("0.IPS.0").starts_with("\"10.0.0.1\""));
        assert!(at("0.a\"b.1.x").starts_with("\"]}\""));
        assert!(at("1").starts_with("null"));
        assert!(at("").starts_with("[ {"));
        // What is not there is its surroundings.
        assert!(at("0.mac").starts_with("{\"a"));
        assert!(at("0.ips.7").starts_with("[\"10"));
        assert!(at("5").starts_with("[ {"));
    }

    #[test]
    fn the_last_of_equal_keys_and_the_exact_one_count() {
        let json = r#"{"a":1,"A":2,"a":3,"B":4}"#;
        let at = |text: &str| json.get(offset(json, &path(text))..).unwrap_or_default();
        assert!(at("a").starts_with('3') && at("b").starts_with('4'));
    }

    #[test]
    fn what_is_no_json_is_survived() {
        for json in ["", "[", "{", "{\"a", "{\"a\":", "[1,", "]", "\"\\", "{\"a\" 1}", "[[[[", "\u{0}"] {
            for steps in ["0", "a", "0.0", "a.b", ""] {
                assert!(offset(json, &path(steps)) <= json.len(), "{json} {steps}");
            }
        }
    }

    #[test]
    fn a_byte_of_the_text_is_found_in_the_scalar() {
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
