//! `weft import whereabouts`: addresses that running pods have from whereabouts stay theirs.
//!
//! ```text
//!   IPPool.spec.allocations ┐
//!   OverlappingRangeIPReservation ┴─► addresses, each with its pod ──► IPPool, and an IPBlock for each address, kept
//!   NodeSlicePool: the range that slices are part of                     until its pod is gone
//! ```
//!
//! Rules: nothing of whereabouts' is changed; what is there already is left alone, so it may be run again; an entry that
//! cannot be read is named, and nothing is made before all could be read.
//!
//! Source: whereabouts v0.9 `pkg/api/whereabouts.cni.cncf.io/v1alpha1`, `pkg/storage/kubernetes`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

use clap::Args;
use ipam::pool_layout::{address_count, nth};
use ipam::registry::create_object;
use ipam::{Holder, Registry, RegistryError};
use ipnet::IpNet;
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client};
use prometheus_client::metrics::counter::Counter;
use rpc::allocate::PoolReference;
use serde::Serialize;
use serde_json::Value;

use cli_support::async_runtime::runtime;
use cli_support::failure::{EXIT_CODES, Failure};
use cli_support::output;
use cli_support::output::{Format, Output};
use cli_support::table;
use ipam_api::api_registry::ApiRegistry;
use ipam_api::cluster_snapshot::ClusterSnapshot;
use ipam_api::pool_lookup;
use kube_support::api_error;
use kube_support::client;
use kube_support::resources::Key;

/// What `weft import whereabouts` is told.
#[derive(Debug, Args)]
#[command(after_help = format!("\
Example:
  weft import whereabouts
  weft import whereabouts --apply

Without --apply nothing is written. docs/migrate-from-whereabouts.md describes the migration.

{EXIT_CODES}"))]
pub(crate) struct Arguments {
    /// Create the pools and the addresses (default: only show them)
    #[arg(long)]
    apply: bool,
    /// Namespace of the whereabouts objects
    #[arg(long, default_value = "kube-system", value_name = "NAMESPACE")]
    from_namespace: String,
    /// Path to a kubeconfig (default: in-cluster configuration)
    #[arg(long, env = "KUBECONFIG", value_name = "FILE", value_parser = client::path)]
    kubeconfig: Option<PathBuf>,
    #[command(flatten)]
    output: Output,
}

/// An address of whereabouts'.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Allocation {
    /// The address space.
    network_name: String,
    /// The whole range; of a slice the one it is part of.
    range: IpNet,
    /// The address.
    address: IpAddr,
    /// `namespace/name` of the pod.
    pod: String,
    /// The container, if it is known.
    container: String,
    /// The interface, if it is known.
    interface: String,
}

/// A reason why an object of whereabouts cannot be read.
#[derive(Debug, thiserror::Error)]
enum ReadError {
    /// The range of a pool, or of the slices of nodes, is not a network.
    #[error("{object}: spec.range: {range:?}: not a network")]
    ParseRange {
        /// The kind and the name of the object.
        object: String,
        /// The range as it is written.
        range: String,
    },
    /// The allocations of a pool are not a map.
    #[error("ippool {pool}: spec.allocations: no map")]
    Allocations {
        /// The name of the pool.
        pool: String,
    },
    /// One allocation of a pool is not valid.
    #[error("ippool {pool}: spec.allocations: {offset:?}: {fault}")]
    ReadAllocation {
        /// The name of the pool.
        pool: String,
        /// The offset of the address in the range, as it is written.
        offset: String,
        /// The rule that the allocation breaks.
        fault: &'static str,
    },
    /// The name of a reservation contains no address.
    #[error("overlappingrangeipreservation {name}: its name has no address")]
    ParseReservation {
        /// The name of the reservation.
        name: String,
    },
    /// The name of a reservation can be read as addresses of two pools.
    #[error(
        "overlappingrangeipreservation {name}: its name is {one} of one pool and {other} of another: remove it, if no pod \
         has either"
    )]
    ChooseAddress {
        /// The name of the reservation.
        name: String,
        /// The address in one pool.
        one: IpAddr,
        /// The address in the other pool.
        other: IpAddr,
    },
}

/// Whereabouts' objects, as lists of their JSON.
#[derive(Debug, Default)]
struct Found {
    pools: Vec<Value>,
    reservations: Vec<Value>,
    slices: Vec<Value>,
}

/// Does it.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { apply, from_namespace, kubeconfig, output: Output { format } } = arguments;
    runtime()?.block_on(async {
        let client = client::client_of_person(kubeconfig.as_deref()).await?;
        let list = async |plural: &str, kind: &str| {
            let kind = GroupVersionKind::gvk("whereabouts.cni.cncf.io", "v1alpha1", kind);
            let resource = ApiResource::from_gvk_with_plural(&kind, plural);
            let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), from_namespace, &resource);
            match api.list(&ListParams::default()).await {
                Ok(found) => {
                    Ok(found.items.iter().filter_map(|item| serde_json::to_value(item).ok()).collect())
                }
                // Not every release has every kind.
                Err(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
                Err(error) => Err(Failure::new(format!("list {plural}: {}", api_error::describe(&error)))),
            }
        };
        let found = Found {
            pools: list("ippools", "IPPool").await?,
            reservations: list("overlappingrangeipreservations", "OverlappingRangeIPReservation").await?,
            slices: list("nodeslicepools", "NodeSlicePool").await?,
        };
        let allocations = found.allocations().map_err(|error| Failure::new(error.to_string()))?;
        let made = match apply {
            true => take_over(&client, &allocations).await?,
            false => foresee(&client, &allocations).await?,
        };
        tell(&allocations, &made, *apply, *format)
    })
}

impl Found {
    /// Every address, once.
    fn allocations(&self) -> Result<Vec<Allocation>, ReadError> {
        let ranges = self.slices.iter().map(sliced).collect::<Result<Vec<_>, ReadError>>()?;
        let mut found: BTreeMap<(String, IpAddr), Allocation> = BTreeMap::new();
        for pool in &self.pools {
            for allocation in of_pool(pool, &ranges)? {
                found.insert((allocation.network_name.clone(), allocation.address), allocation);
            }
        }
        for reservation in &self.reservations {
            let readings = reserved(reservation)?;
            if readings.iter().any(|reading| found.contains_key(reading)) {
                continue;
            }
            let Some((network, address, range)) = self.placed(reservation, readings, &ranges)? else {
                continue;
            };
            let pod = text(&reservation["spec"]["podref"]);
            let interface = text(&reservation["spec"]["ifname"]);
            let container = text(&reservation["spec"]["containerid"]);
            let key = (network.clone(), address);
            found
                .insert(key, Allocation { network_name: network, range, address, pod, container, interface });
        }
        Ok(found.into_values().collect())
    }

    /// The one reading of a reservation's name of which there is a pool: its range is that of the pool which holds it. Nothing if
    /// there is none.
    fn placed(
        &self,
        reservation: &Value,
        readings: Vec<(String, IpAddr)>,
        ranges: &[Sliced],
    ) -> Result<Option<(String, IpAddr, IpNet)>, ReadError> {
        let places: Vec<_> = self.pools.iter().filter_map(|pool| place(pool, ranges).ok()).collect();
        let placed = readings.into_iter().filter_map(|(network, address)| {
            let holds =
                |(name, range, _): &&(String, IpNet, IpNet)| *name == network && range.contains(&address);
            let range = places.iter().find(holds)?.1;
            Some((network, address, range))
        });
        match placed.collect::<Vec<_>>().as_slice() {
            [] => Ok(None),
            [one] => Ok(Some(one.clone())),
            [(_, one, _), (_, other, _), ..] => {
                Err(ReadError::ChooseAddress { name: name_of(reservation), one: *one, other: *other })
            }
        }
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn name_of(object: &Value) -> String {
    text(&object["metadata"]["name"])
}

/// A range as whereabouts writes it in names.
fn normal(range: &str) -> String {
    let mut name = range.replace([':', '/'], "-");
    if name.ends_with('-') {
        name.push('0');
    }
    name
}

/// A range that nodes have slices of.
#[derive(Debug)]
struct Sliced {
    /// Its address space, or, where that has no name, the network's name.
    name: String,
    range: IpNet,
    /// Nodes and their slices.
    slices: Vec<(String, IpNet)>,
}

/// What a NodeSlicePool says.
fn sliced(object: &Value) -> Result<Sliced, ReadError> {
    let (name, range) = (name_of(object), text(&object["spec"]["range"]));
    let net = range.parse::<IpNet>().map_err(|_| ReadError::ParseRange {
        object: format!("nodeslicepool {name}"),
        range: range.clone(),
    })?;
    let slice = |entry: &Value| {
        let slice = entry["sliceRange"].as_str()?.parse::<IpNet>().ok()?;
        Some((text(&entry["nodeName"]), slice.trunc()))
    };
    let given = object["status"]["allocations"].as_array().into_iter().flatten();
    Ok(Sliced { name, range: net.trunc(), slices: given.filter_map(slice).collect() })
}

impl Sliced {
    /// The address space of the pool `name` of the range `own`, if that is a slice.
    fn network(&self, name: &str, own: IpNet, suffix: &str) -> Option<String> {
        // A slice is called [NETWORK-]NODE-SLICE; without a network it looks like a network's own pool.
        let node = self
            .slices
            .iter()
            .find(|(node, slice)| *slice == own && name.ends_with(&format!("{node}-{suffix}")));
        if node.is_some_and(|(node, _)| name == format!("{node}-{suffix}")) {
            return Some(String::new());
        }
        (self.range.contains(&own) && name.starts_with(&format!("{}-", self.name))).then(|| self.name.clone())
    }
}

/// The address space of a pool, its whole range, and the range its offsets count in.
fn place(pool: &Value, slices: &[Sliced]) -> Result<(String, IpNet, IpNet), ReadError> {
    let (name, range) = (name_of(pool), text(&pool["spec"]["range"]));
    let own = range
        .parse::<IpNet>()
        .map_err(|_| ReadError::ParseRange { object: format!("ippool {name}"), range: range.clone() })?
        .trunc();
    let suffix = normal(&own.to_string());
    let mut around =
        slices.iter().filter_map(|sliced| Some((sliced.network(&name, own, &suffix)?, sliced.range)));
    Ok(match around.next() {
        Some((network, range)) => (network, range, own),
        None => {
            let before = name.strip_suffix(&suffix).unwrap_or_default().trim_end_matches('-');
            (before.to_owned(), own, own)
        }
    })
}

fn of_pool(pool: &Value, slices: &[Sliced]) -> Result<Vec<Allocation>, ReadError> {
    let (network_name, range, own) = place(pool, slices)?;
    let name = name_of(pool);
    let mut all = Vec::new();
    let allocations = &pool["spec"]["allocations"];
    let Some(allocations) = allocations.as_object() else {
        let is_absent = allocations.is_null();
        return if is_absent { Ok(all) } else { Err(ReadError::Allocations { pool: name }) };
    };
    for (offset, entry) in allocations {
        let refuse = |fault: &'static str| ReadError::ReadAllocation {
            pool: name.clone(),
            offset: offset.clone(),
            fault,
        };
        let number: u128 = offset.parse().map_err(|_| refuse("not a number"))?;
        if number >= address_count(own) {
            return Err(refuse("outside of its range"));
        }
        if !entry.is_object() {
            return Err(refuse("not an allocation"));
        }
        all.push(Allocation {
            network_name: network_name.clone(),
            range,
            address: nth(own, number),
            pod: text(&entry["podref"]),
            container: text(&entry["id"]),
            interface: text(&entry["ifname"]),
        });
    }
    Ok(all)
}

/// Address space and address of a reservation: `[network-]address`, its colons written as dashes. In each way that its name can
/// be read: of IPv6 every part is one of the groups, which may be the end of a network's name as well.
fn reserved(object: &Value) -> Result<Vec<(String, IpAddr)>, ReadError> {
    let name = name_of(object);
    let parts: Vec<&str> = name.split('-').collect();
    let reading = |from: usize| {
        let ip = parts[from..].join(":").parse::<IpAddr>().ok()?;
        Some((parts[..from].join("-"), ip))
    };
    let readings: Vec<_> = (0..parts.len()).filter_map(reading).collect();
    match readings.is_empty() {
        true => Err(ReadError::ParseReservation { name }),
        false => Ok(readings),
    }
}

/// What became of an address.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    /// It is its pod's, in this pool.
    Kept(String),
    /// Nothing was done yet.
    ToBeKept,
    /// Its pod is gone.
    Gone,
    /// It cannot be its pod's, and why.
    Refused(String),
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Kept(pool) => write!(f, "kept in pool {pool}"),
            Outcome::ToBeKept => f.write_str("would be kept"),
            Outcome::Gone => f.write_str("its pod is gone: not kept"),
            Outcome::Refused(why) => write!(f, "not kept: {why}"),
        }
    }
}

/// Makes pools, and an object for each address; what became of each.
async fn take_over(client: &Client, allocations: &[Allocation]) -> Result<BTreeMap<usize, Outcome>, Failure> {
    let snapshot = ClusterSnapshot::take(client).await.map_err(|error| Failure::new(error.to_string()))?;
    let mut known: BTreeMap<(String, IpNet), pool_lookup::Pool> = BTreeMap::new();
    let mut made = BTreeMap::new();
    // Wide ranges first: a narrow one in them is the same pool.
    let mut order: Vec<usize> = (0..allocations.len()).collect();
    order.sort_by_key(|at| allocations[*at].range.prefix_len());
    for at in order {
        let allocation = &allocations[at];
        let Allocation { network_name, range, pod, .. } = allocation;
        let key = (network_name.clone(), *range);
        if !known.contains_key(&key) {
            let divider = if network_name.is_empty() { "" } else { "-" };
            let name = format!("{network_name}{divider}{}", range.to_string().replace([':', '/'], "-"));
            let wanted =
                PoolReference { name, must_exist: false, network: network_name.clone(), range: *range };
            known.insert(
                key.clone(),
                pool_lookup::resolve(client, &wanted).await.map_err(|why| Failure::new(why.to_string()))?,
            );
        }
        let outcome = match of_living(pod, |pod| snapshot.pods.get(&pod)) {
            Ok(holder) => {
                let kept = keep(client, &known[&key], allocation, &holder.uid).await;
                kept.map_err(|fault| Failure::new(format!("{}: {fault}", allocation.address)))?
            }
            Err(outcome) => outcome,
        };
        made.insert(at, outcome);
    }
    Ok(made)
}

/// What would become of each address, as far as its pod says it. Nothing of weft's need be there.
async fn foresee(client: &Client, allocations: &[Allocation]) -> Result<BTreeMap<usize, Outcome>, Failure> {
    let mut pods: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for Allocation { pod, .. } in allocations {
        let Some((namespace, _)) = pod.split_once('/') else { continue };
        if !pods.contains_key(namespace) {
            let found = ClusterSnapshot::pods_of(client, namespace)
                .await
                .map_err(|error| Failure::new(error.to_string()))?;
            pods.insert(namespace.to_owned(), found.into_iter().map(|pod| pod.name).collect());
        }
    }
    let is_there = |(namespace, name): Key| {
        pods.get(&namespace).is_some_and(|names| names.contains(&name)).then_some(Outcome::ToBeKept)
    };
    let outcome = |Allocation { pod, .. }: &Allocation| {
        let (Ok(outcome) | Err(outcome)) = of_living(pod, is_there);
        outcome
    };
    Ok(allocations.iter().map(outcome).enumerate().collect())
}

/// What is found of the pod of an address; what becomes of the address, if that is nothing.
fn of_living<T>(pod: &str, find: impl FnOnce(Key) -> Option<T>) -> Result<T, Outcome> {
    match pod.split_once('/') {
        Some((namespace, name)) => find((namespace.to_owned(), name.to_owned())).ok_or(Outcome::Gone),
        // Early releases did not write it down: somebody may have the address.
        None => Err(Outcome::Refused("whereabouts does not say whose it is".to_owned())),
    }
}

/// Makes the object of one address, if its place is nobody else's.
async fn keep(
    client: &Client,
    pool: &pool_lookup::Pool,
    allocation: &Allocation,
    uid: &str,
) -> Result<Outcome, RegistryError> {
    let Allocation { address, pod, container, interface, .. } = allocation;
    let (namespace, name) = pod.split_once('/').unwrap_or_default();
    let place = (namespace.to_owned(), name.to_owned());
    let claim = format!("imported/{pod}");
    let owner = format!("{uid}/{container}/{interface}");
    let holder = Holder { owner, claim: claim.clone(), ..Holder::default() };
    let registry = ApiRegistry::new(client.clone(), pool, place, Counter::default());
    match create_object(&registry, IpNet::from(*address), &holder).await {
        // One that was made before is told apart from one that is somebody else's.
        Err(RegistryError::Conflict) => match registry.read(IpNet::from(*address)).await? {
            // Its pod may have been made anew since, and the controller keeps nothing for one that is gone.
            Some(mut known) if known.holder.claim == claim => {
                if known.holder.node.is_empty() && known.holder.owner != holder.owner {
                    known.holder.owner = holder.owner;
                    match registry.replace(&known).await {
                        Err(RegistryError::Conflict) => {
                            return Ok(Outcome::Refused("it was just changed: run it again".to_owned()));
                        }
                        replaced => drop(replaced?),
                    }
                }
            }
            Some(other) => return Ok(Outcome::Refused(format!("it is {}", whose(&other.holder)))),
            None => return Ok(Outcome::Refused("it was just given back: run it again".to_owned())),
        },
        made => drop(made?),
    }
    // A node that has leased the block around it may give it to somebody.
    if let Some(block) = pool.grid.block_of(*address).filter(|_| !pool.grid.has_single_addresses_only())
        && let Some(block) = registry.read(block).await?
        && !block.reserved.contains(address)
    {
        let node = block.holder.node;
        return Ok(Outcome::Refused(format!("node {node} has leased its block {} already", block.net)));
    }
    Ok(Outcome::Kept(pool.name.clone()))
}

/// Who has an address, for people.
fn whose(holder: &Holder) -> String {
    let Holder { node, owner, claim, .. } = holder;
    match (claim.is_empty(), node.is_empty()) {
        (false, _) => format!("kept for {claim}"),
        (true, false) => format!("node {node}'s, for {owner}"),
        (true, true) => "nobody's, and rests".to_owned(),
    }
}

/// An address and what became of it, for programs.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Row<'a> {
    #[serde(flatten)]
    allocation: &'a Allocation,
    /// Absent if nothing was done.
    #[serde(skip_serializing_if = "Option::is_none")]
    kept: Option<bool>,
    outcome: String,
}

/// Shows all, and fails if one was refused.
fn tell(
    allocations: &[Allocation],
    made: &BTreeMap<usize, Outcome>,
    apply: bool,
    format: Format,
) -> Result<(), Failure> {
    let row = |(at, allocation)| {
        let outcome: Option<&Outcome> = made.get(&at);
        let kept = outcome.filter(|_| apply).map(|outcome| matches!(outcome, Outcome::Kept(_)));
        Row { allocation, kept, outcome: outcome.map(Outcome::to_string).unwrap_or_default() }
    };
    let rows: Vec<Row<'_>> = allocations.iter().enumerate().map(row).collect();
    match format {
        Format::Json => output::print_json(&rows)?,
        Format::Text if rows.is_empty() => return output::print("whereabouts has given no address\n"),
        Format::Text => output::print(&laid_out(&rows))?,
    }
    if !apply {
        return match format {
            Format::Json => Ok(()),
            _ => output::print("nothing was changed: --apply does it\n"),
        };
    }
    match made.values().filter(|outcome| matches!(outcome, Outcome::Refused(_))).count() {
        0 => Ok(()),
        refused => Err(Failure::new(format!("{refused} of {} addresses were not kept", rows.len()))
            .next("end the pods they name, and import before the first pod gets an address of weft-ipam")),
    }
}

fn laid_out(rows: &[Row<'_>]) -> String {
    let cells = |Row { allocation, outcome, .. }: &Row<'_>| {
        let Allocation { network_name, range, address, pod, interface, .. } = allocation;
        let (address, range) = (address.to_string(), range.to_string());
        vec![address, range, network_name.clone(), pod.clone(), interface.clone(), outcome.clone()]
    };
    let rows: Vec<Vec<String>> = rows.iter().map(cells).collect();
    table::lay_out(&["address", "range", "network", "pod", "interface", "outcome"], &rows, 0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pool(name: &str, range: &str, allocations: &Value) -> Value {
        json!({ "metadata": { "name": name }, "spec": { "range": range, "allocations": allocations } })
    }

    fn lines(found: &Found) -> Vec<String> {
        let line =
            |one: Allocation| format!("{} {} {} {}", one.address, one.range, one.network_name, one.pod);
        found.allocations().unwrap().into_iter().map(line).collect()
    }

    #[test]
    fn every_kind_of_whereabouts_is_understood() {
        let found = Found {
            pools: vec![
                pool(
                    "192.168.2.0-24",
                    "192.168.2.0/24",
                    &json!({ "5": { "id": "c", "podref": "a/b", "ifname": "net1" } }),
                ),
                pool(
                    "blue-fd00---64",
                    "fd00::/64",
                    &json!({ "18446744073709551615": { "id": "c", "podref": "a/c" } }),
                ),
                pool(
                    "red-node-1-10.0.1.0-28",
                    "10.0.1.0/28",
                    &json!({ "3": { "id": "c", "podref": "a/d" } }),
                ),
                // Nobody named a network: the slices have the name of the configuration.
                pool("node-1-10.7.1.0-28", "10.7.1.0/28", &json!({ "4": { "id": "c", "podref": "a/g" } })),
            ],
            reservations: vec![
                json!({ "metadata": { "name": "192.168.2.5" }, "spec": { "podref": "a/b" } }),
                json!({ "metadata": { "name": "192.168.2.9" }, "spec": { "podref": "a/e" } }),
                json!({ "metadata": { "name": "blue-fd00--7" }, "spec": { "podref": "a/f" } }),
            ],
            slices: vec![
                json!({ "metadata": { "name": "red" }, "spec": { "range": "10.0.0.0/16", "sliceSize": "/28" } }),
                json!({ "metadata": { "name": "storage" }, "spec": { "range": "10.7.0.0/16", "sliceSize": "/28" },
                    "status": { "allocations": [{ "nodeName": "node-0", "sliceRange": "10.7.0.0/28" },
                        { "nodeName": "node-1", "sliceRange": "10.7.1.0/28" }] } }),
            ],
        };
        let expected = [
            "10.7.1.4 10.7.0.0/16  a/g",
            "192.168.2.5 192.168.2.0/24  a/b",
            "192.168.2.9 192.168.2.0/24  a/e",
            "fd00::7 fd00::/64 blue a/f",
            "fd00::ffff:ffff:ffff:ffff fd00::/64 blue a/c",
            "10.0.1.3 10.0.0.0/16 red a/d",
        ];
        assert_eq!(lines(&found), expected);
    }

    fn reserved_as(pools: &[(&str, &str)], names: &[&str]) -> Result<Vec<String>, String> {
        let reservation = |name: &&str| json!({ "metadata": { "name": name }, "spec": { "podref": "a/b" } });
        let pools = pools.iter().map(|(name, range)| pool(name, range, &json!({}))).collect();
        let reservations = names.iter().map(reservation).collect();
        let line = |one: Allocation| format!("{} {} {}", one.address, one.range, one.network_name);
        let found = Found { pools, reservations, ..Found::default() }.allocations();
        let found = found.map_err(|error| error.to_string())?;
        Ok(found.into_iter().map(line).collect())
    }

    #[test]
    fn a_network_whose_name_looks_like_a_part_of_an_address_is_told_by_its_pool() {
        for (network, range, address) in [
            ("cafe", "fd00::/64", "fd00::7"),
            ("a-b-c-d-e-f", "10.0.0.0/24", "10.0.0.7"),
            ("be-ef", "fd00::/64", "fd00::"),
            ("1", "fd00:2:3:4:5:6:7:0/112", "fd00:2:3:4:5:6:7:8"),
        ] {
            let short = normal(address);
            let pools = [(&*format!("{network}-{}", normal(range)), range)];
            let expected = vec![format!("{address} {range} {network}")];
            assert_eq!(reserved_as(&pools, &[&format!("{network}-{short}")]), Ok(expected), "{network}");
        }
        // Two pools may be meant: the one that says so itself is.
        let both = [("cafe-fd00---64", "fd00::/64"), ("cafe-fd00---32", "cafe:fd00::/32")];
        let why = reserved_as(&both, &["cafe-fd00--7"]).unwrap_err();
        assert!(
            why.contains("cafe-fd00--7") && why.contains("fd00::7") && why.contains("cafe:fd00::7"),
            "{why}"
        );
        let known = pool("cafe-fd00---64", "fd00::/64", &json!({ "7": { "podref": "a/b" } }));
        let pools = vec![known, pool("cafe-fd00---32", "cafe:fd00::/32", &json!({}))];
        let reservations = vec![json!({ "metadata": { "name": "cafe-fd00--7" } })];
        let found = Found { pools, reservations, ..Found::default() };
        assert_eq!(lines(&found), ["fd00::7 fd00::/64 cafe a/b"]);
    }

    #[test]
    fn what_cannot_be_read_is_named_and_nothing_is_taken() {
        for (pool, word) in [
            (pool("x", "10.0.0.0", &json!({})), "spec.range: \"10.0.0.0\""),
            (pool("10.0.0.0-24", "10.0.0.0/24", &json!({ "x": {} })), "\"x\": not a number"),
            (pool("10.0.0.0-24", "10.0.0.0/24", &json!({ "-1": {} })), "\"-1\": not a number"),
            (pool("10.0.0.0-24", "10.0.0.0/24", &json!({ "256": {} })), "\"256\": outside of its range"),
            (pool("10.0.0.0-24", "10.0.0.0/24", &json!({ "5": null })), "\"5\": not an allocation"),
            (pool("10.0.0.0-24", "10.0.0.0/24", &json!(["5"])), "spec.allocations: no map"),
        ] {
            let why = Found { pools: vec![pool], ..Found::default() }.allocations().unwrap_err().to_string();
            assert!(why.contains(word), "{why}");
        }
        let reservations = vec![json!({ "metadata": { "name": "blue-sky" } })];
        assert!(
            Found { reservations, ..Found::default() }
                .allocations()
                .unwrap_err()
                .to_string()
                .contains("blue-sky")
        );
    }
}
