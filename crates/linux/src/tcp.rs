//! Probes a peer with one TCP connection.
//!
//! Source: RFC 9293, section 3.5; connect(2).

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, Socket, Type};

use crate::error::Error;

/// Outcome of a connection attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connection {
    /// The peer accepted the connection after this time.
    Accepted(Duration),
    /// The peer, or a packet filter for it, refused the connection with a reset.
    Refused,
    /// A router, a packet filter or the kernel reported the destination as unreachable.
    Unreachable,
    /// There was no answer in time.
    NoAnswer,
}

/// Connects from an address in the calling thread's namespace, and closes the connection at once. `nc -z -s FROM TO
/// PORT`
///
/// # Errors
/// The attempt could not be made, for example because the namespace does not have the source address.
pub fn connect(from: IpAddr, to: SocketAddr, wait: Duration) -> Result<Connection, Error> {
    let failed = |cause: std::io::Error| Error::io(format!("connect from {from} to {to}"), &cause);
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP)).map_err(failed)?;
    socket.bind(&SocketAddr::new(from, 0).into()).map_err(failed)?;
    let began = Instant::now();
    match socket.connect_timeout(&to.into(), wait) {
        Ok(()) => Ok(Connection::Accepted(began.elapsed())),
        Err(cause) => match cause.kind() {
            ErrorKind::ConnectionRefused => Ok(Connection::Refused),
            ErrorKind::TimedOut => Ok(Connection::NoAnswer),
            ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable | ErrorKind::PermissionDenied => {
                Ok(Connection::Unreachable)
            }
            _ => Err(failed(cause)),
        },
    }
}
