//! Captures every frame on one link, as `tcpdump -i NAME` does.
//!
//! The kernel removes VLAN tags before it hands a frame to the socket.
//!
//! Source: packet(7).

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::sys::socket::{AddressFamily, LinkAddr, SockFlag, SockProtocol, SockType};
use rustix::io::Errno;
use rustix::net::RecvFlags;

use crate::error::Error;

/// Socket that receives a link's frames in both directions.
#[derive(Debug)]
pub struct CaptureSocket {
    socket: OwnedFd,
    name: String,
}

/// Captured frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Captured {
    /// Number of bytes in the buffer.
    pub length: usize,
    /// Full frame length, which may exceed the buffer.
    pub whole: usize,
}

impl AsFd for CaptureSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl CaptureSocket {
    /// Opens a socket in the calling thread's namespace for the link with this name.
    pub fn open(name: &str) -> Result<CaptureSocket, Error> {
        let operation = || format!("open capture socket on {name}");
        let failed =
            |errno: nix::errno::Errno| Error::kernel(operation(), Errno::from_raw_os_error(errno as i32));
        let mut all = nix::ifaddrs::getifaddrs().map_err(failed)?;
        let link: Option<LinkAddr> = all.find_map(|found| match found.interface_name == name {
            true => found.address.as_ref().and_then(|address| address.as_link_addr()).copied(),
            false => None,
        });
        let link = link.ok_or_else(|| Error::kernel(operation(), Errno::NODEV))?;
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket =
            nix::sys::socket::socket(AddressFamily::Packet, SockType::Raw, flags, SockProtocol::EthAll)
                .map_err(failed)?;
        // The link's address contains no protocol, so the socket keeps the one it was created with.
        nix::sys::socket::bind(socket.as_raw_fd(), &link).map_err(failed)?;
        let capture = CaptureSocket { socket, name: name.to_owned() };
        // Until it was bound, the socket received frames from every link.
        let mut nothing = [0; 1];
        while capture.receive(&mut nothing)?.is_some() {}
        Ok(capture)
    }

    /// Returns a frame that has already arrived, or `None`.
    pub fn receive(&self, buffer: &mut [u8]) -> Result<Option<Captured>, Error> {
        let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
        match rustix::net::recv(&self.socket, &mut *buffer, flags) {
            Ok((length, whole)) => Ok(Some(Captured { length: length.min(buffer.len()), whole })),
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(errno) => Err(Error::kernel(format!("capture on {}", self.name), errno)),
        }
    }
}
