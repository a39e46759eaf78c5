//! Sets up a container's interface with the addresses and routes in an IPAM result.
//!
//! Rules:
//! - Every address in the result belongs to the interface that is being configured, or to none.
//! - The order is addresses, up, routes, because a route needs a reachable gateway.
//! - It waits at most 5 s until IPv6 duplicate address detection has ended. Without detection the kernel
//!   completes an address at once, but asynchronously. The kernel's notifications end the wait.
//! - A route without a gateway uses the gateway in the same address family, if there is one. With the unspecified
//!   address as gateway it uses none.
//!
//! Source: plugins `pkg/ipam/ipam_linux.go` `ConfigureIface` (G1); SPEC 1.1.0 §5 "routes" (S35: mtu and
//! advmss are applied here; the Go plugins ignore them).

use std::net::IpAddr;
use std::time::{Duration, Instant};

use cni::Error;
use cni::result::Success;
use ipnet::IpNet;
use linux::link::{Change, Link};
use linux::route::{Existing, Route, TABLE_MAIN};
use linux::sysctl::{self, Family};
use linux::watch::Watch;
use linux::{Kind, Netns, Rtnl};
use plugin_support::failure::OrRefused;

/// Timeout for duplicate address detection.
const DETECTION_TIMEOUT: Duration = Duration::from_secs(5);

/// Configures `link`, inside the namespace; `net` is a socket in that namespace.
///
/// Call it on a thread that is in the namespace, because it writes sysctls.
///
/// # Errors
/// The first error. Completed steps are not undone: the caller removes the interface.
pub fn configure(net: &mut Rtnl, link: &Link, result: &Success) -> Result<(), Error> {
    configure_between(net, link, result, |_, _| Ok(()))
}

/// As [`configure`], and calls `between` with the routes after the addresses and before the routes are added.
fn configure_between(
    net: &mut Rtnl,
    link: &Link,
    result: &Success,
    between: impl FnOnce(&mut Rtnl, &mut [Route]) -> Result<(), Error>,
) -> Result<(), Error> {
    let addresses = own_addresses(link, result)?;
    let ipv6 = addresses.iter().any(|address| address.addr().is_ipv6());
    if ipv6 {
        enable_ipv6(&link.name)?;
    }
    let gateway6 = result.ips.iter().any(|ip| ip.gateway.is_some_and(|gateway| gateway.is_ipv6()));
    // Opened before the addresses are added, so that every later change is received.
    let changes = gateway6.then(Watch::addresses).transpose().or_refused()?;
    net.add_addresses(link.index, &link.name, &addresses).or_refused()?;
    net.change_link(link.index, &link.name, &Change { up: Some(true), ..Change::default() }).or_refused()?;
    if ipv6 {
        // IPv6 starts when the kernel has processed the change of carrier. Since Linux 6.8 this request triggers it.
        // Before, it takes a moment.
        net.link_at(link.index).or_refused()?;
    }
    if let Some(changes) = changes {
        await_duplicate_detection(net, link, &changes)?;
    }
    let mut routes: Vec<Route> =
        result.routes.iter().map(|route| kernel_route(link, result, route)).collect();
    between(net, &mut routes)?;
    match net.add_routes(&routes, Existing::Append).or_refused() {
        Ok(()) => Ok(()),
        Err(error) => Err(error.details(format!("on {}", link.name))),
    }
}

/// Enters the container's namespace, prepares the interface and calls [`configure`].
pub fn enter(netns: &Netns, link: &Link, result: &Success) -> Result<(), Error> {
    enter_between(netns, link, result, |_, _| Ok(()))
}

/// As [`enter`], and calls `between` with the routes after the addresses and before the routes are added.
pub fn enter_between(
    netns: &Netns,
    link: &Link,
    result: &Success,
    between: impl FnOnce(&mut Rtnl, &mut [Route]) -> Result<(), Error> + Send,
) -> Result<(), Error> {
    let inside = || {
        let mut net = Rtnl::open().or_refused()?;
        super::announce(&mut net, link, false)?;
        configure_between(&mut net, link, result, between)
    };
    netns.run(inside).or_refused()?
}

/// Returns the addresses in the result that belong to this interface.
///
/// # Errors
/// An index refers to no interface, or to another one: the address would end up on the wrong interface.
fn own_addresses(link: &Link, result: &Success) -> Result<Vec<IpNet>, Error> {
    let mut addresses = Vec::with_capacity(result.ips.len());
    for ip in &result.ips {
        let Some(index) = ip.interface else { continue };
        let interface = usize::try_from(index).ok().and_then(|index| result.interfaces.get(index));
        match interface {
            Some(interface) if interface.name == link.name => addresses.push(ip.address),
            _ => {
                return Err(Error::internal(format!(
                    "address {} belongs to interface index {index}, which is not {}",
                    ip.address, link.name
                )));
            }
        }
    }
    Ok(addresses)
}

/// Enables IPv6, which may be off by default in a new namespace, and keeps addresses while the link is down.
fn enable_ipv6(name: &str) -> Result<(), Error> {
    for interface in ["lo", name] {
        // Without IPv6 the file does not exist; then the error of adding the address explains it better.
        if let Ok("1") = sysctl::read_interface(Family::V6, interface, "disable_ipv6").as_deref() {
            sysctl::write_interface(Family::V6, interface, "disable_ipv6", "0").or_refused()?;
        }
    }
    // Announces new addresses, as `arp_notify` does for IPv4: best effort, as in the reference plugins.
    let _ = sysctl::write_interface(Family::V6, name, "ndisc_notify", "1");
    match sysctl::write_interface(Family::V6, name, "keep_addr_on_down", "1") {
        Err(error) if error.kind() != Kind::Absent => Err(plugin_support::failure::refused(&error)),
        _ => Ok(()),
    }
}

/// Waits until no IPv6 address is tentative. `changes` reports the namespace's links and addresses.
///
/// On a link without carrier addresses stay tentative, which is no error: detection starts with the carrier.
fn await_duplicate_detection(net: &mut Rtnl, link: &Link, changes: &Watch) -> Result<(), Error> {
    let deadline = Instant::now() + DETECTION_TIMEOUT;
    loop {
        let addresses = net.addresses(link.index, &link.name).or_refused()?;
        if let Some(taken) = addresses.iter().find(|address| address.duplicate) {
            return Err(Error::internal(format!(
                "address {} on {}: duplicate address detected",
                taken.address, link.name
            )));
        }
        let Some(tentative) = addresses.iter().find(|address| address.tentative) else { return Ok(()) };
        if !net.link_at(link.index).or_refused()?.carrier {
            return Ok(());
        }
        if Instant::now() >= deadline {
            if !net.link_at(link.index).or_refused()?.running {
                return Ok(());
            }
            return Err(Error::internal(format!(
                "address {} on {}: still tentative after {} s",
                tentative.address,
                link.name,
                DETECTION_TIMEOUT.as_secs()
            )));
        }
        changes.wait(deadline).or_refused()?;
    }
}

/// Returns a route from the result in the kernel's form.
pub fn kernel_route(link: &Link, result: &Success, route: &cni::result::Route) -> Route {
    let cni::result::Route { dst, gw, mtu, advmss, priority, table: _, scope } = *route;
    // The unspecified address as gateway requests a route without one, as with `ip route add`.
    let gateway = match gw {
        Some(gateway) => Some(gateway).filter(|gateway| !gateway.is_unspecified()),
        None => family_gateway(result, dst.addr().is_ipv4()),
    };
    let mut kernel = Route::new(dst, link.index, gateway);
    kernel.mtu = mtu.filter(|mtu| *mtu > 0);
    kernel.advmss = advmss.filter(|advmss| *advmss > 0);
    kernel.priority = priority.filter(|priority| *priority > 0);
    kernel.table = route.named_table().unwrap_or(TABLE_MAIN);
    if let Some(scope) = scope {
        kernel.scope = scope;
        // The scope "link" and a gateway contradict each other; the scope was requested.
        if scope == linux::route::SCOPE_LINK && gw.is_none() {
            kernel.gateway = None;
        }
    }
    kernel
}

/// Returns the gateway that the first address in a family has.
fn family_gateway(result: &Success, ipv4: bool) -> Option<IpAddr> {
    result.ips.iter().filter_map(|ip| ip.gateway).find(|gateway| gateway.is_ipv4() == ipv4)
}
