//! Lookup of the pool of a network's range, and the decision about its layout.
//!
//! ```text
//!   by name ──► exists? ──► layout fixed ──► its blocks
//!              │       └─► not yet: pending ──► another pool with addresses of it? ── no ──► fixed
//!              └► range within another pool of the same address space? ──► that pool
//!                 └► created; block size as before, or by window and number of nodes; smaller pools inside it are excluded
//! ```
//!
//! - The layout of a pool is decided once and recorded in its status. A spec that differs from it is refused.
//! - The record is a separate write, with the resource version of the pool whose spec it records. Nothing is leased from a
//!   pool without a record, so a call that ends before it writes one leaves a pool that was never used.
//! - A pool that is created again after its deletion gets the layout of its existing leases.
//! - Two pools must not have addresses in common; the pool whose layout was fixed first wins. Each lookup records that its
//!   pool is pending and then reads the others, so at least one of two sees the other.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use ipam::PoolLayout;
use ipam::pool_layout::address_count;
use ipnet::IpNet;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Client};
use rpc::allocate::PoolReference;
use serde_json::json;
use tokio::time::sleep;

use crate::ip_objects::{
    BlockObject, LayoutState, POOL_LABEL, PoolError, PoolFault, PoolObject, kind_of, label, record_of,
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
    resolve_for(client, wanted, address_count(wanted.range)).await
}

/// Returns the requested pool like [`resolve`], for a network that may allocate `window` addresses of it. The block size
/// of a new pool depends on them.
///
/// # Errors
/// As for [`resolve`].
pub async fn resolve_for(client: &Client, wanted: &PoolReference, window: u128) -> Result<Pool, Unusable> {
    let lookup = Lookup { client, pools: Api::all(client.clone()), wanted, window };
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
        let others = self.done(self.pools.list(&ListParams::default()).await)?.items;
        let same = |pool: &&PoolObject| pool.spec.network_name == wanted.network;
        let ranges = others.iter().filter(same).filter_map(|pool| Some((pool, range(pool)?)));
        if let Some((around, _)) = ranges.clone().find(|(_, range)| range.contains(&wanted.range)) {
            return self.usable(around.clone()).await;
        }
        let inside = ranges.filter(|(_, range)| wanted.range.contains(range));
        let pool = PoolObject {
            types: kind_of::<PoolObject>(),
            metadata: ObjectMeta { name: Some(wanted.name.clone()), ..ObjectMeta::default() },
            spec: IPPoolSpec {
                range: wanted.range.to_string(),
                block_bits: Some(self.bits(&wanted.name, wanted.range).await?),
                network_name: wanted.network.clone(),
                exclude: inside.map(|(_, range)| range.to_string()).collect(),
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

    /// Returns an existing pool; fixes its layout if that has not been done.
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
        let pool = match found.layout_state()? {
            LayoutState::Fixed => read(&found)?,
            LayoutState::Unset | LayoutState::Pending => self.fix_layout(found, Origin::Existing).await?,
        };
        let own = pool.grid.subnet();
        match own.contains(&wanted.range) {
            true => Ok(pool),
            false => Err(format!(
                "pool {name}: spec.range: {own}: does not contain the network's range {}",
                wanted.range
            )
            .into()),
        }
    }

    /// Fixes the layout of a pool that is not used yet.
    async fn fix_layout(&self, mut pool: PoolObject, origin: Origin) -> Result<Pool, Unusable> {
        let name = name(&pool);
        let Some(own) = range(&pool) else { return Ok(read(&pool)?) };
        let is_open = pool.spec.block_bits.is_none();
        if is_open {
            pool.spec.block_bits = Some(self.bits(&name, own).await?);
        }
        let Pool { grid, .. } = read(&pool)?;
        let leased = self.leased(&name).await?;
        if let Some(other) = leased.iter().find(|block| !fits(block, &grid)) {
            return Err(format!(
                "pool {name}: spec: {}, which was leased from it, is not one of its blocks of {} addresses: restore the range and the \
                 blockBits that it had, or delete that IPBlock when no pod has an address of it",
                other.metadata.name.as_deref().unwrap_or_default(),
                grid.block_size()
            )
            .into());
        }
        if is_open {
            pool = self.replace(&pool).await?;
        }
        if leased.is_empty() && pool.layout_state()? == LayoutState::Unset {
            pool = self.record(&pool, pool.layout_status(LayoutState::Pending)).await?;
        }
        let mut checks = CHECKS;
        while let Some((rival, conflict)) = self.rival(&pool, own, leased.is_empty()).await? {
            checks -= 1;
            if conflict == Conflict::Final || checks == 0 {
                return Err(self.withdraw(pool, origin, &rival).await.into());
            }
            sleep(CHECK).await;
        }
        let mut status = pool.layout_status(LayoutState::Fixed);
        if let Some(record) = single_addresses(&pool, &grid, &leased) {
            status["singleAddressBlocks"] = record["singleAddressBlocks"].clone();
        }
        let pool = self.record(&pool, status).await?;
        match pool.layout_state()? {
            LayoutState::Fixed => Ok(read(&pool)?),
            LayoutState::Unset | LayoutState::Pending => Err(format!(
                "pool {name}: the API server does not keep status.layout: apply the CRDs of this release (weft crds)"
            )
            .into()),
        }
    }

    /// Writes fields of a pool's status, if the pool was not changed since it was read: the record is the layout of the spec
    /// that was read.
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

    /// Returns another pool that contains addresses of this one. `is_new`: nothing was ever leased from this pool.
    async fn rival(
        &self,
        pool: &PoolObject,
        own: IpNet,
        is_new: bool,
    ) -> Result<Option<(PoolObject, Conflict)>, Unusable> {
        let others = self.done(self.pools.list(&ListParams::default()).await)?.items;
        let mut waits = None;
        for other in others {
            let Some(other_range) = range(&other).filter(|_| name(&other) != name(pool)) else { continue };
            let apart = !other_range.contains(&own) && !own.contains(&other_range);
            if apart || other.spec.network_name != pool.spec.network_name || excludes(pool, other_range) {
                continue;
            }
            let state = other.layout_state().unwrap_or(LayoutState::Fixed);
            // The other pool does not use addresses that it excludes, unless it leased them before.
            if excludes(&other, own) {
                let lies_inside =
                    |block: &BlockObject| block.object().is_some_and(|it| own.contains(&it.net));
                if is_new && self.leased(&name(&other)).await?.iter().any(lies_inside) {
                    return Ok(Some((other, Conflict::Final)));
                }
                continue;
            }
            let yields = name(&other) > name(pool);
            match state {
                LayoutState::Fixed => return Ok(Some((other, Conflict::Final))),
                // This pool has leases: refusing it now would not undo duplicates.
                _ if !is_new => {}
                LayoutState::Pending if yields => waits = Some((other, Conflict::Temporary)),
                LayoutState::Pending => return Ok(Some((other, Conflict::Final))),
                LayoutState::Unset if !self.leased(&name(&other)).await?.is_empty() => {
                    return Ok(Some((other, Conflict::Final)));
                }
                // The other pool is unused.
                LayoutState::Unset => {}
            }
        }
        Ok(waits)
    }

    /// Withdraws from a conflict; returns the reason.
    async fn withdraw(&self, pool: PoolObject, origin: Origin, rival: &PoolObject) -> String {
        let (own, other) = (name(&pool), name(rival));
        let (range, other_range) = (pool.spec.range.clone(), &rival.spec.range);
        // If this fails the pool stays pending, and the next lookup continues.
        if origin == Origin::Created {
            let ObjectMeta { uid, resource_version, .. } = pool.metadata;
            let preconditions = Some(Preconditions { uid, resource_version });
            let parameters = DeleteParams { preconditions, ..DeleteParams::default() };
            let _ = self.pools.delete(&own, &parameters).await;
            return format!(
                "pool {own}: pool {other} with an overlapping range was created concurrently: try again"
            );
        }
        if pool.layout_state() == Ok(LayoutState::Pending) {
            let _ = self.record(&pool, pool.layout_status(LayoutState::Unset)).await;
        }
        format!(
            "pool {own}: spec.range: {range}: overlaps pool {other} ({other_range}): use that pool, add its addresses to \
             spec.exclude, or give one of them another networkName"
        )
    }

    /// Returns everything that was leased from a pool.
    async fn leased(&self, pool: &str) -> Result<Vec<BlockObject>, Unusable> {
        let blocks = Api::<BlockObject>::all(self.client.clone());
        let mut parameters =
            ListParams::default().labels(&format!("{POOL_LABEL}={}", label(pool))).limit(PAGE);
        let mut all = Vec::new();
        loop {
            let page = self.done(blocks.list(&parameters).await)?;
            all.extend(page.items.into_iter().filter(|block| block.spec.pool == pool));
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => parameters = parameters.continue_token(&token),
                None => return Ok(all),
            }
        }
    }

    /// Returns the block size of a new pool: that of existing leases from a deleted pool, else by window and number of
    /// nodes.
    async fn bits(&self, pool: &str, range: IpNet) -> Result<u8, Unusable> {
        let leased = self.leased(pool).await?;
        if let Some(bits) = leased.iter().find_map(BlockObject::bits) {
            return Ok(bits);
        }
        let nodes = self.done(nodes(self.client).await)?;
        Ok(PoolLayout::for_window(range, self.window, nodes).bits())
    }
}

/// Conflict with another pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Conflict {
    /// The other pool does not withdraw.
    Final,
    /// The layout of the other pool is being fixed concurrently; it withdraws when it sees this pool.
    Temporary,
}

fn name(pool: &PoolObject) -> String {
    pool.metadata.name.clone().unwrap_or_default()
}

fn range(pool: &PoolObject) -> Option<IpNet> {
    pool.spec.range.parse().ok()
}

/// Whether a pool excludes all of these addresses.
fn excludes(pool: &PoolObject, range: IpNet) -> bool {
    pool.exclude().is_ok_and(|nets| nets.iter().any(|net| net.contains(&range)))
}

/// Whether an object is a block of a layout, or inside one. An invalid object is reported elsewhere.
fn fits(block: &BlockObject, grid: &PoolLayout) -> bool {
    let Some(object) = block.object() else { return true };
    let around = grid.block_of(object.net.addr());
    around.is_some() && block.bits() == Some(grid.bits())
}

/// Returns the complete record of the sections of a pool that have single addresses. `None` if it is not reliable, or if
/// every block is one address: then every block is searched for single addresses.
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
    Ok(Pool { name, uid: object.metadata.uid.clone(), grid, exclude, single_address_sections })
}

/// Returns the number of nodes: requests one object and the number of remaining ones. If the API server does not return that
/// number, all objects are listed.
async fn nodes(client: &Client) -> Result<u64, kube::Error> {
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
