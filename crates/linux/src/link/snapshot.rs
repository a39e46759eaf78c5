//! Saves and restores what an interface loses when it moves to another namespace or routing table: addresses, and
//! routes that were added. The kernel itself creates the subnet routes again.
//!
//! Source: kernel `net/core/dev.c` (`__dev_change_net_namespace` closes the device), `drivers/net/vrf.c`
//! (`cycle_netdev`), `net/ipv6/addrconf.c` (`addrconf_ifdown`).

use std::time::{Duration, Instant};

use ipnet::IpNet;

use crate::error::{Error, exists_is_fine};
use crate::link::Link;
use crate::route::multipath::groups;
use crate::route::{Existing, Route};
use crate::rtnl::Rtnl;
use crate::watch::Watch;

/// Addresses and routes on one interface.
#[derive(Clone, Debug)]
pub struct LinkSnapshot {
    addresses: Vec<IpNet>,
    routes: Vec<Route>,
}

impl LinkSnapshot {
    /// Saves the addresses on `link`, and the routes in `table`.
    pub fn of(net: &mut Rtnl, link: &Link, table: u32) -> Result<LinkSnapshot, Error> {
        let addresses = net.addresses(link.index, &link.name)?;
        // The kernel generates link-local addresses itself. If it generates one again, it already exists on restore.
        Ok(LinkSnapshot {
            addresses: addresses.into_iter().map(|address| address.address).collect(),
            routes: net.routes_through(link.index, table)?,
        })
    }

    /// Restores the snapshot on `link`, which may have another index now, in `table`. Existing addresses and routes are
    /// kept.
    ///
    /// # Errors
    /// The first error; the rest is still tried.
    pub fn restore(&self, net: &mut Rtnl, link: &Link, table: u32) -> Result<(), Error> {
        self.restore_with(net, link, table, |_| Ok(false))
    }

    /// Like [`LinkSnapshot::restore`], but waits for IPv6, which takes the kernel some time: IPv6 routes are tried
    /// again after each of the `changes` in the namespace, for at most `timeout`.
    pub fn restore_within(
        &self,
        net: &mut Rtnl,
        link: &Link,
        table: u32,
        changes: &Watch,
        timeout: Duration,
    ) -> Result<(), Error> {
        let until = Instant::now() + timeout;
        self.restore_with(net, link, table, |route| {
            Ok(route.dst.addr().is_ipv6() && Instant::now() < until && changes.wait(until)?)
        })
    }

    /// Restores everything. A route that the kernel refuses is tried again while `is_to_retry` returns true.
    fn restore_with(
        &self,
        net: &mut Rtnl,
        link: &Link,
        table: u32,
        is_to_retry: impl Fn(&Route) -> Result<bool, Error>,
    ) -> Result<(), Error> {
        let mut outcome = Ok(());
        for address in &self.addresses {
            outcome = outcome.and(exists_is_fine(net.add_own_address(link.index, &link.name, *address)));
        }
        let moved = |route: &Route| Route { link: link.index, table, ..route.clone() };
        let routes: Vec<Route> = self.routes.iter().map(moved).collect();
        for hops in groups(&routes) {
            let mut tried = exists_is_fine(net.add_routes(&hops, Existing::Append));
            while tried.is_err() && is_to_retry(&hops[0])? {
                tried = exists_is_fine(net.add_routes(&hops, Existing::Append));
            }
            outcome = outcome.and(tried);
        }
        outcome
    }
}
