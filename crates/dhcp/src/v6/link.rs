//! The kernel's part in DHCPv6: the link-local address, duplicate address detection, and routes from router
//! advertisements.
//!
//! This module waits for kernel events instead of polling, and every wait has a timeout.
//!
//! A link that is down is prepared without duplicate address detection, unless the network sets `enabledad`. The
//! plugins that create interfaces also turn it off, because it would add one to two seconds to each ADD. If the link is
//! already up, this module waits for detection to finish.
//!
//! Source: RFC 4862 §5.4, RFC 4861 §6.3.7, RFC 8415 §18.2.10.1; `Documentation/networking/ip-sysctl.rst`.

use std::net::Ipv6Addr;
use std::time::{Duration, Instant};

use cni::{Error, code};
use ipnet::{IpNet, Ipv6Net};
use linux::Netns;
use linux::address::Address;
use linux::link::Link;
use linux::route::{Family as Routes, TABLE_MAIN};
use linux::sysctl::{self, Family};
use linux::watch::Watch;
use plugin_support::failure::OrRefused;

use super::V6Request;
use crate::v4::exchange::POLL;

/// Timeout for duplicate address detection. The kernel delays it by up to a second and then waits for another second.
const DETECTION_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout for a router advertisement. The kernel repeats the solicitation after four seconds, and a router answers
/// within half a second.
const ROUTER_TIMEOUT: Duration = Duration::from_secs(5);

/// Fails unless the link has IPv6; prepares a link that is down.
pub fn prepare(netns: &Netns, link: &Link, v6_request: &V6Request) -> Result<(), Error> {
    expect_ipv6(netns, link)?;
    if link.up {
        return Ok(());
    }
    let off = |name: &str| sysctl::write_interface(Family::V6, &link.name, name, "0");
    let write = || match v6_request.detect_duplicates {
        true => off("autoconf"),
        false => off("autoconf").and_then(|()| off("accept_dad")),
    };
    netns.run(write).or_refused()?.or_refused()
}

fn expect_ipv6(netns: &Netns, link: &Link) -> Result<(), Error> {
    let key = format!("net.ipv6.conf.{}.disable_ipv6", link.name);
    let read = || sysctl::read_interface(Family::V6, &link.name, "disable_ipv6");
    match netns.run(read).or_refused()?.as_deref() {
        Ok("0") => Ok(()),
        Ok(value) => {
            let why = "DHCPv6 needs IPv6 on the link";
            Err(Error::internal(format!("{key} = {value}: {why}")))
        }
        Err(error) => Err(Error::internal(format!("{}: no IPv6: {error}", link.name))),
    }
}

/// Waits for duplicate address detection, and returns the link-local address to send from.
///
/// # Errors
/// IPv6 is off on the link, the address is a duplicate, or there is none within the timeout.
pub fn link_local(netns: &Netns, link: &Link, is_over: &dyn Fn() -> bool) -> Result<Ipv6Addr, Error> {
    let mut what = "no link-local IPv6 address";
    let end = Instant::now() + DETECTION_TIMEOUT;
    let found = wait_for(netns, end, is_over, || {
        let all = addresses(netns, link)?;
        if let Some(own) = all.iter().find_map(usable) {
            return Ok(Some(own));
        }
        match all.iter().find(|own| is_link_local(own.address)) {
            Some(own) if own.duplicate => {
                let why = "duplicate address detected";
                Err(Error::internal(format!("{} on {}: {why}", own.address, link.name)))
            }
            Some(_) => {
                what = "a link-local IPv6 address that is still tentative";
                Ok(None)
            }
            None => Ok(None),
        }
    })?;
    match found {
        Some(own) => Ok(own),
        None => {
            expect_ipv6(netns, link)?;
            let seconds = DETECTION_TIMEOUT.as_secs();
            let why = format!("{} has {what} within {seconds} s; is there a carrier?", link.name);
            Err(Error::new(code::TRY_AGAIN_LATER, why))
        }
    }
}

/// Returns the link-local address to send from, if there is one now.
pub fn link_local_now(netns: &Netns, link: &Link) -> Result<Option<Ipv6Addr>, Error> {
    Ok(addresses(netns, link)?.iter().find_map(usable))
}

fn usable(own: &Address) -> Option<Ipv6Addr> {
    match own.address {
        IpNet::V6(net) if is_link_local(own.address) && !own.tentative && !own.duplicate => Some(net.addr()),
        _ => None,
    }
}

/// Whether another host on the link uses this address. The kernel checks it while the address is on the link. `ip
/// address add ADDRESS dev NAME`, then `ip address delete`
///
/// False if the link itself already has the address, and after a timeout.
pub fn is_used_by_other(
    netns: &Netns,
    link: &Link,
    address: Ipv6Addr,
    is_over: &dyn Fn() -> bool,
) -> Result<bool, Error> {
    let net = IpNet::V6(Ipv6Net::from(address));
    let mut rtnl = netns.rtnl().or_refused()?;
    match rtnl.add_address(link.index, &link.name, net) {
        Ok(()) => {}
        Err(error) if error.kind() == linux::Kind::Exists => return Ok(false),
        Err(error) => return Err(plugin_support::failure::refused(&error)),
    }
    let end = Instant::now() + DETECTION_TIMEOUT;
    let verdict = wait_for(netns, end, is_over, || {
        let all = addresses(netns, link)?;
        // The kernel may remove a duplicate address at once.
        let Some(own) = all.iter().find(|own| own.address == net) else { return Ok(Some(true)) };
        Ok((own.duplicate || !own.tentative).then_some(own.duplicate))
    });
    let removed = linux::error::absent_is_fine(rtnl.delete_address(link.index, &link.name, net));
    let verdict = verdict?;
    removed.or_refused()?;
    Ok(verdict.unwrap_or(false))
}

/// Waits until a router advertisement has added a route on this link; false after the timeout. Before that, a container
/// whose address has no prefix reaches no other host.
pub fn await_router(netns: &Netns, link: &Link, is_over: &dyn Fn() -> bool) -> Result<bool, Error> {
    let read = |name: &str| sysctl::read_interface(Family::V6, &link.name, name).unwrap_or_default();
    let (accepts, forwards) = netns.run(|| (read("accept_ra"), read("forwarding"))).or_refused()?;
    // A forwarding host is a router and ignores advertisements unless `accept_ra` is 2.
    if accepts == "0" || (accepts == "1" && forwards == "1") {
        return Ok(false);
    }
    let end = Instant::now() + ROUTER_TIMEOUT;
    let advertised = wait_for(netns, end, is_over, || {
        let routes = netns.rtnl().and_then(|mut net| net.routes(Routes::V6)).or_refused()?;
        let is_global = |dst: IpNet| !is_link_local(dst) && !dst.addr().is_multicast();
        let mut own = routes.iter().filter(|route| route.link == link.index && route.table == TABLE_MAIN);
        Ok(own.any(|route| is_global(route.dst)).then_some(()))
    })?;
    Ok(advertised.is_some())
}

/// Calls `look` after every kernel event until it returns a value.
fn wait_for<T>(
    netns: &Netns,
    end: Instant,
    is_over: &dyn Fn() -> bool,
    mut look: impl FnMut() -> Result<Option<T>, Error>,
) -> Result<Option<T>, Error> {
    // The watch is opened before the first look, so that no later change is missed.
    let watch = netns.run(Watch::open).or_refused()?.or_refused()?;
    loop {
        if let Some(seen) = look()? {
            return Ok(Some(seen));
        }
        while !watch.wait(end.min(Instant::now() + POLL)).or_refused()? {
            if Instant::now() >= end || is_over() {
                return Ok(None);
            }
        }
        // Frequent events must not extend the timeout.
        if Instant::now() >= end || is_over() {
            return look();
        }
    }
}

fn addresses(netns: &Netns, link: &Link) -> Result<Vec<Address>, Error> {
    netns.rtnl().and_then(|mut net| net.addresses(link.index, &link.name)).or_refused()
}

fn is_link_local(net: IpNet) -> bool {
    matches!(net, IpNet::V6(net) if net.addr().is_unicast_link_local())
}
