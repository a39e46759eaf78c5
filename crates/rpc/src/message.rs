//! Messages of the agent's socket: [`Request`] from `weft-cni` to the agent, [`Response`] back.
//!
//! One connection is one exchange: a request and the response. A plan is followed by an execution report, and during an
//! allocation the agent may probe the client.
//!
//! ```text
//!   Plan ───────────► Plan, Refused          after Plan: PlanReport ►
//!   PollTasks ──────► Tasks, Refused
//!   TaskResult ─────► Accepted, Refused
//!   AllocateBlocks ─► Blocks, Refused        before Blocks, any number of times: ◄ ProbeClient, ClientAlive ►
//! ```
//!
//! - Unknown fields are ignored, and so are tasks of an unknown kind; an unknown request is refused.
//! - The enums are externally tagged. Other representations of serde buffer a body before they decode it, and a
//!   configuration would not stay the same byte for byte.
//!
//! `docs/design/rpc.md` has the limit and the deadline of each message.

use cni::error::Error;
use serde::{Deserialize, Serialize};

use crate::allocate::{AllocateRequest, AllocateResponse};
use crate::frame::{MESSAGE_MAX, Message, REPORT_MAX, SIGNAL_MAX};
use crate::plan::{PlanReport, PlanRequest, PlanResponse};
use crate::task::{self, PollTasks, Task, TaskResult};

/// Message to the agent.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Request {
    /// Requests a sandbox plan.
    Plan(Box<PlanRequest>),
    /// Reports how the plan was executed, on the connection that delivered it.
    PlanReport(PlanReport),
    /// Requests tasks for this node; the agent delays the response until there is one.
    PollTasks(PollTasks),
    /// Reports how a task ended.
    TaskResult(TaskResult),
    /// Requests blocks for an address store on this node.
    AllocateBlocks(Box<AllocateRequest>),
    /// Confirms that the client is still connected, and so holds the address store lock.
    ClientAlive,
}

/// Message from the agent.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Response {
    /// The plan that was requested.
    Plan(Box<PlanResponse>),
    /// The request is refused, or could not be served.
    Refused(Box<Refusal>),
    /// Tasks for this node; unknown kinds are left out.
    #[serde(deserialize_with = "task::known")]
    Tasks(Vec<Task>),
    /// The task result is noted.
    Accepted,
    /// The blocks that were leased, returned and confirmed, or why there are none.
    Blocks(Box<AllocateResponse>),
    /// Asks the client to confirm that it is still connected.
    ProbeClient,
}

/// Refused request, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// Why it was refused.
    #[serde(flatten)]
    pub error: Error,
    /// Trace id under which the planner exports a refused plan request; empty if it exports none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub trace: String,
}

impl Message for Request {
    const FIELD: &'static str = "request";

    fn limit(&self) -> usize {
        match self {
            Request::Plan(_) | Request::PollTasks(_) | Request::AllocateBlocks(_) => MESSAGE_MAX,
            Request::PlanReport(_) | Request::TaskResult(_) => REPORT_MAX,
            Request::ClientAlive => SIGNAL_MAX,
        }
    }
}

impl Message for Response {
    const FIELD: &'static str = "response";

    fn limit(&self) -> usize {
        match self {
            Response::Plan(_) | Response::Tasks(_) | Response::Blocks(_) => MESSAGE_MAX,
            Response::Refused(_) => REPORT_MAX,
            Response::Accepted | Response::ProbeClient => SIGNAL_MAX,
        }
    }
}

impl Response {
    /// Returns what an error calls this kind of response if it does not fit the request.
    pub fn kind(&self) -> &'static str {
        match self {
            Response::Plan(_) => "plan",
            Response::Refused(_) => "refused",
            Response::Tasks(_) => "tasks",
            Response::Accepted => "accepted",
            Response::Blocks(_) => "blocks",
            Response::ProbeClient => "probeClient",
        }
    }

    /// Returns the error for a request that this response does not fit, or that it refuses.
    pub fn into_error(self) -> Error {
        match self {
            Response::Refused(refusal) => refusal.error,
            other => Error::internal(format!("response {:?} does not fit the request", other.kind())),
        }
    }
}

impl From<Result<PlanResponse, Error>> for Response {
    fn from(planned: Result<PlanResponse, Error>) -> Response {
        match planned {
            Ok(response) => Response::Plan(Box::new(response)),
            Err(error) => error.into(),
        }
    }
}

impl From<Error> for Response {
    fn from(error: Error) -> Response {
        Response::Refused(Box::new(error.into()))
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Refusal {
        Refusal { error, trace: String::new() }
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Error {
        refusal.error
    }
}
