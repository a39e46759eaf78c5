//! Asking for a plan: the agent on its socket, else `weft plan --once`; and telling the agent how it went.
//!
//! Rules: a deadline holds for the whole question; an agent that is there and refuses is believed, one
//! that is not there is replaced by a short-lived process that does the same; what the agent is told afterwards
//! is for its figures, and never fails or delays an ADD noticeably.

use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use cni::{Context, Error, code};
use linux::unix::{Bounded, connect_within};
use npwg::configuration::NodeConfiguration;
use npwg::plan::Plan;
use rpc::exchange::{self, Answer, Order, Question, Reply, Report};

/// How long the agent may think: shorter than the kubelet waits for a sandbox.
const DEADLINE: Duration = Duration::from_secs(60);
/// How long it may let a caller wait at its door.
const CALL_MAX: Duration = Duration::from_secs(10);
/// How long it may take to tell the agent how it went.
const COURTESY: Duration = Duration::from_millis(100);
/// Name of the other binary.
const BRAIN: &str = "weft";
/// The same where its name is taken: in a plugin directory that is a link to ourselves.
const APART: &str = "weft.d/weft";

/// A plan, and whom it is from.
#[derive(Debug)]
pub(super) struct Advice {
    /// What to do.
    pub(super) plan: Plan,
    /// What else is to be done on this node, later.
    pub(super) orders: Vec<Order>,
    /// The agent, if it was one.
    agent: Option<UnixStream>,
}

impl Advice {
    /// A plan that nobody waits to hear of.
    pub(super) fn of(plan: Plan) -> Advice {
        Advice { plan, orders: Vec::new(), agent: None }
    }

    /// What hears of the outcome.
    pub(super) fn listener(&mut self) -> Listener {
        Listener(self.agent.take())
    }
}

/// Who hears how it went.
#[derive(Debug)]
pub(super) struct Listener(Option<UnixStream>);

impl Listener {
    /// Is anybody there?
    pub(super) fn is_there(&self) -> bool {
        self.0.is_some()
    }

    /// Tells it; whether it listens changes nothing.
    pub(super) fn tell(self, report: &Report) {
        let Some(mut stream) = self.0 else { return };
        if stream.set_write_timeout(Some(COURTESY)).is_ok() {
            let _ = exchange::send(&mut stream, report);
        }
    }
}

/// Asks for a plan.
pub(super) fn plan(node: &NodeConfiguration, question: &Question) -> Result<Advice, Error> {
    let socket = Path::new(&node.agent_socket);
    let (reply, agent) = match connect_within(socket, CALL_MAX) {
        Ok(mut stream) => {
            let reply = ask(&mut stream, question, DEADLINE);
            (reply.context(format_args!("agent {}", socket.display()))?, Some(stream))
        }
        Err(cause) if matches!(cause.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
            (ask_once(question)?, None)
        }
        Err(cause) => return Err(unheard(socket, &cause)),
    };
    let Reply { answer, orders } = reply;
    match answer {
        Answer::Plan(plan) => Ok(Advice { plan: *plan, orders, agent }),
        Answer::Refused(error) => Err(error),
        Answer::Noted => Err(Error::internal("the answer to a question for a plan is none")),
    }
}

/// Does anybody listen for questions?
pub(super) fn is_there(node: &NodeConfiguration) -> bool {
    connect_within(Path::new(&node.agent_socket), COURTESY).is_ok()
}

/// Tells the agent what a question without an answer says.
///
/// # Errors
/// There is none, or it does not listen.
pub(super) fn tell(node: &NodeConfiguration, question: &Question) -> Result<(), Error> {
    let socket = Path::new(&node.agent_socket);
    let mut stream = connect_within(socket, CALL_MAX).map_err(|cause| unheard(socket, &cause))?;
    ask(&mut stream, question, DEADLINE).map(|_| ()).context(format_args!("agent {}", socket.display()))
}

/// It is there and does not hear: the same call may succeed later.
fn unheard(socket: &Path, cause: &io::Error) -> Error {
    let code = if cause.kind() == ErrorKind::TimedOut { code::TRY_AGAIN_LATER } else { code::IO_FAILURE };
    Error::new(code, format!("agent {}: {cause}", socket.display()))
}

/// Puts a question to whoever is at the other end; it and the answer may take `patience`.
fn ask(stream: &mut UnixStream, question: &Question, patience: Duration) -> Result<Reply, Error> {
    let mut stream = Bounded::within(stream, patience);
    // The agent is there but slow, or ends just now: the same call may succeed later.
    let again = |error: Error| match error.code {
        code::IO_FAILURE => Error { code: code::TRY_AGAIN_LATER, ..error },
        _ => error,
    };
    exchange::send(&mut stream, question).map_err(again)?;
    exchange::receive(&mut stream).map_err(again)
}

/// Runs `weft plan --once`, which reads a question and writes an answer.
fn ask_once(question: &Question) -> Result<Reply, Error> {
    let program = find_weft();
    run_once(&program, question, DEADLINE).context(format_args!("{} plan --once", program.display()))
}

/// The same of a program; one that says nothing for `patience` is ended.
fn run_once(program: &Path, question: &Question, patience: Duration) -> Result<Reply, Error> {
    let failed = |cause| Error::io("start", cause);
    let (mut ours, theirs) = UnixStream::pair().map_err(failed)?;
    let theirs = OwnedFd::from(theirs);
    let mut child = Command::new(program)
        .args(["plan", "--once"])
        .stdin(theirs.try_clone().map_err(failed)?)
        .stdout(theirs)
        .spawn()
        .map_err(|cause| absent(&cause))?;
    let reply = ask(&mut ours, question, patience);
    if reply.is_err() {
        // One that has ended by itself still says how.
        let _ = child.kill();
    }
    let status = child.wait().map_err(failed)?;
    match status.code() {
        Some(code) if code != 0 => Err(Error::new(code::IO_FAILURE, status.to_string())),
        _ => reply,
    }
}

/// Beside the file this program really is, else wherever PATH says. In a plugin directory that name is a link to
/// ourselves, the plugin `weft`; `weft install --thin` puts the program into a directory of its own there.
pub(super) fn find_weft() -> PathBuf {
    let own = std::fs::canonicalize("/proc/self/exe").unwrap_or_default();
    let beside = [BRAIN, APART].map(|name| own.with_file_name(name));
    let is_another = |path: &PathBuf| std::fs::canonicalize(path).is_ok_and(|real| real != own);
    beside.into_iter().find(is_another).unwrap_or_else(|| PathBuf::from(BRAIN))
}

fn absent(cause: &io::Error) -> Error {
    let cure = "there is no agent and no manifestDir: start the agent, install weft beside weft-cni, or set manifestDir";
    Error::new(code::TRY_AGAIN_LATER, cause.to_string()).details(cure)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_planner_that_hangs_is_ended_and_one_that_fails_says_how() {
        let directory = std::env::temp_dir().join(format!("weft-planner-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let program = directory.join("weft");
        let question = serde_json::from_str(
            r#"{"version":1,"pod":{"namespace":"n","name":"p","uid":""},"container":"c","ifname":"eth0","configuration":{}}"#,
        );
        let question: Question = question.unwrap();
        let run = |script: &str| {
            std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
            std::fs::set_permissions(&program, PermissionsExt::from_mode(0o700)).unwrap();
            run_once(&program, &question, Duration::from_millis(300)).unwrap_err()
        };
        let began = Instant::now();
        let late = run("exec sleep 60");
        assert!(late.code == code::TRY_AGAIN_LATER && began.elapsed() < Duration::from_secs(20), "{late}");
        // One that says a little again and again has no more time.
        let slow = run(r"printf '\0\0\0\200'; for n in $(seq 128); do printf ' ' || exit; sleep 0.1; done");
        assert!(slow.code == code::TRY_AGAIN_LATER && began.elapsed() < Duration::from_secs(10), "{slow}");
        let failed = run("exit 3");
        assert!(failed.msg.contains("exit status: 3"), "{failed}");
        std::fs::remove_dir_all(&directory).unwrap();
        let absent = run_once(&program, &question, DEADLINE).unwrap_err();
        assert!(absent.code == code::TRY_AGAIN_LATER && absent.details.contains("manifestDir"), "{absent}");
    }
}
