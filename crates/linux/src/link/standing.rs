//! What the kernel takes from an interface that is moved to another namespace or routing table: addresses, and
//! the routes that somebody made. The ones that it makes itself it makes again.
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

/// Addresses and routes of one interface.
#[derive(Clone, Debug)]
pub struct Standing {
    addresses: Vec<IpNet>,
    routes: Vec<Route>,
}

impl Standing {
    /// What `link` has now; of its routes those in `table`.
    pub fn of(net: &mut Rtnl, link: &Link, table: u32) -> Result<Standing, Error> {
        let addresses = net.addresses(link.index, &link.name)?;
        // A link-local address is the kernel's own, unless it is made again: then it is there already.
        Ok(Standing {
            addresses: addresses.into_iter().map(|address| address.address).collect(),
            routes: net.routes_through(link.index, table)?,
        })
    }

    /// Gives it to `link`, which may have another index now, in `table`; what is there already stays.
    ///
    /// # Errors
    /// The first; everything is tried.
    pub fn restore(&self, net: &mut Rtnl, link: &Link, table: u32) -> Result<(), Error> {
        self.restore_with(net, link, table, |_| Ok(false))
    }

    /// As [`Standing::restore`]. IPv6 is ready in the kernel's own time: its routes are tried again after each of the
    /// `changes` in the namespace, for at most `timeout`.
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
