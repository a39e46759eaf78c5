//! The part of an ADD result that belongs to the attachment itself.
//!
//! A result may also contain host interfaces, and several interfaces in the sandbox. The specification uses
//! the first one with a sandbox. An address belongs to the interface whose index it has. If no interface is
//! in a sandbox, the addresses without an index belong to the attachment.
//!
//! Source: multi-network specification, 5.1.1, 5.3.2.1, 5.3.3.1.

use cni::name::IfName;
use cni::result::{Interface, IpConfig, Success};
use cni::version::Version;

/// ADD result and the CNI version it was printed in.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// CNI version in which the plugin printed the result; before 0.3.0 results have no interfaces.
    pub version: Option<Version>,
    /// The result; `None` if the plugins printed none.
    pub result: Option<Success>,
}

/// Interface and addresses that belong to the attachment.
pub struct Own<'a> {
    /// Interface in the sandbox.
    pub interface: Option<&'a Interface>,
    /// Addresses on that interface.
    pub addresses: Vec<&'a IpConfig>,
}

impl<'a> Own<'a> {
    /// Selects the interface named `ifname` in the sandbox, else the first one there, with the addresses. If no
    /// interface is in a sandbox, selects the addresses without an interface.
    pub fn of(result: &'a Success, ifname: &IfName) -> Own<'a> {
        let inside = || in_sandbox(result);
        let named = inside().find(|(_, interface)| interface.name == ifname.as_str());
        match named.or_else(|| inside().next()) {
            None => Own { interface: None, addresses: unattributed(result).collect() },
            Some((index, interface)) => {
                Own { interface: Some(interface), addresses: addresses_of(result, index).collect() }
            }
        }
    }
}

/// Returns all interfaces that are in a sandbox, with indices.
pub(crate) fn in_sandbox(result: &Success) -> impl Iterator<Item = (usize, &Interface)> {
    result.interfaces.iter().enumerate().filter(|(_, interface)| !interface.sandbox.is_empty())
}

/// Returns the addresses on the interface with this index.
pub(crate) fn addresses_of(result: &Success, index: usize) -> impl Iterator<Item = &IpConfig> {
    result.ips.iter().filter(move |ip| ip.interface.and_then(|at| usize::try_from(at).ok()) == Some(index))
}

/// Returns the addresses without an interface.
pub(crate) fn unattributed(result: &Success) -> impl Iterator<Item = &IpConfig> {
    result.ips.iter().filter(|ip| ip.interface.is_none_or(|at| at < 0))
}
