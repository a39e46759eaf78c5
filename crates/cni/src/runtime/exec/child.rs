//! Attending a child process: feeding it, hearing it out, and ending it if need be; one thread, no `unsafe`.
//!
//! The end is the child's exit, not the end of its output: a daemon it started may hold the pipes open
//! for ever. A process descriptor tells of the exit; where the kernel has none (before 5.3) we look
//! every few milliseconds.
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

/// How often we look after a child without a process descriptor.
const TICK: Duration = Duration::from_millis(5);

/// How often we look whether we are to stop.
const GLANCE: Duration = Duration::from_millis(100);

/// How much is read at once, in bytes.
const PIECE: usize = 16 * 1024;

/// The most a pipe holds (`/proc/sys/fs/pipe-max-size` as the kernel sets it), in bytes.
const PIPE_MAX: usize = 1 << 20;

/// Why a child was ended.
#[derive(Debug)]
pub(super) enum Fault {
    /// The deadline passed.
    Late,
    /// We are to stop.
    Stopped,
    /// It printed more than [`STDOUT_MAX`] bytes.
    Verbose,
    /// We could not attend to it.
    System(io::Error),
}

/// How long a child may run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Limits {
    /// The deadline.
    pub(super) until: Option<Instant>,
    /// Set when we are to stop.
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

/// Sees `child`, leader of its process group, to its end; on a fault the group is killed.
///
/// What it printed until then is returned in any case.
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
        // Look for the exit first: all it printed before is in the pipes by then.
        let status = group.exited()?;
        streams.exchange()?;
        if let Some(status) = status {
            return Ok(status);
        }
    }
}

/// Sleeps until a stream can move, the child has exited, or the time is over.
fn wait(streams: &Streams<'_>, exit: Option<&OwnedFd>, timeout: Option<Duration>) -> Result<(), Fault> {
    let mut list = Vec::with_capacity(4);
    list.extend(streams.stdin.as_ref().map(|fd| PollFd::new(fd, PollFlags::OUT)));
    list.extend(streams.stdout.pipe.as_ref().map(|fd| PollFd::new(fd, PollFlags::IN)));
    list.extend(streams.stderr.pipe.as_ref().map(|fd| PollFd::new(fd, PollFlags::IN)));
    list.extend(exit.map(|fd| PollFd::new(fd, PollFlags::IN)));
    // A time that does not fit is as good as none.
    let timeout = timeout.and_then(|left| Timespec::try_from(left).ok());
    match poll(&mut list, timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(cause) => Err(cause.into()),
    }
}

/// A child and what it started, killed together unless the child has ended by itself.
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
        // Until we reap the leader its number, and with it the group's, cannot be given to another.
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.wait();
    }
}

/// The three pipes of a child, none of which ever blocks us.
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

    /// Moves what can be moved now.
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

    /// A child need not read what it is given: that its end is closed is no fault.
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
    /// Reads what is there; `bound` looks at the bytes after each piece.
    ///
    /// No more than a pipe can hold at once: who writes without end must not keep us from the clock.
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
    fn who_is_to_stop_ends_the_child_and_what_it_started() {
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
        // A kill takes effect when the kernel comes to it; nobody may have reaped it yet.
        let latest = Instant::now() + Duration::from_secs(20);
        let status = || std::fs::read_to_string(format!("/proc/{started}/status")).unwrap_or_default();
        while !(status().is_empty() || status().contains("State:\tZ")) {
            assert!(Instant::now() < latest, "{}", status());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn without_a_process_descriptor_the_exit_is_found_by_looking() {
        let (status, output) =
            attend_by(None, shell("cat; sleep 0.05; exit 3"), b"hello", within(Duration::from_secs(20)));
        assert_eq!((status.unwrap().code(), output.stdout.as_slice()), (Some(3), &b"hello"[..]));

        let (late, _) = attend_by(None, shell("sleep 60"), b"", within(Duration::from_millis(50)));
        assert!(matches!(late, Err(Fault::Late)), "{late:?}");
    }

    #[test]
    fn output_written_just_before_the_exit_is_heard() {
        for _ in 0..50 {
            let (_, output) = attend(shell("printf out; printf err >&2"), b"", Limits::default());
            assert_eq!((output.stdout.as_slice(), output.stderr.as_slice()), (&b"out"[..], &b"err"[..]));
        }
    }

    #[test]
    fn endless_chatter_on_stderr_does_not_hide_the_deadline() {
        let soon = within(Duration::from_millis(200));
        let (late, output) = attend(shell("exec yes chatter >&2"), b"", soon);
        assert!(matches!(late, Err(Fault::Late)), "{late:?}");
        assert_eq!(output.stderr.len(), STDERR_MAX);
    }
}
