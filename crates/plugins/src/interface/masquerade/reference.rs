//! nf_tables rules that the reference plugins from 1.6 on write, and that DEL and GC remove.
//!
//! Table `inet cni_plugins_masquerade`, chain `masq_checks`: one rule for each address, whose comment begins
//! with two hashes: one over the network, one over interface and container. A leftover rule affects the next
//! container with the address.
//!
//! Source: plugins `pkg/ip/ipmasq_nftables_linux.go` (G5).

use cni::Error;
use cni::invocation::ValidAttachment;
use linux::nft::{Batch, Family, Table};
use plugin_support::failure::OrRefused;
use plugin_support::hash::hex;
use plugin_support::owner_tag::OwnerTag;
use sha2::{Digest, Sha512};

use crate::entries;

/// Table name.
pub(super) const NAME: &str = "cni_plugins_masquerade";
const TABLE: Table<'static> = Table::new(Family::Inet, NAME);
const CHAIN: &str = "masq_checks";

/// Removes an attachment's rules.
pub(super) fn remove(tag: &OwnerTag) -> Result<(), Error> {
    let own = attachment(&tag.network, &tag.ifname, &tag.container);
    remove_rules(|comment| comment.starts_with(&own))
}

/// Whether an attachment has rules.
pub(super) fn is_there(tag: &OwnerTag) -> Result<bool, Error> {
    let Some(mut nft) = entries::open()? else { return Ok(false) };
    let own = attachment(&tag.network, &tag.ifname, &tag.container);
    Ok(nft.rules(TABLE, CHAIN).or_refused()?.iter().any(|rule| rule.comment.starts_with(&own)))
}

/// Removes the rules for attachments to this network that are not valid any more.
pub(super) fn sweep(network: &str, valid: &[ValidAttachment]) -> Result<(), Error> {
    let own = format!("{}-", short_hash(network));
    let keep: Vec<String> = valid.iter().map(|v| attachment(network, &v.ifname, &v.container_id)).collect();
    remove_rules(|comment| comment.starts_with(&own) && !keep.iter().any(|keep| comment.starts_with(keep)))
}

fn remove_rules(matches: impl Fn(&str) -> bool) -> Result<(), Error> {
    let Some(mut nft) = entries::open()? else { return Ok(()) };
    let mut batch = Batch::new();
    for rule in nft.rules(TABLE, CHAIN).or_refused()?.iter().filter(|rule| matches(&rule.comment)) {
        batch.delete_rule(TABLE, CHAIN, rule.handle);
    }
    nft.commit(batch).or_refused()
}

/// Returns the prefix that the comments on an attachment's rules have.
fn attachment(network: &str, ifname: &str, container: &str) -> String {
    format!("{}-{}", short_hash(network), short_hash(&format!("{ifname}:{container}")))
}

fn short_hash(text: &str) -> String {
    hex("", 16, &Sha512::digest(text))
}
