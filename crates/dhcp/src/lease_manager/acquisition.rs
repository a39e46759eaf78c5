//! Acquires leases for one attachment: for all the families that it requests, or none.

use std::path::Path;
use std::sync::Arc;

use cni::{Error, code};
use plugin_support::log;

use super::extension::Origin;
use super::held_lease::{HeldLease, lock};
use super::lease_link::{LeaseLink, identity, set_up, settle_carrier};
use super::{LeaseManager, LeaseRequest, describe};
use crate::owner::{Family, Owner};
use crate::state::{self, Record};
use crate::terms::Terms;
use crate::v6;
use crate::v6::identity::Identity as Identity6;

/// Attachment that lacks leases.
pub(super) struct AcquireRequest<'a> {
    pub(super) owner: &'a Owner,
    /// Namespace path; `inode` tells whether it is still the same namespace.
    pub(super) netns: &'a Path,
    pub(super) inode: u64,
    pub(super) lease_link: &'a LeaseLink,
    pub(super) lease_request: &'a LeaseRequest,
}

impl LeaseManager {
    /// Acquires all leases. Each one is saved at once, so that a killed daemon leaves no lease without a record.
    pub(super) fn acquire_all(
        self: &Arc<Self>,
        request: &AcquireRequest<'_>,
        lacking: &[Family],
        is_over: &dyn Fn() -> bool,
        acquired_leases: &mut Vec<Arc<HeldLease>>,
    ) -> Result<(), Error> {
        let AcquireRequest { owner, netns: path, inode, lease_link, lease_request } = *request;
        let LeaseLink { netns, link } = lease_link;
        let wants_v6 = lacking.contains(&Family::Ipv6);
        if wants_v6 {
            v6::link::prepare(netns, link, &lease_request.v6_request)?;
        }
        if !link.up {
            set_up(netns, link, true)?;
            settle_carrier(netns, link);
        }
        for family in lacking {
            let terms = self.acquire(owner, lease_link, lease_request, *family, is_over)?;
            let said = format!("{}: {terms}", describe(owner));
            let (owner, netns, granted) = (owner.clone(), path.to_owned(), state::now());
            let held = HeldLease::new(Record { owner, netns, inode, granted, lost: None, terms });
            acquired_leases.push(Arc::clone(&held));
            // The lock is held until the lease is managed, so that a concurrent DEL finds the owner in one of the two
            // places.
            let pending = lock(&self.pending);
            expect_waiting_client(is_over)?;
            self.manage(held, Origin::Acquired)?;
            drop(pending);
            // A lease that is not on disk would be lost with this daemon, so the client must not get it.
            self.save()?;
            log!("dhcp: {said}");
        }
        if wants_v6 && lease_request.v6_request.prefix_length == v6::PREFIX_LENGTH {
            match v6::link::await_router(netns, link, is_over) {
                Ok(true) => {}
                Ok(false) => {
                    log!("dhcp: {}: no router advertises a route for its IPv6 address", describe(owner));
                }
                Err(error) => log!("dhcp: {}: {error}", describe(owner)),
            }
            expect_waiting_client(is_over)?;
        }
        Ok(())
    }

    fn acquire(
        &self,
        owner: &Owner,
        lease_link: &LeaseLink,
        lease_request: &LeaseRequest,
        family: Family,
        is_over: &dyn Fn() -> bool,
    ) -> Result<Terms, Error> {
        let LeaseRequest { families: _, options, priority, v6_request } = lease_request;
        match family {
            Family::Ipv4 => {
                let lease = self.client(lease_link, &identity(owner), options)?.acquire(is_over)?;
                Ok(Terms::V4 { options: options.clone(), priority: *priority, lease })
            }
            Family::Ipv6 => {
                let identity = Identity6::of(owner, &v6_request.options);
                let lease = self.client_v6(lease_link, &identity, v6_request).acquire(is_over)?;
                Ok(Terms::V6 { v6_request: v6_request.clone(), lease })
            }
        }
    }
}

fn expect_waiting_client(is_over: &dyn Fn() -> bool) -> Result<(), Error> {
    match is_over() {
        true => Err(Error::new(code::TRY_AGAIN_LATER, "the client no longer waits for the lease")),
        false => Ok(()),
    }
}
