//! `weft import whereabouts`: reserves in IP pools the addresses that whereabouts allocated to running pods.
//!
//! ```text
//!   IPPool.spec.allocations ┐
//!   OverlappingRangeIPReservation ┴─► addresses, each with its pod ──► IPPool, and an IPBlock for each address, kept
//!   NodeSlicePool: the range that slices are part of                     until its pod is deleted
//! ```
//!
//! - Objects of whereabouts are not changed. Existing objects of weft are kept, so the command may be repeated.
//! - An unreadable object is named, and nothing is created before all objects were read.
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

/// Arguments of `weft import whereabouts`.
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
    /// Path to a kubeconfig (default: in-cluster configuration in a pod, else ~/.kube/config)
    #[arg(long, env = "KUBECONFIG", value_name = "FILE", value_parser = client::path)]
    kubeconfig: Option<PathBuf>,
    #[command(flatten)]
    output: Output,
}

/// Address that whereabouts allocated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Allocation {
    /// Address space (`network_name` of whereabouts).
    network_name: String,
    /// Whole range; for a slice, the range that it is part of.
    range: IpNet,
    /// Address.
    address: IpAddr,
    /// `namespace/name` of the pod.
    pod: String,
    /// Container ID; empty if unknown.
    container: String,
    /// Interface; empty if unknown.
    interface: String,
}

/// Reason why an object of whereabouts cannot be read.
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
    #[error("ippool {pool}: spec.allocations: not a map")]
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
    #[error("overlappingrangeipreservation {name}: its name contains no address")]
    ParseReservation {
        /// The name of the reservation.
        name: String,
    },
    /// The name of a reservation can be read as addresses of two pools.
    #[error(
        "overlappingrangeipreservation {name}: its name means {one} in one pool and {other} in another; delete it if no pod \
         has either address"
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

/// Objects of whereabouts as JSON.
#[derive(Debug, Default)]
struct WhereaboutsObjects {
    pools: Vec<Value>,
    reservations: Vec<Value>,
    slices: Vec<Value>,
}

/// Runs `weft import whereabouts`.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { apply, from_namespace, kubeconfig, output: Output { format } } = arguments;
    runtime()?.block_on(async {
        let client = client::client_of_person(kubeconfig.as_deref()).await?;
        let list = async |plural: &str, kind: &str| {
            let kind = GroupVersionKind::gvk("whereabouts.cni.cncf.io", "v1alpha1", kind);
            let resource = ApiResource::from_gvk_with_plural(&kind, plural);
            let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), from_namespace, &resource);
            match api.list(&ListParams::default()).await {
                Ok(objects) => {
                    Ok(objects.items.iter().filter_map(|item| serde_json::to_value(item).ok()).collect())
                }
                // Not every release of whereabouts has every kind.
                Err(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
                Err(error) => Err(Failure::new(format!("list {plural}: {}", api_error::describe(&error)))),
            }
        };
        let objects = WhereaboutsObjects {
            pools: list("ippools", "IPPool").await?,
            reservations: list("overlappingrangeipreservations", "OverlappingRangeIPReservation").await?,
            slices: list("nodeslicepools", "NodeSlicePool").await?,
        };
        let allocations = objects.allocations().map_err(|error| Failure::new(error.to_string()))?;
        let outcomes = match apply {
            true => import(&client, &allocations).await?,
            false => preview(&client, &allocations).await?,
        };
        print_outcomes(&allocations, &outcomes, *apply, *format)
    })
}

impl WhereaboutsObjects {
    /// Returns every allocated address once.
    fn allocations(&self) -> Result<Vec<Allocation>, ReadError> {
        let ranges = self.slices.iter().map(sliced_range).collect::<Result<Vec<_>, ReadError>>()?;
        let mut allocations: BTreeMap<(String, IpAddr), Allocation> = BTreeMap::new();
        for pool in &self.pools {
            for allocation in pool_allocations(pool, &ranges)? {
                allocations.insert((allocation.network_name.clone(), allocation.address), allocation);
            }
        }
        for reservation in &self.reservations {
            let interpretations = reservation_interpretations(reservation)?;
            if interpretations.iter().any(|interpretation| allocations.contains_key(interpretation)) {
                continue;
            }
            let Some((network, address, range)) =
                self.matching_pool(reservation, interpretations, &ranges)?
            else {
                continue;
            };
            let pod = string(&reservation["spec"]["podref"]);
            let interface = string(&reservation["spec"]["ifname"]);
            let container = string(&reservation["spec"]["containerid"]);
            let key = (network.clone(), address);
            allocations
                .insert(key, Allocation { network_name: network, range, address, pod, container, interface });
        }
        Ok(allocations.into_values().collect())
    }

    /// Returns the reading of a reservation's name whose network and address are in a pool, with the range of that pool. `None`
    /// if there is no such pool; an error if two pools match.
    fn matching_pool(
        &self,
        reservation: &Value,
        interpretations: Vec<(String, IpAddr)>,
        ranges: &[SlicedRange],
    ) -> Result<Option<(String, IpAddr, IpNet)>, ReadError> {
        let pool_ranges: Vec<_> =
            self.pools.iter().filter_map(|pool| pool_range(pool, ranges).ok()).collect();
        let matches = interpretations.into_iter().filter_map(|(network, address)| {
            let contains =
                |(name, range, _): &&(String, IpNet, IpNet)| *name == network && range.contains(&address);
            let range = pool_ranges.iter().find(contains)?.1;
            Some((network, address, range))
        });
        match matches.collect::<Vec<_>>().as_slice() {
            [] => Ok(None),
            [one] => Ok(Some(one.clone())),
            [(_, one, _), (_, other, _), ..] => {
                Err(ReadError::ChooseAddress { name: name_of(reservation), one: *one, other: *other })
            }
        }
    }
}

fn string(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn name_of(object: &Value) -> String {
    string(&object["metadata"]["name"])
}

/// Returns a range in the form that whereabouts uses in object names.
fn normalize_range(range: &str) -> String {
    let mut name = range.replace([':', '/'], "-");
    if name.ends_with('-') {
        name.push('0');
    }
    name
}

/// Range of which nodes have slices.
#[derive(Debug)]
struct SlicedRange {
    /// Address space, or the name of the network if it has no address space.
    name: String,
    range: IpNet,
    /// Node name and slice of each node.
    slices: Vec<(String, IpNet)>,
}

/// Parses a NodeSlicePool.
fn sliced_range(object: &Value) -> Result<SlicedRange, ReadError> {
    let (name, range) = (name_of(object), string(&object["spec"]["range"]));
    let net = range.parse::<IpNet>().map_err(|_| ReadError::ParseRange {
        object: format!("nodeslicepool {name}"),
        range: range.clone(),
    })?;
    let slice = |entry: &Value| {
        let slice = entry["sliceRange"].as_str()?.parse::<IpNet>().ok()?;
        Some((string(&entry["nodeName"]), slice.trunc()))
    };
    let given = object["status"]["allocations"].as_array().into_iter().flatten();
    Ok(SlicedRange { name, range: net.trunc(), slices: given.filter_map(slice).collect() })
}

impl SlicedRange {
    /// Returns the address space of the pool `name` with the range `own`, if `own` is a slice of this range.
    fn network(&self, name: &str, own: IpNet, suffix: &str) -> Option<String> {
        // A slice is named [NETWORK-]NODE-SLICE. Without a network, the name looks like that of a network's own pool.
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

/// Returns the address space of a pool, its whole range, and the range in which its offsets count.
fn pool_range(pool: &Value, slices: &[SlicedRange]) -> Result<(String, IpNet, IpNet), ReadError> {
    let (name, range) = (name_of(pool), string(&pool["spec"]["range"]));
    let own = range
        .parse::<IpNet>()
        .map_err(|_| ReadError::ParseRange { object: format!("ippool {name}"), range: range.clone() })?
        .trunc();
    let suffix = normalize_range(&own.to_string());
    let mut enclosing = slices
        .iter()
        .filter_map(|sliced_range| Some((sliced_range.network(&name, own, &suffix)?, sliced_range.range)));
    Ok(match enclosing.next() {
        Some((network, range)) => (network, range, own),
        None => {
            let before = name.strip_suffix(&suffix).unwrap_or_default().trim_end_matches('-');
            (before.to_owned(), own, own)
        }
    })
}

fn pool_allocations(pool: &Value, slices: &[SlicedRange]) -> Result<Vec<Allocation>, ReadError> {
    let (network_name, range, own) = pool_range(pool, slices)?;
    let name = name_of(pool);
    let mut all = Vec::new();
    let allocations = &pool["spec"]["allocations"];
    let Some(allocations) = allocations.as_object() else {
        let is_null = allocations.is_null();
        return if is_null { Ok(all) } else { Err(ReadError::Allocations { pool: name }) };
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
            pod: string(&entry["podref"]),
            container: string(&entry["id"]),
            interface: string(&entry["ifname"]),
        });
    }
    Ok(all)
}

/// Returns every interpretation of a reservation's name as address space and address. The name is `[network-]address` with
/// dashes for colons, so the end of a network name may also be a group of an IPv6 address.
fn reservation_interpretations(object: &Value) -> Result<Vec<(String, IpAddr)>, ReadError> {
    let name = name_of(object);
    let parts: Vec<&str> = name.split('-').collect();
    let interpretation = |from: usize| {
        let ip = parts[from..].join(":").parse::<IpAddr>().ok()?;
        Some((parts[..from].join("-"), ip))
    };
    let interpretations: Vec<_> = (0..parts.len()).filter_map(interpretation).collect();
    match interpretations.is_empty() {
        true => Err(ReadError::ParseReservation { name }),
        false => Ok(interpretations),
    }
}

/// Result of the import of one address.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    /// It is reserved for its pod in this pool.
    Kept(String),
    /// It would be reserved with `--apply`.
    WouldBeKept,
    /// Its pod no longer exists.
    PodDeleted,
    /// It cannot be reserved for its pod, with the reason.
    Refused(String),
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Kept(pool) => write!(f, "kept in pool {pool}"),
            Outcome::WouldBeKept => f.write_str("would be kept"),
            Outcome::PodDeleted => f.write_str("not kept: its pod no longer exists"),
            Outcome::Refused(why) => write!(f, "not kept: {why}"),
        }
    }
}

/// Creates the pools and an object for each address. Returns the outcome of each address.
async fn import(client: &Client, allocations: &[Allocation]) -> Result<BTreeMap<usize, Outcome>, Failure> {
    let snapshot = ClusterSnapshot::take(client).await.map_err(|error| Failure::new(error.to_string()))?;
    let mut pools: BTreeMap<(String, IpNet), pool_lookup::Pool> = BTreeMap::new();
    let mut outcomes = BTreeMap::new();
    // Large ranges first, because a smaller range inside one belongs to the same pool.
    let mut order: Vec<usize> = (0..allocations.len()).collect();
    order.sort_by_key(|at| allocations[*at].range.prefix_len());
    for at in order {
        let allocation = &allocations[at];
        let Allocation { network_name, range, pod, .. } = allocation;
        let key = (network_name.clone(), *range);
        if !pools.contains_key(&key) {
            let divider = if network_name.is_empty() { "" } else { "-" };
            let name = format!("{network_name}{divider}{}", range.to_string().replace([':', '/'], "-"));
            let reference =
                PoolReference { name, must_exist: false, network: network_name.clone(), range: *range };
            pools.insert(
                key.clone(),
                pool_lookup::resolve(client, &reference)
                    .await
                    .map_err(|why| Failure::new(why.to_string()))?,
            );
        }
        let outcome = match find_pod(pod, |pod| snapshot.pods.get(&pod)) {
            Ok(holder) => {
                let result = create_block(client, &pools[&key], allocation, &holder.uid).await;
                result.map_err(|fault| Failure::new(format!("{}: {fault}", allocation.address)))?
            }
            Err(outcome) => outcome,
        };
        outcomes.insert(at, outcome);
    }
    Ok(outcomes)
}

/// Returns the outcome that an import would have for each address, judged by its pod alone. IPPools need not exist.
async fn preview(client: &Client, allocations: &[Allocation]) -> Result<BTreeMap<usize, Outcome>, Failure> {
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
    let outcome_of_pod = |(namespace, name): Key| {
        pods.get(&namespace).is_some_and(|names| names.contains(&name)).then_some(Outcome::WouldBeKept)
    };
    let outcome = |Allocation { pod, .. }: &Allocation| {
        let (Ok(outcome) | Err(outcome)) = find_pod(pod, outcome_of_pod);
        outcome
    };
    Ok(allocations.iter().map(outcome).enumerate().collect())
}

/// Returns what `find` returns for the pod of an address, or the outcome if there is no pod.
fn find_pod<T>(pod: &str, find: impl FnOnce(Key) -> Option<T>) -> Result<T, Outcome> {
    match pod.split_once('/') {
        Some((namespace, name)) => find((namespace.to_owned(), name.to_owned())).ok_or(Outcome::PodDeleted),
        // Early releases of whereabouts did not record the pod, so a pod may use the address.
        None => Err(Outcome::Refused("whereabouts did not record its pod".to_owned())),
    }
}

/// Creates the object of one address, unless it exists with another owner.
async fn create_block(
    client: &Client,
    pool: &pool_lookup::Pool,
    allocation: &Allocation,
    uid: &str,
) -> Result<Outcome, RegistryError> {
    let Allocation { address, pod, container, interface, .. } = allocation;
    let (namespace, name) = pod.split_once('/').unwrap_or_default();
    let pod_key = (namespace.to_owned(), name.to_owned());
    let claim = format!("imported/{pod}");
    let owner = format!("{uid}/{container}/{interface}");
    let holder = Holder { owner, claim: claim.clone(), ..Holder::default() };
    let registry = ApiRegistry::new(client.clone(), pool, pod_key, Counter::default());
    match create_object(&registry, IpNet::from(*address), &holder).await {
        // Distinguish an object of an earlier import from one with another owner.
        Err(RegistryError::Conflict) => match registry.read(IpNet::from(*address)).await? {
            // The pod may have been recreated, and the controller reclaims an object whose pod no longer exists.
            Some(mut existing) if existing.holder.claim == claim => {
                if existing.holder.node.is_empty() && existing.holder.owner != holder.owner {
                    existing.holder.owner = holder.owner;
                    match registry.replace(&existing).await {
                        Err(RegistryError::Conflict) => {
                            return Ok(Outcome::Refused(
                                "its object changed concurrently; run the command again".to_owned(),
                            ));
                        }
                        replaced => drop(replaced?),
                    }
                }
            }
            Some(other) => return Ok(Outcome::Refused(format!("it is {}", describe_holder(&other.holder)))),
            None => {
                return Ok(Outcome::Refused(
                    "its object was deleted concurrently; run the command again".to_owned(),
                ));
            }
        },
        created => drop(created?),
    }
    // A node that leased the enclosing block may allocate the address to another pod.
    if let Some(block) = pool.grid.block_of(*address).filter(|_| !pool.grid.has_single_addresses_only())
        && let Some(block) = registry.read(block).await?
        && !block.reserved.contains(address)
    {
        let node = block.holder.node;
        return Ok(Outcome::Refused(format!("node {node} has already leased its block {}", block.net)));
    }
    Ok(Outcome::Kept(pool.name.clone()))
}

/// Returns a description of the holder of an address.
fn describe_holder(holder: &Holder) -> String {
    let Holder { node, owner, claim, .. } = holder;
    match (claim.is_empty(), node.is_empty()) {
        (false, _) => format!("kept for {claim}"),
        (true, false) => format!("allocated by node {node} to {owner}"),
        (true, true) => "released and in quarantine".to_owned(),
    }
}

/// Document of one address for `-o json`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct OutcomeRow<'a> {
    #[serde(flatten)]
    allocation: &'a Allocation,
    /// Absent without `--apply`.
    #[serde(skip_serializing_if = "Option::is_none")]
    kept: Option<bool>,
    outcome: String,
}

/// Prints the outcomes. Fails if an address was refused.
fn print_outcomes(
    allocations: &[Allocation],
    outcomes: &BTreeMap<usize, Outcome>,
    apply: bool,
    format: Format,
) -> Result<(), Failure> {
    let row = |(at, allocation)| {
        let outcome: Option<&Outcome> = outcomes.get(&at);
        let kept = outcome.filter(|_| apply).map(|outcome| matches!(outcome, Outcome::Kept(_)));
        OutcomeRow { allocation, kept, outcome: outcome.map(Outcome::to_string).unwrap_or_default() }
    };
    let rows: Vec<OutcomeRow<'_>> = allocations.iter().enumerate().map(row).collect();
    match format {
        Format::Json => output::print_json(&rows)?,
        Format::Text if rows.is_empty() => return output::print("whereabouts has no allocated addresses\n"),
        Format::Text => output::print(&render_table(&rows))?,
    }
    if !apply {
        return match format {
            Format::Json => Ok(()),
            _ => output::print("nothing was changed; run it with --apply to import the addresses\n"),
        };
    }
    match outcomes.values().filter(|outcome| matches!(outcome, Outcome::Refused(_))).count() {
        0 => Ok(()),
        refused => Err(Failure::new(format!("{refused} of {} addresses were not kept", rows.len()))
            .next("delete their pods; the next time, import before a pod gets an address from weft-ipam")),
    }
}

fn render_table(rows: &[OutcomeRow<'_>]) -> String {
    let cells = |OutcomeRow { allocation, outcome, .. }: &OutcomeRow<'_>| {
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

    fn lines(objects: &WhereaboutsObjects) -> Vec<String> {
        let line =
            |one: Allocation| format!("{} {} {} {}", one.address, one.range, one.network_name, one.pod);
        objects.allocations().unwrap().into_iter().map(line).collect()
    }

    #[test]
    fn import_whereabouts_reads_every_kind_of_object() {
        let objects = WhereaboutsObjects {
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
                // Without a network name, the slices have the name of the configuration.
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
        assert_eq!(lines(&objects), expected);
    }

    fn reserved_as(pools: &[(&str, &str)], names: &[&str]) -> Result<Vec<String>, String> {
        let reservation = |name: &&str| json!({ "metadata": { "name": name }, "spec": { "podref": "a/b" } });
        let pools = pools.iter().map(|(name, range)| pool(name, range, &json!({}))).collect();
        let reservations = names.iter().map(reservation).collect();
        let line = |one: Allocation| format!("{} {} {}", one.address, one.range, one.network_name);
        let allocations =
            WhereaboutsObjects { pools, reservations, ..WhereaboutsObjects::default() }.allocations();
        let allocations = allocations.map_err(|error| error.to_string())?;
        Ok(allocations.into_iter().map(line).collect())
    }

    #[test]
    fn import_whereabouts_ambiguous_name_is_resolved_by_its_pool() {
        for (network, range, address) in [
            ("cafe", "fd00::/64", "fd00::7"),
            ("a-b-c-d-e-f", "10.0.0.0/24", "10.0.0.7"),
            ("be-ef", "fd00::/64", "fd00::"),
            ("1", "fd00:2:3:4:5:6:7:0/112", "fd00:2:3:4:5:6:7:8"),
        ] {
            let short = normalize_range(address);
            let pools = [(&*format!("{network}-{}", normalize_range(range)), range)];
            let expected = vec![format!("{address} {range} {network}")];
            assert_eq!(reserved_as(&pools, &[&format!("{network}-{short}")]), Ok(expected), "{network}");
        }
        // Two pools match the name. The pool that has the allocation decides.
        let both = [("cafe-fd00---64", "fd00::/64"), ("cafe-fd00---32", "cafe:fd00::/32")];
        let why = reserved_as(&both, &["cafe-fd00--7"]).unwrap_err();
        assert!(
            why.contains("cafe-fd00--7") && why.contains("fd00::7") && why.contains("cafe:fd00::7"),
            "{why}"
        );
        let known_pool = pool("cafe-fd00---64", "fd00::/64", &json!({ "7": { "podref": "a/b" } }));
        let pools = vec![known_pool, pool("cafe-fd00---32", "cafe:fd00::/32", &json!({}))];
        let reservations = vec![json!({ "metadata": { "name": "cafe-fd00--7" } })];
        let objects = WhereaboutsObjects { pools, reservations, ..WhereaboutsObjects::default() };
        assert_eq!(lines(&objects), ["fd00::7 fd00::/64 cafe a/b"]);
    }

    #[test]
    fn import_whereabouts_unreadable_object_is_named() {
        for (pool, word) in [
            (pool("x", "10.0.0.0", &json!({})), "spec.range: \"10.0.0.0\""),
            (pool("10.0.0.0-24", "10.0.0.0/24", &json!({ "x": {} })), "\"x\": not a number"),
            (pool("10.0.0.0-24", "10.0.0.0/24", &json!({ "-1": {} })), "\"-1\": not a number"),
            (pool("10.0.0.0-24", "10.0.0.0/24", &json!({ "256": {} })), "\"256\": outside of its range"),
            (pool("10.0.0.0-24", "10.0.0.0/24", &json!({ "5": null })), "\"5\": not an allocation"),
            (pool("10.0.0.0-24", "10.0.0.0/24", &json!(["5"])), "spec.allocations: not a map"),
        ] {
            let why = WhereaboutsObjects { pools: vec![pool], ..WhereaboutsObjects::default() }
                .allocations()
                .unwrap_err()
                .to_string();
            assert!(why.contains(word), "{why}");
        }
        let reservations = vec![json!({ "metadata": { "name": "blue-sky" } })];
        assert!(
            WhereaboutsObjects { reservations, ..WhereaboutsObjects::default() }
                .allocations()
                .unwrap_err()
                .to_string()
                .contains("blue-sky")
        );
    }
}
