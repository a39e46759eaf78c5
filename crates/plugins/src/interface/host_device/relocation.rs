//! Moves of a device into a container and back.
//!
//! Rules:
//! - Each move is one request, so the device is always in exactly one namespace.
//! - On the way back the device's name must be free on the host. If it is not, the device stays and the error says why.
//! - A process in the container can set names and aliases there. So an interface that was created in the container is
//!   never moved to the host. It would connect the container to the host under a name that the host trusts.
//!
//! Source: ip-link(8) `netns`; kernel `net/core/dev.c` (`__dev_change_net_namespace`), `net/core/rtnetlink.c`
//! (`do_setlink`: first the namespace, then name, alias, and up).

use std::fs::File;
use std::path::Path;

use cni::error::collected;
use cni::{Error, code};
use linux::link::snapshot::LinkSnapshot;
use linux::link::{Change, Link};
use linux::route::TABLE_MAIN;
use linux::{Netns, Rtnl};
use plugin_support::failure::OrRefused;
use plugin_support::owner_tag::OwnerTag;

use super::record::{HostState, Record};
use super::store::{self, StoredRecord};

/// Moves a device of the host into the container, where it is down.
pub(super) fn into_container(
    host: &mut Rtnl,
    link: &Link,
    container: &Netns,
    ifname: &str,
) -> Result<Link, Error> {
    let change = Change { name: Some(ifname), alias: Some(&link.name), ..Change::default() };
    host.move_link(link.index, &link.name, container, &change).or_refused()?;
    container.rtnl().and_then(|mut inside| inside.link(ifname)).or_refused()
}

/// Moves the device of an attachment back to its place on the host, from the container or from where the kernel left
/// it. Does nothing if the device is in neither place.
pub(super) fn to_host(netns: Option<&Path>, tag: &OwnerTag) -> Result<(), Error> {
    let records = store::of_attachment(tag)?;
    let mut host = Rtnl::open().or_refused()?;
    let (mut errors, mut found) = (Vec::new(), false);
    let container = netns.map(Netns::find).transpose().or_refused()?.flatten();
    if let Some(netns) = &container {
        let mut inside = netns.rtnl().or_refused()?;
        for link in inside.links().or_refused()? {
            if let Some((host_state, record)) = state_on_host(&link, tag, &records) {
                match move_to_host(&mut inside, netns, &link, &mut host, &host_state, record) {
                    Ok(ours) => found |= ours,
                    Err(error) => errors.push(error),
                }
            }
        }
    }
    let links = host.links().or_refused()?;
    for StoredRecord { record, .. } in &records {
        match restore_name(&mut host, &links, record) {
            Ok(there) => found |= there,
            Err(error) => errors.push(error),
        }
    }
    // A device that was not found may be in a namespace that no request names, or on its way back.
    let is_lost = |StoredRecord { record, .. }: &StoredRecord| record.is_lost(container.is_some());
    if errors.is_empty() && (found || records.iter().all(is_lost)) {
        errors.extend(store::forget(tag).err());
    }
    collected(errors)
}

/// Returns the state that a device in the container had on the host, and its record. None if the device was not on the
/// host, or was not moved for this attachment.
fn state_on_host<'a>(
    link: &Link,
    tag: &OwnerTag,
    records: &'a [StoredRecord],
) -> Option<(HostState, Option<&'a Record>)> {
    let named = link.name == tag.ifname;
    let is_of = |record: &Record| {
        record.is_away(link) || record.is_unchanged(link) || named && record.is_renamed(link)
    };
    if let Some(StoredRecord { record, .. }) = records.iter().find(|kept| is_of(&kept.record)) {
        return Some((record.host_state.clone(), Some(record)));
    }
    let host_state = HostState::of_alias(&link.alias).filter(|_| named);
    host_state.filter(|_| !may_be_made_inside(link)).map(|host_state| (host_state, None))
}

/// Whether a process in the container can have created the link. It cannot create hardware, or a link whose peer is in
/// another namespace. A dummy is connected to nothing.
fn may_be_made_inside(link: &Link) -> bool {
    !link.kind.is_empty() && link.kind != "dummy" && link.link_netns_id.is_none()
}

/// Renames the device of a record if the kernel returned it to the host; true if the device is on the host now.
///
/// A device that another process already renamed keeps its state.
pub(super) fn restore_name(host: &mut Rtnl, links: &[Link], record: &Record) -> Result<bool, Error> {
    match links.iter().find(|link| record.is_away(link) && record.has_recorded_peer(link)) {
        Some(link) => rename(host, link, &record.host_state).map(|()| true),
        None => Ok(links.iter().any(|link| record.is_on_host(link))),
    }
}

/// Prepares a device to be moved: if it was away before, it gets its name back and its record is removed.
///
/// # Errors
/// Code 11 if another ADD is moving the device: the record of that ADD must stay.
pub(super) fn with_name_restored(host: &mut Rtnl, link: Link) -> Result<Link, Error> {
    let mut changed = false;
    for kept in store::of_devices(&[&link.name, &link.alias])? {
        if kept.is_leaving && kept.record.is_on_host(&link) {
            let whose = format!("{}: another ADD is moving this interface: {}", link.name, kept.record.tag);
            return Err(Error::new(code::TRY_AGAIN_LATER, whose));
        }
        if restore_name(host, std::slice::from_ref(&link), &kept.record)? {
            kept.remove()?;
            changed = true;
        }
    }
    if changed { host.link_at(link.index).or_refused() } else { Ok(link) }
}

/// Returns the device that had this name on the host before it was moved, if it is back under another name.
pub(super) fn find_returned(host: &mut Rtnl, name: &str) -> Result<Option<Link>, Error> {
    let records = store::of_devices(&[name])?;
    let is_away = |link: &Link| records.iter().any(|kept| kept.record.is_away(link));
    Ok(host.links().or_refused()?.into_iter().find(is_away))
}

/// Moves a link from the container to the host and restores its state. Returns false for a link that only looks like
/// the device; it stays in the container.
///
/// The parent of a virtual link can be read only on the host. Until it is verified the link is down, and its alias is
/// its name, as after a return by the kernel.
fn move_to_host(
    inside: &mut Rtnl,
    container: &Netns,
    link: &Link,
    host: &mut Rtnl,
    host_state: &HostState,
    record: Option<&Record>,
) -> Result<bool, Error> {
    expect_free(host, &host_state.name, &link.name)?;
    let HostState { name, up, alias } = host_state;
    let own = Netns::own().or_refused()?;
    let Some(record) = record.filter(|_| !link.kind.is_empty()) else {
        let change = Change { name: Some(name), alias: Some(alias), up: Some(*up), ..Change::default() };
        return inside.move_link(link.index, &link.name, &own, &change).or_refused().map(|()| true);
    };
    let change = Change { name: Some(name), alias: Some(name), up: Some(false), ..Change::default() };
    inside.move_link(link.index, &link.name, &own, &change).or_refused()?;
    let there = host.link(name).or_refused()?;
    if record.has_recorded_peer(&there) {
        return rename(host, &there, host_state).map(|()| true);
    }
    let back = Change { name: Some(&link.name), alias: Some(&link.alias), ..Change::default() };
    host.move_link(there.index, name, container, &back).or_refused().map(|()| false)
}

/// Restores the state of a device that the kernel returned to the host.
fn rename(host: &mut Rtnl, link: &Link, host_state: &HostState) -> Result<(), Error> {
    let HostState { name, up, alias } = host_state;
    let mut change = Change { alias: Some(alias), up: Some(*up), ..Change::default() };
    if link.name != *name {
        expect_free(host, name, &link.name)?;
        change.name = Some(name);
        // Kernels before 6.5 rename an interface only while it is down.
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
            format!(
                "rename {now} to {name}: another interface of the host has this name; rename that interface first"
            ),
        )),
    }
}

/// State of a device on the host, which a failed ADD restores.
pub(super) struct PendingMove {
    tag: OwnerTag,
    record: Record,
    standing: LinkSnapshot,
    _leaving: File,
}

impl PendingMove {
    /// Reads the state of the device and writes its record.
    pub(super) fn of(
        host: &mut Rtnl,
        link: &Link,
        tag: &OwnerTag,
        path: &Path,
        netns: &Netns,
    ) -> Result<PendingMove, Error> {
        let standing = LinkSnapshot::of(host, link, TABLE_MAIN).or_refused()?;
        let record = Record::of(link, tag, path, netns.identity().or_refused()?.inode());
        let leaving = store::keep(&record)?;
        Ok(PendingMove { tag: tag.clone(), record, standing, _leaving: leaving })
    }

    /// Returns the device with its addresses and routes. Errors are ignored: the caller returns the original error.
    pub(super) fn undo(&self, container: &Netns) {
        let PendingMove { tag, record, standing, _leaving } = self;
        let Ok(mut host) = Rtnl::open() else { return };
        let Ok(mut inside) = container.rtnl() else { return };
        if matches!(host.find_link(&record.host_state.name), Ok(None)) {
            // The device is unchanged if the kernel refused its new name.
            let moved = |link: &Link| record.is_away(link) || record.is_unchanged(link);
            if let Some(link) = inside.links().unwrap_or_default().into_iter().find(moved) {
                let _ = move_to_host(&mut inside, container, &link, &mut host, &record.host_state, None);
            }
        }
        if let Ok(link) = host.link(&record.host_state.name) {
            let _ = standing.restore(&mut host, &link, TABLE_MAIN);
            let _ = store::forget(tag);
        }
    }
}
