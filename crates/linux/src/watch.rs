//! Notifies about changes to links and to the IPv6 configuration in a namespace.
//!
//! A notification only says *that* something changed; the receiver then reads the current state. Nothing is therefore
//! lost if the socket drops messages, because message contents are not used. The exception is [`Watch::removed_links`]:
//! there the receiver knows what to do if a message was dropped.
//!
//! Source: rtnetlink(7), `RTNLGRP_*` in `include/uapi/linux/rtnetlink.h`.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use socket2::{SockFilter, SockRef};

use crate::error::Error;

/// `RTNLGRP_LINK`
const LINKS: u32 = 1;
/// `RTNLGRP_IPV6_IFADDR`
const ADDRESSES: u32 = 9;
/// `RTNLGRP_IPV6_ROUTE`
const ROUTES: u32 = 11;
/// `RTM_DELLINK`
const LINK_REMOVED: u16 = 17;
/// Offset of the address family in a link message: it follows the header.
const FAMILY_OFFSET: usize = 16;
/// Offset of the interface index in a link message: half of `struct ifinfomsg` comes before it.
const INDEX_OFFSET: usize = FAMILY_OFFSET + 4;
/// Bytes that are read from such a message.
const HEAD: usize = INDEX_OFFSET + 4;
/// Maximum number of messages that are read at once, so that a namespace with continuous changes cannot block the
/// watcher.
const AT_A_TIME: usize = 1024;

/// Watch on links, and on IPv6 addresses and routes.
#[derive(Debug)]
pub struct Watch {
    socket: netlink_sys::Socket,
}

impl Watch {
    /// Starts to watch the calling thread's namespace. `ip -6 monitor link address route`
    pub fn open() -> Result<Watch, Error> {
        Watch::of(&[LINKS, ADDRESSES, ROUTES])
    }

    /// Starts to watch links only. `ip monitor link`
    pub fn links() -> Result<Watch, Error> {
        Watch::of(&[LINKS])
    }

    /// Starts to watch links and IPv6 addresses. `ip -6 monitor link address`
    pub fn addresses() -> Result<Watch, Error> {
        Watch::of(&[LINKS, ADDRESSES])
    }

    fn of(groups: &[u32]) -> Result<Watch, Error> {
        let failed = |error: std::io::Error| Error::io("listen to netlink", &error);
        let mut socket = netlink_sys::Socket::new(netlink_sys::protocols::NETLINK_ROUTE).map_err(failed)?;
        socket.bind(&netlink_sys::SocketAddr::new(0, 0)).map_err(failed)?;
        for group in groups {
            socket.add_membership(*group).map_err(failed)?;
        }
        Ok(Watch { socket })
    }

    /// Waits for a change since the last call, or since the start; returns false if there is none by `until`.
    pub fn wait(&self, until: Instant) -> Result<bool, Error> {
        let failed = |errno: Errno| Error::kernel("listen to netlink", errno);
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).map_err(|_| failed(Errno::INVAL))?;
        match poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&timeout)) {
            Ok(0) => return Ok(false),
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(failed(errno)),
        }
        for _ in 0..AT_A_TIME {
            match rustix::net::recv(&self.socket, &mut [0; 16], RecvFlags::DONTWAIT) {
                Ok(_) | Err(Errno::INTR | Errno::NOBUFS) => {}
                Err(Errno::AGAIN) => break,
                Err(errno) => return Err(failed(errno)),
            }
        }
        Ok(true)
    }

    /// Lets the kernel drop everything except the messages that announce that these links are removed, so that changes
    /// to other links do not wake this process.
    pub(crate) fn filter_removed(&self, indexes: &[u32]) {
        // The filter only saves time.
        let _ = SockRef::from(&self.socket).attach_filter(&only_removals(indexes));
    }

    /// Reads the messages that have arrived, without waiting, and calls `removed` with the index of each link that the
    /// kernel has removed or moved to another namespace. It ignores messages from other senders, and messages from a
    /// bridge, which in this way announces that a link is no longer a port.
    pub(crate) fn removed_links(&self, mut removed: impl FnMut(u32)) {
        for _ in 0..AT_A_TIME {
            let mut head = [0; HEAD];
            match self.socket.recv_from(&mut &mut head[..], RecvFlags::DONTWAIT.bits().cast_signed()) {
                Ok((length, sender)) if length >= head.len() => {
                    if let Some(index) = removed_link(&head, sender.port_number()) {
                        removed(index);
                    }
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                // A message was dropped.
                Ok(_) | Err(_) => {}
            }
        }
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Returns the index of the link that a message announces as removed. Only the kernel sends from port 0, and when it
/// removes a link it sets no address family.
fn removed_link(head: &[u8; HEAD], port: u32) -> Option<u32> {
    let kind = u16::from_ne_bytes([head[4], head[5]]);
    let is_removal = kind == LINK_REMOVED && head[FAMILY_OFFSET] == 0;
    let index = head[INDEX_OFFSET..].try_into().map(u32::from_ne_bytes).ok()?;
    (port == 0 && is_removal).then_some(index)
}

/// Builds the filter: messages about these links being removed, or about any link if there are many.
///
/// Classic BPF as in [`crate::packet`]; it loads numbers in network byte order.
fn only_removals(indexes: &[u32]) -> Vec<SockFilter> {
    const BYTE_AT: u16 = 0x30;
    const HALF_AT: u16 = 0x28;
    const WORD_AT: u16 = 0x20;
    const IS: u16 = 0x15;
    const END: u16 = 0x06;
    /// A jump has one byte for the distance.
    const INDEXES_MAX: usize = 128;
    let line = SockFilter::new;
    let indexes = if indexes.len() > INDEXES_MAX { &[] } else { indexes };
    let kind = u16::from_be_bytes(LINK_REMOVED.to_ne_bytes());
    let mut filter = vec![line(HALF_AT, 0, 0, 4), line(IS, 1, 0, kind.into()), line(END, 0, 0, 0)];
    filter.extend([line(BYTE_AT, 0, 0, FAMILY_OFFSET as u32), line(IS, 1, 0, 0), line(END, 0, 0, 0)]);
    if !indexes.is_empty() {
        filter.push(line(WORD_AT, 0, 0, INDEX_OFFSET as u32));
        for (left, index) in (1_u8..).zip(indexes.iter().rev()).collect::<Vec<_>>().into_iter().rev() {
            filter.push(line(IS, left, 0, u32::from_be_bytes(index.to_ne_bytes())));
        }
        filter.push(line(END, 0, 0, 0));
    }
    filter.push(line(END, 0, 0, u32::MAX));
    filter
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watch_takes_the_removal_of_a_link_from_the_kernel_alone() {
        let mut head = [0; HEAD];
        head[4..6].copy_from_slice(&LINK_REMOVED.to_ne_bytes());
        head[INDEX_OFFSET..].copy_from_slice(&9_u32.to_ne_bytes());
        assert_eq!(removed_link(&head, 0), Some(9));
        assert_eq!(removed_link(&head, 4711), None);
        head[FAMILY_OFFSET] = 7;
        assert_eq!(removed_link(&head, 0), None, "a bridge lost a port");
        head[FAMILY_OFFSET] = 0;
        head[4] = 16;
        assert_eq!(removed_link(&head, 0), None);
    }

    #[test]
    fn watch_filter_has_one_jump_for_each_index() {
        // Kind, family, index, and an end for either outcome.
        for (count, length) in [(0, 7), (1, 10), (128, 137), (129, 7)] {
            let indexes: Vec<u32> = (1..=count).collect();
            assert_eq!(only_removals(&indexes).len(), length, "{count} links");
        }
    }
}
