//! Allocator requests without faults: capacity as STATUS reports it, leases created again, and claims while every block
//! is leased.

use std::net::IpAddr;

use ipam::registry::create_object;
use ipam::transfer::{TransferOutcome, TransferReply, complete_transfer, requested_block};
use ipam::{
    AddressFilter, AllocationError, AllocationKind, BlockAllocator, BlockInfo, BlockState, Clock, Holder,
    IpBlock, LeaseRequest, PoolLayout, Range, Registry, recreate_lease,
};
use ipnet::IpNet;

use super::api_server::{Api, block_on};

/// Pool of two blocks of four addresses, and a network that may allocate a part of it.
struct World {
    api: Api,
    filter: AddressFilter,
    layout: PoolLayout,
}

const NOW: u64 = 1_000_000;

impl World {
    fn new(first: &str, last: &str) -> World {
        let subnet: IpNet = "10.0.0.0/29".parse().unwrap();
        let end = |text: &str| Some(text.parse::<IpAddr>().unwrap());
        let range = Range::between(subnet, end(first), end(last)).unwrap();
        let api = Api::new(1);
        api.server.lock().unwrap().trouble = 0;
        World { api, filter: AddressFilter::new(range, &[]), layout: PoolLayout::new(subnet, 2) }
    }

    fn create(&self, net: &str, node: &str, released_at: u64) -> IpBlock {
        let holder = Holder { node: node.into(), store: "l".into(), released_at, ..Holder::default() };
        block_on(create_object(&self.api, net.parse().unwrap(), &holder)).unwrap()
    }

    fn allocator(&self) -> BlockAllocator<'_, Api> {
        BlockAllocator {
            registry: &self.api,
            layout: self.layout,
            filter: &self.filter,
            holder: Holder { node: "n0".into(), store: "l".into(), ..Holder::default() },
            shares_claim: false,
            clock: Clock { now: NOW, quarantine: 10 },
            seed: 0,
            transfer_checks: 0,
            lists_first: false,
        }
    }

    fn check_capacity(&self, blocks: &[BlockInfo]) -> Result<(), AllocationError> {
        block_on(self.allocator().check_capacity(blocks))
    }
}

fn info(object: &IpBlock, state: BlockState) -> BlockInfo {
    BlockInfo { net: object.net, lease: object.lease_id(), state, held: Vec::new(), released_at: 0 }
}

#[test]
fn capacity_includes_an_unconfirmed_block_of_this_node() {
    let world = World::new("10.0.0.1", "10.0.0.6");
    let (own, other) = (world.create("10.0.0.0/30", "n0", 0), world.create("10.0.0.4/30", "n0", 0));
    let active = [info(&own, BlockState::Active), info(&other, BlockState::Active)];
    assert_eq!(world.check_capacity(&active), Err(AllocationError::Exhausted));
    let [own, other] = active;
    assert_eq!(world.check_capacity(&[BlockInfo { state: BlockState::Unconfirmed, ..own }, other]), Ok(()));
}

#[test]
fn capacity_includes_unreserved_addresses_of_other_nodes() {
    let world = World::new("10.0.0.1", "10.0.0.6");
    let _ = world.create("10.0.0.0/30", "n0", 0);
    let other = world.create("10.0.0.4/30", "n1", 0);
    assert_eq!(world.check_capacity(&[]), Ok(()), "only the other node knows what is free");
    let reserved: Vec<IpAddr> = world.filter.addresses(other.net).collect();
    for ip in &reserved {
        let _ = world.create(&format!("{ip}/32"), "n2", 0);
    }
    block_on(world.api.replace(&IpBlock { reserved, ..other })).unwrap();
    assert_eq!(world.check_capacity(&[]), Err(AllocationError::Exhausted));
}

#[test]
fn capacity_includes_released_addresses_of_the_network() {
    let world = World::new("10.0.0.1", "10.0.0.6");
    let _ = world.create("10.0.0.0/30", "n0", 0);
    let _ = world.create("10.0.0.5/32", "", 1);
    assert_eq!(world.check_capacity(&[]), Ok(()), "the second block");

    let world = World::new("10.0.0.1", "10.0.0.4");
    let _ = world.create("10.0.0.0/30", "n0", 0);
    let _ = world.create("10.0.0.4/32", "n1", 0);
    let _ = world.create("10.0.0.5/32", "", 1);
    assert_eq!(world.check_capacity(&[]), Err(AllocationError::Exhausted), "the filter does not admit it");
}

#[test]
fn quarantine_ignores_a_release_time_in_the_far_future() {
    let world = World::new("10.0.0.1", "10.0.0.6");
    let clock = Clock { now: NOW, quarantine: 10 };
    assert_eq!(world.create("10.0.0.1/32", "", NOW - 5).quarantined_until(clock), Some(NOW + 5));
    assert_eq!(world.create("10.0.0.2/32", "", NOW - 10).quarantined_until(clock), None);
    assert_eq!(world.create("10.0.0.3/32", "", NOW + 31_536_000_000).quarantined_until(clock), None);
}

#[test]
fn lease_created_again_is_confirmed_once() {
    let world = World::new("10.0.0.1", "10.0.0.6");
    for (net, is_deleted) in [("10.0.0.1/32", true), ("10.0.0.2/32", false)] {
        let old = world.create(net, "n0", 0);
        if is_deleted {
            block_on(world.api.delete(&old)).unwrap();
        } else {
            block_on(ipam::reclaim(&world.api, old.clone(), NOW)).unwrap();
        }
        let again = || {
            let holder = Holder { owner: "o".into(), ..world.allocator().holder };
            block_on(recreate_lease(&world.api, world.layout, old.net, &holder, NOW)).unwrap()
        };
        assert!(again(), "{net}");
        let known = BlockInfo { held: vec![old.net.addr()], ..info(&old, BlockState::Unconfirmed) };
        let message = LeaseRequest { blocks: vec![known], kind: AllocationKind::Nothing };
        let seen = [block_on(world.api.read(old.net)).unwrap().unwrap()];
        let request = || block_on(world.allocator().serve(&message, &seen));
        // A second call sends its request before the first one has applied the response.
        let (first, second) = (request(), request());
        let object = block_on(world.api.read(old.net)).unwrap().unwrap();
        assert_eq!(first.confirmed, [(old.lease_id(), object.lease_id())], "{net}");
        assert_eq!((second.confirmed.as_slice(), object.holder.owner.as_str()), (&[][..], "o"), "{net}");
    }
}

#[test]
fn claim_gets_an_address_of_its_nodes_own_block() {
    let world = World::new("10.0.0.1", "10.0.0.6");
    let own = world.create("10.0.0.0/30", "n0", 0);
    let _ = world.create("10.0.0.4/30", "n1", 0);
    let mut allocator = world.allocator();
    allocator.holder = Holder { owner: "o".into(), claim: "c".into(), ..allocator.holder };
    let request = |spare: Option<&str>| {
        let kind = AllocationKind::ForClaim(spare.map(|ip| ip.parse().unwrap()));
        block_on(allocator.serve(&LeaseRequest { blocks: vec![info(&own, BlockState::Active)], kind }, &[]))
    };
    assert_eq!(request(None).error, Some(AllocationError::Exhausted), "nothing is free in the store");
    let ip: IpAddr = "10.0.0.2".parse().unwrap();
    let response = request(Some("10.0.0.2"));
    assert_eq!(
        (response.error, response.leases),
        (Some(AllocationError::InOwnBlock { ip, net: own.net }), Vec::new())
    );
    // The address is still free in the store, and its object is free; then it is reserved in both.
    let single = || block_on(world.api.read(ip.into())).unwrap().unwrap();
    assert_eq!((single().holder.transfer_requested_from.as_str(), single().is_free()), ("n0", true));
    let block = block_on(requested_block(&world.api, world.layout, "n0", &single(), NOW)).unwrap().unwrap();
    assert_eq!(
        block_on(complete_transfer(&world.api, &single(), block, TransferReply::Reserved, NOW)),
        Ok(TransferOutcome::Transferred)
    );
    let leases = request(Some("10.0.0.2")).leases;
    assert!(
        matches!(leases.as_slice(), [lease] if lease.net == ip.into() && lease.single_owner),
        "{leases:?}"
    );
    assert_eq!(single().holder.claim, "c");
    // The next pod of the claim gets it, whatever is free by then.
    allocator.holder.owner = "successor".into();
    allocator.shares_claim = true;
    let kind = AllocationKind::ForClaim(Some("10.0.0.3".parse().unwrap()));
    let response = block_on(allocator.serve(&LeaseRequest { blocks: Vec::new(), kind }, &[]));
    assert!(matches!(response.leases.as_slice(), [lease] if lease.net == ip.into()), "{response:?}");
}

#[test]
fn reserved_addresses_are_leased_when_every_block_is_leased() {
    let world = World::new("10.0.0.1", "10.0.0.6");
    let _ = world.create("10.0.0.0/30", "n0", 0);
    let other = world.create("10.0.0.4/30", "n1", 0);
    let reserved = vec!["10.0.0.5".parse().unwrap(), "10.0.0.6".parse().unwrap()];
    block_on(world.api.replace(&IpBlock { reserved, ..other })).unwrap();
    // One address has no object; the other one was released just now.
    let _ = world.create("10.0.0.6/32", "", NOW - 5);
    let request = |owner: &str, now: u64| {
        let mut allocator = world.allocator();
        (allocator.holder.owner, allocator.clock.now) = (owner.into(), now);
        let response =
            block_on(allocator.serve(&LeaseRequest { blocks: Vec::new(), kind: AllocationKind::Any }, &[]));
        (response.leases.first().map(|lease| (lease.net, lease.single_owner)), response.error)
    };
    let single = |ip: &str| (Some((ip.parse::<IpNet>().unwrap(), true)), None);
    assert_eq!(request("a", NOW), single("10.0.0.5/32"));
    assert_eq!(request("b", NOW), (None, Some(AllocationError::Quarantined(NOW + 5))));
    assert_eq!(request("b", NOW + 5), single("10.0.0.6/32"));
    assert_eq!(request("c", NOW + 5), (None, Some(AllocationError::Exhausted)));
}

#[test]
fn quarantine_does_not_apply_to_the_same_interface_of_a_pod() {
    let world = World::new("10.0.0.1", "10.0.0.6");
    let _ = world.create("10.0.0.0/30", "n0", 0);
    let other = world.create("10.0.0.4/30", "n1", 0);
    let reserved = vec!["10.0.0.5".parse().unwrap(), "10.0.0.6".parse().unwrap()];
    block_on(world.api.replace(&IpBlock { reserved, ..other })).unwrap();
    let _ = world.create("10.0.0.5/32", "n2", 0);
    let holder = Holder { owner: "uid/c1/net1".into(), released_at: NOW - 5, ..Holder::default() };
    let released = "10.0.0.6/32".parse().unwrap();
    let _ = block_on(create_object(&world.api, released, &holder)).unwrap();
    let request = |owner: &str| {
        let mut allocator = world.allocator();
        allocator.holder.owner = owner.into();
        let message = LeaseRequest { blocks: Vec::new(), kind: AllocationKind::Any };
        let response = block_on(allocator.serve(&message, &[]));
        (response.leases.first().map(|lease| lease.net), response.error)
    };
    for other in ["uid/c2/net2", "another/c1/net1"] {
        assert_eq!(request(other), (None, Some(AllocationError::Quarantined(NOW + 5))), "{other}");
    }
    assert_eq!(request("uid/c2/net1"), (Some(released), None), "another sandbox of the pod");
}

#[test]
fn stale_request_cannot_take_or_release_a_newer_lease() {
    let world = World::new("10.0.0.1", "10.0.0.6");
    let holder = Holder { owner: "o".into(), ..world.allocator().holder };
    let ip: IpAddr = "10.0.0.1".parse().unwrap();
    // The response with this lease was lost; both requests have seen the object.
    let before = block_on(world.api.create(ip.into(), &holder)).unwrap();
    let read = || block_on(world.api.read(ip.into())).unwrap().unwrap();
    let request = |kind, seen: &[IpBlock]| {
        let allocator = BlockAllocator { holder: holder.clone(), ..world.allocator() };
        block_on(allocator.serve(&LeaseRequest { blocks: Vec::new(), kind }, seen))
    };
    let seen = [before];
    let newer = request(AllocationKind::Address(ip), &seen);
    let current = read();
    assert_eq!(newer.leases.first().map(|lease| lease.id.clone()), Some(current.lease_id()));
    for kind in [
        AllocationKind::Address(ip),
        AllocationKind::AddressForClaim(ip),
        AllocationKind::ForClaim(None),
        AllocationKind::Nothing,
    ] {
        let older = request(kind, &seen);
        assert_eq!((older.leases.as_slice(), read()), (&[][..], current.clone()), "{kind:?}");
    }
    // Nor can it take what was leased after it was made.
    assert_eq!(request(AllocationKind::Address(ip), &[]).error, Some(AllocationError::Contended));
    assert_eq!(read(), current);
}

#[test]
fn unconfirmed_address_in_use_survives_a_lease_of_its_block() {
    let world = World::new("10.0.0.1", "10.0.0.6");
    let ip: IpAddr = "10.0.0.1".parse().unwrap();
    let holder = Holder { owner: "o".into(), ..world.allocator().holder };
    let old = block_on(world.api.create(ip.into(), &holder)).unwrap();
    block_on(world.api.delete(&old)).unwrap();
    let again = recreate_lease(&world.api, world.layout, old.net, &holder, NOW);
    assert!(block_on(again).unwrap());
    // The block was created; its node has not read the single addresses yet.
    let block = world.create("10.0.0.0/30", "n1", 0);
    let known = BlockInfo { held: vec![ip], ..info(&old, BlockState::Unconfirmed) };
    let read = || block_on(world.api.read(ip.into())).unwrap().unwrap();
    let request = || {
        let message = LeaseRequest { blocks: vec![known.clone()], kind: AllocationKind::Nothing };
        block_on(world.allocator().serve(&message, &[read()]))
    };
    assert_eq!((request().confirmed, read().holder.node.as_str()), (Vec::new(), "n0"));
    let mut allocator = world.allocator();
    allocator.holder.node = "n1".into();
    let response =
        block_on(allocator.serve(&LeaseRequest { blocks: Vec::new(), kind: AllocationKind::Any }, &[block]));
    assert!(matches!(response.leases.as_slice(), [lease] if lease.reserved == [ip]), "{response:?}");
    assert_eq!(request().confirmed, [(old.lease_id(), read().lease_id())], "the address is reserved by now");
    assert_eq!((read().holder.node.as_str(), read().holder.owner.as_str()), ("n0", "o"));
}

#[test]
fn manual_deletion_keeps_stored_addresses_from_other_pods() {
    let world = World::new("10.0.0.1", "10.0.0.6");
    let stored = |net: &str| {
        let (net, lease) = (net.parse().unwrap(), "deleted.0".to_owned());
        BlockInfo { net, lease, state: BlockState::Active, held: Vec::new(), released_at: 0 }
    };
    let request = |known: Vec<BlockInfo>, kind| {
        block_on(world.allocator().serve(&LeaseRequest { blocks: known, kind }, &[]))
    };
    let [ip, block] = ["10.0.0.1/32", "10.0.0.0/30"].map(|net| net.parse::<IpNet>().unwrap());
    let named = request(vec![stored("10.0.0.1/32")], AllocationKind::Address(ip.addr()));
    assert_eq!((named.error, named.leases), (Some(AllocationError::HeldOnThisNode(ip.addr())), Vec::new()));
    let _ = world.create("10.0.0.4/30", "n1", 0);
    let any = request(vec![stored("10.0.0.1/32")], AllocationKind::ForClaim(None)).leases;
    assert!(matches!(any.as_slice(), [lease] if lease.single_owner && lease.net != ip), "{any:?}");
    let none = request(vec![stored("10.0.0.0/30")], AllocationKind::Any);
    assert_eq!((none.error, none.leases), (Some(AllocationError::Exhausted), Vec::new()));
    assert_eq!(block_on(world.api.read(block)), Ok(None));
}

/// A pod that is deleted by force is gone from the cluster before its sandbox is removed.
#[test]
fn claim_address_stays_with_a_deleted_pod_on_its_node() {
    let world = World::new("10.0.0.1", "10.0.0.6");
    let ip: IpAddr = "10.0.0.1".parse().unwrap();
    let holder = Holder { owner: "before".into(), claim: "c".into(), ..world.allocator().holder };
    let object = block_on(create_object(&world.api, ip.into(), &holder)).unwrap();
    world.api.server.lock().unwrap().deleted_pods.insert("before".into());
    let request = |node: &str, known: Vec<BlockInfo>, shares_claim| {
        let holder = Holder { node: node.into(), owner: "next".into(), ..holder.clone() };
        let allocator = BlockAllocator { holder, shares_claim, ..world.allocator() };
        let response = block_on(
            allocator.serve(&LeaseRequest { blocks: known, kind: AllocationKind::ForClaim(None) }, &[]),
        );
        (response.leases.first().map(|lease| lease.net), response.error)
    };
    for state in [BlockState::Active, BlockState::Unconfirmed] {
        assert_eq!(
            request("n0", vec![info(&object, state)], false),
            (None, Some(AllocationError::HeldOnThisNode(ip)))
        );
    }
    assert_eq!(
        request("n0", vec![info(&object, BlockState::Active)], true),
        (Some(ip.into()), None),
        "shared"
    );
    world.api.server.lock().unwrap().deleted_pods.insert("next".into());
    assert_eq!(
        request("n1", Vec::new(), false),
        (Some(ip.into()), None),
        "another node knows nothing of the pod"
    );
}
