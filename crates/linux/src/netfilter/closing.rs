//! Closing of netfilter sockets by a child, after a call that removed objects of nf_tables.
//!
//! A transaction takes effect when it is committed. But the process that closes a socket of netfilter, or ends with one,
//! waits until the kernel has freed what the namespace removed, about 10 to 20 ms. So a child inherits the sockets, this
//! process closes its own, and then the child closes the last ones:
//!
//! ```text
//!   weft-cni ─► weft-cni close-sockets ── stdin ends ──► end of the child: the kernel's grace period
//!      └── closes its sockets, then the child's stdin, and ends
//! ```
//!
//! - The child does nothing, so it does not matter how it ends.
//! - Without a child, this process waits.
//!
//! Source: kernel `net/netfilter/nf_tables_api.c` (`nft_rcv_nl_event`).

use std::io;
use std::os::fd::AsFd;
use std::process::Stdio;

use rustix::io::{FdFlags, fcntl_setfd};

use super::pool;
use crate::grace_period;

/// First argument of a program that is started to close sockets.
pub const COMMAND: &str = "close-sockets";

/// Closes the netfilter sockets that this process does not use any more, at its end.
pub fn close_sockets() {
    let Some(sockets) = pool::take_after_removal().filter(|_| grace_period::has_commands()) else { return };
    for socket in &sockets {
        // A child without the socket is no failure: this process waits.
        let _ = fcntl_setfd(socket.lock().as_fd(), FdFlags::empty());
    }
    let child = grace_period::start(COMMAND, std::iter::empty(), Stdio::piped());
    drop(sockets);
    // Ends its standard input.
    drop(child);
}

/// Waits until the parent has closed its sockets.
///
/// # Errors
/// Standard input cannot be read.
pub fn run() -> io::Result<()> {
    io::copy(&mut io::stdin(), &mut io::sink()).map(drop)
}
