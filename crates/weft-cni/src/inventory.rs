//! Content of a network namespace, for `weft-cni sandbox show`, and the objects with an owner tag, for
//! `sandbox owner-tags`.
//!
//! - Inventories can be compared: each is a list of sorted lines without state that changes by itself
//!   (counters, indexes, carrier, link-scope addresses). `weft demo` and tests show in this way that a
//!   teardown left nothing.
//! - An object with an owner tag belongs to one container. `weft doctor` reports those whose container does
//!   not exist.

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

use crate::meta_plugin::enforcement as policy;

/// Prefix that the plugins' packet-filter tables have.
const TABLES: &str = "weft_";

/// Links, addresses, routes, rules and packet-filter entries in a namespace, each a sorted list.
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
    /// Owner tags on packet-filter entries.
    pub filters: Vec<String>,
}

/// Resource with one of weft's owner tags.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Tagged {
    /// The resource: `link veth0`, `element of inet weft_masquerade sources4`.
    pub on: String,
    /// Owner tag: `weft/PLUGIN/NETWORK/CONTAINER/IFNAME`.
    #[serde(rename = "mark")]
    pub tag: String,
}

/// Returns all resources in a namespace with a container's owner tag: links, packet-filter entries, iptables
/// rules.
pub fn owner_tags(netns: &Netns) -> Result<Vec<Tagged>, Error> {
    let links = netns.rtnl().or_refused()?.links().or_refused()?;
    let returned = host_device::returned_devices(&links)?;
    let mut tagged: Vec<Tagged> = links
        .into_iter()
        .map(|link| (link.alias, link.name))
        .chain(returned.into_iter().map(|(name, tag)| (tag, name)))
        .map(|(tag, name)| Tagged { on: format!("link {name}"), tag })
        .chain(netns.run(filter_tags).or_refused()??)
        .chain(netns.run(rule_tags).or_refused()??)
        .collect();
    // Resources that all containers share belong to no container.
    tagged.retain(|tagged| OwnerTag::read(&tagged.tag).is_some_and(|tag| !tag.container.is_empty()));
    Ok(tagged)
}

/// Returns the entries in weft's packet-filter tables in the calling thread's namespace.
pub(crate) fn filter_tags() -> Result<Vec<Tagged>, Error> {
    let mut nft = Nft::open().or_refused()?;
    let mut tagged = Vec::new();
    for family in [nft::Family::Inet, nft::Family::Bridge] {
        let tables = match nft.tables(family) {
            Ok(tables) => tables,
            // The kernel does not support this family.
            Err(_) => continue,
        };
        for name in tables.iter().filter(|name| name.starts_with(TABLES) || *name == policy::TABLE) {
            let table = nft::Table::new(family, name);
            // The other sets of network policies contain the addresses of peers.
            let is_tagged = |set: &String| name != policy::TABLE || policy::LINKS.contains(&set.as_str());
            for set in nft.sets(table).or_refused()?.into_iter().filter(is_tagged) {
                let elements = nft.elements(table, &set).or_refused()?.into_iter();
                let on = format!("element of {table} {set}");
                tagged.extend(elements.map(|element| Tagged { on: on.clone(), tag: element.comment }));
            }
        }
    }
    Ok(tagged)
}

/// Returns the iptables rules that `firewall`, `portmap` and `ipMasq` made in the calling thread's namespace.
/// Returns none where iptables cannot be executed.
fn rule_tags() -> Result<Vec<Tagged>, Error> {
    let mut tagged = Vec::new();
    for (table, chain) in [(firewall::TABLE, firewall::PRIVATE), (portmap::TABLE, "POSTROUTING")] {
        for family in iptables::Family::ALL {
            if iptables::has_chain(family, table, chain)?
                && let Ok(saved) = family.save(table)
            {
                let own = saved.lines().filter_map(|rule| Some((rule, tag_of(rule)?)));
                tagged.extend(own.map(|(rule, tag)| Tagged { on: format!("iptables {rule}"), tag }));
            }
        }
    }
    Ok(tagged)
}

/// Returns the owner tag on a container's rule. Rules that the reference plugins made count as well; they do
/// not name the interface.
fn tag_of(rule: &str) -> Option<String> {
    if let Some(tag) = comment_of(rule) {
        return Some(tag.to_owned());
    }
    let kinds = [("portmap", portmap::COMMENT), ("ipMasq", "")];
    let named = |(kind, word)| iptables::named(rule, word).map(|named| (kind, named));
    let (plugin, (network, container)) = kinds.into_iter().find_map(named)?;
    let (network, container, ifname) = (network.to_owned(), container.to_owned(), String::new());
    Some(OwnerTag { plugin: plugin.to_owned(), network, container, ifname }.text(usize::MAX))
}

/// Returns a namespace's inventory.
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
        filters: netns.run(filter_tags).or_refused()??.into_iter().map(|tagged| tagged.tag).collect(),
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
    // Routes of link-local networks appear and disappear with the carrier.
    let own = list.iter().filter(|route| !route.dst.to_string().starts_with("fe80::"));
    Ok(own.map(describe).collect())
}

fn rules(net: &mut Rtnl) -> Result<Vec<String>, Error> {
    let mut list = net.rules(Family::V4).or_refused()?;
    list.extend(net.rules(Family::V6).or_refused()?);
    Ok(list.iter().map(|rule| format!("from {} lookup {}", rule.from, rule.table)).collect())
}
