//! Asking for a plan: the agent on its socket, else `weft plan --once`; and telling the agent how it went.
//!
//! Rules: a deadline holds for the whole question; an agent that is there and refuses is believed, one
//! that is not there is replaced by a short-lived process that does the same; what the agent is told afterwards
//! is for its figures, and never fails or delays an ADD noticeably.

use std::io::{ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use cni::{Context, Error, code};
use npwg::configuration::NodeConfiguration;
use npwg::exchange::{self, Answer, Order, Question, Reply, Report};
use npwg::plan::Plan;

/// How long the agent may think: shorter than the kubelet waits for a sandbox.
const DEADLINE: Duration = Duration::from_secs(60);
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
    let (reply, agent) = match UnixStream::connect(socket) {
        Ok(mut stream) => {
            let reply = ask_agent(&mut stream, question);
            (reply.context(format_args!("agent {}", socket.display()))?, Some(stream))
        }
        Err(cause) if matches!(cause.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
            (ask_once(question)?, None)
        }
        Err(cause) => return Err(Error::io(format_args!("agent {}", socket.display()), cause)),
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
    UnixStream::connect(&node.agent_socket).is_ok()
}

/// Tells the agent what a question without an answer says.
///
/// # Errors
/// There is none, or it does not listen.
pub(super) fn tell(node: &NodeConfiguration, question: &Question) -> Result<(), Error> {
    let step = || format!("agent {}", node.agent_socket);
    let stream = UnixStream::connect(&node.agent_socket);
    let mut stream = stream.map_err(|cause| Error::io(step(), cause))?;
    ask_agent(&mut stream, question).map(|_| ()).context(step())
}

fn ask_agent(stream: &mut UnixStream, question: &Question) -> Result<Reply, Error> {
    let bounded =
        stream.set_read_timeout(Some(DEADLINE)).and_then(|()| stream.set_write_timeout(Some(DEADLINE)));
    bounded.map_err(|cause| Error::io("set a time limit", cause))?;
    // The agent is there but slow, or ends just now: the same call may succeed later.
    let again = |error: Error| match error.code {
        code::IO_FAILURE => Error { code: code::TRY_AGAIN_LATER, ..error },
        _ => error,
    };
    exchange::send(stream, question).map_err(again)?;
    exchange::receive(stream).map_err(again)
}

/// Runs `weft plan --once`, which reads a question and writes an answer.
fn ask_once(question: &Question) -> Result<Reply, Error> {
    let program = find_brain();
    let step = format!("{} plan --once", program.display());
    let mut child = Command::new(&program)
        .args(["plan", "--once"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|cause| absent(&step, &cause))?;
    if let Some(mut pipe) = child.stdin.take() {
        exchange::send(&mut pipe, question).context(&step)?;
        pipe.flush().map_err(|cause| Error::io(&step, cause))?;
    }
    let output = child.wait_with_output().map_err(|cause| Error::io(&step, cause))?;
    if !output.status.success() {
        return Err(Error::new(code::IO_FAILURE, format!("{step}: {}", output.status)));
    }
    exchange::receive(&mut output.stdout.as_slice()).context(&step)
}

/// Beside the file this program really is, else wherever PATH says. In a plugin directory that name is a link to
/// ourselves, the plugin `weft`; `weft install --thin` puts the program into a directory of its own there.
pub(super) fn find_brain() -> PathBuf {
    let own = std::fs::canonicalize("/proc/self/exe").unwrap_or_default();
    let beside = [BRAIN, APART].map(|name| own.with_file_name(name));
    let is_another = |path: &PathBuf| std::fs::canonicalize(path).is_ok_and(|real| real != own);
    beside.into_iter().find(is_another).unwrap_or_else(|| PathBuf::from(BRAIN))
}

fn absent(step: &str, cause: &std::io::Error) -> Error {
    let why = format!("{step}: {cause}");
    let cure = "there is no agent and no manifestDir: start the agent, install weft beside weft-cni, or set manifestDir";
    Error::new(code::TRY_AGAIN_LATER, why).details(cure)
}
