//! `static`: assigns the addresses in the configuration or in the request.
//!
//! No state is stored, so there is nothing to release. The caller must know that an address is free.
//!
//! Rules beyond the reference plugin's:
//! - A requested address in a configured subnet gets that subnet's gateway. Without prefix length it also gets the
//!   subnet's; it is refused only if there is no such subnet.
//! - CHECK fails if prevResult lacks an address.
//!
//! Source: containernetworking/plugins `plugins/ipam/static` v1.9.1; NPWG v1.1 4.1.2.1.3 `ips`.

use std::net::IpAddr;

use cni::Error;
use cni::invocation::{Attach, Detach, Probe, Sweep};
use cni::invoke::Invoke;
use cni::plugin::Plugin;
use cni::result::{IpConfig, Success};

use plugin_config::static_address::{Address, Network};

/// Plugin `static`.
pub struct Static;

const NAME: &str = "static";

// === impl Plugin ===

impl Plugin for Static {
    fn name(&self) -> &'static str {
        NAME
    }

    fn add(&self, request: &Attach, _: &dyn Invoke) -> Result<Success, Error> {
        let Network { addresses, routes, dns } = Network::read(&request.call)?;
        let ips = addresses.into_iter().map(|Address { address, gateway }| IpConfig {
            interface: None,
            address,
            gateway,
        });
        Ok(Success { interfaces: Vec::new(), ips: ips.collect(), routes, dns })
    }

    // There is no reservation to release.
    fn del(&self, _: &Detach, _: &dyn Invoke) -> Result<(), Error> {
        Ok(())
    }

    fn check(&self, request: &Attach, _: &dyn Invoke) -> Result<(), Error> {
        let Network { addresses, routes: _, dns: _ } = Network::read(&request.call)?;
        let result = request.call.config.require_prev_result()?;
        for Address { address, gateway } in addresses {
            // One address may occur twice, with different prefix lengths.
            let gateways: Vec<Option<IpAddr>> = result
                .ips
                .iter()
                .filter(|ip| ip.address.addr() == address.addr())
                .map(|ip| ip.gateway)
                .collect();
            let Some(first) = gateways.first() else {
                return Err(Error::internal(format!("prevResult lacks address {address}")));
            };
            if gateway.is_some() && !gateways.contains(&gateway) {
                let text = |gateway: Option<IpAddr>| gateway.map_or("none".to_owned(), |ip| ip.to_string());
                let (is, wanted) = (text(*first), text(gateway));
                return Err(Error::internal(format!(
                    "prevResult: gateway of address {address} is {is}, not {wanted}"
                )));
            }
        }
        Ok(())
    }

    // There is no reservation to release.
    fn gc(&self, _: &Sweep, _: &dyn Invoke) -> Result<(), Error> {
        Ok(())
    }

    fn status(&self, request: &Probe, _: &dyn Invoke) -> Result<(), Error> {
        Network::read(&request.call).map(|_| ())
    }
}
