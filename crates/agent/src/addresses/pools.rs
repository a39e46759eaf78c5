//! Which pool a network's range is, and how it is cut.
//!
//! ```text
//!   by name ──► there? ──► its grid
//!              └► range within another pool of the same address space? ──► that pool
//!                 └► made; blocks by range and number of nodes; smaller pools inside it are excluded
//! ```
//!
//! Rules: how a pool is cut is decided once; two pools that have addresses in common are one, the one that was there first.

use std::cmp::Ordering;

use ipam::Grid;
use ipnet::IpNet;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, ListParams, PostParams, Preconditions};
use kube::{Api, Client};
use npwg::exchange::addresses::PoolName;

use super::objects::{PoolObject, PoolSpec, kind_of};
use crate::agent::cluster::NodeObject;

/// Nodes of a page.
const PAGE: u32 = 1000;

/// A pool that addresses can be leased from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pool {
    /// The object's name.
    pub(crate) name: String,
    /// How it is cut.
    pub(crate) grid: Grid,
    /// Parts that are never given.
    pub(crate) exclude: Vec<IpNet>,
}

/// The pool that is wanted; made if it is not there and need not be.
///
/// # Errors
/// One sentence: the API's, or what is wrong with the object.
pub(crate) async fn resolve(client: &Client, wanted: &PoolName) -> Result<Pool, String> {
    let pools: Api<PoolObject> = Api::all(client.clone());
    let failed = |error: kube::Error| format!("pool {}: {error}", wanted.name);
    if let Some(found) = pools.get_opt(&wanted.name).await.map_err(failed)? {
        return usable(client, &pools, found, wanted).await;
    }
    if wanted.given {
        return Err(format!("pool {} is not there: make an IPPool of that name", wanted.name));
    }
    let others = pools.list(&ListParams::default()).await.map_err(failed)?.items;
    let same = |pool: &&PoolObject| pool.spec.network_name == wanted.network;
    let ranges =
        others.iter().filter(same).filter_map(|pool| Some((pool, pool.spec.range.parse::<IpNet>().ok()?)));
    if let Some((around, _)) = ranges.clone().find(|(_, range)| range.contains(&wanted.range)) {
        return usable(client, &pools, around.clone(), wanted).await;
    }
    let inside = ranges.filter(|(_, range)| wanted.range.contains(range));
    let bits = Grid::for_nodes(wanted.range, nodes(client).await.map_err(failed)?).bits();
    let pool = PoolObject {
        types: kind_of::<PoolObject>(),
        metadata: ObjectMeta { name: Some(wanted.name.clone()), ..ObjectMeta::default() },
        spec: PoolSpec {
            range: wanted.range.to_string(),
            block_bits: Some(bits),
            network_name: wanted.network.clone(),
            exclude: inside.map(|(_, range)| range.to_string()).collect(),
        },
        status: None,
    };
    match pools.create(&PostParams::default(), &pool).await {
        Ok(made) => settle(&pools, made, wanted).await,
        Err(kube::Error::Api(status)) if status.code == 409 => match pools.get(&wanted.name).await {
            Ok(found) => usable(client, &pools, found, wanted).await,
            Err(error) => Err(failed(error)),
        },
        Err(error) => Err(failed(error)),
    }
}

/// Somebody may have made a pool around it, or in it, at the same moment: the one that was there first stays.
async fn settle(pools: &Api<PoolObject>, made: PoolObject, wanted: &PoolName) -> Result<Pool, String> {
    let failed = |error: kube::Error| format!("pool {}: {error}", wanted.name);
    let others = pools.list(&ListParams::default()).await.map_err(failed)?.items;
    let age = |pool: &PoolObject| (pool.metadata.creation_timestamp.clone(), pool.metadata.name.clone());
    let meets = |pool: &PoolObject| {
        let range = pool.spec.range.parse::<IpNet>().ok();
        pool.spec.network_name == made.spec.network_name
            && pool.metadata.name != made.metadata.name
            && range.is_some_and(|range| range.contains(&wanted.range) || wanted.range.contains(&range))
            && !made.spec.exclude.contains(&pool.spec.range)
    };
    if others
        .iter()
        .any(|other| meets(other) && age(other).partial_cmp(&age(&made)) != Some(Ordering::Greater))
    {
        let preconditions = Preconditions { uid: made.metadata.uid.clone(), resource_version: None };
        let parameters = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        pools.delete(&wanted.name, &parameters).await.map_err(failed)?;
        return Err(format!(
            "pool {}: another one of overlapping range was made at the same moment",
            wanted.name
        ));
    }
    read(&made)?.ok_or_else(|| format!("pool {}: spec.blockBits: missing", wanted.name))
}

/// A pool that is there, cut if it is not yet.
async fn usable(
    client: &Client,
    pools: &Api<PoolObject>,
    mut found: PoolObject,
    wanted: &PoolName,
) -> Result<Pool, String> {
    let failed = |error: kube::Error| format!("pool {}: {error}", wanted.name);
    let pool = match read(&found)? {
        Some(pool) => pool,
        None => {
            // Made by a person who left it to us.
            let range: IpNet =
                found.spec.range.parse().map_err(|_| format!("pool {}: spec.range", wanted.name))?;
            let nodes = nodes(client).await.map_err(failed)?;
            found.spec.block_bits = Some(Grid::for_nodes(range, nodes).bits());
            let name = found.metadata.name.clone().unwrap_or_default();
            found.types = kind_of::<PoolObject>();
            let found = pools.replace(&name, &PostParams::default(), &found).await.map_err(failed)?;
            read(&found)?.ok_or_else(|| format!("pool {name}: spec.blockBits: missing"))?
        }
    };
    match pool.grid.subnet().contains(&wanted.range) {
        true => Ok(pool),
        false => {
            let own = pool.grid.subnet();
            Err(format!(
                "pool {}: spec.range: {own}: does not hold the network's range {}",
                pool.name, wanted.range
            ))
        }
    }
}

fn read(object: &PoolObject) -> Result<Option<Pool>, String> {
    let name = object.metadata.name.clone().unwrap_or_default();
    let exclude = object.exclude()?;
    Ok(object.grid()?.map(|grid| Pool { name, grid, exclude }))
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
