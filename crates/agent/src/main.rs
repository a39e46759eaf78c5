//! `weft`: what a person types, and the long-running roles.
//!
//! This file turns an outcome into an exit code and the sentence on stderr; everything else is behind
//! [`cli`]. The codes are in [`failure`].

#![forbid(unsafe_code)]

mod addresses;
mod agent;
mod async_runtime;
mod atomic_file;
mod attach;
mod attachments;
mod check;
mod cli;
mod cnitool;
mod companion;
mod configuration;
mod controller;
mod crds;
mod cri_proxy;
mod demo;
mod detach;
mod doctor;
mod explain;
mod failure;
mod hands;
mod import;
mod install;
mod interrupt;
mod journal;
mod known_journals;
mod lasting;
mod lint;
mod list;
mod listener;
mod logging;
mod network;
mod network_api;
mod output;
mod plan;
mod planning;
mod pod;
mod privilege;
mod publish;
mod scratch;
mod sources;
mod table;
mod terminal;
mod work;

use std::process::ExitCode;

use output::{Format, Progress};

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
