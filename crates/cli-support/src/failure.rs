//! Why a command failed, for the person who typed it: one sentence, what is known besides, and what to do next.
//!
//! Rules: the sentence has a path through it, lower case, no full stop; exit codes are decided here and
//! nowhere else, and never from text.

use std::fmt;
use std::process::ExitCode;

use cni::{Error, code};

use crate::terminal::plain;

/// How a command that did not succeed ends. 0 is success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// 1: it failed.
    Failed,
    /// 2: it was asked for in the wrong way.
    Usage,
    /// 3: only root can do it.
    NeedsRoot,
    /// 130: interrupted; what it had made is removed again.
    Interrupted,
}

/// The codes for `--help`.
pub const EXIT_CODES: &str =
    "Exit codes: 0 success, 1 failure, 2 wrong usage, 3 root required, 130 interrupted and rolled back.";

/// Why a command failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    exit: Exit,
    sentence: String,
    details: String,
    next: String,
    told: Reported,
}

/// Whether the outcome that was printed shows the failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reported {
    NotYet,
    Already,
}

impl Failure {
    /// It failed; exit code 1.
    pub fn new(sentence: impl Into<String>) -> Failure {
        Failure {
            exit: Exit::Failed,
            sentence: sentence.into(),
            details: String::new(),
            next: String::new(),
            told: Reported::NotYet,
        }
    }

    /// It failed, and what has been printed already says so.
    pub fn quiet(sentence: impl Into<String>) -> Failure {
        Failure { told: Reported::Already, ..Failure::new(sentence) }
    }

    /// Must it still be said?
    pub fn is_quiet(&self) -> bool {
        self.told == Reported::Already
    }

    /// The same with another exit code.
    pub fn exit(self, exit: Exit) -> Failure {
        Failure { exit, ..self }
    }

    /// The same with what the person may do next.
    pub fn next(self, next: impl Into<String>) -> Failure {
        Failure { next: next.into(), ..self }
    }

    /// The same one step further up the path: `step: …`.
    pub fn context(self, step: impl fmt::Display) -> Failure {
        Failure { sentence: format!("{step}: {}", self.sentence), ..self }
    }

    /// The same, and what failed besides.
    pub fn also(mut self, more: Option<Failure>) -> Failure {
        if let Some(Failure { sentence, .. }) = more {
            self.sentence = format!("{}; {sentence}", self.sentence);
        }
        self
    }

    /// The exit code.
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
    /// What reading files for somebody else came to: code 5.
    fn from(failure: Failure) -> Error {
        let Failure { exit: _, sentence, details, next, told: _ } = failure;
        let both = [details, next].into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join("; ");
        Error::new(code::IO_FAILURE, sentence).details(both)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failure { exit: _, sentence, details, next, told: _ } = self;
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
    fn a_failure_is_a_sentence_then_what_is_known_then_what_to_do() {
        let failure = Failure::from(Error::config("no").details("of weft")).context("a").next("do b");
        assert_eq!(failure.to_string(), "a: no\n  of weft\n  do b");
        assert_eq!(Failure::new("a").also(Some(Failure::new("b"))).to_string(), "a; b");
    }

    #[test]
    fn what_a_stranger_wrote_cannot_move_the_cursor() {
        assert_eq!(Failure::new("a\u{1b}[31m\nb").to_string(), "a [31m b");
    }
}
