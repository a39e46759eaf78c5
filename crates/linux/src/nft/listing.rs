//! Lists rules and elements; comments tell which ones belong to weft.

use super::comment;
use super::set::{Data, Element, ListedElement};
use super::{BaseChain, ChainType, Family, Hook, ListLimit, Nft, Policy, Table, kind};
use crate::attributes::{Attributes, be64_of, find, items};
use crate::error::{Error, Kind};
use crate::netfilter::Message;
use crate::netlink::Request;

const GET_TABLE: u8 = 1;
const GET_CHAIN: u8 = 4;
const GET_RULE: u8 = 7;
const GET_SET: u8 = 10;
const GET_ELEMENTS: u8 = 13;

const TABLE_NAME: u16 = 1;
const TABLE_FLAGS: u16 = 2;

/// `NFT_TABLE_F_DORMANT`
const DORMANT: u32 = 1;

const CHAIN_TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;
const CHAIN_HOOK: u16 = 4;
const CHAIN_POLICY: u16 = 5;
const CHAIN_TYPE: u16 = 7;
const HOOK_NUMBER: u16 = 1;
const HOOK_PRIORITY: u16 = 2;

/// `NF_DROP`
const DROP: &[u8] = &[0; 4];

const RULE_TABLE: u16 = 1;
const RULE_CHAIN: u16 = 2;
const RULE_HANDLE: u16 = 3;
const RULE_EXPRESSIONS: u16 = 4;
const RULE_USER_DATA: u16 = 7;

const SET_TABLE: u16 = 1;
const SET_NAME: u16 = 2;

const LIST_TABLE: u16 = 1;
const LIST_SET: u16 = 2;
const LIST_ELEMENTS: u16 = 3;
const LIST_ITEM: u16 = 1;

const EXPRESSION_NAME: u16 = 1;
const EXPRESSION_DATA: u16 = 2;
const COUNTER_BYTES: u16 = 1;
const COUNTER_PACKETS: u16 = 2;

/// Traffic that a rule with a counter has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Number of packets.
    pub packets: u64,
    /// Number of bytes.
    pub bytes: u64,
}

/// Existing rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedRule {
    /// Handle for [`super::Batch::delete_rule`]; a table never uses one twice.
    pub handle: u64,
    /// Comment; empty if there is none.
    pub comment: String,
    /// Counter value; `None` if the rule has no counter.
    pub counted: Option<Counted>,
}

/// Base chain with type `filter`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedChain {
    /// Table name.
    pub table: String,
    /// Chain name.
    pub name: String,
    /// Whether the policy is `drop`.
    pub drops: bool,
}

// === impl Counted ===

impl Counted {
    /// Reads the first counter among a rule's expressions.
    fn read(expressions: &[u8]) -> Option<Counted> {
        let is_counter = |item: &[u8]| {
            find(item, EXPRESSION_NAME).map(crate::attributes::text).as_deref() == Some("counter")
        };
        let (_, counter) = items(expressions).find(|(_, item)| is_counter(item))?;
        let data = find(counter, EXPRESSION_DATA)?;
        let value = |kind| find(data, kind).and_then(be64_of);
        Some(Counted { packets: value(COUNTER_PACKETS)?, bytes: value(COUNTER_BYTES)? })
    }
}

// === impl BaseChain ===

impl BaseChain {
    /// Reads a base chain from attributes.
    fn read(attributes: &Attributes) -> Option<BaseChain> {
        let number = |bytes: &[u8]| Some(u32::from_be_bytes(bytes.try_into().ok()?));
        let place = attributes.find(CHAIN_HOOK)?;
        let (hook, priority) = (number(find(place, HOOK_NUMBER)?)?, number(find(place, HOOK_PRIORITY)?)?);
        let policy = number(attributes.find(CHAIN_POLICY)?)?;
        let word = crate::attributes::text(attributes.find(CHAIN_TYPE)?);
        Some(BaseChain {
            chain_type: ChainType::ALL.into_iter().find(|one| one.word() == word)?,
            hook: Hook::ALL.into_iter().find(|one| one.number() == hook)?,
            priority: priority.cast_signed(),
            policy: Policy::ALL.into_iter().find(|one| one.number() == policy)?,
        })
    }
}

// === impl Nft ===

impl Nft {
    /// Lists the table names in a family. `nft list tables inet`
    pub fn tables(&mut self, family: Family) -> Result<Vec<String>, Error> {
        let request = Message {
            kind: kind(GET_TABLE),
            family: family.number(),
            resource: 0,
            attributes: Attributes::new(),
        };
        let answers = self.list(&request, || format!("list tables {}", family.word()))?;
        let own = answers.iter().filter(|answer| answer.family == family.number());
        Ok(own.filter_map(|answer| answer.attributes.find(TABLE_NAME)).map(crate::attributes::text).collect())
    }

    /// Lists the tables in all families. `nft list tables`
    pub fn all_tables(&mut self) -> Result<Vec<(Family, String)>, Error> {
        let request =
            Message { kind: kind(GET_TABLE), family: 0, resource: 0, attributes: Attributes::new() };
        let answers = self.list(&request, || "list tables".to_owned())?;
        let table = |answer: &Message| {
            let family = Family::ALL.into_iter().find(|family| family.number() == answer.family)?;
            Some((family, answer.attributes.find(TABLE_NAME).map(crate::attributes::text)?))
        };
        Ok(answers.iter().filter_map(table).collect())
    }

    /// Whether a table exists and is dormant, so that chains in it see no packet. `nft list table inet weft`
    pub fn is_dormant(&mut self, table: Table<'_>) -> Result<bool, Error> {
        let mut attributes = Attributes::new();
        attributes.text(TABLE_NAME, table.name);
        let message =
            Message { kind: kind(GET_TABLE), family: table.family.number(), resource: 0, attributes };
        let answers = match self.socket.exchange(vec![Request { flags: 0, message }]) {
            Ok(answers) => answers,
            Err(failure) => {
                let error = failure.of(format!("find table {table}"));
                return if error.kind() == Kind::Absent { Ok(false) } else { Err(error) };
            }
        };
        let flags = answers.iter().find_map(|answer| answer.attributes.find(TABLE_FLAGS)?.try_into().ok());
        Ok(flags.is_some_and(|flags| u32::from_be_bytes(flags) & DORMANT != 0))
    }

    /// Lists the chain names in a table, including base chains. `nft list chains ip`
    pub fn chains(&mut self, table: Table<'_>) -> Result<Vec<String>, Error> {
        let answers = self.dump(table, GET_CHAIN, Attributes::new(), || format!("list chains {table}"))?;
        let text = |answer: &Message, kind| answer.attributes.find(kind).map(crate::attributes::text);
        let own = answers.iter().filter(|answer| {
            answer.family == table.family.number() && text(answer, CHAIN_TABLE).as_deref() == Some(table.name)
        });
        Ok(own.filter_map(|answer| text(answer, CHAIN_NAME)).collect())
    }

    /// Lists a family's base chains that have type filter and this hook. `nft list chains ip`
    pub fn filters(&mut self, family: Family, hook: Hook) -> Result<Vec<ListedChain>, Error> {
        let request = Message {
            kind: kind(GET_CHAIN),
            family: family.number(),
            resource: 0,
            attributes: Attributes::new(),
        };
        let answers = self.list(&request, || format!("list chains {}", family.word()))?;
        let chain = |answer: &Message| {
            let attributes = &answer.attributes;
            let number = find(attributes.find(CHAIN_HOOK)?, HOOK_NUMBER)?;
            let is_meant = answer.family == family.number()
                && number == hook.number().to_be_bytes()
                && crate::attributes::text(attributes.find(CHAIN_TYPE)?) == ChainType::Filter.word();
            is_meant.then_some(())?;
            Some(ListedChain {
                table: crate::attributes::text(attributes.find(CHAIN_TABLE)?),
                name: crate::attributes::text(attributes.find(CHAIN_NAME)?),
                drops: attributes.find(CHAIN_POLICY) == Some(DROP),
            })
        };
        Ok(answers.iter().filter_map(chain).collect())
    }

    /// Whether a chain with this name exists. `nft list chain inet weft web`
    pub fn has_chain(&mut self, table: Table<'_>, chain: &str) -> Result<bool, Error> {
        let mut attributes = Attributes::new();
        attributes.text(CHAIN_TABLE, table.name).text(CHAIN_NAME, chain);
        let message =
            Message { kind: kind(GET_CHAIN), family: table.family.number(), resource: 0, attributes };
        match self.socket.exchange(vec![Request { flags: 0, message }]) {
            Ok(_) => Ok(true),
            Err(failure) => {
                let error = failure.of(format!("find chain {table} {chain}"));
                if error.kind() == Kind::Absent { Ok(false) } else { Err(error) }
            }
        }
    }

    /// Returns a base chain; `None` if there is none with this name, or if weft does not use that hook or type.
    /// `nft list chain inet weft postrouting`
    pub fn base_chain(&mut self, table: Table<'_>, chain: &str) -> Result<Option<BaseChain>, Error> {
        let mut attributes = Attributes::new();
        attributes.text(CHAIN_TABLE, table.name).text(CHAIN_NAME, chain);
        let message =
            Message { kind: kind(GET_CHAIN), family: table.family.number(), resource: 0, attributes };
        match self.socket.exchange(vec![Request { flags: 0, message }]) {
            Ok(answers) => Ok(answers.iter().find_map(|answer| BaseChain::read(&answer.attributes))),
            Err(failure) => {
                let error = failure.of(format!("find chain {table} {chain}"));
                if error.kind() == Kind::Absent { Ok(None) } else { Err(error) }
            }
        }
    }

    /// Lists a chain's rules, in order. `nft -a list chain inet weft web`
    ///
    /// The list is empty if the chain or the table does not exist.
    pub fn rules(&mut self, table: Table<'_>, chain: &str) -> Result<Vec<ListedRule>, Error> {
        let mut attributes = Attributes::new();
        attributes.text(RULE_TABLE, table.name).text(RULE_CHAIN, chain);
        let answers = self.dump(table, GET_RULE, attributes, || format!("list chain {table} {chain}"))?;
        let rule = |answer: Message| {
            let attributes = &answer.attributes;
            // Kernels before 4.20 do not filter by chain.
            let of = |kind, name: &str| {
                attributes.find(kind).map(crate::attributes::text).as_deref() == Some(name)
            };
            let handle = attributes.find(RULE_HANDLE).and_then(be64_of)?;
            let comment = attributes.find(RULE_USER_DATA).map(comment::of_user_data).unwrap_or_default();
            (of(RULE_TABLE, table.name) && of(RULE_CHAIN, chain)).then(|| {
                let counted = attributes.find(RULE_EXPRESSIONS).and_then(Counted::read);
                ListedRule { handle, comment, counted }
            })
        };
        Ok(answers.into_iter().filter_map(rule).collect())
    }

    /// Lists the names of sets and maps in a table. `nft list sets table inet weft`
    pub fn sets(&mut self, table: Table<'_>) -> Result<Vec<String>, Error> {
        let mut attributes = Attributes::new();
        attributes.text(SET_TABLE, table.name);
        let answers = self.dump(table, GET_SET, attributes, || format!("list sets {table}"))?;
        let text = |answer: &Message, kind| answer.attributes.find(kind).map(crate::attributes::text);
        let own = answers.iter().filter(|answer| text(answer, SET_TABLE).as_deref() == Some(table.name));
        Ok(own.filter_map(|answer| text(answer, SET_NAME)).collect())
    }

    /// Lists the elements in a set or map, in any order. `nft list set inet weft masq4`
    ///
    /// # Errors
    /// [`crate::Kind::Absent`]: the set or its table does not exist.
    pub fn elements(&mut self, table: Table<'_>, set: &str) -> Result<Vec<ListedElement>, Error> {
        let mut attributes = Attributes::new();
        attributes.text(LIST_TABLE, table.name).text(LIST_SET, set);
        let answers = self.dump(table, GET_ELEMENTS, attributes, || format!("list set {table} {set}"))?;
        let mut elements = Vec::new();
        for answer in &answers {
            for (_, item) in answer.attributes.find(LIST_ELEMENTS).into_iter().flat_map(items) {
                elements.extend(Element::read(item));
            }
        }
        Ok(elements)
    }

    /// Finds the element with this key, in constant time. `nft get element inet weft masq4 '{ 10.1.0.5 }'`
    ///
    /// `None` if the element, the set or the table does not exist.
    pub fn element(
        &mut self,
        table: Table<'_>,
        set: &str,
        key: &Data,
    ) -> Result<Option<ListedElement>, Error> {
        let mut attributes = Attributes::new();
        attributes.text(LIST_TABLE, table.name).text(LIST_SET, set);
        attributes.nested(LIST_ELEMENTS, |list| {
            list.nested(LIST_ITEM, |item| Element::new(key.clone()).write(item));
        });
        let message =
            Message { kind: kind(GET_ELEMENTS), family: table.family.number(), resource: 0, attributes };
        let answers = match self.socket.exchange(vec![Request { flags: 0, message }]) {
            Ok(answers) => answers,
            Err(failure) => {
                let error = failure.of(format!("find element {table} {set}"));
                return if error.kind() == Kind::Absent { Ok(None) } else { Err(error) };
            }
        };
        let mut found =
            answers.iter().flat_map(|answer| answer.attributes.find(LIST_ELEMENTS)).flat_map(items);
        Ok(found.find_map(|(_, item)| Element::read(item)))
    }

    fn dump(
        &mut self,
        table: Table<'_>,
        message: u8,
        attributes: Attributes,
        operation: impl Fn() -> String,
    ) -> Result<Vec<Message>, Error> {
        let request = Message { kind: kind(message), family: table.family.number(), resource: 0, attributes };
        self.list(&request, operation)
    }

    /// Requests a list within the limit.
    fn list(&mut self, request: &Message, operation: impl Fn() -> String) -> Result<Vec<Message>, Error> {
        let Some(limit) = &mut self.limit else {
            return self.socket.dump(0, request).map_err(|failure| failure.of(operation()));
        };
        let ListLimit { left, bytes_max, time_max } = limit;
        let answers = self.socket.dump_within(left, 0, request).map_err(|failure| failure.of(operation()))?;
        answers.ok_or_else(|| {
            let why = format!(
                "this namespace's lists have more than {bytes_max} bytes, or take more than {time_max:?}"
            );
            Error::exceeded(operation(), why)
        })
    }
}
