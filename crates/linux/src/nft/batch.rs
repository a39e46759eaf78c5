//! Operations in one transaction, in order.
//!
//! Source: kernel `nf_tables.h` (`enum nf_tables_msg_types`, `NFTA_TABLE_…`, `NFTA_CHAIN_…`, `NFTA_SET_…`).

use netlink_packet_core::{NLM_F_APPEND, NLM_F_CREATE, NLM_F_EXCL};

use super::chain::BaseChain;
use super::rule::Rule;
use super::set::{Element, Mapped, PIECE, Set, number_and_length};
use super::{Table, kind};
use crate::attributes::Attributes;
use crate::netfilter::Message;
use crate::netlink::Request;

const NEW_TABLE: u8 = 0;
const DELETE_TABLE: u8 = 2;
const NEW_CHAIN: u8 = 3;
const DELETE_CHAIN: u8 = 5;
const NEW_RULE: u8 = 6;
const DELETE_RULE: u8 = 8;
const NEW_SET: u8 = 9;
const DELETE_SET: u8 = 11;
const NEW_ELEMENTS: u8 = 12;
const DELETE_ELEMENTS: u8 = 14;

const TABLE_NAME: u16 = 1;
const TABLE_FLAGS: u16 = 2;

const CHAIN_TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;
const CHAIN_HOOK: u16 = 4;
const CHAIN_POLICY: u16 = 5;
const CHAIN_TYPE: u16 = 7;
const HOOK_NUMBER: u16 = 1;
const HOOK_PRIORITY: u16 = 2;

const RULE_TABLE: u16 = 1;
const RULE_CHAIN: u16 = 2;
const RULE_HANDLE: u16 = 3;

const SET_TABLE: u16 = 1;
const SET_NAME: u16 = 2;
const SET_FLAGS: u16 = 3;
const SET_KEY_TYPE: u16 = 4;
const SET_KEY_LENGTH: u16 = 5;
const SET_DATA_TYPE: u16 = 6;
const SET_DATA_LENGTH: u16 = 7;
const SET_DESCRIPTION: u16 = 9;
const SET_ID: u16 = 10;
const SET_USER_DATA: u16 = 13;

/// `NFT_SET_MAP`.
const SET_IS_MAP: u32 = 8;

/// `NFT_SET_INTERVAL`.
const SET_OF_INTERVALS: u32 = 4;

/// `NFT_SET_CONCAT`.
const SET_OF_FIELDS: u32 = 0x80;

/// `NFTA_SET_DESC_CONCAT`.
const DESCRIPTION_FIELDS: u16 = 2;

/// `NFTA_SET_FIELD_LEN`.
const FIELD_LENGTH: u16 = 1;

const LIST_TABLE: u16 = 1;
const LIST_SET: u16 = 2;
const LIST_ELEMENTS: u16 = 3;

/// `NFTA_LIST_ELEM`.
const LIST_ITEM: u16 = 1;

/// Transaction under construction; [`super::Nft::commit`] executes it.
#[derive(Debug, Default)]
#[must_use = "nothing happens before it is committed"]
pub struct Batch {
    requests: Vec<Request<Message>>,
    /// Description of each request, so that the error can name the refused one.
    operations: Vec<String>,
    has_removal: bool,
}

impl Batch {
    /// Returns an empty transaction; committing it does nothing.
    pub fn new() -> Batch {
        Batch::default()
    }

    /// Whether there are no operations.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// `nft add table inet weft`
    pub fn ensure_table(&mut self, table: Table<'_>) -> &mut Batch {
        let mut attributes = Attributes::new();
        attributes.text(TABLE_NAME, table.name).be32(TABLE_FLAGS, 0);
        self.push(table, NEW_TABLE, NLM_F_CREATE, attributes, || format!("add table {table}"))
    }

    /// `nft create table inet weft`
    pub fn create_table(&mut self, table: Table<'_>) -> &mut Batch {
        let mut attributes = Attributes::new();
        attributes.text(TABLE_NAME, table.name).be32(TABLE_FLAGS, 0);
        self.push(table, NEW_TABLE, NLM_F_CREATE | NLM_F_EXCL, attributes, || format!("create table {table}"))
    }

    /// `nft delete table inet weft`, with everything in it.
    pub fn delete_table(&mut self, table: Table<'_>) -> &mut Batch {
        let mut attributes = Attributes::new();
        attributes.text(TABLE_NAME, table.name);
        self.has_removal = true;
        self.push(table, DELETE_TABLE, 0, attributes, || format!("delete table {table}"))
    }

    /// `nft add chain inet weft web`: a chain that other rules jump to.
    pub fn ensure_chain(&mut self, table: Table<'_>, chain: &str) -> &mut Batch {
        let attributes = chain_attributes(table, chain);
        self.push(table, NEW_CHAIN, NLM_F_CREATE, attributes, || format!("add chain {table} {chain}"))
    }

    /// `nft create chain inet weft web`
    pub fn create_chain(&mut self, table: Table<'_>, chain: &str) -> &mut Batch {
        let attributes = chain_attributes(table, chain);
        let flags = NLM_F_CREATE | NLM_F_EXCL;
        self.push(table, NEW_CHAIN, flags, attributes, || format!("create chain {table} {chain}"))
    }

    /// `nft add chain inet weft postrouting '{ type nat hook postrouting priority 100; policy accept; }'`
    ///
    /// An existing chain must have this hook, priority and type; the policy is changed.
    pub fn ensure_base_chain(&mut self, table: Table<'_>, chain: &str, base: BaseChain) -> &mut Batch {
        let BaseChain { chain_type, hook, priority, policy } = base;
        let mut attributes = chain_attributes(table, chain);
        attributes
            .nested(CHAIN_HOOK, |inner| {
                inner.be32(HOOK_NUMBER, hook.number()).be32(HOOK_PRIORITY, priority as u32);
            })
            .be32(CHAIN_POLICY, policy.number())
            .text(CHAIN_TYPE, chain_type.word());
        self.push(table, NEW_CHAIN, NLM_F_CREATE, attributes, || format!("add base chain {table} {chain}"))
    }

    /// `nft flush chain inet weft web`
    pub fn flush_chain(&mut self, table: Table<'_>, chain: &str) -> &mut Batch {
        let mut attributes = Attributes::new();
        attributes.text(RULE_TABLE, table.name).text(RULE_CHAIN, chain);
        self.push(table, DELETE_RULE, 0, attributes, || format!("flush chain {table} {chain}"))
    }

    /// `nft delete chain inet weft web`; the chain must have no rules, and no rule may jump to it.
    pub fn delete_chain(&mut self, table: Table<'_>, chain: &str) -> &mut Batch {
        let attributes = chain_attributes(table, chain);
        self.has_removal = true;
        self.push(table, DELETE_CHAIN, 0, attributes, || format!("delete chain {table} {chain}"))
    }

    /// Removes a chain and the rules in it, if it exists; the table must exist.
    ///
    /// `nft 'add chain inet weft web; flush chain inet weft web; delete chain inet weft web'`
    pub fn discard_chain(&mut self, table: Table<'_>, chain: &str) -> &mut Batch {
        self.ensure_chain(table, chain).flush_chain(table, chain).delete_chain(table, chain)
    }

    /// `nft add set inet weft masq4 '{ type ipv4_addr; }'`, or `add map …`
    ///
    /// An existing set must have this type.
    pub fn ensure_set(&mut self, table: Table<'_>, set: &Set<'_>) -> &mut Batch {
        let Set { name, key, data, intervals } = set;
        let (key_type, key_length) = number_and_length(key);
        let mut flags = if matches!(data, Mapped::Nothing) { 0 } else { SET_IS_MAP };
        if *intervals {
            flags |= if key.len() > 1 { SET_OF_INTERVALS | SET_OF_FIELDS } else { SET_OF_INTERVALS };
        }
        let mut attributes = Attributes::new();
        attributes.text(SET_TABLE, table.name).text(SET_NAME, name).be32(SET_FLAGS, flags);
        attributes.be32(SET_KEY_TYPE, key_type).be32(SET_KEY_LENGTH, key_length);
        if let Some((data_type, data_length)) = data.number_and_length() {
            attributes.be32(SET_DATA_TYPE, data_type);
            if data_length > 0 {
                attributes.be32(SET_DATA_LENGTH, data_length);
            }
        }
        if flags & SET_OF_FIELDS != 0 {
            attributes.nested(SET_DESCRIPTION, |description| {
                description.nested(DESCRIPTION_FIELDS, |fields| {
                    for field in *key {
                        fields.nested(LIST_ITEM, |item| {
                            item.be32(FIELD_LENGTH, field.length() as u32);
                        });
                    }
                });
            });
        }
        attributes.bytes(SET_USER_DATA, &set.user_data());
        // The id only has to be unique in this batch, so the index is used.
        attributes.be32(SET_ID, self.requests.len() as u32 + 1);
        self.push(table, NEW_SET, NLM_F_CREATE, attributes, || format!("add set {table} {name}"))
    }

    /// `nft flush set inet weft masq4`
    pub fn flush_set(&mut self, table: Table<'_>, set: &str) -> &mut Batch {
        let mut attributes = Attributes::new();
        attributes.text(LIST_TABLE, table.name).text(LIST_SET, set);
        self.push(table, DELETE_ELEMENTS, 0, attributes, || format!("flush set {table} {set}"))
    }

    /// `nft delete set inet weft masq4`; no rule may use the set.
    pub fn delete_set(&mut self, table: Table<'_>, set: &str) -> &mut Batch {
        let mut attributes = Attributes::new();
        attributes.text(SET_TABLE, table.name).text(SET_NAME, set);
        self.has_removal = true;
        self.push(table, DELETE_SET, 0, attributes, || format!("delete set {table} {set}"))
    }

    /// `nft add element inet weft masq4 '{ 10.1.0.5 comment "default/web eth0" }'`
    ///
    /// An existing element keeps the old comment. If a map has the key with another value, the kernel refuses the batch
    /// with [`crate::Kind::Exists`].
    pub fn add_elements(&mut self, table: Table<'_>, set: &str, elements: &[Element]) -> &mut Batch {
        self.elements(table, set, elements, NEW_ELEMENTS, NLM_F_CREATE)
    }

    /// `nft create element …`: fails with [`crate::Kind::Exists`] if an element exists.
    pub fn create_elements(&mut self, table: Table<'_>, set: &str, elements: &[Element]) -> &mut Batch {
        self.elements(table, set, elements, NEW_ELEMENTS, NLM_F_CREATE | NLM_F_EXCL)
    }

    /// `nft delete element inet weft masq4 '{ 10.1.0.5 }'`; every element must exist.
    pub fn delete_elements(&mut self, table: Table<'_>, set: &str, elements: &[Element]) -> &mut Batch {
        self.has_removal = true;
        self.elements(table, set, elements, DELETE_ELEMENTS, 0)
    }

    /// Removes set elements, or map entries with these values, if they exist.
    ///
    /// The set must exist. `nft 'add element …; delete element …'`
    pub fn discard_elements(&mut self, table: Table<'_>, set: &str, elements: &[Element]) -> &mut Batch {
        self.add_elements(table, set, elements).delete_elements(table, set, elements)
    }

    /// `nft add rule inet weft web …`: at the end of the chain.
    pub fn add_rule(&mut self, table: Table<'_>, chain: &str, rule: &Rule) -> &mut Batch {
        self.rule(table, chain, rule, NLM_F_CREATE | NLM_F_APPEND)
    }

    /// `nft insert rule inet weft web …`: at the beginning of the chain.
    pub fn insert_rule(&mut self, table: Table<'_>, chain: &str, rule: &Rule) -> &mut Batch {
        self.rule(table, chain, rule, NLM_F_CREATE)
    }

    /// `nft delete rule inet weft web handle 7`; for the handle see [`super::Nft::rules`].
    pub fn delete_rule(&mut self, table: Table<'_>, chain: &str, handle: u64) -> &mut Batch {
        let mut attributes = Attributes::new();
        attributes.text(RULE_TABLE, table.name).text(RULE_CHAIN, chain).be64(RULE_HANDLE, handle);
        self.has_removal = true;
        self.push(table, DELETE_RULE, 0, attributes, || {
            format!("delete rule {table} {chain} handle {handle}")
        })
    }

    fn rule(&mut self, table: Table<'_>, chain: &str, rule: &Rule, flags: u16) -> &mut Batch {
        let mut attributes = Attributes::new();
        attributes.text(RULE_TABLE, table.name).text(RULE_CHAIN, chain);
        rule.write(&mut attributes);
        self.push(table, NEW_RULE, flags, attributes, || format!("add rule {table} {chain}"))
    }

    /// Adds as many messages as the elements need.
    fn elements(
        &mut self,
        table: Table<'_>,
        set: &str,
        elements: &[Element],
        message: u8,
        flags: u16,
    ) -> &mut Batch {
        let mut rest = elements;
        while !rest.is_empty() {
            let mut taken = 0;
            let mut attributes = Attributes::new();
            attributes.text(LIST_TABLE, table.name).text(LIST_SET, set);
            attributes.nested(LIST_ELEMENTS, |list| {
                while taken < rest.len() && list.len() < PIECE {
                    list.nested(LIST_ITEM, |item| rest[taken].write(item));
                    taken += 1;
                }
            });
            rest = &rest[taken..];
            let verb = if message == NEW_ELEMENTS { "add" } else { "delete" };
            self.push(table, message, flags, attributes, || format!("{verb} element {table} {set}"));
        }
        self
    }

    fn push(
        &mut self,
        table: Table<'_>,
        message: u8,
        flags: u16,
        attributes: Attributes,
        operation: impl FnOnce() -> String,
    ) -> &mut Batch {
        let message = Message { kind: kind(message), family: table.family.number(), resource: 0, attributes };
        self.requests.push(Request { flags, message });
        self.operations.push(operation());
        self
    }

    /// Whether an operation removes an existing object, which the kernel frees only later. Chains and sets are flushed
    /// even when they are new, so flushing does not count.
    pub(super) fn has_removal(&self) -> bool {
        self.has_removal
    }

    pub(super) fn into_parts(self) -> (Vec<Request<Message>>, Vec<String>) {
        let Batch { requests, operations, .. } = self;
        (requests, operations)
    }
}

fn chain_attributes(table: Table<'_>, chain: &str) -> Attributes {
    let mut attributes = Attributes::new();
    attributes.text(CHAIN_TABLE, table.name).text(CHAIN_NAME, chain);
    attributes
}
