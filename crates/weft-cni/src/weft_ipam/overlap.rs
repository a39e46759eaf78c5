//! Overlapping ranges in networks with `store: file`: an address that one network on the host has is not given by
//! another.
//!
//! Such networks have a store each. An allocation locks all stores whose ranges overlap, sorted by name, and leaves out
//! the addresses that the others hold. It lists them again while this network's store exists and is locked: of two
//! calls that create a store each, at least one then sees the other's. A store is named after the range, unless the
//! configuration names the pool; such a store may contain any address.

use std::net::IpAddr;
use std::path::Path;

use cni::{Error, code};
use ipam::AllocationKind;
use ipam::address_store::is_valid_name;
use ipnet::IpNet;

use super::store::{OpenError, Store};
use plugin_config::weft_ipam::{Pool, Settings, Source};

/// Returns the names of the host's other stores that may hold addresses of this pool; none for a cluster pool.
pub(super) fn overlapping_stores(settings: &Settings, pool: &Pool) -> Vec<String> {
    if settings.source == Source::Cluster {
        return Vec::new();
    }
    let entries = std::fs::read_dir(&settings.directory).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let overlaps = |name: &String| {
        let range = match range_of(name) {
            Some((space, range)) if space == settings.network => range,
            Some(_) => return false,
            None => return is_valid_name(name),
        };
        range.contains(&pool.range) || pool.range.contains(&range)
    };
    let mut names: Vec<String> = names.filter(|name| *name != pool.name && overlaps(name)).collect();
    names.sort();
    names
}

/// Returns address space and range of a store named after a range: `[SPACE-]10.1.0.0-16`.
fn range_of(name: &str) -> Option<(&str, IpNet)> {
    let (rest, length) = name.rsplit_once('-')?;
    let starts = std::iter::once(0).chain(rest.match_indices('-').map(|(at, _)| at + 1));
    for start in starts {
        let address = rest[start..].replace('-', ":");
        if let Ok(address) = address.parse::<IpAddr>()
            && let Ok(range) = IpNet::new(address, length.parse().ok()?)
        {
            return Some((rest[..start].trim_end_matches('-'), range.trunc()));
        }
    }
    None
}

/// Locks the pool's store and the others; returns the store, and the pool without the addresses that the others hold.
///
/// # Errors
/// A store cannot be read or locked, or another one holds the requested address.
pub(super) fn lock_all(
    directory: &Path,
    pool: &Pool,
    others: &[String],
    kind: AllocationKind,
) -> Result<(Store, Pool), Error> {
    let mut own = None;
    let mut locked = Vec::new();
    // One order for all calls, so that no two wait for each other.
    let mut names: Vec<&String> = others.iter().chain([&pool.name]).collect();
    names.sort();
    for name in names {
        if *name == pool.name {
            own = Some(Store::create(directory, name, Source::File, Ok)?);
            continue;
        }
        match Store::find(directory, name) {
            Ok(Some(store)) => locked.push((name, store)),
            Ok(None) => {}
            // Without a range in its name, nothing says that it has addresses of the pool.
            Err(OpenError::Unreadable(..)) if range_of(name).is_none() => {}
            Err(error) => return Err(error.into()),
        }
    }
    let Some(own) = own else { return Err(Error::internal("the store of the pool was not locked")) };
    let mut taken = Vec::new();
    for (name, store) in &locked {
        for (slot, ..) in store.addresses.held() {
            let Some(ip) = store.addresses.address(slot).filter(|ip| pool.range.contains(ip)) else {
                continue;
            };
            if matches!(kind, AllocationKind::Address(named) if named == ip) {
                let why =
                    format!("pool {}: {ip}: {} holds it, from pool {name}", pool.name, store.owner(slot));
                return Err(Error::new(code::TRY_AGAIN_LATER, why));
            }
            taken.push(IpNet::from(ip));
        }
        store.require_readable()?;
    }
    let pool = Pool { filter: pool.filter.without(&taken), ..pool.clone() };
    Ok((own, pool))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn store_name_contains_address_space_and_range() {
        let range = |text: &str| text.parse::<IpNet>().unwrap();
        for (name, expected) in [
            ("10.1.0.0-16", Some(("", range("10.1.0.0/16")))),
            ("red-10.1.0.0-16", Some(("red", range("10.1.0.0/16")))),
            ("blue-sky-10.1.0.0-16", Some(("blue-sky", range("10.1.0.0/16")))),
            ("fd00-1---64", Some(("", range("fd00:1::/64")))),
            ("red-fd00-1---64", Some(("red", range("fd00:1::/64")))),
            ("storage", None),
            ("storage-2", None),
        ] {
            assert_eq!(range_of(name), expected, "{name}");
        }
    }
}
