//! Fuzz target for agent messages and task batches: decoding must never panic, and a decoded message can be encoded and
//! decoded again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use rpc::frame::{self, Message};
use rpc::message::Response;
use rpc::task::TaskBatch;

fn read<M: Message>(bytes: &[u8]) {
    let _ = frame::receive::<M>(&mut &bytes[..]);
    let Ok(message) = frame::decode::<M>(bytes) else { return };
    // The encoded JSON may exceed the limit, because it escapes more characters than the input did.
    let Ok(written) = frame::encode(&message) else { return };
    let again: M = frame::receive(&mut written.as_slice()).expect("an encoded message is valid");
    assert_eq!(frame::encode(&again).expect("JSON"), written);
}

fuzz_target!(|bytes: &[u8]| {
    read::<Response>(bytes);
    read::<TaskBatch>(bytes);
});
