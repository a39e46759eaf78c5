//! Network interfaces: what they are, finding them, changing them, removing them.
//!
//! Creating is in [`create`], what only bridges know in [`bridge`].
//!
//! Source: rtnetlink(7) RTM_NEWLINK/GETLINK/SETLINK/DELLINK; kernel `include/uapi/linux/if_link.h`.

pub mod bridge;
pub mod create;

use std::os::fd::{AsFd, AsRawFd};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{
    InfoBridge, InfoBridgePort, InfoData, InfoIpVlan, InfoKind, InfoMacVlan, InfoPortData, InfoVlan, InfoVrf,
    LinkAttribute, LinkExtentMask, LinkFlags, LinkInfo, LinkLayerType, LinkMessage, State,
};

use crate::error::{Error, Kind};
use crate::netlink::Request;
use crate::rtnl::Rtnl;

/// One interface as the kernel describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// Its index, unique in its namespace.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// The driver's name (`veth`, `bridge`, …); empty for hardware.
    pub kind: String,
    /// Hardware address; empty if it has none.
    pub mac: Vec<u8>,
    /// MTU in bytes.
    pub mtu: u32,
    /// Administratively up.
    pub up: bool,
    /// The operational state allows traffic (RFC 2863 "up"; "unknown" counts for drivers that never say).
    pub running: bool,
    /// Is it the loopback interface?
    pub loopback: bool,
    /// Asked to take all packets, by `ip link set promisc on` or by a user of it.
    pub promiscuous: bool,
    /// Asked to take all multicast packets.
    pub all_multicast: bool,
    /// Index of the bridge, bond or VRF it is a port of.
    pub master: Option<u32>,
    /// Index of the parent (macvlan, vlan) or of the other end (veth), maybe in another namespace.
    pub link: Option<u32>,
    /// Id, in this namespace, of the namespace `link` counts in, if it is another one.
    pub link_netns_id: Option<i32>,
    /// Group number, 0 by default.
    pub group: u32,
    /// `ifalias`; empty if none.
    pub alias: String,
    /// Length of the transmit queue, in packets.
    pub tx_queue_length: u32,
    /// What only its kind has.
    pub detail: Detail,
    /// What it has as a bridge's port.
    pub port: Option<BridgePort>,
}

/// Attributes of one kind of link.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Detail {
    /// None that we read.
    #[default]
    None,
    /// A bridge.
    Bridge {
        /// Does it filter by VLAN? Absent if the kernel was built without.
        vlan_filtering: Option<bool>,
    },
    /// A VLAN interface.
    Vlan {
        /// VLAN id, 0–4094.
        id: u16,
    },
    /// A macvlan.
    Macvlan {
        /// How its siblings are reached.
        mode: Option<create::MacvlanMode>,
    },
    /// An ipvlan.
    Ipvlan {
        /// On which layer it works.
        mode: Option<create::IpvlanMode>,
    },
    /// A VRF.
    Vrf {
        /// Its routing table.
        table: u32,
    },
}

/// Attributes of a bridge's port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BridgePort {
    /// Frames may leave by the port they came in.
    pub hairpin: bool,
    /// Isolated ports reach only ports that are not.
    pub isolated: bool,
}

/// A change to a link; only what is set is changed.
#[derive(Clone, Debug, Default)]
pub struct Change<'a> {
    /// `up` or `down`.
    pub up: Option<bool>,
    /// New name; the link must be down on kernels before 6.5.
    pub name: Option<&'a str>,
    /// New MTU in bytes.
    pub mtu: Option<u32>,
    /// New hardware address.
    pub mac: Option<&'a [u8]>,
    /// Take all packets.
    pub promiscuous: Option<bool>,
    /// Take all multicast packets.
    pub all_multicast: Option<bool>,
    /// Length of the transmit queue, in packets.
    pub tx_queue_length: Option<u32>,
    /// New master; `Some(0)` leaves the old one.
    pub master: Option<u32>,
    /// New group.
    pub group: Option<u32>,
    /// New alias; `Some("")` removes it.
    pub alias: Option<&'a str>,
}

impl Link {
    fn from_message(message: LinkMessage) -> Link {
        let flags = message.header.flags;
        let mut link = Link {
            index: message.header.index,
            up: flags.contains(LinkFlags::Up),
            promiscuous: flags.contains(LinkFlags::Promisc),
            all_multicast: flags.contains(LinkFlags::Allmulti),
            loopback: message.header.link_layer_type == LinkLayerType::Loopback,
            ..Link::default()
        };
        for attribute in message.attributes {
            match attribute {
                LinkAttribute::IfName(name) => link.name = name,
                LinkAttribute::Address(mac) => link.mac = mac,
                LinkAttribute::Mtu(mtu) => link.mtu = mtu,
                LinkAttribute::OperState(state) => {
                    link.running = matches!(state, State::Up | State::Unknown) && link.up;
                }
                LinkAttribute::Controller(index) if index != 0 => link.master = Some(index),
                LinkAttribute::Link(index) => link.link = Some(index),
                LinkAttribute::LinkNetNsId(id) => link.link_netns_id = Some(id),
                LinkAttribute::Group(group) => link.group = group,
                LinkAttribute::IfAlias(alias) => link.alias = alias,
                LinkAttribute::TxQueueLen(length) => link.tx_queue_length = length,
                LinkAttribute::LinkInfo(infos) => link.read_infos(infos),
                _ => {}
            }
        }
        link
    }

    fn read_infos(&mut self, infos: Vec<LinkInfo>) {
        for info in infos {
            match info {
                LinkInfo::Kind(kind) => self.kind = kind_name(&kind),
                LinkInfo::Data(data) => self.detail = Detail::from_data(data),
                LinkInfo::PortData(InfoPortData::BridgePort(attributes)) => {
                    let mut port = BridgePort::default();
                    for attribute in attributes {
                        match attribute {
                            InfoBridgePort::HairpinMode(on) => port.hairpin = on,
                            InfoBridgePort::Isolated(on) => port.isolated = on,
                            _ => {}
                        }
                    }
                    self.port = Some(port);
                }
                _ => {}
            }
        }
    }
}

impl Detail {
    fn from_data(data: InfoData) -> Detail {
        match data {
            InfoData::Bridge(list) => Detail::Bridge {
                vlan_filtering: list.iter().find_map(|info| match info {
                    InfoBridge::VlanFiltering(on) => Some(*on),
                    _ => None,
                }),
            },
            InfoData::Vlan(list) => Detail::Vlan {
                id: list
                    .iter()
                    .find_map(|info| match info {
                        InfoVlan::Id(id) => Some(*id),
                        _ => None,
                    })
                    .unwrap_or_default(),
            },
            InfoData::MacVlan(list) => Detail::Macvlan {
                mode: list.iter().find_map(|info| match info {
                    InfoMacVlan::Mode(mode) => create::MacvlanMode::from_kernel(mode),
                    _ => None,
                }),
            },
            InfoData::IpVlan(list) => Detail::Ipvlan {
                mode: list.iter().find_map(|info| match info {
                    InfoIpVlan::Mode(mode) => create::IpvlanMode::from_kernel(mode),
                    _ => None,
                }),
            },
            InfoData::Vrf(list) => Detail::Vrf {
                table: list
                    .iter()
                    .find_map(|info| match info {
                        InfoVrf::TableId(table) => Some(*table),
                        _ => None,
                    })
                    .unwrap_or_default(),
            },
            _ => Detail::None,
        }
    }
}

/// The driver's name as `ip -d link` prints it.
fn kind_name(kind: &InfoKind) -> String {
    kind.to_string()
}

impl Rtnl {
    /// The link of this name. `ip -d link show dev NAME`
    ///
    /// # Errors
    /// [`Kind::Absent`] if there is none.
    pub fn link(&mut self, name: &str) -> Result<Link, Error> {
        let mut message = query();
        message.attributes.push(LinkAttribute::IfName(name.to_owned()));
        self.one_link(message, || format!("find link {name}"))
    }

    /// The link of this index.
    pub fn link_at(&mut self, index: u32) -> Result<Link, Error> {
        let mut message = query();
        message.header.index = index;
        self.one_link(message, || format!("find link with index {index}"))
    }

    /// The links of these indexes, in one exchange.
    pub fn links_at<const N: usize>(&mut self, indexes: [u32; N]) -> Result<[Link; N], Error> {
        let operation = || format!("find links with indexes {indexes:?}");
        let requests = indexes.iter().map(|index| {
            let mut message = query();
            message.header.index = *index;
            Request { flags: 0, message: RouteNetlinkMessage::GetLink(message) }
        });
        let answers = self.ask_all(requests.collect(), operation)?;
        let links: Vec<Link> = answers.into_iter().filter_map(only_link).collect();
        links.try_into().map_err(|_| Error::protocol(operation(), "the kernel did not answer for each"))
    }

    /// The link of this name, or `None`.
    pub fn find_link(&mut self, name: &str) -> Result<Option<Link>, Error> {
        match self.link(name) {
            Ok(link) => Ok(Some(link)),
            Err(error) if error.kind() == Kind::Absent => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Every link. `ip -d link`
    pub fn links(&mut self) -> Result<Vec<Link>, Error> {
        let answers = self.dump(&RouteNetlinkMessage::GetLink(query()), || "list links".to_owned())?;
        Ok(answers.into_iter().filter_map(only_link).collect())
    }

    fn one_link(&mut self, message: LinkMessage, operation: impl Fn() -> String) -> Result<Link, Error> {
        let answers = self.ask(RouteNetlinkMessage::GetLink(message), &operation)?;
        let found = answers.into_iter().find_map(only_link);
        found.ok_or_else(|| Error::protocol(operation(), "the kernel gave no answer"))
    }

    /// Changes a link. `ip link set dev NAME …`; `name` is for the error's text.
    pub fn change_link(&mut self, index: u32, name: &str, change: &Change<'_>) -> Result<(), Error> {
        let message = RouteNetlinkMessage::SetLink(change.message(index));
        self.execute(0, message, || format!("change link {name}{}", change.describe()))
    }

    /// Sets a link up. `ip link set dev NAME up`
    pub fn set_up(&mut self, index: u32, name: &str) -> Result<(), Error> {
        self.change_link(index, name, &Change { up: Some(true), ..Change::default() })
    }

    /// Moves a link to another namespace, perhaps renaming it on the way.
    ///
    /// `ip link set dev NAME netns PATH [name NEW]`
    pub fn move_link(
        &mut self,
        index: u32,
        name: &str,
        netns: &crate::Netns,
        new_name: Option<&str>,
    ) -> Result<(), Error> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        message.attributes.push(LinkAttribute::NetNsFd(netns.as_fd().as_raw_fd()));
        if let Some(new_name) = new_name {
            message.attributes.push(LinkAttribute::IfName(new_name.to_owned()));
        }
        self.execute(0, RouteNetlinkMessage::SetLink(message), || format!("move link {name}"))
    }

    /// Removes a link. `ip link del dev NAME`
    ///
    /// Waits for the kernel's grace period: about 20 ms, whatever the link.
    pub fn delete_link(&mut self, index: u32, name: &str) -> Result<(), Error> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        self.execute(0, RouteNetlinkMessage::DelLink(message), || format!("delete link {name}"))
    }

    /// Removes several links for one grace period: they are put in `group`, and the group is removed.
    ///
    /// `ip link set dev NAME group N` for each, then `ip link del group N`. No link of anybody else may
    /// be in `group`. Links that are gone already are left out; so are those the kernel will not give
    /// up this way (hardware), which the caller finds still there.
    pub fn delete_links(&mut self, indexes: &[u32], group: u32) -> Result<(), Error> {
        let mut grouped = 0;
        for index in indexes {
            let change = Change { group: Some(group), ..Change::default() };
            match self.change_link(*index, &format!("with index {index}"), &change) {
                Ok(()) => grouped += 1,
                Err(error) if error.kind() == Kind::Absent => {}
                Err(error) => return Err(error),
            }
        }
        if grouped == 0 {
            return Ok(());
        }
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::Group(group));
        self.execute(0, RouteNetlinkMessage::DelLink(message), || {
            format!("delete {grouped} links of group {group}")
        })
    }

    /// Creates a link. `ip link add …`, see [`create::NewLink`].
    ///
    /// # Errors
    /// [`Kind::Exists`] if the name is taken.
    pub fn add_link(&mut self, link: &create::NewLink<'_>) -> Result<(), Error> {
        let flags = NLM_F_CREATE | NLM_F_EXCL;
        let mut requests = vec![Request { flags, message: RouteNetlinkMessage::NewLink(link.message()) }];
        // The kernel takes an alias only for a link that exists: a second message of the same datagram.
        // The whole datagram is worked through within one system call, so nobody can be killed between.
        if let Some(alias) = link.alias.filter(|_| link.netns.is_none()) {
            requests.push(Request {
                flags: 0,
                message: RouteNetlinkMessage::SetLink(alias_message(link.name, alias)),
            });
        }
        self.execute_all(requests, |_| format!("create {link}"))
    }

    /// Several changes at once; on failure those after it have still been made.
    pub fn change_links(&mut self, changes: &[(u32, &str, Change<'_>)]) -> Result<(), Error> {
        let requests = changes.iter().map(|(index, _, change)| Request {
            flags: 0,
            message: RouteNetlinkMessage::SetLink(change.message(*index)),
        });
        self.execute_all(requests.collect(), |at| match changes.get(at) {
            Some((_, name, change)) => format!("change link {name}{}", change.describe()),
            None => "change links".to_owned(),
        })
    }
}

impl Change<'_> {
    fn message(&self, index: u32) -> LinkMessage {
        let Change { up, name, mtu, mac, promiscuous, all_multicast, tx_queue_length, master, group, alias } =
            self;
        let mut message = LinkMessage::default();
        message.header.index = index;
        let flags =
            [(up, LinkFlags::Up), (promiscuous, LinkFlags::Promisc), (all_multicast, LinkFlags::Allmulti)];
        for (wanted, flag) in flags {
            if let Some(on) = wanted {
                message.header.change_mask |= flag;
                message.header.flags.set(flag, *on);
            }
        }
        let list = &mut message.attributes;
        list.extend(name.map(|name| LinkAttribute::IfName(name.to_owned())));
        list.extend(mtu.map(LinkAttribute::Mtu));
        list.extend(mac.map(|mac| LinkAttribute::Address(mac.to_vec())));
        list.extend(tx_queue_length.map(LinkAttribute::TxQueueLen));
        list.extend(master.map(LinkAttribute::Controller));
        list.extend(group.map(LinkAttribute::Group));
        list.extend(alias.map(|alias| LinkAttribute::IfAlias(alias.to_owned())));
        message
    }

    /// What is changed, as `ip link set` would be told: for error texts.
    fn describe(&self) -> String {
        let Change { up, name, mtu, mac, promiscuous, all_multicast, tx_queue_length, master, group, alias } =
            self;
        let switch = |on: &bool| if *on { "on" } else { "off" };
        let mut text = String::new();
        let mut say = |part: Option<String>| {
            if let Some(part) = part {
                text.push(' ');
                text.push_str(&part);
            }
        };
        say(up.map(|on| if on { "up" } else { "down" }.to_owned()));
        say(name.map(|name| format!("name {name}")));
        say(mtu.map(|mtu| format!("mtu {mtu}")));
        say(mac.map(|mac| format!("address {}", mac_text(mac))));
        say(promiscuous.as_ref().map(|on| format!("promisc {}", switch(on))));
        say(all_multicast.as_ref().map(|on| format!("allmulticast {}", switch(on))));
        say(tx_queue_length.map(|length| format!("txqueuelen {length}")));
        say(master.map(|master| format!("master index {master}")));
        say(group.map(|group| format!("group {group}")));
        say(alias.map(|alias| format!("alias {alias:?}")));
        text
    }
}

/// A hardware address as the kernel prints it.
pub fn mac_text(mac: &[u8]) -> String {
    let parts: Vec<String> = mac.iter().map(|byte| format!("{byte:02x}")).collect();
    parts.join(":")
}

/// Sets the alias of the link of this name.
fn alias_message(name: &str, alias: &str) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.attributes.push(LinkAttribute::IfName(name.to_owned()));
    message.attributes.push(LinkAttribute::IfAlias(alias.to_owned()));
    message
}

/// Asks for a link without its counters.
fn query() -> LinkMessage {
    let mut message = LinkMessage::default();
    message.attributes.push(LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats]));
    message
}

fn only_link(message: RouteNetlinkMessage) -> Option<Link> {
    match message {
        RouteNetlinkMessage::NewLink(message) => Some(Link::from_message(message)),
        _ => None,
    }
}
