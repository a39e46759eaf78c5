//! Tap interfaces, whose other end is a program, for example a virtual machine.
//!
//! The kernel creates them only through an ioctl of `/dev/net/tun` ([`device`]); all other operations use netlink. SELinux
//! labels an interface with the context of the process that creates it, and a process gets its context when a program is
//! executed. So if a context is requested, the program `ip` creates the interface.
//!
//! Source: ip-tuntap(8); kernel `Documentation/networking/tuntap.rst`, `drivers/net/tun.c` (`tun_validate`);
//! selinux(8), `security/selinux/hooks.c` (`selinux_tun_dev_alloc_security`).

mod device;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::error::Error;

/// Tap interface to create. `ip tuntap add dev NAME mode tap …`
#[derive(Clone, Debug)]
pub struct NewTap<'a> {
    /// Valid interface name.
    pub name: &'a str,
    /// Whether it has several queues, for several processors: `multi_queue`.
    pub multi_queue: bool,
    /// User that may open it; `None` for any user with the privilege.
    pub owner: Option<u32>,
    /// Group that may open it.
    pub group: Option<u32>,
    /// SELinux context that may open it.
    pub context: Option<&'a str>,
}

/// File with the context of the next program that this thread executes.
const NEXT_CONTEXT: &str = "/proc/thread-self/attr/exec";

/// Whether this kernel has a policy of SELinux, enforced or not.
pub fn has_selinux() -> bool {
    Path::new("/sys/fs/selinux/enforce").exists()
}

/// Creates a tap interface in the namespace of the calling thread; it is down and outlives this process.
///
/// # Errors
/// There is no device (`modprobe tun`), or the name is in use. With a context also: the error of `ip`, no program `ip`, or
/// SELinux refuses or does not know the context.
pub fn create(tap: &NewTap<'_>) -> Result<(), Error> {
    let NewTap { name, multi_queue, owner, group, context } = *tap;
    if let Some(context) = context {
        return create_labelled(tap, context);
    }
    let make = || {
        let device = device::Device::make(name, multi_queue)?;
        device.give(owner, group)?;
        device.keep()
    };
    make().map_err(|cause| Error::io(format!("create tap {name} through /dev/net/tun"), &cause))
}

/// Creates the interface by the program `ip` with this context, which the interface inherits.
fn create_labelled(tap: &NewTap<'_>, context: &str) -> Result<(), Error> {
    let NewTap { name, multi_queue, owner, group, .. } = tap;
    let operation = || format!("create tap {name}");
    let mut command = Command::new("ip");
    command.args(["tuntap", "add", "dev", name, "mode", "tap"]);
    if *multi_queue {
        command.arg("multi_queue");
    }
    for (word, id) in [("user", owner), ("group", group)] {
        if let Some(id) = id {
            command.args([word, &id.to_string()]);
        }
    }
    command.stdin(Stdio::null());
    let choose = |context: &str| fs::write(NEXT_CONTEXT, context);
    choose(context).map_err(|cause| Error::io(format!("choose context {context:?}"), &cause))?;
    let ended = command.output();
    // An empty line restores the default for later programs.
    choose("\n").map_err(|cause| Error::io("return to the own context", &cause))?;
    let ended =
        ended.map_err(|cause| Error::io(format!("{}: start `ip` of iproute2", operation()), &cause))?;
    match ended.status.success() {
        true => Ok(()),
        false => {
            let words = String::from_utf8_lossy(&ended.stderr);
            Err(Error::protocol(operation(), format!("`ip` says: {}", words.trim())))
        }
    }
}
