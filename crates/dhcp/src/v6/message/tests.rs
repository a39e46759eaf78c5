//! Expected bytes from RFC 8415 §21, and hostile input.

use super::*;
use crate::v6::lease::Lease;

/// A SOLICIT: transaction, DUID-UUID, elapsed time, an empty association, requested options 23 and 24, rapid commit.
const SOLICIT: &[u8] = &[
    1, 0x12, 0x34, 0x56, // type, transaction
    0, 1, 0, 18, 0, 4, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, // client
    0, 8, 0, 2, 0, 0, // elapsed
    0, 3, 0, 12, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, // association 7, T1, T2
    0, 6, 0, 4, 0, 23, 0, 24, // asked for
    0, 14, 0, 0, // rapid commit
];

/// A REPLY: server, client, an association with an address and one without, name servers, search list, status.
const REPLY: &[u8] = &[
    7, 0x12, 0x34, 0x56, // type, transaction
    0, 2, 0, 10, 0, 3, 0, 1, 2, 0, 0, 0, 1, 1, // server: DUID-LL
    0, 1, 0, 3, 0, 4, 9, // client
    0, 3, 0, 14, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, // association 6 ends within an option
    0, 3, 0, 74, 0, 0, 0, 7, 0, 0, 0, 50, 0, 0, 0, 80, // association 7: T1 50, T2 80
    0, 5, 0, 24, 0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 100, 0, 0, 0,
    120, // an address
    0, 5, 0, 30, 0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0,
    0, // another,
    0, 13, 0, 2, 0, 4, // which does not belong to the link
    0, 23, 0, 16, 0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, // name server
    0, 24, 0, 5, 3, b'e', b'n', b'g', 0, // search list
    0, 13, 0, 6, 0, 3, b'w', b'h', b'y', b'\n', // status
];

#[test]
fn dhcp_v6_solicit_has_the_expected_bytes() {
    let mut message = Message::new(Kind::Solicit, 0xff12_3456);
    message.set(option::CLIENT, [0, 4].into_iter().chain(0..16).collect::<Vec<u8>>());
    message.set(option::ELAPSED, [0, 9]);
    message.set(option::ELAPSED, [0, 0]);
    let association =
        Association { id: 7, renewal: 0, rebinding: 0, addresses: Vec::new(), status: Status::SUCCESS };
    message.set(option::ASSOCIATION, association.encode());
    message.set(option::REQUESTED, [0, 23, 0, 24]);
    message.set(option::RAPID_COMMIT, []);
    assert_eq!(message.encode(), SOLICIT);
    assert_eq!(Message::decode(SOLICIT), Some(message));
}

#[test]
fn dhcp_v6_reply_is_decoded_with_nested_options() {
    let reply = Message::decode(REPLY).unwrap();
    assert_eq!((reply.kind, reply.transaction), (Kind::Reply, 0x0012_3456));
    assert_eq!(reply.option(option::SERVER), Some(&[0, 3, 0, 1, 2, 0, 0, 0, 1, 1][..]));
    let said = |last: u16, preferred: u32, valid: u32, code: Code| {
        let address = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last);
        Address { address, preferred, valid, status: Status { code, text: String::new() } }
    };
    let association = Association {
        id: 7,
        renewal: 50,
        rebinding: 80,
        addresses: vec![said(5, 100, 120, Code::Success), said(6, 0, 0, Code::NotOnLink)],
        status: Status::SUCCESS,
    };
    assert_eq!(reply.association(7), Some(association));
    assert_eq!(reply.association(6), None, "it is truncated");
    assert_eq!(reply.addresses(option::NAME_SERVERS), ["2001:db8::1".parse::<Ipv6Addr>().unwrap()]);
    assert_eq!(reply.status(), Status { code: Code::NoBinding, text: "why".into() });
    assert_eq!(reply.status().to_string(), "NoBinding, \"why\"");
    assert_eq!(reply.encode(), REPLY);
}

#[test]
fn dhcp_v6_status_has_a_name_and_an_unknown_one_is_a_failure() {
    for (number, name) in [
        (0, "Success"),
        (1, "UnspecFail"),
        (2, "NoAddrsAvail"),
        (3, "NoBinding"),
        (4, "NotOnLink"),
        (5, "UseMulticast"),
        (99, "UnspecFail"),
    ] {
        let mut reply = Message::new(Kind::Reply, 0);
        reply.set(option::STATUS, [0, number]);
        assert_eq!(reply.status().to_string(), name);
    }
    let mut cut = Message::new(Kind::Reply, 0);
    cut.set(option::STATUS, [1]);
    assert_eq!(cut.status(), Status::SUCCESS, "a status without a number says nothing");
}

#[test]
fn dhcp_v6_association_with_t1_after_t2_is_ignored() {
    for (renewal, rebinding, is_one) in [(0, 0, true), (9, 0, true), (9, 9, true), (9, 8, false)] {
        let mut reply = Message::new(Kind::Reply, 0);
        let addresses = Vec::new();
        let association = Association { id: 1, renewal, rebinding, addresses, status: Status::SUCCESS };
        reply.set(option::ASSOCIATION, association.encode());
        assert_eq!(reply.association(1).is_some(), is_one, "{renewal} {rebinding}");
    }
}

/// Runs every decoder on untrusted bytes.
fn read_all(bytes: &[u8]) {
    let Some(message) = Message::decode(bytes) else { return };
    let size: usize = message.options.iter().map(|(_, value)| value.len() + 4).sum();
    assert!(size + FIXED == bytes.len(), "each byte is read once");
    assert_eq!(message.encode(), bytes);
    let text = message.status().to_string();
    assert!(text.chars().count() < 3 * TEXT_MAX && !text.contains('\n'));
    for (number, value) in &message.options {
        let _ = message.addresses(*number);
        if let Some(association) = Association::decode(value) {
            assert!(association.addresses.len() * 24 <= value.len());
            // A lease is stored, and the next daemon must be able to read it.
            if let Ok(lease) = Lease::of(message.clone(), association.id) {
                let again = Message::decode(&lease.reply.encode()).unwrap();
                assert_eq!(Lease::for_address(again, association.id, Some(lease.address)).unwrap(), lease);
            }
        }
    }
    let _ = message.option(option::DOMAIN_SEARCH).map(crate::v4::lease::search);
}

#[test]
fn dhcp_v6_truncated_or_damaged_message_is_harmless() {
    for length in 0..REPLY.len() {
        read_all(&REPLY[..length]);
    }
    for kind in [0, 10, 12, 13, 255] {
        assert_eq!(Message::decode(&[kind, 0, 0, 0]), None, "{kind}");
    }
    let mut seed = 7_u64;
    let mut random = move || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) as usize
    };
    for round in 0..60_000 {
        // A damaged message, or random bytes.
        let mut bytes = match round % 3 {
            2 => (0..random() % 200).map(|_| random() as u8).collect(),
            _ => [SOLICIT, REPLY][random() % 2].to_vec(),
        };
        for _ in 0..random() % 6 {
            if !bytes.is_empty() {
                let at = random() % bytes.len();
                bytes[at] = [0, 1, 3, 5, 13, 24, 0xff, random() as u8][random() % 8];
            }
        }
        if round % 5 == 0 {
            bytes.truncate(random() % (bytes.len() + 1));
        }
        read_all(&bytes);
    }
}
