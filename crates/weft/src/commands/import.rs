//! `weft import`: imports another meta-plugin's or IPAM plugin's state while the pods run.

mod multus;
mod whereabouts;

use clap::{Args, Subcommand};

use cli_support::failure::{EXIT_CODES, Failure};

/// Arguments of `weft import`.
#[derive(Debug, Args)]
#[command(after_help = format!("\
Example:
  weft import multus
  weft import multus --apply >/etc/cni/net.d/.weft
  weft import whereabouts

{EXIT_CODES}"))]
pub(crate) struct Arguments {
    #[command(subcommand)]
    source: Source,
}

#[derive(Debug, Subcommand)]
enum Source {
    /// Import sandboxes from Multus into the journal and convert its configuration
    Multus(multus::Arguments),
    /// Import addresses of running pods from whereabouts into IP pools
    Whereabouts(whereabouts::Arguments),
}

/// Runs `weft import`.
pub(crate) fn run(Arguments { source }: &Arguments) -> Result<(), Failure> {
    match source {
        Source::Multus(arguments) => multus::run(arguments),
        Source::Whereabouts(arguments) => whereabouts::run(arguments),
    }
}
