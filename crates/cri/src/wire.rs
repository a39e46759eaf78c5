//! Edits protobuf messages without knowing the schema; every other record is copied byte for byte.
//!
//! A record is kept, dropped or replaced as a whole, and bytes that are not a valid message are left alone. To add a
//! field, append a record: protobuf merges embedded messages and concatenates repeated fields.
//!
//! Source: Protocol Buffers, «Encoding».

/// Maximum depth at which nested messages are searched; the input is untrusted.
const DEPTH_MAX: usize = 8;

/// One record in a message: field and value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Field number.
    pub number: u32,
    /// Whole record, including key and length.
    pub whole: &'a [u8],
    /// Content, for record types that have a length; `None` for numbers.
    pub content: Option<&'a [u8]>,
}

/// Error for bytes that are not a protobuf message.
#[derive(Debug, PartialEq, Eq)]
pub struct Malformed;

/// Iterator over a message's records.
#[derive(Debug)]
pub struct Records<'a>(&'a [u8]);

/// Iterates over a message's records lazily, so that a message with millions of them takes no memory. Stops after the
/// first malformed record.
pub fn records(message: &[u8]) -> Records<'_> {
    Records(message)
}

// === impl Records ===

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, Malformed>;

    fn next(&mut self) -> Option<Result<Record<'a>, Malformed>> {
        if self.0.is_empty() {
            return None;
        }
        let (found, rest) = match first(self.0) {
            Some((record, rest)) => (Ok(record), rest),
            None => (Err(Malformed), &[][..]),
        };
        self.0 = rest;
        Some(found)
    }
}

/// Splits off the first record; returns it with the remaining bytes.
fn first(message: &[u8]) -> Option<(Record<'_>, &[u8])> {
    let (key, key_length) = varint(message)?;
    let number = u32::try_from(key >> 3).ok().filter(|number| *number > 0)?;
    let rest = message.get(key_length..)?;
    let (length, content) = match key & 7 {
        0 => (varint(rest)?.1, None),
        1 => (8, None),
        2 => {
            let (length, prefix) = varint(rest)?;
            let length = usize::try_from(length).ok()?;
            let end = prefix.checked_add(length)?;
            (end, Some(rest.get(prefix..end)?))
        }
        5 => (4, None),
        // Groups no longer exist in proto3.
        _ => return None,
    };
    let (whole, rest) = message.split_at_checked(key_length.checked_add(length)?)?;
    Some((Record { number, whole, content }, rest))
}

fn varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut value = 0u64;
    for (index, byte) in bytes.iter().take(10).enumerate() {
        value |= u64::from(byte & 0x7f).checked_shl(u32::try_from(index).ok()? * 7)?;
        if byte & 0x80 == 0 {
            return Some((value, index + 1));
        }
    }
    None
}

fn push_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(u8::try_from(value & 0x7f).unwrap_or_default() | 0x80);
        value >>= 7;
    }
    out.push(u8::try_from(value).unwrap_or_default());
}

/// Appends a record with a length, that is, a message or a string.
pub fn push(out: &mut Vec<u8>, number: u32, content: &[u8]) {
    push_varint(out, u64::from(number) << 3 | 2);
    push_varint(out, content.len() as u64);
    out.extend_from_slice(content);
}

/// Appends a boolean, even if it is `false`.
pub fn push_bool(out: &mut Vec<u8>, number: u32, value: bool) {
    push_varint(out, u64::from(number) << 3);
    out.push(u8::from(value));
}

/// Returns an encoded entry for a `map<string, string>`.
pub fn entry(key: &str, value: &str) -> Vec<u8> {
    let mut out = Vec::new();
    push(&mut out, 1, key.as_bytes());
    push(&mut out, 2, value.as_bytes());
    out
}

/// Whether the message contains these bytes anywhere.
pub fn contains(message: &[u8], needle: &[u8]) -> bool {
    let Some(first) = needle.first() else { return true };
    let mut rest = message;
    while let Some(at) = rest.iter().position(|byte| byte == first) {
        rest = rest.get(at..).unwrap_or_default();
        if rest.starts_with(needle) {
            return true;
        }
        rest = rest.get(1..).unwrap_or_default();
    }
    false
}

/// Returns the message with each record edited by `each`; `None` if it is malformed or nothing changes.
pub fn edit(message: &[u8], mut each: impl FnMut(&Record<'_>) -> Option<Vec<u8>>) -> Option<Vec<u8>> {
    if records(message).any(|record| record.is_err()) {
        return None;
    }
    let mut out = Vec::with_capacity(message.len());
    let mut changed = false;
    for record in records(message).flatten() {
        match each(&record) {
            None => out.extend_from_slice(record.whole),
            Some(replacement) => {
                out.extend_from_slice(&replacement);
                changed = true;
            }
        }
    }
    changed.then_some(out)
}

/// Returns the message without the entry `key`, removed from every `map<string, string>` at any depth; `None` if no map
/// contains it.
pub fn without_entry(message: &[u8], key: &str) -> Option<Vec<u8>> {
    let mut needle = Vec::new();
    push(&mut needle, 1, key.as_bytes());
    strip(message, &needle, DEPTH_MAX)
}

fn strip(message: &[u8], needle: &[u8], depth: usize) -> Option<Vec<u8>> {
    if depth == 0 || !contains(message, needle) {
        return None;
    }
    edit(message, |record| {
        let content = record.content?;
        if content.starts_with(needle) && is_entry(content) {
            return Some(Vec::new());
        }
        let stripped = strip(content, needle, depth - 1)?;
        let mut out = Vec::new();
        push(&mut out, record.number, &stripped);
        Some(out)
    })
}

/// Whether a record looks like a map entry: a string key, a string value, and nothing else.
fn is_entry(content: &[u8]) -> bool {
    records(content).take(3).count() <= 2
        && records(content).all(|record| {
            record.is_ok_and(|record| matches!(record.number, 1 | 2) && record.content.is_some())
        })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Part of a generated message: random content, nested messages, and the entry to remove.
    #[derive(Clone, Debug)]
    enum Part {
        Other(u32, Vec<u8>),
        Number(u32, u64),
        Inner(u32, Vec<Part>),
        Ours(u32),
    }

    const KEY: &str = "weft.dev/attachments";

    fn part() -> impl Strategy<Value = Part> {
        let number = 1u32..1_000_000;
        let leaf = prop_oneof![
            (number.clone(), prop::collection::vec(any::<u8>(), 0..40))
                .prop_map(|(n, bytes)| Part::Other(n, bytes)),
            (number.clone(), any::<u64>()).prop_map(|(n, value)| Part::Number(n, value)),
            number.prop_map(Part::Ours),
        ];
        leaf.prop_recursive(4, 40, 6, move |inner| {
            (1u32..1_000_000, prop::collection::vec(inner, 0..6)).prop_map(|(n, parts)| Part::Inner(n, parts))
        })
    }

    /// Encodes the parts that `keep` selects.
    fn bytes(parts: &[Part], keep: &dyn Fn(&Part) -> bool) -> Vec<u8> {
        let mut out = Vec::new();
        for part in parts.iter().filter(|part| keep(part)) {
            match part {
                Part::Other(number, content) => push(&mut out, *number, content),
                Part::Number(number, value) => {
                    push_varint(&mut out, u64::from(*number) << 3);
                    push_varint(&mut out, *value);
                }
                Part::Inner(number, parts) => push(&mut out, *number, &bytes(parts, keep)),
                Part::Ours(number) => push(&mut out, *number, &entry(KEY, "[{}]")),
            }
        }
        out
    }

    proptest! {
        #[test]
        fn wire_entry_is_removed_from_any_message(parts in prop::collection::vec(part(), 0..8)) {
            let (with, without) = (bytes(&parts, &|_| true), bytes(&parts, &|part| !matches!(part, Part::Ours(_))));
            let stripped = without_entry(&with, KEY).unwrap_or_else(|| with.clone());
            prop_assert_eq!(stripped, without);
        }

        #[test]
        fn wire_random_bytes_are_handled(message in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = without_entry(&message, KEY);
            prop_assert_eq!(edit(&message, |_| None), None);
            if let Ok(records) = records(&message).collect::<Result<Vec<_>, _>>() {
                let again: Vec<u8> = records.iter().flat_map(|record| record.whole.to_vec()).collect();
                prop_assert_eq!(again, message);
            }
        }
    }

    fn message(fields: &[(u32, &[u8])]) -> Vec<u8> {
        let mut out = Vec::new();
        fields.iter().for_each(|(number, content)| push(&mut out, *number, content));
        out
    }

    #[test]
    fn wire_entry_is_removed_and_everything_else_is_unchanged() {
        let ours = entry("weft.dev/x", "1");
        let other = entry("other", "weft.dev/x");
        let inner = message(&[(1, b"id"), (7, &other), (7, &ours), (99, b"\xff\xfe")]);
        let outer = message(&[(1, &inner), (1, &message(&[(1, b"second")])), (5, b"weft.dev/x")]);
        let expected_inner = message(&[(1, b"id"), (7, &other), (99, b"\xff\xfe")]);
        let expected = message(&[(1, &expected_inner), (1, &message(&[(1, b"second")])), (5, b"weft.dev/x")]);
        assert_eq!(without_entry(&outer, "weft.dev/x"), Some(expected));
        assert_eq!(without_entry(&outer, "weft.dev/y"), None);
    }

    #[test]
    fn wire_malformed_message_is_left_unchanged() {
        for bytes in [&b"\x0a\x05ab"[..], b"\x00", b"\x0b", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"] {
            assert_eq!(records(bytes).last(), Some(Err(Malformed)), "{bytes:?}");
            assert_eq!(edit(bytes, |_| Some(Vec::new())), None);
        }
        assert_eq!(records(b"").next(), None);
    }
}
