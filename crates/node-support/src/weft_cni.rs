//! Interface to the program `weft-cni`, which makes every change on the host for `weft`.
//!
//! The program is searched beside this program's real file, then in `PATH`, then in `/opt/cni/bin`. It is
//! called as a container runtime calls a plugin, or with a command (`weft-cni sandbox …`). With a *host
//! namespace* set, it runs inside that network namespace as if it were the host's.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use cni::environment::Environment;
use cni::name::{ContainerId, IfName};
use cni::runtime::exec::Exec;
use cni::{Error, Verb};
use ipam::BlockInfo;
use ipam::give_up::{GiveUpMessage, GivenUp, ReturnMessage};
use ipam::restore::RestoreMessage;
use ipam::transfer::TransferReply;
use rpc::diagnosis::{
    CaptureRequest, CountersRequest, InterfaceCounters, PolicyCounter, PolicyCountersRequest, TraceRequest,
    TraceStep,
};
use rpc::frame;
use rpc::task::TaskBatch;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use cli_support::failure::{Exit, Failure};
use cli_support::output::{Format, Progress};
use cli_support::privilege;
use cli_support::terminal::plain;

/// Program name.
const PROGRAM: &str = "weft-cni";
/// Directory where container runtimes expect plugins.
pub const PLUGINS: &str = "/opt/cni/bin";
/// Directory in which Debian installs the reference plugins.
pub const PACKAGED: &str = "/usr/lib/cni";
/// `PATH` on a host.
pub const PROGRAMS: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Timeout for one meta-plugin call: delegates have separate deadlines.
const DEADLINE: Duration = Duration::from_secs(600);
/// Timeout for a plugin's VERSION.
const VERSION_MAX: Duration = Duration::from_secs(10);
/// Interval at which weft checks whether a capture has ended.
const CAPTURE_LOOK: Duration = Duration::from_millis(50);
/// Number of bytes that are compared at a time in two files.
const PIECE: usize = 64 * 1024;
/// Exit code when `sandbox ping` got no reply.
const NO_REPLY: i32 = 3;
/// Exit code with which `release-address` reports that the address is in use.
const IN_USE: i32 = 3;
/// Exit code with which `release-address` reports that the lease does not exist.
const UNKNOWN_LEASE: i32 = 4;
/// Maximum length for an owner description, in characters.
const OWNER_MAX: usize = 300;

/// Program and the namespace that it runs in.
#[derive(Clone, Debug)]
pub struct WeftCni {
    program: PathBuf,
    host_namespace: Option<String>,
    on_host: OnHost,
}

/// `--on-host`.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct OnHost {
    /// Run plugins with the files and programs of the host, for example its iptables; requires a container in the host's
    /// PID namespace
    #[arg(long)]
    on_host: bool,
}

impl OnHost {
    /// Whether `--on-host` is set.
    pub fn is_wanted(self) -> bool {
        self.on_host
    }

    /// Returns the path in this process's mount namespace for a path on the host.
    pub fn path(self, path: &Path) -> PathBuf {
        match (self.on_host, path.strip_prefix("/")) {
            (true, Ok(below)) => Path::new("/proc/1/root").join(below),
            _ => path.to_owned(),
        }
    }
}

/// Sandbox, as parameters for a meta-plugin call.
#[derive(Clone, Debug)]
pub struct Subject {
    /// `CNI_CONTAINERID`.
    pub container: ContainerId,
    /// `CNI_NETNS`.
    pub netns: String,
    /// `CNI_IFNAME`.
    pub ifname: IfName,
    /// `CNI_ARGS`.
    pub args: String,
    /// `CNI_PATH`.
    pub path: String,
}

/// Behaviour if another project's plugin has the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Foreign {
    /// The installation fails.
    Refused,
    /// The plugin is kept.
    Kept,
    /// It is replaced.
    Replaced,
}

/// Answer when an address should be released.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FreeReply {
    /// This container held it.
    Freed(String),
    /// This container holds it, and may live.
    InUse(String),
    /// No container holds it.
    NotHeld,
}

/// Resource with one of weft's owner tags.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tagged {
    /// The resource, for example `link veth0`.
    pub on: String,
    /// Owner tag: `weft/PLUGIN/NETWORK/CONTAINER/IFNAME`.
    #[serde(rename = "mark")]
    pub tag: String,
}

/// Content of a network namespace: lists of lines by kind.
pub type Contents = BTreeMap<String, Vec<String>>;

/// `--path`.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Plugins {
    /// Directories of external plugins, separated by colons (default: the directory of weft-cni, /opt/cni/bin, /usr/lib/cni)
    #[arg(long, env = "CNI_PATH", value_name = "DIR:DIR", hide_env_values = true)]
    path: Option<String>,
}

impl Plugins {
    /// Returns the option's value, if it is not empty.
    pub fn given(&self) -> Option<&str> {
        self.path.as_deref().filter(|path| !path.is_empty())
    }
}

/// Whether two files have the same content.
pub fn is_copy(of: &Path, there: &Path) -> bool {
    let same = || -> io::Result<bool> {
        let (mut own, mut there) = (File::open(of)?, File::open(there)?);
        if own.metadata()?.len() != there.metadata()?.len() {
            return Ok(false);
        }
        let (mut left, mut right) = (vec![0; PIECE], vec![0; PIECE]);
        loop {
            let read = own.read(&mut left)?;
            if read == 0 {
                return Ok(true);
            }
            there.read_exact(&mut right[..read])?;
            if left[..read] != right[..read] {
                return Ok(false);
            }
        }
    };
    same().unwrap_or(false)
}

impl WeftCni {
    /// Finds the program.
    pub fn find() -> Result<WeftCni, Failure> {
        let own = std::fs::canonicalize("/proc/self/exe").ok();
        let beside = own.as_deref().and_then(|own| own.parent().map(Path::to_owned));
        let listed = std::env::var_os("PATH").unwrap_or_default();
        let directories = beside.into_iter().chain(std::env::split_paths(&listed)).chain([PLUGINS.into()]);
        // An empty entry of PATH would mean the working directory.
        let absolute = directories.filter(|directory| directory.is_absolute());
        // A copy of this program that was written over weft-cni is not weft-cni.
        let is_other =
            |path: &PathBuf| path.is_file() && !own.as_deref().is_some_and(|own| is_copy(own, path));
        match absolute.map(|directory| directory.join(PROGRAM)).find(is_other) {
            Some(program) => Ok(WeftCni { program, host_namespace: None, on_host: OnHost::default() }),
            None => Err(Failure::new(format!("{PROGRAM} not found: this command needs it"))
                .next(format!("install it beside weft, in a directory of PATH, or in {PLUGINS}"))),
        }
    }

    /// Whether the path is a link to weft-cni or a copy.
    pub fn is_in(path: &Path) -> bool {
        let is_link = std::fs::canonicalize(path).is_ok_and(|real| real.ends_with(PROGRAM));
        is_link || WeftCni::find().is_ok_and(|weft_cni| is_copy(&weft_cni.program, path))
    }

    /// Returns the program's path.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Returns the same program, run inside a network namespace.
    pub fn inside(&self, host_namespace: &str) -> WeftCni {
        WeftCni { host_namespace: Some(host_namespace.to_owned()), ..self.clone() }
    }

    /// Returns the same program, with the host's files if the option is set.
    pub fn on_host(self, on_host: OnHost) -> Result<WeftCni, Failure> {
        if on_host.on_host && std::process::id() == 1 {
            let why =
                "--on-host: this is process 1 of its PID namespace, so the host's files are not visible";
            return Err(Failure::new(why)
                .next("set hostPID: true in the pod, or omit --on-host")
                .exit(Exit::Usage));
        }
        Ok(WeftCni { on_host, ..self })
    }

    /// Returns the default `CNI_PATH`.
    pub fn plugin_path(&self) -> String {
        WeftCni::plugin_path_of(Some(self))
    }

    /// Returns the default `CNI_PATH`, also if weft-cni is not installed.
    pub fn plugin_path_of(weft_cni: Option<&WeftCni>) -> String {
        let own = weft_cni.and_then(|weft_cni| weft_cni.program.parent());
        let own = own.map(|directory| directory.display().to_string());
        let own = own.filter(|own| own != PLUGINS && !own.contains(':'));
        own.into_iter().chain([PLUGINS.to_owned(), PACKAGED.to_owned()]).collect::<Vec<_>>().join(":")
    }

    /// Calls the meta-plugin under a name, with the configuration on stdin. Its stderr is printed to stderr.
    pub fn call(&self, name: &str, stdin: &str, verb: Verb, subject: &Subject) -> Result<(), Error> {
        let Subject { container, netns, ifname, args, path } = subject;
        let environment = Environment {
            command: verb.as_str().to_owned(),
            container_id: container.to_string(),
            netns: netns.clone(),
            ifname: ifname.to_string(),
            args: args.clone(),
            path: path.clone(),
            netns_override: String::new(),
        };
        let mut command = self.command();
        command.arg(name);
        let (output, failure) = Exec::new(DEADLINE).complete(command, &environment, stdin.as_bytes())?;
        for line in String::from_utf8_lossy(&output.stderr).lines() {
            Progress::beside(Format::Json).line(plain(line));
        }
        failure.map_or(Ok(()), Err)
    }

    /// Installs weft-cni in a plugin directory under a name; returns the report, one line each.
    pub fn install(&self, directory: &Path, name: &str, foreign: Foreign) -> Result<String, Failure> {
        let mut command = Command::new(&self.program);
        command.arg("install").arg(directory).args(["--names", name]);
        command.args(match foreign {
            Foreign::Refused => None,
            Foreign::Kept => Some("--keep"),
            Foreign::Replaced => Some("--replace"),
        });
        let output = self.output(command)?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(privilege::of_place(self.failure(&output), directory)),
        }
    }

    /// Whether weft-cni contains a plugin with this name.
    pub fn answers_to(&self, plugin: &str) -> Result<bool, Failure> {
        let mut command = Command::new(&self.program);
        command.arg(plugin).env("CNI_COMMAND", "VERSION");
        Ok(self.output(command)?.status.success())
    }

    /// Whether a plugin's file answers VERSION, or else the error.
    pub fn answers_version(plugin: &Path) -> Result<(), Error> {
        let environment =
            Environment { command: Verb::Version.as_str().to_owned(), ..Environment::default() };
        let (_, failure) = Exec::new(VERSION_MAX).complete(Command::new(plugin), &environment, b"{}")?;
        failure.map_or(Ok(()), Err)
    }

    /// Adds an entry to the journal in a directory: `weft-cni import-entry`.
    pub fn import_entry(&self, journal: &Path, entry: &[u8]) -> Result<(), Failure> {
        let mut command = Command::new(&self.program);
        command.arg("import-entry").arg(journal);
        self.feed(command, entry)
    }

    /// Gives up a sandbox's attachments to a network whose DEL failed: `weft-cni forget-attachment`.
    pub fn forget(&self, journal: &Path, container: &ContainerId, network: &str) -> Result<(), Failure> {
        let mut command = Command::new(&self.program);
        command.arg("forget-attachment").arg(journal).args([container.as_str(), network]);
        let output = self.output(command)?;
        if output.status.success() { Ok(()) } else { Err(self.failure(&output)) }
    }

    /// Executes a task batch, and waits until it is done: `weft-cni run-tasks`.
    pub fn run_tasks(&self, batch: &TaskBatch) -> Result<(), Failure> {
        let message = frame::encode(batch).map_err(Error::from)?;
        let mut command = Command::new(&self.program);
        command.arg("run-tasks");
        if self.on_host.on_host {
            // An image without a shell has no PATH.
            command.arg("--on-host").env("PATH", PROGRAMS);
        }
        self.feed(command, &message)
    }

    /// Releases a leased address to another node: `weft-cni release-address`. Returns what the address store
    /// answered.
    pub fn release_address(
        &self,
        stores: &Path,
        pool: &str,
        lease: &str,
        ip: IpAddr,
    ) -> Result<TransferReply, Failure> {
        let mut command = Command::new(&self.program);
        command.arg("release-address").arg(stores).args([pool, lease, &ip.to_string()]);
        let output = self.output(command)?;
        match output.status.code() {
            Some(0) => Ok(TransferReply::Reserved),
            Some(IN_USE) => {
                let owner = String::from_utf8_lossy(&output.stdout);
                Ok(TransferReply::InUse(plain(owner.trim()).chars().take(OWNER_MAX).collect()))
            }
            Some(UNKNOWN_LEASE) => Ok(TransferReply::UnknownLease),
            _ => Err(self.failure(&output)),
        }
    }

    /// Releases an address that a container holds. With journal directories, not if that container may live.
    pub fn free_address(
        &self,
        stores: &Path,
        pool: &str,
        ip: IpAddr,
        entries: &[PathBuf],
    ) -> Result<FreeReply, Failure> {
        let mut command = Command::new(&self.program);
        command.arg("release-address").arg(stores).args([pool, "--free", &ip.to_string()]);
        match entries {
            [] => command.arg("--force"),
            entries => command.args(entries),
        };
        let output = self.output(command)?;
        let owner = plain(String::from_utf8_lossy(&output.stdout).trim().trim_end_matches(','));
        let owner: String = owner.chars().take(OWNER_MAX).collect();
        match output.status.code() {
            Some(0) => Ok(FreeReply::Freed(owner)),
            Some(IN_USE) => Ok(FreeReply::InUse(owner)),
            Some(UNKNOWN_LEASE) => Ok(FreeReply::NotHeld),
            _ => Err(self.failure(&output)),
        }
    }

    /// Marks a lease as unconfirmed, so that nothing is allocated from it. Returns whether the address store contains it.
    pub fn mark_unconfirmed(&self, stores: &Path, pool: &str, lease: &str) -> Result<bool, Failure> {
        let mut command = Command::new(&self.program);
        command.arg("release-address").arg(stores).args([pool, lease]);
        let output = self.output(command)?;
        match output.status.code() {
            Some(0) => Ok(true),
            Some(UNKNOWN_LEASE) => Ok(false),
            _ => Err(self.failure(&output)),
        }
    }

    /// Gives up a block or some addresses in an address store for another node.
    pub fn give_up(&self, stores: &Path, pool: &str, message: &GiveUpMessage) -> Result<GivenUp, Failure> {
        self.exchange(stores, pool, "--any", message)
    }

    /// Marks idle blocks in an address store as returning, and removes the returned ones; returns all blocks.
    pub fn return_idle(
        &self,
        stores: &Path,
        pool: &str,
        message: &ReturnMessage,
    ) -> Result<Vec<BlockInfo>, Failure> {
        self.exchange(stores, pool, "--idle", message)
    }

    /// Marks reserved addresses in an address store, or frees marked ones; returns them.
    pub fn restore(
        &self,
        stores: &Path,
        pool: &str,
        message: &RestoreMessage,
    ) -> Result<Vec<IpAddr>, Failure> {
        self.exchange(stores, pool, "--restore", message)
    }

    /// Sends a message to `release-address` and reads the reply.
    fn exchange<T: DeserializeOwned>(
        &self,
        stores: &Path,
        pool: &str,
        option: &str,
        message: &impl Serialize,
    ) -> Result<T, Failure> {
        let mut command = Command::new(&self.program);
        command.arg("release-address").arg(stores).args([pool, option]);
        let failed = |cause: serde_json::Error| Failure::new(format!("release-address {option}: {cause}"));
        let output = self.fed(command, &serde_json::to_vec(message).map_err(failed)?)?;
        serde_json::from_slice(&output.stdout).map_err(|cause| {
            let why = cni::wording::syntax_error(&output.stdout, &cause);
            Failure::new(format!("release-address {option}: {why}"))
        })
    }

    /// Runs a command that reads `stdin`.
    fn feed(&self, command: Command, stdin: &[u8]) -> Result<(), Failure> {
        self.fed(command, stdin).map(drop)
    }

    /// Runs a command that reads `stdin`; returns the output if it succeeds.
    fn fed(&self, mut command: Command, stdin: &[u8]) -> Result<Output, Failure> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let ended = command.process_group(0).spawn().and_then(|mut child| {
            // It may exit before it has read everything; its error message says why.
            let _ = child.stdin.take().map(|mut pipe| pipe.write_all(stdin));
            child.wait_with_output()
        });
        let output =
            ended.map_err(|cause| Failure::new(format!("run {}: {cause}", self.program.display())))?;
        match output.status.success() {
            true => Ok(output),
            false => Err(self.failure(&output)),
        }
    }

    fn output(&self, mut command: Command) -> Result<Output, Failure> {
        let output = command.stdin(Stdio::null()).process_group(0).output();
        output.map_err(|cause| Failure::new(format!("run {}: {cause}", self.program.display())))
    }

    /// Returns the error message for a failed run.
    fn failure(&self, output: &Output) -> Failure {
        let message = String::from_utf8_lossy(&output.stderr);
        let message = message.trim().trim_start_matches("weft-cni: ");
        Failure::new(if message.is_empty() { output.status.to_string() } else { message.to_owned() })
    }

    /// Returns how the program identifies itself: `weft-cni version`.
    pub fn version(&self) -> Result<String, Failure> {
        let mut command = Command::new(&self.program);
        command.arg("version");
        let output = self.output(command)?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(self.failure(&output)),
        }
    }

    /// Creates a network namespace and mounts it at `path`.
    pub fn create(&self, path: &str) -> Result<(), Failure> {
        self.sandbox(["create", path]).map(drop)
    }

    /// Deletes the network namespace at `path`; a missing one is no error.
    pub fn delete(&self, path: &str) -> Result<(), Failure> {
        self.sandbox(["delete", path]).map(drop)
    }

    /// Returns the identity that the network namespace at `path` has, as in the journal; empty if there is
    /// none.
    pub fn identity(&self, path: &str) -> Result<String, Failure> {
        self.sandbox(["identity", path]).map(Option::unwrap_or_default)
    }

    /// Returns what the network namespace at `path` contains.
    pub fn contents(&self, path: &str) -> Result<Contents, Failure> {
        self.show(["show", path].as_slice())
    }

    /// Returns what this process's network namespace contains.
    pub fn own_contents(&self) -> Result<Contents, Failure> {
        self.show(["show"].as_slice())
    }

    /// Returns the resources on this host that have a container's owner tag.
    pub fn owner_tags(&self) -> Result<Vec<Tagged>, Failure> {
        let text = self.sandbox(["owner-tags"])?.unwrap_or_default();
        serde_json::from_str(&text)
            .map_err(|cause| Failure::new(format!("{PROGRAM} sandbox owner-tags: invalid output: {cause}")))
    }

    fn show(&self, words: &[&str]) -> Result<Contents, Failure> {
        let text = self.sandbox(words)?.unwrap_or_default();
        serde_json::from_str(&text)
            .map_err(|cause| Failure::new(format!("{PROGRAM} sandbox show: invalid output: {cause}")))
    }

    /// Returns traffic counters for interfaces, in request order: `weft-cni sandbox counters`.
    pub fn counters(
        &self,
        requests: &[CountersRequest],
    ) -> Result<Vec<Vec<Option<InterfaceCounters>>>, Failure> {
        self.diagnose("counters", &requests)
    }

    /// Returns network policy counters for attachments, in request order: `weft-cni sandbox policy-counters`.
    pub fn policy_counters(
        &self,
        requests: &[PolicyCountersRequest],
    ) -> Result<Vec<Vec<Option<Vec<PolicyCounter>>>>, Failure> {
        self.diagnose("policy-counters", &requests)
    }

    /// Follows packets between two pods: `weft-cni sandbox trace`.
    pub fn trace(&self, request: &TraceRequest) -> Result<Vec<TraceStep>, Failure> {
        self.diagnose("trace", request)
    }

    /// Captures frames on an interface into `output` until `is_ended` or a limit, and returns a report:
    /// `weft-cni sandbox capture`.
    pub fn capture(
        &self,
        request: &CaptureRequest,
        output: Stdio,
        is_ended: impl Fn() -> bool,
    ) -> Result<String, Failure> {
        let failed = |cause: io::Error| Failure::new(format!("run {}: {cause}", self.program.display()));
        let mut line =
            serde_json::to_vec(request).map_err(|cause| Failure::new(format!("capture: {cause}")))?;
        line.push(b'\n');
        let mut command = self.command();
        command.args(["sandbox", "capture"]).process_group(0);
        let mut child =
            command.stdin(Stdio::piped()).stdout(output).stderr(Stdio::piped()).spawn().map_err(failed)?;
        let mut stdin = child.stdin.take();
        // It may exit before it has read the request; its error message says why.
        let _ = stdin.as_mut().map(|pipe| pipe.write_all(&line));
        while child.try_wait().map_err(failed)?.is_none() {
            if is_ended() {
                // The end of its input ends the capture.
                stdin = None;
            }
            std::thread::sleep(CAPTURE_LOOK);
        }
        drop(stdin);
        let output = child.wait_with_output().map_err(failed)?;
        match output.status.success() {
            true => {
                let report = String::from_utf8_lossy(&output.stderr);
                Ok(report.lines().last().unwrap_or_default().to_owned())
            }
            false => Err(self.failure(&output)),
        }
    }

    /// Runs `weft-cni sandbox WORD` with a request on stdin, and reads the answer.
    fn diagnose<T: DeserializeOwned>(&self, word: &str, request: &impl Serialize) -> Result<T, Failure> {
        let mut command = self.command();
        command.args(["sandbox", word]);
        let failed = |cause: serde_json::Error| {
            Failure::new(format!("{PROGRAM} sandbox {word}: invalid message: {cause}"))
        };
        let output = self.fed(command, &serde_json::to_vec(request).map_err(failed)?)?;
        serde_json::from_slice(&output.stdout).map_err(failed)
    }

    /// Sends one echo request from the namespace at `path`; returns the round-trip time, or `None` without a reply.
    pub fn ping(&self, path: &str, to: &str, from: &str) -> Result<Option<String>, Failure> {
        let answer = self.sandbox(["ping", path, to, from])?;
        Ok(answer.map(|text| text.trim().to_owned()))
    }

    /// Runs `weft-cni sandbox …`; returns the output, or `None` if a ping had no reply.
    fn sandbox<S: AsRef<OsStr>>(&self, words: impl AsRef<[S]>) -> Result<Option<String>, Failure> {
        let mut command = self.command();
        command.arg("sandbox").args(words.as_ref());
        let output = self.output(command)?;
        match output.status.code() {
            Some(0) => Ok(Some(String::from_utf8_lossy(&output.stdout).into_owned())),
            Some(NO_REPLY) => Ok(None),
            _ => Err(self.failure(&output)),
        }
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        if let Some(namespace) = &self.host_namespace {
            command.args(["sandbox", "run", namespace]).arg(&self.program);
        }
        command
    }
}
