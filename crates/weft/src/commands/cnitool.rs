//! `weft cni`: runs one network's plugins in one namespace. Called as `cnitool`, it is a drop-in for that
//! tool.
//!
//! Names, variables, defaults and container IDs are the same as in cnitool, and the cache is libcni's. So a
//! container added by one tool is deleted by the other. As `weft cni` it differs in three ways:
//!
//! - `gc` requires `--valid` or `--all`. cnitool has no such option and deletes every attachment.
//! - The default for `--path` is the same as for the other commands.
//! - A broken configuration file does not hide the others.
//!
//! Source: containernetworking/cni `cnitool/cmd` (requirements L5–L10, DEVIATIONS.md).

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use cni::args::Args as CniArgs;
use cni::error::{Context, Error};
use cni::invocation::{Attachment, ValidAttachment};
use cni::name::{ContainerId, IfName};
use cni::network::Network;
use cni::object::Object;
use cni::runtime::cache::{self, Cache};
use cni::runtime::chain::{Keep, Parameters};
use cni::runtime::exec::Exec;
use cni::runtime::{Runtime, load};
use sha2::{Digest, Sha512};

use cli_support::duration::seconds;
use cli_support::failure::{Exit, Failure};
use cli_support::interrupt::Interrupt;
use node_support::weft_cni::WeftCni;

/// Name under which the program behaves as cnitool.
pub(crate) const NAME: &str = "cnitool";

const CONFIGURATION: &str = "/etc/cni/net.d";
const IFNAME: &str = "eth0";

/// Number of bytes from the namespace path's hash that a container ID has.
const ID_BYTES: usize = 10;

#[derive(Debug, Parser)]
#[command(name = NAME, version, about = "Execute a CNI configuration (weft's drop-in for cnitool)")]
struct Cnitool {
    #[command(flatten)]
    arguments: Arguments,
}

/// Arguments of `weft cni`.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  weft cni add mynet /run/netns/blue
  NETCONFPATH=/etc/cni/net.d CNI_PATH=/opt/cni/bin weft cni del mynet /run/netns/blue
  CAP_ARGS='{\"mac\":\"c2:11:22:33:44:55\"}' weft cni add mynet /run/netns/blue -i net1
  weft cni gc mynet --valid cnitool-77383ca0a0715733ca6f/eth0

The path of the namespace identifies the container. Results are cached in /var/lib/cni, as by libcni.")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
    #[command(flatten)]
    options: Options,
    /// Set by the name of the program, not by an argument.
    #[arg(skip)]
    called_as: CommandName,
}

/// Name by which the program was called, which selects the behaviour where the two tools differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum CommandName {
    #[default]
    Weft,
    Cnitool,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Add a network interface to a network namespace
    #[command(after_help = "Example:\n  weft cni add mynet /run/netns/blue")]
    Add(AttachmentArguments),
    /// Check a network interface in a network namespace
    #[command(after_help = "Example:\n  weft cni check mynet /run/netns/blue")]
    Check(AttachmentArguments),
    /// Delete a network interface from a network namespace
    #[command(after_help = "Example:\n  weft cni del mynet /run/netns/blue")]
    Del(AttachmentArguments),
    /// Delete all attachments of a network except the valid ones, and run GC of its plugins
    #[command(after_help = "Example:\n  weft cni gc mynet --valid cnitool-77383ca0a0715733ca6f/eth0")]
    Gc(GcArguments),
    /// Check that the plugins of a network are ready for ADD
    #[command(after_help = "Example:\n  weft cni status mynet")]
    Status(NetworkArguments),
}

#[derive(Debug, Args)]
struct AttachmentArguments {
    /// Name of the network
    network: String,
    /// Path to the network namespace
    netns: PathBuf,
}

#[derive(Debug, Args)]
struct NetworkArguments {
    /// Name of the network
    network: String,
    /// Ignored; accepted for compatibility with cnitool
    netns: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct GcArguments {
    #[command(flatten)]
    network_arguments: NetworkArguments,
    /// Attachment to keep; may be repeated
    #[arg(long, value_name = "CONTAINER/IFNAME", value_parser = attachment)]
    valid: Vec<ValidAttachment>,
    /// Delete all attachments
    #[arg(long, conflicts_with = "valid")]
    all: bool,
}

#[derive(Debug, Args)]
struct Options {
    /// Name of the interface in the namespace (default: eth0)
    #[arg(short, long, global = true, env = "CNI_IFNAME", default_value = "", hide_default_value = true)]
    ifname: String,
    /// Directory of the network configurations (default: /etc/cni/net.d)
    #[arg(long, global = true, env = "NETCONFPATH", default_value = "", hide_default_value = true)]
    conf_dir: OsString,
    /// Directories of the plugins, separated by colons (default: the directory of weft-cni, /opt/cni/bin, /usr/lib/cni)
    #[arg(long, global = true, env = "CNI_PATH", default_value = "", hide_default_value = true)]
    path: String,
    /// Arguments for the plugins: K=V;K=V
    #[arg(long, global = true, env = "CNI_ARGS", default_value = "", hide_default_value = true)]
    args: String,
    /// Capability arguments for the plugins: a JSON object
    #[arg(long, global = true, env = "CAP_ARGS", default_value = "", hide_default_value = true)]
    capability_args: String,
    /// Timeout of one plugin, in seconds or as 2m
    #[arg(long, global = true, value_name = "DURATION", default_value = "600", value_parser = seconds)]
    timeout: u64,
}

/// Parses the arguments when the program is called as `cnitool`.
pub(crate) fn parse(arguments: Vec<OsString>) -> Result<Arguments, clap::Error> {
    let Cnitool { arguments } = Cnitool::try_parse_from(arguments)?;
    Ok(Arguments { called_as: CommandName::Cnitool, ..arguments })
}

/// Runs `weft cni` and prints the ADD result to stdout. An interrupt kills the running plugin.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let interrupt = Interrupt::watch()?;
    let exec = Exec::new(Duration::from_secs(arguments.options.timeout)).unless(interrupt.flag());
    call(arguments, exec).map_err(|error| {
        // An error is one line, as in cnitool.
        let failure = Failure::new(error.to_string());
        match (interrupt.is_set(), &arguments.verb) {
            (false, _) => failure,
            (true, Verb::Add(AttachmentArguments { network, netns })) => failure
                .exit(Exit::Interrupted)
                .next(format!("to undo the changes, run: weft cni del {network} {}", netns.display())),
            (true, _) => failure.exit(Exit::Interrupted),
        }
    })
}

fn call(arguments: &Arguments, exec: Exec) -> Result<(), Error> {
    let Arguments { verb, options, called_as } = arguments;
    let path = path(options, *called_as);
    let runtime =
        Runtime { invoke: &exec, cache: Cache::new(Path::new(cache::DIRECTORY)), path: path.clone() };
    let network = |name: &str| find(options, *called_as, name);
    match verb {
        Verb::Add(AttachmentArguments { network: name, netns }) => {
            let network = network(name)?;
            let attached = runtime.add(&network, &parameters(options, netns, &path)?)?;
            print(&attached.success.print(network.version)?)
        }
        Verb::Check(AttachmentArguments { network: name, netns }) => {
            runtime.check(&network(name)?, &parameters(options, netns, &path)?)
        }
        Verb::Del(AttachmentArguments { network: name, netns }) => {
            runtime.del(&network(name)?, &parameters(options, netns, &path)?)
        }
        Verb::Status(NetworkArguments { network: name, netns: _ }) => runtime.status(&network(name)?),
        Verb::Gc(GcArguments {
            network_arguments: NetworkArguments { network: name, netns: _ },
            valid,
            all,
        }) => {
            let keep = match called_as {
                _ if *all || !valid.is_empty() => Keep::Only(valid),
                CommandName::Cnitool => Keep::Unspecified,
                CommandName::Weft => {
                    return Err(Error::config(format!(
                        "gc {name}: no valid attachments given; \
                         name them with --valid, or delete every attachment of the network with --all"
                    )));
                }
            };
            runtime.gc(&network(name)?, keep)
        }
    }
}

/// Returns the plugin directories. cnitool has no default.
fn path(options: &Options, called_as: CommandName) -> String {
    match called_as {
        CommandName::Weft if options.path.is_empty() => {
            WeftCni::plugin_path_of(WeftCni::find().ok().as_ref())
        }
        CommandName::Weft | CommandName::Cnitool => options.path.clone(),
    }
}

fn find(options: &Options, called_as: CommandName, name: &str) -> Result<Network, Error> {
    let directory = match options.conf_dir.is_empty() {
        true => Path::new(CONFIGURATION),
        false => Path::new(&options.conf_dir),
    };
    match called_as {
        CommandName::Weft => load::find(directory, name),
        CommandName::Cnitool => load::find_strictly(directory, name),
    }
}

fn parameters(options: &Options, netns: &Path, path: &str) -> Result<Parameters, Error> {
    let netns = absolute(netns)?;
    let netns = netns.to_str().ok_or_else(|| Error::config(format!("{}: not UTF-8", netns.display())))?;
    let capability_args = match options.capability_args.as_str() {
        "" => Object::default(),
        text => Object::parse(text.as_bytes(), "CAP_ARGS")?,
    };
    if let Some((key, value)) =
        CniArgs::parse(&options.args)?.pairs().find(|(key, value)| key.is_empty() || value.is_empty())
    {
        return Err(Error::config(format!("invalid CNI_ARGS pair \"{key}={value}\"")));
    }
    let ifname = if options.ifname.is_empty() { IFNAME } else { &options.ifname };
    Ok(Parameters {
        who: Attachment { container: container_id(netns)?, ifname: IfName::new(ifname)? },
        netns: netns.to_owned(),
        args: options.args.clone(),
        capability_args,
        args_cni: Object::default(),
        path: path.to_owned(),
    })
}

/// Returns `cnitool-` and how the SHA-512 over the namespace path begins, in hexadecimal digits.
fn container_id(netns: &str) -> Result<ContainerId, Error> {
    let hash = Sha512::digest(netns.as_bytes());
    let digits: String = hash.iter().take(ID_BYTES).map(|byte| format!("{byte:02x}")).collect();
    ContainerId::new(&format!("cnitool-{digits}"))
}

/// Returns the path as Go's `filepath.Abs` does: `.` and `..` are removed by name, without reading the disk.
fn absolute(path: &Path) -> Result<PathBuf, Error> {
    let whole = std::path::absolute(path).map_err(|cause| Error::io(path.display(), cause))?;
    let mut clean = PathBuf::from("/");
    for part in whole.components() {
        match part {
            Component::ParentDir => {
                clean.pop();
            }
            Component::Normal(name) => clean.push(name),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    Ok(clean)
}

/// Parses `CONTAINER/IFNAME`.
fn attachment(text: &str) -> Result<ValidAttachment, Error> {
    let (container, ifname) =
        text.split_once('/').ok_or_else(|| Error::config("expected CONTAINER/IFNAME"))?;
    Ok(ValidAttachment {
        container_id: ContainerId::new(container)?.to_string(),
        ifname: IfName::new(ifname)?.to_string(),
    })
}

fn print(result: &[u8]) -> Result<(), Error> {
    let mut out = io::stdout().lock();
    out.write_all(result)
        .and_then(|()| out.write_all(b"\n"))
        .map_err(|cause| Error::io("print result", cause))
        .context("attachment added")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cnitool_container_id_equals_that_of_cnitool() -> Result<(), Error> {
        // `printf %s /var/run/netns/testing | sha512sum | cut -c1-20`; the documentation of cnitool has the same example.
        assert_eq!(container_id("/var/run/netns/testing")?.as_str(), "cnitool-77383ca0a0715733ca6f");
        Ok(())
    }

    #[test]
    fn cnitool_path_is_made_absolute_as_in_go() -> Result<(), Error> {
        for (given, expected) in
            [("/run//netns/./a/", "/run/netns/a"), ("/run/netns/../x", "/run/x"), ("/../..", "/")]
        {
            assert_eq!(absolute(Path::new(given))?, Path::new(expected));
        }
        let here = std::env::current_dir().map_err(|cause| Error::io("current directory", cause))?;
        assert_eq!(absolute(Path::new("x/../y"))?, here.join("y"));
        Ok(())
    }

    #[test]
    fn cnitool_gc_valid_option_is_container_and_interface() {
        assert!(attachment("c1/eth0").is_ok());
        for bad in ["c1", "c1/", "/eth0", "c1/a/b", "c 1/eth0"] {
            assert!(attachment(bad).is_err(), "{bad}");
        }
    }
}
