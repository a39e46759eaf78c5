//! `weft`: the command line and the long-running roles.
//!
//! This file converts the result of a command into an exit code and an error message on stderr. [`cli`] has everything
//! else; the codes are in [`cli_support::failure`].

#![forbid(unsafe_code)]

mod attachments;
mod cli;
mod commands;
mod input_files;
mod known_journals;
mod manifest_plan;
mod meta_plugin_config;
mod pod_name;
mod sandbox_operations;
mod scratch;

use std::process::ExitCode;

use cli_support::output::{Format, Progress};

fn main() -> ExitCode {
    let invocation = match cli::parse(std::env::args_os()) {
        Ok(invocation) => invocation,
        Err(error) => return cli::print_error(&error),
    };
    match invocation.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.is_quiet() {
                Progress::beside(Format::Json).line(format!("{}{failure}", invocation.prefix()));
            }
            failure.code()
        }
    }
}
