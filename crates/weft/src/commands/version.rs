//! `weft version`: prints this program's version, commit, date, architecture and roles.

use build_info::BuildInfo;
use clap::Args;

use cli_support::failure::{EXIT_CODES, Failure};
use cli_support::output::{self, Format, Output};

/// Long-running roles that this program contains.
const ROLES: [&str; 6] = ["agent", "executor", "cri-proxy", "neutron", "ipam", "services"];

/// Arguments of `weft version`.
#[derive(Debug, Args)]
#[command(after_help = format!("\
Example:
  weft version -o json

{EXIT_CODES}"))]
pub(crate) struct Arguments {
    #[command(flatten)]
    output: Output,
}

/// Runs `weft version`.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let build = BuildInfo::of("weft", ROLES.to_vec());
    match arguments.output.format {
        Format::Text | Format::Wide => output::print(&build.to_string()),
        Format::Json | Format::Yaml => output::print_document(arguments.output.format, &build),
    }
}
