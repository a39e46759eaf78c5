//! Tap interfaces, whose other end is a program, for example a virtual machine.
//!
//! They can only be created through an ioctl on `/dev/net/tun` ([`device`]); everything else uses netlink. SELinux
//! labels an interface with the context of the process that creates it, and a process can only change context by
//! executing a program. If a context is requested, the program `ip` therefore creates the interface.
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
    /// Whether the interface has several queues, so that several processors can use it: `multi_queue`.
    pub multi_queue: bool,
    /// User id that may open the interface; `None` means any user with the privilege.
    pub owner: Option<u32>,
    /// Group id that may open the interface.
    pub group: Option<u32>,
    /// SELinux context that may open the interface.
    pub context: Option<&'a str>,
}

/// File that holds the context for the next program that this thread executes.
const NEXT_CONTEXT: &str = "/proc/thread-self/attr/exec";

/// Whether this kernel has an SELinux policy, enforced or not.
pub fn has_selinux() -> bool {
    Path::new("/sys/fs/selinux/enforce").exists()
}

/// Creates a tap interface in the calling thread's namespace. It is down, and it outlives this process.
///
/// # Errors
/// The device is missing (`modprobe tun`), or the name is in use. With a context also: the program `ip` is missing or
/// fails, or SELinux refuses or does not know the context.
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

/// Creates the interface with the program `ip` in this context, which the interface inherits.
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
    choose("\n").map_err(|cause| Error::io("return to this thread's SELinux context", &cause))?;
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
