//! Writes output for people and for scripts. No other code may write to stdout.
//!
//! - Names, errors and results are untrusted, so control characters in them never reach a terminal.
//! - JSON is indented and ends with a line feed; YAML has the same content.
//! - If the reader closes the pipe (for example `| head`), the command does not fail.

use std::io::{self, ErrorKind, Write};

use clap::ValueEnum;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;

use crate::failure::Failure;
use crate::terminal::is_control;

/// Format of the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Tables and sentences for people
    #[default]
    #[value(name = "table", alias = "text")]
    Text,
    /// Tables with more columns, where the command has some
    Wide,
    /// JSON for programs
    Json,
    /// YAML for programs
    Yaml,
}

/// Returns a number with the noun in the right form: `1 sandbox`, `2 sandboxes`.
pub fn counted(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

// === impl Format ===

impl Format {
    /// Whether stdout must contain exactly one document for scripts. Progress messages then go to stderr.
    pub fn is_document(self) -> bool {
        matches!(self, Format::Json | Format::Yaml)
    }

    /// Prints the value if the format is a document; returns `None` if the caller should print a table instead.
    pub fn print<T: Serialize>(self, value: &T) -> Option<Result<(), Failure>> {
        self.is_document().then(|| print_document(self, value))
    }
}

/// Option `-o`.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Output {
    /// Output format
    #[arg(short = 'o', long = "output", value_name = "FORMAT", default_value = "table")]
    pub format: Format,
}

/// Writer for progress messages: they go to stdout, or to stderr if stdout contains a document.
#[derive(Clone, Copy, Debug)]
pub struct Progress(Format);

impl Progress {
    /// Returns the progress writer that goes with this output format.
    pub fn beside(format: Format) -> Progress {
        Progress(format)
    }

    /// Writes one line. A write error does not stop the command.
    pub fn line(self, line: impl AsRef<str>) {
        let line = format!("{}\n", line.as_ref());
        let _ = match self.0 {
            Format::Text | Format::Wide => io::stdout().lock().write_all(line.as_bytes()),
            Format::Json | Format::Yaml => io::stderr().lock().write_all(line.as_bytes()),
        };
    }
}

/// Prints text unchanged.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(cause) if cause.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::new(format!("print the output: {cause}")))
        }
        _ => Ok(()),
    }
}

/// Whether a process still reads the output: false once the other end of the pipe is closed.
///
/// A command that prints continuously must check this, because [`print()`] ignores a closed pipe.
#[must_use]
pub fn has_reader() -> bool {
    let stdout = io::stdout();
    let mut polled = [PollFd::new(&stdout, PollFlags::empty())];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    match poll(&mut polled, Some(&at_once)) {
        Ok(_) => !polled[0].revents().intersects(PollFlags::ERR | PollFlags::NVAL),
        Err(_) => true,
    }
}

/// Prints a value as JSON.
pub fn print_json<T: Serialize>(value: &T) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|cause| Failure::new(format!("encode the output: {cause}")))?;
    print(&format!("{}\n", escaped(&text)))
}

/// Prints a value as YAML if that is the format, otherwise as JSON.
pub fn print_document<T: Serialize>(format: Format, value: &T) -> Result<(), Failure> {
    if format != Format::Yaml {
        return print_json(value);
    }
    // The value goes through JSON first, so that both documents have the same content.
    let value =
        serde_json::to_value(value).map_err(|cause| Failure::new(format!("encode the output: {cause}")))?;
    print(&yaml(&value)?)
}

/// Returns a YAML document in which each terminal control character is replaced by a space.
fn yaml(value: &serde_json::Value) -> Result<String, Failure> {
    let text = serde_saphyr::to_string(value)
        .map_err(|cause| Failure::new(format!("encode the output: {cause}")))?;
    Ok(text.chars().map(|c| if c != '\n' && is_control(c) { ' ' } else { c }).collect())
}

/// Escapes terminal control characters in a JSON document as `\u….`. The JSON encoder leaves DEL and the control
/// characters above it as they are.
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
    fn yaml_output_has_the_content_of_json() {
        let document = serde_json::json!([{ "a": [1, { "b": [], "c": "x: y" }], "d": {} }, "no", "1"]);
        let text = yaml(&document).unwrap();
        assert_eq!(serde_saphyr::from_str::<serde_json::Value>(&text).unwrap(), document, "{text}");
        let hostile = yaml(&serde_json::json!({ "name": "a\u{9b}2J\u{1b}[31m" })).unwrap();
        assert!(hostile.chars().all(|c| c == '\n' || !is_control(c)), "{hostile:?}");
    }

    #[test]
    fn json_output_escapes_control_characters_without_loss() {
        let name = "a\u{1b}[31m\u{7f}\u{9b}2J\u{85}\u{202e}\u{2066}\u{2028}\t\n\"\\ü€";
        let document = serde_json::json!({ name: [name], "n": 1.5 });
        let text = escaped(&serde_json::to_string_pretty(&document).unwrap());
        assert!(text.lines().count() > 3 && text.chars().all(|c| c == '\n' || !is_control(c)), "{text:?}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), document);
    }
}
