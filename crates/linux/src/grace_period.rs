//! Child processes that wait for the kernel's grace period, so that a CNI call does not have to.
//!
//! After an object is removed, other processors may still use it for about 10 to 20 ms. The kernel frees it only then,
//! and makes the request or the exiting process wait, although the removal has long taken effect. A child process,
//! which is the same program with a separate command, waits instead: [`crate::link::removal`],
//! [`crate::netfilter::closing`].
//!
//! Each command has at most [`CHILDREN_MAX`] children. When many calls remove objects at once, they wait for one
//! another anyway, and more processes would only take processor time from them. The remaining calls wait themselves.

use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, socket_with};

/// Maximum number of children per command on a node at the same time.
const CHILDREN_MAX: u8 = 4;
/// File that contains the running program.
const PROGRAM: &str = "/proc/self/exe";

/// Whether the running program knows the commands for children.
static HAS_COMMANDS: AtomicBool = AtomicBool::new(false);

/// Declares that the running program executes [`crate::link::removal::run`] and [`crate::netfilter::closing::run`] when
/// the first argument is such a command. Without this, the calling process waits itself.
pub fn enable() {
    HAS_COMMANDS.store(true, Ordering::Relaxed);
}

/// Whether children can be started.
pub(crate) fn has_commands() -> bool {
    HAS_COMMANDS.load(Ordering::Relaxed)
}

/// Starts a child with this standard input; `None` if the command already has enough children, or if it cannot start.
pub(crate) fn start(command: &str, arguments: impl Iterator<Item = String>, stdin: Stdio) -> Option<Child> {
    let permit = (0..CHILDREN_MAX).find_map(|number| permit(command, number))?;
    Command::new(PROGRAM)
        .arg0("weft-cni")
        .arg(command)
        .args(arguments)
        .env_clear()
        .stdin(stdin)
        .stdout(permit)
        .stderr(Stdio::null())
        .spawn()
        .ok()
}

/// Returns a socket with the abstract name for child `number`, which only one process on the node can have. The child
/// inherits the socket and so keeps the name until it ends.
fn permit(command: &str, number: u8) -> Option<OwnedFd> {
    let name = SocketAddrUnix::new_abstract_name(format!("weft-{command}-{number}").as_bytes()).ok()?;
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None).ok()?;
    bind(&socket, &name).ok()?;
    Some(socket)
}
