//! `weft`: what a person types, and the long-running roles.
//!
//! This file turns an outcome into an exit code and the sentence on stderr; everything else is behind
//! [`cli`]. The codes are in [`cli_support::failure`].

#![forbid(unsafe_code)]

mod attachments;
mod cli;
mod commands;
mod input_files;
mod known_journals;
mod manifest_plan;
mod meta_plugin_config;
mod pod_name;
mod scratch;
mod work;

use std::process::ExitCode;

use cli_support::output::{Format, Progress};

fn main() -> ExitCode {
    let call = match cli::read(std::env::args_os()) {
        Ok(call) => call,
        Err(refused) => return cli::refuse(&refused),
    };
    match call.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.is_quiet() {
                Progress::beside(Format::Json).line(format!("{}{failure}", call.prefix()));
            }
            failure.code()
        }
    }
}
