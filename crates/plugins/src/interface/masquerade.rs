//! `ipMasq`: what containers send to the outside leaves with the host's address.
//!
//! Two backends. nftables, natively, is ours; iptables is for hosts whose rules are all there, and
//! speaks through one `iptables-restore` per family. Both mark what they make with the attachment, so a
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

use crate::fingerprint::Mark;
use crate::interface;

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
pub fn add(backend: Backend, mark: &Mark, addresses: &[IpNet]) -> Result<(), Error> {
    match backend {
        Backend::Nftables => nftables::add(mark, addresses),
        Backend::Iptables => iptables::add(mark, addresses),
    }
}

/// The addresses of an attachment by its prevResult; none if there is no readable one.
pub fn known(config: &Config) -> Vec<IpNet> {
    let result = config.prev_result().ok().flatten().unwrap_or_default();
    result.ips.iter().map(|ip| ip.address).collect()
}

/// Removes all that [`add`] made for the attachment; nothing there is success.
///
/// `known` are its addresses; none if they are not known.
///
/// Of the other backend too: the configuration may have changed since, or the ADD have been the reference
/// plugin's, which takes iptables or a table of its own. No program is run where there is nothing for it to remove.
pub fn remove(backend: Backend, mark: &Mark, known: &[IpNet]) -> Result<(), Error> {
    let mut errors: Vec<Error> = reference::remove(mark).err().into_iter().collect();
    let natively = nftables::remove(mark, known).err();
    // With iptables, the kernel may have no nf_tables, and then holds nothing of them.
    errors.extend(natively.filter(|_| backend == Backend::Nftables));
    errors.extend(iptables::remove(mark, known).err());
    interface::collected(errors)
}

/// Removes what was made by `plugin` for attachments of this network that are no longer valid.
pub fn sweep(plugin: &str, backend: Option<Backend>, request: &Sweep) -> Result<(), Error> {
    let Some(valid) = request.valid()? else { return Ok(()) };
    let network = request.call.config.name.as_str();
    let natively = nftables::sweep(plugin, network, &valid);
    let mut errors: Vec<Error> = reference::sweep(network, &valid).err().into_iter().collect();
    errors.extend(match backend {
        Some(Backend::Iptables) => iptables::sweep(network, &valid).err(),
        Some(Backend::Nftables) | None => natively.err(),
    });
    interface::collected(errors)
}
