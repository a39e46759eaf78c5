//! Verbs for plugins whose attachment is one link in the container and nothing on the host.
//!
//! Rules:
//! - The link is created first, because IPAM may need it (`dhcp` sends through it).
//! - It is set up last, together with the addresses.
//! - A failed ADD leaves neither the link nor an address.
//!
//! Source: containernetworking/plugins v1.9.1, the common parts of `main/macvlan`, `ipvlan`, `vlan`, `dummy`
//! and `tap`.

use cni::Error;
use cni::invocation::{Attach, Call, Sweep};
use cni::invoke::Invoke;
use cni::plugin::ipam::Ipam;
use cni::result::{Interface, Success};
use linux::link::Link;
use linux::{Netns, Undo};
use plugin_support::failure::OrRefused;

use crate::interface::inspection::{compare_addressing, find_inside};
use crate::interface::{self, addressing};

/// Where the link's addresses come from.
pub enum Source<'a> {
    /// An IPAM plugin.
    Managed(Ipam<'a>),
    /// The previous plugin in the list.
    Given(Success),
    /// None: a layer-2 network.
    Nowhere,
}

impl<'a> Source<'a> {
    /// Returns the configured origin.
    pub fn of(call: &'a Call, delegates: &'a dyn Invoke) -> Result<Source<'a>, Error> {
        Ok(Ipam::configured(call, delegates)?.map_or(Source::Nowhere, Source::Managed))
    }
}

/// Runs ADD: `make` creates the link in the container, down.
pub fn add(
    request: &Attach,
    source: Source<'_>,
    make: impl FnOnce(&Netns) -> Result<Link, Error>,
) -> Result<Success, Error> {
    // Validated here because the last step of ADD uses it and must not fail.
    request.call.config.dns()?;
    let netns = plugin_support::netns::open_netns(&request.netns)?;
    let link = make(&netns)?;
    let (index, name, inside) = (link.index, request.who.ifname.as_str(), &netns);
    let mut undo = Undo::new();
    // By index: a process in the container may have renamed it. Best effort: the original error is returned.
    undo.push(move || drop(inside.rtnl().and_then(|mut net| net.delete_link(index, name))));
    finish_add(request, source, &netns, &link, undo)
}

/// Completes an ADD whose link is in the container, down; `undo` removes the link.
pub fn finish_add<'a>(
    request: &'a Attach,
    source: Source<'a>,
    netns: &Netns,
    link: &Link,
    mut undo: Undo<'a>,
) -> Result<Success, Error> {
    let Attach { who: _, netns: path, call } = request;
    let interface = Interface { sandbox: path.display().to_string(), ..interface::describe(link) };
    let mut result = Success { interfaces: vec![interface], ..Success::default() };
    match source {
        Source::Managed(ipam) => {
            let reserved = ipam.add()?;
            undo.push(move || drop(ipam.del()));
            interface::adopt(reserved, 0, &mut result)?;
        }
        Source::Given(given) => interface::adopt(given, 0, &mut result)?,
        Source::Nowhere => {}
    }
    if result.ips.is_empty() {
        netns.rtnl().and_then(|mut net| net.set_up(link.index, &link.name)).or_refused()?;
    } else {
        addressing::enter(netns, link, &result)?;
    }
    interface::prefer_dns(call, &mut result)?;
    undo.commit();
    Ok(result)
}

/// Runs CHECK: `inspect` compares what is specific to the plugin's kind of link.
pub fn check(
    request: &Attach,
    delegates: &dyn Invoke,
    inspect: impl FnOnce(&Netns, &Link) -> Result<(), Error>,
) -> Result<(), Error> {
    if let Some(ipam) = Ipam::configured(&request.call, delegates)? {
        ipam.check()?;
    }
    let result = request.call.config.require_prev_result()?;
    let netns = plugin_support::netns::open_netns(&request.netns)?;
    let mut inside = find_inside(request, &result, &netns)?;
    inspect(&netns, &inside.link)?;
    compare_addressing(&mut inside, &result)
}

/// Runs GC: the link is removed with the container, but addresses may remain allocated.
pub fn gc(request: &Sweep, delegates: &dyn Invoke) -> Result<(), Error> {
    match Ipam::configured(&request.call, delegates)? {
        Some(ipam) => ipam.gc(),
        None => Ok(()),
    }
}

/// Fails unless IPAM can allocate addresses.
pub fn status(call: &Call, delegates: &dyn Invoke) -> Result<(), Error> {
    match Ipam::configured(call, delegates)? {
        Some(ipam) => ipam.status(),
        None => Ok(()),
    }
}
