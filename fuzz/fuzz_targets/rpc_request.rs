//! Fuzz target for client requests: decoding must never panic, and a decoded request can be encoded and decoded again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use rpc::frame;
use rpc::message::Request;

fuzz_target!(|bytes: &[u8]| {
    let _ = frame::receive::<Request>(&mut &bytes[..]);
    let Ok(request) = frame::decode::<Request>(bytes) else { return };
    // The server reads these before it plans.
    if let Request::Plan(request) = &request {
        let _ = request.node.configuration();
        let _ = request.node.disk();
    }
    // The encoded JSON may exceed the limit, because it escapes more characters than the input did.
    let Ok(written) = frame::encode(&request) else { return };
    let again: Request = frame::receive(&mut written.as_slice()).expect("an encoded request is valid");
    assert_eq!(frame::encode(&again).expect("JSON"), written);
});
