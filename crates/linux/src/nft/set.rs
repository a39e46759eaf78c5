//! Sets and maps, in which a rule looks up a key in one step, however many elements there are.
//!
//! Adding or removing an element takes the same time for any number of elements, and no rule changes. Everything that
//! is added and removed with a pod should therefore be in a set.
//!
//! A concatenation consists of several fields, each padded to four bytes: `ipv4_addr . inet_service`.
//!
//! Source: kernel `nf_tables.h` (`NFTA_SET_…`, `NFTA_SET_ELEM_…`); type numbers: nft `include/datatype.h`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::comment;
use crate::attributes::Attributes;

const ELEMENT_KEY: u16 = 1;
const ELEMENT_DATA: u16 = 2;
const ELEMENT_FLAGS: u16 = 3;
const ELEMENT_USER_DATA: u16 = 6;
const ELEMENT_KEY_END: u16 = 10;

/// `NFT_SET_ELEM_INTERVAL_END`.
const INTERVAL_END: u32 = 1;

const DATA_VALUE: u16 = 1;
const DATA_VERDICT: u16 = 2;
const VERDICT_CODE: u16 = 1;
const VERDICT_CHAIN: u16 = 2;

/// `NFT_DATA_VERDICT`: the data type in a verdict map.
const VERDICT_TYPE: u32 = 0xffff_ff00;

/// Bits that each type takes in the type number of a concatenation; nft `TYPE_BITS`.
const TYPE_BITS: u32 = 6;

/// Register size in bytes, to which each field in a concatenation is padded.
const REGISTER: usize = 4;

/// Entries in a set's user data that nft reads: `NFTNL_UDATA_SET_KEYBYTEORDER` and `…_DATABYTEORDER`.
const KEY_BYTE_ORDER: u8 = 0;
const DATA_BYTE_ORDER: u8 = 1;

/// nft's numbers for byte orders: `BYTEORDER_HOST_ENDIAN`, `BYTEORDER_BIG_ENDIAN`.
const OF_THIS_MACHINE: u32 = 1;
const OF_THE_NETWORK: u32 = 2;

/// Approximate size limit for a message with elements, in bytes, because an attribute has at most 64 KiB.
pub(super) const PIECE: usize = 32 * 1024;

/// Field type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// `ipv4_addr`, 4 bytes.
    Ipv4,
    /// `ipv6_addr`, 16 bytes.
    Ipv6,
    /// `ether_addr`, 6 bytes.
    Ether,
    /// `inet_proto`: a transport protocol number, 1 byte.
    Protocol,
    /// `inet_service`: a port in network byte order, 2 bytes.
    Port,
    /// `mark`: 4 bytes in this machine's byte order.
    Mark,
    /// `iface_index`: 4 bytes in this machine's byte order.
    LinkIndex,
    /// `ifname`: a link name, 16 bytes.
    Link,
}

/// Set, or a map if it has data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set<'a> {
    pub(super) name: &'a str,
    pub(super) key: &'a [Type],
    pub(super) data: Mapped<'a>,
    /// Whether an element is a range of keys.
    pub(super) intervals: bool,
}

/// Values in a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mapped<'a> {
    /// None: this is a set.
    Nothing,
    Verdicts,
    Values(&'a [Type]),
}

/// Element in a set or map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Element {
    key: Data,
    end: End,
    target: Target,
    comment: String,
}

/// Form that an element takes in a set of ranges.
#[derive(Clone, Debug, PartialEq, Eq)]
enum End {
    /// A single key, or the first key in a range that the next element ends.
    Open,
    /// The first key after a range, in a set with one field.
    AfterRange,
    /// Last keys of the ranges, in a set with several fields.
    Last(Data),
}

/// Existing element.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedElement {
    /// Key, in the form that [`Element::new`] takes.
    pub key: Data,
    /// Value in a map; empty in a set and in a verdict map.
    pub value: Data,
    /// Comment; empty if there is none.
    pub comment: String,
    /// Verdict in a verdict map.
    pub verdict: Option<Verdict>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Target {
    Nothing,
    Verdict(Verdict),
    Value(Data),
}

/// Verdict about a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The packet continues at the next hook.
    Accept,
    /// The packet is dropped.
    Drop,
    /// Evaluation continues in the calling chain.
    Return,
    /// Evaluates another chain and returns.
    Jump(String),
    /// Evaluates another chain and does not return.
    Goto(String),
}

/// Encoded value: one field, or several fields that are each padded to four bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Data(Vec<u8>);

// === impl Type ===

impl Type {
    /// Returns nft's type number.
    fn number(self) -> u32 {
        match self {
            Type::Ipv4 => 7,
            Type::Ipv6 => 8,
            Type::Ether => 9,
            Type::Protocol => 12,
            Type::Port => 13,
            Type::Mark => 19,
            Type::LinkIndex => 20,
            Type::Link => 41,
        }
    }

    /// Returns the field length in bytes.
    #[must_use]
    pub fn length(self) -> usize {
        match self {
            Type::Protocol => 1,
            Type::Port => 2,
            Type::Ipv4 | Type::Mark | Type::LinkIndex => 4,
            Type::Ether => 6,
            Type::Ipv6 | Type::Link => 16,
        }
    }

    /// Returns the byte order in which nft shows the field; it treats names as numbers.
    fn byte_order(self) -> u32 {
        match self {
            Type::Mark | Type::LinkIndex | Type::Link => OF_THIS_MACHINE,
            Type::Ipv4 | Type::Ipv6 | Type::Ether | Type::Protocol | Type::Port => OF_THE_NETWORK,
        }
    }

    /// Returns the length that the field takes in registers, in bytes.
    pub(super) fn padded(self) -> usize {
        self.length().next_multiple_of(REGISTER)
    }
}

/// Returns type number and length for a field or a concatenation.
pub(super) fn number_and_length(types: &[Type]) -> (u32, u32) {
    let number = types.iter().fold(0, |number, kind| number << TYPE_BITS | kind.number());
    let length = match types {
        [single] => single.length(),
        several => several.iter().map(|kind| kind.padded()).sum(),
    };
    (number, length as u32)
}

// === impl Set ===

impl<'a> Set<'a> {
    /// Describes a set of keys: `set NAME { type ipv4_addr . inet_service; }`
    #[must_use]
    pub fn of(name: &'a str, key: &'a [Type]) -> Set<'a> {
        Set { name, key, data: Mapped::Nothing, intervals: false }
    }

    /// Describes a set of key ranges: `set NAME { type ipv4_addr; flags interval; }`
    ///
    /// Elements come from [`Element::range`] for one field, and from [`Element::to`] for several fields. Ranges must
    /// not overlap. A set with several fields requires kernel 5.6.
    #[must_use]
    pub fn of_ranges(name: &'a str, key: &'a [Type]) -> Set<'a> {
        Set { name, key, data: Mapped::Nothing, intervals: true }
    }

    /// Returns the user data that nft needs to print a set: without it, link names are shown as `""`.
    ///
    /// A concatenation has no byte order, but each field in it has one.
    pub(super) fn user_data(&self) -> Vec<u8> {
        let Set { name: _, key, data, intervals: _ } = self;
        let values = match data {
            Mapped::Nothing | Mapped::Verdicts => &[],
            Mapped::Values(types) => *types,
        };
        let mut bytes = Vec::new();
        for (what, types) in [(KEY_BYTE_ORDER, *key), (DATA_BYTE_ORDER, values)] {
            if let [only] = types {
                let order = only.byte_order().to_ne_bytes();
                bytes.extend([what, order.len() as u8]);
                bytes.extend(order);
            }
        }
        bytes
    }

    /// Describes a map from keys to verdicts: `map NAME { type ipv4_addr : verdict; }`
    #[must_use]
    pub fn to_verdicts(name: &'a str, key: &'a [Type]) -> Set<'a> {
        Set { name, key, data: Mapped::Verdicts, intervals: false }
    }

    /// Describes a map from keys to values: `map NAME { type inet_service : ipv4_addr . inet_service; }`
    #[must_use]
    pub fn to_values(name: &'a str, key: &'a [Type], data: &'a [Type]) -> Set<'a> {
        Set { name, key, data: Mapped::Values(data), intervals: false }
    }
}

impl<'a> Set<'a> {
    /// Returns the set name.
    pub fn name(&self) -> &'a str {
        self.name
    }

    /// Returns the key's field types.
    pub fn key(&self) -> &'a [Type] {
        self.key
    }

    /// Returns the same set with another name and key.
    #[must_use]
    pub fn with_key<'b>(&self, name: &'b str, key: &'b [Type]) -> Set<'b>
    where
        'a: 'b,
    {
        Set { name, key, data: self.data, intervals: self.intervals }
    }
}

impl Mapped<'_> {
    /// Returns type number and length for the data.
    pub(super) fn number_and_length(self) -> Option<(u32, u32)> {
        match self {
            Mapped::Nothing => None,
            Mapped::Verdicts => Some((VERDICT_TYPE, 0)),
            Mapped::Values(types) => Some(number_and_length(types)),
        }
    }
}

// === impl Element ===

impl Element {
    /// Builds a set element.
    pub fn new(key: impl Into<Data>) -> Element {
        Element { key: key.into(), end: End::Open, target: Target::Nothing, comment: String::new() }
    }

    /// Builds the elements for an address range: `10.0.0.1-10.0.0.9`
    pub fn range(first: IpAddr, last: IpAddr) -> Vec<Element> {
        let after = match last {
            IpAddr::V4(last) => u32::from(last).checked_add(1).map(|next| Data::from(Ipv4Addr::from(next))),
            IpAddr::V6(last) => u128::from(last).checked_add(1).map(|next| Data::from(Ipv6Addr::from(next))),
        };
        let end = after.map(|key| Element { end: End::AfterRange, ..Element::new(key) });
        [Some(Element::new(first)), end].into_iter().flatten().collect()
    }

    /// Makes each field a range that begins with the key: `tcp . 80-90`
    #[must_use]
    pub fn to(mut self, last: impl Into<Data>) -> Element {
        self.end = End::Last(last.into());
        self
    }

    /// Turns the element into a verdict map entry: `KEY : VERDICT`
    #[must_use]
    pub fn verdict(mut self, verdict: Verdict) -> Element {
        self.target = Target::Verdict(verdict);
        self
    }

    /// Turns the element into a map entry: `KEY : VALUE`
    #[must_use]
    pub fn value(mut self, value: impl Into<Data>) -> Element {
        self.target = Target::Value(value.into());
        self
    }

    /// `KEY comment "…"`; at most 128 bytes, quotes and control characters become `_`.
    #[must_use]
    pub fn comment(mut self, comment: impl Into<String>) -> Element {
        self.comment = comment.into();
        self
    }

    /// Returns the element in the form in which a list shows it.
    #[must_use]
    pub fn listed(&self) -> ListedElement {
        let Element { key, end: _, target, comment } = self;
        let (value, verdict) = match target {
            Target::Nothing => (Data::default(), None),
            Target::Verdict(verdict) => (Data::default(), Some(verdict.clone())),
            Target::Value(value) => (value.clone(), None),
        };
        ListedElement { key: key.clone(), value, comment: comment.clone(), verdict }
    }

    pub(super) fn write(&self, attributes: &mut Attributes) {
        let Element { key, end, target, comment } = self;
        attributes.nested(ELEMENT_KEY, |inner| key.write(inner));
        match end {
            End::Open => {}
            End::AfterRange => {
                attributes.be32(ELEMENT_FLAGS, INTERVAL_END);
            }
            End::Last(last) => {
                attributes.nested(ELEMENT_KEY_END, |inner| last.write(inner));
            }
        }
        match target {
            Target::Nothing => {}
            Target::Verdict(verdict) => {
                attributes.nested(ELEMENT_DATA, |inner| verdict.write(inner));
            }
            Target::Value(value) => {
                attributes.nested(ELEMENT_DATA, |inner| value.write(inner));
            }
        }
        if !comment.is_empty() {
            attributes.bytes(ELEMENT_USER_DATA, &comment::user_data(comment));
        }
    }

    /// Reads an element that [`Element::write`] wrote.
    pub(super) fn read(attributes: &[u8]) -> Option<ListedElement> {
        use crate::attributes::find;
        let key = find(find(attributes, ELEMENT_KEY)?, DATA_VALUE)?;
        let data = find(attributes, ELEMENT_DATA);
        let value = data.and_then(|data| find(data, DATA_VALUE)).unwrap_or_default();
        let verdict = data.and_then(|data| find(data, DATA_VERDICT)).and_then(Verdict::read);
        let comment = find(attributes, ELEMENT_USER_DATA).map(comment::of_user_data).unwrap_or_default();
        Some(ListedElement { key: Data(key.to_vec()), value: Data(value.to_vec()), comment, verdict })
    }
}

// === impl Verdict ===

impl Verdict {
    fn read(attributes: &[u8]) -> Option<Verdict> {
        use crate::attributes::find;
        let chain = || find(attributes, VERDICT_CHAIN).map(crate::attributes::text);
        match i32::from_be_bytes(find(attributes, VERDICT_CODE)?.try_into().ok()?) {
            0 => Some(Verdict::Drop),
            1 => Some(Verdict::Accept),
            -3 => chain().map(Verdict::Jump),
            -4 => chain().map(Verdict::Goto),
            -5 => Some(Verdict::Return),
            _ => None,
        }
    }

    pub(super) fn write(&self, attributes: &mut Attributes) {
        // `NF_…` and `NFT_…` codes.
        let (code, chain) = match self {
            Verdict::Drop => (0, None),
            Verdict::Accept => (1, None),
            Verdict::Jump(chain) => (-3, Some(chain)),
            Verdict::Goto(chain) => (-4, Some(chain)),
            Verdict::Return => (-5_i32, None),
        };
        attributes.nested(DATA_VERDICT, |inner| {
            inner.be32(VERDICT_CODE, code as u32);
            if let Some(chain) = chain {
                inner.text(VERDICT_CHAIN, chain);
            }
        });
    }
}

// === impl ListedElement ===

impl ListedElement {
    /// Builds an element with another key, but with the same value or verdict and the same comment.
    pub fn at(&self, key: Data) -> Element {
        let ListedElement { key: _, value, comment, verdict } = self;
        let element = Element::new(key).comment(comment.as_str());
        match verdict {
            Some(verdict) => element.verdict(verdict.clone()),
            None if value.bytes().is_empty() => element,
            None => element.value(value.clone()),
        }
    }
}

// === impl Data ===

impl Data {
    /// Appends another field, for a concatenated key.
    #[must_use]
    pub fn and(mut self, next: impl Into<Data>) -> Data {
        self.0.resize(self.0.len().next_multiple_of(REGISTER), 0);
        self.0.extend(next.into().0);
        self.0.resize(self.0.len().next_multiple_of(REGISTER), 0);
        self
    }

    /// Returns a concatenation without the last field, which has the type `last`.
    #[must_use]
    pub fn without(&self, last: Type) -> Data {
        Data(self.0[..self.0.len().saturating_sub(last.padded())].to_vec())
    }

    /// Encodes a link name.
    #[must_use]
    pub fn link(name: &str) -> Data {
        let mut bytes = name.as_bytes().to_vec();
        // A name that is too long belongs to no link. Neither does its prefix, because names have at most 15 bytes.
        bytes.resize(Type::Link.length(), 0);
        Data(bytes)
    }

    /// Encodes a transport protocol number.
    #[must_use]
    pub fn protocol(number: u8) -> Data {
        Data(vec![number])
    }

    /// Encodes a mark or a link index, in this machine's byte order.
    #[must_use]
    pub fn number(number: u32) -> Data {
        Data(number.to_ne_bytes().to_vec())
    }

    /// Wraps key bytes from a list.
    #[must_use]
    pub fn of_bytes(bytes: Vec<u8>) -> Data {
        Data(bytes)
    }

    /// Returns the bytes as the kernel has them.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub(super) fn write(&self, attributes: &mut Attributes) {
        attributes.bytes(DATA_VALUE, &self.0);
    }
}

impl From<[u8; 4]> for Data {
    fn from(bytes: [u8; 4]) -> Data {
        Data(bytes.to_vec())
    }
}

/// A MAC address.
impl From<[u8; 6]> for Data {
    fn from(bytes: [u8; 6]) -> Data {
        Data(bytes.to_vec())
    }
}

impl From<Ipv4Addr> for Data {
    fn from(address: Ipv4Addr) -> Data {
        Data(address.octets().to_vec())
    }
}

impl From<Ipv6Addr> for Data {
    fn from(address: Ipv6Addr) -> Data {
        Data(address.octets().to_vec())
    }
}

impl From<IpAddr> for Data {
    fn from(address: IpAddr) -> Data {
        match address {
            IpAddr::V4(address) => address.into(),
            IpAddr::V6(address) => address.into(),
        }
    }
}

/// A port in network byte order.
impl From<u16> for Data {
    fn from(port: u16) -> Data {
        Data(port.to_be_bytes().to_vec())
    }
}
