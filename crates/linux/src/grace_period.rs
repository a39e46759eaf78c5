//! Child processes that wait for the kernel's grace period, so that a call does not.
//!
//! The kernel frees what processors may still use after about 10 to 20 ms, and the request or the process that removed it
//! waits for that. The effect of the removal is complete before. A child is the same program with a command of its own:
//! [`crate::link::removal`], [`crate::netfilter::closing`].
//!
//! At most [`CHILDREN_MAX`] children of a command exist: where many calls remove objects at once, they wait for one another
//! anyway, and further processes would take processor time from the calls. The other calls wait themselves.

use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, socket_with};

/// Maximum number of children of one command on a node at a time.
const CHILDREN_MAX: u8 = 4;
/// File of the running program.
const PROGRAM: &str = "/proc/self/exe";

/// Whether the running program executes the commands of children.
static HAS_COMMANDS: AtomicBool = AtomicBool::new(false);

/// States that the running program executes [`crate::link::removal::run`] and [`crate::netfilter::closing::run`] when its
/// first argument is their command. Otherwise the calling process waits.
pub fn enable() {
    HAS_COMMANDS.store(true, Ordering::Relaxed);
}

/// Whether children can be started.
pub(crate) fn has_commands() -> bool {
    HAS_COMMANDS.load(Ordering::Relaxed)
}

/// Starts a child with this standard input; `None` if there are enough children of the command, or it cannot start.
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

/// Returns a socket with the abstract name of the child `number`, which only one process of the node can have. The child
/// inherits it and has the name until it ends.
fn permit(command: &str, number: u8) -> Option<OwnedFd> {
    let name = SocketAddrUnix::new_abstract_name(format!("weft-{command}-{number}").as_bytes()).ok()?;
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None).ok()?;
    bind(&socket, &name).ok()?;
    Some(socket)
}
