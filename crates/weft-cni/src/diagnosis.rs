//! Commands that look at running sandboxes for `weft`: they change nothing.
//!
//! - A namespace that belongs to a pod is hostile: what is read there is bounded, and each command ends
//!   within a deadline.
//! - A request names a namespace by path and identity ([`rpc::diagnosis`]), so a reused path is not taken for
//!   the sandbox.

pub mod capture;
pub mod counters;
pub mod policy_counters;
pub mod trace;

use std::io::{Read, Write};
use std::process::ExitCode;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use cni::{Error, code};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Maximum length for a request, in bytes.
const REQUEST_MAX: u64 = 4 << 20;

/// Reads the request on stdin.
fn request<T: DeserializeOwned>() -> Result<T, Error> {
    let mut text = Vec::new();
    let read = std::io::stdin().lock().take(REQUEST_MAX).read_to_end(&mut text);
    read.map_err(|cause| Error::io("read stdin", cause))?;
    serde_json::from_slice(&text).map_err(|cause| Error::config(format!("stdin: {cause}")))
}

/// Prints an answer.
fn answer(message: &impl Serialize) -> Result<ExitCode, Error> {
    let text = serde_json::to_string(message).map_err(|cause| Error::internal(cause.to_string()))?;
    let written = std::io::stdout().lock().write_all((text + "\n").as_bytes());
    written.map_err(|cause| Error::io("write stdout", cause)).map(|()| ExitCode::SUCCESS)
}

/// Runs `work` on a thread and waits until a deadline. Then the process ends, whatever the thread waits for:
/// a kernel call cannot be interrupted otherwise.
fn within(
    deadline: Duration,
    work: impl FnOnce() -> Result<ExitCode, Error> + Send + 'static,
) -> Result<ExitCode, Error> {
    let (sender, receiver) = mpsc::channel();
    // The receiver is gone after the deadline.
    thread::spawn(move || drop(sender.send(work())));
    receiver.recv_timeout(deadline).unwrap_or_else(|_| {
        let why = format!("no answer of the kernel within {} s", deadline.as_secs());
        Err(Error::new(code::TRY_AGAIN_LATER, why))
    })
}
