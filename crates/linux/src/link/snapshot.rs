//! Snapshot of the configuration that an interface loses when it moves to another namespace or routing table: addresses
//! and the routes that were added to it. The kernel recreates its own routes.
//!
//! Source: kernel `net/core/dev.c` (`__dev_change_net_namespace` closes the device), `drivers/net/vrf.c`
//! (`cycle_netdev`), `net/ipv6/addrconf.c` (`addrconf_ifdown`).

use std::thread::sleep;
use std::time::{Duration, Instant};

use ipnet::IpNet;

use crate::error::{Error, exists_is_fine};
use crate::link::Link;
use crate::route::{Existing, Route};
use crate::rtnl::Rtnl;

/// Interval between attempts to add a route that is not possible yet.
const POLL: Duration = Duration::from_millis(10);

/// Addresses and routes of one interface.
#[derive(Clone, Debug)]
pub struct LinkSnapshot {
    addresses: Vec<IpNet>,
    routes: Vec<Route>,
}

impl LinkSnapshot {
    /// Returns the addresses of `link` and its routes in `table`.
    pub fn of(net: &mut Rtnl, link: &Link, table: u32) -> Result<LinkSnapshot, Error> {
        let addresses = net.addresses(link.index, &link.name)?;
        // The kernel generates link-local addresses itself. If it generates one again, it exists when the snapshot is restored.
        Ok(LinkSnapshot {
            addresses: addresses.into_iter().map(|address| address.address).collect(),
            routes: net.routes_through(link.index, table)?,
        })
    }

    /// Restores the snapshot on `link`, which may have another index now, in `table`; existing addresses and routes are kept.
    ///
    /// The kernel configures IPv6 asynchronously: IPv6 routes are retried for `timeout`.
    ///
    /// # Errors
    /// The first error; everything is tried.
    pub fn restore(&self, net: &mut Rtnl, link: &Link, table: u32, timeout: Duration) -> Result<(), Error> {
        let until = Instant::now() + timeout;
        let mut outcome = Ok(());
        for address in &self.addresses {
            outcome = outcome.and(exists_is_fine(net.add_own_address(link.index, &link.name, *address)));
        }
        for route in &self.routes {
            let route = Route { link: link.index, table, ..route.clone() };
            let mut tried = exists_is_fine(net.add_route(&route, Existing::Append));
            while tried.is_err() && route.dst.addr().is_ipv6() && Instant::now() < until {
                sleep(POLL);
                tried = exists_is_fine(net.add_route(&route, Existing::Append));
            }
            outcome = outcome.and(tried);
        }
        outcome
    }
}
