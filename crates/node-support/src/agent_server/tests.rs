//! Plans, and addresses that somebody needs, while others give addresses back and come to no end.

use cni::name::{ContainerId, IfName};
use ipam::{AddressFilter, AllocationKind, Range};
use rpc::exchange::addresses::{PoolReference, STILL};
use serde_json::value::RawValue;

use super::*;

/// The pod whose plan never comes.
const PATIENT: &str = "patient";

/// Who never comes to an end of giving back, or of the plan of [`PATIENT`], and refuses everything else at once.
struct Giving;

impl Oracle for Giving {
    async fn answer(&self, question: &Question) -> Result<Plan, Error> {
        if question.pod.name == PATIENT {
            return std::future::pending().await;
        }
        Err(Error::new(code::TRY_AGAIN_LATER, "no plan"))
    }

    async fn supply(&self, demand: &AllocateRequest, _: &Asker<'_>) -> AllocateResponse {
        if !demand.operation.needs_address() {
            return std::future::pending().await;
        }
        AllocateResponse::unavailable("nothing")
    }

    fn orders(&self) -> Vec<Order> {
        Vec::new()
    }

    fn metrics(&self) -> Option<&Metrics> {
        None
    }
}

fn demand(operation: Operation) -> Vec<u8> {
    let subnet = "10.0.0.0/24".parse().unwrap();
    let range = Range::between(subnet, None, None).unwrap();
    let demand = AllocateRequest {
        addresses: 1,
        pool: PoolReference { name: "p".into(), must_exist: true, network: String::new(), range: subnet },
        filter: AddressFilter { range, exclude: Vec::new() },
        store: "p".into(),
        directory: String::new(),
        blocks: Vec::new(),
        operation,
        pod: npwg::plan::PodIdentity::default(),
        owner: String::new(),
        claim: String::new(),
        shares_claim: false,
        quarantine: 0,
    };
    let mut bytes = Vec::new();
    exchange::send(&mut bytes, &demand).unwrap();
    bytes
}

fn question(pod: &str) -> Vec<u8> {
    let question = Question {
        version: exchange::VERSION,
        pod: npwg::plan::PodIdentity { name: pod.into(), ..Default::default() },
        container: ContainerId::new("c").unwrap(),
        ifname: IfName::new("eth0").unwrap(),
        configuration: RawValue::from_string("{}".into()).unwrap(),
        multus: false,
        files: Vec::new(),
        unreadable: Vec::new(),
        purpose: Purpose::Plan,
        began: 0,
    };
    let mut bytes = Vec::new();
    exchange::send(&mut bytes, &question).unwrap();
    bytes
}

#[tokio::test]
async fn who_gives_back_keeps_neither_plans_nor_who_needs_addresses() {
    let path = std::env::temp_dir().join(format!("weft-socket-{}", std::process::id()));
    let socket = Socket::bind(&path).unwrap();
    tokio::spawn(socket.serve(Arc::new(Giving), std::future::pending()));
    let mut flood = Vec::new();
    for at in 0..3 * PARALLEL {
        let mut stream = UnixStream::connect(&path).await.unwrap();
        let reconcile = Operation::Allocate(AllocationKind::Nothing);
        let wish = [Operation::Return, reconcile, Operation::Prefetch][at % 3];
        stream.write_all(&demand(wish)).await.unwrap();
        flood.push(stream);
    }
    let answer = async |bytes: Vec<u8>| {
        let mut stream = UnixStream::connect(&path).await.unwrap();
        stream.write_all(&bytes).await.unwrap();
        receive_bytes(&mut stream, MESSAGE_MAX, COURTESY_MAX).await
    };
    for (what, asked) in
        [("a plan", question("")), ("addresses", demand(Operation::Allocate(AllocationKind::Any)))]
    {
        assert!(answer(asked).await.is_ok(), "{what}");
    }
    drop(flood);
    std::fs::remove_file(&path).unwrap();
}

/// The attack: pods that ask for ports that nobody makes keep every other pod of the node from its start.
#[tokio::test]
async fn pods_that_wait_for_what_never_comes_keep_no_other_from_its_plan() {
    let path = std::env::temp_dir().join(format!("weft-socket-patient-{}", std::process::id()));
    let socket = Socket::bind(&path).unwrap();
    tokio::spawn(socket.serve(Arc::new(Giving), std::future::pending()));
    let mut flood = Vec::new();
    for _ in 0..2 * PARALLEL {
        let mut stream = UnixStream::connect(&path).await.unwrap();
        stream.write_all(&question(PATIENT)).await.unwrap();
        flood.push(stream);
    }
    tokio::time::sleep(TURN_MAX / 10).await;
    let mut stream = UnixStream::connect(&path).await.unwrap();
    stream.write_all(&question("other")).await.unwrap();
    // Those in front of it in the queue have two turns between them; 20 s and more without.
    assert!(receive_bytes(&mut stream, MESSAGE_MAX, 5 * TURN_MAX).await.is_ok());
    drop(flood);
    std::fs::remove_file(&path).unwrap();
}

/// Counts the demands that it works on, for ever.
#[derive(Default)]
struct Working(AtomicUsize);

struct Work<'a>(&'a AtomicUsize);

impl Drop for Work<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Oracle for Working {
    async fn answer(&self, _: &Question) -> Result<Plan, Error> {
        Err(Error::new(code::TRY_AGAIN_LATER, "no plan"))
    }

    async fn supply(&self, _: &AllocateRequest, _: &Asker<'_>) -> AllocateResponse {
        self.0.fetch_add(1, Ordering::Relaxed);
        let _work = Work(&self.0);
        std::future::pending().await
    }

    fn orders(&self) -> Vec<Order> {
        Vec::new()
    }

    fn metrics(&self) -> Option<&Metrics> {
        None
    }
}

/// Its ledger is the next one's by then, who may be given what the question does not know.
#[tokio::test]
async fn a_question_for_addresses_ends_when_who_asked_it_has_gone_but_what_is_given_back_is() {
    let path = std::env::temp_dir().join(format!("weft-socket-gone-{}", std::process::id()));
    let (socket, working) = (Socket::bind(&path).unwrap(), Arc::new(Working::default()));
    tokio::spawn(socket.serve(Arc::clone(&working), std::future::pending()));
    let at_work = async |count: usize| {
        while working.0.load(Ordering::Relaxed) != count {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let patience = Duration::from_secs(10);
    let mut asking = Vec::new();
    let kinds = [AllocationKind::Nothing, AllocationKind::Any, AllocationKind::ForClaim(None)];
    for wish in [Operation::Return].into_iter().chain(kinds.map(Operation::Allocate)) {
        let mut stream = UnixStream::connect(&path).await.unwrap();
        stream.write_all(&demand(wish)).await.unwrap();
        asking.push(stream);
        timeout(patience, at_work(asking.len())).await.unwrap();
    }
    drop(asking);
    timeout(patience, at_work(1)).await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(working.0.load(Ordering::Relaxed), 1, "what is to be given back");
    std::fs::remove_file(&path).unwrap();
}

/// Handler that probes the client of every request.
struct Asking;

impl Oracle for Asking {
    async fn answer(&self, _: &Question) -> Result<Plan, Error> {
        Err(Error::new(code::TRY_AGAIN_LATER, "no plan"))
    }

    async fn supply(&self, _: &AllocateRequest, asker: &Asker<'_>) -> AllocateResponse {
        let refusal = asker.is_still_there().await.err();
        AllocateResponse::unavailable(refusal.unwrap_or_else(|| "there".to_owned()))
    }

    fn orders(&self) -> Vec<Order> {
        Vec::new()
    }

    fn metrics(&self) -> Option<&Metrics> {
        None
    }
}

#[tokio::test]
async fn liveness_probe_is_answered_by_a_connected_client() {
    let path = std::env::temp_dir().join(format!("weft-socket-still-{}", std::process::id()));
    let socket = Socket::bind(&path).unwrap();
    tokio::spawn(socket.serve(Arc::new(Asking), std::future::pending()));
    for (says, expected) in [(Some(STILL), "there"), (None, "did not confirm"), (Some(0), "did not confirm")]
    {
        let mut stream = UnixStream::connect(&path).await.unwrap();
        stream.write_all(&demand(Operation::Allocate(AllocationKind::Any))).await.unwrap();
        let hear = async |stream: &mut UnixStream| {
            let mut length = [0; 4];
            stream.read_exact(&mut length).await.unwrap();
            let mut bytes = vec![0; u32::from_be_bytes(length) as usize];
            stream.read_exact(&mut bytes).await.unwrap();
            serde_json::from_slice::<AllocateResponse>(&bytes).unwrap()
        };
        assert!(hear(&mut stream).await.probe);
        if let Some(said) = says {
            stream.write_all(&[said]).await.unwrap();
        }
        let answer = hear(&mut stream).await;
        assert!(!answer.probe && answer.error().unwrap().contains(expected), "{says:?}");
    }
    std::fs::remove_file(&path).unwrap();
}
