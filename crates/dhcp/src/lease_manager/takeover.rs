//! Takes over leases that the Go plugin's daemon managed. A thread requests each lease again, and from then on it is
//! managed as if it had been acquired here.
//!
//! - Only leases change. If the server refuses the address, or no server answers, the interface still keeps it.
//! - A silent server is asked less and less often, for up to a day. The takeover ends earlier if the container is
//!   deleted or a DEL comes.
//! - A killed takeover starts again: granted leases are on disk, and the others are still in the cache.
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
use super::lease_link::{LeaseLink, identity, inode};
use super::{LeaseManager, STACK, describe};
use crate::orphans::{self, Orphan};
use crate::owner::{Family, Owner};
use crate::state::{self, Record};
use crate::terms::Terms;
use crate::v4::exchange::Extension;
use crate::v4::lease::Lease;

/// Delay between the starts of two takeovers, so that the requests are not all sent at once.
const APART: Duration = Duration::from_millis(20);
/// First pause after a request without an answer; each further pause is twice as long.
const PAUSE: Duration = Duration::from_secs(2);
/// Maximum duration of a takeover. By then, an address without an answer has expired.
const TAKEOVER_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Granted lease, with the request time in milliseconds since boot.
struct Grant {
    lease: Lease,
    granted: u64,
}

/// Takeover that is in progress or has failed.
#[derive(Debug, Default)]
pub(super) struct Takeover {
    /// Whether the lease is no longer needed.
    is_canceled: AtomicBool,
    /// Reason why the lease is not managed yet, for the error that clients get.
    why: Mutex<&'static str>,
    guard: Mutex<()>,
    wakeup: Condvar,
}

impl Takeover {
    fn is_unwanted(&self) -> bool {
        self.is_canceled.load(Ordering::Relaxed)
    }

    fn set_reason(&self, why: &'static str) {
        *lock(&self.why) = why;
    }

    /// Sleeps; returns true if the lease is no longer needed.
    fn sleep(&self, time: Duration) -> bool {
        let guard = lock(&self.guard);
        let wait = self.wakeup.wait_timeout_while(guard, time, |()| !self.is_unwanted());
        drop(wait.unwrap_or_else(PoisonError::into_inner));
        self.is_unwanted()
    }

    fn end(&self) {
        let guard = lock(&self.guard);
        self.is_canceled.store(true, Ordering::Relaxed);
        drop(guard);
        self.wakeup.notify_all();
    }
}

impl LeaseManager {
    /// Finds attachments that another daemon on this socket served, and starts to take over the leases.
    pub fn take_over(self: &Arc<Self>, directories: &[PathBuf], socket: &Path) {
        let is_known = |owner: &Owner| self.find(owner, Family::Ipv4).is_some();
        let found = orphans::find(directories, &self.settings.host_prefix, socket, &is_known);
        let (mut started, mut gone) = (0, 0);
        for orphan in found {
            let name = describe(&orphan.owner);
            match self.locate(&orphan, None) {
                Ok(Some(lease_link)) => match inode(&lease_link.netns) {
                    Ok(inode) => {
                        self.start_takeover(orphan, inode, APART * started);
                        started += 1;
                    }
                    Err(error) => log!("dhcp: {name}: not taken over: {error}"),
                },
                Ok(None) => gone += 1,
                Err(error) => log!("dhcp: {name}: not taken over: {error}"),
            }
        }
        if started + gone > 0 {
            log!(
                "dhcp: taking over {started} leases of another daemon; containers that no longer exist: {gone}"
            );
        }
    }

    /// Finds an orphan's interface; `None` if the container no longer exists.
    fn locate(&self, orphan: &Orphan, expected: Option<u64>) -> Result<Option<LeaseLink>, Error> {
        let Orphan { owner, netns, address, .. } = orphan;
        let Some(lease_link) = self.find_lease_link(netns, &owner.ifname, expected)? else { return Ok(None) };
        if inode(&lease_link.netns)? == inode(&Netns::own().or_refused()?)? {
            return Err(Error::internal(format!("{} is the daemon's own namespace", netns.display())));
        }
        let LeaseLink { netns: inside, link } = &lease_link;
        if !orphan.has_mac(&link.mac) {
            let now = linux::link::mac_text(&link.mac);
            return Err(Error::internal(format!("{} has the address {now}, not {}", link.name, orphan.mac)));
        }
        let addresses =
            inside.rtnl().and_then(|mut net| net.addresses(link.index, &link.name)).or_refused()?;
        let is_it = |ip: IpNet| matches!(ip, IpNet::V4(ip) if ip.addr() == *address);
        match addresses.iter().any(|known| is_it(known.address)) {
            true => Ok(Some(lease_link)),
            false => Err(Error::internal(format!("{} does not have {address}", link.name))),
        }
    }

    fn start_takeover(self: &Arc<Self>, orphan: Orphan, inode: u64, after: Duration) {
        let takeover = Arc::new(Takeover::default());
        takeover.set_reason("its takeover is in progress, no server has answered yet");
        let owner = orphan.owner.clone();
        lock(&self.orphans).insert(owner.clone(), Arc::clone(&takeover));
        let manager = Arc::clone(self);
        let run = move || {
            if !takeover.sleep(after) {
                manager.reclaim(&orphan, inode, &takeover);
            }
        };
        if let Err(cause) = std::thread::Builder::new().stack_size(STACK).spawn(run) {
            lock(&self.orphans).remove(&owner);
            log!("dhcp: {}: not taken over: start a thread: {cause}", describe(&owner));
        }
    }

    /// Sends requests until a server answers or the container no longer exists.
    fn reclaim(self: &Arc<Self>, orphan: &Orphan, inode: u64, takeover: &Arc<Takeover>) {
        let (name, address) = (describe(&orphan.owner), orphan.address);
        let end = Instant::now() + TAKEOVER_MAX;
        let mut pause = PAUSE;
        loop {
            let lease_link = match self.locate(orphan, Some(inode)) {
                Ok(Some(lease_link)) => lease_link,
                // The interface may still exist.
                Err(Error { code: code::IO_FAILURE | code::TRY_AGAIN_LATER, msg, .. })
                    if Instant::now() < end =>
                {
                    log!("dhcp: {name}: {msg}");
                    if takeover.sleep(pause) {
                        return;
                    }
                    pause = self.next_pause(pause);
                    continue;
                }
                ended => {
                    let gone = || "its container no longer exists".to_owned();
                    let why = ended.err().map_or_else(gone, |error| error.to_string());
                    log!("dhcp: {name}: {address} is not taken over: {why}");
                    self.cancel_takeover(&orphan.owner);
                    return;
                }
            };
            let asked_at = state::now();
            let identity = identity(&orphan.owner);
            let is_over = || takeover.is_unwanted();
            let answer = self
                .client(&lease_link, &identity, &orphan.options)
                .and_then(|client| client.reclaim(address, &is_over));
            match answer {
                Ok(Extension::Granted(lease)) => {
                    let grant = Grant { lease: *lease, granted: asked_at };
                    self.reclaimed(orphan, grant, &lease_link, inode, takeover);
                    return;
                }
                Ok(Extension::Refused) => {
                    takeover.set_reason("a DHCP server refused to let it keep its address");
                    log!(
                        "dhcp: {name}: {address} is not taken over: a DHCP server refused it (DHCPNAK); the interface keeps the \
                         address, but no daemon extends its lease: recreate the container"
                    );
                    return;
                }
                Ok(Extension::Silence) if pause == PAUSE => {
                    log!("dhcp: {name}: {address}: no DHCP server answered; trying again");
                }
                Ok(Extension::Silence) => {}
                Err(error) => log!("dhcp: {name}: {error}"),
            }
            if Instant::now() >= end {
                takeover.set_reason("no DHCP server answered for a day");
                log!("dhcp: {name}: {address} is not taken over: no DHCP server answered for a day");
                return;
            }
            if takeover.sleep(pause) {
                return;
            }
            pause = self.next_pause(pause);
        }
    }

    fn next_pause(&self, pause: Duration) -> Duration {
        (pause * 2).min(self.settings.timing.resend_max.max(PAUSE))
    }

    /// Manages a granted lease like any other; releases it if it is no longer needed.
    fn reclaimed(
        self: &Arc<Self>,
        orphan: &Orphan,
        Grant { lease, granted }: Grant,
        lease_link: &LeaseLink,
        inode: u64,
        takeover: &Takeover,
    ) {
        let Orphan { owner, netns, address: _, mac: _, options, priority } = orphan.clone();
        let terms = Terms::V4 { options, priority, lease };
        let record = Record { owner, netns, inode, granted, lost: None, terms };
        let name = describe(&record.owner);
        // The lock is held until the lease is managed, so that a concurrent DEL finds the owner in one of the two
        // places.
        let mut orphans = lock(&self.orphans);
        if takeover.is_unwanted() {
            drop(orphans);
            self.release_at_server(&record.owner, &record.terms, lease_link);
            return;
        }
        let taken_over = format!("{}: taken over", record.terms);
        let kept = self.manage(HeldLease::new(record), Origin::Acquired);
        orphans.remove(&orphan.owner);
        drop(orphans);
        match kept.and_then(|()| self.save()) {
            Ok(()) => log!("dhcp: {name}: {taken_over}"),
            Err(error) => log!("dhcp: {name}: {error}"),
        }
    }

    /// Cancels an owner's takeover, if there is one.
    pub(super) fn cancel_takeover(&self, owner: &Owner) {
        if let Some(takeover) = lock(&self.orphans).remove(owner) {
            takeover.end();
        }
    }

    /// Returns the error that explains why an owner has no lease.
    pub(super) fn no_lease(&self, owner: &Owner) -> Error {
        let why = lock(&self.orphans).get(owner).map(|takeover| *lock(&takeover.why));
        Error::internal(match why {
            None => format!("{} has no lease", owner.ifname),
            Some(why) => format!("{} has no lease: {why}", owner.ifname),
        })
    }
}
