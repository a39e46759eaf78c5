//! `macspoofchk`: drops frames from a container whose source is not the container's hardware address.
//!
//! ```text
//! table bridge weft_spoofing {
//!   set checked { type ifname }
//!   set allowed { type ifname . ether_addr }
//!   chain prerouting { type filter hook prerouting priority -300
//!                      iifname @checked iifname . ether saddr != @allowed drop }
//! }
//! ```
//!
//! Each port has two set elements with the attachment's owner tag, added and removed in one transaction each.
//!
//! Source: nft(8); plugins `pkg/link/spoofcheck.go`.

use cni::invocation::Sweep;
use cni::{Error, address};
use linux::nft::{
    BaseChain, Batch, ChainType, Data, Element, Family, Hook, Is, Nft, Policy, Selector, Set, Table, Type,
    Verdict, priority,
};
use plugin_support::failure::OrRefused;
use plugin_support::owner_tag::{COMMENT_MAX, OwnerTag};

use super::NAME;
use crate::entries::{self, EntrySets, Tables, any_verdict};
use crate::interface::veth;

const NAME_OF_TABLE: &str = "weft_spoofing";
const TABLE: Table<'static> = Table::new(Family::Bridge, NAME_OF_TABLE);
const CHAIN: &str = "prerouting";
const CHECKED: &str = "checked";
const ALLOWED: &str = "allowed";

/// Table that contains the reference plugin's rules.
const REFERENCE: Table<'static> = Table::new(Family::Bridge, "nat");
const REFERENCE_BASE: &str = "PREROUTING";

fn sets() -> [Set<'static>; 2] {
    [Set::of(CHECKED, &[Type::Link]), Set::of(ALLOWED, &[Type::Link, Type::Ether])]
}

fn shared<'a>(sets: &'a [Set<'static>]) -> EntrySets<'a> {
    EntrySets { table: TABLE, sets, precedence: any_verdict }
}

/// Accepts frames from `mac` only on `port`.
pub(super) fn allow_only(port: &str, mac: &str, tag: &OwnerTag) -> Result<(), Error> {
    let address: Option<[u8; 6]> = address::parse_mac(mac).and_then(|bytes| bytes.try_into().ok());
    let Some(address) = address else {
        return Err(Error::internal(format!("macspoofchk: {mac:?} is not an Ethernet address")));
    };
    let comment = tag.text(COMMENT_MAX);
    let mut nft = Nft::open().or_refused()?;
    entries::remove(&mut nft, shared(&sets()), |found| found == comment)?;
    let base = BaseChain {
        chain_type: ChainType::Filter,
        hook: Hook::Prerouting,
        priority: priority::RAW,
        policy: Policy::Accept,
    };
    let spoofed = TABLE
        .rule()
        .look_up(&[Selector::LinkIn], Is::In, CHECKED)
        .look_up(&[Selector::LinkIn, Selector::EtherSource], Is::NotIn, ALLOWED)
        .decide(&Verdict::Drop);
    let name = Data::link(port);
    let mut batch = Batch::new();
    batch
        .ensure_table(TABLE)
        .ensure_set(TABLE, &sets()[0])
        .ensure_set(TABLE, &sets()[1])
        .ensure_base_chain(TABLE, CHAIN, base)
        .flush_chain(TABLE, CHAIN)
        .add_rule(TABLE, CHAIN, &spoofed)
        .add_elements(TABLE, ALLOWED, &[Element::new(name.clone().and(address)).comment(comment.as_str())])
        .add_elements(TABLE, CHECKED, &[Element::new(name).comment(comment)]);
    nft.commit(batch).or_refused()
}

/// Whether the first candidate for the attachment's port is checked, or may be. Takes constant time, and no request without
/// the table.
pub(super) fn may_be_checked(tables: &mut Result<Option<Tables>, Error>, tag: &OwnerTag) -> bool {
    let name = veth::host_name(tag, 0);
    match tables {
        Ok(Some(tables)) if tables.has(Family::Bridge, NAME_OF_TABLE) => {
            has(&mut tables.nft, &name, tag).unwrap_or(true)
        }
        Ok(_) => false,
        // The removal asks again, and reports what it is refused.
        Err(_) => Nft::open().and_then(|mut nft| has(&mut nft, &name, tag)).unwrap_or(true),
    }
}

/// Fails unless the port is checked, by this plugin or by the reference plugin.
pub(super) fn inspect(port: &str, tag: &OwnerTag) -> Result<(), Error> {
    let mut nft = Nft::open().or_refused()?;
    let known = format!("macspoofchk-{}-{}", tag.container, tag.ifname);
    let exists = has(&mut nft, port, tag).or_refused()?
        || nft.rules(REFERENCE, REFERENCE_BASE).or_refused()?.iter().any(|rule| rule.comment == known);
    match exists {
        true => Ok(()),
        false => Err(Error::internal(format!("macspoofchk: port {port} accepts frames from any address"))),
    }
}

fn has(nft: &mut Nft, port: &str, tag: &OwnerTag) -> Result<bool, linux::Error> {
    let entry = nft.element(TABLE, CHECKED, &Data::link(port))?;
    Ok(entry.is_some_and(|entry| entry.comment == tag.text(COMMENT_MAX)))
}

/// Removes what [`allow_only`], or the reference plugin, created for the attachment; succeeds if there is nothing.
pub(super) fn allow_any(tag: &OwnerTag) -> Result<(), Error> {
    let comment = tag.text(COMMENT_MAX);
    let mut nft = Nft::open().or_refused()?;
    entries::remove(&mut nft, shared(&sets()), |found| found == comment)?;
    remove_reference(&mut nft, tag)
}

/// Removes the reference plugin's rules: two chains for each port, and a rule that jumps to the first.
fn remove_reference(nft: &mut Nft, tag: &OwnerTag) -> Result<(), Error> {
    let id = format!("{}-{}", tag.container, tag.ifname);
    let comment = format!("macspoofchk-{id}");
    let mut batch = Batch::new();
    for rule in nft.rules(REFERENCE, REFERENCE_BASE).or_refused()? {
        if rule.comment == comment {
            batch.delete_rule(REFERENCE, REFERENCE_BASE, rule.handle);
        }
    }
    if batch.is_empty() {
        return Ok(());
    }
    let chain = format!("cni-br-iface-{id}");
    batch.discard_chain(REFERENCE, &chain).discard_chain(REFERENCE, &format!("{chain}-mac"));
    nft.commit(batch).or_refused()
}

/// Removes the entries that attachments to this network have and that are not valid any more.
pub(super) fn sweep(request: &Sweep) -> Result<(), Error> {
    let Some(valid) = request.valid()? else { return Ok(()) };
    let is_stale = entries::is_stale(NAME, request.call.config.name.as_str(), &valid);
    entries::remove(&mut Nft::open().or_refused()?, shared(&sets()), is_stale).map(drop)
}
