//! Bytes from the agent, or on the standard input of the task process: reading never panics, and a message that was read
//! is written and read again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use rpc::frame::{self, Message};
use rpc::message::Response;
use rpc::task::TaskBatch;

fn read<M: Message>(bytes: &[u8]) {
    let _ = frame::receive::<M>(&mut &bytes[..]);
    let Ok(message) = frame::decode::<M>(bytes) else { return };
    // JSON that escapes more than the input may exceed the limit.
    let Ok(written) = frame::encode(&message) else { return };
    let again: M = frame::receive(&mut written.as_slice()).expect("a message that was written is read");
    assert_eq!(frame::encode(&again).expect("JSON"), written);
}

fuzz_target!(|bytes: &[u8]| {
    read::<Response>(bytes);
    read::<TaskBatch>(bytes);
});
