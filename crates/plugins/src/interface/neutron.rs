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
//!   the switch forwards their announcements.
//! - DEL needs only owner tags. If the switch is not reachable, the links are removed, and a later call removes the
//!   port: a port without its link is an orphan.
//! - An interface gets no default route unless `vif` has one.
//!
//! Source: os_vif `vif_plug_ovs`; Kuryr-Kubernetes `cni/binding/{bridge,nested}.py`.

use std::time::Duration;

use cni::invocation::{Attach, Call, Detach, Probe, Sweep};
use cni::invoke::Invoke;
use cni::plugin::Plugin;
use cni::result::Success;
use cni::version::Version;
use cni::{Context, Error};
use linux::link::Link;
use linux::link::create::{MacvlanMode, NewKind, NewLink, Peer, Queues};
use linux::link::removal::LinkRemoval;
use linux::{Kind, Netns, Rtnl, Undo, ethtool};
use plugin_support::failure::OrRefused;
use plugin_support::owner_tag::{ALIAS_MAX, OwnerTag};
use serde::Deserialize;
use serde_json::Value;

use crate::interface::inspection::{compare_addressing, expect_kind, find_inside};
use crate::interface::parent::{LinkNamespace, Parent, remove_unnamed};
use crate::interface::single::{self, Source};
use crate::interface::{self, expect_no_link};
use crate::ovsdb::{Ovsdb, Plug, SOCKET};

/// Plugin `neutron`.
pub struct Neutron;

/// Name of the plugin.
const NAME: &str = "neutron";
/// Maximum length of an interface name that is derived from a port id, in bytes.
const NAME_LENGTH: usize = 14;
/// Default timeout for the switch, in seconds.
const TIMEOUT: u64 = 60;

/// The configuration as written.
#[derive(Debug, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Conf {
    /// Socket of the Open vSwitch database.
    ovsdb: String,
    /// Parent interface of nested ports on the node; empty: that of the default route.
    master: String,
    /// One of `auto`, `on` and `off`.
    tx_checksum: String,
    /// Timeout for the switch, in seconds.
    timeout: u64,
    vif: Option<VifConf>,
}

impl Default for Conf {
    fn default() -> Conf {
        let text = |text: &str| text.to_owned();
        Conf { ovsdb: text(SOCKET), master: text(""), tx_checksum: text("auto"), timeout: TIMEOUT, vif: None }
    }
}

/// Port as described by the agent.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct VifConf {
    id: String,
    mac: String,
    kind: String,
    bridge: String,
    vlan_id: u16,
    mtu: u32,
    /// Addresses, routes and DNS, in the form of a result.
    result: Value,
}

/// Validated configuration.
#[derive(Debug)]
struct Network {
    ovsdb: String,
    master: Option<String>,
    tx_checksum: Option<bool>,
    timeout: Duration,
    vif: Option<Vif>,
}

/// Validated port.
#[derive(Debug)]
struct Vif {
    id: String,
    mac: Vec<u8>,
    mac_text: String,
    method: PlugMethod,
    mtu: Option<u32>,
    given: Success,
}

/// Method by which the port is connected.
#[derive(Debug)]
enum PlugMethod {
    Switch { bridge: String, hybrid: bool },
    Vlan(u16),
    Macvlan,
}

impl Network {
    fn read(call: &Call) -> Result<Network, Error> {
        let Conf { ovsdb, master, tx_checksum, timeout, vif } = call.config.decode()?;
        if !master.is_empty() {
            interface::check_name("master", &master)?;
        }
        let tx_checksum = match tx_checksum.as_str() {
            "auto" => None,
            "on" => Some(true),
            "off" => Some(false),
            other => return Err(Error::key("txChecksum", format!("{other:?}"), "not one of auto, on, off")),
        };
        if !(1..=600).contains(&timeout) {
            return Err(Error::key("timeout", timeout, "not within 1..=600 seconds"));
        }
        Ok(Network {
            ovsdb,
            master: (!master.is_empty()).then_some(master),
            tx_checksum,
            timeout: Duration::from_secs(timeout),
            vif: vif.map(|vif| vif.check().context("vif")).transpose()?,
        })
    }

    fn vif(&self) -> Result<&Vif, Error> {
        self.vif.as_ref().ok_or_else(|| {
            Error::config(
                "vif: missing: `weft agent` adds it after `weft controller --neutron` has created the port",
            )
        })
    }
}

impl VifConf {
    fn check(self) -> Result<Vif, Error> {
        let VifConf { id, mac: mac_text, kind, bridge, vlan_id, mtu, result } = self;
        let is_id = id.len() == 36 && id.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
        if !is_id {
            return Err(Error::key("id", format!("{id:?}"), "not the id of a port"));
        }
        let mac = interface::ethernet_address("mac", &mac_text)?;
        let method = match kind.as_str() {
            "ovs" | "bridge" => {
                interface::check_name("bridge", &bridge)?;
                PlugMethod::Switch { bridge, hybrid: kind == "bridge" }
            }
            "vlan" if (1..=4094).contains(&vlan_id) => PlugMethod::Vlan(vlan_id),
            "vlan" => return Err(Error::key("vlanId", vlan_id, "not within 1..=4094")),
            "macvlan" => PlugMethod::Macvlan,
            other => {
                return Err(Error::key(
                    "kind",
                    format!("{other:?}"),
                    "not one of ovs, bridge, vlan, macvlan",
                ));
            }
        };
        let (_, given) = Success::from_value(&result, Version::V1_0_0).context("result")?;
        let mac = mac.ok_or_else(|| Error::config("mac: missing"))?;
        Ok(Vif { id, mac, mac_text, method, mtu: interface::check_mtu(mtu)?, given })
    }
}

impl Vif {
    /// Returns the name of a link on the host: `prefix` and the beginning of the port's id.
    fn named(&self, prefix: &str) -> String {
        let mut name = format!("{prefix}{}", self.id);
        name.truncate(NAME_LENGTH);
        name
    }
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
        interface::sweep(NAME, request)?;
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

/// Creates the links of a port, and returns the name of the one to add to the switch.
///
/// An existing link of the same name is left from an earlier attachment of the port and is replaced.
fn make_links(vif: &Vif, netns: &Netns, name: &str, alias: &str, hybrid: bool) -> Result<String, Error> {
    let mut host = Rtnl::open().or_refused()?;
    let device = vif.named("tap");
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
    let bridge = make(&vif.named("qbr"), NewKind::Bridge { vlan_filtering: false }, None)?.index;
    make(&device, NewKind::Veth(inside), Some(bridge))?;
    let (outer, inner) = (vif.named("qvo"), vif.named("qvb"));
    let peer = Peer { name: &outer, mtu: vif.mtu, mac: None, queues: Queues::ONE, netns: None };
    make(&inner, NewKind::Veth(peer), Some(bridge))?;
    let outer_link = host.link(&outer).or_refused()?;
    host.set_up(outer_link.index, &outer).or_refused()?;
    Ok(outer)
}

/// Creates the interface of a nested port.
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

/// Removes the attachment's port from the switch, and its links from the host.
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

/// Removes from the switch the ports that `matches` selects by owner tag, and those whose link is gone. Returns the
/// host's links and the result. If the switch is not reachable, a later call removes the ports.
///
/// The ports are listed before the links, because a port is added after its link. In the other order, the port of a
/// concurrent ADD could seem to have no link.
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
