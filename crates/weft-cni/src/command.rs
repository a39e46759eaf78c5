//! What `weft-cni` does when nobody calls it as a plugin: installs itself, and handles sandboxes for those
//! who may not (the command `weft` has no hands of its own).
//!
//! Exit codes: 0 done, 1 failed, 2 not understood; `sandbox ping` also 3 for «no answer», `give-up` 3 for «it is held» and 4
//! for «there is no such lease».

use std::ffi::OsString;
use std::io::Write;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use cni::Error;
use cni::runtime::exec::BUSY_MAX;
use linux::{Netns, echo, parent_death};
use plugin_support::failure::OrRefused;

use crate::install::{Foreign, Installation};
use crate::inventory;
use crate::meta_plugin::{adoption, tasks};
use crate::weft_ipam::handover::{self, Said};

const USAGE: &str = "\
weft-cni: every weft plugin in one file. A container runtime calls it by a plugin's name; a person may say

  weft-cni install DIR [--names NAME,NAME…|all] [--replace|--keep]
      put this binary into a plugin directory; by default it answers to `weft` there. Where somebody else's plugin
      has one of the names, nothing is done, or it is replaced, or kept
  weft-cni adopt DIR                        put the entry on stdin into the journal below DIR
  weft-cni sandbox create PATH              make a network namespace mounted at PATH
  weft-cni sandbox delete PATH              remove it
  weft-cni sandbox show [PATH]              links, addresses, routes, rules as JSON
  weft-cni sandbox marks                    what bears a mark of a container on this host, as JSON
  weft-cni sandbox run PATH COMMAND…        run a command inside
  weft-cni sandbox ping PATH TO [FROM]      one echo request from inside; exit code 3 if nobody answers
  weft-cni give-up DIR POOL LEASE ADDRESS   make an address of the pool's ledger below DIR another node's; exit code 3
      if it is held, by whom is said; 4 if the ledger has no such lease. Without ADDRESS: give nothing new of the
      lease until the agent was asked whose it is
  weft-cni dhcp daemon [FLAG…]              keep the leases of the plugin `dhcp`
  weft-cni --version

example: weft-cni install /opt/cni/bin --names weft,bridge,host-local
";

/// How long a ping waits for its answer.
const PING_WAIT: Duration = Duration::from_secs(2);

/// Is this a call of ours? Then it is done, and this is its exit code.
pub fn run(arguments: &[OsString]) -> Option<ExitCode> {
    let words: Vec<&str> = arguments.iter().skip(1).map(|word| word.to_str().unwrap_or("\u{fffd}")).collect();
    let outcome = match words.as_slice() {
        ["install" | "adopt" | "sandbox" | "give-up", .., "--help" | "-h"] => Ok(say(USAGE)),
        ["install", rest @ ..] => install(rest),
        ["sandbox", "create", path] => Netns::create(Path::new(path)).or_refused().map(|_| ExitCode::SUCCESS),
        ["sandbox", "delete", path] => {
            Netns::destroy(Path::new(path)).or_refused().map(|()| ExitCode::SUCCESS)
        }
        ["sandbox", "marks"] => marks(),
        ["sandbox", "show"] => show(None),
        ["sandbox", "show", path] => show(Some(path)),
        ["sandbox", "run", path, program, rest @ ..] => execute(path, program, rest),
        ["sandbox", "ping", path, to] => ping(path, to, None),
        ["sandbox", "ping", path, to, from] => ping(path, to, Some(from)),
        [adoption::COMMAND, directory] => adoption::adopt(Path::new(directory)).map(|()| ExitCode::SUCCESS),
        [tasks::COMMAND] => tasks::obey().map(|()| ExitCode::SUCCESS),
        [handover::COMMAND, directory, ledger, lease] => {
            handover::doubt(Path::new(directory), ledger, lease).map(|said| given_up(&said))
        }
        [tasks::COMMAND, tasks::ON_HOST] => {
            let entered = linux::netns::enter_files_of_host().or_refused();
            entered.and_then(|()| tasks::obey()).map(|()| ExitCode::SUCCESS)
        }
        [handover::COMMAND, directory, ledger, lease, ip] => give_up(directory, ledger, lease, ip),
        ["--help" | "-h" | "help"] => Ok(say(USAGE)),
        ["--version" | "-V"] => Ok(say(concat!("weft-cni ", env!("CARGO_PKG_VERSION"), "\n"))),
        ["adopt" | "sandbox" | "give-up", ..] => Err(misunderstood(&words)),
        _ => return None,
    };
    Some(outcome.unwrap_or_else(|error| {
        plugin_support::log!("weft-cni: {error}");
        if error.code == cni::code::INVALID_ENVIRONMENT { ExitCode::from(2) } else { ExitCode::FAILURE }
    }))
}

/// Is this `weft-cni dhcp daemon …`, or the program called as `dhcp` with `daemon …`? Then it runs until it is told to
/// end, and this is its exit code.
pub fn run_daemon(arguments: &[OsString]) -> Option<ExitCode> {
    let words: Vec<&str> = arguments.iter().map(|word| word.to_str().unwrap_or("\u{fffd}")).collect();
    let is_dhcp = |program: &&str| Path::new(program).file_name().is_some_and(|file| file == "dhcp");
    let flags = match words.as_slice() {
        [program, "daemon", flags @ ..] if is_dhcp(program) => flags,
        [_, "dhcp", "daemon", flags @ ..] => flags,
        _ => return None,
    };
    Some(match dhcp::daemon::run(flags) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            plugin_support::log!("weft-cni: {error}");
            ExitCode::FAILURE
        }
    })
}

/// `weft-cni exec-with-parent PARENT PROGRAM [ARGUMENT…]`: executes the program in place of this one; `None` for any other call.
pub fn exec_with_parent(arguments: &[OsString]) -> Option<ExitCode> {
    let [_, word, parent, program, arguments @ ..] = arguments else { return None };
    if word != parent_death::COMMAND {
        return None;
    }
    let program = Path::new(program);
    let cause = parent_death::exec(parent.to_str()?.parse().ok()?, program, arguments, BUSY_MAX);
    // The caller may have exited.
    let _ = serde_json::to_writer(
        std::io::stdout(),
        &Error::io(format_args!("run {}", program.display()), cause),
    );
    Some(ExitCode::FAILURE)
}

fn misunderstood(words: &[&str]) -> Error {
    let why = format!("{:?} is not understood; weft-cni --help says what is", words.join(" "));
    Error::new(cni::code::INVALID_ENVIRONMENT, why)
}

fn say(text: &str) -> ExitCode {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn install(words: &[&str]) -> Result<ExitCode, Error> {
    let (mut directory, mut names, mut foreign) = (None, vec!["weft".to_owned()], Foreign::Refuse);
    let mut rest = words.iter();
    while let Some(word) = rest.next() {
        match *word {
            "--names" => {
                let list = rest.next().ok_or_else(|| misunderstood(words))?;
                names = Installation::names(list)?;
            }
            "--replace" => foreign = Foreign::Replace,
            "--keep" => foreign = Foreign::Keep,
            path if directory.is_none() && !path.starts_with('-') => directory = Some(PathBuf::from(path)),
            _ => return Err(misunderstood(words)),
        }
    }
    let Some(directory) = directory else { return Err(misunderstood(&["install"])) };
    let report = Installation { directory, names, foreign }.carry_out()?;
    Ok(say(&(report.join("\n") + "\n")))
}

fn show(path: Option<&str>) -> Result<ExitCode, Error> {
    let netns = match path {
        Some(path) => Netns::open(Path::new(path)),
        None => Netns::own(),
    };
    let inventory = inventory::take(&netns.or_refused()?)?;
    let mut text = cni::result::pretty(&inventory)?;
    text.push(b'\n');
    Ok(say(&String::from_utf8_lossy(&text)))
}

fn marks() -> Result<ExitCode, Error> {
    let mut text = cni::result::pretty(&inventory::marks(&Netns::own().or_refused()?)?)?;
    text.push(b'\n');
    Ok(say(&String::from_utf8_lossy(&text)))
}

/// Runs a program inside; its exit code is ours.
fn execute(path: &str, program: &str, arguments: &[&str]) -> Result<ExitCode, Error> {
    let netns = Netns::open(Path::new(path)).or_refused()?;
    let ended = netns.run(|| Command::new(program).args(arguments).status()).or_refused()?;
    let status = ended.map_err(|cause| Error::io(format_args!("run {program}"), cause))?;
    Ok(ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
}

fn ping(path: &str, to: &str, from: Option<&str>) -> Result<ExitCode, Error> {
    let to = address(to)?;
    let from = from.map(address).transpose()?;
    let netns = Netns::open(Path::new(path)).or_refused()?;
    match netns.run(|| echo::ping(to, from, PING_WAIT)).or_refused()?.or_refused()? {
        Some(took) => Ok(say(&format!("{:.3} ms\n", took.as_secs_f64() * 1e3))),
        None => {
            plugin_support::log!("weft-cni: no answer from {to} within {} s", PING_WAIT.as_secs());
            Ok(ExitCode::from(3))
        }
    }
}

/// For an address of a block that another node asks for.
fn give_up(directory: &str, ledger: &str, lease: &str, ip: &str) -> Result<ExitCode, Error> {
    handover::give_up(Path::new(directory), ledger, lease, address(ip)?).map(|said| given_up(&said))
}

fn given_up(said: &Said) -> ExitCode {
    match said {
        Said::Hole => ExitCode::SUCCESS,
        Said::Held(owner) => {
            say(&format!("{owner}\n"));
            ExitCode::from(3)
        }
        Said::Unknown => ExitCode::from(4),
    }
}

fn address(text: &str) -> Result<IpAddr, Error> {
    let address: Option<IpAddr> = cni::address::parse_ip(text);
    address.ok_or_else(|| Error::new(cni::code::INVALID_ENVIRONMENT, format!("{text:?} is not an address")))
}
