//! Creates links, each with a single request, so that no incomplete link is ever visible.
//!
//! Source: ip-link(8); kernel `net/core/rtnetlink.c` (`rtnl_newlink`), `drivers/net/veth.c`.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd};

use super::{Change, UP, attribute, detail, info, set_flags};
use crate::Netns;
use crate::attributes::Attributes;
use crate::rtnl::message::{Message, NEW_LINK};

/// Link to create. `ip link add name NAME …`
#[derive(Clone, Debug)]
pub struct NewLink<'a> {
    /// Interface name.
    pub name: &'a str,
    /// Link kind.
    pub kind: NewKind<'a>,
    /// MTU in bytes; `None` for the kernel's default.
    pub mtu: Option<u32>,
    /// MAC address; `None` lets the kernel choose.
    pub mac: Option<&'a [u8]>,
    /// Index of the master, for example a bridge.
    pub master: Option<u32>,
    /// Whether to set the link up. The peer of a veth cannot be set up this way.
    pub up: bool,
    /// Transmit queue length in packets.
    pub tx_queue_length: Option<u32>,
    /// `ifalias`, at most 255 bytes; only for a link in the socket's own namespace.
    pub alias: Option<&'a str>,
    /// Whether to generate no IPv6 link-local address; only for a link in the socket's own namespace.
    pub no_link_local: bool,
    /// Namespace to create the link in; `None` means the socket's own.
    pub netns: Option<&'a Netns>,
}

/// Kind and kind-specific settings for a new link.
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
        /// Parent index in the socket's namespace.
        parent: u32,
        /// Mode, which decides how interfaces on the same parent reach each other.
        mode: MacvlanMode,
        /// Queue length for broadcasts and multicasts, in packets.
        broadcast_queue_length: Option<u32>,
    },
    /// `link PARENT type ipvlan mode …`
    Ipvlan {
        /// Parent index in the socket's namespace.
        parent: u32,
        /// Layer on which the interface works.
        mode: IpvlanMode,
    },
    /// `link PARENT type vlan id …`
    Vlan {
        /// Parent index in the socket's namespace.
        parent: u32,
        /// VLAN id, 0–4094.
        id: u16,
    },
    /// `type vrf table …`
    Vrf {
        /// Routing table.
        table: u32,
    },
    /// `type dummy`
    Dummy,
    /// `type ifb`
    Ifb,
}

/// Other end of a veth pair.
#[derive(Clone, Debug)]
pub struct Peer<'a> {
    /// Interface name.
    pub name: &'a str,
    /// MTU in bytes.
    pub mtu: Option<u32>,
    /// MAC address; `None` lets the kernel choose.
    pub mac: Option<&'a [u8]>,
    /// Queues on both ends; see [`Queues`].
    pub queues: Queues,
    /// Namespace to create the peer in; `None` means where the first end is.
    pub netns: Option<&'a Netns>,
}

/// Number of transmit and receive queues on a veth pair: `numtxqueues N numrxqueues N` at either end.
///
/// By default, kernel 5.15 and later creates one queue per possible processor and then disables all but one. To do so,
/// it waits under the lock for all link changes until no processor uses the queues, once for each end. That takes a
/// third of the time needed for a pair, and many times as much on busy processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queues(u32);

impl Queues {
    /// One queue, which is what the kernel leaves in use anyway.
    pub const ONE: Queues = Queues(1);
    /// Maximum that the kernel accepts.
    pub const MAX: u32 = 4096;

    /// Returns this number of queues; `None` if the kernel would not accept it.
    #[must_use]
    pub fn new(number: u32) -> Option<Queues> {
        (1..=Queues::MAX).contains(&number).then_some(Queues(number))
    }

    fn write(self, list: &mut Attributes) {
        list.ne32(attribute::TX_QUEUES, self.0);
        list.ne32(attribute::RX_QUEUES, self.0);
    }
}

/// Macvlan `mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MacvlanMode {
    /// Interfaces on the parent reach each other directly.
    Bridge,
    /// Interfaces on the parent do not reach each other.
    Private,
    /// Interfaces on the parent reach each other through the external switch.
    Vepa,
    /// The parent has only this interface, which uses the parent's MAC address.
    Passthru,
}

/// Ipvlan `mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpvlanMode {
    /// Layer 2, like a switch.
    L2,
    /// Layer 3, like a router, bypassing netfilter on the host.
    L3,
    /// Layer 3, like a router, with netfilter on the host.
    L3s,
}

impl MacvlanMode {
    pub(super) fn from_kernel(number: u32) -> Option<MacvlanMode> {
        let all = [MacvlanMode::Bridge, MacvlanMode::Private, MacvlanMode::Vepa, MacvlanMode::Passthru];
        all.into_iter().find(|mode| mode.number() == number)
    }

    /// `MACVLAN_MODE_…`
    fn number(self) -> u32 {
        match self {
            MacvlanMode::Private => 1,
            MacvlanMode::Vepa => 2,
            MacvlanMode::Bridge => 4,
            MacvlanMode::Passthru => 8,
        }
    }
}

impl IpvlanMode {
    pub(super) fn from_kernel(number: u16) -> Option<IpvlanMode> {
        [IpvlanMode::L2, IpvlanMode::L3, IpvlanMode::L3s].into_iter().find(|mode| mode.number() == number)
    }

    /// `IPVLAN_MODE_…`
    fn number(self) -> u16 {
        match self {
            IpvlanMode::L2 => 0,
            IpvlanMode::L3 => 1,
            IpvlanMode::L3s => 2,
        }
    }
}

impl<'a> NewLink<'a> {
    /// Describes a link with this name and kind that is down, with defaults for everything else.
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
            no_link_local: false,
            netns: None,
        }
    }

    pub(super) fn message(&self) -> Message {
        let NewLink { name, kind, mtu, mac, master, up, tx_queue_length, alias: _, no_link_local, netns } =
            self;
        let mut message = Message::link(NEW_LINK, 0);
        // The kernel generates the link-local address when the link is set up, so this must happen later.
        if *up && !no_link_local {
            set_flags(&mut message, UP, UP);
        }
        let list = &mut message.attributes;
        end(list, name, *mtu, *mac, *netns);
        let numbers = [
            (attribute::MASTER, *master),
            (attribute::TX_QUEUE_LENGTH, *tx_queue_length),
            (attribute::LINK, kind.parent()),
        ];
        for (kind, value) in numbers {
            if let Some(value) = value {
                list.ne32(kind, value);
            }
        }
        if let NewKind::Veth(peer) = kind {
            peer.queues.write(list);
        }
        list.nested(attribute::INFO, |inner| kind.write(inner));
        message
    }
}

impl NewLink<'_> {
    /// Returns the requests that the kernel accepts only for an existing link, in order.
    pub(super) fn afterwards(&self) -> Vec<Message> {
        let NewLink { name, up, alias, no_link_local, netns, .. } = self;
        if netns.is_some() {
            return Vec::new();
        }
        let of = |change: Change<'_>| Change { name: Some(name), ..change }.message(0);
        let mut messages = Vec::new();
        if alias.is_some() || *no_link_local {
            let link_local = no_link_local.then_some(false);
            messages.push(of(Change { alias: *alias, link_local, ..Change::default() }));
        }
        if *no_link_local && *up {
            messages.push(of(Change { up: Some(true), ..Change::default() }));
        }
        messages
    }
}

/// Writes the attributes that both ends of a pair have.
fn end(list: &mut Attributes, name: &str, mtu: Option<u32>, mac: Option<&[u8]>, netns: Option<&Netns>) {
    list.text(attribute::NAME, name);
    if let Some(mtu) = mtu {
        list.ne32(attribute::MTU, mtu);
    }
    if let Some(mac) = mac {
        list.bytes(attribute::ADDRESS, mac);
    }
    if let Some(netns) = netns {
        list.ne32(attribute::NETNS_DESCRIPTOR, netns.as_fd().as_raw_fd().cast_unsigned());
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

    /// Writes the kind and the attributes that belong to it.
    fn write(&self, info: &mut Attributes) {
        info.text(info::KIND, self.name());
        match self {
            NewKind::Bridge { vlan_filtering: false } | NewKind::Dummy | NewKind::Ifb => info,
            NewKind::Bridge { vlan_filtering: true } => info.nested(info::DATA, |data| {
                data.byte(detail::BRIDGE_VLAN_FILTERING, 1);
            }),
            NewKind::Veth(peer) => info.nested(info::DATA, |data| {
                data.bytes(detail::VETH_PEER, &peer.bytes());
            }),
            NewKind::Macvlan { parent: _, mode, broadcast_queue_length } => info.nested(info::DATA, |data| {
                data.ne32(detail::MACVLAN_MODE, mode.number());
                if let Some(length) = broadcast_queue_length {
                    data.ne32(detail::MACVLAN_BROADCAST_QUEUE, *length);
                }
            }),
            NewKind::Ipvlan { parent: _, mode } => info.nested(info::DATA, |data| {
                data.ne16(detail::IPVLAN_MODE, mode.number());
            }),
            NewKind::Vlan { parent: _, id } => info.nested(info::DATA, |data| {
                data.ne16(detail::VLAN_ID, *id);
            }),
            NewKind::Vrf { table } => info.nested(info::DATA, |data| {
                data.ne32(detail::VRF_TABLE, *table);
            }),
        };
    }

    /// Returns the kernel module that provides this kind, for errors.
    pub(crate) fn module(&self) -> &'static str {
        match self {
            NewKind::Vlan { .. } => "8021q",
            other => other.name(),
        }
    }

    /// Returns the kernel option that a variant of the kind needs beside the module.
    pub(crate) fn option(&self) -> Option<&'static str> {
        matches!(self, NewKind::Bridge { vlan_filtering: true }).then_some("CONFIG_BRIDGE_VLAN_FILTERING")
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
    /// Encodes the peer as an attribute value: a link's fixed part, then the attributes.
    fn bytes(&self) -> Vec<u8> {
        let Peer { name, mtu, mac, queues, netns } = self;
        let mut message = Message::link(NEW_LINK, 0);
        end(&mut message.attributes, name, *mtu, *mac, *netns);
        queues.write(&mut message.attributes);
        [message.fixed(), message.attributes.as_bytes()].concat()
    }
}

/// Formats the link for errors: `veth veth1a2b with peer net1`, `macvlan net1`.
impl fmt::Display for NewLink<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind.name(), self.name)?;
        if let NewKind::Veth(peer) = &self.kind {
            write!(f, " with peer {}", peer.name)?;
        }
        Ok(())
    }
}
