//! Opens the device that creates tap interfaces. This is weft's only `unsafe` code: an ioctl takes the address of an
//! argument, and the compiler cannot check how many bytes the kernel accesses there.
//!
//! - Each request is a constant from `include/uapi/linux/if_tun.h`, with the type that the kernel reads or writes.
//! - This file must contain nothing else.
//! - A device that is dropped before it is kept removes the interface, so a process that is killed in between leaves
//!   none.
//!
//! Source: ioctl(2), kernel `drivers/net/tun.c` (`__tun_chr_ioctl`), `include/uapi/linux/if.h` (`struct ifreq`).

#![expect(unsafe_code, reason = "the kernel creates tap interfaces only through an ioctl")]

use std::fs::{File, OpenOptions};
use std::io;

use rustix::ioctl::{IntegerSetter, Updater, ioctl};

const PATH: &str = "/dev/net/tun";

/// `TUNSETIFF`, `TUNSETPERSIST`, `TUNSETOWNER`, `TUNSETGROUP`: each is `_IOW('T', …, int)`, whatever it actually takes.
const SET_INTERFACE: u32 = 0x4004_54ca;
const SET_PERSISTENT: u32 = 0x4004_54cb;
const SET_OWNER: u32 = 0x4004_54cc;
const SET_GROUP: u32 = 0x4004_54ce;

/// `IFF_TAP`: whole frames; `IFF_NO_PI`: no extra header before them; `IFF_TUN_EXCL`: fails if the interface exists.
const NEW_TAP: u16 = 0x0002 | 0x1000 | 0x8000;
/// `IFF_MULTI_QUEUE`
const QUEUES: u16 = 0x0100;

/// `IFNAMSIZ`, including the terminator.
const NAME_SIZE: usize = 16;

/// `struct ifreq` with the fields for this request, padded to full size.
#[repr(C, align(8))]
struct InterfaceRequest {
    name: [u8; NAME_SIZE],
    flags: u16,
    rest: [u8; 22],
}

/// Tap interface that is removed when this value is dropped, unless it is kept.
pub(super) struct Device(File);

impl Device {
    /// Creates an interface in the calling thread's namespace.
    ///
    /// # Errors
    /// The device or the privilege is missing, or the name is in use or too long.
    pub(super) fn make(name: &str, multi_queue: bool) -> io::Result<Device> {
        let bytes = name.as_bytes();
        let mut request = InterfaceRequest {
            name: [0; NAME_SIZE],
            flags: NEW_TAP | if multi_queue { QUEUES } else { 0 },
            rest: [0; 22],
        };
        // The kernel would interpret a «%» as a pattern, and truncate a longer name.
        let room = request.name[..NAME_SIZE - 1].get_mut(..bytes.len()).filter(|_| !bytes.contains(&b'%'));
        room.ok_or(io::ErrorKind::InvalidInput)?.copy_from_slice(bytes);
        let file = OpenOptions::new().read(true).write(true).open(PATH)?;
        // SAFETY: `TUNSETIFF` reads and writes one `struct ifreq`, 40 bytes at most, which `InterfaceRequest` is.
        unsafe { ioctl(&file, Updater::<SET_INTERFACE, _>::new(&mut request)) }?;
        Ok(Device(file))
    }

    /// Sets the user and the group that may open the interface without the privilege.
    pub(super) fn give(&self, owner: Option<u32>, group: Option<u32>) -> io::Result<()> {
        if let Some(owner) = owner {
            // SAFETY: `TUNSETOWNER` takes a number and no address.
            unsafe { ioctl(&self.0, IntegerSetter::<SET_OWNER>::new_usize(owner as usize)) }?;
        }
        if let Some(group) = group {
            // SAFETY: `TUNSETGROUP` takes a number and no address.
            unsafe { ioctl(&self.0, IntegerSetter::<SET_GROUP>::new_usize(group as usize)) }?;
        }
        Ok(())
    }

    /// Makes the interface outlive this value.
    pub(super) fn keep(self) -> io::Result<()> {
        // SAFETY: `TUNSETPERSIST` takes a number and no address.
        unsafe { ioctl(&self.0, IntegerSetter::<SET_PERSISTENT>::new_usize(1)) }?;
        Ok(())
    }
}
