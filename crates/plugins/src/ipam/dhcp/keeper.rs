//! The leases of a node: acquired for containers, extended in time, given back.
//!
//! Rules:
//! - one thread a lease, which sleeps until something is due; it opens the container's namespace when it needs it and
//!   holds none open, so that a container that is gone is gone;
//! - a lease that is refused or runs out takes its link down: the address is not the container's any more;
//! - what is known is on disk before anybody is told.
//!
//! Source: RFC 2131 §4.4.5; Go plugin `plugins/ipam/dhcp/{daemon,lease}.go`.

mod adoption;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cni::invocation::ValidAttachment;
use cni::name::{ContainerId, IfName, NetworkName};
use cni::result::Success;
use cni::{Error, code};
use linux::Netns;
use linux::link::{Change, Link};
use linux::netns::Identity;

use self::adoption::Adoption;
use super::exchange::{Client, Extension, Timing};
use super::options::Options;
use super::state::{self, Record};
use super::wire::Owner;
use crate::failure::OrRefused;

/// Stack of a lease's thread, in bytes.
const STACK: usize = 256 * 1024;
/// The shortest time between two attempts to extend.
const PATIENCE: Duration = Duration::from_secs(1);
/// The longest time until it is tried again what this node could not do.
const SOON: Duration = Duration::from_secs(5);
/// Longest identity of a client, in bytes, without the byte that says what kind it is.
const IDENTITY_MAX: usize = 254;

/// How the daemon was started.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How long to wait for servers.
    pub timing: Timing,
    /// Answers shall be broadcast.
    pub broadcast: bool,
    /// What stands before the paths that runtimes say.
    pub host_prefix: String,
    /// Where leases are written down.
    pub state: PathBuf,
}

/// All leases.
#[derive(Debug)]
pub struct Keeper {
    settings: Settings,
    leases: Mutex<BTreeMap<Owner, Arc<Held>>>,
    /// Those being acquired, and whether somebody has said meanwhile that they are not wanted.
    pending: Mutex<BTreeMap<Owner, Arc<AtomicBool>>>,
    /// Those of the Go plugin's daemon that are being taken over, or could not be.
    orphans: Mutex<BTreeMap<Owner, Arc<Adoption>>>,
    /// Writers of the file take turns. Does it lack what was to be written last?
    writing: Mutex<bool>,
}

/// One lease, and the way to wake its thread.
#[derive(Debug)]
struct Held {
    record: Mutex<Record>,
    stopped: Mutex<bool>,
    bell: Condvar,
}

/// Where a lease is used.
struct Place {
    netns: Netns,
    link: Link,
}

/// What there is to do for a lease now.
#[derive(Debug, PartialEq, Eq)]
enum Due {
    Nothing(Duration),
    Renewal,
    Rebinding,
    Loss,
}

/// What came of an attempt to extend a lease.
enum Attempt {
    /// It was granted, or is lost.
    Settled,
    /// Nobody answered.
    Silence,
    /// It could not be looked at: something is lacking on this node.
    Failed,
    /// There is nothing to extend any more.
    Gone,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

// === impl Held ===

impl Held {
    fn new(record: Record) -> Arc<Held> {
        Arc::new(Held { record: Mutex::new(record), stopped: Mutex::new(false), bell: Condvar::new() })
    }

    fn record(&self) -> Record {
        lock(&self.record).clone()
    }

    fn stop(&self) {
        *lock(&self.stopped) = true;
        self.bell.notify_all();
    }

    fn is_stopped(&self) -> bool {
        *lock(&self.stopped)
    }

    /// Sleeps; true if it was stopped.
    fn sleep(&self, time: Duration) -> bool {
        let until = Instant::now() + time;
        let mut stopped = lock(&self.stopped);
        while !*stopped {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            stopped = self.bell.wait_timeout(stopped, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

impl Record {
    fn due(&self, now: u64) -> Due {
        let age = Duration::from_millis(now.saturating_sub(self.granted));
        match self.lease.expiry {
            _ if self.lost.is_some() => Due::Nothing(Duration::from_secs(3600)),
            Some(expiry) if age >= expiry => Due::Loss,
            _ if age >= self.lease.rebinding => Due::Rebinding,
            _ if age >= self.lease.renewal => Due::Renewal,
            _ => Due::Nothing(self.lease.renewal - age),
        }
    }

    /// How long to wait after an attempt that came to nothing: half of what is left, as RFC 2131 has it; but anybody is
    /// asked as soon as it is time for that, also if the last attempt with the server took until then.
    fn pause(&self, due: &Due, now: u64) -> Duration {
        let age = Duration::from_millis(now.saturating_sub(self.granted));
        if matches!(due, Due::Renewal) {
            let left = self.lease.rebinding.saturating_sub(age);
            return (left / 2).max(PATIENCE).min(left);
        }
        let left = self.lease.expiry.unwrap_or(Duration::from_secs(3600)).saturating_sub(age);
        (left / 2).max(PATIENCE).min(left.max(PATIENCE))
    }
}

// === impl Keeper ===

impl Keeper {
    /// Takes over what the last daemon left.
    pub fn start(settings: Settings) -> Result<Arc<Keeper>, Error> {
        let records = state::load(&settings.state)?;
        let keeper = Arc::new(Keeper {
            settings,
            leases: Mutex::default(),
            pending: Mutex::default(),
            orphans: Mutex::default(),
            writing: Mutex::default(),
        });
        for record in records {
            crate::told!("dhcp: {}: taken over", describe(&record.owner));
            keeper.keep(Held::new(record))?;
        }
        Ok(keeper)
    }

    /// A lease for an interface: the one it has, or a new one. `is_over`: nobody waits any more.
    pub fn allocate(
        self: &Arc<Self>,
        owner: Owner,
        netns: PathBuf,
        (options, priority): (Options, Option<u32>),
        is_over: &dyn Fn() -> bool,
    ) -> Result<Success, Error> {
        check(&owner)?;
        let place = self.place(&netns, &owner.ifname)?;
        let inode = inode(&place.netns)?;
        self.abandon(&owner);
        if let Some(held) = self.find(&owner) {
            let record = held.record();
            if record.inode == inode && record.lost.is_none() {
                return Ok(record.lease.result(record.priority));
            }
            self.forget(&owner)?;
        }
        let unwanted = match lock(&self.pending).entry(owner.clone()) {
            Entry::Vacant(free) => Arc::clone(free.insert(Arc::default())),
            Entry::Occupied(_) => {
                return Err(Error::new(code::TRY_AGAIN_LATER, "this lease is being acquired already"));
            }
        };
        let over = || is_over() || unwanted.load(Ordering::Relaxed);
        let granted = self.acquire(&owner, &place, &options, &over);
        // Held until it is a lease: a DEL finds it as one or the other.
        let mut pending = lock(&self.pending);
        pending.remove(&owner);
        let lease = granted?;
        let result = lease.result(priority);
        let granted = state::now();
        let record = Record { owner, netns, inode, options, priority, granted, lost: None, lease };
        let kept = match over() {
            true => Err(Error::new(code::TRY_AGAIN_LATER, "nobody waited for the lease any more")),
            false => self.keep(Held::new(record.clone())),
        };
        drop(pending);
        if let Err(error) = kept {
            self.give_back(&record, &place);
            return Err(error);
        }
        crate::told!(
            "dhcp: {}: {} from {}",
            describe(&record.owner),
            record.lease.address,
            record.lease.server
        );
        if let Err(error) = self.save() {
            // Nobody would know of it once this daemon has ended: it is not given.
            self.give_back(&record, &place);
            let _ = self.forget(&record.owner);
            return Err(error);
        }
        Ok(result)
    }

    fn acquire(
        &self,
        owner: &Owner,
        place: &Place,
        options: &Options,
        is_over: &dyn Fn() -> bool,
    ) -> Result<super::lease::Lease, Error> {
        let Place { netns, link } = place;
        if !link.up {
            set_up(netns, link, true)?;
        }
        let identity = identity(owner);
        let lease = self.client(place, &identity, options)?.acquire(is_over);
        if lease.is_err() && !link.up {
            // As it was; that it cannot be is not what went wrong.
            let _ = set_up(netns, link, false);
        }
        lease
    }

    /// The lease of an owner, if it is one.
    pub fn inspect(&self, owner: &Owner) -> Result<Success, Error> {
        let record = self.find(owner).map(|held| held.record());
        match record {
            None => Err(self.no_lease(owner)),
            Some(Record { lost: Some(why), .. }) => {
                Err(Error::internal(format!("{} has lost its lease: {why}", owner.ifname)))
            }
            Some(record) => Ok(record.lease.result(record.priority)),
        }
    }

    /// Gives a lease back; none is fine.
    pub fn release(&self, owner: &Owner) -> Result<(), Error> {
        if let Some(unwanted) = lock(&self.pending).get(owner) {
            unwanted.store(true, Ordering::Relaxed);
        }
        self.abandon(owner);
        // One that the file still has would be taken over by the next daemon.
        let Some(held) = self.find(owner) else {
            return if *lock(&self.writing) { self.save() } else { Ok(()) };
        };
        let record = held.record();
        held.stop();
        if let Ok(Some(place)) = self.seek(&record.netns, &owner.ifname, Some(record.inode)) {
            self.give_back(&record, &place);
        }
        self.forget(owner)
    }

    /// Gives back every lease of a network that is not in the list.
    pub fn retain(&self, network: &str, valid: &[ValidAttachment]) -> Result<(), Error> {
        let is_valid = |owner: &Owner| {
            valid.iter().any(|one| one.container_id == owner.container && one.ifname == owner.ifname)
        };
        let mut owners: Vec<Owner> = lock(&self.orphans).keys().cloned().collect();
        owners.extend(lock(&self.leases).keys().cloned());
        let stale = owners.iter().filter(|owner| owner.network == network && !is_valid(owner));
        crate::interface::collected(stale.filter_map(|owner| self.release(owner).err()).collect())
    }

    // === the threads ===

    /// Has a lease looked after.
    fn keep(self: &Arc<Self>, held: Arc<Held>) -> Result<(), Error> {
        let owner = held.record().owner;
        lock(&self.leases).insert(owner.clone(), Arc::clone(&held));
        let keeper = Arc::clone(self);
        let started = std::thread::Builder::new().stack_size(STACK).spawn(move || keeper.look_after(&held));
        match started {
            Ok(_) => Ok(()),
            Err(cause) => {
                lock(&self.leases).remove(&owner);
                Err(Error::io("start a thread", cause))
            }
        }
    }

    fn look_after(&self, held: &Held) {
        // A daemon that was away for too long asks once before it believes that all is lost.
        let mut asked = false;
        loop {
            let record = held.record();
            let pause = match record.due(state::now()) {
                Due::Nothing(time) => time,
                Due::Loss if asked => {
                    self.lose(held, "it was not extended in time");
                    continue;
                }
                due => match self.extend(&record, &due, held) {
                    Attempt::Settled => Duration::ZERO,
                    Attempt::Silence => record.pause(&due, state::now()),
                    Attempt::Failed => record.pause(&due, state::now()).min(SOON),
                    Attempt::Gone => return,
                },
            };
            asked = true;
            if held.sleep(pause) {
                return;
            }
        }
    }

    /// One attempt to extend.
    fn extend(&self, record: &Record, due: &Due, held: &Held) -> Attempt {
        let name = describe(&record.owner);
        let place = match self.seek(&record.netns, &record.owner.ifname, Some(record.inode)) {
            Ok(Some(place)) => place,
            Ok(None) => {
                crate::told!("dhcp: {name}: forgotten: its namespace or interface is gone");
                held.stop();
                let _ = self.forget(&record.owner);
                return Attempt::Gone;
            }
            // It may be there all the same.
            Err(error) => {
                crate::told!("dhcp: {name}: {error}");
                return Attempt::Failed;
            }
        };
        let asked_at = state::now();
        let identity = identity(&record.owner);
        let is_over = || held.is_stopped();
        let extension = self.client(&place, &identity, &record.options).and_then(|client| match due {
            Due::Renewal => client.renew(&record.lease, &is_over),
            _ => client.rebind(&record.lease, &is_over),
        });
        match extension {
            Ok(Extension::Granted(lease)) => {
                let mut record = lock(&held.record);
                (record.lease, record.granted) = (*lease, asked_at);
                drop(record);
                // Not written down it is only older than it is: it would be extended again.
                if let Err(error) = self.save() {
                    crate::told!("dhcp: {name}: {error}");
                }
                Attempt::Settled
            }
            Ok(Extension::Refused) => {
                self.lose(held, "the server refused to extend it");
                Attempt::Settled
            }
            Ok(Extension::Silence) => Attempt::Silence,
            // Its link may be down for long.
            Err(error) => {
                crate::told!("dhcp: {name}: {error}");
                Attempt::Silence
            }
        }
    }

    /// The address is not the container's any more.
    fn lose(&self, held: &Held, why: &str) {
        let record = held.record();
        crate::told!(
            "dhcp: {}: {} is lost: {why}; the link goes down",
            describe(&record.owner),
            record.lease.address
        );
        lock(&held.record).lost = Some(why.to_owned());
        if let Ok(Some(place)) = self.seek(&record.netns, &record.owner.ifname, Some(record.inode))
            && let Err(error) = set_up(&place.netns, &place.link, false)
        {
            crate::told!("dhcp: {}: {error}", describe(&record.owner));
        }
        let _ = self.save();
    }

    // === what they share ===

    fn find(&self, owner: &Owner) -> Option<Arc<Held>> {
        lock(&self.leases).get(owner).cloned()
    }

    fn forget(&self, owner: &Owner) -> Result<(), Error> {
        let held = lock(&self.leases).remove(owner);
        held.iter().for_each(|held| held.stop());
        self.save()
    }

    fn save(&self) -> Result<(), Error> {
        let mut lacks = lock(&self.writing);
        let all: Vec<Arc<Held>> = lock(&self.leases).values().cloned().collect();
        let saved = state::save(&self.settings.state, all.iter().map(|held| held.record()).collect());
        *lacks = saved.is_err();
        saved
    }

    /// Best effort: a server that does not hear of it waits until the lease ends.
    fn give_back(&self, record: &Record, place: &Place) {
        let identity = identity(&record.owner);
        let given =
            self.client(place, &identity, &record.options).and_then(|client| client.release(&record.lease));
        if let Err(error) = given {
            crate::told!("dhcp: {}: {error}", describe(&record.owner));
        }
    }

    fn client<'a>(
        &self,
        place: &'a Place,
        identity: &'a [u8],
        options: &'a Options,
    ) -> Result<Client<'a>, Error> {
        let Place { netns, link } = place;
        let Ok(hardware) = <[u8; 6]>::try_from(link.mac.as_slice()) else {
            return Err(Error::internal(format!("{} is not Ethernet", link.name)));
        };
        let Settings { timing, broadcast, .. } = self.settings;
        Ok(Client { netns, ifname: &link.name, hardware, identity, options, timing, broadcast })
    }

    /// The link, in the namespace at the path; both must be there.
    fn place(&self, path: &Path, ifname: &str) -> Result<Place, Error> {
        let netns = crate::interface::open_netns(&self.seen_from_here(path))?;
        let link = netns.rtnl().and_then(|mut net| net.link(ifname)).or_refused()?;
        Ok(Place { netns, link })
    }

    /// The same; nothing if one of them is gone, or the namespace is another one than it was.
    fn seek(&self, path: &Path, ifname: &str, expected: Option<u64>) -> Result<Option<Place>, Error> {
        let Some(netns) = Netns::find(&self.seen_from_here(path)).or_refused()? else { return Ok(None) };
        let own = inode(&netns)?;
        if expected.is_some_and(|expected| own != expected) {
            return Ok(None);
        }
        let link = netns.rtnl().and_then(|mut net| net.find_link(ifname)).or_refused()?;
        Ok(link.map(|link| Place { netns, link }))
    }

    fn seen_from_here(&self, path: &Path) -> PathBuf {
        PathBuf::from(format!("{}{}", self.settings.host_prefix, path.display()))
    }
}

fn set_up(netns: &Netns, link: &Link, up: bool) -> Result<(), Error> {
    let change = Change { up: Some(up), ..Change::default() };
    netns.rtnl().and_then(|mut net| net.change_link(link.index, &link.name, &change)).or_refused()
}

fn inode(netns: &Netns) -> Result<u64, Error> {
    netns.identity().map(Identity::inode).or_refused()
}

/// The names are a stranger's until here.
fn check(owner: &Owner) -> Result<(), Error> {
    let Owner { container, network, ifname } = owner;
    ContainerId::new(container)?;
    NetworkName::new(network)?;
    IfName::new(ifname).map(|_| ())
}

/// What the server knows a client by, as the reference plugin has it: no type, and a text that is cut.
fn identity(owner: &Owner) -> Vec<u8> {
    let Owner { container, network, ifname } = owner;
    let mut identity = vec![0];
    identity.extend(format!("{container}/{network}/{ifname}").bytes().take(IDENTITY_MAX));
    identity
}

/// For the log.
fn describe(owner: &Owner) -> String {
    let Owner { container, network, ifname } = owner;
    format!("{container}/{network}/{ifname}")
}
