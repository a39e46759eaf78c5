//! Two nodes and two blocks, every order of events: what each node does to the registry, one request at a time, with any
//! request lost on the way there or back.
//!
//! A state is what the server holds, and how far each node has come; each is looked at once. A node that has a block from
//! the beginning has a ledger, too, and gives of it whatever is no hole there, at any moment.

use std::collections::{BTreeSet, HashSet};
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use ipam::handover::{self, GivenUp};
use ipam::lease::{Asked, Counter, Refusal};
use ipam::ledger::{Clock, Lease, Ledger, Slot};
use ipam::registry::{Fault, Holder, Object, Registry, Standing};
use ipam::turn::{self, Ask, GiveUp, Wish};
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
    /// Nothing while it is deleted, or made anew and not cut yet.
    pool: Option<Pool>,
    /// The single addresses that the pool was told of.
    told: BTreeSet<IpNet>,
}

impl Server {
    fn text(&self) -> String {
        format!("{:?}, {:?}", self.objects, self.told)
    }
}

/// A pool: how many of its name were before it, and the size of its blocks.
type Pool = (u64, u8);

/// The one that is there in the beginning, and the one that is made anew.
const POOLS: [Pool; 2] = [(0, 2), (1, 1)];

/// A registry where each request waits until it is let through.
#[derive(Clone)]
struct Gate {
    server: Arc<Mutex<Server>>,
    open: Arc<Mutex<Option<Fate>>>,
    /// The pool as it was read.
    pool: Pool,
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

    async fn standing(&self, net: IpNet) -> Result<Standing, Fault> {
        self.request(|server| {
            let is_mixed = server.told.iter().any(|single| net.contains(single));
            Ok(match (server.pool == Some(self.pool), is_mixed) {
                (false, _) => Standing::Anew,
                (true, true) => Standing::Mixed,
                (true, false) => Standing::Whole,
            })
        })
        .await
    }

    async fn tell(&self, net: IpNet) -> Result<(), Fault> {
        self.request(|server| {
            // One that is made anew is told, too; its answer says that it is.
            server.told.insert(net);
            if server.pool == Some(self.pool) { Ok(()) } else { Err(Fault::Unknown("anew".into())) }
        })
        .await
    }

    async fn is_gone(&self, _: &str) -> Result<bool, Fault> {
        self.request(|_| Ok(false)).await
    }

    async fn pause(&self, _: u32) {}
}

type Task = Pin<Box<dyn Future<Output = Result<Lease, Refusal>>>>;

/// What a node does: leases a block, or an address that lies in one; gives up of its block what it is asked for.
#[derive(Debug, Clone, Copy)]
enum Deed {
    Block,
    Address(&'static str),
    GivesUp(&'static str),
    /// Asks for an address, and once more if there was none.
    Asks,
    /// Asks for this address, once.
    AsksFor(&'static str),
    /// Somebody deletes the pool and makes it anew, of other blocks, of which this node asks for one.
    Anew,
}

/// The block that a node has from the beginning which gives something up.
const OWN: &str = "10.0.0.0/30";

/// The server with that block in it, and the ledger.
fn own() -> (Server, Ledger) {
    let net: IpNet = OWN.parse().unwrap();
    let holder = Holder { node: "n0".into(), ledger: "l".into(), ..Holder::default() };
    let object = Object { net, uid: "u0".into(), version: "0".into(), holder, holes: Vec::new() };
    let mut ledger = Ledger::new("b");
    let lease = Lease { net, uid: object.lease_id(), bound: false, holes: Vec::new() };
    let _ = ledger.add(&lease, 1);
    (Server { objects: vec![object], pool: Some(POOLS[0]), ..Server::default() }, ledger)
}

/// The whole of it, once; what the registry does not answer is asked again when the agent looks again.
async fn give_up(gate: &Gate, grid: Grid, ip: IpAddr, ledger: &Mutex<Ledger>) -> Result<Lease, Refusal> {
    let nothing = || Err(Refusal::Exhausted);
    let asked = gate.read(ip.into()).await?.filter(|object| object.holder.asks == "n0");
    let Some(object) = asked else { return nothing() };
    let Some(block) = handover::wanted(gate, grid, "n0", &object, 1_000).await? else { return nothing() };
    let given = match turn::give_up(&mut ledger.lock().unwrap(), &block.lease_id(), ip) {
        GiveUp::Hole(_) => GivenUp::Hole,
        GiveUp::Held(_) => GivenUp::Held("blue/x".into()),
        GiveUp::Unknown => GivenUp::Unknown,
    };
    handover::tell(gate, &object, block, given, 1_000).await?;
    nothing()
}

fn grid_of((_, bits): Pool) -> Grid {
    Grid::new("10.0.0.0/29".parse().unwrap(), bits)
}

/// One question of a ledger that has nothing, of a pool as it was read.
async fn ask(
    counter: &Counter<'_, Gate>,
    gate: &Gate,
    seen: &[Object],
    wish: Wish,
) -> Result<Lease, Refusal> {
    let (grid, filter, holder) = (grid_of(gate.pool), counter.filter, counter.holder.clone());
    let counter = Counter { registry: gate, grid, filter, holder, ..*counter };
    let ask = Ask { known: Vec::new(), wish };
    let mut supply = turn::serve(&counter, &ask, seen).await;
    assert!(supply.leases.len() <= 1, "{supply:?}");
    supply.leases.pop().ok_or(supply.refusal.unwrap_or(Refusal::Exhausted))
}

/// What nobody heard of is found by the second question.
async fn ask_twice(counter: &Counter<'_, Gate>) -> Result<Lease, Refusal> {
    let first = ask(counter, counter.registry, &[], Wish::Any).await;
    if first.is_ok() {
        return first;
    }
    let cut = counter.registry.request(|server| Ok((server.pool, server.objects.clone()))).await?;
    let (Some(pool), mut seen) = cut else { return Err(Refusal::Exhausted) };
    seen.retain(|object| object.holder.node == counter.holder.node);
    ask(counter, &Gate { pool, ..counter.registry.clone() }, &seen, Wish::Any).await
}

/// It is cut anew only if nothing that was leased is of another cut, as [`Registry`] has it.
async fn make_anew(counter: &Counter<'_, Gate>) -> Result<Lease, Refusal> {
    let (gate, pool) = (counter.registry, POOLS[1]);
    gate.request(|server| {
        (server.pool, server.told) = (None, BTreeSet::new());
        Ok(())
    })
    .await?;
    let fits = |object: &Object| grid_of(pool).block_of(object.net.addr()) == Some(object.net);
    if !gate.all().await?.iter().all(fits) {
        return Err(Refusal::Exhausted);
    }
    gate.request(|server| {
        server.pool = Some(pool);
        Ok(())
    })
    .await?;
    ask(counter, &Gate { pool, ..gate.clone() }, &[], Wish::Any).await
}

/// What a history came to.
struct Played {
    outcome: [Option<Result<Lease, Refusal>>; 2],
    /// What the node with the block may give.
    own: BTreeSet<IpAddr>,
    /// What the server holds.
    objects: String,
}

/// What the server and the node with a block have before anybody does anything.
fn begin(deeds: [Deed; 2], is_held: bool) -> (Server, Ledger) {
    let given_up = deeds.into_iter().find_map(|deed| match deed {
        Deed::GivesUp(ip) => Some(ip.parse().unwrap()),
        _ => None,
    });
    let none = Server { pool: Some(POOLS[0]), ..Server::default() };
    let Some(ip) = given_up else { return (none, Ledger::new("b")) };
    let (server, mut ledger) = own();
    if is_held {
        let place = ledger.find(ip).unwrap();
        let _ = ledger.hold(place, 1, 42);
    }
    (server, ledger)
}

/// Plays one history from the beginning.
fn play(deeds: [Deed; 2], history: &[Step], is_held: bool) -> Played {
    let (server, ledger) = begin(deeds, is_held);
    let (server, ledger) = (Arc::new(Mutex::new(server)), Arc::new(Mutex::new(ledger)));
    let subnet: IpNet = "10.0.0.0/29".parse().unwrap();
    let filter = Arc::new(Filter { range: Range::between(subnet, None, None).unwrap(), exclude: Vec::new() });
    let mut gates = Vec::new();
    let mut tasks: Vec<Task> = Vec::new();
    for (index, deed) in deeds.into_iter().enumerate() {
        let gate = Gate { server: Arc::clone(&server), open: Arc::default(), pool: POOLS[0] };
        gates.push(gate.clone());
        let (filter, ledger) = (Arc::clone(&filter), Arc::clone(&ledger));
        tasks.push(Box::pin(async move {
            let name = format!("n{index}");
            let holder = Holder { node: name.clone(), ledger: "l".into(), owner: name, ..Holder::default() };
            let clock = Clock { now: 1_000, rest: 10 };
            let grid = grid_of(gate.pool);
            let counter = Counter {
                registry: &gate,
                grid,
                filter: &filter,
                holder,
                shares_claim: false,
                clock,
                seed: 0,
                looks: 1,
            };
            match deed {
                Deed::Block => counter.block(Asked::default()).await,
                Deed::Address(ip) => counter.address(ip.parse().unwrap(), Asked::default()).await,
                Deed::GivesUp(ip) => give_up(&gate, grid, ip.parse().unwrap(), &ledger).await,
                Deed::Asks => ask_twice(&counter).await,
                Deed::AsksFor(ip) => ask(&counter, &gate, &[], Wish::Address(ip.parse().unwrap())).await,
                Deed::Anew => make_anew(&counter).await,
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
    let objects = server.lock().unwrap().text();
    let ledger = ledger.lock().unwrap();
    let of_block = |block| {
        let slots = ledger.slots_of(&block).enumerate().filter(|(_, what)| *what != Slot::Hole);
        slots.map(move |(slot, _)| ipam::grid::nth(block.net, slot as u128)).collect::<Vec<_>>()
    };
    let own = ledger.blocks().flat_map(of_block).collect();
    Played { outcome, own, objects }
}

/// The addresses that a node may use.
fn addresses(outcome: &Option<Result<Lease, Refusal>>) -> BTreeSet<IpAddr> {
    let Some(Ok(Lease { net, holes, .. })) = outcome else { return BTreeSet::new() };
    net.hosts().filter(|ip| !holes.contains(ip)).collect()
}

/// Every history of these deeds; how many ended.
fn explore(deeds: [Deed; 2], faults: usize) -> usize {
    explore_with(deeds, faults, false).0
}

/// The same, and how many of them ended with an address of the second node.
fn explore_with(deeds: [Deed; 2], faults: usize, is_held: bool) -> (usize, usize) {
    let mut seen: HashSet<String> = HashSet::new();
    let mut waiting: Vec<Vec<Step>> = vec![Vec::new()];
    let (mut ended, mut had) = (0, 0);
    while let Some(history) = waiting.pop() {
        let Played { outcome, own, objects } = play(deeds, &history, is_held);
        let (mut one, other) = (addresses(&outcome[0]), addresses(&outcome[1]));
        one.extend(own);
        assert!(one.is_disjoint(&other), "{deeds:?}: {history:?}: {outcome:?}: {objects}");
        if outcome.iter().all(Option::is_some) {
            ended += 1;
            had += usize::from(!other.is_empty());
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
                let objects = play(deeds, &next, is_held).objects;
                let answered = answers(&next);
                if seen.insert(format!("{come:?}{answered:?}{objects}")) {
                    waiting.push(next);
                }
            }
        }
    }
    (ended, had)
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
fn an_address_that_is_asked_for_is_never_two_nodes_whatever_is_lost_and_a_held_one_never_moves() {
    let deeds = [Deed::GivesUp("10.0.0.2"), Deed::Address("10.0.0.2")];
    let (ended, had) = explore_with(deeds, 2, false);
    let (refused, never) = explore_with(deeds, 2, true);
    println!("histories: {ended}, {had} with the address; {refused} where it is held");
    assert!(had > 0 && ended > 50 && refused > 50);
    assert_eq!(never, 0, "it is held where the block is");
}

#[test]
fn a_pool_that_is_made_anew_while_something_is_leased_of_it_is_cut_in_one_way() {
    let (ended, had) = explore_with([Deed::Asks, Deed::Anew], 1, false);
    let (single, also) = explore_with([Deed::AsksFor("10.0.0.2"), Deed::Anew], 1, false);
    println!(
        "histories: {ended}, {had} with a block of the new pool; {single}, {also} beside a single address"
    );
    assert!(ended > 50 && had > 0 && single > 50 && also > 0);
}

#[test]
fn one_of_two_who_want_the_same_gets_it_where_nothing_is_lost() {
    for (deeds, most) in
        [([Deed::Address("10.0.0.2"), Deed::Address("10.0.0.2")], 1), ([Deed::Block, Deed::Block], 2)]
    {
        for first in 0..2_usize {
            let history: Vec<Step> =
                (0..20).map(|step| (if step < 8 { first } else { 1 - first }, Fate::Done)).collect();
            let outcome = play(deeds, &history, false).outcome;
            assert_eq!(
                outcome.iter().flatten().filter(|outcome| outcome.is_ok()).count(),
                most,
                "{outcome:?}"
            );
        }
    }
}
