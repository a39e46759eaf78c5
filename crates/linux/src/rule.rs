//! Policy rules, which choose the routing table for a packet.
//!
//! Source: rtnetlink(7) RTM_NEWRULE/GETRULE/DELRULE; ip-rule(8).

use ipnet::IpNet;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};

use crate::attributes::{address_of, ne32_of};
use crate::error::Error;
use crate::route::{Family, PROTOCOL};
use crate::rtnl::Rtnl;
use crate::rtnl::message::{DELETE_RULE, GET_RULE, Message, NEW_RULE, RouteFields, family};

/// `FRA_SRC`
const SOURCE: u16 = 2;
/// `FRA_PRIORITY`
const PRIORITY: u16 = 6;
/// `FRA_TABLE`
const TABLE: u16 = 15;
/// `FRA_PROTOCOL`
const MADE_BY: u16 = 21;
/// `FR_ACT_TO_TBL`
const TO_TABLE: u8 = 1;

/// Policy rule that matches the source address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Source prefix.
    pub from: IpNet,
    /// Routing table.
    pub table: u32,
    /// Priority, lowest first. With `None`, the kernel puts the rule before all others except the first.
    pub priority: Option<u32>,
    /// Protocol number, which tells what created the rule.
    pub protocol: u8,
}

impl Rule {
    /// Describes a rule with weft's protocol number.
    pub fn new(from: IpNet, table: u32) -> Rule {
        Rule { from, table, priority: None, protocol: PROTOCOL }
    }

    fn message(&self, kind: u16) -> Message {
        let Rule { from, table, priority, protocol } = self;
        let fields = RouteFields {
            source: from.prefix_len(),
            table: u8::try_from(*table).unwrap_or(0),
            action: TO_TABLE,
            ..RouteFields::default()
        };
        let mut message = Message::route(kind, family(from.addr()), fields);
        message.attributes.address(SOURCE, from.addr()).ne32(TABLE, *table).byte(MADE_BY, *protocol);
        if let Some(priority) = priority {
            message.attributes.ne32(PRIORITY, *priority);
        }
        message
    }
}

impl Rtnl {
    /// Adds a rule. `ip rule add from PREFIX lookup TABLE [priority N]`
    pub fn add_rule(&mut self, rule: &Rule) -> Result<(), Error> {
        let message = rule.message(NEW_RULE);
        self.execute(NLM_F_CREATE | NLM_F_EXCL, message, || {
            format!("add rule from {} lookup {}", rule.from, rule.table)
        })
    }

    /// Removes a rule. `ip rule del from PREFIX lookup TABLE [priority N]`
    pub fn delete_rule(&mut self, rule: &Rule) -> Result<(), Error> {
        let message = rule.message(DELETE_RULE);
        self.execute(0, message, || format!("remove rule from {} lookup {}", rule.from, rule.table))
    }

    /// Lists the tables that any rule in a family leads to, whatever the conditions are.
    pub fn tables_of_rules(&mut self, of: Family) -> Result<Vec<u32>, Error> {
        Ok(self.all_rules(of.number())?.iter().map(table).collect())
    }

    /// Lists a family's rules that match only the source address; others are left out. `ip -4|-6 rule show`
    pub fn rules(&mut self, of: Family) -> Result<Vec<Rule>, Error> {
        Ok(self.all_rules(of.number())?.iter().filter_map(by_source).collect())
    }

    /// Lists every rule in a family; empty if the kernel lacks the family (`ipv6.disable=1`).
    fn all_rules(&mut self, family: u8) -> Result<Vec<Message>, Error> {
        let query = Message::route(GET_RULE, family, RouteFields::default());
        let mut answers = self.dump_family(&query, || "list rules".to_owned())?;
        answers.retain(|answer| answer.kind() == NEW_RULE && answer.byte_at(0) == family);
        Ok(answers)
    }
}

/// Returns the table, whose number may be too large for the byte in the header.
fn table(message: &Message) -> u32 {
    message.attributes.find(TABLE).and_then(ne32_of).unwrap_or_else(|| u32::from(message.byte_at(4)))
}

fn by_source(message: &Message) -> Option<Rule> {
    let number = |kind| message.attributes.find(kind).and_then(ne32_of);
    let from = message.attributes.find(SOURCE).and_then(address_of)?;
    let protocol = message.attributes.find(MADE_BY).and_then(|value| value.first().copied());
    Some(Rule {
        from: IpNet::new(from, message.byte_at(2)).ok()?,
        table: table(message),
        priority: number(PRIORITY),
        protocol: protocol.unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A family that has no routing rules in any kernel: `AF_APPLETALK`.
    const WITHOUT_RULES: u8 = 5;

    #[test]
    fn rules_of_a_family_that_the_kernel_lacks_are_none() {
        let mut net = Rtnl::open().expect("a routing socket");
        let query = Message::route(GET_RULE, WITHOUT_RULES, RouteFields::default());
        let refused = net.dump(&query, String::new).expect_err("the kernel has no such rules");
        assert_eq!(refused.errno(), Some(rustix::io::Errno::AFNOSUPPORT));
        assert!(net.all_rules(WITHOUT_RULES).expect("none").is_empty());
    }
}
