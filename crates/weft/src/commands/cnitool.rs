//! `weft cni`: one network, one namespace, by hand. Under the name `cnitool` a drop-in for that tool.
//!
//! Rules:
//! - names, variables, defaults and container id are cnitool's, so a container added by one is deleted by
//!   the other; the cache is libcni's;
//! - `gc` deletes what it is not told to keep. cnitool tells nothing and deletes all; under our own name
//!   that must be said with `--all`;
//! - under our own name plugins are looked for where other commands look, if nobody says where;
//! - under our own name one broken configuration file does not hide the others.
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

use cli_support::failure::{Exit, Failure};
use cli_support::interrupt::Interrupt;
use node_support::weft_cni::WeftCni;

/// The name under which we are that tool.
pub(crate) const NAME: &str = "cnitool";

const CONFIGURATION: &str = "/etc/cni/net.d";
const IFNAME: &str = "eth0";

/// How much of the hash of a namespace's path makes a container id, in bytes.
const ID_BYTES: usize = 10;

#[derive(Debug, Parser)]
#[command(name = NAME, version, about = "Execute a CNI configuration (weft's drop-in for cnitool)")]
struct Cnitool {
    #[command(flatten)]
    arguments: Arguments,
}

/// What `weft cni` is told.
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
    /// Set by the name we are called by, not by an argument.
    #[arg(skip)]
    manners: Manners,
}

/// Whose behaviour is wanted where ours differs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Manners {
    #[default]
    Weft,
    Cnitool,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Add a network interface to a network namespace
    #[command(after_help = "Example:\n  weft cni add mynet /run/netns/blue")]
    Add(Target),
    /// Check a network interface in a network namespace
    #[command(after_help = "Example:\n  weft cni check mynet /run/netns/blue")]
    Check(Target),
    /// Delete a network interface from a network namespace
    #[command(after_help = "Example:\n  weft cni del mynet /run/netns/blue")]
    Del(Target),
    /// Delete all attachments of a network except the valid ones, and run GC of its plugins
    #[command(after_help = "Example:\n  weft cni gc mynet --valid cnitool-77383ca0a0715733ca6f/eth0")]
    Gc(Sweep),
    /// Check that the plugins of a network are ready for ADD
    #[command(after_help = "Example:\n  weft cni status mynet")]
    Status(Question),
}

#[derive(Debug, Args)]
struct Target {
    /// Name of the network
    network: String,
    /// Path to the network namespace
    netns: PathBuf,
}

#[derive(Debug, Args)]
struct Question {
    /// Name of the network
    network: String,
    /// Ignored; accepted for compatibility with cnitool
    netns: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct Sweep {
    #[command(flatten)]
    question: Question,
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
    /// Timeout of one plugin, in seconds
    #[arg(long, global = true, value_name = "SECONDS", default_value_t = 600)]
    timeout: u64,
}

/// Reads arguments given to us as `cnitool`.
pub(crate) fn read(arguments: Vec<OsString>) -> Result<Arguments, clap::Error> {
    let Cnitool { arguments } = Cnitool::try_parse_from(arguments)?;
    Ok(Arguments { manners: Manners::Cnitool, ..arguments })
}

/// Does it; the result of an ADD goes to stdout. Interrupted, it ends the plugin that runs.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let interrupt = Interrupt::watch()?;
    let exec = Exec::new(Duration::from_secs(arguments.options.timeout)).unless(interrupt.flag());
    call(arguments, exec).map_err(|error| {
        // In cnitool's manner an error is one line.
        let failure = Failure::new(error.to_string());
        match (interrupt.is_set(), &arguments.verb) {
            (false, _) => failure,
            (true, Verb::Add(Target { network, netns })) => failure
                .exit(Exit::Interrupted)
                .next(format!("what was made is taken back by: weft cni del {network} {}", netns.display())),
            (true, _) => failure.exit(Exit::Interrupted),
        }
    })
}

fn call(arguments: &Arguments, exec: Exec) -> Result<(), Error> {
    let Arguments { verb, options, manners } = arguments;
    let path = path(options, *manners);
    let runtime =
        Runtime { invoke: &exec, cache: Cache::new(Path::new(cache::DIRECTORY)), path: path.clone() };
    let network = |name: &str| find(options, *manners, name);
    match verb {
        Verb::Add(Target { network: name, netns }) => {
            let network = network(name)?;
            let attached = runtime.add(&network, &parameters(options, netns, &path)?)?;
            print(&attached.success.print(network.version)?)
        }
        Verb::Check(Target { network: name, netns }) => {
            runtime.check(&network(name)?, &parameters(options, netns, &path)?)
        }
        Verb::Del(Target { network: name, netns }) => {
            runtime.del(&network(name)?, &parameters(options, netns, &path)?)
        }
        Verb::Status(Question { network: name, netns: _ }) => runtime.status(&network(name)?),
        Verb::Gc(Sweep { question: Question { network: name, netns: _ }, valid, all }) => {
            let keep = match manners {
                _ if *all || !valid.is_empty() => Keep::Only(valid),
                Manners::Cnitool => Keep::Unsaid,
                Manners::Weft => {
                    return Err(Error::config(format!(
                        "gc {name}: nothing was said about what is still valid; \
                         name it with --valid, or say --all to delete every attachment of the network"
                    )));
                }
            };
            runtime.gc(&network(name)?, keep)
        }
    }
}

/// Where plugins are; cnitool's user says it.
fn path(options: &Options, manners: Manners) -> String {
    match manners {
        Manners::Weft if options.path.is_empty() => WeftCni::plugin_path_of(WeftCni::find().ok().as_ref()),
        Manners::Weft | Manners::Cnitool => options.path.clone(),
    }
}

fn find(options: &Options, manners: Manners, name: &str) -> Result<Network, Error> {
    let directory = match options.conf_dir.is_empty() {
        true => Path::new(CONFIGURATION),
        false => Path::new(&options.conf_dir),
    };
    match manners {
        Manners::Weft => load::find(directory, name),
        Manners::Cnitool => load::find_strictly(directory, name),
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

/// `cnitool-` and the beginning of the SHA-512 of the namespace's path, in hexadecimal digits.
fn container_id(netns: &str) -> Result<ContainerId, Error> {
    let hash = Sha512::digest(netns.as_bytes());
    let digits: String = hash.iter().take(ID_BYTES).map(|byte| format!("{byte:02x}")).collect();
    ContainerId::new(&format!("cnitool-{digits}"))
}

/// The path as Go's `filepath.Abs` has it: `.` and `..` taken away by name, without looking at the disk.
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

/// `CONTAINER/IFNAME`.
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
        .map_err(|cause| Error::io("print the result", cause))
        .context("the attachment was made")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_is_named_as_cnitool_names_it() -> Result<(), Error> {
        // `printf %s /var/run/netns/testing | sha512sum | cut -c1-20`, as cnitool's own documentation has it.
        assert_eq!(container_id("/var/run/netns/testing")?.as_str(), "cnitool-77383ca0a0715733ca6f");
        Ok(())
    }

    #[test]
    fn a_path_is_made_absolute_as_go_does_it() -> Result<(), Error> {
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
    fn an_attachment_to_keep_is_container_and_interface() {
        assert!(attachment("c1/eth0").is_ok());
        for bad in ["c1", "c1/", "/eth0", "c1/a/b", "c 1/eth0"] {
            assert!(attachment(bad).is_err(), "{bad}");
        }
    }
}
