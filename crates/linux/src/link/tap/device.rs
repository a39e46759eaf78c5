//! The device that tap interfaces come out of, and the only `unsafe` there is: an ioctl takes the address of what it
//! reads and writes, and the compiler cannot see how much of it the kernel touches.
//!
//! Rules: each request is a constant of `include/uapi/linux/if_tun.h` with the type that the kernel reads or writes
//! there; nothing else is in this file; a device that is dropped before it is kept takes its interface with it, so
//! whoever is killed in between leaves none.
//!
//! Source: ioctl(2), kernel `drivers/net/tun.c` (`__tun_chr_ioctl`), `include/uapi/linux/if.h` (`struct ifreq`).

#![expect(unsafe_code, reason = "the kernel makes no tap interface without an ioctl; this file and no other")]

use std::fs::{File, OpenOptions};
use std::io;

use rustix::ioctl::{IntegerSetter, Updater, ioctl};

const PATH: &str = "/dev/net/tun";

/// `TUNSETIFF`, `TUNSETPERSIST`, `TUNSETOWNER`, `TUNSETGROUP`: each is `_IOW('T', …, int)`, whatever it takes.
const SET_INTERFACE: u32 = 0x4004_54ca;
const SET_PERSISTENT: u32 = 0x4004_54cb;
const SET_OWNER: u32 = 0x4004_54cc;
const SET_GROUP: u32 = 0x4004_54ce;

/// `IFF_TAP`: whole frames; `IFF_NO_PI`: and nothing before them; `IFF_TUN_EXCL`: and a new interface.
const NEW_TAP: u16 = 0x0002 | 0x1000 | 0x8000;
/// `IFF_MULTI_QUEUE`
const QUEUES: u16 = 0x0100;

/// `IFNAMSIZ`, with the zero at its end.
const NAME_SIZE: usize = 16;

/// `struct ifreq` as this request uses it, and as long as it is where it is longest.
#[repr(C, align(8))]
struct InterfaceRequest {
    name: [u8; NAME_SIZE],
    flags: u16,
    rest: [u8; 22],
}

/// An interface that lasts as long as this value, until it is kept.
pub(super) struct Device(File);

impl Device {
    /// Makes an interface in the namespace of the calling thread.
    ///
    /// # Errors
    /// No device, no privilege, a name that is taken or too long.
    pub(super) fn make(name: &str, multi_queue: bool) -> io::Result<Device> {
        let bytes = name.as_bytes();
        let mut request = InterfaceRequest {
            name: [0; NAME_SIZE],
            flags: NEW_TAP | if multi_queue { QUEUES } else { 0 },
            rest: [0; 22],
        };
        // A «%» would make a pattern of it, and a longer one would lose its end.
        let room = request.name[..NAME_SIZE - 1].get_mut(..bytes.len()).filter(|_| !bytes.contains(&b'%'));
        room.ok_or(io::ErrorKind::InvalidInput)?.copy_from_slice(bytes);
        let file = OpenOptions::new().read(true).write(true).open(PATH)?;
        // SAFETY: `TUNSETIFF` reads and writes one `struct ifreq`, 40 bytes at most, which `InterfaceRequest` is.
        unsafe { ioctl(&file, Updater::<SET_INTERFACE, _>::new(&mut request)) }?;
        Ok(Device(file))
    }

    /// Who may open it without the privilege to.
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

    /// Lets it outlive this value.
    pub(super) fn keep(self) -> io::Result<()> {
        // SAFETY: `TUNSETPERSIST` takes a number and no address.
        unsafe { ioctl(&self.0, IntegerSetter::<SET_PERSISTENT>::new_usize(1)) }?;
        Ok(())
    }
}
