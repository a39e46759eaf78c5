//! Tests of concurrency and cancellation, with handlers that never finish.

use cni::name::{ContainerId, IfName};
use ipam::{AddressFilter, AllocationKind, Range};
use npwg::configuration::Flavour;
use npwg::plan::PodIdentity;
use rpc::allocate::PoolReference;
use rpc::frame;
use rpc::node_input::NodeInput;
use serde_json::value::RawValue;
use tokio::io::AsyncWriteExt;

use super::*;

/// Name of the pod whose plan is never ready.
const SLOW: &str = "slow";
/// Operation of a client that waits for an address.
const ALLOCATE: Operation = Operation::Allocate(AllocationKind::Any);
/// Operation that only returns and confirms blocks.
const RECONCILE: Operation = Operation::Allocate(AllocationKind::Nothing);

/// Handler that never finishes best-effort allocations, nor the plan of [`SLOW`], and refuses all else at once.
struct Stuck;

impl RequestHandler for Stuck {
    async fn plan_sandbox(&self, request: &PlanRequest) -> Result<Planned, Refusal> {
        if request.pod.name == SLOW {
            return std::future::pending().await;
        }
        Err(Error::new(code::TRY_AGAIN_LATER, "no plan").into())
    }

    async fn allocate_blocks(&self, request: &AllocateRequest, _: &ClientProbe<'_>) -> AllocateResponse {
        if !request.operation.needs_address() {
            return std::future::pending().await;
        }
        AllocateResponse::unavailable("nothing")
    }

    fn due_tasks(&self) -> Vec<Task> {
        Vec::new()
    }

    fn metrics(&self) -> Option<&Metrics> {
        None
    }
}

fn allocation(operation: Operation) -> Request {
    let subnet = "10.0.0.0/24".parse().unwrap();
    let range = Range::between(subnet, None, None).unwrap();
    Request::AllocateBlocks(Box::new(AllocateRequest {
        pool: PoolReference { name: "p".into(), must_exist: true, network: String::new(), range: subnet },
        filter: AddressFilter::new(range, &[]),
        store: "p".into(),
        directory: String::new(),
        blocks: Vec::new(),
        operation,
        pod: PodIdentity::default(),
        owner: String::new(),
        claim: String::new(),
        shares_claim: false,
        quarantine: 0,
    }))
}

fn node() -> NodeInput {
    NodeInput {
        configuration: RawValue::from_string("{}".into()).unwrap(),
        flavour: Flavour::Weft,
        files: Vec::new(),
        unreadable: Vec::new(),
    }
}

fn plan(pod: &str) -> Request {
    Request::Plan(Box::new(PlanRequest {
        pod: PodIdentity { name: pod.into(), ..PodIdentity::default() },
        container: ContainerId::new("c").unwrap(),
        ifname: IfName::new("eth0").unwrap(),
        node: node(),
        began: 0,
        trace_parent: String::new(),
        purpose: rpc::plan::Purpose::Attach,
    }))
}

/// Server with a handler, on a separate socket.
struct Served(std::path::PathBuf);

impl Served {
    fn new(name: &str, handler: Arc<impl RequestHandler>) -> Served {
        let path = std::env::temp_dir().join(format!("weft-server-{name}-{}", std::process::id()));
        let server = AgentServer::bind(&path).unwrap();
        tokio::spawn(server.serve(handler, std::future::pending()));
        Served(path)
    }

    /// Sends a request on a new connection.
    async fn send(&self, request: &Request) -> UnixStream {
        self.send_bytes(&frame::encode(request).unwrap()).await
    }

    async fn send_bytes(&self, bytes: &[u8]) -> UnixStream {
        let mut stream = UnixStream::connect(&self.0).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        stream
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

async fn receive(stream: &mut UnixStream, longest: Duration) -> Result<Response, FrameError> {
    frame_io::read_within(stream, MESSAGE_MAX, longest).await
}

#[tokio::test]
async fn best_effort_allocations_delay_neither_plans_nor_allocations() {
    let served = Served::new("effort", Arc::new(Stuck));
    let mut flood = Vec::new();
    for at in 0..3 * PARALLEL {
        let operation = [Operation::Return, RECONCILE, Operation::Prefetch][at % 3];
        flood.push(served.send(&allocation(operation)).await);
    }
    for request in [plan(""), allocation(ALLOCATE)] {
        let mut stream = served.send(&request).await;
        assert!(receive(&mut stream, BEST_EFFORT_MAX).await.is_ok(), "{request:?}");
    }
}

/// Simulates pods that request ports which are never created, to keep every other pod of the node from starting.
#[tokio::test]
async fn plans_that_wait_for_ports_delay_no_other_plan() {
    let served = Served::new("slow", Arc::new(Stuck));
    let mut flood = Vec::new();
    for _ in 0..2 * PARALLEL {
        flood.push(served.send(&plan(SLOW)).await);
    }
    tokio::time::sleep(SLOT_MAX / 10).await;
    let mut stream = served.send(&plan("other")).await;
    // The earlier requests hold their slots for up to twice `SLOT_MAX`; without that limit, 20 s and more.
    assert!(receive(&mut stream, 5 * SLOT_MAX).await.is_ok());
}

/// Handler that counts running allocations and never finishes one.
#[derive(Default)]
struct Counting(AtomicUsize);

struct Work<'a>(&'a AtomicUsize);

impl Drop for Work<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl RequestHandler for Counting {
    async fn plan_sandbox(&self, _: &PlanRequest) -> Result<Planned, Refusal> {
        Err(Error::new(code::TRY_AGAIN_LATER, "no plan").into())
    }

    async fn allocate_blocks(&self, _: &AllocateRequest, _: &ClientProbe<'_>) -> AllocateResponse {
        self.0.fetch_add(1, Ordering::Relaxed);
        let _work = Work(&self.0);
        std::future::pending().await
    }

    fn due_tasks(&self) -> Vec<Task> {
        Vec::new()
    }

    fn metrics(&self) -> Option<&Metrics> {
        None
    }
}

#[tokio::test]
async fn allocation_ends_with_its_client_and_release_does_not() {
    let counting = Arc::new(Counting::default());
    let served = Served::new("gone", Arc::clone(&counting));
    let at_work = async |count: usize| {
        while counting.0.load(Ordering::Relaxed) != count {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let longest = Duration::from_secs(10);
    let mut clients = Vec::new();
    let claim = Operation::Allocate(AllocationKind::ForClaim(None));
    for operation in [Operation::Return, RECONCILE, ALLOCATE, claim] {
        clients.push(served.send(&allocation(operation)).await);
        timeout(longest, at_work(clients.len())).await.unwrap();
    }
    drop(clients);
    timeout(longest, at_work(1)).await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(counting.0.load(Ordering::Relaxed), 1, "the release");
}

/// Handler that probes the client of an allocation.
struct Probing;

impl RequestHandler for Probing {
    async fn plan_sandbox(&self, _: &PlanRequest) -> Result<Planned, Refusal> {
        Err(Error::new(code::TRY_AGAIN_LATER, "no plan").into())
    }

    async fn allocate_blocks(&self, _: &AllocateRequest, probe: &ClientProbe<'_>) -> AllocateResponse {
        let unconfirmed = probe.confirm().await.err();
        AllocateResponse::unavailable(
            unconfirmed.map_or_else(|| "alive".to_owned(), |unconfirmed| unconfirmed.to_string()),
        )
    }

    fn due_tasks(&self) -> Vec<Task> {
        Vec::new()
    }

    fn metrics(&self) -> Option<&Metrics> {
        None
    }
}

#[tokio::test]
async fn client_probe_is_confirmed_by_the_client_alone() {
    let served = Served::new("probe", Arc::new(Probing));
    let alive = frame::encode(&Request::ClientAlive).unwrap();
    let longest = 2 * TRANSFER_MAX;
    for (sent, expected) in [
        (alive.as_slice(), "alive"),
        (&[], "did not confirm"),
        // An incomplete message.
        (&alive[..alive.len() - 1], "did not confirm"),
    ] {
        let mut stream = served.send(&allocation(ALLOCATE)).await;
        assert!(matches!(receive(&mut stream, longest).await.unwrap(), Response::ProbeClient));
        stream.write_all(sent).await.unwrap();
        let Response::Blocks(blocks) = receive(&mut stream, longest).await.unwrap() else {
            panic!("no blocks")
        };
        assert!(blocks.error().unwrap().contains(expected), "{expected}");
    }
    // An unexpected message ends the exchange.
    let mut stream = served.send(&allocation(ALLOCATE)).await;
    assert!(matches!(receive(&mut stream, longest).await.unwrap(), Response::ProbeClient));
    stream.write_all(&frame::encode(&plan("")).unwrap()).await.unwrap();
    assert!(matches!(receive(&mut stream, longest).await, Err(FrameError::Io { .. })));
}

#[tokio::test]
async fn message_that_is_no_request_of_this_version_is_refused() {
    let served = Served::new("refused", Arc::new(Stuck));
    let framed = |envelope: &str| {
        let length = u32::try_from(envelope.len()).unwrap().to_be_bytes();
        [length.as_slice(), envelope.as_bytes()].concat()
    };
    for (sent, expected) in [
        (framed(r#"{"version":2,"request":{"dance":{}}}"#), "message of version 2"),
        (
            framed(r#"{"version":1,"request":{"dance":{}}}"#),
            "decode message: a value does not have the expected form",
        ),
        (framed("parcel"), "decode message"),
        (frame::encode(&Request::ClientAlive).unwrap(), "begins no exchange"),
        (vec![0xff; 4], "exceeds the limit"),
    ] {
        let mut stream = served.send_bytes(&sent).await;
        let response = receive(&mut stream, TRANSFER_MAX).await.unwrap();
        let Response::Refused(refusal) = response else { panic!("{expected}: {response:?}") };
        let error = refusal.error;
        assert!(error.msg.contains(expected) && error.code == code::DECODING_FAILURE, "{error}");
    }
}

#[tokio::test]
async fn task_poll_is_answered_at_once_when_the_agent_shuts_down() {
    struct Idle;

    impl RequestHandler for Idle {
        async fn plan_sandbox(&self, _: &PlanRequest) -> Result<Planned, Refusal> {
            Err(Error::new(code::TRY_AGAIN_LATER, "no plan").into())
        }

        async fn poll_tasks(&self, _: &PollTasks) -> Vec<Task> {
            std::future::pending().await
        }

        fn due_tasks(&self) -> Vec<Task> {
            Vec::new()
        }

        fn metrics(&self) -> Option<&Metrics> {
            None
        }
    }

    let path = std::env::temp_dir().join(format!("weft-server-ending-{}", std::process::id()));
    let server = AgentServer::bind(&path).unwrap();
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let serving = tokio::spawn(server.serve(Arc::new(Idle), async move { drop(ended.await) }));
    let mut stream = UnixStream::connect(&path).await.unwrap();
    frame_io::write(&mut stream, &Request::PollTasks(PollTasks { node: node() })).await.unwrap();
    assert!(receive(&mut stream, Duration::from_millis(200)).await.is_err(), "no task is due");
    end.send(()).unwrap();
    let response = receive(&mut stream, TRANSFER_MAX).await.unwrap();
    assert!(matches!(response, Response::Tasks(tasks) if tasks.is_empty()));
    serving.await.unwrap();
}
