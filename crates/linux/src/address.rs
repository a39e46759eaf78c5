//! Addresses of interfaces.
//!
//! Source: rtnetlink(7) RTM_NEWADDR/GETADDR/DELADDR; ip-address(8).

use std::net::{IpAddr, Ipv4Addr};

use ipnet::{IpNet, Ipv4Net};
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage, AddressScope};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::error::Error;
use crate::netlink::Request;
use crate::rtnl::Rtnl;

/// One address as the kernel describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// Index of its interface.
    pub link: u32,
    /// The address with its prefix length.
    pub address: IpNet,
    /// Valid everywhere (not link-local, not of the host only).
    pub global: bool,
    /// Duplicate address detection is still running (IPv6).
    pub tentative: bool,
    /// Duplicate address detection found another owner (IPv6).
    pub duplicate: bool,
}

impl Rtnl {
    /// Adds an address. `ip address add ADDRESS/LENGTH [broadcast +] dev NAME`
    ///
    /// # Errors
    /// [`crate::Kind::Exists`] if the interface has it already.
    pub fn add_address(&mut self, link: u32, name: &str, address: IpNet) -> Result<(), Error> {
        let message = RouteNetlinkMessage::NewAddress(message(link, address));
        self.execute(NLM_F_CREATE | NLM_F_EXCL, message, || format!("add address {address} to {name}"))
    }

    /// Adds an address that is ours beyond doubt: duplicate address detection would only delay its use.
    ///
    /// `ip address add ADDRESS/LENGTH dev NAME nodad`
    pub fn add_own_address(&mut self, link: u32, name: &str, address: IpNet) -> Result<(), Error> {
        let mut message = message(link, address);
        if address.addr().is_ipv6() {
            message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad | AddressFlags::Permanent));
        }
        let message = RouteNetlinkMessage::NewAddress(message);
        self.execute(NLM_F_CREATE | NLM_F_EXCL, message, || format!("add address {address} to {name}"))
    }

    /// Adds several addresses in one datagram; on failure those after it have still been added.
    pub fn add_addresses(&mut self, link: u32, name: &str, addresses: &[IpNet]) -> Result<(), Error> {
        let requests = addresses.iter().map(|address| Request {
            flags: NLM_F_CREATE | NLM_F_EXCL,
            message: RouteNetlinkMessage::NewAddress(message(link, *address)),
        });
        self.execute_all(requests.collect(), |at| match addresses.get(at) {
            Some(address) => format!("add address {address} to {name}"),
            None => format!("add addresses to {name}"),
        })
    }

    /// Removes an address. `ip address del ADDRESS/LENGTH dev NAME`
    pub fn delete_address(&mut self, link: u32, name: &str, address: IpNet) -> Result<(), Error> {
        let message = RouteNetlinkMessage::DelAddress(message(link, address));
        self.execute(0, message, || format!("remove address {address} from {name}"))
    }

    /// The addresses of one interface, both families. `ip address show dev NAME`
    pub fn addresses(&mut self, link: u32, name: &str) -> Result<Vec<Address>, Error> {
        let mut query = AddressMessage::default();
        query.header.index = link;
        let answers =
            self.dump(&RouteNetlinkMessage::GetAddress(query), || format!("list addresses of {name}"))?;
        // Kernels before 4.20 do not filter.
        Ok(answers.into_iter().filter_map(only_address).filter(|address| address.link == link).collect())
    }

    /// Every address of the namespace. `ip address show`
    pub fn all_addresses(&mut self) -> Result<Vec<Address>, Error> {
        let query = RouteNetlinkMessage::GetAddress(AddressMessage::default());
        let answers = self.dump(&query, || "list addresses".to_owned())?;
        Ok(answers.into_iter().filter_map(only_address).collect())
    }
}

fn message(link: u32, address: IpNet) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.index = link;
    message.header.prefix_len = address.prefix_len();
    message.header.family = family(address.addr());
    message.header.scope = AddressScope::Universe;
    message.attributes.push(AddressAttribute::Local(address.addr()));
    message.attributes.push(AddressAttribute::Address(address.addr()));
    if let IpNet::V4(net) = address {
        message.attributes.extend(broadcast(net).map(AddressAttribute::Broadcast));
    }
    message
}

/// The broadcast address of a subnet that has one.
fn broadcast(net: Ipv4Net) -> Option<Ipv4Addr> {
    (net.prefix_len() < 31).then(|| net.broadcast())
}

pub(crate) fn family(address: IpAddr) -> AddressFamily {
    match address {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    }
}

fn only_address(message: RouteNetlinkMessage) -> Option<Address> {
    let RouteNetlinkMessage::NewAddress(message) = message else { return None };
    let (mut local, mut remote, mut flags) = (None, None, AddressFlags::empty());
    for attribute in message.attributes {
        match attribute {
            AddressAttribute::Local(ip) => local = Some(ip),
            AddressAttribute::Address(ip) => remote = Some(ip),
            AddressAttribute::Flags(all) => flags = all,
            _ => {}
        }
    }
    let address = IpNet::new(local.or(remote)?, message.header.prefix_len).ok()?;
    Some(Address {
        link: message.header.index,
        address,
        global: message.header.scope == AddressScope::Universe,
        tentative: flags.contains(AddressFlags::Tentative),
        duplicate: flags.contains(AddressFlags::Dadfailed),
    })
}
