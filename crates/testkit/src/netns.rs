//! Network namespace in which a test runs programs.
//!
//! Source: ip(8) with `-j`; `testkit::Host` makes the namespaces.

use std::ffi::OsStr;
use std::path::PathBuf;

use serde_json::Value;

use crate::command::{Command, Finished};
use crate::world::World;

/// Network namespace of a pretend host or pod, in which a test runs programs.
#[derive(Debug)]
pub struct Netns {
    pub(crate) world: World,
    pub(crate) name: String,
}

// === impl Netns ===

impl Netns {
    /// Returns the namespace name: the pod's name, or `host`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns a command to run inside; the program is looked up in `PATH`.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        Command::new(&self.world, program.as_ref())
    }

    /// Runs a program that must succeed; returns the standard output.
    ///
    /// # Panics
    /// The program fails; the message contains the output.
    #[track_caller]
    pub fn run<A: AsRef<OsStr>>(&self, line: impl IntoIterator<Item = A>) -> String {
        self.attempt(line).success().stdout
    }

    /// Runs a program that may fail.
    #[track_caller]
    pub fn attempt<A: AsRef<OsStr>>(&self, line: impl IntoIterator<Item = A>) -> Finished {
        let mut words = line.into_iter();
        let program = words.next().expect("a program to run");
        self.command(program).args(words).finish()
    }

    /// Runs a program that must succeed and print JSON. Empty output counts as `[]`, because that is what `ip -j` means
    /// by it.
    #[track_caller]
    pub fn json<A: AsRef<OsStr>>(&self, line: impl IntoIterator<Item = A>) -> Value {
        let finished = self.attempt(line).success();
        if finished.stdout.trim().is_empty() { Value::Array(Vec::new()) } else { finished.json() }
    }

    /// Runs `work` inside, on a new thread; sockets opened there stay in the namespace.
    pub fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.world.run(work)
    }

    /// Whether `address` answers an echo request. Requests are sent every 200 ms for two seconds, because a link that
    /// has just come up may lose the first one.
    #[track_caller]
    pub fn pings(&self, address: &str) -> bool {
        self.attempt(["ping", "-n", "-q", "-i", "0.2", "-c", "1", "-w", "2", address]).code == Some(0)
    }

    /// Returns a path to the network namespace that this process can open from any namespace.
    #[must_use]
    pub fn handle(&self) -> PathBuf {
        use std::os::fd::AsRawFd;
        PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), self.world.network().as_raw_fd()))
    }
}
