//! Output for people and scripts. No other code writes to stdout.
//!
//! - Names, errors and results are untrusted, so none of their control characters reaches a terminal.
//! - JSON is indented and ends with a line feed.
//! - A reader that closes the pipe (`| head`) causes no failure.

use std::io::{self, ErrorKind, Write};

use clap::ValueEnum;
use serde::Serialize;
use serde_json::Value;

use crate::failure::Failure;
use crate::terminal::is_control;

/// Format of the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Tables and sentences for people
    #[default]
    Text,
    /// JSON for programs
    Json,
}

/// Format of the output of a command that also prints YAML.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum DocumentFormat {
    /// Tables and sentences for people
    #[default]
    Text,
    /// JSON for programs
    Json,
    /// YAML for programs and people
    Yaml,
}

impl DocumentFormat {
    /// Prints a document; `None` if the output is text.
    pub fn print<T: Serialize>(self, value: &T) -> Option<Result<(), Failure>> {
        match self {
            DocumentFormat::Text => None,
            DocumentFormat::Json => Some(print_json(value)),
            DocumentFormat::Yaml => Some(print_yaml(value)),
        }
    }
}

/// Option `-o`.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Output {
    /// Output format
    #[arg(short = 'o', long = "output", value_name = "FORMAT", default_value = "text")]
    pub format: Format,
}

/// Writer of progress messages: to stdout, or to stderr if stdout contains JSON.
#[derive(Clone, Copy, Debug)]
pub struct Progress(Format);

impl Progress {
    /// Returns the writer beside output of this format.
    pub fn beside(format: Format) -> Progress {
        Progress(format)
    }

    /// Writes one line. A failure does not stop the command.
    pub fn line(self, line: impl AsRef<str>) {
        let line = format!("{}\n", line.as_ref());
        let _ = match self.0 {
            Format::Text => io::stdout().lock().write_all(line.as_bytes()),
            Format::Json => io::stderr().lock().write_all(line.as_bytes()),
        };
    }
}

/// Prints text as it is.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(cause) if cause.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::new(format!("print the output: {cause}")))
        }
        _ => Ok(()),
    }
}

/// Prints a value as JSON.
pub fn print_json<T: Serialize>(value: &T) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|cause| Failure::new(format!("encode the output: {cause}")))?;
    print(&format!("{}\n", escaped(&text)))
}

/// Prints a value as YAML. Strings are in quotes, as in JSON.
pub fn print_yaml<T: Serialize>(value: &T) -> Result<(), Failure> {
    let value =
        serde_json::to_value(value).map_err(|cause| Failure::new(format!("encode the output: {cause}")))?;
    print(&yaml(&value))
}

fn yaml(value: &Value) -> String {
    let lines: Vec<String> = yaml_lines(value).iter().map(|line| escaped(line)).collect();
    format!("{}\n", lines.join("\n"))
}

/// Returns the lines of a YAML document in block style.
fn yaml_lines(value: &Value) -> Vec<String> {
    let indented = |lines: Vec<String>| lines.into_iter().map(|line| format!("  {line}"));
    let is_block = |value: &Value| match value {
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        _ => false,
    };
    match value {
        Value::Array(items) if is_block(value) => items
            .iter()
            .flat_map(|item| {
                let lines = yaml_lines(item).into_iter().enumerate();
                lines.map(|(at, line)| format!("{}{line}", if at == 0 { "- " } else { "  " }))
            })
            .collect(),
        Value::Object(fields) if is_block(value) => fields
            .iter()
            .flat_map(|(key, value)| {
                let key = Value::from(key.as_str());
                match (value, is_block(value)) {
                    (_, false) => vec![format!("{key}: {value}")],
                    (_, true) => {
                        std::iter::once(format!("{key}:")).chain(indented(yaml_lines(value))).collect()
                    }
                }
            })
            .collect(),
        value => vec![value.to_string()],
    }
}

/// Returns a JSON document with each character that a terminal executes written as `\u….`. The encoder leaves DEL and the
/// control characters above it unchanged.
fn escaped(document: &str) -> String {
    let mut text = String::with_capacity(document.len());
    for c in document.chars() {
        match c {
            '\n' => text.push(c),
            c if is_control(c) => text.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => text.push(c),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yaml_output_is_in_block_style() {
        let document = serde_json::json!([{ "a": [1, { "b": [], "c": "x: \u{9b}" }], "d": {} }, "no"]);
        let expected =
            "- \"a\":\n    - 1\n    - \"b\": []\n      \"c\": \"x: \\u009b\"\n  \"d\": {}\n- \"no\"\n";
        assert_eq!(yaml(&document), expected);
        assert_eq!(yaml(&serde_json::json!([])), "[]\n");
    }

    #[test]
    fn json_output_escapes_control_characters_without_loss() {
        let name = "a\u{1b}[31m\u{7f}\u{9b}2J\u{85}\u{202e}\u{2066}\u{2028}\t\n\"\\ü€";
        let document = serde_json::json!({ name: [name], "n": 1.5 });
        let text = escaped(&serde_json::to_string_pretty(&document).unwrap());
        assert!(text.lines().count() > 3 && text.chars().all(|c| c == '\n' || !is_control(c)), "{text:?}");
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), document);
    }
}
