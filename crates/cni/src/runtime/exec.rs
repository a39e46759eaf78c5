//! Runs plugins as child processes: finds them in `CNI_PATH`, and limits time and output.
//!
//! - The child inherits the environment, always gets the six variables, and reads the configuration from stdin.
//! - The child leads a separate process group. At the deadline, or when weft must stop, the whole group is killed.
//! - Printing more than [`STDOUT_MAX`] bytes on stdout is an error, and the group is killed. From stderr, the last
//!   [`STDERR_MAX`] bytes are kept.
//! - A child may exit without reading stdin, or leave a grandchild that holds stdout; neither causes an error or a
//!   delay.
//! - While the program file is open for writing ("text file busy", because it is being installed), starting it is
//!   retried.
//! - The child's error is passed on as printed. Stderr is forwarded unless the error quotes it.
//!
//! Source: SPEC 1.1.0 §2, §4; libcni `pkg/invoke` (S1, L1–L4, S30).

mod child;

use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::environment::{self, Environment};
use crate::error::{Error, code};
use crate::invoke::{Invoke, read_error};
use crate::name::PluginType;
use crate::object::DOCUMENT_MAX;

/// Maximum size of the output on stdout in bytes, the same as for any JSON document.
pub const STDOUT_MAX: usize = DOCUMENT_MAX;

/// Number of bytes that are kept from the end of stderr.
pub const STDERR_MAX: usize = 64 * 1024;

/// Maximum time for retries while the file is busy, as in libcni.
pub const BUSY_MAX: Duration = Duration::from_secs(6);

/// Number of characters that an error quotes from the end of a plugin's output.
const QUOTE_MAX: usize = 2000;

/// Errors of execve(2) that are about the file: format, interpreter, permissions or path.
const REFUSALS: [Errno; 9] = [
    Errno::NOEXEC,
    Errno::NOENT,
    Errno::ACCESS,
    Errno::NOTDIR,
    Errno::ISDIR,
    Errno::LOOP,
    Errno::NAMETOOLONG,
    Errno::INVAL,
    Errno::LIBBAD,
];

/// Runs plugins as child processes.
#[derive(Clone, Copy, Debug)]
pub struct Exec {
    deadline: Duration,
    command: fn(&Path) -> Command,
    stop: Option<&'static AtomicBool>,
}

/// Output from a plugin that succeeded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// Stdout, at most [`STDOUT_MAX`] bytes.
    pub stdout: Vec<u8>,
    /// The last [`STDERR_MAX`] bytes from stderr.
    pub stderr: Vec<u8>,
}

impl Exec {
    /// Returns a caller that allows `deadline` from a plugin's start to its exit, including retries.
    pub const fn new(deadline: Duration) -> Exec {
        Exec { deadline, command: |program| Command::new(program), stop: None }
    }

    /// Kills a running plugin, and starts no other one, once `stop` is set.
    #[must_use]
    pub const fn unless(self, stop: &'static AtomicBool) -> Exec {
        Exec { stop: Some(stop), ..self }
    }

    /// Starts each plugin through the command that `command` returns for the plugin's path; errors still name the path.
    #[must_use]
    pub const fn through(self, command: fn(&Path) -> Command) -> Exec {
        Exec { command, ..self }
    }

    /// Runs `program`; [`Invoke::invoke`] finds it first and forwards stderr.
    ///
    /// # Errors
    /// The plugin's own error. Code 5: it could not be run, was too slow, or printed too much. Code 999: it failed
    /// without a CNI error.
    pub fn run(&self, program: &Path, environment: &Environment, stdin: &[u8]) -> Result<Output, Error> {
        let (output, failure) = self.attend(program, (self.command)(program), environment, stdin)?;
        failure.map_or(Ok(output), Err)
    }

    /// Runs the program of a plugin as [`Invoke::invoke`] does, without searching for it: forwards stderr.
    ///
    /// # Errors
    /// Those of [`Exec::run`].
    pub fn invoke_file(
        &self,
        program: &Path,
        environment: &Environment,
        stdin: &[u8],
    ) -> Result<Vec<u8>, Error> {
        let (output, failure) = self.attend(program, (self.command)(program), environment, stdin)?;
        if !output.stdout.is_empty() || failure.is_none() {
            // Stderr is only for people, so a write error is ignored.
            let _ = io::stderr().write_all(&output.stderr);
        }
        failure.map_or(Ok(output.stdout), Err)
    }

    /// Runs a plugin whose program needs arguments first; returns the output, and the error if it failed.
    ///
    /// # Errors
    /// Code 5: it could not be run, was too slow, or printed too much.
    pub fn complete(
        &self,
        command: Command,
        environment: &Environment,
        stdin: &[u8],
    ) -> Result<(Output, Option<Error>), Error> {
        let program = PathBuf::from(command.get_program());
        self.attend(&program, command, environment, stdin)
    }

    /// Runs a command to completion; errors name `program`.
    fn attend(
        &self,
        program: &Path,
        mut command: Command,
        environment: &Environment,
        stdin: &[u8],
    ) -> Result<(Output, Option<Error>), Error> {
        let started = Instant::now();
        if self.stop.is_some_and(|stop| stop.load(Ordering::Relaxed)) {
            return Err(Error::io(format_args!("run {}", program.display()), "not run: interrupted"));
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        command.envs(environment.variables());
        if !environment.netns_override.is_empty() {
            command.env(environment::NETNS_OVERRIDE, &environment.netns_override);
        }
        let busy_until = started + BUSY_MAX.min(self.deadline);
        let running = spawn(&mut command, busy_until).map_err(|cause| not_executed(program, &cause))?;
        // There is no deadline if the clock cannot express it.
        let until = started.checked_add(self.deadline);
        let (status, output) = child::attend(running, stdin, child::Limits { until, stop: self.stop });
        let status = status.map_err(|fault| self.ended(&fault, program, &output))?;
        let failure = (!status.success()).then(|| failure(status, &output));
        Ok((output, failure))
    }

    /// Returns the error for a child that was killed.
    fn ended(&self, fault: &child::Fault, program: &Path, output: &Output) -> Error {
        let why = match fault {
            child::Fault::Late => format!("killed after {:?} without an answer", self.deadline),
            child::Fault::Stopped => "killed: interrupted".to_owned(),
            child::Fault::Verbose => format!("killed: it printed more than {STDOUT_MAX} bytes"),
            child::Fault::System(cause) => cause.to_string(),
        };
        Error::io(format_args!("run {}", program.display()), why).details(quote(output.stderr.trim_ascii()))
    }
}

impl Invoke for Exec {
    fn invoke(&self, plugin: &PluginType, environment: &Environment, stdin: &[u8]) -> Result<Vec<u8>, Error> {
        self.invoke_file(&find(plugin, &environment.path)?, environment, stdin)
    }
}

/// Finds the first regular file with this name in the directories in `path`; like libcni, ignores the mode.
///
/// # Errors
/// Code 5, naming plugin and directories.
pub fn find(plugin: &PluginType, path: &str) -> Result<PathBuf, Error> {
    // An empty entry would mean the working directory, which is never intended.
    let directories: Vec<&str> = path.split(':').filter(|directory| !directory.is_empty()).collect();
    if directories.is_empty() {
        let why = format!("failed to find plugin {:?}: no paths provided in CNI_PATH", plugin.as_str());
        return Err(Error::new(code::IO_FAILURE, why));
    }
    let candidates = directories.iter().map(|directory| Path::new(directory).join(plugin.as_str()));
    let is_file = |file: &PathBuf| std::fs::metadata(file).is_ok_and(|metadata| metadata.is_file());
    candidates.into_iter().find(is_file).ok_or_else(|| {
        let searched = directories.join(" ");
        Error::new(
            code::IO_FAILURE,
            format!("failed to find plugin {:?} in path [{searched}]", plugin.as_str()),
        )
    })
}

/// Returns the error for a program that could not be executed. The code is [`code::NOT_EXECUTED`] if the kernel refuses
/// this file, and not for a shortage of the moment.
pub fn not_executed(program: &Path, cause: &io::Error) -> Error {
    let error = Error::io(format_args!("run {}", program.display()), cause);
    let is_refused = Errno::from_io_error(cause).is_some_and(|errno| REFUSALS.contains(&errno));
    if is_refused { Error { code: code::NOT_EXECUTED, ..error } } else { error }
}

/// Checks whether the kernel would execute a program: it must be executable, and a binary or a script.
///
/// # Errors
/// Code 5, naming the program.
pub fn check_executable(program: &Path) -> Result<(), Error> {
    let refused = |cause: io::Error| Error::io(format_args!("run {}", program.display()), cause);
    let metadata = std::fs::metadata(program).map_err(refused)?;
    if metadata.permissions().mode() & 0o111 == 0 {
        return Err(refused(io::ErrorKind::PermissionDenied.into()));
    }
    let mut magic = [0; 4];
    let read = std::fs::File::open(program).and_then(|mut file| file.read(&mut magic)).map_err(refused)?;
    match &magic[..read] {
        b"\x7fELF" | [b'#', b'!', ..] => Ok(()),
        _ => Err(refused(io::Error::other("neither a binary nor a script"))),
    }
}

/// Starts the child; retries while the file is open for writing.
fn spawn(command: &mut Command, until: Instant) -> io::Result<Child> {
    let mut pause = Duration::from_millis(5);
    loop {
        match command.spawn() {
            Err(cause)
                if cause.kind() == io::ErrorKind::ExecutableFileBusy && Instant::now() + pause < until =>
            {
                std::thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_secs(1));
            }
            outcome => return outcome,
        }
    }
}

/// Returns the error from a plugin that failed, in libcni's wording if the plugin printed none.
fn failure(status: ExitStatus, output: &Output) -> Error {
    let Output { stdout, stderr } = output;
    let how = exit_text(status);
    if !stdout.trim_ascii().is_empty() {
        return read_error(stdout).unwrap_or_else(|cause| {
            let said = quote(stdout);
            Error::internal(format!(
                "netplugin failed but error parsing its diagnostic message {said:?}: {cause}: {how}"
            ))
        });
    }
    match stderr.trim_ascii() {
        [] => Error::internal(format!("netplugin failed with no error message: {how}")),
        stderr => Error::internal(format!("netplugin failed: {:?}: {how}", quote(stderr))),
    }
}

/// Formats an exit as `exit status 1`, or as the signal that killed the child.
fn exit_text(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("killed by signal {signal} ({})", signal_name(signal)),
        (None, None) => status.to_string(),
    }
}

fn signal_name(number: i32) -> &'static str {
    const NAMES: [&str; 31] = [
        "SIGHUP",
        "SIGINT",
        "SIGQUIT",
        "SIGILL",
        "SIGTRAP",
        "SIGABRT",
        "SIGBUS",
        "SIGFPE",
        "SIGKILL",
        "SIGUSR1",
        "SIGSEGV",
        "SIGUSR2",
        "SIGPIPE",
        "SIGALRM",
        "SIGTERM",
        "SIGSTKFLT",
        "SIGCHLD",
        "SIGCONT",
        "SIGSTOP",
        "SIGTSTP",
        "SIGTTIN",
        "SIGTTOU",
        "SIGURG",
        "SIGXCPU",
        "SIGXFSZ",
        "SIGVTALRM",
        "SIGPROF",
        "SIGWINCH",
        "SIGIO",
        "SIGPWR",
        "SIGSYS",
    ];
    usize::try_from(number - 1).ok().and_then(|index| NAMES.get(index)).copied().unwrap_or("real-time")
}

/// Returns the end of a plugin's output as a string.
fn quote(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let skip = text.chars().count().saturating_sub(QUOTE_MAX);
    match skip {
        0 => text.into_owned(),
        _ => format!("…{}", text.chars().skip(skip).collect::<String>()),
    }
}

#[cfg(test)]
mod tests;
