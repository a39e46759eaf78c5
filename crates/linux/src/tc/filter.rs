//! Filters: redirect packets that a link receives, and choose a class by source or destination address.
//!
//! Source: tc-u32(8), tc-mirred(8); kernel `include/uapi/linux/pkt_cls.h`, `tc_act/tc_mirred.h`.

use std::net::IpAddr;

use ipnet::IpNet;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};

use super::{HANDLE, INGRESS_HANDLE, KIND, OPTIONS};
use crate::attributes::{find, items, ne32_of};
use crate::error::Error;
use crate::rtnl::Rtnl;
use crate::rtnl::message::{GET_FILTER, Message, NEW_FILTER};

/// `TCA_U32_CLASSID`
const CLASS: u16 = 1;
/// `TCA_U32_SEL`
const SELECTOR: u16 = 5;
/// `TCA_U32_ACT`
const ACTIONS: u16 = 7;
/// `TCA_ACT_KIND`
const ACTION_KIND: u16 = 1;
/// `TCA_ACT_OPTIONS`
const ACTION_OPTIONS: u16 = 2;
/// `TCA_MIRRED_PARMS`
const MIRRED: u16 = 2;
/// `TC_U32_TERMINAL`
const TERMINAL: u8 = 1;
/// `TC_ACT_STOLEN`
const STOLEN: u32 = 4;
/// `TCA_EGRESS_REDIR`
const REDIRECT: u32 = 1;
/// `ETH_P_ALL`
const ALL: u16 = 3;
/// `ETH_P_IP`
const IPV4: u16 = 0x0800;
/// `ETH_P_IPV6`
const IPV6: u16 = 0x86dd;

/// Packet address to compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Source address.
    Source,
    /// Destination address.
    Destination,
}

impl Side {
    /// Returns the byte offset of the address in the family's header.
    fn offset(self, address: IpAddr) -> usize {
        match (self, address) {
            (Side::Source, IpAddr::V4(_)) => 12,
            (Side::Destination, IpAddr::V4(_)) => 16,
            (Side::Source, IpAddr::V6(_)) => 8,
            (Side::Destination, IpAddr::V6(_)) => 24,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Side::Source => "src",
            Side::Destination => "dst",
        }
    }
}

impl Rtnl {
    /// Redirects all packets that a link receives to another link, which sends them.
    ///
    /// `tc filter add dev NAME parent ffff: protocol all prio 1 u32 match u32 0 0 flowid 1:1 action mirred egress
    /// redirect dev TO`
    pub fn redirect(&mut self, link: u32, name: &str, to: u32) -> Result<(), Error> {
        let mut message = Message::traffic(NEW_FILTER, link, 0, INGRESS_HANDLE, info(1, ALL));
        let mut mirred = Vec::new();
        for number in [0, 0, STOLEN, 0, 0, REDIRECT, to] {
            mirred.extend(number.to_ne_bytes());
        }
        message.attributes.text(KIND, "u32").nested(OPTIONS, |options| {
            options.ne32(CLASS, HANDLE | 1).bytes(SELECTOR, &selector(&[(0, 0, 0)])).nested(
                ACTIONS,
                |actions| {
                    actions.nested(1, |action| {
                        action.text(ACTION_KIND, "mirred").nested(ACTION_OPTIONS, |options| {
                            options.bytes(MIRRED, &mirred);
                        });
                    });
                },
            );
        });
        self.execute(NLM_F_CREATE | NLM_F_EXCL, message, || format!("redirect {name} to link {to}"))
    }

    /// Lists the links to which received packets are redirected, by index. `tc filter show dev NAME ingress`
    pub fn redirections(&mut self, link: u32, name: &str) -> Result<Vec<u32>, Error> {
        Ok(self.filters_of(link, name)?.iter().flat_map(targets).collect())
    }

    /// Whether there are filters for received packets. `tc filter show dev NAME ingress`
    pub(super) fn has_filters(&mut self, link: u32, name: &str) -> Result<bool, Error> {
        Ok(!self.filters_of(link, name)?.is_empty())
    }

    fn filters_of(&mut self, link: u32, name: &str) -> Result<Vec<Message>, Error> {
        let query = Message::traffic(GET_FILTER, link, 0, INGRESS_HANDLE, 0);
        let mut answers = self.dump(&query, || format!("list the filters of {name}"))?;
        answers.retain(|answer| answer.kind() == NEW_FILTER);
        Ok(answers)
    }

    /// Sends packets to or from a subnet through a class at the link's root.
    ///
    /// `tc filter add dev NAME parent 1: protocol ip|ipv6 prio 16|15 u32 match ip|ip6 src|dst NET flowid 1:MINOR`
    pub fn choose_class(
        &mut self,
        link: u32,
        name: &str,
        side: Side,
        subnet: IpNet,
        minor: u16,
    ) -> Result<(), Error> {
        // Filters with the same priority must have the same protocol.
        let info = if subnet.addr().is_ipv4() { info(16, IPV4) } else { info(15, IPV6) };
        let mut message = Message::traffic(NEW_FILTER, link, 0, HANDLE, info);
        message.attributes.text(KIND, "u32").nested(OPTIONS, |options| {
            options.ne32(CLASS, HANDLE | u32::from(minor)).bytes(SELECTOR, &selector(&keys(side, subnet)));
        });
        self.execute(NLM_F_CREATE | NLM_F_EXCL, message, || {
            format!("send {} {subnet} through class 1:{minor:x} of {name}", side.word())
        })
    }
}

/// Packs a filter's priority and protocol into one number.
fn info(priority: u32, protocol: u16) -> u32 {
    priority << 16 | u32::from(protocol.to_be())
}

/// Comparison: mask, value, and header offset in bytes.
type Key = (u32, u32, usize);

/// Returns the comparisons that test whether an address is in a subnet, one for each 32 relevant bits. The subnet with
/// all addresses gets one comparison that is always true.
fn keys(side: Side, subnet: IpNet) -> Vec<Key> {
    let (mask, network) = match subnet {
        IpNet::V4(net) => (net.netmask().octets().to_vec(), net.network().octets().to_vec()),
        IpNet::V6(net) => (net.netmask().octets().to_vec(), net.network().octets().to_vec()),
    };
    let number = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().unwrap_or_default());
    let words = mask.chunks(4).zip(network.chunks(4)).enumerate();
    let base = side.offset(subnet.addr());
    let mut keys: Vec<Key> = words
        .map(|(at, (mask, value))| (number(mask), number(value), base + 4 * at))
        .filter(|(mask, _, _)| *mask != 0)
        .collect();
    if keys.is_empty() {
        keys.push((0, 0, 0));
    }
    keys
}

/// Encodes `struct tc_u32_sel` with the keys.
fn selector(keys: &[Key]) -> Vec<u8> {
    let mut bytes = vec![0; 16];
    bytes[0] = TERMINAL;
    bytes[2] = u8::try_from(keys.len()).unwrap_or(u8::MAX);
    for (mask, value, offset) in keys {
        bytes.extend(mask.to_be_bytes());
        bytes.extend(value.to_be_bytes());
        bytes.extend(u32::try_from(*offset).unwrap_or_default().to_ne_bytes());
        bytes.extend([0; 4]);
    }
    bytes
}

fn targets(message: &Message) -> Vec<u32> {
    let actions = message.attributes.find(OPTIONS).and_then(|options| find(options, ACTIONS));
    let target = |action: &[u8]| {
        let parameters = find(find(action, ACTION_OPTIONS)?, MIRRED)?;
        parameters.get(24..28).and_then(ne32_of)
    };
    items(actions.unwrap_or_default()).filter_map(|(_, action)| target(action)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tc_filter_compares_a_subnet_by_words() {
        let net = |text: &str| text.parse::<IpNet>().unwrap();
        assert_eq!(keys(Side::Destination, net("10.1.2.3/16")), [(0xffff_0000, 0x0a01_0000, 16)]);
        assert_eq!(
            keys(Side::Source, net("fd01:2::/48")),
            [(u32::MAX, 0xfd01_0002, 8), (0xffff_0000, 0, 12)]
        );
        assert_eq!(keys(Side::Source, net("0.0.0.0/0")), [(0, 0, 0)]);
    }
}
