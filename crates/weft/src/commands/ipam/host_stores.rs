//! This node's address stores, read without a cluster: windows, use, who holds addresses, and how one is
//! released.
//!
//! - The kind of store can be read from the blocks: a store for this host alone uses the network as lease identifier.
//! - A network's window is what the last ADD recorded. Network and broadcast address, gateway and exclusions are not in
//!   it, and not free.
//! - Only `weft-cni` changes a store, under the store's lock.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use ipam::{AddressSpan, AddressStore, Clock};
use serde::Serialize;
use serde_json::json;

use super::node_sandboxes::NodeSandboxes;
use super::store_blocks::{
    STORE_BLOCK_HEADINGS, StoreBlock, bar, is_usable, percent, quarantine_of, store_block_rows, store_blocks,
};
use cli_support::failure::Failure;
use cli_support::output;
use cli_support::output::{Format, Progress};
use cli_support::table;
use ipam_api::clock::now;
use ipam_api::findings::Finding;
use node_support::address_store;
use node_support::address_store::{Held, Window};
use node_support::weft_cni::{FreeReply, WeftCni};

/// Address store on this node.
pub(super) struct HostStore {
    name: String,
    path: PathBuf,
    addresses: AddressStore,
    windows: Vec<Window>,
}

/// Document about a store for `-o json`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct StoreDocument<'a> {
    store: &'a str,
    kind: &'static str,
    networks: Vec<NetworkDocument<'a>>,
    /// Number of addresses that the networks may allocate here, as a string; absent if no ADD recorded it.
    #[serde(skip_serializing_if = "Option::is_none")]
    usable: Option<String>,
    held: u64,
    quarantined: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    free: Option<String>,
    blocks: Vec<StoreBlock>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct NetworkDocument<'a> {
    name: &'a str,
    addresses: Vec<String>,
    quarantine: u64,
}

/// Holder of an address in a store.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct StoreHolder {
    address: IpAddr,
    store: String,
    kind: &'static str,
    /// Container and pod; absent if the address is not held.
    #[serde(skip_serializing_if = "Option::is_none")]
    container: Option<String>,
    state: &'static str,
}

// === impl HostStore ===

impl HostStore {
    /// Reads the stores below a directory. Those that cannot be read are left out, unless none can be read.
    pub(super) fn all(directory: &Path) -> Result<Vec<HostStore>, Failure> {
        let failed = |error: address_store::ReadError| Failure::new(error.to_string());
        let mut stores = Vec::new();
        let mut unread = None;
        for (name, path) in address_store::all(directory).unwrap_or_default() {
            match address_store::read(&path) {
                Ok(Some(addresses)) => {
                    let windows = address_store::windows(&path, &addresses).unwrap_or_default();
                    stores.push(HostStore { name, path, addresses, windows });
                }
                Ok(None) => {}
                Err(error) => unread = Some(error),
            }
        }
        match unread {
            Some(error) if stores.is_empty() => Err(failed(error)),
            _ => Ok(stores),
        }
    }

    /// Releases an address that the store holds.
    fn free(
        &self,
        directory: &Path,
        address: IpAddr,
        sandboxes: Option<&NodeSandboxes>,
    ) -> Result<(), Failure> {
        let in_use = |owner: &str| {
            let why = format!("{address}: {owner} holds it, and its sandbox may live");
            let failure = match sandboxes.and_then(NodeSandboxes::unknown) {
                Some(unknown) => Failure::new(format!("{why}: {unknown}")),
                None => Failure::new(why),
            };
            failure.next(format!(
                "delete the pod; or run weft ipam free {address} --force, if its namespace is gone for good: the address may be \
                 allocated twice otherwise"
            ))
        };
        let on_host = format!("on the host, run: sudo weft ipam free {address}");
        let entries = match sandboxes {
            None => Vec::new(),
            Some(sandboxes) => {
                let held = self.held()?.into_iter().find(|held| held.ip == address);
                if let Some(Held { owner, .. }) = held
                    && sandboxes.living()?.is_none_or(|living| living.contain(&owner.container))
                {
                    return Err(in_use(&owner.to_string()));
                }
                sandboxes.entries().to_vec()
            }
        };
        let released = WeftCni::find()
            .and_then(|weft_cni| weft_cni.free_address(directory, &self.name, address, &entries));
        match released {
            Ok(FreeReply::Freed(owner)) => output::print(&format!(
                "{}\n",
                json!({ "freed": address, "store": self.name, "owner": owner })
            )),
            Ok(FreeReply::InUse(owner)) => Err(in_use(&owner)),
            Ok(FreeReply::NotHeld) => Err(Failure::new(format!("{address}: was released meanwhile"))),
            Err(failure) => Err(failure.next(on_host)),
        }
    }

    /// Whether the store belongs to this host alone.
    pub(super) fn is_of_host(&self) -> bool {
        address_store::is_of_host(&self.addresses) == Some(true)
    }

    fn kind(&self) -> &'static str {
        match address_store::is_of_host(&self.addresses) {
            Some(true) => "file",
            Some(false) => "cluster",
            None => "empty",
        }
    }

    /// Returns how many addresses the networks may allocate on this node; `None` if that was not recorded.
    fn usable(&self) -> Option<u128> {
        if self.windows.is_empty() {
            return None;
        }
        if self.is_of_host() {
            return Some(match self.windows.as_slice() {
                [one] => one.size,
                several => size_of_union(several.iter().flat_map(|window| &window.spans)),
            });
        }
        let in_blocks = self.addresses.blocks().flat_map(|block| {
            let count = self.addresses.slots_of(&block).count();
            (0..count).map(move |at| ipam::pool_layout::nth(block.net, at as u128))
        });
        let usable: BTreeSet<IpAddr> = in_blocks.filter(|ip| is_usable(&self.windows, *ip)).collect();
        Some(usable.len() as u128)
    }

    fn document(&self) -> StoreDocument<'_> {
        let blocks = store_blocks(&self.addresses, &self.windows);
        let sum = |count: fn(&StoreBlock) -> u64| blocks.iter().map(count).sum::<u64>();
        let (held, quarantined) = (sum(|block| block.held), sum(|block| block.quarantined));
        let usable = self.usable();
        let free = match self.is_of_host() {
            // Every block of the pool is this host's.
            true => usable.map(|usable| usable.saturating_sub(u128::from(held + quarantined)).to_string()),
            false => Some(sum(|block| block.free).to_string()),
        };
        let networks = self.windows.iter().map(|window| NetworkDocument {
            name: &window.network,
            addresses: window.spans.iter().map(AddressSpan::to_string).collect(),
            quarantine: window.quarantine,
        });
        StoreDocument {
            store: &self.name,
            kind: self.kind(),
            networks: networks.collect(),
            usable: usable.map(|usable| usable.to_string()),
            held,
            quarantined,
            free,
            blocks,
        }
    }

    fn held(&self) -> Result<Vec<Held>, Failure> {
        address_store::held(&self.path, &self.addresses).map_err(|error| Failure::new(error.to_string()))
    }

    /// Returns what the store knows about an address, if it has it.
    fn holder_of(&self, address: IpAddr) -> Result<Option<StoreHolder>, Failure> {
        let held = self.held()?.into_iter().find(|held| held.ip == address);
        let clock = Clock { now: now(), quarantine: quarantine_of(&self.windows) };
        let is_waiting = || {
            let waiting = self.addresses.in_quarantine(clock, |ip| ip == address);
            !waiting.is_empty()
        };
        let is_known = self.addresses.find(address).is_some()
            || (self.is_of_host() && !self.windows.is_empty() && is_usable(&self.windows, address));
        let state = match &held {
            Some(_) => "held",
            None if !is_known => return Ok(None),
            None if is_waiting() => "quarantine",
            None if self.windows.is_empty() || is_usable(&self.windows, address) => "free",
            None => "not used",
        };
        Ok(Some(StoreHolder {
            address,
            store: self.name.clone(),
            kind: self.kind(),
            container: held.map(|held| held.owner.to_string()),
            state,
        }))
    }
}

/// Returns how many addresses there are in spans that may overlap.
fn size_of_union<'a>(spans: impl Iterator<Item = &'a AddressSpan>) -> u128 {
    let number = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => u128::from(ip.to_bits()),
        IpAddr::V6(ip) => ip.to_bits(),
    };
    let mut spans: Vec<(u128, u128)> = spans.map(|span| (number(span.first), number(span.last))).collect();
    spans.sort_unstable();
    let (mut size, mut next) = (0_u128, 0_u128);
    for (first, last) in spans {
        let first = first.max(next);
        if first <= last {
            size = size.saturating_add((last - first).saturating_add(1));
            next = last.saturating_add(1);
        }
    }
    size
}

// === commands ===

/// Prints this node's stores.
pub(super) fn show(stores: &[HostStore], format: Format) -> Result<(), Failure> {
    let documents: Vec<StoreDocument<'_>> = stores.iter().map(HostStore::document).collect();
    match format.print(&documents) {
        Some(printed) => printed,
        None if stores.is_empty() => output::print("no address stores\n"),
        None => {
            print_stores(stores)?;
            let rows =
                documents.iter().flat_map(|document| store_block_rows(document.store, &document.blocks));
            output::print(&format!(
                "\n{}",
                table::lay_out(&STORE_BLOCK_HEADINGS, &rows.collect::<Vec<_>>(), 0)
            ))
        }
    }
}

/// Prints the table with stores.
pub(super) fn print_stores(stores: &[HostStore]) -> Result<(), Failure> {
    let row = |store: &HostStore| {
        let StoreDocument { store: name, kind, networks, usable, held, quarantined, free, blocks: _ } =
            store.document();
        let names = networks.iter().map(|network| network.name).collect::<Vec<_>>().join(", ");
        let all = usable.as_deref().and_then(|usable| usable.parse().ok()).unwrap_or(u64::MAX);
        let or_unknown = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let share = usable.is_some().then(|| bar(percent(held, all)));
        vec![
            name.to_owned(),
            kind.to_owned(),
            names,
            or_unknown(usable),
            held.to_string(),
            quarantined.to_string(),
            or_unknown(free),
            or_unknown(share),
        ]
    };
    let headings = ["store", "kind", "networks", "usable", "held", "quarantine", "free", "utilization"];
    output::print(&table::lay_out(&headings, &stores.iter().map(row).collect::<Vec<_>>(), 0))
}

/// Returns who holds an address in the stores.
pub(super) fn holders(stores: &[HostStore], address: IpAddr) -> Result<Vec<StoreHolder>, Failure> {
    let mut holders = Vec::new();
    for store in stores {
        holders.extend(store.holder_of(address)?);
    }
    Ok(holders)
}

/// Prints who holds an address.
pub(super) fn who(stores: &[HostStore], address: IpAddr, format: Format) -> Result<(), Failure> {
    let holders = holders(stores, address)?;
    if holders.is_empty() {
        return Err(Failure::new(format!("{address}: in no address store of this node")));
    }
    if let Some(printed) = format.print(&holders) {
        return printed;
    }
    print_holders(&holders)
}

/// Prints the table with holders.
pub(super) fn print_holders(holders: &[StoreHolder]) -> Result<(), Failure> {
    let row = |holder: &StoreHolder| {
        let StoreHolder { address, store, kind, container, state } = holder;
        let container = container.clone().unwrap_or_else(|| "-".to_owned());
        vec![address.to_string(), store.clone(), (*kind).to_owned(), (*state).to_owned(), container]
    };
    let rows: Vec<Vec<String>> = holders.iter().map(row).collect();
    output::print(&table::lay_out(&["address", "store", "kind", "state", "held by"], &rows, 0))
}

/// Returns findings about this node's stores: unreadable ones, addresses whose container is gone, and full
/// ones. Without a journal, no container is known to be gone.
pub(super) fn findings(directory: &Path, sandboxes: &NodeSandboxes) -> Result<Vec<Finding>, Failure> {
    let mut findings = Vec::new();
    let all = address_store::all(directory).map_err(|error| Failure::new(error.to_string()))?;
    for (name, path) in all {
        if let Err(error) = address_store::read(&path) {
            let why = format!("{error}; its addresses are unknown");
            findings.push(Finding { what: "unread", object: format!("address store {name}"), why });
        }
    }
    if let Some(why) = sandboxes.unknown() {
        let note = format!("addresses are not compared with the sandboxes of this node: {why}");
        Progress::beside(Format::Json).line(note);
    }
    let living = sandboxes.living()?;
    for store in HostStore::all(directory).unwrap_or_default() {
        let object = format!("address store {}", store.name);
        for Held { ip, since: _, owner } in store.held()? {
            if living.as_ref().is_some_and(|living| !living.contain(&owner.container)) {
                let why = format!(
                    "{ip} is allocated to {owner}, which has no sandbox in {}: run weft ipam free {ip}",
                    listed(sandboxes.entries())
                );
                findings.push(Finding { what: "leaked", object: object.clone(), why });
            }
        }
        let document = store.document();
        if store.is_of_host() && document.free.as_deref() == Some("0") {
            let why = format!(
                "{} addresses are held and {} in quarantine, none is free: enlarge the range",
                document.held, document.quarantined
            );
            findings.push(Finding { what: "nearly-full", object, why });
        }
    }
    Ok(findings)
}

fn listed(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

/// Releases an address that one of this node's stores holds; `None` if none does. `weft-cni` does it. With
/// `sandboxes`, only if the container is gone.
pub(super) fn free(
    stores: &[HostStore],
    directory: &Path,
    address: IpAddr,
    sandboxes: Option<&NodeSandboxes>,
) -> Option<Result<(), Failure>> {
    let is_held = |store: &&HostStore| store.addresses.find_held(address).is_some();
    let store = stores.iter().find(is_held)?;
    Some(store.free(directory, address, sandboxes))
}
