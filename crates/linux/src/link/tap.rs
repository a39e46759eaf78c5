//! Tap interfaces: network cards whose other end is a program, a virtual machine for instance.
//!
//! They are made through an ioctl of `/dev/net/tun`, and only there: the kernel refuses to make one over
//! netlink ([`device`]); everything else about them is netlink's again. SELinux labels an interface as the program
//! that makes it, and a program's label is chosen when it is started: where one is asked for, `ip` is that program.
//!
//! Source: ip-tuntap(8); kernel `Documentation/networking/tuntap.rst`, `drivers/net/tun.c` (`tun_validate`);
//! selinux(8), `security/selinux/hooks.c` (`selinux_tun_dev_alloc_security`).

mod device;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::error::Error;

/// A tap interface to create. `ip tuntap add dev NAME mode tap …`
#[derive(Clone, Debug)]
pub struct NewTap<'a> {
    /// Its name, checked.
    pub name: &'a str,
    /// `multi_queue`: several queues, for as many processors.
    pub multi_queue: bool,
    /// The user that may open it; anybody with the privilege if absent.
    pub owner: Option<u32>,
    /// The group that may open it.
    pub group: Option<u32>,
    /// The SELinux context of whoever may open it.
    pub context: Option<&'a str>,
}

/// The context that the next program started by this thread gets.
const NEXT_CONTEXT: &str = "/proc/thread-self/attr/exec";

/// Does this kernel enforce, or would it, a policy of SELinux?
pub fn has_selinux() -> bool {
    Path::new("/sys/fs/selinux/enforce").exists()
}

/// Makes a tap interface in the namespace of the calling thread; it is down and outlives us.
///
/// # Errors
/// No device (`modprobe tun`); the name is taken; the words of `ip`, that there is no `ip`, or that SELinux does not
/// allow or know the context, if one is asked for.
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

/// The same by a program that is started with this context, and gives it to the interface.
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
    // An empty line is «as ever»: no other program of ours is to be started so.
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
