//! Child processes that the kernel kills when the parent exits, and children that wait for that exit.
//!
//! A container runtime that times out kills the plugin it called and calls DEL at once. If the plugin's child went on,
//! it would create what that DEL has already looked for. Only a process itself can ask the kernel to be killed with the
//! parent. So the child starts as this program, asks the kernel, and then executes the other program:
//!
//! ```text
//!   weft-cni ─► weft-cni exec-with-parent PARENT PROGRAM [ARGUMENT…] ─exec─► PROGRAM [ARGUMENT…]
//! ```
//!
//! - The process that is started also executes the program, so pid, process group, pipes and environment stay the same.
//! - While a program file is open for writing («text file busy»), executing it is retried.
//! - Processes that the program starts itself are not covered.
//!
//! The opposite is a child that begins to work when the parent has exited: [`wait`].
//!
//! Source: PR_SET_PDEATHSIG(2const); execve(2); pidfd_open(2).

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, getppid, pidfd_open, set_parent_process_death_signal};

/// First argument that makes the program call [`exec`].
pub const COMMAND: &str = "exec-with-parent";
/// Pause between two attempts to execute a busy file.
const PAUSE: Duration = Duration::from_millis(20);

/// Returns the command that runs `program` until the calling process exits.
///
/// If `/proc` does not show this program's own file, `program` is started directly.
pub fn command(program: &Path) -> Command {
    let own = Path::new("/proc/self/exe");
    let mut command = Command::new(if own.exists() { own } else { program });
    if own.exists() {
        command.arg0("weft-cni").arg(COMMAND).arg(std::process::id().to_string()).arg(program);
    }
    command
}

/// Executes `program` in place of the calling process, so that it is killed when the process `parent` exits.
///
/// A busy file is retried for `busy`. Returns only if the program cannot be executed.
pub fn exec(parent: u32, program: &Path, arguments: &[OsString], busy: Duration) -> io::Error {
    if let Err(errno) = set_parent_process_death_signal(Some(Signal::KILL)) {
        return errno.into();
    }
    // The parent may have exited before the kernel was asked.
    if !is_parent(parent) {
        return io::Error::other("the parent process has exited");
    }
    if is_for_a_shell(program) {
        return Errno::NOEXEC.into();
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

/// Whether execvp(3) would run a shell with this program, because the kernel does not know the format. glibc does that;
/// the library of the released programs does not.
fn is_for_a_shell(program: &Path) -> bool {
    let head = |path: &Path| {
        let mut head = Vec::new();
        File::open(path).and_then(|file| file.take(20).read_to_end(&mut head)).map(|_| head)
    };
    // Class, byte order and machine of an ELF file.
    let kind = |head: &[u8]| Some((head.get(..6)?.to_vec(), head.get(18..20)?.to_vec()));
    let own = || head(Path::new("/proc/self/exe")).ok().and_then(|own| kind(&own));
    let is_foreign = |found: Vec<u8>| !found.starts_with(b"#!") && kind(&found) != own();
    cfg!(target_env = "gnu") && head(program).is_ok_and(is_foreign)
}

/// Waits until the process `parent`, which started the calling process, has exited.
///
/// # Errors
/// pidfd_open(2) or poll(2) failed, or `parent` is not a process id.
pub fn wait(parent: u32) -> io::Result<()> {
    let pid = i32::try_from(parent).ok().and_then(Pid::from_raw).ok_or(ErrorKind::InvalidInput)?;
    let exit = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(exit) => exit,
        Err(Errno::SRCH) => return Ok(()),
        Err(errno) => return Err(errno.into()),
    };
    // If the parent exited early, its number may have been reused. So this waits only while that process is still the
    // parent.
    while is_parent(parent) {
        match poll(&mut [PollFd::new(&exit, PollFlags::IN)], None) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Whether `parent` is the calling process's parent at the moment.
fn is_parent(parent: u32) -> bool {
    getppid().is_some_and(|pid| u32::try_from(pid.as_raw_nonzero().get()).is_ok_and(|pid| pid == parent))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    #[test]
    fn parent_death_wait_ignores_other_processes() {
        let mut child = Command::new("true").spawn().unwrap();
        let gone = child.id();
        child.wait().unwrap();
        wait(gone).unwrap();
        // The process is alive, but it did not start this one.
        wait(std::process::id()).unwrap();
        assert_eq!(wait(0).unwrap_err().kind(), ErrorKind::InvalidInput);
    }

    #[test]
    fn parent_death_wait_blocks_until_the_parent_exits() {
        let parent = u32::try_from(getppid().unwrap().as_raw_nonzero().get()).unwrap();
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || sender.send(wait(parent).is_ok()));
        assert!(receiver.recv_timeout(Duration::from_millis(200)).is_err());
    }
}
