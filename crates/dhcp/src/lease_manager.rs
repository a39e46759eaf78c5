//! Manages all leases on a node: acquires them for containers, extends them in time, and releases them.
//!
//! - Each lease has a thread, which sleeps until something is due. It opens the container's namespace only when it
//!   needs to, because an open namespace would stay alive after the container is deleted.
//! - An attachment gets leases for all requested families, or none.
//! - When a lease is refused or expires, the container must not use the address any longer: for IPv4 the link is set
//!   down, for IPv6 the address is removed.
//! - A lease is on disk before the client gets it.
//!
//! Source: RFC 2131 §4.4.5, RFC 8415 §18.2; Go plugin `plugins/ipam/dhcp/{daemon,lease}.go`.

mod acquisition;
mod extension;
mod gc;
mod held_lease;
mod lease_link;
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

use self::acquisition::AcquireRequest;
use self::extension::Origin;
use self::held_lease::{HeldLease, lock};
use self::lease_link::{LeaseLink, identity, inode, set_up};
use self::takeover::Takeover;
use crate::owner::{Family, Owner};
use crate::state::{self, Record};
use crate::terms::{self, Terms};
use crate::v4::exchange::Timing;
use crate::v4::options::Options;
use crate::v6::V6Request;
use crate::v6::identity::Identity as Identity6;

/// Stack size for a lease thread, in bytes. It is small, because a node may have thousands of leases.
const STACK: usize = 256 * 1024;

/// Daemon settings, from the flags.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Timeouts for exchanges with servers.
    pub timing: Timing,
    /// Whether servers should broadcast answers.
    pub broadcast: bool,
    /// Prefix for the paths that runtimes pass.
    pub host_prefix: String,
    /// Lease file.
    pub state: PathBuf,
}

/// Leases that an attachment needs.
#[derive(Debug)]
pub struct LeaseRequest {
    /// Address families, in the order in which leases are acquired.
    pub families: Vec<Family>,
    /// DHCPv4 options to send and to require.
    pub options: Options,
    /// Route metric.
    pub priority: Option<u32>,
    /// DHCPv6 settings.
    pub v6_request: V6Request,
}

/// Manager for all leases on the node.
#[derive(Debug)]
pub struct LeaseManager {
    settings: Settings,
    leases: Mutex<BTreeMap<(Owner, Family), Arc<HeldLease>>>,
    /// Attachments whose leases are being acquired. The value is set if a release is requested meanwhile.
    pending: Mutex<BTreeMap<Owner, Arc<AtomicBool>>>,
    /// Leases that are being taken over from the Go plugin's daemon, or could not be.
    orphans: Mutex<BTreeMap<Owner, Arc<Takeover>>>,
    /// Owners whose leases GC still has to release.
    stale: Mutex<BTreeSet<Owner>>,
    /// Lock for writing the lease file; true if the last write failed.
    writing: Mutex<bool>,
}

// === impl LeaseManager ===

impl LeaseManager {
    /// Starts with the leases that the previous daemon left on disk.
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
            manager.manage(HeldLease::new(record), Origin::Restored)?;
        }
        Ok(manager)
    }

    /// Returns an interface's leases, and acquires those that are missing. `is_over` tells that the client no longer
    /// waits.
    pub fn allocate(
        self: &Arc<Self>,
        owner: &Owner,
        netns: &Path,
        lease_request: &LeaseRequest,
        is_over: &dyn Fn() -> bool,
    ) -> Result<Success, Error> {
        check(owner)?;
        let lease_link = self.lease_link(netns, &owner.ifname)?;
        let inode = inode(&lease_link.netns)?;
        self.cancel_takeover(owner);
        lock(&self.stale).remove(owner);
        let (mut results, mut lacking) = (BTreeMap::new(), Vec::new());
        for family in &lease_request.families {
            if let Some(held) = self.find(owner, *family) {
                let record = held.record();
                // A stopped lease is being released, so it cannot be reused.
                if record.inode == inode && record.lost.is_none() && !held.is_stopped() {
                    results.insert(*family, record.terms.result());
                    continue;
                }
                self.forget(&held)?;
            }
            lacking.push(*family);
        }
        if lacking.is_empty() {
            return Ok(terms::merge_results(results.into_values()));
        }
        let is_canceled = match lock(&self.pending).entry(owner.clone()) {
            Entry::Vacant(free) => Arc::clone(free.insert(Arc::default())),
            Entry::Occupied(_) => {
                return Err(Error::new(code::TRY_AGAIN_LATER, "this lease is already being acquired"));
            }
        };
        let over = || is_over() || is_canceled.load(Ordering::Relaxed);
        let mut acquired_leases = Vec::new();
        let request = AcquireRequest { owner, netns, inode, lease_link: &lease_link, lease_request };
        let acquired = self.acquire_all(&request, &lacking, &over, &mut acquired_leases);
        lock(&self.pending).remove(owner);
        if let Err(error) = acquired {
            // A stopped lease has already been released by a DEL.
            for held in acquired_leases.iter().filter(|held| !held.is_stopped()) {
                let _ = self.end(held, Some(&lease_link));
            }
            if !lease_link.link.up {
                // Best effort: the caller gets the original error.
                let _ = set_up(&lease_link.netns, &lease_link.link, false);
            }
            return Err(error);
        }
        let all = acquired_leases.iter().map(|held| held.record().terms);
        results.extend(all.map(|terms| (terms.family(), terms.result())));
        Ok(terms::merge_results(results.into_values()))
    }

    /// Returns an owner's leases; fails unless there is one for each of these families.
    pub fn inspect(&self, owner: &Owner, families: &[Family]) -> Result<Success, Error> {
        let one = |family: &Family| match self.find(owner, *family).map(|held| held.record()) {
            None => Err(self.no_lease(owner)),
            Some(Record { lost: Some(why), .. }) => {
                Err(Error::internal(format!("{} has lost its lease: {why}", owner.ifname)))
            }
            Some(record) => Ok(record.terms.result()),
        };
        Ok(terms::merge_results(families.iter().map(one).collect::<Result<Vec<_>, Error>>()?))
    }

    /// Releases an owner's leases; succeeds if there are none.
    pub fn release(&self, owner: &Owner) -> Result<(), Error> {
        if let Some(is_canceled) = lock(&self.pending).get(owner) {
            is_canceled.store(true, Ordering::Relaxed);
        }
        self.cancel_takeover(owner);
        lock(&self.stale).remove(owner);
        let all = [Family::Ipv4, Family::Ipv6].map(|family| self.find(owner, family));
        let mut errors = Vec::new();
        for held in all.iter().flatten() {
            let record = held.record();
            held.stop();
            let lease_link = self.find_lease_link(&record.netns, &owner.ifname, Some(record.inode));
            errors.extend(self.end(held, lease_link.ok().flatten().as_ref()).err());
        }
        // If the lease were still in the file, the next daemon would take it over.
        if errors.is_empty() && *lock(&self.writing) {
            errors.extend(self.save().err());
        }
        cni::error::collected(errors)
    }

    // === shared functions ===

    fn find(&self, owner: &Owner, family: Family) -> Option<Arc<HeldLease>> {
        lock(&self.leases).get(&(owner.clone(), family)).cloned()
    }

    /// Releases a lease, if the server can be reached, and forgets it.
    fn end(&self, held: &HeldLease, lease_link: Option<&LeaseLink>) -> Result<(), Error> {
        held.stop();
        let Record { owner, terms, .. } = held.record();
        if let Some(lease_link) = lease_link {
            self.release_at_server(&owner, &terms, lease_link);
        }
        self.forget(held)
    }

    /// Forgets exactly this lease, but not a newer one for the same owner.
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

    /// Releases a lease at the server. Best effort: if the message is lost, the server keeps the lease until it
    /// expires.
    fn release_at_server(&self, owner: &Owner, terms: &Terms, lease_link: &LeaseLink) {
        let given = match terms {
            Terms::V4 { options, priority: _, lease } => {
                self.client(lease_link, &identity(owner), options).and_then(|client| client.release(lease))
            }
            Terms::V6 { v6_request, lease } => self
                .client_v6(lease_link, &Identity6::of(owner, &v6_request.options), v6_request)
                .release(lease),
        };
        if let Err(error) = given {
            log!("dhcp: {}: {error}", describe(owner));
        }
    }
}

/// Validates the names, because they come from the client.
fn check(owner: &Owner) -> Result<(), Error> {
    let Owner { container, network, ifname } = owner;
    ContainerId::new(container)?;
    NetworkName::new(network)?;
    IfName::new(ifname).map(|_| ())
}

/// Formats the owner for the log.
fn describe(owner: &Owner) -> String {
    let Owner { container, network, ifname } = owner;
    format!("{container}/{network}/{ifname}")
}
