//! `dummy`: creates an interface that is connected to nothing, for addresses inside the container.
//!
//! Rules beyond the reference plugin's:
//! - A failed ADD leaves nothing.
//! - IPAM's DNS settings are kept unless the configuration contains others.
//!
//! Source: containernetworking/plugins `plugins/main/dummy` v1.9.1.

use cni::Error;
use cni::invocation::{Attach, Detach, Probe, Sweep};
use cni::invoke::Invoke;
use cni::plugin::Plugin;
use cni::plugin::ipam::Ipam;
use cni::result::Success;
use linux::link::Link;
use linux::link::create::{NewKind, NewLink};
use linux::{Kind, Netns};
use plugin_config::WHY_DUMMY_IPAM;
use plugin_support::failure::{OrRefused, refused};
use plugin_support::owner_tag::{ALIAS_MAX, OwnerTag};

use crate::interface;
use crate::interface::inspection::expect_kind;
use crate::interface::single::{self, Source};

/// Plugin `dummy`.
pub struct Dummy;

const NAME: &str = "dummy";

// === impl Plugin ===

impl Plugin for Dummy {
    fn name(&self) -> &'static str {
        NAME
    }

    fn creates_interface(&self) -> bool {
        true
    }

    fn add(&self, request: &Attach, delegates: &dyn Invoke) -> Result<Success, Error> {
        let ipam = require_ipam(Ipam::configured(&request.call, delegates)?)?;
        single::add(request, Source::Managed(ipam), |netns| create(request, netns))
    }

    fn del(&self, request: &Detach, delegates: &dyn Invoke) -> Result<(), Error> {
        let tag = OwnerTag::of(NAME, &request.call.config, &request.who);
        interface::detach(&tag, request, delegates, || Ok(()))
    }

    fn check(&self, request: &Attach, delegates: &dyn Invoke) -> Result<(), Error> {
        single::check(request, delegates, |_, link| expect_kind(link, NAME))
    }

    fn gc(&self, request: &Sweep, delegates: &dyn Invoke) -> Result<(), Error> {
        single::gc(request, delegates)
    }

    fn status(&self, request: &Probe, delegates: &dyn Invoke) -> Result<(), Error> {
        require_ipam(Ipam::configured(&request.call, delegates)?)?.status()
    }
}

fn require_ipam(ipam: Option<Ipam<'_>>) -> Result<Ipam<'_>, Error> {
    ipam.ok_or_else(|| Error::missing("ipam.type", WHY_DUMMY_IPAM))
}

/// Creates the interface: `ip link add ETH type dummy` in the container.
fn create(request: &Attach, netns: &Netns) -> Result<Link, Error> {
    let ifname = request.who.ifname.as_str();
    let mut net = netns.rtnl().or_refused()?;
    interface::expect_no_link(&mut net, ifname)?;
    let alias = OwnerTag::of(NAME, &request.call.config, &request.who).text(ALIAS_MAX);
    let link = NewLink { alias: Some(&alias), ..NewLink::new(ifname, NewKind::Dummy) };
    net.add_link(&link).and_then(|()| net.link(ifname)).map_err(|error| {
        if error.kind() != Kind::Exists {
            // The kernel may have created the link, and its answer been lost.
            interface::remove_inside(netns, ifname);
        }
        refused(&error)
    })
}
