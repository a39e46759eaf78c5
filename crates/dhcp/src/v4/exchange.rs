//! Talking to servers: one client on one link, from the first question to the release.
//!
//! ```text
//!   DISCOVER ─► OFFER ─► REQUEST ─► ACK        by broadcast, in frames: there is no address yet
//!   REQUEST ─► ACK | NAK                       renewal: to the server; rebinding, or an address of before: by broadcast
//!   RELEASE                                    to the server
//! ```
//!
//! Rules: every wait has an end; what is asked again is asked ever more rarely; an answer counts if it is to this
//! transaction, for this hardware address and from the server that was asked. All the sockets live in the
//! container's namespace; this code never does.
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

/// The first waits, which are all of one length, give or take a second.
const FAST: Duration = Duration::from_secs(2);
/// How many of them there are.
const FAST_TIMES: u32 = 4;
/// The first wait after those; each is twice as long as the one before.
const SLOW: Duration = Duration::from_secs(4);
/// The first wait for an answer to the very first question.
pub const EAGER: Duration = Duration::from_millis(20);
/// How often somebody who waits looks whether he still should.
pub const GLANCE: Duration = Duration::from_millis(250);
/// Stack of a thread that closes a socket, in bytes.
const STACK: usize = 64 * 1024;
/// How often an offer is asked for before one begins anew.
const REQUESTS: u32 = 3;
/// How long the server's hardware address may take to be found before a release.
const NEIGHBOUR: Duration = Duration::from_millis(200);
/// Largest message we take, in bytes.
const SIZE_MAX: u16 = 1500;

/// How long to wait for what.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// For one answer, at most.
    pub timeout: Duration,
    /// Between two questions, at most.
    pub resend_max: Duration,
    /// For a lease, altogether.
    pub resend_timeout: Duration,
}

/// One client: a link in a namespace, and what it says of itself.
#[derive(Debug)]
pub struct Client<'a> {
    /// The namespace.
    pub netns: &'a Netns,
    /// The link's name.
    pub ifname: &'a str,
    /// Its hardware address.
    pub hardware: [u8; 6],
    /// What the server knows the client by.
    pub identity: &'a [u8],
    /// What is provided and asked for.
    pub options: &'a Options,
    /// How long to wait.
    pub timing: Timing,
    /// Answers shall be broadcast.
    pub broadcast: bool,
}

/// Where answers come in: frames, and datagrams to the address there is.
type Sockets<'a> = (&'a PacketSocket, Option<&'a UdpSocket>);

/// What became of a request to extend a lease.
#[derive(Debug)]
pub enum Extension<L = Lease> {
    /// It was extended.
    Granted(Box<L>),
    /// It was taken away.
    Refused,
    /// Nobody answered.
    Silence,
}

// === impl Extension ===

impl<L> Extension<L> {
    /// The same with what is made of the lease.
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
    /// How long to wait after the question of this number, from 0.
    fn wait(&self, number: u32) -> Duration {
        let doubled =
            SLOW.saturating_mul(1_u32.checked_shl(number.saturating_sub(FAST_TIMES)).unwrap_or(u32::MAX));
        let base = if number < FAST_TIMES { FAST } else { doubled.min(self.resend_max) };
        // One second more or less, so that machines that started together do not ask together.
        let jitter = Duration::from_millis(u64::from(random()) % 2000);
        (base + jitter).saturating_sub(Duration::from_secs(1)).min(self.timeout)
    }
}

// === impl Client ===

impl Client<'_> {
    /// Asks for a lease until there is one.
    ///
    /// # Errors
    /// Code 11 if none could be had in time, or if `is_over` says that nobody waits any more.
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
            let hear = |until| {
                self.broadcast(&socket, Ipv4Addr::UNSPECIFIED, &discover)?;
                let offer = |answer: &Message| {
                    let says_who = answer.address(option::SERVER).is_some();
                    answer.kind() == Some(Kind::Offer) && says_who && is_usable(answer.yours)
                };
                self.listen((&socket, None), transaction, until, is_over, &offer)
            };
            let offer = if number == 0 { eagerly(until, is_over, hear)? } else { hear(until)? };
            if let Some(offer) = offer {
                match self.request(&socket, &offer, end, is_over)? {
                    Some(Ok(lease)) => {
                        close_aside(socket);
                        return Ok(lease);
                    }
                    Some(Err(error)) => why = error.msg,
                    None => why = format!("the DHCP server offered {} and did not give it", offer.yours),
                }
            }
            let over = is_over();
            if over || Instant::now() >= end {
                let seconds = started.elapsed().as_secs();
                let message = format!("{}: {why} within {seconds} s", self.ifname);
                return Err(Error::new(code::TRY_AGAIN_LATER, message));
            }
            // What answered at once, and not well, is not asked again at once.
            pause(until, is_over);
        }
        Err(Error::internal("an endless loop has ended"))
    }

    /// Asks for what was offered; `None` if that is refused, or not answered.
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

    /// Asks the server to extend a lease, once. `is_over`: nobody wants it any more.
    ///
    /// The answer may be a broadcast, which a socket that has the address does not get: so frames are looked at, too.
    pub fn renew(&self, lease: &Lease, is_over: &dyn Fn() -> bool) -> Result<Extension, Error> {
        let from = SocketAddrV4::new(lease.address.addr(), CLIENT_PORT);
        let to = SocketAddrV4::new(lease.server, SERVER_PORT);
        let Ok(direct) = self.netns.run(|| udp_on(self.ifname, from, to)).or_refused()? else {
            // The container does not have its address: then as for a server that moved.
            return self.rebind(lease, is_over);
        };
        let socket =
            self.netns.run(|| PacketSocket::open(self.ifname, CLIENT_PORT)).or_refused()?.or_refused()?;
        let request = self.extension(lease);
        direct
            .send(&request.encode())
            .map_err(|cause| Error::io(format_args!("ask {}", lease.server), cause))?;
        let sockets = (&socket, Some(&direct));
        self.settle(sockets, Some(lease.server), request.transaction, is_over, &|answer| {
            verdict(lease, answer)
        })
    }

    /// Asks any server to extend a lease, once.
    pub fn rebind(&self, lease: &Lease, is_over: &dyn Fn() -> bool) -> Result<Extension, Error> {
        let socket =
            self.netns.run(|| PacketSocket::open(self.ifname, CLIENT_PORT)).or_refused()?.or_refused()?;
        let request = self.extension(lease);
        self.broadcast(&socket, lease.address.addr(), &request)?;
        self.settle((&socket, None), None, request.transaction, is_over, &|answer| verdict(lease, answer))
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
        self.settle((&socket, None), None, request.transaction, is_over, &judge)
    }

    /// What becomes of a request: what one server says of it (`from`), or any. Then a refusal counts if nobody grants it,
    /// since a server that does not know the lease may be the quicker one.
    fn settle(
        &self,
        sockets: Sockets<'_>,
        from: Option<Ipv4Addr>,
        transaction: u32,
        is_over: &dyn Fn() -> bool,
        judge: &dyn Fn(Message) -> Option<Extension>,
    ) -> Result<Extension, Error> {
        let until = Instant::now() + self.timing.timeout;
        let may_say = |answer: &Message| {
            let said = answer.address(option::SERVER);
            from.is_none_or(|from| said.is_none_or(|said| said == from))
        };
        let mut extension = Extension::Silence;
        while let Some(answer) = self.listen(sockets, transaction, until, is_over, &may_say)? {
            match judge(answer) {
                Some(Extension::Refused) if from.is_none() => extension = Extension::Refused,
                Some(extension) => return Ok(extension),
                None => {}
            }
        }
        Ok(extension)
    }

    /// Tells the server that the address is free. There is no answer to that.
    pub fn release(&self, lease: &Lease) -> Result<(), Error> {
        let mut message = Message::new(Kind::Release, random(), self.hardware);
        message.client = lease.address.addr();
        message.set(option::SERVER, lease.server.octets());
        message.set(option::CLIENT, self.own_identity());
        let from = SocketAddrV4::new(lease.address.addr(), CLIENT_PORT);
        let to = SocketAddrV4::new(lease.server, SERVER_PORT);
        // A packet that still waits for the neighbour's hardware address would go with the interface, which is removed
        // next. What answers, or whether anything does, is no matter: the neighbour is known then. Where it cannot be sent
        // the interface has not got the address yet.
        let pinged = self.netns.run(|| echo::ping((*to.ip()).into(), Some((*from.ip()).into()), NEIGHBOUR));
        let has_address = matches!(pinged, Ok(Ok(_)));
        match self.netns.run(|| udp_on(self.ifname, from, to)).or_refused()? {
            Ok(socket) if has_address => match socket.send(&message.encode()) {
                Ok(_) => Ok(()),
                Err(cause) => Err(Error::io(format_args!("release {} to {to}", lease.address), cause)),
            },
            // Without the address the only way is the one by which it came.
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

    /// A message with everything that each has.
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

    /// What the client is called in every message: a configured identity takes the place of ours.
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

    /// The first answer that is ours and wanted.
    fn listen(
        &self,
        (socket, beside): Sockets<'_>,
        transaction: u32,
        until: Instant,
        is_over: &dyn Fn() -> bool,
        is_wanted: &dyn Fn(&Message) -> bool,
    ) -> Result<Option<Message>, Error> {
        while Instant::now() < until && !is_over() {
            let glance = until.min(Instant::now() + GLANCE);
            let answer = match socket.receive(beside, glance).or_refused()? {
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

/// Closes it in a thread of its own: the kernel waits until nobody looks at the socket any more (packet(7),
/// `synchronize_net`), some ten milliseconds that a container need not wait for.
fn close_aside(socket: PacketSocket) {
    // Where there is no thread to be had it is closed here: the closure goes, and the socket with it.
    let _ = std::thread::Builder::new().stack_size(STACK).spawn(move || drop(socket));
}

/// What an answer says about a lease that was to be extended; `None` if it says nothing about it.
fn verdict(lease: &Lease, answer: Message) -> Option<Extension> {
    match answer.kind()? {
        Kind::Nak => Some(Extension::Refused),
        Kind::Ack if answer.yours == lease.address.addr() => {
            // An extension need not say all of it again.
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

/// The lease of an ACK; `None` if it cannot be read.
fn granted(answer: Message) -> Option<Extension> {
    Lease::of(answer).ok().map(|lease| Extension::Granted(Box::new(lease)))
}

/// Asks again and again until there is an answer, each time waiting twice as long: a bridge's port begins to forward
/// a moment after its link is up, and what is sent before that is lost.
fn eagerly<T>(
    until: Instant,
    is_over: &dyn Fn() -> bool,
    hear: impl Fn(Instant) -> Result<Option<T>, Error>,
) -> Result<Option<T>, Error> {
    let mut wait = EAGER;
    loop {
        let answer = hear(until.min(Instant::now() + wait))?;
        if answer.is_some() || is_over() || Instant::now() >= until {
            return Ok(answer);
        }
        wait *= 2;
    }
}

/// Waits, but not for what nobody wants any more.
pub fn pause(until: Instant, is_over: &dyn Fn() -> bool) {
    while Instant::now() < until && !is_over() {
        std::thread::sleep(GLANCE.min(until.saturating_duration_since(Instant::now())));
    }
}

/// A number that nobody can guess: the standard library keys its hashes with the system's randomness.
pub fn random() -> u32 {
    (std::collections::hash_map::RandomState::new().build_hasher().finish() >> 16) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_their_most_and_are_never_longer_than_an_answer_may_take() {
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
