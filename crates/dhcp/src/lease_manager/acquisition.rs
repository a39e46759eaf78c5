//! New leases for one attachment: all the families that it requests, or none.

use std::path::Path;
use std::sync::Arc;

use cni::{Error, code};
use plugin_support::log;

use super::extension::Origin;
use super::held_lease::{HeldLease, lock};
use super::place::{Place, identity, set_up};
use super::{LeaseManager, Wanted, describe};
use crate::owner::{Family, Owner};
use crate::state::{self, Record};
use crate::terms::Terms;
use crate::v6;
use crate::v6::identity::Identity as Identity6;

/// An attachment that lacks leases.
pub(super) struct Asker<'a> {
    pub(super) owner: &'a Owner,
    /// The path of its namespace, and the namespace itself.
    pub(super) netns: &'a Path,
    pub(super) inode: u64,
    pub(super) place: &'a Place,
    pub(super) wanted: &'a Wanted,
}

impl LeaseManager {
    /// All of them, each kept as soon as it is had: a daemon that is killed meanwhile leaves none that nobody knows of.
    pub(super) fn acquire_all(
        self: &Arc<Self>,
        asker: &Asker<'_>,
        lacking: &[Family],
        is_over: &dyn Fn() -> bool,
        had: &mut Vec<Arc<HeldLease>>,
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
            let terms = self.acquire(owner, place, wanted, *family, is_over)?;
            let said = format!("{}: {terms}", describe(owner));
            let (owner, netns, granted) = (owner.clone(), path.to_owned(), state::now());
            let held = HeldLease::new(Record { owner, netns, inode, granted, lost: None, terms });
            had.push(Arc::clone(&held));
            // The lock is held until it is a lease: a DEL finds it as one or the other.
            let pending = lock(&self.pending);
            expect_somebody(is_over)?;
            self.keep(held, Origin::Acquired)?;
            drop(pending);
            // Nobody would know of what is not written down once this daemon has ended: it is not given.
            self.save()?;
            log!("dhcp: {said}");
        }
        if wants_v6 && wanted.wish.prefix_length == v6::PREFIX_LENGTH {
            match v6::link::await_router(netns, link, is_over) {
                Ok(true) => {}
                Ok(false) => {
                    log!("dhcp: {}: no router says what its IPv6 address reaches", describe(owner));
                }
                Err(error) => log!("dhcp: {}: {error}", describe(owner)),
            }
            expect_somebody(is_over)?;
        }
        Ok(())
    }

    fn acquire(
        &self,
        owner: &Owner,
        place: &Place,
        wanted: &Wanted,
        family: Family,
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
}

fn expect_somebody(is_over: &dyn Fn() -> bool) -> Result<(), Error> {
    match is_over() {
        true => Err(Error::new(code::TRY_AGAIN_LATER, "nobody waited for the lease any more")),
        false => Ok(()),
    }
}
