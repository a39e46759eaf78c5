//! DHCPv6 exchanges with servers: one client on one link, from the first message to the release.
//!
//! - Every wait has a timeout. Messages are repeated at the RFC's intervals, which grow while no server answers.
//! - An answer counts only if it has this transaction and client and a server identifier, and comes from the server
//!   that was asked.
//! - All messages go to the servers' multicast group. The Server Unicast option (12) is not used, so a UseMulticast
//!   status is already satisfied.
//! - The socket is in the container's namespace, but the thread itself stays outside.
//! - The first message is sent without the RFC's random delay, and is repeated quickly until a server answers. A bridge
//!   port starts forwarding only a moment after the link is up, and pods do not all start at once after a power
//!   failure.
//!
//! Source: RFC 8415 §15, §16, §18.2.

use std::io::ErrorKind;
use std::net::{Ipv6Addr, SocketAddrV6, UdpSocket};
use std::time::{Duration, Instant};

use cni::{Error, code};
use linux::Netns;
use linux::link::Link;
use linux::packet::udp6_on;
use plugin_support::failure::OrRefused;
use rustix::io::Errno;

use super::V6Request;
use super::identity::Identity;
use super::lease::{Lease, is_granted};
use super::link;
use super::message::{Address, Association, Code, Kind, Message, Status, option};
use super::timing::{self, Waits};
use crate::v4::exchange::{Extension, FIRST_RESEND, POLL, Timing, next_wait, pause, random};

/// Client port.
const CLIENT_PORT: u16 = 546;
/// Port on servers and relays.
const SERVER_PORT: u16 = 547;
/// Multicast group `All_DHCP_Relay_Agents_and_Servers`.
const SERVERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);
/// Maximum datagram size in bytes; a longer one is truncated and therefore invalid.
const DATAGRAM_MAX: usize = 9216;
/// Pause before the port is tried again while another exchange uses it.
const PORT_RETRY: Duration = Duration::from_millis(10);
/// Maximum length of a server DUID in bytes.
const SERVER_MAX: usize = 130;
/// Preference that makes the client accept an offer at once.
const PREFERRED: u8 = 255;
/// Valid range for SOL_MAX_RT, with which a server sets the maximum wait between SOLICITs, in seconds.
const SOLICIT_LIMITS: std::ops::RangeInclusive<u32> = 60..=86_400;

/// DHCPv6 client for a link in a namespace.
#[derive(Debug)]
pub struct Client<'a> {
    /// Namespace that contains the link.
    pub netns: &'a Netns,
    /// Link to request the address for.
    pub link: &'a Link,
    /// Client identity.
    pub identity: &'a Identity,
    /// DHCPv6 settings.
    pub v6_request: &'a V6Request,
    /// Timeouts.
    pub timing: Timing,
}

/// Whether an address still belongs on the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confirmation {
    /// A server confirms it.
    Belongs,
    /// A server denies it, and no other server confirms it.
    Elsewhere,
    /// No server answers: the address stays in use (RFC 8415 §18.2.10.1).
    Silence,
}

/// Offer from a server.
struct Offer {
    server: Vec<u8>,
    preference: u8,
    addresses: Vec<Address>,
}

/// Acquisition in progress.
struct Acquisition<'a> {
    socket: UdpSocket,
    end: Instant,
    is_over: &'a dyn Fn() -> bool,
    /// Why there is no lease yet, for the error.
    why: String,
}

/// Meaning that a REPLY has for a lease that should be extended.
enum Verdict {
    Granted(Box<Lease>),
    Refused,
    /// The server with this DUID does not know the association.
    Unknown(Vec<u8>),
}

// === impl Client ===

impl Client<'_> {
    /// Acquires a lease.
    ///
    /// # Errors
    /// Code 11 if no lease was acquired in time, or if `is_over` reports that the client no longer waits. Another code
    /// if the link has no IPv6.
    pub fn acquire(&self, is_over: &dyn Fn() -> bool) -> Result<Lease, Error> {
        let from = link::link_local(self.netns, self.link, is_over)?;
        let started = Instant::now();
        let end = started + self.timing.resend_timeout;
        let why = "no DHCPv6 server answered".to_owned();
        let mut acquisition = Acquisition { socket: self.open(from)?, end, is_over, why };
        while !acquisition.is_over() {
            let Some(lease) = self.solicit(&mut acquisition)? else { continue };
            let detects = self.v6_request.detect_duplicates;
            if !detects || !link::is_used_by_other(self.netns, self.link, lease.address, is_over)? {
                return Ok(lease);
            }
            acquisition.why = format!("another host on the link uses the assigned address {}", lease.address);
            // Best effort: the next request is for another address in any case.
            let _ = self.send_release(Kind::Decline, &lease, &acquisition.socket);
        }
        let message =
            format!("{}: {} within {} s", self.link.name, acquisition.why, started.elapsed().as_secs());
        Err(Error::new(code::TRY_AGAIN_LATER, message))
    }

    /// Searches for servers until one assigns an address; `None` if an offered address is not assigned, or after the
    /// timeout.
    fn solicit(&self, acquisition: &mut Acquisition<'_>) -> Result<Option<Lease>, Error> {
        let transaction = transaction();
        let mut waits = timing::SOLICIT.limited_by(&self.timing).begin();
        while let Some(wait) = waits.next_wait() {
            let until = acquisition.end.min(Instant::now() + wait);
            match self.collect_offers(acquisition, transaction, &mut waits, until)? {
                Some(SolicitAnswer::Lease(lease)) => return Ok(Some(*lease)),
                Some(SolicitAnswer::Offer(offer)) => {
                    if let Extension::Granted(lease) = self.request(acquisition, &offer)? {
                        return Ok(Some(*lease));
                    }
                    // After an unusable answer, the next attempt must wait as well.
                    pause(until, acquisition.is_over);
                    return Ok(None);
                }
                None if acquisition.is_over() => break,
                None => {}
            }
        }
        Ok(None)
    }

    /// Sends a SOLICIT and collects answers. Returns the best offer that arrives within the first wait, or the first
    /// offer after it.
    fn collect_offers(
        &self,
        acquisition: &mut Acquisition<'_>,
        transaction: u32,
        waits: &mut Waits,
        until: Instant,
    ) -> Result<Option<SolicitAnswer>, Error> {
        let is_first = waits.sent() == 1;
        let mut best: Option<Offer> = None;
        let mut resend = FIRST_RESEND;
        while !acquisition.is_over() && Instant::now() < until {
            let poll = match best {
                None if is_first => until.min(Instant::now() + resend),
                _ => until,
            };
            if best.is_none() {
                let mut message =
                    self.message(Kind::Solicit, transaction, waits, self.encode_association(&[]));
                message.set(option::RAPID_COMMIT, Vec::new());
                self.send(&acquisition.socket, &message)?;
                resend = next_wait(resend);
            }
            let mut why = None;
            let decided =
                self.listen(&acquisition.socket, transaction, poll, acquisition.is_over, |answer| {
                    if let Some(most) = solicit_max_rt(&answer) {
                        waits.limit(most);
                    }
                    match offer(answer, self.identity.association) {
                        Ok(SolicitAnswer::Lease(lease)) => return Some(Some(lease)),
                        Ok(SolicitAnswer::Offer(offer)) => {
                            if best.as_ref().is_none_or(|best| offer.preference > best.preference) {
                                best = Some(offer);
                            }
                        }
                        Err(error) => why = Some(error.to_string()),
                    }
                    let is_enough = |best: &Offer| best.preference == PREFERRED || !is_first;
                    best.as_ref().is_some_and(is_enough).then_some(None)
                })?;
            acquisition.why = why.unwrap_or(std::mem::take(&mut acquisition.why));
            match decided {
                Some(Some(lease)) => return Ok(Some(SolicitAnswer::Lease(lease))),
                Some(None) => break,
                None => {}
            }
        }
        Ok(best.map(SolicitAnswer::Offer))
    }

    /// Requests the offered address.
    fn request(&self, acquisition: &mut Acquisition<'_>, offer: &Offer) -> Result<Extension<Lease>, Error> {
        let transaction = transaction();
        let mut waits = timing::REQUEST.limited_by(&self.timing).begin();
        let wanted: Vec<Ipv6Addr> = offer.addresses.iter().map(|one| one.address).take(1).collect();
        acquisition.why = "the DHCPv6 server offered an address and did not assign it".to_owned();
        while let Some(wait) = waits.next_wait() {
            let until = acquisition.end.min(Instant::now() + wait);
            let mut message =
                self.message(Kind::Request, transaction, &waits, self.encode_association(&wanted));
            message.set(option::SERVER, offer.server.clone());
            self.send(&acquisition.socket, &message)?;
            let mut why = None;
            let answered =
                self.listen(&acquisition.socket, transaction, until, acquisition.is_over, |answer| {
                    if answer.kind != Kind::Reply || answer.option(option::SERVER) != Some(&offer.server) {
                        return None;
                    }
                    let status =
                        effective_status(&answer, answer.association(self.identity.association).as_ref());
                    match status.code {
                        Code::Success => match Lease::of(answer, self.identity.association) {
                            Ok(lease) => return Some(Some(Box::new(lease))),
                            Err(error) => why = Some(error.msg),
                        },
                        _ => why = Some(format!("the DHCPv6 server did not assign its offer ({status})")),
                    }
                    // A temporary error, or a demand for multicast, which is already met: the request is repeated in
                    // due time.
                    let is_temporary = matches!(status.code, Code::Unspecified | Code::UseMulticast);
                    (!is_temporary).then_some(None)
                })?;
            acquisition.why = why.unwrap_or(std::mem::take(&mut acquisition.why));
            match answered {
                Some(Some(lease)) => return Ok(Extension::Granted(lease)),
                Some(None) => return Ok(Extension::Refused),
                None if acquisition.is_over() => break,
                None => {}
            }
        }
        Ok(Extension::Silence)
    }

    /// Asks for a lease extension once, either the lease's own server (`Kind::Renew`) or any (`Kind::Rebind`). When any
    /// server may answer, a refusal counts only if no server grants the lease, because one that does not know it may
    /// answer first.
    pub fn extend(
        &self,
        kind: Kind,
        lease: &Lease,
        waits: &Waits,
        is_over: &dyn Fn() -> bool,
    ) -> Result<Extension<Lease>, Error> {
        let socket = self.open_now()?;
        let transaction = transaction();
        let mut message = self.message(kind, transaction, waits, self.encode_association(&[lease.address]));
        let only = (kind == Kind::Renew).then_some(lease.server.as_slice());
        if let Some(server) = only {
            message.set(option::SERVER, server);
        }
        self.send(&socket, &message)?;
        let until = Instant::now() + self.timing.timeout;
        let mut last = None;
        let decided = self.listen(&socket, transaction, until, is_over, |answer| {
            if answer.kind != Kind::Reply
                || only.is_some_and(|only| answer.option(option::SERVER) != Some(only))
            {
                return None;
            }
            match judge(lease, answer, self.identity.association)? {
                Verdict::Granted(lease) => Some(Verdict::Granted(lease)),
                verdict if only.is_some() => Some(verdict),
                // A server that could create the lease is better than one that refuses it.
                verdict @ Verdict::Unknown(_) => {
                    last = Some(verdict);
                    None
                }
                verdict => {
                    last.get_or_insert(verdict);
                    None
                }
            }
        })?;
        match decided.or(last) {
            None => Ok(Extension::Silence),
            Some(Verdict::Granted(lease)) => Ok(Extension::Granted(lease)),
            Some(Verdict::Refused) => Ok(Extension::Refused),
            Some(Verdict::Unknown(server)) => self.recreate(socket, lease, server, is_over),
        }
    }

    /// Asks a server that does not know the lease to create it for the current address. Any other address would be
    /// useless to a running container, so it is released. If the server does not answer, nothing has changed.
    fn recreate(
        &self,
        socket: UdpSocket,
        lease: &Lease,
        server: Vec<u8>,
        is_over: &dyn Fn() -> bool,
    ) -> Result<Extension<Lease>, Error> {
        let status = Status::SUCCESS;
        let wanted = Address { address: lease.address, preferred: 0, valid: 0, status };
        let offer = Offer { server, preference: 0, addresses: vec![wanted] };
        let end = Instant::now() + self.timing.timeout;
        let mut acquisition = Acquisition { socket, end, is_over, why: String::new() };
        match self.request(&mut acquisition, &offer)? {
            Extension::Granted(other) if other.address != lease.address => {
                let _ = self.send_release(Kind::Release, &other, &acquisition.socket);
                Ok(Extension::Refused)
            }
            made => Ok(made),
        }
    }

    /// Asks servers whether the address still belongs on the link.
    pub fn confirm(&self, lease: &Lease, is_over: &dyn Fn() -> bool) -> Result<Confirmation, Error> {
        let socket = self.open_now()?;
        let transaction = transaction();
        let mut waits = timing::CONFIRM.limited_by(&self.timing).begin();
        let end = Instant::now() + timing::CONFIRM_TIMEOUT.min(self.timing.resend_timeout);
        let mut last = Confirmation::Silence;
        while let Some(wait) = waits.next_wait()
            && Instant::now() < end
            && !is_over()
        {
            let message =
                self.message(Kind::Confirm, transaction, &waits, self.encode_association(&[lease.address]));
            self.send(&socket, &message)?;
            let until = end.min(Instant::now() + wait);
            let belongs = self.listen(&socket, transaction, until, is_over, |answer| {
                if answer.kind != Kind::Reply {
                    return None;
                }
                match answer.status().code {
                    Code::Success => Some(()),
                    Code::NotOnLink => {
                        last = Confirmation::Elsewhere;
                        None
                    }
                    _ => None,
                }
            })?;
            if belongs.is_some() {
                return Ok(Confirmation::Belongs);
            }
            if last == Confirmation::Elsewhere {
                break;
            }
        }
        Ok(last)
    }

    /// Releases the address at the server and waits for the answer.
    ///
    /// # Errors
    /// The server cannot be reached, or does not answer; then the lease expires.
    pub fn release(&self, lease: &Lease) -> Result<(), Error> {
        self.send_release(Kind::Release, lease, &self.open_now()?)
    }

    fn send_release(&self, kind: Kind, lease: &Lease, socket: &UdpSocket) -> Result<(), Error> {
        let transaction = transaction();
        let mut waits = timing::RELEASE.limited_by(&self.timing).begin();
        let end = Instant::now() + timing::RELEASE_TIMEOUT;
        while let Some(wait) = waits.next_wait()
            && Instant::now() < end
        {
            let mut message =
                self.message(kind, transaction, &waits, self.encode_association(&[lease.address]));
            message.set(option::SERVER, lease.server.clone());
            self.send(socket, &message)?;
            let until = end.min(Instant::now() + wait);
            // Any final answer counts, even that the server does not know the lease.
            let answered = self.listen(socket, transaction, until, &|| false, |answer| {
                let is_its = answer.option(option::SERVER) == Some(lease.server.as_slice());
                let is_final = !matches!(answer.status().code, Code::Unspecified | Code::UseMulticast);
                (answer.kind == Kind::Reply && is_its && is_final).then_some(())
            })?;
            if answered.is_some() {
                return Ok(());
            }
        }
        let Lease { address, .. } = lease;
        let what = if kind == Kind::Decline { "decline" } else { "release" };
        Err(Error::new(code::TRY_AGAIN_LATER, format!("{what} {address}: the DHCPv6 server did not answer")))
    }

    // === messages ===

    /// Builds a message with the options that this kind needs.
    fn message(&self, kind: Kind, transaction: u32, waits: &Waits, association: Vec<u8>) -> Message {
        let mut message = Message::new(kind, transaction);
        message.set(option::CLIENT, self.identity.client.clone());
        message.set(option::ELAPSED, waits.elapsed());
        message.set(option::ASSOCIATION, association);
        if !matches!(kind, Kind::Confirm | Kind::Release | Kind::Decline) {
            let super::options::Options { provided, requested } = &self.v6_request.options;
            for (number, value) in provided {
                message.set(*number, value.clone());
            }
            let asked = requested.iter().chain([&option::SOL_MAX_RT]);
            message
                .set(option::REQUESTED, asked.flat_map(|number| number.to_be_bytes()).collect::<Vec<u8>>());
        }
        message
    }

    /// Encodes the association with these addresses, without times.
    fn encode_association(&self, addresses: &[Ipv6Addr]) -> Vec<u8> {
        let plain = |address: &Ipv6Addr| Address {
            address: *address,
            preferred: 0,
            valid: 0,
            status: Status::SUCCESS,
        };
        let association = Association {
            id: self.identity.association,
            renewal: 0,
            rebinding: 0,
            addresses: addresses.iter().map(plain).collect(),
            status: Status::SUCCESS,
        };
        association.encode()
    }

    // === the socket ===

    /// Opens the socket. An exchange for the same lease that was just stopped may still use the port, but only for one
    /// poll interval.
    fn open(&self, from: Ipv6Addr) -> Result<UdpSocket, Error> {
        let from = SocketAddrV6::new(from, CLIENT_PORT, 0, self.link.index);
        let end = Instant::now() + POLL * 2;
        loop {
            match self.netns.run(|| udp6_on(&self.link.name, from)).or_refused()? {
                Err(error) if error.errno() == Some(Errno::ADDRINUSE) && Instant::now() < end => {
                    std::thread::sleep(PORT_RETRY);
                }
                opened => return opened.or_refused(),
            }
        }
    }

    fn open_now(&self) -> Result<UdpSocket, Error> {
        match link::link_local_now(self.netns, self.link)? {
            Some(from) => self.open(from),
            None => {
                let why = format!("{} has no link-local IPv6 address to send from", self.link.name);
                Err(Error::new(code::TRY_AGAIN_LATER, why))
            }
        }
    }

    fn send(&self, socket: &UdpSocket, message: &Message) -> Result<(), Error> {
        let to = SocketAddrV6::new(SERVERS, SERVER_PORT, 0, self.link.index);
        let failed = |cause| Error::io(format_args!("send to {to} on {}", self.link.name), cause);
        socket.send_to(&message.encode(), to).map(|_| ()).map_err(failed)
    }

    /// Returns the first result that `judge` gives for an answer to this transaction.
    fn listen<T>(
        &self,
        socket: &UdpSocket,
        transaction: u32,
        until: Instant,
        is_over: &dyn Fn() -> bool,
        mut judge: impl FnMut(Message) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let failed = |cause| Error::io(format_args!("receive on {}", self.link.name), cause);
        let mut buffer = vec![0; DATAGRAM_MAX];
        while Instant::now() < until && !is_over() {
            let poll = POLL.min(until.saturating_duration_since(Instant::now()));
            socket.set_read_timeout(Some(poll.max(Duration::from_millis(1)))).map_err(failed)?;
            let length = match socket.recv_from(&mut buffer) {
                Ok((length, _)) => length,
                Err(cause) => match cause.kind() {
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => continue,
                    _ => return Err(failed(cause)),
                },
            };
            let answer = buffer.get(..length).and_then(Message::decode);
            let judged = answer.filter(|answer| self.is_ours(answer, transaction)).and_then(&mut judge);
            if judged.is_some() {
                return Ok(judged);
            }
        }
        Ok(None)
    }

    fn is_ours(&self, answer: &Message, transaction: u32) -> bool {
        let server = answer.option(option::SERVER).is_some_and(|one| (1..=SERVER_MAX).contains(&one.len()));
        let client = answer.option(option::CLIENT) == Some(self.identity.client.as_slice());
        let is_answer = matches!(answer.kind, Kind::Advertise | Kind::Reply);
        is_answer && answer.transaction == transaction && client && server
    }
}

/// Usable answer to a SOLICIT.
enum SolicitAnswer {
    Offer(Offer),
    Lease(Box<Lease>),
}

// === impl Acquisition ===

impl Acquisition<'_> {
    fn is_over(&self) -> bool {
        (self.is_over)() || Instant::now() >= self.end
    }
}

/// Returns an unpredictable 24-bit transaction id.
fn transaction() -> u32 {
    random() & 0x00ff_ffff
}

/// Reason why an answer to a SOLICIT is unusable.
#[derive(Debug, thiserror::Error)]
enum OfferError {
    /// The server refuses to assign an address.
    #[error("the DHCPv6 server has no address to assign ({0})")]
    Refused(Status),
    /// The server assigned an address without rapid commit.
    #[error("the DHCPv6 server assigned an address without a request")]
    Unasked,
    /// The lease in the answer is invalid.
    #[error("{}", .0.msg)]
    Lease(Error),
    /// The server offers no usable address.
    #[error("the DHCPv6 server offered no address that a container can use")]
    NoAddress,
}

/// Reads the offer or lease in an answer to a SOLICIT.
fn offer(answer: Message, id: u32) -> Result<SolicitAnswer, OfferError> {
    let association = answer.association(id);
    let status = effective_status(&answer, association.as_ref());
    if status.code != Code::Success {
        return Err(OfferError::Refused(status));
    }
    if answer.kind == Kind::Reply {
        if answer.option(option::RAPID_COMMIT).is_none() {
            return Err(OfferError::Unasked);
        }
        let lease = Lease::of(answer, id).map_err(OfferError::Lease)?;
        return Ok(SolicitAnswer::Lease(Box::new(lease)));
    }
    let preference = answer.option(option::PREFERENCE).and_then(|value| value.first().copied());
    let server = answer.option(option::SERVER).unwrap_or_default().to_vec();
    let addresses: Vec<Address> =
        association.map(|it| it.addresses).unwrap_or_default().into_iter().filter(is_granted).collect();
    match addresses.is_empty() {
        true => Err(OfferError::NoAddress),
        false => Ok(SolicitAnswer::Offer(Offer { server, preference: preference.unwrap_or(0), addresses })),
    }
}

/// Interprets a REPLY to a request for extension; `None` if it is not about this lease.
fn judge(lease: &Lease, mut answer: Message, id: u32) -> Option<Verdict> {
    let association = answer.association(id);
    match effective_status(&answer, association.as_ref()).code {
        Code::Success => {}
        Code::Unspecified | Code::UseMulticast => return None,
        Code::NoBinding => {
            return answer.option(option::SERVER).map(|server| Verdict::Unknown(server.to_vec()));
        }
        Code::NotOnLink | Code::NoAddress => return Some(Verdict::Refused),
    }
    let own = association?.addresses.into_iter().find(|own| own.address == lease.address)?;
    if !is_granted(&own) {
        return Some(Verdict::Refused);
    }
    // The server may omit options that it sent in the original answer.
    for number in [option::NAME_SERVERS, option::DOMAIN_SEARCH] {
        if answer.option(number).is_none()
            && let Some(value) = lease.reply.option(number)
        {
            answer.set(number, value);
        }
    }
    let granted = Lease::for_address(answer, id, Some(lease.address));
    granted.ok().map(|granted| Verdict::Granted(Box::new(granted)))
}

/// Returns the message's status, or the association's status if the message has none.
fn effective_status(answer: &Message, association: Option<&Association>) -> Status {
    let status = answer.status();
    match association {
        Some(association) if status.code == Code::Success => association.status.clone(),
        _ => status,
    }
}

/// Returns the maximum wait between SOLICITs that a server sets (RFC 8415 §21.24).
fn solicit_max_rt(answer: &Message) -> Option<Duration> {
    let value: [u8; 4] = answer.option(option::SOL_MAX_RT)?.try_into().ok()?;
    let seconds = u32::from_be_bytes(value);
    SOLICIT_LIMITS.contains(&seconds).then(|| Duration::from_secs(seconds.into()))
}

#[cfg(test)]
mod tests;
