//! Bytes from a client: reading never panics, and a request that was read is written and read again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use rpc::frame;
use rpc::message::Request;

fuzz_target!(|bytes: &[u8]| {
    let _ = frame::receive::<Request>(&mut &bytes[..]);
    let Ok(request) = frame::decode::<Request>(bytes) else { return };
    // What the server does before it plans.
    if let Request::Plan(request) = &request {
        let _ = request.node.configuration();
        let _ = request.node.disk();
    }
    // JSON that escapes more than the input may exceed the limit.
    let Ok(written) = frame::encode(&request) else { return };
    let again: Request = frame::receive(&mut written.as_slice()).expect("a request that was written is read");
    assert_eq!(frame::encode(&again).expect("JSON"), written);
});
