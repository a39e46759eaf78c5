//! Explains JSON errors in JSON's own terms: where a syntax error is and how to fix it, and which type a value must
//! have.
//!
//! Every JSON reader uses these two functions, so that no message shows the decoder's terms.
//!
//! Source: RFC 8259.

use std::fmt;

use serde::de::Expected;
use serde_json::Value;

/// U+FEFF in UTF-8, with which some editors begin a file.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The decoder's whole numbers: name, smallest and greatest.
const NUMBERS: &[(&str, &str, &str)] = &[
    ("u8", "0", "255"),
    ("u16", "0", "65535"),
    ("u32", "0", "4294967295"),
    ("u64", "0", "18446744073709551615"),
    ("usize", "0", "18446744073709551615"),
    ("i8", "-128", "127"),
    ("i16", "-32768", "32767"),
    ("i32", "-2147483648", "2147483647"),
    ("i64", "-9223372036854775808", "9223372036854775807"),
];

/// Returns why `text` is not JSON, with line and column: `… at line 1 column 5`. Files that programs write are decoded
/// without paths, so for a value with the wrong form there is also only a place.
pub fn syntax_error(text: &[u8], cause: &serde_json::Error) -> String {
    if text.starts_with(BYTE_ORDER_MARK) {
        return "it begins with a byte order mark; save it as UTF-8 without one".to_owned();
    }
    let (line, column) = (cause.line(), cause.column());
    if !cause.is_syntax() && !cause.is_eof() {
        return format!("a value does not have the expected form at line {line} column {column}");
    }
    let at = offset(text, line, column);
    let why = match cause.is_eof() {
        true => unfinished(text),
        false => unexpected(text, at).unwrap_or_else(|| bare(cause)),
    };
    format!("{why} at line {line} column {column}")
}

/// Returns the offset for a line and column as the decoder counts them.
pub fn offset(text: &[u8], line: usize, column: usize) -> usize {
    let lines = text.split_inclusive(|byte| *byte == b'\n');
    let start: usize = lines.take(line.saturating_sub(1)).map(<[u8]>::len).sum();
    (start + column.saturating_sub(1)).min(text.len())
}

/// Decoder messages: how each begins, and what to tell the user instead.
const MESSAGES: &[(&str, &str)] = &[
    ("expected value", "a value is missing or misspelt"),
    ("expected ident", "a word must be in \" quotation marks, except true, false and null"),
    ("expected `:`", "a colon is missing after the key"),
    ("expected `,` or `}`", "a comma or } is missing"),
    ("expected `,` or `]`", "a comma or ] is missing"),
    ("expected `\"`", "a closing \" is missing"),
    ("key must be a string", "a key must be in \" quotation marks"),
    ("trailing characters", "there is more text after the end of the value"),
    ("trailing comma", "there is a comma after the last value: remove the comma"),
    ("control character", "a string has a control character: write it as \\u and four hexadecimal digits"),
    ("recursion limit exceeded", "it is nested too deeply"),
    ("invalid escape", "a string has an unknown escape: write \\\\ for a backslash"),
    ("lone leading surrogate", "a string has half of a character: \\ud800 to \\udbff need a second escape"),
    (
        "unexpected end of hex escape",
        "a string has half of a character: \\ud800 to \\udbff need a second escape",
    ),
    ("invalid unicode code point", "a string has a character that does not exist"),
];

/// Returns the decoder's message in JSON's terms, without the place.
fn bare(cause: &serde_json::Error) -> String {
    let whole = cause.to_string();
    if let Some((_, words)) = MESSAGES.iter().find(|(begin, _)| whole.starts_with(begin)) {
        return (*words).to_owned();
    }
    let place = format!(" at line {} column {}", cause.line(), cause.column());
    whole.strip_suffix(&place).unwrap_or(&whole).to_owned()
}

/// Returns what is missing at the end of the text.
fn unfinished(text: &[u8]) -> String {
    if text.trim_ascii().is_empty() {
        return "it is empty".to_owned();
    }
    let (mut open, mut quoted, mut escaped) = (Vec::new(), false, false);
    for byte in text {
        match (quoted, byte) {
            (true, _) if escaped => escaped = false,
            (true, b'\\') => escaped = true,
            (_, b'"') => quoted = !quoted,
            (false, b'{') => open.push('}'),
            (false, b'[') => open.push(']'),
            (false, b'}' | b']') => drop(open.pop()),
            _ => {}
        }
    }
    match open.pop() {
        _ if quoted => "it ends inside a string: a closing \" is missing".to_owned(),
        Some(close) => format!("it ends too early: a closing {close} is missing"),
        None => "it ends too early".to_owned(),
    }
}

/// Returns a hint for the character at which the decoder stopped, if it is a common mistake.
fn unexpected(text: &[u8], at: usize) -> Option<String> {
    let rest = String::from_utf8_lossy(text.get(at..)?);
    let character = rest.chars().next()?;
    let before = text.get(..at)?.trim_ascii_end();
    let previous = before.last().copied();
    // The decoder may stop behind the first of the two characters that begin a comment.
    let in_comment = matches!(character, '/' | '*') && (rest.starts_with("//") || rest.starts_with("/*"));
    let words = |text: &str| Some(text.to_owned());
    match character {
        '\u{2018}'..='\u{201f}' | '\u{00ab}' | '\u{00bb}' => {
            Some(format!("{character} is a typographic quotation mark: write \" instead"))
        }
        '\'' => words("' is not a quotation mark in JSON: write \" instead"),
        '#' => words("JSON has no comments: remove everything from # to the end of the line"),
        _ if in_comment => words("JSON has no comments: remove it"),
        '}' | ']' if previous == Some(b',') => {
            Some(format!("there is a comma before {character}: remove the comma"))
        }
        ';' => words("; separates nothing in JSON: write a comma"),
        '\n' | '\r' | '\t' => words("a string has a line break or a tab: write \\n or \\t"),
        '=' => words("= is not JSON: write : between key and value"),
        character if matches!(previous, Some(b'{' | b',')) && is_name(character) => {
            words("a key must be in \" quotation marks")
        }
        character if is_name(character) && !character.is_ascii_digit() => {
            words("a word must be in \" quotation marks, except true, false and null")
        }
        '"' | '{' | '[' if previous.is_some_and(|byte| matches!(byte, b'"' | b'}' | b']')) => {
            Some(format!("a comma is missing before {character}"))
        }
        _ => None,
    }
}

fn is_name(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// Returns the type that a value must have, for the end of a message: `expected a whole number from 0 to 255`.
pub fn expected(expected: &dyn Expected, value: Option<&Value>) -> String {
    let form = form(&Named(expected).to_string());
    let text = value.and_then(Value::as_str).unwrap_or_default();
    let is_unquoted = match form.as_str() {
        "true or false" => matches!(text, "true" | "false"),
        form => form.contains("number") && text.parse::<f64>().is_ok(),
    };
    let hint = if is_unquoted { "; remove the quotation marks" } else { "" };
    format!("expected {form}{hint}")
}

/// Returns the name that JSON users have for a type.
fn form(name: &str) -> String {
    if let Some((_, least, most)) = NUMBERS.iter().find(|(number, ..)| *number == name) {
        return match (*least, most.len() > 10) {
            ("0", true) => "a whole number, 0 or greater".to_owned(),
            (_, true) => "a whole number".to_owned(),
            (least, false) => format!("a whole number from {least} to {most}"),
        };
    }
    let text = match name {
        "a boolean" => "true or false",
        "a sequence" => "a list",
        "a map" => "an object",
        "a string" | "a borrowed string" | "string" | "str" | "a string key" => "a string",
        "f32" | "f64" => "a number",
        "unit" => "null",
        name if name.starts_with("struct ") || name.starts_with("internally tagged enum ") => "an object",
        name if name.starts_with("tuple ") || name.starts_with("an array of length ") => "a list",
        name if name.starts_with("enum ") || name.starts_with("variant ") => "another value",
        name => name,
    };
    text.to_owned()
}

struct Named<'a>(&'a dyn Expected);

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(text: &str) -> String {
        syntax_error(text.as_bytes(), &serde_json::from_str::<Value>(text).unwrap_err())
    }

    #[test]
    fn json_syntax_error_names_the_cure_and_the_place() {
        for (text, expected) in [
            ("{\"a\": 1,}", "there is a comma before }: remove the comma at line 1 column 9"),
            ("[1,\n]", "there is a comma before ]: remove the comma at line 2 column 1"),
            ("{'a': 1}", "' is not a quotation mark in JSON: write \" instead at line 1 column 2"),
            ("{\"a\": 'b'}", "' is not a quotation mark in JSON: write \" instead at line 1 column 7"),
            ("{“a”: 1}", "“ is a typographic quotation mark: write \" instead at line 1 column 2"),
            ("{\"a\": “b”}", "“ is a typographic quotation mark: write \" instead at line 1 column 7"),
            ("{\"a\": 1 // one\n}", "JSON has no comments: remove it at line 1 column 9"),
            (
                "{\n# one\n\"a\": 1}",
                "JSON has no comments: remove everything from # to the end of the line at line 2 column 1",
            ),
            ("{a: 1}", "a key must be in \" quotation marks at line 1 column 2"),
            (
                "{\"a\": yes}",
                "a word must be in \" quotation marks, except true, false and null at line 1 column 7",
            ),
            (
                "{\"a\": True}",
                "a word must be in \" quotation marks, except true, false and null at line 1 column 7",
            ),
            ("{\"a\": \"b\" \"c\": 1}", "a comma is missing before \" at line 1 column 11"),
            ("{\"a\": 1; \"b\": 2}", "; separates nothing in JSON: write a comma at line 1 column 8"),
            ("{\"a\" = 1}", "= is not JSON: write : between key and value at line 1 column 6"),
            ("{\"a\": [1", "it ends too early: a closing ] is missing at line 1 column 8"),
            ("{\"a\": \"b}", "it ends inside a string: a closing \" is missing at line 1 column 9"),
            (" ", "it is empty at line 1 column 1"),
            ("\u{feff}{}", "it begins with a byte order mark; save it as UTF-8 without one"),
        ] {
            assert_eq!(why(text), expected, "{text}");
        }
        // Other mistakes keep the decoder's words.
        assert_eq!(why("{\"a\": 01}"), "invalid number at line 1 column 8");
    }

    #[test]
    fn json_errors_have_no_words_of_the_decoder() {
        let deep = "[".repeat(200);
        for text in [
            "{\"a\":}",
            "{\"a\" 1}",
            "[1 2]",
            "{\"a\":1 \"b\"}",
            "{} {}",
            "{1:2}",
            "[1,,2]",
            "\"a\u{1}\"",
            "[tru]",
            &deep,
            "\"\\q\"",
            "\"\\ud800\"",
            "\"\\ud800\\u0041\"",
        ] {
            let why = why(text);
            let words = [
                "expected",
                "ident",
                "trailing",
                "recursion",
                "invalid escape",
                "surrogate",
                "EOF",
                "hex escape",
                "`",
            ];
            assert!(!words.iter().any(|word| why.contains(word)), "{text}: {why}");
        }
        let form = serde_json::from_str::<Vec<u8>>("[\"x\"]").unwrap_err();
        assert_eq!(syntax_error(b"", &form), "a value does not have the expected form at line 1 column 4");
    }

    #[test]
    fn json_types_have_the_names_of_json() {
        for (name, named) in [
            ("u32", "a whole number from 0 to 4294967295"),
            ("u64", "a whole number, 0 or greater"),
            ("i64", "a whole number"),
            ("i8", "a whole number from -128 to 127"),
            ("a boolean", "true or false"),
            ("a sequence", "a list"),
            ("struct Conf", "an object"),
            ("an IP address", "an IP address"),
        ] {
            assert_eq!(form(name), named);
        }
        let quoted = |name: &'static str, text: &str| expected(&name, Some(&Value::from(text)));
        assert_eq!(quoted("a boolean", "true"), "expected true or false; remove the quotation marks");
        assert!(quoted("u16", "1500").ends_with("; remove the quotation marks"));
        assert!(!quoted("u16", "big").contains("quotation"));
    }
}
