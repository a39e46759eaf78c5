//! `vlan`: creates an interface in one VLAN on a parent interface (802.1Q).
//!
//! Rules beyond the reference plugin's:
//! - A failed ADD leaves no interface.
//! - DEL needs no parent.
//! - A network without IPAM is a layer-2 network.
//! - IPAM's DNS settings are kept unless the configuration contains others.
//!
//! Source: containernetworking/plugins `plugins/main/vlan` v1.9.1; kernel `net/8021q`.

use cni::Error;
use cni::invocation::{Attach, Detach, Probe, Sweep};
use cni::invoke::Invoke;
use cni::plugin::Plugin;
use cni::result::Success;
use linux::Netns;
use linux::link::create::{NewKind, NewLink};
use linux::link::{Detail, Link};
use plugin_config::vlan::Network;
use plugin_support::owner_tag::OwnerTag;

use crate::interface;
use crate::interface::inspection::{differs, expect_kind};
use crate::interface::parent::{self, Parent, inspect_parent, remove_unnamed};
use crate::interface::single::{self, Source};

/// Plugin `vlan`.
pub struct Vlan;

const NAME: &str = "vlan";

// === impl Plugin ===

impl Plugin for Vlan {
    fn name(&self) -> &'static str {
        NAME
    }

    fn creates_interface(&self) -> bool {
        true
    }

    fn add(&self, request: &Attach, delegates: &dyn Invoke) -> Result<Success, Error> {
        let network = Network::read(&request.call)?;
        let source = Source::of(&request.call, delegates)?;
        single::add(request, source, |netns| create(request, &network, netns))
    }

    fn del(&self, request: &Detach, delegates: &dyn Invoke) -> Result<(), Error> {
        let tag = OwnerTag::of(NAME, &request.call.config, &request.who);
        interface::detach(&tag, request, delegates, || remove_unnamed(request.netns.as_deref(), &tag))
    }

    fn check(&self, request: &Attach, delegates: &dyn Invoke) -> Result<(), Error> {
        let network = Network::read(&request.call)?;
        single::check(request, delegates, |netns, link| inspect(&network, netns, link))
    }

    fn gc(&self, request: &Sweep, delegates: &dyn Invoke) -> Result<(), Error> {
        single::gc(request, delegates)
    }

    fn status(&self, request: &Probe, delegates: &dyn Invoke) -> Result<(), Error> {
        let network = Network::read(&request.call)?;
        parent::status(Some(&network.master), network.parent_in)?;
        single::status(&request.call, delegates)
    }
}

/// Creates the interface in the container under the final name.
///
/// The kernel accepts an id once for each parent, in whatever namespace the interface is.
fn create(request: &Attach, network: &Network, netns: &Netns) -> Result<Link, Error> {
    let Network { master, parent_in, id, mtu } = network;
    let tag = OwnerTag::of(NAME, &request.call.config, &request.who);
    let mut parent = Parent::find(Some(master), *parent_in, netns)?;
    let mtu = parent.check_mtu(*mtu)?;
    let kind = NewKind::Vlan { parent: parent.link.index, id: *id };
    let link = NewLink { mtu, ..NewLink::new(request.who.ifname.as_str(), kind) };
    parent.create_child(&link, netns, &tag).map_err(|error| error.context(format_args!("vlanId: {id}")))
}

fn inspect(network: &Network, netns: &Netns, link: &Link) -> Result<(), Error> {
    let Network { master, parent_in, id, mtu } = network;
    expect_kind(link, NAME)?;
    match link.detail {
        Detail::Vlan { id: is } if is == *id => {}
        _ => return Err(differs(&link.name, "vlan id", &format!("{:?}", link.detail), &id.to_string())),
    }
    match mtu {
        Some(mtu) if *mtu != link.mtu => {
            return Err(differs(&link.name, "mtu", &link.mtu.to_string(), &mtu.to_string()));
        }
        _ => {}
    }
    inspect_parent(Some(master), *parent_in, netns, link)
}
