//! Simulation of a cluster: nodes, a controller and an API server with faults, in one thread, by seed. It runs the real
//! address stores and the real allocator.
//!
//! ```text
//!   node: address store ◄── edits, one by one ── call (ADD, DEL) ── request ──► agent ──► registry (with faults)
//!                  killed between any two edits      killed while it waits      killed at any request
//! ```
//!
//! A node may die, start again, or live although the cluster takes it for dead. Objects are deleted manually, claims
//! end. Invariants, checked at every step:
//!
//! - No address has two owners, and a repeated ADD returns the same address.
//! - A released address stays in quarantine. A drained block gets no new owner.
//! - A refused request names what holds the address.
//! - After all faults are repaired and all pods deleted, every address can be allocated again.
//!
//! `SEEDS=1000..2000 cargo test --release -p ipam --test simulation` runs other seeds. A failure names its seed.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panicking"
)]

mod api_server;
mod cluster;
mod draining;
mod faultless;
mod interleavings;
mod restore;
mod transfer;

use cluster::{Cluster, Counts, Shape};

/// Seeds that found a mistake in an earlier state of the code.
const FAILED_BEFORE: &[u64] = &[
    40, 55, 123, 1018, 1029, 1111, 1122, 2063, 2148, 2554, 4624, 5732, 7302, 7860, 10757, 14291, 20163,
    40263, 50167,
];
/// Seeds in which an address in a block of the requesting node is obtained in one call, which is rare.
const RARE: &[u64] = &[13, 32, 45];

/// Shape without special events.
const PLAIN: Shape = Shape {
    subnet: "",
    bits: 0,
    nodes: 4,
    steps: 40_000,
    claims: 0,
    late: false,
    shared: false,
    deleted: false,
    changes: false,
    restores: false,
    losses: false,
};

fn seeds() -> std::ops::Range<u64> {
    let given = std::env::var("SEEDS").ok();
    let parsed = given.as_deref().and_then(|text| {
        let (from, to) = text.split_once("..")?;
        Some(from.parse().ok()?..to.parse().ok()?)
    });
    parsed.unwrap_or(0..12)
}

/// Runs every seed, and checks that each kind of event happened at least once.
fn run(shape: Shape) {
    let (mut all, mut read, mut not_read) = (Counts::default(), 0, 0);
    for seed in FAILED_BEFORE.iter().chain(RARE).copied().chain(seeds()) {
        let mut cluster = Cluster::new(seed, shape);
        cluster.run(shape.steps);
        cluster.repair_and_empty();
        let (steps, counts) = (cluster.steps, cluster.counts);
        assert!(counts.allocated > 0, "seed {seed}: no address was allocated in {steps} steps");
        println!("seed {seed}: {steps} steps, {counts}");
        all = all + counts;
        let [with, without] = cluster.pool_states();
        (read, not_read) = (read + with, not_read + without);
    }
    println!("the single addresses of {read} blocks were read, those of {not_read} were not");
    let has_blocks = shape.bits > 0;
    assert!(!has_blocks || read > 0 && not_read > 0, "{read} blocks were read, {not_read} were not");
    assert!(all.unconfirmed > 0, "no node survived that was taken for dead");
    assert!(all.leased_again > 0, "no lease was created again under its pods");
    let is_deleted = shape.shared || shape.deleted;
    assert!(!is_deleted || all.deleted > 0, "no object in use was deleted manually");
    assert!(!is_deleted || !has_blocks || all.returned > 0, "no manually deleted block was returned");
    let has_claims = shape.claims > 0;
    assert!(!has_claims || !has_blocks || all.transferred > 0, "no address was transferred");
    // In a large range few requests name an address of a block of their own node.
    let is_small = ipam::pool_layout::address_count(shape.subnet.parse().unwrap()) <= 64;
    assert!(
        !has_claims || !has_blocks || !is_small || shape.deleted || all.own_block > 0,
        "no address of a block of the requesting node was obtained in one call"
    );
    assert!(!has_claims || all.refused_by_name > 0, "no request named an address of another owner");
    assert!(!has_blocks || all.drained > 0, "no block was drained");
    assert!(!shape.changes || all.enlarged > 0 && all.filled > 0, "no range was enlarged");
    assert!(!shape.restores || all.restored > 0, "no reserved address was restored");
    assert!(!shape.losses || all.backups > 0, "no backup was restored");
    assert!(!shape.losses || all.stores_removed > 0, "no address store was removed");
    assert!(!shape.changes || !has_claims || all.imported > 0, "no imported address was allocated");
}

#[test]
fn simulation_of_blocks_in_a_large_range() {
    run(Shape { subnet: "10.0.0.0/22", bits: 4, nodes: 8, steps: 60_000, claims: 0, ..PLAIN });
}

/// Most blocks are leased without a read of their single addresses, and single addresses appear in some of them.
#[test]
fn simulation_of_scattered_single_addresses_in_a_large_range() {
    run(Shape { subnet: "10.0.0.0/21", bits: 2, nodes: 8, steps: 40_000, claims: 40, ..PLAIN });
}

#[test]
fn simulation_of_fewer_blocks_than_nodes_need() {
    run(Shape { subnet: "10.0.0.0/26", bits: 3, nodes: 6, steps: 40_000, claims: 0, ..PLAIN });
}

#[test]
fn simulation_of_fewer_addresses_than_nodes() {
    run(Shape { subnet: "10.0.0.0/29", bits: 0, nodes: 12, steps: 40_000, claims: 0, ..PLAIN });
}

#[test]
fn simulation_of_claims_and_named_addresses() {
    run(Shape { subnet: "fd00::/122", bits: 2, nodes: 5, steps: 40_000, claims: 6, ..PLAIN });
}

/// Claims get addresses outside of blocks at first; soon every block is leased.
#[test]
fn simulation_of_claims_when_every_block_is_leased() {
    run(Shape { subnet: "10.0.0.0/27", bits: 3, nodes: 4, steps: 40_000, claims: 16, ..PLAIN });
}

/// Objects of nodes are deleted manually, and pods ask for addresses before the agents have seen it.
#[test]
fn simulation_of_manual_deletion_seen_late_by_the_agent() {
    for (subnet, bits, claims) in [("10.0.0.0/29", 0, 3), ("10.0.0.0/27", 2, 8), ("10.0.0.0/27", 3, 0)] {
        run(Shape { subnet, bits, claims, late: true, ..PLAIN });
    }
}

/// Any object is deleted manually at any moment, whether its node is present or not.
#[test]
fn simulation_of_manual_deletion_of_objects_in_use() {
    for (subnet, bits, claims) in [("10.0.0.0/29", 0, 3), ("10.0.0.0/26", 2, 6), ("10.0.0.0/24", 3, 0)] {
        run(Shape { subnet, bits, claims, deleted: true, ..PLAIN });
    }
}

/// Ranges are enlarged, windows change, nodes are added and drained, and addresses are imported, with all other faults.
#[test]
fn simulation_of_changed_ranges_and_node_counts() {
    for (subnet, bits, claims) in
        [("10.0.0.8/29", 0, 0), ("10.0.0.32/28", 2, 0), ("10.0.0.0/28", 0, 6), ("fd00::40/122", 2, 6)]
    {
        run(Shape { subnet, bits, claims, nodes: 6, changes: true, ..PLAIN });
    }
}

/// Reserved addresses are restored, by agents that see their objects late and are killed, with all other faults.
#[test]
fn simulation_of_restored_addresses() {
    let shape = Shape { restores: true, ..PLAIN };
    run(Shape { subnet: "10.0.0.0/27", bits: 3, claims: 16, ..shape });
    run(Shape { subnet: "fd00::/122", bits: 2, nodes: 5, claims: 6, ..shape });
    run(Shape { subnet: "10.0.0.0/26", bits: 3, nodes: 6, ..shape });
    run(Shape { subnet: "10.0.0.0/26", bits: 2, claims: 6, deleted: true, ..shape });
    run(Shape { subnet: "10.0.0.32/28", bits: 2, claims: 6, nodes: 6, changes: true, ..shape });
}

/// Address stores are removed under their pods, and the database of the API server is restored to an earlier state.
#[test]
fn simulation_of_removed_stores_and_a_restored_database() {
    let shape = Shape { losses: true, ..PLAIN };
    for (subnet, bits, claims) in
        [("10.0.0.0/28", 0, 0), ("fd00::/124", 0, 4), ("10.0.0.0/26", 3, 0), ("fd00::/122", 2, 6)]
    {
        run(Shape { subnet, bits, claims, ..shape });
    }
}

/// A virtual machine that is migrated has two pods; either may be the last one with its address.
#[test]
fn simulation_of_addresses_shared_by_pods_of_a_claim() {
    for (subnet, bits) in [("10.0.0.0/28", 0), ("10.0.0.0/26", 2)] {
        run(Shape { subnet, bits, claims: 6, shared: true, ..PLAIN });
    }
}
