//! `weft-cni`: one static binary that is every plugin, by the name it is called as.

use std::process::ExitCode;

fn main() -> ExitCode {
    plugins::run()
}
