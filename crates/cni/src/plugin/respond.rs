//! A whole plugin call as a function, from variables and stdin to stdout and an exit code.
//!
//! - Everything is checked before the plugin acts, even whether the network namespace is the plugin's own.
//! - Every outcome has an output; `process.rs` prints the one for a panic.
//! - The output has the configuration's version, is indented by four spaces, and has no newline at the end.
//! - If the requested version cannot express the result, the ADD is undone.
//!
//! Source: SPEC 1.1.0 §2 and §5; libcni `pkg/skel` (K1–K6, S18, S36, trap 6, trap 8, trap 9).

use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::Plugin;
use crate::args;
use crate::config::{Config, REMOVAL_MAX};
use crate::environment::{self, Environment};
use crate::error::{Context, Error, code, cut};
use crate::invocation::{Attach, Attachment, Call, Detach, Probe, Sweep};
use crate::invoke::{Invoke, read_error};
use crate::name::{ContainerId, IfName};
use crate::object::{DOCUMENT_MAX, Object};
use crate::result::pretty;
use crate::version::{Verb, Version};

/// Returns the path of the calling thread's namespace. The main thread uses the process path, which the kernel resolves
/// in half the time.
fn own_netns() -> &'static str {
    match rustix::thread::gettid() == rustix::process::getpid() {
        true => "/proc/self/ns/net",
        false => "/proc/thread-self/ns/net",
    }
}

/// Maximum length of message and details in an output, in bytes, because they may quote untrusted input.
const TEXT_MAX: usize = 8 << 10;

/// Plugin output: the bytes for stdout, the text for stderr, and whether the call succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// A result, a version report, an error, or nothing.
    pub stdout: Vec<u8>,
    /// Text for people; not part of CNI.
    pub stderr: String,
    /// Whether the exit code is 0; otherwise it is 1.
    pub success: bool,
}

impl Answer {
    /// Returns the output for `error`.
    pub fn failed(error: &Error) -> Answer {
        let mut error = error.clone();
        (error.msg, error.details) = (cut(error.msg, TEXT_MAX), cut(error.details, TEXT_MAX));
        // This fallback can only be reached if a struct with strings has no JSON form.
        let stdout = pretty(&error).unwrap_or_else(|_| br#"{"code":999,"msg":"no answer"}"#.to_vec());
        Answer { stdout, stderr: String::new(), success: false }
    }

    /// Converts the output to what [`Invoke::invoke`] returns.
    pub fn into_result(self) -> Result<Vec<u8>, Error> {
        match self.success {
            true => Ok(self.stdout),
            false => Err(read_error(&self.stdout).unwrap_or_else(|cause| Error::internal(cause.to_string()))),
        }
    }
}

/// Runs one call. Reads `stdin` unless the call fails earlier or has no verb.
pub fn respond(
    plugin: &dyn Plugin,
    environment: &Environment,
    stdin: &mut dyn Read,
    delegates: &dyn Invoke,
) -> Answer {
    if environment.command.is_empty() {
        return Answer { stdout: Vec::new(), stderr: about(plugin), success: true };
    }
    match outcome(plugin, environment, stdin, delegates) {
        Ok(stdout) => Answer { stdout, stderr: String::new(), success: true },
        Err(error) => {
            let newest = plugin.versions().last().copied().unwrap_or(Version::LATEST);
            Answer::failed(&if error.cni_version.is_some() { error } else { error.in_version(newest) })
        }
    }
}

/// Runs the call without formatting the output. An error carries the configuration's version once that is known.
fn outcome(
    plugin: &dyn Plugin,
    environment: &Environment,
    stdin: &mut dyn Read,
    delegates: &dyn Invoke,
) -> Result<Vec<u8>, Error> {
    let given = environment.command.as_str();
    let verb = Verb::from_wire(given).ok_or_else(|| {
        Error::new(code::INVALID_ENVIRONMENT, format!("unknown {}: {given}", environment::COMMAND))
    })?;
    if verb == Verb::Version {
        return report(plugin, &read(stdin, DOCUMENT_MAX).unwrap_or_default());
    }
    let who = variables(verb, environment)?;
    let config = match verb {
        Verb::Del | Verb::Gc => Config::read_for_removal(read(stdin, REMOVAL_MAX)?, plugin.versions())?,
        _ => Config::read(read(stdin, DOCUMENT_MAX)?, plugin.versions())?,
    };
    let version = config.version;
    gate(verb, version)
        .and_then(|()| Request::new(verb, who, Call { config, environment: environment.clone() }))
        .and_then(|request| request.run(plugin, delegates))
        .map_err(|error| error.in_version(version))
}

/// Returns the text for a plugin that is run manually.
fn about(plugin: &dyn Plugin) -> String {
    let versions: Vec<&str> = plugin.versions().iter().map(|v| v.as_str()).collect();
    let verbs: Vec<String> = Verb::ALL.iter().map(|v| format!("{v} since {}", v.since())).collect();
    format!(
        "CNI {} plugin v{} (weft)\nCNI protocol versions supported: {}\nCNI commands: {}\n",
        plugin.name(),
        env!("CARGO_PKG_VERSION"),
        versions.join(", "),
        verbs.join(", "),
    )
}

/// Returns the answer to VERSION, on one line. A known version from stdin is echoed, as the specification requires.
fn report(plugin: &dyn Plugin, stdin: &[u8]) -> Result<Vec<u8>, Error> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Report<'a> {
        cni_version: &'a str,
        supported_versions: Vec<&'a str>,
    }

    // Stdin is optional here, so invalid input is treated as none.
    let given = Object::parse(stdin, "stdin").and_then(|object| object.text("cniVersion"));
    let echo = given.ok().flatten().and_then(|text| Version::from_wire(&text)).unwrap_or(Version::LATEST);
    let report = Report {
        cni_version: echo.as_str(),
        supported_versions: plugin.versions().iter().map(|v| v.as_str()).collect(),
    };
    let mut line =
        serde_json::to_vec(&report).map_err(|cause| Error::internal(format!("encode versions: {cause}")))?;
    line.push(b'\n');
    Ok(line)
}

/// Reads stdin up to one byte beyond `limit`, so that the caller can reject a longer document.
fn read(stdin: &mut dyn Read, limit: usize) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    stdin.take(limit as u64 + 1).read_to_end(&mut bytes).map_err(|cause| Error::io("read stdin", cause))?;
    Ok(bytes)
}

/// Call with valid variables and configuration.
enum Request {
    Add(Attach),
    Del(Detach),
    Check(Attach),
    Gc(Sweep),
    Status(Probe),
}

impl Request {
    fn new(verb: Verb, who: Option<Attachment>, call: Call) -> Result<Request, Error> {
        let netns = match call.environment.netns.as_str() {
            "" => None,
            path => Some(PathBuf::from(path)),
        };
        Ok(match (verb, who, netns) {
            (Verb::Add, Some(who), Some(netns)) => Request::Add(Attach { who, netns, call }),
            (Verb::Check, Some(who), Some(netns)) => Request::Check(Attach { who, netns, call }),
            (Verb::Del, Some(who), netns) => Request::Del(Detach { who, netns, call }),
            (Verb::Gc, ..) => Request::Gc(Sweep { call }),
            (Verb::Status, ..) => Request::Status(Probe { call }),
            _ => return Err(Error::internal(format!("{verb} was checked for other variables than it has"))),
        })
    }

    fn run(self, plugin: &dyn Plugin, delegates: &dyn Invoke) -> Result<Vec<u8>, Error> {
        match &self {
            Request::Add(attach) => add(plugin, attach, delegates),
            Request::Del(detach) => {
                foreign_netns(detach.netns.as_deref(), &detach.call.environment)?;
                plugin.del(detach, delegates).map(|()| Vec::new())
            }
            Request::Check(attach) => plugin.check(attach, delegates).map(|()| Vec::new()),
            Request::Gc(sweep) => plugin.gc(sweep, delegates).map(|()| Vec::new()),
            Request::Status(probe) => plugin.status(probe, delegates).map(|()| Vec::new()),
        }
    }
}

/// Calls ADD, and undoes it if the requested version cannot express the result.
fn add(plugin: &dyn Plugin, attach: &Attach, delegates: &dyn Invoke) -> Result<Vec<u8>, Error> {
    foreign_netns(Some(&attach.netns), &attach.call.environment)?;
    let success = plugin.add(attach, delegates)?;
    success.print(attach.call.config.version).map_err(|error| {
        let Attach { who, netns, call } = attach.clone();
        let undo = Detach { who, netns: Some(netns), call };
        error.also(plugin.del(&undo, delegates).context("undo").err())
    })
}

/// Returns the variables that a verb requires (K1).
fn required(verb: Verb) -> &'static [&'static str] {
    use environment::{CONTAINERID, IFNAME, NETNS, PATH};
    match verb {
        Verb::Add | Verb::Check => &[CONTAINERID, NETNS, IFNAME, PATH],
        Verb::Del => &[CONTAINERID, IFNAME, PATH],
        Verb::Gc | Verb::Status => &[PATH],
        Verb::Version => &[],
    }
}

/// Checks the variables for a verb: first that those present are valid, then that none is missing (K1).
fn variables(verb: Verb, environment: &Environment) -> Result<Option<Attachment>, Error> {
    let required = required(verb);
    let wanted = |name| required.contains(&name).then(|| environment.value(name)).filter(|v| !v.is_empty());
    let container = wanted(environment::CONTAINERID).map(ContainerId::new);
    let container = container.transpose().context(environment::CONTAINERID)?;
    let ifname = wanted(environment::IFNAME).map(IfName::new).transpose().context(environment::IFNAME)?;

    let absent = |name: &&&str| environment.value(name).is_empty();
    let missing: Vec<&str> = required.iter().filter(absent).copied().collect();
    if !missing.is_empty() {
        let why = format!("required env variables [{}] missing", missing.join(","));
        return Err(Error::new(code::INVALID_ENVIRONMENT, why));
    }
    Ok(container.zip(ifname).map(|(container, ifname)| Attachment { container, ifname }))
}

/// Rejects a verb that the configuration's version does not have (K5).
fn gate(verb: Verb, version: Version) -> Result<(), Error> {
    if version >= verb.since() {
        return Ok(());
    }
    Err(Error::new(code::INCOMPATIBLE_VERSION, format!("config version does not allow {verb}"))
        .details(format!("config is {version}, {verb} exists since {}", verb.since())))
}

/// Rejects a call for the plugin's own namespace, unless the caller allows it (K6).
///
/// If the path does not exist or cannot be read, that is not an error here, because the plugin decides about it.
fn foreign_netns(path: Option<&Path>, environment: &Environment) -> Result<(), Error> {
    let Some(path) = path else { return Ok(()) };
    if args::boolean(&environment.netns_override) == Some(true) {
        return Ok(());
    }
    let Ok(given) = std::fs::metadata(path) else { return Ok(()) };
    let own = std::fs::metadata(own_netns()).map_err(|cause| {
        Error::new(code::INVALID_NETNS, format!("identify the plugin's netns {}: {cause}", own_netns()))
    })?;
    if (given.dev(), given.ino()) != (own.dev(), own.ino()) {
        return Ok(());
    }
    Err(Error::new(
        code::INVALID_NETNS,
        format!(
            "{}: {}: plugin's netns and netns from CNI_NETNS should not be the same; set {}=1 to allow it",
            environment::NETNS,
            path.display(),
            environment::NETNS_OVERRIDE,
        ),
    ))
}

#[cfg(test)]
mod tests;
