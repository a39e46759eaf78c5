//! Rule expressions: load into a register, compare, look up, decide.
//!
//! There are 16 register slots of four bytes, counted from 0; longer fields take several.
//!
//! Source: kernel `nf_tables.h` (`NFTA_EXPR_…` and one `NFTA_…` block for each expression).

use super::set::{Data, Verdict};
use crate::attributes::Attributes;

/// `NFTA_LIST_ELEM`.
const LIST_ITEM: u16 = 1;
const NAME: u16 = 1;
const DATA: u16 = 2;

/// `NFT_REG_VERDICT`.
const VERDICT_REGISTER: u32 = 0;

/// `NFT_REG32_00`: the first slot.
const FIRST_SLOT: u32 = 8;

/// `NFTA_CMP_OP`, `NFT_CMP_…`.
#[derive(Clone, Copy)]
pub(super) enum Comparison {
    Equal = 0,
    NotEqual = 1,
    AtMost = 3,
    AtLeast = 5,
}

/// Header from which a packet offset counts: `NFT_PAYLOAD_…`.
#[derive(Clone, Copy)]
pub(super) enum Base {
    Link,
    Network,
    Transport,
}

/// Expression list under construction.
#[derive(Debug, Clone, Default)]
pub(super) struct Expressions(pub(super) Attributes);

impl Expressions {
    /// Loads `meta KEY`.
    pub(super) fn load_meta(&mut self, key: u32, slot: u32) {
        self.push("meta", |data| {
            data.be32(2, key).be32(1, FIRST_SLOT + slot);
        });
    }

    /// Sets `meta KEY` from a slot.
    pub(super) fn store_meta(&mut self, key: u32, slot: u32) {
        self.push("meta", |data| {
            data.be32(2, key).be32(3, FIRST_SLOT + slot);
        });
    }

    /// Loads packet bytes.
    pub(super) fn load_payload(&mut self, base: Base, offset: u32, length: u32, slot: u32) {
        self.push("payload", |data| {
            data.be32(1, FIRST_SLOT + slot).be32(2, base as u32).be32(3, offset).be32(4, length);
        });
    }

    /// Loads `ct KEY`.
    pub(super) fn load_connection(&mut self, key: u32, slot: u32) {
        self.push("ct", |data| {
            data.be32(2, key).be32(1, FIRST_SLOT + slot);
        });
    }

    /// Loads `fib daddr type`.
    pub(super) fn load_destination_type(&mut self, slot: u32) {
        const ADDRESS_TYPE: u32 = 3;
        const OF_DESTINATION: u32 = 2;
        self.push("fib", |data| {
            data.be32(1, FIRST_SLOT + slot).be32(2, ADDRESS_TYPE).be32(3, OF_DESTINATION);
        });
    }

    /// Converts a four-byte number in a slot from this machine's byte order to that of comparisons.
    pub(super) fn swap_bytes(&mut self, slot: u32) {
        const TO_NETWORK: u32 = 1;
        self.push("byteorder", |data| {
            data.be32(1, FIRST_SLOT + slot)
                .be32(2, FIRST_SLOT + slot)
                .be32(3, TO_NETWORK)
                .be32(4, 4)
                .be32(5, 4);
        });
    }

    /// Loads a constant.
    pub(super) fn load_constant(&mut self, value: &Data, slot: u32) {
        self.push("immediate", |data| {
            data.be32(1, FIRST_SLOT + slot).nested(2, |inner| value.write(inner));
        });
    }

    /// Computes `(slot & mask) ^ flip` in place.
    pub(super) fn bitwise(&mut self, slot: u32, mask: &[u8], flip: &[u8]) {
        self.push("bitwise", |data| {
            data.be32(1, FIRST_SLOT + slot).be32(2, FIRST_SLOT + slot).be32(3, mask.len() as u32);
            data.nested(4, |inner| {
                inner.bytes(1, mask);
            });
            data.nested(5, |inner| {
                inner.bytes(1, flip);
            });
        });
    }

    /// Ends the rule unless the comparison with the slot is true.
    pub(super) fn compare(&mut self, slot: u32, comparison: Comparison, value: &[u8]) {
        self.push("cmp", |data| {
            data.be32(1, FIRST_SLOT + slot).be32(2, comparison as u32).nested(3, |inner| {
                inner.bytes(1, value);
            });
        });
    }

    /// Ends the rule unless the key in slot 0 is in the set (or is not).
    pub(super) fn look_up(&mut self, set: &str, comparison: Comparison) {
        self.push("lookup", |data| {
            data.text(1, set).be32(2, FIRST_SLOT).be32(5, comparison as u32);
        });
    }

    /// Replaces the key in slot 0 with the value that the map has for it; ends the rule if there is none.
    pub(super) fn map(&mut self, map: &str) {
        self.push("lookup", |data| {
            data.text(1, map).be32(2, FIRST_SLOT).be32(3, FIRST_SLOT);
        });
    }

    /// Executes the verdict that the verdict map has for the key in slot 0.
    pub(super) fn map_to_verdict(&mut self, map: &str) {
        self.push("lookup", |data| {
            data.text(1, map).be32(2, FIRST_SLOT).be32(3, VERDICT_REGISTER);
        });
    }

    /// Adds an iptables match: an extension with this name, revision and parameters.
    pub(super) fn extension(&mut self, name: &str, revision: u32, information: &[u8]) {
        self.push("match", |data| {
            data.text(1, name).be32(2, revision).bytes(3, information);
        });
    }

    pub(super) fn decide(&mut self, verdict: &Verdict) {
        self.push("immediate", |data| {
            data.be32(1, VERDICT_REGISTER).nested(2, |inner| verdict.write(inner));
        });
    }

    /// Adds a `counter` that starts at zero.
    pub(super) fn count(&mut self) {
        self.push("counter", |data| {
            data.be64(1, 0).be64(2, 0);
        });
    }

    /// Adds `notrack`, which has no parameters.
    pub(super) fn untrack(&mut self) {
        self.0.nested(LIST_ITEM, |item| {
            item.text(NAME, "notrack");
        });
    }

    /// Adds `masquerade` with `NF_NAT_RANGE_…` flags.
    pub(super) fn masquerade(&mut self, flags: u32) {
        self.push("masq", |data| {
            if flags != 0 {
                data.be32(1, flags);
            }
        });
    }

    /// Adds `snat` (0) or `dnat` (1) to the address in a slot, and optionally to the port in another.
    pub(super) fn translate(&mut self, direction: u32, family: u8, address: u32, port: Option<u32>) {
        self.push("nat", |data| {
            data.be32(1, direction).be32(2, u32::from(family)).be32(3, FIRST_SLOT + address);
            if let Some(port) = port {
                data.be32(5, FIRST_SLOT + port);
            }
        });
    }

    fn push(&mut self, name: &str, fill: impl FnOnce(&mut Attributes)) {
        self.0.nested(LIST_ITEM, |item| {
            item.text(NAME, name).nested(DATA, fill);
        });
    }
}
