//! `weft ipam show`: how full pools are, block by block if that is wanted, and what this node's ledgers say of theirs.
//!
//! Rules: what a node has given inside a block only its ledger knows; for the whole cluster `used` counts what the pods'
//! network-status shows.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use ipam::address_store::{Block, Slot, is_valid_name};
use ipam::pool_layout::address_count;
use ipam::{BlockState, Clock, IpBlock};
use ipnet::IpNet;
use serde::Serialize;

use cli_support::failure::Failure;
use cli_support::output;
use cli_support::output::Format;
use cli_support::table;
use ipam_api::clock::now;
use ipam_api::cluster_snapshot::ClusterSnapshot;
use ipam_api::ip_objects::PoolObject;
use ipam_api::store_name::address_store_name;
use kube_support::custom_resources::IPPoolStatus;
use node_support::address_store;

/// Cells of a bar.
const BAR: usize = 20;

/// One pool for programs.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Pool<'a> {
    name: &'a str,
    range: &'a str,
    network_name: &'a str,
    #[serde(flatten)]
    status: IPPoolStatus,
    /// Blocks that nodes have, of all, for people.
    #[serde(skip)]
    share: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    objects: Option<Vec<Leased>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ledger: Vec<Own>,
}

/// A block or a single address, as the cluster has it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Leased {
    range: String,
    node: String,
    claim: String,
    used: u64,
    addresses: String,
}

/// A block of this node, as its ledger has it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Own {
    range: String,
    state: &'static str,
    held: u64,
    resting: u64,
    free: u64,
}

/// Shows the pools; `blocks` shows what each consists of.
pub(super) fn show(
    snapshot: &ClusterSnapshot,
    blocks: bool,
    ledgers: &Path,
    format: Format,
) -> Result<(), Failure> {
    let mut pools = Vec::with_capacity(snapshot.pools.len());
    for pool in &snapshot.pools {
        let PoolObject { metadata, spec, .. } = pool;
        let name = metadata.name.as_deref().unwrap_or_default();
        let status = snapshot.status_of(pool);
        pools.push(Pool {
            name,
            range: &spec.range,
            network_name: &spec.network_name,
            share: share(pool, &status),
            status,
            objects: blocks.then(|| leased(snapshot, name)),
            ledger: names(snapshot, name).iter().flat_map(|name| own(&ledgers.join(name))).collect(),
        });
    }
    if format == Format::Json {
        return output::print_json(&pools);
    }
    if pools.is_empty() {
        return output::print("there are no pools\n");
    }
    output::print(&table::lay_out(&HEADINGS, &pools.iter().map(row).collect::<Vec<_>>(), 0))?;
    let each = |rows: fn(&Pool<'_>) -> Vec<Vec<String>>| -> Vec<Vec<String>> {
        pools.iter().flat_map(rows).collect()
    };
    if blocks {
        let headings = ["block", "pool", "node", "claim", "used", "of it"];
        output::print(&format!("\n{}", table::lay_out(&headings, &each(rows_of_objects), 0)))?;
    }
    let own = each(rows_of_ledger);
    if own.is_empty() {
        return Ok(());
    }
    let headings = ["on this node", "pool", "state", "held", "resting", "free", "held of it"];
    output::print(&format!("\n{}", table::lay_out(&headings, &own, 0)))
}

const HEADINGS: [&str; 8] = ["pool", "range", "network", "blocks", "single", "nodes", "used", "leased"];

fn row(pool: &Pool<'_>) -> Vec<String> {
    let Pool { name, range, network_name, status, share, .. } = pool;
    let IPPoolStatus { single_addresses, nodes, leased_percent, used_addresses, .. } = status;
    vec![
        (*name).to_owned(),
        (*range).to_owned(),
        (*network_name).to_owned(),
        share.clone(),
        single_addresses.to_string(),
        nodes.to_string(),
        used_addresses.to_string(),
        bar(*leased_percent),
    ]
}

/// Of how many blocks it is is known when somebody has used it, unless somebody has said it before or spoilt it since.
fn share(pool: &PoolObject, status: &IPPoolStatus) -> String {
    let leased = status.leased_blocks;
    match pool.grid() {
        Ok(Some(grid)) => format!("{leased}/{}", grid.block_count()),
        Ok(None) => "not cut".to_owned(),
        Err(_) => format!("{leased}/?"),
    }
}

fn rows_of_objects(pool: &Pool<'_>) -> Vec<Vec<String>> {
    let or = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
    let row = |object: &Leased| {
        let Leased { range, node, claim, used, addresses } = object;
        let share = percent(*used, addresses.parse().unwrap_or(u64::MAX));
        vec![range.clone(), pool.name.to_owned(), or(node), or(claim), used.to_string(), bar(share)]
    };
    pool.objects.iter().flatten().map(row).collect()
}

fn rows_of_ledger(pool: &Pool<'_>) -> Vec<Vec<String>> {
    let row = |own: &Own| {
        let Own { range, state, held, resting, free } = own;
        let share = bar(percent(*held, held + resting + free));
        let numbers = [held, resting, free].map(u64::to_string);
        let mut row = vec![range.clone(), pool.name.to_owned(), (*state).to_owned()];
        row.extend(numbers);
        row.push(share);
        row
    };
    pool.ledger.iter().map(row).collect()
}

/// What a pool's objects are, in order of their addresses.
fn leased(snapshot: &ClusterSnapshot, pool: &str) -> Vec<Leased> {
    let objects: BTreeMap<IpNet, IpBlock> =
        snapshot.objects_of(pool).map(|object| (object.net, object)).collect();
    let mut used: BTreeMap<IpNet, u64> = BTreeMap::new();
    for ip in snapshot.used_of(pool).iter().copied() {
        // A single address before the block in which it is a hole.
        let around = |length: u8| IpNet::new(ip, length).ok().map(|net| net.trunc());
        let most = IpNet::from(ip).max_prefix_len();
        let found = (0..=most).rev().filter_map(around).find(|net| objects.contains_key(net));
        *used.entry(found.unwrap_or(IpNet::from(ip))).or_default() += 1;
    }
    let leased = |(net, object): (IpNet, IpBlock)| Leased {
        range: net.to_string(),
        used: used.get(&net).copied().unwrap_or(0),
        addresses: address_count(net).to_string(),
        node: object.holder.node,
        claim: object.holder.claim,
    };
    objects.into_iter().map(leased).collect()
}

/// What ledgers of a pool are called: a network that has a part of it has one called after that part.
fn names(snapshot: &ClusterSnapshot, pool: &str) -> BTreeSet<String> {
    let leased = snapshot.objects_of(pool).map(|object| address_store_name(&object.holder.store).to_owned());
    // It is part of a path.
    leased.chain([pool.to_owned()]).filter(|name| is_valid_name(name)).collect()
}

/// The blocks in it.
fn own(place: &Path) -> Vec<Own> {
    let Ok(Some(ledger)) = address_store::read(place) else { return Vec::new() };
    // How long an address rests is the network's to say: what was freed within a minute does as a rule.
    let clock = Clock { now: now(), quarantine: 60_000 };
    let own = |block: Block| {
        let state = match block.state {
            BlockState::Active if block.draining => "draining",
            BlockState::Active if block.single_owner => "single",
            BlockState::Active => "active",
            BlockState::Returning => "returning",
            BlockState::Unconfirmed => "unconfirmed",
        };
        let held = ledger.slots_of(&block).filter(|what| matches!(what, Slot::Held { .. } | Slot::Unknown));
        let held = held.count() as u64;
        let all = ledger.slots_of(&block).filter(|what| matches!(what, Slot::Free(_))).count() as u64;
        let free = ledger.free_count(&block, clock);
        Own { range: block.net.to_string(), state, held, resting: all - free, free }
    };
    ledger.blocks().map(own).collect()
}

fn percent(part: u64, whole: u64) -> u8 {
    let share = u128::from(part) * 100 / u128::from(whole.max(1));
    u8::try_from(share).unwrap_or(100).min(100)
}

/// `[####----]  42 %`
fn bar(percent: u8) -> String {
    let full = (usize::from(percent) * BAR).div_ceil(100).min(BAR);
    format!("[{}{}] {percent:3} %", "#".repeat(full), "-".repeat(BAR - full))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_full_when_everything_is_leased() {
        assert_eq!(bar(0), format!("[{}]   0 %", "-".repeat(20)));
        assert_eq!(bar(1), format!("[#{}]   1 %", "-".repeat(19)));
        assert_eq!(bar(100), format!("[{}] 100 %", "#".repeat(20)));
        assert_eq!((percent(0, 0), percent(1, 3), percent(u64::MAX, 1)), (0, 33, 100));
    }
}
