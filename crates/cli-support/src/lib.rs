//! Code that commands and long-running roles share: failures, output, logging, background tasks, privilege checks.

#![forbid(unsafe_code)]

pub mod activity;
pub mod async_runtime;
pub mod atomic_file;
pub mod background;
pub mod duration;
pub mod failure;
pub mod interrupt;
pub mod logging;
pub mod output;
pub mod privilege;
pub mod table;
pub mod terminal;
pub mod timestamp;
