//! What a person or a script reads: the one place that writes to stdout.
//!
//! Rules: names, errors and results may come from anywhere, so no control character reaches a terminal; JSON is
//! indented and ends with a line feed; a reader that went away (`| head`) is no failure.

use std::io::{self, ErrorKind, Write};

use clap::ValueEnum;
use serde::Serialize;

use crate::failure::Failure;
use crate::terminal::is_obeyed;

/// What the outcome is printed as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Tables and sentences for people
    #[default]
    Text,
    /// JSON for programs
    Json,
}

/// `-o`.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Output {
    /// Output format
    #[arg(short = 'o', long = "output", value_name = "FORMAT", default_value = "text")]
    pub format: Format,
}

/// Where it is said what is being done: stdout, unless that is for programs.
#[derive(Clone, Copy, Debug)]
pub struct Progress(Format);

impl Progress {
    /// Beside an outcome of this format.
    pub fn beside(format: Format) -> Progress {
        Progress(format)
    }

    /// Says one line. That nobody can read it does not stop the work.
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
            Err(Failure::new(format!("print the outcome: {cause}")))
        }
        _ => Ok(()),
    }
}

/// Prints a document.
pub fn print_json<T: Serialize>(value: &T) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|cause| Failure::new(format!("encode the outcome: {cause}")))?;
    print(&format!("{}\n", escaped(&text)))
}

/// A document with every character that a terminal would obey written as JSON may write any: it leaves DEL and what is above it
/// as it is.
fn escaped(document: &str) -> String {
    let mut text = String::with_capacity(document.len());
    for c in document.chars() {
        match c {
            '\n' => text.push(c),
            c if is_obeyed(c) => text.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => text.push(c),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_stranger_wrote_reaches_no_terminal_and_is_the_same_to_a_program() {
        let name = "a\u{1b}[31m\u{7f}\u{9b}2J\u{85}\u{202e}\u{2066}\u{2028}\t\n\"\\ü€";
        let document = serde_json::json!({ name: [name], "n": 1.5 });
        let text = escaped(&serde_json::to_string_pretty(&document).unwrap());
        assert!(text.lines().count() > 3 && text.chars().all(|c| c == '\n' || !is_obeyed(c)), "{text:?}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), document);
    }
}
