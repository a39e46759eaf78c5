//! `weft`: what a person types, and the long-running roles.
//!
//! This file turns an outcome into an exit code and the one line on stderr; everything else is behind
//! [`cli`]. Exit codes: 0 done, 1 it failed, 2 it was asked for in the wrong way.

#![forbid(unsafe_code)]

mod cli;
mod cnitool;

use std::process::ExitCode;

fn main() -> ExitCode {
    let call = match cli::read(std::env::args_os()) {
        Ok(call) => call,
        Err(refused) => return cli::refuse(&refused),
    };
    match call.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{}{failure}", call.prefix());
            ExitCode::FAILURE
        }
    }
}
