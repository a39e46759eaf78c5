//! Tests of framing: valid, hostile and unknown messages.

use super::*;
use crate::message::{Request, Response};

fn framed(envelope: &[u8]) -> Vec<u8> {
    [&u32::try_from(envelope.len()).unwrap().to_be_bytes(), envelope].concat()
}

#[test]
fn frame_message_arrives_as_it_was_sent() {
    let mut wire = Vec::new();
    send(&mut wire, &Response::from(Error::new(7, "no"))).unwrap();
    assert_eq!(wire, framed(br#"{"version":1,"response":{"refused":{"code":7,"msg":"no"}}}"#));
    let received = receive(&mut wire.as_slice()).unwrap();
    assert!(matches!(received, Response::Refused(refusal) if refusal.error == Error::new(7, "no")));
}

#[test]
fn frame_newer_version_is_refused_with_any_body() {
    for body in [r#""request":{"plan":7}"#, r#""request":{"dance":{}}"#, r#""parcel":[]"#] {
        let envelope = format!(r#"{{"version":2,{body}}}"#);
        let refused = decode::<Request>(envelope.as_bytes()).unwrap_err();
        assert!(matches!(refused, FrameError::Version { version: 2 }), "{refused}");
        assert_eq!(refused.to_string(), "message of version 2: this release reads version 1");
    }
}

#[test]
fn frame_unknown_envelope_fields_are_ignored() {
    let envelope = br#"{"version":1,"trace":"t","request":"clientAlive","more":{"x":[1]}}"#;
    assert!(matches!(decode(envelope).unwrap(), Request::ClientAlive));
}

#[test]
fn frame_envelope_without_leading_version_is_an_error() {
    for envelope in [
        r#"{"request":"clientAlive","version":1}"#,
        r#"{"version":1}"#,
        r#"{"version":1,"response":"accepted"}"#,
        r#"{"version":1,"request":"clientAlive","request":"clientAlive"}"#,
        r#"{"version":"1","request":"clientAlive"}"#,
        r#"{"version":1,"request":"dance"}"#,
        r#"["version",1]"#,
        "",
    ] {
        let refused = decode::<Request>(envelope.as_bytes()).unwrap_err();
        assert!(matches!(refused, FrameError::Decode(_)), "{envelope}: {refused}");
    }
}

#[test]
fn frame_hostile_length_is_refused_before_allocation() {
    let huge = [0xff, 0xff, 0xff, 0xff, b'{'];
    let refused = receive::<Response>(&mut huge.as_slice()).unwrap_err();
    assert!(matches!(refused, FrameError::TooLarge { limit: MESSAGE_MAX, .. }), "{refused}");
    let short = [0, 0, 0, 9, b'{'];
    let refused = receive::<Response>(&mut short.as_slice()).unwrap_err();
    assert!(matches!(refused, FrameError::Truncated { read: 1, length: 9 }), "{refused}");
    let refused = receive::<Response>(&mut [0, 0].as_slice()).unwrap_err();
    assert!(matches!(refused, FrameError::Io { step: "receive", .. }), "{refused}");
}

#[test]
fn frame_limit_applies_to_sender_and_receiver() {
    let long = Response::from(Error::new(7, "x".repeat(REPORT_MAX)));
    assert!(matches!(encode(&long), Err(FrameError::TooLarge { limit: REPORT_MAX, .. })));
    let padded = format!(r#"{{"version":1,"request":"clientAlive"{}}}"#, " ".repeat(SIGNAL_MAX));
    let refused = decode::<Request>(padded.as_bytes()).unwrap_err();
    assert!(matches!(refused, FrameError::TooLarge { limit: SIGNAL_MAX, .. }), "{refused}");
}
