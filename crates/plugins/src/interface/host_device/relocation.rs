//! Moves a device into a container and back.
//!
//! Rules:
//! - Each move is one request, so the device is always in exactly one namespace.
//! - On the way back the device's name must be free on the host. If it is not, the device stays and the error
//!   says why.
//! - A process in the container can set names, aliases and addresses there. The record on the host decides
//!   which link is the device and which name and settings it gets back. No other link in the container is
//!   moved to the host: it would connect the container to the host under a name that the host trusts.
//! - Without a record, the configuration decides: the link has the alias that the configuration calls `device`, and it
//!   is hardware, or a parent or peer is on the host.
//! - When a device moves, the kernel removes queueing disciplines, filters, neighbours and addresses. XDP programs,
//!   offloads and further settings stay with it, so the host resets them while the device is down. Links that a process
//!   in the container created on the device are removed before the device is up.
//! - The device gets alias and state back last. Until then the alias is the device name, so the next DEL or GC
//!   completes an interrupted return.
//!
//! Source: ip-link(8) `netns`; kernel `net/core/dev.c` (`__dev_change_net_namespace`), `net/core/rtnetlink.c`
//! (`do_setlink`: first the namespace, then name, alias, and up), `drivers/net/macvlan.c`
//! (`macvlan_device_event`).

use std::cell::RefCell;
use std::fs::File;
use std::path::Path;

use cni::error::collected;
use cni::{Error, code};
use linux::link::snapshot::LinkSnapshot;
use linux::link::{Change, Link};
use linux::route::TABLE_MAIN;
use linux::sysctl::{self, Family};
use linux::{Kind, Netns, Rtnl, ethtool};
use plugin_support::failure::OrRefused;
use plugin_support::owner_tag::OwnerTag;

use super::record::{HostState, Record};
use super::store::{self, StoredRecord};

/// Link kinds that stay on a device when it moves to another namespace.
const STAYING_KINDS: [&str; 5] = ["macvlan", "macvtap", "ipvlan", "ipvtap", "vlan"];

/// Moves a device from the host into the container, where it is down.
pub(super) fn into_container(
    host: &mut Rtnl,
    link: &Link,
    container: &Netns,
    ifname: &str,
) -> Result<Link, Error> {
    // A device cannot have a name twice. The record has its alternative names, and DEL adds this one again.
    if link.alternative_names.iter().any(|name| name == ifname) {
        host.remove_alternative_names(link, &[ifname]).or_refused()?;
    }
    let change = Change { name: Some(ifname), alias: Some(&link.name), ..Change::default() };
    host.move_link(link.index, &link.name, container, &change).or_refused()?;
    container.rtnl().and_then(|mut inside| inside.link(ifname)).or_refused()
}

/// Moves an attachment's device back to the host, from the container or from where the kernel left it. Does nothing if
/// the device is in neither place.
///
/// `configured` is the device that the configuration names, for a device without a record.
pub(super) fn to_host(netns: Option<&Path>, tag: &OwnerTag, configured: Option<&str>) -> Result<(), Error> {
    let records = store::of_attachment(tag)?;
    let mut host = Rtnl::open().or_refused()?;
    let (mut errors, mut found, mut outside) = (Vec::new(), false, Vec::new());
    let container = netns.map(Netns::find).transpose().or_refused()?.flatten();
    let inside = container.as_ref().map(Inside::open).transpose()?;
    for StoredRecord { record, .. } in &records {
        let link = inside.as_ref().map(|inside| inside.find(record, &tag.ifname)).transpose()?.flatten();
        let (Some(inside), Some(link)) = (&inside, link) else {
            outside.push(record);
            continue;
        };
        match move_to_host(inside, &link, &mut host, record) {
            Ok(true) => found = true,
            Ok(false) => outside.push(record),
            Err(error) => errors.push(error),
        }
    }
    if let (Some(inside), Some(name), []) = (&inside, configured, records.as_slice())
        && let Some(link) = inside.without_record(name, &tag.ifname)?
    {
        errors.extend(move_to_host(inside, &link, &mut host, &Record::without_file(name, &link)).err());
    }
    if !outside.is_empty() {
        let links = host.links().or_refused()?;
        for record in outside {
            if let (Some(inside), Some(link)) = (&inside, links.iter().find(|link| record.is_outside(link))) {
                errors.extend(inside.remove_links_on(link.index).err());
            }
            match restore(&mut host, &links, record) {
                Ok(there) => found |= there,
                Err(error) => errors.push(error),
            }
        }
    }
    // A device that was not found may be in a namespace that no request names, or on its way back.
    let is_lost = |StoredRecord { record, .. }: &StoredRecord| record.is_lost(container.is_some());
    if errors.is_empty() && (found || records.iter().all(is_lost)) {
        errors.extend(store::forget(tag).err());
    }
    collected(errors)
}

/// Namespace that a container has.
struct Inside<'a> {
    netns: &'a Netns,
    net: RefCell<Rtnl>,
}

impl Inside<'_> {
    fn open(netns: &Netns) -> Result<Inside<'_>, Error> {
        let net = netns.rtnl().or_refused()?;
        Ok(Inside { netns, net: RefCell::new(net) })
    }

    /// Returns the device that a record is about. A killed ADD may not have recorded the new index.
    fn find(&self, record: &Record, ifname: &str) -> Result<Option<Link>, Error> {
        let mut net = self.net.borrow_mut();
        match net.link_at(record.index_inside()) {
            Ok(link) if record.is_inside(&link) => return Ok(Some(link)),
            Err(error) if error.kind() != Kind::Absent => return Err(error).or_refused(),
            _ => {}
        }
        // Hardware with another index.
        if record.has_permanent_address()
            && let Some(link) = net.links().or_refused()?.into_iter().find(|link| record.is_inside(link))
        {
            return Ok(Some(link));
        }
        let named = net.find_link(ifname).or_refused()?;
        // The kernel also finds alternative names.
        Ok(named.filter(|link| link.name == ifname && record.may_be(link)))
    }

    /// Removes the links in the container that were created on a device, which is on the host now, under the index `device`.
    /// They would give the container access to the host's network.
    fn remove_links_on(&self, device: u32) -> Result<(), Error> {
        let mut net = self.net.borrow_mut();
        let is_on = |link: &Link| STAYING_KINDS.contains(&link.kind.as_str()) && link.link == Some(device);
        let mut found = net.links().or_refused()?;
        found.retain(|link| is_on(link) && link.link_netns_id.is_some());
        if found.is_empty() {
            return Ok(());
        }
        let id_of_host = net.netns_id(&Netns::own().or_refused()?).or_refused()?;
        let on_device = found.iter().filter(|link| link.link_netns_id == id_of_host);
        let indexes: Vec<u32> = on_device.map(|link| link.index).collect();
        net.delete_links(&indexes).or_refused()
    }

    /// Returns the link `ifname` if it was the device `name` on the host: it has that alias, and a process in
    /// the container cannot have created it. Such a process can create a link with a peer in a third
    /// namespace, but none with a parent or peer on the host.
    fn without_record(&self, name: &str, ifname: &str) -> Result<Option<Link>, Error> {
        let named = self.net.borrow_mut().find_link(ifname).or_refused()?;
        let Some(link) = named.filter(|link| link.name == ifname && link.alias == name) else {
            return Ok(None);
        };
        if link.kind.is_empty() {
            return Ok((!link.loopback).then_some(link));
        }
        let host = Netns::own().or_refused()?;
        let id_of_host = self.net.borrow_mut().netns_id(&host).or_refused()?;
        Ok((id_of_host.is_some() && link.link_netns_id == id_of_host).then_some(link))
    }
}

/// Restores the device that a record is about if it is on the host, and returns whether it is.
pub(super) fn restore(host: &mut Rtnl, links: &[Link], record: &Record) -> Result<bool, Error> {
    match links.iter().find(|link| record.is_outside(link)) {
        Some(link) => reset(host, link, record).map(|()| true),
        None => Ok(false),
    }
}

/// Prepares a device to be moved: if it was away before, the name is restored and the old record removed.
///
/// # Errors
/// Code 11 if another ADD is moving the device: that ADD's record must stay.
pub(super) fn with_name_restored(host: &mut Rtnl, link: Link) -> Result<Link, Error> {
    let mut changed = false;
    for kept in store::all()? {
        if kept.is_leaving && kept.record.is_unmoved(&link) {
            let whose = format!("{}: another ADD is moving this interface: {}", link.name, kept.record.tag);
            return Err(Error::new(code::TRY_AGAIN_LATER, whose));
        }
        if restore(host, std::slice::from_ref(&link), &kept.record)? {
            kept.remove()?;
            changed = true;
        }
    }
    if changed { host.link_at(link.index).or_refused() } else { Ok(link) }
}

/// Returns the device that had this name on the host before it was moved, if it is back under another name.
pub(super) fn find_returned(host: &mut Rtnl, name: &str) -> Result<Option<Link>, Error> {
    let records = store::of_device(name)?;
    let is_away = |link: &Link| records.iter().any(|kept| kept.record.is_away(link));
    Ok(host.links().or_refused()?.into_iter().find(is_away))
}

/// Moves a link from the container to the host and restores the saved state. Returns false for a link that only looks
/// like the device; it stays in the container.
///
/// A virtual link's parent can be read only on the host, and a process in the container may replace the device before
/// the move. Until the link is verified it stays down, with the name as alias, as after a return by the kernel.
fn move_to_host(inside: &Inside<'_>, link: &Link, host: &mut Rtnl, record: &Record) -> Result<bool, Error> {
    let name = record.host_state.name.as_str();
    expect_free(host, name, &link.name)?;
    let own = Netns::own().or_refused()?;
    let mut net = inside.net.borrow_mut();
    // The kernel moves a link with its names, if none of them is in use.
    let (beyond, _) = record.alternative_names(link);
    net.remove_alternative_names(link, &beyond).or_refused()?;
    let change = Change { name: Some(name), alias: Some(name), up: Some(false), ..Change::default() };
    net.move_link(link.index, &link.name, &own, &change).or_refused()?;
    let there = host.link(name).or_refused()?;
    drop(net);
    if record.is_moved(&there) {
        inside.remove_links_on(there.index)?;
        return reset(host, &there, record).map(|()| true);
    }
    let back = Change { name: Some(&link.name), alias: Some(&link.alias), ..Change::default() };
    host.move_link(there.index, name, inside.netns, &back).or_refused().map(|()| false)
}

/// Restores a device on the host: name, settings, alias and state, in this order.
fn reset(host: &mut Rtnl, link: &Link, record: &Record) -> Result<(), Error> {
    let HostState { name, up, alias } = &record.host_state;
    let mac = record.mac();
    let (beyond, missing) = record.alternative_names(link);
    let further = record.device_settings(link);
    let resets = record.resets(link, &mac, &further);
    if link.name != *name {
        expect_free(host, name, &link.name)?;
    }
    if link.name != *name || !resets.is_empty() {
        // Kernels before 6.5 rename an interface only while it is down, and drivers refuse settings while it is up.
        let down = Change { name: Some(name), alias: Some(name), ..Change::default() };
        host.change_link(link.index, &link.name, &Change { up: Some(false), ..Change::default() })
            .or_refused()?;
        host.change_link(link.index, &link.name, &down).or_refused()?;
    }
    host.remove_alternative_names(link, &beyond).or_refused()?;
    let mut errors = Vec::new();
    for change in resets {
        errors.extend(host.change_link(link.index, name, &change).or_refused().err());
    }
    errors.extend(reset_offloads(name, record).err());
    if !errors.is_empty() {
        return collected(errors);
    }
    if record.lost_duplicate_detection(link)
        && let Ok(value) = sysctl::read_interface(Family::V6, "default", "accept_dad")
    {
        let _ = sysctl::write_interface(Family::V6, name, "accept_dad", &value);
    }
    // Another interface may have got one of the names meanwhile.
    for missing in missing {
        let _ = host.add_alternative_names(link, &[missing]);
    }
    host.change_link(link.index, name, &Change { alias: Some(alias), up: Some(*up), ..Change::default() })
        .or_refused()
}

/// Restores the offloads of a device on the host. A kernel that does not report them did not change them through
/// netlink.
fn reset_offloads(name: &str, record: &Record) -> Result<(), Error> {
    let Ok(now) = ethtool::wanted_features(name) else { return Ok(()) };
    let resets = record.offload_resets(&now);
    if resets.is_empty() { Ok(()) } else { ethtool::set_features(name, &resets).or_refused() }
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

/// State that a device has on the host, which a failed ADD restores.
pub(super) struct PendingMove {
    tag: OwnerTag,
    standing: LinkSnapshot,
    /// The record and the open file.
    kept: RefCell<(Record, File)>,
}

impl PendingMove {
    /// Reads the device's state and writes a record.
    pub(super) fn of(
        host: &mut Rtnl,
        link: &Link,
        tag: &OwnerTag,
        path: &Path,
        netns: &Netns,
    ) -> Result<PendingMove, Error> {
        let standing = LinkSnapshot::of(host, link, TABLE_MAIN).or_refused()?;
        let record = Record::of(link, tag, path, netns.identity().or_refused()?.inode());
        let record = match ethtool::wanted_features(&link.name) {
            Ok(wanted) => record.with_offloads(wanted),
            Err(_) => record,
        };
        let leaving = store::keep(&record)?;
        Ok(PendingMove { tag: tag.clone(), standing, kept: RefCell::new((record, leaving)) })
    }

    /// Records the device's index in the container, which is another one if that index was in use there.
    pub(super) fn moved(&self, inside: &Link) -> Result<(), Error> {
        let renumbered = self.kept.borrow().0.renumbered(inside);
        if let Some(record) = renumbered {
            let leaving = store::keep(&record)?;
            *self.kept.borrow_mut() = (record, leaving);
        }
        Ok(())
    }

    /// Returns the device to the host with addresses and routes. Errors are ignored: the caller returns the original
    /// error.
    pub(super) fn undo(&self, container: &Netns) {
        let PendingMove { tag, standing, kept } = self;
        let (record, _leaving) = &*kept.borrow();
        let Ok(mut host) = Rtnl::open() else { return };
        let Ok(inside) = Inside::open(container) else { return };
        if matches!(host.find_link(&record.host_state.name), Ok(None))
            && let Ok(Some(link)) = inside.find(record, &tag.ifname)
        {
            let _ = move_to_host(&inside, &link, &mut host, record);
        }
        if let Ok(link) = host.link(&record.host_state.name) {
            // One that the device lost before a move that failed.
            for missing in record.alternative_names(&link).1 {
                let _ = host.add_alternative_names(&link, &[missing]);
            }
            let _ = standing.restore(&mut host, &link, TABLE_MAIN);
            let _ = store::forget(tag);
        }
    }
}
