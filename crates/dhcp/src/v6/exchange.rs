//! Talking to servers of DHCPv6: one client on one link, from the first question to the release.
//!
//! Rules: every wait has an end; a message is repeated at the RFC's times, and what is asked of who is not there ever more
//! rarely; an answer counts if it is to this transaction and to this client, names its server, and is from the server that was
//! asked. All is sent to the servers' group: no server's permission to be asked alone (option 12) is used, and one that says
//! UseMulticast has been. The socket lives in the container's namespace; this code never does.
//!
//! Unlike the RFC's, the first question of all does not wait up to a second, and is repeated at once until somebody
//! answers: a bridge's port begins to forward a moment after its link is up, and pods are not started all at once by a
//! power failure.
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

use super::Wish;
use super::identity::Identity;
use super::lease::{Lease, is_granted};
use super::link;
use super::message::{Address, Association, Code, Kind, Message, Status, option};
use super::timing::{self, Waits};
use crate::v4::exchange::{EAGER, Extension, GLANCE, Timing, pause, random};

/// Port of the client.
const CLIENT_PORT: u16 = 546;
/// Port of servers and relays.
const SERVER_PORT: u16 = 547;
/// `All_DHCP_Relay_Agents_and_Servers`
const SERVERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);
/// Longest datagram that is read, in bytes; of longer ones the rest is lost, and with it the whole.
const DATAGRAM_MAX: usize = 9216;
/// How long to wait for the port while another question has it.
const TAKEN: Duration = Duration::from_millis(10);
/// Longest DUID of a server, in bytes.
const SERVER_MAX: usize = 130;
/// The preference that makes waiting for further offers pointless.
const PREFERRED: u8 = 255;
/// What a server may say that the longest wait of those who solicit is, in seconds.
const SOLICIT_MOST: std::ops::RangeInclusive<u32> = 60..=86_400;

/// One client: a link in a namespace, and what it says of itself.
#[derive(Debug)]
pub struct Client<'a> {
    /// The namespace.
    pub netns: &'a Netns,
    /// The link.
    pub link: &'a Link,
    /// What servers know the client by.
    pub identity: &'a Identity,
    /// What is wished for.
    pub wish: &'a Wish,
    /// How long to wait.
    pub timing: Timing,
}

/// Does an address still belong to its link?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confirmation {
    /// A server says so.
    Belongs,
    /// A server says that it does not, and none that it does.
    Elsewhere,
    /// Nobody says anything: it is used on (RFC 8415 §18.2.10.1).
    Silence,
}

/// What a server would give.
struct Offer {
    server: Vec<u8>,
    preference: u8,
    addresses: Vec<Address>,
}

/// An acquisition on its way.
struct Quest<'a> {
    socket: UdpSocket,
    end: Instant,
    is_over: &'a dyn Fn() -> bool,
    /// Why there is no lease yet.
    why: String,
}

/// What a REPLY says about an address that there is.
enum Verdict {
    Granted(Box<Lease>),
    Refused,
    /// Its server does not know the association.
    Unknown(Vec<u8>),
}

// === impl Client ===

impl Client<'_> {
    /// Asks for a lease until there is one.
    ///
    /// # Errors
    /// Code 11 if none could be had in time, or if `is_over` says that nobody waits any more; if the link has no IPv6.
    pub fn acquire(&self, is_over: &dyn Fn() -> bool) -> Result<Lease, Error> {
        let from = link::link_local(self.netns, self.link, is_over)?;
        let started = Instant::now();
        let end = started + self.timing.resend_timeout;
        let why = "no DHCPv6 server answered".to_owned();
        let mut quest = Quest { socket: self.open(from)?, end, is_over, why };
        while !quest.is_over() {
            let Some(lease) = self.solicit(&mut quest)? else { continue };
            let asks = self.wish.detect_duplicates;
            if !asks || !link::is_anothers(self.netns, self.link, lease.address, is_over)? {
                return Ok(lease);
            }
            quest.why = format!("another machine on the link has {}, which was given", lease.address);
            // Whether the server hears of it or not, another address is asked for.
            let _ = self.give_back(Kind::Decline, &lease, &quest.socket);
        }
        let message = format!("{}: {} within {} s", self.link.name, quest.why, started.elapsed().as_secs());
        Err(Error::new(code::TRY_AGAIN_LATER, message))
    }

    /// Looks for servers until one gives an address; `None` if one that offered did not give it, or the time is over.
    fn solicit(&self, quest: &mut Quest<'_>) -> Result<Option<Lease>, Error> {
        let transaction = transaction();
        let mut waits = timing::SOLICIT.told(&self.timing).begin();
        while let Some(wait) = waits.again() {
            let until = quest.end.min(Instant::now() + wait);
            match self.hear_offers(quest, transaction, &mut waits, until)? {
                Some(Heard::Lease(lease)) => return Ok(Some(*lease)),
                Some(Heard::Offer(offer)) => {
                    if let Extension::Granted(lease) = self.request(quest, &offer)? {
                        return Ok(Some(*lease));
                    }
                    // What answered at once, and not well, is not asked again at once.
                    pause(until, quest.is_over);
                    return Ok(None);
                }
                None if quest.is_over() => break,
                None => {}
            }
        }
        Ok(None)
    }

    /// Asks for servers, and waits for their answers: for the best of all that come within the first wait, or the first that
    /// comes later.
    fn hear_offers(
        &self,
        quest: &mut Quest<'_>,
        transaction: u32,
        waits: &mut Waits,
        until: Instant,
    ) -> Result<Option<Heard>, Error> {
        let is_first = waits.sent() == 1;
        let mut best: Option<Offer> = None;
        let mut eager = EAGER;
        while !quest.is_over() && Instant::now() < until {
            let glance = match best {
                None if is_first => until.min(Instant::now() + eager),
                _ => until,
            };
            if best.is_none() {
                let mut message = self.message(Kind::Solicit, transaction, waits, self.ask(&[]));
                message.set(option::RAPID_COMMIT, Vec::new());
                self.send(&quest.socket, &message)?;
                eager *= 2;
            }
            let mut why = None;
            let decided = self.listen(&quest.socket, transaction, glance, quest.is_over, |answer| {
                if let Some(most) = solicit_most(&answer) {
                    waits.most(most);
                }
                match offer(answer, self.identity.association) {
                    Ok(Heard::Lease(lease)) => return Some(Some(lease)),
                    Ok(Heard::Offer(offer)) => {
                        if best.as_ref().is_none_or(|best| offer.preference > best.preference) {
                            best = Some(offer);
                        }
                    }
                    Err(error) => why = Some(error.to_string()),
                }
                let is_enough = |best: &Offer| best.preference == PREFERRED || !is_first;
                best.as_ref().is_some_and(is_enough).then_some(None)
            })?;
            quest.why = why.unwrap_or(std::mem::take(&mut quest.why));
            match decided {
                Some(Some(lease)) => return Ok(Some(Heard::Lease(lease))),
                Some(None) => break,
                None => {}
            }
        }
        Ok(best.map(Heard::Offer))
    }

    /// Asks for what was offered.
    fn request(&self, quest: &mut Quest<'_>, offer: &Offer) -> Result<Extension<Lease>, Error> {
        let transaction = transaction();
        let mut waits = timing::REQUEST.told(&self.timing).begin();
        let wanted: Vec<Ipv6Addr> = offer.addresses.iter().map(|one| one.address).take(1).collect();
        quest.why = "the DHCPv6 server offered an address and did not give it".to_owned();
        while let Some(wait) = waits.again() {
            let until = quest.end.min(Instant::now() + wait);
            let mut message = self.message(Kind::Request, transaction, &waits, self.ask(&wanted));
            message.set(option::SERVER, offer.server.clone());
            self.send(&quest.socket, &message)?;
            let mut why = None;
            let heard = self.listen(&quest.socket, transaction, until, quest.is_over, |answer| {
                if answer.kind != Kind::Reply || answer.option(option::SERVER) != Some(&offer.server) {
                    return None;
                }
                let status = whole(&answer, answer.association(self.identity.association).as_ref());
                match status.code {
                    Code::Success => match Lease::of(answer, self.identity.association) {
                        Ok(lease) => return Some(Some(Box::new(lease))),
                        Err(error) => why = Some(error.msg),
                    },
                    _ => why = Some(format!("the DHCPv6 server did not give what it offered ({status})")),
                }
                // A server that could not just now, or wants what it has got, is asked again in time.
                let may_yet = matches!(status.code, Code::Unspecified | Code::UseMulticast);
                (!may_yet).then_some(None)
            })?;
            quest.why = why.unwrap_or(std::mem::take(&mut quest.why));
            match heard {
                Some(Some(lease)) => return Ok(Extension::Granted(lease)),
                Some(None) => return Ok(Extension::Refused),
                None if quest.is_over() => break,
                None => {}
            }
        }
        Ok(Extension::Silence)
    }

    /// Asks to extend a lease, once: its server (`Kind::Renew`) or any (`Kind::Rebind`). A refusal by any counts if nobody
    /// grants it, since one that does not know the lease may be the quicker one.
    pub fn extend(
        &self,
        kind: Kind,
        lease: &Lease,
        waits: &Waits,
        is_over: &dyn Fn() -> bool,
    ) -> Result<Extension<Lease>, Error> {
        let socket = self.open_now()?;
        let transaction = transaction();
        let mut message = self.message(kind, transaction, waits, self.ask(&[lease.address]));
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
                // One that would make it anew is better than one that says no.
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
            Some(Verdict::Unknown(server)) => self.rebuild(socket, lease, server, is_over),
        }
    }

    /// Asks a server that does not know the lease to make it, for the address there is. Another one is of no use to a
    /// container that runs, and goes back; one that says nothing more has taken nothing away.
    fn rebuild(
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
        let mut quest = Quest { socket, end, is_over, why: String::new() };
        match self.request(&mut quest, &offer)? {
            Extension::Granted(other) if other.address != lease.address => {
                let _ = self.give_back(Kind::Release, &other, &quest.socket);
                Ok(Extension::Refused)
            }
            made => Ok(made),
        }
    }

    /// Asks whether an address of before still belongs to the link.
    pub fn confirm(&self, lease: &Lease, is_over: &dyn Fn() -> bool) -> Result<Confirmation, Error> {
        let socket = self.open_now()?;
        let transaction = transaction();
        let mut waits = timing::CONFIRM.told(&self.timing).begin();
        let end = Instant::now() + timing::CONFIRM_WHOLE.min(self.timing.resend_timeout);
        let mut last = Confirmation::Silence;
        while let Some(wait) = waits.again()
            && Instant::now() < end
            && !is_over()
        {
            let message = self.message(Kind::Confirm, transaction, &waits, self.ask(&[lease.address]));
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

    /// Tells the server that the address is free, and waits until it has heard so.
    ///
    /// # Errors
    /// If there is no way to it, or it does not answer; then the lease ends by itself.
    pub fn release(&self, lease: &Lease) -> Result<(), Error> {
        self.give_back(Kind::Release, lease, &self.open_now()?)
    }

    fn give_back(&self, kind: Kind, lease: &Lease, socket: &UdpSocket) -> Result<(), Error> {
        let transaction = transaction();
        let mut waits = timing::RELEASE.told(&self.timing).begin();
        let end = Instant::now() + timing::RELEASE_WHOLE;
        while let Some(wait) = waits.again()
            && Instant::now() < end
        {
            let mut message = self.message(kind, transaction, &waits, self.ask(&[lease.address]));
            message.set(option::SERVER, lease.server.clone());
            self.send(socket, &message)?;
            let until = end.min(Instant::now() + wait);
            // Whatever it says of it: that it does not know the lease is as good.
            let heard = self.listen(socket, transaction, until, &|| false, |answer| {
                let is_its = answer.option(option::SERVER) == Some(lease.server.as_slice());
                let is_word = !matches!(answer.status().code, Code::Unspecified | Code::UseMulticast);
                (answer.kind == Kind::Reply && is_its && is_word).then_some(())
            })?;
            if heard.is_some() {
                return Ok(());
            }
        }
        let Lease { address, .. } = lease;
        Err(Error::new(
            code::TRY_AGAIN_LATER,
            format!("{kind:?} {address}: the DHCPv6 server did not answer"),
        ))
    }

    // === messages ===

    /// A message with everything that each of its kind has.
    fn message(&self, kind: Kind, transaction: u32, waits: &Waits, association: Vec<u8>) -> Message {
        let mut message = Message::new(kind, transaction);
        message.set(option::CLIENT, self.identity.client.clone());
        message.set(option::ELAPSED, waits.elapsed());
        message.set(option::ASSOCIATION, association);
        if !matches!(kind, Kind::Confirm | Kind::Release | Kind::Decline) {
            let super::options::Options { provided, requested } = &self.wish.options;
            for (number, value) in provided {
                message.set(*number, value.clone());
            }
            let asked = requested.iter().chain([&option::SOLICIT_MOST]);
            message
                .set(option::REQUESTED, asked.flat_map(|number| number.to_be_bytes()).collect::<Vec<u8>>());
        }
        message
    }

    /// The association, with these addresses and no times of ours.
    fn ask(&self, addresses: &[Ipv6Addr]) -> Vec<u8> {
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

    /// A question about the same lease may still be on its way: who was told to stop closes his socket within a glance.
    fn open(&self, from: Ipv6Addr) -> Result<UdpSocket, Error> {
        let from = SocketAddrV6::new(from, CLIENT_PORT, 0, self.link.index);
        let end = Instant::now() + GLANCE * 2;
        loop {
            match self.netns.run(|| udp6_on(&self.link.name, from)).or_refused()? {
                Err(error) if error.errno() == Some(Errno::ADDRINUSE) && Instant::now() < end => {
                    std::thread::sleep(TAKEN);
                }
                opened => return opened.or_refused(),
            }
        }
    }

    fn open_now(&self) -> Result<UdpSocket, Error> {
        match link::link_local_now(self.netns, self.link)? {
            Some(from) => self.open(from),
            None => {
                let why = format!("{} has no link-local IPv6 address to ask from", self.link.name);
                Err(Error::new(code::TRY_AGAIN_LATER, why))
            }
        }
    }

    fn send(&self, socket: &UdpSocket, message: &Message) -> Result<(), Error> {
        let to = SocketAddrV6::new(SERVERS, SERVER_PORT, 0, self.link.index);
        let failed = |cause| Error::io(format_args!("send to {to} on {}", self.link.name), cause);
        socket.send_to(&message.encode(), to).map(|_| ()).map_err(failed)
    }

    /// What is made of the first answer that is ours and of which something is made.
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
            let glance = GLANCE.min(until.saturating_duration_since(Instant::now()));
            socket.set_read_timeout(Some(glance.max(Duration::from_millis(1)))).map_err(failed)?;
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

/// What an answer to a SOLICIT is.
enum Heard {
    Offer(Offer),
    Lease(Box<Lease>),
}

// === impl Quest ===

impl Quest<'_> {
    fn is_over(&self) -> bool {
        (self.is_over)() || Instant::now() >= self.end
    }
}

/// What the answers to a question are recognised by: 24 bits that nobody can guess.
fn transaction() -> u32 {
    random() & 0x00ff_ffff
}

/// Reason why an answer to a SOLICIT offers nothing.
#[derive(Debug, thiserror::Error)]
enum OfferError {
    /// The server refuses.
    #[error("the DHCPv6 server has no address for it ({0})")]
    Refused(Status),
    /// The server answered with an address where none was to be given at once.
    #[error("the DHCPv6 server gave an address unasked")]
    Unasked,
    /// The lease in the answer cannot be used.
    #[error("{}", .0.msg)]
    Lease(Error),
    /// No address of the offer can be an interface's.
    #[error("the DHCPv6 server offered no address that a container could have")]
    NoAddress,
}

/// What an answer to a SOLICIT offers, or why it offers nothing.
fn offer(answer: Message, id: u32) -> Result<Heard, OfferError> {
    let association = answer.association(id);
    let status = whole(&answer, association.as_ref());
    if status.code != Code::Success {
        return Err(OfferError::Refused(status));
    }
    if answer.kind == Kind::Reply {
        if answer.option(option::RAPID_COMMIT).is_none() {
            return Err(OfferError::Unasked);
        }
        let lease = Lease::of(answer, id).map_err(OfferError::Lease)?;
        return Ok(Heard::Lease(Box::new(lease)));
    }
    let preference = answer.option(option::PREFERENCE).and_then(|value| value.first().copied());
    let server = answer.option(option::SERVER).unwrap_or_default().to_vec();
    let addresses: Vec<Address> =
        association.map(|it| it.addresses).unwrap_or_default().into_iter().filter(is_granted).collect();
    match addresses.is_empty() {
        true => Err(OfferError::NoAddress),
        false => Ok(Heard::Offer(Offer { server, preference: preference.unwrap_or(0), addresses })),
    }
}

/// What a REPLY says about a lease that was to be extended; `None` if it says nothing about it.
fn judge(lease: &Lease, mut answer: Message, id: u32) -> Option<Verdict> {
    let association = answer.association(id);
    match whole(&answer, association.as_ref()).code {
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
    // An extension need not say all of it again.
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

/// What became of a question: what is said of the whole, else of the association.
fn whole(answer: &Message, association: Option<&Association>) -> Status {
    let status = answer.status();
    match association {
        Some(association) if status.code == Code::Success => association.status.clone(),
        _ => status,
    }
}

/// How long those who solicit shall wait at most, where a server says so (RFC 8415 §21.24).
fn solicit_most(answer: &Message) -> Option<Duration> {
    let value: [u8; 4] = answer.option(option::SOLICIT_MOST)?.try_into().ok()?;
    let seconds = u32::from_be_bytes(value);
    SOLICIT_MOST.contains(&seconds).then(|| Duration::from_secs(seconds.into()))
}

#[cfg(test)]
mod tests;
