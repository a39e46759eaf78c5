//! `ipMasq`: what containers send to the outside leaves with the host's address.
//!
//! Two backends. nftables, natively, is ours; iptables is for hosts whose rules are all there, and
//! speaks through one `iptables-restore` per family. Both tag what they make with the attachment, so a
//! DEL needs neither the addresses nor the interface.
//!
//! Source: plugins `pkg/ip/ipmasq_{iptables,nftables}_linux.go` (G5).

mod iptables;
mod nftables;
mod reference;

pub use nftables::subnet_chain;

use cni::Error;
use cni::config::Config;
use cni::invocation::Sweep;
use ipnet::IpNet;
use linux::nft::Family;
use plugin_support::owner_tag::OwnerTag;

use crate::entries;

/// What hides the addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// nf_tables, one transaction.
    Nftables,
    /// `iptables-restore` and `ip6tables-restore`.
    Iptables,
}

impl Backend {
    /// Reads `ipMasqBackend`; empty is nftables.
    pub fn read(text: &str) -> Result<Backend, Error> {
        match text {
            "" | "nftables" => Ok(Backend::Nftables),
            "iptables" => Ok(Backend::Iptables),
            other => Err(Error::key("ipMasqBackend", format!("{other:?}"), "not one of nftables, iptables")),
        }
    }
}

/// Hides `addresses` when they send to anywhere but their own subnet and multicast groups.
///
/// Repeating it changes nothing. On failure the caller calls [`remove`].
pub fn add(backend: Backend, tag: &OwnerTag, addresses: &[IpNet]) -> Result<(), Error> {
    match backend {
        Backend::Nftables => nftables::add(tag, addresses),
        Backend::Iptables => iptables::add(tag, addresses),
    }
}

/// The addresses of an attachment by its prevResult; none if there is no readable one.
pub fn known(config: &Config) -> Vec<IpNet> {
    let result = config.prev_result().ok().flatten().unwrap_or_default();
    result.ips.iter().map(|ip| ip.address).collect()
}

/// Removes all that [`add`] made for the attachment; nothing there is success.
///
/// `backend` is what is configured now, `known` are its addresses; none if they are not known.
///
/// Of either backend, whatever is configured: that may have changed since, or the ADD have been the reference plugin's,
/// which takes iptables or a table of its own; and what stays hides the next container that has the address. No program
/// is run where there is nothing for it to remove.
pub fn remove(backend: Option<Backend>, tag: &OwnerTag, known: &[IpNet]) -> Result<(), Error> {
    let mut errors = Vec::new();
    // Where the kernel has no nf_tables, it holds nothing of them.
    let tables = entries::tables().unwrap_or_else(|error| {
        errors.push(error);
        None
    });
    let has = |family, name: &str| tables.as_ref().is_some_and(|tables| tables.has(family, name));
    // Who was never hidden by iptables neither waits for its turn there nor runs a program.
    let by_iptables = match backend {
        Some(Backend::Iptables) => Ok(true),
        Some(Backend::Nftables) => iptables::is_there(tag),
        None => iptables::is_seen(tag, has),
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

/// CHECK: are these addresses of the attachment hidden, by whomever?
pub fn inspect(tag: &OwnerTag, addresses: &[IpNet]) -> Result<(), Error> {
    let bare = match entries::open()? {
        Some(mut nft) => nftables::bare(&mut nft, tag, addresses)?,
        None => addresses.to_vec(),
    };
    if bare.is_empty() || reference::is_there(tag)? {
        return Ok(());
    }
    match iptables::bare(tag, &bare)? {
        Some(address) => {
            Err(Error::internal(format!("address {} is not masqueraded any more", address.addr())))
        }
        None => Ok(()),
    }
}

/// Removes what was made by `plugin`, with either backend, for attachments of this network that are no longer valid.
pub fn sweep(plugin: &str, backend: Option<Backend>, request: &Sweep) -> Result<(), Error> {
    let Some(valid) = request.valid()? else { return Ok(()) };
    let network = request.call.config.name.as_str();
    let natively = [reference::sweep(network, &valid), nftables::sweep(plugin, network, &valid)];
    let mut errors: Vec<Error> = natively.into_iter().filter_map(Result::err).collect();
    let by_iptables = if backend == Some(Backend::Iptables) { Ok(true) } else { iptables::is_any_there() };
    let swept = by_iptables.and_then(|is| if is { iptables::sweep(network, &valid) } else { Ok(()) });
    errors.extend(swept.err());
    cni::error::collected(errors)
}
