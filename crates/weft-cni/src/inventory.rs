//! What is in a network namespace, as a list of lines that can be compared: for showing that a teardown left
//! nothing.
//!
//! Left out is what changes by itself: counters, indexes, carrier, addresses the kernel makes.

use std::collections::BTreeMap;

use cni::Error;
use linux::link::{Link, mac_text};
use linux::nft::{self, Nft};
use linux::route::Family;
use linux::{Netns, Rtnl};
use plugin_support::failure::OrRefused;
use plugin_support::owner_tag::OwnerTag;
use plugins::chained::firewall::{self, iptables::comment_of};
use plugins::chained::portmap::iptables as portmap;
use plugins::interface::host_device;
use plugins::iptables;
use serde::Serialize;

/// How the names of our packet-filter tables begin.
const TABLES: &str = "weft_";

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

/// Something that bears a mark of ours.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Marked {
    /// What it is: `link veth0`, `element of inet weft_masquerade sources4`.
    pub on: String,
    /// Its mark: `weft/PLUGIN/NETWORK/CONTAINER/IFNAME`.
    pub mark: String,
}

/// Everything in a namespace that bears a mark of a container: links, packet-filter entries, rules of iptables.
pub fn marks(netns: &Netns) -> Result<Vec<Marked>, Error> {
    let links = netns.rtnl().or_refused()?.links().or_refused()?;
    let returned = host_device::returned_devices(&links)?;
    let mut marked: Vec<Marked> = links
        .into_iter()
        .map(|link| (link.alias, link.name))
        .chain(returned.into_iter().map(|(name, mark)| (mark, name)))
        .map(|(mark, name)| Marked { on: format!("link {name}"), mark })
        .chain(netns.run(filter_marks).or_refused()??)
        .chain(netns.run(rule_marks).or_refused()??)
        .collect();
    // What all containers share belongs to none of them.
    marked.retain(|marked| OwnerTag::read(&marked.mark).is_some_and(|mark| !mark.container.is_empty()));
    Ok(marked)
}

/// The entries of our own packet-filter tables in the calling thread's namespace.
fn filter_marks() -> Result<Vec<Marked>, Error> {
    let mut nft = Nft::open().or_refused()?;
    let mut marked = Vec::new();
    for family in [nft::Family::Inet, nft::Family::Bridge] {
        let tables = match nft.tables(family) {
            Ok(tables) => tables,
            // A kernel without this family has nothing in it.
            Err(_) => continue,
        };
        for name in tables.iter().filter(|name| name.starts_with(TABLES)) {
            let table = nft::Table::new(family, name);
            for set in nft.sets(table).or_refused()? {
                let elements = nft.elements(table, &set).or_refused()?.into_iter();
                let on = format!("element of {table} {set}");
                marked.extend(elements.map(|element| Marked { on: on.clone(), mark: element.comment }));
            }
        }
    }
    Ok(marked)
}

/// The rules of iptables that `firewall`, `portmap` and `ipMasq` made, in the calling thread's namespace; none where iptables
/// cannot be run.
fn rule_marks() -> Result<Vec<Marked>, Error> {
    let mut marked = Vec::new();
    for (table, chain) in [(firewall::TABLE, firewall::PRIVATE), (portmap::TABLE, "POSTROUTING")] {
        for family in iptables::Family::ALL {
            if iptables::has_chain(family, table, chain)?
                && let Ok(saved) = family.save(table)
            {
                let own = saved.lines().filter_map(|rule| Some((rule, mark_of(rule)?)));
                marked.extend(own.map(|(rule, mark)| Marked { on: format!("iptables {rule}"), mark }));
            }
        }
    }
    Ok(marked)
}

/// The mark of a container's rule; the reference plugins', which do not say for which interface, are ours as well.
fn mark_of(rule: &str) -> Option<String> {
    if let Some(mark) = comment_of(rule) {
        return Some(mark.to_owned());
    }
    let kinds = [("portmap", portmap::COMMENT), ("ipMasq", "")];
    let named = |(kind, word)| iptables::named(rule, word).map(|named| (kind, named));
    let (plugin, (network, container)) = kinds.into_iter().find_map(named)?;
    let (network, container, ifname) = (network.to_owned(), container.to_owned(), String::new());
    Some(OwnerTag { plugin: plugin.to_owned(), network, container, ifname }.text(usize::MAX))
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
        filters: netns.run(filter_marks).or_refused()??.into_iter().map(|marked| marked.mark).collect(),
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
