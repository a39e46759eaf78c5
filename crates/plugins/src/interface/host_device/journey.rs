//! A device on its way into a container and back.
//!
//! Rules:
//! - each way is one request: there is no moment at which it is neither here nor there;
//! - on the way back its name must be free on the host, else it stays where it is, and the error says why;
//! - names and aliases in a container are written by whoever is in it: what was made there does not come to the host, where
//!   it would be a wire to the container under a name that the host trusts.
//!
//! Source: ip-link(8) `netns`; kernel `net/core/dev.c` (`__dev_change_net_namespace`), `net/core/rtnetlink.c`
//! (`do_setlink`: first the namespace, then name, alias, and up).

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use cni::error::collected;
use cni::{Error, code};
use linux::link::snapshot::LinkSnapshot;
use linux::link::{Change, Link};
use linux::route::TABLE_MAIN;
use linux::{Netns, Rtnl};
use plugin_support::failure::OrRefused;
use plugin_support::owner_tag::OwnerTag;

use super::record::{Record, Was};
use super::store::{self, Kept};

/// Moves a device of the host into the container, where it is down.
pub(super) fn there(host: &mut Rtnl, link: &Link, container: &Netns, ifname: &str) -> Result<Link, Error> {
    let change = Change { name: Some(ifname), alias: Some(&link.name), ..Change::default() };
    host.move_link(link.index, &link.name, container, &change).or_refused()?;
    container.rtnl().and_then(|mut inside| inside.link(ifname)).or_refused()
}

/// Brings the device of an attachment back, from the container or from where the kernel left it; if it is in
/// neither place, there is nothing to do.
pub(super) fn back(netns: Option<&Path>, mark: &OwnerTag) -> Result<(), Error> {
    let records = store::of_attachment(mark)?;
    let mut host = Rtnl::open().or_refused()?;
    let (mut errors, mut found) = (Vec::new(), false);
    let container = netns.map(Netns::find).transpose().or_refused()?.flatten();
    if let Some(netns) = &container {
        let mut inside = netns.rtnl().or_refused()?;
        for link in inside.links().or_refused()? {
            if let Some((was, record)) = what_it_was(&link, mark, &records) {
                match home(&mut inside, netns, &link, &mut host, &was, record) {
                    Ok(ours) => found |= ours,
                    Err(error) => errors.push(error),
                }
            }
        }
    }
    let links = host.links().or_refused()?;
    for Kept { record, .. } in &records {
        match settle(&mut host, &links, record) {
            Ok(there) => found |= there,
            Err(error) => errors.push(error),
        }
    }
    // What was not found may be in a namespace that nobody named, or with the kernel.
    let is_lost = |Kept { record, .. }: &Kept| record.is_lost(container.is_some());
    if errors.is_empty() && (found || records.iter().all(is_lost)) {
        errors.extend(store::forget(mark).err());
    }
    collected(errors)
}

/// What a device in the container was on the host, if it was there, and came for this attachment; and its record.
fn what_it_was<'a>(link: &Link, mark: &OwnerTag, records: &'a [Kept]) -> Option<(Was, Option<&'a Record>)> {
    let named = link.name == mark.ifname;
    let is_of = |record: &Record| {
        record.is_away(link) || record.is_as_it_was(link) || named && record.is_renamed(link)
    };
    if let Some(Kept { record, .. }) = records.iter().find(|kept| is_of(&kept.record)) {
        return Some((record.was.clone(), Some(record)));
    }
    let was = Was::of_alias(&link.alias).filter(|_| named);
    was.filter(|_| !may_be_made_inside(link)).map(|was| (was, None))
}

/// May somebody in the container have made it? Nobody there makes hardware, nor what has its other end elsewhere; a dummy leads
/// nowhere.
fn may_be_made_inside(link: &Link) -> bool {
    !link.kind.is_empty() && link.kind != "dummy" && link.link_netns_id.is_none()
}

/// Gives the device of a record, if the kernel returned it to the host, its name back; true if it is on the host now.
///
/// Whom somebody else brought home is there already; what became of it since is not ours to change.
pub(super) fn settle(host: &mut Rtnl, links: &[Link], record: &Record) -> Result<bool, Error> {
    match links.iter().find(|link| record.is_away(link) && record.leads_where_it_led(link)) {
        Some(link) => rename(host, link, &record.was).map(|()| true),
        None => Ok(links.iter().any(|link| record.is_home(link))),
    }
}

/// A device that is to be moved: if it was away before, it gets its name back first, and its record goes.
///
/// # Errors
/// Code 11 if another ADD is about to move it: that one's record must stay.
pub(super) fn settled(host: &mut Rtnl, link: Link) -> Result<Link, Error> {
    let mut changed = false;
    for kept in store::of_devices(&[&link.name, &link.alias])? {
        if kept.is_leaving && kept.record.is_home(&link) {
            let whose = format!("{}: another ADD is moving it: {}", link.name, kept.record.mark);
            return Err(Error::new(code::TRY_AGAIN_LATER, whose));
        }
        if settle(host, std::slice::from_ref(&link), &kept.record)? {
            kept.remove()?;
            changed = true;
        }
    }
    if changed { host.link_at(link.index).or_refused() } else { Ok(link) }
}

/// The device that had this name on the host before it was moved, if it is back and has another one.
pub(super) fn find_returned(host: &mut Rtnl, name: &str) -> Result<Option<Link>, Error> {
    let records = store::of_devices(&[name])?;
    let was = |link: &Link| records.iter().any(|kept| kept.record.is_away(link));
    Ok(host.links().or_refused()?.into_iter().find(was))
}

/// From the container to the host, as it was; false of what has the looks of the device and is another one: it stays.
///
/// Only from the host can be seen what a virtual link leads to: until then it is there as the kernel returns hardware, with
/// the alias of what is away, and down.
fn home(
    inside: &mut Rtnl,
    container: &Netns,
    link: &Link,
    host: &mut Rtnl,
    was: &Was,
    record: Option<&Record>,
) -> Result<bool, Error> {
    expect_free(host, &was.name, &link.name)?;
    let Was { name, up, alias } = was;
    let own = Netns::own().or_refused()?;
    let Some(record) = record.filter(|_| !link.kind.is_empty()) else {
        let change = Change { name: Some(name), alias: Some(alias), up: Some(*up), ..Change::default() };
        return inside.move_link(link.index, &link.name, &own, &change).or_refused().map(|()| true);
    };
    let change = Change { name: Some(name), alias: Some(name), up: Some(false), ..Change::default() };
    inside.move_link(link.index, &link.name, &own, &change).or_refused()?;
    let there = host.link(name).or_refused()?;
    if record.leads_where_it_led(&there) {
        return rename(host, &there, was).map(|()| true);
    }
    let back = Change { name: Some(&link.name), alias: Some(&link.alias), ..Change::default() };
    host.move_link(there.index, name, container, &back).or_refused().map(|()| false)
}

/// On the host: from how the kernel returned it to how it was.
fn rename(host: &mut Rtnl, link: &Link, was: &Was) -> Result<(), Error> {
    let Was { name, up, alias } = was;
    let mut change = Change { alias: Some(alias), up: Some(*up), ..Change::default() };
    if link.name != *name {
        expect_free(host, name, &link.name)?;
        change.name = Some(name);
        // Kernels before 6.5 rename only what is down.
        host.change_link(link.index, &link.name, &Change { up: Some(false), ..Change::default() })
            .or_refused()?;
    }
    host.change_link(link.index, &link.name, &change).or_refused()
}

fn expect_free(host: &mut Rtnl, name: &str, now: &str) -> Result<(), Error> {
    match host.find_link(name).or_refused()? {
        None => Ok(()),
        Some(_) => Err(Error::new(
            code::TRY_AGAIN_LATER,
            format!("give {now} back its name {name}: another interface of the host has it; rename that one"),
        )),
    }
}

/// A device as it is on the host, for the way back from an ADD that fails.
pub(super) struct Departure {
    mark: OwnerTag,
    record: Record,
    standing: LinkSnapshot,
    _leaving: File,
}

impl Departure {
    /// Looks at it before it goes, and writes down what it is.
    pub(super) fn of(
        host: &mut Rtnl,
        link: &Link,
        mark: &OwnerTag,
        path: &Path,
        netns: &Netns,
    ) -> Result<Departure, Error> {
        let standing = LinkSnapshot::of(host, link, TABLE_MAIN).or_refused()?;
        let record = Record::of(link, mark, path, netns.identity().or_refused()?.inode());
        let leaving = store::keep(&record)?;
        Ok(Departure { mark: mark.clone(), record, standing, _leaving: leaving })
    }

    /// It comes back as it was, with its addresses and routes. The error that matters is another one.
    pub(super) fn undo(&self, container: &Netns) {
        let Departure { mark, record, standing, _leaving } = self;
        let Ok(mut host) = Rtnl::open() else { return };
        let Ok(mut inside) = container.rtnl() else { return };
        if matches!(host.find_link(&record.was.name), Ok(None)) {
            // As it was it is if its new name was refused.
            let moved = |link: &Link| record.is_away(link) || record.is_as_it_was(link);
            if let Some(link) = inside.links().unwrap_or_default().into_iter().find(moved) {
                let _ = home(&mut inside, container, &link, &mut host, &record.was, None);
            }
        }
        if let Ok(link) = host.link(&record.was.name) {
            let _ = standing.restore(&mut host, &link, TABLE_MAIN, Duration::ZERO);
            let _ = store::forget(mark);
        }
    }
}
