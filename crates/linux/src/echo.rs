//! Sends a single ICMP echo request, which shows whether an attachment carries traffic.
//!
//! Source: RFC 792, RFC 4443 §4; icmp(7), raw(7).

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, ipproto, sockopt};

use crate::error::Error;

/// Request length in bytes: a header and a recognizable payload.
const LENGTH: usize = 24;
/// IPv4 header length without options, in bytes; a raw socket includes this header.
const IPV4_HEADER: usize = 20;

/// Sends one echo request and waits for the reply; `None` if there is none in time. `ping -c 1 [-I FROM] TO`
///
/// The request leaves the calling thread's namespace, with the source address `from` if there is one.
///
/// # Errors
/// The request cannot be sent: no route, no permission, or no such source address.
pub fn ping(to: IpAddr, from: Option<IpAddr>, wait: Duration) -> Result<Option<Duration>, Error> {
    let failed = |errno: Errno| Error::kernel(format!("ping {to}"), errno);
    let (family, protocol, request, reply) = match to {
        IpAddr::V4(_) => (AddressFamily::INET, ipproto::ICMP, 8, 0),
        IpAddr::V6(_) => (AddressFamily::INET6, ipproto::ICMPV6, 128, 129),
    };
    let socket = rustix::net::socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC, Some(protocol));
    let socket = socket.map_err(failed)?;
    if let Some(from) = from {
        rustix::net::bind(&socket, &SocketAddr::new(from, 0)).map_err(failed)?;
    }
    rustix::net::connect(&socket, &SocketAddr::new(to, 0)).map_err(failed)?;
    let started = Instant::now();
    let identity = std::process::id().to_be_bytes();
    let packet = packet(request, [identity[2], identity[3]]);
    rustix::net::send(&socket, &packet, SendFlags::empty()).map_err(failed)?;
    let mut answer = [0; 512];
    loop {
        let Some(left) = wait.checked_sub(started.elapsed()).filter(|left| !left.is_zero()) else {
            return Ok(None);
        };
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(left)).map_err(failed)?;
        let length = match rustix::net::recv(&socket, &mut answer[..], RecvFlags::empty()) {
            Ok((length, _)) => length,
            Err(Errno::AGAIN) => return Ok(None),
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(failed(errno)),
        };
        let skip = if to.is_ipv4() { IPV4_HEADER } else { 0 };
        let message = answer.get(skip..length).unwrap_or_default();
        if message.first() == Some(&reply) && message.get(4..) == packet.get(4..) {
            return Ok(Some(started.elapsed()));
        }
    }
}

/// Builds an echo request; for ICMPv6 the kernel fills in the checksum.
fn packet(kind: u8, identity: [u8; 2]) -> [u8; LENGTH] {
    let mut packet = [0; LENGTH];
    packet[0] = kind;
    packet[4..6].copy_from_slice(&identity);
    packet[7] = 1;
    packet[8..].copy_from_slice(b"weft echo request ".get(..LENGTH - 8).unwrap_or_default());
    let sum =
        packet.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum::<u32>();
    let folded = (sum & 0xffff) + (sum >> 16);
    let checksum = !(((folded & 0xffff) + (folded >> 16)) as u16);
    packet[2..4].copy_from_slice(&checksum.to_be_bytes());
    packet
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn icmp_checksum_makes_the_sum_all_ones() {
        let packet = packet(8, [0x12, 0x34]);
        let sum =
            packet.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum::<u32>();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
    }
}
