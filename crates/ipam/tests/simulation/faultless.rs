//! Where nothing goes wrong: whether an address could be had, which STATUS is told, what was lost and leased again, and what
//! is kept where every block is leased.

use std::net::IpAddr;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use ipam::handover::{GivenUp, Outcome, tell, wanted};
use ipam::lease::{Counter, Refusal};
use ipam::ledger::{Clock, State};
use ipam::registry::{Holder, Object, Registry, make};
use ipam::turn::{Ask, Known, Wish, serve};
use ipam::{Filter, Grid, Range, confirm};
use ipnet::IpNet;

use super::api_server::Api;

fn wait<T>(task: impl Future<Output = T>) -> T {
    let mut task = pin!(task);
    loop {
        if let Poll::Ready(done) = task.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return done;
        }
    }
}

/// A pool of two blocks of four, and a network that may have a part of it.
struct World {
    api: Api,
    filter: Filter,
    grid: Grid,
}

const NOW: u64 = 1_000_000;

impl World {
    fn new(first: &str, last: &str) -> World {
        let subnet: IpNet = "10.0.0.0/29".parse().unwrap();
        let end = |text: &str| Some(text.parse::<IpAddr>().unwrap());
        let range = Range::between(subnet, end(first), end(last)).unwrap();
        let api = Api::new(1);
        api.server.lock().unwrap().trouble = 0;
        World { api, filter: Filter { range, exclude: Vec::new() }, grid: Grid::new(subnet, 2) }
    }

    fn make(&self, net: &str, node: &str, freed: u64) -> Object {
        let holder = Holder { node: node.into(), ledger: "l".into(), freed, ..Holder::default() };
        wait(make(&self.api, net.parse().unwrap(), &holder)).unwrap()
    }

    fn counter(&self) -> Counter<'_, Api> {
        Counter {
            registry: &self.api,
            grid: self.grid,
            filter: &self.filter,
            holder: Holder { node: "n0".into(), ledger: "l".into(), ..Holder::default() },
            shares_claim: false,
            clock: Clock { now: NOW, rest: 10 },
            seed: 0,
            looks: 0,
        }
    }

    fn room(&self, known: &[Known]) -> Result<(), Refusal> {
        wait(self.counter().has_room(known))
    }
}

fn known(object: &Object, state: State) -> Known {
    Known { net: object.net, lease: object.lease_id(), state, held: Vec::new() }
}

#[test]
fn what_is_not_confirmed_yet_is_room_if_it_is_still_ours() {
    let world = World::new("10.0.0.1", "10.0.0.6");
    let (own, other) = (world.make("10.0.0.0/30", "n0", 0), world.make("10.0.0.4/30", "n1", 0));
    assert_eq!(world.room(&[known(&own, State::Active)]), Err(Refusal::Exhausted));
    assert_eq!(world.room(&[known(&own, State::Unconfirmed)]), Ok(()));
    assert_eq!(world.room(&[known(&other, State::Unconfirmed)]), Err(Refusal::Exhausted));
}

#[test]
fn an_address_that_was_given_back_is_room_where_its_block_can_be_leased_and_the_network_may_have_it() {
    let world = World::new("10.0.0.1", "10.0.0.6");
    let _ = world.make("10.0.0.0/30", "n0", 0);
    let _ = world.make("10.0.0.5/32", "", 1);
    assert_eq!(world.room(&[]), Ok(()), "the second block");
    let _ = world.make("10.0.0.4/30", "n1", 0);
    assert_eq!(world.room(&[]), Err(Refusal::Exhausted), "it lies in another's block");

    let world = World::new("10.0.0.1", "10.0.0.4");
    let _ = world.make("10.0.0.0/30", "n0", 0);
    let _ = world.make("10.0.0.4/32", "n1", 0);
    let _ = world.make("10.0.0.5/32", "", 1);
    assert_eq!(world.room(&[]), Err(Refusal::Exhausted), "the network may not have it");
}

#[test]
fn a_clock_that_was_ahead_once_keeps_no_address_for_ever() {
    let world = World::new("10.0.0.1", "10.0.0.6");
    let clock = Clock { now: NOW, rest: 10 };
    assert_eq!(world.make("10.0.0.1/32", "", NOW - 5).rests_until(clock), Some(NOW + 5));
    assert_eq!(world.make("10.0.0.2/32", "", NOW - 10).rests_until(clock), None);
    assert_eq!(world.make("10.0.0.3/32", "", NOW + 31_536_000_000).rests_until(clock), None);
}

#[test]
fn what_was_leased_again_is_confirmed_once_whether_its_object_is_new_or_was_given_back() {
    let world = World::new("10.0.0.1", "10.0.0.6");
    for (net, is_deleted) in [("10.0.0.1/32", true), ("10.0.0.2/32", false)] {
        let old = world.make(net, "n0", 0);
        match is_deleted {
            true => wait(world.api.delete(&old)).unwrap(),
            false => wait(ipam::lease::reclaim(&world.api, old.clone(), NOW)).unwrap(),
        }
        let again = || {
            let holder = Holder { owner: "o".into(), ..world.counter().holder };
            wait(confirm::lease_again(&world.api, world.grid, old.net, &holder, NOW)).unwrap()
        };
        assert!(again(), "{net}");
        let known = Known { held: vec![old.net.addr()], ..known(&old, State::Unconfirmed) };
        let ask = Ask { known: vec![known], wish: Wish::Nothing };
        let seen = [wait(world.api.read(old.net)).unwrap().unwrap()];
        let asked = || wait(serve(&world.counter(), &ask, &seen));
        // A second call asks before the first one has written down what it was told.
        let (first, second) = (asked(), asked());
        let object = wait(world.api.read(old.net)).unwrap().unwrap();
        assert_eq!(first.confirmed, [(old.lease_id(), object.lease_id())], "{net}");
        assert_eq!((second.confirmed.as_slice(), object.holder.owner.as_str()), (&[][..], "o"), "{net}");
    }
}

#[test]
fn what_is_kept_where_every_block_is_leased_is_given_up_by_a_block_of_the_node_itself() {
    let world = World::new("10.0.0.1", "10.0.0.6");
    let own = world.make("10.0.0.0/30", "n0", 0);
    let _ = world.make("10.0.0.4/30", "n1", 0);
    let mut counter = world.counter();
    counter.holder = Holder { owner: "o".into(), claim: "c".into(), ..counter.holder };
    let asked = |spare: Option<&str>| {
        let wish = Wish::Kept(spare.map(|ip| ip.parse().unwrap()));
        wait(serve(&counter, &Ask { known: vec![known(&own, State::Active)], wish }, &[]))
    };
    assert_eq!(asked(None).refusal, Some(Refusal::Exhausted), "nothing is free in the ledger");
    let ip: IpAddr = "10.0.0.2".parse().unwrap();
    let supply = asked(Some("10.0.0.2"));
    assert_eq!((supply.refusal, supply.leases), (Some(Refusal::Own { ip, net: own.net }), Vec::new()));
    // It is free in the ledger still, and nobody's; then it is a hole there, and in the block.
    let single = || wait(world.api.read(ip.into())).unwrap().unwrap();
    assert_eq!((single().holder.asks.as_str(), single().is_nobodys()), ("n0", true));
    let block = wait(wanted(&world.api, world.grid, "n0", &single(), NOW)).unwrap().unwrap();
    assert_eq!(wait(tell(&world.api, &single(), block, GivenUp::Hole, NOW)), Ok(Outcome::Given));
    let leases = asked(Some("10.0.0.2")).leases;
    assert!(matches!(leases.as_slice(), [lease] if lease.net == ip.into() && lease.bound), "{leases:?}");
    assert_eq!(single().holder.claim, "c");
    // Its successor has it, whatever is free by then.
    counter.holder.owner = "successor".into();
    counter.shares_claim = true;
    let wish = Wish::Kept(Some("10.0.0.3".parse().unwrap()));
    let supply = wait(serve(&counter, &Ask { known: Vec::new(), wish }, &[]));
    assert!(matches!(supply.leases.as_slice(), [lease] if lease.net == ip.into()), "{supply:?}");
}

#[test]
fn what_a_block_has_given_up_is_anybodys_where_every_block_is_leased() {
    let world = World::new("10.0.0.1", "10.0.0.6");
    let _ = world.make("10.0.0.0/30", "n0", 0);
    let other = world.make("10.0.0.4/30", "n1", 0);
    let holes = vec!["10.0.0.5".parse().unwrap(), "10.0.0.6".parse().unwrap()];
    wait(world.api.replace(&Object { holes, ..other })).unwrap();
    // Of one nothing is known any more, the other one was freed just now.
    let _ = world.make("10.0.0.6/32", "", NOW - 5);
    let asked = |owner: &str, now: u64| {
        let mut counter = world.counter();
        (counter.holder.owner, counter.clock.now) = (owner.into(), now);
        let supply = wait(serve(&counter, &Ask { known: Vec::new(), wish: Wish::Any }, &[]));
        (supply.leases.first().map(|lease| (lease.net, lease.bound)), supply.refusal)
    };
    let single = |ip: &str| (Some((ip.parse::<IpNet>().unwrap(), true)), None);
    assert_eq!(world.room(&[]), Ok(()));
    assert_eq!(asked("a", NOW), single("10.0.0.5/32"));
    assert_eq!(world.room(&[]), Err(Refusal::Exhausted));
    assert_eq!(asked("b", NOW), (None, Some(Refusal::Resting(NOW + 5))));
    assert_eq!(asked("b", NOW + 5), single("10.0.0.6/32"));
    assert_eq!(asked("c", NOW + 5), (None, Some(Refusal::Exhausted)));
}

#[test]
fn an_older_question_takes_and_gives_back_nothing_that_a_newer_one_has_taken_since() {
    let world = World::new("10.0.0.1", "10.0.0.6");
    let holder = Holder { owner: "o".into(), ..world.counter().holder };
    let ip: IpAddr = "10.0.0.1".parse().unwrap();
    // The answer to this was lost, and both questions have seen it.
    let before = wait(world.api.create(ip.into(), &holder)).unwrap();
    let read = || wait(world.api.read(ip.into())).unwrap().unwrap();
    let asked = |wish, seen: &[Object]| {
        let counter = Counter { holder: holder.clone(), ..world.counter() };
        wait(serve(&counter, &Ask { known: Vec::new(), wish }, seen))
    };
    let seen = [before];
    let newer = asked(Wish::Address(ip), &seen);
    let had = read();
    assert_eq!(newer.leases.first().map(|lease| lease.uid.clone()), Some(had.lease_id()));
    for wish in [Wish::Address(ip), Wish::KeptAddress(ip), Wish::Kept(None), Wish::Nothing] {
        let older = asked(wish, &seen);
        assert_eq!((older.leases.as_slice(), read()), (&[][..], had.clone()), "{wish:?}");
    }
    // Nor what was leased since it was asked.
    assert_eq!(asked(Wish::Address(ip), &[]).refusal, Some(Refusal::Contended));
    assert_eq!(read(), had);
}

#[test]
fn what_is_held_in_doubt_is_not_given_back_to_who_is_leasing_the_block_around_it() {
    let world = World::new("10.0.0.1", "10.0.0.6");
    let ip: IpAddr = "10.0.0.1".parse().unwrap();
    let holder = Holder { owner: "o".into(), ..world.counter().holder };
    let old = wait(world.api.create(ip.into(), &holder)).unwrap();
    wait(world.api.delete(&old)).unwrap();
    let again = confirm::lease_again(&world.api, world.grid, old.net, &holder, NOW);
    assert!(wait(again).unwrap());
    // It was made, and has not looked for single addresses yet.
    let block = world.make("10.0.0.0/30", "n1", 0);
    let known = Known { held: vec![ip], ..known(&old, State::Unconfirmed) };
    let read = || wait(world.api.read(ip.into())).unwrap().unwrap();
    let asked = || {
        let ask = Ask { known: vec![known.clone()], wish: Wish::Nothing };
        wait(serve(&world.counter(), &ask, &[read()]))
    };
    assert_eq!((asked().confirmed, read().holder.node.as_str()), (Vec::new(), "n0"));
    let mut counter = world.counter();
    counter.holder.node = "n1".into();
    let supply = wait(serve(&counter, &Ask { known: Vec::new(), wish: Wish::Any }, &[block]));
    assert!(matches!(supply.leases.as_slice(), [lease] if lease.holes == [ip]), "{supply:?}");
    assert_eq!(asked().confirmed, [(old.lease_id(), read().lease_id())], "it is a hole by now");
    assert_eq!((read().holder.node.as_str(), read().holder.owner.as_str()), ("n0", "o"));
}

#[test]
fn what_the_ledger_has_is_leased_for_nobody_else_though_its_object_was_deleted() {
    let world = World::new("10.0.0.1", "10.0.0.6");
    let had = |net: &str| {
        let (net, lease) = (net.parse().unwrap(), "deleted.0".to_owned());
        Known { net, lease, state: State::Active, held: Vec::new() }
    };
    let asked = |known: Vec<Known>, wish| wait(serve(&world.counter(), &Ask { known, wish }, &[]));
    let [ip, block] = ["10.0.0.1/32", "10.0.0.0/30"].map(|net| net.parse::<IpNet>().unwrap());
    let named = asked(vec![had("10.0.0.1/32")], Wish::Address(ip.addr()));
    assert_eq!((named.refusal, named.leases), (Some(Refusal::Here(ip.addr())), Vec::new()));
    let _ = world.make("10.0.0.4/30", "n1", 0);
    let any = asked(vec![had("10.0.0.1/32")], Wish::Kept(None)).leases;
    assert!(matches!(any.as_slice(), [lease] if lease.bound && lease.net != ip), "{any:?}");
    let none = asked(vec![had("10.0.0.0/30")], Wish::Any);
    assert_eq!((none.refusal, none.leases), (Some(Refusal::Exhausted), Vec::new()));
    assert_eq!(wait(world.api.read(block)), Ok(None));
}

/// Deleted by force, for example: its sandbox is taken down a moment later.
#[test]
fn what_is_kept_for_a_pod_does_not_move_on_its_node_before_the_last_one_is_gone_from_there() {
    let world = World::new("10.0.0.1", "10.0.0.6");
    let ip: IpAddr = "10.0.0.1".parse().unwrap();
    let holder = Holder { owner: "before".into(), claim: "c".into(), ..world.counter().holder };
    let object = wait(make(&world.api, ip.into(), &holder)).unwrap();
    world.api.server.lock().unwrap().gone.insert("before".into());
    let asked = |node: &str, known: Vec<Known>, shares_claim| {
        let holder = Holder { node: node.into(), owner: "next".into(), ..holder.clone() };
        let counter = Counter { holder, shares_claim, ..world.counter() };
        let supply = wait(serve(&counter, &Ask { known, wish: Wish::Kept(None) }, &[]));
        (supply.leases.first().map(|lease| lease.net), supply.refusal)
    };
    for state in [State::Active, State::Unconfirmed] {
        assert_eq!(asked("n0", vec![known(&object, state)], false), (None, Some(Refusal::Here(ip))));
    }
    assert_eq!(asked("n0", vec![known(&object, State::Active)], true), (Some(ip.into()), None), "shared");
    world.api.server.lock().unwrap().gone.insert("next".into());
    assert_eq!(asked("n1", Vec::new(), false), (Some(ip.into()), None), "of another node nothing is known");
}
