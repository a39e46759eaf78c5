//! Supervises a child process in one thread and without `unsafe`: writes stdin, reads the output, and kills the child
//! if necessary.
//!
//! The child's exit counts, not the end of the output, because a daemon that it started may hold the pipes open
//! forever. A process descriptor signals the exit; kernels before 5.3 have none, so there the exit is polled every few
//! milliseconds.
//!
//! Source: man pages pidfd_open(2), poll(2), pipe(7).

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, ChildStdin, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::ioctl_fionbio;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use super::{Output, STDERR_MAX, STDOUT_MAX};

/// Interval at which a child without a process descriptor is polled.
const TICK: Duration = Duration::from_millis(5);

/// Interval at which the stop flag is polled.
const GLANCE: Duration = Duration::from_millis(100);

/// Bytes per read.
const PIECE: usize = 16 * 1024;

/// Maximum pipe capacity in bytes (the kernel's default for `/proc/sys/fs/pipe-max-size`).
const PIPE_MAX: usize = 1 << 20;

/// Reason why a child was killed.
#[derive(Debug)]
pub(super) enum Fault {
    /// The deadline passed.
    Late,
    /// The stop flag was set.
    Stopped,
    /// The child printed more than [`STDOUT_MAX`] bytes.
    Verbose,
    /// A system call failed.
    System(io::Error),
}

/// Limits on how long a child may run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Limits {
    /// Deadline.
    pub(super) until: Option<Instant>,
    /// Flag that is set when weft must stop.
    pub(super) stop: Option<&'static AtomicBool>,
}

impl From<io::Error> for Fault {
    fn from(cause: io::Error) -> Fault {
        Fault::System(cause)
    }
}

impl From<rustix::io::Errno> for Fault {
    fn from(cause: rustix::io::Errno) -> Fault {
        Fault::System(cause.into())
    }
}

/// Supervises `child`, which leads a process group, until it exits; kills the group if something goes wrong.
///
/// Returns the output so far in any case.
pub(super) fn attend(child: Child, stdin: &[u8], limits: Limits) -> (Result<ExitStatus, Fault>, Output) {
    let exit = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).ok();
    attend_by(exit.as_ref(), child, stdin, limits)
}

fn attend_by(
    exit: Option<&OwnedFd>,
    child: Child,
    stdin: &[u8],
    limits: Limits,
) -> (Result<ExitStatus, Fault>, Output) {
    let mut group = Group { child, ended: false };
    let mut streams = Streams::of(&mut group.child, stdin);
    let status = streams.unblock().and_then(|()| converse(exit, &mut group, &mut streams, limits));
    drop(group);
    (status, streams.finish())
}

fn converse(
    exit: Option<&OwnedFd>,
    group: &mut Group,
    streams: &mut Streams<'_>,
    Limits { until, stop }: Limits,
) -> Result<ExitStatus, Fault> {
    loop {
        if stop.is_some_and(|stop| stop.load(Ordering::Relaxed)) {
            return Err(Fault::Stopped);
        }
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Err(Fault::Late);
        }
        let pauses = [exit.is_none().then_some(TICK), stop.map(|_| GLANCE), left];
        let timeout = pauses.into_iter().flatten().min();
        wait(streams, exit, timeout)?;
        // The exit must be checked first: everything that the child printed before is then in the pipes.
        let status = group.exited()?;
        streams.exchange()?;
        if let Some(status) = status {
            return Ok(status);
        }
    }
}

/// Sleeps until a stream is ready, the child has exited, or the time is over.
fn wait(streams: &Streams<'_>, exit: Option<&OwnedFd>, timeout: Option<Duration>) -> Result<(), Fault> {
    let mut list = Vec::with_capacity(4);
    list.extend(streams.stdin.as_ref().map(|fd| PollFd::new(fd, PollFlags::OUT)));
    list.extend(streams.stdout.pipe.as_ref().map(|fd| PollFd::new(fd, PollFlags::IN)));
    list.extend(streams.stderr.pipe.as_ref().map(|fd| PollFd::new(fd, PollFlags::IN)));
    list.extend(exit.map(|fd| PollFd::new(fd, PollFlags::IN)));
    // A timeout too long to be expressed is as good as none.
    let timeout = timeout.and_then(|left| Timespec::try_from(left).ok());
    match poll(&mut list, timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(cause) => Err(cause.into()),
    }
}

/// Child and the process group, which is killed unless the child has exited.
struct Group {
    child: Child,
    ended: bool,
}

impl Group {
    fn exited(&mut self) -> io::Result<Option<ExitStatus>> {
        let status = self.child.try_wait()?;
        self.ended |= status.is_some();
        Ok(status)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        // Until the leader is reaped, its pid, which is also the group's, cannot be reused.
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.wait();
    }
}

/// A child's three pipes, in non-blocking mode.
struct Streams<'a> {
    stdin: Option<ChildStdin>,
    rest: &'a [u8],
    stdout: Stream<std::process::ChildStdout>,
    stderr: Stream<std::process::ChildStderr>,
}

struct Stream<P> {
    pipe: Option<P>,
    bytes: Vec<u8>,
}

impl<'a> Streams<'a> {
    fn of(child: &mut Child, rest: &'a [u8]) -> Streams<'a> {
        Streams {
            stdin: child.stdin.take(),
            rest,
            stdout: Stream { pipe: child.stdout.take(), bytes: Vec::new() },
            stderr: Stream { pipe: child.stderr.take(), bytes: Vec::new() },
        }
    }

    fn unblock(&self) -> Result<(), Fault> {
        let stdin = self.stdin.as_ref().map(AsFd::as_fd);
        let stdout = self.stdout.pipe.as_ref().map(AsFd::as_fd);
        let stderr = self.stderr.pipe.as_ref().map(AsFd::as_fd);
        for fd in [stdin, stdout, stderr].into_iter().flatten() {
            ioctl_fionbio(fd, true)?;
        }
        Ok(())
    }

    /// Reads and writes without blocking.
    fn exchange(&mut self) -> Result<(), Fault> {
        self.feed();
        self.stdout.drain(|bytes| match bytes.len() > STDOUT_MAX {
            true => Err(Fault::Verbose),
            false => Ok(()),
        })?;
        self.stderr.drain(|bytes| {
            if bytes.len() > 2 * STDERR_MAX {
                bytes.drain(..bytes.len() - STDERR_MAX);
            }
            Ok(())
        })
    }

    /// Writes stdin. A closed pipe is fine, because a child need not read it.
    fn feed(&mut self) {
        while let Some(stdin) = &mut self.stdin {
            let written = match self.rest {
                [] => Ok(0),
                rest => stdin.write(rest),
            };
            match written {
                Ok(count) if count > 0 => self.rest = &self.rest[count..],
                Err(cause) if cause.kind() == ErrorKind::Interrupted => {}
                Err(cause) if cause.kind() == ErrorKind::WouldBlock => return,
                _ => self.stdin = None,
            }
        }
    }

    fn finish(self) -> Output {
        let mut stderr = self.stderr.bytes;
        stderr.drain(..stderr.len().saturating_sub(STDERR_MAX));
        Output { stdout: self.stdout.bytes, stderr }
    }
}

impl<P: Read> Stream<P> {
    /// Reads the available output; `bound` checks the bytes after each read.
    ///
    /// Reads at most as much as a pipe can hold, so that a child that prints without end cannot hide the deadline.
    fn drain(&mut self, bound: impl Fn(&mut Vec<u8>) -> Result<(), Fault>) -> Result<(), Fault> {
        let mut piece = [0; PIECE];
        for _ in 0..PIPE_MAX / PIECE {
            let Some(pipe) = &mut self.pipe else { return Ok(()) };
            match pipe.read(&mut piece) {
                Ok(0) => self.pipe = None,
                Ok(count) => {
                    self.bytes.extend_from_slice(&piece[..count]);
                    bound(&mut self.bytes)?;
                }
                Err(cause) if cause.kind() == ErrorKind::Interrupted => {}
                Err(cause) if cause.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(cause) => return Err(cause.into()),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    use super::*;

    fn shell(script: &str) -> Child {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]).process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    }

    fn within(time: Duration) -> Limits {
        Limits { until: Some(Instant::now() + time), stop: None }
    }

    #[test]
    fn exec_stop_flag_kills_the_child_and_its_group() {
        static STOP: AtomicBool = AtomicBool::new(false);
        let limits = Limits { stop: Some(&STOP), ..within(Duration::from_secs(20)) };
        let stopped = std::thread::scope(|scope| {
            let attended = scope.spawn(|| attend(shell("sleep 60 & echo $!; wait"), b"", limits));
            std::thread::sleep(Duration::from_millis(300));
            STOP.store(true, Ordering::Relaxed);
            attended.join().unwrap()
        });
        let (Err(Fault::Stopped), output) = stopped else { panic!("{stopped:?}") };
        let started: i32 = String::from_utf8(output.stdout).unwrap().trim().parse().unwrap();
        // The kernel delivers a kill asynchronously, and the process may not have been reaped yet.
        let latest = Instant::now() + Duration::from_secs(20);
        let status = || std::fs::read_to_string(format!("/proc/{started}/status")).unwrap_or_default();
        while !(status().is_empty() || status().contains("State:\tZ")) {
            assert!(Instant::now() < latest, "{}", status());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn exec_exit_is_polled_without_a_process_descriptor() {
        let (status, output) =
            attend_by(None, shell("cat; sleep 0.05; exit 3"), b"hello", within(Duration::from_secs(20)));
        assert_eq!((status.unwrap().code(), output.stdout.as_slice()), (Some(3), &b"hello"[..]));

        let (late, _) = attend_by(None, shell("sleep 60"), b"", within(Duration::from_millis(50)));
        assert!(matches!(late, Err(Fault::Late)), "{late:?}");
    }

    #[test]
    fn exec_output_before_the_exit_is_complete() {
        for _ in 0..50 {
            let (_, output) = attend(shell("printf out; printf err >&2"), b"", Limits::default());
            assert_eq!((output.stdout.as_slice(), output.stderr.as_slice()), (&b"out"[..], &b"err"[..]));
        }
    }

    #[test]
    fn exec_endless_stderr_does_not_hide_the_deadline() {
        let soon = within(Duration::from_millis(200));
        let (late, output) = attend(shell("exec yes chatter >&2"), b"", soon);
        assert!(matches!(late, Err(Fault::Late)), "{late:?}");
        assert_eq!(output.stderr.len(), STDERR_MAX);
    }
}
