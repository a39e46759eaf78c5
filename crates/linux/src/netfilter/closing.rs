//! Lets a child process close netfilter sockets after a call that removed nf_tables objects.
//!
//! A transaction takes effect as soon as it is committed. But a process that closes a netfilter socket, or ends with
//! one open, waits about 10 to 20 ms until the kernel has freed what was removed in the namespace. A child process
//! therefore inherits the sockets, this process closes the copies, and the child closes the last ones:
//!
//! ```text
//!   weft-cni ─► weft-cni close-sockets ── stdin ends ──► end of the child: the kernel's grace period
//!      └── closes its sockets, then the child's stdin, and ends
//! ```
//!
//! - The child does nothing else, so it does not matter how it ends.
//! - If no child can be started, this process waits.
//!
//! Source: kernel `net/netfilter/nf_tables_api.c` (`nft_rcv_nl_event`).

use std::io;
use std::os::fd::AsFd;
use std::process::Stdio;

use rustix::io::{FdFlags, fcntl_setfd};

use super::pool;
use crate::grace_period;

/// First argument that makes the program close sockets.
pub const COMMAND: &str = "close-sockets";

/// Closes the netfilter sockets that this process no longer uses. Must be called at the end of the process.
pub fn close_sockets() {
    let Some(sockets) = pool::take_after_removal().filter(|_| grace_period::has_commands()) else { return };
    for socket in &sockets {
        // If the child does not get the socket, nothing fails: this process waits.
        let _ = fcntl_setfd(socket.lock().as_fd(), FdFlags::empty());
    }
    let child = grace_period::start(COMMAND, std::iter::empty(), Stdio::piped());
    drop(sockets);
    // Ends the child's standard input.
    drop(child);
}

/// Runs in the child: waits until the parent has closed all sockets.
///
/// # Errors
/// Standard input cannot be read.
pub fn run() -> io::Result<()> {
    io::copy(&mut io::stdin(), &mut io::sink()).map(drop)
}
