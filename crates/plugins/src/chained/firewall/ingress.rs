//! `ingressPolicy` in nf_tables: restricts the traffic to containers behind a bridge.
//!
//! ```text
//! table inet weft_firewall {
//!   set bridges { type ifname; "br0" }            bridges that have a policy
//!   set pairs   { type ifname . ifname; "br0" . "br0" }
//!   set closed  { type ifname . ifname }          bridges whose policy is isolated
//!   chain ingress { iifname . oifname @closed drop; iifname . oifname @pairs return
//!                   iifname @bridges oifname @bridges drop }
//! }
//! table bridge weft_firewall {
//!   set ports { type ifname; "veth1" comment "weft/firewall/net/c1/eth0" }
//!   chain forward { type filter hook forward; ether type ip oifname @ports drop; ether type ip6 … }
//! }
//! ```
//!
//! Frames that a bridge forwards reach the table `inet` only if the host sets `bridge-nf-call-iptables`. So the table
//! `bridge` closes the ports of isolated containers.
//!
//! Entries for a bridge stay when a container is deleted, as in the reference plugin: other containers may use the
//! bridge. GC removes the entries of bridges that no longer exist.
//!
//! Source: plugins `plugins/meta/firewall/ingresspolicy.go`.

use std::collections::HashSet;

use cni::Error;
use cni::invocation::ValidAttachment;
use linux::Rtnl;
use linux::nft::{
    BaseChain, Batch, ChainType, Data, Element, Family, Hook, Is, Nft, Policy as Default, Rule, Selector,
    Set, Table, Type, Verdict, priority,
};
use plugin_config::firewall::Policy;
use plugin_support::failure::OrRefused;
use plugin_support::owner_tag::{COMMENT_MAX, OwnerTag};

use super::nftables::{INGRESS, TABLE, shared_objects};
use super::settings::PolicyTarget;
use crate::entries::{self, Entry, EntrySets, any_verdict};

const BRIDGES: &str = "bridges";
const PAIRS: &str = "pairs";
const CLOSED: &str = "closed";

/// Table for bridged frames.
const SWITCHED: Table<'static> = Table::new(Family::Bridge, "weft_firewall");
const PORTS: &str = "ports";
const CHAIN: &str = "forward";

/// Applies the policy to the container and the bridge.
pub(super) fn add(policy: Policy, tag: &OwnerTag, target: &PolicyTarget) -> Result<(), Error> {
    let mut nft = Nft::open().or_refused()?;
    nft.commit(routed(policy, tag, target)).or_refused()?;
    if policy != Policy::Isolated {
        return Ok(());
    }
    let comment = tag.text(COMMENT_MAX);
    entries::put(&mut nft, shared(&[ports()]), &comment, &own_entries(&comment, target), || Ok(switched()))
}

fn ports() -> Set<'static> {
    Set::of(PORTS, &[Type::Link])
}

fn shared<'a>(sets: &'a [Set<'static>]) -> EntrySets<'a> {
    EntrySets { table: SWITCHED, sets, precedence: any_verdict }
}

fn own_entries(comment: &str, target: &PolicyTarget) -> Vec<Entry> {
    let entry = |port: &String| {
        let key = Data::link(port);
        Entry { set: PORTS, element: Element::new(key.clone()).comment(comment), key, value: None }
    };
    target.ports.iter().map(entry).collect()
}

/// Returns the rules for routed packets.
fn rules() -> [Rule; 3] {
    let both = [Selector::LinkIn, Selector::LinkOut];
    [
        TABLE.rule().look_up(&both, Is::In, CLOSED).decide(&Verdict::Drop),
        TABLE.rule().look_up(&both, Is::In, PAIRS).decide(&Verdict::Return),
        TABLE
            .rule()
            .look_up(&[Selector::LinkIn], Is::In, BRIDGES)
            .look_up(&[Selector::LinkOut], Is::In, BRIDGES)
            .decide(&Verdict::Drop),
    ]
}

/// Returns everything that routed packets need; it can be committed repeatedly.
fn routed(policy: Policy, tag: &OwnerTag, target: &PolicyTarget) -> Batch {
    let network = OwnerTag { container: String::new(), ifname: String::new(), ..tag.clone() };
    let comment = network.text(COMMENT_MAX);
    let name = Data::link(&target.bridge);
    let pair = Element::new(name.clone().and(name.clone())).comment(comment.as_str());
    let mut batch = shared_objects();
    batch
        .ensure_set(TABLE, &Set::of(BRIDGES, &[Type::Link]))
        .ensure_set(TABLE, &Set::of(PAIRS, &[Type::Link, Type::Link]))
        .ensure_set(TABLE, &Set::of(CLOSED, &[Type::Link, Type::Link]))
        .flush_chain(TABLE, INGRESS);
    for rule in &rules() {
        batch.add_rule(TABLE, INGRESS, rule);
    }
    batch.add_elements(TABLE, BRIDGES, &[Element::new(name).comment(comment)]).add_elements(
        TABLE,
        PAIRS,
        std::slice::from_ref(&pair),
    );
    if policy == Policy::Isolated {
        batch.add_elements(TABLE, CLOSED, &[pair]);
    }
    batch
}

/// Returns the rules for bridged frames. They do not match ARP, so neighbours resolve each other.
fn switched_rules() -> [Rule; 2] {
    let to_port = |rule: Rule| rule.look_up(&[Selector::LinkOut], Is::In, PORTS).decide(&Verdict::Drop);
    [to_port(SWITCHED.rule().ip4()), to_port(SWITCHED.rule().ip6())]
}

fn switched() -> Batch {
    let base = BaseChain {
        chain_type: ChainType::Filter,
        hook: Hook::Forward,
        priority: priority::FILTER,
        policy: Default::Accept,
    };
    let mut batch = Batch::new();
    batch
        .ensure_table(SWITCHED)
        .ensure_set(SWITCHED, &ports())
        .ensure_base_chain(SWITCHED, CHAIN, base)
        .flush_chain(SWITCHED, CHAIN);
    for rule in &switched_rules() {
        batch.add_rule(SWITCHED, CHAIN, rule);
    }
    batch
}

// === CHECK, DEL, GC ===

/// Fails unless the policy applies to the container.
pub(super) fn check(policy: Policy, tag: &OwnerTag, target: &PolicyTarget) -> Result<(), Error> {
    let mut nft = Nft::open().or_refused()?;
    let name = Data::link(&target.bridge);
    let pair = name.clone().and(name.clone());
    let closed = (policy == Policy::Isolated).then(|| (CLOSED, pair.clone()));
    for (set, key) in [(BRIDGES, name), (PAIRS, pair)].into_iter().chain(closed) {
        if nft.element(TABLE, set, &key).or_refused()?.is_none() {
            return Err(Error::internal(format!("table {TABLE}: {} is not in {set}", target.bridge)));
        }
    }
    expect(&mut nft, TABLE, INGRESS, rules().len())?;
    if policy == Policy::Isolated {
        let comment = tag.text(COMMENT_MAX);
        let own = own_entries(&comment, target);
        // A point-to-point link has no ports on the host: ADD did not create the table for bridged frames.
        if own.is_empty() {
            return Ok(());
        }
        if entries::missing(&mut nft, SWITCHED, &comment, &own)?.is_some() {
            return Err(Error::internal(format!(
                "table {SWITCHED}: a port of the container is not in {PORTS}"
            )));
        }
        expect(&mut nft, SWITCHED, CHAIN, switched_rules().len())?;
    }
    Ok(())
}

fn expect(nft: &mut Nft, table: Table<'_>, chain: &str, rules: usize) -> Result<(), Error> {
    match nft.rules(table, chain).or_refused()?.len() {
        found if found == rules => Ok(()),
        found => Err(Error::internal(format!("table {table}: chain {chain} has {found} rules, not {rules}"))),
    }
}

/// Removes only the container's entries.
pub(super) fn remove(tag: &OwnerTag) -> Result<(), Error> {
    let comment = tag.text(COMMENT_MAX);
    let Some(mut nft) = entries::open()? else { return Ok(()) };
    entries::remove(&mut nft, shared(&[ports()]), |found| found == comment).map(drop)
}

/// Removes the entries that attachments of `plugin` to `network` have and that are not valid any more, and
/// those for bridges that no longer exist.
pub(super) fn sweep(plugin: &str, network: &str, valid: &[ValidAttachment]) -> Result<(), Error> {
    let Some(mut nft) = entries::open()? else { return Ok(()) };
    entries::remove(&mut nft, shared(&[ports()]), entries::is_stale(plugin, network, valid))?;
    let about = entries::find(&mut nft, TABLE, &[BRIDGES, PAIRS, CLOSED], |_, _, _| true)?;
    if about.is_empty() {
        return Ok(());
    }
    let links = Rtnl::open().and_then(|mut host| host.links()).or_refused()?;
    let there: HashSet<Data> = links.iter().map(|link| Data::link(&link.name)).collect();
    let pairs: HashSet<Data> = there.iter().map(|name| name.clone().and(name.clone())).collect();
    let mut batch = Batch::new();
    for (set, key) in about.into_iter().filter(|(_, key)| !there.contains(key) && !pairs.contains(key)) {
        batch.delete_elements(TABLE, set, &[Element::new(key)]);
    }
    linux::error::absent_is_fine(nft.commit(batch)).or_refused()
}
