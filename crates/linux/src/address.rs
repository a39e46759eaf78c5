//! IP addresses on interfaces.
//!
//! Source: rtnetlink(7) RTM_NEWADDR/GETADDR/DELADDR; ip-address(8).

use std::net::Ipv4Addr;

use ipnet::{IpNet, Ipv4Net};
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};

use crate::attributes::{address_of, ne32_of};
use crate::error::Error;
use crate::netlink::Request;
use crate::rtnl::Rtnl;
use crate::rtnl::message::{DELETE_ADDRESS, GET_ADDRESS, Message, NEW_ADDRESS, UNSPEC, family};

/// `IFA_ADDRESS`: on a point-to-point link the peer's address, otherwise the same as the local one.
const ADDRESS: u16 = 1;
/// `IFA_LOCAL`
const LOCAL: u16 = 2;
/// `IFA_BROADCAST`
const BROADCAST: u16 = 4;
/// `IFA_FLAGS`
const FLAGS: u16 = 8;

/// `IFA_F_NODAD`
const NO_DETECTION: u32 = 0x02;
/// `IFA_F_DADFAILED`
const DETECTION_FAILED: u32 = 0x08;
/// `IFA_F_TENTATIVE`
const TENTATIVE: u32 = 0x40;
/// `IFA_F_PERMANENT`
const PERMANENT: u32 = 0x80;

/// Address as the kernel describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// Interface index.
    pub link: u32,
    /// Address with prefix length.
    pub address: IpNet,
    /// Whether the address is valid everywhere, that is, neither link-local nor host-local.
    pub global: bool,
    /// Whether duplicate address detection is still running (IPv6).
    pub tentative: bool,
    /// Whether duplicate address detection found another host with this address (IPv6).
    pub duplicate: bool,
}

impl Rtnl {
    /// Adds an address. `ip address add ADDRESS/LENGTH [broadcast +] dev NAME`
    ///
    /// # Errors
    /// [`crate::Kind::Exists`]: the interface already has the address.
    pub fn add_address(&mut self, link: u32, name: &str, address: IpNet) -> Result<(), Error> {
        let message = message(NEW_ADDRESS, link, address);
        self.execute(NLM_F_CREATE | NLM_F_EXCL, message, || format!("add address {address} to {name}"))
    }

    /// Adds an address without duplicate address detection, for an address that is known to be unique.
    ///
    /// `ip address add ADDRESS/LENGTH dev NAME nodad`
    pub fn add_own_address(&mut self, link: u32, name: &str, address: IpNet) -> Result<(), Error> {
        let mut message = message(NEW_ADDRESS, link, address);
        if address.addr().is_ipv6() {
            message.attributes.ne32(FLAGS, NO_DETECTION | PERMANENT);
        }
        self.execute(NLM_F_CREATE | NLM_F_EXCL, message, || format!("add address {address} to {name}"))
    }

    /// Adds several addresses in one datagram. If one fails, the later ones are still added.
    pub fn add_addresses(&mut self, link: u32, name: &str, addresses: &[IpNet]) -> Result<(), Error> {
        let requests = addresses.iter().map(|address| Request {
            flags: NLM_F_CREATE | NLM_F_EXCL,
            message: message(NEW_ADDRESS, link, *address),
        });
        self.execute_all(requests.collect(), |at| match addresses.get(at) {
            Some(address) => format!("add address {address} to {name}"),
            None => format!("add addresses to {name}"),
        })
    }

    /// Removes an address. `ip address del ADDRESS/LENGTH dev NAME`
    pub fn delete_address(&mut self, link: u32, name: &str, address: IpNet) -> Result<(), Error> {
        let message = message(DELETE_ADDRESS, link, address);
        self.execute(0, message, || format!("remove address {address} from {name}"))
    }

    /// Lists both families' addresses on one interface. `ip address show dev NAME`
    pub fn addresses(&mut self, link: u32, name: &str) -> Result<Vec<Address>, Error> {
        let query = Message::address(GET_ADDRESS, UNSPEC, 0, link);
        let answers = self.dump(&query, || format!("list addresses of {name}"))?;
        // Kernels before 4.20 ignore the filter in the request.
        Ok(answers.iter().filter_map(only_address).filter(|address| address.link == link).collect())
    }

    /// Lists every address in the namespace. `ip address show`
    pub fn all_addresses(&mut self) -> Result<Vec<Address>, Error> {
        let query = Message::address(GET_ADDRESS, UNSPEC, 0, 0);
        let answers = self.dump(&query, || "list addresses".to_owned())?;
        Ok(answers.iter().filter_map(only_address).collect())
    }
}

fn message(kind: u16, link: u32, address: IpNet) -> Message {
    let mut message = Message::address(kind, family(address.addr()), address.prefix_len(), link);
    message.attributes.address(LOCAL, address.addr()).address(ADDRESS, address.addr());
    if let IpNet::V4(net) = address
        && let Some(broadcast) = broadcast(net)
    {
        message.attributes.address(BROADCAST, broadcast.into());
    }
    message
}

/// Returns the broadcast address, for subnets that have one.
fn broadcast(net: Ipv4Net) -> Option<Ipv4Addr> {
    (net.prefix_len() < 31).then(|| net.broadcast())
}

fn only_address(message: &Message) -> Option<Address> {
    if message.kind() != NEW_ADDRESS {
        return None;
    }
    let find = |kind| message.attributes.find(kind).and_then(address_of);
    let address = IpNet::new(find(LOCAL).or_else(|| find(ADDRESS))?, message.byte_at(1)).ok()?;
    let flags = message.attributes.find(FLAGS).and_then(ne32_of);
    // Kernels before 3.14 send only the byte and no attribute.
    let flags = flags.unwrap_or_else(|| u32::from(message.byte_at(2)));
    Some(Address {
        link: message.word_at(4),
        address,
        global: message.byte_at(3) == 0,
        tentative: flags & TENTATIVE != 0,
        duplicate: flags & DETECTION_FAILED != 0,
    })
}
