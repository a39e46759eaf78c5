//! Configuration for `ptp`.
//!
//! Source: plugins `plugins/main/ptp`; docs/plugins/ptp.md.

use cni::Error;
use cni::invocation::Call;
use serde::Deserialize;

use crate::{interface, masquerade};

/// Reason why it needs an IPAM plugin.
pub const WHY_IPAM: &str = "a point-to-point link without an address has no use";

/// The configuration as written.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Conf {
    ip_masq: bool,
    ip_masq_backend: String,
    mtu: u32,
    queues: u32,
}

/// Validated configuration.
#[derive(Debug)]
pub struct Network {
    /// Backend that masquerades outgoing traffic, if configured.
    pub masquerade: Option<masquerade::Backend>,
    /// MTU in bytes, if configured.
    pub mtu: Option<u32>,
    /// Queues that each end has.
    pub queues: u32,
}

impl Network {
    /// Reads and validates the configuration.
    pub fn read(call: &Call) -> Result<Network, Error> {
        let Conf { ip_masq, ip_masq_backend, mtu, queues } = call.config.decode()?;
        let backend = masquerade::Backend::read(&ip_masq_backend)?;
        // Validated here because the last step of ADD uses it and must not fail.
        call.config.dns()?;
        Ok(Network {
            masquerade: ip_masq.then_some(backend),
            mtu: interface::check_mtu(mtu)?,
            queues: interface::check_queues(queues)?,
        })
    }
}

/// Returns the options, by name.
pub(crate) fn options() -> &'static [&'static str] {
    cni::fold::fields::<Conf>()
}
