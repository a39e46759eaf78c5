//! Removal of links that returns once the links are gone, without waiting for the kernel's grace period.
//!
//! After the kernel has removed a link, the request waits about 20 ms more until no processor can use its memory. The links
//! are closed, without addresses, and out of every list by then, and nothing can bring them back. So a child process sends
//! the request, and this process returns when the kernel has announced the removal of every link:
//!
//! ```text
//!   weft-cni ─► weft-cni remove-links INDEX… ── request ──► kernel ── grace period ──► end of the child
//!      ▲                                                      │
//!      └───────────────── RTM_DELLINK of each ◄───────────────┘
//! ```
//!
//! - The child sends one datagram, on a socket of the namespace of the links that it inherits, and ends. It has no other
//!   resource of this process.
//! - Only announcements of the kernel count: a process in the namespace can send messages to the group, too.
//! - At most [`CHILDREN_MAX`] children exist: where many calls remove links at once, they wait for one another anyway, and
//!   further processes would take processor time from the calls. The other calls wait for the grace period themselves.
//! - If the child ends before every link was announced, this process removes the links itself and reports the outcome.
//! - If this process is killed, the child still removes the links. An index is not used again in a namespace.
//!
//! The reasoning is in `docs/design/journal.md#removal-of-links`. Source: rtnetlink(7); kernel `net/core/dev.c`
//! `unregister_netdevice_many_notify`, `netdev_run_todo`.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, socket_with};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::error::Error;
use crate::netns::Netns;
use crate::rtnl::Rtnl;
use crate::watch::Watch;

/// First argument of a program that is started to remove links.
pub const COMMAND: &str = "remove-links";
/// Maximum number of children on a node at a time.
const CHILDREN_MAX: u8 = 4;
/// File of the running program.
const PROGRAM: &str = "/proc/self/exe";

/// Whether the running program executes [`COMMAND`].
static HAS_COMMAND: AtomicBool = AtomicBool::new(false);

/// States that the running program executes [`run`] when its first argument is [`COMMAND`]. Otherwise links are removed by
/// the calling process.
pub fn enable() {
    HAS_COMMAND.store(true, Ordering::Relaxed);
}

/// Sockets in the namespace of the links.
#[derive(Debug)]
pub struct LinkRemoval {
    net: Rtnl,
    /// `None`: this process waits for the grace period.
    announcements: Option<Watch>,
}

impl LinkRemoval {
    /// Opens the sockets in the calling thread's namespace.
    pub fn open() -> Result<LinkRemoval, Error> {
        let announcements = if HAS_COMMAND.load(Ordering::Relaxed) { Watch::links().ok() } else { None };
        Ok(LinkRemoval { net: Rtnl::open()?, announcements })
    }

    /// Opens the sockets in a namespace.
    pub fn within(netns: &Netns) -> Result<LinkRemoval, Error> {
        netns.run(LinkRemoval::open)?
    }

    /// Removes the links with these indexes. Links that do not exist are ignored. `ip link del dev NAME`
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

/// Starts the child, with a socket of the namespace as its standard input; `None` if there are enough children, or it cannot
/// start.
fn start(net: &Rtnl, indexes: &[u32]) -> Option<Child> {
    let permit = (0..CHILDREN_MAX).find_map(permit)?;
    Command::new(PROGRAM)
        .arg0("weft-cni")
        .arg(COMMAND)
        .args(indexes.iter().map(u32::to_string))
        .env_clear()
        .stdin(net.as_fd().try_clone_to_owned().ok()?)
        .stdout(permit)
        .stderr(Stdio::null())
        .spawn()
        .ok()
}

/// Returns a socket with the abstract name of the child `number`, which only one process of the node can have. The child
/// inherits it and has the name until it ends.
fn permit(number: u8) -> Option<OwnedFd> {
    let name = SocketAddrUnix::new_abstract_name(format!("weft-{COMMAND}-{number}").as_bytes()).ok()?;
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None).ok()?;
    bind(&socket, &name).ok()?;
    Some(socket)
}

/// Waits until the kernel has announced the removal of every link, or the child has ended. Returns false in the second case.
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

/// Sends the request on the socket that is the standard input, and waits for the grace period.
///
/// # Errors
/// An argument is no index; the socket does not accept the request.
pub fn run(indexes: &[&str]) -> io::Result<()> {
    // The runtime may kill the process group of the plugin that it called.
    let _ = rustix::process::setsid();
    let indexes: Result<Vec<u32>, _> = indexes.iter().map(|index| index.parse()).collect();
    let datagram = Rtnl::removal_of_links(&indexes.map_err(|_| ErrorKind::InvalidInput)?);
    rustix::net::send(io::stdin().as_fd(), &datagram, SendFlags::empty())?;
    Ok(())
}
