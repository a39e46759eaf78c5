//! `ipMasq`: replaces the source address in the containers' outgoing packets by the host's address.
//!
//! There are two backends: nftables, and iptables for hosts that have all rules there. iptables needs one run of
//! `iptables-restore` for each address family. Both record the attachment in what they create, so DEL needs neither the
//! addresses nor the interface.
//!
//! Source: plugins `pkg/ip/ipmasq_{iptables,nftables}_linux.go` (G5).

mod iptables;
mod nftables;
mod reference;

pub use nftables::subnet_chain;
pub use plugin_config::masquerade::Backend;

use cni::Error;
use cni::config::Config;
use cni::invocation::Sweep;
use ipnet::IpNet;
use linux::nft::Family;
use plugin_support::owner_tag::OwnerTag;

use crate::entries::{self, Tables};

/// Masquerades packets from `addresses` to all destinations except the address's subnet and multicast groups.
///
/// It can be repeated. After an error the caller calls [`remove`].
pub fn add(backend: Backend, tag: &OwnerTag, addresses: &[IpNet]) -> Result<(), Error> {
    match backend {
        Backend::Nftables => nftables::add(tag, addresses),
        Backend::Iptables => iptables::add(tag, addresses),
    }
}

/// Returns an attachment's addresses from the prevResult; none if there is no readable one.
pub fn known(config: &Config) -> Vec<IpNet> {
    let result = config.prev_result().ok().flatten().unwrap_or_default();
    result.ips.iter().map(|ip| ip.address).collect()
}

/// Removes everything that [`add`] created for the attachment; succeeds if there is nothing.
///
/// `backend` is the configured one, `known` are the attachment's addresses, empty if they are unknown.
///
/// Removes the rules in both backends. The configuration may have changed since ADD, or the reference plugin may have
/// executed ADD, with iptables or in a separate nf_tables table. A leftover rule would masquerade the next container
/// with the address. No program is run if it has nothing to remove.
pub fn remove(backend: Option<Backend>, tag: &OwnerTag, known: &[IpNet]) -> Result<(), Error> {
    remove_from(entries::tables(), backend, tag, known)
}

/// As [`remove`], with the tables that the caller has listed.
pub fn remove_from(
    tables: Result<Option<Tables>, Error>,
    backend: Option<Backend>,
    tag: &OwnerTag,
    known: &[IpNet],
) -> Result<(), Error> {
    let mut errors = Vec::new();
    // Without nf_tables in the kernel there are no tables.
    let tables = tables.unwrap_or_else(|error| {
        errors.push(error);
        None
    });
    let has = |family, name: &str| tables.as_ref().is_some_and(|tables| tables.has(family, name));
    // An attachment without iptables rules neither waits for the lock of iptables nor runs a program.
    let by_iptables = match backend {
        Some(Backend::Iptables) => Ok(true),
        Some(Backend::Nftables) => iptables::exists(tag),
        None => iptables::is_in_nft(tag, has),
    };
    if has(Family::Inet, reference::NAME) {
        errors.extend(reference::remove(tag).err());
    }
    if let Some(mut tables) = tables.filter(|tables| tables.has(Family::Inet, nftables::NAME)) {
        errors.extend(nftables::remove(&mut tables.nft, tag, known).err());
    }
    let removed = by_iptables.and_then(|is| if is { iptables::remove(tag, known) } else { Ok(()) });
    errors.extend(removed.err());
    cni::error::collected(errors)
}

/// Fails unless the attachment's addresses are masqueraded, by any backend or the reference plugin.
pub fn inspect(tag: &OwnerTag, addresses: &[IpNet]) -> Result<(), Error> {
    let missing = match entries::open()? {
        Some(mut nft) => nftables::without_entry(&mut nft, tag, addresses)?,
        None => addresses.to_vec(),
    };
    if missing.is_empty() || reference::is_there(tag)? {
        return Ok(());
    }
    match iptables::without_jump(tag, &missing)? {
        Some(address) => {
            Err(Error::internal(format!("address {} is not masqueraded any more", address.addr())))
        }
        None => Ok(()),
    }
}

/// Removes what `plugin` created, with any backend, for attachments to this network that are not valid any
/// more.
pub fn sweep(plugin: &str, backend: Option<Backend>, request: &Sweep) -> Result<(), Error> {
    let Some(valid) = request.valid()? else { return Ok(()) };
    let network = request.call.config.name.as_str();
    let natively = [reference::sweep(network, &valid), nftables::sweep(plugin, network, &valid)];
    let mut errors: Vec<Error> = natively.into_iter().filter_map(Result::err).collect();
    let by_iptables = if backend == Some(Backend::Iptables) { Ok(true) } else { iptables::is_any_present() };
    let swept = by_iptables.and_then(|is| if is { iptables::sweep(network, &valid) } else { Ok(()) });
    errors.extend(swept.err());
    cni::error::collected(errors)
}
