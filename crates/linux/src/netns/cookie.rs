//! Reads the network namespace cookie.
//!
//! Source: socket(7) `SO_NETNS_COOKIE`; kernel `net/core/net_namespace.c` (`net_cookie`), Linux 5.14.

use nix::{getsockopt_impl, libc, sockopt_impl};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

sockopt_impl!(
    /// `SO_NETNS_COOKIE`
    NetnsCookie,
    GetOnly,
    libc::SOL_SOCKET,
    libc::SO_NETNS_COOKIE,
    u64
);

/// Returns the cookie of the calling thread's namespace; `None` if the kernel does not support cookies.
pub(super) fn own() -> Option<u64> {
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None).ok()?;
    nix::sys::socket::getsockopt(&socket, NetnsCookie).ok()
}
