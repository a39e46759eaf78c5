//! Runs programs inside a pretend host or pod, with a deadline.
//!
//! - Nothing waits forever: a program that still runs at the deadline is killed, and the test fails with the output.
//! - A background program is killed when the handle is dropped.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use serde_json::Value;

use crate::world::World;

/// Default deadline.
const DEADLINE: Duration = Duration::from_secs(30);

/// Maximum size of a program's output in bytes; more fails the test.
const OUTPUT_LIMIT: usize = 64 << 20;

/// `PIPE_BUF`: how many bytes a writable pipe accepts without blocking; pipe(7).
const PIPE_PIECE: usize = 4096;

/// Program to run.
#[derive(Debug)]
#[must_use = "nothing runs before `finish` or `start`"]
pub struct Command {
    world: World,
    inner: std::process::Command,
    stdin: Vec<u8>,
    deadline: Duration,
    line: String,
}

/// Program that has ended.
#[derive(Debug, Clone)]
pub struct Finished {
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// Exit status; `None` if a signal ended the program.
    pub code: Option<i32>,
    /// Signal that ended the program, if any.
    pub signal: Option<i32>,
    /// Wall-clock time from start to end.
    pub took: Duration,
    /// Command line, for messages.
    line: String,
}

/// Program that runs in the background; killed when dropped.
#[derive(Debug)]
pub struct Running {
    child: Child,
    line: String,
}

// === impl Command ===

impl Command {
    pub(crate) fn new(world: &World, program: &OsStr) -> Command {
        let mut inner = std::process::Command::new(program);
        inner.stdout(Stdio::piped()).stderr(Stdio::piped());
        let line = program.to_string_lossy().into_owned();
        Command { world: world.clone(), inner, stdin: Vec::new(), deadline: DEADLINE, line }
    }

    /// Adds arguments.
    pub fn args<A: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = A>) -> Command {
        for argument in args {
            self.line.push(' ');
            self.line.push_str(&argument.as_ref().to_string_lossy());
            self.inner.arg(argument);
        }
        self
    }

    /// Sets one environment variable.
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Command {
        self.inner.env(name, value);
        self
    }

    /// Starts with an environment that contains only `PATH`.
    pub fn clean_environment(mut self) -> Command {
        self.inner
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/usr/sbin:/usr/bin")));
        self
    }

    /// Sets standard input.
    pub fn stdin(mut self, bytes: impl Into<Vec<u8>>) -> Command {
        self.stdin = bytes.into();
        self
    }

    /// Sets the deadline.
    pub fn deadline(mut self, deadline: Duration) -> Command {
        self.deadline = deadline;
        self
    }

    /// Runs the program until it ends, whether it succeeds or not.
    ///
    /// # Panics
    /// The program cannot be started, still runs at the deadline, prints more than 64 MiB, or leaves a process that
    /// holds the output open.
    #[track_caller]
    pub fn finish(mut self) -> Finished {
        let started = Instant::now();
        self.inner.stdin(Stdio::piped());
        let mut child = self.spawn();
        let Command { world: _, inner: _, stdin, deadline, line } = self;
        let mut talk = Conversation::new(&mut child, stdin);
        let complete = talk.run(started + deadline);
        let [stdout, stderr] = talk.texts();
        if !complete {
            let ended = child.try_wait().expect("poll the child").is_some();
            // The program may have ended already.
            let _ = child.kill();
            let _ = child.wait();
            let what = if ended { "left a process that holds its output open" } else { "was killed" };
            panic!("`{line}` had not ended after {deadline:?} and {what}; it had printed:\n{stdout}{stderr}");
        }
        let status = child.wait().expect("wait for the child");
        Finished {
            stdout,
            stderr,
            code: status.code(),
            signal: status.signal(),
            took: started.elapsed(),
            line,
        }
    }

    /// Starts the program in the background without input; the output becomes part of the test's output.
    #[track_caller]
    pub fn start(mut self) -> Running {
        self.inner.stdin(Stdio::null()).stdout(Stdio::inherit()).stderr(Stdio::inherit());
        let child = self.spawn();
        Running { child, line: self.line }
    }

    /// Starts the program with an input that stays open for as long as the handle and this process exist. A program
    /// that reads this input therefore ends with them, however this process ends.
    #[track_caller]
    pub fn start_tied(mut self) -> Running {
        self.inner.stdin(Stdio::piped()).stdout(Stdio::inherit()).stderr(Stdio::inherit());
        let child = self.spawn();
        Running { child, line: self.line }
    }

    #[track_caller]
    fn spawn(&mut self) -> Child {
        let Command { world, inner, line, .. } = self;
        let started = world.run(|| inner.spawn());
        started.unwrap_or_else(|error| panic!("start `{line}`: {error}"))
    }
}

/// Waits until `child` ends; kills it at the deadline and returns `None`.
fn wait(child: &mut Child, deadline: Duration) -> Option<ExitStatus> {
    let process = descriptor(child);
    let until = Instant::now() + deadline;
    if wait_ready(&mut [PollFd::new(&process, PollFlags::IN)], until) {
        return Some(child.wait().expect("wait for the child"));
    }
    child.kill().expect("kill the child");
    child.wait().expect("wait for the child");
    None
}

fn descriptor(child: &Child) -> OwnedFd {
    pidfd_open(Pid::from_child(child), PidfdFlags::empty()).expect("a pidfd of the child")
}

/// Waits for any of `descriptors`; returns false at `until`.
fn wait_ready(descriptors: &mut [PollFd<'_>], until: Instant) -> bool {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).expect("a deadline in this century");
        match poll(descriptors, Some(&timeout)) {
            Ok(ready) => return ready > 0,
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => panic!("wait for a child: {errno}"),
        }
    }
}

// === impl Conversation ===

/// One child's input and both outputs, served concurrently on one thread. Neither side waits for a full pipe, and the
/// deadline also covers a leftover process that holds the output open.
struct Conversation {
    process: Option<OwnedFd>,
    stdin: Option<(ChildStdin, Vec<u8>)>,
    outputs: [(Option<File>, Vec<u8>); 2],
}

impl Conversation {
    fn new(child: &mut Child, input: Vec<u8>) -> Conversation {
        let stdin = child.stdin.take().map(|pipe| (pipe, input));
        let stdout = child.stdout.take().map(|pipe| File::from(OwnedFd::from(pipe)));
        let stderr = child.stderr.take().map(|pipe| File::from(OwnedFd::from(pipe)));
        Conversation {
            process: Some(descriptor(child)),
            stdin,
            outputs: [(stdout, Vec::new()), (stderr, Vec::new())],
        }
    }

    /// Runs until the child has ended and both outputs are closed; returns false at `until`.
    fn run(&mut self, until: Instant) -> bool {
        while self.process.is_some() || self.outputs.iter().any(|(pipe, _)| pipe.is_some()) {
            if self.stdin.as_ref().is_some_and(|(_, left)| left.is_empty()) {
                self.stdin = None;
            }
            let mut waiting = Vec::with_capacity(4);
            waiting.extend(self.process.as_ref().map(|process| PollFd::new(process, PollFlags::IN)));
            waiting.extend(
                self.outputs.iter().filter_map(|(pipe, _)| Some(PollFd::new(pipe.as_ref()?, PollFlags::IN))),
            );
            waiting.extend(self.stdin.as_ref().map(|(pipe, _)| PollFd::new(pipe, PollFlags::OUT)));
            if !wait_ready(&mut waiting, until) {
                return false;
            }
            let ready: Vec<bool> =
                waiting.iter().map(|descriptor| !descriptor.revents().is_empty()).collect();
            self.step(&ready);
        }
        true
    }

    /// Reads and writes what is possible without waiting; `ready` has the same order as in `run`.
    fn step(&mut self, ready: &[bool]) {
        let mut ready = ready.iter().copied();
        if self.process.is_some() && ready.next() == Some(true) {
            self.process = None;
        }
        for (pipe, bytes) in &mut self.outputs {
            if pipe.is_some() && ready.next() == Some(true) {
                read_some(pipe, bytes);
            }
        }
        if let Some((pipe, left)) = &mut self.stdin
            && ready.next() == Some(true)
        {
            let piece = left.len().min(PIPE_PIECE);
            match pipe.write(&left[..piece]) {
                Ok(written) => drop(left.drain(..written)),
                // A program need not read its input, so a broken pipe is not an error.
                Err(_) => self.stdin = None,
            }
        }
    }

    fn texts(self) -> [String; 2] {
        self.outputs.map(|(_, bytes)| String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// Reads what is available from a readable pipe; closes it at the end.
fn read_some(pipe: &mut Option<File>, bytes: &mut Vec<u8>) {
    let mut piece = [0; 16 * 1024];
    let length = pipe.as_mut().map_or(0, |pipe| pipe.read(&mut piece).expect("read a child's output"));
    bytes.extend_from_slice(&piece[..length]);
    assert!(bytes.len() <= OUTPUT_LIMIT, "a program printed more than {OUTPUT_LIMIT} bytes");
    if length == 0 {
        *pipe = None;
    }
}

// === impl Finished ===

impl Finished {
    /// Requires that the program succeeded.
    ///
    /// # Panics
    /// The exit status is not 0; the message contains the program's output.
    #[track_caller]
    pub fn success(self) -> Finished {
        assert!(self.code == Some(0), "{self}");
        self
    }

    /// Parses standard output as JSON.
    ///
    /// # Panics
    /// It is not JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("not JSON ({error}): {self}"))
    }
}

impl std::fmt::Display for Finished {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Finished { stdout, stderr, code, signal, took, line } = self;
        match (code, signal) {
            (Some(code), _) => write!(f, "`{line}` exited with {code} after {took:?}")?,
            (None, Some(signal)) => write!(f, "`{line}` was ended by signal {signal} after {took:?}")?,
            (None, None) => write!(f, "`{line}` ended after {took:?}")?,
        }
        write!(f, "\n--- stdout\n{stdout}\n--- stderr\n{stderr}\n---")
    }
}

// === impl Running ===

impl Running {
    /// Returns the process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Kills the program, as `kill -9` does, and waits until it has ended.
    pub fn kill(mut self) {
        self.end();
    }

    /// Stops the program until [`Running::resume`].
    ///
    /// # Panics
    /// The program has ended.
    #[track_caller]
    pub fn suspend(&self) {
        self.send(Signal::STOP);
    }

    /// Lets a suspended program continue.
    ///
    /// # Panics
    /// The program has ended.
    #[track_caller]
    pub fn resume(&self) {
        self.send(Signal::CONT);
    }

    #[track_caller]
    fn send(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal)
            .unwrap_or_else(|cause| panic!("`{}`: {signal:?}: {cause}", self.line));
    }

    /// Waits until the program ends.
    ///
    /// # Panics
    /// The program still runs at the deadline.
    #[track_caller]
    pub fn finish(mut self, deadline: Duration) -> ExitStatus {
        let line = std::mem::take(&mut self.line);
        wait(&mut self.child, deadline)
            .unwrap_or_else(|| panic!("`{line}` had not ended after {deadline:?} and was killed"))
    }

    /// Kills the program like [`Running::kill`], but keeps the handle.
    pub fn end(&mut self) {
        // The program may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}
