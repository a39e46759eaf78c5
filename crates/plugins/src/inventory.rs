//! What is in a network namespace, as a list of lines that can be compared: for showing that a teardown left
//! nothing.
//!
//! Left out is what changes by itself: counters, indexes, carrier, addresses the kernel makes.

use std::collections::BTreeMap;

use cni::Error;
use linux::link::{Link, mac_text};
use linux::route::Family;
use linux::{Netns, Rtnl};
use serde::Serialize;

use crate::failure::OrRefused;

/// What is there, by kind, each a sorted list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Inventory {
    /// `eth0 veth 02:…`
    pub links: Vec<String>,
    /// `eth0 10.1.0.5/24`
    pub addresses: Vec<String>,
    /// `default via 10.1.0.1 dev eth0 table 254`
    pub routes: Vec<String>,
    /// `from 10.1.0.5/32 lookup 100`
    pub rules: Vec<String>,
    /// Packet-filter entries that bear our mark.
    pub filters: Vec<String>,
}

/// Looks around in a namespace.
pub fn take(netns: &Netns) -> Result<Inventory, Error> {
    let mut net = netns.rtnl().or_refused()?;
    let links = net.links().or_refused()?;
    let names: BTreeMap<u32, &str> = links.iter().map(|link| (link.index, link.name.as_str())).collect();
    let name = |index: u32| names.get(&index).copied().unwrap_or("-");
    let mut inventory = Inventory {
        links: links.iter().map(describe).collect(),
        addresses: net
            .all_addresses()
            .or_refused()?
            .iter()
            .filter(|address| address.global)
            .map(|address| format!("{} {}", name(address.link), address.address))
            .collect(),
        routes: routes(&mut net, name)?,
        rules: rules(&mut net)?,
        filters: netns.run(crate::interface::masquerade::marks).or_refused()??,
    };
    let Inventory { links, addresses, routes, rules, filters } = &mut inventory;
    for list in [links, addresses, routes, rules, filters] {
        list.sort();
    }
    Ok(inventory)
}

fn describe(link: &Link) -> String {
    let kind = if link.kind.is_empty() { "device" } else { &link.kind };
    format!("{} {kind} {}", link.name, mac_text(&link.mac)).trim_end().to_owned()
}

fn routes<'a>(net: &mut Rtnl, name: impl Fn(u32) -> &'a str) -> Result<Vec<String>, Error> {
    let mut list = net.routes(Family::V4).or_refused()?;
    list.extend(net.routes(Family::V6).or_refused()?);
    let describe = |route: &linux::route::Route| {
        let via = route.gateway.map(|gateway| format!(" via {gateway}")).unwrap_or_default();
        format!("{}{via} dev {} table {}", route.dst, name(route.link), route.table)
    };
    // Link-local networks come and go with carrier.
    let own = list.iter().filter(|route| !route.dst.to_string().starts_with("fe80::"));
    Ok(own.map(describe).collect())
}

fn rules(net: &mut Rtnl) -> Result<Vec<String>, Error> {
    let mut list = net.rules(Family::V4).or_refused()?;
    list.extend(net.rules(Family::V6).or_refused()?);
    Ok(list.iter().map(|rule| format!("from {} lookup {}", rule.from, rule.table)).collect())
}
