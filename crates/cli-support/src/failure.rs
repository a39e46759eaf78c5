//! Defines how a command fails: one sentence, details, the next step, and an exit code.
//!
//! - The sentence has the form `path: key: value: why`, in lower case and without a full stop.
//! - Exit codes are decided here and never derived from an error text.

use std::fmt;
use std::process::ExitCode;

use cni::{Error, code};

use crate::terminal::plain;

/// Exit code for a command that failed. A successful command exits with 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// 1: the command failed.
    Failed,
    /// 2: the command line is invalid.
    Usage,
    /// 3: the command must run as root.
    NeedsRoot,
    /// 130: the command was interrupted, and everything it changed was rolled back.
    Interrupted,
}

/// Exit codes as one line, for `--help`.
pub const EXIT_CODES: &str =
    "Exit codes: 0 success, 1 failure, 2 wrong usage, 3 root required, 130 interrupted and rolled back.";

/// Failure that a command reports on stderr before it exits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    exit: Exit,
    sentence: String,
    details: String,
    next: String,
    reported: Reported,
}

/// Whether the printed output already shows the failure, so that it must not be printed a second time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reported {
    NotYet,
    Already,
}

impl Failure {
    /// Returns a failure with exit code 1.
    pub fn new(sentence: impl Into<String>) -> Failure {
        Failure {
            exit: Exit::Failed,
            sentence: sentence.into(),
            details: String::new(),
            next: String::new(),
            reported: Reported::NotYet,
        }
    }

    /// Returns a failure that is not printed again, because the output already shows it (for example a table of
    /// findings).
    pub fn quiet(sentence: impl Into<String>) -> Failure {
        Failure { reported: Reported::Already, ..Failure::new(sentence) }
    }

    /// Whether the printed output already shows the failure.
    pub fn is_quiet(&self) -> bool {
        self.reported == Reported::Already
    }

    /// Sets the exit code.
    pub fn exit(self, exit: Exit) -> Failure {
        Failure { exit, ..self }
    }

    /// Sets the hint: what the user should do next.
    pub fn next(self, next: impl Into<String>) -> Failure {
        Failure { next: next.into(), ..self }
    }

    /// Puts the step that failed in front of the sentence: `step: …`.
    pub fn context(self, step: impl fmt::Display) -> Failure {
        Failure { sentence: format!("{step}: {}", self.sentence), ..self }
    }

    /// Appends another failure's sentence, for commands that continue after the first failure.
    pub fn also(mut self, more: Option<Failure>) -> Failure {
        if let Some(Failure { sentence, .. }) = more {
            self.sentence = format!("{}; {sentence}", self.sentence);
        }
        self
    }

    /// Returns the process exit code.
    pub fn code(&self) -> ExitCode {
        ExitCode::from(match self.exit {
            Exit::Failed => 1,
            Exit::Usage => 2,
            Exit::NeedsRoot => 3,
            Exit::Interrupted => 130,
        })
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure { details: error.details, ..Failure::new(error.msg) }
    }
}

impl From<Failure> for Error {
    /// Converts to a CNI error with code 5; details and hint are joined in the CNI error's details.
    fn from(failure: Failure) -> Error {
        let Failure { exit: _, sentence, details, next, reported: _ } = failure;
        let both = [details, next].into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join("; ");
        Error::new(code::IO_FAILURE, sentence).details(both)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failure { exit: _, sentence, details, next, reported: _ } = self;
        f.write_str(&plain(sentence))?;
        for line in [details, next].into_iter().filter(|line| !line.is_empty()) {
            write!(f, "\n  {}", plain(line))?;
        }
        Ok(())
    }
}

impl std::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_shows_sentence_details_and_next_step() {
        let failure = Failure::from(Error::config("no").details("of weft")).context("a").next("do b");
        assert_eq!(failure.to_string(), "a: no\n  of weft\n  do b");
        assert_eq!(Failure::new("a").also(Some(Failure::new("b"))).to_string(), "a; b");
    }

    #[test]
    fn failure_text_has_no_control_characters() {
        assert_eq!(Failure::new("a\u{1b}[31m\nb").to_string(), "a [31m b");
    }
}
