//! Blocking netlink socket: sends requests in one datagram, and reads an acknowledgement for each.
//!
//! - An exchange reads all acknowledgements before it returns, even after a failure, so that none is left for the next
//!   exchange.
//! - A dump that the kernel reports as interrupted is repeated, at most [`DUMP_TRIES`] times.
//! - No operation waits longer than [`TIMEOUT`].
//!
//! Source: netlink(7); kernel Documentation/userspace-api/netlink/intro.rst.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_ACK_TLVS, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkBuffer,
    NetlinkDeserializable, NetlinkHeader, NetlinkMessage, NetlinkPayload, NetlinkSerializable, NlasIterator,
};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, sockopt};

use crate::error::Error;

/// Timeout for an answer. The kernel answers within microseconds unless it waits for a lock that another process holds.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Number of attempts for an interrupted dump; the last one is used as it is.
pub const DUMP_TRIES: usize = 5;

/// Initial receive buffer size in bytes. A link with many alternative names may need more; then the buffer grows, and the
/// request is repeated.
const RECEIVE_SIZE: usize = 64 * 1024;

/// Maximum size of a datagram to receive, in bytes.
const RECEIVE_MAX: usize = 16 << 20;

/// Maximum size of a datagram that fits into a socket's default send buffer, in bytes.
const ORDINARY_DATAGRAM: usize = 64 * 1024;

/// Maximum number of requests in one datagram. About 270 acknowledgements fit into a socket's default receive buffer;
/// the kernel drops any more.
const REQUESTS_MAX: usize = 64;

/// `NLMSGERR_ATTR_MSG`: the explanation in an extended acknowledgement.
const EXPLANATION: u16 = 1;

/// Kernel subsystem behind a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Links, addresses, routes, rules, queueing disciplines.
    Route,
    /// nf_tables and connection tracking.
    Netfilter,
    /// Generic netlink: families that are looked up by name.
    Generic,
}

/// Netlink socket, bound to the namespace in which it was opened.
#[derive(Debug)]
pub struct Socket {
    inner: netlink_sys::Socket,
    protocol: Protocol,
    sequence: u32,
    buffer: Vec<u8>,
    /// Whether the end of the last dump is still unread.
    has_unread_dump: bool,
}

/// Request: a message with flags.
#[derive(Debug)]
pub struct Request<M> {
    /// Flags in addition to `NLM_F_REQUEST`, for example `NLM_F_CREATE`.
    pub flags: u16,
    /// Message to send.
    pub message: M,
}

/// Request that the kernel refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Index of the request.
    pub index: usize,
    /// Errno from the kernel.
    pub errno: Errno,
    /// Explanation from the kernel; may be empty.
    pub explanation: String,
}

/// Failed exchange.
#[derive(Debug)]
pub enum Failure {
    /// The kernel refused a request; the others in the exchange took effect.
    Refused(Refusal),
    /// Sending or receiving failed.
    Io(Errno),
    /// An answer could not be decoded.
    Decode(String),
}

impl Failure {
    /// Converts the failure to an error about `operation`.
    pub fn of(self, operation: impl Into<String>) -> Error {
        match self {
            Failure::Refused(refusal) => Error::explained(operation, refusal.errno, refusal.explanation),
            Failure::Io(errno) => Error::kernel(operation, errno),
            Failure::Decode(why) => Error::protocol(operation, why),
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}

impl Socket {
    /// Opens a socket in the calling thread's namespace.
    pub fn open(protocol: Protocol) -> Result<Socket, Error> {
        let number = match protocol {
            Protocol::Route => netlink_sys::protocols::NETLINK_ROUTE,
            Protocol::Netfilter => netlink_sys::protocols::NETLINK_NETFILTER,
            Protocol::Generic => netlink_sys::protocols::NETLINK_GENERIC,
        };
        let failed = |error: std::io::Error| Error::io("open netlink socket", &error);
        let mut inner = netlink_sys::Socket::new(number).map_err(failed)?;
        inner.bind(&netlink_sys::SocketAddr::new(0, 0)).map_err(failed)?;
        inner.connect(&netlink_sys::SocketAddr::new(0, 0)).map_err(failed)?;
        inner.set_ext_ack(true).map_err(failed)?;
        inner.set_cap_ack(true).map_err(failed)?;
        // The kernel filters dumps only with this option, which kernels before 4.20 do not have.
        let _ = inner.set_netlink_get_strict_chk(true);
        sockopt::set_socket_timeout(&inner, sockopt::Timeout::Recv, Some(TIMEOUT))
            .map_err(|errno| Error::kernel("open netlink socket", errno))?;
        let buffer = Vec::with_capacity(RECEIVE_SIZE);
        Ok(Socket { inner, protocol, sequence: 0, buffer, has_unread_dump: false })
    }

    /// Whether the end of the last dump is still unread. The kernel then refuses further dumps on this socket with
    /// EBUSY.
    pub(crate) fn has_unread_dump(&self) -> bool {
        self.has_unread_dump
    }

    /// Sends `requests` in one datagram, or several if there are many, and waits for all acknowledgements.
    ///
    /// Returns the answers in the order in which they arrive. If the kernel refuses a request, it still executes the
    /// later ones; the first refusal is returned.
    pub fn exchange<M>(&mut self, mut requests: Vec<Request<M>>) -> Result<Vec<M>, Failure>
    where
        M: NetlinkSerializable + NetlinkDeserializable,
    {
        let (mut answers, mut refusal, mut done) = (Vec::new(), None, 0);
        while !requests.is_empty() {
            let later = requests.split_off(requests.len().min(REQUESTS_MAX));
            let count = requests.len();
            match self.exchange_once(std::mem::replace(&mut requests, later)) {
                Ok(part) => answers.extend(part),
                Err(Failure::Refused(first)) => {
                    refusal.get_or_insert(Refusal { index: done + first.index, ..first });
                }
                Err(failure) => return Err(failure),
            }
            done += count;
        }
        refusal.map_or(Ok(answers), |refusal| Err(Failure::Refused(refusal)))
    }

    /// Sends `requests` in one datagram.
    fn exchange_once<M>(&mut self, requests: Vec<Request<M>>) -> Result<Vec<M>, Failure>
    where
        M: NetlinkSerializable + NetlinkDeserializable,
    {
        let first = self.sequence.wrapping_add(1);
        let count = requests.len();
        let mut datagram = Vec::with_capacity(512 * count);
        // Routing messages come in groups of four: new, delete, get, set.
        let only_reads = self.protocol == Protocol::Route
            && requests.iter().all(|request| request.message.message_type() % 4 == 2);
        for request in requests {
            self.sequence = self.sequence.wrapping_add(1);
            append(&mut datagram, self.sequence, request.flags | NLM_F_ACK, request.message);
        }
        loop {
            self.send(&datagram)?;
            let (answers, longest) = self.answers(first, count)?;
            match longest {
                None => return Ok(answers),
                Some(length) if only_reads => self.grow(length)?,
                Some(length) => return Err(too_long(length)),
            }
        }
    }

    /// Reads the answers to `count` requests, starting with the sequence number `first`, up to the last
    /// acknowledgement. Also returns the length of the longest datagram that did not fit into the buffer.
    fn answers<M>(&mut self, first: u32, count: usize) -> Result<(Vec<M>, Option<usize>), Failure>
    where
        M: NetlinkSerializable + NetlinkDeserializable,
    {
        let mut answers = Vec::new();
        let mut refusal: Option<Refusal> = None;
        let mut longest = None;
        let mut waiting = count;
        while waiting > 0 {
            if let Some(length) = self.receive()? {
                longest = longest.max(Some(length));
                continue;
            }
            for message in messages(&self.buffer) {
                let message = message?;
                let index = message.sequence.wrapping_sub(first) as usize;
                if index >= count {
                    continue;
                }
                match message.body::<M>()? {
                    Body::Answer(answer) => answers.push(answer),
                    Body::Done => waiting -= 1,
                    Body::Refused(errno, explanation) => {
                        waiting -= 1;
                        refusal.get_or_insert(Refusal { index, errno, explanation });
                    }
                }
            }
        }
        match refusal {
            Some(refusal) => Err(Failure::Refused(refusal)),
            None => Ok((answers, longest)),
        }
    }

    /// Sends an nfnetlink batch in one datagram: `requests` begins with `BATCH_BEGIN` and ends with `BATCH_END`.
    ///
    /// Only the last request inside is acknowledged, on behalf of all, but every refused request is reported. A refusal
    /// with index 0 concerns the whole transaction.
    pub fn transact<M>(&mut self, requests: Vec<Request<M>>) -> Result<(), Failure>
    where
        M: NetlinkSerializable + NetlinkDeserializable,
    {
        let first = self.sequence.wrapping_add(1);
        let count = requests.len();
        let last = count.saturating_sub(2);
        let mut datagram = Vec::with_capacity(256 * count);
        for (index, request) in requests.into_iter().enumerate() {
            self.sequence = self.sequence.wrapping_add(1);
            let acknowledge = if index == last { NLM_F_ACK } else { 0 };
            append(&mut datagram, self.sequence, request.flags | acknowledge, request.message);
        }
        self.make_room(datagram.len())?;
        self.send(&datagram)?;
        let mut refusal: Option<Refusal> = None;
        loop {
            if let Some(length) = self.receive()? {
                return Err(too_long(length));
            }
            for message in messages(&self.buffer) {
                let message = message?;
                let index = message.sequence.wrapping_sub(first) as usize;
                match message.body::<M>()? {
                    _ if index >= count => {}
                    Body::Refused(errno, explanation) => {
                        let refusal = refusal.get_or_insert(Refusal { index, errno, explanation }).clone();
                        // If the whole transaction is refused, there may be no acknowledgement.
                        if index == 0 || index == last {
                            return Err(Failure::Refused(refusal));
                        }
                    }
                    Body::Done if index == last => {
                        return refusal.map_or(Ok(()), |it| Err(Failure::Refused(it)));
                    }
                    Body::Done | Body::Answer(_) => {}
                }
            }
        }
    }

    /// Makes the send buffer large enough for one datagram. The default is 208 KiB, of which the kernel uses half for
    /// internal data.
    fn make_room(&mut self, length: usize) -> Result<(), Failure> {
        if length < ORDINARY_DATAGRAM {
            return Ok(());
        }
        sockopt::set_socket_send_buffer_size_force(&self.inner, 2 * length).map_err(Failure::Io)
    }

    /// Requests a dump and returns all messages.
    pub fn dump<M>(&mut self, flags: u16, message: &M) -> Result<Vec<M>, Failure>
    where
        M: NetlinkSerializable + NetlinkDeserializable + Clone,
    {
        let mut no_limit = DumpLimit { bytes: usize::MAX, end: None };
        self.dump_within(&mut no_limit, flags, message).map(Option::unwrap_or_default)
    }

    /// Requests a dump and returns the messages; `None` if they exceed the limit. Each dump uses up part of the limit.
    ///
    /// After `None` the rest of the dump is unread, and the kernel refuses further dumps on this socket with EBUSY.
    pub fn dump_within<M>(
        &mut self,
        limit: &mut DumpLimit,
        flags: u16,
        message: &M,
    ) -> Result<Option<Vec<M>>, Failure>
    where
        M: NetlinkSerializable + NetlinkDeserializable + Clone,
    {
        if self.has_unread_dump {
            return Err(Failure::Io(Errno::BUSY));
        }
        let mut tries = 0;
        loop {
            self.has_unread_dump = true;
            let dump = self.dump_once(limit, flags, message.clone());
            self.has_unread_dump = !matches!(dump, Ok(Some(_)) | Err(Failure::Refused(_)));
            let Some(dump) = dump? else { return Ok(None) };
            let Dump { answers, interrupted, longest } = dump;
            if let Some(length) = longest {
                self.grow(length)?;
                continue;
            }
            tries += 1;
            if !interrupted || tries == DUMP_TRIES {
                return Ok(Some(answers));
            }
        }
    }

    fn dump_once<M>(
        &mut self,
        limit: &mut DumpLimit,
        flags: u16,
        message: M,
    ) -> Result<Option<Dump<M>>, Failure>
    where
        M: NetlinkSerializable + NetlinkDeserializable,
    {
        self.sequence = self.sequence.wrapping_add(1);
        let mut datagram = Vec::with_capacity(128);
        append(&mut datagram, self.sequence, flags | NLM_F_DUMP, message);
        self.send(&datagram)?;
        let mut answers = Vec::new();
        let mut interrupted = false;
        let mut longest = None;
        loop {
            // The dump may have ended in a datagram that did not fit. The kernel queues the next datagram before it
            // returns one.
            let wait = if longest.is_some() { RecvFlags::DONTWAIT } else { RecvFlags::empty() };
            match self.receive_with(wait) {
                Ok(None) => {}
                Ok(length) => {
                    longest = longest.max(length);
                    continue;
                }
                Err(Failure::Io(Errno::AGAIN)) if longest.is_some() => {
                    return Ok(Some(Dump { answers, interrupted, longest }));
                }
                Err(failure) => return Err(failure),
            }
            if limit.end.is_some_and(|end| Instant::now() > end) {
                return Ok(None);
            }
            for message in messages(&self.buffer) {
                let message = message?;
                if message.sequence != self.sequence {
                    continue;
                }
                interrupted |= message.flags & NLM_F_DUMP_INTR != 0;
                let Some(left) = limit.bytes.checked_sub(message.bytes.len()) else { return Ok(None) };
                limit.bytes = left;
                match message.body::<M>()? {
                    Body::Answer(answer) => answers.push(answer),
                    Body::Done => return Ok(Some(Dump { answers, interrupted, longest })),
                    Body::Refused(errno, explanation) => {
                        return Err(Failure::Refused(Refusal { index: 0, errno, explanation }));
                    }
                }
            }
        }
    }

    /// Sends framed bytes.
    pub fn send(&mut self, datagram: &[u8]) -> Result<(), Failure> {
        rustix::net::send(&self.inner, datagram, SendFlags::empty()).map(|_| ()).map_err(Failure::Io)
    }

    /// Reads the next datagram into the buffer; unused buffer pages are never touched.
    ///
    /// If the datagram does not fit, it is lost, and the length is returned.
    fn receive(&mut self) -> Result<Option<usize>, Failure> {
        self.receive_with(RecvFlags::empty())
    }

    fn receive_with(&mut self, flags: RecvFlags) -> Result<Option<usize>, Failure> {
        loop {
            self.buffer.clear();
            match rustix::net::recv(
                &self.inner,
                rustix::buffer::spare_capacity(&mut self.buffer),
                flags | RecvFlags::TRUNC,
            ) {
                Ok((received, length)) => return Ok((length > received).then_some(length)),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(Failure::Io(errno)),
            }
        }
    }

    /// Makes room for a datagram of `length` bytes.
    fn grow(&mut self, length: usize) -> Result<(), Failure> {
        if length > RECEIVE_MAX {
            return Err(too_long(length));
        }
        self.buffer.clear();
        self.buffer.reserve(length.next_power_of_two());
        Ok(())
    }
}

/// Limit for dumps that another party can lengthen.
#[derive(Clone, Copy, Debug)]
pub struct DumpLimit {
    /// Bytes that may still be read.
    pub bytes: usize,
    /// Time by which the last dump must end.
    pub end: Option<Instant>,
}

/// Result of one dump.
struct Dump<M> {
    answers: Vec<M>,
    /// Whether the objects changed while they were listed.
    interrupted: bool,
    /// Length of the longest datagram that did not fit into the buffer.
    longest: Option<usize>,
}

fn too_long(length: usize) -> Failure {
    Failure::Decode(format!("an answer of {length} bytes does not fit"))
}

/// Appends one framed request.
fn append<M: NetlinkSerializable>(datagram: &mut Vec<u8>, sequence: u32, flags: u16, message: M) {
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | flags;
    header.sequence_number = sequence;
    let mut message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(message));
    message.finalize();
    let start = datagram.len();
    let aligned = message.buffer_len().next_multiple_of(4);
    datagram.resize(start + aligned, 0);
    message.serialize(&mut datagram[start..start + aligned]);
}

/// Encodes requests as one datagram that asks for no acknowledgements.
pub(crate) fn datagram<M: NetlinkSerializable>(requests: Vec<M>) -> Vec<u8> {
    let mut datagram = Vec::with_capacity(128 * requests.len());
    for (sequence, message) in (1..).zip(requests) {
        append(&mut datagram, sequence, 0, message);
    }
    datagram
}

/// Message as received.
struct Received<'a> {
    sequence: u32,
    flags: u16,
    bytes: &'a [u8],
}

enum Body<M> {
    Answer(M),
    /// An acknowledgement, or the end of a dump.
    Done,
    Refused(Errno, String),
}

impl Received<'_> {
    fn body<M: NetlinkDeserializable>(&self) -> Result<Body<M>, Failure> {
        let message = NetlinkMessage::<M>::deserialize(self.bytes)
            .map_err(|error| Failure::Decode(format!("unreadable answer: {error}")))?;
        match message.payload {
            NetlinkPayload::InnerMessage(inner) => Ok(Body::Answer(inner)),
            NetlinkPayload::Error(error) => Ok(match error.code {
                None => Body::Done,
                Some(code) => {
                    let tlvs = self.flags & NLM_F_ACK_TLVS != 0;
                    let text = if tlvs { explanation(&error.header) } else { String::new() };
                    Body::Refused(Errno::from_raw_os_error(code.get().unsigned_abs() as i32), text)
                }
            }),
            NetlinkPayload::Done(done) if done.code < 0 => {
                Ok(Body::Refused(Errno::from_raw_os_error(-done.code), String::new()))
            }
            NetlinkPayload::Done(_) => Ok(Body::Done),
            NetlinkPayload::Overrun(_) => Err(Failure::Io(Errno::NOBUFS)),
            _ => Err(Failure::Decode("unexpected kind of answer".to_owned())),
        }
    }
}

/// Splits a datagram into messages.
fn messages(datagram: &[u8]) -> impl Iterator<Item = Result<Received<'_>, Failure>> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let buffer = match NetlinkBuffer::new_checked(rest) {
            Ok(buffer) => buffer,
            Err(error) => {
                rest = &[];
                return Some(Err(Failure::Decode(format!("unreadable answer: {error}"))));
            }
        };
        let length = (buffer.length() as usize).min(rest.len());
        let received =
            Received { sequence: buffer.sequence_number(), flags: buffer.flags(), bytes: &rest[..length] };
        rest = &rest[length.next_multiple_of(4).min(rest.len())..];
        Some(Ok(received))
    })
}

/// Extracts the kernel's explanation, which follows the echoed header in an error.
fn explanation(echoed: &[u8]) -> String {
    const HEADER: usize = 16;
    let Some(attributes) = echoed.get(HEADER..) else { return String::new() };
    for attribute in NlasIterator::new(attributes).flatten() {
        if attribute.kind() == EXPLANATION {
            let text = attribute.value();
            let text = text.split(|byte| *byte == 0).next().unwrap_or(text);
            return String::from_utf8_lossy(text).into_owned();
        }
    }
    String::new()
}
