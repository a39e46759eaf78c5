//! `weft ipam show`: pool usage, blocks, and this node's address stores.
//!
//! Only a node's address store knows which addresses in a block are allocated. For the whole cluster, `used`
//! counts the addresses in the pods' network-status, leased single addresses and those that claims keep.
//! Network and broadcast address and exclusions are not free.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use ipam::IpBlock;
use ipam::address_store::is_valid_name;
use ipnet::IpNet;
use serde::Serialize;

use super::host_stores::{HostStore, print_stores};
use super::store_blocks::{STORE_BLOCK_HEADINGS, StoreBlock, bar, percent, store_block_rows, store_blocks};
use cli_support::failure::Failure;
use cli_support::output;
use cli_support::output::Format;
use cli_support::table;
use ipam_api::cluster_snapshot::ClusterSnapshot;
use ipam_api::ip_objects::PoolObject;
use ipam_api::pool_usage::PoolUsage;
use ipam_api::store_name::address_store_name;
use kube_support::custom_resources::IPPoolStatus;
use node_support::address_store;

/// Document about one pool for `-o json`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PoolDocument<'a> {
    name: &'a str,
    range: &'a str,
    network_name: &'a str,
    #[serde(flatten)]
    status: IPPoolStatus,
    /// Number of addresses that can be allocated, as a string.
    usable_addresses: String,
    free_addresses: String,
    quarantined_addresses: u64,
    /// Leased blocks out of all blocks, for the table.
    #[serde(skip)]
    block_share: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    objects: Option<Vec<BlockDocument>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[serde(rename = "ledger")]
    store: Vec<StoreBlock>,
}

/// Block or single address in a pool, from the IPBlock object.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct BlockDocument {
    range: String,
    node: String,
    claim: String,
    used: u64,
    addresses: String,
}

/// Prints the pools; with `blocks`, also the blocks and single addresses.
pub(super) fn show(
    snapshot: &ClusterSnapshot,
    blocks: bool,
    address_stores: &Path,
    format: Format,
) -> Result<(), Failure> {
    let mut pools = Vec::with_capacity(snapshot.pools.len());
    for pool in &snapshot.pools {
        let PoolObject { metadata, spec, .. } = pool;
        let name = metadata.name.as_deref().unwrap_or_default();
        let status = snapshot.status_of(pool);
        let usage = PoolUsage::of(snapshot, pool);
        pools.push(PoolDocument {
            name,
            range: &spec.range,
            network_name: &spec.network_name,
            block_share: block_share(pool, &status),
            status,
            usable_addresses: usage.size.to_string(),
            free_addresses: usage.free().to_string(),
            quarantined_addresses: usage.quarantined,
            objects: blocks.then(|| block_documents(snapshot, pool, name)),
            store: store_names(snapshot, name)
                .iter()
                .flat_map(|name| store_blocks_at(&address_stores.join(name)))
                .collect(),
        });
    }
    if let Some(printed) = format.print(&pools) {
        return printed;
    }
    let host_stores = HostStore::all(address_stores)?;
    let host_stores: Vec<HostStore> = host_stores.into_iter().filter(HostStore::is_of_host).collect();
    if pools.is_empty() && host_stores.is_empty() {
        return output::print("no pools\n");
    }
    if pools.is_empty() {
        return print_stores(&host_stores);
    }
    output::print(&table::lay_out(&HEADINGS, &pools.iter().map(row).collect::<Vec<_>>(), 0))?;
    let each = |rows: fn(&PoolDocument<'_>) -> Vec<Vec<String>>| -> Vec<Vec<String>> {
        pools.iter().flat_map(rows).collect()
    };
    if blocks {
        let headings = ["block", "pool", "node", "claim", "used", "utilization"];
        output::print(&format!("\n{}", table::lay_out(&headings, &each(block_rows), 0)))?;
    }
    let store_block_rows = each(store_rows);
    if !store_block_rows.is_empty() {
        output::print(&format!("\n{}", table::lay_out(&STORE_BLOCK_HEADINGS, &store_block_rows, 0)))?;
    }
    if host_stores.is_empty() {
        return Ok(());
    }
    output::print("\n")?;
    print_stores(&host_stores)
}

const HEADINGS: [&str; 9] =
    ["pool", "range", "network", "blocks", "single", "nodes", "used", "free", "leased"];
fn row(pool: &PoolDocument<'_>) -> Vec<String> {
    let PoolDocument { name, range, network_name, status, block_share, free_addresses, .. } = pool;
    let IPPoolStatus { single_addresses, nodes, leased_percent, used_addresses, .. } = status;
    vec![
        (*name).to_owned(),
        (*range).to_owned(),
        (*network_name).to_owned(),
        block_share.clone(),
        single_addresses.to_string(),
        nodes.to_string(),
        used_addresses.to_string(),
        free_addresses.clone(),
        bar(*leased_percent),
    ]
}

/// Returns how many blocks are leased out of all. The total is undecided until a pool is first used, unless the block
/// size is set, and unknown if the object is invalid.
fn block_share(pool: &PoolObject, status: &IPPoolStatus) -> String {
    let leased = status.leased_blocks;
    match pool.grid() {
        Ok(Some(grid)) => format!("{leased}/{}", grid.block_count()),
        Ok(None) => "not split".to_owned(),
        Err(_) => format!("{leased}/?"),
    }
}

fn block_rows(pool: &PoolDocument<'_>) -> Vec<Vec<String>> {
    let or = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
    let row = |object: &BlockDocument| {
        let BlockDocument { range, node, claim, used, addresses } = object;
        let share = percent(*used, addresses.parse().unwrap_or(u64::MAX));
        vec![range.clone(), pool.name.to_owned(), or(node), or(claim), used.to_string(), bar(share)]
    };
    pool.objects.iter().flatten().map(row).collect()
}

fn store_rows(pool: &PoolDocument<'_>) -> Vec<Vec<String>> {
    store_block_rows(pool.name, &pool.store)
}

/// Returns a pool's objects, sorted by address.
fn block_documents(snapshot: &ClusterSnapshot, object: &PoolObject, pool: &str) -> Vec<BlockDocument> {
    let filter = object.address_filter();
    let addresses = |net: IpNet| filter.as_ref().map_or(0, |filter| filter.count_in(net));
    let objects: BTreeMap<IpNet, IpBlock> =
        snapshot.objects_of(pool).map(|object| (object.net, object)).collect();
    let mut used: BTreeMap<IpNet, u64> = BTreeMap::new();
    for ip in snapshot.used_of(pool).iter().copied() {
        // The object of a single address takes precedence over the block in which the address is reserved.
        let enclosing_net = |length: u8| IpNet::new(ip, length).ok().map(|net| net.trunc());
        let longest = IpNet::from(ip).max_prefix_len();
        let found = (0..=longest).rev().filter_map(enclosing_net).find(|net| objects.contains_key(net));
        *used.entry(found.unwrap_or(IpNet::from(ip))).or_default() += 1;
    }
    let document = |(net, object): (IpNet, IpBlock)| BlockDocument {
        range: net.to_string(),
        used: used.get(&net).copied().unwrap_or(0),
        addresses: addresses(net).to_string(),
        node: object.holder.node,
        claim: object.holder.claim,
    };
    objects.into_iter().map(document).collect()
}

/// Returns the names that a pool's address stores have. If a network uses a part of the pool, the store is
/// named after that part.
fn store_names(snapshot: &ClusterSnapshot, pool: &str) -> BTreeSet<String> {
    let leased = snapshot.objects_of(pool).map(|object| address_store_name(&object.holder.store).to_owned());
    // The name becomes part of a path.
    leased.chain([pool.to_owned()]).filter(|name| is_valid_name(name)).collect()
}

/// Returns the blocks in an address store; none if it is missing or unreadable.
fn store_blocks_at(path: &Path) -> Vec<StoreBlock> {
    let Ok(Some(store)) = address_store::read(path) else { return Vec::new() };
    store_blocks(&store, &address_store::windows(path, &store).unwrap_or_default())
}
