//! DHCPv4 exchanges with servers: one client on one link, from the first message to the release.
//!
//! ```text
//!   DISCOVER ─► OFFER ─► REQUEST ─► ACK        broadcast, in frames: there is no address yet
//!   REQUEST ─► ACK | NAK                       renewal: to the server; rebinding, or a previous address: broadcast
//!   RELEASE                                    to the server
//! ```
//!
//! - Every wait has a timeout, and messages are repeated less and less often.
//! - An answer counts only if it has this transaction and MAC address, and comes from the server that was asked.
//! - All sockets are in the container's namespace, but the thread itself stays outside.
//!
//! Source: RFC 2131 §3, §4.1, §4.4; Go plugin `plugins/ipam/dhcp/lease.go`, insomniacslk/dhcp `nclient4`.

use std::hash::{BuildHasher, Hasher};
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::time::{Duration, Instant};

use cni::{Error, code};
use linux::packet::{PacketSocket, Received, udp_on};
use linux::{Netns, echo};
use plugin_support::failure::OrRefused;

use super::frame::{self, CLIENT_PORT, SERVER_PORT};
use super::lease::{Lease, is_usable};
use super::message::{Kind, Message, option};
use super::options::Options;

/// First waits, give or take a second.
const FAST: Duration = Duration::from_secs(2);
/// Number of these waits.
const FAST_TIMES: u32 = 4;
/// First wait after those; each further wait is twice as long.
const SLOW: Duration = Duration::from_secs(4);
/// Wait before the first message is repeated.
pub const FIRST_RESEND: Duration = Duration::from_millis(5);
/// Wait before it is repeated again.
const SECOND_RESEND: Duration = Duration::from_millis(20);
/// Interval at which a waiting exchange checks whether the client still waits.
pub const POLL: Duration = Duration::from_millis(250);
/// Stack size for a thread that closes a socket, in bytes.
const STACK: usize = 64 * 1024;
/// Number of requests for an offer before a new DISCOVER is sent.
const REQUESTS: u32 = 3;
/// Timeout for resolving the server's MAC address before a release.
const NEIGHBOUR_TIMEOUT: Duration = Duration::from_millis(200);
/// Maximum size of a message that the client accepts, in bytes.
const SIZE_MAX: u16 = 1500;

/// Client timeouts, from the daemon's flags.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Maximum wait for one answer.
    pub timeout: Duration,
    /// Maximum time between two messages.
    pub resend_max: Duration,
    /// Maximum time for acquiring a lease.
    pub resend_timeout: Duration,
}

/// DHCPv4 client for a link in a namespace.
#[derive(Debug)]
pub struct Client<'a> {
    /// Namespace that contains the link.
    pub netns: &'a Netns,
    /// Link name.
    pub ifname: &'a str,
    /// MAC address of the link.
    pub hardware: [u8; 6],
    /// Client identity (option 61).
    pub identity: &'a [u8],
    /// Options to send and to require.
    pub options: &'a Options,
    /// Timeouts.
    pub timing: Timing,
    /// Whether servers should broadcast answers.
    pub broadcast: bool,
}

/// Sockets that receive answers: frames, and datagrams to the current address.
type Sockets<'a> = (&'a PacketSocket, Option<&'a UdpSocket>);

/// Outcome of a request to extend a lease.
#[derive(Debug)]
pub enum Extension<L = Lease> {
    /// The server extended the lease.
    Granted(Box<L>),
    /// The server refused to extend it.
    Refused,
    /// No server answered.
    Silence,
}

// === impl Extension ===

impl<L> Extension<L> {
    /// Converts the lease, if there is one.
    pub fn map<T>(self, make: impl FnOnce(L) -> T) -> Extension<T> {
        match self {
            Extension::Granted(lease) => Extension::Granted(Box::new(make(*lease))),
            Extension::Refused => Extension::Refused,
            Extension::Silence => Extension::Silence,
        }
    }
}

// === impl Timing ===

impl Timing {
    /// Returns the wait after message `number`, counted from 0.
    fn wait(&self, number: u32) -> Duration {
        let doubled =
            SLOW.saturating_mul(1_u32.checked_shl(number.saturating_sub(FAST_TIMES)).unwrap_or(u32::MAX));
        let base = if number < FAST_TIMES { FAST } else { doubled.min(self.resend_max) };
        // Random, so that machines that started together do not send together.
        let jitter = Duration::from_millis(u64::from(random()) % 2000);
        (base + jitter).saturating_sub(Duration::from_secs(1)).min(self.timeout)
    }
}

// === impl Client ===

impl Client<'_> {
    /// Acquires a lease.
    ///
    /// # Errors
    /// Code 11 if no lease was acquired in time, or if `is_over` reports that the client no longer waits.
    pub fn acquire(&self, is_over: &dyn Fn() -> bool) -> Result<Lease, Error> {
        let socket =
            self.netns.run(|| PacketSocket::open(self.ifname, CLIENT_PORT)).or_refused()?.or_refused()?;
        let started = Instant::now();
        let end = started + self.timing.resend_timeout;
        let mut why = "no DHCP server answered".to_owned();
        for number in 0.. {
            let until = (Instant::now() + self.timing.wait(number)).min(end);
            let transaction = random();
            let discover = self.message(Kind::Discover, transaction);
            let receive_offer = |until| {
                self.broadcast(&socket, Ipv4Addr::UNSPECIFIED, &discover)?;
                let offer = |answer: &Message| {
                    let names_server = answer.address(option::SERVER).is_some();
                    answer.kind() == Some(Kind::Offer) && names_server && is_usable(answer.yours)
                };
                self.listen((&socket, None), transaction, until, is_over, &offer)
            };
            let offer = if number == 0 {
                repeat_quickly(until, is_over, receive_offer)?
            } else {
                receive_offer(until)?
            };
            if let Some(offer) = offer {
                match self.request(&socket, &offer, end, is_over)? {
                    Some(Ok(lease)) => {
                        close_in_thread(socket);
                        return Ok(lease);
                    }
                    Some(Err(error)) => why = error.msg,
                    None => why = format!("the DHCP server offered {} and did not grant it", offer.yours),
                }
            }
            let over = is_over();
            if over || Instant::now() >= end {
                let seconds = started.elapsed().as_secs();
                let message = format!("{}: {why} within {seconds} s", self.ifname);
                return Err(Error::new(code::TRY_AGAIN_LATER, message));
            }
            // After an unusable answer, the next attempt must wait as well.
            pause(until, is_over);
        }
        Err(Error::internal("unreachable: an endless loop ended"))
    }

    /// Requests the offered address; `None` if the server refuses or does not answer.
    fn request(
        &self,
        socket: &PacketSocket,
        offer: &Message,
        end: Instant,
        is_over: &dyn Fn() -> bool,
    ) -> Result<Option<Result<Lease, Error>>, Error> {
        let Some(server) = offer.address(option::SERVER) else { return Ok(None) };
        let mut request = self.message(Kind::Request, offer.transaction);
        request.set(option::REQUESTED_ADDRESS, offer.yours.octets());
        request.set(option::SERVER, server.octets());
        for number in 0..REQUESTS {
            self.broadcast(socket, Ipv4Addr::UNSPECIFIED, &request)?;
            let until = (Instant::now() + self.timing.wait(number)).min(end);
            let final_word = |answer: &Message| {
                let same = answer.address(option::SERVER) == Some(server);
                same && matches!(answer.kind(), Some(Kind::Ack | Kind::Nak))
            };
            match self.listen((socket, None), request.transaction, until, is_over, &final_word)? {
                Some(answer) if answer.kind() == Some(Kind::Ack) => return Ok(Some(Lease::of(answer))),
                Some(_) => return Ok(None),
                None if is_over() || Instant::now() >= end => return Ok(None),
                None => {}
            }
        }
        Ok(None)
    }

    /// Asks the lease's own server to extend the lease, once. `is_over` tells that the lease is no longer needed.
    ///
    /// The answer may be a broadcast, which a socket bound to the address does not receive. Frames are therefore read,
    /// too.
    pub fn renew(&self, lease: &Lease, is_over: &dyn Fn() -> bool) -> Result<Extension, Error> {
        let from = SocketAddrV4::new(lease.address.addr(), CLIENT_PORT);
        let to = SocketAddrV4::new(lease.server, SERVER_PORT);
        let Ok(direct) = self.netns.run(|| udp_on(self.ifname, from, to)).or_refused()? else {
            // The container does not have the address yet, so the request must be a broadcast to any server.
            return self.rebind(lease, is_over);
        };
        let socket =
            self.netns.run(|| PacketSocket::open(self.ifname, CLIENT_PORT)).or_refused()?.or_refused()?;
        let request = self.extension(lease);
        direct
            .send(&request.encode())
            .map_err(|cause| Error::io(format_args!("send to {}", lease.server), cause))?;
        let sockets = (&socket, Some(&direct));
        self.await_verdict(sockets, Some(lease.server), request.transaction, is_over, &|answer| {
            verdict(lease, answer)
        })
    }

    /// Asks any server to extend a lease, once.
    pub fn rebind(&self, lease: &Lease, is_over: &dyn Fn() -> bool) -> Result<Extension, Error> {
        let socket =
            self.netns.run(|| PacketSocket::open(self.ifname, CLIENT_PORT)).or_refused()?.or_refused()?;
        let request = self.extension(lease);
        self.broadcast(&socket, lease.address.addr(), &request)?;
        self.await_verdict((&socket, None), None, request.transaction, is_over, &|answer| {
            verdict(lease, answer)
        })
    }

    /// Asks any server for an address that the client had before, once (RFC 2131 §3.2, INIT-REBOOT).
    pub fn reclaim(&self, address: Ipv4Addr, is_over: &dyn Fn() -> bool) -> Result<Extension, Error> {
        let socket =
            self.netns.run(|| PacketSocket::open(self.ifname, CLIENT_PORT)).or_refused()?.or_refused()?;
        let mut request = self.message(Kind::Request, random());
        request.set(option::REQUESTED_ADDRESS, address.octets());
        self.broadcast(&socket, Ipv4Addr::UNSPECIFIED, &request)?;
        let judge = |answer: Message| match answer.kind()? {
            Kind::Nak => Some(Extension::Refused),
            Kind::Ack if answer.yours == address => granted(answer),
            _ => None,
        };
        self.await_verdict((&socket, None), None, request.transaction, is_over, &judge)
    }

    /// Waits for the outcome from one server (`from`) or from any. When any server may answer, a refusal counts only if
    /// no server grants the lease, because a server that does not know the lease may answer first.
    fn await_verdict(
        &self,
        sockets: Sockets<'_>,
        from: Option<Ipv4Addr>,
        transaction: u32,
        is_over: &dyn Fn() -> bool,
        judge: &dyn Fn(Message) -> Option<Extension>,
    ) -> Result<Extension, Error> {
        let until = Instant::now() + self.timing.timeout;
        let is_allowed = |answer: &Message| {
            let server = answer.address(option::SERVER);
            from.is_none_or(|from| server.is_none_or(|server| server == from))
        };
        let mut extension = Extension::Silence;
        while let Some(answer) = self.listen(sockets, transaction, until, is_over, &is_allowed)? {
            match judge(answer) {
                Some(Extension::Refused) if from.is_none() => extension = Extension::Refused,
                Some(extension) => return Ok(extension),
                None => {}
            }
        }
        Ok(extension)
    }

    /// Releases the address at the server, which sends no answer.
    pub fn release(&self, lease: &Lease) -> Result<(), Error> {
        let mut message = Message::new(Kind::Release, random(), self.hardware);
        message.client = lease.address.addr();
        message.set(option::SERVER, lease.server.octets());
        message.set(option::CLIENT, self.own_identity());
        let from = SocketAddrV4::new(lease.address.addr(), CLIENT_PORT);
        let to = SocketAddrV4::new(lease.server, SERVER_PORT);
        // The interface is removed next, and with it any packet that still waits for the server's MAC address. The ping
        // resolves that address; whether the server answers it does not matter. If the ping cannot be sent, the
        // interface does not have the address yet.
        let pinged =
            self.netns.run(|| echo::ping((*to.ip()).into(), Some((*from.ip()).into()), NEIGHBOUR_TIMEOUT));
        let has_address = matches!(pinged, Ok(Ok(_)));
        match self.netns.run(|| udp_on(self.ifname, from, to)).or_refused()? {
            Ok(socket) if has_address => match socket.send(&message.encode()) {
                Ok(_) => Ok(()),
                Err(cause) => Err(Error::io(format_args!("release {} to {to}", lease.address), cause)),
            },
            // Without the address, the message is broadcast like the request.
            _ => {
                let socket = self
                    .netns
                    .run(|| PacketSocket::open(self.ifname, CLIENT_PORT))
                    .or_refused()?
                    .or_refused()?;
                self.broadcast(&socket, lease.address.addr(), &message)
            }
        }
    }

    /// Builds a message with the fields that all messages have.
    fn message(&self, kind: Kind, transaction: u32) -> Message {
        let mut message = Message::new(kind, transaction, self.hardware);
        message.broadcast = self.broadcast;
        message.set(option::CLIENT, self.identity);
        message.set(option::MAXIMUM_SIZE, SIZE_MAX.to_be_bytes());
        let Options { provided, requested } = self.options;
        for (number, value) in provided {
            message.set(*number, value.clone());
        }
        if !requested.is_empty() {
            message.set(option::PARAMETERS, requested.clone());
        }
        message
    }

    /// Returns the client identity for all messages: the configured one, or the client's own.
    fn own_identity(&self) -> Vec<u8> {
        let configured = self.options.provided.iter().find(|(number, _)| *number == option::CLIENT);
        configured.map_or(self.identity, |(_, value)| value).to_vec()
    }

    fn extension(&self, lease: &Lease) -> Message {
        let mut request = self.message(Kind::Request, random());
        request.client = lease.address.addr();
        request
    }

    fn broadcast(&self, socket: &PacketSocket, from: Ipv4Addr, message: &Message) -> Result<(), Error> {
        socket.send(&frame::broadcast(self.hardware, from, &message.encode())).or_refused()
    }

    /// Returns the first answer to this transaction that `wanted` accepts.
    fn listen(
        &self,
        (socket, beside): Sockets<'_>,
        transaction: u32,
        until: Instant,
        is_over: &dyn Fn() -> bool,
        is_wanted: &dyn Fn(&Message) -> bool,
    ) -> Result<Option<Message>, Error> {
        while Instant::now() < until && !is_over() {
            let poll = until.min(Instant::now() + POLL);
            let answer = match socket.receive(beside, poll).or_refused()? {
                None => continue,
                Some(Received::Datagram(datagram)) => Message::decode(&datagram),
                Some(Received::Frame(frame)) => frame::payload(&frame).and_then(Message::decode),
            };
            let answer = answer.filter(|answer| self.is_ours(answer, transaction) && is_wanted(answer));
            if answer.is_some() {
                return Ok(answer);
            }
        }
        Ok(None)
    }

    fn is_ours(&self, answer: &Message, transaction: u32) -> bool {
        answer.reply && answer.transaction == transaction && answer.hardware == self.hardware
    }
}

/// Closes a socket in another thread. The kernel takes about ten milliseconds until the socket is no longer in use
/// (packet(7), `synchronize_net`), and the container should not have to wait for that.
fn close_in_thread(socket: PacketSocket) {
    // If no thread can be started, the closure is dropped, and the socket with it.
    let _ = std::thread::Builder::new().stack_size(STACK).spawn(move || drop(socket));
}

/// Interprets an answer to a request for extension; `None` if it is not about this lease.
fn verdict(lease: &Lease, answer: Message) -> Option<Extension> {
    match answer.kind()? {
        Kind::Nak => Some(Extension::Refused),
        Kind::Ack if answer.yours == lease.address.addr() => {
            // The server may omit options that it sent in the original answer.
            let mut answer = answer;
            for number in [option::SUBNET_MASK, option::SERVER] {
                if answer.option(number).is_none()
                    && let Some(value) = lease.ack.option(number)
                {
                    answer.set(number, value);
                }
            }
            granted(answer)
        }
        _ => None,
    }
}

/// Reads the lease from a DHCPACK; `None` if it is invalid.
fn granted(answer: Message) -> Option<Extension> {
    Lease::of(answer).ok().map(|lease| Extension::Granted(Box::new(lease)))
}

/// Repeats a message until there is an answer, each time after twice the wait. A bridge port starts forwarding only a
/// moment after the link is up, and earlier messages are lost.
fn repeat_quickly<T>(
    until: Instant,
    is_over: &dyn Fn() -> bool,
    receive: impl Fn(Instant) -> Result<Option<T>, Error>,
) -> Result<Option<T>, Error> {
    let mut wait = FIRST_RESEND;
    loop {
        let answer = receive(until.min(Instant::now() + wait))?;
        if answer.is_some() || is_over() || Instant::now() >= until {
            return Ok(answer);
        }
        wait = next_wait(wait);
    }
}

/// Returns the wait after `wait`: one quick repetition, then twice the time each, so that a slow server gets few
/// messages.
pub fn next_wait(wait: Duration) -> Duration {
    if wait == FIRST_RESEND { SECOND_RESEND } else { wait * 2 }
}

/// Waits until the given time, or until the client no longer waits.
pub fn pause(until: Instant, is_over: &dyn Fn() -> bool) {
    while Instant::now() < until && !is_over() {
        std::thread::sleep(POLL.min(until.saturating_duration_since(Instant::now())));
    }
}

/// Returns an unpredictable number; the standard library seeds hashes with system randomness.
pub fn random() -> u32 {
    (std::collections::hash_map::RandomState::new().build_hasher().finish() >> 16) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dhcp_waits_grow_to_the_maximum_within_the_timeout() {
        let second = Duration::from_secs;
        let timing = Timing { timeout: second(100), resend_max: second(62), resend_timeout: second(208) };
        for number in 0..40 {
            let wait = timing.wait(number);
            let base = [2, 2, 2, 2, 4, 8, 16, 32].get(number as usize).copied().unwrap_or(62);
            assert!(wait >= second(base - 1) && wait <= second(base + 1), "{number}: {wait:?}");
        }
        let impatient = Timing { timeout: second(1), ..timing };
        assert!((0..40).all(|number| impatient.wait(number) <= second(1)));
    }
}
