//! Looks up which route the kernel would take to an address, following policy rules.
//!
//! Source: rtnetlink(7) RTM_GETROUTE without NLM_F_DUMP; ip-route(8), `ip route get`.

use std::net::IpAddr;

use ipnet::IpNet;
use rustix::io::Errno;

use super::{DESTINATION, GATEWAY, LINK, METRIC_MTU, METRICS, TABLE};
use crate::attributes::{address_of, find, ne32_of};
use crate::error::Error;
use crate::rtnl::Rtnl;
use crate::rtnl::message::{GET_ROUTE, Message, NEW_ROUTE, RouteFields, family};

/// `RTA_SRC`
const SOURCE: u16 = 2;
/// `RTN_LOCAL`
const LOCAL: u8 = 2;

/// Route that the kernel would take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundRoute {
    /// Index of the link through which packets leave.
    pub link: u32,
    /// Next hop; `None` if the destination is on the link.
    pub gateway: Option<IpAddr>,
    /// MTU for this route, if it has a separate one.
    pub mtu: Option<u32>,
    /// Routing table number.
    pub table: u32,
    /// Whether the address belongs to this namespace itself.
    pub is_local: bool,
}

impl Rtnl {
    /// Looks up the route to an address from a source address; `None` if there is none. `ip route get ADDRESS from
    /// SOURCE`
    pub fn find_route(&mut self, address: IpAddr, from: IpAddr) -> Result<Option<FoundRoute>, Error> {
        let length = |address| IpNet::from(address).prefix_len();
        let fields =
            RouteFields { destination: length(address), source: length(from), ..RouteFields::default() };
        let mut query = Message::route(GET_ROUTE, family(address), fields);
        query.attributes.address(DESTINATION, address).address(SOURCE, from);
        let answers = match self.ask(query, || format!("find route to {address} from {from}")) {
            Ok(answers) => answers,
            Err(error) => {
                return match error.errno() {
                    Some(Errno::NETUNREACH | Errno::HOSTUNREACH | Errno::ACCESS | Errno::INVAL) => Ok(None),
                    _ => Err(error),
                };
            }
        };
        Ok(answers.iter().find(|answer| answer.kind() == NEW_ROUTE).map(read))
    }
}

fn read(answer: &Message) -> FoundRoute {
    let attribute = |kind| answer.attributes.find(kind);
    FoundRoute {
        link: attribute(LINK).and_then(ne32_of).unwrap_or_default(),
        gateway: attribute(GATEWAY).and_then(address_of),
        mtu: attribute(METRICS).and_then(|metrics| find(metrics, METRIC_MTU)).and_then(ne32_of),
        table: attribute(TABLE).and_then(ne32_of).unwrap_or_else(|| u32::from(answer.byte_at(4))),
        is_local: answer.byte_at(7) == LOCAL,
    }
}
