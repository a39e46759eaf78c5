//! What is told on stderr beside an answer.
//!
//! Rules: nobody fails because nobody listens. The log of a daemon may be a file on a full disk, the runtime that read a
//! plugin's stderr may be gone; `eprintln!` panics there, and an address that is not extended any more becomes another's.

use std::fmt;
use std::io::{self, Write};

/// Tells a line, as `eprintln!` does, if anybody listens.
macro_rules! told {
    ($($words:tt)*) => { $crate::told::tell(format_args!($($words)*)) };
}
pub(crate) use told;

/// Tells a line, in one piece, if anybody listens.
pub(crate) fn tell(line: fmt::Arguments<'_>) {
    let _ = io::stderr().lock().write_all(format!("{line}\n").as_bytes());
}
