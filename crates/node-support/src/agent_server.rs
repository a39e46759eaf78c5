//! The socket on which the hands ask: one question a connection, one reply, then a report. A ledger of addresses asks here, too.
//!
//! Rules:
//! - who may ask, and how an agent is replaced, is [`Listener`]'s;
//! - who comes for work is sent away when the agent ends: nobody waits for him;
//! - questions are answered in the order they came, a few at a time; more than can wait are told to come again;
//! - a plan needs nothing but what the agent knows: it waits for nobody who waits for the API server or for a port, of whom there
//!   may be many (a pod can ask for what never comes), and neither does who needs addresses for who gives some back;
//! - whoever stalls is cut off; a question that cannot be answered in time is refused, sooner than the kubelet gives up.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use cni::{Error, code};
use npwg::plan::Plan;
use rpc::exchange::addresses::{AllocateRequest, AllocateResponse, Operation};
use rpc::exchange::{self, Answer, MESSAGE_MAX, Order, Outcome, Purpose, Question, Reply, Report};
use serde::Deserialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::watch::Sender;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;
use tracing::{Instrument, info, info_span, warn};

use super::metrics::Metrics;
use super::traces::{Trace, Traces};
use crate::client_probe::Asker;
use crate::listener::Listener;
use cli_support::activity::Call;
use cli_support::failure::Failure;

/// Questions that are answered at a time.
const PARALLEL: usize = 32;
/// Demands for addresses at a time of those for whom the same is done with a later call, if not now.
const COURTESIES: usize = 8;
/// How long such a one waits: whoever sent it has gone then.
const COURTESY_MAX: Duration = Duration::from_secs(2);
/// Questions that may wait.
const WAITING_MAX: usize = 512;
/// How long an answer has a turn; what takes longer waits for somebody else.
const TURN_MAX: Duration = Duration::from_secs(1);
/// Connections at a time: also those whose report is still awaited.
const CONNECTIONS_MAX: usize = 2048;
/// How long a question may take to arrive, and a reply to leave.
const TRANSFER_MAX: Duration = Duration::from_secs(5);
/// How long an answer may take.
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// How long a report is awaited: every delegate of a pod may take its minute.
const REPORT_MAX: Duration = Duration::from_secs(600);
/// What tells a demand for addresses from a question.
#[derive(Deserialize)]
struct Head {
    #[serde(default)]
    addresses: Option<u32>,
}
/// Largest report, in bytes.
const REPORT_BYTES: usize = 1 << 20;

/// What questions are put to.
pub trait Oracle: Send + Sync + 'static {
    /// The plan for a sandbox, or why there is none.
    fn answer(&self, question: &Question) -> impl Future<Output = Result<Plan, Error>> + Send;
    /// Blocks for a ledger of addresses.
    fn supply(&self, _: &AllocateRequest, _: &Asker<'_>) -> impl Future<Output = AllocateResponse> + Send {
        async { AllocateResponse::unavailable("no cluster to lease addresses from") }
    }
    /// What else is to be done on this node.
    fn orders(&self) -> Vec<Order>;
    /// What is to be done by somebody who comes for nothing else; waits a while until there is something.
    fn errands(&self, _: &Question) -> impl Future<Output = Vec<Order>> + Send {
        async { Vec::new() }
    }
    /// What came of an order.
    fn heard(&self, _: &Outcome) {}
    /// Its figures, where it has any.
    fn metrics(&self) -> Option<&Metrics>;
    /// A call begins that somebody waits for.
    fn begin(&self) -> Option<Call<'_>> {
        None
    }
    /// Where the spans of calls go, if anywhere.
    fn traces(&self) -> Option<&Traces> {
        None
    }
}

/// The socket, which goes when this is dropped, unless another agent has taken its place.
#[derive(Debug)]
pub struct Socket(Listener);

impl Socket {
    /// Listens at `path`.
    pub fn bind(path: &Path) -> Result<Socket, Failure> {
        Listener::bind(path).map(Socket)
    }

    /// Whether another process answers in this one's place.
    pub fn replaced(&self) -> Arc<AtomicBool> {
        self.0.replaced()
    }

    /// Answers until `end` comes, then those who are already waiting.
    pub async fn serve<O: Oracle>(self, oracle: Arc<O>, end: impl Future<Output = ()>) {
        let Socket(mut listener) = self;
        let [turns, supplies] = [PARALLEL; 2].map(Semaphore::new);
        let (courtesies, waiting, ending) =
            (Semaphore::new(COURTESIES), AtomicUsize::new(0), Sender::new(false));
        let patient = Semaphore::new(WAITING_MAX);
        let desk = Arc::new(Desk { oracle, turns, patient, supplies, courtesies, waiting, ending });
        let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        let mut end = std::pin::pin!(end);
        let mut ending = false;
        loop {
            let stream = tokio::select! {
                stream = listener.accept() => stream,
                () = &mut end, if !ending => {
                    listener.retire();
                    desk.ending.send_replace(true);
                    ending = true;
                    continue;
                }
                // Whoever connected before the socket went has been accepted by now.
                () = tokio::time::sleep(Duration::from_millis(50)), if ending => break,
            };
            let Ok(permit) = Arc::clone(&room).try_acquire_owned() else {
                warn!(connections = CONNECTIONS_MAX, "too many connections");
                continue;
            };
            let desk = Arc::clone(&desk);
            tokio::spawn(async move {
                if let Err(error) = desk.talk(stream).await {
                    warn!(%error, "a conversation ended early");
                }
                drop(permit);
            });
        }
        // Answers that are under way are finished; reports are not waited for.
        let _ = timeout(ANSWER_MAX, desk.is_done()).await;
    }
}

/// When somebody came, by the clock that does not jump and by the one on the wall.
type Began = (Instant, SystemTime);

/// Where questions are answered.
struct Desk<O> {
    oracle: Arc<O>,
    turns: Semaphore,
    /// Places of those who had a turn and wait for somebody else.
    patient: Semaphore,
    /// Those of demands that somebody needs.
    supplies: Semaphore,
    /// Those of the others.
    courtesies: Semaphore,
    waiting: AtomicUsize,
    /// Does the agent end?
    ending: Sender<bool>,
}

impl<O: Oracle> Desk<O> {
    /// One conversation.
    async fn talk(&self, mut stream: UnixStream) -> Result<(), Error> {
        let (started, arrived) = (Instant::now(), SystemTime::now());
        let (mut trace, mut call) = (None, None);
        let reply = match self.turn().await {
            None => {
                let why = format!("agent: {WAITING_MAX} questions are waiting already");
                Reply::plain(Answer::Refused(Error::new(code::TRY_AGAIN_LATER, why)))
            }
            Some(turn) => {
                let bytes = receive_bytes(&mut stream, MESSAGE_MAX, TRANSFER_MAX).await?;
                if exchange::receive::<Head>(&mut bytes.as_slice())?.addresses.is_some() {
                    drop(turn);
                    return self.supply(stream, &bytes).await;
                }
                let question: Question = exchange::receive(&mut bytes.as_slice())?;
                if question.purpose == Purpose::Plan {
                    call = self.oracle.begin();
                }
                if let (Some(traces), Purpose::Plan) = (self.oracle.traces(), &question.purpose) {
                    trace = Some(traces.begin(&question, arrived));
                }
                // An order given to somebody who has gone would be lost.
                let gone = async { stream.read_u8().await.is_err() };
                let reply = self.reply(&question, (started, arrived), &mut trace);
                tokio::select! {
                    reply = self.within(turn, reply) => reply,
                    true = gone, if question.purpose == Purpose::Orders => return Ok(()),
                }
            }
        };
        let planned = matches!(reply.answer, Answer::Plan(_));
        let mut bytes = Vec::new();
        exchange::send(&mut bytes, &reply)?;
        let sent = timeout(TRANSFER_MAX, stream.write_all(&bytes)).await;
        sent.map_err(|_| Error::io("reply", "nobody takes it"))?
            .map_err(|cause| Error::io("reply", cause))?;
        if planned {
            // A process that is killed does not report.
            if let Ok(report) = receive::<Report>(&mut stream, REPORT_BYTES, REPORT_MAX).await {
                self.oracle.metrics().inspect(|metrics| metrics.reported(&report));
                trace.into_iter().for_each(|trace| trace.reported(&report));
            }
            drop(call);
        }
        Ok(())
    }

    /// Leases what a ledger of addresses lacks. Whoever asks ahead has gone when it is there. If anybody else has, his ledger is
    /// the next one's, who may be given what this question does not know: it ends. What is to be given back is so for ever.
    async fn supply(&self, mut stream: UnixStream, bytes: &[u8]) -> Result<(), Error> {
        let delivery = match exchange::receive::<AllocateRequest>(&mut &*bytes) {
            Ok(demand) => {
                let (mut reading, writing) = stream.split();
                let asker = Asker::new(writing);
                let answered = timeout(ANSWER_MAX, async {
                    let _turn = self.turn_of(demand.operation).await?;
                    Some(self.oracle.supply(&demand, &asker).await)
                });
                let gone = async {
                    while let Ok(said) = reading.read_u8().await {
                        asker.heard(said);
                    }
                };
                let answered = tokio::select! {
                    // First, so that nothing is changed by what was read after he had gone.
                    biased;
                    () = gone, if !matches!(demand.operation, Operation::Prefetch | Operation::Return) => return Ok(()),
                    answered = answered => answered.ok().flatten(),
                };
                let late = || AllocateResponse::unavailable("agent: no answer in time");
                match demand.operation {
                    Operation::Prefetch => return Ok(()),
                    _ => answered.unwrap_or_else(late),
                }
            }
            Err(error) => AllocateResponse::unavailable(error.msg),
        };
        let mut bytes = Vec::new();
        exchange::send(&mut bytes, &delivery)?;
        let sent = timeout(TRANSFER_MAX, stream.write_all(&bytes)).await;
        sent.map_err(|_| Error::io("reply", "nobody takes it"))?.map_err(|cause| Error::io("reply", cause))
    }

    /// Waits among the demands for addresses; nothing if it takes longer than whoever sent it waits.
    async fn turn_of(&self, operation: Operation) -> Option<SemaphorePermit<'_>> {
        if operation.needs_address() || operation == Operation::CheckCapacity {
            return self.supplies.acquire().await.ok();
        }
        timeout(COURTESY_MAX, self.courtesies.acquire()).await.ok()?.ok()
    }

    /// Waits until nobody is being answered.
    async fn is_done(&self) {
        for (turns, count) in [
            (&self.turns, PARALLEL),
            (&self.patient, WAITING_MAX),
            (&self.supplies, PARALLEL),
            (&self.courtesies, COURTESIES),
        ] {
            // No semaphore is ever closed.
            let _ = turns.acquire_many(u32::try_from(count).unwrap_or(u32::MAX)).await;
        }
    }

    /// Waits in the queue; nothing if it is full.
    async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= WAITING_MAX {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        let metrics = self.oracle.metrics();
        if let Some(metrics) = metrics {
            metrics.waiting.inc();
        }
        // The semaphore is never closed.
        let turn = self.turns.acquire().await.ok();
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        if let Some(metrics) = metrics {
            metrics.waiting.dec();
        }
        turn
    }

    /// What comes of it, in a turn that is somebody else's after a while.
    async fn within<T>(&self, turn: SemaphorePermit<'_>, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        if let Ok(done) = timeout(TURN_MAX, &mut work).await {
            return done;
        }
        // Where there is no place for one more who waits, it keeps its turn.
        let _held = match self.patient.try_acquire() {
            Ok(place) => {
                drop(turn);
                place
            }
            Err(_) => turn,
        };
        work.await
    }

    async fn reply(&self, question: &Question, began: Began, trace: &mut Option<Trace>) -> Reply {
        match &question.purpose {
            Purpose::Plan => self.answer(question, began, trace).await,
            Purpose::Orders => {
                let mut ending = self.ending.subscribe();
                let orders = tokio::select! {
                    orders = timeout(ANSWER_MAX, self.oracle.errands(question)) => orders.unwrap_or_default(),
                    _ = ending.wait_for(|ending| *ending) => Vec::new(),
                };
                Reply { answer: Answer::Noted, orders }
            }
            Purpose::Outcome(outcome) => {
                self.oracle.heard(outcome);
                Reply::plain(Answer::Noted)
            }
        }
    }

    async fn answer(
        &self,
        question: &Question,
        (started, arrived): Began,
        trace: &mut Option<Trace>,
    ) -> Reply {
        let pod = &question.pod;
        let span = info_span!(
            "plan",
            namespace = pod.namespace,
            pod = pod.name,
            container = %question.container,
            trace = trace.as_ref().map(Trace::id)
        );
        let answered = timeout(ANSWER_MAX, self.oracle.answer(question)).instrument(span.clone()).await;
        let answered = answered.unwrap_or_else(|_| {
            let why = format!("agent: no plan within {} s", ANSWER_MAX.as_secs());
            Err(Error::new(code::TRY_AGAIN_LATER, why))
        });
        let _entered = span.enter();
        if let Some(trace) = trace {
            trace.planned(arrived, answered.as_ref().map(|plan| plan.delegates.len()));
        }
        match answered {
            Ok(plan) => {
                info!(
                    networks = plan.delegates.len(),
                    microseconds = started.elapsed().as_micros(),
                    "planned"
                );
                self.answered("planned", started);
                Reply { answer: Answer::Plan(Box::new(plan)), orders: self.oracle.orders() }
            }
            Err(error) => {
                warn!(code = error.code, %error, "refused");
                self.answered("refused", started);
                Reply::plain(Answer::Refused(error))
            }
        }
    }

    fn answered(&self, how: &'static str, started: Instant) {
        if let Some(metrics) = self.oracle.metrics() {
            metrics.answered(how, started.elapsed());
        }
    }
}

/// Reads one message and decodes it.
async fn receive<T: serde::de::DeserializeOwned>(
    stream: &mut UnixStream,
    largest: usize,
    patience: Duration,
) -> Result<T, Error> {
    exchange::receive(&mut receive_bytes(stream, largest, patience).await?.as_slice())
}

/// Reads one message, its length first.
async fn receive_bytes(
    stream: &mut UnixStream,
    largest: usize,
    patience: Duration,
) -> Result<Vec<u8>, Error> {
    let read = async {
        let mut length = [0; 4];
        stream.read_exact(&mut length).await?;
        let size = u32::from_be_bytes(length) as usize;
        if size > largest {
            return Err(io::Error::other(format!("a message of {size} bytes is too large")));
        }
        let mut bytes = length.to_vec();
        let read = stream.take(size as u64).read_to_end(&mut bytes).await?;
        match read == size {
            true => Ok(bytes),
            false => Err(io::Error::other(format!("it ends after {read} of {size} bytes"))),
        }
    };
    let bytes = timeout(patience, read).await.map_err(|_| Error::io("receive", "it takes too long"))?;
    bytes.map_err(|cause| Error::io("receive", cause))
}

#[cfg(test)]
mod tests;
