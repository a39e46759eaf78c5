//! `weft-test-killer K PROGRAM ARGUMENT…`: runs a program and kills it, as `kill -9` does, right before the K-th system
//! call with an effect.
//!
//! Calls in all threads count together, in order. Calls in child processes do not count, and the children are killed
//! with it. Exit code 200 means that the program was killed; standard error then names the system call. Otherwise the
//! program ended earlier, and the exit code is passed on.
//!
//! `weft-test-killer --stop COMMAND PROGRAM ARGUMENT…`: runs a program to completion and stops, as `kill -STOP` does,
//! each child process whose first argument is COMMAND, before the first instruction. The child is still stopped when
//! the program has ended. For each, standard error has a line `stopped PID`. Other children are killed when the program
//! ends.
//!
//! strace cannot replace this program: it counts each thread's calls separately, so it cannot kill at most of these
//! points.
//!
//! Source: ptrace(2).

#![allow(clippy::panic, clippy::expect_used, reason = "a test's support fails by panicking")]

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode};

use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// Exit code for a killed program.
const KILLED: u8 = 200;

/// System calls that change something outside the process, or mark the moment before or after a change.
const EFFECTS: &[(nix::libc::c_long, &str)] = &[
    (nix::libc::SYS_sendto, "sendto"),
    (nix::libc::SYS_sendmsg, "sendmsg"),
    (nix::libc::SYS_write, "write"),
    (nix::libc::SYS_pwrite64, "pwrite64"),
    (nix::libc::SYS_ftruncate, "ftruncate"),
    (nix::libc::SYS_renameat, "renameat"),
    (nix::libc::SYS_renameat2, "renameat2"),
    (nix::libc::SYS_unlinkat, "unlinkat"),
    (nix::libc::SYS_linkat, "linkat"),
    (nix::libc::SYS_symlinkat, "symlinkat"),
    (nix::libc::SYS_mkdirat, "mkdirat"),
    (nix::libc::SYS_fsync, "fsync"),
    (nix::libc::SYS_fdatasync, "fdatasync"),
    (nix::libc::SYS_flock, "flock"),
    (nix::libc::SYS_utimensat, "utimensat"),
    (nix::libc::SYS_fsetxattr, "fsetxattr"),
    (nix::libc::SYS_setns, "setns"),
    (nix::libc::SYS_clone3, "clone3"),
    (nix::libc::SYS_exit_group, "exit_group"),
    #[cfg(target_arch = "x86_64")]
    (nix::libc::SYS_rename, "rename"),
    #[cfg(target_arch = "x86_64")]
    (nix::libc::SYS_unlink, "unlink"),
    #[cfg(target_arch = "x86_64")]
    (nix::libc::SYS_link, "link"),
    #[cfg(target_arch = "x86_64")]
    (nix::libc::SYS_symlink, "symlink"),
    #[cfg(target_arch = "x86_64")]
    (nix::libc::SYS_mkdir, "mkdir"),
    #[cfg(target_arch = "x86_64")]
    (nix::libc::SYS_rmdir, "rmdir"),
];

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let mut next = || arguments.next().and_then(|text| text.into_string().ok());
    let what = next().expect("K or --stop");
    let place = match what.as_str() {
        "--stop" => Place::Child(next().expect("the first argument of a child")),
        number => Place::Call(number.parse().expect("K, the number of the call")),
    };
    // The shell stops itself, so that no call is missed before tracing begins.
    let mut child = Command::new("sh")
        .args(["-c", "kill -STOP $$; exec \"$0\" \"$@\""])
        .args(arguments)
        .spawn()
        .expect("start a shell");
    let main = Pid::from_raw(child.id().cast_signed());
    let watched = Watched {
        main,
        running: false,
        place,
        not_executed: BTreeSet::new(),
        early: BTreeSet::new(),
        status: None,
    };
    match watched.run() {
        End::Killed(before) => {
            eprintln!("killed before {before}");
            // Child processes end with this tracer.
            let _ = child.kill();
            reap(Pid::from_raw(child.id().cast_signed()));
            let _ = child.wait();
            ExitCode::from(KILLED)
        }
        End::Exited(status) => {
            let status = std::process::ExitStatus::from_raw(status);
            ExitCode::from(status.code().map_or(u8::MAX, |code| code.to_le_bytes()[0]))
        }
    }
}

/// Way in which the program ended.
enum End {
    Killed(&'static str),
    Exited(i32),
}

/// Where this program acts.
enum Place {
    /// Kills the program after this many more calls, including the last one.
    Call(u64),
    /// Stops child processes with this first argument.
    Child(String),
}

/// Traced program.
struct Watched {
    main: Pid,
    /// Whether the shell has become the program.
    running: bool,
    place: Place,
    /// Child processes that have not executed a program yet. A parent may end before the event about a child is
    /// reported.
    not_executed: BTreeSet<Pid>,
    /// Child processes that executed a program, or ended, before the parent's event was reported.
    early: BTreeSet<Pid>,
    /// Exit status, once the program has ended.
    status: Option<i32>,
}

impl Watched {
    fn run(mut self) -> End {
        let stopped = waitpid(self.main, Some(WaitPidFlag::WUNTRACED)).expect("wait for the shell");
        assert!(matches!(stopped, WaitStatus::Stopped(..)), "{stopped:?}");
        let options = Options::PTRACE_O_TRACESYSGOOD
            | Options::PTRACE_O_TRACECLONE
            | Options::PTRACE_O_TRACEFORK
            | Options::PTRACE_O_TRACEVFORK
            | Options::PTRACE_O_TRACEEXEC
            | Options::PTRACE_O_EXITKILL;
        ptrace::seize(self.main, options).expect("watch the shell");
        kill(self.main, Signal::SIGCONT).expect("let it go on");
        loop {
            let event = waitpid(None::<Pid>, Some(WaitPidFlag::__WALL)).expect("wait for an event");
            match event {
                WaitStatus::Exited(pid, code) => self.note_end(pid, code << 8),
                WaitStatus::Signaled(pid, signal, _) => self.note_end(pid, signal as i32),
                WaitStatus::PtraceSyscall(pid) => {
                    if begins(pid)
                        && let Some(name) = self.counted(pid)
                    {
                        return End::Killed(name);
                    }
                    go_on(pid, None);
                }
                WaitStatus::PtraceEvent(pid, _, what) => {
                    self.note_child(pid, what);
                    if what != ptrace::Event::PTRACE_EVENT_EXEC as i32 {
                        go_on(pid, None);
                        continue;
                    }
                    self.running |= pid == self.main;
                    if self.is_meant(pid) {
                        stop(pid);
                    } else {
                        go_on(pid, None);
                    }
                    self.note_execution(pid);
                }
                WaitStatus::Stopped(pid, signal) => {
                    let passed = !matches!(signal, Signal::SIGSTOP | Signal::SIGCONT | Signal::SIGTRAP);
                    go_on(pid, passed.then_some(signal));
                }
                _ => {}
            }
            if let Some(status) = self.status
                && self.not_executed.is_empty()
            {
                return End::Exited(status);
            }
        }
    }

    /// Notes a new child process that should execute a program.
    fn note_child(&mut self, pid: Pid, event: i32) {
        let forks = [ptrace::Event::PTRACE_EVENT_FORK, ptrace::Event::PTRACE_EVENT_VFORK];
        if matches!(self.place, Place::Child(_))
            && forks.iter().any(|fork| *fork as i32 == event)
            && let Ok(child) = ptrace::getevent(pid)
        {
            let child = Pid::from_raw(i32::try_from(child).expect("a process id"));
            if !self.early.remove(&child) {
                self.not_executed.insert(child);
            }
        }
    }

    /// Notes that a process has executed a program, or ended.
    fn note_execution(&mut self, pid: Pid) {
        if !self.not_executed.remove(&pid) {
            self.early.insert(pid);
        }
    }

    fn note_end(&mut self, pid: Pid, status: i32) {
        self.note_execution(pid);
        if pid == self.main {
            self.status = Some(status);
        }
    }

    /// Counts the call that `pid` is about to make; returns the name if the program must be killed before it.
    fn counted(&mut self, pid: Pid) -> Option<&'static str> {
        let number = call_of(pid)?;
        let (_, name) = EFFECTS.iter().find(|(known, _)| *known == number)?;
        let Place::Call(left) = &mut self.place else { return None };
        if !self.running || group_of(pid) != Some(self.main) {
            return None;
        }
        *left -= 1;
        (*left == 0).then_some(*name)
    }

    /// Whether a process is a child to be stopped.
    fn is_meant(&self, pid: Pid) -> bool {
        let Place::Child(command) = &self.place else { return false };
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        pid != self.main && line.split(|byte| *byte == 0).nth(1) == Some(command.as_bytes())
    }
}

/// Stops a process and ends tracing. The signal is delivered before the process executes another instruction.
fn stop(pid: Pid) {
    kill(pid, Signal::SIGSTOP).expect("stop a child");
    ptrace::detach(pid, None).expect("end the tracing of a child");
    eprintln!("stopped {pid}");
}

/// Reaps the threads one by one, because the process can be reaped only after them.
fn reap(main: Pid) {
    loop {
        match waitpid(None::<Pid>, Some(WaitPidFlag::__WALL)) {
            Ok(WaitStatus::Exited(pid, _) | WaitStatus::Signaled(pid, _, _)) if pid == main => return,
            Err(nix::errno::Errno::ECHILD) => return,
            _ => {}
        }
    }
}

/// Continues a thread. A thread that has just ended is not an error.
fn go_on(pid: Pid, signal: Option<Signal>) {
    let _ = ptrace::syscall(pid, signal);
}

/// Whether the stop is at the beginning of a call; the end is reported, too.
fn begins(pid: Pid) -> bool {
    ptrace::syscall_info(pid).is_ok_and(|info| info.op == nix::libc::PTRACE_SYSCALL_INFO_ENTRY)
}

/// Returns the number of the call that a thread is in.
fn call_of(pid: Pid) -> Option<nix::libc::c_long> {
    let registers = ptrace::getregs(pid).ok()?;
    #[cfg(target_arch = "x86_64")]
    let number = registers.orig_rax;
    #[cfg(target_arch = "aarch64")]
    let number = registers.regs[8];
    nix::libc::c_long::try_from(number).ok()
}

/// Returns the process that a thread belongs to.
fn group_of(pid: Pid) -> Option<Pid> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
    line.trim().parse().ok().map(Pid::from_raw)
}
