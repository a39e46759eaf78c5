//! `macvlan`: creates an interface with a separate hardware address on a parent interface of the host.
//!
//! Rules beyond the reference plugin's:
//! - A failed ADD leaves no interface.
//! - DEL needs no parent.
//! - The DNS settings of IPAM are kept unless the configuration has its own.
//!
//! Source: containernetworking/plugins `plugins/main/macvlan` v1.9.1.

use cni::Error;
use cni::invocation::{Attach, Call, Detach, Probe, Sweep};
use cni::invoke::Invoke;
use cni::plugin::Plugin;
use cni::result::Success;
use linux::Netns;
use linux::link::create::{MacvlanMode, NewKind, NewLink};
use linux::link::{Detail, Link};
use plugin_support::owner_tag::OwnerTag;
use serde::Deserialize;

use crate::interface;
use crate::interface::inspection::{differs, expect_kind};
use crate::interface::parent::{self, LinkNamespace, Parent, inspect_parent, remove_unnamed};
use crate::interface::single::{self, Source};

/// Plugin `macvlan`.
pub struct Macvlan;

const NAME: &str = "macvlan";

/// The configuration as written.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Conf {
    master: String,
    mode: String,
    mtu: u32,
    mac: String,
    #[serde(rename = "linkInContainer")]
    link_in_container: bool,
    #[serde(rename = "bcqueuelen")]
    broadcast_queue_length: u32,
    args: interface::CniArgs,
    #[serde(rename = "runtimeConfig")]
    runtime_config: interface::RuntimeConfig,
}

/// Validated configuration.
#[derive(Debug)]
struct Network {
    /// Configured parent; none: the interface of the default route.
    master: Option<String>,
    /// Namespace of the parent.
    parent_in: LinkNamespace,
    mode: MacvlanMode,
    /// MTU in bytes, if configured; at most the parent's.
    mtu: Option<u32>,
    /// Requested hardware address.
    mac: Option<Vec<u8>>,
    broadcast_queue_length: Option<u32>,
}

impl Network {
    fn read(call: &Call) -> Result<Network, Error> {
        let conf: Conf = call.config.decode()?;
        Network::check(conf, call.args())
    }

    fn check(conf: Conf, cni_args: &str) -> Result<Network, Error> {
        let Conf { master, mode, mtu, mac, link_in_container, broadcast_queue_length, args, runtime_config } =
            conf;
        if !master.is_empty() {
            interface::check_name("master", &master)?;
        }
        let configured = interface::ethernet_address("mac", &mac)?;
        Ok(Network {
            master: (!master.is_empty()).then_some(master),
            parent_in: LinkNamespace::read(link_in_container),
            mode: match mode.as_str() {
                "" | "bridge" => MacvlanMode::Bridge,
                "private" => MacvlanMode::Private,
                "vepa" => MacvlanMode::Vepa,
                "passthru" => MacvlanMode::Passthru,
                other => {
                    let why = "not one of bridge, private, vepa, passthru";
                    return Err(Error::key("mode", format!("{other:?}"), why));
                }
            },
            mtu: interface::check_mtu(mtu)?,
            mac: interface::requested_mac(&runtime_config, &args, cni_args)?.or(configured),
            broadcast_queue_length: (broadcast_queue_length > 0).then_some(broadcast_queue_length),
        })
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
            if link.detail != (Detail::Macvlan { mode: Some(network.mode) }) {
                let (is, wanted) = (format!("{:?}", link.detail), format!("{:?}", network.mode));
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

/// Creates the interface in the container under its final name.
fn create(request: &Attach, network: &Network, netns: &Netns) -> Result<Link, Error> {
    let tag = OwnerTag::of(NAME, &request.call.config, &request.who);
    let mut parent = Parent::find(network.master.as_deref(), network.parent_in, netns)?;
    let mtu = parent.check_mtu(network.mtu)?;
    let kind = NewKind::Macvlan {
        parent: parent.link.index,
        mode: network.mode,
        broadcast_queue_length: network.broadcast_queue_length,
    };
    let mut link = NewLink::new(request.who.ifname.as_str(), kind);
    link.mtu = mtu;
    link.mac = network.mac.as_deref();
    parent.create_child(&link, netns, &tag)
}
