//! Writes log lines to stderr and to a log file.
//!
//! A line that cannot be written is dropped. A daemon may log to a file on a full disk, and the runtime that read a
//! plugin's stderr may have exited. `eprintln!` would panic in both cases, and a daemon that panics no longer renews
//! leases.

use std::fmt;
use std::io::{self, Write};
use std::sync::OnceLock;

use crate::log_file::LogFile;

/// Log destination for this process. Until it is set, [`Level::Error`] lines go to stderr.
static DESTINATION: OnceLock<Destination> = OnceLock::new();

/// Log level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Something failed, or something the operator should know.
    Error,
    /// An action, for example an ADD that succeeded.
    Verbose,
    /// A detail, or the reason for a decision.
    Debug,
}

/// Where log lines go, and up to which level.
#[derive(Debug)]
pub struct Destination {
    /// Most detailed level that is written; `None` turns logging off.
    pub level: Option<Level>,
    /// Whether lines are also written to stderr.
    pub to_stderr: bool,
    /// Log file, if one is configured.
    pub file: Option<LogFile>,
}

/// Writes a [`Level::Error`] line and ignores write errors.
#[macro_export]
macro_rules! log {
    ($($words:tt)*) => { $crate::log::write($crate::log::Level::Error, format_args!($($words)*)) };
}

/// Sets the log destination for this process. Only the first call has an effect.
pub fn direct(destination: Destination) {
    let _ = DESTINATION.set(destination);
}

/// Whether lines at this level are written. Lets callers skip expensive formatting.
pub fn is_written(level: Level) -> bool {
    DESTINATION.get().map_or(Some(Level::Error), |set| set.level).is_some_and(|highest| level <= highest)
}

/// Writes a line in one call, without control characters, and ignores write errors.
pub fn write(level: Level, line: fmt::Arguments<'_>) {
    if !is_written(level) {
        return;
    }
    if DESTINATION.get().is_none_or(|set| set.to_stderr) {
        let _ = io::stderr().lock().write_all((cni::text::plain(&line.to_string()) + "\n").as_bytes());
    }
    write_to_file(level, line);
}

/// Writes a line to the log file only. Used for a call's own error, which the runtime already logs.
pub fn write_to_file(level: Level, line: fmt::Arguments<'_>) {
    let Some(file) = DESTINATION.get().and_then(|set| set.file.as_ref()) else { return };
    if is_written(level) {
        file.write(level.as_str(), &cni::text::plain(&line.to_string()));
    }
}

impl Level {
    /// Returns the level in the spelling that Multus uses in log files.
    pub fn as_str(self) -> &'static str {
        match self {
            Level::Error => "error",
            Level::Verbose => "verbose",
            Level::Debug => "debug",
        }
    }
}
