//! Server on the agent's socket: receives requests from `weft-cni` and returns what a [`RequestHandler`]
//! answers.
//!
//! One connection is one exchange. [`Listener`] decides which clients may connect, and how an agent is
//! replaced.
//!
//! - Requests are served as they arrive, [`PARALLEL`] at a time. [`QUEUE_MAX`] more wait in a queue; beyond
//!   that a request is refused and may be repeated.
//! - A request that takes longer than [`SLOT_MAX`] no longer blocks others: a pod may request a port that is
//!   never created.
//! - Allocations have separate slots, so that they and plans do not wait for each other. Allocations that a later call
//!   repeats anyway do not delay those that a client waits for.
//! - An allocation ends when the client disconnects: the next process that locks the store may allocate addresses that
//!   this request does not know about. A release is completed, and so is a prefetch, whose client does not wait.
//! - Clients that poll for tasks get a response at once when the agent shuts down.
//! - A client that stalls is disconnected. A plan that is not ready in time is refused before the kubelet
//!   gives up.
//!
//! Source: `docs/design/rpc.md`.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use cni::{Error, code};
use npwg::plan::Plan;
use rpc::allocate::{AllocateRequest, AllocateResponse, Operation};
use rpc::frame::{FrameError, MESSAGE_MAX, REPORT_MAX, SIGNAL_MAX};
use rpc::message::{Refusal, Request, Response};
use rpc::plan::{PlanRequest, PlanResponse};
use rpc::task::{PollTasks, Task, TaskResult};
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::sync::watch::Sender;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;
use tracing::{Instrument, info, info_span, warn};

use super::frame_io;
use super::metrics::Metrics;
use super::traces::{Trace, Traces};
use crate::client_probe::ClientProbe;
use crate::listener::Listener;
use cli_support::activity::Call;
use cli_support::failure::Failure;

/// Requests served at a time, and as many allocations.
const PARALLEL: usize = 32;
/// Best-effort allocations served at a time. A later call repeats a dropped one.
const BEST_EFFORT: usize = 8;
/// Time that a best-effort allocation waits for a slot: the client has disconnected by then.
const BEST_EFFORT_MAX: Duration = Duration::from_secs(2);
/// Requests in the queue, and requests that take longer than [`SLOT_MAX`].
const QUEUE_MAX: usize = 512;
/// Time after which a request gives the slot to the next one.
const SLOT_MAX: Duration = Duration::from_secs(1);
/// Connections at a time, including those that wait for a report.
const CONNECTIONS_MAX: usize = 2048;
/// Deadline for a request to arrive, and for a response to be sent.
const TRANSFER_MAX: Duration = Duration::from_secs(5);
/// Deadline for a response to be ready.
const RESPONSE_MAX: Duration = Duration::from_secs(30);
/// Deadline for the report about an executed plan: every delegate may take a minute.
const REPORT_WAIT: Duration = Duration::from_secs(600);

/// Handler that answers the requests.
pub trait RequestHandler: Send + Sync + 'static {
    /// Returns a sandbox plan. A handler that relays the request also returns the tasks and the trace from
    /// the agent that answered; the tasks that are due follow later.
    fn plan_sandbox(&self, request: &PlanRequest) -> impl Future<Output = Result<Planned, Refusal>> + Send;
    /// Returns blocks for an address store.
    fn allocate_blocks(
        &self,
        _: &AllocateRequest,
        _: &ClientProbe<'_>,
    ) -> impl Future<Output = AllocateResponse> + Send {
        async { AllocateResponse::unavailable("no cluster to lease addresses from") }
    }
    /// Returns the tasks that are due, for a client that requested a plan.
    fn due_tasks(&self) -> Vec<Task>;
    /// Waits for a while until tasks are due, for a client that only polls for them.
    fn poll_tasks(&self, _: &PollTasks) -> impl Future<Output = Vec<Task>> + Send {
        async { Vec::new() }
    }
    /// Receives a task result.
    fn task_result(&self, _: &TaskResult) -> impl Future<Output = Result<(), Error>> + Send {
        async { Ok(()) }
    }
    /// Returns the metrics, if there are any.
    fn metrics(&self) -> Option<&Metrics>;
    /// Records that a pod is being attached, until the value is dropped.
    fn begin(&self) -> Option<Call<'_>> {
        None
    }
    /// Returns the trace exporter, if there is one.
    fn traces(&self) -> Option<&Traces> {
        None
    }
}

/// Sandbox plan, and the receiver of the execution report.
#[derive(Debug)]
pub struct Planned {
    /// Plan, tasks, and trace id.
    pub response: PlanResponse,
    /// Connection to the agent that made the plan, if the request was relayed; the report is passed on to it.
    pub agent: Option<UnixStream>,
}

impl From<Plan> for Planned {
    fn from(plan: Plan) -> Planned {
        Planned { response: PlanResponse::without_tasks(plan), agent: None }
    }
}

/// Server on a socket, which is removed when this is dropped, unless another agent has replaced it.
#[derive(Debug)]
pub struct AgentServer(Listener);

impl AgentServer {
    /// Listens at `path`.
    pub fn bind(path: &Path) -> Result<AgentServer, Failure> {
        Listener::bind(path).map(AgentServer)
    }

    /// Returns a flag that is set while another process listens at the path.
    pub fn replaced(&self) -> Arc<AtomicBool> {
        self.0.replaced()
    }

    /// Serves requests until `end`, then those that have arrived before.
    pub async fn serve<H: RequestHandler>(self, handler: Arc<H>, end: impl Future<Output = ()>) {
        let AgentServer(mut listener) = self;
        let exchanges = Arc::new(Exchanges::new(handler));
        let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        let mut end = std::pin::pin!(end);
        let mut ending = false;
        loop {
            let stream = tokio::select! {
                stream = listener.accept() => stream,
                () = &mut end, if !ending => {
                    listener.retire();
                    exchanges.ending.send_replace(true);
                    ending = true;
                    continue;
                }
                // A client that connected before the socket was removed has been accepted by now.
                () = tokio::time::sleep(Duration::from_millis(50)), if ending => break,
            };
            let Ok(permit) = Arc::clone(&room).try_acquire_owned() else {
                warn!(connections = CONNECTIONS_MAX, "connection closed: too many connections");
                continue;
            };
            let exchanges = Arc::clone(&exchanges);
            tokio::spawn(async move {
                if let Err(error) = exchanges.serve(stream).await {
                    warn!(%error, "exchange with a client ended early");
                }
                drop(permit);
            });
        }
        // Requests that are being served are completed; reports are not waited for.
        let _ = timeout(RESPONSE_MAX, exchanges.are_served()).await;
    }
}

/// When a request arrived, by the monotonic clock and by the system's.
type Arrival = (Instant, SystemTime);

/// State that all exchanges share.
struct Exchanges<H> {
    handler: Arc<H>,
    /// Slots for requests that are being served.
    slots: Semaphore,
    /// Slots for requests that take longer than [`SLOT_MAX`].
    slow: Semaphore,
    /// Slots for allocations that a client waits for.
    allocations: Semaphore,
    /// Slots for best-effort allocations.
    best_effort: Semaphore,
    /// Number of requests in the queue.
    queued: AtomicUsize,
    /// Whether the agent shuts down.
    ending: Sender<bool>,
}

impl<H: RequestHandler> Exchanges<H> {
    fn new(handler: Arc<H>) -> Exchanges<H> {
        Exchanges {
            handler,
            slots: Semaphore::new(PARALLEL),
            slow: Semaphore::new(QUEUE_MAX),
            allocations: Semaphore::new(PARALLEL),
            best_effort: Semaphore::new(BEST_EFFORT),
            queued: AtomicUsize::new(0),
            ending: Sender::new(false),
        }
    }

    /// Serves one connection.
    async fn serve(&self, mut stream: UnixStream) -> Result<(), FrameError> {
        let arrival = (Instant::now(), SystemTime::now());
        let Some(slot) = self.slot().await else {
            let why = format!("agent: {QUEUE_MAX} requests are in the queue already");
            return respond(&mut stream, &refused(code::TRY_AGAIN_LATER, &why)).await;
        };
        let request = match frame_io::read_within(&mut stream, MESSAGE_MAX, TRANSFER_MAX).await {
            Ok(request) => request,
            Err(error @ (FrameError::Io { .. } | FrameError::Truncated { .. })) => return Err(error),
            Err(error) => {
                respond(&mut stream, &refused(code::DECODING_FAILURE, &error)).await?;
                return Err(error);
            }
        };
        match request {
            Request::Plan(request) => self.plan(stream, slot, &request, arrival).await,
            Request::PollTasks(request) => self.poll_tasks(stream, slot, &request).await,
            Request::TaskResult(result) => {
                let accepted = timeout(RESPONSE_MAX, self.handler.task_result(&result));
                let response = match self.within(slot, accepted).await {
                    Ok(Ok(())) => Response::Accepted,
                    Ok(Err(error)) => error.into(),
                    Err(late) => refused(code::TRY_AGAIN_LATER, &format_args!("agent: {late}")),
                };
                respond(&mut stream, &response).await
            }
            Request::AllocateBlocks(request) => {
                drop(slot);
                self.allocate_blocks(stream, &request).await
            }
            Request::PlanReport(_) | Request::ClientAlive => {
                respond(&mut stream, &refused(code::DECODING_FAILURE, &"message begins no exchange")).await
            }
        }
    }

    /// Returns a plan, and receives the execution report.
    async fn plan(
        &self,
        mut stream: UnixStream,
        slot: SemaphorePermit<'_>,
        request: &PlanRequest,
        arrival: Arrival,
    ) -> Result<(), FrameError> {
        let _call = self.handler.begin();
        let mut trace = self.handler.traces().map(|traces| traces.begin(request, arrival.1));
        let mut agent = None;
        let response = self.within(slot, self.planned(request, arrival, (&mut trace, &mut agent))).await;
        respond(&mut stream, &response).await?;
        if matches!(response, Response::Plan(_)) {
            // A client that is killed does not report.
            let report = frame_io::read_within(&mut stream, REPORT_MAX, REPORT_WAIT).await;
            if let Ok(Request::PlanReport(report)) = report {
                self.handler.metrics().inspect(|metrics| metrics.reported(&report));
                trace.into_iter().for_each(|trace| trace.reported(&report));
                if let Some(mut agent) = agent {
                    // Best effort, as for the client: the agent may have ended.
                    let _ =
                        frame_io::write_within(&mut agent, &Request::PlanReport(report), TRANSFER_MAX).await;
                }
            }
        }
        Ok(())
    }

    /// Returns the response to a plan request. Adds to the trace, and sets the agent that receives the report.
    async fn planned(
        &self,
        request: &PlanRequest,
        arrival: Arrival,
        (trace, agent): (&mut Option<Trace>, &mut Option<UnixStream>),
    ) -> Response {
        let ((started, arrived), pod) = (arrival, &request.pod);
        let span = info_span!(
            "plan",
            namespace = pod.namespace,
            pod = pod.name,
            container = %request.container,
            trace = trace.as_ref().map(Trace::id)
        );
        let planning = timeout(RESPONSE_MAX, self.handler.plan_sandbox(request)).instrument(span.clone());
        let planned = planning.await.unwrap_or_else(|_| {
            let why = format!("agent: no plan within {} s", RESPONSE_MAX.as_secs());
            Err(Error::new(code::TRY_AGAIN_LATER, why).into())
        });
        let _entered = span.enter();
        if let Some(trace) = trace {
            let networks = planned.as_ref().map(|planned| planned.response.plan.delegates.len());
            trace.planned(arrived, networks.map_err(|refusal| &refusal.error));
        }
        let exported = trace.as_ref().and_then(Trace::exported_id);
        match planned {
            Ok(Planned { response: PlanResponse { plan, mut tasks, trace }, agent: relayed }) => {
                *agent = relayed;
                let microseconds = started.elapsed().as_micros();
                info!(networks = plan.delegates.len(), microseconds, "sandbox planned");
                self.answered("planned", started);
                tasks.extend(self.handler.due_tasks());
                let trace = exported.unwrap_or(trace);
                Response::Plan(Box::new(PlanResponse { plan, tasks, trace }))
            }
            Err(Refusal { error, trace }) => {
                warn!(code = error.code, %error, "plan refused");
                self.answered("refused", started);
                Response::Refused(Box::new(Refusal { error, trace: exported.unwrap_or(trace) }))
            }
        }
    }

    fn answered(&self, outcome: &'static str, started: Instant) {
        if let Some(metrics) = self.handler.metrics() {
            metrics.answered(outcome, started.elapsed());
        }
    }

    /// Returns tasks once there are some. It ends with the client's connection, because a task sent to it would be lost.
    async fn poll_tasks(
        &self,
        mut stream: UnixStream,
        slot: SemaphorePermit<'_>,
        request: &PollTasks,
    ) -> Result<(), FrameError> {
        let mut ending = self.ending.subscribe();
        let polled = async {
            tokio::select! {
                tasks = timeout(RESPONSE_MAX, self.handler.poll_tasks(request)) => tasks.unwrap_or_default(),
                _ = ending.wait_for(|ending| *ending) => Vec::new(),
            }
        };
        let tasks = tokio::select! {
            tasks = self.within(slot, polled) => tasks,
            true = async { stream.read_u8().await.is_err() } => return Ok(()),
        };
        respond(&mut stream, &Response::Tasks(tasks)).await
    }

    /// Returns blocks for an address store.
    async fn allocate_blocks(
        &self,
        mut stream: UnixStream,
        request: &AllocateRequest,
    ) -> Result<(), FrameError> {
        let (mut reading, writing) = stream.split();
        let probe = ClientProbe::new(writing);
        let allocated = timeout(RESPONSE_MAX, async {
            let _slot = self.allocation_slot(request.operation).await?;
            Some(self.handler.allocate_blocks(request, &probe).await)
        });
        let gone = async {
            while let Ok(Request::ClientAlive) = frame_io::read(&mut reading, SIGNAL_MAX).await {
                probe.confirmed();
            }
        };
        let allocated = tokio::select! {
            // First, so that an observation after the client disconnected has no effect.
            biased;
            () = gone, if !request.operation.outlives_client() => return Ok(()),
            allocated = allocated => allocated.ok().flatten(),
        };
        if matches!(request.operation, Operation::Prefetch | Operation::Freed) {
            return Ok(());
        }
        let late = || AllocateResponse::unavailable("agent: no answer in time");
        respond(&mut stream, &Response::Blocks(Box::new(allocated.unwrap_or_else(late)))).await
    }

    /// Waits for an allocation slot; `None` if that takes longer than the client waits.
    async fn allocation_slot(&self, operation: Operation) -> Option<SemaphorePermit<'_>> {
        if operation.is_best_effort() {
            return timeout(BEST_EFFORT_MAX, self.best_effort.acquire()).await.ok()?.ok();
        }
        self.allocations.acquire().await.ok()
    }

    /// Waits until no request is being served.
    async fn are_served(&self) {
        for (slots, count) in [
            (&self.slots, PARALLEL),
            (&self.slow, QUEUE_MAX),
            (&self.allocations, PARALLEL),
            (&self.best_effort, BEST_EFFORT),
        ] {
            // No semaphore is ever closed.
            let _ = slots.acquire_many(u32::try_from(count).unwrap_or(u32::MAX)).await;
        }
    }

    /// Waits in the queue; `None` if it is full.
    async fn slot(&self) -> Option<SemaphorePermit<'_>> {
        if self.queued.fetch_add(1, Ordering::Relaxed) >= QUEUE_MAX {
            self.queued.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        let metrics = self.handler.metrics();
        if let Some(metrics) = metrics {
            metrics.waiting.inc();
        }
        // The semaphore is never closed.
        let slot = self.slots.acquire().await.ok();
        self.queued.fetch_sub(1, Ordering::Relaxed);
        if let Some(metrics) = metrics {
            metrics.waiting.dec();
        }
        slot
    }

    /// Returns the result of `work`, which gives up the slot after [`SLOT_MAX`].
    async fn within<T>(&self, slot: SemaphorePermit<'_>, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        if let Ok(done) = timeout(SLOT_MAX, &mut work).await {
            return done;
        }
        // If too many requests are slow already, this one keeps its slot.
        let _held = match self.slow.try_acquire() {
            Ok(slow) => {
                drop(slot);
                slow
            }
            Err(_) => slot,
        };
        work.await
    }
}

fn refused(code: u32, why: &dyn std::fmt::Display) -> Response {
    Error::new(code, why.to_string()).into()
}

async fn respond(stream: &mut UnixStream, response: &Response) -> Result<(), FrameError> {
    frame_io::write_within(stream, response, TRANSFER_MAX).await
}

#[cfg(test)]
mod tests;
