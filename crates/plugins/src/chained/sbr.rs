//! `sbr`: sends packets with an address of this interface through this interface (source-based routing).
//!
//! ```text
//!   rule: from 10.1.0.5 lookup 100      table 100: the interface's routes, moved from the main table
//! ```
//!
//! Rules beyond the reference plugin's:
//! - A failed ADD restores rules and routes.
//! - DEL needs no namespace, interface, prevResult or valid configuration. It leaves the rules of other programs.
//! - CHECK verifies rules and default routes.
//!
//! The kernel removes the routes with the interface. GC does nothing, because all objects are in the container's
//! namespace.
//!
//! Source: containernetworking/plugins `plugins/meta/sbr` v1.9.1; `gateways` and `addSourceHints`: later versions.

pub mod split;

use std::collections::HashSet;
use std::net::IpAddr;

use cni::error::collected;
use cni::invocation::{Attach, Detach, Probe, Sweep};
use cni::invoke::Invoke;
use cni::plugin::Plugin;
use cni::result::{IpConfig, Success};
use cni::{Context, Error};
use ipnet::IpNet;
use linux::netns::Lock;
use linux::route::{Existing, Family, PROTOCOL, Route, TABLE_MAIN};
use linux::rule::Rule;
use linux::{Kind, Netns, Rtnl, Undo};
use plugin_config::sbr::Settings;
use plugin_support::failure::OrRefused;
use plugin_support::netns::open_netns;

use self::split::{Split, direct_first};

/// Plugin `sbr`.
pub struct Sbr;

const NAME: &str = "sbr";
/// First table that is tried.
const FIRST_TABLE: u32 = 100;
/// Protocol that the reference plugin's rules have: none (`RTPROT_UNSPEC`).
const UNSPECIFIED_PROTOCOL: u8 = 0;

// === impl Plugin ===

impl Plugin for Sbr {
    fn name(&self) -> &'static str {
        NAME
    }

    fn add(&self, request: &Attach, _: &dyn Invoke) -> Result<Success, Error> {
        let Attach { who, netns, call } = request;
        let ifname = who.ifname.as_str();
        let settings = Settings::read(&call.config)?;
        let result = call.config.require_prev_result()?;
        let addresses = addresses(ifname, &result)?;
        let netns = open_netns(netns)?;
        // Other calls for this container may search for a free table at the same time.
        let _lock = netns.lock(Lock::Exclusive).or_refused()?;
        let mut net = netns.rtnl().or_refused()?;
        let mut undo = Undo::new();
        match settings.table {
            Some(table) => {
                net.link(ifname).or_refused()?;
                let rules = addresses.iter().map(|ip| Rule::new(host_route(ip.address.addr()), table));
                add_rules(&mut net, &netns, rules, &mut undo)?;
            }
            None => add_tables(&mut net, &netns, ifname, &settings, &addresses, &mut undo)?,
        }
        undo.commit();
        Ok(result)
    }

    fn del(&self, request: &Detach, _: &dyn Invoke) -> Result<(), Error> {
        let Detach { who, netns, call } = request;
        let Some(path) = netns else { return Ok(()) };
        let Some(netns) = Netns::find(path).or_refused()? else { return Ok(()) };
        // Without a valid configuration any table matches: address and protocol identify the rules.
        let table = Settings::read(&call.config).ok().and_then(|settings| settings.table);
        let known = call.config.prev_result().ok().flatten().unwrap_or_default();
        let known = relevant(who.ifname.as_str(), &known).map(|ip| ip.address.addr()).collect();
        // DEL also works without the lock: a process that holds it must not keep a sandbox.
        let _lock = netns.lock(Lock::Exclusive).ok();
        remove_rules(&mut netns.rtnl().or_refused()?, who.ifname.as_str(), table, known)
    }

    fn check(&self, request: &Attach, _: &dyn Invoke) -> Result<(), Error> {
        let Attach { who, netns, call } = request;
        let settings = Settings::read(&call.config)?;
        let result = call.config.require_prev_result()?;
        let addresses = addresses(who.ifname.as_str(), &result)?;
        let mut net = open_netns(netns)?.rtnl().or_refused()?;
        inspect(&mut net, who.ifname.as_str(), &settings, &addresses)
    }

    fn gc(&self, _: &Sweep, _: &dyn Invoke) -> Result<(), Error> {
        Ok(())
    }

    fn status(&self, request: &Probe, _: &dyn Invoke) -> Result<(), Error> {
        Settings::read(&request.call.config).map(|_| ())
    }
}

/// Returns the addresses in a result that belong to this interface. An address without an interface counts.
fn relevant<'a>(ifname: &'a str, result: &'a Success) -> impl Iterator<Item = &'a IpConfig> {
    result.ips.iter().filter(move |ip| {
        let interface = ip.interface.and_then(|index| usize::try_from(index).ok());
        match interface.and_then(|index| result.interfaces.get(index)) {
            Some(interface) => interface.name == ifname && result.is_inside(interface, ifname),
            None => true,
        }
    })
}

fn addresses(ifname: &str, result: &Success) -> Result<Vec<IpConfig>, Error> {
    let addresses: Vec<IpConfig> = relevant(ifname, result).cloned().collect();
    match addresses.is_empty() {
        true => Err(Error::config(format!("prevResult has no address of interface {ifname:?}"))),
        false => Ok(addresses),
    }
}

fn host_route(address: IpAddr) -> IpNet {
    IpNet::from(address)
}

/// Returns the family that an address belongs to.
fn family(address: IpAddr) -> Family {
    match address {
        IpAddr::V4(_) => Family::V4,
        IpAddr::V6(_) => Family::V6,
    }
}

// === ADD ===

/// Gives each address a separate table with the interface's routes.
fn add_tables<'a>(
    net: &mut Rtnl,
    netns: &'a Netns,
    ifname: &str,
    settings: &Settings,
    addresses: &[IpConfig],
    undo: &mut Undo<'a>,
) -> Result<(), Error> {
    let link = net.link(ifname).or_refused()?;
    let mut all = net.routes(Family::V4).or_refused()?;
    all.extend(net.routes(Family::V6).or_refused()?);
    let mut taken: Vec<u32> = all.iter().map(|route| route.table).collect();
    taken.extend(net.tables_of_rules(Family::V4).or_refused()?);
    taken.extend(net.tables_of_rules(Family::V6).or_refused()?);
    let own: Vec<Route> =
        all.into_iter().filter(|route| route.table == TABLE_MAIN && route.link == link.index).collect();
    let split = Split::plan(settings, addresses, link.index, &own, &taken);
    let Split { tables, hints, leave } = split;

    // Added before the main table changes: a gateway must be reachable.
    let mut rules = Vec::new();
    for (address, table, routes) in tables {
        undo.push(undo_added_routes(netns, routes.clone()));
        net.add_routes(&routes, Existing::Replace).or_refused().context(format_args!("table {table}"))?;
        rules.push(Rule::new(host_route(address), table));
    }
    add_rules(net, netns, rules.into_iter(), undo)?;
    undo.push(undo_removed_routes(netns, own));
    for route in &leave {
        // The main table keeps the next hops by other interfaces.
        linux::error::absent_is_fine(net.delete_hop(route)).or_refused().context("table main")?;
    }
    undo.push(undo_added_routes(netns, hints.clone()));
    net.add_routes(&hints, Existing::Replace).or_refused().context("table main")
}

fn add_rules<'a>(
    net: &mut Rtnl,
    netns: &'a Netns,
    rules: impl Iterator<Item = Rule>,
    undo: &mut Undo<'a>,
) -> Result<(), Error> {
    // The kernel would accept the same rule twice, each with another priority.
    let mut present = net.rules(Family::V4).or_refused()?;
    present.extend(net.rules(Family::V6).or_refused()?);
    let is_there = |rule: &Rule| present.iter().any(|r| Rule { priority: None, ..r.clone() } == *rule);
    for rule in rules.filter(|rule| !is_there(rule)) {
        let added = net.add_rule(&rule);
        // An existing rule belongs to another call. After any other error the kernel may have added the rule.
        if !matches!(&added, Err(error) if error.kind() == Kind::Exists) {
            undo.push(move || {
                let _ = netns.rtnl().and_then(|mut net| net.delete_rule(&rule));
            });
        }
        added.or_refused()?;
    }
    Ok(())
}

/// Removes routes again that were added.
fn undo_added_routes(netns: &Netns, routes: Vec<Route>) -> impl FnOnce() {
    move || {
        let Ok(mut net) = netns.rtnl() else { return };
        for route in routes.iter().rev() {
            let _ = net.delete_route(route);
        }
    }
}

/// Adds routes again that were removed; routes that others depend on come first.
fn undo_removed_routes(netns: &Netns, routes: Vec<Route>) -> impl FnOnce() {
    move || {
        let Ok(mut net) = netns.rtnl() else { return };
        let _ = net.add_routes(&direct_first(routes), Existing::Append);
    }
}

// === DEL ===

/// Removes an interface's rules, by recorded and present addresses, and rules that this plugin made for interfaces that
/// are gone.
fn remove_rules(
    net: &mut Rtnl,
    ifname: &str,
    table: Option<u32>,
    mut own: HashSet<IpAddr>,
) -> Result<(), Error> {
    // A process in the container can add many addresses and rules.
    let mut present = HashSet::new();
    let index = net.find_link(ifname).or_refused()?.map(|link| link.index);
    for address in net.all_addresses().or_refused()? {
        match Some(address.link) == index {
            true => own.insert(address.address.addr()),
            false => present.insert(address.address.addr()),
        };
    }
    let mut errors = Vec::new();
    for family in [Family::V4, Family::V6] {
        for rule in net.rules(family).or_refused()? {
            let from = rule.from.addr();
            let is_single = rule.from.prefix_len() == rule.from.max_prefix_len();
            let is_ours = rule.protocol == PROTOCOL;
            let known = own.contains(&from) && (is_ours || rule.protocol == UNSPECIFIED_PROTOCOL);
            let orphaned = is_ours && !present.contains(&from) && index.is_none();
            let stale = is_single && (known || orphaned) && table.is_none_or(|table| table == rule.table);
            if stale && !present.contains(&from) {
                let deleted = linux::error::absent_is_fine(net.delete_rule(&rule));
                errors.extend(deleted.or_refused().err());
            }
        }
    }
    collected(errors)
}

// === CHECK ===

fn inspect(net: &mut Rtnl, ifname: &str, settings: &Settings, addresses: &[IpConfig]) -> Result<(), Error> {
    let link = net.link(ifname).or_refused()?;
    for ip in addresses {
        let (address, family) = (ip.address.addr(), family(ip.address.addr()));
        let from = host_route(address);
        let rules = net.rules(family).or_refused()?;
        let tables = rules.iter().filter(|rule| rule.from == from).map(|rule| rule.table);
        let Some(table) = (match settings.table {
            Some(table) => tables.into_iter().find(|found| *found == table),
            None => tables.into_iter().find(|found| *found >= FIRST_TABLE),
        }) else {
            let to = settings.table.map(|table| format!(" to table {table}")).unwrap_or_default();
            return Err(Error::internal(format!("there is no rule from {address}{to}")));
        };
        if settings.table.is_some() {
            continue;
        }
        let routes = net.routes(family).or_refused()?;
        let mut inside = routes.iter().filter(|route| route.table == table && route.link == link.index);
        let gateway = settings.gateway(address).or(ip.gateway);
        let found = match gateway {
            Some(gateway) => inside.any(|route| route.is_default() && route.gateway == Some(gateway)),
            // The address of a single host has no subnet, so no route.
            None => ip.address.prefix_len() == ip.address.max_prefix_len() || inside.next().is_some(),
        };
        if !found {
            let what = gateway.map_or("route".to_owned(), |gateway| format!("default route via {gateway}"));
            return Err(Error::internal(format!("table {table} lacks a {what} dev {ifname}")));
        }
    }
    Ok(())
}
