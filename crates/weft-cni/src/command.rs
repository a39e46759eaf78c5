//! Commands of `weft-cni`: installation, and changes to this node that `weft` requests. `weft` itself changes nothing.
//!
//! Exit codes: 0 success, 1 failure, 2 wrong usage; `sandbox ping`: 3 no reply; `release-address`: 3 the address is in use,
//! 4 the lease does not exist; `sandbox run`: that of the program.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{self, ExitCode};
use std::time::Duration;

use build_info::BuildInfo;
use cni::Error;
use cni::runtime::exec::{BUSY_MAX, not_executed};
use linux::{Netns, echo, parent_death};
use plugin_support::failure::OrRefused;
use plugin_support::log;

use crate::diagnosis;
use crate::dispatch;
use crate::install::{Foreign, Installation, Name};
use crate::inventory;
use crate::meta_plugin::{forget, import_entry, namespace, tasks};
use crate::weft_ipam::transfer::{self, ReleaseOutcome};

/// The text of `weft-cni --help`.
pub(crate) const USAGE: &str = "\
weft-cni: all weft CNI plugins and the meta-plugin in one binary. A container runtime runs it under the name of a plugin.

Usage:
  weft-cni install DIR [--names NAME,NAME…|all] [--replace|--keep]
      Install this binary into a CNI plugin directory under the given names (default: weft). NAME is a plugin, or
      NAME=PLUGIN for another name of it. If another plugin has one of the names, the command fails (default), replaces it
      or keeps it.
  weft-cni import-entry DIR
      Add the journal entry on stdin to the journal in DIR.
  weft-cni forget-attachment DIR CONTAINER NETWORK
      Give up the attachments of a sandbox to NETWORK whose DEL failed. DIR is the directory of the journal. Addresses and
      interfaces of the network may remain.
  weft-cni run-tasks [--on-host|--after PID]
      Execute the task batch on stdin; with --on-host, use the files and programs of the host; with --after, first wait
      for the exit of the parent process PID.
  weft-cni release-address DIR POOL LEASE [ADDRESS]
      Release an unused address of a leased block to another node. DIR is the directory of the address stores. Without
      ADDRESS, mark the whole lease as unconfirmed: nothing is allocated from it until the agent confirms it.
  weft-cni release-address DIR POOL --any
      Give up a block, or some free addresses, of the address store of POOL to the node whose request is on stdin, and print
      what was given up as JSON.
  weft-cni release-address DIR POOL --idle
      Mark the idle blocks of the address store of POOL as returning, remove the returned ones named on stdin, and print
      the blocks of the store as JSON.
  weft-cni release-address DIR POOL --restore
      Mark the reserved addresses of the address store of POOL that stdin names, or free those with the mark that stdin
      names, and print them as JSON.
  weft-cni release-address DIR POOL --free ADDRESS ENTRIES…|--force
      Release the address of a container that is not among the journal entries in the directories ENTRIES, or whose
      namespace is gone; with --force, of any container. Prints the container.
  weft-cni sandbox create PATH
      Create a network namespace mounted at PATH.
  weft-cni sandbox delete PATH
      Delete the network namespace mounted at PATH.
  weft-cni sandbox identity PATH
      Print the identity of the network namespace mounted at PATH, as the journal has it; nothing if there is none.
  weft-cni sandbox show [PATH]
      Print links, addresses, routes and rules as JSON (default: of the current namespace).
  weft-cni sandbox owner-tags
      Print all resources of this host with an owner tag of weft as JSON.
  weft-cni sandbox counters
      Print the traffic counters of the interfaces that the request on stdin names, as JSON.
  weft-cni sandbox policy-counters
      Print the counters of network policies of the attachments that the request on stdin names, as JSON.
  weft-cni sandbox trace
      Follow packets between the two pods of the request on stdin, and print each step as JSON.
  weft-cni sandbox capture
      Write the frames of the interface that the first line of stdin names to stdout as pcap, until stdin is closed.
  weft-cni sandbox run PATH COMMAND…
      Run a command in a network namespace; the exit code is that of the command.
  weft-cni sandbox ping PATH TO [FROM]
      Send one ICMP echo request from a network namespace (timeout: 2 s).
  weft-cni dhcp daemon [FLAG…]
      Run the lease daemon of the dhcp plugin.
  weft-cni exec-with-parent PID PROGRAM ARGUMENT…
      Replace this process with a program that is killed when its parent, process PID, exits.
  weft-cni remove-links INDEX…
      Remove the links with these indexes, by a routing socket on stdin. DEL does not wait for its end.
  weft-cni close-sockets
      Keep inherited sockets of netfilter open until the end of stdin. DEL does not wait for their release.
  weft-cni run-plugin PLUGIN
      Run a built-in plugin for a call of weft-cni, after a call that died.
  weft-cni version [-o text|json]
      Print the version, commit, date, architecture and plugins of this program.
  weft-cni --version
      Print the version.

Examples:
  weft-cni install /opt/cni/bin --names weft,bridge,host-local
  weft-cni import-entry /var/lib/weft <entry.json
  weft-cni forget-attachment /var/lib/weft 3f1c default/macvtap
  weft-cni run-tasks <tasks
  weft-cni release-address /var/lib/weft/ipam 10.9.0.0-20 10.9.3.0/24 10.9.3.7
  weft-cni release-address /var/lib/weft/ipam 10.9.0.0-20 --any <request.json
  weft-cni release-address /var/lib/weft/ipam 10.9.0.0-20 --idle <returned.json
  weft-cni release-address /var/lib/weft/ipam 10.9.0.0-20 --free 10.9.3.7 /var/lib/weft/sandboxes
  weft-cni sandbox create /run/netns/blue
  weft-cni sandbox delete /run/netns/blue
  weft-cni sandbox identity /run/netns/blue
  weft-cni sandbox show /run/netns/blue
  weft-cni sandbox owner-tags
  weft-cni sandbox counters <request.json
  weft-cni sandbox policy-counters <request.json
  weft-cni sandbox trace <request.json
  weft-cni sandbox capture <request.json >frames.pcap
  weft-cni sandbox run /run/netns/blue ip address
  weft-cni sandbox ping /run/netns/blue 10.0.0.1
  weft-cni dhcp daemon -hostprefix /host
  weft-cni exec-with-parent $$ /opt/cni/bin/flannel
  weft-cni remove-links 12 14
  weft-cni close-sockets </dev/null
  weft-cni run-plugin bridge
  weft-cni version -o json

Exit codes: 0 success, 1 failure, 2 wrong usage. ping: 3 no reply. release-address: 3 the address is in use (its owner is
printed), 4 the lease does not exist.
";

/// Longest message on stdin, in bytes.
const MESSAGE_MAX: u64 = 4 << 20;
/// Timeout for the reply to a ping.
const PING_WAIT: Duration = Duration::from_secs(2);

/// Command and arguments as written.
#[derive(Debug)]
pub enum Command<'a> {
    /// `--help`, alone or after a command.
    Help,
    /// `--version`
    Version,
    /// `version [-o text|json]`
    BuildInfo {
        /// Whether the output is JSON.
        json: bool,
    },
    /// `install …`: the words after it.
    Install(Vec<&'a str>),
    /// `import-entry DIR`
    ImportEntry(&'a Path),
    /// `forget-attachment DIR CONTAINER NETWORK`
    ForgetAttachment {
        /// Directory of the journal.
        directory: &'a Path,
        /// Container id of the sandbox.
        container: &'a str,
        /// Network, by the name in the network-status or in the CNI configuration.
        network: &'a str,
    },
    /// `run-tasks [--on-host | --after PID]`
    RunTasks {
        /// Whether to enter the mount namespace of the host first.
        on_host: bool,
        /// Parent process, whose exit the command waits for first.
        after: Option<&'a str>,
    },
    /// `release-address DIR POOL LEASE [ADDRESS]`
    ReleaseAddress {
        /// The directory of the address stores.
        directory: &'a Path,
        /// The pool.
        pool: &'a str,
        /// The lease.
        lease: &'a str,
        /// Address; without it the whole lease is marked as unconfirmed.
        address: Option<&'a str>,
    },
    /// `release-address DIR POOL --any`
    GiveUp {
        /// The directory of the address stores.
        directory: &'a Path,
        /// The pool.
        pool: &'a str,
    },
    /// `release-address DIR POOL --idle`
    ReturnIdle {
        /// The directory of the address stores.
        directory: &'a Path,
        /// The pool.
        pool: &'a str,
    },
    /// `release-address DIR POOL --free ADDRESS ENTRIES|--force`
    FreeAddress {
        /// The directory of the address stores.
        directory: &'a Path,
        /// The pool.
        pool: &'a str,
        /// The address.
        address: &'a str,
        /// Journal entry directories; with none, an address is released whichever container has it.
        entries: Vec<&'a Path>,
    },
    /// `release-address DIR POOL --restore`
    Restore {
        /// The directory of the address stores.
        directory: &'a Path,
        /// The pool.
        pool: &'a str,
    },
    /// `sandbox create PATH`
    SandboxCreate(&'a Path),
    /// `sandbox delete PATH`
    SandboxDelete(&'a Path),
    /// `sandbox show [PATH]`
    SandboxShow(Option<&'a Path>),
    /// `sandbox identity PATH`
    SandboxIdentity(&'a str),
    /// `sandbox owner-tags`
    SandboxOwnerTags,
    /// `sandbox counters`
    SandboxCounters,
    /// `sandbox policy-counters`
    SandboxPolicyCounters,
    /// `sandbox trace`
    SandboxTrace,
    /// `sandbox capture`
    SandboxCapture,
    /// `sandbox run PATH COMMAND…`
    SandboxRun {
        /// The namespace.
        path: &'a Path,
        /// The program.
        program: &'a str,
        /// Program arguments.
        arguments: Vec<&'a str>,
    },
    /// `sandbox ping PATH TO [FROM]`
    SandboxPing {
        /// The namespace.
        path: &'a Path,
        /// Address to ping.
        to: &'a str,
        /// The source address.
        from: Option<&'a str>,
    },
    /// Command with invalid arguments.
    Invalid(Vec<&'a str>),
}

impl<'a> Command<'a> {
    /// Parses the words after the program's name; `None` if the first one is not a command.
    pub fn parse(words: &[&'a str]) -> Option<Command<'a>> {
        Some(match words {
            ["--help" | "-h" | "help"] => Command::Help,
            [
                "install"
                | import_entry::COMMAND
                | forget::COMMAND
                | tasks::COMMAND
                | "sandbox"
                | transfer::COMMAND
                | "version",
                ..,
                "--help" | "-h",
            ] => Command::Help,
            ["--version" | "-V"] => Command::Version,
            ["version"] | ["version", "-o", "text"] => Command::BuildInfo { json: false },
            ["version", "-o", "json"] => Command::BuildInfo { json: true },
            ["install", rest @ ..] => Command::Install(rest.to_vec()),
            [import_entry::COMMAND, directory] => Command::ImportEntry(Path::new(*directory)),
            [forget::COMMAND, directory, container, network] => {
                Command::ForgetAttachment { directory: Path::new(*directory), container, network }
            }
            [tasks::COMMAND] => Command::RunTasks { on_host: false, after: None },
            [tasks::COMMAND, tasks::ON_HOST] => Command::RunTasks { on_host: true, after: None },
            [tasks::COMMAND, tasks::AFTER, parent] => {
                Command::RunTasks { on_host: false, after: Some(parent) }
            }
            [transfer::COMMAND, rest @ ..] if !rest.is_empty() => {
                Command::parse_transfer(rest).unwrap_or_else(|| Command::Invalid(words.to_vec()))
            }
            ["sandbox", word, rest @ ..] => {
                Command::parse_sandbox(word, rest).unwrap_or_else(|| Command::Invalid(words.to_vec()))
            }
            [
                import_entry::COMMAND
                | forget::COMMAND
                | tasks::COMMAND
                | "sandbox"
                | transfer::COMMAND
                | "version",
                ..,
            ] => Command::Invalid(words.to_vec()),
            _ => return None,
        })
    }

    fn parse_transfer(words: &[&'a str]) -> Option<Command<'a>> {
        Some(match words {
            [directory, pool, transfer::ANY] => Command::GiveUp { directory: Path::new(*directory), pool },
            [directory, pool, transfer::IDLE_BLOCKS] => {
                Command::ReturnIdle { directory: Path::new(*directory), pool }
            }
            [directory, pool, transfer::RESTORE] => {
                Command::Restore { directory: Path::new(*directory), pool }
            }
            [directory, pool, transfer::FREE, address, transfer::FORCE] => {
                Command::FreeAddress { directory: Path::new(*directory), pool, address, entries: Vec::new() }
            }
            [directory, pool, transfer::FREE, address, entries @ ..] if !entries.is_empty() => {
                let entries = entries.iter().map(|entries| Path::new(*entries)).collect();
                Command::FreeAddress { directory: Path::new(*directory), pool, address, entries }
            }
            [directory, pool, lease, address @ ..] if address.len() <= 1 => Command::ReleaseAddress {
                directory: Path::new(*directory),
                pool,
                lease,
                address: address.first().copied(),
            },
            _ => return None,
        })
    }

    fn parse_sandbox(word: &str, rest: &[&'a str]) -> Option<Command<'a>> {
        Some(match (word, rest) {
            ("create", [path]) => Command::SandboxCreate(Path::new(*path)),
            ("delete", [path]) => Command::SandboxDelete(Path::new(*path)),
            ("identity", [path]) => Command::SandboxIdentity(path),
            ("owner-tags", []) => Command::SandboxOwnerTags,
            ("counters", []) => Command::SandboxCounters,
            ("policy-counters", []) => Command::SandboxPolicyCounters,
            ("trace", []) => Command::SandboxTrace,
            ("capture", []) => Command::SandboxCapture,
            ("show", []) => Command::SandboxShow(None),
            ("show", [path]) => Command::SandboxShow(Some(Path::new(*path))),
            ("run", [path, program, arguments @ ..]) => {
                Command::SandboxRun { path: Path::new(*path), program, arguments: arguments.to_vec() }
            }
            ("ping", [path, to]) => Command::SandboxPing { path: Path::new(*path), to, from: None },
            ("ping", [path, to, from]) => {
                Command::SandboxPing { path: Path::new(*path), to, from: Some(from) }
            }
            _ => return None,
        })
    }

    /// Executes the command and returns the exit code.
    pub fn run(self) -> ExitCode {
        self.execute().unwrap_or_else(|error| {
            log!("weft-cni: {error}");
            if error.code == cni::code::INVALID_ENVIRONMENT { ExitCode::from(2) } else { ExitCode::FAILURE }
        })
    }

    fn execute(self) -> Result<ExitCode, Error> {
        let done = |()| ExitCode::SUCCESS;
        match self {
            Command::Help => Ok(print(USAGE)),
            Command::Version => Ok(print(concat!("weft-cni ", env!("CARGO_PKG_VERSION"), "\n"))),
            Command::BuildInfo { json } => version(json),
            Command::Install(words) => install(&words),
            Command::ImportEntry(directory) => import_entry::import(directory).map(done),
            Command::ForgetAttachment { directory, container, network } => {
                forget::forget(directory, container, network).map(done)
            }
            Command::RunTasks { on_host, after } => {
                let unknown = |_| invalid_command(&[tasks::COMMAND, tasks::AFTER]);
                let after = after.map(|parent| parent.parse().map_err(unknown)).transpose()?;
                if on_host {
                    linux::netns::enter_host_mount_namespace().or_refused()?;
                }
                tasks::run(after).map(done)
            }
            Command::ReleaseAddress { directory, pool, lease, address: None } => {
                transfer::mark_unconfirmed(directory, pool, lease).map(|outcome| release_code(&outcome))
            }
            Command::ReleaseAddress { directory, pool, lease, address: Some(ip) } => {
                transfer::release(directory, pool, lease, address(ip)?).map(|outcome| release_code(&outcome))
            }
            Command::FreeAddress { directory, pool, address: ip, entries } => {
                let freed = transfer::free(directory, pool, address(ip)?, &entries);
                freed.map(|outcome| release_code(&outcome))
            }
            Command::GiveUp { directory, pool } => {
                print_json(&transfer::give_up(directory, pool, &read_message()?)?)
            }
            Command::ReturnIdle { directory, pool } => {
                print_json(&transfer::return_idle(directory, pool, &read_message()?)?)
            }
            Command::Restore { directory, pool } => {
                print_json(&transfer::restore(directory, pool, &read_message()?)?)
            }
            Command::SandboxCreate(path) => Netns::create(path).or_refused().map(|_| ExitCode::SUCCESS),
            Command::SandboxDelete(path) => Netns::destroy(path).or_refused().map(done),
            Command::SandboxShow(path) => show(path),
            Command::SandboxIdentity(path) => Ok(print(&namespace::identify(path)?)),
            Command::SandboxOwnerTags => owner_tags(),
            Command::SandboxCounters => diagnosis::counters::run(),
            Command::SandboxPolicyCounters => diagnosis::policy_counters::run(),
            Command::SandboxTrace => diagnosis::trace::run(),
            Command::SandboxCapture => diagnosis::capture::run(),
            Command::SandboxRun { path, program, arguments } => execute(path, program, &arguments),
            Command::SandboxPing { path, to, from } => ping(path, to, from),
            Command::Invalid(words) => Err(invalid_command(&words)),
        }
    }
}

/// Runs the lease daemon until it is terminated.
pub fn run_daemon(flags: &[&str]) -> ExitCode {
    match dhcp::daemon::run(flags) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log!("weft-cni: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Removes links for a process that does not wait until the removal ends. That process reports failures.
pub fn remove_links(indexes: &[&str]) -> ExitCode {
    match linux::link::removal::run(indexes) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Keeps inherited sockets open until the end of stdin.
pub fn close_sockets() -> ExitCode {
    match linux::netfilter::closing::run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Replaces this process with `program`. Returns only on failure, with the error on stdout.
pub fn exec_with_parent(parent: u32, program: &Path, arguments: &[OsString]) -> ExitCode {
    let cause = parent_death::exec(parent, program, arguments, BUSY_MAX);
    // The caller may have exited.
    let _ = serde_json::to_writer(std::io::stdout(), &not_executed(program, &cause));
    ExitCode::FAILURE
}

fn invalid_command(words: &[&str]) -> Error {
    let why = format!("{:?} is not a valid command; see weft-cni --help", words.join(" "));
    Error::new(cni::code::INVALID_ENVIRONMENT, why)
}

fn print(text: &str) -> ExitCode {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Prints the build identification; the features are the plugins.
fn version(json: bool) -> Result<ExitCode, Error> {
    let build = BuildInfo::of("weft-cni", dispatch::names().collect());
    if !json {
        return Ok(print(&build.to_string()));
    }
    let text = cni::result::pretty(&build)?;
    Ok(print(&format!("{}\n", String::from_utf8_lossy(&text))))
}

fn install(words: &[&str]) -> Result<ExitCode, Error> {
    let (mut directory, mut names, mut foreign) = (None, vec![Name::of_plugin("weft")], Foreign::Refuse);
    let mut rest = words.iter();
    while let Some(word) = rest.next() {
        match *word {
            "--names" => {
                let list = rest.next().ok_or_else(|| invalid_command(words))?;
                names = Installation::names(list)?;
            }
            "--replace" => foreign = Foreign::Replace,
            "--keep" => foreign = Foreign::Keep,
            path if directory.is_none() && !path.starts_with('-') => directory = Some(PathBuf::from(path)),
            _ => return Err(invalid_command(words)),
        }
    }
    let Some(directory) = directory else { return Err(invalid_command(&["install"])) };
    let report = Installation { directory, names, foreign }.run()?;
    Ok(print(&(report.join("\n") + "\n")))
}

fn show(path: Option<&Path>) -> Result<ExitCode, Error> {
    let netns = match path {
        Some(path) => Netns::open(path),
        None => Netns::own(),
    };
    let inventory = inventory::take(&netns.or_refused()?)?;
    let mut text = cni::result::pretty(&inventory)?;
    text.push(b'\n');
    Ok(print(&String::from_utf8_lossy(&text)))
}

fn owner_tags() -> Result<ExitCode, Error> {
    let mut text = cni::result::pretty(&inventory::owner_tags(&Netns::own().or_refused()?)?)?;
    text.push(b'\n');
    Ok(print(&String::from_utf8_lossy(&text)))
}

/// Runs a program in a network namespace and returns the exit code.
fn execute(path: &Path, program: &str, arguments: &[&str]) -> Result<ExitCode, Error> {
    let netns = Netns::open(path).or_refused()?;
    let ended = netns.run(|| process::Command::new(program).args(arguments).status()).or_refused()?;
    let status = ended.map_err(|cause| Error::io(format_args!("run {program}"), cause))?;
    Ok(ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
}

fn ping(path: &Path, to: &str, from: Option<&str>) -> Result<ExitCode, Error> {
    let to = address(to)?;
    let from = from.map(address).transpose()?;
    let netns = Netns::open(path).or_refused()?;
    match netns.run(|| echo::ping(to, from, PING_WAIT)).or_refused()?.or_refused()? {
        Some(took) => Ok(print(&format!("{:.3} ms\n", took.as_secs_f64() * 1e3))),
        None => {
            log!("weft-cni: no reply from {to} within {} s", PING_WAIT.as_secs());
            Ok(ExitCode::from(3))
        }
    }
}

/// Returns the exit code of `release-address`; prints the owner of an address in use.
fn release_code(outcome: &ReleaseOutcome) -> ExitCode {
    match outcome {
        ReleaseOutcome::Released => ExitCode::SUCCESS,
        ReleaseOutcome::Freed(owner) => print(&format!("{owner}\n")),
        ReleaseOutcome::InUse(owner) => {
            print(&format!("{owner}\n"));
            ExitCode::from(3)
        }
        ReleaseOutcome::UnknownLease => ExitCode::from(4),
    }
}

/// Reads a message of the agent from stdin.
fn read_message<T: serde::de::DeserializeOwned>() -> Result<T, Error> {
    let mut text = Vec::new();
    let read = std::io::stdin().lock().take(MESSAGE_MAX).read_to_end(&mut text);
    read.map_err(|cause| Error::io("read stdin", cause))?;
    let why = |cause| format!("stdin: {}", cni::wording::syntax_error(&text, &cause));
    serde_json::from_slice(&text).map_err(|cause| Error::config(why(cause)))
}

fn print_json(message: &impl serde::Serialize) -> Result<ExitCode, Error> {
    let text = serde_json::to_string(message).map_err(|cause| Error::internal(cause.to_string()))?;
    Ok(print(&(text + "\n")))
}

fn address(text: &str) -> Result<IpAddr, Error> {
    let address: Option<IpAddr> = cni::address::parse_ip(text);
    address.ok_or_else(|| Error::new(cni::code::INVALID_ENVIRONMENT, format!("{text:?} is not an address")))
}
