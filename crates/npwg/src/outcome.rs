//! Which part of an ADD's result belongs to the attachment itself.
//!
//! A result also names what was made on the host, and may name several interfaces in the sandbox. The
//! standard takes the first with a sandbox; addresses belong to the interface they point at, and where no
//! interface is in a sandbox, to nobody in particular.
//!
//! Source: the standard, 5.1.1, 5.3.2.1, 5.3.3.1.

use cni::name::IfName;
use cni::result::{Interface, IpConfig, Success};
use cni::version::Version;

/// What an ADD answered, and in which version of the protocol.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// The version of the result as the plugin printed it; before 0.3.0 there were no interfaces.
    pub version: Option<Version>,
    /// The result; `None` if the plugins printed none.
    pub result: Option<Success>,
}

/// What in a result is the attachment's own.
pub struct Own<'a> {
    /// Its interface.
    pub interface: Option<&'a Interface>,
    /// Its addresses.
    pub addresses: Vec<&'a IpConfig>,
}

impl<'a> Own<'a> {
    /// The interface named `ifname` in the sandbox, else the first one in the sandbox; its addresses, or if nothing is in
    /// a sandbox those without an interface.
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

/// The interfaces in a sandbox, with their indices.
pub(crate) fn in_sandbox(result: &Success) -> impl Iterator<Item = (usize, &Interface)> {
    result.interfaces.iter().enumerate().filter(|(_, interface)| !interface.sandbox.is_empty())
}

/// The addresses that point at the interface of this index.
pub(crate) fn addresses_of(result: &Success, index: usize) -> impl Iterator<Item = &IpConfig> {
    result.ips.iter().filter(move |ip| ip.interface.and_then(|at| usize::try_from(at).ok()) == Some(index))
}

/// The addresses that point at no interface.
pub(crate) fn unattributed(result: &Success) -> impl Iterator<Item = &IpConfig> {
    result.ips.iter().filter(|ip| ip.interface.is_none_or(|at| at < 0))
}
