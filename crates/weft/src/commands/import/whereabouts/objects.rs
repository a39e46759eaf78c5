//! Objects that whereabouts wrote, and the addresses that they record.
//!
//! An address may be recorded more than once: in pools in two namespaces, in pools with overlapping ranges,
//! and in a reservation. All records are returned; [`super::owners()`] decides whether they contradict each
//! other.

use std::net::IpAddr;

use cli_support::failure::Failure;
use ipam::pool_layout::{address_count, nth};
use ipnet::IpNet;
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client};
use kube_support::api_error;
use serde::Serialize;
use serde_json::Value;

/// Number of objects in a page.
const PAGE: u32 = 500;

/// Address that whereabouts allocated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Allocation {
    /// Address space (`network_name` in whereabouts).
    pub(super) network_name: String,
    /// Whole range; for a slice, the range that it is part of.
    pub(super) range: IpNet,
    /// Address that is recorded.
    pub(super) address: IpAddr,
    /// Pod, as `namespace/name`.
    pub(super) pod: String,
    /// Container ID; empty if unknown.
    pub(super) container: String,
    /// Interface; empty if unknown.
    pub(super) interface: String,
    /// Object that records it: kind, namespace and name. Empty if only the pod shows the address.
    pub(super) recorded_in: String,
}

/// Why an object that whereabouts wrote cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadError {
    /// The range in a pool, or in the nodes' slices, is not a network.
    #[error("{object}: spec.range: {range:?}: not a network")]
    ParseRange {
        /// Object, by kind and name.
        object: String,
        /// The range as it is written.
        range: String,
    },
    /// A pool's allocations are not a map.
    #[error("{pool}: spec.allocations: not a map")]
    Allocations {
        /// Pool name.
        pool: String,
    },
    /// An allocation in a pool is not valid.
    #[error("{pool}: spec.allocations: {offset:?}: {fault}")]
    ReadAllocation {
        /// Pool name.
        pool: String,
        /// The address's offset in the range, as it is written.
        offset: String,
        /// The rule that the allocation breaks.
        fault: &'static str,
    },
    /// A reservation's name contains no address.
    #[error("{name}: its name contains no address")]
    ParseReservation {
        /// Reservation name.
        name: String,
    },
    /// A reservation's name can be read as addresses in two pools.
    #[error(
        "{name}: its name means {one} in one pool and {other} in another; delete it if no pod \
         has either address"
    )]
    ChooseAddress {
        /// Reservation name.
        name: String,
        /// The address in one pool.
        one: IpAddr,
        /// The address in the other pool.
        other: IpAddr,
    },
}

/// Objects that whereabouts wrote, as JSON.
#[derive(Debug, Default)]
pub(super) struct WhereaboutsObjects {
    pools: Vec<Value>,
    reservations: Vec<Value>,
    slices: Vec<Value>,
}

impl WhereaboutsObjects {
    /// Lists the objects in all namespaces, or in one.
    pub(super) async fn list(
        client: &Client,
        namespace: Option<&str>,
    ) -> Result<WhereaboutsObjects, Failure> {
        Ok(WhereaboutsObjects {
            pools: list(client, namespace, "ippools", "IPPool").await?,
            reservations: list(
                client,
                namespace,
                "overlappingrangeipreservations",
                "OverlappingRangeIPReservation",
            )
            .await?,
            slices: list(client, namespace, "nodeslicepools", "NodeSlicePool").await?,
        })
    }

    /// Whether there is no object, whatever kind.
    pub(super) fn is_empty(&self) -> bool {
        self.pools.is_empty() && self.reservations.is_empty() && self.slices.is_empty()
    }

    /// Returns address space and range for each pool; for a slice, the range that it is part of.
    pub(super) fn ranges(&self) -> Result<Vec<(String, IpNet)>, ReadError> {
        let ranges = self.slices.iter().map(sliced_range).collect::<Result<Vec<_>, ReadError>>()?;
        let read = self.pools.iter().map(|pool| pool_range(pool, &ranges));
        let mut found =
            read.map(|read| read.map(|(name, range, _)| (name, range))).collect::<Result<Vec<_>, _>>()?;
        found.sort();
        found.dedup();
        Ok(found)
    }

    /// Returns every record about an allocated address, sorted by address. A reservation that repeats what a
    /// pool records for the same pod is left out.
    pub(super) fn allocations(&self) -> Result<Vec<Allocation>, ReadError> {
        let ranges = self.slices.iter().map(sliced_range).collect::<Result<Vec<_>, ReadError>>()?;
        let mut all = Vec::new();
        for pool in &self.pools {
            all.extend(pool_allocations(pool, &ranges)?);
        }
        let of_pools = all.len();
        for reservation in &self.reservations {
            let interpretations = reservation_interpretations(reservation)?;
            let is_same = |one: &&Allocation| {
                interpretations.iter().any(|(name, ip)| *name == one.network_name && *ip == one.address)
            };
            let known = all[..of_pools].iter().find(is_same);
            let (network_name, address, range) = match known {
                Some(known) => (known.network_name.clone(), known.address, known.range),
                None => match self.matching_pool(reservation, interpretations, &ranges)? {
                    Some(found) => found,
                    None => continue,
                },
            };
            let found = Allocation {
                network_name,
                range,
                address,
                pod: string(&reservation["spec"]["podref"]),
                container: string(&reservation["spec"]["containerid"]),
                interface: string(&reservation["spec"]["ifname"]),
                recorded_in: described("overlappingrangeipreservation", reservation),
            };
            if known.is_none_or(|known| !found.pod.is_empty() && known.pod != found.pod) {
                all.push(found);
            }
        }
        all.sort_by(|a, b| (&a.network_name, a.address).cmp(&(&b.network_name, b.address)));
        Ok(all)
    }

    /// Returns that reading of a reservation's name whose network and address are in a pool, with the pool's
    /// range. `None` if there is no such pool; an error if two pools match.
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
            [(_, one, _), (_, other, _), ..] => Err(ReadError::ChooseAddress {
                name: described("overlappingrangeipreservation", reservation),
                one: *one,
                other: *other,
            }),
        }
    }
}

/// Lists the objects that have a kind.
async fn list(
    client: &Client,
    namespace: Option<&str>,
    plural: &str,
    kind: &str,
) -> Result<Vec<Value>, Failure> {
    let kind = GroupVersionKind::gvk("whereabouts.cni.cncf.io", "v1alpha1", kind);
    let resource = ApiResource::from_gvk_with_plural(&kind, plural);
    let api: Api<DynamicObject> = match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    let mut parameters = ListParams::default().limit(PAGE);
    let mut all = Vec::new();
    loop {
        let page = match api.list(&parameters).await {
            Ok(page) => page,
            // Not every release of whereabouts has every kind.
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(all),
            Err(error) => {
                return Err(api_error::failure(format_args!("list {plural}"), &error));
            }
        };
        all.extend(page.items.iter().filter_map(|item| serde_json::to_value(item).ok()));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => parameters = parameters.continue_token(&token),
            None => return Ok(all),
        }
    }
}

/// Returns an object's kind, namespace and name for messages.
fn described(kind: &str, object: &Value) -> String {
    let (namespace, name) = (string(&object["metadata"]["namespace"]), name_of(object));
    let divider = if namespace.is_empty() { "" } else { "/" };
    format!("{kind} {namespace}{divider}{name}")
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

/// Range from which nodes have slices.
#[derive(Debug)]
struct SlicedRange {
    /// Address space, or the network's name if it has no address space.
    name: String,
    range: IpNet,
    /// Node name and slice for each node.
    slices: Vec<(String, IpNet)>,
}

/// Parses a NodeSlicePool.
fn sliced_range(object: &Value) -> Result<SlicedRange, ReadError> {
    let (name, range) = (name_of(object), string(&object["spec"]["range"]));
    let net = range.parse::<IpNet>().map_err(|_| ReadError::ParseRange {
        object: described("nodeslicepool", object),
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
    /// Returns the address space for the pool `name` with the range `own`, if `own` is a slice from this
    /// range.
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

/// Returns a pool's address space, the whole range, and the range in which offsets count.
fn pool_range(pool: &Value, slices: &[SlicedRange]) -> Result<(String, IpNet, IpNet), ReadError> {
    let (name, range) = (name_of(pool), string(&pool["spec"]["range"]));
    let own = range
        .parse::<IpNet>()
        .map_err(|_| ReadError::ParseRange { object: described("ippool", pool), range: range.clone() })?
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
    let name = described("ippool", pool);
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
            recorded_in: name.clone(),
        });
    }
    Ok(all)
}

/// Returns every way to read a reservation's name as address space and address. The name is
/// `[network-]address` with dashes for colons, so a network name's end may also be a group in an IPv6
/// address.
fn reservation_interpretations(object: &Value) -> Result<Vec<(String, IpAddr)>, ReadError> {
    let name = name_of(object);
    let parts: Vec<&str> = name.split('-').collect();
    let interpretation = |from: usize| {
        let ip = parts[from..].join(":").parse::<IpAddr>().ok()?;
        Some((parts[..from].join("-"), ip))
    };
    let interpretations: Vec<_> = (0..parts.len()).filter_map(interpretation).collect();
    match interpretations.is_empty() {
        true => Err(ReadError::ParseReservation { name: described("overlappingrangeipreservation", object) }),
        false => Ok(interpretations),
    }
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
