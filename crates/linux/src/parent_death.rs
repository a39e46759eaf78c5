//! Child processes that the kernel kills when their parent exits.
//!
//! A container runtime that times out kills the plugin it called and asks for DEL at once. A child that continued would
//! create what that DEL has already looked for. Only the process itself can ask the kernel to be killed with its parent,
//! so the child starts as this program, asks, and then executes the other one:
//!
//! ```text
//!   weft-cni ─► weft-cni exec-with-parent PARENT PROGRAM [ARGUMENT…] ─exec─► PROGRAM [ARGUMENT…]
//! ```
//!
//! - The process that is started is the one that executes the program: pid, process group, pipes and environment stay.
//! - A program file that is being written («text file busy») is waited for.
//! - Processes that the program starts are not covered.
//!
//! Source: PR_SET_PDEATHSIG(2const); execve(2).

use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

/// First argument of a program that is started for [`exec`].
pub const COMMAND: &str = "exec-with-parent";
/// Pause between two attempts to execute a busy file.
const PAUSE: Duration = Duration::from_millis(20);

/// Returns the command that runs `program` until the calling process exits.
///
/// Where `/proc` does not show this program's own file, it is the command of `program` itself.
pub fn command(program: &Path) -> Command {
    let own = Path::new("/proc/self/exe");
    let mut command = Command::new(if own.exists() { own } else { program });
    if own.exists() {
        command.arg0("weft-cni").arg(COMMAND).arg(std::process::id().to_string()).arg(program);
    }
    command
}

/// Executes `program` in place of the calling process, to be killed when the process `parent` exits.
///
/// A busy file is tried again for `busy`. Returns only if the program cannot be executed.
pub fn exec(parent: u32, program: &Path, arguments: &[OsString], busy: Duration) -> io::Error {
    if let Err(errno) = set_parent_process_death_signal(Some(Signal::KILL)) {
        return errno.into();
    }
    // The parent may have exited before the kernel was asked.
    let is_parent = |pid: Pid| u32::try_from(pid.as_raw_nonzero().get()).is_ok_and(|pid| pid == parent);
    if !getppid().is_some_and(is_parent) {
        return io::Error::other("the parent process has exited");
    }
    let until = Instant::now() + busy;
    loop {
        let cause = Command::new(program).args(arguments).exec();
        if cause.kind() != ErrorKind::ExecutableFileBusy || Instant::now() >= until {
            return cause;
        }
        std::thread::sleep(PAUSE);
    }
}
