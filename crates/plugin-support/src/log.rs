//! Log lines on stderr and in a log file.
//!
//! A line that cannot be written is dropped: the log of a daemon may be a file on a full disk, and the runtime that read
//! a plugin's stderr may have exited. `eprintln!` panics there, and a daemon that panics no longer extends its leases.

use std::fmt;
use std::io::{self, Write};
use std::sync::OnceLock;

use crate::log_file::LogFile;

/// Destination of the log lines of this process. Until it is set, lines of [`Level::Error`] are written to stderr.
static DESTINATION: OnceLock<Destination> = OnceLock::new();

/// Level of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// A failure, or a fact that the operator should know.
    Error,
    /// An action.
    Verbose,
    /// A detail or the reason of a decision.
    Debug,
}

/// Destination of log lines.
#[derive(Debug)]
pub struct Destination {
    /// Highest level that is written; `None` writes nothing.
    pub level: Option<Level>,
    /// Whether lines are written to stderr.
    pub to_stderr: bool,
    /// Log file.
    pub file: Option<LogFile>,
}

/// Writes a line of [`Level::Error`], and ignores a failure.
#[macro_export]
macro_rules! log {
    ($($words:tt)*) => { $crate::log::write($crate::log::Level::Error, format_args!($($words)*)) };
}

/// Sets the destination of this process; only the first call has an effect.
pub fn direct(destination: Destination) {
    let _ = DESTINATION.set(destination);
}

/// Whether lines of this level are written.
pub fn is_written(level: Level) -> bool {
    DESTINATION.get().map_or(Some(Level::Error), |set| set.level).is_some_and(|highest| level <= highest)
}

/// Writes a line in one call, without control characters, and ignores a failure.
pub fn write(level: Level, line: fmt::Arguments<'_>) {
    if !is_written(level) {
        return;
    }
    if DESTINATION.get().is_none_or(|set| set.to_stderr) {
        let _ = io::stderr().lock().write_all((cni::text::plain(&line.to_string()) + "\n").as_bytes());
    }
    write_to_file(level, line);
}

/// Writes a line to the log file only: the runtime logs the error of a call itself.
pub fn write_to_file(level: Level, line: fmt::Arguments<'_>) {
    let Some(file) = DESTINATION.get().and_then(|set| set.file.as_ref()) else { return };
    if is_written(level) {
        file.write(level.as_str(), &cni::text::plain(&line.to_string()));
    }
}

impl Level {
    /// Returns the level as Multus writes it in a log file.
    pub fn as_str(self) -> &'static str {
        match self {
            Level::Error => "error",
            Level::Verbose => "verbose",
            Level::Debug => "debug",
        }
    }
}
