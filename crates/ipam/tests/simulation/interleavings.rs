//! Interleavings: two nodes and two blocks, and every order of their requests, with lost requests and lost answers.
//!
//! A history is a sequence of steps. Histories that lead to the same state of server and nodes are explored once. A
//! node that leases a block from the beginning may allocate every address of it that its store does not reserve, at any
//! moment.

mod action;
mod gate;

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use ipam::address_store::{Block, Slot};
use ipam::{AddressFilter, AddressStore, AllocationError, BlockLease, BlockState, Range};
use ipnet::IpNet;

use self::action::{Action, Task, own, own_with_reserved, request_for_any};
use self::gate::{ENLARGED, FATES, Fate, Gate, POOLS, Pool, Server, Step};

/// Result of a history.
struct Played {
    outcome: [Option<Result<BlockLease, AllocationError>>; 2],
    /// Addresses that the transferring node may allocate.
    own: BTreeSet<IpAddr>,
    /// Addresses that are reserved in the object of its block: another node may use them.
    reserved: BTreeSet<IpAddr>,
    /// Objects of the server.
    objects: String,
}

/// Server and store at the beginning.
fn begin(actions: [Action; 2], is_held: bool) -> (Server, AddressStore) {
    let transferred = actions.into_iter().find_map(|action| match action {
        Action::Transfers(ip) => Some(ip.parse().unwrap()),
        _ => None,
    });
    if actions.iter().any(|action| matches!(action, Action::GivesUp)) {
        let (mut server, mut store) = own();
        server.objects[0].holder.transfer_requests.push(request_for_any());
        if is_held {
            let place = store.find("10.0.0.1".parse().unwrap()).unwrap();
            let _ = store.hold(place, 1, 42);
        }
        return (server, store);
    }
    if let Some(ip) = actions.into_iter().find_map(|action| match action {
        Action::Restores(ip) => Some(ip.parse().unwrap()),
        _ => None,
    }) {
        return own_with_reserved(ip, is_held);
    }
    let none = Server { pool: Some(first_pool(actions)), ..Server::default() };
    let Some(ip) = transferred else { return (none, AddressStore::new("b")) };
    let (server, mut store) = own();
    if is_held {
        let place = store.find(ip).unwrap();
        let _ = store.hold(place, 1, 42);
    }
    (server, store)
}

/// Pool at the beginning.
fn first_pool(actions: [Action; 2]) -> Pool {
    if actions.iter().any(|action| matches!(action, Action::EnlargesPool)) { ENLARGED[0] } else { POOLS[0] }
}

/// Plays a history from the beginning.
fn play(actions: [Action; 2], history: &[Step], is_held: bool) -> Played {
    let (server, store) = begin(actions, is_held);
    let (server, store) = (Arc::new(Mutex::new(server)), Arc::new(Mutex::new(store)));
    let subnet: IpNet = "10.0.0.0/29".parse().unwrap();
    let filter = Arc::new(AddressFilter::new(Range::between(subnet, None, None).unwrap(), &[]));
    let mut gates = Vec::new();
    let mut tasks: Vec<Task> = Vec::new();
    for (index, action) in actions.into_iter().enumerate() {
        let gate = Gate { server: Arc::clone(&server), open: Arc::default(), pool: first_pool(actions) };
        gates.push(gate.clone());
        let (filter, store) = (Arc::clone(&filter), Arc::clone(&store));
        tasks.push(Box::pin(async move { action.run(index, &gate, &filter, &store).await }));
    }
    let mut outcome = [None, None];
    let mut context = Context::from_waker(Waker::noop());
    // Each node runs up to its first request.
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
    let (objects, reserved) = {
        let server = server.lock().unwrap();
        let own = server.objects.iter().filter(|object| object.holder.node == "n0");
        (server.text(), own.flat_map(|object| object.reserved.clone()).collect())
    };
    let store = store.lock().unwrap();
    let of_block = |block| {
        let slots = store.slots_of(&block).enumerate().filter(|(_, what)| *what != Slot::Reserved);
        slots.map(move |(slot, _)| ipam::pool_layout::nth(block.net, slot as u128)).collect::<Vec<_>>()
    };
    let is_open = |block: &Block| block.state == BlockState::Active;
    let own = store.blocks().filter(is_open).flat_map(of_block).collect();
    Played { outcome, own, reserved, objects }
}

/// Addresses that a node may use.
fn addresses(outcome: &Option<Result<BlockLease, AllocationError>>) -> BTreeSet<IpAddr> {
    let Some(Ok(BlockLease { net, reserved, .. })) = outcome else { return BTreeSet::new() };
    net.hosts().filter(|ip| !reserved.contains(ip)).collect()
}

/// Explores every history of these actions; returns the number of complete ones.
fn explore(actions: [Action; 2], faults: usize) -> usize {
    explore_with(actions, faults, false).0
}

/// Explores every history of these actions; returns the number of complete ones, and of those in which the second node
/// obtained an address.
fn explore_with(actions: [Action; 2], faults: usize, is_held: bool) -> (usize, usize) {
    let mut seen: HashSet<String> = HashSet::new();
    let mut waiting: Vec<Vec<Step>> = vec![Vec::new()];
    let (mut ended, mut had) = (0, 0);
    while let Some(history) = waiting.pop() {
        let Played { outcome, own, reserved, objects } = play(actions, &history, is_held);
        let (mut one, other) = (addresses(&outcome[0]), addresses(&outcome[1]));
        assert!(own.is_disjoint(&reserved), "{actions:?}: {history:?}: {own:?} {objects}");
        one.extend(own);
        assert!(one.is_disjoint(&other), "{actions:?}: {history:?}: {outcome:?}: {objects}");
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
                // Progress of each node, the answers it got, and the state of the server.
                let come: Vec<Vec<Fate>> = [0, 1]
                    .map(|node| next.iter().filter(|(n, _)| *n == node).map(|(_, fate)| *fate).collect())
                    .into();
                let objects = play(actions, &next, is_held).objects;
                let answered = answers(&next);
                if seen.insert(format!("{come:?}{answered:?}{objects}")) {
                    waiting.push(next);
                }
            }
        }
    }
    (ended, had)
}

/// Order of the requests, which determines their answers.
fn answers(history: &[Step]) -> Vec<usize> {
    history.iter().map(|(node, _)| *node).collect()
}

#[test]
fn interleavings_of_two_leases_never_share_an_address() {
    let blocks = explore([Action::Block, Action::Block], 2);
    let mixed = explore([Action::Block, Action::Address("10.0.0.2")], 2);
    let within = explore([Action::Address("10.0.0.5"), Action::Block], 2);
    let both = explore([Action::Address("10.0.0.2"), Action::Address("10.0.0.2")], 2);
    println!("histories: {blocks} {mixed} {within} {both}");
    assert!([blocks, mixed, within, both].iter().all(|ended| *ended > 50));
}

#[test]
fn interleavings_of_a_transfer_never_share_an_address() {
    let actions = [Action::Transfers("10.0.0.2"), Action::Address("10.0.0.2")];
    let (ended, had) = explore_with(actions, 2, false);
    let (refused, never) = explore_with(actions, 2, true);
    println!("histories: {ended}, {had} with the address; {refused} where it is held");
    assert!(had > 0 && ended > 50 && refused > 50);
    assert_eq!(never, 0, "the address is held on the node of the block");
}

#[test]
fn interleavings_of_a_given_up_address_never_share_it() {
    let (ended, had) = explore_with([Action::GivesUp, Action::Address("10.0.0.2")], 2, true);
    let (other, _) = explore_with([Action::GivesUp, Action::Address("10.0.0.3")], 2, true);
    let (blocks, leased) = explore_with([Action::GivesUp, Action::Block], 2, false);
    println!("histories: {ended}, {had} with the address; {other}; {blocks}, {leased} with a block");
    assert!(ended > 50 && had > 0 && other > 50 && blocks > 50 && leased > 0);
}

#[test]
fn interleavings_of_a_restored_address_never_share_it() {
    let ip = "10.0.0.2";
    for (other, faults) in
        [(Action::Address(ip), 1), (Action::TransferredAddress(ip), 1), (Action::Restores(ip), 2)]
    {
        for has_object in [false, true] {
            let (ended, had) = explore_with([Action::Restores(ip), other], faults, has_object);
            println!("histories with {other:?}: {ended}, {had} with the address");
            assert!(ended > 50);
            // An object that is there cannot be created again.
            let is_leased = matches!(other, Action::Address(_)) || !has_object;
            assert!(had > 0 || !is_leased || matches!(other, Action::Restores(_)));
        }
    }
}

#[test]
fn interleavings_of_a_recreated_pool_have_one_layout() {
    let (ended, had) = explore_with([Action::Requests, Action::RecreatesPool], 1, false);
    let (single, also) = explore_with([Action::RequestsAddress("10.0.0.2"), Action::RecreatesPool], 1, false);
    println!(
        "histories: {ended}, {had} with a block of the new pool; {single}, {also} beside a single address"
    );
    assert!(ended > 50 && had > 0 && single > 50 && also > 0);
}

#[test]
fn interleavings_of_an_enlarged_pool_never_share_an_address() {
    let (ended, had) = explore_with([Action::Requests, Action::EnlargesPool], 1, false);
    let (single, also) = explore_with([Action::RequestsAddress("10.0.0.2"), Action::EnlargesPool], 1, false);
    let (late, block) = explore_with([Action::RequestsAddress("10.0.0.5"), Action::EnlargesPool], 2, false);
    println!(
        "histories: {ended}, {had} with a block; {single}, {also} beside an address; {late}, {block} with two faults"
    );
    assert!([ended, had, single, also, late, block].iter().all(|count| *count > 0) && ended > 50);
}

#[test]
fn interleavings_without_loss_lease_each_address_once() {
    for (actions, most) in
        [([Action::Address("10.0.0.2"), Action::Address("10.0.0.2")], 1), ([Action::Block, Action::Block], 2)]
    {
        for first in 0..2_usize {
            let history: Vec<Step> =
                (0..20).map(|step| (if step < 8 { first } else { 1 - first }, Fate::Done)).collect();
            let outcome = play(actions, &history, false).outcome;
            assert_eq!(
                outcome.iter().flatten().filter(|outcome| outcome.is_ok()).count(),
                most,
                "{outcome:?}"
            );
        }
    }
}
