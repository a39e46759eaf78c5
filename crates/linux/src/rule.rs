//! Policy rules: which routing table a packet is looked up in.
//!
//! Source: rtnetlink(7) RTM_NEWRULE/GETRULE/DELRULE; ip-rule(8).

use ipnet::IpNet;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::route::RouteProtocol;
use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleMessage};

use crate::address::family;
use crate::error::Error;
use crate::route::{Family, PROTOCOL};
use crate::rtnl::Rtnl;

/// A rule by source address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Packets from here …
    pub from: IpNet,
    /// … are looked up in this table.
    pub table: u32,
    /// Order among rules; lower first. Absent: the kernel puts it before all but the first.
    pub priority: Option<u32>,
    /// Who made it.
    pub protocol: u8,
}

impl Rule {
    /// A rule of ours.
    pub fn new(from: IpNet, table: u32) -> Rule {
        Rule { from, table, priority: None, protocol: PROTOCOL }
    }

    fn message(&self) -> RuleMessage {
        let Rule { from, table, priority, protocol } = self;
        let mut message = RuleMessage::default();
        message.header.family = family(from.addr());
        message.header.src_len = from.prefix_len();
        message.header.table = u8::try_from(*table).unwrap_or(0);
        message.header.action = RuleAction::ToTable;
        message.attributes.push(RuleAttribute::Source(from.addr()));
        message.attributes.push(RuleAttribute::Table(*table));
        message.attributes.push(RuleAttribute::Protocol(RouteProtocol::from(*protocol)));
        message.attributes.extend(priority.map(RuleAttribute::Priority));
        message
    }
}

impl Rtnl {
    /// Adds a rule. `ip rule add from PREFIX lookup TABLE [priority N]`
    pub fn add_rule(&mut self, rule: &Rule) -> Result<(), Error> {
        let message = RouteNetlinkMessage::NewRule(rule.message());
        self.execute(NLM_F_CREATE | NLM_F_EXCL, message, || {
            format!("add rule from {} lookup {}", rule.from, rule.table)
        })
    }

    /// Removes a rule. `ip rule del from PREFIX lookup TABLE [priority N]`
    pub fn delete_rule(&mut self, rule: &Rule) -> Result<(), Error> {
        let message = RouteNetlinkMessage::DelRule(rule.message());
        self.execute(0, message, || format!("remove rule from {} lookup {}", rule.from, rule.table))
    }

    /// The rules by source address of a family; others are left out. `ip -4|-6 rule show`
    pub fn rules(&mut self, of: Family) -> Result<Vec<Rule>, Error> {
        let mut query = RuleMessage::default();
        query.header.family = match of {
            Family::V4 => netlink_packet_route::AddressFamily::Inet,
            Family::V6 => netlink_packet_route::AddressFamily::Inet6,
        };
        let answers = self.dump(&RouteNetlinkMessage::GetRule(query), || "list rules".to_owned())?;
        Ok(answers.into_iter().filter_map(by_source).collect())
    }
}

fn by_source(message: RouteNetlinkMessage) -> Option<Rule> {
    let RouteNetlinkMessage::NewRule(message) = message else { return None };
    let length = message.header.src_len;
    let mut table = u32::from(message.header.table);
    let (mut from, mut priority, mut protocol) = (None, None, 0);
    for attribute in message.attributes {
        match attribute {
            RuleAttribute::Source(ip) => from = IpNet::new(ip, length).ok(),
            RuleAttribute::Table(number) => table = number,
            RuleAttribute::Priority(number) => priority = Some(number),
            RuleAttribute::Protocol(number) => protocol = number.into(),
            _ => {}
        }
    }
    Some(Rule { from: from?, table, priority, protocol })
}
