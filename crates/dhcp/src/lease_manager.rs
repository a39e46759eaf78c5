//! The leases of a node: acquired for containers, extended in time, given back.
//!
//! Rules:
//! - one thread a lease, of either family, which sleeps until something is due; it opens the container's namespace when it
//!   needs it and holds none open, so that a container that is gone is gone;
//! - an attachment has all the families it wants, or nothing;
//! - a lease of IPv4 that is refused or runs out takes its link down, one of IPv6 takes its address away: it is not the
//!   container's any more;
//! - what is known is on disk before anybody is told.
//!
//! Source: RFC 2131 §4.4.5, RFC 8415 §18.2; Go plugin `plugins/ipam/dhcp/{daemon,lease}.go`.

mod adoption;
mod gc;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cni::name::{ContainerId, IfName, NetworkName};
use cni::result::Success;
use cni::{Error, code};
use linux::Netns;
use linux::link::{Change, Link};
use linux::netns::Identity;
use plugin_support::failure::OrRefused;

use self::adoption::Adoption;
use crate::owner::{Family, Owner};
use crate::state::{self, Record};
use crate::terms::{self, Terms, Times};
use crate::v4::exchange::{Client, Extension, Timing};
use crate::v4::options::Options;
use crate::v6::exchange::Confirmation;
use crate::v6::identity::Identity as Identity6;
use crate::v6::message::Kind;
use crate::v6::timing::{self, Waits};
use crate::v6::{self, Wish};

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

/// What an attachment wants.
#[derive(Debug)]
pub struct Wanted {
    /// Leases of which families, in order.
    pub families: Vec<Family>,
    /// What is said to servers of DHCPv4.
    pub options: Options,
    /// Metric of the routes.
    pub priority: Option<u32>,
    /// What is wished for of DHCPv6.
    pub wish: Wish,
}

/// All leases.
#[derive(Debug)]
pub struct Keeper {
    settings: Settings,
    leases: Mutex<BTreeMap<(Owner, Family), Arc<Held>>>,
    /// Those being acquired, and whether somebody has said meanwhile that they are not wanted.
    pending: Mutex<BTreeMap<Owner, Arc<AtomicBool>>>,
    /// Those of the Go plugin's daemon that are being taken over, or could not be.
    orphans: Mutex<BTreeMap<Owner, Arc<Adoption>>>,
    /// Those that a GC has yet to give back.
    stale: Mutex<BTreeSet<Owner>>,
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

/// Where a lease comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// A server said so just now.
    Acquired,
    /// The last daemon had it.
    Restored,
}

/// An attachment that lacks leases.
struct Asker<'a> {
    owner: &'a Owner,
    /// The path of its namespace, and the namespace itself.
    netns: &'a Path,
    inode: u64,
    place: &'a Place,
    wanted: &'a Wanted,
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
        let Times { renewal, rebinding, expiry } = self.terms.times();
        match expiry {
            _ if self.lost.is_some() => Due::Nothing(Duration::from_secs(3600)),
            Some(expiry) if age >= expiry => Due::Loss,
            _ if age >= rebinding => Due::Rebinding,
            _ if age >= renewal => Due::Renewal,
            _ => Due::Nothing(renewal - age),
        }
    }

    /// How long there is until something else is due.
    fn left(&self, due: &Due, now: u64) -> Duration {
        let age = Duration::from_millis(now.saturating_sub(self.granted));
        let Times { renewal: _, rebinding, expiry } = self.terms.times();
        match due {
            Due::Renewal => rebinding,
            _ => expiry.unwrap_or(Duration::from_secs(3600) + age),
        }
        .saturating_sub(age)
    }

    /// How long to wait after an attempt that came to nothing: half of what is left, as RFC 2131 has it; but anybody is
    /// asked as soon as it is time for that, also if the last attempt with the server took until then.
    fn pause(&self, due: &Due, now: u64) -> Duration {
        let left = self.left(due, now);
        match due {
            Due::Renewal => (left / 2).max(PATIENCE).min(left),
            _ => (left / 2).max(PATIENCE).min(left.max(PATIENCE)),
        }
    }
}

/// The attempts to extend one lease since the last that came to something.
struct Attempts {
    /// What was due at the last one, and how long to wait after each.
    series: Option<(std::mem::Discriminant<Due>, Waits)>,
    most: Duration,
}

impl Attempts {
    /// The waits of what is due now: an exchange of its own for each kind of question.
    fn of(&mut self, due: &Due) -> &mut Waits {
        let kind = std::mem::discriminant(due);
        let series = self.series.take().filter(|(of, _)| *of == kind);
        &mut self
            .series
            .insert(series.unwrap_or((kind, timing::EXTEND.at_most(self.most.max(PATIENCE)).begin())))
            .1
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
            stale: Mutex::default(),
            writing: Mutex::default(),
        });
        for record in records {
            plugin_support::log!("dhcp: {}: taken over", describe(&record.owner));
            keeper.keep(Held::new(record), Origin::Restored)?;
        }
        Ok(keeper)
    }

    /// Leases for an interface: those it has, and new ones for what it lacks. `is_over`: nobody waits any more.
    pub fn allocate(
        self: &Arc<Self>,
        owner: &Owner,
        netns: &Path,
        wanted: &Wanted,
        is_over: &dyn Fn() -> bool,
    ) -> Result<Success, Error> {
        check(owner)?;
        let place = self.place(netns, &owner.ifname)?;
        let inode = inode(&place.netns)?;
        self.abandon(owner);
        lock(&self.stale).remove(owner);
        let (mut results, mut lacking) = (BTreeMap::new(), Vec::new());
        for family in &wanted.families {
            if let Some(held) = self.find(owner, *family) {
                let record = held.record();
                // One that is stopped is being given back.
                if record.inode == inode && record.lost.is_none() && !held.is_stopped() {
                    results.insert(*family, record.terms.result());
                    continue;
                }
                self.forget(&held)?;
            }
            lacking.push(*family);
        }
        if lacking.is_empty() {
            return Ok(terms::whole(results.into_values()));
        }
        let unwanted = match lock(&self.pending).entry(owner.clone()) {
            Entry::Vacant(free) => Arc::clone(free.insert(Arc::default())),
            Entry::Occupied(_) => {
                return Err(Error::new(code::TRY_AGAIN_LATER, "this lease is being acquired already"));
            }
        };
        let over = || is_over() || unwanted.load(Ordering::Relaxed);
        let mut had = Vec::new();
        let asker = Asker { owner, netns, inode, place: &place, wanted };
        let acquired = self.acquire_all(&asker, &lacking, &over, &mut had);
        lock(&self.pending).remove(owner);
        if let Err(error) = acquired {
            // What is stopped already a DEL has given back.
            for held in had.iter().filter(|held| !held.is_stopped()) {
                let _ = self.end(held, Some(&place));
            }
            if !place.link.up {
                // As it was; that it cannot be is not what went wrong.
                let _ = set_up(&place.netns, &place.link, false);
            }
            return Err(error);
        }
        let all = had.iter().map(|held| held.record().terms);
        results.extend(all.map(|terms| (terms.family(), terms.result())));
        Ok(terms::whole(results.into_values()))
    }

    /// All of them, each kept as soon as it is had: a daemon that is killed meanwhile leaves none that nobody knows of.
    fn acquire_all(
        self: &Arc<Self>,
        asker: &Asker<'_>,
        lacking: &[Family],
        is_over: &dyn Fn() -> bool,
        had: &mut Vec<Arc<Held>>,
    ) -> Result<(), Error> {
        let Asker { owner, netns: path, inode, place, wanted } = *asker;
        let Place { netns, link } = place;
        let wants_v6 = lacking.contains(&Family::Ipv6);
        if wants_v6 {
            v6::link::prepare(netns, link, &wanted.wish)?;
        }
        if !link.up {
            set_up(netns, link, true)?;
        }
        for family in lacking {
            let terms = self.acquire(owner, place, (wanted, *family), is_over)?;
            let said = format!("{}: {terms}", describe(owner));
            let (owner, netns, granted) = (owner.clone(), path.to_owned(), state::now());
            let held = Held::new(Record { owner, netns, inode, granted, lost: None, terms });
            had.push(Arc::clone(&held));
            // Held until it is a lease: a DEL finds it as one or the other.
            let pending = lock(&self.pending);
            expect_somebody(is_over)?;
            self.keep(held, Origin::Acquired)?;
            drop(pending);
            // Nobody would know of what is not written down once this daemon has ended: it is not given.
            self.save()?;
            plugin_support::log!("dhcp: {said}");
        }
        if wants_v6 && wanted.wish.prefix_length == v6::PREFIX_LENGTH {
            match v6::link::await_router(netns, link, is_over) {
                Ok(true) => {}
                Ok(false) => {
                    plugin_support::log!(
                        "dhcp: {}: no router says what its IPv6 address reaches",
                        describe(owner)
                    );
                }
                Err(error) => plugin_support::log!("dhcp: {}: {error}", describe(owner)),
            }
            expect_somebody(is_over)?;
        }
        Ok(())
    }

    fn acquire(
        &self,
        owner: &Owner,
        place: &Place,
        (wanted, family): (&Wanted, Family),
        is_over: &dyn Fn() -> bool,
    ) -> Result<Terms, Error> {
        let Wanted { families: _, options, priority, wish } = wanted;
        match family {
            Family::Ipv4 => {
                let lease = self.client(place, &identity(owner), options)?.acquire(is_over)?;
                Ok(Terms::V4 { options: options.clone(), priority: *priority, lease })
            }
            Family::Ipv6 => {
                let identity = Identity6::of(owner, &wish.options);
                let lease = self.client_v6(place, &identity, wish).acquire(is_over)?;
                Ok(Terms::V6 { wish: wish.clone(), lease })
            }
        }
    }

    /// The leases of an owner, if it has one of each of these families.
    pub fn inspect(&self, owner: &Owner, families: &[Family]) -> Result<Success, Error> {
        let one = |family: &Family| match self.find(owner, *family).map(|held| held.record()) {
            None => Err(self.no_lease(owner)),
            Some(Record { lost: Some(why), .. }) => {
                Err(Error::internal(format!("{} has lost its lease: {why}", owner.ifname)))
            }
            Some(record) => Ok(record.terms.result()),
        };
        Ok(terms::whole(families.iter().map(one).collect::<Result<Vec<_>, Error>>()?))
    }

    /// Gives the leases of an owner back; none is fine.
    pub fn release(&self, owner: &Owner) -> Result<(), Error> {
        if let Some(unwanted) = lock(&self.pending).get(owner) {
            unwanted.store(true, Ordering::Relaxed);
        }
        self.abandon(owner);
        lock(&self.stale).remove(owner);
        let all = [Family::Ipv4, Family::Ipv6].map(|family| self.find(owner, family));
        let mut errors = Vec::new();
        for held in all.iter().flatten() {
            let record = held.record();
            held.stop();
            let place = self.seek(&record.netns, &owner.ifname, Some(record.inode));
            errors.extend(self.end(held, place.ok().flatten().as_ref()).err());
        }
        // One that the file still has would be taken over by the next daemon.
        if errors.is_empty() && *lock(&self.writing) {
            errors.extend(self.save().err());
        }
        cni::error::collected(errors)
    }

    // === the threads ===

    /// Has a lease looked after.
    fn keep(self: &Arc<Self>, held: Arc<Held>, origin: Origin) -> Result<(), Error> {
        let record = held.record();
        let key = (record.owner, record.terms.family());
        lock(&self.leases).insert(key.clone(), Arc::clone(&held));
        let keeper = Arc::clone(self);
        let work = move || keeper.look_after(&held, origin);
        match std::thread::Builder::new().stack_size(STACK).spawn(work) {
            Ok(_) => Ok(()),
            Err(cause) => {
                lock(&self.leases).remove(&key);
                Err(Error::io("start a thread", cause))
            }
        }
    }

    fn look_after(&self, held: &Held, origin: Origin) {
        if origin == Origin::Restored {
            self.confirm(held);
        }
        // A daemon that was away for too long asks once before it believes that all is lost.
        let mut asked = false;
        let mut attempts = Attempts { series: None, most: self.settings.timing.resend_max };
        loop {
            let record = held.record();
            let pause = match record.due(state::now()) {
                Due::Nothing(time) => time,
                Due::Loss if asked => {
                    self.lose(held, "it was not extended in time");
                    continue;
                }
                due => {
                    let began = Instant::now();
                    let waits = attempts.of(&due);
                    let wait = waits.again().unwrap_or_default();
                    match self.extend(&record, &due, waits, held) {
                        Attempt::Settled => {
                            attempts.series = None;
                            Duration::ZERO
                        }
                        Attempt::Silence if record.terms.family() == Family::Ipv6 => {
                            let left = record.left(&due, state::now());
                            wait.saturating_sub(began.elapsed()).min(left)
                        }
                        Attempt::Silence => record.pause(&due, state::now()),
                        Attempt::Failed => record.pause(&due, state::now()).min(SOON),
                        Attempt::Gone => return,
                    }
                }
            };
            asked = true;
            if held.sleep(pause) {
                return;
            }
        }
    }

    /// Whether an address of IPv6 that the last daemon had still belongs to its link. Who is too late for that asks for more.
    fn confirm(&self, held: &Held) {
        let record = held.record();
        let Terms::V6 { wish, lease } = &record.terms else { return };
        if !matches!(record.due(state::now()), Due::Nothing(_)) || record.lost.is_some() {
            return;
        }
        if held.sleep(timing::tenth(timing::CONFIRM_DELAY * 10)) {
            return;
        }
        // One that is gone is found out when something is due.
        let Ok(Some(place)) = self.seek(&record.netns, &record.owner.ifname, Some(record.inode)) else {
            return;
        };
        let identity = Identity6::of(&record.owner, &wish.options);
        let is_over = || held.is_stopped();
        match self.client_v6(&place, &identity, wish).confirm(lease, &is_over) {
            Ok(Confirmation::Belongs | Confirmation::Silence) => {}
            Ok(Confirmation::Elsewhere) => {
                self.lose(held, "a DHCPv6 server says that it does not belong to the link (NotOnLink)");
            }
            Err(error) => plugin_support::log!("dhcp: {}: {error}", describe(&record.owner)),
        }
    }

    /// One attempt to extend.
    fn extend(&self, record: &Record, due: &Due, waits: &Waits, held: &Held) -> Attempt {
        let name = describe(&record.owner);
        let place = match self.seek(&record.netns, &record.owner.ifname, Some(record.inode)) {
            Ok(Some(place)) => place,
            Ok(None) => {
                plugin_support::log!("dhcp: {name}: forgotten: its namespace or interface is gone");
                let _ = self.forget(held);
                return Attempt::Gone;
            }
            // It may be there all the same.
            Err(error) => {
                plugin_support::log!("dhcp: {name}: {error}");
                return Attempt::Failed;
            }
        };
        let asked_at = state::now();
        match self.ask_to_extend(record, &place, (due, waits), &|| held.is_stopped()) {
            Ok(Extension::Granted(terms)) => {
                let mut record = lock(&held.record);
                (record.terms, record.granted) = (*terms, asked_at);
                drop(record);
                // Not written down it is only older than it is: it would be extended again.
                if let Err(error) = self.save() {
                    plugin_support::log!("dhcp: {name}: {error}");
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
                plugin_support::log!("dhcp: {name}: {error}");
                Attempt::Silence
            }
        }
    }

    fn ask_to_extend(
        &self,
        record: &Record,
        place: &Place,
        (due, waits): (&Due, &Waits),
        is_over: &dyn Fn() -> bool,
    ) -> Result<Extension<Terms>, Error> {
        match &record.terms {
            Terms::V4 { options, priority, lease } => {
                let identity = identity(&record.owner);
                let client = self.client(place, &identity, options)?;
                let extension = match due {
                    Due::Renewal => client.renew(lease, is_over)?,
                    _ => client.rebind(lease, is_over)?,
                };
                let (options, priority) = (options.clone(), *priority);
                Ok(extension.map(|lease| Terms::V4 { options, priority, lease }))
            }
            Terms::V6 { wish, lease } => {
                let identity = Identity6::of(&record.owner, &wish.options);
                let kind = if *due == Due::Renewal { Kind::Renew } else { Kind::Rebind };
                let extension = self.client_v6(place, &identity, wish).extend(kind, lease, waits, is_over)?;
                Ok(extension.map(|lease| Terms::V6 { wish: wish.clone(), lease }))
            }
        }
    }

    /// The address is not the container's any more.
    fn lose(&self, held: &Held, why: &str) {
        let record = held.record();
        let (name, address) = (describe(&record.owner), record.terms.address());
        let then = match record.terms {
            Terms::V4 { .. } => "the link goes down",
            Terms::V6 { .. } => "it is taken away",
        };
        plugin_support::log!("dhcp: {name}: {} is lost: {why}; {then}", address.addr());
        lock(&held.record).lost = Some(why.to_owned());
        if let Ok(Some(place)) = self.seek(&record.netns, &record.owner.ifname, Some(record.inode)) {
            let taken = match record.terms {
                Terms::V4 { .. } => set_up(&place.netns, &place.link, false),
                Terms::V6 { .. } => take_away(&place, address),
            };
            if let Err(error) = taken {
                plugin_support::log!("dhcp: {name}: {error}");
            }
        }
        let _ = self.save();
    }

    // === what they share ===

    fn find(&self, owner: &Owner, family: Family) -> Option<Arc<Held>> {
        lock(&self.leases).get(&(owner.clone(), family)).cloned()
    }

    /// Gives one back, if there is a way to its server, and forgets it.
    fn end(&self, held: &Held, place: Option<&Place>) -> Result<(), Error> {
        held.stop();
        let Record { owner, terms, .. } = held.record();
        if let Some(place) = place {
            self.give_back(&owner, &terms, place);
        }
        self.forget(held)
    }

    /// This one, and not the one that may have come in its place.
    fn forget(&self, held: &Held) -> Result<(), Error> {
        held.stop();
        let Record { owner, terms, .. } = held.record();
        let key = (owner, terms.family());
        let mut leases = lock(&self.leases);
        if leases.get(&key).is_some_and(|known| std::ptr::eq(Arc::as_ptr(known), held)) {
            leases.remove(&key);
        }
        drop(leases);
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
    fn give_back(&self, owner: &Owner, terms: &Terms, place: &Place) {
        let given = match terms {
            Terms::V4 { options, priority: _, lease } => {
                self.client(place, &identity(owner), options).and_then(|client| client.release(lease))
            }
            Terms::V6 { wish, lease } => {
                self.client_v6(place, &Identity6::of(owner, &wish.options), wish).release(lease)
            }
        };
        if let Err(error) = given {
            plugin_support::log!("dhcp: {}: {error}", describe(owner));
        }
    }

    fn client_v6<'a>(
        &self,
        place: &'a Place,
        identity: &'a Identity6,
        wish: &'a Wish,
    ) -> v6::exchange::Client<'a> {
        let Place { netns, link } = place;
        v6::exchange::Client { netns, link, identity, wish, timing: self.settings.timing }
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
        let netns = plugin_support::netns::open_netns(&self.seen_from_here(path))?;
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

fn expect_somebody(is_over: &dyn Fn() -> bool) -> Result<(), Error> {
    match is_over() {
        true => Err(Error::new(code::TRY_AGAIN_LATER, "nobody waited for the lease any more")),
        false => Ok(()),
    }
}

fn set_up(netns: &Netns, link: &Link, up: bool) -> Result<(), Error> {
    let change = Change { up: Some(up), ..Change::default() };
    netns.rtnl().and_then(|mut net| net.change_link(link.index, &link.name, &change)).or_refused()
}

fn take_away(place: &Place, address: ipnet::IpNet) -> Result<(), Error> {
    let Place { netns, link } = place;
    let removed = netns.rtnl().and_then(|mut net| net.delete_address(link.index, &link.name, address));
    linux::error::absent_is_fine(removed).or_refused()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_that_fails_at_once_is_not_repeated_at_once_whatever_the_daemon_was_told() {
        let mut attempts = Attempts { series: None, most: Duration::from_millis(1) };
        for due in [Due::Renewal, Due::Renewal, Due::Rebinding] {
            let wait = attempts.of(&due).again().unwrap();
            assert!(wait >= PATIENCE * 9 / 10, "{wait:?}");
        }
    }
}
