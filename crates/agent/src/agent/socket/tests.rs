//! Plans, and addresses that somebody needs, while others give addresses back and come to no end.

use cni::name::{ContainerId, IfName};
use npwg::exchange::addresses::{Addresses, PoolName};
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

    async fn supply(&self, demand: &Demand) -> Delivery {
        match demand.wish {
            Want::Return | Want::Nothing | Want::Ahead => std::future::pending().await,
            _ => Delivery { refusal: Some("nothing".into()), ..Delivery::default() },
        }
    }

    fn orders(&self) -> Vec<Order> {
        Vec::new()
    }

    fn metrics(&self) -> Option<&Metrics> {
        None
    }
}

fn demand(wish: Want) -> Vec<u8> {
    let (subnet, [first, last]) = ("10.0.0.0/24".parse().unwrap(), ["10.0.0.1", "10.0.0.254"]);
    let [first, last] = [first, last].map(|ip| ip.parse().unwrap());
    let demand = Demand {
        addresses: 1,
        pool: PoolName { name: "p".into(), given: true, network: String::new(), range: subnet },
        filter: Addresses { subnet, first, last, gateway: None, exclude: Vec::new() },
        ledger: "p".into(),
        directory: String::new(),
        known: Vec::new(),
        wish,
        pod: npwg::plan::PodIdentity::default(),
        owner: String::new(),
        claim: String::new(),
        shared: false,
        rest: 0,
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
        let wish = [Want::Return, Want::Nothing, Want::Ahead][at % 3];
        stream.write_all(&demand(wish)).await.unwrap();
        flood.push(stream);
    }
    let answer = async |bytes: Vec<u8>| {
        let mut stream = UnixStream::connect(&path).await.unwrap();
        stream.write_all(&bytes).await.unwrap();
        receive_bytes(&mut stream, MESSAGE_MAX, COURTESY_MAX).await
    };
    for (what, asked) in [("a plan", question("")), ("addresses", demand(Want::Any))] {
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
