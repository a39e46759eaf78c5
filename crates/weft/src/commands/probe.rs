//! `weft probe`: answers, or sends, the packets of `weft test`, in a pod of it.
//!
//! ```text
//!   weft probe --to ADDRESS ── UDP: token, number, padding ──► weft probe
//!        └─ report: /dev/termination-log ─► status of the pod     └─ sends it back
//! ```
//!
//! - It needs no privilege: pods of `weft test` have none.
//! - A packet leaves through the interface of the network, whatever the routes are. It is never fragmented.
//! - Only packets with the token of the run are answered, with as many bytes as were received.
//!
//! Source: ip(7), IP_MTU_DISCOVER; socket(7), SO_BINDTODEVICE: without privilege since Linux 5.7.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use rustix::net::sockopt::{
    Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, ip_mtu, ipv6_mtu, set_ip_mtu_discover, set_ipv6_mtu_discover,
};
use serde::{Deserialize, Serialize};
use tokio::net::UdpSocket;
use tokio::time::timeout;

use cli_support::async_runtime::{ended, runtime};
use cli_support::failure::{EXIT_CODES, Failure};
use cli_support::output;
use cni::name::IfName;

/// UDP port that the probes use.
const PORT: u16 = 9469;
/// Number of small packets to send to an address. The first ones may be lost while duplicate address detection runs for
/// an IPv6 address, or while a bridge learns which port leads there.
const SMALL_ATTEMPTS: u64 = 12;
/// Number of large packets to send to an address.
const LARGE_ATTEMPTS: u64 = 3;
/// Timeout for one reply.
const REPLY_MAX: Duration = Duration::from_millis(500);
/// Pause after the kernel reported an error.
const PAUSE: Duration = Duration::from_millis(20);
/// Maximum number of addresses.
const ADDRESSES_MAX: usize = 32;
/// Maximum size for a UDP datagram over IPv4, in bytes.
const DATAGRAM_MAX: usize = 65507;
/// Header sizes for UDP over IPv4 and IPv6, in bytes.
const HEADERS: [usize; 2] = [20 + 8, 40 + 8];

/// Arguments of `weft probe`.
#[derive(Debug, Args)]
#[command(after_help = format!("\
Example:
  weft probe --interface net1 --token 1f-00a3c
  weft probe --interface net1 --token 1f-00a3c --to 10.0.0.2

weft test runs it in its pods. Without --to it answers until SIGTERM.

{EXIT_CODES}"))]
pub(crate) struct Arguments {
    /// Name of the interface of the network
    #[arg(long, value_name = "NAME", value_parser = IfName::new)]
    interface: IfName,
    /// Token of the run, which every packet contains
    #[arg(long, value_name = "TOKEN")]
    token: String,
    /// Address to which packets are sent (default: answer packets). May be repeated
    #[arg(long, value_name = "ADDRESS")]
    to: Vec<IpAddr>,
    /// Path to the file for the report (default: the report is only printed)
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

/// Report about the packets that were sent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Report {
    /// MTU on the interface, or on the route if that is smaller, in bytes; 0 if it is unknown.
    pub(crate) mtu: usize,
    /// Replies in address order.
    pub(crate) replies: Vec<Reply>,
}

/// Replies from an address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Reply {
    /// Address that was probed.
    pub(crate) address: IpAddr,
    /// Round-trip time for a small packet; `None` without a reply.
    #[serde(default)]
    pub(crate) microseconds: Option<u64>,
    /// Size of the packet that was as large as the MTU, if it was answered, in bytes.
    #[serde(default)]
    pub(crate) largest: Option<usize>,
    /// Own address from which the packets were sent, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) from: Option<IpAddr>,
    /// Why the kernel refused a packet, if it did.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) error: String,
}

/// Runs `weft probe`.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { interface, token, to, report } = arguments;
    let failed = |cause: io::Error| Failure::new(format!("probe on {interface}: {cause}"));
    if to.is_empty() {
        return runtime()?.block_on(async {
            let end = ended()?;
            tokio::select! {
                answered = answer(interface, token) => answered.map_err(failed),
                () = end => Ok(()),
            }
        });
    }
    let mut found = Report::default();
    runtime()?.block_on(async {
        for address in to.iter().take(ADDRESSES_MAX) {
            let (reply, mtu) = reply(interface, token, *address).await;
            found.mtu = found.mtu.max(mtu);
            found.replies.push(reply);
        }
    });
    if let Some(path) = report {
        let text = serde_json::to_string(&found)
            .map_err(|cause| Failure::new(format!("encode the report: {cause}")))?;
        fs::write(path, text).map_err(|cause| Failure::new(format!("write {}: {cause}", path.display())))?;
    }
    output::print_json(&found)
}

/// Returns the MTU on the path to an address, as far as this pod knows it: the interface's, or the route's;
/// and the own address on it, if it certainly belongs to the interface.
async fn path(interface: &IfName, own: IpAddr, to: SocketAddr) -> io::Result<(usize, Option<IpAddr>)> {
    let (socket, is_bound) = bind(interface, (own, 0).into()).await?;
    socket.connect(to).await?;
    let mtu = if to.is_ipv4() { ip_mtu(&socket)? } else { ipv6_mtu(&socket)? };
    let from = if is_bound { Some(socket.local_addr()?.ip()) } else { None };
    Ok((usize::try_from(mtu).unwrap_or_default(), from))
}

/// Sends every packet with the token back, until it fails.
async fn answer(interface: &IfName, token: &str) -> io::Result<()> {
    let both = SocketAddr::from((Ipv6Addr::UNSPECIFIED, PORT));
    let (socket, _) = match bind(interface, both).await {
        Ok(bound) => bound,
        // The pod has no IPv6.
        Err(_) => bind(interface, (Ipv4Addr::UNSPECIFIED, PORT).into()).await?,
    };
    let mut buffer = vec![0; DATAGRAM_MAX];
    loop {
        // An error belongs to an earlier packet, for example an ICMP message about it.
        let Ok((size, sender)) = socket.recv_from(&mut buffer).await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let packet = buffer.get(..size).unwrap_or_default();
        if packet.starts_with(prefix(token).as_bytes()) {
            // The sender tries again.
            let _ = socket.send_to(packet, sender).await;
        }
    }
}

/// Returns how every packet in a run begins.
fn prefix(token: &str) -> String {
    format!("weft-test {token} ")
}

/// Returns a packet for a run with this number, `size` bytes long if that is enough.
fn packet(token: &str, number: u64, size: usize) -> Vec<u8> {
    let mut packet = format!("{}{number:016x}", prefix(token)).into_bytes();
    packet.resize(size.max(packet.len()).min(DATAGRAM_MAX), b'.');
    packet
}

/// Returns a socket that uses one interface only, and never fragments; and whether the kernel limits it to the interface.
async fn bind(interface: &IfName, address: SocketAddr) -> io::Result<(UdpSocket, bool)> {
    let socket = UdpSocket::bind(address).await?;
    let is_bound = match socket.bind_device(Some(interface.as_str().as_bytes())) {
        Ok(()) => true,
        // Before Linux 5.7 this needs a privilege. The routes of the pod select the interface then.
        Err(cause) if cause.kind() == io::ErrorKind::PermissionDenied => false,
        Err(cause) => return Err(cause),
    };
    if address.is_ipv6() {
        set_ipv6_mtu_discover(&socket, Ipv6PathMtuDiscovery::DO)?;
    }
    // An IPv6 socket may serve both families.
    let _ = set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::DO);
    Ok((socket, is_bound))
}

/// Sends small packets to an address until one is answered, then packets as large as the MTU. Returns the MTU as well.
async fn reply(interface: &IfName, token: &str, address: IpAddr) -> (Reply, usize) {
    let mut reply = Reply { address, microseconds: None, largest: None, from: None, error: String::new() };
    let (own, headers) = match address {
        IpAddr::V4(_) => (IpAddr::from(Ipv4Addr::UNSPECIFIED), HEADERS[0]),
        IpAddr::V6(_) => (IpAddr::from(Ipv6Addr::UNSPECIFIED), HEADERS[1]),
    };
    let to = SocketAddr::from((address, PORT));
    let mut mtu = 0;
    if let Ok((found, from)) = path(interface, own, to).await {
        (mtu, reply.from) = (found, from);
    }
    match bind(interface, (own, 0).into()).await {
        Err(cause) => reply.error = cause.to_string(),
        Ok((socket, _)) => {
            small(&socket, to, token, &mut reply).await;
            let size = mtu.saturating_sub(headers).min(DATAGRAM_MAX);
            if reply.microseconds.is_some() && size > 0 {
                reply.largest = large(&socket, to, token, size, &mut reply.error).await;
                reply.largest = reply.largest.map(|size| size + headers);
            }
        }
    }
    (reply, mtu)
}

/// Sends small packets until one is answered.
async fn small(socket: &UdpSocket, to: SocketAddr, token: &str, reply: &mut Reply) {
    for number in 0..SMALL_ATTEMPTS {
        match exchange(socket, to, &packet(token, number, 0)).await {
            Ok(Some(time)) => {
                reply.microseconds = Some(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
                reply.error.clear();
                return;
            }
            Ok(None) => {}
            Err(cause) => {
                reply.error = cause.to_string();
                tokio::time::sleep(REPLY_MAX).await;
            }
        }
    }
}

/// Sends packets with a size until one is answered; returns the size then.
async fn large(
    socket: &UdpSocket,
    to: SocketAddr,
    token: &str,
    size: usize,
    error: &mut String,
) -> Option<usize> {
    for number in 0..LARGE_ATTEMPTS {
        match exchange(socket, to, &packet(token, SMALL_ATTEMPTS + number, size)).await {
            Ok(Some(_)) => return Some(size),
            Ok(None) => {}
            Err(cause) => *error = cause.to_string(),
        }
    }
    None
}

/// Sends a packet and returns the time until the same packet came back; `None` if it did not.
async fn exchange(socket: &UdpSocket, to: SocketAddr, packet: &[u8]) -> io::Result<Option<Duration>> {
    let sent = Instant::now();
    socket.send_to(packet, to).await?;
    let mut buffer = vec![0; DATAGRAM_MAX];
    let mut refused = None;
    let received = timeout(REPLY_MAX, async {
        loop {
            match socket.recv_from(&mut buffer).await {
                Ok((size, _)) if buffer.get(..size) == Some(packet) => return,
                Ok(_) => {}
                Err(cause) => {
                    refused = Some(cause);
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    });
    match (received.await, refused) {
        (Ok(()), _) => Ok(Some(sent.elapsed())),
        (Err(_), Some(cause)) => Err(cause),
        (Err(_), None) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probe_packet_has_token_number_and_size() {
        let small = packet("a", 1, 0);
        assert_eq!(small, b"weft-test a 0000000000000001");
        assert_eq!(packet("a", 1, 100).len(), 100);
        assert!(packet("a", 1, 100).starts_with(&small));
        assert_ne!(packet("a", 1, 100), packet("a", 2, 100));
        assert_eq!(packet("a", 1, usize::MAX).len(), DATAGRAM_MAX);
    }
}
