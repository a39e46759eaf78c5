//! Lookup of the pool of a network's range, and the decision about its layout.
//!
//! ```text
//!   by name ──► there? ──► layout fixed ──► its blocks
//!              │       └─► not yet: pending ──► another one that has addresses of it? ── no ──► fixed
//!              └► range within another pool of the same address space? ──► that pool
//!                 └► created; blocks as they were, or by range and number of nodes; smaller pools inside it are excluded
//! ```
//!
//! - The layout of a pool is decided once and recorded in its status; a spec that differs from it is refused.
//! - The record is a write of its own, with the resource version of the pool whose spec it records. Nothing is leased of a
//!   pool without a record, so a call that ends before it writes one leaves a pool that was never used.
//! - What was leased of a pool that was deleted decides its layout when it is created again.
//! - Two pools that have addresses in common are one, the one that was fixed first: each says that it is pending and then
//!   reads the others, so of two at least one sees the other.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use ipam::PoolLayout;
use ipnet::IpNet;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Client};
use rpc::allocate::PoolReference;
use serde_json::json;
use tokio::time::sleep;

use crate::ip_objects::{
    BlockObject, Cut, POOL_LABEL, PoolError, PoolFault, PoolObject, kind_of, label, record_of,
};
use kube_support::api_error;
use kube_support::custom_resources::IPPoolSpec;
use kube_support::resources::NodeObject;

/// Objects of a page.
const PAGE: u32 = 1000;
/// How often, and how long in between, it is looked whether another one that began at the same moment has given way.
const LOOKS: usize = 6;
const LOOK: Duration = Duration::from_millis(250);

/// A pool that addresses can be leased from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// The object's name.
    pub name: String,
    /// Which one of that name.
    pub uid: Option<String>,
    /// How it is cut.
    pub grid: PoolLayout,
    /// Parts that are never given.
    pub exclude: Vec<IpNet>,
    /// Where single addresses may have been made in it, if it says so: [`PoolObject::told`].
    pub told: Option<BTreeSet<u16>>,
}

/// Why a pool cannot be used, each in one sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// The API did not say: it may be as it was.
    Unknown(String),
    /// Somebody else changed it in the meantime.
    Changed(String),
    /// The API's refusal, or what is wrong with the object.
    Refused(String),
}

/// The pool that is wanted; made if it is not there and need not be.
///
/// # Errors
/// [`Unusable`]; others that change it at the same moment are waited for.
pub async fn resolve(client: &Client, wanted: &PoolReference) -> Result<Pool, Unusable> {
    let asking = Asking { client, pools: Api::all(client.clone()), wanted };
    let mut found = asking.resolve().await;
    for _ in 0..LOOKS {
        if !matches!(found, Err(Unusable::Changed(_))) {
            break;
        }
        sleep(LOOK).await;
        found = asking.resolve().await;
    }
    found
}

/// Whose a pool is that turns out not to be usable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Made {
    /// Made just now, and removed.
    Now,
    /// Somebody's: it stays.
    Before,
}

/// A question for a pool.
struct Asking<'a> {
    client: &'a Client,
    pools: Api<PoolObject>,
    wanted: &'a PoolReference,
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

impl Asking<'_> {
    async fn resolve(&self) -> Result<Pool, Unusable> {
        let (asking, wanted) = (self, self.wanted);
        if let Some(found) = asking.done(asking.pools.get_opt(&wanted.name).await)? {
            return asking.usable(found).await;
        }
        if wanted.must_exist {
            return Err(format!("pool {} is not there: make an IPPool of that name", wanted.name).into());
        }
        let others = asking.done(asking.pools.list(&ListParams::default()).await)?.items;
        let same = |pool: &&PoolObject| pool.spec.network_name == wanted.network;
        let ranges = others.iter().filter(same).filter_map(|pool| Some((pool, range(pool)?)));
        if let Some((around, _)) = ranges.clone().find(|(_, range)| range.contains(&wanted.range)) {
            return asking.usable(around.clone()).await;
        }
        let inside = ranges.filter(|(_, range)| wanted.range.contains(range));
        let pool = PoolObject {
            types: kind_of::<PoolObject>(),
            metadata: ObjectMeta { name: Some(wanted.name.clone()), ..ObjectMeta::default() },
            spec: IPPoolSpec {
                range: wanted.range.to_string(),
                block_bits: Some(asking.bits(&wanted.name, wanted.range).await?),
                network_name: wanted.network.clone(),
                exclude: inside.map(|(_, range)| range.to_string()).collect(),
            },
            status: None,
        };
        match asking.pools.create(&PostParams::default(), &pool).await {
            Ok(made) => asking.cut(made, Made::Now).await,
            Err(kube::Error::Api(status)) if status.code == 409 => {
                let found = asking.done(asking.pools.get(&wanted.name).await)?;
                asking.usable(found).await
            }
            Err(error) => Err(asking.failed(&error)),
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

    /// A pool that is there, cut if it is not yet.
    async fn usable(&self, found: PoolObject) -> Result<Pool, Unusable> {
        let (name, space) = (name(&found), &found.spec.network_name);
        let wanted = self.wanted;
        // Who names a pool has its address space.
        if *space != wanted.network && !(wanted.must_exist && wanted.network.is_empty()) {
            return Err(format!(
                "pool {name}: spec.networkName: {space:?}: the network's network_name is {:?}",
                wanted.network
            )
            .into());
        }
        let pool = match found.cut()? {
            Cut::Done => read(&found)?,
            Cut::No | Cut::Begun => self.cut(found, Made::Before).await?,
        };
        let own = pool.grid.subnet();
        match own.contains(&wanted.range) {
            true => Ok(pool),
            false => Err(format!(
                "pool {name}: spec.range: {own}: does not hold the network's range {}",
                wanted.range
            )
            .into()),
        }
    }

    /// Cuts a pool that is not used yet.
    async fn cut(&self, mut pool: PoolObject, made: Made) -> Result<Pool, Unusable> {
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
                "pool {name}: spec: {}, which was leased of it, is none of its blocks of {} addresses: give it the range and the \
                 blockBits that it had, or delete that IPBlock when nobody has an address of it",
                other.metadata.name.as_deref().unwrap_or_default(),
                grid.block_size()
            )
            .into());
        }
        if is_open {
            pool = self.replace(&pool).await?;
        }
        if leased.is_empty() && pool.cut()? == Cut::No {
            pool = self.record(&pool, pool.layout_status(Cut::Begun)).await?;
        }
        let mut looks = LOOKS;
        while let Some((rival, way)) = self.rival(&pool, own, leased.is_empty()).await? {
            looks -= 1;
            if way == Way::Stands || looks == 0 {
                return Err(self.withdraw(pool, made, &rival).await.into());
            }
            sleep(LOOK).await;
        }
        let mut status = pool.layout_status(Cut::Done);
        if let Some(record) = single_addresses(&pool, &grid, &leased) {
            status["singleAddressBlocks"] = record["singleAddressBlocks"].clone();
        }
        let pool = self.record(&pool, status).await?;
        match pool.cut()? {
            Cut::Done => Ok(read(&pool)?),
            Cut::No | Cut::Begun => Err(format!(
                "pool {name}: the API server does not keep status.layout: apply the definitions of this release (weft crds)"
            )
            .into()),
        }
    }

    /// Writes fields of a pool's status, if the pool was not changed since it was read: the layout that is recorded is that
    /// of the spec that was read.
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
            // One that is gone has changed, too.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {
                Err(Unusable::Changed(self.failed(&kube::Error::Api(status)).to_string()))
            }
            other => self.done(other),
        }
    }

    /// Another pool that has addresses of this one; `is_new`: nothing of this one was ever leased.
    async fn rival(
        &self,
        pool: &PoolObject,
        own: IpNet,
        is_new: bool,
    ) -> Result<Option<(PoolObject, Way)>, Unusable> {
        let others = self.done(self.pools.list(&ListParams::default()).await)?.items;
        let mut waits = None;
        for other in others {
            let Some(theirs) = range(&other).filter(|_| name(&other) != name(pool)) else { continue };
            let apart = !theirs.contains(&own) && !own.contains(&theirs);
            if apart || other.spec.network_name != pool.spec.network_name || excludes(pool, theirs) {
                continue;
            }
            let state = other.cut().unwrap_or(Cut::Done);
            // What it leaves out it has not, unless it leased it before.
            if excludes(&other, own) {
                let lies_inside =
                    |block: &BlockObject| block.object().is_some_and(|it| own.contains(&it.net));
                if is_new && self.leased(&name(&other)).await?.iter().any(lies_inside) {
                    return Ok(Some((other, Way::Stands)));
                }
                continue;
            }
            let yields = name(&other) > name(pool);
            match state {
                Cut::Done => return Ok(Some((other, Way::Stands))),
                // Both are doubled already, if they are.
                _ if !is_new => {}
                Cut::Begun if yields => waits = Some((other, Way::Begins)),
                Cut::Begun => return Ok(Some((other, Way::Stands))),
                Cut::No if !self.leased(&name(&other)).await?.is_empty() => {
                    return Ok(Some((other, Way::Stands)));
                }
                // Nobody has used it.
                Cut::No => {}
            }
        }
        Ok(waits)
    }

    /// Gives way; why.
    async fn withdraw(&self, pool: PoolObject, made: Made, rival: &PoolObject) -> String {
        let (own, other) = (name(&pool), name(rival));
        let (range, theirs) = (pool.spec.range.clone(), &rival.spec.range);
        // What does not succeed leaves it begun: whoever wants it goes on.
        if made == Made::Now {
            let ObjectMeta { uid, resource_version, .. } = pool.metadata;
            let preconditions = Some(Preconditions { uid, resource_version });
            let parameters = DeleteParams { preconditions, ..DeleteParams::default() };
            let _ = self.pools.delete(&own, &parameters).await;
            return format!(
                "pool {own}: pool {other} of overlapping range was made at the same moment: try again"
            );
        }
        if pool.cut() == Ok(Cut::Begun) {
            let _ = self.record(&pool, pool.layout_status(Cut::No)).await;
        }
        format!(
            "pool {own}: spec.range: {range}: pool {other} has addresses of it ({theirs}): use that one, or write what is the \
             other's into spec.exclude, or give one of them another networkName"
        )
    }

    /// Everything that was leased of a pool.
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

    /// The size of blocks: as of those that were leased before the pool was deleted, else by the number of nodes.
    async fn bits(&self, pool: &str, range: IpNet) -> Result<u8, Unusable> {
        let leased = self.leased(pool).await?;
        if let Some(bits) = leased.iter().find_map(BlockObject::bits) {
            return Ok(bits);
        }
        Ok(PoolLayout::for_nodes(range, self.done(nodes(self.client).await)?).bits())
    }
}

/// What is to be done about another pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// It gives way to nobody.
    Stands,
    /// It begins at the same moment, and gives way when it sees us.
    Begins,
}

fn name(pool: &PoolObject) -> String {
    pool.metadata.name.clone().unwrap_or_default()
}

fn range(pool: &PoolObject) -> Option<IpNet> {
    pool.spec.range.parse().ok()
}

/// Does a pool leave out all of these addresses?
fn excludes(pool: &PoolObject, range: IpNet) -> bool {
    pool.exclude().is_ok_and(|nets| nets.iter().any(|net| net.contains(&range)))
}

/// Is an object a block, or in a block, as a grid has them? One that makes no sense is found elsewhere.
fn fits(block: &BlockObject, grid: &PoolLayout) -> bool {
    let Some(object) = block.object() else { return true };
    let around = grid.block_of(object.net.addr());
    around.is_some() && block.bits() == Some(grid.bits())
}

/// Record of the sections of a pool that have single addresses, from the beginning; `None` if it cannot be relied on, or if
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
    Ok(Pool { name, uid: object.metadata.uid.clone(), grid, exclude, told: object.told() })
}

/// How many nodes there are: one object is asked for, and how many more there would be. A server that does not say is asked
/// for all of them.
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
