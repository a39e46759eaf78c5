//! `ipvlan`: creates an interface that has separate IP addresses and the parent's hardware address.
//!
//! Rules beyond the reference plugin's:
//! - A failed ADD leaves no interface.
//! - DEL needs neither the parent nor a default route.
//! - A network without IPAM is a layer-2 network.
//! - IPAM's DNS settings are kept unless the configuration contains others.
//!
//! Source: containernetworking/plugins `plugins/main/ipvlan` v1.9.1; kernel
//! `Documentation/networking/ipvlan.rst`.

use cni::Error;
use cni::invocation::{Attach, Detach, Probe, Sweep};
use cni::invoke::Invoke;
use cni::plugin::Plugin;
use cni::result::Success;
use linux::Netns;
use linux::link::create::{IpvlanMode, NewKind, NewLink};
use linux::link::{Detail, Link};
use plugin_config::ipvlan::{Mode, Network};
use plugin_support::owner_tag::OwnerTag;

use crate::interface;
use crate::interface::inspection::{differs, expect_kind};
use crate::interface::parent::{self, Parent, inspect_parent, remove_unnamed};
use crate::interface::single::{self, Source};

/// Plugin `ipvlan`.
pub struct Ipvlan;

const NAME: &str = "ipvlan";

/// Returns the mode as the kernel names it.
fn kernel_mode(mode: Mode) -> IpvlanMode {
    match mode {
        Mode::L2 => IpvlanMode::L2,
        Mode::L3 => IpvlanMode::L3,
        Mode::L3s => IpvlanMode::L3s,
    }
}

// === impl Plugin ===

impl Plugin for Ipvlan {
    fn name(&self) -> &'static str {
        NAME
    }

    fn creates_interface(&self) -> bool {
        true
    }

    fn add(&self, request: &Attach, delegates: &dyn Invoke) -> Result<Success, Error> {
        let previous = request.call.config.prev_result()?;
        let network = Network::read(&request.call)?.chained(previous.as_ref())?;
        let source = match (Source::of(&request.call, delegates)?, previous) {
            (Source::Nowhere, Some(previous)) if !previous.ips.is_empty() => Source::Given(previous),
            (source, _) => source,
        };
        single::add(request, source, |netns| create(request, &network, netns))
    }

    fn del(&self, request: &Detach, delegates: &dyn Invoke) -> Result<(), Error> {
        let tag = OwnerTag::of(NAME, &request.call.config, &request.who);
        interface::detach(&tag, request, delegates, || remove_unnamed(request.netns.as_deref(), &tag))
    }

    fn check(&self, request: &Attach, delegates: &dyn Invoke) -> Result<(), Error> {
        let network = Network::read(&request.call)?;
        single::check(request, delegates, |netns, link| {
            expect_kind(link, NAME)?;
            if link.detail != (Detail::Ipvlan { mode: Some(kernel_mode(network.mode)) }) {
                let (is, wanted) = (format!("{:?}", link.detail), format!("{:?}", kernel_mode(network.mode)));
                return Err(differs(&link.name, "mode", &is, &wanted));
            }
            inspect_parent(network.master.as_deref(), network.parent_in, netns, link)
        })
    }

    fn gc(&self, request: &Sweep, delegates: &dyn Invoke) -> Result<(), Error> {
        single::gc(request, delegates)
    }

    fn status(&self, request: &Probe, delegates: &dyn Invoke) -> Result<(), Error> {
        let network = Network::read(&request.call)?;
        // Without a name the parent may be the previous plugin's interface, which only ADD receives.
        if network.master.is_some() {
            parent::status(network.master.as_deref(), network.parent_in)?;
        }
        single::status(&request.call, delegates)
    }
}

/// Creates the interface in the container under the final name.
fn create(request: &Attach, network: &Network, netns: &Netns) -> Result<Link, Error> {
    let tag = OwnerTag::of(NAME, &request.call.config, &request.who);
    let mut parent = Parent::find(network.master.as_deref(), network.parent_in, netns)?;
    let mtu = parent.check_mtu(network.mtu)?;
    let kind = NewKind::Ipvlan { parent: parent.link.index, mode: kernel_mode(network.mode) };
    let link = NewLink { mtu, ..NewLink::new(request.who.ifname.as_str(), kind) };
    parent.create_child(&link, netns, &tag)
}
