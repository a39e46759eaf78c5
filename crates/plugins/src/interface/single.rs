//! The verbs of the plugins whose attachment is one link in the container and nothing on the host.
//!
//! Rules:
//! - the link is made first: address management may need it (dhcp asks through it);
//! - it is set up last, with its addresses on it;
//! - a failed ADD leaves neither the link nor an address.
//!
//! Source: containernetworking/plugins v1.9.1, what `main/macvlan`, `ipvlan`, `vlan`, `dummy` and `tap` have in
//! common.

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
    /// From address management.
    Managed(Ipam<'a>),
    /// From the plugin before this one in a list.
    Given(Success),
    /// From nowhere: it is a layer-2 network.
    Nowhere,
}

impl<'a> Source<'a> {
    /// What is configured.
    pub fn of(call: &'a Call, delegates: &'a dyn Invoke) -> Result<Source<'a>, Error> {
        Ok(Ipam::configured(call, delegates)?.map_or(Source::Nowhere, Source::Managed))
    }
}

/// ADD: `make` makes the link in the container, down.
pub fn add(
    request: &Attach,
    source: Source<'_>,
    make: impl FnOnce(&Netns) -> Result<Link, Error>,
) -> Result<Success, Error> {
    // Used last: it must not fail then.
    request.call.config.dns()?;
    let netns = plugin_support::netns::open_netns(&request.netns)?;
    let link = make(&netns)?;
    let (name, inside) = (request.who.ifname.as_str(), &netns);
    let mut undo = Undo::new();
    undo.push(move || interface::remove_inside(inside, name));
    equip(request, source, &netns, &link, undo)
}

/// The rest of an ADD whose link is in the container, down; `undo` takes it away again.
pub fn equip<'a>(
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

/// CHECK: `inspect` looks at what only the plugin's kind of link has.
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

/// GC: the link goes with its container; addresses may stay.
pub fn gc(request: &Sweep, delegates: &dyn Invoke) -> Result<(), Error> {
    match Ipam::configured(&request.call, delegates)? {
        Some(ipam) => ipam.gc(),
        None => Ok(()),
    }
}

/// STATUS: can addresses be had?
pub fn status(call: &Call, delegates: &dyn Invoke) -> Result<(), Error> {
    match Ipam::configured(call, delegates)? {
        Some(ipam) => ipam.status(),
        None => Ok(()),
    }
}
