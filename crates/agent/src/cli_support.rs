//! Support for commands and long-running roles: failures, output, logging, background tasks, privilege.

pub(crate) mod activity;
pub(crate) mod async_runtime;
pub(crate) mod atomic_file;
pub(crate) mod background;
pub(crate) mod failure;
pub(crate) mod interrupt;
pub(crate) mod logging;
pub(crate) mod output;
pub(crate) mod privilege;
pub(crate) mod table;
pub(crate) mod terminal;
