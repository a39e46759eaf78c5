//! What only bridges know: attributes of a port, and its VLANs.
//!
//! Source: bridge(8); kernel `net/bridge/br_netlink.c`.

use netlink_packet_route::link::{
    AfSpecBridge, BridgeVlanInfo, BridgeVlanInfoFlags, InfoBridgePort, InfoPortData, InfoPortKind,
    LinkAttribute, LinkExtentMask, LinkInfo, LinkMessage,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::BridgePort;
use crate::error::Error;
use crate::rtnl::Rtnl;

/// One VLAN of a bridge's port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PortVlan {
    /// VLAN id, 1–4094.
    pub id: u16,
    /// Untagged frames coming in belong to it.
    pub pvid: bool,
    /// Its frames leave untagged.
    pub untagged: bool,
}

impl Rtnl {
    /// Sets the attributes of a bridge's port.
    ///
    /// `ip link set dev NAME type bridge_slave hairpin on isolated on`
    pub fn change_bridge_port(&mut self, index: u32, name: &str, port: BridgePort) -> Result<(), Error> {
        let BridgePort { hairpin, isolated } = port;
        let mut message = LinkMessage::default();
        message.header.index = index;
        message.attributes.push(LinkAttribute::LinkInfo(vec![
            LinkInfo::PortKind(InfoPortKind::Bridge),
            LinkInfo::PortData(InfoPortData::BridgePort(vec![
                InfoBridgePort::HairpinMode(hairpin),
                InfoBridgePort::Isolated(isolated),
            ])),
        ]));
        self.execute(0, RouteNetlinkMessage::NewLink(message), || {
            format!("change bridge port {name} hairpin {hairpin} isolated {isolated}")
        })
    }

    /// Adds a VLAN to a port, or to the bridge itself. `bridge vlan add dev NAME vid ID [pvid] [untagged] [self]`
    pub fn add_port_vlan(&mut self, index: u32, name: &str, vlan: PortVlan, on: VlanOn) -> Result<(), Error> {
        let message = vlan_message(index, vlan, on);
        self.execute(0, RouteNetlinkMessage::SetLink(message), || {
            format!("add vlan {} to port {name}", vlan.id)
        })
    }

    /// Removes a VLAN from a port. `bridge vlan del dev NAME vid ID`
    pub fn delete_port_vlan(&mut self, index: u32, name: &str, id: u16, on: VlanOn) -> Result<(), Error> {
        let message = vlan_message(index, PortVlan { id, pvid: false, untagged: false }, on);
        self.execute(0, RouteNetlinkMessage::DelLink(message), || {
            format!("remove vlan {id} from port {name}")
        })
    }

    /// The VLANs of a port. `bridge vlan show dev NAME`
    pub fn port_vlans(&mut self, index: u32, name: &str) -> Result<Vec<PortVlan>, Error> {
        let mut query = LinkMessage::default();
        query.header.interface_family = AddressFamily::Bridge;
        query.attributes.push(LinkAttribute::ExtMask(vec![LinkExtentMask::Brvlan]));
        let answers =
            self.dump(&RouteNetlinkMessage::GetLink(query), || format!("list vlans of port {name}"))?;
        let of_port = answers.into_iter().filter_map(|answer| match answer {
            RouteNetlinkMessage::NewLink(message) if message.header.index == index => Some(message),
            _ => None,
        });
        let mut vlans = Vec::new();
        for message in of_port {
            for attribute in message.attributes {
                let LinkAttribute::AfSpecBridge(list) = attribute else { continue };
                vlans.extend(list.into_iter().filter_map(|info| match info {
                    AfSpecBridge::VlanInfo(info) => Some(PortVlan {
                        id: info.vid,
                        pvid: info.flags.contains(BridgeVlanInfoFlags::Pvid),
                        untagged: info.flags.contains(BridgeVlanInfoFlags::Untagged),
                    }),
                    _ => None,
                }));
            }
        }
        Ok(vlans)
    }
}

/// Where a VLAN entry belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VlanOn {
    /// A port of a bridge.
    Port,
    /// The bridge itself (`self`).
    Bridge,
}

fn vlan_message(index: u32, vlan: PortVlan, on: VlanOn) -> LinkMessage {
    let mut flags = BridgeVlanInfoFlags::empty();
    flags.set(BridgeVlanInfoFlags::Pvid, vlan.pvid);
    flags.set(BridgeVlanInfoFlags::Untagged, vlan.untagged);
    let mut list = Vec::new();
    if on == VlanOn::Bridge {
        list.push(AfSpecBridge::Flags(netlink_packet_route::link::BridgeFlag::LowerDev));
    }
    list.push(AfSpecBridge::VlanInfo(BridgeVlanInfo { flags, vid: vlan.id }));
    let mut message = LinkMessage::default();
    message.header.interface_family = AddressFamily::Bridge;
    message.header.index = index;
    message.attributes.push(LinkAttribute::AfSpecBridge(list));
    message
}
