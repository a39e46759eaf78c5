//! Identity of an Event's note: two attempts that fail in the same way have the same one.
//!
//! Words that differ at each attempt are left out: identifiers of containers, requests and objects, generated names of
//! links and files, namespaces, processes, times, durations and source ports. Networks, interfaces, addresses and numbers
//! that a person writes stay.

use std::hash::{DefaultHasher, Hash, Hasher};

/// Length from which a word of hexadecimal digits with letters is an identifier.
const HEX_MIN: usize = 8;
/// Length from which a word of decimal digits is one.
const DECIMAL_MIN: usize = 12;
/// Words before the number of a process.
const PROCESS: [&str; 3] = ["pid", "process", "proc"];
/// Units of a duration, which follow a number with or without a blank.
const UNITS: [&str; 12] =
    ["ns", "us", "µs", "ms", "s", "sec", "second", "seconds", "m", "min", "minutes", "h"];

/// Returns a number that is equal for notes that describe the same failure.
pub(crate) fn hash(note: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    let mut before = "";
    let mut words = note
        .split(|letter: char| letter.is_whitespace() || "\"'`()[]{}<>,;=".contains(letter))
        .filter(|word| !word.is_empty() && !is_time(word))
        .flat_map(|word| word.split(|letter: char| letter != '-' && !letter.is_alphanumeric()))
        .filter(|word| !word.is_empty())
        .peekable();
    while let Some(word) = words.next() {
        let is_number = word.bytes().all(|byte| byte.is_ascii_digit());
        let is_duration =
            is_number && words.peek().is_some_and(|unit| UNITS.contains(unit) || is_length(unit));
        let is_process = is_number && PROCESS.contains(&before);
        if !(is_duration || is_process || is_length(word) || is_identifier(word)) {
            word.hash(&mut hasher);
        }
        before = word;
    }
    hasher.finish()
}

/// Whether a word is a date and time, as programs log it.
fn is_time(word: &str) -> bool {
    let bytes = word.as_bytes();
    let is_date = bytes.len() >= 16 && bytes[..4].iter().all(u8::is_ascii_digit) && bytes[4] == b'-';
    is_date && matches!(bytes[10], b'T' | b't') && bytes[13] == b':'
}

/// Whether a word is a number with the unit of a duration, such as `31s`, also the end of `1.5s`.
fn is_length(word: &str) -> bool {
    let unit = word.trim_start_matches(|letter: char| letter.is_ascii_digit());
    unit.len() < word.len() && UNITS.contains(&unit)
}

/// Whether a word contains a generated identifier: `veth0a1b2c3d`, `cni-UUID`, `req-UUID`, a container ID.
fn is_identifier(word: &str) -> bool {
    let word = word.trim_end_matches('-');
    let is_uuid =
        |text: &str| text.len() >= 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    let tail = ["veth", "weft", "tap", "cni-", "req-", "netns-", "crio-"]
        .iter()
        .find_map(|prefix| word.strip_prefix(prefix));
    let is_link =
        tail.is_some_and(|tail| tail.len() >= HEX_MIN && tail.bytes().all(|byte| byte.is_ascii_hexdigit()));
    is_link || is_uuid(word) || tail.is_some_and(is_uuid) || word.split('-').any(is_generated)
}

fn is_generated(word: &str) -> bool {
    let is_hex = word.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'a'..=b'f'));
    let digits = word.bytes().filter(u8::is_ascii_digit).count();
    let is_mixed = digits > 0 && digits < word.len();
    is_hex && ((is_mixed && word.len() >= HEX_MIN) || word.len() >= DECIMAL_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn note_identity_ignores_what_differs_at_each_attempt() {
        let id = |digit: &str| digit.repeat(64);
        for (one, other) in [
            (format!("sandbox {}: busy", id("a1")), format!("sandbox {}: busy", id("7f"))),
            (
                format!("journal: write /var/lib/weft/sandboxes/{}.json: no space", id("3c")),
                format!("journal: write /var/lib/weft/sandboxes/{}.json: no space", id("9b")),
            ),
            (
                "open network namespace /run/netns/cni-2c1a3f60-9a52-4b0c-8e5a-1d6a3b9f7c11: gone".to_owned(),
                "open network namespace /run/netns/cni-77f0a1de-0000-4b0c-8e5a-1d6a3b9f7c11: gone".to_owned(),
            ),
            ("open /proc/4711/ns/net: gone".to_owned(), "open /proc/92/ns/net: gone".to_owned()),
            ("create link veth0a1b2c3d: in use".to_owned(), "create link vethdeadbeef: in use".to_owned()),
            (
                "create link weft12ab34cd5e6: in use".to_owned(),
                "create link weft00000000001: in use".to_owned(),
            ),
            ("no answer after 31 s".to_owned(), "no answer after 4 s".to_owned()),
            ("no answer after 1.31s".to_owned(), "no answer after 30.7s".to_owned()),
            ("plugin (pid 17) was killed".to_owned(), "plugin (pid 2300) was killed".to_owned()),
            ("503 (req-2c1a3f60-9a52-4b0c-8e5a-1d6a3b9f7c11)".to_owned(), "503".to_owned()),
            (
                "time=\"2026-11-28T03:04:05Z\" failed".to_owned(),
                "time=\"2026-11-28T03:04:06.123Z\" failed".to_owned(),
            ),
            ("crictl 0123456789abc is gone".to_owned(), "crictl fedcba9876543 is gone".to_owned()),
        ] {
            assert_eq!(hash(&one), hash(&other), "{one} / {other}");
        }
    }

    #[test]
    fn note_identity_keeps_what_a_person_wrote() {
        for (one, other) in [
            ("attach blue/web net1: no such interface", "attach blue/web net2: no such interface"),
            ("Add eth0 [10.1.0.2] from home", "Add eth0 [10.1.0.3] from home"),
            ("Add eth0 [fd00::2] from home", "Add eth0 [fd00::3] from home"),
            ("vlanId: 100 is used", "vlanId: 101 is used"),
            ("mac 02:00:00:00:00:01 is used", "mac 02:00:00:00:00:02 is used"),
            ("GET /v2.0/ports: 503", "GET /v2.0/ports: 502"),
            ("pool 10.1.0.0-24 is full", "pool 10.1.0.0-25 is full"),
            ("mtu: 9000 is too large", "mtu: 9001 is too large"),
            ("blue/storage-a is missing", "blue/storage-b is missing"),
        ] {
            assert_ne!(hash(one), hash(other), "{one} / {other}");
        }
    }
}
