//! Neighbours: link-layer addresses that ARP and IPv6 neighbour discovery found on a link.
//!
//! Source: rtnetlink(7) RTM_GETNEIGH; ip-neighbour(8); kernel `include/uapi/linux/neighbour.h`.

use std::net::IpAddr;

use crate::error::{Error, Kind};
use crate::rtnl::Rtnl;
use crate::rtnl::message::{Message, family};

/// `RTM_NEWNEIGH`
const NEW_NEIGHBOUR: u16 = 28;
/// `RTM_GETNEIGH`
const GET_NEIGHBOUR: u16 = 30;
/// `NDA_DST`
const DESTINATION: u16 = 1;
/// `NDA_LLADDR`
const LINK_ADDRESS: u16 = 2;
/// `NUD_INCOMPLETE` and `NUD_FAILED`
const UNRESOLVED: u16 = 0x01 | 0x20;

/// State of a neighbour entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Neighbour {
    /// The kernel knows the link-layer address, or needs none.
    Resolved(Vec<u8>),
    /// The neighbour has not answered.
    Unresolved,
    /// Nothing was sent to the neighbour lately.
    Unknown,
}

impl Rtnl {
    /// Returns one neighbour's state on a link. `ip neighbour get ADDRESS dev NAME`
    ///
    /// Only this neighbour is requested. Kernels before 5.0 do not support that, and then the state is unknown.
    pub fn neighbour(&mut self, link: u32, address: IpAddr) -> Result<Neighbour, Error> {
        let mut query = Message::neighbour(GET_NEIGHBOUR, family(address), link);
        query.attributes.address(DESTINATION, address);
        let answers = match self.ask(query, || format!("find neighbour {address}")) {
            Err(error) if error.kind() == Kind::Absent => return Ok(Neighbour::Unknown),
            Err(error) if error.errno() == Some(rustix::io::Errno::OPNOTSUPP) => {
                return Ok(Neighbour::Unknown);
            }
            answers => answers?,
        };
        let Some(answer) = answers.iter().find(|answer| answer.kind() == NEW_NEIGHBOUR) else {
            return Ok(Neighbour::Unknown);
        };
        let state = u16::from_ne_bytes([answer.byte_at(8), answer.byte_at(9)]);
        match answer.attributes.find(LINK_ADDRESS) {
            _ if state & UNRESOLVED != 0 => Ok(Neighbour::Unresolved),
            Some(mac) => Ok(Neighbour::Resolved(mac.to_vec())),
            None if state != 0 => Ok(Neighbour::Resolved(Vec::new())),
            None => Ok(Neighbour::Unknown),
        }
    }
}
