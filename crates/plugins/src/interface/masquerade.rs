//! `ipMasq`: what containers send to the outside leaves with the host's address.
//!
//! Two backends. nftables, natively, is ours; iptables is for hosts whose rules are all there, and
//! speaks through one `iptables-restore` per family. Both mark what they make with the attachment, so a
//! DEL needs neither the addresses nor the interface.
//!
//! Source: plugins `pkg/ip/ipmasq_{iptables,nftables}_linux.go` (G5).

mod iptables;
mod nftables;

use cni::Error;
use cni::config::Config;
use cni::invocation::Sweep;
use ipnet::IpNet;

use crate::fingerprint::Mark;

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

/// Removes all that [`add`] made for the attachment; nothing there is success.
pub fn remove(backend: Backend, mark: &Mark, config: &Config) -> Result<(), Error> {
    match backend {
        Backend::Nftables => {
            // The addresses of prevResult, if there is a readable one, spare looking for them.
            let result = config.prev_result().ok().flatten().unwrap_or_default();
            let known: Vec<IpNet> = result.ips.iter().map(|ip| ip.address).collect();
            nftables::remove(mark, &known)
        }
        Backend::Iptables => iptables::remove(mark),
    }
}

/// Removes what was made by `plugin` for attachments of this network that are no longer valid.
pub fn sweep(plugin: &str, request: &Sweep) -> Result<(), Error> {
    match request.valid()? {
        Some(valid) => nftables::sweep(plugin, request.call.config.name.as_str(), &valid),
        None => Ok(()),
    }
}

/// The marks of everything that is masqueraded in the calling thread's namespace by nftables.
pub fn marks() -> Result<Vec<String>, Error> {
    nftables::marks()
}
