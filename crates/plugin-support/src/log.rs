//! Log lines on stderr.
//!
//! A line that cannot be written is dropped: the log of a daemon may be a file on a full disk, and the runtime that read
//! a plugin's stderr may have exited. `eprintln!` panics there, and a daemon that panics no longer extends its leases.

use std::fmt;
use std::io::{self, Write};

/// Writes a line to stderr, as `eprintln!` does, and ignores a failure.
#[macro_export]
macro_rules! log {
    ($($words:tt)*) => { $crate::log::write(format_args!($($words)*)) };
}

/// Writes a line to stderr in one call, without control characters, and ignores a failure.
pub fn write(line: fmt::Arguments<'_>) {
    let _ = io::stderr().lock().write_all((cni::text::plain(&line.to_string()) + "\n").as_bytes());
}
