//! Looks up the pool for a network range, and decides about the pool layout.
//!
//! ```text
//!   by name ──► exists? ──► layout fixed ──► its blocks
//!              │       └─► not yet: pending ──► another pool with addresses of it? ── no ──► fixed
//!              └► range within another pool of the same address space? ──► that pool
//!                 └► contains a pool that a network created? ──► that pool is enlarged: its layout is fixed again
//!                    └► created; block size as before, or by window and number of nodes; other pools inside it are excluded
//! ```
//!
//! - The pool status records the layout. A spec with a smaller range uses a part of it. For a larger range the layout
//!   is fixed again, with the same block size, unless the pool has no blocks. Other changes are refused.
//! - While a layout is fixed again it is pending, and nothing is leased. An object that was created before is seen by the
//!   list of leases; the creator of a later one reads that the pool has changed, and releases it.
//! - The record is a separate write, with the resource version of the pool whose spec it records. Nothing is leased from a
//!   pool without a record, so a call that ends before it writes one leaves a pool that was never used.
//! - A pool that is created again after a deletion gets the layout of the leases that still exist.
//! - A pool in use has a finalizer. Objects whose pool no longer exists count as a separate pool.
//! - Two pools must not have addresses in common; the pool whose layout was fixed first wins. Each lookup first records
//!   that the pool is pending and then reads the others, so at least one of two sees the other.

mod rival;

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use ipam::PoolLayout;
use ipam::pool_layout::address_count;
use ipnet::IpNet;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use rpc::allocate::PoolReference;
use serde_json::json;
use tokio::time::sleep;

use crate::cluster_history::{ClusterHistory, RESTORED};
use crate::ip_objects::{
    BlockObject, IN_USE, LayoutState, POOL_LABEL, PoolError, PoolFault, PoolObject, kind_of, label, record_of,
};
use kube_support::api_error;
use kube_support::custom_resources::IPPoolSpec;
use kube_support::resources::NodeObject;

/// Number of objects in a page.
const PAGE: u32 = 1000;
/// Number of checks whether a concurrent change has ended.
const CHECKS: usize = 6;
/// Pause between two checks.
const CHECK: Duration = Duration::from_millis(250);

/// Pool that addresses can be leased from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Name of the object.
    pub name: String,
    /// Uid of the object.
    pub uid: Option<String>,
    /// Layout.
    pub grid: PoolLayout,
    /// Parts that are never allocated.
    pub exclude: Vec<IpNet>,
    /// Whether single addresses may lack the block label.
    pub has_unlabelled_addresses: bool,
    /// Sections that may contain single addresses, if recorded: [`PoolObject::recorded_sections`].
    pub single_address_sections: Option<BTreeSet<u16>>,
}

/// Reason why a pool cannot be used, in one sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// The API server did not answer; the state of the pool is unknown.
    Unknown(String),
    /// Another client changed the pool meanwhile.
    Changed(String),
    /// The API server refused the request, or the object is invalid.
    Refused(String),
}

/// Returns the requested pool; creates it if it does not exist and need not exist.
///
/// # Errors
/// [`Unusable`]. A concurrent change by another client is waited for.
pub async fn resolve(client: &Client, wanted: &PoolReference) -> Result<Pool, Unusable> {
    resolve_for(client, wanted, address_count(wanted.range), &ClusterHistory::default()).await
}

/// Returns the requested pool like [`resolve`], for a network that may allocate `window` addresses from it; a new
/// pool's block size depends on the window. No pool is created if `history` shows that the cluster was restored.
///
/// # Errors
/// As for [`resolve`].
pub async fn resolve_for(
    client: &Client,
    wanted: &PoolReference,
    window: u128,
    history: &ClusterHistory,
) -> Result<Pool, Unusable> {
    let lookup = Lookup { client, pools: Api::all(client.clone()), wanted, window, history };
    let mut found = lookup.resolve().await;
    for _ in 0..CHECKS {
        if !matches!(found, Err(Unusable::Changed(_))) {
            break;
        }
        sleep(CHECK).await;
        found = lookup.resolve().await;
    }
    found
}

/// Origin of a pool that turns out to be unusable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// Created by this lookup, which removes it.
    Created,
    /// Existed before; it is kept.
    Existing,
}

/// Lookup of one pool.
struct Lookup<'a> {
    client: &'a Client,
    pools: Api<PoolObject>,
    wanted: &'a PoolReference,
    /// Number of addresses that the network may allocate.
    window: u128,
    history: &'a ClusterHistory,
}

impl From<String> for Unusable {
    fn from(why: String) -> Unusable {
        Unusable::Refused(why)
    }
}

impl From<PoolError> for Unusable {
    fn from(error: PoolError) -> Unusable {
        Unusable::Refused(error.to_string())
    }
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Unusable::Unknown(why) | Unusable::Changed(why) | Unusable::Refused(why)) = self;
        f.write_str(why)
    }
}

impl Lookup<'_> {
    async fn resolve(&self) -> Result<Pool, Unusable> {
        let wanted = self.wanted;
        if let Some(found) = self.done(self.pools.get_opt(&wanted.name).await)? {
            return self.usable(found).await;
        }
        if wanted.must_exist {
            return Err(format!("pool {} does not exist: create an IPPool of that name", wanted.name).into());
        }
        let before = self.history.newest();
        let listed = self.done(self.pools.list(&ListParams::default()).await)?;
        let version = listed.metadata.resource_version.as_deref();
        if self.history.note(before, version) || self.history.settles_for().is_some() {
            return Err(Unusable::Unknown(format!("pool {}: {RESTORED}", wanted.name)));
        }
        let others = listed.items;
        let same = others.iter().filter(|pool| pool.spec.network_name == wanted.network);
        let ranges = same.clone().filter_map(|pool| Some((pool, range(pool)?)));
        if let Some((around, _)) = ranges.clone().find(|(_, range)| range.contains(&wanted.range)) {
            return self.usable(around.clone()).await;
        }
        let mut inside: Vec<_> = ranges.filter(|(_, range)| wanted.range.contains(range)).collect();
        inside.sort_by_key(|(pool, range)| (range.prefix_len(), name(pool)));
        if let Some((pool, _)) = inside.iter().find(|(pool, _)| is_named_by_network(pool)) {
            let others = ranges_inside(same.filter(|other| name(other) != name(pool)), wanted.range);
            return self.enlarge((*pool).clone(), others).await;
        }
        let pool = PoolObject {
            types: kind_of::<PoolObject>(),
            metadata: ObjectMeta {
                name: Some(wanted.name.clone()),
                finalizers: Some(vec![IN_USE.to_owned()]),
                ..ObjectMeta::default()
            },
            spec: IPPoolSpec {
                range: wanted.range.to_string(),
                block_bits: Some(self.bits(&wanted.name, wanted.range).await?),
                network_name: wanted.network.clone(),
                exclude: ranges_inside(same, wanted.range),
            },
            status: None,
        };
        match self.pools.create(&PostParams::default(), &pool).await {
            Ok(created) => self.fix_layout(created, Origin::Created).await,
            Err(kube::Error::Api(status)) if status.code == 409 => {
                let found = self.done(self.pools.get(&wanted.name).await)?;
                self.usable(found).await
            }
            Err(error) => Err(self.failed(&error)),
        }
    }

    fn failed(&self, error: &kube::Error) -> Unusable {
        let why = format!("pool {}: {}", self.wanted.name, api_error::describe(error));
        match error {
            kube::Error::Api(status) if status.code == 429 || status.code >= 500 => Unusable::Unknown(why),
            kube::Error::Api(_) => Unusable::Refused(why),
            _ => Unusable::Unknown(why),
        }
    }

    fn done<T>(&self, done: Result<T, kube::Error>) -> Result<T, Unusable> {
        done.map_err(|error| self.failed(&error))
    }

    /// Returns an existing pool; fixes the layout if that has not been done.
    async fn usable(&self, found: PoolObject) -> Result<Pool, Unusable> {
        let (name, space) = (name(&found), &found.spec.network_name);
        let wanted = self.wanted;
        // A network that names its pool gets the address space of the pool.
        if *space != wanted.network && !(wanted.must_exist && wanted.network.is_empty()) {
            return Err(format!(
                "pool {name}: spec.networkName: {space:?}: the network's network_name is {:?}",
                wanted.network
            )
            .into());
        }
        match range(&found) {
            Some(range) if !range.contains(&wanted.range) => {
                return Err(format!(
                    "pool {name}: spec.range: {range}: does not contain the network's range {}",
                    wanted.range
                )
                .into());
            }
            _ => {}
        }
        let found = self.protected(found).await?;
        match found.layout_state()? {
            LayoutState::Fixed => Ok(read(&found)?),
            LayoutState::Unset | LayoutState::Pending => self.fix_layout(found, Origin::Existing).await,
            LayoutState::Resized => match self.fix_layout(found.clone(), Origin::Existing).await {
                // The fixed part of the pool can be used although the pool cannot be enlarged.
                Err(Unusable::Refused(_)) if has_fixed(&found, wanted.range) => Ok(read(&found)?),
                fixed => fixed,
            },
        }
    }

    /// Returns the pool with the finalizer: a pool from which addresses are leased must stay until nothing in it is in
    /// use.
    async fn protected(&self, pool: PoolObject) -> Result<PoolObject, Unusable> {
        match pool.in_use() {
            Some(in_use) => self.replace(&in_use).await,
            None => Ok(pool),
        }
    }

    /// Enlarges a pool to the requested range, which must contain the old one. The ranges in `others` are excluded.
    async fn enlarge(&self, mut pool: PoolObject, others: Vec<String>) -> Result<Pool, Unusable> {
        pool.layout_state()?;
        let before = pool.spec.clone();
        pool.spec.range = self.wanted.range.to_string();
        let new = others.into_iter().filter(|other| !pool.spec.exclude.contains(other)).collect::<Vec<_>>();
        pool.spec.exclude.extend(new);
        if pool.spec.block_bits == Some(0) {
            let nodes = self.done(node_count(self.client).await)?;
            pool.spec.block_bits = Some(PoolLayout::for_window(self.wanted.range, self.window, nodes).bits());
        }
        let written = self.replace(&pool).await?;
        let usable = self.usable(written).await;
        if matches!(usable, Err(Unusable::Refused(_)))
            && let Ok(found) = self.pools.get(&name(&pool)).await
            && found.spec == pool.spec
            // Another agent may have fixed the layout of this range meanwhile.
            && found.layout_state() == Ok(LayoutState::Resized)
        {
            // Networks with the range before are not disturbed.
            let _ = self.replace(&PoolObject { spec: before, ..found }).await;
        }
        usable
    }

    /// Fixes the layout of a pool that is not used yet, or whose range was changed.
    async fn fix_layout(&self, mut pool: PoolObject, origin: Origin) -> Result<Pool, Unusable> {
        let name = name(&pool);
        let Some(own) = range(&pool) else { return Ok(read(&pool)?) };
        let is_open = pool.spec.block_bits.is_none();
        if is_open {
            pool.spec.block_bits = Some(self.bits(&name, own).await?);
        }
        let grid = pool.grid_of_spec()?.ok_or_else(|| pool.fault(PoolFault::NoBlockBits))?;
        let leased = self.leased(&name).await?;
        refuse_foreign(&name, &leased, &grid)?;
        if is_open {
            pool = self.replace(&pool).await?;
        }
        let is_resized = pool.recorded_range().is_some();
        let (pool, leased) = match is_resized {
            true => self.begin_change(pool, own, &grid).await?,
            false if leased.is_empty() && pool.layout_state()? == LayoutState::Unset => {
                (self.record(&pool, pool.layout_status(LayoutState::Pending)).await?, leased)
            }
            false => (pool, leased),
        };
        let is_new = leased.is_empty() || is_resized;
        let mut checks = CHECKS;
        while let Some(rival) = self.rival(&pool, own, is_new).await? {
            checks -= 1;
            if rival.is_final() || checks == 0 {
                return Err(self.withdraw(pool, origin, &rival).await.into());
            }
            sleep(CHECK).await;
        }
        self.finish(&pool, &grid, &leased).await
    }

    /// Makes the layout of a used pool pending; returns the pool and the leases. Nothing is written if the change must
    /// be refused, so that the fixed part stays usable.
    async fn begin_change(
        &self,
        pool: PoolObject,
        own: IpNet,
        grid: &PoolLayout,
    ) -> Result<(PoolObject, Vec<BlockObject>), Unusable> {
        if pool.layout_state()? == LayoutState::Resized
            && let Some(rival) = self.rival(&pool, own, true).await?
            && rival.is_final()
        {
            return Err(rival::overlap(&pool, &rival).into());
        }
        let pool = self.record(&pool, pool.layout_status(LayoutState::Pending)).await?;
        // From now on the creator of an object reads that the pool has changed.
        let leased = self.leased(&name(&pool)).await?;
        if let Err(why) = refuse_foreign(&name(&pool), &leased, grid) {
            let _ = self.record(&pool, pool.layout_status(LayoutState::Resized)).await;
            return Err(why);
        }
        Ok((pool, leased))
    }

    /// Records the layout of a pending pool as fixed.
    async fn finish(
        &self,
        pool: &PoolObject,
        grid: &PoolLayout,
        leased: &[BlockObject],
    ) -> Result<Pool, Unusable> {
        let mut status = pool.layout_status(LayoutState::Fixed);
        if let Some(record) = single_addresses(pool, grid, leased) {
            status["singleAddressBlocks"] = record["singleAddressBlocks"].clone();
        }
        // A component that read the pool before may write an address without the label again, so this stays.
        if !grid.has_single_addresses_only() && leased.iter().any(is_unlabelled) {
            status["layout"]["unlabelledAddresses"] = json!(true);
        }
        let pool = self.record(pool, status).await?;
        match pool.layout_state()? {
            LayoutState::Fixed => Ok(read(&pool)?),
            _ => Err(format!(
                "pool {}: the API server does not keep status.layout: apply the CRDs of this release (weft crds)",
                name(&pool)
            )
            .into()),
        }
    }

    /// Writes pool status fields, if the pool was not changed since it was read: the record must describe the spec that
    /// was read.
    async fn record(&self, pool: &PoolObject, status: serde_json::Value) -> Result<PoolObject, Unusable> {
        let version = &pool.metadata.resource_version;
        let patch = json!({ "metadata": { "resourceVersion": version }, "status": status });
        let patched =
            self.pools.patch_status(&name(pool), &PatchParams::default(), &Patch::Merge(patch)).await;
        self.changed(patched)
    }

    async fn replace(&self, pool: &PoolObject) -> Result<PoolObject, Unusable> {
        let written = PoolObject { types: kind_of::<PoolObject>(), ..pool.clone() };
        self.changed(self.pools.replace(&name(pool), &PostParams::default(), &written).await)
    }

    fn changed(&self, written: Result<PoolObject, kube::Error>) -> Result<PoolObject, Unusable> {
        match written {
            // A deleted pool has changed, too.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {
                Err(Unusable::Changed(self.failed(&kube::Error::Api(status)).to_string()))
            }
            other => self.done(other),
        }
    }

    /// Returns everything that was leased from a pool.
    async fn leased(&self, pool: &str) -> Result<Vec<BlockObject>, Unusable> {
        let of_pool = ListParams::default().labels(&format!("{POOL_LABEL}={}", label(pool)));
        let mut all = self.blocks(&of_pool).await?;
        all.retain(|block| block.spec.pool == pool);
        Ok(all)
    }

    /// Returns all blocks and single addresses of a list, which is read in pages.
    async fn blocks(&self, parameters: &ListParams) -> Result<Vec<BlockObject>, Unusable> {
        let blocks = Api::<BlockObject>::all(self.client.clone());
        let mut parameters = parameters.clone().limit(PAGE);
        let mut all = Vec::new();
        loop {
            let page = self.done(blocks.list(&parameters).await)?;
            all.extend(page.items);
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => parameters = parameters.continue_token(&token),
                None => return Ok(all),
            }
        }
    }

    /// Returns the block size for a new pool: that of leases which a deleted pool left, otherwise a size chosen by
    /// window and node count.
    async fn bits(&self, pool: &str, range: IpNet) -> Result<u8, Unusable> {
        let leased = self.leased(pool).await?;
        // Single addresses of a pool that had no blocks at first do not have the block size.
        if let Some(bits) = leased.iter().filter_map(BlockObject::bits).max() {
            return Ok(bits);
        }
        let nodes = self.done(node_count(self.client).await)?;
        Ok(PoolLayout::for_window(range, self.window, nodes).bits())
    }
}

fn name(pool: &PoolObject) -> String {
    pool.metadata.name.clone().unwrap_or_default()
}

fn range(pool: &PoolObject) -> Option<IpNet> {
    pool.spec.range.parse().ok()
}

/// Returns the pool ranges inside a network, taken from specs and recorded layouts: addresses outside a reduced range
/// may still be leased.
fn ranges_inside<'a>(pools: impl Iterator<Item = &'a PoolObject>, net: IpNet) -> Vec<String> {
    let ranges = pools.flat_map(|pool| range(pool).into_iter().chain(pool.recorded_range()));
    let inside: BTreeSet<IpNet> = ranges.filter(|range| net.contains(range) && *range != net).collect();
    inside.iter().map(IpNet::to_string).collect()
}

/// Whether the pool has the name that a network derives from a range: such a pool follows the networks.
fn is_named_by_network(pool: &PoolObject) -> bool {
    let (Some(own), name) = (range(pool), name(pool)) else { return false };
    let space = &pool.spec.network_name;
    let rest = if space.is_empty() { Some(&*name) } else { name.strip_prefix(&format!("{space}-")) };
    let net = rest.and_then(|rest| rest.rsplit_once('-')).and_then(|(address, length)| {
        let address = if own.addr().is_ipv4() { address.to_owned() } else { address.replace('-', ":") };
        IpNet::new(address.parse().ok()?, length.parse().ok()?).ok()
    });
    net.is_some_and(|net| own.contains(&net))
}

/// Whether the fixed layout of a pool has a range.
fn has_fixed(pool: &PoolObject, wanted: IpNet) -> bool {
    pool.recorded_range().is_some_and(|fixed| fixed.contains(&wanted))
}

/// Refuses a layout that is not that of everything leased.
fn refuse_foreign(pool: &str, leased: &[BlockObject], grid: &PoolLayout) -> Result<(), Unusable> {
    match leased.iter().find(|block| !fits(block, grid)) {
        None => Ok(()),
        Some(other) => Err(format!(
            "pool {pool}: spec: {}, which was leased from it, is not one of its blocks of {} addresses: restore the range and the \
             blockBits that it had, or delete that IPBlock when no pod has an address of it",
            other.metadata.name.as_deref().unwrap_or_default(),
            grid.block_size()
        )
        .into()),
    }
}

/// Whether an object is a block of this layout, lies inside one, or does not matter: an invalid object is reported
/// elsewhere, and a free address outside the range is never leased again. Single addresses in a pool without blocks fit
/// any block size.
fn fits(block: &BlockObject, grid: &PoolLayout) -> bool {
    let Some(object) = block.object() else { return true };
    match grid.block_of(object.net.addr()) {
        Some(_) => block.bits() == Some(grid.bits()) || is_unlabelled(block),
        None => object.is_free(),
    }
}

/// Whether an object is a single address without the label of a block.
fn is_unlabelled(block: &BlockObject) -> bool {
    block.bits() == Some(0)
}

/// Returns the complete record of pool sections with single addresses. `None` if it is not reliable, or if every block
/// is one address: then every block is searched for single addresses.
fn single_addresses(
    pool: &PoolObject,
    grid: &PoolLayout,
    leased: &[BlockObject],
) -> Option<serde_json::Value> {
    let objects: Vec<_> = leased.iter().map(BlockObject::object).collect::<Option<_>>()?;
    let singles = objects.iter().filter(|object| object.is_single_address());
    let sections: BTreeSet<u16> = singles.filter_map(|object| grid.section_of(object.net.addr())).collect();
    (!grid.has_single_addresses_only()).then(|| record_of(sections, pool.metadata.uid.as_deref()))
}

fn read(object: &PoolObject) -> Result<Pool, PoolError> {
    let (name, exclude) = (name(object), object.exclude()?);
    let grid = object.grid()?.ok_or_else(|| object.fault(PoolFault::NoBlockBits))?;
    let single_address_sections = object.recorded_sections();
    let has_unlabelled_addresses = object.has_unlabelled_addresses();
    let uid = object.metadata.uid.clone();
    Ok(Pool { name, uid, grid, exclude, has_unlabelled_addresses, single_address_sections })
}

/// Returns the node count: requests one object and the number of remaining ones. If the API server does not return that
/// number, all objects are listed.
///
/// # Errors
/// The nodes cannot be listed.
pub async fn node_count(client: &Client) -> Result<u64, kube::Error> {
    let nodes = Api::<NodeObject>::all(client.clone());
    let mut parameters = ListParams::default().limit(1);
    let mut count = 0;
    loop {
        let page = nodes.list_metadata(&parameters).await?;
        count += page.items.len() as u64;
        if let Some(more) = page.metadata.remaining_item_count {
            return Ok(count + u64::try_from(more).unwrap_or(0));
        }
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => parameters = ListParams::default().limit(PAGE).continue_token(&token),
            None => return Ok(count),
        }
    }
}
