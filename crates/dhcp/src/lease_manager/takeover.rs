//! Takeover of the leases that the Go plugin's daemon managed: a thread requests each of them, and it is then kept
//! as if it had been acquired here.
//!
//! Rules:
//! - nothing but a lease is changed: an interface whose address is refused, or about which nobody answers, stays as it is;
//! - a silent server is asked ever more rarely, for a day; a container that is gone ends it, and so does a DEL;
//! - whoever is killed in between begins anew: what was granted is on disk, the rest is still in the cache.
//!
//! Source: RFC 2131 §3.2.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use cni::{Error, code};
use ipnet::IpNet;
use linux::Netns;
use plugin_support::failure::OrRefused;
use plugin_support::log;

use super::extension::Origin;
use super::held_lease::{HeldLease, lock};
use super::place::{Place, identity, inode};
use super::{LeaseManager, STACK, describe};
use crate::orphans::{self, Orphan};
use crate::owner::{Family, Owner};
use crate::state::{self, Record};
use crate::terms::Terms;
use crate::v4::exchange::Extension;
use crate::v4::lease::Lease;

/// Between two that begin to ask: not all at once.
const APART: Duration = Duration::from_millis(20);
/// The first pause after a question that nobody answered; each is twice as long as the one before.
const PAUSE: Duration = Duration::from_secs(2);
/// How long to ask: an address of which no server says anything for so long has run out.
const ENOUGH: Duration = Duration::from_secs(24 * 60 * 60);

/// A lease that a server granted, and when it was asked, in milliseconds since the machine started.
struct Grant {
    lease: Lease,
    granted: u64,
}

/// One lease that is being taken over, or could not be.
#[derive(Debug, Default)]
pub(super) struct Takeover {
    /// Nobody wants it any more.
    unwanted: AtomicBool,
    /// Why it is not a lease of ours yet.
    why: Mutex<&'static str>,
    turn: Mutex<()>,
    bell: Condvar,
}

impl Takeover {
    fn is_unwanted(&self) -> bool {
        self.unwanted.load(Ordering::Relaxed)
    }

    fn say(&self, why: &'static str) {
        *lock(&self.why) = why;
    }

    /// Sleeps; true if it is not wanted any more.
    fn sleep(&self, time: Duration) -> bool {
        let turn = lock(&self.turn);
        let wait = self.bell.wait_timeout_while(turn, time, |()| !self.is_unwanted());
        drop(wait.unwrap_or_else(PoisonError::into_inner));
        self.is_unwanted()
    }

    fn end(&self) {
        let turn = lock(&self.turn);
        self.unwanted.store(true, Ordering::Relaxed);
        drop(turn);
        self.bell.notify_all();
    }
}

impl LeaseManager {
    /// Looks for attachments whose daemon was another one at this socket, and begins to ask for their leases.
    pub fn take_over(self: &Arc<Self>, directories: &[PathBuf], socket: &Path) {
        let is_known = |owner: &Owner| self.find(owner, Family::Ipv4).is_some();
        let found = orphans::find(directories, &self.settings.host_prefix, socket, &is_known);
        let (mut begun, mut gone) = (0, 0);
        for orphan in found {
            let name = describe(&orphan.owner);
            match self.locate(&orphan, None) {
                Ok(Some(place)) => match inode(&place.netns) {
                    Ok(inode) => {
                        self.begin(orphan, inode, APART * begun);
                        begun += 1;
                    }
                    Err(error) => log!("dhcp: {name}: not taken over: {error}"),
                },
                Ok(None) => gone += 1,
                Err(error) => log!("dhcp: {name}: not taken over: {error}"),
            }
        }
        if begun + gone > 0 {
            log!("dhcp: {begun} leases of another daemon to take over, {gone} of containers that are gone");
        }
    }

    /// Where an orphan's interface is; `None` if its container is gone.
    fn locate(&self, orphan: &Orphan, expected: Option<u64>) -> Result<Option<Place>, Error> {
        let Orphan { owner, netns, address, .. } = orphan;
        let Some(place) = self.seek(netns, &owner.ifname, expected)? else { return Ok(None) };
        if inode(&place.netns)? == inode(&Netns::own().or_refused()?)? {
            return Err(Error::internal(format!("{} is the daemon's own namespace", netns.display())));
        }
        let Place { netns: inside, link } = &place;
        if !orphan.had(&link.mac) {
            let now = linux::link::mac_text(&link.mac);
            return Err(Error::internal(format!("{} has the address {now}, not {}", link.name, orphan.mac)));
        }
        let addresses =
            inside.rtnl().and_then(|mut net| net.addresses(link.index, &link.name)).or_refused()?;
        let is_it = |ip: IpNet| matches!(ip, IpNet::V4(ip) if ip.addr() == *address);
        match addresses.iter().any(|known| is_it(known.address)) {
            true => Ok(Some(place)),
            false => Err(Error::internal(format!("{} does not have {address}", link.name))),
        }
    }

    fn begin(self: &Arc<Self>, orphan: Orphan, inode: u64, after: Duration) {
        let takeover = Arc::new(Takeover::default());
        takeover.say("it is being taken over, no server has answered yet");
        let owner = orphan.owner.clone();
        lock(&self.orphans).insert(owner.clone(), Arc::clone(&takeover));
        let manager = Arc::clone(self);
        let run = move || {
            if !takeover.sleep(after) {
                manager.adopt(&orphan, inode, &takeover);
            }
        };
        if let Err(cause) = std::thread::Builder::new().stack_size(STACK).spawn(run) {
            lock(&self.orphans).remove(&owner);
            log!("dhcp: {}: not taken over: start a thread: {cause}", describe(&owner));
        }
    }

    /// Asks until there is an answer, or nobody to ask for.
    fn adopt(self: &Arc<Self>, orphan: &Orphan, inode: u64, takeover: &Arc<Takeover>) {
        let (name, address) = (describe(&orphan.owner), orphan.address);
        let end = Instant::now() + ENOUGH;
        let mut pause = PAUSE;
        loop {
            let place = match self.locate(orphan, Some(inode)) {
                Ok(Some(place)) => place,
                // It may be there all the same.
                Err(Error { code: code::IO_FAILURE | code::TRY_AGAIN_LATER, msg, .. })
                    if Instant::now() < end =>
                {
                    log!("dhcp: {name}: {msg}");
                    if takeover.sleep(pause) {
                        return;
                    }
                    pause = self.longer(pause);
                    continue;
                }
                ended => {
                    let why =
                        ended.err().map_or("its container is gone".to_owned(), |error| error.to_string());
                    log!("dhcp: {name}: {address} is not taken over: {why}");
                    self.abandon(&orphan.owner);
                    return;
                }
            };
            let asked_at = state::now();
            let identity = identity(&orphan.owner);
            let is_over = || takeover.is_unwanted();
            let answer = self
                .client(&place, &identity, &orphan.options)
                .and_then(|client| client.reclaim(address, &is_over));
            match answer {
                Ok(Extension::Granted(lease)) => {
                    self.adopted(orphan, Grant { lease: *lease, granted: asked_at }, &place, inode, takeover);
                    return;
                }
                Ok(Extension::Refused) => {
                    takeover.say("a DHCP server refused to let it keep its address");
                    log!(
                        "dhcp: {name}: {address} is not taken over: a DHCP server refused it (DHCPNAK); the interface stays as it \
                         is, nobody extends its lease: make the container anew"
                    );
                    return;
                }
                Ok(Extension::Silence) if pause == PAUSE => {
                    log!("dhcp: {name}: {address}: no DHCP server answered; asking on");
                }
                Ok(Extension::Silence) => {}
                Err(error) => log!("dhcp: {name}: {error}"),
            }
            if Instant::now() >= end {
                takeover.say("no DHCP server answered for a day");
                log!("dhcp: {name}: {address} is not taken over: no DHCP server answered for a day");
                return;
            }
            if takeover.sleep(pause) {
                return;
            }
            pause = self.longer(pause);
        }
    }

    fn longer(&self, pause: Duration) -> Duration {
        (pause * 2).min(self.settings.timing.resend_max.max(PAUSE))
    }

    /// It is a lease like any other from here on; if nobody wants it any more, it is given back.
    fn adopted(
        self: &Arc<Self>,
        orphan: &Orphan,
        Grant { lease, granted }: Grant,
        place: &Place,
        inode: u64,
        takeover: &Takeover,
    ) {
        let Orphan { owner, netns, address: _, mac: _, options, priority } = orphan.clone();
        let terms = Terms::V4 { options, priority, lease };
        let record = Record { owner, netns, inode, granted, lost: None, terms };
        let name = describe(&record.owner);
        // The lock is held until it is a lease: a DEL finds it as one or the other.
        let mut orphans = lock(&self.orphans);
        if takeover.is_unwanted() {
            drop(orphans);
            self.give_back(&record.owner, &record.terms, place);
            return;
        }
        let told = format!("{}: taken over", record.terms);
        let kept = self.keep(HeldLease::new(record), Origin::Acquired);
        orphans.remove(&orphan.owner);
        drop(orphans);
        match kept.and_then(|()| self.save()) {
            Ok(()) => log!("dhcp: {name}: {told}"),
            Err(error) => log!("dhcp: {name}: {error}"),
        }
    }

    /// Nobody wants this one any more; none is fine.
    pub(super) fn abandon(&self, owner: &Owner) {
        if let Some(takeover) = lock(&self.orphans).remove(owner) {
            takeover.end();
        }
    }

    /// Why there is no lease.
    pub(super) fn no_lease(&self, owner: &Owner) -> Error {
        let why = lock(&self.orphans).get(owner).map(|takeover| *lock(&takeover.why));
        Error::internal(match why {
            None => format!("{} has no lease", owner.ifname),
            Some(why) => format!("{} has no lease: {why}", owner.ifname),
        })
    }
}
