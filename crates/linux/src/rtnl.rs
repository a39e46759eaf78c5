//! Routing socket in one network namespace.
//!
//! The operations are in the modules for the objects: [`crate::link`], [`crate::address`], [`crate::route`],
//! [`crate::rule`], [`crate::tc`].

pub(crate) mod message;

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use crate::attributes::ne32_of;
use rustix::io::Errno;

use crate::error::Error;
use crate::netlink::{Failure, Protocol, Request, Socket};
use message::{GET_NETNS_ID, Message};

/// `NETNSA_NSID`
const NETNS_ID: u16 = 1;
/// `NETNSA_FD`
const NETNS_DESCRIPTOR: u16 = 3;

/// Routing socket (rtnetlink).
#[derive(Debug)]
pub struct Rtnl {
    socket: Socket,
}

impl AsFd for Rtnl {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Rtnl {
    /// Opens a socket in the calling thread's namespace; for another one see [`crate::Netns::rtnl`].
    pub fn open() -> Result<Rtnl, Error> {
        Ok(Rtnl { socket: Socket::open(Protocol::Route)? })
    }

    /// Returns the id that this socket's namespace has for the namespace `netns`, as in
    /// [`crate::link::Link::link_netns_id`]; `None` if it has none. `ip netns list-id`
    pub fn netns_id(&mut self, netns: &impl AsFd) -> Result<Option<i32>, Error> {
        let mut message = Message::netns_id(GET_NETNS_ID);
        message.attributes.ne32(NETNS_DESCRIPTOR, netns.as_fd().as_raw_fd().cast_unsigned());
        let answers = self.ask(message, || "read the id of a network namespace".to_owned())?;
        let id = answers.iter().find_map(|answer| answer.attributes.find(NETNS_ID).and_then(ne32_of));
        Ok(id.map(u32::cast_signed).filter(|id| *id >= 0))
    }

    /// Sends one request that has no answer.
    pub(crate) fn execute(
        &mut self,
        flags: u16,
        message: Message,
        operation: impl FnOnce() -> String,
    ) -> Result<(), Error> {
        match self.socket.exchange(vec![Request { flags, message }]) {
            Ok(_) => Ok(()),
            Err(failure) => Err(failure.of(operation())),
        }
    }

    /// Sends several requests in one datagram; `operation` describes the failed one, given the index.
    pub(crate) fn execute_all(
        &mut self,
        requests: Vec<Request<Message>>,
        operation: impl FnOnce(usize) -> String,
    ) -> Result<(), Error> {
        if requests.is_empty() {
            return Ok(());
        }
        match self.socket.exchange(requests) {
            Ok(_) => Ok(()),
            Err(failure) => {
                let index = if let Failure::Refused(refusal) = &failure { refusal.index } else { 0 };
                Err(failure.of(operation(index)))
            }
        }
    }

    /// Sends one request and returns the answers.
    pub(crate) fn ask(
        &mut self,
        message: Message,
        operation: impl FnOnce() -> String,
    ) -> Result<Vec<Message>, Error> {
        self.ask_all(vec![Request { flags: 0, message }], operation)
    }

    /// Sends several requests in one datagram and returns the answers.
    pub(crate) fn ask_all(
        &mut self,
        requests: Vec<Request<Message>>,
        operation: impl FnOnce() -> String,
    ) -> Result<Vec<Message>, Error> {
        self.socket.exchange(requests).map_err(|failure| failure.of(operation()))
    }

    /// Lists all objects of one kind.
    pub(crate) fn dump(
        &mut self,
        message: &Message,
        operation: impl FnOnce() -> String,
    ) -> Result<Vec<Message>, Error> {
        self.socket.dump(0, message).map_err(|failure| failure.of(operation()))
    }

    /// Lists all objects of one kind in one address family; empty if the kernel was started without the family.
    pub(crate) fn dump_family(
        &mut self,
        message: &Message,
        operation: impl FnOnce() -> String,
    ) -> Result<Vec<Message>, Error> {
        match self.dump(message, operation) {
            Err(error) if error.errno() == Some(Errno::AFNOSUPPORT) => Ok(Vec::new()),
            dumped => dumped,
        }
    }
}
