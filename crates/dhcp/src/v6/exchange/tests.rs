//! Tests for each kind of answer that a server may send.

use super::*;

const US: u32 = 7;

/// Builds a REPLY from server `s` with an association for 2001:db8::5.
fn reply(preferred: u32, valid: u32, code: Code) -> Message {
    let status = Status { code, text: String::new() };
    let address = "2001:db8::5".parse().unwrap();
    let addresses = vec![Address { address, preferred, valid, status: Status::SUCCESS }];
    let association = Association { id: US, renewal: 0, rebinding: 0, addresses, status };
    let mut reply = Message::new(Kind::Reply, 1);
    reply.set(option::SERVER, b"s".to_vec());
    reply.set(option::ASSOCIATION, association.encode());
    reply
}

fn lease() -> Lease {
    let mut granted = reply(80, 100, Code::Success);
    granted.set(option::NAME_SERVERS, [9; 16]);
    Lease::of(granted, US).unwrap()
}

/// Builds a REPLY with a status for the whole message.
fn reply_with_status(code: u8) -> Message {
    let mut answer = reply(80, 100, Code::Success);
    answer.set(option::STATUS, [0, code]);
    answer
}

fn verdict(answer: Message) -> &'static str {
    match judge(&lease(), answer, US) {
        None => "nothing",
        Some(Verdict::Granted(_)) => "granted",
        Some(Verdict::Refused) => "refused",
        Some(Verdict::Unknown(server)) if server == b"s" => "unknown",
        Some(Verdict::Unknown(_)) => "unknown to another",
    }
}

#[test]
fn dhcp_v6_extension_follows_the_status_of_the_reply() {
    assert_eq!(verdict(reply(80, 100, Code::Success)), "granted");
    assert_eq!(verdict(reply(0, 0, Code::Success)), "refused", "no longer granted");
    for (code, of_whole, expected) in [
        (Code::Unspecified, 1, "nothing"),
        (Code::NoAddress, 2, "refused"),
        (Code::NoBinding, 3, "unknown"),
        (Code::NotOnLink, 4, "refused"),
        (Code::UseMulticast, 5, "nothing"),
    ] {
        assert_eq!(verdict(reply(80, 100, code)), expected, "{code:?} of the association");
        assert_eq!(verdict(reply_with_status(of_whole)), expected, "{code:?} of the whole");
    }
    let mut another = reply(80, 100, Code::Success);
    another.options.retain(|(number, _)| *number != option::ASSOCIATION);
    assert_eq!(verdict(another), "nothing", "not about the lease");
}

#[test]
fn dhcp_v6_extension_without_names_keeps_the_names() {
    let Some(Verdict::Granted(extended)) = judge(&lease(), reply(80, 100, Code::Success), US) else {
        panic!("it is granted");
    };
    assert_eq!(extended.result(128).dns, lease().result(128).dns);
    assert!(!extended.result(128).dns.nameservers.is_empty());
}

#[test]
fn dhcp_v6_offer_needs_an_address_and_a_reply_rapid_commit() {
    let advertise = |code, valid| Message { kind: Kind::Advertise, ..reply(valid, valid, code) };
    assert!(matches!(
        offer(advertise(Code::Success, 9), US),
        Ok(SolicitAnswer::Offer(Offer { preference: 0, .. }))
    ));
    let mut preferred = advertise(Code::Success, 9);
    preferred.set(option::PREFERENCE, [255]);
    assert!(matches!(offer(preferred, US), Ok(SolicitAnswer::Offer(Offer { preference: PREFERRED, .. }))));
    let why = |answer: Message| offer(answer, US).err().map(|error| error.to_string()).unwrap_or_default();
    assert!(why(advertise(Code::NoAddress, 9)).contains("NoAddrsAvail"));
    assert!(why(advertise(Code::Unspecified, 9)).contains("UnspecFail"));
    assert!(why(advertise(Code::Success, 0)).contains("no address that a container can use"));
    let mut committed = reply(80, 100, Code::Success);
    assert!(why(committed.clone()).contains("without a request"));
    committed.set(option::RAPID_COMMIT, []);
    assert!(matches!(offer(committed, US), Ok(SolicitAnswer::Lease(_))));
}

#[test]
fn dhcp_v6_sol_max_rt_is_accepted_within_its_limits() {
    for (seconds, expected) in [(59_u32, None), (60, Some(60)), (86_400, Some(86_400)), (86_401, None)] {
        let mut answer = Message::new(Kind::Advertise, 1);
        answer.set(option::SOL_MAX_RT, seconds.to_be_bytes());
        assert_eq!(solicit_max_rt(&answer).map(|most| most.as_secs()), expected);
    }
}
