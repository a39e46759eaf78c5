//! Network interfaces: attributes, lookup, changes and removal.
//!
//! [`create`] and [`tap`] create links; [`bridge`] handles bridge attributes.
//!
//! Source: rtnetlink(7) RTM_NEWLINK/GETLINK/SETLINK/DELLINK; kernel `include/uapi/linux/if_link.h`.

pub mod bridge;
pub mod counters;
pub mod create;
pub mod device_settings;
pub mod removal;
pub mod snapshot;
pub mod tap;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::fd::{AsFd, AsRawFd};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use rustix::io::Errno;

use crate::attributes::{Attributes, find, items, ne16_of, ne32_of, text};
use crate::error::{Error, Kind};
use crate::link::device_settings::{DeviceSettings, SettingsChange, XdpProgram};
use crate::netlink::{Request, datagram};
use crate::rtnl::Rtnl;
use crate::rtnl::message::{
    DELETE_LINK, DELETE_LINK_PROPERTY, GET_LINK, INET, INET6, Message, NEW_LINK, NEW_LINK_PROPERTY, SET_LINK,
};

/// `IFLA_…`: link attributes.
mod attribute {
    pub(super) const ADDRESS: u16 = 1;
    pub(super) const NAME: u16 = 3;
    pub(super) const MTU: u16 = 4;
    pub(super) const LINK: u16 = 5;
    pub(super) const MASTER: u16 = 10;
    pub(super) const TX_QUEUE_LENGTH: u16 = 13;
    pub(super) const OPERATIONAL_STATE: u16 = 16;
    pub(super) const INFO: u16 = 18;
    pub(super) const ALIAS: u16 = 20;
    pub(super) const PER_FAMILY: u16 = 26;
    pub(super) const GROUP: u16 = 27;
    pub(super) const NETNS_DESCRIPTOR: u16 = 28;
    pub(super) const MASK: u16 = 29;
    pub(super) const TX_QUEUES: u16 = 31;
    pub(super) const RX_QUEUES: u16 = 32;
    pub(super) const CARRIER: u16 = 33;
    pub(super) const LINK_NETNS_ID: u16 = 37;
    pub(super) const PROPERTIES: u16 = 52;
    pub(super) const ALTERNATIVE_NAME: u16 = 53;
    pub(super) const PERMANENT_ADDRESS: u16 = 54;
}

/// `IFLA_INFO_…`: link kind, and the attributes that belong to it.
mod info {
    pub(super) const KIND: u16 = 1;
    pub(super) const DATA: u16 = 2;
    pub(super) const PORT_KIND: u16 = 4;
    pub(super) const PORT_DATA: u16 = 5;
}

/// Attributes by link kind: `IFLA_BR_…`, `IFLA_BRPORT_…`, `IFLA_MACVLAN_…` and so on.
mod detail {
    pub(super) const BRIDGE_VLAN_FILTERING: u16 = 7;
    pub(super) const PORT_STATE: u16 = 1;
    pub(super) const PORT_HAIRPIN: u16 = 4;
    pub(super) const PORT_ISOLATED: u16 = 33;
    pub(super) const VETH_PEER: u16 = 1;
    pub(super) const MACVLAN_MODE: u16 = 1;
    pub(super) const MACVLAN_BROADCAST_QUEUE: u16 = 7;
    pub(super) const IPVLAN_MODE: u16 = 1;
    pub(super) const VLAN_ID: u16 = 1;
    pub(super) const VRF_TABLE: u16 = 1;
}

/// `IFLA_INET_CONF`
const INET_CONF: u16 = 1;
/// `IPV4_DEVCONF_ARP_NOTIFY`
const ARP_NOTIFY: u16 = 22;
/// `IFLA_INET6_ADDR_GEN_MODE`
const ADDRESS_GENERATION: u16 = 8;
/// `IN6_ADDR_GEN_MODE_EUI64`
const GENERATE_EUI64: u8 = 0;
/// `IN6_ADDR_GEN_MODE_NONE`
const GENERATE_NONE: u8 = 1;

/// `RTEXT_FILTER_SKIP_STATS`: leaves out the counters.
const SKIP_STATS: u32 = 8;
/// `IFF_UP`
const UP: u32 = 1;
/// `IFF_PROMISC`
const PROMISCUOUS: u32 = 0x100;
/// `IFF_ALLMULTI`
const ALL_MULTICAST: u32 = 0x200;
/// Flags that a user can change, besides `IFF_UP`: DEBUG, NOTRAILERS, NOARP, PROMISC, ALLMULTI, MULTICAST, PORTSEL,
/// AUTOMEDIA, DYNAMIC.
const SETTABLE: u32 = 0x4 | 0x20 | 0x80 | PROMISCUOUS | ALL_MULTICAST | 0x1000 | 0x2000 | 0x4000 | 0x8000;
/// Maximum bytes of alternative names in one request, because an attribute has at most 64 KiB.
const PROPERTIES_MAX: usize = 32 << 10;
/// Maximum number of links in one removal request, because a datagram has at most 200 KiB by default.
const REMOVED_AT_ONCE_MAX: usize = 1000;
/// `BR_STATE_FORWARDING`
const FORWARDING: u8 = 3;
/// `ARPHRD_ETHER`
const ETHERNET: u16 = 1;
/// `ARPHRD_LOOPBACK`
const LOOPBACK: u16 = 772;
/// `IF_OPER_UNKNOWN` and `IF_OPER_UP`
const OPERATIONAL: [u8; 2] = [0, 6];

/// Interface as the kernel describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// Index, unique within a namespace.
    pub index: u32,
    /// Interface name.
    pub name: String,
    /// Link kind, which is the driver's name (`veth`, `bridge`, …); empty for hardware.
    pub kind: String,
    /// MAC address; empty if there is none.
    pub mac: Vec<u8>,
    /// MTU in bytes.
    pub mtu: u32,
    /// Whether the link is administratively up.
    pub up: bool,
    /// Whether the operational state allows traffic (RFC 2863 "up", or "unknown" for drivers that never report it).
    pub running: bool,
    /// Whether the driver detects a peer. This is known at once, while `running` follows later.
    pub carrier: bool,
    /// Whether this is the loopback interface.
    pub loopback: bool,
    /// Whether frames have Ethernet headers.
    pub ethernet: bool,
    /// Whether the link receives all packets, because of `ip link set promisc on` or because a program asked for it.
    pub promiscuous: bool,
    /// Whether the link receives all multicast packets.
    pub all_multicast: bool,
    /// Flags that a user can change (for example `IFF_NOARP` and `IFF_PROMISC`), without `IFF_UP`.
    pub flags: u32,
    /// Alternative names (`altname`).
    pub alternative_names: Vec<String>,
    /// MAC address that the driver reports, which no user can change; empty if unknown.
    pub permanent_mac: Vec<u8>,
    /// Index of the bridge, bond or VRF that the link is a port of.
    pub master: Option<u32>,
    /// Index of the parent (macvlan, vlan) or the peer (veth), which may be in another namespace.
    pub link: Option<u32>,
    /// Id that this namespace has for the namespace in which `link` is, if that is another one.
    pub link_netns_id: Option<i32>,
    /// Group number, 0 by default.
    pub group: u32,
    /// `ifalias`; empty if there is none.
    pub alias: String,
    /// Transmit queue length in packets.
    pub tx_queue_length: u32,
    /// Settings that stay with the link when it moves to another namespace.
    pub settings: DeviceSettings,
    /// Attached XDP programs, at most one per mode.
    pub xdp: Vec<XdpProgram>,
    /// Attributes that only this kind has.
    pub detail: Detail,
    /// Bridge port attributes, if the link is a port.
    pub port: Option<BridgePort>,
    /// Whether the link forwards as a bridge port, that is, with the spanning tree state `forwarding`.
    pub forwards: bool,
}

/// Attributes that only one link kind has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Detail {
    /// None that weft reads.
    #[default]
    None,
    /// Bridge.
    Bridge {
        /// Whether the bridge filters by VLAN; `None` if the kernel was built without VLAN filtering.
        vlan_filtering: Option<bool>,
    },
    /// VLAN interface.
    Vlan {
        /// VLAN id, 0–4094.
        id: u16,
    },
    /// Macvlan interface.
    Macvlan {
        /// Mode, which decides how interfaces on the same parent reach each other.
        mode: Option<create::MacvlanMode>,
    },
    /// Ipvlan interface.
    Ipvlan {
        /// Layer on which the interface works.
        mode: Option<create::IpvlanMode>,
    },
    /// VRF.
    Vrf {
        /// Routing table.
        table: u32,
    },
}

/// Bridge port attributes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BridgePort {
    /// Whether a frame may leave through the port on which it arrived.
    pub hairpin: bool,
    /// Whether the port is isolated, so that it reaches only ports that are not.
    pub isolated: bool,
}

/// Link change; unset fields stay as they are.
#[derive(Clone, Debug, Default)]
pub struct Change<'a> {
    /// Whether the link should be administratively up.
    pub up: Option<bool>,
    /// New name; on kernels before 6.5 the link must be down.
    pub name: Option<&'a str>,
    /// New MTU in bytes.
    pub mtu: Option<u32>,
    /// New MAC address.
    pub mac: Option<&'a [u8]>,
    /// Whether to receive all packets.
    pub promiscuous: Option<bool>,
    /// Whether to receive all multicast packets.
    pub all_multicast: Option<bool>,
    /// New value for all flags in [`Link::flags`].
    pub flags: Option<u32>,
    /// New transmit queue length in packets.
    pub tx_queue_length: Option<u32>,
    /// New master; `Some(0)` detaches the link.
    pub master: Option<u32>,
    /// New group number.
    pub group: Option<u32>,
    /// New alias; `Some("")` removes it.
    pub alias: Option<&'a str>,
    /// Whether to announce addresses by ARP when the link is set up: `sysctl -w net.ipv4.conf.NAME.arp_notify=1`. The
    /// kernel applies it after the other changes, so it must be set before `up`.
    pub arp_notify: Option<bool>,
    /// Whether to generate IPv6 link-local addresses: `addrgenmode eui64` or `none`. It must also be set before `up`.
    pub link_local: Option<bool>,
    /// New values for [`Link::settings`].
    pub settings: Option<SettingsChange<'a>>,
    /// Mode whose XDP program should be removed, as in [`XdpProgram::mode`].
    pub remove_xdp: Option<u32>,
}

impl Link {
    fn from_message(message: &Message) -> Link {
        let flags = message.word_at(8);
        let mut link = Link {
            index: message.word_at(4),
            up: flags & UP != 0,
            promiscuous: flags & PROMISCUOUS != 0,
            all_multicast: flags & ALL_MULTICAST != 0,
            flags: flags & SETTABLE,
            ethernet: u16::from_ne_bytes([message.byte_at(2), message.byte_at(3)]) == ETHERNET,
            loopback: u16::from_ne_bytes([message.byte_at(2), message.byte_at(3)]) == LOOPBACK,
            ..Link::default()
        };
        for (kind, value) in message.attributes.items() {
            let number = || ne32_of(value).unwrap_or_default();
            match kind {
                attribute::NAME => link.name = text(value),
                attribute::ADDRESS => link.mac = value.to_vec(),
                attribute::MTU => link.mtu = number(),
                attribute::OPERATIONAL_STATE => {
                    link.running = link.up && value.first().is_some_and(|state| OPERATIONAL.contains(state));
                }
                attribute::CARRIER => link.carrier = value.first() == Some(&1),
                attribute::MASTER => link.master = ne32_of(value).filter(|index| *index != 0),
                attribute::LINK => link.link = ne32_of(value),
                attribute::LINK_NETNS_ID => link.link_netns_id = ne32_of(value).map(u32::cast_signed),
                attribute::GROUP => link.group = number(),
                attribute::ALIAS => link.alias = text(value),
                attribute::TX_QUEUE_LENGTH => link.tx_queue_length = number(),
                attribute::INFO => link.read_info(value),
                attribute::PERMANENT_ADDRESS => link.permanent_mac = value.to_vec(),
                attribute::PROPERTIES => {
                    let names = items(value).filter(|(kind, _)| *kind == attribute::ALTERNATIVE_NAME);
                    link.alternative_names.extend(names.map(|(_, name)| text(name)));
                }
                device_settings::XDP => link.xdp = device_settings::xdp_programs(value),
                _ => link.settings.read(kind, value),
            }
        }
        link
    }

    fn read_info(&mut self, info: &[u8]) {
        self.kind = find(info, info::KIND).map(text).unwrap_or_default();
        if let Some(data) = find(info, info::DATA) {
            self.detail = Detail::read(&self.kind, data);
        }
        let is_port = find(info, info::PORT_KIND).map(text).as_deref() == Some("bridge");
        if let Some(data) = find(info, info::PORT_DATA).filter(|_| is_port) {
            let is_on = |kind| find(data, kind).and_then(|value| value.first()).is_some_and(|on| *on != 0);
            let state = find(data, detail::PORT_STATE).and_then(|value| value.first());
            self.forwards = state == Some(&FORWARDING);
            self.port = Some(BridgePort {
                hairpin: is_on(detail::PORT_HAIRPIN),
                isolated: is_on(detail::PORT_ISOLATED),
            });
        }
    }
}

impl Detail {
    fn read(kind: &str, data: &[u8]) -> Detail {
        let number = |kind| find(data, kind).and_then(ne32_of);
        match kind {
            "bridge" => Detail::Bridge {
                vlan_filtering: find(data, detail::BRIDGE_VLAN_FILTERING)
                    .and_then(|value| value.first())
                    .map(|on| *on != 0),
            },
            "vlan" => Detail::Vlan { id: find(data, detail::VLAN_ID).and_then(ne16_of).unwrap_or_default() },
            "macvlan" => Detail::Macvlan {
                mode: number(detail::MACVLAN_MODE).and_then(create::MacvlanMode::from_kernel),
            },
            "ipvlan" => Detail::Ipvlan {
                mode: find(data, detail::IPVLAN_MODE)
                    .and_then(ne16_of)
                    .and_then(create::IpvlanMode::from_kernel),
            },
            "vrf" => Detail::Vrf { table: number(detail::VRF_TABLE).unwrap_or_default() },
            _ => Detail::None,
        }
    }
}

impl Rtnl {
    /// Finds a link by name. `ip -d link show dev NAME`
    ///
    /// # Errors
    /// [`Kind::Absent`]: there is none.
    pub fn link(&mut self, name: &str) -> Result<Link, Error> {
        let mut message = query(0);
        message.attributes.text(attribute::NAME, name);
        self.one_link(message, || format!("find link {name}"))
    }

    /// Finds a link by index.
    pub fn link_at(&mut self, index: u32) -> Result<Link, Error> {
        self.one_link(query(index), || format!("find link with index {index}"))
    }

    /// Finds several links by name in one exchange.
    pub fn links_named<const N: usize>(&mut self, names: [&str; N]) -> Result<[Link; N], Error> {
        let operation = || format!("find links {}", names.join(", "));
        let requests = names.iter().map(|name| {
            let mut message = query(0);
            message.attributes.text(attribute::NAME, name);
            Request { flags: 0, message }
        });
        let answers = self.ask_all(requests.collect(), operation)?;
        let links: Vec<Link> = answers.iter().filter_map(only_link).collect();
        links.try_into().map_err(|_| Error::protocol(operation(), "the kernel did not answer for each"))
    }

    /// Finds a link by name; `None` if there is none.
    pub fn find_link(&mut self, name: &str) -> Result<Option<Link>, Error> {
        match self.link(name) {
            Ok(link) => Ok(Some(link)),
            Err(error) if error.kind() == Kind::Absent => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Lists all links. `ip -d link`
    pub fn links(&mut self) -> Result<Vec<Link>, Error> {
        let answers = self.dump(&query(0), || "list links".to_owned())?;
        Ok(answers.iter().filter_map(only_link).collect())
    }

    fn one_link(&mut self, message: Message, operation: impl Fn() -> String) -> Result<Link, Error> {
        let answers = self.ask(message, &operation)?;
        let found = answers.iter().find_map(only_link);
        found.ok_or_else(|| Error::protocol(operation(), "the kernel gave no answer"))
    }

    /// Changes a link. `ip link set dev NAME …`; `name` is only used in errors.
    pub fn change_link(&mut self, index: u32, name: &str, change: &Change<'_>) -> Result<(), Error> {
        let message = change.message(index);
        self.execute(0, message, || format!("change link {name}{}", change.describe()))
    }

    /// Sets a link up. `ip link set dev NAME up`
    pub fn set_up(&mut self, index: u32, name: &str) -> Result<(), Error> {
        self.change_link(index, name, &Change { up: Some(true), ..Change::default() })
    }

    /// Moves a link to another namespace and changes it there in one request, so that no process sees an intermediate
    /// state.
    ///
    /// `ip link set dev NAME netns PATH [name NEW] …`. Afterwards the link is down and has no addresses or routes.
    ///
    /// # Errors
    /// If the move succeeds but the change fails, the link stays in the new namespace.
    pub fn move_link(
        &mut self,
        index: u32,
        name: &str,
        netns: &crate::Netns,
        change: &Change<'_>,
    ) -> Result<(), Error> {
        let mut message = change.message(index);
        message.attributes.ne32(attribute::NETNS_DESCRIPTOR, netns.as_fd().as_raw_fd().cast_unsigned());
        self.execute(0, message, || format!("move link {name}{}", change.describe()))
    }

    /// Removes a link. `ip link del dev NAME`
    ///
    /// Waits for the kernel's grace period, about 20 ms for every kind of link; [`removal`] avoids that.
    pub fn delete_link(&mut self, index: u32, name: &str) -> Result<(), Error> {
        self.execute(0, Message::link(DELETE_LINK, index), || format!("delete link {name}"))
    }

    /// Removes several links, with one grace period per thousand links: they are put in a group, and the group is
    /// removed.
    ///
    /// `ip link set dev NAME group N` for each, then `ip link del group N`. The group number is random, and all
    /// requests are in one datagram, so that a process in the namespace cannot put another link into the group
    /// beforehand. If the kernel refuses to remove the group, the links are removed one by one. Links that no longer
    /// exist are ignored.
    pub fn delete_links(&mut self, indexes: &[u32]) -> Result<(), Error> {
        let mut outcome = Ok(());
        for some in indexes.chunks(REMOVED_AT_ONCE_MAX) {
            outcome = outcome.and(self.delete_group(some));
        }
        outcome
    }

    fn delete_group(&mut self, indexes: &[u32]) -> Result<(), Error> {
        let messages = removal_messages(indexes);
        let requests = messages.into_iter().map(|message| Request { flags: 0, message }).collect();
        if self.execute_all(requests, |_| format!("delete {} links", indexes.len())).is_ok() {
            return Ok(());
        }
        let mut outcome = Ok(());
        for index in indexes {
            let deleted = self.delete_link(*index, &format!("with index {index}"));
            outcome = outcome.and(crate::error::absent_is_fine(deleted));
        }
        outcome
    }

    /// Encodes the requests that remove these links, as one datagram.
    pub(crate) fn removal_of_links(indexes: &[u32]) -> Vec<u8> {
        datagram(removal_messages(indexes))
    }

    /// Adds alternative names to a link. `ip link property add dev NAME altname …`
    ///
    /// # Errors
    /// [`Kind::Exists`]: this link or another one already has one of the names.
    pub fn add_alternative_names(&mut self, link: &Link, names: &[&str]) -> Result<(), Error> {
        self.alternative_names(NEW_LINK_PROPERTY, "add", link, names)
    }

    /// Removes alternative names from a link. `ip link property del dev NAME altname …`
    pub fn remove_alternative_names(&mut self, link: &Link, names: &[&str]) -> Result<(), Error> {
        self.alternative_names(DELETE_LINK_PROPERTY, "remove", link, names)
    }

    fn alternative_names(&mut self, kind: u16, verb: &str, link: &Link, names: &[&str]) -> Result<(), Error> {
        let mut rest = names;
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = rest.iter().take_while(|name| {
                bytes += name.len() + 8;
                bytes <= PROPERTIES_MAX
            });
            let (now, later) = rest.split_at(fits.count().max(1));
            rest = later;
            let mut message = Message::link(kind, link.index);
            message.attributes.nested(attribute::PROPERTIES, |list| {
                for name in now {
                    list.text(attribute::ALTERNATIVE_NAME, name);
                }
            });
            self.execute(0, message, || format!("{verb} alternative names of link {}", link.name))?;
        }
        Ok(())
    }

    /// Creates a link. `ip link add …`, see [`create::NewLink`].
    ///
    /// # Errors
    /// [`Kind::Exists`]: the name is in use. A link that was created but could not be completed is removed again,
    /// except a bridge, because other attachments may already use it.
    pub fn add_link(&mut self, link: &create::NewLink<'_>) -> Result<(), Error> {
        let flags = NLM_F_CREATE | NLM_F_EXCL;
        let module = link.kind.module();
        self.execute(flags, link.message(), || format!("create {link}")).map_err(|error| {
            match link.kind.option().filter(|_| !error.is_unknown_type()) {
                Some(option) => error.of_option(option),
                None => error.of_module(module),
            }
        })?;
        // The kernel accepts these attributes only for an existing link. They are not sent in the same datagram: if the
        // kernel refused to create the link, they would change a link with the same name that another process created.
        let mut completed = self.complete(link);
        // The kernel has no IPv6 (`ipv6.disable=1`), or the link has none because its MTU is below 1280. Either way, no
        // link-local address is generated.
        if link.no_link_local && matches!(&completed, Err(error) if error.errno() == Some(Errno::AFNOSUPPORT))
        {
            completed = self.complete(&create::NewLink { no_link_local: false, ..link.clone() });
        }
        completed.inspect_err(|_| {
            if !matches!(link.kind, create::NewKind::Bridge { .. })
                && let Ok(Some(made)) = self.find_link(link.name)
            {
                // The caller must get the first error.
                let _ = self.delete_link(made.index, link.name);
            }
        })
    }

    /// Sets the attributes that only an existing link accepts.
    fn complete(&mut self, link: &create::NewLink<'_>) -> Result<(), Error> {
        let requests = link.afterwards().into_iter().map(|message| Request { flags: 0, message });
        self.execute_all(requests.collect(), |_| format!("create {link}"))
    }

    /// Changes several links at once. If one change fails, the later ones are still made.
    pub fn change_links(&mut self, changes: &[(u32, &str, Change<'_>)]) -> Result<(), Error> {
        let requests =
            changes.iter().map(|(index, _, change)| Request { flags: 0, message: change.message(*index) });
        self.execute_all(requests.collect(), |at| match changes.get(at) {
            Some((_, name, change)) => format!("change link {name}{}", change.describe()),
            None => "change links".to_owned(),
        })
    }
}

impl Change<'_> {
    /// Encodes the change for the link with this index; if the index is 0, `name` selects the link instead of renaming
    /// it.
    fn message(&self, index: u32) -> Message {
        let Change {
            up,
            name,
            mtu,
            mac,
            promiscuous,
            all_multicast,
            flags: settable,
            tx_queue_length,
            master,
            group,
            alias,
            arp_notify,
            link_local,
            settings,
            remove_xdp,
        } = self;
        let (mut flags, mut mask) = match settable {
            Some(settable) => (settable & SETTABLE, SETTABLE),
            None => (0, 0),
        };
        for (wanted, flag) in [(up, UP), (promiscuous, PROMISCUOUS), (all_multicast, ALL_MULTICAST)] {
            if let Some(on) = wanted {
                mask |= flag;
                flags |= if *on { flag } else { 0 };
            }
        }
        let mut message = Message::link(SET_LINK, index);
        set_flags(&mut message, flags, mask);
        let list = &mut message.attributes;
        for (kind, value) in [(attribute::NAME, name), (attribute::ALIAS, alias)] {
            if let Some(value) = value {
                list.text(kind, value);
            }
        }
        if let Some(mac) = mac {
            list.bytes(attribute::ADDRESS, mac);
        }
        let numbers = [
            (attribute::MTU, mtu),
            (attribute::TX_QUEUE_LENGTH, tx_queue_length),
            (attribute::MASTER, master),
            (attribute::GROUP, group),
        ];
        for (kind, value) in numbers {
            if let Some(value) = value {
                list.ne32(kind, *value);
            }
        }
        device_settings::write(list, settings.as_ref(), *remove_xdp);
        if arp_notify.is_some() || link_local.is_some() {
            list.nested(attribute::PER_FAMILY, |families| {
                per_family(families, *arp_notify, *link_local);
            });
        }
        message
    }

    /// Describes the change in `ip link set` syntax, for errors.
    fn describe(&self) -> String {
        let Change {
            up,
            name,
            mtu,
            mac,
            promiscuous,
            all_multicast,
            flags: settable,
            tx_queue_length,
            master,
            group,
            alias,
            arp_notify,
            link_local,
            settings,
            remove_xdp,
        } = self;
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
        say(settable.map(|flags| format!("flags {flags:#x}")));
        say(tx_queue_length.map(|length| format!("txqueuelen {length}")));
        say(master.map(|master| format!("master index {master}")));
        say(group.map(|group| format!("group {group}")));
        say(alias.map(|alias| format!("alias {alias:?}")));
        say(arp_notify.as_ref().map(|on| format!("arp_notify {}", switch(on))));
        say(link_local.as_ref().map(|on| format!("addrgenmode {}", if *on { "eui64" } else { "none" })));
        say(settings.map(|change| format!("to {:?}", change.wanted)));
        say(remove_xdp.map(|mode| format!("xdp off, mode {mode}")));
        text
    }
}

/// Formats a MAC address as the kernel prints it.
pub fn mac_text(mac: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(mac.len() * 3);
    for byte in mac {
        if !text.is_empty() {
            text.push(':');
        }
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 0xf)]));
    }
    text
}

/// Returns the messages that remove links: a single link by index, several as a group.
fn removal_messages(indexes: &[u32]) -> Vec<Message> {
    if let [index] = indexes {
        return vec![Message::link(DELETE_LINK, *index)];
    }
    let group = random_group();
    let change = Change { group: Some(group), ..Change::default() };
    let mut messages: Vec<Message> = indexes.iter().map(|index| change.message(*index)).collect();
    let mut removal = Message::link(DELETE_LINK, 0);
    removal.attributes.ne32(attribute::GROUP, group);
    messages.push(removal);
    messages
}

/// Returns a group number that no other process can guess.
fn random_group() -> u32 {
    // A `RandomState` has keys that come from the kernel's random numbers.
    (RandomState::new().build_hasher().finish() as u32).max(1)
}

/// Returns a random unicast MAC address, marked as locally administered.
#[must_use]
pub fn random_mac() -> [u8; 6] {
    let [first, rest @ .., _, _] = RandomState::new().build_hasher().finish().to_ne_bytes();
    let mut mac = [(first & 0xfc) | 0x02, 0, 0, 0, 0, 0];
    mac[1..].copy_from_slice(&rest);
    mac
}

/// Writes which flags to change, and the new values.
fn set_flags(message: &mut Message, flags: u32, mask: u32) {
    message.put(8, &flags.to_ne_bytes());
    message.put(12, &mask.to_ne_bytes());
}

/// Writes link parameters that belong to an address family.
fn per_family(families: &mut Attributes, arp_notify: Option<bool>, link_local: Option<bool>) {
    if let Some(on) = arp_notify {
        families.nested(u16::from(INET), |inet| {
            inet.nested(INET_CONF, |conf| {
                conf.ne32(ARP_NOTIFY, on.into());
            });
        });
    }
    if let Some(on) = link_local {
        families.nested(u16::from(INET6), |inet6| {
            inet6.byte(ADDRESS_GENERATION, if on { GENERATE_EUI64 } else { GENERATE_NONE });
        });
    }
}

/// Builds a request for a link without counters; index 0 means all links, or the link that an attribute names.
fn query(index: u32) -> Message {
    let mut message = Message::link(GET_LINK, index);
    message.attributes.ne32(attribute::MASK, SKIP_STATS);
    message
}

fn only_link(message: &Message) -> Option<Link> {
    (message.kind() == NEW_LINK).then(|| Link::from_message(message))
}
