//! `neutron`: connects the container to a port of OpenStack Networking (Neutron).
//!
//! ```text
//!   ovs      container ── veth ── tap…   ─ port of br-int (iface-id = the port)
//!   bridge   container ── veth ── tap…   ─ qbr…   ─ qvb…   ── qvo…   ─ port of br-int
//!   vlan     container: VLAN of the node's own interface       macvlan   container: macvlan on it
//! ```
//!
//! Rules:
//! - `vif` describes the port. The agent adds it to the configuration once the controller has created the port, so it
//!   is in the journal. This plugin waits for the switch only.
//! - A failed ADD leaves neither links nor a port of the switch. Addresses are configured after the port works, so that
//!   the switch forwards the announcements.
//! - DEL needs only owner tags. If the switch is not reachable, the links are removed, and a later call removes the
//!   port: a port without a link is an orphan.
//! - An interface gets no default route unless `vif` has one.
//!
//! Source: os_vif `vif_plug_ovs`; Kuryr-Kubernetes `cni/binding/{bridge,nested}.py`.

use cni::Error;
use cni::invocation::{Attach, Detach, Probe, Sweep};
use cni::invoke::Invoke;
use cni::plugin::Plugin;
use cni::result::Success;
use linux::link::Link;
use linux::link::create::{MacvlanMode, NewKind, NewLink, Peer, Queues};
use linux::link::removal::LinkRemoval;
use linux::{Kind, Netns, Rtnl, Undo, ethtool};
use plugin_config::neutron::{Network, PlugMethod, Vif};
use plugin_config::parent::LinkNamespace;
use plugin_support::failure::OrRefused;
use plugin_support::owner_tag::{ALIAS_MAX, OwnerTag};

use crate::interface::inspection::{compare_addressing, expect_kind, find_inside};
use crate::interface::parent::{Parent, remove_unnamed};
use crate::interface::single::{self, Source};
use crate::interface::{self, expect_no_link};
use crate::ovsdb::{Ovsdb, Plug, SOCKET};

/// Plugin `neutron`.
pub struct Neutron;

/// Plugin name.
const NAME: &str = "neutron";
/// Maximum length for an interface name that is derived from a port id, in bytes.
const NAME_LENGTH: usize = 14;

/// Returns the name for a port's link on the host: `prefix` and then the beginning of the port's id.
fn name_of(vif: &Vif, prefix: &str) -> String {
    let mut name = format!("{prefix}{}", vif.id);
    name.truncate(NAME_LENGTH);
    name
}

// === impl Plugin ===

impl Plugin for Neutron {
    fn name(&self) -> &'static str {
        NAME
    }

    fn needs_agent(&self) -> bool {
        true
    }

    fn add(&self, request: &Attach, _: &dyn Invoke) -> Result<Success, Error> {
        let network = Network::read(&request.call)?;
        let vif = network.vif()?;
        let netns = plugin_support::netns::open_netns(&request.netns)?;
        let tag = OwnerTag::of(NAME, &request.call.config, &request.who);
        let name = request.who.ifname.as_str();
        let mut undo = Undo::new();
        let link = match &vif.method {
            PlugMethod::Switch { bridge, hybrid } => {
                let mut switch = Ovsdb::connect(&network.ovsdb)?;
                expect_no_link(&mut netns.rtnl().or_refused()?, name)?;
                let text = tag.text(ALIAS_MAX);
                let (tag, ovsdb) = (&tag, &network.ovsdb);
                undo.push(move || drop(remove_port(ovsdb, tag)));
                let device = make_links(vif, &netns, name, &text, *hybrid)?;
                let plug = Plug { bridge, device: &device, port: &vif.id, mac: &vif.mac_text, tag: &text };
                let found = switch.plug(&plug)?;
                if !network.tx_checksum.unwrap_or(!found.in_user_space) {
                    netns.run(|| ethtool::disable_tx_checksum(name)).or_refused()?.or_refused()?;
                }
                switch.wait(&device, found, network.timeout)?;
                netns.rtnl().or_refused()?.link(name).or_refused()?
            }
            nested => {
                let inside = &netns;
                let link = create_nested(&network, vif, nested, &netns, &tag, name)?;
                undo.push(move || interface::remove_inside(inside, name));
                link
            }
        };
        single::finish_add(request, Source::Given(vif.given.clone()), &netns, &link, undo)
    }

    fn del(&self, request: &Detach, delegates: &dyn Invoke) -> Result<(), Error> {
        // An invalid configuration must not prevent a DEL.
        let ovsdb = Network::read(&request.call).map_or_else(|_| SOCKET.to_owned(), |network| network.ovsdb);
        let tag = OwnerTag::of(NAME, &request.call.config, &request.who);
        interface::detach(&tag, request, delegates, || {
            cni::error::collected(
                [remove_port(&ovsdb, &tag), remove_unnamed(request.netns.as_deref(), &tag)]
                    .into_iter()
                    .filter_map(Result::err)
                    .collect(),
            )
        })
    }

    fn check(&self, request: &Attach, _: &dyn Invoke) -> Result<(), Error> {
        let network = Network::read(&request.call)?;
        let result = request.call.config.require_prev_result()?;
        let netns = plugin_support::netns::open_netns(&request.netns)?;
        let mut inside = find_inside(request, &result, &netns)?;
        let kind = match network.vif()?.method {
            PlugMethod::Switch { .. } => "veth",
            PlugMethod::Vlan(_) => "vlan",
            PlugMethod::Macvlan => "macvlan",
        };
        expect_kind(&inside.link, kind)?;
        compare_addressing(&mut inside, &result)?;
        if kind != "veth" {
            return Ok(());
        }
        let tag = OwnerTag::of(NAME, &request.call.config, &request.who).text(ALIAS_MAX);
        let own = Ovsdb::connect(&network.ovsdb)?.own()?;
        match own.iter().find(|found| found.tag == tag) {
            Some(found) if found.error.is_empty() => Ok(()),
            Some(found) => Err(Error::internal(format!("Open vSwitch: {}: {}", found.device, found.error))),
            None => Err(Error::internal(format!(
                "interface {}: its port is not in Open vSwitch",
                inside.link.name
            ))),
        }
    }

    fn gc(&self, request: &Sweep, _: &dyn Invoke) -> Result<(), Error> {
        let network = Network::read(&request.call)?;
        interface::sweep(NAME, &["veth", "bridge", "vlan", "macvlan"], request)?;
        let Some(valid) = request.valid()? else { return Ok(()) };
        let name = request.call.config.name.as_str();
        let keep: Vec<String> =
            valid.iter().map(|one| OwnerTag::of_valid(NAME, name, one).text(ALIAS_MAX)).collect();
        let (_, unplugged) = unplug(&network.ovsdb, &mut Rtnl::open().or_refused()?, |text| {
            let of_network = |tag: OwnerTag| tag.is_of(NAME, name);
            !keep.iter().any(|kept| kept == text) && OwnerTag::read(text).is_some_and(of_network)
        })?;
        unplugged
    }

    fn status(&self, request: &Probe, _: &dyn Invoke) -> Result<(), Error> {
        let network = Network::read(&request.call)?;
        // A node with nested ports needs no switch. Without a configured socket, its absence is no error.
        let has_none = network.ovsdb == SOCKET && !std::fs::exists(SOCKET).unwrap_or(true);
        match network.master {
            Some(_) => Ok(()),
            None if has_none => Ok(()),
            None => Ovsdb::connect(&network.ovsdb).map(drop),
        }
    }
}

/// Creates a port's links, and returns the name of the one to add to the switch.
///
/// A link that already has the name is left from an earlier attachment with this port and is replaced.
fn make_links(vif: &Vif, netns: &Netns, name: &str, alias: &str, hybrid: bool) -> Result<String, Error> {
    let mut host = Rtnl::open().or_refused()?;
    let device = name_of(vif, "tap");
    let mut make = |name: &str, kind: NewKind<'_>, master: Option<u32>| {
        let link = NewLink {
            mtu: vif.mtu,
            master,
            up: true,
            alias: Some(alias),
            no_link_local: true,
            ..NewLink::new(name, kind)
        };
        let mut made = host.add_link(&link);
        if made.as_ref().is_err_and(|error| error.kind() == Kind::Exists)
            && let Some(leftover) = host.find_link(name).or_refused()?
        {
            linux::error::absent_is_fine(host.delete_link(leftover.index, name)).or_refused()?;
            made = host.add_link(&link);
        }
        made.or_refused()?;
        host.link(name).or_refused()
    };
    let inside = Peer { name, mtu: vif.mtu, mac: Some(&vif.mac), queues: Queues::ONE, netns: Some(netns) };
    if !hybrid {
        make(&device, NewKind::Veth(inside), None)?;
        return Ok(device);
    }
    let bridge = make(&name_of(vif, "qbr"), NewKind::Bridge { vlan_filtering: false }, None)?.index;
    make(&device, NewKind::Veth(inside), Some(bridge))?;
    let (outer, inner) = (name_of(vif, "qvo"), name_of(vif, "qvb"));
    let peer = Peer { name: &outer, mtu: vif.mtu, mac: None, queues: Queues::ONE, netns: None };
    make(&inner, NewKind::Veth(peer), Some(bridge))?;
    let outer_link = host.link(&outer).or_refused()?;
    host.set_up(outer_link.index, &outer).or_refused()?;
    Ok(outer)
}

/// Creates the interface for a nested port.
fn create_nested(
    network: &Network,
    vif: &Vif,
    method: &PlugMethod,
    netns: &Netns,
    tag: &OwnerTag,
    name: &str,
) -> Result<Link, Error> {
    let mut parent = Parent::find(network.master.as_deref(), LinkNamespace::Host, netns)?;
    let index = parent.link.index;
    let kind = match method {
        PlugMethod::Vlan(id) => NewKind::Vlan { parent: index, id: *id },
        _ => NewKind::Macvlan { parent: index, mode: MacvlanMode::Bridge, broadcast_queue_length: None },
    };
    let mtu = parent.check_mtu(vif.mtu)?;
    let link = NewLink { mtu, mac: Some(&vif.mac), ..NewLink::new(name, kind) };
    parent.create_child(&link, netns, tag)
}

/// Removes the attachment's port from the switch, and the links from the host.
fn remove_port(ovsdb: &str, tag: &OwnerTag) -> Result<(), Error> {
    let text = tag.text(ALIAS_MAX);
    let mut host = Rtnl::open().or_refused()?;
    let (links, unplugged) = unplug(ovsdb, &mut host, |tag| tag == text)?;
    let mut errors: Vec<Error> = unplugged.err().into_iter().collect();
    let own: Vec<u32> = links.iter().filter(|link| link.alias == text).map(|link| link.index).collect();
    let gone = LinkRemoval::open().and_then(|removal| removal.delete(&own));
    errors.extend(gone.or_refused().err());
    cni::error::collected(errors)
}

/// Removes from the switch the ports that `matches` selects by owner tag, and those whose link is gone.
/// Returns the host's links and the result. If the switch is not reachable, a later call removes the ports.
///
/// The ports are listed before the links, because a port is added after the link. In the other order, it could seem
/// that a concurrent ADD's port has no link.
fn unplug(
    ovsdb: &str,
    host: &mut Rtnl,
    matches: impl Fn(&str) -> bool,
) -> Result<(Vec<Link>, Result<(), Error>), Error> {
    let ports = Ovsdb::connect(ovsdb).ok().map(|mut switch| switch.own().map(|own| (switch, own)));
    let links = host.links().or_refused()?;
    let unplugged = match ports.transpose() {
        Ok(None) => Ok(()),
        Ok(Some((mut switch, mut own))) => {
            own.retain(|port| matches(&port.tag) || !links.iter().any(|link| link.name == port.device));
            switch.unplug(&own.into_iter().map(|port| port.device).collect::<Vec<_>>())
        }
        Err(error) => Err(error),
    };
    Ok((links, unplugged))
}
