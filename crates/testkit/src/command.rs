//! Programs run inside a pretend host or pod, with a deadline.
//!
//! Rules:
//! - nothing waits for ever: a program that is not done at its deadline is killed and the test fails,
//!   saying what it had printed;
//! - a background program dies with its handle.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::Value;

use crate::world::World;

/// How long a program may take unless the test says otherwise.
const DEADLINE: Duration = Duration::from_secs(30);

/// More output than this is a failure of the test, in bytes.
const OUTPUT_LIMIT: usize = 64 << 20;

/// `PIPE_BUF`: so much can be written to a pipe that is ready without waiting, in bytes; pipe(7).
const PIPE_PIECE: usize = 4096;

/// A program about to be run.
#[derive(Debug)]
#[must_use = "nothing runs before `finish` or `start`"]
pub struct Command {
    world: World,
    inner: std::process::Command,
    stdin: Vec<u8>,
    deadline: Duration,
    line: String,
}

/// A program that has ended.
#[derive(Debug, Clone)]
pub struct Finished {
    /// What it printed.
    pub stdout: String,
    /// What it complained of.
    pub stderr: String,
    /// Its exit status; `None` if a signal ended it.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Wall-clock time from start to end.
    pub took: Duration,
    /// The command line, for messages.
    line: String,
}

/// A program in the background; killed when dropped.
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

    /// Starts from an environment with nothing but `PATH` in it.
    pub fn clean_environment(mut self) -> Command {
        self.inner
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/usr/sbin:/usr/bin")));
        self
    }

    /// What the program reads.
    pub fn stdin(mut self, bytes: impl Into<Vec<u8>>) -> Command {
        self.stdin = bytes.into();
        self
    }

    /// How long it may take.
    pub fn deadline(mut self, deadline: Duration) -> Command {
        self.deadline = deadline;
        self
    }

    /// Runs it to its end, however that is.
    ///
    /// # Panics
    /// If it cannot be started, is not done at its deadline, prints more than 64 MiB, or leaves
    /// something behind that holds its output open.
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
            let ended = child.try_wait().expect("look at our own child").is_some();
            // Gone already is what we want.
            let _ = child.kill();
            let _ = child.wait();
            let what = if ended { "left something behind that holds its output open" } else { "was killed" };
            panic!("`{line}` was not done after {deadline:?} and {what}; it had printed:\n{stdout}{stderr}");
        }
        let status = child.wait().expect("wait for our own child");
        Finished {
            stdout,
            stderr,
            code: status.code(),
            signal: status.signal(),
            took: started.elapsed(),
            line,
        }
    }

    /// Starts it in the background, without input; its output is the test's.
    #[track_caller]
    pub fn start(mut self) -> Running {
        self.inner.stdin(Stdio::null()).stdout(Stdio::inherit()).stderr(Stdio::inherit());
        let child = self.spawn();
        Running { child, line: self.line }
    }

    /// The same, with an input that is open as long as the handle and this process live: a program that reads it
    /// ends with them, however this process ends.
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

/// Waits until `child` ends, or kills it at the deadline: `None`.
fn wait(child: &mut Child, deadline: Duration) -> Option<ExitStatus> {
    let process = descriptor(child);
    let until = Instant::now() + deadline;
    if wait_ready(&mut [PollFd::new(&process, PollFlags::IN)], until) {
        return Some(child.wait().expect("wait for our own child"));
    }
    child.kill().expect("kill our own child");
    child.wait().expect("wait for our own child");
    None
}

fn descriptor(child: &Child) -> OwnedFd {
    pidfd_open(Pid::from_child(child), PidfdFlags::empty()).expect("a descriptor of our own child")
}

/// Waits for any of `descriptors`; false if it is `until` first.
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

/// Input and both outputs of one child, at once and without a thread: neither side ever waits for
/// a full pipe, and the deadline holds for what is left running with the output open, too.
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

    /// Until the child has ended and both outputs are closed; false if it is `until` first.
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

    /// Does what can be done without waiting; `ready` is in the order of `run`.
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
                // A program need not read its input; a broken pipe is its answer.
                Err(_) => self.stdin = None,
            }
        }
    }

    fn texts(self) -> [String; 2] {
        self.outputs.map(|(_, bytes)| String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// Takes what a readable pipe has; at its end it is closed.
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
    /// Itself, if the exit status is 0.
    ///
    /// # Panics
    /// Otherwise, with everything the program printed.
    #[track_caller]
    pub fn success(self) -> Finished {
        assert!(self.code == Some(0), "{self}");
        self
    }

    /// Its standard output as JSON.
    ///
    /// # Panics
    /// If it is none.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("no JSON ({error}): {self}"))
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
    /// Its process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Kills it, as `kill -9` does, and waits until it is gone.
    pub fn kill(mut self) {
        self.end();
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// If it is not done at the deadline.
    #[track_caller]
    pub fn finish(mut self, deadline: Duration) -> ExitStatus {
        let line = std::mem::take(&mut self.line);
        wait(&mut self.child, deadline)
            .unwrap_or_else(|| panic!("`{line}` was not done after {deadline:?} and was killed"))
    }

    /// The same for one that somebody else holds on to.
    pub fn end(&mut self) {
        // Gone already is what we want.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}
