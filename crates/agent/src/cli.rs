//! The command line: one row a subcommand, nothing else.
//!
//! A subcommand is a module with an `Arguments` (clap's `Args`) and a `run`. To add one: a variant of
//! [`Command`], a line in [`Call::run`]. Under another name in `argv[0]` the program is that tool.
//!
//! Exit codes: 0 done, 1 it failed (the reason is one line on stderr), 2 wrong usage.

use std::error::Error;
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::cnitool;

/// Wrong usage, as clap reports it.
const USAGE: u8 = 2;

/// Every thread laid across the default network: Kubernetes pods with more than one.
#[derive(Debug, Parser)]
#[command(
    name = "weft",
    version,
    after_help = "\
Example:
  ip netns add blue
  CNI_PATH=/opt/cni/bin weft cni add mynet /run/netns/blue

Exit codes: 0 done, 1 it failed (the reason is one line on stderr), 2 wrong usage."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the plugins of one network for one namespace, as cnitool does
    Cni(cnitool::Arguments),
}

/// What was asked for, under the name the program was called by.
#[derive(Debug)]
pub(crate) struct Call {
    command: Command,
    prefix: &'static str,
}

/// Reads the arguments, the program's name first.
pub(crate) fn read(arguments: impl IntoIterator<Item = OsString>) -> Result<Call, clap::Error> {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let name = arguments.first().and_then(|program| Path::new(program).file_name());
    if name.is_some_and(|name| name == cnitool::NAME) {
        return cnitool::read(arguments).map(|given| Call { command: Command::Cni(given), prefix: "" });
    }
    let Cli { command } = Cli::try_parse_from(arguments)?;
    Ok(Call { command, prefix: "weft: " })
}

/// Says what was wrong with the arguments, or what was asked to be said about them.
pub(crate) fn refuse(refused: &clap::Error) -> ExitCode {
    // A terminal that is gone changes nothing.
    let _ = refused.print();
    if refused.use_stderr() { ExitCode::from(USAGE) } else { ExitCode::SUCCESS }
}

impl Call {
    /// Does it.
    pub(crate) fn run(&self) -> Result<(), Box<dyn Error>> {
        match &self.command {
            Command::Cni(arguments) => Ok(cnitool::run(arguments)?),
        }
    }

    /// What an error begins with.
    pub(crate) fn prefix(&self) -> &'static str {
        self.prefix
    }
}
