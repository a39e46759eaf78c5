//! The command line: one row a subcommand, nothing else.
//!
//! A subcommand is a module with an `Arguments` (clap's `Args`) and a `run`. To add one: a variant of
//! [`Command`], a line in [`Call::run`]. Under another name in `argv[0]` the program is that tool.
//!
//! Every subcommand's help ends with an example.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::commands::{
    attach, check, cnitool, crds, demo, detach, doctor, executor, explain, import, install, lint, list,
    network, plan, publish,
};
use crate::{controllers, cri_proxy, node_agent};
use cli_support::failure::{EXIT_CODES, Exit, Failure};

/// Every thread laid across the default network: Kubernetes pods with more than one.
#[derive(Debug, Parser)]
#[command(
    name = "weft",
    version,
    after_help = format!("\
Example:
  weft demo
  weft lint examples/
  weft explain -n my-namespace my-pod -f examples/

{EXIT_CODES} The reason is on stderr.")
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Attach a pod to its networks, from manifest files
    Attach(attach::Arguments),
    /// Check that the networks of a pod are as they were attached
    Check(check::Arguments),
    /// Detach a pod from its networks
    Detach(detach::Arguments),
    /// Show it all on this machine and remove it again
    Demo(demo::Arguments),
    /// List what is attached on this node
    List(list::Arguments),
    /// Say what is wrong with this node: changed attachments, failed teardowns, orphans
    Doctor(doctor::Arguments),
    /// Show the plan a pod gets and where each decision came from; changes nothing
    Explain(explain::Arguments),
    /// Find what is wrong with definitions, annotations and CNI configurations
    Lint(lint::Arguments),
    /// Show and check addresses that are unique in the cluster
    Ipam(crate::commands::ipam::Arguments),
    /// Plan for this node's pods from the Kubernetes API, and publish what came of it
    Agent(node_agent::Arguments),
    /// Decide what is decided once for the cluster: Neutron ports, pools of addresses
    Controller(controllers::Arguments),
    /// Stand before a container runtime and give it pod networks: the CRI Network API
    CriProxy(cri_proxy::Arguments),
    /// Set, list, show and remove the networks of this node
    Network(network::Arguments),
    /// Carry out on this node, at once, what its agent finds to be done
    Executor(executor::Arguments),
    /// Answer the meta-plugin's question for a plan
    Plan(plan::Arguments),
    /// Write the network-status of one sandbox, where no agent does
    Publish(publish::Arguments),
    /// Run the plugins of one network for one namespace, as cnitool does
    Cni(cnitool::Arguments),
    /// Put weft-cni and its configuration where the container runtime finds them
    Install(install::Arguments),
    /// Take a node over from another meta-plugin, with its pods
    Import(import::Arguments),
    /// Print the definitions of custom resources
    Crds(crds::Arguments),
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
    match refused.use_stderr() {
        true => Failure::new("").exit(Exit::Usage).code(),
        false => ExitCode::SUCCESS,
    }
}

impl Call {
    /// Does it.
    pub(crate) fn run(&self) -> Result<(), Failure> {
        match &self.command {
            Command::Attach(arguments) => attach::run(arguments),
            Command::Check(arguments) => check::run(arguments),
            Command::Detach(arguments) => detach::run(arguments),
            Command::Demo(arguments) => demo::run(arguments),
            Command::List(arguments) => list::run(arguments),
            Command::Doctor(arguments) => doctor::run(arguments),
            Command::Explain(arguments) => explain::run(arguments),
            Command::Lint(arguments) => lint::run(arguments),
            Command::Ipam(arguments) => crate::commands::ipam::run(arguments),
            Command::Agent(arguments) => node_agent::run(arguments),
            Command::Controller(arguments) => controllers::run(arguments),
            Command::CriProxy(arguments) => cri_proxy::run(arguments),
            Command::Network(arguments) => network::run(arguments),
            Command::Executor(arguments) => executor::run(arguments),
            Command::Plan(arguments) => plan::run(arguments),
            Command::Publish(arguments) => publish::run(arguments),
            Command::Install(arguments) => install::run(arguments),
            Command::Import(arguments) => import::run(arguments),
            Command::Crds(arguments) => crds::run(arguments),
            Command::Cni(arguments) => cnitool::run(arguments),
        }
    }

    /// What an error begins with.
    pub(crate) fn prefix(&self) -> &'static str {
        self.prefix
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn every_subcommands_help_has_an_example_and_the_table_is_sound() {
        let command = Cli::command();
        command.clone().debug_assert();
        let help = |command: &clap::Command| {
            command.get_after_help().map(|text| text.to_string()).unwrap_or_default()
        };
        for command in command.get_subcommands().chain([&command]) {
            let example =
                format!("weft {}", if command.get_name() == "weft" { "" } else { command.get_name() });
            let help = help(command);
            assert!(help.starts_with("Example") && help.contains(&example), "{}: {help}", command.get_name());
            assert!(command.get_about().is_some(), "{}: what is it for?", command.get_name());
        }
    }

    #[test]
    fn every_subcommand_and_every_option_has_its_place_in_the_documents() {
        let page = include_str!("../../../docs/commands.md");
        for command in Cli::command().get_subcommands() {
            let name = command.get_name();
            let section = page.split("\n## ").find(|section| section.starts_with(&format!("weft {name}\n")));
            let section = section.unwrap_or_else(|| panic!("docs/commands.md has no section on weft {name}"));
            assert!(section.contains("$ "), "{name}: the section has an example");
            // One that is hidden is for tests.
            let shown = command.get_arguments().filter(|argument| !argument.is_hide_set());
            for option in shown.filter_map(clap::Arg::get_long) {
                let known = page.contains(&format!("--{option}"))
                    || matches!(option, "file" | "output" | "namespace");
                assert!(known, "docs/commands.md does not speak of --{option} of weft {name}");
            }
        }
    }
}
