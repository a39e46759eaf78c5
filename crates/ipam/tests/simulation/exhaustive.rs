//! Two nodes and two blocks, every order of events: what each node does to the registry, one request at a time, with any
//! request lost on the way there or back.
//!
//! A state is what the server holds, and how far each node has come; each is looked at once.

use std::collections::{BTreeSet, HashSet};
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use ipam::lease::{Counter, Refusal};
use ipam::ledger::{Clock, Lease};
use ipam::registry::{Fault, Holder, Object, Registry};
use ipam::{Filter, Grid, Range};
use ipnet::IpNet;

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Done,
    Lost,
    Unanswered,
}

const FATES: [Fate; 3] = [Fate::Done, Fate::Lost, Fate::Unanswered];

/// One step of a history: which node goes on, and what becomes of its request.
type Step = (usize, Fate);

#[derive(Debug, Clone, Default)]
struct Server {
    objects: Vec<Object>,
    counter: u64,
}

/// A registry where each request waits until it is let through.
#[derive(Clone)]
struct Gate {
    server: Arc<Mutex<Server>>,
    open: Arc<Mutex<Option<Fate>>>,
}

struct Turnstile(Arc<Mutex<Option<Fate>>>);

impl Future for Turnstile {
    type Output = Fate;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Fate> {
        self.0.lock().unwrap().take().map_or(Poll::Pending, Poll::Ready)
    }
}

impl Gate {
    async fn request<T>(&self, work: impl FnOnce(&mut Server) -> Result<T, Fault>) -> Result<T, Fault> {
        let unknown = || Err(Fault::Unknown("lost".into()));
        match Turnstile(Arc::clone(&self.open)).await {
            Fate::Done => work(&mut self.server.lock().unwrap()),
            Fate::Lost => unknown(),
            Fate::Unanswered => {
                let _ = work(&mut self.server.lock().unwrap());
                unknown()
            }
        }
    }
}

impl Registry for Gate {
    async fn create(&self, net: IpNet, holder: &Holder) -> Result<Object, Fault> {
        self.request(|server| {
            if server.objects.iter().any(|object| object.net == net) {
                return Err(Fault::Conflict);
            }
            server.counter += 1;
            let (uid, version) = (format!("u{}", server.counter), server.counter.to_string());
            let object = Object { net, uid, version, holder: holder.clone(), holes: Vec::new() };
            server.objects.push(object.clone());
            Ok(object)
        })
        .await
    }

    async fn read(&self, net: IpNet) -> Result<Option<Object>, Fault> {
        self.request(|server| Ok(server.objects.iter().find(|object| object.net == net).cloned())).await
    }

    async fn inside(&self, block: IpNet) -> Result<Vec<Object>, Fault> {
        let inside = |object: &&Object| object.net != block && block.contains(&object.net);
        self.request(|server| Ok(server.objects.iter().filter(inside).cloned().collect())).await
    }

    async fn all(&self) -> Result<Vec<Object>, Fault> {
        self.request(|server| Ok(server.objects.clone())).await
    }

    async fn of(&self, node: &str, _: &str) -> Result<Vec<Object>, Fault> {
        self.request(|server| {
            Ok(server.objects.iter().filter(|object| object.holder.node == node).cloned().collect())
        })
        .await
    }

    async fn claimed(&self, claim: &str) -> Result<Vec<Object>, Fault> {
        self.request(|server| {
            Ok(server.objects.iter().filter(|object| object.holder.claim == claim).cloned().collect())
        })
        .await
    }

    async fn replace(&self, object: &Object) -> Result<Object, Fault> {
        self.request(|server| {
            server.counter += 1;
            let version = server.counter.to_string();
            let same = |known: &&mut Object| known.uid == object.uid && known.version == object.version;
            let Some(known) = server.objects.iter_mut().find(same) else { return Err(Fault::Conflict) };
            *known = Object { version, ..object.clone() };
            Ok(known.clone())
        })
        .await
    }

    async fn delete(&self, object: &Object) -> Result<(), Fault> {
        self.request(|server| {
            let Some(at) = server.objects.iter().position(|known| known.net == object.net) else {
                return Ok(());
            };
            if server.objects[at].uid != object.uid || server.objects[at].version != object.version {
                return Err(Fault::Conflict);
            }
            server.objects.remove(at);
            Ok(())
        })
        .await
    }

    async fn is_gone(&self, _: &str) -> Result<bool, Fault> {
        self.request(|_| Ok(false)).await
    }
}

type Task = Pin<Box<dyn Future<Output = Result<Lease, Refusal>>>>;

/// What a node does: leases a block, or an address that lies in one.
#[derive(Debug, Clone, Copy)]
enum Deed {
    Block,
    Address(&'static str),
}

/// Plays one history from the beginning; what each node has in the end, if it ended, and the names of the objects.
fn play(deeds: [Deed; 2], history: &[Step]) -> ([Option<Result<Lease, Refusal>>; 2], String) {
    let server = Arc::new(Mutex::new(Server::default()));
    let subnet: IpNet = "10.0.0.0/29".parse().unwrap();
    let filter = Arc::new(Filter { range: Range::between(subnet, None, None).unwrap(), exclude: Vec::new() });
    let mut gates = Vec::new();
    let mut tasks: Vec<Task> = Vec::new();
    for (index, deed) in deeds.into_iter().enumerate() {
        let gate = Gate { server: Arc::clone(&server), open: Arc::default() };
        gates.push(gate.clone());
        let filter = Arc::clone(&filter);
        tasks.push(Box::pin(async move {
            let name = format!("n{index}");
            let holder = Holder { node: name.clone(), ledger: "l".into(), owner: name, ..Holder::default() };
            let clock = Clock { now: 1_000, rest: 10 };
            let grid = Grid::new("10.0.0.0/29".parse().unwrap(), 2);
            let counter = Counter {
                registry: &gate,
                grid,
                filter: &filter,
                holder,
                shares_claim: false,
                clock,
                seed: 0,
            };
            match deed {
                Deed::Block => counter.block().await,
                Deed::Address(ip) => counter.address(ip.parse().unwrap()).await,
            }
        }));
    }
    let mut outcome = [None, None];
    let mut context = Context::from_waker(Waker::noop());
    // Up to the first request.
    for (index, task) in tasks.iter_mut().enumerate() {
        if let Poll::Ready(done) = task.as_mut().poll(&mut context) {
            outcome[index] = Some(done);
        }
    }
    for (index, fate) in history {
        if outcome[*index].is_some() {
            continue;
        }
        *gates[*index].open.lock().unwrap() = Some(*fate);
        if let Poll::Ready(done) = tasks[*index].as_mut().poll(&mut context) {
            outcome[*index] = Some(done);
        }
    }
    let objects = format!("{:?}", server.lock().unwrap().objects);
    (outcome, objects)
}

/// The addresses that a node may use.
fn addresses(outcome: &Option<Result<Lease, Refusal>>) -> BTreeSet<IpAddr> {
    let Some(Ok(Lease { net, holes, .. })) = outcome else { return BTreeSet::new() };
    net.hosts().filter(|ip| !holes.contains(ip)).collect()
}

/// Every history of these deeds; how many ended.
fn explore(deeds: [Deed; 2], faults: usize) -> usize {
    let mut seen: HashSet<String> = HashSet::new();
    let mut waiting: Vec<Vec<Step>> = vec![Vec::new()];
    let mut ended = 0;
    while let Some(history) = waiting.pop() {
        let (outcome, objects) = play(deeds, &history);
        let (one, other) = (addresses(&outcome[0]), addresses(&outcome[1]));
        assert!(one.is_disjoint(&other), "{deeds:?}: {history:?}: {outcome:?}: {objects}");
        if outcome.iter().all(Option::is_some) {
            ended += 1;
            continue;
        }
        let spent = history.iter().filter(|(_, fate)| *fate != Fate::Done).count();
        for node in [0, 1].into_iter().filter(|node| outcome[*node].is_none()) {
            for fate in FATES.into_iter().filter(|fate| *fate == Fate::Done || spent < faults) {
                let mut next = history.clone();
                next.push((node, fate));
                // How far each has come, what it was told, and what the server holds.
                let come: Vec<Vec<Fate>> = [0, 1]
                    .map(|node| next.iter().filter(|(n, _)| *n == node).map(|(_, fate)| *fate).collect())
                    .into();
                let (_, objects) = play(deeds, &next);
                let answered = answers(&next);
                if seen.insert(format!("{come:?}{answered:?}{objects}")) {
                    waiting.push(next);
                }
            }
        }
    }
    ended
}

/// The order of requests, which decides what each was answered.
fn answers(history: &[Step]) -> Vec<usize> {
    history.iter().map(|(node, _)| *node).collect()
}

#[test]
fn two_nodes_and_two_blocks_in_every_order() {
    let blocks = explore([Deed::Block, Deed::Block], 2);
    let mixed = explore([Deed::Block, Deed::Address("10.0.0.2")], 2);
    let within = explore([Deed::Address("10.0.0.5"), Deed::Block], 2);
    let both = explore([Deed::Address("10.0.0.2"), Deed::Address("10.0.0.2")], 2);
    println!("histories: {blocks} {mixed} {within} {both}");
    assert!([blocks, mixed, within, both].iter().all(|ended| *ended > 50));
}

#[test]
fn one_of_two_who_want_the_same_gets_it_where_nothing_is_lost() {
    for (deeds, most) in
        [([Deed::Address("10.0.0.2"), Deed::Address("10.0.0.2")], 1), ([Deed::Block, Deed::Block], 2)]
    {
        for first in 0..2_usize {
            let history: Vec<Step> =
                (0..20).map(|step| (if step < 8 { first } else { 1 - first }, Fate::Done)).collect();
            let (outcome, _) = play(deeds, &history);
            assert_eq!(
                outcome.iter().flatten().filter(|outcome| outcome.is_ok()).count(),
                most,
                "{outcome:?}"
            );
        }
    }
}
