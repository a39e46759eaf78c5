//! Raw frames on one link, for DHCP clients without an address, and UDP sockets bound to a link, for those with one.
//!
//! A packet socket receives only packets to one UDP port on one link. A busy pod's traffic must neither fill the buffer
//! before the answer arrives nor wake the reader. The socket is open only while a client waits for an answer.
//!
//! The filter also selects the link, so that the socket need not be bound: calling bind(2) on a socket that already
//! receives waits for the kernel's grace period (`synchronize_net`), which takes about ten milliseconds.
//!
//! Source: packet(7), socket(7) `SO_ATTACH_FILTER` and `SO_BINDTODEVICE`; Linux `Documentation/networking/filter.rst`,
//! `net/packet/af_packet.c`.

use std::net::{SocketAddrV4, SocketAddrV6, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Instant;

use nix::sys::socket::{LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, recvfrom, sendto};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use socket2::{SockFilter, SockRef};

use crate::error::Error;

/// Maximum length of a received frame in bytes; longer frames are cut.
const FRAME_MAX: usize = 9216;

/// Data received from a socket.
#[derive(Debug, PartialEq, Eq)]
pub enum Received {
    /// Whole frame.
    Frame(Vec<u8>),
    /// Datagram content.
    Datagram(Vec<u8>),
}

/// Socket for frames on one link that carry UDP over IPv4 to one port.
#[derive(Debug)]
pub struct PacketSocket {
    socket: OwnedFd,
    link: LinkAddr,
    name: String,
}

impl PacketSocket {
    /// Opens a socket in the calling thread's namespace, for this port on the link with this name, which must be up.
    ///
    /// Like `tcpdump -i NAME 'udp dst port PORT'`.
    pub fn open(name: &str, port: u16) -> Result<PacketSocket, Error> {
        let operation = || format!("open packet socket on {name}");
        let failed = |errno: nix::errno::Errno| Error::kernel(operation(), of(errno));
        let mut all = nix::ifaddrs::getifaddrs().map_err(failed)?;
        let link = all.find_map(|found| match found.interface_name == name {
            true => found.address.as_ref().and_then(|address| address.as_link_addr()).copied(),
            false => None,
        });
        let Some(link) = link else {
            return Err(Error::kernel(operation(), Errno::NODEV));
        };
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let family = nix::sys::socket::AddressFamily::Packet;
        let socket =
            nix::sys::socket::socket(family, SockType::Raw, flags, SockProtocol::EthIp).map_err(failed)?;
        let index = u32::try_from(link.ifindex()).map_err(|_| Error::kernel(operation(), Errno::NODEV))?;
        let filtered = SockRef::from(&socket).attach_filter(&only_to(index, port));
        filtered.map_err(|error| Error::io(format!("filter packet socket on {name}"), &error))?;
        Ok(PacketSocket { socket, link, name: name.to_owned() })
    }

    /// Sends a frame that includes the header.
    pub fn send(&self, frame: &[u8]) -> Result<(), Error> {
        match sendto(self.socket.as_raw_fd(), frame, &self.link, MsgFlags::empty()) {
            Ok(_) => Ok(()),
            Err(errno) => Err(Error::kernel(format!("send on {}", self.name), of(errno))),
        }
    }

    /// Returns what arrives first before `until`: a frame on the link including the header, or a datagram on `beside`
    /// if there is such a socket. `None` if nothing arrives.
    pub fn receive(&self, beside: Option<&UdpSocket>, until: Instant) -> Result<Option<Received>, Error> {
        let failed = |errno: Errno| Error::kernel(format!("receive on {}", self.name), errno);
        let mut buffer = vec![0; FRAME_MAX];
        loop {
            if let Some(length) = beside.and_then(|socket| datagram(socket, &mut buffer)) {
                buffer.truncate(length);
                return Ok(Some(Received::Datagram(buffer)));
            }
            match recvfrom::<LinkAddr>(self.socket.as_raw_fd(), &mut buffer) {
                Ok((length, from)) => {
                    if from.is_some_and(|from| from.ifindex() == self.link.ifindex()) {
                        buffer.truncate(length);
                        return Ok(Some(Received::Frame(buffer)));
                    }
                    // Packets from other links that arrived before the filter was set must not delay the caller beyond
                    // the deadline.
                    if Instant::now() >= until {
                        return Ok(None);
                    }
                }
                Err(nix::errno::Errno::EAGAIN) => {
                    if !wait_readable(&self.socket, beside, until).map_err(failed)? {
                        return Ok(None);
                    }
                }
                Err(nix::errno::Errno::EINTR) => {}
                Err(errno) => return Err(failed(of(errno))),
            }
        }
    }
}

/// Builds the filter: whole IPv4 UDP datagrams to this port, received on this link, which has Ethernet headers.
///
/// Classic BPF, as `tcpdump -dd` prints it: (operation, jump if true, jump if false, value). A read beyond the end
/// rejects.
fn only_to(link: u32, port: u16) -> [SockFilter; 13] {
    const WORD_AT: u16 = 0x20;
    // Index of the link that received the packet: `SKF_AD_OFF + SKF_AD_IFINDEX`.
    const LINK: u32 = 0xffff_f000 + 8;
    const HALF_AT: u16 = 0x28;
    const BYTE_AT: u16 = 0x30;
    const HALF_AT_X: u16 = 0x48;
    const X_FROM_HEADER_LENGTH: u16 = 0xb1;
    const IS: u16 = 0x15;
    const HAS_ANY: u16 = 0x45;
    const END: u16 = 0x06;
    let line = SockFilter::new;
    [
        line(WORD_AT, 0, 0, LINK),            // link
        line(IS, 0, 9, link),                 // this one
        line(HALF_AT, 0, 0, 12),              // protocol of the frame
        line(IS, 0, 7, 0x0800),               // IPv4
        line(BYTE_AT, 0, 0, 14 + 9),          // protocol of the packet
        line(IS, 0, 5, 17),                   // UDP
        line(HALF_AT, 0, 0, 14 + 6),          // more fragments, and which one this is
        line(HAS_ANY, 3, 0, 0x3fff),          // neither
        line(X_FROM_HEADER_LENGTH, 0, 0, 14), // options may follow the header
        line(HALF_AT_X, 0, 0, 14 + 2),        // destination port
        line(IS, 1, 0, port.into()),
        line(END, 0, 0, 0),
        line(END, 0, 0, FRAME_MAX as u32),
    ]
}

/// Reads a datagram that has already arrived; an ICMP error from the peer counts as none.
fn datagram(socket: &UdpSocket, buffer: &mut [u8]) -> Option<usize> {
    rustix::net::recv(socket, buffer, RecvFlags::DONTWAIT).ok().map(|(length, _)| length)
}

/// Opens a UDP socket in the calling thread's namespace that sends and receives on one link only.
pub fn udp_on(name: &str, from: SocketAddrV4, to: SocketAddrV4) -> Result<UdpSocket, Error> {
    let operation = || format!("open socket from {from} to {to} on {name}");
    let failed = |error: std::io::Error| Error::io(operation(), &error);
    let socket = UdpSocket::bind(from).map_err(failed)?;
    nix::sys::socket::setsockopt(&socket, nix::sys::socket::sockopt::BindToDevice, &name.into())
        .map_err(|errno| Error::kernel(operation(), of(errno)))?;
    socket.connect(to).map_err(failed)?;
    Ok(socket)
}

/// Opens an IPv6 UDP socket in the calling thread's namespace that sends and receives on one link only. It is not
/// connected, because the answer to a multicast request comes from another address.
pub fn udp6_on(name: &str, from: SocketAddrV6) -> Result<UdpSocket, Error> {
    let operation = || format!("open socket from {from} on {name}");
    let socket = UdpSocket::bind(from).map_err(|error| Error::io(operation(), &error))?;
    nix::sys::socket::setsockopt(&socket, nix::sys::socket::sockopt::BindToDevice, &name.into())
        .map_err(|errno| Error::kernel(operation(), of(errno)))?;
    Ok(socket)
}

fn wait_readable(socket: &OwnedFd, beside: Option<&UdpSocket>, until: Instant) -> Result<bool, Errno> {
    let left = until.saturating_duration_since(Instant::now());
    let timeout = Timespec::try_from(left).map_err(|_| Errno::INVAL)?;
    let mut waiting = vec![PollFd::new(socket, PollFlags::IN)];
    waiting.extend(beside.map(|socket| PollFd::new(socket, PollFlags::IN)));
    match poll(&mut waiting, Some(&timeout)) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(true),
        Err(errno) => Err(errno),
    }
}

/// Converts a `nix` errno to a `rustix` errno.
fn of(errno: nix::errno::Errno) -> Errno {
    Errno::from_raw_os_error(errno as i32)
}
