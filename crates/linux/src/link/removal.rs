//! Removes links without waiting for the kernel's grace period: the call returns as soon as the links are gone.
//!
//! After the kernel has removed a link, the request waits about 20 ms more, until no processor can use the memory. By
//! then the links are closed, have no addresses, are in no list, and cannot come back. Therefore a child process sends
//! the request, and this process returns when the kernel has announced that every link is removed:
//!
//! ```text
//!   weft-cni ─► weft-cni remove-links INDEX… ── request ──► kernel ── grace period ──► end of the child
//!      ▲                                                      │
//!      └───────────────── RTM_DELLINK of each ◄───────────────┘
//! ```
//!
//! - The child inherits a socket in the links' namespace, sends one datagram, and ends. It holds nothing else.
//! - Only the kernel's announcements count, because a process in the namespace can also send messages to the group.
//! - The number of children is limited ([`crate::grace_period`]); other calls wait for the grace period themselves.
//! - If the child ends before every link was announced, this process removes the links itself and reports the outcome.
//! - If this process is killed, the child still removes the links. A namespace never uses an index twice.
//!
//! The reasoning is in `docs/design/journal.md#removal-of-links`. Source: rtnetlink(7); kernel `net/core/dev.c`
//! `unregister_netdevice_many_notify`, `netdev_run_todo`.

use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::process::Child;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::SendFlags;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::error::Error;
use crate::grace_period;
use crate::netns::Netns;
use crate::rtnl::Rtnl;
use crate::watch::Watch;

/// First argument that makes the program remove links.
pub const COMMAND: &str = "remove-links";

/// Sockets in the links' namespace.
#[derive(Debug)]
pub struct LinkRemoval {
    net: Rtnl,
    /// `None` means that this process waits for the grace period itself.
    announcements: Option<Watch>,
}

impl LinkRemoval {
    /// Opens the sockets in the calling thread's namespace.
    pub fn open() -> Result<LinkRemoval, Error> {
        let announcements = if grace_period::has_commands() { Watch::links().ok() } else { None };
        Ok(LinkRemoval { net: Rtnl::open()?, announcements })
    }

    /// Opens the sockets in the given namespace.
    pub fn within(netns: &Netns) -> Result<LinkRemoval, Error> {
        netns.run(LinkRemoval::open)?
    }

    /// Removes the links with these indexes; missing links are ignored. `ip link del dev NAME`
    ///
    /// # Errors
    /// The kernel refuses to remove a link.
    pub fn delete(mut self, indexes: &[u32]) -> Result<(), Error> {
        if indexes.is_empty() {
            return Ok(());
        }
        if let Some(announcements) = &self.announcements {
            announcements.filter_removed(indexes);
            if let Some(mut child) = start(&self.net, indexes)
                && were_announced(announcements, &mut child, indexes)
            {
                return Ok(());
            }
        }
        self.net.delete_links(indexes)
    }
}

/// Starts the child with a socket in the namespace as standard input; `None` if there are enough children, or if it
/// cannot start.
fn start(net: &Rtnl, indexes: &[u32]) -> Option<Child> {
    let socket = net.as_fd().try_clone_to_owned().ok()?;
    grace_period::start(COMMAND, indexes.iter().map(u32::to_string), socket.into())
}

/// Waits until the kernel has announced every link as removed, or the child has ended. Returns false in the second
/// case.
fn were_announced(announcements: &Watch, child: &mut Child, indexes: &[u32]) -> bool {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let Some(Ok(end)) = pid.map(|pid| pidfd_open(pid, PidfdFlags::empty())) else {
        let _ = child.wait();
        return false;
    };
    let mut missing = indexes.to_vec();
    loop {
        let mut ready = [PollFd::new(announcements, PollFlags::IN), PollFd::new(&end, PollFlags::IN)];
        match poll(&mut ready, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return false,
        }
        let ended = !ready[1].revents().is_empty();
        announcements.removed_links(|index| missing.retain(|known| *known != index));
        if missing.is_empty() {
            return true;
        }
        if ended {
            let _ = child.wait();
            return false;
        }
    }
}

/// Runs in the child: sends the request on the socket that is standard input, and waits for the grace period.
///
/// # Errors
/// An argument is not an index, or the socket does not accept the request.
pub fn run(indexes: &[&str]) -> io::Result<()> {
    // The runtime may kill the process group of the plugin that it called.
    let _ = rustix::process::setsid();
    let indexes: Result<Vec<u32>, _> = indexes.iter().map(|index| index.parse()).collect();
    let datagram = Rtnl::removal_of_links(&indexes.map_err(|_| ErrorKind::InvalidInput)?);
    rustix::net::send(io::stdin().as_fd(), &datagram, SendFlags::empty())?;
    Ok(())
}
