//! Bridge attributes: port options, and port VLANs.
//!
//! Source: bridge(8); kernel `net/bridge/br_netlink.c`.

use super::{BridgePort, attribute, detail, info};
use crate::attributes::{items, ne16_of};
use crate::error::Error;
use crate::rtnl::Rtnl;
use crate::rtnl::message::{BRIDGE, DELETE_LINK, GET_LINK, Message, NEW_LINK, SET_LINK};

/// `RTEXT_FILTER_BRVLAN`: includes the VLANs of ports.
const WITH_VLANS: u32 = 2;
/// `IFLA_BRIDGE_FLAGS`
const FLAGS: u16 = 0;
/// `IFLA_BRIDGE_VLAN_INFO`
const VLAN: u16 = 2;
/// `BRIDGE_FLAGS_SELF`
const SELF: u16 = 2;
/// `BRIDGE_VLAN_INFO_PVID`
const PVID: u16 = 2;
/// `BRIDGE_VLAN_INFO_UNTAGGED`
const UNTAGGED: u16 = 4;

/// VLAN on a bridge port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PortVlan {
    /// VLAN id, 1–4094.
    pub id: u16,
    /// Whether untagged frames that arrive are put into this VLAN.
    pub pvid: bool,
    /// Whether frames in this VLAN leave untagged.
    pub untagged: bool,
}

impl Rtnl {
    /// Sets bridge port attributes.
    ///
    /// `ip link set dev NAME type bridge_slave hairpin on isolated on`
    pub fn change_bridge_port(&mut self, index: u32, name: &str, port: BridgePort) -> Result<(), Error> {
        let BridgePort { hairpin, isolated } = port;
        let mut message = Message::link(NEW_LINK, index);
        message.attributes.nested(attribute::INFO, |info| {
            info.text(info::PORT_KIND, "bridge").nested(info::PORT_DATA, |data| {
                data.byte(detail::PORT_HAIRPIN, hairpin.into()).byte(detail::PORT_ISOLATED, isolated.into());
            });
        });
        self.execute(0, message, || {
            format!("change bridge port {name} hairpin {hairpin} isolated {isolated}")
        })
    }

    /// Adds a VLAN to a port, or to the bridge itself. `bridge vlan add dev NAME vid ID [pvid] [untagged] [self]`
    pub fn add_port_vlan(&mut self, index: u32, name: &str, vlan: PortVlan, on: VlanOn) -> Result<(), Error> {
        let message = vlan_message(SET_LINK, index, vlan, on);
        self.execute(0, message, || format!("add vlan {} to port {name}", vlan.id))
            .map_err(|error| error.of_option("CONFIG_BRIDGE_VLAN_FILTERING"))
    }

    /// Removes a VLAN from a port. `bridge vlan del dev NAME vid ID`
    pub fn delete_port_vlan(&mut self, index: u32, name: &str, id: u16, on: VlanOn) -> Result<(), Error> {
        let message = vlan_message(DELETE_LINK, index, PortVlan { id, pvid: false, untagged: false }, on);
        self.execute(0, message, || format!("remove vlan {id} from port {name}"))
    }

    /// Lists the VLANs on a port. `bridge vlan show dev NAME`
    pub fn port_vlans(&mut self, index: u32, name: &str) -> Result<Vec<PortVlan>, Error> {
        let mut query = Message::link(GET_LINK, 0);
        query.put(0, &[BRIDGE]);
        query.attributes.ne32(attribute::MASK, WITH_VLANS);
        let answers = self.dump(&query, || format!("list vlans of port {name}"))?;
        let of_port = answers.iter().filter(|answer| answer.kind() == NEW_LINK && answer.word_at(4) == index);
        let mut vlans = Vec::new();
        for answer in of_port {
            let entries = answer.attributes.find(attribute::PER_FAMILY).into_iter().flat_map(items);
            vlans.extend(entries.filter(|(kind, _)| *kind == VLAN).filter_map(|(_, value)| {
                let flags = value.get(..2).and_then(ne16_of)?;
                let id = value.get(2..4).and_then(ne16_of)?;
                Some(PortVlan { id, pvid: flags & PVID != 0, untagged: flags & UNTAGGED != 0 })
            }));
        }
        Ok(vlans)
    }
}

/// Where a VLAN entry belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VlanOn {
    /// On a bridge port.
    Port,
    /// On the bridge itself (`self`).
    Bridge,
}

fn vlan_message(kind: u16, index: u32, vlan: PortVlan, on: VlanOn) -> Message {
    let PortVlan { id, pvid, untagged } = vlan;
    let flags = if pvid { PVID } else { 0 } | if untagged { UNTAGGED } else { 0 };
    let mut message = Message::link(kind, index);
    message.put(0, &[BRIDGE]);
    message.attributes.nested(attribute::PER_FAMILY, |inner| {
        if on == VlanOn::Bridge {
            inner.ne16(FLAGS, SELF);
        }
        inner.bytes(VLAN, &[flags.to_ne_bytes(), id.to_ne_bytes()].concat());
    });
    message
}
