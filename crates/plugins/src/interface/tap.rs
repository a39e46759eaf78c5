//! `tap`: creates a tap interface in the container for a program there, for example a virtual machine
//! monitor.
//!
//! Rules beyond the reference plugin's:
//! - A failed ADD leaves no interface.
//! - `mac` is set also if `owner` is configured.
//! - The interface's SELinux context is not passed on to the next program.
//! - IPAM's DNS settings are kept unless the configuration contains others.
//!
//! Source: containernetworking/plugins `plugins/main/tap` v1.9.1.

use cni::Error;
use cni::invocation::{Attach, Detach, Probe, Sweep};
use cni::invoke::Invoke;
use cni::plugin::Plugin;
use cni::result::Success;
use linux::link::tap::{self, NewTap};
use linux::link::{Change, Link};
use linux::{Netns, Rtnl};
use plugin_config::tap::Network;
use plugin_support::failure::{OrRefused, refused};
use plugin_support::owner_tag::{ALIAS_MAX, OwnerTag};

use crate::interface;
use crate::interface::inspection::{differs, expect_kind};
use crate::interface::single::{self, Source};

/// Plugin `tap`.
pub struct Tap;

const NAME: &str = "tap";
/// Kernel's name for the link kind.
const KIND: &str = "tun";

// === impl Plugin ===

impl Plugin for Tap {
    fn name(&self) -> &'static str {
        NAME
    }

    fn creates_interface(&self) -> bool {
        true
    }

    fn add(&self, request: &Attach, delegates: &dyn Invoke) -> Result<Success, Error> {
        let network = Network::read(&request.call)?;
        if let Some(context) = network.context.as_ref().filter(|_| !tap::has_selinux()) {
            let why = "this kernel runs without SELinux";
            return Err(Error::unsupported("selinuxContext", format!("{context:?}"), why));
        }
        let source = Source::of(&request.call, delegates)?;
        single::add(request, source, |netns| create(request, &network, netns))
    }

    fn del(&self, request: &Detach, delegates: &dyn Invoke) -> Result<(), Error> {
        let tag = OwnerTag::of(NAME, &request.call.config, &request.who);
        interface::detach(&tag, request, delegates, || Ok(()))
    }

    fn check(&self, request: &Attach, delegates: &dyn Invoke) -> Result<(), Error> {
        let network = Network::read(&request.call)?;
        single::check(request, delegates, |netns, link| inspect(&network, netns, link))
    }

    fn gc(&self, request: &Sweep, delegates: &dyn Invoke) -> Result<(), Error> {
        single::gc(request, delegates)
    }

    fn status(&self, request: &Probe, delegates: &dyn Invoke) -> Result<(), Error> {
        Network::read(&request.call)?;
        single::status(&request.call, delegates)
    }
}

/// Creates the interface in the container with everything but addresses.
fn create(request: &Attach, network: &Network, netns: &Netns) -> Result<Link, Error> {
    let Network { multi_queue, mtu, mac, owner, group, context, bridge } = network;
    let ifname = request.who.ifname.as_str();
    let mut net = netns.rtnl().or_refused()?;
    interface::expect_no_link(&mut net, ifname)?;
    let master = bridge.as_ref().map(|name| find_bridge(&mut net, name)).transpose()?;
    let new = NewTap {
        name: ifname,
        multi_queue: *multi_queue,
        owner: *owner,
        group: *group,
        context: context.as_deref(),
    };
    netns.run(|| tap::create(&new)).or_refused()?.or_refused()?;
    let alias = OwnerTag::of(NAME, &request.call.config, &request.who).text(ALIAS_MAX);
    let change = Change { mtu: *mtu, mac: mac.as_deref(), master, alias: Some(&alias), ..Change::default() };
    let finish = |net: &mut Rtnl| {
        let link = net.link(ifname)?;
        net.change_link(link.index, ifname, &change)?;
        net.link(ifname)
    };
    finish(&mut net).map_err(|error| {
        interface::remove_inside(netns, ifname);
        refused(&error)
    })
}

fn find_bridge(net: &mut Rtnl, name: &str) -> Result<u32, Error> {
    let why = match net.find_link(name).or_refused()? {
        Some(link) if link.kind == "bridge" => return Ok(link.index),
        Some(_) => "the interface of this name in the container is no bridge",
        None => "no such interface in the container",
    };
    Err(Error::key("bridge", format!("{name:?}"), why))
}

fn inspect(network: &Network, netns: &Netns, link: &Link) -> Result<(), Error> {
    expect_kind(link, KIND)?;
    match network.mtu {
        Some(mtu) if mtu != link.mtu => {
            return Err(differs(&link.name, "mtu", &link.mtu.to_string(), &mtu.to_string()));
        }
        _ => {}
    }
    let Some(bridge) = &network.bridge else { return Ok(()) };
    let index = find_bridge(&mut netns.rtnl().or_refused()?, bridge)?;
    match link.master == Some(index) {
        true => Ok(()),
        false => Err(differs(&link.name, "master index", &format!("{:?}", link.master), &index.to_string())),
    }
}
