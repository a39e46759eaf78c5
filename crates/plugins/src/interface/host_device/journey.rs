//! A device on its way into a container and back.
//!
//! Rules:
//! - each way is one request: there is no moment at which it is neither here nor there, or without its record;
//! - on the way back its name must be free on the host, else it stays where it is, and the error says why.
//!
//! Source: ip-link(8) `netns`; kernel `net/core/dev.c` (`__dev_change_net_namespace`), `net/core/rtnetlink.c`
//! (`do_setlink`: first the namespace, then name, alias, and up).

use std::path::Path;
use std::time::Duration;

use cni::{Error, code};
use linux::link::standing::Standing;
use linux::link::{Change, Link};
use linux::route::TABLE_MAIN;
use linux::{Netns, Rtnl};

use super::record::Record;
use crate::failure::OrRefused;
use crate::fingerprint::Mark;
use crate::interface::collected;

/// Moves a device of the host into the container, where it is down.
pub(super) fn there(
    host: &mut Rtnl,
    link: &Link,
    container: &Netns,
    ifname: &str,
    mark: &Mark,
) -> Result<Link, Error> {
    let alias = Record::of(link, mark).text();
    let change = Change { name: Some(ifname), alias: Some(&alias), ..Change::default() };
    host.move_link(link.index, &link.name, container, &change).or_refused()?;
    container.rtnl().and_then(|mut inside| inside.link(ifname)).or_refused()
}

/// Brings the device of an attachment back, from the container or from where the kernel left it; if it is in
/// neither place, there is nothing to do.
pub(super) fn back(netns: Option<&Path>, ifname: &str, mark: &Mark) -> Result<(), Error> {
    let mark = Record::mark_text(mark);
    let mut host = Rtnl::open().or_refused()?;
    let mut errors = Vec::new();
    if let Some(netns) = netns.map(Netns::find).transpose().or_refused()?.flatten() {
        let mut inside = netns.rtnl().or_refused()?;
        for link in inside.links().or_refused()? {
            let own = Record::read(&link.alias).filter(|record| record.mark == mark);
            let foreign = || Record::read_foreign(&link.alias).filter(|_| link.name == ifname);
            if let Some(record) = own.or_else(foreign) {
                errors.extend(home(&mut inside, &link, &mut host, &record).err());
            }
        }
    }
    for link in host.links().or_refused()? {
        if let Some(record) = Record::read(&link.alias).filter(|record| record.mark == mark) {
            errors.extend(rename(&mut host, &link, &record).err());
        }
    }
    collected(errors)
}

/// From the container to the host, as it was.
fn home(inside: &mut Rtnl, link: &Link, host: &mut Rtnl, record: &Record) -> Result<(), Error> {
    expect_free(host, &record.name, &link.name)?;
    let Record { mark: _, name, up, alias } = record;
    let change = Change { name: Some(name), alias: Some(alias), up: Some(*up), ..Change::default() };
    inside.move_link(link.index, &link.name, &Netns::own().or_refused()?, &change).or_refused()
}

/// On the host: from how the kernel returned it to how it was.
pub(super) fn rename(host: &mut Rtnl, link: &Link, record: &Record) -> Result<(), Error> {
    let Record { mark: _, name, up, alias } = record;
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
    record: Record,
    standing: Standing,
}

impl Departure {
    /// Looks at it before it goes.
    pub(super) fn of(host: &mut Rtnl, link: &Link, mark: &Mark) -> Result<Departure, Error> {
        let standing = Standing::of(host, link, TABLE_MAIN).or_refused()?;
        Ok(Departure { record: Record::of(link, mark), standing })
    }

    /// It comes back as it was, with its addresses and routes. The error that matters is another one.
    pub(super) fn undo(&self, container: &Netns) {
        let Departure { record, standing } = self;
        let Ok(mut host) = Rtnl::open() else { return };
        let Ok(mut inside) = container.rtnl() else { return };
        if matches!(host.find_link(&record.name), Ok(None)) {
            // Without its record it is if its new name was refused.
            let moved = |link: &Link| {
                Record::read(&link.alias).is_some_and(|found| found.mark == record.mark)
                    || link.name == record.name && link.alias == record.alias
            };
            if let Some(link) = inside.links().unwrap_or_default().into_iter().find(moved) {
                let _ = home(&mut inside, &link, &mut host, record);
            }
        }
        if let Ok(link) = host.link(&record.name) {
            let _ = standing.restore(&mut host, &link, TABLE_MAIN, Duration::ZERO);
        }
    }
}
