//! Keeps this process's nfnetlink sockets open, so that they can be reused.
//!
//! Closing such a socket waits until the kernel has freed objects removed from any table. This grace period of 20 ms
//! would come on top of the one for removing a link, so the process closes the sockets only when it exits. The number
//! of descriptors is still bounded, even in a process that removes many attachments, such as a GC:
//!
//! - A socket that is not in use serves the next user in the same namespace.
//! - At most [`IDLE_MAX`] unused sockets stay open. Beyond that, all are closed at once, in one grace period.
//! - An open socket keeps the namespace alive, so another namespace cannot get the same identity.
//!
//! Source: kernel `net/netfilter/nf_tables_api.c` (`nft_rcv_nl_event`).

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Message;
use crate::error::Error;
use crate::netlink::{DumpLimit, Failure, Protocol, Request, Socket};
use crate::thread_netns;

/// Maximum number of open sockets that are not in use.
const IDLE_MAX: usize = 16;

/// Sockets in this process, each with the namespace's device and inode.
static SOCKETS: Mutex<Vec<((u64, u64), PooledSocket)>> = Mutex::new(Vec::new());

/// Whether this process has removed nf_tables objects, so that closing a socket has to wait.
static HAS_REMOVED: AtomicBool = AtomicBool::new(false);

/// Records that this process removes nf_tables objects.
pub(crate) fn note_removal() {
    HAS_REMOVED.store(true, Relaxed);
}

/// If this process removed objects, takes the unused sockets out of the pool; dropping them closes them.
pub(crate) fn take_after_removal() -> Option<Vec<PooledSocket>> {
    if !HAS_REMOVED.load(Relaxed) {
        return None;
    }
    let mut sockets = SOCKETS.lock().unwrap_or_else(PoisonError::into_inner);
    Some(sockets.extract_if(.., |(_, socket)| socket.is_idle()).map(|(_, socket)| socket).collect())
}

/// Socket with one user at a time; a second reference shows that it is in use.
#[derive(Clone, Debug)]
pub(crate) struct PooledSocket(Arc<Mutex<Socket>>);

// === impl PooledSocket ===

impl PooledSocket {
    /// Returns an unused socket in the calling thread's namespace, or opens one.
    pub(crate) fn open() -> Result<PooledSocket, Error> {
        let namespace = thread_netns::identity()?;
        let mut sockets = SOCKETS.lock().unwrap_or_else(PoisonError::into_inner);
        let unused = sockets.iter().find(|(of, socket)| *of == namespace && socket.can_serve());
        if let Some((_, socket)) = unused {
            return Ok(socket.clone());
        }
        let mut closed = Vec::new();
        if sockets.iter().filter(|(_, socket)| socket.is_idle()).count() >= IDLE_MAX {
            (closed, *sockets) = sockets.drain(..).partition(|(_, socket)| socket.is_idle());
        }
        let opened =
            Socket::open(Protocol::Netfilter).map(|socket| PooledSocket(Arc::new(Mutex::new(socket))));
        if let Ok(socket) = &opened {
            sockets.push((namespace, socket.clone()));
        }
        // Other threads should not have to wait for the grace period.
        drop(sockets);
        drop(closed);
        opened
    }

    /// Like [`Socket::exchange`].
    pub(crate) fn exchange(&mut self, requests: Vec<Request<Message>>) -> Result<Vec<Message>, Failure> {
        self.lock().exchange(requests)
    }

    /// Like [`Socket::transact`].
    pub(crate) fn transact(&mut self, requests: Vec<Request<Message>>) -> Result<(), Failure> {
        self.lock().transact(requests)
    }

    /// Like [`Socket::dump`].
    pub(crate) fn dump(&mut self, flags: u16, message: &Message) -> Result<Vec<Message>, Failure> {
        self.lock().dump(flags, message)
    }

    /// Like [`Socket::dump_within`].
    pub(crate) fn dump_within(
        &mut self,
        limit: &mut DumpLimit,
        flags: u16,
        message: &Message,
    ) -> Result<Option<Vec<Message>>, Failure> {
        self.lock().dump_within(limit, flags, message)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Socket> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_idle(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    fn can_serve(&self) -> bool {
        self.is_idle() && !self.lock().has_unread_dump()
    }
}
