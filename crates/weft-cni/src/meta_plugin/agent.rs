//! Requests that the meta-plugin makes: a plan from the agent, else from `weft plan --once`; reports to the
//! agent.
//!
//! - One deadline covers request and response.
//! - If no agent listens, `weft plan --once` makes the plan: a short-lived process with the same planner.
//! - If the agent refuses, that is final: no other planner is requested.
//! - The report about an executed plan is for metrics: it never fails an ADD, nor delays it by more than
//!   [`REPORT_MAX`].
//!
//! Source: `docs/design/rpc.md`.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use cni::{Context, Error, code};
use linux::unix::{Bounded, connect_within};
use npwg::configuration::{NodeConfiguration, PROXY_NETWORK};
use npwg::plan::Plan;
use rpc::frame;
use rpc::message::{Refusal, Request, Response};
use rpc::plan::{PlanReport, PlanRequest, PlanResponse, Purpose};
use rpc::task::{Task, TaskResult};

/// Deadline for a request: shorter than the kubelet waits for a sandbox.
const DEADLINE: Duration = Duration::from_secs(60);
/// Deadline for a request about a sandbox that is to be detached.
const DETACH_DEADLINE: Duration = Duration::from_secs(10);
/// Wait for an answer after which a pod that selects nothing is planned without the agent.
const SILENCE_MAX: Duration = Duration::from_secs(5);
/// Timeout for the agent to accept the connection.
const CALL_MAX: Duration = Duration::from_secs(10);
/// Timeout for the report about an executed plan, and for the check whether an agent listens.
const REPORT_MAX: Duration = Duration::from_millis(100);
/// Planner binary.
const PLANNER: &str = "weft";
/// Where the planner is in a plugin directory, in which the name `weft` is a link to this program.
const PLANNER_IN_PLUGIN_DIRECTORY: &str = "weft.d/weft";

/// Sandbox plan, and the connection that it was received on.
#[derive(Debug)]
pub(super) struct PlannedSandbox {
    /// The plan.
    pub(super) plan: Plan,
    /// Tasks for this node, to execute once the runtime has the answer.
    pub(super) tasks: Vec<Task>,
    /// Trace id under which the agent exports; empty if it exports none.
    pub(super) trace: String,
    /// The connection, if an agent made the plan.
    agent: Option<UnixStream>,
}

impl PlannedSandbox {
    /// Returns a plan that is not reported on.
    pub(super) fn of(plan: Plan) -> PlannedSandbox {
        PlannedSandbox { plan, tasks: Vec::new(), trace: String::new(), agent: None }
    }

    /// Takes the receiver out, so that the report can be sent.
    pub(super) fn take_report_receiver(&mut self) -> ReportReceiver {
        ReportReceiver(self.agent.take())
    }
}

/// Agent that receives the report about an executed plan, if there is one.
#[derive(Debug)]
pub(super) struct ReportReceiver(Option<UnixStream>);

impl ReportReceiver {
    /// Whether an agent receives the report.
    pub(super) fn is_connected(&self) -> bool {
        self.0.is_some()
    }

    /// Sends the report; a failure is ignored.
    pub(super) fn report(self, report: PlanReport) {
        let Some(mut stream) = self.0 else { return };
        if stream.set_write_timeout(Some(REPORT_MAX)).is_ok() {
            let _ = frame::send(&mut stream, &Request::PlanReport(report));
        }
    }
}

/// Requests a plan. If an agent has not answered within [`SILENCE_MAX`], `alone` may plan instead.
///
/// # Errors
/// Code 11: no answer. Code 6: the plan is not for this sandbox, or contains what no planner plans.
pub(super) fn plan(
    node: &NodeConfiguration,
    request: PlanRequest,
    alone: &dyn Fn() -> Option<Plan>,
) -> Result<PlannedSandbox, Refusal> {
    let (sandbox, pod) = (request.sandbox(), request.pod.clone());
    let deadline = match request.purpose {
        Purpose::Attach => DEADLINE,
        Purpose::Detach => DETACH_DEADLINE,
    };
    let (socket, request) = (Path::new(&node.agent_socket), Request::Plan(Box::new(request)));
    let (response, agent) = match connect_within(socket, CALL_MAX) {
        Ok(mut stream) => {
            let mut patient = Patient::new(&mut stream, [SILENCE_MAX, deadline], alone);
            let response = converse(&mut patient, &request);
            if let Some(plan) = patient.plan.take() {
                return Ok(PlannedSandbox::of(plan));
            }
            (response.context(format_args!("agent {}", socket.display()))?, Some(stream))
        }
        Err(cause) if matches!(cause.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
            // Only the proxy knows which network the sandbox requests.
            if node.network == PROXY_NETWORK {
                return Err(proxy_absent(socket, &cause).into());
            }
            (ask_once(socket, &request, deadline)?, None)
        }
        Err(cause) => return Err(unreachable(socket, &cause).into()),
    };
    match response {
        Response::Plan(response) => {
            let PlanResponse { plan, tasks, trace } = *response;
            plan.expect_for(&sandbox, &pod).context(format_args!("agent {}", socket.display()))?;
            Ok(PlannedSandbox { plan, tasks, trace, agent })
        }
        Response::Refused(refusal) => Err(*refusal),
        other => Err(other.into_error().into()),
    }
}

/// Whether an agent listens.
pub(super) fn is_there(node: &NodeConfiguration) -> bool {
    connect_within(Path::new(&node.agent_socket), REPORT_MAX).is_ok()
}

/// Reports a task result.
///
/// # Errors
/// No agent listens, or it refuses the result.
pub(super) fn report(node: &NodeConfiguration, result: TaskResult) -> Result<(), Error> {
    let socket = Path::new(&node.agent_socket);
    let mut stream = connect_within(socket, CALL_MAX).map_err(|cause| unreachable(socket, &cause))?;
    let response = ask(&mut stream, &Request::TaskResult(result), DEADLINE);
    let accepted = response.and_then(|response| match response {
        Response::Accepted => Ok(()),
        other => Err(other.into_error()),
    });
    accepted.context(format_args!("agent {}", socket.display()))
}

/// Returns the error if an agent is there and does not accept: the same call may succeed later.
fn unreachable(socket: &Path, cause: &io::Error) -> Error {
    let code = if cause.kind() == ErrorKind::TimedOut { code::TRY_AGAIN_LATER } else { code::IO_FAILURE };
    Error::new(code, format!("agent {}: {cause}", socket.display()))
}

/// Sends a request and receives the response, both within `timeout`.
fn ask(stream: &mut UnixStream, request: &Request, timeout: Duration) -> Result<Response, Error> {
    converse(&mut Bounded::within(stream, timeout), request)
}

fn converse(stream: &mut (impl Read + Write), request: &Request) -> Result<Response, Error> {
    // The agent is slow or shutting down: the same call may succeed later.
    let again = |error: frame::FrameError| match Error::from(error) {
        error if error.code == code::IO_FAILURE => Error { code: code::TRY_AGAIN_LATER, ..error },
        error => error,
    };
    frame::send(stream, request).map_err(again)?;
    frame::receive(stream).map_err(again)
}

/// Connection to the agent that is bounded by two timeouts: the first one if the pod can be planned without the agent.
struct Patient<'a> {
    stream: &'a mut UnixStream,
    timeouts: [Duration; 2],
    began: Instant,
    /// Plans without the agent; taken once it was tried.
    alone: Option<&'a dyn Fn() -> Option<Plan>>,
    /// Plan without the agent, which ends the conversation.
    plan: Option<Plan>,
}

impl<'a> Patient<'a> {
    fn new(
        stream: &'a mut UnixStream,
        timeouts: [Duration; 2],
        alone: &'a dyn Fn() -> Option<Plan>,
    ) -> Patient<'a> {
        Patient { stream, timeouts, began: Instant::now(), alone: Some(alone), plan: None }
    }

    /// Repeats an operation until it succeeds or the time is over.
    fn within(
        &mut self,
        mut operation: impl FnMut(&mut Bounded<'_>) -> io::Result<usize>,
    ) -> io::Result<usize> {
        loop {
            let [first, last] = self.timeouts;
            let most = if self.alone.is_some() { first } else { last };
            let mut bounded = Bounded::within(self.stream, most.saturating_sub(self.began.elapsed()));
            match operation(&mut bounded) {
                Err(cause) if cause.kind() == ErrorKind::TimedOut => {}
                done => return done,
            }
            let Some(alone) = self.alone.take() else {
                let why = format!(
                    "the agent accepted the connection and did not answer within {} s",
                    last.as_secs()
                );
                return Err(io::Error::new(ErrorKind::TimedOut, why));
            };
            self.plan = alone();
            if self.plan.is_some() {
                return Err(ErrorKind::TimedOut.into());
            }
        }
    }
}

impl Read for Patient<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.within(|stream| stream.read(buffer))
    }
}

impl Write for Patient<'_> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.within(|stream| stream.write(buffer))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// Runs `weft plan --once`, which reads one request and writes the response.
fn ask_once(socket: &Path, request: &Request, deadline: Duration) -> Result<Response, Error> {
    let program = find_weft();
    run_once(&program, socket, request, deadline).context(format_args!("{} plan --once", program.display()))
}

/// Runs `program` as a planner; it is killed if it has not answered within `timeout`.
fn run_once(program: &Path, socket: &Path, request: &Request, timeout: Duration) -> Result<Response, Error> {
    let failed = |cause| Error::io("start", cause);
    let (mut ours, theirs) = UnixStream::pair().map_err(failed)?;
    let theirs = OwnedFd::from(theirs);
    let mut child = Command::new(program)
        .args(["plan", "--once"])
        .stdin(theirs.try_clone().map_err(failed)?)
        .stdout(theirs)
        .spawn()
        .map_err(|cause| absent(socket, &cause))?;
    let response = ask(&mut ours, request, timeout);
    if response.is_err() {
        // The exit status of a process that ended by itself is still reported.
        let _ = child.kill();
    }
    let status = child.wait().map_err(failed)?;
    match status.code() {
        Some(code) if code != 0 => Err(Error::new(code::IO_FAILURE, status.to_string())),
        _ => response,
    }
}

/// Returns the path to `weft`: beside this program's real file, else as found in PATH. In a plugin directory
/// that name is a link to this program, the plugin `weft`; `weft install --thin` puts the program into a
/// subdirectory there.
pub(super) fn find_weft() -> PathBuf {
    let own = std::fs::canonicalize("/proc/self/exe").unwrap_or_default();
    let beside = [PLANNER, PLANNER_IN_PLUGIN_DIRECTORY].map(|name| own.with_file_name(name));
    let is_another = |path: &PathBuf| std::fs::canonicalize(path).is_ok_and(|real| real != own);
    beside.into_iter().find(is_another).unwrap_or_else(|| PathBuf::from(PLANNER))
}

/// Returns the error for a node where nothing can plan.
fn absent(socket: &Path, cause: &io::Error) -> Error {
    let hint = "start the node agent (kubectl -n kube-system get pods -l app.kubernetes.io/component=agent -o wide lists the agents), \
        run weft install --thin on this node, or set manifestDir";
    let why = format!("{cause}; no node agent listens on {}", socket.display());
    Error::new(code::TRY_AGAIN_LATER, why).details(hint)
}

/// Returns the error for a sandbox whose network only the CRI proxy knows.
fn proxy_absent(socket: &Path, cause: &io::Error) -> Error {
    let why = format!("CRI proxy {}: {cause}", socket.display());
    Error::new(code::TRY_AGAIN_LATER, why)
        .details("start weft cri-proxy on this node; its log says why it stopped")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::time::Instant;

    use super::*;

    #[test]
    fn agent_that_never_answers_is_named_in_the_error() {
        let tried = std::cell::Cell::new(0);
        let alone = || {
            tried.set(tried.get() + 1);
            None
        };
        // The other end stays open and answers nothing, or a part of a message.
        for said in [&b""[..], &[0, 0]] {
            let (mut ours, mut theirs) = UnixStream::pair().unwrap();
            theirs.write_all(said).unwrap();
            let times = [Duration::from_millis(50), Duration::from_secs(1)];
            let mut patient = Patient::new(&mut ours, times, &alone);
            let task = TaskResult {
                kind: rpc::task::TaskKind::Check,
                container: cni::name::ContainerId::new("c").unwrap(),
                uid: String::new(),
                changes: Vec::new(),
                error: None,
                wrong: Vec::new(),
                is_locked: false,
            };
            let late = converse(&mut patient, &Request::TaskResult(task)).unwrap_err();
            assert_eq!(late.code, code::TRY_AGAIN_LATER, "{late}");
            assert!(
                late.msg.contains("agent accepted the connection and did not answer within 1 s"),
                "{late}"
            );
            assert!(!late.msg.contains("os error"), "{late}");
        }
        assert_eq!(tried.get(), 2, "once for each conversation");
    }

    #[test]
    fn cri_proxy_that_is_down_is_named_in_the_error() {
        let text = r#"{"cniVersion":"1.0.0","name":"weft-cri","type":"weft","clusterNetwork":"default",
            "agentSocket":"/x/networks.sock"}"#;
        let node = NodeConfiguration::read(text.as_bytes(), npwg::configuration::Flavour::Weft).unwrap();
        let request = br#"{"version":1,"request":{"plan":{"pod":{"namespace":"n","name":"p","uid":""},"container":"c",
            "ifname":"eth0","node":{"configuration":{},"flavour":"weft","files":[],"unreadable":[]},"began":0}}}"#;
        let Request::Plan(request) = frame::decode(request).unwrap() else { panic!("not a plan") };
        let error = plan(&node, *request, &|| None).unwrap_err().error;
        assert_eq!(error.code, code::TRY_AGAIN_LATER);
        assert!(error.msg.starts_with("CRI proxy /x/networks.sock: "), "{error}");
        assert!(error.details.contains("weft cri-proxy") && !error.to_string().contains("agent"), "{error}");
    }

    #[test]
    fn planner_that_hangs_is_killed_and_one_that_fails_is_reported() {
        let directory = std::env::temp_dir().join(format!("weft-planner-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let (program, socket) = (directory.join("weft"), Path::new("/x/agent.sock"));
        let request = br#"{"version":1,"request":{"plan":{"pod":{"namespace":"n","name":"p","uid":""},"container":"c",
            "ifname":"eth0","node":{"configuration":{},"flavour":"weft","files":[],"unreadable":[]},"began":0}}}"#;
        let request: Request = frame::decode(request).unwrap();
        let run = |script: &str| {
            std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
            std::fs::set_permissions(&program, PermissionsExt::from_mode(0o700)).unwrap();
            run_once(&program, socket, &request, Duration::from_millis(300)).unwrap_err()
        };
        let began = Instant::now();
        let late = run("exec sleep 60");
        assert!(late.code == code::TRY_AGAIN_LATER && began.elapsed() < Duration::from_secs(20), "{late}");
        // Partial data again and again does not extend the deadline.
        let slow = run(r"printf '\0\0\0\200'; for n in $(seq 128); do printf ' ' || exit; sleep 0.1; done");
        assert!(slow.code == code::TRY_AGAIN_LATER && began.elapsed() < Duration::from_secs(10), "{slow}");
        let failed = run("exit 3");
        assert!(failed.msg.contains("exit status: 3"), "{failed}");
        std::fs::remove_dir_all(&directory).unwrap();
        let absent = run_once(&program, socket, &request, DEADLINE).unwrap_err();
        assert!(absent.code == code::TRY_AGAIN_LATER && absent.msg.contains("on /x/agent.sock"), "{absent}");
        for hint in ["kubectl -n kube-system", "weft install --thin", "manifestDir"] {
            assert!(absent.details.contains(hint), "{absent}");
        }
    }
}
