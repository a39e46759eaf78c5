//! `vrf`: gives the interface a separate routing table, shared by all interfaces of the same VRF.
//!
//! ```text
//!   container:  eth0 ─┐
//!               net1 ─┴─ blue (vrf, table 10)        routes of both: table 10
//! ```
//!
//! Rules beyond the reference plugin's:
//! - Every route that a program added moves with the interface, also a route without a gateway.
//! - An automatically chosen table is unused: no VRF or rule refers to it, it has no routes and is not one of the
//!   kernel's three.
//! - DEL takes the interface and the routes out of the VRF, and removes only a VRF that this plugin created.
//! - A failed ADD restores interface, routes and VRFs.
//!
//! GC does nothing, because all objects are in the container's namespace.
//!
//! Source: containernetworking/plugins `plugins/meta/vrf` v1.9.1; kernel `Documentation/networking/vrf.rst`.

use std::ops::RangeInclusive;
use std::time::Duration;

use cni::Error;
use cni::invocation::{Attach, Detach, Probe, Sweep};
use cni::invoke::Invoke;
use cni::plugin::Plugin;
use cni::result::Success;
use linux::error::absent_is_fine;
use linux::link::create::{NewKind, NewLink};
use linux::link::removal::LinkRemoval;
use linux::link::snapshot::LinkSnapshot;
use linux::link::{Change, Detail, Link};
use linux::netns::Lock;
use linux::route::{Family, TABLE_MAIN};
use linux::watch::Watch;
use linux::{Netns, Rtnl, Undo};
use plugin_config::vrf::Settings;
use plugin_support::failure::OrRefused;
use plugin_support::netns::open_netns;
use plugin_support::owner_tag::{ALIAS_MAX, OwnerTag};
use sha2::{Digest, Sha512};

use crate::interface::inspection::differs;

/// Plugin `vrf`.
pub struct Vrf;

const NAME: &str = "vrf";
/// Kernel's own tables: default, main, local.
const RESERVED: RangeInclusive<u32> = 253..=255;
/// Timeout until IPv6 is ready on an interface that has come up.
const IPV6_TIMEOUT: Duration = Duration::from_millis(2500);

/// VRF that exists in the container.
#[derive(Clone, Copy, Debug)]
struct ExistingVrf {
    index: u32,
    table: u32,
}

// === impl Plugin ===

impl Plugin for Vrf {
    fn name(&self) -> &'static str {
        NAME
    }

    fn add(&self, request: &Attach, _: &dyn Invoke) -> Result<Success, Error> {
        let Attach { who, netns, call } = request;
        let settings = Settings::read(call)?;
        let result = call.config.require_prev_result()?;
        let netns = open_netns(netns)?;
        // Other calls for this container may search for a free table at the same time.
        let _lock = netns.lock(Lock::Exclusive).or_refused()?;
        let mut net = netns.rtnl().or_refused()?;
        let link = net.link(who.ifname.as_str()).or_refused()?;
        let mut undo = Undo::new();
        let vrf = match find(&mut net, &settings.name)? {
            Some(vrf) => expect_table(&settings, vrf)?,
            None => {
                expect_free(&mut net, &link, None)?;
                let (name, tag, inside) = (&settings.name, OwnerTag::of(NAME, &call.config, who), &netns);
                let own = own_mac(&tag);
                undo.push(move || remove_own(inside, name, own));
                make(&mut net, &settings, &tag)?
            }
        };
        expect_free(&mut net, &link, Some(vrf))?;
        if link.master != Some(vrf.index) {
            enter(&mut net, &netns, &link, vrf, &mut undo)?;
        }
        undo.commit();
        Ok(result)
    }

    fn del(&self, request: &Detach, _: &dyn Invoke) -> Result<(), Error> {
        let Detach { who, netns, call } = request;
        let Some(netns) = netns.as_deref().map(Netns::find).transpose().or_refused()?.flatten() else {
            return Ok(());
        };
        // DEL also works without the lock: a process that holds it must not keep a sandbox.
        let _lock = netns.lock(Lock::Exclusive).ok();
        // ADD refuses an invalid configuration, so there is nothing to remove.
        let Ok(Settings { name, .. }) = Settings::read(call) else { return Ok(()) };
        let mut net = netns.rtnl().or_refused()?;
        let Some(link) = net.find_link(&name).or_refused()? else { return Ok(()) };
        let Detail::Vrf { table } = link.detail else { return Ok(()) };
        let vrf = ExistingVrf { index: link.index, table };
        if let Some(own) = net.find_link(who.ifname.as_str()).or_refused()?
            && own.master == Some(vrf.index)
        {
            leave(&mut net, &own, vrf)?;
        }
        let own = own_mac(&OwnerTag::of(NAME, &call.config, who));
        let ours = link.mac == own;
        let used = net.links().or_refused()?.iter().any(|other| other.master == Some(vrf.index));
        if !ours || used {
            return Ok(());
        }
        LinkRemoval::within(&netns).and_then(|removal| removal.delete(&[vrf.index])).or_refused()
    }

    fn check(&self, request: &Attach, _: &dyn Invoke) -> Result<(), Error> {
        let Attach { who, netns, call } = request;
        let settings = Settings::read(call)?;
        call.config.require_prev_result()?;
        let mut net = open_netns(netns)?.rtnl().or_refused()?;
        let absent = || Error::internal(format!("the container has no VRF {}", settings.name));
        let vrf = expect_table(&settings, find(&mut net, &settings.name)?.ok_or_else(absent)?)?;
        let link = net.link(who.ifname.as_str()).or_refused()?;
        match link.master == Some(vrf.index) {
            true => expect_no_hop_outside(&mut net, &link, vrf),
            false => Err(differs(
                &link.name,
                "master index",
                &format!("{:?}", link.master),
                &vrf.index.to_string(),
            )),
        }
    }

    fn gc(&self, _: &Sweep, _: &dyn Invoke) -> Result<(), Error> {
        Ok(())
    }

    fn status(&self, request: &Probe, _: &dyn Invoke) -> Result<(), Error> {
        Settings::read(&request.call).map(|_| ())
    }
}

// === the VRF ===

/// Returns the VRF with this name.
fn find(net: &mut Rtnl, name: &str) -> Result<Option<ExistingVrf>, Error> {
    let Some(link) = net.find_link(name).or_refused()? else { return Ok(None) };
    match link.detail {
        Detail::Vrf { table } => Ok(Some(ExistingVrf { index: link.index, table })),
        _ => Err(Error::key("vrfname", format!("{name:?}"), "the interface of this name is no VRF")),
    }
}

fn expect_table(settings: &Settings, vrf: ExistingVrf) -> Result<ExistingVrf, Error> {
    match settings.table {
        Some(table) if table != vrf.table => {
            let why = format!("VRF {} already exists, with table {}", settings.name, vrf.table);
            Err(Error::key("table", table, why))
        }
        _ => Ok(vrf),
    }
}

/// `ip link add NAME address MAC up type vrf table N; ip link set NAME alias TEXT`
///
/// The hardware address, which has no other use, identifies the VRF as this plugin's. The kernel sets it when it
/// creates the link, but the alias only afterwards. The alias is for people.
fn make(net: &mut Rtnl, settings: &Settings, tag: &OwnerTag) -> Result<ExistingVrf, Error> {
    let table = match settings.table {
        Some(table) => table,
        None => free_table(net)?,
    };
    let (mac, alias) = (own_mac(tag), tag.text(ALIAS_MAX));
    let mut link = NewLink::new(&settings.name, NewKind::Vrf { table });
    (link.mac, link.alias, link.up) = (Some(mac.as_slice()), Some(alias.as_str()), true);
    net.add_link(&link).or_refused()?;
    Ok(ExistingVrf { index: net.link(&settings.name).or_refused()?.index, table })
}

/// Returns the hardware address for VRFs that this plugin creates in a container.
fn own_mac(tag: &OwnerTag) -> [u8; 6] {
    let hash = Sha512::digest(format!("{NAME}/{}", tag.container));
    let mut mac = [0x0a; 6];
    mac.iter_mut().skip(1).zip(hash).for_each(|(byte, random)| *byte = random);
    mac
}

/// Removes the VRF with this name if this plugin created it. For an undo: the VRF may not exist.
fn remove_own(netns: &Netns, name: &str, mac: [u8; 6]) {
    let Ok(mut net) = netns.rtnl() else { return };
    if let Ok(Some(link)) = net.find_link(name)
        && link.mac == mac
    {
        // Best effort: the caller returns the original error.
        let _ = net.delete_link(link.index, name);
    }
}

fn free_table(net: &mut Rtnl) -> Result<u32, Error> {
    let mut taken: Vec<u32> = Vec::new();
    for link in net.links().or_refused()? {
        if let Detail::Vrf { table } = link.detail {
            taken.push(table);
        }
    }
    for family in [Family::V4, Family::V6] {
        taken.extend(net.routes(family).or_refused()?.iter().map(|route| route.table));
        taken.extend(net.tables_of_rules(family).or_refused()?);
    }
    let free = (1..=u32::MAX).find(|table| !RESERVED.contains(table) && !taken.contains(table));
    free.ok_or_else(|| Error::internal("every routing table is in use"))
}

// === the interface ===

/// Fails if the interface belongs to another master than `vrf`.
fn expect_free(net: &mut Rtnl, link: &Link, vrf: Option<ExistingVrf>) -> Result<(), Error> {
    match link.master {
        Some(master) if vrf.is_none_or(|vrf| vrf.index != master) => {
            let master = net.link_at(master).or_refused()?.name;
            let why = format!("interface {} already belongs to {master}", link.name);
            Err(Error::config(format!("vrfname: {why}")))
        }
        _ => Ok(()),
    }
}

/// `ip link set ETH master VRF`, then restores addresses and routes.
fn enter<'a>(
    net: &mut Rtnl,
    netns: &'a Netns,
    link: &Link,
    vrf: ExistingVrf,
    undo: &mut Undo<'a>,
) -> Result<(), Error> {
    let standing = LinkSnapshot::of(net, link, TABLE_MAIN).or_refused()?;
    // Opened before the move, so that every later change is received.
    let changes = netns.run(Watch::open).or_refused()?.or_refused()?;
    let (before, own) = (standing.clone(), link.clone());
    undo.push(move || {
        let Ok(mut net) = netns.rtnl() else { return };
        let changes = netns.run(Watch::open);
        let _ = set_master(&mut net, &own, 0);
        let _ = match changes {
            Ok(Ok(changes)) => before.restore_within(&mut net, &own, TABLE_MAIN, &changes, IPV6_TIMEOUT),
            _ => before.restore(&mut net, &own, TABLE_MAIN),
        };
    });
    set_master(net, link, vrf.index).or_refused()?;
    delete_surviving_hops(net, link, TABLE_MAIN)?;
    standing.restore_within(net, link, vrf.table, &changes, IPV6_TIMEOUT).or_refused()
}

/// Fails if a route outside of the VRF's table, to a destination that the table has, leads through the interface.
fn expect_no_hop_outside(net: &mut Rtnl, link: &Link, vrf: ExistingVrf) -> Result<(), Error> {
    let inside = net.routes_through(link.index, vrf.table).or_refused()?;
    let mut outside = net.routes_through(link.index, TABLE_MAIN).or_refused()?;
    outside.retain(|route| inside.iter().any(|own| own.dst == route.dst));
    outside.first().map_or(Ok(()), |route| {
        let why = format!("route {} by {} is also in the main table", route.dst, link.name);
        Err(Error::internal(format!("{why}, beside table {} of its VRF; recreate the pod", vrf.table)))
    })
}

/// Takes the interface out of the VRF. Routes that the main table does not accept must not prevent a DEL.
fn leave(net: &mut Rtnl, link: &Link, vrf: ExistingVrf) -> Result<(), Error> {
    let standing = LinkSnapshot::of(net, link, vrf.table).or_refused()?;
    set_master(net, link, 0).or_refused()?;
    delete_surviving_hops(net, link, vrf.table)?;
    let _ = standing.restore(net, link, TABLE_MAIN);
    Ok(())
}

/// Removes the next hops by an interface from a table that it left. The kernel removes routes with one next hop; those
/// with hops by other interfaces keep this one, and it would get a part of the flows when the interface is up.
fn delete_surviving_hops(net: &mut Rtnl, link: &Link, table: u32) -> Result<(), Error> {
    for hop in net.routes_through(link.index, table).or_refused()? {
        absent_is_fine(net.delete_hop(&hop)).or_refused()?;
    }
    Ok(())
}

fn set_master(net: &mut Rtnl, link: &Link, master: u32) -> Result<(), linux::Error> {
    net.change_link(link.index, &link.name, &Change { master: Some(master), ..Change::default() })
}
