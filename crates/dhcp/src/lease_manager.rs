//! Lease manager: the leases of a node, acquired for containers, extended in time, and released.
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

mod acquisition;
mod extension;
mod gc;
mod held_lease;
mod place;
mod takeover;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use cni::name::{ContainerId, IfName, NetworkName};
use cni::result::Success;
use cni::{Error, code};
use plugin_support::log;

use self::acquisition::Asker;
use self::extension::Origin;
use self::held_lease::{HeldLease, lock};
use self::place::{Place, identity, inode, set_up};
use self::takeover::Takeover;
use crate::owner::{Family, Owner};
use crate::state::{self, Record};
use crate::terms::{self, Terms};
use crate::v4::exchange::Timing;
use crate::v4::options::Options;
use crate::v6::Wish;
use crate::v6::identity::Identity as Identity6;

/// Stack of a lease's thread, in bytes.
const STACK: usize = 256 * 1024;

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
pub struct LeaseManager {
    settings: Settings,
    leases: Mutex<BTreeMap<(Owner, Family), Arc<HeldLease>>>,
    /// Leases being acquired; the value is set when a release is requested meanwhile.
    pending: Mutex<BTreeMap<Owner, Arc<AtomicBool>>>,
    /// Those of the Go plugin's daemon that are being taken over, or could not be.
    orphans: Mutex<BTreeMap<Owner, Arc<Takeover>>>,
    /// Those that a GC has yet to give back.
    stale: Mutex<BTreeSet<Owner>>,
    /// Writers of the file take turns. Does it lack what was to be written last?
    writing: Mutex<bool>,
}

// === impl LeaseManager ===

impl LeaseManager {
    /// Takes over what the last daemon left.
    pub fn start(settings: Settings) -> Result<Arc<LeaseManager>, Error> {
        let records = state::load(&settings.state)?;
        let manager = Arc::new(LeaseManager {
            settings,
            leases: Mutex::default(),
            pending: Mutex::default(),
            orphans: Mutex::default(),
            stale: Mutex::default(),
            writing: Mutex::default(),
        });
        for record in records {
            log!("dhcp: {}: taken over", describe(&record.owner));
            manager.keep(HeldLease::new(record), Origin::Restored)?;
        }
        Ok(manager)
    }

    /// Leases for an interface: those it has, and new ones for what it lacks. `is_over`: the client no longer waits.
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

    // === what they share ===

    fn find(&self, owner: &Owner, family: Family) -> Option<Arc<HeldLease>> {
        lock(&self.leases).get(&(owner.clone(), family)).cloned()
    }

    /// Gives one back, if there is a way to its server, and forgets it.
    fn end(&self, held: &HeldLease, place: Option<&Place>) -> Result<(), Error> {
        held.stop();
        let Record { owner, terms, .. } = held.record();
        if let Some(place) = place {
            self.give_back(&owner, &terms, place);
        }
        self.forget(held)
    }

    /// This one, and not the one that may have come in its place.
    fn forget(&self, held: &HeldLease) -> Result<(), Error> {
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
        let all: Vec<Arc<HeldLease>> = lock(&self.leases).values().cloned().collect();
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
            log!("dhcp: {}: {error}", describe(owner));
        }
    }
}

/// The names are a stranger's until here.
fn check(owner: &Owner) -> Result<(), Error> {
    let Owner { container, network, ifname } = owner;
    ContainerId::new(container)?;
    NetworkName::new(network)?;
    IfName::new(ifname).map(|_| ())
}

/// For the log.
fn describe(owner: &Owner) -> String {
    let Owner { container, network, ifname } = owner;
    format!("{container}/{network}/{ifname}")
}
