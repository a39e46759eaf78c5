//! `bandwidth`: limits the rates at which a container sends and receives, with token buckets on the host.
//!
//! ```text
//!   container ── veth ─┬─ root: bucket (ingress: to the container)
//!                      └─ ingress: all redirected to ─► ifb ── root: bucket (egress: from the container)
//! ```
//!
//! Rules beyond the reference plugin's:
//! - A failed ADD leaves nothing, and the leftovers of a killed ADD do not prevent the next one.
//! - If a container has several interfaces on one network, each one has a separate ifb.
//! - A bucket holds at least one packet: with less, no packet would ever pass.
//!
//! DEL removes only the ifb. The kernel removes the queueing disciplines with the interface; to remove them before
//! would cost as much as to remove another link.
//!
//! Source: containernetworking/plugins `plugins/meta/bandwidth` v1.9.1; subnets: v1.5.1.

pub mod limits;
pub mod shaper;

use cni::Error;
use cni::invocation::{Attach, Attachment, Detach, Probe, Sweep};
use cni::invoke::Invoke;
use cni::plugin::Plugin;
use cni::result::Success;
use cni::version::Version;
use linux::link::Link;
use linux::link::removal::LinkRemoval;
use linux::{Netns, Rtnl, Undo};
use plugin_support::failure::OrRefused;
use plugin_support::netns::open_netns;
use plugin_support::owner_tag::OwnerTag;

use self::shaper::Shaper;
use crate::interface::{self, link_in};
use plugin_config::bandwidth::Limits;

/// Plugin `bandwidth`.
pub struct Bandwidth;

/// Plugin name, also in owner tags.
pub const NAME: &str = "bandwidth";

// === impl Plugin ===

impl Plugin for Bandwidth {
    fn name(&self) -> &'static str {
        NAME
    }

    fn host_link_name(&self, network: &str, who: &Attachment, attempt: u32) -> Option<String> {
        shaper::ifb_name(network, who, attempt)
    }

    /// Versions from 0.3.0, the first with plugin lists.
    fn versions(&self) -> &'static [Version] {
        &Version::ALL[2..]
    }

    fn add(&self, request: &Attach, _: &dyn Invoke) -> Result<Success, Error> {
        let Attach { who, netns, call } = request;
        let limits = Limits::read(&call.config)?;
        let mut result = call.config.require_prev_result()?;
        if limits.is_none() {
            return Ok(result);
        }
        let mut host = Rtnl::open().or_refused()?;
        let end = host_end(&mut host, &open_netns(netns)?, who.ifname.as_str(), &result)?;
        let tag = OwnerTag::of(NAME, &call.config, who);
        let mut undo = Undo::new();
        let shaper = Shaper { end: &end, tag: &tag, limits: &limits };
        if let Some(ifb) = shaper.apply(&mut host, &mut undo)? {
            result.interfaces.push(interface::describe(&ifb));
        }
        undo.commit();
        Ok(result)
    }

    fn del(&self, request: &Detach, _: &dyn Invoke) -> Result<(), Error> {
        let tag = OwnerTag::of(NAME, &request.call.config, &request.who);
        let mut host = Rtnl::open().or_refused()?;
        match shaper::find_ifb(&mut host, &tag, &|| host_end_index(request))? {
            None => Ok(()),
            Some(ifb) => LinkRemoval::open().and_then(|removal| removal.delete(&[ifb.index])).or_refused(),
        }
    }

    fn check(&self, request: &Attach, _: &dyn Invoke) -> Result<(), Error> {
        let Attach { who, netns, call } = request;
        let limits = Limits::read(&call.config)?;
        let result = call.config.require_prev_result()?;
        // ADD did nothing. The interface may have no end on the host.
        if limits.is_none() {
            return Ok(());
        }
        let mut host = Rtnl::open().or_refused()?;
        let end = host_end(&mut host, &open_netns(netns)?, who.ifname.as_str(), &result)?;
        let tag = OwnerTag::of(NAME, &call.config, who);
        Shaper { end: &end, tag: &tag, limits: &limits }.inspect(&mut host)
    }

    fn gc(&self, request: &Sweep, _: &dyn Invoke) -> Result<(), Error> {
        interface::sweep(NAME, &["ifb"], request)
    }

    fn status(&self, request: &Probe, _: &dyn Invoke) -> Result<(), Error> {
        Limits::read(&request.call.config).map(|_| ())
    }
}

/// Returns the index that the host end of the container's interface has: 0 if there is no interface, `None`
/// without a namespace to ask.
fn host_end_index(request: &Detach) -> Result<Option<u32>, Error> {
    let found = request.netns.as_deref().map(Netns::find).transpose().or_refused()?.flatten();
    let Some(netns) = found else { return Ok(None) };
    let link = netns.rtnl().and_then(|mut net| net.find_link(request.who.ifname.as_str())).or_refused()?;
    Ok(Some(link.and_then(|link| link.link).unwrap_or(0)))
}

/// Returns the host end of the container's interface. It must be the interface's peer, and prevResult must
/// name it: then an earlier plugin in this list created it.
fn host_end(host: &mut Rtnl, netns: &Netns, ifname: &str, result: &Success) -> Result<Link, Error> {
    let (_, inside) = link_in(netns, ifname)?;
    let refused = |why: &str| Error::config(format!("interface {ifname} of the container {why}"));
    let Some(peer) = inside.link.filter(|_| inside.kind == "veth") else {
        return Err(refused("is not a veth; only an interface with an end on the host can be limited"));
    };
    let end = match host.link_at(peer) {
        Ok(end) if end.kind == "veth" && end.link == Some(inside.index) => end,
        Ok(_) => return Err(refused("has no end on the host")),
        Err(error) if error.kind() == linux::Kind::Absent => {
            return Err(refused("has no end on the host"));
        }
        Err(error) => return Err(plugin_support::failure::refused(&error)),
    };
    match result.interfaces.iter().any(|known| known.sandbox.is_empty() && known.name == end.name) {
        true => Ok(end),
        false => Err(refused(&format!("has the host end {}, which prevResult does not contain", end.name))),
    }
}
