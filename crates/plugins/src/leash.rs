//! A delegate that ends with who called it.
//!
//! A runtime whose patience is over kills weft, and asks for DEL at once. A delegate that went on by itself would make
//! what that DEL has looked for already. The kernel can end it with its parent, but only the process itself can ask
//! for that: so the delegate's process begins as this program, asks, and becomes the delegate.
//!
//! ```text
//!   weft-cni ─► weft-cni leash PARENT PROGRAM [ARGUMENT…] ─exec─► PROGRAM [ARGUMENT…]
//! ```
//!
//! Rules: the process that is started is the one that becomes the delegate: number, group, pipes and environment are
//! the same; a program that is being written is waited for as the caller would; one that cannot be run is told as a
//! plugin tells an error. Programs of iptables are held so, too. What a delegate has started itself is not on the leash,
//! but it can be told from what a runtime calls: [`DELEGATE`] is in its environment.
//!
//! Source: PR_SET_PDEATHSIG(2const); execve(2).

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use cni::Error;
use cni::runtime::exec::BUSY_MAX;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

/// The word that asks for it.
const WORD: &str = "leash";
/// How often it is tried meanwhile.
const PAUSE: Duration = Duration::from_millis(20);
/// The environment variable that every delegate has, and what it starts: the meta-plugin serves none of them.
const DELEGATE: &str = "WEFT_DELEGATE";

/// The command that runs `program` on the leash; without a way to this program's own file, the program itself.
pub(crate) fn command(program: &Path) -> Command {
    let own = Path::new("/proc/self/exe");
    let mut command = Command::new(if own.exists() { own } else { program });
    if own.exists() {
        command.arg0("weft-cni").arg(WORD).arg(std::process::id().to_string()).arg(program);
    }
    command.env(DELEGATE, "1");
    command
}

/// Refuses to be the meta-plugin of a delegate: what a definition makes its plugin say is not what the node's
/// configuration says.
pub(crate) fn refuse_delegate() -> Result<(), Error> {
    match std::env::var_os(DELEGATE) {
        None => Ok(()),
        Some(_) => Err(again()),
    }
}

/// Why the meta-plugin is not called by a delegate.
pub(crate) fn again() -> Error {
    Error::config("a plugin of a network calls the meta-plugin, which would attach the pod's networks again")
}

/// Is this such a call? Then it becomes the delegate, or says why not.
pub(crate) fn run(arguments: &[OsString]) -> Option<ExitCode> {
    let [_, word, parent, program, arguments @ ..] = arguments else { return None };
    if word != WORD {
        return None;
    }
    let error = hold(parent.to_str()?.parse().ok()?, Path::new(program), arguments);
    // Whoever called may be gone.
    let _ = serde_json::to_writer(std::io::stdout(), &error);
    Some(ExitCode::FAILURE)
}

/// Becomes the program; the error if it cannot.
fn hold(parent: u32, program: &Path, arguments: &[OsString]) -> Error {
    let failed = |cause: &dyn std::fmt::Display| Error::io(format_args!("run {}", program.display()), cause);
    if let Err(errno) = set_parent_process_death_signal(Some(Signal::KILL)) {
        return failed(&errno);
    }
    // It may have gone before the kernel was asked.
    let is_parent = |pid: Pid| u32::try_from(pid.as_raw_nonzero().get()).is_ok_and(|pid| pid == parent);
    if !getppid().is_some_and(is_parent) {
        return failed(&"who called has gone");
    }
    let until = Instant::now() + BUSY_MAX;
    loop {
        let cause = Command::new(program).args(arguments).exec();
        if cause.kind() != ErrorKind::ExecutableFileBusy || Instant::now() >= until {
            return failed(&cause);
        }
        std::thread::sleep(PAUSE);
    }
}
