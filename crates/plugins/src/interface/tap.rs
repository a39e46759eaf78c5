//! `tap`: creates a tap interface in the container for a program there, for example a virtual machine monitor.
//!
//! Rules beyond the reference plugin's:
//! - A failed ADD leaves no interface.
//! - `mac` is set also if `owner` is configured.
//! - The SELinux context of the interface is not passed on to the next program.
//! - The DNS settings of IPAM are kept unless the configuration has its own.
//!
//! Source: containernetworking/plugins `plugins/main/tap` v1.9.1.

use cni::Error;
use cni::invocation::{Attach, Call, Detach, Probe, Sweep};
use cni::invoke::Invoke;
use cni::plugin::Plugin;
use cni::result::Success;
use linux::link::tap::{self, NewTap};
use linux::link::{Change, Link};
use linux::{Netns, Rtnl};
use plugin_support::failure::{OrRefused, refused};
use plugin_support::owner_tag::{ALIAS_MAX, OwnerTag};
use serde::Deserialize;

use crate::interface::inspection::{differs, expect_kind};
use crate::interface::single::{self, Source};
use crate::interface::{self, RuntimeConfig};

/// Plugin `tap`.
pub struct Tap;

const NAME: &str = "tap";
/// Kernel's name for the link kind.
const KIND: &str = "tun";
/// Maximum length of an SELinux context, in bytes.
const CONTEXT_MAX: usize = 1024;
/// Largest MTU of a tap interface, in bytes: 65535 minus an Ethernet header.
const MTU_MAX: u32 = 65521;

/// The configuration as written.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Conf {
    #[serde(rename = "multiQueue")]
    multi_queue: bool,
    mtu: u32,
    mac: String,
    owner: Option<u32>,
    group: Option<u32>,
    #[serde(rename = "selinuxContext")]
    selinux_context: String,
    bridge: String,
    args: interface::CniArgs,
    #[serde(rename = "runtimeConfig")]
    runtime_config: RuntimeConfig,
}

/// Validated configuration.
#[derive(Debug)]
struct Network {
    multi_queue: bool,
    /// MTU in bytes, if configured.
    mtu: Option<u32>,
    /// Requested hardware address.
    mac: Option<Vec<u8>>,
    /// User and group that may open it; none: only privileged processes.
    owner: Option<u32>,
    group: Option<u32>,
    /// SELinux context, if configured.
    context: Option<String>,
    /// Bridge in the container that it becomes a port of.
    bridge: Option<String>,
}

impl Network {
    fn read(call: &Call) -> Result<Network, Error> {
        let Conf { multi_queue, mtu, mac, owner, group, selinux_context, bridge, args, runtime_config } =
            call.config.decode()?;
        let requested = interface::requested_mac(&runtime_config, &args, call.args())?;
        if !bridge.is_empty() {
            interface::check_name("bridge", &bridge)?;
        }
        let mtu = interface::check_mtu(mtu)?;
        if let Some(mtu) = mtu.filter(|mtu| *mtu > MTU_MAX) {
            return Err(Error::key("mtu", mtu, format!("greater than {MTU_MAX}, a tap interface's largest")));
        }
        Ok(Network {
            multi_queue,
            mtu,
            mac: requested.or(interface::ethernet_address("mac", &mac)?),
            owner: expect_id("owner", owner)?,
            group: expect_id("group", group)?,
            context: context(selinux_context)?,
            bridge: (!bridge.is_empty()).then_some(bridge),
        })
    }
}

/// Fails for the largest number, which means "no user" to the kernel.
fn expect_id(key: &str, id: Option<u32>) -> Result<Option<u32>, Error> {
    match id {
        Some(u32::MAX) => Err(Error::key(key, u32::MAX, "not a valid id")),
        id => Ok(id),
    }
}

fn context(text: String) -> Result<Option<String>, Error> {
    let key = |why: &str| Error::key("selinuxContext", format!("{text:?}"), why);
    if text.is_empty() {
        return Ok(None);
    }
    if text.len() > CONTEXT_MAX || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(key("not a security context"));
    }
    Ok(Some(text))
}

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

/// Creates the interface in the container with everything but its addresses.
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
