//! `macvlan`: creates an interface with a separate hardware address on a parent interface on the host.
//!
//! Rules beyond the reference plugin's:
//! - A failed ADD leaves no interface.
//! - DEL needs no parent.
//! - IPAM's DNS settings are kept unless the configuration contains others.
//!
//! Source: containernetworking/plugins `plugins/main/macvlan` v1.9.1.

use cni::Error;
use cni::invocation::{Attach, Detach, Probe, Sweep};
use cni::invoke::Invoke;
use cni::plugin::Plugin;
use cni::result::Success;
use linux::Netns;
use linux::link::create::{MacvlanMode, NewKind, NewLink};
use linux::link::{Detail, Link};
use plugin_config::macvlan::{Mode, Network};
use plugin_support::owner_tag::OwnerTag;

use crate::interface;
use crate::interface::inspection::{differs, expect_kind};
use crate::interface::parent::{self, Parent, inspect_parent, remove_unnamed};
use crate::interface::single::{self, Source};

/// Plugin `macvlan`.
pub struct Macvlan;

const NAME: &str = "macvlan";

/// Returns the mode as the kernel names it.
fn kernel_mode(mode: Mode) -> MacvlanMode {
    match mode {
        Mode::Bridge => MacvlanMode::Bridge,
        Mode::Private => MacvlanMode::Private,
        Mode::Vepa => MacvlanMode::Vepa,
        Mode::Passthru => MacvlanMode::Passthru,
    }
}

// === impl Plugin ===

impl Plugin for Macvlan {
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
        single::check(request, delegates, |netns, link| {
            expect_kind(link, NAME)?;
            if link.detail != (Detail::Macvlan { mode: Some(kernel_mode(network.mode)) }) {
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
        parent::status(network.master.as_deref(), network.parent_in)?;
        single::status(&request.call, delegates)
    }
}

/// Creates the interface in the container under the final name.
fn create(request: &Attach, network: &Network, netns: &Netns) -> Result<Link, Error> {
    let tag = OwnerTag::of(NAME, &request.call.config, &request.who);
    let mut parent = Parent::find(network.master.as_deref(), network.parent_in, netns)?;
    let mtu = parent.check_mtu(network.mtu)?;
    let kind = NewKind::Macvlan {
        parent: parent.link.index,
        mode: kernel_mode(network.mode),
        broadcast_queue_length: network.broadcast_queue_length,
    };
    let mut link = NewLink::new(request.who.ifname.as_str(), kind);
    link.mtu = mtu;
    link.mac = network.mac.as_deref();
    parent.create_child(&link, netns, &tag)
}
