//! Creating links: everything about a new one in a single request, so that it never exists half-made.
//!
//! Source: ip-link(8); kernel `net/core/rtnetlink.c` (`rtnl_newlink`), `drivers/net/veth.c`.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd};

use netlink_packet_route::link::{
    InfoBridge, InfoData, InfoIpVlan, InfoKind, InfoMacVlan, InfoVeth, InfoVlan, InfoVrf, IpVlanMode,
    LinkAttribute, LinkFlags, LinkInfo, LinkMessage, MacVlanMode,
};

use crate::Netns;

/// A link to create. `ip link add name NAME …`
#[derive(Clone, Debug)]
pub struct NewLink<'a> {
    /// Its name.
    pub name: &'a str,
    /// What it is.
    pub kind: NewKind<'a>,
    /// MTU in bytes; the kernel's choice if absent.
    pub mtu: Option<u32>,
    /// Hardware address; the kernel's choice if absent.
    pub mac: Option<&'a [u8]>,
    /// Index of its master.
    pub master: Option<u32>,
    /// Create it up. Not possible for the far end of a veth.
    pub up: bool,
    /// Length of the transmit queue, in packets.
    pub tx_queue_length: Option<u32>,
    /// `ifalias`, at most 255 bytes; only for a link in the socket's own namespace.
    pub alias: Option<&'a str>,
    /// The namespace to create it in; the socket's own if absent.
    pub netns: Option<&'a Netns>,
}

/// What kind of link to create.
#[derive(Clone, Debug)]
pub enum NewKind<'a> {
    /// `type bridge`
    Bridge {
        /// `vlan_filtering 1`
        vlan_filtering: bool,
    },
    /// `type veth peer name …`
    Veth(Peer<'a>),
    /// `link PARENT type macvlan mode …`
    Macvlan {
        /// Index of the parent, in the socket's namespace.
        parent: u32,
        /// How siblings are reached.
        mode: MacvlanMode,
        /// Length of the queue for broadcasts and multicasts, in packets.
        broadcast_queue_length: Option<u32>,
    },
    /// `link PARENT type ipvlan mode …`
    Ipvlan {
        /// Index of the parent, in the socket's namespace.
        parent: u32,
        /// On which layer it works.
        mode: IpvlanMode,
    },
    /// `link PARENT type vlan id …`
    Vlan {
        /// Index of the parent, in the socket's namespace.
        parent: u32,
        /// VLAN id, 0–4094.
        id: u16,
    },
    /// `type vrf table …`
    Vrf {
        /// Its routing table.
        table: u32,
    },
    /// `type dummy`
    Dummy,
    /// `type ifb`
    Ifb,
}

/// The other end of a veth pair.
#[derive(Clone, Debug)]
pub struct Peer<'a> {
    /// Its name.
    pub name: &'a str,
    /// MTU in bytes.
    pub mtu: Option<u32>,
    /// Hardware address.
    pub mac: Option<&'a [u8]>,
    /// The namespace to create it in; the near end's if absent.
    pub netns: Option<&'a Netns>,
}

/// `mode` of a macvlan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MacvlanMode {
    /// Siblings reach each other directly.
    Bridge,
    /// Siblings do not reach each other.
    Private,
    /// Siblings reach each other through the switch outside.
    Vepa,
    /// The only one on its parent, with the parent's address.
    Passthru,
}

/// `mode` of an ipvlan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpvlanMode {
    /// Like a switch.
    L2,
    /// Like a router, without host netfilter.
    L3,
    /// Like a router, through the host's netfilter.
    L3s,
}

impl MacvlanMode {
    pub(super) fn from_kernel(mode: &MacVlanMode) -> Option<MacvlanMode> {
        match mode {
            MacVlanMode::Bridge => Some(MacvlanMode::Bridge),
            MacVlanMode::Private => Some(MacvlanMode::Private),
            MacVlanMode::Vepa => Some(MacvlanMode::Vepa),
            MacVlanMode::Passthrough => Some(MacvlanMode::Passthru),
            _ => None,
        }
    }

    fn to_kernel(self) -> MacVlanMode {
        match self {
            MacvlanMode::Bridge => MacVlanMode::Bridge,
            MacvlanMode::Private => MacVlanMode::Private,
            MacvlanMode::Vepa => MacVlanMode::Vepa,
            MacvlanMode::Passthru => MacVlanMode::Passthrough,
        }
    }
}

impl IpvlanMode {
    pub(super) fn from_kernel(mode: &IpVlanMode) -> Option<IpvlanMode> {
        match mode {
            IpVlanMode::L2 => Some(IpvlanMode::L2),
            IpVlanMode::L3 => Some(IpvlanMode::L3),
            IpVlanMode::L3S => Some(IpvlanMode::L3s),
            _ => None,
        }
    }

    fn to_kernel(self) -> IpVlanMode {
        match self {
            IpvlanMode::L2 => IpVlanMode::L2,
            IpvlanMode::L3 => IpVlanMode::L3,
            IpvlanMode::L3s => IpVlanMode::L3S,
        }
    }
}

impl<'a> NewLink<'a> {
    /// A link with this name and kind, down, everything else left to the kernel.
    pub fn new(name: &'a str, kind: NewKind<'a>) -> NewLink<'a> {
        NewLink {
            name,
            kind,
            mtu: None,
            mac: None,
            master: None,
            up: false,
            tx_queue_length: None,
            alias: None,
            netns: None,
        }
    }

    pub(super) fn message(&self) -> LinkMessage {
        let NewLink { name, kind, mtu, mac, master, up, tx_queue_length, alias: _, netns } = self;
        let mut message = LinkMessage::default();
        if *up {
            message.header.flags = LinkFlags::Up;
            message.header.change_mask = LinkFlags::Up;
        }
        let list = &mut message.attributes;
        list.push(LinkAttribute::IfName((*name).to_owned()));
        list.extend(mtu.map(LinkAttribute::Mtu));
        list.extend(mac.map(|mac| LinkAttribute::Address(mac.to_vec())));
        list.extend(master.map(LinkAttribute::Controller));
        list.extend(tx_queue_length.map(LinkAttribute::TxQueueLen));
        list.extend(netns.map(|netns| LinkAttribute::NetNsFd(netns.as_fd().as_raw_fd())));
        list.extend(kind.parent().map(LinkAttribute::Link));
        list.push(LinkAttribute::LinkInfo(kind.info()));
        message
    }
}

impl NewKind<'_> {
    fn parent(&self) -> Option<u32> {
        match self {
            NewKind::Macvlan { parent, .. }
            | NewKind::Ipvlan { parent, .. }
            | NewKind::Vlan { parent, .. } => Some(*parent),
            NewKind::Bridge { .. }
            | NewKind::Veth(_)
            | NewKind::Vrf { .. }
            | NewKind::Dummy
            | NewKind::Ifb => None,
        }
    }

    fn info(&self) -> Vec<LinkInfo> {
        let (kind, data) = match self {
            NewKind::Bridge { vlan_filtering } => {
                let data = vlan_filtering.then(|| InfoData::Bridge(vec![InfoBridge::VlanFiltering(true)]));
                (InfoKind::Bridge, data)
            }
            NewKind::Veth(peer) => (InfoKind::Veth, Some(InfoData::Veth(InfoVeth::Peer(peer.message())))),
            NewKind::Macvlan { parent: _, mode, broadcast_queue_length } => {
                let mut data = vec![InfoMacVlan::Mode(mode.to_kernel())];
                data.extend(broadcast_queue_length.map(InfoMacVlan::BcQueueLen));
                (InfoKind::MacVlan, Some(InfoData::MacVlan(data)))
            }
            NewKind::Ipvlan { parent: _, mode } => {
                (InfoKind::IpVlan, Some(InfoData::IpVlan(vec![InfoIpVlan::Mode(mode.to_kernel())])))
            }
            NewKind::Vlan { parent: _, id } => {
                (InfoKind::Vlan, Some(InfoData::Vlan(vec![InfoVlan::Id(*id)])))
            }
            NewKind::Vrf { table } => (InfoKind::Vrf, Some(InfoData::Vrf(vec![InfoVrf::TableId(*table)]))),
            NewKind::Dummy => (InfoKind::Dummy, None),
            NewKind::Ifb => (InfoKind::Ifb, None),
        };
        let mut info = vec![LinkInfo::Kind(kind)];
        info.extend(data.map(LinkInfo::Data));
        info
    }

    fn name(&self) -> &'static str {
        match self {
            NewKind::Bridge { .. } => "bridge",
            NewKind::Veth(_) => "veth",
            NewKind::Macvlan { .. } => "macvlan",
            NewKind::Ipvlan { .. } => "ipvlan",
            NewKind::Vlan { .. } => "vlan",
            NewKind::Vrf { .. } => "vrf",
            NewKind::Dummy => "dummy",
            NewKind::Ifb => "ifb",
        }
    }
}

impl Peer<'_> {
    fn message(&self) -> LinkMessage {
        let Peer { name, mtu, mac, netns } = self;
        let mut message = LinkMessage::default();
        let list = &mut message.attributes;
        list.push(LinkAttribute::IfName((*name).to_owned()));
        list.extend(mtu.map(LinkAttribute::Mtu));
        list.extend(mac.map(|mac| LinkAttribute::Address(mac.to_vec())));
        list.extend(netns.map(|netns| LinkAttribute::NetNsFd(netns.as_fd().as_raw_fd())));
        message
    }
}

/// `veth veth1a2b with peer net1`, `macvlan net1`: for error texts.
impl fmt::Display for NewLink<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind.name(), self.name)?;
        if let NewKind::Veth(peer) = &self.kind {
            write!(f, " with peer {}", peer.name)?;
        }
        Ok(())
    }
}
