//! What DHCPv6 needs of a link, and what an address of it needs: a link-local address to ask from, that no other machine
//! has it, and a router that says what is reached how.
//!
//! Rules: the kernel is listened to, not asked all the time, and every wait has an end.
//!
//! A link that is set up for this is set up without duplicate address detection, unless the network has `enabledad`: the
//! plugins that make interfaces turn it off for every container's, and it would cost each ADD a second or two. On one that
//! is up already it is waited for.
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

use super::Wish;
use crate::v4::exchange::GLANCE;

/// How long a link-local address may take: the kernel waits up to a second before it asks, and a second for an answer.
const SETTLED: Duration = Duration::from_secs(5);
/// How long a router may take: the kernel asks again after four seconds what was lost, and it answers within half of one.
const ROUTER: Duration = Duration::from_secs(5);

/// Expects that there is IPv6 on the link, and makes it ready for being set up, if it is down.
pub fn prepare(netns: &Netns, link: &Link, wish: &Wish) -> Result<(), Error> {
    expect_ipv6(netns, link)?;
    if link.up {
        return Ok(());
    }
    let off = |name: &str| sysctl::write_interface(Family::V6, &link.name, name, "0");
    let write = || match wish.detect_duplicates {
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
            let why = "without IPv6 on the link there is no DHCPv6";
            Err(Error::internal(format!("{key} = {value}: {why}")))
        }
        Err(error) => Err(Error::internal(format!("{}: no IPv6: {error}", link.name))),
    }
}

/// The address to ask from, as soon as it is nobody else's.
///
/// # Errors
/// If IPv6 is off on the link, its address is another machine's, or there is none in time.
pub fn link_local(netns: &Netns, link: &Link, is_over: &dyn Fn() -> bool) -> Result<Ipv6Addr, Error> {
    let mut what = "no link-local IPv6 address";
    let end = Instant::now() + SETTLED;
    let found = until(netns, end, is_over, || {
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
                what = "a link-local IPv6 address that is still asked about";
                Ok(None)
            }
            None => Ok(None),
        }
    })?;
    match found {
        Some(own) => Ok(own),
        None => {
            expect_ipv6(netns, link)?;
            let seconds = SETTLED.as_secs();
            let why = format!("{} has {what} within {seconds} s; is there a carrier?", link.name);
            Err(Error::new(code::TRY_AGAIN_LATER, why))
        }
    }
}

/// The address to ask from, if there is one now.
pub fn link_local_now(netns: &Netns, link: &Link) -> Result<Option<Ipv6Addr>, Error> {
    Ok(addresses(netns, link)?.iter().find_map(usable))
}

fn usable(own: &Address) -> Option<Ipv6Addr> {
    match own.address {
        IpNet::V6(net) if is_link_local(own.address) && !own.tentative && !own.duplicate => Some(net.addr()),
        _ => None,
    }
}

/// Does another machine on the link have this address? The kernel is let ask, with the address on the link meanwhile.
/// `ip address add ADDRESS dev NAME`, then `ip address delete`
///
/// One that the link has already is not asked about, and neither is one about which the kernel has no word in time.
pub fn is_anothers(
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
    let end = Instant::now() + SETTLED;
    let verdict = until(netns, end, is_over, || {
        let all = addresses(netns, link)?;
        // One that is refused may be taken away at once.
        let Some(own) = all.iter().find(|own| own.address == net) else { return Ok(Some(true)) };
        Ok((own.duplicate || !own.tentative).then_some(own.duplicate))
    });
    let removed = linux::error::absent_is_fine(rtnl.delete_address(link.index, &link.name, net));
    let verdict = verdict?;
    removed.or_refused()?;
    Ok(verdict.unwrap_or(false))
}

/// Waits until a router has said what is reached by this link, and how; false if none has in time. A container whose
/// address comes without a prefix reaches nobody before.
pub fn await_router(netns: &Netns, link: &Link, is_over: &dyn Fn() -> bool) -> Result<bool, Error> {
    let read = |name: &str| sysctl::read_interface(Family::V6, &link.name, name).unwrap_or_default();
    let (accepts, forwards) = netns.run(|| (read("accept_ra"), read("forwarding"))).or_refused()?;
    // Who forwards is a router itself, and listens to none unless it is told to.
    if accepts == "0" || (accepts == "1" && forwards == "1") {
        return Ok(false);
    }
    let end = Instant::now() + ROUTER;
    let heard = until(netns, end, is_over, || {
        let routes = netns.rtnl().and_then(|mut net| net.routes(Routes::V6)).or_refused()?;
        let leads_on = |dst: IpNet| !is_link_local(dst) && !dst.addr().is_multicast();
        let mut own = routes.iter().filter(|route| route.link == link.index && route.table == TABLE_MAIN);
        Ok(own.any(|route| leads_on(route.dst)).then_some(()))
    })?;
    Ok(heard.is_some())
}

/// Looks whenever something has changed, until there is something to see.
fn until<T>(
    netns: &Netns,
    end: Instant,
    is_over: &dyn Fn() -> bool,
    mut look: impl FnMut() -> Result<Option<T>, Error>,
) -> Result<Option<T>, Error> {
    // Before the first look: what changes between both is heard.
    let watch = netns.run(Watch::open).or_refused()?.or_refused()?;
    loop {
        if let Some(seen) = look()? {
            return Ok(Some(seen));
        }
        while !watch.wait(end.min(Instant::now() + GLANCE)).or_refused()? {
            if Instant::now() >= end || is_over() {
                return Ok(None);
            }
        }
        // One that changes all the time ends, too.
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
